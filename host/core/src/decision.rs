//! One question to a runner: what it is shown, and the judgement of what it answers. An answer that
//! names what does not exist becomes an error here, before anything of it is recorded or begun. What is
//! shown follows from the session, what is recorded as the [`Basis`] and the configuration, so that a
//! recorded question can be asked again (see [`crate::rehearse`]).

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::budget;
use crate::config::{Agent, Config};
use crate::event::{
    Basis, Event, EventBody, EventDraft, PluginRef, ProviderRef, StepStarted, ToolboxRef,
    TurnOutcome,
};
use crate::history::{Item, ModelRef};
use crate::id::{Digest, EventId, Seq};
use crate::model::{Effect, Range, ToolDefinition};
use crate::node::Shared;
use crate::overlay::{InStore, Overlay, Stored};
use crate::plugin::{
    Action, AgentView, Child, Compact, Decision, Entry, GuestError, HistoryReader, Kind, ModelCall,
    PluginInfo, Plugins, ProviderConfig, Segment, SpawnRefusal, State, Summary, Tool, ToolSet,
    ToolView, View,
};
use crate::project;
use crate::tail::{Changes, Tail};
use crate::transcript;
use crate::wait;

/// Model calls that may fail in a row before the turn does.
const FAILED_CALLS: u32 = 3;

/// What every decision needs beside its session.
#[derive(Clone)]
pub(crate) struct Means {
    pub(crate) plugins: Arc<dyn Plugins>,
    /// As it is now.
    pub(crate) config: Arc<Config>,
    pub(crate) stored: Arc<dyn Stored>,
}

/// What a decision is made under.
pub(crate) struct Basics {
    pub(crate) agent: Agent,
    pub(crate) runner: Arc<PluginInfo>,
    pub(crate) model: ModelRef,
    pub(crate) toolboxes: Vec<ToolboxRef>,
    /// Tools with the toolbox that each is of.
    pub(crate) tools: Vec<(ToolboxRef, Tool)>,
}

/// Asks the runner of a session and judges its answer: the events to commit, the last of which is
/// either a `step.started` or a `turn.ended`.
///
/// # Errors
/// Why there is no valid decision.
pub(crate) async fn ask(
    shared: Arc<Shared>,
    tail: Tail,
    fresh_items: Vec<Item>,
) -> Result<Vec<EventDraft>, Undecided> {
    let asked = Instant::now();
    let means = Means {
        plugins: Arc::clone(&shared.plugins),
        config: shared.config.get(),
        stored: Arc::new(InStore(Arc::clone(&shared.store))),
    };
    let basics = basics(&means, &tail).await.map_err(Undecided::Amiss)?;
    let basis = basis(&tail, &basics);
    let mut basis = basis.ok_or_else(|| Undecided::Amiss("no turn is open".into()))?;
    let time_left = budget::time_left(&shared, &basics.agent, &tail).await;
    basis.budget.time_ms = time_left.map_err(Undecided::Amiss)?;
    let view = view(&means, &tail, &basics, &basis, fresh_items.clone());
    let decision = means.plugins.decide(&basics.runner.digest, view).await;
    let decision = decision.map_err(Undecided::Guest)?;
    judge(&means, &tail, &basics, fresh_items, decision, basis, asked).await
}

/// What the next decision is made on. `None` where no turn is open.
pub(crate) fn basis(tail: &Tail, basics: &Basics) -> Option<Basis> {
    let session = &tail.session;
    Some(Basis {
        now: session.updated_at,
        trigger: session.trigger.clone(),
        fresh: Range {
            after: session.seen,
            through: session.head,
        },
        context: Range {
            after: session.context_after,
            through: session.head,
        },
        budget: budget::left(&basics.agent, tail, session.turn.as_ref()?),
        state_from: tail
            .session
            .states
            .handed_to(&basics.runner)
            .map(|(seq, _)| *seq),
    })
}

