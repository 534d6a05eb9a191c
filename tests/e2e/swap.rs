//! Plugins that are swapped while sessions wait and run, taken away, and asked again for what is
//! recorded, with the real binary; processes are killed in the middle of steps.

mod support;

#[path = "steer/contract.rs"]
mod contract;
#[path = "steer/world.rs"]
#[allow(dead_code, reason = "each test file uses its part")]
mod world;

mod swap {
    mod folder;
    mod live;
    mod place;
    mod removal;
    mod replay;
    mod state;
}
