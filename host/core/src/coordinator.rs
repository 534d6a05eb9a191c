//! Decides when a session runs on this node: one execution at a time, no more of them than there are
//! places for, wakes as a doorbell, joins, interrupts, the recovery loop and the shutdown.
//!
//! A session that runs or is about to has a [`Slot`]; its driver task takes the claim, runs the
//! execution and looks at the doorbell when it is over. Everything here may be lost in a crash: what
//! is to run is told by durable rows, which the recovery loop scans.

mod deliver;
mod drive;
mod recover;

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use deliver::{deliver, deliveries};
use drive::{Answer, Start, drive};
use recover::recoveries;
use tokio::sync::{Notify, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::Instrument as _;

use crate::claim::Fence;
use crate::commit::{Refused, Write};
use crate::event::{EventBody, InterruptReason, Record};
use crate::id::{ExecutionId, Millis, Seq, SessionId};
use crate::node::Shared;
use crate::nodes::Identity;
use crate::port::StoreError;
use crate::renewal;
use crate::tail::{Scope, Tail};

/// Events that are read at once.
const PAGE: u32 = 256;

/// How an execution ended, as far as its node knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Terminal {
    Succeeded,
    /// The turn waits.
    Suspended,
    Failed(String),
    Interrupted(InterruptReason),
    /// Its claim is another's or nobody's; nothing was written.
    Lost,
}

impl Terminal {
    /// The one that an event is, if it is one.
    fn told_by(record: &Record) -> Option<Self> {
        if !record.kind.starts_with("execution.") {
            return None;
        }
        match record.decode().ok()?.body {
            EventBody::ExecutionSucceeded { .. } => Some(Self::Succeeded),
            EventBody::ExecutionSuspended { .. } => Some(Self::Suspended),
            EventBody::ExecutionFailed { error, .. } => Some(Self::Failed(error)),
            EventBody::ExecutionInterrupted { reason, .. } => Some(Self::Interrupted(reason)),
            _ => None,
        }
    }
}

/// What a `run` gave.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunOutcome {
    /// False if there was nothing to do.
    pub ran: bool,
    pub terminal: Option<Terminal>,
}

/// What an execution is told from outside. A later value is never weaker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Stop {
    Go,
    /// Stop at the next step boundary, as a shutdown.
    Drain,
    Shutdown,
    User,
}

/// A session that runs on this node.
struct Slot {
    stop: watch::Sender<Stop>,
    /// What runs, or is about to claim: all that is stopped here is this one.
    execution: Option<ExecutionId>,
    /// That has ended, and those who wait for it are about to hear so.
    over: bool,
    /// A client has asked for it since it was found: it waits for no turn among what recovery resumes.
    asked: CancellationToken,
    /// A wake that came while it ran.
    bell: Option<Scope>,
    /// Those who wait for the execution that runs now.
    waiters: Vec<oneshot::Sender<Answer>>,
    /// Those who came during a cleanup and wait for the successor.
    successors: Vec<oneshot::Sender<Answer>>,
    /// A turn is to be opened even with nothing pending.
    forced: Option<u32>,
}

/// A claim that this node holds.
pub(crate) struct Held {
    pub(crate) fence: Fence,
    /// Monotonic time at which the last confirmed renewal was asked for.
    pub(crate) confirmed: Millis,
    pub(crate) lost: CancellationToken,
}

pub(crate) struct Inner {
    pub(crate) shared: Arc<Shared>,
    pub(crate) identity: Identity,
    slots: Mutex<HashMap<SessionId, Slot>>,
    held: Mutex<HashMap<ExecutionId, Held>>,
    tasks: TaskTracker,
    pub(crate) stopping: AtomicBool,
    /// The last renewal was confirmed.
    pub(crate) healthy: AtomicBool,
    /// Rings for a renewal now.
    pub(crate) bell: Notify,
    /// Somebody asked this node to drain.
    pub(crate) drain: CancellationToken,
    closed: CancellationToken,
    now: CancellationToken,
    /// One per execution.
    places: Semaphore,
    resumes: Arc<Semaphore>,
    /// Sessions that crashed a recovery run one at a time.
    suspects: Arc<Semaphore>,
    /// Sessions that wait for a component, and the monotonic time at which that was seen last.
    unbound: Mutex<HashMap<SessionId, Millis>>,
    /// Sessions that were due and could not be begun, and the monotonic time at which that was seen last.
    passed: Mutex<HashMap<SessionId, Millis>>,
    /// Executions that lost their claims here while this process lived on.
    lost: Mutex<HashSet<ExecutionId>>,
    /// Monotonic time at which the recovery loop last was through with a look.
    looked: AtomicU64,
}

/// How a node does, as far as it can tell without its store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pulse {
    /// Milliseconds since the recovery loop last was through with a look, or since the start.
    pub looked_ms: u64,
    /// Its last renewal was confirmed.
    pub renews: bool,
    /// It has no free place.
    pub full: bool,
    /// Runnable sessions that wait for a component, as far as it has met them.
    pub unbound: u64,
    /// It takes no more.
    pub draining: bool,
}

