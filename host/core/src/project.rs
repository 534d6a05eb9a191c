//! From an event to the rows that it changes: a pure function, so that no two stores can disagree and
//! a rebuild from the log gives the same rows.

mod family;
mod step;

use family::{cancel_children, interrupt_children, report, spawn};
pub(crate) use step::fold_step;
use step::{assistant, begin_wait, close_step, hold, open_step, own_call, settle, take_open_call};

use crate::claim::Claim;
use crate::event::{Delivery, Event, EventBody, InputContent, TurnOutcome};
use crate::history::{Assistant, Author, Compaction, Ending, Item, ItemBody, Recovered};
use crate::id::Seq;
use crate::model::{Content, FinishReason, Part, ToolOutcome, ToolResult};
use crate::outbox::Ended;
use crate::plugin::{Action, Trigger};
use crate::policy::HeldBack;
use crate::state::States;
use crate::tail::{
    Changes, Execution, Input, InputStatus, Joined, Scope, Session, Step, StepRow, Tail, Totals,
    Turn,
};
use crate::wait::{self, Arrived};

/// An event that cannot follow what stands before it. Where a host wrote it, a bug; where it was
/// imported, a damaged log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("event {seq} ({kind}) breaks a rule of the log: {rule}")]
pub struct RuleBroken {
    pub seq: Seq,
    pub kind: String,
    pub rule: String,
}

/// The tail that `session.created` begins.
#[must_use]
pub fn begin(event: &Event) -> Option<Tail> {
    let EventBody::SessionCreated(created) = &event.body else {
        return None;
    };
    Some(Tail {
        session: Session {
            id: event.session,
            agent: created.agent.clone(),
            model: created.model.clone(),
            title: created.title.clone(),
            head: event.seq,
            created_at: event.at,
            updated_at: event.at,
            active_at: event.at,
            resume: created.resume,
            held: None,
            execution: None,
            turn: None,
            wait: None,
            arrived: Arrived::default(),
            parent: created.parent.clone(),
            reported: false,
            children: Vec::new(),
            outbox: Vec::new(),
            followed: Vec::new(),
            last_turn: None,
            step: None,
            trigger: Trigger::TurnStarted,
            seen: event.seq,
            context_after: 0,
            states: States::default(),
            open_calls: Vec::new(),
            usage: Totals::default(),
            failed_calls: 0,
            attempts: 0,
            charges: Vec::new(),
            quarantined: None,
            cancelled: false,
            origin: None,
            interrupting: false,
            revert: None,
            forked: created.forked,
            foreign: None,
            compacted_through: 0,
        },
        claim: None,
        step: None,
        inputs: Vec::new(),
    })
}

/// Takes one event into the tail and adds the rows that it changes to `changes`.
///
/// # Errors
/// [`RuleBroken`] for an event that cannot stand here; the tail is then not to be used any more.
pub fn project(tail: &mut Tail, event: &Event, changes: &mut Changes) -> Result<(), RuleBroken> {
    let broken = |rule: String| RuleBroken {
        seq: event.seq,
        kind: event.body.kind(),
        rule,
    };
    if event.seq != tail.session.head + 1 {
        return Err(broken(format!("it follows {}", tail.session.head)));
    }
    tail.session.head = event.seq;
    tail.session.updated_at = tail.session.updated_at.max(event.at);
    if is_active(event) {
        tail.session.active_at = tail.session.updated_at;
    }
    apply(tail, event, changes).map_err(broken)
}

/// How many of a parent's interrupts a session remembers: more than couriers can have under way.
const FOLLOWED: usize = 8;

/// Whether a client or an execution wrote it, and not the host on its own.
fn is_active(event: &Event) -> bool {
    event.execution.is_some()
        || !(event.recovery.is_some()
            || matches!(
                &event.body,
                EventBody::SessionHeld { .. }
                    | EventBody::SessionQuarantined { .. }
                    | EventBody::NoticeDelivered { .. }
                    | EventBody::InputAdmitted {
                        content: InputContent::Timer { .. } | InputContent::Child(_),
                        ..
                    }
            ))
}

