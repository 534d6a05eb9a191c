//! What the host and its plugins say to each other: the port [`Plugins`] and the shapes that cross
//! it. They are those of the WIT package; the runtime converts and judges nothing.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use crate::history::Item;
use crate::history::{ModelRef, Order, Size};
use crate::id::{Digest, Millis, SessionId};
use crate::model::{
    Effect, Failure, FinishReason, HostedResult, Message, ModelOptions, NewMedia, Part, Range,
    ToolCall, ToolChoice, ToolDefinition, Usage,
};
use crate::{BoxError, is_default};

/// The three kinds of plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    Runner,
    Provider,
    Toolbox,
}

impl std::fmt::Display for Kind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Runner => "runner",
            Self::Provider => "provider",
            Self::Toolbox => "toolbox",
        })
    }
}

/// What a loaded component is and asks for. Stored with its digest.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PluginInfo {
    /// SHA-256 of the component's bytes.
    pub digest: Digest,
    pub kind: Kind,
    /// `plugin.name` of its manifest: who it is, whatever alias leads to it.
    pub name: String,
    pub version: String,
    pub summary: String,
    /// Version of `mainstay:plugin` that it was built for.
    pub wit: String,
    /// Bytes of the component.
    pub size: u64,
    /// Interfaces that it imports.
    pub imports: Vec<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options_schema: Option<String>,
    /// Runners only.
    #[serde(default)]
    pub state_version: u32,
    /// Runners only: foreign states that it reads.
    #[serde(default)]
    pub accepts: Vec<StateFormat>,
    #[serde(default)]
    pub http: Vec<HttpRule>,
    #[serde(default)]
    pub secrets: Vec<SecretRule>,
    #[serde(default)]
    pub workspace: Workspace,
    /// Providers only.
    #[serde(default)]
    pub models: Vec<Model>,
    /// Providers only.
    #[serde(default)]
    pub hosted_tools: Vec<HostedTool>,
    /// Toolboxes only: the tools under no options.
    #[serde(default)]
    pub tools: Vec<Tool>,
}

/// Whose states, in which format.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StateFormat {
    pub runner: String,
    pub state_version: u32,
}

/// Requests that a plugin wants to send: all that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HttpRule {
    pub scheme: Scheme,
    pub host: HostPattern,
    pub port: Option<u16>,
    /// In capitals; empty means every method.
    pub methods: Vec<String>,
    pub path_prefix: String,
}

/// Scheme of a URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    Https,
    Http,
}

/// Which hosts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HostPattern {
    Name(String),
    Subdomains(String),
    BaseUrl,
    Any,
}

/// A secret that a plugin wants to have put into requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SecretRule {
    pub name: String,
    pub hosts: Vec<HostPattern>,
    pub purpose: String,
    pub required: bool,
}

/// Access to the session's workspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Workspace {
    #[default]
    None,
    Read,
    ReadWrite,
}

/// A tool that the model's server runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HostedTool {
    pub name: String,
    pub description: String,
    pub effect: Effect,
}

/// A tool of a toolbox.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tool {
    pub definition: ToolDefinition,
    pub effect: Effect,
}

/// What is known of a model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Model {
    pub id: String,
    #[serde(default)]
    pub context_tokens: Option<u32>,
    #[serde(default)]
    pub max_output_tokens: Option<u32>,
    #[serde(default)]
    pub capabilities: Vec<Capability>,
    #[serde(default)]
    pub price: Option<Price>,
}

/// What a model can do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Capability {
    Tools,
    ParallelToolCalls,
    Reasoning,
    StructuredOutput,
    ImageInput,
    AudioInput,
    DocumentInput,
}

/// Millionths of a US dollar for a million tokens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Price {
    pub input: u32,
    pub output: u32,
    #[serde(default)]
    pub cache_read: Option<u32>,
    #[serde(default)]
    pub cache_write: Option<u32>,
}

/// What is known when a decision is due.
#[derive(Clone)]
pub struct View {
    pub session: SessionId,
    /// When the newest event was recorded. The runner's only clock, and the seed of all inert
    /// stand-ins.
    pub now: Millis,
    pub trigger: Trigger,
    pub fresh: Range,
    pub context: Range,
    pub history: Arc<dyn HistoryReader>,
    pub open_calls: Vec<ToolCall>,
    pub agent: AgentView,
    pub tools: Vec<ToolView>,
    pub budget: Budget,
    pub state: Option<State>,
}

