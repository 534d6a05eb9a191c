//! Work that is begun where it is asked for, and becomes a task of its own only if it cannot be finished
//! at once. Most decisions and calls can: they cost no task then, and wake no other thread. A guest
//! that computes gives its thread back with the next epoch, so whoever begins it waits no longer.

use std::any::Any;
use std::fmt;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures::FutureExt as _;
use tokio::task::{JoinError, JoinHandle};

type Caught<T> = Result<T, Box<dyn Any + Send>>;

/// Work that has begun. Dropped, it ends.
pub(crate) struct Eager<T>(State<T>);

enum State<T> {
    Done(Option<Caught<T>>),
    Task(JoinHandle<Caught<T>>),
}

/// It panicked, or the runtime is going down.
#[derive(Debug)]
pub(crate) struct BrokenOff(String);

impl fmt::Display for BrokenOff {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<JoinError> for BrokenOff {
    fn from(cause: JoinError) -> Self {
        Self(cause.to_string())
    }
}

impl<T: Send + 'static> Eager<T> {
    /// Begins `work`.
    pub(crate) async fn begin(work: impl Future<Output = T> + Send + 'static) -> Self {
        let mut work = Box::pin(AssertUnwindSafe(work).catch_unwind());
        let first = std::future::poll_fn(|context| Poll::Ready(work.as_mut().poll(context)));
        Self(match first.await {
            Poll::Ready(done) => State::Done(Some(done)),
            Poll::Pending => State::Task(tokio::spawn(work)),
        })
    }

    /// What came of it, if it was finished at once; else the work, which goes on.
    pub(crate) fn at_once(mut self) -> Result<Result<T, BrokenOff>, Self> {
        match &mut self.0 {
            State::Done(done) => Ok(told(done.take().expect("it is taken once"))),
            State::Task(_) => Err(self),
        }
    }
}

impl<T: Unpin> Future for Eager<T> {
    type Output = Result<T, BrokenOff>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        Poll::Ready(match &mut self.0 {
            State::Done(done) => told(done.take().expect("it is polled to its end once")),
            State::Task(task) => match ready!(Pin::new(task).poll(context)) {
                Ok(done) => told(done),
                Err(cause) => Err(cause.into()),
            },
        })
    }
}

impl<T> Drop for Eager<T> {
    fn drop(&mut self) {
        if let State::Task(task) = &self.0 {
            task.abort();
        }
    }
}

fn told<T>(done: Caught<T>) -> Result<T, BrokenOff> {
    done.map_err(|panic| {
        let words = panic.downcast_ref::<&str>().copied();
        let words = words.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        BrokenOff(format!("it panicked: {}", words.unwrap_or("without words")))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[tokio::test]
    async fn what_can_be_finished_is_no_task() {
        let work = Eager::begin(async { tokio::task::try_id() }).await;
        assert_eq!(work.at_once().ok().unwrap().unwrap(), tokio::task::try_id());
    }

    #[tokio::test]
    async fn what_waits_goes_on_by_itself() {
        let (go, gone) = tokio::sync::oneshot::channel();
        let (tell, told) = tokio::sync::oneshot::channel();
        let work = Eager::begin(async move {
            let _ = tell.send(gone.await);
            5
        });
        let work = work.await.at_once().err().unwrap();
        go.send(()).unwrap();
        // Nobody waits for the work itself.
        told.await.unwrap().unwrap();
        assert_eq!(work.await.unwrap(), 5);
    }

    #[tokio::test]
    async fn a_panic_is_told_and_no_more() {
        let at_once = Eager::begin(async { panic!("at once") }).await;
        let told: Result<(), BrokenOff> = at_once.await;
        assert_eq!(told.unwrap_err().to_string(), "it panicked: at once");
        let later = Eager::begin(async {
            tokio::task::yield_now().await;
            panic!("{}", "later")
        });
        let told: Result<(), BrokenOff> = later.await.await;
        assert_eq!(told.unwrap_err().to_string(), "it panicked: later");
    }

    #[tokio::test]
    async fn dropped_it_ends() {
        let held = Arc::new(());
        let kept = Arc::downgrade(&held);
        let work = Eager::begin(async move {
            std::future::pending::<()>().await;
            drop(held);
        });
        drop(work.await);
        while kept.upgrade().is_some() {
            tokio::task::yield_now().await;
        }
    }
}
