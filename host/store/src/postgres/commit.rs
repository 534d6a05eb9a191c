//! How a commit gets into the database. It is judged here, by [`commit::apply`], against the session's
//! tail, and stored by one statement that first makes sure that the tail is still the one it was judged
//! by. Where it is not, its answer says what is so instead, and the commit is judged again. So an append
//! under a live claim takes one round trip, and what was not written here last takes two.
//!
//! A tail that is kept in memory may be out of date. Only the statement tells: so a commit that is
//! refused, or writes nothing, by such a tail is judged again by what the database has.
//!
//! When the connection is lost, nobody knows whether the statement took effect. Its events' ids tell:
//! they are looked up before the commit is judged again. A statement that is still under way somewhere
//! finds another version than its own, or the next one does.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use mainstay_core::commit::{self, Applied, Commit, Known, Refused, Reply, Write};
use mainstay_core::event::{Event, Record};
use mainstay_core::id::{EventId, Millis, Seq, SessionId};
use mainstay_core::port::{Committed, StoreError};
use mainstay_core::tail::{Changes, Tail};

use super::PostgresStore;
use super::read::Loaded;
use super::trouble::Kind;
use super::window;
use super::write::{self, Outcome};
use crate::rows::Rows;

const ACTION: &str = "commit";
/// How often ids may turn out to be held by others that then are not found.
const MOST_CLASHES: u32 = 5;

/// What a commit is judged by.
struct Basis {
    tail: Option<Arc<Tail>>,
    version: Option<i64>,
    now: Millis,
    /// What the database had a moment ago; `None` for a tail that was kept.
    found: Option<Loaded>,
}

impl Basis {
    fn of((found, tail): (Loaded, Option<Tail>)) -> Self {
        Self {
            tail: tail.map(Arc::new),
            version: found.version,
            now: found.now,
            found: Some(found),
        }
    }
}

/// A commit that was judged and is to be stored.
struct Judged {
    committed: Committed,
    changes: Changes,
    rows: Rows,
}

/// What to do with a commit that was judged.
enum Verdict {
    Store(Box<Judged>),
    /// Nothing is to be stored.
    Answer(Result<Committed, StoreError>),
    /// The tail was only a guess.
    Look,
}

