//! Rules of the claim, the coordinator and the boundary, under faults.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::commit::{Append, End, Write};
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::{EventBody, InterruptReason};
use mainstay_core::history::{Ending, ItemBody};
use mainstay_core::live::Hint;
use mainstay_core::model::{
    Content, Failure, FailureClass, FinishReason, HostedResult, Part, ToolCall, ToolOutcome,
};
use mainstay_core::node::Followed;
use mainstay_core::plugin::{Action, Decision, Entry, GuestError, LocalEvent, ModelEvent, Trigger};
use mainstay_core::tail::{Scope, Status};
use mainstay_test_simulation::crash::Point;
use mainstay_test_simulation::plugins::{Scripted, ask, call, events, plain_loop, results, say};
use mainstay_test_simulation::world::{World, lines, user_texts};

type Decide = dyn Fn(&mainstay_core::plugin::View) -> Action + Send + Sync;

fn later(after_ms: u32, mut answer: Vec<LocalEvent>) -> Vec<LocalEvent> {
    answer[0].after_ms = after_ms;
    answer
}

fn one_call(tool: &'static str) -> Scripted {
    Scripted::new(move |request, _| {
        if results(request) == 0 {
            call(&[("c", tool, "{}")])
        } else {
            say("done")
        }
    })
}

fn ends(commit: &mainstay_core::commit::Commit) -> bool {
    matches!(&commit.write, Write::Append(Append { end: Some(_), .. }))
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
    assert_eq!(world.plugins.request_count(), 2);
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

#[tokio::test]
async fn step_2_state_comes_back_byte_for_byte_in_another_process() {
    let bytes = vec![0, 255, 7, 128];
    let kept = bytes.clone();
    let world = World::new(Scripted::with_runner(
        move |view| {
            if view.trigger == Trigger::TurnStarted {
                return Ok(Decision {
                    entries: Vec::new(),
                    action: ask(view),
                    state: Some(kept.clone()),
                });
            }
            let state = view
                .state
                .as_ref()
                .ok_or_else(|| GuestError::Refused("no state".into()))?;
            if state.data != kept || state.runner != "scripted-runner" {
                return Err(GuestError::Refused("another state".into()));
            }
            plain_loop(view)
        },
        |request, _| {
            if results(request) == 0 {
                call(&[("c", "put", "{}")])
            } else {
                say("done")
            }
        },
    ));
    let _gate = world.plugins.hold("put");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("put") == 1)
        .await;
    process.kill();
    world.plugins.let_go("put");
    let _next = world.start(None);
    world.idle(session).await;
    assert_eq!(world.count(session, "execution.succeeded").await, 1);
}

#[tokio::test]
async fn step_5_what_a_runner_says_is_a_message_once() {
    let world = World::new(Scripted::with_runner(
        |_| {
            Ok(Decision {
                entries: vec![Entry::Say(vec![Part::Text("done without a model".into())])],
                action: Action::Done,
                state: None,
            })
        },
        |_, _| say("never"),
    ));
    let process = world.start(Some(Point::After(1)));
    let session = process.session().await;
    process.prompt(session, "go").await;
    tokio::time::timeout(Duration::from_secs(20), process.link.died())
        .await
        .unwrap();
    process.kill();
    let _next = world.start(None);
    let dump = world.idle(session).await;
    assert_eq!(lines(&dump).matches("done without a model").count(), 1);
    assert_eq!(world.plugins.request_count(), 0);
}

