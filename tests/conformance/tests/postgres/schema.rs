//! How a database is opened.

use futures::future::join_all;
use mainstay_core::port::Store;
use mainstay_store::PostgresStore;
use mainstay_store::postgres::{OpenError, Options};
use mainstay_test_support::{build, postgres};
use sqlx::{Connection, Executor, PgConnection, Row};

/// Every object of the schema, with its definition where there is one.
async fn schema(conn: &mut PgConnection) -> Vec<(String, String)> {
    let rows = conn.fetch_all(
        "SELECT c.relname::text, c.relkind::text || coalesce(pg_get_indexdef(i.indexrelid), '')
           FROM pg_class c LEFT JOIN pg_index i ON i.indexrelid = c.oid
          WHERE c.relnamespace = 'public'::regnamespace
         UNION ALL
         SELECT p.proname::text, pg_get_functiondef(p.oid) FROM pg_proc p
          WHERE p.pronamespace = 'public'::regnamespace
          ORDER BY 1, 2",
    );
    let rows = rows.await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1))).collect()
}

#[tokio::test]
async fn store_7_a_database_is_made_once() {
    let Some(server) = postgres::server() else {
        return;
    };
    let url = server.database();
    // Both begin at once, as do those after them.
    let opened = join_all((0..4).map(|_| PostgresStore::open(&url, Options::default()))).await;
    let stores: Vec<_> = opened.into_iter().map(Result::unwrap).collect();
    for store in &stores {
        let session = mainstay_core::id::SessionId::new();
        store.commit(build::create(session)).await.unwrap();
    }
    assert_eq!(stores[0].sessions(None, 10).await.unwrap().len(), 4);
    let name = stores[0].name().await.unwrap();

    let mut conn = PgConnection::connect(&url).await.unwrap();
    let first = schema(&mut conn).await;
    assert!(first.iter().any(|(name, _)| name == "event"));
    let again = PostgresStore::open(&url, Options::default()).await.unwrap();
    assert_eq!(again.name().await.unwrap(), name);
    assert_eq!(first, schema(&mut conn).await);
}

#[tokio::test]
async fn store_7_a_foreign_or_newer_database_is_left_alone() {
    let Some(server) = postgres::server() else {
        return;
    };
    let refused = async |url: &str| {
        PostgresStore::open(url, Options::default())
            .await
            .err()
            .expect("refused")
    };
    // Another program's; and another's that keeps its migrations as this one does.
    for sql in [
        "CREATE TABLE mine (x int)",
        "CREATE TABLE _sqlx_migrations (version bigint); CREATE TABLE meta (a int)",
        "CREATE TABLE _sqlx_migrations (version bigint); CREATE TABLE meta (key text, value text)",
    ] {
        let url = server.database();
        let mut conn = PgConnection::connect(&url).await.unwrap();
        conn.execute(sqlx::raw_sql(sql)).await.unwrap();
        let before = schema(&mut conn).await;
        let error = refused(&url).await;
        assert!(matches!(error, OpenError::Foreign { .. }), "{error:?}");
        assert_eq!(before, schema(&mut conn).await);
    }

    let url = server.database();
    drop(PostgresStore::open(&url, Options::default()).await.unwrap());
    let mut conn = PgConnection::connect(&url).await.unwrap();
    conn.execute(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9999, 'later', true, '\\x00', 0)",
    )
    .await
    .unwrap();
    let error = refused(&url).await;
    assert!(
        matches!(error, OpenError::NewerSchema { found: 9999, .. }),
        "{error:?}"
    );
    assert!(error.to_string().contains("9999"), "{error}");
    conn.execute("DELETE FROM _sqlx_migrations WHERE version = 9999")
        .await
        .unwrap();
    conn.execute("UPDATE _sqlx_migrations SET checksum = '\\x00'")
        .await
        .unwrap();
    let error = refused(&url).await;
    assert!(
        matches!(error, OpenError::Altered { version: 1, .. }),
        "{error:?}"
    );
    assert!(matches!(refused("mysql://x").await, OpenError::Url(_)));
}

#[tokio::test]
async fn upgrade_2_a_newer_schema_is_refused_and_not_changed() {
    let Some(server) = postgres::server() else {
        return;
    };
    let url = server.database();
    let store = PostgresStore::open(&url, Options::default()).await.unwrap();
    let session = mainstay_core::id::SessionId::new();
    store.commit(build::create(session)).await.unwrap();
    store.close().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    conn.execute(sqlx::raw_sql(
        "INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
         VALUES (9998, 'later', true, '\\x00', 0);
         ALTER TABLE session ADD COLUMN later text;
         UPDATE session SET later = 'x'",
    ))
    .await
    .unwrap();
    let rows = async |conn: &mut PgConnection| -> Vec<String> {
        let sql = "SELECT 'session ' || t::text FROM session t
                   UNION ALL SELECT 'event ' || t::text FROM event t
                   UNION ALL SELECT 'migration ' || t::text FROM _sqlx_migrations t
                   ORDER BY 1";
        let rows = conn.fetch_all(sql).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    };
    let before = (schema(&mut conn).await, rows(&mut conn).await);
    for _ in 0..2 {
        let refused = PostgresStore::open(&url, Options::default()).await;
        let refused = refused.err().expect("it is refused");
        let OpenError::NewerSchema { found, known, .. } = &refused else {
            panic!("{refused:?}")
        };
        assert_eq!((*found, *known < 9998), (9998, true));
        let text = refused.to_string();
        for part in [found, known] {
            assert!(text.contains(&part.to_string()), "{text}");
        }
    }
    assert_eq!(before, (schema(&mut conn).await, rows(&mut conn).await));
}
