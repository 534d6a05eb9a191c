//! Turns that are parked until a time, a signal or an approval.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::claim::Phase;
use mainstay_core::commit::{Append, Commit, End, Refused, Write};
use mainstay_core::event::{Delivery, EventBody, InputContent, TurnOutcome};
use mainstay_core::history::{Approval, ChildOutcome, ChildResult, ItemBody, ModelRef};
use mainstay_core::id::{InputId, Millis, SessionId};
use mainstay_core::model::{ToolDefinition, ToolOutcome, text_of};
use mainstay_core::node::Followed;
use mainstay_core::plugin::{Action, Answer, Condition, Entry, ModelCall, Trigger, View, WaitEnd};
use mainstay_core::port::Store as _;
use mainstay_core::tail::{InputStatus, NotRunnable, Scope, Status, Tail};
use mainstay_core::wait;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::{
    Host, Stage, a_signal, an_answer, refusal, words,
};
use mainstay_test_simulation::decisions::{
    Decided, Seen, approval, ask, children, done, parts, signal, tools, wait,
};
use mainstay_test_simulation::invariant;
use mainstay_test_simulation::plugins::{call, results, say};
use mainstay_test_simulation::world::{lines, prompt, user_texts};
use mainstay_test_support::{Gate, Logged};

const MINUTE: Millis = 60_000;

/// No model is asked, or it says one thing.
fn decided() -> Decided {
    Decided::new(|_, _| say("done"))
}

fn begins_wait(commit: &Commit) -> bool {
    matches!(&commit.write, Write::Append(append) if append.events.iter().any(|draft| {
        matches!(&draft.body, EventBody::StepStarted(step) if matches!(step.action, Action::Wait(_)))
    }))
}

fn admits_timer(commit: &Commit) -> bool {
    matches!(commit.write, Write::Fire)
}

fn triggers(plugins: &Decided) -> Vec<Trigger> {
    let views = plugins.views.lock().unwrap();
    views.iter().map(|view| view.trigger.clone()).collect()
}

async fn status(stage: &Stage, session: SessionId) -> Status {
    stage.tail(session).await.status(stage.now())
}

#[tokio::test(start_paused = true)]
async fn wait_1_a_timer_fires_once_after_a_restart_and_the_runner_goes_on() {
    for restarts in [false, true] {
        let stage = Stage::new(decided().agent("default", |n, seen| match n {
            0 => wait([Condition::Time(seen.now + 10 * MINUTE)]).into(),
            _ => done().say("awake").into(),
        }));
        let mut host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        let tail = stage.waiting(session).await;
        let due = tail.session.wake_at().expect("a timer");
        assert_eq!(stage.count(session, "execution.suspended").await, 1);
        assert_eq!(status(&stage, session).await, Status::Waiting);
        assert_eq!(
            stage.plugins.live(),
            0,
            "a guest lives while its session waits"
        );
        if restarts {
            tokio::time::sleep(Duration::from_secs(120)).await;
            host.kill();
            host = stage.start();
        }
        let dump = stage.idle(session).await;
        let fired: Vec<_> = dump
            .inputs
            .iter()
            .filter(|input| matches!(input.content, InputContent::Timer { .. }))
            .collect();
        assert_eq!(fired.len(), 1, "{}", lines(&dump));
        assert_eq!(fired[0].content, InputContent::Timer { at: due });
        let poll = stage.settings.poll_every.as_millis() as Millis;
        assert!(
            (due..=due + poll).contains(&fired[0].at),
            "due at {due}, fired at {}",
            fired[0].at
        );
        assert_eq!(
            triggers(&stage.plugins),
            [Trigger::TurnStarted, Trigger::WaitEnded(WaitEnd::Met(0))]
        );
        assert_eq!(words(&dump.items), ["user go", "timer", "assistant"]);
        host.kill();
    }
}

#[tokio::test(start_paused = true)]
async fn wait_1_a_timer_is_by_the_stores_clock_on_a_node_whose_own_is_wrong() {
    const WRONG: i64 = 3 * 3600 * 1000;
    for ahead_ms in [-WRONG, WRONG] {
        let mut stage = Stage::new(decided().agent("default", |n, seen| match n {
            0 => wait([Condition::Time(seen.now + 10 * MINUTE)]).into(),
            _ => done().say("awake").into(),
        }));
        stage.ahead_ms = ahead_ms;
        let host = stage.start();
        let began = stage.now();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        let tail = stage.waiting(session).await;
        let due = tail.session.wake_at().expect("a timer");
        let soon = began + 10 * MINUTE..began + 11 * MINUTE;
        assert!(soon.contains(&due), "began at {began}, due at {due}");
        let dump = stage.idle(session).await;
        assert!(stage.now() >= due, "it woke before its time");
        let last = dump.events.last().expect("events");
        let end = began..=stage.now();
        assert!(end.contains(&last.at), "an event of {} in {end:?}", last.at);
        host.kill();
    }
}

