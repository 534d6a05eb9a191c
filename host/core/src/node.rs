//! One process's part of the system: what applications call. Every method that changes a session is
//! one commit and, where it is work, a wake; nothing here decides.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;

use crate::bound::{self, Missing};
use crate::claim::Fence;
use crate::commit::{Admission, Commit, Refused, Reply, Write};
use crate::config::{Settings, SharedConfig};
use crate::coordinator::{Coordinator, Pulse, RunOutcome};
use crate::edit;
use crate::event::{Delivery, InputContent, Record, SessionCreated};
use crate::history::Approval;
use crate::id::{InputId, Millis, OwnerId, Seq, SessionId};
use crate::live::{Hints, Hub, Relay, Watched};
use crate::nodes::{DrainError, Identity, NodeRow, NodeState};
use crate::plugin::Plugins;
use crate::port::{Clock, Committed, Store, StoreError};
use crate::replay::{Replay, Replayed};
use crate::tail::{Scope, Status, Tail};
use crate::time::StoreTime;

/// The ports that a node stands on.
#[derive(Clone)]
pub struct Ports {
    pub store: Arc<dyn Store>,
    pub plugins: Arc<dyn Plugins>,
    pub clock: Arc<dyn Clock>,
}

/// Everything that the parts of a node share.
pub(crate) struct Shared {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) plugins: Arc<dyn Plugins>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) time: StoreTime,
    pub(crate) config: Arc<SharedConfig>,
    pub(crate) settings: Settings,
    pub(crate) owner: OwnerId,
    pub(crate) hub: Hub,
    pub(crate) owing: Owing,
    /// When a secret may be used again, by what [`Plugins::rated`] calls it: one rate limit is everyone's.
    pub(crate) backoff: std::sync::Mutex<std::collections::HashMap<String, crate::id::Millis>>,
}

impl Shared {
    /// Commits and tells the followers.
    pub(crate) async fn commit(
        &self,
        session: SessionId,
        write: Write,
    ) -> Result<Committed, StoreError> {
        self.time.know(&*self.store).await;
        let committed = self
            .store
            .commit(Commit {
                session,
                at: self.time.now(),
                write,
            })
            .await?;
        if !committed.events.is_empty() {
            self.hub.wrote(&committed.tail);
            self.noted(&committed.tail);
        }
        Ok(committed)
    }

    /// Rings for the notices that a commit has put into the session's outbox.
    pub(crate) fn noted(&self, tail: &Tail) {
        if tail.session.is_owing() {
            self.owing([tail.session.id]);
        }
    }

    /// Rings for sessions that owe others a notice.
    pub(crate) fn owing(&self, sessions: impl IntoIterator<Item = SessionId>) {
        let mut owing = self
            .owing
            .sessions
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        owing.extend(sessions);
        if !owing.is_empty() {
            self.owing.bell.notify_one();
        }
    }

    /// Waits for sessions that owe others a notice.
    pub(crate) async fn next_owing(&self) -> Vec<SessionId> {
        self.owing.bell.notified().await;
        let mut owing = self
            .owing
            .sessions
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        std::mem::take(&mut *owing).into_iter().collect()
    }
}

/// Sessions whose outboxes are to be emptied. A bell that may be lost: the recovery loop rings again.
#[derive(Default)]
pub(crate) struct Owing {
    sessions: std::sync::Mutex<std::collections::BTreeSet<SessionId>>,
    bell: tokio::sync::Notify,
}

/// One start of one process.
pub struct Node {
    shared: Arc<Shared>,
    coordinator: Coordinator,
}

/// A piece of a log as a reader meets it.
#[derive(Clone, Debug, PartialEq)]
pub enum Followed {
    Event(Record),
    /// Every event up to this seq has been given; what comes now is new.
    Synced(Seq),
}

/// Events of a page.
const PAGE: u32 = 256;

/// How often a fork or a revert is made anew because the history has changed meanwhile.
const EDITS: u32 = 8;

