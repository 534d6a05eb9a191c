//! The host's side of the port `Plugins`: loads components, and gives every call an instance.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

use async_trait::async_trait;
use mainstay_core::id::{Digest, digest};
use mainstay_core::model::{Failure, FailureClass};
use mainstay_core::plugin::{
    CallError, CallRequest, Decision, Decoder, EgressError, Exchange, GuestError, HttpAnswer,
    HttpRequest, Kind, LocalEvent, ModelRequest, Output, PluginInfo, Plugins, ProviderConfig,
    ResponseHead, Tool, View, Workspace,
};
use mainstay_core::{BoxError, chain};
use tokio::sync::{OnceCell, Semaphore};
use wasmtime::Engine;
use wasmtime::component::{Component, Linker};
use wasmtime_wasi::WasiCtx;

use crate::bindings::v0_1_0::{models, steps, tools};
use crate::bindings::{VERSIONS, convert};
use crate::cache::{Cache, Swept};
use crate::decoder::{LiveDecoder, Tally, media_bytes};
use crate::egress::{Egress, Sender};
use crate::engine::{self, Guests};
use crate::host::calling::Calling;
use crate::host::fetching::Reach;
use crate::host::history::History;
use crate::host::{Guest, link, wasi};
use crate::inspect;
use crate::instance::{Fault, FaultKind, Function, Instance, Label, Linked, Place, Stay};
use crate::limits::{Breach, Limits, RunnerLimits, Use};
use crate::registry::ComponentSource;

mod reused;
mod uninterruptible;

