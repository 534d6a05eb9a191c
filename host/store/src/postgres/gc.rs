//! Removes what nothing needs any more, as [`crate::sqlite::gc`] does. What any node put, was given or
//! lost the name of lately stays in any case, which the rows themselves tell: somebody may be about to
//! commit a reference to it.

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use mainstay_core::id::{Digest, Millis};
use mainstay_core::port::StoreError;
use sqlx::Row as _;
use uuid::Uuid;

use super::PostgresStore;
use super::statement::Statement;
use crate::sqlite::gc::{Collected, component, digests};
use crate::value::signed;

const ACTION: &str = "collect what nothing needs";
/// Rows that one statement reads, or blobs that one removes.
const PAGE: usize = 256;

impl PostgresStore {
    /// Removes components and blobs that nothing needs, or only tells which where `dry_run` is set.
    /// What a step used, or any node was given, less than `keep` ago stays.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; a part may be removed then, and each part is removed whole.
    ///
    /// # Cancel safety
    /// As with an error.
    pub async fn collect(&self, keep: Duration, dry_run: bool) -> Result<Collected, StoreError> {
        let failed = |cause: sqlx::Error| self.failed(ACTION, cause.into());
        let keep = Millis::try_from(keep.as_millis()).unwrap_or(Millis::MAX);
        let now = Statement::new("SELECT store_now(NULL)");
        let now: i64 = self.one(ACTION, &now).await?.try_get(0).map_err(failed)?;
        let since = now.saturating_sub(signed(keep));
        let mut collected = Collected::default();

        let needed = self.components_needed(since).await?;
        let all = Statement::new(
            "SELECT digest, kind, data, length(bytes)::bigint, touched_at FROM plugin ORDER BY digest",
        );
        for row in self.rows(ACTION, &all).await? {
            let digest: Digest = row.try_get(0).map_err(failed)?;
            let (kind, data): (String, String) = (
                row.try_get(1).map_err(failed)?,
                row.try_get(2).map_err(failed)?,
            );
            let bytes = row.try_get(3).map_err(failed)?;
            let touched_at: i64 = row.try_get(4).map_err(failed)?;
            let Some(one) = component(digest, &kind, &data, bytes) else {
                continue;
            };
            let stays = needed.contains(&one.digest) || touched_at >= since;
            if stays || !(dry_run || self.remove_component(&one.digest, since).await?) {
                collected.kept.insert(one.digest);
            } else {
                collected.components.push(one);
            }
        }

        let mut blobs = self.blobs_unmentioned(since).await?;
        if !dry_run {
            let all: Vec<Digest> = blobs.keys().cloned().collect();
            let mut removed: HashSet<Digest> = HashSet::new();
            for some in all.chunks(PAGE) {
                let statement = Statement::new(BLOB_DROP).bind(some.to_vec()).bind(since);
                for row in self.rows(ACTION, &statement).await? {
                    removed.insert(row.try_get(0).map_err(failed)?);
                }
            }
            blobs.retain(|digest, _| removed.contains(digest));
        }
        collected.blobs = blobs.len() as u64;
        collected.blob_bytes = blobs.values().sum();
        Ok(collected)
    }

    /// False if something needs it by now.
    async fn remove_component(&self, digest: &str, since: i64) -> Result<bool, StoreError> {
        let statement = Statement::new(COMPONENT_DROP).bind(digest).bind(since);
        Ok(!self.rows(ACTION, &statement).await?.is_empty())
    }

    /// Digests that names and steps lead to; of others too that stand in those steps.
    async fn components_needed(&self, since: i64) -> Result<HashSet<Digest>, StoreError> {
        let failed = |cause: sqlx::Error| self.failed(ACTION, cause.into());
        let statement = Statement::new(COMPONENTS_NEEDED).bind(since);
        let rows = self.rows(ACTION, &statement).await?;
        rows.iter()
            .map(|row| row.try_get(0).map_err(failed))
            .collect()
    }

