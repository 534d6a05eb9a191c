//! Nodes whose clocks are hours apart share a database: neither takes for dead what is alive, and what
//! is dead is gone on with once its lease has run out by the database's clock, not before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, SessionCreated};
use mainstay_core::id::{InputId, Millis, OwnerId, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::port::{Clock, Dump, Store, SystemClock};
use mainstay_store::{PostgresStore, postgres};
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{Scripted, call, results, say};
use mainstay_test_simulation::world::prompt;

const DEADLINE: Duration = Duration::from_secs(120);
const LEASE: Duration = Duration::from_secs(2);
const APART: i64 = 3 * 3600 * 1000;
const SESSIONS: usize = 6;
/// Calls of a turn, and how long each takes: several leases together.
const CALLS: usize = 20;
const CALL_MS: u64 = 400;

/// The machine's clock, set wrong.
struct Wrong {
    real: SystemClock,
    by: i64,
}

impl Clock for Wrong {
    fn wall(&self) -> Millis {
        self.real.wall().saturating_add_signed(self.by)
    }

    fn monotonic(&self) -> Millis {
        self.real.monotonic()
    }
}

struct Process {
    store: Arc<PostgresStore>,
    node: Arc<Node>,
}

impl Process {
    async fn start(url: &str, by: i64) -> Self {
        let options = postgres::Options::default();
        let store = Arc::new(PostgresStore::open(url, options).await.unwrap());
        let plugins = Scripted::new(|request, _| match results(request) {
            CALLS => say("all of it is done"),
            n => call(&[(&format!("c{n}"), "look", "{}")]),
        });
        plugins.call_ms.store(CALL_MS, Ordering::SeqCst);
        let ports = Ports {
            store: Arc::clone(&store) as _,
            plugins: Arc::new(plugins),
            clock: Arc::new(Wrong {
                real: SystemClock::default(),
                by,
            }),
        };
        let settings = Settings {
            lease: LEASE,
            renew_every: LEASE / 4,
            lease_margin: LEASE / 8,
            poll_every: Duration::from_millis(50),
            ..Settings::default()
        };
        let agent = Agent {
            runner: "scripted".into(),
            toolboxes: vec![Toolbox {
                alias: "tools".into(),
                options: None,
            }],
            ..Agent::default()
        };
        let provider = Provider {
            plugin: "scripted".into(),
            base_url: None,
            options: None,
            models: Vec::new(),
        };
        let config = Config {
            agents: BTreeMap::from([("default".into(), agent)]),
            providers: BTreeMap::from([("parrot".into(), provider)]),
        };
        let config = Arc::new(SharedConfig::new(config));
        let node = Node::start(ports, settings, config);
        Self { store, node }
    }

    async fn begin(&self) -> SessionId {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: "default".into(),
            ..SessionCreated::default()
        };
        self.node.create(session, created).await.unwrap();
        let admit = self
            .node
            .admit(session, InputId::new(), Delivery::Queue, prompt("work"));
        admit.await.unwrap();
        session
    }
}

/// Looks at a session until what is seen fits.
async fn until(store: &PostgresStore, session: SessionId, fits: impl Fn(&Dump) -> bool) -> Dump {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let dump = store.dump(session).await.unwrap();
        if fits(&dump) {
            return dump;
        }
        let late = tokio::time::Instant::now() > deadline;
        assert!(!late, "it never comes: {:?}", dump.claim);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn count(dump: &Dump, kind: &str) -> usize {
    dump.events
        .iter()
        .filter(|event| event.kind == kind)
        .count()
}

async fn apart(first: i64, second: i64) {
    let Some(server) = mainstay_test_support::postgres::server() else {
        return;
    };
    let url = server.database();
    // A process of its own, as far as threads and connections go: it ends without a word.
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap();
    let place = url.clone();
    let (dies, sessions) = threads
        .spawn(async move {
            let dies = Process::start(&place, first).await;
            let mut sessions = Vec::new();
            for _ in 0..SESSIONS {
                sessions.push(dies.begin().await);
            }
            (dies, sessions)
        })
        .await
        .unwrap();
    let lives = Process::start(&url, second).await;
    let store = &lives.store;
    let mut first_owners = BTreeMap::new();
    for session in &sessions {
        // More than one lease long.
        let calls = LEASE.as_millis() as usize * 3 / 2 / CALL_MS as usize;
        let dump = until(store, *session, |dump| count(dump, "call.settled") >= calls).await;
        assert_eq!(dump.executions.len(), 1, "nobody took it from the living");
        first_owners.insert(*session, dump.executions[0].owner);
    }
    let dead = dies.node.owner();
    drop(dies);
    threads.shutdown_background();

    let (mut waiting, mut gone_on) = (BTreeMap::new(), 0);
    for (session, owner) in &first_owners {
        let claim = store.tail(*session).await.unwrap().unwrap().claim.clone();
        if let Some(claim) = claim.filter(|claim| claim.owner == dead && *owner == dead) {
            waiting.insert(*session, claim.expires_at);
        }
    }
    assert!(
        !waiting.is_empty(),
        "the dead one ran something: {first_owners:?}"
    );
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !waiting.is_empty() {
        for (session, expires_at) in waiting.clone() {
            let claim = store.tail(session).await.unwrap().unwrap().claim.clone();
            if claim.is_none_or(|claim| claim.owner != dead) {
                let now = store.now().await.unwrap();
                assert!(
                    now > expires_at,
                    "{session} was taken {} ms early",
                    expires_at - now
                );
                waiting.remove(&session);
                gone_on += 1;
            }
        }
        let late = tokio::time::Instant::now() > deadline;
        assert!(!late, "{waiting:?} are left to the dead");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(gone_on > 0);
    for session in &sessions {
        let done = |dump: &Dump| count(dump, "turn.ended") == 1 && dump.claim.is_none();
        let dump = until(store, *session, done).await;
        invariant::check(&dump);
        assert_eq!(count(&dump, "call.settled"), CALLS);
        let owners: BTreeSet<OwnerId> = dump.executions.iter().map(|one| one.owner).collect();
        let own = BTreeSet::from([first_owners[session], lives.node.owner()]);
        assert_eq!(
            owners, own,
            "each was run by who had it, and then by who lives"
        );
    }
    lives.node.shutdown().await;
    lives.store.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_10_what_lives_hours_ahead_takes_nothing_early() {
    apart(-APART, APART).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_10_what_lives_hours_behind_waits_no_longer_than_a_lease() {
    apart(APART, -APART).await;
}
