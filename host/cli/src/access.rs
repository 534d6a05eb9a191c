//! Finds the way to the sessions: through the server that owns the file, or the file itself. No
//! command opens the file as a second writer.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::commit::{Commit, Refused, Write};
use mainstay_core::id::SessionId;
use mainstay_core::port::{Clock as _, Store, StoreError, SystemClock};
use mainstay_store::lock::{self, Found};
use mainstay_store::{OpenError, Options, SqliteStore};

use crate::args::Global;
use crate::client::Client;
use crate::config::{self, Loaded};
use crate::error::{Code, Error, Result};
use crate::paths::Paths;
use crate::printer::Printer;

/// What every command has.
pub(crate) struct Context {
    pub(crate) global: Global,
    pub(crate) printer: Arc<Printer>,
}

/// Who answers for the sessions.
pub(crate) enum Way {
    /// The owner of the file, over HTTP.
    Server(Client),
    /// Nobody has the file open.
    File(Paths),
}

/// How long an owner may take to say where it answers.
const BEGINNING: Duration = Duration::from_secs(5);

impl Context {
    pub(crate) fn paths(&self) -> Result<Paths> {
        Paths::new(self.global.store.as_deref())
    }

    pub(crate) fn config(&self) -> Result<Loaded> {
        config::load(self.global.config.as_deref())
    }

    /// The store, for `command`, which works on it itself and asks no server.
    pub(crate) fn store(&self, command: &str) -> Result<Paths> {
        if self.global.server.is_some() {
            let message =
                format!("`{command}` works on the store itself and cannot be done over HTTP");
            return Err(Error::new(Code::Usage, message).hint(
                "run it where the store is, and name that with `--store` instead of `--server`",
            ));
        }
        self.paths()
    }

    /// The database that is named, for commands that work on it beside its nodes.
    pub(crate) fn database(&self) -> Result<Option<Paths>> {
        if self.global.server.is_some() {
            return Ok(None);
        }
        let paths = self.paths()?;
        Ok(paths.database.is_some().then_some(paths))
    }

    /// A client of the server at `address`.
    pub(crate) fn client(&self, address: &str) -> Result<Client> {
        Client::new(address, self.global.token.clone())
    }

    /// Finds who answers.
    pub(crate) async fn way(&self) -> Result<Way> {
        if let Some(address) = &self.global.server {
            return Ok(Way::Server(self.client(address)?));
        }
        let paths = self.paths()?;
        no_database(&paths)?;
        let begun = std::time::Instant::now();
        loop {
            let Some(found) = held(&paths)? else {
                return Ok(Way::File(paths));
            };
            if let Some(address) = found
                .holder
                .as_ref()
                .and_then(|holder| holder.address.as_deref())
            {
                return Ok(Way::Server(self.client(address)?));
            }
            if begun.elapsed() > BEGINNING {
                return Err(OpenError::Owned {
                    file: paths.store,
                    holder: found.holder,
                }
                .into());
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Who has the file now.
fn held(paths: &Paths) -> Result<Option<Found>> {
    match lock::read(&paths.store) {
        Ok(found) => Ok(found.filter(|found| found.alive)),
        // Not even the folder is there.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => {
            let message = format!("cannot look at the lock of {}", paths.store.display());
            Err(Error::new(Code::Unavailable, message).because(&error))
        }
    }
}

/// Refuses a file that another process has.
pub(crate) fn unheld(paths: &Paths) -> Result<()> {
    match held(paths)? {
        Some(Found { holder, .. }) => Err(OpenError::Owned {
            file: paths.store.clone(),
            holder,
        }
        .into()),
        None => Ok(()),
    }
}

/// Sessions in a shared database are reached through one of its nodes.
fn no_database(paths: &Paths) -> Result<()> {
    if paths.database.is_none() {
        return Ok(());
    }
    let message = "sessions in Postgres are reached through a server";
    Err(Error::new(Code::Usage, message).hint(
        "start one with `mainstay serve --store postgres://…`, and name its address with `--server`",
    ))
}

/// Opens the file for reading alone.
pub(crate) async fn read(paths: &Paths) -> Result<SqliteStore> {
    if !paths.store.exists() {
        return Err(OpenError::Missing {
            file: paths.store.clone(),
        }
        .into());
    }
    Ok(SqliteStore::open_read_only(&paths.store).await?)
}

/// Opens the file for writing, without running anything.
pub(crate) async fn write(paths: &Paths) -> Result<SqliteStore> {
    if !paths.store.exists() {
        return Err(OpenError::Missing {
            file: paths.store.clone(),
        }
        .into());
    }
    Ok(SqliteStore::open(&paths.store, Options::default()).await?)
}

/// One change of one session, without running anything.
pub(crate) async fn commit(
    store: &SqliteStore,
    session: SessionId,
    write: Write,
) -> Result<mainstay_core::commit::Reply> {
    let at = SystemClock::default().wall();
    Ok(store.commit(Commit { session, at, write }).await?.reply)
}

/// The session was not found.
pub(crate) fn unknown(session: SessionId) -> Error {
    StoreError::Refused(Refused::NotFound(session)).into()
}
