//! Talks to a server: the one that owns the store, or one that was named.

use std::collections::VecDeque;
use std::time::Duration;

use mainstay_core::access::Access;
use mainstay_core::event::{Delivery, Record};
use mainstay_core::export::Imported;
use mainstay_core::history::{Item, ModelRef};
use mainstay_core::id::{InputId, OwnerId, Seq, SessionId};
use mainstay_core::plugin::Kind;
use mainstay_server::BODY_LIMIT;
use mainstay_server::wire::{
    Admitted, Approval, Collect, Collected, Configure, Interrupted, ModelName, NewAlias, NewAnswer,
    NewInput, NewInterrupt, NewPlugin, NewSession, Node, PROBLEM, Page, Plugin, ProblemBody,
    Session, Synced,
};
use reqwest::{Method, RequestBuilder, Response, StatusCode};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Code, Error, Result};

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<String>,
    patience: Duration,
}

/// How long a server may say nothing. A stream has a sign of life every 15 s.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a connection is kept for another request: well below what servers keep one for.
const KEPT: Duration = Duration::from_secs(10);
/// Room in the body of an input for what is no text.
const ROOM: usize = 256;

/// What to do about a prompt that is too large.
const TOO_LARGE: &str = "shorten it, or put it into a file that a tool of the agent can read";

/// Refuses a prompt that no server takes, before anything is begun for it.
pub(crate) fn check_prompt(text: &str) -> Result<()> {
    // A server counts the text as JSON.
    let bytes = serde_json::to_vec(text).map_or(0, |json| json.len());
    let most = BODY_LIMIT - ROOM;
    if bytes <= most {
        return Ok(());
    }
    let message = format!("the prompt has {bytes} bytes as JSON, and at most {most} are taken");
    Err(Error::new(Code::Usage, message).hint(TOO_LARGE))
}

/// What a stream tells.
#[derive(Debug)]
pub(crate) enum Told {
    Event(Box<Record>),
    /// Every event up to here has been told.
    Synced,
    Live(Live),
}

/// Progress that is not stored.
#[derive(Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Live {
    Text {
        step: Seq,
        text: String,
    },
    Progress {
        call: String,
        message: String,
    },
    #[serde(other)]
    Other,
}

impl Client {
    pub(crate) fn new(base: &str, token: Option<String>) -> Result<Self> {
        let base = base.trim_end_matches('/');
        let base = if base.contains("://") {
            base.to_owned()
        } else {
            format!("http://{base}")
        };
        let http = reqwest::Client::builder()
            .connect_timeout(Duration::from_secs(5))
            .pool_idle_timeout(KEPT)
            .no_proxy()
            .build()
            .map_err(|error| Error::failed("cannot make an HTTP client").because(&error))?;
        Ok(Self {
            http,
            base,
            token,
            patience: PATIENCE,
        })
    }

    pub(crate) async fn create(&self, new: &NewSession) -> Result<Session> {
        self.json(self.request(Method::POST, "/sessions"), Some(new))
            .await
    }

    pub(crate) async fn sessions(&self, limit: u32) -> Result<Page<Session>> {
        self.get(&format!("/sessions?limit={limit}")).await
    }

    pub(crate) async fn session(&self, id: SessionId) -> Result<Session> {
        self.get(&format!("/sessions/{id}")).await
    }

    pub(crate) async fn delete(&self, id: SessionId) -> Result<()> {
        self.answer(self.request(Method::DELETE, &format!("/sessions/{id}")))
            .await
            .map(drop)
    }

    /// Sends a prompt. Sent again on a broken connection: its id makes that safe.
    pub(crate) async fn prompt(
        &self,
        id: SessionId,
        text: &str,
        delivery: Delivery,
    ) -> Result<Admitted> {
        check_prompt(text)?;
        let new = NewInput {
            id: Some(InputId::new()),
            text: Some(text.into()),
            delivery: Some(delivery),
            ..NewInput::default()
        };
        let path = format!("/sessions/{id}/inputs");
        match self
            .json(self.request(Method::POST, &path), Some(&new))
            .await
        {
            Err(error) if error.code == Code::Unavailable => {
                self.json(self.request(Method::POST, &path), Some(&new))
                    .await
            }
            answer => answer,
        }
    }

