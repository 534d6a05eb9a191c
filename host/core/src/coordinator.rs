//! Decides when a session runs on this node: one execution at a time, no more of them than there are
//! places for, wakes as a doorbell, joins, interrupts, the recovery loop and the shutdown.
//!
//! A session that runs or is about to has a [`Slot`]; its driver task takes the claim, runs the
//! execution and looks at the doorbell when it is over. Everything here may be lost in a crash: what
//! is to run is told by durable rows, which the recovery loop scans.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot, watch};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::{Instrument as _, debug, info, warn};

use futures::StreamExt as _;

use crate::bound;
use crate::claim::{Claim, Fence};
use crate::commit::{Refused, Reply, Write};
use crate::courier::{self, Effect};
use crate::event::{InputContent, InterruptReason};
use crate::id::{ExecutionId, Millis, OwnerId, SessionId};
use crate::node::Shared;
use crate::nodes::Identity;
use crate::port::StoreError;
use crate::project::RuleBroken;
use crate::recovery::{Counting, Outcome};
use crate::renewal;
use crate::tail::{Input, NotRunnable, Scope, Tail};
use crate::turn::Execution;

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

/// What those who wait for a run hear.
type Answer = Result<RunOutcome, Unclaimed>;

/// Why a session could not be claimed, as each of those hears it.
#[derive(Clone, Debug)]
enum Unclaimed {
    Refused(Refused),
    Unavailable { action: &'static str, cause: String },
    Damaged { session: SessionId, cause: String },
}

/// Why a session is run, as its first claim and its place in the queue depend on it.
#[derive(Clone, Copy, Debug, Default)]
struct Start {
    /// A client asks for it.
    client: bool,
    /// Nobody asks for it now.
    by_itself: bool,
    /// Recovery starts it.
    resumed: Option<Resumed>,
    /// A step may be open: what it is bound to is looked for first.
    bound: bool,
}

#[derive(Clone, Copy, Debug)]
struct Resumed {
    attempts: u32,
    /// It crashed a run that recovery had started.
    suspect: bool,
}

/// The places among those that recovery resumes which an execution holds, until it has settled a step.
#[derive(Default)]
pub(crate) struct Resuming(Vec<OwnedSemaphorePermit>);

impl Resuming {
    /// Gives them back: others are resumed.
    pub(crate) fn over(&mut self) {
        self.0.clear();
    }
}

/// A claim that this node holds.
pub(crate) struct Held {
    pub(crate) fence: Fence,
    /// Monotonic time at which the last confirmed renewal was asked for.
    pub(crate) confirmed: Millis,
    pub(crate) lost: CancellationToken,
}

/// What an attempt to claim a session gave.
enum Taken {
    Here(Box<Execution>, CancellationToken),
    Nothing,
    /// Another claim stands.
    Elsewhere,
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
                if *slot.stop.borrow() == Stop::User {
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
        }));
        Ok(answer?)
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

