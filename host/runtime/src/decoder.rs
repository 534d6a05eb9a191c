//! The decoder of one answer: an instance that lives until the answer ends, and the count of what it
//! gives. Whether its events come in a sensible order is core's to judge.

use std::time::Instant;

use async_trait::async_trait;
use mainstay_core::model::NewMedia;
use mainstay_core::plugin::{Decoder, GuestError, ModelEvent};
use wasmtime::component::ResourceAny;

use crate::bindings::convert;
use crate::bindings::v0_1_0::provider;
use crate::instance::{Fault, FaultKind, Function, Instance};
use crate::limits::{Breach, EVENTS_BURST, ProviderLimits};

/// A decoder in its instance.
pub(crate) struct LiveDecoder {
    instance: Instance,
    guest: provider::Provider,
    resource: ResourceAny,
    tally: Tally,
    limits: ProviderLimits,
    /// What broke it: an instance that trapped cannot be entered again.
    broken: Option<GuestError>,
}

impl LiveDecoder {
    pub(crate) fn new(
        instance: Instance,
        guest: provider::Provider,
        resource: ResourceAny,
        limits: ProviderLimits,
    ) -> Self {
        Self {
            instance,
            guest,
            resource,
            tally: Tally::new(&limits),
            limits,
            broken: None,
        }
    }

    /// `bytes` to feed; `None` to finish.
    async fn step(&mut self, bytes: Option<Vec<u8>>) -> Result<Vec<ModelEvent>, GuestError> {
        if let Some(error) = &self.broken {
            return Err(error.clone());
        }
        let done = self.guarded(bytes).await;
        if let Err(error) = &done {
            self.broken = Some(error.clone());
        }
        done
    }

    async fn guarded(&mut self, bytes: Option<Vec<u8>>) -> Result<Vec<ModelEvent>, GuestError> {
        let function = Function {
            name: if bytes.is_some() { "feed" } else { "finish" },
            output: "answer",
            output_bytes: self.limits.events_bytes,
        };
        let (guest, resource) = (&self.guest, self.resource);
        let events = self
            .instance
            .run(function, String::new(), async |store| {
                let decoder = guest.mainstay_plugin_models().decoder();
                match &bytes {
                    Some(bytes) => decoder.call_feed(store, resource, bytes).await,
                    None => decoder.call_finish(store, resource).await,
                }
            })
            .await
            .map_err(|fault| self.name_rate(fault))?;
        let breach = self.tally.count(events.len()).err();
        let events: Vec<ModelEvent> = convert::list(events);
        let breach = breach.or_else(|| {
            events
                .iter()
                .find_map(|event| self.tally.bytes(event).err())
        });
        match breach {
            Some(breach) => Err(self.instance.breach(function.name, &breach).into()),
            None => Ok(events),
        }
    }

    /// Too much to be copied is too many events or too great ones; nobody counted.
    fn name_rate(&self, fault: Fault) -> GuestError {
        if fault.kind == FaultKind::Limit && fault.text.contains("answer limit") {
            return GuestError::Limit(format!(
                "{} (and of {} events per second)",
                fault.text, self.limits.events_per_s
            ));
        }
        fault.into()
    }
}

#[async_trait]
impl Decoder for LiveDecoder {
    async fn feed(&mut self, bytes: Vec<u8>) -> Result<Vec<ModelEvent>, GuestError> {
        self.step(Some(bytes)).await
    }

    async fn finish(&mut self) -> Result<Vec<ModelEvent>, GuestError> {
        self.step(None).await
    }
}

/// The events of one answer, counted.
pub(crate) struct Tally {
    began: Instant,
    events: u64,
    /// Bytes that may still come.
    left: usize,
    limits: ProviderLimits,
}

impl Tally {
    pub(crate) fn new(limits: &ProviderLimits) -> Self {
        Self {
            began: Instant::now(),
            events: 0,
            left: limits.events_bytes,
            limits: *limits,
        }
    }

    /// Bytes of all events so far.
    pub(crate) fn counted_bytes(&self) -> usize {
        self.limits.events_bytes - self.left
    }

    fn count(&mut self, more: usize) -> Result<(), Breach> {
        self.events += more as u64;
        let time = self.began.elapsed() + EVENTS_BURST;
        let rate = self.limits.events_per_s;
        if self.events as f64 > time.as_secs_f64() * f64::from(rate) {
            return Err(Breach::new(format_args!(
                "event rate limit of {rate} events per second"
            )));
        }
        Ok(())
    }

    pub(crate) fn bytes(&mut self, event: &ModelEvent) -> Result<(), Breach> {
        let bytes = event_bytes(event);
        if bytes > self.limits.event_bytes {
            return Err(Breach::output("event", self.limits.event_bytes));
        }
        self.left = self
            .left
            .checked_sub(bytes)
            .ok_or_else(|| Breach::output("answer", self.limits.events_bytes))?;
        Ok(())
    }
}

fn event_bytes(event: &ModelEvent) -> usize {
    match event {
        ModelEvent::TextDelta(text) | ModelEvent::ReasoningDelta(text) => text.len(),
        ModelEvent::ToolCallStart { id, tool } => id.len() + tool.len(),
        ModelEvent::ToolCallDelta { id, arguments } => id.len() + arguments.len(),
        ModelEvent::ToolCallEnd { id } => id.len(),
        ModelEvent::HostedCall(call) => call.id.len() + call.tool.len() + call.arguments.len(),
        ModelEvent::HostedResult(result) => result.call.len() + result.data.len(),
        ModelEvent::ProviderState(data) => data.len(),
        ModelEvent::Media(media) => media_bytes(media),
        ModelEvent::Usage(_) => 0,
        ModelEvent::Finished(_) => 0,
        ModelEvent::Failed(failure) => failure.message.len(),
    }
}

pub(crate) fn media_bytes(media: &NewMedia) -> usize {
    media.data.len() + media.media_type.len() + media.name.as_ref().map_or(0, String::len)
}
