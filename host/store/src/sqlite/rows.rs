//! How the rows that commits change are written.

use std::collections::HashMap;
use std::sync::Arc;

use mainstay_core::claim::Claim;
use mainstay_core::id::SessionId;
use mainstay_core::tail::Tail;
use rusqlite::{Connection, Error, OptionalExtension as _, params};
use sqlx::SqliteConnection;

use super::direct;
use super::read::signed;
use crate::rows::{ItemRow, Rows, SessionRow, Text, json, session_row};

/// What a row takes beside its JSON, roughly.
const ROW_BYTES: u64 = 256;

impl Rows {
    /// Bytes of the events' data.
    pub(super) fn event_bytes(&self) -> u64 {
        self.events.iter().map(|row| row.8.len() as u64).sum()
    }

    /// Writes all of it, with the sessions and claims as they are in `tails`. Gives the bytes written,
    /// roughly.
    pub(crate) fn write(
        &self,
        db: &Connection,
        tails: &HashMap<SessionId, Arc<Tail>>,
    ) -> Result<u64, Error> {
        let mut bytes = 0;
        let mut count = |data: &str| bytes += ROW_BYTES + data.len() as u64;
        // Calls before events: the schema refuses a result whose call it does not know.
        let mut put = db.prepare_cached(CALL_PUT)?;
        for (session, step, id, status, data) in &self.calls {
            count(data);
            put.execute(params![session, signed(*step), id, status, data])?;
        }
        let mut add = db.prepare_cached(EVENT_ADD)?;
        for (session, seq, id, kind, version, at, execution, recovery, data, compacted) in
            &self.events
        {
            count(data);
            add.execute(params![
                session,
                signed(*seq),
                id,
                kind,
                version,
                signed(*at),
                execution,
                recovery,
                data,
                compacted
            ])?;
        }
        for id in &self.changed {
            let Some(tail) = tails.get(id) else { continue };
            count(&put_session(db, tail, tail.claim.is_some())?);
            // Else its claim is for a build that knows all of it.
            if self.claims.contains(id) && tail.session.foreign.is_none() {
                put_claim(db, *id, tail.claim.as_ref())?;
            }
        }
        let mut put = db.prepare_cached(INPUT_PUT)?;
        for (id, session, seq, status, intent, data) in &self.inputs {
            count(data);
            put.execute(params![id, session, signed(*seq), status, intent, data])?;
        }
        let mut drop = db.prepare_cached(ITEM_DROP)?;
        for (session, through) in &self.dropped {
            drop.execute(params![session, signed(*through)])?;
        }
        for (.., data) in &self.items {
            count(data);
        }
        self.write_items(db)?;
        let mut put = db.prepare_cached(STEP_PUT)?;
        for (session, seq, started_at, settled_at, runner, provider, usage) in &self.steps {
            count(runner);
            put.execute(params![
                session,
                signed(*seq),
                signed(*started_at),
                settled_at.map(signed),
                runner,
                provider,
                usage
            ])?;
        }
        let mut put = db.prepare_cached(EXECUTION_PUT)?;
        for (session, id, owner, started, ended, terminal) in &self.executions {
            count("");
            put.execute(params![
                session,
                id,
                owner,
                signed(*started),
                ended.map(signed),
                terminal
            ])?;
        }
        Ok(bytes)
    }

