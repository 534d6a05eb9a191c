//! Removes what nothing needs any more: components that no name, no unsettled step and no recent step
//! leads to, and blobs that no row mentions. What this process has handed out lately stays in any
//! case: somebody may be about to commit a reference to it.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::TryStreamExt as _;
use mainstay_core::id::{Digest, Millis};
use mainstay_core::plugin::Kind;
use mainstay_core::port::{Clock as _, StoreError, SystemClock};
use serde::Deserialize;
use sqlx::{Connection, SqliteConnection};

use super::read::{json_ids, signed};
use super::writer::Action;
use super::{Shared, SqliteStore};

const ACTION: &str = "collect what nothing needs";
/// Rows that one transaction reads, or blobs that one removes.
const PAGE: usize = 256;
/// Digests that are remembered before those that are long out of use are dropped.
const REMEMBERED: usize = 4096;
/// Nobody takes longer from being handed a digest to committing it.
const LONGEST: Duration = Duration::from_secs(24 * 3600);

/// A component that was removed, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Component {
    pub digest: Digest,
    pub kind: Kind,
    pub name: String,
    pub version: String,
    /// Of its code.
    pub bytes: u64,
}

/// What a collection has removed, or would have.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Collected {
    pub components: Vec<Component>,
    pub blobs: u64,
    pub blob_bytes: u64,
    /// Components that stay.
    pub kept: HashSet<Digest>,
}

/// Digests that were handed out, and when.
#[derive(Default)]
pub(super) struct Recent {
    seen: Mutex<HashMap<Digest, Instant>>,
    /// Held for reading from before a blob is looked up until it is remembered, and for writing while
    /// blobs are removed.
    pub(super) blobs: tokio::sync::RwLock<()>,
}

impl Recent {
    /// Somebody learns of this digest now.
    pub(super) fn touch(&self, digest: &str) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        if seen.len() >= REMEMBERED {
            seen.retain(|_, at| at.elapsed() < LONGEST);
        }
        seen.insert(digest.to_owned(), Instant::now());
    }

    fn within(&self, keep: Duration) -> HashSet<Digest> {
        let seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let recent = seen.iter().filter(|(_, at)| at.elapsed() < keep);
        recent.map(|(digest, _)| digest.clone()).collect()
    }
}

#[derive(Deserialize)]
struct Named {
    name: String,
    version: String,
}

/// A component from its columns. One of a kind that this build does not know is another build's to
/// judge.
pub(crate) fn component(digest: Digest, kind: &str, data: &str, bytes: i64) -> Option<Component> {
    let kinds = [Kind::Runner, Kind::Provider, Kind::Toolbox];
    let kind = kinds.into_iter().find(|known| known.to_string() == kind)?;
    let Named { name, version } = serde_json::from_str(data).ok()?;
    Some(Component {
        digest,
        kind,
        name,
        version,
        bytes: u64::try_from(bytes).unwrap_or(0),
    })
}

impl SqliteStore {
    /// Removes components and blobs that nothing needs, or only tells which where `dry_run` is set.
    /// What a step used, or this process handed out, less than `keep` ago stays.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`]; a part may be removed then, and each part is removed whole.
    ///
    /// # Cancel safety
    /// As with an error.
    pub async fn collect(&self, keep: Duration, dry_run: bool) -> Result<Collected, StoreError> {
        let failed = |cause: sqlx::Error| StoreError::Unavailable {
            action: ACTION,
            cause: cause.into(),
        };
        let mut collected = Collected::default();
        let mut conn = self.reader(ACTION).await?;
        let keep_ms = Millis::try_from(keep.as_millis()).unwrap_or(Millis::MAX);
        let since = SystemClock::default().wall().saturating_sub(keep_ms);
        let needed = components_needed(&mut conn, since).await.map_err(failed)?;
        let recent = self.shared.recent.within(keep);
        for component in component_list(&mut conn).await.map_err(failed)? {
            if needed.contains(&component.digest) || recent.contains(&component.digest) {
                collected.kept.insert(component.digest);
            } else {
                collected.components.push(component);
            }
        }
        let mut blobs = blobs_unmentioned(&mut conn).await.map_err(failed)?;
        drop(conn);
        blobs.retain(|digest, _| !recent.contains(digest));

        if !dry_run {
            let mut removed = Vec::new();
            for component in collected.components {
                if self.remove_component(&component.digest).await? {
                    removed.push(component);
                } else {
                    collected.kept.insert(component.digest);
                }
            }
            collected.components = removed;
            let all: Vec<Digest> = blobs.keys().cloned().collect();
            for some in all.chunks(PAGE) {
                for kept in self.remove_blobs(some, keep).await? {
                    blobs.remove(&kept);
                }
            }
        }
        collected.blobs = blobs.len() as u64;
        collected.blob_bytes = blobs.values().sum();
        Ok(collected)
    }

