//! What time takes away and what it must leave: sessions past their retention, and the bodies of old
//! events. The same on SQLite and on Postgres.

use std::sync::Arc;

use mainstay_core::commit::{Admission, Commit, End, Reply, Write};
use mainstay_core::event::{Delivery, EventBody, Piece};
use mainstay_core::export::{Importer, export};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::{Effect, FinishReason, Part};
use mainstay_core::plugin::{Action, Condition, Wait};
use mainstay_core::port::{Dump, Store, StoreError};
use mainstay_core::stub;
use mainstay_store::{
    Options, PostgresStore, Report, Retained, Retention, SqliteStore, postgres as pg,
};
use mainstay_test_conformance::Harness;
use mainstay_test_support::{ManualClock, build, postgres};

use futures::TryStreamExt as _;
use sqlx::{Connection as _, Executor as _, PgConnection, SqliteConnection};

const DAY: u64 = 24 * 3600 * 1000;

/// Where a test's stores are, all of one kind and by one clock.
struct Place {
    clock: Arc<ManualClock>,
    dir: tempfile::TempDir,
    server: Option<&'static postgres::Server>,
}

impl Place {
    fn files() -> Option<Self> {
        Some(Self {
            clock: Arc::default(),
            dir: tempfile::tempdir().unwrap(),
            server: None,
        })
    }

    /// `None` where Postgres is not installed.
    fn databases() -> Option<Self> {
        let server = postgres::server()?;
        Some(Self {
            server: Some(server),
            ..Self::files()?
        })
    }

    /// A path or URL that holds nothing.
    fn fresh(&self, name: &str) -> String {
        match self.server {
            Some(server) => server.database(),
            None => self.dir.path().join(name).display().to_string(),
        }
    }

    async fn open(&self, at: &str) -> (Harness, Kept) {
        let kept = if self.server.is_some() {
            let options = pg::Options {
                clock: Some(self.clock.clone()),
                notify_every: None,
                ..pg::Options::default()
            };
            Kept::Postgres(Arc::new(PostgresStore::open(at, options).await.unwrap()))
        } else {
            let options = Options {
                clock: self.clock.clone(),
                ..Options::default()
            };
            Kept::Sqlite(Arc::new(SqliteStore::open(at, options).await.unwrap()))
        };
        let h = Harness {
            store: kept.port(),
            clock: self.clock.clone(),
            keep: Box::new(()),
        };
        (h, kept)
    }

    /// Writes to the tables behind the store's back.
    async fn sql(&self, at: &str, text: String) {
        let sql = sqlx::raw_sql(sqlx::AssertSqlSafe(text));
        if self.server.is_some() {
            let mut conn = PgConnection::connect(at).await.unwrap();
            conn.execute(sql).await.unwrap();
        } else {
            let mut conn = SqliteConnection::connect(&format!("sqlite://{at}"))
                .await
                .unwrap();
            conn.execute(sql).await.unwrap();
            conn.close().await.unwrap();
        }
    }
}

enum Kept {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
}

impl Kept {
    fn port(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => store.clone(),
            Self::Postgres(store) => store.clone(),
        }
    }

    async fn retain(&self, retention: Retention, dry_run: bool) -> Result<Retained, StoreError> {
        match self {
            Self::Sqlite(store) => store.retain(retention, dry_run).await,
            Self::Postgres(store) => store.retain(retention, dry_run).await,
        }
    }

    async fn examine(&self) -> Report {
        match self {
            Self::Sqlite(store) => store.examine(false, |_, _| {}).await.unwrap(),
            Self::Postgres(store) => store.examine(|_, _| {}).await.unwrap(),
        }
    }

    async fn rebuild(&self, session: SessionId) {
        match self {
            Self::Sqlite(store) => store.rebuild(session).await.unwrap(),
            Self::Postgres(store) => store.rebuild(session).await.unwrap(),
        }
    }

    async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.close().await,
        }
    }
}

