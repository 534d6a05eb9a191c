//! Import: another store's events, taken as they are through the same projections, with no hooks, wakes
//! or executions. What comes is judged record by record; the valid prefix stays and the answer says
//! how far it got, so that an import that broke off goes on where it stopped.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::commit::{Applied, Known, Refused, Reply};
use crate::event::{DecodeError, Event, EventBody, Record};
use crate::id::{EventId, ExecutionId, InputId, Seq, SessionId};
use crate::project::{self, RuleBroken};
use crate::rebuild::Rows;
use crate::stub;
use crate::tail::{Changes, Origin, Tail};

/// Events of one session of another store, in the order of their seqs.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The name of that store.
    pub origin: String,
    /// A session of another origin is refused; where not strict, it is skipped.
    pub strict: bool,
    pub records: Vec<Record>,
    /// Rows that hold the text of records that are stubs.
    pub texts: Arc<Rows>,
}

/// How far an import got.
#[derive(Clone, Debug, PartialEq)]
pub struct Replayed {
    /// The last seq that is held now.
    pub head: Seq,
    /// Records that are new.
    pub applied: u64,
    /// Records that were held already, equal.
    pub held: u64,
    /// Records of a session that has another origin.
    pub skipped: u64,
    /// Why the rest was not taken.
    pub refused: Option<ReplayError>,
}

/// Why a record was not taken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ReplayError {
    #[error("expected seq {expected}, got {got}")]
    Gap { expected: Seq, got: Seq },
    /// The held event of this seq is another.
    #[error("diverged: seq {seq} is held with other content")]
    Diverged { seq: Seq },
    #[error("event {seq} belongs to session {session}")]
    OtherSession { seq: Seq, session: SessionId },
    #[error("event {seq} bears id {id}, which is held by seq {held}")]
    IdReused { seq: Seq, id: EventId, held: Seq },
    #[error("event {seq} admits input {input}, which session {session} holds")]
    InputReused {
        seq: Seq,
        input: InputId,
        session: SessionId,
    },
    #[error("event {seq} has type {name:?} version {version}, which this build does not know")]
    UnknownType {
        seq: Seq,
        name: String,
        version: u32,
    },
    /// It names another execution than the one that is open there, or one where none is.
    #[error("event {seq} was written by execution {execution}, which is not the open one")]
    OtherExecution { seq: Seq, execution: ExecutionId },
    #[error("event {seq} cannot stand there: {cause}")]
    Invalid { seq: Seq, cause: String },
}

/// Judges an import. See [`crate::commit::apply`].
pub(crate) fn replay(
    tail: Option<&Tail>,
    session: SessionId,
    replay: &Replay,
    known: &Known,
) -> Result<Applied, Refused> {
    if let Some(tail) = tail
        && tail.session.imported() != Some(replay.origin.as_str())
    {
        if replay.strict {
            return Err(Refused::OtherOrigin {
                session,
                held: tail.session.imported().map(str::to_owned),
                offered: replay.origin.clone(),
            });
        }
        return Ok(Applied {
            events: Vec::new(),
            changes: Changes::default(),
            reply: Reply::Replayed(Replayed {
                head: tail.session.head,
                applied: 0,
                held: 0,
                skipped: replay.records.len() as u64,
                refused: None,
            }),
            tail: tail.clone(),
        });
    }

    let mut tail = tail.cloned();
    let (mut events, mut changes) = (Vec::new(), Changes::default());
    let (mut held, mut refused) = (0, None);
    for n in 0..replay.records.len() {
        match take(&mut tail, session, replay, known, n, &mut changes) {
            Ok(Some(event)) => events.push(event),
            Ok(None) => held += 1,
            Err(error) => {
                refused = Some(error);
                break;
            }
        }
    }
    let Some(tail) = tail else {
        return Err(refused
            .unwrap_or(ReplayError::Gap {
                expected: 1,
                got: 0,
            })
            .into());
    };
    Ok(Applied {
        reply: Reply::Replayed(Replayed {
            head: tail.session.head,
            applied: events.len() as u64,
            held,
            skipped: 0,
            refused,
        }),
        events,
        tail,
        changes,
    })
}

