//! What clients and operators do to a session that runs: interrupt it, steer it, change its model or
//! its runner, take it over.

use std::time::Duration;

use mainstay_core::commit::{Append, Refused, Write};
use mainstay_core::coordinator::Terminal;
use mainstay_core::event::{Delivery, EventBody, InputContent, InterruptReason, TurnOutcome};
use mainstay_core::history::{ChildOutcome, ChildResult, ItemBody, ModelRef};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::{Range, ToolDefinition, ToolOutcome};
use mainstay_core::outbox::child_session;
use mainstay_core::plugin::{
    Action, LocalEvent, ModelCall, Segment, StateFormat, Trigger, WaitEnd,
};
use mainstay_core::port::Store as _;
use mainstay_core::tail::{InputStatus, Scope, Tail};
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::{Host, Stage, a_signal, an_answer, config, words};
use mainstay_test_simulation::decisions::{
    Decided, Format, Step, approval, ask, done, spawn, tools, wait,
};
use mainstay_test_simulation::plugins::{call, last_text, results, say};
use mainstay_test_simulation::world::{lines, prompt, user_texts};

const FOR_EVER_MS: u32 = 1_000_000_000;

fn later(after_ms: u32, text: &str) -> Vec<LocalEvent> {
    let mut answer = say(text);
    answer[0].after_ms = after_ms;
    answer
}

/// A model that calls `tool` in the first step of every turn and then stops.
fn one_call(tool: &'static str) -> Decided {
    Decided::new(move |request, _| match last_text(request) {
        text if text.ends_with("done") => say("over"),
        _ => {
            let id = format!("c{}", results(request));
            call(&[(id.as_str(), tool, "{}")])
        }
    })
}

fn configure(model: &str) -> InputContent {
    InputContent::Configure {
        model: ModelRef {
            provider: "parrot".into(),
            model: model.into(),
        },
    }
}

fn in_flight(tail: &Tail) -> bool {
    tail.claim.is_some() && tail.step.is_some()
}

/// A session whose first turn is in a call of `look` that is held back.
async fn in_a_call(stage: &Stage, host: &Host) -> SessionId {
    let session = stage.create("default").await;
    let before = stage.plugins.scripted.count("look");
    host.prompt(session, "begin").await;
    stage
        .when("the call", || {
            stage.plugins.scripted.count("look") == before + 1
        })
        .await;
    session
}

