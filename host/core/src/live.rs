//! Who is told after a commit: followers of a log, and watchers of what is not stored.
//!
//! Nothing is correct because of a message here. A follower that is told nothing polls; a watcher
//! that is slow misses live events and no stored one. What runs at another node is watched through a
//! [`Relay`], if somebody carries its messages.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use tokio::sync::{broadcast, watch};

use crate::id::{Seq, SessionId};
use crate::tail::Tail;

/// Progress for watchers only. Never stored, has no seq.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
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

/// A live event as a watcher meets it.
#[derive(Clone, Debug, PartialEq)]
pub struct Watched {
    pub event: Live,
    /// Of a session that runs elsewhere: the last seq that was stored when it happened. It comes late to
    /// who has met a later output of its step, which holds it already.
    pub after: Option<Seq>,
}

impl Watched {
    /// Whether it comes late, given the seqs of the newest outputs that were met, by their steps.
    #[must_use]
    pub fn is_late(&self, outputs: &HashMap<Seq, Seq>) -> bool {
        let (Some(after), Some(step)) = (self.after, self.event.output_of()) else {
            return false;
        };
        outputs.get(&step).is_some_and(|met| *met > after)
    }
}

impl Live {
    /// The step whose stored output will hold it.
    fn output_of(&self) -> Option<Seq> {
        match self {
            Self::Text { step, .. }
            | Self::Reasoning { step, .. }
            | Self::Arguments { step, .. } => Some(*step),
            Self::Started { .. } | Self::Progress { .. } => None,
        }
    }

    /// Takes in what comes right behind it, if the two are one.
    fn join(&mut self, next: &Self) -> bool {
        match (self, next) {
            (
                Self::Text { step, text },
                Self::Text {
                    step: of,
                    text: more,
                },
            )
            | (
                Self::Reasoning { step, text },
                Self::Reasoning {
                    step: of,
                    text: more,
                },
            ) if step == of => {
                text.push_str(more);
                true
            }
            (
                Self::Arguments {
                    step, call, text, ..
                },
                Self::Arguments {
                    step: of,
                    call: by,
                    text: more,
                    ..
                },
            ) if step == of && call == by => {
                text.push_str(more);
                true
            }
            _ => false,
        }
    }
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
    /// Rings when a session is watched that was not, and when there is something for others.
    watches: Arc<tokio::sync::Notify>,
    outgoing: Arc<tokio::sync::Notify>,
}

#[derive(Default)]
struct Inner {
    sessions: HashMap<SessionId, Channel>,
    hints: Vec<std::sync::Weak<HintQueue>>,
    /// Sessions that others watch.
    wanted: HashMap<SessionId, Wanted>,
    /// What they are to be told, oldest first.
    out: Vec<Relayed>,
}

struct Channel {
    head: watch::Sender<Seq>,
    /// Told of each commit that may have left the session with nothing to do.
    rest: watch::Sender<()>,
    live: broadcast::Sender<Watched>,
}

/// Others watch a session.
struct Wanted {
    until: Instant,
    /// What was stored of it last, if anything was since they began.
    head: Option<Seq>,
}

/// A live event on its way to another node.
#[derive(Clone, Debug, PartialEq)]
pub struct Relayed {
    pub session: SessionId,
    pub watched: Watched,
}

/// Live events that a slow watcher may fall behind before it misses some.
const LIVE_BUFFER: usize = 1024;
/// How long others are told of a session after they last asked.
const WANTED_FOR: Duration = Duration::from_secs(15);
/// Live events that may wait to be carried to others.
const RELAY_BUFFER: usize = 4096;

impl Hub {
    /// Tells of a commit of this process.
    pub fn wrote(&self, tail: &Tail) {
        let rests = tail.claim.is_none() && !tail.is_runnable();
        self.tell(tail.session.id, tail.session.head, rests);
    }

    /// Tells of a commit of which no more is known.
    pub fn committed(&self, session: SessionId, head: Seq) {
        self.tell(session, head, true);
    }

