//! Connections that are lost, servers that crash, and what the database refuses.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::commit::{Commit, End, Reply, Write};
use mainstay_core::event::Delivery;
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::port::{Store, StoreError};
use mainstay_store::PostgresStore;
use mainstay_store::postgres::Options;
use mainstay_test_support::{build, postgres};
use sqlx::{Connection, Executor, PgConnection};

use super::wire::{Cut, Wire};
use super::{another, fresh};

/// No commit is lost and none doubled, whenever the connection is.
#[tokio::test]
async fn a_lost_connection_loses_no_commit_and_doubles_none() {
    let Some(server) = postgres::server() else {
        return;
    };
    // The messages name the statement only where it is not prepared.
    let plain = |options: &mut Options| {
        options.prepared = false;
        options.patience = Duration::from_secs(60);
        options.longest = Duration::from_secs(2);
    };
    for cut in [Cut::Before, Cut::After, Cut::Amid, Cut::Silence] {
        let (mut h, _, url) = fresh(server, plain).await;
        let wire = Wire::before(server.port(), false).await;
        let store = another(&h, &wire.url(&url), plain).await;
        h.store = store.clone();
        let (session, input, fence) = (SessionId::new(), InputId::new(), build::fence());
        let commits: [(Commit, usize); 8] = [
            (build::create(session), 1),
            (build::admit(session, input, Delivery::Steer, "x"), 1),
            (build::claim(session, fence), 1),
            (build::append(session, fence, [build::turn_started()]), 1),
            (build::append(session, fence, [build::turn_ended()]), 1),
            (build::interrupt(session), 1),
            (build::commit(session, Write::Expire { seen: fence }), 0),
            (build::recover(session, fence), 2),
        ];
        for (n, (commit, events)) in commits.into_iter().enumerate() {
            wire.cut("session_commit", cut);
            let before = h.store.dump(session).await.unwrap().events.len();
            let done = store.commit(commit.clone()).await;
            let done = done.unwrap_or_else(|error| panic!("{cut:?}, {n}: {error:?}"));
            assert!(wire.is_cut());
            // Answered as if nothing had happened.
            assert_eq!(done.events.len(), events, "{cut:?}, {commit:?}: {done:?}");
            assert!(!matches!(
                done.reply,
                Reply::Duplicate { .. } | Reply::Existed
            ));
            let dump = h.dump(session).await;
            assert_eq!(dump.events.len(), before + events, "{cut:?}, {commit:?}");
            assert_eq!(dump.session.unwrap().head as usize, dump.events.len());
        }
        assert!(store.stats().lost >= 8, "{:?}", store.stats());
    }
}

/// A reader's connection is lost like a writer's.
#[tokio::test]
async fn a_lost_connection_fails_no_read() {
    let Some(server) = postgres::server() else {
        return;
    };
    let plain = |options: &mut Options| options.prepared = false;
    let (h, _, url) = fresh(server, plain).await;
    let wire = Wire::before(server.port(), false).await;
    let store = another(&h, &wire.url(&url), plain).await;
    let (session, _) = h.turn().await;
    for cut in [Cut::Before, Cut::After, Cut::Amid] {
        wire.cut("session_load", cut);
        assert!(store.tail(session).await.unwrap().is_some());
        wire.cut("session_scan", cut);
        store.scan(10).await.unwrap();
        wire.cut("FROM event", cut);
        let (events, head) = store.events(session, 0, 100).await.unwrap().unwrap();
        assert_eq!(events.len() as u64, head);
        wire.cut("session_drop", cut);
        let doomed = h.session().await;
        assert!(store.delete(doomed).await.unwrap());
        assert!(wire.is_cut());
    }
}

/// The server crashes under load and comes back: what was answered is there, and the writers go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_crash_of_the_server_is_survived() {
    let Some(server) = postgres::start(&["fsync=on"]) else {
        return;
    };
    let server = Arc::new(server);
    let patient = |options: &mut Options| options.patience = Duration::from_secs(120);
    let (h, store, _) = fresh(&server, patient).await;
    let mut writers = Vec::new();
    for _ in 0..8 {
        let session = h.session().await;
        let store = store.clone();
        writers.push(tokio::spawn(async move {
            let mut answered = Vec::new();
            for _ in 0..150 {
                let input = InputId::new();
                let admit = build::admit(session, input, Delivery::Queue, "x");
                let done = store.commit(admit).await.unwrap();
                answered.push((input, done.tail.session.head));
            }
            (session, answered)
        }));
    }
    for _ in 0..2 {
        let lost = store.stats().lost;
        let commits = store.stats().commits;
        while store.stats().commits < commits + 50
            && !writers.iter().all(tokio::task::JoinHandle::is_finished)
        {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        let crashed = server.clone();
        tokio::task::spawn_blocking(move || crashed.crash())
            .await
            .unwrap();
        assert!(store.stats().lost > lost || writers.iter().all(|writer| writer.is_finished()));
    }
    for writer in writers {
        let (session, answered) = writer.await.unwrap();
        let dump = h.dump(session).await;
        let stored: Vec<_> = dump
            .inputs
            .iter()
            .map(|input| (input.id, input.seq))
            .collect();
        assert_eq!(stored, answered);
    }
}

