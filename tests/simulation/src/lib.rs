//! Whole nodes without a disk, a guest or a network. Scripted plugins and a store that dies at a chosen
//! commit, for tests that say what happens; and a simulation of many nodes under a script that follows
//! from a seed, judged after every commit.

pub mod crash;
pub mod decisions;
pub mod invariant;
pub mod plugins;
pub mod world;

pub mod generate;
pub mod play;
pub mod script;
pub mod shrink;

pub mod broken;
pub mod guest;
pub mod judge;
pub mod link;
pub mod sim;
