//! The straight way of a turn: decisions, effects, boundaries, endings.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::time::Duration;

use mainstay_core::commit::Write;
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::{Delivery, EventBody, TurnOutcome};
use mainstay_core::history::ItemBody;
use mainstay_core::id::InputId;
use mainstay_core::model::{FinishReason, Message, ToolChoice, ToolOutcome};
use mainstay_core::plugin::{
    Action, Decision, ModelCall, ModelEvent, ModelRequest, ToolSet, Trigger, View,
};
use mainstay_test_simulation::plugins::{Scripted, ask, call, events, last_text, results, say};
use mainstay_test_simulation::world::{Process, World, user_texts};
use mainstay_test_support::build;

/// Calls `tools` once, then stops.
fn once_then_stop(calls: &'static [(&'static str, &'static str, &'static str)]) -> Scripted {
    Scripted::new(move |request, _| {
        if results(request) == 0 {
            call(calls)
        } else {
            say("done")
        }
    })
}

fn texts(request: &ModelRequest) -> Vec<String> {
    request
        .messages
        .iter()
        .map(|message| match message {
            Message::User(parts) | Message::System(parts) => mainstay_core::model::text_of(parts),
            Message::Assistant(_) => "assistant".into(),
            Message::ToolResult(result) => format!("result {}", result.call),
        })
        .collect()
}

#[tokio::test]
async fn a_prompt_is_answered_in_three_commits() {
    let world = World::new(Scripted::new(|_, _| say("hello")));
    let (process, session) = world.begin("hi").await;
    let dump = world.idle(session).await;
    let kinds: Vec<&str> = dump
        .events
        .iter()
        .map(|record| record.kind.as_str())
        .collect();
    assert_eq!(
        kinds,
        [
            "session.created",
            "input.admitted",
            "execution.started",
            "turn.started",
            "input.promoted",
            "step.started",
            "step.output",
            "model.ended",
            "turn.ended",
            "execution.succeeded"
        ]
    );
    // The claim, the decision, and its settlement together with what ended the turn.
    assert_eq!(process.link.commits(), 3);
}

#[tokio::test]
async fn coord_1_two_runs_at_once_share_one_execution() {
    let world = World::new(Scripted::new(|_, _| say("hello")));
    let ends = world.memory.gate(|commit| match &commit.write {
        Write::Append(append) => append.end.is_some(),
        _ => false,
    });
    let (process, session) = world.begin("hi").await;
    let runs = async {
        let run = || process.node.run(session, None);
        tokio::join!(run(), run())
    };
    let (outcomes, ()) = tokio::join!(runs, async {
        ends.reached(1).await;
        ends.open();
    });
    world.idle(session).await;
    assert_eq!(world.count(session, "execution.started").await, 1);
    for outcome in [outcomes.0.unwrap(), outcomes.1.unwrap()] {
        assert!(outcome.ran);
        assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    }
    let idle = process.node.run(session, None).await.unwrap();
    assert_eq!((idle.ran, idle.terminal), (false, None));
}

#[tokio::test]
async fn coord_2_a_thousand_wakes_make_one_execution() {
    let world = World::new(once_then_stop(&[("c1", "look", "{}")]));
    let gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the step", |dump| {
            dump.events.iter().any(|e| e.kind == "step.started")
        })
        .await;
    for _ in 0..1000 {
        process
            .node
            .wake(session, mainstay_core::tail::Scope::All)
            .await
            .unwrap();
    }
    gate.notify_one();
    world.idle(session).await;
    assert_eq!(world.count(session, "execution.started").await, 1);
    assert_eq!(world.count(session, "execution.succeeded").await, 1);
}

#[tokio::test]
async fn coord_6_interrupting_an_idle_session_says_that_nothing_ran() {
    let world = World::new(Scripted::new(|_, _| say("hello")));
    let process = world.start(None);
    let session = process.session().await;
    assert!(!process.node.interrupt(session).await.unwrap());
    process.prompt(session, "hi").await;
    world.idle(session).await;
    assert_eq!(world.count(session, "execution.succeeded").await, 1);
    assert_eq!(world.count(session, "execution.interrupted").await, 0);
}

