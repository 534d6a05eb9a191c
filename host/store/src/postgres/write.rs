//! The one statement that makes a commit durable: a call of a function in the database,
//! `session_commit`.
//!
//! Three forms take one round trip: this one, a statement of common table expressions, and a batch of
//! statements in one message. On two cores, with the server beside the client and `fsync` on, an append
//! alone took 0.7 ms as a function and 0.9 ms as a prepared statement; 32 sessions side by side got 2,450
//! and 2,590 appends a second. Not prepared, as behind a pooler, it was 1.2 ms to 1.6 ms, and 2.0 ms for
//! the batch, and 2,160 appends a second to 980 and 1,080: the server keeps the function's plans and makes
//! the others' each time. The function also reads the clock after it has waited for the session's lock,
//! leaves tables alone that a commit does not change, and says why it stored nothing. Measure again with
//! `cargo bench -p mainstay-store --bench postgres`.

use std::collections::{BTreeMap, BTreeSet};

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::id::{Millis, SessionId};
use mainstay_core::tail::Tail;
use serde::{Deserialize, Serialize};
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::kinds::Kind;
use super::read::some;
use super::statement::{Arg, Statement};
use crate::rows::{
    EventRow, ExecutionRow, ItemRow, Rows, SessionRow, StepRow, Text, json, session_row,
};
use crate::value::{signed, unsigned};

/// What became of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// Stored as this version, and when the claim that is left expires.
    Done {
        version: i64,
        expires_at: Option<Millis>,
        /// How often names have changed.
        names: i64,
    },
    /// Judged by what is no longer so. With what is, as [`super::read::Loaded::told`] reads it.
    Stale(Option<String>),
    /// Another scanner is at it.
    Busy,
}

/// The outcome, and the database's clock.
pub(super) fn outcome(row: &PgRow) -> Result<(Outcome, Option<Millis>), sqlx::Error> {
    let text: String = row.try_get("o_outcome")?;
    let now: Option<i64> = row.try_get("o_now")?;
    let expires_at: Option<i64> = row.try_get("o_expires_at")?;
    let outcome = match text.as_str() {
        "done" => Outcome::Done {
            version: row.try_get("o_version")?,
            expires_at: expires_at.map(unsigned),
            names: row.try_get("o_names")?,
        },
        "busy" => Outcome::Busy,
        // Other statements are not told.
        _ => Outcome::Stale(row.try_get("o_load").unwrap_or_default()),
    };
    Ok((outcome, now.map(unsigned)))
}

/// What a commit rests on beside the session's version: a claim, and whether it is to be expired.
fn fence(write: &Write) -> Option<(Fence, bool)> {
    match write {
        Write::Append(append) => Some((append.fence, false)),
        Write::Recover { seen, .. } | Write::Quarantine { seen, .. } => Some((*seen, true)),
        _ => None,
    }
}

/// Whether it is worth waiting for somebody else's commit to the session. What scanners do on several
/// nodes is done already by then.
fn waits(write: &Write) -> bool {
    !matches!(
        write,
        Write::Recover { .. }
            | Write::Quarantine { .. }
            | Write::Fire
            | Write::Claim {
                by_itself: true,
                ..
            }
    )
}

pub(super) fn session_commit(
    commit: &Commit,
    version: Option<i64>,
    at: Option<i64>,
    before: Option<&Tail>,
    after: &Tail,
    rows: &Rows,
    kinds: &[Kind],
) -> Statement {
    let fence = fence(&commit.write);
    let claim = claim(before, after, &commit.write);
    let wait = waits(&commit.write);
    let put = put(commit.session, version, at, wait, fence, row(after), claim);
    let mut statement = tables(put, rows, kinds);
    // What comes too late is told what it is to be judged by instead, in the same round trip.
    statement.sql = "
        SELECT c.*, CASE WHEN c.o_outcome = 'stale' THEN (
                   SELECT to_json(l)::text FROM session_load($1, $3, $18, $19, NULL, NULL) l) END AS o_load
          FROM session_commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, $17) c";
    statement
        .bind(some(commit.event_ids().into_iter().map(|id| id.0)))
        .bind(some(commit.input().into_iter().map(|id| id.0)))
}

