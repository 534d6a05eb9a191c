//! A node as the binary wires one: SQLite on a real disk, wasmtime, components and their names kept in
//! the store, the settings that nobody has changed.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::SessionCreated;
use mainstay_core::id::{Digest, OwnerId, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::nodes::Identity;
use mainstay_core::plugin::{Kind, PluginInfo, Plugins};
use mainstay_core::port::{Store, SystemClock};
use mainstay_runtime::egress::{Egress, EgressLimits, MediaSource, Redactor, SystemResolver};
use mainstay_runtime::limits::Limits;
use mainstay_runtime::{ComponentSource, Runtime, RuntimeConfig};
use mainstay_store::{Options, PostgresStore, SqliteStore, postgres};

use crate::guests;
use crate::turn::Kind as Turn;

/// As in the binary.
const INSTANCES: u32 = 1280;

/// The database, in its folder.
pub const FILE: &str = "mainstay.db";

/// Agent whose runner is done with its first decision.
pub const BRIEF: &str = "brief";
/// Agent whose runner spins until it is stopped.
pub const SPINNER: &str = "spinner";
/// Agent that does what its prompt says line by line, waits included.
pub const PLANNER: &str = "planner";

/// What nodes stand on: an open database with the components in it.
pub struct Ground {
    pub store: Arc<SqliteStore>,
    pub runtime: Arc<Runtime>,
    clock: Arc<SystemClock>,
}

impl Ground {
    /// Opens the database in `dir`, a new one if there is none, and puts the components into it.
    /// Compiled code is kept in `cache`, so that only the first world of a machine compiles.
    ///
    /// # Panics
    /// The store or the runtime refuses.
    pub async fn open(dir: &Path, cache: &Path) -> Self {
        let clock = Arc::new(SystemClock::default());
        let options = Options {
            clock: clock.clone(),
            owner: OwnerId::new(),
            ..Options::default()
        };
        let store = SqliteStore::open(dir.join(FILE), options).await;
        let store = Arc::new(store.expect("a database"));
        let runtime = equip(Arc::clone(&store) as _, dir, cache).await;
        Self {
            store,
            runtime,
            clock,
        }
    }

    /// Starts a node, one of any number, on the current tokio runtime.
    #[must_use]
    pub fn node(&self, settings: Settings) -> Arc<Node> {
        self.node_of(settings, config())
    }

    /// The same, with agents and providers of one's own.
    #[must_use]
    pub fn node_of(&self, settings: Settings, config: Config) -> Arc<Node> {
        let ports = Ports {
            store: Arc::clone(&self.store) as _,
            plugins: Arc::clone(&self.runtime) as Arc<dyn Plugins>,
            clock: Arc::clone(&self.clock) as _,
        };
        Node::start(ports, settings, Arc::new(SharedConfig::new(config)))
    }
}

/// Puts the components into a store and gives a runtime over them, as in the binary.
///
/// # Panics
/// The store or the runtime refuses.
pub async fn equip(store: Arc<dyn Store>, dir: &Path, cache: &Path) -> Arc<Runtime> {
    let runtime = Arc::new(runtime(
        RuntimeConfig {
            cache_dir: cache.to_owned(),
            workspaces_dir: dir.join("workspaces"),
            limits: Limits::default(),
            instances: INSTANCES,
        },
        Arc::new(Kept(Arc::clone(&store))),
    ));
    for (kind, alias, bytes) in [
        (Kind::Runner, "loop", guests::LOOP),
        (Kind::Runner, "bench", guests::BENCH_RUNNER),
        (Kind::Runner, "planner", guests::PLANNER),
        (Kind::Runner, "hostile", guests::HOSTILE_RUNNER),
        (Kind::Provider, "openai-chat", guests::OPENAI_CHAT),
        (Kind::Provider, "parrot", guests::PARROT),
        (Kind::Toolbox, "bench", guests::BENCH_TOOLBOX),
    ] {
        let info = runtime.install(bytes).await.expect("a component");
        let pointed = store.alias_put(kind, alias, Some(&info.digest), None).await;
        pointed.expect("an alias");
    }
    runtime
}

/// Starts a node on a Postgres database, with connections, tails and a runtime of its own, on the current
/// tokio runtime.
///
/// # Panics
/// The store or the runtime refuses.
pub async fn node_on(
    url: &str,
    settings: Settings,
    dir: &Path,
    cache: &Path,
) -> (Arc<Node>, Arc<PostgresStore>) {
    let identity = Identity::default();
    let options = postgres::Options {
        owner: identity.owner,
        ..postgres::Options::default()
    };
    let store = PostgresStore::open(url, options).await;
    let store = Arc::new(store.expect("a database"));
    let ports = Ports {
        store: Arc::clone(&store) as _,
        plugins: equip(Arc::clone(&store) as _, dir, cache).await,
        clock: Arc::new(SystemClock::default()),
    };
    let config = Arc::new(SharedConfig::new(config()));
    (Node::start_as(identity, ports, settings, config), store)
}

/// A node that runs, and its store.
pub struct World {
    pub node: Arc<Node>,
    pub store: Arc<SqliteStore>,
    pub runtime: Arc<Runtime>,
}

impl World {
    /// A node with default settings on a [`Ground`].
    ///
    /// # Panics
    /// The store or the runtime refuses.
    pub async fn start(dir: &Path, cache: &Path) -> Self {
        let ground = Ground::open(dir, cache).await;
        Self {
            node: ground.node(Settings::default()),
            store: ground.store,
            runtime: ground.runtime,
        }
    }

    /// A session that has run nothing.
    ///
    /// # Panics
    /// The store refuses.
    pub async fn session(&self, turn: Turn) -> SessionId {
        self.session_of(turn.agent()).await
    }

    /// The same, of an agent by its name.
    ///
    /// # Panics
    /// The store refuses.
    pub async fn session_of(&self, agent: &str) -> SessionId {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: agent.to_owned(),
            ..SessionCreated::default()
        };
        let existed = self.node.create(session, created).await;
        assert!(!existed.expect("a session"), "its id is new");
        session
    }

    /// Stops the node and closes the database.
    pub async fn stop(self) {
        self.node.shutdown().await;
        self.store.close().await;
    }
}