    /// Changes the model that a session asks from its next step on.
    pub(crate) async fn configure(&self, id: SessionId, model: ModelRef) -> Result<Admitted> {
        let configure = Some(Configure {
            model: ModelName::Apart(model),
        });
        let new = NewInput {
            id: Some(InputId::new()),
            configure,
            ..NewInput::default()
        };
        self.json(
            self.request(Method::POST, &format!("/sessions/{id}/inputs")),
            Some(&new),
        )
        .await
    }

    pub(crate) async fn interrupt(&self, id: SessionId, and_continue: bool) -> Result<Interrupted> {
        let path = format!("/sessions/{id}/interrupt");
        let new = NewInterrupt { and_continue };
        self.json(self.request(Method::POST, &path), Some(&new))
            .await
    }

    /// Does something to a session that its resource of this name stands for.
    pub(crate) async fn act<T: DeserializeOwned>(
        &self,
        method: Method,
        id: SessionId,
        what: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let path = format!("/sessions/{id}/{what}");
        self.json(self.request(method, &path), body).await
    }

    /// A session as JSON lines, as they come.
    pub(crate) async fn export(&self, id: SessionId) -> Result<Response> {
        let path = format!("/sessions/{id}/export");
        self.answer(self.lasting(Method::GET, &path)).await
    }

    /// Sends an export.
    pub(crate) async fn import(&self, body: reqwest::Body, lenient: bool) -> Result<Imported> {
        let path = format!("/imports?lenient={lenient}");
        let request = self
            .lasting(Method::POST, &path)
            .header("content-type", "application/jsonl")
            .body(body);
        self.parse(self.answer(request).await?).await
    }

    pub(crate) async fn approvals(&self, id: SessionId) -> Result<Vec<Approval>> {
        let page: Page<Approval> = self.get(&format!("/sessions/{id}/approvals")).await?;
        Ok(page.items)
    }

    pub(crate) async fn answer_approval(
        &self,
        id: SessionId,
        key: &str,
        answer: &NewAnswer,
    ) -> Result<()> {
        let path = format!("/sessions/{id}/approvals/{}", escape(key));
        let request = self
            .request(Method::POST, &path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(answer).expect("requests serialise"));
        self.answer(request).await.map(drop)
    }

    pub(crate) async fn resume(&self, id: SessionId) -> Result<Session> {
        self.json(
            self.request(Method::POST, &format!("/sessions/{id}/resume")),
            None::<&()>,
        )
        .await
    }

    /// Waits until the session has nothing to do.
    pub(crate) async fn idle(&self, id: SessionId) -> Result<Session> {
        let request = self.lasting(Method::GET, &format!("/sessions/{id}/idle"));
        self.parse(self.answer(request).await?).await
    }

    /// The newest items of a session's history, newest first.
    pub(crate) async fn newest(&self, id: SessionId, limit: u32) -> Result<Vec<Item>> {
        let page: Page<Item> = self
            .get(&format!("/sessions/{id}/messages?order=desc&limit={limit}"))
            .await?;
        Ok(page.items)
    }

    pub(crate) async fn plugins(&self) -> Result<Vec<Plugin>> {
        let page: Page<Plugin> = self.get("/plugins").await?;
        Ok(page.items)
    }

    pub(crate) async fn access(&self) -> Result<Vec<Access>> {
        let page: Page<Access> = self.get("/plugins/access").await?;
        Ok(page.items)
    }

    pub(crate) async fn nodes(&self) -> Result<Vec<Node>> {
        let page: Page<Node> = self.get("/nodes").await?;
        Ok(page.items)
    }

    /// Asks a node to drain, whichever this server is.
    pub(crate) async fn drain(&self, id: OwnerId) -> Result<()> {
        let path = format!("/nodes/{id}/drain");
        self.answer(self.request(Method::POST, &path))
            .await
            .map(drop)
    }

    pub(crate) async fn install(&self, bytes: Vec<u8>, alias: Option<&str>) -> Result<Plugin> {
        let path = match alias {
            Some(alias) => format!("/plugins?alias={}", escape(alias)),
            None => "/plugins".into(),
        };
        let request = self
            .lasting(Method::POST, &path)
            .header("content-type", "application/wasm")
            .body(bytes);
        self.parse(self.answer(request).await?).await
    }

    /// Lets the server load a plugin from a registry, as far as it knows the way and the credentials.
    pub(crate) async fn load(&self, reference: &str, alias: Option<&str>) -> Result<Plugin> {
        let new = NewPlugin {
            reference: reference.into(),
            alias: alias.map(str::to_owned),
        };
        self.json(self.lasting(Method::POST, "/plugins"), Some(&new))
            .await
    }