/// Writes a part of a session's rows as they were elsewhere: the first where there is no version yet.
/// A claim, by its execution, owner and value, runs out as it is written.
pub(super) fn session_moved(
    session: SessionId,
    (version, at): (Option<i64>, Option<i64>),
    row: &SessionRow,
    claim: Option<&(Text, Text, Text)>,
    rows: &Rows,
) -> Statement {
    let claim = claim.map(|(execution, owner, data)| json(&(execution, owner, data, 0, false)));
    let row = columns(row.clone(), false);
    tables(
        put(session, version, at, true, None, row, Arg::Json(claim)),
        rows,
        &kinds(rows),
    )
}

/// Writes all rows of a session that has none, its claim apart.
pub(super) fn session_rebuilt(at: Option<i64>, tail: &Tail, rows: &Rows) -> Statement {
    let session = tail.session.id;
    let none = Arg::Json(None);
    let put = put(session, None, at, true, None, row(tail), none);
    tables(put, rows, &kinds(rows))
}

/// The types and versions of events, each once.
pub(super) fn kinds(rows: &Rows) -> Vec<Kind> {
    let kinds = rows.events.iter().map(|row| (row.3.clone(), row.4));
    let kinds: BTreeSet<Kind> = kinds.collect();
    kinds.into_iter().collect()
}

fn tables(statement: Statement, rows: &Rows, kinds: &[Kind]) -> Statement {
    let through = rows.dropped.values().next();
    statement
        .bind(table(&last(&rows.calls, |row| (row.1, row.2.clone()))))
        .bind(table(&rows.events.iter().map(event).collect::<Vec<_>>()))
        .bind(table(&last(&rows.inputs, |row| row.0.clone())))
        .bind(through.map(|seq| signed(*seq)))
        .bind(table(&items(&rows.items)))
        .bind(table(&steps(&rows.steps)))
        .bind(table(&executions(&rows.executions)))
        .bind(table(kinds))
}

/// Writes the row of a session alone.
pub(super) fn session_put(version: i64, at: Option<i64>, tail: &Tail) -> Statement {
    let none = || Arg::Json(None);
    let session = tail.session.id;
    put(session, Some(version), at, true, None, row(tail), none())
        .bind(none())
        .bind(none())
        .bind(none())
        .bind(None::<i64>)
        .bind(none())
        .bind(none())
        .bind(none())
        .bind(none())
}

fn put(
    session: SessionId,
    version: Option<i64>,
    at: Option<i64>,
    wait: bool,
    fence: Option<(Fence, bool)>,
    row: Arg,
    claim: Arg,
) -> Statement {
    Statement::new(
        "SELECT * FROM session_commit($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, \
         $15, $16, $17)",
    )
    .bind(session.0)
    .bind(version)
    .bind(at)
    .bind(wait)
    .bind(fence.map(|(fence, _)| fence.execution.0))
    .bind(fence.map(|(fence, _)| fence.owner.0))
    .bind(fence.map(|(_, expired)| expired))
    .bind(row)
    .bind(claim)
}

fn row(tail: &Tail) -> Arg {
    let mut row = session_row(tail, tail.claim.is_some());
    let stale = tail.session.foreign.is_some();
    if stale {
        // A build that knows all of it is to have a look.
        row.6 = true;
    }
    columns(row, stale)
}

fn columns(row: SessionRow, stale: bool) -> Arg {
    let (id, created_at, updated_at, head, step, runnable, due, wake_at, owing, shown, data) = row;
    let row = (
        id, created_at, updated_at, head, step, runnable, due, wake_at, owing, shown, data, stale,
    );
    Arg::Json(Some(json(&row)))
}

