//! The guests of a run: two runners, a provider whose model acts by the plan in the last prompt, and a
//! toolbox. What they do follows from what they are shown, and every call is counted outside the log.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::event::InputContent;
use mainstay_core::id::SessionId;
use mainstay_core::model::{
    Effect, Failure, FailureClass, FinishReason, HostedResult, Message, ModelOptions, Part,
    ToolCall, ToolChoice, ToolDefinition, text_of,
};
use mainstay_core::plugin::{
    Action, Answer as Reply, ApprovalRequest, BodyStream, CallError, CallRequest, Child, Compact,
    Condition, Decision, Decoder, EgressError, Entry, Exchange, GuestError, HostedTool, HttpAnswer,
    HttpRequest, Kind, LocalEvent, ModelCall, ModelEvent, ModelRequest, Output, PluginInfo,
    Plugins, ProviderConfig, ResponseHead, Segment, Summary, Tool, ToolSet, Trigger, View, Wait,
    Workspace,
};
use serde::{Deserialize, Serialize};

use crate::invariant::Broken;
use crate::judge::Judge;
use crate::link::Link;
use crate::plugins::{events, say};
use crate::script::{Answer, Call, Fault, How, Http};
use crate::sim::Sim;

/// The limit of time of a guest's call, in ms.
const LIMIT_MS: u64 = 12_000;

/// The number of all prompts of children.
const CHILD_PROMPT: u32 = 2_000_000;

/// Items after which the busy runner compacts.
const MANY_ITEMS: u64 = 14;

/// A prompt as the simulated model reads it.
#[derive(Serialize, Deserialize)]
struct Prompt {
    number: u32,
    plan: Vec<Answer>,
}

/// A prompt that carries a plan.
#[must_use]
pub fn prompt(number: u32, plan: &[Answer]) -> InputContent {
    InputContent::Prompt {
        parts: words(number, plan),
    }
}

fn words(number: u32, plan: &[Answer]) -> Vec<Part> {
    let prompt = Prompt {
        number,
        plan: plan.to_vec(),
    };
    let text = serde_json::to_string(&prompt).expect("a plan is plain data");
    vec![Part::Text(text)]
}

/// What the guests of all processes did, as the world outside knows it.
pub struct Outside {
    sim: Arc<Sim>,
    judge: Arc<Judge>,
    counts: Mutex<Counts>,
}

#[derive(Default)]
struct Counts {
    /// Calls of tools that act once, by idempotency key.
    once: HashSet<String>,
    /// How often a model failed by its plan.
    failures: HashMap<(u32, usize), u32>,
}

impl Outside {
    #[must_use]
    pub fn new(sim: Arc<Sim>, judge: Arc<Judge>) -> Arc<Self> {
        Arc::new(Self {
            sim,
            judge,
            counts: Mutex::default(),
        })
    }

    fn counts(&self) -> MutexGuard<'_, Counts> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A tool is called: judges that it may be.
    fn called(&self, session: SessionId, request: &CallRequest) {
        let key = &request.idempotency_key;
        if request.effect != Effect::Pure && !self.judge.has_started(session, key) {
            self.judge.fail(Broken {
                invariant: "a_call_that_acts_is_written_ahead",
                detail: format!(
                    "{} was called with key {key}, and its start is not in the log of {session}",
                    request.call.tool
                ),
            });
        }
        let mut counts = self.counts();
        if request.effect == Effect::Once && !counts.once.insert(key.clone()) {
            self.judge.fail(Broken {
                invariant: "a_once_effect_happens_once",
                detail: format!("{} was called again with key {key}", request.call.tool),
            });
        }
    }
}

/// The guests as one process runs them.
pub struct Guests {
    pub outside: Arc<Outside>,
    pub link: Arc<Link>,
}

