//! What plugin authors do: begin, build, check and swap in a plugin, by the commands of the real binary
//! and by those of the guide.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use mainstay_test_guests::{BROKEN_PROVIDER, BROKEN_RUNNER, BROKEN_TOOLBOX};
use serde_json::Value;
use tokio::process::Command;

/// How long a command may take: a build may have to wait for other builds.
const DEADLINE: Duration = Duration::from_secs(900);

/// The root of this checkout.
fn checkout() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

/// An empty folder, and a machine around it without a network.
struct Desk {
    folder: tempfile::TempDir,
}

impl Desk {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn command(&self, program: &str) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_mainstay"));
        let mut path = binary.parent().unwrap().as_os_str().to_owned();
        path.push(":");
        path.push(std::env::var_os("PATH").unwrap_or_default());
        let mut command = Command::new(program);
        // Dependencies are those that the shipped guests are built with, so none is built again.
        command
            .current_dir(self.folder.path().join("desk"))
            .env("PATH", path)
            .env("XDG_DATA_HOME", self.folder.path().join("data"))
            .env("XDG_CONFIG_HOME", self.folder.path().join("config"))
            .env("CARGO_NET_OFFLINE", "true")
            .env("CARGO_TARGET_DIR", checkout().join("target/authors"))
            .env("MAINSTAY_TARGET_DIR", checkout().join("target/guests"))
            .env_remove("MAINSTAY_STORE")
            .env_remove("MAINSTAY_CONFIG")
            .env_remove("MAINSTAY_SERVER")
            .env_remove("MAINSTAY_LOG")
            .stdin(Stdio::null())
            .kill_on_drop(true);
        command
    }

    async fn run(&self, program: &str, args: &[&str]) -> (i32, String, String) {
        std::fs::create_dir_all(self.folder.path().join("desk")).unwrap();
        let output = self.command(program).args(args).output();
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

    async fn mainstay(&self, args: &[&str]) -> (i32, String, String) {
        self.run(env!("CARGO_BIN_EXE_mainstay"), args).await
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join("desk").join(name)
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_11_each_kind_is_begun_built_and_conforms_without_an_edit() {
    let desk = Desk::new();
    for kind in ["runner", "provider", "toolbox"] {
        let name = format!("first-{kind}");
        let (code, _, err) = desk
            .mainstay(&["plugin", "new", "--kind", kind, &name])
            .await;
        assert_eq!(code, 0, "{err}");
        let (code, out, err) = desk.mainstay(&["plugin", "build", &name]).await;
        assert_eq!(code, 0, "{out}{err}");
        assert_eq!(out.trim(), format!("{name}/{name}.wasm"));
        let (code, out, err) = desk.mainstay(&["--json", "plugin", "check", &name]).await;
        assert_eq!(code, 0, "{out}{err}");
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!(report["conforms"], true);
        assert_eq!(report["plugin"]["name"], name.as_str());
        // Nothing that there is to ask is passed over.
        for finding in report["findings"].as_array().unwrap() {
            // It keeps no state, and fetches nothing.
            let lacks = ["reads-its-state", "takes-any-answer"];
            let lacks = lacks
                .iter()
                .any(|property| finding["property"] == *property);
            let wanted = if lacks { "not_asked" } else { "holds" };
            assert_eq!(finding["verdict"], wanted, "{finding}");
        }
        let component = std::fs::read(desk.path(&name).join(format!("{name}.wasm"))).unwrap();
        let folder = desk.folder.path().to_string_lossy().into_owned();
        let mut windows = component.windows(folder.len());
        assert!(!windows.any(|bytes| bytes == folder.as_bytes()));
    }
    let source = std::fs::read_to_string(desk.path("first-runner/src/lib.rs")).unwrap();
    let lines = source
        .lines()
        .filter(|line| !line.trim().is_empty() && !line.starts_with("//"))
        .count();
    assert!(lines <= 26, "{lines} lines:\n{source}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_12_what_breaks_a_promise_is_refused_by_its_name_and_place() {
    let desk = Desk::new();
    std::fs::create_dir_all(desk.path("")).unwrap();
    for (component, breaks, property, place) in [
        (
            BROKEN_RUNNER,
            "memory",
            "no-memory",
            "decision 2 of 2, commit 3",
        ),
        (
            BROKEN_TOOLBOX,
            "idempotent",
            "idempotent",
            "run twice under one key",
        ),
        (
            BROKEN_TOOLBOX,
            "idempotent",
            "survives-crashes",
            "killed before commit 4",
        ),
        (
            BROKEN_PROVIDER,
            "cuts",
            "cuts-do-not-matter",
            "cut at byte 1",
        ),
    ] {
        std::fs::write(desk.path("plugin.wasm"), component).unwrap();
        let options = serde_json::json!({ "breaks": breaks }).to_string();
        let check = ["plugin", "check", "plugin.wasm", "--only", property];
        let broken = [&check[..], &["--options", &options]].concat();
        let (code, out, err) = desk.mainstay(&broken).await;
        assert_eq!(code, 6, "{out}{err}");
        assert!(out.contains(&format!("FAIL  {property}")), "{out}");
        assert!(out.contains(place), "{out}");
        assert!(err.contains("does not conform"), "{err}");
        let json = [&["--json"], &broken[..]].concat();
        let (code, out, _) = desk.mainstay(&json).await;
        let report: Value = serde_json::from_str(&out).unwrap();
        assert_eq!((code, &report["conforms"]), (6, &Value::Bool(false)));
        // Without the option there is nothing to find.
        let (code, out, err) = desk.mainstay(&check).await;
        assert_eq!(code, 0, "{out}{err}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mistakes_of_authors_are_told_with_what_to_do() {
    let desk = Desk::new();
    for (args, code, words) in [
        (
            &["plugin", "new", "--kind", "runner", "Not A Name"][..],
            2,
            "begin with a letter",
        ),
        (
            &["plugin", "new", "--kind", "robot", "name"],
            2,
            "expected runner, provider or toolbox",
        ),
        (
            &[
                "plugin", "new", "--kind", "runner", "--sdk", "nowhere", "name",
            ],
            3,
            "guest-sdk",
        ),
        (&["plugin", "build"], 3, "mainstay plugin new"),
        (&["plugin", "check"], 3, "mainstay plugin new"),
        (&["plugin", "check", "no.wasm"], 3, "cannot read no.wasm"),
        (&["plugin", "check", "--only", "beauty"], 2, "never-traps"),
    ] {
        let (found, out, err) = desk.mainstay(args).await;
        assert_eq!(found, code, "{args:?}: {out}{err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
    let new = ["plugin", "new", "--kind", "runner", "taken"];
    assert_eq!(desk.mainstay(&new).await.0, 0);
    let (code, _, err) = desk.mainstay(&new).await;
    assert_eq!(code, 4, "{err}");
    let (code, _, err) = desk.mainstay(&["plugin", "check", "taken"]).await;
    assert_eq!(code, 3, "{err}");
    assert!(err.contains("mainstay plugin build"), "{err}");
    std::fs::write(desk.path("taken/src/lib.rs"), "no rust").unwrap();
    let (code, _, err) = desk.mainstay(&["plugin", "build", "taken"]).await;
    assert_eq!(code, 1, "{err}");
    assert!(
        err.contains("does not compile") && err.contains("src/lib.rs"),
        "{err}"
    );
    std::fs::write(desk.path("text.wasm"), "no component").unwrap();
    let (code, out, _) = desk.mainstay(&["plugin", "check", "text.wasm"]).await;
    assert_eq!(code, 6, "{out}");
    assert!(
        out.contains("FAIL  loads") && out.contains("a text file"),
        "{out}"
    );
}

/// Every command of the guide, as it stands there, from an empty folder.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_guide_does_what_it_says() {
    let guide = std::fs::read_to_string(checkout().join("docs/plugins.md")).unwrap();
    for property in mainstay_kit::Property::ALL {
        assert!(guide.contains(&format!("| `{property}` |")), "{property}");
    }
    let mut script = String::new();
    let mut blocks = 0;
    let mut inside = false;
    for line in guide.lines() {
        match (inside, line) {
            (false, "```sh") => {
                blocks += 1;
                inside = true;
            }
            (true, "```") => inside = false,
            (true, command) => {
                script.push_str(command);
                script.push('\n');
            }
            (false, _) => {}
        }
    }
    assert!(blocks >= 7 && !inside, "{blocks} blocks");
    let desk = Desk::new();
    let (code, out, err) = desk.run("bash", &["-euo", "pipefail", "-c", &script]).await;
    assert_eq!(code, 0, "{script}\n---\n{out}\n---\n{err}");
    assert_eq!(out.matches("it conforms").count(), 4, "{out}");
    assert!(out.contains("Over and out."), "{out}\n---\n{err}");
    assert!(out.contains("some decisions differ"), "{out}\n---\n{err}");
    let (_, log, _) = desk.mainstay(&["--json", "session", "list"]).await;
    assert_eq!(
        log.lines().count(),
        1,
        "one session had all three runners: {log}"
    );
}
