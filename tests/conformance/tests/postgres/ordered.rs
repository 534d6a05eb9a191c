//! Several nodes' stores in one database as one store, each commit by the next of them. Commits that have
//! to do with each other are stored in the order in which they came, as a store with one writer does, so
//! that the answers can be compared. Others are stored at once.

use std::collections::{HashSet, VecDeque};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{ExecutionId, SessionId};
use mainstay_core::model::Range;
use mainstay_core::port::{Committed, Store, StoreError};
use mainstay_store::PostgresStore;
use mainstay_test_support::delegate::Delegate;
use tokio::sync::watch;

pub(crate) struct Ordered {
    nodes: Vec<Arc<PostgresStore>>,
    /// Whether an execution's commits are all by one node, as they are where it runs.
    bound: bool,
    next: AtomicUsize,
    /// What the commits that came and are not done have to do with.
    queue: Mutex<VecDeque<(usize, HashSet<String>)>>,
    done: watch::Sender<usize>,
}

impl Ordered {
    pub(crate) fn new(nodes: Vec<Arc<PostgresStore>>, bound: bool) -> Self {
        Self {
            nodes,
            bound,
            next: AtomicUsize::new(0),
            queue: Mutex::default(),
            done: watch::Sender::new(0),
        }
    }

    /// Where an execution runs.
    fn home(&self, execution: ExecutionId) -> &PostgresStore {
        let number = execution.0.as_u128() % self.nodes.len() as u128;
        &self.nodes[number as usize]
    }

    /// Where the session runs, if it does.
    async fn running(&self, session: SessionId) -> Option<&PostgresStore> {
        let tail = self.inner().tail(session).await.unwrap()?;
        let claim = tail.claim.as_ref().filter(|_| self.bound)?;
        Some(self.home(claim.execution))
    }

    fn may_go(&self, number: usize) -> bool {
        let queue = self.queue.lock().unwrap();
        let own = queue.iter().find(|(other, _)| *other == number).unwrap();
        let mut earlier = queue.iter().take_while(|(other, _)| *other != number);
        earlier.all(|(_, names)| names.is_disjoint(&own.1))
    }
}

/// Everything by which a commit may stand in another's way.
fn names(commit: &Commit) -> HashSet<String> {
    let mut names = HashSet::from([commit.session.to_string()]);
    names.extend(commit.input().map(|id| id.to_string()));
    names.extend(commit.event_ids().iter().map(ToString::to_string));
    names.extend(commit.replayed_inputs().iter().map(ToString::to_string));
    // Ids are derived from it.
    let execution = match &commit.write {
        Write::Claim { execution, .. } => Some(execution),
        Write::Append(append) => Some(&append.fence.execution),
        Write::Recover { seen, .. } | Write::Quarantine { seen, .. } => Some(&seen.execution),
        _ => None,
    };
    names.extend(execution.map(ToString::to_string));
    names
}

#[async_trait]
impl Delegate for Ordered {
    fn inner(&self) -> &dyn Store {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.nodes[number % self.nodes.len()].as_ref()
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut done = self.done.subscribe();
        let entry = (number, names(&commit));
        self.queue.lock().unwrap().push_back(entry);
        while !self.may_go(number) {
            done.changed().await.unwrap();
        }
        let node = match &commit.write {
            Write::Claim { execution, .. } if self.bound => self.home(*execution),
            Write::Append(append) if self.bound => self.home(append.fence.execution),
            _ => &self.nodes[number % self.nodes.len()],
        };
        let answer = node.commit(commit).await;
        self.queue
            .lock()
            .unwrap()
            .retain(|(other, _)| *other != number);
        self.done.send_modify(|count| *count += 1);
        answer
    }

    async fn items_held(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        match self.running(session).await {
            Some(node) => node.items_held(session, range, order, limit).await,
            None => self.items(session, range, order, limit).await,
        }
    }

    async fn measure_held(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        match self.running(session).await {
            Some(node) => node.measure_held(session, range).await,
            None => self.measure(session, range).await,
        }
    }
}
