//! Commits that are stored together: they share a transaction and an fsync, and each is judged, and
//! refused, on its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mainstay_core::commit::{self, Commit, Known, Refused};
use mainstay_core::port::{Committed, StoreError};
use rusqlite::{Connection, Error, Transaction, TransactionBehavior};
use tokio::sync::oneshot;

use super::direct::{Direct, is_busy, is_constraint, is_lasting};
use super::judge::{self, Judge};
use super::owner::TAKEN_OVER;
use super::{Options, PAGE_BYTES, Shared};

pub(super) const ACTION: &str = "commit";
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(5);

pub(super) type Answer = Result<Committed, StoreError>;
pub(super) type Waiting = (Commit, oneshot::Sender<Answer>);

/// Stores commits, on the thread that it is called on.
pub(super) struct Committer<'w> {
    pub(super) db: Direct<'w>,
    pub(super) shared: &'w Shared,
    pub(super) options: &'w Options,
    /// Bytes written since the WAL was last looked at.
    pub(super) unchecked: &'w mut u64,
}

impl Committer<'_> {
    /// Stores a group. If its transaction fails, nothing of it is stored, and each commit is tried
    /// alone, so that one that cannot be stored does not fail the others.
    pub(super) fn group(&mut self, group: Vec<Waiting>) {
        let (commits, replies): (Vec<Commit>, Vec<_>) = group.into_iter().unzip();
        match self.store(&commits) {
            Ok(answers) => {
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
            }
            Err(error) if commits.len() == 1 => {
                let answers = [Err(self.explain(&commits[0], error))];
                for (reply, answer) in replies.into_iter().zip(answers) {
                    let _ = reply.send(answer);
                }
            }
            Err(error) if !is_lasting(&error) => {
                tracing::warn!(%error, commits = commits.len(), "a group of commits failed; trying each alone");
                for (commit, reply) in commits.iter().zip(replies) {
                    let _ = reply.send(self.alone(commit));
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

    fn alone(&mut self, commit: &Commit) -> Answer {
        match self.store(std::slice::from_ref(commit)) {
            Ok(mut answers) => answers.pop().expect("one answer per commit"),
            Err(error) => Err(self.explain(commit, error)),
        }
    }

    /// What a failed transaction of one commit means.
    fn explain(&mut self, commit: &Commit, error: Error) -> StoreError {
        if is_constraint(&error)
            // Only an id that is held already can clash with what `apply` let through.
            && let Ok(Some(conflict)) = self.clash(commit)
        {
            return conflict.into();
        }
        StoreError::Unavailable {
            action: ACTION,
            cause: error.into(),
        }
    }

    fn clash(&mut self, commit: &Commit) -> Result<Option<Refused>, Error> {
        let mut tails = judge::tails(&self.db, &[commit.session])?;
        let Some(Ok(tail)) = tails.remove(&commit.session) else {
            return Ok(None);
        };
        let applied = commit::apply(Some(&tail), commit, &Known::default(), self.shared.now());
        let Ok(applied) = applied else {
            return Ok(None);
        };
        let clash = Judge::clash(&self.db, &applied.events)?;
        Ok(clash.map(|(id, seq)| Refused::EventConflict { id, seq }))
    }

    /// One transaction for some commits, repeated while another process holds the file.
    fn store(&mut self, commits: &[Commit]) -> Result<Vec<Answer>, Error> {
        let deadline = Instant::now() + self.options.busy_patience;
        loop {
            let done = self.attempt(commits);
            if let Err(error) = &done {
                // After a failed COMMIT nobody knows what is stored.
                self.shared
                    .cache()
                    .forget(commits.iter().map(|commit| commit.session));
                if is_busy(error) && Instant::now() < deadline {
                    self.shared.busy.fetch_add(1, Ordering::Relaxed);
                    std::thread::sleep(BUSY_PAUSE);
                    continue;
                }
            }
            return done;
        }
    }

    fn attempt(&mut self, commits: &[Commit]) -> Result<Vec<Answer>, Error> {
        let tx = Transaction::new_unchecked(&self.db, TransactionBehavior::Immediate)?;
        if !self.shared.stamp.stands(&tx)? {
            let refused = |_: &Commit| {
                Err(StoreError::Unavailable {
                    action: ACTION,
                    cause: TAKEN_OVER.into(),
                })
            };
            return Ok(commits.iter().map(refused).collect());
        }
        let mut judge = Judge::load(&tx, self.shared, commits)?;
        let now = self.shared.now();
        let answers: Vec<Answer> = commits
            .iter()
            .map(|commit| judge.judge(commit, now))
            .collect();
        if judge.rows.is_empty() {
            tx.rollback()?;
        } else {
            let bytes = judge.rows.write(&tx, &judge.tails)?;
            tx.commit()?;
            *self.unchecked += bytes + u64::from(PAGE_BYTES) * 8;
            let stored = answers.iter().flatten();
            let (count, events) = stored.fold((0, 0), |(n, events), one| {
                (n + 1, events + one.events.len() as u64)
            });
            self.shared.groups.fetch_add(1, Ordering::Relaxed);
            self.shared.commits.fetch_add(count, Ordering::Relaxed);
            self.shared.events.fetch_add(events, Ordering::Relaxed);
        }
        self.shared.cache().keep(judge.tails);
        Ok(answers)
    }

    /// Copies the WAL into the database once enough has been written. Readers are not waited for
    /// unless the WAL has outgrown its bound fourfold.
    pub(super) fn checkpoint(&mut self) {
        if *self.unchecked < self.options.wal_bytes {
            return;
        }
        *self.unchecked = 0;
        let pages = match checkpoint(&self.db, "PRAGMA wal_checkpoint(PASSIVE)") {
            Ok(pages) => pages,
            Err(error) => return tracing::warn!(%error, "the WAL was not checkpointed"),
        };
        self.shared.checkpoints.fetch_add(1, Ordering::Relaxed);
        if pages * u64::from(PAGE_BYTES) > self.options.wal_bytes * 4
            && let Err(error) = checkpoint(&self.db, "PRAGMA wal_checkpoint(TRUNCATE)")
        {
            tracing::warn!(%error, pages, "the WAL is too long and could not be cut");
        }
    }
}

/// Gives the pages in the WAL.
fn checkpoint(db: &Connection, sql: &str) -> Result<u64, Error> {
    let pages: i64 = db.query_row(sql, [], |row| row.get(1))?;
    Ok(u64::try_from(pages).unwrap_or(0))
}
