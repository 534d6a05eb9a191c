//! The host's side of the port `Plugins`: loads components, and gives every call an instance.

mod held;
mod load;
mod place;
mod reused;
mod toolbox;
mod uninterruptible;

pub use reused::ReusedRunner;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use held::{decision, request_bytes};
use mainstay_core::id::Digest;
use mainstay_core::model::{Failure, FailureClass};
use mainstay_core::plugin::{
    CallError, CallRequest, Decision, Decoder, EgressError, Exchange, GuestError, HttpAnswer,
    HttpRequest, Kind, LocalEvent, ModelRequest, Output, PluginInfo, Plugins, ProviderConfig,
    ResponseHead, Tool, View,
};
use mainstay_core::{BoxError, chain};
use place::lasting;
use tokio::sync::{OnceCell, Semaphore};
use toolbox::ListError;
use wasmtime::Engine;
use wasmtime::component::Linker;

use crate::bindings::v0_1_0::models;
use crate::bindings::{VERSIONS, convert};
use crate::cache::Cache;
use crate::decoder::{LiveDecoder, Tally};
use crate::egress::{Egress, Sender};
use crate::engine::{self, Guests};
use crate::host::history::History;
use crate::host::{Guest, link, wasi};
use crate::instance::{Function, Label, Linked, Stay};
use crate::limits::{Breach, Limits};
use crate::registry::ComponentSource;

/// How a runtime is set up.
#[derive(Clone, Debug)]
pub struct RuntimeConfig {
    /// Compiled code is kept here. May be emptied at any time.
    pub cache_dir: PathBuf,
    /// Each session that uses files has a folder in here.
    pub workspaces_dir: PathBuf,
    pub limits: Limits,
    /// Guests that may be alive at the same time, two at least; more wait. One in eight is kept for
    /// those that answer at once, so that no decision waits for the end of an answer or of a tool's call.
    pub instances: u32,
}

impl RuntimeConfig {
    /// Everything under `data_dir`, with the limits that the WIT package names.
    #[must_use]
    pub fn new(data_dir: impl Into<PathBuf>) -> Self {
        let data_dir = data_dir.into();
        Self {
            cache_dir: data_dir.join("compiled"),
            workspaces_dir: data_dir.join("workspaces"),
            limits: Limits::default(),
            instances: 512,
        }
    }
}

/// A component that can be called.
struct Loaded {
    info: Arc<PluginInfo>,
    label: Arc<Label>,
    linked: Linked,
}

/// Wasmtime behind the port [`Plugins`].
pub struct Runtime {
    config: RuntimeConfig,
    engine: Engine,
    cache: Cache,
    linkers: [Linker<Guest>; 3],
    source: Arc<dyn ComponentSource>,
    egress: Arc<Egress>,
    /// By digest. The cell makes concurrent loads of one component one load.
    loaded: Mutex<HashMap<Digest, Arc<OnceCell<Arc<Loaded>>>>>,
    /// As many places as the pool has.
    places: Arc<Semaphore>,
    /// Those of them that guests may have which live for as long as a server or the world takes.
    lasting: Arc<Semaphore>,
}

impl Runtime {
    /// # Errors
    /// The engine cannot be made on this machine: no room for its pool, an unknown processor.
    pub fn new(
        config: RuntimeConfig,
        source: Arc<dyn ComponentSource>,
        egress: Arc<Egress>,
    ) -> Result<Self, BoxError> {
        let engine = engine::engine(config.instances, Guests::Interruptible)?;
        Self::on(engine, config, source, egress)
    }

    fn on(
        engine: Engine,
        config: RuntimeConfig,
        source: Arc<dyn ComponentSource>,
        egress: Arc<Egress>,
    ) -> Result<Self, BoxError> {
        let linker = |kind| {
            let mut linker = Linker::new(&engine);
            link(&mut linker, kind)?;
            Ok::<_, wasmtime::Error>(linker)
        };
        Ok(Self {
            linkers: [
                linker(Kind::Runner)?,
                linker(Kind::Provider)?,
                linker(Kind::Toolbox)?,
            ],
            cache: Cache::new(engine.clone(), &config.cache_dir),
            places: Arc::new(Semaphore::new(config.instances as usize)),
            lasting: Arc::new(Semaphore::new(lasting(config.instances))),
            engine,
            config,
            source,
            egress,
            loaded: Mutex::default(),
        })
    }

    /// The way out, on which grants are set.
    #[must_use]
    pub fn egress(&self) -> &Arc<Egress> {
        &self.egress
    }

