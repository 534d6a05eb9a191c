//! How many commits and fsyncs a turn costs on SQLite, and that sharing them costs no session its
//! wholeness. Nothing here depends on how fast the machine is: what a slow decision or a long answer
//! adds is kept out by generous settings.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::config::{Settings, SharedConfig};
use mainstay_core::event::{Delivery, EventBody, SessionCreated};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::LocalEvent;
use mainstay_core::port::{Dump, Store, SystemClock};
use mainstay_store::{Options, SqliteStore, Stats};
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{Scripted, call, results, say};
use mainstay_test_simulation::world::{config, prompt};

const STEPS: usize = 50;
const DEADLINE: Duration = Duration::from_secs(240);

struct Place {
    node: Arc<Node>,
    store: Arc<SqliteStore>,
    plugins: Arc<Scripted>,
    folder: tempfile::TempDir,
}

/// A node whose model makes one call of `tool` per step, and says so after [`STEPS`] of them.
async fn place(tool: &'static str) -> Place {
    let folder = tempfile::tempdir().unwrap();
    let store = SqliteStore::open(folder.path().join("store.db"), Options::default())
        .await
        .unwrap();
    let store = Arc::new(store);
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
    Place {
        node,
        store,
        plugins,
        folder,
    }
}

fn answer(done: usize, tool: &str) -> Vec<LocalEvent> {
    if done == STEPS {
        return say("all of it is done");
    }
    call(&[(&format!("c{done}"), tool, "{}")])
}

impl Place {
    async fn session(&self) -> SessionId {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: "default".into(),
            ..SessionCreated::default()
        };
        self.node.create(session, created).await.unwrap();
        session
    }

    async fn prompt(&self, session: SessionId) {
        let content = prompt("work");
        self.node
            .admit(session, InputId::new(), Delivery::Queue, content)
            .await
            .unwrap();
    }

    /// Waits until the session has nothing left to do, and checks its rows.
    async fn idle(&self, session: SessionId) -> Dump {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        loop {
            let tail = self.store.tail(session).await.unwrap().unwrap();
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
        let dump = self.store.dump(session).await.unwrap();
        invariant::check(&dump);
        dump
    }

    /// What the writer has done since `before`.
    fn since(&self, before: Stats) -> Stats {
        let now = self.store.stats();
        Stats {
            groups: now.groups - before.groups,
            commits: now.commits - before.commits,
            events: now.events - before.events,
            busy: now.busy - before.busy,
            checkpoints: now.checkpoints - before.checkpoints,
        }
    }
}

fn kinds(dump: &Dump) -> Vec<&str> {
    dump.events
        .iter()
        .map(|record| record.kind.as_str())
        .collect()
}

fn count(dump: &Dump, kind: &str) -> usize {
    kinds(dump).iter().filter(|known| **known == kind).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_14_a_lone_turn_of_fifty_pure_steps_takes_at_most_55_commits() {
    let place = place("look").await;
    let session = place.session().await;
    let before = place.store.stats();
    place.prompt(session).await;
    let dump = place.idle(session).await;
    let spent = place.since(before);

    assert_eq!(count(&dump, "call.settled"), STEPS);
    assert_eq!(
        count(&dump, "call.started"),
        0,
        "a pure call needs no write-ahead"
    );
    assert_eq!(count(&dump, "execution.succeeded"), 1);
    assert_eq!(place.plugins.count("look"), STEPS);
    assert!(spent.commits <= 55, "{spent:?}\n{:?}", kinds(&dump));
    assert!(spent.groups <= 55, "{spent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_15_a_lone_turn_of_fifty_once_steps_takes_at_most_105_commits() {
    let place = place("act").await;
    let beside = SqliteStore::open_read_only(place.folder.path().join("store.db"))
        .await
        .unwrap();
    let gate = place.plugins.hold("act");
    let session = place.session().await;
    let before = place.store.stats();
    place.prompt(session).await;

    for n in 0..STEPS {
        let deadline = tokio::time::Instant::now() + DEADLINE;
        while place.plugins.count("act") <= n {
            assert!(
                tokio::time::Instant::now() < deadline,
                "call {n} never came"
            );
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        // The tool has been called and waits: another reader of the file must find the start there.
        let dump = beside.dump(session).await.unwrap();
        let last = dump.events.last().unwrap().decode().unwrap();
        assert!(
            matches!(&last.body, EventBody::CallStarted { call, .. } if *call == format!("c{n}")),
            "call {n} runs, and the log ends with {last:?}"
        );
        gate.notify_one();
    }
    let dump = place.idle(session).await;
    let spent = place.since(before);

    assert_eq!(count(&dump, "call.started"), STEPS);
    assert_eq!(count(&dump, "call.settled"), STEPS);
    assert_eq!(place.plugins.count("act"), STEPS);
    assert!(spent.commits <= 105, "{spent:?}\n{:?}", kinds(&dump));
    assert!(spent.groups <= 105, "{spent:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_16_a_hundred_turns_share_their_fsyncs_and_stay_whole() {
    const SESSIONS: usize = 100;
    let place = place("look").await;
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        sessions.push(place.session().await);
    }
    let before = place.store.stats();
    futures::future::join_all(sessions.iter().map(|session| place.prompt(*session))).await;
    let mut logs = Vec::new();
    for session in &sessions {
        logs.push(place.idle(*session).await);
    }
    let spent = place.since(before);

    let steps: usize = logs.iter().map(|dump| count(dump, "step.started")).sum();
    assert_eq!(steps, SESSIONS * (STEPS + 1));
    assert!(
        spent.groups as usize * 2 <= steps,
        "{steps} steps took {} fsyncs: {spent:?}",
        spent.groups
    );
    // Each session's events are those of a session alone: nothing was torn, doubled or lost. Only a
    // short answer and its call may end in either order.
    let sorted = |dump| {
        let mut kinds = kinds(dump);
        kinds.sort_unstable();
        kinds.join(" ")
    };
    assert!(spent.commits <= 55 * SESSIONS as u64, "{spent:?}");
    for dump in &logs {
        assert_eq!(sorted(dump), sorted(&logs[0]));
    }
    let events: usize = logs.iter().map(|dump| dump.events.len() - 1).sum();
    assert_eq!(spent.events as usize, events);

    // And what is on disk says the same once the process is gone.
    let file = place.folder.path().join("store.db");
    place.node.shutdown().await;
    place.store.close().await;
    let again = SqliteStore::open_read_only(&file).await.unwrap();
    for (session, dump) in sessions.iter().zip(&logs) {
        assert_eq!(again.dump(*session).await.unwrap(), *dump);
    }
    let report = again.examine(false, |_, _| {}).await.unwrap();
    assert!(report.is_healthy(), "{report:?}");
    assert_eq!(report.sessions, SESSIONS as u64);
}
