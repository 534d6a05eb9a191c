//! The store that a server runs on: a file that is this process' own, or a database that nodes share.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::BoxError;
use mainstay_core::id::OwnerId;
use mainstay_core::node::Node;
use mainstay_core::port::{Clock, Store, StoreError};
use mainstay_store::postgres::{self, Hint};
use mainstay_store::{Collected, PostgresStore, Retained, Retention, SqliteStore};

use crate::error::Result;
use crate::paths::Paths;

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

    pub(crate) fn port(&self) -> Arc<dyn Store> {
        match self {
            Self::Sqlite(store) => Arc::clone(store) as _,
            Self::Postgres(store) => Arc::clone(store) as _,
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
    ) -> std::result::Result<Retained, BoxError> {
        match self {
            Self::Sqlite(store) => Ok(store.retain(retention, dry_run).await?),
            Self::Postgres(_) if retention == Retention::default() => Ok(Retained::default()),
            Self::Postgres(_) => Err("a retention cannot be applied to Postgres yet".into()),
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
