//! Requests to a model: retried, refused, broken off, and rebuilt from the log.

use mainstay_core::event::Record;
use mainstay_core::history::{Ending, ItemBody};
use mainstay_core::model::{Content, Failure, FailureClass};
use mainstay_core::plugin::{Decision, LocalEvent, ModelEvent, Trigger};
use mainstay_core::port::Dump;
use mainstay_core::tail::Tail;
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::plugins::{
    Scripted, ask, call, events, plain_loop, results, say, slowly,
};
use mainstay_test_simulation::world::{World, lines};

#[tokio::test]
async fn model_5_a_retry_is_durable_before_its_wait_and_sends_the_same() {
    let world = World::new(Scripted::new(|_, _| {
        events([ModelEvent::Failed(Failure {
            class: FailureClass::RateLimited,
            message: "slow down".into(),
            retry_after_ms: Some(100),
        })])
    }));
    let mut world = world;
    world.settings.max_tries = 2;
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let retry = dump
        .events
        .iter()
        .find(|e| e.kind == "retry.scheduled")
        .unwrap();
    assert!(retry.data["wait_ms"].as_u64().unwrap() >= 100);
    let ended = dump
        .events
        .iter()
        .find(|e| e.kind == "model.ended")
        .unwrap();
    assert!(
        ended.at >= retry.at + 100,
        "the wait lies between the tries"
    );
    assert_eq!(
        dump.events
            .iter()
            .filter(|e| e.kind == "step.started")
            .count(),
        1
    );
    assert_eq!(world.tail(session).await.session.attempts, 0);
}

/// What a server asks for holds for whoever goes on, and for all there who use the same key.
#[tokio::test(start_paused = true)]
async fn model_5_model_13_a_wait_outlives_the_process_that_began_it() {
    let stage = Stage::new(Decided::new(|_, n| {
        if n > 0 {
            return say("ok");
        }
        events([ModelEvent::Failed(Failure {
            class: FailureClass::RateLimited,
            message: "slow down".into(),
            retry_after_ms: Some(60_000),
        })])
    }));
    let host = stage.start();
    let (first, second) = (stage.create("default").await, stage.create("default").await);
    host.prompt(first, "a").await;
    let waits = |tail: &Tail| tail.step.as_ref().is_some_and(|step| step.retry.is_some());
    stage.until(first, "a wait", waits).await;
    host.kill();
    let host = stage.start();
    let resumed = |tail: &Tail| tail.claim.as_ref().is_some_and(|claim| claim.resumed);
    stage.until(first, "the resumption", resumed).await;
    host.prompt(second, "b").await;
    let answered = |dump: &Dump| {
        let mut events = dump.events.iter();
        let ended = events.find(|event| event.kind == "model.ended");
        ended.expect("the model has answered").at
    };
    let dump = stage.idle(first).await;
    let retries = |event: &&Record| event.kind == "retry.scheduled";
    let retries: Vec<&Record> = dump.events.iter().filter(retries).collect();
    assert_eq!(retries.len(), 1);
    let until = retries[0].at + 60_000;
    assert!(answered(&dump) >= until, "{}", lines(&dump));
    let beside = stage.idle(second).await;
    assert!(answered(&beside) >= until, "{}", lines(&beside));
    for session in [first, second] {
        assert_eq!(stage.tail(session).await.session.attempts, 0);
    }
}

#[tokio::test]
async fn model_6_a_permanent_failure_is_asked_once() {
    let world = World::new(Scripted::new(|_, _| {
        events([ModelEvent::Failed(Failure {
            class: FailureClass::Authentication,
            message: "bad key".into(),
            retry_after_ms: None,
        })])
    }));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    assert!(lines(&dump).contains("bad key"));
    assert_eq!(world.plugins.request_count(), 1);
    assert_eq!(world.count(session, "retry.scheduled").await, 0);
}

#[tokio::test]
async fn model_8_a_reset_after_output_goes_to_the_runner_with_its_results() {
    let world = World::new(Scripted::with_runner(
        |view| match &view.trigger {
            Trigger::ModelFailed(_) => Ok(Decision {
                entries: Vec::new(),
                action: ask(view),
                state: None,
            }),
            _ => plain_loop(view),
        },
        |_, n| {
            if n > 0 {
                return say("done");
            }
            let mut answer = events([ModelEvent::TextDelta("let me look ".into())]);
            answer.extend(call(&[("a", "look", "{}")]));
            *answer.last_mut().unwrap() = LocalEvent {
                after_ms: 0,
                event: ModelEvent::Failed(Failure {
                    class: FailureClass::Transport,
                    message: "reset".into(),
                    retry_after_ms: None,
                }),
            };
            answer
        },
    ));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    assert!(dump.items.iter().any(
        |item| matches!(&item.body, ItemBody::Assistant(a) if matches!(a.ending, Ending::Failed(_)))
    ));
    assert_eq!(world.plugins.count("look"), 1);
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    assert_eq!(results(&requests[1]), 1);
}

#[tokio::test]
async fn model_11_a_message_rebuilt_from_the_log_is_what_watchers_joined() {
    let world = World::new(Scripted::new(|_, _| {
        slowly(5, (0..40).map(|n| format!("wörd{n} ")))
    }));
    let process = world.start(None);
    let session = process.session().await;
    let mut live = process.node.watch_live(session);
    process.prompt(session, "go").await;
    let dump = world.idle(session).await;
    let mut joined = String::new();
    while let Ok(event) = live.try_recv() {
        if let mainstay_core::live::Live::Text { text, .. } = event.event {
            joined.push_str(&text);
        }
    }
    let Some(ItemBody::Assistant(assistant)) = dump.items.last().map(|item| &item.body) else {
        panic!("an answer")
    };
    assert_eq!(assistant.content, [Content::Text(joined)]);
    assert!(
        dump.events
            .iter()
            .filter(|e| e.kind == "step.output")
            .count()
            >= 3,
        "it was flushed as it came"
    );
}
