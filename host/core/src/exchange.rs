//! One try of one model call: the request goes out, its answer comes back as model events. What a try
//! failed of is told; whether there is another is `effect`'s to say.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::event::ProviderRef;
use crate::model::{Failure, FailureClass};
use crate::node::Shared;
use crate::plugin::{EgressError, Exchange, GuestError, HttpAnswer, ModelEvent};

/// What a try says, one after the other; after [`Heard::Over`] nothing.
#[derive(Debug)]
pub(crate) enum Heard {
    Event(ModelEvent),
    /// The answer is over: cleanly, if a finish was among the events, or because of this.
    Over(Result<(), Broken>),
}

/// Why a try broke off.
#[derive(Debug)]
pub(crate) struct Broken {
    pub(crate) failure: Failure,
    /// The same bytes may fare better.
    pub(crate) retry: bool,
}

impl Broken {
    pub(crate) fn new(class: FailureClass, message: impl Into<String>) -> Self {
        let failure = Failure {
            class,
            message: message.into(),
            retry_after_ms: None,
        };
        Self {
            retry: class.is_retried(),
            failure,
        }
    }

    /// A guest at fault would be so again.
    pub(crate) fn guest(error: &GuestError) -> Self {
        let retry = matches!(error, GuestError::Host(_));
        Self {
            retry,
            ..Self::new(FailureClass::Protocol, error.to_string())
        }
    }

    fn egress(error: &EgressError) -> Self {
        match error {
            EgressError::Denied(_) | EgressError::Invalid(_) => {
                Self::new(FailureClass::InvalidRequest, error.to_string())
            }
            _ => Self::new(FailureClass::Transport, error.to_string()),
        }
    }
}

/// A try that goes on in a task of its own. Dropping it closes the connection.
pub(crate) struct Try {
    heard: mpsc::Receiver<Heard>,
    task: tokio::task::JoinHandle<()>,
}

/// Events that a try may be ahead of what is recorded.
const AHEAD: usize = 64;

impl Try {
    pub(crate) fn start(shared: Arc<Shared>, provider: ProviderRef, exchange: Exchange) -> Self {
        let (sender, heard) = mpsc::channel(AHEAD);
        let task = tokio::spawn(async move {
            let over = answer(&shared, &provider, exchange, &sender).await;
            // Nobody listens any more: the call was stopped.
            let _ = sender.send(Heard::Over(over)).await;
        });
        Self { heard, task }
    }

    /// # Cancel safety
    /// Safe.
    pub(crate) async fn next(&mut self) -> Heard {
        match self.heard.recv().await {
            Some(heard) => heard,
            None => Heard::Over(Err(Broken::new(
                FailureClass::Transport,
                "the exchange broke off in the host",
            ))),
        }
    }
}

impl Drop for Try {
    fn drop(&mut self) {
        self.task.abort();
    }
}

type Sink = mpsc::Sender<Heard>;

async fn answer(
    shared: &Shared,
    provider: &ProviderRef,
    exchange: Exchange,
    sink: &Sink,
) -> Result<(), Broken> {
    match exchange {
        Exchange::Local(events) => {
            // An event that ends the answer waits for the one behind it: there must be none.
            let mut ended: Option<ModelEvent> = None;
            for local in events {
                if let Some(ended) = &ended {
                    return Err(gone_on(ended, &local.event));
                }
                if local.after_ms > 0 {
                    tokio::time::sleep(Duration::from_millis(u64::from(local.after_ms))).await;
                }
                if ends(&local.event) {
                    ended = Some(local.event);
                } else {
                    give(sink, vec![local.event]).await?;
                }
            }
            give(sink, ended.into_iter().collect()).await?;
            Ok(())
        }
        Exchange::Http { request, memo } => {
            let timeouts = shared.settings.timeouts;
            let sending =
                shared
                    .plugins
                    .send(&provider.digest, &provider.alias, &provider.config, request);
            let sent = tokio::time::timeout(timeouts.first_byte, sending).await;
            let mut answer = sent
                .map_err(|_| {
                    Broken::new(
                        FailureClass::Transport,
                        slow("did not answer", timeouts.first_byte),
                    )
                })?
                .map_err(|error| Broken::egress(&error))?;
            let total = tokio::time::timeout(timeouts.total, async {
                if (200..300).contains(&answer.head.status) {
                    decode(shared, provider, &mut answer, memo, sink).await
                } else {
                    Err(refused(shared, provider, &mut answer).await)
                }
            });
            total.await.unwrap_or_else(|_| {
                Err(Broken::new(
                    FailureClass::Transport,
                    slow("was not done answering", timeouts.total),
                ))
            })
        }
    }
}