/// A session's history as it stood when the runner was asked.
#[async_trait]
pub trait HistoryReader: Send + Sync {
    /// Items of `range` in the given order, at most `limit`; `more` where the range holds more. A
    /// page ends after at most 256 KiB of text but holds one item at least if the range does.
    async fn read(
        &self,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<(Vec<Item>, bool), BoxError>;
    /// How much a range holds.
    async fn measure(&self, range: Range) -> Result<Size, BoxError>;
    /// Bytes of a media that an item refers to; `None` for one that no item does.
    async fn read_media(
        &self,
        digest: &str,
        offset: u64,
        length: u32,
    ) -> Result<Option<Vec<u8>>, BoxError>;
}

/// Why the runner is asked now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Trigger {
    TurnStarted,
    ModelFinished(FinishReason),
    ModelFailed(Failure),
    ToolsFinished,
    Spawned,
    SpawnRefused(SpawnRefusal),
    Compacted,
    CompactionFailed(Failure),
    WaitEnded(WaitEnd),
    Recovered,
    Other(String),
}

/// Which limit a spawn would have passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpawnRefusal {
    TooDeep,
    TooMany,
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WaitEnd {
    /// Index in `until` of the first condition that was met.
    Met(u32),
    Steered,
}

/// What the operator configured for this session, as its runner sees it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentView {
    pub name: String,
    pub system_prompt: Option<String>,
    pub model: ModelRef,
    pub model_info: Option<Model>,
    /// JSON text.
    pub options: Option<String>,
}

/// A tool that the session has, as its runner sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolView {
    pub name: String,
    pub toolbox: String,
    pub effect: Effect,
}

/// What is left. `None` is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Budget {
    pub steps: u32,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokens: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time_ms: Option<u64>,
}

/// What a runner keeps from step to step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// `plugin.name` of the runner that wrote it.
    pub runner: String,
    pub state_version: u32,
    #[serde(with = "crate::bytes64")]
    pub data: Vec<u8>,
}

/// One decision of a runner.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    pub entries: Vec<Entry>,
    pub action: Action,
    /// `None` keeps what is stored.
    #[serde(skip)]
    pub state: Option<Vec<u8>>,
}

/// An item that the runner itself adds to the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Entry {
    Say(Vec<Part>),
    Note(Vec<Part>),
    Answer(Answer),
}

/// A runner's result for a call of one of its own tools.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    pub call: String,
    pub is_error: bool,
    pub output: Vec<Part>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    CallModel(ModelCall),
    CallTools(Vec<ToolCall>),
    Wait(Wait),
    Spawn(Vec<Child>),
    Compact(Compact),
    Done,
    Fail(String),
}

/// One request to a model, by reference to the history.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ModelCall {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    pub transcript: Vec<Segment>,
    pub tools: ToolSet,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own_tools: Vec<ToolDefinition>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub tool_choice: ToolChoice,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosted_tools: Vec<String>,
    #[serde(default, skip_serializing_if = "is_default")]
    pub options: ModelOptions,
}

/// A stretch of a transcript.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Segment {
    Items(Range),
    Message(Message),
}

/// Which tools to offer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ToolSet {
    All,
    Only(Vec<String>),
}

/// Ends with the first condition that is met.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Wait {
    pub until: Vec<Condition>,
}

/// What ends a wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Condition {
    Time(Millis),
    Signal(String),
    Approval(ApprovalRequest),
    Children(Vec<String>),
}

/// A question to a person.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ApprovalRequest {
    pub key: String,
    pub question: String,
    #[serde(default)]
    pub details: Option<String>,
}

/// A child session to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Child {
    pub key: String,
    #[serde(default)]
    pub agent: Option<String>,
    pub prompt: Vec<Part>,
}

/// What to replace by a summary.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Compact {
    pub through: crate::id::Seq,
    pub summary: Summary,
}

/// Where the summary comes from.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Summary {
    Text(String),
    Model(Box<ModelCall>),
}

