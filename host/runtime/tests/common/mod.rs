//! A runtime to test, and what stands around it.

#![allow(dead_code, unreachable_pub, reason = "each test file uses its part")]

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::history::{Item, ItemBody, ModelRef, Order, Size};
use mainstay_core::id::SessionId;
use mainstay_core::model::{
    Effect, Message, ModelOptions, Part, Range, ToolCall, ToolChoice, text_of,
};
use mainstay_core::plugin::{
    AgentView, Budget, CallError, CallRequest, HistoryReader, ModelRequest, Output, PluginInfo,
    Plugins, Progress, ProviderConfig, Trigger, View,
};
use mainstay_runtime::egress::{Egress, EgressLimits, MediaSource, Redactor, Resolver};
use mainstay_runtime::limits::Limits;
use mainstay_runtime::{MemorySource, Runtime, RuntimeConfig};
use tokio_util::sync::CancellationToken;

/// Guests that may be alive at the same time.
pub const INSTANCES: u32 = 32;

pub struct Host {
    pub runtime: Arc<Runtime>,
    pub source: Arc<MemorySource>,
    pub egress: Arc<Egress>,
    pub names: Arc<Names>,
    pub media: Arc<Media>,
    pub dir: tempfile::TempDir,
}

pub fn host() -> Host {
    host_with(Limits::default(), EgressLimits::default())
}

pub fn host_with(limits: Limits, egress_limits: EgressLimits) -> Host {
    let dir = tempfile::tempdir().unwrap();
    let source = Arc::new(MemorySource::new());
    let names = Arc::new(Names::default());
    let media = Arc::new(Media::default());
    let egress = Arc::new(
        Egress::new(names.clone(), media.clone(), Redactor::new(), egress_limits).unwrap(),
    );
    let runtime = runtime_in(dir.path(), limits, source.clone(), egress.clone());
    Host {
        runtime,
        source,
        egress,
        names,
        media,
        dir,
    }
}

pub fn runtime_in(
    dir: &Path,
    limits: Limits,
    source: Arc<MemorySource>,
    egress: Arc<Egress>,
) -> Arc<Runtime> {
    let config = RuntimeConfig {
        limits,
        instances: INSTANCES,
        ..RuntimeConfig::new(dir)
    };
    Arc::new(Runtime::new(config, source, egress).unwrap())
}

impl Host {
    pub async fn install(&self, bytes: &[u8]) -> Arc<PluginInfo> {
        self.runtime.install(bytes).await.unwrap()
    }

    /// Calls a tool under the alias `tools`.
    pub async fn call(
        &self,
        digest: &str,
        tool: &str,
        arguments: serde_json::Value,
    ) -> Result<String, CallError> {
        let outputs = self.runtime.call(digest, request(tool, arguments)).await?;
        Ok(outputs
            .into_iter()
            .map(|output| match output {
                Output::Text(text) => text,
                Output::Media(media) => format!("[{}]", media.media_type),
            })
            .collect())
    }
}

pub fn request(tool: &str, arguments: serde_json::Value) -> CallRequest {
    CallRequest {
        session: SessionId::new(),
        call: ToolCall {
            id: "call-1".to_owned(),
            tool: tool.to_owned(),
            arguments: arguments.to_string(),
        },
        effect: Effect::Pure,
        idempotency_key: "key-1".to_owned(),
        earlier_runs: 0,
        options: None,
        toolbox: "tools".to_owned(),
        cancel: CancellationToken::new(),
        progress: Progress(Arc::new(|_| {})),
    }
}

/// A view of a session with one prompt.
pub fn view(prompt: &str) -> View {
    let all = Range {
        after: 0,
        through: 1,
    };
    View {
        session: SessionId::new(),
        now: 1_000_000,
        trigger: Trigger::TurnStarted,
        fresh: all,
        context: all,
        history: Arc::new(History(vec![Item {
            seq: 1,
            at: 1_000_000,
            body: ItemBody::User(vec![Part::Text(prompt.to_owned())]),
        }])),
        open_calls: Vec::new(),
        agent: AgentView {
            name: "agent".to_owned(),
            system_prompt: None,
            model: ModelRef {
                provider: "provider".to_owned(),
                model: "model".to_owned(),
            },
            model_info: None,
            options: None,
        },
        tools: Vec::new(),
        budget: Budget {
            steps: 10,
            tokens: None,
            cost: None,
            time_ms: None,
        },
        state: None,
    }
}

