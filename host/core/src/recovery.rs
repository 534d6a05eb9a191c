//! What a crash leaves behind and what is made of it. [`plan`] is a pure function of an expired claim
//! and the tail as read in the transaction that settles it; the loop that finds such claims is dull
//! (see `coordinator`).

use crate::budget;
use crate::claim::{Claim, Phase};
use crate::event::{EventBody, InterruptReason, StepRecovered, Timing, TurnOutcome};
use crate::history::Ending;
use crate::id::{ExecutionId, Millis, OwnerId, RecoveryId};
use crate::model::{Effect, Part, ToolOutcome, ToolResult};
use crate::policy::HeldBack;
use crate::project;
use crate::tail::{Call, CallStatus, Charge, Step, Tail};

/// What a recovery writes.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    pub events: Vec<EventBody>,
    pub outcome: Outcome,
}

/// What tells a crash from a lease that was lost, and how many crashes are too many.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Counting {
    /// Crashes in a row after which a session is quarantined.
    pub max_attempts: u32,
    /// Owners, with the store's time at which each was last seen alive.
    pub alive: Vec<(OwnerId, Millis)>,
    /// The execution broke off in a process that lives on: it counts, whoever is seen.
    pub broke_off: bool,
}

impl Counting {
    /// Of owners that nobody has seen since.
    #[must_use]
    pub fn to(max_attempts: u32) -> Self {
        Self {
            max_attempts,
            ..Self::default()
        }
    }

    /// Whether an owner is seen alive after a time of the store's.
    fn lives_after(&self, owner: OwnerId, at: Millis) -> bool {
        let mut alive = self.alive.iter();
        alive.any(|(seen, last)| *seen == owner && *last > at)
    }
}

/// What became of the session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Nothing is owed.
    Released,
    /// It is to be woken, after `attempts` crashes in a row.
    Resume {
        attempts: u32,
        /// It crashed a run that recovery had started: it runs alone.
        suspect: bool,
    },
    /// Its policy leaves going on to a person.
    Held(HeldBack),
    Quarantined {
        reason: String,
    },
}

/// Settles an expired claim.
///
/// `now` is the store's clock, by which the session's policy counts its age. `counting` says which
/// crashes count.
///
/// | phase | what is written |
/// |---|---|
/// | `safe` | the terminal that was owed; with an interrupt marked, the end of a turn that waits |
/// | any, interrupt marked | every open call's result, the turn's end, the terminal |
/// | `ready`, `continue` | the terminal `interrupted{crash}` |
/// | `unknown` | verdicts on the open step, then as `continue`; where they leave only held calls, it rests |
///
/// A claim whose execution has its terminal (a shutdown's) gets no second one, and no attempt is
/// counted.
#[must_use]
pub fn plan(tail: &Tail, claim: &Claim, counting: &Counting, now: Millis) -> Plan {
    let execution = claim.execution;
    let mut events = Vec::new();
    let terminal = |reason| EventBody::ExecutionInterrupted { execution, reason };
    let reason = if claim.superseded {
        InterruptReason::Superseded
    } else {
        InterruptReason::Crash
    };
    let record = |attempts, charges: &[Charge]| EventBody::RecoveryRecorded {
        recovery: RecoveryId::derived(execution.0, "recovery"),
        execution,
        phase: claim.phase,
        attempts,
        charges: charges.to_vec(),
    };

    if claim.phase == Phase::Safe {
        if claim.interrupt || tail.session.cancelled {
            // A turn that waits is `safe` as well.
            events.extend(close_turn(tail, TurnOutcome::Interrupted));
        }
        if !claim.ended {
            events.push(if claim.interrupt {
                terminal(InterruptReason::User)
            } else if tail.session.wait.is_some() {
                EventBody::ExecutionSuspended { execution }
            } else {
                EventBody::ExecutionSucceeded { execution }
            });
        }
        events.push(record(tail.session.attempts, &tail.session.charges));
        if !tail.is_runnable() {
            return Plan {
                events,
                outcome: Outcome::Released,
            };
        }
        return resume(tail, events, tail.session.attempts, false, now);
    }

    if claim.interrupt || tail.session.cancelled {
        events.extend(close_turn(tail, TurnOutcome::Interrupted));
        if !claim.ended {
            events.push(terminal(reason));
        }
        events.push(record(0, &[]));
        return Plan {
            events,
            outcome: Outcome::Released,
        };
    }

    let mut parked = false;
    if let Some(step) = &tail.step {
        let verdicts = verdicts(step, execution);
        parked = is_held_after(tail, step, &verdicts);
        events.extend(verdicts);
    }
    // Whoever is seen after its claim ran out has lost it and not crashed, and so has whoever is seen
    // after it was charged.
    let lost = !counting.broke_off && counting.lives_after(claim.owner, claim.expires_at);
    let crashed = !claim.ended && !claim.superseded && !lost;
    let mut charges = tail.session.charges.clone();
    charges.retain(|charge| !counting.lives_after(charge.owner, charge.at));
    let void = (tail.session.charges.len() - charges.len()) as u32;
    let attempts = tail.session.attempts.saturating_sub(void);
    let attempts = attempts.saturating_add(u32::from(crashed));
    if crashed && !counting.broke_off {
        charges.push(Charge {
            owner: claim.owner,
            at: now,
        });
    }
    if !claim.ended {
        events.push(terminal(reason));
    }
    // A verdict settles something, but it is recovery's and not the run's: it resets nothing.
    events.push(record(attempts, &charges));
    if attempts > counting.max_attempts {
        let reason =
            format!("it crashed {attempts} times in a row without settling a step or a call");
        events.push(EventBody::SessionQuarantined {
            reason: reason.clone(),
        });
        return Plan {
            events,
            outcome: Outcome::Quarantined { reason },
        };
    }
    if parked {
        return Plan {
            events,
            outcome: Outcome::Released,
        };
    }
    resume(tail, events, attempts, crashed && claim.resumed, now)
}

