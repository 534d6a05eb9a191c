//! Why a registry gave no plugin, sorted by what somebody does next: try again, give credentials,
//! name another artifact, distrust the registry. No words that a registry says about a request get
//! in here, since it may repeat the credentials.

use mainstay_core::BoxError;
use oci_client::errors::{DigestError, OciDistributionError, OciEnvelope, OciErrorCode};

use crate::manifest::tame;
use crate::reference::Reference;

/// Why nothing was fetched.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Transient.
    #[error("the registry {registry} cannot be reached")]
    Unreachable {
        registry: String,
        #[source]
        cause: BoxError,
    },
    /// Transient: it is overloaded, or asks to come less often.
    #[error("the registry {registry} answers with {answer}")]
    Answer { registry: String, answer: String },
    /// Credentials are missing or wrong.
    #[error("the registry {} does not let {} be read", .0.registry(), .0.repository())]
    Denied(Reference),
    #[error("the registry {} has no {}", .0.registry(), name(.0))]
    NotFound(Reference),
    /// What came is not what was asked for.
    #[error("the {what} of {reference} should have the digest {expected}, but has {actual}")]
    Mismatch {
        what: &'static str,
        reference: Reference,
        expected: String,
        actual: String,
    },
    /// The artifact is no plugin.
    #[error("{reference} {cause}")]
    NoPlugin { reference: Reference, cause: String },
    #[error("{reference} is larger than the {limit} bytes that a component may have")]
    TooLarge { reference: Reference, limit: u64 },
    /// The registry breaks the protocol.
    #[error("the answer of the registry {registry} cannot be used: {cause}")]
    Broken { registry: String, cause: String },
}

/// Repository with tag or digest.
fn name(reference: &Reference) -> String {
    match (reference.digest(), reference.tag()) {
        (Some(digest), _) => format!("{}@{digest}", reference.repository()),
        (None, tag) => format!("{}:{}", reference.repository(), tag.unwrap_or_default()),
    }
}

impl Error {
    /// From the client's, while it asked for a `what`.
    pub(crate) fn new(
        reference: &Reference,
        what: &'static str,
        error: OciDistributionError,
    ) -> Self {
        let registry = reference.registry().to_owned();
        match error {
            OciDistributionError::RequestError(cause) => Self::Unreachable {
                registry,
                cause: cause.into(),
            },
            OciDistributionError::AuthenticationFailure(_)
            | OciDistributionError::UnauthorizedError { .. } => Self::Denied(reference.clone()),
            OciDistributionError::ServerError { code, .. } => match code {
                401 | 403 => Self::Denied(reference.clone()),
                404 => Self::NotFound(reference.clone()),
                code => Self::Answer {
                    registry,
                    answer: format!("status {code}"),
                },
            },
            OciDistributionError::RegistryError { envelope, .. } => {
                Self::said(reference, &envelope)
            }
            OciDistributionError::DigestError(DigestError::VerificationError {
                expected,
                actual,
            }) => Self::Mismatch {
                what,
                reference: reference.clone(),
                expected: tame(&expected),
                actual: tame(&actual),
            },
            OciDistributionError::DigestError(cause) => Self::Broken {
                registry,
                cause: tame(&cause.to_string()),
            },
            OciDistributionError::RegistryTokenDecodeError(_) => Self::Broken {
                registry,
                cause: "it gives a token that cannot be read".into(),
            },
            _ => Self::Broken {
                registry,
                cause: format!("it gives no {what}"),
            },
        }
    }

    /// From the codes of a refusal, whose status the client has not kept.
    fn said(reference: &Reference, envelope: &OciEnvelope) -> Self {
        let code = envelope.errors.first().map(|error| &error.code);
        match code {
            Some(OciErrorCode::Unauthorized | OciErrorCode::Denied) => {
                Self::Denied(reference.clone())
            }
            Some(
                OciErrorCode::BlobUnknown
                | OciErrorCode::ManifestBlobUnknown
                | OciErrorCode::ManifestUnknown
                | OciErrorCode::NameUnknown
                | OciErrorCode::NotFound,
            ) => Self::NotFound(reference.clone()),
            code => Self::Answer {
                registry: reference.registry().to_owned(),
                answer: match code {
                    Some(OciErrorCode::Toomanyrequests) => "too many requests".into(),
                    Some(OciErrorCode::Other(_)) | None => "an error of its own".into(),
                    Some(code) => format!("the error {code:?}"),
                },
            },
        }
    }
}
