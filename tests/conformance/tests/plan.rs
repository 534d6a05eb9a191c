//! `recovery::plan` by table: what a crash leaves, and what is written for it.

use mainstay_core::claim::{Claim, Fence, Phase};
use mainstay_core::commit::{self, Commit, End, Known, Refused, Write};
use mainstay_core::event::{EventBody, InterruptReason, Piece, SessionCreated};
use mainstay_core::history::{Approval, Ending};
use mainstay_core::id::{InputId, OwnerId, SessionId};
use mainstay_core::model::{Effect, FinishReason, HostedResult, ToolCall, ToolDefinition};
use mainstay_core::plugin::{Action, Compact, Condition, Summary, Wait};
use mainstay_core::policy::{Resume, ResumeMode};
use mainstay_core::recovery::{Counting, Outcome, Plan, plan};
use mainstay_core::tail::{CallStatus, Charge, Tail};
use mainstay_test_support::build;

/// The step that a case opens: behind the creation, the prompt, the claim, the turn, the promotion.
const STEP: u64 = 6;
const MAX_ATTEMPTS: u32 = 3;

fn apply(tail: Option<&Tail>, write: Commit) -> Tail {
    let done = commit::apply(tail, &write, &Known::default(), build::AT);
    done.unwrap_or_else(|refused| panic!("{refused}: {write:?}"))
        .tail
}

/// A claimed session with a prompt, and what an execution wrote then.
fn crashed(resume: Resume, events: &[EventBody]) -> (Tail, Fence) {
    let (session, fence) = (SessionId::new(), build::fence());
    let created = SessionCreated {
        agent: "test".into(),
        resume,
        ..SessionCreated::default()
    };
    let input = InputId::new();
    let tail = apply(None, build::commit(session, Write::Create(created)));
    let admit = build::admit(session, input, mainstay_core::event::Delivery::Queue, "hi");
    let tail = apply(Some(&tail), admit);
    let tail = apply(Some(&tail), build::claim(session, fence));
    let mut all = Vec::new();
    if !events.is_empty() {
        all.push(build::turn_started());
        all.push(EventBody::InputPromoted { input });
    }
    all.extend_from_slice(events);
    (
        apply(Some(&tail), build::append(session, fence, all)),
        fence,
    )
}

fn call_model() -> EventBody {
    let Action::CallModel(mut call) = build::call_model() else {
        unreachable!("it asks a model")
    };
    call.own_tools.push(ToolDefinition {
        name: "own".into(),
        description: String::new(),
        input_schema: "{\"type\":\"object\"}".into(),
    });
    build::step_started(Action::CallModel(call))
}

fn once_hosted() -> EventBody {
    let mut started = call_model();
    if let EventBody::StepStarted(started) = &mut started {
        started.hosted_once = true;
    }
    started
}

fn compacts() -> EventBody {
    let Action::CallModel(call) = build::call_model() else {
        unreachable!("it asks a model")
    };
    build::step_started(Action::Compact(Compact {
        through: 3,
        summary: Summary::Model(Box::new(call)),
    }))
}

fn pieces(pieces: impl IntoIterator<Item = Piece>) -> EventBody {
    build::output(STEP, pieces)
}

fn text() -> EventBody {
    pieces([Piece::Text("t".into())])
}

fn made(id: &str, tool: &str) -> Piece {
    Piece::Call {
        id: id.into(),
        tool: tool.into(),
    }
}

fn whole(id: &str, tool: &str) -> EventBody {
    pieces([made(id, tool), Piece::CallReady { id: id.into() }])
}

fn hosted() -> Piece {
    Piece::HostedCall(ToolCall {
        id: "h".into(),
        tool: "search".into(),
        arguments: "{}".into(),
    })
}

fn began(id: &str, effect: Effect) -> EventBody {
    build::call_started(STEP, id, effect, 1)
}

fn held(id: &str) -> EventBody {
    build::call_held(STEP, id)
}