/// Whether these verdicts leave nothing of a step but calls that a person is asked about.
fn is_held_after(tail: &Tail, step: &Step, verdicts: &[EventBody]) -> bool {
    let (session, seq, mut step) = (tail.session.id, step.seq, step.clone());
    let mut verdicts = verdicts.iter();
    let at = step.at;
    let mut fold = |body| project::fold_step(&mut step, session, seq, at, body);
    let folded = verdicts.try_for_each(&mut fold);
    folded.is_ok() && step.is_held(&tail.session.arrived.approvals)
}

/// Goes on, where the session's policy lets it do so by itself.
fn resume(
    tail: &Tail,
    mut events: Vec<EventBody>,
    attempts: u32,
    suspect: bool,
    now: Millis,
) -> Plan {
    let outcome = match tail.session.resume.holds(&tail.session, now) {
        Some(reason) => {
            events.push(EventBody::SessionHeld { reason });
            Outcome::Held(reason)
        }
        None => Outcome::Resume { attempts, suspect },
    };
    Plan { events, outcome }
}

/// What an adopted session's open execution or step is settled with, and the claim that its origin may
/// have held. `None` if nothing is open.
#[must_use]
pub fn adopt(tail: &Tail, now: Millis) -> Option<(Claim, Vec<EventBody>)> {
    let session = &tail.session;
    // A shutdown's execution has ended; what a client stopped afterwards is still to be closed.
    if session.execution.is_none() && tail.step.is_none() && !session.interrupting {
        return None;
    }
    let claim = Claim {
        session: session.id,
        execution: session
            .execution
            .unwrap_or_else(|| ExecutionId::derived(session.id.0, "adopted")),
        owner: OwnerId(uuid::Uuid::nil()),
        expires_at: now,
        phase: crate::claim::phase(tail, Phase::Continue),
        step: session.step,
        interrupt: session.interrupting,
        ended: session.execution.is_none(),
        resumed: false,
        superseded: true,
    };
    let mut events = plan(tail, &claim, &Counting::to(u32::MAX), now).events;
    // A person asks for it: nothing starts by itself.
    events.retain(|event| !matches!(event, EventBody::SessionHeld { .. }));
    Some((claim, events))
}

/// What is written for an expired claim whose plan does not fit the log: the session is put aside as
/// it is, for a person to look at.
#[must_use]
pub fn give_up(tail: &Tail, claim: &Claim, reason: &str) -> Vec<EventBody> {
    let execution = claim.execution;
    let mut events = Vec::new();
    if !claim.ended {
        events.push(EventBody::ExecutionInterrupted {
            execution,
            reason: InterruptReason::Crash,
        });
    }
    events.push(EventBody::RecoveryRecorded {
        recovery: RecoveryId::derived(execution.0, "recovery"),
        execution,
        phase: claim.phase,
        attempts: tail.session.attempts,
        charges: tail.session.charges.clone(),
    });
    events.push(EventBody::SessionQuarantined {
        reason: reason.into(),
    });
    events
}

/// The verdicts on a step that a crash cut short.
fn verdicts(step: &Step, execution: crate::id::ExecutionId) -> Vec<EventBody> {
    let mut events = Vec::new();
    let mut recovered = StepRecovered {
        step: step.seq,
        execution,
        ask_again: false,
        interrupted: false,
        settled: Vec::new(),
        run: Vec::new(),
    };
    let awaiting = step.asks_model() && step.ending.is_none();
    recovered.ask_again = awaiting && step.content.is_empty() && !step.started.hosted_once;
    recovered.interrupted = awaiting && !recovered.ask_again;

    for call in step
        .calls
        .iter()
        .filter(|call| !matches!(call.status, CallStatus::Settled | CallStatus::Held) && !call.own)
    {
        match verdict(call) {
            Some(outcome) => {
                events.push(settled(step, call, outcome));
                recovered.settled.push(call.id.clone());
            }
            None => recovered.run.push(call.id.clone()),
        }
    }
    // A call of the runner's own that is not whole can never be answered by it.
    for call in step
        .calls
        .iter()
        .filter(|call| call.own && call.status == CallStatus::Streaming)
    {
        events.push(settled(step, call, ToolOutcome::NotStarted));
        recovered.settled.push(call.id.clone());
    }
    if recovered.interrupted {
        events.push(EventBody::ModelEnded {
            step: step.seq,
            ending: Ending::Interrupted,
            usage: budget::estimated(None, None, step),
            timing: Timing::default(),
        });
    }
    // Before the results, so that the step knows of the verdict when the last of them closes it.
    events.insert(0, EventBody::StepRecovered(recovered));
    events
}

