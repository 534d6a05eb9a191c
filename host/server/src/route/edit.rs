//! Editing a session's history: forks and reverts.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstay_core::id::SessionId;

use super::session;
use crate::error::Result;
use crate::extract::{self, Optional, Path};
use crate::state::ServerState;
use crate::wire::{NewFork, NewRevert, Session};

pub(crate) async fn fork(
    State(state): State<ServerState>,
    Path(source): Path<SessionId>,
    Optional(new): Optional<NewFork>,
) -> Result<Response> {
    let id = new.id.unwrap_or_else(SessionId::new);
    state.node().fork(source, new.through, id).await?;
    let forked = session::find(&state, id).await?;
    Ok((
        StatusCode::CREATED,
        [(header::LOCATION, format!("/v1/sessions/{id}"))],
        Json(forked),
    )
        .into_response())
}

pub(crate) async fn revert(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
    extract::Json(new): extract::Json<NewRevert>,
) -> Result<Json<Session>> {
    state.node().revert(id, new.before).await?;
    session::find(&state, id).await.map(Json)
}

pub(crate) async fn clear_revert(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Session>> {
    state.node().clear_revert(id).await?;
    session::find(&state, id).await.map(Json)
}
