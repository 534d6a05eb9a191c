//! Where a plugin is tried: runtimes over temporary folders that grant a workspace and reach nothing,
//! and some that grant every request and reach the kit's own server alone.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::plugin::{Kind, PluginInfo, Workspace};
use mainstay_runtime::egress::{
    Egress, EgressLimits, GrantRule, Grants, MediaSource, Redactor, Resolver, SecretSource,
};
use mainstay_runtime::limits::Limits;
use mainstay_runtime::{MemorySource, Runtime, RuntimeConfig};

use crate::{Error, Options};

/// The alias under which every plugin is configured here.
pub(crate) const ALIAS: &str = "kit";

/// Guests alive at once. Few: an engine reserves room for each.
const INSTANCES: u32 = 24;

/// One plugin's bench.
pub(crate) struct Bench {
    pub(crate) options: Options,
    source: Arc<MemorySource>,
    pub(crate) folder: tempfile::TempDir,
    /// The runtime in which most is tried.
    pub(crate) runtime: Arc<Runtime>,
    /// Another process, as far as a guest can tell.
    pub(crate) other: Arc<Runtime>,
}

impl Bench {
    pub(crate) fn new(options: Options) -> Result<Self, Error> {
        let folder =
            tempfile::tempdir().map_err(|error| Error::new("make a temporary folder", error))?;
        let source = Arc::new(MemorySource::new());
        let make = || {
            runtime(
                folder.path(),
                &source,
                Limits::default(),
                Workspace::ReadWrite,
            )
        };
        Ok(Self {
            options,
            runtime: make()?,
            other: make()?,
            source,
            folder,
        })
    }

    /// Loads the component; in words why not.
    pub(crate) async fn load(&self, component: &[u8]) -> Result<Arc<PluginInfo>, String> {
        let info = self.runtime.install(component).await;
        info.map_err(|error| mainstay_core::chain(&error))
    }

    /// A runtime with other limits, and with this much of a workspace at most.
    pub(crate) fn another(
        &self,
        limits: Limits,
        workspace: Workspace,
    ) -> Result<Arc<Runtime>, Error> {
        runtime(self.folder.path(), &self.source, limits, workspace)
    }

    /// A runtime in which a toolbox is granted all that it asks for, and every request goes to this
    /// server and takes so long at most.
    pub(crate) fn reaching(
        &self,
        info: &PluginInfo,
        server: SocketAddr,
        limits: Limits,
        fetch: Duration,
    ) -> Result<Arc<Runtime>, Error> {
        let http = info.http.iter().map(|rule| GrantRule {
            scheme: Some(rule.scheme),
            host: "*".to_owned(),
            port: rule.port,
            methods: Vec::new(),
            path_prefix: "/".to_owned(),
            private: true,
        });
        let secrets = info.secrets.iter().map(|rule| {
            let value = format!("a secret for {}", rule.name);
            (rule.name.clone(), SecretSource::Value(value))
        });
        let grants = Grants {
            http: http.collect(),
            secrets: secrets.collect(),
            workspace: Workspace::ReadWrite,
        };
        let limits_out = EgressLimits {
            fetch,
            ..EgressLimits::default()
        };
        let egress = egress(limits_out)?.redirected(server);
        build(self.folder.path(), &self.source, limits, egress, grants)
    }

    /// The folder of a session's files. The runtime makes it when it is first used.
    pub(crate) fn workspace(&self, session: mainstay_core::id::SessionId) -> PathBuf {
        self.folder
            .path()
            .join("workspaces")
            .join(session.to_string())
    }
}

fn runtime(
    folder: &Path,
    source: &Arc<MemorySource>,
    limits: Limits,
    workspace: Workspace,
) -> Result<Arc<Runtime>, Error> {
    let grants = Grants {
        http: Vec::new(),
        secrets: HashMap::new(),
        workspace,
    };
    build(
        folder,
        source,
        limits,
        egress(EgressLimits::default())?,
        grants,
    )
}

fn egress(limits: EgressLimits) -> Result<Egress, Error> {
    let egress = Egress::new(
        Arc::new(Nowhere),
        Arc::new(Nothing),
        Redactor::new(),
        limits,
    );
    egress.map_err(|cause| Error::new("set up the way out", cause))
}

fn build(
    folder: &Path,
    source: &Arc<MemorySource>,
    limits: Limits,
    egress: Egress,
    grants: Grants,
) -> Result<Arc<Runtime>, Error> {
    egress.grant(Kind::Toolbox, ALIAS, grants);
    let config = RuntimeConfig {
        limits,
        instances: INSTANCES,
        ..RuntimeConfig::new(folder)
    };
    let runtime = Runtime::new(config, Arc::clone(source) as _, Arc::new(egress))
        .map_err(|cause| Error::new("set up an engine", cause))?;
    Ok(Arc::new(runtime))
}

/// No name leads anywhere.
struct Nowhere;

#[async_trait]
impl Resolver for Nowhere {
    async fn lookup(&self, _: &str) -> std::io::Result<Vec<IpAddr>> {
        Ok(Vec::new())
    }
}

/// There are no media.
struct Nothing;

#[async_trait]
impl MediaSource for Nothing {
    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(None)
    }
}
