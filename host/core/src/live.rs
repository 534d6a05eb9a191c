//! Who is told after a commit: followers of a log, and watchers of what is not stored.
//!
//! Nothing is correct because of a message here. A follower that is told nothing polls; a watcher
//! that is slow misses live events and no stored one.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use serde::Serialize;
use tokio::sync::{broadcast, watch};

use crate::id::{Seq, SessionId};

/// Progress for watchers only. Never stored, has no seq.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum Live {
    Text {
        step: Seq,
        text: String,
    },
    Reasoning {
        step: Seq,
        text: String,
    },
    /// A call's arguments begin or go on.
    Arguments {
        step: Seq,
        call: String,
        tool: String,
        text: String,
    },
    /// A call was started.
    Started {
        step: Seq,
        call: String,
        tool: String,
    },
    Progress {
        step: Seq,
        call: String,
        message: String,
    },
}

/// What a subscriber to change hints is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Look at everything: said first, and after more changed than there was room for.
    Sweep,
    /// This session has reached this seq.
    Changed(SessionId, Seq),
}

/// Carries live events and change hints inside one process.
#[derive(Clone, Default)]
pub struct Hub {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<SessionId, Channel>,
    hints: Vec<std::sync::Weak<HintQueue>>,
}

struct Channel {
    head: watch::Sender<Seq>,
    live: broadcast::Sender<Live>,
}

/// Live events that a slow watcher may fall behind before it misses some.
const LIVE_BUFFER: usize = 1024;

impl Hub {
    /// Tells of a commit.
    pub fn committed(&self, session: SessionId, head: Seq) {
        let mut inner = self.lock();
        if let Some(channel) = inner.sessions.get(&session) {
            channel.head.send_replace(head);
        }
        inner.hints.retain(|queue| {
            queue
                .upgrade()
                .map(|queue| queue.push(session, head))
                .is_some()
        });
    }

    /// Tells of progress.
    pub fn live(&self, session: SessionId, event: Live) {
        if let Some(channel) = self.lock().sessions.get(&session) {
            // No watcher is no error.
            let _ = channel.live.send(event);
        }
    }

    /// The head of a session as far as this process has heard, and its changes.
    #[must_use]
    pub fn watch_head(&self, session: SessionId) -> watch::Receiver<Seq> {
        self.channel(session, |channel| channel.head.subscribe())
    }

    /// Live events of a session from now on.
    #[must_use]
    pub fn watch_live(&self, session: SessionId) -> broadcast::Receiver<Live> {
        self.channel(session, |channel| channel.live.subscribe())
    }

    /// Change hints across sessions, coalesced, with room for `capacity` of them.
    #[must_use]
    pub fn hints(&self, capacity: usize) -> Hints {
        let queue = Arc::new(HintQueue {
            capacity,
            state: Mutex::new(HintState {
                sweep: true,
                changed: Vec::new(),
            }),
            bell: tokio::sync::Notify::new(),
        });
        self.lock().hints.push(Arc::downgrade(&queue));
        Hints { queue }
    }

    fn channel<T>(&self, session: SessionId, take: impl FnOnce(&Channel) -> T) -> T {
        let mut inner = self.lock();
        // Channels that nobody listens to any more are dropped when another is asked for.
        inner.sessions.retain(|id, channel| {
            *id == session || channel.head.receiver_count() + channel.live.receiver_count() > 0
        });
        let channel = inner.sessions.entry(session).or_insert_with(|| Channel {
            head: watch::Sender::new(0),
            live: broadcast::Sender::new(LIVE_BUFFER),
        });
        take(channel)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct HintQueue {
    capacity: usize,
    state: Mutex<HintState>,
    bell: tokio::sync::Notify,
}

struct HintState {
    sweep: bool,
    changed: Vec<(SessionId, Seq)>,
}

impl HintQueue {
    fn push(&self, session: SessionId, head: Seq) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = state.changed.iter_mut().find(|known| known.0 == session) {
            known.1 = known.1.max(head);
        } else if state.changed.len() == self.capacity {
            state.changed.clear();
            state.sweep = true;
        } else if !state.sweep {
            state.changed.push((session, head));
        }
        drop(state);
        self.bell.notify_one();
    }
}

/// A subscription to change hints.
pub struct Hints {
    queue: Arc<HintQueue>,
}

impl Hints {
    /// The next hint; the first is [`Hint::Sweep`].
    ///
    /// # Cancel safety
    /// Safe: a dropped call has taken nothing.
    pub async fn next(&mut self) -> Hint {
        loop {
            if let Some(hint) = self.try_next() {
                return hint;
            }
            self.queue.bell.notified().await;
        }
    }

    /// The next hint, if there is one now.
    pub fn try_next(&mut self) -> Option<Hint> {
        let mut state = self
            .queue
            .state
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if std::mem::take(&mut state.sweep) {
            state.changed.clear();
            return Some(Hint::Sweep);
        }
        if state.changed.is_empty() {
            return None;
        }
        let (session, head) = state.changed.remove(0);
        Some(Hint::Changed(session, head))
    }
}
