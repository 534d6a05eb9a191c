//! What sessions owe one another is brought here, and interrupts that other processes marked are found.

use std::sync::Arc;

use futures::StreamExt as _;

use super::Inner;
use super::drive::Start;
use crate::courier::{self, Effect};
use crate::id::{ExecutionId, SessionId};

/// Outboxes that are emptied at once.
const DELIVERIES: usize = 32;

/// Brings notices to the sessions that they are for.
pub(super) async fn deliveries(inner: Arc<Inner>) {
    loop {
        let owing = inner.shared.next_owing().await;
        let each = owing.into_iter().map(|session| {
            let inner = Arc::clone(&inner);
            async move {
                deliver(&inner, session).await;
            }
        });
        futures::stream::iter(each)
            .for_each_concurrent(DELIVERIES, |delivery| delivery)
            .await;
    }
}

/// Brings what one session owes.
pub(super) async fn deliver(inner: &Arc<Inner>, session: SessionId) {
    for effect in courier::deliver(&inner.shared, session).await {
        match effect {
            Effect::Woken(session, scope) => {
                let start = Start {
                    bound: true,
                    ..Start::default()
                };
                inner.wake(session, scope, start);
            }
            // What runs by now may have been asked for since: its mark decides.
            Effect::Stopped(session) => stop_marked(inner, &[session]).await,
        }
    }
}

/// Finds the interrupts that another process marked on what runs here.
pub(super) async fn marked(inner: &Arc<Inner>) {
    let sessions: Vec<SessionId> = inner.slots().keys().copied().collect();
    if !sessions.is_empty() {
        stop_marked(inner, &sessions).await;
    }
}

/// Stops what runs here of these sessions, where the claim bears the mark.
async fn stop_marked(inner: &Inner, sessions: &[SessionId]) {
    // What runs by the time of the answer may have begun behind the mark.
    let running: Vec<(SessionId, ExecutionId)> = {
        let slots = inner.slots();
        let executions = sessions.iter().filter_map(|session| {
            let execution = slots.get(session)?.execution?;
            Some((*session, execution))
        });
        executions.collect()
    };
    let store = &inner.shared.store;
    let Ok(marked) = store.interrupted(inner.shared.owner, sessions).await else {
        // It is looked for again with the next scan.
        return;
    };
    for (session, execution) in running {
        if marked.contains(&session) {
            inner.stop(session, execution);
        }
    }
}
