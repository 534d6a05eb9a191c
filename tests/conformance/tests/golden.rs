//! What released builds have written must be read for ever. The files in `golden` are added to and
//! never changed: a new type or version of event is a new line, a new schema a new file.
//!
//! `GOLDEN=write` writes the database of the newest schema anew, as long as that is not released.

#[path = "golden/databases.rs"]
mod databases;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, End, Reply, Write};
use mainstay_core::event::{DecodeError, Delivery, EventBody, EventDraft, KINDS, Record};
use mainstay_core::history::Approval;
use mainstay_core::id::{ExecutionId, InputId, OwnerId, SessionId};
use mainstay_core::model::FinishReason;
use mainstay_core::plugin::{Action, ApprovalRequest, Child, Condition, Wait};
use mainstay_core::recovery::Outcome;
use mainstay_core::tail::Status;
use mainstay_store::{OpenError, Options, SqliteStore};
use mainstay_test_conformance::Harness;
use mainstay_test_support::{ManualClock, build};
use serde_json::Value;
use sqlx::{Connection, Row, SqliteConnection};
use uuid::Uuid;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("golden")
        .join(name)
}

fn events() -> Vec<Record> {
    let text = std::fs::read_to_string(golden("events-1.jsonl")).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

#[test]
fn upgrade_1_every_event_ever_released_decodes() {
    let text = std::fs::read_to_string(golden("events-1.jsonl")).unwrap();
    let mut seen = BTreeSet::new();
    for (line, record) in text.lines().zip(events()) {
        let event = record
            .decode()
            .unwrap_or_else(|error| panic!("{error}: {line}"));
        let again = serde_json::to_value(event.encode()).unwrap();
        let before: Value = serde_json::from_str(line).unwrap();
        assert_eq!(again, before);
        seen.insert(record.kind);
    }
    for kind in KINDS {
        assert!(
            seen.contains(*kind),
            "golden/events-1.jsonl has no {kind}: add a line for each shape of it"
        );
    }
}

/// The words that stand for the variants of a value: the text, or the names of the object.
fn words(value: &Value, words_of: &mut BTreeSet<String>) {
    match value {
        Value::String(word) => drop(words_of.insert(word.clone())),
        Value::Object(fields) => {
            // By its tag where it has one.
            let tag = ["kind", "outcome"].iter().find_map(|tag| fields.get(*tag));
            match tag {
                Some(tag) => words(tag, words_of),
                None => words_of.extend(fields.keys().cloned()),
            }
        }
        Value::Array(values) => values.iter().for_each(|value| words(value, words_of)),
        _ => {}
    }
}

/// Each variant of what events hold stands in the file too.
#[test]
fn upgrade_1_every_variant_is_among_them() {
    let places: &[(&str, &str, &str)] = &[
        ("session.created", "/resume/mode", "ask never"),
        ("session.held", "/reason", "ask never age"),
        (
            "notice.delivered",
            "/notice",
            "spawn cancel interrupt report",
        ),
        (
            "notice.delivered",
            "/notice/ended",
            "done failed cancelled quarantined",
        ),
        ("input.admitted", "/delivery", "steer queue"),
        (
            "input.admitted",
            "/content",
            "prompt signal approval timer child compact configure",
        ),
        (
            "input.admitted",
            "/content/outcome",
            "done failed cancelled quarantined",
        ),
        ("inputs.woken", "/scope", "steers all"),
        (
            "execution.interrupted",
            "/reason",
            "user shutdown superseded crash",
        ),
        ("turn.ended", "/outcome", "done failed interrupted"),
        (
            "step.started",
            "/action",
            "call_model call_tools wait spawn compact done fail",
        ),
        (
            "step.started",
            "/basis/trigger",
            "turn_started model_finished model_failed tools_finished spawned spawn_refused compacted \
             compaction_failed wait_ended recovered other",
        ),
        (
            "step.started",
            "/action/wait/until",
            "time signal approval children",
        ),
        ("step.started", "/action/compact/summary", "text model"),
        (
            "step.started",
            "/action/call_model/tool_choice",
            // "auto" is what none stands for.
            "none required tool",
        ),
        ("step.started", "/spawn_refused", "too_deep too_many"),
        (
            "step.output",
            "/pieces",
            "text reasoning call arguments call_ready hosted_call hosted_result provider_state media",
        ),
        (
            "retry.scheduled",
            "/failure/class",
            "rate_limited overloaded server transport incomplete protocol",
        ),
        ("model.ended", "/ending", "finished failed interrupted"),
        (
            "model.ended",
            "/ending/failed/class",
            "context_overflow content_filter authentication quota invalid_request",
        ),
        ("call.started", "/effect", "pure idempotent once"),
        (
            "call.settled",
            "/result/outcome",
            "succeeded failed invalid_arguments unknown_tool denied not_started interrupted \
             outcome_unknown result_missing crashed",
        ),
        (
            "item.copied",
            "/body",
            "user assistant tool_result note compaction recovered signal approval child timer other",
        ),
        ("recovery.recorded", "/phase", "ready unknown continue safe"),
    ];
    let events = events();
    for (kind, place, wanted) in places {
        let mut found = BTreeSet::new();
        for event in events.iter().filter(|event| event.kind == *kind) {
            if let Some(value) = event.data.pointer(place) {
                words(value, &mut found);
            }
        }
        let missing: Vec<_> = wanted
            .split_whitespace()
            .filter(|word| !found.contains(*word))
            .collect();
        assert!(
            missing.is_empty(),
            "{kind} {place}: no {missing:?} in {found:?}"
        );
    }
}

#[test]
fn upgrade_1_what_is_newer_is_unknown_and_what_does_not_fit_is_damaged() {
    for record in events() {
        let unknown = |change: fn(&mut Record)| {
            let mut later = record.clone();
            change(&mut later);
            let decoded = later.decode();
            let expected = DecodeError::Unknown {
                seq: later.seq,
                kind: later.kind.clone(),
                version: later.version,
            };
            assert_eq!(decoded, Err(expected.clone()));
            let text = expected.to_string();
            assert!(text.contains(&later.kind) && text.contains(&later.version.to_string()));
        };
        unknown(|record| record.version += 1);
        unknown(|record| record.version = 0);
        unknown(|record| record.kind.push_str(".later"));
        // What does not fit is no reason to take it for newer.
        unknown(|record| {
            record.version = 9;
            record.data = Value::Null;
        });
        let mut damaged = record.clone();
        damaged.data = serde_json::json!("neither");
        assert!(
            matches!(&damaged.decode(), Err(DecodeError::Damaged { kind, .. }) if *kind == record.kind),
            "{record:?}"
        );
    }
    // A field that is missing, or another's.
    let mut prompt = events()
        .into_iter()
        .find(|r| r.kind == "input.admitted")
        .unwrap();
    prompt.data.as_object_mut().unwrap().remove("delivery");
    assert!(matches!(prompt.decode(), Err(DecodeError::Damaged { .. })));
}

const RUNNING: SessionId = SessionId(Uuid::from_u128(1));
const WAITING: SessionId = SessionId(Uuid::from_u128(2));
const QUARANTINED: SessionId = SessionId(Uuid::from_u128(3));
const PARENT: SessionId = SessionId(Uuid::from_u128(4));
const PROMPTED: SessionId = SessionId(Uuid::from_u128(5));
const SESSIONS: [SessionId; 5] = [RUNNING, WAITING, QUARANTINED, PARENT, PROMPTED];

fn fence(session: SessionId) -> Fence {
    Fence {
        execution: ExecutionId::derived(session.0, "execution"),
        owner: OwnerId(Uuid::from_u128(9)),
    }
}

/// A step of a turn that has begun with a prompt.
fn begun(session: SessionId, action: Action) -> Vec<Commit> {
    let input = InputId::derived(session.0, "first");
    let events = [
        build::turn_started(),
        EventBody::InputPromoted { input },
        build::step_started(action),
    ];
    vec![
        build::create(session),
        build::admit(session, input, Delivery::Queue, "hello"),
        build::claim(session, fence(session)),
        build::append(session, fence(session), events),
    ]
}

/// The sessions of the golden database.
async fn fill(h: &Harness) {
    let ok = async |commits: Vec<Commit>| {
        for commit in commits {
            h.ok(commit).await;
        }
    };
    // In the middle of an answer with a call, after a whole step.
    ok(begun(RUNNING, build::call_tools(&["a"]))).await;
    let tail = h.store.tail(RUNNING).await.unwrap().unwrap();
    let step = tail.session.step.unwrap();
    let first = [
        build::call_settled(step, "a"),
        build::step_started(build::call_model()),
    ];
    let done = h.ok(build::append(RUNNING, fence(RUNNING), first)).await;
    let step = done.tail.session.step.unwrap();
    let pieces = build::output(step, build::call_pieces("b"));
    ok(vec![build::append(RUNNING, fence(RUNNING), [pieces])]).await;

    let until = vec![
        Condition::Approval(ApprovalRequest {
            key: "k".into(),
            question: "may I?".into(),
            details: None,
        }),
        Condition::Time(build::AT + 60_000),
    ];
    ok(begun(WAITING, Action::Wait(Wait { until }))).await;
    // One that is queued does not end the wait.
    let queued = InputId::derived(WAITING.0, "queued");
    ok(vec![
        build::end(WAITING, fence(WAITING), End::Suspended),
        build::admit(WAITING, queued, Delivery::Queue, "later"),
    ])
    .await;

    ok(begun(QUARANTINED, build::call_model())).await;
    let child = Child {
        key: "c".into(),
        agent: None,
        prompt: build::text("do"),
    };
    ok(begun(PARENT, Action::Spawn(vec![child]))).await;
    let end = Append {
        fence: fence(PARENT),
        expected_head: None,
        begins: false,
        events: vec![EventDraft::new(build::turn_ended())],
        end: Some(End::Succeeded),
    };
    ok(vec![
        build::commit(PARENT, Write::Append(end)),
        build::create(PROMPTED),
        build::admit(
            PROMPTED,
            InputId::derived(PROMPTED.0, "first"),
            Delivery::Queue,
            "later",
        ),
        build::commit(
            QUARANTINED,
            Write::Expire {
                seen: fence(QUARANTINED),
            },
        ),
        build::commit(
            QUARANTINED,
            Write::Quarantine {
                seen: fence(QUARANTINED),
                reason: "its recovery does not fit its log".into(),
            },
        ),
    ])
    .await;
}

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnection::connect(&format!("sqlite://{}?mode=rwc", path.display()))
        .await
        .unwrap()
}

