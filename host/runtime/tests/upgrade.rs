//! UPGRADE: what was released stays as it is, and what was built for it runs.

mod common;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{host, model_request, request, view};
use mainstay_core::id::digest;
use mainstay_core::model::{FinishReason, Part};
use mainstay_core::plugin::{
    Action, CallError, Entry, Exchange, GuestError, Kind, ModelEvent, Output, Plugins, Progress,
    ProviderConfig, ResponseHead, State,
};
use mainstay_runtime::Runtime;

/// Every file of every released version of the contract, and of the components built for it.
const RELEASED: &[(&str, &str)] = &[
    (
        "host/runtime/tests/golden/0.1.0/provider.wasm",
        "ff5449686042853ae613ccbce2ec7b9fceab048ffb40dbbd4b6e791db9871fc9",
    ),
    (
        "host/runtime/tests/golden/0.1.0/runner.wasm",
        "d74ee9c34660e8cfacce2fb5b55c78e636e27f070264863814198e14ecc71088",
    ),
    (
        "host/runtime/tests/golden/0.1.0/toolbox.wasm",
        "8d6278912ecb8f3dcf1968f1f94d93e72beb6f635e88a10c71f4dd63f62e72b1",
    ),
    (
        "wit/0.1.0/history.wit",
        "c47376975a4f1583d6f6c5072cf8fb7ca87de0b87ea930520d4be8468833e91e",
    ),
    (
        "wit/0.1.0/http.wit",
        "310fe358e69aa1d20d9a09a73d675659bc61648921724cfb2608feff5a4ccc86",
    ),
    (
        "wit/0.1.0/manifest.wit",
        "9f187743cbc727a78debc26ae78cf43f3555edf67732284bc67f24786a2752d7",
    ),
    (
        "wit/0.1.0/provider.wit",
        "9b7a4104f3482dc64b7409aaec166bff897f652955628a2135cc1f5e7ec513b3",
    ),
    (
        "wit/0.1.0/runner.wit",
        "dbb42fa68039996993115a9a4d79032b0082928861bd986a9047d2356dbc5576",
    ),
    (
        "wit/0.1.0/toolbox.wit",
        "bad7a4c529575bfc8cf7e5c87390982eb6ea14ebf3adb6f52bf7d3354c15b77d",
    ),
    (
        "wit/0.1.0/types.wit",
        "8cb504347fe5933bcffa02e8f9cfc6323bc5ed8f329db5abdc9c846ad1e50d0e",
    ),
    (
        "wit/0.1.0/worlds.wit",
        "ab89d9a8bf9544be14f35181286c0d45841230ee643e7cae45c9acaa5e81fd77",
    ),
];

fn root() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors().nth(2).unwrap().to_owned()
}

fn golden(version: &str, kind: &str) -> Vec<u8> {
    let file = format!("host/runtime/tests/golden/{version}/{kind}.wasm");
    std::fs::read(root().join(file)).unwrap()
}

/// Names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

fn versions() -> Vec<String> {
    let mut versions = names(&root().join("wit"));
    versions.retain(|name| name != "README.md");
    versions
}

#[test]
fn upgrade_5_released_contracts_and_their_components_are_frozen() {
    assert_eq!(Runtime::versions(), versions(), "a folder for each version");
    let mut found = BTreeMap::new();
    let mut add = |file: String| {
        let bytes = std::fs::read(root().join(&file)).unwrap();
        found.insert(file, digest(&bytes));
    };
    for version in versions() {
        let contract = format!("wit/{version}");
        for name in names(&root().join(&contract)) {
            add(format!("{contract}/{name}"));
        }
        for kind in ["provider", "runner", "toolbox"] {
            add(format!("host/runtime/tests/golden/{version}/{kind}.wasm"));
        }
    }
    let pinned: BTreeMap<String, String> = RELEASED
        .iter()
        .map(|(file, digest)| ((*file).to_owned(), (*digest).to_owned()))
        .collect();
    assert_eq!(
        found, pinned,
        "what is released does not change: put a change into a new version"
    );
}

/// The items of a WIT text without a comment of their own.
fn undocumented(text: &str) -> Vec<&str> {
    const WORDS: [&str; 9] = [
        "interface",
        "world",
        "record",
        "variant",
        "enum",
        "flags",
        "resource",
        "type",
        "constructor",
    ];
    let mut missing = Vec::new();
    let mut documented = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("///") {
            documented = true;
        } else if !line.starts_with('@') {
            let word = line.split([' ', '(']).next().unwrap_or_default();
            let item = WORDS.contains(&word) || line.contains(": func(");
            if item && !documented {
                missing.push(line);
            }
            documented = false;
        }
    }
    missing
}

#[test]
fn upgrade_5_every_item_of_a_released_contract_is_documented() {
    let sample = "/// A.\n@since(version = 1.0.0)\ninterface a {\n    record r { x: u8 }\n\n    \
                  /// F.\n    f: func(a: u8);\n    g: func() -> u8;\n    /// C.\n\n    \
                  resource d {\n        constructor(a: u8);\n    }\n}\nworld w {\n}\n";
    assert_eq!(
        undocumented(sample),
        [
            "record r { x: u8 }",
            "g: func() -> u8;",
            "resource d {",
            "constructor(a: u8);",
            "world w {"
        ]
    );
    for version in versions() {
        let folder = root().join("wit").join(version);
        for name in names(&folder) {
            let text = std::fs::read_to_string(folder.join(&name)).unwrap();
            assert!(
                text.contains("interface ") || text.contains("world "),
                "{name}"
            );
            assert_eq!(undocumented(&text), [""; 0], "{name}");
        }
    }
}

