//! The effect of one step: a model's answer as it streams in, calls as they become whole, their
//! results. It goes on from wherever the step stands, so a step that recovery left open is run by the
//! same code as a fresh one.
//!
//! What is known stays in a buffer until a flush is due, a call that acts on the world needs its
//! write-ahead, or the step is settled; then it is left with the execution for the next commit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tracing::{Instrument as _, debug};
use uuid::Uuid;

use crate::approval::{self, Permission, Verdict};
use crate::arguments;
use crate::budget;
use crate::coordinator::{Stop, backoff};
use crate::decision::tools_of;
use crate::eager::{BrokenOff, Eager};
use crate::event::{EventBody, Piece, ProviderRef, Timing, ToolboxRef};
use crate::exchange::{Broken, Heard, Try};
use crate::history::Ending;
use crate::id::{Seq, digest};
use crate::live::Live;
use crate::model::{
    Effect as Class, Failure, FailureClass, FinishReason, Media, NewMedia, Part, ProviderState,
    ToolCall, ToolOutcome, ToolResult, Usage,
};
use crate::overlay::Overlay;
use crate::plugin::{
    Action, CallError, CallRequest, Exchange, Model, ModelEvent, Output, Price, Progress, Summary,
    Tool,
};
use crate::project;
use crate::recovery;
use crate::schema;
use crate::tail::{CallStatus, Step};
use crate::transcript;
use crate::turn::{Execution, Halt};