#[tokio::test]
async fn coord_9_a_waiter_that_gives_up_stops_nothing() {
    let world = World::new(once_then_stop(&[("c1", "look", "{}")]));
    let gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the claim", |dump| dump.claim.is_some())
        .await;
    let gone =
        tokio::time::timeout(Duration::from_millis(1), process.node.run(session, None)).await;
    assert!(gone.is_err());
    let (node, stays) = (process.node.clone(), session);
    let waiter = tokio::spawn(async move { node.run(stays, None).await.unwrap() });
    world
        .until(session, "the call", |_| world.plugins.count("look") == 1)
        .await;
    // The waiter joins before the call is let go; it runs or has run either way.
    tokio::task::yield_now().await;
    gate.notify_one();
    world.idle(session).await;
    let outcome = waiter.await.unwrap();
    assert!(!outcome.ran || outcome.terminal == Some(Terminal::Succeeded));
}

#[tokio::test]
async fn coord_11_a_wake_without_work_adds_nothing() {
    let world = World::new(Scripted::new(|_, _| say("hello")));
    let process = world.start(None);
    let session = process.session().await;
    process
        .node
        .wake(session, mainstay_core::tail::Scope::All)
        .await
        .unwrap();
    let outcome = process.node.run(session, None).await.unwrap();
    assert!(!outcome.ran);
    assert_eq!(world.kinds(session).await, ["session.created"]);
    assert_eq!(world.plugins.request_count(), 0);
}

#[tokio::test]
async fn coord_13_a_forced_run_runs_one_turn() {
    let world = World::new(Scripted::new(|_, _| say("hello")));
    let process = world.start(None);
    let session = process.session().await;
    let outcome = process.node.run(session, Some(5)).await.unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    world.idle(session).await;
    assert_eq!(world.count(session, "turn.started").await, 1);
    assert_eq!(world.plugins.request_count(), 1);
}

/// A claim that is dead and not settled yet stands in the way of the forced turn, and no more than that.
#[tokio::test]
async fn coord_13_a_forced_run_waits_for_the_recovery_of_a_dead_claim() {
    let world = World::new(Scripted::new(|_, _| say("hello")));
    let early = world.start(None);
    let session = early.session().await;
    early.kill();
    let fence = build::fence();
    let ended = |body| build::append(session, fence, [body]);
    for commit in [
        build::admit(session, InputId::new(), Delivery::Queue, "go"),
        build::claim(session, fence),
        ended(build::turn_started()),
    ] {
        world.store.commit(commit).await.unwrap();
    }
    let input = world.tail(session).await.inputs[0].id;
    for commit in [
        ended(EventBody::InputPromoted { input }),
        ended(build::turn_ended()),
        build::commit(session, Write::Expire { seen: fence }),
    ] {
        world.store.commit(commit).await.unwrap();
    }
    let settling = world
        .memory
        .gate(|commit| matches!(commit.write, Write::Recover { .. }));
    let claims = AtomicU32::new(0);
    let second = world.memory.gate(move |commit| {
        matches!(commit.write, Write::Claim { .. }) && claims.fetch_add(1, Relaxed) > 0
    });
    let process = world.start(None);
    let node = Arc::clone(&process.node);
    let run = tokio::spawn(async move { node.run(session, Some(5)).await.unwrap() });
    // The first was refused.
    second.reached(1).await;
    settling.open();
    world
        .until(session, "the recovery", |dump| dump.claim.is_none())
        .await;
    second.open();
    let outcome = run.await.unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Succeeded));
    world.idle(session).await;
    assert_eq!(world.count(session, "turn.started").await, 2);
    assert_eq!(world.plugins.request_count(), 1);
}

#[tokio::test]
async fn inbox_5_steers_enter_together_at_the_next_boundary() {
    let world = World::new(once_then_stop(&[
        ("c1", "look", "{}"),
        ("c2", "look", "{}"),
    ]));
    let gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "two calls", |_| world.plugins.count("look") == 2)
        .await;
    for text in ["s1", "s2", "s3"] {
        process.steer(session, text).await;
    }
    gate.notify_one();
    gate.notify_waiters();
    world.plugins.let_go("look");
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2, "no request lies between");
    let seen = texts(&requests[1]);
    assert_eq!(seen[4..], ["s1", "s2", "s3"]);
    assert!(
        seen[2..4].iter().all(|text| text.starts_with("result ")),
        "{seen:?}"
    );
}

