//! How a guest that computes leaves the machine to what else the host has to do: every epoch it waits for as
//! long as others have earned by being busy. On a machine with nothing else to do it goes on at once; on a
//! busy one it has a ninth of a processor. What it waits so is no part of its limit of time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::time::Instant;

use crate::engine::TICK;

/// How many times as long as it has run a guest waits where others take all processors.
const OTHERS: u32 = 8;
/// Timers are no finer.
const WAIT_MIN: Duration = Duration::from_millis(1);

/// Of one instance.
#[derive(Default)]
pub(crate) struct Way {
    /// When the call's last epoch passed, and what the process had taken of its processors then.
    last: Option<(Instant, Duration)>,
    waited: Waited,
}

/// How long the calls of an instance have waited for others.
#[derive(Clone, Default)]
pub(crate) struct Waited(Arc<AtomicU64>);

impl Waited {
    fn add(&self, time: Duration) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.0.fetch_add(nanos, Ordering::Relaxed);
    }

    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.load(Ordering::Relaxed))
    }
}

impl Way {
    pub(crate) fn waited(&self) -> Waited {
        self.waited.clone()
    }

    /// A call begins.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }

    /// An epoch has passed while the guest was running. Waits as it should.
    pub(crate) fn give(&mut self) -> impl Future<Output = ()> + Send + 'static {
        let now = (Instant::now(), taken());
        let owed = self.last.map_or(Duration::ZERO, |(at, cpu)| {
            owed(
                now.0.saturating_duration_since(at),
                now.1.saturating_sub(cpu),
                processors(),
            )
        });
        self.last = Some(now);
        let waited = self.waited();
        async move {
            let since = Instant::now();
            if owed < WAIT_MIN {
                // Behind all that its thread has to do now.
                tokio::task::yield_now().await;
                return waited.add(since.elapsed());
            }
            // Before it waits: its limit of time may end meanwhile.
            waited.add(owed);
            tokio::time::sleep(owed).await;
            waited.add(since.elapsed().saturating_sub(owed));
        }
    }
}

/// What a guest owes that ran for an epoch of the last `wall`, in which its process took `cpu`.
fn owed(wall: Duration, cpu: Duration, processors: u32) -> Duration {
    let others = cpu.saturating_sub(TICK).as_secs_f64();
    let all = (wall * processors).as_secs_f64();
    if all <= 0.0 {
        return Duration::ZERO;
    }
    (TICK * OTHERS).mul_f64((others / all).min(1.0))
}

fn processors() -> u32 {
    static COUNT: std::sync::LazyLock<u32> = std::sync::LazyLock::new(|| {
        let count = std::thread::available_parallelism();
        count.map_or(1, |count| u32::try_from(count.get()).unwrap_or(u32::MAX))
    });
    *COUNT
}

/// What the process has taken of its processors.
fn taken() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_waits_for_as_much_as_others_do() {
        let ms = Duration::from_millis;
        for (wall, cpu, processors, waits) in [
            // Alone.
            (10, 10, 2, 0),
            (10, 0, 2, 0),
            (0, 10, 2, 0),
            // Others take all that there is.
            (10, 20, 1, 80),
            (90, 190, 2, 80),
            (1000, 16_010, 16, 80),
            // Half of it.
            (90, 100, 2, 40),
            (90, 55, 1, 40),
            // More than there is, by a clock that was read late.
            (10, 500, 2, 80),
        ] {
            let owed = owed(ms(wall), ms(cpu), processors);
            assert_eq!(
                owed.as_millis(),
                waits,
                "{cpu} of {wall} ms by {processors}"
            );
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_waits_is_told_and_the_first_epoch_waits_for_nothing() {
        let mut way = Way::default();
        let waited = way.waited();
        way.give().await;
        assert_eq!(waited.total(), Duration::ZERO);
        // The process takes some of a processor while the clock that is waited by stands still.
        let before = taken();
        while taken() - before < TICK * 3 {
            std::hint::spin_loop();
        }
        tokio::time::advance(TICK).await;
        way.give().await;
        let first = waited.total();
        assert!(first >= WAIT_MIN, "{first:?}");
        way.restart();
        way.give().await;
        assert_eq!(waited.total(), first);
    }
}
