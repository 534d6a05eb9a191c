//! Reads a session's rows one by one, so that one that cannot be read hides no other, and compares the
//! columns that queries select by with the values that they were taken from.

use mainstay_core::claim::Claim;
use mainstay_core::history::Item;
use mainstay_core::id::SessionId;
use mainstay_core::invariant::{Check, Invariant, Place, Stored};
use mainstay_core::tail::{
    Call, CallStatus, Execution, Input, InputStatus, Session, StepRow, Tail,
};
use serde::de::DeserializeOwned;
use sqlx::SqliteConnection;

use super::unsigned;
use crate::sqlite::read::signed;

/// Reads a session's rows. What cannot be read, and columns that are not what their row's value says,
/// are reported to the check. `None` where no table has anything of the session.
pub(super) async fn read(
    conn: &mut SqliteConnection,
    check: &mut Check,
    session: SessionId,
    key: &str,
) -> Result<Option<Stored>, sqlx::Error> {
    let any = sqlx::query_scalar("SELECT EXISTS (SELECT 1 FROM event WHERE session = ?)")
        .bind(key)
        .fetch_one(&mut *conn)
        .await?;
    let mut rows = Rows {
        check,
        stored: Stored::default(),
        any,
    };
    rows.inputs(conn, key).await?;
    rows.session(conn, key).await?;
    rows.items(conn, key).await?;
    rows.steps(conn, session, key).await?;
    rows.calls(conn, key).await?;
    rows.executions(conn, session, key).await?;
    Ok(rows.any.then_some(rows.stored))
}

struct Rows<'c> {
    check: &'c mut Check,
    stored: Stored,
    any: bool,
}

