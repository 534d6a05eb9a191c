use std::sync::atomic::{AtomicU64, Ordering};

use mainstay_core::id::Millis;
use mainstay_core::port::Clock;

/// A clock that moves only when it is told to.
#[derive(Debug)]
pub struct ManualClock {
    wall: AtomicU64,
    monotonic: AtomicU64,
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new(1_700_000_000_000)
    }
}

impl ManualClock {
    /// A clock that shows `wall`.
    #[must_use]
    pub fn new(wall: Millis) -> Self {
        Self {
            wall: AtomicU64::new(wall),
            monotonic: AtomicU64::new(0),
        }
    }

    /// Lets time go by.
    pub fn advance(&self, ms: u64) {
        self.wall.fetch_add(ms, Ordering::SeqCst);
        self.monotonic.fetch_add(ms, Ordering::SeqCst);
    }

    /// Sets the wall clock, as an operator or a time server does. Time does not go by.
    pub fn step_wall(&self, wall: Millis) {
        self.wall.store(wall, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> Millis {
        self.wall.load(Ordering::SeqCst)
    }

    fn monotonic(&self) -> Millis {
        self.monotonic.load(Ordering::SeqCst)
    }
}
