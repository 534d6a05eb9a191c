//! Events of an execution: appended under its fence, and known again where a retry brings them.

use super::work::Work;
use super::{Append, End, Known, Refused, Reply};
use crate::claim::Phase;
use crate::event::{EventBody, EventDraft, InterruptReason, Record};
use crate::id::{Millis, Seq, SessionId};
use crate::stub;

pub(super) fn append_events(
    work: &mut Work,
    known: &Known,
    append: &Append,
    now: Millis,
) -> Result<Reply, Refused> {
    let session = work.tail.session.id;
    let execution = append.fence.execution;
    let terminal = append.terminal();
    let drafts = append.events.len() + usize::from(terminal.is_some());
    if drafts > 0 && known.events.len() == drafts {
        return duplicate(session, append, terminal.as_ref(), known);
    }
    // An execution that has ended otherwise has no claim any more.
    let ended = |held: &&Record| terminal.as_ref().is_some_and(|one| one.id == held.id);
    if let Some(held) = known.events.iter().find(|held| !ended(held)) {
        return Err(Refused::EventConflict {
            id: held.id,
            seq: held.seq,
        });
    }
    let claim = work
        .tail
        .claim
        .as_ref()
        .filter(|claim| claim.is_held_by(append.fence, now) && !claim.ended);
    let claim = claim.ok_or(Refused::Lost { session, execution })?;
    let by_itself = matches!(
        append.end,
        Some(End::Succeeded | End::Suspended | End::Failed { .. })
    );
    if (append.begins || by_itself) && claim.interrupt {
        return Err(Refused::Interrupted { execution });
    }
    if let Some(expected) = append.expected_head
        && expected != work.tail.session.head
    {
        return Err(Refused::HeadMoved {
            expected,
            actual: work.tail.session.head,
        });
    }
    work.execution = Some(execution);
    for draft in &append.events {
        if let EventBody::InputPromoted { input } = &draft.body {
            let promoted = work.tail.inputs.iter().find(|pending| pending.id == *input);
            if !promoted.is_some_and(|pending| pending.intent) {
                return Err(Refused::HeadMoved {
                    expected: append.expected_head.unwrap_or(0),
                    actual: work.tail.session.head,
                });
            }
        }
        work.push_as(draft.id, draft.body.clone())?;
    }
    let Some(end) = &append.end else {
        return Ok(Reply::Done);
    };
    if matches!(end, End::Succeeded | End::Suspended) && work.tail.is_runnable() {
        return Err(Refused::NotIdle);
    }
    let phase = crate::claim::phase(&work.tail, claim_phase(work));
    let keep = matches!(
        end,
        End::Interrupted {
            reason: InterruptReason::Shutdown
        }
    ) && phase != Phase::Safe;
    if let Some(terminal) = terminal {
        work.push_as(terminal.id, terminal.body)?;
    }
    if keep {
        if let Some(claim) = &mut work.tail.claim {
            claim.expires_at = now;
        }
    } else {
        work.tail.claim = None;
    }
    Ok(Reply::Done)
}

fn claim_phase(work: &Work) -> Phase {
    work.tail
        .claim
        .as_ref()
        .map_or(Phase::Ready, |claim| claim.phase)
}

/// All ids are held: the same commit again, or another under the same ids.
fn duplicate(
    session: SessionId,
    append: &Append,
    terminal: Option<&EventDraft>,
    known: &Known,
) -> Result<Reply, Refused> {
    let mut first = Seq::MAX;
    for draft in append.events.iter().chain(terminal) {
        let held = known
            .events
            .iter()
            .find(|record| record.id == draft.id)
            .expect("looked up by these ids");
        let (kind, version, data) = draft.body.encode();
        if held.session != session
            || (&held.kind, held.version) != (&kind, version)
            || !stub::is_of(held, &data)
        {
            if terminal.is_some_and(|terminal| terminal.id == draft.id) {
                let execution = append.fence.execution;
                return Err(Refused::Lost { session, execution });
            }
            return Err(Refused::EventConflict {
                id: draft.id,
                seq: held.seq,
            });
        }
        first = first.min(held.seq);
    }
    Ok(Reply::Duplicate { first })
}
