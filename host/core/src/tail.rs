//! The live end of a session as one value: its rows that a decision can depend on. A store loads it
//! inside the transaction, pure code judges and changes it, and the store writes the changes back.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::approval;
use crate::claim::Claim;
use crate::event::{
    Delivery, Event, EventBody, Forked, InputContent, Parent, Piece, Reverted, StepStarted,
};
use crate::history::{Ending, Item, ModelRef};
use crate::id::{EventId, ExecutionId, InputId, Millis, OwnerId, Seq, SessionId};
use crate::model::{Content, Effect, ToolCall, ToolChoice, Usage};
use crate::outbox::{Child, Notice};
use crate::plugin::{Action, ModelCall, ToolSet, Trigger};
use crate::policy::{HeldBack, Resume};
use crate::state::States;
use crate::wait::{Arrived, Asked, Waiting};

/// A session's live end.
#[derive(Clone, Debug, PartialEq)]
pub struct Tail {
    pub session: Session,
    pub claim: Option<Claim>,
    /// The step whose effect is not settled.
    pub step: Option<Step>,
    /// Pending inputs in admission order.
    pub inputs: Vec<Input>,
}

/// The row of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub id: SessionId,
    pub agent: String,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub model: Option<ModelRef>,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub title: Option<String>,
    pub head: Seq,
    pub created_at: Millis,
    /// Time of the newest event.
    pub updated_at: Millis,
    /// When a client or an execution last wrote.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub active_at: Millis,
    /// What it may do by itself.
    #[serde(default, skip_serializing_if = "Resume::is_default")]
    pub resume: Resume,
    /// Held back by that policy until an operator resumes it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<HeldBack>,
    /// The execution that has begun and not ended, by the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub execution: Option<ExecutionId>,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub turn: Option<Turn>,
    /// The wait of the open turn.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Waiting>,
    /// What waits can end with.
    #[serde(default, skip_serializing_if = "Arrived::is_empty")]
    pub arrived: Arrived,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    /// The parent was told how this session ended.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub reported: bool,
    /// In the order of their making.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Child>,
    /// What other sessions are still to learn, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outbox: Vec<Notice>,
    /// The parent's interrupts that were followed last, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub followed: Vec<EventId>,
    /// How the last turn ended.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub last_turn: Option<crate::event::TurnOutcome>,
    /// Seq of the open step, from which its events are folded.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub step: Option<Seq>,
    /// Why the runner is asked next.
    pub trigger: Trigger,
    /// Through this seq a runner has seen the history.
    pub seen: Seq,
    /// The live context begins after this seq.
    pub context_after: Seq,
    /// What runners keep.
    #[serde(default, skip_serializing_if = "States::is_empty")]
    pub states: States,
    /// Calls of the runner's own tools without an answer: the step's seq and the call.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub open_calls: Vec<(Seq, ToolCall)>,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub usage: Totals,
    /// Model calls in a row that failed for good.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub failed_calls: u32,
    /// Crashes since something was last settled.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub attempts: u32,
    /// What of these can still turn out to be none, oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub charges: Vec<Charge>,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub quarantined: Option<String>,
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub cancelled: bool,
    /// The store that it was imported from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin: Option<Origin>,
    /// An interrupt or cancel of the open execution or turn stands in the log.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub interrupting: bool,
    /// A revert that the next input makes final. Items behind it are not shown.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revert: Option<Reverted>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Forked>,
    /// An event type or version that this build does not know stands in the log.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub foreign: Option<String>,
    /// Events through this seq are stubs, or had nothing to lose.
    #[serde(default, skip_serializing_if = "crate::is_default")]
    pub compacted_through: Seq,
}

/// A crash that recovery counted. It was none if its owner is seen alive after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Charge {
    pub owner: OwnerId,
    /// By the store's clock.
    pub at: Millis,
}

/// Where an imported session comes from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub name: String,
    /// It is this store's own by now.
    pub adopted: bool,
}

/// An open turn.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Turn {
    pub began: Seq,
    /// Decisions that are left.
    pub steps_left: u32,
    /// The allowance that a promotion restores.
    pub steps: u32,
    pub settled_steps: u32,
}

