//! How many steps does a node run in a second, as a multiple of the events that a bare loop commits to
//! the same disk? And how long does a turn take?
//!
//! Rounds of both alternate, so that what else the machine does falls on both. `-- standard 32` asks
//! only about standard turns at 32 sessions, for a profiler. With `-- slow-disk` all of it, the bare loop
//! too, runs on a disk on which each sync takes a millisecond longer.

use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainstay_bench::bare::Bare;
use mainstay_bench::report::{Table, millis, quantile, spread};
use mainstay_bench::turn::{self, Kind};
use mainstay_bench::world::World;

/// Bytes of an event's data: what those of a standard turn come to on average.
const EVENT_BYTES: usize = 375;

struct Plan {
    rounds: usize,
    bare: Duration,
    /// Sessions at once, and turns a round.
    loads: &'static [(usize, usize)],
}

const MEASURED: Plan = Plan {
    rounds: 7,
    bare: Duration::from_secs(1),
    loads: &[(1, 60), (32, 256), (128, 512)],
};

const QUICK: Plan = Plan {
    rounds: 1,
    bare: Duration::from_millis(1),
    loads: &[(1, 1), (4, 8)],
};

/// What a sync takes longer on a slow disk, in microseconds.
const SLOWER: &str = "1000";
const SLOW_DISK: &str = "slow-disk";

fn main() {
    if std::env::args().any(|name| name == SLOW_DISK) && std::env::var_os("LD_PRELOAD").is_none() {
        on_a_slow_disk();
    }
    let plan = if mainstay_bench::is_measured() {
        MEASURED
    } else {
        QUICK
    };
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let world = Arc::new(tokio.block_on(World::start(dir.path(), &tmp.join("compiled"))));
    let mut bare = Bare::open(dir.path(), EVENT_BYTES);

    let table = Table::new(&[
        "turn",
        "sessions",
        "steps/s",
        "bare commits/s",
        "steps per bare commit",
        "CPU µs per step",
        "turn p50 ms",
        "turn p99 ms",
    ]);
    let wanted = Wanted::new();
    for kind in [Kind::Standard, Kind::Model] {
        if !wanted.kind(kind) {
            continue;
        }
        // What is loaded and cached once is not part of the question.
        tokio.block_on(turn::run(&world, kind, 1, 1));
        for &(sessions, turns) in plan.loads {
            if !wanted.sessions(sessions) {
                continue;
            }
            let (mut rates, mut bares, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
            let (mut took, mut worked) = (Vec::new(), Vec::new());
            for _ in 0..plan.rounds {
                let before = bare.rate(plan.bare);
                let run = tokio.block_on(turn::run(&world, kind, sessions, turns));
                let steps = turns as f64 * f64::from(kind.steps());
                worked.push(run.worked.as_secs_f64() * 1e6 / steps);
                let after = bare.rate(plan.bare);
                let (rate, of_bare) = (steps / run.elapsed.as_secs_f64(), (before + after) / 2.0);
                rates.push(rate);
                bares.push(of_bare);
                ratios.push(rate / of_bare);
                took.extend(millis(&run.turns));
            }
            table.row(&[
                kind.name().to_owned(),
                sessions.to_string(),
                spread(&rates, 0),
                spread(&bares, 0),
                spread(&ratios, 2),
                spread(&worked, 0),
                format!("{:.1}", quantile(&took, 0.5)),
                format!("{:.1}", quantile(&took, 0.99)),
            ]);
        }
    }
    let Some(world) = Arc::into_inner(world) else {
        unreachable!("all turns are over")
    };
    tokio.block_on(world.stop());
}

/// Begins again with what makes the disk slow.
fn on_a_slow_disk() -> ! {
    let program = std::env::current_exe().expect("this program");
    let library = program.with_file_name("libmainstay_test_preload.so");
    assert!(library.exists(), "{} is not built", library.display());
    let mut again = std::process::Command::new(program);
    again
        .args(std::env::args_os().skip(1))
        .env("LD_PRELOAD", library)
        .env("MAINSTAY_TEST_FSYNC_US", SLOWER);
    panic!("cannot begin again: {}", again.exec());
}

/// What the command line names; all where it names nothing.
struct Wanted(Vec<String>);

impl Wanted {
    fn new() -> Self {
        let arguments = std::env::args().skip(1);
        Self(
            arguments
                .filter(|name| !name.starts_with('-') && name != SLOW_DISK)
                .collect(),
        )
    }

    fn kind(&self, kind: Kind) -> bool {
        let mut kinds = self.0.iter().filter(|name| name.parse::<usize>().is_err());
        kinds.clone().next().is_none() || kinds.any(|name| *name == kind.name())
    }

    fn sessions(&self, sessions: usize) -> bool {
        let mut counts = self.0.iter().filter_map(|name| name.parse::<usize>().ok());
        counts.clone().next().is_none() || counts.any(|count| count == sessions)
    }
}
