//! The suite on SQLite, and what only a file can show.

#[path = "sqlite/owner.rs"]
mod owner;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use mainstay_core::commit::{Refused, Reply, Write};
use mainstay_core::event::{Delivery, EventBody};
use mainstay_core::history::Approval;
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::plugin::{ApprovalRequest, Condition};
use mainstay_core::port::{Scan, Store, StoreError};
use mainstay_store::{OpenError, Options, SqliteStore, lock};
use mainstay_test_conformance::{Harness, Tally, conformance, log_20, owing, store_2, waiting};
use mainstay_test_support::{ManualClock, MemoryStore, build};
use sqlx::{Connection, SqliteConnection};

fn options(clock: &Arc<ManualClock>) -> Options {
    Options {
        clock: clock.clone(),
        ..Options::default()
    }
}

async fn open() -> Harness {
    file(|_| {}).await.0
}

async fn file(
    change: impl FnOnce(&mut Options),
) -> (Harness, Arc<SqliteStore>, Arc<tempfile::TempDir>) {
    let clock = Arc::new(ManualClock::default());
    let dir = Arc::new(tempfile::tempdir().unwrap());
    let mut options = options(&clock);
    change(&mut options);
    let store = Arc::new(
        SqliteStore::open(dir.path().join("m.db"), options)
            .await
            .unwrap(),
    );
    (
        Harness {
            store: store.clone(),
            clock,
            keep: Box::new(dir.clone()),
        },
        store,
        dir,
    )
}

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnection::connect(&format!("sqlite://{}", path.display()))
        .await
        .unwrap()
}

conformance!(open);

/// The same random commits, good and bad, to this store and to the one in memory.
async fn differential(seeds: std::ops::Range<u64>, cached_tails: usize) {
    let mut tally = Tally::default();
    for seed in seeds {
        let (h, store, _dir) = file(|options| options.cached_tails = cached_tails).await;
        let memory = MemoryStore::new(h.clock.clone());
        let memory = Harness {
            store: Arc::new(memory),
            clock: h.clock.clone(),
            keep: Box::new(()),
        };
        let one = store_2(&memory, &h, seed, 1_000).await;
        let (accepted, commits) = (one.accepted, one.commits);
        assert!(
            accepted * 5 > commits * 2,
            "seed {seed}: only {accepted} of {commits} were accepted"
        );
        tally.add(one);
        store.close().await;
    }
    tally.check();
}

#[tokio::test]
async fn store_2_with_warm_tails() {
    differential(1..6, 1_000).await;
}

#[tokio::test]
async fn store_2_with_tails_read_anew() {
    differential(6..11, 1).await;
}

#[tokio::test]
async fn store_3_a_second_owner_is_refused() {
    let (h, store, dir) = file(|_| {}).await;
    let path = dir.path().join("m.db");
    store
        .publish_address(Some("http://127.0.0.1:4100".into()))
        .unwrap();
    let Err(refused) = SqliteStore::open(&path, Options::default()).await else {
        panic!("opened twice")
    };
    let OpenError::Owned {
        holder: Some(holder),
        ..
    } = &refused
    else {
        panic!("{refused:?}")
    };
    assert_eq!(holder.pid, std::process::id());
    let message = refused.to_string();
    for part in [
        "m.db",
        &std::process::id().to_string(),
        "http://127.0.0.1:4100",
        "read-only",
    ] {
        assert!(message.contains(part), "{message}");
    }
    assert!(lock::read(&path).unwrap().unwrap().alive);
    h.session().await;

    store.close().await;
    let found = lock::read(&path).unwrap().unwrap();
    assert!(!found.alive && found.holder.is_some());
    assert!(matches!(
        store.commit(build::create(SessionId::new())).await,
        Err(StoreError::Unavailable { .. })
    ));
    let next = SqliteStore::open(&path, Options::default()).await.unwrap();
    assert_eq!(next.sessions(None, 10).await.unwrap().len(), 1);
    next.close().await;
}