impl Node {
    /// Starts the loops of renewal and recovery on the current tokio runtime.
    #[must_use]
    pub fn start(ports: Ports, settings: Settings, config: Arc<SharedConfig>) -> Arc<Self> {
        Self::start_as(Identity::default(), ports, settings, config)
    }

    /// Like [`Node::start`], for a node that tells others who it is. Its owner is used for one start.
    #[must_use]
    pub fn start_as(
        identity: Identity,
        ports: Ports,
        settings: Settings,
        config: Arc<SharedConfig>,
    ) -> Arc<Self> {
        let shared = Arc::new(Shared {
            store: ports.store,
            plugins: ports.plugins,
            time: StoreTime::new(Arc::clone(&ports.clock)),
            clock: ports.clock,
            config,
            settings,
            owner: identity.owner,
            hub: Hub::default(),
            owing: Owing::default(),
            backoff: std::sync::Mutex::default(),
        });
        let coordinator = Coordinator::start(Arc::clone(&shared), identity);
        Arc::new(Self {
            shared,
            coordinator,
        })
    }

    /// This process start.
    #[must_use]
    pub fn owner(&self) -> OwnerId {
        self.shared.owner
    }

    #[must_use]
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    #[must_use]
    pub fn config(&self) -> &Arc<SharedConfig> {
        &self.shared.config
    }

    /// Creates a session, or finds the one that was created by this id with the same content. True if
    /// it was there already.
    ///
    /// # Errors
    /// [`Refused::SessionConflict`] where the id is held by another session.
    ///
    /// # Cancel safety
    /// Dropped midway, the session may exist; the same call again answers as if it were the first.
    pub async fn create(
        &self,
        session: SessionId,
        created: SessionCreated,
    ) -> Result<bool, StoreError> {
        let committed = self.shared.commit(session, Write::Create(created)).await?;
        Ok(committed.reply == Reply::Existed)
    }

    /// Accepts an input and wakes the session. Durable when it returns, before any work.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::InputConflict`], [`Refused::Cancelled`].
    ///
    /// # Cancel safety
    /// Dropped midway, the input may be admitted; the same id again gives the first admission.
    pub async fn admit(
        &self,
        session: SessionId,
        input: InputId,
        delivery: Delivery,
        content: InputContent,
    ) -> Result<Admission, StoreError> {
        let committed = self
            .shared
            .commit(
                session,
                Write::Admit {
                    input,
                    delivery,
                    content,
                },
            )
            .await?;
        let Reply::Admitted(admission) = committed.reply else {
            unreachable!("an admission is answered by one")
        };
        if committed.tail.is_runnable() {
            let scope = if delivery == Delivery::Steer {
                Scope::Steers
            } else {
                Scope::All
            };
            self.coordinator.wake(&committed.tail, scope);
        }
        Ok(admission)
    }

    /// Takes a pending input back.
    ///
    /// # Errors
    /// [`Refused::InputSettled`] once it is promoted or cancelled, [`Refused::InputNotFound`].
    pub async fn cancel_input(&self, session: SessionId, input: InputId) -> Result<(), StoreError> {
        self.shared
            .commit(session, Write::CancelInput { input })
            .await
            .map(drop)
    }

    /// Changes the delivery of a pending input.
    ///
    /// # Errors
    /// As [`Node::cancel_input`].
    pub async fn redeliver(
        &self,
        session: SessionId,
        input: InputId,
        delivery: Delivery,
    ) -> Result<(), StoreError> {
        let committed = self
            .shared
            .commit(session, Write::Redeliver { input, delivery })
            .await?;
        if delivery == Delivery::Steer {
            self.coordinator.wake(&committed.tail, Scope::Steers);
        }
        Ok(())
    }

    /// Sets the intent of what is pending in the scope and wakes the session.
    pub async fn wake(&self, session: SessionId, scope: Scope) -> Result<(), StoreError> {
        let committed = self.shared.commit(session, Write::Wake { scope }).await?;
        if committed.tail.is_runnable() {
            self.coordinator.wake(&committed.tail, scope);
        }
        Ok(())
    }

