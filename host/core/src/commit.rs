//! The one commit path. A write is one [`Commit`]; [`apply`] judges it against the session's tail as
//! read in the same transaction and says what to store. A store adds atomicity and nothing else.

mod append;
mod claims;
mod inputs;
mod judge;
mod work;

pub use judge::apply;

use crate::claim::{Claim, Fence};
use crate::edit::Fork;
use crate::event::{
    Delivery, Event, EventBody, EventDraft, InputContent, InterruptReason, Record, Reverted,
    SessionCreated,
};
use crate::history::Approval;
use crate::id::{EventId, ExecutionId, InputId, Millis, OwnerId, Seq, SessionId};
use crate::outbox::Notice;
use crate::policy::HeldBack;
use crate::project::RuleBroken;
use crate::recovery::{self, Counting};
use crate::replay::{Replay, ReplayError, Replayed};
use crate::tail::{Changes, Input, InputStatus, NotRunnable, Scope, Tail};

/// One write to one session.
#[derive(Clone, Debug, PartialEq)]
pub struct Commit {
    pub session: SessionId,
    /// The writer's time, given to the events.
    pub at: Millis,
    pub write: Write,
}

/// What is written, and by what right.
#[derive(Clone, Debug, PartialEq)]
pub enum Write {
    /// Begins a session. Creating it again with the same content answers like the first time.
    Create(SessionCreated),
    /// Accepts an input, durable before it is answered, together with the intent to run it.
    Admit {
        input: InputId,
        delivery: Delivery,
        content: InputContent,
    },
    CancelInput {
        input: InputId,
    },
    Redeliver {
        input: InputId,
        delivery: Delivery,
    },
    /// Sets the intent of all that is pending in the scope.
    Wake {
        scope: Scope,
    },
    /// Lifts a quarantine or a hold, counts attempts anew and wakes.
    Release,
    /// Answers a request for approval. The first answer stands.
    Answer(Approval),
    /// Turns the timer of a wait into an input, once it is due.
    Fire,
    /// Final: interrupts what runs, and nothing of the session or its children runs ever again.
    Cancel,
    /// Takes another store's events as they are.
    Replay(Replay),
    /// Makes an imported session this store's own: settles what is open and wakes.
    Adopt,
    /// Begins a session with a copy of another's history.
    Fork(Fork),
    /// Hides what stands behind a seq, until the next input makes that final.
    Revert {
        revert: Reverted,
        /// The head of the history that it was made of: refused if that is another by now.
        head: Seq,
    },
    /// Shows again what a revert hides.
    ClearRevert,
    /// Takes a notice out of the outbox, if it is there.
    Deliver {
        notice: Notice,
    },
    /// Takes the session for an execution, if nobody has it and it is runnable in this transaction.
    Claim {
        execution: ExecutionId,
        owner: OwnerId,
        lease_ms: u64,
        forced: Option<u32>,
        resumed: bool,
        /// No client asks for it now: the session's policy may hold it back instead.
        by_itself: bool,
    },
    /// What an execution does under its claim.
    Append(Append),
    /// Stops what runs: clears the intent of what is pending now, marks a claim or closes the turn.
    Interrupt {
        /// The parent's interrupt that it follows from; one is followed once.
        cause: Option<EventId>,
        /// Steers, and a control that stands first, keep their intent and run after the cleanup.
        and_continue: bool,
    },
    /// Settles one expired claim, as seen by the scan that listed it.
    Recover {
        seen: Fence,
        counting: Counting,
    },
    /// Gives an expired claim up that no recovery can settle, as seen by the scan that listed it.
    Quarantine {
        seen: Fence,
        reason: String,
    },
    /// Takes a session over: its claim expires now, so that another node or the next start goes on.
    Expire {
        seen: Fence,
    },
}

impl Write {
    /// Whether it only keeps, changes or takes back what is pending.
    fn is_of_inputs(&self) -> bool {
        matches!(
            self,
            Self::Admit { .. }
                | Self::CancelInput { .. }
                | Self::Redeliver { .. }
                | Self::Wake { .. }
        )
    }
}

