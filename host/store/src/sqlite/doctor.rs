//! Examines a database: the file, its schema, and the invariants that rows can show. It reads session
//! by session and page by page, each in a read transaction of its own, so that a writer beside it is
//! not held up and memory is bounded by one session's rows. Events do not change once they are
//! written, so what earlier transactions read of a log still holds in the one that compares the rows.

mod rows;

use std::collections::BTreeMap;
use std::path::PathBuf;

use mainstay_core::event::Record;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::invariant::{Broken, Check, Findings, Invariant};
use mainstay_core::port::StoreError;
use sqlx::{Connection, SqliteConnection};

use super::direct::is_broken;
use super::read::signed;
use super::{MIGRATIONS, SqliteStore, schema};
use crate::examine::{KEPT, damage};

const ACTION: &str = "examine the database";
/// Events that one transaction reads.
const PAGE: u32 = 512;
/// Breaches that are told; more are counted.
const TOLD: usize = 1000;
/// Problems of the file that are told.
const PROBLEMS: u32 = 100;

/// What an examination has found.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Or what names the database, where it is no file.
    pub file: PathBuf,
    /// The newest migration that the database has.
    pub schema: i64,
    /// What SQLite says of the file's structure, and what could not be read. Empty where all is well.
    pub problems: Vec<String>,
    /// Where tables, indexes and triggers are not those of this build's migrations.
    pub drift: Vec<String>,
    pub sessions: u64,
    pub events: u64,
    /// Sessions with events of types that this build does not know; their rows were not compared.
    pub not_compared: u64,
    /// Breaches, some of each session.
    pub broken: Vec<(SessionId, Broken)>,
    /// Breaches by invariant, all of them.
    pub counts: BTreeMap<Invariant, u64>,
}

impl Report {
    /// Nothing is wrong.
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.problems.is_empty() && self.drift.is_empty() && self.counts.is_empty()
    }
}

impl SqliteStore {
    /// Examines the database. Writes nothing and can be done beside the process that owns the file.
    ///
    /// `quick` leaves out whether indexes agree with their tables. `progress` hears how many sessions
    /// are done, and of how many.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`] where the file cannot be read at all; what is wrong inside it is in
    /// the report.
    ///
    /// # Cancel safety
    /// Nothing is left behind.
    pub async fn examine(
        &self,
        quick: bool,
        progress: impl Fn(u64, u64) + Send + Sync,
    ) -> Result<Report, StoreError> {
        let failed = |cause: sqlx::Error| StoreError::Unavailable {
            action: ACTION,
            cause: cause.into(),
        };
        let mut report = Report {
            file: self.file().to_owned(),
            ..Report::default()
        };
        let mut conn = self.reader(ACTION).await?;
        match file(&mut conn, quick).await {
            Ok(problems) => report.problems = problems,
            Err(error) => note(&mut report.problems, error).map_err(failed)?,
        }
        report.schema = schema(&mut conn).await.map_err(failed)?;
        match drift(&mut conn).await {
            Ok(drift) => report.drift = drift,
            Err(error) => note(&mut report.problems, error).map_err(failed)?,
        }

        if let Err(error) = contents(&mut conn, &mut report.problems).await {
            note(&mut report.problems, error).map_err(failed)?;
        }

        let total: i64 = sqlx::query_scalar("SELECT count(*) FROM session")
            .fetch_one(&mut *conn)
            .await
            .or_else(|error| note(&mut report.problems, error).map(|()| 0))
            .map_err(failed)?;
        let mut last = String::new();
        loop {
            let next = match session_next(&mut conn, &last).await {
                Ok(next) => next,
                Err(error) => {
                    note(&mut report.problems, error).map_err(failed)?;
                    None
                }
            };
            let Some(key) = next else { break };
            match key.parse::<SessionId>() {
                Err(_) => report.problems.push(format!("{key:?} names no session")),
                Ok(session) => match examine(&mut conn, session, &key).await {
                    Ok(None) => {}
                    Ok(Some((found, events))) => report.add(session, found, events),
                    Err(error) => {
                        report.sessions += 1;
                        let mut problems = Vec::new();
                        note(&mut problems, error).map_err(failed)?;
                        let told = problems.into_iter();
                        let told = told.map(|problem| format!("session {session}: {problem}"));
                        report.problems.extend(told);
                    }
                },
            }
            last = key;
            progress(report.sessions, u64::try_from(total).unwrap_or(0));
        }
        Ok(report)
    }
}