fn settled(id: &str) -> EventBody {
    build::call_settled(STEP, id)
}

fn ended(reason: FinishReason) -> EventBody {
    build::model_ended(STEP, reason)
}

/// A plan in few words.
fn words(plan: &Plan) -> String {
    let word = |event: &EventBody| match event {
        EventBody::StepRecovered(verdict) => {
            let mut text = String::from("recovered(");
            text.push_str(if verdict.ask_again { "again" } else { "" });
            text.push_str(if verdict.interrupted { "cut" } else { "" });
            for call in &verdict.run {
                text.push_str(&format!(" run {call}"));
            }
            for call in &verdict.settled {
                text.push_str(&format!(" settled {call}"));
            }
            text + ")"
        }
        EventBody::CallSettled { result, .. } => format!("{}={:?}", result.call, result.outcome),
        EventBody::CallDropped { call, .. } => format!("dropped {call}"),
        EventBody::ModelEnded {
            ending: Ending::Interrupted,
            ..
        } => "ended".into(),
        EventBody::ContextKept { .. } => "kept".into(),
        EventBody::TurnEnded { .. } => "turn over".into(),
        EventBody::ExecutionInterrupted { reason, .. } => format!("{reason:?}"),
        EventBody::ExecutionSucceeded { .. } => "succeeded".into(),
        EventBody::ExecutionSuspended { .. } => "suspended".into(),
        EventBody::RecoveryRecorded {
            attempts, phase, ..
        } => format!("{phase:?} {attempts}"),
        EventBody::SessionQuarantined { .. } => "quarantined".into(),
        EventBody::SessionHeld { reason } => format!("held {reason:?}"),
        other => panic!("recovery does not write {other:?}"),
    };
    let words: Vec<String> = plan.events.iter().map(word).collect();
    words.join(", ")
}

/// What an execution wrote before it died; what recovery writes; and what it writes where an interrupt
/// was marked.
struct Case {
    name: &'static str,
    events: Vec<EventBody>,
    crash: &'static str,
    interrupted: &'static str,
}

