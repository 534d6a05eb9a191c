//! Logs that are taken in from another store, forked, reverted and deleted: the same on every store, and
//! rows for rows what they were where they come from.

mod databases;
mod edits;
mod eventful;
mod nodes;
mod replays;

use std::path::PathBuf;
use std::sync::Arc;

use mainstay_core::commit::{Reply, Write};
use mainstay_core::event::Record;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::port::{Clock, Dump};
use mainstay_core::replay::{Replay, Replayed};
use mainstay_store::{Options, PostgresStore, SqliteStore, postgres as pg};
use mainstay_test_conformance::Harness;
use mainstay_test_support::{ManualClock, MemoryStore, build, postgres};

fn memory() -> Harness {
    let clock = Arc::new(ManualClock::default());
    Harness {
        store: Arc::new(MemoryStore::new(clock.clone())),
        clock,
        keep: Box::new(()),
    }
}

/// A store in a file, and the file.
async fn file(clock: Arc<dyn Clock>) -> (Arc<SqliteStore>, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.db");
    let options = Options {
        clock,
        ..Options::default()
    };
    let store = SqliteStore::open(&path, options).await.unwrap();
    (Arc::new(store), path, dir)
}

async fn sqlite() -> Harness {
    let clock = Arc::new(ManualClock::default());
    let (store, _, dir) = file(clock.clone()).await;
    Harness {
        store,
        clock,
        keep: Box::new(dir),
    }
}

/// A store in this database.
async fn database(url: &str, clock: Arc<dyn Clock>) -> Arc<PostgresStore> {
    let options = pg::Options {
        clock: Some(clock),
        connections: 4,
        notify_every: None,
        ..pg::Options::default()
    };
    Arc::new(PostgresStore::open(url, options).await.unwrap())
}

/// `None` where Postgres is not installed.
async fn in_postgres() -> Option<Harness> {
    let url = postgres::server()?.database();
    let clock = Arc::new(ManualClock::default());
    Some(Harness {
        store: database(&url, clock.clone()).await,
        clock,
        keep: Box::new(()),
    })
}

/// Runs a case on every store.
macro_rules! on_all {
    ($($name:ident: $case:path;)*) => {
        mod on_memory {
            $(#[tokio::test] async fn $name() { $case(super::memory()).await; })*
        }
        mod on_sqlite {
            $(#[tokio::test] async fn $name() { $case(super::sqlite().await).await; })*
        }
        mod on_postgres {
            $(#[tokio::test] async fn $name() {
                if let Some(h) = super::in_postgres().await {
                    $case(h).await;
                }
            })*
        }
    };
}

on_all! {
    log_13_every_type_of_event_gives_the_rows_of_its_source: super::replays::every_type;
    log_14_only_what_follows_is_taken: super::replays::only_what_follows;
    log_15_each_fault_has_an_error_of_its_own: super::replays::log_15_each_fault;
    log_16_another_origin_is_refused_or_skipped: super::replays::log_16_another_origin;
    log_21_every_prefix_of_a_log_can_be_adopted: super::replays::every_prefix;
    log_21_what_was_stopped_between_steps_stays_stopped: super::replays::stopped_between_steps;
    edit_3_an_admission_makes_a_revert_final: super::edits::a_final_revert;
    edit_4_a_fork_is_one_commit: super::edits::a_fork;
    a_time_that_never_comes_is_waited_for: super::edits::a_time_that_never_comes;
}

/// The rows of a session, without what says where it lives.
fn rows(mut dump: Dump) -> Dump {
    dump.claim = None;
    if let Some(session) = &mut dump.session {
        session.origin = None;
    }
    dump
}

async fn dump(h: &Harness, session: SessionId) -> Dump {
    h.store.dump(session).await.unwrap()
}

async fn head(h: &Harness, session: SessionId) -> Seq {
    h.store.tail(session).await.unwrap().unwrap().session.head
}

fn replay(origin: &str, strict: bool, records: &[Record]) -> Write {
    Write::Replay(Replay {
        origin: origin.into(),
        strict,
        records: records.to_vec(),
        texts: Arc::default(),
    })
}

/// An import that is not refused as a whole.
async fn take(h: &Harness, origin: &str, records: &[Record]) -> Replayed {
    let session = records[0].session;
    let write = replay(origin, true, records);
    match h.ok(build::commit(session, write)).await.reply {
        Reply::Replayed(replayed) => replayed,
        other => panic!("{other:?}"),
    }
}

/// Takes a whole log in, page by page.
async fn take_all(h: &Harness, origin: &str, records: &[Record], page: usize) {
    for records in records.chunks(page) {
        let replayed = take(h, origin, records).await;
        assert_eq!(replayed.refused, None);
        assert_eq!(replayed.applied, records.len() as u64);
    }
}
