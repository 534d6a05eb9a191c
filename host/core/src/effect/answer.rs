//! The model's answer: asked for, taken in piece by piece as it streams, tried again on one budget, and
//! priced.

use std::sync::Arc;
use std::time::Duration;

use tracing::debug;

use super::Effect;
use super::calls::keep_media;
use crate::coordinator::backoff;
use crate::event::{EventBody, Piece, ProviderRef, Timing};
use crate::exchange::{Broken, Heard, Try};
use crate::history::Ending;
use crate::id::Seq;
use crate::live::Live;
use crate::model::{
    Failure, FailureClass, FinishReason, Media, NewMedia, Part, ProviderState, ToolOutcome, Usage,
};
use crate::overlay::Overlay;
use crate::plugin::{Action, Exchange, Model, ModelEvent, Price, Summary, Tool};
use crate::tail::CallStatus;
use crate::turn::Halt;
use crate::{budget, recovery, transcript};

impl<'e> Effect<'e> {
    /// Asks the model, as often as it takes, if its answer is awaited.
    pub(super) async fn model(&mut self) -> Result<(), Halt> {
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
        self.wait_on(&rated).await?;
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
                self.hold_back(&rated, wait);
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

    /// Goes on with a wait that another process began.
    async fn wait_on(&mut self, rated: &[String]) -> Result<(), Halt> {
        let Some(retry) = self.step.retry else {
            return Ok(());
        };
        let left = retry.until.saturating_sub(self.exec.shared.time.now());
        let left = Duration::from_millis(left);
        if left.is_zero() {
            return Ok(());
        }
        if retry.limited {
            self.hold_back(rated, left);
        }
        self.pause(left).await
    }

    /// Nobody uses these before the wait is over.
    fn hold_back(&self, rated: &[String], wait: Duration) {
        let shared = &self.exec.shared;
        let until = shared.clock.monotonic() + wait.as_millis() as u64;
        let mut backoff = shared
            .backoff
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        for name in rated {
            let known = backoff.entry(name.clone()).or_default();
            *known = (*known).max(until);
        }
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
    pub(super) fn cut_off(&mut self) -> Option<Usage> {
        let usage = budget::estimated(self.usage.take(), self.asked, &self.step)?;
        Some(budget::priced(usage, self.price))
    }

    pub(super) fn close(&mut self, ending: Ending) -> Result<(), Halt> {
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

    async fn media(&self, media: NewMedia) -> Result<Media, Halt> {
        keep_media(&self.exec.shared, media)
            .await
            .map_err(Halt::Failed)
    }

    /// Moves the beginning of the live context.
    pub(super) async fn compact(&mut self, through: Seq, summary: Summary) -> Result<(), Halt> {
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

/// What became of an event of the model.
enum Taken {
    More,
    Over(Ending),
    Broken(Broken),
}