impl Guests {
    fn fault(&self) -> Option<Fault> {
        self.outside
            .sim
            .fault(self.link.writer.node, |fault| match fault {
                Fault::RunnerTraps | Fault::RunnerSlow(_) | Fault::RunnerLies => Some(fault),
                _ => None,
            })
    }

    /// What the model does, and for which prompt and at which of its steps.
    fn answer(&self, request: &ModelRequest) -> (u32, usize, Answer) {
        let idle = Answer::Say {
            pieces: 1,
            pause_ms: 0,
        };
        let prompt = request
            .messages
            .iter()
            .enumerate()
            .rev()
            .find_map(|(at, message)| {
                let Message::User(parts) = message else {
                    return None;
                };
                let prompt: Prompt = serde_json::from_str(&text_of(parts)).ok()?;
                Some((at, prompt))
            });
        let Some((at, prompt)) = prompt else {
            return (0, 0, idle);
        };
        let step = request.messages[at..]
            .iter()
            .filter(|message| matches!(message, Message::Assistant(_)))
            .count();
        let answer = prompt.plan.into_iter().nth(step);
        // Without tools there is nothing to do but to say something.
        let answer = answer
            .filter(|answer| !request.tools.is_empty() || !matches!(answer, Answer::Call { .. }));
        (prompt.number, step, answer.unwrap_or(idle))
    }

    /// True as long as a failure is due by the plan.
    fn fails(&self, prompt: u32, step: usize, times: u32) -> bool {
        let mut counts = self.outside.counts();
        let count = counts.failures.entry((prompt, step)).or_default();
        *count += 1;
        *count <= times
    }
}

fn failure(class: FailureClass) -> Failure {
    Failure {
        class,
        message: "by the plan".into(),
        retry_after_ms: (class == FailureClass::RateLimited).then_some(700),
    }
}

fn calls(calls: &[Call], pause_ms: u32) -> Vec<LocalEvent> {
    let mut all = Vec::new();
    for (n, call) in calls.iter().enumerate() {
        let id = format!("c{n}");
        let tool = call.tool.name().to_owned();
        let arguments = if call.how == How::BadArguments {
            r#"{"n":"not a number"}"#.to_owned()
        } else {
            serde_json::json!({ "n": n, "how": call.how }).to_string()
        };
        let half = arguments.len() / 2;
        let (head, tail) = arguments.split_at(half);
        let local = |after_ms, event| LocalEvent { after_ms, event };
        let delta = |arguments: &str| ModelEvent::ToolCallDelta {
            id: id.clone(),
            arguments: arguments.into(),
        };
        all.push(local(
            0,
            ModelEvent::ToolCallStart {
                id: id.clone(),
                tool,
            },
        ));
        all.push(local(0, delta(head)));
        all.push(local(pause_ms, delta(tail)));
        all.push(local(0, ModelEvent::ToolCallEnd { id: id.clone() }));
    }
    all.push(LocalEvent {
        after_ms: pause_ms,
        event: ModelEvent::Finished(FinishReason::ToolCalls),
    });
    all
}

/// The answer's events.
fn played(answer: &Answer, fails: bool) -> Vec<LocalEvent> {
    let local = |after_ms, event| LocalEvent { after_ms, event };
    match answer {
        Answer::Say { pieces, pause_ms } => {
            let mut all: Vec<LocalEvent> = (0..*pieces)
                .map(|n| local(*pause_ms, ModelEvent::TextDelta(format!("piece {n} "))))
                .collect();
            all.push(local(*pause_ms, ModelEvent::Finished(FinishReason::Stop)));
            all
        }
        Answer::Call {
            calls: made,
            pause_ms,
        } => calls(made, *pause_ms),
        Answer::Fail { class, .. } if fails => events([ModelEvent::Failed(failure(*class))]),
        Answer::Fail { .. } | Answer::Http(_) => say("at last"),
        Answer::Cut => events([ModelEvent::TextDelta("broken o".into())]),
        Answer::Hosted { answered, pause_ms } => {
            let mut all = vec![local(
                0,
                ModelEvent::HostedCall(ToolCall {
                    id: "h0".into(),
                    tool: "search".into(),
                    arguments: "{}".into(),
                }),
            )];
            if *answered {
                let result = HostedResult {
                    call: "h0".into(),
                    is_error: false,
                    data: "{}".into(),
                };
                all.push(local(*pause_ms, ModelEvent::HostedResult(result)));
            }
            all.push(local(*pause_ms, ModelEvent::Finished(FinishReason::Stop)));
            all
        }
        Answer::Lie => events([
            ModelEvent::TextDelta("then ".into()),
            ModelEvent::ToolCallEnd { id: "never".into() },
        ]),
    }
}

