//! The store that a server runs on, or that a command works on by itself: a file that is this process'
//! own, or a database that nodes share.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::id::{OwnerId, SessionId};
use mainstay_core::node::Node;
use mainstay_core::port::{Clock, Store, StoreError};
use mainstay_store::moving::Movable;
use mainstay_store::postgres::{self, Hint};
use mainstay_store::{Collected, PostgresStore, Report, Retained, Retention, SqliteStore};
use tokio_util::task::AbortOnDropHandle;

use crate::access;
use crate::error::Result;
use crate::paths::Paths;
use crate::relay;

/// What commands that only look or clear out are called at a database.
const TOOL: &str = "mainstay tool";

/// One of the two.
#[derive(Clone)]
pub(crate) enum Backing {
    Sqlite(Arc<SqliteStore>),
    Postgres(Arc<PostgresStore>),
}

impl Backing {
    /// Opens what the paths name, for a node of this owner.
    pub(crate) async fn open(paths: &Paths, owner: OwnerId, clock: Arc<dyn Clock>) -> Result<Self> {
        if let Some(url) = &paths.database {
            // Expiry is the database's to judge; this node's clock plays no part.
            let options = postgres::Options {
                owner,
                ..postgres::Options::default()
            };
            return Ok(Self::Postgres(Arc::new(
                PostgresStore::open(url, options).await?,
            )));
        }
        let options = mainstay_store::Options {
            clock,
            owner,
            ..mainstay_store::Options::default()
        };
        let store = SqliteStore::open(&paths.store, options).await?;
        Ok(Self::Sqlite(Arc::new(store)))
    }

    /// Opens what is there to look at it, beside whoever runs on it.
    pub(crate) async fn look(paths: &Paths) -> Result<Self> {
        match &paths.database {
            Some(url) => Self::tool(url, TOOL, false).await,
            None => Ok(Self::Sqlite(Arc::new(access::read(paths).await?))),
        }
    }

    /// Opens what is there to change it, without running anything: a file is refused while another
    /// process has it.
    pub(crate) async fn change(paths: &Paths) -> Result<Self> {
        match &paths.database {
            Some(url) => Self::tool(url, TOOL, false).await,
            None => Ok(Self::Sqlite(Arc::new(access::write(paths).await?))),
        }
    }

    /// Opens a file without running anything, and makes it where it is missing.
    pub(crate) async fn make(paths: &Paths) -> Result<Self> {
        let options = mainstay_store::Options::default();
        let store = SqliteStore::open(&paths.store, options).await?;
        Ok(Self::Sqlite(Arc::new(store)))
    }

    /// A database, for a command that is called `name` there and is no node.
    pub(crate) async fn tool(url: &str, name: &str, make: bool) -> Result<Self> {
        let options = postgres::Options {
            connections: 2,
            notify_every: None,
            application: name.to_owned(),
            make,
            ..postgres::Options::default()
        };
        Ok(Self::Postgres(Arc::new(
            PostgresStore::open(url, options).await?,
        )))
    }

    pub(crate) fn port(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => Arc::clone(store) as _,
            Self::Postgres(store) => Arc::clone(store) as _,
        }
    }

    pub(crate) fn movable(&self) -> &dyn Movable {
        match self {
            Self::Sqlite(store) => &**store,
            Self::Postgres(store) => &**store,
        }
    }

    /// Tells commands on this machine where the owner of the file answers.
    pub(crate) fn publish(&self, address: Option<String>) -> std::io::Result<()> {
        match self {
            Self::Sqlite(store) => store.publish_address(address),
            Self::Postgres(_) => Ok(()),
        }
    }

    /// Tells a node's followers what other nodes write, as far as it is heard. They look by themselves
    /// once a poll too.
    pub(crate) async fn follow(self, node: Arc<Node>) {
        let Self::Postgres(store) = self else { return };
        let relay = tokio::spawn(relay::run(Arc::clone(&store), Arc::clone(&node)));
        let _relay = AbortOnDropHandle::new(relay);
        let mut hints = store.hints();
        while let Some(hint) = hints.next().await {
            if let Hint::Changed { session, seq } = hint {
                node.heard(session, seq);
            }
        }
    }

    /// See [`SqliteStore::retain`].
    pub(crate) async fn retain(
        &self,
        retention: Retention,
        dry_run: bool,
    ) -> std::result::Result<Retained, StoreError> {
        match self {
            Self::Sqlite(store) => store.retain(retention, dry_run).await,
            Self::Postgres(store) => store.retain(retention, dry_run).await,
        }
    }

    /// See [`SqliteStore::examine`]. Postgres' indexes are not compared with their tables, quick or not.
    pub(crate) async fn examine(
        &self,
        quick: bool,
        progress: impl Fn(u64, u64) + Send + Sync,
    ) -> std::result::Result<Report, StoreError> {
        match self {
            Self::Sqlite(store) => store.examine(quick, progress).await,
            Self::Postgres(store) => store.examine(progress).await,
        }
    }

    /// See [`SqliteStore::rebuild`].
    pub(crate) async fn rebuild(&self, session: SessionId) -> std::result::Result<(), StoreError> {
        match self {
            Self::Sqlite(store) => store.rebuild(session).await,
            Self::Postgres(store) => store.rebuild(session).await,
        }
    }

    /// See [`SqliteStore::collect`].
    pub(crate) async fn collect(
        &self,
        keep: Duration,
        dry_run: bool,
    ) -> std::result::Result<Collected, StoreError> {
        match self {
            Self::Sqlite(store) => store.collect(keep, dry_run).await,
            Self::Postgres(store) => store.collect(keep, dry_run).await,
        }
    }

    pub(crate) async fn close(&self) {
        match self {
            Self::Sqlite(store) => store.close().await,
            Self::Postgres(store) => store.close().await,
        }
    }
}
