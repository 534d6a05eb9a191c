//! The rows of nodes: what each tells of itself, when it is gone, and what others may ask of it.

use mainstay_core::id::OwnerId;
use mainstay_core::nodes::{Beat, Identity, Lag, NodeRow, NodeState, Presence};
use mainstay_core::plugin::Condition;
use mainstay_test_support::build;

use crate::{Harness, waiting};

fn identity(owner: OwnerId) -> Identity {
    Identity {
        owner,
        version: "1.2.3".into(),
        address: Some("http://10.0.0.1:7070".into()),
        host: Some("a machine's \"name\"".into()),
        pid: Some(4_000_000_000),
    }
}

fn beat(owner: OwnerId, load: u32) -> Beat {
    Beat {
        owner,
        executions: Vec::new(),
        lease_ms: build::LEASE_MS,
        presence: Some(Presence {
            identity: identity(owner),
            capacity: 8,
            load,
            draining: false,
            stopped: false,
        }),
    }
}

async fn row(h: &Harness, owner: OwnerId) -> (NodeRow, NodeState) {
    let (nodes, now) = h.store.nodes().await.unwrap();
    let mut own = nodes.into_iter().filter(|row| row.identity.owner == owner);
    let row = own.next().expect("it has a row");
    assert!(own.next().is_none(), "a node has one row");
    let state = row.state(now);
    (row, state)
}

/// A node has one row from its first renewal on, with what it told last, and the claims that name it. It
/// is gone with its lease by the store's clock, and back with its next renewal.
pub async fn node_7_a_row_per_process_start(h: Harness) {
    assert!(h.store.nodes().await.unwrap().0.is_empty());
    let (session, fence, _) = h.claimed().await;
    let other = OwnerId::new();
    let began = h.store.now().await.unwrap();
    h.store.beat(&beat(other, 0)).await.unwrap();
    h.clock.advance(10);
    let own = Beat {
        executions: vec![fence],
        ..beat(fence.owner, 1)
    };
    let beaten = h.store.beat(&own).await.unwrap();
    assert!(beaten.renewed.contains(&fence.execution) && !beaten.drain);

    let (first, state) = row(&h, fence.owner).await;
    assert_eq!(state, NodeState::Live);
    let expected = NodeRow {
        identity: identity(fence.owner),
        capacity: 8,
        load: 1,
        claims: 1,
        started_at: began + 10,
        seen_at: began + 10,
        expires_at: began + 10 + build::LEASE_MS,
        draining: false,
        drain_asked: false,
        stopped_at: None,
    };
    assert_eq!(first, expected);
    let order: Vec<OwnerId> = h
        .store
        .nodes()
        .await
        .unwrap()
        .0
        .iter()
        .map(|n| n.identity.owner)
        .collect();
    assert_eq!(order, [other, fence.owner], "by their starts");

    h.clock.advance(build::LEASE_MS - 10);
    assert_eq!(row(&h, other).await.1, NodeState::Gone);
    assert_eq!(row(&h, fence.owner).await.1, NodeState::Live);
    // One statement renews both: the claim ends with its node.
    let claim = h
        .store
        .tail(session)
        .await
        .unwrap()
        .unwrap()
        .claim
        .clone()
        .unwrap();
    assert_eq!(claim.expires_at, first.expires_at);

    h.store.beat(&beat(other, 3)).await.unwrap();
    let (back, state) = row(&h, other).await;
    assert_eq!(
        (state, back.load, back.started_at),
        (NodeState::Live, 3, began)
    );
    // A renewal of claims alone says nothing of the node.
    let silent = Beat {
        presence: None,
        ..own.clone()
    };
    h.store.beat(&silent).await.unwrap();
    assert_eq!(row(&h, fence.owner).await.0.seen_at, began + 10);
    h.dump(session).await;
}

