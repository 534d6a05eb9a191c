//! `mainstay:plugin@0.1.0`. The three worlds share the types of the interfaces that they share.

#![allow(
    unreachable_pub,
    clippy::all,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

pub mod runner {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "runner",
        imports: {
            "mainstay:plugin/history": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        with: {
            "mainstay:plugin/history.history": crate::host::history::History,
        },
    });
}

pub mod provider {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "provider",
        imports: { default: trappable },
        exports: { default: async },
        with: {
            "mainstay:plugin/types": super::runner::mainstay::plugin::types,
            "mainstay:plugin/logging": super::runner::mainstay::plugin::logging,
            "mainstay:plugin/manifest": super::runner::mainstay::plugin::manifest,
        },
    });
}

pub mod toolbox {
    wasmtime::component::bindgen!({
        path: "../../wit/0.1.0",
        world: "toolbox",
        imports: {
            "mainstay:plugin/fetching": async | trappable,
            default: trappable,
        },
        exports: { default: async },
        with: {
            "mainstay:plugin/types": super::runner::mainstay::plugin::types,
            "mainstay:plugin/logging": super::runner::mainstay::plugin::logging,
            "mainstay:plugin/manifest": super::runner::mainstay::plugin::manifest,
            "mainstay:plugin/http": super::provider::mainstay::plugin::http,
        },
    });
}

pub(crate) use provider::exports::mainstay::plugin::models;
pub(crate) use provider::mainstay::plugin::http;
pub(crate) use runner::exports::mainstay::plugin::steps;
pub(crate) use runner::mainstay::plugin::{history, logging, manifest, types};
pub(crate) use toolbox::exports::mainstay::plugin::tools;
pub(crate) use toolbox::mainstay::plugin::{calling, fetching};
