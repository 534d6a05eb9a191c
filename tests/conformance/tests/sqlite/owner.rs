//! One process owns a file, whatever happens to the lock beside it, and leaves all of it in the file.

use mainstay_core::event::Piece;
use mainstay_core::id::SessionId;
use mainstay_core::port::{Store as _, StoreError};
use mainstay_store::{SqliteStore, lock};
use mainstay_test_conformance::check_invariants;
use mainstay_test_support::build;

use super::{file, options};

#[tokio::test]
async fn store_3_a_file_whose_lock_was_removed_has_one_owner_all_the_same() {
    let (h, store, dir) = file(|_| {}).await;
    let path = dir.path().join("m.db");
    let (session, fence, step) = h.step(build::call_model()).await;
    std::fs::remove_file(lock::path_of(&path)).unwrap();
    let next = SqliteStore::open(&path, options(&h.clock)).await.unwrap();

    // What the first writes from now on is refused, and it hears why.
    let output = build::output(step, [Piece::Text("mine".into())]);
    let taken_over = |answer: StoreError| {
        let StoreError::Unavailable { cause, .. } = answer else {
            panic!("{answer:?}")
        };
        assert!(cause.to_string().contains("another process"), "{cause}");
    };
    let append = build::append(session, fence, [output.clone()]);
    taken_over(store.commit(append).await.unwrap_err());
    taken_over(
        store
            .renew(fence.owner, &[fence], 30_000)
            .await
            .unwrap_err(),
    );
    taken_over(store.delete(session).await.unwrap_err());
    taken_over(
        store
            .commit(build::create(SessionId::new()))
            .await
            .unwrap_err(),
    );

    // The second has taken its claims for those of a process that is gone.
    let expired = next.scan(10).await.unwrap().expired;
    assert_eq!(expired.len(), 1);
    next.commit(build::recover(session, fence)).await.unwrap();
    store.close().await;
    check_invariants(&next.dump(session).await.unwrap());
    next.close().await;
}

#[tokio::test]
async fn store_3_a_file_that_was_closed_holds_all_that_was_stored() {
    let (h, store, dir) = file(|_| {}).await;
    let path = dir.path().join("m.db");
    let (session, ..) = h.step(build::call_model()).await;
    // Readers were at it, too.
    assert_eq!(store.sessions(None, 10).await.unwrap().len(), 1);
    let whole = h.dump(session).await;
    store.close().await;

    let copy = dir.path().join("copy.db");
    std::fs::copy(&path, &copy).unwrap();
    let copied = SqliteStore::open_read_only(&copy).await.unwrap();
    assert_eq!(copied.dump(session).await.unwrap().events, whole.events);
    copied.close().await;
}