/// Each case on both.
macro_rules! on_both {
    ($($case:ident)*) => {
        mod sqlite {
            $(
                #[tokio::test]
                async fn $case() {
                    super::$case(super::Place::files().unwrap()).await;
                }
            )*
        }
        mod on_postgres {
            $(
                #[tokio::test]
                async fn $case() {
                    if let Some(place) = super::Place::databases() {
                        super::$case(place).await;
                    }
                }
            )*
        }
    };
}

on_both! {
    compact_7_old_bodies_go_and_everything_that_is_made_of_them_stays
    compact_7_a_body_stays_until_its_time_and_a_stub_cut_off_is_gone_on_with
    ops_5_sessions_that_nobody_used_for_long_go_with_all_their_rows_and_the_file_shrinks
    compact_7_a_damaged_session_keeps_no_other_from_its_turn
    compact_7_an_answer_of_which_a_part_became_stubs_stays_whole
}

/// A turn with a lot of text in everything that holds text. Gives the input that began it.
async fn told(h: &Harness, session: SessionId, word: &str) -> InputId {
    let long = |what: &str| format!("{what} {word} ").repeat(100);
    let input = InputId::new();
    h.ok(build::admit(
        session,
        input,
        Delivery::Queue,
        &long("prompt"),
    ))
    .await;
    let fence = build::fence();
    h.ok(build::claim(session, fence)).await;
    h.ok(build::append(
        session,
        fence,
        [
            build::turn_started(),
            EventBody::InputPromoted { input },
            build::step_started(build::call_model()),
        ],
    ))
    .await;
    let step = h.store.tail(session).await.unwrap().unwrap().session.head;
    let mut pieces = vec![
        Piece::Reasoning(long("reasoning")),
        Piece::Text(long("text")),
    ];
    pieces.extend(build::call_pieces("a"));
    h.ok(build::append(
        session,
        fence,
        [
            build::output(step, pieces),
            build::output(step, [Piece::Text(long("more"))]),
            build::model_ended(step, FinishReason::ToolCalls),
            build::call_started(step, "a", Effect::Idempotent, 1),
            with_output(build::call_settled(step, "a"), &long("result")),
            EventBody::RunnerNoted {
                parts: build::text(&long("note")),
            },
            build::turn_ended(),
        ],
    ))
    .await;
    h.ok(build::end(session, fence, End::Succeeded)).await;
    input
}

fn with_output(settled: EventBody, text: &str) -> EventBody {
    let EventBody::CallSettled {
        step,
        mut result,
        timing,
    } = settled
    else {
        unreachable!("a result is settled")
    };
    result.output = vec![Part::Text(text.into())];
    EventBody::CallSettled {
        step,
        result,
        timing,
    }
}

/// Without what compaction is allowed to change.
fn beside(mut dump: Dump) -> Dump {
    dump.events.clear();
    if let Some(session) = &mut dump.session {
        session.compacted_through = 0;
    }
    dump
}

async fn lines(store: Arc<dyn Store>, session: SessionId) -> Vec<String> {
    export(store, session, "here").try_collect().await.unwrap()
}

