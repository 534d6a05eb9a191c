//! Queries. The names are those of the queries in every dialect; each is one statement, and so one
//! snapshot.

use mainstay_core::claim::Claim;
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{EventId, InputId, Millis, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::port::{Dump, Listed};
use mainstay_core::tail::{Call, Execution, Input, Origin, Session, StepRow, Tail};
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::statement::Statement;
use crate::value::{
    self, EventRow, Read, ReadError, claim_row, id, item, parse, record, session_id, session_row,
    signed, unsigned,
};

/// Types that this build does not know, each as `type/version`; `None` where there are none.
pub(super) type Unknown = Option<Vec<String>>;

/// The first event of a session that this build does not know: its seq, type and version.
pub(super) type Foreign = Option<(i64, String, i64)>;

// session_load: see the migration.
pub(super) fn session_load(
    session: SessionId,
    at: Option<i64>,
    events: &[EventId],
    inputs: &[InputId],
    held: Option<(Seq, Seq)>,
) -> Statement {
    Statement::new("SELECT * FROM session_load($1, $2, $3, $4, $5, $6)")
        .bind(session.0)
        .bind(at)
        .bind(some(events.iter().map(|id| id.0)))
        .bind(some(inputs.iter().map(|id| id.0)))
        .bind(held.map(|(first, _)| signed(first)))
        .bind(held.map(|(_, last)| signed(last)))
}

/// Ids, or null for none.
pub(super) fn some(ids: impl Iterator<Item = Uuid>) -> Option<Vec<Uuid>> {
    let ids: Vec<Uuid> = ids.collect();
    (!ids.is_empty()).then_some(ids)
}

/// What [`session_load`] found.
pub(super) struct Loaded {
    pub(super) now: Millis,
    /// How many types of events the database has.
    pub(super) kinds: i64,
    /// `None` where there is no such session.
    pub(super) version: Option<i64>,
    pub(super) stale: bool,
    pub(super) events: Vec<Record>,
    pub(super) inputs: Vec<Input>,
    pub(super) held: Vec<Record>,
    row: LoadRow,
}

/// The row of [`session_load`], which also comes as JSON with the answer to a commit.
#[derive(serde::Deserialize, sqlx::FromRow)]
struct LoadRow {
    o_now: i64,
    o_kinds: i64,
    o_version: Option<i64>,
    o_stale: Option<bool>,
    o_id: Option<String>,
    o_created_at: Option<i64>,
    o_updated_at: Option<i64>,
    o_head: Option<i64>,
    o_data: Option<String>,
    o_claim: Option<String>,
    o_expires_at: Option<i64>,
    o_pending: Vec<String>,
    o_step: Option<String>,
    o_events: Option<String>,
    o_inputs: Option<String>,
    o_held: Option<String>,
}

impl Loaded {
    pub(super) fn read(session: SessionId, row: &PgRow) -> Read<Self> {
        Self::of(session, sqlx::FromRow::from_row(row)?)
    }

    /// As the answer to a commit has it.
    pub(super) fn told(session: SessionId, json: &str) -> Read<Self> {
        Self::of(session, parse(session, "session", json)?)
    }

    fn of(session: SessionId, row: LoadRow) -> Read<Self> {
        let records = |rows: &Option<String>| records(session, rows.as_deref());
        let inputs: Vec<(String, String)> = row
            .o_inputs
            .as_deref()
            .map_or(Ok(Vec::new()), |rows| parse(session, "inputs", rows))?;
        let inputs = inputs
            .iter()
            .map(|(session, data)| parse(session_id(session)?, "input", data));
        Ok(Self {
            now: unsigned(row.o_now),
            kinds: row.o_kinds,
            version: row.o_version,
            stale: row.o_stale.unwrap_or(false),
            events: records(&row.o_events)?,
            inputs: inputs.collect::<Read<_>>()?,
            held: records(&row.o_held)?,
            row,
        })
    }

    /// The live end of a session that exists.
    pub(super) fn tail(&self, session: SessionId, foreign: Foreign) -> Read<Tail> {
        let row = &self.row;
        let (seq, kind, version) = parted(foreign);
        let there = || sqlx::Error::RowNotFound;
        let columns = (
            row.o_id.clone().ok_or_else(there)?,
            row.o_created_at.ok_or_else(there)?,
            row.o_updated_at.ok_or_else(there)?,
            row.o_head.ok_or_else(there)?,
            row.o_data.clone().ok_or_else(there)?,
            seq,
            kind,
            version,
        );
        let steps = row.o_step.as_deref();
        let steps = steps.map_or(Ok(Vec::new()), |rows| parse(session, "step", rows))?;
        let claim = row.o_claim.as_deref();
        let mut tail = value::tail(session, columns, claim, &row.o_pending, steps)?;
        expiry(&mut tail.claim, row.o_expires_at);
        Ok(tail)
    }

    /// A tail that was made from the log, with what no event tells, the claim and where the session was
    /// imported from, and with the text of what is pending, of which the log may have stubs.
    pub(super) fn apart_from_log(&self, session: SessionId, mut tail: Tail) -> Read<Tail> {
        #[derive(serde::Deserialize)]
        struct Kept {
            #[serde(default)]
            origin: Option<Origin>,
            #[serde(default)]
            compacted_through: Seq,
        }
        let row = &self.row;
        let data = row.o_data.as_deref().ok_or(sqlx::Error::RowNotFound)?;
        let kept: Kept = parse(session, "session", data)?;
        tail.session.origin = kept.origin;
        tail.session.compacted_through = kept.compacted_through;
        let claim = row.o_claim.as_deref();
        tail.claim = claim
            .map(|claim| parse(session, "claim", claim))
            .transpose()?;
        let pending = row.o_pending.iter();
        let inputs = pending.map(|data| parse(session, "input", data));
        tail.inputs = inputs.collect::<Read<_>>()?;
        Ok(tail)
    }
}

fn parted(foreign: Foreign) -> (Option<i64>, Option<String>, Option<i64>) {
    match foreign {
        Some((seq, kind, version)) => (Some(seq), Some(kind), Some(version)),
        None => (None, None, None),
    }
}

fn expiry(claim: &mut Option<Claim>, expires_at: Option<i64>) {
    if let (Some(claim), Some(at)) = (claim, expires_at) {
        claim.expires_at = unsigned(at);
    }
}

/// Events that came as one JSON array of rows.
fn records(session: SessionId, rows: Option<&str>) -> Read<Vec<Record>> {
    let Some(rows) = rows else {
        return Ok(Vec::new());
    };
    let rows: Vec<EventRow> = parse(session, "events", rows)?;
    rows.into_iter().map(record).collect()
}

// kind_list
pub(super) fn kind_list() -> Statement {
    Statement::new("SELECT type, version FROM kind")
}

// foreign_find: the first event of a session that has one of these types.
pub(super) fn foreign_find(session: SessionId, unknown: Vec<String>) -> Statement {
    Statement::new(
        "SELECT seq, type, version FROM event
          WHERE session = $1 AND type || '/' || version = ANY ($2) ORDER BY seq LIMIT 1",
    )
    .bind(session.0)
    .bind(unknown)
}

// event_page: with no event, one row that has the head alone.
pub(super) fn event_page(session: SessionId, after: Seq, limit: i64) -> Statement {
    Statement::new(
        "SELECT s.head, e.session::text, e.seq, e.id::text, e.type, e.version, e.at,
                e.execution::text, e.recovery::text, e.data, e.compacted
           FROM session s
           LEFT JOIN LATERAL (
                SELECT * FROM event WHERE session = s.id AND seq > $2 ORDER BY seq LIMIT $3) e ON true
          WHERE s.id = $1 ORDER BY e.seq",
    )
    .bind(session.0)
    .bind(signed(after))
    .bind(limit)
}

pub(super) fn event_rows(rows: &[PgRow]) -> Read<Option<(Vec<Record>, Seq)>> {
    let Some(first) = rows.first() else {
        return Ok(None);
    };
    let head: i64 = first.try_get(0)?;
    if first.try_get::<Option<i64>, _>(2)?.is_none() {
        return Ok(Some((Vec::new(), unsigned(head))));
    }
    let events = rows.iter().map(|row| record(event_row(row, 1)?));
    Ok(Some((events.collect::<Read<_>>()?, unsigned(head))))
}

pub(super) fn event_row(row: &PgRow, first: usize) -> Result<EventRow, sqlx::Error> {
    Ok((
        row.try_get(first)?,
        row.try_get(first + 1)?,
        row.try_get(first + 2)?,
        row.try_get(first + 3)?,
        row.try_get(first + 4)?,
        row.try_get(first + 5)?,
        row.try_get(first + 6)?,
        row.try_get(first + 7)?,
        row.try_get(first + 8)?,
        row.try_get(first + 9)?,
    ))
}

// item_page
pub(super) fn item_page(session: SessionId, range: Range, order: Order, limit: u32) -> Statement {
    let sql = match order {
        Order::OldestFirst => {
            "SELECT data FROM item
              WHERE session = $1 AND seq > $2
                AND seq <= least($3, (SELECT shown FROM session WHERE id = $1))
              ORDER BY seq, n LIMIT $4"
        }
        Order::NewestFirst => {
            "SELECT data FROM item
              WHERE session = $1 AND seq > $2
                AND seq <= least($3, (SELECT shown FROM session WHERE id = $1))
              ORDER BY seq DESC, n DESC LIMIT $4"
        }
    };
    Statement::new(sql)
        .bind(session.0)
        .bind(signed(range.after))
        .bind(signed(range.through))
        .bind(i64::from(limit))
}

pub(super) fn item_rows(session: SessionId, rows: &[PgRow]) -> Read<Vec<Item>> {
    let rows = rows.iter();
    rows.map(|row| item(session, row.try_get(0)?)).collect()
}

// item_measure: what is summed up at the end of the range, less what is before it.
pub(super) fn item_measure(session: SessionId, range: Range) -> Statement {
    Statement::new(
        "SELECT coalesce(last.items_to, 0) - coalesce(before.items_to, 0),
                coalesce(last.bytes_to, 0) - coalesce(before.bytes_to, 0)
           FROM (SELECT least($3, (SELECT shown FROM session WHERE id = $1)) AS through) AS range
           LEFT JOIN LATERAL (
                SELECT items_to, bytes_to FROM item WHERE session = $1 AND seq <= range.through
                 ORDER BY seq DESC, n DESC LIMIT 1) AS last ON true
           LEFT JOIN LATERAL (
                SELECT items_to, bytes_to FROM item WHERE session = $1 AND seq <= $2
                 ORDER BY seq DESC, n DESC LIMIT 1) AS before ON true",
    )
    .bind(session.0)
    .bind(signed(range.after))
    .bind(signed(range.through))
}

pub(super) fn size(row: &PgRow) -> Read<Size> {
    Ok(Size {
        items: unsigned(row.try_get(0)?),
        bytes: unsigned(row.try_get(1)?),
    })
}

// input_list
pub(super) fn input_list(session: SessionId, all: bool) -> Statement {
    Statement::new(if all {
        "SELECT data FROM input WHERE session = $1 ORDER BY seq"
    } else {
        "SELECT data FROM input WHERE session = $1 AND status = 'pending' ORDER BY seq"
    })
    .bind(session.0)
}

pub(super) fn input_rows(session: SessionId, rows: &[PgRow]) -> Read<Vec<Input>> {
    let rows = rows.iter();
    rows.map(|row| parse(session, "input", row.try_get(0)?))
        .collect()
}

// session_list
pub(super) fn session_list(
    before: Option<(Millis, SessionId)>,
    limit: u32,
    unknown: Unknown,
) -> Statement {
    let (at, id) = before.map_or((i64::MAX, Uuid::max()), |(at, id)| (signed(at), id.0));
    Statement::new(
        "SELECT s.id::text, s.created_at, s.updated_at, s.head, s.data, f.seq, f.type, f.version,
                c.data, c.expires_at, s.runnable AND f.seq IS NULL,
                (SELECT count(*) FROM input i WHERE i.session = s.id AND i.status = 'pending')
           FROM session s
           LEFT JOIN claim c ON c.session = s.id
           LEFT JOIN LATERAL (
                SELECT e.seq, e.type, e.version FROM event e
                 WHERE $4::text[] IS NOT NULL
                   AND e.session = s.id AND e.type || '/' || e.version = ANY ($4)
                 ORDER BY e.seq LIMIT 1) f ON true
          WHERE (s.created_at, s.id) < ($1, $2)
          ORDER BY s.created_at DESC, s.id DESC LIMIT $3",
    )
    .bind(at)
    .bind(id)
    .bind(i64::from(limit))
    .bind(unknown)
}

pub(super) fn listed(row: &PgRow) -> Read<Listed> {
    let (session, claim) = session_and_claim(row)?;
    Ok(Listed {
        claim,
        session,
        runnable: row.try_get(10)?,
        pending_inputs: unsigned(row.try_get(11)?),
    })
}

/// A session and its claim, from the first ten columns.
fn session_and_claim(row: &PgRow) -> Read<(Session, Option<Claim>)> {
    let session = session_row((
        row.try_get(0)?,
        row.try_get(1)?,
        row.try_get(2)?,
        row.try_get(3)?,
        row.try_get(4)?,
        row.try_get(5)?,
        row.try_get(6)?,
        row.try_get(7)?,
    ))?;
    let mut claim = claim_row(&session, row.try_get(8)?)?;
    expiry(&mut claim, row.try_get(9)?);
    Ok((session, claim))
}

// step_open: the events that began the open steps.
pub(super) fn step_open() -> Statement {
    Statement::new(
        "SELECT e.session::text, e.seq, e.id::text, e.type, e.version, e.at, e.execution::text,
                e.recovery::text, e.data, e.compacted
           FROM session s JOIN event e ON e.session = s.id AND e.seq = s.step WHERE s.stepping",
    )
}

pub(super) fn steps(rows: &[PgRow]) -> Read<Vec<Record>> {
    let rows = rows.iter();
    rows.map(|row| record(event_row(row, 0)?)).collect()
}

// session_dump: everything of a session. Items too that a revert hides.
pub(super) fn session_dump(session: SessionId, unknown: Unknown) -> Statement {
    Statement::new(
        "SELECT s.id::text, s.created_at, s.updated_at, s.head, s.data, f.seq, f.type, f.version,
                c.data, c.expires_at,
                (SELECT json_agg(json_build_array(e.session, e.seq, e.id, e.type, e.version, e.at,
                                                  e.execution, e.recovery, e.data, e.compacted)
                                 ORDER BY e.seq)
                   FROM event e WHERE e.session = s.id)::text,
                ARRAY(SELECT i.data FROM item i WHERE i.session = s.id ORDER BY i.seq, i.n),
                ARRAY(SELECT i.data FROM input i WHERE i.session = s.id ORDER BY i.seq),
                ARRAY(SELECT k.data FROM call k WHERE k.session = s.id),
                (SELECT json_agg(json_build_array(t.seq, t.started_at, t.settled_at, t.runner,
                                                  t.provider, t.usage) ORDER BY t.seq)
                   FROM step t WHERE t.session = s.id)::text,
                (SELECT json_agg(json_build_array(x.id, x.owner, x.started, x.ended, x.terminal)
                                 ORDER BY x.started, x.id)
                   FROM execution x WHERE x.session = s.id)::text
           FROM session s
           LEFT JOIN claim c ON c.session = s.id
           LEFT JOIN LATERAL (
                SELECT e.seq, e.type, e.version FROM event e
                 WHERE $2::text[] IS NOT NULL
                   AND e.session = s.id AND e.type || '/' || e.version = ANY ($2)
                 ORDER BY e.seq LIMIT 1) f ON true
          WHERE s.id = $1",
    )
    .bind(session.0)
    .bind(unknown)
}

type StepColumns = (
    u64,
    u64,
    Option<u64>,
    String,
    Option<String>,
    Option<String>,
);
type ExecutionColumns = (String, String, u64, Option<u64>, Option<String>);

pub(super) fn dump(session: SessionId, row: &PgRow) -> Read<Dump> {
    fn each<T>(row: &PgRow, column: usize, read: impl Fn(&str) -> Read<T>) -> Read<Vec<T>> {
        let texts: Vec<String> = row.try_get(column)?;
        texts.iter().map(|text| read(text)).collect()
    }
    let (value, claim) = session_and_claim(row)?;
    let events: Option<String> = row.try_get(10)?;
    let mut calls: Vec<Call> = each(row, 13, |text| parse(session, "call", text))?;
    calls.sort_by(|a, b| (a.step, &a.id).cmp(&(b.step, &b.id)));
    let steps: Option<String> = row.try_get(14)?;
    let steps: Vec<StepColumns> =
        steps.map_or(Ok(Vec::new()), |rows| parse(session, "step", &rows))?;
    let executions: Option<String> = row.try_get(15)?;
    let executions: Vec<ExecutionColumns> =
        executions.map_or(Ok(Vec::new()), |rows| parse(session, "execution", &rows))?;
    Ok(Dump {
        events: records(session, events.as_deref())?,
        session: Some(value),
        claim,
        items: each(row, 11, |text| item(session, text))?,
        inputs: each(row, 12, |text| parse(session, "input", text))?,
        steps: steps
            .into_iter()
            .map(|columns| step(session, columns))
            .collect::<Read<_>>()?,
        calls,
        executions: executions
            .into_iter()
            .map(|columns| execution(session, columns))
            .collect::<Read<_>>()?,
    })
}

fn step(session: SessionId, columns: StepColumns) -> Read<StepRow> {
    let (seq, started_at, settled_at, runner, provider, usage) = columns;
    Ok(StepRow {
        session,
        seq,
        started_at,
        settled_at,
        runner: parse(session, "step", &runner)?,
        provider,
        usage: usage
            .map(|usage| parse(session, "step", &usage))
            .transpose()?,
    })
}

fn execution(session: SessionId, columns: ExecutionColumns) -> Read<Execution> {
    let (execution, owner, started, ended, terminal) = columns;
    Ok(Execution {
        id: id(session, "execution", &execution)?,
        session,
        owner: id(session, "owner", &owner)?,
        started,
        ended,
        terminal,
    })
}

// store_name: given by the first migration.
pub(super) fn store_name() -> Statement {
    Statement::new("SELECT value FROM meta WHERE key = 'name'")
}

// session_scan: see the migration.
pub(super) fn session_scan(
    scanner: Uuid,
    (limit, places): (u32, u32),
    at: Option<i64>,
    hold: i64,
    unknown: Unknown,
) -> Statement {
    Statement::new("SELECT * FROM session_scan($1, $2, $3, $4, $5, $6)")
        .bind(scanner)
        .bind(i64::from(limit))
        .bind(i64::from(places))
        .bind(at)
        .bind(hold)
        .bind(unknown)
}

/// A claim that a scan found. One that this build cannot read is a newer build's.
pub(super) fn expired(row: &PgRow) -> Read<Option<Claim>> {
    let data: String = row.try_get("o_claim")?;
    let session = SessionId(row.try_get("o_session")?);
    let mut claim = match parse(session, "claim", &data) {
        Ok(claim) => Some(claim),
        Err(ReadError::Damaged { session, cause }) => {
            tracing::warn!(%session, %cause, "an expired claim cannot be read");
            None
        }
        Err(error) => return Err(error),
    };
    expiry(&mut claim, row.try_get("o_expires_at")?);
    Ok(claim)
}

pub(super) fn foreign_row(row: &PgRow) -> Read<(i64, String, i64)> {
    Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?))
}

// event_raw: events of a session, whether or not it has a row.
pub(super) fn event_raw(session: SessionId, after: Seq, limit: i64) -> Statement {
    Statement::new(
        "SELECT session::text, seq, id::text, type, version, at, execution::text, recovery::text, data,
                compacted
           FROM event WHERE session = $1 AND seq > $2 ORDER BY seq LIMIT $3",
    )
    .bind(session.0)
    .bind(signed(after))
    .bind(limit)
}

/// An event with its seq. What cannot be read is told in words.
pub(super) fn event_or_not(session: SessionId, row: &PgRow) -> Read<(Seq, Result<Record, String>)> {
    let columns = event_row(row, 0)?;
    let seq = unsigned(columns.1);
    Ok(match record(columns) {
        Ok(record) => (seq, Ok(Record { session, ..record })),
        Err(ReadError::Damaged { cause, .. }) => (seq, Err(cause)),
        Err(error) => return Err(error),
    })
}
