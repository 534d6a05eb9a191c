//! How many transactions a turn costs on Postgres: no more than on SQLite. Nothing here depends on how
//! fast the machine is: what a slow decision or a long answer adds is kept out by generous settings.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, SessionCreated};
use mainstay_core::id::{InputId, OwnerId, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::nodes::Identity;
use mainstay_core::plugin::LocalEvent;
use mainstay_core::port::{Clock as _, Dump, Store, SystemClock};
use mainstay_store::{PostgresStore, postgres};
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{Scripted, call, results, say};
use mainstay_test_simulation::world::prompt;
use mainstay_test_support::build;

const STEPS: usize = 50;
const DEADLINE: Duration = Duration::from_secs(240);

fn config() -> Config {
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
    Config {
        agents: BTreeMap::from([("default".into(), agent)]),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    }
}

fn answer(done: usize, tool: &str) -> Vec<LocalEvent> {
    if done == STEPS {
        return say("all of it is done");
    }
    call(&[(&format!("c{done}"), tool, "{}")])
}

/// A node on this store, whose model makes one call of `tool` per step, and says so after [`STEPS`].
fn node(
    store: &Arc<PostgresStore>,
    tool: &'static str,
    poll_every: Duration,
) -> (Arc<Node>, Arc<Scripted>) {
    let plugins = Arc::new(Scripted::new(move |request, _| {
        answer(results(request), tool)
    }));
    let ports = Ports {
        store: Arc::clone(store) as _,
        plugins: Arc::clone(&plugins) as _,
        clock: Arc::new(SystemClock::default()),
    };
    let settings = Settings {
        lease: DEADLINE,
        renew_every: DEADLINE / 3,
        poll_every,
        flush_every: DEADLINE,
        decide_within: DEADLINE,
        ..Settings::default()
    };
    let config = Arc::new(SharedConfig::new(config()));
    (Node::start(ports, settings, config), plugins)
}

async fn create(node: &Node) -> SessionId {
    let session = SessionId::new();
    let created = SessionCreated {
        agent: "default".into(),
        ..SessionCreated::default()
    };
    node.create(session, created).await.unwrap();
    session
}

async fn say_work(node: &Node, session: SessionId) {
    let content = prompt("work");
    node.admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
}

/// Waits until the session has nothing left to do, and checks its rows.
async fn idle(store: &PostgresStore, session: SessionId) -> Dump {
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        let tail = store.tail(session).await.unwrap().unwrap();
        if tail.claim.is_none() && !tail.is_runnable() {
            break;
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "the session never became idle: {:?}",
            tail.claim
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let dump = store.dump(session).await.unwrap();
    invariant::check(&dump);
    dump
}

fn count(dump: &Dump, kind: &str) -> usize {
    let events = dump.events.iter();
    events.filter(|event| event.kind == kind).count()
}

/// What a turn of [`STEPS`] steps took, each with one call of a tool. Whoever looks on has connections of
/// its own, and the node neither looks for other work meanwhile nor tells of this.
async fn turn(tool: &'static str, prepared: bool) -> Option<postgres::Stats> {
    let server = mainstay_test_support::postgres::server()?;
    let options = postgres::Options {
        prepared,
        notify_every: None,
        ..postgres::Options::default()
    };
    let url = server.database();
    let store = PostgresStore::open(&url, options.clone()).await;
    let store = Arc::new(store.unwrap());
    let onlooker = PostgresStore::open(&url, options).await.unwrap();
    let (node, plugins) = node(&store, tool, DEADLINE);
    let session = create(&node).await;
    let before = store.stats();
    say_work(&node, session).await;
    let dump = idle(&onlooker, session).await;
    let after = store.stats();
    assert_eq!(count(&dump, "call.settled"), STEPS);
    assert_eq!(plugins.count(tool), STEPS);
    Some(postgres::Stats {
        commits: after.commits - before.commits,
        writes: after.writes - before.writes,
        loads: after.loads - before.loads,
        stale: after.stale - before.stale,
        statements: after.statements - before.statements,
        ..after
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_17_a_turn_of_fifty_pure_steps_takes_at_most_55_transactions() {
    let Some(spent) = turn("look", true).await else {
        return;
    };
    assert!(spent.writes + spent.loads <= 55, "{spent:?}");
    // The runner, the check of its transcript and the request read the history in each step.
    assert!(spent.statements <= spent.writes + 8, "{spent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_17_a_turn_of_fifty_once_steps_takes_at_most_105_transactions() {
    for prepared in [true, false] {
        let Some(spent) = turn("act", prepared).await else {
            return;
        };
        assert!(spent.writes + spent.loads <= 105, "{spent:?}");
        assert!(spent.statements <= spent.writes + 8, "{spent:?}");
    }
}

/// Nodes that share a database and tell each other nothing but by it run each prompt once, wherever it
/// comes in.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_8_nodes_share_the_work_without_notifications() {
    let Some(server) = mainstay_test_support::postgres::server() else {
        return;
    };
    let url = server.database();
    let mut nodes = Vec::new();
    for _ in 0..3 {
        let options = postgres::Options {
            notify_every: None,
            ..postgres::Options::default()
        };
        let store = Arc::new(PostgresStore::open(&url, options).await.unwrap());
        let (node, plugins) = node(&store, "act", Settings::default().poll_every);
        nodes.push((store, node, plugins));
    }
    let mut sessions = Vec::new();
    for n in 0..4 {
        let session = create(&nodes[n % 3].1).await;
        for (_, node, _) in &nodes {
            say_work(node, session).await;
        }
        sessions.push(session);
    }
    for session in &sessions {
        let dump = idle(&nodes[0].0, *session).await;
        assert_eq!(count(&dump, "input.promoted"), 3);
        assert_eq!(count(&dump, "turn.ended"), count(&dump, "turn.started"));
        assert_eq!(count(&dump, "recovery.recorded"), 0);
        // The first turn's calls; those after it are told by its results that all is done.
        assert_eq!(count(&dump, "call.settled"), STEPS);
    }
    let calls: usize = nodes.iter().map(|(.., plugins)| plugins.count("act")).sum();
    assert_eq!(calls, STEPS * sessions.len());
}

/// A node that tells of itself under the name that its store scans by, and whose model says one thing.
async fn sayer(url: &str) -> Arc<Node> {
    let identity = Identity::default();
    let options = postgres::Options {
        owner: identity.owner,
        ..postgres::Options::default()
    };
    let ports = Ports {
        store: Arc::new(PostgresStore::open(url, options).await.unwrap()),
        plugins: Arc::new(Scripted::new(|_, _| say("done"))),
        clock: Arc::new(SystemClock::default()),
    };
    let settings = Settings {
        resume_concurrency: 64,
        ..Settings::default()
    };
    let config = Arc::new(SharedConfig::new(config()));
    Node::start_as(identity, ports, settings, config)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_2_neither_of_two_nodes_takes_all_of_a_hundred_orphans() {
    const ORPHANS: usize = 100;
    let Some(server) = mainstay_test_support::postgres::server() else {
        return;
    };
    let url = server.database();
    let store = PostgresStore::open(&url, postgres::Options::default()).await;
    let store = store.unwrap();
    // All of them run at a process that is gone, and whose leases end at the same instant.
    let dead = OwnerId::new();
    let mut fences = HashMap::new();
    for _ in 0..ORPHANS {
        let session = SessionId::new();
        let fence = Fence {
            owner: dead,
            ..build::fence()
        };
        let created = SessionCreated {
            agent: "default".into(),
            ..SessionCreated::default()
        };
        let mut claim = build::claim(session, fence);
        if let Write::Claim { lease_ms, .. } = &mut claim.write {
            *lease_ms = DEADLINE.as_millis() as u64;
        }
        for commit in [
            build::commit(session, Write::Create(created)),
            build::admit(session, InputId::new(), Delivery::Queue, "go"),
            claim,
        ] {
            // Lately, or it would ask before it goes on.
            let at = SystemClock::default().wall();
            store.commit(Commit { at, ..commit }).await.unwrap();
        }
        fences.insert(session, fence);
    }
    let nodes = [sayer(&url).await, sayer(&url).await];
    let rows = async {
        while store.nodes().await.unwrap().0.len() < nodes.len() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let rows = tokio::time::timeout(DEADLINE, rows).await;
    rows.expect("both tell of themselves");
    let all: Vec<Fence> = fences.values().copied().collect();
    assert_eq!(store.renew(dead, &all, 0).await.unwrap().len(), ORPHANS);

    let mut ran: HashMap<OwnerId, usize> = HashMap::new();
    for session in fences.keys() {
        let dump = idle(&store, *session).await;
        let [first, then] = &dump.executions[..] else {
            panic!("run once again: {:?}", dump.executions);
        };
        assert_eq!(first.owner, dead);
        *ran.entry(then.owner).or_default() += 1;
    }
    for node in &nodes {
        let own = ran.get(&node.owner()).copied().unwrap_or_default();
        assert!(own >= ORPHANS / 5, "{ran:?}");
    }
}
