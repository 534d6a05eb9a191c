//! The log of a session, as pages or as a stream.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Response};
use mainstay_core::commit::Refused;
use mainstay_core::event::{self, Record};
use mainstay_core::id::{Seq, SessionId};
use serde::{Deserialize, Serialize};

use crate::cursor;
use crate::error::{Kind, Problem, Result};
use crate::extract::{Path, Query};
use crate::page;
use crate::sse;
use crate::state::ServerState;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadQuery {
    /// Only events behind this seq.
    after: Option<Seq>,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// A page of a log, and how long the log was.
#[derive(Debug, Serialize)]
struct EventPage {
    items: Vec<Record>,
    next: Option<String>,
    head: Seq,
}

pub(crate) async fn read(
    State(state): State<ServerState>,
    Path(session): Path<SessionId>,
    Query(query): Query<ReadQuery>,
    headers: HeaderMap,
) -> Result<Response> {
    let resource = format!("events of {session}");
    let streams = headers
        .get_all(header::ACCEPT)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .any(|value| value.to_ascii_lowercase().contains("text/event-stream"));
    let last = headers.get("last-event-id").filter(|_| streams).map(|value| {
        value.to_str().ok().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
            Problem::new(Kind::BadRequest, "`Last-Event-ID` is no seq. Send the id of the last event that was received.")
        })
    });
    let after: Seq = match (last.transpose()?, query.cursor) {
        (Some(last), _) => last,
        (None, Some(cursor)) => cursor::decode(&resource, &cursor)?,
        (None, None) => query.after.unwrap_or(0),
    };
    let after = after.min(i64::MAX as u64);
    if streams {
        // An unknown session is an answer and not the end of a stream.
        let head = state.node().tail(session).await?.session.head;
        if after > head {
            let detail = format!(
                "The log of {session} ends at {head}, before {after}: it is not the log that was \
                 followed, or it was set back. Read it from the beginning."
            );
            return Err(Problem::new(Kind::Diverged, detail));
        }
        return Ok(sse::follow(&state, session, after).into_response());
    }
    let limit = page::limit(query.limit)?;
    let read = state.node().store().events(session, after, limit).await?;
    let (mut items, head) = read.ok_or(Refused::NotFound(session))?;
    let next = items
        .last()
        .filter(|last| last.seq < head)
        .map(|last| cursor::encode(&resource, &last.seq));
    // What this build does not know is skipped, and the cursor moves past it.
    items.retain(|record| event::knows(&record.kind, record.version));
    Ok(Json(EventPage { items, next, head }).into_response())
}
