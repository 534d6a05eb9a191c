//! How long is a session without a node when another takes over: after a kill, for each lease, and after
//! a shutdown?
//!
//! Two nodes in one process share a store; the first lives in a tokio runtime of its own. Killed, that
//! runtime is dropped with everything in it, in the middle of 50 answers. `restart` asks the same of the
//! binary and one file.

use std::path::Path;
use std::time::Duration;

use mainstay_bench::report::{Table, quantile};
use mainstay_bench::turn::Kind;
use mainstay_bench::world::Ground;
use mainstay_bench::{is_measured, work};
use mainstay_core::config::Settings;

/// Of an answer: longer than the first node lives.
const ANSWER: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Ending {
    Killed,
    ShutDown,
}

struct Row {
    ending: Ending,
    lease: Duration,
    sessions: usize,
    /// Executions at once that recovery starts.
    at_once: usize,
}

fn row(ending: Ending, lease_s: u64, sessions: usize, at_once: usize) -> Row {
    Row {
        ending,
        lease: Duration::from_secs(lease_s),
        sessions,
        at_once,
    }
}

fn main() {
    use Ending::{Killed, ShutDown};
    let rows = if is_measured() {
        vec![
            row(Killed, 3, 50, 64),
            row(Killed, 10, 50, 64),
            row(Killed, 30, 50, 64),
            row(ShutDown, 30, 8, 8),
            row(ShutDown, 30, 50, 64),
            row(ShutDown, 30, 50, 8),
        ]
    } else {
        vec![row(Killed, 3, 2, 8), row(ShutDown, 30, 2, 8)]
    };
    let table = Table::new(&[
        "first node",
        "lease s",
        "sessions",
        "resumed at once",
        "p50 ms",
        "p99 ms",
    ]);
    for row in rows {
        let gaps = take_over(&row);
        table.row(&[
            match row.ending {
                Killed => "killed".to_owned(),
                ShutDown => "shut down".to_owned(),
            },
            row.lease.as_secs().to_string(),
            row.sessions.to_string(),
            row.at_once.to_string(),
            format!("{:.0}", quantile(&gaps, 0.5)),
            format!("{:.0}", quantile(&gaps, 0.99)),
        ]);
    }
}

/// Milliseconds from the end of the first node until each session runs on the second.
fn take_over(row: &Row) -> Vec<f64> {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
    let settings = Settings {
        lease: row.lease,
        renew_every: row.lease / 3,
        lease_margin: row.lease / 6,
        resume_concurrency: row.at_once,
        ..Settings::default()
    };
    // The store outlives the first node, as a database that is elsewhere does.
    let (whole, first) = (runtime(), runtime());
    let ground = whole.block_on(Ground::open(dir.path(), &tmp.join("compiled")));
    let store = &*ground.store;
    let prompt = work::answer_for(ANSWER);
    let sessions = whole.block_on(work::prompted(
        store,
        Kind::Model.agent(),
        &prompt,
        row.sessions,
    ));
    let node = first.block_on(async { ground.node(settings.clone()) });
    whole.block_on(work::answering(store, &sessions));
    let second = whole.block_on(async { ground.node(settings) });

    let left = work::now();
    match row.ending {
        Ending::Killed => first.shutdown_background(),
        Ending::ShutDown => first.block_on(node.shutdown()),
    }
    let resumed = whole.block_on(work::resumed(store, &sessions));
    whole.block_on(async {
        second.shutdown().await;
        store.close().await;
    });
    resumed
        .into_iter()
        .map(|at| at.saturating_sub(left) as f64)
        .collect()
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}
