//! A database as the source or the target of a move; see [`crate::moving`].

use async_trait::async_trait;
use mainstay_core::id::{Digest, OwnerId, SessionId};
use mainstay_core::port::StoreError;
use sqlx::postgres::PgRow;
use sqlx::{Executor as _, PgConnection, Row as _};

use super::PostgresStore;
use super::read;
use super::statement::Statement;
use super::write;
use crate::moving::parcel::{call_status, event, input_status};
use crate::moving::{Living, Movable, Parcel};
use crate::rows::{Rows, SessionRow};
use crate::value::{ReadError, unsigned};

const ACTION: &str = "move sessions";
/// Events that one statement reads.
const PAGE: i64 = 2048;

#[async_trait]
impl Movable for PostgresStore {
    fn place(&self) -> String {
        self.place.clone()
    }

    async fn others(&self) -> Result<u64, StoreError> {
        let statement = Statement::new(OTHERS).bind(self.options.application.as_str());
        let row = self.one(ACTION, &statement).await?;
        let count = row.try_get(0).map(unsigned);
        count.map_err(|cause| self.failed(ACTION, cause.into()))
    }

    async fn living(&self) -> Result<Vec<Living>, StoreError> {
        let statement = Statement::new(LIVING).bind(self.clock.at());
        let rows = self.rows(ACTION, &statement).await?;
        let read = |row: &PgRow| {
            Ok(Living {
                session: SessionId(row.try_get(0)?),
                owner: OwnerId(row.try_get(1)?),
                left_ms: unsigned(row.try_get(2)?),
            })
        };
        let living: Result<_, sqlx::Error> = rows.iter().map(read).collect();
        living.map_err(|cause| self.failed(ACTION, cause.into()))
    }

    async fn session_ids(&self) -> Result<Vec<SessionId>, StoreError> {
        let statement = Statement::new("SELECT id FROM session ORDER BY id");
        let rows = self.rows(ACTION, &statement).await?;
        let ids = rows.iter().map(|row| row.try_get(0).map(SessionId));
        let ids: Result<_, sqlx::Error> = ids.collect();
        ids.map_err(|cause| self.failed(ACTION, cause.into()))
    }

    async fn blob_digests(&self) -> Result<Vec<Digest>, StoreError> {
        let statement = Statement::new("SELECT digest FROM blob ORDER BY digest");
        let rows = self.rows(ACTION, &statement).await?;
        let digests: Result<_, sqlx::Error> = rows.iter().map(|row| row.try_get(0)).collect();
        digests.map_err(|cause| self.failed(ACTION, cause.into()))
    }

    async fn parcel(&self, session: SessionId) -> Result<Option<Parcel>, StoreError> {
        let conn = self.pool.connect().await;
        let mut conn = conn.map_err(|trouble| trouble.during(ACTION))?;
        let read = self.read_on(&mut conn, session).await;
        read.map_err(|error| self.failed(ACTION, error))
    }

    async fn parcel_put(&self, parcel: &Parcel) -> Result<(), StoreError> {
        let conn = self.pool.connect().await;
        let mut conn = conn.map_err(|trouble| trouble.during(ACTION))?;
        // The connection ends with it, and an open transaction with the connection.
        let done = self.put_on(&mut conn, parcel).await;
        self.cache.forget(parcel.session());
        done.map_err(|error| self.failed(ACTION, error))
    }

    async fn rename(&self, name: &str) -> Result<(), StoreError> {
        let statement = Statement::new("UPDATE meta SET value = $1 WHERE key = 'name'").bind(name);
        self.rows(ACTION, &statement).await.map(drop)
    }
}

// Whoever else runs sessions here, or moves them.
const OTHERS: &str = "
    SELECT count(*) FROM pg_stat_activity
     WHERE datname = current_database() AND application_name <> $1
       AND (application_name = 'mainstay' OR application_name LIKE 'mainstay move %')";

const LIVING: &str = "
    SELECT session, owner, expires_at - store_now($1) FROM claim
     WHERE expires_at > store_now($1) ORDER BY session";

// When a claim runs out is for the target to say.
const SESSION: &str = "
    SELECT s.id::text, s.created_at, s.updated_at, s.head, s.step, s.runnable, s.due IS NOT NULL,
           s.wake_at, s.owing IS NOT NULL, s.shown, s.data, c.execution::text, c.owner::text, c.data
      FROM session s LEFT JOIN claim c ON c.session = s.id WHERE s.id = $1";

const INPUTS: &str = "
    SELECT id::text, seq, status, intent, data FROM input WHERE session = $1 ORDER BY seq";

const ITEMS: &str = "
    SELECT seq, n, is_message, bytes, data FROM item WHERE session = $1 ORDER BY seq, n";

const STEPS: &str = "
    SELECT seq, started_at, settled_at, runner, provider, usage FROM step WHERE session = $1
     ORDER BY seq";

