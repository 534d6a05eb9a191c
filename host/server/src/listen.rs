//! Who may have a connection, and for how long without doing anything with it. A client that sends
//! nothing, half a head or a trickle of a body is let go, so that it holds no place that others need;
//! one that gets an answer or an event stream keeps its place for as long as it reads.

use std::convert::Infallible;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::http::{HeaderValue, Request, header};
use axum::response::{IntoResponse as _, Response};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tower::ServiceExt as _;
use tracing::{debug, error, warn};

use crate::error::{Kind, Problem};
use crate::pace::Paced;
use crate::stall;

/// Connections beyond those that have a place: each is told so and closed.
const REFUSED: usize = 64;
/// How long one of them may take to ask.
const REFUSED_PATIENCE: Duration = Duration::from_secs(5);
/// Between two tries to take a connection, where the system has none to give.
const PAUSE: Duration = Duration::from_secs(1);
/// Between two lines of the log that say the same.
const QUIET: Duration = Duration::from_secs(60);

/// What a server gives its clients.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Connections at once.
    pub(crate) connections: usize,
    /// How long a connection may go without a whole head of a request, and how long a body may stall.
    pub(crate) patience: Duration,
}

/// Serves connections until `stop` is over, then has `closing` cancelled and waits for the answers that
/// are under way.
pub(crate) async fn serve(
    listener: TcpListener,
    app: Router,
    limits: Limits,
    stop: impl Future<Output = ()>,
    closing: CancellationToken,
) {
    let tasks = TaskTracker::new();
    let places = Arc::new(Semaphore::new(
        limits.connections.min(Semaphore::MAX_PERMITS),
    ));
    let refused = Arc::new(Semaphore::new(REFUSED));
    let mut stop = pin!(stop);
    let mut told: Option<Instant> = None;
    loop {
        let stream = tokio::select! {
            biased;
            () = &mut stop => break,
            stream = accept(&listener) => stream,
        };
        // Small events are to arrive at once.
        let _ = stream.set_nodelay(true);
        let closing = closing.clone();
        match Arc::clone(&places).try_acquire_owned() {
            Ok(place) => {
                let app = app.clone();
                tasks.spawn(connection(stream, app, limits.patience, closing, place));
            }
            Err(_) => {
                if told.is_none_or(|told| told.elapsed() >= QUIET) {
                    told = Some(Instant::now());
                    warn!(
                        connections = limits.connections,
                        "all connections are taken, and more clients are turned away; see \
                         `max-connections` and the limit of open files"
                    );
                }
                // Beyond these, a client is not even told.
                if let Ok(place) = Arc::clone(&refused).try_acquire_owned() {
                    let patience = limits.patience.min(REFUSED_PATIENCE);
                    let app = full(limits.connections);
                    tasks.spawn(connection(stream, app, patience, closing, place));
                }
            }
        }
    }
    drop(listener);
    closing.cancel();
    tasks.close();
    tasks.wait().await;
}

/// The next connection, however often the system has none to give.
async fn accept(listener: &TcpListener) -> TcpStream {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return stream,
            // The client left before its turn.
            Err(error) if is_clients(&error) => {}
            Err(error) => {
                error!(
                    %error,
                    "no connection can be taken for now; see the limit of open files of this process"
                );
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn is_clients(error: &io::Error) -> bool {
    use io::ErrorKind::{ConnectionAborted, ConnectionRefused, ConnectionReset};
    matches!(
        error.kind(),
        ConnectionAborted | ConnectionRefused | ConnectionReset
    )
}

/// One connection to its end.
async fn connection(
    stream: TcpStream,
    app: Router,
    patience: Duration,
    closing: CancellationToken,
    _place: OwnedSemaphorePermit,
) {
    let app = app.map_request(move |request: Request<Incoming>| {
        request.map(|body| Body::new(Paced::new(body, patience)))
    });
    let io = TokioIo::new(stall::Connection::new(stream));
    let served = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(patience)
        .serve_connection(io, TowerToHyperService::new(app));
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = closing.cancelled() => {
            served.as_mut().graceful_shutdown();
            served.await
        }
    };
    if let Err(error) = ended {
        debug!(
            error = mainstay_core::chain(&error),
            "a connection broke off"
        );
    }
}

/// What those are answered that find no place.
fn full(connections: usize) -> Router {
    Router::new().fallback(move || async move { Ok::<_, Infallible>(turned_away(connections)) })
}

fn turned_away(connections: usize) -> Response {
    let detail = format!(
        "All {connections} connections that this server takes at once are taken. Ask again later, or \
         raise `max-connections` of its configuration."
    );
    let mut response = Problem::new(Kind::Unavailable, detail).into_response();
    let close = HeaderValue::from_static("close");
    response.headers_mut().insert(header::CONNECTION, close);
    response
}
