//! How long a commit waits for others, to share its fsync with them. Among few sessions none waits: a lone
//! one would only lose time. Among many, each of which commits as soon as it is done with its step, a
//! commit waits until some others have come, which its step hardly notices. One that has no company at all
//! need not even be handed to the writer (see [`super::desk`]).

use std::collections::HashMap;
use std::time::Duration;

use mainstay_core::id::SessionId;

/// How long a commit waits for others at most.
pub(super) const LONGEST: Duration = Duration::from_millis(4);
/// How often it looks for them.
pub(super) const NAP: Duration = Duration::from_micros(100);

/// Of so many sessions at work one is waited for, up to the most.
const EACH: f64 = 8.0;
const MOST: usize = 8;
/// Two that take turns are told from one by how often a commit is of another session than the one before:
/// of two every second, of one that follows another every tenth or so.
const OFTEN: f64 = 0.4;
/// What one commit weighs in the average of that.
const CHANGE_SHARE: f64 = 1.0 / 8.0;
/// What one commit weighs in the average.
const SHARE: f64 = 1.0 / 16.0;
/// Sessions that are remembered, about.
const MANY: usize = 4096;

/// How many sessions are at work, told by how many commits there are from one of a session to its next:
/// one, where each session has its turn alone, however short the turns are.
#[derive(Default)]
pub(super) struct Company {
    commits: u64,
    /// Which commit was a session's last.
    last: HashMap<SessionId, u64>,
    at_work: f64,
    /// Whose commit was the last, and the part of commits that were of another than the one before.
    previous: Option<SessionId>,
    changes: f64,
    /// The last group had more than one commit: others do come.
    together: bool,
}

impl Company {
    /// A group is about to be stored.
    pub(super) fn saw(&mut self, sessions: impl Iterator<Item = SessionId>) {
        let before = self.commits;
        for session in sessions {
            self.commits += 1;
            let other = self.previous.replace(session) != Some(session);
            self.changes += (f64::from(u8::from(other)) - self.changes) * CHANGE_SHARE;
            if let Some(last) = self.last.insert(session, self.commits) {
                // One that comes back after a long time tells no more of the others than this.
                let apart = ((self.commits - last) as f64).min(2.0 * EACH * MOST as f64);
                self.at_work += (apart - self.at_work) * SHARE;
            }
        }
        self.together = self.commits - before > 1;
        if self.last.len() > MANY {
            let recent = self.commits.saturating_sub(MANY as u64 / 2);
            self.last.retain(|_, last| *last > recent);
        }
    }

    /// One session is at work, as far as it shows.
    pub(super) fn is_alone(&self) -> bool {
        !self.together && self.changes < OFTEN
    }

    /// Commits that are worth waiting for.
    pub(super) fn wanted(&self) -> usize {
        if self.together {
            ((self.at_work / EACH) as usize).min(MOST)
        } else {
            0
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_wait_for_nobody_and_many_for_some() {
        for (at_work, wanted) in [(1, 0), (7, 0), (9, 1), (33, 4), (100, 8), (1000, 8)] {
            let mut company = Company::default();
            let sessions: Vec<_> = (0..at_work).map(|_| SessionId::new()).collect();
            for _ in 0..100 {
                company.saw(sessions.iter().copied());
            }
            assert_eq!(company.wanted(), wanted, "{at_work}");
        }
    }

    #[test]
    fn one_is_alone_until_another_comes_and_after_it_has_gone() {
        let mut company = Company::default();
        let (one, other) = (SessionId::new(), SessionId::new());
        for _ in 0..100 {
            assert!(company.is_alone());
            company.saw(std::iter::once(one));
        }
        for _ in 0..100 {
            company.saw(std::iter::once(other));
            company.saw(std::iter::once(one));
        }
        assert!(!company.is_alone());
        for _ in 0..100 {
            company.saw(std::iter::once(one));
        }
        assert!(company.is_alone());
        company.saw([one, other].into_iter());
        assert!(!company.is_alone());
    }

    #[test]
    fn one_after_the_other_is_alone() {
        let mut company = Company::default();
        let sessions: Vec<_> = (0..100).map(|_| SessionId::new()).collect();
        for session in &sessions {
            company.saw(std::iter::once(*session));
        }
        assert!(!company.is_alone());
        for session in sessions {
            for n in 0..10 {
                company.saw(std::iter::once(session));
                assert!(n < 8 || company.is_alone());
            }
        }
    }

    #[test]
    fn many_one_after_the_other_are_few() {
        let mut company = Company::default();
        for _ in 0..10_000 {
            company.saw([SessionId::new(); 3].into_iter());
            assert_eq!(company.wanted(), 0);
        }
        assert!(company.last.len() <= MANY + 1);
    }

    #[test]
    fn one_that_was_long_away_makes_no_crowd() {
        let mut company = Company::default();
        let (away, here) = (SessionId::new(), [SessionId::new(), SessionId::new()]);
        for _ in 0..50 {
            company.saw(std::iter::once(away));
            for _ in 0..1000 {
                company.saw(here.into_iter());
                // Its own fsync is waited for by nobody.
                assert!(company.wanted() <= 1);
            }
        }
    }
}