#[tokio::test(start_paused = true)]
async fn wait_2_ten_thousand_waiting_sessions_hold_no_claim_and_no_instance() {
    const SESSIONS: usize = 10_000;
    let stage = Stage::new(decided().agent("default", |n, _| match n {
        0 => wait([signal("go")]).into(),
        _ => done().into(),
    }));
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let session = stage.create("default").await;
        stage.prompt(session, "go").await;
        sessions.push(session);
    }
    let host = stage.start();
    stage
        .when("all to be asked", || stage.plugins.asked() == SESSIONS)
        .await;
    for session in &sessions {
        stage.waiting(*session).await;
    }
    // Looks of the loop go by: nobody is asked again, nothing is claimed, no view is kept.
    let commits = host.link.commits();
    stage.memory.take_log();
    tokio::time::sleep(Duration::from_secs(30)).await;
    assert_eq!(
        host.link.commits(),
        commits,
        "a waiting session costs commits"
    );
    assert_eq!(stage.plugins.live(), 0);
    assert_eq!(stage.plugins.asked(), SESSIONS);
    for session in &sessions {
        assert!(stage.tail(*session).await.claim.is_none());
    }
    let views = std::mem::take(&mut *stage.plugins.views.lock().unwrap());
    for view in &views {
        // One for the view that the test kept: the node holds on to none.
        assert_eq!(
            Arc::strong_count(&view.history),
            1,
            "a view outlived its decision"
        );
    }
    // Any of them still goes on by itself.
    host.send(sessions[4711], Delivery::Steer, a_signal("go"))
        .await;
    stage.idle(sessions[4711]).await;
    assert_eq!(stage.plugins.asked(), SESSIONS + 1);
}

#[tokio::test(start_paused = true)]
async fn wait_3_a_signal_before_its_wait_ends_it_at_once_and_counts_once() {
    let stage = Stage::new(decided().agent("default", |n, _| match n {
        0 => tools(&[("c", "look")]).into(),
        1 | 2 => wait([signal("go")]).into(),
        _ => done().into(),
    }));
    let gate = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage
        .when("the call", || stage.plugins.scripted.count("look") == 1)
        .await;
    let id = InputId::new();
    let first = host
        .node
        .admit(session, id, Delivery::Steer, a_signal("go"))
        .await
        .unwrap();
    let second = host
        .node
        .admit(session, id, Delivery::Steer, a_signal("go"))
        .await
        .unwrap();
    assert_eq!(first.seq, second.seq);
    gate.notify_one();
    // The first wait ends at once; the second has nothing left to end with.
    stage.waiting(session).await;
    let last = triggers(&stage.plugins).pop();
    assert_eq!(last, Some(Trigger::WaitEnded(WaitEnd::Met(0))));
    assert_eq!(stage.count(session, "step.started").await, 3);
    assert_eq!(stage.count(session, "execution.suspended").await, 1);
    assert_eq!(stage.count(session, "execution.started").await, 1);
    host.send(session, Delivery::Steer, a_signal("go")).await;
    let dump = stage.idle(session).await;
    let signals = words(&dump.items);
    let signals = signals.iter().filter(|word| *word == "signal go").count();
    assert_eq!(signals, 2, "{}", lines(&dump));
}

#[tokio::test(start_paused = true)]
async fn wait_3_a_signal_that_is_admitted_while_the_runner_decides_to_wait_is_kept() {
    // A runner that is slow has its prompt promoted before it is asked; one that is quick has not.
    for (slow_ms, order) in [
        (0, ["signal go", "user begin"]),
        (1000, ["user begin", "signal go"]),
    ] {
        let stage = Stage::new(decided().agent("default", |n, _| match n {
            0 => wait([signal("go")]).into(),
            _ => done().into(),
        }));
        stage.plugins.slow_ms.store(slow_ms, Ordering::SeqCst);
        let gate = stage.memory.gate(begins_wait);
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "begin").await;
        gate.reached(1).await;
        stage.admit(session, Delivery::Steer, a_signal("go")).await;
        gate.open();
        let dump = stage.idle(session).await;
        assert_eq!(stage.count(session, "execution.started").await, 1);
        assert_eq!(stage.count(session, "execution.suspended").await, 0);
        assert_eq!(words(&dump.items), order, "{}", lines(&dump));
    }
}