fn cases() -> Vec<Case> {
    let case = |name, events: &[EventBody], crash, interrupted| Case {
        name,
        events: events.to_vec(),
        crash,
        interrupted,
    };
    let tools = || build::step_started(build::call_tools(&["a", "b"]));
    let waits = || {
        build::step_started(Action::Wait(Wait {
            until: vec![Condition::Signal("s".into())],
        }))
    };
    vec![
        case("a claim alone", &[], "Crash, Ready 1", "Crash, Ready 0"),
        case(
            "a turn without a step",
            &[EventBody::RunnerNoted {
                parts: build::text("n"),
            }],
            "Crash, Ready 1",
            "turn over, Crash, Ready 0",
        ),
        case(
            "a model that has said nothing",
            &[call_model()],
            "recovered(again), Crash, Unknown 1",
            "ended, turn over, Crash, Unknown 0",
        ),
        case(
            "one with a hosted tool that acts once",
            &[once_hosted()],
            "recovered(cut), ended, Crash, Unknown 1",
            "ended, turn over, Crash, Unknown 0",
        ),
        case(
            "one that has said something",
            &[call_model(), text()],
            "recovered(cut), ended, Crash, Unknown 1",
            "ended, turn over, Crash, Unknown 0",
        ),
        case(
            "arguments that still come",
            &[call_model(), pieces([made("a", "tool")])],
            "recovered(cut settled a), a=NotStarted, ended, Crash, Unknown 1",
            "a=NotStarted, ended, turn over, Crash, Unknown 0",
        ),
        case(
            "a whole call in an open answer",
            &[call_model(), whole("a", "tool")],
            "recovered(cut run a), ended, Crash, Unknown 1",
            "a=NotStarted, ended, turn over, Crash, Unknown 0",
        ),
        case(
            "a whole call in a whole answer",
            &[
                call_model(),
                whole("a", "tool"),
                ended(FinishReason::ToolCalls),
            ],
            "recovered( run a), Crash, Ready 1",
            "a=NotStarted, turn over, Crash, Ready 0",
        ),
        case(
            "a call that began in an open answer",
            &[call_model(), whole("a", "tool"), began("a", Effect::Once)],
            "recovered(cut settled a), a=OutcomeUnknown, ended, Crash, Unknown 1",
            "a=OutcomeUnknown, ended, turn over, Crash, Unknown 0",
        ),
        case(
            "a hosted call without a result",
            &[call_model(), pieces([hosted()])],
            "recovered(cut settled h), h=ResultMissing, ended, Crash, Unknown 1",
            "h=ResultMissing, ended, turn over, Crash, Unknown 0",
        ),
        case(
            "a hosted call with its result",
            &[
                call_model(),
                pieces([
                    hosted(),
                    Piece::HostedResult(HostedResult {
                        call: "h".into(),
                        is_error: false,
                        data: "1".into(),
                    }),
                ]),
            ],
            "recovered(cut), ended, Crash, Unknown 1",
            "ended, turn over, Crash, Unknown 0",
        ),
        case(
            "half a call of the runner's own",
            &[call_model(), pieces([made("a", "own")])],
            "recovered(cut settled a), a=NotStarted, ended, Crash, Unknown 1",
            "a=NotStarted, ended, turn over, Crash, Unknown 0",
        ),
        case(
            "a whole call of the runner's own",
            &[call_model(), whole("a", "own")],
            "recovered(cut), ended, Crash, Unknown 1",
            "ended, dropped a, turn over, Crash, Unknown 0",
        ),
        case(
            "one that waits for its runner",
            &[
                call_model(),
                whole("a", "own"),
                ended(FinishReason::ToolCalls),
            ],
            "Crash, Continue 1",
            "dropped a, turn over, Crash, Continue 0",
        ),
        case(
            "calls that nobody has begun",
            &[tools()],
            "recovered( run a run b), Crash, Ready 1",
            "a=NotStarted, b=NotStarted, turn over, Crash, Ready 0",
        ),
        case(
            "a pure call",
            &[tools(), began("a", Effect::Pure)],
            "recovered( run a run b), Crash, Unknown 1",
            "a=Interrupted, b=NotStarted, turn over, Crash, Unknown 0",
        ),
        case(
            "an idempotent call",
            &[tools(), began("a", Effect::Idempotent)],
            "recovered( run a run b), Crash, Unknown 1",
            "a=Interrupted, b=NotStarted, turn over, Crash, Unknown 0",
        ),
        case(
            "a call that acts once",
            &[tools(), began("a", Effect::Once)],
            "recovered( run b settled a), a=OutcomeUnknown, Crash, Unknown 1",
            "a=OutcomeUnknown, b=NotStarted, turn over, Crash, Unknown 0",
        ),
        case(
            "one that is settled beside one that is not",
            &[
                tools(),
                began("a", Effect::Once),
                settled("a"),
                began("b", Effect::Once),
            ],
            "recovered( settled b), b=OutcomeUnknown, Crash, Unknown 1",
            "b=OutcomeUnknown, turn over, Crash, Unknown 0",
        ),
        case(
            "all settled",
            &[tools(), settled("a"), settled("b")],
            "Crash, Continue 1",
            "turn over, Crash, Continue 0",
        ),
        case(
            "an answer that is whole",
            &[call_model(), text(), ended(FinishReason::Stop)],
            "Crash, Continue 1",
            "turn over, Crash, Continue 0",
        ),
        case(
            "a summary that is asked for",
            &[compacts()],
            "recovered(again), Crash, Unknown 1",
            "ended, kept, turn over, Crash, Unknown 0",
        ),
        case(
            "half a summary",
            &[compacts(), text()],
            "recovered(cut), ended, Crash, Unknown 1",
            "ended, kept, turn over, Crash, Unknown 0",
        ),
        case(
            "a summary that is not taken yet",
            &[compacts(), text(), ended(FinishReason::Stop)],
            "recovered(), Crash, Ready 1",
            "kept, turn over, Crash, Ready 0",
        ),
        case(
            "a wait",
            &[waits()],
            "suspended, Safe 0",
            "turn over, User, Safe 0",
        ),
        case(
            "calls that a person is asked about",
            &[tools(), held("a"), held("b")],
            "suspended, Safe 0",
            "a=NotStarted, b=NotStarted, turn over, User, Safe 0",
        ),
        case(
            "one of them beside a call that acts once",
            &[tools(), held("a"), began("b", Effect::Once)],
            "recovered( settled b), b=OutcomeUnknown, Crash, Unknown 1",
            "a=NotStarted, b=OutcomeUnknown, turn over, Crash, Unknown 0",
        ),
        case(
            "one of them beside a call that can be repeated",
            &[tools(), held("a"), began("b", Effect::Idempotent)],
            "recovered( run b), Crash, Unknown 1",
            "a=NotStarted, b=Interrupted, turn over, Crash, Unknown 0",
        ),
        case(
            "a turn that is over",
            &[
                call_model(),
                text(),
                ended(FinishReason::Stop),
                build::turn_ended(),
            ],
            "succeeded, Safe 0",
            "User, Safe 0",
        ),
    ]
}

