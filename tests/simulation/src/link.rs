//! One process's connection to the store that all share: latency, failures, lost answers and
//! renewals, a stop, and the process's death at a chosen commit. A dead process gets no answer any
//! more, and neither do its guests.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::commit::Commit;
use mainstay_core::nodes::{Beat, Beaten};
use mainstay_core::port::{Committed, Store, StoreError};
use mainstay_test_support::delegate::Delegate;
use tokio::sync::watch;

use crate::judge::{Judge, Writer};
use crate::script::{Fault, When};
use crate::sim::Sim;

/// The connection of one process.
pub struct Link {
    pub writer: Writer,
    sim: Arc<Sim>,
    judge: Arc<Judge>,
    calls: AtomicU64,
    /// Where it dies; counts down.
    fate: Mutex<Option<When>>,
    dead: watch::Sender<bool>,
}

impl Link {
    #[must_use]
    pub fn new(writer: Writer, sim: Arc<Sim>, judge: Arc<Judge>) -> Arc<Self> {
        Arc::new(Self {
            writer,
            sim,
            judge,
            calls: AtomicU64::new(0),
            fate: Mutex::new(None),
            dead: watch::Sender::new(false),
        })
    }

    /// Lets the process die at this moment.
    pub fn doom(&self, when: When) {
        match when {
            When::Now => self.die(),
            when => *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = Some(when),
        }
    }

    /// Takes a death back that was still to come.
    pub fn spare(&self) {
        *self.fate.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    pub fn die(&self) {
        if !self.dead.send_replace(true) {
            self.judge.note(format!("{} dies", self.writer));
        }
    }

    #[must_use]
    pub fn is_dead(&self) -> bool {
        *self.dead.borrow()
    }

    /// Returns once the process has died.
    pub async fn died(&self) {
        // The sender lives as long as `self`.
        let _ = self.dead.subscribe().wait_for(|dead| *dead).await;
    }

    /// Returns while the process lives and is not stopped; never, once it is dead.
    pub async fn alive(&self) {
        self.sim.running(self.writer.node).await;
        if self.is_dead() {
            std::future::pending::<()>().await;
        }
    }

    /// What a message takes from here to there.
    async fn travel(&self) {
        let node = self.writer.node;
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let most = self.sim.latency_ms(node);
        let ms = self.sim.roll((node, self.writer.life, n), most + 1);
        if ms > 0 {
            tokio::time::sleep(Duration::from_millis(ms)).await;
        }
        self.alive().await;
    }

    /// Whether a fault strikes that has so many chances in a hundred.
    fn strikes(&self, percent: u32) -> bool {
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let roll = self
            .sim
            .roll(("fault", self.writer.node, self.writer.life, n), 100);
        roll < u64::from(percent)
    }

    /// Counts a commit down. True if the process dies at it.
    fn reached(&self, after: bool) -> bool {
        let mut fate = self.fate.lock().unwrap_or_else(PoisonError::into_inner);
        let left = match (&mut *fate, after) {
            (Some(When::Before(left)), false) | (Some(When::After(left)), true) => left,
            _ => return false,
        };
        *left = left.saturating_sub(1);
        *left == 0
    }
}

fn unavailable(action: &'static str, cause: &'static str) -> StoreError {
    StoreError::Unavailable {
        action,
        cause: cause.into(),
    }
}

#[async_trait]
impl Delegate for Link {
    fn inner(&self) -> &dyn Store {
        self.judge.store()
    }

    async fn before(&self) -> Result<(), StoreError> {
        self.alive().await;
        self.travel().await;
        let chance = self.sim.fault(self.writer.node, |fault| match fault {
            Fault::Down => Some(100),
            Fault::Fails(percent) => Some(percent),
            _ => None,
        });
        if chance.is_some_and(|percent| self.strikes(percent)) {
            return Err(unavailable("answer", "a simulated failure"));
        }
        Ok(())
    }

    async fn after(&self) -> Result<(), StoreError> {
        self.travel().await;
        Ok(())
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.before().await?;
        if self.reached(false) {
            self.die();
            self.alive().await;
        }
        let committed = self.judge.commit(&self.writer, commit).await;
        if committed.is_ok() && self.reached(true) {
            self.die();
            self.alive().await;
        }
        let chance = self.sim.fault(self.writer.node, |fault| match fault {
            Fault::Unanswered(percent) => Some(percent),
            _ => None,
        });
        let unanswered = committed.is_ok() && chance.is_some_and(|percent| self.strikes(percent));
        self.after().await?;
        if unanswered {
            return Err(unavailable("commit", "the answer was lost"));
        }
        committed
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        self.before().await?;
        let fault = self.sim.fault(self.writer.node, |fault| match fault {
            Fault::RenewalsLost | Fault::RenewalsUnanswered | Fault::RenewalsLate(_) => Some(fault),
            _ => None,
        });
        match fault {
            Some(Fault::RenewalsLost) => return Err(unavailable("renew", "the renewal was lost")),
            Some(Fault::RenewalsLate(ms)) => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                self.alive().await;
            }
            _ => {}
        }
        let beaten = self.inner().beat(beat).await;
        self.after().await?;
        if fault == Some(Fault::RenewalsUnanswered) {
            return Err(unavailable("renew", "the answer was lost"));
        }
        beaten
    }
}
