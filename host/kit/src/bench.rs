//! Where a plugin is tried: runtimes over temporary folders that grant what the plugin asks for and
//! reach nothing.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::plugin::{Kind, PluginInfo, Workspace};
use mainstay_runtime::egress::{Egress, EgressLimits, Grants, MediaSource, Redactor, Resolver};
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
    let egress = Egress::new(
        Arc::new(Nowhere),
        Arc::new(Nothing),
        Redactor::new(),
        EgressLimits::default(),
    )
    .map_err(|cause| Error::new("set up the way out", cause))?;
    egress.grant(
        Kind::Toolbox,
        ALIAS,
        Grants {
            http: Vec::new(),
            secrets: HashMap::new(),
            workspace,
        },
    );
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
