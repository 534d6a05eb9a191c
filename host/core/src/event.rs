//! What is logged: the event, its envelope and every type of body, with the version of its format.
//!
//! A released type keeps decoding for ever. A change of its shape is a new version, and a version is a
//! variant of its own, tagged `type/2`: its projector stands beside those of the older ones, which
//! nobody touches. A type or version that this build does not know is skipped by readers and keeps the
//! session from being run.

use serde::{Deserialize, Serialize};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::history::{Approval, Author, ChildResult, Ending, ItemBody, ModelRef, Signal};
use crate::id::{
    Digest, EventId, ExecutionId, InputId, Millis, OwnerId, RecoveryId, Seq, SessionId,
};
use crate::model::{
    Effect, Failure, HostedResult, Media, Part, ProviderState, Range, ToolResult, Usage,
};
use crate::outbox::Notice;
use crate::plugin::{
    Action, Answer, ApprovalRequest, Budget, ProviderConfig, SpawnRefusal, State, Trigger,
};
use crate::policy::{HeldBack, Resume};
use crate::state::States;
use crate::tail::{Charge, Scope};
use crate::wait::Signals;

/// One immutable record of a session.
#[derive(Clone, Debug, PartialEq)]
pub struct Event {
    pub session: SessionId,
    pub seq: Seq,
    pub id: EventId,
    pub at: Millis,
    /// The execution under whose claim it was written, if any.
    pub execution: Option<ExecutionId>,
    /// The recovery that wrote it, if any. Such an event names no execution as its writer.
    pub recovery: Option<RecoveryId>,
    pub body: EventBody,
    /// Of the data as they were written, where this is only their stub.
    pub compacted: Option<Digest>,
}

/// An event as it is stored and serialised: its type, version and JSON data apart, so that what a
/// build does not know still passes through it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    pub session: SessionId,
    pub seq: Seq,
    pub id: EventId,
    #[serde(rename = "type")]
    pub kind: String,
    pub version: u32,
    pub at: Millis,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub recovery: Option<RecoveryId>,
    pub data: Value,
    /// Of the data as they were written, where this is only their stub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compacted: Option<Digest>,
}

/// This build cannot read an event.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// A newer build wrote it.
    #[error("event {seq} has type {kind:?} version {version}, which this build does not know")]
    Unknown {
        seq: Seq,
        kind: String,
        version: u32,
    },
    /// Its data do not fit its type.
    #[error("event {seq} of type {kind:?} is damaged: {cause}")]
    Damaged {
        seq: Seq,
        kind: String,
        cause: String,
    },
}

/// An event that is to be written. Its seq is given by the commit.
#[derive(Clone, Debug, PartialEq)]
pub struct EventDraft {
    pub id: EventId,
    pub body: EventBody,
}

impl EventDraft {
    /// A draft under a fresh id.
    #[must_use]
    pub fn new(body: EventBody) -> Self {
        Self {
            id: EventId::new(),
            body,
        }
    }
}

