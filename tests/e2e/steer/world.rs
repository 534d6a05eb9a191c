//! A folder with a store, a configuration and the runner that follows plans; a server on it, asked
//! over HTTP; and a model that says which requests it got.

use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::extract::State;
use axum::http::header;
use axum::routing::post;
use serde_json::{Value, json};

use super::contract;
use crate::support::{DEADLINE, Server, mainstay};

/// How often a state is looked at that no message announces.
const LOOK: Duration = Duration::from_millis(20);

pub(super) struct World {
    pub(super) folder: tempfile::TempDir,
    pub(super) config: PathBuf,
    pub(super) store: PathBuf,
}

impl World {
    /// The agent `default` follows plans and asks parrot.
    pub(super) fn new() -> Self {
        Self::with("[agents.default]\nrunner = \"planner\"\ntoolboxes = []\n")
    }

    /// With other agents.
    pub(super) fn with(agents: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let world = Self {
            config: folder.path().join("mainstay.toml"),
            store: folder.path().join("store.db"),
            folder,
        };
        let planner = world.folder.path().join("planner.wasm");
        std::fs::write(planner, mainstay_test_guests::PLANNER).unwrap();
        world.configure(agents, "");
        world
    }

    /// Writes the configuration anew, for the next start.
    pub(super) fn configure(&self, agents: &str, node: &str) {
        let text = format!(
            "{agents}\n[plugins.planner]\nsource = \"planner.wasm\"\n\n\
             [node]\npoll-every = \"100ms\"\nflush-every = \"50ms\"\n{node}"
        );
        std::fs::write(&self.config, text).unwrap();
    }

    pub(super) async fn server(&self) -> Api {
        Api(Server::start(&self.store, &self.config).await)
    }

    /// Exit code, stdout and stderr of a command.
    pub(super) async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = mainstay(&self.store, &self.config).args(args).output();
        let output = tokio::time::timeout(DEADLINE, output).await;
        let output = output.expect("the command ends").unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }
}

/// A server, asked over HTTP.
pub(super) struct Api(pub(super) Server);

