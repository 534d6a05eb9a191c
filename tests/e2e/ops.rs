//! What operators do to a store: examine it, copy it, clear it out, and reach it beside a server.

mod support;

#[path = "ops/database.rs"]
mod database;
#[path = "ops/retention.rs"]
mod retention;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use serde_json::{Value, json};
use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection};
use support::{DEADLINE, Outside, Server, mainstay};

/// Exit codes as documented.
const CONFLICT: i32 = 4;
const DAMAGED: i32 = 8;

/// The provider that answers from scripts.
const PARROT: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_PARROT"));

struct Place {
    folder: tempfile::TempDir,
    config: PathBuf,
    store: PathBuf,
}

impl Place {
    fn new(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self {
            config: folder.path().join("mainstay.toml"),
            store: folder.path().join("store.db"),
            folder,
        };
        std::fs::write(&place.config, config).unwrap();
        place
    }

    /// With every tool, and a model that uses three of them: pure, idempotent and once.
    async fn with_tools() -> (Self, Outside) {
        let place = Self::new("");
        let outside = Outside::start().await;
        outside.config(place.folder.path());
        (place, outside)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        self.run_on(&self.store, args).await
    }

    async fn run_on(&self, store: &Path, args: &[&str]) -> (i32, String, String) {
        let output = mainstay(store, &self.config).args(args).output();
        let output = tokio::time::timeout(DEADLINE, output)
            .await
            .expect("the command ends")
            .unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// The data of a command that succeeds.
    #[track_caller]
    fn json<'p>(&'p self, args: &'p [&'p str]) -> impl Future<Output = Value> + 'p {
        let caller = std::panic::Location::caller();
        async move {
            let mut all = vec!["--json"];
            all.extend(args);
            let (code, out, err) = self.run(&all).await;
            assert_eq!(code, 0, "{caller}: {args:?}: {out}\n{err}");
            serde_json::from_str(&out).unwrap_or_else(|_| panic!("{caller}: {out}"))
        }
    }

    async fn server(&self) -> Server {
        Server::start(&self.store, &self.config).await
    }

    /// What doctor says of a store, and its exit code.
    async fn doctor(&self, store: &Path) -> (i32, Value) {
        let (code, out, err) = self.run_on(store, &["--json", "doctor"]).await;
        let report = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}\n{err}"));
        (code, report)
    }

    #[track_caller]
    fn healthy<'p>(&'p self, store: &'p Path) -> impl Future<Output = Value> + 'p {
        let caller = std::panic::Location::caller();
        async move {
            let (code, report) = self.doctor(store).await;
            assert_eq!(code, 0, "{caller}: {report:#}");
            report
        }
    }
}

/// A session with a prompt.
async fn begin(server: &Server, text: &str) -> String {
    let (status, created) = server.post("/sessions", json!({})).await;
    assert!(status < 300, "{created}");
    let session = created["id"].as_str().unwrap().to_owned();
    prompt(server, &session, text).await;
    session
}

async fn prompt(server: &Server, session: &str, text: &str) {
    let path = format!("/sessions/{session}/inputs");
    let (status, admitted) = server.post(&path, json!({ "text": text })).await;
    assert!(status < 300, "{admitted}");
}

async fn open(store: &Path) -> SqliteConnection {
    let options = SqliteConnectOptions::new().filename(store);
    options.connect().await.unwrap()
}

async fn sql(conn: &mut SqliteConnection, sql: &str) {
    let done = sqlx::raw_sql(sqlx::AssertSqlSafe(sql.to_owned()))
        .execute(conn)
        .await;
    done.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

async fn number(conn: &mut SqliteConnection, sql: &str) -> i64 {
    let found = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned()))
        .fetch_one(conn)
        .await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

