//! Store and runtime, put together: they do not know each other.

use std::collections::HashSet;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::id::Digest;
use mainstay_core::plugin::{Kind, PluginInfo, Plugins};
use mainstay_core::port::Store;
use mainstay_core::{BoxError, access};
use mainstay_runtime::egress::{
    Egress, EgressLimits, GrantRule, Grants, MediaSource, Redactor, SecretSource, SystemResolver,
};
use mainstay_runtime::inspect::Error as InspectError;
use mainstay_runtime::{ComponentSource, MemorySource, Runtime, RuntimeConfig, Swept};
use mainstay_server::PluginError;

use crate::config::{Access, Loaded, Rule, Secret};
use crate::error::{Error, Result};
use crate::logs;
use crate::paths::Paths;

/// Guests that may be alive at the same time: one that reads an answer for each execution that a node
/// takes by default, and some to spare.
const INSTANCES: u32 = 1280;

/// The runtime of one store.
pub(crate) struct Wired {
    runtime: Arc<Runtime>,
}

impl Wired {
    /// With what the configuration grants.
    pub(crate) fn new(paths: &Paths, loaded: &Loaded, store: Arc<dyn Store>) -> Result<Self> {
        let config = RuntimeConfig {
            cache_dir: paths.cache.clone(),
            workspaces_dir: paths.workspaces.clone(),
            limits: loaded.limits.clone(),
            instances: INSTANCES,
        };
        let kept = Arc::new(Kept(store));
        let runtime = runtime(config, Arc::clone(&kept) as Arc<dyn ComponentSource>, kept)?;
        let egress = runtime.egress();
        for (kind, all) in [
            (Kind::Provider, &loaded.providers),
            (Kind::Toolbox, &loaded.toolboxes),
        ] {
            for (alias, access) in all {
                for value in access.secrets.values().filter_map(Secret::value) {
                    egress.redactor().learn(&value);
                }
                egress.grant(kind, alias, grants(access));
            }
        }
        let redactor = egress.redactor().clone();
        logs::redact(Arc::new(move |line| redactor.redact(line).into_owned()));
        Ok(Self { runtime })
    }

    /// For the node.
    pub(crate) fn port(&self) -> Arc<dyn Plugins> {
        Arc::clone(&self.runtime) as Arc<dyn Plugins>
    }

    /// Checks a component and stores nothing.
    pub(crate) async fn inspect(&self, bytes: &[u8]) -> Result<PluginInfo, PluginError> {
        self.runtime.inspect(bytes).await.map_err(refused)
    }

    /// Checks a component and stores it under its digest.
    pub(crate) async fn install(&self, bytes: &[u8]) -> Result<PluginInfo, PluginError> {
        let info = self.runtime.install(bytes).await.map_err(refused)?;
        Ok(PluginInfo::clone(&info))
    }

    /// What a component asks for, is granted under this name, and has used.
    pub(crate) async fn report(&self, info: &PluginInfo, alias: &str) -> access::Access {
        self.runtime.egress().report(info, alias).await
    }

    /// Takes a secret out of logs and of what guests are told from now on.
    pub(crate) fn learn(&self, secret: &str) {
        self.runtime.egress().redactor().learn(secret);
    }

    /// Removes compiled code of other components than these.
    pub(crate) async fn sweep(
        &self,
        keep: HashSet<Digest>,
        dry_run: bool,
    ) -> Result<Swept, BoxError> {
        self.runtime.sweep(keep, dry_run).await
    }

    /// Lets go of a component that the store no longer has.
    pub(crate) fn forget(&self, digest: &str) {
        self.runtime.forget(digest);
    }
}

/// Looks at a component without a store.
pub(crate) async fn inspect(bytes: &[u8]) -> Result<PluginInfo> {
    let folder = tempfile::tempdir()
        .map_err(|error| Error::failed("cannot make a folder").because(&error))?;
    let runtime = runtime(
        RuntimeConfig::new(folder.path()),
        Arc::new(MemorySource::new()),
        Arc::new(NoMedia),
    )?;
    Ok(runtime.inspect(bytes).await.map_err(refused)?)
}

