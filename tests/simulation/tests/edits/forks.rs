//! Forks and deletions.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::commit::Refused;
use mainstay_core::edit::fork_of;
use mainstay_core::history::{Item, ItemBody};
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::port::Dump;
use mainstay_core::tail::Status;
use mainstay_test_simulation::plugins::{Scripted, call, last_text, results, say};
use mainstay_test_simulation::world::{World, lines};
use mainstay_test_support::rebuild;

use super::{
    chat, counting, echo, last_request, one_call, refused, shown, state, texts, three_looks,
};

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
async fn edit_4_a_fork_of_all_that_is_asked_for_again_is_the_first_one() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a"]).await;
    let other = chat(&world, &process, &["x"]).await;
    let fork = SessionId::new();
    let first = process.node.fork(session, None, fork).await.unwrap();
    process.prompt(session, "b").await;
    world.idle(session).await;
    let before = world.dump(fork).await;
    assert_eq!(process.node.fork(session, None, fork).await.unwrap(), first);
    assert_eq!(world.dump(fork).await, before);
    // Of another source, or through another place, it is another fork.
    let conflict = Refused::SessionConflict(fork);
    assert_eq!(
        refused(process.node.fork(other, None, fork).await),
        conflict
    );
    let end = world.dump(session).await.events.len() as u64;
    let through = process.node.fork(session, Some(end), fork).await;
    assert_eq!(refused(through), conflict);
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
async fn edit_4_a_fork_is_made_anew_where_a_revert_became_final_under_it() {
    let world = World::new(echo());
    let process = world.start(None);
    let source = chat(&world, &process, &["a", "b"]).await;
    let stale = world.tail(source).await;
    let items = world.items(source).await;
    process.node.revert(source, items[2].seq).await.unwrap();
    process.prompt(source, "c").await;
    world.idle(source).await;
    let read = fork_of(&*world.store, &stale, None).await;
    let (expected, committed) = (stale.session.head, stale.session.head + 2);
    let actual = committed;
    assert_eq!(refused(read), Refused::HeadMoved { expected, actual });
    let fork = SessionId::new();
    process.node.fork(source, None, fork).await.unwrap();
    let shown = shown(&world, fork).await;
    assert_eq!(texts(&shown), ["a", "to a", "c", "to c"]);
}
