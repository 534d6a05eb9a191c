//! A whole node without a disk, a guest or a network: scripted plugins, a store that dies at a chosen
//! commit, the ten invariants as functions, and a world that ties them together.

pub mod crash;
pub mod decisions;
pub mod invariant;
pub mod plugins;
pub mod world;
