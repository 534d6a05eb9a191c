//! Histories that are forked, reverted, deleted, exported and taken in again, through whole nodes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::{StreamExt as _, TryStreamExt as _};
use mainstay_core::commit::{Refused, Write};
use mainstay_core::event::{Delivery, InputContent, Record, SessionCreated};
use mainstay_core::export::{ImportError, Imported, Importer, export};
use mainstay_core::history::{Item, ItemBody};
use mainstay_core::id::{EventId, InputId, Seq, SessionId, digest};
use mainstay_core::live::Hint;
use mainstay_core::model::{Media, Part, ToolOutcome, text_of};
use mainstay_core::node::Node;
use mainstay_core::plugin::{Action, Compact, Decision, Summary, Trigger};
use mainstay_core::port::{Dump, StoreError};
use mainstay_core::replay::{Replay, ReplayError};
use mainstay_core::tail::{InputStatus, Scope, Status};
use mainstay_test_simulation::crash::Point;
use mainstay_test_simulation::plugins::{
    Scripted, call, last_text, plain_loop, results, said, say, sent,
};
use mainstay_test_simulation::world::{Process, World, lines, prompt};
use mainstay_test_support::rebuild;

/// A model that says to what it answers.
fn echo() -> Scripted {
    Scripted::new(|request, _| say(&format!("to {}", last_text(request))))
}

/// A model that calls `tool` once and then is done.
fn one_call(tool: &'static str) -> Scripted {
    Scripted::new(move |request, _| {
        if results(request) == 0 {
            call(&[("c", tool, "{}")])
        } else {
            say("done")
        }
    })
}

/// A session that was prompted with each of these, and is idle.
async fn chat(world: &World, process: &Process, prompts: &[&str]) -> SessionId {
    let session = process.session().await;
    for text in prompts {
        process.prompt(session, text).await;
        world.idle(session).await;
    }
    session
}

/// The messages of a history, in a word each.
fn texts(items: &[Item]) -> Vec<String> {
    let text = |item: &Item| match &item.body {
        ItemBody::User(parts) => Some(text_of(parts)),
        ItemBody::Assistant(answer) => Some(said(&answer.content)),
        ItemBody::ToolResult(result) => Some(format!("result {}", result.call)),
        ItemBody::Compaction(compaction) => Some(text_of(&compaction.summary)),
        _ => None,
    };
    items.iter().filter_map(text).collect()
}

/// What readers see of a history.
async fn shown(world: &World, session: SessionId) -> Vec<Item> {
    let all = mainstay_core::model::Range {
        after: 0,
        through: Seq::MAX,
    };
    let order = mainstay_core::history::Order::OldestFirst;
    world.store.items(session, all, order, 1000).await.unwrap()
}

