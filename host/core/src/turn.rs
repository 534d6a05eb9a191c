//! One execution: from its claim to its terminal, turn by turn and step by step.
//!
//! At a step boundary it promotes what is due, asks the runner and commits the decision; the effect
//! that the decision asks for runs in `effect`. What an effect leaves to be recorded stays in
//! `pending` until the next decision is there, so that settling one step and starting the next is one
//! commit.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tracing::{debug, warn};

use crate::claim::Fence;
use crate::commit::{Append, Commit, End, Refused, Write};
use crate::coordinator::{Stop, Terminal, backoff};
use crate::decision;
use crate::eager::Eager;
use crate::effect::Effect;
use crate::event::{Event, EventBody, EventDraft, InputContent, InterruptReason, TurnOutcome};
use crate::id::{ExecutionId, Millis, SessionId};
use crate::model::Usage;
use crate::node::Shared;
use crate::plugin::Action;
use crate::port::StoreError;
use crate::project;
use crate::recovery;
use crate::stopwatch::Stopwatch;
use crate::tail::{Changes, Tail};

/// Why an execution goes no further.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The claim is lost: write nothing more.
    Lost,
    /// Told to stop: clean up.
    Stopped,
    /// It cannot go on.
    Failed(String),
    /// Its terminal is written.
    Ended(Terminal),
}

/// One execution of one session.
pub(crate) struct Execution {
    pub(crate) shared: Arc<Shared>,
    pub(crate) session: SessionId,
    fence: Fence,
    /// As last committed.
    pub(crate) tail: Arc<Tail>,
    /// Happened, and not committed yet.
    pending: Vec<EventDraft>,
    pub(crate) stop: watch::Receiver<Stop>,
    /// What an answer used that this execution broke off.
    pub(crate) unsettled: Option<Usage>,
    /// Cancelled once the claim is another's or nobody's, whoever finds that out.
    lost: CancellationToken,
}

/// What a commit of an execution is beside its events.
#[derive(Default)]
struct Kind {
    begins: bool,
    exact: bool,
    end: Option<End>,
}

impl Execution {
    pub(crate) fn new(
        shared: Arc<Shared>,
        session: SessionId,
        fence: Fence,
        tail: Arc<Tail>,
        stop: watch::Receiver<Stop>,
        lost: CancellationToken,
    ) -> Self {
        Self {
            shared,
            session,
            fence,
            tail,
            pending: Vec::new(),
            stop,
            unsettled: None,
            lost,
        }
    }

    pub(crate) fn id(&self) -> ExecutionId {
        self.fence.execution
    }

    /// Runs until the session is idle or the execution is stopped, and writes the terminal.
    ///
    /// # Cancel safety
    /// Dropped, its guests and requests are dropped and nothing more is written: recovery settles it.
    pub(crate) async fn run(mut self) -> Terminal {
        let halt = loop {
            match self.advance().await {
                Ok(false) => {}
                Ok(true) if self.tail.session.wait.is_some() => return Terminal::Suspended,
                Ok(true) => return Terminal::Succeeded,
                Err(halt) => break halt,
            }
        };
        match halt {
            Halt::Lost => Terminal::Lost,
            Halt::Ended(terminal) => terminal,
            Halt::Stopped => self.stopped().await,
            Halt::Failed(error) => self.failed(error).await,
        }
    }

