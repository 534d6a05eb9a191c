//! How the rows of a group of commits are written: one statement per table, whatever the number of
//! rows, which travel as one JSON array.

use std::collections::HashMap;
use std::sync::Arc;

use mainstay_core::id::SessionId;
use mainstay_core::tail::Tail;
use serde::Serialize;
use sqlx::SqliteConnection;

use crate::rows::{Rows, Text, json, session_row};

impl Rows {
    /// Writes all of it, with the sessions and claims as they are in `tails`. Gives the bytes written.
    pub(crate) async fn write(
        &self,
        conn: &mut SqliteConnection,
        tails: &HashMap<SessionId, Arc<Tail>>,
    ) -> Result<u64, sqlx::Error> {
        let mut sessions = Vec::with_capacity(self.changed.len());
        let mut claims = Vec::new();
        let mut unclaimed = Vec::new();
        for id in &self.changed {
            let Some(tail) = tails.get(id) else { continue };
            sessions.push(session_row(tail, tail.claim.is_some()));
            if tail.session.foreign.is_some() {
                // Its claim is for a build that knows all of it.
                continue;
            }
            match &tail.claim {
                Some(claim) => claims.push((
                    id.to_string(),
                    claim.execution.to_string(),
                    claim.owner.to_string(),
                    claim.expires_at,
                    json(claim),
                )),
                None => unclaimed.push(id.to_string()),
            }
        }
        let mut bytes = 0;
        // Calls before events: the schema refuses a result whose call it does not know.
        bytes += insert(conn, CALL_PUT, &self.calls).await?;
        bytes += insert(conn, EVENT_ADD, &self.events).await?;
        bytes += insert(conn, SESSION_PUT, &sessions).await?;
        bytes += insert(conn, CLAIM_DROP, &unclaimed).await?;
        bytes += insert(conn, CLAIM_PUT, &claims).await?;
        bytes += insert(conn, INPUT_PUT, &self.inputs).await?;
        let dropped: Vec<(&Text, &u64)> = self.dropped.iter().collect();
        bytes += insert(conn, ITEM_DROP, &dropped).await?;
        bytes += insert(conn, ITEM_ADD, &self.items).await?;
        bytes += insert(conn, ITEM_TOTAL, &self.first_items()).await?;
        bytes += insert(conn, STEP_PUT, &self.steps).await?;
        bytes += insert(conn, EXECUTION_PUT, &self.executions).await?;
        Ok(bytes)
    }
}

async fn insert<T: Serialize>(
    conn: &mut SqliteConnection,
    sql: &'static str,
    rows: &[T],
) -> Result<u64, sqlx::Error> {
    if rows.is_empty() {
        return Ok(0);
    }
    let rows = json(&rows);
    let bytes = rows.len() as u64;
    sqlx::query(sql).bind(rows).execute(conn).await?;
    Ok(bytes)
}

/// Writes the row of one session alone.
pub(super) async fn put_session(
    conn: &mut SqliteConnection,
    tail: &Tail,
    claimed: bool,
) -> Result<(), sqlx::Error> {
    insert(conn, SESSION_PUT, &[session_row(tail, claimed)])
        .await
        .map(drop)
}

const EVENT_ADD: &str = "
    INSERT INTO event (session, seq, id, type, version, at, execution, recovery, data, compacted)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
           value ->> 7, value ->> 8, value ->> 9
      FROM json_each(?)";

const SESSION_PUT: &str = "
    INSERT INTO session
           (id, created_at, updated_at, head, step, runnable, due, wake_at, owing, shown, data)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6,
           value ->> 7, value ->> 8, value ->> 9, value ->> 10
      FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET
        updated_at = excluded.updated_at, head = excluded.head, step = excluded.step,
        runnable = excluded.runnable, due = excluded.due, wake_at = excluded.wake_at,
        owing = excluded.owing, shown = excluded.shown, data = excluded.data";

const CLAIM_DROP: &str = "DELETE FROM claim WHERE session IN (SELECT value FROM json_each(?))";

const CLAIM_PUT: &str = "
    INSERT INTO claim (session, execution, owner, expires_at, data)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
      FROM json_each(?) WHERE true
    ON CONFLICT (session) DO UPDATE SET
        execution = excluded.execution, owner = excluded.owner, expires_at = excluded.expires_at,
        data = excluded.data";

const INPUT_PUT: &str = "
    INSERT INTO input (id, session, seq, status, intent, data)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
      FROM json_each(?) WHERE true
    ON CONFLICT (id) DO UPDATE SET
        status = excluded.status, intent = excluded.intent, data = excluded.data";

const ITEM_DROP: &str = "
    DELETE FROM item WHERE rowid IN (
        SELECT item.rowid FROM json_each(?) AS cut
         CROSS JOIN item ON item.session = cut.value ->> 0 AND item.seq > cut.value ->> 1)";

const ITEM_ADD: &str = "
    INSERT INTO item (session, seq, n, is_message, bytes, data)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
      FROM json_each(?)";

// item_total: an answer may come behind the results of its calls, so all from the first new item on are
// summed up anew.
const ITEM_TOTAL: &str = "
    UPDATE item SET items_to = total.items, bytes_to = total.bytes
      FROM (SELECT new.rowid AS id,
                   coalesce(before.items_to, 0) + row_number() OVER sofar AS items,
                   coalesce(before.bytes_to, 0) + sum(new.bytes) OVER sofar AS bytes
              FROM json_each(?) AS first
              CROSS JOIN item AS new
                      ON new.session = first.value ->> 0 AND new.seq >= first.value ->> 1
              LEFT JOIN item AS before
                     ON before.rowid = (SELECT rowid FROM item
                                         WHERE session = first.value ->> 0
                                           AND seq < first.value ->> 1
                                         ORDER BY seq DESC, n DESC LIMIT 1)
            WINDOW sofar AS (PARTITION BY new.session ORDER BY new.seq, new.n)) AS total
     WHERE item.rowid = total.id";

// A row written again keeps the usage and the end that it had.
const STEP_PUT: &str = "
    INSERT INTO step (session, seq, started_at, settled_at, runner, provider, usage)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5, value ->> 6
      FROM json_each(?) WHERE true
    ON CONFLICT (session, seq) DO UPDATE SET
        started_at = excluded.started_at, runner = excluded.runner, provider = excluded.provider,
        settled_at = coalesce(excluded.settled_at, settled_at), usage = coalesce(excluded.usage, usage)";

const CALL_PUT: &str = "
    INSERT INTO call (session, step, id, status, data)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4
      FROM json_each(?) WHERE true
    ON CONFLICT (session, step, id) DO UPDATE SET status = excluded.status, data = excluded.data";

// A row with `started` 0 only adds its end.
const EXECUTION_PUT: &str = "
    INSERT INTO execution (session, id, owner, started, ended, terminal)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3, value ->> 4, value ->> 5
      FROM json_each(?) WHERE true
    ON CONFLICT (session, id) DO UPDATE SET
        owner = iif(excluded.started = 0, owner, excluded.owner),
        started = iif(excluded.started = 0, started, excluded.started),
        ended = excluded.ended, terminal = excluded.terminal";
