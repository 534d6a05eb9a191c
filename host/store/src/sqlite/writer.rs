//! The one writer. Commits that arrive while it waits for the disk go together into the next
//! transaction: they share an fsync, and each is judged, and refused, on its own.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{self, Applied, Commit, Known, Refused, Reply};
use mainstay_core::event::Record;
use mainstay_core::id::{EventId, ExecutionId, InputId, OwnerId, SessionId};
use mainstay_core::port::{Committed, StoreError};
use mainstay_core::tail::{Input, Tail};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::read::{self, ReadError, signed};
use super::{Options, Shared};
use crate::rows::Rows;

const ACTION: &str = "commit";
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Statements that run in a transaction of their own, repeated as a whole where the file is busy.
pub(super) type Action = Box<
    dyn for<'c> Fn(&'c mut SqliteConnection) -> BoxFuture<'c, Result<u64, sqlx::Error>>
        + Send
        + Sync,
>;

/// What the writer is asked for.
pub(super) enum Job {
    Commit(Commit, oneshot::Sender<Result<Committed, StoreError>>),
    Renew {
        owner: OwnerId,
        executions: Vec<Fence>,
        lease_ms: u64,
        reply: oneshot::Sender<Result<HashSet<ExecutionId>, StoreError>>,
    },
    Delete(SessionId, oneshot::Sender<Result<bool, StoreError>>),
    Run {
        what: &'static str,
        action: Action,
        reply: oneshot::Sender<Result<u64, StoreError>>,
    },
    Close(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) conn: SqliteConnection,
    pub(super) jobs: mpsc::Receiver<Job>,
    pub(super) shared: Arc<Shared>,
    pub(super) options: Options,
    /// Bytes written since the WAL was last looked at.
    pub(super) unchecked: u64,
}

type Answer = Result<Committed, StoreError>;
type Waiting = (Commit, oneshot::Sender<Answer>);

impl Writer {
    /// Works until the last sender is gone or the store is closed.
    pub(super) async fn run(mut self) {
        let mut batch = Vec::new();
        let mut group: Vec<Waiting> = Vec::new();
        while self
            .jobs
            .recv_many(&mut batch, self.options.group.max(1))
            .await
            > 0
        {
            for job in batch.drain(..) {
                if let Job::Commit(commit, reply) = job {
                    group.push((commit, reply));
                    continue;
                }
                self.group(std::mem::take(&mut group)).await;
                match job {
                    Job::Commit(..) => unreachable!("handled above"),
                    Job::Renew {
                        owner,
                        executions,
                        lease_ms,
                        reply,
                    } => {
                        let _ = reply.send(self.renew(owner, &executions, lease_ms).await);
                    }
                    Job::Delete(session, reply) => {
                        let _ = reply.send(self.delete(session).await);
                    }
                    Job::Run {
                        what,
                        action,
                        reply,
                    } => {
                        let done = self.transaction(&action).await;
                        let _ = reply.send(done.map_err(|error| unavailable(what, error)));
                    }
                    Job::Close(reply) => {
                        let Self { conn, jobs, .. } = self;
                        drop(jobs);
                        if let Err(error) = conn.close().await {
                            tracing::warn!(%error, "the database was not closed cleanly");
                        }
                        let _ = reply.send(());
                        return;
                    }
                }
            }
            self.group(std::mem::take(&mut group)).await;
            self.checkpoint().await;
        }
    }