fn slow(what: &str, after: Duration) -> String {
    format!("the model's server {what} within {} s", after.as_secs_f64())
}

async fn decode(
    shared: &Shared,
    provider: &ProviderRef,
    answer: &mut HttpAnswer,
    memo: Vec<u8>,
    sink: &Sink,
) -> Result<(), Broken> {
    let guest = |error: GuestError| Broken::guest(&error);
    let mut decoder = shared
        .plugins
        .decoder(&provider.digest, answer.head.clone(), memo)
        .await
        .map_err(guest)?;
    loop {
        match next(shared, answer).await? {
            Some(bytes) => {
                let events = decoder.feed(bytes).await.map_err(guest)?;
                if give(sink, events).await? {
                    return Ok(());
                }
            }
            None => {
                let events = decoder.finish().await.map_err(guest)?;
                if give(sink, events).await? {
                    return Ok(());
                }
                return Err(Broken::new(
                    FailureClass::Incomplete,
                    "the answer ended without a finish",
                ));
            }
        }
    }
}

async fn next(shared: &Shared, answer: &mut HttpAnswer) -> Result<Option<Vec<u8>>, Broken> {
    let idle = shared.settings.timeouts.idle;
    match tokio::time::timeout(idle, answer.body.next()).await {
        Ok(bytes) => bytes.map_err(|error| Broken::egress(&error)),
        Err(_) => Err(Broken::new(
            FailureClass::Transport,
            slow("sent nothing more", idle),
        )),
    }
}

/// Passes events on. True once one of them ended the answer, or nobody listens any more. One that
/// ends it is passed on only if nothing stands behind it: a clean end is recorded once it is heard of.
async fn give(sink: &Sink, events: Vec<ModelEvent>) -> Result<bool, Broken> {
    let mut events = events.into_iter().peekable();
    while let Some(event) = events.next() {
        let over = ends(&event);
        if over && let Some(next) = events.peek() {
            return Err(gone_on(&event, next));
        }
        if sink.send(Heard::Event(event)).await.is_err() || over {
            return Ok(true);
        }
    }
    Ok(false)
}

fn ends(event: &ModelEvent) -> bool {
    matches!(event, ModelEvent::Finished(_) | ModelEvent::Failed(_))
}

/// What is wrong with an answer that does not stop at its end.
fn gone_on(end: &ModelEvent, next: &ModelEvent) -> Broken {
    let rule = match (end, next) {
        (ModelEvent::Finished(_), ModelEvent::Finished(_)) => "the answer finished twice",
        (ModelEvent::Finished(_), ModelEvent::Failed(_)) => "the answer failed after its finish",
        (ModelEvent::Finished(_), _) => "the answer went on after its finish",
        _ => "the answer went on after its failure",
    };
    Broken {
        retry: false,
        ..Broken::new(FailureClass::Protocol, rule)
    }
}

/// What an error answer means.
async fn refused(shared: &Shared, provider: &ProviderRef, answer: &mut HttpAnswer) -> Broken {
    const MOST: usize = 64 * 1024;
    let mut body = Vec::new();
    while body.len() < MOST {
        match next(shared, answer).await {
            Ok(Some(bytes)) => body.extend(bytes),
            // What there is of it has to do.
            Ok(None) | Err(_) => break,
        }
    }
    body.truncate(MOST);
    let failure = shared
        .plugins
        .classify(&provider.digest, answer.head.clone(), body)
        .await;
    Broken {
        retry: failure.class.is_retried(),
        failure,
    }
}
