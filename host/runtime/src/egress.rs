//! The only way out: one HTTP client, which sends what a manifest asks for *and* the operator grants.
//!
//! In order, for every request and every redirect: the address is judged by its text, then secrets are
//! looked up, and only then is a name resolved, to addresses that are judged too. Values of secrets
//! are put in here and taken out of all that comes back.

mod address;
mod answer;
mod grants;
mod ledger;
mod redact;
mod request;

use std::collections::{BTreeMap, HashMap};
use std::net::SocketAddr;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use address::Guarded;
use answer::Body;
use async_trait::async_trait;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use grants::Wanted;
use ledger::Ledger;
use mainstay_core::access::{Access, Asked, Granted, GrantedSecret};
use mainstay_core::plugin::{
    EgressError, HeaderValue, HttpAnswer, HttpRequest, Kind, PluginInfo, ProviderConfig,
    ResponseHead, Workspace,
};
use mainstay_core::{BoxError, chain};
use request::method;
use reqwest::header;
use reqwest::{Method, redirect};
use sha2::{Digest as _, Sha256};
use url::Url;

pub use address::{Resolver, SystemResolver};
pub use grants::{GrantRule, Grants, SecretSource};
pub use redact::{MASK, Redactor, Stream};

/// Bytes of media that a request refers to.
#[async_trait]
pub trait MediaSource: Send + Sync + 'static {
    /// `None` where there is none of this digest.
    async fn get(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError>;
}

/// Sizes and times of exchanges. Those of a provider's answer (first byte, idle, total) are core's.
#[derive(Clone, Copy, Debug)]
pub struct EgressLimits {
    pub connect: Duration,
    /// Bytes of one request's body, media included.
    pub request_bytes: usize,
    /// Bytes of one provider's answer.
    pub answer_bytes: usize,
    /// One `fetch` of a toolbox, redirects included.
    pub fetch: Duration,
    /// Bytes of what one `fetch` brings.
    pub fetch_bytes: usize,
    /// Redirects of one `fetch`.
    pub redirects: usize,
}

impl Default for EgressLimits {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            request_bytes: 64 << 20,
            answer_bytes: 64 << 20,
            fetch: Duration::from_secs(60),
            fetch_bytes: 8 << 20,
            redirects: 10,
        }
    }
}

/// Whoever sends.
pub(crate) struct Sender<'a> {
    pub(crate) info: &'a PluginInfo,
    pub(crate) alias: &'a str,
    /// A provider's configured address.
    pub(crate) base: Option<Url>,
}

impl<'a> Sender<'a> {
    /// # Errors
    /// The configured address is none.
    pub(crate) fn provider(
        info: &'a PluginInfo,
        alias: &'a str,
        config: &ProviderConfig,
    ) -> Result<Self, EgressError> {
        let base = config
            .base_url
            .as_deref()
            .map(Url::parse)
            .transpose()
            .map_err(|cause| {
                EgressError::Invalid(format!("`base_url` of provider `{alias}`: {cause}"))
            })?;
        Ok(Self { info, alias, base })
    }

    pub(crate) fn toolbox(info: &'a PluginInfo, alias: &'a str) -> Self {
        Self {
            info,
            alias,
            base: None,
        }
    }
}

/// The client, what is granted, and what is secret.
pub struct Egress {
    /// Replaced at run time; the next request or call goes by what is here then.
    grants: RwLock<HashMap<(Kind, String), Arc<Grants>>>,
    redactor: Redactor,
    /// Of this process alone.
    salt: [u8; 16],
    ledger: Ledger,
    media: Arc<dyn MediaSource>,
    limits: EgressLimits,
    /// Connects to public addresses alone.
    public: reqwest::Client,
    /// Connects to any. Apart from the other, so that no connection is shared.
    private: reqwest::Client,
    /// Where all requests go, if not where they are sent.
    redirected: Option<SocketAddr>,
}

