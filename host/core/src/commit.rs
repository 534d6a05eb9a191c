//! The one commit path. A write is one [`Commit`]; [`apply`] judges it against the session's tail as
//! read in the same transaction and says what to store. A store adds atomicity and nothing else.

use crate::claim::{Claim, Fence, Phase};
use crate::edit::Fork;
use crate::event::Reverted;
use crate::event::{
    Delivery, Event, EventBody, EventDraft, InputContent, InterruptReason, Record, SessionCreated,
    TurnOutcome,
};
use crate::history::Approval;
use crate::id::{EventId, ExecutionId, InputId, Millis, OwnerId, RecoveryId, Seq, SessionId};
use crate::outbox::Notice;
use crate::policy::HeldBack;
use crate::project::{self, RuleBroken};
use crate::recovery::{self, Counting};
use crate::replay::{Replay, ReplayError, Replayed};
use crate::stub;
use crate::tail::{Changes, Input, InputStatus, NotRunnable, Scope, Tail};
use crate::wait;

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
    Revert(Reverted),
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

/// Judges a commit. `now` is the store's clock.
///
/// # Errors
/// [`Refused`]; then nothing is to be stored.
pub fn apply(
    tail: Option<&Tail>,
    commit: &Commit,
    known: &Known,
    now: Millis,
) -> Result<Applied, Refused> {
    let session = commit.session;
    match &commit.write {
        Write::Create(created) => return create(tail, commit, created),
        Write::Replay(replay) => return crate::replay::replay(tail, session, replay, known),
        Write::Fork(fork) => return crate::edit::fork(tail, commit, fork),
        _ => {}
    }
    let tail = tail.ok_or(Refused::NotFound(session))?;
    let mut work = Work {
        tail: tail.clone(),
        events: Vec::new(),
        changes: Changes::default(),
        at: commit.at.max(tail.session.updated_at),
        execution: None,
        recovery: None,
    };
    let reply = match &commit.write {
        Write::Create(_) | Write::Replay(_) | Write::Fork(_) => unreachable!("handled above"),
        Write::Adopt => {
            if work.tail.session.imported().is_some() {
                work.push(EventBody::SessionAdopted {})?;
                if let Some((claim, events)) = recovery::adopt(&work.tail, now) {
                    work.recovery = Some(RecoveryId::derived(claim.execution.0, "recovery"));
                    for body in events {
                        work.push(body)?;
                    }
                    work.recovery = None;
                }
                work.wake(Scope::All)?;
            }
            Reply::Done
        }
        _ if work.tail.session.imported().is_some() => {
            work.tail.may_run()?;
            Reply::Done
        }
        // What this build does not know may change what anything else means. Inputs are only kept.
        write if work.tail.session.foreign.is_some() && !write.is_of_inputs() => {
            let foreign = work.tail.session.foreign.take().unwrap_or_default();
            return Err(NotRunnable::Foreign(foreign).into());
        }
        Write::Revert(_) | Write::ClearRevert if work.tail.session.cancelled => {
            return Err(Refused::Cancelled(session));
        }
        Write::Revert(revert) => {
            if work.tail.claim.is_some() || work.tail.session.turn.is_some() {
                return Err(Refused::Busy(session));
            }
            if revert.through >= work.tail.session.shown_through() {
                return Err(Refused::NothingToRevert(session));
            }
            work.push(EventBody::HistoryReverted(revert.clone()))?;
            Reply::Done
        }
        Write::ClearRevert => {
            if work.tail.session.revert.is_none() {
                return Err(Refused::NotReverted(session));
            }
            work.push(EventBody::RevertCleared {})?;
            Reply::Done
        }
        Write::Admit {
            input,
            delivery,
            content,
        } => admit(&mut work, known, *input, *delivery, content)?,
        Write::CancelInput { input } => {
            let found = pending(&work.tail, known, *input)?;
            // The first answer stands.
            if matches!(found.content, InputContent::Approval(_)) {
                return Err(given(*input));
            }
            work.push(EventBody::InputCancelled { input: *input })?;
            Reply::Done
        }
        Write::Redeliver { input, delivery } => {
            let found = pending(&work.tail, known, *input)?;
            // It may have started its call already.
            if let InputContent::Approval(answer) = &found.content
                && wait::is_for_a_call(&work.tail.session, answer)
            {
                return Err(given(*input));
            }
            work.push(EventBody::InputRedelivered {
                input: *input,
                delivery: *delivery,
            })?;
            if *delivery == Delivery::Steer && work.tail.may_run().is_ok() {
                work.wake(Scope::Steers)?;
            }
            Reply::Done
        }
        Write::Wake { scope } => {
            if work.tail.may_run().is_ok() {
                work.wake(*scope)?;
            }
            Reply::Done
        }
        Write::Release => {
            if work.tail.session.cancelled {
                return Err(NotRunnable::Cancelled.into());
            }
            if work.tail.session.quarantined.is_some() || work.tail.session.held.is_some() {
                work.push(EventBody::SessionReleased {})?;
            }
            work.wake(Scope::All)?;
            Reply::Done
        }
        Write::Answer(answer) => answer_approval(&mut work, answer)?,
        Write::Fire => {
            let wait = work.tail.session.wait.as_ref();
            if let Some((step, at)) = wait.and_then(|wait| Some((wait.step, wait.wake_at?)))
                && at <= now
                && !work.tail.session.cancelled
            {
                work.push(EventBody::InputAdmitted {
                    input: wait::timer_input(session, step),
                    delivery: Delivery::Steer,
                    content: InputContent::Timer { at },
                })?;
            }
            Reply::Done
        }
        Write::Cancel => {
            let was_busy = work.tail.claim.is_some() || work.tail.session.turn.is_some();
            if !work.tail.session.cancelled {
                work.push(EventBody::SessionCancelled {})?;
                if work.tail.claim.is_none() {
                    for body in recovery::close_turn(&work.tail, TurnOutcome::Interrupted) {
                        work.push(body)?;
                    }
                }
            }
            Reply::Interrupted { was_busy }
        }
        Write::Deliver { notice } => {
            if work.tail.session.outbox.contains(notice) {
                let notice = notice.clone();
                work.push(EventBody::NoticeDelivered { notice })?;
            }
            Reply::Done
        }
        Write::Claim {
            execution,
            owner,
            lease_ms,
            forced,
            resumed,
            by_itself,
        } => {
            if work.tail.claim.is_some() {
                return Err(Refused::Claimed(session));
            }
            work.tail.may_run()?;
            if forced.is_none() && !work.tail.is_runnable() {
                return Err(NotRunnable::NothingToDo.into());
            }
            if *by_itself
                && let Some(reason) = work.tail.session.resume.holds(&work.tail.session, now)
            {
                // A client that wrote just now is about to wake it: that is no start by itself.
                if now.saturating_sub(work.tail.session.active_at) <= *lease_ms {
                    return Err(NotRunnable::NothingToDo.into());
                }
                work.push(EventBody::SessionHeld { reason })?;
                return Ok(work.finish(Reply::Held(reason)));
            }
            // What was admitted before the revert enters the history behind it.
            if work.tail.session.revert.is_some() {
                work.push(EventBody::RevertCommitted {})?;
            }
            work.tail.claim = Some(Claim {
                session,
                execution: *execution,
                owner: *owner,
                expires_at: now.saturating_add(*lease_ms),
                phase: Phase::Ready,
                step: work.tail.session.step,
                interrupt: false,
                ended: false,
                resumed: *resumed,
                superseded: false,
            });
            work.execution = Some(*execution);
            work.push(EventBody::ExecutionStarted {
                execution: *execution,
                owner: *owner,
            })?;
            if let Some(steps) = forced
                && work.tail.session.turn.is_none()
                && !work.tail.inputs.iter().any(|input| input.intent)
            {
                work.push(EventBody::TurnStarted { steps: *steps })?;
            }
            Reply::Claimed(work.tail.claim.clone().expect("set above"))
        }
        Write::Append(append) => append_events(&mut work, known, append, now)?,
        Write::Interrupt {
            cause,
            and_continue,
        } => interrupt(&mut work, *cause, *and_continue)?,
        Write::Quarantine { seen, reason } => {
            let claim = expired(&work.tail, *seen, now)?.clone();
            work.recovery = Some(RecoveryId::derived(claim.execution.0, "recovery"));
            let events = recovery::give_up(&work.tail, &claim, reason);
            for (n, body) in events.into_iter().enumerate() {
                let id = EventId::derived(claim.execution.0, &format!("recovery/{n}"));
                work.push_as(id, body)?;
            }
            work.tail.claim = None;
            Reply::Recovered(recovery::Outcome::Quarantined {
                reason: reason.clone(),
            })
        }
        Write::Recover { seen, counting } => {
            let claim = expired(&work.tail, *seen, now)?.clone();
            let plan = recovery::plan(&work.tail, &claim, counting, now);
            work.recovery = Some(RecoveryId::derived(claim.execution.0, "recovery"));
            for (n, body) in plan.events.iter().enumerate() {
                work.push_as(
                    EventId::derived(claim.execution.0, &format!("recovery/{n}")),
                    body.clone(),
                )?;
            }
            work.tail.claim = None;
            Reply::Recovered(plan.outcome)
        }
        Write::Expire { seen } => {
            let claim = work.tail.claim.as_mut();
            let claim = claim
                .filter(|claim| claim.execution == seen.execution && claim.owner == seen.owner);
            let claim = claim.ok_or(Refused::ClaimChanged(session))?;
            claim.expires_at = claim.expires_at.min(now);
            claim.superseded = true;
            Reply::Done
        }
    };
    work.drop_answers()?;
    Ok(work.finish(reply))
}

