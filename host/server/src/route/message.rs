//! The history of a session as people read it.

use axum::Json;
use axum::extract::State;
use mainstay_core::history::Item;
use mainstay_core::id::SessionId;
use serde::Deserialize;

use crate::cursor;
use crate::error::Result;
use crate::extract::{Path, Query};
use crate::page::{self, Plan, Shown};
use crate::state::ServerState;
use crate::wire::Page;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
    #[serde(default)]
    order: Shown,
}

pub(crate) async fn list(
    State(state): State<ServerState>,
    Path(session): Path<SessionId>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Item>>> {
    let resource = format!("messages of {session}");
    let limit = page::limit(query.limit)?;
    let place = query
        .cursor
        .map(|cursor| cursor::decode(&resource, &cursor))
        .transpose()?;
    state.node().tail(session).await?;
    let plan = Plan::new(query.order, place);
    let items = state
        .node()
        .store()
        .items(session, plan.range, plan.order, limit + 1)
        .await?;
    Ok(Json(plan.page(
        items,
        limit,
        |item| item.seq,
        |place| cursor::encode(&resource, &place),
    )))
}