/// One request to a model, ready to be put into a protocol's words.
#[derive(Clone, Debug, PartialEq)]
pub struct ModelRequest {
    pub model: String,
    pub messages: Vec<Message>,
    pub tools: Vec<ToolDefinition>,
    pub tool_choice: ToolChoice,
    pub hosted_tools: Vec<String>,
    pub options: ModelOptions,
    pub config: ProviderConfig,
}

/// What the operator configured for a provider. Recorded with each step that uses it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct ProviderConfig {
    /// Without a slash at the end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base_url: Option<String>,
    /// Names of the secrets that are bound and granted.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<String>,
    /// JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<String>,
}

/// How the answer is got.
#[derive(Clone, Debug, PartialEq)]
pub enum Exchange {
    Http { request: HttpRequest, memo: Vec<u8> },
    Local(Vec<LocalEvent>),
}

/// One event of a local answer.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalEvent {
    /// Pause before it, in milliseconds.
    pub after_ms: u32,
    pub event: ModelEvent,
}

/// One thing that a model did.
#[derive(Clone, Debug, PartialEq)]
pub enum ModelEvent {
    TextDelta(String),
    ReasoningDelta(String),
    ToolCallStart { id: String, tool: String },
    ToolCallDelta { id: String, arguments: String },
    ToolCallEnd { id: String },
    HostedCall(ToolCall),
    HostedResult(HostedResult),
    ProviderState(Vec<u8>),
    Media(NewMedia),
    Usage(Usage),
    Finished(FinishReason),
    Failed(Failure),
}

/// An HTTP request as a guest writes it.
#[derive(Clone, Debug, PartialEq)]
pub struct HttpRequest {
    pub method: String,
    pub url: String,
    pub headers: Vec<(String, HeaderValue)>,
    pub body: Vec<Chunk>,
}

/// What a header says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HeaderValue {
    Text(String),
    Secret { name: String, prefix: String },
}

/// A piece of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Chunk {
    Bytes(Vec<u8>),
    MediaBase64(Digest),
    Media(Digest),
}

/// Status and headers of an answer, names in small letters.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct ResponseHead {
    pub status: u16,
    pub headers: Vec<(String, String)>,
}

/// One run of one call.
#[derive(Clone, Debug)]
pub struct CallRequest {
    pub session: SessionId,
    pub call: ToolCall,
    pub effect: Effect,
    pub idempotency_key: String,
    pub earlier_runs: u32,
    /// JSON text.
    pub options: Option<String>,
    /// Alias of the toolbox, under which its grants are kept.
    pub toolbox: String,
    /// Told to stop. The call then has 1 s to answer.
    pub cancel: CancellationToken,
    /// Shows people how far the call is; lossy.
    pub progress: Progress,
}

/// Where progress messages go.
#[derive(Clone)]
pub struct Progress(pub Arc<dyn Fn(String) + Send + Sync>);

impl std::fmt::Debug for Progress {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Progress")
    }
}

/// A piece of a result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    Text(String),
    Media(NewMedia),
}

/// Why a call has no output.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    #[error("invalid arguments: {0}")]
    InvalidArguments(String),
    #[error("denied: {0}")]
    Denied(String),
    #[error("{0}")]
    Failed(String),
    #[error("cancelled: {0}")]
    Cancelled(String),
    /// The toolbox trapped, went past a limit or could not be loaded.
    #[error("{0}")]
    Crashed(String),
}

/// Why a guest gave no answer. The text names plugin, digest and function.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", content = "message", rename_all = "snake_case")]
pub enum GuestError {
    /// The guest says so itself.
    #[error("{0}")]
    Refused(String),
    /// It trapped.
    #[error("{0}")]
    Trap(String),
    /// It went past a limit, which the text names.
    #[error("{0}")]
    Limit(String),
    /// It lied: an answer that breaks the contract.
    #[error("{0}")]
    Contract(String),
    /// The host has no component of this digest.
    #[error("{0}")]
    Missing(String),
    /// The host itself failed. Transient.
    #[error("{0}")]
    Host(String),
}

