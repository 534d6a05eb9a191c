//! What the tables refuse by themselves.

use mainstay_core::id::EventId;
use mainstay_test_support::{build, postgres};
use sqlx::{Connection as _, PgConnection};

use super::fresh;

#[tokio::test]
async fn tool_6_not_even_straight_into_the_tables() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, store, url) = fresh(server, |_| {}).await;
    let (session, fence, step) = h.step(build::call_tools(&["a", "open"])).await;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "a")],
    ))
    .await;
    let before = h.dump(session).await;
    let head = before.events.len() as i64;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    // As `event` names it: the step, and the call's id as JSON text.
    let step = step as i64;
    for (call, at, named, reason) in [
        ("a", Some(step), Some("\"a\""), "event_call_result"),
        ("b", Some(step), Some("\"b\""), "before its call"),
        ("open", Some(step + 1), Some("\"open\""), "before its call"),
        ("open", None, None, "before its call"),
    ] {
        let (kind, _, data) = build::call_settled(step as u64, call).encode();
        let insert = sqlx::query(
            "INSERT INTO event (session, seq, id, type, version, at, step, call, data)
             VALUES ($1, $2, $3, $4, 1, 0, $5, $6, $7)",
        );
        let insert = insert
            .bind(session.0)
            .bind(head + 1)
            .bind(EventId::new().0)
            .bind(kind)
            .bind(at)
            .bind(named)
            .bind(data.to_string());
        let error = insert.execute(&mut conn).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{call}: {error}");
    }
    assert_eq!(h.dump(session).await, before);
    // The call that is open has its one result all the same.
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step as u64, "open")],
    ))
    .await;
    h.dump(session).await;
    store.close().await;
}
