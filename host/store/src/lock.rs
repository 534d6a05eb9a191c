//! Who owns a database file: a lock file beside it, locked by the operating system for the life of
//! the process that holds it, so that a killed process never seems alive. Its content tells commands
//! where the server answers.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

use mainstay_core::id::{Millis, OwnerId};
use serde::{Deserialize, Serialize};

/// The content is padded to a multiple of this, so that writing it anew never cuts it short.
const RECORD: usize = 512;

/// A reader holds the lock for an instant to see whether it is free. It must not pass for an owner.
const TRIES: u32 = 5;
const BETWEEN_TRIES: Duration = Duration::from_millis(20);

/// What the owner of a database file says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    pub pid: u32,
    pub owner: OwnerId,
    /// Wall time.
    pub started_at: Millis,
    /// Where its server answers, once it does.
    #[serde(default)]
    pub address: Option<String>,
}

/// A lock file as found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Who wrote it last; `None` if that cannot be read.
    pub holder: Option<Holder>,
    /// The lock is held: the process lives.
    pub alive: bool,
}

/// The lock file of a database.
#[must_use]
pub fn path_of(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

/// Looks at a database's lock file without taking the lock. `None` if there is no such file.
///
/// # Errors
/// The file cannot be read.
pub fn read(database: &Path) -> io::Result<Option<Found>> {
    let open = crate::sqlite::file::canonical(database)
        .and_then(|database| File::open(path_of(&database)));
    let mut file = match open {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let alive = match file.try_lock_shared() {
        Ok(()) => {
            file.unlock()?;
            false
        }
        Err(TryLockError::WouldBlock) => true,
        Err(TryLockError::Error(error)) => return Err(error),
    };
    Ok(Some(Found {
        holder: content(&mut file)?,
        alive,
    }))
}

fn content(file: &mut File) -> io::Result<Option<Holder>> {
    let mut text = String::new();
    file.seek(SeekFrom::Start(0))?;
    match file.read_to_string(&mut text) {
        Ok(_) => Ok(serde_json::from_str(&text).ok()),
        Err(error) if error.kind() == io::ErrorKind::InvalidData => Ok(None),
        Err(error) => Err(error),
    }
}

/// Why the lock was not taken.
#[derive(Debug)]
pub(crate) enum TakeError {
    /// Another process has it.
    Held(Option<Holder>),
    Io(io::Error),
}

impl From<io::Error> for TakeError {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// The lock, held until it is dropped.
#[derive(Debug)]
pub(crate) struct Lock {
    held: Mutex<(File, Holder)>,
}

impl Lock {
    /// Takes the lock of a database and writes who holds it. Blocks for a tenth of a second at most.
    pub(crate) fn take(database: &Path, holder: Holder) -> Result<Self, TakeError> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(path_of(database))?;
        let mut tries = 1;
        loop {
            match file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if tries < TRIES => std::thread::sleep(BETWEEN_TRIES),
                Err(TryLockError::WouldBlock) => return Err(TakeError::Held(content(&mut file)?)),
                Err(TryLockError::Error(error)) => return Err(error.into()),
            }
            tries += 1;
        }
        write(&mut file, &holder)?;
        Ok(Self {
            held: Mutex::new((file, holder)),
        })
    }

    /// Says where the server answers.
    pub(crate) fn publish(&self, address: Option<String>) -> io::Result<()> {
        let mut held = self
            .held
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (file, holder) = &mut *held;
        holder.address = address;
        write(file, holder)
    }
}

fn write(file: &mut File, holder: &Holder) -> io::Result<()> {
    let mut text = serde_json::to_vec(holder)?;
    let length = (text.len() + 1)
        .next_multiple_of(RECORD)
        .max(usize::try_from(file.metadata()?.len()).unwrap_or(0));
    text.resize(length - 1, b' ');
    text.push(b'\n');
    file.seek(SeekFrom::Start(0))?;
    file.write_all(&text)?;
    file.sync_data()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holder(address: Option<&str>) -> Holder {
        Holder {
            pid: 7,
            owner: OwnerId::new(),
            started_at: 1,
            address: address.map(Into::into),
        }
    }

    #[test]
    fn a_lock_file_without_its_process_is_not_alive() {
        let dir = tempfile::tempdir().unwrap();
        let database = dir.path().join("a.db");
        assert_eq!(read(&database).unwrap(), None);

        let first = holder(None);
        let lock = Lock::take(&database, first.clone()).unwrap();
        assert_eq!(
            read(&database).unwrap(),
            Some(Found {
                holder: Some(first.clone()),
                alive: true
            })
        );
        let Err(TakeError::Held(Some(told))) = Lock::take(&database, holder(None)) else {
            panic!("taken twice")
        };
        assert_eq!(told, first);

        lock.publish(Some("x".repeat(600))).unwrap();
        lock.publish(Some("127.0.0.1:4000".into())).unwrap();
        let found = read(&database).unwrap().unwrap();
        assert_eq!(
            found.holder.unwrap().address.as_deref(),
            Some("127.0.0.1:4000")
        );

        drop(lock);
        assert!(!read(&database).unwrap().unwrap().alive);
        let second = holder(None);
        let _lock = Lock::take(&database, second.clone()).unwrap();
        assert_eq!(
            read(&database).unwrap(),
            Some(Found {
                holder: Some(second),
                alive: true
            })
        );
    }
}
