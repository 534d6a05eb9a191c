//! PLUGIN: what may be loaded, and what it is compiled to.

mod common;

use std::sync::Arc;

use common::{host, patched, runtime_in, view};
use mainstay_core::plugin::{Action, GuestError, Kind, Plugins};
use mainstay_runtime::inspect::Error;
use mainstay_runtime::limits::Limits;
use mainstay_test_guests::{
    FILES, HOSTILE_PROVIDER, HOSTILE_RUNNER, HOSTILE_TOOLBOX, LOOP, OPENAI_CHAT, PARROT, WEB,
};

#[tokio::test]
async fn plugin_1_a_valid_plugin_of_each_kind_is_described() {
    let host = host();
    for (bytes, kind, name) in [
        (LOOP, Kind::Runner, "loop"),
        (OPENAI_CHAT, Kind::Provider, "openai-chat"),
        (PARROT, Kind::Provider, "parrot"),
        (FILES, Kind::Toolbox, "files"),
        (WEB, Kind::Toolbox, "web"),
    ] {
        let info = host.runtime.inspect(bytes).await.unwrap();
        assert_eq!((info.kind, info.name.as_str()), (kind, name));
        assert_eq!(info.digest, mainstay_core::id::digest(bytes));
        assert_eq!(info.wit, "0.1.0");
        assert_eq!(info.size, bytes.len() as u64);
        assert!(!info.imports.is_empty());
        assert_eq!(kind == Kind::Toolbox, !info.tools.is_empty(), "{name}");
    }
    assert!(host.source.is_empty(), "looking stores nothing");

    let info = host.install(LOOP).await;
    host.source.point(Kind::Runner, "coder", &info.digest);
    let resolved = host.runtime.resolve(Kind::Runner, "coder").await.unwrap();
    assert_eq!(resolved.unwrap(), info);
    let decision = host.runtime.decide(&info.digest, view("hello")).await;
    assert!(matches!(decision.unwrap().action, Action::CallModel(_)));
    let other = host.runtime.resolve(Kind::Provider, "coder").await.unwrap();
    assert_eq!(other, None);
}

#[tokio::test]
async fn plugin_3_what_is_no_plugin_is_refused_as_what_it_is() {
    let host = host();
    let stops = patched(LOOP, "mainstay:plugin/steps", "mainstay:plugin/stops");
    let cases: [(&[u8], &str); 7] = [
        (b"", "an empty file"),
        (b"(component)", "a text file"),
        (b"\0asm\x01\0\0\0", "a core WebAssembly module"),
        (b"\0asm", "the rest is missing"),
        (b"\x7fELF\xff\xff", "neither WebAssembly nor text"),
        (&LOOP[..LOOP.len() / 2], "malformed or truncated"),
        (&stops, "mainstay:plugin/stops@0.1.0"),
    ];
    for (bytes, words) in cases {
        let error = host.runtime.install(bytes).await.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("component"), "{error}");
    }
    assert!(host.source.is_empty());
}

#[tokio::test]
async fn plugin_4_an_import_that_is_not_for_its_kind_is_refused_by_name() {
    let host = host();
    let logging = "mainstay:plugin/logging@0.1.0";
    for (bytes, from, to) in [
        (LOOP, logging, "wasi:sockets/tcp-create@0.2.0"),
        (PARROT, logging, "wasi:http/types-handler@0.2.0"),
        (WEB, logging, "wasi:sockets/tcp-create@0.2.0"),
        (WEB, logging, "wasi:http/types-handler@0.2.0"),
        (LOOP, logging, "mainstay:plugin/lugging@0.1.0"),
        (LOOP, logging, "somebody:others/logging@0.1.0"),
        (
            HOSTILE_RUNNER,
            "mainstay:plugin/history@0.1.0",
            "mainstay:plugin/calling@0.1.0",
        ),
        (
            WEB,
            "mainstay:plugin/calling@0.1.0",
            "mainstay:plugin/history@0.1.0",
        ),
    ] {
        let bytes = patched(bytes, from, to);
        match host.runtime.install(&bytes).await {
            Err(Error::Import { import, .. }) => assert_eq!(import, to),
            other => panic!("{to}: {other:?}"),
        }
    }
    assert!(host.source.is_empty());
}

#[tokio::test]
async fn plugin_5_an_unknown_version_is_refused_with_both_versions() {
    let host = host();
    let bytes = patched(LOOP, "@0.1.0", "@9.9.0");
    let error = host.runtime.install(&bytes).await.unwrap_err().to_string();
    assert_eq!(
        error,
        "built for mainstay:plugin@9.9.0; this host takes 0.1.0: build it against one of these"
    );
    assert!(host.source.is_empty());
}