#[tokio::test]
async fn inbox_6_a_queued_prompt_waits_for_the_turns_end() {
    let world = World::new(Scripted::new(|request, _| {
        match (last_text(request).as_str(), results(request)) {
            ("second", _) => say("two"),
            (_, n) if n < 3 => call(&[("c", "look", "{}")]),
            _ => say("one"),
        }
    }));
    let gate = world.plugins.hold("look");
    let (process, session) = world.begin("first").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.prompt(session, "second").await;
    world.plugins.let_go("look");
    gate.notify_one();
    let dump = world.idle(session).await;
    assert_eq!(world.count(session, "turn.started").await, 2);
    let order: Vec<&str> = dump
        .events
        .iter()
        .map(|e| e.kind.as_str())
        .filter(|k| k.starts_with("turn.") || *k == "input.promoted")
        .collect();
    assert_eq!(
        order,
        [
            "turn.started",
            "input.promoted",
            "turn.ended",
            "turn.started",
            "input.promoted",
            "turn.ended"
        ]
    );
}

#[tokio::test]
async fn inbox_7_steers_first_then_the_queue_one_per_turn() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let session = {
        // Admitted by a process that is gone before it runs anything.
        let process = world.start(Some(mainstay_test_simulation::crash::Point::Before(0)));
        let session = process.session().await;
        for text in ["q1", "q2", "q3"] {
            process.prompt(session, text).await;
        }
        for text in ["s1", "s2"] {
            process.steer(session, text).await;
        }
        process.kill();
        session
    };
    let _process = world.start(None);
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["s1", "s2", "q1", "q2", "q3"]);
    assert_eq!(world.count(session, "turn.started").await, 4);
    let first = texts(&world.plugins.requests.lock().unwrap()[0]);
    assert_eq!(first, ["s1", "s2"]);
}

#[tokio::test]
async fn inbox_8_a_control_parts_the_steers() {
    use mainstay_core::event::{Delivery, InputContent};
    use mainstay_core::history::ModelRef;
    use mainstay_core::id::InputId;
    let world = World::new(once_then_stop(&[("c1", "look", "{}")]));
    let gate = world.plugins.hold("look");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.steer(session, "s1").await;
    let other = ModelRef {
        provider: "parrot".into(),
        model: "other".into(),
    };
    let control = InputContent::Configure { model: other };
    process
        .node
        .admit(session, InputId::new(), Delivery::Steer, control)
        .await
        .unwrap();
    process.steer(session, "s2").await;
    gate.notify_one();
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    let with_first = requests
        .iter()
        .find(|r| texts(r).contains(&"s1".to_owned()))
        .unwrap();
    assert_eq!(with_first.model, "parrot");
    assert!(!texts(with_first).contains(&"s2".to_owned()));
    let with_second = requests
        .iter()
        .find(|r| texts(r).contains(&"s2".to_owned()))
        .unwrap();
    assert_eq!(with_second.model, "other");
}

#[tokio::test]
async fn inbox_14_a_failed_turn_does_not_take_the_steer_with_it() {
    let world = World::new(Scripted::new(|request, _| {
        if last_text(request) == "s1" {
            say("ok")
        } else {
            call(&[("c1", "look", "{}")])
        }
    }));
    let gate = world.plugins.hold("look");
    let process = world.start(None);
    let session = process.session().await;
    let created = mainstay_core::event::SessionCreated {
        agent: "gone".into(),
        model: None,
        title: None,
        ..Default::default()
    };
    let orphan = mainstay_core::id::SessionId::new();
    process.node.create(orphan, created).await.unwrap();
    process.prompt(orphan, "x").await;
    world
        .until(orphan, "the failure", |dump| {
            dump.events.iter().any(|e| e.kind == "execution.failed")
        })
        .await;
    process.prompt(session, "go").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.steer(session, "s1").await;
    gate.notify_one();
    let dump = world.idle(session).await;
    assert_eq!(user_texts(&dump), ["go", "s1"]);
}

