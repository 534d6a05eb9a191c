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
    newest: watch::Sender<String>,
    redactor: Redactor,
}

impl Calling {
    pub(crate) fn new(cancel: CancellationToken, progress: Progress, redactor: Redactor) -> Self {
        let (newest, mut shown) = watch::channel(String::new());
        // Ends when the call is dropped, having shown the newest message.
        tokio::spawn(async move {
            while shown.changed().await.is_ok() {
                let message = shown.borrow_and_update().clone();
                (progress.0)(message);
                tokio::time::sleep(PROGRESS_PAUSE).await;
            }
        });
        Self {
            cancel,
            newest,
            redactor,
        }
    }
}

impl calling::Host for Guest {
    fn progress(&mut self, message: String) -> wasmtime::Result<()> {
        if let Some(calling) = &self.calling {
            let message = calling.redactor.redact(&message);
            calling
                .newest
                .send_replace(cut(&message, PROGRESS_BYTES).to_owned());
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