    /// Stores a group. If its transaction fails, nothing of it is stored, and each commit is tried
    /// alone, so that one that cannot be stored does not fail the others.
    async fn group(&mut self, group: Vec<Waiting>) {
        if group.is_empty() {
            return;
        }
        let (commits, replies): (Vec<Commit>, Vec<_>) = group.into_iter().unzip();
        match self.store(&commits).await {
            Ok(answers) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
            }
            Err(error) if commits.len() > 1 && !is_lasting(&error) => {
                tracing::warn!(%error, commits = commits.len(), "a group of commits failed; trying each alone");
                for (commit, reply) in commits.iter().zip(replies) {
                    let _ = reply.send(self.alone(commit).await);
                }
            }
            Err(error) if commits.len() == 1 => {
                let answer = self.explain(&commits[0], error).await;
                for reply in replies {
                    let _ = reply.send(Err(match &answer {
                        StoreError::Refused(refused) => refused.clone().into(),
                        other => StoreError::Unavailable {
                            action: ACTION,
                            cause: chain(other).into(),
                        },
                    }));
                }
            }
            Err(error) => {
                tracing::error!(%error, "the disk failed a group of commits");
                let error = Arc::new(error);
                for reply in replies {
                    let _ = reply.send(Err(StoreError::Unavailable {
                        action: ACTION,
                        cause: error.clone().into(),
                    }));
                }
            }
        }
    }

    async fn alone(&mut self, commit: &Commit) -> Answer {
        match self.store(std::slice::from_ref(commit)).await {
            Ok(mut answers) => answers.pop().expect("one answer per commit"),
            Err(error) => Err(self.explain(commit, error).await),
        }
    }

    /// What a failed transaction of one commit means.
    async fn explain(&mut self, commit: &Commit, error: sqlx::Error) -> StoreError {
        if primary_code(&error) == Some(CONSTRAINT) {
            // Only an id that is held already can clash with what `apply` let through.
            if let Ok(Some((id, seq))) = self.clash(commit).await {
                return Refused::EventConflict { id, seq }.into();
            }
        }
        unavailable(ACTION, error)
    }

    /// The first event of a commit whose id is held.
    async fn clash(&mut self, commit: &Commit) -> Result<Option<(EventId, u64)>, ReadError> {
        let now = self.shared.now();
        let Some(Ok(tail)) = read::tails(&mut self.conn, &[commit.session])
            .await?
            .remove(&commit.session)
        else {
            return Ok(None);
        };
        let Ok(applied) = commit::apply(Some(&tail), commit, &Known::default(), now) else {
            return Ok(None);
        };
        let held =
            read::event_known(&mut self.conn, applied.events.iter().map(|event| event.id)).await?;
        let mut own = HashMap::new();
        for event in &applied.events {
            if let Some(held) = held.get(&event.id) {
                return Ok(Some((event.id, held.seq)));
            }
            if let Some(seq) = own.insert(event.id, event.seq) {
                return Ok(Some((event.id, seq)));
            }
        }
        Ok(None)
    }

    /// One transaction for some commits, repeated while another process holds the file.
    async fn store(&mut self, commits: &[Commit]) -> Result<Vec<Answer>, sqlx::Error> {
        let deadline = Instant::now() + self.options.busy_patience;
        loop {
            let done = self.attempt(commits).await;
            if let Err(error) = &done {
                // After a failed COMMIT nobody knows what is stored.
                self.shared
                    .cache()
                    .forget(commits.iter().map(|commit| commit.session));
                if is_busy(error) && Instant::now() < deadline {
                    self.shared.busy.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(BUSY_PAUSE).await;
                    continue;
                }
            }
            return done;
        }
    }

    async fn attempt(&mut self, commits: &[Commit]) -> Result<Vec<Answer>, sqlx::Error> {
        let mut tx = self.conn.begin_with("BEGIN IMMEDIATE").await?;
        let mut judge = Judge::load(&mut tx, &self.shared, commits).await?;
        let now = self.shared.now();
        let answers: Vec<Answer> = commits
            .iter()
            .map(|commit| judge.judge(commit, now))
            .collect();
        if !judge.rows.is_empty() {
            let bytes = judge.rows.write(&mut tx, &judge.tails).await?;
            tx.commit().await?;
            self.unchecked += bytes + u64::from(super::PAGE_BYTES) * 8;
            let stored = answers.iter().flatten();
            let (count, events) = stored.fold((0, 0), |(n, events), one| {
                (n + 1, events + one.events.len() as u64)
            });
            self.shared.groups.fetch_add(1, Ordering::Relaxed);
            self.shared.commits.fetch_add(count, Ordering::Relaxed);
            self.shared.events.fetch_add(events, Ordering::Relaxed);
        } else {
            tx.rollback().await?;
        }
        self.shared.cache().keep(judge.tails);
        Ok(answers)
    }

    async fn renew(
        &mut self,
        owner: OwnerId,
        executions: &[Fence],
        lease_ms: u64,
    ) -> Result<HashSet<ExecutionId>, StoreError> {
        const WHAT: &str = "renew claims";
        let named = executions
            .iter()
            .filter(|fence| fence.owner == owner)
            .map(|fence| fence.execution);
        let named = read::json_ids(named);
        let deadline = Instant::now() + self.options.busy_patience;
        let (rows, until) = loop {
            let now = self.shared.now();
            let until = now.saturating_add(lease_ms);
            let done: Result<Vec<(String, String)>, _> = sqlx::query_as(CLAIM_RENEW)
                .bind(signed(until))
                .bind(owner.to_string())
                .bind(signed(now))
                .bind(&named)
                .fetch_all(&mut self.conn)
                .await;
            match done {
                Ok(rows) => break (rows, until),
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    self.shared.busy.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                Err(error) => {
                    self.shared.cache().clear();
                    return Err(unavailable(WHAT, error));
                }
            }
        };
        let mut renewed = HashSet::with_capacity(rows.len());
        let mut cache = self.shared.cache();
        for (session, execution) in rows {
            if let (Ok(session), Ok(execution)) = (session.parse(), execution.parse()) {
                cache.renewed(session, until);
                renewed.insert(execution);
            }
        }
        Ok(renewed)
    }

    async fn delete(&mut self, session: SessionId) -> Result<bool, StoreError> {
        let key = session.to_string();
        let action: Action = Box::new(move |conn| {
            let key = key.clone();
            Box::pin(async move {
                for sql in SESSION_DROP {
                    sqlx::query(*sql).bind(&key).execute(&mut *conn).await?;
                }
                let done = sqlx::query("DELETE FROM session WHERE id = ?")
                    .bind(&key)
                    .execute(conn)
                    .await?;
                Ok(done.rows_affected())
            })
        });
        let done = self.transaction(&action).await;
        self.shared.cache().forget([session]);
        Ok(done.map_err(|error| unavailable("delete a session", error))? > 0)
    }

    async fn transaction(&mut self, action: &Action) -> Result<u64, sqlx::Error> {
        let deadline = Instant::now() + self.options.busy_patience;
        loop {
            let done = async {
                let mut tx = self.conn.begin_with("BEGIN IMMEDIATE").await?;
                let done = action(&mut tx).await?;
                tx.commit().await?;
                Ok(done)
            };
            match done.await {
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    self.shared.busy.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(BUSY_PAUSE).await;
                }
                done => {
                    // How much it wrote is not known, and such writes are rare.
                    self.unchecked += self.options.wal_bytes / 16;
                    return done;
                }
            }
        }
    }

    /// Copies the WAL into the database once enough has been written. Readers are not waited for
    /// unless the WAL has outgrown its bound fourfold.
    async fn checkpoint(&mut self) {
        if self.unchecked < self.options.wal_bytes {
            return;
        }
        self.unchecked = 0;
        let pages = match checkpoint(&mut self.conn, "PRAGMA wal_checkpoint(PASSIVE)").await {
            Ok(pages) => pages,
            Err(error) => return tracing::warn!(%error, "the WAL was not checkpointed"),
        };
        self.shared.checkpoints.fetch_add(1, Ordering::Relaxed);
        if pages * u64::from(super::PAGE_BYTES) > self.options.wal_bytes * 4
            && let Err(error) = checkpoint(&mut self.conn, "PRAGMA wal_checkpoint(TRUNCATE)").await
        {
            tracing::warn!(%error, pages, "the WAL is too long and could not be cut");
        }
    }
}

