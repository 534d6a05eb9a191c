//! How long a task takes by itself. What it waits for a thread to run on is not in it: on a busy node
//! that says how much else there is to do, and nothing of the task.

use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use tokio::time::{Instant, timeout};

/// What is looked at between two looks, at least.
const LOOK: Duration = Duration::from_millis(1);

/// Shared by a task, whose time it counts, and those who want to know.
#[derive(Clone, Default)]
pub(crate) struct Stopwatch(Arc<Mutex<Counted>>);

#[derive(Default)]
struct Counted {
    /// Until it was woken last.
    before: Duration,
    /// When it last got a thread, unless it has been woken since and waits for another.
    since: Option<Instant>,
}

impl Stopwatch {
    /// Counts the time of `task`, from when it is polled first.
    pub(crate) async fn count<F: Future>(self, task: F) -> F::Output {
        let mut task = std::pin::pin!(task);
        std::future::poll_fn(|context| self.poll(task.as_mut(), context)).await
    }

    fn poll<F: Future>(&self, task: Pin<&mut F>, context: &mut Context<'_>) -> Poll<F::Output> {
        self.counted().since = Some(Instant::now());
        let waker = Waker::from(Arc::new(Stopping {
            watch: self.clone(),
            waker: context.waker().clone(),
        }));
        task.poll(&mut Context::from_waker(&waker))
    }

    /// Waits for what `answer` gives for as long as the task has not taken `limit`. `None` once it has.
    ///
    /// # Cancel safety
    /// As `answer`, which nothing but this polls meanwhile.
    pub(crate) async fn within<F: Future + Unpin>(
        &self,
        limit: Duration,
        answer: &mut F,
    ) -> Option<F::Output> {
        loop {
            let left = limit
                .checked_sub(self.taken())
                .filter(|left| !left.is_zero())?;
            if let Ok(answer) = timeout(left.max(LOOK), &mut *answer).await {
                return Some(answer);
            }
        }
    }

    fn taken(&self) -> Duration {
        let counted = self.counted();
        counted.before
            + counted
                .since
                .map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn counted(&self) -> MutexGuard<'_, Counted> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Wakes a task, whose stopwatch stands still until it gets a thread.
struct Stopping {
    watch: Stopwatch,
    waker: Waker,
}

impl Wake for Stopping {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        let mut counted = self.watch.counted();
        if let Some(since) = counted.since.take() {
            counted.before += since.elapsed();
        }
        drop(counted);
        self.waker.wake_by_ref();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(5);

    #[tokio::test(start_paused = true)]
    async fn what_a_task_waits_for_is_its_own_time() {
        for (pause, quick) in [(3, true), (50, false)] {
            let watch = Stopwatch::default();
            let pause = tokio::time::sleep(Duration::from_millis(pause));
            let mut task = tokio::spawn(watch.clone().count(pause));
            assert_eq!(watch.within(LIMIT, &mut task).await.is_some(), quick);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_it_waits_for_a_thread_is_not() {
        let watch = Stopwatch::default();
        let (go, gone) = tokio::sync::oneshot::channel();
        let mut task = std::pin::pin!(watch.clone().count(gone));
        let poll = |task: Pin<&mut _>| {
            let mut context = Context::from_waker(Waker::noop());
            Future::poll(task, &mut context)
        };
        let pass = || tokio::time::advance(Duration::from_millis(2));
        // Not begun, then waiting for what it asked, then woken and not run.
        pass().await;
        assert_eq!(watch.taken(), Duration::ZERO);
        assert!(poll(task.as_mut()).is_pending());
        pass().await;
        go.send(()).unwrap();
        pass().await;
        assert_eq!(watch.taken(), Duration::from_millis(2));
        assert!(poll(task.as_mut()).is_ready());
    }
}
