//! What time takes away from a database that nodes work on. Each session, and each page of events, is
//! judged by its tail and changed by one statement that first makes sure that nobody has written to the
//! session since, so that what has come to life meanwhile is left alone. The room is used again by the
//! database; giving it back to the file system is for its vacuum.

use async_trait::async_trait;
use mainstay_core::id::{Millis, Seq, SessionId};
use mainstay_core::port::StoreError;
use sqlx::Row as _;
use uuid::Uuid;

use super::PostgresStore;
use super::statement::{Arg, Statement};
use super::{commit, read};
use crate::retention::{self, Compacted, LISTED, Remove, Retained, Retention, is_idle};
use crate::rows::json;
use crate::value::signed;

const ACTION: &str = "apply the retention";
/// Events that one statement reads.
const PAGE: i64 = 512;

impl PostgresStore {
    /// Deletes idle sessions and compacts old bodies, or only tells how many where `dry_run` is set.
    /// Sessions that run, wait, are quarantined or held, owe or are owed something, or have a turn
    /// open, stay whole. Nodes may work beside it, and another may do the same at the same time.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; what was done before stays done. A session that cannot be read is
    /// passed over and named in the log.
    ///
    /// # Cancel safety
    /// Dropped midway, a part is done; doing it again goes on from there.
    pub async fn retain(
        &self,
        retention: Retention,
        dry_run: bool,
    ) -> Result<Retained, StoreError> {
        retention::retain(self, retention, dry_run).await
    }

    async fn listed(
        &self,
        sql: &'static str,
        before: Millis,
    ) -> Result<Vec<SessionId>, StoreError> {
        let mut all = Vec::new();
        let mut after = Uuid::nil();
        loop {
            let page = Statement::new(sql).bind(signed(before)).bind(after);
            let page = self.rows(ACTION, &page.bind(LISTED)).await?;
            if page.is_empty() {
                return Ok(all);
            }
            for row in &page {
                after = row
                    .try_get(0)
                    .map_err(|cause| self.failed(ACTION, cause.into()))?;
                all.push(SessionId(after));
            }
        }
    }
}

#[async_trait]
impl Remove for PostgresStore {
    async fn idle(&self, before: Millis) -> Result<Vec<SessionId>, StoreError> {
        self.listed(SESSION_IDLE, before).await
    }

    async fn bulky(&self, before: Millis) -> Result<Vec<SessionId>, StoreError> {
        self.listed(SESSION_BULKY, before).await
    }

    async fn expire(
        &self,
        session: SessionId,
        before: Millis,
        dry_run: bool,
    ) -> Result<Option<u64>, StoreError> {
        let (found, tail) = self.load(ACTION, session, &[], &[], None).await?;
        let (Some(version), Some(tail)) = (found.version, tail) else {
            return Ok(None);
        };
        if !is_idle(&tail, before) {
            return Ok(None);
        }
        if !dry_run {
            let drop = Statement::new(SESSION_EXPIRE).bind(session.0).bind(version);
            let gone = self.rows(ACTION, &drop).await?;
            self.cache.forget(session);
            if gone.is_empty() {
                return Ok(None);
            }
        }
        Ok(Some(tail.session.head))
    }

    async fn compact(
        &self,
        session: SessionId,
        before: Millis,
        after: Option<Seq>,
        dry_run: bool,
    ) -> Result<Compacted, StoreError> {
        let mut patience = self.pool.patience();
        loop {
            let (found, tail) = self.load(ACTION, session, &[], &[], None).await?;
            let (Some(version), Some(mut tail)) = (found.version, tail) else {
                return Ok(Compacted::default());
            };
            if tail.session.foreign.is_some() {
                return Ok(Compacted::default());
            }
            let from = retention::behind(&tail, after);
            let page = read::event_raw(session, from, PAGE);
            let page = self.rows(ACTION, &page).await?;
            let records = page.iter().map(|row| read::event_or_not(session, row));
            let records = records.collect::<Result<Vec<_>, _>>();
            let records = records.map_err(|error| self.failed(ACTION, error))?;
            let (done, stubs) = retention::compact(&tail, (before, after), records)
                .map_err(|cause| StoreError::Damaged { session, cause })?;
            if dry_run || done.through <= tail.session.compacted_through {
                return Ok(done);
            }
            tail.session.compacted_through = done.through;
            let stubs: Vec<_> = stubs
                .iter()
                .map(|stub| (stub.seq, json(&stub.data), &stub.compacted))
                .collect();
            let compact = Statement::new(EVENT_COMPACT)
                .bind(session.0)
                .bind(version)
                .bind(json(&tail.session))
                .bind(Arg::Json(Some(json(&stubs))));
            self.cache.forget(session);
            if !self.rows(ACTION, &compact).await?.is_empty() {
                return Ok(done);
            }
            // Somebody has written to it since it was read.
            if !patience.wait().await {
                return Err(commit::contended(ACTION, session));
            }
        }
    }
}

// session_idle: sessions that nobody has used since and that seem to have nothing to do. $2 is where the
// last page ended.
const SESSION_IDLE: &str = "
    SELECT id FROM session
     WHERE updated_at < $1 AND id > $2 AND NOT runnable AND due IS NULL AND owing IS NULL
       AND step IS NULL AND wake_at IS NULL
     ORDER BY id LIMIT $3";

// session_expire: a session with all its rows, if it is still as it was judged by. Whoever commits to it
// meanwhile waits, and then finds it gone.
const SESSION_EXPIRE: &str = "
    WITH gone AS (DELETE FROM session WHERE id = $1 AND version = $2 RETURNING id),
         events AS (DELETE FROM event WHERE session IN (SELECT id FROM gone)),
         claims AS (DELETE FROM claim WHERE session IN (SELECT id FROM gone)),
         inputs AS (DELETE FROM input WHERE session IN (SELECT id FROM gone)),
         items AS (DELETE FROM item WHERE session IN (SELECT id FROM gone)),
         steps AS (DELETE FROM step WHERE session IN (SELECT id FROM gone)),
         calls AS (DELETE FROM call WHERE session IN (SELECT id FROM gone)),
         executions AS (DELETE FROM execution WHERE session IN (SELECT id FROM gone))
    SELECT id FROM gone";

// session_bulky: sessions whose next event is old enough to become a stub. How far a session is compacted
// is read from its value's text, which Postgres' JSON would refuse for some of what it may hold: a quote
// inside a string is escaped there, so only the field itself looks like this.
const SESSION_BULKY: &str = "
    SELECT s.id FROM session s
      JOIN event e ON e.session = s.id
                  AND e.seq = coalesce(
                        substring(s.data FROM '\"compacted_through\":([0-9]+)')::bigint, 0) + 1
     WHERE e.at < $1 AND s.id > $2 AND s.created_at < $1
     ORDER BY s.id LIMIT $3";

// event_compact: stubs in place of events, if the session is still as they were judged by.
const EVENT_COMPACT: &str = "
    WITH same AS (
        UPDATE session SET version = version + 1, data = $3 WHERE id = $1 AND version = $2
        RETURNING id
    ), stubs AS (
        UPDATE event SET data = r ->> 1, compacted = r ->> 2
          FROM jsonb_array_elements($4) AS r
         WHERE session = (SELECT id FROM same) AND seq = (r ->> 0)::bigint AND event.compacted IS NULL
    )
    SELECT id FROM same";
