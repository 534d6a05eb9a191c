//! Empties a session's outbox: brings each notice to the session that it is for, in one commit there,
//! and takes it out of the outbox in one commit here. A crash between the two brings it again, which
//! changes nothing; what the other session refuses for good counts as delivered.

use tracing::{debug, warn};

use crate::commit::{Refused, Write};
use crate::event::{Delivery, InputContent, Parent, SessionCreated};
use crate::history::{ChildOutcome, ChildResult, ItemBody, Order};
use crate::id::{Seq, SessionId};
use crate::model::{Content, Part, Range};
use crate::node::Shared;
use crate::outbox::{self, Ended, Notice};
use crate::port::StoreError;
use crate::tail::{NotRunnable, Scope, Tail};

/// What a delivery means for the sessions of this node.
pub(crate) enum Effect {
    Woken(SessionId, Scope),
    Stopped(SessionId),
}

/// Delivers what the session owes. What could not be delivered stays, for the next look of the loop.
pub(crate) async fn deliver(shared: &Shared, session: SessionId) -> Vec<Effect> {
    let mut effects = Vec::new();
    let notices = match shared.store.tail(session).await {
        Ok(Some(tail)) => tail.session.outbox.clone(),
        Ok(None) => return effects,
        Err(error) => {
            warn!(%session, error = %crate::chain(&error), "an outbox could not be read");
            return effects;
        }
    };
    for notice in notices {
        let delivered = match bring(shared, session, &notice).await {
            Ok(effect) => {
                effects.extend(effect);
                shared.commit(session, Write::Deliver { notice }).await
            }
            Err(error) => Err(error),
        };
        match delivered {
            Ok(_) => {}
            // It stays owed, and holds up none of those behind it.
            Err(StoreError::Refused(refused)) => {
                debug!(%session, %refused, "a notice is not taken yet");
            }
            Err(error) => {
                warn!(%session, error = %crate::chain(&error), "a notice is not delivered yet");
                break;
            }
        }
    }
    effects
}

/// One notice's commit, and what follows from it here. `Ok` once nothing of it is owed.
async fn bring(
    shared: &Shared,
    from: SessionId,
    notice: &Notice,
) -> Result<Option<Effect>, StoreError> {
    match notice {
        Notice::Spawn {
            child,
            agent,
            parent,
            prompt,
        } => {
            let before = shared.store.tail(*child).await?;
            if before.is_some_and(|tail| has_told(&tail)) {
                // Where this is the same parent, it has its result, and this one changes nothing.
                let error = format!(
                    "session {child} was there before, as the child of a session under the same id that \
                     was deleted; spawn under another key"
                );
                let write = report(*child, &parent.key, ChildOutcome::Failed(error));
                let admitted = settled(shared.commit(from, write).await)?;
                return Ok(admitted.map(|()| Effect::Woken(from, Scope::Steers)));
            }
            if was_deleted(shared, from, *child, &parent.key).await? {
                return Ok(None);
            }
            create(shared, *child, agent.clone(), parent).await?;
            let write = Write::Admit {
                input: outbox::prompt_input(*child),
                delivery: Delivery::Queue,
                content: InputContent::Prompt {
                    parts: prompt.clone(),
                },
            };
            let admitted = settled(shared.commit(*child, write).await)?;
            Ok(admitted.map(|()| Effect::Woken(*child, Scope::All)))
        }
        Notice::Cancel { child, parent } => {
            if was_deleted(shared, from, *child, &parent.key).await? {
                return Ok(None);
            }
            // One that is just being made is made cancelled.
            let agent = String::new();
            create(shared, *child, agent, parent).await?;
            settled(shared.commit(*child, Write::Cancel).await)?;
            Ok(Some(Effect::Stopped(*child)))
        }
        Notice::Interrupt { child, cause } => {
            let write = Write::Interrupt {
                cause: Some(*cause),
                and_continue: false,
            };
            settled(shared.commit(*child, write).await)?;
            Ok(Some(Effect::Stopped(*child)))
        }
        Notice::Report { parent, ended } => {
            // Another session may be there under its id by now, which did not make this one.
            let tail = shared.store.tail(parent.session).await?;
            let stranger = |tail: &Tail| {
                tail.session.imported().is_none() && tail.session.child(&parent.key).is_none()
            };
            let made = from == outbox::child_session(parent.session, &parent.key);
            if made && tail.is_some_and(|tail| stranger(&tail)) {
                return Ok(None);
            }
            let outcome = match ended {
                Ended::Done(through) => ChildOutcome::Done(result(shared, from, *through).await?),
                Ended::Failed(error) => ChildOutcome::Failed(error.clone()),
                Ended::Cancelled => ChildOutcome::Cancelled,
                Ended::Quarantined(reason) => ChildOutcome::Quarantined(reason.clone()),
            };
            let write = report(from, &parent.key, outcome);
            let admitted = settled(shared.commit(parent.session, write).await)?;
            Ok(admitted.map(|()| Effect::Woken(parent.session, Scope::Steers)))
        }
    }
}