/// A commit in the making.
struct Work {
    tail: Tail,
    events: Vec<Event>,
    changes: Changes,
    at: Millis,
    execution: Option<ExecutionId>,
    recovery: Option<RecoveryId>,
}

impl Work {
    fn push(&mut self, body: EventBody) -> Result<(), RuleBroken> {
        self.push_as(EventId::new(), body)
    }

    fn push_as(&mut self, id: EventId, body: EventBody) -> Result<(), RuleBroken> {
        let event = Event {
            session: self.tail.session.id,
            seq: self.tail.session.head + 1,
            id,
            at: self.at,
            execution: self.execution,
            recovery: self.recovery,
            body,
            compacted: None,
        };
        project::project(&mut self.tail, &event, &mut self.changes)?;
        self.events.push(event);
        Ok(())
    }

    /// An event only where it changes something.
    fn wake(&mut self, scope: Scope) -> Result<(), RuleBroken> {
        if project::woken(&mut self.tail.inputs, scope)
            .next()
            .is_some()
        {
            self.push(EventBody::InputsWoken { scope })?;
        }
        Ok(())
    }

    /// Once a turn is over, an answer about a call of it has nothing to act on.
    fn drop_answers(&mut self) -> Result<(), RuleBroken> {
        let session = &self.tail.session;
        if session.turn.is_some() || session.foreign.is_some() {
            return Ok(());
        }
        let unused = |input: &&Input| {
            matches!(&input.content, InputContent::Approval(answer)
                if wait::is_for_a_call(session, answer))
        };
        let unused: Vec<InputId> = self
            .tail
            .inputs
            .iter()
            .filter(unused)
            .map(|i| i.id)
            .collect();
        // They are the host's, and come behind the terminal.
        self.execution = None;
        for input in unused {
            self.push(EventBody::InputCancelled { input })?;
        }
        Ok(())
    }

