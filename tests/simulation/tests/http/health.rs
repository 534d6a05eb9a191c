//! Health, asked over HTTP of a node whose recovery loop stands still while its process lives.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use mainstay_core::config::{Settings, SharedConfig};
use mainstay_core::node::{Node, Ports};
use mainstay_core::port::{Scan, Store, StoreError, SystemClock};
use mainstay_server::Options;
use mainstay_server::wire::{Health, HealthStatus};
use mainstay_test_simulation::plugins::{Scripted, say};
use mainstay_test_support::MemoryStore;
use mainstay_test_support::delegate::{Delegate, Delegating};
use tower::ServiceExt as _;

use super::app;

const DEADLINE: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_millis(300);

/// A store whose scans never return, on order.
struct Stuck {
    memory: Arc<MemoryStore>,
    stuck: AtomicBool,
}

#[async_trait]
impl Delegate for Stuck {
    fn inner(&self) -> &dyn Store {
        &*self.memory
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        if self.stuck.load(Ordering::SeqCst) {
            std::future::pending::<()>().await;
        }
        self.memory.scan_within(limit, places).await
    }
}

async fn health(app: &axum::Router) -> (StatusCode, Health) {
    let request = Request::get("/v1/health")
        .header("host", "127.0.0.1")
        .body(Body::empty())
        .unwrap();
    let answer = app.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 16)
        .await
        .unwrap();
    (status, serde_json::from_slice(&body).unwrap())
}

/// Asks until the health is as wanted.
async fn until(app: &axum::Router, wanted: impl Fn(&Health) -> bool) -> (StatusCode, Health) {
    let asked = async {
        loop {
            let (status, health) = health(app).await;
            if wanted(&health) {
                return (status, health);
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, asked)
        .await
        .expect("in time")
}

#[tokio::test]
async fn api_11_a_recovery_loop_that_stands_still_makes_the_health_bad() {
    let memory = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
    let store = Arc::new(Stuck {
        memory: Arc::clone(&memory),
        stuck: AtomicBool::new(false),
    });
    let ports = Ports {
        store: Arc::new(Delegating(Arc::clone(&store))),
        plugins: Arc::new(Scripted::new(|_, _| say("x"))),
        clock: Arc::new(SystemClock::default()),
    };
    let settings = Settings {
        poll_every: Duration::from_millis(20),
        ..Settings::default()
    };
    let node = Node::start(ports, settings, Arc::new(SharedConfig::default()));
    let options = Options {
        lag_limit: LIMIT,
        ..Options::default()
    };
    let app = app(node, options);

    let (status, well) = until(&app, |health| health.status == HealthStatus::Ok).await;
    assert_eq!((status, well.detail), (StatusCode::OK, None));

    store.stuck.store(true, Ordering::SeqCst);
    let (status, bad) = until(&app, |health| health.status == HealthStatus::Lagging).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(bad.last_look_ms > LIMIT.as_millis() as u64, "{bad:?}");
    let detail = bad.detail.unwrap();
    assert!(
        detail.contains("last look for work") && detail.contains("ms ago"),
        "{detail}"
    );
    // What waits behind it is told with its age.
    assert_eq!(
        (bad.projection_lag, bad.expired_claims, bad.due_sessions),
        (0, 0, 0)
    );
    let (session, input) = (
        mainstay_core::id::SessionId::new(),
        mainstay_core::id::InputId::new(),
    );
    for commit in [
        mainstay_test_support::build::create(session),
        mainstay_test_support::build::admit(
            session,
            input,
            mainstay_core::event::Delivery::Queue,
            "go",
        ),
    ] {
        memory.commit(commit).await.unwrap();
    }
    let (_, bad) = until(&app, |health| health.due_sessions == 1).await;
    assert_eq!(bad.status, HealthStatus::Lagging);
    assert!(bad.oldest_due_wake_ms.is_some());

    // A store that does not answer at all is told too.
    memory.set_down(true);
    let (status, bad) = health(&app).await;
    assert_eq!(status, StatusCode::SERVICE_UNAVAILABLE);
    assert!(bad.detail.unwrap().contains("The store does not answer"));
}
