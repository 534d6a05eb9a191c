//! The shapes of requests and answers, shared with clients in Rust.

use std::collections::BTreeMap;

pub use mainstay_core::bound::Missing;
use mainstay_core::claim::{Claim, Phase};
use mainstay_core::coordinator::{RunOutcome, Terminal};
use mainstay_core::event::{Delivery, Forked, InterruptReason, Parent, TurnOutcome};
use mainstay_core::history::ModelRef;
use mainstay_core::id::{Digest, ExecutionId, InputId, Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Part;
use mainstay_core::nodes::{NodeRow, NodeState};
use mainstay_core::outbox::Child;
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::policy::Resume;
use mainstay_core::port::Listed;
use mainstay_core::tail::{self, Status, Tail, Totals};
use mainstay_core::wait::Waiting;
use serde::{Deserialize, Serialize};

/// A page of a list. The cursors are opaque; a `null` one says that there is nothing that way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
    #[serde(default)]
    pub previous: Option<String>,
}

/// A session as clients see it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Session {
    pub id: SessionId,
    pub agent: String,
    #[serde(default)]
    pub model: Option<ModelRef>,
    #[serde(default)]
    pub title: Option<String>,
    pub status: Status,
    /// Why it runs nothing by itself, where it does not.
    #[serde(default)]
    pub held: Option<String>,
    /// Seq of its newest event.
    pub head: Seq,
    /// Milliseconds since 1970-01-01T00:00Z, as all times here.
    pub created_at: Millis,
    pub updated_at: Millis,
    /// A turn is open.
    pub turn_open: bool,
    /// What its turn is parked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Waiting>,
    /// Requests for approval that nobody has answered.
    #[serde(default)]
    pub open_approvals: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<Parent>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub children: Vec<Child>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub forked: Option<Forked>,
    /// The store that it was imported from, while it is not adopted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub imported_from: Option<String>,
    /// The last seq that is shown, where a revert hides the rest until the next input.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reverted_to: Option<Seq>,
    /// What it may do by itself.
    #[serde(default)]
    pub resume: Resume,
    #[serde(default)]
    pub last_turn: Option<TurnOutcome>,
    pub pending_inputs: u64,
    /// Crashes since something was last settled.
    pub attempts: u32,
    #[serde(default)]
    pub quarantined: Option<String>,
    pub cancelled: bool,
    pub usage: Totals,
    #[serde(default)]
    pub claim: Option<ClaimView>,
    /// Components that its open step is bound to and that are not there. It goes on by itself once they
    /// are. Told of a single session, not in lists.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<Missing>,
}

/// Who runs a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ClaimView {
    pub execution: ExecutionId,
    pub owner: OwnerId,
    pub expires_at: Millis,
    pub phase: Phase,
    #[serde(default)]
    pub step: Option<Seq>,
    pub interrupt: bool,
}

impl From<&Claim> for ClaimView {
    fn from(claim: &Claim) -> Self {
        Self {
            execution: claim.execution,
            owner: claim.owner,
            expires_at: claim.expires_at,
            phase: claim.phase,
            step: claim.step,
            interrupt: claim.interrupt,
        }
    }
}

impl Session {
    /// From the live end, at `now` of the store's clock.
    #[must_use]
    pub fn from_tail(tail: &Tail, now: Millis) -> Self {
        let held = tail.may_run().err().map(|reason| reason.to_string());
        Self::new(
            &tail.session,
            tail.claim.as_ref(),
            tail.status(now),
            held,
            tail.inputs.len() as u64,
        )
    }

    /// From a row of a list.
    #[must_use]
    pub fn from_listed(listed: &Listed, now: Millis) -> Self {
        let status = tail::status(&listed.session, listed.claim.as_ref(), listed.runnable, now);
        let alone = Tail {
            session: listed.session.clone(),
            claim: None,
            step: None,
            inputs: Vec::new(),
        };
        let held = alone.may_run().err().map(|reason| reason.to_string());
        Self::new(
            &listed.session,
            listed.claim.as_ref(),
            status,
            held,
            listed.pending_inputs,
        )
    }

    fn new(
        session: &tail::Session,
        claim: Option<&Claim>,
        status: Status,
        held: Option<String>,
        pending: u64,
    ) -> Self {
        Self {
            id: session.id,
            agent: session.agent.clone(),
            model: session.model.clone(),
            title: session.title.clone(),
            status,
            held,
            head: session.head,
            created_at: session.created_at,
            updated_at: session.updated_at,
            turn_open: session.turn.is_some(),
            wait: session.wait.clone(),
            open_approvals: session
                .arrived
                .approvals
                .values()
                .filter(|asked| asked.answer.is_none())
                .count() as u64,
            parent: session.parent.clone(),
            children: session.children.clone(),
            forked: session.forked,
            imported_from: session.imported().map(str::to_owned),
            reverted_to: session.revert.as_ref().map(|revert| revert.through),
            resume: session.resume,
            last_turn: session.last_turn.clone(),
            pending_inputs: pending,
            attempts: session.attempts,
            quarantined: session.quarantined.clone(),
            cancelled: session.cancelled,
            usage: session.usage,
            claim: claim.map(ClaimView::from),
            missing: Vec::new(),
        }
    }
}

