//! A node that is told to end, beside one that goes on.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::event::{EventBody, InterruptReason};
use mainstay_core::history::ItemBody;
use mainstay_core::id::{OwnerId, SessionId};
use mainstay_core::model::ToolOutcome;
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::stage::{Host, Stage};
use mainstay_test_simulation::plugins::{call, results, say};
use mainstay_test_simulation::world::lines;

const HOUR: Duration = Duration::from_secs(3600);

/// One call of `act`, and nodes that may take an hour to end.
fn acting() -> Stage {
    let mut stage = Stage::new(Decided::new(|request, _| match results(request) {
        0 => call(&[("c", "act", "{}")]),
        _ => say("over"),
    }));
    stage.settings.shutdown_grace = HOUR;
    stage.settings.lease = Duration::from_secs(6);
    stage.settings.lease_margin = Duration::from_secs(1);
    stage.settings.renew_every = Duration::from_secs(2);
    stage.settings.poll_every = Duration::from_millis(100);
    stage
}

/// A session that is in its call at this node.
async fn in_its_call(stage: &Stage, host: &Host) -> SessionId {
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage
        .when("the call", || stage.plugins.scripted.count("act") == 1)
        .await;
    session
}

fn begin_to_end(host: &Host) -> tokio::task::JoinHandle<()> {
    let node = Arc::clone(&host.node);
    tokio::spawn(async move { node.shutdown().await })
}

/// Who ran the session, in order, and how its executions ended.
async fn runs(stage: &Stage, session: SessionId) -> (Vec<OwnerId>, Vec<EventBody>) {
    let bodies = stage.bodies(session).await;
    let owners = bodies.iter().filter_map(|body| match body {
        EventBody::ExecutionStarted { owner, .. } => Some(*owner),
        _ => None,
    });
    let owners = owners.collect();
    let ended = bodies.into_iter();
    (
        owners,
        ended.filter(|body| body.terminal_of().is_some()).collect(),
    )
}

async fn outcomes(stage: &Stage, session: SessionId) -> Vec<ToolOutcome> {
    let items = stage.items(session).await.into_iter();
    let results = items.filter_map(|item| match item.body {
        ItemBody::ToolResult(result) => Some(result.outcome),
        _ => None,
    });
    results.collect()
}

fn by_shutdown(ended: &EventBody) -> bool {
    matches!(
        ended,
        EventBody::ExecutionInterrupted {
            reason: InterruptReason::Shutdown,
            ..
        }
    )
}

#[tokio::test(start_paused = true)]
async fn node_3_a_call_that_ends_within_the_grace_is_stored_and_the_other_node_goes_on() {
    let stage = acting();
    let _held = stage.plugins.scripted.hold("act");
    let a = stage.start();
    let session = in_its_call(&stage, &a).await;
    let b = stage.start();
    let ending = begin_to_end(&a);
    let first = stage.tail(session).await.claim.clone().unwrap();

    // Many leases go by, and it is renewed all the time; what comes in is the other's.
    for n in 0..10 {
        tokio::time::sleep(Duration::from_secs(3)).await;
        let claim = stage.tail(session).await.claim.clone().unwrap();
        assert_eq!(claim.execution, first.execution);
        assert!(claim.expires_at > stage.now(), "not renewed");
        let other = stage.create("child").await;
        let asked = if n % 2 == 0 { &a } else { &b };
        asked.prompt(other, "hello").await;
        stage
            .when("its call", || stage.plugins.scripted.count("act") == n + 2)
            .await;
        assert_eq!(runs(&stage, other).await.0, [b.node.owner()]);
    }
    assert!(!ending.is_finished());
    assert_eq!(stage.count(session, "recovery.recorded").await, 0);

    stage.plugins.scripted.let_go("act");
    let began = stage.now();
    ending.await.unwrap();
    let dump = stage.idle(session).await;
    assert!(stage.now() - began < 2_000, "handed over at once");
    let (owners, ended) = runs(&stage, session).await;
    assert_eq!(owners, [a.node.owner(), b.node.owner()], "{}", lines(&dump));
    assert!(by_shutdown(&ended[0]), "{ended:?}");
    assert!(matches!(ended[1], EventBody::ExecutionSucceeded { .. }));
    assert_eq!(outcomes(&stage, session).await, [ToolOutcome::Succeeded]);
    let settled = dump
        .events
        .iter()
        .find(|e| e.kind == "call.settled")
        .unwrap();
    assert_eq!(settled.execution, Some(first.execution), "A stored it");
    assert_eq!(stage.tail(session).await.session.attempts, 0);
}

#[tokio::test(start_paused = true)]
async fn node_3_without_grace_or_asked_twice_it_interrupts_at_once() {
    for twice in [true, false] {
        let mut stage = acting();
        if !twice {
            stage.settings.shutdown_grace = Duration::ZERO;
        }
        let _held = stage.plugins.scripted.hold("act");
        let a = stage.start();
        let session = in_its_call(&stage, &a).await;
        let b = stage.start();
        let ending = begin_to_end(&a);
        if twice {
            tokio::time::sleep(Duration::from_secs(60)).await;
            assert!(!ending.is_finished(), "it had an hour");
            assert_eq!(stage.count(session, "execution.interrupted").await, 0);
            a.node.shutdown_now();
        }
        let began = stage.now();
        ending.await.unwrap();
        // The call acts once: nobody runs it again, nobody waits for it.
        let dump = stage.idle(session).await;
        assert!(stage.now() - began < 2_000, "{} ms", stage.now() - began);
        let (owners, ended) = runs(&stage, session).await;
        assert_eq!(owners, [a.node.owner(), b.node.owner()], "{}", lines(&dump));
        assert!(by_shutdown(&ended[0]), "{ended:?}");
        assert!(matches!(ended[1], EventBody::ExecutionSucceeded { .. }));
        assert_eq!(
            outcomes(&stage, session).await,
            [ToolOutcome::OutcomeUnknown]
        );
        assert_eq!(stage.plugins.scripted.count("act"), 1);
        assert_eq!(stage.tail(session).await.session.attempts, 0);
    }
}
