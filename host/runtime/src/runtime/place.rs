//! An instance for each call, and a place for each instance.

use std::sync::Arc;

use tokio::sync::Semaphore;
use wasmtime_wasi::WasiCtx;

use super::{Loaded, Runtime};
use crate::host::{Guest, wasi};
use crate::instance::{Instance, Place, Stay};
use crate::limits::Use;

impl Runtime {
    /// A place of its own for a guest.
    async fn place(&self, stay: Stay) -> Place {
        let acquire = async |places: &Arc<Semaphore>| {
            let place = Arc::clone(places).acquire_owned().await;
            place.expect("the places are never closed")
        };
        // First, so that whoever waits for it keeps no other out.
        let lasting = match stay {
            Stay::Short => None,
            Stay::Lasting => Some(acquire(&self.lasting).await),
        };
        Place {
            _one: acquire(&self.places).await,
            _lasting: lasting,
        }
    }

    pub(super) async fn instance(
        &self,
        loaded: &Loaded,
        use_: Use,
        wasi: WasiCtx,
        stay: Stay,
    ) -> Instance {
        let place = self.place(stay).await;
        let guest = Guest::new(
            Arc::clone(&loaded.label),
            &self.config.limits,
            use_,
            wasi,
            self.egress.redactor().clone(),
        );
        Instance::new(&self.engine, guest, Arc::clone(&loaded.label), place)
    }

    /// An instance that sees nothing but what it is called with.
    pub(super) async fn pure(&self, loaded: &Loaded, use_: Use) -> Instance {
        self.pure_for(loaded, use_, Stay::Short).await
    }

    pub(super) async fn pure_for(&self, loaded: &Loaded, use_: Use, stay: Stay) -> Instance {
        let wasi = wasi::inert(&loaded.info.digest, 0);
        self.instance(loaded, use_, wasi, stay).await
    }
}

/// How many of so many places guests may have that last.
pub(super) fn lasting(instances: u32) -> usize {
    let kept = (instances / 8).max(1);
    (instances.saturating_sub(kept) as usize).max(1)
}
