//! One session on this node, from the wake until nothing rings any more: its place, its claim, its
//! execution, and what those who wait for it hear.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug, info, warn};

use super::{Held, Inner, RunOutcome, Stop, Terminal, backoff};
use crate::bound;
use crate::claim::Fence;
use crate::commit::{Refused, Reply, Write};
use crate::event::InputContent;
use crate::id::{ExecutionId, SessionId};
use crate::port::StoreError;
use crate::tail::{Input, NotRunnable, Tail};
use crate::turn::Execution;

/// What those who wait for a run hear.
pub(super) type Answer = Result<RunOutcome, Unclaimed>;

/// Why a session could not be claimed, as each of those hears it.
#[derive(Clone, Debug)]
pub(super) enum Unclaimed {
    Refused(Refused),
    Unavailable { action: &'static str, cause: String },
    Damaged { session: SessionId, cause: String },
}

/// Why a session is run, as its first claim and its place in the queue depend on it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Start {
    /// A client asks for it.
    pub(super) client: bool,
    /// Nobody asks for it now.
    pub(super) by_itself: bool,
    /// Recovery starts it.
    pub(super) resumed: Option<Resumed>,
    /// A step may be open: what it is bound to is looked for first.
    pub(super) bound: bool,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Resumed {
    pub(super) attempts: u32,
    /// It crashed a run that recovery had started.
    pub(super) suspect: bool,
}

/// The places among those that recovery resumes which an execution holds until its end.
type Resuming = Vec<OwnedSemaphorePermit>;

/// What an attempt to claim a session gave.
enum Taken {
    Here(Box<Execution>, CancellationToken),
    Nothing,
    /// Another claim stands.
    Elsewhere,
}

impl Start {
    /// A client asks for a session that is as it is told.
    pub(super) fn asked(tail: &Tail) -> Self {
        Self {
            client: true,
            bound: tail.step.is_some(),
            ..Self::default()
        }
    }
}

impl Unclaimed {
    fn of(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refused) => Self::Refused(refused),
            StoreError::Unavailable { action, cause } => Self::Unavailable {
                action,
                cause: crate::chain(&*cause),
            },
            StoreError::Damaged { session, cause } => Self::Damaged { session, cause },
        }
    }
}

impl From<Unclaimed> for StoreError {
    fn from(error: Unclaimed) -> Self {
        match error {
            Unclaimed::Refused(refused) => Self::Refused(refused),
            Unclaimed::Unavailable { action, cause } => Self::Unavailable {
                action,
                cause: cause.into(),
            },
            Unclaimed::Damaged { session, cause } => Self::Damaged { session, cause },
        }
    }
}

impl Inner {
    /// Waits until recovery may resume a session, a client asks for it, or this node stops.
    async fn resuming(&self, session: SessionId, resumed: Resumed) -> Resuming {
        let (asked, mut stop) = {
            let slots = self.slots();
            let slot = slots.get(&session).expect("a driver has its slot");
            (slot.asked.clone(), slot.stop.subscribe())
        };
        let stopping = stop.wait_for(|stop| matches!(stop, Stop::Drain | Stop::Shutdown));
        let resuming = async {
            let mut places = Vec::new();
            if resumed.suspect {
                places.extend(Arc::clone(&self.suspects).acquire_owned().await);
            }
            places.extend(Arc::clone(&self.resumes).acquire_owned().await);
            let base = Duration::from_millis(50);
            let wait = backoff(base, Duration::from_secs(30), resumed.attempts);
            tokio::time::sleep(wait).await;
            places
        };
        tokio::select! {
            biased;
            () = asked.cancelled() => Resuming::default(),
            _ = stopping => Resuming::default(),
            resuming = resuming => resuming,
        }
    }

    /// Whether the session's open step lacks a component. Such a session is left as it is.
    async fn lacks(&self, session: SessionId) -> bool {
        let Ok(Some(tail)) = self.shared.store.tail(session).await else {
            return false;
        };
        let missing = bound::missing(&self.shared.plugins, &tail).await;
        if missing.is_empty() {
            self.unbound().remove(&session);
            return false;
        }
        let now = self.shared.clock.monotonic();
        if self.unbound().insert(session, now).is_none() {
            warn!(
                ?missing,
                "an open step is bound to components that are not there: load them, and it goes on"
            );
        }
        true
    }