    /// Blobs that no row mentions and nobody was given lately, and their bytes. Pages are read one by
    /// one: a row that is written meanwhile can only mention a blob that was given to somebody
    /// meanwhile.
    async fn blobs_unmentioned(&self, since: i64) -> Result<HashMap<Digest, u64>, StoreError> {
        let failed = |cause: sqlx::Error| self.failed(ACTION, cause.into());
        let statement =
            Statement::new("SELECT digest, length(bytes)::bigint FROM blob WHERE touched_at < $1")
                .bind(since);
        let mut blobs = HashMap::new();
        for row in self.rows(ACTION, &statement).await? {
            let bytes: i64 = row.try_get(1).map_err(failed)?;
            blobs.insert(
                row.try_get(0).map_err(failed)?,
                u64::try_from(bytes).unwrap_or(0),
            );
        }
        for sql in MENTIONING {
            let mut last = (Uuid::nil(), -1_i64, -1_i64);
            while !blobs.is_empty() {
                let page = Statement::new(sql).bind(last.0).bind(last.1).bind(last.2);
                let page = self.rows(ACTION, &page).await?;
                let Some(row) = page.last() else { break };
                last = (
                    row.try_get(0).map_err(failed)?,
                    row.try_get(1).map_err(failed)?,
                    row.try_get(2).map_err(failed)?,
                );
                for row in &page {
                    let data: &str = row.try_get(3).map_err(failed)?;
                    for digest in digests(data) {
                        blobs.remove(digest);
                    }
                }
            }
        }
        Ok(blobs)
    }
}

// component_drop: unless a name or an open step leads to it by now, or somebody was given it.
const COMPONENT_DROP: &str = "
    DELETE FROM plugin
     WHERE digest = $1 AND touched_at < $2
       AND NOT EXISTS (SELECT 1 FROM alias WHERE alias.digest = $1)
       AND NOT EXISTS (
            SELECT 1 FROM session s JOIN event e ON e.session = s.id AND e.seq = s.step
             WHERE s.stepping AND position($1 IN e.data) > 0)
    RETURNING digest";

const BLOB_DROP: &str =
    "DELETE FROM blob WHERE digest = ANY ($1) AND touched_at < $2 RETURNING digest";

// components_needed: what names lead to, and what stands in the events that began the steps that are not
// settled, that ran since, or that are the newest of a session that is claimed now.
const COMPONENTS_NEEDED: &str = "
    SELECT digest FROM alias
     UNION
    SELECT p.digest FROM plugin p JOIN (
        SELECT e.data FROM step t JOIN event e ON e.session = t.session AND e.seq = t.seq
         WHERE t.settled_at IS NULL OR t.settled_at >= $1 OR t.started_at >= $1
            OR (t.session IN (SELECT session FROM claim)
                AND t.seq = (SELECT max(seq) FROM step WHERE session = t.session))
    ) AS began ON position(p.digest IN began.data) > 0";

/// The tables whose rows may mention a blob. The log is among them: rows are rebuilt from it.
const MENTIONING: [&str; 4] = [
    "SELECT session, seq, 0::bigint, data FROM event
      WHERE (session, seq, 0) > ($1, $2, $3) AND position('digest' IN data) > 0
      ORDER BY session, seq LIMIT 256",
    "SELECT session, seq, n, data FROM item
      WHERE (session, seq, n) > ($1, $2, $3) AND position('digest' IN data) > 0
      ORDER BY session, seq, n LIMIT 256",
    "SELECT session, seq, 0::bigint, data FROM input
      WHERE (session, seq, 0) > ($1, $2, $3) AND position('digest' IN data) > 0
      ORDER BY session, seq LIMIT 256",
    "SELECT id, 0::bigint, 0::bigint, data FROM session
      WHERE (id, 0, 0) > ($1, $2, $3) AND position('digest' IN data) > 0
      ORDER BY id LIMIT 256",
];
