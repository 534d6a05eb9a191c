//! Postgres: several nodes share the work.
//!
//! - [`commit`] judges a commit here and stores it by one statement that checks what it was judged by;
//!   [`write`] is that statement.
//! - [`read`] holds the queries, each one statement and so one snapshot. [`statement`] sends them,
//!   [`pool`] keeps the connections, [`trouble`] says what is wrong and whether waiting helps.
//! - [`cache`] keeps the tails that were written last, [`window`] the items of what runs here, [`names`]
//!   where names lead, [`clock`] what the database's clock shows, [`kinds`] what a newer build has
//!   written.
//! - [`doctor`] examines a database, [`rebuild`] writes rows anew from their log, [`gc`] removes what
//!   nothing needs, [`retention`] what is too old.
//! - [`nodes`] keeps the rows of nodes. [`migrate`] makes the schema. [`moving`] reads and writes sessions as they are, for
//!   a move. [`hints`] tells of what other nodes wrote, if all goes well.
//!
//! The store's clock is the database's. No state of a database session outlives a transaction: a pooler
//! may hand each to another connection ([`Options::prepared`]).

mod cache;
mod clock;
mod commit;
mod doctor;
mod gc;
mod hints;
mod kinds;
mod migrate;
mod moving;
mod names;
mod nodes;
mod pool;
mod port;
mod read;
mod rebuild;
mod repair;
mod retention;
mod statement;
mod trouble;
mod window;
mod write;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use mainstay_core::event::Record;
use mainstay_core::id::{EventId, InputId, OwnerId, Seq, SessionId};
use mainstay_core::port::{Clock, StoreError};
use mainstay_core::tail::Tail;
use sqlx::ConnectOptions as _;
use sqlx::postgres::{PgConnectOptions, PgRow};

use crate::value::ReadError;
use cache::Cache;
use clock::StoreClock;
use hints::Board;
pub use hints::{Hint, Hints, Messages};
use kinds::Kinds;
use names::Names;
use pool::Pool;
use read::Loaded;
pub use trouble::Trouble;
use window::Windows;

/// How a database is opened.
#[derive(Clone)]
pub struct Options {
    /// Who is told by [`mainstay_core::port::Store::scan`] what there is to do: the owner that the node on
    /// it has, whose row says which share is its own.
    pub owner: OwnerId,
    /// Connections that may be open at a time.
    pub connections: u32,
    /// Whether statements are prepared. Not behind a pooler that hands each transaction to another
    /// connection.
    pub prepared: bool,
    /// Tails that are kept in memory.
    pub cached_tails: usize,
    /// How long a statement is repeated while the database is away, or others are in the way.
    pub patience: Duration,
    /// How long a statement may take before the connection is taken for lost.
    pub longest: Duration,
    /// How long other scanners are not told of what this one was told of.
    pub scan_hold: Duration,
    /// How often other nodes are told of what was written, and listened to. `None` leaves both out: not
    /// behind a pooler that hands each transaction to another connection.
    pub notify_every: Option<Duration>,
    /// What this process is called among the database's connections, unless the URL says otherwise.
    pub application: String,
    /// Whether the schema is made where there is none, and migrated where it is older. Else that is an
    /// error.
    pub make: bool,
    /// In place of the database's clock, for tests. All that open the database are to go by the same.
    pub clock: Option<Arc<dyn Clock>>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            owner: OwnerId::new(),
            connections: 16,
            prepared: true,
            cached_tails: 4096,
            patience: Duration::from_secs(10),
            longest: Duration::from_secs(60),
            scan_hold: Duration::from_secs(3),
            notify_every: Some(Duration::from_millis(20)),
            application: "mainstay".into(),
            make: true,
            clock: None,
        }
    }
}

/// Why a database was not opened. Nothing in it was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("that is not a Postgres URL; write postgres://USER:PASSWORD@HOST:PORT/DATABASE")]
    Url(#[source] sqlx::Error),
    #[error("the database {place} holds something else than Mainstay's; name another")]
    Foreign { place: String },
    #[error(
        "the database {place} is empty; `mainstay serve --store postgres://…` makes a store of it"
    )]
    Missing { place: String },
    #[error(
        "the database {place} has schema {found}, and this build needs {known}; start this build's \
         `mainstay serve` once to migrate it"
    )]
    OlderSchema {
        place: String,
        found: i64,
        known: i64,
    },
    #[error(
        "the database {place} has schema {found}, and this build knows {known}; use a newer build"
    )]
    NewerSchema {
        place: String,
        found: i64,
        known: i64,
    },
    #[error(
        "migration {version} of the database {place} is not the one of this build; use the build that made it"
    )]
    Altered { place: String, version: i64 },
    #[error("could not apply migration {version} to the database {place}")]
    Migration {
        place: String,
        version: i64,
        #[source]
        cause: sqlx::Error,
    },
    #[error("the database {place} is Postgres {found}; at least {needed} is needed")]
    Server {
        place: String,
        found: String,
        needed: i32,
    },
    #[error("the database {place} is encoded as {found}; create one with UTF8")]
    Encoding { place: String, found: String },
    #[error("the search path of the database {place} names no schema that exists; create one")]
    NoSchema { place: String },
    #[error("could not open the database {place}")]
    Unavailable {
        place: String,
        #[source]
        cause: Trouble,
    },
}