    fn finish(mut self, reply: Reply) -> Applied {
        // Of a session that is not wholly known, the claim stays as it was found.
        if self.tail.session.foreign.is_none()
            && let Some(claim) = self.tail.claim.take()
        {
            self.tail.claim = Some(project::claim_after(&self.tail, claim));
        }
        let reply = match (reply, &self.tail.claim) {
            (Reply::Claimed(_), Some(claim)) => Reply::Claimed(claim.clone()),
            (reply, _) => reply,
        };
        Applied {
            events: self.events,
            tail: self.tail,
            changes: self.changes,
            reply,
        }
    }
}

/// The claim that a scan saw, if it is still that one and still expired.
fn expired(tail: &Tail, seen: Fence, now: Millis) -> Result<&Claim, Refused> {
    let claim = tail.claim.as_ref().filter(|claim| {
        claim.execution == seen.execution && claim.owner == seen.owner && claim.expires_at <= now
    });
    claim.ok_or(Refused::ClaimChanged(tail.session.id))
}

fn create(
    tail: Option<&Tail>,
    commit: &Commit,
    created: &SessionCreated,
) -> Result<Applied, Refused> {
    if let Some(tail) = tail {
        let same = tail.session.agent == created.agent
            && tail.session.title == created.title
            && tail.session.parent == created.parent;
        if !same {
            return Err(Refused::SessionConflict(commit.session));
        }
        return Ok(Applied {
            events: Vec::new(),
            tail: tail.clone(),
            changes: Changes::default(),
            reply: Reply::Existed,
        });
    }
    let event = Event {
        session: commit.session,
        seq: 1,
        id: EventId::new(),
        at: commit.at,
        execution: None,
        recovery: None,
        body: EventBody::SessionCreated(created.clone()),
        compacted: None,
    };
    let tail = project::begin(&event).expect("a creation begins a tail");
    Ok(Applied {
        events: vec![event],
        tail,
        changes: Changes::default(),
        reply: Reply::Done,
    })
}

