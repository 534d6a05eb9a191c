//! What events of one session mean for its parent and its children: spawned, told, cancelled.

use super::step::close_step;
use crate::id::{Millis, Seq};
use crate::outbox::{self, Child, Ended, Notice};
use crate::plugin::{Condition, SpawnRefusal, Trigger};
use crate::tail::{Changes, Tail};

pub(super) fn spawn(
    tail: &mut Tail,
    seq: Seq,
    at: Millis,
    children: &[crate::plugin::Child],
    refused: Option<SpawnRefusal>,
    changes: &mut Changes,
) {
    tail.session.trigger = match refused {
        Some(limit) => Trigger::SpawnRefused(limit),
        None => Trigger::Spawned,
    };
    for child in children.iter().filter(|_| refused.is_none()) {
        // The same key never makes two children.
        if tail.session.child(&child.key).is_some() {
            continue;
        }
        let session = outbox::child_session(tail.session.id, &child.key);
        let parent = parent_of(tail, &child.key);
        tail.session.children.push(Child {
            key: child.key.clone(),
            session,
            ended: false,
        });
        tail.session.outbox.push(Notice::Spawn {
            child: session,
            agent: child
                .agent
                .clone()
                .unwrap_or_else(|| tail.session.agent.clone()),
            parent,
            prompt: child.prompt.clone(),
        });
    }
    close_step(tail, seq, at, changes);
}

fn parent_of(tail: &Tail, key: &str) -> crate::event::Parent {
    crate::event::Parent {
        session: tail.session.id,
        key: key.into(),
        depth: tail.session.depth() + 1,
    }
}

/// The parent learns once how a child ended.
pub(super) fn report(tail: &mut Tail, ended: Ended) {
    if let Some(parent) = tail
        .session
        .parent
        .clone()
        .filter(|_| !tail.session.reported)
    {
        tail.session.reported = true;
        tail.session.outbox.push(Notice::Report { parent, ended });
    }
}

/// A cancelled session's children go with it, those included that are not made yet.
pub(super) fn cancel_children(tail: &mut Tail) {
    tail.session
        .outbox
        .retain(|notice| matches!(notice, Notice::Report { .. }));
    let notices: Vec<Notice> = tail
        .session
        .children
        .iter()
        .map(|child| Notice::Cancel {
            child: child.session,
            parent: parent_of(tail, &child.key),
        })
        .collect();
    tail.session.outbox.extend(notices);
}

/// Those that the session waits for stop with it; others run on.
pub(super) fn interrupt_children(tail: &mut Tail, cause: crate::id::EventId) {
    let session = &mut tail.session;
    let until = session.wait.iter().flat_map(|wait| &wait.until);
    let keys: Vec<&String> = until
        .filter_map(|condition| match condition {
            Condition::Children(keys) => Some(keys),
            _ => None,
        })
        .flatten()
        .collect();
    let waited = session
        .children
        .iter()
        .filter(|child| !child.ended && keys.contains(&&child.key));
    let notices: Vec<Notice> = waited
        .map(|child| Notice::Interrupt {
            child: child.session,
            cause,
        })
        .collect();
    session.outbox.extend(notices);
}
