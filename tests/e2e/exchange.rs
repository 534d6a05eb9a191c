//! Exchanges with model servers that are late, silent or busy, tools that are exchanged or loop while
//! they run, and budgets: seen through the real binary over real HTTP.

mod support;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::post;
use futures::StreamExt as _;
use mainstay_test_guests::{HOSTILE_PROVIDER, HOSTILE_TOOLBOX};
use serde_json::{Value, json};
use support::{DEADLINE, SECRET, Server};
use tokio::sync::watch;

/// A request as it came in.
#[derive(Clone)]
struct Arrival {
    at: Instant,
    authorization: String,
    body: String,
}

/// A model server whose manners follow from the path that it is asked under.
#[derive(Clone)]
struct Model {
    arrivals: Arc<Mutex<HashMap<String, Vec<Arrival>>>>,
    /// Connections that the host has closed before their answer was over, by path.
    closed: watch::Sender<Vec<String>>,
    /// Whether held answers may go on.
    released: watch::Sender<bool>,
}

/// Says that a connection was closed, once an answer is dropped.
struct Closing(Model, String);

impl Drop for Closing {
    fn drop(&mut self) {
        self.0
            .closed
            .send_modify(|closed| closed.push(self.1.clone()));
    }
}

impl Model {
    async fn start() -> (Self, u16) {
        let model = Self {
            arrivals: Arc::default(),
            closed: watch::Sender::new(Vec::new()),
            released: watch::Sender::new(false),
        };
        let app = Router::new()
            .route("/{manner}/chat/completions", post(Self::answer))
            .route("/{manner}/answer", post(Self::answer))
            .with_state(model.clone());
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        (model, port)
    }

    async fn answer(
        State(model): State<Self>,
        UrlPath(manner): UrlPath<String>,
        headers: HeaderMap,
        body: String,
    ) -> Response {
        let authorization = headers
            .get(header::AUTHORIZATION)
            .map(|value| value.to_str().unwrap().to_owned());
        let results = body.matches(r#""role":"tool""#).count();
        let count = {
            let mut arrivals = model.arrivals.lock().unwrap();
            let arrivals = arrivals.entry(manner.clone()).or_default();
            arrivals.push(Arrival {
                at: Instant::now(),
                authorization: authorization.unwrap_or_default(),
                body,
            });
            arrivals.len()
        };
        let closing = Closing(model.clone(), manner.clone());
        match (manner.as_str(), count) {
            ("busy", 1) => (
                StatusCode::TOO_MANY_REQUESTS,
                [(header::RETRY_AFTER, "10")],
                r#"{"error":{"message":"too many requests"}}"#,
            )
                .into_response(),
            ("down", _) => (
                StatusCode::SERVICE_UNAVAILABLE,
                r#"{"error":{"message":"out of order"}}"#,
            )
                .into_response(),
            // No status, no headers, nothing.
            ("mute", 1) => {
                let _closing = closing;
                std::future::pending().await
            }
            // A status, and nothing behind it.
            ("still", 1) => stream(Vec::new(), Some(closing)),
            // An answer that is over before it began, and one that is over before its end.
            ("empty", 1) => respond(Body::empty()),
            ("half", _) => respond(Body::from(said("half an answer"))),
            // Text, and nothing behind it.
            ("stops", _) => stream(vec![said("half an answer")], Some(closing)),
            // Bytes, later some more, and no end.
            ("pieces", _) => stream(vec!["one".into(), "two".into()], Some(closing)),
            // A call; once it is let go, another one.
            ("held", _) if results == 0 => {
                let mut released = model.released.subscribe();
                // The first call is whole when the second begins.
                let first = call(0, "echo_once", "{}") + &call(1, "fail", "{");
                let second = futures::stream::once(async move {
                    released.wait_for(|released| *released).await.unwrap();
                    arguments(1, "}") + &finished("tool_calls")
                });
                let chunks = futures::stream::iter([first]).chain(second);
                respond(Body::from_stream(
                    chunks.map(Ok::<_, std::convert::Infallible>),
                ))
            }
            _ => respond(Body::from(said("fine") + &finished("stop"))),
        }
    }

    fn arrivals(&self, manner: &str) -> Vec<Arrival> {
        let arrivals = self.arrivals.lock().unwrap();
        arrivals.get(manner).cloned().unwrap_or_default()
    }

    /// Waits until the host has closed a connection.
    async fn closed(&self, manner: &str) {
        let mut closed = self.closed.subscribe();
        let closed = closed.wait_for(|closed| closed.iter().any(|of| of == manner));
        tokio::time::timeout(DEADLINE, closed)
            .await
            .unwrap()
            .unwrap();
    }
}

fn chunk(delta: &Value) -> String {
    let chunk = json!({ "choices": [{ "index": 0, "delta": delta }] });
    format!("data: {chunk}\n\n")
}

fn said(text: &str) -> String {
    chunk(&json!({ "content": text }))
}

fn call(index: u32, tool: &str, arguments: &str) -> String {
    chunk(&json!({ "tool_calls": [{
        "index": index, "id": format!("call_{index}"), "type": "function",
        "function": { "name": tool, "arguments": arguments },
    }] }))
}

fn arguments(index: u32, arguments: &str) -> String {
    chunk(&json!({ "tool_calls": [{ "index": index, "function": { "arguments": arguments } }] }))
}

fn finished(reason: &str) -> String {
    let last = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }] });
    format!("data: {last}\n\ndata: [DONE]\n\n")
}