fn admit(
    work: &mut Work,
    known: &Known,
    input: InputId,
    delivery: Delivery,
    content: &InputContent,
) -> Result<Reply, Refused> {
    let held = work.tail.may_run().err().map(|reason| reason.to_string());
    // One that is pending is in the tail, for a store that has not looked it up.
    let mut pending = work.tail.inputs.iter();
    let first = known.input.as_ref();
    if let Some(first) = first.or_else(|| pending.find(|pending| pending.id == input)) {
        if first.session != work.tail.session.id {
            return Err(Refused::InputConflict {
                input,
                holder: format!("session {}", first.session),
            });
        }
        if first.content.kind() != content.kind() {
            return Err(Refused::InputConflict {
                input,
                holder: format!("a {}", first.content.kind()),
            });
        }
        return Ok(Reply::Admitted(Admission {
            input,
            seq: first.seq,
            status: first.status,
            held,
        }));
    }
    if work.tail.session.cancelled {
        return Err(Refused::Cancelled(work.tail.session.id));
    }
    // One compaction is enough: who asks while one is pending gets that one.
    if matches!(content, InputContent::Compact {})
        && let Some(first) = work
            .tail
            .inputs
            .iter()
            .find(|pending| matches!(pending.content, InputContent::Compact {}))
    {
        return Ok(Reply::Admitted(Admission {
            input: first.id,
            seq: first.seq,
            status: first.status,
            held,
        }));
    }
    if work.tail.session.revert.is_some() {
        work.push(EventBody::RevertCommitted {})?;
    }
    work.push(EventBody::InputAdmitted {
        input,
        delivery,
        content: content.clone(),
    })?;
    // Before the wake, which may be an event of its own.
    let seq = work.tail.session.head;
    if held.is_none() {
        work.wake(if delivery == Delivery::Steer {
            Scope::Steers
        } else {
            Scope::All
        })?;
    }
    Ok(Reply::Admitted(Admission {
        input,
        seq,
        status: InputStatus::Pending,
        held,
    }))
}

fn pending<'t>(tail: &'t Tail, known: &Known, input: InputId) -> Result<&'t Input, Refused> {
    if let Some(found) = tail.inputs.iter().find(|pending| pending.id == input) {
        return Ok(found);
    }
    match &known.input {
        Some(other) if other.session == tail.session.id => Err(Refused::InputSettled {
            input,
            status: match other.status {
                InputStatus::Pending => "pending",
                InputStatus::Promoted => "promoted",
                InputStatus::Cancelled => "cancelled",
            },
        }),
        _ => Err(Refused::InputNotFound(input)),
    }
}

fn given(input: InputId) -> Refused {
    Refused::InputSettled {
        input,
        status: "the answer to an approval",
    }
}

fn append_events(
    work: &mut Work,
    known: &Known,
    append: &Append,
    now: Millis,
) -> Result<Reply, Refused> {
    let session = work.tail.session.id;
    let execution = append.fence.execution;
    let terminal = append.terminal();
    let drafts = append.events.len() + usize::from(terminal.is_some());
    if drafts > 0 && known.events.len() == drafts {
        return duplicate(session, append, terminal.as_ref(), known);
    }
    // An execution that has ended otherwise has no claim any more.
    let ended = |held: &&Record| terminal.as_ref().is_some_and(|one| one.id == held.id);
    if let Some(held) = known.events.iter().find(|held| !ended(held)) {
        return Err(Refused::EventConflict {
            id: held.id,
            seq: held.seq,
        });
    }
    let claim = work
        .tail
        .claim
        .as_ref()
        .filter(|claim| claim.is_held_by(append.fence, now) && !claim.ended);
    let claim = claim.ok_or(Refused::Lost { session, execution })?;
    if append.begins && claim.interrupt {
        return Err(Refused::Interrupted { execution });
    }
    if let Some(expected) = append.expected_head
        && expected != work.tail.session.head
    {
        return Err(Refused::HeadMoved {
            expected,
            actual: work.tail.session.head,
        });
    }
    work.execution = Some(execution);
    for draft in &append.events {
        if let EventBody::InputPromoted { input } = &draft.body {
            let promoted = work.tail.inputs.iter().find(|pending| pending.id == *input);
            if !promoted.is_some_and(|pending| pending.intent) {
                return Err(Refused::HeadMoved {
                    expected: append.expected_head.unwrap_or(0),
                    actual: work.tail.session.head,
                });
            }
        }
        work.push_as(draft.id, draft.body.clone())?;
    }
    let Some(end) = &append.end else {
        return Ok(Reply::Done);
    };
    if matches!(end, End::Succeeded | End::Suspended) && work.tail.is_runnable() {
        return Err(Refused::NotIdle);
    }
    let phase = crate::claim::phase(&work.tail, claim_phase(work));
    let keep = matches!(
        end,
        End::Interrupted {
            reason: InterruptReason::Shutdown
        }
    ) && phase != Phase::Safe;
    if let Some(terminal) = terminal {
        work.push_as(terminal.id, terminal.body)?;
    }
    if keep {
        if let Some(claim) = &mut work.tail.claim {
            claim.expires_at = now;
        }
    } else {
        work.tail.claim = None;
    }
    Ok(Reply::Done)
}

