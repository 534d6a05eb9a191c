//! A commit in the making: the tail, the events and the rows as they are with what was judged so far.

use super::{Applied, Reply};
use crate::event::{Event, EventBody, InputContent};
use crate::id::{EventId, ExecutionId, InputId, Millis, RecoveryId};
use crate::project::{self, RuleBroken};
use crate::tail::{Changes, Input, Scope, Tail};
use crate::wait;

/// A commit in the making.
pub(super) struct Work {
    pub(super) tail: Tail,
    pub(super) events: Vec<Event>,
    pub(super) changes: Changes,
    pub(super) at: Millis,
    pub(super) execution: Option<ExecutionId>,
    pub(super) recovery: Option<RecoveryId>,
}

impl Work {
    pub(super) fn push(&mut self, body: EventBody) -> Result<(), RuleBroken> {
        self.push_as(EventId::new(), body)
    }

    pub(super) fn push_as(&mut self, id: EventId, body: EventBody) -> Result<(), RuleBroken> {
        let event = Event {
            session: self.tail.session.id,
            seq: self.tail.session.head + 1,
            id,
            at: self.at,
            execution: self.execution,
            recovery: self.recovery,
            body,
            compacted: None,
        };
        project::project(&mut self.tail, &event, &mut self.changes)?;
        self.events.push(event);
        Ok(())
    }

    /// An event only where it changes something.
    pub(super) fn wake(&mut self, scope: Scope) -> Result<(), RuleBroken> {
        if project::woken(&mut self.tail.inputs, scope)
            .next()
            .is_some()
        {
            self.push(EventBody::InputsWoken { scope })?;
        }
        Ok(())
    }

    /// Once a turn is over, an answer about a call of it has nothing to act on.
    pub(super) fn drop_answers(&mut self) -> Result<(), RuleBroken> {
        let session = &self.tail.session;
        if session.turn.is_some() || session.foreign.is_some() {
            return Ok(());
        }
        let unused = |input: &&Input| {
            matches!(&input.content, InputContent::Approval(answer)
                if wait::is_for_a_call(session, answer))
        };
        let unused: Vec<InputId> = self
            .tail
            .inputs
            .iter()
            .filter(unused)
            .map(|i| i.id)
            .collect();
        // They are the host's, and come behind the terminal.
        self.execution = None;
        for input in unused {
            self.push(EventBody::InputCancelled { input })?;
        }
        Ok(())
    }

    pub(super) fn finish(mut self, reply: Reply) -> Applied {
        // Of a session that is not wholly known, the claim stays as it was found.
        if self.tail.session.foreign.is_none()
            && let Some(claim) = self.tail.claim.take()
        {
            self.tail.claim = Some(project::claim_after(&self.tail, claim));
        }
        let reply = match (reply, &self.tail.claim) {
            (Reply::Claimed(_), Some(claim)) => Reply::Claimed(claim.clone()),
            (reply, _) => reply,
        };
        Applied {
            events: self.events,
            tail: self.tail,
            changes: self.changes,
            reply,
        }
    }
}
