//! The measure of the store's own share: plain SQLite writes the rows that the store wrote, again and again
//! under new keys, into the same tables with the same indexes and triggers. Nothing is judged, encoded,
//! asked for or answered.

use std::path::Path;
use std::time::{Duration, Instant};

use mainstay_core::id::{EventId, ExecutionId};
use rusqlite::{Connection, params};

/// Pages of the WAL after which it is copied into the file: the store's 16 MiB.
const WAL_PAGES: u32 = 4096;

/// A file with the store's schema.
pub struct Raw {
    conn: Connection,
    sessions: Vec<Session>,
    next: usize,
    event: String,
    item: String,
}

/// A session that commits one event with one item at a time.
struct Session {
    id: String,
    execution: String,
    head: i64,
    data: String,
}

impl Raw {
    /// Opens a new file in `dir`, with the schema of the store's file, its sessions as they are, and its
    /// newest event of a type and newest item as what each commit writes.
    ///
    /// # Panics
    /// SQLite refuses, or the store has no such rows.
    #[must_use]
    pub fn open(dir: &Path, store: &Path, kind: &str) -> Self {
        let there = Connection::open(store).expect("the store's file");
        let conn = Connection::open(dir.join("raw.db")).expect("a new file");
        conn.execute_batch(&format!(
            "PRAGMA page_size = 4096;
             PRAGMA auto_vacuum = INCREMENTAL;
             PRAGMA journal_mode = WAL;
             PRAGMA synchronous = FULL;
             PRAGMA wal_autocheckpoint = {WAL_PAGES};"
        ))
        .expect("settings");
        let schema = "SELECT sql FROM sqlite_master
                       WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' ORDER BY rowid";
        for sql in texts(&there, schema) {
            conn.execute_batch(&sql).expect("the store's schema");
        }
        let newest = |sql: &str| -> String {
            let found = there.query_row(sql, [], |row| row.get(0));
            found.expect("a row of the store's")
        };
        let event =
            format!("SELECT data FROM event WHERE type = '{kind}' ORDER BY rowid DESC LIMIT 1");
        let (event, item) = (
            newest(&event),
            newest("SELECT data FROM item ORDER BY rowid DESC LIMIT 1"),
        );
        let sessions = texts(&there, "SELECT id FROM session").into_iter();
        let sessions = sessions.map(|id| Session {
            execution: ExecutionId::new().to_string(),
            head: 0,
            data: newest(&format!("SELECT data FROM session WHERE id = '{id}'")),
            id,
        });
        let sessions: Vec<Session> = sessions.collect();
        for session in &sessions {
            conn.execute(
                "INSERT INTO session (id, created_at, updated_at, head, stepping, runnable, due, owing, data)
                 VALUES (?, 0, 0, 0, 0, 0, 0, 0, ?)",
                params![session.id, session.data],
            )
            .expect("a session");
        }
        Self {
            conn,
            sessions,
            next: 0,
            event,
            item,
        }
    }

    /// Stores commits of one session after the other for about so long, so many in each transaction. Gives
    /// how many there were in a second.
    ///
    /// # Panics
    /// SQLite refuses.
    pub fn grouped_rate(&mut self, lasting: Duration, group: usize) -> f64 {
        let began = Instant::now();
        let mut commits = 0_usize;
        while commits == 0 || began.elapsed() < lasting {
            self.group(group);
            commits += group;
        }
        commits as f64 / began.elapsed().as_secs_f64()
    }

    fn group(&mut self, size: usize) {
        let all = self.conn.transaction().expect("a transaction");
        let mut event = all
            .prepare_cached(
                "INSERT INTO event (session, seq, id, type, version, at, execution, recovery, data, compacted)
                 VALUES (?, ?, ?, 'runner.said', 1, ?, ?, NULL, ?, NULL)",
            )
            .expect("a statement");
        let mut session = all
            .prepare_cached(
                "UPDATE session SET updated_at = ?, head = ?, step = NULL, runnable = 1, shown = NULL, data = ?
                  WHERE id = ?",
            )
            .expect("a statement");
        let mut item = all
            .prepare_cached(
                "INSERT INTO item (session, seq, n, is_message, bytes, items_to, bytes_to, data)
                 VALUES (?, ?, 0, 1, 300, ?, ?, ?)",
            )
            .expect("a statement");
        for _ in 0..size {
            self.next = (self.next + 1) % self.sessions.len();
            let of = &mut self.sessions[self.next];
            of.head += 1;
            let id = EventId::new().to_string();
            event
                .execute(params![
                    of.id,
                    of.head,
                    id,
                    of.head,
                    of.execution,
                    self.event
                ])
                .expect("an event");
            session
                .execute(params![of.head, of.head, of.data, of.id])
                .expect("a session");
            item.execute(params![of.id, of.head, of.head, of.head * 300, self.item])
                .expect("an item");
        }
        drop((event, session, item));
        all.commit().expect("a commit");
    }
}

fn texts(conn: &Connection, sql: &str) -> Vec<String> {
    let mut found = conn.prepare(sql).expect("a statement");
    let rows = found.query_map([], |row| row.get(0)).expect("rows");
    rows.collect::<Result<_, _>>().expect("text")
}