/// See `p_claim` in the migration. When the claim expires is for the database to say: what is known of
/// that here may be out of date.
fn claim(before: Option<&Tail>, after: &Tail, write: &Write) -> Arg {
    let before = before.and_then(|tail| tail.claim.as_ref());
    let row = match (before, &after.claim) {
        // The claim of a session that is not wholly known is for a build that knows all of it.
        _ if after.session.foreign.is_some() => None,
        (None, None) => None,
        (Some(_), None) => Some("[]".into()),
        (before, Some(claim)) => {
            let lease_ms = match write {
                Write::Claim { lease_ms, .. } => Some(lease_ms),
                _ => None,
            };
            // Taken over, or left behind by a shutdown.
            let ends = claim.ended && before.is_some_and(|before| !before.ended);
            let expires = ends || matches!(write, Write::Expire { .. });
            let changed = before != Some(claim) || expires;
            changed.then(|| json(&(claim.execution, claim.owner, json(claim), lease_ms, expires)))
        }
    };
    Arg::Json(row)
}

/// An event with what the schema takes a result's call by.
fn event(row: &EventRow) -> impl Serialize {
    #[derive(Deserialize)]
    struct Settled {
        step: u64,
        result: Named,
    }
    #[derive(Deserialize)]
    struct Named {
        call: String,
    }
    let (session, seq, id, kind, version, at, execution, recovery, data, compacted) = row;
    let settled = (kind == "call.settled").then(|| serde_json::from_str::<Settled>(data));
    let settled = settled.and_then(Result::ok);
    let step = settled.as_ref().map(|settled| settled.step);
    let call = settled.map(|settled| json(&settled.result.call));
    (
        session, seq, id, kind, version, at, execution, recovery, data, compacted, step, call,
    )
}

/// The last row of each key: a statement of Postgres changes a row once.
fn last<T, K: Ord>(rows: &[T], key: impl Fn(&T) -> K) -> Vec<&T> {
    let last: BTreeMap<K, &T> = rows.iter().map(|row| (key(row), row)).collect();
    last.into_values().collect()
}

/// In their order, each with the bytes of them up to it.
fn items(rows: &[ItemRow]) -> Vec<impl Serialize> {
    let mut rows: Vec<&ItemRow> = rows.iter().collect();
    rows.sort_by_key(|row| (row.1, row.2));
    let mut bytes_to = 0_u64;
    let rows = rows.into_iter().map(|row| {
        let (session, seq, n, is_message, bytes, data) = row;
        bytes_to = bytes_to.saturating_add(*bytes);
        (session, seq, n, is_message, bytes, data, bytes_to)
    });
    rows.collect()
}

/// As the statement would merge them one after the other: what a later one lacks stays.
fn steps(rows: &[StepRow]) -> Vec<StepRow> {
    let mut merged: BTreeMap<u64, StepRow> = BTreeMap::new();
    for row in rows {
        let mut row = row.clone();
        if let Some(before) = merged.remove(&row.1) {
            row.3 = row.3.or(before.3);
            row.6 = row.6.or(before.6);
        }
        merged.insert(row.1, row);
    }
    merged.into_values().collect()
}

/// A row that lacks the beginning only adds its end.
fn executions(rows: &[ExecutionRow]) -> Vec<ExecutionRow> {
    let mut merged: BTreeMap<Text, ExecutionRow> = BTreeMap::new();
    for row in rows {
        let mut row = row.clone();
        if let Some(before) = merged.remove(&row.1)
            && row.3 == 0
        {
            (row.2, row.3) = (before.2, before.3);
        }
        merged.insert(row.1.clone(), row);
    }
    merged.into_values().collect()
}

fn table<T: Serialize>(rows: &[T]) -> Arg {
    Arg::Json((!rows.is_empty()).then(|| json(&rows)))
}
