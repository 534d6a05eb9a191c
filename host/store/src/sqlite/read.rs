//! Queries. The names are those of the queries in every dialect.

use std::collections::HashMap;

use mainstay_core::claim::Claim;
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Millis, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::plugin::Kind;
use mainstay_core::port::{Alias, Dump, Listed};
use mainstay_core::tail::{Call, Execution, Input, StepRow, Tail};
use sqlx::sqlite::SqliteRow;
use sqlx::{FromRow as _, Row as _, SqliteConnection};

use crate::value::{
    EventRow, Read, TailRow, claim_row, id, item, parse, parted, record, session_id, session_row,
    tail,
};
pub(super) use crate::value::{ReadError, json_ids, signed, unsigned};

// event_page
const EVENT_PAGE: &str = "
    SELECT session, seq, id, type, version, at, execution, recovery, data, compacted
      FROM event WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?";

pub(super) async fn event_page(
    conn: &mut SqliteConnection,
    session: SessionId,
    after: Seq,
    limit: u32,
) -> Read<Option<(Vec<Record>, Seq)>> {
    let head: Option<i64> = sqlx::query_scalar("SELECT head FROM session WHERE id = ?")
        .bind(session.to_string())
        .fetch_optional(&mut *conn)
        .await?;
    let Some(head) = head else { return Ok(None) };
    let rows: Vec<EventRow> = sqlx::query_as(EVENT_PAGE)
        .bind(session.to_string())
        .bind(signed(after))
        .bind(limit)
        .fetch_all(conn)
        .await?;
    Ok(Some((
        rows.into_iter().map(record).collect::<Read<_>>()?,
        unsigned(head),
    )))
}

// event_known: the event that bears this id.
pub(super) const EVENT_KNOWN: &str = "
    SELECT session, seq, id, type, version, at, execution, recovery, data, compacted
      FROM event WHERE id = ?";

// event_held: events of a session between two seqs, both included.
pub(super) const EVENT_HELD: &str = "
    SELECT session, seq, id, type, version, at, execution, recovery, data, compacted
      FROM event WHERE session = ? AND seq >= ? AND seq <= ?";

// input_known: the input of this id, whichever session holds it.
pub(super) const INPUT_KNOWN: &str = "SELECT session, data FROM input WHERE id = ?";

// alias_list: names of kinds that another build knows are for that one.
const ALIAS_LIST: &str = "SELECT kind, alias, digest, source FROM alias ORDER BY kind, alias";

pub(super) async fn alias_list(conn: &mut SqliteConnection) -> Read<Vec<Alias>> {
    let rows: Vec<(String, String, String, Option<String>)> =
        sqlx::query_as(ALIAS_LIST).fetch_all(conn).await?;
    let known = |(kind, alias, digest, source): (String, _, _, _)| {
        let kinds = [Kind::Runner, Kind::Provider, Kind::Toolbox];
        let kind = kinds.into_iter().find(|known| known.to_string() == kind)?;
        Some(Alias {
            kind,
            alias,
            digest,
            source,
        })
    };
    Ok(rows.into_iter().filter_map(known).collect())
}

// tail_session, tail_inputs, tail_step: the live ends of these sessions.
pub(super) const TAIL_SESSION: &str = "
    SELECT s.id, s.created_at, s.updated_at, s.head, s.data, f.seq, f.type, f.version, c.data
      FROM session s
      LEFT JOIN claim c ON c.session = s.id LEFT JOIN foreign_event f ON f.session = s.id
     WHERE s.id IN (SELECT value FROM json_each(?))";
pub(super) const TAIL_INPUTS: &str = "
    SELECT session, data FROM input
     WHERE session IN (SELECT value FROM json_each(?)) AND status = 'pending' ORDER BY session, seq";
pub(super) const TAIL_STEP: &str = "
    SELECT e.session, e.seq, e.id, e.type, e.version, e.at, e.execution, e.recovery, e.data, e.compacted
      FROM session s JOIN event e ON e.session = s.id AND e.seq >= s.step
     WHERE s.id IN (SELECT value FROM json_each(?)) AND s.step IS NOT NULL ORDER BY e.session, e.seq";

/// Tails of those sessions that exist, or why one cannot be read. A damaged one spoils no other.
pub(super) type Tails = HashMap<SessionId, Result<Tail, String>>;