impl Egress {
    /// # Errors
    /// The client cannot be made.
    pub fn new(
        resolver: Arc<dyn Resolver>,
        media: Arc<dyn MediaSource>,
        redactor: Redactor,
        limits: EgressLimits,
    ) -> Result<Self, BoxError> {
        // Fails only where the process has a provider already, which is as good.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let client = |private, certificates: bool| {
            let builder = reqwest::Client::builder()
                .dns_resolver(Arc::new(Guarded {
                    resolver: Arc::clone(&resolver),
                    private,
                }))
                .no_proxy()
                .redirect(redirect::Policy::none())
                .referer(false)
                .connect_timeout(limits.connect);
            if certificates {
                builder.build()
            } else {
                builder.tls_certs_only([]).build()
            }
        };
        // A machine without certificates can still reach a server of its own.
        let certificates = match client(false, true) {
            Ok(_) => true,
            Err(error) => {
                tracing::warn!(
                    "https cannot be used, only http: the system's certificates cannot be read: {}",
                    chain(&error)
                );
                false
            }
        };
        Ok(Self {
            grants: RwLock::default(),
            redactor,
            salt: mainstay_core::id::EventId::new().0.into_bytes(),
            ledger: Ledger::new(),
            media,
            limits,
            public: client(false, certificates)?,
            private: client(true, certificates)?,
            redirected: None,
        })
    }

    /// From now on every request that is allowed goes to this address, in the clear and whatever its URL
    /// says; its `host` header alone keeps the URL's. For whoever plays the server of all: no node does.
    #[must_use]
    pub fn redirected(mut self, to: SocketAddr) -> Self {
        self.redirected = Some(to);
        self
    }

    /// What takes secrets out of text. Learns each value before it is first used.
    #[must_use]
    pub fn redactor(&self) -> &Redactor {
        &self.redactor
    }

    /// From now on this is what `alias` is granted, and nothing else.
    pub fn grant(&self, kind: Kind, alias: &str, grants: Grants) {
        for source in grants.secrets.values() {
            if let SecretSource::Value(value) = source {
                self.redactor.learn(value);
            }
        }
        self.grants
            .write()
            .expect("no panic under this lock")
            .insert((kind, alias.to_owned()), Arc::new(grants));
    }

    /// From now on `alias` is granted nothing.
    pub fn revoke(&self, kind: Kind, alias: &str) {
        self.grants
            .write()
            .expect("no panic under this lock")
            .remove(&(kind, alias.to_owned()));
    }

    /// What `alias` is granted now.
    #[must_use]
    pub fn granted(&self, kind: Kind, alias: &str) -> Arc<Grants> {
        self.grants
            .read()
            .expect("no panic under this lock")
            .get(&(kind, alias.to_owned()))
            .cloned()
            .unwrap_or_default()
    }

    /// What this component asks for, is granted under `alias`, and has used there in this process.
    pub async fn report(&self, info: &PluginInfo, alias: &str) -> Access {
        let grants = self.granted(info.kind, alias);
        let mut secrets = BTreeMap::new();
        for (name, source) in &grants.secrets {
            let secret = GrantedSecret {
                from: source.to_string(),
                set: source.read().await.is_ok(),
            };
            secrets.insert(name.clone(), secret);
        }
        Access {
            kind: info.kind,
            alias: alias.to_owned(),
            name: info.name.clone(),
            digest: info.digest.clone(),
            asked: Asked {
                http: info.http.clone(),
                secrets: info.secrets.clone(),
                workspace: info.workspace,
            },
            granted: Granted {
                http: grants.http.iter().map(ToString::to_string).collect(),
                secrets,
                workspace: grants.workspace,
            },
            used: Some(self.ledger.of(info.kind, alias)),
        }
    }

    /// What a call may do with the workspace: the lesser of what is asked for and what is granted.
    pub(crate) fn workspace(&self, info: &PluginInfo, alias: &str) -> Workspace {
        let given = self.workspace_of(info, alias);
        if given != Workspace::None {
            self.ledger.workspace(info.kind, alias);
        }
        given
    }

    fn workspace_of(&self, info: &PluginInfo, alias: &str) -> Workspace {
        match (info.workspace, self.granted(info.kind, alias).workspace) {
            (Workspace::None, _) | (_, Workspace::None) => Workspace::None,
            (Workspace::ReadWrite, Workspace::ReadWrite) => Workspace::ReadWrite,
            _ => Workspace::Read,
        }
    }

    /// Names of the secrets that are asked for, bound, and have a value.
    pub(crate) async fn secrets(&self, info: &PluginInfo, alias: &str) -> Vec<String> {
        let grants = self.granted(info.kind, alias);
        let mut names = Vec::new();
        for rule in &info.secrets {
            if let Some(source) = grants.secrets.get(&rule.name)
                && let Ok(value) = source.read().await
            {
                self.redactor.learn(&value);
                names.push(rule.name.clone());
            }
        }
        names
    }

    /// A name for each secret that is asked for, bound, and has a value: the same for the same value,
    /// and of no use without it.
    pub(crate) async fn rated(&self, info: &PluginInfo, alias: &str) -> Vec<String> {
        let grants = self.granted(info.kind, alias);
        let mut names = Vec::new();
        for rule in &info.secrets {
            if let Some(source) = grants.secrets.get(&rule.name)
                && let Ok(value) = source.read().await
            {
                let mut hash = Sha256::new_with_prefix(self.salt);
                hash.update(value);
                names.push(format!("secret {}", STANDARD.encode(hash.finalize())));
            }
        }
        names
    }

    /// Sends a provider's request. Redirects are not followed: a model's server has no business
    /// elsewhere.
    pub(crate) async fn send(
        &self,
        sender: &Sender<'_>,
        request: HttpRequest,
    ) -> Result<HttpAnswer, EgressError> {
        let url = parse(&request.url)?;
        let method = method(&request.method)?;
        let body = self.body(request.body).await?;
        let answer = self
            .once(sender, &method, &url, &request.headers, body)
            .await?;
        Ok(HttpAnswer {
            head: self.head(&answer),
            body: Box::new(Body {
                host: host_of(&url),
                answer,
                redact: Some(self.redactor.stream()),
                ready: Vec::new(),
                left: self.limits.answer_bytes,
                bytes_max: self.limits.answer_bytes,
            }),
        })
    }

    /// Sends a toolbox's request and follows redirects as far as the grants go. Where they end, the
    /// redirect itself is the answer.
    pub(crate) async fn fetch(
        &self,
        sender: &Sender<'_>,
        request: HttpRequest,
    ) -> Result<(ResponseHead, Vec<u8>), EgressError> {
        let limit = self.limits.fetch;
        let url = parse(&request.url)?;
        let host = host_of(&url);
        tokio::time::timeout(limit, self.fetch_all(sender, url, request))
            .await
            .unwrap_or_else(|_| {
                Err(EgressError::Stopped(format!(
                    "`{host}` was not done answering within {} s",
                    limit.as_secs_f64()
                )))
            })
    }

    async fn fetch_all(
        &self,
        sender: &Sender<'_>,
        mut url: Url,
        request: HttpRequest,
    ) -> Result<(ResponseHead, Vec<u8>), EgressError> {
        let mut method = method(&request.method)?;
        let mut headers = request.headers;
        let mut body = self.body(request.body).await?;
        let mut hops = 0;
        loop {
            let answer = self
                .once(sender, &method, &url, &headers, body.clone())
                .await?;
            let Some(next) = redirect_of(&answer, &url) else {
                return self.whole(answer, &url).await;
            };
            hops += 1;
            if hops > self.limits.redirects {
                return Err(EgressError::Stopped(format!(
                    "more than {} redirects, the last to `{}`",
                    self.limits.redirects,
                    host_of(&next)
                )));
            }
            let status = answer.status().as_u16();
            let to_get = status == 303 && method != Method::HEAD
                || matches!(status, 301 | 302) && method == Method::POST;
            let next_method = if to_get { Method::GET } else { method.clone() };
            if let Err(refused) = self.allowed(sender, &next_method, &next) {
                let words = self.redactor.redact(&refused.to_string()).into_owned();
                let (kind, alias) = (sender.info.kind, sender.alias);
                self.ledger
                    .request(kind, alias, &next_method, &next, Some(&words));
                return self.whole(answer, &url).await;
            }
            if to_get {
                body.clear();
                headers.retain(|(name, _)| !name.to_ascii_lowercase().starts_with("content-"));
            }
            if next.origin() != url.origin() {
                headers.retain(|(name, value)| {
                    matches!(value, HeaderValue::Text(_))
                        && !["authorization", "cookie", "proxy-authorization"]
                            .contains(&name.to_ascii_lowercase().as_str())
                });
            }
            method = next_method;
            url = next;
        }
    }

    fn allowed(
        &self,
        sender: &Sender<'_>,
        method: &Method,
        url: &Url,
    ) -> Result<grants::Allowed, EgressError> {
        let wanted = Wanted::new(method.as_str(), url).map_err(EgressError::Invalid)?;
        let grants = self.granted(sender.info.kind, sender.alias);
        grants::allow(
            &wanted,
            sender.info,
            sender.alias,
            sender.base.as_ref(),
            &grants,
        )
        .map_err(EgressError::Denied)
    }
}

fn parse(url: &str) -> Result<Url, EgressError> {
    let mut url = Url::parse(url)
        .map_err(|cause| EgressError::Invalid(format!("the request's address: {cause}")))?;
    url.set_fragment(None);
    Ok(url)
}

fn host_of(url: &Url) -> String {
    url.host_str().unwrap_or_default().to_owned()
}

/// Where an answer sends its reader.
fn redirect_of(answer: &reqwest::Response, url: &Url) -> Option<Url> {
    if !matches!(answer.status().as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = answer.headers().get(header::LOCATION)?.to_str().ok()?;
    let mut next = url.join(location).ok()?;
    next.set_fragment(None);
    Some(next)
}