/// The run coordinator of a node.
pub(crate) struct Coordinator(Arc<Inner>);

impl Coordinator {
    pub(crate) fn start(shared: Arc<Shared>, identity: Identity) -> Self {
        let capacity = shared.settings.capacity.max(1) as usize;
        let inner = Arc::new(Inner {
            identity,
            places: Semaphore::new(capacity),
            unbound: Mutex::default(),
            passed: Mutex::default(),
            lost: Mutex::default(),
            looked: AtomicU64::new(shared.clock.monotonic()),
            bell: Notify::new(),
            drain: CancellationToken::new(),
            resumes: Arc::new(Semaphore::new(shared.settings.resume_concurrency.max(1))),
            suspects: Arc::new(Semaphore::new(1)),
            shared,
            slots: Mutex::default(),
            held: Mutex::default(),
            tasks: TaskTracker::new(),
            stopping: AtomicBool::new(false),
            healthy: AtomicBool::new(true),
            closed: CancellationToken::new(),
            now: CancellationToken::new(),
        });
        let closed = inner.closed.clone();
        for task in [
            tokio::spawn(renewal::run(Arc::clone(&inner))),
            tokio::spawn(recoveries(Arc::clone(&inner))),
            tokio::spawn(deliveries(Arc::clone(&inner))),
        ] {
            let closed = closed.clone();
            tokio::spawn(async move {
                closed.cancelled().await;
                task.abort();
            });
        }
        Self(inner)
    }

    /// Rings: the session has work in this scope.
    pub(crate) fn wake(&self, tail: &Tail, scope: Scope) {
        self.0.wake(tail.session.id, scope, Start::asked(tail));
    }

    /// Resolves once somebody has asked this node to drain.
    pub(crate) async fn drain_asked(&self) {
        self.0.drain.cancelled().await;
    }

    /// This node was asked to drain, and its row says so.
    pub(crate) fn drain(&self) {
        self.0.drain.cancel();
    }

    pub(crate) fn pulse(&self) -> Pulse {
        let inner = &self.0;
        let now = inner.shared.clock.monotonic();
        Pulse {
            looked_ms: now.saturating_sub(inner.looked.load(Ordering::SeqCst)),
            renews: inner.healthy.load(Ordering::SeqCst),
            full: inner.places.available_permits() == 0,
            unbound: inner.unbound().len() as u64,
            draining: inner.stopping.load(Ordering::SeqCst),
        }
    }

    /// An interrupt or cancel is about to be written: a turn that was forced before it does not begin.
    pub(crate) fn interrupting(&self, session: SessionId) {
        if let Some(slot) = self.0.slots().get_mut(&session) {
            slot.forced = None;
        }
    }

    /// An interrupt or cancel is durable: stop the execution that bears its mark, if it runs here.
    pub(crate) fn interrupted(&self, tail: &Tail) {
        if let Some(claim) = tail.claim.as_ref().filter(|claim| claim.interrupt) {
            self.0.stop(claim.session, claim.execution);
        }
    }

    /// Brings what the session owes to others now.
    pub(crate) async fn deliver(&self, session: SessionId) {
        deliver(&self.0, session).await;
    }

    /// Stops this execution, if it runs here.
    pub(crate) fn stop(&self, session: SessionId, execution: ExecutionId) {
        self.0.stop(session, execution);
    }

    pub(crate) async fn run(
        &self,
        session: SessionId,
        forced: Option<u32>,
    ) -> Result<RunOutcome, StoreError> {
        let committed = self
            .0
            .shared
            .commit(session, Write::Wake { scope: Scope::All })
            .await?;
        committed.tail.may_run().map_err(Refused::from)?;
        let answer = {
            let mut slots = self.0.slots();
            let running = slots.contains_key(&session);
            if !running
                && !committed.tail.is_runnable()
                && forced.is_none()
                && committed.tail.claim.is_none()
            {
                return Ok(RunOutcome {
                    ran: false,
                    terminal: None,
                });
            }
            let (sender, answer) = oneshot::channel();
            if let Some(slot) = slots.get_mut(&session) {
                // Its terminal may be stored, which its driver has not heard yet.
                let ended = |execution: ExecutionId| {
                    let claim = committed.tail.claim.as_ref();
                    claim.is_none_or(|claim| claim.execution != execution || claim.ended)
                        && self.0.held().contains_key(&execution)
                };
                let is_over = slot.over || slot.execution.is_some_and(ended);
                if is_over || *slot.stop.borrow() == Stop::User {
                    slot.successors.push(sender);
                    slot.bell = Some(Scope::All);
                    slot.forced = slot.forced.or(forced);
                } else {
                    slot.waiters.push(sender);
                    slot.asked.cancel();
                }
                drop(slots);
            } else {
                drop(slots);
                let start = Start::asked(&committed.tail);
                self.0
                    .wake_with(session, Scope::All, Some(sender), forced, start);
            }
            answer
        };
        // A dropped sender is a node that shuts down.
        let answer = answer.await.unwrap_or(Ok(RunOutcome {
            ran: false,
            terminal: None,
        }))?;
        if answer.ran {
            return Ok(answer);
        }
        // What there was to run may have been run by another node, or have ended before the claim.
        let terminal = self
            .ended_since(session, committed.tail.session.head)
            .await?;
        Ok(RunOutcome {
            ran: terminal.is_some(),
            terminal,
        })
    }