/// A database as SQL text: its tables with their rows, then what watches them.
async fn dumped(path: &Path) -> String {
    let mut conn = raw(path).await;
    let id: i64 = sqlx::query_scalar("PRAGMA application_id")
        .fetch_one(&mut conn)
        .await
        .unwrap();
    let mut text = format!("PRAGMA application_id = {id};\n");
    let schema: Vec<(String, String, String)> = sqlx::query_as(
        "SELECT type, name, sql FROM sqlite_schema WHERE sql IS NOT NULL ORDER BY type <> 'table', rowid",
    )
    .fetch_all(&mut conn)
    .await
    .unwrap();
    for (kind, name, sql) in schema {
        text.push_str(&format!("{sql};\n"));
        if kind != "table" {
            continue;
        }
        let columns: Vec<String> = sqlx::query_scalar("SELECT name FROM pragma_table_info(?)")
            .bind(&name)
            .fetch_all(&mut conn)
            .await
            .unwrap();
        let values: Vec<String> = columns.iter().map(|c| format!("quote({c})")).collect();
        let rows = format!(
            "SELECT {} FROM {name} ORDER BY {}",
            values.join(" || ', ' || "),
            columns[..columns.len().min(2)].join(", ")
        );
        let rows = sqlx::query(sqlx::AssertSqlSafe(rows))
            .fetch_all(&mut conn)
            .await
            .unwrap();
        for row in rows {
            let row: String = row.get(0);
            text.push_str(&format!("INSERT INTO {name} VALUES ({row});\n"));
        }
    }
    text
}

