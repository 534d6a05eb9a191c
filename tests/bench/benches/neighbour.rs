//! How much longer do turns take beside a guest that spins? A hundred sessions take standard turns, with
//! and without one session whose runner computes without end until its CPU limit, over and over.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use mainstay_bench::report::{Table, millis, quantile, spread};
use mainstay_bench::turn::{self, Kind};
use mainstay_bench::world::{self, World};
use mainstay_core::event::TurnOutcome;

struct Plan {
    rounds: usize,
    sessions: usize,
    turns: usize,
}

const MEASURED: Plan = Plan {
    rounds: 11,
    sessions: 100,
    turns: 500,
};

const QUICK: Plan = Plan {
    rounds: 1,
    sessions: 2,
    turns: 4,
};

fn main() {
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
    tokio.block_on(async {
        let world = World::start(dir.path(), &tmp.join("compiled")).await;
        let world = ask(&plan, Arc::new(world)).await;
        world.stop().await;
    });
}

async fn ask(plan: &Plan, world: Arc<World>) -> World {
    let (sessions, turns) = (plan.sessions, plan.turns);
    // What is loaded and cached once is not part of the question.
    turn::run(&world, Kind::Standard, sessions, sessions).await;

    let mut took = [const { Vec::new() }; 2];
    let mut middles = [const { Vec::new() }; 2];
    let mut ends = [const { Vec::new() }; 2];
    let mut worked = [const { Vec::new() }; 2];
    let (mut ratios, mut spun) = (Vec::new(), 0);
    for round in 0..plan.rounds {
        let mut both = [0, 1];
        // Neither is always the first.
        both.rotate_left(round % 2);
        for side in both {
            let spinner = (side == 1).then(|| Spinner::start(&world));
            let run = turn::run(&world, Kind::Standard, sessions, turns).await;
            let of_round = millis(&run.turns);
            middles[side].push(quantile(&of_round, 0.5));
            ends[side].push(quantile(&of_round, 0.99));
            worked[side].push(run.elapsed.as_secs_f64());
            took[side].extend(of_round);
            if let Some(spinner) = spinner {
                spun += spinner.stop().await;
            }
        }
        ratios.push(ends[1][round] / ends[0][round]);
    }
    let table = Table::new(&[
        "100 sessions",
        "turn p50 ms",
        "turn p99 ms",
        "of all turns p99 ms",
        "s a round",
        "p99 beside/alone",
    ]);
    for (side, name) in ["alone", "beside a guest that spins"]
        .into_iter()
        .enumerate()
    {
        table.row(&[
            name.to_owned(),
            spread(&middles[side], 0),
            spread(&ends[side], 0),
            format!("{:.0}", quantile(&took[side], 0.99)),
            spread(&worked[side], 2),
            match side {
                0 => String::new(),
                _ => spread(&ratios, 2),
            },
        ]);
    }
    println!("\nThe guest reached its limit {spun} times.");
    let Some(world) = Arc::into_inner(world) else {
        unreachable!("all turns are over")
    };
    world
}

/// A session whose runner spins.
struct Spinner {
    stopped: Arc<AtomicBool>,
    reached: Arc<AtomicU32>,
    task: tokio::task::JoinHandle<()>,
}

impl Spinner {
    fn start(world: &Arc<World>) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let reached = Arc::new(AtomicU32::new(0));
        let task = tokio::spawn({
            let (world, stopped) = (Arc::clone(world), Arc::clone(&stopped));
            let reached = Arc::clone(&reached);
            async move {
                let session = world.session_of(world::SPINNER).await;
                while !stopped.load(Ordering::Relaxed) {
                    turn::prompt(&world, session, "spin").await;
                    let tail = world.node.idle(session).await.expect("an end");
                    let outcome = &tail.session.last_turn;
                    let Some(TurnOutcome::Failed { error }) = outcome else {
                        panic!("a failure is expected: {outcome:?}");
                    };
                    // Of CPU, or of time where there is too much else to do.
                    assert!(error.contains(" limit of "), "{error}");
                    reached.fetch_add(1, Ordering::Relaxed);
                }
            }
        });
        Self {
            stopped,
            reached,
            task,
        }
    }

    /// Waits for its last turn; gives how often it went to its limit.
    async fn stop(self) -> u32 {
        self.stopped.store(true, Ordering::Relaxed);
        self.task.await.expect("its turns");
        self.reached.load(Ordering::Relaxed)
    }
}