    /// Stops what the session does, and the children that it waits for. Durable when it returns; the
    /// cleanup may still go on. False if nothing was running or open.
    pub async fn interrupt(&self, session: SessionId) -> Result<bool, StoreError> {
        self.stop(session, false).await
    }

    /// Like [`Node::interrupt`]; pending steers, and a control that stands first, run afterwards.
    pub async fn interrupt_and_continue(&self, session: SessionId) -> Result<bool, StoreError> {
        self.stop(session, true).await
    }

    async fn stop(&self, session: SessionId, and_continue: bool) -> Result<bool, StoreError> {
        let write = Write::Interrupt {
            cause: None,
            and_continue,
        };
        self.coordinator.interrupting(session);
        let committed = self.shared.commit(session, write).await?;
        self.coordinator.interrupted(&committed.tail);
        if and_continue && committed.tail.inputs.iter().any(|input| input.intent) {
            self.coordinator.wake(&committed.tail, Scope::Steers);
        }
        Ok(matches!(
            committed.reply,
            Reply::Interrupted { was_busy: true }
        ))
    }

    /// Cancels the session and every session below it, for good. Durable for the session itself when
    /// it returns, and certain for those below. False if nothing was running or open.
    ///
    /// # Errors
    /// [`Refused::NotFound`].
    ///
    /// # Cancel safety
    /// Dropped midway, the mark may be there; the same call again changes nothing more.
    pub async fn cancel(&self, session: SessionId) -> Result<bool, StoreError> {
        self.coordinator.interrupting(session);
        let committed = self.shared.commit(session, Write::Cancel).await?;
        self.coordinator.interrupted(&committed.tail);
        Ok(matches!(
            committed.reply,
            Reply::Interrupted { was_busy: true }
        ))
    }

    /// Answers a request for approval and wakes the session.
    ///
    /// # Errors
    /// [`Refused::ApprovalNotFound`] if nobody asks under this key, [`Refused::ApprovalAnswered`] if
    /// the opposite was answered already, [`Refused::Cancelled`].
    ///
    /// # Cancel safety
    /// Dropped midway, the answer may be admitted; the same answer again is the same.
    pub async fn answer(&self, session: SessionId, answer: Approval) -> Result<(), StoreError> {
        let committed = self.shared.commit(session, Write::Answer(answer)).await?;
        if committed.tail.is_runnable() {
            self.coordinator.wake(&committed.tail, Scope::Steers);
        }
        Ok(())
    }

    /// Takes another store's events. Call it page by page, in the order of the seqs.
    ///
    /// # Errors
    /// [`Refused::OtherOrigin`] where strict, [`Refused::Replay`] if nothing could be taken. A record
    /// that cannot be taken behind others that were is named in the answer.
    ///
    /// # Cancel safety
    /// Dropped midway, the page may be taken; the same page again is found held.
    pub async fn replay(&self, session: SessionId, replay: Replay) -> Result<Replayed, StoreError> {
        let committed = self.shared.commit(session, Write::Replay(replay)).await?;
        let Reply::Replayed(replayed) = committed.reply else {
            unreachable!("a replay is answered by how far it got")
        };
        Ok(replayed)
    }

    /// Makes an imported session this store's own and wakes it. Does nothing to any other.
    ///
    /// # Errors
    /// [`Refused::NotFound`].
    pub async fn adopt(&self, session: SessionId) -> Result<(), StoreError> {
        let committed = self.shared.commit(session, Write::Adopt).await?;
        if committed.tail.is_runnable() {
            self.coordinator.wake(&committed.tail, Scope::All);
        }
        Ok(())
    }

