//! Import: another store's events, taken as they are through the same projections, with no hooks, wakes
//! or executions. What comes is judged record by record; the valid prefix stays and the answer says
//! how far it got, so that an import that broke off goes on where it stopped.

use serde::{Deserialize, Serialize};

use crate::commit::{Applied, Known, Refused, Reply};
use crate::event::{DecodeError, EventBody, Record};
use crate::id::{EventId, InputId, Seq, SessionId};
use crate::project::{self, RuleBroken};
use crate::tail::{Changes, Origin, Tail};

/// Events of one session of another store, in the order of their seqs.
#[derive(Clone, Debug, PartialEq)]
pub struct Replay {
    /// The name of that store.
    pub origin: String,
    /// A session of another origin is refused; where not strict, it is skipped.
    pub strict: bool,
    pub records: Vec<Record>,
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
    for record in &replay.records {
        match take(&mut tail, session, replay, known, record, &mut changes) {
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

/// Takes one record in. `None` if it was held already.
fn take(
    tail: &mut Option<Tail>,
    session: SessionId,
    replay: &Replay,
    known: &Known,
    record: &Record,
    changes: &mut Changes,
) -> Result<Option<crate::event::Event>, ReplayError> {
    let seq = record.seq;
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
        return match known.held.iter().find(|held| held.seq == seq) {
            Some(held) if held == record => Ok(None),
            _ => Err(ReplayError::Diverged { seq }),
        };
    }
    let bears = |other: &&Record| other.id == record.id;
    let earlier = replay.records.iter().take_while(|other| *other != record);
    if let Some(other) = known.events.iter().chain(earlier).find(bears) {
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
    if let EventBody::InputAdmitted { input, .. } = &event.body
        && let Some(other) = known.inputs.iter().find(|other| other.id == *input)
    {
        return Err(ReplayError::InputReused {
            seq,
            input: *input,
            session: other.session,
        });
    }
    match tail {
        None => {
            let mut begun = project::begin(&event).ok_or_else(|| ReplayError::Invalid {
                seq,
                cause: "a log begins with the session's creation".into(),
            })?;
            begun.session.origin = Some(Origin {
                name: replay.origin.clone(),
                adopted: false,
            });
            *tail = Some(begun);
        }
        Some(before) => {
            // Judged on a copy: a record that cannot stand leaves no trace.
            let (mut after, mut more) = (before.clone(), Changes::default());
            project::project(&mut after, &event, &mut more).map_err(
                |RuleBroken { seq, rule, .. }| ReplayError::Invalid { seq, cause: rule },
            )?;
            *before = after;
            changes.extend(more);
        }
    }
    Ok(Some(event))
}
