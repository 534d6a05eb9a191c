//! Calls of tools that an agent's policy lets run, has a person asked about, or denies. The stage's rule is
//! that a call with an argument `ask` is asked about, and one with an argument `deny` never runs.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::approval;
use mainstay_core::claim::Phase;
use mainstay_core::commit::{Refused, Write};
use mainstay_core::event::{Delivery, EventBody, TurnOutcome};
use mainstay_core::history::ItemBody;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::model::{Effect, FinishReason, ToolOutcome, text_of};
use mainstay_core::plugin::{LocalEvent, ModelEvent};
use mainstay_core::port::Dump;
use mainstay_core::tail::{CallStatus, InputStatus, Status, Tail};
use mainstay_core::wait;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::{Host, Stage, an_answer, refusal, words};
use mainstay_test_simulation::decisions::{self, Decided, done, tools};
use mainstay_test_simulation::plugins::{call, events, results, say, sent};
use mainstay_test_simulation::world::lines;

const ASK: &str = r#"{"ask":"x"}"#;
const DENY: &str = r#"{"deny":"x"}"#;
const FREE: &str = "{}";

type Calls = &'static [(&'static str, &'static str, &'static str)];

/// Makes each group of calls in a step of its own, then is done.
fn makes(groups: &'static [Calls]) -> Decided {
    Decided::new(move |request, _| {
        let mut made = results(request);
        for group in groups {
            if made == 0 {
                return call(group);
            }
            made = made.saturating_sub(group.len());
        }
        say("done")
    })
}

/// The results of calls: id, outcome, text.
fn outcomes(dump: &Dump) -> Vec<(String, ToolOutcome, String)> {
    let results = dump.items.iter().filter_map(|item| match &item.body {
        ItemBody::ToolResult(result) => Some(result),
        _ => None,
    });
    let told = results.map(|r| (r.call.clone(), r.outcome, text_of(&r.output)));
    told.collect()
}

fn called(stage: &Stage) -> Vec<String> {
    let calls = stage.plugins.scripted.calls.lock().unwrap();
    calls.iter().map(|call| call.id.clone()).collect()
}

/// Prompts a fresh session and waits until it is parked. Gives its open step too.
async fn parked(stage: &Stage, host: &Host) -> (SessionId, Arc<Tail>, Seq) {
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let tail = stage.waiting(session).await;
    let step = tail.session.step.expect("an open step");
    (session, tail, step)
}