#[tokio::test]
async fn step_6_a_missing_agent_fails_the_turn_by_name_and_the_next_prompt_runs() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let process = world.start(None);
    let session = mainstay_core::id::SessionId::new();
    let created = mainstay_core::event::SessionCreated {
        agent: "nobody".into(),
        model: None,
        title: None,
        ..Default::default()
    };
    process.node.create(session, created).await.unwrap();
    process.prompt(session, "one").await;
    process.prompt(session, "two").await;
    let dump = world.idle(session).await;
    let failures: Vec<_> = dump
        .events
        .iter()
        .filter(|e| e.kind == "execution.failed")
        .collect();
    assert_eq!(failures.len(), 2);
    assert!(
        failures[0].data["error"]
            .as_str()
            .unwrap()
            .contains("\"nobody\"")
    );
    assert_eq!(world.plugins.request_count(), 0);
}

#[tokio::test]
async fn step_7_the_last_step_is_asked_without_tools_and_no_more_begin() {
    let world = World::new(Scripted::new(|request, _| {
        if request.tools.is_empty() {
            say("out of steps")
        } else {
            call(&[("c", "look", "{}")])
        }
    }));
    let process = world.start(None);
    let session = mainstay_core::id::SessionId::new();
    let created = mainstay_core::event::SessionCreated {
        agent: "few".into(),
        model: None,
        title: None,
        ..Default::default()
    };
    process.node.create(session, created).await.unwrap();
    for round in 1..=2 {
        process.prompt(session, "go").await;
        world.idle(session).await;
        let requests = world.plugins.requests.lock().unwrap().clone();
        assert_eq!(requests.len(), 5 * round);
        assert!(requests[5 * round - 1].tools.is_empty());
        assert!(
            requests[..5 * round - 1]
                .iter()
                .rev()
                .take(4)
                .all(|request| request.tools.len() == 3)
        );
    }
}

/// Outcomes of the calls of one turn whose runner asks as `asks` and stops when it is told to.
async fn calls_of_one(
    agent: &str,
    asks: impl Fn(&mut ModelCall) + Send + Sync + 'static,
    calls: &'static [(&'static str, &'static str, &'static str)],
) -> (World, Vec<(String, ToolOutcome)>) {
    let runner = move |view: &View| {
        let mut action = ask(view);
        if let Action::CallModel(call) = &mut action {
            asks(call);
        }
        if view.budget.steps == 0 || view.trigger == Trigger::ModelFinished(FinishReason::Stop) {
            action = Action::Done;
        }
        Ok(Decision {
            entries: Vec::new(),
            action,
            state: None,
        })
    };
    let world = World::new(Scripted::with_runner(runner, move |request, _| {
        if request.tools.is_empty() || results(request) == 0 {
            call(calls)
        } else {
            say("done")
        }
    }));
    let process = world.start(None);
    let session = mainstay_core::id::SessionId::new();
    let created = mainstay_core::event::SessionCreated {
        agent: agent.into(),
        ..Default::default()
    };
    process.node.create(session, created).await.unwrap();
    process.prompt(session, "go").await;
    let dump = world.idle(session).await;
    let outcomes = dump.items.iter().filter_map(|item| match &item.body {
        ItemBody::ToolResult(result) => Some((result.tool.clone(), result.outcome)),
        _ => None,
    });
    let outcomes = outcomes.collect();
    process.kill();
    (world, outcomes)
}