fn claim_phase(work: &Work) -> Phase {
    work.tail
        .claim
        .as_ref()
        .map_or(Phase::Ready, |claim| claim.phase)
}

/// All ids are held: the same commit again, or another under the same ids.
fn duplicate(
    session: SessionId,
    append: &Append,
    terminal: Option<&EventDraft>,
    known: &Known,
) -> Result<Reply, Refused> {
    let mut first = Seq::MAX;
    for draft in append.events.iter().chain(terminal) {
        let held = known
            .events
            .iter()
            .find(|record| record.id == draft.id)
            .expect("looked up by these ids");
        let (kind, version, data) = draft.body.encode();
        if held.session != session
            || (&held.kind, held.version) != (&kind, version)
            || !stub::is_of(held, &data)
        {
            if terminal.is_some_and(|terminal| terminal.id == draft.id) {
                let execution = append.fence.execution;
                return Err(Refused::Lost { session, execution });
            }
            return Err(Refused::EventConflict {
                id: draft.id,
                seq: held.seq,
            });
        }
        first = first.min(held.seq);
    }
    Ok(Reply::Duplicate { first })
}

fn interrupt(
    work: &mut Work,
    cause: Option<EventId>,
    and_continue: bool,
) -> Result<Reply, Refused> {
    let open = work.tail.session.turn.is_some();
    let was_busy = open || work.tail.claim.is_some();
    if cause.is_some() && cause == work.tail.session.followed {
        return Ok(Reply::Interrupted { was_busy });
    }
    let intended = work.tail.inputs.iter().any(|input| input.intent);
    let stops = match &work.tail.claim {
        // The first reason stays.
        Some(claim) => !claim.interrupt,
        None => open,
    };
    // A parent's is written down even where it stops nothing, so that it is not followed later.
    let followed = cause.is_some() && !work.tail.session.cancelled;
    if stops || intended || followed {
        work.push(EventBody::InterruptRequested { cause })?;
    }
    if work.tail.claim.is_none() {
        for body in recovery::close_turn(&work.tail, TurnOutcome::Interrupted) {
            work.push(body)?;
        }
    }
    if and_continue && work.tail.may_run().is_ok() {
        work.wake(Scope::Steers)?;
    }
    Ok(Reply::Interrupted { was_busy })
}

/// The first answer stands; the same again is answered like it.
fn answer_approval(work: &mut Work, answer: &Approval) -> Result<Reply, Refused> {
    let session = work.tail.session.id;
    if work.tail.session.cancelled {
        return Err(Refused::Cancelled(session));
    }
    let key = answer.key.clone();
    let input = wait::approval_input(session, &key);
    let asked = work.tail.session.arrived.approvals.get(&key);
    let Some(asked) = asked else {
        return Err(Refused::ApprovalNotFound { key });
    };
    if let Some(first) = &asked.answer {
        if first.approved == answer.approved {
            return Ok(Reply::Done);
        }
        let approved = first.approved;
        return Err(Refused::ApprovalAnswered { key, approved });
    }
    work.push(EventBody::InputAdmitted {
        input,
        delivery: Delivery::Steer,
        content: InputContent::Approval(answer.clone()),
    })?;
    if work.tail.may_run().is_ok() {
        work.wake(Scope::Steers)?;
    }
    Ok(Reply::Done)
}
