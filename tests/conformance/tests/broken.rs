//! STORE-1: stores that break their promise fail the suite.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{ExecutionId, Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::tail::{Input, Tail};
use mainstay_test_conformance::{Harness, claim_5, log_1, log_8};
use mainstay_test_support::{ManualClock, MemoryStore};

/// How a store is broken.
#[derive(Clone, Copy, PartialEq)]
enum Broken {
    Not,
    IgnoresTheFence,
    LeavesAGap,
}

struct BrokenStore {
    inner: MemoryStore,
    broken: Broken,
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
}

#[async_trait]
impl Store for BrokenStore {
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
        self.inner.commit(commit).await
    }
    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        self.inner.tail(session).await
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
    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        self.inner.items(session, range, order, limit).await
    }
    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        self.inner.measure(session, range).await
    }
    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        self.inner.inputs(session, all).await
    }
    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        self.inner.sessions(before, limit).await
    }
    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        let dump = self.inner.dump(session).await?;
        Ok(Dump {
            events: self.gap(dump.events.clone()),
            ..dump
        })
    }
    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        self.inner.delete(session).await
    }
    async fn scan(&self, limit: u32) -> Result<Scan, StoreError> {
        self.inner.scan(limit).await
    }
    async fn renew(
        &self,
        owner: OwnerId,
        executions: &[Fence],
        lease_ms: u64,
    ) -> Result<HashSet<ExecutionId>, StoreError> {
        self.inner.renew(owner, executions, lease_ms).await
    }
    async fn now(&self) -> Result<Millis, StoreError> {
        self.inner.now().await
    }
    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.inner.blob_put(digest, bytes).await
    }
    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.blob(digest).await
    }
    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        self.inner.plugin_put(info, bytes).await
    }
    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        self.inner.plugin(digest).await
    }
    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        self.inner.plugin_bytes(digest).await
    }
    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        self.inner.plugins().await
    }
    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        self.inner.plugin_delete(digest).await
    }
    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
    ) -> Result<(), StoreError> {
        self.inner.alias_put(kind, alias, digest).await
    }
    async fn aliases(&self) -> Result<Vec<(Kind, String, String)>, StoreError> {
        self.inner.aliases().await
    }
    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        self.inner.digests_in_use().await
    }
}

fn open(broken: Broken) -> Harness {
    let clock = Arc::new(ManualClock::default());
    let store = BrokenStore {
        inner: MemoryStore::new(clock.clone()),
        broken,
    };
    Harness {
        store: Arc::new(store),
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
    assert!(fails(claim_5, Broken::IgnoresTheFence).await);
    assert!(fails(log_1, Broken::LeavesAGap).await);
    assert!(fails(log_8, Broken::LeavesAGap).await);
}
