//! Examines a database: the server's settings that durability rests on, indexes that are not whole, and
//! the invariants that rows can show. It goes session by session and page by page, so that memory is
//! bounded by one session's rows. Events do not change once they are written; the rows are read in one
//! statement together with where the log ends, and again where that is further than was read.

use std::path::PathBuf;

use mainstay_core::id::SessionId;
use mainstay_core::invariant::{Check, Findings, Stored};
use mainstay_core::port::StoreError;
use serde::de::DeserializeOwned;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::PostgresStore;
use super::migrate;
use super::read;
use super::statement::Statement;
use crate::examine::{
    CallColumns, ExecutionColumns, InputColumns, ItemColumns, KEPT, Rows, StepColumns, damage,
};
use crate::sqlite::doctor::Report;
use crate::value::{ReadError, unsigned};

const ACTION: &str = "examine the database";
/// Events that one statement reads.
const PAGE: u32 = 512;

impl PostgresStore {
    /// Examines the database. Writes nothing; nodes may work beside it.
    ///
    /// `progress` hears how many sessions are done, and of how many.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the database does not answer; what is wrong inside it is in the
    /// report.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn examine(
        &self,
        progress: impl Fn(u64, u64) + Send + Sync,
    ) -> Result<Report, StoreError> {
        let failed = |cause: sqlx::Error| self.failed(ACTION, cause.into());
        let mut report = Report {
            file: PathBuf::from(self.place()),
            ..Report::default()
        };
        for row in self.rows(ACTION, &Statement::new(PROBLEMS)).await? {
            report.problems.push(row.try_get(0).map_err(failed)?);
        }
        let applied = self.rows(ACTION, &Statement::new(APPLIED)).await?;
        for row in &applied {
            let version: i64 = row.try_get(0).map_err(failed)?;
            report.schema = report.schema.max(version);
            if !migrate::is_known(version, row.try_get(1).map_err(failed)?) {
                let told = format!("migration {version} is not the one of this build");
                report.drift.push(told);
            }
        }
        for (next, what, advice) in KEPT {
            let mut last = String::new();
            loop {
                let next = Statement::new(next).bind(last.as_str());
                let rows = self.rows(ACTION, &next).await?;
                let Some(row) = rows.first() else { break };
                last = row.try_get(0).map_err(failed)?;
                let bytes: Vec<u8> = row.try_get(1).map_err(failed)?;
                report.problems.extend(damage(&last, &bytes, what, advice));
            }
        }
        let counted = Statement::new("SELECT count(*) FROM session");
        let total = self.one(ACTION, &counted).await?;
        let total = unsigned(total.try_get(0).map_err(failed)?);

        let mut last = Uuid::nil();
        loop {
            let next = Statement::new(SESSION_NEXT).bind(last);
            let next = self.one(ACTION, &next).await?;
            let Some(next) = next.try_get::<Option<Uuid>, _>(0).map_err(failed)? else {
                return Ok(report);
            };
            last = next;
            let session = SessionId(next);
            match self.examine_one(session).await {
                Ok(None) => {}
                Ok(Some((found, events))) => report.add(session, found, events),
                Err(StoreError::Damaged { session, cause }) => {
                    report.sessions += 1;
                    report.problems.push(format!("session {session}: {cause}"));
                }
                Err(error) => return Err(error),
            }
            progress(report.sessions, total);
        }
    }

    /// `None` if it is gone by now. Gives the number of its events too.
    async fn examine_one(&self, session: SessionId) -> Result<Option<(Findings, u64)>, StoreError> {
        let mut check = Check::new();
        let mut events = 0;
        loop {
            loop {
                let page = read::event_raw(session, check.last(), i64::from(PAGE));
                let page = self.rows(ACTION, &page).await?;
                for row in &page {
                    let (seq, record) =
                        read::event_or_not(session, row).map_err(|e| self.failed(ACTION, e))?;
                    match record {
                        Ok(record) => check.take(&record),
                        Err(cause) => check.skip(seq, &cause),
                    }
                }
                events += page.len() as u64;
                if page.len() < PAGE as usize {
                    break;
                }
            }
            let row = Statement::new(SESSION_ROWS).bind(session.0);
            let row = self.one(ACTION, &row).await?;
            let end: Option<i64> = row
                .try_get(0)
                .map_err(|cause| self.failed(ACTION, cause.into()))?;
            if end.map(unsigned) > Some(check.last()) {
                continue;
            }
            let stored = stored(&mut check, session, &row, end.is_some());
            let stored = stored.map_err(|error| self.failed(ACTION, error))?;
            return Ok(stored.map(|stored| (check.finish(&stored), events)));
        }
    }
}

