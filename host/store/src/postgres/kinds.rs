//! Types of events that this build does not know. Builds of several versions may share a database, so
//! what is foreign depends on who asks: the database keeps which types it has, and each process looks
//! again whenever their number has changed. As long as it knows them all, nothing more is asked. Who
//! writes events sees to it that their types are kept, which each process does once for each.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};

use mainstay_core::event::knows;
use sqlx::Row as _;

use super::pool::Pool;
use super::read::{self, Unknown};
use super::trouble::Trouble;

/// A type of events, and its version.
pub(super) type Kind = (String, u32);

#[derive(Default)]
pub(super) struct Kinds {
    seen: Mutex<(i64, Unknown)>,
    kept: Mutex<Kept>,
}

/// Types that the database keeps for certain.
#[derive(Default)]
struct Kept {
    kinds: HashSet<Kind>,
    /// Connections that had been lost by then: another server may have taken over since, without what was
    /// written last.
    lost: u64,
}

impl Kinds {
    /// What was unknown at the last look.
    pub(super) fn last(&self) -> Unknown {
        self.seen().1.clone()
    }

    /// What is unknown, given how many types there are; looks where that is news.
    pub(super) async fn unknown(&self, count: i64, pool: &Pool) -> Result<Unknown, Trouble> {
        {
            let seen = self.seen();
            if seen.0 == count {
                return Ok(seen.1.clone());
            }
        }
        self.look(pool).await
    }

    /// What is unknown now.
    pub(super) async fn look(&self, pool: &Pool) -> Result<Unknown, Trouble> {
        let rows = pool.repeat(&read::kind_list()).await?;
        let mut unknown = Vec::new();
        for row in &rows {
            let read = |cause| pool.trouble(cause);
            let kind: String = row.try_get(0).map_err(read)?;
            let version: i64 = row.try_get(1).map_err(read)?;
            if !u32::try_from(version).is_ok_and(|version| knows(&kind, version)) {
                unknown.push(format!("{kind}/{version}"));
            }
        }
        let unknown = (!unknown.is_empty()).then_some(unknown);
        let count = i64::try_from(rows.len()).unwrap_or(i64::MAX);
        let mut seen = self.seen();
        if seen.1 != unknown
            && let Some(kinds) = &unknown
        {
            tracing::warn!(
                ?kinds,
                "a newer build wrote events of these types: sessions that have them are not run here"
            );
        }
        *seen = (count, unknown.clone());
        Ok(unknown)
    }

    /// Those that the database may not keep yet: to be written with their first event.
    pub(super) fn unkept(&self, mut kinds: Vec<Kind>, pool: &Pool) -> Vec<Kind> {
        let mut kept = self.kept();
        let lost = pool.lost();
        if kept.lost != lost {
            *kept = Kept {
                kinds: HashSet::new(),
                lost,
            };
        }
        kinds.retain(|kind| !kept.kinds.contains(kind));
        kinds
    }

    /// These were written, after so many connections had been lost.
    pub(super) fn wrote(&self, kinds: Vec<Kind>, lost: u64) {
        let mut kept = self.kept();
        if kept.lost == lost {
            kept.kinds.extend(kinds);
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn seen(&self) -> std::sync::MutexGuard<'_, (i64, Unknown)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