/// What a runner is shown, with `fresh_items` laid over what is stored.
pub(crate) fn view(
    means: &Means,
    tail: &Tail,
    basics: &Basics,
    basis: &Basis,
    fresh_items: Vec<Item>,
) -> View {
    let session = &tail.session;
    let provider = means.config.providers.get(&basics.model.provider);
    let known = provider.map(|provider| provider.models.as_slice());
    let model_info = known
        .unwrap_or_default()
        .iter()
        .find(|model| model.id == basics.model.model);
    View {
        session: session.id,
        now: basis.now,
        trigger: basis.trigger.clone(),
        fresh: basis.fresh,
        context: basis.context,
        history: Arc::new(Overlay::on(
            Arc::clone(&means.stored),
            session.id,
            basis.context.through,
            fresh_items,
        )),
        open_calls: session
            .open_calls
            .iter()
            .map(|(_, call)| call.clone())
            .collect(),
        agent: AgentView {
            name: session.agent.clone(),
            system_prompt: basics.agent.system_prompt.clone(),
            model: basics.model.clone(),
            model_info: model_info.cloned(),
            options: basics.agent.options.clone(),
        },
        tools: basics
            .tools
            .iter()
            .map(|(toolbox, tool)| ToolView {
                name: tool.definition.name.clone(),
                toolbox: toolbox.alias.clone(),
                effect: tool.effect,
            })
            .collect(),
        budget: basis.budget,
        state: tail
            .session
            .states
            .handed_to(&basics.runner)
            .map(|(_, state)| state.clone()),
    }
}

/// Judges what a runner answered: the events to commit, as [`ask`] gives them. `shown` are the items
/// that are to be committed with them.
///
/// # Errors
/// As [`ask`].
pub(crate) async fn judge(
    means: &Means,
    tail: &Tail,
    basics: &Basics,
    shown: Vec<Item>,
    decision: Decision,
    basis: Basis,
    asked: Instant,
) -> Result<Vec<EventDraft>, Undecided> {
    let judge = Judge {
        means,
        tail,
        basics,
        shown,
    };
    let judged = judge.judge(decision, basis, asked).await;
    judged.map_err(|wrong| match wrong {
        Wrong::Decided(reason) => Undecided::Unfit {
            alias: basics.agent.runner.clone(),
            digest: basics.runner.digest.clone(),
            reason,
        },
        Wrong::Amiss(cause) => Undecided::Amiss(cause),
    })
}

/// Why there is no valid decision, by whose fault it is. The words are for people; they name the runner
/// and its digest where it is the runner's.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Undecided {
    /// The runner was asked and gave no answer, or could not be asked: the error says which.
    #[error(transparent)]
    Guest(GuestError),
    /// The runner decided what cannot be done.
    #[error("runner {alias} ({}) {UNFIT}{reason}", short(digest))]
    Unfit {
        alias: String,
        digest: Digest,
        reason: String,
    },
    /// No runner's: what the question or any answer needs is not there, or cannot be read.
    #[error("{0}")]
    Amiss(String),
}

/// Why a decision is not taken.
enum Wrong {
    /// What is wrong with the decision itself.
    Decided(String),
    /// As [`Undecided::Amiss`].
    Amiss(String),
}

impl From<String> for Wrong {
    fn from(reason: String) -> Self {
        Self::Decided(reason)
    }
}

impl From<&str> for Wrong {
    fn from(reason: &str) -> Self {
        Self::Decided(reason.into())
    }
}

impl From<transcript::Error> for Wrong {
    fn from(error: transcript::Error) -> Self {
        match error {
            transcript::Error::Unfit(reason) => Self::Decided(reason),
            transcript::Error::Unreadable(_) => Self::Amiss(error.to_string()),
        }
    }
}

/// Stands between a runner's name and why its decision was refused.
pub(crate) const UNFIT: &str = "decided what cannot be done: ";

/// The beginning of a digest, for people.
pub(crate) fn short(digest: &str) -> String {
    format!("sha256:{}", digest.get(..12).unwrap_or(digest))
}

async fn basics(means: &Means, tail: &Tail) -> Result<Basics, String> {
    let name = &tail.session.agent;
    let agent = means.config.agents.get(name).cloned();
    let agent = agent.ok_or_else(|| {
        format!("agent {name:?} is not configured; add it and send another prompt")
    })?;
    let runner = find(&means.plugins, Kind::Runner, &agent.runner).await?;
    let model = tail
        .session
        .model
        .clone()
        .unwrap_or_else(|| agent.model.clone());
    let (mut toolboxes, mut tools) = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    for toolbox in &agent.toolboxes {
        let info = find(&means.plugins, Kind::Toolbox, &toolbox.alias).await?;
        let reference = ToolboxRef {
            alias: toolbox.alias.clone(),
            digest: info.digest.clone(),
            options: toolbox.options.clone(),
        };
        for tool in tools_of(&means.plugins, &reference).await? {
            if !names.insert(tool.definition.name.clone()) {
                return Err(format!(
                    "agent {name:?} has two tools of the name {:?}; take one of their toolboxes away",
                    tool.definition.name
                ));
            }
            tools.push((reference.clone(), tool));
        }
        toolboxes.push(reference);
    }
    Ok(Basics {
        agent,
        runner,
        model,
        toolboxes,
        tools,
    })
}

