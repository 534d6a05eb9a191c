//! What the loop decides, trigger by trigger.

use mainstay_guest::runner::{
    Action, Assistant, Author, Ending, Entry, ModelRef, Recovered, Signal,
};
use mainstay_guest::testing::{self, MemoryHistory, tool_call};
use mainstay_guest::types::{Content, ToolOutcome, ToolResult, text_of};

use super::*;

fn answer(content: Vec<Content>, reason: FinishReason) -> ItemBody {
    ItemBody::Assistant(Assistant {
        author: Author::Model(ModelRef {
            provider: "parrot".to_owned(),
            model: "parrot".to_owned(),
        }),
        content,
        ending: Ending::Finished(reason),
        usage: None,
    })
}

fn result(id: &str, outcome: ToolOutcome, text: &str) -> ItemBody {
    ItemBody::ToolResult(ToolResult {
        call: id.to_owned(),
        tool: "t".to_owned(),
        outcome,
        output: vec![Part::text(text)],
        whole: None,
    })
}

fn decide(view: &View<'_>) -> Decision {
    testing::decide::<Loop>(view).unwrap().decision
}

#[track_caller]
fn asks(decision: &Decision) -> &ModelCall {
    match &decision.action {
        Action::CallModel(call) => call,
        other => panic!("asks no model: {other:?}"),
    }
}

#[track_caller]
fn note(decision: &Decision) -> String {
    match decision.entries.as_slice() {
        [Entry::Note(parts)] => text_of(parts),
        other => panic!("no single note: {other:?}"),
    }
}

