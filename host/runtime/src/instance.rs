//! One instance of one component, and what its failures mean.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::plugin::{CallError, GuestError, Kind, PluginInfo};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Instant;
use wasmtime::component::{InstancePre, Resource, ResourceTableError};
use wasmtime::{Engine, Store, Trap, UpdateDeadline};

use crate::bindings::v0_1_0::{provider, runner, toolbox};
use crate::host::history::{History, Unreadable};
use crate::host::{Guest, HANDLES_MAX};
use crate::limits::Breach;
use crate::way::Waited;

/// A plugin in messages: `runner loop@sha256:0123456789ab`.
#[derive(Clone, Debug)]
pub(crate) struct Label {
    kind: Kind,
    name: String,
    digest: String,
}

impl Label {
    pub(crate) fn of(info: &PluginInfo) -> Self {
        Self {
            kind: info.kind,
            name: info.name.clone(),
            digest: info.digest.clone(),
        }
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digest = self.digest.get(..12).unwrap_or(&self.digest);
        match self.name.as_str() {
            "" => write!(f, "{} sha256:{digest}", self.kind),
            name => write!(f, "{} {name}@sha256:{digest}", self.kind),
        }
    }
}

/// A component that is linked and can be instantiated, by its world.
#[derive(Clone)]
pub(crate) enum Linked {
    Runner(runner::RunnerPre<Guest>),
    Provider(provider::ProviderPre<Guest>),
    Toolbox(toolbox::ToolboxPre<Guest>),
}

impl Linked {
    /// # Errors
    /// The component's exports are not those of the world.
    pub(crate) fn new(kind: Kind, pre: InstancePre<Guest>) -> wasmtime::Result<Self> {
        Ok(match kind {
            Kind::Runner => Self::Runner(runner::RunnerPre::new(pre)?),
            Kind::Provider => Self::Provider(provider::ProviderPre::new(pre)?),
            Kind::Toolbox => Self::Toolbox(toolbox::ToolboxPre::new(pre)?),
        })
    }
}

/// A store with one instance to come. Dropping it drops the guest.
pub(crate) struct Instance {
    pub(crate) store: Store<Guest>,
    label: Arc<Label>,
    _place: Place,
}

/// A guest's place in the pool.
pub(crate) struct Place {
    pub(crate) _one: OwnedSemaphorePermit,
    pub(crate) _lasting: Option<OwnedSemaphorePermit>,
}

/// How long a guest is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stay {
    /// It has all that it needs, and answers.
    Short,
    /// For as long as a server answers, or the world lets a tool wait.
    Lasting,
}

/// Why a call came to nothing, before it is known whose error type it becomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    Trap,
    Limit,
    Contract,
    Host,
}

impl From<Fault> for GuestError {
    fn from(fault: Fault) -> Self {
        match fault.kind {
            FaultKind::Trap => Self::Trap(fault.text),
            FaultKind::Limit => Self::Limit(fault.text),
            FaultKind::Contract => Self::Contract(fault.text),
            FaultKind::Host => Self::Host(fault.text),
        }
    }
}

impl From<Fault> for CallError {
    fn from(fault: Fault) -> Self {
        Self::Crashed(fault.text)
    }
}

/// One call of one function.
#[derive(Clone, Copy)]
pub(crate) struct Function {
    pub(crate) name: &'static str,
    /// What the guest hands over, in messages: "decision".
    pub(crate) output: &'static str,
    /// Bytes of it.
    pub(crate) output_bytes: usize,
}

/// Room for what the canonical ABI takes besides the bytes that are counted afterwards.
const LIFT_SLACK: usize = 1 << 20;

/// What comes of `run` in time, in which what it waits for others is not counted.
async fn within<T>(limit: Duration, waited: &Waited, run: impl Future<Output = T>) -> Option<T> {
    let start = Instant::now();
    let before = waited.total();
    let mut run = std::pin::pin!(run);
    let mut deadline = start + limit;
    loop {
        if let Ok(answer) = tokio::time::timeout_at(deadline, run.as_mut()).await {
            return Some(answer);
        }
        let later = start + limit + (waited.total() - before);
        if later <= deadline {
            return None;
        }
        deadline = later;
    }
}