fn last_request(world: &World) -> Vec<String> {
    sent(world.plugins.requests.lock().unwrap().last().unwrap())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> Refused {
    match answer {
        Err(StoreError::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

async fn exported(world: &World, session: SessionId) -> Vec<String> {
    let lines = export(Arc::clone(&world.store), session, "here");
    lines.try_collect().await.expect("the session is exported")
}

async fn feed(
    node: &Arc<Node>,
    strict: bool,
    lines: &[String],
) -> (Result<Imported, ImportError>, Imported) {
    let mut importer = Importer::new(Arc::clone(node), strict);
    for line in lines {
        if let Err(error) = importer.line(line).await {
            return (Err(error), importer.so_far().clone());
        }
    }
    let done = importer.finish().await;
    (done, importer.so_far().clone())
}

/// Takes an export in, whole.
async fn import(node: &Arc<Node>, lines: &[String]) -> Imported {
    let imported = feed(node, true, lines).await.0.expect("it is an export");
    assert_eq!(imported.refused, None);
    imported
}

/// The rows of a session, without what says where it lives.
fn rows(mut dump: Dump) -> Dump {
    if let Some(session) = &mut dump.session {
        session.origin = None;
    }
    dump.claim = None;
    dump
}

/// Waits for three whole looks of the recovery loop.
async fn three_looks(process: &Process) {
    let seen = process.link.scans();
    let looks = async {
        // The first may be one that had begun.
        while process.link.scans() < seen + 4 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looks)
        .await
        .expect("the recovery loop looks");
}

/// One process's life that may end at a commit; then what is to be done goes on in the next.
async fn dies_or<T>(process: &Process, doing: impl Future<Output = T>) -> Option<T> {
    let waited = tokio::time::timeout(Duration::from_secs(20), async {
        tokio::select! {
            biased;
            () = process.link.died() => None,
            done = doing => Some(done),
        }
    });
    waited.await.expect("it is done, or the process dies")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_1_twenty_creations_at_once_make_one_session() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = SessionId::new();
    let create = || {
        let node = Arc::clone(&process.node);
        async move {
            let created = SessionCreated {
                agent: "default".into(),
                title: Some("the one".into()),
                ..SessionCreated::default()
            };
            let existed = node.create(session, created).await.unwrap();
            (existed, node.tail(session).await.unwrap().session.clone())
        }
    };
    let all = futures::future::join_all((0..20).map(|_| tokio::spawn(create()))).await;
    let all: Vec<_> = all.into_iter().map(|done| done.unwrap()).collect();
    assert_eq!(all.iter().filter(|(existed, _)| !existed).count(), 1);
    assert!(all.iter().all(|(_, session)| *session == all[0].1));
    let again = create().await;
    assert_eq!(again, (true, all[0].1.clone()));
    assert_eq!(world.kinds(session).await, ["session.created"]);
    assert_eq!(world.store.sessions(None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn edit_2_a_revert_hides_and_its_undoing_shows_all_again() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    let before = world.dump(session).await;
    assert_eq!(texts(&before.items).len(), 6);
    let fourth = before.items[3].seq;

    let through = process.node.revert(session, fourth).await.unwrap();
    assert_eq!(through, before.items[2].seq);
    assert_eq!(texts(&shown(&world, session).await), ["a", "to a", "b"]);
    let reverted = world.dump(session).await;
    assert_eq!(reverted.events[..before.events.len()], before.events[..]);
    assert_eq!(reverted.items, before.items, "nothing is gone yet");
    assert_eq!(rebuild(&reverted.events).unwrap(), rows(reverted.clone()));
    // Deeper, and back at once.
    process
        .node
        .revert(session, before.items[1].seq)
        .await
        .unwrap();
    assert_eq!(texts(&shown(&world, session).await), ["a"]);

    process.node.clear_revert(session).await.unwrap();
    assert_eq!(shown(&world, session).await, before.items);
    let refused = refused(process.node.clear_revert(session).await);
    assert!(matches!(refused, Refused::NotReverted(_)), "{refused:?}");
    process.prompt(session, "d").await;
    world.idle(session).await;
    let wanted = ["a", "to a", "b", "to b", "c", "to c", "d"];
    assert_eq!(last_request(&world), wanted);
}

#[tokio::test]
async fn edit_2_what_was_reverted_is_in_no_request_and_stays_in_the_log() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    let before = world.dump(session).await;
    process
        .node
        .revert(session, before.items[3].seq)
        .await
        .unwrap();
    process.prompt(session, "d").await;
    let after = world.idle(session).await;
    assert_eq!(last_request(&world), ["a", "to a", "b", "d"]);
    assert_eq!(texts(&after.items), ["a", "to a", "b", "d", "to d"]);
    assert_eq!(after.events[..before.events.len()], before.events[..]);
    assert!(after.session.unwrap().head > before.session.unwrap().head);
    assert_eq!(rebuild(&after.events).unwrap().items, after.items);
    // It is final.
    let refused = refused(process.node.clear_revert(session).await);
    assert!(matches!(refused, Refused::NotReverted(_)), "{refused:?}");
}

#[tokio::test]
async fn edit_2_a_revert_to_the_beginning_leaves_nothing_and_behind_the_end_is_refused() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a"]).await;
    let before = world.dump(session).await;
    let last = before.items.last().unwrap().seq;
    let refused = refused(process.node.revert(session, last + 1).await);
    assert!(
        matches!(refused, Refused::NothingToRevert(_)),
        "{refused:?}"
    );
    assert_eq!(world.dump(session).await, before);

    assert_eq!(process.node.revert(session, 1).await.unwrap(), 0);
    assert!(shown(&world, session).await.is_empty());
    process.prompt(session, "b").await;
    world.idle(session).await;
    assert_eq!(last_request(&world), ["b"]);
}

#[tokio::test]
async fn edit_3_revert_and_admission_take_effect_in_one_commit() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    let other = process.session().await;
    let taken = process.prompt(other, "elsewhere").await;
    world.idle(other).await;
    let items = world.items(session).await;
    process.node.revert(session, items[3].seq).await.unwrap();
    let reverted = world.dump(session).await;

    let conflict = process
        .node
        .admit(session, taken, Delivery::Queue, prompt("x"))
        .await;
    assert!(matches!(refused(conflict), Refused::InputConflict { .. }));
    assert_eq!(world.dump(session).await, reverted);

    world.memory.take_log();
    let input = process.prompt(session, "d").await;
    let log = world.memory.log();
    let admission = &log[0];
    assert!(matches!(admission.commit.write, Write::Admit { .. }));
    let kinds: Vec<String> = admission
        .events
        .iter()
        .map(|event| event.body.kind())
        .collect();
    assert_eq!(kinds, ["revert.committed", "input.admitted"]);
    world.idle(session).await;
    // The first admission answers a retry, and reverts nothing again.
    let again = process
        .node
        .admit(session, input, Delivery::Queue, prompt("d"))
        .await
        .unwrap();
    assert_eq!(again.status, InputStatus::Promoted);
    assert_eq!(world.count(session, "revert.committed").await, 1);
}

#[tokio::test]
async fn edit_3_a_running_session_is_busy() {
    let world = World::new(one_call("act"));
    let gate = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("act") == 1)
        .await;
    let before = world.dump(session).await;
    let busy = refused(process.node.revert(session, before.items[0].seq).await);
    assert!(matches!(busy, Refused::Busy(_)), "{busy:?}");
    assert_eq!(world.dump(session).await, before);
    gate.notify_one();
    world.idle(session).await;
}

#[tokio::test]
async fn edit_3_what_was_pending_before_the_revert_enters_behind_it() {
    let world = World::new(one_call("act"));
    let _gate = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("act") == 1)
        .await;
    process.prompt(session, "later").await;
    process.node.interrupt(session).await.unwrap();
    world.plugins.let_go("act");
    let stopped = world.idle(session).await;
    // The prompt has lost its intent: it is pending, and nothing runs.
    process
        .node
        .revert(session, stopped.items[1].seq)
        .await
        .unwrap();
    process.node.wake(session, Scope::All).await.unwrap();
    let after = world.idle(session).await;
    assert_eq!(last_request(&world)[..2], ["go", "later"]);
    assert_eq!(texts(&shown(&world, session).await), texts(&after.items));
    assert_eq!(texts(&after.items)[..2], ["go", "later"]);
    assert!(after.session.unwrap().revert.is_none());
}

/// A runner that counts its decisions in its state, and compacts once it is told to.
fn counting(compact: Arc<AtomicBool>) -> Scripted {
    Scripted::with_runner(
        move |view| {
            let before = view.state.as_ref().map_or(0, |state| state.data[0]);
            let decision = plain_loop(view)?;
            let compacts = view.trigger == Trigger::TurnStarted;
            let action = if compacts && compact.swap(false, Ordering::SeqCst) {
                Action::Compact(Compact {
                    through: view.fresh.after,
                    summary: Summary::Text("summary".into()),
                })
            } else {
                decision.action
            };
            Ok(Decision {
                entries: Vec::new(),
                action,
                state: Some(vec![before + 1]),
            })
        },
        |request, _| say(&format!("to {}", last_text(request))),
    )
}

async fn state(world: &World, session: SessionId) -> u8 {
    let tail = world.tail(session).await;
    let mut kept = tail.session.states.iter();
    kept.next().map_or(0, |(_, state)| state.data[0])
}

#[tokio::test]
async fn edit_2_a_runners_state_goes_back_with_the_history() {
    let world = World::new(counting(Arc::default()));
    let process = world.start(None);
    // Two decisions a turn, the second after its last message.
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    assert_eq!(state(&world, session).await, 6);
    let items = world.items(session).await;
    process.node.revert(session, items[4].seq).await.unwrap();
    // A fork of what is shown has what is shown.
    let fork = SessionId::new();
    process.node.fork(session, None, fork).await.unwrap();
    assert_eq!(state(&world, fork).await, 4);
    process.prompt(session, "d").await;
    world.idle(session).await;
    assert_eq!(state(&world, session).await, 4 + 2);

    // To a place behind the revert that became final: the reverted states do not come back.
    let items = world.items(session).await;
    assert_eq!(texts(&items)[4..], ["d", "to d"]);
    process.node.revert(session, items[5].seq).await.unwrap();
    process.prompt(session, "e").await;
    world.idle(session).await;
    assert_eq!(state(&world, session).await, 4 + 2);
    assert_eq!(last_request(&world), ["a", "to a", "b", "to b", "d", "e"]);
}

#[tokio::test]
async fn edit_4_a_fork_keeps_state_and_context_when_it_is_reverted() {
    let compact = Arc::new(AtomicBool::new(false));
    let world = World::new(counting(Arc::clone(&compact)));
    let process = world.start(None);
    let source = chat(&world, &process, &["a", "b"]).await;
    let fork = SessionId::new();
    process.node.fork(source, None, fork).await.unwrap();
    assert_eq!(state(&world, fork).await, 4);

    compact.store(true, Ordering::SeqCst);
    process.prompt(fork, "c").await;
    let compacted = world.idle(fork).await;
    assert_eq!(last_request(&world), ["summary", "c"]);
    let at = |wanted: &str| {
        let place = texts(&compacted.items)
            .iter()
            .position(|text| text == wanted);
        compacted.items[place.expect(wanted)].seq
    };
    // Back to before the summary: all of the context is there again.
    process.node.revert(fork, at("summary")).await.unwrap();
    process.prompt(fork, "d").await;
    world.idle(fork).await;
    assert_eq!(last_request(&world), ["a", "to a", "b", "to b", "c", "d"]);
    // Back to the fork itself, whose state is in no step.
    process.node.revert(fork, at("c")).await.unwrap();
    process.prompt(fork, "e").await;
    world.idle(fork).await;
    assert_eq!(state(&world, fork).await, 4 + 2);
    assert_eq!(last_request(&world), ["a", "to a", "b", "to b", "e"]);

    // A fork of a compacted history has its short context.
    compact.store(true, Ordering::SeqCst);
    process.prompt(fork, "f").await;
    world.idle(fork).await;
    let second = SessionId::new();
    process.node.fork(fork, None, second).await.unwrap();
    process.prompt(second, "g").await;
    world.idle(second).await;
    assert_eq!(last_request(&world), ["summary", "f", "to f", "g"]);
}

#[tokio::test]
async fn edit_4_a_fork_has_the_messages_and_nothing_else() {
    let world = World::new(echo());
    let process = world.start(None);
    let source = chat(&world, &process, &["a", "b", "c"]).await;
    let before = world.dump(source).await;
    let fork = SessionId::new();
    let through = before.items[3].seq;
    assert_eq!(
        process
            .node
            .fork(source, Some(through), fork)
            .await
            .unwrap(),
        through
    );
    // The same again finds it.
    assert_eq!(
        process
            .node
            .fork(source, Some(through), fork)
            .await
            .unwrap(),
        through
    );
    let elsewhere = process
        .node
        .fork(source, Some(before.items[1].seq), fork)
        .await;
    assert!(matches!(refused(elsewhere), Refused::SessionConflict(_)));

    let dump = world.dump(fork).await;
    mainstay_test_simulation::invariant::check(&dump);
    assert_eq!(rebuild(&dump.events).unwrap(), dump);
    assert_eq!(texts(&dump.items), ["a", "to a", "b", "to b"]);
    let bodies = |items: &[Item]| -> Vec<_> {
        items
            .iter()
            .map(|item| (item.at, item.body.clone()))
            .collect()
    };
    assert_eq!(bodies(&dump.items), bodies(&before.items[..4]));
    let seqs: Vec<Seq> = dump.events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, [1, 2, 3, 4, 5, 6]);
    let session = dump.session.unwrap();
    assert_eq!(session.usage, mainstay_core::tail::Totals::default());
    assert!(dump.claim.is_none() && dump.inputs.is_empty() && dump.executions.is_empty());
    assert!(session.wake_at().is_none() && session.turn.is_none() && session.parent.is_none());
    assert_eq!(process.node.status(fork).await.unwrap(), Status::Idle);
    assert_eq!(world.dump(source).await, before);

    process.prompt(fork, "d").await;
    world.idle(fork).await;
    assert_eq!(last_request(&world), ["a", "to a", "b", "to b", "d"]);
    assert_eq!(world.dump(source).await, before);
}

