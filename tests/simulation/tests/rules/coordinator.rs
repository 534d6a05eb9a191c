//! The coordinator and the inbox: wakes, joins, interrupts, successors, admissions.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::commit::Write;
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::{EventBody, TurnOutcome};
use mainstay_core::model::{Failure, FailureClass};
use mainstay_core::plugin::ModelEvent;
use mainstay_core::port::StoreError;
use mainstay_core::tail::{Scope, Status, Tail};
use mainstay_test_simulation::crash::Point;
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::{Host, Stage};
use mainstay_test_simulation::plugins::{Scripted, events, say};
use mainstay_test_simulation::world::{World, user_texts};
use tokio::sync::Notify;

use super::{ends, later, one_call};

#[tokio::test]
async fn coord_3_an_interrupt_drops_the_wakes_before_it() {
    let world = World::new(one_call("look"));
    let _gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.node.wake(session, Scope::All).await.unwrap();
    process.node.interrupt(session).await.unwrap();
    world.idle(session).await;
    let passes = world.plugins.decisions.lock().unwrap().len();
    // Recovery passes of another process find nothing either.
    let other = world.start(None);
    world
        .until(session, "nothing", |dump| dump.claim.is_none())
        .await;
    other.node.run(session, None).await.unwrap();
    assert_eq!(world.count(session, "execution.started").await, 1);
    assert_eq!(world.plugins.decisions.lock().unwrap().len(), passes);
}

#[tokio::test]
async fn coord_4_a_wake_in_the_cleanup_starts_one_successor_after_it() {
    let world = World::new(one_call("look"));
    let _look = world.plugins.hold("look");
    let gate = world.memory.gate(ends);
    let (process, session) = world.begin("go").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.node.interrupt(session).await.unwrap();
    gate.reached(1).await;
    world.plugins.let_go("look");
    process.prompt(session, "more").await;
    assert_eq!(world.count(session, "execution.started").await, 1);
    gate.open();
    let dump = world.idle(session).await;
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "execution.started")
            .count(),
        2
    );
    assert_eq!(user_texts(&dump), ["go", "more"]);
}

#[tokio::test]
async fn coord_5_a_run_in_the_cleanup_gets_the_successors_outcome() {
    let world = World::new(one_call("look"));
    let _look = world.plugins.hold("look");
    let gate = world.memory.gate(ends);
    let (process, session) = world.begin("go").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.prompt(session, "more").await;
    process.node.interrupt(session).await.unwrap();
    gate.reached(1).await;
    process.node.interrupt(session).await.unwrap();
    world.plugins.let_go("look");
    let node = Arc::clone(&process.node);
    let run = tokio::spawn(async move { node.run(session, None).await.unwrap() });
    world
        .until(session, "the intent", |dump| {
            dump.inputs.iter().any(|input| input.intent)
        })
        .await;
    gate.open();
    assert_eq!(run.await.unwrap().terminal, Some(Terminal::Succeeded));
    let dump = world.idle(session).await;
    let reasons: Vec<_> = dump
        .events
        .iter()
        .filter(|e| e.kind == "execution.interrupted")
        .map(|e| e.data["reason"].clone())
        .collect();
    assert_eq!(reasons, ["user"]);
}

/// A model whose answer takes a while, and a host that hears of its interrupts and cancels late.
fn hears_late(permit: &Arc<Notify>) -> (Stage, Host) {
    let stage = Stage::new(Decided::new(|_, _| later(500, say("ok"))));
    let permit = Arc::clone(permit);
    let host = stage.start_with(Box::new(move |commit, _| match commit.write {
        Write::Interrupt { .. } => Fate::HearsLater(Arc::clone(&permit)),
        _ => Fate::Pass,
    }));
    (stage, host)
}

fn in_flight(tail: &Tail) -> bool {
    tail.claim.is_some() && tail.step.is_some()
}

#[tokio::test(start_paused = true)]
async fn coord_6_an_interrupt_stops_no_execution_that_began_after_it() {
    for running in [false, true] {
        let permit = Arc::new(Notify::new());
        let (stage, host) = hears_late(&permit);
        let session = stage.create("default").await;
        if running {
            host.prompt(session, "one").await;
            stage.until(session, "a request", in_flight).await;
        }
        let node = Arc::clone(&host.node);
        let interrupt = tokio::spawn(async move { node.interrupt(session).await });
        let asked = || {
            let mut log = stage.memory.log().into_iter();
            log.any(|logged| matches!(logged.commit.write, Write::Interrupt { .. }))
        };
        stage.when("the interrupt", asked).await;
        // The loop has found its mark by then, or the execution itself.
        stage.over(session).await;
        host.prompt(session, "two").await;
        stage.until(session, "a request", in_flight).await;
        permit.notify_one();
        assert_eq!(interrupt.await.unwrap().unwrap(), running);
        let dump = stage.idle(session).await;
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
        let stopped = stage.count(session, "execution.interrupted").await;
        assert_eq!(stopped, usize::from(running));
    }
}