impl Report {
    pub(crate) fn add(&mut self, session: SessionId, found: Findings, events: u64) {
        self.sessions += 1;
        self.events += events;
        self.not_compared += u64::from(found.unknown > 0);
        for (invariant, count) in found.counts {
            *self.counts.entry(invariant).or_default() += count;
        }
        let room = TOLD.saturating_sub(self.broken.len());
        let told = found.broken.into_iter().take(room);
        self.broken.extend(told.map(|broken| (session, broken)));
    }
}

fn is_damage(error: &sqlx::Error) -> bool {
    // A value of a kind that its column cannot hold.
    is_broken(error)
        || matches!(
            error,
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_)
        )
}

/// Keeps an error that says that the file is damaged; any other one is given back.
fn note(problems: &mut Vec<String>, error: sqlx::Error) -> Result<(), sqlx::Error> {
    if !is_damage(&error) {
        return Err(error);
    }
    problems.push(error.to_string());
    Ok(())
}

async fn file(conn: &mut SqliteConnection, quick: bool) -> Result<Vec<String>, sqlx::Error> {
    let check = if quick {
        "quick_check"
    } else {
        "integrity_check"
    };
    let sql = sqlx::AssertSqlSafe(format!("PRAGMA {check}({PROBLEMS})"));
    let mut said: Vec<String> = sqlx::query_scalar(sql).fetch_all(conn).await?;
    said.retain(|line| line != "ok");
    Ok(said)
}

/// Holds what is kept under a digest to it.
async fn contents(
    conn: &mut SqliteConnection,
    problems: &mut Vec<String>,
) -> Result<(), sqlx::Error> {
    for (next, what, advice) in KEPT {
        let mut last = String::new();
        loop {
            let row: Option<(String, Vec<u8>)> = sqlx::query_as(next)
                .bind(&last)
                .fetch_optional(&mut *conn)
                .await?;
            let Some((digest, bytes)) = row else { break };
            problems.extend(damage(&digest, &bytes, what, advice));
            last = digest;
        }
    }
    Ok(())
}

type Piece = (String, String, Option<String>);

async fn pieces(conn: &mut SqliteConnection) -> Result<Vec<Piece>, sqlx::Error> {
    sqlx::query_as(
        "SELECT type, name, sql FROM sqlite_schema
          WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!' ORDER BY type, name",
    )
    .fetch_all(conn)
    .await
}

/// Compares the schema with that of a fresh database.
async fn drift(conn: &mut SqliteConnection) -> Result<Vec<String>, sqlx::Error> {
    let mut fresh = SqliteConnection::connect("sqlite::memory:").await?;
    MIGRATIONS
        .run(&mut fresh)
        .await
        .map_err(|error| sqlx::Error::Migrate(Box::new(error)))?;
    let expected = pieces(&mut fresh).await?;
    fresh.close().await?;
    let found = pieces(&mut *conn).await?;

    let mut drift = Vec::new();
    for (kind, name, sql) in &expected {
        match found
            .iter()
            .find(|(of, known, _)| of == kind && known == name)
        {
            None => drift.push(format!("{kind} {name} is missing")),
            Some((_, _, held)) if held != sql => {
                drift.push(format!("{kind} {name} is not as this build makes it"));
            }
            Some(_) => {}
        }
    }
    for (kind, name, _) in &found {
        if !expected
            .iter()
            .any(|(of, known, _)| of == kind && known == name)
        {
            drift.push(format!("{kind} {name} is none of this build's"));
        }
    }
    let applied: Vec<(i64, Vec<u8>)> =
        sqlx::query_as("SELECT version, checksum FROM _sqlx_migrations ORDER BY version")
            .fetch_all(conn)
            .await?;
    for (version, checksum) in applied {
        let known = MIGRATIONS.iter().find(|known| known.version == version);
        if known.is_none_or(|known| *known.checksum != checksum[..]) {
            drift.push(format!("migration {version} is not the one of this build"));
        }
    }
    Ok(drift)
}

