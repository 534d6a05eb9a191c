//! The world outside the binary: a model server, the endpoints that tools call, with counters of their
//! own; and the binary itself, started and killed.

#![allow(dead_code, reason = "each test file uses its part")]

pub(crate) mod checker;
pub(crate) mod client;
pub(crate) mod log;

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::extract::{Path as UrlPath, State};
use axum::http::header;
use axum::response::Response;
use axum::routing::{get, post};
use futures::StreamExt as _;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::process::{Child, Command};

/// How long anything may take.
pub(crate) const DEADLINE: Duration = Duration::from_secs(120);

/// What the outside has seen.
#[derive(Default)]
pub(crate) struct Seen {
    /// Bodies of model requests, by session tag.
    pub(crate) requests: Mutex<HashMap<String, Vec<String>>>,
    /// `Authorization` of model requests, by session tag.
    pub(crate) headers: Mutex<HashMap<String, Vec<String>>>,
    pub(crate) gets: Mutex<HashMap<String, u32>>,
    pub(crate) posts: Mutex<HashMap<String, u32>>,
}

/// A model server that speaks the OpenAI chat protocol slowly, with slow endpoints for tools beside it.
pub(crate) struct Outside {
    pub(crate) port: u16,
    pub(crate) seen: Arc<Seen>,
}

#[derive(Clone)]
struct Shared {
    seen: Arc<Seen>,
    port: u16,
}

const PAUSE: Duration = Duration::from_millis(40);

impl Outside {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        let seen = Arc::new(Seen::default());
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/cut/chat/completions", post(cut))
            .route("/refused/chat/completions", post(refused))
            .route("/get/{tag}", get(slow_get))
            .route("/post/{tag}", post(slow_post))
            .fallback(|| async { "whatever" })
            .with_state(Shared {
                seen: Arc::clone(&seen),
                port,
            });
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { port, seen }
    }

    /// A configuration that sends everything here.
    pub(crate) fn config(&self, folder: &Path) -> PathBuf {
        let port = self.port;
        let text = format!(
            r#"
[agents.default]
provider = "local"
model = "test"
toolboxes = ["files", "web"]

[providers.local]
plugin = "openai-chat"
base-url = "http://127.0.0.1:{port}/v1"
private = true

[providers.local.secrets]
api-key = {{ env = "MAINSTAY_TEST_KEY" }}

[toolboxes.files]
workspace = "read-write"

[toolboxes.web]
http = [{{ url = "http://127.0.0.1:{port}/", private = true }}]
"#
        );
        let path = folder.join("mainstay.toml");
        std::fs::write(&path, text).unwrap();
        path
    }
}

/// The first user message names the session: `tag:…`.
fn tag(body: &Value) -> String {
    let messages = body["messages"].as_array().cloned().unwrap_or_default();
    let text = messages
        .iter()
        .find(|message| message["role"] == "user")
        .map(|message| message["content"].to_string());
    let text = text.unwrap_or_default();
    text.split("tag:").nth(1).map_or_else(String::new, |rest| {
        rest.chars()
            .take_while(|c| c.is_ascii_alphanumeric() || *c == '-')
            .collect()
    })
}

/// Says half of something and resets the connection.
async fn cut(State(shared): State<Shared>, body: String) -> Response {
    let parsed: Value = serde_json::from_str(&body).unwrap();
    shared
        .seen
        .requests
        .lock()
        .unwrap()
        .entry(tag(&parsed))
        .or_default()
        .push(body);
    let chunk = json!({ "choices": [{ "index": 0, "delta": { "content": "half an answer" } }] });
    let first = Ok(format!("data: {chunk}\n\n"));
    let broken = Err(std::io::Error::from(std::io::ErrorKind::ConnectionReset));
    let stream = futures::stream::iter([first, broken]).then(|part| async move {
        tokio::time::sleep(PAUSE).await;
        part
    });
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(Body::from_stream(stream))
        .unwrap()
}