/// The runner that asks the model until it stops.
fn plain(view: &View) -> Decision {
    let action = match &view.trigger {
        Trigger::ModelFinished(FinishReason::Stop | FinishReason::Length) => Action::Done,
        Trigger::ModelFailed(failure) => Action::Fail(failure.message.clone()),
        _ => ask(view, false),
    };
    Decision {
        entries: Vec::new(),
        action,
        state: None,
    }
}

fn ask(view: &View, own: bool) -> Action {
    let mine = ToolDefinition {
        name: "mine".into(),
        description: "the runner's own".into(),
        input_schema: r#"{"type":"object"}"#.into(),
    };
    Action::CallModel(ModelCall {
        model: None,
        transcript: vec![Segment::Items(view.context)],
        tools: ToolSet::All,
        own_tools: if own { vec![mine] } else { Vec::new() },
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
    })
}

/// The runner that does all that a runner can: it begins with calls of its own accord, answers calls
/// of its own tool, counts its decisions in its state, and compacts a long context.
async fn busy(view: &View) -> Result<Decision, GuestError> {
    let count = view
        .state
        .as_ref()
        .and_then(|state| state.data.first().copied())
        .unwrap_or(0);
    let size = view.history.measure(view.context).await;
    let size = size.map_err(|cause| GuestError::Host(cause.to_string()))?;
    let mut entries: Vec<Entry> = view
        .open_calls
        .iter()
        .map(|call| {
            Entry::Answer(Reply {
                call: call.id.clone(),
                is_error: !count.is_multiple_of(2),
                output: vec![Part::Text("of my own".into())],
            })
        })
        .collect();
    let action = match &view.trigger {
        Trigger::ModelFinished(FinishReason::Stop | FinishReason::Length) => {
            entries.push(Entry::Note(vec![Part::Text("that is all".into())]));
            Action::Done
        }
        Trigger::ModelFailed(failure) if failure.class == FailureClass::Authentication => {
            Action::Fail(failure.message.clone())
        }
        Trigger::TurnStarted if size.items > MANY_ITEMS => Action::Compact(Compact {
            through: view.context.through,
            summary: if count.is_multiple_of(2) {
                Summary::Text("what was before".into())
            } else {
                match ask(view, false) {
                    Action::CallModel(call) => Summary::Model(Box::new(call)),
                    _ => unreachable!("`ask` calls a model"),
                }
            },
        }),
        Trigger::TurnStarted => {
            entries.push(Entry::Say(vec![Part::Text("let me see".into())]));
            let call = |id: &str, tool: &str| ToolCall {
                id: id.into(),
                tool: tool.into(),
                arguments: r#"{"n":0,"how":{"slow":40}}"#.into(),
            };
            Action::CallTools(vec![
                call("r0", "act"),
                call("r1", "look"),
                call("r2", "put"),
            ])
        }
        _ => ask(view, true),
    };
    Ok(Decision {
        entries,
        action,
        state: Some(vec![count.wrapping_add(1)]),
    })
}