async fn compact_7_old_bodies_go_and_everything_that_is_made_of_them_stays(place: Place) {
    let (h, store) = place.open(&place.fresh("m.db")).await;
    let session = h.session().await;
    let input = told(&h, session, "first").await;
    let whole = lines(store.port(), session).await;
    let cut = h.dump(session).await.events.last().unwrap().seq;
    told(&h, session, "second").await;
    // One that is open is not touched, whatever its age.
    let (open_session, ..) = h.step(build::call_model()).await;

    let before = h.dump(session).await;
    let untouched = h.dump(open_session).await;
    let again = build::admit(session, input, Delivery::Queue, "another text");
    let admitted = |reply: Reply| -> Admission {
        let Reply::Admitted(admission) = reply else {
            unreachable!("{reply:?}")
        };
        admission
    };
    let first = admitted(h.ok(again.clone()).await.reply);
    let all = Retention {
        sessions_before: None,
        bodies_before: Some(u64::MAX),
    };
    let would = store.retain(all, true).await.unwrap();
    assert_eq!(h.dump(session).await, before, "a dry run changes nothing");
    let done = store.retain(all, false).await.unwrap();
    assert_eq!(done, would);
    assert!(done.bodies >= 10, "{done:?}");
    assert!(done.body_bytes > 10_000, "{done:?}");

    let after = h.dump(session).await;
    let frame = |dump: &Dump| -> Vec<_> {
        let events = dump.events.iter();
        events
            .map(|e| (e.seq, e.id, e.kind.clone(), e.at, e.execution, e.recovery))
            .collect()
    };
    assert_eq!(frame(&after), frame(&before));
    assert_eq!(beside(after.clone()), beside(before.clone()));
    assert_eq!(beside(h.dump(open_session).await), beside(untouched));
    let bytes = |dump: &Dump| -> u64 { dump.events.iter().map(|e| stub::length(&e.data)).sum() };
    assert_eq!(bytes(&before) - bytes(&after), done.body_bytes);
    assert_eq!(admitted(h.ok(again.clone()).await.reply), first);
    let idle = Retained::default();
    assert_eq!(
        store.retain(all, false).await.unwrap(),
        idle,
        "once is enough"
    );

    // A write that is repeated is still known, and another under its ids still a conflict.
    let noted = before
        .events
        .iter()
        .find(|e| e.kind == "runner.noted")
        .unwrap();
    let stubbed = after.events.iter().find(|e| e.seq == noted.seq).unwrap();
    assert!(stubbed.compacted.is_some());
    assert!(stub::is_of(stubbed, &noted.data));

    // The database is healthy, and its rows can be made anew.
    let report = store.examine().await;
    assert!(report.is_healthy(), "{report:#?}");
    store.rebuild(session).await;
    assert_eq!(h.dump(session).await, after);

    // What its origin still has whole is the same session, and so the other way round.
    for strict in [true, false] {
        let (elsewhere, other) = place.open(&place.fresh(&format!("{strict}.db"))).await;
        let (old, new) = (whole.clone(), lines(store.port(), session).await);
        for lines in if strict { [old, new] } else { [new, old] } {
            let mut import = Importer::into_store(other.port(), build::AT, strict);
            for line in &lines {
                import.line(line).await.unwrap();
            }
            let imported = import.finish().await.unwrap();
            assert_eq!(imported.refused, None, "{imported:?}");
        }
        let copy = elsewhere.dump(session).await;
        assert_eq!(copy.items, after.items);
        // Intents are told by no event.
        assert_eq!(copy.inputs, after.inputs);
        assert_eq!(copy.calls, after.calls);
        assert!(copy.events.len() as u64 > cut);
        let report = other.examine().await;
        assert!(report.is_healthy(), "{report:#?}");
        other.close().await;
    }

    // It goes on.
    told(&h, session, "third").await;
    let items = h.dump(session).await.items;
    assert_eq!(items[..after.items.len()], after.items[..]);
    store.close().await;
}

async fn compact_7_a_body_stays_until_its_time_and_a_stub_cut_off_is_gone_on_with(place: Place) {
    let (h, store) = place.open(&place.fresh("m.db")).await;
    let session = h.session().await;
    told(&h, session, "only").await;
    let events = h.dump(session).await.events;
    let retention = |before| Retention {
        sessions_before: None,
        bodies_before: Some(before),
    };
    let none = store.retain(retention(events[0].at), false).await.unwrap();
    assert_eq!(none, Retained::default());
    let done = store.retain(retention(u64::MAX), false).await.unwrap();
    assert!(done.bodies > 0);

    // A pending input and what comes behind it wait for it.
    let input = InputId::new();
    let pending = "later ".repeat(100);
    h.ok(build::admit(session, input, Delivery::Queue, &pending))
        .await;
    let done = store.retain(retention(u64::MAX), false).await.unwrap();
    assert_eq!(done.bodies, 0);
    let held = h.dump(session).await.events;
    assert!(held.last().unwrap().data.to_string().contains("later"));
    store.close().await;
}

