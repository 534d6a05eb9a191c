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
use crate::engine;
use crate::host::history::{History, Unreadable};
use crate::host::{Guest, HANDLES_MAX};
use crate::limits::Breach;

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

/// How many times as long as a guest has run other tasks get then, where they have so much to do. So
/// one that computes has a ninth of a busy thread, and the more of its limit of time is waited.
const OTHERS: u32 = 8;
/// A round of other tasks that took no longer had next to nothing to do.
const ROUND_MIN: Duration = Duration::from_micros(100);

/// Lets other tasks have the thread of a guest that has been running for an epoch. Where there is nothing else
/// to do it takes no time.
async fn give_way() {
    let mut owed = engine::TICK * OTHERS;
    while !owed.is_zero() {
        let left = Instant::now();
        // Behind all that the thread has to do now, which waking itself at once would not be.
        tokio::task::yield_now().await;
        let round = left.elapsed();
        if round < ROUND_MIN {
            break;
        }
        owed = owed.saturating_sub(round);
    }
}

impl Instance {
    pub(crate) fn new(engine: &Engine, guest: Guest, label: Arc<Label>, place: Place) -> Self {
        let mut store = Store::new(engine, guest);
        store.limiter(|guest| &mut guest.limiter);
        store.set_epoch_deadline(1);
        store.epoch_deadline_callback(|mut store| {
            store.data_mut().limiter.tick()?;
            Ok(UpdateDeadline::YieldCustom(1, Box::pin(give_way())))
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
        guest.lines.restart(context);
        let wall = guest.limiter.limits.wall;
        // The host copies no more than this out of the guest, whatever the guest says it has.
        self.store.set_hostcall_fuel(
            function
                .output_bytes
                .saturating_mul(2)
                .saturating_add(LIFT_SLACK),
        );
        let answer = tokio::time::timeout(wall, run(&mut self.store)).await;
        match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(error)) => Err(self.failed(function, &error)),
            Err(_) => Err(self.breach(function.name, &Breach::wall(wall))),
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// Rounds that others get whose rounds take `each`.
    async fn rounds(each: Duration) -> u32 {
        let served = Arc::new(AtomicU32::new(0));
        let others = tokio::spawn({
            let served = Arc::clone(&served);
            async move {
                loop {
                    served.fetch_add(1, Ordering::SeqCst);
                    // With a yield behind it.
                    tokio::time::advance(each).await;
                }
            }
        });
        give_way().await;
        others.abort();
        served.load(Ordering::SeqCst)
    }

    #[tokio::test(start_paused = true)]
    async fn a_guest_that_computes_leaves_most_of_a_busy_thread_to_others() {
        assert_eq!(rounds(Duration::ZERO).await, 1);
        assert_eq!(rounds(ROUND_MIN / 2).await, 1);
        assert_eq!(rounds(engine::TICK).await, OTHERS);
        assert_eq!(rounds(engine::TICK / 2).await, 2 * OTHERS);
        assert_eq!(rounds(engine::TICK * 100).await, 1);
    }
}
