//! How many commits share an fsync where sessions come one after the other, each as soon as it is done
//! with its step. Among few, nobody waits: a lone session would only lose time. Among many, a commit
//! waits until some others have come, which its step hardly notices, and the disk writes once for all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use mainstay_core::id::SessionId;

/// How long a commit waits for others at most.
pub(super) const LONGEST: Duration = Duration::from_millis(4);
/// How often it looks for them.
pub(super) const NAP: Duration = Duration::from_micros(100);

/// Who has committed within this time is at work.
const RECENT: Duration = Duration::from_millis(500);
/// Of so many sessions at work one is waited for, up to the most.
const EACH: usize = 8;
const MOST: usize = 8;
/// Groups after which those who have stopped are forgotten.
const OFTEN: u32 = 32;

/// The sessions at work.
#[derive(Default)]
pub(super) struct Company {
    seen: HashMap<SessionId, Instant>,
    groups: u32,
}

impl Company {
    /// A group is about to be stored.
    pub(super) fn saw(&mut self, sessions: impl Iterator<Item = SessionId>) {
        let now = Instant::now();
        self.seen.extend(sessions.map(|session| (session, now)));
        self.groups += 1;
        if self.groups.is_multiple_of(OFTEN) {
            self.seen.retain(|_, at| now.duration_since(*at) < RECENT);
        }
    }

    /// Commits that are worth waiting for.
    pub(super) fn wanted(&self) -> usize {
        (self.seen.len() / EACH).min(MOST)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_wait_for_nobody_and_many_for_some() {
        for (at_work, wanted) in [(0, 0), (1, 0), (7, 0), (8, 1), (32, 4), (64, 8), (1000, 8)] {
            let mut company = Company::default();
            company.saw((0..at_work).map(|_| SessionId::new()));
            assert_eq!(company.wanted(), wanted, "{at_work}");
        }
        // One that commits again and again is one.
        let mut company = Company::default();
        let alone = SessionId::new();
        for _ in 0..100 {
            company.saw(std::iter::once(alone));
        }
        assert_eq!(company.wanted(), 0);
    }
}