fn respond(body: Body) -> Response {
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(body)
        .unwrap()
}

/// Pieces one after the other, and then nothing, for as long as the connection stands.
fn stream(pieces: Vec<String>, closing: Option<Closing>) -> Response {
    let pieces = futures::stream::iter(pieces).then(|piece| async move {
        tokio::time::sleep(Duration::from_millis(200)).await;
        piece
    });
    let stream = pieces.chain(futures::stream::once(async move {
        let _closing = closing;
        std::future::pending().await
    }));
    respond(Body::from_stream(
        stream.map(Ok::<_, std::convert::Infallible>),
    ))
}

struct Host {
    folder: tempfile::TempDir,
    config: PathBuf,
    model: Model,
    server: Server,
}

impl Host {
    /// A provider of each manner's name, an agent for each provider, and what `more` configures.
    async fn start(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (model, port) = Model::start().await;
        let mut text = String::from("[agents.default]\ntoolboxes = []\n");
        let key = |name: &str, value: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, value).unwrap();
            format!("secrets = {{ api-key = {{ file = {path:?} }} }}\n")
        };
        let same = key("same", SECRET);
        let other = key("other", "sk-another-value");
        for manner in [
            "busy", "shares", "differs", "down", "mute", "still", "stops", "held", "empty", "half",
        ] {
            let toolboxes = if manner == "held" { "\"hostile\"" } else { "" };
            let secrets = if manner == "differs" { &other } else { &same };
            text += &format!(
                "[agents.{manner}]\nprovider = \"{manner}\"\nmodel = \"m\"\ntoolboxes = [{toolboxes}]\n\
                 [providers.{manner}]\nplugin = \"openai-chat\"\n\
                 base-url = \"http://127.0.0.1:{port}/{manner}\"\nprivate = true\n{secrets}"
            );
        }
        text += &format!(
            "[agents.hostile]\nprovider = \"hostile\"\nmodel = \"m\"\ntoolboxes = []\n\
             [providers.hostile]\nplugin = \"hostile\"\n\
             base-url = \"http://127.0.0.1:{port}/pieces\"\nprivate = true\n\
             [agents.tools]\ntoolboxes = [\"hostile\"]\n{more}"
        );
        let config = folder.path().join("mainstay.toml");
        std::fs::write(&config, text).unwrap();
        let server = Server::start(&folder.path().join("store.db"), &config).await;
        let host = Self {
            folder,
            config,
            model,
            server,
        };
        host.install("hostile", HOSTILE_PROVIDER.to_vec()).await;
        host.install("hostile", HOSTILE_TOOLBOX.to_vec()).await;
        host
    }

    /// Its digest.
    async fn install(&self, alias: &str, component: Vec<u8>) -> String {
        let answer = self
            .server
            .http
            .post(format!("{}/v1/plugins?alias={alias}", self.server.address))
            .header(header::CONTENT_TYPE, "application/wasm")
            .body(component)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), StatusCode::CREATED);
        let plugin: Value = serde_json::from_str(&answer.text().await.unwrap()).unwrap();
        plugin["digest"].as_str().unwrap().to_owned()
    }

    async fn session(&self, agent: &str) -> String {
        let (_, session) = self
            .server
            .post("/sessions", json!({ "agent": agent }))
            .await;
        let id = session["id"].as_str();
        id.unwrap_or_else(|| panic!("{session}")).to_owned()
    }

    async fn prompt(&self, session: &str, text: &str) {
        let inputs = format!("/sessions/{session}/inputs");
        let (status, told) = self.server.post(&inputs, json!({ "text": text })).await;
        assert_eq!(status, 202, "{told}");
    }

    /// A whole turn, and the log behind it.
    async fn turn(&self, session: &str, text: &str) -> Vec<Value> {
        self.prompt(session, text).await;
        self.server.idle(session).await;
        self.server.events(session).await
    }

    /// Waits until an event is as wanted.
    async fn until(&self, session: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let seen = async {
            loop {
                let events = self.server.events(session).await;
                if let Some(event) = events.iter().find(|event| wanted(event)) {
                    return event.clone();
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(DEADLINE, seen).await.unwrap()
    }
}

fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    events
        .iter()
        .filter(|event| event["type"] == kind)
        .collect()
}

fn text(events: &[Value]) -> String {
    of(events, "step.output")
        .iter()
        .flat_map(|event| event["data"]["pieces"].as_array().unwrap().clone())
        .filter_map(|piece| piece["text"].as_str().map(str::to_owned))
        .collect()
}

fn failure(events: &[Value]) -> String {
    let failed = of(events, "execution.failed");
    let last = failed.last().unwrap_or_else(|| panic!("{events:#?}"));
    last["data"]["error"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_12_a_server_that_sends_nothing_is_a_transport_failure_and_asked_again() {
    let host = Host::start("[node]\nmodel-first-byte = \"3s\"\nmodel-idle = \"3s\"\n").await;
    for (manner, words) in [
        ("mute", "did not answer within 3 s"),
        ("still", "sent nothing more within 3 s"),
    ] {
        let session = host.session(manner).await;
        let events = host.turn(&session, "hello").await;
        host.model.closed(manner).await;
        let retries = of(&events, "retry.scheduled");
        assert_eq!(retries.len(), 1, "{events:#?}");
        let failure = &retries[0]["data"]["failure"];
        assert_eq!(failure["class"], "transport");
        assert!(failure["message"].as_str().unwrap().contains(words));
        assert_eq!(of(&events, "step.started").len(), 1, "the step is the same");
        assert_eq!(text(&events), "fine");
        let asked = host.model.arrivals(manner);
        assert_eq!(asked.len(), 2);
        assert_eq!(asked[0].body, asked[1].body);
    }
    // After output it is not asked again, and what was said is kept.
    let session = host.session("stops").await;
    let events = host.turn(&session, "hello").await;
    host.model.closed("stops").await;
    assert_eq!(host.model.arrivals("stops").len(), 1);
    assert_eq!(text(&events), "half an answer");
    assert!(failure(&events).contains("sent nothing more within 3 s"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_6_the_exchange_of_an_execution_that_lost_its_claim_is_closed() {
    let host = Host::start("[node]\nmodel-idle = \"10m\"\n").await;
    let session = host.session("stops").await;
    host.prompt(&session, "hello").await;
    let output = host
        .until(&session, |event| event["type"] == "step.output")
        .await;
    let take_over = format!("/sessions/{session}/take-over");
    let (status, told) = host.server.post(&take_over, json!({})).await;
    assert_eq!((status, &told["was_busy"]), (200, &json!(true)));
    host.model.closed("stops").await;
    let ended = host
        .until(&session, |event| event["type"] == "execution.interrupted")
        .await;
    assert_eq!(ended["data"]["reason"], "superseded");
    assert_ne!(ended["execution"], output["execution"], "not by its owner");
    host.server
        .post(&format!("/sessions/{session}/interrupt"), json!({}))
        .await;
    host.server.idle(&session).await;
    let events = host.server.events(&session).await;
    let writes = |event: &&Value| event["execution"] == output["execution"];
    let last = events.iter().rfind(writes).unwrap();
    assert_eq!(last["seq"], output["seq"], "it wrote nothing more");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_5_model_13_a_rate_limit_is_everyones_who_uses_the_secret() {
    let host = Host::start("").await;
    let first = host.session("busy").await;
    host.prompt(&first, "hello").await;
    host.until(&first, |event| event["type"] == "retry.scheduled")
        .await;
    // By another name, from another file, and the same value.
    let second = host.session("shares").await;
    host.prompt(&second, "hello").await;
    host.until(&second, |event| event["type"] == "step.started")
        .await;
    // Another value waits for nobody.
    let third = host.session("differs").await;
    host.turn(&third, "hello").await;
    assert_eq!(host.model.arrivals("differs").len(), 1);
    assert_eq!(host.model.arrivals("shares").len(), 0);

    for session in [&first, &second] {
        let idle = host.server.idle(session).await;
        let events = host.server.events(session).await;
        assert_eq!(text(&events), "fine");
        assert_eq!(of(&events, "recovery.recorded").len(), 0);
        assert_eq!(of(&events, "step.started").len(), 1);
        let (_, resource) = host.server.get(&format!("/sessions/{session}")).await;
        assert_eq!(resource["attempts"], 0, "{resource} {idle}");
    }
    let busy = host.model.arrivals("busy");
    assert_eq!(busy.len(), 2);
    assert_eq!(busy[0].body, busy[1].body, "byte for byte");
    assert_eq!(busy[0].authorization, format!("Bearer {SECRET}"));
    let shares = host.model.arrivals("shares");
    assert_eq!(shares.len(), 1);
    for later in [&busy[1], &shares[0]] {
        let between = later.at - busy[0].at;
        assert!(between >= Duration::from_secs(10), "{between:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_7_a_server_that_is_down_is_asked_so_often_and_no_more() {
    let host = Host::start("[node]\nmax-tries = 3\n").await;
    let session = host.session("down").await;
    let events = host.turn(&session, "hello").await;
    assert!(failure(&events).contains("out of order"));
    assert_eq!(host.model.arrivals("down").len(), 3);
    assert_eq!(of(&events, "retry.scheduled").len(), 2);
    assert_eq!(of(&events, "execution.failed").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_4_what_a_decoder_gave_before_it_trapped_is_kept_and_the_connection_closed() {
    let host = Host::start("").await;
    let session = host.session("hostile").await;
    let events = host.turn(&session, "http trap").await;
    host.model.closed("pieces").await;
    assert_eq!(text(&events), "a");
    let ended = of(&events, "model.ended");
    assert_eq!(ended.len(), 1);
    assert!(ended[0]["data"]["ending"]["failed"].is_object());
    let error = failure(&events);
    for words in ["provider hostile-provider@sha256:", "feed trapped"] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(host.model.arrivals("pieces").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_6_a_permanent_failure_is_not_asked_again_by_the_next_start() {
    let Host {
        folder,
        config,
        model,
        server,
    } = Host::start("[node]\nmax-tries = 1\n").await;
    let (_, session) = server.post("/sessions", json!({ "agent": "down" })).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let inputs = format!("/sessions/{session}/inputs");
    server.post(&inputs, json!({ "text": "hello" })).await;
    server.idle(&session).await;
    let before = server.events(&session).await;
    failure(&before);
    server.kill().await;

    let server = Server::start(&folder.path().join("store.db"), &config).await;
    // A later turn of another session shows that this start has looked at what there is to do.
    let (_, other) = server.post("/sessions", json!({})).await;
    let other = other["id"].as_str().unwrap().to_owned();
    let inputs = format!("/sessions/{other}/inputs");
    server.post(&inputs, json!({ "text": "say hello" })).await;
    server.idle(&other).await;
    assert_eq!(server.events(&session).await, before);
    assert_eq!(model.arrivals("down").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tool_11_a_step_in_flight_runs_the_tools_that_it_offered() {
    let host = Host::start("").await;
    let component = HOSTILE_TOOLBOX;
    let (from, to) = (b"as the call says", b"as the text says");
    let mut patched = component.to_vec();
    let at = patched
        .windows(from.len())
        .position(|bytes| bytes == from)
        .unwrap();
    patched[at..at + to.len()].copy_from_slice(to);

    let session = host.session("held").await;
    host.prompt(&session, "go").await;
    let old = host
        .until(&session, |event| event["type"] == "call.started")
        .await["data"]["digest"]
        .clone();
    let new = host.install("hostile", patched).await;
    assert_ne!(old, new.as_str());
    host.model.released.send_replace(true);
    host.server.idle(&session).await;

    let events = host.server.events(&session).await;
    let started = of(&events, "call.started");
    assert_eq!(started.len(), 2, "{events:#?}");
    assert!(started.iter().all(|event| event["data"]["digest"] == old));
    let results = of(&events, "call.settled");
    let result = |id: &str| {
        let result = results
            .iter()
            .find(|event| event["data"]["result"]["call"] == id);
        result.unwrap()["data"]["result"]["output"].to_string()
    };
    assert!(result("call_1").contains("as the call says"));

    // The next decision sees the new one.
    let next = host.session("tools").await;
    let events = host.turn(&next, "call fail {}").await;
    let started = of(&events, "call.started");
    assert_eq!(started[0]["data"]["digest"], new.as_str());
    assert!(
        of(&events, "call.settled")[0]
            .to_string()
            .contains("as the text says")
    );
}

/// Waits until the session's call has begun: its arguments are whole in the log.
async fn looping(host: &Host, session: &str) {
    host.until(session, |event| {
        event["type"] == "step.output" && event.to_string().contains("call_ready")
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn int_7_a_tool_that_never_yields_is_stopped_by_an_interrupt() {
    let host = Host::start("").await;
    let session = host.session("tools").await;
    host.prompt(&session, "call spin {}").await;
    looping(&host, &session).await;
    let interrupt = format!("/sessions/{session}/interrupt");
    let (status, told) = host.server.post(&interrupt, json!({})).await;
    assert!(status < 300, "{told}");
    host.server.idle(&session).await;
    let events = host.server.events(&session).await;
    let ended = of(&events, "execution.interrupted");
    assert_eq!(ended.len(), 1, "{events:#?}");
    assert_eq!(ended[0]["data"]["reason"], "user");
    let settled = of(&events, "call.settled");
    assert_eq!(settled.len(), 1);
    // By the interrupt, and not by the limit of 10 s that it would have run into.
    assert_eq!(settled[0]["data"]["result"]["outcome"], "interrupted");
    let events = host.turn(&session, "say on").await;
    assert!(text(&events).ends_with("on"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_2_a_loop_delays_neither_another_session_nor_the_health() {
    let host = Host::start("").await;
    let session = host.session("tools").await;
    host.prompt(&session, "call spin {}").await;
    looping(&host, &session).await;
    let other = host.session("default").await;
    let events = host.turn(&other, "say hello").await;
    assert_eq!(text(&events), "hello");
    let (status, health) = host.server.get("/health").await;
    assert_eq!(status, 200, "{health}");
    // All that while the loop ran: it has 10 s.
    let events = host.server.events(&session).await;
    assert_eq!(of(&events, "call.settled").len(), 0);
    host.server.idle(&session).await;
    let events = host.server.events(&session).await;
    let settled = of(&events, "call.settled");
    assert!(settled[0].to_string().contains("CPU limit of 10 s"));
    assert_eq!(of(&events, "execution.succeeded").len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn budgets_of_tokens_cost_and_time_end_a_turn_by_name() {
    let host = Host::start(
        "[agents.frugal]\ntoolboxes = []\ntokens = 1500\n\
         [agents.cheap]\ntoolboxes = []\ncost = 0.002\n\
         [agents.quick]\ntoolboxes = [\"hostile\"]\ntime = \"3s\"\n\
         [providers.parrot]\nmodels = [{ id = \"parrot\", price = { input = 1, output = 2 } }]\n",
    )
    .await;
    for (agent, words) in [
        ("frugal", "the session's budget of tokens is used up"),
        ("cheap", "the session's budget of cost is used up"),
    ] {
        let session = host.session(agent).await;
        let events = host.turn(&session, "usage 1000 500\nsay one").await;
        assert_eq!(of(&events, "execution.succeeded").len(), 1, "{events:#?}");
        let ended = of(&events, "model.ended");
        assert_eq!(ended[0]["data"]["usage"]["cost"], 2000);
        let (_, resource) = host.server.get(&format!("/sessions/{session}")).await;
        assert_eq!(resource["usage"]["cost"], 2000, "{resource}");
        let events = host.turn(&session, "say two").await;
        assert!(failure(&events).contains(words), "{}", failure(&events));
        assert_eq!(of(&events, "model.ended").len(), 1, "nothing was asked");
    }
    // While a model speaks, and while a tool runs.
    let slow = format!("slow 500 {}", "word ".repeat(100));
    for prompt in [slow.as_str(), "call sleep_once {}\nthen\nsay never"] {
        let session = host.session("quick").await;
        let events = host.turn(&session, prompt).await;
        assert_eq!(
            failure(&events),
            "the turn's budget of time is used up",
            "{events:#?}"
        );
        assert_eq!(of(&events, "turn.ended").len(), 1);
        if prompt == slow {
            assert!(text(&events).starts_with("word"), "what was said is kept");
        } else {
            let settled = of(&events, "call.settled");
            assert_eq!(settled[0]["data"]["result"]["outcome"], "interrupted");
        }
        // The next turn has time of its own.
        let events = host.turn(&session, "say on").await;
        assert_eq!(of(&events, "execution.succeeded").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_model_is_not_shown_of_an_output_can_be_read() {
    let host = Host::start("").await;
    for (tool, letter) in [("long_output", 'o'), ("long_error", 'e')] {
        let session = host.session("tools").await;
        let events = host.turn(&session, &format!("call {tool} {{}}")).await;
        let settled = of(&events, "call.settled")[0];
        let result = &settled["data"]["result"];
        let shown = result["output"][0]["text"].as_str().unwrap();
        assert!(
            shown.ends_with("\n[32768 of 100000 bytes shown]"),
            "{result}"
        );
        assert_eq!(result["whole"]["size"], 100_000);
        let digest = result["whole"]["digest"].as_str().unwrap();
        let media = format!("{}/v1/media/{digest}", host.server.address);
        let answer = host.server.http.get(media).send().await.unwrap();
        assert_eq!(answer.status(), 200);
        assert_eq!(answer.headers()[header::CONTENT_DISPOSITION], "attachment");
        let whole = answer.text().await.unwrap();
        assert_eq!(whole, letter.to_string().repeat(100_000));
    }
    let missing = format!("/media/{}", "0".repeat(64));
    let (status, problem) = host.server.get(&missing).await;
    assert_eq!(status, 404);
    assert_eq!(problem["type"], "urn:mainstay:problem:media-not-found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limits_are_those_of_the_configuration() {
    let host = Host::start("[limits]\ntoolbox = { cpu = \"200ms\", memory = \"32MiB\" }\n").await;
    for (tool, words) in [
        ("spin", "call went past the CPU limit of 0.2 s"),
        ("allocate", "call went past the memory limit of 32 MiB"),
    ] {
        let session = host.session("tools").await;
        let events = host.turn(&session, &format!("call {tool} {{}}")).await;
        let settled = of(&events, "call.settled")[0].to_string();
        assert!(settled.contains(words), "{settled}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn model_9_an_answer_without_a_finish_is_asked_for_again_unless_something_came() {
    let host = Host::start("").await;
    let session = host.session("empty").await;
    let events = host.turn(&session, "hello").await;
    let retries = of(&events, "retry.scheduled");
    assert_eq!(retries.len(), 1, "{events:#?}");
    assert_eq!(retries[0]["data"]["failure"]["class"], "incomplete");
    assert_eq!(text(&events), "fine");
    assert_eq!(host.model.arrivals("empty").len(), 2);

    let session = host.session("half").await;
    let events = host.turn(&session, "hello").await;
    assert_eq!(of(&events, "retry.scheduled").len(), 0);
    let ended = of(&events, "model.ended");
    assert_eq!(ended.len(), 1);
    assert_eq!(ended[0]["data"]["ending"]["failed"]["class"], "incomplete");
    assert_eq!(text(&events), "half an answer");
    assert_eq!(host.model.arrivals("half").len(), 1);
}