impl Api {
    /// Status and body of an answer that fits the document.
    #[track_caller]
    pub(super) fn ask<'a>(
        &'a self,
        method: &'a str,
        path: &'a str,
        body: Option<Value>,
    ) -> impl Future<Output = (u16, Value)> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let url = format!("{}/v1{path}", self.0.address);
            let mut request = self.0.http.request(method.parse().unwrap(), url);
            if let Some(body) = body {
                request = request
                    .header(header::CONTENT_TYPE, "application/json")
                    .body(body.to_string());
            }
            let answer = tokio::time::timeout(DEADLINE, request.send()).await;
            let answer = answer.unwrap_or_else(|_| panic!("{caller}: no answer to {path}"));
            let answer = answer.unwrap_or_else(|error| panic!("{caller}: {path}: {error}"));
            let status = answer.status().as_u16();
            let media = answer.headers().get(header::CONTENT_TYPE);
            let media = media.map_or("", |media| media.to_str().unwrap()).to_owned();
            let text = answer.text().await.unwrap();
            let body = match text.is_empty() {
                true => Value::Null,
                false => serde_json::from_str(&text).unwrap_or_else(|_| panic!("{caller}: {text}")),
            };
            contract::check(method, path, status, &media, &body);
            (status, body)
        }
    }

    /// The body of an answer with this status.
    #[track_caller]
    pub(super) fn expect<'a>(
        &'a self,
        wanted: u16,
        method: &'a str,
        path: &'a str,
        body: Option<Value>,
    ) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        let answer = self.ask(method, path, body);
        async move {
            let (status, body) = answer.await;
            assert_eq!(status, wanted, "{caller}: {method} {path}: {body}");
            body
        }
    }

    /// Does something to a session.
    #[track_caller]
    pub(super) fn act<'a>(
        &'a self,
        session: &str,
        what: &str,
        body: Value,
    ) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        let path = format!("/sessions/{session}/{what}");
        async move {
            let body = Some(body).filter(|body| !body.is_null());
            let (status, body) = self.ask("POST", &path, body).await;
            assert!(status < 300, "{caller}: {path}: {status} {body}");
            body
        }
    }

    /// A refusal of this status and kind, which says what to do.
    #[track_caller]
    pub(super) fn refused<'a>(
        &'a self,
        (wanted, kind): (u16, &'a str),
        method: &'a str,
        path: String,
        body: Option<Value>,
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let (status, problem) = self.ask(method, &path, body).await;
            assert_eq!(status, wanted, "{caller}: {method} {path}: {problem}");
            let is = problem["type"].as_str().unwrap();
            assert_eq!(
                is,
                format!("urn:mainstay:problem:{kind}"),
                "{caller}: {problem}"
            );
            assert_eq!(problem["status"], wanted, "{caller}");
            // What happened, and what to do.
            let sentences = problem["detail"].as_str().unwrap().matches(". ").count();
            assert!(sentences >= 1, "{caller}: {problem}");
        }
    }

    /// A new session.
    pub(super) async fn session(&self) -> String {
        self.create(json!({})).await
    }

    pub(super) async fn create(&self, new: Value) -> String {
        let session = self.expect(201, "POST", "/sessions", Some(new)).await;
        session["id"].as_str().unwrap().to_owned()
    }

    /// A new session with a prompt.
    pub(super) async fn begin(&self, prompt: &str) -> String {
        let session = self.session().await;
        self.prompt(&session, prompt).await;
        session
    }

    /// Queues a prompt and gives the input's id.
    pub(super) async fn prompt(&self, session: &str, text: &str) -> String {
        self.admit(session, json!({ "text": text })).await
    }

    pub(super) async fn admit(&self, session: &str, input: Value) -> String {
        let admitted = self.act(session, "inputs", input).await;
        admitted["input"].as_str().unwrap().to_owned()
    }

    pub(super) async fn show(&self, session: &str) -> Value {
        let path = format!("/sessions/{session}");
        self.expect(200, "GET", &path, None).await
    }

    /// Waits until the session has no work.
    pub(super) async fn idle(&self, session: &str) -> Value {
        let path = format!("/sessions/{session}/idle");
        self.expect(200, "GET", &path, None).await
    }

    /// Waits until the session has this status.
    #[track_caller]
    pub(super) fn until(
        &self,
        session: &str,
        status: &'static str,
    ) -> impl Future<Output = Value> + '_ {
        let caller = std::panic::Location::caller();
        let session = session.to_owned();
        async move {
            let deadline = tokio::time::Instant::now() + DEADLINE;
            loop {
                let shown = self.show(&session).await;
                if shown["status"] == status {
                    return shown;
                }
                let late = tokio::time::Instant::now() > deadline;
                assert!(!late, "{caller}: it never is {status}: {shown}");
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// Waits until the session's log holds an event of this type, and gives the log.
    #[track_caller]
    pub(super) fn until_event(
        &self,
        session: &str,
        kind: &'static str,
    ) -> impl Future<Output = Vec<Value>> + '_ {
        let caller = std::panic::Location::caller();
        let session = session.to_owned();
        async move {
            let deadline = tokio::time::Instant::now() + DEADLINE;
            loop {
                let events = self.events(&session).await;
                if events.iter().any(|event| event["type"] == kind) {
                    return events;
                }
                let late = tokio::time::Instant::now() > deadline;
                assert!(!late, "{caller}: no {kind} in {events:#?}");
                tokio::time::sleep(LOOK).await;
            }
        }
    }

    /// The whole log.
    pub(super) async fn events(&self, session: &str) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        loop {
            let after = all.last().map_or(0, |event| event["seq"].as_u64().unwrap());
            let path = format!("/sessions/{session}/events?after={after}");
            let page = self.expect(200, "GET", &path, None).await;
            let items = page["items"].as_array().unwrap();
            if items.is_empty() {
                return all;
            }
            all.extend(items.iter().cloned());
        }
    }

    /// The history that is shown.
    pub(super) async fn messages(&self, session: &str) -> Vec<Value> {
        let path = format!("/sessions/{session}/messages?limit=200");
        let page = self.expect(200, "GET", &path, None).await;
        page["items"].as_array().unwrap().clone()
    }

    /// The words of the history: `>` before a prompt's.
    pub(super) async fn words(&self, session: &str) -> Vec<String> {
        let messages = self.messages(session).await;
        messages.iter().filter_map(words).collect()
    }

    pub(super) async fn inputs(&self, session: &str) -> Vec<Value> {
        let path = format!("/sessions/{session}/inputs");
        let page = self.expect(200, "GET", &path, None).await;
        page["items"].as_array().unwrap().clone()
    }

    /// Whether an input is `pending`, `promoted` or `cancelled`, and has its intent.
    pub(super) async fn input(&self, session: &str, input: &str) -> (String, bool) {
        let path = format!("/sessions/{session}/inputs/{input}");
        let found = self.expect(200, "GET", &path, None).await;
        let status = found["status"].as_str().unwrap().to_owned();
        (status, found["intent"].as_bool().unwrap())
    }

    /// SIGKILL.
    pub(super) async fn kill(self) {
        self.0.kill().await;
    }
}

