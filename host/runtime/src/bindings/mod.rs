//! What `bindgen!` makes of each released WIT package, and the way between its types and core's.
//! Everything else in this crate speaks core's types.

pub(crate) mod convert;
pub(crate) mod v0_1_0;

/// Versions of `mainstay:plugin` that this host takes.
pub(crate) const VERSIONS: &[&str] = &["0.1.0"];