#[tokio::test]
async fn plugin_6_a_tool_that_breaks_a_rule_is_refused_by_tool_and_field() {
    let host = host();
    let info = host.install(HOSTILE_TOOLBOX).await;
    for (behaviour, words) in [
        ("bad-name", "`name` of its tool `not a name!`"),
        ("bad-schema", "`input-schema` of its tool `bad`"),
        ("duplicate", "`name` of its tool `echo`"),
        ("many", "the limit is 256"),
        ("error", "as the options say"),
        ("trap", "list trapped"),
    ] {
        let options = serde_json::json!({ "list": behaviour }).to_string();
        let tools = host.runtime.tools(&info.digest, Some(options)).await;
        let error = tools.unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
        assert!(error.contains("toolbox hostile-toolbox@sha256:"), "{error}");
    }
}

#[tokio::test]
async fn plugin_7_the_same_bytes_are_stored_and_compiled_once() {
    let host = host();
    let installs = (0..4).map(|_| host.runtime.install(LOOP));
    let infos = futures::future::join_all(installs).await;
    let digest = infos[0].as_ref().unwrap().digest.clone();
    assert_eq!(host.source.len(), 1);
    assert_eq!(host.runtime.compilations(), 1);

    let again = || {
        runtime_in(
            host.dir.path(),
            Limits::default(),
            host.source.clone(),
            host.egress.clone(),
        )
    };
    let restarted = again();
    let (one, two) = tokio::join!(
        restarted.decide(&digest, view("hello")),
        restarted.decide(&digest, view("hello")),
    );
    assert!(one.is_ok() && two.is_ok());
    restarted.install(LOOP).await.unwrap();
    assert_eq!(restarted.compilations(), 0);

    // Damaged: one byte of the code. Foreign: of no engine at all, under a hash that fits.
    let file = compiled_files(&host.dir.path().join("compiled")).remove(0);
    let whole = std::fs::read(&file).unwrap();
    let mut damaged = whole.clone();
    let middle = damaged.len() / 2;
    damaged[middle] ^= 1;
    let foreign = {
        use sha2::Digest as _;
        let mut bytes = sha2::Sha256::digest(b"another engine's").to_vec();
        bytes.extend_from_slice(b"another engine's");
        bytes
    };
    for bytes in [damaged, foreign, whole[..20].to_vec(), Vec::new()] {
        std::fs::write(&file, bytes).unwrap();
        let restarted = again();
        restarted.decide(&digest, view("hello")).await.unwrap();
        assert_eq!(restarted.compilations(), 1);
        assert_eq!(std::fs::read(&file).unwrap().len(), whole.len());
    }
}

fn compiled_files(dir: &std::path::Path) -> Vec<std::path::PathBuf> {
    std::fs::read_dir(dir)
        .unwrap()
        .flat_map(|engine| std::fs::read_dir(engine.unwrap().path()).unwrap())
        .map(|file| file.unwrap().path())
        .collect()
}

#[tokio::test]
async fn plugin_8_an_alias_can_be_pointed_elsewhere_and_back() {
    let host = host();
    let first = host.install(LOOP).await;
    let second = host.install(HOSTILE_RUNNER).await;
    for info in [&first, &second, &first] {
        host.source.point(Kind::Runner, "coder", &info.digest);
        let resolved = host.runtime.resolve(Kind::Runner, "coder").await.unwrap();
        assert_eq!(resolved.as_ref(), Some(info));
    }
    // What a step recorded still runs.
    assert!(
        host.runtime
            .decide(&second.digest, view("hi"))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn plugin_9_a_trap_names_plugin_digest_and_function_and_others_go_on() {
    let host = host();
    let info = host.install(HOSTILE_RUNNER).await;
    let trapped = host.runtime.decide(&info.digest, view("panic")).await;
    let Err(GuestError::Trap(text)) = trapped else {
        panic!("{trapped:?}");
    };
    let name = format!("runner hostile-runner@sha256:{}", &info.digest[..12]);
    assert!(text.starts_with(&name), "{text}");
    assert!(text.contains("decide trapped"), "{text}");
    assert!(
        text.contains("as the prompt says"),
        "its last words: {text}"
    );
    assert!(
        host.runtime
            .decide(&info.digest, view("hello"))
            .await
            .is_ok()
    );
}

#[tokio::test]
async fn plugin_10_the_same_view_gives_the_same_decision() {
    let host = host();
    let info = host.install(LOOP).await;
    let view = view("hello");
    let first = host.runtime.decide(&info.digest, view.clone()).await;
    let second = host.runtime.decide(&info.digest, view).await;
    assert_eq!(first.unwrap(), second.unwrap());
}

#[tokio::test]
async fn what_is_not_there_is_missing() {
    let host = host();
    let digest = "0".repeat(64);
    let missing = host.runtime.decide(&digest, view("hello")).await;
    assert!(
        matches!(missing, Err(GuestError::Missing(_))),
        "{missing:?}"
    );
    let provider = host.install(PARROT).await;
    let wrong = host.runtime.decide(&provider.digest, view("hello")).await;
    assert!(matches!(wrong, Err(GuestError::Contract(_))), "{wrong:?}");
    // And can be there later.
    let info = host.install(LOOP).await;
    assert!(
        host.runtime
            .decide(&info.digest, view("hello"))
            .await
            .is_ok()
    );
    let hostile = Arc::clone(&host.install(HOSTILE_PROVIDER).await);
    assert_eq!(hostile.kind, Kind::Provider);
}
