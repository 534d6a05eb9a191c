//! Several real processes on one Postgres: any node admits, any node runs, any node's clients follow,
//! and a node's death costs a lease.

mod support;

#[path = "nodes/deploy.rs"]
mod deploy;
#[path = "nodes/grace.rs"]
mod grace;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use mainstay_test_guests::successor;
use mainstay_test_support::postgres;
use serde_json::{Value, json};
use sqlx::Connection as _;
use support::{DEADLINE, Server, log, mainstay};

/// A database of nodes, each with a home of its own.
struct World {
    folder: tempfile::TempDir,
    url: String,
    config: PathBuf,
}

impl World {
    /// `None` where Postgres is not installed.
    fn new() -> Option<Self> {
        let url = postgres::server()?.database();
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("mainstay.toml");
        let text = r#"
[agents.default]
provider = "parrot"
model = "parrot"

[agents.mine]
runner = "mine"
provider = "parrot"
model = "parrot"

[agents.bound]
provider = "own"
model = "parrot"

[providers.own]
plugin = "own-parrot"

[node]
lease = "3s"
poll-every = "200ms"
"#;
        std::fs::write(&config, text).unwrap();
        Some(Self {
            folder,
            url,
            config,
        })
    }

    async fn node(&self, name: &str) -> Server {
        let home = self.folder.path().join(name);
        std::fs::create_dir_all(&home).unwrap();
        let mut command = mainstay(Path::new(&self.url), &self.config);
        command
            .env("HOME", &home)
            .env_remove("XDG_DATA_HOME")
            .env_remove("XDG_CONFIG_HOME");
        Server::run(command).await
    }
}

async fn session(node: &Server) -> String {
    let (status, session) = node.post("/sessions", json!({})).await;
    assert!(status < 300, "{session}");
    session["id"].as_str().unwrap().to_owned()
}

async fn prompt(node: &Server, session: &str, text: &str, delivery: &str) {
    let inputs = format!("/sessions/{session}/inputs");
    let body = json!({ "text": text, "delivery": delivery });
    let (status, told) = node.post(&inputs, body).await;
    assert_eq!(status, 202, "{told}");
}