    /// One step, or one turn's end. True once the terminal is written.
    async fn advance(&mut self) -> Result<bool, Halt> {
        let parked = self.tail.session.wait.is_some();
        if self.tail.step.is_some() && self.pending.is_empty() && !parked {
            Effect::new(self).await?.run().await?;
            return Ok(false);
        }
        if *self.stop.borrow() > Stop::Go {
            return Err(Halt::Stopped);
        }
        let at = self.shared.time.now();
        let shown = self.preview(&[], at)?;
        let here = &shown.0;
        let open = here.session.turn.is_some();
        let waiting = here.session.wait.is_some();
        if here.step.is_some() {
            // Calls are held. What came in meanwhile enters the history behind their results.
            return self.finish(waiting, at).await;
        }
        let due = if open {
            here.due_steers()
        } else {
            here.due_next()
        };
        if due.is_empty() && (!open || waiting) {
            return self.finish(waiting, at).await;
        }
        // A control acts alone: what comes behind it meets it done. A compaction is the runner's.
        let control = due.iter().any(|input| {
            input.content.is_control() && !matches!(input.content, InputContent::Compact {})
        });
        let mut promotions: Vec<EventDraft> = Vec::new();
        if !open && !control {
            let config = self.shared.config.get();
            let steps = config
                .agents
                .get(&here.session.agent)
                .map_or(1, |agent| agent.steps);
            promotions.push(EventBody::TurnStarted { steps }.into());
        }
        promotions.extend(
            due.iter()
                .map(|input| EventDraft::new(EventBody::InputPromoted { input: input.id })),
        );
        if control || (waiting && self.preview(&promotions, at)?.0.session.wait.is_some()) {
            // Nothing that the runner is to be asked about.
            self.boundary(promotions, at).await?;
            return Ok(false);
        }
        let shown = if promotions.is_empty() {
            shown
        } else {
            self.preview(&promotions, at)?
        };
        self.decide(promotions, shown, at).await
    }

    /// Asks the runner, who is shown the session as it will be with the promotions, and commits what it
    /// decides, together with what is pending. True once the terminal is written.
    async fn decide(
        &mut self,
        promotions: Vec<EventDraft>,
        (tail, changes): (Tail, Changes),
        at: Millis,
    ) -> Result<bool, Halt> {
        let question = decision::ask(Arc::clone(&self.shared), tail, changes.items);
        let watch = Stopwatch::default();
        let mut answer = Eager::begin(watch.clone().count(question)).await;
        let quick = watch.within(self.shared.settings.decide_within, &mut answer);
        let quick = quick.await;
        if let Some(Ok(Ok(decided))) = quick {
            let events = promotions.into_iter().chain(decided).collect();
            return self.decided(events, at, true).await;
        }
        // Slow, trapped or refused: the results must not wait for it, nor be lost with it.
        if !self.boundary(promotions, at).await? {
            return Ok(false);
        }
        let answer = match quick {
            Some(answer) => answer,
            None => tokio::select! {
                answer = &mut answer => answer,
                _ = self.stop.wait_for(|stop| *stop > Stop::Go) => return Err(Halt::Stopped),
            },
        };
        let error = match answer {
            Ok(Ok(decided)) => return self.decided(decided, self.shared.time.now(), false).await,
            Ok(Err(error)) => error.to_string(),
            Err(cause) => format!("the question to the runner broke off: {cause}"),
        };
        Err(Halt::Failed(error))
    }

    /// Commits a decision. Where nothing is left to run after it, the terminal too.
    async fn decided(
        &mut self,
        events: Vec<EventDraft>,
        at: Millis,
        exact: bool,
    ) -> Result<bool, Halt> {
        let failure = events.iter().find_map(|draft| match &draft.body {
            EventBody::TurnEnded {
                outcome: TurnOutcome::Failed { error },
                ..
            } => Some(error.clone()),
            _ => None,
        });
        let end = match failure {
            Some(error) => Some(End::Failed { error }),
            None if events.last().is_some_and(|draft| goes_on(&draft.body)) => None,
            None => {
                let (after, _) = self.preview(&events, at)?;
                if after.is_runnable() {
                    None
                } else if after.session.wait.is_some() {
                    Some(End::Suspended)
                } else {
                    after.session.turn.is_none().then_some(End::Succeeded)
                }
            }
        };
        let ends = end.clone();
        match self
            .commit(
                events,
                at,
                Kind {
                    begins: true,
                    exact,
                    end,
                },
            )
            .await
        {
            Ok(()) => match ends {
                Some(End::Failed { error }) => Err(Halt::Ended(Terminal::Failed(error))),
                other => Ok(other.is_some()),
            },
            // Something came in between: the runner is asked again, now with it.
            Err(Blocked::HeadMoved | Blocked::NotIdle) => {
                self.settle_pending(at).await.map(|()| false)
            }
            Err(Blocked::Halt(halt)) => Err(halt),
        }
    }

