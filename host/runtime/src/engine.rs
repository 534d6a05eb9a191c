//! The one engine: how guests are compiled and where their memories lie.

use std::time::Duration;

use wasmtime::{
    Config, Enabled, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig,
};

/// How often a running guest lets others have its thread, and the unit in which its CPU time is
/// counted.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// No memory of a guest can be greater, whatever its limit says.
pub(crate) const MEMORY_BYTES_MAX: usize = 256 << 20;
/// No table of a guest can be greater.
pub(crate) const TABLE_ELEMENTS_MAX: usize = 100_000;
/// Of each slot's memory and table, what stays mapped between two instances.
const KEPT_BYTES: usize = 64 << 10;
/// Memories of one component, and tables.
pub(crate) const PARTS_MAX: u32 = 32;
/// Core instances of one component. A language's runtime brings its libraries as modules of their own:
/// Python's takes 38.
pub(crate) const CORE_INSTANCES_MAX: u32 = 64;

/// Whether guests that are running can be stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Guests {
    /// At every turn of a loop and at every call they look whether an epoch has passed.
    Interruptible,
    Uninterruptible,
}

/// Makes the engine and the thread that ticks for it. The thread ends with the engine.
pub(crate) fn engine(instances: u32, guests: Guests) -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        // A count and no memory: never the reason that there is no room.
        .total_core_instances(instances.saturating_mul(CORE_INSTANCES_MAX))
        .total_memories(instances.saturating_mul(2).max(PARTS_MAX))
        .total_tables(instances.saturating_mul(2).max(PARTS_MAX))
        .total_stacks(instances)
        .max_core_instances_per_component(CORE_INSTANCES_MAX)
        .max_memories_per_component(PARTS_MAX)
        .max_tables_per_component(PARTS_MAX)
        .max_component_instance_size(4 << 20)
        .max_core_instance_size(4 << 20)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX)
        // A small guest's memory is wiped by hand: cheaper than having the kernel map it anew. Where the
        // kernel can say which pages were written, these are, else the lowest: a guest's stack lies there.
        .pagemap_scan(Enabled::Auto)
        .linear_memory_keep_resident(KEPT_BYTES)
        .table_keep_resident(KEPT_BYTES);

    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(guests == Guests::Interruptible)
        // The contract has no async functions; every instance is the cheaper for it.
        .concurrency_support(false)
        // The same decision for the same view, on any machine.
        .cranelift_nan_canonicalization(true)
        .relaxed_simd_deterministic(true)
        .cranelift_opt_level(OptLevel::Speed);
    let engine = Engine::new(&config)?;

    let weak = engine.weak();
    std::thread::Builder::new()
        .name("guest-epochs".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(TICK);
                match weak.upgrade() {
                    Some(engine) => engine.increment_epoch(),
                    None => break,
                }
            }
        })?;
    Ok(engine)
}
