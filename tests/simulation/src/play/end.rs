//! What must hold once all faults are gone and nothing is left to do.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use mainstay_core::event::{Event, TurnOutcome};
use mainstay_core::id::SessionId;
use mainstay_core::outbox::Child;
use mainstay_core::plugin::Condition;
use mainstay_core::port::Store as _;
use mainstay_core::tail::{Session, Tail};

use super::{FOLLOWS_WITHIN_MS, PATIENCE, Play, SETTLES_WITHIN_MS, broken};
use crate::invariant::{self, Broken};

impl Play {
    /// Waits until no client waits, nothing runs and nothing is to run. A person answers what is asked
    /// about calls meanwhile.
    pub(super) async fn settle(&self, after: &str) -> Result<(), Broken> {
        let deadline = self.sim.now_ms() + SETTLES_WITHIN_MS;
        loop {
            let mut waits = Vec::new();
            let clients = self.clients.load(Ordering::SeqCst);
            if clients > 0 {
                waits.push(format!("{clients} clients wait for an answer"));
            }
            let tails = self.tails().await;
            for tail in &tails {
                let session = &tail.session;
                if tail.claim.is_none() && !session.cancelled {
                    for key in open_calls(session) {
                        let approved = session.head % 2 == 0;
                        let _ = self.answer(session.id, 0, key, approved).await?;
                    }
                }
                let waits_here = tail.claim.is_some()
                    || tail.is_runnable()
                    || (session.wait.is_some() && !waits_for_people(session, &tails))
                    || session.is_owing();
                if waits_here {
                    waits.push(format!(
                        "{}: {:?}, turn {:?}, wait {:?}, owes {:?}, {:?}",
                        self.name(session.id),
                        tail.claim,
                        session.turn,
                        session.wait,
                        session.outbox,
                        tail.inputs
                    ));
                }
            }
            if waits.is_empty() {
                return Ok(());
            }
            if self.sim.now_ms() > deadline {
                let detail = format!("after {after}: {}", waits.join("; "));
                return Err(broken("a_healed_world_settles", detail));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// All sessions of the store.
    pub(super) async fn tails(&self) -> Vec<Arc<Tail>> {
        let mut tails = Vec::new();
        let listed = self.memory.sessions(None, u32::MAX).await;
        for listed in listed.unwrap_or_default().iter().rev() {
            let tail = self.memory.tail(listed.session.id).await;
            tails.extend(tail.ok().flatten());
        }
        tails
    }

    /// The sessions that can still run.
    pub(super) async fn usable(&self) -> Vec<SessionId> {
        let tails = self.tails().await;
        let usable = tails.iter().filter(|tail| !tail.session.cancelled);
        usable.map(|tail| tail.session.id).collect()
    }

    pub(super) async fn is_cancelled(&self, session: SessionId) -> bool {
        let tail = self.memory.tail(session).await;
        tail.ok()
            .flatten()
            .is_some_and(|tail| tail.session.cancelled)
    }

    pub(super) async fn idle_sessions_have_no_intents(&self) -> Result<(), Broken> {
        for tail in self.tails().await {
            if tail.session.cancelled || tail.session.wait.is_some() {
                continue;
            }
            if let Some(input) = tail.inputs.iter().find(|input| input.intent) {
                let name = self.name(tail.session.id);
                let detail = format!("{name} is idle, and {input:?} is to run");
                return Err(broken("an_idle_session_has_no_intents", detail));
            }
        }
        Ok(())
    }

    pub(super) async fn nothing_admitted_is_left_behind(&self) -> Result<(), Broken> {
        for tail in self.tails().await {
            if tail.session.cancelled || tail.session.wait.is_some() {
                continue;
            }
            if let Some(input) = tail.inputs.first() {
                let name = self.name(tail.session.id);
                let detail = format!("{name} was woken for all and is idle, with {input:?}");
                return Err(broken("nothing_admitted_is_left_behind", detail));
            }
        }
        Ok(())
    }

    pub(super) async fn every_session_still_answers(&self) -> Result<(), Broken> {
        for tail in self.tails().await {
            let session = &tail.session;
            if !session.cancelled && session.last_turn != Some(TurnOutcome::Done) {
                let detail = format!(
                    "the last turn of {}, where nothing was wrong: {:?}",
                    self.name(session.id),
                    session.last_turn
                );
                return Err(broken("a_healed_session_answers", detail));
            }
        }
        Ok(())
    }

    pub(super) async fn every_child_has_reported(&self) -> Result<(), Broken> {
        let tails = self.tails().await;
        for tail in tails.iter().filter(|tail| !tail.session.cancelled) {
            for child in &tail.session.children {
                if !child.ended || !tails.iter().any(|tail| tail.session.id == child.session) {
                    let detail = format!("{}: {child:?}", self.name(tail.session.id));
                    return Err(broken("every_child_reports", detail));
                }
            }
        }
        for tail in tails.iter().filter(|tail| tail.session.cancelled) {
            let alive = tails.iter().find(|child| {
                let parent = child.session.parent.as_ref().map(|parent| parent.session);
                parent == Some(tail.session.id) && !child.session.cancelled
            });
            if let Some(child) = alive {
                let detail = format!(
                    "{} is cancelled, and its child {} is not",
                    self.name(tail.session.id),
                    self.name(child.session.id)
                );
                return Err(broken("a_cancel_reaches_every_child", detail));
            }
        }
        Ok(())
    }

    /// A session's name for people.
    pub(super) fn name(&self, session: SessionId) -> String {
        if let Some((n, _)) = self.sessions().find(|(_, known)| *known == session) {
            return format!("s{n}");
        }
        let mut text = session.to_string();
        text.truncate(8);
        text
    }

    pub(super) async fn every_follower_has_met_every_event_once(&self) -> Result<(), Broken> {
        // A read that was slow when the faults ended may still be under way.
        let deadline = self.sim.now_ms() + FOLLOWS_WITHIN_MS;
        while self.followers_meet_every_event_once().is_err() && self.sim.now_ms() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.followers_meet_every_event_once()
    }

    pub(super) fn followers_meet_every_event_once(&self) -> Result<(), Broken> {
        for follower in self.followers().iter() {
            let log = self.judge.ids(follower.session);
            let due = if follower.gone {
                follower.read.len()
            } else {
                log.len()
            };
            if log.get(..due) != Some(&follower.read) {
                let detail = format!("{:?} was read, of {log:?}", follower.read);
                return Err(broken("a_follower_meets_every_event_once", detail));
            }
        }
        Ok(())
    }

    pub(super) async fn every_shutdown_ends(&self) -> Result<(), Broken> {
        let places = self.slots().len();
        for place in 0..places {
            if let Some(process) = self.at(place) {
                tokio::time::timeout(PATIENCE, process.node.shutdown())
                    .await
                    .map_err(|_| broken("a_shutdown_of_an_idle_node_ends", format!("{place}")))?;
            }
        }
        Ok(())
    }

    pub(super) async fn all_that_is_stored_is_sound(&self) -> Result<(), Broken> {
        let mut logs: HashMap<SessionId, Vec<Event>> = HashMap::new();
        for tail in self.tails().await {
            let session = tail.session.id;
            let dump = self.judge.store().dump(session).await;
            let dump = dump.map_err(|error| broken("the_store_answers", error.to_string()))?;
            invariant::judge(&dump)?;
            let ids: Vec<_> = dump
                .events
                .iter()
                .map(|record| (record.seq, record.id))
                .collect();
            if ids != self.judge.ids(session) {
                return Err(broken(
                    "what_was_committed_is_stored",
                    format!(
                        "the log of {} is another than was committed",
                        self.name(session)
                    ),
                ));
            }
            if let Some(claim) = dump.claim {
                return Err(broken("an_idle_session_has_no_claim", format!("{claim:?}")));
            }
            let events = dump
                .events
                .iter()
                .filter_map(|record| record.decode().ok())
                .collect();
            logs.insert(session, events);
        }
        self.judge.what_was_told_durable_is_there(&logs)
    }
}

/// Keys of what a person is asked about calls.
pub(super) fn open_calls(session: &Session) -> Vec<String> {
    let asked = session.arrived.approvals.iter();
    let open = asked.filter(|(_, asked)| asked.call.is_some() && asked.answer.is_none());
    open.map(|(key, _)| key.clone()).collect()
}

/// Waits while it is quarantined, or for a child that was interrupted: such go on when somebody releases
/// or speaks to them, as everybody is in the end.
fn waits_for_people(session: &Session, tails: &[Arc<Tail>]) -> bool {
    if session.quarantined.is_some() {
        return true;
    }
    let Some(wait) = session.wait.as_ref().filter(|wait| wait.wake_at.is_none()) else {
        return false;
    };
    let awaited = wait.until.iter().flat_map(|condition| match condition {
        Condition::Children(keys) => &keys[..],
        _ => &[],
    });
    let interrupted = |child: &Child| {
        tails.iter().any(|tail| {
            tail.session.id == child.session
                && tail.session.turn.is_none()
                && tail.session.last_turn == Some(TurnOutcome::Interrupted)
        })
    };
    awaited
        .filter_map(|key| session.child(key))
        .any(|child| !child.ended && interrupted(child))
}