/// Gives the pages in the WAL.
async fn checkpoint(conn: &mut SqliteConnection, sql: &'static str) -> Result<u64, sqlx::Error> {
    let (_busy, pages, _done): (i64, i64, i64) = sqlx::query_as(sql).fetch_one(conn).await?;
    Ok(u64::try_from(pages).unwrap_or(0))
}

/// A group in the making: what its commits are judged by, each building on those before it.
struct Judge {
    tails: HashMap<SessionId, Arc<Tail>>,
    damaged: HashMap<SessionId, String>,
    inputs: HashMap<InputId, Input>,
    events: HashMap<EventId, Record>,
    /// Events of sessions that are imported, by session and seq.
    held: HashMap<SessionId, BTreeMap<u64, Record>>,
    rows: Rows,
}

impl Judge {
    async fn load(
        conn: &mut SqliteConnection,
        shared: &Shared,
        commits: &[Commit],
    ) -> Result<Self, sqlx::Error> {
        let mut judge = Self {
            tails: HashMap::new(),
            damaged: HashMap::new(),
            inputs: HashMap::new(),
            events: HashMap::new(),
            held: HashMap::new(),
            rows: Rows::default(),
        };
        let sessions: HashSet<SessionId> = commits.iter().map(|commit| commit.session).collect();
        let mut missing = Vec::new();
        {
            let mut cache = shared.cache();
            for session in sessions {
                match cache.get(session) {
                    Some(tail) => drop(judge.tails.insert(session, tail)),
                    None => missing.push(session),
                }
            }
        }
        if !missing.is_empty() {
            for (session, tail) in read::tails(conn, &missing).await? {
                match tail {
                    Ok(tail) => drop(judge.tails.insert(session, Arc::new(tail))),
                    Err(cause) => drop(judge.damaged.insert(session, cause)),
                }
            }
        }
        for commit in commits {
            if let Some(seqs) = commit.replayed() {
                let held = sql(read::event_held(conn, commit.session, seqs).await)?;
                let known = judge.held.entry(commit.session).or_default();
                known.extend(held.into_iter().map(|record| (record.seq, record)));
            }
        }
        let inputs: Vec<InputId> = commits
            .iter()
            .flat_map(|commit| commit.input().into_iter().chain(commit.replayed_inputs()))
            .collect();
        if !inputs.is_empty() {
            judge.inputs = sql(read::input_known(conn, inputs).await)?;
        }
        let events: Vec<EventId> = commits.iter().flat_map(Commit::event_ids).collect();
        if !events.is_empty() {
            judge.events = sql(read::event_known(conn, events).await)?;
        }
        Ok(judge)
    }

