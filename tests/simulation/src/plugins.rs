//! Plugins that are scripts. The runner is the plain agent loop unless a test gives another, the
//! provider answers from a function of the request, and every tool call is counted outside the log.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::model::{
    Content, Effect, Failure, FailureClass, FinishReason, Message, Range, ToolDefinition, text_of,
};
use mainstay_core::plugin::{
    Action, CallError, CallRequest, Decision, Decoder, EgressError, Exchange, GuestError,
    HostedTool, HttpAnswer, HttpRequest, Kind, LocalEvent, ModelCall, ModelEvent, ModelRequest,
    Output, PluginInfo, Plugins, ProviderConfig, ResponseHead, Segment, Tool, ToolSet, Trigger,
    View, Workspace,
};
use tokio::sync::Notify;

type Decide = dyn Fn(&View) -> Result<Decision, GuestError> + Send + Sync;
type Answer = dyn Fn(&ModelRequest, usize) -> Vec<LocalEvent> + Send + Sync;

/// A tool call as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Called {
    pub tool: String,
    pub id: String,
    pub arguments: String,
    pub key: String,
    pub earlier_runs: u32,
}

/// Scripted plugins with everything that was asked of them.
pub struct Scripted {
    decide: Box<Decide>,
    answer: Box<Answer>,
    pub requests: Mutex<Vec<ModelRequest>>,
    pub calls: Mutex<Vec<Called>>,
    pub decisions: Mutex<Vec<(Trigger, Range)>>,
    /// Tools of these names wait until they are let go.
    pub held: Mutex<HashMap<String, Arc<Notify>>>,
    /// Pause before a runner answers, in milliseconds.
    pub decide_ms: AtomicU64,
    /// How long a call of a tool takes, in milliseconds.
    pub call_ms: AtomicU64,
    /// What a call of a tool gives, if not its name.
    pub output: Mutex<Option<String>>,
}

impl Scripted {
    /// The agent loop over a provider that answers with `answer(request, n)`, `n` counting from 0.
    pub fn new(
        answer: impl Fn(&ModelRequest, usize) -> Vec<LocalEvent> + Send + Sync + 'static,
    ) -> Self {
        Self::with_runner(plain_loop, answer)
    }

    pub fn with_runner(
        decide: impl Fn(&View) -> Result<Decision, GuestError> + Send + Sync + 'static,
        answer: impl Fn(&ModelRequest, usize) -> Vec<LocalEvent> + Send + Sync + 'static,
    ) -> Self {
        Self {
            decide: Box::new(decide),
            answer: Box::new(answer),
            requests: Mutex::default(),
            calls: Mutex::default(),
            decisions: Mutex::default(),
            held: Mutex::default(),
            decide_ms: AtomicU64::new(0),
            call_ms: AtomicU64::new(0),
            output: Mutex::default(),
        }
    }

    /// Makes calls of `tool` wait. `notify_one` on what comes back lets one go.
    pub fn hold(&self, tool: &str) -> Arc<Notify> {
        Arc::clone(self.held.lock().unwrap().entry(tool.into()).or_default())
    }

    /// Lets all calls of `tool` through again.
    pub fn let_go(&self, tool: &str) {
        if let Some(gate) = self.held.lock().unwrap().remove(tool) {
            gate.notify_waiters();
            gate.notify_one();
        }
    }

    /// How often the tool was called.
    pub fn count(&self, tool: &str) -> usize {
        self.calls
            .lock()
            .unwrap()
            .iter()
            .filter(|call| call.tool == tool)
            .count()
    }

    pub fn decision_count(&self) -> usize {
        self.decisions.lock().unwrap().len()
    }

    pub fn request_count(&self) -> usize {
        self.requests.lock().unwrap().len()
    }
}

/// Asks the model until it stops, and gives up with its words when it fails.
pub fn plain_loop(view: &View) -> Result<Decision, GuestError> {
    let action = match &view.trigger {
        Trigger::ModelFinished(FinishReason::Stop | FinishReason::Length) => Action::Done,
        Trigger::ModelFailed(failure) => Action::Fail(failure.message.clone()),
        _ => ask(view),
    };
    Ok(Decision {
        entries: Vec::new(),
        action,
        state: None,
    })
}

