//! Claims: renewed, lost, ended, recovered once.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay_core::commit::{Commit, End, Write};
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::{EventBody, InterruptReason};
use mainstay_test_simulation::plugins::{Scripted, say};
use mainstay_test_simulation::world::{World, lines, user_texts};

use super::{ends, later, one_call};

#[tokio::test]
async fn claim_1_no_guest_is_called_for_a_claim_that_is_not_stored() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let claims = |commit: &Commit| matches!(commit.write, Write::Claim { .. });
    let tried = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&tried);
    world.memory.fail_when(move |commit| {
        let is_claim = claims(commit);
        counted.fetch_add(usize::from(is_claim), Ordering::SeqCst);
        is_claim
    });
    let (_process, session) = world.begin("go").await;
    let dump = world
        .until(session, "three claims", |_| {
            tried.load(Ordering::SeqCst) >= 3
        })
        .await;
    assert!(dump.claim.is_none() && dump.executions.is_empty());
    assert_eq!(
        world.kinds(session).await,
        ["session.created", "input.admitted"]
    );
    assert_eq!(world.plugins.decision_count(), 0);
    world.memory.heal();
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["go"]);
    assert_eq!(world.plugins.request_count(), 1);
}

#[tokio::test]
async fn claim_7_a_long_step_is_renewed_and_never_recovered() {
    let world = World::new(Scripted::new(|_, _| later(1500, say("slow"))));
    let process = world.start(None);
    let _other = world.start(None);
    let session = process.session().await;
    process.prompt(session, "go").await;
    let first = world
        .until(session, "a claim", |dump| dump.claim.is_some())
        .await
        .claim
        .unwrap()
        .expires_at;
    // Longer than several leases: its expiry moves on while the step is in flight.
    world
        .until(session, "the expiry to pass three leases", |dump| {
            dump.claim
                .as_ref()
                .is_some_and(|claim| claim.expires_at > first + 1000)
        })
        .await;
    world.idle(session).await;
    assert_eq!(world.count(session, "execution.started").await, 1);
    assert_eq!(world.count(session, "recovery.recorded").await, 0);
}

#[tokio::test]
async fn claim_11_a_node_without_confirmed_renewals_stops_by_itself() {
    let world = World::new(Scripted::new(|_, n| {
        if n == 0 {
            later(60_000, say("never"))
        } else {
            say("done")
        }
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    let node = Arc::clone(&process.node);
    let waiter = tokio::spawn(async move { node.run(session, None).await });
    tokio::task::yield_now().await;
    world.memory.fail_renewals(true);
    let outcome = tokio::time::timeout(Duration::from_secs(20), waiter)
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Lost));
    world.memory.fail_renewals(false);
    let dump = world.idle(session).await;
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "execution.interrupted")
            .count(),
        1
    );
    assert_eq!(world.plugins.request_count(), 2);
}

#[tokio::test]
async fn claim_12_no_request_goes_out_before_its_step_is_durable() {
    let world = World::new(Scripted::new(|_, _| say("hi")));
    world.memory.fail_when(|commit| {
        matches!(&commit.write, Write::Append(append)
            if append.events.iter().any(|draft| matches!(draft.body, EventBody::StepStarted(_))))
    });
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "a decision", |_| {
            !world.plugins.decisions.lock().unwrap().is_empty()
        })
        .await;
    assert_eq!(world.plugins.request_count(), 0);
    assert_eq!(
        world.tail(session).await.claim.as_ref().unwrap().phase,
        mainstay_core::claim::Phase::Ready
    );
    world.memory.heal();
    world.idle(session).await;
    assert_eq!(world.plugins.request_count(), 1);
}

