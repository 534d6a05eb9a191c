use mainstay_guest::runner::{Action, ChildResult, Signal, WaitEnd};
use mainstay_guest::testing::{self, MemoryHistory};
use mainstay_guest::types::{Part, ToolCall};

use super::*;

fn decide(
    history: &MemoryHistory,
    trigger: Trigger,
    state: &mut Option<mainstay_guest::runner::State>,
) -> Decision {
    let mut view = history.view(trigger);
    view.state = state.take();
    let step = testing::decide::<Planner>(&view).unwrap();
    *state = testing::stored::<Planner>(&step).or(view.state);
    step.decision
}

#[test]
fn a_plan_is_followed_line_by_line() {
    let mut history = MemoryHistory::new();
    let mut state = None;
    history.user(
        "say one\nwait signal go or 500ms\nspawn a,b say x; say y\nwait children a,b\nreport",
    );
    let now = history.view(Trigger::TurnStarted).now_ms;
    let step = decide(&history, Trigger::TurnStarted, &mut state);
    let until = vec![Condition::signal("go"), Condition::Time(now + 500)];
    assert_eq!(step, Decision::wait(until.clone()).say("one"));
    // A compaction in between does not end the wait, nor begin its span anew.
    let again = decide(&history, Trigger::Other("compact".to_owned()), &mut state);
    assert_eq!(again, Decision::wait(until));

    history.push(ItemBody::Signal(Signal {
        name: "go".to_owned(),
        data: "1".to_owned(),
    }));
    let step = decide(&history, Trigger::WaitEnded(WaitEnd::Met(0)), &mut state);
    let children = ["a", "b"].map(|key| Child::new(key, "say x\nsay y"));
    assert_eq!(step, Decision::spawn(children.to_vec()));
    let step = decide(&history, Trigger::Spawned, &mut state);
    assert_eq!(step, Decision::wait(vec![Condition::children(["a", "b"])]));
    history.push(ItemBody::Child(ChildResult {
        key: "a".to_owned(),
        outcome: ChildOutcome::Done(vec![Part::text("y")]),
    }));
    let step = decide(&history, Trigger::WaitEnded(WaitEnd::Met(0)), &mut state);
    assert_eq!(step, Decision::done().say("signal go 1\nchild a done: y"));

    // Nothing new was asked.
    let step = decide(&history, Trigger::TurnStarted, &mut state);
    assert_eq!(step, Decision::done());
    history.user("say two");
    let step = decide(&history, Trigger::TurnStarted, &mut state);
    assert_eq!(step, Decision::done().say("two"));
}

#[test]
fn a_line_that_makes_no_sense_is_named() {
    for wrong in ["say a\ndance", "wait for it", "wait 5"] {
        let mut history = MemoryHistory::new();
        history.user(wrong);
        let error = testing::decide::<Planner>(&history.view(Trigger::TurnStarted)).unwrap_err();
        assert!(error.to_string().contains('`'), "{wrong}: {error}");
    }
}

#[test]
fn a_guarded_call_waits_for_its_approval() {
    let mut history = MemoryHistory::new();
    history.user("call guarded");
    let step = testing::decide::<Planner>(&history.view(Trigger::TurnStarted)).unwrap();
    assert!(matches!(&step.action, Action::CallModel(call) if call.own_tools.len() == 1));
    let open = ToolCall {
        id: "call_1".to_owned(),
        tool: "guarded".to_owned(),
        arguments: r#"{"key":"k","tool":"web_post","arguments":{"a":1}}"#.to_owned(),
    };
    let asked = |history: &MemoryHistory| {
        let mut view = history.view(Trigger::WaitEnded(WaitEnd::Met(0)));
        view.open_calls = vec![open.clone()];
        testing::decide::<Planner>(&view).unwrap().decision
    };
    let Action::Wait(wait) = asked(&history).action else {
        panic!("a wait")
    };
    assert!(
        matches!(&wait.until[..], [Condition::Approval(request)] if request.details.as_deref() == Some(r#"{"a":1}"#))
    );
    let mut denied = history.clone();
    let mut answer = Approval {
        key: "k".to_owned(),
        verdict: Verdict::Approved,
        reason: None,
    };
    history.push(ItemBody::Approval(answer.clone()));
    assert!(
        matches!(&asked(&history).action, Action::CallTools(calls) if calls[0].tool == "web_post")
    );
    answer.verdict = Verdict::Denied;
    answer.reason = Some("not today".to_owned());
    denied.push(ItemBody::Approval(answer));
    let mut expected = asked(&denied);
    assert!(matches!(expected.action, Action::CallModel(_)));
    expected.entries.clear();
    assert_eq!(
        asked(&denied),
        expected.answer_error("call_1", "Denied: not today")
    );
}
