//! STORE-1: stores that break their promise fail the suite.

use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Commit, Known, Write, apply};
use mainstay_core::event::Record;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::port::{Committed, Dump, Store, StoreError};
use mainstay_test_conformance::{
    Harness, claim_5, log_1, log_2, log_8, store_1_watchers_are_told_after_the_commit,
};
use mainstay_test_support::delegate::{Delegate, Delegating};
use mainstay_test_support::{ManualClock, MemoryStore};

/// How a store is broken.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Not,
    IgnoresTheFence,
    LeavesAGap,
    TellsBeforeTheCommit,
}

struct BrokenStore {
    inner: MemoryStore,
    broken: Broken,
    /// What was answered and is not stored yet.
    owed: Mutex<Option<Commit>>,
}

impl BrokenStore {
    fn gap(&self, mut records: Vec<Record>) -> Vec<Record> {
        if self.broken == Broken::LeavesAGap {
            records
                .iter_mut()
                .filter(|record| record.seq >= 3)
                .for_each(|record| record.seq += 1);
        }
        records
    }

    /// Answers as if the commit were stored; it is so before the next one.
    async fn told_before(&self, commit: Commit) -> Result<Committed, StoreError> {
        let owed = self.owed.lock().unwrap().take();
        if let Some(owed) = owed {
            self.inner.commit(owed).await?;
        }
        let tail = self.inner.tail(commit.session).await?;
        let now = self.inner.now().await?;
        let applied = apply(tail.as_deref(), &commit, &Known::default(), now)?;
        *self.owed.lock().unwrap() = Some(commit);
        Ok(Committed {
            events: applied.events,
            tail: Arc::new(applied.tail),
            reply: applied.reply,
        })
    }
}

#[async_trait]
impl Delegate for BrokenStore {
    fn inner(&self) -> &dyn Store {
        &self.inner
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed, StoreError> {
        if let (Broken::IgnoresTheFence, Write::Append(append)) = (self.broken, &mut commit.write)
            && let Some(claim) = self
                .inner
                .tail(commit.session)
                .await?
                .and_then(|tail| tail.claim.clone())
        {
            append.fence = Fence {
                execution: claim.execution,
                owner: claim.owner,
            };
        }
        if self.broken == Broken::TellsBeforeTheCommit {
            return self.told_before(commit).await;
        }
        self.inner.commit(commit).await
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        Ok(self
            .inner
            .events(session, after, limit)
            .await?
            .map(|(records, head)| (self.gap(records), head)))
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        let dump = self.inner.dump(session).await?;
        Ok(Dump {
            events: self.gap(dump.events.clone()),
            ..dump
        })
    }
}

fn open(broken: Broken) -> Harness {
    let clock = Arc::new(ManualClock::default());
    let store = BrokenStore {
        inner: MemoryStore::new(clock.clone()),
        broken,
        owed: Mutex::default(),
    };
    Harness {
        store: Arc::new(Delegating(store)),
        clock,
        keep: Box::new(()),
    }
}

async fn fails<F: Future<Output = ()> + Send + 'static>(
    case: fn(Harness) -> F,
    broken: Broken,
) -> bool {
    tokio::spawn(case(open(broken))).await.is_err()
}

#[tokio::test]
async fn store_1_a_broken_store_fails_the_suite() {
    assert!(!fails(log_1, Broken::Not).await && !fails(claim_5, Broken::Not).await);
    assert!(!fails(log_8, Broken::Not).await && !fails(log_2, Broken::Not).await);
    let watched = store_1_watchers_are_told_after_the_commit;
    assert!(!fails(watched, Broken::Not).await);
    assert!(fails(claim_5, Broken::IgnoresTheFence).await);
    assert!(fails(log_1, Broken::LeavesAGap).await);
    assert!(fails(log_8, Broken::LeavesAGap).await);
    assert!(fails(watched, Broken::TellsBeforeTheCommit).await);
    assert!(fails(log_2, Broken::TellsBeforeTheCommit).await);
}