/// Waits for a signal, a minute at most, and then says how that ended.
fn a_minute_at_most(n: u32, seen: &Seen) -> mainstay_core::plugin::Decision {
    match n {
        0 => wait([signal("go"), Condition::Time(seen.now + MINUTE)]).into(),
        _ => done().say(&format!("{:?}", seen.trigger)).into(),
    }
}

#[tokio::test(start_paused = true)]
async fn wait_4_a_time_out_is_an_event_and_is_not_waited_for_again() {
    let promotes = |commit: &Commit| {
        matches!(&commit.write, Write::Append(append) if append.events.iter().any(|draft| {
            matches!(draft.body, EventBody::TurnEnded { .. })
        }))
    };
    type Picks = fn(&Commit) -> bool;
    let points: [(Picks, bool); 4] = [
        (admits_timer, true),
        (admits_timer, false),
        (promotes, true),
        (promotes, false),
    ];
    for (picks, before) in points {
        let stage = Stage::new(decided().agent("default", a_minute_at_most));
        let host = stage.start_with(Box::new(move |commit, _| match (picks(commit), before) {
            (true, true) => Fate::DieBefore,
            (true, false) => Fate::DieAfter,
            _ => Fate::Pass,
        }));
        let session = stage.create("default").await;
        host.prompt(session, "begin").await;
        host.link.died().await;
        host.kill();
        let _next = stage.start();
        let dump = stage.idle(session).await;
        assert_eq!(stage.count(session, "execution.suspended").await, 1);
        assert_eq!(
            stage.count(session, "step.started").await,
            1,
            "it waited again"
        );
        assert_eq!(words(&dump.items), ["user begin", "timer", "assistant"]);
        let ItemBody::Assistant(said) = &dump.items[2].body else {
            panic!("{:?}", dump.items)
        };
        let said = format!("{:?}", said.content);
        assert!(said.contains("Met(1)"), "{said}");
        stage.check_family(session).await;
    }
}

#[tokio::test(start_paused = true)]
async fn wait_4_the_signal_in_time_ends_it_and_the_timer_stays_silent() {
    let stage = Stage::new(decided().agent("default", a_minute_at_most));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage.waiting(session).await;
    // Of another name: it becomes history and the wait goes on.
    host.send(session, Delivery::Steer, a_signal("other")).await;
    stage.waiting(session).await;
    host.send(session, Delivery::Steer, a_signal("go")).await;
    stage.idle(session).await;
    tokio::time::sleep(Duration::from_secs(300)).await;
    let dump = stage.idle(session).await;
    assert_eq!(
        words(&dump.items),
        ["user begin", "signal other", "signal go", "assistant"]
    );
}

#[tokio::test(start_paused = true)]
async fn an_interrupt_ends_a_wait_and_its_timer_for_good() {
    let stage = Stage::new(decided().agent("default", |n, seen| match n {
        0 => wait([Condition::Time(seen.now + MINUTE), approval("a")]).into(),
        _ => done().into(),
    }));
    let (host, other) = (stage.start(), stage.start());
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage.waiting(session).await;
    assert!(other.node.interrupt(session).await.unwrap());
    let late = refusal(host.node.answer(session, an_answer("a", None)).await);
    assert_eq!(late, Refused::ApprovalNotFound { key: "a".into() });
    tokio::time::sleep(Duration::from_secs(300)).await;
    let dump = stage.idle(session).await;
    let row = dump.session.as_ref().unwrap();
    assert_eq!(row.last_turn, Some(TurnOutcome::Interrupted));
    assert_eq!(dump.inputs.len(), 1, "{}", lines(&dump));
    assert_eq!(stage.plugins.asked(), 1);
}

