//! Sessions and what is done to them as a whole.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use mainstay_core::commit::Refused;
use mainstay_core::event::{EventBody, SessionCreated};
use mainstay_core::history::ModelRef;
use mainstay_core::id::{Millis, SessionId};
use mainstay_core::policy::Resume;
use mainstay_core::tail::Tail;
use serde::Deserialize;

use crate::cursor;
use crate::error::{Kind, Problem, Result};
use crate::extract::{self, Optional, Path, Query};
use crate::page;
use crate::state::ServerState;
use crate::wire::{Interrupted, NewInterrupt, NewRun, NewSession, Page, Ran, Session};

const RESOURCE: &str = "sessions";

/// Agent of a session that names none.
const AGENT: &str = "default";

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    limit: Option<u32>,
    cursor: Option<String>,
}

pub(crate) async fn create(
    State(state): State<ServerState>,
    extract::Json(new): extract::Json<NewSession>,
) -> Result<Response> {
    let id = new.id.unwrap_or_else(SessionId::new);
    let agent = new.agent.unwrap_or_else(|| AGENT.into());
    let model = new.model.map(|model| model.parse()).transpose();
    let model = model.map_err(|detail| Problem::new(Kind::Invalid, detail))?;
    let wanted = (model.clone(), new.resume);
    let resume = state.node().config().get();
    let resume = resume.agents.get(&agent).map(|agent| agent.resume);
    let resume = resume.unwrap_or_default();
    // A retry is answered whatever the configuration says by now.
    if state.node().store().tail(id).await?.is_none() {
        let config = state.node().config().get();
        if !config.agents.contains_key(&agent) {
            let known: Vec<&str> = config.agents.keys().map(String::as_str).collect();
            let detail = format!(
                "There is no agent `{agent}`. Configured are: {}.",
                known.join(", ")
            );
            return Err(Problem::new(Kind::Invalid, detail));
        }
        if let Some(model) = &model
            && !config.providers.contains_key(&model.provider)
        {
            return Err(Problem::no_provider(&model.provider, &config));
        }
    }
    let existed = state
        .node()
        .create(
            id,
            SessionCreated {
                agent,
                model,
                title: new.title,
                resume: new.resume.unwrap_or(resume),
                ..SessionCreated::default()
            },
        )
        .await?;
    if existed {
        is_as_created(&state, id, &wanted).await?;
    }
    let session = find(&state, id).await?;
    let status = if existed {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    Ok((
        status,
        [(header::LOCATION, format!("/v1/sessions/{id}"))],
        Json(session),
    )
        .into_response())
}

/// Whether a held session was created with this model, and with this policy where one is named: of
/// another, the configuration may say something else by now.
async fn is_as_created(
    state: &ServerState,
    id: SessionId,
    (model, resume): &(Option<ModelRef>, Option<Resume>),
) -> Result<()> {
    let first = state.node().store().events(id, 0, 1).await?;
    let first = first.and_then(|(records, _)| records.first()?.decode().ok());
    let Some(EventBody::SessionCreated(created)) = first.map(|event| event.body) else {
        return Err(Refused::NotFound(id).into());
    };
    if created.model != *model || resume.is_some_and(|resume| resume != created.resume) {
        return Err(Refused::SessionConflict(id).into());
    }
    Ok(())
}

pub(crate) async fn list(
    State(state): State<ServerState>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Session>>> {
    let limit = page::limit(query.limit)?;
    let before: Option<(Millis, SessionId)> = query
        .cursor
        .map(|cursor| cursor::decode(RESOURCE, &cursor))
        .transpose()?;
    let store = state.node().store();
    let now = store.now().await?;
    let mut listed = store.sessions(before, limit + 1).await?;
    let more = listed.len() > limit as usize;
    listed.truncate(limit as usize);
    let next = listed.last().filter(|_| more);
    let next =
        next.map(|last| cursor::encode(RESOURCE, &(last.session.created_at, last.session.id)));
    let items = listed
        .iter()
        .map(|listed| Session::from_listed(listed, now))
        .collect();
    Ok(Json(Page {
        items,
        next,
        previous: None,
    }))
}

pub(crate) async fn show(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Session>> {
    find(&state, id).await.map(Json)
}

pub(crate) async fn delete(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<StatusCode> {
    if state.node().delete(id).await? {
        Ok(StatusCode::NO_CONTENT)
    } else {
        Err(Refused::NotFound(id).into())
    }
}

pub(crate) async fn interrupt(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
    Optional(new): Optional<NewInterrupt>,
) -> Result<Json<Interrupted>> {
    let was_busy = if new.and_continue {
        state.node().interrupt_and_continue(id).await?
    } else {
        state.node().interrupt(id).await?
    };
    Ok(Json(Interrupted { was_busy }))
}

pub(crate) async fn cancel(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Interrupted>> {
    let was_busy = state.node().cancel(id).await?;
    Ok(Json(Interrupted { was_busy }))
}

pub(crate) async fn take_over(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Interrupted>> {
    let was_busy = state.node().take_over(id).await?;
    Ok(Json(Interrupted { was_busy }))
}

pub(crate) async fn adopt(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Session>> {
    state.node().adopt(id).await?;
    find(&state, id).await.map(Json)
}

pub(crate) async fn resume(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Session>> {
    state.node().resume(id).await?;
    find(&state, id).await.map(Json)
}

pub(crate) async fn run(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
    Optional(new): Optional<NewRun>,
) -> Result<Json<Ran>> {
    let forced = if new.force {
        let tail = state.node().tail(id).await?;
        Some(
            state
                .node()
                .config()
                .get()
                .agents
                .get(&tail.session.agent)
                .map_or(64, |agent| agent.steps),
        )
    } else {
        None
    };
    let outcome = tokio::select! {
        outcome = state.node().run(id, forced) => outcome?,
        () = closed(&state) => return Err(closing()),
    };
    Ok(Json(outcome.into()))
}

pub(crate) async fn idle(
    State(state): State<ServerState>,
    Path(id): Path<SessionId>,
) -> Result<Json<Session>> {
    let tail = tokio::select! {
        tail = state.node().idle(id) => tail?,
        () = closed(&state) => return Err(closing()),
    };
    view(&state, &tail).await.map(Json)
}

async fn closed(state: &ServerState) {
    state.closing().cancelled_owned().await;
}

fn closing() -> Problem {
    Problem::new(
        Kind::Unavailable,
        "The server is closing. The session goes on at its next start; ask again then.",
    )
}

pub(super) async fn find(state: &ServerState, id: SessionId) -> Result<Session> {
    let tail = state.node().tail(id).await?;
    view(state, &tail).await
}

async fn view(state: &ServerState, tail: &Tail) -> Result<Session> {
    let now = state.node().store().now().await?;
    let mut session = Session::from_tail(tail, now);
    // What runs has what it needs.
    if tail.step.is_some()
        && tail
            .claim
            .as_ref()
            .is_none_or(|claim| claim.expires_at <= now)
    {
        session.missing = state.node().missing(tail).await;
    }
    Ok(session)
}