#[tokio::test]
async fn edit_5_a_fork_in_the_middle_of_a_step_holds_settled_steps_only() {
    // The first step is settled, the second runs.
    let world = World::new(Scripted::new(|request, _| match results(request) {
        0 => call(&[("a", "look", "{}"), ("b", "put", "{}")]),
        2 if last_text(request) == "instead" => say("done instead"),
        2 => call(&[("c", "act", "{}"), ("d", "look", "{}")]),
        _ => say("done"),
    }));
    let gate = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the second step's other call", |dump| {
            let looked = dump.items.iter().filter(
                |item| matches!(&item.body, ItemBody::ToolResult(result) if result.tool == "look"),
            );
            world.plugins.count("act") == 1 && looked.count() == 2
        })
        .await;
    let before = world.dump(session).await;
    let settled = ["go", "call acall b", "result a", "result b"];
    for through in [None, Some(before.session.as_ref().unwrap().head)] {
        let fork = SessionId::new();
        process.node.fork(session, through, fork).await.unwrap();
        let mut held = texts(&world.items(fork).await);
        held[2..].sort();
        assert_eq!(held, settled);
        process.prompt(fork, "instead").await;
        let done = world.idle(fork).await;
        assert_eq!(
            texts(&done.items).last().unwrap(),
            "done instead",
            "{}",
            lines(&done)
        );
    }
    // Through a message of a settled step that has no result yet by then: back to before it.
    let fork = SessionId::new();
    process
        .node
        .fork(session, Some(before.items[1].seq), fork)
        .await
        .unwrap();
    assert_eq!(texts(&world.items(fork).await), ["go"]);
    assert_eq!(world.dump(session).await, before);

    let empty = process.session().await;
    let none = SessionId::new();
    let nothing = refused(process.node.fork(empty, None, none).await);
    assert!(matches!(nothing, Refused::NothingToFork(_)), "{nothing:?}");
    let unknown = refused(process.node.fork(none, None, SessionId::new()).await);
    assert!(matches!(unknown, Refused::NotFound(_)), "{unknown:?}");
    assert_eq!(world.dump(none).await, Dump::default());
    gate.notify_one();
    world.idle(session).await;
}

