//! Removes what nothing needs any more, from the store and from the folder of compiled code, which do
//! not know each other.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_server::wire::{Collect, Collected, CollectedComponent};
use mainstay_store::SqliteStore;

use crate::plugins::Plugins;

/// How long what was in use stays unless told otherwise.
const KEEP: Duration = Duration::from_secs(3600);

/// The collector of one store.
pub(crate) struct Collector {
    store: Arc<SqliteStore>,
    plugins: Arc<Plugins>,
}

impl Collector {
    pub(crate) fn new(store: Arc<SqliteStore>, plugins: Arc<Plugins>) -> Self {
        Self { store, plugins }
    }
}

#[async_trait]
impl mainstay_server::Collector for Collector {
    async fn collect(&self, ask: Collect) -> Result<Collected, BoxError> {
        let keep = ask.keep_ms.map_or(KEEP, Duration::from_millis);
        let found = self.store.collect(keep, ask.dry_run).await?;
        if !ask.dry_run {
            for component in &found.components {
                self.plugins.forget(&component.digest);
            }
        }
        // After the components, so that their code goes with them.
        let code = self.plugins.sweep(found.kept, ask.dry_run).await?;
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
            bytes: of_components + code.bytes + found.blob_bytes,
        })
    }
}
