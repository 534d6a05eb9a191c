//! The effect of one step: a model's answer as it streams in, calls as they become whole, their
//! results. It goes on from wherever the step stands, so a step that recovery left open is run by the
//! same code as a fresh one.
//!
//! What is known stays in a buffer until a flush is due, a call that acts on the world needs its
//! write-ahead, or the step is settled; then it is left with the execution for the next commit.

mod answer;
mod calls;

use std::time::{Duration, Instant};

use calls::Done;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::coordinator::Stop;
use crate::decision::tools_of;
use crate::eager::BrokenOff;
use crate::event::{EventBody, EventDraft, Piece, ToolboxRef};
use crate::exchange::{Heard, Try};
use crate::history::Ending;
use crate::id::{Millis, Seq};
use crate::live::Live;
use crate::model::{Effect as Class, ToolOutcome, ToolResult, Usage};
use crate::plugin::{Action, Price, Tool};
use crate::tail::{CallStatus, Step};
use crate::turn::{Execution, Halt};
use crate::{budget, project, recovery};

/// One step's effect while it is under way.
pub(crate) struct Effect<'e> {
    exec: &'e mut Execution,
    /// With everything that is known, committed or not.
    step: Step,
    /// Produced and not yet made an event.
    buffer: Vec<Piece>,
    /// When the buffer and what is kept must be durable.
    flush_at: Option<tokio::time::Instant>,
    tools: Vec<(ToolboxRef, Tool)>,
    running: JoinSet<Done>,
    /// Calls whose start is in no event, and which run or have run.
    unwritten: Vec<String>,
    cancel: CancellationToken,
    began: Instant,
    first_ms: Option<u64>,
    usage: Option<Usage>,
    /// Bytes of text in the model's request.
    asked: Option<u64>,
    price: Option<Price>,
    /// When the turn's time is over.
    deadline: Option<tokio::time::Instant>,
    /// It was, and the effect is stopped because of it.
    late: bool,
    /// Told of what is written to the session, while a call of it is held.
    written: Option<watch::Receiver<Seq>>,
    /// How the answer ended, held back until the calls that run have their results.
    over: Option<Ending>,
}

impl<'e> Effect<'e> {
    /// The effect of the execution's open step.
    pub(crate) async fn new(exec: &'e mut Execution) -> Result<Self, Halt> {
        let step = exec
            .tail
            .step
            .clone()
            .ok_or_else(|| Halt::Failed("no step is open".into()))?;
        Self::of(exec, step).await
    }

    /// The effect of a step, which may be in no commit yet.
    pub(crate) async fn of(exec: &'e mut Execution, step: Step) -> Result<Self, Halt> {
        let mut tools = Vec::new();
        for toolbox in &step.started.toolboxes {
            let of = tools_of(&exec.shared.plugins, toolbox)
                .await
                .map_err(Halt::Failed)?;
            tools.extend(of.into_iter().map(|tool| (toolbox.clone(), tool)));
        }
        let basis = &step.started.basis;
        let deadline = basis.budget.time_ms.map(|left| {
            let until = basis.now.saturating_add(left);
            let left = until.saturating_sub(exec.shared.time.now());
            tokio::time::Instant::now() + Duration::from_millis(left)
        });
        Ok(Self {
            exec,
            step,
            buffer: Vec::new(),
            flush_at: None,
            tools,
            running: JoinSet::new(),
            unwritten: Vec::new(),
            cancel: CancellationToken::new(),
            began: Instant::now(),
            first_ms: None,
            usage: None,
            asked: None,
            price: None,
            deadline,
            late: false,
            written: None,
            over: None,
        })
    }

    /// Runs a step whose beginning is in no commit yet. If it is not settled at once, it is first made
    /// durable.
    pub(crate) async fn ahead(self, begin: Vec<EventDraft>, at: Millis) -> Result<(), Halt> {
        self.exec.run_ahead(begin, at);
        self.run().await
    }

    /// Runs until the step is settled. What it leaves uncommitted stays with the execution.
    pub(crate) async fn run(mut self) -> Result<(), Halt> {
        let outcome = self.go().await;
        if outcome.is_err() && self.step.asks_model() && self.step.ending.is_none() {
            self.exec.unsettled = self.cut_off();
        }
        if let Err(Halt::Stopped) = outcome {
            self.stop().await?;
            if self.late && *self.exec.stop.borrow() == Stop::Go {
                return Err(Halt::Failed(budget::OUT_OF_TIME.into()));
            }
        }
        outcome
    }

    async fn go(&mut self) -> Result<(), Halt> {
        if let Action::Compact(compact) = self.step.started.action.clone() {
            return self.compact(compact.through, compact.summary).await;
        }
        let waiting: Vec<String> = self
            .step
            .calls
            .iter()
            .filter(|call| !call.own && !call.hosted)
            .filter(|call| {
                matches!(
                    call.status,
                    CallStatus::Ready | CallStatus::Held | CallStatus::Started
                )
            })
            .map(|call| call.id.clone())
            .collect();
        for call in waiting {
            self.begin(&call).await?;
        }
        self.model().await?;
        while !(self.step.is_settled() || self.is_held()) {
            self.tick(None).await?;
        }
        Ok(())
    }

    /// Nothing is left to be done before a person has answered.
    fn is_held(&self) -> bool {
        self.running.is_empty() && self.step.is_held(&self.exec.tail.session.arrived.approvals)
    }

    async fn pause(&mut self, wait: Duration) -> Result<(), Halt> {
        let until = tokio::time::Instant::now() + wait;
        let late = over(self.deadline);
        let stop = &mut self.exec.stop;
        tokio::select! {
            () = tokio::time::sleep_until(until) => Ok(()),
            () = late => {
                self.late = true;
                Err(Halt::Stopped)
            }
            _ = stop.wait_for(|stop| *stop > Stop::Drain) => Err(Halt::Stopped),
        }
    }

