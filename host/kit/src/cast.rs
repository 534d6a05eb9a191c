//! Who plays in a session: the plugin under test, and parts for the two other kinds that the kit plays
//! itself, from a script, so that nothing but the plugin can be at fault.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::model::{
    Effect, Failure, FinishReason, Message, ModelOptions, ToolCall, ToolChoice, ToolDefinition,
};
use mainstay_core::plugin::{
    Action, BodyStream, CallError, CallRequest, Decision, Decoder, EgressError, Exchange,
    GuestError, HttpAnswer, HttpRequest, Kind, LocalEvent, ModelCall, ModelEvent, ModelRequest,
    Output, PluginInfo, Plugins, ProviderConfig, ResponseHead, Segment, Tool, ToolSet, Trigger,
    View, Workspace,
};
use mainstay_runtime::Runtime;

use crate::link::Link;

/// What the model in a session does: by how many results it has seen since the last prompt, the calls
/// that it makes. After the last of them it says [`DONE`].
#[derive(Clone, Debug, Default)]
pub(crate) struct Script {
    pub(crate) rounds: Vec<Vec<ToolCall>>,
    /// It fails instead of answering.
    pub(crate) fails: Option<Failure>,
}

/// The model's last word.
pub(crate) const DONE: &str = "It is done.";

/// Is told of every decision of the runner under test.
#[async_trait]
pub(crate) trait Watch: Send + Sync {
    /// `commit` is the one that the decision goes into, counted from 1.
    async fn decided(&self, view: View, decision: &Result<Decision, GuestError>, commit: usize);
}

/// One cast.
pub(crate) struct Cast {
    pub(crate) runtime: Arc<Runtime>,
    /// The plugin under test.
    pub(crate) info: Arc<PluginInfo>,
    pub(crate) script: Script,
    /// What a provider's server answers.
    pub(crate) answer: Vec<u8>,
    pub(crate) watch: Option<Arc<dyn Watch>>,
    /// The kit's own runner stands in for the one under test.
    pub(crate) swapped: AtomicBool,
    /// The process that it plays in.
    link: Mutex<Option<Arc<Link>>>,
    /// Idempotency keys of the host, and what tools are given instead.
    keys: Mutex<HashMap<String, String>>,
}

impl Cast {
    pub(crate) fn new(runtime: &Arc<Runtime>, info: &Arc<PluginInfo>, script: Script) -> Self {
        Self {
            runtime: Arc::clone(runtime),
            info: Arc::clone(info),
            script,
            answer: Vec::new(),
            watch: None,
            swapped: AtomicBool::new(false),
            link: Mutex::new(None),
            keys: Mutex::default(),
        }
    }

    /// From now on it plays in the process of this link.
    pub(crate) fn count(&self, link: &Arc<Link>) {
        *self.link.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::clone(link));
    }

    /// The number of the next commit.
    fn commit(&self) -> usize {
        let link = self.link.lock().unwrap_or_else(PoisonError::into_inner);
        link.as_ref().map_or(0, |link| link.commits() + 1)
    }

    /// The key of a call, the same in every play: the host's own depends on where in the log the step
    /// stands, and a tool may write its key down.
    fn key(&self, request: &CallRequest) -> String {
        let mut keys = self.keys.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(key) = keys.get(&request.idempotency_key) {
            return key.clone();
        }
        let id = &request.call.id;
        let like = keys
            .values()
            .filter(|key| key.starts_with(&format!("{id}/")))
            .count();
        let key = format!("{id}/{}", like + 1);
        keys.insert(request.idempotency_key.clone(), key.clone());
        key
    }

    fn is_real(&self, digest: &str) -> bool {
        digest == self.info.digest
    }

    fn played(&self, kind: Kind) -> Arc<PluginInfo> {
        let tools = match kind {
            Kind::Toolbox => played_tools(),
            _ => Vec::new(),
        };
        Arc::new(PluginInfo {
            digest: format!("kit-{kind}"),
            kind,
            name: format!("kit-{kind}"),
            version: "0.1.0".to_owned(),
            summary: String::new(),
            wit: "0.1.0".to_owned(),
            size: 0,
            imports: Vec::new(),
            options_schema: None,
            state_version: 1,
            accepts: Vec::new(),
            http: Vec::new(),
            secrets: Vec::new(),
            workspace: Workspace::None,
            models: Vec::new(),
            hosted_tools: Vec::new(),
            tools,
        })
    }

    fn play_model(&self, request: &ModelRequest) -> Vec<LocalEvent> {
        let mut events = Vec::new();
        if let Some(failure) = &self.script.fails {
            events.push(ModelEvent::Failed(failure.clone()));
        } else {
            let prompt = request
                .messages
                .iter()
                .rposition(|message| matches!(message, Message::User(_)));
            let since = &request.messages[prompt.map_or(0, |at| at + 1)..];
            let results = since
                .iter()
                .filter(|message| matches!(message, Message::ToolResult(_)))
                .count();
            let mut left = results;
            let due = self.script.rounds.iter().find(|round| {
                let is_due = left < round.len();
                left = left.saturating_sub(round.len());
                is_due
            });
            let offered = |call: &ToolCall| request.tools.iter().any(|tool| tool.name == call.tool);
            match due {
                Some(round) if round.iter().all(offered) => {
                    for call in round {
                        let id = call.id.clone();
                        events.push(ModelEvent::ToolCallStart {
                            id: id.clone(),
                            tool: call.tool.clone(),
                        });
                        events.push(ModelEvent::ToolCallDelta {
                            id: id.clone(),
                            arguments: call.arguments.clone(),
                        });
                        events.push(ModelEvent::ToolCallEnd { id });
                    }
                    events.push(ModelEvent::Finished(FinishReason::ToolCalls));
                }
                _ => {
                    events.push(ModelEvent::TextDelta(DONE.to_owned()));
                    events.push(ModelEvent::Finished(FinishReason::Stop));
                }
            }
        }
        events
            .into_iter()
            .map(|event| LocalEvent { after_ms: 0, event })
            .collect()
    }
}

