//! What a runner is shown and what it decides follow from what is recorded, wherever that is kept: every
//! view and every decision of a recorded session is the same from a file, from a database, and as they
//! were when it ran.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, SessionCreated};
use mainstay_core::history::Order;
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Range;
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::{Kind, Plugins as _, View};
use mainstay_core::port::Store;
use mainstay_core::rehearse::Rehearsal;
use mainstay_store::moving::move_all;
use mainstay_store::{Options, PostgresStore, SqliteStore, postgres};
use mainstay_test_simulation::decisions::{Decided, Seen, ask, done, tools};
use mainstay_test_simulation::plugins::{call, results, say};
use mainstay_test_simulation::world::prompt;
use mainstay_test_support::ManualClock;

const DEADLINE: Duration = Duration::from_secs(120);
/// Decisions of a turn.
const TURN: u32 = 5;

/// A runner that asks models and tools, and one that asks the model until it stops.
fn plugins() -> Decided {
    let answer = |request: &_, _| match results(request) {
        n if n % 3 == 2 => say("that is all"),
        n => call(&[
            (&format!("c{n}"), "look", "{}"),
            (&format!("d{n}"), "put", "{}"),
        ]),
    };
    Decided::new(answer).agent("mixed", |n, seen: &Seen| {
        match n % TURN {
            0 => ask(seen).say("let me see"),
            1 => tools(&[("own", "look")]),
            2 => ask(seen),
            3 => tools(&[("one", "put"), ("two", "look")]),
            _ => done().say("done"),
        }
        .into()
    })
}

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
    let agents = ["plain", "mixed"].map(|name| (name.to_owned(), agent.clone()));
    Config {
        agents: agents.into(),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    }
}

/// Prompts each session and waits until it has nothing left to do. Gives what the runners were shown.
async fn turn(
    store: Arc<dyn Store>,
    clock: &Arc<ManualClock>,
    sessions: &[(SessionId, &str, InputId)],
) -> Vec<View> {
    let plugins = Arc::new(plugins());
    let ports = Ports {
        store: Arc::clone(&store),
        plugins: Arc::clone(&plugins) as _,
        clock: clock.clone(),
    };
    let settings = Settings {
        lease: DEADLINE,
        flush_every: DEADLINE,
        decide_within: DEADLINE,
        ..Settings::default()
    };
    let node = Node::start(ports, settings, Arc::new(SharedConfig::new(config())));
    for (session, agent, input) in sessions {
        if store.tail(*session).await.unwrap().is_none() {
            let created = SessionCreated {
                agent: (*agent).into(),
                ..SessionCreated::default()
            };
            node.create(*session, created).await.unwrap();
        }
        let text = format!("do it, {agent} \0 \u{1f980} '\"\\");
        node.admit(*session, *input, Delivery::Queue, prompt(&text))
            .await
            .unwrap();
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let tail = store.tail(*session).await.unwrap().unwrap();
            if tail.claim.is_none() && !tail.is_runnable() {
                break;
            }
            let late = tokio::time::Instant::now() > deadline;
            assert!(!late, "{agent} never became idle: {:?}", tail.session);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    for (session, agent, _) in sessions {
        let ended = store.events(*session, 0, 1000).await.unwrap().unwrap().0;
        let failed: Vec<_> = ended
            .iter()
            .filter(|event| event.data.to_string().contains("failed"))
            .collect();
        assert!(failed.is_empty(), "{agent}: {failed:#?}");
    }
    node.shutdown().await;
    plugins.views.lock().unwrap().clone()
}

/// Everything that a runner can learn of a view.
async fn bytes(view: &View) -> String {
    let mut text = format!(
        "{:?}",
        (
            (
                view.session,
                view.now,
                &view.trigger,
                view.fresh,
                view.context
            ),
            (
                &view.open_calls,
                &view.agent,
                &view.tools,
                &view.budget,
                &view.state
            ),
        )
    );
    let through = view.context.through;
    for after in [0, view.context.after, view.fresh.after, through / 2] {
        let range = Range { after, through };
        let size = view.history.measure(range).await.unwrap();
        write!(text, "\n{range:?} {size:?}").unwrap();
        for (order, limit) in [(Order::OldestFirst, 1000), (Order::NewestFirst, 3)] {
            let (items, more) = view.history.read(range, order, limit).await.unwrap();
            write!(text, "\n{order:?} {more} {items:?}").unwrap();
        }
    }
    text
}

/// The views and decisions, each asked for twice.
async fn asked(views: &[View]) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for view in views {
        let shown = bytes(view).await;
        assert_eq!(bytes(view).await, shown);
        let mut decisions = Vec::new();
        for _ in 0..2 {
            let decided = plugins().decide("runner:scripted", view.clone()).await;
            decisions.push(format!("{:?}", decided.unwrap()));
        }
        assert_eq!(decisions[0], decisions[1]);
        all.push((shown, decisions.swap_remove(0)));
    }
    all
}