/// An error says what state the database is in, and shows no password.
#[tokio::test]
async fn errors_name_the_state_of_the_database() {
    let Some(server) = postgres::start(&["max_connections=20"]) else {
        return;
    };
    let (h, store, url) = fresh(&server, |options| options.patience = Duration::ZERO).await;
    let session = h.session().await;
    let tell = |error: StoreError| {
        let StoreError::Unavailable { cause, .. } = &error else {
            panic!("{error:?}")
        };
        format!("{cause}: {:?}", cause.source().map(ToString::to_string))
    };
    let mut conn = PgConnection::connect(&url).await.unwrap();
    for (code, words) in [
        ("53100", "has no disk space left"),
        ("25006", "is read-only"),
        ("40001", "is contended"),
        ("XX001", "damaged"),
    ] {
        let before = h.dump(session).await;
        let failing = format!(
            "CREATE OR REPLACE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$
             BEGIN RAISE EXCEPTION 'no' USING ERRCODE = '{code}'; END $$;
             CREATE OR REPLACE TRIGGER fail AFTER INSERT ON input
             FOR EACH ROW EXECUTE FUNCTION fail()"
        );
        conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(failing)))
            .await
            .unwrap();
        let admit = build::admit(session, InputId::new(), Delivery::Steer, "x");
        let told = tell(store.commit(admit.clone()).await.unwrap_err());
        assert!(told.contains(words) && told.contains(code), "{told}");
        // STORE-11: nothing of it is stored, and the next one takes the next seq.
        assert_eq!(before, h.dump(session).await);
        conn.execute("DROP TRIGGER fail ON input").await.unwrap();
        let head = before.session.unwrap().head;
        assert_eq!(h.ok(admit).await.events[0].seq, head + 1);
    }
    server.stop();
    let secret = url.replace("postgres@", "postgres:hush@");
    let told = tell(
        store
            .commit(build::create(SessionId::new()))
            .await
            .unwrap_err(),
    );
    let words = [
        "dropped the connection",
        "is shutting down",
        "cut off",
        "does not listen",
    ];
    assert!(words.iter().any(|words| told.contains(words)), "{told}");
    let told = tell(
        store
            .commit(build::create(SessionId::new()))
            .await
            .unwrap_err(),
    );
    assert!(told.contains("does not listen: is it running?"), "{told}");
    assert!(told.contains(&server.port().to_string()), "{told}");
    let mut options = Options {
        patience: Duration::ZERO,
        ..Options::default()
    };
    options.connections = 1;
    let refused = PostgresStore::open(&secret, options).await.err().unwrap();
    let told = format!("{refused}: {refused:?}");
    assert!(
        told.contains("could not open the database") && !told.contains("hush"),
        "{told}"
    );
}

/// A transaction that was rolled back for the sake of another is done again.
#[tokio::test]
async fn store_10_a_rolled_back_transaction_is_repeated() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, _, url) = fresh(server, |_| {}).await;
    let (session, fence) = h.turn().await;
    let mut conn = PgConnection::connect(&url).await.unwrap();
    // A sequence is not rolled back.
    conn.execute(
        "CREATE SEQUENCE tries;
         CREATE FUNCTION cross_it() RETURNS trigger LANGUAGE plpgsql AS $$
         DECLARE n bigint := nextval('tries');
         BEGIN
            IF n = 1 THEN RAISE EXCEPTION 'no' USING ERRCODE = '40001'; END IF;
            IF n = 2 THEN RAISE EXCEPTION 'no' USING ERRCODE = '40P01'; END IF;
            RETURN NULL;
         END $$;
         CREATE TRIGGER cross_it AFTER INSERT ON event FOR EACH ROW EXECUTE FUNCTION cross_it()",
    )
    .await
    .unwrap();
    let done = h
        .ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    assert_eq!(done.events.len(), 1);
    let tries: i64 = sqlx::query_scalar("SELECT last_value FROM tries")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert_eq!(tries, 3);
    h.ok(build::end(session, fence, End::Succeeded)).await;
    h.dump(session).await;
}
