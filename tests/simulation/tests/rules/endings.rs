//! A node that is told to end, while somebody else stops the session or gives it more to do.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mainstay_core::approval;
use mainstay_core::commit::{Append, Commit, End, Write};
use mainstay_core::event::{EventBody, InterruptReason, TurnOutcome};
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::tail::CallStatus;
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::link::{Fate, Fates};
use mainstay_test_simulation::decisions::stage::{Host, Stage, an_answer};
use mainstay_test_simulation::plugins::{call, results, say};
use mainstay_test_simulation::world::lines;

/// A step of two calls: one takes as long as the test wants, about the other a person is asked.
fn asking() -> Stage {
    let mut stage = Stage::new(Decided::new(|request, _| match results(request) {
        0 => call(&[("runs", "look", "{}"), ("held", "act", r#"{"ask":"x"}"#)]),
        _ => say("over"),
    }));
    stage.settings.shutdown_grace = Duration::from_secs(3600);
    stage.settings.poll_every = Duration::from_millis(100);
    stage
}

/// A session in that step at a node that is told to end. Gives the step, and the node's end.
async fn ending(stage: &Stage, host: &Host) -> (SessionId, Seq, tokio::task::JoinHandle<()>) {
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let tail = stage
        .until(session, "a held call", |tail| {
            let step = tail.step.as_ref();
            step.is_some_and(|step| {
                step.calls
                    .iter()
                    .any(|call| call.status == CallStatus::Held)
            })
        })
        .await;
    stage
        .when("the call that runs", || {
            stage.plugins.scripted.count("look") == 1
        })
        .await;
    let node = Arc::clone(&host.node);
    let end = tokio::spawn(async move { node.shutdown().await });
    stage.when("the drain", || host.node.pulse().draining).await;
    (session, tail.session.step.unwrap(), end)
}

fn suspends(commit: &Commit) -> bool {
    let Write::Append(append) = &commit.write else {
        return false;
    };
    matches!(
        append,
        Append {
            end: Some(End::Suspended),
            ..
        }
    )
}

#[tokio::test(start_paused = true)]
async fn coord_3_an_interrupt_that_a_node_meets_at_its_end_is_not_lost() {
    let stage = asking();
    let _held = stage.plugins.scripted.hold("look");
    let a = stage.start();
    let (session, _, end) = ending(&stage, &a).await;
    // Another node marks it; this one looks for marks no more.
    let write = Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    stage.write(session, write).await.unwrap();
    stage.plugins.scripted.let_go("look");
    end.await.unwrap();
    let dump = stage.dump(session).await;
    let row = dump.session.as_ref().unwrap();
    assert_eq!(row.turn, None, "{}", lines(&dump));
    assert_eq!(row.last_turn, Some(TurnOutcome::Interrupted));
    let bodies = stage.bodies(session).await;
    let ended: Vec<_> = bodies.iter().filter_map(EventBody::terminal_of).collect();
    assert_eq!(ended.len(), 1, "{}", lines(&dump));
    assert!(bodies.iter().any(|body| matches!(
        body,
        EventBody::ExecutionInterrupted {
            reason: InterruptReason::User,
            ..
        }
    )));
    assert_eq!(stage.plugins.scripted.count("act"), 0);
}

/// The first commit that would leave the session waiting comes behind the answer that it waits for.
fn answered_first(stage: &Stage) -> Fates {
    let (memory, done) = (Arc::clone(&stage.memory), AtomicBool::new(false));
    Box::new(move |commit, _| {
        if !suspends(commit) || done.swap(true, Ordering::SeqCst) {
            return Fate::Pass;
        }
        let log = memory.log();
        let step = log.iter().find_map(|logged| match &logged.commit.write {
            Write::Append(append) => append.events.iter().find_map(|draft| match &draft.body {
                EventBody::CallHeld { step, .. } => Some(*step),
                _ => None,
            }),
            _ => None,
        });
        let key = approval::key(step.expect("a held call"), "held");
        Fate::Overtaken(Box::new(Commit {
            write: Write::Answer(an_answer(&key, None)),
            ..commit.clone()
        }))
    })
}

#[tokio::test(start_paused = true)]
async fn node_3_what_comes_in_at_a_nodes_last_commit_is_handed_over_at_once() {
    let stage = asking();
    let _held = stage.plugins.scripted.hold("look");
    let a = stage.start_with(answered_first(&stage));
    let (session, _, end) = ending(&stage, &a).await;
    stage.plugins.scripted.let_go("look");
    end.await.unwrap();
    let tail = stage.tail(session).await;
    let now = stage.now();
    let lives = tail.claim.as_ref().filter(|claim| claim.expires_at > now);
    assert_eq!(lives, None, "a claim that nobody renews any more");
    let b = stage.start();
    let dump = stage.idle(session).await;
    assert!(stage.now() - now < 2_000, "{}", lines(&dump));
    assert_eq!(stage.plugins.scripted.count("act"), 1);
    assert_eq!(dump.session.unwrap().attempts, 0);
    let bodies = stage.bodies(session).await;
    let owners = bodies.iter().filter_map(|body| match body {
        EventBody::ExecutionStarted { owner, .. } => Some(*owner),
        _ => None,
    });
    let owners: Vec<_> = owners.collect();
    assert_eq!(owners, [a.node.owner(), b.node.owner()]);
    let reasons = bodies.iter().filter_map(|body| match body {
        EventBody::ExecutionInterrupted { reason, .. } => Some(*reason),
        _ => None,
    });
    assert_eq!(reasons.collect::<Vec<_>>(), [InterruptReason::Shutdown]);
}
