//! What commands refuse, how they tell it, and what is left as it was.

use std::path::Path;
use std::process::Stdio;

use serde_json::Value;
use tokio::io::AsyncWriteExt as _;

use super::support::{DEADLINE, Server, mainstay};
use super::{Place, find_id, json, place};

/// Exit codes as documented.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;
const DAMAGED: i32 = 8;

async fn session(place: &Place) -> String {
    let (code, _, err) = place.run(&["run", "say hello"]).await;
    assert_eq!(code, 0, "{err}");
    let (_, listed, _) = place.run(&["--json", "session", "list"]).await;
    find_id(&json(&listed)).expect("a session's id")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_5_store_3_whoever_holds_a_file_is_named_by_every_command() {
    let place = place();
    let id = session(&place).await;
    // Held by a process that answers nowhere.
    let options = mainstay_store::Options::default();
    let owner = options.owner;
    let held = mainstay_store::SqliteStore::open(&place.store, options)
        .await
        .unwrap();
    let pid = std::process::id();
    let by = format!("process {pid} (node {owner})");
    let commands: [&[&str]; 8] = [
        &["run", "say more"],
        &["run", "--session", &id, "say more"],
        &["chat"],
        &["serve", "--listen", "127.0.0.1:0"],
        &["session", "list"],
        &["session", "interrupt", &id],
        &["session", "delete", &id],
        &["gc"],
    ];
    let runs = commands.iter().map(|command| place.run(command));
    let runs = futures::future::join_all(runs).await;
    for (command, (code, out, err)) in commands.iter().zip(runs) {
        assert_eq!(code, CONFLICT, "{command:?}: {out}{err}");
        for told in [&*by, "store.db", "hint:"] {
            assert!(err.contains(told), "{command:?}: {err}");
        }
    }
    held.close().await;
    drop(held);
    let (code, shown, err) = place.run(&["--json", "session", "show", &id]).await;
    assert_eq!(code, 0, "it was deleted: {shown}{err}");

    // Held by one that answers.
    let server = Server::start(&place.store, &place.config).await;
    let pid = server.child.id().unwrap();
    let (code, _, err) = place.run(&["serve", "--listen", "127.0.0.1:0"]).await;
    assert_eq!(code, CONFLICT, "{err}");
    for told in [&format!("process {pid} (node "), &server.address] {
        assert!(err.contains(told), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_5_a_prompt_that_is_too_large_begins_nothing() {
    let place = place();
    for beside_a_server in [false, true] {
        let _server = match beside_a_server {
            true => Some(Server::start(&place.store, &place.config).await),
            false => None,
        };
        let mut run = mainstay(&place.store, &place.config)
            .args(["run", "-"])
            .stdin(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = run.stdin.take().unwrap();
        let text = "say \"quoted\" ".repeat(160_000);
        stdin.write_all(text.as_bytes()).await.unwrap();
        drop(stdin);
        let output = tokio::time::timeout(DEADLINE, run.wait_with_output()).await;
        let output = output.expect("it ends").unwrap();
        let err = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(USAGE), "{err}");
        assert!(err.contains("bytes") && err.contains("hint:"), "{err}");
        let (code, listed, err) = place.run(&["--json", "session", "list"]).await;
        assert_eq!((code, &*listed), (0, ""), "{err}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_5_an_import_says_by_its_code_what_is_wrong_with_the_file() {
    let place = place();
    let id = session(&place).await;
    let whole = place.folder.path().join("whole.jsonl");
    let path = |path: &Path| path.to_str().unwrap().to_owned();
    let (code, _, err) = place
        .run(&["session", "export", &id, "--to", &path(&whole)])
        .await;
    assert_eq!(code, 0, "{err}");
    let text = std::fs::read_to_string(&whole).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    let end = lines.len() - 1;
    let cases = [
        ("cut", lines[..end].join("\n").into_bytes(), DAMAGED),
        ("torn", text.as_bytes()[..text.len() / 2].to_vec(), DAMAGED),
        (
            "counts",
            [lines[..2].join("\n"), lines[end].to_owned()]
                .join("\n")
                .into_bytes(),
            DAMAGED,
        ),
        (
            "bytes",
            [lines[0].as_bytes(), b"\n\xff\xfe\n"].concat(),
            DAMAGED,
        ),
        ("other", b"{\"a\":1}\n".to_vec(), USAGE),
        ("text", b"no export\n".to_vec(), USAGE),
        (
            "newer",
            text.replacen("\"mainstay_export\":1", "\"mainstay_export\":9", 1)
                .into_bytes(),
            USAGE,
        ),
    ];
    for beside_a_server in [false, true] {
        let store = place.folder.path().join(format!("{beside_a_server}.db"));
        let there = Place {
            folder: tempfile::tempdir().unwrap(),
            config: place.config.clone(),
            store,
        };
        let _server = match beside_a_server {
            true => Some(Server::start(&there.store, &there.config).await),
            false => None,
        };
        for (name, bytes, expected) in &cases {
            let file = place.folder.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            let (code, _, err) = there.run(&["session", "import", &path(&file)]).await;
            assert_eq!(code, *expected, "{name}, {beside_a_server}: {err}");
        }
        let missing = place.folder.path().join("missing");
        let (code, _, err) = there.run(&["session", "import", &path(&missing)]).await;
        assert_eq!(code, NOT_FOUND, "{err}");
        let (code, _, err) = there.run(&["session", "import", &path(&whole)]).await;
        assert_eq!(code, 0, "{err}");
    }
    let cut = path(&place.folder.path().join("cut"));
    let (code, _, err) = place.run(&["replay", &cut, "--runner", "loop"]).await;
    assert_eq!(code, DAMAGED, "{err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rules_for_no_tool_are_told_by_serve_and_doctor() {
    let place = place();
    let rules = r#"
[agents.default]
toolboxes = ["files"]
[[agents.default.tool-rules]]
tool = "file_write"
then = "ask"
[[agents.default.tool-rules]]
tool = "file_wirte"
then = "deny"
[[agents.default.tool-rules]]
tool = "*"
then = "allow"
[agents.other]
toolboxes = ["nowhere"]
[[agents.other.tool-rules]]
tool = "x"
then = "deny"
"#;
    std::fs::write(&place.config, rules).unwrap();
    let told = "rule 2 of the agent `default` (`file_wirte`, then deny) is for no tool that its toolboxes have; did you \
                mean `file_write`?";
    let server = Server::start(&place.store, &place.config).await;
    server.says(told).await;
    for beside_a_server in [true, false] {
        let (code, _, err) = place.run(&["doctor"]).await;
        assert_eq!(code, 0, "{beside_a_server}: {err}");
        assert!(err.contains(told), "{err}");
        let (code, out, err) = place.run(&["--json", "doctor"]).await;
        assert_eq!(code, 0, "{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["healthy"], true);
        assert_eq!(report["warnings"], serde_json::json!([told]));
        if beside_a_server {
            let pid = rustix::process::Pid::from_raw(server.child.id().unwrap().cast_signed());
            rustix::process::kill_process(pid.unwrap(), rustix::process::Signal::KILL).unwrap();
        }
    }
}