/// `provider/model`, or the two apart.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ModelName {
    Joined(String),
    Apart(ModelRef),
}

impl ModelName {
    /// Both names.
    ///
    /// # Errors
    /// What is wrong with the text.
    pub fn parse(&self) -> Result<ModelRef, String> {
        match self {
            Self::Apart(model) => Ok(model.clone()),
            Self::Joined(text) => match text.split_once('/') {
                Some((provider, model)) if !provider.is_empty() && !model.is_empty() => {
                    Ok(ModelRef {
                        provider: provider.into(),
                        model: model.into(),
                    })
                }
                _ => Err(format!("`{text}` names no model: write `provider/model`")),
            },
        }
    }
}

/// Begins a session.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSession {
    /// Chosen by the caller, so that a retry creates nothing twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// `default` if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub agent: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<ModelName>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<String>,
    /// The agent's policy if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resume: Option<Resume>,
}

/// An input for a session: one of `text`, `parts`, `signal`, `configure` and `compact`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewInput {
    /// Chosen by the caller, so that a retry admits nothing twice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<InputId>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parts: Option<Vec<Part>>,
    /// A control: the model from the next step on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub configure: Option<Configure>,
    /// Something from outside under a name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<NewSignal>,
    /// A control: the context is compacted at the next step boundary.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub compact: bool,
    /// For a prompt `queue` if left out, for everything else `steer`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delivery: Option<Delivery>,
}

/// A signal.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSignal {
    pub name: String,
    /// Any JSON; `null` if left out.
    #[serde(default)]
    pub data: serde_json::Value,
}

/// How to interrupt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewInterrupt {
    /// Pending steers, and a control that stands first, run afterwards.
    #[serde(rename = "continue")]
    pub and_continue: bool,
}

/// A request for approval, and its answer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Approval {
    /// The runner's name for it, unique in the session.
    pub key: String,
    /// Seq of the step that asked.
    pub step: Seq,
    pub at: Millis,
    /// Left out once it is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub question: Option<String>,
    /// Id of the call of a tool that it is about, where the agent's policy asks and not its runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    /// JSON text; a call's arguments, of which a long one is cut.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// `null` while nobody has answered.
    pub approved: Option<bool>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

impl Approval {
    /// The requests of a session, in the order of their asking.
    #[must_use]
    pub fn all(tail: &Tail) -> Vec<Self> {
        let asked = &tail.session.arrived.approvals;
        let mut approvals: Vec<Self> = asked
            .iter()
            .map(|(key, asked)| Self {
                key: key.clone(),
                step: asked.step,
                at: asked.at,
                question: asked
                    .request
                    .as_ref()
                    .map(|request| request.question.clone()),
                call: asked.call.clone(),
                details: asked
                    .request
                    .as_ref()
                    .and_then(|request| request.details.clone()),
                approved: asked.answer.as_ref().map(|answer| answer.approved),
                reason: asked
                    .answer
                    .as_ref()
                    .and_then(|answer| answer.reason.clone()),
            })
            .collect();
        approvals.sort_by_key(|approval| approval.step);
        approvals
    }
}

/// Answers a request for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewAnswer {
    pub approved: bool,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// Begins a session with another's history.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewFork {
    /// Chosen by the caller, so that a retry forks nothing twice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<SessionId>,
    /// The last seq to copy; all that is settled if left out.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub through: Option<Seq>,
}

/// Hides the end of a history.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewRevert {
    /// Seq of the first item that is to go.
    pub before: Seq,
}

/// What a `configure` control changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Configure {
    pub model: ModelName,
}

/// The answer to an admission: the same for every retry, so it says nothing of what became of the
/// input since. That is in the list of inputs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Admitted {
    pub session: SessionId,
    pub input: InputId,
    /// Seq of the admission.
    pub seq: Seq,
    /// Why the session will not run it by itself, where it will not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

/// Changes a pending input.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InputChange {
    pub delivery: Delivery,
}

/// What an interrupt found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Interrupted {
    /// Something was running or open.
    pub was_busy: bool,
}

/// Asks for a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NewRun {
    /// Open a turn even with nothing pending.
    pub force: bool,
}

/// What a run came to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Ran {
    /// False if there was nothing to do.
    pub ran: bool,
    #[serde(default)]
    pub outcome: Option<Outcome>,
}

/// How an execution ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    Succeeded,
    /// The turn waits for something.
    Suspended,
    Failed {
        error: String,
    },
    Interrupted {
        reason: InterruptReason,
    },
    /// Another process took it over; its log tells how it goes on.
    Lost,
}

impl From<RunOutcome> for Ran {
    fn from(outcome: RunOutcome) -> Self {
        let terminal = outcome.terminal.map(|terminal| match terminal {
            Terminal::Succeeded => Outcome::Succeeded,
            Terminal::Suspended => Outcome::Suspended,
            Terminal::Failed(error) => Outcome::Failed { error },
            Terminal::Interrupted(reason) => Outcome::Interrupted { reason },
            Terminal::Lost => Outcome::Lost,
        });
        Self {
            ran: outcome.ran,
            outcome: terminal,
        }
    }
}