pub use reused::ReusedRunner;

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

    /// What a file is, without storing anything of it.
    ///
    /// # Errors
    /// It is no plugin that this host takes; says why.
    pub async fn inspect(&self, bytes: &[u8]) -> Result<PluginInfo, inspect::Error> {
        let (loaded, _) = self.examine(bytes).await?;
        Ok(PluginInfo::clone(&loaded.info))
    }

    /// Checks a component and stores it, once for the same bytes. An alias is the caller's to point.
    ///
    /// # Errors
    /// As [`Self::inspect`], and nothing is stored then.
    pub async fn install(&self, bytes: &[u8]) -> Result<Arc<PluginInfo>, inspect::Error> {
        let digest = digest(bytes);
        let cell = self.cell(&digest);
        let installed = cell
            .get_or_try_init(async || {
                let known = self
                    .source
                    .info(&digest)
                    .await
                    .map_err(inspect::Error::Store)?;
                if let Some(info) = known {
                    return self
                        .load(info, bytes.to_vec())
                        .await
                        .map_err(|fault| inspect::Error::Guest(fault.into()));
                }
                let (loaded, component) = self.examine(bytes).await?;
                self.source
                    .put(&loaded.info, bytes)
                    .await
                    .map_err(inspect::Error::Store)?;
                self.cache.keep(&digest, &component).await;
                Ok(loaded)
            })
            .await;
        match installed {
            Ok(loaded) => Ok(Arc::clone(&loaded.info)),
            Err(error) => {
                self.forget(&digest);
                Err(error)
            }
        }
    }

    /// Lets go of a component that the source no longer has. Calls that are running go on.
    pub fn forget(&self, digest: &str) {
        self.loaded
            .lock()
            .expect("no panic under this lock")
            .remove(digest);
    }

    /// Removes compiled code from disk that is of other components than these, or of other engines; a
    /// dry run only counts it. What is loaded stays loaded.
    ///
    /// # Errors
    /// A folder cannot be read, or a file cannot be removed.
    pub async fn sweep(&self, keep: HashSet<Digest>, dry_run: bool) -> Result<Swept, BoxError> {
        Ok(self.cache.sweep(keep, dry_run).await?)
    }

    fn cell(&self, digest: &str) -> Arc<OnceCell<Arc<Loaded>>> {
        let mut loaded = self.loaded.lock().expect("no panic under this lock");
        Arc::clone(loaded.entry(digest.to_owned()).or_default())
    }

    async fn examine(&self, bytes: &[u8]) -> Result<(Arc<Loaded>, Component), inspect::Error> {
        let shape = inspect::shape(bytes)?;
        let mut info = PluginInfo {
            digest: digest(bytes),
            kind: shape.kind,
            name: String::new(),
            version: String::new(),
            summary: String::new(),
            wit: shape.version,
            size: bytes.len() as u64,
            imports: shape.imports,
            options_schema: None,
            state_version: 0,
            accepts: Vec::new(),
            http: Vec::new(),
            secrets: Vec::new(),
            workspace: Workspace::None,
            models: Vec::new(),
            hosted_tools: Vec::new(),
            tools: Vec::new(),
        };
        let component = self
            .cache
            .compile(bytes.to_vec())
            .await
            .map_err(|error| inspect::Error::Malformed(format!("{error:#}")))?;
        let linked = self
            .link(info.kind, &component)
            .map_err(|error| inspect::Error::Malformed(format!("{error:#}")))?;
        let nameless = Loaded {
            label: Arc::new(Label::of(&info)),
            info: Arc::new(info.clone()),
            linked,
        };
        self.describe(&nameless, &mut info)
            .await
            .map_err(GuestError::from)?;
        inspect::manifest(&info)?;
        let mut loaded = Loaded {
            label: Arc::new(Label::of(&info)),
            ..nameless
        };
        if info.kind == Kind::Toolbox {
            match self.list(&loaded, None).await {
                Ok(tools) => info.tools = tools,
                // It may need options to have tools.
                Err(ListError::Guest(GuestError::Refused(_))) if info.options_schema.is_some() => {}
                Err(ListError::Guest(error)) => return Err(error.into()),
                Err(ListError::Rule(error)) => return Err(error),
            }
        }
        loaded.info = Arc::new(info);
        Ok((Arc::new(loaded), component))
    }

    fn link(&self, kind: Kind, component: &Component) -> wasmtime::Result<Linked> {
        let linker = &self.linkers[match kind {
            Kind::Runner => 0,
            Kind::Provider => 1,
            Kind::Toolbox => 2,
        }];
        Linked::new(kind, linker.instantiate_pre(component)?)
    }

    /// A component that was examined before.
    async fn load(&self, info: PluginInfo, bytes: Vec<u8>) -> Result<Arc<Loaded>, Fault> {
        let label = Arc::new(Label::of(&info));
        let host = |error: wasmtime::Error| Fault {
            kind: FaultKind::Host,
            text: format!("{label} could not be compiled: {error:#}"),
        };
        let component = match self.cache.load(&info.digest).await {
            Some(component) => component,
            None => {
                let component = self.cache.compile(bytes).await.map_err(host)?;
                self.cache.keep(&info.digest, &component).await;
                component
            }
        };
        let linked = self.link(info.kind, &component).map_err(host)?;
        Ok(Arc::new(Loaded {
            info: Arc::new(info),
            label: Arc::clone(&label),
            linked,
        }))
    }

    /// The component of this digest, loaded if it is not yet.
    async fn component(&self, digest: &str, kind: Kind) -> Result<Arc<Loaded>, GuestError> {
        let cell = self.cell(digest);
        let loaded = cell
            .get_or_try_init(async || {
                let host = |cause: BoxError| {
                    GuestError::Host(format!(
                        "component sha256:{digest} could not be read: {}",
                        chain(cause.as_ref())
                    ))
                };
                let info = self.source.info(digest).await.map_err(host)?;
                let bytes = self.source.component(digest).await.map_err(host)?;
                let (Some(info), Some(bytes)) = (info, bytes) else {
                    return Err(GuestError::Missing(format!(
                        "this host has no component sha256:{digest}; load it again"
                    )));
                };
                if mainstay_core::id::digest(&bytes) != digest {
                    return Err(GuestError::Missing(format!(
                        "the stored bytes of component sha256:{digest} are damaged; load it again"
                    )));
                }
                Ok(self.load(info, bytes).await?)
            })
            .await;
        let loaded = match loaded {
            Ok(loaded) => Arc::clone(loaded),
            Err(error) => {
                // Names that lead nowhere are not kept.
                if matches!(error, GuestError::Missing(_)) {
                    self.forget(digest);
                }
                return Err(error);
            }
        };
        if loaded.info.kind != kind {
            return Err(GuestError::Contract(format!(
                "{} is asked as if it were a {kind}",
                loaded.label
            )));
        }
        Ok(loaded)
    }

    /// A place of its own for a guest.
    async fn place(&self, stay: Stay) -> Place {
        let acquire = async |places: &Arc<Semaphore>| {
            let place = Arc::clone(places).acquire_owned().await;
            place.expect("the places are never closed")
        };
        // First, so that whoever waits for it keeps no other out.
        let lasting = match stay {
            Stay::Short => None,
            Stay::Lasting => Some(acquire(&self.lasting).await),
        };
        Place {
            _one: acquire(&self.places).await,
            _lasting: lasting,
        }
    }

    async fn instance(&self, loaded: &Loaded, use_: Use, wasi: WasiCtx, stay: Stay) -> Instance {
        let place = self.place(stay).await;
        let guest = Guest::new(
            Arc::clone(&loaded.label),
            &self.config.limits,
            use_,
            wasi,
            self.egress.redactor().clone(),
        );
        Instance::new(&self.engine, guest, Arc::clone(&loaded.label), place)
    }

    /// An instance that sees nothing but what it is called with.
    async fn pure(&self, loaded: &Loaded, use_: Use) -> Instance {
        self.pure_for(loaded, use_, Stay::Short).await
    }

    async fn pure_for(&self, loaded: &Loaded, use_: Use, stay: Stay) -> Instance {
        let wasi = wasi::inert(&loaded.info.digest, 0);
        self.instance(loaded, use_, wasi, stay).await
    }

    async fn describe(&self, loaded: &Loaded, info: &mut PluginInfo) -> Result<(), Fault> {
        let function = Function {
            name: "describe",
            output: "manifest",
            output_bytes: MANIFEST_BYTES,
        };
        let mut instance = self
            .pure(loaded, self.config.limits.describe(info.kind))
            .await;
        instance
            .run(function, String::new(), async |store| {
                match &loaded.linked {
                    Linked::Runner(pre) => {
                        let guest = pre.instantiate_async(&mut *store).await?;
                        let steps = guest.mainstay_plugin_steps();
                        convert::runner_manifest(info, steps.call_describe(store).await?);
                    }
                    Linked::Provider(pre) => {
                        let guest = pre.instantiate_async(&mut *store).await?;
                        let models = guest.mainstay_plugin_models();
                        convert::provider_manifest(info, models.call_describe(store).await?);
                    }
                    Linked::Toolbox(pre) => {
                        let guest = pre.instantiate_async(&mut *store).await?;
                        let tools = guest.mainstay_plugin_tools();
                        convert::toolbox_manifest(info, tools.call_describe(store).await?);
                    }
                }
                Ok(())
            })
            .await
    }

    async fn list(&self, loaded: &Loaded, options: Option<String>) -> Result<Vec<Tool>, ListError> {
        let limits = &self.config.limits;
        let Linked::Toolbox(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let function = Function {
            name: "list",
            output: "tool list",
            output_bytes: limits.toolbox.tools_bytes,
        };
        let mut instance = self.pure(loaded, limits.describe(Kind::Toolbox)).await;
        let listed = instance
            .run(function, String::new(), async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_tools()
                    .call_list(store, options.as_ref())
                    .await
            })
            .await
            .map_err(|fault| ListError::Guest(fault.into()))?;
        let listed = listed.map_err(|text| ListError::Guest(instance.refused("list", text)))?;
        let listed: Vec<Tool> = convert::list(listed);
        inspect::tools(&listed, &limits.toolbox).map_err(ListError::Rule)?;
        Ok(listed)
    }

    async fn call_tool(
        &self,
        loaded: &Loaded,
        request: CallRequest,
    ) -> Result<Vec<Output>, CallError> {
        let limits = &self.config.limits.toolbox;
        let Linked::Toolbox(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let folder = self.config.workspaces_dir.join(request.session.to_string());
        let access = self.egress.workspace(&loaded.info, &request.toolbox);
        let wasi = if access == Workspace::None {
            wasi::working(&folder, access)
        } else {
            // It opens a folder.
            tokio::task::spawn_blocking(move || wasi::working(&folder, access))
                .await
                .map_err(|error| CallError::Crashed(error.to_string()))?
        };
        let wasi = wasi.map_err(|error| {
            CallError::Crashed(format!(
                "{}: the session's workspace could not be opened: {error:#}",
                loaded.label
            ))
        })?;
        let mut instance = self
            .instance(loaded, limits.call, wasi, Stay::Lasting)
            .await;
        let guest = instance.store.data_mut();
        guest.calling = Some(Calling::new(
            request.cancel.clone(),
            request.progress.clone(),
            self.egress.redactor().clone(),
        ));
        guest.reach = Some(Reach {
            egress: Arc::clone(&self.egress),
            info: Arc::clone(&loaded.info),
            alias: request.toolbox.clone(),
            cancel: request.cancel.clone(),
        });
        let context = format!("session {} call {}", request.session, request.call.id);
        let function = Function {
            name: "call",
            output: "output",
            output_bytes: limits.text_bytes + limits.media_bytes,
        };
        let request: tools::CallRequest = convert::call_request(request);
        let answer = instance
            .run(function, context, async |store| {
                let guest = pre.instantiate_async(&mut *store).await?;
                guest
                    .mainstay_plugin_tools()
                    .call_call(store, &request)
                    .await
            })
            .await?;
        let redactor = self.egress.redactor();
        let output: Vec<Output> = match answer {
            Ok(output) => convert::list(output),
            Err(error) => {
                let error = CallError::from(error);
                return Err(cut_error(error, limits.text_bytes));
            }
        };
        let (mut text, mut media) = (0_usize, 0_usize);
        for piece in &output {
            match piece {
                Output::Text(piece) => text += piece.len(),
                Output::Media(piece) => media += media_bytes(piece),
            }
        }
        for (what, bytes, limit) in [
            ("text output", text, limits.text_bytes),
            ("media output", media, limits.media_bytes),
        ] {
            if bytes > limit {
                return Err(instance.breach("call", &Breach::output(what, limit)).into());
            }
        }
        // It never had one; but what it fetched may have been put together in its own way.
        Ok(output
            .into_iter()
            .map(|piece| match piece {
                Output::Text(text) => Output::Text(redactor.redact(&text).into_owned()),
                media @ Output::Media(_) => media,
            })
            .collect())
    }
}