#[tokio::test]
async fn store_5_commits_share_an_fsync() {
    let (h, store, _dir) = file(|_| {}).await;
    let mut turns = Vec::new();
    for _ in 0..200 {
        turns.push(h.claimed().await);
    }
    let (lost, fence, _) = turns[77];
    h.ok(build::commit(lost, Write::Expire { seen: fence }))
        .await;
    let before = store.stats();
    let all = join_all(turns.iter().map(|(session, fence, input)| {
        let events = [
            build::turn_started(),
            EventBody::InputPromoted { input: *input },
        ];
        store.commit(build::append(*session, *fence, events))
    }));
    let all = all.await;
    let after = store.stats();
    assert!(after.groups - before.groups <= 40, "{after:?}");
    assert_eq!(
        (after.commits - before.commits, after.events - before.events),
        (199, 398)
    );
    for (n, answer) in all.iter().enumerate() {
        match answer {
            Ok(done) => assert!(n != 77 && done.events.len() == 2),
            Err(error) => assert!(
                n == 77 && matches!(error, StoreError::Refused(Refused::Lost { .. })),
                "{error:?}"
            ),
        }
    }
    for (session, ..) in turns {
        let dump = h.dump(session).await;
        assert_eq!(dump.items.len(), usize::from(session != lost));
    }
}

#[tokio::test]
async fn store_5_a_retry_in_the_group_of_the_first_is_answered_like_it() {
    let (h, store, dir) = file(|_| {}).await;
    let (session, fence, input) = h.claimed().await;
    let events = [build::turn_started(), EventBody::InputPromoted { input }];
    let turn = build::append(session, fence, events);
    let mut forged = turn.clone();
    let Write::Append(append) = &mut forged.write else {
        unreachable!("it appends")
    };
    append.events[0].body = EventBody::TurnStarted { steps: 7 };
    // What comes while another process holds the file up is stored together.
    let mut other = raw(&dir.path().join("m.db")).await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    let release = async {
        while store.stats().busy < 2 {
            tokio::task::yield_now().await;
        }
        sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    };
    let (held_up, first, again, forged, ()) = tokio::join!(
        store.commit(build::create(SessionId::new())),
        store.commit(turn.clone()),
        store.commit(turn),
        store.commit(forged),
        release
    );
    held_up.unwrap();
    let seq = first.unwrap().events[0].seq;
    assert_eq!(again.unwrap().reply, Reply::Duplicate { first: seq });
    assert!(
        matches!(
            forged,
            Err(StoreError::Refused(Refused::EventConflict { seq: held, .. })) if held == seq
        ),
        "{forged:?}"
    );
    h.dump(session).await;
}

#[tokio::test]
async fn store_6_the_wal_stays_bounded() {
    let (h, store, dir) = file(|options| options.wal_bytes = 256 * 1024).await;
    let session = h.session().await;
    let prompt = "x".repeat(20_000);
    for _ in 0..300 {
        h.ok(build::admit(
            session,
            InputId::new(),
            Delivery::Queue,
            &prompt,
        ))
        .await;
        store.events(session, 0, 5).await.unwrap();
    }
    let wal = std::fs::metadata(dir.path().join("m.db-wal"))
        .unwrap()
        .len();
    assert!(wal <= 4 * 256 * 1024, "{wal} bytes");
    assert!(store.stats().checkpoints > 10);
}