/// What a runner is shown that is asked again for each decision that is recorded. It decides the same.
async fn rehearsed(store: Arc<dyn Store>, session: SessionId) -> Vec<View> {
    let plugins = Arc::new(plugins());
    let runner = plugins.resolve(Kind::Runner, "scripted").await.unwrap();
    let rehearsal = Rehearsal {
        plugins: Arc::clone(&plugins) as _,
        config: Arc::new(config()),
        store,
        runner: runner.expect("there is one"),
        own: false,
    };
    let report = rehearsal.session(session).await.unwrap();
    let different: Vec<_> = report.different().collect();
    assert!(different.is_empty(), "{different:#?}");
    plugins.views.lock().unwrap().clone()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_8_the_same_session_is_shown_alike_and_decided_alike_from_a_file_and_a_database() {
    let Some(server) = mainstay_test_support::postgres::server() else {
        return;
    };
    let clock = Arc::new(ManualClock::default());
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        clock: clock.clone(),
        ..Options::default()
    };
    let file = SqliteStore::open(folder.path().join("m.db"), options).await;
    let file = Arc::new(file.unwrap());
    let options = postgres::Options {
        clock: Some(clock.clone()),
        application: "mainstay move test".into(),
        ..postgres::Options::default()
    };
    let database = PostgresStore::open(&server.database(), options).await;
    let database = Arc::new(database.unwrap());

    let named = |agent| (SessionId::new(), agent, InputId::new());
    let first = [named("plain"), named("mixed")];
    let mut live = turn(file.clone(), &clock, &first).await;
    clock.advance(1000);
    let second = first.map(|(session, agent, _)| (session, agent, InputId::new()));
    live.extend(turn(file.clone(), &clock, &second).await);
    let moved = move_all(&*file, Some(&*database), false, |_| {}).await;
    assert_eq!(moved.unwrap().new, 2);

    let mut decided = BTreeSet::new();
    for (session, agent, _) in first {
        let then: Vec<View> = live
            .iter()
            .filter(|view| view.session == session)
            .cloned()
            .collect();
        assert!(then.len() >= 4, "{agent}: {} views", then.len());
        let then = asked(&then).await;
        for store in [file.clone() as Arc<dyn Store>, database.clone()] {
            let now = asked(&rehearsed(store, session).await).await;
            assert_eq!(now.len(), then.len(), "{agent}");
            for (n, (now, then)) in now.iter().zip(&then).enumerate() {
                assert_eq!(now, then, "{agent}: decision {n}");
            }
        }
        decided.extend(then.into_iter().map(|(_, decided)| decided));
        // The rows that a node's runner reads.
        let head = file.tail(session).await.unwrap().unwrap().session.head;
        for after in 0..head {
            let range = Range {
                after,
                through: head,
            };
            for (order, limit) in [(Order::OldestFirst, 1000), (Order::NewestFirst, 3)] {
                let here = file.items(session, range, order, limit).await.unwrap();
                let there = database.items(session, range, order, limit).await.unwrap();
                assert_eq!(here, there);
            }
            let here = file.measure(session, range).await.unwrap();
            assert_eq!(here, database.measure(session, range).await.unwrap());
        }
    }
    assert!(
        decided.len() > 6,
        "the decisions are not all one: {decided:#?}"
    );
    file.close().await;
    database.close().await;
}
