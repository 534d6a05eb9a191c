//! Plugins of a store: what is installed, under which names, and what the binary brings along.

use std::collections::BTreeMap;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::id::digest;
use mainstay_core::plugin::{Kind, PluginInfo, Plugins as Port};
use mainstay_core::port::{Store, StoreError};
use mainstay_server::wire::Plugin;
use mainstay_server::{PluginAdmin, PluginError};

use crate::config::Loaded;
use crate::error::Result;
use crate::paths::Paths;
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
}

impl Plugins {
    pub(crate) fn new(paths: &Paths, loaded: &Loaded, store: Arc<dyn Store>) -> Result<Self> {
        let wired = Wired::new(paths, loaded, Arc::clone(&store))?;
        Ok(Self { store, wired })
    }

    /// For the node.
    pub(crate) fn port(&self) -> Arc<dyn Port> {
        self.wired.port()
    }

    /// Keeps what the binary brings along, under names that nobody has pointed elsewhere.
    pub(crate) async fn install_shipped(&self) -> Result<()> {
        let aliases: BTreeMap<(String, String), String> = self
            .store
            .aliases()
            .await?
            .into_iter()
            .map(|(kind, alias, digest)| ((kind.to_string(), alias), digest))
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
                self.store.alias_put(*kind, alias, Some(&digest)).await?;
            }
            self.store.alias_put(*kind, &mark, Some(&digest)).await?;
        }
        Ok(())
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

fn with_names(info: PluginInfo, aliases: &[(Kind, String, String)]) -> Plugin {
    let names = aliases.iter().filter(|(kind, alias, digest)| {
        *kind == info.kind && *digest == info.digest && !alias.ends_with(MARK)
    });
    Plugin {
        aliases: names.map(|(_, alias, _)| alias.clone()).collect(),
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
        if let Some(alias) = &alias {
            check_name(alias)?;
        }
        let info = self.wired.install(&bytes).await?;
        let alias = alias.unwrap_or_else(|| info.name.clone());
        self.store
            .alias_put(info.kind, &alias, Some(&info.digest))
            .await
            .map_err(unavailable)?;
        self.view(info).await
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

    async fn remove(&self, kind: Kind, alias: &str) -> Result<(), PluginError> {
        let aliases = self.store.aliases().await.map_err(unavailable)?;
        let found = aliases
            .iter()
            .find(|(of, name, _)| *of == kind && name == alias && !name.ends_with(MARK));
        let (_, _, digest) =
            found.ok_or_else(|| PluginError::NotFound(format!("there is no {kind} `{alias}`")))?;
        self.store
            .alias_put(kind, alias, None)
            .await
            .map_err(unavailable)?;
        // A component without a name goes, unless a step that is not settled was decided under it.
        let named = aliases
            .iter()
            .any(|(of, name, other)| other == digest && !(*of == kind && name == alias));
        if !named
            && !self
                .store
                .digests_in_use()
                .await
                .map_err(unavailable)?
                .contains(digest)
        {
            self.store
                .plugin_delete(digest)
                .await
                .map_err(unavailable)?;
            self.wired.forget(digest);
        }
        Ok(())
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
            .alias_put(kind, alias, Some(digest))
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
