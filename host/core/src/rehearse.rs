//! A recorded session's decisions, asked again of another runner: from the log alone it is rebuilt what
//! each decision was made on, the runner is asked, and its answer is compared with what is recorded.
//! Every question is asked with the recorded history, so one other decision makes no second one.
//! Nothing is executed, and nothing is written.
//!
//! What no event tells is taken as it is now: the agent's options, its system prompt (unless the
//! recorded request shows that it was another) and what is known of its model.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::{Value, json};

use crate::BoxError;
use crate::config::{Agent, Config};
use crate::decision::{self, Basics, Means, UNFIT, Undecided};
use crate::event::{Basis, DecodeError, Event, EventBody, StepStarted, ToolboxRef, TurnOutcome};
use crate::history::{Item, ModelRef, Order, Size};
use crate::id::{Digest, ExecutionId, Seq, SessionId};
use crate::model::{Message, Range, text_of};
use crate::overlay::{InStore, Overlay, Stored};
use crate::plugin::{
    Action, Compact, Decision, Entry, GuestError, Kind, ModelCall, PluginInfo, Plugins, Segment,
    Summary,
};
use crate::port::{Store, StoreError};
use crate::project;
use crate::rebuild::Rows;
use crate::tail::{Changes, Tail};

mod difference;

pub use difference::{Part, differences};

/// Events of a page.
const PAGE: u32 = 512;

/// A runner that is asked, and what it is asked with.
pub struct Rehearsal {
    pub plugins: Arc<dyn Plugins>,
    /// As it is now.
    pub config: Arc<Config>,
    /// Where the sessions are. Only read.
    pub store: Arc<dyn Store>,
    /// The runner. `plugins` has to know its digest.
    pub runner: Arc<PluginInfo>,
    /// Leaves out what a runner of another name has decided.
    pub own: bool,
}

/// The comparison of one session.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    pub session: SessionId,
    /// The log was read through this seq.
    pub through: Seq,
    /// In the order of the log.
    pub decisions: Vec<Compared>,
    /// What could not be asked as it was then, for people.
    pub notes: BTreeSet<String>,
}

/// One recorded decision.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Compared {
    /// Of the event that records it.
    pub seq: Seq,
    /// Who decided then.
    pub runner: Who,
    /// Where the runner that was asked now decides otherwise.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub difference: Option<Difference>,
}

/// A runner, as far as the log tells.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Who {
    /// Its name. Of a decision that came to nothing, the name in the words of its failure.
    pub name: String,
    /// SHA-256. Of a decision that came to nothing, its beginning.
    pub digest: Digest,
}

/// Two decisions that are not the same. Both are JSON: `entries` and `action`, `state` where the two
/// runners keep one in the same format; or `failed` alone, with the reason.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Difference {
    pub recorded: Value,
    pub new: Value,
    /// Why the host would not do what the runner decides now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
    /// Each once, in the order of their paths.
    pub parts: Vec<Part>,
}

/// Why a session cannot be rehearsed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// It could not be read, or does not exist.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A newer build wrote to it.
    #[error("session {session}: {cause}; use the build that wrote it")]
    Unknown {
        session: SessionId,
        cause: DecodeError,
    },
    /// Its events do not fit each other.
    #[error("session {session} cannot be rebuilt from its log: {cause}")]
    Damaged { session: SessionId, cause: String },
    /// The runner could not be asked at all.
    #[error("the runner cannot be asked")]
    Runner(#[source] GuestError),
}

impl Report {
    /// Decisions that the runner makes otherwise.
    pub fn different(&self) -> impl Iterator<Item = &Compared> {
        let compared = self.decisions.iter();
        compared.filter(|compared| compared.difference.is_some())
    }
}