/// Sums over a session's model calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Totals {
    pub input_tokens: u64,
    pub output_tokens: u64,
    /// Millionths of a US dollar.
    pub cost: u64,
}

impl Totals {
    pub(crate) fn add(&mut self, usage: &Usage) {
        let count = |tokens: Option<u32>| u64::from(tokens.unwrap_or(0));
        self.input_tokens = self.input_tokens.saturating_add(count(usage.input_tokens));
        self.output_tokens = self
            .output_tokens
            .saturating_add(count(usage.output_tokens));
        self.cost = self.cost.saturating_add(usage.cost.unwrap_or(0));
    }
}

/// The row of an input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Input {
    pub id: InputId,
    pub session: SessionId,
    /// Seq of its admission.
    pub seq: Seq,
    pub at: Millis,
    pub delivery: Delivery,
    pub status: InputStatus,
    /// Only inputs with an intent to run are promoted.
    pub intent: bool,
    pub content: InputContent,
    /// The admission that answers for this one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub joins: Option<Joined>,
}

/// Another input's admission, which a client is told where it asked for what is pending already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Joined {
    pub input: InputId,
    /// Seq of its admission.
    pub seq: Seq,
}

/// What became of an input.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum InputStatus {
    Pending,
    Promoted,
    Cancelled,
}

/// A step whose effect is not settled, folded from its events.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    pub seq: Seq,
    pub at: Millis,
    pub started: Box<StepStarted>,
    pub content: Vec<Content>,
    /// Calls for the host to settle, and the runner's own, in the order of their appearance.
    pub calls: Vec<Call>,
    /// How the model's answer ended; `None` while it is awaited, and for steps without a model.
    pub ending: Option<Ending>,
    /// Retries that were scheduled.
    pub retries: u32,
    /// The wait before the last of them.
    pub retry: Option<Retry>,
    /// Recovery gave a verdict on it.
    pub recovered: bool,
}

/// A wait between two tries of a model call. It outlives the process that began it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The store's time before which nothing is sent.
    pub until: Millis,
    /// It was asked for of everyone who uses the same secret.
    pub limited: bool,
}

/// The row of a call.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    pub session: SessionId,
    pub step: Seq,
    pub id: String,
    pub tool: String,
    /// `None` for an unknown tool, until its start is recorded for others.
    #[serde(default)]
    pub effect: Option<Effect>,
    pub status: CallStatus,
    /// Settled by the runner and not by the host.
    #[serde(default)]
    pub own: bool,
    /// Run by the model's server.
    #[serde(default)]
    pub hosted: bool,
    /// Idempotency key, once started.
    #[serde(default)]
    pub key: Option<String>,
    /// Runs whose start was recorded.
    #[serde(default)]
    pub runs: u32,
    /// Seq of its result.
    #[serde(default)]
    pub result: Option<Seq>,
}

/// How far a call is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CallStatus {
    /// Its arguments are still coming.
    Streaming,
    /// Complete, and not started as far as the log knows.
    Ready,
    /// Complete, and a person is asked first. Not started as far as the log knows.
    Held,
    /// Its start is recorded.
    Started,
    Settled,
}

/// The row of a step, for lists and checks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StepRow {
    pub session: SessionId,
    pub seq: Seq,
    pub started_at: Millis,
    #[serde(default)]
    pub settled_at: Option<Millis>,
    pub runner: crate::event::PluginRef,
    #[serde(default)]
    pub provider: Option<String>,
    #[serde(default)]
    pub usage: Option<Usage>,
}

/// The row of an execution.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Execution {
    pub id: ExecutionId,
    pub session: SessionId,
    pub owner: OwnerId,
    pub started: Seq,
    #[serde(default)]
    pub ended: Option<Seq>,
    /// The terminal's type, `execution.succeeded` for example.
    #[serde(default)]
    pub terminal: Option<String>,
}

