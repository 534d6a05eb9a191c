//! One process's connection to a store that outlives it. It counts the commits of executions and
//! recoveries, and at a chosen one the process dies, or stands still while others act.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::nodes::{Beat, Beaten, Lag, NodeRow};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Alias, Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::tail::{Input, Tail};
use tokio::sync::RwLock;
use tokio_util::sync::CancellationToken;

/// What happens at a commit. They are counted from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The process dies and the commit is not applied.
    Before(usize),
    /// The process dies, the commit is applied and never answered.
    After(usize),
    /// The process stands still before it until it is let go on.
    Hold(usize),
}

/// A store as one process has it.
pub(crate) struct Link {
    inner: Arc<dyn Store>,
    cut: Option<Cut>,
    commits: AtomicUsize,
    dead: AtomicBool,
    /// The cut is reached: the process is dead, or stands still.
    reached: CancellationToken,
    /// It may go on.
    go_on: CancellationToken,
    /// The commit before which it stood still is answered, or given up.
    passed: CancellationToken,
    /// Shared by commits until they are counted: others see them in the store before that.
    under_way: RwLock<()>,
}

impl Link {
    pub(crate) fn new(inner: Arc<dyn Store>, cut: Option<Cut>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            cut,
            commits: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            reached: CancellationToken::new(),
            go_on: CancellationToken::new(),
            passed: CancellationToken::new(),
            under_way: RwLock::new(()),
        })
    }

    /// Commits of executions and recoveries so far.
    pub(crate) fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    /// Returns once the cut is reached.
    pub(crate) async fn reached(&self) {
        self.reached.cancelled().await;
    }

    /// Whether it is, once all that the store holds is counted.
    pub(crate) async fn has_reached(&self) -> bool {
        let _counted = self.under_way.write().await;
        self.reached.is_cancelled()
    }

    /// Lets a process that stands still go on.
    pub(crate) fn go_on(&self) {
        self.go_on.cancel();
    }

    /// Returns once the commit before which the process stood still is answered, or given up: a process
    /// that hears meanwhile that it has lost its claim drops what it was about.
    pub(crate) async fn passed(&self) {
        self.passed.cancelled().await;
    }

    /// From now on the process gets no answer any more, like one that is gone.
    pub(crate) fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.reached.cancel();
    }

    async fn alive(&self) {
        if self.dead.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
    }
}

/// Passes a call on, unless the process is dead.
macro_rules! pass {
    ($self:ident, $call:ident($($argument:expr),*)) => {{
        $self.alive().await;
        let answer = $self.inner.$call($($argument),*).await;
        $self.alive().await;
        answer
    }};
}

#[async_trait]
impl Store for Link {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.alive().await;
        // What clients write is not the process's own.
        let own = matches!(
            commit.write,
            Write::Claim { .. } | Write::Append(_) | Write::Recover { .. }
        );
        if !own {
            return pass!(self, commit(commit));
        }
        let next = self.commits() + 1;
        let mut held = None;
        match self.cut {
            Some(Cut::Before(at)) if at == next => {
                self.die();
                self.alive().await;
            }
            Some(Cut::Hold(at)) if at == next => {
                // However this call ends.
                held = Some(self.passed.clone().drop_guard());
                self.reached.cancel();
                self.go_on.cancelled().await;
            }
            _ => {}
        }
        let under_way = self.under_way.read().await;
        let committed = self.inner.commit(commit).await;
        // What was refused is no commit.
        if committed.is_ok() {
            let at = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
            if self.cut == Some(Cut::After(at)) {
                self.die();
            }
        }
        drop((held, under_way));
        self.alive().await;
        committed
    }

    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        pass!(self, tail(session))
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        pass!(self, events(session, after, limit))
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        pass!(self, items(session, range, order, limit))
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        pass!(self, measure(session, range))
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        pass!(self, inputs(session, all))
    }

    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        pass!(self, sessions(before, limit))
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        pass!(self, dump(session))
    }

    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        pass!(self, delete(session))
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        pass!(self, scan_within(limit, places))
    }

    async fn lag(&self) -> Result<Lag, StoreError> {
        pass!(self, lag())
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        pass!(self, beat(beat))
    }

    async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        pass!(self, nodes())
    }

    async fn node_drain(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        pass!(self, node_drain(owner))
    }

    async fn nodes_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        pass!(self, nodes_forget(past_ms))
    }

    async fn name(&self) -> Result<String, StoreError> {
        pass!(self, name())
    }

    async fn now(&self) -> Result<Millis, StoreError> {
        pass!(self, now())
    }

    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        pass!(self, blob_put(digest, bytes))
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        pass!(self, blob(digest))
    }

    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        pass!(self, plugin_put(info, bytes))
    }

    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        pass!(self, plugin(digest))
    }

    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        pass!(self, plugin_bytes(digest))
    }

    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        pass!(self, plugins())
    }

    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        pass!(self, plugin_delete(digest))
    }

    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
        source: Option<&str>,
    ) -> Result<(), StoreError> {
        pass!(self, alias_put(kind, alias, digest, source))
    }

    async fn aliases(&self) -> Result<Vec<Alias>, StoreError> {
        pass!(self, aliases())
    }

    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        pass!(self, digests_in_use())
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mainstay_core::id::ExecutionId;
    use mainstay_store::SqliteStore;

    use super::*;

    /// The session is seen at rest before the process hears that its last commit was stored, and dies.
    #[tokio::test]
    async fn a_process_that_dies_with_its_last_commit_is_not_taken_for_one_at_rest() {
        let folder = tempfile::tempdir().unwrap();
        let options = mainstay_store::Options::default();
        let store = SqliteStore::open(folder.path().join("kit.db"), options).await;
        let link = Link::new(Arc::new(store.unwrap()), Some(Cut::After(1)));
        let under_way = link.under_way.read().await;
        let mut asked = std::pin::pin!(link.has_reached());
        assert!(futures::poll!(asked.as_mut()).is_pending());
        link.die();
        drop(under_way);
        assert!(asked.await);
        assert!(link.has_reached().await);
    }

    /// A renewal may tell the process that its claim is gone before its commit is let go on.
    #[tokio::test]
    async fn whoever_waits_for_a_commit_hears_that_it_was_given_up() {
        const DEADLINE: Duration = Duration::from_secs(60);
        let folder = tempfile::tempdir().unwrap();
        let options = mainstay_store::Options::default();
        let store = SqliteStore::open(folder.path().join("kit.db"), options).await;
        let link = Link::new(Arc::new(store.unwrap()), Some(Cut::Hold(1)));
        let commit = Commit {
            session: SessionId::new(),
            at: 0,
            write: Write::Claim {
                execution: ExecutionId::new(),
                owner: OwnerId::new(),
                lease_ms: 1,
                forced: None,
                resumed: false,
                by_itself: false,
            },
        };
        tokio::select! {
            _ = link.commit(commit) => panic!("it stands still"),
            () = link.reached() => {}
        }
        let passed = tokio::time::timeout(DEADLINE, link.passed()).await;
        passed.expect("the commit was dropped");
    }
}
