//! What a session owes to other sessions. A commit touches one session, so whatever must reach
//! another is a [`Notice`] in the row of the one that owes it, put there by the same event that makes
//! it owed, and taken away once it has arrived. Delivering one twice does what delivering it once
//! does; therefore a crash anywhere between loses and doubles nothing.

use serde::{Deserialize, Serialize};

use crate::event::Parent;
use crate::id::{EventId, InputId, Seq, SessionId};
use crate::model::Part;

/// One thing that another session is to learn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Notice {
    /// The child is to be made and prompted.
    Spawn {
        child: SessionId,
        agent: String,
        parent: Parent,
        prompt: Vec<Part>,
    },
    /// The child is cancelled with its parent.
    Cancel { child: SessionId, parent: Parent },
    /// The child is interrupted with the parent that waits for it.
    Interrupt { child: SessionId, cause: EventId },
    /// The parent gets this child's result.
    Report { parent: Parent, ended: Ended },
}

/// How a child ended, as its own row can tell.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// The result is the last assistant item through this seq.
    Done(Seq),
    Failed(String),
    Cancelled,
    Quarantined(String),
}

/// The row of a child in its parent's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Child {
    pub key: String,
    pub session: SessionId,
    /// Its result is in the history.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub ended: bool,
}

/// The id of the child of this key: the same key never makes two.
#[must_use]
pub fn child_session(parent: SessionId, key: &str) -> SessionId {
    SessionId::derived(parent.0, &format!("child/{key}"))
}

/// The id of a child's first prompt.
#[must_use]
pub fn prompt_input(child: SessionId) -> InputId {
    InputId::derived(child.0, "prompt")
}

/// The id of the input that a child's result becomes.
#[must_use]
pub fn result_input(child: SessionId) -> InputId {
    InputId::derived(child.0, "result")
}
