//! Watches every commit of every process at the store, and judges the run after each: the session's
//! log and rows, the right by which it was written, and what clients were told.

use std::collections::{BTreeMap, HashMap};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use mainstay_core::claim::Claim;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::{Event, EventBody};
use mainstay_core::id::{EventId, InputId, Millis, OwnerId, Seq, SessionId};
use mainstay_core::port::{Committed, Store, StoreError};
use tokio::sync::watch;

use crate::invariant::{Broken, Log};
use crate::sim::Sim;

/// Who writes: a process, by its place and how many were there before it.
#[derive(Debug)]
pub struct Writer {
    pub node: usize,
    pub life: u32,
    /// Known once the process has started.
    pub owner: OnceLock<OwnerId>,
}

impl std::fmt::Display for Writer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "node {}.{}", self.node, self.life)
    }
}

/// The one watcher of a run.
pub struct Judge {
    sim: Arc<Sim>,
    store: Arc<dyn Store>,
    seen: Mutex<Seen>,
    broken: watch::Sender<Option<Broken>>,
}

#[derive(Default)]
struct Seen {
    logs: BTreeMap<SessionId, Log>,
    /// Where each input stands that a client was told is admitted.
    told: HashMap<InputId, (SessionId, Seq)>,
    cancelled: HashMap<InputId, SessionId>,
    timeline: Vec<Entry>,
    commits: u64,
    hash: DefaultHasher,
}

/// Something that happened, for the reader of a failure.
enum Entry {
    Commit {
        at_ms: u64,
        writer: String,
        session: SessionId,
        from: Seq,
        through: Seq,
    },
    Note {
        at_ms: u64,
        text: String,
    },
}

impl Judge {
    #[must_use]
    pub fn new(sim: Arc<Sim>, store: Arc<dyn Store>) -> Arc<Self> {
        Arc::new(Self {
            sim,
            store,
            seen: Mutex::default(),
            broken: watch::Sender::new(None),
        })
    }

    /// The store, for reads.
    #[must_use]
    pub fn store(&self) -> &dyn Store {
        &*self.store
    }

    /// Returns once something is broken.
    pub async fn failed(&self) -> Broken {
        let mut broken = self.broken.subscribe();
        let found = broken.wait_for(Option::is_some).await;
        found
            .ok()
            .and_then(|found| found.clone())
            .expect("the sender lives, and was waited for")
    }

    /// Reports what is broken. The first report counts.
    pub fn fail(&self, broken: Broken) {
        self.broken.send_if_modified(|known| {
            let first = known.is_none();
            if first {
                *known = Some(broken);
            }
            first
        });
    }

    /// Keeps words for the reader of a failure.
    pub fn note(&self, text: impl Into<String>) {
        let at_ms = self.sim.now_ms();
        let text = text.into();
        self.seen().timeline.push(Entry::Note { at_ms, text });
    }

    /// Passes a commit on, and judges what became of it. Takes no time.
    pub async fn commit(&self, writer: &Writer, commit: Commit) -> Result<Committed, StoreError> {
        let session = commit.session;
        let before = self.store.tail(session).await?;
        let claim = before.and_then(|tail| tail.claim.clone());
        let now = self.store.now().await?;
        let write = commit.write.clone();
        let committed = self.store.commit(commit).await?;
        if let Err(broken) = self.observe(writer, session, &write, claim.as_ref(), now, &committed)
        {
            self.fail(broken);
        }
        Ok(committed)
    }

    fn observe(
        &self,
        writer: &Writer,
        session: SessionId,
        write: &Write,
        claim: Option<&Claim>,
        now: Millis,
        committed: &Committed,
    ) -> Result<(), Broken> {
        let mut seen = self.seen();
        let seen = &mut *seen;
        seen.commits += 1;
        if let (Some(first), Some(last)) = (committed.events.first(), committed.events.last()) {
            seen.timeline.push(Entry::Commit {
                at_ms: self.sim.now_ms(),
                writer: writer.to_string(),
                session,
                from: first.seq,
                through: last.seq,
            });
        }
        let log = seen.logs.entry(session).or_default();
        for event in &committed.events {
            let name = (event.session, event.seq, event.id, event.at);
            name.hash(&mut seen.hash);
            log.take(event)?;
            every_event_is_written_by_right(writer, write, claim, now, event).map_err(|found| {
                Broken {
                    invariant: "every_event_is_written_by_right",
                    detail: format!("seq {} ({}): {found}", event.seq, event.body.kind()),
                }
            })?;
        }
        log.rows(&committed.tail)
    }

    /// A client was told that its input is admitted as `seq`.
    pub fn told(&self, session: SessionId, input: InputId, seq: Seq) {
        let told = *self.seen().told.entry(input).or_insert((session, seq));
        if told != (session, seq) {
            self.fail(Broken {
                invariant: "a_retry_is_answered_as_the_first_was",
                detail: format!(
                    "input {input} is seq {seq}, and was told to be seq {}",
                    told.1
                ),
            });
        }
    }

    /// A client was told that its input is taken back.
    pub fn told_cancelled(&self, session: SessionId, input: InputId) {
        self.seen().cancelled.insert(input, session);
    }

    /// Whether a call's start is written.
    pub fn has_started(&self, session: SessionId, key: &str) -> bool {
        self.seen()
            .logs
            .get(&session)
            .is_some_and(|log| log.has_started(key))
    }

