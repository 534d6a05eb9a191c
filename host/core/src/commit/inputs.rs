//! Inputs: admitted once, changed while they are pending, and answers to approvals among them.

use super::work::Work;
use super::{Admission, Known, Refused, Reply};
use crate::event::{Delivery, EventBody, InputContent};
use crate::history::Approval;
use crate::id::InputId;
use crate::tail::{Input, InputStatus, Joined, Scope, Tail};
use crate::wait;

pub(super) fn admit(
    work: &mut Work,
    known: &Known,
    input: InputId,
    delivery: Delivery,
    content: &InputContent,
) -> Result<Reply, Refused> {
    let held = work.tail.may_run().err().map(|reason| reason.to_string());
    // One that is pending is in the tail, for a store that has not looked it up.
    let mut pending = work.tail.inputs.iter();
    let first = known.input.as_ref();
    if let Some(first) = first.or_else(|| pending.find(|pending| pending.id == input)) {
        if first.session != work.tail.session.id {
            return Err(Refused::InputConflict {
                input,
                holder: format!("session {}", first.session),
            });
        }
        if first.content.kind() != content.kind() {
            return Err(Refused::InputConflict {
                input,
                holder: format!("a {}", first.content.kind()),
            });
        }
        return Ok(Reply::Admitted(admission(first, held)));
    }
    if work.tail.session.cancelled {
        return Err(Refused::Cancelled(work.tail.session.id));
    }
    let joins = alike(&work.tail, content).map(|first| first.id);
    if work.tail.session.revert.is_some() {
        work.push(EventBody::RevertCommitted {})?;
    }
    work.push(EventBody::InputAdmitted {
        input,
        delivery,
        content: content.clone(),
        joins,
    })?;
    let admitted = work.tail.inputs.last().expect("pushed above");
    let reply = admission(admitted, held.clone());
    if held.is_none() {
        work.wake(if delivery == Delivery::Steer {
            Scope::Steers
        } else {
            Scope::All
        })?;
    }
    Ok(Reply::Admitted(reply))
}

fn admission(input: &Input, held: Option<String>) -> Admission {
    let answers = input.joins.unwrap_or(Joined {
        input: input.id,
        seq: input.seq,
    });
    Admission {
        input: answers.input,
        seq: answers.seq,
        status: input.status,
        held,
    }
}

/// What is pending that asks for the same, and is to run as this one: one compaction is enough.
fn alike<'t>(tail: &'t Tail, content: &InputContent) -> Option<&'t Input> {
    if !matches!(content, InputContent::Compact {}) {
        return None;
    }
    let runs = tail.may_run().is_ok();
    tail.inputs.iter().find(|pending| {
        matches!(pending.content, InputContent::Compact {})
            && pending.joins.is_none()
            && (pending.intent || !runs)
    })
}

/// Cancels a pending input, and with it those that were answered by its admission.
pub(super) fn cancel(work: &mut Work, input: InputId) -> Result<Reply, Refused> {
    let inputs = work.tail.inputs.iter();
    let joined = inputs.filter(|other| other.joins.is_some_and(|joins| joins.input == input));
    let all: Vec<_> = std::iter::once(input)
        .chain(joined.map(|other| other.id))
        .collect();
    for input in all {
        work.push(EventBody::InputCancelled { input })?;
    }
    Ok(Reply::Done)
}

pub(super) fn pending<'t>(
    tail: &'t Tail,
    known: &Known,
    input: InputId,
) -> Result<&'t Input, Refused> {
    if let Some(found) = tail.inputs.iter().find(|pending| pending.id == input) {
        return Ok(found);
    }
    match &known.input {
        Some(other) if other.session == tail.session.id => Err(Refused::InputSettled {
            input,
            status: match other.status {
                InputStatus::Pending => "pending",
                InputStatus::Promoted => "promoted",
                InputStatus::Cancelled => "cancelled",
            },
        }),
        _ => Err(Refused::InputNotFound(input)),
    }
}

/// Why an input is not a client's to take back or to put off: a wait may have nothing else that ends it.
pub(super) fn owed(input: &Input) -> Option<Refused> {
    let status = match &input.content {
        // The first one stands, and may have started its call already.
        InputContent::Approval(_) => "the answer to an approval",
        InputContent::Timer { .. } => "the time-out of a wait",
        InputContent::Child(_) => "the result of a child",
        InputContent::Prompt { .. }
        | InputContent::Signal(_)
        | InputContent::Configure { .. }
        | InputContent::Compact {} => return None,
    };
    let input = input.id;
    Some(Refused::InputSettled { input, status })
}

/// The first answer stands; the same again is answered like it.
pub(super) fn answer_approval(work: &mut Work, answer: &Approval) -> Result<Reply, Refused> {
    let session = work.tail.session.id;
    if work.tail.session.cancelled {
        return Err(Refused::Cancelled(session));
    }
    let key = answer.key.clone();
    let asked = work.tail.session.arrived.approvals.get(&key);
    let Some(asked) = asked else {
        return Err(Refused::ApprovalNotFound { key });
    };
    let input = wait::approval_input(session, asked.step, &key);
    if let Some(first) = &asked.answer {
        if first.approved == answer.approved {
            return Ok(Reply::Done);
        }
        let approved = first.approved;
        return Err(Refused::ApprovalAnswered { key, approved });
    }
    work.push(EventBody::InputAdmitted {
        input,
        delivery: Delivery::Steer,
        content: InputContent::Approval(answer.clone()),
        joins: None,
    })?;
    if work.tail.may_run().is_ok() {
        work.wake(Scope::Steers)?;
    }
    Ok(Reply::Done)
}