    pub(crate) async fn remove(&self, kind: Kind, alias: &str) -> Result<()> {
        let path = format!("/plugins/{kind}/{}", escape(alias));
        self.answer(self.request(Method::DELETE, &path))
            .await
            .map(drop)
    }

    pub(crate) async fn alias(&self, kind: Kind, alias: &str, digest: &str) -> Result<Plugin> {
        let path = format!("/plugins/{kind}/{}", escape(alias));
        let new = NewAlias {
            digest: digest.into(),
        };
        self.json(self.request(Method::PUT, &path), Some(&new))
            .await
    }

    /// Removes what nothing needs, or tells what would go.
    pub(crate) async fn collect(&self, ask: &Collect) -> Result<Collected> {
        self.json(self.lasting(Method::POST, "/gc"), Some(ask))
            .await
    }

    /// Follows a session from behind `after`. Connects again by itself, without a gap.
    pub(crate) async fn follow(&self, id: SessionId, after: Seq) -> Result<Follow> {
        let mut follow = Follow {
            client: self.clone(),
            session: id,
            after,
            response: None,
            parser: Parser::default(),
            told: VecDeque::new(),
        };
        follow.connect().await?;
        Ok(follow)
    }

    /// What is answered at once.
    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.lasting(method, path).timeout(self.patience)
    }

    /// What may take as long as it takes.
    fn lasting(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.http.request(method, format!("{}/v1{path}", self.base));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T> {
        self.parse(self.answer(self.request(Method::GET, path)).await?)
            .await
    }

    async fn json<T: DeserializeOwned>(
        &self,
        request: RequestBuilder,
        body: Option<&impl Serialize>,
    ) -> Result<T> {
        let request = match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(serde_json::to_vec(body).expect("requests serialise")),
            None => request,
        };
        self.parse(self.answer(request).await?).await
    }

    async fn answer(&self, request: RequestBuilder) -> Result<Response> {
        let response = request
            .send()
            .await
            .map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let bytes = response
            .bytes()
            .await
            .map_err(|error| self.unreachable(&error))?;
        Err(self.problem(status, &bytes))
    }

    async fn parse<T: DeserializeOwned>(&self, response: Response) -> Result<T> {
        let bytes = response
            .bytes()
            .await
            .map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes).map_err(|error| {
            Error::failed(format!(
                "the server at {} answers something else than expected",
                self.base
            ))
            .because(&error)
            .hint("use the same version of `mainstay` on both sides")
        })
    }

    fn silent(&self) -> Error {
        Error::new(
            Code::Unavailable,
            format!("the server at {} does not answer", self.base),
        )
        .cause(format!("it has said nothing for {:?}", self.patience))
        .hint("see whether that process is stopped, or its machine overloaded")
    }

    fn unreachable(&self, error: &reqwest::Error) -> Error {
        if error.is_timeout() && !error.is_connect() {
            return self.silent();
        }
        Error::new(
            Code::Unavailable,
            format!("the server at {} cannot be reached", self.base),
        )
        .because(error)
    }

    fn problem(&self, status: StatusCode, bytes: &[u8]) -> Error {
        let Ok(problem) = serde_json::from_slice::<ProblemBody>(bytes) else {
            return Error::new(
                Code::Unavailable,
                format!("the server at {} answers with status {status}", self.base),
            )
            .hint("see whether this is a Mainstay server");
        };
        let (code, hint) = match problem.kind.strip_prefix(PROBLEM).unwrap_or_default() {
            "session-not-found" => (
                Code::NotFound,
                Some("list the sessions with `mainstay session list`"),
            ),
            "plugin-not-found" => (
                Code::NotFound,
                Some("list the plugins with `mainstay plugin list`"),
            ),
            "node-not-found" => (
                Code::NotFound,
                Some("list the nodes with `mainstay node list`"),
            ),
            "session-held" => (
                Code::Conflict,
                Some("let it go on with `mainstay session resume ID`"),
            ),
            "session-imported" => (
                Code::Conflict,
                Some("make it this store's own with `mainstay session adopt ID`"),
            ),
            "approval-not-found" => (
                Code::NotFound,
                Some("list what is asked with `mainstay session approvals ID`"),
            ),
            "session-quarantined" => (
                Code::Conflict,
                Some("let it go on with `mainstay session resume ID`"),
            ),
            "session-cancelled" => (
                Code::Conflict,
                Some("begin another with `mainstay run \"…\"`"),
            ),
            "busy" => (
                Code::Conflict,
                Some("stop it with `mainstay session interrupt ID`, then try again"),
            ),
            "nothing-there" => (
                Code::Conflict,
                Some("look at its messages with `mainstay session show ID`"),
            ),
            "plugin-refused" => (
                Code::PluginRefused,
                Some("see what it asks for with `mainstay plugin inspect FILE`"),
            ),
            "artifact-refused" => (Code::PluginRefused, None),
            "artifact-not-found" => (Code::NotFound, None),
            "registry-denied" => (Code::Config, None),
            "registry-unreachable" => (Code::Unavailable, None),
            "unauthorized" => (
                Code::Config,
                Some("give the server's token with `--token` or MAINSTAY_TOKEN"),
            ),
            "file-damaged" => (Code::Damaged, None),
            "body-too-large" => (Code::Usage, Some(TOO_LARGE)),
            "invalid" | "bad-request" => (Code::Usage, None),
            "unavailable" => (Code::Unavailable, None),
            _ if status == StatusCode::CONFLICT => (Code::Conflict, None),
            _ if status == StatusCode::NOT_FOUND => (Code::NotFound, None),
            _ => (Code::Failed, None),
        };
        let error = Error::new(code, problem.title.to_lowercase()).cause(problem.detail);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    }
}

