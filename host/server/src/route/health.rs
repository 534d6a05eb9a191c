//! Health means lag: a process that lives and settles nothing is not well. What the node tells of its
//! own loop needs no store, so a store that does not answer is told too, and waited for by nobody.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use mainstay_core::coordinator::Pulse;
use mainstay_core::nodes::Lag;
use tracing::warn;

use crate::state::ServerState;
use crate::wire::{Health, HealthStatus};

/// How long the store may take to tell its lag.
const ANSWER: Duration = Duration::from_secs(5);

pub(crate) async fn show(State(state): State<ServerState>) -> (StatusCode, Json<Health>) {
    let node = state.node();
    let lag = match tokio::time::timeout(ANSWER, node.store().lag()).await {
        Ok(Ok(lag)) => Some(lag),
        Ok(Err(error)) => {
            warn!(
                error = mainstay_core::chain(&error),
                "the store gave no lag"
            );
            None
        }
        Err(_) => None,
    };
    let pulse = node.pulse();
    let limit = u64::try_from(state.options().lag_limit.as_millis()).unwrap_or(u64::MAX);
    let detail = trouble(pulse, lag, limit);
    let bad = detail.is_some();
    let lag = lag.unwrap_or_default();
    let health = Health {
        status: if bad {
            HealthStatus::Lagging
        } else {
            HealthStatus::Ok
        },
        owner: node.owner(),
        version: env!("CARGO_PKG_VERSION").into(),
        projection_lag: 0,
        expired_claims: lag.expired,
        oldest_expired_claim_ms: lag.oldest_expired_ms,
        due_sessions: lag.due,
        oldest_due_wake_ms: lag.oldest_due_ms,
        last_look_ms: pulse.looked_ms,
        renews: pulse.renews,
        full: pulse.full,
        draining: pulse.draining,
        detail,
    };
    let status = if bad {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    (status, Json(health))
}

/// What is wrong, the nearest to the cause first. A node that drains looks for nothing, one that is full
/// is behind and well, and what waits for a component waits for an operator.
fn trouble(pulse: Pulse, lag: Option<Lag>, limit: u64) -> Option<String> {
    let Some(lag) = lag else {
        return Some("The store does not answer. See whether it runs, and the host's log.".into());
    };
    if pulse.draining {
        return None;
    }
    if pulse.looked_ms > limit {
        return Some(format!(
            "Recovery stands still: its last look for work was {} ms ago. See the host's log.",
            pulse.looked_ms
        ));
    }
    match (lag.oldest_expired_ms, lag.oldest_due_ms) {
        (Some(age), _) if age > limit => Some(format!(
            "Recovery stands still: a claim expired {age} ms ago and is not settled. See the host's log."
        )),
        (_, Some(age)) if age > limit && !pulse.full && lag.due > pulse.unbound => Some(format!(
            "Sessions do not start: one has been runnable for {age} ms and nothing has taken it. See the host's log."
        )),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WELL: Pulse = Pulse {
        looked_ms: 900,
        renews: true,
        full: false,
        unbound: 0,
        draining: false,
    };

    #[test]
    fn api_11_the_lag_that_is_too_long_is_named() {
        let told = |pulse, lag| trouble(pulse, lag, 1_000);
        let none = Some(Lag::default());
        assert_eq!(told(WELL, none), None);
        let still = Pulse {
            looked_ms: 1_001,
            ..WELL
        };
        assert!(told(still, none).unwrap().contains("1001 ms ago"));
        assert_eq!(
            told(
                Pulse {
                    draining: true,
                    ..still
                },
                none
            ),
            None
        );
        let expired = Lag {
            oldest_expired_ms: Some(1_002),
            ..Lag::default()
        };
        assert!(
            told(WELL, Some(expired))
                .unwrap()
                .contains("expired 1002 ms")
        );
        let due = Lag {
            due: 2,
            oldest_due_ms: Some(1_003),
            ..Lag::default()
        };
        assert!(
            told(WELL, Some(due))
                .unwrap()
                .contains("runnable for 1003 ms")
        );
        assert_eq!(told(Pulse { full: true, ..WELL }, Some(due)), None);
        let unbound = |unbound| Pulse { unbound, ..WELL };
        assert!(told(unbound(1), Some(due)).is_some());
        assert_eq!(told(unbound(2), Some(due)), None);
        assert!(told(WELL, None).unwrap().contains("does not answer"));
    }
}