#[tokio::test]
async fn store_7_a_file_is_made_once_and_a_foreign_one_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.db");
    std::fs::write(&path, b"").unwrap();
    let store = SqliteStore::open(&path, Options::default()).await.unwrap();
    store.close().await;
    let mut conn = raw(&path).await;
    let schema = async |conn: &mut SqliteConnection| -> Vec<(String, Option<String>)> {
        sqlx::query_as("SELECT name, sql FROM sqlite_schema ORDER BY name")
            .fetch_all(conn)
            .await
            .unwrap()
    };
    let first = schema(&mut conn).await;
    assert!(first.iter().any(|(name, _)| name == "event"));
    conn.close().await.unwrap();
    SqliteStore::open(&path, Options::default())
        .await
        .unwrap()
        .close()
        .await;
    let mut conn = raw(&path).await;
    assert_eq!(first, schema(&mut conn).await);
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    assert_eq!(mode, "wal");

    // A newer schema.
    sqlx::query(
        "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time)
         VALUES (9999, 'later', CURRENT_TIMESTAMP, true, x'00', 0)",
    )
    .execute(&mut conn)
    .await
    .unwrap();
    conn.close().await.unwrap();
    for refused in [
        SqliteStore::open(&path, Options::default())
            .await
            .err()
            .unwrap(),
        SqliteStore::open_read_only(&path).await.err().unwrap(),
    ] {
        assert!(
            matches!(
                refused,
                OpenError::NewerSchema {
                    found: 9999,
                    known: 1,
                    ..
                }
            ),
            "{refused:?}"
        );
        assert!(refused.to_string().contains("9999"), "{refused}");
    }

    // Foreign ones: another program's database, and no database at all.
    let other = dir.path().join("other.db");
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", other.display()))
        .await
        .unwrap();
    sqlx::query("CREATE TABLE mine (x)")
        .execute(&mut conn)
        .await
        .unwrap();
    conn.close().await.unwrap();
    let text = dir.path().join("notes.txt");
    std::fs::write(&text, "my notes").unwrap();
    for foreign in [other, text] {
        let before = std::fs::read(&foreign).unwrap();
        let refused = SqliteStore::open(&foreign, Options::default())
            .await
            .err()
            .unwrap();
        assert!(matches!(refused, OpenError::Foreign { .. }), "{refused:?}");
        assert!(matches!(
            SqliteStore::open_read_only(&foreign).await.err().unwrap(),
            OpenError::Foreign { .. }
        ));
        assert_eq!(before, std::fs::read(&foreign).unwrap());
        assert!(!lock::path_of(&foreign).exists());
    }
    let missing = SqliteStore::open_read_only(dir.path().join("none.db"))
        .await
        .err()
        .unwrap();
    assert!(matches!(missing, OpenError::Missing { .. }), "{missing:?}");
}

#[tokio::test]
async fn store_10_a_busy_file_is_waited_for() {
    let (h, store, dir) = file(|_| {}).await;
    let session = h.session().await;
    let mut other = raw(&dir.path().join("m.db")).await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    let waiting = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .commit(build::admit(session, InputId::new(), Delivery::Steer, "x"))
                .await
        }
    });
    while store.stats().busy < 2 {
        tokio::task::yield_now().await;
    }
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    waiting.await.unwrap().unwrap();
    h.dump(session).await;
}

#[tokio::test]
async fn store_10_a_file_that_stays_busy_is_reported() {
    let (h, store, dir) = file(|options| options.busy_patience = Duration::ZERO).await;
    let session = h.session().await;
    let mut other = raw(&dir.path().join("m.db")).await;
    sqlx::query("BEGIN IMMEDIATE")
        .execute(&mut other)
        .await
        .unwrap();
    let admit = build::admit(session, InputId::new(), Delivery::Steer, "x");
    let answers = join_all((0..3).map(|_| store.commit(admit.clone()))).await;
    assert!(
        answers
            .iter()
            .all(|answer| matches!(answer, Err(StoreError::Unavailable { .. }))),
        "{answers:?}"
    );
    sqlx::query("ROLLBACK").execute(&mut other).await.unwrap();
    assert_eq!(h.ok(admit).await.events[0].seq, 2);
    h.dump(session).await;
}

#[tokio::test]
async fn store_11_a_full_disk_fails_one_commit_and_harms_nothing() {
    let (h, store, _dir) = file(|options| options.max_pages = Some(300)).await;
    let (session, filler) = (h.session().await, h.session().await);
    let prompt = "x".repeat(50_000);
    let mut last = Ok(());
    for _ in 0..100 {
        let admit = build::admit(filler, InputId::new(), Delivery::Queue, &prompt);
        last = store.commit(admit).await.map(drop);
        if last.is_err() {
            break;
        }
    }
    assert!(
        matches!(last, Err(StoreError::Unavailable { .. })),
        "{last:?}"
    );
    let before = h.dump(session).await;
    let large = build::admit(session, InputId::new(), Delivery::Steer, &prompt);
    // In one group with a small one, which still finds room.
    let small = build::admit(filler, InputId::new(), Delivery::Steer, "small");
    let (failed, stored) =
        futures::future::join(store.commit(large.clone()), store.commit(small)).await;
    assert!(
        matches!(failed, Err(StoreError::Unavailable { .. })),
        "{failed:?}"
    );
    stored.unwrap();
    assert_eq!(before, h.dump(session).await);
    h.dump(filler).await;

    assert!(store.delete(filler).await.unwrap());
    assert_eq!(h.ok(large).await.events[0].seq, 2);
    h.dump(session).await;
}

