//! Inputs: what is admitted to a session, and what became of it.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mainstay_core::commit::Refused;
use mainstay_core::event::{Delivery, InputContent};
use mainstay_core::history::{ModelRef, Signal};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Part;
use mainstay_core::tail::Input;
use serde::Deserialize;

use crate::error::{Kind, Problem, Result};
use crate::extract::{self, Path, Query};
use crate::state::ServerState;
use crate::wire::{Admitted, InputChange, NewInput, Page};

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ListQuery {
    /// Only what is pending.
    #[serde(default)]
    pending: bool,
}

pub(crate) async fn admit(
    State(state): State<ServerState>,
    Path(session): Path<SessionId>,
    extract::Json(new): extract::Json<NewInput>,
) -> Result<(StatusCode, Json<Admitted>)> {
    let input = new.id.unwrap_or_else(InputId::new);
    let content = content(&state, &new).await?;
    if let InputContent::Configure { model } = &content {
        is_configured(&state, session, new.id, model).await?;
    }
    let usual = match content {
        InputContent::Prompt { .. } => Delivery::Queue,
        _ => Delivery::Steer,
    };
    let admission = state
        .node()
        .admit(session, input, new.delivery.unwrap_or(usual), content)
        .await?;
    let admitted = Admitted {
        session,
        input: admission.input,
        seq: admission.seq,
        held: admission.held,
    };
    Ok((StatusCode::ACCEPTED, Json(admitted)))
}

/// Whether the model's provider is configured. A retry is answered whatever the configuration says by
/// now.
async fn is_configured(
    state: &ServerState,
    session: SessionId,
    input: Option<InputId>,
    model: &ModelRef,
) -> Result<()> {
    let config = state.node().config().get();
    if config.providers.contains_key(&model.provider) {
        return Ok(());
    }
    if let Some(input) = input {
        let held = state.node().store().inputs(session, true).await?;
        if held.iter().any(|held| held.id == input) {
            return Ok(());
        }
    }
    Err(Problem::no_provider(&model.provider, &config))
}

async fn content(state: &ServerState, new: &NewInput) -> Result<InputContent> {
    let invalid = |detail: String| Problem::new(Kind::Invalid, detail);
    let given = [
        new.text.is_some(),
        new.parts.is_some(),
        new.configure.is_some(),
        new.signal.is_some(),
        new.compact,
    ];
    if given.iter().filter(|given| **given).count() != 1 {
        return Err(invalid(
            "An input is exactly one of `text`, `parts`, `signal`, `configure` and `compact`. Send \
             one of them."
                .into(),
        ));
    }
    if new.compact {
        return Ok(InputContent::Compact {});
    }
    if let Some(configure) = &new.configure {
        let model = configure.model.parse().map_err(invalid)?;
        return Ok(InputContent::Configure { model });
    }
    if let Some(signal) = &new.signal {
        if signal.name.is_empty() || signal.name.len() > 256 {
            return Err(invalid(
                "A signal's name has 1 to 256 bytes. Send it under another.".into(),
            ));
        }
        return Ok(InputContent::Signal(Signal {
            name: signal.name.clone(),
            data: signal.data.to_string(),
        }));
    }
    let parts = match (&new.text, &new.parts) {
        (Some(text), _) => vec![Part::Text(text.clone())],
        (_, parts) => parts.clone().unwrap_or_default(),
    };
    let empty = |part: &Part| matches!(part, Part::Text(text) if text.trim().is_empty());
    if parts.iter().all(empty) {
        return Err(invalid("The prompt is empty. Send some text.".into()));
    }
    for part in &parts {
        if let Part::Media(media) = part
            && state.node().store().blob(&media.digest).await?.is_none()
        {
            return Err(invalid(format!(
                "The store holds no media `{}`. Name one that it holds.",
                media.digest
            )));
        }
    }
    Ok(InputContent::Prompt { parts })
}

pub(crate) async fn list(
    State(state): State<ServerState>,
    Path(session): Path<SessionId>,
    Query(query): Query<ListQuery>,
) -> Result<Json<Page<Input>>> {
    state.node().tail(session).await?;
    let items = state.node().store().inputs(session, !query.pending).await?;
    Ok(Json(Page {
        items,
        next: None,
        previous: None,
    }))
}

pub(crate) async fn show(
    State(state): State<ServerState>,
    Path((session, input)): Path<(SessionId, InputId)>,
) -> Result<Json<Input>> {
    find(&state, session, input).await.map(Json)
}

pub(crate) async fn change(
    State(state): State<ServerState>,
    Path((session, input)): Path<(SessionId, InputId)>,
    extract::Json(change): extract::Json<InputChange>,
) -> Result<Json<Input>> {
    state
        .node()
        .redeliver(session, input, change.delivery)
        .await?;
    find(&state, session, input).await.map(Json)
}

pub(crate) async fn cancel(
    State(state): State<ServerState>,
    Path((session, input)): Path<(SessionId, InputId)>,
) -> Result<StatusCode> {
    state.node().cancel_input(session, input).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn find(state: &ServerState, session: SessionId, input: InputId) -> Result<Input> {
    state.node().tail(session).await?;
    let inputs = state.node().store().inputs(session, true).await?;
    inputs
        .into_iter()
        .find(|found| found.id == input)
        .ok_or_else(|| Refused::InputNotFound(input).into())
}