async fn ops_5_sessions_that_nobody_used_for_long_go_with_all_their_rows_and_the_file_shrinks(
    place: Place,
) {
    let path = place.fresh("m.db");
    let (h, store) = place.open(&path).await;
    let at = |commit: Commit, at: u64| Commit { at, ..commit };

    // Old ones: many idle, and one of each kind that stays.
    let mut old = Vec::new();
    for n in 0..40 {
        let session = h.session().await;
        for turn in 0..5 {
            told(&h, session, &format!("{n} {turn} {}", "x".repeat(200))).await;
        }
        old.push(session);
    }
    let (running, ..) = h.step(build::call_model()).await;
    let (waiting, fence) = h.turn().await;
    h.ok(build::append(
        waiting,
        fence,
        [build::step_started(Action::Wait(Wait {
            until: vec![Condition::Signal("go".into())],
        }))],
    ))
    .await;
    h.ok(build::end(waiting, fence, End::Suspended)).await;
    let (quarantined, fence, _) = h.step(build::call_model()).await;
    h.clock.advance(build::LEASE_MS);
    h.ok(build::commit(
        quarantined,
        Write::Quarantine {
            seen: fence,
            reason: "broken".into(),
        },
    ))
    .await;
    let due = h.session().await;
    h.ok(build::admit(due, InputId::new(), Delivery::Queue, "to do"))
        .await;
    // And one that was used since.
    let used = h.session().await;
    let late = build::AT + 40 * DAY;
    h.ok(at(
        build::admit(used, InputId::new(), Delivery::Queue, "now"),
        late,
    ))
    .await;
    h.ok(at(build::interrupt(used), late)).await;

    let retention = Retention {
        sessions_before: Some(build::AT + 30 * DAY),
        bodies_before: None,
    };
    let would = store.retain(retention, true).await.unwrap();
    assert_eq!(would.sessions, old.len() as u64, "{would:?}");
    let size = || std::fs::metadata(&path).map_or(0, |file| file.len());
    store.close().await;
    let before = size();
    let (h, store) = place.open(&path).await;
    let done = store.retain(retention, false).await.unwrap();
    assert_eq!(done, would);
    for session in &old {
        assert_eq!(h.store.dump(*session).await.unwrap(), Dump::default());
    }
    for session in [running, waiting, quarantined, due, used] {
        assert!(h.store.tail(session).await.unwrap().is_some());
    }
    let report = store.examine().await;
    assert!(report.is_healthy(), "{report:#?}");
    store.close().await;
    let after = size();
    if place.server.is_none() {
        assert!(after < before / 2, "{before} bytes became {after}");
    }
}

async fn compact_7_a_damaged_session_keeps_no_other_from_its_turn(place: Place) {
    let path = place.fresh("m.db");
    let (h, store) = place.open(&path).await;
    let mut sessions = Vec::new();
    for n in 0..3 {
        let session = h.session().await;
        told(&h, session, &format!("session {n}")).await;
        sessions.push(session);
    }
    // The first in the order in which they are taken.
    sessions.sort();
    let broken = sessions[0];
    let sql = format!("UPDATE event SET data = '{{' WHERE session = '{broken}' AND seq = 2");
    place.sql(&path, sql).await;
    let all = Retention {
        sessions_before: None,
        bodies_before: Some(u64::MAX),
    };
    let done = store.retain(all, false).await.unwrap();
    assert!(done.bodies > 0, "{done:?}");
    for session in &sessions[1..] {
        let events = h.dump(*session).await.events;
        assert!(events.iter().any(|event| event.compacted.is_some()));
    }
    store.close().await;
}

