//! Bytes that histories refer to: media of prompts and answers, and whole outputs of tools of which a
//! model was shown the beginning.

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};

use crate::error::{Kind, Problem, Result};
use crate::extract::Path;
use crate::state::ServerState;

/// As a file to keep and never as a page to show: a tool may have written it.
pub(crate) async fn read(
    State(state): State<ServerState>,
    Path(digest): Path<String>,
) -> Result<Response> {
    let bytes = state.node().store().blob(&digest).await?;
    let bytes = bytes.ok_or_else(|| {
        Problem::new(
            Kind::MediaNotFound,
            format!("The store holds no media `{digest}`. Take a digest from a message."),
        )
    })?;
    let headers = [
        (header::CONTENT_TYPE, "application/octet-stream"),
        (header::CONTENT_DISPOSITION, "attachment"),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (
            header::CACHE_CONTROL,
            "private, immutable, max-age=31536000",
        ),
    ];
    Ok((headers, bytes).into_response())
}
