//! Renews what a node holds: its claims and its row, in one statement a time, and lets go of claims
//! that are lost. A watchdog beside it drops what no renewal was confirmed for in time, and asks nobody.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tracing::{info, warn};

use crate::claim::Fence;
use crate::coordinator::Inner;
use crate::id::Millis;
use crate::nodes::{Beat, Presence};
use crate::port::StoreError;

/// Rows of nodes that ended longer ago are removed.
pub const NODE_KEPT: Duration = Duration::from_secs(24 * 3600);
/// How long the last word of a node may take.
const LAST_WORD: Duration = Duration::from_secs(2);

/// Watches and renews, for as long as it is polled.
pub(crate) async fn run(inner: Arc<Inner>) {
    tokio::join!(watch(&inner), renew(&inner));
}

/// Looks more often than renewals fall due, and never waits for the store.
async fn watch(inner: &Inner) {
    let settings = &inner.shared.settings;
    let safe = settings.lease.saturating_sub(settings.lease_margin);
    let safe = safe.as_millis() as Millis;
    let every = (settings.renew_every / 10).max(Duration::from_millis(10));
    let mut wait = every;
    loop {
        tokio::time::sleep(wait).await;
        wait = every;
        let now = inner.shared.clock.monotonic();
        for held in inner.held().values() {
            if held.lost.is_cancelled() {
                continue;
            }
            let age = now.saturating_sub(held.confirmed);
            if age >= safe {
                warn!(execution = %held.fence.execution, "no confirmed renewal in time: dropping the execution");
                held.lost.cancel();
            } else {
                // Not later than it falls due.
                wait = wait.min(Duration::from_millis(safe - age));
            }
        }
    }
}

async fn renew(inner: &Inner) {
    let settings = &inner.shared.settings;
    // With nothing to renew but the row, half as often will do.
    let idle = settings.lease.as_millis() as Millis / 2;
    let mut confirmed: Option<Millis> = None;
    let (mut rung, mut began) = (true, false);
    loop {
        let asked = inner.shared.clock.monotonic();
        let fences: Vec<Fence> = inner.held().values().map(|held| held.fence).collect();
        let fresh = confirmed.is_some_and(|at| asked.saturating_sub(at) < idle);
        if rung || !fences.is_empty() || !fresh {
            match beat(inner, fences, false).await {
                Ok(()) => {
                    confirmed = Some(asked);
                    if !std::mem::replace(&mut began, true) {
                        forget(inner).await;
                    }
                }
                Err(error) => {
                    confirmed = None;
                    warn!(error = %crate::chain(&error), "renewal failed: it counts as no confirmation");
                }
            }
        }
        rung = tokio::select! {
            () = tokio::time::sleep(settings.renew_every) => false,
            () = inner.bell.notified() => true,
        };
    }
}

/// One renewal, and what follows from its answer.
async fn beat(inner: &Inner, fences: Vec<Fence>, stopped: bool) -> Result<(), StoreError> {
    let asked = inner.shared.clock.monotonic();
    let beat = Beat {
        owner: inner.shared.owner,
        executions: fences,
        lease_ms: inner.shared.settings.lease.as_millis() as u64,
        presence: Some(Presence {
            identity: inner.identity.clone(),
            capacity: inner.shared.settings.capacity,
            load: u32::try_from(inner.held().len()).unwrap_or(u32::MAX),
            draining: inner.stopping.load(Ordering::SeqCst),
            stopped,
        }),
    };
    let answer = inner.shared.store.beat(&beat).await;
    inner.healthy.store(answer.is_ok(), Ordering::SeqCst);
    let beaten = answer?;
    if let Some(now) = beaten.now {
        let answered = inner.shared.clock.monotonic();
        inner.shared.time.heard(now, asked, answered);
    }
    let mut held = inner.held();
    for fence in beat.executions {
        let Some(held) = held.get_mut(&fence.execution) else {
            continue;
        };
        if beaten.renewed.contains(&fence.execution) {
            held.confirmed = held.confirmed.max(asked);
        } else {
            held.lost.cancel();
        }
    }
    drop(held);
    if beaten.drain && !inner.drain.is_cancelled() {
        info!("asked to drain");
        inner.drain.cancel();
    }
    Ok(())
}

/// Says that this node has ended. Whoever does not hear it sees its lease run out.
pub(crate) async fn last(inner: &Inner) {
    match tokio::time::timeout(LAST_WORD, beat(inner, Vec::new(), true)).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => {
            warn!(error = %crate::chain(&error), "the others were not told that this node has ended");
        }
        Err(_) => {
            warn!("the others were not told that this node has ended: the store does not answer")
        }
    }
}

/// Every start makes a row; those of long ago go with the next.
async fn forget(inner: &Inner) {
    let past_ms = NODE_KEPT.as_millis() as u64;
    if let Err(error) = inner.shared.store.nodes_forget(past_ms).await {
        warn!(error = %crate::chain(&error), "rows of nodes that ended long ago were not removed");
    }
}