    /// Waits for whatever comes next: an event of the model (given back), a result, a flush, a stop.
    async fn tick(&mut self, attempt: Option<&mut Try>) -> Result<Option<Heard>, Halt> {
        let listening = attempt.is_some();
        let flush_at = self.flush_at;
        let poll = self.exec.shared.settings.poll_every;
        let answered = async {
            match &mut self.written {
                // What is not heard of is looked for.
                Some(written) => {
                    let _ = tokio::time::timeout(poll, written.changed()).await;
                }
                None => std::future::pending().await,
            }
        };
        let heard = async {
            match attempt {
                Some(attempt) => attempt.next().await,
                None => std::future::pending().await,
            }
        };
        let flush = async {
            match flush_at {
                Some(at) => tokio::time::sleep_until(at).await,
                None => std::future::pending().await,
            }
        };
        let late = over(self.deadline);
        let next = {
            let stop = &mut self.exec.stop;
            tokio::select! {
                biased;
                _ = stop.wait_for(|stop| *stop > Stop::Drain) => return Err(Halt::Stopped),
                () = late => {
                    self.late = true;
                    return Err(Halt::Stopped);
                }
                Some(done) = self.running.join_next(), if !self.running.is_empty() => {
                    Next::Result(done.map_err(BrokenOff::from).flatten())
                }
                () = flush => Next::Flush,
                () = answered => Next::Answers,
                heard = heard, if listening => Next::Heard(heard),
            }
        };
        match next {
            Next::Result(done) => self.settle(done, listening).await?,
            Next::Flush => self.flush().await?,
            Next::Answers => self.take_answers().await?,
            Next::Heard(heard) => return Ok(Some(heard)),
        }
        Ok(None)
    }

    fn live(&self, event: Live) {
        self.exec.shared.hub.live(self.exec.session, event);
    }

    /// Something waits to be made durable.
    fn due(&mut self) {
        let every = self.exec.shared.settings.flush_every;
        self.flush_at
            .get_or_insert_with(|| tokio::time::Instant::now() + every);
    }

    /// Makes an event of the buffer.
    fn pour(&mut self) {
        if !self.buffer.is_empty() {
            let pieces = std::mem::take(&mut self.buffer);
            self.exec.keep(EventBody::StepOutput {
                step: self.step.seq,
                pieces,
            });
        }
    }

    /// Keeps an event and takes it into the step.
    fn record(&mut self, body: EventBody) -> Result<(), Halt> {
        self.pour();
        let next = self.exec.tail.session.head + 1;
        let at = self.exec.shared.time.now();
        project::fold_step(&mut self.step, self.exec.session, next, at, &body)
            .map_err(Halt::Failed)?;
        self.exec.keep(body);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Halt> {
        self.pour();
        self.flush_at = None;
        self.exec.flush(false).await
    }

    /// Results for calls that can have none: cut off in their arguments, or hosted and unanswered.
    fn orphans(&mut self) -> Vec<EventBody> {
        let step = &self.step;
        step.calls
            .iter()
            .filter_map(|call| match (call.status, call.hosted) {
                (CallStatus::Streaming, _) => {
                    Some(recovery::settled(step, call, ToolOutcome::NotStarted))
                }
                (CallStatus::Started, true) => {
                    Some(recovery::settled(step, call, ToolOutcome::ResultMissing))
                }
                _ => None,
            })
            .collect()
    }

    /// Whether a result that came after the call was told to stop is no outcome of the call: whoever goes
    /// on settles it by its class. A call that is run again has failed for good only by itself; its
    /// tool may take a request that the host broke off for a failure.
    fn is_cut_off(&self, result: &ToolResult) -> bool {
        let over = self.late || *self.exec.stop.borrow() == Stop::User;
        let call = self.step.call(&result.call);
        let once = call.is_some_and(|call| call.effect == Some(Class::Once));
        !over
            && match result.outcome {
                ToolOutcome::Interrupted => true,
                ToolOutcome::Succeeded => false,
                _ => !once,
            }
    }

    /// Told to stop: calls may clean up for a moment, and what is known is kept.
    async fn stop(&mut self) -> Result<(), Halt> {
        self.cancel.cancel();
        let grace = tokio::time::sleep(self.exec.shared.settings.cancel_grace);
        tokio::pin!(grace);
        loop {
            tokio::select! {
                biased;
                done = self.running.join_next() => match done {
                    None => break,
                    Some(Ok(Ok((_, result, timing)))) => {
                        if !self.is_cut_off(&result) {
                            self.record(EventBody::CallSettled { step: self.step.seq, result, timing })?;
                        }
                    }
                    Some(Ok(Err(_)) | Err(_)) => {}
                },
                () = &mut grace => break,
            }
        }
        self.running.abort_all();
        if self.late || *self.exec.stop.borrow() == Stop::User {
            // The log does not say that these were started, and so would be told that they were not.
            for id in std::mem::take(&mut self.unwritten) {
                if let Some(call) = self.step.call(&id)
                    && matches!(call.status, CallStatus::Ready | CallStatus::Held)
                {
                    let body = recovery::settled(&self.step, call, ToolOutcome::Interrupted);
                    self.record(body)?;
                }
            }
        }
        self.pour();
        Ok(())
    }
}

/// Waits until a deadline; for ever where there is none.
async fn over(deadline: Option<tokio::time::Instant>) {
    match deadline {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// What an effect in progress waits for.
enum Next {
    Result(Done),
    Flush,
    Answers,
    Heard(Heard),
}
