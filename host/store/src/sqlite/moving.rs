//! A file as the source or the target of a move; see [`crate::moving`].

use std::collections::HashMap;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::claim::Claim;
use mainstay_core::id::{Digest, SessionId};
use mainstay_core::port::StoreError;
use sqlx::{Connection as _, SqliteConnection};

use super::SqliteStore;
use super::read::unsigned;
use super::rows::{put_row, write};
use super::writer::{Action, SESSION_DROP};
use crate::moving::parcel::{call_status, event, input_status};
use crate::moving::{Living, Movable, Parcel};
use crate::rows::{Rows, json};
use crate::value::{ReadError, session_id};

const ACTION: &str = "move sessions";

#[async_trait]
impl Movable for SqliteStore {
    fn place(&self) -> String {
        self.file().display().to_string()
    }

    async fn others(&self) -> Result<u64, StoreError> {
        Ok(0)
    }

    async fn living(&self) -> Result<Vec<Living>, StoreError> {
        // Whoever owns the file has proved every other owner gone.
        Ok(Vec::new())
    }

    async fn session_ids(&self) -> Result<Vec<SessionId>, StoreError> {
        let ids: Vec<String> = self.column("SELECT id FROM session ORDER BY id").await?;
        let ids = ids.iter().map(|id| session_id(id));
        let ids = ids.collect::<Result<_, _>>();
        ids.map_err(|error| error.during(ACTION))
    }

    async fn blob_digests(&self) -> Result<Vec<Digest>, StoreError> {
        self.column("SELECT digest FROM blob ORDER BY digest").await
    }

    async fn parcel(&self, session: SessionId) -> Result<Option<Parcel>, StoreError> {
        let mut conn = self.reader(ACTION).await?;
        let read = async {
            let mut tx = conn.begin().await?;
            let parcel = read(&mut tx, session).await?;
            tx.rollback().await?;
            Ok(parcel)
        };
        let read: Result<_, ReadError> = read.await;
        read.map_err(|error| error.during(ACTION))
    }

    async fn parcel_put(&self, parcel: &Parcel) -> Result<(), StoreError> {
        let key = parcel.session().to_string();
        let session = parcel.session();
        let now = self.shared.now();
        let claim = parcel.claim.clone().map(|(execution, owner, data)| {
            let data = expired(&data, now);
            (key.clone(), execution, owner, now, data)
        });
        let what: Arc<(Vec<Rows>, _, _)> = Arc::new((parcel.pieces(), parcel.row.clone(), claim));
        let shared = Arc::clone(&self.shared);
        let action: Action = Box::new(move |conn| {
            let (what, shared, key) = (what.clone(), shared.clone(), key.clone());
            Box::pin(async move {
                // Nobody but the writer puts tails there, and this is the writer's turn.
                shared.cache().forget([session]);
                for sql in SESSION_DROP {
                    sqlx::query(*sql).bind(&key).execute(&mut *conn).await?;
                }
                let (pieces, row, claim) = &*what;
                for piece in pieces {
                    free(conn, piece).await?;
                    write(conn, piece, &HashMap::new()).await?;
                }
                put_row(conn, row, claim.as_ref()).await?;
                Ok(1)
            })
        });
        self.run(ACTION, action).await.map(drop)
    }

    async fn rename(&self, name: &str) -> Result<(), StoreError> {
        let name = name.to_owned();
        let action: Action = Box::new(move |conn| {
            let name = name.clone();
            Box::pin(async move {
                let put = sqlx::query("UPDATE meta SET value = ? WHERE key = 'name'").bind(name);
                Ok(put.execute(conn).await?.rows_affected())
            })
        });
        self.run(ACTION, action).await.map(drop)
    }
}

impl SqliteStore {
    async fn column(&self, sql: &'static str) -> Result<Vec<String>, StoreError> {
        let mut conn = self.reader(ACTION).await?;
        let found = sqlx::query_scalar(sql).fetch_all(&mut *conn).await;
        found.map_err(|cause| ReadError::from(cause).during(ACTION))
    }
}

/// An input's id that another session has is not taken over.
async fn free(conn: &mut SqliteConnection, piece: &Rows) -> Result<(), sqlx::Error> {
    for (id, ..) in &piece.inputs {
        let held: Option<String> = sqlx::query_scalar("SELECT session FROM input WHERE id = ?")
            .bind(id)
            .fetch_optional(&mut *conn)
            .await?;
        if let Some(other) = held {
            let cause = format!("input {id} is session {other}'s there");
            return Err(sqlx::Error::InvalidArgument(cause));
        }
    }
    Ok(())
}

