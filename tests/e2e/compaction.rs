//! The shipped runner over real HTTP, with a model server whose context is small: it says so before any
//! output, as soon as a request is longer than it takes.

mod support;

use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::Body;
use axum::extract::State;
use axum::http::header;
use axum::response::Response;
use axum::routing::post;
use serde_json::{Value, json};
use support::Server;

/// Bytes of messages that the model takes.
#[derive(Clone, Copy)]
struct Limits {
    question: usize,
    summary: usize,
}

/// A model server that notes every request.
#[derive(Clone)]
struct Small {
    limits: Arc<Mutex<Limits>>,
    requests: Arc<Mutex<Vec<Value>>>,
}

const SUMMARY: &str = "They spoke of one matter.";

/// Whether a request asks for a summary: the runner's own words stand at its end.
fn summarises(request: &Value) -> bool {
    last(request).starts_with("Summarise the conversation")
}

fn messages(request: &Value) -> Vec<String> {
    let messages = request["messages"].as_array().expect("messages");
    let text = |message: &Value| match &message["content"] {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    };
    messages.iter().map(text).collect()
}

fn last(request: &Value) -> String {
    messages(request).pop().expect("a message")
}

async fn complete(State(small): State<Small>, body: String) -> Response {
    let request: Value = serde_json::from_str(&body).unwrap();
    let size: usize = messages(&request).iter().map(String::len).sum();
    let limits = *small.limits.lock().unwrap();
    let (limit, answer) = match summarises(&request) {
        true => (limits.summary, SUMMARY),
        false => (limits.question, "an answer"),
    };
    small.requests.lock().unwrap().push(request);
    if size > limit {
        let error = json!({ "error": {
            "message": format!("{size} bytes are too long for this model"),
            "type": "invalid_request_error",
            "code": "context_length_exceeded",
        } });
        return Response::builder()
            .status(400)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(error.to_string()))
            .unwrap();
    }
    let delta = json!({ "choices": [{ "index": 0, "delta": { "content": answer } }] });
    let end = json!({ "choices": [{ "index": 0, "delta": {}, "finish_reason": "stop" }] });
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .body(Body::from(format!(
            "data: {delta}\n\ndata: {end}\n\ndata: [DONE]\n\n"
        )))
        .unwrap()
}

struct Host {
    small: Small,
    server: Server,
    session: String,
    _folder: tempfile::TempDir,
}

const FIRST: &str = "the first thing";

impl Host {
    /// A session whose first turn fitted the model, with no limit yet.
    async fn start() -> Self {
        let small = Small {
            limits: Arc::new(Mutex::new(Limits {
                question: usize::MAX,
                summary: usize::MAX,
            })),
            requests: Arc::default(),
        };
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let port = listener.local_addr().unwrap().port();
        let app = Router::new()
            .route("/v1/chat/completions", post(complete))
            .with_state(small.clone());
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("mainstay.toml");
        let text = format!(
            "[agents.default]\nrunner = \"loop\"\nprovider = \"small\"\nmodel = \"m\"\ntoolboxes = []\n\
             [providers.small]\nplugin = \"openai-chat\"\nbase-url = \"http://127.0.0.1:{port}/v1\"\n\
             private = true\n"
        );
        std::fs::write(&config, text).unwrap();
        let server = Server::start(&folder.path().join("store.db"), &config).await;
        let (status, session) = server.post("/sessions", json!({})).await;
        assert!(status < 300, "{session}");
        let host = Self {
            small,
            server,
            session: session["id"].as_str().unwrap().to_owned(),
            _folder: folder,
        };
        let events = host.turn(&format!("{FIRST} {}", "x".repeat(4000))).await;
        assert_eq!(count(&events, "execution.succeeded"), 1, "{events:#?}");
        assert_eq!(host.take_requests().len(), 1);
        host
    }

    fn limit(&self, question: usize, summary: usize) {
        *self.small.limits.lock().unwrap() = Limits { question, summary };
    }

    /// Runs one prompt and gives the whole log.
    async fn turn(&self, prompt: &str) -> Vec<Value> {
        let path = format!("/sessions/{}/inputs", self.session);
        let (status, told) = self.server.post(&path, json!({ "text": prompt })).await;
        assert_eq!(status, 202, "{told}");
        self.server.idle(&self.session).await;
        self.server.events(&self.session).await
    }

    fn take_requests(&self) -> Vec<Value> {
        std::mem::take(&mut self.small.requests.lock().unwrap())
    }
}