#[tokio::test]
async fn claim_14_a_terminal_that_cannot_be_stored_is_recoverys() {
    let mut world = World::new(Scripted::new(|_, _| say("hi")));
    world.settings.lease = Duration::from_millis(300);
    world.memory.fail_when(ends);
    let (_process, session) = world.begin("go").await;
    // The runner's `done` is in the same commit: neither is there.
    world
        .until(session, "recovery", |dump| {
            dump.events.iter().any(|e| e.kind == "recovery.recorded")
        })
        .await;
    world.memory.heal();
    let dump = world.idle(session).await;
    let terminals: Vec<_> = dump
        .events
        .iter()
        .filter(|e| e.kind.starts_with("execution.") && e.kind != "execution.started")
        .collect();
    assert!(
        terminals.iter().any(|e| e.data["reason"] == "crash"),
        "{}",
        lines(&dump)
    );
    assert_eq!(world.count(session, "turn.ended").await, 1);
}

#[tokio::test]
async fn a_commit_whose_answer_was_lost_is_stored_once() {
    let world = World::new(one_call("put"));
    let process = world.start(None);
    let session = process.session().await;
    // Every first try is stored and said to have failed; every second one is answered.
    let tries = std::sync::atomic::AtomicUsize::new(0);
    world.memory.lose_answers_when(move |commit| {
        matches!(&commit.write, Write::Append(append) if append.end.is_none())
            && tries.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
    });
    process.prompt(session, "go").await;
    let dump = world.idle(session).await;
    assert_eq!(world.plugins.count("put"), 1, "{}", lines(&dump));
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "step.started")
            .count(),
        2
    );
}

#[tokio::test]
async fn a_terminal_whose_answer_was_lost_is_told_to_those_who_wait() {
    let world = World::new(one_call("put"));
    let process = world.start(None);
    let session = process.session().await;
    let tries = std::sync::atomic::AtomicUsize::new(0);
    world.memory.lose_answers_when(move |commit| {
        matches!(&commit.write, Write::Append(append) if append.end.is_some())
            && tries.fetch_add(1, Ordering::SeqCst).is_multiple_of(2)
    });
    let gate = world.plugins.hold("put");
    process.prompt(session, "go").await;
    world
        .until(session, "a call", |_| world.plugins.count("put") == 1)
        .await;
    let mut run = Box::pin(process.node.run(session, None));
    assert!(futures::poll!(&mut run).is_pending(), "it joins");
    world.plugins.let_go("put");
    gate.notify_one();
    let outcome = run.await.unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    let dump = world.idle(session).await;
    let count = |kind: &str| dump.events.iter().filter(|e| e.kind == kind).count();
    assert_eq!(count("execution.started"), 1, "{}", lines(&dump));
    assert_eq!(count("execution.succeeded"), 1, "{}", lines(&dump));
}

#[tokio::test]
async fn recov_12_two_nodes_recover_one_claim_once() {
    let world = World::new(Scripted::new(|_, n| {
        if n == 0 {
            later(60_000, say("never"))
        } else {
            say("ok")
        }
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    process.kill();
    let _a = world.start(None);
    let _b = world.start(None);
    let dump = world.idle(session).await;
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "step.recovered")
            .count(),
        1
    );
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "recovery.recorded")
            .count(),
        1
    );
    let crash = dump
        .events
        .iter()
        .find(|e| e.kind == "execution.interrupted")
        .unwrap();
    assert!(crash.execution.is_none() && crash.recovery.is_some());
    assert_eq!(
        crash.data["reason"],
        serde_json::json!(InterruptReason::Crash)
    );
}

#[tokio::test]
async fn claim_16_the_claim_goes_last_and_in_the_terminals_commit() {
    let world = World::new(one_call("put"));
    let _gate = world.plugins.hold("put");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("put") == 1)
        .await;
    process.node.interrupt(session).await.unwrap();
    world.idle(session).await;
    let log = world.memory.log();
    let last = log.last().unwrap();
    let Write::Append(append) = &last.commit.write else {
        panic!("{last:?}")
    };
    assert_eq!(
        append.end,
        Some(End::Interrupted {
            reason: InterruptReason::User
        })
    );
}

#[tokio::test]
async fn a_run_waits_for_the_recovery_of_a_dead_claim() {
    let world = World::new(Scripted::new(|_, n| {
        if n == 0 {
            later(60_000, say("never"))
        } else {
            say("ok")
        }
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    process.kill();
    let next = world.start(None);
    let outcome = next.node.run(session, None).await.unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    world.idle(session).await;
}