/// The result that recovery gives a call, or `None` for one that is simply run (again).
#[must_use]
pub fn verdict(call: &Call) -> Option<ToolOutcome> {
    match (call.status, call.hosted, call.effect) {
        (_, true, _) => Some(ToolOutcome::ResultMissing),
        (CallStatus::Streaming, ..) => Some(ToolOutcome::NotStarted),
        (CallStatus::Started, _, Some(Effect::Once)) => Some(ToolOutcome::OutcomeUnknown),
        _ => None,
    }
}

/// Ends an open turn at once: a result for each open call, an end for an open answer, the turn's end.
#[must_use]
pub fn close_turn(tail: &Tail, outcome: TurnOutcome) -> Vec<EventBody> {
    let mut events = Vec::new();
    if let Some(step) = &tail.step {
        events.extend(close_step(step));
        let own = step
            .calls
            .iter()
            .filter(|call| call.own && call.status == CallStatus::Ready);
        events.extend(own.map(|call| EventBody::CallDropped {
            step: step.seq,
            call: call.id.clone(),
        }));
    }
    events.extend(dropped(tail));
    if tail.session.turn.is_some() {
        events.push(EventBody::TurnEnded {
            outcome,
            decided: None,
        });
    }
    events
}

/// The ends of the runner's own calls that are open when a turn is over.
pub fn dropped(tail: &Tail) -> impl Iterator<Item = EventBody> {
    tail.session
        .open_calls
        .iter()
        .map(|(step, call)| EventBody::CallDropped {
            step: *step,
            call: call.id.clone(),
        })
}

/// Ends an open step at once, as interrupted.
#[must_use]
pub fn close_step(step: &Step) -> Vec<EventBody> {
    let mut events = Vec::new();
    for call in &step.calls {
        let outcome = match (call.status, call.hosted, call.effect) {
            (CallStatus::Settled, ..) => continue,
            (_, true, _) => ToolOutcome::ResultMissing,
            (CallStatus::Streaming, ..) => ToolOutcome::NotStarted,
            (CallStatus::Started, _, Some(Effect::Once)) => ToolOutcome::OutcomeUnknown,
            (CallStatus::Started, ..) => ToolOutcome::Interrupted,
            // The runner settles its own with the turn's end.
            (CallStatus::Ready, ..) if call.own => continue,
            (CallStatus::Ready | CallStatus::Held, ..) => ToolOutcome::NotStarted,
        };
        events.push(settled(step, call, outcome));
    }
    if matches!(step.started.action, crate::plugin::Action::Compact(_)) {
        if step.asks_model() && step.ending.is_none() {
            events.push(EventBody::ModelEnded {
                step: step.seq,
                ending: Ending::Interrupted,
                usage: budget::estimated(None, None, step),
                timing: Timing::default(),
            });
        }
        events.push(EventBody::ContextKept {
            step: step.seq,
            failure: crate::model::Failure {
                class: crate::model::FailureClass::Incomplete,
                message: "the compaction was interrupted".into(),
                retry_after_ms: None,
            },
        });
    } else if step.asks_model() && step.ending.is_none() {
        events.push(EventBody::ModelEnded {
            step: step.seq,
            ending: Ending::Interrupted,
            usage: budget::estimated(None, None, step),
            timing: Timing::default(),
        });
    }
    events
}

/// The result of a call that nobody ran to its end, worded for a model.
#[must_use]
pub fn settled(step: &Step, call: &Call, outcome: ToolOutcome) -> EventBody {
    let text = match outcome {
        ToolOutcome::NotStarted => "Not started: it was stopped before it began. Nothing was done.",
        ToolOutcome::Interrupted => "Interrupted while it ran.",
        ToolOutcome::OutcomeUnknown => {
            "Outcome unknown: it was running when it was cut off, and may or may not have happened. \
             It was not run again. Check before you repeat it."
        }
        ToolOutcome::ResultMissing => "The result never came.",
        _ => "Not run.",
    };
    EventBody::CallSettled {
        step: step.seq,
        result: ToolResult {
            call: call.id.clone(),
            tool: call.tool.clone(),
            outcome,
            output: vec![Part::Text(text.into())],
            whole: None,
        },
        timing: Timing::default(),
    }
}