async fn text(conn: &mut SqliteConnection, sql: &str) -> String {
    let found = sqlx::query_scalar(sqlx::AssertSqlSafe(sql.to_owned()))
        .fetch_one(conn)
        .await;
    found.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_1_a_backup_under_load_holds_all_that_was_acknowledged() {
    let (place, _outside) = Place::with_tools().await;
    let server = Arc::new(place.server().await);
    let mut sessions = Vec::new();
    for n in 0..4 {
        sessions.push(begin(&server, &format!("tag:load-{n} work")).await);
    }
    let acknowledged = Arc::new(AtomicU64::new(0));
    let load = tokio::spawn({
        let (server, acknowledged, sessions) =
            (server.clone(), acknowledged.clone(), sessions.clone());
        async move {
            for session in sessions.iter().cycle() {
                prompt(&server, session, "more").await;
                acknowledged.fetch_add(1, Ordering::SeqCst);
            }
        }
    });

    // Until writes were answered while a copy was made.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    let mut taken = 0;
    let (copy, before) = loop {
        let mut before = Vec::new();
        for session in &sessions {
            before.push(server.events(session).await);
        }
        let copy = place.path(&format!("copy-{taken}.db"));
        let began = acknowledged.load(Ordering::SeqCst);
        let (code, out, err) = place
            .run(&["--json", "backup", copy.to_str().unwrap()])
            .await;
        assert_eq!(code, 0, "{out}\n{err}");
        if acknowledged.load(Ordering::SeqCst) > began {
            break (copy, before);
        }
        assert!(
            tokio::time::Instant::now() < deadline,
            "nothing was written while a copy was made"
        );
        taken += 1;
    };
    load.abort();
    assert!(
        load.await
            .expect_err("it ends by nothing else")
            .is_cancelled()
    );

    let report = place.healthy(&copy).await;
    assert_eq!(report["sessions"], 4);
    let mut conn = open(&copy).await;
    for event in before.iter().flatten() {
        let held = text(
            &mut conn,
            &format!(
                "SELECT session || ' ' || seq || ' ' || type FROM event WHERE id = '{}'",
                event["id"].as_str().unwrap()
            ),
        )
        .await;
        let told = format!(
            "{} {} {}",
            event["session"].as_str().unwrap(),
            event["seq"],
            event["type"].as_str().unwrap()
        );
        assert_eq!(held, told);
    }
    conn.close().await.unwrap();
    let left: Vec<_> = std::fs::read_dir(place.folder.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.contains(".part"))
        .collect();
    assert!(left.is_empty(), "{left:?}");

    // It opens for writing too, and goes on with what ran.
    let server = Arc::into_inner(server).expect("the load has ended");
    server.kill().await;
    let again = Server::start(&copy, &place.config).await;
    for (session, before) in sessions.iter().zip(&before) {
        let now = again.events(session).await;
        assert_eq!(now[..before.len()], before[..]);
    }
    again.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_1_a_backup_overwrites_nothing_unless_told_to() {
    let place = Place::new("[agents.default]\ntoolboxes = []\n");
    let (code, _, err) = place.run(&["plugin", "list"]).await;
    assert_eq!(code, 0, "{err}");
    let copy = place.path("copy.db");
    let to = copy.to_str().unwrap();

    std::fs::write(&copy, "precious").unwrap();
    let (code, _, err) = place.run(&["backup", to]).await;
    assert_eq!(code, CONFLICT, "{err}");
    assert!(err.contains("copy.db") && err.contains("--force"), "{err}");
    assert_eq!(std::fs::read(&copy).unwrap(), b"precious");

    // A log that some other database left would be replayed into the copy.
    std::fs::remove_file(&copy).unwrap();
    let log = place.path("copy.db-wal");
    std::fs::write(&log, "a log").unwrap();
    let (code, _, err) = place.run(&["backup", to]).await;
    assert_eq!(code, CONFLICT, "{err}");
    assert!(err.contains("copy.db-wal") && !copy.exists(), "{err}");

    let (code, _, err) = place.run(&["backup", "--force", to]).await;
    assert_eq!(code, 0, "{err}");
    assert!(!log.exists());
    place.healthy(&copy).await;

    // The store itself is never a target, nor is one in use.
    let own = std::fs::read(&place.store).unwrap();
    for own in ["store.db", "store.db-wal", "store.db.lock"] {
        let own = place.path(own);
        let (code, _, err) = place
            .run(&["backup", "--force", own.to_str().unwrap()])
            .await;
        assert_eq!(code, CONFLICT, "{err}");
    }
    assert_eq!(std::fs::read(&place.store).unwrap(), own);
    let server = Server::start(&copy, &place.config).await;
    let (code, _, err) = place.run(&["backup", "--force", to]).await;
    assert_eq!(code, CONFLICT, "{err}");
    assert!(err.contains("in use"), "{err}");
    server.kill().await;

    let (code, _, err) = place
        .run(&["backup", place.path("no/where.db").to_str().unwrap()])
        .await;
    assert_ne!(code, 0, "{err}");
}

/// The design's words, which doctor names.
const INVARIANTS: [(&str, bool); 10] = [
    ("at most one live execution per session", true),
    (
        "every event that names an execution was written while that execution's claim held",
        true,
    ),
    ("seqs have no gap and no repeat", true),
    ("exactly one terminal per execution", true),
    (
        "exactly one result per tool call, and none before its call",
        true,
    ),
    (
        "every admitted input is pending, promoted once, or cancelled",
        true,
    ),
    ("a once effect starts at most once", true),
    (
        "rebuilding all projections from the log gives the same rows",
        true,
    ),
    (
        "what a client was told is durable is still there after a kill",
        false,
    ),
    (
        "no secret is in the log, in a guest's memory or in a log line",
        false,
    ),
];

#[track_caller]
fn names_all_as_kept(report: &Value) {
    assert_eq!(report["healthy"], true, "{report:#}");
    let lines = report["invariants"].as_array().unwrap();
    assert_eq!(lines.len(), 10);
    for ((n, (words, shown)), line) in (1..).zip(INVARIANTS).zip(lines) {
        assert_eq!(line["number"], n);
        assert_eq!(line["name"], words);
        assert_eq!(line["state"], if shown { "kept" } else { "not_shown" });
        assert_eq!(line["breaches"], json!([]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_2_a_healthy_store_is_healthy_while_it_works_and_after() {
    let (place, _outside) = Place::with_tools().await;
    let server = place.server().await;
    let mut sessions = Vec::new();
    for n in 0..4 {
        sessions.push(begin(&server, &format!("tag:live-{n} work")).await);
    }
    // As often as it takes until all is done: every look is at another moment.
    let deadline = tokio::time::Instant::now() + DEADLINE;
    loop {
        names_all_as_kept(&place.healthy(&place.store).await);
        let mut open = 0;
        for session in &sessions {
            open += usize::from(
                server.get(&format!("/sessions/{session}")).await.1["status"] != "idle",
            );
        }
        if open == 0 {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{open} never end");
    }
    let (code, out, err) = place.run(&["doctor"]).await;
    assert_eq!(code, 0, "{err}");
    for (words, shown) in INVARIANTS {
        let state = if shown {
            "kept"
        } else {
            "cannot be shown by a database"
        };
        assert!(out.contains(&format!("{words}: {state}")), "{out}");
    }
    assert!(err.is_empty(), "{err}");

    server.kill().await;
    let files = || {
        ["store.db", "store.db-wal", "store.db.lock"]
            .map(|name| std::fs::read(place.path(name)).ok())
    };
    let before = files();
    let report = place.healthy(&place.store).await;
    names_all_as_kept(&report);
    assert_eq!(report["sessions"], 4);
    assert!(report["events"].as_u64().unwrap() > 40, "{report:#}");
    assert!(before == files(), "doctor writes nothing");

    let (code, _, err) = place.run_on(&place.path("none.db"), &["doctor"]).await;
    assert_eq!(code, 3, "{err}");
}

/// A store in which every invariant that a database can show is kept, to be broken.
struct Specimen {
    place: Place,
    healthy: PathBuf,
    session: String,
    head: i64,
}

impl Specimen {
    async fn new() -> Self {
        let (place, _outside) = Place::with_tools().await;
        let server = place.server().await;
        let session = begin(&server, "tag:specimen work").await;
        server.idle(&session).await;
        begin(&server, "tag:other work").await;
        server.kill().await;
        let healthy = place.path("healthy.db");
        let (code, _, err) = place.run(&["backup", healthy.to_str().unwrap()]).await;
        assert_eq!(code, 0, "{err}");
        names_all_as_kept(&place.healthy(&healthy).await);
        let mut conn = open(&healthy).await;
        let head = number(
            &mut conn,
            &format!("SELECT head FROM session WHERE id = '{session}'"),
        )
        .await;
        conn.close().await.unwrap();
        Self {
            place,
            healthy,
            session,
            head,
        }
    }

    /// A copy to break.
    async fn copy(&self, name: &str) -> (PathBuf, SqliteConnection) {
        let file = self.place.path(&format!("{name}.db"));
        std::fs::copy(&self.healthy, &file).unwrap();
        let conn = open(&file).await;
        (file, conn)
    }

    /// Adds an event at the end of the log as a host that has gone mad would.
    async fn append(
        &self,
        conn: &mut SqliteConnection,
        kind: &str,
        data: &str,
        execution: Option<&str>,
    ) {
        let (session, n) = (&self.session, uuid::Uuid::now_v7());
        let execution = execution.map_or("NULL".into(), |id| format!("'{id}'"));
        sql(
            conn,
            &format!(
                "INSERT INTO event (session, seq, id, type, version, at, execution, data)
                 SELECT id, head + 1, '{n}', '{kind}', 1, updated_at, {execution}, {data}
                   FROM session WHERE id = '{session}';
                 UPDATE session SET head = head + 1, data = json_set(data, '$.head', head + 1)
                  WHERE id = '{session}';"
            ),
        )
        .await;
    }

    /// The invariant of this number is named as broken, in both forms, with the session and the place.
    #[track_caller]
    fn broken<'s>(
        &'s self,
        file: &'s Path,
        invariant: usize,
        place: Value,
    ) -> impl Future<Output = ()> + 's {
        let caller = std::panic::Location::caller();
        async move {
            let (code, report) = self.place.doctor(file).await;
            assert_eq!(code, DAMAGED, "{caller}: {report:#}");
            assert_eq!(report["healthy"], false, "{caller}");
            let line = &report["invariants"][invariant - 1];
            assert_eq!(line["state"], "broken", "{caller}: {report:#}");
            let breaches = line["breaches"].as_array().unwrap();
            let found = breaches.iter().find(|breach| {
                breach["session"] == *self.session
                    && place
                        .as_object()
                        .unwrap()
                        .iter()
                        .all(|(key, value)| breach[key] == *value)
            });
            assert!(found.is_some(), "{caller}: {place} is not in {breaches:#?}");

            let (code, out, err) = self.place.run_on(file, &["doctor"]).await;
            assert_eq!(code, DAMAGED, "{caller}: {err}");
            let words = format!("{}: broken", INVARIANTS[invariant - 1].0);
            assert!(
                out.contains(&words) && out.contains(&self.session),
                "{caller}: {out}"
            );
            assert!(
                err.contains("error:") && err.contains("hint:"),
                "{caller}: {err}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_3_each_broken_invariant_is_named_with_its_place() {
    let specimen = Specimen::new().await;
    let session = &specimen.session;
    let head = specimen.head;
    let of = |what: &str, rest: &str| {
        format!("SELECT {what} FROM event WHERE session = '{session}' AND {rest}")
    };
    let seq = |n: i64| json!({ "seq": n });
    let uuid = || uuid::Uuid::now_v7().to_string();

    let (file, mut conn) = specimen.copy("live").await;
    for _ in 0..2 {
        let data = format!(r#"'{{"execution":"{}","owner":"{}"}}'"#, uuid(), uuid());
        specimen
            .append(&mut conn, "execution.started", &data, None)
            .await;
    }
    conn.close().await.unwrap();
    specimen.broken(&file, 1, seq(head + 2)).await;

    let (file, mut conn) = specimen.copy("late").await;
    let ended = text(
        &mut conn,
        &of("data ->> '$.execution'", "type = 'execution.started'"),
    )
    .await;
    specimen
        .append(&mut conn, "session.released", "'{}'", Some(&ended))
        .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 2, seq(head + 1)).await;

    let (file, mut conn) = specimen.copy("gap").await;
    let gap = number(&mut conn, &of("max(seq)", "type = 'step.output'")).await;
    sql(
        &mut conn,
        &format!("DELETE FROM event WHERE session = '{session}' AND seq = {gap}"),
    )
    .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 3, seq(gap + 1)).await;

    let (file, mut conn) = specimen.copy("terminals").await;
    let data = format!(r#"'{{"execution":"{ended}"}}'"#);
    specimen
        .append(&mut conn, "execution.succeeded", &data, None)
        .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 4, seq(head + 1)).await;

    let (file, mut conn) = specimen.copy("no-terminal").await;
    let began = number(&mut conn, &of("seq", "type = 'execution.started'")).await;
    sql(
        &mut conn,
        &format!(
            "UPDATE event SET type = 'session.released', data = '{{}}'
              WHERE session = '{session}' AND type = 'execution.succeeded'"
        ),
    )
    .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 4, seq(began)).await;

    let (file, mut conn) = specimen.copy("results").await;
    sql(&mut conn, "DROP INDEX event_call_result").await;
    let result = text(&mut conn, &of("data", "type = 'call.settled' LIMIT 1")).await;
    let data = format!("'{}'", result.replace('\'', "''"));
    specimen
        .append(&mut conn, "call.settled", &data, None)
        .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 5, seq(head + 1)).await;

    let (file, mut conn) = specimen.copy("early-result").await;
    sql(&mut conn, "DROP TRIGGER event_call_result_after_call").await;
    let data = format!("json_set({data}, '$.result.call', 'never made')");
    specimen
        .append(&mut conn, "call.settled", &data, None)
        .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 5, seq(head + 1)).await;

    let (file, mut conn) = specimen.copy("twice-promoted").await;
    let data = text(&mut conn, &of("data", "type = 'input.promoted'")).await;
    specimen
        .append(&mut conn, "input.promoted", &format!("'{data}'"), None)
        .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 6, seq(head + 1)).await;

    let (file, mut conn) = specimen.copy("pending-again").await;
    sql(
        &mut conn,
        &format!(
            "UPDATE input SET status = 'pending', data = json_set(data, '$.status', 'pending')
              WHERE session = '{session}'"
        ),
    )
    .await;
    let input = text(
        &mut conn,
        &format!("SELECT id FROM input WHERE session = '{session}'"),
    )
    .await;
    conn.close().await.unwrap();
    let row = json!({ "row": format!("input {input}") });
    specimen.broken(&file, 6, row).await;

    let (file, mut conn) = specimen.copy("once").await;
    let once = text(
        &mut conn,
        &of(
            "data",
            "type = 'call.started' AND data ->> '$.effect' = 'once'",
        ),
    )
    .await;
    let data = format!("'{}'", once.replace('\'', "''"));
    specimen
        .append(&mut conn, "call.started", &data, None)
        .await;
    conn.close().await.unwrap();
    specimen.broken(&file, 7, seq(head + 1)).await;

    // Rows that do not follow from the log: another value, one too few, one too many, a column alone.
    let first = format!("(SELECT min(seq) FROM item WHERE session = '{session}')");
    let (file, mut conn) = specimen.copy("item").await;
    let item = number(&mut conn, &format!("SELECT {first}")).await;
    let item = format!("item {item}/0");
    conn.close().await.unwrap();
    std::fs::remove_file(&file).unwrap();
    for (name, change, row) in [
        (
            "changed",
            format!(
                "UPDATE item SET data = json_set(data, '$.at', 1)
                  WHERE session = '{session}' AND seq = {first}"
            ),
            item.clone(),
        ),
        (
            "missing",
            format!("DELETE FROM item WHERE session = '{session}' AND seq = {first}"),
            item.clone(),
        ),
        (
            "extra",
            format!(
                "INSERT INTO item (session, seq, n, is_message, bytes, data)
                 SELECT session, seq, 7, is_message, bytes, data FROM item
                  WHERE session = '{session}' AND seq = {first}"
            ),
            item.replace("/0", "/7"),
        ),
        (
            "column",
            format!("UPDATE session SET due = 1 WHERE id = '{session}'"),
            format!("session {session}"),
        ),
        (
            "nobody",
            format!("DELETE FROM session WHERE id = '{session}'"),
            "session".to_owned(),
        ),
    ] {
        let (file, mut conn) = specimen.copy(name).await;
        sql(&mut conn, &change).await;
        conn.close().await.unwrap();
        specimen.broken(&file, 8, json!({ "row": row })).await;

        // The log is enough to make them right again.
        let repair = ["--json", "doctor", "--rebuild"];
        let (code, out, err) = specimen.place.run_on(&file, &repair).await;
        assert_eq!(code, 0, "{name}: {out}\n{err}");
        assert!(err.contains(session.as_str()), "{err}");
        names_all_as_kept(&specimen.place.healthy(&file).await);
    }

    // A log that is broken is not made up for.
    let gap = specimen.place.path("gap.db");
    let (code, _, err) = specimen.place.run_on(&gap, &["doctor", "--rebuild"]).await;
    assert_eq!(code, DAMAGED, "{err}");
    assert!(err.contains("stay as they are"), "{err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_3_a_damaged_file_and_a_changed_schema_are_told() {
    let specimen = Specimen::new().await;
    let (file, mut conn) = specimen.copy("schema").await;
    sql(&mut conn, "DROP INDEX session_due").await;
    conn.close().await.unwrap();
    let (code, report) = specimen.place.doctor(&file).await;
    assert_eq!(code, DAMAGED, "{report:#}");
    assert_eq!(report["drift"], json!(["index session_due is missing"]));

    // What a newer build wrote is no damage; only its rows cannot be judged.
    let (file, mut conn) = specimen.copy("newer").await;
    specimen
        .append(&mut conn, "future.thing", "'{}'", None)
        .await;
    conn.close().await.unwrap();
    let report = specimen.place.healthy(&file).await;
    assert_eq!(report["not_compared"], 1);

    // A component whose bytes are no longer those that its digest names.
    let (file, mut conn) = specimen.copy("component").await;
    let digest = text(&mut conn, "SELECT min(digest) FROM plugin").await;
    sql(
        &mut conn,
        "UPDATE plugin SET bytes = CAST(bytes || x'00' AS BLOB)
          WHERE digest = (SELECT min(digest) FROM plugin)",
    )
    .await;
    conn.close().await.unwrap();
    let (code, report) = specimen.place.doctor(&file).await;
    assert_eq!(code, DAMAGED, "{report:#}");
    let told = report["problems"].to_string();
    assert!(
        told.contains(&digest) && told.contains("install it again"),
        "{told}"
    );

    // An index that does not agree with its table.
    let (file, mut conn) = specimen.copy("index").await;
    sql(
        &mut conn,
        "PRAGMA writable_schema = ON;
         UPDATE sqlite_schema SET sql = replace(sql, 'WHERE due', 'WHERE NOT due')
          WHERE name = 'session_due'",
    )
    .await;
    conn.close().await.unwrap();
    let (code, report) = specimen.place.doctor(&file).await;
    assert_eq!(code, DAMAGED, "{report:#}");
    assert!(
        !report["problems"].as_array().unwrap().is_empty(),
        "{report:#}"
    );

    // A page that holds something else.
    let (file, mut conn) = specimen.copy("page").await;
    let page = number(
        &mut conn,
        "SELECT rootpage FROM sqlite_schema WHERE name = 'item'",
    )
    .await;
    let bytes = number(&mut conn, "PRAGMA page_size").await;
    conn.close().await.unwrap();
    let mut content = std::fs::read(&file).unwrap();
    let at = usize::try_from((page - 1) * bytes).unwrap();
    content[at..at + 512].fill(0xa5);
    std::fs::write(&file, content).unwrap();
    let (code, report) = specimen.place.doctor(&file).await;
    assert_eq!(code, DAMAGED, "{report:#}");
    assert!(
        !report["problems"].as_array().unwrap().is_empty(),
        "{report:#}"
    );
}

/// The same component under another digest: a section that nobody reads tells them apart.
fn variant(folder: &Path, n: u8) -> (PathBuf, String) {
    let mut bytes = PARROT.to_vec();
    bytes.extend_from_slice(&[0, 6, 4, b'n', b'o', b't', b'e', n]);
    let file = folder.join(format!("variant-{n}.wasm"));
    std::fs::write(&file, &bytes).unwrap();
    (file, mainstay_core::id::digest(&bytes))
}

fn digests(collected: &Value) -> Vec<String> {
    let mut digests: Vec<String> = collected["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|component| component["digest"].as_str().unwrap().to_owned())
        .collect();
    digests.sort();
    digests
}

fn sorted(digests: &[&String]) -> Vec<String> {
    let mut all: Vec<String> = digests.iter().map(|digest| (*digest).clone()).collect();
    all.sort();
    all
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_4_gc_removes_what_nothing_needs_and_no_other() {
    let place = Place::new(
        "[agents.default]\ntoolboxes = []\nprovider = \"mine\"\nmodel = \"parrot\"\n\
         [providers.mine]\nplugin = \"mine\"\n",
    );
    let folder = place.folder.path();
    let variants: Vec<(PathBuf, String)> = (1..=4).map(|n| variant(folder, n)).collect();
    let [used, running, named, spare] = [0, 1, 2, 3].map(|n: usize| &variants[n].1);
    let file = |n: usize| variants[n].0.to_str().unwrap();
    let install = async |n: usize, alias: &str| {
        place
            .json(&["plugin", "install", file(n), "--alias", alias])
            .await;
    };
    // Named once, and never used.
    install(3, "spare").await;
    install(0, "spare").await;
    // A step has run it.
    install(0, "mine").await;
    let server = place.server().await;
    let first = begin(&server, "say hello").await;
    server.idle(&first).await;
    // A step is in the middle of it.
    install(1, "mine").await;
    install(1, "spare").await;
    let second = begin(
        &server,
        "slow 20 one two three four five six seven eight nine ten",
    )
    .await;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !server
        .events(&second)
        .await
        .iter()
        .any(|event| event["type"] == "step.started")
    {
        assert!(tokio::time::Instant::now() < deadline, "no step begins");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    server.kill().await;
    install(2, "mine").await;
    install(2, "spare").await;

    // Bodies: one that an input names, one that nothing does.
    let (kept, lost) = ("a1".repeat(32), "b2".repeat(32));
    let mut conn = open(&place.store).await;
    sql(
        &mut conn,
        &format!("INSERT INTO blob VALUES ('{kept}', zeroblob(1000)), ('{lost}', zeroblob(3000))"),
    )
    .await;
    sql(
        &mut conn,
        &format!(
            "UPDATE event SET data = json_set(data, '$.content.parts[1]',
                 json('{{\"media\":{{\"digest\":\"{kept}\",\"media_type\":\"text/plain\",\"size\":1000}}}}'))
              WHERE session = '{first}' AND type = 'input.admitted'"
        ),
    )
    .await;
    let blobs = "SELECT group_concat(digest) FROM (SELECT digest FROM blob ORDER BY digest)";

    let engine = std::fs::read_dir(place.path("cache"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .next()
        .expect("compiled code");
    let code = |digest: &str| engine.join(format!("{digest}.cwasm")).exists();
    let foreign = place.path("cache/0123456789abcdef");
    std::fs::create_dir(&foreign).unwrap();
    std::fs::write(foreign.join(format!("{named}.cwasm")), [0; 100]).unwrap();
    let installed = async || {
        let (_, out, _) = place.run(&["--json", "plugin", "list"]).await;
        [used, running, named, spare].map(|digest| out.contains(digest.as_str()))
    };
    assert_eq!(installed().await, [true; 4]);
    assert!(variants.iter().all(|(_, digest)| code(digest)));

    // A dry run tells and removes nothing, however often.
    for _ in 0..2 {
        let told = place.json(&["gc", "--dry-run", "--keep", "0s"]).await;
        assert_eq!(told["dry_run"], true);
        assert_eq!(digests(&told), sorted(&[used, spare]));
        assert_eq!(
            (&told["blobs"], &told["blob_bytes"]),
            (&json!(1), &json!(3000))
        );
        assert_eq!(told["code_files"], 3);
        let sum: u64 = ["code_bytes", "blob_bytes"]
            .map(|key| told[key].as_u64().unwrap())
            .iter()
            .sum();
        let size = PARROT.len() as u64 + 8;
        assert_eq!(told["bytes"].as_u64().unwrap(), sum + 2 * size);
    }
    assert_eq!(installed().await, [true; 4]);
    assert!(variants.iter().all(|(_, digest)| code(digest)) && foreign.exists());
    assert_eq!(text(&mut conn, blobs).await, format!("{kept},{lost}"));

    // What a step used lately is retained; then only what a name and the open step need.
    let gone = place.json(&["gc", "--keep", "1d"]).await;
    assert_eq!(digests(&gone), sorted(&[spare]));
    assert_eq!(
        (&gone["blobs"], &gone["code_files"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(installed().await, [true, true, true, false]);
    assert_eq!(text(&mut conn, blobs).await, kept);
    assert!(!foreign.exists() && !code(spare) && code(used));
    let gone = place.json(&["gc", "--keep", "0s"]).await;
    assert_eq!(digests(&gone), sorted(&[used]));
    assert_eq!(installed().await, [false, true, true, false]);
    assert!(!code(used) && code(running) && code(named));
    conn.close().await.unwrap();

    // The open step finds what it was decided under, and nothing needs that once it is settled.
    let server = place.server().await;
    let session = server.idle(&second).await;
    assert_eq!(session["status"], "idle", "{session}");
    let events = server.events(&second).await;
    assert!(
        !events
            .iter()
            .any(|event| event["type"] == "execution.failed"),
        "{events:#?}"
    );
    let told = place.json(&["gc", "--dry-run"]).await;
    assert_eq!(digests(&told), Vec::<String>::new(), "it was used just now");
    let (code_, out, err) = place.run(&["gc", "--keep", "0s"]).await;
    assert_eq!(code_, 0, "{err}");
    assert!(
        out.contains("1 components") && err.contains("removed"),
        "{out}\n{err}"
    );
    assert_eq!(installed().await, [false, false, true, false]);
    assert!(!code(running) && code(named));

    // What is left works.
    let third = begin(&server, "say still here").await;
    assert_eq!(server.idle(&third).await["status"], "idle");
    let (status, problem) = server.post("/gc", json!({ "dry": true })).await;
    assert_eq!(status, 400, "{problem}");
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_18_what_is_read_beside_a_server_is_what_is_read_without_one() {
    let place = Place::new("[agents.default]\ntoolboxes = []\n");
    let server = place.server().await;
    let session = begin(&server, "say one").await;
    server.idle(&session).await;

    // Writes go through the server: it knows of them at once, and the file has one owner.
    let (code, out, err) = place.run(&["run", "--session", &session, "say two"]).await;
    assert_eq!((code, out.trim()), (0, "two"), "{err}");
    let events = server.events(&session).await;
    assert_eq!(
        events
            .iter()
            .filter(|event| event["type"] == "input.promoted")
            .count(),
        2
    );
    prompt(
        &server,
        &session,
        "slow 200 one two three four five six seven eight nine ten eleven twelve",
    )
    .await;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while server.get(&format!("/sessions/{session}")).await.1["status"] != "running" {
        assert!(tokio::time::Instant::now() < deadline, "it never runs");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let told = place.json(&["session", "interrupt", &session]).await;
    assert_eq!(told["was_busy"], true);
    server.idle(&session).await;
    let (code, _, err) = place.run(&["session", "resume", &session]).await;
    assert_eq!(code, 0, "{err}");

    let reads: [&[&str]; 6] = [
        &["--json", "session", "list"],
        &["--json", "session", "show", &session],
        &["--json", "session", "log", &session],
        &["--json", "session", "log", "--after", "5", &session],
        &["--json", "plugin", "list"],
        &["--json", "doctor"],
    ];
    let read = async || {
        let mut all = Vec::new();
        for args in reads {
            let (code, out, err) = place.run(args).await;
            assert_eq!(code, 0, "{args:?}: {err}");
            assert!(!out.is_empty(), "{args:?}");
            all.push(out);
        }
        all
    };
    let beside = read().await;
    server.kill().await;
    let alone = read().await;
    for ((args, beside), alone) in reads.iter().zip(beside).zip(alone) {
        assert_eq!(beside, alone, "{args:?}");
    }
}