#[tokio::test]
async fn upgrade_5_a_runner_of_every_released_version_runs() {
    for version in versions() {
        let host = host();
        let info = host.install(&golden(&version, "runner")).await;
        assert_eq!((info.kind, &*info.name), (Kind::Runner, "golden-runner"));
        assert_eq!((&info.wit, info.state_version), (&version, 1));
        assert_eq!(info.accepts.len(), 1);
        let mut asked = view("hello,");
        for times in 1..=2 {
            let decision = host.runtime.decide(&info.digest, asked.clone()).await;
            let decision = decision.unwrap();
            let said = [" said the golden runner"].map(|text| Part::Text(text.into()));
            let said = [vec![Part::Text("hello,".into())], said.to_vec()].concat();
            assert_eq!(decision.entries, [Entry::Say(said)]);
            assert_eq!(decision.action, Action::Done);
            assert_eq!(decision.state, Some(vec![times]));
            asked.state = decision.state.map(|data| State {
                runner: info.name.clone(),
                state_version: 1,
                data,
            });
        }
        asked.context.through = 0;
        let error = host.runtime.decide(&info.digest, asked).await.unwrap_err();
        assert!(
            matches!(&error, GuestError::Refused(text) if text.contains("there is no prompt")),
            "{error}"
        );
    }
}

#[tokio::test]
async fn upgrade_5_a_provider_of_every_released_version_runs() {
    for version in versions() {
        let host = host();
        let info = host.install(&golden(&version, "provider")).await;
        assert_eq!(
            (info.kind, &*info.name),
            (Kind::Provider, "golden-provider")
        );
        assert_eq!((&info.wit, info.http.len()), (&version, 1));
        let config = ProviderConfig {
            base_url: Some("https://model.test".into()),
            ..ProviderConfig::default()
        };
        let encode = |config| {
            host.runtime
                .encode(&info.digest, model_request("hello", config))
        };
        let Exchange::Http { request, memo } = encode(config).await.unwrap() else {
            panic!("a request over HTTP")
        };
        assert_eq!(
            (&*request.method, &*request.url),
            ("POST", "https://model.test/golden")
        );
        let error = encode(ProviderConfig::default()).await.unwrap_err();
        assert!(
            error.to_string().contains("there is no base URL"),
            "{error}"
        );
        let head = ResponseHead {
            status: 200,
            headers: vec![("content-type".into(), "text/plain".into())],
        };
        let decoder = host.runtime.decoder(&info.digest, head.clone(), memo).await;
        let mut decoder = decoder.unwrap();
        let mut events = decoder.feed(b"one".to_vec()).await.unwrap();
        events.extend(decoder.feed(b"two".to_vec()).await.unwrap());
        events.extend(decoder.finish().await.unwrap());
        // It began at its memo, 7, and counts what it is fed.
        let text = |text: &str| ModelEvent::TextDelta(text.into());
        assert_eq!(
            events,
            [
                text("one"),
                text("two"),
                text("09"),
                ModelEvent::Finished(FinishReason::Stop)
            ]
        );
        let head = ResponseHead {
            status: 500,
            ..head
        };
        let failure = host
            .runtime
            .classify(&info.digest, head, b"sorry".to_vec())
            .await;
        assert_eq!(failure.message, "sorry");
    }
}

#[tokio::test]
async fn upgrade_5_a_toolbox_of_every_released_version_runs() {
    for version in versions() {
        let host = host();
        let info = host.install(&golden(&version, "toolbox")).await;
        assert_eq!((info.kind, &*info.name), (Kind::Toolbox, "golden-toolbox"));
        assert_eq!((&info.wit, info.tools.len()), (&version, 1));
        let (teller, mut told) = tokio::sync::mpsc::unbounded_channel();
        let mut asked = request("golden_echo", serde_json::json!({ "a": 1 }));
        asked.progress = Progress(Arc::new(move |text| drop(teller.send(text))));
        let outputs = host.runtime.call(&info.digest, asked).await.unwrap();
        let outputs: Vec<String> = outputs
            .into_iter()
            .map(|output| match output {
                Output::Text(text) => text,
                Output::Media(_) => panic!("only text"),
            })
            .collect();
        assert_eq!(outputs, [r#"{"a":1}"#, "key-1"]);
        // It is shown beside the call, which does not wait for it.
        let told = tokio::time::timeout(std::time::Duration::from_secs(60), told.recv()).await;
        assert_eq!(told.unwrap().as_deref(), Some("echoing"));
        let error = host
            .call(&info.digest, "golden_echo", serde_json::json!({}))
            .await
            .unwrap_err();
        assert_eq!(
            error,
            CallError::InvalidArguments("there is nothing to echo".into())
        );
    }
}