/// A runtime that asks runners what they would decide: nothing is granted, what is compiled stays in
/// `folder`, and what is installed stays in memory, beside the components of `store`.
pub(crate) fn rehearsing(folder: &Path, store: Option<Arc<dyn Store>>) -> Result<Arc<Runtime>> {
    let config = RuntimeConfig {
        instances: 4,
        ..RuntimeConfig::new(folder)
    };
    let source = Beside {
        own: MemorySource::new(),
        store: store.map(Kept),
    };
    runtime(config, Arc::new(source), Arc::new(NoMedia))
}

fn runtime(
    config: RuntimeConfig,
    source: Arc<dyn ComponentSource>,
    media: Arc<dyn MediaSource>,
) -> Result<Arc<Runtime>> {
    let failed = |error: BoxError| Error::failed("cannot set up the plugins").because(&*error);
    let egress = Egress::new(
        Arc::new(SystemResolver),
        media,
        Redactor::new(),
        EgressLimits::default(),
    );
    Ok(Arc::new(
        Runtime::new(config, source, Arc::new(egress.map_err(failed)?)).map_err(failed)?,
    ))
}

pub(crate) fn refused(error: InspectError) -> PluginError {
    match error {
        InspectError::Store(cause) => PluginError::Unavailable(cause),
        other => PluginError::Refused(mainstay_core::chain(&other)),
    }
}

fn grants(access: &Access) -> Grants {
    let secret = |secret: &Secret| match secret {
        Secret::Env(name) => SecretSource::Env(name.clone()),
        Secret::File(path) => SecretSource::File(path.clone()),
    };
    Grants {
        http: access.http.iter().map(rule).collect(),
        secrets: access
            .secrets
            .iter()
            .map(|(name, source)| (name.clone(), secret(source)))
            .collect(),
        workspace: access.workspace,
    }
}

fn rule(rule: &Rule) -> GrantRule {
    GrantRule {
        scheme: Some(rule.scheme),
        host: rule.host.clone(),
        port: rule.port,
        methods: rule.methods.clone(),
        path_prefix: rule.path_prefix.clone(),
        private: rule.private,
    }
}

/// Components, names and media as the store keeps them.
struct Kept(Arc<dyn Store>);

#[async_trait]
impl ComponentSource for Kept {
    async fn component(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.0.plugin_bytes(digest).await?)
    }

    async fn info(&self, digest: &str) -> Result<Option<PluginInfo>, BoxError> {
        Ok(self.0.plugin(digest).await?)
    }

    async fn alias(&self, kind: Kind, alias: &str) -> Result<Option<Digest>, BoxError> {
        Ok(self.0.alias(kind, alias).await?)
    }

    async fn put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), BoxError> {
        Ok(self.0.plugin_put(info, bytes).await?)
    }
}

#[async_trait]
impl MediaSource for Kept {
    async fn get(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.0.blob(digest).await?)
    }
}

/// Components of its own before those of a store, which is only read.
struct Beside {
    own: MemorySource,
    store: Option<Kept>,
}

#[async_trait]
impl ComponentSource for Beside {
    async fn component(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        match (self.own.component(digest).await?, &self.store) {
            (None, Some(store)) => store.component(digest).await,
            (own, _) => Ok(own),
        }
    }

    async fn info(&self, digest: &str) -> Result<Option<PluginInfo>, BoxError> {
        match (self.own.info(digest).await?, &self.store) {
            (None, Some(store)) => store.info(digest).await,
            (own, _) => Ok(own),
        }
    }

    async fn alias(&self, kind: Kind, alias: &str) -> Result<Option<Digest>, BoxError> {
        match &self.store {
            Some(store) => store.alias(kind, alias).await,
            None => Ok(None),
        }
    }

    async fn put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), BoxError> {
        self.own.put(info, bytes).await
    }
}

/// For looking at one file.
struct NoMedia;

#[async_trait]
impl MediaSource for NoMedia {
    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(None)
    }
}
