//! The same from a file to a database and back.

use std::collections::BTreeSet;
use std::sync::Arc;

use mainstay_core::commit::Refused;
use mainstay_core::event::Delivery;
use mainstay_core::export::{ImportError, Importer};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::port::{Store, StoreError, SystemClock};
use mainstay_core::tail::InputStatus;
use mainstay_store::PostgresStore;
use mainstay_store::postgres::Options;
use mainstay_test_conformance::{Harness, check_invariants};
use mainstay_test_support::{ManualClock, postgres, rebuild};
use sqlx::{Connection as _, PgConnection};

use super::eventful::prompt;
use super::nodes::{TABLES, begin, calls_then_echoes, import, lines, no_row_remains, node, say_to};
use super::{database, file, rows};

#[tokio::test]
async fn edit_6_a_session_goes_from_file_to_database_to_file() {
    let Some(server) = postgres::server() else {
        return;
    };
    let clock = || Arc::new(SystemClock::default());
    let (first, _, _dir) = file(clock()).await;
    let there = node(first.clone(), calls_then_echoes());
    let session = begin(&there).await;
    for text in ["a", "b \0 \u{1f99c} '\\u0000'"] {
        say_to(&there, session, text).await;
    }
    let last = first.dump(session).await.unwrap().items.last().unwrap().seq;
    there.revert(session, last).await.unwrap();
    // One input that was given up.
    let given_up = InputId::new();
    there
        .admit(session, given_up, Delivery::Queue, prompt("c"))
        .await
        .unwrap();
    let _ = there.cancel_input(session, given_up).await;
    there.idle(session).await.unwrap();
    let wanted = first.dump(session).await.unwrap();
    let file_1 = lines(first.clone(), session, "first").await;

    let options = Options {
        notify_every: None,
        ..Options::default()
    };
    let opened = PostgresStore::open(&server.database(), options).await;
    let second: Arc<dyn Store> = Arc::new(opened.unwrap());
    let middle = node(second.clone(), calls_then_echoes());
    import(&middle, &file_1).await;
    let file_2 = lines(second.clone(), session, "second").await;
    assert_eq!(file_1, file_2, "it is the first store's still");
    let (third, _, _dir_3) = file(clock()).await;
    let here = node(third.clone(), calls_then_echoes());
    assert!(import(&here, &file_2).await.blobs > 0);
    assert_eq!(lines(third.clone(), session, "third").await, file_1);
    for store in [&second, &(third.clone() as Arc<dyn Store>)] {
        let dump = store.dump(session).await.unwrap();
        assert_eq!(rows(dump.clone()), rows(wanted.clone()));
        assert_eq!(rebuild(&dump.events).unwrap(), rows(dump));
    }

    // Another origin's, over the one that is held.
    let before = second.dump(session).await.unwrap();
    let mut renamed = file_1.clone();
    renamed[0] = renamed[0].replace("\"first\"", "\"elsewhere\"");
    assert_ne!(renamed[0], file_1[0]);
    let mut importer = Importer::new(Arc::clone(&middle), true);
    let mut refused = None;
    for line in &renamed {
        if let Err(error) = importer.line(line).await {
            refused = Some(error);
            break;
        }
    }
    let refused = match refused {
        Some(error) => error,
        None => importer.finish().await.unwrap_err(),
    };
    assert!(
        matches!(
            refused,
            ImportError::Store {
                cause: StoreError::Refused(Refused::OtherOrigin { .. }),
                ..
            }
        ),
        "{refused:?}"
    );
    assert_eq!(second.dump(session).await.unwrap(), before);

    // Adopted, the copy in the database goes on.
    middle.adopt(session).await.unwrap();
    say_to(&middle, session, "d").await;
    let dump = second.dump(session).await.unwrap();
    check_invariants(&dump);
    assert_eq!(dump.inputs.last().unwrap().status, InputStatus::Promoted);
    assert_eq!(rows(first.dump(session).await.unwrap()), rows(wanted));
}

#[tokio::test]
async fn edit_7_no_row_of_a_deleted_session_remains_in_any_table_of_a_database() {
    let Some(server) = postgres::server() else {
        return;
    };
    let url = server.database();
    let clock = Arc::new(ManualClock::default());
    let h = Harness {
        store: database(&url, clock.clone()).await,
        clock,
        keep: Box::new(()),
    };
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let found = async |session: SessionId| -> BTreeSet<String> {
        let tables: Vec<String> =
            sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = 'public'")
                .fetch_all(&mut conn)
                .await
                .unwrap();
        assert!(tables.len() > TABLES.len(), "{tables:?}");
        let mut found = BTreeSet::new();
        for table in tables {
            let sql = format!("SELECT count(*) FROM {table} t WHERE strpos(t::text, $1) > 0");
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .bind(session.to_string())
                .fetch_one(&mut conn)
                .await
                .unwrap();
            if count > 0 {
                found.insert(table);
            }
        }
        found
    };
    no_row_remains(&h, found).await;
}
