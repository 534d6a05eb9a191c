//! A session's history as a runner reads it while it is asked: what the store has, with what is to be
//! committed together with the answer laid over it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use async_trait::async_trait;

use crate::BoxError;
use crate::history::{Item, Order, Size};
use crate::id::{Digest, Seq, SessionId};
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
    named: Mutex<Named>,
}

/// The media that items refer to, as far as these were looked at.
#[derive(Default)]
struct Named {
    digests: BTreeSet<Digest>,
    /// All items were.
    all: bool,
}

/// Bytes of text after which a page ends.
const PAGE_BYTES: u64 = 256 * 1024;
/// Items of a page.
const PAGE_ITEMS: u32 = 1000;

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
            named: Mutex::default(),
        }
    }

    fn named(&self) -> MutexGuard<'_, Named> {
        self.named.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn note<'i>(&self, items: impl IntoIterator<Item = &'i Item>) {
        let media = items.into_iter().flat_map(Item::media);
        let digests = media.map(|media| media.digest.clone());
        self.named().digests.extend(digests);
    }

    /// Whether an item that is shown refers to a media. What was read is known; for others the items
    /// are looked through, from the newest on and once.
    async fn names(&self, digest: &str) -> Result<bool, BoxError> {
        self.note(&self.items);
        let mut range = Range {
            after: 0,
            through: self.through,
        };
        loop {
            {
                let mut named = self.named();
                if named.digests.contains(digest) {
                    return Ok(true);
                }
                named.all |= range.through == 0;
                if named.all {
                    return Ok(false);
                }
            }
            let order = Order::NewestFirst;
            let page = self.stored.items(self.session, range, order, PAGE_ITEMS);
            let page = page.await?;
            self.note(&page);
            range.through = page.last().map_or(0, |item| item.seq - 1);
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
        let stored = self.stored.items(self.session, span, order, PAGE_ITEMS);
        let stored = stored.await?;
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
        let limit = limit.clamp(1, PAGE_ITEMS);
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
        self.note(&items);
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
        // The store keeps the media of all sessions under their digests.
        if !self.names(digest).await? {
            return Ok(None);
        }
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::history::ItemBody;
    use crate::model::{Media, Part, ToolOutcome, ToolResult};

    /// Has every blob: its digest's bytes.
    struct Fake {
        items: Vec<Item>,
        pages: AtomicUsize,
    }

    #[async_trait]
    impl Stored for Fake {
        async fn items(
            &self,
            _: SessionId,
            range: Range,
            _: Order,
            limit: u32,
        ) -> Result<Vec<Item>, BoxError> {
            self.pages.fetch_add(1, Ordering::Relaxed);
            let shown = |item: &&Item| item.seq > range.after && item.seq <= range.through;
            let items = self.items.iter().rev().filter(shown);
            Ok(items.take(limit as usize).cloned().collect())
        }

        async fn measure(&self, _: SessionId, _: Range) -> Result<Size, BoxError> {
            Ok(Size::default())
        }

        async fn blob(&self, digest: &str) -> Result<Option<Vec<u8>>, BoxError> {
            Ok(Some(digest.as_bytes().to_vec()))
        }
    }

    fn media(digest: &str) -> Media {
        Media {
            digest: digest.into(),
            media_type: "text/plain".into(),
            size: digest.len() as u64,
            name: None,
        }
    }

    fn with(seq: Seq, digest: &str) -> Item {
        let body = match seq % 2 {
            0 => ItemBody::User(vec![Part::Media(media(digest))]),
            _ => ItemBody::ToolResult(ToolResult {
                call: "c".into(),
                tool: "t".into(),
                outcome: ToolOutcome::Succeeded,
                output: Vec::new(),
                whole: Some(media(digest)),
            }),
        };
        Item { seq, at: 0, body }
    }

    #[tokio::test]
    async fn only_media_that_a_shown_item_refers_to_are_read() {
        let mut items = vec![with(1, "oldest"), with(2, "old")];
        items.extend((3..3000).map(|seq| with(seq, "many")));
        items.push(with(5000, "behind"));
        let pages = AtomicUsize::new(0);
        let stored = Arc::new(Fake { items, pages });
        let history = Overlay::on(
            Arc::clone(&stored) as _,
            SessionId::new(),
            4000,
            vec![with(4000, "new")],
        );
        let read = async |digest| history.read_media(digest, 0, 100).await.unwrap();
        for digest in ["new", "many", "old", "oldest"] {
            assert_eq!(read(digest).await.as_deref(), Some(digest.as_bytes()));
        }
        for digest in ["behind", "another session's"] {
            assert_eq!(read(digest).await, None, "{digest}");
        }
        let looked = stored.pages.load(Ordering::Relaxed);
        assert_eq!(read("another's again").await, None);
        assert_eq!(
            stored.pages.load(Ordering::Relaxed),
            looked,
            "once is enough"
        );
    }
}
