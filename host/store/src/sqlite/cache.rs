//! What is kept in memory of a file that one process owns: tails of sessions at work, and where names lead.

use std::collections::HashMap;
use std::sync::Arc;

use mainstay_core::id::{Millis, SessionId};
use mainstay_core::port::Alias;
use mainstay_core::tail::Tail;

/// All names, which every decision asks for. Only the owner of the file changes them.
#[derive(Default)]
pub(super) struct Names {
    /// Changes so far: what was read before one is not kept after it.
    pub(super) changes: u64,
    pub(super) read: Option<Arc<[Alias]>>,
}

impl Names {
    pub(super) fn change(&mut self) {
        self.changes += 1;
        self.read = None;
    }
}

/// Tails as they are on disk, of the sessions that were used last. Only the writer puts them in, after
/// its transaction is durable.
pub(super) struct Cache {
    tails: HashMap<SessionId, (Arc<Tail>, u64)>,
    limit: usize,
    tick: u64,
}

impl Cache {
    /// Empty, for so many tails.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            tails: HashMap::new(),
            limit,
            tick: 0,
        }
    }

    pub(super) fn get(&mut self, session: SessionId) -> Option<Arc<Tail>> {
        self.tick += 1;
        let (tail, used) = self.tails.get_mut(&session)?;
        *used = self.tick;
        Some(tail.clone())
    }

    pub(super) fn holds(&self, session: SessionId) -> bool {
        self.tails.contains_key(&session)
    }

    pub(super) fn keep(&mut self, tails: HashMap<SessionId, Arc<Tail>>) {
        self.tick += 1;
        let tick = self.tick;
        self.tails.extend(
            tails
                .into_iter()
                .map(|(session, tail)| (session, (tail, tick))),
        );
        if self.tails.len() > self.limit {
            // The older half goes at once, so that this costs little on average.
            let mut used: Vec<u64> = self.tails.values().map(|(_, used)| *used).collect();
            let middle = used.len() / 2;
            let (_, &mut cut, _) = used.select_nth_unstable(middle);
            self.tails.retain(|_, (_, used)| *used > cut);
        }
    }

    pub(super) fn renewed(&mut self, session: SessionId, until: Millis) {
        if let Some((tail, _)) = self.tails.get_mut(&session)
            && let Some(claim) = &mut Arc::make_mut(tail).claim
        {
            claim.expires_at = until;
        }
    }

    pub(super) fn forget(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        for session in sessions {
            self.tails.remove(&session);
        }
    }

    pub(super) fn clear(&mut self) {
        self.tails.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tails_that_were_not_used_go_first() {
        let tail = |id| {
            let created = mainstay_test_support::build::create(id);
            let known = mainstay_core::commit::Known::default();
            Arc::new(
                mainstay_core::commit::apply(None, &created, &known, 0)
                    .unwrap()
                    .tail,
            )
        };
        let ids: Vec<SessionId> = (0..5).map(|_| SessionId::new()).collect();
        let mut cache = Cache::new(4);
        for id in &ids[..4] {
            cache.keep(HashMap::from([(*id, tail(*id))]));
        }
        assert!(cache.get(ids[0]).is_some());
        cache.keep(HashMap::from([(ids[4], tail(ids[4]))]));
        assert!(cache.get(ids[0]).is_some() && cache.get(ids[4]).is_some());
        assert!(cache.get(ids[1]).is_none());
    }
}
