//! Who owns a file, said in the file itself. The lock beside it can be removed, and does not know a
//! database by another of its names; so each owner stamps the database as it opens it, and writes only
//! where its own stamp still stands, which is looked at inside each transaction.

use mainstay_core::id::OwnerId;
use rusqlite::{Connection, Error};
use sqlx::SqliteConnection;

/// What a process that was overtaken is told.
pub(super) const TAKEN_OVER: &str =
    "another process has opened this database and owns it now; stop this one";

/// Kept as `user_version`, which is in the first page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stamp(i32);

impl Stamp {
    /// Random, as the id of a process start is.
    pub(super) fn of(owner: OwnerId) -> Self {
        let [.., a, b, c, d] = owner.0.into_bytes();
        Self(i32::from_be_bytes([a, b, c, d]))
    }

    /// Takes the database.
    pub(super) async fn put(self, conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let sql = sqlx::AssertSqlSafe(format!("PRAGMA user_version = {}", self.0));
        sqlx::query(sql).execute(conn).await.map(drop)
    }

    /// Whether it still stands, within the transaction that the connection is in.
    pub(super) fn stands(self, db: &Connection) -> Result<bool, Error> {
        let mut look = db.prepare_cached("PRAGMA user_version")?;
        look.query_row([], |row| Ok(row.get::<_, i32>(0)? == self.0))
    }

    /// The same.
    ///
    /// # Errors
    /// It does not stand, or cannot be read.
    pub(super) async fn check(self, conn: &mut SqliteConnection) -> Result<(), sqlx::Error> {
        let found: i32 = sqlx::query_scalar("PRAGMA user_version")
            .fetch_one(conn)
            .await?;
        if found == self.0 {
            Ok(())
        } else {
            Err(sqlx::Error::Protocol(TAKEN_OVER.into()))
        }
    }
}
