//! A request as it goes out: headers, secrets and media put in, and sent to where a name may lead.

use std::net::SocketAddr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use mainstay_core::chain;
use mainstay_core::plugin::{Chunk, EgressError, HeaderValue};
use reqwest::Method;
use reqwest::header::{self, HeaderMap, HeaderName};
use url::{Host, Url};

use super::address::{PrivateAddress, is_public};
use super::grants::{Grants, Wanted, secret_may_go};
use super::{Egress, Sender, host_of};

impl Egress {
    /// One request, no redirects. It is counted, sent or not.
    pub(super) async fn once(
        &self,
        sender: &Sender<'_>,
        method: &Method,
        url: &Url,
        headers: &[(String, HeaderValue)],
        body: Vec<u8>,
    ) -> Result<reqwest::Response, EgressError> {
        let answer = self.try_once(sender, method, url, headers, body).await;
        let refusal = match &answer {
            Err(error @ (EgressError::Denied(_) | EgressError::Invalid(_))) => {
                Some(self.redactor.redact(&error.to_string()).into_owned())
            }
            _ => None,
        };
        let (kind, alias) = (sender.info.kind, sender.alias);
        self.ledger
            .request(kind, alias, method, url, refusal.as_deref());
        answer
    }

    async fn try_once(
        &self,
        sender: &Sender<'_>,
        method: &Method,
        url: &Url,
        headers: &[(String, HeaderValue)],
        body: Vec<u8>,
    ) -> Result<reqwest::Response, EgressError> {
        let allowed = self.allowed(sender, method, url)?;
        let literal = match url.host() {
            Some(Host::Ipv4(address)) => Some(address.into()),
            Some(Host::Ipv6(address)) => Some(address.into()),
            _ => None,
        };
        if let Some(address) = literal
            && !allowed.private
            && !is_public(address)
        {
            return Err(EgressError::Denied(
                PrivateAddress {
                    host: host_of(url),
                    address,
                }
                .to_string(),
            ));
        }
        let mut headers = self.headers(sender, method, url, headers).await?;
        let client = if allowed.private {
            &self.private
        } else {
            &self.public
        };
        let mut to = url.clone();
        if let Some(address) = self.redirected {
            let host = match url.port() {
                Some(port) => format!("{}:{port}", host_of(url)),
                None => host_of(url),
            };
            let host = header::HeaderValue::from_str(&host);
            headers.extend(host.ok().map(|host| (header::HOST, host)));
            to = elsewhere(url, address);
        }
        let mut request = client.request(method.clone(), to).headers(headers);
        if !body.is_empty() || matches!(*method, Method::POST | Method::PUT | Method::PATCH) {
            request = request.body(body);
        }
        request
            .send()
            .await
            .map_err(|error| self.failed(&error, url, true))
    }

    /// The headers as they leave.
    async fn headers(
        &self,
        sender: &Sender<'_>,
        method: &Method,
        url: &Url,
        headers: &[(String, HeaderValue)],
    ) -> Result<HeaderMap, EgressError> {
        let wanted = Wanted::new(method.as_str(), url).map_err(EgressError::Invalid)?;
        let grants = self.granted(sender.info.kind, sender.alias);
        let mut map = HeaderMap::with_capacity(headers.len());
        for (name, value) in headers {
            let header: HeaderName = name
                .parse()
                .map_err(|_| EgressError::Invalid(format!("`{name}` is no header name")))?;
            if is_hosts_own(&header) {
                return Err(EgressError::Invalid(format!(
                    "header `{name}` is the host's to send; leave it out"
                )));
            }
            let value = match value {
                HeaderValue::Text(text) => header::HeaderValue::from_str(text).map_err(|_| {
                    EgressError::Invalid(format!("the value of header `{name}` is malformed"))
                })?,
                HeaderValue::Secret {
                    name: secret,
                    prefix,
                } => {
                    let text = self.secret(sender, &wanted, &grants, secret).await?;
                    let mut value = header::HeaderValue::from_str(&format!("{prefix}{text}"))
                        .map_err(|_| {
                            EgressError::Invalid(format!(
                                "secret `{secret}` holds what no header can: a line break, perhaps"
                            ))
                        })?;
                    value.set_sensitive(true);
                    value
                }
            };
            map.append(header, value);
        }
        Ok(map)
    }

