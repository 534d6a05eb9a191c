//! Fetches plugins from OCI registries.
//!
//! [`Reference`] says which artifact, [`pull`] fetches it: a tag is resolved to the digest of its
//! manifest, the manifest names the one layer of WebAssembly, and no byte is given that does not
//! match the digest by which it was asked for. What is in the bytes is for the runtime to judge,
//! and where they are kept is for the store. This crate imports the core alone.

mod error;
mod manifest;
mod pull;
mod reference;

pub use error::Error;
pub use pull::{Access, Credentials, Pulled, pull};
pub use reference::{ParseError, Reference, SCHEME};
