//! Removes what nothing needs any more, from the store and from the folder of compiled code, which do
//! not know each other, and what is past its retention.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::port::{Clock as _, StoreError, SystemClock};
use mainstay_core::renewal::NODE_KEPT;
use mainstay_server::wire::{Collect, Collected, CollectedComponent};
use mainstay_store::{Retained, Retention};

use crate::backing::Backing;
use crate::plugins::Plugins;

/// How long what was in use stays unless told otherwise.
const KEEP: Duration = Duration::from_secs(3600);
/// How often a server applies the retention.
const EVERY: Duration = Duration::from_secs(3600);

/// The collector of one store.
pub(crate) struct Collector {
    store: Backing,
    plugins: Arc<Plugins>,
    keep: Keep,
}

/// How long sessions and bodies stay; `None` is for ever.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Keep {
    pub(crate) sessions: Option<Duration>,
    pub(crate) bodies: Option<Duration>,
}

impl Keep {
    fn retention(self) -> Retention {
        let now = SystemClock::default().wall();
        let before = |keep| now.saturating_sub(ms(keep));
        Retention {
            sessions_before: self.sessions.map(before),
            bodies_before: self.bodies.map(before),
        }
    }

    /// Applies it to the store again and again. Without a retention it ends at once.
    pub(crate) async fn apply(self, store: Backing) {
        if self == Self::default() {
            return;
        }
        loop {
            match store.retain(self.retention(), false).await {
                Ok(done) if done == Retained::default() => {}
                Ok(Retained {
                    sessions,
                    bodies,
                    body_bytes,
                    ..
                }) => tracing::info!(sessions, bodies, body_bytes, "the retention was applied"),
                Err(error) => {
                    tracing::warn!(
                        error = mainstay_core::chain(&error),
                        "the retention was not applied"
                    );
                }
            }
            tokio::time::sleep(EVERY).await;
        }
    }
}

impl Collector {
    pub(crate) fn new(store: Backing, plugins: Arc<Plugins>, keep: Keep) -> Self {
        Self {
            store,
            plugins,
            keep,
        }
    }

    /// Removes the rows of nodes that ended long ago.
    async fn nodes(&self, dry_run: bool) -> Result<u64, StoreError> {
        let (store, past) = (self.store.port(), ms(NODE_KEPT));
        if !dry_run {
            return store.nodes_forget(past).await;
        }
        let (rows, now) = store.nodes().await?;
        let ended = rows.iter().filter_map(|row| row.ended_at(now));
        Ok(ended.filter(|at| at.saturating_add(past) < now).count() as u64)
    }
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[async_trait]
impl mainstay_server::Collector for Collector {
    async fn collect(&self, ask: Collect) -> Result<Collected, BoxError> {
        let retention = Keep {
            sessions: ask
                .sessions_ms
                .map(Duration::from_millis)
                .or(self.keep.sessions),
            bodies: ask
                .bodies_ms
                .map(Duration::from_millis)
                .or(self.keep.bodies),
        }
        .retention();
        // First, so that what only old sessions needed goes with them.
        let retained = self.store.retain(retention, ask.dry_run).await?;
        let keep = ask.keep_ms.map_or(KEEP, Duration::from_millis);
        let found = self.store.collect(keep, ask.dry_run).await?;
        if !ask.dry_run {
            for component in &found.components {
                self.plugins.forget(&component.digest);
            }
        }
        // After the components, so that their code goes with them.
        let code = self.plugins.sweep(found.kept, ask.dry_run).await?;
        let nodes = self.nodes(ask.dry_run).await?;
        let components: Vec<CollectedComponent> = found
            .components
            .into_iter()
            .map(|component| CollectedComponent {
                digest: component.digest,
                kind: component.kind,
                name: component.name,
                version: component.version,
                bytes: component.bytes,
            })
            .collect();
        let of_components: u64 = components.iter().map(|component| component.bytes).sum();
        Ok(Collected {
            dry_run: ask.dry_run,
            components,
            code_files: code.files,
            code_bytes: code.bytes,
            blobs: found.blobs,
            blob_bytes: found.blob_bytes,
            sessions: retained.sessions,
            bodies: retained.bodies,
            body_bytes: retained.body_bytes,
            nodes,
            bytes: of_components + code.bytes + found.blob_bytes + retained.body_bytes,
        })
    }
}