async fn find(
    plugins: &Arc<dyn Plugins>,
    kind: Kind,
    alias: &str,
) -> Result<Arc<PluginInfo>, String> {
    match plugins.resolve(kind, alias).await {
        Ok(Some(info)) => Ok(info),
        Ok(None) => Err(format!(
            "{kind} {alias:?} is not installed; install it and send another prompt"
        )),
        Err(cause) => Err(format!("{kind} {alias:?} could not be looked up: {cause}")),
    }
}

/// The tools of a toolbox as it was when a step was decided.
pub(crate) async fn tools_of(
    plugins: &Arc<dyn Plugins>,
    toolbox: &ToolboxRef,
) -> Result<Vec<Tool>, String> {
    if toolbox.options.is_some() {
        let tools = plugins
            .tools(&toolbox.digest, toolbox.options.clone())
            .await;
        return tools.map_err(|error| error.to_string());
    }
    match plugins.info(&toolbox.digest).await {
        Ok(Some(info)) => Ok(info.tools.clone()),
        Ok(None) => Err(format!(
            "toolbox {:?} ({}) is gone",
            toolbox.alias,
            short(&toolbox.digest)
        )),
        Err(cause) => Err(format!(
            "toolbox {:?} could not be read: {cause}",
            toolbox.alias
        )),
    }
}

/// Puts an action into the one form in which it is recorded. A compaction ends where no call is parted
/// from its result, and nothing is called for a summary, which is words.
///
/// # Errors
/// The history could not be read.
pub(crate) async fn settle_form(
    action: &mut Action,
    history: &dyn HistoryReader,
    context: Range,
) -> Result<(), transcript::Error> {
    let Action::Compact(Compact { through, summary }) = action else {
        return Ok(());
    };
    let items = transcript::items(history, context).await?;
    *through = transcript::settled_boundary(&items, *through);
    if let Summary::Model(call) = summary {
        call.tools = ToolSet::Only(Vec::new());
        call.own_tools.clear();
        call.hosted_tools.clear();
    }
    Ok(())
}

/// # Errors
/// What is wrong with a tool that a runner offers.
fn own_tools(tools: &[ToolDefinition]) -> Result<(), String> {
    let mut names = HashSet::new();
    for tool in tools {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'-';
        if !(1..=64).contains(&tool.name.len()) || !tool.name.bytes().all(plain) {
            return Err(format!(
                "the name of its own tool {:?} does not have 1 to 64 characters of A-Z, a-z, 0-9, _ and -",
                tool.name
            ));
        }
        if !names.insert(&tool.name) {
            return Err(format!("its own tool {:?} stands twice", tool.name));
        }
        if let Err(cause) = serde_json::from_str::<serde_json::Value>(&tool.input_schema) {
            return Err(format!(
                "the input schema of its own tool {:?} is not JSON: {cause}",
                tool.name
            ));
        }
    }
    Ok(())
}

struct Judge<'a> {
    means: &'a Means,
    tail: &'a Tail,
    basics: &'a Basics,
    /// Items that are to be committed with the decision.
    shown: Vec<Item>,
}

