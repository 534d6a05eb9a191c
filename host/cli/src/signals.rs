//! Requests to stop, from the terminal or the system.

use std::sync::LazyLock;

use tokio::sync::watch;

use crate::error::{Error, Result};

/// Requests that came neither from the terminal nor from the system, so far.
static RAISED: LazyLock<watch::Sender<u32>> = LazyLock::new(|| watch::Sender::new(0));

/// Asks this process to stop, as SIGTERM does.
pub(crate) fn raise() {
    RAISED.send_modify(|raised| *raised += 1);
}

/// The next request, for a shutdown that is to hurry then. Never, where signals cannot be heard.
pub(crate) async fn hurry() {
    match Signals::listen() {
        Ok(mut signals) => {
            signals.next().await;
        }
        Err(_) => std::future::pending().await,
    }
}

/// What a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Asked {
    /// SIGINT, as by Ctrl-C: whoever sits there wants what runs to stop.
    Stop,
    /// SIGTERM: this process is to end, and what runs goes on elsewhere or later.
    End,
}

/// SIGINT and SIGTERM, and [`raise`], from now on.
pub(crate) struct Signals {
    raised: watch::Receiver<u32>,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let failed =
                |error: std::io::Error| Error::failed("cannot listen for signals").because(&error);
            Ok(Self {
                raised: RAISED.subscribe(),
                interrupt: signal(SignalKind::interrupt()).map_err(failed)?,
                terminate: signal(SignalKind::terminate()).map_err(failed)?,
            })
        }
        #[cfg(not(unix))]
        Ok(Self {
            raised: RAISED.subscribe(),
        })
    }

    /// The next one.
    ///
    /// # Cancel safety
    /// Safe: none is lost.
    pub(crate) async fn next(&mut self) -> Asked {
        #[cfg(unix)]
        {
            tokio::select! {
                _ = self.interrupt.recv() => Asked::Stop,
                _ = self.terminate.recv() => Asked::End,
                _ = self.raised.changed() => Asked::End,
            }
        }
        #[cfg(not(unix))]
        {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => Asked::Stop,
                _ = self.raised.changed() => Asked::End,
            }
        }
    }
}