#[tokio::test]
async fn step_6_a_decision_that_names_what_does_not_exist_fails_by_its_name() {
    let cases: Vec<(Box<Decide>, &str)> = vec![
        (
            Box::new(|_| {
                Action::CallTools(vec![ToolCall {
                    id: "x".into(),
                    tool: "nowhere".into(),
                    arguments: "{}".into(),
                }])
            }),
            "\"nowhere\"",
        ),
        (
            Box::new(|view| {
                let Action::CallModel(mut call) = ask(view) else {
                    unreachable!()
                };
                call.model = Some(mainstay_core::history::ModelRef {
                    provider: "nobody".into(),
                    model: "m".into(),
                });
                Action::CallModel(call)
            }),
            "\"nobody\"",
        ),
        (
            Box::new(|view| {
                let Action::CallModel(mut call) = ask(view) else {
                    unreachable!()
                };
                call.hosted_tools = vec!["hosted-x".into()];
                Action::CallModel(call)
            }),
            "\"hosted-x\"",
        ),
        (
            Box::new(|view| {
                let Action::CallModel(mut call) = ask(view) else {
                    unreachable!()
                };
                call.transcript = vec![mainstay_core::plugin::Segment::Items(
                    mainstay_core::model::Range {
                        after: 0,
                        through: view.context.through + 100,
                    },
                )];
                Action::CallModel(call)
            }),
            "outside the history",
        ),
    ];
    for (decide, name) in cases {
        let world = World::new(Scripted::with_runner(
            move |view| {
                Ok(Decision {
                    entries: Vec::new(),
                    action: decide(view),
                    state: None,
                })
            },
            |_, _| say("never"),
        ));
        let (_process, session) = world.begin("go").await;
        let dump = world.idle(session).await;
        let failed = dump
            .events
            .iter()
            .find(|e| e.kind == "execution.failed")
            .unwrap();
        assert!(
            failed.data["error"].as_str().unwrap().contains(name),
            "{failed:?}"
        );
        assert_eq!(world.plugins.request_count(), 0);
        assert_eq!(world.count(session, "step.started").await, 0);
    }
}

#[tokio::test]
async fn step_10_a_trap_keeps_the_results_before_it() {
    let world = World::new(Scripted::with_runner(
        |view| match &view.trigger {
            Trigger::ModelFinished(_) => Err(GuestError::Trap(
                "runner scripted (sha256:0123): trapped in decide".into(),
            )),
            _ => plain_loop(view),
        },
        |_, _| call(&[("c", "look", "{}")]),
    ));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    assert!(
        dump.items
            .iter()
            .any(|item| matches!(item.body, ItemBody::ToolResult(_)))
    );
    let failed = dump
        .events
        .iter()
        .find(|e| e.kind == "execution.failed")
        .unwrap();
    assert!(
        failed.data["error"]
            .as_str()
            .unwrap()
            .contains("sha256:0123")
    );
}

#[tokio::test]
async fn log_9_a_follower_that_pauses_meets_every_event_once() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let (process, session) = world.begin("one").await;
    world.idle(session).await;
    let mut log = Box::pin(process.node.log(session, 0, true));
    let mut seqs = Vec::new();
    let mut markers = Vec::new();
    for _ in 0..3 {
        if let Followed::Event(record) = log.next().await.unwrap().unwrap() {
            seqs.push(record.seq);
        }
    }
    process.prompt(session, "two").await;
    world.idle(session).await;
    let head = world.tail(session).await.session.head;
    while seqs.last() != Some(&head) || markers.is_empty() {
        match tokio::time::timeout(Duration::from_secs(20), log.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
        {
            Followed::Event(record) => seqs.push(record.seq),
            Followed::Synced(seq) => {
                assert_eq!(seqs.last(), Some(&seq));
                markers.push(seq);
            }
        }
    }
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
    assert_eq!(markers.len(), 1);
}

#[tokio::test]
async fn log_11_hints_are_coalesced_and_begin_with_a_sweep() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let process = world.start(None);
    let mut hints = process.node.hints(16);
    assert_eq!(hints.next().await, Hint::Sweep);
    let session = process.session().await;
    process.prompt(session, "go").await;
    world.idle(session).await;
    let head = world.tail(session).await.session.head;
    assert_eq!(hints.next().await, Hint::Changed(session, head));
    assert_eq!(hints.try_next(), None);
    for _ in 0..100 {
        process.session().await;
    }
    assert_eq!(hints.next().await, Hint::Sweep);
    assert_eq!(hints.try_next(), None);
    let last = process.session().await;
    assert_eq!(hints.next().await, Hint::Changed(last, 1));
}

