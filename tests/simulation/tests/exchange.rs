//! What becomes of calls when the answer that made them ends in one way or another, or is stopped.

use mainstay_core::history::ItemBody;
use mainstay_core::model::{Failure, FailureClass, FinishReason, ToolCall, ToolOutcome};
use mainstay_core::plugin::{LocalEvent, ModelEvent};
use mainstay_core::port::Dump;
use mainstay_test_simulation::plugins::{Scripted, call, events, results, say, sent};
use mainstay_test_simulation::world::World;

fn outcome(dump: &Dump, call: &str) -> Option<ToolOutcome> {
    dump.items.iter().find_map(|item| match &item.body {
        ItemBody::ToolResult(result) if result.call == call => Some(result.outcome),
        _ => None,
    })
}

fn kinds(dump: &Dump) -> Vec<&str> {
    dump.events.iter().map(|e| e.kind.as_str()).collect()
}

#[tokio::test]
async fn tool_8_a_hosted_call_without_result_is_missing_one_however_the_answer_ends() {
    let failed = ModelEvent::Failed(Failure {
        class: FailureClass::Transport,
        message: "reset".into(),
        retry_after_ms: None,
    });
    let endings = [
        Some(ModelEvent::Finished(FinishReason::Stop)),
        Some(failed),
        None,
    ];
    for ending in endings {
        let script = ending.clone();
        let world = World::new(Scripted::new(move |_, _| {
            let hosted = ToolCall {
                id: "h".into(),
                tool: "search".into(),
                arguments: "{}".into(),
            };
            events(
                [ModelEvent::HostedCall(hosted)]
                    .into_iter()
                    .chain(script.clone()),
            )
        }));
        let (_process, session) = world.begin("go").await;
        let dump = world.idle(session).await;
        assert!(
            mainstay_test_simulation::world::lines(&dump).contains("result_missing"),
            "{ending:?}"
        );
        let kinds = kinds(&dump);
        let at = |kind: &str| kinds.iter().position(|k| *k == kind).unwrap();
        assert!(at("call.settled") < at("model.ended"), "{ending:?}");
        for kind in ["call.settled", "model.ended"] {
            assert_eq!(
                kinds.iter().filter(|k| **k == kind).count(),
                1,
                "{ending:?}"
            );
        }
        assert!(world.plugins.calls.lock().unwrap().is_empty());
        assert_eq!(world.plugins.request_count(), 1, "{ending:?}");
    }
}

#[tokio::test]
async fn model_10_nothing_may_follow_the_end_of_an_answer() {
    let stop = || ModelEvent::Finished(FinishReason::Stop);
    let text = || ModelEvent::TextDelta("a".into());
    for (script, rule) in [
        (vec![text(), stop(), text()], "went on after its finish"),
        (vec![text(), stop(), stop()], "finished twice"),
        (vec![stop(), stop()], "finished twice"),
    ] {
        let world = World::new(Scripted::new(move |_, _| events(script.clone())));
        let (_process, session) = world.begin("go").await;
        let dump = world.idle(session).await;
        let ended: Vec<_> = dump
            .events
            .iter()
            .filter(|e| e.kind == "model.ended")
            .collect();
        assert_eq!(ended.len(), 1);
        let failure = &ended[0].data["ending"]["failed"];
        assert!(
            failure["message"].as_str().unwrap().contains(rule),
            "{failure}"
        );
        assert_eq!(world.count(session, "execution.failed").await, 1);
        assert_eq!(
            world.plugins.request_count(),
            1,
            "a lie is not asked for again"
        );
    }
}

#[tokio::test]
async fn tool_12_a_pure_call_that_a_kill_cut_short_runs_again_and_has_one_result() {
    let world = World::new(Scripted::new(|request, _| {
        if results(request) == 0 {
            call(&[("c", "look", "{}")])
        } else {
            say("done")
        }
    }));
    let _gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call to run, and what led to it", |dump| {
            world.plugins.count("look") == 1 && kinds(dump).contains(&"step.output")
        })
        .await;
    process.kill();
    world.plugins.let_go("look");
    let _next = world.start(None);
    let dump = world.idle(session).await;
    assert_eq!(world.plugins.count("look"), 2);
    assert_eq!(outcome(&dump, "c"), Some(ToolOutcome::Succeeded));
    let settled = kinds(&dump)
        .iter()
        .filter(|k| **k == "call.settled")
        .count();
    assert_eq!(settled, 1);
    assert!(!kinds(&dump).contains(&"call.started"));
}

#[tokio::test]
async fn int_2_a_pure_call_that_ran_says_interrupted_and_not_that_it_never_began() {
    let world = World::new(Scripted::new(|request, _| {
        if results(request) == 0 {
            call(&[("c", "look", "{}")])
        } else {
            say("done")
        }
    }));
    let _gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("look") == 1)
        .await;
    assert!(process.node.interrupt(session).await.unwrap());
    let dump = world.idle(session).await;
    assert_eq!(outcome(&dump, "c"), Some(ToolOutcome::Interrupted));
    assert_eq!(world.count(session, "execution.interrupted").await, 1);
}

#[tokio::test]
async fn int_6_nothing_is_asked_after_an_interrupt_in_a_wait_between_tries() {
    let world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return say("hello");
        }
        vec![LocalEvent {
            after_ms: 0,
            event: ModelEvent::Failed(Failure {
                // A rate limit would be the next turn's too.
                class: FailureClass::Overloaded,
                message: "slow down".into(),
                retry_after_ms: Some(3_600_000),
            }),
        }]
    }));
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the wait", |dump| {
            kinds(dump).contains(&"retry.scheduled")
        })
        .await;
    process.node.interrupt(session).await.unwrap();
    let dump = world.idle(session).await;
    assert_eq!(world.plugins.request_count(), 1);
    for item in &dump.items {
        if let ItemBody::Assistant(answer) = &item.body {
            assert!(!answer.content.is_empty(), "an empty message");
        }
    }
    assert_eq!(world.count(session, "execution.interrupted").await, 1);
    process.prompt(session, "two").await;
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    assert_eq!(sent(&requests[1]), ["go", "two"]);
}
