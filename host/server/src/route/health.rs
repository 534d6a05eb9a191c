//! Health means lag: a process that lives and settles nothing is not well.

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;

use crate::error::Result;
use crate::state::ServerState;
use crate::wire::{Health, HealthStatus};

/// Rows that are looked at.
const SCAN: u32 = 1024;
/// Due sessions whose age is looked up.
const AGES: usize = 16;

pub(crate) async fn show(State(state): State<ServerState>) -> Result<(StatusCode, Json<Health>)> {
    let node = state.node();
    let store = node.store();
    let scan = store.scan(SCAN).await?;
    let now = store.now().await?;
    let oldest_expired = scan
        .expired
        .iter()
        .map(|claim| now.saturating_sub(claim.expires_at))
        .max();
    let mut oldest_due = None;
    for session in scan.due.iter().take(AGES) {
        if let Some(tail) = store.tail(*session).await?
            && tail.claim.is_none()
            && tail.is_runnable()
        {
            oldest_due = oldest_due.max(Some(now.saturating_sub(tail.session.updated_at)));
        }
    }
    let limit = u64::try_from(state.options().lag_limit.as_millis()).unwrap_or(u64::MAX);
    let detail = match (oldest_expired, oldest_due) {
        (Some(age), _) if age > limit => Some(format!(
            "Recovery stands still: a claim expired {age} ms ago and is not settled. See the host's log."
        )),
        (_, Some(age)) if age > limit => Some(format!(
            "Sessions do not start: one has been runnable for {age} ms and nothing has taken it. See the host's log."
        )),
        _ => None,
    };
    let bad = detail.is_some();
    let health = Health {
        status: if bad {
            HealthStatus::Lagging
        } else {
            HealthStatus::Ok
        },
        owner: node.owner(),
        version: env!("CARGO_PKG_VERSION").into(),
        projection_lag: 0,
        expired_claims: scan.expired.len() as u64,
        oldest_expired_claim_ms: oldest_expired,
        due_sessions: scan.due.len() as u64,
        oldest_due_wake_ms: oldest_due,
        detail,
    };
    let status = if bad {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    Ok((status, Json(health)))
}
