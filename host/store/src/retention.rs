//! What time takes away, whichever database holds it: sessions that nobody has used for long, and the
//! bodies of old events, whose text is in the session's rows. What may go is judged here by a session's
//! tail; each dialect makes sure that the tail is still that one in the transaction that removes.

use async_trait::async_trait;
use mainstay_core::event::Record;
use mainstay_core::id::{Millis, Seq, SessionId};
use mainstay_core::port::StoreError;
use mainstay_core::stub;
use mainstay_core::tail::Tail;

/// Sessions that one query lists.
pub(crate) const LISTED: i64 = 512;
/// Bytes that a stub has to save: less is eaten up by the digest that it keeps.
const WORTH: u64 = 128;

/// Until when what has not been used goes. `None` keeps everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retention {
    /// Sessions that no client and no execution has written to since.
    pub sessions_before: Option<Millis>,
    /// Bodies of events that were written before.
    pub bodies_before: Option<Millis>,
}

/// What a retention has removed, or would have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Retained {
    pub sessions: u64,
    /// Events of these sessions.
    pub events: u64,
    /// Events that became stubs.
    pub bodies: u64,
    /// Bytes of data that they lost.
    pub body_bytes: u64,
}

/// What each dialect does in transactions of its own.
#[async_trait]
pub(crate) trait Remove: Sync {
    /// Sessions that seem idle since.
    async fn idle(&self, before: Millis) -> Result<Vec<SessionId>, StoreError>;
    /// Sessions whose next body seems to be older.
    async fn bulky(&self, before: Millis) -> Result<Vec<SessionId>, StoreError>;
    /// Deletes one session if it is idle. `None` if it is not; else the number of its events.
    async fn expire(
        &self,
        session: SessionId,
        before: Millis,
        dry_run: bool,
    ) -> Result<Option<u64>, StoreError>;
    /// Makes stubs of one page of a session's events, those behind `after` or where it left off.
    async fn compact(
        &self,
        session: SessionId,
        before: Millis,
        after: Option<Seq>,
        dry_run: bool,
    ) -> Result<Compacted, StoreError>;
}

/// Applies a retention. A session that cannot be read stays as it is, for `doctor` to tell of, and
/// keeps no other from its turn.
pub(crate) async fn retain(
    store: &impl Remove,
    retention: Retention,
    dry_run: bool,
) -> Result<Retained, StoreError> {
    let mut retained = Retained::default();
    if let Some(before) = retention.sessions_before {
        for session in store.idle(before).await? {
            let expired = store.expire(session, before, dry_run).await;
            if let Some(events) = passed_over(expired, "it was not looked at")?.flatten() {
                retained.sessions += 1;
                retained.events += events;
            }
        }
    }
    if let Some(before) = retention.bodies_before {
        for session in store.bulky(before).await? {
            let mut after = None;
            loop {
                let done = store.compact(session, before, after, dry_run).await;
                let Some(done) = passed_over(done, "its old bodies were not compacted")? else {
                    break;
                };
                retained.bodies += done.bodies;
                retained.body_bytes += done.bytes;
                if done.through <= after.unwrap_or(0) || !done.more {
                    break;
                }
                after = Some(done.through);
            }
        }
    }
    Ok(retained)
}

fn passed_over<T>(done: Result<T, StoreError>, what: &str) -> Result<Option<T>, StoreError> {
    match done {
        Err(StoreError::Damaged { session, cause }) => {
            tracing::warn!(%session, %cause, "{what}");
            Ok(None)
        }
        done => done.map(Some),
    }
}

/// Whether nobody has used a session since, and nothing is to be done with it. One that holds events
/// of a newer build is that build's to judge.
pub(crate) fn is_idle(tail: &Tail, before: Millis) -> bool {
    let session = &tail.session;
    session.active_at < before
        && session.updated_at < before
        && session.foreign.is_none()
        && tail.claim.is_none()
        && !tail.is_runnable()
        && !session.is_owing()
        && session.step.is_none()
        && session.turn.is_none()
        && session.wait.is_none()
        && session.quarantined.is_none()
        && session.held.is_none()
        // Its parent waits for what it will say.
        && (session.parent.is_none() || session.reported)
}

/// How far one page of a session's events got.
#[derive(Default)]
pub(crate) struct Compacted {
    pub(crate) bodies: u64,
    pub(crate) bytes: u64,
    pub(crate) through: Seq,
    pub(crate) more: bool,
}

/// Makes stubs of a page of a session's events, those behind `after` or where it left off. What is
/// wrong with one of them is the error.
pub(crate) fn compact(
    tail: &Tail,
    (before, after): (Millis, Option<Seq>),
    records: impl IntoIterator<Item = (Seq, Result<Record, String>)>,
) -> Result<(Compacted, Vec<Record>), String> {
    let last = stub::through(tail);
    let mut done = Compacted {
        through: behind(tail, after),
        ..Compacted::default()
    };
    let mut stubs = Vec::new();
    for (seq, record) in records {
        done.more = false;
        let record = record?;
        if seq > last || record.at >= before {
            break;
        }
        (done.through, done.more) = (seq, true);
        let Some(stub) = stub::stub(&record, WORTH) else {
            continue;
        };
        done.bodies += 1;
        done.bytes += stub::length(&record.data) - stub::length(&stub.data);
        stubs.push(stub);
    }
    Ok((done, stubs))
}

/// The seq behind which a page begins.
pub(crate) fn behind(tail: &Tail, after: Option<Seq>) -> Seq {
    after.unwrap_or(tail.session.compacted_through)
}