/// What came of a call that was started.
type Done = Result<(String, ToolResult, Timing), BrokenOff>;

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
            let left = until.saturating_sub(exec.shared.clock.wall());
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

    /// Asks the model, as often as it takes, if its answer is awaited.
    async fn model(&mut self) -> Result<(), Halt> {
        if !self.step.asks_model() || self.step.ending.is_some() {
            return Ok(());
        }
        let provider = self.step.started.provider.clone();
        let provider = provider.ok_or_else(|| Halt::Failed("the step names no provider".into()))?;
        let exchange = match self.encode(&provider).await {
            Ok(exchange) => exchange,
            Err(message) => {
                let failure = Failure {
                    class: FailureClass::InvalidRequest,
                    message,
                    retry_after_ms: None,
                };
                return self.end(Ending::Failed(failure)).await;
            }
        };
        let plugins = Arc::clone(&self.exec.shared.plugins);
        self.price = price_of(&self.exec.shared, &provider).await;
        let rated = plugins.rated(&provider.digest, &provider.alias).await;
        loop {
            self.wait_for_turn(&rated).await?;
            let mut attempt = Try::start(
                Arc::clone(&self.exec.shared),
                provider.clone(),
                exchange.clone(),
            );
            let broken = loop {
                match self.tick(Some(&mut attempt)).await? {
                    Some(Heard::Event(event)) => match self.take(&provider, event).await? {
                        Taken::More => {}
                        Taken::Over(ending) => return self.end(ending).await,
                        Taken::Broken(broken) => break broken,
                    },
                    Some(Heard::Over(Ok(()))) => {
                        break Broken::new(
                            FailureClass::Incomplete,
                            "the answer ended without a finish",
                        );
                    }
                    Some(Heard::Over(Err(broken))) => break broken,
                    None => {}
                }
            };
            drop(attempt);
            let tries = self.step.retries + 1;
            let untouched = self.step.content.is_empty();
            if !(broken.retry && untouched && tries < self.exec.shared.settings.max_tries) {
                return self.end(Ending::Failed(broken.failure)).await;
            }
            let settings = &self.exec.shared.settings;
            let asked =
                Duration::from_millis(u64::from(broken.failure.retry_after_ms.unwrap_or(0)));
            let wait = backoff(settings.retry_base, settings.retry_max, tries).max(asked);
            if broken.failure.class == FailureClass::RateLimited {
                let until = self.exec.shared.clock.monotonic() + wait.as_millis() as u64;
                let mut backoff = self
                    .exec
                    .shared
                    .backoff
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                for name in &rated {
                    let known = backoff.entry(name.clone()).or_default();
                    *known = (*known).max(until);
                }
            }
            debug!(tries, ?wait, failure = %broken.failure.message, "the model call is retried");
            let usage = self.usage.take();
            self.record(EventBody::RetryScheduled {
                step: self.step.seq,
                attempt: tries,
                wait_ms: wait.as_millis() as u64,
                failure: broken.failure,
                usage: usage.map(|usage| budget::priced(usage, self.price)),
            })?;
            self.exec.flush(true).await?;
            self.pause(wait).await?;
        }
    }

    async fn encode(&mut self, provider: &ProviderRef) -> Result<Exchange, String> {
        let shared = Arc::clone(&self.exec.shared);
        let history = Overlay::new(
            Arc::clone(&shared.store),
            self.exec.session,
            self.step.seq - 1,
            Vec::new(),
        );
        let call = self.step.model_call().ok_or("the step asks no model")?;
        let tools: Vec<Tool> = self.tools.iter().map(|(_, tool)| tool.clone()).collect();
        let basis = &self.step.started.basis;
        let last = self.step.asks_without_tools();
        let request = transcript::request(
            &history,
            call,
            provider,
            &tools,
            basis.context.through,
            last,
        )
        .await
        .map_err(|error| error.to_string())?;
        self.asked = Some(transcript::text_bytes(&request));
        shared
            .plugins
            .encode(&provider.digest, request)
            .await
            .map_err(|error| error.to_string())
    }

    /// Waits until all of these may be used again.
    async fn wait_for_turn(&mut self, rated: &[String]) -> Result<(), Halt> {
        loop {
            let shared = &self.exec.shared;
            let until = {
                let backoff = shared
                    .backoff
                    .lock()
                    .unwrap_or_else(std::sync::PoisonError::into_inner);
                let until = rated.iter().filter_map(|name| backoff.get(name)).max();
                until.copied().unwrap_or(0)
            };
            let now = shared.clock.monotonic();
            if until <= now {
                return Ok(());
            }
            self.pause(Duration::from_millis(until - now)).await?;
        }
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

    /// Takes one event of the model in.
    async fn take(&mut self, provider: &ProviderRef, event: ModelEvent) -> Result<Taken, Halt> {
        if self.first_ms.is_none() {
            self.first_ms = Some(self.began.elapsed().as_millis() as u64);
        }
        if matches!(self.step.started.action, Action::Compact(_)) && is_of_a_call(&event) {
            // Nothing was offered, and a summary is its words: nobody is to run or answer this.
            return Ok(Taken::More);
        }
        let seq = self.step.seq;
        let piece = match event {
            ModelEvent::Usage(usage) => {
                self.usage = Some(usage);
                return Ok(Taken::More);
            }
            ModelEvent::Finished(reason) => {
                if let Some(call) = self
                    .step
                    .calls
                    .iter()
                    .find(|call| call.status == CallStatus::Streaming)
                {
                    let rule = format!("the answer finished inside call {:?}", call.id);
                    return Ok(Taken::Broken(Broken {
                        retry: false,
                        ..Broken::new(FailureClass::Protocol, rule)
                    }));
                }
                return Ok(Taken::Over(Ending::Finished(reason)));
            }
            ModelEvent::Failed(failure) => {
                return Ok(Taken::Broken(Broken {
                    retry: failure.class.is_retried(),
                    failure,
                }));
            }
            ModelEvent::TextDelta(text) if text.is_empty() => return Ok(Taken::More),
            ModelEvent::ReasoningDelta(text) if text.is_empty() => return Ok(Taken::More),
            ModelEvent::TextDelta(text) => {
                self.live(Live::Text {
                    step: seq,
                    text: text.clone(),
                });
                Piece::Text(text)
            }
            ModelEvent::ReasoningDelta(text) => {
                self.live(Live::Reasoning {
                    step: seq,
                    text: text.clone(),
                });
                Piece::Reasoning(text)
            }
            ModelEvent::ToolCallStart { id, tool } => {
                self.live(Live::Arguments {
                    step: seq,
                    call: id.clone(),
                    tool: tool.clone(),
                    text: String::new(),
                });
                Piece::Call { id, tool }
            }
            ModelEvent::ToolCallDelta { id, arguments } => {
                let tool = self
                    .step
                    .call(&id)
                    .map_or_else(String::new, |call| call.tool.clone());
                self.live(Live::Arguments {
                    step: seq,
                    call: id.clone(),
                    tool,
                    text: arguments.clone(),
                });
                Piece::Arguments {
                    id,
                    text: arguments,
                }
            }
            ModelEvent::ToolCallEnd { id } => {
                if let Err(rule) = self.piece(Piece::CallReady { id: id.clone() }) {
                    return Ok(Taken::Broken(rule));
                }
                if self.step.call(&id).is_some_and(|call| !call.own) {
                    self.begin(&id).await?;
                }
                return Ok(Taken::More);
            }
            ModelEvent::HostedCall(call) => Piece::HostedCall(call),
            ModelEvent::HostedResult(result) => Piece::HostedResult(result),
            ModelEvent::ProviderState(data) => Piece::ProviderState(ProviderState {
                provider: provider.name.clone(),
                data,
            }),
            ModelEvent::Media(media) => Piece::Media(self.media(media).await?),
        };
        Ok(match self.piece(piece) {
            Ok(()) => Taken::More,
            Err(broken) => Taken::Broken(broken),
        })
    }

    fn live(&self, event: Live) {
        self.exec.shared.hub.live(self.exec.session, event);
    }

    /// Takes a piece of the answer in, into the buffer.
    fn piece(&mut self, piece: Piece) -> Result<(), Broken> {
        let taken = self.step.take(self.exec.session, &piece);
        taken.map_err(|rule| Broken {
            retry: false,
            ..Broken::new(FailureClass::Protocol, rule)
        })?;
        match (self.buffer.last_mut(), piece) {
            (Some(Piece::Text(last)), Piece::Text(text))
            | (Some(Piece::Reasoning(last)), Piece::Reasoning(text)) => {
                last.push_str(&text);
            }
            (Some(Piece::Arguments { id, text: last }), Piece::Arguments { id: of, text })
                if *id == of =>
            {
                last.push_str(&text);
            }
            (_, piece) => self.buffer.push(piece),
        }
        self.due();
        Ok(())
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
        project::fold_step(&mut self.step, self.exec.session, next, &body).map_err(Halt::Failed)?;
        self.exec.keep(body);
        Ok(())
    }

    async fn flush(&mut self) -> Result<(), Halt> {
        self.pour();
        self.flush_at = None;
        self.exec.flush(false).await
    }

    /// Begins a call whose arguments are whole, or settles it where it cannot be run.
    async fn begin(&mut self, id: &str) -> Result<(), Halt> {
        let Some(call) = self.step.tool_call(id).cloned() else {
            return Err(Halt::Failed(format!("call {id:?} is not in its step")));
        };
        let found = self
            .tools
            .iter()
            .find(|(_, tool)| tool.definition.name == call.tool)
            .cloned();
        let Some((toolbox, tool)) = found else {
            let text = format!("There is no tool {:?}.", call.tool);
            return self.refuse(&call, ToolOutcome::UnknownTool, text).await;
        };
        if !self.step.offers(&call.tool) {
            let text = format!("Tool {:?} was not offered here.", call.tool);
            return self.refuse(&call, ToolOutcome::UnknownTool, text).await;
        }
        let arguments = match Self::check(&tool, &call.arguments) {
            Ok(arguments) => arguments,
            Err(text) => {
                return self
                    .refuse(&call, ToolOutcome::InvalidArguments, text)
                    .await;
            }
        };
        match self.permission(&call, &arguments) {
            Permission::Given => {}
            Permission::Awaited => {
                self.listen();
                return Ok(());
            }
            Permission::ToAsk => return self.hold(&call),
            Permission::Refused(text) => {
                return self.refuse(&call, ToolOutcome::Denied, text).await;
            }
        }
        let runs = self.step.call(id).map_or(0, |call| call.runs);
        let key = Uuid::new_v5(
            &self.exec.session.0,
            format!("call/{}/{id}", self.step.seq).as_bytes(),
        )
        .to_string();
        if tool.effect != Class::Pure {
            // The write-ahead: after a crash this says that the call may have happened.
            self.record(EventBody::CallStarted {
                step: self.step.seq,
                call: id.into(),
                toolbox: toolbox.alias.clone(),
                digest: toolbox.digest.clone(),
                effect: tool.effect,
                key: key.clone(),
                run: runs + 1,
            })?;
            self.flush_at = None;
            if let Err(halt) = self.exec.flush(true).await {
                if matches!(halt, Halt::Stopped) {
                    self.exec.take_back();
                }
                return Err(halt);
            }
        }
        if tool.effect == Class::Pure {
            self.unwritten.push(id.into());
        }
        self.live(Live::Started {
            step: self.step.seq,
            call: id.into(),
            tool: call.tool.clone(),
        });
        self.start(toolbox, call, tool.effect, key, runs).await
    }

    /// Whether a call may start now.
    fn permission(&self, call: &ToolCall, arguments: &serde_json::Value) -> Permission {
        let session = &self.exec.tail.session;
        let config = self.exec.shared.config.get();
        let agent = config.agents.get(&session.agent);
        let judge = || {
            // Of an agent that is configured no more, nobody knows what it was allowed.
            let policy = agent.map(|agent| &agent.tool_policy);
            policy.map_or(Verdict::Ask, |p| p.judge(&call.tool, arguments))
        };
        approval::permission(&self.step, &session.arrived.approvals, &call.id, judge)
    }

    /// Has a person asked about a call.
    fn hold(&mut self, call: &ToolCall) -> Result<(), Halt> {
        let step = self.step.seq;
        self.record(EventBody::CallHeld {
            step,
            call: call.id.clone(),
            request: approval::request(step, call),
        })?;
        self.listen();
        self.due();
        Ok(())
    }

    /// Answers are heard of from now on.
    fn listen(&mut self) {
        let hub = &self.exec.shared.hub;
        self.written
            .get_or_insert_with(|| hub.watch_head(self.exec.session));
    }

    /// Starts or refuses the held calls that a person has answered.
    async fn take_answers(&mut self) -> Result<(), Halt> {
        if let Ok(Some(tail)) = self.exec.shared.store.tail(self.exec.session).await {
            self.exec.tail = tail;
        }
        for call in self.held() {
            self.begin(&call).await?;
        }
        Ok(())
    }

    /// Calls that are held and were not started.
    fn held(&self) -> Vec<String> {
        let held =
            self.step.calls.iter().filter(|call| {
                call.status == CallStatus::Held && !self.unwritten.contains(&call.id)
            });
        held.map(|call| call.id.clone()).collect()
    }

    fn check(tool: &Tool, arguments: &str) -> Result<serde_json::Value, String> {
        let value = arguments::parse(arguments).map_err(|error| error.to_string())?;
        let validator = schema::validator(&tool.definition.input_schema)?;
        let errors: Vec<String> = validator
            .iter_errors(&value)
            .take(5)
            .map(|error| format!("{error} at {:?}", error.instance_path().to_string()))
            .collect();
        if errors.is_empty() {
            Ok(value)
        } else {
            Err(format!(
                "The arguments break the tool's schema: {}.",
                errors.join("; ")
            ))
        }
    }

    async fn refuse(
        &mut self,
        call: &ToolCall,
        outcome: ToolOutcome,
        text: String,
    ) -> Result<(), Halt> {
        let result = ToolResult {
            call: call.id.clone(),
            tool: call.tool.clone(),
            outcome,
            output: vec![Part::Text(text)],
            whole: None,
        };
        self.record(EventBody::CallSettled {
            step: self.step.seq,
            result,
            timing: Timing::default(),
        })?;
        self.due();
        Ok(())
    }

    /// Starts a call, and settles it if that is all it takes.
    async fn start(
        &mut self,
        toolbox: ToolboxRef,
        call: ToolCall,
        effect: Class,
        key: String,
        earlier_runs: u32,
    ) -> Result<(), Halt> {
        let shared = Arc::clone(&self.exec.shared);
        let (session, step) = (self.exec.session, self.step.seq);
        let cancel = self.cancel.clone();
        let (hub, id) = (shared.hub.clone(), call.id.clone());
        let progress = Progress(Arc::new(move |message| {
            hub.live(
                session,
                Live::Progress {
                    step,
                    call: id.clone(),
                    message,
                },
            );
        }));
        let span = tracing::info_span!("call", step, call = %call.id, tool = %call.tool);
        let task = async move {
            let began = Instant::now();
            let request = CallRequest {
                session,
                call: call.clone(),
                effect,
                idempotency_key: key,
                earlier_runs,
                options: toolbox.options.clone(),
                toolbox: toolbox.alias.clone(),
                cancel,
                progress,
            };
            let answer = shared.plugins.call(&toolbox.digest, request).await;
            let result = worded(&shared, &call, answer).await;
            let timing = Timing {
                first_ms: None,
                total_ms: began.elapsed().as_millis() as u64,
            };
            (call.id, result, timing)
        };
        let task = task.instrument(span);
        if !self.is_alone() {
            self.running.spawn(async { Ok(task.await) });
            return Ok(());
        }
        match Eager::begin(task).await.at_once() {
            Ok(done) => self.settle(done, false).await,
            Err(task) => {
                self.running.spawn(task);
                Ok(())
            }
        }
    }

    /// The step is one call, with nothing beside it that the call could hold up.
    fn is_alone(&self) -> bool {
        !self.step.asks_model() && self.step.calls.len() == 1
    }

    /// Records the result of a call.
    async fn settle(&mut self, done: Done, listening: bool) -> Result<(), Halt> {
        let (id, result, timing) =
            done.map_err(|cause| Halt::Failed(format!("a call broke off in the host: {cause}")))?;
        let acted = self
            .step
            .call(&id)
            .is_some_and(|call| call.status == CallStatus::Started);
        self.record(EventBody::CallSettled {
            step: self.step.seq,
            result,
            timing,
        })?;
        if self.running.is_empty()
            && let Some(ending) = self.over.take()
        {
            self.close(ending)?;
        }
        let last = !listening && self.running.is_empty();
        if acted && !last {
            // What was done to the world is told at once, unless the step's last commit tells it now.
            self.flush().await?;
        } else {
            self.due();
        }
        Ok(())
    }

    /// The model's answer is over. Calls that it left open get their results first.
    async fn end(&mut self, ending: Ending) -> Result<(), Halt> {
        for body in self.orphans() {
            self.record(body)?;
        }
        if matches!(ending, Ending::Failed(_)) {
            // Nobody is to be asked about an answer that came to nothing.
            for id in self.held() {
                let call = self.step.call(&id).expect("it is of this step");
                let body = recovery::settled(&self.step, call, ToolOutcome::NotStarted);
                self.record(body)?;
            }
        }
        if matches!(ending, Ending::Failed(_)) && !self.running.is_empty() {
            // The results come before the failure: they are what the runner goes on from.
            self.over = Some(ending);
            self.flush().await?;
            while self.over.is_some() {
                self.tick(None).await?;
            }
            return Ok(());
        }
        self.close(ending)?;
        self.due();
        Ok(())
    }

    /// What the server told of what the answer used.
    fn told(&mut self) -> Option<Usage> {
        let usage = self.usage.take()?;
        Some(budget::priced(usage, self.price))
    }

    /// What the answer used so far, if it ends here.
    fn cut_off(&mut self) -> Option<Usage> {
        let usage = budget::estimated(self.usage.take(), self.asked, &self.step)?;
        Some(budget::priced(usage, self.price))
    }

    fn close(&mut self, ending: Ending) -> Result<(), Halt> {
        let timing = Timing {
            first_ms: self.first_ms,
            total_ms: self.began.elapsed().as_millis() as u64,
        };
        let usage = match ending {
            Ending::Finished(_) => self.told(),
            Ending::Failed(_) | Ending::Interrupted => self.cut_off(),
        };
        let step = self.step.seq;
        self.record(EventBody::ModelEnded {
            step,
            ending,
            usage,
            timing,
        })
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
                        // A call that was cut off has the verdict of its class, not its own words.
                        let stopped = result.outcome == ToolOutcome::Interrupted
                            && !self.late
                            && *self.exec.stop.borrow() != Stop::User;
                        if !stopped {
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

    async fn media(&self, media: NewMedia) -> Result<Media, Halt> {
        keep_media(&self.exec.shared, media)
            .await
            .map_err(Halt::Failed)
    }

    /// Moves the beginning of the live context.
    async fn compact(&mut self, through: Seq, summary: Summary) -> Result<(), Halt> {
        let step = self.step.seq;
        let text = match summary {
            Summary::Text(text) => text,
            Summary::Model(_) => {
                self.model().await?;
                match &self.step.ending {
                    Some(Ending::Finished(
                        FinishReason::Stop
                        | FinishReason::Length
                        | FinishReason::ToolCalls
                        | FinishReason::Other(_),
                    )) if !self.step.text().is_empty() => self.step.text(),
                    other => {
                        let failure = match other {
                            Some(Ending::Failed(failure)) => failure.clone(),
                            _ => Failure {
                                class: FailureClass::Incomplete,
                                message: "the model gave no summary".into(),
                                retry_after_ms: None,
                            },
                        };
                        return self.record(EventBody::ContextKept { step, failure });
                    }
                }
            }
        };
        self.record(EventBody::ContextCompacted {
            step,
            through,
            summary: vec![Part::Text(text)],
        })
    }
}

/// Whether it tells of a call, of a tool here or at the model's server.
fn is_of_a_call(event: &ModelEvent) -> bool {
    matches!(
        event,
        ModelEvent::ToolCallStart { .. }
            | ModelEvent::ToolCallDelta { .. }
            | ModelEvent::ToolCallEnd { .. }
            | ModelEvent::HostedCall(_)
            | ModelEvent::HostedResult(_)
    )
}

/// The operator's price of a model, else the one that its plugin knows.
async fn price_of(shared: &crate::node::Shared, provider: &ProviderRef) -> Option<Price> {
    let config = shared.config.get();
    let configured = config.providers.get(&provider.alias);
    let of = |models: &[Model]| {
        let model = models.iter().find(|model| model.id == provider.model);
        model.and_then(|model| model.price)
    };
    if let Some(price) = configured.and_then(|provider| of(&provider.models)) {
        return Some(price);
    }
    let info = shared.plugins.info(&provider.digest).await.ok().flatten();
    info.and_then(|info| of(&info.models))
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

/// What became of an event of the model.
enum Taken {
    More,
    Over(Ending),
    Broken(Broken),
}

async fn keep_media(shared: &crate::node::Shared, media: NewMedia) -> Result<Media, String> {
    let name = digest(&media.data);
    shared
        .store
        .blob_put(&name, &media.data)
        .await
        .map_err(|error| crate::chain(&error))?;
    Ok(Media {
        digest: name,
        media_type: media.media_type,
        size: media.data.len() as u64,
        name: media.name,
    })
}

/// The result of a call, ready to be shown to a model.
async fn worded(
    shared: &crate::node::Shared,
    call: &ToolCall,
    answer: Result<Vec<Output>, CallError>,
) -> ToolResult {
    let (outcome, outputs) = match answer {
        Ok(outputs) => (ToolOutcome::Succeeded, outputs),
        Err(error) => {
            let outcome = match &error {
                CallError::InvalidArguments(_) => ToolOutcome::InvalidArguments,
                CallError::Denied(_) => ToolOutcome::Denied,
                CallError::Failed(_) => ToolOutcome::Failed,
                CallError::Cancelled(_) => ToolOutcome::Interrupted,
                CallError::Crashed(_) => ToolOutcome::Crashed,
            };
            (outcome, vec![Output::Text(error.to_string())])
        }
    };
    let (mut output, mut whole, mut failed) = (Vec::new(), None, None);
    for piece in outputs {
        match piece {
            Output::Text(text) if text.len() <= shared.settings.tool_output_shown => {
                output.push(Part::Text(text));
            }
            Output::Text(text) => {
                let cut = text.floor_char_boundary(shared.settings.tool_output_shown);
                let note = format!("{}\n[{} of {} bytes shown]", &text[..cut], cut, text.len());
                output.push(Part::Text(note));
                let media = NewMedia {
                    media_type: "text/plain".into(),
                    name: None,
                    data: text.into_bytes(),
                };
                match keep_media(shared, media).await {
                    Ok(media) => whole = Some(media),
                    Err(cause) => failed = Some(cause),
                }
            }
            Output::Media(media) => match keep_media(shared, media).await {
                Ok(media) => output.push(Part::Media(media)),
                Err(cause) => failed = Some(cause),
            },
        }
    }
    if let Some(cause) = failed {
        output.push(Part::Text(format!(
            "Part of the output could not be kept: {cause}"
        )));
    }
    ToolResult {
        call: call.id.clone(),
        tool: call.tool.clone(),
        outcome,
        output,
        whole,
    }
}
