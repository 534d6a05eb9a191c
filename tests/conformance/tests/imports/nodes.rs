//! The same through whole nodes, from store to store.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{End, Refused};
use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, InputContent, SessionCreated};
use mainstay_core::export::{Imported, Importer, export};
use mainstay_core::history::{Order, Signal};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::{Action, Condition, Wait};
use mainstay_core::port::{Dump, Store, StoreError, SystemClock};
use mainstay_core::tail::InputStatus;
use mainstay_test_conformance::{Harness, check_invariants};
use mainstay_test_simulation::plugins::{Scripted, call, last_text, results, say};
use mainstay_test_support::{ManualClock, MemoryStore, build, rebuild};
use sqlx::{Connection as _, Row as _, SqliteConnection};

use super::eventful::{Run, admit, eventful, prompt};
use super::replays::nothing_to_do;
use super::{dump, file, rows};

/// A node on a store, with scripted plugins.
pub(super) fn node(store: Arc<dyn Store>, plugins: Arc<Scripted>) -> Arc<Node> {
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
    let settings = Settings {
        poll_every: Duration::from_millis(20),
        // Of a result only the beginning is shown; the whole is a blob.
        tool_output_shown: 4,
        ..Settings::default()
    };
    let ports = Ports {
        store,
        plugins,
        clock: Arc::new(SystemClock::default()),
    };
    Node::start(ports, settings, Arc::new(SharedConfig::new(config)))
}

pub(super) fn calls_then_echoes() -> Arc<Scripted> {
    Arc::new(Scripted::new(|request, n| match (n, results(request)) {
        (0, 0) => call(&[("c", "look", "{}"), ("d", "act", "{}")]),
        _ => say(&format!("to {}", last_text(request))),
    }))
}

async fn idle(node: &Node, session: SessionId) {
    let idle = tokio::time::timeout(Duration::from_secs(20), node.idle(session));
    idle.await.expect("it becomes idle").unwrap();
}

pub(super) async fn say_to(node: &Node, session: SessionId, text: &str) {
    let admitted = node
        .admit(session, InputId::new(), Delivery::Queue, prompt(text))
        .await;
    admitted.unwrap();
    idle(node, session).await;
}

pub(super) async fn begin(node: &Node) -> SessionId {
    let session = SessionId::new();
    let created = SessionCreated {
        agent: "default".into(),
        ..SessionCreated::default()
    };
    node.create(session, created).await.unwrap();
    session
}

pub(super) async fn lines(store: Arc<dyn Store>, session: SessionId, origin: &str) -> Vec<String> {
    export(store, session, origin).try_collect().await.unwrap()
}

pub(super) async fn import(node: &Arc<Node>, lines: &[String]) -> Imported {
    let mut importer = Importer::new(Arc::clone(node), true);
    for line in lines {
        importer.line(line).await.unwrap();
    }
    let imported = importer.finish().await.unwrap();
    assert_eq!(imported.refused, None);
    imported
}

#[tokio::test]
async fn edit_6_a_session_goes_from_file_to_memory_to_file() {
    let clock = || Arc::new(SystemClock::default());
    let (first, _, _dir) = file(clock()).await;
    let there = node(first.clone(), calls_then_echoes());
    let session = begin(&there).await;
    for text in ["a", "b", "c"] {
        say_to(&there, session, text).await;
    }
    let fourth = first.dump(session).await.unwrap().items.last().unwrap().seq;
    there.revert(session, fourth).await.unwrap();
    say_to(&there, session, "d").await;
    // One that was given up, one that is pending.
    let pending = InputId::new();
    there
        .admit(session, pending, Delivery::Queue, prompt("e"))
        .await
        .unwrap();
    let _ = there.cancel_input(session, pending).await;
    idle(&there, session).await;
    there.revert(session, fourth).await.unwrap();
    let wanted = first.dump(session).await.unwrap();
    let file_1 = lines(first.clone(), session, "first").await;

    let second: Arc<dyn Store> = Arc::new(MemoryStore::new(clock()));
    let middle = node(second.clone(), calls_then_echoes());
    import(&middle, &file_1).await;
    let file_2 = lines(second.clone(), session, "second").await;
    let (third, _, _dir_3) = file(clock()).await;
    let here = node(third.clone(), calls_then_echoes());
    let imported = import(&here, &file_2).await;
    assert_eq!(imported.blobs, 2);

    assert_eq!(
        file_1, file_2,
        "the copy in between is the first store's still"
    );
    assert_eq!(lines(third.clone(), session, "third").await, file_1);
    for store in [&second, &(third.clone() as Arc<dyn Store>)] {
        let dump = store.dump(session).await.unwrap();
        assert_eq!(rows(dump.clone()), rows(wanted.clone()));
        assert_eq!(rebuild(&dump.events).unwrap(), rows(dump));
        let all = Range {
            after: 0,
            through: Seq::MAX,
        };
        let shown = |store: Arc<dyn Store>| async move {
            store
                .items(session, all, Order::OldestFirst, 1000)
                .await
                .unwrap()
        };
        assert_eq!(shown(store.clone()).await, shown(first.clone()).await);
    }
    // Adopted, the copy goes on, and the revert that it brought becomes final.
    here.adopt(session).await.unwrap();
    say_to(&here, session, "f").await;
    let dump = third.dump(session).await.unwrap();
    check_invariants(&dump);
    assert_eq!(dump.inputs.last().unwrap().status, InputStatus::Promoted);
    assert_eq!(dump.session.unwrap().revert, None);
    assert_eq!(rows(first.dump(session).await.unwrap()), rows(wanted));
}

