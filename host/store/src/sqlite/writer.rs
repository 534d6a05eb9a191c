//! The one writer, on a thread of its own. Commits that arrive while it waits for the disk go together
//! into the next transaction (see [`super::group`]); whatever else is to be written has its turn
//! between two of these. A commit of a session that is alone need not come here (see [`super::desk`]).

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use futures::future::BoxFuture;
use mainstay_core::claim::Fence;
use mainstay_core::commit::Commit;
use mainstay_core::id::{ExecutionId, OwnerId, SessionId};
use mainstay_core::port::{Committed, StoreError};
use sqlx::{Connection, SqliteConnection};
use tokio::sync::{mpsc, oneshot};

use super::company;
use super::desk::{Asked, Desk};
use super::group::BUSY_PAUSE;
use super::read::{self, signed};

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
    /// Look at the WAL: commits that were not handed over have written much.
    Checkpoint,
    Close(oneshot::Sender<()>),
}

pub(super) struct Writer {
    pub(super) conn: SqliteConnection,
    pub(super) jobs: mpsc::Receiver<(Job, Asked)>,
    /// Taken over, and not begun.
    pub(super) waiting: VecDeque<(Job, Asked)>,
    pub(super) desk: Arc<Desk>,
}

/// Jobs that are taken over at once.
const TAKEN: usize = 512;

impl Writer {
    /// Starts to work, until the last sender is gone or the store is closed.
    ///
    /// # Errors
    /// The system gives no thread.
    pub(super) fn start(self) -> std::io::Result<()> {
        // SQLite waits for the disk: the threads that everything else runs on must not.
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || futures::executor::block_on(self.run()))
            .map(drop)
    }

    async fn run(mut self) {
        loop {
            match self.commits().await {
                Ok(Some((Job::Close(reply), _))) => {
                    let Self { conn, jobs, .. } = self;
                    drop(jobs);
                    if let Err(error) = conn.close().await {
                        tracing::warn!(%error, "the database was not closed cleanly");
                    }
                    let _ = reply.send(());
                    return;
                }
                Ok(Some((job, _asked))) => self.other(job).await,
                Ok(None) => return,
                Err(error) => return tracing::error!(%error, "the writer stops"),
            }
        }
    }

    /// Stores commits until something else is to be done, which it gives.
    ///
    /// # Errors
    /// The connection's thread is gone.
    async fn commits(&mut self) -> Result<Option<(Job, Asked)>, sqlx::Error> {
        let mut handle = self.conn.lock_handle().await?;
        let lent = self.desk.lend(&mut handle);
        let lent = lent.map_err(|error| sqlx::Error::Decode(error.into()))?;
        let mut taken = Vec::new();
        let mut due = true;
        loop {
            if due {
                lent.checkpoint();
            }
            if self.waiting.is_empty() {
                if self.jobs.recv_many(&mut taken, TAKEN).await == 0 {
                    return Ok(None);
                }
                let until = Instant::now() + company::LONGEST;
                while lent.wanted() > taken.len() && Instant::now() < until {
                    std::thread::sleep(company::NAP);
                    while let Ok(job) = self.jobs.try_recv() {
                        taken.push(job);
                    }
                }
                self.waiting.extend(taken.drain(..));
            }
            let (mut group, mut replies, mut asked) = (Vec::new(), Vec::new(), Vec::new());
            let is_commit = |(job, _): &mut (Job, Asked)| matches!(job, Job::Commit(..));
            while group.len() < self.desk.options.group.max(1)
                && let Some((Job::Commit(commit, reply), one)) =
                    self.waiting.pop_front_if(is_commit)
            {
                group.push(commit);
                replies.push(reply);
                asked.push(one);
            }
            if group.is_empty() {
                due = true;
                match self.waiting.pop_front() {
                    Some((Job::Checkpoint, _)) => continue,
                    job => return Ok(job),
                }
            }
            let answers;
            (answers, due) = lent.group(&group);
            // Whoever is answered finds the desk free.
            drop(asked);
            for (reply, answer) in replies.into_iter().zip(answers) {
                let _ = reply.send(answer);
            }
        }
    }

    async fn other(&mut self, job: Job) {
        match job {
            Job::Commit(..) | Job::Checkpoint | Job::Close(_) => unreachable!("the caller's"),
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
        }
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
        let deadline = Instant::now() + self.desk.options.busy_patience;
        let (rows, until) = loop {
            let now = self.desk.shared.now();
            let until = now.saturating_add(lease_ms);
            let renewed = async {
                let mut tx = self.conn.begin_with("BEGIN IMMEDIATE").await?;
                self.desk.shared.stamp.check(&mut tx).await?;
                let rows: Vec<(String, String)> = sqlx::query_as(CLAIM_RENEW)
                    .bind(signed(until))
                    .bind(owner.to_string())
                    .bind(signed(now))
                    .bind(&named)
                    .fetch_all(&mut *tx)
                    .await?;
                tx.commit().await?;
                Ok(rows)
            };
            match renewed.await {
                Ok(rows) => break (rows, until),
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    self.desk.shared.busy.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(BUSY_PAUSE);
                }
                Err(error) => {
                    self.desk.shared.cache().clear();
                    return Err(unavailable(WHAT, error));
                }
            }
        };
        let mut renewed = HashSet::with_capacity(rows.len());
        let mut cache = self.desk.shared.cache();
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
        self.desk.shared.cache().forget([session]);
        Ok(done.map_err(|error| unavailable("delete a session", error))? > 0)
    }

    async fn transaction(&mut self, action: &Action) -> Result<u64, sqlx::Error> {
        let deadline = Instant::now() + self.desk.options.busy_patience;
        loop {
            let done = async {
                let mut tx = self.conn.begin_with("BEGIN IMMEDIATE").await?;
                self.desk.shared.stamp.check(&mut tx).await?;
                let done = action(&mut tx).await?;
                tx.commit().await?;
                Ok(done)
            };
            match done.await {
                Err(error) if is_busy(&error) && Instant::now() < deadline => {
                    self.desk.shared.busy.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(BUSY_PAUSE);
                }
                done => {
                    // How much it wrote is not known, and such writes are rare.
                    self.desk.wrote(self.desk.options.wal_bytes / 16);
                    return done;
                }
            }
        }
    }
}

fn unavailable(action: &'static str, error: sqlx::Error) -> StoreError {
    StoreError::Unavailable {
        action,
        cause: error.into(),
    }
}

const BUSY: i32 = 5;
const LOCKED: i32 = 6;

fn is_busy(error: &sqlx::Error) -> bool {
    let code = error.as_database_error().and_then(|error| error.code());
    let code = code.and_then(|code| code.parse::<i32>().ok());
    matches!(code.map(|code| code & 0xff), Some(BUSY | LOCKED))
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