impl From<EventBody> for EventDraft {
    fn from(body: EventBody) -> Self {
        Self::new(body)
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", content = "data")]
pub enum EventBody {
    #[serde(rename = "session.created")]
    SessionCreated(SessionCreated),
    /// The session's model was changed by a control.
    #[serde(rename = "session.configured")]
    SessionConfigured { model: ModelRef },
    #[serde(rename = "session.quarantined")]
    SessionQuarantined { reason: String },
    /// An operator lets a quarantined or held back session go on.
    #[serde(rename = "session.released")]
    SessionReleased {},
    /// It would have started by itself, and its policy says no.
    #[serde(rename = "session.held")]
    SessionHeld { reason: HeldBack },
    /// From here on this store's own: its old origin's replay is not taken any more.
    #[serde(rename = "session.adopted")]
    SessionAdopted {},
    /// Final: nothing of it runs ever again.
    #[serde(rename = "session.cancelled")]
    SessionCancelled {},
    /// What another session was owed has arrived there.
    #[serde(rename = "notice.delivered")]
    NoticeDelivered { notice: Notice },

    #[serde(rename = "input.admitted")]
    InputAdmitted {
        input: InputId,
        delivery: Delivery,
        content: InputContent,
        /// The input that asks for the same and answers for this one, too.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        joins: Option<InputId>,
    },
    #[serde(rename = "input.cancelled")]
    InputCancelled { input: InputId },
    #[serde(rename = "input.redelivered")]
    InputRedelivered { input: InputId, delivery: Delivery },
    /// The input enters the history here.
    #[serde(rename = "input.promoted")]
    InputPromoted { input: InputId },
    /// Pending inputs got their intent to run (back).
    #[serde(rename = "inputs.woken")]
    InputsWoken { scope: Scope },
    /// A client asked to stop what runs. Clears the intent of what is pending.
    #[serde(rename = "interrupt.requested")]
    InterruptRequested {
        /// The parent's interrupt that this one follows from.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cause: Option<EventId>,
    },

    #[serde(rename = "execution.started")]
    ExecutionStarted {
        execution: ExecutionId,
        owner: OwnerId,
    },
    #[serde(rename = "execution.succeeded")]
    ExecutionSucceeded { execution: ExecutionId },
    #[serde(rename = "execution.failed")]
    ExecutionFailed {
        execution: ExecutionId,
        error: String,
    },
    #[serde(rename = "execution.interrupted")]
    ExecutionInterrupted {
        execution: ExecutionId,
        reason: InterruptReason,
    },
    #[serde(rename = "execution.suspended")]
    ExecutionSuspended { execution: ExecutionId },

    #[serde(rename = "turn.started")]
    TurnStarted { steps: u32 },
    #[serde(rename = "turn.ended")]
    TurnEnded {
        outcome: TurnOutcome,
        /// The decision that ended it, where a runner's did.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        decided: Option<Box<StepStarted>>,
    },

    /// Words of the runner to the user.
    #[serde(rename = "runner.said")]
    RunnerSaid { runner: String, parts: Vec<Part> },
    /// Words of the runner to its model.
    #[serde(rename = "runner.noted")]
    RunnerNoted { parts: Vec<Part> },
    /// The runner's result for a call of one of its own tools.
    #[serde(rename = "runner.answered")]
    RunnerAnswered { step: Seq, answer: Answer },

    /// A call of the runner's own tools was left open at its turn's end.
    #[serde(rename = "call.dropped")]
    CallDropped { step: Seq, call: String },

    #[serde(rename = "step.started")]
    StepStarted(Box<StepStarted>),
    /// What the model produced since the last one, in order.
    #[serde(rename = "step.output")]
    StepOutput { step: Seq, pieces: Vec<Piece> },
    /// The same request will be sent again after a wait.
    #[serde(rename = "retry.scheduled")]
    RetryScheduled {
        step: Seq,
        attempt: u32,
        wait_ms: u64,
        failure: Failure,
        /// Of the try that failed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
    },
    /// The model's answer is over. Its text is in the outputs before.
    #[serde(rename = "model.ended")]
    ModelEnded {
        step: Seq,
        ending: Ending,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        usage: Option<Usage>,
        timing: Timing,
    },
    /// The agent's policy has a person asked before the call may start.
    #[serde(rename = "call.held")]
    CallHeld {
        step: Seq,
        call: String,
        request: ApprovalRequest,
    },
    /// Write-ahead of a call that acts on the world.
    #[serde(rename = "call.started")]
    CallStarted {
        step: Seq,
        call: String,
        toolbox: String,
        digest: Digest,
        effect: Effect,
        key: String,
        run: u32,
    },
    /// The one result of a call.
    #[serde(rename = "call.settled")]
    CallSettled {
        step: Seq,
        result: ToolResult,
        timing: Timing,
    },
    /// The live context begins anew with a summary.
    #[serde(rename = "context.compacted")]
    ContextCompacted {
        step: Seq,
        through: Seq,
        summary: Vec<Part>,
    },
    /// A compaction came to nothing. The context is as it was.
    #[serde(rename = "context.kept")]
    ContextKept { step: Seq, failure: Failure },
    /// An item of another session's history, where a fork begins.
    #[serde(rename = "item.copied")]
    ItemCopied { at: Millis, body: ItemBody },
    /// The copy is whole. The live context begins behind this seq.
    #[serde(rename = "history.forked")]
    HistoryForked {
        context_after: Seq,
        #[serde(default, skip_serializing_if = "States::is_empty")]
        states: States,
    },
    /// What stands behind a seq is hidden until the next input makes that final.
    #[serde(rename = "history.reverted")]
    HistoryReverted(Reverted),
    /// A revert was taken back: all is shown again.
    #[serde(rename = "revert.cleared")]
    RevertCleared {},
    /// What a revert hid is gone from the history; its events stay.
    #[serde(rename = "revert.committed")]
    RevertCommitted {},
    /// What recovery made of the step that a crash or a shutdown cut short.
    #[serde(rename = "step.recovered")]
    StepRecovered(StepRecovered),
    /// One claim was settled.
    #[serde(rename = "recovery.recorded")]
    RecoveryRecorded {
        recovery: RecoveryId,
        execution: ExecutionId,
        phase: crate::claim::Phase,
        attempts: u32,
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        charges: Vec<Charge>,
    },
}

/// How a session begins.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SessionCreated {
    /// Name of the agent.
    pub agent: String,
    /// Asked instead of the agent's own model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelRef>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// What it may do by itself.
    #[serde(default, skip_serializing_if = "Resume::is_default")]
    pub resume: Resume,
    /// The session that spawned it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The session whose history it begins with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Forked>,
}

/// Where a fork comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    pub session: SessionId,
    /// The last seq of that session that was copied.
    pub through: Seq,
}

