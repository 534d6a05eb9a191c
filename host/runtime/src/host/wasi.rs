//! WASI, as little of it as there can be. Nothing is inherited of the host: no variables, no
//! arguments, no input, no output, no network.

use std::path::Path;
use std::time::Duration;

use mainstay_core::id::Millis;
use mainstay_core::plugin::Workspace;
use sha2::{Digest as _, Sha256};
use wasmtime_wasi::{
    Deterministic, FsPerms, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder,
};

/// Where a toolbox finds the session's folder.
const WORKSPACE: &str = "/workspace";

/// Stand-ins for what a language runtime insists on: the time stands still at `now`, random numbers
/// follow from `seed`. The same of both gives the same guest.
pub(crate) fn inert(seed: &str, now: Millis) -> WasiCtx {
    let clock = Still(Duration::from_millis(now));
    WasiCtxBuilder::new()
        .wall_clock(clock)
        .monotonic_clock(clock)
        .secure_random(random(seed, "secure"))
        .insecure_random(random(seed, "insecure"))
        .insecure_random_seed(u128::from_be_bytes(
            block(seed, "seed", 0)[..16]
                .try_into()
                .expect("a block has 32 bytes"),
        ))
        .build()
}

/// For one call of a tool: a real clock, real random numbers and, if granted, the session's folder.
///
/// # Errors
/// The folder cannot be made or opened.
pub(crate) fn working(folder: &Path, access: Workspace) -> wasmtime::Result<WasiCtx> {
    let mut builder = WasiCtxBuilder::new();
    let perms = match access {
        Workspace::None => return Ok(builder.build()),
        Workspace::Read => FsPerms::ReadOnly,
        Workspace::ReadWrite => FsPerms::ReadWrite,
    };
    std::fs::create_dir_all(folder)?;
    builder.preopened_dir(folder, WORKSPACE, perms)?;
    Ok(builder.build())
}

#[derive(Clone, Copy)]
struct Still(Duration);

impl HostWallClock for Still {
    fn resolution(&self) -> Duration {
        Duration::from_millis(1)
    }

    fn now(&self) -> Duration {
        self.0
    }
}

impl HostMonotonicClock for Still {
    fn resolution(&self) -> u64 {
        1_000_000
    }

    fn now(&self) -> u64 {
        u64::try_from(self.0.as_nanos()).unwrap_or(u64::MAX)
    }
}

/// Bytes before the numbers repeat.
const CYCLE_BLOCKS: u32 = 128;

fn random(seed: &str, role: &str) -> Deterministic {
    let bytes = (0..CYCLE_BLOCKS).flat_map(|index| block(seed, role, index));
    Deterministic::new(bytes.collect())
}

fn block(seed: &str, role: &str, index: u32) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(role);
    hash.update([0]);
    hash.update(seed);
    hash.update(index.to_be_bytes());
    hash.finalize().into()
}