    /// Begins `fork` with a copy of what `source` holds through a seq (all, if `None`), moved back to a
    /// settled place. The source is not changed. Gives the last seq that was copied.
    ///
    /// # Errors
    /// [`Refused::NotFound`], [`Refused::NothingToFork`] if no message stands there,
    /// [`Refused::SessionConflict`] if the id is another session's.
    ///
    /// # Cancel safety
    /// Dropped midway, the fork may be there, whole; the same call again finds it.
    pub async fn fork(
        &self,
        source: SessionId,
        through: Option<Seq>,
        fork: SessionId,
    ) -> Result<Seq, StoreError> {
        // The source may have grown since the first try.
        if through.is_none()
            && let Some(held) = self.shared.store.tail(fork).await?
            && let Some(forked) = held.session.forked
            && forked.session == source
        {
            return Ok(forked.through);
        }
        let mut tries = 0;
        let begun = loop {
            let tail = self.tail(source).await?;
            match edit::fork_of(&*self.shared.store, &tail, through).await {
                Err(StoreError::Refused(Refused::HeadMoved { .. })) if tries < EDITS => tries += 1,
                done => break done?,
            }
        };
        let through = begun.created.forked.map_or(0, |forked| forked.through);
        self.shared.commit(fork, Write::Fork(begun)).await?;
        Ok(through)
    }

    /// Hides what stands at and behind `before`, from a settled place on. Final with the next input;
    /// until then [`Node::clear_revert`] shows it again. Gives the last seq that is shown.
    ///
    /// # Errors
    /// [`Refused::Busy`] while the session runs or waits, [`Refused::NothingToRevert`].
    pub async fn revert(&self, session: SessionId, before: Seq) -> Result<Seq, StoreError> {
        let mut tries = 0;
        loop {
            let tail = self.tail(session).await?;
            let revert = edit::revert_of(&*self.shared.store, &tail, before).await?;
            let (through, head) = (revert.through, tail.session.head);
            let write = Write::Revert { revert, head };
            match self.shared.commit(session, write).await {
                // What it was made of may be gone: it is made anew.
                Err(StoreError::Refused(Refused::HeadMoved { .. })) if tries < EDITS => tries += 1,
                done => return done.map(|_| through),
            }
        }
    }

    /// Shows again what a revert hides.
    ///
    /// # Errors
    /// [`Refused::NotReverted`] if none does, or if an input has made it final.
    pub async fn clear_revert(&self, session: SessionId) -> Result<(), StoreError> {
        let write = Write::ClearRevert;
        self.shared.commit(session, write).await.map(drop)
    }

