//! Calls of tools: before, beside and after their model's answer, hosted ones among them.

use std::sync::atomic::Ordering;

use mainstay_core::commit::Write;
use mainstay_core::event::EventBody;
use mainstay_core::history::ItemBody;
use mainstay_core::model::{
    Content, Failure, FailureClass, FinishReason, HostedResult, ToolCall, ToolOutcome,
};
use mainstay_core::plugin::{LocalEvent, ModelEvent};
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::plugins::{Scripted, call, events, results, say, sent};
use mainstay_test_simulation::world::{World, lines};

use super::{later, one_call};

#[tokio::test]
async fn int_3_a_call_that_streams_was_not_started_and_a_once_call_is_unknown() {
    let world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return say("done");
        }
        let mut answer = call(&[("a", "act", "{}")]);
        answer.pop();
        answer.extend(events([
            ModelEvent::ToolCallStart {
                id: "b".into(),
                tool: "look".into(),
            },
            ModelEvent::ToolCallDelta {
                id: "b".into(),
                arguments: "{\"n\":".into(),
            },
        ]));
        answer.push(LocalEvent {
            after_ms: 60_000,
            event: ModelEvent::Finished(FinishReason::ToolCalls),
        });
        answer
    }));
    let _gate = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "both", |dump| {
            lines(dump).contains("{\\\"n\\\":") && world.plugins.count("act") == 1
        })
        .await;
    process.node.interrupt(session).await.unwrap();
    let dump = world.idle(session).await;
    let outcome = |id: &str| {
        dump.items.iter().find_map(|item| match &item.body {
            ItemBody::ToolResult(result) if result.call == id => Some(result.outcome),
            _ => None,
        })
    };
    assert_eq!(outcome("a"), Some(ToolOutcome::OutcomeUnknown));
    assert_eq!(outcome("b"), Some(ToolOutcome::NotStarted));
}

#[tokio::test]
async fn int_6_an_interrupt_before_the_first_byte_leaves_no_empty_message() {
    let world = World::new(Scripted::new(|_, n| {
        if n == 0 {
            later(60_000, say("x"))
        } else {
            say("ok")
        }
    }));
    let (process, session) = world.begin("one").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    process.node.interrupt(session).await.unwrap();
    let dump = world.idle(session).await;
    assert!(
        !dump
            .items
            .iter()
            .any(|item| matches!(item.body, ItemBody::Assistant(_)))
    );
    process.prompt(session, "two").await;
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    assert_eq!(sent(&requests[1]), ["one", "two"]);
}

#[tokio::test]
async fn recov_4_a_call_that_streamed_was_not_started() {
    let world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return say("done");
        }
        let mut answer = events([
            ModelEvent::ToolCallStart {
                id: "b".into(),
                tool: "look".into(),
            },
            ModelEvent::ToolCallDelta {
                id: "b".into(),
                arguments: "{\"n\":".into(),
            },
        ]);
        answer.push(LocalEvent {
            after_ms: 60_000,
            event: ModelEvent::Finished(FinishReason::ToolCalls),
        });
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
    assert!(lines(&dump).contains("not_started"));
    assert_eq!(world.plugins.count("look"), 0);
}

#[tokio::test]
async fn recov_8_a_hosted_call_without_result_is_missing_one() {
    let hosted = ToolCall {
        id: "h".into(),
        tool: "search".into(),
        arguments: "{}".into(),
    };
    let world = World::new(Scripted::new(move |_, n| {
        if n > 0 {
            return say("done");
        }
        let mut answer = events([ModelEvent::HostedCall(hosted.clone())]);
        answer.push(LocalEvent {
            after_ms: 60_000,
            event: ModelEvent::Finished(FinishReason::Stop),
        });
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
    assert_eq!(lines(&dump).matches("result_missing").count(), 1);
    assert!(world.plugins.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn tool_7_a_hosted_pair_is_in_its_place_in_the_next_request() {
    let world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return say("done");
        }
        events([
            ModelEvent::HostedCall(ToolCall {
                id: "h".into(),
                tool: "search".into(),
                arguments: "{}".into(),
            }),
            ModelEvent::HostedResult(HostedResult {
                call: "h".into(),
                is_error: false,
                data: "{\"x\":1}".into(),
            }),
            ModelEvent::TextDelta("found".into()),
            ModelEvent::Finished(FinishReason::Stop),
        ])
    }));
    let (process, session) = world.begin("one").await;
    world.idle(session).await;
    process.prompt(session, "two").await;
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    let mainstay_core::model::Message::Assistant(content) = &requests[1].messages[1] else {
        panic!("the answer")
    };
    assert!(matches!(
        content[..],
        [
            Content::HostedCall(_),
            Content::HostedResult(_),
            Content::Text(_)
        ]
    ));
    assert!(world.plugins.calls.lock().unwrap().is_empty());
}

#[tokio::test]
async fn tool_1_a_call_whose_start_cannot_be_stored_does_not_run() {
    let world = World::new(one_call("act"));
    world.memory.fail_when(|commit| {
        matches!(&commit.write, Write::Append(append)
            if append.events.iter().any(|draft| matches!(draft.body, EventBody::CallStarted { .. })))
    });
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() >= 1
        })
        .await;
    world
        .until(session, "the end of that execution", |dump| {
            dump.events.iter().any(|e| e.kind == "recovery.recorded")
        })
        .await;
    assert_eq!(world.plugins.count("act"), 0);
    world.memory.heal();
    world
        .until(session, "the call", |_| world.plugins.count("act") == 1)
        .await;
    world.idle(session).await;
}

