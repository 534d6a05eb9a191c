//! The log is enough: rows that were lost or garbled come back from it as they were.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;

use mainstay_core::commit::{Commit, End, Write};
use mainstay_core::event::{Delivery, EventBody, InterruptReason, KINDS, Piece};
use mainstay_core::history::ModelRef;
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::invariant::{Check, Stored};
use mainstay_core::model::{
    Effect, Failure, FailureClass, FinishReason, HostedResult, ToolCall, ToolDefinition,
};
use mainstay_core::plugin::{Action, Answer, Compact, Summary};
use mainstay_core::port::{Store, StoreError};
use mainstay_core::rebuild::Rows;
use mainstay_core::stub;
use mainstay_store::{Options, SqliteStore};
use mainstay_test_conformance::{Harness, store_2};
use mainstay_test_support::{ManualClock, MemoryStore, build};
use sqlx::{Connection, SqliteConnection};

/// Everything that is rebuilt, and the columns that tell one row from another.
const TABLES: [(&str, &str); 7] = [
    ("session", "id"),
    ("input", "id"),
    ("item", "session, seq, n"),
    ("step", "session, seq"),
    ("call", "session, step, id"),
    ("execution", "session, id"),
    // Not rebuilt, and not to be touched.
    ("claim", "session"),
];

async fn raw(path: &Path) -> SqliteConnection {
    SqliteConnection::connect(&format!("sqlite://{}", path.display()))
        .await
        .unwrap()
}

/// All rows of all tables, every column as SQL would write it.
async fn rows(conn: &mut SqliteConnection) -> Vec<String> {
    let mut all = Vec::new();
    for (table, key) in TABLES {
        let columns: Vec<String> =
            sqlx::query_scalar("SELECT name FROM pragma_table_info(?) ORDER BY cid")
                .bind(table)
                .fetch_all(&mut *conn)
                .await
                .unwrap();
        let columns: Vec<String> = columns
            .iter()
            .map(|name| format!("'{name}=' || quote(\"{name}\")"))
            .collect();
        let sql = format!(
            "SELECT '{table} ' || {} FROM {table} ORDER BY {key}",
            columns.join(" || ' ' || ")
        );
        let found: Vec<String> = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .fetch_all(&mut *conn)
            .await
            .unwrap();
        assert!(!found.is_empty(), "nothing in {table}");
        all.extend(found);
    }
    all
}

async fn sessions(conn: &mut SqliteConnection) -> Vec<SessionId> {
    let ids: Vec<String> = sqlx::query_scalar("SELECT DISTINCT session FROM event")
        .fetch_all(conn)
        .await
        .unwrap();
    ids.iter().map(|id| id.parse().unwrap()).collect()
}