/// A revert, with what goes back with the history.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reverted {
    /// The last seq that stays.
    pub through: Seq,
    /// Where the live context began then.
    pub context_after: Seq,
    /// What runners had stored by then.
    #[serde(default, skip_serializing_if = "States::is_empty")]
    pub states: States,
    /// What no wait had consumed by then, where one has since.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signals: Option<Signals>,
}

/// Where a child hangs in its tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parent {
    pub session: SessionId,
    /// The parent's name for this child.
    pub key: String,
    /// 1 for the child of a session without parent.
    pub depth: u32,
}

/// When an input enters the history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Delivery {
    /// At the next step boundary.
    Steer,
    /// When the session would otherwise go idle, one at a time.
    Queue,
}

/// What was accepted for a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum InputContent {
    Prompt {
        parts: Vec<Part>,
    },
    Signal(Signal),
    /// The answer to a request for approval.
    Approval(Approval),
    /// The time of a wait has come.
    Timer {
        at: Millis,
    },
    Child(ChildResult),
    /// Asks for the context to be compacted.
    Compact {},
    /// Changes the model that is asked from the next step on.
    Configure {
        model: ModelRef,
    },
}

impl InputContent {
    /// The word for its kind.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Prompt { .. } => "prompt",
            Self::Signal(_) => "signal",
            Self::Approval(_) => "approval",
            Self::Timer { .. } => "timer",
            Self::Compact {} => "compact",
            Self::Child(_) => "child",
            Self::Configure { .. } => "configure",
        }
    }

    /// Controls act at a step boundary of their own: steers behind one wait for it.
    #[must_use]
    pub fn is_control(&self) -> bool {
        matches!(self, Self::Configure { .. } | Self::Compact {})
    }
}

/// Why an execution was interrupted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InterruptReason {
    User,
    Shutdown,
    Superseded,
    Crash,
}

/// How a turn ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "snake_case")]
pub enum TurnOutcome {
    Done,
    Failed { error: String },
    Interrupted,
}

/// What a step was decided under, and the decision.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepStarted {
    pub basis: Basis,
    pub runner: PluginRef,
    /// The provider that a model call goes to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<ProviderRef>,
    pub toolboxes: Vec<ToolboxRef>,
    pub action: Action,
    /// Stored with the step where the runner gave one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
    /// A hosted tool that acts once is offered: after a crash the request is not sent again.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hosted_once: bool,
    /// The children that it asks for would pass this limit, so none of them is made.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spawn_refused: Option<SpawnRefusal>,
    /// How long the runner took, in microseconds.
    pub decide_us: u64,
}