    /// The value of a secret for this request.
    async fn secret(
        &self,
        sender: &Sender<'_>,
        wanted: &Wanted<'_>,
        grants: &Grants,
        name: &str,
    ) -> Result<String, EgressError> {
        let who = format!("{} `{}`", sender.info.kind, sender.alias);
        let denied = |text: String| Err(EgressError::Denied(text));
        let Some(rule) = sender.info.secrets.iter().find(|rule| rule.name == name) else {
            return denied(format!(
                "{who} does not ask for secret `{name}` in its manifest"
            ));
        };
        if !secret_may_go(rule, wanted, sender.base.as_ref()) {
            return denied(format!(
                "secret `{name}` of {who} may not go to host `{}`: the manifest names others",
                wanted.host()
            ));
        }
        let Some(source) = grants.secrets.get(name) else {
            return denied(format!(
                "secret `{name}` is not granted to {who}; bind it under `secrets` of this {}",
                sender.info.kind
            ));
        };
        match source.read().await {
            Ok(value) => {
                self.redactor.learn(&value);
                self.ledger.secret(sender.info.kind, sender.alias, name);
                Ok(value)
            }
            Err(why) => denied(format!("secret `{name}` of {who} is not set: {why}")),
        }
    }

    /// The bytes of a body, media put in.
    pub(super) async fn body(&self, chunks: Vec<Chunk>) -> Result<Vec<u8>, EgressError> {
        let mut body = Vec::new();
        for chunk in chunks {
            match chunk {
                Chunk::Bytes(bytes) if body.is_empty() => body = bytes,
                Chunk::Bytes(bytes) => body.extend_from_slice(&bytes),
                Chunk::MediaBase64(digest) => {
                    let text = STANDARD.encode(self.media(&digest).await?);
                    body.extend_from_slice(text.as_bytes());
                }
                Chunk::Media(digest) => body.extend_from_slice(&self.media(&digest).await?),
            }
            if body.len() > self.limits.request_bytes {
                return Err(EgressError::Invalid(format!(
                    "the request's body is over the limit of {}",
                    crate::limits::bytes(self.limits.request_bytes)
                )));
            }
        }
        Ok(body)
    }

    async fn media(&self, digest: &str) -> Result<Vec<u8>, EgressError> {
        match self.media.get(digest).await {
            Ok(Some(bytes)) => Ok(bytes),
            Ok(None) => Err(EgressError::Invalid(format!(
                "the request refers to media {digest}, which is not stored"
            ))),
            Err(cause) => Err(EgressError::Unreachable(format!(
                "media {digest} cannot be read: {}",
                chain(cause.as_ref())
            ))),
        }
    }
}

pub(super) fn method(method: &str) -> Result<Method, EgressError> {
    let parsed = Method::from_bytes(method.as_bytes());
    match parsed {
        Ok(parsed) if parsed == Method::CONNECT => Err(EgressError::Invalid(
            "CONNECT is no request that a plugin can send".to_owned(),
        )),
        Ok(parsed) if method.bytes().all(|byte| !byte.is_ascii_lowercase()) => Ok(parsed),
        _ => Err(EgressError::Invalid(format!(
            "`{method}` is no method in capitals"
        ))),
    }
}

/// The same path and query at this address, in the clear.
fn elsewhere(url: &Url, address: SocketAddr) -> Url {
    let mut to = url.clone();
    // None of them fails for a URL of http or https, and there are no others here.
    let _ = to.set_scheme("http");
    let _ = to.set_ip_host(address.ip());
    let _ = to.set_port(Some(address.port()));
    to
}

/// Headers that say how a message is carried.
fn is_hosts_own(name: &HeaderName) -> bool {
    [
        header::HOST,
        header::CONTENT_LENGTH,
        header::TRANSFER_ENCODING,
        header::CONNECTION,
        header::UPGRADE,
        header::TE,
        header::TRAILER,
        header::PROXY_AUTHORIZATION,
    ]
    .contains(name)
        || matches!(name.as_str(), "keep-alive" | "proxy-connection")
}