#[tokio::test]
async fn edit_7_a_deleted_sessions_execution_is_lost_and_nothing_comes_back() {
    let world = World::new(one_call("put"));
    let put = world.plugins.hold("put");
    let first = world.start(None);
    let session = first.session().await;
    first.prompt(session, "go").await;
    world
        .until(session, "the call", |_| world.plugins.count("put") == 1)
        .await;
    // A recovery record stands in its log, and a second execution runs the call again.
    first.kill();
    let process = world.start(None);
    let running = world
        .until(session, "the call again", |_| {
            world.plugins.count("put") == 2
        })
        .await;
    assert!(
        running
            .events
            .iter()
            .any(|event| event.kind == "recovery.recorded")
    );
    process.prompt(session, "later").await;
    let node = &process.node;
    let mut log = Box::pin(node.log(session, 0, true));
    let run = tokio::spawn({
        let node = Arc::clone(node);
        async move { node.run(session, None).await }
    });

    assert!(node.delete(session).await.unwrap());
    assert!(!node.delete(session).await.unwrap());
    put.notify_one();
    let deadline = Duration::from_secs(20);
    // Who waits for it is not left waiting, and a follower's log ends.
    drop(
        tokio::time::timeout(deadline, run)
            .await
            .expect("the run ends")
            .unwrap(),
    );
    let end = async { while let Some(Ok(_)) = log.next().await {} };
    tokio::time::timeout(deadline, end)
        .await
        .expect("the log ends");
    three_looks(&process).await;
    assert_eq!(world.dump(session).await, Dump::default());
    assert!(matches!(
        refused(node.tail(session).await),
        Refused::NotFound(_)
    ));
    let mut log = Box::pin(node.log(session, 0, false));
    let gone = refused(log.next().await.unwrap());
    assert!(matches!(gone, Refused::NotFound(_)), "{gone:?}");
    assert!(
        world.plugins.request_count() <= 2,
        "the lost execution asks nothing more"
    );
}

#[tokio::test]
async fn log_13_an_imported_session_does_nothing_by_itself() {
    let source = World::new(one_call("act"));
    let _gate = source.plugins.hold("act");
    let there = source.start(None);
    let session = there.session().await;
    there.prompt(session, "go").await;
    source
        .until(session, "the call", |_| source.plugins.count("act") == 1)
        .await;
    there.prompt(session, "later").await;
    let lines = exported(&source, session).await;
    let wanted = rows(source.dump(session).await);

    let world = World::new(one_call("act"));
    let here = world.start(None);
    let imported = import(&here.node, &lines).await;
    assert_eq!(imported.applied, wanted.events.len() as u64);
    three_looks(&here).await;
    let dump = world.dump(session).await;
    assert_eq!(dump.claim, None);
    assert_eq!(rows(dump), wanted);
    assert_eq!(
        world.plugins.request_count() + world.plugins.calls.lock().unwrap().len(),
        0
    );
    assert_eq!(here.link.commits(), 0, "nobody claims or recovers it");
    assert_eq!(here.node.status(session).await.unwrap(), Status::Imported);
    let scan = world.store.scan(10).await.unwrap();
    assert_eq!(scan, mainstay_core::port::Scan::default());
}

/// The records of a session, and an import of some of them.
async fn replay(
    node: &Node,
    origin: &str,
    strict: bool,
    records: &[Record],
) -> Result<mainstay_core::replay::Replayed, StoreError> {
    let replay = Replay {
        origin: origin.into(),
        strict,
        records: records.to_vec(),
        texts: Arc::default(),
    };
    node.replay(records[0].session, replay).await
}