/// What random commits never come to.
async fn the_rest(h: &Harness) {
    let failure = || Failure {
        class: FailureClass::Overloaded,
        message: "too much".into(),
        retry_after_ms: None,
    };
    let with_own_tool = || {
        let Action::CallModel(mut call) = build::call_model() else {
            unreachable!()
        };
        call.own_tools.push(ToolDefinition {
            name: "tool".into(),
            description: "its own".into(),
            input_schema: "{}".into(),
        });
        Action::CallModel(call)
    };

    // Retries, hosted calls, and calls of the runner's own: one answered, one dropped.
    let (session, fence, step) = h.step(with_own_tool()).await;
    let hosted = ToolCall {
        id: "h".into(),
        tool: "search".into(),
        arguments: "{}".into(),
    };
    let result = HostedResult {
        call: "h".into(),
        is_error: false,
        data: "{}".into(),
    };
    h.ok(build::append(
        session,
        fence,
        [
            EventBody::RetryScheduled {
                step,
                attempt: 1,
                wait_ms: 10,
                failure: failure(),
                usage: None,
            },
            build::output(
                step,
                [Piece::Reasoning("hm".into()), Piece::Text("so".into())],
            ),
            build::output(
                step,
                [Piece::HostedCall(hosted), Piece::HostedResult(result)],
            ),
            build::output(step, build::call_pieces("a")),
            build::output(step, build::call_pieces("b")),
            build::model_ended(step, FinishReason::ToolCalls),
            EventBody::RunnerAnswered {
                step,
                answer: Answer {
                    call: "a".into(),
                    output: build::text("mine"),
                    is_error: false,
                },
            },
            EventBody::RunnerNoted {
                parts: build::text("a note"),
            },
            EventBody::CallDropped {
                step,
                call: "b".into(),
            },
            build::turn_ended(),
        ],
    ))
    .await;
    h.ok(build::end(session, fence, End::Succeeded)).await;

    // Compactions: one that came to something and one that did not.
    let compact = |through| {
        Action::Compact(Compact {
            through,
            summary: Summary::Text("short".into()),
        })
    };
    let (session, fence, step) = h.step(compact(2)).await;
    h.ok(build::append(
        session,
        fence,
        [
            EventBody::ContextCompacted {
                step,
                through: 2,
                summary: build::text("short"),
            },
            build::step_started(compact(3)),
        ],
    ))
    .await;
    let step = h.store.tail(session).await.unwrap().unwrap().session.head;
    h.ok(build::append(
        session,
        fence,
        [EventBody::ContextKept {
            step,
            failure: failure(),
        }],
    ))
    .await;
    // Interrupted by its user, with inputs of each fate.
    let (cancelled, pending) = (InputId::new(), InputId::new());
    for input in [cancelled, pending] {
        h.ok(build::admit(session, input, Delivery::Queue, "later"))
            .await;
    }
    h.ok(build::commit(
        session,
        Write::CancelInput { input: cancelled },
    ))
    .await;
    let delivery = Delivery::Steer;
    h.ok(build::commit(
        session,
        Write::Redeliver {
            input: pending,
            delivery,
        },
    ))
    .await;
    h.ok(build::interrupt(session)).await;
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    let reason = InterruptReason::User;
    h.ok(build::end(session, fence, End::Interrupted { reason }))
        .await;

    // Crashed in a call that acts once, until it was quarantined; and released.
    let (session, fence, step) = h.step(build::call_tools(&["x", "y"])).await;
    let started = build::call_started(step, "x", Effect::Once, 1);
    h.ok(build::append(session, fence, [started])).await;
    h.clock.advance(build::LEASE_MS);
    let seen = Write::Recover {
        seen: fence,
        counting: mainstay_core::recovery::Counting::to(0),
    };
    h.ok(build::commit(session, seen)).await;
    h.ok(build::commit(session, Write::Release)).await;

    // What hosts of other builds may have written.
    let (session, fence) = h.turn().await;
    let model = ModelRef {
        provider: "p".into(),
        model: "m".into(),
    };
    h.ok(build::append(
        session,
        fence,
        [
            EventBody::SessionConfigured { model },
            build::turn_ended(),
            EventBody::SessionCancelled {},
            EventBody::ExecutionSuspended {
                execution: fence.execution,
            },
        ],
    ))
    .await;

    // One that runs, and one in which a claim has run out.
    h.step(build::call_model()).await;
    h.clock.advance(build::LEASE_MS);
    h.step(build::call_tools(&["z"])).await;
}

/// A store with every type of event in it.
struct Filled {
    dir: tempfile::TempDir,
    store: Arc<SqliteStore>,
    h: Harness,
}

async fn filled() -> Filled {
    let clock = Arc::new(ManualClock::default());
    let dir = tempfile::tempdir().unwrap();
    let options = Options {
        clock: clock.clone(),
        ..Options::default()
    };
    let store = SqliteStore::open(dir.path().join("m.db"), options).await;
    let store = Arc::new(store.unwrap());
    let harness = |store: Arc<dyn Store>| Harness {
        store,
        clock: clock.clone(),
        keep: Box::new(()),
    };
    let h = harness(store.clone());
    let memory = harness(Arc::new(MemoryStore::new(clock.clone())));
    for seed in 12..16 {
        store_2(&memory, &h, seed, 500).await;
    }
    the_rest(&h).await;
    Filled { dir, store, h }
}