const CALLS: &str = "
    SELECT step, id, status, data FROM call WHERE session = $1 ORDER BY step, id COLLATE \"C\"";

const EXECUTIONS: &str = "
    SELECT id::text, owner::text, started, ended, terminal FROM execution WHERE session = $1
     ORDER BY id";

impl PostgresStore {
    async fn put_on(&self, conn: &mut PgConnection, parcel: &Parcel) -> Result<(), ReadError> {
        let session = parcel.session();
        conn.execute(sqlx::raw_sql("BEGIN")).await?;
        let drop = Statement::new("SELECT session_drop($1)").bind(session.0);
        drop.rows(conn, self.options.prepared).await?;
        let mut version = None;
        let pieces = parcel.pieces();
        let last = pieces.len() - 1;
        for (n, piece) in pieces.iter().enumerate() {
            let claim = parcel.claim.as_ref().filter(|_| n == last);
            let put = write::session_moved(
                session,
                (version, self.clock.at()),
                &parcel.row,
                claim,
                piece,
            );
            let answer = put.rows(conn, self.options.prepared).await?;
            let answer = answer.first().ok_or(sqlx::Error::RowNotFound)?;
            match write::outcome(answer)? {
                (write::Outcome::Done { version: now, .. }, _) => version = Some(now),
                _ => {
                    let cause = "another process makes it in the target".into();
                    return Err(ReadError::Damaged { session, cause });
                }
            }
        }
        conn.execute(sqlx::raw_sql("COMMIT")).await?;
        Ok(())
    }

    async fn read_on(
        &self,
        conn: &mut PgConnection,
        session: SessionId,
    ) -> Result<Option<Parcel>, ReadError> {
        let begin = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";
        conn.execute(sqlx::raw_sql(begin)).await?;
        let prepared = self.options.prepared;
        let about = |sql| Statement::new(sql).bind(session.0);
        let found = about(SESSION).rows(conn, prepared).await?;
        let Some(found) = found.first() else {
            return Ok(None);
        };
        let row: SessionRow = (
            found.try_get(0)?,
            unsigned(found.try_get(1)?),
            unsigned(found.try_get(2)?),
            unsigned(found.try_get(3)?),
            number(found, 4)?,
            found.try_get(5)?,
            found.try_get(6)?,
            number(found, 7)?,
            found.try_get(8)?,
            number(found, 9)?,
            found.try_get(10)?,
        );
        let claim = match found.try_get(11)? {
            Some(execution) => Some((execution, found.try_get(12)?, found.try_get(13)?)),
            None => None,
        };
        let key = row.0.clone();
        let mut rows = Rows::default();
        loop {
            let after = rows.events.last().map_or(0, |row| row.1);
            let page = read::event_raw(session, after, PAGE);
            let page = page.rows(conn, prepared).await?;
            for row in &page {
                rows.events.push(event(read::event_row(row, 0)?));
            }
            if page.len() < PAGE as usize {
                break;
            }
        }
        for row in about(INPUTS).rows(conn, prepared).await? {
            rows.inputs.push((
                row.try_get(0)?,
                key.clone(),
                unsigned(row.try_get(1)?),
                input_status(session, row.try_get(2)?)?,
                row.try_get(3)?,
                row.try_get(4)?,
            ));
        }
        for row in about(ITEMS).rows(conn, prepared).await? {
            rows.items.push((
                key.clone(),
                unsigned(row.try_get(0)?),
                u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(u32::MAX),
                row.try_get(2)?,
                unsigned(row.try_get(3)?),
                row.try_get(4)?,
            ));
        }
        for row in about(STEPS).rows(conn, prepared).await? {
            rows.steps.push((
                key.clone(),
                unsigned(row.try_get(0)?),
                unsigned(row.try_get(1)?),
                number(&row, 2)?,
                row.try_get(3)?,
                row.try_get(4)?,
                row.try_get(5)?,
            ));
        }
        for row in about(CALLS).rows(conn, prepared).await? {
            rows.calls.push((
                key.clone(),
                unsigned(row.try_get(0)?),
                row.try_get(1)?,
                call_status(session, row.try_get(2)?)?,
                row.try_get(3)?,
            ));
        }
        for row in about(EXECUTIONS).rows(conn, prepared).await? {
            rows.executions.push((
                key.clone(),
                row.try_get(0)?,
                row.try_get(1)?,
                unsigned(row.try_get(2)?),
                number(&row, 3)?,
                row.try_get(4)?,
            ));
        }
        Ok(Some(Parcel {
            session,
            row,
            claim,
            rows,
        }))
    }
}

fn number(row: &PgRow, column: usize) -> Result<Option<u64>, sqlx::Error> {
    Ok(row.try_get::<Option<i64>, _>(column)?.map(unsigned))
}
