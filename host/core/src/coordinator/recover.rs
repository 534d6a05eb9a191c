//! The recovery loop: finds expired claims, due timers and runnable sessions, level-triggered, for as long
//! as the node lives.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use futures::StreamExt as _;
use tracing::{info, warn};

use super::Inner;
use super::deliver::marked;
use super::drive::{Resumed, Start};
use crate::claim::{Claim, Fence};
use crate::commit::{Refused, Reply, Write};
use crate::id::{Millis, OwnerId, SessionId};
use crate::port::StoreError;
use crate::project::RuleBroken;
use crate::recovery::{Counting, Outcome};
use crate::tail::Scope;

impl Inner {
    /// Runs a session that the loop found, unless it is about to run here anyway.
    fn start(self: &Arc<Self>, session: SessionId) {
        // Without a place it stays due, here or elsewhere.
        let free = self.places.available_permits() > 0;
        if free && !self.slots().contains_key(&session) {
            let start = Start {
                by_itself: true,
                bound: true,
                ..Start::default()
            };
            self.wake(session, Scope::All, start);
        }
    }

    /// How many runnable sessions a look is to find: one for each free place, beside those that wait
    /// here for something else.
    fn wanted(&self) -> u32 {
        let free = self.places.available_permits();
        if free == 0 {
            return 0;
        }
        let waiting = self.slots().len().saturating_sub(self.held().len());
        let wanted = free + waiting + self.unbound().len() + self.passed().len();
        u32::try_from(wanted).unwrap_or(u32::MAX)
    }
}

/// Expired claims that are settled at once, so that a store can make them durable together.
const RECOVERIES: usize = 64;

/// How long a session that cannot be begun, for want of a component say, is remembered: nodes are told of
/// it in turns.
const UNBOUND_MS: Millis = 60_000;

/// How many rows one look of the recovery loop takes.
const SCAN: u32 = 1024;

/// Finds expired claims and runnable sessions, level-triggered, for as long as the node lives.
pub(super) async fn recoveries(inner: Arc<Inner>) {
    while !inner.stopping.load(Ordering::SeqCst) {
        // There were more than one look takes.
        let mut more = false;
        match inner.shared.store.scan_within(SCAN, inner.wanted()).await {
            // What a shutdown leaves is for another.
            Ok(_) if inner.stopping.load(Ordering::SeqCst) => return,
            Ok(scan) => {
                let expired = scan.expired.len();
                let alive = match expired {
                    0 => Vec::new(),
                    _ => alive(&inner).await,
                };
                let each = scan.expired.into_iter().map(|claim| {
                    let (inner, alive) = (&inner, &alive);
                    async move { recover(inner, &claim, alive).await }
                });
                let settled = futures::stream::iter(each)
                    .buffer_unordered(RECOVERIES)
                    .filter(|settled| std::future::ready(*settled))
                    .count()
                    .await;
                more = expired == SCAN as usize && settled > 0;
                for session in scan.timers {
                    match inner.shared.commit(session, Write::Fire).await {
                        Ok(committed) if committed.tail.is_runnable() => inner.start(session),
                        Ok(_) => {}
                        Err(error) => {
                            warn!(%session, error = %crate::chain(&error), "a timer did not fire");
                        }
                    }
                }
                let now = inner.shared.clock.monotonic();
                for mut seen in [inner.unbound(), inner.passed()] {
                    seen.retain(|_, seen| now.saturating_sub(*seen) < UNBOUND_MS);
                }
                for session in scan.due {
                    inner.start(session);
                }
                inner.shared.owing(scan.owing);
                marked(&inner).await;
                let now = inner.shared.clock.monotonic();
                inner.looked.store(now, Ordering::SeqCst);
            }
            Err(error) => warn!(error = %crate::chain(&error), "the scan failed"),
        }
        if more {
            continue;
        }
        tokio::time::sleep(
            inner
                .shared
                .settings
                .poll_every
                .mul_f64(rand::random_range(0.8..=1.0)),
        )
        .await;
    }
}

/// Puts aside what cannot be recovered, if it is still as it was seen.
async fn give_up(inner: &Arc<Inner>, session: SessionId, seen: Fence, rule: RuleBroken) {
    let reason = format!("its recovery does not fit its log: {rule}");
    warn!(%session, %reason, "quarantined");
    let write = Write::Quarantine { seen, reason };
    if let Err(error) = inner.shared.commit(session, write).await {
        warn!(%session, error = %crate::chain(&error), "could not quarantine");
    }
}

/// When each node was last seen alive.
async fn alive(inner: &Inner) -> Vec<(OwnerId, Millis)> {
    match inner.shared.store.nodes().await {
        Ok((rows, _)) => rows
            .into_iter()
            .map(|row| (row.identity.owner, row.seen_at))
            .collect(),
        Err(error) => {
            warn!(error = %crate::chain(&error), "who lives is not known: crashes count until it is");
            Vec::new()
        }
    }
}

/// Settles an expired claim as it was seen. True if this did.
pub(super) async fn recover(
    inner: &Arc<Inner>,
    claim: &Claim,
    alive: &[(OwnerId, Millis)],
) -> bool {
    let seen = Fence {
        execution: claim.execution,
        owner: claim.owner,
    };
    if inner.held().contains_key(&claim.execution) {
        // Its own watchdog drops it first.
        return false;
    }
    let mut alive = alive.to_vec();
    let mine = claim.owner == inner.shared.owner;
    let lost = inner.lost().contains(&claim.execution);
    if mine && lost {
        alive.push((claim.owner, Millis::MAX));
    }
    let write = Write::Recover {
        seen,
        counting: Counting {
            max_attempts: inner.shared.settings.max_attempts,
            alive,
            broke_off: mine && !lost,
        },
    };
    match inner.shared.commit(claim.session, write).await {
        Ok(committed) => {
            let Reply::Recovered(outcome) = committed.reply else {
                return false;
            };
            info!(session = %claim.session, execution = %claim.execution, ?outcome, "recovered");
            inner.lost().remove(&claim.execution);
            if let Outcome::Resume { attempts, suspect } = outcome {
                let start = Start {
                    by_itself: true,
                    resumed: Some(Resumed { attempts, suspect }),
                    bound: committed.tail.step.is_some(),
                    ..Start::default()
                };
                // Without a place it is due, here or elsewhere.
                if inner.places.available_permits() > 0 {
                    inner.wake(claim.session, Scope::All, start);
                }
            }
            return true;
        }
        Err(StoreError::Refused(Refused::Rule(rule))) => {
            give_up(inner, claim.session, seen, rule).await;
        }
        // Another node was first.
        Err(StoreError::Refused(Refused::ClaimChanged(_) | Refused::NotFound(_))) => {}
        Err(error) => {
            warn!(session = %claim.session, error = %crate::chain(&error), "could not recover");
        }
    }
    false
}
