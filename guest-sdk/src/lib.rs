//! Runners, providers and toolboxes for Mainstay, in plain Rust.
//!
//! A plugin is a type that implements one of three traits, and one line that exports it:
//!
//! | kind | trait | line |
//! |---|---|---|
//! | runner: what a session does next | [`Runner`] | `mainstay_guest::runner!(MyRunner);` |
//! | provider: how to speak to a model server | [`Provider`] | `mainstay_guest::provider!(MyProvider);` |
//! | toolbox: tools that do something | [`Toolbox`] | `mainstay_guest::toolbox!(MyToolbox);` |
//!
//! The crate needs `crate-type = ["cdylib", "rlib"]`, this crate, and `serde` where it has state,
//! options or arguments. It compiles natively too: outside WebAssembly the line exports nothing, and
//! [`testing`] has what stands in for the host, so a plugin's logic is an ordinary unit test.
//!
//! A complete runner:
//!
//! ```
//! use mainstay_guest::runner::{Decision, ModelCall, Runner, RunnerManifest, Trigger, View};
//! use mainstay_guest::{Error, manifest};
//!
//! struct Brief;
//!
//! impl Runner for Brief {
//!     type Options = ();
//!     type State = ();
//!
//!     fn manifest() -> RunnerManifest {
//!         manifest::runner("brief", env!("CARGO_PKG_VERSION"), "Asks once and is done")
//!     }
//!
//!     fn decide(view: &View<'_>, _: (), _: &mut ()) -> Result<Decision, Error> {
//!         Ok(match &view.trigger {
//!             Trigger::ModelFailed(failure) => Decision::fail(&failure.message),
//!             Trigger::ModelFinished(_) if !view.fresh_calls() => Decision::done(),
//!             _ => Decision::call_model(ModelCall::of(view)),
//!         })
//!     }
//! }
//!
//! mainstay_guest::runner!(Brief);
//! ```
//!
//! In WebAssembly this crate brings the plugin's allocator, so a plugin has none of its own.
//!
//! The words and promises are those of the contract in `wit/`; types of it are re-exported under the
//! module where they are used.

// The generated code names this crate by its name, from here too.
extern crate self as mainstay_guest;

pub mod manifest;
pub mod types;

pub mod runner;

pub mod provider;

pub mod http;
pub mod toolbox;
pub mod workspace;

#[cfg(any(target_arch = "wasm32", test))]
mod arena;
mod error;
pub mod log;
pub mod testing;

#[doc(hidden)]
pub mod bindings;

pub use error::Error;
pub use provider::Provider;
pub use runner::Runner;
pub use toolbox::Toolbox;

#[doc(hidden)]
pub mod private {
    pub use crate::log::install_panic_hook;
    pub use crate::provider::Export as ProviderExport;
    pub use crate::runner::Export as RunnerExport;
    pub use crate::toolbox::Export as ToolboxExport;
}
