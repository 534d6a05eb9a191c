//! Model servers and plugins that misbehave, seen through the real binary over real HTTP.

mod support;

use std::path::PathBuf;

use serde_json::{Value, json};
use support::{Outside, SECRET, Server};

struct Host {
    folder: tempfile::TempDir,
    store: PathBuf,
    outside: Outside,
    server: Server,
}

impl Host {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let outside = Outside::start().await;
        let config = outside.config(folder.path());
        let mut text = std::fs::read_to_string(&config).unwrap();
        let port = outside.port;
        text.push_str(&format!(
            "\n[agents.broken]\nprovider = \"hostile\"\nmodel = \"x\"\n[providers.hostile]\nplugin = \"hostile\"\n\
             base-url = \"http://127.0.0.1:{port}/v1\"\nprivate = true\n\
             [agents.cut]\nprovider = \"cut\"\nmodel = \"cut\"\n[providers.cut]\nplugin = \"openai-chat\"\n\
             base-url = \"http://127.0.0.1:{port}/cut\"\nprivate = true\n\
             [agents.refused]\nprovider = \"refused\"\nmodel = \"x\"\n[providers.refused]\nplugin = \"openai-chat\"\n\
             base-url = \"http://127.0.0.1:{port}/refused\"\nprivate = true\n"
        ));
        std::fs::write(&config, text).unwrap();
        let store = folder.path().join("store.db");
        let server = Server::start(&store, &config).await;
        let answer = server
            .http
            .post(format!("{}/v1/plugins?alias=hostile", server.address))
            .header("content-type", "application/wasm")
            .body(mainstay_test_guests::HOSTILE_PROVIDER)
            .send()
            .await
            .unwrap();
        assert!(
            answer.status().is_success(),
            "{}",
            answer.text().await.unwrap()
        );
        Self {
            folder,
            store,
            outside,
            server,
        }
    }

    /// Runs one prompt with an agent and gives the log.
    async fn turn(&self, agent: &str, prompt: &str) -> Vec<Value> {
        let (_, session) = self
            .server
            .post("/sessions", json!({ "agent": agent }))
            .await;
        let session = session["id"]
            .as_str()
            .unwrap_or_else(|| panic!("{session}"))
            .to_owned();
        let (status, told) = self
            .server
            .post(
                &format!("/sessions/{session}/inputs"),
                json!({ "text": prompt }),
            )
            .await;
        assert_eq!(status, 202, "{told}");
        self.server.idle(&session).await;
        self.server.events(&session).await
    }
}

