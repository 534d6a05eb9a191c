//! What every request can reach.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::access::Access;
use mainstay_core::node::Node;
use mainstay_core::plugin::{Kind, PluginInfo};
use tokio_util::sync::CancellationToken;

use crate::wire::{Collect, Collected, Plugin};

/// Most bytes of a body that is no plugin, unless an operator says otherwise.
pub const BODY_LIMIT: usize = 2 * 1024 * 1024;

/// What an operator sets.
#[derive(Clone, Debug)]
pub struct Options {
    /// Asked of every request, if set.
    pub token: Option<String>,
    /// Names and addresses besides loopback under which this server may be asked for.
    pub hosts: Vec<String>,
    /// It listens on every address: any literal address is its own.
    pub any_address: bool,
    /// Connections at once. More clients are answered that there is no room.
    pub max_connections: usize,
    /// How long a connection may go without a whole head of a request, and how long a client may send
    /// too little of a body. Answers and event streams last as long as their clients read.
    pub read_patience: Duration,
    /// Most bytes of a body that is no plugin.
    pub body_limit: usize,
    /// Most bytes of a plugin.
    pub plugin_limit: usize,
    /// Events that a stream may fall behind.
    pub stream_buffer: usize,
    /// How long a stream may stay that far behind before it is ended.
    pub stream_patience: Duration,
    /// An expired claim or a due session that waits longer makes the health bad.
    pub lag_limit: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            token: None,
            hosts: Vec::new(),
            any_address: false,
            max_connections: 4096,
            read_patience: Duration::from_secs(30),
            body_limit: BODY_LIMIT,
            plugin_limit: 64 * 1024 * 1024,
            stream_buffer: 256,
            stream_patience: Duration::from_secs(5),
            lag_limit: Duration::from_secs(30),
        }
    }
}

/// Loading and naming plugins, which takes more than the core knows.
#[async_trait]
pub trait PluginAdmin: Send + Sync + 'static {
    /// Checks a component, keeps it and points `alias` (or its own name) at it.
    async fn install(&self, bytes: Vec<u8>, alias: Option<String>) -> Result<Plugin, PluginError>;
    /// The same with what a reference leads to now (`oci://host/repository:tag`).
    async fn load(&self, reference: &str, alias: Option<String>) -> Result<Plugin, PluginError>;
    /// Checks a component and keeps nothing.
    async fn inspect(&self, bytes: Vec<u8>) -> Result<PluginInfo, PluginError>;
    /// All components and the names that lead to them.
    async fn list(&self) -> Result<Vec<Plugin>, PluginError>;
    /// What each provider and toolbox asks for, is granted, and has used in this process.
    async fn access(&self) -> Result<Vec<Access>, PluginError>;
    /// Takes a name away. The component stays until a collection finds that nothing needs it.
    async fn remove(&self, kind: Kind, alias: &str) -> Result<(), PluginError>;
    /// Points a name at a component that is kept already.
    async fn alias(&self, kind: Kind, alias: &str, digest: &str) -> Result<Plugin, PluginError>;
}

/// Removing what nothing needs any more.
#[async_trait]
pub trait Collector: Send + Sync + 'static {
    /// Removes it, or only tells what would go.
    async fn collect(&self, ask: Collect) -> Result<Collected, BoxError>;
}

/// Why a plugin operation did nothing.
#[derive(Debug, thiserror::Error)]
pub enum PluginError {
    /// The component breaks a rule.
    #[error("{0}")]
    Refused(String),
    #[error("{0}")]
    NotFound(String),
    /// The request makes no sense, whatever is stored.
    #[error("{0}")]
    Invalid(String),
    /// Transient.
    #[error("the plugins could not be read or written")]
    Unavailable(#[source] BoxError),
    /// A registry gave nothing that could be kept.
    #[error("{text}")]
    Registry {
        fault: RegistryFault,
        /// What happened.
        text: String,
        /// What to do, as a sentence without its full stop.
        advice: String,
    },
}

/// What it is that a registry did not do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RegistryFault {
    /// Answer. Transient.
    Unreachable,
    /// Accept the credentials, or the lack of them.
    Denied,
    /// Have the artifact.
    NotFound,
    /// Give what was asked for, whole and unchanged.
    Refused,
}

/// Shared by all requests.
#[derive(Clone)]
pub struct ServerState(Arc<Inner>);

struct Inner {
    node: Arc<Node>,
    plugins: Arc<dyn PluginAdmin>,
    collector: Arc<dyn Collector>,
    options: Options,
    closing: CancellationToken,
}

impl ServerState {
    #[must_use]
    pub fn new(
        node: Arc<Node>,
        plugins: Arc<dyn PluginAdmin>,
        collector: Arc<dyn Collector>,
        options: Options,
    ) -> Self {
        Self(Arc::new(Inner {
            node,
            plugins,
            collector,
            options,
            closing: CancellationToken::new(),
        }))
    }

    pub(crate) fn node(&self) -> &Arc<Node> {
        &self.0.node
    }

    pub(crate) fn plugins(&self) -> &dyn PluginAdmin {
        &*self.0.plugins
    }

    pub(crate) fn collector(&self) -> &dyn Collector {
        &*self.0.collector
    }

    pub(crate) fn options(&self) -> &Options {
        &self.0.options
    }

    /// Cancelled when the server closes: streams end, waits are answered.
    pub(crate) fn closing(&self) -> CancellationToken {
        self.0.closing.clone()
    }
}
