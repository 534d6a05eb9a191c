//! The port to the core: each of its calls goes to the writer, to a reader, or to what is kept in memory.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::commit::Commit;
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::nodes::{Beat, Beaten, Lag, NodeRow};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Alias, Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::tail::{Input, Tail};
use sqlx::Connection as _;

use super::writer::{Action, Job};
use super::{SqliteStore, read};
use crate::value::digests_named;

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
