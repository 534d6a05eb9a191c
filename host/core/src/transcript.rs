//! From a decided model call to the request that a provider puts into words: ranges become messages,
//! and no call goes out without its result.

use std::collections::HashSet;

use crate::BoxError;
use crate::event::ProviderRef;
use crate::history::{Item, ItemBody, Order};
use crate::id::Seq;
use crate::model::{self, Content, Message, Range, ToolChoice, ToolDefinition};
use crate::plugin::{HistoryReader, ModelCall, ModelRequest, Segment, Tool, ToolSet};

/// Why a request cannot be built.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// What was to be in it is not known.
    #[error("the history could not be read: {0}")]
    Unreadable(BoxError),
    /// A call and its result are parted, in words for people.
    #[error("{0}")]
    Unfit(String),
}

/// All items of a range.
///
/// # Errors
/// What the store said.
pub async fn items(history: &dyn HistoryReader, range: Range) -> Result<Vec<Item>, Error> {
    let mut all = Vec::new();
    let mut range = range;
    loop {
        let page = history.read(range, Order::OldestFirst, 1000).await;
        let (items, more) = page.map_err(Error::Unreadable)?;
        if let Some(last) = items.last() {
            range.after = last.seq;
        }
        all.extend(items);
        if !more {
            return Ok(all);
        }
    }
}

/// The segments with every range that ends where the runner's view did, at `seen`, carried on through
/// `through`: a request holds the entries that were decided together with it.
#[must_use]
pub fn to_the_end(segments: &[Segment], seen: Seq, through: Seq) -> Vec<Segment> {
    segments
        .iter()
        .map(|segment| match segment {
            Segment::Items(range) if range.through == seen => Segment::Items(Range {
                after: range.after,
                through,
            }),
            other => other.clone(),
        })
        .collect()
}

/// The messages of a call, with the states of other providers taken out.
///
/// # Errors
/// A call lacks its result, a result its call, or the history cannot be read.
pub async fn messages(
    history: &dyn HistoryReader,
    segments: &[Segment],
    provider: &str,
) -> Result<Vec<Message>, Error> {
    let mut messages = Vec::new();
    for segment in segments {
        match segment {
            Segment::Message(message) => messages.push(message.clone()),
            Segment::Items(range) => {
                let mut items = items(history, *range).await?;
                // A summary stands for what was before it, so it comes first; only the newest counts.
                let newest = items
                    .iter()
                    .rposition(|item| matches!(item.body, ItemBody::Compaction(_)));
                if let Some(newest) = newest {
                    let summary = items.remove(newest);
                    let through = if let ItemBody::Compaction(compaction) = &summary.body {
                        compaction.through
                    } else {
                        0
                    };
                    items.retain(|item| {
                        item.seq > through && !matches!(item.body, ItemBody::Compaction(_))
                    });
                    items.insert(0, summary);
                }
                messages.extend(items.into_iter().filter_map(|item| message(item, provider)));
            }
        }
    }
    pairs(&messages)?;
    Ok(messages)
}

fn message(item: Item, provider: &str) -> Option<Message> {
    match item.body {
        ItemBody::User(parts) | ItemBody::Note(parts) => Some(Message::User(parts)),
        ItemBody::Compaction(compaction) => Some(Message::User(compaction.summary)),
        ItemBody::ToolResult(result) => Some(Message::ToolResult(result)),
        ItemBody::Assistant(assistant) => {
            let mut content = assistant.content;
            content.retain(|content| match content {
                Content::ProviderState(state) => state.provider == provider,
                Content::Text(text) => !text.is_empty(),
                _ => true,
            });
            (!content.is_empty()).then_some(Message::Assistant(content))
        }
        _ => None,
    }
}

