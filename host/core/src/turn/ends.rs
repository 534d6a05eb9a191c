//! How an execution ends otherwise than by being done: its cleanup, and the terminal that it owes.

use tracing::{debug, warn};

use super::pending::{Blocked, Kind, Pending};
use super::{Execution, Halt};
use crate::commit::End;
use crate::coordinator::{Stop, Terminal};
use crate::event::{EventBody, EventDraft, InterruptReason, TurnOutcome};
use crate::recovery;
use crate::tail::Tail;

impl Execution {
    /// The cleanup of an interrupt or a shutdown.
    pub(super) async fn stopped(&mut self) -> Terminal {
        if let Err(halt) = self.land().await {
            debug!(?halt, "the terminal is left to recovery");
            return Terminal::Lost;
        }
        let claim = self.tail.claim.as_ref();
        let mut marked = claim.is_some_and(|claim| claim.interrupt);
        let mut rests = true;
        loop {
            let at = self.shared.time.now();
            let Ok((here, _)) = self.preview(&[], at) else {
                return self.failed("its events do not fit its log".into()).await;
            };
            let shutdown = matches!(*self.stop.borrow(), Stop::Drain | Stop::Shutdown) && !marked;
            let (events, end) = if !shutdown {
                let reason = InterruptReason::User;
                let events = self.close_turn(&here, TurnOutcome::Interrupted);
                (events, End::Interrupted { reason })
            } else if rests && here.session.turn.is_none() && !here.is_runnable() {
                (Vec::new(), End::Succeeded)
            } else if rests && here.session.wait.is_some() && !here.is_runnable() {
                (Vec::new(), End::Suspended)
            } else {
                let reason = InterruptReason::Shutdown;
                (Vec::new(), End::Interrupted { reason })
            };
            let terminal = match &end {
                End::Interrupted { reason } => Terminal::Interrupted(*reason),
                End::Suspended => Terminal::Suspended,
                _ => Terminal::Succeeded,
            };
            let events = events.into_iter().map(EventDraft::new).collect();
            let kind = Kind {
                begins: false,
                exact: false,
                end: Some(end),
            };
            match self.commit(events, at, kind).await {
                Ok(()) => return terminal,
                // It came in behind what is known here: whoever goes on does not wait for the lease.
                Err(Blocked::NotIdle) if rests => rests = false,
                // So did an interrupt, which no shutdown keeps from closing the turn.
                Err(Blocked::Halt(Halt::Stopped)) if !marked => marked = true,
                Err(Blocked::Halt(Halt::Failed(error))) => return self.failed(error).await,
                Err(blocked) => {
                    debug!(?blocked, "the terminal is left to recovery");
                    return Terminal::Lost;
                }
            }
        }
    }

    /// Ends an open turn. More is known here of what its answer used than the log tells.
    fn close_turn(&mut self, here: &Tail, outcome: TurnOutcome) -> Vec<EventBody> {
        let mut events = recovery::close_turn(here, outcome);
        if let Some(known) = self.unsettled.take() {
            for event in &mut events {
                if let EventBody::ModelEnded { usage, .. } = event {
                    *usage = Some(known);
                }
            }
        }
        events
    }

    /// The end of a turn that cannot go on, and of the execution with it.
    pub(super) async fn failed(&mut self, error: String) -> Terminal {
        if let Err(halt) = self.land().await {
            debug!(?halt, "the terminal is left to recovery");
            return Terminal::Lost;
        }
        let at = self.shared.time.now();
        if self.preview(&[], at).is_err() {
            // What does not fit the log is what failed; it must not keep the failure from it.
            self.pending = Pending::default();
        }
        let Ok((here, _)) = self.preview(&[], at) else {
            return Terminal::Lost;
        };
        let events = self.close_turn(
            &here,
            TurnOutcome::Failed {
                error: error.clone(),
            },
        );
        let events = events.into_iter().map(EventDraft::new).collect();
        warn!(%error, "the turn failed");
        let kind = Kind {
            begins: true,
            exact: false,
            end: Some(End::Failed {
                error: error.clone(),
            }),
        };
        match self.commit(events, at, kind).await {
            Ok(()) => Terminal::Failed(error),
            Err(Blocked::Halt(Halt::Stopped)) => Box::pin(self.stopped()).await,
            Err(blocked) => {
                debug!(?blocked, "the terminal is left to recovery");
                Terminal::Lost
            }
        }
    }
}
