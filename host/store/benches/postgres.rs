//! In what form a fenced append reaches Postgres fastest. Each takes one round trip and does the same:
//! it makes sure of the session's version and of the claim, adds two events, and writes the session's
//! row, the claim's and a step's.
//!
//! - `function`: a call of `session_commit`, as the store does it;
//! - `cte`: one statement whose parts are common table expressions;
//! - `batch`: a transaction of several statements in one message, arguments written into the text.
//!
//! `prepared` binds arguments to a prepared statement; `plain` has them in the text, as behind a pooler.
//! What is printed is the median of an append alone, and the rate of many.
//! `cargo bench -p mainstay-store --bench postgres -- [APPENDS]`

use std::time::{Duration, Instant};

use futures::future::join_all;
use mainstay_test_support::postgres;
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, ConnectOptions as _, Executor as _, PgConnection};
use uuid::Uuid;

const SIDE_BY_SIDE: usize = 32;
const ROUNDS: usize = 5;

struct Session {
    id: Uuid,
    execution: Uuid,
    owner: Uuid,
    version: i64,
}

#[derive(Clone, Copy, PartialEq)]
enum Form {
    Function,
    Cte,
    Batch,
}

fn main() {
    let appends = std::env::args().filter_map(|arg| arg.parse().ok()).next();
    let appends: usize = appends.unwrap_or(2_000);
    let Some(server) = postgres::server() else {
        return;
    };
    let runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = { runtime }.enable_all().build().expect("a runtime");
    let forms = [
        (Form::Function, true, "function  prepared"),
        (Form::Cte, true, "cte       prepared"),
        (Form::Function, false, "function  plain"),
        (Form::Cte, false, "cte       plain"),
        (Form::Batch, false, "batch     plain"),
    ];
    // By turns, and the best of each: the machine may have other things to do.
    let mut best = [(Duration::MAX, 0.0_f64); 5];
    for _ in 0..ROUNDS {
        for (n, (form, prepared, _)) in forms.into_iter().enumerate() {
            let url = server.database();
            let (alone, rate) = runtime.block_on(measure(&url, form, prepared, appends / ROUNDS));
            best[n] = (best[n].0.min(alone), best[n].1.max(rate));
        }
    }
    println!("form      protocol    alone   {SIDE_BY_SIDE} side by side");
    for ((_, _, name), (alone, rate)) in forms.into_iter().zip(best) {
        println!("{name:20} {:5} us  {rate:8.0}/s", alone.as_micros());
    }
}

