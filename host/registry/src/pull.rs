//! Fetches one artifact: manifest, then layer, each checked against its digest before anything is
//! given.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::time::Duration;

use futures::{FutureExt as _, StreamExt as _};
use mainstay_core::id::digest;
use oci_client::client::{ClientConfig, ClientProtocol};
use oci_client::errors::DigestError;
use oci_client::secrets::RegistryAuth;
use oci_client::{Client, Reference as Image, RegistryOperation};

use crate::error::Error;
use crate::manifest::{self, Content};
use crate::reference::Reference;

const CONNECT: Duration = Duration::from_secs(10);
/// Between two pieces of an answer.
const READ: Duration = Duration::from_secs(30);
/// For all of it: a registry that answers byte by byte must not hold up a start for ever.
const ALL: Duration = Duration::from_secs(300);
const USER_AGENT: &str = concat!("mainstay/", env!("CARGO_PKG_VERSION"));

/// How a registry may be spoken to.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub credentials: Credentials,
    /// Without TLS: everything, credentials too, can be read and changed on the way. Digests are
    /// checked all the same, so what a digest names cannot be changed.
    pub plain: bool,
}

/// Who asks.
#[derive(Clone, Default)]
pub enum Credentials {
    #[default]
    None,
    Basic {
        username: String,
        password: String,
    },
    Bearer(String),
}

impl fmt::Debug for Credentials {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::None => "None",
            Self::Basic { .. } => "Basic(…)",
            Self::Bearer(_) => "Bearer(…)",
        })
    }
}

/// What was fetched.
#[derive(Debug)]
pub struct Pulled {
    /// The component.
    pub bytes: Vec<u8>,
    /// The reference with the digest that it was resolved to.
    pub source: Reference,
}

/// Fetches the component of an artifact, of at most `limit` bytes.
///
/// A process must have chosen its implementation of TLS before (rustls' default provider).
///
/// # Errors
/// See [`Error`]. No bytes are given that do not match their digest.
///
/// # Cancel safety
/// Safe: nothing is kept.
pub async fn pull(reference: &Reference, access: &Access, limit: u64) -> Result<Pulled, Error> {
    let broken = |cause: &str| Error::Broken {
        registry: reference.registry().to_owned(),
        cause: cause.to_owned(),
    };
    // The client unwraps what a registry's token may break.
    let fetched = AssertUnwindSafe(fetch(reference, access, limit)).catch_unwind();
    match tokio::time::timeout(ALL, fetched).await {
        Ok(Ok(done)) => done,
        Ok(Err(_)) => Err(broken("it breaks the protocol")),
        Err(_) => Err(broken("it takes longer than five minutes")),
    }
}

async fn fetch(reference: &Reference, access: &Access, limit: u64) -> Result<Pulled, Error> {
    let fetch = Fetch {
        client: client(access.plain).map_err(|error| Error::new(reference, "client", error))?,
        auth: match access.credentials.clone() {
            Credentials::None => RegistryAuth::Anonymous,
            Credentials::Basic { username, password } => RegistryAuth::Basic(username, password),
            Credentials::Bearer(token) => RegistryAuth::Bearer(token),
        },
        reference,
        limit,
    };
    // Asked for here, since later requests would hide why they have no token.
    let image = fetch.image(reference.digest());
    fetch
        .client
        .auth(&image, &fetch.auth, RegistryOperation::Pull)
        .await
        .map_err(|error| Error::new(reference, "token", error))?;

    let (resolved, content) = fetch.manifest(reference.digest()).await?;
    let content = match content {
        Content::Manifest(digest) => fetch.manifest(Some(&digest)).await?.1,
        layer => layer,
    };
    let Content::Layer { digest, size } = content else {
        return Err(fetch.no_plugin("is an index that leads to another index".into()));
    };
    let bytes = fetch.layer(&digest, size).await?;
    Ok(Pulled {
        bytes,
        source: reference.pinned(&resolved),
    })
}

struct Fetch<'r> {
    client: Client,
    auth: RegistryAuth,
    reference: &'r Reference,
    limit: u64,
}

impl Fetch<'_> {
    /// The manifest of a digest, or else of the tag: its digest, and where it says that the
    /// component is.
    async fn manifest(&self, expected: Option<&str>) -> Result<(String, Content), Error> {
        let (bytes, _) = self
            .client
            .pull_manifest_raw(&self.image(expected), &self.auth, &manifest::ACCEPTED)
            .await
            .map_err(|error| Error::new(self.reference, "manifest", error))?;
        let actual = sha256(&bytes);
        if let Some(expected) = expected
            && expected != actual
        {
            return Err(self.mismatch("manifest", expected, &actual));
        }
        let content = manifest::read(&bytes).map_err(|cause| self.no_plugin(cause))?;
        Ok((actual, content))
    }

    async fn layer(&self, expected: &str, size: u64) -> Result<Vec<u8>, Error> {
        let too_large = || Error::TooLarge {
            reference: self.reference.clone(),
            limit: self.limit,
        };
        if size > self.limit {
            return Err(too_large());
        }
        let mut stream = self
            .client
            .pull_blob_stream(&self.image(None), expected)
            .await
            .map_err(|error| Error::new(self.reference, "layer", error))?;
        if stream
            .content_length
            .is_some_and(|length| length > self.limit)
        {
            return Err(too_large());
        }
        let mut bytes = Vec::new();
        while let Some(chunk) = stream.next().await {
            match chunk {
                Ok(chunk) if (bytes.len() + chunk.len()) as u64 > self.limit => {
                    return Err(too_large());
                }
                Ok(chunk) => bytes.extend_from_slice(&chunk),
                // All has come, and the client has found what is found below in our own words.
                Err(error) if is_digest_error(&error) => break,
                Err(error) => {
                    return Err(Error::Unreachable {
                        registry: self.reference.registry().to_owned(),
                        cause: error.into(),
                    });
                }
            }
        }
        let actual = sha256(&bytes);
        if expected != actual {
            return Err(self.mismatch("layer", expected, &actual));
        }
        Ok(bytes)
    }

    /// The artifact in the client's words.
    fn image(&self, digest: Option<&str>) -> Image {
        let registry = self.reference.registry().to_owned();
        let repository = self.reference.repository().to_owned();
        match (digest, self.reference.tag()) {
            (Some(digest), _) => Image::with_digest(registry, repository, digest.to_owned()),
            (None, tag) => {
                Image::with_tag(registry, repository, tag.unwrap_or_default().to_owned())
            }
        }
    }

    fn mismatch(&self, what: &'static str, expected: &str, actual: &str) -> Error {
        Error::Mismatch {
            what,
            reference: self.reference.clone(),
            expected: expected.to_owned(),
            actual: actual.to_owned(),
        }
    }

    fn no_plugin(&self, cause: String) -> Error {
        Error::NoPlugin {
            reference: self.reference.clone(),
            cause,
        }
    }
}

fn client(plain: bool) -> Result<Client, oci_client::errors::OciDistributionError> {
    Client::try_from(ClientConfig {
        protocol: if plain {
            ClientProtocol::Http
        } else {
            ClientProtocol::Https
        },
        connect_timeout: Some(CONNECT),
        read_timeout: Some(READ),
        user_agent: USER_AGENT,
        ..ClientConfig::default()
    })
}

fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", digest(bytes))
}

fn is_digest_error(error: &std::io::Error) -> bool {
    error
        .get_ref()
        .is_some_and(|inner| inner.is::<DigestError>())
}
