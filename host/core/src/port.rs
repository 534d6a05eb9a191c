//! The ports besides [`crate::plugin::Plugins`]: [`Store`] and [`Clock`], and what each promises.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::BoxError;
use crate::claim::{Claim, Fence};
use crate::commit::{Commit, Refused, Reply};
use crate::event::{Event, Record};
use crate::history::{Item, Order, Size};
use crate::id::{Digest, ExecutionId, Millis, OwnerId, Seq, SessionId};
use crate::model::Range;
use crate::nodes::{Beat, Beaten, Lag, NodeRow};
use crate::plugin::{Kind, PluginInfo};
use crate::tail::{Call, Execution, Input, Session, StepRow, Tail};

/// Time as the host sees it. The store judges expiry by its own.
pub trait Clock: Send + Sync + 'static {
    /// Wall time. May step.
    fn wall(&self) -> Millis;
    /// Milliseconds since some instant, never going back, for leases and time-outs.
    fn monotonic(&self) -> Millis;
}

/// The machine's own clocks.
#[derive(Debug)]
pub struct SystemClock {
    start: Duration,
}

impl Default for SystemClock {
    fn default() -> Self {
        Self {
            start: since_boot(),
        }
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> Millis {
        let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        since.map_or(0, |since| since.as_millis() as Millis)
    }

    fn monotonic(&self) -> Millis {
        since_boot().saturating_sub(self.start).as_millis() as Millis
    }
}

/// A clock that goes on while the machine is suspended, as leases do in a store elsewhere: what wakes up
/// after a night lets go of its claims at once.
#[cfg(target_os = "linux")]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    Duration::try_from(clock_gettime(ClockId::Boottime)).unwrap_or_default()
}

/// A clock that may stand still while the machine is suspended: what wakes up lets go of its claims when the
/// store does not confirm them.
#[cfg(not(target_os = "linux"))]
fn since_boot() -> Duration {
    static FIRST: std::sync::LazyLock<std::time::Instant> =
        std::sync::LazyLock::new(std::time::Instant::now);
    FIRST.elapsed()
}

/// Why a store gave no answer, sorted by what the caller does next.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// Judged and refused; nothing was stored.
    #[error(transparent)]
    Refused(#[from] Refused),
    /// Transient, or the disk is full. Whether a commit was stored is not known; repeating it with the
    /// same event ids is safe.
    #[error("the store could not {action}")]
    Unavailable {
        action: &'static str,
        #[source]
        cause: BoxError,
    },
    /// The stored rows do not fit each other.
    #[error("session {session} is damaged: {cause}")]
    Damaged { session: SessionId, cause: String },
}

/// A commit that is durable.
#[derive(Clone, Debug)]
pub struct Committed {
    /// With their seqs.
    pub events: Vec<Event>,
    /// The tail right after it.
    pub tail: Arc<Tail>,
    pub reply: Reply,
}

/// What the recovery loop finds. Hints: each is judged again in its own transaction.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Scan {
    /// Claims past their expiry, oldest first.
    pub expired: Vec<Claim>,
    /// Runnable sessions without a claim.
    pub due: Vec<SessionId>,
    /// Sessions whose wait has a timer that is due.
    pub timers: Vec<SessionId>,
    /// Sessions that owe others a notice.
    pub owing: Vec<SessionId>,
}

/// A session in a list.
#[derive(Clone, Debug, PartialEq)]
pub struct Listed {
    pub session: Session,
    pub claim: Option<Claim>,
    pub runnable: bool,
    pub pending_inputs: u64,
}

/// Rows of a session for checks and comparisons.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Dump {
    pub events: Vec<Record>,
    pub session: Option<Session>,
    pub claim: Option<Claim>,
    pub items: Vec<Item>,
    pub inputs: Vec<Input>,
    pub steps: Vec<StepRow>,
    pub calls: Vec<Call>,
    pub executions: Vec<Execution>,
}

/// A name and the component that it leads to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alias {
    pub kind: Kind,
    pub alias: String,
    pub digest: Digest,
    /// The artifact that it was loaded from, if it came from a registry.
    pub source: Option<String>,
}