impl Start {
    /// A client asks for a session that is as it is told.
    fn asked(tail: &Tail) -> Self {
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

    /// Runs a session that the loop found, unless it is about to run here anyway.
    fn start(self: &Arc<Self>, session: SessionId) {
        // Without a place it stays due, here or elsewhere.
        let free = self.places.available_permits() > 0;
        if free && !self.slots().contains_key(&session) {
            let start = Start {
                by_itself: true,
                bound: true,
                ..Start::default()
            };
            self.wake(session, Scope::All, start);
        }
    }

    /// Waits until recovery may resume a session, or a client asks for it.
    async fn resuming(&self, session: SessionId, resumed: Resumed) -> Resuming {
        let asked = self.slots().get(&session).map(|slot| slot.asked.clone());
        let asked = asked.unwrap_or_default();
        let resuming = async {
            let mut places = Vec::new();
            if resumed.suspect {
                places.extend(Arc::clone(&self.suspects).acquire_owned().await);
            }
            places.extend(Arc::clone(&self.resumes).acquire_owned().await);
            let base = Duration::from_millis(50);
            let wait = backoff(base, Duration::from_secs(30), resumed.attempts);
            tokio::time::sleep(wait).await;
            Resuming(places)
        };
        tokio::select! {
            biased;
            () = asked.cancelled() => Resuming::default(),
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
                .holds(session, self.shared.clock.wall())
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

    /// How many runnable sessions a look is to find: one for each free place, beside those that wait
    /// here for something else.
    fn wanted(&self) -> u32 {
        let free = self.places.available_permits();
        if free == 0 {
            return 0;
        }
        let waiting = self.slots().len().saturating_sub(self.held().len());
        let wanted = free + waiting + self.unbound().len();
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }

    /// The claim for a new execution, unless another has it or there is nothing to do.
    async fn claim(
        &self,
        session: SessionId,
        start: Start,
        resuming: Resuming,
    ) -> Result<Taken, StoreError> {
        let execution = ExecutionId::new();
        let by_itself = start.by_itself && !self.is_wished(session).await;
        let (stop, forced, by_itself) = {
            let mut slots = self.slots();
            let slot = slots.get_mut(&session).expect("a driver has its slot");
            let by_itself = by_itself && !slot.asked.is_cancelled();
            // Before the claim is there to be marked.
            slot.execution = Some(execution);
            (slot.stop.subscribe(), slot.forced.take(), by_itself)
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
        let committed = match self.shared.commit(session, write).await {
            Ok(committed) => committed,
            Err(StoreError::Refused(Refused::NotRunnable(NotRunnable::NothingToDo))) => {
                return Ok(Taken::Nothing);
            }
            Err(StoreError::Refused(Refused::Claimed(_))) => return Ok(Taken::Elsewhere),
            Err(error) => return Err(error),
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
            resuming,
        );
        Ok(Taken::Here(Box::new(execution), lost))
    }
}

/// Runs a session until nothing rings any more.
async fn drive(inner: Arc<Inner>, session: SessionId, mut start: Start) {
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
    resuming: Resuming,
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
    if (start.bound || waits) && inner.lacks(session).await {
        return Some(Ok(nothing));
    }
    if inner.stopping.load(Ordering::SeqCst) {
        return Some(Ok(nothing));
    }
    if !inner.healthy.load(Ordering::SeqCst) {
        debug!("no new claim while renewals fail");
        return None;
    }
    let (execution, lost) = match inner.claim(session, start, resuming).await {
        Ok(Taken::Here(execution, lost)) => (execution, lost),
        Ok(Taken::Nothing) => return Some(Ok(nothing)),
        Ok(Taken::Elsewhere) => return None,
        Err(error) => {
            // Its work is durable; the recovery loop comes back to it.
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
        let mut lost = inner.lost();
        if lost.len() >= LOST {
            // Others have settled them; at worst a few count as crashes.
            lost.clear();
        }
        lost.insert(id);
    }
    inner.held().remove(&id);
    span.in_scope(|| info!(?terminal, "execution ended"));
    Some(Ok(RunOutcome {
        ran: true,
        terminal: Some(terminal),
    }))
}

/// A growing wait with jitter: between half and all of `base` doubled `attempt - 1` times.
pub(crate) fn backoff(base: Duration, most: Duration, attempt: u32) -> Duration {
    let full = base
        .saturating_mul(1 << attempt.saturating_sub(1).min(16))
        .min(most);
    full.mul_f64(rand::random_range(0.5..=1.0))
}

/// Outboxes that are emptied at once.
const DELIVERIES: usize = 32;

/// Expired claims that are settled at once, so that a store can make them durable together.
const RECOVERIES: usize = 64;

/// Lost executions that are remembered until their claims are settled.
const LOST: usize = 4096;

/// How long a session that waits for a component is remembered: nodes are told of it in turns.
const UNBOUND_MS: Millis = 60_000;

/// How many rows one look of the recovery loop takes.
const SCAN: u32 = 1024;

/// Finds expired claims and runnable sessions, level-triggered, for as long as the node lives.
async fn recoveries(inner: Arc<Inner>) {
    while !inner.stopping.load(Ordering::SeqCst) {
        // There were more than one look takes.
        let mut more = false;
        match inner.shared.store.scan_within(SCAN, inner.wanted()).await {
            // What a shutdown leaves is for another.
            Ok(_) if inner.stopping.load(Ordering::SeqCst) => return,
            Ok(scan) => {
                let expired = scan.expired.len();
                let alive = match expired {
                    0 => Vec::new(),
                    _ => alive(&inner).await,
                };
                let each = scan.expired.into_iter().map(|claim| {
                    let (inner, alive) = (&inner, &alive);
                    async move { recover(inner, &claim, alive).await }
                });
                let settled = futures::stream::iter(each)
                    .buffer_unordered(RECOVERIES)
                    .filter(|settled| std::future::ready(*settled))
                    .count()
                    .await;
                more = expired == SCAN as usize && settled > 0;
                for session in scan.timers {
                    match inner.shared.commit(session, Write::Fire).await {
                        Ok(committed) if committed.tail.is_runnable() => inner.start(session),
                        Ok(_) => {}
                        Err(error) => {
                            warn!(%session, error = %crate::chain(&error), "a timer did not fire");
                        }
                    }
                }
                let now = inner.shared.clock.monotonic();
                inner
                    .unbound()
                    .retain(|_, seen| now.saturating_sub(*seen) < UNBOUND_MS);
                for session in scan.due {
                    inner.start(session);
                }
                inner.shared.owing(scan.owing);
                marked(&inner).await;
                let now = inner.shared.clock.monotonic();
                inner.looked.store(now, Ordering::SeqCst);
            }
            Err(error) => warn!(error = %crate::chain(&error), "the scan failed"),
        }
        if more {
            continue;
        }
        tokio::time::sleep(
            inner
                .shared
                .settings
                .poll_every
                .mul_f64(rand::random_range(0.8..=1.0)),
        )
        .await;
    }
}

/// Brings notices to the sessions that they are for.
async fn deliveries(inner: Arc<Inner>) {
    loop {
        let owing = inner.shared.next_owing().await;
        let each = owing.into_iter().map(|session| {
            let inner = Arc::clone(&inner);
            async move {
                deliver(&inner, session).await;
            }
        });
        futures::stream::iter(each)
            .for_each_concurrent(DELIVERIES, |delivery| delivery)
            .await;
    }
}

/// Brings what one session owes.
async fn deliver(inner: &Arc<Inner>, session: SessionId) {
    for effect in courier::deliver(&inner.shared, session).await {
        match effect {
            Effect::Woken(session, scope) => {
                let start = Start {
                    bound: true,
                    ..Start::default()
                };
                inner.wake(session, scope, start);
            }
            // What runs by now may have been asked for since: its mark decides.
            Effect::Stopped(session) => stop_marked(inner, &[session]).await,
        }
    }
}

/// Finds the interrupts that another process marked on what runs here.
async fn marked(inner: &Arc<Inner>) {
    let sessions: Vec<SessionId> = inner.slots().keys().copied().collect();
    if !sessions.is_empty() {
        stop_marked(inner, &sessions).await;
    }
}

/// Stops what runs here of these sessions, where the claim bears the mark.
async fn stop_marked(inner: &Inner, sessions: &[SessionId]) {
    // What runs by the time of the answer may have begun behind the mark.
    let running: Vec<(SessionId, ExecutionId)> = {
        let slots = inner.slots();
        let executions = sessions.iter().filter_map(|session| {
            let execution = slots.get(session)?.execution?;
            Some((*session, execution))
        });
        executions.collect()
    };
    let store = &inner.shared.store;
    let Ok(marked) = store.interrupted(inner.shared.owner, sessions).await else {
        // It is looked for again with the next scan.
        return;
    };
    for (session, execution) in running {
        if marked.contains(&session) {
            inner.stop(session, execution);
        }
    }
}

/// Puts aside what cannot be recovered, if it is still as it was seen.
async fn give_up(inner: &Arc<Inner>, session: SessionId, seen: Fence, rule: RuleBroken) {
    let reason = format!("its recovery does not fit its log: {rule}");
    warn!(%session, %reason, "quarantined");
    let write = Write::Quarantine { seen, reason };
    if let Err(error) = inner.shared.commit(session, write).await {
        warn!(%session, error = %crate::chain(&error), "could not quarantine");
    }
}

/// When each node was last seen alive.
async fn alive(inner: &Inner) -> Vec<(OwnerId, Millis)> {
    match inner.shared.store.nodes().await {
        Ok((rows, _)) => rows
            .into_iter()
            .map(|row| (row.identity.owner, row.seen_at))
            .collect(),
        Err(error) => {
            warn!(error = %crate::chain(&error), "who lives is not known: crashes count until it is");
            Vec::new()
        }
    }
}

/// Settles an expired claim as it was seen. True if this did.
async fn recover(inner: &Arc<Inner>, claim: &Claim, alive: &[(OwnerId, Millis)]) -> bool {
    let seen = Fence {
        execution: claim.execution,
        owner: claim.owner,
    };
    if inner.held().contains_key(&claim.execution) {
        // Its own watchdog drops it first.
        return false;
    }
    let mut alive = alive.to_vec();
    let mine = claim.owner == inner.shared.owner;
    let lost = inner.lost().contains(&claim.execution);
    if mine && lost {
        alive.push((claim.owner, Millis::MAX));
    }
    let write = Write::Recover {
        seen,
        counting: Counting {
            max_attempts: inner.shared.settings.max_attempts,
            alive,
            broke_off: mine && !lost,
        },
    };
    match inner.shared.commit(claim.session, write).await {
        Ok(committed) => {
            let Reply::Recovered(outcome) = committed.reply else {
                return false;
            };
            info!(session = %claim.session, execution = %claim.execution, ?outcome, "recovered");
            inner.lost().remove(&claim.execution);
            if let Outcome::Resume { attempts, suspect } = outcome {
                let start = Start {
                    by_itself: true,
                    resumed: Some(Resumed { attempts, suspect }),
                    bound: committed.tail.step.is_some(),
                    ..Start::default()
                };
                // Without a place it is due, here or elsewhere.
                if inner.places.available_permits() > 0 {
                    inner.wake(claim.session, Scope::All, start);
                }
            }
            return true;
        }
        Err(StoreError::Refused(Refused::Rule(rule))) => {
            give_up(inner, claim.session, seen, rule).await;
        }
        // Another node was first.
        Err(StoreError::Refused(Refused::ClaimChanged(_) | Refused::NotFound(_))) => {}
        Err(error) => {
            warn!(session = %claim.session, error = %crate::chain(&error), "could not recover");
        }
    }
    false
}