// session_next: the next session that any table names, whether or not it has a row of its own.
const SESSION_NEXT: &str = "
    SELECT min(next) FROM (
        SELECT min(id) AS next FROM session WHERE id > ?1
        UNION ALL SELECT min(session) FROM event WHERE session > ?1
        UNION ALL SELECT min(session) FROM claim WHERE session > ?1
        UNION ALL SELECT min(session) FROM input WHERE session > ?1
        UNION ALL SELECT min(session) FROM item WHERE session > ?1
        UNION ALL SELECT min(session) FROM step WHERE session > ?1
        UNION ALL SELECT min(session) FROM call WHERE session > ?1
        UNION ALL SELECT min(session) FROM execution WHERE session > ?1)";

async fn session_next(
    conn: &mut SqliteConnection,
    after: &str,
) -> Result<Option<String>, sqlx::Error> {
    sqlx::query_scalar(SESSION_NEXT)
        .bind(after)
        .fetch_one(conn)
        .await
}

/// Examines one session. `None` if it is gone by now. Gives the number of its events too.
async fn examine(
    conn: &mut SqliteConnection,
    session: SessionId,
    key: &str,
) -> Result<Option<(Findings, u64)>, sqlx::Error> {
    let mut check = Check::new();
    let mut events = 0;
    loop {
        let mut tx = conn.begin().await?;
        let page = page(&mut tx, key, check.last()).await?;
        let count = page.len();
        events += count as u64;
        for (seq, record) in page {
            match record {
                Ok(record) => check.take(&Record { session, ..record }),
                Err(cause) => check.skip(seq, &cause),
            }
        }
        if count < PAGE as usize {
            // The log has been read to its end, and the rows of this snapshot are as of that end.
            let stored = rows::read(&mut tx, &mut check, session, key).await?;
            tx.rollback().await?;
            let Some(stored) = stored else {
                return Ok(None);
            };
            return Ok(Some((check.finish(&stored), events)));
        }
        tx.rollback().await?;
    }
}

type EventColumns = (
    i64,
    String,
    String,
    i64,
    i64,
    Option<String>,
    Option<String>,
    String,
    Option<String>,
);

/// The next events of a session. What cannot be read is told in words.
pub(super) async fn page(
    conn: &mut SqliteConnection,
    key: &str,
    after: Seq,
) -> Result<Vec<(Seq, Result<Record, String>)>, sqlx::Error> {
    let rows: Vec<EventColumns> = sqlx::query_as(
        "SELECT seq, id, type, version, at, execution, recovery, data, compacted
           FROM event WHERE session = ? AND seq > ? ORDER BY seq LIMIT ?",
    )
    .bind(key)
    .bind(signed(after))
    .bind(PAGE)
    .fetch_all(conn)
    .await?;
    Ok(rows
        .into_iter()
        .map(|row| (unsigned(row.0), record(row)))
        .collect())
}

fn record(row: EventColumns) -> Result<Record, String> {
    let (seq, id, kind, version, at, execution, recovery, data, compacted) = row;
    let wrong = |error: uuid::Error| error.to_string();
    Ok(Record {
        session: SessionId(uuid::Uuid::nil()),
        seq: unsigned(seq),
        id: id.parse().map_err(wrong)?,
        kind,
        version: u32::try_from(version).unwrap_or(u32::MAX),
        at: unsigned(at),
        execution: execution.map(|id| id.parse()).transpose().map_err(wrong)?,
        recovery: recovery.map(|id| id.parse()).transpose().map_err(wrong)?,
        data: serde_json::from_str(&data).map_err(|error| error.to_string())?,
        compacted,
    })
}

fn unsigned(number: i64) -> u64 {
    u64::try_from(number).unwrap_or(0)
}
