//! The store's time, as a node knows it without asking: the store tells it with every renewal, and the
//! machine's monotonic clock carries it on. So the times of events, of timers and of deadlines are those that
//! the store will judge them by, however wrong the node's wall clock is, and whenever that steps.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::id::Millis;
use crate::port::{Clock, Store};

const UNKNOWN: i64 = i64::MIN;

pub(crate) struct StoreTime {
    clock: Arc<dyn Clock>,
    /// Milliseconds that it is ahead of the monotonic clock.
    ahead: AtomicI64,
}

impl StoreTime {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            clock,
            ahead: AtomicI64::new(UNKNOWN),
        }
    }

    /// The store's time, or the node's own as long as the store has told none.
    pub(crate) fn now(&self) -> Millis {
        match self.ahead.load(Ordering::Relaxed) {
            UNKNOWN => self.clock.wall(),
            ahead => self.clock.monotonic().saturating_add_signed(ahead),
        }
    }

    /// The store said `now`, asked and answered at these monotonic times.
    pub(crate) fn heard(&self, now: Millis, asked: Millis, answered: Millis) {
        let between = asked + answered.saturating_sub(asked) / 2;
        let ahead = i64::try_from(i128::from(now) - i128::from(between));
        self.ahead
            .store(ahead.unwrap_or(UNKNOWN), Ordering::Relaxed);
    }

    /// Asks the store, if it has told nothing yet. Where it gives no answer, the next that needs it asks.
    pub(crate) async fn know(&self, store: &dyn Store) {
        if self.ahead.load(Ordering::Relaxed) != UNKNOWN {
            return;
        }
        let asked = self.clock.monotonic();
        if let Ok(now) = store.now().await {
            self.heard(now, asked, self.clock.monotonic());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use super::*;

    #[derive(Default)]
    struct Clocks {
        wall: AtomicU64,
        monotonic: AtomicU64,
    }

    impl Clock for Clocks {
        fn wall(&self) -> Millis {
            self.wall.load(Ordering::SeqCst)
        }

        fn monotonic(&self) -> Millis {
            self.monotonic.load(Ordering::SeqCst)
        }
    }

    #[test]
    fn what_the_store_said_goes_on_by_the_monotonic_clock() {
        let clocks = Arc::new(Clocks::default());
        clocks.wall.store(5_000, Ordering::SeqCst);
        let time = StoreTime::new(Arc::clone(&clocks) as _);
        assert_eq!(time.now(), 5_000, "nothing else is known");
        clocks.monotonic.store(120, Ordering::SeqCst);
        time.heard(1_000_000, 100, 120);
        assert_eq!(time.now(), 1_000_010);
        clocks.wall.store(9_999_999, Ordering::SeqCst);
        clocks.monotonic.store(1_120, Ordering::SeqCst);
        assert_eq!(
            time.now(),
            1_001_010,
            "a wall clock that steps changes nothing"
        );
        // A store whose time is before the machine's start.
        time.heard(20, 1_120, 1_120);
        clocks.monotonic.store(1_200, Ordering::SeqCst);
        assert_eq!(time.now(), 100);
    }
}