impl Rehearsal {
    /// Asks for every decision of a session that is recorded by now.
    ///
    /// # Errors
    /// See [`Error`]. What the runner does wrong is no error but its answer.
    ///
    /// # Cancel safety
    /// It only reads.
    pub async fn session(&self, session: SessionId) -> Result<Report, Error> {
        let events = self.events(session).await?;
        let mut report = Report {
            session,
            through: events.last().map_or(0, |event| event.seq),
            decisions: Vec::new(),
            notes: BTreeSet::new(),
        };
        let all = recorded(&events);
        let models = models(&all);
        let mut all = all.iter().zip(models).peekable();
        let mut past: Option<Past> = None;
        for event in &events {
            match &mut past {
                None => past = Past::begin(event),
                Some(past) => past.take(event).map_err(|cause| damaged(session, cause))?,
            }
            let Some(past) = &past else {
                let cause = "it does not begin with its creation".to_owned();
                return Err(damaged(session, cause));
            };
            while let Some((point, model)) = all.next_if(|(point, _)| point.after == event.seq) {
                if point.is_real(&past.tail) && (!self.own || point.is_of(&self.runner)) {
                    let compared = self.compare(past, point, model, &mut report.notes).await?;
                    report.decisions.push(compared);
                }
            }
        }
        Ok(report)
    }

    async fn events(&self, session: SessionId) -> Result<Vec<Event>, Error> {
        let mut events: Vec<Event> = Vec::new();
        let mut end = Seq::MAX;
        loop {
            let after = events.last().map_or(0, |event| event.seq);
            let page = self.store.events(session, after, PAGE).await?;
            let missing = || StoreError::from(crate::commit::Refused::NotFound(session));
            let (records, head) = page.ok_or_else(missing)?;
            // What is written meanwhile is left for the next time.
            end = end.min(head);
            for record in records.iter().take_while(|record| record.seq <= end) {
                events.push(record.decode().map_err(|cause| match cause {
                    DecodeError::Unknown { .. } => Error::Unknown { session, cause },
                    DecodeError::Damaged { .. } => damaged(session, cause.to_string()),
                })?);
            }
            if records.last().is_none_or(|record| record.seq >= end) {
                return Ok(events);
            }
        }
    }

    async fn compare(
        &self,
        past: &Past,
        point: &Point<'_>,
        model: Option<ModelRef>,
        notes: &mut BTreeSet<String>,
    ) -> Result<Compared, Error> {
        let mut basics = self.basics(&past.tail, point, model, notes).await;
        let mut unsure = BTreeSet::new();
        let mut difference = self.ask(past, point, &basics, &mut unsure).await?;
        let prompt = point.system_prompt();
        if difference.is_some() && prompt.is_some() && prompt != basics.agent.system_prompt {
            basics.agent.system_prompt = prompt;
            // What was not sure of it is of no interest where it makes no difference.
            let mut ignored = BTreeSet::new();
            let again = self.ask(past, point, &basics, &mut ignored).await?;
            if again.is_none() {
                difference = None;
                unsure.clear();
                notes.insert(
                    "the agent's system prompt has changed; requests were compared with the one in them"
                        .into(),
                );
            }
        }
        notes.append(&mut unsure);
        Ok(Compared {
            seq: point.seq,
            runner: point.who.clone(),
            difference,
        })
    }