#[tokio::test]
async fn log_17_streamed_text_is_flushed_in_few_chunks_and_not_repeated() {
    let world = World::new(Scripted::new(|_, _| {
        let mut answer: Vec<LocalEvent> = (0..100)
            .map(|_| LocalEvent {
                after_ms: 5,
                event: ModelEvent::TextDelta("0123456789".into()),
            })
            .collect();
        answer.extend(events([ModelEvent::Finished(FinishReason::Stop)]));
        answer
    }));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let first = dump
        .events
        .iter()
        .find(|e| e.kind == "step.started")
        .unwrap()
        .at;
    let last = dump
        .events
        .iter()
        .find(|e| e.kind == "model.ended")
        .unwrap()
        .at;
    let chunks = dump
        .events
        .iter()
        .filter(|e| e.kind == "step.output")
        .count() as u64;
    // One a flush interval of 50 ms, and one more at either end.
    assert!(
        chunks <= (last - first) / 50 + 2,
        "{chunks} in {} ms",
        last - first
    );
    assert_eq!(lines(&dump).matches("0123456789").count(), 100);
}

#[tokio::test]
async fn recov_15_shutdowns_and_interrupts_count_as_no_attempt() {
    let world = World::new(Scripted::new(|_, _| later(60_000, say("never"))));
    let mut process = world.start(None);
    let session = process.session().await;
    process.prompt(session, "go").await;
    for n in 1..=5 {
        world
            .until(session, "the request", |_| {
                world.plugins.request_count() == n
            })
            .await;
        process.node.shutdown().await;
        process.kill();
        process = world.start(None);
        world
            .until(session, "the next run", |dump| {
                dump.claim.as_ref().is_some_and(|claim| !claim.ended)
            })
            .await;
        assert_eq!(world.tail(session).await.session.attempts, 0);
    }
    process.node.interrupt(session).await.unwrap();
    let dump = world.idle(session).await;
    assert_eq!(world.tail(session).await.session.attempts, 0);
    assert!(
        dump.events
            .iter()
            .filter(|e| e.kind == "execution.interrupted")
            .count()
            >= 6
    );
}

#[tokio::test]
async fn recov_16_a_quarantined_session_runs_nothing_until_it_is_released() {
    let mut world = World::new(Scripted::new(|_, n| {
        if n < 2 {
            later(60_000, say("never"))
        } else {
            say("ok")
        }
    }));
    world.settings.max_attempts = 1;
    let mut process = world.start(None);
    let session = process.session().await;
    process.prompt(session, "go").await;
    for n in 1..=2 {
        world
            .until(session, "a request", |_| world.plugins.request_count() == n)
            .await;
        process.kill();
        process = world.start(None);
    }
    world
        .until(session, "quarantine", |dump| {
            dump.events.iter().any(|e| e.kind == "session.quarantined")
        })
        .await;
    process.prompt(session, "more").await;
    let refused = process.node.run(session, None).await;
    assert!(refused.unwrap_err().to_string().contains("quarantined"));
    assert_eq!(world.plugins.request_count(), 2);
    process.node.resume(session).await.unwrap();
    let dump = world
        .until(session, "both turns", |dump| user_texts(dump).len() == 2)
        .await;
    assert_eq!(user_texts(&dump), ["go", "more"]);
    world.idle(session).await;
    assert_eq!(world.tail(session).await.session.attempts, 0);
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

#[tokio::test]
async fn log_4_a_watcher_that_panics_takes_nobody_with_it() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let process = world.start(None);
    let session = process.session().await;
    let follow = |panics: bool| {
        let mut log = Box::pin(process.node.log(session, 0, true));
        tokio::spawn(async move {
            let mut seen = 0;
            while let Some(followed) = log.next().await {
                if let Followed::Event(record) = followed.unwrap() {
                    assert!(!panics || record.kind != "input.admitted", "told, and gone");
                    seen += 1;
                    if record.kind == "execution.succeeded" {
                        break;
                    }
                }
            }
            seen
        })
    };
    let (broken, a, b) = (follow(true), follow(false), follow(false));
    process.prompt(session, "go").await;
    let dump = world.idle(session).await;
    assert!(broken.await.is_err());
    let wait = |task| tokio::time::timeout(Duration::from_secs(20), task);
    assert_eq!(wait(a).await.unwrap().unwrap(), dump.events.len());
    assert_eq!(wait(b).await.unwrap().unwrap(), dump.events.len());
}

