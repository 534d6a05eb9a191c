//! Writes a session's rows anew from its log, as [`crate::sqlite`] does it. The claim is told by no event
//! and stays as it is.

use mainstay_core::claim::Claim;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::port::StoreError;
use mainstay_core::rebuild::{Rebuild, Rows as Held};
use mainstay_core::stub;
use mainstay_core::tail::{Changes, InputStatus, Origin};
use sqlx::postgres::PgRow;
use sqlx::{Executor as _, PgConnection, Row as _};

use super::PostgresStore;
use super::statement::Statement;
use super::{read, write};
use crate::rows::Rows;
use crate::value::{ReadError, parse, unsigned};

const ACTION: &str = "rebuild a session's rows";
const PAGE: i64 = 512;

// What of it no event tells.
const SESSION_KEPT: &str = "
    SELECT s.data, c.data FROM (SELECT $1 AS id) AS k
      LEFT JOIN session s ON s.id = k.id LEFT JOIN claim c ON c.session = k.id";

/// Everything that follows from the log.
const DROP: [&str; 6] = [
    "DELETE FROM session WHERE id = $1",
    "DELETE FROM input WHERE session = $1",
    "DELETE FROM item WHERE session = $1",
    "DELETE FROM step WHERE session = $1",
    "DELETE FROM call WHERE session = $1",
    "DELETE FROM execution WHERE session = $1",
];

impl PostgresStore {
    /// Writes the rows of a session anew from its log, in one transaction. Rows that the log gives and
    /// the tables lack come back, others go.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] where the log itself is no session's; nothing was changed then.
    ///
    /// # Cancel safety
    /// Dropped midway, it is done whole or not at all; doing it again does no harm.
    pub async fn rebuild(&self, session: SessionId) -> Result<(), StoreError> {
        let conn = self.pool.connect().await;
        let mut conn = conn.map_err(|trouble| trouble.during(ACTION))?;
        self.cache.forget(session);
        // The connection ends with it, and an open transaction with the connection.
        let done = self.rebuild_on(&mut conn, session).await;
        self.cache.forget(session);
        done.map_err(|error| self.failed(ACTION, error))
    }

    async fn rebuild_on(
        &self,
        conn: &mut PgConnection,
        session: SessionId,
    ) -> Result<(), ReadError> {
        let damaged = |cause: String| ReadError::Damaged { session, cause };
        let about = |sql| Statement::new(sql).bind(session.0);
        conn.execute(sqlx::raw_sql("BEGIN")).await?;
        // Whoever commits meanwhile waits.
        self.on(
            conn,
            about("SELECT 1 FROM session WHERE id = $1 FOR UPDATE"),
        )
        .await?;
        let found = self.on(conn, about(SESSION_KEPT)).await?;
        let found = found.first().ok_or(sqlx::Error::RowNotFound)?;
        let (data, claim): (Option<String>, Option<String>) =
            (found.try_get(0)?, found.try_get(1)?);
        let claim: Option<Claim> = claim
            .map(|claim| serde_json::from_str(&claim))
            .transpose()
            .map_err(|error| damaged(format!("claim: {error}")))?;

        let Rebuild { mut tail, mut rows } = self.replay(conn, session).await?;
        // Where it was imported from, and how far its bodies were compacted, is in no event.
        #[derive(Default, serde::Deserialize)]
        #[serde(default)]
        struct Kept {
            origin: Option<Origin>,
            compacted_through: Seq,
        }
        let kept = data.and_then(|data| serde_json::from_str::<Kept>(&data).ok());
        let kept = kept.unwrap_or_default();
        tail.session.origin = kept.origin;
        tail.session.compacted_through = kept.compacted_through;
        if kept.compacted_through > 0 {
            let held = self.texts(conn, session).await?;
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
            self.on(conn, about(sql)).await?;
        }
        let mut rows = Rows::default();
        rows.add(session, &[], &changes);
        let put = write::session_rebuilt(self.clock.at(), &tail, &rows);
        let answer = self.on(conn, put).await?;
        let answer = answer.first().ok_or(sqlx::Error::RowNotFound)?;
        match write::outcome(answer)? {
            (write::Outcome::Done { .. }, _) => {}
            _ => return Err(damaged("it is being made anew elsewhere".into())),
        }
        conn.execute(sqlx::raw_sql("COMMIT")).await?;
        Ok(())
    }

    /// The rows that hold the text of stubs.
    async fn texts(&self, conn: &mut PgConnection, session: SessionId) -> Result<Held, ReadError> {
        let about = |sql| Statement::new(sql).bind(session.0);
        let mut held = Held::default();
        let items = about("SELECT seq, n, data FROM item WHERE session = $1");
        for row in self.on(conn, items).await? {
            let n = u32::try_from(row.try_get::<i64, _>(1)?).unwrap_or(u32::MAX);
            let item = parse(session, "item", row.try_get(2)?)?;
            held.items.insert((unsigned(row.try_get(0)?), n), item);
        }
        let inputs = about("SELECT seq, data FROM input WHERE session = $1");
        for row in self.on(conn, inputs).await? {
            let input = parse(session, "input", row.try_get(1)?)?;
            held.inputs.insert(unsigned(row.try_get(0)?), input);
        }
        Ok(held)
    }

    async fn replay(
        &self,
        conn: &mut PgConnection,
        session: SessionId,
    ) -> Result<Rebuild, ReadError> {
        let damaged = |cause: String| ReadError::Damaged { session, cause };
        let mut made: Option<Rebuild> = None;
        let mut last = 0;
        loop {
            let page = self.on(conn, read::event_raw(session, last, PAGE)).await?;
            if page.is_empty() {
                return made.ok_or_else(|| damaged("it has no log".into()));
            }
            for row in &page {
                let (seq, record) = read::event_or_not(session, row)?;
                last = seq;
                let event = record.map_err(damaged)?.decode();
                let event = event.map_err(|error| damaged(error.to_string()))?;
                match &mut made {
                    Some(made) => {
                        let taken = made.take(&event);
                        taken.map_err(|broken| damaged(broken.to_string()))?;
                    }
                    None => {
                        let begun = Rebuild::begin(&event);
                        let none = "the log does not begin with the session's creation";
                        made = Some(begun.ok_or_else(|| damaged(none.into()))?);
                    }
                }
            }
        }
    }

    async fn on(
        &self,
        conn: &mut PgConnection,
        statement: Statement,
    ) -> Result<Vec<PgRow>, sqlx::Error> {
        statement.rows(conn, self.options.prepared).await
    }
}