#[tokio::test]
async fn log_14_15_16_what_does_not_follow_is_refused_and_nobody_is_told() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = chat(&source, &there, &["a", "b"]).await;
    let records = source.dump(session).await.events;

    let world = World::new(echo());
    let here = world.start(None);
    let node = &here.node;
    let done = replay(node, "R1", true, &records[..3]).await.unwrap();
    assert_eq!((done.head, done.applied, done.refused), (3, 3, None));
    let mut hints = node.hints(16);
    assert_eq!(hints.next().await, Hint::Sweep);
    let before = world.dump(session).await;

    let gap = replay(node, "R1", true, &records[4..5]).await.unwrap();
    let expected = ReplayError::Gap {
        expected: 4,
        got: 5,
    };
    assert_eq!(
        (gap.head, gap.applied, gap.refused),
        (3, 0, Some(expected.clone()))
    );
    assert_eq!(expected.to_string(), "expected seq 4, got 5");

    let same = replay(node, "R1", true, &records[1..2]).await.unwrap();
    assert_eq!(
        (same.head, same.applied, same.held, same.refused),
        (3, 0, 1, None)
    );
    type Change = fn(&mut Record);
    let changes: [Change; 4] = [
        |record| record.id = EventId::new(),
        |record| record.kind = "input.cancelled".into(),
        |record| record.at += 1,
        |record| record.data["delivery"] = "steer".into(),
    ];
    for change in changes {
        let mut other = records[1].clone();
        change(&mut other);
        let diverged = replay(node, "R1", true, &[other]).await.unwrap();
        assert_eq!((diverged.head, diverged.applied, diverged.held), (3, 0, 0));
        assert_eq!(diverged.refused, Some(ReplayError::Diverged { seq: 2 }));
    }

    let strict = refused(replay(node, "R2", true, &records[3..4]).await);
    assert!(
        matches!(&strict, Refused::OtherOrigin { held: Some(held), .. } if held == "R1"),
        "{strict:?}"
    );
    let lax = replay(node, "R2", false, &records[3..4]).await.unwrap();
    assert_eq!((lax.head, lax.applied, lax.skipped), (3, 0, 1));
    assert_eq!(world.dump(session).await, before);
    assert_eq!(hints.try_next(), None, "nobody is told");

    // What follows is taken, told, and stops where it is refused.
    let mut rest = records[3..8].to_vec();
    rest[2].kind = "from.the.future".into();
    let part = replay(node, "R1", true, &rest).await.unwrap();
    assert_eq!((part.head, part.applied), (5, 2));
    assert!(matches!(
        part.refused,
        Some(ReplayError::UnknownType { seq: 6, .. })
    ));
    assert_eq!(hints.try_next(), Some(Hint::Changed(session, 5)));
    let whole = replay(node, "R1", true, &records).await.unwrap();
    assert_eq!((whole.held, whole.refused), (5, None));
    assert_eq!(
        rows(world.dump(session).await),
        rows(source.dump(session).await)
    );
}

#[tokio::test]
async fn log_21_an_import_runs_once_it_is_adopted_and_not_before() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    // Pending with its intent to run.
    source
        .memory
        .fail_when(|commit| matches!(commit.write, Write::Claim { .. }));
    let pending = there.prompt(session, "b").await;
    let records = source.dump(session).await.events;
    let file = exported(&source, session).await;

    let world = World::new(echo());
    let here = world.start(None);
    import(&here.node, &file).await;
    let before = world.dump(session).await;
    let own = "imported from \"here\"";
    let woken = refused(here.node.wake(session, Scope::All).await);
    assert!(woken.to_string().contains(own), "{woken}");
    let prompted = here
        .node
        .admit(session, InputId::new(), Delivery::Queue, prompt("c"))
        .await;
    assert!(refused(prompted).to_string().contains(own));
    let forced = here.node.run(session, Some(5)).await;
    assert!(
        !forced.is_ok_and(|outcome| outcome.ran),
        "a forced run is none either"
    );
    here.kill();
    let here = world.start(None);
    three_looks(&here).await;
    assert_eq!(world.dump(session).await, before);
    assert_eq!(world.plugins.request_count(), 0);

    here.node.adopt(session).await.unwrap();
    let after = world.idle(session).await;
    assert_eq!(texts(&after.items), ["a", "to a", "b", "to b"]);
    assert_eq!(last_request(&world), ["a", "to a", "b"]);
    let promoted = after
        .events
        .iter()
        .filter(|event| event.kind == "input.promoted");
    assert_eq!(promoted.count(), 2);
    assert_eq!(
        after
            .inputs
            .iter()
            .find(|input| input.id == pending)
            .unwrap()
            .status,
        InputStatus::Promoted
    );
    // Once adopted, adopting it does nothing.
    here.node.adopt(session).await.unwrap();
    assert_eq!(world.dump(session).await, after);

    let mut next = records.last().unwrap().clone();
    next.seq += 1;
    next.id = EventId::new();
    let strict = refused(replay(&here.node, "here", true, &[next.clone()]).await);
    assert!(
        matches!(strict, Refused::OtherOrigin { held: None, .. }),
        "{strict:?}"
    );
    let lax = replay(&here.node, "here", false, &[next]).await.unwrap();
    assert_eq!((lax.applied, lax.skipped), (0, 1));
    assert_eq!(world.dump(session).await, after);
}

#[tokio::test]
async fn log_21_what_a_client_stopped_after_a_shutdown_stays_stopped() {
    let source = World::new(one_call("act"));
    let gate = source.plugins.hold("act");
    let there = source.start(None);
    let session = there.session().await;
    there.prompt(session, "go").await;
    source
        .until(session, "the call", |_| source.plugins.count("act") == 1)
        .await;
    there.node.shutdown().await;
    gate.notify_one();
    // Nobody recovers it before the interrupt and the export.
    let write = Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    let commit = mainstay_core::commit::Commit {
        session,
        at: 0,
        write,
    };
    source.store.commit(commit).await.unwrap();
    let file = exported(&source, session).await;

    let world = World::new(one_call("act"));
    let here = world.start(None);
    import(&here.node, &file).await;
    here.node.adopt(session).await.unwrap();
    let dump = world.idle(session).await;
    assert_eq!(world.plugins.request_count(), 0, "{}", lines(&dump));
    assert_eq!(
        dump.events.last().unwrap().kind,
        "recovery.recorded",
        "{}",
        lines(&dump)
    );
    assert!(dump.session.unwrap().turn.is_none());
}

