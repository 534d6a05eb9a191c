//! This process as the owner of a store: the node, its plugins, and the server that answers for it.
//! Commands that run sessions start one and are its first client, so that there is one way to do
//! things, and other commands find it meanwhile.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::config::SharedConfig;
use mainstay_core::id::OwnerId;
use mainstay_core::node::{Node, Ports};
use mainstay_core::nodes::Identity;
use mainstay_core::port::SystemClock;
use mainstay_server::{Options, ServerState, serve};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;
use tracing::warn;

use crate::backing::Backing;
use crate::collector::Collector;
use crate::config::Loaded;
use crate::error::{Code, Error, Result};
use crate::files;
use crate::paths::Paths;
use crate::plugins::Plugins;
use crate::rules;
use crate::signals;
use crate::watch::Watch;

/// How the server is reached.
#[derive(Clone, Debug)]
pub(crate) struct Listen {
    pub(crate) address: SocketAddr,
    pub(crate) token: Option<String>,
    pub(crate) hosts: Vec<String>,
}

impl Listen {
    /// For this process and commands on this machine.
    pub(crate) fn local(token: Option<String>) -> Self {
        Self {
            address: SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0),
            token,
            hosts: Vec::new(),
        }
    }
}

/// A store that runs.
pub(crate) struct Host {
    /// Where clients on this machine find the server.
    pub(crate) address: String,
    node: Arc<Node>,
    store: Backing,
    server: JoinHandle<()>,
    stop: CancellationToken,
    /// Applies the retention.
    keeper: AbortOnDropHandle<()>,
    /// Hears what other nodes write.
    follower: AbortOnDropHandle<()>,
    /// Ends this process once somebody asks the node to drain.
    drainer: AbortOnDropHandle<()>,
    /// Looks for rules that are for no tool.
    checker: AbortOnDropHandle<()>,
    /// Loads what appears in the folder of plugins.
    watcher: Option<AbortOnDropHandle<()>>,
}

/// How long answers under way may take once everything stops.
const CLOSING: Duration = Duration::from_secs(2);

impl Host {
    /// Opens the store, starts its node and serves it.
    pub(crate) async fn start(paths: &Paths, loaded: Loaded, listen: Listen) -> Result<Self> {
        if !listen.address.ip().is_loopback() && listen.token.is_none() {
            return Err(Error::new(
                Code::Config,
                format!(
                    "{} can be reached from other machines, so a token is needed",
                    listen.address
                ),
            )
            .hint("give one with `--token` or MAINSTAY_TOKEN, or listen on 127.0.0.1"));
        }
        paths.create()?;
        let listener = TcpListener::bind(listen.address).await.map_err(|error| {
            Error::new(
                Code::Unavailable,
                format!("cannot listen on {}", listen.address),
            )
            .because(&error)
            .hint("name another address with `--listen`, or port 0 for a free one")
        })?;
        let bound = listener
            .local_addr()
            .map_err(|error| Error::failed("cannot tell the address").because(&error))?;

        let clock = Arc::new(SystemClock::default());
        let owner = OwnerId::new();
        let store = Backing::open(paths, owner, clock.clone()).await?;
        let plugins = Plugins::new(paths, &loaded, store.port())?;
        plugins.install_shipped().await?;
        plugins.load_configured().await;
        let plugins = Arc::new(plugins);
        let mut watcher = None;
        if let Some(folder) = loaded.plugin_folder.clone() {
            let mut watch = Watch::new(folder);
            watch.start(&plugins).await;
            let follow = watch.follow(Arc::clone(&plugins));
            watcher = Some(AbortOnDropHandle::new(tokio::spawn(follow)));
        }

        let ports = Ports {
            store: store.port(),
            plugins: plugins.port(),
            clock,
        };
        let (config, tools) = (loaded.config.clone(), plugins.port());
        let checker = AbortOnDropHandle::new(tokio::spawn(async move {
            for idle in rules::idle(&config, &*tools).await {
                warn!("{idle}");
            }
        }));
        let config = Arc::new(SharedConfig::new(loaded.config));
        let near = match bound.ip() {
            IpAddr::V4(ip) if ip.is_unspecified() => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(ip) if ip.is_unspecified() => IpAddr::V6(std::net::Ipv6Addr::LOCALHOST),
            ip => ip,
        };
        let address = format!("http://{}", SocketAddr::new(near, bound.port()));
        // For others, a name is worth more than an address that only this machine knows.
        let told = match listen.hosts.first() {
            Some(name) => format!("http://{name}:{}", bound.port()),
            None => address.clone(),
        };
        let identity = Identity {
            owner,
            version: env!("CARGO_PKG_VERSION").into(),
            address: Some(told),
            host: machine(),
            ..Identity::default()
        };
        let node = Node::start_as(identity, ports, loaded.settings, config);
        let asked = Arc::clone(&node);
        let drainer = AbortOnDropHandle::new(tokio::spawn(async move {
            asked.drain_asked().await;
            signals::raise();
        }));

        let mut hosts = listen.hosts;
        if !bound.ip().is_unspecified() {
            hosts.push(bound.ip().to_string());
        }
        let options = Options {
            token: listen.token,
            hosts,
            any_address: bound.ip().is_unspecified(),
            max_connections: files::share(loaded.server.max_connections),
            read_patience: loaded.server.read_timeout,
            ..Options::default()
        };
        let collector = Collector::new(store.clone(), Arc::clone(&plugins), loaded.keep);
        let keeper = AbortOnDropHandle::new(tokio::spawn(loaded.keep.apply(store.clone())));
        let follower = store.clone().follow(Arc::clone(&node));
        let follower = AbortOnDropHandle::new(tokio::spawn(follower));
        let state = ServerState::new(Arc::clone(&node), plugins, Arc::new(collector), options);
        let stop = CancellationToken::new();
        let server = tokio::spawn(serve(listener, state, stop.clone().cancelled_owned()));

        store.publish(Some(address.clone())).map_err(|error| {
            Error::new(Code::Unavailable, "cannot write the lock file of the store").because(&error)
        })?;
        Ok(Self {
            address,
            node,
            store,
            server,
            stop,
            keeper,
            follower,
            drainer,
            checker,
            watcher,
        })
    }

    /// Stops: what runs is interrupted as a shutdown, so that the next start goes on with it at once.
    /// A signal meanwhile cuts the grace of steps in flight short.
    pub(crate) async fn shutdown(self, hurry: impl Future<Output = ()>) {
        self.stop.cancel();
        self.keeper.abort();
        self.follower.abort();
        self.drainer.abort();
        self.checker.abort();
        drop(self.watcher);
        let mut shutdown = std::pin::pin!(self.node.shutdown());
        tokio::select! {
            () = &mut shutdown => {}
            () = hurry => {
                self.node.shutdown_now();
                shutdown.await;
            }
        }
        let mut server = self.server;
        if tokio::time::timeout(CLOSING, &mut server).await.is_err() {
            server.abort();
        }
        // The lock is given up with the store, so a stale address misleads nobody.
        let _ = self.store.publish(None);
        self.store.close().await;
    }
}

/// What this machine is called, as far as it can be told without asking it.
fn machine() -> Option<String> {
    let kernel = || std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let name = std::env::var("HOSTNAME").ok().or_else(kernel)?;
    let name = name.trim();
    (!name.is_empty()).then(|| name.to_owned())
}
