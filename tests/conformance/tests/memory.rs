//! The suite on the store in memory, and what only its faults can show.

use std::sync::Arc;

use mainstay_core::commit::{Reply, Write};
use mainstay_core::event::{Delivery, EventBody};
use mainstay_core::port::{Store, StoreError};
use mainstay_test_conformance::{Harness, conformance, log_20};
use mainstay_test_support::{ManualClock, MemoryStore, build};

async fn open() -> Harness {
    with_faults().0
}

fn with_faults() -> (Harness, Arc<MemoryStore>) {
    let clock = Arc::new(ManualClock::default());
    let store = Arc::new(MemoryStore::new(clock.clone()));
    (
        Harness {
            store: store.clone(),
            clock,
            keep: Box::new(()),
        },
        store,
    )
}

conformance!(open);

/// A promotion that is rolled back leaves the input pending.
#[tokio::test]
async fn inbox_10() {
    let (h, store) = with_faults();
    let (session, fence, input) = h.claimed().await;
    let promote = || {
        build::append(
            session,
            fence,
            [build::turn_started(), EventBody::InputPromoted { input }],
        )
    };
    let before = h.dump(session).await;
    store.fail_next(1);
    assert!(matches!(
        store.commit(promote()).await,
        Err(StoreError::Unavailable { .. })
    ));
    assert_eq!(before, h.dump(session).await);
    h.ok(promote()).await;
    assert_eq!(h.dump(session).await.items.len(), 1);
}

/// An answer that is lost: the commit is stored, and its repetition is a duplicate.
#[tokio::test]
async fn a_lost_answer_is_found_again() {
    let (h, store) = with_faults();
    let (session, fence) = h.turn().await;
    store.take_log();
    store.lose_answers_when(|commit| matches!(commit.write, Write::Append(_)));
    let commit = build::append(session, fence, [build::step_started(build::call_model())]);
    assert!(store.commit(commit.clone()).await.is_err());
    store.heal();
    let again = h.ok(commit).await;
    assert!(matches!(again.reply, Reply::Duplicate { .. }));
    let log = store.log();
    assert_eq!(log.len(), 2);
    assert_eq!((log[0].events.len(), log[1].events.len()), (1, 0));
    h.dump(session).await;
}

/// An event of a newer build keeps its session from being run, a claimed one among them.
#[tokio::test]
async fn log_20_what_a_newer_build_wrote_is_kept_and_not_run() {
    let (h, store) = with_faults();
    let (session, _, _) = h.step(build::call_model()).await;
    store.plant(session, "later.kind", 7);
    log_20(&h, session).await;
    let (h, store) = with_faults();
    let session = h.session().await;
    h.prompt(session, Delivery::Steer).await;
    store.plant(session, "later.kind", 7);
    log_20(&h, session).await;
}

/// A gate holds commits back, before they are judged.
#[tokio::test]
async fn a_gate_holds_back() {
    let (h, store) = with_faults();
    let (session, fence, input) = h.claimed().await;
    let gate = store.gate(|commit| matches!(commit.write, Write::Append(_)));
    let held = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .commit(build::append(session, fence, [build::turn_started()]))
                .await
        }
    });
    gate.reached(1).await;
    assert!(h.dump(session).await.session.unwrap().turn.is_none());
    h.ok(build::commit(session, Write::CancelInput { input }))
        .await;
    gate.open();
    held.await.unwrap().unwrap();
    h.ok(build::admit(
        session,
        mainstay_core::id::InputId::new(),
        Delivery::Steer,
        "x",
    ))
    .await;
    h.dump(session).await;
}
