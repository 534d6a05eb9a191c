//! A store that kills its process at a chosen commit: before it is applied, or after it and before
//! the answer. From then on the process gets no answer any more, like one that is gone.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::port::{Committed, Store, StoreError};
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
    commits: AtomicUsize,
    dead: AtomicBool,
    died: Notify,
}

impl Crashing {
    pub fn new(inner: Arc<dyn Store>, at: Option<Point>) -> Arc<Self> {
        Arc::new(Self {
            inner,
            at,
            commits: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            died: Notify::new(),
        })
    }

    /// Commits of executions and recoveries so far.
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
        if !own {
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
}
