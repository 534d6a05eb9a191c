//! Nodes: who they are, how each does, and the wish that one drains.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mainstay_core::id::OwnerId;

use crate::error::Result;
use crate::extract::Path;
use crate::state::ServerState;
use crate::wire::{Node, Page};

pub(crate) async fn list(State(state): State<ServerState>) -> Result<Json<Page<Node>>> {
    let (rows, now) = state.node().nodes().await?;
    Ok(Json(Page {
        items: rows.iter().map(|row| Node::new(row, now)).collect(),
        next: None,
        previous: None,
    }))
}

pub(crate) async fn drain(
    State(state): State<ServerState>,
    Path(id): Path<OwnerId>,
) -> Result<StatusCode> {
    state.node().drain(id).await?;
    Ok(StatusCode::ACCEPTED)
}
