//! Copies a database while it is written to. The copy is one read transaction: it holds every commit
//! that was answered before it began and no half of a later one, whichever process writes. It is made
//! under another name beside its target and moved there once it is whole and on disk.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use sqlx::sqlite::SqliteConnectOptions;
use sqlx::{ConnectOptions, Connection};

use super::file::{self, Content};
use super::{SqliteStore, schema};
use crate::lock;

/// What SQLite keeps beside a database, and would take for the copy's own.
const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];

/// Why no copy was made. What was at its target is as it was.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    #[error("{} exists; name another file, or replace it on purpose", to.display())]
    Exists { to: PathBuf },
    #[error("{} is the database itself; name another file", to.display())]
    Itself { to: PathBuf },
    #[error("{} is a database in use; name another file", to.display())]
    InUse { to: PathBuf },
    #[error("could not write {}", to.display())]
    Io {
        to: PathBuf,
        #[source]
        cause: io::Error,
    },
    #[error("could not copy the database to {}", to.display())]
    Sqlite {
        to: PathBuf,
        #[source]
        cause: sqlx::Error,
    },
    #[error("the copy for {} is not whole: {said}; examine the database", to.display())]
    Broken { to: PathBuf, said: String },
}

/// A copy that is on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copied {
    /// Under its full path.
    pub file: PathBuf,
    pub bytes: u64,
    pub schema: i64,
}

impl SqliteStore {
    /// Copies the database as it is now to the file `to`, which must not exist unless it may be
    /// replaced. Writers go on meanwhile, and the WAL grows by what they write until it is done.
    ///
    /// # Errors
    /// [`BackupError`].
    ///
    /// # Cancel safety
    /// Dropped midway, nothing is at the target that was not there before.
    pub async fn backup(&self, to: &Path, replace: bool) -> Result<Copied, BackupError> {
        let io = |cause| BackupError::Io {
            to: to.into(),
            cause,
        };
        let sqlite = |cause| BackupError::Sqlite {
            to: to.into(),
            cause,
        };
        let to = file::canonical(to).map_err(io)?;
        self.check_target(&to, replace)?;
        let folder = to.parent().unwrap_or(Path::new("/")).to_owned();

        let part = tempfile::Builder::new()
            .prefix(".mainstay-backup-")
            .suffix(".part")
            .tempfile_in(&folder)
            .map_err(io)?;
        let mut conn = SqliteConnectOptions::new()
            .filename(self.file())
            .read_only(true)
            .busy_timeout(Duration::from_secs(10))
            .disable_statement_logging()
            .connect()
            .await
            .map_err(sqlite)?;
        let name = part.path().to_str().ok_or_else(|| {
            io(io::Error::new(
                io::ErrorKind::InvalidInput,
                "its path is no text",
            ))
        })?;
        sqlx::query("VACUUM INTO ?")
            .bind(name)
            .execute(&mut conn)
            .await
            .map_err(sqlite)?;
        conn.close().await.map_err(sqlite)?;
        let schema = verify(part.path(), &to).await?;

        // As readable as the original: it tells as much.
        let permissions = std::fs::metadata(self.file()).map_err(io)?.permissions();
        std::fs::set_permissions(part.path(), permissions).map_err(io)?;
        part.as_file().sync_all().map_err(io)?;
        let bytes = part.as_file().metadata().map_err(io)?.len();
        let moved = if replace {
            for left in beside(&to) {
                remove(&left).map_err(io)?;
            }
            part.persist(&to)
        } else {
            part.persist_noclobber(&to)
        };
        moved.map_err(|error| match error.error.kind() {
            io::ErrorKind::AlreadyExists => BackupError::Exists { to: to.clone() },
            _ => io(error.error),
        })?;
        std::fs::File::open(&folder)
            .and_then(|folder| folder.sync_all())
            .map_err(io)?;
        Ok(Copied {
            file: to,
            bytes,
            schema,
        })
    }

    fn check_target(&self, to: &Path, replace: bool) -> Result<(), BackupError> {
        let own = beside(self.file()).chain([self.file().to_owned(), lock::path_of(self.file())]);
        if own.into_iter().any(|own| own == to) || same(self.file(), to) {
            return Err(BackupError::Itself { to: to.into() });
        }
        let held = lock::read(to).map_err(|cause| BackupError::Io {
            to: to.into(),
            cause,
        })?;
        if held.is_some_and(|held| held.alive) {
            return Err(BackupError::InUse { to: to.into() });
        }
        if replace {
            return Ok(());
        }
        // A log without its database would be replayed into the copy.
        let mut taken = beside(to).chain([to.to_owned()]);
        match taken.find(|file| file.symlink_metadata().is_ok()) {
            Some(to) => Err(BackupError::Exists { to }),
            None => Ok(()),
        }
    }
}

/// Opens the copy and looks at its structure. Gives its schema.
async fn verify(part: &Path, to: &Path) -> Result<i64, BackupError> {
    let sqlite = |cause| BackupError::Sqlite {
        to: to.into(),
        cause,
    };
    let broken = |said: String| BackupError::Broken {
        to: to.into(),
        said,
    };
    if !matches!(file::content(part), Ok(Content::Ours)) {
        return Err(broken("it does not begin as a database does".into()));
    }
    let mut conn = SqliteConnectOptions::new()
        .filename(part)
        .read_only(true)
        .disable_statement_logging()
        .connect()
        .await
        .map_err(sqlite)?;
    let said: String = sqlx::query_scalar("PRAGMA quick_check(1)")
        .fetch_one(&mut conn)
        .await
        .map_err(sqlite)?;
    if said != "ok" {
        return Err(broken(said));
    }
    let schema = schema(&mut conn).await.map_err(sqlite)?;
    conn.close().await.map_err(sqlite)?;
    Ok(schema)
}

fn beside(database: &Path) -> impl Iterator<Item = PathBuf> {
    BESIDE.into_iter().map(move |suffix| {
        let mut name = database.as_os_str().to_owned();
        name.push(suffix);
        PathBuf::from(name)
    })
}

/// Whether two paths lead to one file, by links for example.
fn same(a: &Path, b: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt as _;
        let id = |path: &Path| std::fs::metadata(path).ok().map(|m| (m.dev(), m.ino()));
        id(a).is_some() && id(a) == id(b)
    }
    #[cfg(not(unix))]
    {
        a == b
    }
}

fn remove(file: &Path) -> io::Result<()> {
    match std::fs::remove_file(file) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        done => done,
    }
}
