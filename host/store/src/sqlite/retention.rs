//! What time takes away from a file. Each session, and each page of events, is judged and changed in
//! one transaction, so that what has come to life meanwhile is left alone. At the end the pages that
//! became free are given back to the file system.

use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use mainstay_core::id::{Millis, Seq, SessionId};
use mainstay_core::port::StoreError;
use mainstay_core::tail::Tail;
use sqlx::SqliteConnection;

use super::doctor::page;
use super::read::{self, ReadError, signed};
use super::rows::write_session;
use super::writer::{Action, SESSION_DROP};
use super::{Shared, SqliteStore};
use crate::retention::{self, Compacted, LISTED, Remove, Retained, Retention, is_idle};

const ACTION: &str = "apply the retention";
/// Free pages that one transaction gives back: some tens of milliseconds.
const SHRUNK: u32 = 2048;

impl SqliteStore {
    /// Deletes idle sessions and compacts old bodies, or only tells how many where `dry_run` is set.
    /// Sessions that run, wait, are quarantined or held, owe or are owed something, or have a turn
    /// open, stay whole.
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
        let retained = retention::retain(self, retention, dry_run).await?;
        if !dry_run && (retained.sessions > 0 || retained.bodies > 0) {
            self.shrink().await?;
        }
        Ok(retained)
    }

    async fn listed(
        &self,
        sql: &'static str,
        before: Millis,
    ) -> Result<Vec<SessionId>, StoreError> {
        let failed = |cause: sqlx::Error| StoreError::Unavailable {
            action: ACTION,
            cause: cause.into(),
        };
        let mut all = Vec::new();
        let mut after = String::new();
        loop {
            let mut conn = self.reader(ACTION).await?;
            let ids: Vec<String> = sqlx::query_scalar(sql)
                .bind(signed(before))
                .bind(&after)
                .bind(LISTED)
                .fetch_all(&mut *conn)
                .await
                .map_err(failed)?;
            let Some(last) = ids.last() else {
                return Ok(all);
            };
            after.clone_from(last);
            all.extend(ids.iter().filter_map(|id| id.parse::<SessionId>().ok()));
        }
    }

    /// Runs one transaction in the writer's turn and gives what it made of the session.
    async fn judged<T, F>(&self, session: SessionId, judge: F) -> Result<T, StoreError>
    where
        T: Send + Default + 'static,
        F: for<'c> Fn(
                &'c mut SqliteConnection,
                &'c Arc<Shared>,
            ) -> futures::future::BoxFuture<'c, Result<T, ReadError>>
            + Send
            + Sync
            + 'static,
    {
        let told: Arc<Mutex<Option<Result<T, String>>>> = Arc::default();
        let (slot, shared, judge) = (Arc::clone(&told), Arc::clone(&self.shared), Arc::new(judge));
        let action: Action = Box::new(move |conn| {
            let (slot, shared, judge) = (slot.clone(), shared.clone(), judge.clone());
            Box::pin(async move {
                let done = match judge(conn, &shared).await {
                    Ok(done) => Ok(done),
                    Err(ReadError::Sql(error)) => return Err(error),
                    Err(ReadError::Damaged { cause, .. }) => Err(cause),
                };
                *slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
                Ok(1)
            })
        });
        self.run(ACTION, action).await?;
        let done = told.lock().unwrap_or_else(PoisonError::into_inner).take();
        match done {
            Some(Err(cause)) => Err(StoreError::Damaged { session, cause }),
            Some(Ok(done)) => Ok(done),
            None => Ok(T::default()),
        }
    }

    /// Gives free pages back, a few at a time, so that commits go on in between.
    async fn shrink(&self) -> Result<(), StoreError> {
        loop {
            let action: Action = Box::new(move |conn| {
                Box::pin(async move {
                    let free = free_pages(conn).await?;
                    let shrink = format!("PRAGMA incremental_vacuum({SHRUNK})");
                    sqlx::query(sqlx::AssertSqlSafe(shrink))
                        .fetch_all(&mut *conn)
                        .await?;
                    // A file that was made without the setting keeps its pages for itself.
                    Ok(free.saturating_sub(free_pages(conn).await?))
                })
            });
            if self.run("shrink the file", action).await? == 0 {
                return Ok(());
            }
        }
    }
}

