//! Requests to a model: retried, refused, broken off, and rebuilt from the log.

use mainstay_core::history::{Ending, ItemBody};
use mainstay_core::model::{Content, Failure, FailureClass, FinishReason};
use mainstay_core::plugin::{Decision, LocalEvent, ModelEvent, Trigger};
use mainstay_test_simulation::plugins::{Scripted, ask, call, events, plain_loop, results, say};
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
        let mut answer: Vec<LocalEvent> = (0..40)
            .map(|n| LocalEvent {
                after_ms: 5,
                event: ModelEvent::TextDelta(format!("wörd{n} ")),
            })
            .collect();
        answer.extend(events([ModelEvent::Finished(FinishReason::Stop)]));
        answer
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
