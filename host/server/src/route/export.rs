//! A session as a file of JSON lines, and the way back.

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::StreamExt as _;
use mainstay_core::export::{self, ImportError, Imported, Importer};
use mainstay_core::id::SessionId;
use serde::Deserialize;

use crate::error::{Kind, Problem, Result};
use crate::extract::{Path, Query};
use crate::state::ServerState;

/// Bytes of one line: the largest blob in base64, and room.
const LINE: usize = 128 * 1024 * 1024;

pub(crate) async fn export(
    State(state): State<ServerState>,
    Path(session): Path<SessionId>,
) -> Result<Response> {
    // An unknown session is an answer and not the end of a stream.
    let tail = state.node().tail(session).await?;
    let store = state.node().store();
    let origin = match tail.session.imported() {
        Some(origin) => origin.to_owned(),
        None => store.name().await?,
    };
    let lines = export::export(std::sync::Arc::clone(store), session, &origin);
    let body = Body::from_stream(lines.map(|line| line.map(|line| line + "\n")));
    Ok(([(header::CONTENT_TYPE, "application/jsonl")], body).into_response())
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ImportQuery {
    /// Skip a session that is held under another origin, instead of refusing it.
    #[serde(default)]
    lenient: bool,
}

pub(crate) async fn import(
    State(state): State<ServerState>,
    Query(query): Query<ImportQuery>,
    request: Request,
) -> Result<Json<Imported>> {
    let mut importer = Importer::new(state.node().clone(), !query.lenient);
    let mut body = request.into_body().into_data_stream();
    let mut rest: Vec<u8> = Vec::new();
    while let Some(chunk) = body.next().await {
        let chunk = chunk.map_err(|_| {
            Problem::new(
                Kind::BadRequest,
                "The body broke off. Send the file again; what was taken is found held.",
            )
        })?;
        rest.extend_from_slice(&chunk);
        let mut begun = 0;
        while let Some(end) = rest[begun..].iter().position(|byte| *byte == b'\n') {
            line(&mut importer, &rest[begun..begun + end]).await?;
            begun += end + 1;
        }
        rest.drain(..begun);
        if rest.len() > LINE {
            return Err(Problem::new(
                Kind::TooLarge,
                "A line is too long for an export.",
            ));
        }
    }
    if !rest.is_empty() {
        line(&mut importer, &rest).await?;
    }
    importer.finish().await.map(Json).map_err(problem)
}

async fn line(importer: &mut Importer, bytes: &[u8]) -> Result<()> {
    let text = std::str::from_utf8(bytes)
        .map_err(|_| Problem::new(Kind::Invalid, "The file is no UTF-8 text. Send an export."))?;
    importer.line(text).await.map_err(problem)
}

fn problem(error: ImportError) -> Problem {
    match error {
        ImportError::Store { cause, .. } => cause.into(),
        other => Problem::new(
            Kind::Invalid,
            format!(
                "The file cannot be imported: {}. Export the session again.",
                mainstay_core::chain(&other)
            ),
        ),
    }
}
