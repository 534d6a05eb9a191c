//! The history as runners and people read it: items, each begun by one event.

use serde::{Deserialize, Serialize};

use crate::id::{Millis, Seq};
use crate::model::{Content, Failure, FinishReason, Media, Part, ToolResult, Usage, text_bytes};

/// One entry of the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Item {
    /// Seq of the event that began it.
    pub seq: Seq,
    /// When that event was recorded.
    pub at: Millis,
    pub body: ItemBody,
}

/// What an item is. The first five are messages: they go into a model request when their range is
/// named there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum ItemBody {
    User(Vec<Part>),
    Assistant(Assistant),
    ToolResult(ToolResult),
    Note(Vec<Part>),
    Compaction(Compaction),
    Recovered(Recovered),
    Signal(Signal),
    Approval(Approval),
    Child(ChildResult),
    Timer,
    Other(Other),
}

/// One answer of a model, or what a runner said or called by itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Assistant {
    pub author: Author,
    pub content: Vec<Content>,
    pub ending: Ending,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// Who made an assistant item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Author {
    Model(ModelRef),
    Runner(String),
}

/// A model as the operator's configuration names it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ModelRef {
    /// Name of a configured provider.
    pub provider: String,
    /// As the server names it.
    pub model: String,
}

/// How an assistant item ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ending {
    Finished(FinishReason),
    Failed(Failure),
    Interrupted,
}

/// A summary and what it stands for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compaction {
    pub through: Seq,
    pub summary: Vec<Part>,
}

/// What recovery decided about the step that a crash cut short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Recovered {
    /// The assistant item that is kept as interrupted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interrupted: Option<Seq>,
    /// Calls that recovery settled without running them.
    pub settled: Vec<String>,
}

/// Something from outside under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Signal {
    pub name: String,
    /// JSON text.
    pub data: String,
}

/// The answer to an approval request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Approval {
    pub key: String,
    pub approved: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// A child session has ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ChildResult {
    pub key: String,
    pub outcome: ChildOutcome,
}

/// How a child ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChildOutcome {
    Done(Vec<Part>),
    Failed(String),
    Cancelled,
    Quarantined(String),
}

/// An item of a later version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    pub kind: String,
    /// JSON text.
    pub data: String,
}

/// How much a range holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Size {
    pub items: u64,
    /// Bytes of text.
    pub bytes: u64,
}

impl Size {
    /// An estimate, good to about a quarter: four bytes a token.
    #[must_use]
    pub fn tokens(self) -> u64 {
        tokens(self.bytes)
    }
}

/// How many tokens so much text is, good to about a quarter: four bytes each.
pub(crate) fn tokens(bytes: u64) -> u64 {
    bytes / 4
}

/// Direction of reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    OldestFirst,
    NewestFirst,
}

impl Item {
    /// Whether a model request that names the item's range holds it.
    #[must_use]
    pub fn is_message(&self) -> bool {
        matches!(
            self.body,
            ItemBody::User(_)
                | ItemBody::Assistant(_)
                | ItemBody::ToolResult(_)
                | ItemBody::Note(_)
                | ItemBody::Compaction(_)
        )
    }

    /// The media that it refers to.
    pub fn media(&self) -> impl Iterator<Item = &Media> {
        let (parts, content, whole): (&[Part], &[Content], _) = match &self.body {
            ItemBody::User(parts) | ItemBody::Note(parts) => (parts, &[], None),
            ItemBody::Compaction(compaction) => (&compaction.summary, &[], None),
            ItemBody::Assistant(assistant) => (&[], &assistant.content, None),
            ItemBody::ToolResult(result) => (&result.output, &[], result.whole.as_ref()),
            ItemBody::Child(ChildResult {
                outcome: ChildOutcome::Done(parts),
                ..
            }) => (parts, &[], None),
            _ => (&[], &[], None),
        };
        let parts = parts.iter().filter_map(|part| match part {
            Part::Media(media) => Some(media),
            Part::Text(_) => None,
        });
        let content = content.iter().filter_map(|content| match content {
            Content::Media(media) => Some(media),
            _ => None,
        });
        parts.chain(content).chain(whole)
    }

    /// Bytes of text in it.
    #[must_use]
    pub fn text_bytes(&self) -> u64 {
        let bytes = match &self.body {
            ItemBody::User(p) | ItemBody::Note(p) => text_bytes(p),
            ItemBody::Compaction(c) => text_bytes(&c.summary),
            ItemBody::ToolResult(r) => text_bytes(&r.output),
            ItemBody::Assistant(a) => a.content.iter().map(Content::text_bytes).sum(),
            ItemBody::Signal(signal) => signal.data.len(),
            ItemBody::Other(other) => other.data.len(),
            _ => 0,
        };
        bytes as u64
    }
}