#[tokio::test]
async fn edit_2_4_forks_and_reverts_are_the_same_in_a_file_and_in_memory() {
    let clock = || Arc::new(SystemClock::default());
    let (in_file, _, _dir) = file(clock()).await;
    let in_memory: Arc<dyn Store> = Arc::new(MemoryStore::new(clock()));
    let mut histories = Vec::new();
    for store in [in_file as Arc<dyn Store>, in_memory] {
        let plugins = calls_then_echoes();
        let node = node(store.clone(), plugins.clone());
        let session = begin(&node).await;
        for text in ["a", "b", "c"] {
            say_to(&node, session, text).await;
        }
        let source = store.dump(session).await.unwrap();
        let fork = SessionId::new();
        let through = source.items[source.items.len() - 3].seq;
        node.fork(session, Some(through), fork).await.unwrap();
        assert_eq!(store.dump(session).await.unwrap(), source);
        node.revert(fork, 5).await.unwrap();
        node.clear_revert(fork).await.unwrap();
        say_to(&node, fork, "d").await;
        node.revert(session, through).await.unwrap();
        say_to(&node, session, "e").await;
        let mut history = Vec::new();
        for session in [session, fork] {
            let dump = store.dump(session).await.unwrap();
            check_invariants(&dump);
            assert_eq!(rebuild(&dump.events).unwrap(), dump);
            history.push(
                dump.items
                    .into_iter()
                    .map(|item| (item.seq, item.body))
                    .collect::<Vec<_>>(),
            );
        }
        let requests = plugins.requests.lock().unwrap().clone();
        let messages: Vec<_> = requests
            .into_iter()
            .map(|request| request.messages)
            .collect();
        histories.push((history, messages));
    }
    assert_eq!(histories[0], histories[1]);
}

/// Two sessions that run, and their fences: one with inputs pending and recovery records, and one beside
/// its wait's timer.
pub(super) async fn running(h: &Harness) -> [(SessionId, Fence); 2] {
    let busy = eventful(h).await;
    let (waits, fence) = h.turn().await;
    let until = vec![Condition::Time(build::AT * 2)];
    let wait = build::step_started(Action::Wait(Wait { until }));
    h.ok(build::append(waits, fence, [wait])).await;
    h.ok(build::end(waits, fence, End::Suspended)).await;
    h.prompt(waits, Delivery::Queue).await;
    let signal = InputContent::Signal(Signal {
        name: "x".into(),
        data: "{}".into(),
    });
    admit(h, waits, Delivery::Steer, signal).await;
    let waiting = Run::begin(h, waits).await;
    let tail = async |session| h.store.tail(session).await.unwrap().unwrap();
    assert!(tail(waits).await.session.wake_at().is_some());
    let claim = tail(busy).await.claim.clone().unwrap();
    let fence = Fence {
        execution: claim.execution,
        owner: claim.owner,
    };
    [(busy, fence), (waits, waiting.fence)]
}

/// Deletes a session that runs: its execution is lost, and readers find nothing.
pub(super) async fn delete(h: &Harness, session: SessionId, fence: Fence) {
    assert!(h.store.delete(session).await.unwrap());
    let lost = h.store.commit(build::append(session, fence, [])).await;
    assert!(
        matches!(lost, Err(StoreError::Refused(Refused::NotFound(_)))),
        "{lost:?}"
    );
    let renewed = h.store.renew(fence.owner, &[fence], 1000).await.unwrap();
    assert!(renewed.is_empty());
    assert!(h.store.tail(session).await.unwrap().is_none());
    assert!(h.store.events(session, 0, 1).await.unwrap().is_none());
    assert!(h.store.inputs(session, true).await.unwrap().is_empty());
    assert_eq!(dump(h, session).await, Dump::default());
}

/// Deletes sessions that run, `found` being the tables that name one.
pub(super) async fn no_row_remains(
    h: &Harness,
    mut found: impl AsyncFnMut(SessionId) -> BTreeSet<String>,
) {
    let sessions = running(h).await;
    let kept = h.session().await;
    let busy = found(sessions[0].0).await;
    assert!(busy.iter().eq(TABLES), "{busy:?}");
    for (session, fence) in sessions {
        delete(h, session, fence).await;
        assert_eq!(found(session).await, BTreeSet::new());
    }
    nothing_to_do(h).await;
    assert!(found(kept).await.iter().eq(["event", "session"]));
}

#[tokio::test]
async fn edit_7_no_row_of_a_deleted_session_remains_in_any_table() {
    let clock = Arc::new(ManualClock::default());
    let (store, path, dir) = file(clock.clone()).await;
    let h = Harness {
        store,
        clock,
        keep: Box::new(dir),
    };
    let found = async |session: SessionId| -> BTreeSet<String> {
        let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display()))
            .await
            .unwrap();
        let tables: Vec<String> =
            sqlx::query_scalar("SELECT name FROM sqlite_master WHERE type = 'table'")
                .fetch_all(&mut conn)
                .await
                .unwrap();
        let mut found = BTreeSet::new();
        for table in tables {
            let columns = sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA table_info({table})")))
                .fetch_all(&mut conn)
                .await
                .unwrap();
            let names: Vec<String> = columns.iter().map(|row| row.get("name")).collect();
            let any = names
                .iter()
                .map(|name| format!("instr(\"{name}\", ?1) > 0"));
            let any = any.collect::<Vec<_>>().join(" OR ");
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
                "SELECT count(*) FROM {table} WHERE {any}"
            )))
            .bind(session.to_string())
            .fetch_one(&mut conn)
            .await
            .unwrap();
            if count > 0 {
                found.insert(table);
            }
        }
        found
    };
    no_row_remains(&h, found).await;
}

/// The tables that have a row of a session that runs.
pub(super) const TABLES: [&str; 8] = [
    "call",
    "claim",
    "event",
    "execution",
    "input",
    "item",
    "session",
    "step",
];