/// Waits until the log of a session has an event that fits, and gives the log.
async fn seen(node: &Server, session: &str, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let events = node.events(session).await;
        if events.iter().any(&fits) {
            return events;
        }
        assert!(Instant::now() < deadline, "it never comes: {events:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Who ran a session, in the order of its executions.
fn owners(events: &[Value]) -> Vec<String> {
    let started = events.iter().filter(|e| e["type"] == "execution.started");
    started
        .map(|e| e["data"]["owner"].as_str().unwrap().to_owned())
        .collect()
}

fn ends(events: &[Value]) -> Vec<&Value> {
    let kinds = [
        "execution.succeeded",
        "execution.failed",
        "execution.interrupted",
    ];
    let is_end = |e: &&Value| kinds.contains(&e["type"].as_str().unwrap());
    events.iter().filter(is_end).collect()
}

/// A turn that takes some seconds.
const SLOW: &str = "slow 100 one two three four five six seven eight nine ten eleven twelve \
thirteen fourteen fifteen sixteen seventeen eighteen nineteen twenty";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_1_sessions_prompted_at_either_node_finish_and_both_run_some() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let mut sessions = Vec::new();
    for n in 0..100 {
        // Made at one and prompted at the other, so that nothing of it is local.
        let (made, asked) = if n % 2 == 0 { (&a, &b) } else { (&b, &a) };
        let id = session(made).await;
        prompt(asked, &id, "say hello\nthen\nsay again", "queue").await;
        sessions.push(id);
    }
    let mut ran = BTreeSet::new();
    for id in &sessions {
        a.idle(id).await;
        let events = b.events(id).await;
        log::check(&events);
        assert_eq!(events, a.events(id).await);
        let ended = events.iter().filter(|e| e["type"] == "turn.ended").count();
        assert_eq!(ended, 1, "{events:#?}");
        ran.extend(owners(&events));
    }
    assert_eq!(ran.len(), 2, "both nodes ran some: {ran:?}");
    a.kill().await;
    b.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_2_what_ran_on_a_node_that_was_killed_finishes_on_the_other() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let mut sessions = Vec::new();
    for _ in 0..20 {
        let id = session(&a).await;
        prompt(&a, &id, SLOW, "queue").await;
        sessions.push(id);
    }
    for id in &sessions {
        seen(&b, id, |event| event["type"] == "step.started").await;
    }
    a.kill().await;
    for id in &sessions {
        b.idle(id).await;
        let events = b.events(id).await;
        log::check(&events);
        let owners: BTreeSet<String> = owners(&events).into_iter().collect();
        assert_eq!(owners.len(), 2, "{id} was run by {owners:?}");
        let crashes = ends(&events)
            .into_iter()
            .filter(|e| e["data"]["reason"] == "crash")
            .count();
        assert_eq!(crashes, 1, "{id}");
        let ended = events.iter().filter(|e| e["type"] == "turn.ended").count();
        assert_eq!(ended, 1, "{id}");
    }
    b.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_4_a_steer_posted_to_another_node_enters_where_the_session_runs() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let id = session(&a).await;
    prompt(&a, &id, SLOW, "queue").await;
    seen(&b, &id, |event| event["type"] == "step.started").await;
    prompt(&b, &id, "say steered", "steer").await;
    a.idle(&id).await;
    let events = b.events(&id).await;
    log::check(&events);
    assert_eq!(owners(&events).len(), 1, "one execution, A's, took both");
    let promoted = events.iter().filter(|e| e["type"] == "input.promoted");
    assert_eq!(promoted.count(), 2);
    let (_, messages) = b.get(&format!("/sessions/{id}/messages")).await;
    assert!(messages.to_string().contains("steered"), "{messages}");
    a.kill().await;
    b.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_5_an_interrupt_through_another_node_stops_it_with_one_terminal() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let id = session(&a).await;
    // Longer than the test may take.
    let words = "word ".repeat(4000);
    prompt(&a, &id, &format!("slow 100 {words}"), "queue").await;
    seen(&b, &id, |event| event["type"] == "step.output").await;
    let (status, answer) = b
        .post(&format!("/sessions/{id}/interrupt"), json!({}))
        .await;
    assert!(status < 300, "{answer}");
    b.idle(&id).await;
    let events = a.events(&id).await;
    log::check(&events);
    let ends = ends(&events);
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["data"]["reason"], "user");
    a.kill().await;
    b.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_3_a_deploy_hands_over_at_once_and_counts_no_attempt() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let id = session(&a).await;
    prompt(&a, &id, &format!("{SLOW}\nthen\nsay over"), "queue").await;
    seen(&b, &id, |event| event["type"] == "step.output").await;
    let mut a = a;
    let pid = rustix::process::Pid::from_raw(a.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    tokio::time::timeout(DEADLINE, a.child.wait())
        .await
        .expect("it ends")
        .unwrap();
    b.idle(&id).await;
    let events = b.events(&id).await;
    log::check(&events);
    assert!(
        events.iter().all(|e| e["data"]["reason"] != "crash"),
        "{events:#?}"
    );
    let (_, shown) = b.get(&format!("/sessions/{id}")).await;
    assert_eq!(shown["attempts"].as_u64().unwrap_or(0), 0, "{shown}");
    b.kill().await;
}

/// The nodes as one of them lists them, by their ids.
async fn nodes(node: &Server) -> Vec<Value> {
    let (status, page) = node.get("/nodes").await;
    assert_eq!(status, 200, "{page}");
    page["items"].as_array().unwrap().clone()
}

/// Which of the nodes in a list a server is.
fn which<'n>(nodes: &'n [Value], server: &Server) -> &'n Value {
    let is = |node: &&Value| node["address"] == server.address.as_str();
    nodes.iter().find(is).expect("it has a row")
}

