//! Removal of what nothing needs any more.

use axum::Json;
use axum::extract::State;
use tracing::warn;

use crate::error::{Kind, Problem, Result};
use crate::extract::Optional;
use crate::state::ServerState;
use crate::wire::{Collect, Collected};

pub(crate) async fn collect(
    State(state): State<ServerState>,
    Optional(ask): Optional<Collect>,
) -> Result<Json<Collected>> {
    match state.collector().collect(ask).await {
        Ok(collected) => Ok(Json(collected)),
        Err(error) => {
            warn!(
                error = mainstay_core::chain(&*error),
                "what nothing needs could not be removed"
            );
            Err(Problem::new(
                Kind::Unavailable,
                "It broke off, and a part may be removed. See the host's log, then send the request again.",
            ))
        }
    }
}