/// Events of an execution.
#[derive(Clone, Debug, PartialEq)]
pub struct Append {
    pub fence: Fence,
    /// Refused if the session's head is another by now.
    pub expected_head: Option<Seq>,
    /// It promotes, begins an effect or ends of its own accord: refused once an interrupt is marked.
    pub begins: bool,
    pub events: Vec<EventDraft>,
    /// The terminal ends the claim, unless it is a shutdown's outside `safe`.
    pub end: Option<End>,
}

impl Append {
    /// Its last event. An execution has one terminal, so a retry brings it under the same id.
    fn terminal(&self) -> Option<EventDraft> {
        let execution = self.fence.execution;
        let body = match self.end.as_ref()? {
            End::Succeeded => EventBody::ExecutionSucceeded { execution },
            End::Suspended => EventBody::ExecutionSuspended { execution },
            End::Failed { error } => EventBody::ExecutionFailed {
                execution,
                error: error.clone(),
            },
            End::Interrupted { reason } => EventBody::ExecutionInterrupted {
                execution,
                reason: *reason,
            },
        };
        Some(EventDraft {
            id: EventId::derived(execution.0, "terminal"),
            body,
        })
    }
}

/// How an execution ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Refused with [`Refused::NotIdle`] if there is something to run.
    Succeeded,
    /// The turn waits. Refused like [`End::Succeeded`].
    Suspended,
    Failed {
        error: String,
    },
    Interrupted {
        reason: InterruptReason,
    },
}

/// What a store is to make durable, in one transaction.
#[derive(Clone, Debug, PartialEq)]
pub struct Applied {
    /// In order; empty where only a claim or intents changed.
    pub events: Vec<Event>,
    /// The tail after it, claim included.
    pub tail: Tail,
    pub changes: Changes,
    pub reply: Reply,
}

/// What the writer is told.
#[derive(Clone, Debug, PartialEq)]
pub enum Reply {
    Done,
    /// The session was there already, equal.
    Existed,
    Admitted(Admission),
    Claimed(Claim),
    /// Whether something ran or was open.
    Interrupted {
        was_busy: bool,
    },
    /// Not claimed: its policy leaves that to a person.
    Held(HeldBack),
    Recovered(recovery::Outcome),
    Replayed(Replayed),
    /// Held already under the same ids; `first` is the seq of the first of them.
    Duplicate {
        first: Seq,
    },
}

/// What an admission answers, the first time and ever after.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Admission {
    pub input: InputId,
    pub seq: Seq,
    pub status: InputStatus,
    /// Why the session will not run it now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub held: Option<String>,
}

/// Most bytes of a new session's title. Histories from elsewhere keep longer ones.
pub const TITLE: usize = 1000;

