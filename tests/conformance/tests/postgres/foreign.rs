//! A newer build's node beside an older one's.

use std::sync::Arc;

use mainstay_core::event::Delivery;
use mainstay_core::id::{EventId, SessionId};
use mainstay_core::port::Store;
use mainstay_test_conformance::{Harness, log_20};
use mainstay_test_support::{build, postgres};
use sqlx::{Connection, Executor, PgConnection};

use super::{another, fresh};

/// What a newer build might write: an event, and a row that this build can read, or not.
async fn write_later(conn: &mut PgConnection, session: SessionId, data: Option<&str>) {
    let head: i64 = sqlx::query_scalar(
        "UPDATE session SET head = head + 1, version = version + 1 WHERE id = $1 RETURNING head",
    )
    .bind(session.0)
    .fetch_one(&mut *conn)
    .await
    .unwrap();
    conn.execute("INSERT INTO kind VALUES ('later.kind', 7) ON CONFLICT DO NOTHING")
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO event (session, seq, id, type, version, at, data)
         VALUES ($1, $2, $3, 'later.kind', 7, 0, '{}')",
    )
    .bind(session.0)
    .bind(head)
    .bind(EventId::new().0)
    .execute(&mut *conn)
    .await
    .unwrap();
    let Some(data) = data else { return };
    for sql in [
        "UPDATE session SET data = $2 WHERE id = $1",
        "UPDATE claim SET data = json_build_object('later', data)::text || left($2, 0) WHERE session = $1",
    ] {
        let update = sqlx::query(sql).bind(session.0).bind(data);
        update.execute(&mut *conn).await.unwrap();
    }
}

/// The older node keeps the session and does not run it, from the moment on at which the event is there;
/// the one that knows it goes on.
#[tokio::test]
async fn log_20_what_a_newer_build_wrote_is_kept_and_not_run() {
    let Some(server) = postgres::server() else {
        return;
    };
    for data in [None, Some("{\"later\":true}")] {
        let (h, _, url) = fresh(server, |_| {}).await;
        let (idle, (claimed, fence, _)) = (h.session().await, h.step(build::call_model()).await);
        h.prompt(idle, Delivery::Steer).await;
        let (other, seen, _) = h.claimed().await;
        let mut conn = PgConnection::connect(&url).await.unwrap();
        for session in [idle, claimed] {
            write_later(&mut conn, session, data).await;
        }
        h.clock.advance(build::LEASE_MS);

        // The others go on.
        let scan = h.store.scan(10).await.unwrap();
        let expired: Vec<_> = scan.expired.iter().map(|claim| claim.session).collect();
        assert_eq!((expired, scan.due), (vec![other], vec![]));
        h.ok(build::recover(other, seen)).await;
        assert_eq!(h.store.scan(10).await.unwrap().due, [other]);
        assert!(h.store.delete(other).await.unwrap());
        for session in [idle, claimed] {
            log_20(&h, session).await;
        }

        // To be known, it is given a type that is.
        conn.execute(
            "UPDATE event SET type = 'session.released', version = 1 WHERE version = 7;
             DELETE FROM kind WHERE version = 7;
             UPDATE claim SET data = data::json ->> 'later' WHERE data LIKE '{\"later\"%'",
        )
        .await
        .unwrap();
        let newer = another(&h, &url, |_| {}).await;
        let h = Harness {
            store: Arc::clone(&newer) as _,
            ..h
        };
        let scan = newer.scan(10).await.unwrap();
        assert!(scan.due.contains(&idle));
        assert_eq!(scan.expired.len(), 1);
        for session in [idle, claimed] {
            // The row is made anew as it is looked at.
            newer.tail(session).await.unwrap().unwrap();
            let dump = h.dump(session).await;
            let kept = dump.inputs.iter().filter(|input| input.intent).count();
            assert_eq!(kept, if session == idle { 2 } else { 1 });
        }
        assert_eq!(newer.scan(10).await.unwrap().due, [idle]);
        h.ok(build::claim(idle, build::fence())).await;
        h.ok(build::recover(claimed, fence)).await;
        h.dump(claimed).await;
    }
}