    fn tell(&self, session: SessionId, head: Seq, may_rest: bool) {
        let mut inner = self.lock();
        if let Some(channel) = inner.sessions.get(&session) {
            channel.head.send_replace(head);
            if may_rest {
                channel.rest.send_replace(());
            }
        }
        if let Some(wanted) = inner.wanted.get_mut(&session) {
            wanted.head = wanted.head.max(Some(head));
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
        let mut inner = self.lock();
        if let Some(wanted) = inner.wanted.get(&session)
            && wanted.until > Instant::now()
            && (wanted.head.is_some() || event.output_of().is_none())
        {
            let after = wanted.head;
            inner.relay(session, &event, after);
            self.outgoing.notify_one();
        }
        if let Some(channel) = inner.sessions.get(&session) {
            // No watcher is no error.
            let _ = channel.live.send(Watched { event, after: None });
        }
    }

    /// The way to and from other nodes.
    #[must_use]
    pub fn relay(&self) -> Relay {
        Relay(self.clone())
    }

    /// The head of a session as far as this process has heard, and its changes.
    #[must_use]
    pub fn watch_head(&self, session: SessionId) -> watch::Receiver<Seq> {
        self.channel(session, |channel| channel.head.subscribe())
    }

    /// Changes with each commit, as far as this process has heard, that may have left the session without
    /// a claim and without work.
    #[must_use]
    pub(crate) fn watch_rest(&self, session: SessionId) -> watch::Receiver<()> {
        self.channel(session, |channel| channel.rest.subscribe())
    }

    /// Live events of a session from now on.
    #[must_use]
    pub fn watch_live(&self, session: SessionId) -> broadcast::Receiver<Watched> {
        let watched = self.channel(session, |channel| channel.live.subscribe());
        self.watches.notify_one();
        watched
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
            let heard = channel.head.receiver_count() + channel.rest.receiver_count();
            *id == session || heard + channel.live.receiver_count() > 0
        });
        let channel = inner.sessions.entry(session).or_insert_with(|| Channel {
            head: watch::Sender::new(0),
            rest: watch::Sender::new(()),
            live: broadcast::Sender::new(LIVE_BUFFER),
        });
        take(channel)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn relay(&mut self, session: SessionId, event: &Live, after: Option<Seq>) {
        let last = self
            .out
            .iter_mut()
            .rev()
            .find(|last| last.session == session);
        if let Some(last) = last
            && last.watched.after == after
            && last.watched.event.join(event)
        {
            return;
        }
        // Whoever carries them is far behind: what is stored tells it all.
        if self.out.len() == RELAY_BUFFER {
            self.out.clear();
        }
        let event = event.clone();
        let watched = Watched { event, after };
        self.out.push(Relayed { session, watched });
    }
}

/// What somebody needs who carries live events between nodes. It says which sessions are watched here,
/// takes in which are watched elsewhere, and carries events both ways. Messages may be lost.
pub struct Relay(Hub);

impl Relay {
    /// Waits until a session is watched here that maybe was not.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn rung(&self) {
        self.0.watches.notified().await;
    }

    /// The sessions that are watched here.
    #[must_use]
    pub fn watched(&self) -> Vec<SessionId> {
        let inner = self.0.lock();
        let watched = |channel: &Channel| channel.live.receiver_count() > 0;
        let sessions = inner.sessions.iter();
        sessions
            .filter(|(_, channel)| watched(channel))
            .map(|(session, _)| *session)
            .collect()
    }

    /// Another node watches these sessions, for a while.
    pub fn wants(&self, sessions: impl IntoIterator<Item = SessionId>) {
        let mut inner = self.0.lock();
        let now = Instant::now();
        inner.wanted.retain(|_, wanted| wanted.until > now);
        for session in sessions {
            let until = now + WANTED_FOR;
            let wanted = inner.wanted.entry(session);
            let wanted = wanted.or_insert(Wanted { until, head: None });
            wanted.until = until;
        }
    }

    /// Waits until there is something for other nodes. Take it with [`Relay::take`].
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn outgoing(&self) {
        self.0.outgoing.notified().await;
    }

    /// What other nodes are to be told by now, oldest first.
    #[must_use]
    pub fn take(&self) -> Vec<Relayed> {
        std::mem::take(&mut self.0.lock().out)
    }

    /// Another node tells what happens to a session that runs there.
    pub fn heard(&self, Relayed { session, watched }: Relayed) {
        if let Some(channel) = self.0.lock().sessions.get(&session) {
            let _ = channel.live.send(watched);
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Live {
        Live::Text {
            step: 5,
            text: text.into(),
        }
    }

    #[tokio::test]
    async fn what_others_watch_is_carried_in_few_pieces_and_never_told_twice() {
        let (here, there) = (Hub::default(), Hub::default());
        let session = SessionId::new();
        let mut watcher = there.watch_live(session);
        let (to, from) = (here.relay(), there.relay());
        from.rung().await;
        here.live(session, text("nobody wants it"));
        assert_eq!(to.take(), []);
        to.wants(from.watched());
        // Whether it is stored already is not known before something is.
        here.live(session, text("which seq it comes after is not known"));
        here.committed(session, 6);
        for word in ["a", "b"] {
            here.live(session, text(word));
        }
        here.committed(session, 7);
        here.live(session, text("c"));
        to.outgoing().await;
        let taken = to.take();
        let at = |after, words: &str| Relayed {
            session,
            watched: Watched {
                event: text(words),
                after: Some(after),
            },
        };
        assert_eq!(taken, [at(6, "ab"), at(7, "c")]);
        for relayed in taken {
            from.heard(relayed);
        }
        // The output that was stored as 7 held what came after 6.
        let met = HashMap::from([(5, 7)]);
        assert!(watcher.recv().await.unwrap().is_late(&met));
        assert!(!watcher.recv().await.unwrap().is_late(&met));
        // What runs here is told as it comes, whatever was met.
        there.live(session, text("own"));
        assert!(!watcher.recv().await.unwrap().is_late(&met));
        drop(watcher);
        assert_eq!(from.watched(), []);
    }
}
