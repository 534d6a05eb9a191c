//! Writes a session's rows anew from its log: what an operator does when they have come to differ, and
//! the proof that the log is enough. The claim is told by no event and stays as it is; the text of bodies
//! that were compacted is taken from the rows that have it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use mainstay_core::claim::Claim;
use mainstay_core::event::Record;
use mainstay_core::id::SessionId;
use mainstay_core::port::StoreError;
use mainstay_core::rebuild::{Rebuild, Rows as Held};
use mainstay_core::stub;
use mainstay_core::tail::{Changes, InputStatus};
use sqlx::SqliteConnection;

use super::doctor::page;
use super::read::unsigned;
use super::rows::write;
use super::writer::Action;
use super::{Shared, SqliteStore};
use crate::rows::Rows;

const ACTION: &str = "rebuild a session's rows";

/// Everything that follows from the log.
const DROP: [&str; 6] = [
    "DELETE FROM session WHERE id = ?",
    "DELETE FROM input WHERE session = ?",
    "DELETE FROM item WHERE session = ?",
    "DELETE FROM step WHERE session = ?",
    "DELETE FROM call WHERE session = ?",
    "DELETE FROM execution WHERE session = ?",
];

impl SqliteStore {
    /// Writes the rows of a session anew from its log, in one transaction. Rows that the log gives and
    /// the tables lack come back, others go.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where the log itself is no session's; nothing was changed then.
    ///
    /// # Cancel safety
    /// Dropped midway, it is done whole or not at all; doing it again does no harm.
    pub async fn rebuild(&self, session: SessionId) -> Result<(), StoreError> {
        let wrong: Arc<Mutex<Option<String>>> = Arc::default();
        let (told, shared) = (wrong.clone(), self.shared.clone());
        let action: Action = Box::new(move |conn| {
            let (told, shared) = (told.clone(), shared.clone());
            Box::pin(async move {
                let done = rebuild(conn, session, &shared).await?;
                if let Err(cause) = done {
                    *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(cause);
                    return Err(sqlx::Error::RowNotFound);
                }
                Ok(1)
            })
        });
        let done = self.run(ACTION, action).await;
        let wrong = wrong.lock().unwrap_or_else(PoisonError::into_inner).take();
        match wrong {
            Some(cause) => Err(StoreError::Damaged { session, cause }),
            None => done.map(drop),
        }
    }
}

/// What is wrong with the log is the inner error.
async fn rebuild(
    conn: &mut SqliteConnection,
    session: SessionId,
    shared: &Shared,
) -> Result<Result<(), String>, sqlx::Error> {
    let key = session.to_string();
    // Nobody but the writer puts tails there, and this is the writer's turn.
    shared.cache().forget([session]);
    let rebuilt = match replay(conn, session).await? {
        Ok(rebuilt) => rebuilt,
        Err(cause) => return Ok(Err(cause)),
    };
    let claim: Option<String> = sqlx::query_scalar("SELECT data FROM claim WHERE session = ?")
        .bind(&key)
        .fetch_optional(&mut *conn)
        .await?;
    let claim: Option<Claim> = match claim.map(|data| serde_json::from_str(&data)).transpose() {
        Ok(claim) => claim,
        Err(error) => return Ok(Err(format!("claim: {error}"))),
    };

    let Rebuild { mut tail, mut rows } = rebuilt;
    // Where it was imported from, and how far its bodies were compacted, is in no event.
    let beside: Option<(Option<String>, Option<i64>)> = sqlx::query_as(
        "SELECT data -> '$.origin', data ->> '$.compacted_through' FROM session WHERE id = ?",
    )
    .bind(&key)
    .fetch_optional(&mut *conn)
    .await?;
    let (origin, compacted) = beside.unwrap_or_default();
    tail.session.origin = origin.and_then(|origin| serde_json::from_str(&origin).ok());
    if let Some(through) = compacted.filter(|through| *through > 0) {
        tail.session.compacted_through = unsigned(through);
        let held = match texts(conn, &key).await? {
            Ok(held) => held,
            Err(cause) => return Ok(Err(cause)),
        };
        stub::fill(&mut rows, &held);
    }
    let inputs: Vec<_> = rows.inputs.into_values().collect();
    tail.claim = claim;
    tail.inputs = inputs
        .iter()
        .filter(|input| input.status == InputStatus::Pending)
        .cloned()
        .collect();
    let changes = Changes {
        items: rows.items.into_values().collect(),
        inputs,
        steps: rows.steps.into_values().collect(),
        calls: rows.calls.into_values().collect(),
        executions: rows.executions.into_values().collect(),
        drop_items_after: None,
    };
    for sql in DROP {
        sqlx::query(sql).bind(&key).execute(&mut *conn).await?;
    }
    let mut rows = Rows::default();
    rows.add(session, &[], &changes);
    let tails = HashMap::from([(session, Arc::new(tail))]);
    write(conn, &rows, &tails).await?;
    Ok(Ok(()))
}

/// The rows that hold the text of stubs.
async fn texts(
    conn: &mut SqliteConnection,
    key: &str,
) -> Result<Result<Held, String>, sqlx::Error> {
    let mut held = Held::default();
    let items: Vec<(i64, u32, String)> =
        sqlx::query_as("SELECT seq, n, data FROM item WHERE session = ?")
            .bind(key)
            .fetch_all(&mut *conn)
            .await?;
    for (seq, n, data) in items {
        match serde_json::from_str(&data) {
            Ok(item) => held.items.insert((unsigned(seq), n), item),
            Err(error) => return Ok(Err(format!("item {seq}/{n}: {error}"))),
        };
    }
    let inputs: Vec<(i64, String)> =
        sqlx::query_as("SELECT seq, data FROM input WHERE session = ?")
            .bind(key)
            .fetch_all(conn)
            .await?;
    for (seq, data) in inputs {
        match serde_json::from_str(&data) {
            Ok(input) => held.inputs.insert(unsigned(seq), input),
            Err(error) => return Ok(Err(format!("input {seq}: {error}"))),
        };
    }
    Ok(Ok(held))
}

async fn replay(
    conn: &mut SqliteConnection,
    session: SessionId,
) -> Result<Result<Rebuild, String>, sqlx::Error> {
    let mut made: Option<Rebuild> = None;
    let key = session.to_string();
    let mut last = 0;
    loop {
        let page = page(conn, &key, last).await?;
        if page.is_empty() {
            return Ok(made.ok_or_else(|| "it has no log".into()));
        }
        for (seq, record) in page {
            last = seq;
            if let Err(cause) = record.and_then(|record| take(&mut made, record, session)) {
                return Ok(Err(cause));
            }
        }
    }
}

fn take(made: &mut Option<Rebuild>, record: Record, session: SessionId) -> Result<(), String> {
    let record = Record { session, ..record };
    let event = record.decode().map_err(|error| error.to_string())?;
    match made {
        Some(made) => made.take(&event).map_err(|broken| broken.to_string()),
        None => {
            let begun = Rebuild::begin(&event);
            *made = Some(begun.ok_or("the log does not begin with the session's creation")?);
            Ok(())
        }
    }
}
