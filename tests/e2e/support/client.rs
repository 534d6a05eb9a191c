//! A client that keeps at it: every request is repeated under the same ids until it is answered, by
//! whichever server lives by then, and every answer is written down.

use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use uuid::Uuid;

use super::DEADLINE;

/// How long one answer may take before another server is asked.
const PATIENCE: Duration = Duration::from_secs(10);

/// What one session's client was told.
#[derive(Debug, Default)]
pub(crate) struct Told {
    pub(crate) session: String,
    /// Inputs with the seqs of their admission.
    pub(crate) inputs: Vec<(String, u64)>,
    /// In the order of their seqs.
    pub(crate) events: Vec<Value>,
}

/// Where servers of one store answer, each with the version of the API.
pub(crate) type Addresses = Arc<[String]>;

/// Sends and reads until it is answered.
pub(crate) struct Reader {
    addresses: Addresses,
    http: reqwest::Client,
}

impl Reader {
    pub(crate) fn new(addresses: Addresses, http: reqwest::Client) -> Self {
        Self { addresses, http }
    }

    /// The first whole answer, of any server, however many it takes.
    pub(crate) async fn send(
        &self,
        method: Method,
        path: &str,
        body: Option<&Value>,
    ) -> (u16, Value) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let address = &self.addresses[rand::random_range(0..self.addresses.len())];
            let mut request = self
                .http
                .request(method.clone(), format!("{address}{path}"))
                .timeout(PATIENCE);
            if let Some(body) = body {
                request = request
                    .header("content-type", "application/json")
                    .body(body.to_string());
            }
            if let Ok(answer) = request.send().await {
                let status = answer.status().as_u16();
                if let Ok(text) = answer.text().await
                    && status != 503
                {
                    return (status, serde_json::from_str(&text).unwrap_or(Value::Null));
                }
            }
            assert!(
                Instant::now() < deadline,
                "{method} {path} is never answered"
            );
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub(crate) async fn events(&self, session: &str, after: u64) -> Vec<Value> {
        let mut all: Vec<Value> = Vec::new();
        loop {
            let after = all
                .last()
                .map_or(after, |event: &Value| event["seq"].as_u64().unwrap());
            let path = format!("/sessions/{session}/events?after={after}");
            let (status, body) = self.send(Method::GET, &path, None).await;
            assert_eq!(status, 200, "{body}");
            let page = body["items"].as_array().expect("a page of events");
            if page.is_empty() {
                return all;
            }
            all.extend(page.iter().cloned());
        }
    }

    /// Waits until the session is idle.
    pub(crate) async fn idle(&self, session: &str) {
        let path = format!("/sessions/{session}/idle");
        let (status, body) = self.send(Method::GET, &path, None).await;
        assert_eq!(status, 200, "{body}");
    }
}

pub(crate) struct Client {
    reader: Reader,
    /// Where tools post to.
    outside: u16,
    chance: StdRng,
    stop: CancellationToken,
    told: Vec<Told>,
}

impl Client {
    pub(crate) fn new(
        addresses: Addresses,
        outside: u16,
        seed: u64,
        stop: CancellationToken,
    ) -> Self {
        Self {
            reader: Reader::new(addresses, reqwest::Client::new()),
            outside,
            chance: StdRng::seed_from_u64(seed),
            stop,
            told: Vec::new(),
        }
    }

    /// Works until it is stopped, and gives what it was told.
    pub(crate) async fn run(mut self) -> Vec<Told> {
        while !self.stop.is_cancelled() {
            if self.told.is_empty() || (self.told.len() < 12 && self.chance.random_bool(0.05)) {
                self.create().await;
            }
            let at = self.chance.random_range(0..self.told.len());
            match self.chance.random_range(0..100) {
                0..=54 => self.prompt(at).await,
                55..=62 => self.interrupt(at).await,
                63..=70 => self.cancel_input(at).await,
                _ => self.read(at).await,
            }
            let pause = self.chance.random_range(0..120);
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
        for at in 0..self.told.len() {
            self.read(at).await;
        }
        self.told
    }

    async fn create(&mut self) {
        let id = Uuid::now_v7().to_string();
        let body = json!({ "id": id });
        let (status, answer) = self
            .reader
            .send(Method::POST, "/sessions", Some(&body))
            .await;
        assert!(status < 300, "{status}: {answer}");
        assert_eq!(answer["id"], id.as_str());
        self.told.push(Told {
            session: id,
            ..Told::default()
        });
    }

    async fn prompt(&mut self, at: usize) {
        let session = self.told[at].session.clone();
        let id = Uuid::now_v7().to_string();
        let url = format!("http://127.0.0.1:{}/post/{session}", self.outside);
        let text = match self.chance.random_range(0..4) {
            0 => "say at once".to_owned(),
            1 => "slow 15 one two three four five six seven eight nine ten".to_owned(),
            2 => format!(
                "slow 5 I write it down\ncall file_write {}\nthen\nsay written: {{result}}",
                json!({ "path": "note.txt", "content": id })
            ),
            _ => format!(
                "slow 5 I post it\ncall web_post {}\nthen\nslow 5 posted: {{result}}",
                json!({ "url": url, "body": "{}" })
            ),
        };
        let delivery = if self.chance.random_bool(0.3) {
            "steer"
        } else {
            "queue"
        };
        let body = json!({ "id": id, "text": text, "delivery": delivery });
        let path = format!("/sessions/{session}/inputs");
        let (status, answer) = self.reader.send(Method::POST, &path, Some(&body)).await;
        assert_eq!(status, 202, "{answer}");
        assert_eq!(answer["input"], id.as_str());
        let seq = answer["seq"].as_u64().unwrap();
        if self.chance.random_bool(0.2) {
            let (status, again) = self.reader.send(Method::POST, &path, Some(&body)).await;
            assert_eq!((status, again["seq"].as_u64()), (202, Some(seq)), "{again}");
        }
        self.told[at].inputs.push((id, seq));
    }

    async fn interrupt(&mut self, at: usize) {
        let path = format!("/sessions/{}/interrupt", self.told[at].session);
        let (status, answer) = self.reader.send(Method::POST, &path, None).await;
        assert!(status < 300, "{status}: {answer}");
    }

    async fn cancel_input(&mut self, at: usize) {
        let Some((input, _)) = self.told[at].inputs.last() else {
            return;
        };
        let path = format!("/sessions/{}/inputs/{input}", self.told[at].session);
        let (status, answer) = self.reader.send(Method::DELETE, &path, None).await;
        // Promoted, or cancelled by a request whose answer was lost.
        assert!(status < 300 || status == 409, "{status}: {answer}");
    }

    async fn read(&mut self, at: usize) {
        let told = &mut self.told[at];
        let after = told
            .events
            .last()
            .map_or(0, |event| event["seq"].as_u64().unwrap());
        told.events
            .extend(self.reader.events(&told.session, after).await);
    }
}
