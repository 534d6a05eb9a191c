//! Which part of a context is replaced by a summary.

use std::collections::BTreeSet;

use mainstay_guest::runner::{Item, ItemBody, View};
use mainstay_guest::types::{CallId, Content, Part, Seq};

/// What the model is asked for.
pub(crate) const REQUEST: &str = "Summarise the conversation so far. Your summary will take its \
place, and you will go on from it. Keep what is needed for that: what the user wants, in the user's \
own words where they matter; what was decided and why; what was done, with names, paths and values; \
what failed; what is still to be done. Write nothing but the summary.";

/// What stands for a context that is too large even to be read.
pub(crate) const DROPPED: &str = "The conversation before this was too long to be kept.";

/// Bytes of text that are read to find a place. A decision may read 16 MiB.
const READ_LIMIT: u64 = 8 * 1024 * 1024;

/// What to do with the older part.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    /// Have the model summarise it.
    Summarise { through: Seq },
    /// Take it away.
    Drop { through: Seq },
}

/// The newest quarter of the context stays as it is; what is before it, up to a place where every call
/// has its result, is replaced. `None` where the context is empty.
pub(crate) fn plan(view: &View<'_>) -> Option<Plan> {
    let size = view.history.measure(view.context);
    if size.items == 0 {
        return None;
    }
    if size.bytes > READ_LIMIT {
        return Some(Plan::Drop {
            through: view.context.through,
        });
    }
    let kept = size.bytes / 4;
    let mut open: BTreeSet<CallId> = BTreeSet::new();
    let mut left = size.bytes;
    let mut through = None;
    for item in view.items(view.context) {
        settle(&mut open, &item);
        left = left.saturating_sub(bytes(&item));
        if !open.is_empty() {
            continue;
        }
        // The first place in any case, else nothing would be gained.
        if left >= kept || through.is_none() {
            through = Some(item.seq);
        } else {
            break;
        }
    }
    through.map(|through| Plan::Summarise { through })
}

/// Notes the calls that an item opens or closes.
fn settle(open: &mut BTreeSet<CallId>, item: &Item) {
    match &item.body {
        ItemBody::Assistant(answer) => {
            for content in &answer.content {
                if let Content::ToolCall(call) = content {
                    open.insert(call.id.clone());
                }
            }
        }
        ItemBody::ToolResult(result) => {
            open.remove(&result.call);
        }
        _ => {}
    }
}

/// Bytes of text of an item, roughly.
fn bytes(item: &Item) -> u64 {
    let parts = |parts: &[Part]| -> usize {
        parts
            .iter()
            .map(|part| match part {
                Part::Text(text) => text.len(),
                Part::Media(_) => 0,
            })
            .sum()
    };
    let bytes = match &item.body {
        ItemBody::User(list) | ItemBody::Note(list) => parts(list),
        ItemBody::Compaction(compaction) => parts(&compaction.summary),
        ItemBody::ToolResult(result) => parts(&result.output),
        ItemBody::Assistant(answer) => answer
            .content
            .iter()
            .map(|content| match content {
                Content::Text(text) | Content::Reasoning(text) => text.len(),
                Content::ToolCall(call) | Content::HostedCall(call) => call.arguments.len(),
                Content::HostedResult(result) => result.data.len(),
                Content::ProviderState(_) | Content::Media(_) => 0,
            })
            .sum(),
        _ => 0,
    };
    bytes as u64
}
