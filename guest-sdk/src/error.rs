//! Why a plugin has no answer.

use std::fmt;

use crate::bindings::{provider, runner};

type DecideError = runner::exports::mainstay::plugin::steps::DecideError;
type EncodeError = provider::exports::mainstay::plugin::models::EncodeError;

/// Why a runner has no decision, or a provider no request. The text is for people.
///
/// Anything that can be shown becomes one with `?`, as the general failure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Error {
    /// The configuration makes no sense: an agent's options, a provider's config.
    Config(String),
    /// The stored state cannot be read (runners).
    State(String),
    /// The protocol cannot say this request (providers).
    Unsupported(String),
    /// Anything else.
    Failed(String),
}

impl Error {
    /// The general failure.
    pub fn new(message: impl Into<String>) -> Self {
        Self::Failed(message.into())
    }

    fn message(&self) -> &str {
        match self {
            Self::Config(text)
            | Self::State(text)
            | Self::Unsupported(text)
            | Self::Failed(text) => text,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.message())
    }
}

// `Error` itself is no `std::error::Error`: this conversion could not be written if it were.
impl<E: std::error::Error> From<E> for Error {
    fn from(error: E) -> Self {
        Self::Failed(error.to_string())
    }
}

impl From<Error> for DecideError {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(text) => Self::Options(text),
            Error::State(text) => Self::State(text),
            Error::Unsupported(text) | Error::Failed(text) => Self::Failed(text),
        }
    }
}

impl From<Error> for EncodeError {
    fn from(error: Error) -> Self {
        match error {
            Error::Config(text) => Self::Config(text),
            Error::Unsupported(text) => Self::Unsupported(text),
            Error::State(text) | Error::Failed(text) => Self::Failed(text),
        }
    }
}