/// How many of so many places guests may have that last.
fn lasting(instances: u32) -> usize {
    let kept = (instances / 8).max(1);
    (instances.saturating_sub(kept) as usize).max(1)
}

/// Of a manifest.
const MANIFEST_BYTES: usize = 1 << 20;
/// Of an error answer that `classify` sees.
const CLASSIFY_BYTES: usize = 64 << 10;
/// Of the text of an error that a guest gives.
const MESSAGE_BYTES: usize = 4 << 10;

enum ListError {
    Guest(GuestError),
    Rule(inspect::Error),
}

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

/// What a runner answered, held to its limits.
fn decision(
    limits: &RunnerLimits,
    instance: &Instance,
    answer: Result<steps::Decision, steps::DecideError>,
) -> Result<Decision, GuestError> {
    let decision: Decision = match answer {
        Ok(decision) => decision.into(),
        Err(steps::DecideError::State(text)) => {
            return Err(instance.refused("decide", format_args!("its state: {}", cut(&text))));
        }
        Err(steps::DecideError::Options(text)) => {
            return Err(instance.refused("decide", format_args!("its options: {}", cut(&text))));
        }
        Err(steps::DecideError::Failed(text)) => {
            return Err(instance.refused("decide", cut(&text)));
        }
    };
    let state = decision.state.as_ref().map_or(0, Vec::len);
    if state > limits.state_bytes {
        let breach = Breach::output("state", limits.state_bytes);
        return Err(instance.breach("decide", &breach).into());
    }
    if json_bytes(&decision) + state > limits.decision_bytes {
        let breach = Breach::output("decision", limits.decision_bytes);
        return Err(instance.breach("decide", &breach).into());
    }
    Ok(decision)
}

