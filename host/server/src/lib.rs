//! The HTTP surface: JSON resources, an event stream that resumes without gaps, problem+json errors.
//!
//! Read [`router`] for the way of a request: the guard, then one file per resource in `route`. It
//! imports the core alone; what only the binary can do (loading a plugin) comes in as
//! [`state::PluginAdmin`].

pub mod cursor;
pub mod error;
mod extract;
mod guard;
mod listen;
mod pace;
mod page;
mod route;
mod sse;
mod stall;
pub mod state;
pub mod strict;
pub mod wire;

use std::future::Future;

use axum::middleware;
use axum::{Extension, Router};
use tokio::net::TcpListener;

pub use state::{
    BODY_LIMIT, Collector, Options, PluginAdmin, PluginError, RegistryFault, ServerState,
};

/// Every route, behind the guard.
pub fn router(state: ServerState) -> Router {
    let limit = state.options().body_limit;
    Router::new()
        .nest("/v1", route::all(&state))
        .fallback(error::no_route)
        .method_not_allowed_fallback(error::no_method)
        .layer(Extension(extract::BodyLimit(limit)))
        .layer(middleware::from_fn_with_state(state.clone(), guard::check))
        .with_state(state)
}

/// Answers requests until `stop` is over, then ends the event streams and waits for the answers that
/// are under way. Where no connection can be taken, it says so in the log and tries again.
///
/// # Cancel safety
/// Dropped, it takes no more connections; those that it has go on by themselves.
pub async fn serve(listener: TcpListener, state: ServerState, stop: impl Future<Output = ()>) {
    let limits = listen::Limits {
        connections: state.options().max_connections,
        patience: state.options().read_patience,
    };
    let closing = state.closing();
    listen::serve(listener, router(state), limits, stop, closing).await;
}
