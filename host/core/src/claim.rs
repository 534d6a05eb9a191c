//! The claim on a session: lease, fence and phase.
//!
//! A claim is taken where no row exists and the session is runnable, held by its fence (this
//! execution, this owner, not expired by the store's clock), and gone with the terminal. An expired
//! claim is settled by recovery and by nothing else.

use serde::{Deserialize, Serialize};

use crate::id::{ExecutionId, Millis, OwnerId, Seq, SessionId};
use crate::tail::Tail;

/// What may have happened outside the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Nothing since the last settled event: run again from the log.
    Ready,
    /// An effect is in flight: settle it first.
    Unknown,
    /// All effects are settled, the turn is not over: go on from the recorded results.
    Continue,
    /// Settled, and may stop here.
    Safe,
}

/// The one row that says who runs a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Claim {
    pub session: SessionId,
    pub execution: ExecutionId,
    pub owner: OwnerId,
    /// By the store's clock.
    pub expires_at: Millis,
    pub phase: Phase,
    /// Seq of the open step.
    #[serde(default)]
    pub step: Option<Seq>,
    /// An interrupt or cancel is marked: nothing more is promoted or begun.
    #[serde(default)]
    pub interrupt: bool,
    /// Its execution has its terminal; only a shutdown leaves such a row.
    #[serde(default)]
    pub ended: bool,
    /// The session has crashed before: this run was started by a recovery.
    #[serde(default)]
    pub resumed: bool,
    /// An operator took the session over: it was expired and did not crash.
    #[serde(default)]
    pub superseded: bool,
}

/// The predicate inside every write of an execution.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fence {
    pub execution: ExecutionId,
    pub owner: OwnerId,
}

impl Claim {
    /// Whether `fence` holds this claim at `now` of the store's clock.
    #[must_use]
    pub fn is_held_by(&self, fence: Fence, now: Millis) -> bool {
        self.execution == fence.execution && self.owner == fence.owner && self.expires_at > now
    }
}

/// The phase that a session's rows imply, `before` being the claim's phase until now.
///
/// Derived after every commit and stored with it, so a phase can change only together with the event
/// that makes it true.
#[must_use]
pub fn phase(tail: &Tail, before: Phase) -> Phase {
    let Some(turn) = &tail.session.turn else {
        // A fresh claim has done nothing yet; one whose turn is over may stop.
        return if before == Phase::Ready {
            Phase::Ready
        } else {
            Phase::Safe
        };
    };
    if tail.session.wait.is_some() {
        // As without a turn: a claim that was taken to look at a steer has done nothing yet.
        return if before == Phase::Ready {
            Phase::Ready
        } else {
            Phase::Safe
        };
    }
    match &tail.step {
        Some(step) if step.is_in_flight() => Phase::Unknown,
        _ if turn.settled_steps > 0 => Phase::Continue,
        _ => Phase::Ready,
    }
}
