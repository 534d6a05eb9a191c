//! The components that are measured.

/// The shipped runner.
pub const LOOP: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_LOOP"));

/// The shipped provider that speaks to servers.
pub const OPENAI_CHAT: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_OPENAI_CHAT"));

/// The shipped provider that answers by itself.
pub const PARROT: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_PARROT"));

/// The shipped toolbox that uses files.
pub const FILES: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_FILES"));

/// Calls `thing` in every step but the last, without a model.
pub const BENCH_RUNNER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_BENCH_RUNNER"));

/// Has the tool `thing`, which gives 300 bytes.
pub const BENCH_TOOLBOX: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_BENCH_TOOLBOX"));

/// Spins if its prompt says `spin`, and computes if it says `compute`.
pub const HOSTILE_RUNNER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_HOSTILE_RUNNER"));

/// Does what its prompt says line by line, waits included.
pub const PLANNER: &[u8] = include_bytes!(env!("MAINSTAY_GUEST_PLANNER"));