/// The rows that a commit changes.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Changes {
    pub items: Vec<Item>,
    pub inputs: Vec<Input>,
    pub steps: Vec<StepRow>,
    pub calls: Vec<Call>,
    pub executions: Vec<Execution>,
    /// Stored items behind this seq are gone. Those in `items` came after that.
    pub drop_items_after: Option<Seq>,
}

impl Changes {
    /// Adds what later events of the same commit change.
    pub(crate) fn extend(&mut self, later: Self) {
        if let Some(through) = later.drop_items_after {
            self.drop_items(through);
        }
        self.items.extend(later.items);
        self.inputs.extend(later.inputs);
        self.steps.extend(later.steps);
        self.calls.extend(later.calls);
        self.executions.extend(later.executions);
    }

    /// Takes away the items behind `through`, those of this commit included.
    pub(crate) fn drop_items(&mut self, through: Seq) {
        self.items.retain(|item| item.seq <= through);
        let dropped = self.drop_items_after.unwrap_or(Seq::MAX);
        self.drop_items_after = Some(dropped.min(through));
    }
}

/// Which pending inputs a wake is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    Steers,
    All,
}

/// What a session is doing, as people see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Idle,
    /// There is work that no execution has taken yet.
    Due,
    Running,
    /// Its claim has expired and awaits recovery.
    Recovering,
    /// A copy of another store's session, not adopted.
    Imported,
    /// Its turn is parked until something arrives.
    Waiting,
    /// It would go on by itself, and its policy leaves that to a person.
    Held,
    Quarantined,
    Cancelled,
}

impl Step {
    /// A step that has just been decided.
    #[must_use]
    pub fn new(session: SessionId, seq: Seq, at: Millis, started: Box<StepStarted>) -> Self {
        let calls = match &started.action {
            Action::CallTools(calls) => calls
                .iter()
                .map(|call| Call {
                    session,
                    step: seq,
                    id: call.id.clone(),
                    tool: call.tool.clone(),
                    effect: None,
                    status: CallStatus::Ready,
                    own: false,
                    hosted: false,
                    key: None,
                    runs: 0,
                    result: None,
                })
                .collect(),
            _ => Vec::new(),
        };
        let content = match &started.action {
            Action::CallTools(calls) => calls.iter().cloned().map(Content::ToolCall).collect(),
            _ => Vec::new(),
        };
        Self {
            seq,
            at,
            started,
            content,
            calls,
            ending: None,
            retries: 0,
            retry: None,
            recovered: false,
        }
    }

    /// Whether it asks a model.
    #[must_use]
    pub fn asks_model(&self) -> bool {
        self.model_call().is_some()
    }

    /// The request that it makes to a model.
    #[must_use]
    pub fn model_call(&self) -> Option<&ModelCall> {
        match &self.started.action {
            Action::CallModel(call) => Some(call),
            Action::Compact(compact) => match &compact.summary {
                crate::plugin::Summary::Model(call) => Some(call),
                crate::plugin::Summary::Text(_) => None,
            },
            _ => None,
        }
    }

    /// Whether its model is asked without any tools: at the last step, and for a summary.
    #[must_use]
    pub fn asks_without_tools(&self) -> bool {
        self.started.basis.budget.steps <= 1 || matches!(self.started.action, Action::Compact(_))
    }

    /// Whether a call of this tool is one that the step asked for or left to its model.
    #[must_use]
    pub fn offers(&self, tool: &str) -> bool {
        let Some(call) = self.model_call() else {
            return true;
        };
        let named = match &call.tools {
            ToolSet::All => true,
            ToolSet::Only(names) => names.iter().any(|name| name == tool),
        };
        named && self.lets_call(call)
    }

    fn lets_call(&self, call: &ModelCall) -> bool {
        !self.asks_without_tools() && call.tool_choice != ToolChoice::None
    }

    /// Something may have happened outside that the log does not tell.
    #[must_use]
    pub fn is_in_flight(&self) -> bool {
        (self.asks_model() && self.ending.is_none())
            || self
                .calls
                .iter()
                .any(|call| call.status == CallStatus::Started)
    }

