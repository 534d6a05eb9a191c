//! The open step: what events change in it, and how it is closed once nothing of it is left.

use crate::event::{EventBody, author_of};
use crate::history::{Assistant, Ending};
use crate::id::{Millis, Seq, SessionId};
use crate::model::{Content, FailureClass};
use crate::plugin::{Condition, Trigger, WaitEnd};
use crate::tail::{Call, CallStatus, Changes, Retry, Step, StepRow, Tail};
use crate::wait;

/// Takes one event into the open step alone.
pub(crate) fn fold_step(
    step: &mut Step,
    session: SessionId,
    seq: Seq,
    at: Millis,
    body: &EventBody,
) -> Result<(), String> {
    match body {
        EventBody::StepOutput { step: of, pieces } if *of == step.seq => {
            if step.ending.is_some() {
                return Err("output after the answer's end".into());
            }
            pieces
                .iter()
                .try_for_each(|piece| step.take(session, piece))
        }
        EventBody::RetryScheduled {
            step: of,
            wait_ms,
            failure,
            ..
        } if *of == step.seq => {
            step.retries += 1;
            step.retry = Some(Retry {
                until: at.saturating_add(*wait_ms),
                limited: failure.class == FailureClass::RateLimited,
            });
            Ok(())
        }
        EventBody::CallStarted {
            step: of,
            call,
            effect,
            key,
            run,
            ..
        } if *of == step.seq => {
            let found = step.calls.iter_mut().find(|known| known.id == *call);
            let found = found.ok_or_else(|| format!("call {call} was never made"))?;
            match found.status {
                CallStatus::Ready | CallStatus::Held | CallStatus::Started => {}
                CallStatus::Streaming => return Err(format!("call {call} is not complete")),
                CallStatus::Settled => return Err(format!("call {call} has its result already")),
            }
            if *effect == crate::model::Effect::Once && found.runs > 0 {
                return Err(format!("call {call} acts once and was started already"));
            }
            found.status = CallStatus::Started;
            found.effect = Some(*effect);
            found.key = Some(key.clone());
            found.runs = *run;
            Ok(())
        }
        EventBody::CallHeld { step: of, call, .. } if *of == step.seq => {
            let found = step.calls.iter_mut().find(|known| known.id == *call);
            let found = found.ok_or_else(|| format!("call {call} was never made"))?;
            if found.status != CallStatus::Ready || found.own || found.hosted {
                return Err(format!("call {call} is not one that could start now"));
            }
            found.status = CallStatus::Held;
            Ok(())
        }
        EventBody::CallSettled {
            step: of, result, ..
        } if *of == step.seq => {
            let found = step.calls.iter_mut().find(|known| known.id == result.call);
            let found = found.ok_or_else(|| {
                format!("a result for call {}, which was never made", result.call)
            })?;
            if found.status == CallStatus::Settled {
                return Err(format!("a second result for call {}", result.call));
            }
            found.status = CallStatus::Settled;
            found.result = Some(seq);
            if found.hosted {
                // The message keeps the pair together.
                step.content
                    .push(Content::HostedResult(crate::model::HostedResult {
                        call: result.call.clone(),
                        is_error: true,
                        data: serde_json::json!({ "error": crate::model::text_of(&result.output) })
                            .to_string(),
                    }));
            }
            Ok(())
        }
        EventBody::ModelEnded {
            step: of, ending, ..
        } if *of == step.seq => {
            if step.ending.is_some() {
                return Err("the answer has ended already".into());
            }
            if let Some(call) = step.calls.iter().find(|call| {
                call.status == CallStatus::Streaming
                    || (call.hosted && call.status != CallStatus::Settled)
            }) {
                return Err(format!("call {} is open at the answer's end", call.id));
            }
            step.ending = Some(ending.clone());
            Ok(())
        }
        EventBody::StepRecovered(recovered) if recovered.step == step.seq => {
            step.recovered |= recovered.interrupted || !recovered.settled.is_empty();
            Ok(())
        }
        _ => Ok(()),
    }
}

