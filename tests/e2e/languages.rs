//! The runner in JavaScript and in Python: built by their own tools, held to the contract by the kit, and
//! run and swapped for each other by the same host as one in Rust.
//!
//! Where a machine has no such tools the tests say so and ask nothing; with the variable `CI` set, they
//! fail.

mod support;

#[path = "steer/contract.rs"]
mod contract;
#[path = "swap/place.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod place;
#[path = "steer/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

use std::collections::BTreeSet;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::LazyLock;

use mainstay_guest_build::{Error, Foreign, Language};
use serde_json::{Value, json};

use place::{Place, decisions, one_result_per_call, until_decision, until_output};
use world::of;

/// A runner's component, or why this machine can't build it.
type Built = LazyLock<Result<Vec<u8>, String>>;

static JAVASCRIPT: Built = LazyLock::new(|| build(Language::JavaScript, "loop-js"));
static PYTHON: Built = LazyLock::new(|| build(Language::Python, "loop-python"));

/// Each language's name for the command line, its runner's name, and the runner.
const LANGUAGES: [(&str, &str, &Built); 2] = [
    ("js", "loop-js", &JAVASCRIPT),
    ("python", "loop-python", &PYTHON),
];

fn build(language: Language, name: &str) -> Result<Vec<u8>, String> {
    let checkout = mainstay_guest_build::workspace();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("runner.wasm");
    let plugin = Foreign {
        language,
        folder: checkout.join("plugins").join(name),
        wit: checkout.join("wit/0.1.0"),
        world: "runner".to_owned(),
        home: checkout,
    };
    match plugin.build(&file) {
        Ok(()) => Ok(std::fs::read(&file).unwrap()),
        Err(error @ Error::NoCompiler { .. }) => {
            let cause = std::error::Error::source(&error).unwrap();
            Err(format!("{error}\ncause: {cause}"))
        }
        Err(error) => panic!("{name} does not compile: {error}"),
    }
}