impl Rows<'_> {
    fn parse<T: DeserializeOwned>(&mut self, row: &str, data: &str) -> Option<T> {
        self.any = true;
        serde_json::from_str(data)
            .map_err(|error| {
                self.check
                    .unreadable(Place::Row(row.into()), &error.to_string());
            })
            .ok()
    }

    /// Reports the columns that are not right.
    fn columns<const N: usize>(&mut self, row: &str, columns: [(&str, bool); N]) {
        let wrong: Vec<&str> = columns
            .into_iter()
            .filter(|(_, right)| !right)
            .map(|(name, _)| name)
            .collect();
        if !wrong.is_empty() {
            let what = format!(
                "its columns {} are not what its value says",
                wrong.join(", ")
            );
            self.check
                .broken(Invariant::RowsFollowFromLog, Place::Row(row.into()), what);
        }
    }

    async fn session(&mut self, conn: &mut SqliteConnection, key: &str) -> Result<(), sqlx::Error> {
        type Columns = (i64, i64, i64, Option<i64>, bool, bool, String);
        let claim: Option<(String, String, i64, String)> = sqlx::query_as(
            "SELECT execution, owner, expires_at, data FROM claim WHERE session = ?",
        )
        .bind(key)
        .fetch_optional(&mut *conn)
        .await?;
        if let Some((execution, owner, expires_at, data)) = claim {
            let name = format!("claim {key}");
            if let Some(claim) = self.parse::<Claim>(&name, &data) {
                let columns = [
                    ("execution", execution == claim.execution.to_string()),
                    ("owner", owner == claim.owner.to_string()),
                    ("expires_at", expires_at == signed(claim.expires_at)),
                ];
                self.columns(&name, columns);
                self.stored.claim = Some(claim);
            }
        }
        let row: Option<Columns> = sqlx::query_as(
            "SELECT created_at, updated_at, head, step, runnable, due, data FROM session WHERE id = ?",
        )
        .bind(key)
        .fetch_optional(conn)
        .await?;
        let Some((created_at, updated_at, head, step, runnable, due, data)) = row else {
            return Ok(());
        };
        let name = format!("session {key}");
        let Some(session) = self.parse::<Session>(&name, &data) else {
            return Ok(());
        };
        let inputs = self.stored.rows.inputs.values();
        let tail = Tail {
            session,
            claim: self.stored.claim.clone(),
            step: None,
            inputs: inputs
                .filter(|input| input.status == InputStatus::Pending)
                .cloned()
                .collect(),
        };
        let session = &tail.session;
        let may = tail.is_runnable();
        let columns = [
            ("created_at", created_at == signed(session.created_at)),
            ("updated_at", updated_at == signed(session.updated_at)),
            ("head", head == signed(session.head)),
            ("step", step == session.step.map(signed)),
            ("runnable", runnable == may),
            ("due", due == (may && tail.claim.is_none())),
        ];
        self.columns(&name, columns);
        self.stored.session = Some(tail.session);
        Ok(())
    }

    async fn inputs(&mut self, conn: &mut SqliteConnection, key: &str) -> Result<(), sqlx::Error> {
        let rows: Vec<(String, i64, String, bool, String)> = sqlx::query_as(
            "SELECT id, seq, status, intent, data FROM input WHERE session = ? ORDER BY seq",
        )
        .bind(key)
        .fetch_all(conn)
        .await?;
        for (id, seq, status, intent, data) in rows {
            let name = format!("input {id}");
            let Some(input) = self.parse::<Input>(&name, &data) else {
                continue;
            };
            let word = match input.status {
                InputStatus::Pending => "pending",
                InputStatus::Promoted => "promoted",
                InputStatus::Cancelled => "cancelled",
            };
            let columns = [
                ("id", id == input.id.to_string()),
                ("seq", seq == signed(input.seq)),
                ("status", status == word),
                ("intent", intent == input.intent),
            ];
            self.columns(&name, columns);
            self.stored.rows.inputs.insert(input.seq, input);
        }
        Ok(())
    }

    async fn items(&mut self, conn: &mut SqliteConnection, key: &str) -> Result<(), sqlx::Error> {
        let rows: Vec<(i64, i64, bool, i64, i64, i64, String)> = sqlx::query_as(
            "SELECT seq, n, is_message, bytes, items_to, bytes_to, data
               FROM item WHERE session = ? ORDER BY seq, n",
        )
        .bind(key)
        .fetch_all(conn)
        .await?;
        let mut sofar = (0, 0);
        for (seq, n, is_message, bytes, items_to, bytes_to, data) in rows {
            sofar = (sofar.0 + 1, sofar.1 + bytes);
            let name = format!("item {seq}/{n}");
            let Some(item) = self.parse::<Item>(&name, &data) else {
                continue;
            };
            let columns = [
                ("seq", seq == signed(item.seq)),
                ("is_message", is_message == item.is_message()),
                ("bytes", bytes == signed(item.text_bytes())),
                ("items_to", items_to == sofar.0),
                ("bytes_to", bytes_to == sofar.1),
            ];
            self.columns(&name, columns);
            let n = u32::try_from(n).unwrap_or(u32::MAX);
            self.stored.rows.items.insert((unsigned(seq), n), item);
        }
        Ok(())
    }

    async fn steps(
        &mut self,
        conn: &mut SqliteConnection,
        session: SessionId,
        key: &str,
    ) -> Result<(), sqlx::Error> {
        type Columns = (
            i64,
            i64,
            Option<i64>,
            String,
            Option<String>,
            Option<String>,
        );
        let rows: Vec<Columns> = sqlx::query_as(
            "SELECT seq, started_at, settled_at, runner, provider, usage FROM step
              WHERE session = ? ORDER BY seq",
        )
        .bind(key)
        .fetch_all(conn)
        .await?;
        for (seq, started_at, settled_at, runner, provider, usage) in rows {
            let name = format!("step {seq}");
            let Some(runner) = self.parse(&name, &runner) else {
                continue;
            };
            let usage = match usage {
                None => None,
                Some(usage) => match self.parse(&name, &usage) {
                    Some(usage) => Some(usage),
                    None => continue,
                },
            };
            let step = StepRow {
                session,
                seq: unsigned(seq),
                started_at: unsigned(started_at),
                settled_at: settled_at.map(unsigned),
                runner,
                provider,
                usage,
            };
            self.stored.rows.steps.insert(step.seq, step);
        }
        Ok(())
    }

    async fn calls(&mut self, conn: &mut SqliteConnection, key: &str) -> Result<(), sqlx::Error> {
        let rows: Vec<(i64, String, String, String)> =
            sqlx::query_as("SELECT step, id, status, data FROM call WHERE session = ?")
                .bind(key)
                .fetch_all(conn)
                .await?;
        for (step, id, status, data) in rows {
            let name = format!("call {step}/{id}");
            let Some(call) = self.parse::<Call>(&name, &data) else {
                continue;
            };
            let word = match call.status {
                CallStatus::Streaming => "streaming",
                CallStatus::Ready => "ready",
                CallStatus::Started => "started",
                CallStatus::Settled => "settled",
            };
            let columns = [
                ("step", step == signed(call.step)),
                (
                    "id",
                    serde_json::from_str(&id).is_ok_and(|id: String| id == call.id),
                ),
                ("status", status == word),
            ];
            self.columns(&name, columns);
            self.stored
                .rows
                .calls
                .insert((call.step, call.id.clone()), call);
        }
        Ok(())
    }

    async fn executions(
        &mut self,
        conn: &mut SqliteConnection,
        session: SessionId,
        key: &str,
    ) -> Result<(), sqlx::Error> {
        type Columns = (String, String, i64, Option<i64>, Option<String>);
        let rows: Vec<Columns> = sqlx::query_as(
            "SELECT id, owner, started, ended, terminal FROM execution WHERE session = ?",
        )
        .bind(key)
        .fetch_all(conn)
        .await?;
        for (id, owner, started, ended, terminal) in rows {
            self.any = true;
            let (Ok(id), Ok(owner)) = (id.parse(), owner.parse()) else {
                let place = Place::Row(format!("execution {id}"));
                self.check.unreadable(place, "its ids are none");
                continue;
            };
            let execution = Execution {
                id,
                session,
                owner,
                started: unsigned(started),
                ended: ended.map(unsigned),
                terminal,
            };
            self.stored.rows.executions.insert(id, execution);
        }
        Ok(())
    }
}
