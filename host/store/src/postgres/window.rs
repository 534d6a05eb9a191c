//! Items of the sessions that this process runs: what an execution reads again with each step. As long as
//! a session has the claim that was taken here, its items are written by commits of this process alone,
//! so that these tell all that is new, and an item once written stays as it is. A window holds the items
//! behind a seq; what is before it is read from the database, once if there is room for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use mainstay_core::commit::{Commit, Write};
use mainstay_core::history::{Item, Order, Size};
use mainstay_core::id::{ExecutionId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::tail::{Changes, Tail};

/// Windows at once. Those of executions that were dropped without a terminal are among them.
const MANY: usize = 4096;
/// Bytes of one window.
const LARGE: usize = 1 << 20;
/// Bytes of all.
const LARGE_ALL: usize = 64 << 20;
/// What an item takes beside its text, more or less.
const ITEM: usize = 256;

#[derive(Default)]
pub(super) struct Windows(Mutex<All>);

#[derive(Default)]
struct All {
    windows: HashMap<SessionId, Window>,
    bytes: usize,
}

/// The newest items of a session under one claim.
pub(super) struct Window {
    execution: ExecutionId,
    /// All items with a greater seq are here, and no others.
    after: Seq,
    /// In the order of the log.
    items: Vec<Arc<Item>>,
    bytes: usize,
    /// Commits that it has followed.
    followed: u64,
}

/// A window that did not hold what was asked, as it was then.
#[derive(Clone, Copy)]
pub(super) struct Missed(Option<u64>);

impl Windows {
    /// Takes a session's window out while something is written: who reads meanwhile asks the database.
    pub(super) fn take(&self, session: SessionId) -> Option<Window> {
        let mut all = self.all();
        let window = all.windows.remove(&session)?;
        all.bytes -= window.bytes;
        Some(window)
    }

    pub(super) fn put(&self, session: SessionId, window: Option<Window>) {
        let Some(mut window) = window else {
            return;
        };
        let mut all = self.all();
        if all.windows.len() >= MANY {
            all.windows.clear();
            all.bytes = 0;
        }
        if all.bytes + window.bytes > LARGE_ALL {
            window.shrink(0);
        }
        all.bytes += window.bytes;
        if let Some(before) = all.windows.insert(session, window) {
            all.bytes -= before.bytes;
        }
    }

    /// Forgets a session's window, unless it is of the claim that the session has.
    pub(super) fn keep_of(&self, session: SessionId, claim: Option<ExecutionId>) {
        let mut all = self.all();
        let window = all.windows.get(&session);
        if window.is_some_and(|window| Some(window.execution) != claim)
            && let Some(window) = all.windows.remove(&session)
        {
            all.bytes -= window.bytes;
        }
    }

    /// Items of a range, as [`mainstay_core::port::Store::items`] gives them.
    pub(super) fn items(
        &self,
        session: SessionId,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<Vec<Item>, Missed> {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        let found: Vec<Arc<Item>> = {
            let all = self.all();
            let items = all.within(session, range)?.iter();
            match order {
                Order::OldestFirst => items.take(limit).cloned().collect(),
                Order::NewestFirst => items.rev().take(limit).cloned().collect(),
            }
        };
        Ok(found.into_iter().map(Arc::unwrap_or_clone).collect())
    }

    /// How much a range holds.
    pub(super) fn measure(&self, session: SessionId, range: Range) -> Result<Size, Missed> {
        let all = self.all();
        let items = all.within(session, range)?;
        Ok(items.iter().fold(Size::default(), |size, item| Size {
            items: size.items + 1,
            bytes: size.bytes + item.text_bytes(),
        }))
    }

    /// Takes in what the database gave instead, if nothing was written meanwhile.
    pub(super) fn fill(
        &self,
        session: SessionId,
        missed: Missed,
        range: Range,
        (order, limit): (Order, u32),
        found: &[Item],
    ) {
        let mut all = self.all();
        let room = LARGE_ALL.saturating_sub(all.bytes);
        let window = all.windows.get_mut(&session);
        let Some(window) = window.filter(|window| missed.0 == Some(window.followed)) else {
            return;
        };
        let whole = found.len() < usize::try_from(limit).unwrap_or(usize::MAX);
        let after = match (order, found.last()) {
            _ if whole => range.after,
            // There may be more of the oldest one's seq.
            (Order::NewestFirst, Some(oldest)) => oldest.seq,
            _ => return,
        };
        if after >= window.after || range.through < window.after {
            return;
        }
        let mut older: Vec<Arc<Item>> = found
            .iter()
            .filter(|item| item.seq > after && item.seq <= window.after)
            .map(|item| Arc::new(item.clone()))
            .collect();
        let bytes: usize = older.iter().map(|item| weight(item)).sum();
        if bytes > room || window.bytes + bytes > LARGE {
            return;
        }
        if order == Order::NewestFirst {
            older.reverse();
        }
        window.items.splice(..0, older);
        window.bytes += bytes;
        window.after = after;
        all.bytes += bytes;
    }

    fn all(&self) -> MutexGuard<'_, All> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl All {
    fn within(&self, session: SessionId, range: Range) -> Result<&[Arc<Item>], Missed> {
        let window = self.windows.get(&session).ok_or(Missed(None))?;
        if range.after < window.after {
            return Err(Missed(Some(window.followed)));
        }
        let behind = |seq: Seq| window.items.partition_point(|item| item.seq <= seq);
        let first = behind(range.after);
        Ok(&window.items[first..behind(range.through).max(first)])
    }
}

/// The window after a commit that was stored.
pub(super) fn followed(
    window: Option<Window>,
    commit: &Commit,
    tail: &Tail,
    changes: &Changes,
) -> Option<Window> {
    let claim = tail.claim.as_ref().filter(|claim| !claim.ended)?;
    if let Write::Claim { execution, .. } = &commit.write
        && *execution == claim.execution
    {
        return Some(Window {
            execution: claim.execution,
            after: tail.session.head,
            items: Vec::new(),
            bytes: 0,
            followed: 0,
        });
    }
    let mut window = window.filter(|window| window.execution == claim.execution)?;
    window.follow(changes);
    Some(window)
}

impl Window {
    fn follow(&mut self, changes: &Changes) {
        self.followed += 1;
        if let Some(through) = changes.drop_items_after {
            let kept = self.items.partition_point(|item| item.seq <= through);
            let gone = self.items.drain(kept..);
            self.bytes -= gone.map(|item| weight(&item)).sum::<usize>();
        }
        for item in changes.items.iter().filter(|item| item.seq > self.after) {
            // An answer may come in behind the results of its calls.
            let at = self.items.partition_point(|other| other.seq <= item.seq);
            self.bytes += weight(item);
            self.items.insert(at, Arc::new(item.clone()));
        }
        if self.bytes > LARGE {
            self.shrink(LARGE / 2);
        }
    }

    /// Gives up the oldest items until it is no larger.
    fn shrink(&mut self, most: usize) {
        let mut gone = 0;
        while let Some(item) = self.items.get(gone)
            && (self.bytes > most || item.seq == self.after)
        {
            self.bytes -= weight(item);
            self.after = item.seq;
            gone += 1;
        }
        self.items.drain(..gone);
    }
}

fn weight(item: &Item) -> usize {
    ITEM.saturating_add(usize::try_from(item.text_bytes()).unwrap_or(usize::MAX >> 1))
}

#[cfg(test)]
mod tests {
    use mainstay_core::history::ItemBody;
    use mainstay_core::model::Part;

    use super::*;

    const ALL: Range = Range {
        after: 0,
        through: Seq::MAX,
    };

    fn note(seq: Seq, bytes: usize) -> Item {
        Item {
            seq,
            at: 0,
            body: ItemBody::Note(vec![Part::Text("x".repeat(bytes))]),
        }
    }

    fn changes(items: &[Item]) -> Changes {
        Changes {
            items: items.to_vec(),
            ..Changes::default()
        }
    }

    /// A session's window behind seq 10, kept.
    fn begun() -> (Windows, SessionId) {
        let (windows, session) = (Windows::default(), SessionId::new());
        let window = Window {
            execution: ExecutionId::new(),
            after: 10,
            items: Vec::new(),
            bytes: 0,
            followed: 0,
        };
        windows.put(session, Some(window));
        (windows, session)
    }

    fn write(windows: &Windows, session: SessionId, changes: &Changes) {
        let mut window = windows.take(session);
        if let Some(window) = &mut window {
            window.follow(changes);
        }
        windows.put(session, window);
    }

    fn seqs(windows: &Windows, session: SessionId, after: Seq) -> Option<Vec<Seq>> {
        let range = Range { after, ..ALL };
        let items = windows.items(session, range, Order::OldestFirst, 100);
        Some(items.ok()?.iter().map(|item| item.seq).collect())
    }

    #[test]
    fn what_is_older_is_taken_in_unless_something_was_written_since() {
        let (windows, session) = begun();
        let older = [note(3, 1), note(9, 1)];
        let oldest = (Order::OldestFirst, 100);
        let Err(missed) = windows.items(session, ALL, Order::OldestFirst, 100) else {
            panic!("it holds nothing from before seq 10");
        };
        // An answer that began before, and came in after what was read.
        write(
            &windows,
            session,
            &changes(&[note(5, 1), note(12, 1), note(11, 1)]),
        );
        windows.fill(session, missed, ALL, oldest, &older);
        assert_eq!(seqs(&windows, session, 0), None);
        assert_eq!(seqs(&windows, session, 10), Some(vec![11, 12]));

        let Err(missed) = windows.measure(session, ALL) else {
            panic!("it holds nothing from before seq 10");
        };
        let older = [note(3, 1), note(5, 1), note(9, 1), note(11, 1)];
        let gap = Range {
            after: 0,
            through: 9,
        };
        windows.fill(session, missed, gap, oldest, &older);
        assert_eq!(seqs(&windows, session, 0), None, "of 10 nothing is known");
        let full = (Order::OldestFirst, 4);
        windows.fill(session, missed, ALL, full, &older);
        assert_eq!(seqs(&windows, session, 0), None, "there may be more");
        windows.fill(session, missed, ALL, oldest, &older);
        assert_eq!(seqs(&windows, session, 0), Some(vec![3, 5, 9, 11, 12]));
        let size = windows.measure(session, ALL).ok().unwrap();
        assert_eq!((size.items, size.bytes), (5, 5));

        let reverted = Changes {
            drop_items_after: Some(9),
            ..changes(&[note(13, 1)])
        };
        write(&windows, session, &reverted);
        assert_eq!(seqs(&windows, session, 0), Some(vec![3, 5, 9, 13]));
    }

    #[test]
    fn the_oldest_are_given_up_where_there_is_no_room() {
        let (windows, session) = begun();
        let half = LARGE / 2 - ITEM;
        write(
            &windows,
            session,
            &changes(&[note(11, half), note(12, half)]),
        );
        assert_eq!(seqs(&windows, session, 10), Some(vec![11, 12]));
        // All of a seq, or nothing of it.
        write(
            &windows,
            session,
            &changes(&[note(13, 1), note(13, half), note(14, 1)]),
        );
        assert_eq!(seqs(&windows, session, 12), None);
        assert_eq!(seqs(&windows, session, 13), Some(vec![14]));
        let kept = windows.all().bytes;
        assert_eq!(kept, ITEM + 1);
        assert!(windows.take(session).is_some());
        assert_eq!(windows.all().bytes, 0);
    }
}