fn failure(events: &[Value]) -> String {
    let failed = events
        .iter()
        .find(|event| event["type"] == "execution.failed");
    failed.map_or_else(
        || panic!("{events:#?}"),
        |event| event["data"]["error"].as_str().unwrap().to_owned(),
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_1_cap_4_the_server_gets_the_exchange_with_the_secret_put_in() {
    let host = Host::start().await;
    let events = host.turn("default", "Do it. tag:one").await;
    assert!(
        events
            .iter()
            .any(|event| event["type"] == "execution.succeeded"),
        "{events:#?}"
    );
    let requests = host.outside.seen.requests.lock().unwrap()["one"].clone();
    assert_eq!(requests.len(), 2);
    let body: Value = serde_json::from_str(&requests[0]).unwrap();
    assert_eq!(body["model"], "test");
    assert_eq!(body["stream"], true);
    assert_eq!(
        body["messages"].as_array().unwrap().last().unwrap()["role"],
        "user"
    );
    let headers = host.outside.seen.headers.lock().unwrap()["one"].clone();
    assert!(
        headers
            .iter()
            .all(|authorization| *authorization == format!("Bearer {SECRET}")),
        "{headers:?}"
    );
    let log = serde_json::to_string(&events).unwrap();
    assert!(!log.contains(SECRET));
    let stored = std::fs::read(&host.store).unwrap();
    assert!(
        !stored
            .windows(SECRET.len())
            .any(|part| part == SECRET.as_bytes())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_3_a_provider_that_cannot_encode_sends_nothing_and_is_named() {
    let host = Host::start().await;
    for (prompt, words) in [
        ("encode trap", "encode trapped"),
        ("encode error", "encode: as the prompt says"),
        ("encode spin", "encode went past the CPU limit"),
        ("encode huge", "encode went past the exchange limit"),
    ] {
        let events = host.turn("broken", prompt).await;
        let error = failure(&events);
        let named = "provider hostile-provider@sha256:";
        assert!(
            error.contains(words) && error.contains(named),
            "{prompt}: {error}"
        );
        assert!(
            host.outside.seen.requests.lock().unwrap().is_empty(),
            "{prompt}"
        );
    }
    // The host and other sessions go on.
    let events = host.turn("default", "Do it. tag:after").await;
    assert!(
        events
            .iter()
            .any(|event| event["type"] == "execution.succeeded")
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_4_8_text_before_a_break_is_durable_and_marked() {
    let host = Host::start().await;
    let events = host.turn("cut", "Do it. tag:cut").await;
    let ended = events
        .iter()
        .find(|event| event["type"] == "model.ended")
        .unwrap();
    assert!(ended["data"]["ending"]["failed"].is_object(), "{ended}");
    let text: String = events
        .iter()
        .filter(|event| event["type"] == "step.output")
        .flat_map(|event| event["data"]["pieces"].as_array().unwrap().clone())
        .filter_map(|piece| piece["text"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(text, "half an answer");
    assert_eq!(
        host.outside.seen.requests.lock().unwrap()["cut"].len(),
        1,
        "after output there is no retry"
    );
    failure(&events);

    let events = host.turn("broken", "http trap").await;
    let error = failure(&events);
    assert!(error.contains("sha256:"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_6_10_permanent_refusals_and_broken_rules_fail_the_turn_with_words() {
    let host = Host::start().await;
    let events = host.turn("refused", "Do it. tag:refused").await;
    assert!(
        failure(&events).contains("the key is wrong"),
        "{}",
        failure(&events)
    );
    assert_eq!(
        host.outside.seen.requests.lock().unwrap()["refused"].len(),
        1
    );
    for prompt in [
        "local delta-before-start",
        "local duplicate-id",
        "local no-end",
        "local delta-after-end",
    ] {
        let events = host.turn("broken", prompt).await;
        failure(&events);
        let clean = |event: &&Value| {
            event["type"] == "model.ended" && event["data"]["ending"]["finished"].is_string()
        };
        assert!(!events.iter().any(|event| clean(&event)), "{prompt}");
    }
    drop(host.folder);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_8_a_guest_that_spins_cannot_starve_the_renewals() {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mainstay.toml");
    let text = "[agents.default]\ntoolboxes = []\n[agents.spin]\ntoolboxes = [\"hostile\"]\n\
                [node]\nlease = \"3s\"\nlease-margin = \"500ms\"\nrenew-every = \"500ms\"\n";
    std::fs::write(&config, text).unwrap();
    let server = Server::start(&folder.path().join("store.db"), &config).await;
    let answer = server
        .http
        .post(format!("{}/v1/plugins?alias=hostile", server.address))
        .header("content-type", "application/wasm")
        .body(mainstay_test_guests::HOSTILE_TOOLBOX)
        .send()
        .await
        .unwrap();
    assert!(
        answer.status().is_success(),
        "{}",
        answer.text().await.unwrap()
    );
    let mut sessions = Vec::new();
    for (agent, prompt) in [
        ("spin", "call spin {}"),
        ("default", "slow 500 a b c d e f g h i j k l m n o p"),
    ] {
        let (_, session) = server.post("/sessions", json!({ "agent": agent })).await;
        let session = session["id"]
            .as_str()
            .unwrap_or_else(|| panic!("{session}"))
            .to_owned();
        server
            .post(
                &format!("/sessions/{session}/inputs"),
                json!({ "text": prompt }),
            )
            .await;
        sessions.push(session);
    }
    for session in &sessions {
        server.idle(session).await;
        let events = server.events(session).await;
        let count = |kind: &str| events.iter().filter(|event| event["type"] == kind).count();
        assert_eq!(
            (count("execution.started"), count("recovery.recorded")),
            (1, 0),
            "{events:#?}"
        );
    }
    let log = serde_json::to_string(&server.events(&sessions[0]).await).unwrap();
    assert!(log.contains("CPU limit"), "{log}");
}
