//! One question to a runner: what it is shown, and the judgement of what it answers. An answer that
//! names what does not exist becomes an error here, before anything of it is recorded or begun.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Instant;

use crate::config::Agent;
use crate::event::{
    Basis, Event, EventBody, EventDraft, PluginRef, ProviderRef, StepStarted, ToolboxRef,
    TurnOutcome,
};
use crate::history::{Item, ModelRef};
use crate::id::{EventId, Seq};
use crate::model::{Effect, Range};
use crate::node::Shared;
use crate::overlay::Overlay;
use crate::plugin::{
    Action, AgentView, Budget, Child, Decision, Entry, Kind, ModelCall, PluginInfo, Plugins,
    ProviderConfig, Segment, SpawnRefusal, State, Summary, Tool, ToolSet, ToolView, View,
};
use crate::project;
use crate::tail::{Changes, Tail};
use crate::transcript;
use crate::wait;

/// Model calls that may fail in a row before the turn does.
const FAILED_CALLS: u32 = 3;

/// What a decision is made under.
struct Basics {
    agent: Agent,
    runner: Arc<PluginInfo>,
    model: ModelRef,
    toolboxes: Vec<ToolboxRef>,
    /// Tools with the toolbox that each is of.
    tools: Vec<(ToolboxRef, Tool)>,
}

