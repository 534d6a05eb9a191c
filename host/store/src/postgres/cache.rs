//! Tails as they were stored last, of the sessions that this process wrote last, with the version that
//! they were stored as. Another process may have written meanwhile: what is here is a guess that the
//! next commit's statement confirms or not. And the order of commits of one session within this
//! process: one after the other, so that they do not stand in each other's way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstay_core::id::{Millis, SessionId};
use mainstay_core::tail::Tail;
use tokio::sync::OwnedMutexGuard;

const MANY_TURNS: usize = 4096;

pub(super) struct Cache {
    kept: Mutex<Kept>,
    turns: Mutex<HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>>,
}

struct Kept {
    tails: HashMap<SessionId, Entry>,
    limit: usize,
    tick: u64,
}

struct Entry {
    tail: Arc<Tail>,
    version: i64,
    used: u64,
}

impl Cache {
    pub(super) fn new(limit: usize) -> Self {
        Self {
            kept: Mutex::new(Kept {
                tails: HashMap::new(),
                limit: limit.max(1),
                tick: 0,
            }),
            turns: Mutex::default(),
        }
    }

    pub(super) fn get(&self, session: SessionId) -> Option<(Arc<Tail>, i64)> {
        let mut kept = self.kept();
        kept.tick += 1;
        let tick = kept.tick;
        let entry = kept.tails.get_mut(&session)?;
        entry.used = tick;
        Some((entry.tail.clone(), entry.version))
    }

    /// Unless a newer one is kept: a reader may be slower than a commit beside it.
    pub(super) fn keep(&self, session: SessionId, tail: Arc<Tail>, version: i64) {
        let mut kept = self.kept();
        let before = kept.tails.get(&session);
        if before.is_some_and(|before| before.version > version) {
            return;
        }
        kept.tick += 1;
        let used = kept.tick;
        kept.tails.insert(
            session,
            Entry {
                tail,
                version,
                used,
            },
        );
        if kept.tails.len() > kept.limit {
            // The older half goes at once, so that this costs little on average.
            let mut used: Vec<u64> = kept.tails.values().map(|entry| entry.used).collect();
            let middle = used.len() / 2;
            let (_, &mut cut, _) = used.select_nth_unstable(middle);
            kept.tails.retain(|_, entry| entry.used > cut);
        }
    }

    pub(super) fn renewed(&self, session: SessionId, until: Millis) {
        if let Some(entry) = self.kept().tails.get_mut(&session)
            && let Some(claim) = &mut Arc::make_mut(&mut entry.tail).claim
        {
            claim.expires_at = until;
        }
    }

    pub(super) fn forget(&self, session: SessionId) {
        self.kept().tails.remove(&session);
    }

    /// Waits until it is one's turn with a session, in the order of asking.
    pub(super) async fn turn(&self, session: SessionId) -> Turn<'_> {
        let lock = {
            let mut turns = self.turns();
            if turns.len() > MANY_TURNS {
                // Left by waiters that gave up.
                turns.retain(|_, lock| Arc::strong_count(lock) > 1);
            }
            turns.entry(session).or_default().clone()
        };
        Turn {
            guard: Some(lock.lock_owned().await),
            session,
            cache: self,
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn turns(&self) -> MutexGuard<'_, HashMap<SessionId, Arc<tokio::sync::Mutex<()>>>> {
        self.turns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Held while a commit is judged and stored.
pub(super) struct Turn<'c> {
    guard: Option<OwnedMutexGuard<()>>,
    session: SessionId,
    cache: &'c Cache,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut turns = self.cache.turns();
        self.guard = None;
        // Others that wait hold it too.
        if turns
            .get(&self.session)
            .is_some_and(|lock| Arc::strong_count(lock) == 1)
        {
            turns.remove(&self.session);
        }
    }
}
