//! Requests for approval: what a session asks a person, and the person's answer.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mainstay_core::history::Approval;
use mainstay_core::id::SessionId;

use crate::error::Result;
use crate::extract::{self, Path};
use crate::state::ServerState;
use crate::wire::{self, NewAnswer, Page};

pub(crate) async fn list(
    State(state): State<ServerState>,
    Path(session): Path<SessionId>,
) -> Result<Json<Page<wire::Approval>>> {
    let tail = state.node().tail(session).await?;
    Ok(Json(Page {
        items: wire::Approval::all(&tail),
        next: None,
        previous: None,
    }))
}

pub(crate) async fn answer(
    State(state): State<ServerState>,
    Path((session, key)): Path<(SessionId, String)>,
    extract::Json(new): extract::Json<NewAnswer>,
) -> Result<StatusCode> {
    let answer = Approval {
        key,
        approved: new.approved,
        reason: new.reason,
    };
    state.node().answer(session, answer).await?;
    Ok(StatusCode::NO_CONTENT)
}