fn claim(tail: &Tail) -> Claim {
    tail.claim.clone().expect("it is claimed")
}

/// What holds of any plan; gives the session after it.
fn follow(name: &str, tail: &Tail, fence: Fence) -> Tail {
    let before = claim(tail);
    let planned = plan(
        tail,
        &before,
        &Counting::to(MAX_ATTEMPTS),
        before.expires_at,
    );
    assert_eq!(
        planned,
        plan(
            tail,
            &before,
            &Counting::to(MAX_ATTEMPTS),
            before.expires_at
        ),
        "{name}: not a function"
    );
    let terminals = planned.events.iter().filter_map(EventBody::terminal_of);
    let terminals: Vec<_> = terminals.collect();
    let owed: &[_] = if before.ended {
        &[]
    } else {
        &[before.execution]
    };
    assert_eq!(terminals, owed, "{name}");
    let records = planned.events.iter();
    let records = records.filter(|event| matches!(event, EventBody::RecoveryRecorded { .. }));
    assert_eq!(records.count(), 1, "{name}");

    // It fits the log, and is what the transaction writes.
    let session = tail.session.id;
    let recover = build::commit(
        session,
        Write::Recover {
            seen: fence,
            counting: Counting::to(MAX_ATTEMPTS),
        },
    );
    let known = Known::default();
    let early = commit::apply(Some(tail), &recover, &known, before.expires_at - 1);
    assert!(early.is_err(), "{name}: a live claim was settled");
    let done = commit::apply(Some(tail), &recover, &known, before.expires_at);
    let done = done.unwrap_or_else(|refused| panic!("{name}: {refused}"));
    let bodies: Vec<_> = done.events.iter().map(|event| event.body.clone()).collect();
    assert_eq!(bodies, planned.events, "{name}");
    assert!(done.events.iter().all(|event| event.execution.is_none()));
    assert!(done.events.iter().all(|event| event.recovery.is_some()));
    assert!(done.tail.claim.is_none() && done.tail.session.execution.is_none());
    // A second one finds nothing to do.
    let again = commit::apply(Some(&done.tail), &recover, &known, before.expires_at);
    assert!(again.is_err(), "{name}: recovered twice");
    // What is still open of a step is what is run, or what the runner answers.
    if let Some(step) = &done.tail.step {
        for call in &step.calls {
            assert!(call.status != CallStatus::Streaming, "{name}: {call:?}");
            assert!(
                call.status != CallStatus::Started || call.effect != Some(Effect::Once),
                "{name}: {call:?} would act twice"
            );
        }
    }
    if let Outcome::Resume { .. } = planned.outcome {
        assert!(done.tail.is_runnable(), "{name}: it resumes nothing");
    }
    if planned.outcome == Outcome::Released {
        assert!(!done.tail.is_runnable(), "{name}: it is forgotten");
    }
    done.tail
}

