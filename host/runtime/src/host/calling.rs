//! `mainstay:plugin/calling`: the call that is running.

use std::time::Duration;

use mainstay_core::plugin::Progress;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::Guest;
use super::logging::cut;
use crate::bindings::v0_1_0::calling;
use crate::egress::Redactor;

/// Between two messages that are shown.
const PROGRESS_PAUSE: Duration = Duration::from_millis(100);
const PROGRESS_BYTES: usize = 4 << 10;

/// One call as its guest sees it.
pub(crate) struct Calling {
    cancel: CancellationToken,
    progress: Shown,
    redactor: Redactor,
}

/// Messages on their way to whoever watches.
enum Shown {
    /// Most calls have none, and need no task for them.
    Nothing(Progress),
    Newest(watch::Sender<String>),
}

impl Calling {
    pub(crate) fn new(cancel: CancellationToken, progress: Progress, redactor: Redactor) -> Self {
        Self {
            cancel,
            progress: Shown::Nothing(progress),
            redactor,
        }
    }

    fn show(&mut self, message: String) {
        match &self.progress {
            Shown::Nothing(progress) => {
                let (newest, shown) = watch::channel(message);
                tokio::spawn(show(progress.clone(), shown));
                self.progress = Shown::Newest(newest);
            }
            Shown::Newest(newest) => {
                newest.send_replace(message);
            }
        }
    }
}

/// Ends when the call is dropped, having shown the newest message.
async fn show(progress: Progress, mut shown: watch::Receiver<String>) {
    loop {
        let message = shown.borrow_and_update().clone();
        (progress.0)(message);
        tokio::time::sleep(PROGRESS_PAUSE).await;
        if shown.changed().await.is_err() {
            break;
        }
    }
}

impl calling::Host for Guest {
    fn progress(&mut self, message: String) -> wasmtime::Result<()> {
        if let Some(calling) = &mut self.calling {
            let message = calling.redactor.redact(&message);
            let message = cut(&message, PROGRESS_BYTES).to_owned();
            calling.show(message);
        }
        Ok(())
    }

    fn cancelled(&mut self) -> wasmtime::Result<bool> {
        Ok(self
            .calling
            .as_ref()
            .is_some_and(|calling| calling.cancel.is_cancelled()))
    }
}