async fn measure(url: &str, form: Form, prepared: bool, appends: usize) -> (Duration, f64) {
    let options = mainstay_store::postgres::Options::default();
    let store = mainstay_store::PostgresStore::open(url, options).await;
    store.expect("a fresh database").close().await;
    let mut alone = begin(url).await;
    let mut times = Vec::with_capacity(appends);
    for n in 0..appends + 50 {
        let start = Instant::now();
        append(&mut alone, form, prepared).await;
        if n >= 50 {
            times.push(start.elapsed());
        }
    }
    times.sort();
    let mut sessions = join_all((0..SIDE_BY_SIDE).map(|_| begin(url))).await;
    let start = Instant::now();
    let each = appends / 4;
    let tasks = sessions.drain(..).map(|mut session| {
        tokio::spawn(async move {
            for _ in 0..each {
                append(&mut session, form, prepared).await;
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("no append fails");
    }
    let rate = (each * SIDE_BY_SIDE) as f64 / start.elapsed().as_secs_f64();
    (times[appends / 2], rate)
}

async fn begin(url: &str) -> (PgConnection, Session) {
    let options: PgConnectOptions = url.parse().expect("a URL");
    let mut conn = options
        .disable_statement_logging()
        .connect()
        .await
        .expect("it listens");
    let id = Uuid::now_v7;
    let session = Session {
        id: id(),
        execution: id(),
        owner: id(),
        version: 1,
    };
    let sql = format!(
        "INSERT INTO session (id, version, created_at, updated_at, head, stepping, runnable, data)
         VALUES ('{0}', 1, 1, 1, 0, true, true, '{1}');
         INSERT INTO claim (session, execution, owner, expires_at, data)
         VALUES ('{0}', '{2}', '{3}', 1::bigint << 62, '{{}}')",
        session.id,
        text(1_200),
        session.execution,
        session.owner
    );
    conn.execute(sqlx::raw_sql(AssertSqlSafe(sql)))
        .await
        .expect("a session");
    (conn, session)
}

/// JSON of about so many bytes.
fn text(bytes: usize) -> String {
    format!(
        "{{\"text\":\"{}\"}}",
        "lorem ipsum \\\"dolor\\\" ".repeat(bytes / 22)
    )
}

async fn append((conn, session): &mut (PgConnection, Session), form: Form, prepared: bool) {
    let sql = match form {
        Form::Function => FUNCTION,
        Form::Cte => CTE,
        Form::Batch => BATCH,
    };
    let head = (session.version - 1) * 2;
    let id = session.id.to_string();
    let data = text(400);
    let event = |n: i64| {
        (
            &id,
            head + n,
            Uuid::now_v7(),
            "step.output",
            1,
            1,
            session.execution,
            None::<Uuid>,
            &data,
            None::<i64>,
            None::<String>,
        )
    };
    let json = |value: serde_json::Value| value.to_string();
    let row = json(serde_json::json!([
        id,
        1,
        2,
        head + 2,
        1,
        true,
        false,
        null,
        false,
        null,
        text(1_200),
        false
    ]));
    let claim = json(serde_json::json!([
        session.execution,
        session.owner,
        text(200),
        null,
        false
    ]));
    let events = json(serde_json::json!([event(1), event(2)]));
    let steps = json(serde_json::json!([[
        id, 1, 1, head, "{}", "provider", "{}"
    ]]));
    if prepared {
        let raw = |text: String| {
            sqlx::types::Json(serde_json::value::RawValue::from_string(text).unwrap())
        };
        let done = sqlx::query(sql)
            .bind(session.id)
            .bind(session.version)
            .bind(session.execution)
            .bind(session.owner)
            .bind(raw(row))
            .bind(raw(claim))
            .bind(raw(events))
            .bind(raw(steps))
            .fetch_all(conn)
            .await;
        assert_eq!(done.expect("an append").len(), 1);
    } else {
        let quoted = |text: String| {
            format!(
                "E'{}'::jsonb",
                text.replace('\\', "\\\\").replace('\'', "''")
            )
        };
        let arguments = [
            format!("'{id}'::uuid"),
            format!("{}::bigint", session.version),
            format!("'{}'::uuid", session.execution),
            format!("'{}'::uuid", session.owner),
            quoted(row),
            quoted(claim),
            quoted(events),
            quoted(steps),
        ];
        let mut text = String::new();
        let mut parts = sql.split('$');
        text.push_str(parts.next().expect("a text"));
        for part in parts {
            let number: usize = part[..1].parse().expect("a number follows `$`");
            text.push_str(&arguments[number - 1]);
            text.push_str(&part[1..]);
        }
        let done = conn.fetch_all(sqlx::raw_sql(AssertSqlSafe(text))).await;
        assert_eq!(done.expect("an append").len(), 1);
    }
    session.version += 1;
}

const FUNCTION: &str = "
    SELECT * FROM session_commit($1, $2, NULL, true, $3, $4, false, $5, $6, NULL, $7, NULL, NULL,
                                 NULL, $8, NULL, NULL)";

const CTE: &str = "
    WITH locked AS (
        UPDATE session SET
            version = version + 1, updated_at = ($5::jsonb ->> 2)::bigint, head = ($5::jsonb ->> 3)::bigint,
            step = ($5::jsonb ->> 4)::bigint, stepping = $5::jsonb ->> 4 IS NOT NULL,
            runnable = ($5::jsonb ->> 5)::boolean,
            due = CASE WHEN ($5::jsonb ->> 6)::boolean THEN ($5::jsonb ->> 2)::bigint END,
            wake_at = ($5::jsonb ->> 7)::bigint,
            owing = CASE WHEN ($5::jsonb ->> 8)::boolean THEN ($5::jsonb ->> 2)::bigint END,
            shown = ($5::jsonb ->> 9)::bigint, data = $5::jsonb ->> 10
         WHERE id = $1 AND version = $2
           AND EXISTS (SELECT 1 FROM claim c
                        WHERE c.session = $1 AND c.execution = $3 AND c.owner = $4
                          AND c.expires_at > store_now(NULL))
        RETURNING id
    ), added AS (
        INSERT INTO event (session, seq, id, type, version, at, execution, recovery, data, step, call)
        SELECT locked.id, (r ->> 1)::bigint, (r ->> 2)::uuid, r ->> 3, (r ->> 4)::bigint,
               (r ->> 5)::bigint, (r ->> 6)::uuid, (r ->> 7)::uuid, r ->> 8, (r ->> 9)::bigint, r ->> 10
          FROM locked, jsonb_array_elements($7::jsonb) AS r
    ), claimed AS (
        UPDATE claim SET data = $6::jsonb ->> 2 FROM locked WHERE claim.session = locked.id
        RETURNING expires_at
    ), stepped AS (
        INSERT INTO step (session, seq, started_at, settled_at, runner, provider, usage)
        SELECT locked.id, (r ->> 1)::bigint, (r ->> 2)::bigint, (r ->> 3)::bigint, r ->> 4, r ->> 5,
               r ->> 6
          FROM locked, jsonb_array_elements($8::jsonb) AS r
        ON CONFLICT (session, seq) DO UPDATE SET
            started_at = excluded.started_at, runner = excluded.runner, provider = excluded.provider,
            settled_at = coalesce(excluded.settled_at, step.settled_at),
            usage = coalesce(excluded.usage, step.usage)
    )
    SELECT store_now(NULL), (SELECT expires_at FROM claimed) FROM locked";

const BATCH: &str = "
    BEGIN;
    UPDATE session SET
        version = version + 1, updated_at = ($5 ->> 2)::bigint, head = ($5 ->> 3)::bigint,
        step = ($5 ->> 4)::bigint, stepping = $5 ->> 4 IS NOT NULL, runnable = ($5 ->> 5)::boolean,
        due = CASE WHEN ($5 ->> 6)::boolean THEN ($5 ->> 2)::bigint END,
        wake_at = ($5 ->> 7)::bigint,
        owing = CASE WHEN ($5 ->> 8)::boolean THEN ($5 ->> 2)::bigint END,
        shown = ($5 ->> 9)::bigint, data = $5 ->> 10
     WHERE id = $1 AND version = $2;
    INSERT INTO event (session, seq, id, type, version, at, execution, recovery, data, step, call)
    SELECT $1, (r ->> 1)::bigint, (r ->> 2)::uuid, r ->> 3, (r ->> 4)::bigint, (r ->> 5)::bigint,
           (r ->> 6)::uuid, (r ->> 7)::uuid, r ->> 8, (r ->> 9)::bigint, r ->> 10
      FROM jsonb_array_elements($7) AS r;
    UPDATE claim SET data = $6 ->> 2 WHERE session = $1;
    INSERT INTO step (session, seq, started_at, settled_at, runner, provider, usage)
    SELECT $1, (r ->> 1)::bigint, (r ->> 2)::bigint, (r ->> 3)::bigint, r ->> 4, r ->> 5, r ->> 6
      FROM jsonb_array_elements($8) AS r
    ON CONFLICT (session, seq) DO UPDATE SET
        started_at = excluded.started_at, runner = excluded.runner, provider = excluded.provider,
        settled_at = coalesce(excluded.settled_at, step.settled_at),
        usage = coalesce(excluded.usage, step.usage);
    SELECT store_now(NULL), c.expires_at, 1 / count(*)
      FROM session s JOIN claim c ON c.session = s.id
     WHERE s.id = $1 AND s.version = $2 + 1 AND c.execution = $3 AND c.owner = $4
       AND c.expires_at > store_now(NULL)
     GROUP BY c.expires_at;
    COMMIT";
