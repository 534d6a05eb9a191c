//! Whether what is done where it is asked for has been quick. A thread on which sessions run may wait as
//! long for the disk as for a lock, and no longer.

use std::time::Duration;

/// What takes less than this on average is quick.
const QUICK: Duration = Duration::from_millis(1);
/// What one time weighs in the average.
const SHARE: f64 = 1.0 / 8.0;

/// How long something takes, in seconds, on average.
pub(super) struct Pace(f64);

impl Pace {
    /// Nothing has been seen, and the best is thought of it.
    pub(super) fn quick() -> Self {
        Self(0.0)
    }

    /// Nothing has been seen, and it is not trusted before it is.
    pub(super) fn unknown() -> Self {
        Self(2.0 * QUICK.as_secs_f64())
    }

    pub(super) fn took(&mut self, time: Duration) {
        self.0 += (time.as_secs_f64() - self.0) * SHARE;
    }

    /// It was left undone: after a few of these it is tried again.
    pub(super) fn left(&mut self) {
        self.took(Duration::ZERO);
    }

    pub(super) fn is_quick(&self) -> bool {
        self.0 < QUICK.as_secs_f64()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_is_very_slow_is_enough_and_time_heals() {
        let mut pace = Pace::unknown();
        assert!(!pace.is_quick());
        for _ in 0..10 {
            pace.took(QUICK / 5);
        }
        assert!(pace.is_quick());
        pace.took(QUICK * 20);
        assert!(!pace.is_quick());
        for _ in 0..10 {
            pace.left();
        }
        assert!(pace.is_quick());
    }
}
