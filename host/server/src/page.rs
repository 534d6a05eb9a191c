//! Paging over what has seqs, in both directions.

use mainstay_core::history::Order;
use mainstay_core::id::Seq;
use mainstay_core::model::Range;
use serde::{Deserialize, Serialize};

use crate::error::{Kind, Problem};
use crate::wire::Page;

/// Items of a page that asks for no number.
pub(crate) const DEFAULT: u32 = 50;
/// Items of the largest page.
pub(crate) const MOST: u32 = 500;

/// How many items a page is to have.
pub(crate) fn limit(asked: Option<u32>) -> Result<u32, Problem> {
    match asked {
        None => Ok(DEFAULT),
        Some(limit) if (1..=MOST).contains(&limit) => Ok(limit),
        Some(limit) => Err(Problem::new(
            Kind::BadRequest,
            format!("`limit` is {limit}. Ask for 1 to {MOST} items at once."),
        )),
    }
}

/// The order in which a list is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Shown {
    #[default]
    Asc,
    Desc,
}

/// A place between two items: the one that was shown last, and which way the reader goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) shown: Shown,
    /// Against the shown order.
    pub(crate) back: bool,
    pub(crate) seq: Seq,
}

/// What to read for a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Plan {
    shown: Shown,
    back: bool,
    begun: bool,
    pub(crate) range: Range,
    pub(crate) order: Order,
}

impl Plan {
    /// For the page at `place`, or the first one.
    pub(crate) fn new(shown: Shown, place: Option<Place>) -> Self {
        let (shown, back) = place.map_or((shown, false), |place| (place.shown, place.back));
        let ascending = (shown == Shown::Asc) != back;
        // The largest seq that every store can hold.
        let all = Range {
            after: 0,
            through: i64::MAX as u64,
        };
        let range = match place {
            None => all,
            Some(place) if ascending => Range {
                after: place.seq,
                ..all
            },
            Some(place) => Range {
                through: place.seq.saturating_sub(1),
                ..all
            },
        };
        let order = if ascending {
            Order::OldestFirst
        } else {
            Order::NewestFirst
        };
        Self {
            shown,
            back,
            begun: place.is_some(),
            range,
            order,
        }
    }

    /// Makes the page of what was read: one item more than `limit` where there are more.
    pub(crate) fn page<T>(
        self,
        mut read: Vec<T>,
        limit: u32,
        seq: impl Fn(&T) -> Seq,
        cursor: impl Fn(Place) -> String,
    ) -> Page<T> {
        let more = read.len() > limit as usize;
        read.truncate(limit as usize);
        if self.back {
            read.reverse();
        }
        let forth = if self.back { true } else { more };
        let back = if self.back { more } else { self.begun };
        let place = |item: &T, back| {
            cursor(Place {
                shown: self.shown,
                back,
                seq: seq(item),
            })
        };
        Page {
            next: read.last().filter(|_| forth).map(|item| place(item, false)),
            previous: read.first().filter(|_| back).map(|item| place(item, true)),
            items: read,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(seqs: &[Seq], plan: Plan, limit: u32) -> Vec<Seq> {
        let mut found: Vec<Seq> = seqs
            .iter()
            .copied()
            .filter(|seq| *seq > plan.range.after && *seq <= plan.range.through)
            .collect();
        if plan.order == Order::NewestFirst {
            found.reverse();
        }
        found.truncate(limit as usize + 1);
        found
    }

    #[test]
    fn api_5_pages_forwards_and_backwards_have_no_repeat_and_no_hole() {
        let seqs: Vec<Seq> = (0..95).map(|at| at * 3 + 2).collect();
        for shown in [Shown::Asc, Shown::Desc] {
            let mut expected = seqs.clone();
            if shown == Shown::Desc {
                expected.reverse();
            }
            let cursor = |place: Place| crate::cursor::encode("x", &place);
            let (mut all, mut place, mut pages) = (Vec::new(), None, Vec::new());
            loop {
                let plan = Plan::new(shown, place);
                let page = plan.page(read(&seqs, plan, 10), 10, |seq| *seq, cursor);
                all.extend(page.items.clone());
                pages.push(page.clone());
                match page.next {
                    Some(next) => {
                        place = Some(crate::cursor::decode("x", &next).expect("our own cursor"))
                    }
                    None => break,
                }
            }
            assert_eq!(all, expected);
            assert_eq!(pages.len(), 10);
            assert_eq!(pages[0].previous, None);
            let mut back = pages.pop().expect("a last page");
            while let Some(previous) = back.previous {
                let place = crate::cursor::decode("x", &previous).expect("our own cursor");
                let plan = Plan::new(Shown::Asc, Some(place));
                back = plan.page(read(&seqs, plan, 10), 10, |seq| *seq, cursor);
                assert_eq!(back.items, pages.pop().expect("as many pages back").items);
            }
            assert!(pages.is_empty());
        }
    }
}