#[tokio::test]
async fn tool_4_and_step_7_a_tool_that_was_not_offered_never_starts() {
    const CALLS: &[(&str, &str, &str)] = &[("c1", "look", "{}"), ("c2", "act", "{}")];
    let none = |call: &mut ModelCall| call.tool_choice = ToolChoice::None;
    let nothing = |call: &mut ModelCall| call.tools = ToolSet::Only(Vec::new());
    let unknown = |tool: &str| (tool.to_owned(), ToolOutcome::UnknownTool);

    let (world, outcomes) = calls_of_one("few", none, CALLS).await;
    assert!(!outcomes.is_empty());
    assert!(
        outcomes.iter().all(|of| of.1 == ToolOutcome::UnknownTool),
        "{outcomes:?}"
    );
    assert_eq!(
        (world.plugins.count("look"), world.plugins.count("act")),
        (0, 0)
    );

    // None is offered at any step, the last one included.
    let (world, outcomes) = calls_of_one("few", nothing, CALLS).await;
    let each = [unknown("look"), unknown("act")];
    assert_eq!(
        outcomes,
        each.iter().cycle().take(10).cloned().collect::<Vec<_>>()
    );
    assert_eq!(
        (world.plugins.count("look"), world.plugins.count("act")),
        (0, 0)
    );

    // A subset.
    let some = |call: &mut ModelCall| call.tools = ToolSet::Only(vec!["look".into()]);
    let (world, outcomes) = calls_of_one("default", some, CALLS).await;
    let mut outcomes = outcomes;
    outcomes.sort_by(|one, other| one.0.cmp(&other.0));
    let looked = ("look".to_owned(), ToolOutcome::Succeeded);
    assert_eq!(outcomes, [unknown("act"), looked]);
    assert_eq!(
        (world.plugins.count("look"), world.plugins.count("act")),
        (1, 0)
    );
}

#[tokio::test]
async fn step_9_settling_and_deciding_are_one_commit_unless_the_runner_is_slow() {
    for (pause, combined) in [(0, true), (50, false)] {
        let mut world = World::new(once_then_stop(&[("c1", "look", "{}")]));
        if !combined {
            world.settings.decide_within = Duration::from_millis(5);
        }
        world
            .plugins
            .decide_ms
            .store(pause, std::sync::atomic::Ordering::SeqCst);
        let (process, session) = world.begin("go").await;
        world.idle(session).await;
        // Claim; decision; settled + decision; settled + end. A slow runner parts each of the last three.
        assert_eq!(process.link.commits(), if combined { 4 } else { 7 });
    }
}

#[tokio::test]
async fn tool_2_calls_of_one_answer_run_side_by_side() {
    let calls = [
        ("c1", "look", "{}"),
        ("c2", "look", "{}"),
        ("c3", "look", "{}"),
        ("c4", "look", "{}"),
        ("c5", "look", "{}"),
    ];
    let world = World::new(Scripted::new(move |request, _| {
        if results(request) == 0 {
            call(&calls)
        } else {
            say("done")
        }
    }));
    let gate = world.plugins.hold("look");
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "all five", |_| world.plugins.count("look") == 5)
        .await;
    assert_eq!(world.count(session, "call.settled").await, 0);
    world.plugins.let_go("look");
    gate.notify_waiters();
    for _ in 0..5 {
        gate.notify_one();
        tokio::task::yield_now().await;
    }
    world
        .until(session, "results", |dump| {
            gate.notify_one();
            dump.events
                .iter()
                .filter(|e| e.kind == "call.settled")
                .count()
                == 5
        })
        .await;
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(results(&requests[1]), 5);
}