/// A session whose events fill more than two pages and refer to bytes in two ways.
async fn with_blobs(world: &World, process: &Process) -> (SessionId, String) {
    let session = process.session().await;
    let bytes = b"an image, or so".to_vec();
    let media = Media {
        digest: digest(&bytes),
        media_type: "image/png".into(),
        size: bytes.len() as u64,
        name: None,
    };
    world.store.blob_put(&media.digest, &bytes).await.unwrap();
    let content = InputContent::Prompt {
        parts: vec![Part::Media(media.clone()), Part::Text("go".into())],
    };
    process
        .node
        .admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
    world.idle(session).await;
    for _ in 0..600 {
        let input = InputId::new();
        let signal = InputContent::Configure {
            model: mainstay_core::history::ModelRef {
                provider: "parrot".into(),
                model: "parrot".into(),
            },
        };
        process
            .node
            .admit(session, input, Delivery::Queue, signal)
            .await
            .unwrap();
        // It is promoted or cancelled: each a commit, each an event.
        let _ = process.node.cancel_input(session, input).await;
    }
    world.idle(session).await;
    (session, media.digest)
}

fn long_outputs() -> World {
    let mut world = World::new(one_call("look"));
    // A result of which only the beginning is shown is kept whole as a blob.
    world.settings.tool_output_shown = 4;
    world
}

#[tokio::test]
async fn edit_6_an_export_holds_all_and_comes_back_equal() {
    let source = long_outputs();
    let there = source.start(None);
    let (session, image) = with_blobs(&source, &there).await;
    let file = exported(&source, session).await;
    let wanted = source.dump(session).await;
    let header: serde_json::Value = serde_json::from_str(&file[0]).unwrap();
    let head = wanted.events.len() as u64;
    assert!(head > 600, "{head}");
    assert_eq!(
        header,
        serde_json::json!({
            "mainstay_export": 1, "session": session, "origin": "here", "head": head, "events": head,
        })
    );
    let end: serde_json::Value = serde_json::from_str(file.last().unwrap()).unwrap();
    assert_eq!(
        end,
        serde_json::json!({ "end": true, "events": head, "blobs": 2 })
    );
    assert!(file.iter().all(|line| !line.contains('\n')));

    let world = World::new(echo());
    let here = world.start(None);
    let imported = import(&here.node, &file).await;
    assert_eq!(
        imported,
        Imported {
            session: Some(session),
            head,
            applied: head,
            blobs: 2,
            ..Imported::default()
        }
    );
    assert_eq!(rows(world.dump(session).await), rows(wanted));
    assert_eq!(
        world.store.blob(&image).await.unwrap().unwrap(),
        b"an image, or so"
    );
    let whole = digest(b"look done");
    assert_eq!(
        world.store.blob(&whole).await.unwrap().unwrap(),
        b"look done"
    );
    // It is still the first store's, and goes on as its copy.
    let again: Vec<String> = export(Arc::clone(&world.store), session, "there")
        .try_collect()
        .await
        .unwrap();
    assert_eq!(again, file);
    let held = import(&here.node, &file).await;
    assert_eq!((held.applied, held.held, held.head), (0, head, head));

    let none = export(Arc::clone(&world.store), SessionId::new(), "here");
    let none: Result<Vec<String>, _> = none.try_collect().await;
    assert!(matches!(refused(none), Refused::NotFound(_)));
}

#[tokio::test]
async fn edit_6_a_blob_that_is_gone_is_said_to_be_gone() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = there.session().await;
    let part = Part::Media(Media {
        digest: digest(b"never kept"),
        media_type: "image/png".into(),
        size: 10,
        name: None,
    });
    let content = InputContent::Prompt { parts: vec![part] };
    there
        .node
        .admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
    source.idle(session).await;
    let file = exported(&source, session).await;
    let gone = format!(r#"{{"blob":"{}","base64":null}}"#, digest(b"never kept"));
    assert_eq!(file[file.len() - 2], gone);
    let world = World::new(echo());
    let here = world.start(None);
    let imported = import(&here.node, &file).await;
    assert_eq!((imported.blobs, imported.missing_blobs), (0, 1));
}

#[tokio::test]
async fn edit_6_a_strict_import_over_another_origins_session_changes_nothing() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    let file = exported(&source, session).await;
    // The same log under another name, and this store's own.
    let world = World::new(echo());
    let here = world.start(None);
    import(&here.node, &file).await;
    let before = world.dump(session).await;
    let mut renamed = file.clone();
    renamed[0] = renamed[0].replace("\"here\"", "\"elsewhere\"");
    for (process, world) in [(&here, &world), (&there, &source)] {
        let before_there = world.dump(session).await;
        let (done, so_far) = feed(&process.node, true, &renamed).await;
        assert!(
            matches!(
                &done,
                Err(ImportError::Store {
                    line: 2,
                    cause: StoreError::Refused(Refused::OtherOrigin { .. })
                })
            ),
            "{done:?}"
        );
        assert_eq!(so_far.applied + so_far.skipped, 0);
        let (done, _) = feed(&process.node, false, &renamed).await;
        let events = before.events.len() as u64;
        assert_eq!(
            (done.as_ref().unwrap().skipped, done.unwrap().applied),
            (events, 0)
        );
        assert_eq!(world.dump(session).await, before_there);
    }
}

