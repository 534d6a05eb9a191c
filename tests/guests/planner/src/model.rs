//! The model's turn: it is asked until it stops, and its `guarded` calls wait for a person.

use mainstay_guest::Error;
use mainstay_guest::runner::{
    Approval, ApprovalRequest, Condition, Decision, ItemBody, ModelCall, Trigger, Verdict, View,
};
use mainstay_guest::types::{FinishReason, ToolCall, ToolDefinition, text_of};
use serde::Deserialize;
use serde_json::value::RawValue;

/// A call that a person is to approve first.
#[derive(Deserialize)]
struct Guarded {
    /// Of the request for approval.
    key: String,
    tool: String,
    arguments: Box<RawValue>,
}

/// What happens next.
pub(crate) fn next(view: &View<'_>) -> Result<Decision, Error> {
    let prompted = || {
        view.fresh_items()
            .any(|item| matches!(item.body, ItemBody::User(_)))
    };
    if !view.open_calls.is_empty() {
        return guarded(view);
    }
    Ok(match &view.trigger {
        Trigger::ModelFailed(failure) => Decision::fail(&failure.message),
        Trigger::ModelFinished(FinishReason::ToolCalls | FinishReason::Paused) => {
            Decision::call_model(call(view))
        }
        Trigger::ModelFinished(_) | Trigger::TurnStarted if !prompted() => Decision::done(),
        _ => Decision::call_model(call(view)),
    })
}

fn call(view: &View<'_>) -> ModelCall {
    ModelCall {
        own_tools: vec![ToolDefinition {
            name: "guarded".to_owned(),
            description: "Runs a tool once a person has approved it".to_owned(),
            input_schema: r#"{"type":"object","required":["key","tool","arguments"]}"#.to_owned(),
        }],
        ..ModelCall::of(view)
    }
}

/// Settles the open calls, one by one: asks for the approval, runs what is approved, answers.
fn guarded(view: &View<'_>) -> Result<Decision, Error> {
    let mut decision = Decision::call_model(call(view));
    for open in &view.open_calls {
        let guarded: Guarded = serde_json::from_str(&open.arguments)?;
        match answer(view, &guarded.key) {
            None => {
                return Ok(Decision::wait(vec![Condition::Approval(ApprovalRequest {
                    question: format!("Run {}?", guarded.tool),
                    details: Some(guarded.arguments.get().to_owned()),
                    key: guarded.key,
                })]));
            }
            Some(denied) if denied.verdict == Verdict::Denied => {
                let reason = denied.reason.unwrap_or_default();
                decision = decision.answer_error(&open.id, format!("Denied: {reason}"));
            }
            Some(_) => match result(view, &guarded.key) {
                None => {
                    return Ok(Decision::call_tools(vec![ToolCall {
                        id: guarded.key,
                        tool: guarded.tool,
                        arguments: guarded.arguments.get().to_owned(),
                    }]));
                }
                Some(output) => decision = decision.answer(&open.id, output),
            },
        }
    }
    Ok(decision)
}

/// The answer of a person, once there is one.
fn answer(view: &View<'_>, key: &str) -> Option<Approval> {
    view.items_newest_first(view.context)
        .find_map(|item| match item.body {
            ItemBody::Approval(answer) if answer.key == key => Some(answer),
            _ => None,
        })
}

/// What the approved call gave.
fn result(view: &View<'_>, id: &str) -> Option<String> {
    view.items_newest_first(view.context)
        .find_map(|item| match item.body {
            ItemBody::ToolResult(result) if result.call == id => Some(text_of(&result.output)),
            _ => None,
        })
}
