//! What comes back: its head, its body piece by piece, with the values of secrets taken out, and why nothing did.

use async_trait::async_trait;
use mainstay_core::chain;
use mainstay_core::plugin::{BodyStream, EgressError, ResponseHead};
use url::Url;

use super::address::PrivateAddress;
use super::redact::Stream;
use super::{Egress, host_of};

impl Egress {
    pub(super) fn head(&self, answer: &reqwest::Response) -> ResponseHead {
        ResponseHead {
            status: answer.status().as_u16(),
            headers: answer
                .headers()
                .iter()
                .map(|(name, value)| {
                    let value = String::from_utf8_lossy(value.as_bytes());
                    (
                        name.as_str().to_owned(),
                        self.redactor.redact(&value).into_owned(),
                    )
                })
                .collect(),
        }
    }

    pub(super) async fn whole(
        &self,
        mut answer: reqwest::Response,
        url: &Url,
    ) -> Result<(ResponseHead, Vec<u8>), EgressError> {
        let head = self.head(&answer);
        let mut body = Vec::new();
        while let Some(bytes) = answer
            .chunk()
            .await
            .map_err(|error| self.failed(&error, url, false))?
        {
            if body.len() + bytes.len() > self.limits.fetch_bytes {
                return Err(EgressError::Stopped(format!(
                    "the answer of `{}` is over the limit of {}",
                    host_of(url),
                    crate::limits::bytes(self.limits.fetch_bytes)
                )));
            }
            body.extend_from_slice(&bytes);
        }
        Ok((head, self.redactor.redact_bytes(&body)))
    }

    /// What a failure of the client means.
    pub(super) fn failed(&self, error: &reqwest::Error, url: &Url, sending: bool) -> EgressError {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
        let mut last = String::new();
        while let Some(error) = cause {
            if let Some(private) = error.downcast_ref::<PrivateAddress>() {
                return EgressError::Denied(private.to_string());
            }
            last = error.to_string();
            cause = error.source();
        }
        let host = host_of(url);
        // The innermost cause says what happened; those around it repeat the address.
        let last = self.redactor.redact(&last);
        if error.is_builder() {
            EgressError::Invalid(format!("the request to `{host}` is malformed: {last}"))
        } else if error.is_connect() {
            EgressError::Unreachable(format!("`{host}` cannot be reached: {last}"))
        } else if error.is_timeout() {
            EgressError::Stopped(format!("`{host}` did not answer in time"))
        } else if sending {
            EgressError::Broken(format!("`{host}` broke off before it answered: {last}"))
        } else {
            EgressError::Broken(format!("`{host}` broke off while it answered: {last}"))
        }
    }
}

/// A provider's answer as it comes in.
pub(super) struct Body {
    pub(super) host: String,
    pub(super) answer: reqwest::Response,
    /// `None` once the last bytes have come.
    pub(super) redact: Option<Stream>,
    pub(super) ready: Vec<u8>,
    pub(super) left: usize,
    pub(super) bytes_max: usize,
}

/// What a decoder takes at once.
const PIECE: usize = 64 << 10;

#[async_trait]
impl BodyStream for Body {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, EgressError> {
        loop {
            if !self.ready.is_empty() {
                let rest = self.ready.split_off(self.ready.len().min(PIECE));
                return Ok(Some(std::mem::replace(&mut self.ready, rest)));
            }
            let Some(redact) = &mut self.redact else {
                return Ok(None);
            };
            // The only place to be dropped at, and nothing has been taken yet.
            match self.answer.chunk().await {
                Ok(Some(bytes)) => {
                    let Some(left) = self.left.checked_sub(bytes.len()) else {
                        return Err(EgressError::Stopped(format!(
                            "the answer of `{}` is over the limit of {}",
                            self.host,
                            crate::limits::bytes(self.bytes_max)
                        )));
                    };
                    self.left = left;
                    self.ready = redact.push(&bytes);
                }
                Ok(None) => {
                    self.ready = redact.end();
                    self.redact = None;
                }
                Err(error) if error.is_timeout() => {
                    return Err(EgressError::Stopped(format!(
                        "`{}` did not answer in time",
                        self.host
                    )));
                }
                Err(error) => {
                    return Err(EgressError::Broken(format!(
                        "`{}` broke off while it answered: {}",
                        self.host,
                        chain(&error.without_url())
                    )));
                }
            }
        }
    }
}