/// A claim's value, as of one that has run out.
fn expired(data: &str, now: u64) -> String {
    match serde_json::from_str::<Claim>(data) {
        Ok(claim) => json(&Claim {
            expires_at: now,
            ..claim
        }),
        Err(_) => data.to_owned(),
    }
}

async fn read(
    conn: &mut SqliteConnection,
    session: SessionId,
) -> Result<Option<Parcel>, ReadError> {
    type Row = (
        String,
        i64,
        i64,
        i64,
        Option<i64>,
        bool,
        bool,
        Option<i64>,
        bool,
        Option<i64>,
        String,
    );
    let key = session.to_string();
    let row: Option<Row> = sqlx::query_as(
        "SELECT id, created_at, updated_at, head, step, runnable, due, wake_at, owing, shown, data
           FROM session WHERE id = ?",
    )
    .bind(&key)
    .fetch_optional(&mut *conn)
    .await?;
    let Some(row) = row else { return Ok(None) };
    let row = (
        row.0,
        unsigned(row.1),
        unsigned(row.2),
        unsigned(row.3),
        row.4.map(unsigned),
        row.5,
        row.6,
        row.7.map(unsigned),
        row.8,
        row.9.map(unsigned),
        row.10,
    );
    let claim = sqlx::query_as("SELECT execution, owner, data FROM claim WHERE session = ?")
        .bind(&key)
        .fetch_optional(&mut *conn)
        .await?;
    let mut rows = Rows::default();
    let events: Vec<crate::value::EventRow> = sqlx::query_as(
        "SELECT session, seq, id, type, version, at, execution, recovery, data, compacted
           FROM event WHERE session = ? ORDER BY seq",
    )
    .bind(&key)
    .fetch_all(&mut *conn)
    .await?;
    rows.events = events.into_iter().map(event).collect();
    let inputs: Vec<(String, i64, String, bool, String)> = sqlx::query_as(
        "SELECT id, seq, status, intent, data FROM input WHERE session = ? ORDER BY seq",
    )
    .bind(&key)
    .fetch_all(&mut *conn)
    .await?;
    for (id, seq, status, intent, data) in inputs {
        let status = input_status(session, &status)?;
        rows.inputs
            .push((id, key.clone(), unsigned(seq), status, intent, data));
    }
    let items: Vec<(i64, u32, bool, i64, String)> = sqlx::query_as(
        "SELECT seq, n, is_message, bytes, data FROM item WHERE session = ? ORDER BY seq, n",
    )
    .bind(&key)
    .fetch_all(&mut *conn)
    .await?;
    for (seq, n, is_message, bytes, data) in items {
        rows.items.push((
            key.clone(),
            unsigned(seq),
            n,
            is_message,
            unsigned(bytes),
            data,
        ));
    }
    type Step = (
        i64,
        i64,
        Option<i64>,
        String,
        Option<String>,
        Option<String>,
    );
    let steps: Vec<Step> = sqlx::query_as(
        "SELECT seq, started_at, settled_at, runner, provider, usage FROM step
          WHERE session = ? ORDER BY seq",
    )
    .bind(&key)
    .fetch_all(&mut *conn)
    .await?;
    for (seq, started_at, settled_at, runner, provider, usage) in steps {
        rows.steps.push((
            key.clone(),
            unsigned(seq),
            unsigned(started_at),
            settled_at.map(unsigned),
            runner,
            provider,
            usage,
        ));
    }
    let calls: Vec<(i64, String, String, String)> = sqlx::query_as(
        "SELECT step, id, status, data FROM call WHERE session = ? ORDER BY step, id",
    )
    .bind(&key)
    .fetch_all(&mut *conn)
    .await?;
    for (step, id, status, data) in calls {
        let status = call_status(session, &status)?;
        rows.calls
            .push((key.clone(), unsigned(step), id, status, data));
    }
    type Run = (String, String, i64, Option<i64>, Option<String>);
    let executions: Vec<Run> = sqlx::query_as(
        "SELECT id, owner, started, ended, terminal FROM execution WHERE session = ? ORDER BY id",
    )
    .bind(&key)
    .fetch_all(&mut *conn)
    .await?;
    for (id, owner, started, ended, terminal) in executions {
        rows.executions.push((
            key.clone(),
            id,
            owner,
            unsigned(started),
            ended.map(unsigned),
            terminal,
        ));
    }
    Ok(Some(Parcel {
        session,
        row,
        claim,
        rows,
    }))
}