/// The component; `None`, after a word on it, where this machine has no tools for it and need not.
fn component(built: &'static Built) -> Option<&'static [u8]> {
    match &**built {
        Ok(component) => Some(component),
        Err(why) if std::env::var_os("CI").is_some() => panic!("{why}"),
        Err(why) => {
            // Past the test harness, which keeps the words of a test that passes to itself.
            let mut err = std::io::stderr();
            writeln!(err, "SKIPPED: {why}").unwrap();
            None
        }
    }
}

/// A command outside of any store, which must end with 0: what it prints.
async fn mainstay(folder: &std::path::Path, args: &[&str]) -> String {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command
        .args(args)
        .current_dir(folder)
        .env("XDG_DATA_HOME", folder.join("data"))
        .env("XDG_CONFIG_HOME", folder.join("config"))
        .stdin(Stdio::null())
        .kill_on_drop(true);
    // A build may have to wait for another test's.
    let output = tokio::time::timeout(5 * support::DEADLINE, command.output()).await;
    let output = output.expect("the command ends").unwrap();
    let out = String::from_utf8(output.stdout).unwrap();
    let err = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{args:?}: {out}{err}");
    out
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_11_a_runner_in_each_language_is_begun_and_built_without_an_edit() {
    for (language, _, built) in LANGUAGES {
        if component(built).is_none() {
            continue;
        }
        let folder = tempfile::tempdir().unwrap();
        let new = [
            "plugin", "new", "--kind", "runner", "--lang", language, "mine",
        ];
        mainstay(folder.path(), &new).await;
        let out = mainstay(folder.path(), &["plugin", "build", "mine"]).await;
        assert_eq!(out.trim(), "mine/mine.wasm");
        let inspect = ["--json", "plugin", "inspect", "mine/mine.wasm"];
        let shown: Value = serde_json::from_str(&mainstay(folder.path(), &inspect).await).unwrap();
        assert_eq!(
            (&shown["kind"], &shown["name"]),
            (&json!("runner"), &json!("mine"))
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_12_the_kit_holds_a_runner_in_each_language_to_the_contract() {
    for (_, name, built) in LANGUAGES {
        let Some(component) = component(built) else {
            continue;
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("runner.wasm"), component).unwrap();
        let check = ["--json", "plugin", "check", "runner.wasm"];
        let report: Value = serde_json::from_str(&mainstay(folder.path(), &check).await).unwrap();
        assert_eq!(
            (&report["conforms"], &report["plugin"]["name"]),
            (&json!(true), &json!(name))
        );
        for finding in report["findings"].as_array().unwrap() {
            let stateless = finding["property"] == "reads-its-state";
            let wanted = if stateless { "not_asked" } else { "holds" };
            assert_eq!(finding["verdict"], wanted, "{name}: {finding}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_1_a_runner_in_each_language_runs_a_session_with_tools() {
    for (_, name, built) in LANGUAGES {
        let Some(component) = component(built) else {
            continue;
        };
        let place = Place::new(component).await;
        let api = place.world.server().await;
        let session = api
            .begin(
                "call file_write {\"path\":\"a.txt\",\"content\":\"one\"}\nthen\n\
                 call file_read {\"path\":\"a.txt\"}\nthen\nsay it holds {result}",
            )
            .await;
        api.idle(&session).await;
        let events = api.events(&session).await;
        one_result_per_call(&events);
        assert_eq!(of(&events, "call.settled").len(), 2, "{events:#?}");
        assert!(
            decisions(&events).iter().all(|one| one.name == name),
            "{events:#?}"
        );
        let said = api.words(&session).await;
        let last = said.last().unwrap();
        assert!(
            last.starts_with("it holds") && last.contains("one"),
            "{said:?}"
        );
        // What the model's server says is what the turn fails with.
        api.prompt(&session, "fail invalid-request no such thing")
            .await;
        api.idle(&session).await;
        let events = api.events(&session).await;
        let ends = of(&events, "turn.ended");
        let outcomes: Vec<&Value> = ends
            .iter()
            .map(|end| &end["data"]["outcome"]["outcome"])
            .collect();
        assert_eq!(outcomes, ["done", "failed"], "{events:#?}");
        assert!(
            ends[1]["data"].to_string().contains("no such thing"),
            "{events:#?}"
        );

        // Many at once: there is room for all of them.
        let mut sessions = Vec::new();
        for _ in 0..24 {
            sessions.push(api.begin("call file_list\nthen\nsay bye").await);
        }
        for session in sessions {
            api.idle(&session).await;
            assert_eq!(api.words(&session).await.last().unwrap(), "bye");
        }
        api.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_15_runners_in_three_languages_decide_in_turn_in_one_turn() {
    let (Some(javascript), Some(python)) = (component(&JAVASCRIPT), component(&PYTHON)) else {
        return;
    };
    let place = Place::new(mainstay_test_guests::LOOP).await;
    let mut digests = Vec::new();
    for (alias, bytes) in [("script", javascript), ("snake", python)] {
        digests.push(place.install(bytes, alias).await);
    }
    let api = place.world.server().await;
    let slow =
        "slow 500 I will now read what there is\ncall file_read {\"path\":\"a.txt\"}\nthen\n";
    let session = api
        .begin(&format!(
            "call file_write {{\"path\":\"a.txt\",\"content\":\"one\"}}\nthen\n{slow}{slow}{slow}\
             say it holds {{result}}"
        ))
        .await;
    let mut before = Vec::new();
    let rust = until_decision(&api, &session, 2).await.runner;
    let order = [&digests[0], &digests[1], &rust];
    for (number, next) in (2..).zip(order) {
        let step = until_decision(&api, &session, number).await;
        before = until_output(&api, &session, step.seq).await;
        place.point(&api, next).await;
        assert_eq!(
            decisions(&api.events(&session).await).len(),
            number,
            "it is in flight"
        );
    }
    api.idle(&session).await;

    let events = api.events(&session).await;
    assert_eq!(events[..before.len()], before[..]);
    one_result_per_call(&events);
    let decided = decisions(&events);
    let names: Vec<&str> = decided.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(
        names,
        ["loop", "loop", "loop-js", "loop-python", "loop", "loop"]
    );
    let runners: BTreeSet<&str> = decided.iter().map(|one| one.runner.as_str()).collect();
    assert_eq!(runners.len(), 3);
    let said = api.words(&session).await;
    assert!(said.last().unwrap().contains("one"), "{said:?}");
}

/// The folder of a shipped runner is what `plugin new` begins with, so its tools' files stay out of it.
#[test]
fn the_shipped_sources_hold_what_a_new_plugin_needs_and_no_more() {
    let plugins: PathBuf = mainstay_guest_build::workspace().join("plugins");
    for (folder, source) in [("loop-js", "plugin.js"), ("loop-python", "plugin.py")] {
        let text = std::fs::read_to_string(plugins.join(folder).join(source)).unwrap();
        assert!(
            text.lines().count() < 100,
            "{source} is to be read at a glance"
        );
        assert!(
            text.contains(folder),
            "{source} says its name, which `plugin new` replaces"
        );
    }
}