#[test]
fn recov_2_to_10_and_22_to_24_what_is_written_for_what_a_crash_leaves() {
    for case in cases() {
        let (tail, fence) = crashed(Resume::default(), &case.events);
        let found = plan(&tail, &claim(&tail), &Counting::to(MAX_ATTEMPTS), build::AT);
        assert_eq!(words(&found), case.crash, "{}", case.name);
        follow(case.name, &tail, fence);

        let marked = apply(Some(&tail), build::interrupt(tail.session.id));
        let found = plan(
            &marked,
            &claim(&marked),
            &Counting::to(MAX_ATTEMPTS),
            build::AT,
        );
        assert_eq!(
            words(&found),
            case.interrupted,
            "{}, interrupted",
            case.name
        );
        let after = follow(case.name, &marked, fence);
        assert!(after.session.turn.is_none(), "{}", case.name);
    }
}

/// A shutdown's terminal stands, a take-over is no crash, and both count nothing.
#[test]
fn recov_15_a_shutdown_and_a_take_over_are_no_crashes() {
    for case in cases() {
        let (tail, fence) = crashed(Resume::default(), &case.events);
        if claim(&tail).phase == Phase::Safe {
            continue;
        }
        let reason = InterruptReason::Shutdown;
        let end = commit::End::Interrupted { reason };
        let down = apply(Some(&tail), build::end(tail.session.id, fence, end));
        let found = plan(&down, &claim(&down), &Counting::to(MAX_ATTEMPTS), build::AT);
        let expected = case.crash.replace("Crash, ", "");
        let expected = expected
            .strip_suffix('1')
            .expect("a crash counts")
            .to_owned()
            + "0";
        assert_eq!(words(&found), expected, "{}, shut down", case.name);
        follow(case.name, &down, fence);

        let seen = Write::Expire { seen: fence };
        let taken = apply(Some(&tail), build::commit(tail.session.id, seen));
        let found = plan(
            &taken,
            &claim(&taken),
            &Counting::to(MAX_ATTEMPTS),
            build::AT,
        );
        let expected = case.crash.replace("Crash", "Superseded");
        let expected = expected
            .strip_suffix('1')
            .expect("a crash counts")
            .to_owned()
            + "0";
        assert_eq!(words(&found), expected, "{}, taken over", case.name);
        follow(case.name, &taken, fence);
    }
}

/// After the last attempt a session is put aside; a policy holds it back before that.
#[test]
fn recov_13_and_19_crashes_are_counted_and_policies_asked() {
    for case in cases() {
        let (tail, _) = crashed(Resume::default(), &case.events);
        let safe = claim(&tail).phase == Phase::Safe;
        // The second can only come from elsewhere.
        for attempts in [MAX_ATTEMPTS, u32::MAX] {
            let (mut tail, fence) = crashed(Resume::default(), &case.events);
            tail.session.attempts = attempts;
            let found = plan(&tail, &claim(&tail), &Counting::to(MAX_ATTEMPTS), build::AT);
            assert_eq!(
                words(&found).ends_with("quarantined"),
                !safe,
                "{}",
                case.name
            );
            assert_eq!(
                matches!(found.outcome, Outcome::Quarantined { .. }),
                !safe,
                "{}",
                case.name
            );
            follow(case.name, &tail, fence);
        }

        for (mode, word) in [
            (ResumeMode::Ask, "held Ask"),
            (ResumeMode::Never, "held Never"),
        ] {
            let resume = Resume {
                mode,
                max_age_ms: None,
            };
            let (tail, fence) = crashed(resume, &case.events);
            let found = plan(&tail, &claim(&tail), &Counting::to(MAX_ATTEMPTS), build::AT);
            // What only waits for a person does not start by itself.
            let rests = found.outcome == Outcome::Released;
            assert_eq!(words(&found).ends_with(word), !rests, "{}", case.name);
            assert!(rests || !safe, "{}", case.name);
            follow(case.name, &tail, fence);
        }
    }
}

