//! What counts as an attempt, and what becomes of a session that has had too many.

use std::collections::HashSet;
use std::sync::Mutex;
use std::time::Duration;

use mainstay_core::event::Delivery;
use mainstay_core::id::InputId;
use mainstay_core::model::{Failure, FailureClass};
use mainstay_core::plugin::ModelEvent;
use mainstay_core::port::Dump;
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{Scripted, events, last_text, say};
use mainstay_test_simulation::world::{World, prompt, user_texts};
use mainstay_test_support::build;

use super::later;

fn is_quarantined(dump: &Dump) -> bool {
    let session = dump.session.as_ref();
    session.is_some_and(|session| session.quarantined.is_some())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recov_13_a_session_that_always_crashes_is_quarantined_and_those_beside_it_finish() {
    let asked = Mutex::new(HashSet::new());
    let mut world = World::new(Scripted::new(move |request, _| {
        let text = last_text(request);
        // The first crash meets all of them in the middle of their answers.
        if text == "sick" || asked.lock().unwrap().insert(text) {
            later(60_000, say("never"))
        } else {
            say("ok")
        }
    }));
    world.settings.max_attempts = 3;
    let mut process = world.start(None);
    let session = process.session().await;
    process.prompt(session, "sick").await;
    let mut healthy = Vec::new();
    for n in 0..5 {
        let session = process.session().await;
        process.prompt(session, &format!("well {n}")).await;
        healthy.push(session);
    }
    let runs = || {
        let requests = world.plugins.requests.lock().unwrap();
        let sick = requests.iter().filter(|asked| last_text(asked) == "sick");
        sick.count()
    };
    world
        .until(session, "all requests", |_| {
            world.plugins.request_count() == 6
        })
        .await;
    for n in 1..=4 {
        let dump = world.until(session, "a run", |_| runs() == n).await;
        let attempts = dump.session.unwrap().attempts as usize;
        assert_eq!(attempts, n - 1, "each is stored before its run");
        process.kill();
        process = world.start(None);
    }
    let dump = world.until(session, "quarantine", is_quarantined).await;
    invariant::check(&dump);
    assert_eq!(runs(), 4, "one run and three resumes");
    let reason = dump.session.unwrap().quarantined.unwrap().to_string();
    assert!(reason.contains("crashed 4 times"), "{reason}");
    let content = prompt("more");
    let admission = process
        .node
        .admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
    let held = admission.held.unwrap();
    assert!(
        held.contains("quarantined") && held.contains(&reason),
        "{held}"
    );
    for session in healthy {
        let dump = world.idle(session).await;
        assert_eq!(dump.session.unwrap().attempts, 0);
        assert_eq!(world.count(session, "turn.ended").await, 1);
    }
}

#[tokio::test]
async fn recov_15_shutdowns_interrupts_and_refusals_of_a_server_count_as_no_attempt() {
    let mut world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return later(60_000, say("never"));
        }
        events([ModelEvent::Failed(Failure {
            class: FailureClass::RateLimited,
            message: "slow down".into(),
            retry_after_ms: None,
        })])
    }));
    world.settings.max_attempts = 3;
    world.settings.max_tries = 10;
    world.settings.retry_base = Duration::from_millis(1);
    let (mut process, session) = world.begin("ask").await;
    world.idle(session).await;
    let retries = world.count(session, "retry.scheduled").await;
    assert_eq!(retries, 9, "ten answers");
    assert_eq!(world.tail(session).await.session.attempts, 0);

    process.prompt(session, "go").await;
    for n in 2..12 {
        world
            .until(session, "the request", |_| {
                world.plugins.request_count() == n
            })
            .await;
        process.node.shutdown().await;
        process.kill();
        process = world.start(None);
        assert_eq!(world.tail(session).await.session.attempts, 0);
    }
    for n in 12..22 {
        world
            .until(session, "the request", |_| {
                world.plugins.request_count() == n
            })
            .await;
        process.node.interrupt(session).await.unwrap();
        world.idle(session).await;
        assert_eq!(world.tail(session).await.session.attempts, 0);
        process.prompt(session, "again").await;
    }
    assert_eq!(world.count(session, "execution.interrupted").await, 20);
}

#[tokio::test]
async fn recov_16_a_quarantined_session_runs_nothing_until_it_is_released() {
    let mut world = World::new(Scripted::new(|request, n| {
        if last_text(request) == "beside" || n > 1 {
            say("ok")
        } else {
            later(60_000, say("never"))
        }
    }));
    world.settings.max_attempts = 1;
    let (mut process, session) = world.begin("go").await;
    for n in 1..=2 {
        world
            .until(session, "a request", |_| world.plugins.request_count() == n)
            .await;
        process.kill();
        process = world.start(None);
    }
    world.until(session, "quarantine", is_quarantined).await;
    let before = world.plugins.decision_count();
    process.prompt(session, "more").await;
    for pass in 0..10 {
        // What only the store was told of is found by a look of the recovery loop.
        let beside = process.session().await;
        let commit = build::admit(beside, InputId::new(), Delivery::Queue, "beside");
        world.store.commit(commit).await.unwrap();
        let ended = |dump: &Dump| dump.events.iter().any(|event| event.kind == "turn.ended");
        world.until(beside, "a look", ended).await;
        let refused = process.node.run(session, None).await;
        assert!(refused.unwrap_err().to_string().contains("quarantined"));
        if pass == 5 {
            process.kill();
            process = world.start(None);
        }
    }
    let dump = world.dump(session).await;
    assert_eq!(dump.executions.len(), 2);
    assert_eq!(dump.inputs.len(), 2, "what came meanwhile is listed");
    // Each session beside it takes two decisions.
    assert_eq!(world.plugins.decision_count(), before + 20);
    process.node.resume(session).await.unwrap();
    world
        .until(session, "both turns", |dump| user_texts(dump).len() == 2)
        .await;
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["go", "more"]);
    assert_eq!(dump.session.unwrap().attempts, 0);
}
