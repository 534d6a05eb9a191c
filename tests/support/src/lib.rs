//! What tests share: a store in memory with faults to order, a clock that is moved by hand, and
//! builders for the commits that most tests begin with.

pub mod build;
mod clock;
pub mod delegate;
mod memory;
#[cfg(unix)]
pub mod postgres;

pub use clock::ManualClock;
pub use mainstay_core::rebuild::{rebuild, rebuild_beside};
pub use memory::{Gate, Logged, MemoryStore};