#[tokio::test]
async fn store_12_rows_that_are_lost_come_back_from_the_log_as_they_were() {
    let Filled { dir, store, .. } = filled().await;
    let mut conn = raw(&dir.path().join("m.db")).await;
    let kinds: Vec<String> = sqlx::query_scalar("SELECT DISTINCT type FROM event")
        .fetch_all(&mut conn)
        .await
        .unwrap();
    let kinds: BTreeSet<&str> = kinds.iter().map(String::as_str).collect();
    let missing: Vec<_> = KINDS.iter().filter(|kind| !kinds.contains(*kind)).collect();
    assert!(missing.is_empty(), "the database has no {missing:?}");
    let before = rows(&mut conn).await;
    let report = store.examine(false, |_, _| {}).await.unwrap();
    assert!(report.is_healthy(), "{report:#?}");

    // Dropped, all of them but the origins of imports, which no event tells.
    sqlx::raw_sql(
        "DELETE FROM item; DELETE FROM step; DELETE FROM call; DELETE FROM execution;
         UPDATE session SET head = 0, step = 1, runnable = 1, due = 1, wake_at = 1, owing = 1, shown = 1,
                data = json_object('origin', data -> '$.origin');
         UPDATE input SET status = 'lost', data = '{}'",
    )
    .execute(&mut conn)
    .await
    .unwrap();
    let report = store.examine(false, |_, _| {}).await.unwrap();
    assert!(!report.is_healthy());
    let all = sessions(&mut conn).await;
    assert!(all.len() > 20, "{}", all.len());
    for session in &all {
        store.rebuild(*session).await.unwrap();
    }
    assert_eq!(rows(&mut conn).await, before);
    let report = store.examine(false, |_, _| {}).await.unwrap();
    assert!(report.is_healthy(), "{report:#?}");

    // Once more changes nothing, and the store goes on from what it finds.
    for session in &all {
        store.rebuild(*session).await.unwrap();
    }
    assert_eq!(rows(&mut conn).await, before);
    let done = store
        .commit(Commit {
            session: all[0],
            at: build::AT,
            write: build::interrupt(all[0]).write,
        })
        .await;
    done.unwrap();
    let lost = SessionId::new();
    assert!(matches!(
        store.rebuild(lost).await,
        Err(StoreError::Damaged { session, .. }) if session == lost
    ));
    conn.close().await.unwrap();
    store.close().await;
}

/// Every type of event, as a stub however little it saves, gives the rows that the whole event gave.
#[tokio::test]
async fn compact_7_rows_follow_from_stubs_of_every_type() {
    let Filled { store, h, dir } = filled().await;
    let mut conn = raw(&dir.path().join("m.db")).await;
    let mut kinds = BTreeSet::new();
    for id in sessions(&mut conn).await {
        let dump = h.dump(id).await;
        let mut session = dump.session.clone().unwrap();
        let tail = h.store.tail(id).await.unwrap().unwrap();
        session.compacted_through = stub::through(&tail);
        let mut log = Vec::new();
        for record in &dump.events {
            let stub = (record.seq <= session.compacted_through)
                .then(|| stub::stub(record, 1))
                .flatten();
            if let Some(stub) = &stub {
                kinds.insert(stub.kind.clone());
                assert!(stub::is_of(stub, &record.data));
                assert!(stub::is_of(stub, &stub.data));
                assert!(!stub::is_of(stub, &serde_json::json!({ "other": 1 })));
                assert_eq!(stub::stub(stub, 1), None);
            }
            log.push(stub.unwrap_or_else(|| record.clone()));
        }
        let claim = dump.claim.clone();
        let findings = |rows: &Rows| {
            let mut check = Check::new();
            log.iter().for_each(|record| check.take(record));
            check.finish(&Stored {
                session: Some(session.clone()),
                claim: claim.clone(),
                rows: rows.clone(),
            })
        };
        let mut rows = Rows::from(dump);
        let found = findings(&rows);
        assert!(found.broken.is_empty(), "{id}: {:#?}", found.broken);

        // What is no text is still checked.
        if let Some(item) = rows.items.values_mut().next() {
            item.at += 1;
            assert!(!findings(&rows).broken.is_empty(), "{id}: a wrong item");
        }
    }
    let with_text = [
        "input.admitted",
        "item.copied",
        "runner.answered",
        "runner.noted",
        "step.output",
        "step.started",
        "context.compacted",
        "call.settled",
    ];
    for kind in with_text {
        assert!(kinds.contains(kind), "no {kind} among {kinds:?}");
    }
    conn.close().await.unwrap();
    store.close().await;
}
