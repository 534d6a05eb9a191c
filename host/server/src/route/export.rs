//! A session as a file of JSON lines, and the way back.

use std::io;

use axum::Json;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::{StreamExt as _, TryStreamExt as _};
use mainstay_core::export::{self, ImportError, Imported, Importer};
use mainstay_core::id::SessionId;
use serde::Deserialize;
use tokio::io::{AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _};
use tokio_util::io::StreamReader;

use crate::error::{Kind, Problem, Result};
use crate::extract::{self, Path, Query};
use crate::state::ServerState;

/// Bytes of one line: the largest blob in base64, and room.
const LINE: u64 = 128 * 1024 * 1024;

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
    let mut lines = Lines::new(request.into_body());
    while let Some(line) = lines.next().await? {
        let text = std::str::from_utf8(line).map_err(|_| {
            let detail = "The file is no UTF-8 text. Send an export.";
            Problem::new(Kind::FileDamaged, detail)
        })?;
        importer.line(text).await.map_err(problem)?;
    }
    importer.finish().await.map(Json).map_err(problem)
}

/// The lines of a body, each looked at once, however its bytes come.
struct Lines<R> {
    body: R,
    line: Vec<u8>,
}

impl Lines<()> {
    fn new(body: Body) -> Lines<impl AsyncBufRead + Unpin> {
        let chunks = body.into_data_stream().map_err(io::Error::other);
        Lines {
            body: StreamReader::new(chunks),
            line: Vec::new(),
        }
    }
}

impl<R: AsyncBufRead + Unpin> Lines<R> {
    /// The next line, without its end.
    async fn next(&mut self) -> Result<Option<&[u8]>> {
        self.line.clear();
        let mut body = (&mut self.body).take(LINE + 1);
        if let Err(error) = body.read_until(b'\n', &mut self.line).await {
            let advice = "Send the file again; what was taken is found held.";
            return Err(match error.downcast::<axum::Error>() {
                Ok(error) => extract::broke_off(&error, advice),
                Err(error) => extract::broke_off(&axum::Error::new(error), advice),
            });
        }
        if self.line.is_empty() {
            return Ok(None);
        }
        if self.line.last() == Some(&b'\n') {
            self.line.pop();
        }
        if self.line.len() as u64 > LINE {
            let detail = "A line is too long for an export.";
            return Err(Problem::new(Kind::TooLarge, detail));
        }
        Ok(Some(&self.line))
    }
}

fn problem(error: ImportError) -> Problem {
    let kind = match &error {
        ImportError::Store { .. } => Kind::Unavailable,
        error if error.is_damage() => Kind::FileDamaged,
        _ => Kind::Invalid,
    };
    match error {
        ImportError::Store { cause, .. } => cause.into(),
        other => Problem::new(
            kind,
            format!(
                "The file cannot be imported: {}. Export the session again.",
                mainstay_core::chain(&other)
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use axum::body::Bytes;
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn a_long_line_is_looked_at_once() {
        // Looked at from its beginning with each piece, it takes 9 million million steps.
        const PIECES: usize = 1 << 18;
        let piece = Bytes::from_static(&[b'x'; 256]);
        let last = Bytes::from_static(b"\ny\n\nz");
        let pieces = stream::iter((0..PIECES).map(move |_| piece.clone()));
        let pieces = pieces.chain(stream::iter([last]));
        let body = Body::from_stream(pieces.map(Ok::<_, std::convert::Infallible>));
        let mut lines = Lines::new(body);
        let read = async {
            assert_eq!(lines.next().await.unwrap().unwrap().len(), PIECES * 256);
            for expected in ["y", "", "z"] {
                let line = lines.next().await.unwrap();
                assert_eq!(line, Some(expected.as_bytes()));
            }
            assert_eq!(lines.next().await.unwrap(), None);
        };
        let deadline = Duration::from_secs(120);
        tokio::time::timeout(deadline, read).await.unwrap();
    }

    #[tokio::test]
    async fn a_line_that_no_export_has_is_refused() {
        let piece = Bytes::from(vec![b'x'; 1 << 20]);
        let pieces = stream::repeat(piece).map(Ok::<_, std::convert::Infallible>);
        let mut lines = Lines::new(Body::from_stream(pieces));
        let error = lines.next().await.unwrap_err();
        assert_eq!(error.kind, Kind::TooLarge);
    }
}