impl Instance {
    pub(crate) fn new(engine: &Engine, guest: Guest, label: Arc<Label>, place: Place) -> Self {
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| &mut guest.limiter);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut store| {
            let guest = store.data_mut();
            let (ran, wait) = guest.way.give();
            guest.limiter.ran(ran)?;
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(wait)))
        });
        Self {
            store,
            label,
            _place: place,
        }
    }

    /// Puts a history where the guest can be given a handle to it.
    pub(crate) fn lend(&mut self, history: History) -> Result<Resource<History>, Fault> {
        self.store
            .data_mut()
            .table
            .push(history)
            .map_err(|error| self.fault("decide", &error.into()))
    }

    /// Runs one call under its limits. `run` is given the store, and is dropped at the wall-time
    /// limit.
    pub(crate) async fn run<T>(
        &mut self,
        function: Function,
        context: String,
        run: impl AsyncFnOnce(&mut Store<Guest>) -> wasmtime::Result<T>,
    ) -> Result<T, Fault> {
        let guest = self.store.data_mut();
        guest.limiter.restart();
        guest.way.restart();
        let waited = guest.way.waited();
        guest.lines.restart(context);
        let wall = guest.limiter.limits.wall;
        // The host copies no more than this out of the guest, whatever the guest says it has.
        self.store.set_hostcall_fuel(
            function
                .output_bytes
                .saturating_mul(2)
                .saturating_add(LIFT_SLACK),
        );
        let answer = within(wall, &waited, run(&mut self.store)).await;
        match answer {
            Some(Ok(answer)) => Ok(answer),
            Some(Err(error)) => Err(self.failed(function, &error)),
            None => Err(self.breach(function.name, &Breach::wall(wall))),
        }
    }

    /// What the guest handed over goes past a limit.
    pub(crate) fn breach(&self, function: &str, breach: &Breach) -> Fault {
        Fault {
            kind: FaultKind::Limit,
            text: format!("{}: {function} went past the {breach}", self.label),
        }
    }

    /// What the guest handed over breaks the contract.
    pub(crate) fn lie(&self, function: &str, what: impl fmt::Display) -> Fault {
        Fault {
            kind: FaultKind::Contract,
            text: format!("{}: {function} {what}", self.label),
        }
    }

    /// What the guest itself says is wrong.
    pub(crate) fn refused(&self, function: &str, what: impl fmt::Display) -> GuestError {
        GuestError::Refused(format!("{}: {function}: {what}", self.label))
    }

    fn failed(&mut self, function: Function, error: &wasmtime::Error) -> Fault {
        // wasmtime keeps the type to itself; the text is all there is.
        if format!("{error:#}").contains("fuel allocated for hostcalls") {
            return self.breach(
                function.name,
                &Breach::output(function.output, function.output_bytes),
            );
        }
        self.fault(function.name, error)
    }

    fn fault(&mut self, function: &str, error: &wasmtime::Error) -> Fault {
        if let Some(breach) = error.downcast_ref::<Breach>() {
            return self.breach(function, breach);
        }
        if let Some(unreadable) = error.downcast_ref::<Unreadable>() {
            return Fault {
                kind: FaultKind::Host,
                text: format!(
                    "{}: {function}: {}",
                    self.label,
                    mainstay_core::chain(unreadable)
                ),
            };
        }
        if let Some(exit) = error.downcast_ref::<wasmtime_wasi::I32Exit>() {
            return Fault {
                kind: FaultKind::Trap,
                text: format!("{}: {function} exited with code {}", self.label, exit.0),
            };
        }
        if let Some(trap) = error.downcast_ref::<Trap>() {
            let words = self.store.data_mut().lines.take_last_words();
            let words = words.map(|words| format!("; its last words: {words}"));
            return Fault {
                kind: FaultKind::Trap,
                text: format!(
                    "{}: {function} trapped: {trap}{}",
                    self.label,
                    words.unwrap_or_default()
                ),
            };
        }
        if let Some(ResourceTableError::Full) = error.downcast_ref::<ResourceTableError>() {
            return self.breach(
                function,
                &Breach::new(format_args!("handle limit of {HANDLES_MAX}")),
            );
        }
        let text = format!("{error:#}");
        if error
            .downcast_ref::<wasmtime::PoolConcurrencyLimitError>()
            .is_some()
        {
            return Fault {
                kind: FaultKind::Host,
                text: format!(
                    "{}: {function}: no room for an instance: {text}",
                    self.label
                ),
            };
        }
        if let Some((_, what)) = text.split_once("resource limit exceeded: ") {
            let limits = self.store.data().limiter.limits;
            let limit = match what.split_whitespace().next() {
                Some("instance") => format!("instance limit of {}", limits.instances),
                Some("table") => format!("table limit of {}", limits.tables),
                _ => format!("memory limit of {} memories", limits.memories),
            };
            return self.breach(function, &Breach::new(limit));
        }
        // What is left breaks a rule of the component model: a handle that was not given, text that
        // is no UTF-8, a function of another type.
        self.lie(function, format_args!("broke the contract: {text}"))
    }
}
