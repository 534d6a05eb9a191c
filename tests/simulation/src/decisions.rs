//! Runners that follow a test's list of decisions, one for each agent, over the scripted models and
//! tools. A runner is a function of how often it has decided in its session and of what it is shown;
//! the count is its state, so it is as durable as the decisions themselves. [`stage`] runs whole nodes
//! with them in virtual time, [`link`] kills those nodes at a chosen commit, and [`scripts`] is a table of
//! sessions that are played against nodes which die.

pub mod link;
pub mod scripts;
pub mod stage;

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::history::{Item, Order};
use mainstay_core::model::{Failure, Part, Range, ToolCall};
use mainstay_core::plugin::{
    Action, ApprovalRequest, CallError, CallRequest, Child, Condition, Decision, Decoder,
    EgressError, Entry, Exchange, GuestError, HttpAnswer, HttpRequest, Kind, LocalEvent,
    ModelRequest, Output, PluginInfo, Plugins, ProviderConfig, ResponseHead, StateFormat, Tool,
    View, Wait,
};

use crate::plugins::Scripted;

use self::link::Link;

/// What a runner is shown, with the items of its context read.
pub struct Seen {
    pub view: View,
    pub items: Vec<Item>,
}

impl Deref for Seen {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

/// Decides, given how many decisions of its session went before and what it is shown.
type Runner = dyn Fn(u32, &Seen) -> Decision + Send + Sync;

/// What a runner says of itself.
#[derive(Clone, Debug)]
pub struct Format {
    pub name: &'static str,
    pub state_version: u32,
    pub accepts: Vec<StateFormat>,
}

/// Scripted plugins whose runners follow lists of decisions.
pub struct Decided {
    pub scripted: Scripted,
    runners: HashMap<String, Box<Runner>>,
    formats: HashMap<String, Format>,
    /// Calls of runners and tools that go on now.
    live: AtomicUsize,
    /// Calls of runners so far.
    pub asked: AtomicUsize,
    /// Pause before a runner answers from now on, in milliseconds.
    pub slow_ms: AtomicU64,
    /// Every view, as it was shown.
    pub views: Mutex<Vec<View>>,
    /// Digests of components that are nowhere to be had.
    pub gone: Mutex<HashSet<String>>,
    watch: Mutex<Option<Arc<Watch>>>,
}

/// Looks at what a process asks of the world outside: models and tools.
pub struct Watch {
    pub link: Arc<Link>,
    /// The process dies at its effect of this number, counting from 0; if true, before it has happened.
    pub dies: Option<(usize, bool)>,
    /// Every effect so far: whether it was heard to its end.
    pub effects: Mutex<Vec<bool>>,
}

impl Decided {
    /// Agents without a runner of their own ask the model until it stops.
    pub fn new(
        answer: impl Fn(&ModelRequest, usize) -> Vec<LocalEvent> + Send + Sync + 'static,
    ) -> Self {
        Self {
            scripted: Scripted::new(answer),
            runners: HashMap::new(),
            formats: HashMap::new(),
            live: AtomicUsize::new(0),
            asked: AtomicUsize::new(0),
            slow_ms: AtomicU64::new(0),
            views: Mutex::default(),
            gone: Mutex::default(),
            watch: Mutex::default(),
        }
    }

    /// From now on another process asks.
    pub fn watch(&self, watch: Arc<Watch>) {
        *self.watch.lock().unwrap() = Some(watch);
    }

    /// Something is asked of the world. A process that is dead, or dies of it, hears no more.
    async fn effect<T>(&self, act: impl Future<Output = T>) -> T {
        let watch = self.watch.lock().unwrap().clone();
        let Some(watch) = watch else {
            return act.await;
        };
        if watch.link.is_dead() {
            return std::future::pending().await;
        }
        let n = {
            let mut effects = watch.effects.lock().unwrap();
            effects.push(false);
            effects.len() - 1
        };
        if watch.dies == Some((n, true)) {
            watch.link.die();
            return std::future::pending().await;
        }
        let done = act.await;
        watch.effects.lock().unwrap()[n] = true;
        if watch.dies == Some((n, false)) {
            watch.link.die();
            return std::future::pending().await;
        }
        done
    }

    /// Gives the agent of this name its decisions.
    #[must_use]
    pub fn agent(
        mut self,
        name: &str,
        runner: impl Fn(u32, &Seen) -> Decision + Send + Sync + 'static,
    ) -> Self {
        self.runners.insert(name.into(), Box::new(runner));
        self
    }

    /// Says who the runner behind an alias is.
    #[must_use]
    pub fn format(mut self, alias: &str, format: Format) -> Self {
        self.formats.insert(alias.into(), format);
        self
    }

    /// Calls of runners and tools that go on now.
    pub fn live(&self) -> usize {
        self.live.load(Ordering::SeqCst)
    }

    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    fn alive(&self) -> Alive<'_> {
        self.live.fetch_add(1, Ordering::SeqCst);
        Alive(&self.live)
    }
}

/// A call that goes on until it is dropped.
struct Alive<'a>(&'a AtomicUsize);

impl Drop for Alive<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl From<Action> for Step {
    fn from(action: Action) -> Self {
        Self(Decision {
            entries: Vec::new(),
            action,
            state: None,
        })
    }
}

/// A decision in the making.
pub struct Step(Decision);

impl Step {
    /// Words to the user, before the action.
    #[must_use]
    pub fn say(mut self, text: &str) -> Self {
        self.0.entries.insert(0, Entry::Say(parts(text)));
        self
    }

