//! Commits that are stored together: they share a transaction and an fsync, and each is judged, and
//! refused, on its own.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use mainstay_core::commit::{self, Commit, Known, Refused};
use mainstay_core::port::{Committed, StoreError};
use rusqlite::{Connection, Error, Transaction, TransactionBehavior};

use super::direct::{is_busy, is_constraint, is_lasting};
use super::judge::{self, Judge};
use super::owner::TAKEN_OVER;
use super::{Options, PAGE_BYTES, Shared};

pub(super) const ACTION: &str = "commit";
pub(super) const BUSY_PAUSE: Duration = Duration::from_millis(5);
/// How long SQLite itself waits for another process.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_millis(50);
/// Bytes of events that are written in about the time that the disk takes anyway.
const SHORT: u64 = 64 * 1024;

pub(super) type Answer = Result<Committed, StoreError>;

/// Stores commits, on the thread that it is called on.
pub(super) struct Committer<'w> {
    pub(super) db: &'w Connection,
    pub(super) shared: &'w Shared,
    pub(super) options: &'w Options,
    /// Bytes written since the WAL was last looked at.
    pub(super) unchecked: &'w mut u64,
}

impl Committer<'_> {
    /// Stores a group and gives the answer to each. If its transaction fails, nothing of it is stored, and
    /// each commit is tried alone, so that one that cannot be stored does not fail the others.
    pub(super) fn group(&mut self, commits: &[Commit]) -> Vec<Answer> {
        match self.store(commits) {
            Ok(answers) => answers,
            Err(error) if commits.len() == 1 => vec![Err(self.explain(&commits[0], error))],
            Err(error) if !is_lasting(&error) => {
                tracing::warn!(%error, commits = commits.len(), "a group of commits failed; trying each alone");
                commits.iter().map(|commit| self.alone(commit)).collect()
            }
            Err(error) => {
                tracing::error!(%error, "the disk failed a group of commits");
                let error = Arc::new(error);
                let failed = |_: &Commit| {
                    Err(StoreError::Unavailable {
                        action: ACTION,
                        cause: error.clone().into(),
                    })
                };
                commits.iter().map(failed).collect()
            }
        }
    }

    /// Stores one commit without waiting for anything but the disk. `None` if that cannot be: another
    /// process holds the file, or it is much to write. Nothing has been done then.
    pub(super) fn at_once(&mut self, commit: &Commit) -> Option<Answer> {
        self.db.busy_timeout(Duration::ZERO).ok()?;
        let done = self.attempt(std::slice::from_ref(commit), SHORT, false);
        if let Err(error) = self.db.busy_timeout(BUSY_TIMEOUT) {
            tracing::warn!(%error, "how long a write waits could not be set");
        }
        match done {
            Ok(answers) => answers?.pop(),
            Err(error) => {
                self.shared.cache().forget([commit.session]);
                if is_busy(&error) {
                    self.shared.busy.fetch_add(1, Ordering::Relaxed);
                    return None;
                }
                if is_constraint(&error) {
                    return None;
                }
                Some(Err(self.explain(commit, error)))
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
        let mut tails = judge::tails(self.db, &[commit.session])?;
        let Some(Ok(tail)) = tails.remove(&commit.session) else {
            return Ok(None);
        };
        let applied = commit::apply(Some(&tail), commit, &Known::default(), self.shared.now());
        let Ok(applied) = applied else {
            return Ok(None);
        };
        let clash = Judge::clash(self.db, &applied.events)?;
        Ok(clash.map(|(id, seq)| Refused::EventConflict { id, seq }))
    }

    /// One transaction for some commits, repeated while another process holds the file.
    fn store(&mut self, commits: &[Commit]) -> Result<Vec<Answer>, Error> {
        let deadline = Instant::now() + self.options.busy_patience;
        let mut look = false;
        loop {
            let done = self.attempt(commits, u64::MAX, look);
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
                // The id of an event is held: a commit that comes again, most likely.
                if is_constraint(error) && !look {
                    look = true;
                    continue;
                }
            }
            return done.map(|answers| answers.expect("anything may be written"));
        }
    }

    /// `None`, and nothing is stored, where the events have more than `most` bytes of data. Without `look`
    /// it fails by a constraint where the id of an event is held already.
    fn attempt(
        &mut self,
        commits: &[Commit],
        most: u64,
        look: bool,
    ) -> Result<Option<Vec<Answer>>, Error> {
        let tx = Transaction::new_unchecked(self.db, TransactionBehavior::Immediate)?;
        if !self.shared.stamp.stands(&tx)? {
            let refused = |_: &Commit| {
                Err(StoreError::Unavailable {
                    action: ACTION,
                    cause: TAKEN_OVER.into(),
                })
            };
            return Ok(Some(commits.iter().map(refused).collect()));
        }
        let mut judge = Judge::load(&tx, self.shared, commits, look)?;
        let now = self.shared.now();
        let mut answers = Vec::with_capacity(commits.len());
        for commit in commits {
            let mut answer = judge.judge(commit, now);
            // What is stored already is not fit to be stored again, and not refused for that.
            if answer.is_err() && judge.look(&tx, commit)? {
                answer = judge.judge(commit, now);
            }
            answers.push(answer);
        }
        if judge.rows.is_empty() {
            tx.rollback()?;
        } else if judge.rows.event_bytes() > most {
            tx.rollback()?;
            return Ok(None);
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
        Ok(Some(answers))
    }

    /// Copies the WAL into the database once enough has been written. Readers are not waited for
    /// unless the WAL has outgrown its bound fourfold.
    pub(super) fn checkpoint(&mut self) {
        if *self.unchecked < self.options.wal_bytes {
            return;
        }
        *self.unchecked = 0;
        let pages = match checkpoint(self.db, "PRAGMA wal_checkpoint(PASSIVE)") {
            Ok(pages) => pages,
            Err(error) => return tracing::warn!(%error, "the WAL was not checkpointed"),
        };
        self.shared.checkpoints.fetch_add(1, Ordering::Relaxed);
        if pages * u64::from(PAGE_BYTES) > self.options.wal_bytes * 4
            && let Err(error) = checkpoint(self.db, "PRAGMA wal_checkpoint(TRUNCATE)")
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
