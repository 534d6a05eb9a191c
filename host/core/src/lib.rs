//! The durable core of Mainstay: the words of the design, the pure decisions, the run coordinator
//! and the ports. It knows no SQL, no wasmtime and no HTTP.
//!
//! Read the modules in this order. The pure ones come first: [`commit::apply`] judges every write
//! against a [`tail::Tail`], [`project`] turns events into rows, [`recovery::plan`] settles what a
//! crash left. The ports follow, and the two that drive them: `turn` runs one execution and
//! `coordinator` decides when one runs.

pub mod access;
pub mod approval;
mod arguments;
pub mod bound;
mod budget;
pub mod bytes64;
pub mod claim;
pub mod commit;
pub mod config;
pub mod coordinator;
mod courier;
mod decision;
mod eager;
pub mod edit;
mod effect;
pub mod event;
mod exchange;
pub mod export;
pub mod history;
pub mod id;
pub mod invariant;
pub mod live;
pub mod model;
pub mod node;
pub mod nodes;
pub mod outbox;
pub mod overlay;
pub mod plugin;
pub mod policy;
pub mod port;
pub mod project;
pub mod rebuild;
pub mod recovery;
pub mod rehearse;
pub mod renewal;
pub mod replay;
mod schema;
pub mod state;
mod stopwatch;
pub mod stub;
pub mod tail;
mod time;
pub mod transcript;
mod turn;
pub mod wait;

/// The cause of an error that a port reports.
pub type BoxError = Box<dyn std::error::Error + Send + Sync + 'static>;

/// An error and its causes on one line.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

/// Whether a field says nothing that its absence would not say.
fn is_default<T: Default + PartialEq>(value: &T) -> bool {
    *value == T::default()
}