/// A session's events as they come.
pub(crate) struct Follow {
    client: Client,
    session: SessionId,
    /// The last seq that was told.
    after: Seq,
    response: Option<Response>,
    parser: Parser,
    told: VecDeque<Told>,
}

impl Follow {
    async fn connect(&mut self) -> Result<()> {
        let request = self
            .client
            .lasting(Method::GET, &format!("/sessions/{}/events", self.session))
            .header("accept", "text/event-stream")
            .header("last-event-id", self.after.to_string());
        self.parser = Parser::default();
        let answer = tokio::time::timeout(self.client.patience, self.client.answer(request)).await;
        self.response = Some(answer.unwrap_or_else(|_| Err(self.client.silent()))?);
        Ok(())
    }

    /// What comes next; `None` when the session is gone.
    ///
    /// # Cancel safety
    /// Safe: a dropped call has taken nothing.
    pub(crate) async fn next(&mut self) -> Result<Option<Told>> {
        let mut failures = 0;
        loop {
            if let Some(told) = self.told.pop_front() {
                if let Told::Event(record) = &told {
                    self.after = record.seq;
                }
                return Ok(Some(told));
            }
            if let Some(response) = &mut self.response {
                match tokio::time::timeout(self.client.patience, response.chunk()).await {
                    Ok(Ok(Some(bytes))) => {
                        self.parser.feed(&bytes, &mut self.told);
                        continue;
                    }
                    Ok(Ok(None) | Err(_)) => self.response = None,
                    Err(_) => return Err(self.client.silent()),
                }
            }
            match self.connect().await {
                Ok(()) => failures = 0,
                Err(error) if error.code == Code::NotFound => return Ok(None),
                Err(error) if failures == 5 || error.code != Code::Unavailable => {
                    return Err(error);
                }
                Err(_) => failures += 1,
            }
            if failures > 0 {
                tokio::time::sleep(Duration::from_millis(200 << failures)).await;
            }
        }
    }
}

/// Reads a stream of server-sent events.
#[derive(Debug, Default)]
struct Parser {
    line: Vec<u8>,
    event: String,
    data: String,
}

impl Parser {
    fn feed(&mut self, bytes: &[u8], told: &mut VecDeque<Told>) {
        for byte in bytes {
            match byte {
                b'\n' => {
                    let line = std::mem::take(&mut self.line);
                    let line = String::from_utf8_lossy(&line);
                    self.line(line.trim_end_matches('\r'), told);
                }
                _ => self.line.push(*byte),
            }
        }
    }

