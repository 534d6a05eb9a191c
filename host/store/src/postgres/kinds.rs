//! Types of events that this build does not know. Builds of several versions may share a database, so
//! what is foreign depends on who asks: the database keeps which types it has, and each process looks
//! again whenever their number has changed. As long as it knows them all, nothing more is asked.

use std::sync::{Mutex, PoisonError};

use mainstay_core::event::knows;
use sqlx::Row as _;

use super::pool::Pool;
use super::read::{self, Unknown};
use super::trouble::Trouble;

#[derive(Default)]
pub(super) struct Kinds {
    seen: Mutex<(i64, Unknown)>,
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

    fn seen(&self) -> std::sync::MutexGuard<'_, (i64, Unknown)> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
