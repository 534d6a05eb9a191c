//! Where commits are stored, one group at a time: the connection, lent by the writer for as long as it has
//! nothing else to do with it, and what is known of those who commit and of the disk. A session that is
//! alone stores its commit where it asks for it, on a disk that has been quick, and wakes no other thread.
//! Whatever is not sure to be short goes to the writer, who waits for the disk on a thread of its own.

use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Instant;

use mainstay_core::commit::Commit;
use rusqlite::Connection;
use sqlx::sqlite::LockedSqliteHandle;

use super::company::Company;
use super::direct;
use super::group::{Answer, Committer};
use super::pace::Pace;
use super::{Options, Shared};

/// What the writer and those who commit share.
pub(super) struct Desk {
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    seat: Mutex<Seat>,
    /// Held by each job on its way to the writer, until it is done: nothing overtakes it.
    asked: Arc<()>,
}

/// Held by a job that the writer is asked for.
pub(super) struct Asked {
    _count: Arc<()>,
}

/// Who holds it stores commits.
struct Seat {
    /// `None` while the writer does something else.
    db: Option<Connection>,
    company: Company,
    /// Of groups.
    pace: Pace,
    /// Bytes written since the WAL was last looked at.
    unchecked: u64,
}

impl Desk {
    pub(super) fn new(shared: Arc<Shared>, options: Options) -> Self {
        Self {
            shared,
            options,
            seat: Mutex::new(Seat {
                db: None,
                company: Company::default(),
                // Nothing is known of the disk yet.
                pace: Pace::unknown(),
                unchecked: 0,
            }),
            asked: Arc::default(),
        }
    }

    /// A job is about to be sent to the writer.
    pub(super) fn ask(&self) -> Asked {
        Asked {
            _count: Arc::clone(&self.asked),
        }
    }

    fn is_asked(&self) -> bool {
        Arc::strong_count(&self.asked) > 1
    }

    /// Lends a connection that sqlx has locked, until what it gives is dropped.
    ///
    /// # Errors
    /// None so far: the handle is one that works.
    pub(super) fn lend<'h>(
        &'h self,
        handle: &'h mut LockedSqliteHandle<'_>,
    ) -> Result<Lent<'h>, rusqlite::Error> {
        // SAFETY: the handle is open, and sqlx does not touch it for as long as it is borrowed. What is
        // made of it does not close it, is used by who holds the seat alone, and is dropped with its
        // statements before the borrow ends.
        let db = unsafe { direct::of(handle) }?;
        self.seat().db = Some(db);
        Ok(Lent {
            desk: self,
            _locked: PhantomData,
        })
    }

    fn seat(&self) -> MutexGuard<'_, Seat> {
        // A panic has rolled its transaction back, and all else here is only known on average.
        self.seat.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a commit on the thread that asks for it, if that is sure to be short: nobody else is at
    /// work, the disk has been quick, and what it takes is small and in memory. Else it is given back,
    /// and nothing has been done. True with the answer if the WAL is to be looked at, by the writer.
    pub(super) fn at_once(&self, commit: &Commit) -> Option<(Answer, bool)> {
        if self.is_asked() || commit.replayed().is_some() {
            return None;
        }
        let mut seat = match self.seat.try_lock() {
            Ok(seat) => seat,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let Seat {
            db,
            company,
            pace,
            unchecked,
        } = &mut *seat;
        let fits = company.is_alone() && pace.is_quick() && *unchecked < self.options.wal_bytes;
        if !fits || self.is_asked() || !self.shared.cache().holds(commit.session) {
            return None;
        }
        let mut committer = Committer {
            db: db.as_ref()?,
            shared: &self.shared,
            options: &self.options,
            unchecked,
        };
        let began = Instant::now();
        let answer = committer.at_once(commit);
        pace.took(began.elapsed());
        let answer = answer?;
        company.saw(std::iter::once(commit.session));
        Some((answer, *unchecked >= self.options.wal_bytes))
    }

    /// Something else than commits has written about so many bytes.
    pub(super) fn wrote(&self, bytes: u64) {
        self.seat().unchecked += bytes;
    }
}

/// The connection is on the desk. Only the writer has it.
pub(super) struct Lent<'h> {
    desk: &'h Desk,
    _locked: PhantomData<&'h mut ()>,
}