fn count(events: &[Value], kind: &str) -> usize {
    events.iter().filter(|event| event["type"] == kind).count()
}

/// A prompt of its own size, which stays when what is before it is summarised.
fn second() -> String {
    format!("the second thing {}", "y".repeat(2000))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compact_6_an_overflow_is_answered_by_one_compaction_and_one_further_request() {
    let host = Host::start().await;
    host.limit(3000, usize::MAX);
    let events = host.turn(&second()).await;
    let requests = host.take_requests();
    let asked: Vec<bool> = requests.iter().map(summarises).collect();
    assert_eq!(asked, [false, true, false], "{requests:#?}");
    assert!(
        messages(&requests[1])
            .iter()
            .any(|text| text.contains(FIRST))
    );
    let further = messages(&requests[2]);
    let summaries = further.iter().filter(|text| *text == SUMMARY);
    assert_eq!(summaries.count(), 1, "{further:?}");
    assert_eq!(further.last(), Some(&second()));
    assert!(
        !further.iter().any(|text| text.contains(FIRST)),
        "{further:?}"
    );
    assert_eq!(count(&events, "context.compacted"), 1);
    assert_eq!(count(&events, "execution.succeeded"), 2, "{events:#?}");

    // The overflow came before any output and left none.
    let refused = events.iter().find(|event| {
        event["type"] == "model.ended" && event["data"]["ending"]["failed"].is_object()
    });
    let refused = refused.expect("the refusal is recorded");
    let class = &refused["data"]["ending"]["failed"]["class"];
    assert_eq!(class, "context_overflow", "{refused}");
    let output = events.iter().any(|event| {
        event["type"] == "step.output" && event["data"]["step"] == refused["data"]["step"]
    });
    assert!(!output);

    // A later turn may overflow and be compacted anew.
    host.limit(2500, usize::MAX);
    let events = host
        .turn(&format!("the third thing {}", "z".repeat(2000)))
        .await;
    assert_eq!(host.take_requests().len(), 3);
    assert_eq!(count(&events, "context.compacted"), 2);
    assert_eq!(count(&events, "execution.succeeded"), 3, "{events:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compact_6_an_overflow_after_the_compaction_fails_the_turn() {
    let host = Host::start().await;
    host.limit(1000, usize::MAX);
    let events = host.turn(&second()).await;
    let requests = host.take_requests();
    let asked: Vec<bool> = requests.iter().map(summarises).collect();
    assert_eq!(asked, [false, true, false], "{requests:#?}");
    let failed = events
        .iter()
        .find(|event| event["type"] == "execution.failed");
    let error = failed.expect("the turn fails")["data"]["error"].to_string();
    assert!(error.contains("even with a summary"), "{error}");
    assert!(error.contains("too long for this model"), "{error}");
    assert_eq!(count(&events, "context.compacted"), 1);

    // Nothing asks again by itself, and the next prompt finds the short context.
    host.limit(usize::MAX, usize::MAX);
    let events = host.turn("and now?").await;
    let requests = host.take_requests();
    assert_eq!(requests.len(), 1, "{requests:#?}");
    let sent = messages(&requests[0]);
    assert!(sent.iter().any(|text| text == SUMMARY), "{sent:?}");
    assert!(!sent.iter().any(|text| text.contains(FIRST)), "{sent:?}");
    assert_eq!(count(&events, "execution.succeeded"), 2, "{events:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compact_6_an_overflow_of_the_summary_itself_fails_the_turn_with_the_context_as_it_was() {
    let host = Host::start().await;
    host.limit(3000, 1000);
    let events = host.turn(&second()).await;
    let requests = host.take_requests();
    let asked: Vec<bool> = requests.iter().map(summarises).collect();
    assert_eq!(asked, [false, true], "{requests:#?}");
    assert_eq!(count(&events, "context.compacted"), 0);
    let kept = events.iter().find(|event| event["type"] == "context.kept");
    let class = &kept.expect("it came to nothing")["data"]["failure"]["class"];
    assert_eq!(class, "context_overflow");
    let failed = events
        .iter()
        .find(|event| event["type"] == "execution.failed");
    let error = failed.expect("the turn fails")["data"]["error"].to_string();
    assert!(error.contains("could not be summarised"), "{error}");

    host.limit(usize::MAX, usize::MAX);
    host.turn("and now?").await;
    let sent = messages(&host.take_requests()[0]);
    assert!(sent.iter().any(|text| text.contains(FIRST)), "{sent:?}");
}