#[tokio::test(start_paused = true)]
async fn wait_1_two_nodes_fire_a_timer_once() {
    let stage = Stage::new(decided().agent("default", |n, seen| match n {
        0 => wait([Condition::Time(seen.now + MINUTE)]).into(),
        _ => done().into(),
    }));
    let gate = stage
        .memory
        .gate(|commit| matches!(commit.write, Write::Fire));
    let (host, _other) = (stage.start(), stage.start());
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    gate.reached(2).await;
    gate.open();
    let dump = stage.idle(session).await;
    assert_eq!(words(&dump.items), ["user go", "timer"]);
    assert_eq!(stage.count(session, "turn.ended").await, 1);
    stage.check_family(session).await;
}

/// Offers `pay` as the runner's own tool.
fn ask_with_pay(view: &View) -> Action {
    let Action::CallModel(call) = mainstay_test_simulation::plugins::ask(view) else {
        unreachable!("it asks a model")
    };
    Action::CallModel(ModelCall {
        own_tools: vec![ToolDefinition {
            name: "pay".into(),
            description: "pays, if a person says yes".into(),
            input_schema: r#"{"type":"object"}"#.into(),
        }],
        ..call
    })
}

/// A model that acts once and wants to pay; the runner pays with a second call once a person agrees.
fn pays() -> Decided {
    let answer = |request: &mainstay_core::plugin::ModelRequest, _| match results(request) {
        0 => call(&[("first", "act", "{}"), ("pay", "pay", "{}")]),
        _ => say("done"),
    };
    Decided::new(answer).agent("default", |_, seen| {
        let answer = |is_error, output: &str| {
            let answer = Answer {
                call: "pay".into(),
                is_error,
                output: parts(output),
            };
            ask(seen).entry(Entry::Answer(answer)).into()
        };
        let approved = seen.items.iter().rev().find_map(|item| match &item.body {
            ItemBody::Approval(approval) => Some(approval.clone()),
            _ => None,
        });
        match (&seen.trigger, approved) {
            (Trigger::TurnStarted, _) => {
                mainstay_test_simulation::decisions::Step::from(ask_with_pay(seen)).into()
            }
            (Trigger::ModelFinished(_), _) if !seen.open_calls.is_empty() => {
                wait([approval("pay")]).into()
            }
            (Trigger::WaitEnded(_), Some(approval)) if approval.approved => {
                tools(&[("second", "act")]).into()
            }
            (Trigger::WaitEnded(_), Some(approval)) => {
                answer(true, &approval.reason.unwrap_or_default())
            }
            (Trigger::ToolsFinished, _) => answer(false, "paid"),
            _ => done().into(),
        }
    })
}

