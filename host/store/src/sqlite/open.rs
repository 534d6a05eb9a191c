//! Opens a file: whether it may be owned here, by which library and on which file system, its settings and
//! its schema, and whose claims end with that.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sqlx::migrate::Migrator;
use sqlx::sqlite::{
    SqliteAutoVacuum, SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous,
};
use sqlx::{ConnectOptions as _, Connection as _, SqliteConnection, SqlitePool};
use tokio::sync::mpsc;

use super::desk::Desk;
use super::near::Near;
use super::writer::Writer;
use super::{Options, QUEUE, Shared, SqliteStore, direct, file, foreign, group, nodes, read};
use crate::lock::{Holder, Lock, TakeError};

pub(super) static MIGRATIONS: Migrator = sqlx::migrate!("../../migrations/sqlite");

pub(super) const PAGE_BYTES: u32 = 4096;

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

pub(super) fn by(holder: Option<&Holder>) -> String {
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
pub(super) async fn schema(conn: &mut SqliteConnection) -> Result<i64, sqlx::Error> {
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

pub(super) fn readers(file: &Path, options: &Options) -> SqlitePool {
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
}
