//! `mainstay:plugin/history`: what a runner reads, over core's `HistoryReader`.

use std::sync::Arc;

use mainstay_core::BoxError;
use mainstay_core::plugin::HistoryReader;
use wasmtime::component::Resource;

use super::Guest;
use crate::bindings::convert;
use crate::bindings::v0_1_0::{history, types};
use crate::limits::Breach;

/// What stands behind a guest's handle.
#[allow(unreachable_pub, reason = "the bindings re-export it")]
pub struct History(pub(crate) Arc<dyn HistoryReader>);

/// Items of one page.
const PAGE_ITEMS: u32 = 1_000;
/// Bytes of media that are read at once.
const MEDIA_BYTES: u32 = 1 << 20;

/// Bytes that a decision may still read.
pub(crate) struct Allowance {
    limit: u64,
    left: u64,
}

impl Allowance {
    pub(crate) fn new(limit: u64) -> Self {
        Self { limit, left: limit }
    }

    fn spend(&mut self, bytes: u64) -> Result<(), Breach> {
        match self.left.checked_sub(bytes) {
            Some(left) => {
                self.left = left;
                Ok(())
            }
            None => Err(Breach::output(
                "history reading",
                usize::try_from(self.limit).unwrap_or(usize::MAX),
            )),
        }
    }
}

/// The host could not read; not the guest's fault.
#[derive(Debug, thiserror::Error)]
#[error("the session's history could not be read")]
pub(crate) struct Unreadable(#[source] BoxError);

impl Guest {
    fn reader(&self, handle: &Resource<History>) -> wasmtime::Result<Arc<dyn HistoryReader>> {
        Ok(Arc::clone(&self.table.get(handle)?.0))
    }
}

impl history::Host for Guest {}

impl history::HostHistory for Guest {
    async fn read(
        &mut self,
        handle: Resource<History>,
        items: types::Range,
        order: history::Order,
        limit: u32,
    ) -> wasmtime::Result<history::Page> {
        let reader = self.reader(&handle)?;
        let (items, more) = reader
            .read(items.into(), order.into(), limit.min(PAGE_ITEMS))
            .await
            .map_err(Unreadable)?;
        // What an item takes besides its text, so that empty ones are not free.
        let overhead = 64 * items.len() as u64;
        let bytes: u64 = items
            .iter()
            .map(mainstay_core::history::Item::text_bytes)
            .sum();
        self.history.spend(bytes + overhead)?;
        Ok(history::Page {
            items: convert::list(items),
            more,
        })
    }

    async fn measure(
        &mut self,
        handle: Resource<History>,
        items: types::Range,
    ) -> wasmtime::Result<history::Size> {
        let reader = self.reader(&handle)?;
        let size = reader.measure(items.into()).await.map_err(Unreadable)?;
        Ok(size.into())
    }

    async fn read_media(
        &mut self,
        handle: Resource<History>,
        digest: String,
        offset: u64,
        length: u32,
    ) -> wasmtime::Result<Option<Vec<u8>>> {
        let reader = self.reader(&handle)?;
        let bytes = reader
            .read_media(&digest, offset, length.min(MEDIA_BYTES))
            .await
            .map_err(Unreadable)?;
        self.history
            .spend(bytes.as_ref().map_or(0, Vec::len) as u64)?;
        Ok(bytes)
    }

    async fn drop(&mut self, handle: Resource<History>) -> wasmtime::Result<()> {
        self.table.delete(handle)?;
        Ok(())
    }
}
