//! How rows become values, in every dialect: ids as text, times and seqs as signed numbers, and the
//! value itself as JSON text. What a newer build has written is read as far as it can be.

use std::collections::HashSet;

use mainstay_core::claim::Claim;
use mainstay_core::event::{Event, EventBody, Record, SessionCreated};
use mainstay_core::history::{Item, ItemBody, Other};
use mainstay_core::id::{EventId, Millis, SessionId};
use mainstay_core::port::StoreError;
use mainstay_core::project;
use mainstay_core::tail::{Input, Session, Tail};
use serde::de::DeserializeOwned;

use crate::sqlite::gc;

/// Why rows could not be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    Sql(sqlx::Error),
    Damaged { session: SessionId, cause: String },
}

impl From<sqlx::Error> for ReadError {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl ReadError {
    pub(crate) fn during(self, action: &'static str) -> StoreError {
        match self {
            Self::Sql(error) => StoreError::Unavailable {
                action,
                cause: error.into(),
            },
            Self::Damaged { session, cause } => StoreError::Damaged { session, cause },
        }
    }
}

pub(crate) type Read<T> = Result<T, ReadError>;

pub(crate) fn parse<T: DeserializeOwned>(session: SessionId, what: &str, text: &str) -> Read<T> {
    serde_json::from_str(text).map_err(|error| ReadError::Damaged {
        session,
        cause: format!("{what}: {error}"),
    })
}

pub(crate) fn id<T: std::str::FromStr<Err: std::fmt::Display>>(
    session: SessionId,
    what: &str,
    text: &str,
) -> Read<T> {
    text.parse().map_err(|error| ReadError::Damaged {
        session,
        cause: format!("{what} {text:?}: {error}"),
    })
}

pub(crate) fn session_id(text: &str) -> Read<SessionId> {
    id(SessionId(uuid::Uuid::nil()), "session id", text)
}

/// A number as it was stored: never negative.
pub(crate) fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}

/// A number for a database, whose integers are signed. One that is too large for it is as good as
/// endless.
pub(crate) fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

/// Ids as the JSON array that `json_each` takes.
pub(crate) fn json_ids<T: ToString>(ids: impl IntoIterator<Item = T>) -> String {
    let ids: Vec<String> = ids.into_iter().map(|id| id.to_string()).collect();
    serde_json::to_string(&ids).expect("strings serialise")
}

pub(crate) type EventRow = (
    String,
    i64,
    String,
    String,
    i64,
    i64,
    Option<String>,
    Option<String>,
    String,
    Option<String>,
);

pub(crate) fn record(row: EventRow) -> Read<Record> {
    let (session, seq, event, kind, version, at, execution, recovery, data, compacted) = row;
    let session = session_id(&session)?;
    let what = format!("event {seq}");
    Ok(Record {
        session,
        seq: unsigned(seq),
        id: id(session, &what, &event)?,
        kind,
        version: u32::try_from(version).unwrap_or(u32::MAX),
        at: unsigned(at),
        execution: execution
            .map(|text| id(session, &what, &text))
            .transpose()?,
        recovery: recovery.map(|text| id(session, &what, &text)).transpose()?,
        data: parse(session, &what, &data)?,
        compacted,
    })
}

/// What the row of a session is read from: its columns that everything else can do without, its data,
/// and the first event that this build does not know.
pub(crate) type SessionRow = (
    String,
    i64,
    i64,
    i64,
    String,
    Option<i64>,
    Option<String>,
    Option<i64>,
);

pub(crate) type TailRow = (
    String,
    i64,
    i64,
    i64,
    String,
    Option<i64>,
    Option<String>,
    Option<i64>,
    Option<String>,
);

pub(crate) fn parted(row: TailRow) -> (SessionRow, Option<String>) {
    let (id, created_at, updated_at, head, data, seq, kind, version, claim) = row;
    let row = (id, created_at, updated_at, head, data, seq, kind, version);
    (row, claim)
}