    /// Versions of `mainstay:plugin` that this host takes.
    #[must_use]
    pub fn versions() -> &'static [&'static str] {
        VERSIONS
    }

    /// How often a component was compiled by this runtime.
    #[must_use]
    pub fn compilations(&self) -> u64 {
        self.cache.compilations()
    }
}
/// Of an error answer that `classify` sees.
const CLASSIFY_BYTES: usize = 64 << 10;
/// Of the text of an error that a guest gives.
const MESSAGE_BYTES: usize = 4 << 10;

#[async_trait]
impl Plugins for Runtime {
    async fn resolve(&self, kind: Kind, alias: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        let Some(digest) = self.source.alias(kind, alias).await? else {
            return Ok(None);
        };
        let info = self.info(&digest).await?;
        Ok(info.filter(|info| info.kind == kind))
    }

    async fn info(&self, digest: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        let cell = self
            .loaded
            .lock()
            .expect("no panic under this lock")
            .get(digest)
            .cloned();
        if let Some(loaded) = cell.as_ref().and_then(|cell| cell.get()) {
            return Ok(Some(Arc::clone(&loaded.info)));
        }
        Ok(self.source.info(digest).await?.map(Arc::new))
    }

    async fn decide(&self, digest: &str, view: View) -> Result<Decision, GuestError> {
        let loaded = self.component(digest, Kind::Runner).await?;
        let Linked::Runner(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let limits = &self.config.limits.runner;
        let function = Function {
            name: "decide",
            output: "decision",
            output_bytes: limits.decision_bytes,
        };
        let context = format!("session {} step at {}", view.session, view.now);
        let wasi = wasi::inert(&view.session.to_string(), view.now);
        let mut instance = self
            .instance(&loaded, limits.decide, wasi, Stay::Short)
            .await;
        let history = instance.lend(History(Arc::clone(&view.history)))?;
        let view = convert::view(view, history);
        let answer = instance
            .run(function, context, async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_steps()
                    .call_decide(store, &view)
                    .await
            })
            .await?;
        decision(limits, &instance, answer)
    }

    async fn encode(&self, digest: &str, request: ModelRequest) -> Result<Exchange, GuestError> {
        let loaded = self.component(digest, Kind::Provider).await?;
        let Linked::Provider(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let limits = &self.config.limits.provider;
        let function = Function {
            name: "encode",
            output: "exchange",
            output_bytes: limits.exchange_bytes,
        };
        let request: models::ModelRequest = request.into();
        let mut instance = self.pure(&loaded, limits.encode).await;
        let answer = instance
            .run(function, String::new(), async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_models()
                    .call_encode(store, &request)
                    .await
            })
            .await?;
        let exchange: Exchange = match answer {
            Ok(exchange) => exchange.into(),
            Err(models::EncodeError::Unsupported(text)) => {
                return Err(instance.refused("encode", format_args!("unsupported: {}", cut(&text))));
            }
            Err(models::EncodeError::Config(text)) => {
                return Err(
                    instance.refused("encode", format_args!("its configuration: {}", cut(&text)))
                );
            }
            Err(models::EncodeError::Failed(text)) => {
                return Err(instance.refused("encode", cut(&text)));
            }
        };
        let bytes = match &exchange {
            Exchange::Http { request, memo } => {
                if memo.len() > limits.memo_bytes {
                    let breach = Breach::output("memo", limits.memo_bytes);
                    return Err(instance.breach("encode", &breach).into());
                }
                request_bytes(request) + memo.len()
            }
            Exchange::Local(events) => {
                let mut tally = Tally::new(limits);
                for LocalEvent { event, .. } in events {
                    tally
                        .bytes(event)
                        .map_err(|breach| instance.breach("encode", &breach))?;
                }
                tally.counted_bytes()
            }
        };
        if bytes > limits.exchange_bytes {
            let breach = Breach::output("exchange", limits.exchange_bytes);
            return Err(instance.breach("encode", &breach).into());
        }
        Ok(exchange)
    }