/// What the runner was shown beside the history, so that the same question can be asked again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    pub now: Millis,
    pub trigger: Trigger,
    pub fresh: Range,
    pub context: Range,
    pub budget: Budget,
    /// Seq of the step whose `state` was handed over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state_from: Option<Seq>,
}

/// A plugin that was used: the alias that led to it and what it was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PluginRef {
    pub alias: String,
    /// `plugin.name` of its manifest.
    pub name: String,
    pub digest: Digest,
}

/// A provider as configured when the step was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProviderRef {
    /// Name of the configured provider.
    pub alias: String,
    pub name: String,
    pub digest: Digest,
    pub model: String,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub config: ProviderConfig,
}

/// A toolbox as configured when the step was decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolboxRef {
    pub alias: String,
    pub digest: Digest,
    /// JSON text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<String>,
}

/// A piece of a model's answer. Pieces of one kind that follow each other are one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Piece {
    Text(String),
    Reasoning(String),
    Call {
        id: String,
        tool: String,
    },
    Arguments {
        id: String,
        text: String,
    },
    /// The call's arguments are whole.
    CallReady {
        id: String,
    },
    HostedCall(crate::model::ToolCall),
    HostedResult(HostedResult),
    ProviderState(ProviderState),
    Media(Media),
}

/// How long an effect took.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Timing {
    /// From its start to its first output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_ms: Option<u64>,
    pub total_ms: u64,
}

/// The verdicts of a recovery on one step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StepRecovered {
    pub step: Seq,
    pub execution: ExecutionId,
    /// The request is sent again, byte for byte.
    pub ask_again: bool,
    /// The answer is kept as interrupted.
    pub interrupted: bool,
    /// Calls settled without being run; their results are events of their own.
    pub settled: Vec<String>,
    /// Calls that are run, or run again.
    pub run: Vec<String>,
}

impl EventBody {
    /// Name of this type, `step.started` for example.
    #[must_use]
    pub fn kind(&self) -> String {
        self.encode().0
    }

    /// Type, its format version, and data apart.
    #[must_use]
    pub fn encode(&self) -> (String, u32, Value) {
        let Ok(Value::Object(mut object)) = serde_json::to_value(self) else {
            unreachable!("an event body serialises to an object")
        };
        let Some(Value::String(tag)) = object.remove("type") else {
            unreachable!("an event body is tagged by its type")
        };
        let (kind, version) = untagged(&tag);
        let kind = kind.to_owned();
        (kind, version, object.remove("data").unwrap_or(Value::Null))
    }

    /// As [`Self::encode`], with the data as JSON text, their members in the order of their declaration.
    #[must_use]
    pub fn encode_text(&self) -> (String, u32, String) {
        #[derive(Deserialize)]
        struct Parts<'t> {
            #[serde(rename = "type")]
            tag: &'t str,
            #[serde(borrow)]
            data: Option<&'t RawValue>,
        }
        let text = serde_json::to_string(self).expect("an event body serialises");
        let parts: Parts<'_> = serde_json::from_str(&text).expect("it has a type and data");
        let (kind, version) = untagged(parts.tag);
        let data = parts.data.map_or("null", RawValue::get);
        (kind.to_owned(), version, data.to_owned())
    }

    /// The execution that this event ends, if it is a terminal.
    #[must_use]
    pub fn terminal_of(&self) -> Option<ExecutionId> {
        match self {
            Self::ExecutionSucceeded { execution }
            | Self::ExecutionFailed { execution, .. }
            | Self::ExecutionInterrupted { execution, .. }
            | Self::ExecutionSuspended { execution } => Some(*execution),
            _ => None,
        }
    }
}

impl Event {
    /// The stored form.
    #[must_use]
    pub fn encode(&self) -> Record {
        let (kind, version, data) = self.body.encode();
        Record {
            session: self.session,
            seq: self.seq,
            id: self.id,
            kind,
            version,
            at: self.at,
            execution: self.execution,
            recovery: self.recovery,
            data,
            compacted: self.compacted.clone(),
        }
    }
}