#[tokio::test]
async fn edit_6_a_file_that_is_cut_off_is_known_and_goes_on_where_it_stopped() {
    let source = long_outputs();
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    let file = exported(&source, session).await;
    let events = file.len() as u64 - 3;
    let wanted = rows(source.dump(session).await);
    for kept in 0..file.len() {
        let world = World::new(echo());
        let here = world.start(None);
        let (done, so_far) = feed(&here.node, true, &file[..kept]).await;
        let line = kept as u64;
        assert!(
            matches!(&done, Err(ImportError::Truncated { line: at }) if *at == line),
            "{kept}: {done:?}"
        );
        let prefix = line.saturating_sub(1).min(events);
        assert_eq!((so_far.head, so_far.applied), (prefix, prefix));
        let whole = import(&here.node, &file).await;
        assert_eq!((whole.held, whole.applied), (prefix, events - prefix));
        assert_eq!(rows(world.dump(session).await), wanted);
        // In the middle of a line.
        let world = World::new(echo());
        let here = world.start(None);
        let mut cut = file[..=kept].to_vec();
        let half = cut[kept].len() / 2;
        cut[kept].truncate(half);
        let (done, so_far) = feed(&here.node, true, &cut).await;
        assert!(
            matches!(&done, Err(ImportError::NotJson { line, .. }) if *line == kept as u64 + 1),
            "{kept}: {done:?}"
        );
        assert_eq!(so_far.applied, prefix);
    }
}

#[tokio::test]
async fn edit_6_bad_lines_are_named_and_the_valid_prefix_stays() {
    let source = long_outputs();
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    let file = exported(&source, session).await;
    let events = file.len() - 3;
    // What is done to the file, the error's words, and the events that stay.
    type Damage = Box<dyn Fn(&mut Vec<String>)>;
    let cases: Vec<(Damage, &str, usize)> = vec![
        (
            Box::new(|file| file[4] = "not JSON".into()),
            "line 5 is not JSON",
            3,
        ),
        (
            Box::new(|file| file[4] = "[1]".into()),
            "line 5 is neither",
            3,
        ),
        (
            Box::new(|file| drop(file.remove(0))),
            "line 1 is not the header",
            0,
        ),
        (
            Box::new(|file| file[0] = file[0].replace("export\":1", "export\":2")),
            "line 1: the export has format 2, and this build reads format 1",
            0,
        ),
        (
            Box::new(|file| {
                let blob = file.len() - 2;
                file[blob] = file[blob].replace("base64\":\"", "base64\":\"AAAA");
            }),
            "have digest",
            events,
        ),
        (
            Box::new(|file| {
                let blob = file.len() - 2;
                file[blob] = file[blob].replace("base64\":\"", "base64\":\"?");
            }),
            "are not base64",
            events,
        ),
        (
            Box::new(|file| file.push(file[1].clone())),
            "stands behind the end",
            events,
        ),
        (
            Box::new(|file| {
                let blob = file.len() - 2;
                file.remove(blob);
            }),
            "and it holds",
            events,
        ),
    ];
    for (damage, words, stay) in cases {
        let mut damaged = file.clone();
        damage(&mut damaged);
        let world = World::new(echo());
        let here = world.start(None);
        let (done, so_far) = feed(&here.node, true, &damaged).await;
        let error = done.expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(
            (so_far.head, so_far.applied),
            (stay as u64, stay as u64),
            "{words}"
        );
        assert_eq!(world.dump(session).await.events.len(), stay, "{words}");
        let blobs = world.store.blob(&digest(b"look done")).await.unwrap();
        assert_eq!(blobs.is_some(), words.contains("behind the end"), "{words}");
    }
}

#[tokio::test]
async fn edit_6_an_event_that_is_refused_is_named_by_its_line() {
    let source = long_outputs();
    let there = source.start(None);
    let (session, _) = with_blobs(&source, &there).await;
    let file = exported(&source, session).await;
    for (seq, head) in [(1, 0), (2, 1), (300, 299), (512, 511), (513, 512)] {
        let mut damaged = file.clone();
        let mut record: Record = serde_json::from_str(&damaged[seq]).unwrap();
        record.kind = "from.the.future".into();
        damaged[seq] = serde_json::to_string(&record).unwrap();
        let world = World::new(echo());
        let here = world.start(None);
        let (done, _) = feed(&here.node, true, &damaged).await;
        let done = done.unwrap();
        assert_eq!((done.head, done.applied, done.blobs), (head, head, 2));
        let refusal = done.refused.unwrap();
        assert_eq!(refusal.line, seq as u64 + 1);
        assert!(
            matches!(refusal.cause, ReplayError::UnknownType { .. }),
            "{refusal:?}"
        );
        assert!(
            refusal
                .to_string()
                .starts_with(&format!("line {}: event {seq}", seq + 1))
        );
    }
}

