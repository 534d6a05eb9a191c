//! Guests: WebAssembly components behind the port `mainstay_core::plugin::Plugins`, and the only way
//! out of the host that they have.
//!
//! Read [`runtime`] first: it loads components and gives each call an instance of its own.
//! [`inspect`] says what may be loaded, [`limits`] what a guest may use, [`egress`] what it may send.
//! What guests import is in `host`, one file per interface.

mod bindings;
mod cache;
mod decoder;
pub mod egress;
mod engine;
mod host;
pub mod inspect;
mod instance;
pub mod limits;
pub mod registry;
pub mod runtime;
mod way;

pub use cache::Swept;
pub use registry::{ComponentSource, MemorySource};
pub use runtime::{ReusedRunner, Runtime, RuntimeConfig};