    /// False if something needs it by now.
    async fn remove_component(&self, digest: &str) -> Result<bool, StoreError> {
        let digest = digest.to_owned();
        let action: Action = Box::new(move |conn| {
            let digest = digest.clone();
            Box::pin(async move {
                let delete = sqlx::query(COMPONENT_DROP).bind(digest);
                Ok(delete.execute(conn).await?.rows_affected())
            })
        });
        Ok(self.run(ACTION, action).await? > 0)
    }

    /// Gives those that somebody has asked for meanwhile, which stay.
    async fn remove_blobs(
        &self,
        digests: &[Digest],
        keep: Duration,
    ) -> Result<Vec<Digest>, StoreError> {
        let _alone = self.shared.recent.blobs.write().await;
        let all = digests.to_vec();
        let kept: Arc<Mutex<Vec<Digest>>> = Arc::default();
        let (shared, told): (Arc<Shared>, _) = (self.shared.clone(), kept.clone());
        let action: Action = Box::new(move |conn| {
            // Asked in the writer's turn: what was put before it is known by now.
            let recent = shared.recent.within(keep);
            let (stay, go): (Vec<Digest>, Vec<Digest>) = all
                .iter()
                .cloned()
                .partition(|digest| recent.contains(digest));
            *told.lock().unwrap_or_else(PoisonError::into_inner) = stay;
            Box::pin(async move {
                let delete = sqlx::query(
                    "DELETE FROM blob WHERE digest IN (SELECT value FROM json_each(?))",
                )
                .bind(json_ids(go));
                Ok(delete.execute(conn).await?.rows_affected())
            })
        });
        self.run(ACTION, action).await?;
        let kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(kept.clone())
    }
}

// component_drop: unless a name or an open step leads to it by now.
const COMPONENT_DROP: &str = "
    DELETE FROM plugin
     WHERE digest = ?1
       AND NOT EXISTS (SELECT 1 FROM alias WHERE alias.digest = ?1)
       AND NOT EXISTS (
            SELECT 1 FROM session s JOIN event e ON e.session = s.id AND e.seq = s.step
             WHERE s.stepping AND instr(e.data, ?1) > 0)";

async fn component_list(conn: &mut SqliteConnection) -> Result<Vec<Component>, sqlx::Error> {
    let rows: Vec<(String, String, String, i64)> =
        sqlx::query_as("SELECT digest, kind, data, length(bytes) FROM plugin ORDER BY digest")
            .fetch_all(conn)
            .await?;
    let components = rows
        .into_iter()
        .filter_map(|(digest, kind, data, bytes)| component(digest, &kind, &data, bytes));
    Ok(components.collect())
}

// step_needing: what began the steps that are not settled, that ran since, or that are the newest of
// a session that is claimed now.
const STEP_NEEDING: &str = "
    SELECT e.data FROM step t JOIN event e ON e.session = t.session AND e.seq = t.seq
     WHERE t.settled_at IS NULL OR t.settled_at >= ?1 OR t.started_at >= ?1
        OR (t.session IN (SELECT session FROM claim)
            AND t.seq = (SELECT max(seq) FROM step WHERE session = t.session))";