/// Where sessions live.
///
/// `commit` loads the tail, calls [`crate::commit::apply`] and stores what it says, in one
/// transaction. Reads see whole commits. Row merges: a [`StepRow`] written again keeps the usage and
/// `settled_at` that it had where the new one has none; an [`Execution`] written with `started == 0`
/// only adds its end.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// Applies one commit; when it returns, the commit is durable.
    ///
    /// # Cancel safety
    /// Dropped midway, the commit may or may not be stored. Repeat it with the same event ids; a
    /// duplicate is answered by [`Reply::Duplicate`].
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError>;

    /// The live end of a session.
    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError>;

    /// Events with a seq greater than `after`, oldest first, at most `limit`, unknown types included;
    /// and the head at the time of reading. `None` for an unknown session.
    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError>;

    /// Items of a range in the given order, at most `limit`.
    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError>;

    /// How much a range of items holds.
    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError>;

    /// As [`Store::items`], for an execution of this process that holds the session's claim: nobody else
    /// adds items as long as it does, so a store may answer by what it wrote for it. To anybody else
    /// that may be out of date.
    async fn items_held(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.items(session, range, order, limit).await
    }

    /// As [`Store::measure`], by the same right.
    async fn measure_held(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.measure(session, range).await
    }

    /// Inputs of a session in admission order, pending ones only unless `all`.
    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError>;

    /// Sessions, newest first, created before (`created_at`, id) of `before`, at most `limit`.
    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError>;

    /// Everything of a session.
    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError>;

    /// Removes a session with all its rows. False if there was none. A running execution finds its
    /// claim lost at its next write.
    async fn delete(&self, session: SessionId) -> Result<bool, StoreError>;

    /// Claims past expiry, runnable sessions, due timers and full outboxes, at most `limit` of each.
    async fn scan(&self, limit: u32) -> Result<Scan, StoreError> {
        self.scan_within(limit, limit).await
    }

    /// Like [`Store::scan`], for one who could run `places` sessions: no more runnable ones are listed.
    /// Where the asking node has a row among those of others, of claims, runnable sessions and timers it
    /// is told its share alone, by its free places beside theirs, and one of each at least.
    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError>;

    /// What waits for a recovery loop, without taking any of it.
    async fn lag(&self) -> Result<Lag, StoreError>;

    /// Those of these sessions whose claim is this owner's and bears an interrupt.
    async fn interrupted(
        &self,
        owner: OwnerId,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, StoreError> {
        let mut marked = Vec::new();
        for session in sessions {
            // One that cannot be read keeps nothing from the others.
            if let Ok(Some(tail)) = self.tail(*session).await
                && let Some(claim) = &tail.claim
                && claim.interrupt
                && claim.owner == owner
            {
                marked.push(*session);
            }
        }
        Ok(marked)
    }

    /// Renews claims and the row of the node that holds them, in one statement.
    ///
    /// # Cancel safety
    /// Dropped midway, it may or may not be done, and counts as not confirmed.
    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError>;

    /// Renews the claims of these executions to `lease_ms` from now. Gives those that were renewed; the
    /// others are lost.
    async fn renew(
        &self,
        owner: OwnerId,
        executions: &[Fence],
        lease_ms: u64,
    ) -> Result<HashSet<ExecutionId>, StoreError> {
        let beat = Beat {
            owner,
            executions: executions.to_vec(),
            lease_ms,
            presence: None,
        };
        Ok(self.beat(&beat).await?.renewed)
    }

    /// All nodes that have a row, in the order of their starts, and the time of reading.
    async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError>;

    /// Asks a node that lives to drain, which it reads with its next renewal. Gives its row as it was
    /// before; one that has ended is left as it is. `None` for an unknown node.
    ///
    /// # Cancel safety
    /// Dropped midway, it may be asked or not.
    async fn node_drain(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError>;

    /// Removes the rows of nodes that ended more than `past_ms` ago. Gives how many.
    async fn nodes_forget(&self, past_ms: u64) -> Result<u64, StoreError>;

    /// What this store is called as the origin of what is exported from it; the same for ever.
    async fn name(&self) -> Result<String, StoreError>;

    /// The store's clock.
    async fn now(&self) -> Result<Millis, StoreError>;

    /// Keeps bytes under their SHA-256.
    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError>;
    /// Bytes by their SHA-256.
    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError>;

    /// Keeps a component's bytes and what is known of it.
    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError>;
    /// What is known of a component.
    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError>;
    /// A component's bytes.
    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError>;
    /// All components.
    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError>;
    /// Removes a component. The caller has made sure that nothing needs it.
    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError>;
    /// Points a name at a component, loaded from `source` if that is known, or takes the name away.
    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
        source: Option<&str>,
    ) -> Result<(), StoreError>;
    /// All names, by kind and alias.
    async fn aliases(&self) -> Result<Vec<Alias>, StoreError>;

    /// The component that a name leads to, for a decision. A change that another process makes is seen
    /// after this one's next commit or renewal at the latest, and so by the next step of each session;
    /// one of this process at once.
    async fn alias(&self, kind: Kind, alias: &str) -> Result<Option<Digest>, StoreError> {
        let aliases = self.aliases().await?.into_iter();
        let mut named = aliases.filter(|name| name.kind == kind && name.alias == alias);
        Ok(named.next().map(|name| name.digest))
    }
    /// Digests that open steps refer to.
    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError>;
}