async fn refused(State(shared): State<Shared>, body: String) -> Response {
    let parsed: Value = serde_json::from_str(&body).unwrap();
    shared
        .seen
        .requests
        .lock()
        .unwrap()
        .entry(tag(&parsed))
        .or_default()
        .push(body);
    let words =
        json!({ "error": { "message": "the key is wrong", "type": "invalid_request_error" } });
    Response::builder()
        .status(401)
        .body(Body::from(words.to_string()))
        .unwrap()
}

async fn complete(
    State(shared): State<Shared>,
    headers: axum::http::HeaderMap,
    body: String,
) -> Response {
    let parsed: Value = serde_json::from_str(&body).unwrap();
    let tag = tag(&parsed);
    let authorization = headers
        .get(header::AUTHORIZATION)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    shared
        .seen
        .headers
        .lock()
        .unwrap()
        .entry(tag.clone())
        .or_default()
        .push(authorization.to_owned());
    shared
        .seen
        .requests
        .lock()
        .unwrap()
        .entry(tag.clone())
        .or_default()
        .push(body);
    let results = parsed["messages"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|message| message["role"] == "tool")
        .count();
    let mut chunks: Vec<Value> = Vec::new();
    let delta = |delta: Value| json!({ "choices": [{ "index": 0, "delta": delta }] });
    let words = if results == 0 {
        "I will work on it now. "
    } else {
        "All of it is done. "
    };
    for word in words.split_inclusive(' ') {
        chunks.push(delta(json!({ "content": word })));
    }
    if results == 0 {
        let url = |path: &str| format!("http://127.0.0.1:{}/{path}/{tag}", shared.port);
        let calls = [
            (
                "file_write",
                json!({ "path": "out.txt", "content": "written once" }),
            ),
            ("web_get", json!({ "url": url("get") })),
            ("web_post", json!({ "url": url("post"), "body": "{}" })),
        ];
        for (n, (name, arguments)) in calls.iter().enumerate() {
            let arguments = arguments.to_string();
            let (first, second) = arguments.split_at(arguments.len() / 2);
            chunks.push(delta(
                json!({ "tool_calls": [{ "index": n, "id": format!("call_{n}"), "type": "function",
                "function": { "name": name, "arguments": first } }] }),
            ));
            chunks.push(delta(
                json!({ "tool_calls": [{ "index": n, "function": { "arguments": second } }] }),
            ));
        }
    }
    let reason = if results == 0 { "tool_calls" } else { "stop" };
    chunks.push(
        json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": reason }],
        "usage": { "prompt_tokens": 10, "completion_tokens": 5 } }),
    );
    let mut lines: Vec<String> = chunks
        .iter()
        .map(|chunk| format!("data: {chunk}\n\n"))
        .collect();
    lines.push("data: [DONE]\n\n".into());
    let stream = futures::stream::iter(lines).then(|line| async move {
        tokio::time::sleep(PAUSE).await;
        Ok::<_, std::convert::Infallible>(line)
    });
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(Body::from_stream(stream))
        .unwrap()
}

async fn slow_get(State(shared): State<Shared>, UrlPath(tag): UrlPath<String>) -> String {
    *shared.seen.gets.lock().unwrap().entry(tag).or_default() += 1;
    tokio::time::sleep(PAUSE * 6).await;
    "got it".into()
}

async fn slow_post(State(shared): State<Shared>, UrlPath(tag): UrlPath<String>) -> String {
    // Counted as it arrives: from here on it has happened.
    *shared.seen.posts.lock().unwrap().entry(tag).or_default() += 1;
    tokio::time::sleep(PAUSE * 8).await;
    "posted".into()
}

/// The binary, with nothing of the machine's own configuration.
pub(crate) fn mainstay(store: &Path, config: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mainstay"));
    command
        .arg("--store")
        .arg(store)
        .arg("--config")
        .arg(config)
        .env_remove("MAINSTAY_SERVER")
        .env_remove("MAINSTAY_TOKEN")
        .env("MAINSTAY_TEST_KEY", SECRET)
        .env("HOME", store.parent().unwrap())
        .env("NO_PROXY", "127.0.0.1")
        .stdin(Stdio::null())
        .kill_on_drop(true);
    command
}