#[async_trait]
impl Remove for SqliteStore {
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
        self.judged(session, move |conn, shared| {
            Box::pin(async move {
                let Some(tail) = tail(conn, session).await? else {
                    return Ok(None);
                };
                if !is_idle(&tail, before) {
                    return Ok(None);
                }
                if !dry_run {
                    let key = session.to_string();
                    shared.cache().forget([session]);
                    for sql in SESSION_DROP {
                        sqlx::query(*sql).bind(&key).execute(&mut *conn).await?;
                    }
                    sqlx::query("DELETE FROM session WHERE id = ?")
                        .bind(&key)
                        .execute(conn)
                        .await?;
                }
                Ok(Some(tail.session.head))
            })
        })
        .await
    }

    async fn compact(
        &self,
        session: SessionId,
        before: Millis,
        after: Option<Seq>,
        dry_run: bool,
    ) -> Result<Compacted, StoreError> {
        self.judged(session, move |conn, shared| {
            Box::pin(compact(
                conn,
                session,
                (before, after),
                dry_run,
                Arc::clone(shared),
            ))
        })
        .await
    }
}

async fn free_pages(conn: &mut SqliteConnection) -> Result<u64, sqlx::Error> {
    let free: i64 = sqlx::query_scalar("PRAGMA freelist_count")
        .fetch_one(conn)
        .await?;
    Ok(u64::try_from(free).unwrap_or(0))
}

async fn tail(conn: &mut SqliteConnection, session: SessionId) -> Result<Option<Tail>, ReadError> {
    let tail = read::tails(conn, &[session]).await?.remove(&session);
    tail.transpose()
        .map_err(|cause| ReadError::Damaged { session, cause })
}

async fn compact(
    conn: &mut SqliteConnection,
    session: SessionId,
    (before, after): (Millis, Option<Seq>),
    dry_run: bool,
    shared: Arc<Shared>,
) -> Result<Compacted, ReadError> {
    let key = session.to_string();
    let Some(mut tail) = tail(conn, session).await? else {
        return Ok(Compacted::default());
    };
    if tail.session.foreign.is_some() {
        return Ok(Compacted::default());
    }
    let records = page(conn, &key, retention::behind(&tail, after)).await?;
    let (done, stubs) = retention::compact(&tail, (before, after), records)
        .map_err(|cause| ReadError::Damaged { session, cause })?;
    if !dry_run {
        for stub in stubs {
            sqlx::query(EVENT_COMPACT)
                .bind(&key)
                .bind(signed(stub.seq))
                .bind(stub.data.to_string())
                .bind(&stub.compacted)
                .execute(&mut *conn)
                .await?;
        }
    }
    if !dry_run && done.through > tail.session.compacted_through {
        // Nobody but the writer puts tails there, and this is the writer's turn.
        shared.cache().forget([session]);
        tail.session.compacted_through = done.through;
        let claimed = tail.claim.is_some();
        write_session(conn, &tail, claimed).await?;
    }
    Ok(done)
}

// session_idle: sessions that nobody has used since and that seem to have nothing to do. ?2 is where the
// last page ended.
const SESSION_IDLE: &str = "
    SELECT id FROM session s
     WHERE s.updated_at < ?1 AND s.id > ?2 AND NOT s.runnable AND NOT s.due AND NOT s.owing
       AND s.step IS NULL AND s.wake_at IS NULL
     ORDER BY s.id LIMIT ?3";

// session_bulky: sessions whose next event is old enough to become a stub.
const SESSION_BULKY: &str = "
    SELECT s.id FROM session s
      JOIN event e ON e.session = s.id
                  AND e.seq = coalesce(s.data ->> '$.compacted_through', 0) + 1
     WHERE e.at < ?1 AND s.id > ?2 AND s.created_at < ?1
     ORDER BY s.id LIMIT ?3";

const EVENT_COMPACT: &str = "
    UPDATE event SET data = ?3, compacted = ?4 WHERE session = ?1 AND seq = ?2 AND compacted IS NULL";