    /// Where the answer of now is another.
    async fn ask(
        &self,
        past: &Past,
        point: &Point<'_>,
        basics: &Basics,
        notes: &mut BTreeSet<String>,
    ) -> Result<Option<Difference>, Error> {
        let tail = &past.tail;
        let means = Means {
            plugins: Arc::clone(&self.plugins),
            config: Arc::clone(&self.config),
            stored: Arc::new(AsThen {
                rows: Arc::clone(&past.rows),
                store: InStore(Arc::clone(&self.store)),
            }),
        };
        let basis = match &point.outcome {
            Outcome::Decided { started, .. } => Basis {
                state_from: tail
                    .session
                    .states
                    .handed_to(&basics.runner)
                    .map(|(seq, _)| *seq),
                ..started.basis.clone()
            },
            Outcome::Failed(_) => decision::basis(tail, basics).ok_or_else(|| {
                damaged(
                    tail.session.id,
                    format!("no turn is open at seq {}", point.after),
                )
            })?,
        };
        let view = decision::view(&means, tail, basics, &basis, Vec::new());
        let answer = self.plugins.decide(&basics.runner.digest, view).await;
        let mut decision = match answer {
            Ok(decision) => decision,
            Err(error @ (GuestError::Missing(_) | GuestError::Host(_))) => {
                return Err(Error::Runner(error));
            }
            Err(error) => {
                // Its fault. The words are held against those that are recorded, without its name.
                let error = error.to_string();
                let reason = Failed::read(&error).map_or(error.as_str(), |failed| failed.reason);
                return Ok(point.against(json!({ "failed": reason }), basics, tail, None));
            }
        };
        let history = Overlay::on(
            Arc::clone(&means.stored),
            tail.session.id,
            basis.context.through,
            Vec::new(),
        );
        // One that cannot be settled is refused below.
        let _ = decision::settle_form(&mut decision.action, &history, basis.context).await;
        let new = of_decision(&decision, basics, tail);
        let differs = point.against(new.clone(), basics, tail, None);
        if differs.is_none() {
            return Ok(None);
        }
        let judged = decision::judge(
            &means,
            tail,
            basics,
            Vec::new(),
            decision,
            basis,
            Instant::now(),
        );
        let reason = match judged.await {
            Ok(_) => return Ok(differs),
            Err(Undecided::Unfit { reason, .. }) => reason,
            // Not the runner's fault: any other might have decided the same.
            Err(cause @ (Undecided::Amiss(_) | Undecided::Guest(_))) => {
                notes.insert(format!(
                    "whether the host would do what the runner decides now cannot be told: {cause}"
                ));
                return Ok(differs);
            }
        };
        Ok(match point.outcome {
            Outcome::Failed(_) => point.against(json!({ "failed": reason }), basics, tail, None),
            Outcome::Decided { .. } => point.against(new, basics, tail, Some(reason)),
        })
    }

    /// What the decision was made under, as far as it is recorded, and the runner that is asked now.
    async fn basics(
        &self,
        tail: &Tail,
        point: &Point<'_>,
        model: Option<ModelRef>,
        notes: &mut BTreeSet<String>,
    ) -> Basics {
        let name = &tail.session.agent;
        let agent = self.config.agents.get(name).cloned().unwrap_or_else(|| {
            notes.insert(format!(
                "agent {name:?} is not configured any more; the runner is asked without its options and system prompt"
            ));
            Agent::default()
        });
        let toolboxes = match point.toolboxes {
            Some(toolboxes) => toolboxes.to_vec(),
            None => self.toolboxes(&agent).await,
        };
        let mut tools = Vec::new();
        for toolbox in &toolboxes {
            match decision::tools_of(&self.plugins, toolbox).await {
                Ok(of) => tools.extend(of.into_iter().map(|tool| (toolbox.clone(), tool))),
                Err(cause) => {
                    notes.insert(format!("{cause}; the runner is asked without its tools"));
                }
            }
        }
        let model = tail.session.model.clone().or(model);
        Basics {
            model: model.unwrap_or_else(|| agent.model.clone()),
            agent,
            runner: Arc::clone(&self.runner),
            toolboxes,
            tools,
        }
    }

    /// Those that the agent has now.
    async fn toolboxes(&self, agent: &Agent) -> Vec<ToolboxRef> {
        let mut toolboxes = Vec::new();
        for toolbox in &agent.toolboxes {
            let found = self.plugins.resolve(Kind::Toolbox, &toolbox.alias).await;
            toolboxes.extend(found.ok().flatten().map(|info| ToolboxRef {
                alias: toolbox.alias.clone(),
                digest: info.digest.clone(),
                options: toolbox.options.clone(),
            }));
        }
        toolboxes
    }
}

fn damaged(session: SessionId, cause: String) -> Error {
    Error::Damaged { session, cause }
}

