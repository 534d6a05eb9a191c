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
    pub(crate) async fn next(&mut self) {
        #[cfg(unix)]
        {
            tokio::select! {
                _ = self.interrupt.recv() => {}
                _ = self.terminate.recv() => {}
                _ = self.raised.changed() => {}
            }
        }
        #[cfg(not(unix))]
        {
            tokio::select! {
                _ = tokio::signal::ctrl_c() => {}
                _ = self.raised.changed() => {}
            }
        }
    }
}