/// Asks the model with the whole context and all tools.
pub fn ask(view: &View) -> Action {
    Action::CallModel(ModelCall {
        model: None,
        transcript: vec![Segment::Items(view.context)],
        tools: ToolSet::All,
        own_tools: Vec::new(),
        tool_choice: mainstay_core::model::ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: mainstay_core::model::ModelOptions::default(),
    })
}

/// An answer that says `text` and stops.
pub fn say(text: &str) -> Vec<LocalEvent> {
    events([
        ModelEvent::TextDelta(text.into()),
        ModelEvent::Finished(FinishReason::Stop),
    ])
}

/// An answer that says these texts, a pause before each, and stops.
pub fn slowly<Text: Into<String>>(
    after_ms: u32,
    texts: impl IntoIterator<Item = Text>,
) -> Vec<LocalEvent> {
    let said = texts.into_iter().map(|text| LocalEvent {
        after_ms,
        event: ModelEvent::TextDelta(text.into()),
    });
    said.chain(events([ModelEvent::Finished(FinishReason::Stop)]))
        .collect()
}

/// An answer that makes these calls: id, tool, arguments.
pub fn call(calls: &[(&str, &str, &str)]) -> Vec<LocalEvent> {
    let mut all = Vec::new();
    for (id, tool, arguments) in calls {
        all.push(ModelEvent::ToolCallStart {
            id: (*id).into(),
            tool: (*tool).into(),
        });
        all.push(ModelEvent::ToolCallDelta {
            id: (*id).into(),
            arguments: (*arguments).into(),
        });
        all.push(ModelEvent::ToolCallEnd { id: (*id).into() });
    }
    all.push(ModelEvent::Finished(FinishReason::ToolCalls));
    events(all)
}

/// Events without pauses.
pub fn events(events: impl IntoIterator<Item = ModelEvent>) -> Vec<LocalEvent> {
    events
        .into_iter()
        .map(|event| LocalEvent { after_ms: 0, event })
        .collect()
}

/// The last message's text, as the model server would see it.
pub fn last_text(request: &ModelRequest) -> String {
    match request.messages.last() {
        Some(Message::User(parts) | Message::System(parts)) => text_of(parts),
        Some(Message::ToolResult(result)) => text_of(&result.output),
        _ => String::new(),
    }
}

/// The messages of a request, in a word or two each.
#[must_use]
pub fn sent(request: &ModelRequest) -> Vec<String> {
    let text = |message: &Message| match message {
        Message::System(parts) | Message::User(parts) => text_of(parts),
        Message::Assistant(content) => said(content),
        Message::ToolResult(result) => format!("result {}", result.call),
    };
    request.messages.iter().map(text).collect()
}

/// What an answer holds, in a word or two.
#[must_use]
pub fn said(content: &[Content]) -> String {
    let text = |content: &Content| match content {
        Content::Text(text) => text.clone(),
        Content::ToolCall(call) => format!("call {}", call.id),
        other => format!("{other:?}"),
    };
    content.iter().map(text).collect()
}

/// How many tool results the request holds.
pub fn results(request: &ModelRequest) -> usize {
    request
        .messages
        .iter()
        .filter(|message| matches!(message, Message::ToolResult(_)))
        .count()
}

fn info(kind: Kind, tools: Vec<Tool>) -> PluginInfo {
    PluginInfo {
        digest: format!("{kind}-digest"),
        kind,
        name: format!("scripted-{kind}"),
        version: "0.1.0".into(),
        summary: "a script".into(),
        wit: "0.1.0".into(),
        size: 0,
        imports: Vec::new(),
        options_schema: None,
        state_version: 1,
        accepts: Vec::new(),
        http: Vec::new(),
        secrets: Vec::new(),
        workspace: Workspace::None,
        models: Vec::new(),
        hosted_tools: match kind {
            Kind::Provider => vec![HostedTool {
                name: "search".into(),
                description: "search".into(),
                effect: Effect::Pure,
            }],
            _ => Vec::new(),
        },
        tools,
    }
}

