//! Small reads of sessions that are at work, on the thread that asks: what they read was written a moment
//! ago, and the way to the thread of a reader and back takes longer than the read. There is one connection
//! for it. Whoever finds it in use, or wants more than a little, goes to a reader like all others.

use std::path::Path;
use std::sync::{Mutex, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::SessionId;
use mainstay_core::model::Range;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, Error, OpenFlags, params};

use super::pace::Pace;
use super::read::{self, signed, unsigned};
use crate::value::item;

/// Bytes of rows that are read here.
const LITTLE: usize = 64 * 1024;

/// The connection, until it is closed.
pub(super) struct Near(Mutex<Option<(Connection, Pace)>>);

impl Near {
    /// None, for a file of which nothing is known to be in memory.
    pub(super) fn none() -> Self {
        Self(Mutex::new(None))
    }

    /// # Errors
    /// SQLite does not open the file.
    pub(super) fn open(file: &Path) -> Result<Self, Error> {
        let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let db = Connection::open_with_flags(file, flags)?;
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        // Sessions run on the threads that read here: none of them waits for another process.
        db.busy_timeout(Duration::ZERO)?;
        Ok(Self(Mutex::new(Some((db, Pace::quick())))))
    }

    pub(super) fn close(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    /// `None` where it is not read here, for whatever reason.
    fn read<T>(&self, read: impl FnOnce(&Connection) -> Result<Option<T>, Error>) -> Option<T> {
        let mut near = match self.0.try_lock() {
            Ok(near) => near,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let (db, pace) = near.as_mut()?;
        if !pace.is_quick() {
            pace.left();
            return None;
        }
        let began = Instant::now();
        let found = read(db);
        pace.took(began.elapsed());
        // What fails here is told by the reader that is asked next.
        found.ok()?
    }

    /// Items of a range, if they are little.
    pub(super) fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Option<Vec<Item>> {
        self.read(|db| {
            let mut page = db.prepare_cached(read::item_sql(order))?;
            let (after, through) = (signed(range.after), signed(range.through));
            let mut rows = page.query(params![session.to_string(), after, through, limit])?;
            let (mut items, mut bytes) = (Vec::new(), 0);
            while let Some(row) = rows.next()? {
                let data = row.get_ref(0)?.as_str()?;
                bytes += data.len();
                let Some(item) = item(session, data).ok().filter(|_| bytes <= LITTLE) else {
                    return Ok(None);
                };
                items.push(item);
            }
            Ok(Some(items))
        })
    }

    /// How much a range of items holds, which takes as long whatever it is.
    pub(super) fn measure(&self, session: SessionId, range: Range) -> Option<Size> {
        self.read(|db| {
            let mut measure = db.prepare_cached(read::ITEM_MEASURE)?;
            let (after, through) = (signed(range.after), signed(range.through));
            let params = params![session.to_string(), after, through];
            let (items, bytes) = measure.query_row(params, |row| Ok((row.get(0)?, row.get(1)?)))?;
            Ok(Some(Size {
                items: unsigned(items),
                bytes: unsigned(bytes),
            }))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Options, SqliteStore};
    use super::*;

    #[tokio::test]
    async fn what_is_slow_or_closed_is_left_to_a_reader() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("a.db");
        let store = SqliteStore::open(&file, Options::default()).await.unwrap();
        let near = Near::open(&file).unwrap();
        let session = SessionId::new();
        let range = Range {
            after: 0,
            through: 10,
        };
        let items = || near.items(session, range, Order::OldestFirst, 10);
        assert_eq!(items(), Some(Vec::new()));
        assert_eq!(near.measure(session, range), Some(Size::default()));

        // In use by another.
        let held = near.0.lock().unwrap();
        assert_eq!(near.measure(session, range), None);
        drop(held);

        let second = Duration::from_secs(1);
        near.0.lock().unwrap().as_mut().unwrap().1.took(second);
        assert_eq!(near.measure(session, range), None);
        // After some that it left to others it is tried again.
        assert!((0..100).any(|_| near.measure(session, range).is_some()));

        near.close();
        assert_eq!((items(), near.measure(session, range)), (None, None));
        store.close().await;
    }
}
