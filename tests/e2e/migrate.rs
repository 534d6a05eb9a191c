//! A store of sessions in every state moves from a file to a database, by a command that is killed in
//! the middle and run again. What was alive goes on there, and everything moves back.

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use mainstay_test_guests::{PLANNER, successor};
use mainstay_test_support::postgres;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use support::{DEADLINE, Server, log, mainstay};
use tokio::process::Command;

const USAGE: i32 = 2;
const CONFLICT: i32 = 4;

/// Sessions that only make the move take a while.
const FILLERS: usize = 200;
const LOOK: Duration = Duration::from_millis(5);

struct World {
    folder: tempfile::TempDir,
    config: PathBuf,
    file: PathBuf,
    url: String,
}

impl World {
    /// `None` where Postgres is not installed.
    fn new() -> Option<Self> {
        let url = postgres::server()?.database();
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("planner.wasm"), PLANNER).unwrap();
        let config = folder.path().join("mainstay.toml");
        let text = r#"
[agents.default]
runner = "planner"
toolboxes = []

[agents.mine]
runner = "mine"
toolboxes = []

[plugins.planner]
source = "planner.wasm"

[node]
poll-every = "100ms"
flush-every = "50ms"
"#;
        std::fs::write(&config, text).unwrap();
        Some(Self {
            config,
            file: folder.path().join("store.db"),
            folder,
            url,
        })
    }

    fn command(&self, store: &Path) -> Command {
        let mut command = mainstay(store, &self.config);
        command
            .env("HOME", self.folder.path())
            .env_remove("XDG_DATA_HOME");
        command
    }

    async fn serve(&self, store: &Path) -> Server {
        Server::run(self.command(store)).await
    }

    fn migrate(&self, from: &str, to: &str) -> Command {
        let mut command = self.command(&self.file);
        command.args(["--json", "migrate", "--from", from, "--to", to]);
        command
    }

    async fn migrated(&self, from: &str, to: &str) -> Value {
        let (code, out, err) = end(self.migrate(from, to)).await;
        assert_eq!(code, 0, "{out}\n{err}");
        let told: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(told["from_healthy"], true, "{told}");
        assert_eq!(told["to_healthy"], true, "{told}");
        told
    }

    /// How many sessions the database has; none before it has a schema.
    async fn arrived(&self) -> i64 {
        let mut conn = PgConnection::connect(&self.url).await.unwrap();
        sqlx::query_scalar("SELECT count(*) FROM session")
            .fetch_one(&mut conn)
            .await
            .unwrap_or(0)
    }
}

async fn end(mut command: Command) -> (i32, String, String) {
    let output = tokio::time::timeout(DEADLINE, command.output()).await;
    let output = output.expect("the command ends").unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    let code = output.status.code().unwrap_or(-1);
    (code, text(output.stdout), text(output.stderr))
}

async fn create(server: &Server, agent: &str) -> String {
    let (status, made) = server.post("/sessions", json!({ "agent": agent })).await;
    assert!(status < 300, "{made}");
    made["id"].as_str().unwrap().to_owned()
}

async fn admit(server: &Server, session: &str, input: Value) {
    let path = format!("/sessions/{session}/inputs");
    let (status, told) = server.post(&path, input).await;
    assert_eq!(status, 202, "{told}");
}

async fn begin(server: &Server, agent: &str, prompt: &str) -> String {
    let session = create(server, agent).await;
    admit(server, &session, json!({ "text": prompt })).await;
    session
}

/// Waits until the session shows what fits.
async fn until(server: &Server, session: &str, fits: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let (_, shown) = server.get(&format!("/sessions/{session}")).await;
        if fits(&shown) {
            return shown;
        }
        assert!(Instant::now() < deadline, "it never comes: {shown:#}");
        tokio::time::sleep(LOOK).await;
    }
}