#[tokio::test(start_paused = true)]
async fn wait_5_an_approval_outlives_the_host_and_nothing_is_done_twice() {
    for denied in [None, Some("too dear")] {
        let stage = Stage::new(pays());
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        let tail = stage.waiting(session).await;
        let asked = &tail.session.arrived.approvals["pay"];
        assert_eq!(asked.request.as_ref().unwrap().question, "may I pay?");
        assert_eq!(stage.plugins.scripted.count("act"), 1);
        host.kill();
        let host = stage.start();
        // It stays parked, however often the loop looks.
        tokio::time::sleep(Duration::from_secs(600)).await;
        stage.waiting(session).await;
        assert_eq!(stage.plugins.scripted.count("act"), 1);
        host.node
            .answer(session, an_answer("pay", denied))
            .await
            .unwrap();
        let dump = stage.over(session).await;
        let called: Vec<String> = {
            let calls = stage.plugins.scripted.calls.lock().unwrap();
            calls.iter().map(|call| call.id.clone()).collect()
        };
        let of_pay: Vec<_> = dump
            .items
            .iter()
            .filter_map(|item| match &item.body {
                ItemBody::ToolResult(result) if result.call == "pay" => {
                    Some((result.outcome, text_of(&result.output)))
                }
                _ => None,
            })
            .collect();
        match denied {
            None => {
                assert_eq!(called, ["first", "second"]);
                assert_eq!(of_pay, [(ToolOutcome::Succeeded, "paid".into())]);
            }
            Some(reason) => {
                assert_eq!(called, ["first"]);
                assert_eq!(of_pay, [(ToolOutcome::Failed, reason.into())]);
            }
        }
        assert_eq!(
            dump.session.as_ref().unwrap().last_turn,
            Some(TurnOutcome::Done),
            "{}",
            lines(&dump)
        );
        let approvals = words(&dump.items);
        let approvals = approvals.iter().filter(|word| *word == "approval pay");
        assert_eq!(approvals.count(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_6_the_first_answer_stands_and_every_other_is_an_error() {
    let stage = Stage::new(decided().agent("default", |n, _| match n {
        0 => wait([approval("a")]).into(),
        1 => wait([approval("b")]).into(),
        _ => done().into(),
    }));
    let host = stage.start();
    let node = &host.node;
    let session = stage.create("default").await;
    let other = stage.create("default").await;
    host.prompt(session, "go").await;
    stage.waiting(session).await;

    let unknown = refusal(node.answer(session, an_answer("z", None)).await);
    assert_eq!(unknown, Refused::ApprovalNotFound { key: "z".into() });
    // Not asked for yet.
    let early = refusal(node.answer(session, an_answer("b", None)).await);
    assert_eq!(early, Refused::ApprovalNotFound { key: "b".into() });
    let astray = refusal(node.answer(other, an_answer("a", None)).await);
    assert_eq!(astray, Refused::ApprovalNotFound { key: "a".into() });
    let nowhere = refusal(node.answer(SessionId::new(), an_answer("a", None)).await);
    assert!(matches!(nowhere, Refused::NotFound(_)), "{nowhere:?}");
    assert_eq!(stage.plugins.asked(), 1, "an error made something run");

    node.answer(session, an_answer("a", None)).await.unwrap();
    let twice =
        |tail: &Tail| tail.claim.is_none() && tail.session.arrived.approvals.contains_key("b");
    stage.until(session, "the second wait", twice).await;
    node.answer(session, an_answer("a", None)).await.unwrap();
    let answered = |approved| Refused::ApprovalAnswered {
        key: "a".into(),
        approved,
    };
    let opposite = refusal(node.answer(session, an_answer("a", Some("no"))).await);
    assert_eq!(opposite, answered(true));
    assert_eq!(stage.plugins.asked(), 2);

    node.cancel(session).await.unwrap();
    for key in ["a", "b"] {
        let late = refusal(node.answer(session, an_answer(key, None)).await);
        assert_eq!(late, Refused::Cancelled(session));
    }
    let dump = stage.idle(session).await;
    assert_eq!(stage.plugins.asked(), 2);
    assert_eq!(
        stage.count(session, "input.admitted").await,
        2,
        "{}",
        lines(&dump)
    );
    stage.check_family(session).await;
}

#[tokio::test(start_paused = true)]
async fn wait_6_an_approval_that_nobody_waits_for_any_more_is_not_found() {
    let stage = Stage::new(decided().agent("default", |n, _| match n {
        0 => wait([approval("a")]).into(),
        _ => done().into(),
    }));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage.waiting(session).await;
    host.steer(session, "never mind").await;
    stage.idle(session).await;
    let late = refusal(host.node.answer(session, an_answer("a", None)).await);
    assert_eq!(late, Refused::ApprovalNotFound { key: "a".into() });
}

#[tokio::test(start_paused = true)]
async fn wait_10_a_wait_that_nothing_could_end_fails_the_turn_by_name() {
    let nothing: Vec<(Vec<Condition>, &str)> = vec![
        (vec![], "waits for nothing"),
        (vec![signal("")], "a signal without a name"),
        (vec![approval("")], "an approval without a key"),
        (vec![children(&[])], "waits for no child"),
        (vec![children(&["nobody"])], "child \"nobody\""),
        (
            vec![signal("fine"), children(&["nobody"])],
            "child \"nobody\"",
        ),
    ];
    for (until, words) in nothing {
        let decides = until.clone();
        let stage =
            Stage::new(decided().agent("default", move |_, _| wait(decides.clone()).into()));
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        let dump = stage.idle(session).await;
        let Some(TurnOutcome::Failed { error }) = dump.session.as_ref().unwrap().last_turn.clone()
        else {
            panic!("{until:?} parked the session:\n{}", lines(&dump))
        };
        assert!(error.contains(words), "{until:?}: {error}");
        assert!(error.contains("runner default"), "{error}");
        assert_eq!(stage.count(session, "step.started").await, 0);
        assert_eq!(stage.count(session, "execution.failed").await, 1);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_11_a_wait_its_phase_its_terminal_and_its_claims_end_are_one_commit() {
    for before in [true, false] {
        let stage = Stage::new(decided().agent("default", |n, _| match n {
            0 => wait([signal("go")]).into(),
            _ => done().into(),
        }));
        let host = stage.start_with(Box::new(move |commit, _| {
            match (begins_wait(commit), before) {
                (false, _) => Fate::Pass,
                (true, true) => Fate::DieBefore,
                (true, false) => Fate::DieAfter,
            }
        }));
        let session = stage.create("default").await;
        host.prompt(session, "begin").await;
        host.link.died().await;
        let tail = stage.tail(session).await;
        if before {
            assert!(tail.session.wait.is_none() && tail.session.turn.is_none());
            assert_eq!(tail.claim.as_ref().unwrap().phase, Phase::Ready);
            assert_eq!(stage.count(session, "input.promoted").await, 0);
        } else {
            assert!(tail.session.wait.is_some());
            assert!(tail.claim.is_none());
            assert_eq!(stage.count(session, "execution.suspended").await, 1);
        }
        host.kill();
        let host = stage.start();
        stage.waiting(session).await;
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(stage.count(session, "step.started").await, 1, "two waits");
        assert_eq!(stage.count(session, "execution.suspended").await, 1);
        host.send(session, Delivery::Steer, a_signal("go")).await;
        stage.idle(session).await;
        stage.check_family(session).await;
    }
}

#[tokio::test(start_paused = true)]
async fn wait_11_a_wait_that_cannot_be_stored_leaves_nothing_of_it() {
    let stage = Stage::new(decided().agent("default", |n, _| match n {
        0 => wait([signal("go")]).into(),
        _ => done().into(),
    }));
    stage.memory.fail_when(begins_wait);
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage.when("a decision", || stage.plugins.asked() > 0).await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let tail = stage.tail(session).await;
    assert!(tail.session.wait.is_none() && tail.session.turn.is_none());
    assert_eq!(tail.claim.as_ref().unwrap().phase, Phase::Ready);
    stage.memory.heal();
    stage.waiting(session).await;
    assert_eq!(stage.count(session, "step.started").await, 1);
}

/// A wait whose claim stands, in `safe`: a control behind what began the turn keeps the terminal out of
/// the wait's commit, and its promotion is held back.
async fn waiting_with_a_claim(stage: &Stage) -> (Host, SessionId, Gate) {
    let session = stage.create("default").await;
    stage.admit(session, Delivery::Steer, prompt("begin")).await;
    let model = ModelRef {
        provider: "parrot".into(),
        model: "other".into(),
    };
    let control = InputContent::Configure { model };
    stage.admit(session, Delivery::Steer, control).await;
    let gate = stage
        .memory
        .gate(|commit| matches!(&commit.write, Write::Append(append) if append.events.len() == 1));
    let host = stage.start();
    gate.reached(1).await;
    let tail = stage.tail(session).await;
    assert!(tail.session.wait.is_some());
    assert_eq!(tail.claim.as_ref().unwrap().phase, Phase::Safe);
    (host, session, gate)
}

#[tokio::test(start_paused = true)]
async fn recov_10_a_safe_claim_of_a_waiting_turn_owes_its_suspension() {
    let stage = Stage::new(decided().agent("default", |_, _| wait([signal("go")]).into()));
    let (host, session, gate) = waiting_with_a_claim(&stage).await;
    host.kill();
    gate.open();
    let _next = stage.start();
    let tail = stage.waiting(session).await;
    assert_eq!(tail.session.attempts, 0);
    assert_eq!(tail.session.model.as_ref().unwrap().model, "other");
    // Once by recovery, once by the run that the control was owed.
    assert_eq!(stage.count(session, "execution.suspended").await, 2);
    assert_eq!(stage.plugins.asked(), 1);
    invariant::check(&stage.dump(session).await);
}

#[tokio::test(start_paused = true)]
async fn wait_12_a_queued_prompt_leaves_a_wait_alone_and_a_steer_ends_it() {
    let stage = Stage::new(
        decided().agent("default", |n, seen| match (n, &seen.trigger) {
            (0, _) => wait([signal("go")]).into(),
            (_, Trigger::WaitEnded(WaitEnd::Steered)) => done().say("steered").into(),
            _ => done().say("next").into(),
        }),
    );
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage.waiting(session).await;
    let queued = host.prompt(session, "later").await;
    tokio::time::sleep(Duration::from_secs(30)).await;
    let tail = stage.waiting(session).await;
    assert_eq!(tail.inputs.len(), 1);
    assert_eq!((tail.inputs[0].id, tail.inputs[0].intent), (queued, true));
    assert_eq!(stage.plugins.asked(), 1);
    host.steer(session, "hey").await;
    let dump = stage.idle(session).await;
    assert_eq!(
        words(&dump.items),
        [
            "user begin",
            "user hey",
            "assistant",
            "user later",
            "assistant"
        ]
    );
    let steered = stage.plugins.views.lock().unwrap()[1].clone();
    assert_eq!(steered.trigger, Trigger::WaitEnded(WaitEnd::Steered));
    let fresh = &dump.items[1];
    assert!(steered.fresh.after < fresh.seq && fresh.seq <= steered.fresh.through);
    assert_eq!(stage.count(session, "turn.ended").await, 2);
}

#[tokio::test(start_paused = true)]
async fn wait_13_a_cancelled_session_stays_cancelled_whatever_comes() {
    let stage = Stage::new(decided().agent("default", |n, seen| match n {
        0 => wait([Condition::Time(seen.now + MINUTE), signal("go")]).into(),
        _ => done().into(),
    }));
    let host = stage.start();
    let node = &host.node;
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage.waiting(session).await;
    let pending = stage.prompt(session, "never").await;
    assert!(node.cancel(session).await.unwrap(), "a turn was open");
    let dump = stage.idle(session).await;
    let events = dump.events.len();
    assert_eq!(status(&stage, session).await, Status::Cancelled);

    assert!(!node.cancel(session).await.unwrap());
    for (delivery, content) in [
        (Delivery::Queue, prompt("more")),
        (Delivery::Steer, prompt("more")),
        (Delivery::Steer, a_signal("go")),
        (
            Delivery::Steer,
            InputContent::Child(ChildResult {
                key: "c".into(),
                outcome: ChildOutcome::Cancelled,
            }),
        ),
    ] {
        let admitted = node.admit(session, InputId::new(), delivery, content).await;
        let refused = refusal(admitted);
        assert_eq!(refused, Refused::Cancelled(session));
        assert!(refused.to_string().contains("cancelled"));
    }
    let resumed = refusal(node.resume(session).await);
    assert_eq!(resumed, Refused::NotRunnable(NotRunnable::Cancelled));
    for forced in [None, Some(4)] {
        let run = refusal(node.run(session, forced).await);
        assert_eq!(run, Refused::NotRunnable(NotRunnable::Cancelled));
    }
    node.wake(session, Scope::All).await.unwrap();
    stage.write(session, Write::Fire).await.unwrap();
    tokio::time::sleep(Duration::from_secs(300)).await;
    host.kill();
    let host = stage.start();
    tokio::time::sleep(Duration::from_secs(300)).await;

    let dump = stage.dump(session).await;
    assert_eq!(dump.events.len(), events, "{}", lines(&dump));
    assert_eq!(stage.plugins.asked(), 1);
    assert!(stage.tail(session).await.session.cancelled);
    let inputs = stage.memory.inputs(session, false).await.unwrap();
    assert_eq!(inputs.len(), 1);
    assert_eq!((inputs[0].id, inputs[0].intent), (pending, false));
    let read: Vec<_> = host.node.log(session, 0, false).collect().await;
    assert_eq!(read.len(), events + 1);
    assert_eq!(
        read.last().unwrap().as_ref().unwrap(),
        &Followed::Synced(events as u64)
    );
}

#[tokio::test(start_paused = true)]
async fn a_mark_on_a_safe_claim_of_a_waiting_turn_closes_the_turn_in_recovery() {
    for cancels in [true, false] {
        let stage = Stage::new(decided().agent("default", |_, _| wait([signal("go")]).into()));
        let (host, session, gate) = waiting_with_a_claim(&stage).await;
        let write = match cancels {
            true => Write::Cancel,
            false => Write::Interrupt {
                cause: None,
                and_continue: false,
            },
        };
        stage.write(session, write).await.unwrap();
        host.kill();
        gate.open();
        let _next = stage.start();
        let dump = stage.idle(session).await;
        let row = dump.session.as_ref().unwrap();
        assert_eq!(
            row.last_turn,
            Some(TurnOutcome::Interrupted),
            "{}",
            lines(&dump)
        );
        assert_eq!(row.cancelled, cancels);
        let pending = stage.memory.inputs(session, false).await.unwrap();
        assert_eq!(pending.len(), 1);
        assert!(!pending[0].intent);
    }
}

/// Waits for a signal, a time and an approval, one after the other.
fn three_waits() -> Decided {
    decided().agent("default", |n, seen| match n {
        0 => wait([signal("go")]).into(),
        1 => wait([Condition::Time(seen.now + MINUTE)]).into(),
        2 => wait([approval("end")]).into(),
        _ => done().say("over").into(),
    })
}

/// Runs three waits, with a client that does its part, through a kill at `point`.
async fn waits_with(point: Option<(usize, bool)>) -> usize {
    let stage = Stage::new(three_waits());
    let mut host = stage.start_with(Box::new(move |_, n| match point {
        Some((at, true)) if at == n => Fate::DieBefore,
        Some((at, false)) if at == n => Fate::DieAfter,
        _ => Fate::Pass,
    }));
    let session = stage.create("default").await;
    stage.prompt(session, "begin").await;
    let sent = InputId::new();
    let mut killed = false;
    let commits = loop {
        tokio::time::sleep(Duration::from_millis(100)).await;
        if host.link.is_dead() {
            assert!(!killed, "it died twice");
            killed = true;
            host.kill();
            host = stage.start();
        }
        let tail = stage.tail(session).await;
        if tail.session.wait.is_some() {
            let signal = Write::Admit {
                input: sent,
                delivery: Delivery::Steer,
                content: a_signal("go"),
            };
            stage.write(session, signal).await.unwrap();
        }
        if tail.session.arrived.approvals.contains_key("end") {
            let answer = Write::Answer(an_answer("end", None));
            stage.write(session, answer).await.unwrap();
        }
        if tail.session.last_turn.is_some() && tail.claim.is_none() {
            break host.link.commits();
        }
    };
    let dump = stage.idle(session).await;
    assert_eq!(
        words(&dump.items),
        [
            "user begin",
            "signal go",
            "timer",
            "approval end",
            "assistant"
        ],
        "{point:?}\n{}",
        lines(&dump)
    );
    assert_eq!(stage.count(session, "step.started").await, 3, "{point:?}");
    assert_eq!(user_texts(&dump), ["begin"]);
    let kinds: Vec<&str> = dump
        .inputs
        .iter()
        .map(|input| input.content.kind())
        .collect();
    assert_eq!(kinds, ["prompt", "signal", "timer", "approval"]);
    assert!(
        dump.inputs
            .iter()
            .all(|input| input.status == InputStatus::Promoted)
    );
    assert_eq!(
        dump.inputs[2].id,
        wait::timer_input(session, dump.steps[1].seq),
        "a timer's input is named by its wait"
    );
    stage.check_family(session).await;
    commits
}

#[tokio::test(start_paused = true)]
async fn wait_11_a_kill_at_every_commit_of_a_session_that_waits_leaves_each_wait_once() {
    let commits = waits_with(None).await;
    assert!(commits >= 9, "{commits}");
    for n in 0..commits {
        waits_with(Some((n, true))).await;
        waits_with(Some((n, false))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_is_kept_while_its_session_is_quarantined() {
    let stage = Stage::new(decided().agent("default", |n, _| match n {
        0 => wait([approval("a")]).into(),
        _ => done().into(),
    }));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    stage.waiting(session).await;
    // A run that looks at a steer crashes for good.
    host.kill();
    stage
        .admit(session, Delivery::Steer, a_signal("poison"))
        .await;
    let claim = |commit: &Commit| matches!(commit.write, Write::Claim { .. });
    for _ in 0..=stage.settings.max_attempts {
        let host = stage.start_with(Box::new(move |commit, _| match claim(commit) {
            true => Fate::DieAfter,
            false => Fate::Pass,
        }));
        host.link.died().await;
        host.kill();
    }
    let host = stage.start();
    let put_aside = |tail: &Tail| tail.session.quarantined.is_some();
    stage.until(session, "quarantine", put_aside).await;
    let denied: Approval = an_answer("a", Some("no"));
    host.node.answer(session, denied).await.unwrap();
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(stage.plugins.asked(), 1);
    host.node.resume(session).await.unwrap();
    let dump = stage.idle(session).await;
    assert_eq!(
        words(&dump.items),
        ["user go", "signal poison", "approval a"],
        "{}",
        lines(&dump)
    );
    let ends = |commit: &&Logged| {
        matches!(
            &commit.commit.write,
            Write::Append(Append {
                end: Some(End::Succeeded),
                ..
            })
        )
    };
    assert_eq!(stage.memory.log().iter().filter(ends).count(), 1);
}