fn stored(
    check: &mut Check,
    session: SessionId,
    row: &PgRow,
    any: bool,
) -> Result<Option<Stored>, ReadError> {
    fn each<T: DeserializeOwned>(
        session: SessionId,
        row: &PgRow,
        column: &str,
    ) -> Result<Vec<T>, ReadError> {
        let rows: Option<String> = row.try_get(column)?;
        rows.map_or(Ok(Vec::new()), |rows| {
            crate::value::parse(session, column, &rows)
        })
    }
    let key = session.to_string();
    let mut rows = Rows {
        check,
        stored: Stored::default(),
        any,
        sofar: (0, 0),
    };
    for input in each::<InputColumns>(session, row, "inputs")? {
        rows.input(input);
    }
    if let Some(data) = row.try_get("claim")? {
        // When it expires is for the column to say.
        let columns = (row.try_get("execution")?, row.try_get("owner")?, None, data);
        rows.claim(&key, columns);
        let expires_at: i64 = row.try_get("expires_at")?;
        if let Some(claim) = &mut rows.stored.claim {
            claim.expires_at = unsigned(expires_at);
        }
    }
    if let Some(data) = row.try_get("data")? {
        let columns = (
            row.try_get("created_at")?,
            row.try_get("updated_at")?,
            row.try_get("head")?,
            row.try_get("step")?,
            row.try_get("runnable")?,
            row.try_get("is_due")?,
            data,
        );
        rows.session(&key, columns);
    }
    for item in each::<ItemColumns>(session, row, "items")? {
        rows.item(item);
    }
    for step in each::<StepColumns>(session, row, "steps")? {
        rows.step(session, step);
    }
    for call in each::<CallColumns>(session, row, "calls")? {
        rows.call(call);
    }
    for execution in each::<ExecutionColumns>(session, row, "executions")? {
        rows.execution(session, execution);
    }
    Ok(rows.any.then_some(rows.stored))
}

// What an operator set that durability rests on, and indexes that a failure left unfinished.
const PROBLEMS: &str = "
    SELECT name || ' is off: what is stored does not survive a crash of the machine' FROM pg_settings
     WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off'
     UNION ALL
    SELECT 'index ' || c.relname || ' is not valid; rebuild it with REINDEX'
      FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
     WHERE c.relnamespace = current_schema()::regnamespace AND NOT i.indisvalid";

const APPLIED: &str = "SELECT version, checksum FROM _sqlx_migrations ORDER BY version";

// session_next: the next session that any table names, whether or not it has a row of its own.
const SESSION_NEXT: &str = "
    SELECT next FROM (
        (SELECT id AS next FROM session WHERE id > $1 ORDER BY id LIMIT 1)
        UNION ALL (SELECT session FROM event WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL (SELECT session FROM claim WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL (SELECT session FROM input WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL (SELECT session FROM item WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL (SELECT session FROM step WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL (SELECT session FROM call WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL (SELECT session FROM execution WHERE session > $1 ORDER BY session LIMIT 1)
        UNION ALL SELECT NULL) AS candidates
     ORDER BY next LIMIT 1";

// session_rows: everything of a session but its log, and where that ends.
const SESSION_ROWS: &str = "
    SELECT (SELECT max(e.seq) FROM event e WHERE e.session = k.id) AS log_end,
           s.created_at, s.updated_at, s.head, s.step, s.runnable, s.due IS NOT NULL AS is_due, s.data,
           c.execution::text AS execution, c.owner::text AS owner, c.expires_at, c.data AS claim,
           (SELECT json_agg(json_build_array(i.id, i.seq, i.status, i.intent, i.data) ORDER BY i.seq)
              FROM input i WHERE i.session = k.id)::text AS inputs,
           (SELECT json_agg(json_build_array(i.seq, i.n, i.is_message, i.bytes, i.items_to,
                                             i.bytes_to, i.data)
                            ORDER BY i.seq, i.n)
              FROM item i WHERE i.session = k.id)::text AS items,
           (SELECT json_agg(json_build_array(t.seq, t.started_at, t.settled_at, t.runner, t.provider,
                                             t.usage) ORDER BY t.seq)
              FROM step t WHERE t.session = k.id)::text AS steps,
           (SELECT json_agg(json_build_array(l.step, l.id, l.status, l.data))
              FROM call l WHERE l.session = k.id)::text AS calls,
           (SELECT json_agg(json_build_array(x.id, x.owner, x.started, x.ended, x.terminal))
              FROM execution x WHERE x.session = k.id)::text AS executions
      FROM (SELECT $1 AS id) AS k
      LEFT JOIN session s ON s.id = k.id
      LEFT JOIN claim c ON c.session = k.id";