pub(super) fn assistant(step: &Step, ending: Ending) -> Assistant {
    Assistant {
        author: author_of(&step.started),
        content: step.content.clone(),
        ending,
        usage: None,
    }
}

pub(super) fn own_call(
    session: SessionId,
    step: Seq,
    call: &crate::model::ToolCall,
    result: Option<Seq>,
) -> Call {
    Call {
        session,
        step,
        id: call.id.clone(),
        tool: call.tool.clone(),
        effect: None,
        status: if result.is_some() {
            CallStatus::Settled
        } else {
            CallStatus::Ready
        },
        own: true,
        hosted: false,
        key: None,
        runs: 0,
        result,
    }
}

pub(super) fn take_open_call(
    tail: &mut Tail,
    step: Seq,
    call: &str,
) -> Result<crate::model::ToolCall, String> {
    let open = &mut tail.session.open_calls;
    let at = open
        .iter()
        .position(|(of, known)| *of == step && known.id == call);
    at.map(|at| open.remove(at).1)
        .ok_or_else(|| format!("call {call} of step {step} is not open"))
}

pub(super) fn open_step(tail: &mut Tail, step: Seq) -> Result<&mut Step, String> {
    tail.step
        .as_mut()
        .filter(|open| open.seq == step)
        .ok_or_else(|| format!("step {step} is not open"))
}

/// Closes the step if nothing of it is left.
pub(super) fn settle(tail: &mut Tail, step: Seq, at: Millis, changes: &mut Changes) {
    let Some(open) = tail
        .step
        .as_ref()
        .filter(|open| open.seq == step && open.is_settled())
    else {
        return;
    };
    tail.session.trigger = match (&open.ending, open.recovered) {
        (_, true) => Trigger::Recovered,
        (Some(Ending::Finished(reason)), _) => Trigger::ModelFinished(reason.clone()),
        (Some(Ending::Failed(failure)), _) => Trigger::ModelFailed(failure.clone()),
        (Some(Ending::Interrupted), _) => Trigger::Recovered,
        (None, _) => Trigger::ToolsFinished,
    };
    close_step(tail, step, at, changes);
}

/// Parks the turn where nothing is left of its step but calls that are held.
pub(super) fn hold(tail: &mut Tail) {
    let approvals = &tail.session.arrived.approvals;
    let Some(step) = tail.step.as_ref().filter(|open| open.is_held(approvals)) else {
        return;
    };
    wait::hold(&mut tail.session, step.seq);
    if let Some(claim) = &mut tail.claim {
        claim.phase = crate::claim::Phase::Safe;
    }
}

pub(super) fn close_step(tail: &mut Tail, step: Seq, at: Millis, changes: &mut Changes) {
    let Some(open) = tail.step.take() else { return };
    for call in open
        .calls
        .iter()
        .filter(|call| call.own && call.status != CallStatus::Settled)
    {
        if let Some(made) = open.tool_call(&call.id) {
            tail.session.open_calls.push((step, made.clone()));
        }
    }
    changes.steps.push(StepRow {
        session: tail.session.id,
        seq: step,
        started_at: open.at,
        settled_at: Some(at),
        runner: open.started.runner.clone(),
        provider: open
            .started
            .provider
            .as_ref()
            .map(|provider| provider.digest.clone()),
        usage: None,
    });
    tail.session.step = None;
    tail.session.clear_attempts();
    if let Some(turn) = &mut tail.session.turn {
        turn.settled_steps += 1;
    }
}

pub(super) fn begin_wait(
    tail: &mut Tail,
    seq: Seq,
    at: Millis,
    until: &[Condition],
    changes: &mut Changes,
) {
    let end: Option<WaitEnd> = wait::begin(&mut tail.session, seq, at, until);
    match (end, &mut tail.claim) {
        (Some(end), _) => tail.session.trigger = Trigger::WaitEnded(end),
        (None, Some(claim)) => claim.phase = crate::claim::Phase::Safe,
        (None, None) => {}
    }
    close_step(tail, seq, at, changes);
}