    /// Judges what clients were told by the logs as the store has them now.
    ///
    /// # Errors
    /// The broken rule.
    pub fn what_was_told_durable_is_there(
        &self,
        logs: &HashMap<SessionId, Vec<Event>>,
    ) -> Result<(), Broken> {
        let seen = self.seen();
        let at = |detail: String| Broken {
            invariant: "what_was_told_durable_is_there",
            detail,
        };
        for (input, (session, seq)) in &seen.told {
            let event = logs.get(session).and_then(|log| log.get(*seq as usize - 1));
            let there = event.is_some_and(|event| {
                matches!(&event.body, EventBody::InputAdmitted { input: of, .. } if of == input)
            });
            if !there {
                return Err(at(format!(
                    "input {input} is not at seq {seq} of {session}"
                )));
            }
        }
        for (input, session) in &seen.cancelled {
            let there = logs.get(session).is_some_and(|log| {
                log.iter().any(|event| {
                    matches!(&event.body, EventBody::InputCancelled { input: of } if of == input)
                })
            });
            if !there {
                return Err(at(format!("input {input} of {session} is not cancelled")));
            }
        }
        Ok(())
    }

    /// Commits so far, and a number that two runs share if they stored the same events.
    #[must_use]
    pub fn digest(&self) -> (u64, u64) {
        let seen = self.seen();
        (seen.commits, seen.hash.finish())
    }

    /// Seqs and ids of what was committed to a session.
    #[must_use]
    pub fn ids(&self, session: SessionId) -> Vec<(Seq, EventId)> {
        let seen = self.seen();
        let events = seen.logs.get(&session).map_or(&[][..], |log| &log.events);
        events.iter().map(|event| (event.seq, event.id)).collect()
    }

    /// Events by type.
    #[must_use]
    pub fn kinds(&self) -> BTreeMap<String, u64> {
        let mut kinds = BTreeMap::new();
        for event in self.seen().logs.values().flat_map(|log| &log.events) {
            *kinds.entry(event.body.kind()).or_default() += 1;
        }
        kinds
    }

    /// What happened, a line each; the newest last. `name` gives the sessions' names.
    #[must_use]
    pub fn timeline(&self, name: impl Fn(SessionId) -> String) -> Vec<String> {
        let seen = self.seen();
        let mut lines = Vec::new();
        for entry in &seen.timeline {
            match entry {
                Entry::Note { at_ms, text } => lines.push(format!("{at_ms:>7} {text}")),
                Entry::Commit {
                    at_ms,
                    writer,
                    session,
                    from,
                    through,
                } => {
                    let events = seen.logs.get(session).map_or(&[][..], |log| &log.events);
                    let held = events
                        .iter()
                        .filter(|event| (*from..=*through).contains(&event.seq));
                    for event in held {
                        let (kind, _, data) = event.body.encode();
                        let mut data = data.to_string();
                        if data.len() > 300 {
                            let cut = (0..=300).rev().find(|at| data.is_char_boundary(*at));
                            data.truncate(cut.unwrap_or(0));
                            data.push('…');
                        }
                        lines.push(format!(
                            "{at_ms:>7} {writer} {} {:>3} {kind} {data}",
                            name(*session),
                            event.seq
                        ));
                    }
                }
            }
        }
        lines
    }

    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// An execution's events are its own process's, under a claim that holds by the store's clock; a
/// recovery's are written over a claim that has run out; a claim is taken where none stands.
fn every_event_is_written_by_right(
    writer: &Writer,
    write: &Write,
    claim: Option<&Claim>,
    now: Millis,
    event: &Event,
) -> Result<(), String> {
    let own = writer.owner.get().copied();
    match write {
        Write::Claim {
            execution, owner, ..
        } => {
            if let Some(claim) = claim {
                return Err(format!("claimed over {claim:?}"));
            }
            // It may be held back instead, and it makes a revert final before it begins.
            let beside = matches!(
                event.body,
                EventBody::SessionHeld { .. } | EventBody::RevertCommitted {}
            );
            let named = event.execution.or(beside.then_some(*execution));
            if Some(*owner) != own || named != Some(*execution) {
                return Err(format!("{writer} claims for another"));
            }
        }
        Write::Append(_) => {
            // Answers that the end leaves without a call are dropped in nobody's name.
            let dropped = matches!(event.body, EventBody::InputCancelled { .. });
            let holds = claim.is_some_and(|claim| {
                let named = event.execution.or(dropped.then_some(claim.execution));
                Some(claim.owner) == own
                    && Some(claim.execution) == named
                    && claim.expires_at > now
                    && !claim.ended
            });
            if !holds {
                return Err(format!(
                    "{writer} ({own:?}) wrote it as {:?} at {now} under {claim:?}",
                    event.execution
                ));
            }
        }
        Write::Recover { seen, .. } | Write::Quarantine { seen, .. } => {
            let dead = claim.is_some_and(|claim| {
                claim.execution == seen.execution
                    && claim.owner == seen.owner
                    && claim.expires_at <= now
            });
            if !dead || event.execution.is_some() || event.recovery.is_none() {
                return Err(format!("recovered at {now} over {claim:?}"));
            }
        }
        _ if event.execution.is_some() || event.recovery.is_some() => {
            return Err("a client wrote it in another's name".into());
        }
        _ => {}
    }
    Ok(())
}
