//! One execution: from its claim to its terminal, turn by turn and step by step.
//!
//! At a step boundary it promotes what is due, asks the runner and commits the decision; the effect
//! that the decision asks for runs in `effect`. What an effect leaves to be recorded stays in
//! `pending` until the next decision is there, so that settling one step and starting the next is one
//! commit. A step of one `pure` call may run ahead of its commit: see [`pending`].

mod ends;
mod pending;

use std::sync::Arc;

use pending::{Blocked, Kind, Pending};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::claim::Fence;
use crate::commit::End;
use crate::coordinator::{Stop, Terminal};
use crate::decision;
use crate::eager::Eager;
use crate::effect::Effect;
use crate::event::{EventBody, EventDraft, InputContent, TurnOutcome};
use crate::id::{ExecutionId, Millis, SessionId};
use crate::model::Usage;
use crate::node::Shared;
use crate::plugin::Action;
use crate::stopwatch::Stopwatch;
use crate::tail::{Changes, Tail};

/// Why an execution goes no further.
#[derive(Debug)]
pub(crate) enum Halt {
    /// The claim is lost: write nothing more.
    Lost,
    /// Told to stop: clean up.
    Stopped,
    /// Another event came in between: what ran ahead of its commit is to be done again.
    Moved,
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
    pending: Pending,
    pub(crate) stop: watch::Receiver<Stop>,
    /// What an answer used that this execution broke off.
    pub(crate) unsettled: Option<Usage>,
    /// Cancelled once the claim is another's or nobody's, whoever finds that out.
    lost: CancellationToken,
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
            pending: Pending::default(),
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
                Err(Halt::Moved) => {
                    if let Err(halt) = self.settle_pending(self.shared.time.now()).await {
                        break halt;
                    }
                }
                Err(halt) => break halt,
            }
        };
        match halt {
            Halt::Lost | Halt::Moved => Terminal::Lost,
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
        let at = self.pending.at().unwrap_or_else(|| self.shared.time.now());
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

    /// Commits a decision, unless its step may run ahead. Where nothing is left to run after it, the
    /// terminal too.
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
        let settled = self.tail.step.as_ref();
        if exact && end.is_none() && self.pending.may_run_ahead(&self.shared, settled, &events) {
            let step = self.preview(&events, at)?.0.step;
            if let Some(step) = step
                && let Ok(effect) = Effect::of(self, step).await
                && effect.is_one_pure_call()
            {
                return effect.ahead(events, at).await.map(|()| false);
            }
        }
        let ends = end.clone();
        let kind = Kind {
            begins: true,
            exact,
            end,
        };
        match self.commit(events, at, kind).await {
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
        let kind = Kind {
            begins: true,
            exact: true,
            end: None,
        };
        match self.commit(promotions, at, kind).await {
            Ok(()) => Ok(true),
            Err(Blocked::HeadMoved | Blocked::NotIdle) => {
                self.settle_pending(at).await.map(|()| false)
            }
            Err(Blocked::Halt(halt)) => Err(halt),
        }
    }

    /// Commits what is pending, whatever else happened to the session, but for what ran ahead.
    async fn settle_pending(&mut self, at: Millis) -> Result<(), Halt> {
        self.pending.fall_back();
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
        let kind = Kind {
            begins: true,
            exact: false,
            end: Some(end),
        };
        match self.commit(Vec::new(), at, kind).await {
            Ok(()) => Ok(true),
            Err(Blocked::HeadMoved | Blocked::NotIdle) => {
                self.settle_pending(at).await.map(|()| false)
            }
            Err(Blocked::Halt(halt)) => Err(halt),
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
