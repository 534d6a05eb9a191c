//! SQLite: one process owns the file, one connection writes, readers are many and short.
//!
//! - [`writer`] hands commits that arrive together to [`group`], which puts them into one transaction
//!   and answers them once it is on disk. A commit that nothing else is beside is stored by [`desk`] on
//!   the thread that asks for it. What [`judge`] reads for them it keeps in memory, so that a
//!   commit to a live session reads nothing but the ids that it brings.
//! - [`rows`] writes the rows of such a group, [`direct`] on the thread that stores it.
//! - [`read`] holds the queries; [`near`] runs small ones on the thread that asks. No read transaction
//!   outlives one call, so that the WAL stays short.
//! - [`file`] checks a file before SQLite opens it.
//! - [`foreign`] looks for what a newer build has written. [`nodes`] keeps the rows of nodes.
//! - [`doctor`] examines a database, [`backup`] copies one, [`gc`] removes what nothing needs,
//!   [`retention`] what is too old, [`rebuild`] writes rows anew from their log.
//!
//! The store's clock is wall time as it was when the file was opened and the monotonic clock since.

pub mod backup;
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
mod owner;
mod pace;
mod read;
mod rebuild;
pub mod retention;
mod rows;
mod writer;

use std::collections::{HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::commit::Commit;
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::nodes::{Beat, Beaten, Lag, NodeRow};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{
    Alias, Clock, Committed, Dump, Listed, Scan, Store, StoreError, SystemClock,
};
use mainstay_core::tail::{Input, Tail};
use sqlx::migrate::Migrator;
use sqlx::pool::PoolConnection;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions, Connection, Sqlite, SqliteConnection, SqlitePool};
use tokio::sync::{mpsc, oneshot};

use crate::lock::{Holder, Lock, TakeError};
use crate::value::digests_named;
use desk::{Asked, Desk};
use near::Near;
use owner::Stamp;
use writer::{Action, Job, Writer};

static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/sqlite");

const PAGE_BYTES: u32 = 4096;
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

/// Why a database was not opened. Nothing in the file was changed, unless a migration failed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another process has it.
    #[error("{} is in use{}; stop that process, send the command to it, or open the file read-only", file.display(), by(holder.as_ref()))]
    Owned {
        file: PathBuf,
        holder: Option<Holder>,
    },
    #[error("{} holds something else than a Mainstay database; name another file", file.display())]
    Foreign { file: PathBuf },
    #[error("{} has schema {found}, and this build knows {known}; use a newer build", file.display())]
    NewerSchema {
        file: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("{} lacks migrations: it has schema {found}, and this build reads {known}; open it once for writing", file.display())]
    OlderSchema {
        file: PathBuf,
        found: i64,
        known: i64,
    },
    #[error("{} lies on a network file system ({kind}), where SQLite cannot lock it safely; move it to a local disk", file.display())]
    Network { file: PathBuf, kind: String },
    #[error("the SQLite library is {found}; at least {needed} is needed")]
    Library { found: String, needed: &'static str },
    #[error("{} does not take the setting {setting}: it reads back {found}", file.display())]
    Setting {
        file: PathBuf,
        setting: &'static str,
        found: String,
    },
    #[error("there is no database {}", file.display())]
    Missing { file: PathBuf },
    #[error("could not read {}", file.display())]
    Io {
        file: PathBuf,
        #[source]
        cause: std::io::Error,
    },
    #[error("could not open {}", file.display())]
    Sqlite {
        file: PathBuf,
        #[source]
        cause: sqlx::Error,
    },
    #[error("could not migrate {}", file.display())]
    Migration {
        file: PathBuf,
        #[source]
        cause: sqlx::migrate::MigrateError,
    },
}