fn request_bytes(request: &HttpRequest) -> usize {
    use mainstay_core::plugin::{Chunk, HeaderValue};
    let headers = request.headers.iter().map(|(name, value)| {
        name.len()
            + match value {
                HeaderValue::Text(text) => text.len(),
                HeaderValue::Secret { name, prefix } => name.len() + prefix.len(),
            }
    });
    let body = request.body.iter().map(|chunk| match chunk {
        Chunk::Bytes(bytes) => bytes.len(),
        Chunk::MediaBase64(digest) | Chunk::Media(digest) => digest.len(),
    });
    request.method.len() + request.url.len() + headers.chain(body).sum::<usize>()
}

/// What a decision takes in the log.
fn json_bytes(decision: &Decision) -> usize {
    struct Counter(usize);
    impl std::io::Write for Counter {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += bytes.len();
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut counter = Counter(0);
    match serde_json::to_writer(&mut counter, decision) {
        Ok(()) => counter.0,
        Err(_) => usize::MAX / 2,
    }
}

fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MESSAGE_BYTES)]
}

fn cut_error(error: CallError, bytes: usize) -> CallError {
    let cut = |text: String| text[..text.floor_char_boundary(bytes)].to_owned();
    match error {
        CallError::InvalidArguments(text) => CallError::InvalidArguments(cut(text)),
        CallError::Denied(text) => CallError::Denied(cut(text)),
        CallError::Failed(text) => CallError::Failed(cut(text)),
        CallError::Cancelled(text) => CallError::Cancelled(cut(text)),
        CallError::Crashed(text) => CallError::Crashed(cut(text)),
    }
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
