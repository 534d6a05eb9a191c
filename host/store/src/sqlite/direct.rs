//! SQLite without the way to sqlx's thread: statements that run where they are called, on the handle of
//! a connection that sqlx has opened. For commits, whose ten statements would otherwise leave the thread
//! that stores them and come back to it twenty times.

use rusqlite::config::DbConfig;
use rusqlite::types::Type;
use rusqlite::{Connection, Error, Params, Row};
use sqlx::sqlite::{LockedSqliteHandle, SqliteConnection};

use crate::value::ReadError;

/// A connection whose statements run on the caller's thread.
///
/// # Safety
/// It is used by one thread at a time, for as long as the handle is borrowed, and dropped before that ends.
///
/// # Errors
/// None so far: the handle is one that works.
pub(super) unsafe fn of(handle: &mut LockedSqliteHandle<'_>) -> Result<Connection, Error> {
    // SAFETY: the handle is open, and sqlx does not touch it for as long as it is borrowed. What is made
    // of it does not close it, and finalises its own statements when it is dropped.
    unsafe { Connection::from_handle(handle.as_raw_handle().as_ptr()) }
}

/// Runs statements on the handle of a connection, within the transaction that it is in.
///
/// # Errors
/// That of the statements, or the connection's thread is gone.
pub(super) async fn on<T>(
    conn: &mut SqliteConnection,
    run: impl FnOnce(&Connection) -> Result<T, Error>,
) -> Result<T, sqlx::Error> {
    let mut handle = conn.lock_handle().await?;
    // SAFETY: it is dropped here, before the handle, and no other thread sees it.
    let done = unsafe { of(&mut handle) }.and_then(|db| run(&db));
    done.map_err(|error| sqlx::Error::Decode(error.into()))
}

/// Keeps the statements of a connection as they were prepared, whatever is bound to them. Else SQLite
/// prepares those anew whose limit is bound, each time, in case another plan suits it better.
///
/// # Errors
/// The connection's thread is gone.
pub(super) async fn steady(conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
    let steady = |db: &Connection| db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true);
    on(conn, steady).await.map(drop)
}

/// All rows that a statement gives, which is kept for the next time.
pub(super) fn rows<T>(
    db: &Connection,
    sql: &str,
    params: impl Params,
    read: impl FnMut(&Row<'_>) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    db.prepare_cached(sql)?.query_map(params, read)?.collect()
}

/// Rows that cannot be read fail like a broken statement.
pub(super) fn unreadable(error: ReadError) -> Error {
    let cause = match error {
        ReadError::Sql(error) => error.into(),
        ReadError::Damaged { session, cause } => {
            format!("session {session} is damaged: {cause}").into()
        }
    };
    Error::FromSqlConversionFailure(0, Type::Text, cause)
}

const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READ_ONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const CANNOT_OPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NOT_A_DATABASE: i32 = 26;

/// SQLite's primary result code.
fn code(error: &Error) -> Option<i32> {
    Some(error.sqlite_error()?.extended_code & 0xff)
}

pub(super) fn is_busy(error: &Error) -> bool {
    matches!(code(error), Some(BUSY | LOCKED))
}

/// What was to be stored breaks a rule of the schema.
pub(super) fn is_constraint(error: &Error) -> bool {
    code(error) == Some(CONSTRAINT)
}

/// No other commit would fare better.
pub(super) fn is_lasting(error: &Error) -> bool {
    matches!(
        code(error),
        Some(BUSY | LOCKED | READ_ONLY | IO | CORRUPT | CANNOT_OPEN | NOT_A_DATABASE)
    )
}

/// Whether an error, or a cause of it, says that a database file is broken, and not only out of reach.
#[must_use]
pub fn is_broken(error: &(dyn std::error::Error + 'static)) -> bool {
    let broken = |error: &(dyn std::error::Error + 'static)| {
        let of_sqlx = |error: &sqlx::Error| error.as_database_error()?.code()?.parse::<i32>().ok();
        let found = error.downcast_ref().and_then(of_sqlx);
        let found = found.map(|code| code & 0xff);
        let found = found.or_else(|| error.downcast_ref().and_then(code));
        matches!(found, Some(CORRUPT | NOT_A_DATABASE))
    };
    std::iter::successors(Some(error), |error| error.source()).any(broken)
}

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use crate::sqlite::{Options, SqliteStore};

    #[tokio::test]
    async fn a_reader_prepares_a_statement_once() {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path().join("a.db"), Options::default());
        let store = store.await.unwrap();
        let mut reader = store.reader("test").await.unwrap();
        let prepared = super::on(&mut reader, |db| {
            let mut statement = db.prepare("SELECT id FROM session ORDER BY id LIMIT ?")?;
            for limit in [1, 2, 3] {
                assert!(!statement.exists([limit])?);
            }
            Ok(statement.get_status(StatementStatus::RePrepare))
        });
        assert_eq!(
            prepared.await.unwrap(),
            0,
            "times that it was prepared again"
        );
        drop(reader);
        store.close().await;
    }
}
