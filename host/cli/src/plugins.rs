//! Plugins of a store: what is installed, under which names, and what the binary brings along.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures::future::join_all;
use mainstay_core::access::Access;
use mainstay_core::id::{Digest, digest};
use mainstay_core::plugin::{Kind, PluginInfo, Plugins as Port};
use mainstay_core::port::{Alias, Store, StoreError};
use mainstay_core::{BoxError, chain};
use mainstay_registry::{Pulled, Reference};
use mainstay_runtime::Swept;
use mainstay_runtime::egress::Redactor;
use mainstay_server::wire::Plugin;
use mainstay_server::{PluginAdmin, PluginError};
use tracing::error;

use crate::config::Loaded;
use crate::error::Result;
use crate::logs;
use crate::paths::Paths;
use crate::sources::{self, Registries, Source};
use crate::wiring::Wired;

/// What the binary brings along: kind, name and component.
const SHIPPED: &[(Kind, &str, &[u8])] = &[
    (
        Kind::Runner,
        "loop",
        include_bytes!(env!("MAINSTAY_GUEST_LOOP")),
    ),
    (
        Kind::Provider,
        "openai-chat",
        include_bytes!(env!("MAINSTAY_GUEST_OPENAI_CHAT")),
    ),
    (
        Kind::Provider,
        "parrot",
        include_bytes!(env!("MAINSTAY_GUEST_PARROT")),
    ),
    (
        Kind::Toolbox,
        "files",
        include_bytes!(env!("MAINSTAY_GUEST_FILES")),
    ),
    (
        Kind::Toolbox,
        "web",
        include_bytes!(env!("MAINSTAY_GUEST_WEB")),
    ),
];

/// Behind a name: the component of that name that a binary last brought along. Tells a name that an
/// operator has pointed elsewhere from one that follows the binary.
const MARK: &str = "@shipped";

/// The plugins of one store.
pub(crate) struct Plugins {
    store: Arc<dyn Store>,
    wired: Wired,
    registries: Registries,
    configured: BTreeMap<String, Source>,
    /// The plugin of each configured provider.
    providers: BTreeMap<String, String>,
}

impl Plugins {
    pub(crate) fn new(paths: &Paths, loaded: &Loaded, store: Arc<dyn Store>) -> Result<Self> {
        let wired = Wired::new(paths, loaded, Arc::clone(&store))?;
        for secret in loaded.registries.secrets() {
            wired.learn(&secret);
        }
        Ok(Self {
            store,
            wired,
            registries: loaded.registries.clone(),
            configured: loaded.plugins.clone(),
            providers: loaded
                .config
                .providers
                .iter()
                .map(|(name, provider)| (name.clone(), provider.plugin.clone()))
                .collect(),
        })
    }

    /// For the node.
    pub(crate) fn port(&self) -> Arc<dyn Port> {
        self.wired.port()
    }

    /// Lets go of a component that the store no longer has.
    pub(crate) fn forget(&self, digest: &str) {
        self.wired.forget(digest);
    }

    /// Removes compiled code of other components than these.
    pub(crate) async fn sweep(
        &self,
        keep: HashSet<Digest>,
        dry_run: bool,
    ) -> Result<Swept, BoxError> {
        self.wired.sweep(keep, dry_run).await
    }

    /// Keeps what the binary brings along, under names that nobody has pointed elsewhere.
    pub(crate) async fn install_shipped(&self) -> Result<()> {
        let aliases: BTreeMap<(String, String), String> = self
            .store
            .aliases()
            .await?
            .into_iter()
            .map(|name| ((name.kind.to_string(), name.alias), name.digest))
            .collect();
        for (kind, alias, bytes) in SHIPPED {
            let digest = digest(bytes);
            let mark = format!("{alias}{MARK}");
            let now = aliases.get(&(kind.to_string(), (*alias).to_owned()));
            let last = aliases.get(&(kind.to_string(), mark.clone()));
            if last == Some(&digest) && now.is_some() {
                continue;
            }
            self.wired.install(bytes).await?;
            if now.is_none() || now == last {
                self.store
                    .alias_put(*kind, alias, Some(&digest), None)
                    .await?;
            }
            self.store
                .alias_put(*kind, &mark, Some(&digest), None)
                .await?;
        }
        Ok(())
    }