    /// Adds the items, and sums up each session's from the first new one on.
    fn write_items(&self, db: &Connection) -> Result<(), Error> {
        let mut of: HashMap<&str, Vec<&ItemRow>> = HashMap::new();
        for item in &self.items {
            of.entry(&item.0).or_default().push(item);
        }
        let mut add = db.prepare_cached(ITEM_ADD)?;
        for (session, mut items) in of {
            items.sort_by_key(|(_, seq, n, ..)| (*seq, *n));
            let first = signed(items[0].1);
            let last = db
                .prepare_cached(ITEM_LAST)?
                .query_row([session], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
                .optional()?;
            let (seq, mut items_to, mut bytes_to): (i64, i64, i64) = last.unwrap_or_default();
            for (_, seq, n, is_message, bytes, data) in items {
                items_to += 1;
                bytes_to += signed(*bytes);
                add.execute(params![
                    session,
                    signed(*seq),
                    n,
                    is_message,
                    signed(*bytes),
                    items_to,
                    bytes_to,
                    data
                ])?;
            }
            if first <= seq {
                db.prepare_cached(ITEM_TOTAL)?
                    .execute(params![session, first])?;
            }
        }
        Ok(())
    }
}

/// Writes the row of a session and gives its JSON.
fn put_session(db: &Connection, tail: &Tail, claimed: bool) -> Result<String, Error> {
    let row = session_row(tail, claimed);
    put_session_row(db, &row)?;
    Ok(row.10)
}

fn put_session_row(db: &Connection, row: &SessionRow) -> Result<(), Error> {
    let (id, created_at, updated_at, head, step, runnable, due, wake_at, owing, shown, data) = row;
    let params = params![
        id,
        signed(*created_at),
        signed(*updated_at),
        signed(*head),
        step.map(signed),
        step.is_some(),
        runnable,
        due,
        wake_at.map(signed),
        owing,
        shown.map(signed),
        data
    ];
    if db.prepare_cached(SESSION_NEXT)?.execute(params)? == 0 {
        db.prepare_cached(SESSION_PUT)?.execute(params)?;
    }
    Ok(())
}

fn put_claim(db: &Connection, session: SessionId, claim: Option<&Claim>) -> Result<(), Error> {
    let session = session.to_string();
    let Some(claim) = claim else {
        db.prepare_cached(CLAIM_DROP)?.execute([session])?;
        return Ok(());
    };
    let (execution, owner) = (claim.execution.to_string(), claim.owner.to_string());
    let (expires_at, data) = (signed(claim.expires_at), json(claim));
    let params = params![session, execution, owner, expires_at, data];
    if db.prepare_cached(CLAIM_STEP)?.execute(params)? == 0 {
        db.prepare_cached(CLAIM_PUT)?.execute(params)?;
    }
    Ok(())
}

/// Writes all of it on a connection of sqlx's, within the transaction that it is in.
pub(super) async fn write(
    conn: &mut SqliteConnection,
    rows: &Rows,
    tails: &HashMap<SessionId, Arc<Tail>>,
) -> Result<(), sqlx::Error> {
    direct::on(conn, |db| rows.write(db, tails).map(drop)).await
}

/// The same of the row of one session alone.
pub(super) async fn write_session(
    conn: &mut SqliteConnection,
    tail: &Tail,
    claimed: bool,
) -> Result<(), sqlx::Error> {
    direct::on(conn, |db| put_session(db, tail, claimed).map(drop)).await
}

/// Writes the row of one session and its claim as they are: session, execution, owner, expiry and value.
pub(super) async fn put_row(
    conn: &mut SqliteConnection,
    row: &SessionRow,
    claim: Option<&(Text, Text, Text, u64, Text)>,
) -> Result<(), sqlx::Error> {
    let put = |db: &Connection| {
        put_session_row(db, row)?;
        if let Some((session, execution, owner, expires_at, data)) = claim {
            let expires_at = signed(*expires_at);
            db.prepare_cached(CLAIM_PUT)?
                .execute(params![session, execution, owner, expires_at, data])?;
        }
        Ok(())
    };
    direct::on(conn, put).await
}

const EVENT_ADD: &str = "
    INSERT INTO event (session, seq, id, type, version, at, execution, recovery, data, compacted)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";

// session_next: from commit to commit, what the indexes hold of a session mostly stays as it is.
const SESSION_NEXT: &str = "
    UPDATE session SET
        updated_at = ?3, head = ?4, step = ?5, runnable = ?7, shown = ?11, data = ?12
     WHERE id = ?1 AND created_at = ?2 AND stepping = ?6 AND due = ?8 AND wake_at IS ?9 AND owing = ?10";

const SESSION_PUT: &str = "
    INSERT INTO session
           (id, created_at, updated_at, head, step, stepping, runnable, due, wake_at, owing, shown, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        updated_at = excluded.updated_at, head = excluded.head, step = excluded.step,
        stepping = excluded.stepping, runnable = excluded.runnable, due = excluded.due, wake_at = excluded.wake_at,
        owing = excluded.owing, shown = excluded.shown, data = excluded.data";

const CLAIM_DROP: &str = "DELETE FROM claim WHERE session = ?";

// claim_step: from step to step, what the indexes hold of a claim stays as it is.
const CLAIM_STEP: &str = "
    UPDATE claim SET data = ?5
     WHERE session = ?1 AND execution = ?2 AND owner = ?3 AND expires_at = ?4";

const CLAIM_PUT: &str = "
    INSERT INTO claim (session, execution, owner, expires_at, data) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (session) DO UPDATE SET
        execution = excluded.execution, owner = excluded.owner, expires_at = excluded.expires_at,
        data = excluded.data";

const INPUT_PUT: &str = "
    INSERT INTO input (id, session, seq, status, intent, data) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (id) DO UPDATE SET
        status = excluded.status, intent = excluded.intent, data = excluded.data";

const ITEM_DROP: &str = "DELETE FROM item WHERE session = ? AND seq > ?";

// item_last: what is summed up so far.
const ITEM_LAST: &str = "
    SELECT seq, items_to, bytes_to FROM item WHERE session = ? ORDER BY seq DESC, n DESC LIMIT 1";

const ITEM_ADD: &str = "
    INSERT INTO item (session, seq, n, is_message, bytes, items_to, bytes_to, data)
    VALUES (?, ?, ?, ?, ?, ?, ?, ?)";

// item_total: an answer may come behind the results of its calls; then all from there on are summed up
// anew.
const ITEM_TOTAL: &str = "
    UPDATE item SET items_to = total.items, bytes_to = total.bytes
      FROM (SELECT new.rowid AS id,
                   coalesce(before.items_to, 0) + row_number() OVER sofar AS items,
                   coalesce(before.bytes_to, 0) + sum(new.bytes) OVER sofar AS bytes
              FROM item AS new
              LEFT JOIN item AS before
                     ON before.rowid = (SELECT rowid FROM item WHERE session = ?1 AND seq < ?2
                                         ORDER BY seq DESC, n DESC LIMIT 1)
             WHERE new.session = ?1 AND new.seq >= ?2
            WINDOW sofar AS (ORDER BY new.seq, new.n)) AS total
     WHERE item.rowid = total.id";

// A row written again keeps the usage and the end that it had.
const STEP_PUT: &str = "
    INSERT INTO step (session, seq, started_at, settled_at, runner, provider, usage)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (session, seq) DO UPDATE SET
        started_at = excluded.started_at, runner = excluded.runner, provider = excluded.provider,
        settled_at = coalesce(excluded.settled_at, settled_at), usage = coalesce(excluded.usage, usage)";

const CALL_PUT: &str = "
    INSERT INTO call (session, step, id, status, data) VALUES (?, ?, ?, ?, ?)
    ON CONFLICT (session, step, id) DO UPDATE SET status = excluded.status, data = excluded.data";

// A row with `started` 0 only adds its end.
const EXECUTION_PUT: &str = "
    INSERT INTO execution (session, id, owner, started, ended, terminal) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (session, id) DO UPDATE SET
        owner = iif(excluded.started = 0, owner, excluded.owner),
        started = iif(excluded.started = 0, started, excluded.started),
        ended = excluded.ended, terminal = excluded.terminal";