impl PostgresStore {
    pub(super) async fn commit_one(&self, commit: &Commit) -> Result<Committed, StoreError> {
        let session = commit.session;
        let _turn = self.cache.turn(session).await;
        let mut patience = self.pool.patience();
        // What may have been stored, unknown to us.
        let mut tried: Vec<Committed> = Vec::new();
        // Ids that others seem to hold.
        let mut suspects: Vec<EventId> = Vec::new();
        let (mut look, mut stale, mut clashes) = (commit.replayed().is_some(), 0_u32, 0_u32);
        // What a commit that came too late was told.
        let mut told: Option<Basis> = None;
        loop {
            let kept = told.take();
            let kept = kept.or_else(|| if look { None } else { self.kept(commit) });
            let basis = match kept {
                Some(basis) => basis,
                None => {
                    let ids = commit
                        .event_ids()
                        .into_iter()
                        .chain(suspects.iter().copied());
                    self.look(commit, ids.collect()).await?
                }
            };
            if let Some(found) = &basis.found
                && let Some(n) = tried.iter().position(|one| is_stored(one, found))
            {
                let stored = tried.swap_remove(n);
                self.count(&stored);
                return Ok(stored);
            }
            let Judged {
                committed,
                changes,
                rows,
            } = match self.judge(commit, &basis) {
                Verdict::Store(judged) => *judged,
                Verdict::Answer(answer) => {
                    if answer.is_ok() {
                        self.counters.commits.fetch_add(1, Ordering::Relaxed);
                    }
                    if let (Some(tail), Some(version)) = (&basis.tail, basis.version) {
                        let claim = tail.claim.as_ref().map(|claim| claim.execution);
                        self.windows.keep_of(session, claim);
                        self.cache.keep(session, tail.clone(), version);
                    }
                    return answer;
                }
                Verdict::Look => {
                    look = true;
                    continue;
                }
            };
            let lost = self.pool.lost();
            let kinds = self.kinds.unkept(write::kinds(&rows), &self.pool);
            let statement = write::session_commit(
                commit,
                basis.version,
                self.clock.at(),
                basis.tail.as_deref(),
                &committed.tail,
                &rows,
                &kinds,
            );
            self.counters.writes.fetch_add(1, Ordering::Relaxed);
            // Whatever happens now, what was kept is no longer known to be right.
            self.cache.forget(session);
            let window = self.windows.take(session);
            look = true;
            let answer = match self.pool.once(&statement).await {
                Ok(rows) => {
                    let row = rows.first().ok_or(sqlx::Error::RowNotFound);
                    let answer = row.and_then(write::outcome);
                    Ok(answer.map_err(|cause| self.pool.trouble(cause).during(ACTION))?)
                }
                Err(trouble) if trouble.kind() == Kind::Fenced => Ok((Outcome::Stale(None), None)),
                Err(trouble) => Err(trouble),
            };
            match answer {
                Ok((outcome, now)) => {
                    if let Some(now) = now {
                        self.clock.saw(now);
                    }
                    match outcome {
                        Outcome::Done {
                            version,
                            expires_at,
                            names,
                        } => {
                            self.names.heard(names);
                            self.kinds.wrote(kinds, lost);
                            let stored = settled(committed, expires_at);
                            self.cache.keep(session, stored.tail.clone(), version);
                            let window = window::followed(window, commit, &stored.tail, &changes);
                            self.windows.put(session, window);
                            self.count(&stored);
                            return Ok(stored);
                        }
                        Outcome::Stale(load) => {
                            self.windows.put(session, window);
                            self.counters.stale.fetch_add(1, Ordering::Relaxed);
                            stale += 1;
                            if stale > 1 {
                                if !patience.wait().await {
                                    return Err(contended(ACTION, session));
                                }
                            } else if let Some(load) = load
                                && commit.replayed().is_none()
                                && tried.is_empty()
                                && suspects.is_empty()
                            {
                                let load = self.told(ACTION, session, &load).await?;
                                told = load.map(Basis::of);
                            }
                        }
                        Outcome::Busy => {
                            self.windows.put(session, window);
                            if !patience.wait().await {
                                return Err(contended(ACTION, session));
                            }
                        }
                    }
                }
                Err(trouble) => match trouble.kind() {
                    Kind::Held if basis.found.is_none() => {}
                    Kind::Held if clashes < MOST_CLASHES => {
                        clashes += 1;
                        suspects.extend(committed.events.iter().map(|event| event.id));
                    }
                    Kind::Gone => {
                        suspects.extend(committed.events.iter().map(|event| event.id));
                        tried.push(committed);
                        if !patience.wait().await {
                            return Err(trouble.during(ACTION));
                        }
                    }
                    Kind::Crossed if patience.wait().await => {}
                    _ => return Err(trouble.during(ACTION)),
                },
            }
        }
    }

    /// What is known without a look: a tail that was kept, and of a session that is to be made that most
    /// likely there is none.
    fn kept(&self, commit: &Commit) -> Option<Basis> {
        let (tail, version) = match self.cache.get(commit.session) {
            Some((tail, version)) => (Some(tail), Some(version)),
            None if matches!(commit.write, Write::Create(_)) => (None, None),
            None => return None,
        };
        Some(Basis {
            tail,
            version,
            now: self.clock.estimate()?,
            found: None,
        })
    }

    async fn look(&self, commit: &Commit, events: Vec<EventId>) -> Result<Basis, StoreError> {
        let session = commit.session;
        let inputs = commit.input().into_iter().chain(commit.replayed_inputs());
        let inputs: Vec<_> = inputs.collect();
        self.counters.loads.fetch_add(1, Ordering::Relaxed);
        let (found, tail) = self
            .load(ACTION, session, &events, &inputs, commit.replayed())
            .await?;
        Ok(Basis::of((found, tail)))
    }