    /// Whether what there is to do is what a client asked for while a node was up that still is. It was
    /// taken by none yet, for want of places say, and no policy is asked about it.
    async fn is_wished(&self, session: SessionId) -> bool {
        let store = &self.shared.store;
        let Ok(Some(tail)) = store.tail(session).await else {
            return false;
        };
        let session = &tail.session;
        let cut_off = session.turn.is_some() && session.wait.is_none() || session.attempts > 0;
        let by_a_client = |input: &&Input| {
            !matches!(
                input.content,
                InputContent::Timer { .. } | InputContent::Child(_)
            )
        };
        let wished = !cut_off && tail.due_next().iter().any(by_a_client);
        // Most are free to start anyhow.
        if !wished
            || session
                .resume
                .holds(session, self.shared.time.now())
                .is_none()
        {
            return false;
        }
        let Ok((nodes, now)) = store.nodes().await else {
            return false;
        };
        nodes
            .iter()
            .any(|node| node.ended_at(now).is_none() && node.started_at <= session.active_at)
    }

    /// Whether the session has a claim that has not run out.
    async fn lives(&self, session: SessionId) -> bool {
        let tail = self.shared.store.tail(session).await.ok().flatten();
        let claim = tail.as_ref().and_then(|tail| tail.claim.as_ref());
        claim.is_some_and(|claim| claim.expires_at > self.shared.time.now())
    }

    /// Remembers that a session could not be begun: a look is to find others beside it.
    fn passed_over(&self, session: SessionId) {
        let now = self.shared.clock.monotonic();
        self.passed().insert(session, now);
    }

    /// Remembers that an execution lost its claim while this process lives.
    fn forsake(&self, execution: ExecutionId) {
        let mut lost = self.lost();
        if lost.len() >= LOST {
            // Others have settled them; at worst a few count as crashes.
            lost.clear();
        }
        lost.insert(execution);
    }

    /// The claim for a new execution, unless another has it or there is nothing to do.
    async fn claim(&self, session: SessionId, start: Start) -> Result<Taken, StoreError> {
        let execution = ExecutionId::new();
        let by_itself = start.by_itself && !self.is_wished(session).await;
        let (stop, forced, by_itself) = {
            let mut slots = self.slots();
            let slot = slots.get_mut(&session).expect("a driver has its slot");
            let by_itself = by_itself && !slot.asked.is_cancelled();
            // Before the claim is there to be marked.
            slot.execution = Some(execution);
            (slot.stop.subscribe(), slot.forced, by_itself)
        };
        let owner = self.shared.owner;
        let asked = self.shared.clock.monotonic();
        let lease_ms = self.shared.settings.lease.as_millis() as u64;
        let write = Write::Claim {
            execution,
            owner,
            lease_ms,
            forced,
            resumed: start.resumed.is_some(),
            by_itself,
        };
        let committed = self.shared.commit(session, write).await;
        let stands = matches!(&committed, Err(StoreError::Refused(Refused::Claimed(_))));
        // A turn that is to be forced waits for the recovery of a dead claim. A live execution is joined.
        let spent = !stands || self.lives(session).await;
        if spent
            && let Some(slot) = self.slots().get_mut(&session)
            // Behind an interrupt it is the successor's.
            && *slot.stop.borrow() != Stop::User
        {
            slot.forced = None;
        }
        let committed = match committed {
            Ok(committed) => committed,
            Err(StoreError::Refused(Refused::NotRunnable(NotRunnable::NothingToDo))) => {
                return Ok(Taken::Nothing);
            }
            Err(_) if stands => return Ok(Taken::Elsewhere),
            Err(error) => {
                if matches!(error, StoreError::Unavailable { .. }) {
                    // It may be there all the same, and runs out then: nothing crashed under it.
                    self.forsake(execution);
                }
                return Err(error);
            }
        };
        if let Reply::Held(reason) = committed.reply {
            info!(%reason, "held back");
            return Ok(Taken::Nothing);
        }
        debug_assert!(matches!(committed.reply, Reply::Claimed(_)));
        let fence = Fence { execution, owner };
        let lost = CancellationToken::new();
        self.held().insert(
            execution,
            Held {
                fence,
                confirmed: asked,
                lost: lost.clone(),
            },
        );
        let execution = Execution::new(
            Arc::clone(&self.shared),
            session,
            fence,
            committed.tail,
            stop,
            lost.clone(),
        );
        Ok(Taken::Here(Box::new(execution), lost))
    }
}

