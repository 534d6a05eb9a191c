//! What must hold, each rule a function named for what it says. A [`Log`] takes a session's events
//! one by one and asks every rule of each, so that a run can be judged after every event. The rules
//! are written from the design and share no code with what they judge, but for the projection itself.

use std::collections::{BTreeMap, HashMap, HashSet};

use mainstay_core::claim::Claim;
use mainstay_core::event::{Event, EventBody, Piece};
use mainstay_core::id::{EventId, ExecutionId, InputId, Seq};
use mainstay_core::model::Effect;
use mainstay_core::plugin::Action;
use mainstay_core::port::Dump;
use mainstay_core::rebuild::{Rebuild, rebuild};
use mainstay_core::tail::{Session, Tail};

/// A rule that does not hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    /// The name of its function.
    pub invariant: &'static str,
    /// What was found.
    pub detail: String,
}

impl std::fmt::Display for Broken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.invariant, self.detail)
    }
}

type Found = Result<(), String>;
type Rule = (&'static str, fn(&mut Log, &Event) -> Found);

/// Functions with their names.
macro_rules! named {
    ($($rule:ident),* $(,)?) => { [$((stringify!($rule), $rule as _)),*] };
}

/// In the order in which they are asked.
const RULES: [Rule; 9] = named![
    seqs_have_no_gap_and_no_repeat,
    at_most_one_execution_lives,
    an_execution_writes_only_while_it_lives,
    an_execution_has_one_terminal,
    a_call_has_one_result_and_none_before_it,
    an_input_is_pending_or_promoted_once_or_cancelled,
    a_once_effect_starts_once,
    nothing_begins_after_an_interrupt_or_cancel,
    rows_follow_from_the_log,
];

/// One session's log as far as it was taken.
#[derive(Default)]
pub struct Log {
    pub events: Vec<Event>,
    ids: HashSet<EventId>,
    live: Option<ExecutionId>,
    ended: HashSet<ExecutionId>,
    /// What runs was told to stop.
    interrupted: bool,
    cancelled: bool,
    calls: Calls,
    inputs: HashMap<InputId, &'static str>,
    once: HashSet<(Seq, String)>,
    /// Idempotency keys whose start is written.
    keys: HashSet<String>,
    rebuilt: Option<Rebuild>,
}

impl Log {
    /// Takes the next event.
    ///
    /// # Errors
    /// The first rule that it breaks. The log is then not to be used any more.
    pub fn take(&mut self, event: &Event) -> Result<(), Broken> {
        for (invariant, rule) in RULES {
            rule(self, event).map_err(|found| Broken {
                invariant,
                detail: format!("seq {} ({}): {found}", event.seq, event.body.kind()),
            })?;
        }
        if let EventBody::CallStarted { key, .. } = &event.body {
            self.keys.insert(key.clone());
        }
        self.events.push(event.clone());
        Ok(())
    }

    /// Judges the rows that stand beside the log as it is now.
    ///
    /// # Errors
    /// The rule that they break.
    pub fn rows(&self, tail: &Tail) -> Result<(), Broken> {
        let at = |invariant| move |detail| Broken { invariant, detail };
        self.claim(tail.claim.as_ref())
            .map_err(at("a_claim_stands_as_long_as_its_execution"))?;
        self.same(tail).map_err(at("rows_follow_from_the_log"))
    }

    /// Whether the start of this call is written.
    #[must_use]
    pub fn has_started(&self, key: &str) -> bool {
        self.keys.contains(key)
    }

    /// What became of an input.
    #[must_use]
    pub fn fate(&self, input: InputId) -> Option<&'static str> {
        self.inputs.get(&input).copied()
    }

    fn claim(&self, claim: Option<&Claim>) -> Found {
        let held = claim
            .filter(|claim| !claim.ended)
            .map(|claim| claim.execution);
        if held != self.live {
            return Err(format!(
                "the claim is {claim:?}, and execution {:?} lives",
                self.live
            ));
        }
        Ok(())
    }

    fn same(&self, tail: &Tail) -> Found {
        let Some(rebuilt) = &self.rebuilt else {
            return Ok(());
        };
        differ(
            "session",
            &logged(&rebuilt.tail.session, &tail.session),
            &tail.session,
        )?;
        differ("open step", &rebuilt.tail.step, &tail.step)?;
        differ("pending inputs", &rebuilt.tail.inputs, &tail.inputs)
    }
}

