//! What the operator allows: requests, secrets, the workspace. Two-sided with what a manifest asks
//! for; either alone gives nothing.

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;

use mainstay_core::plugin::{HostPattern, HttpRule, PluginInfo, Scheme, SecretRule, Workspace};
use serde::{Deserialize, Serialize};
use url::{Host, Url};

/// All that is granted to one alias.
#[derive(Clone, Debug, Default)]
pub struct Grants {
    pub http: Vec<GrantRule>,
    /// By the name that the plugin's manifest gives it.
    pub secrets: HashMap<String, SecretSource>,
    pub workspace: Workspace,
}

/// Requests that are allowed: all that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GrantRule {
    /// `None` is https alone.
    #[serde(default)]
    pub scheme: Option<Scheme>,
    /// A name; `*.name` for every name below it; `*` for any.
    pub host: String,
    /// `None` is the scheme's own.
    #[serde(default)]
    pub port: Option<u16>,
    /// In capitals; empty means every method.
    #[serde(default)]
    pub methods: Vec<String>,
    /// Compared by whole segments.
    #[serde(default = "root")]
    pub path_prefix: String,
    /// Addresses that are not public are allowed too: this machine, the local network, a cloud's
    /// metadata service.
    #[serde(default)]
    pub private: bool,
}

fn root() -> String {
    "/".to_owned()
}

impl fmt::Display for GrantRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let methods = if self.methods.is_empty() {
            "any method".to_owned()
        } else {
            self.methods.join("|")
        };
        let scheme = scheme_word(self.scheme.unwrap_or(Scheme::Https));
        write!(f, "{methods} {scheme}://{}", self.host)?;
        if let Some(port) = self.port {
            write!(f, ":{port}")?;
        }
        f.write_str(&self.path_prefix)
    }
}

/// Where a secret's value comes from. Read when it is needed, so that a changed value counts at once.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// An environment variable of the host.
    Env(String),
    /// A file's text, without the line break at its end.
    File(PathBuf),
    /// The value itself.
    Value(String),
}

impl fmt::Display for SecretSource {
    /// Where it is, and never what it is.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "environment variable {name}"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Value(_) => f.write_str("a value"),
        }
    }
}

impl fmt::Debug for SecretSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Env(name) => write!(f, "Env({name:?})"),
            Self::File(path) => write!(f, "File({path:?})"),
            Self::Value(_) => f.write_str("Value(_)"),
        }
    }
}

impl SecretSource {
    /// The value, or why there is none in words that do not hold it.
    pub(super) async fn read(&self) -> Result<String, String> {
        let value = match self {
            Self::Env(name) => std::env::var(name)
                .map_err(|_| format!("environment variable `{name}` is not set"))?,
            Self::File(path) => tokio::fs::read_to_string(path)
                .await
                .map_err(|cause| format!("cannot read {}: {cause}", path.display()))?
                .trim_end_matches(['\r', '\n'])
                .to_owned(),
            Self::Value(value) => value.clone(),
        };
        if value.is_empty() {
            return Err(match self {
                Self::Env(name) => format!("environment variable `{name}` is empty"),
                Self::File(path) => format!("{} is empty", path.display()),
                Self::Value(_) => "its value is empty".to_owned(),
            });
        }
        Ok(value)
    }
}

/// One request, ready to be compared.
pub(super) struct Wanted<'a> {
    pub(super) method: &'a str,
    pub(super) url: &'a Url,
    host: String,
    /// Decoded, so that no spelling of a path gets past a rule.
    segments: Vec<String>,
}

impl<'a> Wanted<'a> {
    /// # Errors
    /// Says what is malformed about the address.
    pub(super) fn new(method: &'a str, url: &'a Url) -> Result<Self, String> {
        if !matches!(url.scheme(), "http" | "https") {
            return Err(format!(
                "`{}` is no scheme for a request; https and http are",
                url.scheme()
            ));
        }
        if !url.username().is_empty() || url.password().is_some() {
            return Err(
                "an address must not hold a user name or password; use a header with a \
                        secret"
                    .to_owned(),
            );
        }
        let Some(host) = url.host_str().filter(|host| !host.is_empty()) else {
            return Err("the address has no host".to_owned());
        };
        Ok(Self {
            method,
            url,
            host: host.trim_end_matches('.').to_ascii_lowercase(),
            segments: segments(url.path())?,
        })
    }