/// The secret that must be found nowhere.
pub(crate) const SECRET: &str = "sk-secret-4711-value";

/// A server that runs.
pub(crate) struct Server {
    pub(crate) child: Child,
    pub(crate) address: String,
    pub(crate) http: reqwest::Client,
    /// Lines of its standard error, as they come.
    log: tokio::sync::watch::Receiver<Vec<String>>,
}

impl Server {
    pub(crate) async fn start(store: &Path, config: &Path) -> Self {
        Self::run(mainstay(store, config)).await
    }

    /// Serves what the command names.
    pub(crate) async fn run(mut command: Command) -> Self {
        let _ = rustls::crypto::ring::default_provider().install_default();
        let mut child = command
            .args(["--json", "serve", "--listen", "127.0.0.1:0"])
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut errors = BufReader::new(child.stderr.take().unwrap()).lines();
        let (teller, log) = tokio::sync::watch::channel(Vec::new());
        tokio::spawn(async move {
            while let Ok(Some(line)) = errors.next_line().await {
                eprintln!("{line}");
                teller.send_modify(|lines: &mut Vec<String>| lines.push(line));
            }
        });
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let line = tokio::time::timeout(DEADLINE, lines.next_line())
            .await
            .expect("the server starts");
        let line = line.unwrap().expect("the server says where it listens");
        let said: Value = serde_json::from_str(&line).unwrap();
        let address = said["address"]
            .as_str()
            .unwrap()
            .trim_end_matches('/')
            .to_owned();
        let address = if address.starts_with("http") {
            address
        } else {
            format!("http://{address}")
        };
        Self {
            child,
            address,
            http: reqwest::Client::new(),
            log,
        }
    }

    /// Waits until a line of its log holds the text.
    pub(crate) async fn says(&self, text: &str) {
        let mut log = self.log.clone();
        tokio::time::timeout(
            DEADLINE,
            log.wait_for(|lines| lines.iter().any(|line| line.contains(text))),
        )
        .await
        .unwrap_or_else(|_| panic!("the server never says `{text}`"))
        .expect("the server lives");
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> (u16, Value) {
        let answer = self
            .http
            .post(format!("{}/v1{path}", self.address))
            .header(header::CONTENT_TYPE, "application/json")
            .body(body.to_string())
            .send()
            .await
            .unwrap();
        let status = answer.status().as_u16();
        (
            status,
            serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null),
        )
    }

    pub(crate) async fn get(&self, path: &str) -> (u16, Value) {
        let answer = self
            .http
            .get(format!("{}/v1{path}", self.address))
            .send()
            .await
            .unwrap();
        let status = answer.status().as_u16();
        (
            status,
            serde_json::from_str(&answer.text().await.unwrap()).unwrap_or(Value::Null),
        )
    }

    /// Waits until the session is idle.
    pub(crate) async fn idle(&self, session: &str) -> Value {
        let path = format!("/sessions/{session}/idle");
        let (status, body) = tokio::time::timeout(DEADLINE, self.get(&path))
            .await
            .expect("the session becomes idle");
        assert_eq!(status, 200, "{body}");
        body
    }

    /// All events of the session.
    pub(crate) async fn events(&self, session: &str) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        loop {
            let after = all.last().map_or(0, |event| event["seq"].as_u64().unwrap());
            let (status, body) = self
                .get(&format!("/sessions/{session}/events?after={after}"))
                .await;
            assert_eq!(status, 200, "{body}");
            let page = body["items"]
                .as_array()
                .or_else(|| body.as_array())
                .expect("a page of events")
                .clone();
            if page.is_empty() {
                return all;
            }
            all.extend(page);
        }
    }

    /// SIGKILL.
    pub(crate) async fn kill(mut self) {
        self.child.kill().await.unwrap();
    }
}