    /// Takes a session from the node that runs it: its claim expires now, and recovery goes on with it
    /// here or elsewhere. False if nobody has it.
    pub async fn take_over(&self, session: SessionId) -> Result<bool, StoreError> {
        let tail = self.tail(session).await?;
        let Some(claim) = &tail.claim else {
            return Ok(false);
        };
        let seen = Fence {
            execution: claim.execution,
            owner: claim.owner,
        };
        match self.shared.commit(session, Write::Expire { seen }).await {
            Ok(_) => Ok(true),
            // It ended meanwhile, or another has it already.
            Err(StoreError::Refused(Refused::ClaimChanged(_))) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Lifts a quarantine or a hold, counts attempts anew, and wakes the session for all that is pending.
    pub async fn resume(&self, session: SessionId) -> Result<(), StoreError> {
        let committed = self.shared.commit(session, Write::Release).await?;
        if committed.tail.is_runnable() {
            self.coordinator.wake(&committed.tail, Scope::All);
        }
        Ok(())
    }

    /// Runs the session until it is idle and gives how its last execution ended. Joins one that runs,
    /// here or on another node. With nothing to do it does nothing, unless `forced` opens a turn of
    /// this many steps.
    ///
    /// # Cancel safety
    /// Dropping it gives up the waiting and stops nothing.
    pub async fn run(
        &self,
        session: SessionId,
        forced: Option<u32>,
    ) -> Result<RunOutcome, StoreError> {
        self.coordinator.run(session, forced).await
    }

    /// Waits until the session has neither work nor a claim. At once when idle.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn idle(&self, session: SessionId) -> Result<Arc<Tail>, StoreError> {
        let mut rest = self.shared.hub.watch_rest(session);
        loop {
            let tail = self.tail(session).await?;
            if tail.claim.is_none() && !tail.is_runnable() {
                return Ok(tail);
            }
            // A terminal that another node wrote brings no message: look again after a while.
            let _ = tokio::time::timeout(self.shared.settings.poll_every, rest.changed()).await;
        }
    }

    /// The session's live end.
    ///
    /// # Errors
    /// [`Refused::NotFound`].
    pub async fn tail(&self, session: SessionId) -> Result<Arc<Tail>, StoreError> {
        self.shared
            .store
            .tail(session)
            .await?
            .ok_or_else(|| Refused::NotFound(session).into())
    }

    /// Components that the session's open step is bound to and that this node cannot get. The session
    /// goes on by itself once they are there.
    pub async fn missing(&self, tail: &Tail) -> Vec<Missing> {
        bound::missing(&self.shared.plugins, tail).await
    }

    /// What the session is doing.
    pub async fn status(&self, session: SessionId) -> Result<Status, StoreError> {
        let tail = self.tail(session).await?;
        Ok(tail.status(self.shared.store.now().await?))
    }

    /// Removes a session with all its rows, after it was cancelled: a parent that waits for it hears so,
    /// and the sessions below it are cancelled and stay. False if there was none.
    ///
    /// # Errors
    /// [`Refused::Owing`] if another session cannot take what this one owes it; it is cancelled then.
    ///
    /// # Cancel safety
    /// Dropped midway, the session may be cancelled and there, or gone; call it again.
    pub async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        let Some(mut tail) = self.shared.store.tail(session).await? else {
            return Ok(false);
        };
        // What is another store's, or a newer build's, is owed by those.
        if tail.session.is_ours() {
            tail = self.shared.commit(session, Write::Cancel).await?.tail;
            self.coordinator.deliver(session).await;
            if let Some(left) = self.shared.store.tail(session).await? {
                // Another delete was faster, and this is a session that was begun under its id since.
                if !left.session.cancelled {
                    return Ok(true);
                }
                if left.session.is_owing() {
                    return Err(Refused::Owing(session).into());
                }
            }
        }
        let deleted = self.shared.store.delete(session).await?;
        if let Some(claim) = &tail.claim {
            self.coordinator.stop(session, claim.execution);
        }
        Ok(deleted)
    }

    /// Live events of a session from now on; a slow watcher misses some.
    #[must_use]
    pub fn watch_live(&self, session: SessionId) -> tokio::sync::broadcast::Receiver<Watched> {
        self.shared.hub.watch_live(session)
    }

    /// For whoever carries live events between nodes.
    #[must_use]
    pub fn relay(&self) -> Relay {
        self.shared.hub.relay()
    }

    /// Another node wrote to a session, as its store tells: who follows it here looks at once.
    pub fn heard(&self, session: SessionId, head: Seq) {
        self.shared.hub.committed(session, head);
    }

    /// Change hints across sessions, with room for `capacity` of them.
    #[must_use]
    pub fn hints(&self, capacity: usize) -> Hints {
        self.shared.hub.hints(capacity)
    }