impl Record {
    /// Reads the stored form.
    ///
    /// # Errors
    /// [`DecodeError::Unknown`] for a type or version that this build does not know,
    /// [`DecodeError::Damaged`] for data that do not fit their type.
    pub fn decode(&self) -> Result<Event, DecodeError> {
        let unknown = || DecodeError::Unknown {
            seq: self.seq,
            kind: self.kind.clone(),
            version: self.version,
        };
        if !knows(&self.kind, self.version) {
            return Err(unknown());
        }
        let tagged =
            serde_json::json!({ "type": tag(&self.kind, self.version), "data": self.data });
        let body: EventBody =
            serde_json::from_value(tagged).map_err(|cause| DecodeError::Damaged {
                seq: self.seq,
                kind: self.kind.clone(),
                cause: cause.to_string(),
            })?;
        Ok(Event {
            session: self.session,
            seq: self.seq,
            id: self.id,
            at: self.at,
            execution: self.execution,
            recovery: self.recovery,
            body,
            compacted: self.compacted.clone(),
        })
    }

    /// The input that it admits.
    pub(crate) fn admits(&self) -> Option<InputId> {
        let input = (self.kind == "input.admitted").then(|| self.data.get("input"))??;
        input.as_str()?.parse().ok()
    }
}

/// Whether this build can read events of this type and version.
#[must_use]
pub fn knows(kind: &str, version: u32) -> bool {
    let mut known = KINDS.iter().map(|tag| untagged(tag));
    known.any(|known| known == (kind, version))
}

/// The tag of the variant that holds this version of a type.
fn tag(kind: &str, version: u32) -> String {
    match version {
        1 => kind.to_owned(),
        _ => format!("{kind}/{version}"),
    }
}

/// The type and version that a tag stands for.
fn untagged(tag: &str) -> (&str, u32) {
    let later = tag
        .split_once('/')
        .and_then(|(kind, version)| Some((kind, version.parse().ok()?)));
    later.unwrap_or((tag, 1))
}

/// An event that this build does not know, in words for people.
#[must_use]
pub fn foreign(seq: Seq, kind: &str, version: u32) -> String {
    format!("event {seq} of type {kind:?} version {version}")
}

/// Every type that this build knows; its later versions stand beside it as `type/2`.
pub const KINDS: &[&str] = &[
    "session.created",
    "session.configured",
    "session.quarantined",
    "session.released",
    "session.held",
    "session.adopted",
    "session.cancelled",
    "notice.delivered",
    "input.admitted",
    "input.cancelled",
    "input.redelivered",
    "input.promoted",
    "inputs.woken",
    "interrupt.requested",
    "execution.started",
    "execution.succeeded",
    "execution.failed",
    "execution.interrupted",
    "execution.suspended",
    "turn.started",
    "turn.ended",
    "runner.said",
    "runner.noted",
    "runner.answered",
    "call.dropped",
    "step.started",
    "step.output",
    "retry.scheduled",
    "model.ended",
    "call.held",
    "call.started",
    "call.settled",
    "context.compacted",
    "context.kept",
    "item.copied",
    "history.forked",
    "history.reverted",
    "revert.cleared",
    "revert.committed",
    "step.recovered",
    "recovery.recorded",
];

/// The author of what a model call produces.
#[must_use]
pub fn author_of(step: &StepStarted) -> Author {
    match &step.provider {
        Some(provider) => Author::Model(ModelRef {
            provider: provider.alias.clone(),
            model: provider.model.clone(),
        }),
        None => Author::Runner(step.runner.name.clone()),
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, knows, tag, untagged};

    #[test]
    fn every_version_of_a_type_has_a_tag_of_its_own() {
        for (kind, version, tagged) in [
            ("step.started", 1, "step.started"),
            ("step.started", 2, "step.started/2"),
            ("step.started", 11, "step.started/11"),
        ] {
            assert_eq!(tag(kind, version), tagged);
            assert_eq!(untagged(tagged), (kind, version));
        }
        for known in KINDS {
            let (kind, version) = untagged(known);
            assert!(knows(kind, version), "{known}");
            assert!(!knows(kind, 99), "{known}");
            assert!(!knows(kind, 0), "{known}");
        }
        assert!(!knows("step.started/1", 1));
        assert!(!knows("step", 1));
    }
}