/// Runs a session until nothing rings any more.
pub(super) async fn drive(inner: Arc<Inner>, session: SessionId, mut start: Start) {
    if start.by_itself && start.resumed.is_none() {
        start.resumed = crashed(&inner, session).await;
    }
    loop {
        let resuming = match start.resumed {
            None => Resuming::default(),
            Some(resumed) => inner.resuming(session, resumed).await,
        };
        let Some(outcome) = one(&inner, session, start, resuming).await else {
            // Who waits for a run waits for recovery, or for the other node, first.
            {
                let mut slots = inner.slots();
                let Some(slot) = slots.get_mut(&session) else {
                    return;
                };
                slot.execution = None;
                slot.stop.send_if_modified(|stop| {
                    let asked = *stop == Stop::User;
                    if asked {
                        *stop = Stop::Go;
                    }
                    asked
                });
                slot.waiters.append(&mut slot.successors);
                slot.waiters.retain(|waiter| !waiter.is_closed());
                let again =
                    slot.bell.take().is_some() || !slot.waiters.is_empty() || slot.forced.is_some();
                if !again || inner.stopping.load(Ordering::SeqCst) {
                    slots.remove(&session);
                    return;
                }
            }
            tokio::time::sleep(inner.shared.settings.poll_every).await;
            continue;
        };
        start = Start {
            // What could not be begun may still lack something.
            bound: start.bound && !outcome.as_ref().is_ok_and(|outcome| outcome.ran),
            ..Start::default()
        };
        let mut slots = inner.slots();
        let Some(slot) = slots.get_mut(&session) else {
            return;
        };
        for waiter in slot.waiters.drain(..) {
            // A waiter that gave up cancels nothing.
            let _ = waiter.send(outcome.clone());
        }
        let again =
            slot.bell.take().is_some() || !slot.successors.is_empty() || slot.forced.is_some();
        if !again || inner.stopping.load(Ordering::SeqCst) {
            slots.remove(&session);
            return;
        }
        slot.waiters = std::mem::take(&mut slot.successors);
        slot.stop = watch::Sender::new(Stop::Go);
        slot.execution = None;
        slot.over = false;
        slot.asked = CancellationToken::new();
    }
}

/// What a recovery knew of a session whose wake was lost with its node: the count of crashes is durable.
async fn crashed(inner: &Inner, session: SessionId) -> Option<Resumed> {
    let tail = inner.shared.store.tail(session).await.ok().flatten()?;
    let attempts = tail.session.attempts;
    (attempts > 0).then_some(Resumed {
        attempts,
        suspect: attempts > 1,
    })
}

/// One claim and its execution. `None` while another claim stands, a dead one's included.
async fn one(
    inner: &Arc<Inner>,
    session: SessionId,
    start: Start,
    _resuming: Resuming,
) -> Option<Answer> {
    let nothing = RunOutcome {
        ran: false,
        terminal: None,
    };
    // Who waits for a place may come to another session than it knew.
    let place = inner.places.try_acquire();
    let waits = place.is_err();
    let _place = match place {
        Ok(place) => Some(place),
        Err(_) => inner.places.acquire().await.ok(),
    };
    let stopping = || inner.stopping.load(Ordering::SeqCst);
    if stopping() || (start.bound || waits) && inner.lacks(session).await || stopping() {
        return Some(Ok(nothing));
    }
    if !inner.healthy.load(Ordering::SeqCst) {
        debug!("no new claim while renewals fail");
        return None;
    }
    let (execution, lost) = match inner.claim(session, start).await {
        Ok(Taken::Here(execution, lost)) => (execution, lost),
        Ok(Taken::Nothing) => {
            if start.by_itself {
                inner.passed_over(session);
            }
            return Some(Ok(nothing));
        }
        Ok(Taken::Elsewhere) => return None,
        Err(error) => {
            // Its work is durable; the recovery loop comes back to it.
            if !matches!(error, StoreError::Unavailable { .. }) {
                inner.passed_over(session);
            }
            warn!(error = %crate::chain(&error), "could not claim the session");
            return Some(Err(Unclaimed::of(error)));
        }
    };
    let id = execution.id();
    let span = tracing::info_span!("execution", execution = %id);
    let terminal = tokio::select! {
        terminal = execution.run().instrument(span.clone()) => terminal,
        () = lost.cancelled() => Terminal::Lost,
    };
    // A write that was refused has told it, too. One that could not write its terminal under a claim
    // that it had is another matter: it counts.
    if lost.is_cancelled() {
        inner.forsake(id);
    }
    if let Some(slot) = inner.slots().get_mut(&session) {
        slot.over = true;
    }
    inner.held().remove(&id);
    span.in_scope(|| info!(?terminal, "execution ended"));
    Some(Ok(RunOutcome {
        ran: true,
        terminal: Some(terminal),
    }))
}

/// Lost executions that are remembered until their claims are settled.
const LOST: usize = 4096;