pub(super) async fn tails(
    conn: &mut SqliteConnection,
    sessions: &[SessionId],
) -> Result<Tails, sqlx::Error> {
    let ids = json_ids(sessions);
    let rows: Vec<TailRow> = sqlx::query_as(TAIL_SESSION)
        .bind(&ids)
        .fetch_all(&mut *conn)
        .await?;
    if rows.is_empty() {
        return Ok(HashMap::new());
    }
    let inputs: Vec<(String, String)> = sqlx::query_as(TAIL_INPUTS)
        .bind(&ids)
        .fetch_all(&mut *conn)
        .await?;
    let steps: Vec<EventRow> = sqlx::query_as(TAIL_STEP).bind(&ids).fetch_all(conn).await?;
    Ok(put_together(rows, inputs, steps))
}

/// Tails of the rows that `tail_session`, `tail_inputs` and `tail_step` give.
pub(super) fn put_together(
    rows: Vec<TailRow>,
    input_rows: Vec<(String, String)>,
    step_rows: Vec<EventRow>,
) -> Tails {
    let mut inputs: HashMap<String, Vec<String>> = HashMap::new();
    for (session, data) in input_rows {
        inputs.entry(session).or_default().push(data);
    }
    let mut steps: HashMap<String, Vec<EventRow>> = HashMap::new();
    for row in step_rows {
        steps.entry(row.0.clone()).or_default().push(row);
    }
    let mut tails = HashMap::with_capacity(rows.len());
    for row in rows {
        let (row, claim) = parted(row);
        let inputs = inputs.remove(&row.0).unwrap_or_default();
        let steps = steps.remove(&row.0).unwrap_or_default();
        let Ok(session) = row.0.parse::<SessionId>() else {
            continue;
        };
        let tail = tail(session, row, claim.as_deref(), &inputs, steps);
        let tail = tail.map_err(|error| match error {
            ReadError::Damaged { cause, .. } => cause,
            ReadError::Sql(error) => error.to_string(),
        });
        tails.insert(session, tail);
    }
    tails
}

// item_page
const ITEM_OLDEST: &str = "
    SELECT data FROM item
     WHERE session = ?1 AND seq > ?2
       AND seq <= min(?3, coalesce((SELECT shown FROM session WHERE id = ?1), ?3))
     ORDER BY seq, n LIMIT ?4";
const ITEM_NEWEST: &str = "
    SELECT data FROM item
     WHERE session = ?1 AND seq > ?2
       AND seq <= min(?3, coalesce((SELECT shown FROM session WHERE id = ?1), ?3))
     ORDER BY seq DESC, n DESC LIMIT ?4";

pub(super) fn item_sql(order: Order) -> &'static str {
    match order {
        Order::OldestFirst => ITEM_OLDEST,
        Order::NewestFirst => ITEM_NEWEST,
    }
}

pub(super) async fn item_page(
    conn: &mut SqliteConnection,
    session: SessionId,
    range: Range,
    order: Order,
    limit: u32,
) -> Read<Vec<Item>> {
    let rows: Vec<String> = sqlx::query_scalar(item_sql(order))
        .bind(session.to_string())
        .bind(signed(range.after))
        .bind(signed(range.through))
        .bind(limit)
        .fetch_all(conn)
        .await?;
    rows.iter().map(|data| item(session, data)).collect()
}

// item_measure: what is summed up at the end of the range, less what is before it.
pub(super) const ITEM_MEASURE: &str = "
    SELECT coalesce(last.items_to, 0) - coalesce(before.items_to, 0),
           coalesce(last.bytes_to, 0) - coalesce(before.bytes_to, 0)
      FROM (SELECT min(?3, coalesce((SELECT shown FROM session WHERE id = ?1), ?3)) AS through) AS range
      LEFT JOIN item AS last
             ON last.rowid = (SELECT rowid FROM item WHERE session = ?1 AND seq <= range.through
                               ORDER BY seq DESC, n DESC LIMIT 1)
      LEFT JOIN item AS before
             ON before.rowid = (SELECT rowid FROM item WHERE session = ?1 AND seq <= ?2
                                 ORDER BY seq DESC, n DESC LIMIT 1)";

pub(super) async fn item_measure(
    conn: &mut SqliteConnection,
    session: SessionId,
    range: Range,
) -> Read<Size> {
    let (items, bytes): (i64, i64) = sqlx::query_as(ITEM_MEASURE)
        .bind(session.to_string())
        .bind(signed(range.after))
        .bind(signed(range.through))
        .fetch_one(conn)
        .await?;
    Ok(Size {
        items: unsigned(items),
        bytes: unsigned(bytes),
    })
}