#[tokio::test(start_paused = true)]
async fn wait_5_a_call_that_a_person_is_asked_about_outlives_the_host_and_runs_once() {
    for denied in [None, Some("too dear")] {
        for effect in ["look", "put", "act"] {
            let groups: &'static [Calls] = match effect {
                "look" => &[&[("first", "act", FREE)], &[("second", "look", ASK)]],
                "put" => &[&[("first", "act", FREE)], &[("second", "put", ASK)]],
                _ => &[&[("first", "act", FREE)], &[("second", "act", ASK)]],
            };
            let stage = Stage::new(makes(groups));
            let host = stage.start();
            let (session, tail, step) = parked(&stage, &host).await;
            let key = approval::key(step, "second");
            let asked = &tail.session.arrived.approvals[&key];
            let request = asked.request.as_ref().unwrap();
            assert_eq!(request.question, format!("May the tool {effect} run?"));
            assert_eq!(request.details.as_deref(), Some(ASK));
            assert_eq!(asked.call.as_deref(), Some("second"));
            assert_eq!(tail.status(stage.now()), Status::Waiting);
            assert_eq!(
                stage.plugins.live(),
                0,
                "a guest lives while its session waits"
            );
            host.kill();
            let host = stage.start();
            // It stays parked, however often the loop looks.
            tokio::time::sleep(Duration::from_secs(600)).await;
            stage.waiting(session).await;
            assert_eq!(called(&stage), ["first"]);

            let answer = an_answer(&key, denied);
            host.node.answer(session, answer).await.unwrap();
            let dump = stage.idle(session).await;
            let second = match denied {
                None => {
                    assert_eq!(called(&stage), ["first", "second"]);
                    (ToolOutcome::Succeeded, format!("{effect} done"))
                }
                Some(reason) => {
                    assert_eq!(called(&stage), ["first"]);
                    let text = format!("Not run: a person denied it: {reason}");
                    (ToolOutcome::Denied, text)
                }
            };
            let told = outcomes(&dump);
            assert_eq!(told[1], ("second".into(), second.0, second.1), "{told:?}");
            assert_eq!(told.len(), 2);
            let row = dump.session.as_ref().unwrap();
            assert_eq!(row.last_turn, Some(TurnOutcome::Done), "{}", lines(&dump));
            // The answer is the host's affair: the call's result says what came of it.
            assert!(
                !words(&dump.items)
                    .iter()
                    .any(|word| word.starts_with("approval"))
            );
            assert!(
                dump.inputs
                    .iter()
                    .all(|input| input.status == InputStatus::Promoted)
            );
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_denied_call_never_runs_and_the_runner_goes_on() {
    let stage = Stage::new(makes(&[&[("a", "act", DENY), ("b", "look", FREE)]]));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    assert_eq!(called(&stage), ["b"]);
    let denied = &outcomes(&dump)[0];
    assert_eq!((denied.0.as_str(), denied.1), ("a", ToolOutcome::Denied));
    assert!(denied.2.contains("policy"), "{}", denied.2);
    let requests = stage.plugins.scripted.requests.lock().unwrap();
    assert_eq!(requests.len(), 2);
    assert_eq!(results(&requests[1]), 2);
}

#[tokio::test(start_paused = true)]
async fn what_cannot_run_is_refused_before_anybody_is_asked() {
    let stage = Stage::new(makes(&[&[
        ("a", "nothing", ASK),
        ("b", "act", r#"{"ask":"x","n":"no number"}"#),
        ("c", "act", r#"{"ask":"#),
    ]]));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    assert_eq!(stage.count(session, "call.held").await, 0);
    let told: Vec<_> = outcomes(&dump).into_iter().map(|told| told.1).collect();
    assert_eq!(
        told,
        [
            ToolOutcome::UnknownTool,
            ToolOutcome::InvalidArguments,
            ToolOutcome::InvalidArguments
        ]
    );
}

/// A rule would be held against the one, and the tool might act on the other.
#[tokio::test(start_paused = true)]
async fn arguments_that_name_a_field_twice_are_refused_before_any_rule_and_schema() {
    let stage = Stage::new(makes(&[&[
        ("a", "act", r#"{"deny":"x","deny":"free"}"#),
        ("b", "act", r#"{"ask":"free","\u0061sk":"x"}"#),
        ("c", "look", r#"{"n":"no number","more":[{"n":1,"n":1}]}"#),
    ]]));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    assert_eq!(called(&stage), [""; 0]);
    assert_eq!(stage.count(session, "call.held").await, 0);
    for (told, field) in outcomes(&dump).iter().zip(["/deny", "/ask", "/more/0/n"]) {
        assert_eq!(told.1, ToolOutcome::InvalidArguments, "{told:?}");
        let words = format!("{field:?} is there more than once");
        assert!(told.2.contains(&words), "{told:?}");
    }
    assert_eq!(outcomes(&dump).len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_held_call_keeps_no_other_back_and_starts_as_soon_as_it_is_answered() {
    for heard in [true, false] {
        let stage = Stage::new(makes(&[&[
            ("a", "act", ASK),
            ("b", "put", FREE),
            ("c", "act", ASK),
        ]]));
        let gate = stage.plugins.scripted.hold("put");
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        stage
            .when("the free call", || called(&stage) == ["b"])
            .await;
        // What is asked is durable although a call still runs.
        let both = |tail: &Tail| tail.session.arrived.approvals.len() == 2;
        let tail = stage.until(session, "the requests", both).await;
        assert!(tail.session.wait.is_none() && tail.claim.is_some());
        assert_eq!(tail.status(stage.now()), Status::Running);
        let step = tail.session.step.unwrap();
        let answer = an_answer(&approval::key(step, "c"), None);
        if heard {
            host.node.answer(session, answer).await.unwrap();
        } else {
            // By another node, of which this one hears nothing.
            stage.write(session, Write::Answer(answer)).await.unwrap();
        }
        stage
            .when("the call", || called(&stage) == ["b", "c"])
            .await;
        gate.notify_one();
        let tail = stage.waiting(session).await;
        let until = &tail.session.wait.as_ref().unwrap().until;
        assert_eq!(until.len(), 1, "{until:?}");
        let answer = an_answer(&approval::key(step, "a"), Some("no"));
        host.node.answer(session, answer).await.unwrap();
        let dump = stage.idle(session).await;
        assert_eq!(called(&stage), ["b", "c"], "{}", lines(&dump));
        assert_eq!(stage.count(session, "step.started").await, 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_process_that_dies_as_it_parks_asks_again_and_runs_the_call_once() {
    let stage = Stage::new(makes(&[&[("a", "act", ASK)]]));
    let host = stage.start_with(Box::new(|commit, _| match &commit.write {
        Write::Append(append) if append.end.is_some() => Fate::DieBefore,
        _ => Fate::Pass,
    }));
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    host.link.died().await;
    // Nothing was asked yet: the request is in the commit that never came.
    host.kill();
    let host = stage.start();
    let tail = stage.waiting(session).await;
    let key = approval::key(tail.session.step.unwrap(), "a");
    host.node
        .answer(session, an_answer(&key, None))
        .await
        .unwrap();
    stage.idle(session).await;
    assert_eq!(called(&stage), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn what_is_sent_while_a_call_is_held_enters_behind_its_result() {
    let stage = Stage::new(makes(&[&[("a", "act", ASK)]]));
    let host = stage.start();
    let (session, _, step) = parked(&stage, &host).await;
    host.steer(session, "hurry").await;
    let queued = host.prompt(session, "and then").await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    let tail = stage.waiting(session).await;
    assert_eq!(tail.inputs.len(), 2);
    let started = stage.count(session, "execution.started").await;
    assert_eq!(started, 1, "it was run for nothing");
    let answer = an_answer(&approval::key(step, "a"), None);
    host.node.answer(session, answer).await.unwrap();
    let dump = stage.idle(session).await;
    assert_eq!(
        words(&dump.items),
        [
            "user go",
            "assistant",
            "result a",
            "user hurry",
            "assistant",
            "user and then",
            "assistant"
        ]
    );
    let requests = stage.plugins.scripted.requests.lock().unwrap();
    assert_eq!(sent(&requests[1]), ["go", "call a", "result a", "hurry"]);
    drop(requests);
    assert!(dump.inputs.iter().any(|input| input.id == queued));
}

#[tokio::test(start_paused = true)]
async fn wait_6_one_answer_counts_and_only_for_its_call() {
    let stage = Stage::new(makes(&[&[("a", "act", ASK), ("b", "act", ASK)]]));
    let host = stage.start();
    let node = &host.node;
    let (session, _, step) = parked(&stage, &host).await;
    let (other, ..) = parked(&stage, &host).await;
    let key = |call: &str| approval::key(step, call);
    for (session, key) in [
        (session, key("z")),
        (session, "a".into()),
        (other, key("z")),
    ] {
        let refused = refusal(node.answer(session, an_answer(&key, None)).await);
        assert_eq!(refused, Refused::ApprovalNotFound { key });
    }
    node.answer(session, an_answer(&key("a"), None))
        .await
        .unwrap();
    node.answer(session, an_answer(&key("a"), None))
        .await
        .unwrap();
    let opposite = refusal(node.answer(session, an_answer(&key("a"), Some("no"))).await);
    let held = Refused::ApprovalAnswered {
        key: key("a"),
        approved: true,
    };
    assert_eq!(opposite, held);
    stage.when("the call", || called(&stage) == ["a"]).await;
    stage.waiting(session).await;

    node.cancel(session).await.unwrap();
    let late = refusal(node.answer(session, an_answer(&key("b"), None)).await);
    assert_eq!(late, Refused::Cancelled(session));
    let dump = stage.idle(session).await;
    assert_eq!(outcomes(&dump)[1].1, ToolOutcome::NotStarted);
    assert_eq!(called(&stage), ["a"]);
    stage.check_family(session).await;
}

#[tokio::test(start_paused = true)]
async fn an_answer_can_neither_be_cancelled_nor_sent_another_way() {
    let stage = Stage::new(makes(&[&[("a", "act", ASK), ("b", "put", FREE)]]));
    let gate = stage.plugins.scripted.hold("put");
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let asked = |tail: &Tail| !tail.session.arrived.approvals.is_empty();
    let tail = stage.until(session, "the request", asked).await;
    let key = approval::key(tail.session.step.unwrap(), "a");
    host.node
        .answer(session, an_answer(&key, None))
        .await
        .unwrap();
    let input = wait::approval_input(session, tail.session.step.unwrap(), &key);
    let given = Refused::InputSettled {
        input,
        status: "the answer to an approval",
    };
    let cancelled = stage.write(session, Write::CancelInput { input }).await;
    assert_eq!(refusal(cancelled), given);
    let redelivered = Write::Redeliver {
        input,
        delivery: Delivery::Queue,
    };
    assert_eq!(refusal(stage.write(session, redelivered).await), given);
    gate.notify_one();
    stage.idle(session).await;
}

#[tokio::test(start_paused = true)]
async fn int_an_interrupt_ends_held_calls_and_their_requests() {
    for answered in [false, true] {
        let stage = Stage::new(makes(&[&[("a", "act", ASK)]]));
        let host = stage.start();
        let (session, tail, step) = parked(&stage, &host).await;
        let key = approval::key(step, "a");
        if answered {
            // Nobody was told yet: the interrupt comes before the call is started.
            let write = Write::Answer(an_answer(&key, None));
            stage.write(session, write).await.unwrap();
            let write = Write::Interrupt {
                cause: None,
                and_continue: false,
            };
            stage.write(session, write).await.unwrap();
        } else {
            assert_eq!(tail.inputs.len(), 0);
            host.node.interrupt(session).await.unwrap();
        }
        let dump = stage.idle(session).await;
        assert_eq!(called(&stage), [""; 0]);
        assert_eq!(outcomes(&dump)[0].1, ToolOutcome::NotStarted);
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.last_turn, Some(TurnOutcome::Interrupted));
        assert!(row.wait.is_none() && row.step.is_none());
        if answered {
            let answer = dump
                .inputs
                .iter()
                .find(|i| i.id == wait::approval_input(session, step, &key));
            assert_eq!(answer.unwrap().status, InputStatus::Cancelled);
        } else {
            let late = refusal(host.node.answer(session, an_answer(&key, None)).await);
            assert_eq!(late, Refused::ApprovalNotFound { key });
        }
        // It goes on with the next prompt, which meets no old answer.
        host.prompt(session, "again").await;
        let dump = stage.idle(session).await;
        let words = words(&dump.items);
        assert_eq!(words[3..], ["user again", "assistant"], "{words:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_that_fails_has_nobody_asked_about_its_calls() {
    let broken = |request: &mainstay_core::plugin::ModelRequest| -> Vec<LocalEvent> {
        if results(request) > 0 {
            return say("done");
        }
        let mut all = call(&[("a", "act", ASK), ("b", "act", FREE)]);
        all.pop();
        all.extend(events([ModelEvent::TextDelta("and".into())]));
        all
    };
    let stage = Stage::new(Decided::new(move |request, _| broken(request)));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    let told: Vec<_> = outcomes(&dump).into_iter().map(|t| (t.0, t.1)).collect();
    assert!(
        told.contains(&("a".into(), ToolOutcome::NotStarted)),
        "{told:?}"
    );
    assert!(
        told.contains(&("b".into(), ToolOutcome::Succeeded)),
        "{told:?}"
    );
    let row = dump.session.as_ref().unwrap();
    assert!(
        matches!(row.last_turn, Some(TurnOutcome::Failed { .. })),
        "{:?}",
        row.last_turn
    );
}

#[tokio::test(start_paused = true)]
async fn calls_of_a_runner_are_judged_like_those_of_a_model() {
    let stage = Stage::new(
        Decided::new(|_, _| say("done")).agent("default", |n, _| match n {
            0 => tools(&[("a", "act"), ("b", "look")]).into(),
            _ => done().into(),
        }),
    );
    let mut stage = stage;
    let agent = stage.config.agents.get_mut("default").unwrap();
    agent.tool_policy = approval::Policy(vec![approval::Rule {
        tool: "a*".into(),
        arguments: [].into(),
        then: approval::Verdict::Ask,
    }]);
    let host = stage.start();
    let (session, tail, step) = parked(&stage, &host).await;
    assert_eq!(called(&stage), ["b"]);
    let open = tail.step.as_ref().unwrap();
    assert_eq!(open.call("a").unwrap().status, CallStatus::Held);
    host.kill();

    // Under a policy that would not ask, what was asked stays asked.
    let agent = stage.config.agents.get_mut("default").unwrap();
    agent.tool_policy = approval::Policy::default();
    let host = stage.start();
    tokio::time::sleep(Duration::from_secs(60)).await;
    stage.waiting(session).await;
    let key = approval::key(step, "a");
    host.node
        .answer(session, an_answer(&key, None))
        .await
        .unwrap();
    stage.idle(session).await;
    assert_eq!(called(&stage), ["b", "a"]);
}

#[tokio::test(start_paused = true)]
async fn a_person_is_asked_about_calls_of_an_agent_that_is_configured_no_more() {
    let decides = Decided::new(|_, _| say("done")).agent("default", |n, _| match n {
        0 => tools(&[("b", "put")]).into(),
        _ => done().into(),
    });
    let mut stage = Stage::new(decides);
    let host = stage.start_with(Box::new(|commit, _| {
        let starts = |append: &mainstay_core::commit::Append| {
            let mut bodies = append.events.iter().map(|draft| &draft.body);
            bodies.any(|body| matches!(body, EventBody::StepStarted(_)))
        };
        match &commit.write {
            Write::Append(append) if starts(append) => Fate::DieAfter,
            _ => Fate::Pass,
        }
    }));
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    host.link.died().await;
    host.kill();
    let agent = stage.config.agents.remove("default").unwrap();
    let host = stage.start();
    let tail = stage.waiting(session).await;
    assert_eq!(called(&stage), [""; 0]);
    host.kill();
    stage.config.agents.insert("default".into(), agent);
    let host = stage.start();
    let key = approval::key(tail.session.step.unwrap(), "b");
    host.node
        .answer(session, an_answer(&key, None))
        .await
        .unwrap();
    stage.idle(session).await;
    assert_eq!(called(&stage), ["b"]);
}

#[tokio::test(start_paused = true)]
async fn recov_an_approved_call_that_a_crash_cut_short_is_settled_by_its_class() {
    for (tool, effect) in [
        ("look", Effect::Pure),
        ("put", Effect::Idempotent),
        ("act", Effect::Once),
    ] {
        let groups: &'static [Calls] = match effect {
            Effect::Pure => &[&[("a", "look", ASK), ("b", "look", ASK)]],
            Effect::Idempotent => &[&[("a", "put", ASK), ("b", "look", ASK)]],
            Effect::Once => &[&[("a", "act", ASK), ("b", "look", ASK)]],
        };
        let stage = Stage::new(makes(groups));
        let host = stage.start();
        let (session, _, step) = parked(&stage, &host).await;
        stage.plugins.scripted.hold(tool);
        let key = approval::key(step, "a");
        host.node
            .answer(session, an_answer(&key, None))
            .await
            .unwrap();
        stage.when("the call", || called(&stage) == ["a"]).await;
        let claim = stage.tail(session).await.claim.clone().unwrap();
        let expected = match effect {
            Effect::Pure => Phase::Ready,
            _ => Phase::Unknown,
        };
        assert_eq!(claim.phase, expected, "{tool}");
        host.kill();
        stage.plugins.scripted.let_go(tool);
        let host = stage.start();
        let tail = stage.waiting(session).await;
        // The other is asked about as before, and the first one is not asked about again.
        assert_eq!(stage.count(session, "call.held").await, 2);
        let open = tail.step.as_ref().unwrap();
        assert_eq!(open.call("a").unwrap().status, CallStatus::Settled);
        assert_eq!(open.call("b").unwrap().status, CallStatus::Held);
        host.node
            .answer(session, an_answer(&approval::key(step, "b"), None))
            .await
            .unwrap();
        let dump = stage.idle(session).await;
        let (runs, outcome) = match effect {
            Effect::Once => (1, ToolOutcome::OutcomeUnknown),
            _ => (2, ToolOutcome::Succeeded),
        };
        let calls = stage.plugins.scripted.calls.lock().unwrap();
        let keys: Vec<_> = calls
            .iter()
            .filter(|c| c.id == "a")
            .map(|c| &c.key)
            .collect();
        assert_eq!(keys.len(), runs, "{tool}");
        assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
        drop(calls);
        let told = outcomes(&dump);
        let of_a = told.iter().find(|told| told.0 == "a").unwrap();
        assert_eq!(of_a.1, outcome, "{tool}: {}", lines(&dump));
    }
}

#[tokio::test(start_paused = true)]
async fn a_session_that_is_held_back_keeps_the_answer() {
    let stage = Stage::new(makes(&[&[("a", "act", ASK)]]));
    let host = stage.start();
    let (session, _, step) = parked(&stage, &host).await;
    host.kill();
    // No node runs: the answer comes, and a day later the next one starts.
    let key = approval::key(step, "a");
    let write = Write::Answer(an_answer(&key, None));
    stage.write(session, write).await.unwrap();
    tokio::time::sleep(Duration::from_secs(25 * 60 * 60)).await;
    let host = stage.start();
    let held = |tail: &Tail| tail.session.held.is_some();
    stage.until(session, "the hold", held).await;
    assert_eq!(called(&stage), [""; 0]);
    host.node.resume(session).await.unwrap();
    stage.idle(session).await;
    assert_eq!(called(&stage), ["a"]);
}

#[tokio::test(start_paused = true)]
async fn wait_10_a_runner_cannot_ask_in_the_name_of_a_call() {
    let stage = Stage::new(Decided::new(|_, _| say("done")).agent("default", |_, _| {
        decisions::wait([decisions::approval("call/3/a")]).into()
    }));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    let Some(TurnOutcome::Failed { error }) = dump.session.as_ref().unwrap().last_turn.clone()
    else {
        panic!("it waits:\n{}", lines(&dump))
    };
    assert!(error.contains("kept for calls of tools"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn compact_7_a_request_loses_its_arguments_with_its_body_and_rows_follow() {
    let stage = Stage::new(makes(&[&[("a", "act", ASK)]]));
    let host = stage.start();
    let (session, _, step) = parked(&stage, &host).await;
    let key = approval::key(step, "a");
    host.node
        .answer(session, an_answer(&key, None))
        .await
        .unwrap();
    let dump = stage.idle(session).await;
    let held = dump.events.iter().find(|record| record.kind == "call.held");
    let stub = mainstay_core::stub::stub(held.unwrap(), 1).expect("it has something to lose");
    let EventBody::CallHeld { request, .. } = stub.decode().unwrap().body else {
        panic!("another type")
    };
    assert_eq!((request.key, request.details), (key, None));
    let kept = FinishReason::ToolCalls;
    let ends = dump.items.iter().any(|item| {
        matches!(&item.body, ItemBody::Assistant(a)
            if a.ending == mainstay_core::history::Ending::Finished(kept.clone()))
    });
    assert!(ends);
}