/// Asks the runner of a session and judges its answer: the events to commit, the last of which is
/// either a `step.started` or a `turn.ended`.
///
/// # Errors
/// Why there is no valid decision, in words for people. It names plugin and digest where a plugin is
/// at fault.
pub(crate) async fn ask(
    shared: Arc<Shared>,
    tail: Tail,
    fresh_items: Vec<Item>,
) -> Result<Vec<EventDraft>, String> {
    let asked = Instant::now();
    let basics = basics(&shared, &tail).await?;
    let session = &tail.session;
    let turn = session.turn.as_ref().ok_or("no turn is open")?;
    let shown = fresh_items.clone();
    let history = Arc::new(Overlay::new(
        Arc::clone(&shared.store),
        session.id,
        session.head,
        fresh_items,
    ));
    let state = session
        .state
        .as_ref()
        .filter(|(_, state)| accepts(&basics.runner, state));
    let basis = Basis {
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
        budget: Budget {
            steps: turn.steps_left,
            tokens: basics.agent.tokens.map(|most| {
                most.saturating_sub(session.usage.input_tokens + session.usage.output_tokens)
            }),
            cost: None,
            time_ms: None,
        },
        state_from: state.map(|(seq, _)| *seq),
    };
    let provider = shared
        .config
        .get()
        .providers
        .get(&basics.model.provider)
        .cloned();
    let view = View {
        session: session.id,
        now: basis.now,
        trigger: basis.trigger.clone(),
        fresh: basis.fresh,
        context: basis.context,
        history: Arc::clone(&history) as _,
        open_calls: session
            .open_calls
            .iter()
            .map(|(_, call)| call.clone())
            .collect(),
        agent: AgentView {
            name: session.agent.clone(),
            system_prompt: basics.agent.system_prompt.clone(),
            model: basics.model.clone(),
            model_info: provider.and_then(|provider| {
                provider
                    .models
                    .into_iter()
                    .find(|model| model.id == basics.model.model)
            }),
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
        state: state.map(|(_, state)| state.clone()),
    };
    let decision = shared.plugins.decide(&basics.runner.digest, view).await;
    let decision = decision.map_err(|error| error.to_string())?;
    let judge = Judge {
        shared: &shared,
        tail: &tail,
        basics: &basics,
        shown,
    };
    let name = format!(
        "runner {} ({})",
        basics.agent.runner,
        short(&basics.runner.digest)
    );
    judge
        .judge(decision, basis, asked)
        .await
        .map_err(|error| format!("{name} decided what cannot be done: {error}"))
}

/// The beginning of a digest, for people.
pub(crate) fn short(digest: &str) -> String {
    format!("sha256:{}", digest.get(..12).unwrap_or(digest))
}

fn accepts(runner: &PluginInfo, state: &State) -> bool {
    (state.runner == runner.name && state.state_version == runner.state_version)
        || runner.accepts.iter().any(|format| {
            format.runner == state.runner && format.state_version == state.state_version
        })
}

async fn basics(shared: &Shared, tail: &Tail) -> Result<Basics, String> {
    let config = shared.config.get();
    let name = &tail.session.agent;
    let agent = config.agents.get(name).cloned();
    let agent = agent.ok_or_else(|| {
        format!("agent {name:?} is not configured; add it and send another prompt")
    })?;
    let runner = find(&shared.plugins, Kind::Runner, &agent.runner).await?;
    let model = tail
        .session
        .model
        .clone()
        .unwrap_or_else(|| agent.model.clone());
    let (mut toolboxes, mut tools) = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    for toolbox in &agent.toolboxes {
        let info = find(&shared.plugins, Kind::Toolbox, &toolbox.alias).await?;
        let reference = ToolboxRef {
            alias: toolbox.alias.clone(),
            digest: info.digest.clone(),
            options: toolbox.options.clone(),
        };
        for tool in tools_of(&shared.plugins, &reference).await? {
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

struct Judge<'a> {
    shared: &'a Shared,
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
    ) -> Result<Vec<EventDraft>, String> {
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
        let history = Overlay::new(
            Arc::clone(&self.shared.store),
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
        match &mut started.action {
            Action::Done | Action::Fail(_) => {}
            Action::CallModel(call) => {
                let call = call.clone();
                if !open.is_empty() {
                    return Err(format!(
                        "it asks a model while call {:?} has no answer",
                        open[0].1.id
                    ));
                }
                let (provider, once) = self.model_call(&history, &call, steps).await?;
                (started.provider, started.hosted_once) = (Some(provider), once);
            }
            Action::CallTools(calls) => {
                if calls.is_empty() {
                    return Err("it calls no tools".into());
                }
                let mut ids = HashSet::new();
                for call in calls {
                    if !ids.insert(call.id.clone()) {
                        return Err(format!("call id {:?} stands twice", call.id));
                    }
                    if !self
                        .basics
                        .tools
                        .iter()
                        .any(|(_, tool)| tool.definition.name == call.tool)
                    {
                        return Err(format!(
                            "no toolbox of the session has a tool {:?}",
                            call.tool
                        ));
                    }
                }
            }
            Action::Compact(compact) => {
                let items = transcript::items(&history, self.tail_context()).await?;
                compact.through = transcript::settled_boundary(&items, compact.through);
                if compact.through <= session.context_after {
                    return Err("there is nothing to compact before that place".into());
                }
                if let Summary::Model(call) = &compact.summary {
                    let mut call = call.clone();
                    // A summary is words; nothing is called for it.
                    call.tools = ToolSet::Only(Vec::new());
                    call.own_tools.clear();
                    call.hosted_tools.clear();
                    let (provider, _) = self.model_call(&history, &call, steps).await?;
                    compact.summary = Summary::Model(call);
                    started.provider = Some(provider);
                }
            }
            Action::Wait(wait) => wait::check(session, &wait.until)?,
            Action::Spawn(children) => {
                let children = children.clone();
                started.spawn_refused = self.spawn(&children)?;
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
    fn lay_over(&mut self, entries: &[EventBody]) -> Result<(), String> {
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
            };
            project::project(&mut tail, &event, &mut changes).map_err(|broken| broken.rule)?;
        }
        self.shown.extend(changes.items);
        Ok(())
    }

    /// The limit that these children would pass, if they do.
    fn spawn(&self, children: &[Child]) -> Result<Option<SpawnRefusal>, String> {
        let session = &self.tail.session;
        if children.is_empty() {
            return Err("it spawns no child".into());
        }
        let config = self.shared.config.get();
        let mut keys = HashSet::new();
        for child in children {
            if child.key.is_empty() || !keys.insert(&child.key) {
                return Err(format!(
                    "child key {:?} is empty or stands twice",
                    child.key
                ));
            }
            if child.prompt.is_empty() {
                return Err(format!("child {:?} gets no prompt", child.key));
            }
            let agent = child.agent.as_ref().unwrap_or(&session.agent);
            if !config.agents.contains_key(agent) {
                return Err(format!(
                    "child {:?} is to be of agent {agent:?}, which is not configured",
                    child.key
                ));
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
    ) -> Result<(ProviderRef, bool), String> {
        if self.tail.session.failed_calls >= FAILED_CALLS {
            return Err(format!("{FAILED_CALLS} model calls in a row have failed"));
        }
        let used = self.tail.session.usage.input_tokens + self.tail.session.usage.output_tokens;
        if self.basics.agent.tokens.is_some_and(|most| used >= most) {
            return Err(format!(
                "the session's budget of tokens is used up ({used})"
            ));
        }
        let model = call.model.as_ref().unwrap_or(&self.basics.model);
        let config = self.shared.config.get();
        let provider = config.providers.get(&model.provider);
        let provider =
            provider.ok_or_else(|| format!("provider {:?} is not configured", model.provider))?;
        let info = find(&self.shared.plugins, Kind::Provider, &provider.plugin).await?;
        if let ToolSet::Only(names) = &call.tools
            && let Some(unknown) = names.iter().find(|name| {
                !self
                    .basics
                    .tools
                    .iter()
                    .any(|(_, tool)| tool.definition.name == **name)
            })
        {
            return Err(format!("no toolbox of the session has a tool {unknown:?}"));
        }
        if let Some(own) = call.own_tools.iter().find(|own| {
            self.basics
                .tools
                .iter()
                .any(|(_, tool)| tool.definition.name == own.name)
        }) {
            return Err(format!(
                "its own tool {:?} has the name of a toolbox's",
                own.name
            ));
        }
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
                return Err(format!(
                    "the range after {} through {} is outside the history",
                    range.after, range.through
                ));
            }
        }
        let segments = transcript::to_the_end(&call.transcript, self.tail.session.head, Seq::MAX);
        transcript::messages(history, &segments, &info.name).await?;
        let secrets = self
            .shared
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
