//! Providers: how to speak to a kind of model server.

use std::cell::RefCell;
use std::marker::PhantomData;

use serde::de::DeserializeOwned;

pub use crate::bindings::provider::exports::mainstay::plugin::models::{
    CallDelta, CallStart, Config, Exchange, HttpExchange, LocalEvent, ModelEvent, ModelRequest,
};
pub use crate::http::{Request, Response};
pub use crate::manifest::ProviderManifest;

use crate::bindings::provider::exports::mainstay::plugin::models;
use crate::error::Error;
use crate::types::{Failure, FailureClass, FinishReason};

/// Speaks a model server's protocol. Export it with [`provider!`](crate::provider!).
pub trait Provider {
    /// Reads answers of the server; [`NoDecoder`] for a provider whose exchanges are all local.
    type Decoder: Decoder;

    /// What it says of itself. The same at every call.
    fn manifest() -> ProviderManifest;

    /// Turns a model request into what is sent. The same request must give the same bytes.
    ///
    /// # Errors
    ///
    /// Nothing is sent and the step fails; the text is for people.
    fn encode(request: ModelRequest) -> Result<Exchange, Error>;

    /// Says what an answer outside 200 to 299 means.
    fn classify(answer: Response) -> Failure {
        failure_of_status(&answer)
    }
}

/// Reads one answer. The events depend on the bytes alone and not on how they were cut.
pub trait Decoder: 'static {
    /// Begins an answer. `head` has no body; `memo` is what `encode` left.
    fn new(head: Response, memo: Vec<u8>) -> Self;

    /// Takes the next bytes and adds what they complete to `events`.
    fn feed(&mut self, bytes: &[u8], events: &mut Vec<ModelEvent>);

    /// No more bytes will come. Not called after `finished` or `failed`.
    fn finish(&mut self, events: &mut Vec<ModelEvent>);
}

/// The decoder of a provider whose exchanges are all local: any answer is a failure.
#[derive(Debug)]
pub struct NoDecoder;

impl Decoder for NoDecoder {
    fn new(_: Response, _: Vec<u8>) -> Self {
        Self
    }

    fn feed(&mut self, _: &[u8], _: &mut Vec<ModelEvent>) {}

    fn finish(&mut self, events: &mut Vec<ModelEvent>) {
        events.push(ModelEvent::Failed(Failure::new(
            FailureClass::Protocol,
            "this provider sends no requests",
        )));
    }
}

/// What a status says by itself, with the beginning of the body as message.
#[must_use]
pub fn failure_of_status(answer: &Response) -> Failure {
    let class = match answer.status {
        401 | 403 => FailureClass::Authentication,
        402 => FailureClass::Quota,
        429 => FailureClass::RateLimited,
        503 | 529 => FailureClass::Overloaded,
        408 | 409 | 425 | 500..=599 => FailureClass::Server,
        _ => FailureClass::InvalidRequest,
    };
    let body = String::from_utf8_lossy(&answer.body);
    let text: String = body.trim().chars().take(500).collect();
    let message = if text.is_empty() {
        format!("the server answered with status {}", answer.status)
    } else {
        format!("status {}: {text}", answer.status)
    };
    Failure {
        class,
        message,
        retry_after_ms: answer.retry_after_ms(),
    }
}

impl Config {
    /// Reads the options from JSON; the default where there are none.
    ///
    /// # Errors
    ///
    /// [`Error::Config`] if they cannot be read.
    pub fn options<T: DeserializeOwned + Default>(&self) -> Result<T, Error> {
        match &self.options {
            Some(options) => serde_json::from_str(options)
                .map_err(|error| Error::Config(format!("provider options: {error}"))),
            None => Ok(T::default()),
        }
    }

    /// Whether a secret of this name is bound and granted.
    #[must_use]
    pub fn has_secret(&self, name: &str) -> bool {
        self.secrets.iter().any(|secret| secret == name)
    }
}

/// A local answer, event by event.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Local(Vec<LocalEvent>);

impl Local {
    /// An answer with nothing in it.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds an event without a pause before it.
    pub fn push(&mut self, event: ModelEvent) {
        self.push_after(0, event);
    }

    /// Adds an event with a pause before it.
    pub fn push_after(&mut self, after_ms: u32, event: ModelEvent) {
        self.0.push(LocalEvent { after_ms, event });
    }

    /// Adds a whole call.
    pub fn call(
        &mut self,
        id: impl Into<String>,
        tool: impl Into<String>,
        arguments: impl Into<String>,
    ) {
        let id = id.into();
        self.push(ModelEvent::ToolCallStart(CallStart {
            id: id.clone(),
            tool: tool.into(),
        }));
        self.push(ModelEvent::ToolCallDelta(CallDelta {
            id: id.clone(),
            arguments: arguments.into(),
        }));
        self.push(ModelEvent::ToolCallEnd(id));
    }

    /// Ends it.
    #[must_use]
    pub fn finish(mut self, reason: FinishReason) -> Exchange {
        self.push(ModelEvent::Finished(reason));
        self.exchange()
    }

    /// The exchange as it is, without an end of its own.
    #[must_use]
    pub fn exchange(self) -> Exchange {
        Exchange::Local(self.0)
    }
}

/// The export of a provider. Made by [`provider!`](crate::provider!).
#[doc(hidden)]
pub struct Export<P>(PhantomData<P>);

/// The exported resource.
#[doc(hidden)]
pub struct Cell<D>(RefCell<D>);

impl<D: Decoder> models::GuestDecoder for Cell<D> {
    fn new(head: Response, memo: Vec<u8>) -> Self {
        crate::log::install_panic_hook();
        Self(RefCell::new(D::new(head, memo)))
    }

    fn feed(&self, bytes: Vec<u8>) -> Vec<ModelEvent> {
        let mut events = Vec::new();
        self.0.borrow_mut().feed(&bytes, &mut events);
        events
    }

    fn finish(&self) -> Vec<ModelEvent> {
        let mut events = Vec::new();
        self.0.borrow_mut().finish(&mut events);
        events
    }
}

impl<P: Provider> models::Guest for Export<P> {
    type Decoder = Cell<P::Decoder>;

    fn describe() -> ProviderManifest {
        crate::log::install_panic_hook();
        P::manifest()
    }

    fn encode(call: ModelRequest) -> Result<Exchange, models::EncodeError> {
        crate::log::install_panic_hook();
        Ok(P::encode(call)?)
    }

    fn classify(answer: Response) -> Failure {
        crate::log::install_panic_hook();
        P::classify(answer)
    }
}

/// Exports a [`Provider`] from the crate. Outside WebAssembly it only checks that it is one.
#[macro_export]
macro_rules! provider {
    ($provider:ty) => {
        const _: () = {
            type MainstayExport = $crate::private::ProviderExport<$provider>;
            #[cfg(target_arch = "wasm32")]
            $crate::bindings::provider::export_provider!(
                MainstayExport with_types_in $crate::bindings::provider
            );
            #[cfg(not(target_arch = "wasm32"))]
            const _: fn() = || {
                fn is_provider<P: $crate::Provider>() {}
                is_provider::<$provider>();
                let _: ::core::option::Option<MainstayExport> = ::core::option::Option::None;
            };
        };
    };
}
