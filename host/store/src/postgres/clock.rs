//! The database's clock, and what it shows by now as far as this process can tell.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use mainstay_core::id::Millis;
use mainstay_core::port::Clock;

pub(super) struct StoreClock {
    /// In place of the database's, and its wall and monotonic time at first.
    stand_in: Option<(Arc<dyn Clock>, Millis, Millis)>,
    /// What the database's showed at most so long ago.
    seen: Mutex<Option<(Millis, Instant)>>,
}

impl StoreClock {
    pub(super) fn new(stand_in: Option<Arc<dyn Clock>>) -> Self {
        Self {
            stand_in: stand_in.map(|clock| {
                let (wall, monotonic) = (clock.wall(), clock.monotonic());
                (clock, wall, monotonic)
            }),
            seen: Mutex::default(),
        }
    }

    /// What statements are to take for the time; `None` for the database's own.
    pub(super) fn at(&self) -> Option<i64> {
        let (clock, wall, monotonic) = self.stand_in.as_ref()?;
        let now = wall + clock.monotonic().saturating_sub(*monotonic);
        Some(i64::try_from(now).unwrap_or(i64::MAX))
    }

    /// Takes note of what the database's shows, as an answer told it.
    pub(super) fn saw(&self, now: Millis) {
        *self.seen.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, Instant::now()));
    }

    /// The time by now: a little early, by what the last answer was under way. Whatever rests on it is
    /// judged again by the database.
    pub(super) fn estimate(&self) -> Option<Millis> {
        if let Some(at) = self.at() {
            return Some(u64::try_from(at).unwrap_or(0));
        }
        let (now, since) = (*self.seen.lock().unwrap_or_else(PoisonError::into_inner))?;
        Some(now + u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX >> 1))
    }
}
