//! A session's history as a runner reads it while it is asked: what the store has, with what is to be
//! committed together with the answer laid over it.

use std::collections::BTreeSet;
use std::sync::Arc;

use async_trait::async_trait;

use crate::BoxError;
use crate::history::{Item, Order, Size};
use crate::id::{Seq, SessionId};
use crate::model::Range;
use crate::plugin::HistoryReader;
use crate::port::Store;

/// Where an overlay finds what lies below it.
#[async_trait]
pub trait Stored: Send + Sync {
    /// As [`Store::items`].
    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, BoxError>;
    /// As [`Store::measure`].
    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, BoxError>;
    /// As [`Store::blob`].
    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError>;
}

/// What a store holds now, for an execution that holds the session's claim.
pub struct InStore(pub Arc<dyn Store>);

#[async_trait]
impl Stored for InStore {
    async fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, BoxError> {
        Ok(self.0.items_held(session, range, order, limit).await?)
    }

    async fn measure(&self, session: SessionId, range: Range) -> Result<Size, BoxError> {
        Ok(self.0.measure_held(session, range).await?)
    }

    async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(self.0.blob(digest).await?)
    }
}

/// Items of one session up to a fixed seq.
pub struct Overlay {
    stored: Arc<dyn Stored>,
    session: SessionId,
    /// Nothing behind this seq is shown.
    through: Seq,
    /// Not stored yet, in the order of their seqs.
    items: Vec<Item>,
}

/// Bytes of text after which a page ends.
const PAGE_BYTES: u64 = 256 * 1024;

impl Overlay {
    /// The history of `session` through `through`, with `items` that the store does not have yet.
    #[must_use]
    pub fn new(store: Arc<dyn Store>, session: SessionId, through: Seq, items: Vec<Item>) -> Self {
        Self::on(Arc::new(InStore(store)), session, through, items)
    }

    /// As [`Self::new`], over something else than a store.
    #[must_use]
    pub fn on(
        stored: Arc<dyn Stored>,
        session: SessionId,
        through: Seq,
        mut items: Vec<Item>,
    ) -> Self {
        items.sort_by_key(|item| item.seq);
        Self {
            stored,
            session,
            through,
            items,
        }
    }

    fn clamp(&self, range: Range) -> Range {
        Range {
            after: range.after,
            through: range.through.min(self.through),
        }
    }

    fn over(&self, range: Range) -> impl Iterator<Item = &Item> {
        self.items
            .iter()
            .filter(move |item| item.seq > range.after && item.seq <= range.through)
    }

    /// Seqs of items that the store has by now: while a slow runner still reads, they are committed.
    async fn held(&self, range: Range) -> Result<BTreeSet<Seq>, BoxError> {
        let seqs: BTreeSet<Seq> = self.over(range).map(|item| item.seq).collect();
        let (Some(first), Some(last)) = (seqs.first(), seqs.last()) else {
            return Ok(seqs);
        };
        let span = Range {
            after: first - 1,
            through: *last,
        };
        let order = Order::OldestFirst;
        let stored = self.stored.items(self.session, span, order, 1000).await?;
        let stored = stored.iter().map(|item| item.seq);
        Ok(stored.filter(|seq| seqs.contains(seq)).collect())
    }
}

#[async_trait]
impl HistoryReader for Overlay {
    async fn read(
        &self,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<(Vec<Item>, bool), BoxError> {
        let range = self.clamp(range);
        let limit = limit.clamp(1, 1000);
        if range.after >= range.through {
            return Ok((Vec::new(), false));
        }
        let mut items = self
            .stored
            .items(self.session, range, order, limit + 1)
            .await?;
        items.retain(|item| self.items.iter().all(|over| over.seq != item.seq));
        items.extend(self.over(range).cloned());
        items.sort_by_key(|item| item.seq);
        if order == Order::NewestFirst {
            items.reverse();
        }
        let (mut bytes, mut taken) = (0, 0);
        for item in &items {
            if taken == limit as usize || bytes > PAGE_BYTES {
                break;
            }
            bytes += item.text_bytes();
            taken += 1;
        }
        let more = taken < items.len();
        items.truncate(taken);
        Ok((items, more))
    }

    async fn measure(&self, range: Range) -> Result<Size, BoxError> {
        let range = self.clamp(range);
        let mut held = BTreeSet::new();
        loop {
            let mut size = self.stored.measure(self.session, range).await?;
            let now = self.held(range).await?;
            if now != held {
                // Whether what was stored meanwhile was measured is not known: not before these are.
                held = now;
                continue;
            }
            for item in self.over(range).filter(|item| !held.contains(&item.seq)) {
                size.items += 1;
                size.bytes += item.text_bytes();
            }
            return Ok(size);
        }
    }

    async fn read_media(
        &self,
        digest: &str,
        offset: u64,
        length: u32,
    ) -> Result<Option<Vec<u8>>, BoxError> {
        const MOST: usize = 1024 * 1024;
        let Some(bytes) = self.stored.blob(digest).await? else {
            return Ok(None);
        };
        let start = usize::try_from(offset)
            .unwrap_or(usize::MAX)
            .min(bytes.len());
        let end = start
            .saturating_add((length as usize).min(MOST))
            .min(bytes.len());
        Ok(Some(bytes[start..end].to_vec()))
    }
}
