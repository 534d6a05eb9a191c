//! Kills before and after each commit of a scripted session, recovery included.

use mainstay_core::event::EventBody;
use mainstay_core::history::ItemBody;
use mainstay_core::model::ToolOutcome;
use mainstay_test_simulation::crash::Point;
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{Scripted, call, results, say};
use mainstay_test_simulation::world::{World, lines, user_texts};

/// Three steps: a pure and an idempotent call, then a once call and a pure one, then the answer.
fn three_steps() -> Scripted {
    Scripted::new(|request, _| match results(request) {
        0 => call(&[("a", "look", "{}"), ("b", "put", "{}")]),
        2 => call(&[("c", "act", "{}"), ("d", "look", "{}")]),
        _ => say("done"),
    })
}

async fn run_with(point: Option<Point>) -> (World, mainstay_core::id::SessionId, usize) {
    let world = World::new(three_steps());
    let process = world.start(point);
    let session = process.session().await;
    process.prompt(session, "go").await;
    if point.is_some() {
        // A result may share a commit with another, so a late point is not reached by every run.
        tokio::select! {
            () = process.link.died() => {}
            _ = world.idle(session) => {}
        }
        process.kill();
        let _next = world.start(None);
        world.idle(session).await;
        (world, session, 0)
    } else {
        world.idle(session).await;
        let commits = process.link.commits();
        (world, session, commits)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recov_20_a_kill_at_every_commit_leaves_a_whole_session() {
    let (_, _, commits) = run_with(None).await;
    assert!(commits >= 6, "{commits}");
    for n in 0..commits {
        for point in [Point::Before(n), Point::After(n)] {
            let (world, session, _) = run_with(Some(point)).await;
            let dump = world.dump(session).await;
            invariant::check(&dump);
            assert_eq!(user_texts(&dump), ["go"], "{point:?}");
            assert!(
                world.plugins.count("act") <= 1,
                "{point:?}: the once call ran again\n{}",
                lines(&dump)
            );
            let results = dump
                .items
                .iter()
                .filter(|item| matches!(item.body, ItemBody::ToolResult(_)))
                .count();
            let made = lines(&dump).matches("{\"call\":{\"id\"").count();
            assert_eq!(results, made, "{point:?}\n{}", lines(&dump));
            assert!(made >= 3, "{point:?}\n{}", lines(&dump));
            let Some(last) = dump.items.last() else {
                panic!("{point:?}: no items")
            };
            assert!(
                matches!(last.body, ItemBody::Assistant(_)),
                "{point:?}\n{}",
                lines(&dump)
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recov_11_a_kill_within_recovery_leaves_one_of_each() {
    for second in [
        Point::Before(0),
        Point::After(0),
        Point::Before(1),
        Point::After(1),
    ] {
        let world = World::new(three_steps());
        let _gate = world.plugins.hold("act");
        let (process, session) = world.begin("go").await;
        world
            .until(session, "the once call", |_| {
                world.plugins.count("act") == 1
            })
            .await;
        process.kill();
        let recoverer = world.start(Some(second));
        let deadline = std::time::Duration::from_secs(20);
        tokio::time::timeout(deadline, recoverer.link.died())
            .await
            .expect("it reaches its point");
        recoverer.kill();
        let _last = world.start(None);
        let dump = world.idle(session).await;
        assert_eq!(world.plugins.count("act"), 1);
        let recovered = dump
            .events
            .iter()
            .filter(|e| e.kind == "step.recovered")
            .count();
        assert_eq!(recovered, 1, "{second:?}\n{}", lines(&dump));
    }
}

#[tokio::test]
async fn recov_1_a_kill_after_the_promotion_changes_nothing() {
    let plain = World::new(Scripted::new(|_, _| say("hi")));
    let process = plain.start(None);
    let session = process.session().await;
    process.prompt(session, "go").await;
    plain.idle(session).await;
    let wanted = plain.plugins.requests.lock().unwrap()[0].messages.clone();

    // The claim is the first commit, the decision with its promotion the second.
    for point in [Point::After(0), Point::Before(1)] {
        let world = World::new(Scripted::new(|_, _| say("hi")));
        let process = world.start(Some(point));
        let session = process.session().await;
        process.prompt(session, "go").await;
        tokio::time::timeout(std::time::Duration::from_secs(20), process.link.died())
            .await
            .unwrap();
        process.kill();
        let _next = world.start(None);
        let dump = world.idle(session).await;
        assert_eq!(user_texts(&dump), ["go"]);
        assert_eq!(
            dump.events
                .iter()
                .filter(|e| e.kind == "input.promoted")
                .count(),
            1
        );
        assert_eq!(world.plugins.requests.lock().unwrap()[0].messages, wanted);
    }
}

#[tokio::test]
async fn recov_2_a_call_with_nothing_durable_is_asked_again_without_the_runner() {
    let world = World::new(Scripted::new(|_, n| {
        let mut answer = say("hi");
        answer[0].after_ms = if n == 0 { 60_000 } else { 0 };
        answer
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    let asked = world.plugins.decisions.lock().unwrap().len();
    process.kill();
    let _next = world.start(None);
    world
        .until(session, "the second request", |_| {
            world.plugins.request_count() == 2
        })
        .await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(requests[0], requests[1]);
    assert_eq!(asked, 1);
    let dump = world.idle(session).await;
    assert!(
        !dump
            .items
            .iter()
            .any(|item| matches!(item.body, ItemBody::Recovered(_)))
    );
}

#[tokio::test]
async fn recov_3_a_partial_answer_is_kept_as_interrupted() {
    let world = World::new(Scripted::new(|_, n| {
        let mut answer = say("partial");
        answer[1].after_ms = if n == 0 { 60_000 } else { 0 };
        answer
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "a chunk", |dump| {
            dump.events.iter().any(|e| e.kind == "step.output")
        })
        .await;
    process.kill();
    let _next = world.start(None);
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["go"]);
    let recovered: Vec<_> = dump
        .items
        .iter()
        .filter(|i| matches!(i.body, ItemBody::Recovered(_)))
        .collect();
    assert_eq!(recovered.len(), 1);
    assert!(dump.items.iter().any(|item| matches!(&item.body, ItemBody::Assistant(a) if a.ending == mainstay_core::history::Ending::Interrupted)));
    let decisions = world.plugins.decisions.lock().unwrap().clone();
    assert!(
        decisions
            .iter()
            .any(|(trigger, _)| *trigger == mainstay_core::plugin::Trigger::Recovered)
    );
}

#[tokio::test]
async fn recov_5_6_7_each_class_has_its_own_verdict() {
    for (tool, runs, outcome) in [
        ("look", 2, ToolOutcome::Succeeded),
        ("put", 2, ToolOutcome::Succeeded),
        ("act", 1, ToolOutcome::OutcomeUnknown),
    ] {
        let world = World::new(Scripted::new(move |request, _| {
            if results(request) == 0 {
                call(&[("c", tool, "{}")])
            } else {
                say("done")
            }
        }));
        let _gate = world.plugins.hold(tool);
        let (process, session) = world.begin("go").await;
        // The answer's end is durable, the call runs.
        world
            .until(session, "the model's end", |dump| {
                dump.events.iter().any(|e| e.kind == "model.ended")
            })
            .await;
        world
            .until(session, "the call", |_| world.plugins.count(tool) == 1)
            .await;
        process.kill();
        world.plugins.let_go(tool);
        let _next = world.start(None);
        let dump = world.idle(session).await;
        assert_eq!(world.plugins.count(tool), runs, "{tool}");
        let found: Vec<ToolOutcome> = dump
            .items
            .iter()
            .filter_map(|item| match &item.body {
                ItemBody::ToolResult(result) => Some(result.outcome),
                _ => None,
            })
            .collect();
        assert_eq!(found, [outcome], "{tool}\n{}", lines(&dump));
        let calls = world.plugins.calls.lock().unwrap().clone();
        assert!(calls.iter().all(|call| call.key == calls[0].key));
    }
}

#[tokio::test]
async fn claim_15_a_shutdown_hands_over_at_once_with_one_terminal() {
    let mut world = World::new(Scripted::new(|request, _| {
        if results(request) == 0 {
            call(&[("c", "put", "{}")])
        } else {
            say("done")
        }
    }));
    // Far longer than the test waits: only the hand-over brings the session back.
    world.settings.lease = std::time::Duration::from_secs(3600);
    let _gate = world.plugins.hold("put");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("put") == 1)
        .await;
    process.node.shutdown().await;
    let bodies = world.bodies(session).await;
    assert!(bodies.iter().any(|b| matches!(
        b,
        EventBody::ExecutionInterrupted {
            reason: mainstay_core::event::InterruptReason::Shutdown,
            ..
        }
    )));
    let tail = world.tail(session).await;
    assert!(tail.claim.as_ref().is_some_and(|claim| claim.ended));
    process.kill();
    world.plugins.let_go("put");
    let _next = world.start(None);
    world.idle(session).await;
    assert_eq!(world.tail(session).await.session.attempts, 0);
    assert_eq!(world.plugins.count("put"), 2);
}

/// A tool may take the request that a shutdown broke off for a failure. It is none.
#[tokio::test]
async fn node_3_recov_6_a_call_that_fails_of_a_shutdown_is_run_again() {
    for tool in ["look", "put"] {
        let world = World::new(Scripted::new(move |request, _| match results(request) {
            0 => call(&[("c", tool, r#"{"clumsy":true}"#)]),
            _ => say("done"),
        }));
        let _gate = world.plugins.hold(tool);
        let (process, session) = world.begin("go").await;
        world
            .until(session, "the call", |_| world.plugins.count(tool) == 1)
            .await;
        process.node.shutdown_now();
        process.node.shutdown().await;
        process.kill();
        world.plugins.let_go(tool);
        let _next = world.start(None);
        let dump = world.idle(session).await;
        assert_eq!(world.plugins.count(tool), 2);
        let outcomes = dump.items.iter().filter_map(|item| match &item.body {
            ItemBody::ToolResult(result) => Some(result.outcome),
            _ => None,
        });
        assert_eq!(
            outcomes.collect::<Vec<_>>(),
            [ToolOutcome::Succeeded],
            "{tool}\n{}",
            lines(&dump)
        );
        let calls = world.plugins.calls.lock().unwrap().clone();
        assert_eq!(calls[0].key, calls[1].key);
    }
}

#[tokio::test]
async fn claim_6_a_lost_execution_writes_nothing_more() {
    let world = World::new(Scripted::new(|_, _| {
        let mut answer = say("never said");
        answer[0].after_ms = 60_000;
        answer
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the step", |dump| {
            dump.claim.as_ref().is_some_and(|c| c.step.is_some())
        })
        .await;
    assert!(process.node.delete(session).await.unwrap());
    let gone = world.dump(session).await;
    assert!(gone.events.is_empty() && gone.session.is_none() && gone.claim.is_none());
}