/// Checks all that one session's rows can show.
///
/// # Panics
/// With the broken rule's words.
#[track_caller]
pub fn check(dump: &Dump) {
    if let Err(broken) = judge(dump) {
        panic!("{broken}");
    }
}

/// Judges one session's log and all its rows.
///
/// # Errors
/// The first rule that is broken.
pub fn judge(dump: &Dump) -> Result<(), Broken> {
    let at = |invariant| move |detail| Broken { invariant, detail };
    let mut log = Log::default();
    for record in &dump.events {
        let event = record.decode().map_err(|error| Broken {
            invariant: "every_event_can_be_read",
            detail: error.to_string(),
        })?;
        log.take(&event)?;
    }
    log.claim(dump.claim.as_ref())
        .map_err(at("a_claim_stands_as_long_as_its_execution"))?;
    all_rows_follow_from_the_log(dump).map_err(at("rows_follow_from_the_log"))
}

fn differ<T: PartialEq + std::fmt::Debug>(what: &str, log: &T, row: &T) -> Found {
    if log == row {
        Ok(())
    } else {
        Err(format!(
            "{what}: the log gives {log:?}, and {row:?} is stored"
        ))
    }
}

/// A rebuilt row with what no event tells: where the session was imported from, and what of it this
/// build cannot read.
fn logged(rebuilt: &Session, stored: &Session) -> Session {
    Session {
        origin: stored.origin.clone(),
        foreign: stored.foreign.clone(),
        ..rebuilt.clone()
    }
}

fn all_rows_follow_from_the_log(dump: &Dump) -> Found {
    let rebuilt = rebuild(&dump.events)?;
    let logged = rebuilt.session.as_ref().zip(dump.session.as_ref());
    let logged = logged.map(|(rebuilt, stored)| self::logged(rebuilt, stored));
    differ("session", &logged, &dump.session)?;
    differ("items", &rebuilt.items, &dump.items)?;
    differ("inputs", &rebuilt.inputs, &dump.inputs)?;
    differ("steps", &rebuilt.steps, &dump.steps)?;
    differ("calls", &rebuilt.calls, &dump.calls)?;
    differ("executions", &rebuilt.executions, &dump.executions)
}

fn seqs_have_no_gap_and_no_repeat(log: &mut Log, event: &Event) -> Found {
    let next = log.events.len() as Seq + 1;
    if event.seq != next {
        return Err(format!("seq {next} was due"));
    }
    if !log.ids.insert(event.id) {
        return Err(format!("event id {} stands twice", event.id));
    }
    Ok(())
}

fn at_most_one_execution_lives(log: &mut Log, event: &Event) -> Found {
    if let EventBody::ExecutionStarted { execution, .. } = &event.body {
        if let Some(live) = log.live {
            return Err(format!("{execution} starts while {live} lives"));
        }
        if log.ended.contains(execution) {
            return Err(format!("{execution} starts after its end"));
        }
        log.live = Some(*execution);
        log.interrupted = false;
    }
    Ok(())
}

fn an_execution_writes_only_while_it_lives(log: &mut Log, event: &Event) -> Found {
    match event.execution {
        Some(writer) if log.live != Some(writer) => Err(format!(
            "written by {writer}, and {:?} holds the claim",
            log.live
        )),
        Some(_) if event.recovery.is_some() => {
            Err("an execution and a recovery both wrote it".into())
        }
        _ => Ok(()),
    }
}

fn an_execution_has_one_terminal(log: &mut Log, event: &Event) -> Found {
    let Some(execution) = event.body.terminal_of() else {
        return Ok(());
    };
    if log.live != Some(execution) {
        return Err(format!("{execution} does not live"));
    }
    if !log.ended.insert(execution) {
        return Err(format!("{execution} has its terminal already"));
    }
    log.live = None;
    Ok(())
}

/// Results by call.
#[derive(Default)]
struct Calls(BTreeMap<(Seq, String), u32>);

impl Calls {
    fn made(&mut self, step: Seq, call: &str) -> Found {
        match self.0.insert((step, call.to_owned()), 0) {
            None => Ok(()),
            Some(_) => Err(format!("call {call} of step {step} is made twice")),
        }
    }

