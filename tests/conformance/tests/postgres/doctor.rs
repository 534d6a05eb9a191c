//! What is wrong with a database is found, and rows come back from their log.

use mainstay_core::id::SessionId;
use mainstay_core::invariant::Invariant;
use mainstay_core::port::StoreError;
use mainstay_test_support::{build, postgres};
use sqlx::{Connection, Executor, PgConnection, Row};

use super::fresh;

/// Everything that is rebuilt, and the claim, which is not to be touched.
const TABLES: [(&str, &str); 7] = [
    ("session", "id"),
    ("input", "id"),
    ("item", "session, seq, n"),
    ("step", "session, seq"),
    ("call", "session, step, id"),
    ("execution", "session, id"),
    ("claim", "session"),
];

/// All rows of all tables, a session's version apart.
async fn rows(conn: &mut PgConnection) -> Vec<String> {
    let mut all = Vec::new();
    for (table, key) in TABLES {
        let sql = format!("SELECT (to_jsonb(t) - 'version')::text FROM {table} t ORDER BY {key}");
        let found = conn.fetch_all(sqlx::raw_sql(sqlx::AssertSqlSafe(sql)));
        let found = found.await.unwrap();
        assert!(!found.is_empty(), "nothing in {table}");
        all.extend(
            found
                .iter()
                .map(|row| format!("{table} {}", row.get::<String, _>(0))),
        );
    }
    all
}

#[tokio::test]
async fn log_9_rows_come_back_from_the_log() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, store, url) = fresh(server, |_| {}).await;
    h.step(build::call_tools(&["a", "b"])).await;
    h.claimed().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let before = rows(&mut conn).await;
    let healthy = store.examine(|_, _| {}).await.unwrap();
    assert!(healthy.is_healthy(), "{healthy:?}");
    assert_eq!((healthy.sessions, healthy.schema), (2, 1));
    let found = conn
        .fetch_all("SELECT DISTINCT session FROM event")
        .await
        .unwrap();
    let sessions: Vec<SessionId> = found.iter().map(|row| SessionId(row.get(0))).collect();

    for broken in [
        "SELECT 1",
        "DELETE FROM item; DELETE FROM step; DELETE FROM call; DELETE FROM execution; DELETE FROM input",
        "UPDATE session SET head = head + 7, runnable = NOT runnable; UPDATE input SET status = 'gone'",
        "UPDATE session SET data = '{'; UPDATE item SET data = 'x'",
        "DELETE FROM session",
    ] {
        conn.execute(sqlx::raw_sql(broken)).await.unwrap();
        if broken != "SELECT 1" {
            let report = store.examine(|_, _| {}).await.unwrap();
            assert!(!report.is_healthy(), "{broken} is not noticed");
            assert!(!report.counts.is_empty(), "{report:?}");
        }
        for session in &sessions {
            store.rebuild(*session).await.unwrap();
        }
        let after = rows(&mut conn).await;
        if broken.contains("input") || broken.contains("DELETE FROM session") {
            // An intent is told by no event: it is what a fresh admission's would be.
            assert_eq!(before.len(), after.len(), "{broken}");
        } else {
            assert_eq!(before, after, "{broken}");
        }
        let report = store.examine(|_, _| {}).await.unwrap();
        assert!(report.is_healthy(), "{broken}: {report:?}");
        for session in &sessions {
            h.dump(*session).await;
        }
    }
    let none = store.rebuild(SessionId::new()).await;
    assert!(matches!(none, Err(StoreError::Damaged { .. })), "{none:?}");

    // What no rebuilding helps with is told too.
    conn.execute("DELETE FROM event WHERE seq = 2")
        .await
        .unwrap();
    let report = store.examine(|_, _| {}).await.unwrap();
    assert!(
        report.counts.contains_key(&Invariant::SeqsWithoutGap),
        "{report:?}"
    );
}
