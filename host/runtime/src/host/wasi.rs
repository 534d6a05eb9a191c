//! WASI, as little of it as there can be. Nothing is inherited of the host: no variables, no
//! arguments, no input, no output, no network.

use std::convert::Infallible;
use std::path::Path;
use std::time::Duration;

use mainstay_core::id::Millis;
use mainstay_core::plugin::Workspace;
use rand_core::TryRng;
use sha2::{Digest as _, Sha256};
use wasmtime_wasi::{FsPerms, HostMonotonicClock, HostWallClock, WasiCtx, WasiCtxBuilder};

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

/// Random numbers that follow from a seed: block after block of its hash, made when it is read. Most
/// guests never read one.
struct Seeded {
    seed: String,
    role: &'static str,
    next: u32,
    /// What is left of the block that was made last.
    left: Vec<u8>,
}

fn random(seed: &str, role: &'static str) -> Seeded {
    Seeded {
        seed: seed.to_owned(),
        role,
        next: 0,
        left: Vec::new(),
    }
}

impl Seeded {
    fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.fill(&mut bytes);
        bytes
    }

    fn fill(&mut self, bytes: &mut [u8]) {
        for byte in bytes {
            if self.left.is_empty() {
                self.left = block(&self.seed, self.role, self.next).to_vec();
                // From the first byte to the last.
                self.left.reverse();
                self.next = self.next.wrapping_add(1);
            }
            *byte = self.left.pop().expect("a block has bytes");
        }
    }
}

impl TryRng for Seeded {
    type Error = Infallible;

    fn try_next_u32(&mut self) -> Result<u32, Infallible> {
        Ok(u32::from_le_bytes(self.take()))
    }

    fn try_next_u64(&mut self) -> Result<u64, Infallible> {
        Ok(u64::from_le_bytes(self.take()))
    }

    fn try_fill_bytes(&mut self, bytes: &mut [u8]) -> Result<(), Infallible> {
        self.fill(bytes);
        Ok(())
    }
}

fn block(seed: &str, role: &str, index: u32) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(role);
    hash.update([0]);
    hash.update(seed);
    hash.update(index.to_be_bytes());
    hash.finalize().into()
}