#[test]
fn a_turn_begins_with_a_question() {
    let mut history = MemoryHistory::new();
    history.user("hi");
    let mut view = history.view(Trigger::TurnStarted);
    view.agent.system_prompt = Some("be brief".to_owned());
    view.agent.options = Some(r#"{"temperature":0.5,"hosted_tools":["h"]}"#.to_owned());
    let decision = decide(&view);
    let call = asks(&decision);
    assert_eq!(call.transcript.len(), 2);
    assert_eq!(call.transcript[1], Segment::Items(view.context));
    assert_eq!(call.options.temperature, Some(0.5));
    assert_eq!(call.hosted_tools, ["h"]);
    assert!(decision.entries.is_empty());
}

#[test]
fn results_go_back_and_a_stop_is_the_end() {
    let mut history = MemoryHistory::new();
    history.user("hi");
    history.push(answer(
        vec![Content::ToolCall(tool_call("1", "t", "{}"))],
        FinishReason::ToolCalls,
    ));
    history.push(result("1", ToolOutcome::Succeeded, "42"));
    asks(&decide(
        &history.view(Trigger::ModelFinished(FinishReason::ToolCalls)),
    ));

    let after = history.last();
    history.push(answer(
        vec![Content::Text("it is 42".to_owned())],
        FinishReason::Stop,
    ));
    for reason in [
        FinishReason::Stop,
        FinishReason::Length,
        FinishReason::Refusal,
    ] {
        let mut view = history.view(Trigger::ModelFinished(reason));
        view.fresh.after = after;
        assert_eq!(decide(&view), Decision::done());
    }
    let mut view = history.view(Trigger::ModelFinished(FinishReason::ContentFilter));
    view.fresh.after = after;
    assert!(matches!(decide(&view).action, Action::Fail(_)));
    let mut view = history.view(Trigger::ModelFinished(FinishReason::Paused));
    view.fresh.after = after;
    asks(&decide(&view));
}

#[test]
fn what_came_in_meanwhile_is_answered_too() {
    let mut history = MemoryHistory::new();
    let after = history.user("hi");
    history.push(answer(Vec::new(), FinishReason::Stop));
    history.push(ItemBody::Signal(Signal {
        name: "build".to_owned(),
        data: "\"green\"".to_owned(),
    }));
    let mut view = history.view(Trigger::ModelFinished(FinishReason::Stop));
    view.fresh.after = after;
    let decision = decide(&view);
    asks(&decision);
    assert_eq!(note(&decision), "The signal `build` came: \"green\"");
}

#[test]
fn the_last_step_is_asked_without_tools() {
    let mut history = MemoryHistory::new();
    history.user("hi");
    let mut view = history.view(Trigger::TurnStarted);
    view.agent.options = Some(r#"{"hosted_tools":["h"]}"#.to_owned());
    view.budget.steps = 1;
    let decision = decide(&view);
    assert_eq!(asks(&decision).tool_choice, ToolChoice::None);
    assert!(asks(&decision).hosted_tools.is_empty());
    view.budget.steps = 0;
    assert!(matches!(decide(&view).action, Action::Fail(_)));
}

#[test]
fn recovery_is_put_in_words() {
    let mut history = MemoryHistory::new();
    history.user("hi");
    history.push(answer(
        vec![Content::ToolCall(tool_call("1", "t", "{}"))],
        FinishReason::ToolCalls,
    ));
    history.push(result("1", ToolOutcome::OutcomeUnknown, "unknown"));
    history.push(ItemBody::Recovered(Recovered {
        interrupted: Some(20),
        settled: vec!["1".to_owned()],
    }));
    let decision = decide(&history.view(Trigger::Recovered));
    asks(&decision);
    let note = note(&decision);
    assert!(note.contains("cut short"), "{note}");
    assert!(note.contains("may or may not have happened"), "{note}");
}

#[test]
fn an_overflow_is_compacted_once() {
    let mut history = MemoryHistory::new();
    history.user(&"long ".repeat(100));
    let call = history.push(answer(
        vec![Content::ToolCall(tool_call("1", "t", "{}"))],
        FinishReason::ToolCalls,
    ));
    let settled = history.push(result("1", ToolOutcome::Succeeded, &"x".repeat(100)));
    history.user(&"more ".repeat(100));
    let overflow = Failure::new(FailureClass::ContextOverflow, "too long");
    let mut view = history.view(Trigger::ModelFailed(overflow.clone()));
    let step = testing::decide::<Loop>(&view).unwrap();
    match &step.action {
        Action::Compact(compact) => {
            // Not between the call and its result.
            assert_ne!(compact.through, call);
            assert_eq!(compact.through, settled);
            match &compact.summary {
                Summary::Model(call) => assert_eq!(call.tools, ToolSet::Only(Vec::new())),
                Summary::Text(_) => panic!("the model writes it"),
            }
        }
        other => panic!("{other:?}"),
    }

    view.state = testing::stored::<Loop>(&step);
    assert!(view.state.is_some());
    assert_eq!(
        decide(&view).action,
        Action::Fail(
            "the conversation is too long for the model, even with a summary: too long".to_owned()
        )
    );
    let mut view = history.view(Trigger::Compacted);
    view.state = testing::stored::<Loop>(&step);
    asks(&decide(&view));
    let mut view = history.view(Trigger::CompactionFailed(overflow));
    view.state = testing::stored::<Loop>(&step);
    assert!(matches!(decide(&view).action, Action::Fail(_)));
}

#[test]
fn a_known_limit_is_not_waited_for() {
    let mut history = MemoryHistory::new();
    history.user(&"long ".repeat(100));
    history.user("and?");
    let mut view = history.view(Trigger::TurnStarted);
    if let Some(info) = &mut view.agent.model_info {
        info.context_tokens = Some(150);
    }
    let step = testing::decide::<Loop>(&view).unwrap();
    assert!(matches!(step.action, Action::Compact(_)));
    // If that fails, the question is asked all the same.
    view.state = testing::stored::<Loop>(&step);
    view.trigger = Trigger::CompactionFailed(Failure::new(FailureClass::Server, "busy"));
    asks(&decide(&view));
}

#[test]
fn other_failures_are_told_in_the_providers_words() {
    let mut history = MemoryHistory::new();
    history.user("hi");
    let failure = Failure::new(FailureClass::Authentication, "Incorrect API key");
    assert_eq!(
        decide(&history.view(Trigger::ModelFailed(failure))),
        Decision::fail("Incorrect API key")
    );
}

#[test]
fn calls_of_another_runner_are_answered() {
    let mut history = MemoryHistory::new();
    history.user("hi");
    let mut view = history.view(Trigger::TurnStarted);
    view.open_calls = vec![tool_call("9", "ask_user", "{}")];
    match decide(&view).entries.as_slice() {
        [Entry::Answer(answer)] => assert!(answer.is_error && answer.call == "9"),
        other => panic!("{other:?}"),
    }
}

/// What `fresh_items` holds here is the whole history, so a lone answer at its end counts as answered.
#[test]
fn a_compaction_that_a_client_asks_for_ends_its_own_turn() {
    let mut history = MemoryHistory::new();
    history.user(&"long ".repeat(100));
    history.push(answer(
        vec![Content::Text("short".to_owned())],
        FinishReason::Stop,
    ));
    let mut view = history.view(Trigger::Other("compact".to_owned()));
    let step = testing::decide::<Loop>(&view).unwrap();
    assert!(matches!(step.action, Action::Compact(_)));
    view.state = testing::stored::<Loop>(&step);
    view.trigger = Trigger::Compacted;
    assert_eq!(decide(&view).action, Action::Done);
    view.trigger = Trigger::CompactionFailed(Failure::new(FailureClass::Server, "busy"));
    match decide(&view).action {
        Action::Fail(error) => assert!(error.contains("busy"), "{error}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_compaction_between_two_steps_goes_on_with_the_question() {
    let mut history = MemoryHistory::new();
    history.user(&"long ".repeat(100));
    history.push(answer(
        vec![Content::ToolCall(tool_call("1", "t", "{}"))],
        FinishReason::ToolCalls,
    ));
    history.push(result("1", ToolOutcome::Succeeded, "42"));
    let mut view = history.view(Trigger::Other("compact".to_owned()));
    let step = testing::decide::<Loop>(&view).unwrap();
    assert!(matches!(step.action, Action::Compact(_)));
    view.state = testing::stored::<Loop>(&step);
    for trigger in [
        Trigger::Compacted,
        Trigger::CompactionFailed(Failure::new(FailureClass::Server, "busy")),
    ] {
        view.trigger = trigger;
        asks(&decide(&view));
    }
}

#[test]
fn nothing_to_compact_is_nothing_to_do() {
    let history = MemoryHistory::new();
    let view = history.view(Trigger::Other("compact".to_owned()));
    assert_eq!(decide(&view).action, Action::Done);
}