    pub(super) fn host(&self) -> &str {
        &self.host
    }

    fn origin_is(&self, scheme: Scheme, port: Option<u16>) -> bool {
        let port = port.unwrap_or(match scheme {
            Scheme::Https => 443,
            Scheme::Http => 80,
        });
        self.url.scheme() == scheme_word(scheme) && self.url.port_or_known_default() == Some(port)
    }

    fn shape_is(&self, methods: &[String], prefix: &str) -> bool {
        let Ok(prefix) = segments(prefix) else {
            return false;
        };
        (methods.is_empty() || methods.iter().any(|method| method == self.method))
            && self.segments.starts_with(&prefix)
    }

    fn is_base(&self, base: Option<&Url>) -> bool {
        base.is_some_and(|base| {
            base.scheme() == self.url.scheme()
                && base.host() == self.url.host()
                && base.port_or_known_default() == self.url.port_or_known_default()
        })
    }

    fn asked_by(&self, rule: &HttpRule, base: Option<&Url>) -> bool {
        let place = match &rule.host {
            HostPattern::BaseUrl => self.is_base(base),
            HostPattern::Name(name) => {
                self.origin_is(rule.scheme, rule.port) && same(&self.host, name)
            }
            HostPattern::Subdomains(name) => {
                self.origin_is(rule.scheme, rule.port) && below(&self.host, name)
            }
            // Without a port, any: what is asked for here the operator narrows.
            HostPattern::Any if rule.port.is_none() => {
                self.url.scheme() == scheme_word(rule.scheme)
            }
            HostPattern::Any => self.origin_is(rule.scheme, rule.port),
        };
        place && self.shape_is(&rule.methods, &rule.path_prefix)
    }

    fn granted_by(&self, rule: &GrantRule) -> bool {
        self.host_granted_by(rule)
            && self.origin_is(rule.scheme.unwrap_or(Scheme::Https), rule.port)
            && self.shape_is(&rule.methods, &rule.path_prefix)
    }

    fn host_granted_by(&self, rule: &GrantRule) -> bool {
        match rule.host.strip_prefix("*.") {
            Some(name) => below(&self.host, name),
            None => rule.host == "*" || same(&self.host, &rule.host),
        }
    }
}

/// Whether private addresses are allowed to a request, if it is.
pub(super) struct Allowed {
    pub(super) private: bool,
}

/// Judges one request by what `info` asks for and what is granted.
///
/// # Errors
/// Names the request and the rule that is missing.
pub(super) fn allow(
    wanted: &Wanted<'_>,
    info: &PluginInfo,
    alias: &str,
    base: Option<&Url>,
    grants: &Grants,
) -> Result<Allowed, String> {
    let what = format!("{} {}", wanted.method, address(wanted.url));
    let who = format!("{} `{alias}`", info.kind);
    let asked = info.http.iter().any(|rule| wanted.asked_by(rule, base));
    if !asked {
        return Err(format!(
            "{what} is not among the requests that {who} asks for in its manifest"
        ));
    }
    // Of several grants the most generous counts: each of them alone would do.
    let mut fitting = grants
        .http
        .iter()
        .filter(|rule| wanted.granted_by(rule))
        .peekable();
    if fitting.peek().is_some() {
        let private = fitting.any(|rule| rule.private);
        return Ok(Allowed {
            private: private || (wanted.is_base(base) && is_local(wanted.url)),
        });
    }
    // Who configures an address for a plugin means it to go there.
    if wanted.is_base(base) {
        return Ok(Allowed {
            private: is_local(wanted.url),
        });
    }
    let near: Vec<String> = grants
        .http
        .iter()
        .filter(|rule| wanted.host_granted_by(rule))
        .map(|rule| format!("`{rule}`"))
        .collect();
    Err(if near.is_empty() {
        format!(
            "{what} is not granted to {who}: no rule names host `{}`; grant it under `http` of this \
             {}",
            wanted.host, info.kind
        )
    } else {
        format!(
            "{what} is not granted to {who}: of this host only {} is",
            near.join(" and ")
        )
    })
}

/// Whether a secret may go where a request goes.
pub(super) fn secret_may_go(rule: &SecretRule, wanted: &Wanted<'_>, base: Option<&Url>) -> bool {
    rule.hosts.iter().any(|pattern| match pattern {
        HostPattern::Name(name) => same(&wanted.host, name),
        HostPattern::Subdomains(name) => below(&wanted.host, name),
        HostPattern::BaseUrl => wanted.is_base(base),
        HostPattern::Any => true,
    })
}