    fn judge(&self, commit: &Commit, basis: &Basis) -> Verdict {
        let known = basis.found.as_ref().map(|found| known(commit, found));
        let known = known.unwrap_or_default();
        let before = basis.tail.as_deref();
        // It is pure: a bug that one commit runs into takes nothing with it.
        let judged = catch_unwind(AssertUnwindSafe(|| {
            commit::apply(before, commit, &known, basis.now)
        }));
        let answer = |answer| match basis.found {
            Some(_) => Verdict::Answer(answer),
            None => Verdict::Look,
        };
        let Applied {
            events,
            tail,
            changes,
            reply,
        } = match judged {
            Ok(Ok(applied)) => applied,
            Ok(Err(refused)) => return answer(Err(refused.into())),
            Err(_) => {
                return Verdict::Answer(Err(StoreError::Unavailable {
                    action: ACTION,
                    cause: "judging it panicked; this is a bug".into(),
                }));
            }
        };
        if let Some(conflict) = conflict(&events, basis.found.as_ref()) {
            return answer(Err(conflict.into()));
        }
        let same_claim = before.is_some_and(|before| before.claim == tail.claim);
        if events.is_empty() && same_claim && changes == Changes::default() {
            let tail = basis.tail.clone().unwrap_or_else(|| Arc::new(tail));
            return answer(Ok(Committed {
                events,
                tail,
                reply,
            }));
        }
        let mut rows = Rows::default();
        rows.add(commit.session, &events, &changes);
        Verdict::Store(Box::new(Judged {
            committed: Committed {
                events,
                tail: Arc::new(tail),
                reply,
            },
            changes,
            rows,
        }))
    }

    fn count(&self, stored: &Committed) {
        self.counters.commits.fetch_add(1, Ordering::Relaxed);
        let events = stored.events.len() as u64;
        self.counters.events.fetch_add(events, Ordering::Relaxed);
        if let Some(last) = stored.events.last() {
            self.board.wrote(last.session, last.seq);
        }
    }
}

fn known(commit: &Commit, found: &Loaded) -> Known {
    let input = |id| found.inputs.iter().find(|input| input.id == id).cloned();
    let mut seen = std::collections::HashSet::new();
    let ids = commit.event_ids().into_iter().filter(|id| seen.insert(*id));
    Known {
        input: commit.input().and_then(input),
        events: ids
            .filter_map(|id| found.events.iter().find(|record| record.id == id).cloned())
            .collect(),
        held: found.held.clone(),
        inputs: commit
            .replayed_inputs()
            .into_iter()
            .filter_map(input)
            .collect(),
    }
}

/// The first new event whose id is another's already.
fn conflict(events: &[Event], found: Option<&Loaded>) -> Option<Refused> {
    let held = found.iter().flat_map(|found| &found.events);
    let mut taken: Vec<(EventId, Seq)> = held.map(|held| (held.id, held.seq)).collect();
    for event in events {
        if let Some((id, seq)) = taken.iter().find(|(id, _)| *id == event.id) {
            return Some(Refused::EventConflict { id: *id, seq: *seq });
        }
        taken.push((event.id, event.seq));
    }
    None
}

/// Whether a commit that was tried is among what was found. One without events changes only the claim,
/// and may be done again.
fn is_stored(tried: &Committed, found: &Loaded) -> bool {
    let Some(first) = tried.events.first() else {
        return false;
    };
    let stored = |record: &Record| {
        record.id == first.id && record.session == first.session && record.seq == first.seq
    };
    found.events.iter().any(stored)
}

/// With the expiry that the database gave the claim.
fn settled(mut committed: Committed, expires_at: Option<Millis>) -> Committed {
    let Some(at) = expires_at else {
        return committed;
    };
    if committed
        .tail
        .claim
        .as_ref()
        .is_some_and(|claim| claim.expires_at != at)
        && let Some(claim) = &mut Arc::make_mut(&mut committed.tail).claim
    {
        claim.expires_at = at;
    }
    if let Reply::Claimed(claim) = &mut committed.reply {
        claim.expires_at = at;
    }
    committed
}

pub(super) fn contended(action: &'static str, session: SessionId) -> StoreError {
    StoreError::Unavailable {
        action,
        cause: format!("others kept writing to session {session}; try again").into(),
    }
}
