//! SQLite: one process owns the file, one connection writes, readers are many and short.
//!
//! - [`writer`] hands commits that arrive together to [`group`], which puts them into one transaction
//!   and answers them once it is on disk. A commit that nothing else is beside is stored by [`desk`] on
//!   the thread that asks for it. What [`judge`] reads for them is kept in [`cache`], so that a
//!   commit to a live session reads nothing but the ids that it brings.
//! - [`rows`] writes the rows of such a group, [`direct`] on the thread that stores it.
//! - [`read`] holds the queries; [`near`] runs small ones on the thread that asks. No read transaction
//!   outlives one call, so that the WAL stays short.
//! - [`open`] opens a file, which [`file`] has looked at before SQLite does. [`port`] is what the core calls.
//! - [`foreign`] looks for what a newer build has written. [`nodes`] keeps the rows of nodes.
//! - [`doctor`] examines a database, [`backup`] copies one, [`gc`] removes what nothing needs,
//!   [`retention`] what is too old, [`rebuild`] writes rows anew from their log.
//!
//! The store's clock is wall time as it was when the file was opened and the monotonic clock since.

pub mod backup;
mod cache;
mod company;
mod desk;
pub mod direct;
pub mod doctor;
pub(crate) mod file;
mod foreign;
pub mod gc;
mod group;
mod judge;
mod moving;
mod near;
mod nodes;
mod open;
mod owner;
mod pace;
mod port;
mod read;
mod rebuild;
pub mod retention;
mod rows;
mod writer;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_core::id::{Millis, OwnerId};
use mainstay_core::port::{Clock, StoreError, SystemClock};
use sqlx::pool::PoolConnection;
use sqlx::{Sqlite, SqlitePool};
use tokio::sync::{mpsc, oneshot};

pub use self::open::OpenError;

use self::cache::{Cache, Names};
use self::desk::{Asked, Desk};
use self::near::Near;
use self::open::{MIGRATIONS, PAGE_BYTES, schema};
use self::owner::Stamp;
use self::writer::{Action, Job};
use crate::lock::Lock;

/// Jobs that may wait for the writer before callers do.
const QUEUE: usize = 1024;
/// How long a closing store waits for reads to end.
const LAST_READS: Duration = Duration::from_secs(5);

/// How a database is opened.
#[derive(Clone)]
pub struct Options {
    /// Expiry is judged by it.
    pub clock: Arc<dyn Clock>,
    /// Who the lock file says that we are.
    pub owner: OwnerId,
    /// Connections for reading.
    pub readers: u32,
    /// Commits that share one transaction at most.
    pub group: usize,
    /// Tails that are kept in memory.
    pub cached_tails: usize,
    /// The WAL is checkpointed once about so much was written, and stays within a few times of it.
    pub wal_bytes: u64,
    /// How long a write is repeated while another process holds the file.
    pub busy_patience: Duration,
    /// The file does not grow beyond so many pages of 4 KiB. `None` is SQLite's own limit.
    pub max_pages: Option<u32>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            clock: Arc::new(SystemClock::default()),
            owner: OwnerId::new(),
            readers: 8,
            group: 512,
            cached_tails: 4096,
            wal_bytes: 16 * 1024 * 1024,
            busy_patience: Duration::from_secs(10),
            max_pages: None,
        }
    }
}

/// What the writer has done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Transactions of commits, each with one fsync of the log.
    pub groups: u64,
    /// Commits that were accepted in them, those included that had nothing to write.
    pub commits: u64,
    pub events: u64,
    /// Times that a write was repeated because another process held the file.
    pub busy: u64,
    pub checkpoints: u64,
}

/// The way to the writer.
type Jobs = mpsc::Sender<(Job, Asked)>;

/// A store in an SQLite file.
///
/// Dropping it lets the writer finish what it was given; [`SqliteStore::close`] waits for that.
pub struct SqliteStore {
    shared: Arc<Shared>,
    readers: SqlitePool,
    near: Near,
    /// `None` where the file was opened read-only.
    jobs: Option<(Jobs, Arc<Desk>)>,
    file: PathBuf,
}