/// Kills the process that adopts a session which was exported in the middle of its call, at every
/// commit. What the origin had begun is settled by its class, once.
async fn adopted(tool: &'static str) {
    let source = World::new(one_call(tool));
    let _gate = source.plugins.hold(tool);
    let there = source.start(None);
    let session = there.session().await;
    there.prompt(session, "go").await;
    source
        .until(session, "the call", |dump| {
            let written = |kind| dump.events.iter().any(|event| event.kind == kind);
            let ahead = tool == "look" || written("call.started");
            source.plugins.count(tool) == 1 && written("model.ended") && ahead
        })
        .await;
    there.prompt(session, "next").await;
    let file = exported(&source, session).await;
    let key = source.plugins.calls.lock().unwrap()[0].key.clone();

    let mut commits = None;
    let mut point = None;
    for n in 0.. {
        let points: &[Option<Point>] = match commits {
            None => &[None],
            Some(all) if n > all => break,
            Some(_) => &[Some(Point::Before(n - 1)), Some(Point::After(n - 1))],
        };
        for at in points {
            point = *at;
            let world = World::new(one_call(tool));
            let importer = world.start(None);
            import(&importer.node, &file).await;
            importer.kill();
            let here = world.start(point);
            here.link.count_clients();
            let whole = dies_or(&here, async {
                here.node.adopt(session).await.unwrap();
                world.idle(session).await
            })
            .await;
            if whole.is_some() && commits.is_none() {
                commits = Some(here.link.commits());
            }
            here.kill();
            let next = world.start(None);
            // Whoever had no answer asks again.
            next.node.adopt(session).await.unwrap();
            let dump = world.idle(session).await;
            let log = lines(&dump);
            assert_eq!(
                world.count(session, "session.adopted").await,
                1,
                "{point:?}\n{log}"
            );
            let users: Vec<_> = texts(&dump.items)
                .into_iter()
                .filter(|text| text == "go" || text == "next")
                .collect();
            assert_eq!(users, ["go", "next"], "{point:?}\n{log}");
            let outcomes: Vec<ToolOutcome> = dump
                .items
                .iter()
                .filter_map(|item| match &item.body {
                    ItemBody::ToolResult(result) => Some(result.outcome),
                    _ => None,
                })
                .collect();
            let calls = world.plugins.calls.lock().unwrap().clone();
            if tool == "act" {
                assert_eq!(outcomes, [ToolOutcome::OutcomeUnknown], "{point:?}\n{log}");
                assert_eq!(calls.len(), 0, "{point:?}: it acted twice");
            } else {
                assert_eq!(outcomes, [ToolOutcome::Succeeded], "{point:?}\n{log}");
                assert!(!calls.is_empty(), "{point:?}");
                assert!(
                    calls.iter().all(|call| call.key == key),
                    "{point:?}: {calls:?}"
                );
            }
            let answers = texts(&dump.items)
                .iter()
                .filter(|text| *text == "done")
                .count();
            assert!(answers >= 1, "{point:?}\n{log}");
            let session = dump.session.as_ref().unwrap();
            assert!(
                session.turn.is_none() && session.execution.is_none(),
                "{point:?}\n{log}"
            );
        }
    }
    assert!(commits.unwrap() >= 4, "{commits:?}");
    assert!(point.is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_21_a_kill_at_every_commit_of_an_adoption_leaves_one_result_pure() {
    adopted("look").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_21_a_kill_at_every_commit_of_an_adoption_leaves_one_result_idempotent() {
    adopted("put").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_21_a_kill_at_every_commit_of_an_adoption_leaves_one_result_once() {
    adopted("act").await;
}

/// What a client does that repeats whatever had no answer: revert, then prompt.
async fn revert_and_prompt(
    node: &Node,
    session: SessionId,
    before: Seq,
    input: InputId,
    reverted: &AtomicBool,
) {
    if !reverted.load(Ordering::SeqCst) {
        match node.revert(session, before).await {
            // The first one was stored, and only its answer was lost.
            Ok(_) | Err(StoreError::Refused(Refused::NothingToRevert(_))) => {}
            Err(error) => panic!("{error:?}"),
        }
        reverted.store(true, Ordering::SeqCst);
    }
    node.admit(session, input, Delivery::Queue, prompt("d"))
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_3_a_kill_at_every_commit_of_a_revert_and_its_prompt_leaves_a_whole_session() {
    let mut commits = 0;
    let mut at = vec![None];
    while let Some(point) = at.pop() {
        let world = World::new(echo());
        let first = world.start(None);
        let session = chat(&world, &first, &["a", "b", "c"]).await;
        let before = world.dump(session).await;
        first.kill();
        let input = InputId::new();
        let reverted = AtomicBool::new(false);
        let process = world.start(point);
        process.link.count_clients();
        let fourth = before.items[3].seq;
        dies_or(&process, async {
            revert_and_prompt(&process.node, session, fourth, input, &reverted).await;
            world.idle(session).await;
        })
        .await;
        if point.is_none() {
            commits = process.link.commits();
            at.extend((0..commits).flat_map(|n| [Some(Point::Before(n)), Some(Point::After(n))]));
        }
        process.kill();
        let next = world.start(None);
        revert_and_prompt(&next.node, session, fourth, input, &reverted).await;
        let dump = world.idle(session).await;
        let log = lines(&dump);
        assert_eq!(
            texts(&dump.items),
            ["a", "to a", "b", "d", "to d"],
            "{point:?}\n{log}"
        );
        assert_eq!(
            dump.events[..before.events.len()],
            before.events[..],
            "{point:?}"
        );
        assert_eq!(
            world.count(session, "history.reverted").await,
            1,
            "{point:?}\n{log}"
        );
        assert_eq!(
            world.count(session, "revert.committed").await,
            1,
            "{point:?}\n{log}"
        );
        let requests = world.plugins.requests.lock().unwrap().clone();
        for request in &requests[3..] {
            assert_eq!(sent(request), ["a", "to a", "b", "d"], "{point:?}");
        }
        let rebuilt = rebuild(&dump.events).unwrap();
        assert_eq!(rebuilt, rows(dump), "{point:?}");
    }
    assert!(commits >= 4, "{commits}");
}

#[tokio::test]
async fn edit_4_a_kill_at_the_commit_of_a_fork_leaves_all_of_it_or_nothing() {
    for (point, held) in [(Point::Before(0), 0), (Point::After(0), 8)] {
        let world = World::new(echo());
        let first = world.start(None);
        let source = chat(&world, &first, &["a", "b", "c"]).await;
        let before = world.dump(source).await;
        first.kill();
        let process = world.start(Some(point));
        process.link.count_clients();
        let fork = SessionId::new();
        let done = dies_or(&process, process.node.fork(source, None, fork)).await;
        assert!(done.is_none(), "{point:?}: it does not die");
        assert_eq!(world.dump(fork).await.events.len(), held, "{point:?}");
        process.kill();
        let next = world.start(None);
        let through = next.node.fork(source, None, fork).await.unwrap();
        assert_eq!(through, before.items[5].seq);
        let dump = world.idle(fork).await;
        assert_eq!(dump.events.len(), 8);
        assert_eq!(texts(&dump.items), texts(&before.items));
        assert_eq!(world.dump(source).await, before);
    }
}
