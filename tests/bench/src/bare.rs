//! The measure of a disk: a plain loop over plain SQLite, one event a transaction, one fsync a commit.
//! It has no async runtime, no second thread and one table with one b-tree, so nobody commits single
//! events faster.

use std::path::Path;
use std::time::{Duration, Instant};

use rusqlite::{Connection, params};

/// A log with nothing around it.
pub struct Bare {
    conn: Connection,
    next: i64,
    data: String,
}

/// As long as an id.
const ID: &str = "0198c0de-0000-7000-8000-000000000000";

impl Bare {
    /// Opens a new file in `dir`. An event's data are `bytes` long.
    ///
    /// # Panics
    /// SQLite refuses.
    #[must_use]
    pub fn open(dir: &Path, bytes: usize) -> Self {
        let conn = Connection::open(dir.join("bare.db")).expect("a new file");
        conn.execute_batch(
            "PRAGMA page_size = 4096;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             CREATE TABLE event (
                 seq     INTEGER PRIMARY KEY,
                 session TEXT    NOT NULL,
                 id      TEXT    NOT NULL,
                 type    TEXT    NOT NULL,
                 at      INTEGER NOT NULL,
                 data    TEXT    NOT NULL
             ) STRICT;",
        )
        .expect("a table");
        Self {
            conn,
            next: 1,
            data: "x".repeat(bytes),
        }
    }

    /// Commits events for about so long, at least one, and gives how many there were in a second.
    ///
    /// # Panics
    /// SQLite refuses.
    pub fn rate(&mut self, lasting: Duration) -> f64 {
        let mut insert = self
            .conn
            .prepare("INSERT INTO event VALUES (?, ?, ?, 'step.started', ?, ?)")
            .expect("a statement");
        let began = Instant::now();
        let mut commits = 0_u32;
        while commits == 0 || began.elapsed() < lasting {
            insert
                .execute(params![self.next, ID, ID, self.next, self.data])
                .expect("a commit");
            self.next += 1;
            commits += 1;
        }
        f64::from(commits) / began.elapsed().as_secs_f64()
    }

    /// As [`Self::rate`], with so many events in each transaction.
    ///
    /// # Panics
    /// SQLite refuses.
    pub fn grouped_rate(&mut self, lasting: Duration, group: usize) -> f64 {
        let began = Instant::now();
        let mut events = 0_usize;
        while events == 0 || began.elapsed() < lasting {
            let all = self.conn.transaction().expect("a transaction");
            let mut insert = all
                .prepare_cached("INSERT INTO event VALUES (?, ?, ?, 'step.started', ?, ?)")
                .expect("a statement");
            for _ in 0..group {
                insert
                    .execute(params![self.next, ID, ID, self.next, self.data])
                    .expect("a row");
                self.next += 1;
            }
            drop(insert);
            all.commit().expect("a commit");
            events += group;
        }
        events as f64 / began.elapsed().as_secs_f64()
    }
}
