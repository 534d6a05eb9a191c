//! Connections that are kept open. One whose statement failed by anything else than the database's own
//! answer, or was given up midway, is closed and never used again; nothing is asked of one that is put
//! back, so that a statement costs its own round trip and no other.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sqlx::postgres::{PgConnectOptions, PgRow};
use sqlx::{ConnectOptions as _, Connection as _, PgConnection};
use tokio::sync::Semaphore;

use super::statement::Statement;
use super::trouble::{Kind, Patience, Trouble};

pub(super) struct Pool {
    connect: PgConnectOptions,
    place: String,
    prepared: bool,
    patience: Duration,
    /// What takes longer is taken for lost.
    longest: Duration,
    /// One per connection that may be open.
    slots: Semaphore,
    /// The one used last is used next, so that the others may be given up by the server.
    idle: Mutex<Vec<PgConnection>>,
    statements: AtomicU64,
    lost: AtomicU64,
}

impl Pool {
    pub(super) fn new(
        connect: PgConnectOptions,
        place: String,
        connections: u32,
        prepared: bool,
        (patience, longest): (Duration, Duration),
    ) -> Self {
        Self {
            connect,
            place,
            prepared,
            patience,
            longest,
            slots: Semaphore::new(connections.max(1) as usize),
            idle: Mutex::default(),
            statements: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        }
    }

    /// Statements that were sent so far, each a round trip and a transaction.
    pub(super) fn statements(&self) -> u64 {
        self.statements.load(Ordering::Relaxed)
    }

    /// Connections that were lost so far.
    pub(super) fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    pub(super) fn patience(&self) -> Patience {
        Patience::new(self.patience)
    }

    /// Runs a statement once.
    pub(super) async fn once(&self, statement: &Statement) -> Result<Vec<PgRow>, Trouble> {
        let trouble = |cause| self.trouble(cause);
        let closed = |_| trouble(sqlx::Error::PoolClosed);
        let _slot = self.slots.acquire().await.map_err(closed)?;
        let kept = self.idle().pop();
        let mut conn = match kept {
            Some(conn) => conn,
            None => self.within(self.connect.connect()).await?,
        };
        self.statements.fetch_add(1, Ordering::Relaxed);
        let done = self.within(statement.rows(&mut conn, self.prepared)).await;
        match &done {
            Err(trouble) if trouble.kind() == Kind::Gone => {
                self.lost.fetch_add(1, Ordering::Relaxed);
                // Those that wait beside it were most likely lost with it.
                self.idle().clear();
            }
            Err(trouble) if !trouble.is_answer() => {}
            _ if self.slots.is_closed() => {}
            _ => self.idle().push(conn),
        }
        done
    }

    /// Runs a statement that may as well run twice, and again where waiting helps.
    pub(super) async fn repeat(&self, statement: &Statement) -> Result<Vec<PgRow>, Trouble> {
        let mut patience = self.patience();
        loop {
            match self.once(statement).await {
                Err(trouble)
                    if matches!(trouble.kind(), Kind::Gone | Kind::Crossed)
                        && patience.wait().await => {}
                done => return done,
            }
        }
    }

    /// A connection of its own, for several statements.
    pub(super) async fn connect(&self) -> Result<PgConnection, Trouble> {
        let mut patience = self.patience();
        loop {
            match self.within(self.connect.connect()).await {
                Err(trouble) if trouble.kind() == Kind::Gone && patience.wait().await => {}
                done => return done,
            }
        }
    }

    pub(super) async fn close(&self) {
        self.slots.close();
        let idle = std::mem::take(&mut *self.idle());
        for conn in idle {
            // It is gone either way.
            let _ = conn.close().await;
        }
    }

    /// Takes a connection in for others to use.
    pub(super) fn keep(&self, conn: PgConnection) {
        self.idle().push(conn);
    }

    /// A way that has gone silent is not waited for as long as the machine would.
    async fn within<T>(
        &self,
        answer: impl Future<Output = Result<T, sqlx::Error>>,
    ) -> Result<T, Trouble> {
        let answer = match tokio::time::timeout(self.longest, answer).await {
            Ok(answer) => answer,
            Err(_) => Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())),
        };
        answer.map_err(|cause| self.trouble(cause))
    }

    pub(super) fn options(&self) -> &PgConnectOptions {
        &self.connect
    }

    pub(super) fn trouble(&self, cause: sqlx::Error) -> Trouble {
        Trouble::new(&self.place, cause)
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