/// The golden database of a schema as a file.
async fn restored(name: &str) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.db");
    let text = std::fs::read_to_string(golden(name)).unwrap();
    let mut conn = raw(&path).await;
    sqlx::raw_sql(sqlx::AssertSqlSafe(text))
        .execute(&mut conn)
        .await
        .unwrap();
    conn.close().await.unwrap();
    (dir, path)
}

async fn open(path: &Path) -> (Harness, Arc<SqliteStore>) {
    let clock = Arc::new(ManualClock::default());
    let options = Options {
        clock: clock.clone(),
        ..Options::default()
    };
    let store = Arc::new(SqliteStore::open(path, options).await.unwrap());
    let h = Harness {
        store: store.clone(),
        clock,
        keep: Box::new(()),
    };
    (h, store)
}

async fn write_anew(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.db");
    let (h, store) = open(&path).await;
    fill(&h).await;
    store.close().await;
    std::fs::write(golden(name), dumped(&path).await).unwrap();
}

/// Databases of every released schema: what runs, waits or is put aside in them goes on.
#[tokio::test]
async fn upgrade_1_every_schema_ever_released_opens_and_goes_on() {
    if std::env::var("GOLDEN").is_ok_and(|what| what == "write") {
        write_anew("store-1.sql").await;
    }
    for name in ["store-1.sql"] {
        let (_dir, path) = restored(name).await;
        let mut conn = raw(&path).await;
        let mut before = BTreeMap::new();
        for session in SESSIONS {
            let count: i64 = sqlx::query_scalar("SELECT count(*) FROM event WHERE session = ?")
                .bind(session.to_string())
                .fetch_one(&mut conn)
                .await
                .unwrap();
            before.insert(session, usize::try_from(count).unwrap());
        }
        conn.close().await.unwrap();

        let (h, store) = open(&path).await;
        for session in SESSIONS {
            // Rows are kept, and are those that a rebuild gives.
            let dump = h.dump(session).await;
            assert_eq!(dump.events.len(), before[&session]);
            assert!(before[&session] > 1);
        }
        go_on(&h).await;
        store.close().await;
    }
}