/// The runner that makes a `pure` call in each of many steps, most of which are finished at once, and
/// asks the model after each five. Its state counts them.
fn curious(view: &View) -> Decision {
    let looks = view
        .state
        .as_ref()
        .and_then(|state| state.data.first().copied())
        .unwrap_or(0);
    let goes_on = match &view.trigger {
        Trigger::TurnStarted => true,
        Trigger::ToolsFinished => !looks.is_multiple_of(5),
        _ => false,
    };
    if !goes_on {
        return plain(view);
    }
    let looks = looks.wrapping_add(1);
    let how = match looks % 7 {
        0 => r#"{"slow":40}"#,
        3 => r#""fails""#,
        5 => r#""traps""#,
        _ => r#""well""#,
    };
    Decision {
        entries: Vec::new(),
        action: Action::CallTools(vec![ToolCall {
            id: format!("l{looks}"),
            tool: "look".into(),
            arguments: format!(r#"{{"n":{looks},"how":{how}}}"#),
        }]),
        state: Some(vec![looks]),
    }
}

/// What the patient runner asks for.
pub const APPROVAL: &str = "may-i";

/// What the patient runner waits for.
pub const SIGNAL: &str = "go";

/// The runner that waits once in each turn. Its state says whether it has.
fn patient(view: &View) -> Decision {
    let waited = view.state.as_ref().is_some_and(|state| state.data == [1]);
    let (action, waited) = match &view.trigger {
        Trigger::TurnStarted => (ask(view, false), false),
        Trigger::ModelFinished(FinishReason::Stop | FinishReason::Length) if !waited => {
            let until = vec![
                Condition::Time(view.now + 3_000),
                Condition::Signal(SIGNAL.into()),
                Condition::Approval(ApprovalRequest {
                    key: APPROVAL.into(),
                    question: "may I go on?".into(),
                    details: None,
                }),
            ];
            (Action::Wait(Wait { until }), true)
        }
        _ => (plain(view).action, waited),
    };
    Decision {
        entries: Vec::new(),
        action,
        state: Some(vec![u8::from(waited)]),
    }
}

/// The runner that gives its work to two children in each of its first turns, and waits for them. Its
/// state counts those turns.
fn parent(view: &View) -> Decision {
    let turns = view
        .state
        .as_ref()
        .and_then(|state| state.data.first().copied())
        .unwrap_or(0);
    let key = |turn: u8, child: usize| format!("child-{turn}-{child}");
    let (action, turns) = match &view.trigger {
        Trigger::TurnStarted if turns < 2 => {
            let agents = [["plain", "patient"], ["busy", "parent"]];
            let agents = agents[usize::from(turns)];
            let plan = [Answer::Call {
                calls: vec![Call {
                    tool: crate::script::Tool::Act,
                    how: How::Slow(400),
                }],
                pause_ms: 0,
            }];
            let children = agents.iter().enumerate().map(|(n, agent)| Child {
                key: key(turns, n),
                agent: Some((*agent).into()),
                prompt: words(CHILD_PROMPT, &plan),
            });
            (Action::Spawn(children.collect()), turns + 1)
        }
        Trigger::Spawned => {
            let turn = turns.saturating_sub(1);
            let mut until = vec![Condition::Children(vec![key(turn, 0), key(turn, 1)])];
            if turn == 1 {
                until.push(Condition::Time(view.now + 1_500));
            }
            (Action::Wait(Wait { until }), turns)
        }
        _ => (plain(view).action, turns),
    };
    Decision {
        entries: Vec::new(),
        action,
        state: Some(vec![turns]),
    }
}

fn info(digest: &str) -> Option<Arc<PluginInfo>> {
    let (kind, name) = match digest {
        "curious-digest" => (Kind::Runner, "curious"),
        "patient-digest" => (Kind::Runner, "patient"),
        "parent-digest" => (Kind::Runner, "parent"),
        "plain-digest" => (Kind::Runner, "plain"),
        "busy-digest" => (Kind::Runner, "busy"),
        "provider-digest" => (Kind::Provider, "simulated-provider"),
        "toolbox-digest" => (Kind::Toolbox, "simulated-toolbox"),
        _ => return None,
    };
    let tool = |name: &str, effect| Tool {
        definition: ToolDefinition {
            name: name.into(),
            description: name.into(),
            input_schema: r#"{"type":"object","properties":{"n":{"type":"integer"}}}"#.into(),
        },
        effect,
    };
    Some(Arc::new(PluginInfo {
        digest: digest.into(),
        kind,
        name: name.into(),
        version: "0.1.0".into(),
        summary: "simulated".into(),
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
        hosted_tools: vec![HostedTool {
            name: "search".into(),
            description: "search".into(),
            effect: Effect::Pure,
        }],
        tools: if kind == Kind::Toolbox {
            vec![
                tool("look", Effect::Pure),
                tool("put", Effect::Idempotent),
                tool("act", Effect::Once),
            ]
        } else {
            Vec::new()
        },
    }))
}

#[async_trait]
impl Plugins for Guests {
    async fn resolve(&self, kind: Kind, alias: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        self.link.alive().await;
        let digest = if kind == Kind::Runner {
            format!("{alias}-digest")
        } else {
            format!("{kind}-digest")
        };
        Ok(info(&digest))
    }

    async fn info(&self, digest: &str) -> Result<Option<Arc<PluginInfo>>, BoxError> {
        self.link.alive().await;
        Ok(info(digest))
    }

    async fn decide(&self, digest: &str, view: View) -> Result<Decision, GuestError> {
        self.link.alive().await;
        let decision = match self.fault() {
            Some(Fault::RunnerTraps) => return Err(GuestError::Trap("trapped in decide".into())),
            Some(Fault::RunnerLies) => Decision {
                entries: Vec::new(),
                action: Action::CallTools(vec![ToolCall {
                    id: "x".into(),
                    tool: "nowhere".into(),
                    arguments: "{}".into(),
                }]),
                state: None,
            },
            fault => {
                if let Some(Fault::RunnerSlow(ms)) = fault {
                    tokio::time::sleep(Duration::from_millis(ms)).await;
                }
                match digest {
                    "busy-digest" => busy(&view).await?,
                    "curious-digest" => curious(&view),
                    "patient-digest" => patient(&view),
                    "parent-digest" => parent(&view),
                    _ => plain(&view),
                }
            }
        };
        self.link.alive().await;
        Ok(decision)
    }

    async fn encode(&self, _: &str, request: ModelRequest) -> Result<Exchange, GuestError> {
        self.link.alive().await;
        let (prompt, step, answer) = self.answer(&request);
        let fails =
            matches!(&answer, Answer::Fail { times, .. } if self.fails(prompt, step, *times));
        if let Answer::Http(http) = answer {
            let memo = serde_json::to_vec(&http).expect("plain data");
            let request = HttpRequest {
                method: "POST".into(),
                url: format!("https://model.invalid/{}", String::from_utf8_lossy(&memo)),
                headers: Vec::new(),
                body: Vec::new(),
            };
            return Ok(Exchange::Http { request, memo });
        }
        Ok(Exchange::Local(played(&answer, fails)))
    }

    async fn decoder(
        &self,
        _: &str,
        _: ResponseHead,
        _: Vec<u8>,
    ) -> Result<Box<dyn Decoder>, GuestError> {
        self.link.alive().await;
        Ok(Box::new(Letters))
    }

    async fn classify(&self, _: &str, head: ResponseHead, _: Vec<u8>) -> Failure {
        self.link.alive().await;
        failure(match head.status {
            401 => FailureClass::Authentication,
            429 => FailureClass::RateLimited,
            _ => FailureClass::Server,
        })
    }

    async fn tools(&self, digest: &str, _: Option<String>) -> Result<Vec<Tool>, GuestError> {
        self.link.alive().await;
        Ok(info(digest).map_or_else(Vec::new, |info| info.tools.clone()))
    }

    async fn call(&self, _: &str, request: CallRequest) -> Result<Vec<Output>, CallError> {
        self.link.alive().await;
        self.outside.called(request.session, &request);
        let arguments: serde_json::Value =
            serde_json::from_str(&request.call.arguments).unwrap_or_default();
        let how = serde_json::from_value(arguments["how"].clone()).unwrap_or(How::Well);
        let limit = tokio::time::sleep(Duration::from_millis(LIMIT_MS));
        let answer = match how {
            How::Well | How::BadArguments => Ok(()),
            How::Slow(ms) => {
                tokio::select! {
                    biased;
                    () = request.cancel.cancelled() => Err(CallError::Cancelled("told to stop".into())),
                    () = tokio::time::sleep(Duration::from_millis(u64::from(ms))) => Ok(()),
                }
            }
            How::Traps => Err(CallError::Crashed("trapped in call".into())),
            How::Fails => Err(CallError::Failed("it cannot be done".into())),
            How::Hangs => {
                tokio::select! {
                    biased;
                    () = request.cancel.cancelled() => Err(CallError::Cancelled("told to stop".into())),
                    () = limit => Err(CallError::Crashed("past its limit of time".into())),
                }
            }
            How::Deaf => {
                limit.await;
                Err(CallError::Crashed("past its limit of time".into()))
            }
        };
        self.link.alive().await;
        answer.map(|()| vec![Output::Text(format!("{} done", request.call.tool))])
    }

    async fn secrets(&self, _: &str, _: &str) -> Vec<String> {
        Vec::new()
    }

    async fn send(
        &self,
        _: &str,
        _: &str,
        _: &ProviderConfig,
        request: HttpRequest,
    ) -> Result<HttpAnswer, EgressError> {
        self.link.alive().await;
        let path = request.url.rsplit('/').next().unwrap_or_default();
        let http: Http = serde_json::from_str(path)
            .map_err(|cause| EgressError::Invalid(format!("not by a plan: {cause}")))?;
        let status = match http {
            Http::Unreachable => return Err(EgressError::Unreachable("by the plan".into())),
            Http::Status(status) => status,
            _ => 200,
        };
        let head = ResponseHead {
            status,
            headers: Vec::new(),
        };
        let body = Box::new(Body {
            link: Arc::clone(&self.link),
            http,
            sent: 0,
        });
        Ok(HttpAnswer { head, body })
    }
}

/// A body that sends a letter at a time.
struct Body {
    link: Arc<Link>,
    http: Http,
    sent: usize,
}

/// What a whole body says; the decoder stops at the full stop.
const LETTERS: &[u8] = b"abc.";

#[async_trait]
impl BodyStream for Body {
    async fn next(&mut self) -> Result<Option<Vec<u8>>, EgressError> {
        tokio::time::sleep(Duration::from_millis(70)).await;
        self.link.alive().await;
        match self.http {
            Http::Status(_) => return Ok(None),
            Http::Breaks if self.sent == 2 => {
                return Err(EgressError::Broken("by the plan".into()));
            }
            Http::Stalls if self.sent == 1 => std::future::pending().await,
            _ => {}
        }
        let letter = LETTERS.get(self.sent).map(|letter| vec![*letter]);
        self.sent += 1;
        Ok(letter)
    }
}

/// Makes text of letters, and an end of a full stop.
struct Letters;

#[async_trait]
impl Decoder for Letters {
    async fn feed(&mut self, bytes: Vec<u8>) -> Result<Vec<ModelEvent>, GuestError> {
        Ok(bytes
            .iter()
            .map(|byte| match byte {
                b'.' => ModelEvent::Finished(FinishReason::Stop),
                letter => ModelEvent::TextDelta(char::from(*letter).into()),
            })
            .collect())
    }

    async fn finish(&mut self) -> Result<Vec<ModelEvent>, GuestError> {
        Ok(Vec::new())
    }
}
