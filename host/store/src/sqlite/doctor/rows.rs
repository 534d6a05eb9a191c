//! Reads a session's rows for [`crate::examine`].

use mainstay_core::id::SessionId;
use mainstay_core::invariant::{Check, Stored};
use sqlx::SqliteConnection;

use crate::examine::{
    CallColumns, ClaimColumns, ExecutionColumns, InputColumns, ItemColumns, Rows, SessionColumns,
    StepColumns,
};

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
        sofar: (0, 0),
    };
    let inputs: Vec<InputColumns> = sqlx::query_as(
        "SELECT id, seq, status, intent, data FROM input WHERE session = ? ORDER BY seq",
    )
    .bind(key)
    .fetch_all(&mut *conn)
    .await?;
    inputs.into_iter().for_each(|row| rows.input(row));
    let claim: Option<ClaimColumns> =
        sqlx::query_as("SELECT execution, owner, expires_at, data FROM claim WHERE session = ?")
            .bind(key)
            .fetch_optional(&mut *conn)
            .await?;
    if let Some(claim) = claim {
        rows.claim(key, claim);
    }
    let row: Option<SessionColumns> = sqlx::query_as(
        "SELECT created_at, updated_at, head, step, runnable, due, data FROM session WHERE id = ?",
    )
    .bind(key)
    .fetch_optional(&mut *conn)
    .await?;
    if let Some(row) = row {
        rows.session(key, row);
    }
    let items: Vec<ItemColumns> = sqlx::query_as(
        "SELECT seq, n, is_message, bytes, items_to, bytes_to, data
           FROM item WHERE session = ? ORDER BY seq, n",
    )
    .bind(key)
    .fetch_all(&mut *conn)
    .await?;
    items.into_iter().for_each(|row| rows.item(row));
    let steps: Vec<StepColumns> = sqlx::query_as(
        "SELECT seq, started_at, settled_at, runner, provider, usage FROM step
          WHERE session = ? ORDER BY seq",
    )
    .bind(key)
    .fetch_all(&mut *conn)
    .await?;
    steps.into_iter().for_each(|row| rows.step(session, row));
    let calls: Vec<CallColumns> =
        sqlx::query_as("SELECT step, id, status, data FROM call WHERE session = ?")
            .bind(key)
            .fetch_all(&mut *conn)
            .await?;
    calls.into_iter().for_each(|row| rows.call(row));
    let executions: Vec<ExecutionColumns> = sqlx::query_as(
        "SELECT id, owner, started, ended, terminal FROM execution WHERE session = ?",
    )
    .bind(key)
    .fetch_all(conn)
    .await?;
    executions
        .into_iter()
        .for_each(|row| rows.execution(session, row));
    Ok(rows.any.then_some(rows.stored))
}
