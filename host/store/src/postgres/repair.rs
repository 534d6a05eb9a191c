//! A session that an older build wrote to, which did not know all of its events, has a row that may lack
//! what that build could not read. The first that knows them all makes it anew from the log.

use mainstay_core::id::SessionId;
use mainstay_core::port::StoreError;
use mainstay_core::project;
use mainstay_core::tail::{Changes, Tail};

use super::PostgresStore;
use super::read::Loaded;
use super::write;

const PAGE: u32 = 512;

impl PostgresStore {
    /// Writes the row anew, unless another has written meanwhile. One that cannot be made from the log
    /// stays as it is.
    pub(super) async fn repair(
        &self,
        action: &'static str,
        session: SessionId,
        version: i64,
        found: &Loaded,
    ) -> Result<(), StoreError> {
        let tail = match self.replayed(action, session).await? {
            Ok(Some(tail)) => tail,
            Ok(None) => return Ok(()),
            Err(cause) => {
                tracing::error!(%session, %cause, "its row could not be made from its log");
                return Ok(());
            }
        };
        let tail = found.apart_from_log(session, tail);
        let tail = tail.map_err(|error| self.failed(action, error))?;
        let statement = write::session_put(version, self.clock.at(), &tail);
        self.rows(action, &statement).await.map(drop)
    }

    /// What is wrong with the log is the inner error; `None` for a session that is gone.
    async fn replayed(
        &self,
        action: &'static str,
        session: SessionId,
    ) -> Result<Result<Option<Tail>, String>, StoreError> {
        let mut tail: Option<Tail> = None;
        loop {
            let after = tail.as_ref().map_or(0, |tail| tail.session.head);
            let Some((records, _)) = self.event_page(action, session, after, PAGE).await? else {
                return Ok(Ok(None));
            };
            if records.is_empty() {
                return Ok(Ok(tail));
            }
            for record in records {
                let event = match record.decode() {
                    Ok(event) => event,
                    Err(error) => return Ok(Err(error.to_string())),
                };
                let Some(tail) = &mut tail else {
                    tail = project::begin(&event);
                    if tail.is_none() {
                        return Ok(Err("it does not begin with its creation".into()));
                    }
                    continue;
                };
                if let Err(broken) = project::project(tail, &event, &mut Changes::default()) {
                    return Ok(Err(broken.to_string()));
                }
            }
        }
    }
}
