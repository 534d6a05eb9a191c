//! A group of commits in the making: what they are judged by, read in the transaction that stores them,
//! and the rows that they change.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use mainstay_core::commit::{self, Applied, Commit, Known, Refused, Reply};
use mainstay_core::event::{Event, Record};
use mainstay_core::id::{EventId, InputId, SessionId};
use mainstay_core::port::{Committed, StoreError};
use mainstay_core::tail::{Changes, Input, Tail};
use rusqlite::{Connection, Error, Row, params};

use super::Shared;
use super::direct::{rows, unreadable};
use super::group::{ACTION, Answer};
use super::read::{self, Tails, signed};
use crate::rows::Rows;
use crate::value::{EventRow, parse, record, session_id};

/// An event whose id a later commit may bring again.
enum Held {
    Stored(Record),
    /// Of this group: its seq, and its place among the rows.
    New(u64, usize),
}

/// Each commit builds on those before it.
pub(super) struct Judge {
    pub(super) tails: HashMap<SessionId, Arc<Tail>>,
    damaged: HashMap<SessionId, String>,
    inputs: HashMap<InputId, Input>,
    events: HashMap<EventId, Held>,
    /// Events of sessions that are imported, by session and seq.
    held: HashMap<SessionId, BTreeMap<u64, Record>>,
    pub(super) rows: Rows,
}

impl Judge {
    /// Reads what these commits are judged by, and is not in memory; with `look`, whether the ids of their
    /// events are held, too.
    pub(super) fn load(
        db: &Connection,
        shared: &Shared,
        commits: &[Commit],
        look: bool,
    ) -> Result<Self, Error> {
        let mut judge = Self {
            tails: HashMap::new(),
            damaged: HashMap::new(),
            inputs: HashMap::new(),
            events: HashMap::new(),
            held: HashMap::new(),
            rows: Rows::default(),
        };
        let sessions: HashSet<SessionId> = commits.iter().map(|commit| commit.session).collect();
        let mut missing = Vec::new();
        {
            let mut cache = shared.cache();
            for session in sessions {
                match cache.get(session) {
                    Some(tail) => drop(judge.tails.insert(session, tail)),
                    None => missing.push(session),
                }
            }
        }
        if !missing.is_empty() {
            for (session, tail) in tails(db, &missing)? {
                match tail {
                    Ok(tail) => drop(judge.tails.insert(session, Arc::new(tail))),
                    Err(cause) => drop(judge.damaged.insert(session, cause)),
                }
            }
        }
        for commit in commits {
            if let Some(seqs) = commit.replayed() {
                let held = event_held(db, commit.session, seqs)?;
                let known = judge.held.entry(commit.session).or_default();
                known.extend(held.into_iter().map(|record| (record.seq, record)));
            }
            for id in commit.input().into_iter().chain(commit.replayed_inputs()) {
                if let Some(input) = input_known(db, id)? {
                    judge.inputs.insert(id, input);
                }
            }
            // An execution's ids are hardly ever held: it is judged as if they were not.
            if look || commit.replayed().is_some() {
                judge.look(db, commit)?;
            }
        }
        Ok(judge)
    }

    /// Looks the events up that bear the commit's ids. False if there are none.
    pub(super) fn look(&mut self, db: &Connection, commit: &Commit) -> Result<bool, Error> {
        let mut found = false;
        for id in commit.event_ids() {
            if !self.events.contains_key(&id)
                && let Some(record) = event_known(db, id)?
            {
                self.events.insert(id, Held::Stored(record));
                found = true;
            }
        }
        Ok(found)
    }

    /// The first event of these whose id is held, and where: in the database, or earlier among them.
    pub(super) fn clash(
        db: &Connection,
        events: &[Event],
    ) -> Result<Option<(EventId, u64)>, Error> {
        let mut own = HashMap::new();
        for event in events {
            if let Some(held) = event_known(db, event.id)? {
                return Ok(Some((event.id, held.seq)));
            }
            if let Some(seq) = own.insert(event.id, event.seq) {
                return Ok(Some((event.id, seq)));
            }
        }
        Ok(None)
    }

    /// The event that bears an id already.
    fn held_by(&self, id: EventId) -> Option<Record> {
        match self.events.get(&id)? {
            Held::Stored(record) => Some(record.clone()),
            Held::New(_, row) => {
                let record = record(as_read(&self.rows.events[*row]));
                Some(record.expect("it was written from an event"))
            }
        }
    }