/// An address for messages: without its query, which may hold what is nobody's business.
pub(super) fn address(url: &Url) -> String {
    let mut url = url.clone();
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// Whether the operator spelled out an address that is not public, or this machine's name.
fn is_local(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => {
            let name = name.trim_end_matches('.');
            name == "localhost" || name.ends_with(".localhost")
        }
        Some(Host::Ipv4(address)) => !super::address::is_public(address.into()),
        Some(Host::Ipv6(address)) => !super::address::is_public(address.into()),
        None => false,
    }
}

fn same(host: &str, name: &str) -> bool {
    host.eq_ignore_ascii_case(name.trim_end_matches('.'))
}

fn below(host: &str, name: &str) -> bool {
    let name = name.trim_end_matches('.').to_ascii_lowercase();
    host.strip_suffix(&name)
        .is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

fn scheme_word(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Https => "https",
        Scheme::Http => "http",
    }
}

/// The decoded segments of a path, without the empty one at its end.
fn segments(path: &str) -> Result<Vec<String>, String> {
    let mut segments = Vec::new();
    for segment in path.strip_prefix('/').unwrap_or(path).split('/') {
        let decoded = decode(segment);
        if decoded.contains(['/', '\\', '\0']) || matches!(decoded.as_str(), "." | "..") {
            return Err(format!("`{segment}` is no plain part of a path"));
        }
        segments.push(decoded);
    }
    if segments.last().is_some_and(String::is_empty) {
        segments.pop();
    }
    Ok(segments)
}

fn decode(segment: &str) -> String {
    let bytes = segment.as_bytes();
    let mut decoded = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let hex = (bytes[at] == b'%')
            .then(|| bytes.get(at + 1..at + 3))
            .flatten()
            .and_then(|hex| std::str::from_utf8(hex).ok())
            .and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match hex {
            Some(byte) => {
                decoded.push(byte);
                at += 3;
            }
            None => {
                decoded.push(bytes[at]);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&decoded).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn granted(rule: &GrantRule, method: &str, url: &str) -> bool {
        let url = Url::parse(url).unwrap();
        Wanted::new(method, &url).is_ok_and(|wanted| wanted.granted_by(rule))
    }

    fn rule(host: &str, prefix: &str) -> GrantRule {
        GrantRule {
            scheme: None,
            host: host.to_owned(),
            port: None,
            methods: vec!["GET".to_owned()],
            path_prefix: prefix.to_owned(),
            private: false,
        }
    }

    #[test]
    fn cap_2_paths_are_compared_by_whole_segments_however_spelled() {
        let rule = rule("api.example.test", "/v1/");
        let yes = [
            "https://api.example.test/v1/x",
            "https://api.example.test/v1",
            "https://API.example.test./v1/x?q=/../",
            "https://api.example.test:443/a/../v1/x",
            "https://api.example.test/%76%31/x",
        ];
        for url in yes {
            assert!(granted(&rule, "GET", url), "{url}");
        }
        let no = [
            "http://api.example.test/v1/x",
            "https://api.example.test:444/v1/x",
            "https://api.example.test/v10",
            "https://api.example.test/v2/x",
            "https://api.example.test/v1/../v2/x",
            "https://api.example.test/v1/%2e%2e/v2/x",
            "https://api.example.test/v1/..%2fv2",
            "https://api.example.test/v1/%2e%2e%5cv2",
            "https://api.example.test//v1/x",
            "https://x.api.example.test/v1/x",
            "https://api.example.test.evil.test/v1/x",
            "https://user@api.example.test/v1/x",
        ];
        for url in no {
            assert!(!granted(&rule, "GET", url), "{url}");
        }
        assert!(!granted(&rule, "POST", "https://api.example.test/v1/x"));
    }

    #[test]
    fn cap_2_a_star_stands_for_names_below_and_not_for_the_name_itself() {
        let rule = rule("*.example.test", "/");
        assert!(granted(&rule, "GET", "https://a.example.test/"));
        assert!(granted(&rule, "GET", "https://a.b.example.test/"));
        assert!(!granted(&rule, "GET", "https://example.test/"));
        assert!(!granted(&rule, "GET", "https://badexample.test/"));
    }
}