    /// Commits what is pending and these promotions. False if something came in between; then the
    /// promotions are undone and to be made again.
    async fn boundary(&mut self, promotions: Vec<EventDraft>, at: Millis) -> Result<bool, Halt> {
        match self
            .commit(
                promotions,
                at,
                Kind {
                    begins: true,
                    exact: true,
                    end: None,
                },
            )
            .await
        {
            Ok(()) => Ok(true),
            Err(Blocked::HeadMoved | Blocked::NotIdle) => {
                self.settle_pending(at).await.map(|()| false)
            }
            Err(Blocked::Halt(halt)) => Err(halt),
        }
    }

    /// Commits what is pending, whatever else happened to the session.
    async fn settle_pending(&mut self, at: Millis) -> Result<(), Halt> {
        self.commit(Vec::new(), at, Kind::default())
            .await
            .map_err(Blocked::into_halt)?;
        // With nothing pending the commit was none: what moved the head is still to be seen.
        if let Some(tail) = self.shared.store.tail(self.session).await.ok().flatten() {
            self.tail = tail;
        }
        Ok(())
    }

    async fn finish(&mut self, waiting: bool, at: Millis) -> Result<bool, Halt> {
        let end = if waiting {
            End::Suspended
        } else {
            End::Succeeded
        };
        match self
            .commit(
                Vec::new(),
                at,
                Kind {
                    begins: true,
                    exact: false,
                    end: Some(end),
                },
            )
            .await
        {
            Ok(()) => Ok(true),
            Err(Blocked::HeadMoved | Blocked::NotIdle) => {
                self.settle_pending(at).await.map(|()| false)
            }
            Err(Blocked::Halt(halt)) => Err(halt),
        }
    }

    /// The cleanup of an interrupt or a shutdown.
    async fn stopped(&mut self) -> Terminal {
        let at = self.shared.time.now();
        let Ok((here, _)) = self.preview(&[], at) else {
            return self.failed("its events do not fit its log".into()).await;
        };
        let shutdown = matches!(*self.stop.borrow(), Stop::Drain | Stop::Shutdown)
            && !self
                .tail
                .claim
                .as_ref()
                .is_some_and(|claim| claim.interrupt);
        let (events, end) = if !shutdown {
            let events = self.close_turn(&here, TurnOutcome::Interrupted);
            (
                events,
                End::Interrupted {
                    reason: InterruptReason::User,
                },
            )
        } else if here.session.turn.is_none() && !here.is_runnable() {
            (Vec::new(), End::Succeeded)
        } else if here.session.wait.is_some() && !here.is_runnable() {
            (Vec::new(), End::Suspended)
        } else {
            (
                Vec::new(),
                End::Interrupted {
                    reason: InterruptReason::Shutdown,
                },
            )
        };
        let terminal = match &end {
            End::Interrupted { reason } => Terminal::Interrupted(*reason),
            End::Suspended => Terminal::Suspended,
            _ => Terminal::Succeeded,
        };
        let events = events.into_iter().map(EventDraft::new).collect();
        match self
            .commit(
                events,
                at,
                Kind {
                    begins: false,
                    exact: false,
                    end: Some(end),
                },
            )
            .await
        {
            Ok(()) => terminal,
            Err(Blocked::Halt(Halt::Failed(error))) => self.failed(error).await,
            Err(blocked) => {
                debug!(?blocked, "the terminal is left to recovery");
                Terminal::Lost
            }
        }
    }