/// A session as it stood behind some event.
struct Past {
    /// Without a claim.
    tail: Tail,
    rows: Arc<Rows>,
}

impl Past {
    fn begin(event: &Event) -> Option<Self> {
        Some(Self {
            tail: project::begin(event)?,
            rows: Arc::default(),
        })
    }

    fn take(&mut self, event: &Event) -> Result<(), String> {
        let mut changes = Changes::default();
        let done = project::project(&mut self.tail, event, &mut changes);
        done.map_err(|broken| broken.to_string())?;
        // Nobody reads them between two questions, so nothing is copied here.
        Arc::make_mut(&mut self.rows).take(changes);
        Ok(())
    }
}

/// The items of a session as they were, and bytes as they are.
struct AsThen {
    rows: Arc<Rows>,
    store: InStore,
}

impl AsThen {
    fn range(&self, range: Range) -> impl DoubleEndedIterator<Item = &Item> {
        let keys = (range.after.saturating_add(1), 0)..=(range.through, u32::MAX);
        let some = (range.after < range.through).then(|| self.rows.items.range(keys));
        some.into_iter().flatten().map(|(_, item)| item)
    }
}

#[async_trait]
impl Stored for AsThen {
    async fn items(
        &self,
        _: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, BoxError> {
        let (range, limit) = (self.range(range), limit as usize);
        Ok(match order {
            Order::OldestFirst => range.take(limit).cloned().collect(),
            Order::NewestFirst => range.rev().take(limit).cloned().collect(),
        })
    }

    async fn measure(&self, _: SessionId, range: Range) -> Result<Size, BoxError> {
        Ok(self.range(range).fold(Size::default(), |size, item| Size {
            items: size.items + 1,
            bytes: size.bytes + item.text_bytes(),
        }))
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        self.store.blob(digest).await
    }
}

/// One recorded decision.
struct Point<'e> {
    /// Of the event that records it.
    seq: Seq,
    /// The log went so far when the runner was asked.
    after: Seq,
    who: Who,
    /// As recorded there, or last before. `None` if none are.
    toolboxes: Option<&'e [ToolboxRef]>,
    outcome: Outcome<'e>,
}

enum Outcome<'e> {
    Decided {
        entries: Vec<Entry>,
        started: &'e StepStarted,
    },
    /// It trapped, broke a limit or was refused: why.
    Failed(&'e str),
}

/// All recorded decisions, in the order of the log.
fn recorded(events: &[Event]) -> Vec<Point<'_>> {
    let mut points = Vec::new();
    for (at, event) in events.iter().enumerate() {
        let before = &events[..at];
        if let Some(started) = decided(&event.body) {
            points.push(Point::decided(event.seq, started, before));
        }
        match &event.body {
            EventBody::TurnEnded {
                outcome: TurnOutcome::Failed { error },
                decided: None,
            } if event.recovery.is_none() => {
                let failed = event.execution.zip(Failed::read(error));
                points.extend(failed.map(|(execution, failed)| {
                    Point::failed(event.seq, execution, &failed, before)
                }));
            }
            _ => {}
        }
    }
    points
}

fn decided(body: &EventBody) -> Option<&StepStarted> {
    match body {
        EventBody::StepStarted(started) => Some(started),
        EventBody::TurnEnded { decided, .. } => decided.as_deref(),
        _ => None,
    }
}

impl<'e> Point<'e> {
    fn decided(seq: Seq, started: &'e StepStarted, before: &'e [Event]) -> Self {
        let after = started.basis.context.through;
        // Inputs may have come in while the runner was asked.
        let since = before.iter().rev().take_while(|event| event.seq > after);
        let mut entries: Vec<Entry> = since.filter_map(|event| entry(&event.body)).collect();
        entries.reverse();
        Self {
            seq,
            after,
            who: Who {
                name: started.runner.name.clone(),
                digest: started.runner.digest.clone(),
            },
            toolboxes: Some(&started.toolboxes),
            outcome: Outcome::Decided { entries, started },
        }
    }

