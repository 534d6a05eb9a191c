//! How many transactions a turn costs on Postgres: no more than on SQLite. Nothing here depends on how
//! fast the machine is: what a slow decision or a long answer adds is kept out by generous settings.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, SessionCreated};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::LocalEvent;
use mainstay_core::port::{Store, SystemClock};
use mainstay_store::{PostgresStore, postgres};
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{Scripted, call, results, say};
use mainstay_test_simulation::world::prompt;

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

/// What a turn of [`STEPS`] steps took, each with one call of a tool.
async fn turn(tool: &'static str, prepared: bool) -> Option<postgres::Stats> {
    let server = mainstay_test_support::postgres::server()?;
    let options = postgres::Options {
        prepared,
        ..postgres::Options::default()
    };
    let store = PostgresStore::open(&server.database(), options).await;
    let store = Arc::new(store.unwrap());
    let plugins = Arc::new(Scripted::new(move |request, _| {
        answer(results(request), tool)
    }));
    let ports = Ports {
        store: Arc::clone(&store) as _,
        plugins: Arc::clone(&plugins) as _,
        clock: Arc::new(SystemClock::default()),
    };
    let settings = Settings {
        lease: DEADLINE,
        flush_every: DEADLINE,
        decide_within: DEADLINE,
        ..Settings::default()
    };
    let node = Node::start(ports, settings, Arc::new(SharedConfig::new(config())));
    let session = SessionId::new();
    let created = SessionCreated {
        agent: "default".into(),
        ..SessionCreated::default()
    };
    node.create(session, created).await.unwrap();
    let before = store.stats();
    let content = prompt("work");
    node.admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
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
    let after = store.stats();
    let dump = store.dump(session).await.unwrap();
    invariant::check(&dump);
    let settled = dump
        .events
        .iter()
        .filter(|event| event.kind == "call.settled");
    assert_eq!(settled.count(), STEPS);
    assert_eq!(plugins.count(tool), STEPS);
    Some(postgres::Stats {
        commits: after.commits - before.commits,
        writes: after.writes - before.writes,
        loads: after.loads - before.loads,
        stale: after.stale - before.stale,
        ..after
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_17_a_turn_of_fifty_pure_steps_takes_at_most_55_transactions() {
    let Some(spent) = turn("look", true).await else {
        return;
    };
    assert!(spent.writes + spent.loads <= 55, "{spent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_17_a_turn_of_fifty_once_steps_takes_at_most_105_transactions() {
    for prepared in [true, false] {
        let Some(spent) = turn("act", prepared).await else {
            return;
        };
        assert!(spent.writes + spent.loads <= 105, "{spent:?}");
    }
}
