//! The one engine: how guests are compiled and where their memories lie.

use std::time::Duration;

use wasmtime::{Config, Engine, InstanceAllocationStrategy, OptLevel, PoolingAllocationConfig};

/// How often a running guest lets others have its thread, and the unit in which its CPU time is
/// counted.
pub(crate) const TICK: Duration = Duration::from_millis(10);

/// No memory of a guest can be greater, whatever its limit says.
pub(crate) const MEMORY_BYTES_MAX: usize = 256 << 20;
/// No table of a guest can be greater.
pub(crate) const TABLE_ELEMENTS_MAX: usize = 100_000;
/// What language runtimes (Python's, say) need of the parts of one component.
pub(crate) const PARTS_MAX: u32 = 32;

/// Makes the engine and the thread that ticks for it. The thread ends with the engine.
pub(crate) fn engine(instances: u32) -> wasmtime::Result<Engine> {
    let mut pool = PoolingAllocationConfig::new();
    pool.total_component_instances(instances)
        .total_core_instances(instances.saturating_mul(8).max(PARTS_MAX))
        .total_memories(instances.saturating_mul(2).max(PARTS_MAX))
        .total_tables(instances.saturating_mul(2).max(PARTS_MAX))
        .total_stacks(instances)
        .max_core_instances_per_component(PARTS_MAX)
        .max_memories_per_component(PARTS_MAX)
        .max_tables_per_component(PARTS_MAX)
        .max_component_instance_size(4 << 20)
        .max_core_instance_size(4 << 20)
        .max_memory_size(MEMORY_BYTES_MAX)
        .table_elements(TABLE_ELEMENTS_MAX);

    let mut config = Config::new();
    config
        .allocation_strategy(InstanceAllocationStrategy::Pooling(pool))
        .epoch_interruption(true)
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