/// Calls for a script: ids are made from the tools' names.
pub(crate) fn calls(tools: &[&str]) -> Vec<ToolCall> {
    tools
        .iter()
        .map(|tool| ToolCall {
            id: format!("call-{tool}"),
            tool: (*tool).to_owned(),
            arguments: "{}".to_owned(),
        })
        .collect()
}

/// The tools of the toolbox that the kit plays: one of each effect, and a second pure one.
fn played_tools() -> Vec<Tool> {
    let tool = |name: &str, effect| Tool {
        definition: ToolDefinition {
            name: name.to_owned(),
            description: name.to_owned(),
            input_schema: r#"{"type":"object"}"#.to_owned(),
        },
        effect,
    };
    vec![
        tool("look", Effect::Pure),
        tool("listen", Effect::Pure),
        tool("put", Effect::Idempotent),
        tool("act", Effect::Once),
    ]
}

/// The kit's own runner: asks until the model stops, and gives up with its words when it fails.
fn play_runner(view: &View) -> Decision {
    let action = match &view.trigger {
        Trigger::ModelFinished(reason) if *reason != FinishReason::ToolCalls => Action::Done,
        Trigger::ModelFailed(failure) => Action::Fail(failure.message.clone()),
        _ => Action::CallModel(ModelCall {
            model: None,
            transcript: vec![Segment::Items(view.context)],
            tools: ToolSet::All,
            own_tools: Vec::new(),
            tool_choice: ToolChoice::Auto,
            hosted_tools: Vec::new(),
            options: ModelOptions::default(),
        }),
    };
    Decision {
        entries: Vec::new(),
        action,
        state: None,
    }
}

#[async_trait]
impl Plugins for Cast {
    async fn resolve(&self, kind: Kind, _: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        let real = kind == self.info.kind && !self.swapped.load(Ordering::SeqCst);
        Ok(Some(if real {
            Arc::clone(&self.info)
        } else {
            self.played(kind)
        }))
    }

    async fn info(&self, digest: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        if self.is_real(digest) {
            return Ok(Some(Arc::clone(&self.info)));
        }
        let kinds = [Kind::Runner, Kind::Provider, Kind::Toolbox];
        Ok(kinds
            .into_iter()
            .map(|kind| self.played(kind))
            .find(|info| info.digest == digest))
    }

    async fn decide(&self, digest: &str, view: View) -> Result<Decision, GuestError> {
        if !self.is_real(digest) {
            return Ok(play_runner(&view));
        }
        let decision = self.runtime.decide(digest, view.clone()).await;
        if let Some(watch) = &self.watch {
            watch.decided(view, &decision, self.commit()).await;
        }
        decision
    }

    async fn encode(&self, digest: &str, request: ModelRequest) -> Result<Exchange, GuestError> {
        if self.is_real(digest) {
            return self.runtime.encode(digest, request).await;
        }
        Ok(Exchange::Local(self.play_model(&request)))
    }

    async fn decoder(
        &self,
        digest: &str,
        head: ResponseHead,
        memo: Vec<u8>,
    ) -> Result<Box<dyn Decoder>, GuestError> {
        self.runtime.decoder(digest, head, memo).await
    }

    async fn classify(&self, digest: &str, head: ResponseHead, body: Vec<u8>) -> Failure {
        self.runtime.classify(digest, head, body).await
    }

    async fn tools(&self, digest: &str, options: Option<String>) -> Result<Vec<Tool>, GuestError> {
        if self.is_real(digest) {
            return self.runtime.tools(digest, options).await;
        }
        Ok(played_tools())
    }

    async fn call(&self, digest: &str, mut request: CallRequest) -> Result<Vec<Output>, CallError> {
        if self.is_real(digest) {
            request.idempotency_key = self.key(&request);
            return self.runtime.call(digest, request).await;
        }
        Ok(vec![Output::Text(format!("{} done", request.call.tool))])
    }

    async fn secrets(&self, _: &str, _: &str) -> Vec<String> {
        // As if all were bound: no value is ever put in here.
        let names = self.info.secrets.iter().map(|secret| secret.name.clone());
        names.collect()
    }

    async fn send(
        &self,
        _: &str,
        _: &str,
        _: &ProviderConfig,
        _: HttpRequest,
    ) -> Result<HttpAnswer, EgressError> {
        Ok(HttpAnswer {
            head: crate::corpus::head(200),
            body: Box::new(Whole(Some(self.answer.clone()))),
        })
    }
}

/// A body that comes at once.
struct Whole(Option<Vec<u8>>);

#[async_trait]
impl BodyStream for Whole {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, EgressError> {
        Ok(self.0.take())
    }
}