#[tokio::test]
async fn claim_19_taking_the_file_expires_what_was_claimed() {
    let (h, store, dir) = file(|_| {}).await;
    let (session, fence, _) = h.step(build::call_model()).await;
    let before = h.dump(session).await;
    assert!(store.scan(10).await.unwrap().expired.is_empty());
    store.close().await;

    let reopened = SqliteStore::open(dir.path().join("m.db"), options(&h.clock))
        .await
        .unwrap();
    let h = Harness {
        store: Arc::new(reopened),
        clock: h.clock.clone(),
        keep: h.keep,
    };
    let expired = h.store.scan(10).await.unwrap().expired;
    assert_eq!(expired.len(), 1);
    assert_eq!(expired[0].expires_at, h.store.now().await.unwrap());
    // The open step is read back from its events.
    let mut after = h.dump(session).await;
    after.claim.as_mut().unwrap().expires_at = before.claim.as_ref().unwrap().expires_at;
    assert_eq!(before, after);
    let lost = h
        .refused(build::append(session, fence, [build::turn_started()]))
        .await;
    assert!(matches!(lost, Refused::Lost { .. }));
    h.ok(build::recover(session, fence)).await;
    h.dump(session).await;
}

#[tokio::test]
async fn store_18_a_file_is_read_beside_its_owner() {
    let (h, store, dir) = file(|_| {}).await;
    let (session, ..) = h.step(build::call_model()).await;
    let path = dir.path().join("m.db");
    let reader = SqliteStore::open_read_only(&path).await.unwrap();
    let refused = reader
        .commit(build::create(SessionId::new()))
        .await
        .unwrap_err();
    let StoreError::Unavailable { cause, .. } = refused else {
        panic!("{refused:?}")
    };
    assert!(cause.to_string().contains("read-only"), "{cause}");
    assert!(reader.publish_address(None).is_err());
    let dump = h.dump(session).await;
    assert_eq!(dump, reader.dump(session).await.unwrap());
    assert_eq!(
        store.tail(session).await.unwrap(),
        reader.tail(session).await.unwrap()
    );
    // What is written later is seen, and the owner is in nobody's way.
    let input = h.prompt(session, Delivery::Queue).await;
    assert!(
        reader
            .inputs(session, true)
            .await
            .unwrap()
            .iter()
            .any(|found| found.id == input)
    );
    store.close().await;
    assert_eq!(
        reader.dump(session).await.unwrap().events.len(),
        dump.events.len() + 1
    );
    reader.close().await;
}

