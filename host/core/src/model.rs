//! What a conversation is made of, in no provider's dialect: parts, messages, calls and their
//! results, usage, finish reasons, failures. The shapes are those of the WIT package's `types`.

use serde::{Deserialize, Serialize};

use crate::id::{Digest, Seq};

/// The items whose seq is greater than `after` and not greater than `through`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
pub struct Range {
    pub after: Seq,
    pub through: Seq,
}

/// A piece of a message that is no call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    Text(String),
    Media(Media),
}

/// Bytes that the host keeps in its store, by reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Media {
    pub digest: Digest,
    pub media_type: String,
    /// Bytes.
    pub size: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
}

/// Bytes that a plugin hands over to be kept.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMedia {
    pub media_type: String,
    pub name: Option<String>,
    pub data: Vec<u8>,
}

/// One message of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Message {
    System(Vec<Part>),
    User(Vec<Part>),
    Assistant(Vec<Content>),
    ToolResult(ToolResult),
}

/// A piece of an assistant message, in the order in which the model produced it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Content {
    Text(String),
    Reasoning(String),
    ToolCall(ToolCall),
    HostedCall(ToolCall),
    HostedResult(HostedResult),
    ProviderState(ProviderState),
    Media(Media),
}

impl Content {
    /// Bytes of text in it.
    pub(crate) fn text_bytes(&self) -> usize {
        match self {
            Self::Text(text) | Self::Reasoning(text) => text.len(),
            Self::ToolCall(call) | Self::HostedCall(call) => call.tool.len() + call.arguments.len(),
            Self::HostedResult(result) => result.data.len(),
            Self::ProviderState(state) => state.data.len(),
            Self::Media(_) => 0,
        }
    }
}

/// Bytes of text in these parts.
pub(crate) fn text_bytes(parts: &[Part]) -> usize {
    let text = parts.iter().map(|part| match part {
        Part::Text(text) => text.len(),
        Part::Media(_) => 0,
    });
    text.sum()
}

/// A call of a tool. `arguments` is JSON as the model wrote it, and may be malformed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolCall {
    pub id: String,
    pub tool: String,
    pub arguments: String,
}

/// The one result of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolResult {
    pub call: String,
    pub tool: String,
    pub outcome: ToolOutcome,
    pub output: Vec<Part>,
    /// The whole text where `output` holds only its beginning.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub whole: Option<Media>,
}

/// How a call ended. Only `Succeeded` is a success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolOutcome {
    Succeeded,
    Failed,
    InvalidArguments,
    UnknownTool,
    Denied,
    NotStarted,
    Interrupted,
    OutcomeUnknown,
    ResultMissing,
    Crashed,
}

/// What happens if a call is run twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Effect {
    /// Changes nothing anywhere: run again freely, needs no write-ahead.
    Pure,
    /// Run again with the same idempotency key.
    Idempotent,
    /// Never run again.
    Once,
}

/// A tool as a model sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ToolDefinition {
    pub name: String,
    pub description: String,
    /// JSON Schema text whose root is an object.
    pub input_schema: String,
}

/// Whether and what the model may call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(rename_all = "snake_case")]
pub enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Tool(String),
}

/// Settings of one model call; `None` is the model's own default.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct ModelOptions {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning: Option<ReasoningEffort>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_schema: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub extra: Option<String>,
}

/// How long a model may reason before it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ReasoningEffort {
    Off,
    Low,
    Medium,
    High,
}

/// The result of a call that the model's server ran itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedResult {
    pub call: String,
    pub is_error: bool,
    /// JSON as the server sent it.
    pub data: String,
}

/// Opaque to all but the provider plugin of this name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderState {
    pub provider: String,
    #[serde(with = "crate::bytes64")]
    pub data: Vec<u8>,
}

/// Tokens of one model call. `None` where the server did not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Default)]
#[serde(default)]
pub struct Usage {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub input_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_read_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cache_write_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_tokens: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_tokens: Option<u32>,
    /// Millionths of a US dollar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// Some of it is the host's guess: the answer was cut off before its server told.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub estimated: bool,
}

/// Why a model stopped of its own accord.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    Stop,
    ToolCalls,
    Length,
    ContentFilter,
    Refusal,
    Paused,
    Other(String),
}

/// Why a model call failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub class: FailureClass,
    pub message: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retry_after_ms: Option<u32>,
}

/// What the host does about a failed model call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureClass {
    RateLimited,
    Overloaded,
    Server,
    Transport,
    Incomplete,
    Protocol,
    ContextOverflow,
    ContentFilter,
    Authentication,
    Quota,
    InvalidRequest,
}

impl FailureClass {
    /// Whether the same bytes may be sent again while no output was recorded.
    #[must_use]
    pub fn is_retried(self) -> bool {
        matches!(
            self,
            Self::RateLimited
                | Self::Overloaded
                | Self::Server
                | Self::Transport
                | Self::Incomplete
                | Self::Protocol
        )
    }
}

/// The text of some parts, joined by line breaks; media show as `[media type]`.
#[must_use]
pub fn text_of(parts: &[Part]) -> String {
    let texts: Vec<String> = parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => text.clone(),
            Part::Media(media) => format!("[{}]", media.media_type),
        })
        .collect();
    texts.join("\n")
}