    /// Reads a log from behind `after`: its history in pages, one [`Followed::Synced`], and, where
    /// `follow`, every later event. A reader that pauses meets every event once. Ends after the marker
    /// if not `follow`, and when the session is deleted.
    ///
    /// # Errors
    /// The first item is [`Refused::NotFound`] for an unknown session.
    pub fn log(
        &self,
        session: SessionId,
        after: Seq,
        follow: bool,
    ) -> impl Stream<Item = Result<Followed, StoreError>> + Send + 'static {
        log(
            Arc::clone(&self.shared.store),
            self.shared.hub.clone(),
            session,
            after,
            follow,
            self.shared.settings.poll_every,
        )
    }

    /// All nodes that have a row, in the order of their starts, and the store's time.
    ///
    /// # Errors
    /// The store's.
    pub async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        self.shared.store.nodes().await
    }

    /// Asks a node to drain, this one or another. It reads that with its next renewal, takes no new
    /// claim from then on, hands over what it has, and its process ends as after SIGTERM.
    ///
    /// # Errors
    /// [`DrainError`].
    ///
    /// # Cancel safety
    /// Dropped midway, it may be asked or not; asked again, it drains already.
    pub async fn drain(&self, owner: OwnerId) -> Result<(), DrainError> {
        let before = self.shared.store.node_drain(owner).await?;
        let before = before.ok_or(DrainError::Unknown(owner))?;
        match before.state(self.shared.store.now().await?) {
            NodeState::Stopped => return Err(DrainError::Stopped(owner)),
            NodeState::Gone => return Err(DrainError::Gone(owner)),
            NodeState::Draining => return Err(DrainError::Draining(owner)),
            NodeState::Live => {}
        }
        if owner == self.owner() {
            self.coordinator.drain();
        }
        Ok(())
    }

    /// Resolves once somebody has asked this node to drain. It goes on until [`Node::shutdown`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn drain_asked(&self) {
        self.coordinator.drain_asked().await;
    }

    /// How this node does, as far as it can tell without its store.
    #[must_use]
    pub fn pulse(&self) -> Pulse {
        self.coordinator.pulse()
    }

    /// Stops taking sessions, lets steps in flight end for the configured grace, then interrupts what
    /// still runs as `shutdown`, so that another process or the next start goes on at once.
    pub async fn shutdown(&self) {
        self.coordinator.shutdown().await;
    }

    /// Interrupts at once what a running [`Node::shutdown`] still waits for.
    pub fn shutdown_now(&self) {
        self.coordinator.shutdown_now();
    }
}

/// Reads a log of a store. See [`Node::log`]; without a hub's messages it polls.
pub fn log(
    store: Arc<dyn Store>,
    hub: Hub,
    session: SessionId,
    after: Seq,
    follow: bool,
    poll_every: Duration,
) -> impl Stream<Item = Result<Followed, StoreError>> + Send + 'static {
    struct Reader {
        store: Arc<dyn Store>,
        heads: tokio::sync::watch::Receiver<Seq>,
        cursor: Seq,
        page: std::collections::VecDeque<Record>,
        synced: bool,
        ended: bool,
    }
    // Subscribed before the first read, so that no commit falls between the two.
    let heads = hub.watch_head(session);
    let reader = Reader {
        store,
        heads,
        cursor: after,
        page: std::collections::VecDeque::new(),
        synced: false,
        ended: false,
    };
    futures::stream::unfold(reader, move |mut reader| async move {
        loop {
            if reader.ended {
                return None;
            }
            if let Some(record) = reader.page.pop_front() {
                reader.cursor = record.seq;
                // A type of a newer build is not for this reader, but moves its cursor.
                if !crate::event::knows(&record.kind, record.version) {
                    continue;
                }
                return Some((Ok(Followed::Event(record)), reader));
            }
            match reader.store.events(session, reader.cursor, PAGE).await {
                Err(error) => {
                    reader.ended = true;
                    return Some((Err(error), reader));
                }
                Ok(None) => {
                    reader.ended = true;
                    if reader.synced {
                        return None;
                    }
                    return Some((Err(Refused::NotFound(session).into()), reader));
                }
                Ok(Some((records, _))) if !records.is_empty() => reader.page.extend(records),
                // It was deleted, and another was begun under its id.
                Ok(Some((_, head))) if reader.synced && head < reader.cursor => return None,
                Ok(Some((_, head))) => {
                    if !reader.synced {
                        reader.synced = true;
                        reader.ended = !follow;
                        return Some((Ok(Followed::Synced(head.max(reader.cursor))), reader));
                    }
                    let _ = tokio::time::timeout(poll_every, reader.heads.changed()).await;
                }
            }
        }
    })
}