#[tokio::test]
async fn tool_4_bad_calls_get_results_of_their_own() {
    let world = World::new(once_then_stop(&[
        ("c1", "nowhere", "{}"),
        ("c2", "look", "{not json"),
        ("c3", "look", r#"{"n":"text"}"#),
        ("c4", "look", r#"{"n":1}"#),
    ]));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let outcomes: Vec<(String, ToolOutcome)> = dump
        .items
        .iter()
        .filter_map(|item| match &item.body {
            ItemBody::ToolResult(result) => Some((result.call.clone(), result.outcome)),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes.len(), 4);
    for (id, wanted) in [
        ("c1", ToolOutcome::UnknownTool),
        ("c2", ToolOutcome::InvalidArguments),
        ("c3", ToolOutcome::InvalidArguments),
        ("c4", ToolOutcome::Succeeded),
    ] {
        assert!(outcomes.contains(&(id.into(), wanted)), "{outcomes:?}");
    }
    assert!(
        mainstay_test_simulation::world::lines(&dump).contains("{not json"),
        "raw arguments are kept"
    );
    assert_eq!(world.plugins.count("look"), 1);
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(requests.len(), 2);
    assert_eq!(results(&requests[1]), 4, "the runner goes on with all four");
}

#[tokio::test]
async fn tool_5_a_trap_is_one_calls_result() {
    let world = World::new(once_then_stop(&[
        ("c1", "look", r#"{"x":"trap"}"#),
        ("c2", "look", "{}"),
        ("c3", "put", "{}"),
    ]));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let text = mainstay_test_simulation::world::lines(&dump);
    assert!(text.contains("trapped in call"));
    assert_eq!(world.count(session, "call.settled").await, 3);
    assert_eq!(world.count(session, "execution.succeeded").await, 1);
}

#[tokio::test]
async fn tool_8_and_model_9_an_answer_without_a_finish_is_no_clean_end() {
    let world = World::new(Scripted::new(|_, _| {
        events([
            ModelEvent::TextDelta("part".into()),
            ModelEvent::HostedCall(mainstay_core::model::ToolCall {
                id: "h1".into(),
                tool: "search".into(),
                arguments: "{}".into(),
            }),
        ])
    }));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let kinds: Vec<&str> = dump.events.iter().map(|e| e.kind.as_str()).collect();
    let settled = kinds.iter().position(|k| *k == "call.settled").unwrap();
    let ended = kinds.iter().position(|k| *k == "model.ended").unwrap();
    assert!(settled < ended);
    assert_eq!(kinds.iter().filter(|k| **k == "model.ended").count(), 1);
    assert!(dump.events[ended].data["ending"]["failed"].is_object());
    assert_eq!(
        world.plugins.request_count(),
        1,
        "after output there is no retry"
    );
}

#[tokio::test]
async fn model_7_five_tries_and_no_more() {
    let world = World::new(Scripted::new(|_, _| {
        events([ModelEvent::Failed(mainstay_core::model::Failure {
            class: mainstay_core::model::FailureClass::Overloaded,
            message: "busy".into(),
            retry_after_ms: None,
        })])
    }));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    assert_eq!(world.count(session, "retry.scheduled").await, 4);
    assert_eq!(world.count(session, "model.ended").await, 1);
    let waits: Vec<u64> = dump
        .events
        .iter()
        .filter(|e| e.kind == "retry.scheduled")
        .map(|e| e.data["wait_ms"].as_u64().unwrap())
        .collect();
    assert!(waits[3] > waits[0], "{waits:?}");
    assert_eq!(
        world.tail(session).await.session.last_turn,
        Some(TurnOutcome::Failed {
            error: "busy".into()
        })
    );
}

#[tokio::test]
async fn model_10_events_that_break_a_rule_fail_the_step_by_its_name() {
    let start = || ModelEvent::ToolCallStart {
        id: "c1".into(),
        tool: "look".into(),
    };
    let cases: Vec<(Vec<ModelEvent>, &str)> = vec![
        (
            vec![ModelEvent::ToolCallDelta {
                id: "c1".into(),
                arguments: "{}".into(),
            }],
            "before its start",
        ),
        (vec![start(), start()], "twice in one step"),
        (
            vec![start(), ModelEvent::Finished(FinishReason::Stop)],
            "finished inside call",
        ),
    ];
    for (script, rule) in cases {
        let world = World::new(Scripted::new(move |_, _| events(script.clone())));
        let (_process, session) = world.begin("go").await;
        let dump = world.idle(session).await;
        let text = mainstay_test_simulation::world::lines(&dump);
        assert!(text.contains(rule), "{rule}: {text}");
        assert_eq!(world.count(session, "execution.failed").await, 1);
        let ended = dump.events.iter().filter(|e| e.kind == "model.ended");
        let endings: Vec<bool> = ended
            .map(|e| e.data["ending"]["failed"].is_object())
            .collect();
        assert_eq!(endings, [true], "{rule}: no clean end");
    }
}

#[tokio::test]
async fn int_2_ended_calls_keep_their_results_and_the_others_say_interrupted() {
    let world = World::new(Scripted::new(|request, _| {
        if results(request) == 0 {
            call(&[
                ("c1", "look", "{}"),
                ("c2", "put", "{}"),
                ("c3", "act", "{}"),
            ])
        } else {
            say("done")
        }
    }));
    let _put = world.plugins.hold("put");
    let _act = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "one result and two starts", |dump| {
            let count = |kind: &str| dump.events.iter().filter(|e| e.kind == kind).count();
            count("call.settled") == 1 && count("call.started") == 2
        })
        .await;
    assert!(process.node.interrupt(session).await.unwrap());
    let dump = world.idle(session).await;
    let outcome = |id: &str| {
        dump.items.iter().find_map(|item| match &item.body {
            ItemBody::ToolResult(result) if result.call == id => Some(result.outcome),
            _ => None,
        })
    };
    assert_eq!(outcome("c1"), Some(ToolOutcome::Succeeded));
    assert_eq!(outcome("c2"), Some(ToolOutcome::Interrupted));
    assert_eq!(outcome("c3"), Some(ToolOutcome::OutcomeUnknown));
    assert_eq!(world.count(session, "execution.interrupted").await, 1);
    world.plugins.let_go("put");
    world.plugins.let_go("act");
    process.prompt(session, "again").await;
    world.idle(session).await;
    let requests = world.plugins.requests.lock().unwrap().clone();
    assert_eq!(results(requests.last().unwrap()), 3);
}

/// Ten passes of the recovery loop go by.
async fn ten_looks(process: &Process) {
    let seen = process.link.scans();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    while process.link.scans() < seen + 10 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "the loop stands still"
        );
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn int_4_what_was_pending_stays_pending_until_the_next_wake() {
    let world = World::new(once_then_stop(&[("c1", "look", "{}")]));
    let gate = world.plugins.hold("look");
    let (process, session) = world.begin("first").await;
    world
        .until(session, "a call", |_| world.plugins.count("look") == 1)
        .await;
    process.prompt(session, "second").await;
    process.node.interrupt(session).await.unwrap();
    world
        .until(session, "the end", |dump| dump.claim.is_none())
        .await;
    ten_looks(&process).await;
    assert_eq!(world.count(session, "execution.started").await, 1);
    process.kill();
    let process = world.start(None);
    world.plugins.let_go("look");
    gate.notify_one();
    ten_looks(&process).await;
    let listed = world.store.inputs(session, false).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert!(!listed[0].intent);
    let dump = world.idle(session).await;
    assert_eq!(world.plugins.request_count(), 1, "the turn is not resumed");
    assert_eq!(
        dump.inputs
            .iter()
            .filter(|i| i.status == mainstay_core::tail::InputStatus::Pending)
            .count(),
        1
    );
    assert_eq!(world.count(session, "execution.started").await, 1);
    process
        .node
        .wake(session, mainstay_core::tail::Scope::All)
        .await
        .unwrap();
    world
        .until(session, "the second", |dump| {
            user_texts(dump).contains(&"second".to_owned())
        })
        .await;
    world.idle(session).await;
}

#[tokio::test]
async fn int_1_what_watchers_saw_is_durable() {
    let world = World::new(Scripted::new(|_, _| {
        let mut all = events([
            ModelEvent::TextDelta("one ".into()),
            ModelEvent::TextDelta("two ".into()),
        ]);
        all.push(mainstay_core::plugin::LocalEvent {
            after_ms: 60_000,
            event: ModelEvent::Finished(FinishReason::Stop),
        });
        all
    }));
    let process = world.start(None);
    let session = process.session().await;
    let mut live = process.node.watch_live(session);
    process.prompt(session, "go").await;
    let mut seen = String::new();
    while seen != "one two " {
        if let mainstay_core::live::Live::Text { text, .. } = live.recv().await.unwrap().event {
            seen.push_str(&text);
        }
    }
    process.node.interrupt(session).await.unwrap();
    let dump = world.idle(session).await;
    let bodies = world.bodies(session).await;
    let Some(ItemBody::Assistant(assistant)) = dump
        .items
        .iter()
        .map(|i| &i.body)
        .find(|b| matches!(b, ItemBody::Assistant(_)))
    else {
        panic!("the partial answer is an item")
    };
    assert_eq!(
        assistant.ending,
        mainstay_core::history::Ending::Interrupted
    );
    assert_eq!(
        assistant.content,
        [mainstay_core::model::Content::Text("one two ".into())]
    );
    assert!(dump.claim.is_none());
    assert!(bodies.iter().any(|b| matches!(
        b,
        EventBody::ExecutionInterrupted {
            reason: mainstay_core::event::InterruptReason::User,
            ..
        }
    )));
}