    /// Loads what the configuration names and is not loaded yet. A tag that was loaded is not asked
    /// for again, so that a start needs no registry and changes no code by itself. What can't be
    /// loaded is reported, and a name that led somewhere before still does.
    pub(crate) async fn load_configured(&self) {
        let all = self.configured.iter().map(|(alias, source)| async move {
            if let Err(error) = self.load_source(alias, source).await {
                let advice = match &error {
                    PluginError::Registry { advice, .. } => advice,
                    _ => "see `[plugins]` in mainstay.toml",
                };
                error!(
                    plugin = alias,
                    error = chain(&error),
                    advice,
                    "a configured plugin is not loaded"
                );
            }
        });
        join_all(all).await;
    }

    /// Points a name at the bytes of a file, unless it leads there already.
    pub(crate) async fn load_file(&self, alias: &str, file: &Path) -> Result<(), PluginError> {
        self.load_source(alias, &Source::File(file.to_owned()))
            .await
    }

    async fn load_source(&self, alias: &str, source: &Source) -> Result<(), PluginError> {
        let names = self.store.aliases().await.map_err(unavailable)?;
        let mut named = names.iter().filter(|name| name.alias == alias);
        match source {
            Source::File(path) => {
                let bytes = read(path).map_err(|error| {
                    PluginError::NotFound(format!("cannot read {}: {error}", path.display()))
                })?;
                let digest = digest(&bytes);
                if !named.any(|name| name.digest == digest) {
                    self.keep(bytes, Some(alias.to_owned()), None).await?;
                }
            }
            Source::Registry(reference) => {
                let led_here =
                    |source: &String| source.parse().is_ok_and(|pinned| reference.led_to(&pinned));
                if !named.any(|name| name.source.as_ref().is_some_and(led_here)) {
                    self.fetch(reference, Some(alias.to_owned())).await?;
                }
            }
        }
        Ok(())
    }

    /// Keeps what a reference leads to now.
    async fn fetch(
        &self,
        reference: &Reference,
        alias: Option<String>,
    ) -> Result<Plugin, PluginError> {
        if let Some(alias) = &alias {
            check_name(alias)?;
        }
        let learn = |secret: &str| self.wired.learn(secret);
        let Pulled { bytes, source } = self.registries.pull(reference, learn).await?;
        self.keep(bytes, alias, Some(source.to_string())).await
    }

    async fn keep(
        &self,
        bytes: Vec<u8>,
        alias: Option<String>,
        source: Option<String>,
    ) -> Result<Plugin, PluginError> {
        if let Some(alias) = &alias {
            check_name(alias)?;
        }
        let info = self.wired.install(&bytes).await?;
        let alias = alias.unwrap_or_else(|| info.name.clone());
        self.store
            .alias_put(info.kind, &alias, Some(&info.digest), source.as_deref())
            .await
            .map_err(unavailable)?;
        self.view(info).await
    }

    async fn view(&self, info: PluginInfo) -> Result<Plugin, PluginError> {
        let aliases = self.store.aliases().await.map_err(unavailable)?;
        Ok(with_names(info, &aliases))
    }
}

/// Looks at a component without a store.
pub(crate) async fn inspect(bytes: Vec<u8>) -> Result<PluginInfo> {
    crate::wiring::inspect(&bytes).await
}

/// Fetches a component without a store.
pub(crate) async fn fetch(loaded: &Loaded, reference: &Reference) -> Result<Vec<u8>> {
    let redactor = Redactor::new();
    let known = redactor.clone();
    logs::redact(Arc::new(move |line| known.redact(line).into_owned()));
    let learn = |secret: &str| redactor.learn(secret);
    Ok(loaded.registries.pull(reference, learn).await?.bytes)
}

/// The bytes of a component in a file.
pub(crate) fn read(file: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let limit = sources::limit();
    File::open(file)?.take(limit + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let cause = format!("it is larger than the {limit} bytes that a component may have");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, cause));
    }
    Ok(bytes)
}

fn with_names(info: PluginInfo, aliases: &[Alias]) -> Plugin {
    let names = aliases.iter().filter(|name| {
        name.kind == info.kind && name.digest == info.digest && !name.alias.ends_with(MARK)
    });
    Plugin {
        aliases: names.clone().map(|name| name.alias.clone()).collect(),
        sources: names
            .filter_map(|name| Some((name.alias.clone(), name.source.clone()?)))
            .collect(),
        info,
    }
}

fn unavailable(error: StoreError) -> PluginError {
    PluginError::Unavailable(Box::new(error))
}