async fn go_on(h: &Harness) {
    let status = async |session| {
        let tail = h.store.tail(session).await.unwrap().unwrap();
        tail.status(h.store.now().await.unwrap())
    };
    let fresh = |session: SessionId| Fence {
        execution: ExecutionId::derived(session.0, "next"),
        owner: OwnerId(Uuid::from_u128(10)),
    };
    let scan = h.store.scan(10).await.unwrap();
    assert_eq!((scan.due, scan.owing), (vec![PROMPTED], vec![PARENT]));
    assert_eq!(scan.expired.len(), 1);

    // What ran is recovered, and runs on from its call.
    assert_eq!(status(RUNNING).await, Status::Recovering);
    let done = h.ok(build::recover(RUNNING, fence(RUNNING))).await;
    assert!(matches!(
        done.reply,
        Reply::Recovered(Outcome::Resume { attempts: 1, .. })
    ));
    h.ok(build::claim(RUNNING, fresh(RUNNING))).await;
    let step = done.tail.session.step.unwrap();
    let ends = [
        build::call_settled(step, "b"),
        build::step_started(build::call_model()),
    ];
    let done = h.ok(build::append(RUNNING, fresh(RUNNING), ends)).await;
    let ends = [
        build::model_ended(done.tail.session.step.unwrap(), FinishReason::Stop),
        build::turn_ended(),
    ];
    h.ok(build::append(RUNNING, fresh(RUNNING), ends)).await;
    h.ok(build::end(RUNNING, fresh(RUNNING), End::Succeeded))
        .await;

    // What waits takes its answer, and then its timer.
    assert_eq!(status(WAITING).await, Status::Waiting);
    h.clock.advance(60_000);
    assert_eq!(h.store.scan(10).await.unwrap().timers, [WAITING]);
    let approved = Approval {
        key: "k".into(),
        approved: true,
        reason: None,
    };
    h.ok(build::commit(WAITING, Write::Answer(approved))).await;
    h.ok(build::commit(WAITING, Write::Fire)).await;
    let done = h.ok(build::claim(WAITING, fresh(WAITING))).await;
    let due = done.tail.due_steers();
    assert_eq!(due.len(), 2);
    let promoted = due
        .into_iter()
        .map(|input| EventBody::InputPromoted { input: input.id });
    let done = h.ok(build::append(WAITING, fresh(WAITING), promoted)).await;
    assert!(done.tail.session.wait.is_none());

    // What is put aside is released.
    assert_eq!(status(QUARANTINED).await, Status::Quarantined);
    h.ok(build::commit(QUARANTINED, Write::Release)).await;
    h.ok(build::claim(QUARANTINED, fresh(QUARANTINED))).await;

    let owed = h.store.tail(PARENT).await.unwrap().unwrap();
    for notice in owed.session.outbox.clone() {
        h.ok(build::commit(PARENT, Write::Deliver { notice })).await;
    }
    assert!(h.store.scan(10).await.unwrap().owing.is_empty());
    h.ok(build::claim(PROMPTED, fresh(PROMPTED))).await;
    for session in SESSIONS {
        h.dump(session).await;
    }
}