    fn judge(&mut self, commit: &Commit, now: u64) -> Answer {
        let session = commit.session;
        if let Some(cause) = self.damaged.get(&session) {
            return Err(StoreError::Damaged {
                session,
                cause: cause.clone(),
            });
        }
        let mut seen = HashSet::new();
        let ids = commit.event_ids().into_iter().filter(|id| seen.insert(*id));
        let known = Known {
            input: commit.input().and_then(|id| self.inputs.get(&id).cloned()),
            events: ids.filter_map(|id| self.events.get(&id).cloned()).collect(),
            held: self
                .held
                .get(&session)
                .map(|held| held.values().cloned().collect())
                .unwrap_or_default(),
            inputs: commit
                .replayed_inputs()
                .iter()
                .filter_map(|id| self.inputs.get(id).cloned())
                .collect(),
        };
        let before = self.tails.get(&session);
        // It is pure: a bug that one commit runs into takes nothing with it, least of all the writer.
        let judged = catch_unwind(AssertUnwindSafe(|| {
            commit::apply(before.map(Arc::as_ref), commit, &known, now)
        }));
        let Ok(judged) = judged else {
            let cause = "judging it panicked; this is a bug".into();
            return Err(StoreError::Unavailable {
                action: ACTION,
                cause,
            });
        };
        let Applied {
            events,
            tail,
            changes,
            reply,
        } = judged?;

        let records: Vec<Record> = events
            .iter()
            .map(mainstay_core::event::Event::encode)
            .collect();
        let mut new = HashMap::new();
        for record in &records {
            let held = self
                .events
                .get(&record.id)
                .map(|held| held.seq)
                .or_else(|| new.insert(record.id, record.seq));
            if let Some(seq) = held {
                return Err(Refused::EventConflict { id: record.id, seq }.into());
            }
        }
        let same_claim = before.is_some_and(|before| before.claim == tail.claim);
        if records.is_empty() && same_claim && changes == mainstay_core::tail::Changes::default() {
            let tail = before.cloned().unwrap_or_else(|| Arc::new(tail));
            return Ok(Committed {
                events,
                tail,
                reply,
            });
        }
        self.rows.add(session, &records, &changes);
        if let Some(held) = self.held.get_mut(&session) {
            held.extend(records.iter().map(|record| (record.seq, record.clone())));
        }
        self.events
            .extend(records.into_iter().map(|record| (record.id, record)));
        self.inputs
            .extend(changes.inputs.into_iter().map(|input| (input.id, input)));
        let tail = Arc::new(tail);
        self.tails.insert(session, tail.clone());
        debug_assert!(
            !matches!(reply, Reply::Duplicate { .. }),
            "a duplicate writes nothing"
        );
        Ok(Committed {
            events,
            tail,
            reply,
        })
    }
}