    /// Nothing of its effect is left to be done or recorded.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        (!self.asks_model() || self.ending.is_some())
            && self
                .calls
                .iter()
                .all(|call| call.status == CallStatus::Settled || call.own)
    }

    /// Nothing is left of it but calls that a person was asked about and has not answered.
    #[must_use]
    pub fn is_held(&self, approvals: &BTreeMap<String, Asked>) -> bool {
        let unanswered = |call: &Call| {
            call.status == CallStatus::Held
                && approval::answer(approvals, self.seq, &call.id).is_none()
        };
        !self.is_settled()
            && (!self.asks_model() || self.ending.is_some())
            && self
                .calls
                .iter()
                .filter(|call| call.status != CallStatus::Settled && !call.own)
                .all(unanswered)
    }

    /// The call of this id.
    #[must_use]
    pub fn call(&self, id: &str) -> Option<&Call> {
        self.calls.iter().find(|call| call.id == id)
    }

    /// A call as the model or the runner wrote it.
    #[must_use]
    pub fn tool_call(&self, id: &str) -> Option<&ToolCall> {
        self.content.iter().find_map(|content| match content {
            Content::ToolCall(call) | Content::HostedCall(call) if call.id == id => Some(call),
            _ => None,
        })
    }

    /// The text of the answer so far.
    #[must_use]
    pub fn text(&self) -> String {
        self.content
            .iter()
            .filter_map(|content| {
                if let Content::Text(text) = content {
                    Some(text.as_str())
                } else {
                    None
                }
            })
            .collect()
    }

    /// Takes one piece of the answer in.
    ///
    /// # Errors
    /// The broken rule, for a piece that cannot follow what came before.
    pub fn take(&mut self, session: SessionId, piece: &Piece) -> Result<(), String> {
        match piece {
            Piece::Text(text) => match self.content.last_mut() {
                Some(Content::Text(last)) => last.push_str(text),
                _ => self.content.push(Content::Text(text.clone())),
            },
            Piece::Reasoning(text) => match self.content.last_mut() {
                Some(Content::Reasoning(last)) => last.push_str(text),
                _ => self.content.push(Content::Reasoning(text.clone())),
            },
            Piece::Call { id, tool } => {
                self.open_call(session, id, tool, CallStatus::Streaming, false)?;
                let call = ToolCall {
                    id: id.clone(),
                    tool: tool.clone(),
                    arguments: String::new(),
                };
                self.content.push(Content::ToolCall(call));
            }
            Piece::Arguments { id, text } => {
                self.expect_streaming(id)?;
                let call = self.content.iter_mut().find_map(|content| match content {
                    Content::ToolCall(call) if call.id == *id => Some(call),
                    _ => None,
                });
                call.ok_or_else(|| format!("no call {id}"))?
                    .arguments
                    .push_str(text);
            }
            Piece::CallReady { id } => {
                self.expect_streaming(id)?;
                for call in &mut self.calls {
                    if call.id == *id {
                        call.status = CallStatus::Ready;
                    }
                }
            }
            Piece::HostedCall(call) => {
                self.open_call(session, &call.id, &call.tool, CallStatus::Started, true)?;
                self.content.push(Content::HostedCall(call.clone()));
            }
            Piece::HostedResult(result) => {
                let call = self
                    .calls
                    .iter_mut()
                    .find(|call| call.id == result.call && call.hosted);
                match call {
                    Some(call) if call.status == CallStatus::Started => {
                        call.status = CallStatus::Settled
                    }
                    Some(_) => {
                        return Err(format!("a second result for hosted call {}", result.call));
                    }
                    None => {
                        return Err(format!(
                            "a result for hosted call {}, which nobody made",
                            result.call
                        ));
                    }
                }
                self.content.push(Content::HostedResult(result.clone()));
            }
            Piece::ProviderState(state) => self.content.push(Content::ProviderState(state.clone())),
            Piece::Media(media) => self.content.push(Content::Media(media.clone())),
        }
        Ok(())
    }

    fn open_call(
        &mut self,
        session: SessionId,
        id: &str,
        tool: &str,
        status: CallStatus,
        hosted: bool,
    ) -> Result<(), String> {
        if matches!(self.started.action, Action::Compact(_)) {
            return Err(format!("call {id:?} in the answer to a compaction"));
        }
        if self.call(id).is_some() {
            return Err(format!("call id {id:?} twice in one step"));
        }
        let own = !hosted
            && self.model_call().is_some_and(|call| {
                self.lets_call(call) && call.own_tools.iter().any(|own| own.name == tool)
            });
        self.calls.push(Call {
            session,
            step: self.seq,
            id: id.into(),
            tool: tool.into(),
            effect: None,
            status,
            own,
            hosted,
            key: None,
            runs: 0,
            result: None,
        });
        Ok(())
    }

    fn expect_streaming(&self, id: &str) -> Result<(), String> {
        match self.call(id) {
            Some(call) if call.status == CallStatus::Streaming => Ok(()),
            Some(_) => Err(format!("more of call {id:?} after its end")),
            None => Err(format!("a piece of call {id:?} before its start")),
        }
    }
}