/// The child's result as its parent's input.
fn report(child: SessionId, key: &str, outcome: ChildOutcome) -> Write {
    Write::Admit {
        input: outbox::result_input(child),
        delivery: Delivery::Steer,
        content: InputContent::Child(ChildResult {
            key: key.into(),
            outcome,
        }),
    }
}

/// Whether a child's result has been told, so that nobody will hear from it again.
fn has_told(child: &Tail) -> bool {
    let session = &child.session;
    let owed = |notice: &Notice| matches!(notice, Notice::Report { .. });
    session.reported && !session.outbox.iter().any(owed)
}

/// Whether a child is not there any more: its parent has the result that it left.
async fn was_deleted(
    shared: &Shared,
    parent: SessionId,
    child: SessionId,
    key: &str,
) -> Result<bool, StoreError> {
    if shared.store.tail(child).await?.is_some() {
        return Ok(false);
    }
    let tail = shared.store.tail(parent).await?;
    let result = outbox::result_input(child);
    Ok(tail.is_some_and(|tail| {
        tail.session.child(key).is_some_and(|child| child.ended)
            || tail.inputs.iter().any(|input| input.id == result)
    }))
}

/// Makes a child, unless it is there.
async fn create(
    shared: &Shared,
    child: SessionId,
    agent: String,
    parent: &Parent,
) -> Result<(), StoreError> {
    if shared.store.tail(child).await?.is_some() {
        return Ok(());
    }
    let config = shared.config.get();
    let created = SessionCreated {
        resume: config
            .agents
            .get(&agent)
            .map(|agent| agent.resume)
            .unwrap_or_default(),
        agent,
        model: None,
        title: None,
        parent: Some(parent.clone()),
        forked: None,
    };
    match shared.commit(child, Write::Create(created)).await {
        // Another was first.
        Ok(_) | Err(StoreError::Refused(Refused::SessionConflict(_))) => Ok(()),
        Err(error) => Err(error),
    }
}

/// A refusal is final, unless the other session may yet come to take it: what it never takes is owed no
/// more.
fn settled<T>(done: Result<T, StoreError>) -> Result<Option<()>, StoreError> {
    match done {
        Ok(_) => Ok(Some(())),
        // A build that knows all of that session, or its adoption, is still to come.
        Err(
            error @ StoreError::Refused(Refused::NotRunnable(
                NotRunnable::Foreign(_) | NotRunnable::Imported(_),
            )),
        ) => Err(error),
        Err(StoreError::Refused(refused)) => {
            warn!(%refused, "a notice was not taken");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// What a turn that ended at `through` came to: the words of its last assistant item.
async fn result(
    shared: &Shared,
    session: SessionId,
    through: Seq,
) -> Result<Vec<Part>, StoreError> {
    const PAGE: u32 = 32;
    let mut range = Range { after: 0, through };
    loop {
        let items = shared
            .store
            .items(session, range, Order::NewestFirst, PAGE)
            .await?;
        let said = items.iter().find_map(|item| match &item.body {
            ItemBody::Assistant(said) => Some(said),
            _ => None,
        });
        if let Some(said) = said {
            let parts = said.content.iter().filter_map(|content| match content {
                Content::Text(text) => Some(Part::Text(text.clone())),
                Content::Media(media) => Some(Part::Media(media.clone())),
                _ => None,
            });
            return Ok(parts.collect());
        }
        match items.last() {
            Some(oldest) if items.len() == PAGE as usize => range.through = oldest.seq - 1,
            _ => return Ok(Vec::new()),
        }
    }
}
