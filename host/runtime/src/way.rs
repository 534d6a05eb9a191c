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
pub(crate) struct Way {
    /// When the call's last epoch passed, and what the process had taken of its processors then.
    last: Option<(Instant, Duration)>,
    shared: Arc<Shared>,
}

struct Shared {
    made: Instant,
    /// Nanoseconds that calls have waited for others.
    waited: AtomicU64,
    /// When the guest ran again, in nanoseconds since `made`.
    resumed: AtomicU64,
}

/// How long the calls of an instance have waited for others.
pub(crate) struct Waited(Arc<Shared>);

impl Waited {
    pub(crate) fn total(&self) -> Duration {
        Duration::from_nanos(self.0.waited.load(Ordering::Relaxed))
    }
}

impl Shared {
    fn waited(&self, time: Duration) {
        self.waited.fetch_add(nanos(time), Ordering::Relaxed);
    }
}

impl Default for Way {
    fn default() -> Self {
        Self {
            last: None,
            shared: Arc::new(Shared {
                made: Instant::now(),
                waited: AtomicU64::new(0),
                resumed: AtomicU64::new(0),
            }),
        }
    }
}

impl Way {
    pub(crate) fn waited(&self) -> Waited {
        Waited(Arc::clone(&self.shared))
    }

    /// A call begins.
    pub(crate) fn restart(&mut self) {
        self.last = None;
    }

    /// An epoch has passed while the guest was running. Gives how long it has run since the last one, at
    /// most an epoch, and what waits as it should.
    pub(crate) fn give(&mut self) -> (Duration, impl Future<Output = ()> + Send + 'static) {
        let now = (Instant::now(), taken());
        let (ran, owed) = match self.last {
            // Since the call began, or it was resumed in the middle of one.
            None => (TICK, Duration::ZERO),
            Some((at, cpu)) => {
                let resumed = Duration::from_nanos(self.shared.resumed.load(Ordering::Relaxed));
                let ran = now.0.saturating_duration_since(self.shared.made + resumed);
                let ran = ran.min(TICK);
                let wall = now.0.saturating_duration_since(at);
                let others = now.1.saturating_sub(cpu).saturating_sub(ran);
                (ran, owed(wall, others, processors()))
            }
        };
        self.last = Some(now);
        let shared = Arc::clone(&self.shared);
        let wait = async move {
            let since = Instant::now();
            if owed < WAIT_MIN {
                // Behind all that its thread has to do now.
                tokio::task::yield_now().await;
                shared.waited(since.elapsed());
            } else {
                // Before it waits: its limit of time may end meanwhile.
                shared.waited(owed);
                tokio::time::sleep(owed).await;
                shared.waited(since.elapsed().saturating_sub(owed));
            }
            let resumed = nanos(shared.made.elapsed());
            shared.resumed.store(resumed, Ordering::Relaxed);
        };
        (ran, wait)
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a guest owes that ran for an epoch at most of the last `wall`, in which the rest of its process took
/// `others`.
fn owed(wall: Duration, others: Duration, processors: u32) -> Duration {
    let all = (wall * processors).as_secs_f64();
    if all <= 0.0 {
        return Duration::ZERO;
    }
    (TICK * OTHERS).mul_f64((others.as_secs_f64() / all).min(1.0))
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
        for (wall, others, processors, waits) in [
            // Alone.
            (10, 0, 2, 0),
            (0, 0, 2, 0),
            // Others take all that there is.
            (10, 10, 1, 80),
            (90, 180, 2, 80),
            (1000, 16_000, 16, 80),
            // Half of it.
            (90, 90, 2, 40),
            (90, 45, 1, 40),
            // More than there is, by a clock that was read late.
            (10, 500, 2, 80),
        ] {
            let owed = owed(ms(wall), ms(others), processors);
            assert_eq!(
                owed.as_millis(),
                waits,
                "{others} of {wall} ms by {processors}"
            );
        }
    }

    /// The process takes some of a processor while the clock that is waited by stands still.
    fn busy() {
        let before = taken();
        while taken() - before < TICK * 3 {
            std::hint::spin_loop();
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_waits_is_told_and_the_first_epoch_waits_for_nothing() {
        let mut way = Way::default();
        let waited = way.waited();
        let (ran, wait) = way.give();
        wait.await;
        assert_eq!((ran, waited.total()), (TICK, Duration::ZERO));
        busy();
        tokio::time::advance(TICK).await;
        let (ran, wait) = way.give();
        wait.await;
        let first = waited.total();
        assert_eq!(ran, TICK);
        assert!(first >= WAIT_MIN, "{first:?}");
        // It was resumed in the middle of an epoch: it has run for the rest of it.
        tokio::time::advance(TICK / 4).await;
        let (ran, wait) = way.give();
        wait.await;
        assert_eq!(ran, TICK / 4);
        let second = waited.total();
        way.restart();
        busy();
        let (ran, wait) = way.give();
        wait.await;
        assert_eq!((ran, waited.total()), (TICK, second));
    }
}