/// Rows that a lookup cannot read fail the group like a broken statement: they may be any session's.
fn sql<T>(read: Result<T, ReadError>) -> Result<T, sqlx::Error> {
    read.map_err(|error| match error {
        ReadError::Sql(error) => error,
        ReadError::Damaged { session, cause } => {
            sqlx::Error::Decode(format!("session {session} is damaged: {cause}").into())
        }
    })
}

fn unavailable(action: &'static str, error: sqlx::Error) -> StoreError {
    StoreError::Unavailable {
        action,
        cause: error.into(),
    }
}

/// An error and its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}

const BUSY: i32 = 5;
const LOCKED: i32 = 6;
const READ_ONLY: i32 = 8;
const IO: i32 = 10;
const CORRUPT: i32 = 11;
const CANNOT_OPEN: i32 = 14;
const CONSTRAINT: i32 = 19;
const NOT_A_DATABASE: i32 = 26;

/// SQLite's primary result code.
fn primary_code(error: &sqlx::Error) -> Option<i32> {
    let code: i32 = error.as_database_error()?.code()?.parse().ok()?;
    Some(code & 0xff)
}

fn is_busy(error: &sqlx::Error) -> bool {
    matches!(primary_code(error), Some(BUSY | LOCKED))
}

/// No other commit would fare better.
fn is_lasting(error: &sqlx::Error) -> bool {
    match error {
        sqlx::Error::Database(_) => matches!(
            primary_code(error),
            Some(BUSY | LOCKED | READ_ONLY | IO | CORRUPT | CANNOT_OPEN | NOT_A_DATABASE)
        ),
        sqlx::Error::Io(_) | sqlx::Error::WorkerCrashed => true,
        _ => false,
    }
}

// claim_renew: extends leases. An execution that is not among the answers is lost.
const CLAIM_RENEW: &str = "
    UPDATE claim SET expires_at = ?1, data = json_set(data, '$.expires_at', ?1)
     WHERE owner = ?2 AND expires_at > ?3 AND execution IN (SELECT value FROM json_each(?4))
    RETURNING session, execution";

// session_drop
pub(super) const SESSION_DROP: &[&str] = &[
    "DELETE FROM event WHERE session = ?",
    "DELETE FROM claim WHERE session = ?",
    "DELETE FROM input WHERE session = ?",
    "DELETE FROM item WHERE session = ?",
    "DELETE FROM step WHERE session = ?",
    "DELETE FROM call WHERE session = ?",
    "DELETE FROM execution WHERE session = ?",
    "DELETE FROM foreign_event WHERE session = ?",
];