/// A runtime over a source of components, with no way out and no media.
///
/// # Panics
/// The engine cannot be made here.
#[must_use]
pub fn runtime(config: RuntimeConfig, source: Arc<dyn ComponentSource>) -> Runtime {
    let egress = Egress::new(
        Arc::new(SystemResolver),
        Arc::new(NoMedia),
        Redactor::new(),
        EgressLimits::default(),
    );
    Runtime::new(config, source, Arc::new(egress.expect("a client"))).expect("an engine")
}

/// The agents of all turns.
#[must_use]
pub fn config() -> Config {
    let agent = |turn: Turn| Agent {
        runner: turn.runner().to_owned(),
        steps: turn.allowance(),
        toolboxes: vec![Toolbox {
            alias: "bench".to_owned(),
            options: None,
        }],
        ..Agent::default()
    };
    let parrot = Provider {
        plugin: "parrot".to_owned(),
        base_url: None,
        options: None,
        models: Vec::new(),
    };
    let brief = Agent {
        runner: "bench".to_owned(),
        steps: 1,
        ..Agent::default()
    };
    let spinner = Agent {
        runner: "hostile".to_owned(),
        ..Agent::default()
    };
    let planner = Agent {
        runner: "planner".to_owned(),
        ..Agent::default()
    };
    Config {
        agents: Turn::ALL
            .into_iter()
            .map(|turn| (turn.agent().to_owned(), agent(turn)))
            .chain([
                (BRIEF.to_owned(), brief),
                (SPINNER.to_owned(), spinner),
                (PLANNER.to_owned(), planner),
            ])
            .collect(),
        providers: BTreeMap::from([("parrot".to_owned(), parrot)]),
    }
}

/// Components and names as the store keeps them.
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

struct NoMedia;

#[async_trait]
impl MediaSource for NoMedia {
    async fn get(&self, _: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(None)
    }
}