    fn line(&mut self, line: &str, told: &mut VecDeque<Told>) {
        if line.is_empty() {
            let event = std::mem::take(&mut self.event);
            let data = std::mem::take(&mut self.data);
            if data.is_empty() {
                return;
            }
            // What a newer server tells and we do not know is passed over.
            match event.as_str() {
                "synced" if serde_json::from_str::<Synced>(&data).is_ok() => {
                    told.push_back(Told::Synced)
                }
                "synced" => {}
                "live" => told.extend(serde_json::from_str(&data).ok().map(Told::Live)),
                _ => told.extend(
                    serde_json::from_str(&data)
                        .ok()
                        .map(|record| Told::Event(Box::new(record))),
                ),
            }
            return;
        }
        let (field, value) = line.split_once(':').unwrap_or((line, ""));
        let value = value.strip_prefix(' ').unwrap_or(value);
        match field {
            "event" => self.event = value.into(),
            "data" => {
                if !self.data.is_empty() {
                    self.data.push('\n');
                }
                self.data.push_str(value);
            }
            _ => {}
        }
    }
}

/// One segment of a path or value of a query.
fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(byte as char);
        } else {
            escaped.push_str(&format!("%{byte:02X}"));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_read_however_it_is_cut() {
        let stream = ": keep-alive\n\nevent: synced\ndata: {\"seq\":3}\n\nevent: live\r\n\
                      data: {\"type\":\"text\",\"step\":2,\"text\":\"ä\"}\r\n\r\nevent: live\ndata: {\"type\":\"new\"}\n\n";
        for cut in 0..stream.len() {
            let mut parser = Parser::default();
            let mut told = VecDeque::new();
            parser.feed(&stream.as_bytes()[..cut], &mut told);
            parser.feed(&stream.as_bytes()[cut..], &mut told);
            assert!(
                matches!(
                    told.make_contiguous(),
                    [Told::Synced, Told::Live(Live::Text { step: 2, text }), Told::Live(Live::Other)] if text == "ä"
                ),
                "cut at {cut}: {told:?}"
            );
        }
    }

    /// A server that takes a request on each connection, begins to answer with `words`, and falls silent.
    async fn silent(words: &'static str) -> Client {
        use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
        let listener = listener.expect("an address");
        let address = listener.local_addr().expect("an address").to_string();
        tokio::spawn(async move {
            let mut taken = Vec::new();
            while let Ok((mut stream, _)) = listener.accept().await {
                let _ = stream.read(&mut [0; 1024]).await;
                let _ = stream.write_all(words.as_bytes()).await;
                taken.push(stream);
            }
        });
        let _ = rustls::crypto::ring::default_provider().install_default();
        Client {
            patience: Duration::from_millis(100),
            ..Client::new(&address, None).expect("a client")
        }
    }

    /// Waits for an answer that does not come.
    async fn given_up<T: std::fmt::Debug>(answer: impl Future<Output = Result<T>>) {
        let answer = tokio::time::timeout(Duration::from_secs(60), answer).await;
        let error = answer.expect("it gives up").expect_err("nobody answers");
        assert_eq!(error.code, Code::Unavailable, "{error:?}");
        assert!(error.message.contains("does not answer"), "{error:?}");
        assert!(error.causes[0].contains("100ms"), "{error:?}");
    }

    #[tokio::test]
    async fn a_silent_server_is_given_up() {
        const BEGUN: &str = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n";
        let id = SessionId::new();
        for words in ["", "HTTP/1.1 200", BEGUN] {
            let client = silent(words).await;
            given_up(client.session(id)).await;
            given_up(client.prompt(id, "hello", Delivery::Queue)).await;
        }
        for words in ["", "HTTP/1.1 200"] {
            let client = silent(words).await;
            given_up(async { client.follow(id, 0).await.map(drop) }).await;
        }
        // A stream that began, and has no sign of life.
        let client = silent(BEGUN).await;
        let mut stream = client.follow(id, 0).await.expect("it begins");
        given_up(stream.next()).await;
    }

    #[test]
    fn the_largest_prompt_fits_a_body() {
        let text = "\"".repeat((BODY_LIMIT - ROOM - 2) / 2);
        check_prompt(&text).expect("it is taken");
        let new = NewInput {
            id: Some(InputId::new()),
            text: Some(text.clone()),
            delivery: Some(Delivery::Queue),
            ..NewInput::default()
        };
        let body = serde_json::to_vec(&new).expect("it serialises");
        assert!(body.len() <= BODY_LIMIT, "{}", body.len());
        let error = check_prompt(&(text + "\"")).expect_err("it is refused");
        assert_eq!(error.code, Code::Usage);
    }

    #[test]
    fn names_are_escaped_in_paths() {
        assert_eq!(escape("a/b ä"), "a%2Fb%20%C3%A4");
    }
}