impl OpenError {
    fn sql(place: &str, cause: sqlx::Error) -> Self {
        Self::Unavailable {
            place: place.into(),
            cause: Trouble::new(place, cause),
        }
    }
}

/// What was done since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Commits that were accepted, those included that had nothing to write.
    pub commits: u64,
    pub events: u64,
    /// Statements that were to store a commit, each a transaction.
    pub writes: u64,
    /// Times that a commit was judged by what was read for it, and not by what was kept.
    pub loads: u64,
    /// Writes that found that another had come first, or the claim expired.
    pub stale: u64,
    /// All statements, each a round trip.
    pub statements: u64,
    /// Connections that were lost.
    pub lost: u64,
}

#[derive(Default)]
struct Counters {
    commits: AtomicU64,
    events: AtomicU64,
    writes: AtomicU64,
    loads: AtomicU64,
    stale: AtomicU64,
}

/// A store in a Postgres database.
///
/// Dropping it closes its connections.
pub struct PostgresStore {
    pool: Arc<Pool>,
    board: Board,
    cache: Cache,
    windows: Windows,
    names: Names,
    clock: StoreClock,
    kinds: Kinds,
    counters: Counters,
    options: Options,
    place: String,
}

impl PostgresStore {
    /// Opens the database of a `postgres://` URL, making or migrating its schema as needed. A database
    /// that is starting is waited for, within [`Options::patience`].
    ///
    /// # Errors
    /// [`OpenError`].
    ///
    /// # Cancel safety
    /// Dropped midway, the database is either as it was or a whole one.
    pub async fn open(url: &str, options: Options) -> Result<Self, OpenError> {
        if !url.starts_with("postgres://") && !url.starts_with("postgresql://") {
            let cause = "it begins with something else than postgres://";
            return Err(OpenError::Url(sqlx::Error::Configuration(cause.into())));
        }
        let connect: PgConnectOptions = url.parse().map_err(OpenError::Url)?;
        let place = format!(
            "{}:{}/{}",
            connect
                .get_socket()
                .map_or_else(|| connect.get_host().into(), |path| path.to_string_lossy()),
            connect.get_port(),
            connect.get_database().unwrap_or(connect.get_username()),
        );
        // Poolers refuse settings that they do not know.
        let connect = connect.extra_float_digits(None).disable_statement_logging();
        let connect = if options.prepared {
            connect
        } else {
            connect.statement_cache_capacity(0)
        };
        let connect = match connect.get_application_name() {
            None => connect.application_name(&options.application),
            Some(_) => connect,
        };
        let pool = Pool::new(
            connect,
            place.clone(),
            options.connections,
            options.prepared,
            (options.patience, options.longest),
        );
        let mut conn = pool
            .connect()
            .await
            .map_err(|cause| OpenError::Unavailable {
                place: place.clone(),
                cause,
            })?;
        migrate::migrate(&mut conn, &place, options.make).await?;
        pool.keep(conn);
        let pool = Arc::new(pool);
        Ok(Self {
            board: Board::new(pool.clone(), options.owner, options.notify_every),
            pool,
            cache: Cache::new(options.cached_tails),
            windows: Windows::default(),
            names: Names::default(),
            clock: StoreClock::new(options.clock.clone()),
            kinds: Kinds::default(),
            counters: Counters::default(),
            options,
            place,
        })
    }

    /// The database, as host, port and name.
    #[must_use]
    pub fn place(&self) -> &str {
        &self.place
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Stats {
            commits: read(&self.counters.commits),
            events: read(&self.counters.events),
            writes: read(&self.counters.writes),
            loads: read(&self.counters.loads),
            stale: read(&self.counters.stale),
            statements: self.pool.statements(),
            lost: self.pool.lost(),
        }
    }

    /// What other nodes write from now on, coalesced and without promise that any of it is heard.
    #[must_use]
    pub fn hints(&self) -> Hints {
        self.board.hints()
    }

    /// What other nodes relay from now on, without promise that any of it is heard.
    #[must_use]
    pub fn messages(&self) -> Messages {
        self.board.messages()
    }

