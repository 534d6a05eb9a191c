//! What has happened and is in no commit yet: the results that wait for the next decision, and steps that
//! run ahead of their own commit.
//!
//! A `pure` call needs no write-ahead and leaves nothing behind that a crash could make doubtful. A step
//! that is one such call is therefore begun before it is durable, and goes into one commit with the steps
//! that follow it, as long as each is finished at once and all of them take no longer than a decision
//! may. Where another event comes in between, they are forgotten and decided anew, with it: nobody has
//! heard of them. What takes longer is committed first and goes on then, as any other step.

use std::time::Duration;

use tokio::time::Instant;
use tracing::warn;

use super::{Execution, Halt};
use crate::commit::{Append, Commit, End, Refused, Write};
use crate::coordinator::backoff;
use crate::event::{Event, EventBody, EventDraft};
use crate::id::{ExecutionId, Millis, Seq};
use crate::node::Shared;
use crate::plugin::Action;
use crate::port::StoreError;
use crate::project;
use crate::tail::{Call, CallStatus, Changes, Step, Tail};

/// What a commit of an execution is beside its events.
#[derive(Default)]
pub(super) struct Kind {
    /// It promotes, starts an effect or ends by itself: refused where an interrupt is marked.
    pub(super) begins: bool,
    /// Refused where another event came in between.
    pub(super) exact: bool,
    pub(super) end: Option<End>,
}

/// Happened, and not committed yet.
#[derive(Default)]
pub(super) struct Pending {
    drafts: Vec<EventDraft>,
    ahead: Option<Ahead>,
    /// What ran ahead was in vain: the next step waits for its commit.
    in_vain: bool,
}

/// The drafts of steps that run ahead of their commit.
struct Ahead {
    /// The first of them.
    from: usize,
    steps: usize,
    /// They name seqs of their own, which hold as long as this is the head.
    head: Seq,
    /// The time of all of them: one commit has one.
    at: Millis,
    since: Instant,
    /// The session as it will be with so many of the drafts.
    shown: Option<(usize, Tail, Changes)>,
}

/// Steps that one commit may hold.
const STEPS_AHEAD: usize = 16;

impl Pending {
    /// The time that further events of the same commit have, where it is fixed.
    pub(super) fn at(&self) -> Option<Millis> {
        self.ahead.as_ref().map(|ahead| ahead.at)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.drafts.is_empty()
    }

    pub(super) fn is_ahead(&self) -> bool {
        self.ahead.is_some()
    }

    /// Whether the step that these events begin is one of a single call, and early enough, and holds up
    /// no result that cannot be had again: of `open`, the step that is open in the log.
    pub(super) fn may_run_ahead(
        &self,
        shared: &Shared,
        open: Option<&Step>,
        events: &[EventDraft],
    ) -> bool {
        let acted = open.is_some_and(|step| {
            let started = |call: &Call| call.status == CallStatus::Started;
            step.asks_model() || step.calls.iter().any(started)
        });
        let early = self.ahead.as_ref().is_none_or(|ahead| {
            ahead.steps < STEPS_AHEAD && ahead.since.elapsed() < shared.settings.decide_within
        });
        let one_call = matches!(
            events.last().map(|draft| &draft.body),
            Some(EventBody::StepStarted(started))
                if matches!(&started.action, Action::CallTools(calls) if calls.len() == 1)
        );
        early && one_call && !acted && !self.in_vain
    }

    /// Keeps the beginning of a step that runs ahead.
    fn run_ahead(&mut self, events: Vec<EventDraft>, head: Seq, at: Millis) {
        let from = self.drafts.len();
        let ahead = self.ahead.get_or_insert_with(|| Ahead {
            from,
            steps: 0,
            head,
            at,
            since: Instant::now(),
            shown: None,
        });
        ahead.steps += 1;
        self.drafts.extend(events);
    }

    /// Forgets what ran ahead: it is done again, behind what came in between.
    pub(super) fn fall_back(&mut self) {
        if let Some(ahead) = self.ahead.take() {
            self.drafts.truncate(ahead.from);
            self.in_vain = true;
        }
    }
}

impl Execution {
    /// Keeps the beginning of a step whose effect is a `pure` call for a later commit.
    pub(crate) fn run_ahead(&mut self, events: Vec<EventDraft>, at: Millis) {
        self.pending.run_ahead(events, self.tail.session.head, at);
    }

    /// Whether the step that runs is in no commit yet.
    pub(crate) fn is_ahead(&self) -> bool {
        self.pending.is_ahead()
    }

    /// Commits what ran ahead, or forgets it where that cannot be.
    ///
    /// # Errors
    /// [`Halt::Lost`].
    pub(super) async fn land(&mut self) -> Result<(), Halt> {
        if !self.is_ahead() {
            return Ok(());
        }
        match self.flush(true).await {
            Err(Halt::Lost) => Err(Halt::Lost),
            Err(_) => {
                self.pending.fall_back();
                Ok(())
            }
            Ok(()) => Ok(()),
        }
    }

    /// Keeps an event for the next commit.
    pub(crate) fn keep(&mut self, body: EventBody) {
        self.pending.drafts.push(body.into());
    }

