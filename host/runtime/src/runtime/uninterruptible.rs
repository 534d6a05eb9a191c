//! A runtime whose guests cannot be stopped. No node has one: it is there to compare with, so that it is
//! known what it costs that guests can be.

use std::sync::Arc;

use mainstay_core::BoxError;

use super::{Runtime, RuntimeConfig};
use crate::egress::Egress;
use crate::engine::{self, Guests};
use crate::registry::ComponentSource;

impl Runtime {
    /// As [`Self::new`], but without the looks of guests at the clock: no limit of CPU time holds, and a
    /// guest that never answers keeps its thread for ever.
    ///
    /// # Errors
    /// As [`Self::new`].
    pub fn uninterruptible(
        config: RuntimeConfig,
        source: Arc<dyn ComponentSource>,
        egress: Arc<Egress>,
    ) -> Result<Self, BoxError> {
        let engine = engine::engine(config.instances, Guests::Uninterruptible)?;
        Self::on(engine, config, source, egress)
    }
}
