//! One process's connection to the store: it counts every commit that the process makes, those of the
//! courier and of the timers included, and a test says what becomes of each. A process that has died
//! gets no answer any more and reaches the store no more.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use async_trait::async_trait;
use mainstay_core::commit::{Commit, Refused};
use mainstay_core::nodes::{Beat, Beaten};
use mainstay_core::port::{Committed, Store, StoreError};
use mainstay_test_support::MemoryStore;
use mainstay_test_support::delegate::Delegate;
use tokio::sync::{Notify, watch};

/// What becomes of a commit.
pub enum Fate {
    /// It goes to the store.
    Pass,
    /// The process dies before the store has it.
    DieBefore,
    /// The store has it, and the process dies before it hears so.
    DieAfter,
    /// The store has it, and the process hears so once the permit is there.
    HearsLater(Arc<Notify>),
    /// The store is not asked.
    Refuse(Refused),
    /// The store is asked in vain.
    Fail(StoreError),
    /// The store has it, and the answer is lost.
    Unheard,
    /// Another commit comes first.
    Overtaken(Box<Commit>),
}

/// The fate of the process's `n`-th commit, counting from 0.
pub type Fates = Box<dyn Fn(&Commit, usize) -> Fate + Send + Sync>;

/// The connection.
pub struct Link {
    store: Arc<MemoryStore>,
    fates: Fates,
    commits: AtomicUsize,
    dead: AtomicBool,
    /// Renewals fail.
    mute: AtomicBool,
    /// The process stands still as by SIGSTOP, as far as the store can see.
    stopped: watch::Sender<bool>,
    died: Notify,
}

impl Link {
    pub fn new(store: Arc<MemoryStore>, fates: Fates) -> Arc<Self> {
        Arc::new(Self {
            store,
            fates,
            commits: AtomicUsize::new(0),
            dead: AtomicBool::new(false),
            mute: AtomicBool::new(false),
            stopped: watch::Sender::new(false),
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

    /// Whether renewals fail from now on.
    pub fn mute(&self, mute: bool) {
        self.mute.store(mute, Ordering::SeqCst);
    }

    /// Stops the process, or lets it go on: nothing of it reaches the store in between.
    pub fn stop(&self, stopped: bool) {
        self.stopped.send_replace(stopped);
    }

    /// Dies now.
    pub fn die(&self) {
        self.dead.store(true, Ordering::SeqCst);
        self.died.notify_one();
    }

    async fn alive(&self) {
        let mut stopped = self.stopped.subscribe();
        // The sender is this link's own.
        let _ = stopped.wait_for(|stopped| !stopped).await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Delegate for Link {
    fn inner(&self) -> &dyn Store {
        &*self.store
    }

    async fn before(&self) -> Result<(), StoreError> {
        self.alive().await;
        Ok(())
    }

    async fn after(&self) -> Result<(), StoreError> {
        self.alive().await;
        Ok(())
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        self.alive().await;
        if self.mute.load(Ordering::SeqCst) {
            return Err(StoreError::Unavailable {
                action: "renew",
                cause: "renewals fail".into(),
            });
        }
        let beaten = self.store.beat(beat).await;
        self.alive().await;
        beaten
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.alive().await;
        let n = self.commits.fetch_add(1, Ordering::SeqCst);
        let fate = (self.fates)(&commit, n);
        match fate {
            Fate::Refuse(refused) => return Err(refused.into()),
            Fate::Fail(error) => return Err(error),
            Fate::DieBefore => self.die(),
            Fate::Overtaken(first) => {
                self.store.commit(*first).await?;
                return self.store.commit(commit).await;
            }
            Fate::Unheard => {
                self.store.commit(commit).await?;
                return Err(StoreError::Unavailable {
                    action: "commit",
                    cause: "the answer is lost".into(),
                });
            }
            Fate::Pass | Fate::DieAfter | Fate::HearsLater(_) => {}
        }
        self.alive().await;
        let committed = self.store.commit(commit).await;
        match fate {
            Fate::DieAfter => self.die(),
            Fate::HearsLater(permit) => permit.notified().await,
            _ => {}
        }
        self.alive().await;
        committed
    }
}