/// Waits until a node is listed as that.
async fn listed(at: &Server, id: &Value, state: &str) -> Vec<Value> {
    let deadline = Instant::now() + DEADLINE;
    loop {
        let nodes = nodes(at).await;
        let found = nodes.iter().find(|node| node["id"] == *id);
        if found.is_some_and(|node| node["state"] == state) {
            return nodes;
        }
        assert!(Instant::now() < deadline, "never {state}: {nodes:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// What `mainstay node …` gives at a node: whether it went well, and its lines.
async fn node_command(world: &World, at: &Server, args: &[&str]) -> (bool, Vec<Value>, String) {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command
        .args(["--server", &at.address, "--json", "node"])
        .args(args)
        .env("HOME", world.folder.path())
        .env("NO_PROXY", "127.0.0.1");
    let done = command.output().await.unwrap();
    let lines = String::from_utf8(done.stdout).unwrap();
    let lines = lines
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let said = String::from_utf8(done.stderr).unwrap();
    (done.status.success(), lines.collect(), said)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_7_three_nodes_of_which_one_was_killed_are_listed() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let c = world.node("c").await;
    let id = session(&a).await;
    let words = "word ".repeat(4000);
    prompt(&a, &id, &format!("slow 100 {words}"), "queue").await;
    let owner = owners(&seen(&b, &id, |event| event["type"] == "step.output").await).remove(0);

    // Each has told of itself before it answers for long.
    let deadline = Instant::now() + DEADLINE;
    let all = loop {
        let all = nodes(&b).await;
        if all.len() == 3 {
            break all;
        }
        assert!(Instant::now() < deadline, "{all:#?}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    for (server, claims) in [(&a, 1), (&b, 0), (&c, 0)] {
        let node = which(&all, server);
        assert_eq!(node["state"], "live");
        assert_eq!(node["claims"], claims, "{node}");
        assert_eq!(node["capacity"], 1024);
        assert_eq!(node["pid"], server.child.id().unwrap());
        assert!(node["started_at"].as_u64() <= node["seen_at"].as_u64());
        assert_eq!(
            node["expires_at"].as_u64().unwrap() - node["seen_at"].as_u64().unwrap(),
            3_000
        );
    }
    assert_eq!(which(&all, &a)["id"], owner.as_str());

    let killed = which(&all, &c)["id"].clone();
    c.kill().await;
    let after = listed(&a, &killed, "gone").await;
    let gone = after.iter().find(|node| node["id"] == killed).unwrap();
    // Not before its lease had run out.
    assert!(gone["stopped_at"].is_null());
    for server in [&a, &b] {
        assert_eq!(which(&after, server)["state"], "live");
    }
    let (well, lines, said) = node_command(&world, &b, &["list"]).await;
    assert!(well, "{said}");
    let states: Vec<&str> = lines
        .iter()
        .map(|node| node["state"].as_str().unwrap())
        .collect();
    assert_eq!(states, ["live", "live", "gone"]);
    a.kill().await;
    b.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_3_a_node_that_is_asked_to_drain_through_another_hands_over_and_ends() {
    let Some(world) = World::new() else { return };
    let (mut a, b) = (world.node("a").await, world.node("b").await);
    let id = session(&a).await;
    prompt(&a, &id, &format!("{SLOW}\nthen\nsay over"), "queue").await;
    let owner = owners(&seen(&b, &id, |event| event["type"] == "step.output").await).remove(0);
    let (well, _, said) = node_command(&world, &b, &["drain", &owner]).await;
    assert!(well, "{said}");
    let status = tokio::time::timeout(DEADLINE, a.child.wait()).await;
    assert!(status.expect("it ends").unwrap().success());
    b.idle(&id).await;
    let events = b.events(&id).await;
    log::check(&events);
    let ran = owners(&events);
    assert_eq!(ran[0], owner);
    assert!(
        ran.len() > 1 && ran[1..].iter().all(|other| *other != owner),
        "{ran:?}"
    );
    assert!(events.iter().all(|e| e["data"]["reason"] != "crash"));
    let (_, shown) = b.get(&format!("/sessions/{id}")).await;
    assert_eq!(shown["attempts"].as_u64().unwrap_or(0), 0, "{shown}");

    // It said that it ended, and who asks again is told so.
    let owner = Value::from(owner);
    let nodes = listed(&b, &owner, "stopped").await;
    assert_eq!(which(&nodes, &b)["state"], "live");
    let unknown = "01890a5d-ac96-774b-bcce-b302099a8057";
    for (id, expected, kind) in [
        (owner.as_str().unwrap(), 409, "node-over"),
        (unknown, 404, "node-not-found"),
    ] {
        let path = format!("/nodes/{id}/drain");
        let (status, problem) = b.post(&path, json!({})).await;
        assert_eq!(status, expected, "{problem}");
        assert_eq!(problem["type"], format!("urn:mainstay:problem:{kind}"));
    }
    let (well, _, said) = node_command(&world, &b, &["drain", owner.as_str().unwrap()]).await;
    assert!(!well && said.contains("has stopped"), "{said}");
    b.kill().await;
}

/// What a client that follows a session at a node has been shown.
#[derive(Default)]
struct Watched {
    /// The answer as it came: live where that was first.
    shown: String,
    /// Of it, what is not stored yet.
    ahead: String,
    stored: String,
    live: usize,
}

impl Watched {
    /// One event of the stream. True at the end of the turn.
    fn told(&mut self, kind: &str, data: &Value) -> bool {
        match kind {
            "live" if data["type"] == "text" => {
                let text = data["text"].as_str().unwrap();
                self.live += 1;
                self.shown.push_str(text);
                self.ahead.push_str(text);
            }
            "step.output" => {
                for piece in data["data"]["pieces"].as_array().unwrap() {
                    let Some(text) = piece["text"].as_str() else {
                        continue;
                    };
                    self.stored.push_str(text);
                    if let Some(rest) = self.ahead.strip_prefix(text) {
                        self.ahead = rest.to_owned();
                    } else {
                        let rest = text.strip_prefix(self.ahead.as_str());
                        self.shown
                            .push_str(rest.expect("what came live is what is stored"));
                        self.ahead.clear();
                    }
                }
            }
            _ => {}
        }
        kind == "turn.ended"
    }
}

/// Follows a session at a node until its turn ends.
async fn watch(node: &Server, session: &str) -> Watched {
    let url = format!("{}/v1/sessions/{session}/events", node.address);
    let request = node.http.get(url).header("accept", "text/event-stream");
    let mut answer = request.send().await.unwrap();
    let (mut watched, mut buffer) = (Watched::default(), Vec::new());
    loop {
        let chunk = tokio::time::timeout(DEADLINE, answer.chunk()).await;
        let chunk = chunk.expect("it goes on").unwrap().expect("it is open");
        buffer.extend(chunk);
        while let Some(end) = buffer.windows(2).position(|two| two == b"\n\n") {
            let event = String::from_utf8(buffer.drain(..end + 2).collect()).unwrap();
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name));
            if let (Some(kind), Some(data)) = (field("event: "), field("data: "))
                && watched.told(kind, &serde_json::from_str(data).unwrap())
            {
                return watched;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn live_text_of_a_session_that_runs_elsewhere_comes_before_it_is_stored() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let id = session(&a).await;
    let words: String = (0..150).map(|n| format!("wörd{n} ")).collect();
    prompt(&a, &id, &format!("slow 60 {words}"), "queue").await;
    let watched = watch(&b, &id).await;
    assert!(watched.live > 10, "{} live events", watched.live);
    assert_eq!(watched.shown, watched.stored);
    assert_eq!(watched.stored.split_whitespace().count(), 150);
    assert_eq!(owners(&b.events(&id).await).len(), 1);
    a.kill().await;
    b.kill().await;
}

/// Installs a component at a node. Gives its digest.
async fn install(node: &Server, alias: &str, component: Vec<u8>) -> String {
    let answer = node
        .http
        .post(format!("{}/v1/plugins?alias={alias}", node.address))
        .header("content-type", "application/wasm")
        .body(component)
        .send()
        .await
        .unwrap();
    assert_eq!(answer.status().as_u16(), 201);
    let plugin: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
    plugin["digest"].as_str().unwrap().to_owned()
}

/// The runner that decided last.
fn decided_by(events: &[Value]) -> String {
    let last = events.iter().rev().find_map(|event| {
        let data = &event["data"];
        let decided = [
            &data["runner"]["digest"],
            &data["decided"]["runner"]["digest"],
        ];
        decided.iter().find_map(|digest| digest.as_str())
    });
    last.expect("a runner decided").to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_8_a_component_loaded_at_one_node_runs_and_moves_at_the_other() {
    let Some(world) = World::new() else { return };
    let (a, b) = (world.node("a").await, world.node("b").await);
    let (first, second) = (r#"{"name":"first"}"#, r#"{"name":"second"}"#);
    let first = install(&a, "mine", successor(first)).await;
    let (status, made) = b.post("/sessions", json!({ "agent": "mine" })).await;
    assert!(status < 300, "{made}");
    let id = made["id"].as_str().unwrap();
    let compiled = || {
        let cache = world.folder.path().join("b/.local/share/mainstay/cache");
        let files = walk(&cache).into_iter();
        files.filter(|file| file.contains(&first)).count()
    };
    for _ in 0..2 {
        prompt(&b, id, "hello", "queue").await;
        b.idle(id).await;
        assert_eq!(decided_by(&b.events(id).await), first);
        assert_eq!(compiled(), 1, "{:?}", walk(world.folder.path()));
    }
    let second = install(&a, "mine", successor(second)).await;
    prompt(&b, id, "hello again", "queue").await;
    b.idle(id).await;
    let events = b.events(id).await;
    assert_eq!(decided_by(&events), second);
    log::check(&events);
    a.kill().await;
    b.kill().await;
}

/// The shipped provider under another digest: a component that is followed by a section of a name.
async fn own_parrot(database: &mut sqlx::PgConnection) -> Vec<u8> {
    let mut component: Vec<u8> = sqlx::query_scalar(
        "SELECT bytes FROM plugin JOIN alias USING (digest)
          WHERE alias.kind = 'provider' AND alias.alias = 'parrot'",
    )
    .fetch_one(database)
    .await
    .unwrap();
    let name = b"own";
    let length = u8::try_from(name.len()).unwrap();
    component.extend([0, length + 1, length]);
    component.extend(name);
    component
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_6_a_step_whose_component_is_gone_says_so_and_goes_on_once_it_is_back() {
    let Some(world) = World::new() else { return };
    let mut a = world.node("a").await;
    let mut database = sqlx::PgConnection::connect(&world.url).await.unwrap();
    let component = own_parrot(&mut database).await;
    let digest = install(&a, "own-parrot", component.clone()).await;
    let (status, made) = a.post("/sessions", json!({ "agent": "bound" })).await;
    assert!(status < 300, "{made}");
    let id = made["id"].as_str().unwrap();
    // Its first word comes long after A has ended.
    prompt(&a, id, "slow 10000 one", "queue").await;
    seen(&a, id, |event| event["type"] == "step.started").await;
    let pid = rustix::process::Pid::from_raw(a.child.id().unwrap().cast_signed()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
    let ended = tokio::time::timeout(DEADLINE, a.child.wait()).await;
    ended.expect("it ends").unwrap();
    let removed = sqlx::query("DELETE FROM plugin WHERE digest = $1")
        .bind(&digest)
        .execute(&mut database)
        .await
        .unwrap();
    assert_eq!(removed.rows_affected(), 1);

    let b = world.node("b").await;
    let before = seen(&b, id, |event| event["type"] == "step.recovered").await;
    b.says("bound to components that are not there").await;
    let (_, shown) = b.get(&format!("/sessions/{id}")).await;
    let missing = json!([{ "digest": digest, "kind": "provider", "alias": "own" }]);
    assert_eq!(shown["missing"], missing, "{shown}");
    assert_eq!(
        (&shown["status"], &shown["attempts"]),
        (&json!("due"), &json!(0))
    );
    // A prompt waits with it, and another component under that name is not taken for it.
    let mut other = component.clone();
    *other.last_mut().unwrap() = b'x';
    let other = install(&b, "own-parrot", other).await;
    assert_ne!(other, digest);
    prompt(&b, id, "say and this", "queue").await;
    let third = session(&b).await;
    prompt(&b, &third, "say hello", "queue").await;
    b.idle(&third).await;
    let after = b.events(id).await;
    assert_eq!(owners(&after).len(), 1, "{after:#?}");
    let recorded = |events: &[Value]| {
        let recorded = events.iter().filter(|e| e["type"] == "recovery.recorded");
        recorded.count()
    };
    assert_eq!((recorded(&before), recorded(&after)), (1, 1));

    install(&b, "own-parrot", component).await;
    b.idle(id).await;
    let events = b.events(id).await;
    log::check(&events);
    let (_, shown) = b.get(&format!("/sessions/{id}")).await;
    assert!(shown["missing"].is_null(), "{shown}");
    assert_eq!(shown["attempts"], 0);
    // The first step was asked again under what it was decided with, and nothing is left over.
    let started = events.iter().filter(|e| e["type"] == "step.started");
    let digests: Vec<&Value> = started.map(|e| &e["data"]["provider"]["digest"]).collect();
    assert!(
        digests.iter().all(|found| **found == json!(digest)),
        "{digests:?}"
    );
    let ended = events.iter().filter(|e| e["type"] == "turn.ended").count();
    assert_eq!(ended, 2, "{events:#?}");
    b.kill().await;
}

/// All files below a folder.
fn walk(folder: &Path) -> Vec<String> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            files.extend(walk(&path));
        } else {
            files.push(path.display().to_string());
        }
    }
    files
}
