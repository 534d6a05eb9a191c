//! How much does a step write: commits, fsyncs of the log, events, and bytes of event data for each
//! byte of the transcript?

use std::path::Path;
use std::sync::Arc;

use mainstay_bench::report::Table;
use mainstay_bench::turn::{self, Kind};
use mainstay_bench::weight;
use mainstay_bench::world::World;

/// Sessions at once, and turns.
const MEASURED: &[(usize, usize)] = &[(1, 30), (32, 128), (128, 256)];
const QUICK: &[(usize, usize)] = &[(1, 1), (4, 8)];

/// Sessions whose logs are weighed: those of a kind are alike.
const WEIGHED: usize = 8;

fn main() {
    let loads = if mainstay_bench::is_measured() {
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
        let world = Arc::new(World::start(dir.path(), &tmp.join("compiled")).await);
        let table = Table::new(&[
            "turn",
            "sessions",
            "commits/step",
            "fsyncs/step",
            "events/step",
            "event bytes/event",
            "event bytes/text byte",
            "event bytes/item byte",
        ]);
        for kind in Kind::ALL {
            turn::run(&world, kind, 1, 1).await;
            for &(sessions, turns) in loads {
                let before = world.store.stats();
                let run = turn::run(&world, kind, sessions, turns).await;
                let after = world.store.stats();
                // Creating a session is a commit, a group and an event of no step.
                let steps = turns as f64 * f64::from(kind.steps());
                let of_steps = |before: u64, after: u64| {
                    (after - before).saturating_sub(turns as u64) as f64 / steps
                };
                let weight = weight::of(
                    &*world.store,
                    &run.sessions[..run.sessions.len().min(WEIGHED)],
                )
                .await;
                table.row(&[
                    kind.name().to_owned(),
                    sessions.to_string(),
                    format!("{:.2}", of_steps(before.commits, after.commits)),
                    format!("{:.2}", of_steps(before.groups, after.groups)),
                    format!("{:.2}", of_steps(before.events, after.events)),
                    format!("{:.0}", weight.events / weight.count),
                    format!("{:.2}", weight.events / weight.text),
                    format!("{:.2}", weight.events / weight.items),
                ]);
            }
        }
        let Some(world) = Arc::into_inner(world) else {
            unreachable!("all turns are over")
        };
        world.stop().await;
    });
}