impl Session {
    /// No crash counts any more.
    pub(crate) fn clear_attempts(&mut self) {
        self.attempts = 0;
        self.charges.clear();
    }

    /// Whether it has a parent or children that are to hear of its end.
    #[must_use]
    pub fn has_family(&self) -> bool {
        (self.parent.is_some() && !self.reported) || !self.children.is_empty() || self.is_owing()
    }

    /// The child of this key.
    #[must_use]
    pub fn child(&self, key: &str) -> Option<&Child> {
        self.children.iter().find(|child| child.key == key)
    }

    /// When its wait's timer is due. An imported session's fires where it comes from.
    #[must_use]
    pub fn wake_at(&self) -> Option<Millis> {
        let wait = self.wait.as_ref().filter(|_| self.is_ours());
        wait.and_then(|wait| wait.wake_at)
    }

    /// Whether other sessions are to learn something from this store.
    #[must_use]
    pub fn is_owing(&self) -> bool {
        !self.outbox.is_empty() && self.is_ours()
    }

    /// Neither another store goes on with it, nor a build that knows more of it.
    #[must_use]
    pub fn is_ours(&self) -> bool {
        self.imported().is_none() && self.foreign.is_none()
    }

    /// The origin of a session that is not this store's own.
    #[must_use]
    pub fn imported(&self) -> Option<&str> {
        let origin = self.origin.as_ref().filter(|origin| !origin.adopted);
        origin.map(|origin| origin.name.as_str())
    }

    /// The last seq of the history that is shown.
    #[must_use]
    pub fn shown_through(&self) -> Seq {
        self.revert
            .as_ref()
            .map_or(self.head, |revert| revert.through)
    }

    /// How deep it hangs in its tree; 0 at the root.
    #[must_use]
    pub fn depth(&self) -> u32 {
        self.parent.as_ref().map_or(0, |parent| parent.depth)
    }
}

impl Tail {
    /// Puts the tail together from rows and, where a step is open, the events from that step on.
    ///
    /// # Errors
    /// The broken rule, where events and rows do not fit each other.
    pub fn load(
        session: Session,
        claim: Option<Claim>,
        inputs: Vec<Input>,
        step_events: &[Event],
    ) -> Result<Self, String> {
        let mut tail = Self {
            session,
            claim,
            step: None,
            inputs,
        };
        let Some(open) = tail.session.step else {
            return Ok(tail);
        };
        for event in step_events {
            match &event.body {
                EventBody::StepStarted(started) if event.seq == open => {
                    tail.step = Some(Step::new(tail.session.id, open, event.at, started.clone()));
                }
                body => {
                    if let Some(step) = &mut tail.step {
                        crate::project::fold_step(
                            step,
                            tail.session.id,
                            event.seq,
                            event.at,
                            body,
                        )?;
                    }
                }
            }
        }
        if tail.step.is_none() {
            return Err(format!(
                "step {open} is open and its event is not in the log"
            ));
        }
        Ok(tail)
    }