    async fn decoder(
        &self,
        digest: &str,
        head: ResponseHead,
        memo: Vec<u8>,
    ) -> Result<Box<dyn Decoder>, GuestError> {
        let loaded = self.component(digest, Kind::Provider).await?;
        let Linked::Provider(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let limits = self.config.limits.provider;
        let function = Function {
            name: "decoder",
            output: "answer",
            output_bytes: limits.event_bytes,
        };
        let head = convert::response(head, Vec::new());
        let mut instance = self.pure_for(&loaded, limits.decode, Stay::Lasting).await;
        let (guest, resource) = instance
            .run(function, String::new(), async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                let resource = guest
                    .mainstay_plugin_models()
                    .decoder()
                    .call_constructor(store, &head, &memo)
                    .await?;
                Ok((guest, resource))
            })
            .await?;
        Ok(Box::new(LiveDecoder::new(
            instance, guest, resource, limits,
        )))
    }

    async fn classify(&self, digest: &str, head: ResponseHead, mut body: Vec<u8>) -> Failure {
        let status = head.status;
        body.truncate(CLASSIFY_BYTES);
        match self.classify_by_guest(digest, head, body).await {
            Ok(mut failure) => {
                let message = self.egress.redactor().redact(&failure.message);
                failure.message = cut(&message).to_owned();
                failure
            }
            Err(error) => {
                tracing::warn!("an error answer is judged by its status alone: {error}");
                by_status(status)
            }
        }
    }

    async fn tools(&self, digest: &str, options: Option<String>) -> Result<Vec<Tool>, GuestError> {
        let loaded = self.component(digest, Kind::Toolbox).await?;
        self.list(&loaded, options)
            .await
            .map_err(|error| match error {
                ListError::Guest(error) => error,
                ListError::Rule(rule) => GuestError::Contract(format!("{}: {rule}", loaded.label)),
            })
    }

    async fn call(&self, digest: &str, request: CallRequest) -> Result<Vec<Output>, CallError> {
        let loaded = self
            .component(digest, Kind::Toolbox)
            .await
            .map_err(|error| CallError::Crashed(error.to_string()))?;
        self.call_tool(&loaded, request).await
    }

    async fn secrets(&self, digest: &str, alias: &str) -> Vec<String> {
        match self.info(digest).await {
            Ok(Some(info)) => self.egress.secrets(&info, alias).await,
            _ => Vec::new(),
        }
    }

    async fn rated(&self, digest: &str, alias: &str) -> Vec<String> {
        let secrets = match self.info(digest).await {
            Ok(Some(info)) => self.egress.rated(&info, alias).await,
            _ => Vec::new(),
        };
        if secrets.is_empty() {
            return vec![format!("provider {alias}")];
        }
        secrets
    }

    async fn send(
        &self,
        digest: &str,
        alias: &str,
        config: &ProviderConfig,
        request: HttpRequest,
    ) -> Result<HttpAnswer, EgressError> {
        let info = self
            .info(digest)
            .await
            .map_err(|cause| {
                EgressError::Unreachable(format!(
                    "component sha256:{digest} could not be read: {}",
                    chain(cause.as_ref())
                ))
            })?
            .ok_or_else(|| {
                EgressError::Denied(format!("this host has no component sha256:{digest}"))
            })?;
        let sender = Sender::provider(&info, alias, config)?;
        self.egress.send(&sender, request).await
    }
}

impl Runtime {
    /// What an error answer means to the guest itself, for a caller who wants to hear of its failures.
    ///
    /// # Errors
    /// The guest trapped or went past a limit, where [`Plugins::classify`] goes by the status.
    pub async fn classify_by_guest(
        &self,
        digest: &str,
        head: ResponseHead,
        body: Vec<u8>,
    ) -> Result<Failure, GuestError> {
        let loaded = self.component(digest, Kind::Provider).await?;
        let Linked::Provider(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let function = Function {
            name: "classify",
            output: "failure",
            output_bytes: CLASSIFY_BYTES,
        };
        let answer = convert::response(head, body);
        let mut instance = self.pure(&loaded, self.config.limits.provider.decode).await;
        let failure = instance
            .run(function, String::new(), async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_models()
                    .call_classify(store, &answer)
                    .await
            })
            .await?;
        Ok(failure.into())
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MESSAGE_BYTES)]
}

/// What a status means to everyone.
fn by_status(status: u16) -> Failure {
    let class = match status {
        401 | 403 => FailureClass::Authentication,
        402 => FailureClass::Quota,
        408 | 500..=502 | 504..=528 | 530..=599 => FailureClass::Server,
        413 => FailureClass::ContextOverflow,
        429 => FailureClass::RateLimited,
        503 | 529 => FailureClass::Overloaded,
        _ => FailureClass::InvalidRequest,
    };
    Failure {
        class,
        message: format!("the server answered with status {status}"),
        retry_after_ms: None,
    }
}