    /// Forgets what was kept last.
    pub(crate) fn take_back(&mut self) {
        self.pending.drafts.pop();
        if let Some(ahead) = &mut self.pending.ahead {
            ahead.shown = None;
        }
    }

    /// Makes what is kept durable now.
    pub(crate) async fn flush(&mut self, begins: bool) -> Result<(), Halt> {
        let at = self.pending.at().unwrap_or_else(|| self.shared.time.now());
        let kind = Kind {
            begins,
            exact: false,
            end: None,
        };
        self.commit(Vec::new(), at, kind)
            .await
            .map_err(Blocked::into_halt)
    }

    /// The tail as it will be with what is pending and these events.
    pub(crate) fn preview(
        &mut self,
        events: &[EventDraft],
        at: Millis,
    ) -> Result<(Tail, Changes), Halt> {
        let Pending { drafts, ahead, .. } = &mut self.pending;
        let known = ahead.as_mut().and_then(|ahead| ahead.shown.take());
        let known = known.unwrap_or_else(|| (0, Tail::clone(&self.tail), Changes::default()));
        let (so_far, mut tail, mut changes) = known;
        let at = at.max(self.tail.session.updated_at);
        let execution = self.fence.execution;
        let fits = |broken: project::RuleBroken| Halt::Failed(broken.to_string());
        for draft in &drafts[so_far..] {
            show(&mut tail, &mut changes, draft, execution, at).map_err(fits)?;
        }
        if let Some(ahead) = ahead {
            ahead.shown = Some((drafts.len(), tail.clone(), changes.clone()));
        }
        for draft in events {
            show(&mut tail, &mut changes, draft, execution, at).map_err(fits)?;
        }
        Ok((tail, changes))
    }

    /// Commits what is pending and these events, by the fence. Repeats what the store could not say
    /// for as long as the lease can hold.
    pub(super) async fn commit(
        &mut self,
        events: Vec<EventDraft>,
        at: Millis,
        kind: Kind,
    ) -> Result<(), Blocked> {
        if self.pending.is_empty() && events.is_empty() && kind.end.is_none() {
            return Ok(());
        }
        let events: Vec<EventDraft> = self.pending.drafts.iter().cloned().chain(events).collect();
        let ahead = self.pending.ahead.as_ref().map(|ahead| ahead.head);
        let write = Write::Append(Append {
            fence: self.fence,
            expected_head: ahead.or(kind.exact.then_some(self.tail.session.head)),
            begins: kind.begins || ahead.is_some(),
            events,
            end: kind.end,
        });
        let commit = Commit {
            session: self.session,
            at,
            write,
        };
        let deadline =
            self.shared.clock.monotonic() + self.shared.settings.lease.as_millis() as Millis;
        let mut attempt = 0;
        loop {
            match self.shared.store.commit(commit.clone()).await {
                Ok(committed) => {
                    self.pending = Pending::default();
                    self.shared.hub.wrote(&committed.tail);
                    self.shared.noted(&committed.tail);
                    self.tail = committed.tail;
                    return Ok(());
                }
                Err(StoreError::Refused(refused)) => {
                    if matches!(refused, Refused::Lost { .. } | Refused::NotFound(_)) {
                        self.lost.cancel();
                    }
                    return Err(match refused {
                        Refused::HeadMoved { .. } => Blocked::HeadMoved,
                        Refused::NotIdle => Blocked::NotIdle,
                        Refused::Interrupted { .. } => Blocked::Halt(Halt::Stopped),
                        Refused::Lost { .. } | Refused::NotFound(_) => Blocked::Halt(Halt::Lost),
                        other => Blocked::Halt(Halt::Failed(other.to_string())),
                    });
                }
                Err(StoreError::Damaged { cause, .. }) => {
                    return Err(Blocked::Halt(Halt::Failed(cause)));
                }
                Err(error @ StoreError::Unavailable { .. }) => {
                    attempt += 1;
                    if self.shared.clock.monotonic() >= deadline {
                        warn!(error = %crate::chain(&error), "the store did not come back within the lease");
                        return Err(Blocked::Halt(Halt::Lost));
                    }
                    let wait = backoff(Duration::from_millis(20), Duration::from_secs(1), attempt);
                    tokio::time::sleep(wait).await;
                }
            }
        }
    }
}

/// Adds what will be an event of this execution.
fn show(
    tail: &mut Tail,
    changes: &mut Changes,
    draft: &EventDraft,
    execution: ExecutionId,
    at: Millis,
) -> Result<(), project::RuleBroken> {
    let event = Event {
        session: tail.session.id,
        seq: tail.session.head + 1,
        id: draft.id,
        at,
        execution: Some(execution),
        recovery: None,
        body: draft.body.clone(),
        compacted: None,
    };
    project::project(tail, &event, changes)
}

/// Why a commit did not go through.
#[derive(Debug)]
pub(super) enum Blocked {
    /// Another event came in between.
    HeadMoved,
    /// There is more to run.
    NotIdle,
    Halt(Halt),
}

impl Blocked {
    pub(super) fn into_halt(self) -> Halt {
        match self {
            Self::Halt(halt) => halt,
            Self::HeadMoved => Halt::Moved,
            other => Halt::Failed(format!("a commit that cannot be refused was: {other:?}")),
        }
    }
}