/// Whether a text may be a name.
fn check_name(alias: &str) -> Result<(), PluginError> {
    let fits = (1..=64).contains(&alias.len())
        && alias.bytes().all(|byte| {
            byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte)
        });
    if fits {
        return Ok(());
    }
    Err(PluginError::Invalid(format!(
        "`{alias}` is no name: use 1 to 64 of a-z, 0-9, `-`, `_` and `.`"
    )))
}

#[async_trait]
impl PluginAdmin for Plugins {
    async fn install(&self, bytes: Vec<u8>, alias: Option<String>) -> Result<Plugin, PluginError> {
        self.keep(bytes, alias, None).await
    }

    async fn load(&self, reference: &str, alias: Option<String>) -> Result<Plugin, PluginError> {
        let reference: Result<Reference, _> = reference.parse();
        let reference = reference.map_err(|error| PluginError::Invalid(error.to_string()))?;
        self.fetch(&reference, alias).await
    }

    async fn inspect(&self, bytes: Vec<u8>) -> Result<PluginInfo, PluginError> {
        self.wired.inspect(&bytes).await
    }

    async fn list(&self) -> Result<Vec<Plugin>, PluginError> {
        let aliases = self.store.aliases().await.map_err(unavailable)?;
        let mut plugins: Vec<Plugin> = self
            .store
            .plugins()
            .await
            .map_err(unavailable)?
            .into_iter()
            .map(|info| with_names(info, &aliases))
            .collect();
        plugins.sort_by(|a, b| {
            let key = |plugin: &Plugin| {
                (
                    plugin.info.kind.to_string(),
                    plugin.info.name.clone(),
                    plugin.info.digest.clone(),
                )
            };
            key(a).cmp(&key(b))
        });
        Ok(plugins)
    }

    async fn access(&self) -> Result<Vec<Access>, PluginError> {
        let aliases = self.store.aliases().await.map_err(unavailable)?;
        let led_to = |kind: Kind, alias: &str| {
            let mut names = aliases.iter();
            let name = names.find(|name| name.kind == kind && name.alias == alias);
            name.map(|name| name.digest.clone())
        };
        let providers = self.providers.iter();
        let providers = providers
            .filter_map(|(name, plugin)| Some((name.clone(), led_to(Kind::Provider, plugin)?)));
        let toolboxes = aliases
            .iter()
            .filter(|name| name.kind == Kind::Toolbox && !name.alias.ends_with(MARK))
            .map(|name| (name.alias.clone(), name.digest.clone()));
        let mut reports = Vec::new();
        for (alias, digest) in providers.chain(toolboxes) {
            let info = self.store.plugin(&digest).await.map_err(unavailable)?;
            if let Some(info) = info {
                reports.push(self.wired.report(&info, &alias).await);
            }
        }
        Ok(reports)
    }

    async fn remove(&self, kind: Kind, alias: &str) -> Result<(), PluginError> {
        let aliases = self.store.aliases().await.map_err(unavailable)?;
        let found = aliases
            .iter()
            .find(|name| name.kind == kind && name.alias == alias && !alias.ends_with(MARK));
        if found.is_none() {
            return Err(PluginError::NotFound(format!(
                "there is no {kind} `{alias}`"
            )));
        }
        // The component is left to a collection, which knows what other names, steps and their
        // recoveries still need. A decision may be about to name it that no row tells of yet.
        self.store
            .alias_put(kind, alias, None, None)
            .await
            .map_err(unavailable)
    }

    async fn alias(&self, kind: Kind, alias: &str, digest: &str) -> Result<Plugin, PluginError> {
        check_name(alias)?;
        let info = self.store.plugin(digest).await.map_err(unavailable)?;
        let info = info.ok_or_else(|| {
            PluginError::NotFound(format!(
                "no component of the digest `{digest}` is installed"
            ))
        })?;
        if info.kind != kind {
            return Err(PluginError::Invalid(format!(
                "`{}` is a {} and no {kind}",
                info.name, info.kind
            )));
        }
        self.store
            .alias_put(kind, alias, Some(digest), None)
            .await
            .map_err(unavailable)?;
        self.view(info).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for right in ["loop", "a.b-c_1"] {
            assert!(check_name(right).is_ok(), "{right}");
        }
        for wrong in ["", "Loop", "a b", "a@shipped", "a/b", &"x".repeat(65)] {
            assert!(check_name(wrong).is_err(), "{wrong}");
        }
    }
}