fn by(holder: Option<&Holder>) -> String {
    match holder {
        Some(Holder {
            pid,
            owner,
            address: Some(address),
            ..
        }) => format!(" by process {pid} (node {owner}), which answers at {address}"),
        Some(Holder { pid, owner, .. }) => format!(" by process {pid} (node {owner})"),
        None => " by another process".into(),
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
            cache: Mutex::new(Cache {
                tails: HashMap::new(),
                limit: options.cached_tails.max(1),
                tick: 0,
            }),
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

/// All names, which every decision asks for. Only the owner of the file changes them.
#[derive(Default)]
struct Names {
    /// Changes so far: what was read before one is not kept after it.
    changes: u64,
    read: Option<Arc<[Alias]>>,
}

impl Names {
    fn change(&mut self) {
        self.changes += 1;
        self.read = None;
    }
}

/// Tails as they are on disk, of the sessions that were used last. Only the writer puts them in, after
/// its transaction is durable.
struct Cache {
    tails: HashMap<SessionId, (Arc<Tail>, u64)>,
    limit: usize,
    tick: u64,
}

impl Cache {
    fn get(&mut self, session: SessionId) -> Option<Arc<Tail>> {
        self.tick += 1;
        let (tail, used) = self.tails.get_mut(&session)?;
        *used = self.tick;
        Some(tail.clone())
    }

    fn holds(&self, session: SessionId) -> bool {
        self.tails.contains_key(&session)
    }

    fn keep(&mut self, tails: HashMap<SessionId, Arc<Tail>>) {
        self.tick += 1;
        let tick = self.tick;
        self.tails.extend(
            tails
                .into_iter()
                .map(|(session, tail)| (session, (tail, tick))),
        );
        if self.tails.len() > self.limit {
            // The older half goes at once, so that this costs little on average.
            let mut used: Vec<u64> = self.tails.values().map(|(_, used)| *used).collect();
            let middle = used.len() / 2;
            let (_, &mut cut, _) = used.select_nth_unstable(middle);
            self.tails.retain(|_, (_, used)| *used > cut);
        }
    }

    fn renewed(&mut self, session: SessionId, until: Millis) {
        if let Some((tail, _)) = self.tails.get_mut(&session)
            && let Some(claim) = &mut Arc::make_mut(tail).claim
        {
            claim.expires_at = until;
        }
    }

    fn forget(&mut self, sessions: impl IntoIterator<Item = SessionId>) {
        for session in sessions {
            self.tails.remove(&session);
        }
    }

    fn clear(&mut self) {
        self.tails.clear();
    }
}

/// What a file is checked against; another in tests.
struct Machine {
    sqlite: Option<&'static str>,
    network: fn(&Path) -> std::io::Result<Option<String>>,
}

const MACHINE: Machine = Machine {
    sqlite: None,
    network: file::network_file_system,
};

impl SqliteStore {
    /// Opens a database and takes ownership of its file, creating and migrating it as needed. Claims
    /// that are left in it are expired: their owners are gone.
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Cancel safety
    /// Dropped midway, the file is either as it was or a whole database, and its lock is free again.
    pub async fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        Self::open_on(path.as_ref(), options, &MACHINE).await
    }

    async fn open_on(path: &Path, options: Options, machine: &Machine) -> Result<Self, OpenError> {
        let file = check(path, machine).await?;
        let io = |cause| OpenError::Io {
            file: file.clone(),
            cause,
        };
        let sqlite = |cause| OpenError::Sqlite {
            file: file.clone(),
            cause,
        };

        // Before the lock, so that nothing is left beside a file that is not ours.
        let foreign = || OpenError::Foreign { file: file.clone() };
        if file::content(&file).map_err(io)? == file::Content::Foreign {
            return Err(foreign());
        }
        let holder = Holder {
            pid: std::process::id(),
            owner: options.owner,
            started_at: options.clock.wall(),
            address: None,
        };
        let path = file.clone();
        let taken = tokio::task::spawn_blocking(move || Lock::take(&path, holder)).await;
        let lock = match taken.unwrap_or_else(|error| Err(std::io::Error::other(error).into())) {
            Ok(lock) => lock,
            Err(TakeError::Held(holder)) => return Err(OpenError::Owned { file, holder }),
            Err(TakeError::Io(cause)) => return Err(io(cause)),
        };
        let content = file::content(&file).map_err(io)?;
        if content == file::Content::Foreign {
            return Err(foreign());
        }

        let connect = SqliteConnectOptions::new()
            .filename(&file)
            .create_if_missing(true)
            .page_size(PAGE_BYTES)
            // Of a new file alone; an older one keeps its free pages and uses them again.
            .auto_vacuum(SqliteAutoVacuum::Incremental)
            .busy_timeout(group::BUSY_TIMEOUT)
            .disable_statement_logging();
        if content == file::Content::Nothing {
            // Marked as ours in the very first transaction, before the log is switched to WAL.
            let mut conn = connect.clone().connect().await.map_err(sqlite)?;
            sqlx::query("PRAGMA application_id = 1299084148")
                .execute(&mut conn)
                .await
                .map_err(sqlite)?;
            conn.close().await.map_err(sqlite)?;
        }
        let mut conn = connect
            .journal_mode(SqliteJournalMode::Wal)
            .synchronous(SqliteSynchronous::Full)
            .pragma("wal_autocheckpoint", "0")
            .pragma("journal_size_limit", (options.wal_bytes * 4).to_string())
            .connect()
            .await
            .map_err(sqlite)?;
        settings(&file, &mut conn).await?;
        let found = schema(&mut conn).await.map_err(sqlite)?;
        let known = known_schema();
        if found > known {
            return Err(OpenError::NewerSchema { file, found, known });
        }
        MIGRATIONS
            .run(&mut conn)
            .await
            .map_err(|cause| OpenError::Migration {
                file: file.clone(),
                cause,
            })?;
        if let Some(pages) = options.max_pages {
            let sql = sqlx::AssertSqlSafe(format!("PRAGMA max_page_count = {pages}"));
            sqlx::query(sql).execute(&mut conn).await.map_err(sqlite)?;
        }

        foreign::settle(&mut conn).await.map_err(sqlite)?;
        let shared = Arc::new(Shared::new(&options, Some(lock)));
        shared.stamp.put(&mut conn).await.map_err(sqlite)?;
        for expire in [CLAIM_EXPIRE_ALL, nodes::NODE_EXPIRE_ALL] {
            sqlx::query(expire)
                .bind(read::signed(shared.now()))
                .execute(&mut conn)
                .await
                .map_err(sqlite)?;
        }
        // What a process that was killed left in the WAL. A reader may be in the way; then later.
        sqlx::query("PRAGMA wal_checkpoint(TRUNCATE)")
            .execute(&mut conn)
            .await
            .map_err(sqlite)?;
        let readers = readers(&file, &options);
        let near = Near::open(&file).map_err(|error| sqlite(sqlx::Error::Decode(error.into())))?;
        let (jobs, queue) = mpsc::channel(QUEUE);
        let desk = Arc::new(Desk::new(Arc::clone(&shared), options));
        let writer = Writer {
            conn,
            jobs: queue,
            waiting: VecDeque::new(),
            desk: Arc::clone(&desk),
        };
        writer.start().map_err(io)?;
        Ok(Self {
            shared,
            readers,
            near,
            jobs: Some((jobs, desk)),
            file,
        })
    }

    /// Opens a database for reading alone, beside a process that may own it. Every write is refused.
    ///
    /// # Errors
    /// [`OpenError`].
    pub async fn open_read_only(path: impl AsRef<Path>) -> Result<Self, OpenError> {
        let options = Options {
            readers: 2,
            ..Options::default()
        };
        let file = check(path.as_ref(), &MACHINE).await?;
        match file::content(&file).map_err(|cause| OpenError::Io {
            file: file.clone(),
            cause,
        })? {
            file::Content::Ours => {}
            file::Content::Nothing => return Err(OpenError::Missing { file }),
            file::Content::Foreign => return Err(OpenError::Foreign { file }),
        }
        let readers = readers(&file, &options);
        let sqlite = |cause| OpenError::Sqlite {
            file: file.clone(),
            cause,
        };
        let mut conn = readers.acquire().await.map_err(sqlite)?;
        let found = schema(&mut conn).await.map_err(sqlite)?;
        drop(conn);
        let known = known_schema();
        match found.cmp(&known) {
            std::cmp::Ordering::Greater => {
                return Err(OpenError::NewerSchema { file, found, known });
            }
            std::cmp::Ordering::Less => return Err(OpenError::OlderSchema { file, found, known }),
            std::cmp::Ordering::Equal => {}
        }
        Ok(Self {
            shared: Arc::new(Shared::new(&options, None)),
            readers,
            near: Near::none(),
            jobs: None,
            file,
        })
    }

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

/// Checks the machine and gives the file's full path.
async fn check(path: &Path, machine: &Machine) -> Result<PathBuf, OpenError> {
    let io = |cause| OpenError::Io {
        file: path.into(),
        cause,
    };
    let file = file::canonical(path).map_err(io)?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    if let Some(kind) = (machine.network)(directory).map_err(io)? {
        return Err(OpenError::Network { file, kind });
    }
    let sqlite = |cause| OpenError::Sqlite {
        file: file.clone(),
        cause,
    };
    let found = match machine.sqlite {
        Some(version) => version.into(),
        None => {
            let mut conn = SqliteConnection::connect("sqlite::memory:")
                .await
                .map_err(sqlite)?;
            let version: String = sqlx::query_scalar("SELECT sqlite_version()")
                .fetch_one(&mut conn)
                .await
                .map_err(sqlite)?;
            conn.close().await.map_err(sqlite)?;
            version
        }
    };
    file::check_version(&found)?;
    Ok(file)
}

/// Makes sure that what durability rests on is as it was set.
async fn settings(file: &Path, conn: &mut SqliteConnection) -> Result<(), OpenError> {
    let sqlite = |cause| OpenError::Sqlite {
        file: file.into(),
        cause,
    };
    let mode: String = sqlx::query_scalar("PRAGMA journal_mode")
        .fetch_one(&mut *conn)
        .await
        .map_err(sqlite)?;
    if mode != "wal" {
        return Err(OpenError::Setting {
            file: file.into(),
            setting: "journal_mode = wal",
            found: mode,
        });
    }
    let synchronous: i64 = sqlx::query_scalar("PRAGMA synchronous")
        .fetch_one(conn)
        .await
        .map_err(sqlite)?;
    if synchronous != 2 {
        let found = synchronous.to_string();
        return Err(OpenError::Setting {
            file: file.into(),
            setting: "synchronous = FULL",
            found,
        });
    }
    Ok(())
}

/// The newest migration that a database has; 0 for none.
async fn schema(conn: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
    let found: Option<String> = sqlx::query_scalar(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name = '_sqlx_migrations'",
    )
    .fetch_optional(&mut *conn)
    .await?;
    if found.is_none() {
        return Ok(0);
    }
    sqlx::query_scalar("SELECT coalesce(max(version), 0) FROM _sqlx_migrations")
        .fetch_one(conn)
        .await
}

fn known_schema() -> i64 {
    MIGRATIONS
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

fn readers(file: &Path, options: &Options) -> SqlitePool {
    let connect = SqliteConnectOptions::new()
        .filename(file)
        .read_only(true)
        .busy_timeout(Duration::from_secs(5))
        .disable_statement_logging();
    SqlitePoolOptions::new()
        .max_connections(options.readers.max(1))
        .test_before_acquire(false)
        .after_connect(|conn, _| Box::pin(direct::steady(conn)))
        .connect_lazy_with(connect)
}

// claim_expire_all: whoever takes the file is alone with it.
const CLAIM_EXPIRE_ALL: &str = "
    UPDATE claim SET expires_at = ?1, data = json_set(data, '$.expires_at', ?1) WHERE expires_at > ?1";

/// Runs a query of several statements on one snapshot.
macro_rules! snapshot {
    ($store:expr, $action:literal, |$conn:ident| $query:expr) => {{
        let mut reader = $store.reader($action).await?;
        let mut tx = reader
            .begin()
            .await
            .map_err(|error| StoreError::Unavailable {
                action: $action,
                cause: error.into(),
            })?;
        let $conn = &mut *tx;
        let done = $query.await;
        // Nothing was written; a failed end of the read is the pool's to notice.
        let _ = tx.rollback().await;
        done
    }};
}

#[async_trait]
impl Store for SqliteStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        if let Some((jobs, desk)) = &self.jobs
            && let Some((answer, due)) = desk.at_once(&commit)
        {
            if due {
                // A full queue keeps the writer at work as it is.
                let _ = jobs.try_send((Job::Checkpoint, desk.ask()));
            }
            return answer;
        }
        self.ask("commit", |reply| Job::Commit(commit, reply)).await
    }

    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        const ACTION: &str = "read a session";
        if let Some(tail) = self.shared.cache().get(session) {
            return Ok(Some(tail));
        }
        let found = snapshot!(self, "read a session", |conn| read::tails(conn, &[session]))
            .map_err(|error| StoreError::Unavailable {
                action: ACTION,
                cause: error.into(),
            })?
            .remove(&session);
        match found {
            None => Ok(None),
            Some(Ok(tail)) => Ok(Some(Arc::new(tail))),
            Some(Err(cause)) => Err(StoreError::Damaged { session, cause }),
        }
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        snapshot!(self, "read events", |conn| read::event_page(
            conn, session, after, limit
        ))
        .map_err(|error| error.during("read events"))
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        const ACTION: &str = "read items";
        if self.shared.cache().holds(session)
            && let Some(items) = self.near.items(session, range, order, limit)
        {
            return Ok(items);
        }
        let mut conn = self.reader(ACTION).await?;
        read::item_page(&mut conn, session, range, order, limit)
            .await
            .map_err(|error| error.during(ACTION))
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        const ACTION: &str = "measure items";
        if self.shared.cache().holds(session)
            && let Some(size) = self.near.measure(session, range)
        {
            return Ok(size);
        }
        let mut conn = self.reader(ACTION).await?;
        read::item_measure(&mut conn, session, range)
            .await
            .map_err(|error| error.during(ACTION))
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        const ACTION: &str = "read inputs";
        let mut conn = self.reader(ACTION).await?;
        read::input_list(&mut conn, session, all)
            .await
            .map_err(|error| error.during(ACTION))
    }

    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        const ACTION: &str = "list sessions";
        let mut conn = self.reader(ACTION).await?;
        read::session_list(&mut conn, before, limit)
            .await
            .map_err(|error| error.during(ACTION))
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        snapshot!(self, "read a session", |conn| read::dump(conn, session))
            .map_err(|error| error.during("read a session"))
    }

    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        self.ask("delete a session", |reply| Job::Delete(session, reply))
            .await
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        const ACTION: &str = "look for work";
        let mut conn = self.reader(ACTION).await?;
        let fail = |error: read::ReadError| error.during(ACTION);
        let expired = read::claim_expired(&mut conn, self.shared.now(), limit)
            .await
            .map_err(fail)?;
        let due = read::session_due(&mut conn, limit.min(places))
            .await
            .map_err(fail)?;
        let timers = read::session_timer(&mut conn, self.shared.now(), limit)
            .await
            .map_err(fail)?;
        let owing = read::session_owing(&mut conn, limit).await.map_err(fail)?;
        Ok(Scan {
            expired,
            due,
            timers,
            owing,
        })
    }

    async fn lag(&self) -> Result<Lag, StoreError> {
        self.lag_now().await
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        let mut beaten = Beaten::default();
        if !beat.executions.is_empty() {
            let (owner, lease_ms) = (beat.owner, beat.lease_ms);
            let executions = beat.executions.clone();
            let renew = |reply| Job::Renew {
                owner,
                executions,
                lease_ms,
                reply,
            };
            beaten.renewed = self.ask("renew claims", renew).await?;
        }
        // One process owns the file, so nobody sees the one without the other.
        beaten.drain = self.node_beat(beat).await?;
        beaten.now = Some(self.shared.now());
        Ok(beaten)
    }

    async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        self.node_list().await
    }

    async fn node_drain(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        self.node_ask(owner).await
    }

    async fn nodes_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        self.node_forget(past_ms).await
    }

    async fn name(&self) -> Result<String, StoreError> {
        const ACTION: &str = "read the store's name";
        let mut conn = self.reader(ACTION).await?;
        let name = read::name(&mut conn).await;
        name.map_err(|error| error.during(ACTION))
    }

    async fn now(&self) -> Result<Millis, StoreError> {
        Ok(self.shared.now())
    }

    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        self.shared.recent.touch(digest);
        let row: Arc<(String, Vec<u8>)> = Arc::new((digest.into(), bytes.into()));
        let action: Action = Box::new(move |conn| {
            let row = row.clone();
            Box::pin(async move {
                let put = sqlx::query(
                    "INSERT INTO blob (digest, bytes) VALUES (?, ?) ON CONFLICT DO NOTHING",
                );
                Ok(put
                    .bind(&row.0)
                    .bind(&row.1)
                    .execute(conn)
                    .await?
                    .rows_affected())
            })
        });
        self.run("store a blob", action).await.map(drop)
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        const ACTION: &str = "read a blob";
        let _there = self.shared.recent.blobs.read().await;
        self.shared.recent.touch(digest);
        let mut conn = self.reader(ACTION).await?;
        sqlx::query_scalar("SELECT bytes FROM blob WHERE digest = ?")
            .bind(digest)
            .fetch_optional(&mut *conn)
            .await
            .map_err(|error| StoreError::Unavailable {
                action: ACTION,
                cause: error.into(),
            })
    }

    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        self.shared.recent.touch(&info.digest);
        let data = serde_json::to_string(info).expect("what is known of a component serialises");
        let row = Arc::new((
            info.digest.clone(),
            info.kind.to_string(),
            data,
            bytes.to_vec(),
        ));
        let action: Action = Box::new(move |conn| {
            let row = row.clone();
            Box::pin(async move {
                let put = sqlx::query(
                    "INSERT INTO plugin (digest, kind, data, bytes) VALUES (?, ?, ?, ?)
                     ON CONFLICT (digest) DO UPDATE SET kind = excluded.kind, data = excluded.data",
                );
                let put = put.bind(&row.0).bind(&row.1).bind(&row.2).bind(&row.3);
                Ok(put.execute(conn).await?.rows_affected())
            })
        });
        self.run("store a plugin", action).await.map(drop)
    }

    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        const ACTION: &str = "read a plugin";
        let mut conn = self.reader(ACTION).await?;
        let data: Option<String> = sqlx::query_scalar("SELECT data FROM plugin WHERE digest = ?")
            .bind(digest)
            .fetch_optional(&mut *conn)
            .await
            .map_err(|error| StoreError::Unavailable {
                action: ACTION,
                cause: error.into(),
            })?;
        data.map(|data| plugin_info(&data)).transpose()
    }

    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        const ACTION: &str = "read a plugin";
        let mut conn = self.reader(ACTION).await?;
        sqlx::query_scalar("SELECT bytes FROM plugin WHERE digest = ?")
            .bind(digest)
            .fetch_optional(&mut *conn)
            .await
            .map_err(|error| StoreError::Unavailable {
                action: ACTION,
                cause: error.into(),
            })
    }

    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        const ACTION: &str = "list plugins";
        let mut conn = self.reader(ACTION).await?;
        let rows: Vec<String> = sqlx::query_scalar("SELECT data FROM plugin ORDER BY digest")
            .fetch_all(&mut *conn)
            .await
            .map_err(|error| StoreError::Unavailable {
                action: ACTION,
                cause: error.into(),
            })?;
        rows.iter().map(|data| plugin_info(data)).collect()
    }

    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        let digest = digest.to_owned();
        let action: Action = Box::new(move |conn| {
            let digest = digest.clone();
            Box::pin(async move {
                let delete = sqlx::query("DELETE FROM plugin WHERE digest = ?").bind(digest);
                Ok(delete.execute(conn).await?.rows_affected())
            })
        });
        Ok(self.run("delete a plugin", action).await? > 0)
    }

    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
        source: Option<&str>,
    ) -> Result<(), StoreError> {
        let row = (
            kind.to_string(),
            alias.to_owned(),
            digest.map(str::to_owned),
            source.map(str::to_owned),
        );
        let action: Action = Box::new(move |conn| {
            let (kind, alias, digest, source) = row.clone();
            Box::pin(async move {
                let query = match digest {
                    Some(digest) => sqlx::query(
                        "INSERT INTO alias (kind, alias, digest, source) VALUES (?, ?, ?, ?)
                         ON CONFLICT (kind, alias)
                         DO UPDATE SET digest = excluded.digest, source = excluded.source",
                    )
                    .bind(kind)
                    .bind(alias)
                    .bind(digest)
                    .bind(source),
                    None => sqlx::query("DELETE FROM alias WHERE kind = ? AND alias = ?")
                        .bind(kind)
                        .bind(alias),
                };
                Ok(query.execute(conn).await?.rows_affected())
            })
        });
        let done = self.run("store an alias", action).await.map(drop);
        // Whatever came of it: an error does not say that nothing was stored.
        self.shared.aliases().change();
        done
    }

    async fn aliases(&self) -> Result<Vec<Alias>, StoreError> {
        const ACTION: &str = "list aliases";
        let (changes, read) = {
            let names = self.shared.aliases();
            (names.changes, names.read.clone())
        };
        let aliases = match read {
            Some(aliases) => aliases,
            None => {
                let mut conn = self.reader(ACTION).await?;
                let aliases: Arc<[Alias]> = read::alias_list(&mut conn)
                    .await
                    .map_err(|error| error.during(ACTION))?
                    .into();
                if self.shared.is_owner() {
                    let mut names = self.shared.aliases();
                    if names.changes == changes {
                        names.read = Some(Arc::clone(&aliases));
                    }
                }
                aliases
            }
        };
        for alias in aliases.iter() {
            self.shared.recent.touch(&alias.digest);
        }
        Ok(aliases.to_vec())
    }

    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        const ACTION: &str = "read open steps";
        let mut conn = self.reader(ACTION).await?;
        let steps = read::step_open(&mut conn)
            .await
            .map_err(|error| error.during(ACTION))?;
        Ok(digests_named(steps))
    }
}

