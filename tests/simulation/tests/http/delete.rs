//! A delete that comes late: what was begun under the id meanwhile is another session.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Body;
use axum::http::{Request, StatusCode};
use futures::StreamExt as _;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::config::{Settings, SharedConfig};
use mainstay_core::event::SessionCreated;
use mainstay_core::id::SessionId;
use mainstay_core::node::{Followed, Node, Ports};
use mainstay_core::port::{Committed, Store, StoreError, SystemClock};
use mainstay_server::Options;
use mainstay_test_simulation::plugins::{Scripted, say};
use mainstay_test_support::MemoryStore;
use mainstay_test_support::build;
use mainstay_test_support::delegate::{Delegate, Delegating};
use tower::ServiceExt as _;

use super::app;

const DEADLINE: Duration = Duration::from_secs(60);

/// Behind the first cancellation of a session, somebody else deletes it and begins it anew.
struct Faster {
    memory: Arc<MemoryStore>,
    was: AtomicBool,
}

#[async_trait]
impl Delegate for Faster {
    fn inner(&self) -> &dyn Store {
        &*self.memory
    }

    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        let session = commit.session;
        let cancels = matches!(commit.write, Write::Cancel);
        let committed = self.memory.commit(commit).await;
        if cancels && !self.was.swap(true, Ordering::SeqCst) {
            assert!(self.memory.delete(session).await?);
            self.memory.commit(build::create(session)).await?;
        }
        committed
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_follows_a_deleted_session_is_told_nothing_of_the_next() {
    let memory = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
    let ports = Ports {
        store: Arc::clone(&memory) as _,
        plugins: Arc::new(Scripted::new(|_, _| say("x"))),
        clock: Arc::new(SystemClock::default()),
    };
    let settings = Settings {
        poll_every: Duration::from_millis(20),
        ..Settings::default()
    };
    let node = Node::start(ports, settings, Arc::new(SharedConfig::default()));
    let session = SessionId::new();
    let note = |n: usize| build::commit(session, Write::Create(titled(n)));
    memory.commit(note(1)).await.unwrap();
    memory
        .commit(build::commit(session, Write::Cancel))
        .await
        .unwrap();
    let mut log = Box::pin(node.log(session, 0, true));
    while !matches!(log.next().await, Some(Ok(Followed::Synced(2)))) {}

    assert!(memory.delete(session).await.unwrap());
    memory.commit(note(2)).await.unwrap();
    let ended = tokio::time::timeout(DEADLINE, log.next()).await;
    assert!(ended.expect("it ends").is_none());
}

fn titled(n: usize) -> SessionCreated {
    SessionCreated {
        title: Some(n.to_string()),
        ..SessionCreated::default()
    }
}

async fn delete(app: &axum::Router, session: SessionId) -> StatusCode {
    let request = Request::delete(format!("/v1/sessions/{session}"))
        .header("host", "127.0.0.1")
        .body(Body::empty())
        .unwrap();
    app.clone().oneshot(request).await.unwrap().status()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stale_delete_leaves_the_session_that_was_begun_anew() {
    let memory = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
    let store = Arc::new(Faster {
        memory: Arc::clone(&memory),
        was: AtomicBool::new(false),
    });
    let ports = Ports {
        store: Arc::new(Delegating(store)),
        plugins: Arc::new(Scripted::new(|_, _| say("x"))),
        clock: Arc::new(SystemClock::default()),
    };
    let node = Node::start(
        ports,
        Settings::default(),
        Arc::new(SharedConfig::default()),
    );
    let app = app(node, Options::default());
    let session = SessionId::new();
    memory.commit(build::create(session)).await.unwrap();

    // What it was asked of is gone.
    assert_eq!(delete(&app, session).await, StatusCode::NO_CONTENT);
    let tail = memory.tail(session).await.unwrap();
    let tail = tail.expect("the one that was begun anew stays");
    assert!(!tail.session.cancelled);
    assert_eq!(tail.session.head, 1);

    // One that is asked of this one is its own.
    assert_eq!(delete(&app, session).await, StatusCode::NO_CONTENT);
    assert!(memory.tail(session).await.unwrap().is_none());
    assert_eq!(delete(&app, session).await, StatusCode::NOT_FOUND);
}