/// Some of its events are too small to lose anything, some are not old enough.
async fn compact_7_an_answer_of_which_a_part_became_stubs_stays_whole(place: Place) {
    let (h, store) = place.open(&place.fresh("m.db")).await;
    let session = h.session().await;
    let input = InputId::new();
    h.ok(build::admit(session, input, Delivery::Queue, "go"))
        .await;
    let fence = build::fence();
    h.ok(build::claim(session, fence)).await;
    let begin = [
        build::turn_started(),
        EventBody::InputPromoted { input },
        build::step_started(build::call_model()),
    ];
    h.ok(build::append(session, fence, begin)).await;
    let step = h.store.tail(session).await.unwrap().unwrap().session.head;
    let long = |word: &str| format!("{word} ").repeat(100);
    let says = |piece: Piece| build::append(session, fence, [build::output(step, [piece])]);
    let arguments = |text: String| Piece::Arguments {
        id: "a".into(),
        text,
    };
    h.ok(says(Piece::Text("one".into()))).await;
    h.ok(says(Piece::Text(long("two")))).await;
    h.ok(says(Piece::Text("three".into()))).await;
    let call = build::call_pieces("a").into_iter().next().unwrap();
    h.ok(says(call)).await;
    h.ok(says(arguments("[\"".into()))).await;
    h.ok(says(arguments(long("four")))).await;
    let later = |commit: Commit| Commit {
        at: build::AT + DAY,
        ..commit
    };
    let middle = build::AT + DAY;
    h.ok(later(says(arguments(long("five"))))).await;
    let end = [
        build::output(
            step,
            [arguments("\"]".into()), Piece::CallReady { id: "a".into() }],
        ),
        build::model_ended(step, FinishReason::ToolCalls),
        build::call_started(step, "a", Effect::Idempotent, 1),
        build::call_settled(step, "a"),
        build::turn_ended(),
    ];
    h.ok(later(build::append(session, fence, end))).await;
    h.ok(later(build::end(session, fence, End::Succeeded)))
        .await;
    let items = h.dump(session).await.items;
    let whole = lines(store.port(), session).await;

    for before in [middle, u64::MAX] {
        let retention = Retention {
            sessions_before: None,
            bodies_before: Some(before),
        };
        let done = store.retain(retention, false).await.unwrap();
        assert!(done.bodies > 0, "{done:?}");
        let report = store.examine().await;
        assert!(report.is_healthy(), "{report:#?}");
        store.rebuild(session).await;
        assert_eq!(h.dump(session).await.items, items);

        // Elsewhere, too, where some of its events may be whole.
        let stubs = lines(store.port(), session).await;
        for cut in [0, 8, 10] {
            let (elsewhere, other) = place
                .open(&place.fresh(&format!("{before}-{cut}.db")))
                .await;
            for lines in [&whole[..cut], &stubs[..]] {
                let mut import = Importer::into_store(other.port(), build::AT, true);
                for line in lines {
                    import.line(line).await.unwrap();
                }
                let finished = import.finish().await;
                assert!(lines.len() == cut || finished.unwrap().refused.is_none());
            }
            assert_eq!(elsewhere.dump(session).await.items, items);
            other.close().await;
        }
    }

    // What is not in the row and was not taken from the event, either, is damage all the same.
    let at = place.fresh("broken.db");
    let (_, broken) = place.open(&at).await;
    let mut import = Importer::into_store(broken.port(), build::AT, true);
    for line in lines(store.port(), session).await {
        import.line(&line).await.unwrap();
    }
    import.finish().await.unwrap();
    place
        .sql(
            &at,
            "UPDATE item SET data = replace(data, 'one', 'won')".into(),
        )
        .await;
    let report = broken.examine().await;
    assert!(!report.is_healthy());
    broken.close().await;
    store.close().await;
}