/// The row of a session. One that holds what this build does not know may not be readable itself; then
/// as much of it as the columns tell.
pub(crate) fn session_row(row: SessionRow) -> Read<Session> {
    let (id, created_at, updated_at, head, data, seq, kind, version) = row;
    let id = session_id(&id)?;
    let foreign = seq.zip(kind).zip(version).map(|((seq, kind), version)| {
        let version = u32::try_from(version).unwrap_or(u32::MAX);
        mainstay_core::event::foreign(unsigned(seq), &kind, version)
    });
    let mut session: Session = match parse(id, "session", &data) {
        Ok(session) => session,
        Err(error) if foreign.is_none() => return Err(error),
        Err(_) => unreadable(id, unsigned(created_at)),
    };
    session.head = unsigned(head);
    session.updated_at = unsigned(updated_at);
    session.foreign = foreign;
    Ok(session)
}

/// The row of a claim. One that a newer build wrote may not be readable.
pub(crate) fn claim_row(session: &Session, data: Option<&str>) -> Read<Option<Claim>> {
    match data
        .map(|data| parse(session.id, "claim", data))
        .transpose()
    {
        Err(_) if session.foreign.is_some() => Ok(None),
        claim => claim,
    }
}

/// An item. One of a kind that a newer build has is shown as it is stored.
pub(crate) fn item(session: SessionId, text: &str) -> Read<Item> {
    const KINDS: &[&str] = &[
        "user",
        "assistant",
        "tool_result",
        "note",
        "compaction",
        "recovered",
        "signal",
        "approval",
        "child",
        "timer",
        "other",
    ];
    let parsed = parse(session, "item", text);
    if parsed.is_ok() {
        return parsed;
    }
    let later = || {
        let value: serde_json::Value = serde_json::from_str(text).ok()?;
        let kind = value.pointer("/body/kind")?.as_str()?;
        let data = value
            .pointer("/body/data")
            .unwrap_or(&serde_json::Value::Null);
        let item = Item {
            seq: value.get("seq")?.as_u64()?,
            at: value.get("at")?.as_u64()?,
            body: ItemBody::Other(Other {
                kind: kind.into(),
                data: data.to_string(),
            }),
        };
        (!KINDS.contains(&kind)).then_some(item)
    };
    later().map_or(parsed, Ok)
}

fn unreadable(session: SessionId, at: Millis) -> Session {
    let created = Event {
        session,
        seq: 1,
        id: EventId(uuid::Uuid::nil()),
        at,
        execution: None,
        recovery: None,
        body: EventBody::SessionCreated(SessionCreated::default()),
        compacted: None,
    };
    let tail = project::begin(&created).expect("a creation begins a tail");
    tail.session
}

pub(crate) fn tail(
    session: SessionId,
    row: SessionRow,
    claim: Option<&str>,
    inputs: &[String],
    steps: Vec<EventRow>,
) -> Read<Tail> {
    let damaged = |cause| ReadError::Damaged { session, cause };
    let row = session_row(row)?;
    let claim = claim_row(&row, claim)?;
    if row.foreign.is_some() {
        // It is not run; what can be read of it is shown.
        let inputs = inputs.iter();
        let inputs = inputs.filter_map(|data| serde_json::from_str(data).ok());
        return Ok(Tail {
            session: row,
            claim,
            step: None,
            inputs: inputs.collect(),
        });
    }
    let inputs = inputs
        .iter()
        .map(|data| parse(session, "input", data))
        .collect::<Read<Vec<Input>>>()?;
    let mut events: Vec<Event> = Vec::with_capacity(steps.len());
    for step in steps {
        let event = record(step)?.decode();
        events.push(event.map_err(|error| damaged(error.to_string()))?);
    }
    Tail::load(row, claim, inputs, &events).map_err(damaged)
}

/// Digests that the beginnings of these steps name. Where a newer build keeps them is not known: of its
/// steps all that look like one.
pub(crate) fn digests_named(steps: Vec<Record>) -> HashSet<String> {
    let mut named = HashSet::new();
    for step in steps {
        match step.decode().map(|event| event.body) {
            Ok(EventBody::StepStarted(started)) => {
                named.insert(started.runner.digest.clone());
                named.extend(started.provider.iter().map(|one| one.digest.clone()));
                named.extend(started.toolboxes.iter().map(|one| one.digest.clone()));
            }
            Ok(_) => {}
            Err(_) => {
                let data = step.data.to_string();
                named.extend(gc::digests(&data).map(str::to_owned));
            }
        }
    }
    named
}