/// A node that lives is asked to drain once, and reads it with its next renewal; one that has ended is
/// left as it is.
pub async fn a_node_reads_that_it_is_to_drain(h: Harness) {
    let (a, b) = (OwnerId::new(), OwnerId::new());
    assert_eq!(h.store.node_drain(a).await.unwrap(), None);
    for owner in [a, b] {
        assert!(!h.store.beat(&beat(owner, 0)).await.unwrap().drain);
    }
    let before = h.store.node_drain(a).await.unwrap().unwrap();
    assert!(!before.drain_asked);
    assert_eq!(row(&h, a).await.1, NodeState::Draining);
    assert!(h.store.node_drain(a).await.unwrap().unwrap().drain_asked);
    assert!(h.store.beat(&beat(a, 0)).await.unwrap().drain);
    assert!(!h.store.beat(&beat(b, 0)).await.unwrap().drain);

    let says = |draining, stopped| {
        let mut beat = beat(a, 0);
        let presence = beat.presence.as_mut().unwrap();
        (presence.draining, presence.stopped) = (draining, stopped);
        beat
    };
    h.store.beat(&says(true, true)).await.unwrap();
    let stopped_at = row(&h, a).await.0.stopped_at;
    assert!(stopped_at.is_some());
    h.clock.advance(1);
    // A renewal that was under way when it ended.
    h.store.beat(&says(true, false)).await.unwrap();
    let (late, state) = row(&h, a).await;
    assert_eq!((state, late.stopped_at), (NodeState::Stopped, stopped_at));

    h.clock.advance(build::LEASE_MS);
    assert!(!h.store.node_drain(b).await.unwrap().unwrap().drain_asked);
    assert!(!row(&h, b).await.0.drain_asked, "it is gone");
}

/// Rows of nodes that ended long ago are removed, and no others.
pub async fn nodes_that_ended_are_forgotten(h: Harness) {
    let (gone, stopped, live) = (OwnerId::new(), OwnerId::new(), OwnerId::new());
    h.store.beat(&beat(gone, 0)).await.unwrap();
    h.clock.advance(build::LEASE_MS);
    let mut last = beat(stopped, 0);
    last.presence.as_mut().unwrap().stopped = true;
    h.store.beat(&last).await.unwrap();
    h.store.beat(&beat(live, 0)).await.unwrap();
    h.clock.advance(1_000);
    assert_eq!(h.store.nodes_forget(1_000).await.unwrap(), 0);
    h.clock.advance(1);
    assert_eq!(h.store.nodes_forget(1_000).await.unwrap(), 2);
    let (nodes, _) = h.store.nodes().await.unwrap();
    assert_eq!(nodes.len(), 1);
    assert_eq!(nodes[0].identity.owner, live);
}

/// What waits is counted, with the age of the oldest, and none of it is taken by looking.
pub async fn api_11_how_much_waits_is_told(h: Harness) {
    assert_eq!(h.store.lag().await.unwrap(), Lag::default());
    let (first, ..) = h.claimed().await;
    h.clock.advance(500);
    let (second, ..) = h.claimed().await;
    let due = h.session().await;
    h.prompt(due, mainstay_core::event::Delivery::Steer).await;
    waiting(&h, &[Condition::Signal("s".into())]).await;
    let lag = h.store.lag().await.unwrap();
    assert_eq!((lag.expired, lag.oldest_expired_ms, lag.due), (0, None, 1));
    h.clock.advance(build::LEASE_MS - 500);
    assert_eq!(h.store.lag().await.unwrap().oldest_expired_ms, Some(0));
    h.clock.advance(700);
    for _ in 0..2 {
        let lag = h.store.lag().await.unwrap();
        assert_eq!(
            (lag.expired, lag.oldest_expired_ms, lag.due),
            (2, Some(700), 1)
        );
        let now = h.store.now().await.unwrap();
        let changed = h.store.tail(due).await.unwrap().unwrap().session.updated_at;
        assert_eq!(lag.oldest_due_ms, Some(now - changed));
    }
    let scan = h.store.scan(10).await.unwrap();
    assert_eq!((scan.expired.len(), scan.due.as_slice()), (2, &[due][..]));
    for session in [first, second, due] {
        h.dump(session).await;
    }
}

/// No more runnable sessions are listed than there are places for; what leads to none is listed all the
/// same.
pub async fn a_scan_is_told_how_many_places_there_are(h: Harness) {
    let (claimed, ..) = h.claimed().await;
    let mut due = Vec::new();
    for _ in 0..3 {
        let session = h.session().await;
        h.prompt(session, mainstay_core::event::Delivery::Steer)
            .await;
        due.push(session);
    }
    h.clock.advance(build::LEASE_MS);
    for places in [0, 2, 9] {
        let scan = h.store.scan_within(10, places).await.unwrap();
        assert_eq!(scan.due, due[..(places as usize).min(3)]);
        assert_eq!(scan.expired.len(), 1);
        assert_eq!(scan.expired[0].session, claimed);
    }
}
