//! Editing a history without changing a log: a fork begins a session with a copy of another's items, a
//! revert hides what stands behind a settled place until the next input makes that final. Both are
//! judged here as far as rows can tell; what they need of the old history is read by [`cut`] first and
//! carried in the event, so that a rebuild needs no other session and no look back.

use crate::commit::{Applied, Commit, Refused, Reply};
use crate::event::{Event, EventBody, Forked, Record, Reverted, SessionCreated};
use crate::history::{Item, ItemBody, Order};
use crate::id::{EventId, Millis, Seq, SessionId};
use crate::model::Range;
use crate::port::{Store, StoreError};
use crate::project;
use crate::state::States;
use crate::tail::{Changes, Session, Tail};
use crate::transcript;
use crate::wait::Signals;

/// Items and events of a page.
const ITEMS: u32 = 1000;
const EVENTS: u32 = 256;

/// A session that begins with another's history.
#[derive(Clone, Debug, PartialEq)]
pub struct Fork {
    /// Its `forked` names the source.
    pub created: SessionCreated,
    /// In order, with the times of their first recording.
    pub items: Vec<(Millis, ItemBody)>,
    /// How many of them stand before the live context.
    pub before_context: usize,
    /// What runners keep.
    pub states: States,
}

/// Judges a fork. The same fork again finds the session that it made.
pub(crate) fn fork(tail: Option<&Tail>, commit: &Commit, fork: &Fork) -> Result<Applied, Refused> {
    if let Some(tail) = tail {
        if tail.session.forked.is_none() || tail.session.forked != fork.created.forked {
            return Err(Refused::SessionConflict(commit.session));
        }
        return Ok(Applied {
            events: Vec::new(),
            tail: tail.clone(),
            changes: Changes::default(),
            reply: Reply::Existed,
        });
    }
    let bodies = std::iter::once(EventBody::SessionCreated(fork.created.clone()))
        .chain(fork.items.iter().map(|(at, body)| EventBody::ItemCopied {
            at: *at,
            body: body.clone(),
        }))
        .chain([EventBody::HistoryForked {
            // Items stand right behind the creation.
            context_after: match fork.before_context {
                0 => 0,
                items => 1 + items as Seq,
            },
            states: fork.states.clone(),
        }]);
    let (mut events, mut changes) = (Vec::new(), Changes::default());
    let mut tail: Option<Tail> = None;
    for (n, body) in bodies.enumerate() {
        let event = Event {
            session: commit.session,
            seq: n as Seq + 1,
            id: EventId::new(),
            at: commit.at,
            execution: None,
            recovery: None,
            body,
            compacted: None,
        };
        match &mut tail {
            None => tail = project::begin(&event),
            Some(tail) => project::project(tail, &event, &mut changes)?,
        }
        events.push(event);
    }
    let tail = tail.expect("the first event is a creation");
    Ok(Applied {
        events,
        tail,
        changes,
        reply: Reply::Done,
    })
}

/// A history up to a settled place.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// The last seq that stays; no call before it is parted from its result.
    pub through: Seq,
    pub items: Vec<Item>,
    /// Where the live context began then.
    pub context_after: Seq,
    /// What runners had stored by then.
    pub states: States,
    /// The signals that no wait had consumed by then, where one has since.
    pub signals: Option<Signals>,
}

impl Cut {
    /// What a revert to this place writes.
    #[must_use]
    pub fn revert(self) -> Reverted {
        Reverted {
            through: self.through,
            context_after: self.context_after,
            states: self.states,
            signals: self.signals,
        }
    }

    /// What a fork at this place begins with. Seqs inside items become those of the copy.
    #[must_use]
    pub fn copied(&self) -> (Vec<(Millis, ItemBody)>, usize) {
        let seqs: Vec<Seq> = self.items.iter().map(|item| item.seq).collect();
        // The creation is seq 1, so the first item is 2; what stood before all of them is 0.
        let moved = |seq: Seq| match seqs.partition_point(|old| *old <= seq) {
            0 => 0,
            items => 1 + items as Seq,
        };
        let items = self.items.iter().map(|item| {
            let mut body = item.body.clone();
            match &mut body {
                ItemBody::Compaction(compaction) => compaction.through = moved(compaction.through),
                ItemBody::Recovered(recovered) => {
                    recovered.interrupted = recovered.interrupted.map(moved);
                }
                _ => {}
            }
            (item.at, body)
        });
        let before = seqs.partition_point(|old| *old <= self.context_after);
        (items.collect(), before)
    }
}

