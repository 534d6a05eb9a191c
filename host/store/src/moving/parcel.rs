//! A session on its way: its rows as both dialects hold them, text for text.

use mainstay_core::id::SessionId;
use serde::de::value::StrDeserializer;
use serde::de::{DeserializeOwned, IntoDeserializer as _};

use crate::rows::{Rows, SessionRow, Text, call_word, input_word};
use crate::value::{ReadError, unsigned};

/// Bytes of rows that are written at once, or a little more.
const PIECE: usize = 4 << 20;

/// All rows of a session.
pub struct Parcel {
    pub(crate) session: SessionId,
    pub(crate) row: SessionRow,
    /// Execution, owner and value.
    pub(crate) claim: Option<(Text, Text, Text)>,
    pub(crate) rows: Rows,
}

impl Parcel {
    #[must_use]
    pub fn session(&self) -> SessionId {
        self.session
    }

    /// How many events it has.
    #[must_use]
    pub fn events(&self) -> u64 {
        self.rows.events.len() as u64
    }

    /// The rows in parts that a statement can hold, in the order in which they are to be written: a
    /// result must find its call.
    pub(crate) fn pieces(&self) -> Vec<Rows> {
        let mut pieces = vec![Rows::default()];
        let mut room = PIECE;
        cut(
            &mut pieces,
            &mut room,
            &self.rows.calls,
            |row| row.4.len(),
            |rows| &mut rows.calls,
        );
        cut(
            &mut pieces,
            &mut room,
            &self.rows.events,
            |row| row.8.len(),
            |rows| &mut rows.events,
        );
        cut(
            &mut pieces,
            &mut room,
            &self.rows.inputs,
            |row| row.5.len(),
            |rows| &mut rows.inputs,
        );
        cut(
            &mut pieces,
            &mut room,
            &self.rows.items,
            |row| row.5.len(),
            |rows| &mut rows.items,
        );
        cut(
            &mut pieces,
            &mut room,
            &self.rows.steps,
            |_| 0,
            |rows| &mut rows.steps,
        );
        cut(
            &mut pieces,
            &mut room,
            &self.rows.executions,
            |_| 0,
            |rows| &mut rows.executions,
        );
        pieces
    }
}

fn cut<T: Clone>(
    pieces: &mut Vec<Rows>,
    room: &mut usize,
    all: &[T],
    text: impl Fn(&T) -> usize,
    of: impl Fn(&mut Rows) -> &mut Vec<T>,
) {
    /// What a row takes beside its value.
    const FRAME: usize = 256;
    for row in all {
        let bytes = text(row) + FRAME;
        if bytes > *room {
            pieces.push(Rows::default());
            *room = PIECE.max(bytes);
        }
        *room -= bytes;
        of(pieces.last_mut().expect("there is always one")).push(row.clone());
    }
}

/// An event's row as it is written, from how it is read.
pub(crate) fn event(row: crate::value::EventRow) -> crate::rows::EventRow {
    let (session, seq, id, kind, version, at, execution, recovery, data, compacted) = row;
    let version = u32::try_from(version).unwrap_or(u32::MAX);
    (
        session,
        unsigned(seq),
        id,
        kind,
        version,
        unsigned(at),
        execution,
        recovery,
        data,
        compacted,
    )
}

pub(crate) fn input_status(session: SessionId, text: &str) -> Result<&'static str, ReadError> {
    known_word(session, "input", input_word, text)
}

pub(crate) fn call_status(session: SessionId, text: &str) -> Result<&'static str, ReadError> {
    known_word(session, "call", call_word, text)
}

/// The word that a status has in both dialects.
fn known_word<Status: DeserializeOwned>(
    session: SessionId,
    what: &str,
    word: fn(Status) -> &'static str,
    text: &str,
) -> Result<&'static str, ReadError> {
    let read: StrDeserializer<serde::de::value::Error> = text.into_deserializer();
    let status = Status::deserialize(read);
    status.map(word).map_err(|_| ReadError::Damaged {
        session,
        cause: format!("{what}: its status is {text:?}"),
    })
}
