//! Kills at every commit of an adoption, a revert and a fork.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_core::commit::Refused;
use mainstay_core::event::Delivery;
use mainstay_core::history::ItemBody;
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::model::ToolOutcome;
use mainstay_core::node::Node;
use mainstay_core::port::StoreError;
use mainstay_test_simulation::crash::Point;
use mainstay_test_simulation::plugins::sent;
use mainstay_test_simulation::world::{Process, World, lines, prompt};
use mainstay_test_support::rebuild;

use super::{chat, echo, exported, import, one_call, rows, texts};

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
