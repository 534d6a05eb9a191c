//! The nodes of a store, as each tells of itself. Every process start has a row, which it writes with
//! the renewal of its claims; the store's clock tells which of them still lives. Nothing is decided by
//! a row that a claim decides: it says whom to ask, how much each has to do, and who is to drain.

use std::collections::HashSet;

use serde::{Deserialize, Serialize};

use crate::claim::Fence;
use crate::id::{ExecutionId, Millis, OwnerId};
use crate::port::StoreError;

/// Who a node is, the same from its start to its end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub owner: OwnerId,
    /// Of its build.
    pub version: String,
    /// Where its server answers, if it has one.
    pub address: Option<String>,
    /// What its machine is called.
    pub host: Option<String>,
    /// Its process on that machine.
    pub pid: Option<u32>,
}

impl Default for Identity {
    /// A fresh owner in this process, which answers nowhere.
    fn default() -> Self {
        Self {
            owner: OwnerId::new(),
            version: env!("CARGO_PKG_VERSION").into(),
            address: None,
            host: None,
            pid: Some(std::process::id()),
        }
    }
}

/// What a node says of itself with a renewal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Presence {
    pub identity: Identity,
    /// Executions that it takes at most.
    pub capacity: u32,
    /// Executions that it has.
    pub load: u32,
    /// It takes no more.
    pub draining: bool,
    /// It has ended, and says so.
    pub stopped: bool,
}

/// One renewal: of claims, and of the row of the node that holds them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Beat {
    pub owner: OwnerId,
    /// Claims that are renewed; those of other owners are not.
    pub executions: Vec<Fence>,
    /// How long both last from now on, by the store's clock.
    pub lease_ms: u64,
    /// `None` leaves the row as it is.
    pub presence: Option<Presence>,
}

/// What a renewal gave.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Beaten {
    /// Executions whose claims were renewed; the others are lost.
    pub renewed: HashSet<ExecutionId>,
    /// Somebody asked this node to drain.
    pub drain: bool,
    /// The store's time, where there was anything to say it with.
    pub now: Option<Millis>,
}

/// The row of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRow {
    pub identity: Identity,
    pub capacity: u32,
    /// As of its last renewal.
    pub load: u32,
    /// Claims that name it now, expired ones too.
    pub claims: u64,
    pub started_at: Millis,
    /// Its last renewal.
    pub seen_at: Millis,
    /// Without another it is gone then.
    pub expires_at: Millis,
    /// It said so of itself.
    pub draining: bool,
    /// Somebody asked for it.
    pub drain_asked: bool,
    pub stopped_at: Option<Millis>,
}

/// What became of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    Live,
    /// It takes no new claim, or will not from its next renewal on.
    Draining,
    /// It ended and said so.
    Stopped,
    /// It has not renewed its row within its lease.
    Gone,
}

impl NodeRow {
    /// The row that a renewal leaves, where `before` was there.
    #[must_use]
    pub fn beaten(before: Option<&Self>, presence: &Presence, lease_ms: u64, now: Millis) -> Self {
        let stopped = presence.stopped.then_some(now);
        Self {
            identity: presence.identity.clone(),
            capacity: presence.capacity,
            load: presence.load,
            claims: 0,
            started_at: before.map_or(now, |row| row.started_at),
            seen_at: now,
            expires_at: now.saturating_add(lease_ms),
            draining: presence.draining,
            drain_asked: before.is_some_and(|row| row.drain_asked),
            // What was under way when it ended may come in behind its end.
            stopped_at: before.and_then(|row| row.stopped_at).or(stopped),
        }
    }

    /// What became of it by this time of the store.
    #[must_use]
    pub fn state(&self, now: Millis) -> NodeState {
        if self.stopped_at.is_some() {
            NodeState::Stopped
        } else if self.expires_at <= now {
            NodeState::Gone
        } else if self.draining || self.drain_asked {
            NodeState::Draining
        } else {
            NodeState::Live
        }
    }

    /// Since when it has not been there.
    #[must_use]
    pub fn ended_at(&self, now: Millis) -> Option<Millis> {
        self.stopped_at
            .or_else(|| (self.expires_at <= now).then_some(self.expires_at))
    }
}

/// Why a node was not asked to drain.
#[derive(Debug, thiserror::Error)]
pub enum DrainError {
    #[error("there is no node {0}")]
    Unknown(OwnerId),
    #[error("node {0} is gone: it has not renewed its claims within its lease")]
    Gone(OwnerId),
    #[error("node {0} has stopped")]
    Stopped(OwnerId),
    #[error("node {0} drains already")]
    Draining(OwnerId),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// What waits for a recovery loop, by the store's clock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lag {
    /// Claims past their expiry, those of the first [`Lag::MOST`].
    pub expired: u64,
    /// Milliseconds since the oldest of them expired.
    pub oldest_expired_ms: Option<u64>,
    /// Runnable sessions without a claim, those of the first [`Lag::MOST`].
    pub due: u64,
    /// Milliseconds since the oldest of them last changed.
    pub oldest_due_ms: Option<u64>,
}

impl Lag {
    /// Rows of a kind that are counted.
    pub const MOST: u32 = 1024;
}

#[cfg(test)]
mod tests {
    use super::*;

    fn presence(draining: bool, stopped: bool) -> Presence {
        Presence {
            identity: Identity::default(),
            capacity: 8,
            load: 2,
            draining,
            stopped,
        }
    }

    #[test]
    fn node_7_a_node_is_gone_with_its_lease() {
        let row = NodeRow::beaten(None, &presence(false, false), 100, 1_000);
        assert_eq!((row.started_at, row.seen_at), (1_000, 1_000));
        assert_eq!(row.state(1_099), NodeState::Live);
        assert_eq!(row.ended_at(1_099), None);
        assert_eq!(row.state(1_100), NodeState::Gone);
        assert_eq!(row.ended_at(5_000), Some(1_100));
        let again = NodeRow::beaten(Some(&row), &presence(true, false), 100, 2_000);
        assert_eq!((again.started_at, again.seen_at), (1_000, 2_000));
        assert_eq!(again.state(2_000), NodeState::Draining);
    }

    #[test]
    fn a_stopped_node_stays_stopped() {
        let row = NodeRow::beaten(None, &presence(true, true), 100, 1_000);
        assert_eq!(row.state(1_000), NodeState::Stopped);
        let late = NodeRow::beaten(Some(&row), &presence(true, false), 100, 1_001);
        assert_eq!(late.state(1_001), NodeState::Stopped);
        assert_eq!(late.ended_at(9_000), Some(1_000));
    }
}
