//! Two stores are fed the same random commits and must never disagree.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use futures::future::join_all;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::{Event, EventBody, KINDS};
use mainstay_core::history::Order;
use mainstay_core::id::{EventId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::outbox::Notice;
use mainstay_core::port::{Committed, Dump, StoreError};
use mainstay_core::tail::Tail;

use crate::plan::Plan;
use crate::{Harness, check_invariants};

/// Every kind of write that a plan makes.
const WRITES: &[&str] = &[
    "Create",
    "Admit",
    "CancelInput",
    "Redeliver",
    "Wake",
    "Release",
    "Answer",
    "Fire",
    "Cancel",
    "Replay",
    "Adopt",
    "Fork",
    "Revert",
    "ClearRevert",
    "Deliver",
    "Claim",
    "Append",
    "Interrupt",
    "Recover",
    "Quarantine",
    "Expire",
];

/// What became of the commits of some seeds.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    pub commits: usize,
    pub accepted: usize,
    /// By kind of write: accepted, of these with events, and refused.
    pub writes: BTreeMap<String, (usize, usize, usize)>,
    /// Types of the events that were written.
    pub events: BTreeSet<String>,
}

impl Tally {
    /// Adds what became of another seed's commits.
    pub fn add(&mut self, other: Self) {
        self.commits += other.commits;
        self.accepted += other.accepted;
        for (write, (accepted, effective, refused)) in other.writes {
            let sum = self.writes.entry(write).or_default();
            *sum = (sum.0 + accepted, sum.1 + effective, sum.2 + refused);
        }
        self.events.extend(other.events);
    }

    fn count(&mut self, commit: &Commit, answer: &Result<Committed, StoreError>) {
        self.commits += 1;
        let write = self.writes.entry(name(&commit.write)).or_default();
        match answer {
            Ok(done) => {
                self.accepted += 1;
                write.0 += 1;
                write.1 += usize::from(!done.events.is_empty());
                self.events
                    .extend(done.events.iter().map(|event| event.body.kind()));
            }
            Err(_) => write.2 += 1,
        }
    }

    /// That the plans were neither tame nor wild: of every kind of write some were accepted, some of
    /// those wrote events, some were refused, and events of every type came out.
    ///
    /// # Panics
    /// With what was missing.
    pub fn check(&self) {
        for write in WRITES {
            let (accepted, effective, refused) =
                self.writes.get(*write).copied().unwrap_or_default();
            assert!(accepted > 0, "no {write} was accepted: {self:#?}");
            assert!(refused > 0, "no {write} was refused: {self:#?}");
            // A take-over changes the claim alone.
            assert!(
                effective > 0 || *write == "Expire",
                "no {write} wrote an event: {self:#?}"
            );
        }
        let missing: Vec<_> = KINDS
            .iter()
            .filter(|kind| !self.events.contains(**kind))
            .collect();
        assert!(
            missing.is_empty(),
            "no plan wrote events of these types: {missing:?}"
        );
    }
}

fn name(write: &Write) -> String {
    let text = format!("{write:?}");
    let end = text.find(|c: char| !c.is_ascii_alphanumeric());
    text[..end.unwrap_or(text.len())].into()
}

/// Feeds two stores that go by one clock the same random commits, good and bad, some alone and some
/// many at once, and compares every answer and, at the end, every row.
pub async fn store_2(a: &Harness, b: &Harness, seed: u64, commits: usize) -> Tally {
    assert!(
        std::sync::Arc::ptr_eq(&a.clock, &b.clock),
        "both go by one clock"
    );
    let mut plan = Plan::new(seed);
    let mut tally = Tally::default();
    let mut twins = Twins::default();
    while tally.commits < commits {
        let burst = plan.burst(a.store.as_ref()).await;
        let from_a = join_all(burst.iter().map(|commit| a.store.commit(commit.clone()))).await;
        let for_b = burst.iter().map(|commit| twins.commit(commit));
        let from_b = join_all(for_b.map(|commit| b.store.commit(commit))).await;
        for ((commit, a), b) in burst.iter().zip(from_a).zip(from_b) {
            tally.count(commit, &a);
            if let (Ok(a), Ok(b)) = (&a, &b) {
                twins.meet(&a.events, &b.events);
            }
            let same = Twins::default();
            assert_eq!(
                answer(a, &same),
                answer(b, &twins),
                "seed {seed}: {commit:#?}"
            );
        }
        let written: BTreeSet<SessionId> = burst.iter().map(|commit| commit.session).collect();
        for session in written {
            what_is_held_is_what_is_stored(b, session, seed, tally.commits).await;
        }
        if plan.one_in(3) {
            let lease = [1, 5_000, 40_000, 40_000, 40_000][plan.below(5)];
            let (ra, rb) = (
                a.store
                    .renew(plan.owner, &plan.fences, lease)
                    .await
                    .unwrap(),
                b.store
                    .renew(plan.owner, &plan.fences, lease)
                    .await
                    .unwrap(),
            );
            assert_eq!(ra, rb, "seed {seed}");
        }
        if let Some(pause) = plan.pause() {
            a.clock.advance(pause);
        }
        if plan.one_in(40) {
            let session = plan.session();
            assert_eq!(
                a.store.delete(session).await.unwrap(),
                b.store.delete(session).await.unwrap()
            );
        }
        assert_eq!(
            a.store.scan(4).await.unwrap(),
            b.store.scan(4).await.unwrap(),
            "seed {seed}"
        );
    }
    for session in plan.sessions {
        let (left, mut right) = (
            a.store.dump(session).await.unwrap(),
            b.store.dump(session).await.unwrap(),
        );
        check_invariants(&left);
        let left_tail = a.store.tail(session).await.unwrap();
        let right_tail = b.store.tail(session).await.unwrap();
        let right_tail = right_tail.map(|tail| twins.tail(&tail));
        assert_eq!(left_tail.as_deref(), right_tail.as_ref(), "seed {seed}");
        for (after, through) in [(0, u64::MAX), (0, 9), (4, 12), (9, 30), (12, 5)] {
            let range = Range { after, through };
            let left = a.store.measure(session, range).await.unwrap();
            let right = b.store.measure(session, range).await.unwrap();
            assert_eq!(left, right, "seed {seed}: {range:?}");
        }
        twins.dump(&mut right);
        same_rows(seed, left, right);
    }
    let (a, b) = (
        a.store.sessions(None, 100).await.unwrap(),
        b.store.sessions(None, 100).await.unwrap(),
    );
    assert_eq!(a.len(), b.len(), "seed {seed}");
    for (a, mut b) in a.into_iter().zip(b) {
        twins.session(&mut b.session);
        assert_eq!(a, b, "seed {seed}");
    }
    tally
}