/// Digests that names and steps lead to; of others too that stand in those steps.
async fn components_needed(
    conn: &mut SqliteConnection,
    since: Millis,
) -> Result<HashSet<Digest>, sqlx::Error> {
    let mut tx = conn.begin().await?;
    let known: Vec<Digest> = sqlx::query_scalar("SELECT digest FROM plugin")
        .fetch_all(&mut *tx)
        .await?;
    let named: Vec<Digest> = sqlx::query_scalar("SELECT digest FROM alias")
        .fetch_all(&mut *tx)
        .await?;
    let mut needed: HashSet<Digest> = named.into_iter().collect();
    {
        let mut steps = sqlx::query_scalar::<_, String>(STEP_NEEDING)
            .bind(signed(since))
            .fetch(&mut *tx);
        while let Some(data) = steps.try_next().await? {
            let mentioned = known.iter().filter(|digest| data.contains(digest.as_str()));
            needed.extend(mentioned.cloned().collect::<Vec<_>>());
        }
    }
    tx.rollback().await?;
    Ok(needed)
}

/// The tables whose rows may mention a blob. The log is among them: rows are rebuilt from it.
const MENTIONING: [&str; 4] = [
    "SELECT rowid, data FROM event WHERE rowid > ? AND instr(data, 'digest') > 0 ORDER BY rowid LIMIT ?",
    "SELECT rowid, data FROM item WHERE rowid > ? AND instr(data, 'digest') > 0 ORDER BY rowid LIMIT ?",
    "SELECT rowid, data FROM input WHERE rowid > ? AND instr(data, 'digest') > 0 ORDER BY rowid LIMIT ?",
    "SELECT rowid, data FROM session WHERE rowid > ? AND instr(data, 'digest') > 0 ORDER BY rowid LIMIT ?",
];

/// Blobs that no row mentions, and their bytes. Pages are read one by one: a row that is written
/// meanwhile can only mention a blob that this process has handed out meanwhile.
async fn blobs_unmentioned(
    conn: &mut SqliteConnection,
) -> Result<HashMap<Digest, u64>, sqlx::Error> {
    let rows: Vec<(String, i64)> = sqlx::query_as("SELECT digest, length(bytes) FROM blob")
        .fetch_all(&mut *conn)
        .await?;
    let mut blobs: HashMap<Digest, u64> = rows
        .into_iter()
        .map(|(digest, bytes)| (digest, u64::try_from(bytes).unwrap_or(0)))
        .collect();
    for sql in MENTIONING {
        let mut after = 0;
        while !blobs.is_empty() {
            let page: Vec<(i64, String)> = sqlx::query_as(sql)
                .bind(after)
                .bind(PAGE as i64)
                .fetch_all(&mut *conn)
                .await?;
            let Some((last, _)) = page.last() else { break };
            after = *last;
            for (_, data) in &page {
                for digest in digests(data) {
                    blobs.remove(digest);
                }
            }
        }
    }
    Ok(blobs)
}

/// Everything in a text that looks like a SHA-256, wherever it stands.
pub(crate) fn digests(text: &str) -> impl Iterator<Item = &str> {
    let is_hex = |c: char| matches!(c, '0'..='9' | 'a'..='f');
    text.split(move |c| !is_hex(c))
        .filter(|run| run.len() == 64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_4_digests_are_found_wherever_they_stand() {
        let (a, b) = ("0123456789abcdef".repeat(4), "f".repeat(64));
        let text = format!(
            r#"{{"digest":"{a}","data":"{{\"digest\":\"{b}\"}}","no":"{}"}}"#,
            "f".repeat(65)
        );
        assert_eq!(digests(&text).collect::<Vec<_>>(), [a.as_str(), b.as_str()]);
    }
}