// input_list
const INPUT_ALL: &str = "SELECT data FROM input WHERE session = ? ORDER BY seq";
const INPUT_PENDING: &str =
    "SELECT data FROM input WHERE session = ? AND status = 'pending' ORDER BY seq";

pub(super) async fn input_list(
    conn: &mut SqliteConnection,
    session: SessionId,
    all: bool,
) -> Read<Vec<Input>> {
    let sql = if all { INPUT_ALL } else { INPUT_PENDING };
    let rows: Vec<String> = sqlx::query_scalar(sql)
        .bind(session.to_string())
        .fetch_all(conn)
        .await?;
    rows.iter()
        .map(|data| parse(session, "input", data))
        .collect()
}

// session_list
const SESSION_LIST: &str = "
    SELECT s.id, s.created_at, s.updated_at, s.head, s.data, f.seq, f.type, f.version, c.data,
           s.runnable,
           (SELECT count(*) FROM input i WHERE i.session = s.id AND i.status = 'pending')
      FROM session s
      LEFT JOIN claim c ON c.session = s.id LEFT JOIN foreign_event f ON f.session = s.id
     WHERE (s.created_at, s.id) < (?, ?)
     ORDER BY s.created_at DESC, s.id DESC LIMIT ?";

pub(super) async fn session_list(
    conn: &mut SqliteConnection,
    before: Option<(Millis, SessionId)>,
    limit: u32,
) -> Read<Vec<Listed>> {
    let (at, id) = before.map_or((i64::MAX, "~".into()), |(at, id)| {
        (signed(at), id.to_string())
    });
    let rows: Vec<SqliteRow> = sqlx::query(SESSION_LIST)
        .bind(at)
        .bind(id)
        .bind(limit)
        .fetch_all(conn)
        .await?;
    rows.iter()
        .map(|row| {
            let (session, claim) = parted(TailRow::from_row(row)?);
            let session = session_row(session)?;
            Ok(Listed {
                claim: claim_row(&session, claim.as_deref())?,
                session,
                runnable: row.try_get(9)?,
                pending_inputs: unsigned(row.try_get(10)?),
            })
        })
        .collect()
}

// claim_expired
const CLAIM_EXPIRED: &str = "
    SELECT session, data FROM claim
     WHERE expires_at <= ? AND session NOT IN (SELECT session FROM foreign_event)
     ORDER BY expires_at, session LIMIT ?";

pub(super) async fn claim_expired(
    conn: &mut SqliteConnection,
    now: Millis,
    limit: u32,
) -> Read<Vec<Claim>> {
    let rows: Vec<(String, String)> = sqlx::query_as(CLAIM_EXPIRED)
        .bind(signed(now))
        .bind(limit)
        .fetch_all(conn)
        .await?;
    rows.iter()
        .map(|(id, data)| parse(session_id(id)?, "claim", data))
        .collect()
}

// session_due
const SESSION_DUE: &str = "SELECT id FROM session WHERE due ORDER BY updated_at, id LIMIT ?";

pub(super) async fn session_due(conn: &mut SqliteConnection, limit: u32) -> Read<Vec<SessionId>> {
    let rows: Vec<String> = sqlx::query_scalar(SESSION_DUE)
        .bind(limit)
        .fetch_all(conn)
        .await?;
    rows.iter().map(|id| session_id(id)).collect()
}

// store_name: given by the first migration.
const STORE_NAME: &str = "SELECT value FROM meta WHERE key = 'name'";

pub(super) async fn name(conn: &mut SqliteConnection) -> Read<String> {
    Ok(sqlx::query_scalar(STORE_NAME).fetch_one(conn).await?)
}

// session_timer: waits whose time has come, the longest overdue first.
const SESSION_TIMER: &str = "
    SELECT id FROM session WHERE wake_at IS NOT NULL AND wake_at <= ? ORDER BY wake_at, id LIMIT ?";

pub(super) async fn session_timer(
    conn: &mut SqliteConnection,
    now: u64,
    limit: u32,
) -> Read<Vec<SessionId>> {
    let rows: Vec<String> = sqlx::query_scalar(SESSION_TIMER)
        .bind(signed(now))
        .bind(limit)
        .fetch_all(conn)
        .await?;
    rows.iter().map(|id| session_id(id)).collect()
}