/// Takes the record at `n` in. `None` if it was held already.
fn take(
    tail: &mut Option<Tail>,
    session: SessionId,
    replay: &Replay,
    known: &Known,
    n: usize,
    changes: &mut Changes,
) -> Result<Option<Event>, ReplayError> {
    // All before it were taken, or it would not be looked at.
    let (record, earlier) = (&replay.records[n], &replay.records[..n]);
    let seq = record.seq;
    let invalid = |cause: &str| ReplayError::Invalid {
        seq,
        cause: cause.into(),
    };
    if record.session != session {
        let session = record.session;
        return Err(ReplayError::OtherSession { seq, session });
    }
    let head = tail.as_ref().map_or(0, |tail| tail.session.head);
    if seq == 0 || seq > head + 1 {
        let expected = head + 1;
        return Err(ReplayError::Gap { expected, got: seq });
    }
    if seq <= head {
        let mut held = known.held.iter().chain(earlier);
        return match held.find(|held| held.seq == seq) {
            Some(held) if is_same(held, record) => Ok(None),
            _ => Err(ReplayError::Diverged { seq }),
        };
    }
    let mut bearers = known.events.iter().chain(earlier);
    if let Some(other) = bearers.find(|other| other.id == record.id) {
        let (id, held) = (record.id, other.seq);
        return Err(ReplayError::IdReused { seq, id, held });
    }
    let event = record.decode().map_err(|error| match error {
        DecodeError::Unknown { seq, kind, version } => ReplayError::UnknownType {
            seq,
            name: kind,
            version,
        },
        DecodeError::Damaged { seq, cause, .. } => ReplayError::Invalid { seq, cause },
    })?;
    if !says_all(&event.encode().data, &record.data) {
        return Err(invalid("its data hold a field that its type does not have"));
    }
    if event.execution.is_some() && event.recovery.is_some() {
        return Err(invalid("an execution and a recovery wrote it"));
    }
    if i64::try_from(event.at).is_err() {
        return Err(invalid("its time is out of range"));
    }
    if let EventBody::InputAdmitted { input, .. } = &event.body
        && let Some(other) = holder(known, earlier, *input)
    {
        return Err(ReplayError::InputReused {
            seq,
            input: *input,
            session: other,
        });
    }
    if let Some(execution) = event.execution
        && Some(execution) != open_for(tail.as_ref(), &event)
    {
        return Err(ReplayError::OtherExecution { seq, execution });
    }
    match tail {
        None => {
            let mut begun = project::begin(&event)
                .ok_or_else(|| invalid("a log begins with the session's creation"))?;
            begun.session.origin = Some(Origin {
                name: replay.origin.clone(),
                adopted: false,
            });
            *tail = Some(begun);
        }
        Some(before) => {
            // Judged on a copy: a record that cannot stand leaves no trace.
            let (mut after, mut more) = (before.clone(), Changes::default());
            project::project(&mut after, &event, &mut more)
                .map_err(|RuleBroken { rule, .. }| invalid(&rule))?;
            stub::fill_changes(&mut more, &replay.texts);
            if record.compacted.is_some() {
                after.session.compacted_through = seq;
            }
            // Its origin adopted it from another: that does not make it this store's own.
            after.session.origin = before.session.origin.take();
            *before = after;
            changes.extend(more);
        }
    }
    Ok(Some(event))
}

/// The execution that may have written the event: the open one, or the one that it begins.
fn open_for(tail: Option<&Tail>, event: &Event) -> Option<ExecutionId> {
    match &event.body {
        EventBody::ExecutionStarted { execution, .. } => Some(*execution),
        _ => tail.and_then(|tail| tail.session.execution),
    }
}

/// Whether a record is the held one, which was written as this build words it.
fn is_same(held: &Record, record: &Record) -> bool {
    held == record
        || is_stub_of(held, record)
        || is_stub_of(record, held)
        || (says_all(&held.data, &record.data)
            && record.decode().is_ok_and(|event| event.encode() == *held))
}

/// Whether one is what a compaction has made of the other.
fn is_stub_of(stub: &Record, whole: &Record) -> bool {
    stub.compacted.is_some()
        && stub::is_of(stub, &whole.data)
        && *stub
            == Record {
                data: stub.data.clone(),
                compacted: stub.compacted.clone(),
                ..whole.clone()
            }
}

/// Whether everything that `old` says stands in `new`. What is empty may be left out.
fn says_all(new: &Value, old: &Value) -> bool {
    match (new, old) {
        (Value::Object(new), Value::Object(old)) => {
            old.iter().all(|(name, old)| match new.get(name) {
                Some(new) => says_all(new, old),
                None => is_empty(old),
            })
        }
        (Value::Array(new), Value::Array(old)) => {
            new.len() == old.len() && new.iter().zip(old).all(|(new, old)| says_all(new, old))
        }
        _ => new == old,
    }
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(values) => values.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

/// The session that holds an input already.
fn holder(known: &Known, earlier: &[Record], input: InputId) -> Option<SessionId> {
    let held = known.inputs.iter().find(|held| held.id == input);
    let again = earlier.iter().find(|record| record.admits() == Some(input));
    held.map(|held| held.session)
        .or_else(|| again.map(|record| record.session))
}