/// What an execution reads of its own session, however the store comes by it.
async fn what_is_held_is_what_is_stored(h: &Harness, session: SessionId, seed: u64, turn: usize) {
    let store = h.store.as_ref();
    let Some(tail) = store.tail(session).await.unwrap() else {
        return;
    };
    if tail.claim.is_none() {
        return;
    }
    let head = tail.session.head;
    let ranges = [
        (head.saturating_sub(6), head + 1),
        (head / 2, head),
        (0, Seq::MAX),
    ];
    let (after, through) = ranges[turn % 3];
    let range = Range { after, through };
    let (order, limit) = [(Order::NewestFirst, 3), (Order::OldestFirst, 100)][turn % 2];
    let said = format!("seed {seed}: {range:?} of {session}");
    let held = store.items_held(session, range, order, limit).await;
    let stored = store.items(session, range, order, limit).await;
    assert_eq!(held.unwrap(), stored.unwrap(), "{said}");
    let held = store.measure_held(session, range).await;
    let stored = store.measure(session, range).await;
    assert_eq!(held.unwrap(), stored.unwrap(), "{said}");
}

/// Compares table by table and row by row, so that a difference can be read.
fn same_rows(seed: u64, a: Dump, b: Dump) {
    fn same<T: PartialEq + std::fmt::Debug>(seed: u64, a: Vec<T>, b: Vec<T>) {
        let lengths = (a.len(), b.len());
        for (a, b) in a.iter().zip(&b) {
            assert_eq!(a, b, "seed {seed}");
        }
        assert_eq!(lengths.0, lengths.1, "seed {seed}: {a:#?} {b:#?}");
    }
    same(seed, a.events, b.events);
    assert_eq!((a.session, a.claim), (b.session, b.claim), "seed {seed}");
    same(seed, a.items, b.items);
    same(seed, a.inputs, b.inputs);
    same(seed, a.steps, b.steps);
    same(seed, a.calls, b.calls);
    same(seed, a.executions, b.executions);
}

/// What can be compared of an answer.
fn answer(
    answer: Result<Committed, StoreError>,
    twins: &Twins,
) -> Result<(String, Vec<String>, Tail), String> {
    match answer {
        Ok(done) => {
            let events = done
                .events
                .iter()
                .map(|event| format!("{:?}", twins.event(event)))
                .collect();
            Ok((format!("{:?}", done.reply), events, twins.tail(&done.tail)))
        }
        Err(StoreError::Refused(refused)) => Err(format!("{refused:?}")),
        Err(other) => panic!("a store failed: {other:?}"),
    }
}

/// Events that no draft named have ids of each store's own: which of them stand for each other.
#[derive(Default)]
struct Twins {
    to_b: HashMap<EventId, EventId>,
    to_a: HashMap<EventId, EventId>,
}

impl Twins {
    fn meet(&mut self, a: &[Event], b: &[Event]) {
        for (a, b) in a.iter().zip(b).filter(|(a, b)| a.id != b.id) {
            self.to_b.insert(a.id, b.id);
            self.to_a.insert(b.id, a.id);
        }
    }

    /// A commit for the first store as the second is to get it.
    fn commit(&self, commit: &Commit) -> Commit {
        let mut commit = commit.clone();
        match &mut commit.write {
            Write::Interrupt {
                cause: Some(cause), ..
            }
            | Write::Deliver {
                notice: Notice::Interrupt { cause, .. },
            } => *cause = *self.to_b.get(cause).unwrap_or(cause),
            _ => {}
        }
        commit
    }

    fn id(&self, id: &mut EventId) {
        *id = *self.to_a.get(id).unwrap_or(id);
    }

    fn notice(&self, notice: &mut Notice) {
        if let Notice::Interrupt { cause, .. } = notice {
            self.id(cause);
        }
    }

    fn event(&self, event: &Event) -> Event {
        let mut event = event.clone();
        self.id(&mut event.id);
        match &mut event.body {
            EventBody::InterruptRequested { cause: Some(cause) } => self.id(cause),
            EventBody::NoticeDelivered { notice } => self.notice(notice),
            _ => {}
        }
        event
    }

    fn session(&self, session: &mut mainstay_core::tail::Session) {
        for notice in &mut session.outbox {
            self.notice(notice);
        }
        for followed in &mut session.followed {
            self.id(followed);
        }
    }

    fn tail(&self, tail: &Tail) -> Tail {
        let mut tail = tail.clone();
        self.session(&mut tail.session);
        tail
    }

    fn dump(&self, dump: &mut Dump) {
        for record in &mut dump.events {
            let event = record.decode().expect("an event of this build");
            *record = self.event(&event).encode();
        }
        if let Some(session) = &mut dump.session {
            self.session(session);
        }
    }
}