    /// A failed turn's last decision: it was asked for once its execution had written all else.
    fn failed(seq: Seq, execution: ExecutionId, failed: &Failed<'e>, before: &'e [Event]) -> Self {
        let earlier = before.iter().rev().find(|event| {
            event.execution == Some(execution)
                && !matches!(event.body, EventBody::CallDropped { .. })
        });
        Self {
            seq,
            after: earlier.map_or(0, |event| event.seq),
            who: Who {
                name: failed.name.to_owned(),
                digest: failed.digest.to_owned(),
            },
            toolboxes: before
                .iter()
                .rev()
                .find_map(|event| decided(&event.body))
                .map(|started| started.toolboxes.as_slice()),
            outcome: Outcome::Failed(failed.reason),
        }
    }

    /// Whether a runner of this one's name decided, or failed to.
    fn is_of(&self, runner: &PluginInfo) -> bool {
        self.who.name == runner.name || runner.digest.starts_with(&self.who.digest)
    }

    /// Whether a runner was asked there, by the session as it stood: a failure while a step is open is
    /// the effect's.
    fn is_real(&self, then: &Tail) -> bool {
        matches!(self.outcome, Outcome::Decided { .. })
            || (then.step.is_none() && then.session.wait.is_none() && then.session.turn.is_some())
    }

    /// What the runner's request to a model shows as its agent's system prompt.
    fn system_prompt(&self) -> Option<String> {
        let Outcome::Decided { started, .. } = &self.outcome else {
            return None;
        };
        match call_of(&started.action)?.transcript.first()? {
            Segment::Message(Message::System(parts)) => Some(text_of(parts)),
            _ => None,
        }
    }

    /// Where a decision of now is another than this one.
    fn against(
        &self,
        mut new: Value,
        basics: &Basics,
        tail: &Tail,
        refused: Option<String>,
    ) -> Option<Difference> {
        let mut recorded = match &self.outcome {
            Outcome::Failed(reason) => json!({ "failed": reason }),
            Outcome::Decided { entries, started } => {
                let resolved = started.provider.as_ref().map(|provider| ModelRef {
                    provider: provider.alias.clone(),
                    model: provider.model.clone(),
                });
                let mut form = form(entries, &started.action, resolved.as_ref());
                // What another runner keeps says nothing to this one.
                let kept = tail.session.states.of(&started.runner.name);
                let format = started.state.as_ref().or(kept.map(|(_, state)| state));
                let same = started.runner.name == basics.runner.name
                    && format.is_none_or(|state| {
                        state.runner == basics.runner.name
                            && state.state_version == basics.runner.state_version
                    });
                if same {
                    form["state"] = state(format.map(|state| state.data.as_slice()));
                } else if let Some(new) = new.as_object_mut() {
                    new.remove("state");
                }
                form
            }
        };
        if new.get("failed").is_some()
            && let Some(recorded) = recorded.as_object_mut()
        {
            recorded.remove("state");
        }
        let parts = differences(&recorded, &new);
        (!parts.is_empty() || refused.is_some()).then_some(Difference {
            recorded,
            new,
            refused,
            parts,
        })
    }
}

fn entry(body: &EventBody) -> Option<Entry> {
    Some(match body {
        EventBody::RunnerSaid { parts, .. } => Entry::Say(parts.clone()),
        EventBody::RunnerNoted { parts } => Entry::Note(parts.clone()),
        EventBody::RunnerAnswered { answer, .. } => Entry::Answer(answer.clone()),
        _ => return None,
    })
}

fn call_of(action: &Action) -> Option<&ModelCall> {
    match action {
        Action::CallModel(call) => Some(call),
        Action::Compact(Compact {
            summary: Summary::Model(call),
            ..
        }) => Some(call),
        _ => None,
    }
}

