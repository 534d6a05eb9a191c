//! One file per resource.

mod approval;
mod edit;
mod event;
mod export;
mod gc;
mod health;
mod input;
mod media;
mod message;
mod node;
mod openapi;
mod plugin;
mod session;

use axum::routing::{get, patch, post, put};
use axum::{Extension, Router};

use crate::extract::BodyLimit;
use crate::state::ServerState;

/// Everything below `/v1`.
pub(crate) fn all(state: &ServerState) -> Router<ServerState> {
    Router::new()
        .route("/sessions", post(session::create).get(session::list))
        .route(
            "/sessions/{session}",
            get(session::show).delete(session::delete),
        )
        .route(
            "/sessions/{session}/inputs",
            post(input::admit).get(input::list),
        )
        .route(
            "/sessions/{session}/inputs/{input}",
            patch(input::change).delete(input::cancel).get(input::show),
        )
        .route("/sessions/{session}/interrupt", post(session::interrupt))
        .route("/sessions/{session}/resume", post(session::resume))
        .route("/sessions/{session}/cancel", post(session::cancel))
        .route("/sessions/{session}/take-over", post(session::take_over))
        .route("/sessions/{session}/export", get(export::export))
        .route("/imports", post(export::import))
        .route("/sessions/{session}/adopt", post(session::adopt))
        .route("/sessions/{session}/fork", post(edit::fork))
        .route(
            "/sessions/{session}/revert",
            post(edit::revert).delete(edit::clear_revert),
        )
        .route("/sessions/{session}/approvals", get(approval::list))
        .route(
            "/sessions/{session}/approvals/{key}",
            post(approval::answer),
        )
        .route("/sessions/{session}/run", post(session::run))
        .route("/sessions/{session}/idle", get(session::idle))
        .route("/sessions/{session}/messages", get(message::list))
        .route("/sessions/{session}/events", get(event::read))
        .route("/media/{digest}", get(media::read))
        .route(
            "/plugins",
            get(plugin::list).merge(
                post(plugin::install).layer(Extension(BodyLimit(state.options().plugin_limit))),
            ),
        )
        .route("/plugins/access", get(plugin::access))
        .route(
            "/plugins/{kind}/{alias}",
            put(plugin::alias).delete(plugin::remove),
        )
        .route("/nodes", get(node::list))
        .route("/nodes/{node}/drain", post(node::drain))
        .route("/gc", post(gc::collect))
        .route("/health", get(health::show))
        .route("/openapi.json", get(openapi::show))
}