/// The marker in a stream: every event up to this seq has been given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    pub seq: Seq,
}

/// A component and the names that lead to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plugin {
    #[serde(flatten)]
    pub info: PluginInfo,
    pub aliases: Vec<String>,
    /// By alias: the artifact that it was loaded from, with the digest that its tag had then
    /// (`oci://host/repository:tag@sha256:…`). An alias that was given a file is not in here.
    #[serde(default)]
    pub sources: BTreeMap<String, String>,
}

/// Loads a plugin from a registry.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewPlugin {
    /// `oci://host/repository:tag` or `oci://host/repository@sha256:…`.
    pub reference: String,
    /// The plugin's own name if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub alias: Option<String>,
}

/// Points a name at a component.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewAlias {
    pub digest: String,
}

/// Asks for the removal of what nothing needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Collect {
    /// Only tell what would go.
    #[serde(default)]
    pub dry_run: bool,
    /// What was in use less than so many milliseconds ago stays. One hour if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keep_ms: Option<u64>,
    /// Sessions that nobody has used for so many milliseconds go. As configured if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sessions_ms: Option<u64>,
    /// Bodies of events that are older than so many milliseconds go. As configured if left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bodies_ms: Option<u64>,
}

/// What was removed, or would be.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    pub dry_run: bool,
    pub components: Vec<CollectedComponent>,
    /// Files of compiled code.
    pub code_files: u64,
    pub code_bytes: u64,
    /// Bodies of media and of long outputs.
    pub blobs: u64,
    pub blob_bytes: u64,
    /// Sessions past their retention.
    pub sessions: u64,
    /// Events whose bodies became stubs.
    pub bodies: u64,
    pub body_bytes: u64,
    /// Rows of nodes that ended long ago.
    #[serde(default)]
    pub nodes: u64,
    /// All of it but sessions and nodes.
    pub bytes: u64,
}

/// A component that nothing needs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectedComponent {
    pub digest: Digest,
    pub kind: Kind,
    pub name: String,
    pub version: String,
    pub bytes: u64,
}

/// A node: one start of one process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// The owner that its claims name.
    pub id: OwnerId,
    pub state: NodeState,
    /// Of its build.
    pub version: String,
    /// Where its server answers.
    #[serde(default)]
    pub address: Option<String>,
    /// What its machine is called.
    #[serde(default)]
    pub host: Option<String>,
    #[serde(default)]
    pub pid: Option<u32>,
    /// Executions that it takes at most.
    pub capacity: u32,
    /// Executions that it had at its last renewal.
    pub load: u32,
    /// Claims that name it now, expired ones too.
    pub claims: u64,
    pub started_at: Millis,
    /// Its last renewal.
    pub seen_at: Millis,
    /// Without another renewal it is gone then.
    pub expires_at: Millis,
    #[serde(default)]
    pub stopped_at: Option<Millis>,
}

impl Node {
    /// From its row, at `now` of the store's clock.
    #[must_use]
    pub fn new(row: &NodeRow, now: Millis) -> Self {
        let identity = &row.identity;
        Self {
            id: identity.owner,
            state: row.state(now),
            version: identity.version.clone(),
            address: identity.address.clone(),
            host: identity.host.clone(),
            pid: identity.pid,
            capacity: row.capacity,
            load: row.load,
            claims: row.claims,
            started_at: row.started_at,
            seen_at: row.seen_at,
            expires_at: row.expires_at,
            stopped_at: row.stopped_at,
        }
    }
}

/// How far behind the host is.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Health {
    pub status: HealthStatus,
    /// This process start.
    pub owner: OwnerId,
    pub version: String,
    /// Head minus applied seq. Projections are written with their events, so it stays 0.
    pub projection_lag: u64,
    /// Claims past their expiry that no recovery has settled.
    pub expired_claims: u64,
    /// Milliseconds since the oldest of them expired.
    pub oldest_expired_claim_ms: Option<u64>,
    /// Runnable sessions that no execution has taken.
    pub due_sessions: u64,
    /// Milliseconds since the oldest of them last changed.
    pub oldest_due_wake_ms: Option<u64>,
    /// Milliseconds since this node's recovery loop last was through with a look for work.
    pub last_look_ms: u64,
    /// Its last renewal was confirmed.
    pub renews: bool,
    /// It has no free place.
    pub full: bool,
    /// It takes no more.
    pub draining: bool,
    /// What is wrong, in words.
    #[serde(default)]
    pub detail: Option<String>,
}

/// Good or bad.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HealthStatus {
    Ok,
    Lagging,
}

/// The body of an error, after RFC 9457.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProblemBody {
    #[serde(rename = "type")]
    pub kind: String,
    pub title: String,
    pub status: u16,
    /// What happened and what to do.
    pub detail: String,
}

/// What the types of problems begin with.
pub const PROBLEM: &str = "urn:mainstay:problem:";
