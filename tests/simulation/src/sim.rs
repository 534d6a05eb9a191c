//! What all processes of one run stand on: time, chance, and which faults there are just now. Time is
//! that of a paused runtime, which moves only when every task waits.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_core::id::Millis;
use mainstay_core::port::Clock;
use tokio::sync::watch;
use tokio::time::Instant;

use crate::script::{Fault, Script};

/// Wall time at the beginning.
const BEGAN: Millis = 1_700_000_000_000;

/// The surroundings of one run.
pub struct Sim {
    seed: u64,
    latency_ms: u64,
    start: Instant,
    nodes: Vec<NodeTime>,
    faults: Mutex<Vec<(Option<usize>, Fault, u64)>>,
}

/// Time as one node sees it.
struct NodeTime {
    /// Set while the node is stopped: the time at which that began. Its threads stand still and so see
    /// none go by; when it goes on they see all of it at once.
    stopped: watch::Sender<Option<u64>>,
    skew_ms: AtomicI64,
}

impl Sim {
    /// Begins now.
    #[must_use]
    pub fn new(script: &Script) -> Arc<Self> {
        let time = |_| NodeTime {
            stopped: watch::Sender::new(None),
            skew_ms: AtomicI64::new(0),
        };
        Arc::new(Self {
            seed: script.seed,
            latency_ms: script.latency_ms,
            start: Instant::now(),
            nodes: (0..script.nodes).map(time).collect(),
            faults: Mutex::default(),
        })
    }

    /// Time since the beginning, in ms.
    #[must_use]
    pub fn now_ms(&self) -> u64 {
        self.start.elapsed().as_millis() as u64
    }

    /// Waits until so many ms have passed since the beginning.
    pub async fn until(&self, at_ms: u64) {
        tokio::time::sleep_until(self.start + Duration::from_millis(at_ms)).await;
    }

    /// A number below `below` that follows from the seed and `of`; 0 where there is none.
    pub fn roll(&self, of: impl std::hash::Hash, below: u64) -> u64 {
        let mut hasher = DefaultHasher::new();
        (self.seed, of).hash(&mut hasher);
        hasher.finish().checked_rem(below).unwrap_or(0)
    }

    /// Stops a node or lets it go on.
    pub fn stop(&self, node: usize, stop: bool) {
        let now = self.now_ms();
        self.nodes[node].stopped.send_if_modified(|stopped| {
            let changes = stopped.is_some() != stop;
            if changes {
                *stopped = stop.then_some(now);
            }
            changes
        });
    }

    /// Returns once the node is not stopped.
    pub async fn running(&self, node: usize) {
        let mut stopped = self.nodes[node].stopped.subscribe();
        // The sender lives as long as `self`.
        let _ = stopped.wait_for(Option::is_none).await;
    }

    /// Steps a node's wall clock.
    pub fn step_clock(&self, node: usize, by_ms: i64) {
        self.nodes[node].skew_ms.fetch_add(by_ms, Ordering::Relaxed);
    }

    /// Begins a fault.
    pub fn begin(&self, node: Option<usize>, fault: Fault, for_ms: u64) {
        let until = self.now_ms() + for_ms;
        self.faults().push((node, fault, until));
    }

    /// Ends all faults and lets all nodes go on.
    pub fn heal(&self) {
        self.faults().clear();
        for node in 0..self.nodes.len() {
            self.stop(node, false);
        }
    }

    /// Something that `pick` finds among the faults that a node meets now; the newest wins.
    pub fn fault<T>(&self, node: usize, pick: impl Fn(Fault) -> Option<T>) -> Option<T> {
        let now = self.now_ms();
        let faults = self.faults();
        let mut here = faults
            .iter()
            .rev()
            .filter(|(of, _, until)| of.is_none_or(|of| of == node) && *until > now);
        here.find_map(|(_, fault, _)| pick(*fault))
    }

    /// Most that a call of the store takes each way now, in ms.
    #[must_use]
    pub fn latency_ms(&self, node: usize) -> u64 {
        let slow = self.fault(node, |fault| match fault {
            Fault::Slow(ms) => Some(ms),
            _ => None,
        });
        self.latency_ms + slow.unwrap_or(0)
    }

    fn faults(&self) -> MutexGuard<'_, Vec<(Option<usize>, Fault, u64)>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The store's clock.
impl Clock for Sim {
    fn wall(&self) -> Millis {
        BEGAN + self.now_ms()
    }

    fn monotonic(&self) -> Millis {
        self.now_ms()
    }
}

/// One node's clock.
pub struct NodeClock {
    pub sim: Arc<Sim>,
    pub node: usize,
}

impl Clock for NodeClock {
    fn wall(&self) -> Millis {
        let skew = self.sim.nodes[self.node].skew_ms.load(Ordering::Relaxed);
        (BEGAN + self.monotonic()).saturating_add_signed(skew)
    }

    fn monotonic(&self) -> Millis {
        let stopped = *self.sim.nodes[self.node].stopped.borrow();
        stopped.unwrap_or_else(|| self.sim.now_ms())
    }
}