/// The agent's own model at each of these decisions, as far as a request shows it: its own, else that
/// of the one before, else of the one behind.
fn models(points: &[Point<'_>]) -> Vec<Option<ModelRef>> {
    let shown = |point: &Point<'_>| {
        let Outcome::Decided { started, .. } = &point.outcome else {
            return None;
        };
        let provider = started.provider.as_ref()?;
        call_of(&started.action)?.model.is_none().then(|| ModelRef {
            provider: provider.alias.clone(),
            model: provider.model.clone(),
        })
    };
    let mut models: Vec<Option<ModelRef>> = points.iter().map(shown).collect();
    let fill = |last: &mut Option<ModelRef>, model: &mut Option<ModelRef>| match model {
        Some(model) => *last = Some(model.clone()),
        None => model.clone_from(last),
    };
    let mut last = None;
    models.iter_mut().for_each(|model| fill(&mut last, model));
    last = None;
    models
        .iter_mut()
        .rev()
        .for_each(|model| fill(&mut last, model));
    models
}

/// The one form in which decisions are compared, with the model that is asked written out.
fn form(entries: &[Entry], action: &Action, resolved: Option<&ModelRef>) -> Value {
    let mut action = action.clone();
    if let Action::CallModel(call) = &mut action {
        call.model = call.model.take().or(resolved.cloned());
    }
    if let Action::Compact(Compact {
        summary: Summary::Model(call),
        ..
    }) = &mut action
    {
        call.model = call.model.take().or(resolved.cloned());
    }
    json!({ "entries": entries, "action": action })
}

fn of_decision(decision: &Decision, basics: &Basics, tail: &Tail) -> Value {
    let mut form = form(&decision.entries, &decision.action, Some(&basics.model));
    let kept = tail
        .session
        .states
        .handed_to(&basics.runner)
        .map(|(_, state)| state.data.as_slice());
    form["state"] = state(decision.state.as_deref().or(kept));
    form
}

/// What a runner keeps, as readable as it is.
fn state(data: Option<&[u8]>) -> Value {
    let Some(data) = data else {
        return Value::Null;
    };
    match (serde_json::from_slice(data), std::str::from_utf8(data)) {
        (Ok(value), _) => value,
        (_, Ok(text)) => text.into(),
        _ => {
            use base64::Engine as _;
            json!({ "base64": base64::engine::general_purpose::STANDARD.encode(data) })
        }
    }
}

/// The words of a decision that came to nothing.
struct Failed<'t> {
    name: &'t str,
    digest: &'t str,
    reason: &'t str,
}

impl<'t> Failed<'t> {
    /// `None` for words that do not name a runner and its digest: then nobody was asked.
    fn read(error: &'t str) -> Option<Self> {
        let rest = error.strip_prefix("runner ")?;
        let (before, after) = rest.split_once("sha256:")?;
        // `NAME@sha256:DIGEST: …` where the guest failed, `ALIAS (sha256:DIGEST) …` where the host
        // refuses.
        let (name, ends, cut) = match before.strip_suffix('@') {
            Some(name) => (name, ": ", ""),
            None => (before.strip_suffix(" (")?, ") ", UNFIT),
        };
        let (digest, reason) = after.split_once(ends)?;
        let reason = reason.strip_prefix(cut)?;
        Some(Self {
            name,
            digest,
            reason,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plugin_18_a_failure_names_who_failed_or_nobody_did() {
        let read = |error| Failed::read(error).map(|f| (f.name, f.digest, f.reason));
        assert_eq!(
            read("runner loop@sha256:0123456789ab: decide trapped: unreachable"),
            Some(("loop", "0123456789ab", "decide trapped: unreachable"))
        );
        assert_eq!(
            read(
                "runner mine (sha256:0123456789ab) decided what cannot be done: it calls no tools"
            ),
            Some(("mine", "0123456789ab", "it calls no tools"))
        );
        for other in [
            "runner \"x\" is not installed; install it and send another prompt",
            "toolbox \"x\" (sha256:0123456789ab) is gone",
            "the question to the runner broke off: cancelled",
        ] {
            assert_eq!(read(other), None, "{other}");
        }
    }
}
