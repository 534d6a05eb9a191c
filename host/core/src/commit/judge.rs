//! Judges a commit: what may be written to a session as it is, and what comes of it.

use super::append::append_events;
use super::claims::{give_up, hold_back, interrupt, recover, start, supersede};
use super::inputs::{admit, answer_approval, cancel, owed, pending};
use super::work::Work;
use super::{Applied, Commit, Known, Refused, Reply, TITLE, Write};
use crate::claim::{Claim, Phase};
use crate::event::{Delivery, Event, EventBody, InputContent, SessionCreated, TurnOutcome};
use crate::id::{EventId, Millis, RecoveryId};
use crate::project;
use crate::recovery;
use crate::tail::{Changes, NotRunnable, Scope, Tail};
use crate::wait;

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
        Write::Adopt => adopt(&mut work, now)?,
        _ if work.tail.session.imported().is_some() => {
            work.tail.may_run()?;
            Reply::Done
        }
        // What this build does not know may change what anything else means. Inputs are only kept.
        write if work.tail.session.foreign.is_some() && !write.is_of_inputs() => {
            let foreign = work.tail.session.foreign.take().unwrap_or_default();
            return Err(NotRunnable::Foreign(foreign).into());
        }
        Write::Revert { .. } | Write::ClearRevert if work.tail.session.cancelled => {
            return Err(Refused::Cancelled(session));
        }
        Write::Revert { revert, head } => {
            if work.tail.claim.is_some() || work.tail.session.turn.is_some() {
                return Err(Refused::Busy(session));
            }
            if *head != work.tail.session.head {
                return Err(Refused::HeadMoved {
                    expected: *head,
                    actual: work.tail.session.head,
                });
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
            if let Some(refused) = owed(found) {
                return Err(refused);
            }
            cancel(&mut work, *input)?
        }
        Write::Redeliver { input, delivery } => {
            let found = pending(&work.tail, known, *input)?;
            if let Some(refused) = owed(found) {
                return Err(refused);
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
                    joins: None,
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
            if *by_itself && let Some(held) = hold_back(&mut work, *lease_ms, now)? {
                return Ok(work.finish(held));
            }
            let claim = Claim {
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
            };
            start(&mut work, claim, *forced)?
        }
        Write::Append(append) => append_events(&mut work, known, append, now)?,
        Write::Interrupt {
            cause,
            and_continue,
        } => interrupt(&mut work, *cause, *and_continue)?,
        Write::Quarantine { seen, reason } => give_up(&mut work, *seen, reason, now)?,
        Write::Recover { seen, counting } => recover(&mut work, *seen, counting, now)?,
        Write::Expire { seen } => supersede(&mut work, *seen, now)?,
    };
    work.drop_answers()?;
    Ok(work.finish(reply))
}

/// Lets an imported session go on here.
fn adopt(work: &mut Work, now: Millis) -> Result<Reply, Refused> {
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
    Ok(Reply::Done)
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
    if let Some(title) = &created.title
        && title.len() > TITLE
    {
        return Err(Refused::TitleTooLong { bytes: title.len() });
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