pub fn model_request(prompt: &str, config: ProviderConfig) -> ModelRequest {
    ModelRequest {
        model: "model".to_owned(),
        messages: vec![Message::User(vec![Part::Text(prompt.to_owned())])],
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
        config,
    }
}

pub struct History(pub Vec<Item>);

#[async_trait]
impl HistoryReader for History {
    async fn read(
        &self,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<(Vec<Item>, bool), BoxError> {
        let mut items: Vec<Item> = self
            .0
            .iter()
            .filter(|item| item.seq > range.after && item.seq <= range.through)
            .cloned()
            .collect();
        if order == Order::NewestFirst {
            items.reverse();
        }
        let more = items.len() > limit as usize;
        items.truncate(limit as usize);
        Ok((items, more))
    }

    async fn measure(&self, range: Range) -> Result<Size, BoxError> {
        let (items, _) = self.read(range, Order::OldestFirst, u32::MAX).await?;
        Ok(Size {
            items: items.len() as u64,
            bytes: items.iter().map(Item::text_bytes).sum(),
        })
    }

    async fn read_media(
        &self,
        _digest: &str,
        _offset: u64,
        _length: u32,
    ) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(None)
    }
}

/// Names that tests give to addresses.
#[derive(Default)]
pub struct Names {
    known: Mutex<HashMap<String, Vec<IpAddr>>>,
    pub lookups: AtomicUsize,
}

impl Names {
    pub fn set(&self, name: &str, address: &str) {
        self.known
            .lock()
            .unwrap()
            .insert(name.to_owned(), vec![address.parse().unwrap()]);
    }

    pub fn lookups(&self) -> usize {
        self.lookups.load(Ordering::SeqCst)
    }
}

#[async_trait]
impl Resolver for Names {
    async fn lookup(&self, name: &str) -> std::io::Result<Vec<IpAddr>> {
        self.lookups.fetch_add(1, Ordering::SeqCst);
        Ok(self
            .known
            .lock()
            .unwrap()
            .get(name)
            .cloned()
            .unwrap_or_default())
    }
}

#[derive(Default)]
pub struct Media(pub Mutex<HashMap<String, Vec<u8>>>);

#[async_trait]
impl MediaSource for Media {
    async fn get(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.0.lock().unwrap().get(digest).cloned())
    }
}

/// A server on this machine.
pub async fn serve(router: axum::Router) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    address
}

/// Lines logged on this thread while the guard lives.
#[derive(Clone, Default)]
pub struct Log(Arc<Mutex<Vec<u8>>>);

impl Log {
    pub fn start() -> (Self, tracing::subscriber::DefaultGuard) {
        let log = Self::default();
        let writer = log.clone();
        let subscriber = tracing_subscriber::fmt()
            .with_max_level(tracing::Level::TRACE)
            .with_ansi(false)
            .with_writer(move || writer.clone())
            .finish();
        let guard = tracing::subscriber::set_default(subscriber);
        (log, guard)
    }

    pub fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }

    pub fn guest_lines(&self) -> Vec<String> {
        self.text()
            .lines()
            .filter(|line| line.contains(" guest: "))
            .map(str::to_owned)
            .collect()
    }
}

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// `component` with every `from` replaced by a `to` of the same length: another name of an interface,
/// say.
pub fn patched(component: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "lengths stand before names");
    let mut bytes = component.to_vec();
    let mut at = 0;
    let mut count = 0;
    while at + from.len() <= bytes.len() {
        if bytes[at..].starts_with(from.as_bytes()) {
            bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
            count += 1;
        }
        at += 1;
    }
    assert!(count > 0, "{from} is not in the component");
    bytes
}

pub fn text(parts: &[Part]) -> String {
    text_of(parts)
}