/// Why nothing was stored.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("session {0} was not found")]
    NotFound(SessionId),
    /// The claim expired or was replaced. Stop: retrying cannot succeed.
    #[error("execution {execution} lost its claim on session {session}")]
    Lost {
        session: SessionId,
        execution: ExecutionId,
    },
    /// An interrupt or cancel is marked. Clean up.
    #[error("execution {execution} is interrupted")]
    Interrupted { execution: ExecutionId },
    #[error("expected head {expected}, found {actual}")]
    HeadMoved { expected: Seq, actual: Seq },
    /// There is more to run before the execution may end.
    #[error("there is work left")]
    NotIdle,
    #[error("session {0} is claimed already")]
    Claimed(SessionId),
    #[error(transparent)]
    NotRunnable(#[from] NotRunnable),
    #[error("session {0} exists with another agent, title, model or resume policy")]
    SessionConflict(SessionId),
    #[error("the title has {bytes} bytes, and at most {TITLE} are taken")]
    TitleTooLong { bytes: usize },
    #[error("input {input} is held by {holder}")]
    InputConflict { input: InputId, holder: String },
    #[error("input {0} was not found in this session")]
    InputNotFound(InputId),
    #[error("input {input} is {status}: it can no longer be changed")]
    InputSettled {
        input: InputId,
        status: &'static str,
    },
    /// Another store's session under this id, or this store's own.
    #[error("session {session} is not a copy from {offered:?}: {}", holder(.held.as_deref()))]
    OtherOrigin {
        session: SessionId,
        held: Option<String>,
        offered: String,
    },
    /// Nothing of an import was taken.
    #[error(transparent)]
    Replay(#[from] ReplayError),
    #[error("session {0} runs or waits; interrupt it first")]
    Busy(SessionId),
    #[error("session {0} owes another session a notice that it does not take yet")]
    Owing(SessionId),
    #[error("session {0} has nothing behind that place")]
    NothingToRevert(SessionId),
    #[error("session {0} is not reverted")]
    NotReverted(SessionId),
    #[error("session {0} has no messages to fork")]
    NothingToFork(SessionId),
    #[error("no approval {key:?} is asked for in this session")]
    ApprovalNotFound { key: String },
    #[error("approval {key:?} was answered already: {}", if *approved { "approved" } else { "denied" })]
    ApprovalAnswered { key: String, approved: bool },
    #[error("event id {id} is held by seq {seq} with other content")]
    EventConflict { id: EventId, seq: Seq },
    #[error("session {0} was cancelled")]
    Cancelled(SessionId),
    /// The claim that a recovery or take-over saw is gone, renewed or another's.
    #[error("the claim of session {0} is not the one that was seen, or has not expired")]
    ClaimChanged(SessionId),
    #[error(transparent)]
    Rule(#[from] RuleBroken),
}

/// What a store looks up beside the tail, by [`Commit::input`] and [`Commit::event_ids`].
#[derive(Clone, Debug, Default)]
pub struct Known {
    /// The input of this id, whichever session holds it.
    pub input: Option<Input>,
    /// Events that bear one of the ids.
    pub events: Vec<Record>,
    /// Events of the session in [`Commit::replayed`].
    pub held: Vec<Record>,
    /// Inputs of [`Commit::replayed_inputs`], whichever sessions hold them.
    pub inputs: Vec<Input>,
}

fn holder(origin: Option<&str>) -> String {
    match origin {
        Some(origin) => format!("it comes from {origin:?}"),
        None => "it is this store's own".into(),
    }
}

impl Commit {
    /// The input that the store is to look up.
    #[must_use]
    pub fn input(&self) -> Option<InputId> {
        match &self.write {
            Write::Admit { input, .. }
            | Write::CancelInput { input }
            | Write::Redeliver { input, .. } => Some(*input),
            _ => None,
        }
    }

    /// Ids whose events the store is to look up: those that a retry may bring again.
    #[must_use]
    pub fn event_ids(&self) -> Vec<EventId> {
        match &self.write {
            Write::Append(append) => {
                let events = append.events.iter().map(|draft| draft.id);
                let terminal = append.terminal().map(|terminal| terminal.id);
                events.chain(terminal).collect()
            }
            Write::Replay(replay) => replay.records.iter().map(|record| record.id).collect(),
            _ => Vec::new(),
        }
    }

    /// Inputs that an import admits, which the store is to look up.
    #[must_use]
    pub fn replayed_inputs(&self) -> Vec<InputId> {
        let Write::Replay(replay) = &self.write else {
            return Vec::new();
        };
        replay.records.iter().filter_map(Record::admits).collect()
    }

    /// Seqs, first and last, whose events the store is to look up in this session.
    #[must_use]
    pub fn replayed(&self) -> Option<(Seq, Seq)> {
        let Write::Replay(replay) = &self.write else {
            return None;
        };
        let seqs = replay.records.iter().map(|record| record.seq);
        Some((seqs.clone().min()?, seqs.max()?))
    }
}