impl Judge<'_> {
    async fn judge(
        mut self,
        decision: Decision,
        basis: Basis,
        asked: Instant,
    ) -> Result<Vec<EventDraft>, Wrong> {
        let session = &self.tail.session;
        let steps = basis.budget.steps;
        let mut events: Vec<EventBody> = Vec::new();
        let mut open: Vec<_> = session.open_calls.clone();
        for entry in decision.entries {
            events.push(match entry {
                Entry::Say(parts) => EventBody::RunnerSaid {
                    runner: self.basics.runner.name.clone(),
                    parts,
                },
                Entry::Note(parts) => EventBody::RunnerNoted { parts },
                Entry::Answer(answer) => {
                    let at = open.iter().position(|(_, call)| call.id == answer.call);
                    let at = at.ok_or_else(|| {
                        format!("it answers call {:?}, which is not open", answer.call)
                    })?;
                    let (step, _) = open.remove(at);
                    EventBody::RunnerAnswered { step, answer }
                }
            });
        }
        self.lay_over(&events)?;
        let history = Overlay::on(
            Arc::clone(&self.means.stored),
            session.id,
            session.head + events.len() as u64,
            self.shown.clone(),
        );
        let mut started = Box::new(StepStarted {
            basis,
            runner: PluginRef {
                alias: self.basics.agent.runner.clone(),
                name: self.basics.runner.name.clone(),
                digest: self.basics.runner.digest.clone(),
            },
            provider: None,
            toolboxes: self.basics.toolboxes.clone(),
            action: decision.action,
            state: decision.state.map(|data| State {
                runner: self.basics.runner.name.clone(),
                state_version: self.basics.runner.state_version,
                data,
            }),
            hosted_once: false,
            spawn_refused: None,
            decide_us: 0,
        });
        let ends = matches!(started.action, Action::Done | Action::Fail(_));
        if steps == 0 && !ends {
            return Err("the turn's allowance of steps is used up".into());
        }
        if let Some(budget) = budget::exceeded(&started.basis.budget, &started.action) {
            return Err(budget.into());
        }
        settle_form(&mut started.action, &history, self.tail_context()).await?;
        match &started.action {
            Action::Done | Action::Fail(_) => {}
            Action::CallModel(call) => {
                if !open.is_empty() {
                    return Err(Wrong::Decided(format!(
                        "it asks a model while call {:?} has no answer",
                        open[0].1.id
                    )));
                }
                let (provider, once) = self.model_call(&history, call, steps).await?;
                (started.provider, started.hosted_once) = (Some(provider), once);
            }
            Action::CallTools(calls) => {
                if calls.is_empty() {
                    return Err("it calls no tools".into());
                }
                let mut ids = HashSet::new();
                for call in calls {
                    if !ids.insert(call.id.clone()) {
                        return Err(Wrong::Decided(format!(
                            "call id {:?} stands twice",
                            call.id
                        )));
                    }
                    if !self
                        .basics
                        .tools
                        .iter()
                        .any(|(_, tool)| tool.definition.name == call.tool)
                    {
                        return Err(Wrong::Decided(format!(
                            "no toolbox of the session has a tool {:?}",
                            call.tool
                        )));
                    }
                }
            }
            Action::Compact(compact) => {
                if compact.through <= session.context_after {
                    return Err("there is nothing to compact before that place".into());
                }
                if let Summary::Model(call) = &compact.summary {
                    let (provider, _) = self.model_call(&history, call, steps).await?;
                    started.provider = Some(provider);
                }
            }
            Action::Wait(wait) => wait::check(session, &wait.until)?,
            Action::Spawn(children) => {
                started.spawn_refused = self.spawn(children)?;
            }
        }
        started.decide_us = asked.elapsed().as_micros() as u64;
        let outcome = match &started.action {
            Action::Done => Some(TurnOutcome::Done),
            Action::Fail(error) => Some(TurnOutcome::Failed {
                error: error.clone(),
            }),
            _ => None,
        };
        if outcome.is_some() {
            // A result is owed for every call before a model is asked again, in the next turn too.
            events.extend(open.into_iter().map(|(step, call)| EventBody::CallDropped {
                step,
                call: call.id,
            }));
        }
        events.push(match outcome {
            Some(outcome) => EventBody::TurnEnded {
                outcome,
                decided: Some(started),
            },
            None => EventBody::StepStarted(started),
        });
        Ok(events.into_iter().map(EventDraft::new).collect())
    }

    /// Adds the items that these entries will be.
    fn lay_over(&mut self, entries: &[EventBody]) -> Result<(), Wrong> {
        if entries.is_empty() {
            return Ok(());
        }
        let mut tail = self.tail.clone();
        let mut changes = Changes::default();
        for body in entries {
            let event = Event {
                session: tail.session.id,
                seq: tail.session.head + 1,
                id: EventId::new(),
                at: tail.session.updated_at,
                execution: None,
                recovery: None,
                body: body.clone(),
                compacted: None,
            };
            project::project(&mut tail, &event, &mut changes).map_err(|broken| broken.rule)?;
        }
        self.shown.extend(changes.items);
        Ok(())
    }

    /// The limit that these children would pass, if they do.
    fn spawn(&self, children: &[Child]) -> Result<Option<SpawnRefusal>, Wrong> {
        let session = &self.tail.session;
        if children.is_empty() {
            return Err("it spawns no child".into());
        }
        let mut keys = HashSet::new();
        for child in children {
            if child.key.is_empty() || !keys.insert(&child.key) {
                return Err(Wrong::Decided(format!(
                    "child key {:?} is empty or stands twice",
                    child.key
                )));
            }
            if child.prompt.is_empty() {
                return Err(Wrong::Decided(format!(
                    "child {:?} gets no prompt",
                    child.key
                )));
            }
            let agent = child.agent.as_ref().unwrap_or(&session.agent);
            if !self.means.config.agents.contains_key(agent) {
                return Err(Wrong::Decided(format!(
                    "child {:?} is to be of agent {agent:?}, which is not configured",
                    child.key
                )));
            }
        }
        let new = children
            .iter()
            .filter(|child| session.child(&child.key).is_none())
            .count();
        let limits = &self.basics.agent;
        Ok(if new == 0 {
            None
        } else if session.depth() >= limits.max_depth {
            Some(SpawnRefusal::TooDeep)
        } else if session.children.len() + new > limits.max_children as usize {
            Some(SpawnRefusal::TooMany)
        } else {
            None
        })
    }

    fn tail_context(&self) -> Range {
        Range {
            after: self.tail.session.context_after,
            through: self.tail.session.head,
        }
    }

    /// The provider of a call, and whether it offers a hosted tool that acts once.
    async fn model_call(
        &self,
        history: &Overlay,
        call: &ModelCall,
        steps: u32,
    ) -> Result<(ProviderRef, bool), Wrong> {
        if self.tail.session.failed_calls >= FAILED_CALLS {
            return Err(Wrong::Decided(format!(
                "{FAILED_CALLS} model calls in a row have failed"
            )));
        }
        let model = call.model.as_ref().unwrap_or(&self.basics.model);
        let provider = self.means.config.providers.get(&model.provider);
        let provider = provider.ok_or_else(|| {
            let reason = format!("provider {:?} is not configured", model.provider);
            match call.model {
                Some(_) => Wrong::Decided(reason),
                // The agent's own.
                None => Wrong::Amiss(reason),
            }
        })?;
        let info = find(&self.means.plugins, Kind::Provider, &provider.plugin).await;
        let info = info.map_err(Wrong::Amiss)?;
        if let ToolSet::Only(names) = &call.tools
            && let Some(unknown) = names.iter().find(|name| {
                !self
                    .basics
                    .tools
                    .iter()
                    .any(|(_, tool)| tool.definition.name == **name)
            })
        {
            return Err(Wrong::Decided(format!(
                "no toolbox of the session has a tool {unknown:?}"
            )));
        }
        if let Some(own) = call.own_tools.iter().find(|own| {
            self.basics
                .tools
                .iter()
                .any(|(_, tool)| tool.definition.name == own.name)
        }) {
            return Err(Wrong::Decided(format!(
                "its own tool {:?} has the name of a toolbox's",
                own.name
            )));
        }
        own_tools(&call.own_tools)?;
        let mut once = false;
        for name in &call.hosted_tools {
            let hosted = info.hosted_tools.iter().find(|hosted| hosted.name == *name);
            let hosted = hosted.ok_or_else(|| {
                format!("provider {:?} has no hosted tool {name:?}", model.provider)
            })?;
            once |= hosted.effect == Effect::Once && steps > 1;
        }
        for segment in &call.transcript {
            if let Segment::Items(range) = segment
                && (range.after > range.through || range.through > self.tail.session.head)
            {
                return Err(Wrong::Decided(format!(
                    "the range after {} through {} is outside the history",
                    range.after, range.through
                )));
            }
        }
        let segments = transcript::to_the_end(&call.transcript, self.tail.session.head, Seq::MAX);
        transcript::messages(history, &segments, &info.name).await?;
        let secrets = self
            .means
            .plugins
            .secrets(&info.digest, &model.provider)
            .await;
        let reference = ProviderRef {
            alias: model.provider.clone(),
            name: info.name.clone(),
            digest: info.digest.clone(),
            model: model.model.clone(),
            config: ProviderConfig {
                base_url: provider.base_url.clone(),
                secrets,
                options: provider.options.clone(),
            },
        };
        Ok((reference, once))
    }
}
