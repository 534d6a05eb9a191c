//! The same of databases: their golden files are what `pg_dump` says.

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;

use mainstay_store::PostgresStore;
use mainstay_store::postgres::Options;
use mainstay_test_conformance::Harness;
use mainstay_test_support::postgres::{self, Server};
use mainstay_test_support::{ManualClock, build};
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{SESSIONS, fill, go_on, golden};

async fn open(url: &str) -> (Harness, Arc<PostgresStore>) {
    let clock = Arc::new(ManualClock::default());
    let options = Options {
        clock: Some(clock.clone()),
        connections: 4,
        notify_every: None,
        ..Options::default()
    };
    let store = Arc::new(PostgresStore::open(url, options).await.unwrap());
    let h = Harness {
        store: store.clone(),
        clock,
        keep: Box::new(()),
    };
    (h, store)
}

/// A database as SQL text that servers of any version take.
fn dumped(server: &Server, url: &str) -> String {
    let mut dump = Command::new(server.program("pg_dump"));
    dump.args([
        "--inserts",
        "--no-owner",
        "--no-privileges",
        "--dbname",
        url,
    ]);
    let done = dump.output().unwrap();
    assert!(done.status.success(), "{done:?}");
    let text = String::from_utf8(done.stdout).unwrap();
    // What is for psql alone, and what names the version.
    let foreign = |line: &&str| {
        !["\\", "-- Dumped", "SET transaction_timeout"]
            .iter()
            .any(|begins| line.starts_with(begins))
    };
    let mut lines: Vec<&str> = text.lines().filter(foreign).collect();
    lines.dedup_by(|next, line| next.is_empty() && line.is_empty());
    lines.join("\n")
}

async fn write_anew(server: &Server, name: &str) {
    let url = server.database();
    let (h, store) = open(&url).await;
    fill(&h).await;
    store.close().await;
    std::fs::write(golden(name), dumped(server, &url)).unwrap();
}

/// What runs, waits or is put aside in a database of every released schema goes on.
#[tokio::test]
async fn upgrade_1_every_database_ever_released_opens_and_goes_on() {
    let Some(server) = postgres::server() else {
        return;
    };
    if std::env::var("GOLDEN").is_ok_and(|what| what == "write") {
        write_anew(server, "store-1.pg.sql").await;
    }
    for name in ["store-1.pg.sql"] {
        let url = server.database();
        let mut conn = PgConnection::connect(&url).await.unwrap();
        let text = std::fs::read_to_string(golden(name)).unwrap();
        conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(text)))
            .await
            .unwrap();
        conn.close().await.unwrap();
        let mut conn = PgConnection::connect(&url).await.unwrap();
        let mut before = BTreeMap::new();
        for session in SESSIONS {
            let count: i64 = sqlx::query_scalar("SELECT count(*) FROM event WHERE session = $1")
                .bind(session.0)
                .fetch_one(&mut conn)
                .await
                .unwrap();
            assert!(count > 1);
            before.insert(session, count as usize);
        }
        let (h, store) = open(&url).await;
        for session in SESSIONS {
            // Rows are kept, and are those that a rebuild gives.
            let dump = h.dump(session).await;
            assert_eq!(dump.events.len(), before[&session]);
        }
        let report = store.examine(|_, _| {}).await.unwrap();
        assert!(report.is_healthy(), "{report:?}");
        // Nobody holds the database as a process holds a file: its claims run out by time.
        h.clock.advance(build::LEASE_MS);
        go_on(&h).await;
        store.close().await;
    }
}
