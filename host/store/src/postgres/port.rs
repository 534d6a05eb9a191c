//! The port: what each of its questions asks of the database.

use std::collections::HashSet;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::claim::Claim;
use mainstay_core::commit::Commit;
use mainstay_core::event::Record;
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{Digest, Millis, OwnerId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::nodes::{Beat, Beaten, Lag, NodeRow};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::{Alias, Committed, Dump, Listed, Scan, Store, StoreError};
use mainstay_core::tail::{Input, Tail};
use rand::Rng as _;
use sqlx::Row as _;
use sqlx::postgres::PgRow;

use super::PostgresStore;
use super::read;
use super::statement::{Arg, Statement};
use crate::value::digests_named;
use crate::value::{Read, unsigned};

// scanned_forget: long after they were of use.
const SCANNED_FORGET: &str = "DELETE FROM scanned WHERE until < store_now($1) - 600000";

// alias_list: with how often they have changed; with no name, one row that has that alone.
const ALIAS_LIST: &str = "
    SELECT a.kind, a.alias, a.digest, a.source, n.changes
      FROM naming n LEFT JOIN alias a ON true ORDER BY a.kind, a.alias";

// claim_marked: claims that an owner has on some sessions.
const CLAIM_MARKED: &str =
    "SELECT session, data FROM claim WHERE session = ANY ($1) AND owner = $2";

#[async_trait]
impl Store for PostgresStore {
    async fn commit(&self, commit: Commit) -> Result<Committed, StoreError> {
        self.commit_one(&commit).await
    }

    async fn tail(&self, session: SessionId) -> Result<Option<Arc<Tail>>, StoreError> {
        let (found, tail) = self.load("read a session", session, &[], &[], None).await?;
        let tail = tail.map(Arc::new);
        if let (Some(tail), Some(version)) = (&tail, found.version) {
            self.cache.keep(session, tail.clone(), version);
        }
        Ok(tail)
    }

    async fn events(
        &self,
        session: SessionId,
        after: Seq,
        limit: u32,
    ) -> Result<Option<(Vec<Record>, Seq)>, StoreError> {
        self.event_page("read events", session, after, limit).await
    }

    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        const ACTION: &str = "read items";
        let statement = read::item_page(session, range, order, limit);
        let rows = self.rows(ACTION, &statement).await?;
        read::item_rows(session, &rows).map_err(|error| self.failed(ACTION, error))
    }

    async fn items_held(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, StoreError> {
        let missed = match self.windows.items(session, range, order, limit) {
            Ok(items) => return Ok(items),
            Err(missed) => missed,
        };
        let items = self.items(session, range, order, limit).await?;
        self.windows
            .fill(session, missed, range, (order, limit), &items);
        Ok(items)
    }

    async fn measure_held(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        match self.windows.measure(session, range) {
            Ok(size) => Ok(size),
            Err(_) => self.measure(session, range).await,
        }
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, StoreError> {
        const ACTION: &str = "measure items";
        let row = self
            .one(ACTION, &read::item_measure(session, range))
            .await?;
        read::size(&row).map_err(|error| self.failed(ACTION, error))
    }

    async fn inputs(&self, session: SessionId, all: bool) -> Result<Vec<Input>, StoreError> {
        const ACTION: &str = "read inputs";
        let rows = self.rows(ACTION, &read::input_list(session, all)).await?;
        read::input_rows(session, &rows).map_err(|error| self.failed(ACTION, error))
    }

    async fn sessions(
        &self,
        before: Option<(Millis, SessionId)>,
        limit: u32,
    ) -> Result<Vec<Listed>, StoreError> {
        const ACTION: &str = "list sessions";
        let unknown = self.kinds.look(&self.pool).await;
        let unknown = unknown.map_err(|trouble| trouble.during(ACTION))?;
        let statement = read::session_list(before, limit, unknown);
        let rows = self.rows(ACTION, &statement).await?;
        let listed = rows.iter().map(read::listed).collect::<Read<_>>();
        listed.map_err(|error| self.failed(ACTION, error))
    }

    async fn dump(&self, session: SessionId) -> Result<Dump, StoreError> {
        const ACTION: &str = "read a session";
        let unknown = self.kinds.look(&self.pool).await;
        let unknown = unknown.map_err(|trouble| trouble.during(ACTION))?;
        let statement = read::session_dump(session, unknown);
        let rows = self.rows(ACTION, &statement).await?;
        let dump = rows.first().map(|row| read::dump(session, row));
        let dump = dump.unwrap_or_else(|| Ok(Dump::default()));
        dump.map_err(|error| self.failed(ACTION, error))
    }

    async fn delete(&self, session: SessionId) -> Result<bool, StoreError> {
        const ACTION: &str = "delete a session";
        let statement = Statement::new("SELECT session_drop($1)").bind(session.0);
        let lost = self.pool.lost();
        let row = self.one(ACTION, &statement).await?;
        self.cache.forget(session);
        drop(self.windows.take(session));
        let dropped: bool = row.try_get(0).map_err(|e| self.failed(ACTION, e.into()))?;
        // Where a connection was lost, it may have been an earlier try that deleted it.
        Ok(dropped || self.pool.lost() != lost)
    }

    async fn scan_within(&self, limit: u32, places: u32) -> Result<Scan, StoreError> {
        const ACTION: &str = "look for work";
        if rand::rng().random_ratio(1, 256) {
            let statement = Statement::new(SCANNED_FORGET).bind(self.clock.at());
            self.rows(ACTION, &statement).await?;
        }
        let mut unknown = self.kinds.last();
        loop {
            let hold = i64::try_from(self.options.scan_hold.as_millis()).unwrap_or(i64::MAX >> 1);
            let statement = read::session_scan(
                self.options.owner.0,
                (limit, places),
                self.clock.at(),
                hold,
                unknown.clone(),
            );
            let rows = self.rows(ACTION, &statement).await?;
            let scan = scan(&rows).map_err(|error| self.failed(ACTION, error))?;
            let (scan, kinds, names) = scan;
            self.names.heard(names);
            let now_unknown = self.kinds.unknown(kinds, &self.pool).await;
            let now_unknown = now_unknown.map_err(|trouble| trouble.during(ACTION))?;
            if now_unknown == unknown {
                return Ok(scan);
            }
            unknown = now_unknown;
        }
    }

    async fn lag(&self) -> Result<Lag, StoreError> {
        self.lag_now().await
    }

    async fn interrupted(
        &self,
        owner: OwnerId,
        sessions: &[SessionId],
    ) -> Result<Vec<SessionId>, StoreError> {
        const ACTION: &str = "look for interrupts";
        let ids: Vec<uuid::Uuid> = sessions.iter().map(|session| session.0).collect();
        let statement = Statement::new(CLAIM_MARKED).bind(ids).bind(owner.0);
        let rows = self.rows(ACTION, &statement).await?;
        let mut marked = Vec::new();
        for row in &rows {
            let read = |error: sqlx::Error| self.failed(ACTION, error.into());
            let session = SessionId(row.try_get(0).map_err(read)?);
            let data: String = row.try_get(1).map_err(read)?;
            // One that cannot be read keeps nothing from the others.
            if let Ok(claim) = serde_json::from_str::<Claim>(&data)
                && claim.interrupt
            {
                marked.push(session);
            }
        }
        Ok(marked)
    }

    async fn beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        self.node_beat(beat).await
    }

    async fn nodes(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        self.node_list(None).await
    }

    async fn node_drain(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        self.node_ask(owner).await
    }

    async fn nodes_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        self.node_forget(past_ms).await
    }

    async fn name(&self) -> Result<String, StoreError> {
        const ACTION: &str = "read the store's name";
        let row = self.one(ACTION, &read::store_name()).await?;
        row.try_get(0).map_err(|e| self.failed(ACTION, e.into()))
    }

    async fn now(&self) -> Result<Millis, StoreError> {
        const ACTION: &str = "read the clock";
        let statement = Statement::new("SELECT store_now($1)").bind(self.clock.at());
        let row = self.one(ACTION, &statement).await?;
        let now = row.try_get(0).map_err(|e| self.failed(ACTION, e.into()))?;
        self.clock.saw(unsigned(now));
        Ok(unsigned(now))
    }

    async fn blob_put(&self, digest: &str, bytes: &[u8]) -> Result<(), StoreError> {
        let statement = Statement::new(
            "INSERT INTO blob (digest, bytes, touched_at) VALUES ($1, $2, store_now(NULL))
             ON CONFLICT (digest) DO UPDATE SET touched_at = excluded.touched_at",
        )
        .bind(digest)
        .bind(Arg::Bytes(bytes.into()));
        self.rows("store a blob", &statement).await.map(drop)
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        // Often enough for who collects what nothing needs.
        let statement = Statement::new(
            "WITH touched AS (
                UPDATE blob SET touched_at = store_now(NULL)
                 WHERE digest = $1 AND touched_at < store_now(NULL) - 300000)
             SELECT bytes FROM blob WHERE digest = $1",
        )
        .bind(digest);
        self.optional("read a blob", &statement).await
    }

    async fn plugin_put(&self, info: &PluginInfo, bytes: &[u8]) -> Result<(), StoreError> {
        let data = serde_json::to_string(info).expect("what is known of a component serialises");
        let statement = Statement::new(
            "INSERT INTO plugin (digest, kind, data, bytes, touched_at)
             VALUES ($1, $2, $3, $4, store_now(NULL))
             ON CONFLICT (digest) DO UPDATE SET
                kind = excluded.kind, data = excluded.data, touched_at = excluded.touched_at",
        )
        .bind(info.digest.as_str())
        .bind(info.kind.to_string())
        .bind(data)
        .bind(Arg::Bytes(bytes.into()));
        self.rows("store a plugin", &statement).await.map(drop)
    }

    async fn plugin(&self, digest: &str) -> Result<Option<PluginInfo>, StoreError> {
        const ACTION: &str = "read a plugin";
        let statement = Statement::new("SELECT data FROM plugin WHERE digest = $1").bind(digest);
        let data: Option<String> = self.optional(ACTION, &statement).await?;
        data.map(|data| plugin_info(&data)).transpose()
    }

    async fn plugin_bytes(&self, digest: &str) -> Result<Option<Vec<u8>>, StoreError> {
        let statement = Statement::new("SELECT bytes FROM plugin WHERE digest = $1").bind(digest);
        self.optional("read a plugin", &statement).await
    }

    async fn plugins(&self) -> Result<Vec<PluginInfo>, StoreError> {
        const ACTION: &str = "list plugins";
        let statement = Statement::new("SELECT data FROM plugin ORDER BY digest");
        let rows = self.rows(ACTION, &statement).await?;
        let read = |row: &PgRow| {
            let data: String = row.try_get(0).map_err(|e| self.failed(ACTION, e.into()))?;
            plugin_info(&data)
        };
        rows.iter().map(read).collect()
    }

    async fn plugin_delete(&self, digest: &str) -> Result<bool, StoreError> {
        let statement =
            Statement::new("DELETE FROM plugin WHERE digest = $1 RETURNING digest").bind(digest);
        let rows = self.rows("delete a plugin", &statement).await?;
        Ok(!rows.is_empty())
    }

    async fn alias_put(
        &self,
        kind: Kind,
        alias: &str,
        digest: Option<&str>,
        source: Option<&str>,
    ) -> Result<(), StoreError> {
        let statement = match digest {
            Some(digest) => Statement::new(
                "INSERT INTO alias (kind, alias, digest, source) VALUES ($1, $2, $3, $4)
                 ON CONFLICT (kind, alias)
                 DO UPDATE SET digest = excluded.digest, source = excluded.source",
            )
            .bind(kind.to_string())
            .bind(alias)
            .bind(digest)
            .bind(source.map(str::to_owned)),
            None => Statement::new("DELETE FROM alias WHERE kind = $1 AND alias = $2")
                .bind(kind.to_string())
                .bind(alias),
        };
        let done = self.rows("store an alias", &statement).await.map(drop);
        // Whatever came of it: an error does not say that nothing was stored.
        self.names.changed();
        done
    }

    async fn aliases(&self) -> Result<Vec<Alias>, StoreError> {
        const ACTION: &str = "list aliases";
        let begun = self.names.begin();
        let row = |error: sqlx::Error| self.failed(ACTION, error.into());
        let rows = self.rows(ACTION, &Statement::new(ALIAS_LIST)).await?;
        let aliases = rows.iter().filter_map(|row| alias(row).transpose());
        let aliases: Result<Vec<_>, sqlx::Error> = aliases.collect();
        let aliases = aliases.map_err(row)?;
        if let Some(first) = rows.first() {
            let changes = first.try_get(4).map_err(row)?;
            self.names.keep(begun, changes, aliases.clone().into());
        }
        Ok(aliases)
    }

    async fn alias(&self, kind: Kind, alias: &str) -> Result<Option<Digest>, StoreError> {
        let names = match self.names.get() {
            Some(names) => names,
            None => self.aliases().await?.into(),
        };
        let mut named = names.iter();
        let named = named.find(|name| name.kind == kind && name.alias == alias);
        Ok(named.map(|name| name.digest.clone()))
    }

    async fn digests_in_use(&self) -> Result<HashSet<String>, StoreError> {
        const ACTION: &str = "read open steps";
        let rows = self.rows(ACTION, &read::step_open()).await?;
        let steps = read::steps(&rows).map_err(|error| self.failed(ACTION, error))?;
        Ok(digests_named(steps))
    }
}

