//! What a guest may use, and how going past it is told from other failures.

use std::fmt;
use std::time::Duration;

use mainstay_core::plugin::Kind;
use wasmtime::ResourceLimiter;

use crate::engine;

/// All limits. The defaults are those that the WIT package names.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    pub runner: RunnerLimits,
    pub provider: ProviderLimits,
    pub toolbox: ToolboxLimits,
    pub logging: LogLimits,
}

/// What one instance may use, and one call in it.
#[derive(Clone, Copy, Debug)]
pub struct Use {
    /// Of all memories together. At most 256 MiB.
    pub memory_bytes: usize,
    /// Of all tables together. At most 100,000.
    pub table_elements: usize,
    /// At most 32.
    pub tables: usize,
    /// At most 32.
    pub memories: usize,
    /// Core instances. At most 64.
    pub instances: usize,
    /// Time in which its code runs, per call, to the hundredth of a second.
    pub cpu: Duration,
    /// Time until it answers, per call.
    pub wall: Duration,
}

impl Use {
    const fn new(memory_mib: usize, cpu_s: u64, wall_s: u64) -> Self {
        Self {
            memory_bytes: memory_mib << 20,
            table_elements: engine::TABLE_ELEMENTS_MAX,
            tables: engine::PARTS_MAX as usize,
            memories: engine::PARTS_MAX as usize,
            instances: engine::CORE_INSTANCES_MAX as usize,
            cpu: Duration::from_secs(cpu_s),
            wall: Duration::from_secs(wall_s),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct RunnerLimits {
    pub decide: Use,
    /// Of a decision, its state included.
    pub decision_bytes: usize,
    pub state_bytes: usize,
    /// Text that one decision may read of the history.
    pub history_bytes: u64,
}

impl Default for RunnerLimits {
    fn default() -> Self {
        Self {
            decide: Use::new(64, 1, 5),
            decision_bytes: 1 << 20,
            state_bytes: 256 << 10,
            history_bytes: 16 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ProviderLimits {
    pub encode: Use,
    /// Each call of a decoder, and `classify`.
    pub decode: Use,
    pub exchange_bytes: usize,
    pub memo_bytes: usize,
    /// Of one event.
    pub event_bytes: usize,
    /// Of all events of one answer.
    pub events_bytes: usize,
    /// On average over an answer, which may begin with the worth of [`EVENTS_BURST`].
    pub events_per_s: u32,
}

/// Seconds' worth of events that may come at once: a short answer arrives in one piece.
pub const EVENTS_BURST: Duration = Duration::from_secs(10);

impl Default for ProviderLimits {
    fn default() -> Self {
        Self {
            encode: Use::new(64, 5, 30),
            decode: Use::new(64, 1, 5),
            exchange_bytes: 16 << 20,
            memo_bytes: 64 << 10,
            event_bytes: 1 << 20,
            events_bytes: 16 << 20,
            events_per_s: 1_000,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct ToolboxLimits {
    pub call: Use,
    pub text_bytes: usize,
    pub media_bytes: usize,
    /// Tools of one toolbox.
    pub tools: usize,
    /// Of their definitions together.
    pub tools_bytes: usize,
}

impl Default for ToolboxLimits {
    fn default() -> Self {
        Self {
            call: Use::new(256, 10, 600),
            text_bytes: 1 << 20,
            media_bytes: 32 << 20,
            tools: 256,
            tools_bytes: 1 << 20,
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub struct LogLimits {
    /// In one call.
    pub lines: u32,
    pub line_bytes: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            lines: 1_000,
            line_bytes: 4 << 10,
        }
    }
}

impl Limits {
    /// What `describe`, and `list` of a toolbox, may use.
    pub(crate) fn describe(&self, kind: Kind) -> Use {
        let of_kind = match kind {
            Kind::Runner => self.runner.decide,
            Kind::Provider => self.provider.encode,
            Kind::Toolbox => self.toolbox.call,
        };
        Use {
            cpu: Duration::from_secs(1),
            wall: Duration::from_secs(5),
            ..of_kind
        }
    }
}

/// A limit that a guest went past. Travels through wasmtime as the cause of its trap.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Breach(String);

impl Breach {
    /// `limit` completes "went past the …".
    pub(crate) fn new(limit: impl fmt::Display) -> Self {
        Self(limit.to_string())
    }

    pub(crate) fn cpu(limit: Duration) -> Self {
        Self(format!("CPU limit of {}", seconds(limit)))
    }

    pub(crate) fn wall(limit: Duration) -> Self {
        Self(format!("wall-time limit of {}", seconds(limit)))
    }

    pub(crate) fn output(what: &str, limit: usize) -> Self {
        Self(format!("{what} limit of {}", bytes(limit)))
    }
}

/// `64 MiB`, for messages.
pub(crate) fn bytes(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 && bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 && bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

fn seconds(time: Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

/// Counts what one instance uses. Past a limit it traps rather than let an allocation fail: a guest
/// that cannot allocate traps anyway, and would not say why.
pub(crate) struct Limiter {
    pub(crate) limits: Use,
    memory_bytes: usize,
    table_elements: usize,
    /// How long the call that is running was seen running.
    ran: Duration,
}

impl Limiter {
    pub(crate) fn new(limits: Use) -> Self {
        Self {
            limits,
            memory_bytes: 0,
            table_elements: 0,
            ran: Duration::ZERO,
        }
    }

    /// A new call begins.
    pub(crate) fn restart(&mut self) {
        self.ran = Duration::ZERO;
    }

    /// The guest was seen running, for so long.
    pub(crate) fn ran(&mut self, time: Duration) -> Result<(), Breach> {
        self.ran += time;
        if self.ran > self.limits.cpu {
            return Err(Breach::cpu(self.limits.cpu));
        }
        Ok(())
    }
}

impl ResourceLimiter for Limiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let limit = self.limits.memory_bytes.min(engine::MEMORY_BYTES_MAX);
        let total = self
            .memory_bytes
            .saturating_add(desired.saturating_sub(current));
        if total > limit {
            return Err(Breach::output("memory", limit).into());
        }
        self.memory_bytes = total;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        current: usize,
        desired: usize,
        _maximum: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let limit = self.limits.table_elements.min(engine::TABLE_ELEMENTS_MAX);
        let total = self
            .table_elements
            .saturating_add(desired.saturating_sub(current));
        if total > limit {
            return Err(Breach::new(format_args!("table limit of {limit} elements")).into());
        }
        self.table_elements = total;
        Ok(true)
    }

    fn instances(&self) -> usize {
        self.limits.instances
    }

    fn tables(&self) -> usize {
        self.limits.tables
    }

    fn memories(&self) -> usize {
        self.limits.memories
    }
}
