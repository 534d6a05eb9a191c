//! What one session owes another that cannot take it yet.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::event::{Event, EventBody, Parent, SessionCreated};
use mainstay_core::history::ItemBody;
use mainstay_core::id::{EventId, SessionId};
use mainstay_core::replay::Replay;
use mainstay_test_simulation::plugins::{Scripted, say};
use mainstay_test_simulation::world::World;

#[tokio::test]
async fn wait_7_log_21_a_result_for_an_imported_parent_stays_owed_until_it_is_adopted() {
    let world = World::new(Scripted::new(|_, _| say("the result")));
    let process = world.start(None);
    let parent = SessionId::new();
    let created = Event {
        session: parent,
        seq: 1,
        id: EventId::new(),
        at: 1,
        execution: None,
        recovery: None,
        body: EventBody::SessionCreated(SessionCreated {
            agent: "default".into(),
            ..SessionCreated::default()
        }),
        compacted: None,
    };
    let replay = Replay {
        origin: "elsewhere".into(),
        strict: true,
        records: vec![created.encode()],
        texts: Arc::default(),
    };
    process.node.replay(parent, replay).await.unwrap();

    let child = SessionId::new();
    let created = SessionCreated {
        agent: "default".into(),
        parent: Some(Parent {
            session: parent,
            key: "a".into(),
            depth: 1,
        }),
        ..SessionCreated::default()
    };
    process.node.create(child, created).await.unwrap();
    process.prompt(child, "work").await;
    process.node.idle(child).await.unwrap();
    // Some looks of the loop, each of which tries to deliver it.
    let looks = process.link.scans();
    until(|| async { process.link.scans() > looks + 3 }).await;
    assert_eq!(world.tail(child).await.session.outbox.len(), 1);
    assert_eq!(world.kinds(parent).await, ["session.created"]);

    process.node.adopt(parent).await.unwrap();
    until(|| async { world.tail(child).await.session.outbox.is_empty() }).await;
    until(|| async {
        let items = world.items(parent).await;
        items
            .iter()
            .any(|item| matches!(item.body, ItemBody::Child(_)))
    })
    .await;
    assert_eq!(world.count(parent, "input.admitted").await, 1);
}

/// Waits until it is so.
async fn until<F: Future<Output = bool>>(is_so: impl Fn() -> F) {
    let looked = async {
        while !is_so().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(60), looked)
        .await
        .expect("it comes to be so");
}