impl PostgresStore {
    /// The first column of the row, if there is one.
    async fn optional<T>(
        &self,
        action: &'static str,
        statement: &Statement,
    ) -> Result<Option<T>, StoreError>
    where
        T: for<'r> sqlx::Decode<'r, sqlx::Postgres> + sqlx::Type<sqlx::Postgres>,
    {
        let rows = self.rows(action, statement).await?;
        let value = rows.first().map(|row| row.try_get(0)).transpose();
        value.map_err(|error| self.failed(action, error.into()))
    }
}

/// What a scan found, how many types of events there are, and how often names have changed.
fn scan(rows: &[PgRow]) -> Read<(Scan, i64, i64)> {
    let (mut scan, mut kinds, mut names) = (Scan::default(), 0, 0);
    for row in rows {
        let what: String = row.try_get("o_what")?;
        if what == "kinds" {
            kinds = row.try_get("o_expires_at")?;
            continue;
        }
        if what == "names" {
            names = row.try_get("o_expires_at")?;
            continue;
        }
        let session = SessionId(row.try_get("o_session")?);
        match what.as_str() {
            "expired" => scan.expired.extend(read::expired(row)?),
            "due" => scan.due.push(session),
            "timer" => scan.timers.push(session),
            _ => scan.owing.push(session),
        }
    }
    Ok((scan, kinds, names))
}

/// One of a kind that this build does not know is none; nor is the row of the count alone.
fn alias(row: &PgRow) -> Result<Option<Alias>, sqlx::Error> {
    let kinds = [Kind::Runner, Kind::Provider, Kind::Toolbox];
    let kind: Option<String> = row.try_get(0)?;
    let mut kinds = kinds.into_iter();
    let Some(kind) = kinds.find(|known| kind.as_ref() == Some(&known.to_string())) else {
        return Ok(None);
    };
    Ok(Some(Alias {
        kind,
        alias: row.try_get(1)?,
        digest: row.try_get(2)?,
        source: row.try_get(3)?,
    }))
}

fn plugin_info(data: &str) -> Result<PluginInfo, StoreError> {
    serde_json::from_str(data).map_err(|error| StoreError::Unavailable {
        action: "read a plugin",
        cause: error.into(),
    })
}