#[tokio::test]
async fn upgrade_2_a_newer_schema_is_refused_and_not_changed() {
    let (dir, path) = restored("store-1.sql").await;
    let (_, store) = open(&path).await;
    store.close().await;
    let mut conn = raw(&path).await;
    sqlx::raw_sql(
        "INSERT INTO _sqlx_migrations (version, description, installed_on, success, checksum, execution_time)
         VALUES (9998, 'later', CURRENT_TIMESTAMP, true, x'00', 0);
         ALTER TABLE session ADD COLUMN later TEXT;
         UPDATE session SET data = '{\"later\":1}';",
    )
    .execute(&mut conn)
    .await
    .unwrap();
    conn.close().await.unwrap();
    let files = || -> BTreeMap<String, Vec<u8>> {
        let entries = std::fs::read_dir(dir.path()).unwrap().map(Result::unwrap);
        let database = entries.filter(|entry| {
            let name = entry.file_name();
            let name = name.to_string_lossy();
            name == "m.db" || name.starts_with("m.db-wal")
        });
        database
            .map(|entry| {
                let name = entry.file_name().to_string_lossy().into_owned();
                (name, std::fs::read(entry.path()).unwrap())
            })
            .filter(|(_, bytes)| !bytes.is_empty())
            .collect()
    };
    let before = files();
    for _ in 0..2 {
        for refused in [
            SqliteStore::open(&path, Options::default()).await.err(),
            SqliteStore::open_read_only(&path).await.err(),
        ] {
            let refused = refused.expect("it is refused");
            let OpenError::NewerSchema { found, known, .. } = &refused else {
                panic!("{refused:?}")
            };
            assert_eq!(*found, 9998);
            let text = refused.to_string();
            for part in [found, known] {
                assert!(text.contains(&part.to_string()), "{text}");
            }
            assert!(text.contains("newer build"), "{text}");
        }
    }
    assert_eq!(before, files());
}