#[tokio::test]
async fn tool_6_not_even_straight_into_the_tables() {
    let (h, store, dir) = file(|_| {}).await;
    let (session, fence, step) = h.step(build::call_tools(&["a"])).await;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "a")],
    ))
    .await;
    let head = store.tail(session).await.unwrap().unwrap().session.head;
    let mut conn = raw(&dir.path().join("m.db")).await;
    for (call, reason) in [("a", "UNIQUE"), ("b", "before its call")] {
        let (kind, _, data) = build::call_settled(step, call).encode();
        let insert = sqlx::query(
            "INSERT INTO event (session, seq, id, type, version, at, data) VALUES (?, ?, ?, ?, 1, 0, ?)",
        );
        let insert = insert
            .bind(session.to_string())
            .bind(i64::try_from(head + 1).unwrap())
            .bind(mainstay_core::id::EventId::new().to_string())
            .bind(kind)
            .bind(data.to_string());
        let error = insert.execute(&mut conn).await.unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[tokio::test]
async fn log_10_events_of_an_unknown_type_are_read_as_they_are() {
    let (h, store, dir) = file(|_| {}).await;
    let session = h.session().await;
    let mut conn = raw(&dir.path().join("m.db")).await;
    sqlx::query(
        "INSERT INTO event (session, seq, id, type, version, at, data) VALUES (?, 2, ?, 'later.kind', 7, 0, '[1]')",
    )
    .bind(session.to_string())
    .bind(mainstay_core::id::EventId::new().to_string())
    .execute(&mut conn)
    .await
    .unwrap();
    let (events, _) = store.events(session, 0, 10).await.unwrap().unwrap();
    assert_eq!(
        (events[1].kind.as_str(), events[1].version),
        ("later.kind", 7)
    );
}

/// Timers, debts and what has arrived are rows; and a deletion leaves none.
#[tokio::test]
async fn wait_1_waits_and_debts_outlive_the_process_and_not_their_session() {
    let (h, store, dir) = file(|_| {}).await;
    let path = dir.path().join("m.db");
    let now = h.store.now().await.unwrap();
    let approval = Condition::Approval(ApprovalRequest {
        key: "k".into(),
        question: "may I?".into(),
        details: None,
    });
    let waits = waiting(&h, &[Condition::Time(now + 1_000), approval]).await;
    let owes = owing(&h, build::AT).await;
    let before = [h.dump(waits).await, h.dump(owes).await];
    store.close().await;

    h.clock.advance(999);
    let (h, store) = reopened(h, &path).await;
    let scan = h.store.scan(10).await.unwrap();
    assert_eq!((scan.timers, scan.owing), (vec![], vec![owes]));
    h.clock.advance(1);
    assert_eq!(h.store.scan(10).await.unwrap().timers, [waits]);
    assert_eq!(before, [h.dump(waits).await, h.dump(owes).await]);
    let approved = Approval {
        key: "k".into(),
        approved: true,
        reason: None,
    };
    h.ok(build::commit(waits, Write::Answer(approved))).await;
    h.ok(build::commit(waits, Write::Fire)).await;

    for session in [waits, owes] {
        assert!(h.store.delete(session).await.unwrap());
    }
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
    store.close().await;
    let mut conn = raw(&path).await;
    let tables: Vec<String> = sqlx::query_scalar(
        "SELECT t.name FROM sqlite_schema t JOIN pragma_table_info(t.name) c
          WHERE t.type = 'table' AND (c.name = 'session' OR t.name = 'session') GROUP BY t.name",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    assert!(tables.len() >= 8, "{tables:?}");
    for table in tables {
        let count = sqlx::AssertSqlSafe(format!("SELECT count(*) FROM {table}"));
        let rows: i64 = sqlx::query_scalar(count)
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(rows, 0, "rows are left in {table}");
    }
}

/// What a newer build does to a session: it writes an event, and its row.
async fn write_later(path: &Path, session: SessionId, data: Option<&str>) {
    let mut conn = raw(path).await;
    let head: i64 =
        sqlx::query_scalar("UPDATE session SET head = head + 1 WHERE id = ? RETURNING head")
            .bind(session.to_string())
            .fetch_one(&mut conn)
            .await
            .unwrap();
    sqlx::query(
        "INSERT INTO event (session, seq, id, type, version, at, data) VALUES (?, ?, ?, 'later.kind', 7, 0, '{}')",
    )
    .bind(session.to_string())
    .bind(head)
    .bind(mainstay_core::id::EventId::new().to_string())
    .execute(&mut conn)
    .await
    .unwrap();
    if let Some(data) = data {
        sqlx::query("UPDATE session SET data = ? WHERE id = ?")
            .bind(data)
            .bind(session.to_string())
            .execute(&mut conn)
            .await
            .unwrap();
        sqlx::query("UPDATE claim SET data = json_object('later', json(data)) WHERE session = ?")
            .bind(session.to_string())
            .execute(&mut conn)
            .await
            .unwrap();
    }
    conn.close().await.unwrap();
}

async fn reopened(h: Harness, path: &Path) -> (Harness, Arc<SqliteStore>) {
    let store = SqliteStore::open(path, options(&h.clock)).await;
    let store = Arc::new(store.unwrap());
    let h = Harness {
        store: store.clone(),
        ..h
    };
    (h, store)
}

/// A build that does not know an event's type keeps the session and does not run it; the one that does
/// goes on with it.
#[tokio::test]
async fn log_20_what_a_newer_build_wrote_is_kept_and_not_run() {
    // Its row may be one that this build can read, or not.
    for data in [None, Some("{\"later\":true}")] {
        let (h, store, dir) = file(|_| {}).await;
        let path = dir.path().join("m.db");
        let (idle, (claimed, fence, _)) = (h.session().await, h.step(build::call_model()).await);
        h.prompt(idle, Delivery::Steer).await;
        let (other, seen, _) = h.claimed().await;
        store.close().await;
        for session in [idle, claimed] {
            write_later(&path, session, data).await;
        }

        let (h, store) = reopened(h, &path).await;
        // The others go on.
        let expired = h.store.scan(10).await.unwrap().expired;
        let expired: Vec<_> = expired.iter().map(|claim| claim.session).collect();
        assert_eq!(expired, [other]);
        h.ok(build::recover(other, seen)).await;
        assert_eq!(h.store.scan(10).await.unwrap().due, [other]);
        assert!(h.store.delete(other).await.unwrap());
        for session in [idle, claimed] {
            log_20(&h, session).await;
        }
        store.close().await;

        // To be known, it is given a type that is.
        let mut conn = raw(&path).await;
        sqlx::raw_sql(
            "UPDATE event SET type = 'session.released', version = 1 WHERE version = 7;
             UPDATE claim SET data = json_set(data -> '$.later', '$.expires_at', expires_at)
              WHERE data -> '$.later' IS NOT NULL;",
        )
        .execute(&mut conn)
        .await
        .unwrap();
        conn.close().await.unwrap();
        let (h, store) = reopened(h, &path).await;
        for session in [idle, claimed] {
            let dump = h.dump(session).await;
            let kept = dump.inputs.iter().filter(|input| input.intent).count();
            assert_eq!(kept, if session == idle { 2 } else { 1 });
        }
        let scan = h.store.scan(10).await.unwrap();
        assert_eq!(scan.due, [idle]);
        assert_eq!(scan.expired.len(), 1);
        h.ok(build::claim(idle, build::fence())).await;
        h.ok(build::recover(claimed, fence)).await;
        h.dump(claimed).await;
        store.close().await;
        let mut conn = raw(&path).await;
        let left: i64 = sqlx::query_scalar(
            "SELECT (SELECT count(*) FROM kind WHERE version = 7) + (SELECT count(*) FROM foreign_event)",
        )
        .fetch_one(&mut conn)
        .await
        .unwrap();
        assert_eq!(left, 0);
    }
}

#[tokio::test]
async fn a_reused_execution_fails_alone() {
    let (h, store, _dir) = file(|_| {}).await;
    let (session, fence) = h.turn().await;
    h.crash(session, fence).await;
    h.ok(build::claim(session, fence)).await;
    h.clock.advance(build::LEASE_MS);
    let other = h.session().await;
    let (bad, good) = futures::future::join(
        store.commit(build::recover(session, fence)),
        store.commit(build::admit(other, InputId::new(), Delivery::Steer, "x")),
    )
    .await;
    assert!(
        matches!(bad, Err(StoreError::Refused(Refused::EventConflict { .. }))),
        "{bad:?}"
    );
    good.unwrap();
    h.dump(other).await;
}

#[tokio::test]
async fn a_damaged_session_harms_no_other() {
    let (h, store, dir) = file(|options| options.cached_tails = 1).await;
    let (bad, good) = (h.session().await, h.session().await);
    let mut conn = raw(&dir.path().join("m.db")).await;
    sqlx::query("UPDATE session SET data = '{}' WHERE id = ?")
        .bind(bad.to_string())
        .execute(&mut conn)
        .await
        .unwrap();
    let admit = |session| store.commit(build::admit(session, InputId::new(), Delivery::Steer, "x"));
    let (failed, stored) = futures::future::join(admit(bad), admit(good)).await;
    assert!(
        matches!(failed, Err(StoreError::Damaged { session, .. }) if session == bad),
        "{failed:?}"
    );
    stored.unwrap();
    assert!(matches!(
        store.tail(bad).await,
        Err(StoreError::Damaged { .. })
    ));
    h.dump(good).await;
}

#[tokio::test]
async fn plugin_14_a_step_of_a_newer_build_keeps_what_it_names_and_hides_no_other() {
    let (h, store, dir) = file(|_| {}).await;
    let (newer, ..) = h.step(build::call_model()).await;
    h.step(build::call_model()).await;
    let named = ["a".repeat(64), "b".repeat(64)];
    let data = serde_json::json!({ "runs": [&named[0]], "why": format!("as {} says", named[1]) });
    let mut conn = raw(&dir.path().join("m.db")).await;
    let changed = sqlx::query(
        "UPDATE event SET version = 7, data = ? WHERE session = ? AND type = 'step.started'",
    )
    .bind(data.to_string())
    .bind(newer.to_string())
    .execute(&mut conn)
    .await
    .unwrap();
    assert_eq!(changed.rows_affected(), 1);
    conn.close().await.unwrap();
    let mut used: Vec<String> = store.digests_in_use().await.unwrap().into_iter().collect();
    used.sort();
    assert_eq!(used, [&named[0], &named[1], "d-provider", "d-runner"]);
}
