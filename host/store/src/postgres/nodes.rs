//! The rows of nodes: one statement renews a node's claims and its row, and tells it of a wish.

use mainstay_core::id::{ExecutionId, Millis, OwnerId, SessionId};
use mainstay_core::nodes::{Beat, Beaten, Identity, Lag, NodeRow};
use mainstay_core::port::StoreError;
use sqlx::Row as _;
use sqlx::postgres::PgRow;
use uuid::Uuid;

use super::PostgresStore;
use super::statement::Statement;
use crate::value::{signed, unsigned};

// node_beat: extends leases, and writes the node's row if it has something to say. An execution that is
// not among the answers is lost. What was under way when a node ended may come in behind its end.
const NODE_BEAT: &str = "
    WITH renewed AS (
        UPDATE claim SET expires_at = least(store_now($4)::numeric + $3, 9223372036854775807)::bigint
         WHERE owner = $1 AND execution = ANY ($2) AND expires_at > store_now($4)
        RETURNING session, execution, expires_at
    ), beaten AS (
        INSERT INTO node AS n (id, version, address, host, pid, capacity, load, draining,
                               started_at, seen_at, expires_at, stopped_at)
        SELECT $1, $5, $6, $7, $8, $9, $10, $11, t.now, t.now,
               least(t.now::numeric + $3, 9223372036854775807)::bigint,
               CASE WHEN $12 THEN t.now END
          FROM (SELECT store_now($4) AS now) AS t
         WHERE $5 IS NOT NULL
        ON CONFLICT (id) DO UPDATE SET
            version = excluded.version, address = excluded.address, host = excluded.host,
            pid = excluded.pid, capacity = excluded.capacity, load = excluded.load,
            draining = excluded.draining, seen_at = excluded.seen_at,
            expires_at = excluded.expires_at,
            stopped_at = coalesce(n.stopped_at, excluded.stopped_at)
        RETURNING drain_asked
    )
    SELECT session, execution, expires_at, store_now($4), NULL::boolean,
           (SELECT changes FROM naming) FROM renewed
     UNION ALL
    SELECT NULL, NULL, NULL, store_now($4), drain_asked, (SELECT changes FROM naming) FROM beaten";

// node_list: one of them, or all.
const NODE_LIST: &str = "
    SELECT n.id, n.version, n.address, n.host, n.pid, n.capacity, n.load, n.draining, n.drain_asked,
           n.started_at, n.seen_at, n.expires_at, n.stopped_at,
           coalesce(c.claims, 0), t.now
      FROM (SELECT store_now($1) AS now) AS t
      LEFT JOIN node n ON $2 IS NULL OR n.id = $2
      LEFT JOIN (SELECT owner, count(*) AS claims FROM claim GROUP BY owner) AS c ON c.owner = n.id
     ORDER BY n.started_at, n.id";

// node_drain: a wish, to one that lives.
const NODE_DRAIN: &str = "
    UPDATE node SET drain_asked = true
     WHERE id = $1 AND stopped_at IS NULL AND expires_at > store_now($2)";

const NODE_FORGET: &str = "
    DELETE FROM node
     WHERE coalesce(stopped_at, expires_at) < store_now($2) - $1
    RETURNING id";

// lag: what a scan would find, without taking any of it.
const LAG: &str = "
    WITH expired AS MATERIALIZED (
        SELECT c.expires_at AS at FROM claim c
         WHERE c.expires_at <= store_now($1) AND NOT is_foreign(c.session, $2)
         ORDER BY c.expires_at, c.session LIMIT $3
    ), due AS MATERIALIZED (
        SELECT s.due AS at FROM session s
         WHERE s.due IS NOT NULL AND NOT is_foreign(s.id, $2)
         ORDER BY s.due, s.id LIMIT $3
    )
    SELECT (SELECT count(*) FROM expired), (SELECT store_now($1) - min(at) FROM expired),
           (SELECT count(*) FROM due), (SELECT store_now($1) - min(at) FROM due)";