#[test]
fn recov_15_only_owners_that_are_seen_no_more_have_crashed() {
    let (tail, _) = crashed(Resume::default(), &[]);
    let claim = claim(&tail);
    let later = claim.expires_at + 1;
    let counts = |tail: &Tail, claim: &Claim, seen: &[(OwnerId, u64)], broke_off: bool| {
        let counting = Counting {
            max_attempts: MAX_ATTEMPTS,
            alive: seen.to_vec(),
            broke_off,
        };
        let plan = plan(tail, claim, &counting, later);
        let recorded = plan.events.into_iter().find_map(|event| match event {
            EventBody::RecoveryRecorded {
                attempts, charges, ..
            } => Some((attempts, charges)),
            _ => None,
        });
        recorded.unwrap()
    };
    let owner = claim.owner;
    let charge = Charge { owner, at: later };
    assert_eq!(counts(&tail, &claim, &[], false), (1, vec![charge]));
    assert_eq!(
        counts(&tail, &claim, &[(owner, claim.expires_at)], false),
        (1, vec![charge])
    );
    // It lost its lease and lives.
    assert_eq!(counts(&tail, &claim, &[(owner, later)], false), (0, vec![]));
    // Its execution broke off while it lived on: that is not to be taken back.
    assert_eq!(counts(&tail, &claim, &[(owner, later)], true), (1, vec![]));

    // A charge is taken back once its owner is seen after it, and others stay.
    let other = OwnerId::new();
    let mut charged = tail;
    charged.session.attempts = 3;
    charged.session.charges = vec![
        Charge {
            owner: other,
            at: 50,
        },
        Charge { owner, at: 60 },
    ];
    let (attempts, charges) = counts(&charged, &claim, &[(other, 51)], false);
    assert_eq!((attempts, charges.len()), (3, 2));
    let (attempts, charges) = counts(&charged, &claim, &[(other, 50)], false);
    assert_eq!((attempts, charges.len()), (4, 3));
}

/// The end of an execution looks again, so an answer that comes just before it is not left lying.
#[test]
fn wait_5_an_answer_that_comes_as_the_session_parks_is_acted_upon() {
    let asks = [build::step_started(build::call_tools(&["a"])), held("a")];
    let (tail, fence) = crashed(Resume::default(), &asks);
    let session = tail.session.id;
    let mut parks = build::append(session, fence, []);
    if let Write::Append(append) = &mut parks.write {
        append.begins = true;
        append.end = Some(End::Suspended);
    }
    let known = Known::default();
    let parked = commit::apply(Some(&tail), &parks, &known, build::AT).unwrap();
    assert!(parked.tail.claim.is_none() && !parked.tail.is_runnable());
    assert!(parked.tail.session.wait.is_some() && parked.tail.step.is_some());

    for approved in [true, false] {
        let answer = Write::Answer(Approval {
            key: mainstay_core::approval::key(STEP, "a"),
            approved,
            reason: None,
        });
        let answer = build::commit(session, answer);
        // Before the end of the execution: it may not end.
        let answered = apply(Some(&tail), answer.clone());
        assert!(answered.session.wait.is_none() && answered.is_runnable());
        let refused = commit::apply(Some(&answered), &parks, &known, build::AT);
        assert_eq!(refused.unwrap_err(), Refused::NotIdle);
        // Behind it: another may begin.
        let answered = apply(Some(&parked.tail), answer);
        assert!(answered.is_runnable() && answered.claim.is_none());
        let claimed = apply(Some(&answered), build::claim(session, build::fence()));
        assert_eq!(claimed.claim.unwrap().phase, Phase::Ready);
    }
}