#[tokio::test(start_paused = true)]
async fn a_run_whose_claim_the_store_does_not_take_says_so_and_runs_later() {
    let stage = Stage::new(Decided::new(|_, _| say("ok")));
    let host = stage.start();
    let session = stage.create("default").await;
    stage.prompt(session, "go").await;
    stage
        .memory
        .fail_when(|commit| matches!(commit.write, Write::Claim { .. }));
    let run = host.node.run(session, None).await;
    assert!(
        matches!(run, Err(StoreError::Unavailable { .. })),
        "{run:?}"
    );
    stage.memory.heal();
    let dump = stage.idle(session).await;
    assert_eq!(user_texts(&dump), ["go"]);
}

#[tokio::test]
async fn coord_7_a_wake_while_the_terminal_settles_is_not_lost() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let gate = world.memory.gate(ends);
    let (process, session) = world.begin("one").await;
    gate.reached(1).await;
    process.prompt(session, "two").await;
    gate.open();
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["one", "two"]);
}

#[tokio::test]
async fn inbox_13_a_prompt_beside_a_held_terminal_runs_without_another_call() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let gate = world.memory.gate(ends);
    let (process, session) = world.begin("one").await;
    gate.reached(1).await;
    process.steer(session, "two").await;
    gate.open();
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["one", "two"]);
    assert_eq!(world.plugins.request_count(), 2);
}

#[tokio::test]
async fn coord_8_a_failing_execution_tells_its_waiters_and_the_wake_still_runs() {
    let world = World::new(Scripted::new(|request, _| {
        if mainstay_test_simulation::plugins::last_text(request) == "two" {
            return say("ok");
        }
        later(
            50,
            events([ModelEvent::Failed(Failure {
                class: FailureClass::InvalidRequest,
                message: "no".into(),
                retry_after_ms: None,
            })]),
        )
    }));
    let (process, session) = world.begin("one").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    let node = Arc::clone(&process.node);
    let run = tokio::spawn(async move { node.run(session, None).await.unwrap() });
    tokio::task::yield_now().await;
    process.prompt(session, "two").await;
    assert_eq!(
        run.await.unwrap().terminal,
        Some(Terminal::Failed("no".into()))
    );
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["one", "two"]);
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "execution.succeeded")
            .count(),
        1
    );
}

#[tokio::test]
async fn coord_10_a_session_that_hangs_holds_up_no_other() {
    let world = World::new(Scripted::new(|request, _| {
        if mainstay_test_simulation::plugins::last_text(request) == "hang" {
            later(60_000, say("x"))
        } else {
            say("ok")
        }
    }));
    let process = world.start(None);
    let (slow, quick) = (process.session().await, process.session().await);
    process.prompt(slow, "hang").await;
    world
        .until(slow, "the request", |_| world.plugins.request_count() == 1)
        .await;
    process.prompt(quick, "go").await;
    world.idle(quick).await;
    assert_eq!(process.node.status(slow).await.unwrap(), Status::Running);
}

#[tokio::test]
async fn inbox_1_an_admission_is_answered_before_any_work() {
    let world = World::new(Scripted::new(|_, _| later(60_000, say("never"))));
    let gate = world
        .memory
        .gate(|commit| matches!(commit.write, Write::Claim { .. }));
    let process = world.start(None);
    let session = process.session().await;
    let input = process.prompt(session, "go").await;
    assert_eq!(world.plugins.request_count(), 0);
    assert!(
        world
            .dump(session)
            .await
            .inputs
            .iter()
            .any(|known| known.id == input)
    );
    gate.open();
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
}

#[tokio::test]
async fn inbox_4_an_admission_whose_wake_was_lost_runs_after_a_restart() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let process = world.start(Some(Point::Before(0)));
    let session = process.session().await;
    process.prompt(session, "go").await;
    tokio::time::timeout(Duration::from_secs(20), process.link.died())
        .await
        .unwrap();
    process.kill();
    assert_eq!(world.count(session, "execution.started").await, 0);
    let _next = world.start(None);
    world
        .until(session, "the answer", |dump| {
            dump.events.iter().any(|e| e.kind == "execution.succeeded")
        })
        .await;
    world.idle(session).await;
}

#[tokio::test]
async fn inbox_10_a_promotion_that_fails_leaves_the_input_pending() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    world.memory.fail_when(|commit| {
        matches!(&commit.write, Write::Append(append)
            if append.events.iter().any(|draft| matches!(draft.body, EventBody::InputPromoted { .. })))
    });
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "a decision", |_| {
            !world.plugins.decisions.lock().unwrap().is_empty()
        })
        .await;
    assert_eq!(world.tail(session).await.inputs.len(), 1);
    world.memory.heal();
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["go"]);
}