/// Why an HTTP request has no (complete) answer, sorted by what may have happened. The text never
/// holds a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EgressError {
    /// No request was sent: no grant covers it, a secret is missing, or its address is private.
    #[error("{0}")]
    Denied(String),
    /// No request was sent: it is malformed.
    #[error("{0}")]
    Invalid(String),
    /// No connection. Nothing reached the server.
    #[error("{0}")]
    Unreachable(String),
    /// It broke off. The server may have acted.
    #[error("{0}")]
    Broken(String),
    /// Too slow or too large. The server may have acted.
    #[error("{0}")]
    Stopped(String),
}

/// One answer that streams in. Dropping it closes the connection.
pub struct HttpAnswer {
    pub head: ResponseHead,
    pub body: Box<dyn BodyStream>,
}

/// The body of an answer, secrets already taken out.
#[async_trait]
pub trait BodyStream: Send {
    /// The next bytes (at most 64 KiB); `None` at its clean end.
    ///
    /// # Cancel safety
    /// Safe: a dropped call has taken nothing.
    async fn next(&mut self) -> Result<Option<Vec<u8>>, EgressError>;
}

/// A decoder of one answer, in an instance that lives until it is dropped.
#[async_trait]
pub trait Decoder: Send {
    async fn feed(&mut self, bytes: Vec<u8>) -> Result<Vec<ModelEvent>, GuestError>;
    async fn finish(&mut self) -> Result<Vec<ModelEvent>, GuestError>;
}

/// Time-outs of one provider exchange.
#[derive(Clone, Copy, Debug)]
pub struct ExchangeTimeouts {
    pub connect: Duration,
    pub first_byte: Duration,
    pub idle: Duration,
    pub total: Duration,
}

impl Default for ExchangeTimeouts {
    fn default() -> Self {
        Self {
            connect: Duration::from_secs(10),
            first_byte: Duration::from_secs(120),
            idle: Duration::from_secs(60),
            total: Duration::from_secs(30 * 60),
        }
    }
}

/// The components that the host has loaded, and the world outside as they may reach it.
///
/// Every call has a fresh instance (a decoder has one of its own). A call never blocks the thread
/// it is polled on. Dropping a future drops the guest.
#[async_trait]
pub trait Plugins: Send + Sync + 'static {
    /// The component that `alias` points to now; `None` where there is none of this kind.
    async fn resolve(&self, kind: Kind, alias: &str) -> Result<Option<Arc<PluginInfo>>, BoxError>;

    /// The component of this digest.
    async fn info(&self, digest: &str) -> Result<Option<Arc<PluginInfo>>, BoxError>;

    /// Asks a runner. Pure: may be asked again and the answer thrown away.
    async fn decide(&self, digest: &str, view: View) -> Result<Decision, GuestError>;

    /// Puts a request into a provider's words. Pure.
    async fn encode(&self, digest: &str, request: ModelRequest) -> Result<Exchange, GuestError>;

    /// Makes the decoder of one answer.
    async fn decoder(
        &self,
        digest: &str,
        head: ResponseHead,
        memo: Vec<u8>,
    ) -> Result<Box<dyn Decoder>, GuestError>;

    /// What an error answer means. Goes by the status alone where the guest fails.
    async fn classify(&self, digest: &str, head: ResponseHead, body: Vec<u8>) -> Failure;

    /// The tools of a toolbox under these options.
    async fn tools(&self, digest: &str, options: Option<String>) -> Result<Vec<Tool>, GuestError>;

    /// Runs one call.
    async fn call(&self, digest: &str, request: CallRequest) -> Result<Vec<Output>, CallError>;

    /// Names of the secrets that the provider configured under `alias` may use: asked for by the
    /// component, bound by the operator, and set.
    async fn secrets(&self, digest: &str, alias: &str) -> Vec<String>;

    /// What a rate limit of the provider configured under `alias` counts for: a name for each secret
    /// that it may use, the same wherever the same value is used, and never the value. Where it uses
    /// none, the alias.
    async fn rated(&self, digest: &str, alias: &str) -> Vec<String> {
        let _ = digest;
        vec![alias.to_owned()]
    }

    /// Sends a request of the provider that is configured under `alias`: grants checked, secrets put
    /// in, redirects not followed beyond the grants. The answer of any status.
    async fn send(
        &self,
        digest: &str,
        alias: &str,
        config: &ProviderConfig,
        request: HttpRequest,
    ) -> Result<HttpAnswer, EgressError>;
}
