//! The HTTP surface: JSON resources, an event stream that resumes without gaps, problem+json errors.
//!
//! Read [`router`] for the way of a request: the guard, then one file per resource in `route`. It
//! imports the core alone; what only the binary can do (loading a plugin) comes in as
//! [`state::PluginAdmin`].

pub mod cursor;
pub mod error;
mod extract;
mod guard;
mod page;
mod route;
mod sse;
mod stall;
pub mod state;
pub mod wire;

use std::future::Future;

use axum::middleware;
use axum::{Extension, Router};
use tokio::net::TcpListener;

pub use state::{Collector, Options, PluginAdmin, PluginError, RegistryFault, ServerState};

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
/// are under way.
///
/// # Errors
/// The listener's.
pub async fn serve(
    listener: TcpListener,
    state: ServerState,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let closing = state.closing();
    let app = router(state);
    let stop = async move {
        stop.await;
        closing.cancel();
    };
    axum::serve(stall::Listener(listener), app)
        .with_graceful_shutdown(stop)
        .await
}
