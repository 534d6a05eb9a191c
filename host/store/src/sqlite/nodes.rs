//! The rows of nodes. One process owns the file, so there is one that lives; those before it stay for a
//! while, as what they were.

use mainstay_core::id::{Millis, OwnerId};
use mainstay_core::nodes::{Beat, Identity, Lag, NodeRow};
use mainstay_core::port::StoreError;
use sqlx::sqlite::SqliteRow;
use sqlx::{Row as _, SqliteConnection};

use super::SqliteStore;
use super::read::signed;
use super::writer::Action;
use crate::value::unsigned;

// node_beat: what was under way when a node ended may come in behind its end.
const NODE_BEAT: &str = "
    INSERT INTO node (id, version, address, host, pid, capacity, load, draining, started_at, seen_at,
                      expires_at, stopped_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?9, ?10, ?11)
    ON CONFLICT (id) DO UPDATE SET
        version = excluded.version, address = excluded.address, host = excluded.host,
        pid = excluded.pid, capacity = excluded.capacity, load = excluded.load,
        draining = excluded.draining, seen_at = excluded.seen_at, expires_at = excluded.expires_at,
        stopped_at = coalesce(node.stopped_at, excluded.stopped_at)";

const NODE_LIST: &str = "
    SELECT id, version, address, host, pid, capacity, load, draining, drain_asked, started_at, seen_at,
           expires_at, stopped_at, (SELECT count(*) FROM claim WHERE claim.owner = node.id)
      FROM node ORDER BY started_at, id";

// node_drain: a wish, to one that lives.
const NODE_DRAIN: &str = "
    UPDATE node SET drain_asked = 1 WHERE id = ?1 AND stopped_at IS NULL AND expires_at > ?2";

const NODE_FORGET: &str = "DELETE FROM node WHERE coalesce(stopped_at, expires_at) < ?1";

// node_expire_all: whoever takes the file is alone with it.
pub(super) const NODE_EXPIRE_ALL: &str = "
    UPDATE node SET expires_at = ?1 WHERE stopped_at IS NULL AND expires_at > ?1";

// lag: what a scan would find.
const LAG: &str = "
    SELECT (SELECT count(*) FROM (
                SELECT 1 FROM claim
                 WHERE expires_at <= ?1 AND session NOT IN (SELECT session FROM foreign_event) LIMIT ?2)),
           (SELECT ?1 - min(expires_at) FROM claim
             WHERE expires_at <= ?1 AND session NOT IN (SELECT session FROM foreign_event)),
           (SELECT count(*) FROM (
                SELECT 1 FROM session
                 WHERE due AND id NOT IN (SELECT session FROM foreign_event) LIMIT ?2)),
           (SELECT ?1 - min(updated_at) FROM session
             WHERE due AND id NOT IN (SELECT session FROM foreign_event))";

impl SqliteStore {
    /// Writes the node's row, if it has something to say. True if somebody asked it to drain.
    pub(super) async fn node_beat(&self, beat: &Beat) -> Result<bool, StoreError> {
        let Some(presence) = beat.presence.clone() else {
            return Ok(false);
        };
        let (owner, lease_ms) = (beat.owner, beat.lease_ms);
        let shared = self.shared.clone();
        let action: Action = Box::new(move |conn| {
            let said = presence.clone();
            let now = shared.now();
            Box::pin(async move {
                let beat = sqlx::query(NODE_BEAT)
                    .bind(owner.to_string())
                    .bind(said.identity.version)
                    .bind(said.identity.address)
                    .bind(said.identity.host)
                    .bind(said.identity.pid)
                    .bind(said.capacity)
                    .bind(said.load)
                    .bind(said.draining)
                    .bind(signed(now))
                    .bind(signed(now.saturating_add(lease_ms)))
                    .bind(said.stopped.then_some(signed(now)));
                Ok(beat.execute(conn).await?.rows_affected())
            })
        });
        const ACTION: &str = "renew a node";
        self.run(ACTION, action).await?;
        let mut conn = self.reader(ACTION).await?;
        let asked: Result<Option<bool>, _> =
            sqlx::query_scalar("SELECT drain_asked FROM node WHERE id = ?")
                .bind(owner.to_string())
                .fetch_optional(&mut *conn)
                .await;
        let asked = asked.map_err(|cause| StoreError::Unavailable {
            action: ACTION,
            cause: cause.into(),
        })?;
        Ok(asked == Some(true))
    }

