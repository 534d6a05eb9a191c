//! The event stream of a session. Stored events bear their seq as id, so that a client that comes
//! back with `Last-Event-ID` misses none and gets none twice.

use std::collections::HashMap;
use std::convert::Infallible;
use std::time::Duration;

use axum::response::sse::{Event, KeepAlive, Sse};
use futures::{Stream, StreamExt as _};
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::live::Live;
use mainstay_core::node::Followed;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::mpsc;
use tracing::{info, warn};

use crate::state::ServerState;
use crate::wire::Synced;

/// The type of the events that hold what was told live before.
const OUTPUT: &str = "step.output";
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// Follows a session from behind `after`. It ends when the client leaves or falls too far behind, when
/// the session is deleted, and when the server closes.
pub(crate) fn follow(
    state: &ServerState,
    session: SessionId,
    after: Seq,
) -> Sse<impl Stream<Item = Result<Event, Infallible>> + use<>> {
    let (sender, receiver) = mpsc::channel(state.options().stream_buffer.max(1));
    tokio::spawn(feed(state.clone(), session, after, sender));
    let stream = futures::stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((Ok(event), receiver))
    });
    Sse::new(stream).keep_alive(KeepAlive::new().interval(KEEP_ALIVE).text("keep-alive"))
}

/// Puts events into the client's buffer. Only its own client can make it wait.
async fn feed(state: ServerState, session: SessionId, after: Seq, sender: mpsc::Sender<Event>) {
    let closing = state.closing();
    let patience = state.options().stream_patience;
    // Watched before the first read, so that what is shown live is not shown late.
    let mut live = state.node().watch_live(session);
    let mut live_open = true;
    // The newest output of the step that was met last.
    let mut outputs: HashMap<Seq, Seq> = HashMap::new();
    let mut log = Box::pin(state.node().log(session, after, true));
    loop {
        let event = tokio::select! {
            biased;
            () = closing.cancelled() => return,
            () = sender.closed() => return,
            followed = log.next() => match followed {
                Some(Ok(Followed::Event(record))) => {
                    if record.kind == OUTPUT
                        && let Some(step) = record.data["step"].as_u64()
                    {
                        outputs.clear();
                        outputs.insert(step, record.seq);
                    }
                    let event = Event::default().id(record.seq.to_string()).event(&record.kind);
                    event.json_data(&record)
                }
                Some(Ok(Followed::Synced(seq))) => Event::default().event("synced").json_data(Synced { seq }),
                Some(Err(error)) => {
                    warn!(%session, %error, "an event stream ends: the log cannot be read");
                    return;
                }
                None => return,
            },
            told = live.recv(), if live_open => match told {
                Ok(told) => {
                    // Progress is not worth waiting for.
                    if !told.is_late(&outputs)
                        && let Ok(event) = live_event(&told.event)
                    {
                        let _ = sender.try_send(event);
                    }
                    continue;
                }
                Err(RecvError::Lagged(_)) => continue,
                Err(RecvError::Closed) => {
                    live_open = false;
                    continue;
                }
            },
        };
        let Ok(event) = event else { return };
        if sender.send_timeout(event, patience).await.is_err() {
            info!(%session, "an event stream ends: its client is too slow or gone");
            return;
        }
    }
}

fn live_event(live: &Live) -> Result<Event, axum::Error> {
    Event::default().event("live").json_data(live)
}