// session_owing: outboxes that are not empty.
const SESSION_OWING: &str = "SELECT id FROM session WHERE owing ORDER BY updated_at, id LIMIT ?";

pub(super) async fn session_owing(conn: &mut SqliteConnection, limit: u32) -> Read<Vec<SessionId>> {
    let rows: Vec<String> = sqlx::query_scalar(SESSION_OWING)
        .bind(limit)
        .fetch_all(conn)
        .await?;
    rows.iter().map(|id| session_id(id)).collect()
}

// step_open: the events that began the open steps.
const STEP_OPEN: &str = "
    SELECT e.session, e.seq, e.id, e.type, e.version, e.at, e.execution, e.recovery, e.data, e.compacted
      FROM session s JOIN event e ON e.session = s.id AND e.seq = s.step WHERE s.stepping";

pub(super) async fn step_open(conn: &mut SqliteConnection) -> Read<Vec<Record>> {
    let rows: Vec<EventRow> = sqlx::query_as(STEP_OPEN).fetch_all(conn).await?;
    rows.into_iter().map(record).collect()
}

/// Everything of a session, in the order of the log.
pub(super) async fn dump(conn: &mut SqliteConnection, session: SessionId) -> Read<Dump> {
    let key = session.to_string();
    let row: Option<TailRow> = sqlx::query_as(TAIL_SESSION)
        .bind(json_ids([session]))
        .fetch_optional(&mut *conn)
        .await?;
    let Some(row) = row else {
        return Ok(Dump::default());
    };
    let (row, claim) = parted(row);
    let row = session_row(row)?;
    let events = event_page(conn, session, 0, u32::MAX)
        .await?
        .map(|(events, _)| events)
        .unwrap_or_default();
    // Those too that a revert hides.
    let items: Vec<String> =
        sqlx::query_scalar("SELECT data FROM item WHERE session = ? ORDER BY seq, n")
            .bind(&key)
            .fetch_all(&mut *conn)
            .await?;
    let mut dump = Dump {
        events,
        claim: claim_row(&row, claim.as_deref())?,
        session: Some(row),
        items: items
            .iter()
            .map(|data| item(session, data))
            .collect::<Read<Vec<Item>>>()?,
        inputs: input_list(conn, session, true).await?,
        steps: step_rows(conn, session).await?,
        calls: Vec::new(),
        executions: execution_rows(conn, session).await?,
    };
    let calls: Vec<String> = sqlx::query_scalar("SELECT data FROM call WHERE session = ?")
        .bind(&key)
        .fetch_all(&mut *conn)
        .await?;
    dump.calls = calls
        .iter()
        .map(|data| parse(session, "call", data))
        .collect::<Read<Vec<Call>>>()?;
    dump.calls
        .sort_by(|a, b| (a.step, &a.id).cmp(&(b.step, &b.id)));
    Ok(dump)
}

type StepColumns = (
    i64,
    i64,
    Option<i64>,
    String,
    Option<String>,
    Option<String>,
);

async fn step_rows(conn: &mut SqliteConnection, session: SessionId) -> Read<Vec<StepRow>> {
    let rows: Vec<StepColumns> = sqlx::query_as(
        "SELECT seq, started_at, settled_at, runner, provider, usage FROM step WHERE session = ? ORDER BY seq",
    )
    .bind(session.to_string())
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|(seq, started_at, settled_at, runner, provider, usage)| {
            Ok(StepRow {
                session,
                seq: unsigned(seq),
                started_at: unsigned(started_at),
                settled_at: settled_at.map(unsigned),
                runner: parse(session, "step", &runner)?,
                provider,
                usage: usage
                    .map(|usage| parse(session, "step", &usage))
                    .transpose()?,
            })
        })
        .collect()
}

type ExecutionColumns = (String, String, i64, Option<i64>, Option<String>);

async fn execution_rows(conn: &mut SqliteConnection, session: SessionId) -> Read<Vec<Execution>> {
    let rows: Vec<ExecutionColumns> = sqlx::query_as(
        "SELECT id, owner, started, ended, terminal FROM execution WHERE session = ? ORDER BY started, id",
    )
    .bind(session.to_string())
    .fetch_all(conn)
    .await?;
    rows.into_iter()
        .map(|(execution, owner, started, ended, terminal)| {
            Ok(Execution {
                id: id(session, "execution", &execution)?,
                session,
                owner: id(session, "owner", &owner)?,
                started: unsigned(started),
                ended: ended.map(unsigned),
                terminal,
            })
        })
        .collect()
}
