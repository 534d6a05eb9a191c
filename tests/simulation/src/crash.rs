//! A store that kills its process at a chosen commit: before it is applied, or after it and before
//! the answer. From then on the process gets no answer any more, like one that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::port::{Committed, Scan, Store, StoreError};
use mainstay_core::tail::Input;
use mainstay_test_support::delegate::Delegate;
use tokio::sync::Notify;

/// Where a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Point {
    Before(usize),
    After(usize),
}

/// One process's connection to a store that outlives it.
pub struct Crashing {
    inner: Arc<dyn Store>,
    at: Option<Point>,
    clients: AtomicBool,
    commits: AtomicUsize,
    scans: AtomicUsize,
    rows: AtomicUsize,
    dead: AtomicBool,
    died: Notify,
}

impl Crashing {
    pub fn new(inner: Arc<dyn Store>, at: Option<Point>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            at,
            clients: AtomicBool::new(false),
            commits: AtomicUsize::new(0),
            scans: AtomicUsize::new(0),
            rows: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            died: Notify::new(),
        })
    }

    /// Commits of executions and recoveries so far.
    pub fn commits(&self) -> usize {
        self.commits.load(Ordering::SeqCst)
    }

    /// From now on clients' writes count as commits too, so that the process can die at one.
    pub fn count_clients(&self) {
        self.clients.store(true, Ordering::SeqCst);
    }

    /// Looks of the recovery loop so far.
    pub fn scans(&self) -> usize {
        self.scans.load(Ordering::SeqCst)
    }

    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::SeqCst)
    }

    /// Events, items and inputs that were read so far, measured ones included.
    pub fn rows(&self) -> usize {
        self.rows.load(Ordering::SeqCst)
    }

    fn read(&self, rows: usize) {
        self.rows.fetch_add(rows, Ordering::SeqCst);
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
        self.died.notify_waiters();
        self.died.notify_one();
    }

    async fn alive(&self) {
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Delegate for Crashing {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn before(&self) -> Result<(), StoreError> {
        self.alive().await;
        Ok(())
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.alive().await;
        // Clients' writes are not the process's own.
        let own = matches!(
            commit.write,
            Write::Claim { .. } | Write::Append(_) | Write::Recover { .. }
        );
        if !own && !self.clients.load(Ordering::SeqCst) {
            return self.inner.commit(commit).await;
        }
        if self.at == Some(Point::Before(self.commits())) {
            self.die();
            self.alive().await;
        }
        let committed = self.inner.commit(commit).await;
        // What was refused is no commit.
        if committed.is_ok()
            && self.at == Some(Point::After(self.commits.fetch_add(1, Ordering::SeqCst)))
        {
            self.die();
        }
        self.alive().await;
        committed
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        self.alive().await;
        let page = self.inner.events(session, after, limit).await?;
        self.read(page.as_ref().map_or(0, |(records, _)| records.len()));
        Ok(page)
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.alive().await;
        let items = self.inner.items(session, range, order, limit).await?;
        self.read(items.len());
        Ok(items)
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.alive().await;
        let size = self.inner.measure(session, range).await?;
        self.read(size.items as usize);
        Ok(size)
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        self.alive().await;
        let inputs = self.inner.inputs(session, all).await?;
        self.read(inputs.len());
        Ok(inputs)
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        self.alive().await;
        self.scans.fetch_add(1, Ordering::SeqCst);
        self.inner.scan_within(limit, places).await
    }
}