    /// Whether anything is relayed at all: not where notifications are left out.
    #[must_use]
    pub fn relays(&self) -> bool {
        self.board.is_on()
    }

    /// Relays messages to all other nodes, as far as they listen. One of more than about 7,800 bytes is
    /// left out.
    ///
    /// # Cancel safety
    /// Dropped midway, they may be sent or not.
    pub async fn relay(&self, messages: &[String]) {
        self.board.relay(messages).await;
    }

    /// Closes the connections. Everything that is asked of the store afterwards is answered by an error.
    pub async fn close(&self) {
        self.board.close();
        self.pool.close().await;
    }

    /// What a commit is judged by: a session's live end, if there is one, and what else bears these ids.
    async fn load(
        &self,
        action: &'static str,
        session: SessionId,
        events: &[EventId],
        inputs: &[InputId],
        held: Option<(Seq, Seq)>,
    ) -> Result<(Loaded, Option<Tail>), StoreError> {
        let mut repaired = false;
        loop {
            let statement = read::session_load(session, self.clock.at(), events, inputs, held);
            let row = self.one(action, &statement).await?;
            let found = Loaded::read(session, &row).map_err(|error| self.failed(action, error))?;
            let foreign = self.foreign_of(action, session, &found).await?;
            if let Some(version) = found.version
                && found.stale
                && foreign.is_none()
                && !repaired
            {
                repaired = true;
                self.repair(action, session, version, &found).await?;
                continue;
            }
            let tail = self.tail_of(action, session, &found, foreign)?;
            return Ok((found, tail));
        }
    }

    /// The same, as a commit that came too late was told it. `None` if there is more to it.
    async fn told(
        &self,
        action: &'static str,
        session: SessionId,
        json: &str,
    ) -> Result<Option<(Loaded, Option<Tail>)>, StoreError> {
        let found = Loaded::told(session, json).map_err(|error| self.failed(action, error))?;
        let foreign = self.foreign_of(action, session, &found).await?;
        if found.stale && foreign.is_none() {
            return Ok(None);
        }
        let tail = self.tail_of(action, session, &found, foreign)?;
        Ok(Some((found, tail)))
    }

    /// The first event of a session that this build does not know.
    async fn foreign_of(
        &self,
        action: &'static str,
        session: SessionId,
        found: &Loaded,
    ) -> Result<read::Foreign, StoreError> {
        self.clock.saw(found.now);
        if found.version.is_none() {
            return Ok(None);
        }
        let unknown = self.kinds.unknown(found.kinds, &self.pool).await;
        match unknown.map_err(|trouble| trouble.during(action))? {
            None => Ok(None),
            Some(unknown) => self.foreign(action, session, unknown).await,
        }
    }

    fn tail_of(
        &self,
        action: &'static str,
        session: SessionId,
        found: &Loaded,
        foreign: read::Foreign,
    ) -> Result<Option<Tail>, StoreError> {
        let tail = found.version.map(|_| found.tail(session, foreign));
        tail.transpose().map_err(|error| self.failed(action, error))
    }

    async fn foreign(
        &self,
        action: &'static str,
        session: SessionId,
        unknown: Vec<String>,
    ) -> Result<read::Foreign, StoreError> {
        let rows = self
            .rows(action, &read::foreign_find(session, unknown))
            .await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        let first = read::foreign_row(row);
        first.map(Some).map_err(|error| self.failed(action, error))
    }

    /// All events of a session after a seq, and its head.
    async fn event_page(
        &self,
        action: &'static str,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        let statement = read::event_page(session, after, i64::from(limit));
        let rows = self.rows(action, &statement).await?;
        read::event_rows(&rows).map_err(|error| self.failed(action, error))
    }

    /// Runs what may as well run twice.
    async fn rows(
        &self,
        action: &'static str,
        statement: &statement::Statement,
    ) -> Result<Vec<PgRow>, StoreError> {
        let done = self.pool.repeat(statement).await;
        done.map_err(|trouble| trouble.during(action))
    }

    /// Runs a statement that always gives a row.
    async fn one(
        &self,
        action: &'static str,
        statement: &statement::Statement,
    ) -> Result<PgRow, StoreError> {
        let row = self.rows(action, statement).await?.into_iter().next();
        row.ok_or_else(|| self.failed(action, sqlx::Error::RowNotFound.into()))
    }

    fn failed(&self, action: &'static str, error: ReadError) -> StoreError {
        match error {
            ReadError::Sql(cause) => self.pool.trouble(cause).during(action),
            damaged @ ReadError::Damaged { .. } => damaged.during(action),
        }
    }
}