fn apply(tail: &mut Tail, event: &Event, changes: &mut Changes) -> Result<(), String> {
    let (seq, at, id) = (event.seq, event.at, event.session);
    let item = |body: ItemBody| Item { seq, at, body };
    match &event.body {
        EventBody::SessionCreated(_) => return Err("a session is created once".into()),
        EventBody::SessionConfigured { model } => tail.session.model = Some(model.clone()),
        EventBody::SessionQuarantined { reason } => {
            tail.session.quarantined = Some(reason.clone());
            clear_intents(tail, changes);
            report(tail, Ended::Quarantined(reason.clone()));
        }
        EventBody::SessionHeld { reason } => {
            tail.session.held = Some(*reason);
            if *reason == HeldBack::Never {
                clear_intents(tail, changes);
            }
        }
        EventBody::SessionReleased {} => {
            tail.session.quarantined = None;
            tail.session.held = None;
            tail.session.clear_attempts();
        }
        EventBody::SessionAdopted {} => {
            if let Some(origin) = &mut tail.session.origin {
                origin.adopted = true;
            }
        }
        EventBody::SessionCancelled {} => {
            tail.session.cancelled = true;
            tail.session.interrupting = is_busy(&tail.session);
            clear_intents(tail, changes);
            if let Some(claim) = &mut tail.claim {
                claim.interrupt = true;
            }
            cancel_children(tail);
            report(tail, Ended::Cancelled);
        }
        EventBody::NoticeDelivered { notice } => {
            let outbox = &mut tail.session.outbox;
            let at = outbox.iter().position(|owed| owed == notice);
            outbox.remove(at.ok_or("nothing like it is owed")?);
        }
        EventBody::InputsWoken { scope } => {
            for pending in woken(&mut tail.inputs, *scope) {
                pending.intent = true;
                changes.inputs.push(pending.clone());
            }
        }

        EventBody::InputAdmitted {
            input,
            delivery,
            content,
            joins,
        } => {
            let joins = joins.map(|joins| joined(tail, joins)).transpose()?;
            let input = Input {
                id: *input,
                session: id,
                seq,
                at,
                delivery: *delivery,
                status: InputStatus::Pending,
                // By the log alone: an imported session's rows are those of its origin.
                intent: !tail.session.cancelled
                    && tail.session.quarantined.is_none()
                    && tail.session.held.is_none(),
                content: content.clone(),
                joins,
            };
            if let InputContent::Approval(answer) = content {
                wait::answered(&mut tail.session, seq, answer)?;
            }
            if let (InputContent::Timer { .. }, Some(wait)) = (content, &mut tail.session.wait) {
                wait.wake_at = None;
            }
            changes.inputs.push(input.clone());
            tail.inputs.push(input);
        }
        EventBody::InputCancelled { input } => {
            let mut input = take_input(tail, *input)?;
            input.status = InputStatus::Cancelled;
            input.intent = false;
            changes.inputs.push(input);
        }
        EventBody::InputRedelivered { input, delivery } => {
            let pending = tail.inputs.iter_mut().find(|pending| pending.id == *input);
            let pending = pending.ok_or_else(|| format!("input {input} is not pending"))?;
            pending.delivery = *delivery;
            changes.inputs.push(pending.clone());
        }
        EventBody::InputPromoted { input } => {
            let mut input = take_input(tail, *input)?;
            input.status = InputStatus::Promoted;
            input.intent = false;
            let mut silent = input.content.is_control();
            let body = match &input.content {
                InputContent::Prompt { parts } => Some(ItemBody::User(parts.clone())),
                InputContent::Signal(signal) => Some(ItemBody::Signal(signal.clone())),
                // What the call became says it.
                InputContent::Approval(answer) if wait::is_for_a_call(&tail.session, answer) => {
                    silent = true;
                    None
                }
                InputContent::Approval(answer) => Some(ItemBody::Approval(answer.clone())),
                InputContent::Timer { .. } => Some(ItemBody::Timer),
                InputContent::Child(child) => Some(ItemBody::Child(child.clone())),
                InputContent::Configure { model } => {
                    tail.session.model = Some(model.clone());
                    None
                }
                InputContent::Compact {} => None,
            };
            let wait_ended = wait::arrive(&mut tail.session, seq, &input.content);
            let compacts = matches!(input.content, InputContent::Compact {});
            changes.items.extend(body.map(item));
            changes.inputs.push(input);
            if let Some(turn) = &mut tail.session.turn {
                turn.steps_left = turn.steps;
                // A runner that would stop here has to hear that there is something new.
                let stopping = matches!(&tail.session.trigger, Trigger::ModelFinished(reason) if *reason != FinishReason::ToolCalls);
                if let Some(end) = wait_ended {
                    tail.session.trigger = Trigger::WaitEnded(end);
                } else if compacts {
                    tail.session.trigger = Trigger::Other("compact".into());
                } else if stopping && !silent {
                    tail.session.trigger = Trigger::Other("steered".into());
                }
            }
        }
        EventBody::InterruptRequested { cause } => {
            clear_intents(tail, changes);
            let followed = &mut tail.session.followed;
            followed.extend(*cause);
            followed.drain(..followed.len().saturating_sub(FOLLOWED));
            tail.session.interrupting = is_busy(&tail.session);
            interrupt_children(tail, event.id);
            if let Some(claim) = &mut tail.claim {
                claim.interrupt = true;
            }
        }

        EventBody::ExecutionStarted { execution, owner } => {
            if let Some(other) = tail.session.execution {
                return Err(format!("execution {other} has not ended"));
            }
            tail.session.execution = Some(*execution);
            changes.executions.push(Execution {
                id: *execution,
                session: id,
                owner: *owner,
                started: seq,
                ended: None,
                terminal: None,
            });
        }
        EventBody::ExecutionSucceeded { execution }
        | EventBody::ExecutionFailed { execution, .. }
        | EventBody::ExecutionInterrupted { execution, .. }
        | EventBody::ExecutionSuspended { execution } => {
            if tail.session.execution != Some(*execution) {
                return Err(format!(
                    "execution {execution} has not begun, or has its terminal"
                ));
            }
            tail.session.execution = None;
            tail.session.interrupting = false;
            // Import has events and no claims.
            if let Some(claim) = &mut tail.claim {
                claim.ended |= claim.execution == *execution;
            }
            changes.executions.push(Execution {
                id: *execution,
                session: id,
                owner: tail.claim.as_ref().map_or_else(
                    || crate::id::OwnerId(uuid::Uuid::nil()),
                    |claim| claim.owner,
                ),
                started: 0,
                ended: Some(seq),
                terminal: Some(event.body.kind()),
            });
        }

        EventBody::TurnStarted { steps } => {
            if tail.session.turn.is_some() {
                return Err("a turn is open already".into());
            }
            tail.session.turn = Some(Turn {
                began: seq,
                steps_left: *steps,
                steps: *steps,
                settled_steps: 0,
            });
            tail.session.trigger = Trigger::TurnStarted;
            tail.session.failed_calls = 0;
        }
        EventBody::TurnEnded { outcome, decided } => {
            if tail.session.turn.take().is_none() {
                return Err("no turn is open".into());
            }
            if tail.step.is_some() {
                return Err("a step is open".into());
            }
            if let Some((step, call)) = tail.session.open_calls.first() {
                return Err(format!("call {} of step {step} has no answer", call.id));
            }
            tail.session.wait = None;
            // Nobody waits for these answers any more.
            let approvals = &mut tail.session.arrived.approvals;
            approvals.retain(|_, asked| asked.answer.is_some());
            tail.session.last_turn = Some(outcome.clone());
            match outcome {
                TurnOutcome::Done => report(tail, Ended::Done(seq)),
                TurnOutcome::Failed { error } => report(tail, Ended::Failed(error.clone())),
                // It goes on with the next prompt.
                TurnOutcome::Interrupted => {}
            }
            if let Some(decided) = decided {
                tail.session.seen = seq;
                if let Some(state) = &decided.state {
                    tail.session.states.keep(seq, state.clone());
                }
            }
            tail.session.clear_attempts();
            if tail.session.execution.is_none() {
                tail.session.interrupting = false;
            }
            if let Some(claim) = &mut tail.claim {
                claim.phase = crate::claim::Phase::Safe;
            }
        }

        EventBody::RunnerSaid { runner, parts } => {
            let content = parts
                .iter()
                .map(|part| match part {
                    Part::Text(text) => Content::Text(text.clone()),
                    Part::Media(media) => Content::Media(media.clone()),
                })
                .collect();
            changes.items.push(item(ItemBody::Assistant(Assistant {
                author: Author::Runner(runner.clone()),
                content,
                ending: Ending::Finished(crate::model::FinishReason::Stop),
                usage: None,
            })));
        }
        EventBody::RunnerNoted { parts } => changes.items.push(item(ItemBody::Note(parts.clone()))),
        EventBody::CallDropped { step, call } => {
            let call = take_open_call(tail, *step, call)?;
            changes.items.push(item(ItemBody::ToolResult(ToolResult {
                call: call.id.clone(),
                tool: call.tool.clone(),
                outcome: ToolOutcome::NotStarted,
                output: vec![Part::Text("Not started: the turn ended first.".into())],
                whole: None,
            })));
            changes.calls.push(own_call(id, *step, &call, Some(seq)));
        }
        EventBody::RunnerAnswered { step, answer } => {
            let call = take_open_call(tail, *step, &answer.call)?;
            changes.items.push(item(ItemBody::ToolResult(ToolResult {
                call: call.id.clone(),
                tool: call.tool.clone(),
                outcome: if answer.is_error {
                    ToolOutcome::Failed
                } else {
                    ToolOutcome::Succeeded
                },
                output: answer.output.clone(),
                whole: None,
            })));
            changes.calls.push(own_call(id, *step, &call, Some(seq)));
        }

        EventBody::StepStarted(started) => {
            let turn = tail.session.turn.as_mut().ok_or("no turn is open")?;
            if tail.step.is_some() {
                return Err("a step is open already".into());
            }
            turn.steps_left = turn
                .steps_left
                .checked_sub(1)
                .ok_or("no steps are left in this turn")?;
            tail.session.seen = seq - 1;
            if let Some(state) = &started.state {
                tail.session.states.keep(seq, state.clone());
            }
            changes.steps.push(StepRow {
                session: id,
                seq,
                started_at: at,
                settled_at: None,
                runner: started.runner.clone(),
                provider: started
                    .provider
                    .as_ref()
                    .map(|provider| provider.digest.clone()),
                usage: None,
            });
            let step = Step::new(id, seq, at, started.clone());
            if let Action::CallTools(calls) = &started.action {
                if calls
                    .iter()
                    .enumerate()
                    .any(|(n, call)| calls[..n].iter().any(|other| other.id == call.id))
                {
                    return Err("a call id stands twice in one step".into());
                }
                changes.items.push(item(ItemBody::Assistant(assistant(
                    &step,
                    Ending::Finished(crate::model::FinishReason::ToolCalls),
                ))));
            }
            tail.session.step = Some(seq);
            changes.calls.extend(step.calls.iter().cloned());
            tail.step = Some(step);
            match &started.action {
                Action::Wait(wait) => begin_wait(tail, seq, at, &wait.until, changes),
                Action::Spawn(children) => {
                    spawn(tail, seq, at, children, started.spawn_refused, changes);
                }
                _ => {}
            }
        }
        EventBody::ContextCompacted {
            step,
            through,
            summary,
        } => {
            open_step(tail, *step)?;
            tail.session.context_after = *through;
            changes.items.push(item(ItemBody::Compaction(Compaction {
                through: *through,
                summary: summary.clone(),
            })));
            tail.session.trigger = Trigger::Compacted;
            close_step(tail, *step, at, changes);
        }
        EventBody::ContextKept { step, failure } => {
            open_step(tail, *step)?;
            tail.session.trigger = Trigger::CompactionFailed(failure.clone());
            close_step(tail, *step, at, changes);
        }
        EventBody::ItemCopied { at, body } => changes.items.push(Item {
            seq,
            at: *at,
            body: body.clone(),
        }),
        EventBody::HistoryForked {
            context_after,
            states,
        } => {
            tail.session.context_after = *context_after;
            tail.session.states = states.at(seq);
            tail.session.seen = seq;
        }
        EventBody::HistoryReverted(revert) => {
            if tail.session.turn.is_some() {
                return Err("a turn is open".into());
            }
            tail.session.revert = Some(revert.clone());
        }
        EventBody::RevertCleared {} => {
            tail.session.revert.take().ok_or("nothing is reverted")?;
        }
        EventBody::RevertCommitted {} => {
            let revert = tail.session.revert.take().ok_or("nothing is reverted")?;
            tail.session.context_after = revert.context_after;
            tail.session.states = revert.states;
            tail.session.arrived.cut(revert.through, revert.signals);
            changes.drop_items(revert.through);
        }
        EventBody::RetryScheduled { step, usage, .. } => {
            fold_step(open_step(tail, *step)?, id, seq, at, &event.body)?;
            if let Some(usage) = usage {
                tail.session.usage.add(usage);
            }
        }
        EventBody::StepOutput { step, .. }
        | EventBody::CallStarted { step, .. }
        | EventBody::CallHeld { step, .. } => {
            let open = open_step(tail, *step)?;
            let before = open.calls.clone();
            fold_step(open, id, seq, at, &event.body)?;
            changes.calls.extend(
                open.calls
                    .iter()
                    .filter(|call| !before.contains(call))
                    .cloned(),
            );
            if let EventBody::CallHeld { call, request, .. } = &event.body {
                wait::ask(&mut tail.session, *step, at, call, request)?;
                hold(tail);
            }
        }
        EventBody::CallSettled { step, result, .. } => {
            let open = open_step(tail, *step)?;
            fold_step(open, id, seq, at, &event.body)?;
            changes.calls.extend(open.call(&result.call).cloned());
            if !open
                .calls
                .iter()
                .any(|call| call.id == result.call && call.hosted)
            {
                changes
                    .items
                    .push(item(ItemBody::ToolResult(result.clone())));
            }
            tail.session.clear_attempts();
            settle(tail, *step, at, changes);
            hold(tail);
        }
        EventBody::ModelEnded {
            step,
            ending,
            usage,
            ..
        } => {
            let open = open_step(tail, *step)?;
            fold_step(open, id, seq, at, &event.body)?;
            let compacts = matches!(open.started.action, Action::Compact(_));
            let whole = matches!(ending, Ending::Finished(_));
            if !compacts && (whole || !open.content.is_empty()) {
                let mut body = assistant(open, ending.clone());
                // Runners take it for exact.
                body.usage = usage.filter(|usage| !usage.estimated);
                changes.items.push(Item {
                    seq: open.seq,
                    at: open.at,
                    body: ItemBody::Assistant(body),
                });
            }
            if let Some(usage) = usage {
                changes.steps.push(StepRow {
                    session: id,
                    seq: *step,
                    started_at: open.at,
                    settled_at: None,
                    runner: open.started.runner.clone(),
                    provider: open
                        .started
                        .provider
                        .as_ref()
                        .map(|provider| provider.digest.clone()),
                    usage: Some(*usage),
                });
                tail.session.usage.add(usage);
            }
            if matches!(ending, Ending::Failed(_)) {
                tail.session.failed_calls += 1;
            } else {
                tail.session.failed_calls = 0;
            }
            if !compacts {
                settle(tail, *step, at, changes);
                hold(tail);
            }
        }
        EventBody::StepRecovered(recovered) => {
            let open = tail.step.as_mut().filter(|open| open.seq == recovered.step);
            if recovered.interrupted || !recovered.settled.is_empty() {
                let interrupted = (recovered.interrupted).then_some(recovered.step);
                changes.items.push(item(ItemBody::Recovered(Recovered {
                    interrupted,
                    settled: recovered.settled.clone(),
                })));
                match open {
                    Some(open) => open.recovered = true,
                    None => tail.session.trigger = Trigger::Recovered,
                }
            }
        }
        EventBody::RecoveryRecorded {
            attempts, charges, ..
        } => {
            tail.session.attempts = *attempts;
            tail.session.charges.clone_from(charges);
        }
    }
    Ok(())
}

