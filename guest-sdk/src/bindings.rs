//! What `wit-bindgen` makes of the contract. The rest of the crate re-exports the types and wraps the
//! functions; guests have no need to come here.
//!
//! The three worlds share their types: those of the runner's are used by the others.

#![allow(
    missing_docs,
    unreachable_pub,
    clippy::all,
    clippy::pedantic,
    clippy::allow_attributes_without_reason,
    reason = "generated code"
)]

pub mod runner {
    wit_bindgen::generate!({
        path: "../wit/0.1.0",
        world: "runner",
        pub_export_macro: true,
        export_macro_name: "export_runner",
        default_bindings_module: "mainstay_guest::bindings::runner",
        runtime_path: "::mainstay_guest::bindings::rt",
        additional_derives: [PartialEq],
        additional_derives_ignore: ["view"],
        generate_unused_types: true,
    });
}

pub mod provider {
    wit_bindgen::generate!({
        path: "../wit/0.1.0",
        world: "provider",
        pub_export_macro: true,
        export_macro_name: "export_provider",
        default_bindings_module: "mainstay_guest::bindings::provider",
        runtime_path: "::mainstay_guest::bindings::rt",
        additional_derives: [PartialEq],
        generate_unused_types: true,
        with: {
            "mainstay:plugin/types@0.1.0": crate::bindings::runner::mainstay::plugin::types,
            "mainstay:plugin/logging@0.1.0": crate::bindings::runner::mainstay::plugin::logging,
            "mainstay:plugin/manifest@0.1.0": crate::bindings::runner::mainstay::plugin::manifest,
        },
    });
}

pub mod toolbox {
    wit_bindgen::generate!({
        path: "../wit/0.1.0",
        world: "toolbox",
        pub_export_macro: true,
        export_macro_name: "export_toolbox",
        default_bindings_module: "mainstay_guest::bindings::toolbox",
        runtime_path: "::mainstay_guest::bindings::rt",
        additional_derives: [PartialEq],
        generate_unused_types: true,
        with: {
            "mainstay:plugin/types@0.1.0": crate::bindings::runner::mainstay::plugin::types,
            "mainstay:plugin/logging@0.1.0": crate::bindings::runner::mainstay::plugin::logging,
            "mainstay:plugin/manifest@0.1.0": crate::bindings::runner::mainstay::plugin::manifest,
            "mainstay:plugin/http@0.1.0": crate::bindings::provider::mainstay::plugin::http,
        },
    });
}

pub mod wasi {
    wit_bindgen::generate!({
        path: "wit",
        world: "workspace",
        runtime_path: "::mainstay_guest::bindings::rt",
        generate_all,
    });
}

pub use wit_bindgen::rt;