    #[must_use]
    pub fn entry(mut self, entry: Entry) -> Self {
        self.0.entries.push(entry);
        self
    }

    #[must_use]
    pub fn state(mut self, state: &[u8]) -> Self {
        self.0.state = Some(state.into());
        self
    }
}

impl From<Step> for Decision {
    fn from(step: Step) -> Self {
        step.0
    }
}

/// Text as the parts of a message.
pub fn parts(text: &str) -> Vec<Part> {
    vec![Part::Text(text.into())]
}

pub fn done() -> Step {
    Action::Done.into()
}

pub fn fail(error: &str) -> Step {
    Action::Fail(error.into()).into()
}

/// Asks the model with the whole context.
pub fn ask(view: &View) -> Step {
    crate::plugins::ask(view).into()
}

pub fn wait(until: impl IntoIterator<Item = Condition>) -> Step {
    let until = until.into_iter().collect();
    Action::Wait(Wait { until }).into()
}

pub fn signal(name: &str) -> Condition {
    Condition::Signal(name.into())
}

pub fn approval(key: &str) -> Condition {
    Condition::Approval(ApprovalRequest {
        key: key.into(),
        question: format!("may I {key}?"),
        details: None,
    })
}

pub fn children(keys: &[&str]) -> Condition {
    Condition::Children(keys.iter().map(|key| (*key).into()).collect())
}

/// Children by key and agent.
pub fn spawn(children: &[(&str, &str)]) -> Step {
    let children = children.iter().map(|(key, agent)| Child {
        key: (*key).into(),
        agent: Some((*agent).into()),
        prompt: parts(&format!("you are {key}")),
    });
    Action::Spawn(children.collect()).into()
}

/// Calls of toolboxes: id and tool.
pub fn tools(calls: &[(&str, &str)]) -> Step {
    let calls = calls.iter().map(|(id, tool)| ToolCall {
        id: (*id).into(),
        tool: (*tool).into(),
        arguments: "{}".into(),
    });
    Action::CallTools(calls.collect()).into()
}

const RUNNER: &str = "runner:";

#[async_trait]
impl Plugins for Decided {
    async fn resolve(&self, kind: Kind, alias: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        match kind {
            Kind::Runner => self.info(&format!("{RUNNER}{alias}")).await,
            _ => self.scripted.resolve(kind, alias).await,
        }
    }

    async fn info(&self, digest: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        if self.gone.lock().unwrap().contains(digest) {
            return Ok(None);
        }
        let Some(alias) = digest.strip_prefix(RUNNER) else {
            return self.scripted.info(digest).await;
        };
        let Some(plain) = self.scripted.info("runner-digest").await? else {
            return Ok(None);
        };
        let mut info = PluginInfo::clone(&plain);
        info.digest = digest.into();
        if let Some(format) = self.formats.get(alias) {
            info.name = format.name.into();
            info.state_version = format.state_version;
            info.accepts.clone_from(&format.accepts);
        }
        Ok(Some(Arc::new(info)))
    }

    async fn decide(&self, digest: &str, view: View) -> Result<Decision, GuestError> {
        let _alive = self.alive();
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.views.lock().unwrap().push(view.clone());
        let slow_ms = self.slow_ms.load(Ordering::SeqCst);
        if slow_ms > 0 {
            tokio::time::sleep(Duration::from_millis(slow_ms)).await;
        }
        let Some(runner) = self.runners.get(&view.agent.name) else {
            return self.scripted.decide(digest, view).await;
        };
        let whole = Range {
            after: 0,
            through: view.context.through,
        };
        let read = view.history.read(whole, Order::OldestFirst, 1000).await;
        let (items, _) = read.map_err(|cause| GuestError::Host(cause.to_string()))?;
        let before = view.state.as_ref().and_then(|state| count(&state.data));
        let n = before.unwrap_or(0);
        let mut decision = runner(n, &Seen { view, items });
        let counted = || Some((n + 1).to_le_bytes().to_vec());
        decision.state = decision.state.or_else(counted);
        Ok(decision)
    }

    async fn encode(&self, digest: &str, request: ModelRequest) -> Result<Exchange, GuestError> {
        self.effect(self.scripted.encode(digest, request)).await
    }

    async fn decoder(
        &self,
        digest: &str,
        head: ResponseHead,
        memo: Vec<u8>,
    ) -> Result<Box<dyn Decoder>, GuestError> {
        self.scripted.decoder(digest, head, memo).await
    }

    async fn classify(&self, digest: &str, head: ResponseHead, body: Vec<u8>) -> Failure {
        self.scripted.classify(digest, head, body).await
    }

    async fn tools(&self, digest: &str, options: Option<String>) -> Result<Vec<Tool>, GuestError> {
        self.scripted.tools(digest, options).await
    }

    async fn call(&self, digest: &str, request: CallRequest) -> Result<Vec<Output>, CallError> {
        let _alive = self.alive();
        self.effect(self.scripted.call(digest, request)).await
    }

    async fn secrets(&self, digest: &str, alias: &str) -> Vec<String> {
        self.scripted.secrets(digest, alias).await
    }

    async fn send(
        &self,
        digest: &str,
        alias: &str,
        config: &ProviderConfig,
        request: HttpRequest,
    ) -> Result<HttpAnswer, EgressError> {
        self.scripted.send(digest, alias, config, request).await
    }
}

fn count(state: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(state.try_into().ok()?))
}
