//! The commands of the real binary.

mod support;

#[path = "cli/refusals.rs"]
mod refusals;

use std::path::PathBuf;
use std::process::Stdio;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use support::{DEADLINE, Server, mainstay};
use tokio::io::{AsyncBufReadExt as _, BufReader};

struct Place {
    folder: tempfile::TempDir,
    config: PathBuf,
    store: PathBuf,
}

fn place() -> Place {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mainstay.toml");
    std::fs::write(&config, "[agents.default]\ntoolboxes = []\n").unwrap();
    let store = folder.path().join("store.db");
    Place {
        folder,
        config,
        store,
    }
}

impl Place {
    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = mainstay(&self.store, &self.config).args(args).output();
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
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_1_the_demo_survives_its_kill() {
    let place = place();
    let (code, out, err) = place.run(&["demo"]).await;
    assert_eq!(code, 0, "{out}\n{err}");
    let all = format!("{out}{err}");
    assert!(all.to_lowercase().contains("kill"), "{all}");
    assert!(
        !all.contains('\u{1b}'),
        "no control codes without a terminal"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_2_the_answer_alone_is_on_stdout() {
    let place = place();
    let (code, out, err) = place.run(&["run", "say forty-two"]).await;
    assert_eq!((code, out.trim()), (0, "forty-two"), "{err}");
    let (code, out, err) = place
        .run(&["run", "fail invalid-request the server said no"])
        .await;
    assert_eq!(code, 1, "{out}\n{err}");
    assert!(err.contains("the server said no"), "{err}");
    assert!(out.trim().is_empty(), "{out}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_3_json_is_json_and_nothing_else() {
    let place = place();
    let (_, out, _) = place.run(&["--json", "run", "say hi"]).await;
    let events: Vec<Value> = out
        .lines()
        .map(|line| serde_json::from_str(line).expect(line))
        .collect();
    assert!(!events.is_empty());
    let (_, out, err) = place.run(&["--json", "session", "list"]).await;
    let lists: Vec<Value> = serde_json::Deserializer::from_str(&out)
        .into_iter()
        .collect::<Result<_, _>>()
        .expect(&err);
    let id = find_id(&lists).expect("a session's id");
    for args in [
        vec!["--json", "session", "show", &id],
        vec!["--json", "session", "log", &id],
        vec!["--json", "plugin", "list"],
        vec!["--json", "session", "interrupt", &id],
        vec!["--json", "session", "resume", &id],
        vec!["--json", "session", "delete", &id],
    ] {
        let (code, out, err) = place.run(&args).await;
        assert_eq!(code, 0, "{args:?}: {err}");
        let parsed: Result<Vec<Value>, _> = serde_json::Deserializer::from_str(&out)
            .into_iter()
            .collect();
        assert!(parsed.is_ok(), "{args:?}: {out}");
    }
}

/// Every JSON value of an output.
fn json(text: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(text)
        .into_iter()
        .collect::<Result<_, _>>()
        .expect("JSON and nothing else")
}

fn find_id(values: &[Value]) -> Option<String> {
    values.iter().find_map(|value| match value {
        Value::Object(object) => match object.get("id").and_then(Value::as_str) {
            Some(id) => Some(id.to_owned()),
            None => object
                .values()
                .find_map(|inner| find_id(std::slice::from_ref(inner))),
        },
        Value::Array(array) => find_id(array),
        _ => None,
    })
}

/// A long turn by `mainstay run`, sent a signal in the middle. Gives its exit code, the session and its log.
async fn signalled(place: &Place, signal: Signal) -> (Option<i32>, String, String) {
    let mut child = mainstay(&place.store, &place.config)
        .args([
            "--json",
            "run",
            "slow 150 one two three four five six seven eight nine ten eleven twelve",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    loop {
        let line = tokio::time::timeout(DEADLINE, lines.next_line())
            .await
            .unwrap()
            .unwrap()
            .expect("it goes on");
        if line.contains("step.output") {
            break;
        }
    }
    let pid = Pid::from_raw(child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, signal).unwrap();
    let status = tokio::time::timeout(DEADLINE, child.wait())
        .await
        .expect("it ends")
        .unwrap();
    let (_, out, _) = place.run(&["--json", "session", "list"]).await;
    let lists: Vec<Value> = serde_json::Deserializer::from_str(&out)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap();
    let id = find_id(&lists).unwrap();
    let (_, log, _) = place.run(&["--json", "session", "log", &id]).await;
    (status.code(), id, log)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_4_ctrl_c_interrupts_and_keeps_what_was_said() {
    let (code, _, log) = signalled(&place(), Signal::INT).await;
    assert_eq!(code, Some(130));
    assert!(
        log.contains("execution.interrupted") && log.contains("\"user\""),
        "{log}"
    );
    assert!(log.contains("one"), "the partial text is durable");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_4_sigterm_ends_the_process_and_not_the_turn() {
    let place = place();
    let (code, id, log) = signalled(&place, Signal::TERM).await;
    assert_eq!(code, Some(143));
    assert!(
        !log.contains("\"user\"") && !log.contains("turn.ended"),
        "{log}"
    );
    // It goes on with the next command that runs sessions.
    let (code, out, err) = place.run(&["run", "--session", &id]).await;
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("twelve"), "{out}");
    let (_, log, _) = place.run(&["--json", "session", "log", &id]).await;
    assert!(
        log.contains("turn.ended") && !log.contains("\"crash\""),
        "{log}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_5_a_broken_file_is_told_from_one_that_is_out_of_reach() {
    let place = place();
    let (code, _, err) = place.run(&["run", "say hello"]).await;
    assert_eq!(code, 0, "{err}");
    let mut bytes = std::fs::read(&place.store).unwrap();
    // The first page stays, so that it is known for ours.
    bytes[4096..].fill(0xa5);
    std::fs::write(&place.store, bytes).unwrap();
    for command in [&["session", "list"][..], &["run", "say more"], &["doctor"]] {
        let (code, _, err) = place.run(command).await;
        assert_eq!(code, 8, "{command:?}: {err}");
    }
    let elsewhere = Place {
        store: "mysql://u:secret@h/d".into(),
        ..place
    };
    let (code, _, err) = elsewhere.run(&["session", "list"]).await;
    assert_eq!(code, 2, "{err}");
    assert!(
        err.contains("postgres://") && !err.contains("secret"),
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_5_store_3_failures_say_what_is_wrong_and_what_to_do() {
    let place = place();
    let (code, _, err) = place
        .run(&["session", "show", "01890000-0000-7000-8000-000000000001"])
        .await;
    assert_ne!(code, 0);
    assert!(err.starts_with("error:"), "{err}");
    let _server = Server::start(&place.store, &place.config).await;
    let (code, _, err) = place.run(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_ne!(code, 0);
    assert!(err.contains("store.db") && err.contains("hint:"), "{err}");
    let bad = place.folder.path().join("bad.wasm");
    std::fs::write(&bad, "not a component").unwrap();
    let (code, _, err) = place
        .run(&["plugin", "install", bad.to_str().unwrap()])
        .await;
    assert_ne!(code, 0);
    assert!(err.contains("error:"), "{err}");
    std::fs::write(&place.config, "[agents.default]\nsytem-prompt = \"x\"\n").unwrap();
    let (code, _, err) = place.run(&["run", "hi"]).await;
    assert_ne!(code, 0);
    assert!(
        err.contains("mainstay.toml:2") && err.contains("system-prompt"),
        "{err}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_6_commands_find_the_server() {
    let place = place();
    let _server = Server::start(&place.store, &place.config).await;
    let (code, out, err) = place
        .run(&["--json", "run", "say through the server"])
        .await;
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("through the server"));
    let (code, listed, err) = place.run(&["--json", "session", "list"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(find_id(&json(&listed)).is_some(), "{listed}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_9_a_lock_left_by_a_killed_server_stops_nobody() {
    let place = place();
    let server = Server::start(&place.store, &place.config).await;
    let (code, _, err) = place.run(&["run", "say before the kill"]).await;
    assert_eq!(code, 0, "{err}");
    let (_, listed, _) = place.run(&["--json", "session", "list"]).await;
    let session = find_id(&json(&listed)).expect("a session's id");
    let dead = server.address.clone();
    let lock = mainstay_store::lock::path_of(&place.store);
    let left = std::fs::read_to_string(&lock).unwrap();
    let port = dead.rsplit(':').next().unwrap();
    assert!(left.contains(port), "the lock names the server: {left}");
    server.kill().await;
    assert_eq!(
        std::fs::read_to_string(&lock).unwrap(),
        left,
        "it is left behind"
    );

    // A command that reads, and one that writes and runs.
    let (code, after, err) = place.run(&["--json", "session", "list"]).await;
    assert_eq!(code, 0, "{err}");
    assert_eq!(json(&after), json(&listed));
    let (code, out, err) = place.run(&["run", "say after the kill"]).await;
    assert_eq!((code, out.trim()), (0, "after the kill"), "{err}");

    // Killed again, so that the lock is a dead server's when the new one starts on it.
    Server::start(&place.store, &place.config)
        .await
        .kill()
        .await;
    let server = Server::start(&place.store, &place.config).await;
    let (status, shown) = server.get(&format!("/sessions/{session}")).await;
    assert_eq!((status, shown["id"].as_str()), (200, Some(&*session)));
    // It owns the file: no other server does, and commands go to it.
    let (code, _, err) = place.run(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_ne!(code, 0);
    assert!(err.contains("store.db"), "{err}");
    let owner = std::fs::read_to_string(&lock).unwrap();
    let port = server.address.rsplit(':').next().unwrap();
    assert!(owner.contains(port), "{owner}");
    let (code, out, err) = place.run(&["run", "say through the new one"]).await;
    assert_eq!((code, out.trim()), (0, "through the new one"), "{err}");
}