/// Text of a message; `>` before a prompt's.
fn words(item: &Value) -> Option<String> {
    let body = &item["body"];
    let text = |parts: &Value| -> String {
        let parts = parts.as_array().into_iter().flatten();
        parts.filter_map(|part| part["text"].as_str()).collect()
    };
    match body["kind"].as_str()? {
        "user" => Some(format!("> {}", text(&body["data"]))),
        "assistant" => Some(text(&body["data"]["content"])),
        _ => None,
    }
}

/// Events of a type.
pub(super) fn of<'e>(events: &'e [Value], kind: &str) -> Vec<&'e Value> {
    let found = events.iter().filter(|event| event["type"] == kind);
    found.collect()
}

/// How often an input of this kind entered the history.
pub(super) fn promoted(events: &[Value], kind: &str) -> usize {
    let admitted = of(events, "input.admitted");
    let ids: Vec<&Value> = admitted
        .iter()
        .filter(|event| event["data"]["content"]["kind"] == kind)
        .map(|event| &event["data"]["input"])
        .collect();
    let promotions = of(events, "input.promoted");
    let of_kind = promotions
        .iter()
        .filter(|event| ids.contains(&&event["data"]["input"]));
    of_kind.count()
}

/// A server that speaks the OpenAI chat protocol, answers `answer N` and keeps what it was asked. A
/// request that ends with `hold` is never answered.
pub(super) struct Model {
    pub(super) port: u16,
    asked: Arc<Mutex<Vec<Value>>>,
}

impl Model {
    pub(super) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.unwrap();
        let port = listener.local_addr().unwrap().port();
        let asked: Arc<Mutex<Vec<Value>>> = Arc::default();
        let app = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .with_state(Arc::clone(&asked));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { port, asked }
    }

    /// The agent `default` follows plans and asks this one.
    pub(super) fn world(&self) -> World {
        World::with(&format!(
            "[agents.default]\nrunner = \"planner\"\nprovider = \"local\"\nmodel = \"test\"\ntoolboxes = []\n\n\
             [providers.local]\nplugin = \"openai-chat\"\nbase-url = \"http://127.0.0.1:{}/v1\"\nprivate = true\n",
            self.port
        ))
    }

    /// Role and content of the messages of the newest request.
    pub(super) fn newest(&self) -> Vec<(String, Value)> {
        let asked = self.asked.lock().unwrap();
        let messages = asked.last().unwrap()["messages"].as_array().unwrap();
        messages
            .iter()
            .map(|message| {
                let role = message["role"].as_str().unwrap().to_owned();
                (role, message["content"].clone())
            })
            .collect()
    }
}

async fn complete(
    State(asked): State<Arc<Mutex<Vec<Value>>>>,
    body: String,
) -> ([(header::HeaderName, &'static str); 1], String) {
    let request: Value = serde_json::from_str(&body).unwrap();
    let last = request["messages"].as_array().unwrap().last().cloned();
    let number = {
        let mut asked = asked.lock().unwrap();
        asked.push(request);
        asked.len()
    };
    if last.is_some_and(|last| last["content"].to_string().contains("hold")) {
        std::future::pending::<()>().await;
    }
    let delta =
        json!({ "choices": [{ "index": 0, "delta": { "content": format!("answer {number}") } }] });
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 5 } });
    (
        [(header::CONTENT_TYPE, "text/event-stream")],
        format!("data: {delta}\n\ndata: {end}\n\ndata: [DONE]\n\n"),
    )
}