    pub(super) async fn node_list(&self) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        const ACTION: &str = "list nodes";
        let mut conn = self.reader(ACTION).await?;
        let failed = |cause: sqlx::Error| StoreError::Unavailable {
            action: ACTION,
            cause: cause.into(),
        };
        let rows = nodes(&mut conn).await.map_err(failed)?;
        Ok((rows, self.shared.now()))
    }

    pub(super) async fn node_ask(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        let (nodes, _) = self.node_list().await?;
        let before = nodes.into_iter().find(|row| row.identity.owner == owner);
        if before.is_none() {
            return Ok(None);
        }
        let shared = self.shared.clone();
        let action: Action = Box::new(move |conn| {
            let now = shared.now();
            Box::pin(async move {
                let ask = sqlx::query(NODE_DRAIN)
                    .bind(owner.to_string())
                    .bind(signed(now));
                Ok(ask.execute(conn).await?.rows_affected())
            })
        });
        self.run("ask a node to drain", action).await?;
        Ok(before)
    }

    pub(super) async fn node_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        let shared = self.shared.clone();
        let action: Action = Box::new(move |conn| {
            let before = shared.now().saturating_sub(past_ms);
            Box::pin(async move {
                let forget = sqlx::query(NODE_FORGET).bind(signed(before));
                Ok(forget.execute(conn).await?.rows_affected())
            })
        });
        self.run("forget nodes", action).await
    }

    pub(super) async fn lag_now(&self) -> Result<Lag, StoreError> {
        const ACTION: &str = "look how much waits";
        let mut conn = self.reader(ACTION).await?;
        let read: Result<(i64, Option<i64>, i64, Option<i64>), _> = sqlx::query_as(LAG)
            .bind(signed(self.shared.now()))
            .bind(Lag::MOST)
            .fetch_one(&mut *conn)
            .await;
        let (expired, oldest_expired, due, oldest_due) =
            read.map_err(|cause| StoreError::Unavailable {
                action: ACTION,
                cause: cause.into(),
            })?;
        Ok(Lag {
            expired: unsigned(expired),
            oldest_expired_ms: oldest_expired.map(unsigned),
            due: unsigned(due),
            oldest_due_ms: oldest_due.map(unsigned),
        })
    }
}

async fn nodes(conn: &mut SqliteConnection) -> Result<Vec<NodeRow>, sqlx::Error> {
    let rows = sqlx::query(NODE_LIST).fetch_all(conn).await?;
    rows.iter().map(node).collect()
}

fn node(row: &SqliteRow) -> Result<NodeRow, sqlx::Error> {
    let owner: String = row.try_get(0)?;
    let owner = owner.parse().map_err(|cause: uuid::Error| {
        sqlx::Error::Decode(format!("the node id {owner:?}: {cause}").into())
    })?;
    let count = |n: usize| row.try_get::<i64, _>(n).map(unsigned);
    let small = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(NodeRow {
        identity: Identity {
            owner,
            version: row.try_get(1)?,
            address: row.try_get(2)?,
            host: row.try_get(3)?,
            pid: row.try_get(4)?,
        },
        capacity: small(count(5)?),
        load: small(count(6)?),
        draining: row.try_get(7)?,
        drain_asked: row.try_get(8)?,
        started_at: count(9)?,
        seen_at: count(10)?,
        expires_at: count(11)?,
        stopped_at: row.try_get::<Option<i64>, _>(12)?.map(unsigned),
        claims: count(13)?,
    })
}
