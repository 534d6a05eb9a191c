//! Requests as a guest writes them, and answers as it gets them.

pub use crate::bindings::provider::mainstay::plugin::http::*;
pub use crate::bindings::toolbox::mainstay::plugin::fetching::FetchError;

impl Request {
    /// A request without headers and body.
    pub fn new(method: impl Into<String>, url: impl Into<String>) -> Self {
        Self {
            method: method.into(),
            url: url.into(),
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// A GET request.
    pub fn get(url: impl Into<String>) -> Self {
        Self::new("GET", url)
    }

    /// A POST request.
    pub fn post(url: impl Into<String>) -> Self {
        Self::new("POST", url)
    }

    /// Adds a header.
    #[must_use]
    pub fn header(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.headers.push(Header {
            name: name.into(),
            value: HeaderValue::Text(value.into()),
        });
        self
    }

    /// Adds a header whose value is a secret with a prefix, put in by the host.
    #[must_use]
    pub fn secret(
        mut self,
        name: impl Into<String>,
        prefix: impl Into<String>,
        secret: impl Into<String>,
    ) -> Self {
        self.headers.push(Header {
            name: name.into(),
            value: HeaderValue::Secret(Secret {
                name: secret.into(),
                prefix: prefix.into(),
            }),
        });
        self
    }

    /// Adds bytes to the body.
    #[must_use]
    pub fn body(mut self, bytes: impl Into<Vec<u8>>) -> Self {
        self.body.push(Chunk::Bytes(bytes.into()));
        self
    }
}

impl Response {
    /// An answer without headers and body.
    #[must_use]
    pub fn new(status: u16) -> Self {
        Self {
            status,
            headers: Vec::new(),
            body: Vec::new(),
        }
    }

    /// The first header of this name, whatever the case.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(found, _)| found.eq_ignore_ascii_case(name))
            .map(|(_, value)| value.as_str())
    }

    /// The wait that `retry-after-ms` or `retry-after` asks for. A date is no span, and without a
    /// clock it cannot be made one, so it counts as nothing.
    #[must_use]
    pub fn retry_after_ms(&self) -> Option<u32> {
        let number = |name: &str| -> Option<f64> {
            let value: f64 = self.header(name)?.trim().parse().ok()?;
            (value.is_finite() && value >= 0.0).then_some(value)
        };
        let ms = number("retry-after-ms").or_else(|| Some(number("retry-after")? * 1000.0))?;
        // A float to integer cast saturates.
        Some(ms.ceil() as u32)
    }
}

impl std::fmt::Display for FetchErrorText<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            FetchError::Denied(text) => write!(f, "not allowed, nothing was sent: {text}"),
            FetchError::Invalid(text) => write!(f, "malformed, nothing was sent: {text}"),
            FetchError::Unreachable(text) => write!(f, "no connection, nothing was sent: {text}"),
            FetchError::Broken(text) => {
                write!(f, "the connection broke, the server may have acted: {text}")
            }
            FetchError::Stopped(text) => {
                write!(f, "stopped, the server may have acted: {text}")
            }
        }
    }
}

/// A [`FetchError`] in words for a model.
pub struct FetchErrorText<'a>(pub &'a FetchError);