    /// How the last execution ended whose terminal is behind this place of the log.
    async fn ended_since(
        &self,
        session: SessionId,
        mut after: Seq,
    ) -> Result<Option<Terminal>, StoreError> {
        let mut terminal = None;
        loop {
            let page = self.0.shared.store.events(session, after, PAGE).await?;
            let Some((records, _)) = page else {
                return Ok(terminal);
            };
            let Some(last) = records.last() else {
                return Ok(terminal);
            };
            after = last.seq;
            for record in &records {
                terminal = Terminal::told_by(record).or(terminal);
            }
        }
    }

    pub(crate) async fn shutdown(&self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        self.0.stop_all(Stop::Drain);
        // The others hear at once that this one takes no more.
        self.0.bell.notify_one();
        self.0.tasks.close();
        let grace = tokio::time::sleep(self.0.shared.settings.shutdown_grace);
        tokio::select! {
            () = self.0.tasks.wait() => {}
            () = grace => self.0.stop_all(Stop::Shutdown),
            () = self.0.now.cancelled() => self.0.stop_all(Stop::Shutdown),
        }
        self.0.tasks.wait().await;
        self.0.closed.cancel();
        renewal::last(&self.0).await;
    }

    pub(crate) fn shutdown_now(&self) {
        self.0.now.cancel();
    }
}

impl Drop for Coordinator {
    /// A node that is dropped is a process that is gone: nothing more runs, nothing more is written.
    fn drop(&mut self) {
        self.0.stopping.store(true, Ordering::SeqCst);
        self.0.closed.cancel();
        for held in self.0.held().values() {
            held.lost.cancel();
        }
    }
}

fn raise(stop: &mut Stop, to: Stop) -> bool {
    let raised = *stop < to;
    *stop = (*stop).max(to);
    raised
}

impl Inner {
    fn slots(&self) -> MutexGuard<'_, HashMap<SessionId, Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn held(&self) -> MutexGuard<'_, HashMap<ExecutionId, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lost(&self) -> MutexGuard<'_, HashSet<ExecutionId>> {
        self.lost.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unbound(&self) -> MutexGuard<'_, HashMap<SessionId, Millis>> {
        self.unbound.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn passed(&self) -> MutexGuard<'_, HashMap<SessionId, Millis>> {
        self.passed.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stop_all(&self, to: Stop) {
        for slot in self.slots().values() {
            slot.stop.send_if_modified(|stop| raise(stop, to));
        }
    }

    fn wake(self: &Arc<Self>, session: SessionId, scope: Scope, start: Start) {
        self.wake_with(session, scope, None, None, start);
    }

    /// Stops this execution and no other of the session. A wake from before it finds nothing, as the
    /// interrupt has cleared the intents that it set.
    fn stop(&self, session: SessionId, execution: ExecutionId) {
        if let Some(slot) = self.slots().get_mut(&session)
            && slot.execution == Some(execution)
        {
            slot.forced = None;
            slot.stop.send_if_modified(|stop| raise(stop, Stop::User));
        }
    }

    fn wake_with(
        self: &Arc<Self>,
        session: SessionId,
        scope: Scope,
        waiter: Option<oneshot::Sender<Answer>>,
        forced: Option<u32>,
        start: Start,
    ) {
        if self.stopping.load(Ordering::SeqCst) {
            return;
        }
        let mut slots = self.slots();
        if let Some(slot) = slots.get_mut(&session) {
            slot.bell = slot.bell.max(Some(scope));
            slot.waiters.extend(waiter);
            slot.forced = slot.forced.or(forced);
            if start.client {
                slot.asked.cancel();
            }
            return;
        }
        let slot = Slot {
            stop: watch::Sender::new(Stop::Go),
            execution: None,
            over: false,
            asked: CancellationToken::new(),
            bell: None,
            waiters: waiter.into_iter().collect(),
            successors: Vec::new(),
            forced,
        };
        slots.insert(session, slot);
        drop(slots);
        let span = tracing::info_span!("session", %session);
        self.tasks
            .spawn(drive(Arc::clone(self), session, start).instrument(span));
    }
}

/// A growing wait with jitter: between half and all of `base` doubled `attempt - 1` times.
pub(crate) fn backoff(base: Duration, most: Duration, attempt: u32) -> Duration {
    let full = base
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(most);
    full.mul_f64(rand::random_range(0.5..=1.0))
}