    /// Judges one, and takes in what it changes.
    pub(super) fn judge(&mut self, commit: &Commit, now: u64) -> Answer {
        let session = commit.session;
        if let Some(cause) = self.damaged.get(&session) {
            return Err(StoreError::Damaged {
                session,
                cause: cause.clone(),
            });
        }
        let mut seen = HashSet::new();
        let ids = commit.event_ids().into_iter().filter(|id| seen.insert(*id));
        let known = Known {
            input: commit.input().and_then(|id| self.inputs.get(&id).cloned()),
            events: ids.filter_map(|id| self.held_by(id)).collect(),
            held: self
                .held
                .get(&session)
                .map(|held| held.values().cloned().collect())
                .unwrap_or_default(),
            inputs: commit
                .replayed_inputs()
                .iter()
                .filter_map(|id| self.inputs.get(id).cloned())
                .collect(),
        };
        let before = self.tails.get(&session);
        // It is pure: a bug that one commit runs into takes nothing with it, least of all the writer.
        let judged = catch_unwind(AssertUnwindSafe(|| {
            commit::apply(before.map(Arc::as_ref), commit, &known, now)
        }));
        let Ok(judged) = judged else {
            let cause = "judging it panicked; this is a bug".into();
            return Err(StoreError::Unavailable {
                action: ACTION,
                cause,
            });
        };
        let Applied {
            events,
            tail,
            changes,
            reply,
        } = judged?;

        let mut new = HashMap::new();
        for event in &events {
            let held = match self.events.get(&event.id) {
                Some(Held::Stored(held)) => Some(held.seq),
                Some(Held::New(seq, _)) => Some(*seq),
                None => new.insert(event.id, event.seq),
            };
            if let Some(seq) = held {
                return Err(Refused::EventConflict { id: event.id, seq }.into());
            }
        }
        let same_claim = before.is_some_and(|before| before.claim == tail.claim);
        if events.is_empty() && same_claim && changes == Changes::default() {
            let tail = before.cloned().unwrap_or_else(|| Arc::new(tail));
            return Ok(Committed {
                events,
                tail,
                reply,
            });
        }
        let rows = self.rows.events.len()..;
        self.rows.add(session, &events, &changes);
        if !same_claim {
            self.rows.claims.insert(session);
        }
        if let Some(held) = self.held.get_mut(&session) {
            held.extend(events.iter().map(|event| (event.seq, event.encode())));
        }
        let new = events.iter().zip(rows);
        self.events
            .extend(new.map(|(event, row)| (event.id, Held::New(event.seq, row))));
        self.inputs
            .extend(changes.inputs.into_iter().map(|input| (input.id, input)));
        let tail = Arc::new(tail);
        self.tails.insert(session, tail.clone());
        debug_assert!(
            !matches!(reply, Reply::Duplicate { .. }),
            "a duplicate writes nothing"
        );
        Ok(Committed {
            events,
            tail,
            reply,
        })
    }
}

/// A row that is to be written as it will be read.
fn as_read(row: &crate::rows::EventRow) -> EventRow {
    let (session, seq, id, kind, version, at, execution, recovery, data, compacted) = row.clone();
    let version = i64::from(version);
    let (seq, at) = (signed(seq), signed(at));
    (
        session, seq, id, kind, version, at, execution, recovery, data, compacted,
    )
}

fn event_row(row: &Row<'_>) -> Result<EventRow, Error> {
    row.try_into()
}

fn event_known(db: &Connection, id: EventId) -> Result<Option<Record>, Error> {
    let found = rows(db, read::EVENT_KNOWN, [id.to_string()], event_row)?.pop();
    found.map(record).transpose().map_err(unreadable)
}

fn event_held(
    db: &Connection,
    session: SessionId,
    (first, last): (u64, u64),
) -> Result<Vec<Record>, Error> {
    let params = params![session.to_string(), signed(first), signed(last)];
    let found = rows(db, read::EVENT_HELD, params, event_row)?;
    let records = found.into_iter().map(record).collect::<Result<_, _>>();
    records.map_err(unreadable)
}

fn input_known(db: &Connection, id: InputId) -> Result<Option<Input>, Error> {
    let row = |row: &Row<'_>| Ok((row.get(0)?, row.get(1)?));
    let found: Option<(String, String)> = rows(db, read::INPUT_KNOWN, [id.to_string()], row)?.pop();
    let input = |(session, data): (String, String)| parse(session_id(&session)?, "input", &data);
    found.map(input).transpose().map_err(unreadable)
}

pub(super) fn tails(db: &Connection, sessions: &[SessionId]) -> Result<Tails, Error> {
    let ids = read::json_ids(sessions);
    let found = rows(db, read::TAIL_SESSION, [&ids], |row| row.try_into())?;
    let inputs = rows(db, read::TAIL_INPUTS, [&ids], |row| {
        Ok((row.get(0)?, row.get(1)?))
    })?;
    let steps = rows(db, read::TAIL_STEP, [&ids], event_row)?;
    Ok(read::put_together(found, inputs, steps))
}