impl Lent<'_> {
    /// Commits that are worth waiting for.
    pub(super) fn wanted(&self) -> usize {
        self.desk.seat().company.wanted()
    }

    /// Stores a group and gives its answers. True with them if the WAL is to be looked at.
    pub(super) fn group(&self, commits: &[Commit]) -> (Vec<Answer>, bool) {
        let mut seat = self.desk.seat();
        let Seat {
            db,
            company,
            pace,
            unchecked,
        } = &mut *seat;
        company.saw(commits.iter().map(|commit| commit.session));
        let began = Instant::now();
        let answers = self.committer(db.as_ref(), unchecked).group(commits);
        pace.took(began.elapsed());
        (answers, *unchecked >= self.desk.options.wal_bytes)
    }

    /// Copies the WAL into the database if enough has been written.
    pub(super) fn checkpoint(&self) {
        let mut seat = self.desk.seat();
        let Seat { db, unchecked, .. } = &mut *seat;
        self.committer(db.as_ref(), unchecked).checkpoint();
    }

    fn committer<'s>(
        &'s self,
        db: Option<&'s Connection>,
        unchecked: &'s mut u64,
    ) -> Committer<'s> {
        Committer {
            db: db.expect("it is lent"),
            shared: &self.desk.shared,
            options: &self.desk.options,
            unchecked,
        }
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.desk.seat().db = None;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use mainstay_core::event::Delivery;
    use mainstay_core::id::{InputId, SessionId};
    use mainstay_core::port::Store as _;
    use mainstay_test_support::build::{admit, create};

    use super::super::SqliteStore;
    use super::*;

    /// A store with a session, on a disk that is taken for a quick one.
    async fn quick(options: Options) -> (tempfile::TempDir, SqliteStore, SessionId) {
        let dir = tempfile::tempdir().unwrap();
        let store = SqliteStore::open(dir.path().join("a.db"), options);
        let (store, session) = (store.await.unwrap(), SessionId::new());
        store.commit(create(session)).await.unwrap();
        desk(&store).seat().pace = Pace::quick();
        (dir, store, session)
    }

    fn desk(store: &SqliteStore) -> &Desk {
        &store.jobs.as_ref().unwrap().1
    }

    fn prompt(session: SessionId, bytes: usize) -> Commit {
        admit(session, InputId::new(), Delivery::Queue, &"a".repeat(bytes))
    }

    async fn heads(store: &SqliteStore, session: SessionId) -> (u64, usize) {
        let (events, head) = store.events(session, 0, 100).await.unwrap().unwrap();
        (head, events.len())
    }

    #[tokio::test]
    async fn one_that_is_alone_is_stored_where_it_asks() {
        let (_dir, store, session) = quick(Options::default()).await;
        let before = store.stats();
        let commit = prompt(session, 10);
        let (answer, due) = desk(&store).at_once(&commit).unwrap();
        let committed = answer.unwrap();
        assert_eq!((committed.tail.session.head, due), (2, false));
        assert_eq!(heads(&store, session).await, (2, 2));
        assert_eq!(store.tail(session).await.unwrap(), Some(committed.tail));
        let after = store.stats();
        assert_eq!(
            (after.groups, after.commits, after.events),
            (before.groups + 1, before.commits + 1, before.events + 1)
        );
        // What is refused is told as well, and stores nothing.
        let other = SessionId::new();
        store.commit(create(other)).await.unwrap();
        desk(&store).seat().pace = Pace::quick();
        let taken = Commit {
            session: other,
            ..commit
        };
        let (answer, _) = desk(&store).at_once(&taken).unwrap();
        assert!(answer.is_err());
        assert_eq!(heads(&store, other).await, (1, 1));
        store.close().await;
        assert!(store.commit(prompt(session, 10)).await.is_err());
    }

    #[tokio::test]
    async fn nothing_is_overtaken_and_a_slow_disk_is_left_to_the_writer() {
        let (_dir, store, session) = quick(Options::default()).await;
        let commit = prompt(session, 10);
        let asked = desk(&store).ask();
        assert!(desk(&store).at_once(&commit).is_none());
        drop(asked);
        desk(&store).seat().pace.took(Duration::from_secs(1));
        assert!(desk(&store).at_once(&commit).is_none());
        desk(&store).seat().pace = Pace::quick();
        assert!(
            desk(&store)
                .at_once(&prompt(SessionId::new(), 10))
                .is_none()
        );
        assert_eq!(heads(&store, session).await, (1, 1));
        assert!(desk(&store).at_once(&commit).is_some());
    }

    #[tokio::test]
    async fn much_to_write_is_left_to_the_writer() {
        let (_dir, store, session) = quick(Options::default()).await;
        let commit = prompt(session, 100_000);
        assert!(desk(&store).at_once(&commit).is_none());
        assert_eq!(heads(&store, session).await, (1, 1));
        store.commit(commit).await.unwrap();
        assert_eq!(heads(&store, session).await, (2, 2));
    }

    #[tokio::test]
    async fn store_10_a_file_that_is_held_is_waited_for_by_the_writer() {
        let (dir, store, session) = quick(Options::default()).await;
        let other = Connection::open(dir.path().join("a.db")).unwrap();
        other.execute_batch("BEGIN IMMEDIATE").unwrap();
        let commit = prompt(session, 10);
        assert!(desk(&store).at_once(&commit).is_none());
        assert_eq!(store.stats().busy, 1);
        other.execute_batch("ROLLBACK").unwrap();
        store.commit(commit).await.unwrap();
        assert_eq!(heads(&store, session).await, (2, 2));
    }

    #[tokio::test]
    async fn the_wal_is_looked_at_though_nothing_is_handed_over() {
        let options = Options {
            wal_bytes: 1,
            ..Options::default()
        };
        let (_dir, store, session) = quick(options).await;
        let looked = |times| {
            let store = &store;
            let looked = async move {
                while store.stats().checkpoints < times || desk(store).is_asked() {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            };
            tokio::time::timeout(Duration::from_secs(30), looked)
        };
        looked(1).await.unwrap();
        desk(&store).seat().pace = Pace::quick();
        store.commit(prompt(session, 10)).await.unwrap();
        looked(2).await.unwrap();
    }
}