fn plugin_info(data: &str) -> Result<PluginInfo, StoreError> {
    serde_json::from_str(data).map_err(|error| StoreError::Unavailable {
        action: "read a plugin",
        cause: error.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn refused(machine: Machine) -> OpenError {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.db");
        let refused = SqliteStore::open_on(&path, Options::default(), &machine)
            .await
            .err()
            .expect("refused");
        assert_eq!(
            std::fs::read_dir(dir.path()).unwrap().count(),
            0,
            "nothing was made"
        );
        refused
    }

    #[tokio::test]
    async fn store_4_a_network_file_system_is_refused() {
        let refused = refused(Machine {
            network: |_| Ok(Some("NFS".into())),
            ..MACHINE
        })
        .await;
        assert!(
            refused.to_string().contains("network file system (NFS)"),
            "{refused}"
        );
    }

    #[tokio::test]
    async fn store_4_an_old_library_is_refused() {
        let refused = refused(Machine {
            sqlite: Some("3.51.2"),
            ..MACHINE
        })
        .await;
        assert_eq!(
            refused.to_string(),
            "the SQLite library is 3.51.2; at least 3.51.3 is needed"
        );
    }

    #[test]
    fn the_marker_is_the_one_that_is_written() {
        assert_eq!(file::APPLICATION_ID, 1_299_084_148);
    }

    #[test]
    fn tails_that_were_not_used_go_first() {
        let tail = |id| {
            let created = mainstay_test_support::build::create(id);
            let known = mainstay_core::commit::Known::default();
            Arc::new(
                mainstay_core::commit::apply(None, &created, &known, 0)
                    .unwrap()
                    .tail,
            )
        };
        let ids: Vec<SessionId> = (0..5).map(|_| SessionId::new()).collect();
        let mut cache = Cache {
            tails: HashMap::new(),
            limit: 4,
            tick: 0,
        };
        for id in &ids[..4] {
            cache.keep(HashMap::from([(*id, tail(*id))]));
        }
        assert!(cache.get(ids[0]).is_some());
        cache.keep(HashMap::from([(ids[4], tail(ids[4]))]));
        assert!(cache.get(ids[0]).is_some() && cache.get(ids[4]).is_some());
        assert!(cache.get(ids[1]).is_none());
    }
}