async fn said(server: &Server, session: &str) -> String {
    let path = format!("/sessions/{session}/messages");
    server.get(&path).await.1.to_string()
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_12_a_store_moves_to_postgres_under_kills_goes_on_there_and_moves_back() {
    let Some(world) = World::new() else { return };
    let server = world.serve(&world.file).await;
    let mine = successor(r#"{"name":"mine"}"#);
    let put = server
        .http
        .post(format!("{}/v1/plugins?alias=mine", server.address))
        .header("content-type", "application/wasm")
        .body(mine);
    assert_eq!(put.send().await.unwrap().status().as_u16(), 201);

    let long = format!("say {}", "a long tale ".repeat(60));
    let idle = begin(&server, "default", &long).await;
    let own = begin(&server, "mine", "hello").await;
    for session in [&idle, &own] {
        server.idle(session).await;
    }
    let collect = json!({ "bodies_ms": 0 });
    let (status, collected) = server.post("/gc", collect).await;
    assert_eq!(status, 200, "{collected}");
    assert!(collected["bodies"].as_u64().unwrap() > 0, "{collected}");
    let waits = create(&server, "default").await;
    let signal = |name: &str| json!({ "signal": { "name": name } });
    admit(&server, &waits, signal("go")).await;
    let plan = "wait signal first\nwait signal go\nsay both came";
    admit(&server, &waits, json!({ "text": plan })).await;
    let family = "spawn a,b wait signal go; say all of it\nwait children a,b\nreport";
    let parent = begin(&server, "default", family).await;
    for session in [&waits, &parent] {
        until(&server, session, |shown| shown["status"] == "waiting").await;
    }
    for _ in 0..FILLERS {
        create(&server, "default").await;
    }
    let words = "word ".repeat(60);
    let orphan = begin(
        &server,
        "default",
        &format!("slow 50 {words}\nthen\nsay over"),
    )
    .await;
    while count(&server.events(&orphan).await, "step.output") == 0 {
        tokio::time::sleep(LOOK).await;
    }
    let mut before = Vec::new();
    for session in [&idle, &own, &waits, &parent, &orphan] {
        before.push((session.clone(), server.events(session).await));
    }
    let (from, to) = (
        format!("sqlite:{}", world.file.display()),
        world.url.clone(),
    );

    let (code, _, err) = end(world.migrate(&from, &from)).await;
    assert_eq!(code, USAGE, "{err}");
    let (code, _, err) = end(world.migrate(&from, &to)).await;
    assert_eq!(code, CONFLICT, "{err}");
    assert!(err.contains("store.db"), "{err}");
    server.kill().await;

    // Cut off when some are there and some are not.
    let mut cut = world.migrate(&from, &to);
    let mut cut = cut
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + DEADLINE;
    while world.arrived().await == 0 {
        assert!(Instant::now() < deadline, "nothing is moved");
        tokio::time::sleep(LOOK).await;
    }
    cut.kill().await.unwrap();
    let arrived = world.arrived().await;
    let told = world.migrated(&from, &to).await;
    let all = told["sessions"].as_i64().unwrap();
    assert!(
        arrived > 0 && arrived < all,
        "{arrived} of {all} were there"
    );
    // One more may have been on its way.
    let held = told["held"].as_i64().unwrap();
    assert!(held >= arrived && held < all, "{told}");
    assert_eq!(told["new"].as_i64().unwrap(), all - held, "{told}");
    let again = world.migrated(&from, &to).await;
    assert_eq!(again["held"].as_i64().unwrap(), all, "{again}");

    let server = world.serve(Path::new(&world.url)).await;
    let (code, _, err) = end(world.migrate(&to, &from)).await;
    assert_eq!(code, CONFLICT, "{err}");
    for (session, events) in &before {
        let now = server.events(session).await;
        assert_eq!(now[..events.len()], events[..], "{session}");
    }
    server.idle(&orphan).await;
    admit(&server, &waits, signal("first")).await;
    let (_, shown) = server.get(&format!("/sessions/{parent}")).await;
    let children = shown["children"].as_array().expect("children");
    assert_eq!(children.len(), 2, "{shown}");
    for child in children {
        admit(&server, child["session"].as_str().unwrap(), signal("go")).await;
    }
    admit(&server, &own, json!({ "text": "and again" })).await;
    admit(&server, &idle, json!({ "text": "say more" })).await;
    for (session, turns) in [
        (&orphan, 1),
        // The first when the signal came that nobody waited for.
        (&waits, 2),
        (&parent, 1),
        (&own, 2),
        (&idle, 2),
    ] {
        let done = |shown: &Value| shown["status"] == "idle";
        until(&server, session, done).await;
        let events = server.events(session).await;
        log::check(&events);
        assert_eq!(
            count(&events, "turn.ended"),
            turns,
            "{session}: {events:#?}"
        );
    }
    assert!(said(&server, &waits).await.contains("both came"));
    assert!(said(&server, &idle).await.contains("a long tale"));
    let mut after = Vec::new();
    for (session, _) in &before {
        after.push((session.clone(), server.events(session).await));
    }
    server.kill().await;

    // The file has only what was there before; what has come since is carried on.
    let back = world.migrated(&to, &from).await;
    assert_eq!(back["conflicts"], json!([]), "{back}");
    assert!(back["grown"].as_u64().unwrap() >= 5, "{back}");
    let server = world.serve(&world.file).await;
    for (session, events) in &after {
        assert_eq!(&server.events(session).await, events, "{session}");
    }
    server.kill().await;
}