#[tokio::test]
async fn tool_1_a_tool_runs_once_its_start_is_stored_and_not_before() {
    for tool in ["put", "act"] {
        let world = World::new(one_call(tool));
        let held = world.plugins.hold(tool);
        let gate = world.memory.gate(|commit| {
            matches!(&commit.write, Write::Append(append)
                if append.events.iter().any(|draft| matches!(draft.body, EventBody::CallStarted { .. })))
        });
        let (_process, session) = world.begin("go").await;
        gate.reached(1).await;
        // Whatever else there is to do has its chance.
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        assert_eq!(world.plugins.count(tool), 0, "it ran ahead of its start");
        gate.open();
        world
            .until(session, "the call", |_| world.plugins.count(tool) == 1)
            .await;
        assert_eq!(world.count(session, "call.started").await, 1);
        assert_eq!(world.count(session, "call.settled").await, 0);
        held.notify_one();
        world.idle(session).await;
        assert_eq!(world.plugins.count(tool), 1);
    }
}

#[tokio::test]
async fn tool_3_a_call_starts_while_the_next_ones_arguments_stream() {
    let world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return say("done");
        }
        let mut answer = call(&[("a", "put", "{}")]);
        answer.pop();
        let mut second = call(&[("b", "look", "{}")]);
        second[1].after_ms = 300;
        answer.extend(second);
        answer
    }));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let text: Vec<String> = lines(&dump).lines().map(str::to_owned).collect();
    let at = |needle: &str| text.iter().position(|line| line.contains(needle)).unwrap();
    assert!(at("call.started") < at("\"call_ready\":{\"id\":\"b\"}"));
}

/// Five calls of a second each, by the virtual clock.
#[tokio::test(start_paused = true)]
async fn tool_2_five_calls_of_a_second_take_less_than_two() {
    let each = [
        ("c1", "look"),
        ("c2", "put"),
        ("c3", "act"),
        ("c4", "look"),
        ("c5", "act"),
    ];
    let stage = Stage::new(Decided::new(move |request, _| match results(request) {
        0 => call(&each.map(|(id, tool)| (id, tool, "{}"))),
        _ => say("over"),
    }));
    let scripted = &stage.plugins.scripted;
    scripted.call_ms.store(1000, Ordering::SeqCst);
    let host = stage.start();
    let session = stage.create("default").await;
    let began = stage.now();
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    let took = stage.now() - began;
    assert!((1000..2000).contains(&took), "{took} ms");
    assert_eq!(scripted.calls.lock().unwrap().len(), 5);
    let requests = scripted.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    assert_eq!(results(&requests[1]), 5, "{}", lines(&dump));
}

#[tokio::test]
async fn tool_9_running_calls_are_awaited_when_the_stream_breaks() {
    let world = World::new(Scripted::new(|_, n| {
        if n > 0 {
            return say("done");
        }
        let mut answer = call(&[("a", "look", "{}"), ("b", "put", "{}")]);
        *answer.last_mut().unwrap() = LocalEvent {
            after_ms: 0,
            event: ModelEvent::Failed(Failure {
                class: FailureClass::Transport,
                message: "reset".into(),
                retry_after_ms: None,
            }),
        };
        answer
    }));
    let look = world.plugins.hold("look");
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "both calls", |_| {
            world.plugins.count("look") + world.plugins.count("put") == 2
        })
        .await;
    look.notify_one();
    let dump = world.idle(session).await;
    let kinds: Vec<&str> = dump.events.iter().map(|e| e.kind.as_str()).collect();
    let last_result = kinds.iter().rposition(|k| *k == "call.settled").unwrap();
    let ended = kinds.iter().position(|k| *k == "model.ended").unwrap();
    assert!(last_result < ended, "{kinds:?}");
    assert_eq!(world.plugins.count("look") + world.plugins.count("put"), 2);
}

#[tokio::test]
async fn tool_10_two_equal_calls_have_keys_of_their_own() {
    let world = World::new(Scripted::new(|request, _| {
        if results(request) == 0 {
            call(&[("a", "put", "{}"), ("b", "put", "{}")])
        } else {
            say("done")
        }
    }));
    let (_process, session) = world.begin("go").await;
    world.idle(session).await;
    let calls = world.plugins.calls.lock().unwrap().clone();
    assert_ne!(calls[0].key, calls[1].key);
}

#[tokio::test]
async fn tool_12_a_pure_call_costs_no_commit_of_its_own() {
    let world = World::new(one_call("look"));
    let (process, session) = world.begin("go").await;
    world.idle(session).await;
    assert_eq!(process.link.commits(), 4);
    assert_eq!(world.count(session, "call.started").await, 0);
    assert_eq!(world.count(session, "call.settled").await, 1);
}