impl PostgresStore {
    pub(super) async fn node_beat(&self, beat: &Beat) -> Result<Beaten, StoreError> {
        const ACTION: &str = "renew claims";
        let named = beat.executions.iter();
        let named = named.filter(|fence| fence.owner == beat.owner);
        let named: Vec<Uuid> = named.map(|fence| fence.execution.0).collect();
        let presence = beat.presence.as_ref();
        let said = presence.map(|presence| &presence.identity);
        let statement = Statement::new(NODE_BEAT)
            .bind(beat.owner.0)
            .bind(named)
            .bind(signed(beat.lease_ms))
            .bind(self.clock.at())
            .bind(said.map(|said| said.version.clone()))
            .bind(said.and_then(|said| said.address.clone()))
            .bind(said.and_then(|said| said.host.clone()))
            .bind(said.and_then(|said| said.pid).map(i64::from))
            .bind(presence.map_or(0, |presence| i64::from(presence.capacity)))
            .bind(presence.map_or(0, |presence| i64::from(presence.load)))
            .bind(presence.is_some_and(|presence| presence.draining))
            .bind(presence.is_some_and(|presence| presence.stopped));
        let rows = self.rows(ACTION, &statement).await?;
        let mut beaten = Beaten::default();
        let read = |error: sqlx::Error| self.failed(ACTION, error.into());
        for row in &rows {
            let session: Option<Uuid> = row.try_get(0).map_err(read)?;
            let Some(session) = session else {
                beaten.drain = row.try_get(4).map_err(read)?;
                continue;
            };
            let until = unsigned(row.try_get(2).map_err(read)?);
            self.cache.renewed(SessionId(session), until);
            let execution = ExecutionId(row.try_get(1).map_err(read)?);
            beaten.renewed.insert(execution);
        }
        if let Some(row) = rows.first() {
            let now = unsigned(row.try_get(3).map_err(read)?);
            self.clock.saw(now);
            beaten.now = Some(now);
            self.names.heard(row.try_get(5).map_err(read)?);
        }
        Ok(beaten)
    }

    /// One node, or all; and the time.
    pub(super) async fn node_list(
        &self,
        owner: Option<OwnerId>,
    ) -> Result<(Vec<NodeRow>, Millis), StoreError> {
        const ACTION: &str = "list nodes";
        let statement = Statement::new(NODE_LIST)
            .bind(self.clock.at())
            .bind(owner.map(|owner| owner.0));
        let rows = self.rows(ACTION, &statement).await?;
        let read = |error: sqlx::Error| self.failed(ACTION, error.into());
        let mut now = 0;
        let mut nodes = Vec::with_capacity(rows.len());
        for row in &rows {
            now = unsigned(row.try_get(14).map_err(read)?);
            nodes.extend(node(row).map_err(read)?);
        }
        Ok((nodes, now))
    }

    pub(super) async fn node_ask(&self, owner: OwnerId) -> Result<Option<NodeRow>, StoreError> {
        let (mut before, _) = self.node_list(Some(owner)).await?;
        let statement = Statement::new(NODE_DRAIN)
            .bind(owner.0)
            .bind(self.clock.at());
        self.rows("ask a node to drain", &statement).await?;
        Ok(before.pop())
    }

    pub(super) async fn node_forget(&self, past_ms: u64) -> Result<u64, StoreError> {
        let statement = Statement::new(NODE_FORGET)
            .bind(signed(past_ms))
            .bind(self.clock.at());
        Ok(self.rows("forget nodes", &statement).await?.len() as u64)
    }

    pub(super) async fn lag_now(&self) -> Result<Lag, StoreError> {
        const ACTION: &str = "look how much waits";
        let statement = Statement::new(LAG)
            .bind(self.clock.at())
            .bind(self.kinds.last())
            .bind(i64::from(Lag::MOST));
        let row = self.one(ACTION, &statement).await?;
        let count = |n: usize| row.try_get(n).map(unsigned);
        let age = |n: usize| row.try_get::<Option<i64>, _>(n);
        let read = |error: sqlx::Error| self.failed(ACTION, error.into());
        Ok(Lag {
            expired: count(0).map_err(read)?,
            oldest_expired_ms: age(1).map_err(read)?.map(unsigned),
            due: count(2).map_err(read)?,
            oldest_due_ms: age(3).map_err(read)?.map(unsigned),
        })
    }
}

/// `None` in the row that has the time alone.
fn node(row: &PgRow) -> Result<Option<NodeRow>, sqlx::Error> {
    let Some(owner) = row.try_get::<Option<Uuid>, _>(0)? else {
        return Ok(None);
    };
    let count = |n: usize| row.try_get::<i64, _>(n);
    let small = |n: i64| u32::try_from(n).unwrap_or(u32::MAX);
    Ok(Some(NodeRow {
        identity: Identity {
            owner: OwnerId(owner),
            version: row.try_get(1)?,
            address: row.try_get(2)?,
            host: row.try_get(3)?,
            pid: row.try_get::<Option<i64>, _>(4)?.map(small),
        },
        capacity: small(count(5)?),
        load: small(count(6)?),
        draining: row.try_get(7)?,
        drain_asked: row.try_get(8)?,
        started_at: unsigned(count(9)?),
        seen_at: unsigned(count(10)?),
        expires_at: unsigned(count(11)?),
        stopped_at: row.try_get::<Option<i64>, _>(12)?.map(unsigned),
        claims: unsigned(count(13)?),
    }))
}
