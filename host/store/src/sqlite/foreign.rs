//! Events that this build does not know, because a newer one had the file before. The file itself keeps
//! which types it holds, so that a look at a few rows tells whether there are any; only then the log is
//! searched, once, as the file is opened. A session that has one is marked: it is shown and not run.
//! The build that knows them all takes the mark away, and makes the session's row anew from its log,
//! in case the other has changed it.

use std::collections::HashSet;

use mainstay_core::event::knows;
use mainstay_core::id::SessionId;
use mainstay_core::project;
use mainstay_core::tail::{Changes, Tail};
use sqlx::{Connection, SqliteConnection};

use super::read;
use super::rows;

/// Marks the sessions that this build does not know all of, and takes marks away that are no longer
/// due.
pub(super) async fn settle(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let kinds: Vec<(String, u32)> = sqlx::query_as("SELECT type, version FROM kind")
        .fetch_all(&mut *conn)
        .await?;
    let unknown: Vec<_> = kinds
        .into_iter()
        .filter(|(kind, version)| !knows(kind, *version))
        .collect();
    let marked: Vec<String> = sqlx::query_scalar("SELECT session FROM foreign_event")
        .fetch_all(&mut *conn)
        .await?;
    if unknown.is_empty() && marked.is_empty() {
        return Ok(());
    }

    let mut tx = conn.begin_with("BEGIN IMMEDIATE").await?;
    let unknown = serde_json::to_string(&unknown).expect("types serialise");
    let found: Vec<(String, i64, String, i64)> = sqlx::query_as(FOREIGN_FIND)
        .bind(&unknown)
        .fetch_all(&mut *tx)
        .await?;
    let still: HashSet<&String> = found.iter().map(|(session, ..)| session).collect();
    for session in marked.iter().filter(|session| !still.contains(session)) {
        match session.parse() {
            Ok(id) => known_again(&mut tx, id).await?,
            Err(error) => tracing::warn!(%session, %error, "no session has such an id"),
        }
    }
    let rows = serde_json::to_string(&found).expect("rows serialise");
    sqlx::query(FOREIGN_PUT)
        .bind(&rows)
        .execute(&mut *tx)
        .await?;
    sqlx::query(FOREIGN_STOP).execute(&mut *tx).await?;
    if found.is_empty() {
        // Those sessions were deleted: the next open need not search.
        sqlx::query(KIND_FORGET)
            .bind(&unknown)
            .execute(&mut *tx)
            .await?;
    }
    tx.commit().await?;
    for (session, seq, kind, version) in found {
        tracing::warn!(%session, seq, kind, version, "a newer build wrote this event: the session is not run");
    }
    Ok(())
}

/// A session whose events are all known now. One whose row cannot be made from them keeps its mark.
async fn known_again(conn: &mut SqliteConnection, session: SessionId) -> Result<(), sqlx::Error> {
    let key = session.to_string();
    let tail = match rebuild(conn, session).await {
        Ok(tail) => tail,
        Err(Failed::Sql(error)) => return Err(error),
        Err(Failed::Log(cause)) => {
            tracing::error!(%session, %cause, "its row could not be made from its log: it is not run");
            return Ok(());
        }
    };
    if let Some(tail) = tail {
        let claimed: Option<i64> = sqlx::query_scalar("SELECT 1 FROM claim WHERE session = ?")
            .bind(&key)
            .fetch_optional(&mut *conn)
            .await?;
        rows::write_session(conn, &tail, claimed.is_some()).await?;
    }
    sqlx::query("DELETE FROM foreign_event WHERE session = ?")
        .bind(&key)
        .execute(conn)
        .await
        .map(drop)
}

enum Failed {
    Sql(sqlx::Error),
    Log(String),
}

impl From<sqlx::Error> for Failed {
    fn from(error: sqlx::Error) -> Self {
        Self::Sql(error)
    }
}

impl From<read::ReadError> for Failed {
    fn from(error: read::ReadError) -> Self {
        match error {
            read::ReadError::Sql(error) => Self::Sql(error),
            read::ReadError::Damaged { cause, .. } => Self::Log(cause),
        }
    }
}

/// The session's live end as its log tells it, its claim apart. `None` for one that is gone.
async fn rebuild(conn: &mut SqliteConnection, session: SessionId) -> Result<Option<Tail>, Failed> {
    const PAGE: u32 = 512;
    let mut tail: Option<Tail> = None;
    loop {
        let after = tail.as_ref().map_or(0, |tail| tail.session.head);
        let Some((records, _)) = read::event_page(conn, session, after, PAGE).await? else {
            return Ok(None);
        };
        if records.is_empty() {
            break;
        }
        for record in records {
            let event = record
                .decode()
                .map_err(|error| Failed::Log(error.to_string()))?;
            let Some(tail) = &mut tail else {
                tail = project::begin(&event);
                if tail.is_none() {
                    return Err(Failed::Log("it does not begin with its creation".into()));
                }
                continue;
            };
            // The other tables are as they were: nothing but inputs was added meanwhile.
            project::project(tail, &event, &mut Changes::default())
                .map_err(|error| Failed::Log(error.to_string()))?;
        }
    }
    // Where it was imported from is in no event.
    let origin: Option<String> =
        sqlx::query_scalar("SELECT data ->> '$.origin' FROM session WHERE id = ?")
            .bind(session.to_string())
            .fetch_one(&mut *conn)
            .await?;
    if let (Some(tail), Some(origin)) = (&mut tail, origin) {
        tail.session.origin = serde_json::from_str(&origin)
            .map_err(|error| Failed::Log(format!("its origin: {error}")))?;
    }
    Ok(tail)
}

// foreign_find: the first event of each session that has one of these types.
const FOREIGN_FIND: &str = "
    SELECT session, min(seq), type, version FROM event
     WHERE (type, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))
     GROUP BY session";

const FOREIGN_PUT: &str = "
    INSERT INTO foreign_event (session, seq, type, version)
    SELECT value ->> 0, value ->> 1, value ->> 2, value ->> 3 FROM json_each(?) WHERE true
    ON CONFLICT (session) DO UPDATE SET
        seq = excluded.seq, type = excluded.type, version = excluded.version";

// foreign_stop: nothing of it is due here.
const FOREIGN_STOP: &str = "
    UPDATE session SET runnable = false, due = false, wake_at = NULL, owing = false
     WHERE id IN (SELECT session FROM foreign_event)";

const KIND_FORGET: &str = "
    DELETE FROM kind WHERE (type, version) IN (SELECT value ->> 0, value ->> 1 FROM json_each(?))";
