//! Claims: taken, interrupted, and settled once they have run out.

use super::work::Work;
use super::{Refused, Reply};
use crate::claim::{Claim, Fence};
use crate::event::{EventBody, TurnOutcome};
use crate::id::{EventId, Millis, RecoveryId};
use crate::recovery::{self, Counting};
use crate::tail::{NotRunnable, Scope, Tail};

/// Keeps a session from starting by itself, where its policy does.
pub(super) fn hold_back(
    work: &mut Work,
    lease_ms: u64,
    now: Millis,
) -> Result<Option<Reply>, Refused> {
    let session = &work.tail.session;
    let Some(reason) = session.resume.holds(session, now) else {
        return Ok(None);
    };
    // A client that wrote just now is about to wake it: that is no start by itself.
    if now.saturating_sub(session.active_at) <= lease_ms {
        return Err(NotRunnable::NothingToDo.into());
    }
    work.push(EventBody::SessionHeld { reason })?;
    Ok(Some(Reply::Held(reason)))
}

/// Starts an execution under a new claim.
pub(super) fn start(work: &mut Work, claim: Claim, forced: Option<u32>) -> Result<Reply, Refused> {
    // What was admitted before the revert enters the history behind it.
    if work.tail.session.revert.is_some() {
        work.push(EventBody::RevertCommitted {})?;
    }
    let (execution, owner) = (claim.execution, claim.owner);
    work.tail.claim = Some(claim);
    work.execution = Some(execution);
    work.push(EventBody::ExecutionStarted { execution, owner })?;
    if let Some(steps) = forced
        && work.tail.session.turn.is_none()
        && !work.tail.inputs.iter().any(|input| input.intent)
    {
        work.push(EventBody::TurnStarted { steps })?;
    }
    Ok(Reply::Claimed(work.tail.claim.clone().expect("set above")))
}

/// Settles an expired claim by the plan of its recovery.
pub(super) fn recover(
    work: &mut Work,
    seen: Fence,
    counting: &Counting,
    now: Millis,
) -> Result<Reply, Refused> {
    let claim = expired(&work.tail, seen, now)?.clone();
    let plan = recovery::plan(&work.tail, &claim, counting, now);
    settle(work, &claim, plan.events)?;
    Ok(Reply::Recovered(plan.outcome))
}

/// Settles an expired claim whose recovery does not fit its log.
pub(super) fn give_up(
    work: &mut Work,
    seen: Fence,
    reason: &str,
    now: Millis,
) -> Result<Reply, Refused> {
    let claim = expired(&work.tail, seen, now)?.clone();
    let events = recovery::give_up(&work.tail, &claim, reason);
    settle(work, &claim, events)?;
    Ok(Reply::Recovered(recovery::Outcome::Quarantined {
        reason: reason.to_owned(),
    }))
}

/// Stores what a recovery decided, under ids that a second one of the same claim would give again.
fn settle(work: &mut Work, claim: &Claim, events: Vec<EventBody>) -> Result<(), Refused> {
    work.recovery = Some(RecoveryId::derived(claim.execution.0, "recovery"));
    for (n, body) in events.into_iter().enumerate() {
        let id = EventId::derived(claim.execution.0, &format!("recovery/{n}"));
        work.push_as(id, body)?;
    }
    work.tail.claim = None;
    Ok(())
}

/// Lets a claim run out at once.
pub(super) fn supersede(work: &mut Work, seen: Fence, now: Millis) -> Result<Reply, Refused> {
    let session = work.tail.session.id;
    let claim = work.tail.claim.as_mut();
    let claim =
        claim.filter(|claim| claim.execution == seen.execution && claim.owner == seen.owner);
    let claim = claim.ok_or(Refused::ClaimChanged(session))?;
    claim.expires_at = claim.expires_at.min(now);
    claim.superseded = true;
    Ok(Reply::Done)
}

/// The claim that a scan saw, if it is still that one and still expired.
pub(super) fn expired(tail: &Tail, seen: Fence, now: Millis) -> Result<&Claim, Refused> {
    let claim = tail.claim.as_ref().filter(|claim| {
        claim.execution == seen.execution && claim.owner == seen.owner && claim.expires_at <= now
    });
    claim.ok_or(Refused::ClaimChanged(tail.session.id))
}

pub(super) fn interrupt(
    work: &mut Work,
    cause: Option<EventId>,
    and_continue: bool,
) -> Result<Reply, Refused> {
    let open = work.tail.session.turn.is_some();
    let was_busy = open || work.tail.claim.is_some();
    if cause.is_some_and(|cause| work.tail.session.followed.contains(&cause)) {
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