fn tool(name: &str, effect: Effect) -> Tool {
    let input_schema =
        r#"{"type":"object","properties":{"n":{"type":"integer"}},"additionalProperties":true}"#;
    let definition = ToolDefinition {
        name: name.into(),
        description: name.into(),
        input_schema: input_schema.into(),
    };
    Tool { definition, effect }
}

async fn pause(ms: &AtomicU64) {
    let ms = ms.load(Ordering::SeqCst);
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}

#[async_trait]
impl Plugins for Scripted {
    async fn resolve(&self, kind: Kind, alias: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        if alias == "missing" {
            return Ok(None);
        }
        self.info(&format!("{kind}-digest")).await
    }

    async fn info(&self, digest: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        Ok(match digest {
            "runner-digest" => Some(Arc::new(info(Kind::Runner, Vec::new()))),
            "provider-digest" => Some(Arc::new(info(Kind::Provider, Vec::new()))),
            "toolbox-digest" => Some(Arc::new(info(
                Kind::Toolbox,
                vec![
                    tool("look", Effect::Pure),
                    tool("put", Effect::Idempotent),
                    tool("act", Effect::Once),
                ],
            ))),
            _ => None,
        })
    }

    async fn decide(&self, _digest: &str, view: View) -> Result<Decision, GuestError> {
        pause(&self.decide_ms).await;
        self.decisions
            .lock()
            .unwrap()
            .push((view.trigger.clone(), view.fresh));
        (self.decide)(&view)
    }

    async fn encode(&self, _digest: &str, request: ModelRequest) -> Result<Exchange, GuestError> {
        let n = {
            let mut requests = self.requests.lock().unwrap();
            requests.push(request.clone());
            requests.len() - 1
        };
        Ok(Exchange::Local((self.answer)(&request, n)))
    }

    async fn decoder(
        &self,
        _: &str,
        _: ResponseHead,
        _: Vec<u8>,
    ) -> Result<Box<dyn Decoder>, GuestError> {
        Err(GuestError::Missing(
            "the script has local answers only".into(),
        ))
    }

    async fn classify(&self, _: &str, head: ResponseHead, _: Vec<u8>) -> Failure {
        Failure {
            class: FailureClass::Server,
            message: head.status.to_string(),
            retry_after_ms: None,
        }
    }

    async fn tools(&self, digest: &str, _: Option<String>) -> Result<Vec<Tool>, GuestError> {
        Ok(self
            .info(digest)
            .await
            .ok()
            .flatten()
            .map(|info| info.tools.clone())
            .unwrap_or_default())
    }

    async fn call(&self, _: &str, request: CallRequest) -> Result<Vec<Output>, CallError> {
        self.calls.lock().unwrap().push(Called {
            tool: request.call.tool.clone(),
            id: request.call.id.clone(),
            arguments: request.call.arguments.clone(),
            key: request.idempotency_key.clone(),
            earlier_runs: request.earlier_runs,
        });
        if !request.call.arguments.contains("at once") {
            pause(&self.call_ms).await;
        }
        let gate = self.held.lock().unwrap().get(&request.call.tool).cloned();
        if let Some(gate) = gate {
            let clumsy = request.call.arguments.contains("clumsy");
            tokio::select! {
                () = gate.notified() => {}
                () = request.cancel.cancelled(), if clumsy => {
                    return Err(CallError::Failed("its request was broken off".into()));
                }
            }
        }
        if request.call.arguments.contains("trap") {
            return Err(CallError::Crashed(
                "toolbox scripted: trapped in call".into(),
            ));
        }
        let output = self.output.lock().unwrap().clone();
        let output = output.unwrap_or_else(|| format!("{} done", request.call.tool));
        Ok(vec![Output::Text(output)])
    }

    async fn secrets(&self, _: &str, _: &str) -> Vec<String> {
        Vec::new()
    }

    async fn send(
        &self,
        _: &str,
        _: &str,
        _: &ProviderConfig,
        _: HttpRequest,
    ) -> Result<HttpAnswer, EgressError> {
        Err(EgressError::Denied("the script has no network".into()))
    }
}