/// Reads what of a session's history stands at or before `through`, moved back to a settled place.
///
/// # Errors
/// [`Refused::NotFound`].
async fn cut(store: &dyn Store, tail: &Tail, through: Seq) -> Result<Cut, StoreError> {
    let session = tail.session.id;
    let mut through = through.min(tail.session.shown_through());
    if let Some(step) = tail.session.step {
        // Nothing of an open step is settled.
        through = through.min(step.saturating_sub(1));
    }
    let mut items = items(store, session, through).await?;
    let boundary = transcript::settled_boundary(&items, through);
    // What a runner stored behind the last item, when it was done for example, belongs to that place.
    let settled = match items.last() {
        Some(last) if last.seq > boundary => boundary,
        _ => through,
    };
    items.retain(|item| item.seq <= boundary);
    let context_after = items
        .iter()
        .rev()
        .find_map(|item| match &item.body {
            ItemBody::Compaction(compaction) => Some(compaction.through),
            _ => None,
        })
        // A fork has the summaries of its source among its items.
        .unwrap_or(0);
    let now = &tail.session;
    let (states, signals) = match &now.revert {
        Some(revert) if settled == revert.through => {
            (revert.states.clone(), revert.signals.clone())
        }
        _ if now.states.newest().max(now.arrived.taken) > Some(settled) => {
            let then = session_at(store, session, settled).await?;
            let (states, arrived) = then
                .map(|then| (then.states, then.arrived))
                .unwrap_or_default();
            let is_taken = now.arrived.taken > Some(settled);
            (states, is_taken.then_some(arrived.signals))
        }
        _ => (now.states.clone(), None),
    };
    Ok(Cut {
        through: boundary,
        items,
        context_after,
        states,
        signals,
    })
}

async fn items(
    store: &dyn Store,
    session: SessionId,
    through: Seq,
) -> Result<Vec<Item>, StoreError> {
    let mut items: Vec<Item> = Vec::new();
    loop {
        let after = items.last().map_or(0, |item| item.seq);
        let range = Range { after, through };
        let page = store
            .items(session, range, Order::OldestFirst, ITEMS)
            .await?;
        let full = page.len() == ITEMS as usize;
        items.extend(page);
        if !full {
            return Ok(items);
        }
    }
}

/// A session as its log tells it up to `through`: a fork brings a state along, and a revert that became
/// final brought an older one back. Events that this build does not know say nothing of it.
async fn session_at(
    store: &dyn Store,
    session: SessionId,
    through: Seq,
) -> Result<Option<Session>, StoreError> {
    let (mut after, mut tail) = (0, None);
    while after < through {
        let page = store.events(session, after, EVENTS).await?;
        let Some((records, _)) = page.filter(|(records, _)| !records.is_empty()) else {
            break;
        };
        for record in records {
            after = record.seq;
            if after > through {
                break;
            }
            let Ok(event) = record.decode() else {
                continue;
            };
            match &mut tail {
                None => tail = project::begin(&event),
                Some(tail) => {
                    let done = project::project(tail, &event, &mut Changes::default());
                    done.map_err(|broken| StoreError::Damaged {
                        session,
                        cause: broken.to_string(),
                    })?;
                }
            }
        }
    }
    Ok(tail.map(|tail| tail.session))
}

/// What a fork of a session through a seq begins with; `None` copies all that is settled.
///
/// # Errors
/// [`Refused::NothingToFork`] if no message stands there; [`Refused::HeadMoved`] if a revert has become
/// final while it was read, so that some of it may be of another branch.
pub async fn fork_of(
    store: &dyn Store,
    tail: &Tail,
    through: Option<Seq>,
) -> Result<Fork, StoreError> {
    let source = tail.session.id;
    let cut = cut(store, tail, through.unwrap_or(tail.session.head)).await?;
    if !cut.items.iter().any(Item::is_message) {
        return Err(Refused::NothingToFork(source).into());
    }
    let head = tail.session.head;
    if let Some(actual) = reverted_since(store, source, head).await? {
        let expected = head;
        return Err(Refused::HeadMoved { expected, actual }.into());
    }
    let (items, before_context) = cut.copied();
    Ok(Fork {
        created: SessionCreated {
            agent: tail.session.agent.clone(),
            model: tail.session.model.clone(),
            title: tail.session.title.clone(),
            resume: tail.session.resume,
            parent: None,
            forked: Some(Forked {
                session: source,
                through: cut.through,
            }),
        },
        items,
        before_context,
        states: cut.states,
    })
}

/// Where a revert became final behind this place of the log.
async fn reverted_since(
    store: &dyn Store,
    session: SessionId,
    mut after: Seq,
) -> Result<Option<Seq>, StoreError> {
    loop {
        let page = store.events(session, after, EVENTS).await?;
        let records = page.map(|(records, _)| records).unwrap_or_default();
        let Some(last) = records.last() else {
            return Ok(None);
        };
        after = last.seq;
        let made_final = |record: &&Record| record.kind == "revert.committed";
        if let Some(record) = records.iter().find(made_final) {
            return Ok(Some(record.seq));
        }
    }
}

/// What a revert to the settled place before a seq writes.
///
/// # Errors
/// [`Refused::Busy`] while the session runs or waits, [`Refused::NothingToRevert`] if it would hide
/// nothing.
pub async fn revert_of(
    store: &dyn Store,
    tail: &Tail,
    before: Seq,
) -> Result<Reverted, StoreError> {
    let session = tail.session.id;
    if tail.claim.is_some() || tail.session.turn.is_some() {
        return Err(Refused::Busy(session).into());
    }
    let revert = cut(store, tail, before.saturating_sub(1)).await?.revert();
    let hidden = Range {
        after: revert.through,
        through: tail.session.shown_through(),
    };
    let hides = store.items(session, hidden, Order::OldestFirst, 1).await?;
    if hides.is_empty() {
        return Err(Refused::NothingToRevert(session).into());
    }
    Ok(revert)
}
