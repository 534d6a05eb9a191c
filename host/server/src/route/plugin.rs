//! Plugins and the names that lead to them.

use axum::Json;
use axum::extract::{FromRequest as _, Request, State};
use axum::http::StatusCode;
use mainstay_core::access::Access;
use mainstay_core::plugin::Kind as PluginKind;
use serde::Deserialize;

use crate::error::Result;
use crate::extract::{self, Path, Query, Raw};
use crate::state::ServerState;
use crate::wire::{NewAlias, NewPlugin, Page, Plugin};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct InstallQuery {
    /// The plugin's own name if left out.
    alias: Option<String>,
}

pub(crate) async fn list(State(state): State<ServerState>) -> Result<Json<Page<Plugin>>> {
    let items = state.plugins().list().await?;
    Ok(Json(Page {
        items,
        next: None,
        previous: None,
    }))
}

pub(crate) async fn access(State(state): State<ServerState>) -> Result<Json<Page<Access>>> {
    let items = state.plugins().access().await?;
    Ok(Json(Page {
        items,
        next: None,
        previous: None,
    }))
}

pub(crate) async fn install(
    State(state): State<ServerState>,
    Query(query): Query<InstallQuery>,
    request: Request,
) -> Result<(StatusCode, Json<Plugin>)> {
    // A component never comes as JSON, so the media type tells a reference from one.
    let plugin = if extract::is_json(request.headers()) {
        let extract::Json(new) = extract::Json::<NewPlugin>::from_request(request, &state).await?;
        let alias = new.alias.or(query.alias);
        state.plugins().load(&new.reference, alias).await?
    } else {
        let Raw(bytes) = Raw::from_request(request, &state).await?;
        state.plugins().install(bytes.into(), query.alias).await?
    };
    Ok((StatusCode::CREATED, Json(plugin)))
}

pub(crate) async fn alias(
    State(state): State<ServerState>,
    Path((kind, alias)): Path<(PluginKind, String)>,
    extract::Json(new): extract::Json<NewAlias>,
) -> Result<Json<Plugin>> {
    Ok(Json(
        state.plugins().alias(kind, &alias, &new.digest).await?,
    ))
}

pub(crate) async fn remove(
    State(state): State<ServerState>,
    Path((kind, alias)): Path<(PluginKind, String)>,
) -> Result<StatusCode> {
    state.plugins().remove(kind, &alias).await?;
    Ok(StatusCode::NO_CONTENT)
}
