//! What guests import, one file per interface. All of it hangs on [`Guest`], the data of one instance.

use std::sync::Arc;

use mainstay_core::plugin::Kind;
use wasmtime::component::{HasSelf, Linker, ResourceTable};
use wasmtime_wasi::{WasiCtx, WasiCtxView, WasiView};

use crate::bindings::v0_1_0 as wit;
use crate::egress::Redactor;
use crate::instance::Label;
use crate::limits::{Limiter, Limits, Use};
use crate::way::Way;

pub(crate) mod calling;
pub(crate) mod fetching;
#[allow(
    unreachable_pub,
    reason = "the bindings re-export the type behind its handle"
)]
pub mod history;
pub(crate) mod logging;
pub(crate) mod wasi;

/// The data of one instance.
pub(crate) struct Guest {
    pub(crate) limiter: Limiter,
    pub(crate) way: Way,
    pub(crate) table: ResourceTable,
    pub(crate) wasi: WasiCtx,
    pub(crate) lines: logging::Lines,
    /// Text that may still be read of the history.
    pub(crate) history: history::Allowance,
    /// Toolboxes, while a call is running.
    pub(crate) calling: Option<calling::Calling>,
    /// Toolboxes, while a call is running.
    pub(crate) reach: Option<fetching::Reach>,
}

/// Handles that one instance may hold.
pub(crate) const HANDLES_MAX: usize = 10_000;

impl Guest {
    pub(crate) fn new(
        label: Arc<Label>,
        limits: &Limits,
        use_: Use,
        wasi: WasiCtx,
        redactor: Redactor,
    ) -> Self {
        let mut table = ResourceTable::new();
        table.set_max_capacity(HANDLES_MAX);
        Self {
            limiter: Limiter::new(use_),
            way: Way::default(),
            table,
            wasi,
            lines: logging::Lines::new(label, limits.logging, redactor),
            history: history::Allowance::new(limits.runner.history_bytes),
            calling: None,
            reach: None,
        }
    }
}

impl WasiView for Guest {
    fn ctx(&mut self) -> WasiCtxView<'_> {
        WasiCtxView {
            ctx: &mut self.wasi,
            table: &mut self.table,
        }
    }
}

impl wit::types::Host for Guest {}
impl wit::manifest::Host for Guest {}
impl wit::http::Host for Guest {}

/// All that a plugin of this kind can be given. Which of it a component may import is
/// `inspect`'s to say; WASI is inert unless the instance's context says otherwise.
pub(crate) fn link(linker: &mut Linker<Guest>, kind: Kind) -> wasmtime::Result<()> {
    wasmtime_wasi::p2::add_to_linker_async(linker)?;
    wit::types::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
    wit::manifest::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
    wit::logging::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
    wit::http::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
    match kind {
        Kind::Runner => {
            wit::history::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
        }
        Kind::Provider => {}
        Kind::Toolbox => {
            wit::calling::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
            wit::fetching::add_to_linker::<_, HasSelf<_>>(linker, |guest| guest)?;
        }
    }
    Ok(())
}