    fn started(&self, step: Seq, call: &str) -> Found {
        match self.0.get(&(step, call.to_owned())) {
            Some(0) => Ok(()),
            Some(_) => Err(format!("call {call} of step {step} has its result")),
            None => Err(format!("call {call} of step {step} was never made")),
        }
    }

    fn result(&mut self, step: Seq, call: &str) -> Found {
        self.started(step, call)?;
        self.0.insert((step, call.to_owned()), 1);
        Ok(())
    }

    fn open(&self) -> Option<&(Seq, String)> {
        let mut open = self.0.iter().filter(|(_, results)| **results == 0);
        open.next().map(|(call, _)| call)
    }
}

fn a_call_has_one_result_and_none_before_it(log: &mut Log, event: &Event) -> Found {
    let calls = &mut log.calls;
    match &event.body {
        EventBody::StepStarted(started) => {
            let Action::CallTools(made) = &started.action else {
                return Ok(());
            };
            made.iter()
                .try_for_each(|call| calls.made(event.seq, &call.id))
        }
        EventBody::StepOutput { step, pieces } => pieces.iter().try_for_each(|piece| match piece {
            Piece::Call { id, .. } => calls.made(*step, id),
            Piece::HostedCall(call) => calls.made(*step, &call.id),
            Piece::HostedResult(result) => calls.result(*step, &result.call),
            _ => Ok(()),
        }),
        EventBody::CallStarted { step, call, .. } => calls.started(*step, call),
        EventBody::CallSettled { step, result, .. } => calls.result(*step, &result.call),
        EventBody::RunnerAnswered { step, answer } => calls.result(*step, &answer.call),
        EventBody::CallDropped { step, call } => calls.result(*step, call),
        EventBody::TurnEnded { .. } => match calls.open() {
            Some((step, call)) => Err(format!("call {call} of step {step} has no result")),
            None => Ok(()),
        },
        _ => Ok(()),
    }
}

fn an_input_is_pending_or_promoted_once_or_cancelled(log: &mut Log, event: &Event) -> Found {
    let (input, before, after) = match &event.body {
        EventBody::InputAdmitted { input, .. } => (input, None, "pending"),
        EventBody::InputPromoted { input } => (input, Some("pending"), "promoted"),
        EventBody::InputCancelled { input } => (input, Some("pending"), "cancelled"),
        EventBody::InputRedelivered { input, .. } => (input, Some("pending"), "pending"),
        _ => return Ok(()),
    };
    let found = log.inputs.insert(*input, after);
    if found == before {
        Ok(())
    } else {
        Err(format!("input {input} was {found:?}"))
    }
}

fn a_once_effect_starts_once(log: &mut Log, event: &Event) -> Found {
    if let EventBody::CallStarted {
        step,
        call,
        effect: Effect::Once,
        ..
    } = &event.body
        && !log.once.insert((*step, call.clone()))
    {
        return Err(format!("call {call} of step {step} was started before"));
    }
    Ok(())
}

fn nothing_begins_after_an_interrupt_or_cancel(log: &mut Log, event: &Event) -> Found {
    match &event.body {
        EventBody::SessionCancelled {} => {
            log.cancelled = true;
            log.interrupted = log.live.is_some();
        }
        EventBody::InterruptRequested { .. } => log.interrupted = log.live.is_some(),
        EventBody::ExecutionStarted { .. }
        | EventBody::InputAdmitted { .. }
        | EventBody::InputPromoted { .. }
        | EventBody::TurnStarted { .. }
        | EventBody::StepStarted(_)
        | EventBody::CallStarted { .. }
            if log.cancelled =>
        {
            return Err("its session is cancelled".into());
        }
        EventBody::InputPromoted { .. }
        | EventBody::TurnStarted { .. }
        | EventBody::StepStarted(_)
        | EventBody::CallStarted { .. }
            if log.interrupted && log.live.is_some() =>
        {
            return Err("it was told to stop before".into());
        }
        _ => {}
    }
    Ok(())
}

fn rows_follow_from_the_log(log: &mut Log, event: &Event) -> Found {
    match &mut log.rebuilt {
        None => {
            let begun = Rebuild::begin(event);
            log.rebuilt = Some(begun.ok_or("the log does not begin with its session's creation")?);
            Ok(())
        }
        Some(rebuilt) => rebuilt.take(event).map_err(|broken| broken.to_string()),
    }
}
