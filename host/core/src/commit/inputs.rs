//! Inputs: admitted once, changed while they are pending, and answers to approvals among them.

use super::work::Work;
use super::{Admission, Known, Refused, Reply};
use crate::event::{Delivery, EventBody, InputContent};
use crate::history::Approval;
use crate::id::InputId;
use crate::tail::{Input, InputStatus, Scope, Tail};
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
        return Ok(Reply::Admitted(Admission {
            input,
            seq: first.seq,
            status: first.status,
            held,
        }));
    }
    if work.tail.session.cancelled {
        return Err(Refused::Cancelled(work.tail.session.id));
    }
    // One compaction is enough: who asks while one is pending gets that one.
    if matches!(content, InputContent::Compact {})
        && let Some(first) = work
            .tail
            .inputs
            .iter()
            .find(|pending| matches!(pending.content, InputContent::Compact {}))
    {
        return Ok(Reply::Admitted(Admission {
            input: first.id,
            seq: first.seq,
            status: first.status,
            held,
        }));
    }
    if work.tail.session.revert.is_some() {
        work.push(EventBody::RevertCommitted {})?;
    }
    work.push(EventBody::InputAdmitted {
        input,
        delivery,
        content: content.clone(),
    })?;
    // Before the wake, which may be an event of its own.
    let seq = work.tail.session.head;
    if held.is_none() {
        work.wake(if delivery == Delivery::Steer {
            Scope::Steers
        } else {
            Scope::All
        })?;
    }
    Ok(Reply::Admitted(Admission {
        input,
        seq,
        status: InputStatus::Pending,
        held,
    }))
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

pub(super) fn given(input: InputId) -> Refused {
    Refused::InputSettled {
        input,
        status: "the answer to an approval",
    }
}

/// The first answer stands; the same again is answered like it.
pub(super) fn answer_approval(work: &mut Work, answer: &Approval) -> Result<Reply, Refused> {
    let session = work.tail.session.id;
    if work.tail.session.cancelled {
        return Err(Refused::Cancelled(session));
    }
    let key = answer.key.clone();
    let input = wait::approval_input(session, &key);
    let asked = work.tail.session.arrived.approvals.get(&key);
    let Some(asked) = asked else {
        return Err(Refused::ApprovalNotFound { key });
    };
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
    })?;
    if work.tail.may_run().is_ok() {
        work.wake(Scope::Steers)?;
    }
    Ok(Reply::Done)
}