/// Checks that every call has its result, and every result its call before it.
fn pairs(messages: &[Message]) -> Result<(), Error> {
    // Ids are unique within one answer only: a later answer may use one again.
    let mut open: HashSet<&str> = HashSet::new();
    let mut hosted: HashSet<&str> = HashSet::new();
    for message in messages {
        match message {
            Message::Assistant(content) => {
                for content in content {
                    match content {
                        Content::ToolCall(call) if !open.insert(&call.id) => {
                            return Err(Error::Unfit(format!(
                                "call {:?} is made again before it has its result",
                                call.id
                            )));
                        }
                        Content::HostedCall(call) => {
                            hosted.insert(&call.id);
                        }
                        Content::HostedResult(result) if !hosted.remove(result.call.as_str()) => {
                            return Err(Error::Unfit(format!(
                                "hosted result {:?} has no call",
                                result.call
                            )));
                        }
                        _ => {}
                    }
                }
            }
            Message::ToolResult(result) if !open.remove(result.call.as_str()) => {
                return Err(Error::Unfit(format!(
                    "the result of call {:?} stands without its call",
                    result.call
                )));
            }
            _ => {}
        }
    }
    match open.iter().chain(&hosted).next() {
        Some(call) => Err(Error::Unfit(format!("call {call:?} has no result"))),
        None => Ok(()),
    }
}

/// The last seq not behind `through` at which no call is parted from its result.
#[must_use]
pub fn settled_boundary(items: &[Item], through: Seq) -> Seq {
    let mut open: HashSet<&str> = HashSet::new();
    let mut boundary = 0;
    for item in items.iter().take_while(|item| item.seq <= through) {
        match &item.body {
            ItemBody::Assistant(assistant) => {
                open.extend(
                    assistant
                        .content
                        .iter()
                        .filter_map(|content| match content {
                            Content::ToolCall(call) => Some(call.id.as_str()),
                            _ => None,
                        }),
                );
            }
            ItemBody::ToolResult(result) => {
                open.remove(result.call.as_str());
            }
            _ => {}
        }
        if open.is_empty() {
            boundary = item.seq;
        }
    }
    boundary
}

/// The tools that a call offers: those of the toolboxes that its set names, and the runner's own. At
/// the last step none.
#[must_use]
pub fn offered(
    call: &ModelCall,
    tools: &[Tool],
    last_step: bool,
) -> (Vec<ToolDefinition>, ToolChoice) {
    if last_step {
        return (Vec::new(), ToolChoice::None);
    }
    let named = |name: &str| match &call.tools {
        ToolSet::All => true,
        ToolSet::Only(names) => names.iter().any(|wanted| wanted == name),
    };
    let mut offered: Vec<ToolDefinition> = tools
        .iter()
        .map(|tool| &tool.definition)
        .filter(|tool| named(&tool.name))
        .cloned()
        .collect();
    offered.extend(call.own_tools.iter().cloned());
    (offered, call.tool_choice.clone())
}

/// The whole request.
///
/// # Errors
/// As [`messages`].
pub async fn request(
    history: &dyn HistoryReader,
    call: &ModelCall,
    provider: &ProviderRef,
    tools: &[Tool],
    seen: Seq,
    last_step: bool,
) -> Result<ModelRequest, Error> {
    let segments = to_the_end(&call.transcript, seen, Seq::MAX);
    let messages = messages(history, &segments, &provider.name).await?;
    let (tools, tool_choice) = offered(call, tools, last_step);
    Ok(ModelRequest {
        model: provider.model.clone(),
        messages,
        tools,
        tool_choice,
        hosted_tools: if last_step {
            Vec::new()
        } else {
            call.hosted_tools.clone()
        },
        options: call.options.clone(),
        config: provider.config.clone(),
    })
}

/// Bytes of text that a request brings a model.
#[must_use]
pub fn text_bytes(request: &ModelRequest) -> u64 {
    let messages = request.messages.iter().map(|message| match message {
        Message::System(parts) | Message::User(parts) => model::text_bytes(parts),
        Message::Assistant(content) => content.iter().map(Content::text_bytes).sum(),
        Message::ToolResult(result) => model::text_bytes(&result.output),
    });
    let tools = request
        .tools
        .iter()
        .map(|tool| tool.name.len() + tool.description.len() + tool.input_schema.len());
    messages.chain(tools).sum::<usize>() as u64
}