#[tokio::test]
async fn log_7_live_events_are_not_in_the_log_and_leave_no_hole() {
    let world = World::new(Scripted::new(|_, _| {
        let mut answer: Vec<LocalEvent> = (0..20)
            .map(|_| LocalEvent {
                after_ms: 2,
                event: ModelEvent::TextDelta("x".into()),
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
    let mut told = 0;
    while live.try_recv().is_ok() {
        told += 1;
    }
    assert_eq!(told, 20);
    let seqs: Vec<u64> = dump.events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    assert!(
        dump.events
            .iter()
            .all(|event| mainstay_core::event::KINDS.contains(&event.kind.as_str()))
    );
    assert!(seqs.len() < 20);
}

#[tokio::test]
async fn step_1_decision_and_digests_are_in_the_log_before_the_effect() {
    let world = World::new(Scripted::new(|_, _| later(60_000, say("never"))));
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    let dump = world.dump(session).await;
    let started = dump
        .events
        .iter()
        .find(|event| event.kind == "step.started")
        .unwrap();
    assert_eq!(started.data["runner"]["digest"], "runner-digest");
    assert_eq!(started.data["provider"]["digest"], "provider-digest");
    assert_eq!(started.data["toolboxes"][0]["digest"], "toolbox-digest");
    assert!(started.data["action"]["call_model"].is_object());
}

#[tokio::test]
async fn step_3_a_decision_that_was_not_committed_leaves_nothing() {
    let world = World::new(one_call("act"));
    // The claim is the first commit, the decision the second.
    let process = world.start(Some(Point::Before(1)));
    let session = process.session().await;
    process.prompt(session, "go").await;
    tokio::time::timeout(Duration::from_secs(20), process.link.died())
        .await
        .unwrap();
    assert_eq!(world.plugins.decisions.lock().unwrap().len(), 1);
    assert_eq!(world.plugins.request_count(), 0);
    process.kill();
    let _next = world.start(None);
    let dump = world.idle(session).await;
    let first = dump
        .events
        .iter()
        .filter(|event| event.kind == "step.started")
        .count();
    assert_eq!(first, 2, "one step with the call, one with the answer");
    assert_eq!(world.plugins.count("act"), 1);
}

#[tokio::test]
async fn step_4_the_last_items_of_a_long_history_are_read_alone() {
    use mainstay_core::history::Order;
    use mainstay_core::plugin::HistoryReader as _;
    use mainstay_test_support::build;
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let session = mainstay_core::id::SessionId::new();
    let fence = build::fence();
    world.store.commit(build::create(session)).await.unwrap();
    let input = mainstay_core::id::InputId::new();
    world
        .store
        .commit(build::admit(
            session,
            input,
            mainstay_core::event::Delivery::Queue,
            "go",
        ))
        .await
        .unwrap();
    world
        .store
        .commit(build::claim(session, fence))
        .await
        .unwrap();
    world
        .store
        .commit(build::append(session, fence, [build::turn_started()]))
        .await
        .unwrap();
    let note = EventBody::RunnerNoted {
        parts: vec![Part::Text("x".repeat(100))],
    };
    for _ in 0..10 {
        let notes = std::iter::repeat_n(note.clone(), 10_000);
        world
            .store
            .commit(build::append(session, fence, notes))
            .await
            .unwrap();
    }
    let head = world.tail(session).await.session.head;
    let history =
        mainstay_core::overlay::Overlay::new(Arc::clone(&world.store), session, head, Vec::new());
    let range = mainstay_core::model::Range {
        after: 0,
        through: head,
    };
    let (items, more) = history.read(range, Order::NewestFirst, 10).await.unwrap();
    assert!(more);
    assert_eq!(
        items.iter().map(|item| item.seq).collect::<Vec<_>>(),
        (head - 9..=head).rev().collect::<Vec<_>>()
    );
    assert!(
        items
            .iter()
            .map(mainstay_core::history::Item::text_bytes)
            .sum::<u64>()
            < 1_000_000
    );
}