/// What the writer and the readers share.
struct Shared {
    clock: Arc<dyn Clock>,
    stamp: Stamp,
    /// Wall and monotonic time at opening.
    opened: (Millis, Millis),
    cache: Mutex<Cache>,
    recent: gc::Recent,
    aliases: Mutex<Names>,
    /// Outlives the writer.
    lock: Mutex<Option<Lock>>,
    groups: AtomicU64,
    commits: AtomicU64,
    events: AtomicU64,
    busy: AtomicU64,
    checkpoints: AtomicU64,
}

impl Shared {
    fn new(options: &Options, lock: Option<Lock>) -> Self {
        Self {
            clock: options.clock.clone(),
            stamp: Stamp::of(options.owner),
            opened: (options.clock.wall(), options.clock.monotonic()),
            cache: Mutex::new(Cache::new(options.cached_tails.max(1))),
            recent: gc::Recent::default(),
            aliases: Mutex::default(),
            lock: Mutex::new(lock),
            groups: AtomicU64::new(0),
            commits: AtomicU64::new(0),
            events: AtomicU64::new(0),
            busy: AtomicU64::new(0),
            checkpoints: AtomicU64::new(0),
        }
    }

    fn now(&self) -> Millis {
        let (wall, monotonic) = self.opened;
        wall + self.clock.monotonic().saturating_sub(monotonic)
    }

    fn cache(&self) -> MutexGuard<'_, Cache> {
        self.cache.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn aliases(&self) -> MutexGuard<'_, Names> {
        self.aliases.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether this process alone writes the file.
    fn is_owner(&self) -> bool {
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        lock.is_some()
    }
}

impl SqliteStore {
    /// The file, under its full path.
    #[must_use]
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Writes into the lock file where the server answers, for commands to find it.
    ///
    /// # Errors
    /// The lock file cannot be written, or the store was opened read-only or closed.
    pub fn publish_address(&self, address: Option<String>) -> std::io::Result<()> {
        match &*self
            .shared
            .lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
        {
            Some(lock) => lock.publish(address),
            None => Err(std::io::Error::other(
                "the database is not owned by this process",
            )),
        }
    }

    /// What the writer has done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            groups: read(&self.shared.groups),
            commits: read(&self.shared.commits),
            events: read(&self.shared.events),
            busy: read(&self.shared.busy),
            checkpoints: read(&self.shared.checkpoints),
        }
    }

    /// Finishes what was handed over, closes the file and gives up its ownership. Everything that is
    /// asked of the store afterwards is answered by an error. All that was stored is then in the file
    /// itself, and nothing of it in the WAL, unless another process reads it just now.
    pub async fn close(&self) {
        // Whoever closes last moves the WAL into the file, and only a writer can.
        self.near.close();
        if tokio::time::timeout(LAST_READS, self.readers.close())
            .await
            .is_err()
        {
            tracing::warn!("a read does not end; the WAL stays beside the database");
        }
        if let Some((jobs, desk)) = &self.jobs {
            let (reply, closed) = oneshot::channel();
            let job = (Job::Close(reply), desk.ask());
            if jobs.send(job).await.is_ok() {
                let _ = closed.await;
            }
        }
        drop(
            self.shared
                .lock
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        );
    }

    async fn ask<T>(
        &self,
        action: &'static str,
        job: impl FnOnce(oneshot::Sender<Result<T, StoreError>>) -> Job,
    ) -> Result<T, StoreError> {
        let refuse = |cause: &str| StoreError::Unavailable {
            action,
            cause: cause.into(),
        };
        let (jobs, desk) = self
            .jobs
            .as_ref()
            .ok_or_else(|| refuse("the database was opened read-only"))?;
        let (reply, answer) = oneshot::channel();
        jobs.send((job(reply), desk.ask()))
            .await
            .map_err(|_| refuse("the store is closed"))?;
        answer
            .await
            .map_err(|_| refuse("the store was closed before it answered"))?
    }

    async fn run(&self, what: &'static str, action: Action) -> Result<u64, StoreError> {
        self.ask(what, |reply| Job::Run {
            what,
            action,
            reply,
        })
        .await
    }

    async fn reader(&self, action: &'static str) -> Result<PoolConnection<Sqlite>, StoreError> {
        self.readers
            .acquire()
            .await
            .map_err(|error| StoreError::Unavailable {
                action,
                cause: error.into(),
            })
    }
}
