//! One process's connection to the store: it counts every commit that the process makes, those of the
//! courier and of the timers included, and a test says what becomes of each. A process that has died
//! gets no answer any more and reaches the store no more.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Commit, Refused};
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{ExecutionId, Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::tail::{Input, Tail};
use mainstay_test_support::MemoryStore;
use tokio::sync::Notify;

/// What becomes of a commit.
pub enum Fate {
    /// It goes to the store.
    Pass,
    /// The process dies before the store has it.
    DieBefore,
    /// The store has it, and the process dies before it hears so.
    DieAfter,
    /// The store is not asked.
    Refuse(Refused),
}

/// The fate of the process's `n`-th commit, counting from 0.
pub type Fates = Box<dyn Fn(&Commit, usize) -> Fate + Send + Sync>;

/// The connection.
pub struct Link {
    store: Arc<MemoryStore>,
    fates: Fates,
    commits: AtomicUsize,
    dead: AtomicBool,
    died: Notify,
}

impl Link {
    pub fn new(store: Arc<MemoryStore>, fates: Fates) -> Arc<Self> {
        Arc::new(Self {
            store,
            fates,
            commits: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            died: Notify::new(),
        })
    }

    /// Commits that the process has made or tried.
    pub fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Returns once the process has died.
    pub async fn died(&self) {
        let died = self.died.notified();
        if !self.is_dead() {
            died.await;
        }
    }

    /// Dies now.
    pub fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
    }

    async fn alive(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Store for Link {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.alive().await;
        let n = self.commits.fetch_add(1, Ordering::SeqCst);
        let fate = (self.fates)(&commit, n);
        match fate {
            Fate::Refuse(refused) => return Err(refused.into()),
            Fate::DieBefore => self.die(),
            Fate::Pass | Fate::DieAfter => {}
        }
        self.alive().await;
        let committed = self.store.commit(commit).await;
        if matches!(fate, Fate::DieAfter) {
            self.die();
        }
        self.alive().await;
        committed
    }

    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        self.alive().await;
        self.store.tail(session).await
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        self.alive().await;
        self.store.events(session, after, limit).await
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.alive().await;
        self.store.items(session, range, order, limit).await
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.alive().await;
        self.store.measure(session, range).await
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        self.alive().await;
        self.store.inputs(session, all).await
    }

    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        self.alive().await;
        self.store.sessions(before, limit).await
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        self.alive().await;
        self.store.dump(session).await
    }

    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        self.alive().await;
        self.store.delete(session).await
    }

    async fn scan(&self, limit: u32) -> Result<Scan, StoreError> {
        self.alive().await;
        self.store.scan(limit).await
    }

    async fn renew(
        &self,
        owner: OwnerId,
        executions: &[Fence],
        lease_ms: u64,
    ) -> Result<HashSet<ExecutionId>, StoreError> {
        self.alive().await;
        self.store.renew(owner, executions, lease_ms).await
    }

    async fn now(&self) -> Result<Millis, StoreError> {
        self.alive().await;
        self.store.now().await
    }

    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.alive().await;
        self.store.blob_put(digest, bytes).await
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.alive().await;
        self.store.blob(digest).await
    }

    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        self.alive().await;
        self.store.plugin_put(info, bytes).await
    }

    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        self.alive().await;
        self.store.plugin(digest).await
    }

    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.alive().await;
        self.store.plugin_bytes(digest).await
    }

    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        self.alive().await;
        self.store.plugins().await
    }

    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        self.alive().await;
        self.store.plugin_delete(digest).await
    }

    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
    ) -> Result<(), StoreError> {
        self.alive().await;
        self.store.alias_put(kind, alias, digest).await
    }

    async fn aliases(&self) -> Result<Vec<(Kind, String, String)>, StoreError> {
        self.alive().await;
        self.store.aliases().await
    }

    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        self.alive().await;
        self.store.digests_in_use().await
    }
}
