//! What the model is told of things that are no messages.

use mainstay_guest::runner::{
    Approval, ChildOutcome, ChildResult, Item, ItemBody, Recovered, Verdict,
};
use mainstay_guest::types::{ToolOutcome, ToolResult, text_of};

/// One note for all of them; `None` where there are none.
pub(crate) fn note(items: &[Item]) -> Option<String> {
    let lines: Vec<String> = items
        .iter()
        .flat_map(|item| match &item.body {
            ItemBody::Recovered(recovered) => self::recovered(recovered, items),
            ItemBody::Signal(signal) => {
                vec![format!(
                    "The signal `{}` came: {}",
                    signal.name, signal.data
                )]
            }
            ItemBody::Approval(approval) => vec![self::approval(approval)],
            ItemBody::Child(child) => vec![self::child(child)],
            ItemBody::Timer => vec!["The time that was waited for has come.".to_owned()],
            ItemBody::Other(other) => vec![format!("`{}` came: {}", other.kind, other.data)],
            ItemBody::User(_)
            | ItemBody::Assistant(_)
            | ItemBody::ToolResult(_)
            | ItemBody::Note(_)
            | ItemBody::Compaction(_) => Vec::new(),
        })
        .collect();
    (!lines.is_empty()).then(|| lines.join("\n"))
}

fn recovered(recovered: &Recovered, items: &[Item]) -> Vec<String> {
    let mut lines =
        vec!["The host stopped in the middle of your work and has recovered.".to_owned()];
    if recovered.interrupted.is_some() {
        lines.push(
            "Your last answer was cut short; what you had said of it is above. Go on from there \
             and do not repeat it."
                .to_owned(),
        );
    }
    for id in &recovered.settled {
        let result = items.iter().find_map(|item| match &item.body {
            ItemBody::ToolResult(result) if result.call == *id => Some(result),
            _ => None,
        });
        lines.push(settled(id, result));
    }
    lines
}

fn settled(id: &str, result: Option<&ToolResult>) -> String {
    let Some(result) = result else {
        return format!(
            "The call `{id}` was settled without being run again. Check what it did before you do \
             it again."
        );
    };
    let tool = &result.tool;
    match result.outcome {
        ToolOutcome::OutcomeUnknown => format!(
            "The call `{id}` of `{tool}` was running: it may or may not have happened. Check \
             before you do it again."
        ),
        ToolOutcome::NotStarted => format!(
            "The call `{id}` of `{tool}` was not started. Make it again if it is still needed."
        ),
        ToolOutcome::ResultMissing => {
            format!("The result of the call `{id}` of `{tool}` is lost. It may have happened.")
        }
        _ => format!("The call `{id}` of `{tool}` was not run again; its result says more."),
    }
}

fn approval(approval: &Approval) -> String {
    let verdict = match approval.verdict {
        Verdict::Approved => "approved",
        Verdict::Denied => "denied",
    };
    match &approval.reason {
        Some(reason) => format!("`{}` was {verdict}: {reason}", approval.key),
        None => format!("`{}` was {verdict}.", approval.key),
    }
}

fn child(child: &ChildResult) -> String {
    let key = &child.key;
    match &child.outcome {
        ChildOutcome::Done(parts) => format!("The child `{key}` is done:\n{}", text_of(parts)),
        ChildOutcome::Failed(reason) => format!("The child `{key}` failed: {reason}"),
        ChildOutcome::Cancelled => format!("The child `{key}` was cancelled."),
        ChildOutcome::Quarantined(reason) => {
            format!("The child `{key}` crashed too often and was set aside: {reason}")
        }
    }
}