    /// Whether an execution would find work, by durable rows alone. The one predicate that the list
    /// of due sessions, the claim and the terminal share.
    #[must_use]
    pub fn is_runnable(&self) -> bool {
        let intended = |input: &Input| input.intent;
        let work = match (&self.session.turn, &self.session.wait) {
            (Some(_), None) => true,
            // Calls are held: nothing enters the history before they have their results.
            (Some(_), Some(_)) if self.session.step.is_some() => false,
            (Some(_), Some(_)) => self
                .inputs
                .iter()
                .any(|input| input.intent && input.delivery == Delivery::Steer),
            (None, _) => self.inputs.iter().any(intended),
        };
        self.may_run().is_ok() && work
    }

    /// Whether an execution may start at all.
    ///
    /// # Errors
    /// Why not, in words for people.
    pub fn may_run(&self) -> Result<(), NotRunnable> {
        if self.session.cancelled {
            return Err(NotRunnable::Cancelled);
        }
        if let Some(origin) = self.session.imported() {
            return Err(NotRunnable::Imported(origin.into()));
        }
        if let Some(kind) = &self.session.foreign {
            return Err(NotRunnable::Foreign(kind.clone()));
        }
        if let Some(reason) = &self.session.quarantined {
            return Err(NotRunnable::Quarantined(reason.clone()));
        }
        if let Some(reason) = self.session.held {
            return Err(NotRunnable::Held(reason));
        }
        Ok(())
    }

    /// A control and what goes with it: one compaction is enough for all who have asked for one.
    fn with_alike<'t>(&'t self, control: &'t Input) -> Vec<&'t Input> {
        let compacts = |input: &&Input| matches!(input.content, InputContent::Compact {});
        if !compacts(&control) {
            return vec![control];
        }
        let due = self.inputs.iter().filter(|input| input.intent);
        due.filter(compacts).collect()
    }

    /// The steers to promote at a step boundary: up to the next control, or that control alone.
    #[must_use]
    pub fn due_steers(&self) -> Vec<&Input> {
        let mut due = Vec::new();
        for input in self
            .inputs
            .iter()
            .filter(|input| input.intent && input.delivery == Delivery::Steer)
        {
            if input.content.is_control() {
                if due.is_empty() {
                    return self.with_alike(input);
                }
                break;
            }
            due.push(input);
        }
        due
    }

    /// What to promote when the session would go idle: steers first, else one queued input.
    #[must_use]
    pub fn due_next(&self) -> Vec<&Input> {
        let first = self.inputs.iter().find(|input| input.intent);
        if let Some(control) = first.filter(|input| input.content.is_control()) {
            return self.with_alike(control);
        }
        let steers = self.due_steers();
        if !steers.is_empty() {
            return steers;
        }
        self.inputs
            .iter()
            .find(|input| input.intent)
            .into_iter()
            .collect()
    }

    /// What the session is doing at `now` of the store's clock.
    #[must_use]
    pub fn status(&self, now: Millis) -> Status {
        status(&self.session, self.claim.as_ref(), self.is_runnable(), now)
    }
}

/// What a session is doing, from its rows. Derived from the claim and not from the log's last event.
#[must_use]
pub fn status(session: &Session, claim: Option<&Claim>, runnable: bool, now: Millis) -> Status {
    match claim {
        Some(claim) if claim.expires_at > now => Status::Running,
        Some(_) => Status::Recovering,
        None if session.imported().is_some() => Status::Imported,
        None if session.cancelled => Status::Cancelled,
        None if session.quarantined.is_some() => Status::Quarantined,
        None if session.held.is_some() => Status::Held,
        None if runnable => Status::Due,
        None if session.wait.is_some() => Status::Waiting,
        None => Status::Idle,
    }
}

/// Why a session does not run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotRunnable {
    #[error("the session was cancelled; its history can be read, but it never runs again")]
    Cancelled,
    #[error(
        "the session holds {0}, which this build does not know; run it with the build that wrote it"
    )]
    Foreign(String),
    #[error("the session is quarantined: {0}; look at its log, then resume it")]
    Quarantined(String),
    #[error(
        "the session was imported from {0:?} and belongs there; adopt it to go on with it here"
    )]
    Imported(String),
    #[error("the session is held back: {0}; look at it, then resume it")]
    Held(HeldBack),
    #[error("nothing is pending and no turn is open")]
    NothingToDo,
}