    /// Ends an open turn. More is known here of what its answer used than the log tells.
    fn close_turn(&mut self, here: &Tail, outcome: TurnOutcome) -> Vec<EventBody> {
        let mut events = recovery::close_turn(here, outcome);
        if let Some(known) = self.unsettled.take() {
            for event in &mut events {
                if let EventBody::ModelEnded { usage, .. } = event {
                    *usage = Some(known);
                }
            }
        }
        events
    }

    /// The end of a turn that cannot go on, and of the execution with it.
    async fn failed(&mut self, error: String) -> Terminal {
        let at = self.shared.time.now();
        if self.preview(&[], at).is_err() {
            // What does not fit the log is what failed; it must not keep the failure from it.
            self.pending.clear();
        }
        let Ok((here, _)) = self.preview(&[], at) else {
            return Terminal::Lost;
        };
        let events = self.close_turn(
            &here,
            TurnOutcome::Failed {
                error: error.clone(),
            },
        );
        let events = events.into_iter().map(EventDraft::new).collect();
        let end = Some(End::Failed {
            error: error.clone(),
        });
        warn!(%error, "the turn failed");
        match self
            .commit(
                events,
                at,
                Kind {
                    begins: true,
                    exact: false,
                    end,
                },
            )
            .await
        {
            Ok(()) => Terminal::Failed(error),
            Err(Blocked::Halt(Halt::Stopped)) => Box::pin(self.stopped()).await,
            Err(blocked) => {
                debug!(?blocked, "the terminal is left to recovery");
                Terminal::Lost
            }
        }
    }

    /// Keeps an event for the next commit.
    pub(crate) fn keep(&mut self, body: EventBody) {
        self.pending.push(body.into());
    }

    /// Forgets what was kept last.
    pub(crate) fn take_back(&mut self) {
        self.pending.pop();
    }

    /// Makes what is kept durable now.
    pub(crate) async fn flush(&mut self, begins: bool) -> Result<(), Halt> {
        let at = self.shared.time.now();
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
        &self,
        events: &[EventDraft],
        at: Millis,
    ) -> Result<(Tail, Changes), Halt> {
        let mut tail = Tail::clone(&self.tail);
        let mut changes = Changes::default();
        let at = at.max(tail.session.updated_at);
        for draft in self.pending.iter().chain(events) {
            let event = Event {
                session: self.session,
                seq: tail.session.head + 1,
                id: draft.id,
                at,
                execution: Some(self.fence.execution),
                recovery: None,
                body: draft.body.clone(),
                compacted: None,
            };
            project::project(&mut tail, &event, &mut changes)
                .map_err(|broken| Halt::Failed(broken.to_string()))?;
        }
        Ok((tail, changes))
    }

    /// Commits what is pending and these events, by the fence. Repeats what the store could not say
    /// for as long as the lease can hold.
    async fn commit(
        &mut self,
        events: Vec<EventDraft>,
        at: Millis,
        kind: Kind,
    ) -> Result<(), Blocked> {
        if self.pending.is_empty() && events.is_empty() && kind.end.is_none() {
            return Ok(());
        }
        let events: Vec<EventDraft> = self.pending.iter().cloned().chain(events).collect();
        let write = Write::Append(Append {
            fence: self.fence,
            expected_head: kind.exact.then_some(self.tail.session.head),
            begins: kind.begins,
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
                    self.pending.clear();
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

/// Whether the turn stays open after this decision, and does not wait.
fn goes_on(decided: &EventBody) -> bool {
    matches!(decided, EventBody::StepStarted(started) if matches!(
        started.action,
        Action::CallModel(_) | Action::CallTools(_) | Action::Compact(_)
    ))
}

/// Why a commit did not go through.
#[derive(Debug)]
enum Blocked {
    /// Another event came in between.
    HeadMoved,
    /// There is more to run.
    NotIdle,
    Halt(Halt),
}

impl Blocked {
    fn into_halt(self) -> Halt {
        match self {
            Self::Halt(halt) => halt,
            other => Halt::Failed(format!("a commit that cannot be refused was: {other:?}")),
        }
    }
}