/// The pending inputs that a wake of this scope gives an intent that they do not have.
pub(crate) fn woken(inputs: &mut [Input], scope: Scope) -> impl Iterator<Item = &mut Input> {
    // A control that stands first acts before the steers behind it.
    let mut first = true;
    inputs.iter_mut().filter(move |input| {
        let leads = std::mem::take(&mut first) && input.content.is_control();
        !input.intent && (scope == Scope::All || input.delivery == Delivery::Steer || leads)
    })
}

fn clear_intents(tail: &mut Tail, changes: &mut Changes) {
    for input in &mut tail.inputs {
        if input.intent {
            input.intent = false;
            changes.inputs.push(input.clone());
        }
    }
}

/// The admission that answers for another one.
fn joined(tail: &Tail, id: crate::id::InputId) -> Result<Joined, String> {
    let mut pending = tail.inputs.iter();
    let first = pending.find(|input| input.id == id);
    first
        .map(|first| Joined {
            input: first.id,
            seq: first.seq,
        })
        .ok_or_else(|| format!("input {id} is not pending"))
}

fn take_input(tail: &mut Tail, id: crate::id::InputId) -> Result<Input, String> {
    let at = tail.inputs.iter().position(|input| input.id == id);
    at.map(|at| tail.inputs.remove(at))
        .ok_or_else(|| format!("input {id} is not pending"))
}

/// Whether there is something that an interrupt stops. A shutdown ends an execution and no turn.
fn is_busy(session: &Session) -> bool {
    session.execution.is_some() || session.turn.is_some()
}

/// The claim as it stands after a commit: its phase follows from the rows.
pub(crate) fn claim_after(tail: &Tail, claim: Claim) -> Claim {
    let phase = crate::claim::phase(tail, claim.phase);
    Claim {
        phase,
        step: tail.session.step,
        ..claim
    }
}