/// What is pending: its id, and whether it has an intent to run.
async fn pending(stage: &Stage, session: SessionId) -> Vec<(InputId, bool)> {
    let inputs = stage.memory.inputs(session, false).await.unwrap();
    inputs
        .iter()
        .map(|input| (input.id, input.intent))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn int_5_interrupt_and_continue_takes_the_steer_and_leaves_the_queue() {
    let stage = Stage::new(one_call("look"));
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = in_a_call(&stage, &host).await;
    let queued = host.prompt(session, "queued").await;
    host.steer(session, "steer done").await;
    assert!(host.node.interrupt_and_continue(session).await.unwrap());
    let over = |tail: &Tail| tail.claim.is_none() && tail.session.turn.is_none();
    stage
        .until(session, "the steer's turn", |tail| {
            over(tail) && tail.session.last_turn == Some(TurnOutcome::Done)
        })
        .await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let dump = stage.idle(session).await;
    assert_eq!(user_texts(&dump), ["begin", "steer done"]);
    assert_eq!(pending(&stage, session).await, [(queued, false)]);
    let ended: Vec<EventBody> = stage
        .bodies(session)
        .await
        .into_iter()
        .filter(|body| body.terminal_of().is_some())
        .collect();
    assert_eq!(ended.len(), 2, "{}", lines(&dump));
    let by_user = matches!(
        ended[0],
        EventBody::ExecutionInterrupted {
            reason: InterruptReason::User,
            ..
        }
    );
    assert!(by_user, "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn int_5_a_control_that_stands_first_acts_and_the_queue_behind_it_stays() {
    let stage = Stage::new(one_call("look"));
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = in_a_call(&stage, &host).await;
    host.send(session, Delivery::Queue, configure("second"))
        .await;
    let queued = host.prompt(session, "queued").await;
    host.node.interrupt_and_continue(session).await.unwrap();
    let acted = |tail: &Tail| tail.session.model.is_some() && tail.claim.is_none();
    stage.until(session, "the control", acted).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let dump = stage.idle(session).await;
    assert_eq!(
        dump.session.as_ref().unwrap().model.as_ref().unwrap().model,
        "second"
    );
    assert_eq!(pending(&stage, session).await, [(queued, false)]);
    assert_eq!(user_texts(&dump), ["begin"]);
}

#[tokio::test(start_paused = true)]
async fn int_5_with_a_queued_prompt_alone_nothing_runs() {
    let stage = Stage::new(one_call("look"));
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = in_a_call(&stage, &host).await;
    let queued = host.prompt(session, "queued").await;
    host.node.interrupt_and_continue(session).await.unwrap();
    stage.idle(session).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    stage.idle(session).await;
    assert_eq!(stage.count(session, "execution.started").await, 1);
    assert_eq!(pending(&stage, session).await, [(queued, false)]);
}

#[tokio::test(start_paused = true)]
async fn int_8_an_interrupt_posted_to_another_node_outlives_both() {
    // The first node may die before it has seen the mark, or while it cleans up.
    for cleans_up in [false, true] {
        let stage = Stage::new(Decided::new(|request, _| match results(request) {
            0 => call(&[("p", "look", "{}"), ("o", "act", "{}")]),
            _ => say("never"),
        }));
        let _held = [
            stage.plugins.scripted.hold("look"),
            stage.plugins.scripted.hold("act"),
        ];
        let a = stage.start();
        let b = stage.start();
        let session = stage.create("default").await;
        a.prompt(session, "begin").await;
        stage
            .when("the calls", || {
                let called = &stage.plugins.scripted;
                called.count("look") == 1 && called.count("act") == 1
            })
            .await;
        let steer = b.steer(session, "and this").await;
        let queued = b.prompt(session, "and that").await;
        let cleanup = stage
            .memory
            .gate(|commit| matches!(&commit.write, Write::Append(Append { end: Some(_), .. })));
        assert!(b.node.interrupt(session).await.unwrap());
        if cleans_up {
            cleanup.reached(1).await;
        }
        b.vanish();
        a.kill();
        cleanup.open();
        let tail = stage.tail(session).await;
        let asked = stage.plugins.asked();
        if !cleans_up {
            assert!(tail.claim.as_ref().unwrap().interrupt);
        }
        for held in ["look", "act"] {
            stage.plugins.scripted.let_go(held);
        }
        let (_c, _d) = (stage.start(), stage.start());
        stage.idle(session).await;
        tokio::time::sleep(Duration::from_secs(120)).await;
        let dump = stage.idle(session).await;
        assert_eq!(stage.plugins.asked(), asked, "{}", lines(&dump));
        let results: Vec<ToolOutcome> = dump
            .items
            .iter()
            .filter_map(|item| match &item.body {
                ItemBody::ToolResult(result) => Some(result.outcome),
                _ => None,
            })
            .collect();
        assert_eq!(results.len(), 2, "{}", lines(&dump));
        assert!(
            results.contains(&ToolOutcome::OutcomeUnknown),
            "{results:?}"
        );
        assert_eq!(stage.plugins.scripted.count("act"), 1);
        assert_eq!(
            pending(&stage, session).await,
            [(steer, false), (queued, false)]
        );
        assert_eq!(
            dump.session.unwrap().last_turn,
            Some(TurnOutcome::Interrupted)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn int_10_an_interrupt_takes_the_intent_of_all_that_is_pending() {
    let stage = Stage::new(one_call("look"));
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = in_a_call(&stage, &host).await;
    let steer = host.steer(session, "steer").await;
    let queued = host.prompt(session, "queued done").await;
    let signal = host.send(session, Delivery::Steer, a_signal("s")).await;
    let at = stage.now();
    let timer = host
        .send(session, Delivery::Steer, InputContent::Timer { at })
        .await;
    host.node.interrupt(session).await.unwrap();
    stage.idle(session).await;
    let all = [steer, queued, signal, timer];
    let stopped = all.map(|input| (input, false));
    assert_eq!(pending(&stage, session).await, stopped);

    tokio::time::sleep(Duration::from_secs(60)).await;
    let other = stage.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    other.kill();
    host.kill();
    let host = stage.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(pending(&stage, session).await, stopped);
    assert_eq!(stage.count(session, "execution.started").await, 1);

    stage.plugins.scripted.let_go("look");
    host.node.wake(session, Scope::All).await.unwrap();
    let dump = stage.idle(session).await;
    let entered: Vec<String> = words(&dump.items)
        .into_iter()
        .filter(|word| !word.starts_with("assistant") && !word.starts_with("result"))
        .collect();
    assert_eq!(
        entered,
        [
            "user begin",
            "user steer",
            "signal s",
            "timer",
            "user queued done"
        ],
        "{}",
        lines(&dump)
    );
    assert_eq!(pending(&stage, session).await, []);
}

#[tokio::test(start_paused = true)]
async fn int_10_a_second_interrupt_in_the_cleanup_takes_what_came_between() {
    let stage = Stage::new(one_call("look"));
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = in_a_call(&stage, &host).await;
    let cleanup = stage
        .memory
        .gate(|commit| matches!(&commit.write, Write::Append(Append { end: Some(_), .. })));
    host.node.interrupt(session).await.unwrap();
    cleanup.reached(1).await;
    let between = host.prompt(session, "between").await;
    host.node.interrupt(session).await.unwrap();
    cleanup.open();
    stage.idle(session).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    stage.idle(session).await;
    assert_eq!(pending(&stage, session).await, [(between, false)]);
    assert_eq!(stage.count(session, "execution.started").await, 1);
}

#[tokio::test(start_paused = true)]
async fn inbox_15_inputs_of_all_kinds_are_listed_in_admission_order() {
    let stage = Stage::new(Decided::new(|_, _| later(FOR_EVER_MS, "never")).agent(
        "default",
        |n, seen| match n {
            0 => wait([approval("a")]).into(),
            _ => ask(seen).into(),
        },
    ));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage.waiting(session).await;
    host.steer(session, "go on").await;
    stage.until(session, "the request", in_flight).await;
    let child = InputContent::Child(ChildResult {
        key: "c".into(),
        outcome: ChildOutcome::Cancelled,
    });
    let at = stage.now();
    let mut admitted = Vec::new();
    for (delivery, content) in [
        (Delivery::Queue, prompt("one")),
        (Delivery::Steer, prompt("two")),
        (Delivery::Steer, a_signal("s")),
        (Delivery::Queue, a_signal("t")),
        (Delivery::Steer, InputContent::Timer { at }),
        (Delivery::Steer, child),
        (Delivery::Steer, configure("other")),
        (Delivery::Steer, InputContent::Compact {}),
    ] {
        tokio::time::sleep(Duration::from_millis(7)).await;
        let at = stage.now();
        let id = host.send(session, delivery, content.clone()).await;
        admitted.push((id, delivery, content, at));
    }
    tokio::time::sleep(Duration::from_millis(7)).await;
    let answered = stage.now();
    host.node
        .answer(session, an_answer("a", None))
        .await
        .unwrap();
    let listed = stage.memory.inputs(session, false).await.unwrap();
    assert_eq!(listed.len(), admitted.len() + 1);
    for (input, (id, delivery, content, at)) in listed.iter().zip(&admitted) {
        assert_eq!((input.id, input.delivery, input.at), (*id, *delivery, *at));
        assert_eq!(input.content, *content);
        assert_eq!(input.status, InputStatus::Pending);
    }
    assert!(listed.is_sorted_by_key(|input| input.seq));
    let answer = listed.last().unwrap();
    assert_eq!(answer.content, InputContent::Approval(an_answer("a", None)));
    assert_eq!((answer.delivery, answer.at), (Delivery::Steer, answered));
}

#[tokio::test(start_paused = true)]
async fn inbox_17_what_the_host_and_others_send_enters_like_a_steer() {
    // The turn asks for an approval and makes a child before it comes to the call that is held.
    let stage = Stage::new(
        Decided::new(|request, _| match last_text(request) {
            text if text.starts_with("you are") => later(10_000, "the child is done"),
            _ => say("over"),
        })
        .agent("default", |n, seen| match (n, &seen.trigger) {
            (0, _) => spawn(&[("c", "child")]).into(),
            (1, _) => wait([approval("a")]).into(),
            (2, Trigger::WaitEnded(WaitEnd::Steered)) => tools(&[("t", "look")]).into(),
            (3, _) => ask(seen).into(),
            (4, _) => ask(seen).into(),
            _ => done().into(),
        }),
    );
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage.waiting(session).await;
    host.steer(session, "on").await;
    stage
        .when("the call", || stage.plugins.scripted.count("look") == 1)
        .await;
    host.send(session, Delivery::Steer, a_signal("s")).await;
    let queued = host
        .send(session, Delivery::Queue, a_signal("queued"))
        .await;
    let at = stage.now();
    host.send(session, Delivery::Steer, InputContent::Timer { at })
        .await;
    host.node
        .answer(session, an_answer("a", None))
        .await
        .unwrap();
    stage.idle(child_session(session, "c")).await;
    let four = |tail: &Tail| tail.inputs.len() == 5;
    let tail = stage.until(session, "the child's result", four).await;
    assert!(
        tail.step.is_some(),
        "nothing enters in the middle of a step"
    );
    let requests = stage.plugins.scripted.request_count();
    stage.plugins.scripted.let_go("look");
    let dump = stage.idle(session).await;
    let entered = words(&dump.items);
    let from = entered.iter().position(|word| word == "result t").unwrap();
    assert_eq!(
        entered[from..from + 5],
        ["result t", "signal s", "timer", "approval a", "child c"],
        "{}",
        lines(&dump)
    );
    // All four stand before the request that follows.
    let step = dump.steps.iter().find(|step| step.provider.is_some());
    let asked = step.expect("a step that asks a model").seq;
    let child = dump
        .items
        .iter()
        .find(|item| matches!(item.body, ItemBody::Child(_)));
    assert!(child.unwrap().seq < asked);
    assert!(stage.plugins.scripted.request_count() > requests);
    // The queued one came when the turn was over, and began another.
    let ended = stage.count(session, "turn.ended").await;
    assert_eq!(ended, 2, "{}", lines(&dump));
    let end = dump
        .events
        .iter()
        .find(|e| e.kind == "turn.ended")
        .unwrap()
        .seq;
    let promoted = dump.events.iter().find(|event| {
        event.kind == "input.promoted" && event.data["input"] == queued.to_string().as_str()
    });
    assert!(promoted.unwrap().seq > end);
}

/// A turn that asks for every steer, with a control between two of them.
async fn controlled(point: Option<(usize, bool)>) -> usize {
    let stage = Stage::new(Decided::new(|_, _| say("over")));
    let mut host = stage.start_with(Box::new(move |_, n| match point {
        Some((at, true)) if at == n => Fate::DieBefore,
        Some((at, false)) if at == n => Fate::DieAfter,
        _ => Fate::Pass,
    }));
    let session = stage.create("default").await;
    stage.admit(session, Delivery::Steer, prompt("one")).await;
    stage
        .admit(session, Delivery::Steer, configure("second"))
        .await;
    stage.admit(session, Delivery::Steer, prompt("two")).await;
    loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if host.link.is_dead() {
            host.kill();
            host = stage.start();
        }
        let tail = stage.tail(session).await;
        if tail.inputs.is_empty() && tail.claim.is_none() && tail.session.turn.is_none() {
            break;
        }
    }
    let dump = stage.idle(session).await;
    assert_eq!(user_texts(&dump), ["one", "two"]);
    let requests = stage.plugins.scripted.requests.lock().unwrap().clone();
    for request in &requests {
        let texts = format!("{:?}", request.messages);
        let wanted = match texts.contains("two") {
            true => "second",
            false => "parrot",
        };
        assert_eq!(request.model, wanted, "{point:?}: {texts}");
    }
    assert!(requests.iter().any(|request| request.model == "parrot"));
    assert!(requests.iter().any(|request| request.model == "second"));
    let promoted = stage.count(session, "input.promoted").await;
    assert_eq!(promoted, 3, "{point:?}\n{}", lines(&dump));
    stage.check_family(session).await;
    host.link.commits()
}

#[tokio::test(start_paused = true)]
async fn inbox_18_a_control_between_steers_acts_once_whenever_the_host_is_killed() {
    let commits = controlled(None).await;
    assert!(commits >= 5, "{commits}");
    for n in 0..commits {
        controlled(Some((n, true))).await;
        controlled(Some((n, false))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn coord_12_the_follow_up_takes_the_widest_scope_and_steers_alone_leave_the_queue() {
    let stage = Stage::new(one_call("look"));
    let host = stage.start();
    // Two inputs whose intent an interrupt took.
    let held = stage.plugins.scripted.hold("look");
    let session = in_a_call(&stage, &host).await;
    let queued = host.prompt(session, "queued done").await;
    let steer = host.steer(session, "steer done").await;
    host.node.interrupt(session).await.unwrap();
    stage.idle(session).await;
    assert_eq!(
        pending(&stage, session).await,
        [(queued, false), (steer, false)]
    );
    // A wake for steers alone leaves the queue.
    host.node.wake(session, Scope::Steers).await.unwrap();
    let dump = stage.idle(session).await;
    assert_eq!(user_texts(&dump), ["begin", "steer done"]);
    assert_eq!(pending(&stage, session).await, [(queued, false)]);
    // Both scopes in one busy period: the queue is taken too.
    host.steer(session, "again").await;
    stage
        .when("the call", || stage.plugins.scripted.count("look") == 2)
        .await;
    assert_eq!(pending(&stage, session).await, [(queued, false)]);
    host.node.wake(session, Scope::Steers).await.unwrap();
    host.node.wake(session, Scope::All).await.unwrap();
    host.node.wake(session, Scope::Steers).await.unwrap();
    held.notify_one();
    let dump = stage.idle(session).await;
    assert_eq!(
        user_texts(&dump),
        ["begin", "steer done", "again", "queued done"],
        "{}",
        lines(&dump)
    );
    // And again: what a later interrupt leaves stays with a wake for steers.
    host.steer(session, "third").await;
    stage
        .when("the call", || stage.plugins.scripted.count("look") == 3)
        .await;
    let later = host.prompt(session, "later done").await;
    host.node.interrupt(session).await.unwrap();
    stage.idle(session).await;
    host.node.wake(session, Scope::Steers).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    stage.idle(session).await;
    assert_eq!(pending(&stage, session).await, [(later, false)]);
}

#[tokio::test(start_paused = true)]
async fn step_11_a_state_goes_to_a_runner_that_accepts_it_and_to_no_other() {
    let format = |name, state_version, accepts: &[(&str, u32)]| Format {
        name,
        state_version,
        accepts: accepts
            .iter()
            .map(|(runner, state_version)| StateFormat {
                runner: (*runner).into(),
                state_version: *state_version,
            })
            .collect(),
    };
    let mut stage = Stage::new(
        Decided::new(|_, _| say("unused"))
            .format("a1", format("a", 1, &[]))
            .format("a2", format("a", 2, &[]))
            .format("b-strange", format("b", 1, &[("a", 2), ("c", 1)]))
            .format("b-kind", format("b", 1, &[("c", 1), ("a", 1)]))
            .agent("default", |_, _| done().state(b"\x00first\xff").into())
            .agent("other", |_, _| done().into()),
    );
    stage.config = config(&["default"]);
    for (alias, handed) in [
        ("a1", true),
        ("a2", false),
        ("b-strange", false),
        ("b-kind", true),
    ] {
        let host = stage.start();
        let set = |runner: &str| {
            let mut config = stage.config.clone();
            let agent = config.agents.get_mut("default").unwrap();
            agent.runner = runner.into();
            host.node.config().set(config);
        };
        let session = stage.create("default").await;
        set("a1");
        host.prompt(session, "one").await;
        let dump = stage.idle(session).await;
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.states.of("a").unwrap().1.state_version, 1);
        set(alias);
        host.prompt(session, "two").await;
        let dump = stage.idle(session).await;
        let view = stage.plugins.views.lock().unwrap().last().unwrap().clone();
        match (handed, view.state) {
            (true, Some(got)) => {
                assert_eq!((got.runner.as_str(), got.state_version), ("a", 1));
                assert_eq!(got.data, b"\x00first\xff", "{alias}");
            }
            (false, None) => {}
            (_, got) => panic!("{alias} was handed {got:?}"),
        }
        // What it stored bears its own name.
        let states = dump.session.as_ref().unwrap().states.clone();
        let (name, version) = match alias {
            "a1" => ("a", 1),
            "a2" => ("a", 2),
            _ => ("b", 1),
        };
        assert_eq!(states.of(name).unwrap().1.state_version, version);
        // And what the first one keeps is there for it again, whoever ran in between.
        set("a1");
        host.prompt(session, "three").await;
        stage.idle(session).await;
        let view = stage.plugins.views.lock().unwrap().last().unwrap().clone();
        match (alias, view.state) {
            // One name has one state: the newer version wrote over it.
            ("a2", None) => {}
            (_, Some(own)) => assert_eq!((&*own.runner, &*own.data), ("a", &b"\x00first\xff"[..])),
            (_, None) => panic!("after {alias} the first runner has lost what it kept"),
        }
        host.kill();
    }
}

#[tokio::test(start_paused = true)]
async fn model_14_no_provider_gets_a_call_without_its_result() {
    let ranged = |seen: &mainstay_test_simulation::decisions::Seen, range: Range| {
        let Action::CallModel(call) = mainstay_test_simulation::plugins::ask(seen) else {
            unreachable!("it asks a model")
        };
        Step::from(Action::CallModel(ModelCall {
            transcript: vec![Segment::Items(range)],
            ..call
        }))
    };
    for (case, word) in [
        ("cut before the result", "call \"c\" has no result"),
        ("begun behind the call", "stands without its call"),
        ("own call left open", "call \"mine\" has no answer"),
    ] {
        let stage = Stage::new(
            Decided::new(move |request, n| match (n, case) {
                (0, "own call left open") => call(&[("mine", "mine", "{}")]),
                (0, _) => call(&[("c", "look", "{}")]),
                _ => say(&last_text(request)),
            })
            .agent("default", move |n, seen| {
                let at = |wanted: &str| {
                    let words = words(&seen.items);
                    let at = words.iter().position(|word| word == wanted);
                    at.map_or(0, |at| seen.items[at].seq)
                };
                match (n, case) {
                    (0, "own call left open") => {
                        let Action::CallModel(call) = mainstay_test_simulation::plugins::ask(seen)
                        else {
                            unreachable!("it asks a model")
                        };
                        let own_tools = vec![ToolDefinition {
                            name: "mine".into(),
                            description: "the runner's".into(),
                            input_schema: r#"{"type":"object"}"#.into(),
                        }];
                        Step::from(Action::CallModel(ModelCall { own_tools, ..call })).into()
                    }
                    (0, _) => ask(seen).into(),
                    (_, "cut before the result") => ranged(
                        seen,
                        Range {
                            after: 0,
                            through: at("assistant"),
                        },
                    )
                    .into(),
                    (_, "begun behind the call") => ranged(
                        seen,
                        Range {
                            after: at("assistant"),
                            through: seen.context.through,
                        },
                    )
                    .into(),
                    _ => ask(seen).into(),
                }
            }),
        );
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        let dump = stage.over(session).await;
        let Some(TurnOutcome::Failed { error }) = dump.session.as_ref().unwrap().last_turn.clone()
        else {
            panic!("{case}: {}", lines(&dump))
        };
        assert!(error.contains(word), "{case}: {error}");
        let requests = stage.plugins.scripted.requests.lock().unwrap().clone();
        assert_eq!(requests.len(), 1, "{case}: it was sent");
        let asking = dump.steps.iter().filter(|step| step.provider.is_some());
        assert_eq!(asking.count(), 1, "{case}: a step began for it");
    }
}

/// By the virtual clock, which stands still while anything has something to do.
#[tokio::test(start_paused = true)]
async fn claim_11_what_is_not_renewed_is_dropped_when_its_time_is_over_and_not_later() {
    let mut stage = Stage::new(Decided::new(|_, _| later(60_000, "never")));
    stage.settings.lease = Duration::from_secs(6);
    stage.settings.lease_margin = Duration::from_secs(1);
    stage.settings.renew_every = Duration::from_millis(1950);
    stage.settings.poll_every = Duration::from_millis(100);
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let begun = stage.until(session, "the request", in_flight).await;
    let expiry = begun.claim.as_ref().unwrap().expires_at;
    let renewed = |tail: &Tail| tail.claim.as_ref().is_some_and(|c| c.expires_at > expiry);
    stage.until(session, "a renewal", renewed).await;
    stage.memory.fail_renewals(true);
    let renewed = stage.now();
    let outcome = host.node.run(session, None).await.unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Lost));
    let kept = stage.now() - renewed;
    assert!(kept <= 5_000, "it ran for {kept} ms after its last renewal");
    assert!(kept > 4_800, "dropped after {kept} ms, with time left");
    let left = stage.tail(session).await;
    assert!(left.claim.as_ref().unwrap().expires_at > stage.now());
}

#[tokio::test(start_paused = true)]
async fn claim_18_one_failed_renewal_drops_nothing_and_takes_nothing_new() {
    let mut stage = Stage::new(Decided::new(|request, _| {
        match last_text(request).as_str() {
            "slow" => later(30_000, "done"),
            _ => say("done"),
        }
    }));
    stage.settings.lease = Duration::from_secs(6);
    stage.settings.lease_margin = Duration::from_secs(1);
    stage.settings.renew_every = Duration::from_secs(2);
    stage.settings.poll_every = Duration::from_millis(100);
    let host = stage.start();
    let slow = stage.create("default").await;
    let quick = stage.create("default").await;
    host.prompt(slow, "slow").await;
    let begun = stage.until(slow, "the request", in_flight).await;
    let expiry = begun.claim.as_ref().unwrap().expires_at;
    let renewed = |tail: &Tail| tail.claim.as_ref().is_some_and(|c| c.expires_at > expiry);
    let tail = stage.until(slow, "a renewal", renewed).await;
    let expiry = tail.claim.as_ref().unwrap().expires_at;
    stage.memory.fail_renewals(true);
    // The next renewal has failed, the one after it has not come yet.
    tokio::time::sleep(Duration::from_millis(2500)).await;
    assert_eq!(
        stage.tail(slow).await.claim.as_ref().unwrap().expires_at,
        expiry
    );
    host.prompt(quick, "quick").await;
    tokio::time::sleep(Duration::from_millis(1000)).await;
    assert_eq!(stage.count(quick, "execution.started").await, 0);
    let waiting = stage.tail(quick).await;
    assert!(waiting.claim.is_none() && waiting.is_runnable());
    stage.memory.fail_renewals(false);
    stage.idle(quick).await;
    let again = stage.tail(slow).await;
    assert!(
        again.claim.as_ref().unwrap().expires_at > expiry,
        "not renewed yet"
    );
    assert_eq!(user_texts(&stage.dump(quick).await), ["quick"]);
    let dump = stage.idle(slow).await;
    assert_eq!(stage.count(slow, "execution.started").await, 1);
    assert_eq!(stage.count(slow, "recovery.recorded").await, 0);
    assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
}

#[tokio::test(start_paused = true)]
async fn claim_21_a_take_over_supersedes_the_run_and_settles_its_calls() {
    let stage = Stage::new(Decided::new(|request, _| match results(request) {
        0 => call(&[("p", "look", "{}"), ("i", "put", "{}"), ("o", "act", "{}")]),
        _ => say("done"),
    }));
    let _held = ["look", "put", "act"].map(|tool| stage.plugins.scripted.hold(tool));
    let a = stage.start();
    let b = stage.start();
    let session = stage.create("default").await;
    a.prompt(session, "go").await;
    let scripted = &stage.plugins.scripted;
    let called = || ["look", "put", "act"].map(|tool| scripted.count(tool));
    stage.when("the calls", || called() == [1, 1, 1]).await;
    let running = {
        let node = std::sync::Arc::clone(&a.node);
        tokio::spawn(async move { node.run(session, None).await })
    };
    tokio::task::yield_now().await;
    let first = stage.tail(session).await.claim.clone().unwrap();
    assert_eq!(first.owner, a.node.owner());
    assert!(b.node.take_over(session).await.unwrap());
    assert!(
        !b.node
            .take_over(SessionId::new())
            .await
            .is_ok_and(|taken| taken)
    );
    // The run on A ends without a terminal of its own, its guests are gone.
    let outcome = running.await.unwrap().unwrap();
    assert_eq!(outcome.terminal, Some(Terminal::Lost));
    // Whoever recovered it asks the calls again that may be.
    stage
        .when("the calls that run again", || called() == [2, 2, 1])
        .await;
    for tool in ["look", "put", "act"] {
        scripted.let_go(tool);
    }
    let dump = stage.idle(session).await;
    let ended: Vec<EventBody> = stage
        .bodies(session)
        .await
        .into_iter()
        .filter(|body| body.terminal_of() == Some(first.execution))
        .collect();
    let superseded = EventBody::ExecutionInterrupted {
        execution: first.execution,
        reason: InterruptReason::Superseded,
    };
    assert_eq!(ended, [superseded]);
    let mut results: Vec<(String, ToolOutcome)> = dump
        .items
        .iter()
        .filter_map(|item| match &item.body {
            ItemBody::ToolResult(result) => Some((result.call.clone(), result.outcome)),
            _ => None,
        })
        .collect();
    results.sort_by(|a, b| a.0.cmp(&b.0));
    assert_eq!(
        results,
        [
            ("i".to_owned(), ToolOutcome::Succeeded),
            ("o".to_owned(), ToolOutcome::OutcomeUnknown),
            ("p".to_owned(), ToolOutcome::Succeeded)
        ]
    );
    let recorded = dump.events.iter().find(|e| e.kind == "recovery.recorded");
    assert_eq!(recorded.unwrap().data["attempts"], 0, "it did not crash");
    let late = a.node.store().commit(mainstay_core::commit::Commit {
        session,
        at: stage.now(),
        write: Write::Append(Append {
            fence: mainstay_core::claim::Fence {
                execution: first.execution,
                owner: first.owner,
            },
            expected_head: None,
            begins: false,
            events: vec![EventBody::RunnerNoted { parts: Vec::new() }.into()],
            end: None,
        }),
    });
    let late = mainstay_test_simulation::decisions::stage::refusal(late.await);
    assert!(matches!(late, Refused::Lost { .. }), "{late:?}");
    // A claim was never taken while another stood.
    let mut claimed = None;
    for logged in stage.memory.log() {
        if logged.commit.session == session {
            if let Write::Claim { .. } = logged.commit.write {
                assert!(claimed.is_none(), "claimed over {claimed:?}");
            }
            claimed = logged.claim;
        }
    }
}
