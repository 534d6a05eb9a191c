//! What the benchmarks share. Each file of `benches` asks one question; `docs/benchmarks.md` holds the
//! answers and says how they were taken.
//!
//! [`world`] is a node as the binary wires one, on a real disk with real components; [`turn`] is the
//! unit of work; [`bare`] is what it is compared with, and [`raw`] what the
//! store is; [`view`] is what a runner is asked with; [`work`] is what a crash interrupts; [`weight`] is how large a log is; [`report`] is how figures are told.

pub mod bare;
pub mod guests;
pub mod raw;
pub mod report;
pub mod turn;
pub mod view;
pub mod weight;
pub mod work;
pub mod world;

/// The binary's.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Whether this is a measurement. Without cargo's `--bench`, as under `cargo test`, each benchmark does
/// one small round, which proves that it still runs and measures nothing.
#[must_use]
pub fn is_measured() -> bool {
    std::env::args().any(|argument| argument == "--bench")
        && !std::env::args().any(|argument| argument == "--quick")
}
