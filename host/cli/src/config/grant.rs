//! What the operator grants: requests by URL and method, secrets by name, a workspace. A URL that is
//! written down stands for its host and all paths below its own.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::ops::Range;
use std::path::{Path, PathBuf};

use mainstay_core::config::Provider;
use mainstay_core::plugin::{Scheme, Workspace};
use serde::Deserialize;
use toml::Spanned;

/// What the operator grants to one use of a plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Access {
    pub(crate) http: Vec<Rule>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    pub(crate) workspace: Workspace,
}

/// Requests that are allowed: those to a host whose path begins with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) scheme: Scheme,
    /// A name; `*.name` for every name below it; `*` for any.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// In capitals; empty means every method.
    pub(crate) methods: Vec<String>,
    pub(crate) path_prefix: String,
    /// Addresses that are not public are allowed too.
    pub(crate) private: bool,
}

/// Where a secret's value is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Secret {
    /// In an environment variable.
    Env(String),
    /// In a file, without the line break at its end.
    File(PathBuf),
}

impl Secret {
    /// A path is meant from the configuration's folder.
    pub(super) fn within(&mut self, folder: &Path) {
        if let Self::File(path) = self {
            *path = folder.join(&path);
        }
    }

    /// The value, if it is set.
    pub(crate) fn value(&self) -> Option<String> {
        let value = match self {
            Self::Env(name) => std::env::var(name).ok()?,
            Self::File(path) => std::fs::read_to_string(path).ok()?,
        };
        let value = value.trim_end_matches(['\r', '\n']);
        (!value.is_empty()).then(|| value.to_owned())
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Env(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// `{ url = "https://*.example.com/v1", methods = ["GET"] }`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct HttpTable {
    url: Spanned<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    private: bool,
}

impl HttpTable {
    pub(super) fn into_rule(self) -> Result<Rule, (Range<usize>, String)> {
        let span = self.url.span();
        let mut rule = rule(self.url.get_ref()).map_err(|cause| (span, cause))?;
        rule.methods = self
            .methods
            .iter()
            .map(|method| method.to_ascii_uppercase())
            .collect();
        rule.private |= self.private;
        Ok(rule)
    }
}

/// Points a provider at another server, which is the grant to reach it.
pub(crate) fn set_base_url(
    provider: &mut Provider,
    access: &mut Access,
    url: &str,
) -> Result<(), String> {
    access.http = vec![rule(url)?];
    provider.base_url = Some(url.trim_end_matches('/').to_owned());
    Ok(())
}

/// The requests that a URL stands for: those to its host whose path begins with its path.
pub(super) fn rule(url: &str) -> Result<Rule, String> {
    let wrong = || format!("`{url}` is no URL of a server: write `https://host/path`");
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let scheme = match scheme {
        "https" => Scheme::Https,
        "http" => Scheme::Http,
        _ => return Err(wrong()),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains('@') || rest.contains(['?', '#', ' ']) {
        return Err(wrong());
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, Some(port.parse().map_err(|_| wrong())?))
        }
        _ => (authority, None),
    };
    let host = host.to_ascii_lowercase();
    if host.is_empty() || host == "*." {
        return Err(wrong());
    }
    // An operator who writes a private address down means it. A name may lead anywhere.
    let private = host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let path = path.trim_end_matches('/');
    let path_prefix = if path.is_empty() {
        "/".into()
    } else {
        path.into()
    };
    Ok(Rule {
        scheme,
        host,
        port,
        methods: Vec::new(),
        path_prefix,
        private,
    })
}
