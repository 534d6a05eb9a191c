//! How long is a session without a node when another takes over: after a kill, for each lease, and after
//! a shutdown? On one file that both have open, and on Postgres.
//!
//! The two nodes are in one process; the first lives in a tokio runtime of its own, with its connections
//! where there are any. Killed, that runtime is dropped with everything in it, in the middle of 50
//! answers. `restart` asks the same of the binary and one file.
//!
//! `-- sqlite`, or `-- postgres`, asks of that store alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use mainstay_bench::report::{Table, quantile};
use mainstay_bench::turn::Kind;
use mainstay_bench::world::{Ground, node_on};
use mainstay_bench::{is_measured, work};
use mainstay_core::config::Settings;
use mainstay_core::node::Node;
use mainstay_core::port::Store;
use mainstay_store::{PostgresStore, postgres};

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
    let asked: Vec<String> = std::env::args().skip(1).collect();
    let asks = |name: &str| {
        let all = ["sqlite", "postgres"];
        let some = asked.iter().any(|asked| all.contains(&asked.as_str()));
        !some || asked.iter().any(|asked| asked == name)
    };
    let server = asks("postgres").then(mainstay_test_support::postgres::server);
    let mut stands = Vec::new();
    if asks("sqlite") {
        stands.push(("SQLite", None));
    }
    if let Some(server) = server.flatten() {
        stands.push(("Postgres", Some(server)));
    }
    let table = Table::new(&[
        "store",
        "first node",
        "lease s",
        "sessions",
        "resumed at once",
        "p50 ms",
        "p99 ms",
    ]);
    for (name, server) in stands {
        for row in &rows {
            let url = server.map(|server| server.database());
            let gaps = take_over(row, url.as_deref());
            table.row(&[
                name.to_owned(),
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
}

/// Milliseconds from the end of the first node until each session runs on the second.
fn take_over(row: &Row, url: Option<&str>) -> Vec<f64> {
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
    let stand = whole.block_on(Stand::open(url, dir.path(), &tmp.join("compiled")));
    let store = stand.store();
    let prompt = work::answer_for(ANSWER);
    let sessions = whole.block_on(work::prompted(
        store,
        Kind::Model.agent(),
        &prompt,
        row.sessions,
    ));
    let (node, _connections) = first.block_on(stand.node(settings.clone()));
    whole.block_on(work::answering(store, &sessions));
    let (second, connections) = whole.block_on(stand.node(settings));

    let left = work::now();
    match row.ending {
        Ending::Killed => first.shutdown_background(),
        Ending::ShutDown => first.block_on(node.shutdown()),
    }
    let resumed = whole.block_on(work::resumed(store, &sessions));
    whole.block_on(async {
        second.shutdown().await;
        if let Some(connections) = connections {
            connections.close().await;
        }
        stand.close().await;
    });
    resumed
        .into_iter()
        .map(|at| at.saturating_sub(left) as f64)
        .collect()
}

/// What both nodes stand on.
enum Stand {
    File(Ground),
    Database {
        url: String,
        /// Of who looks on.
        store: PostgresStore,
        dir: PathBuf,
        cache: PathBuf,
    },
}

impl Stand {
    async fn open(url: Option<&str>, dir: &Path, cache: &Path) -> Self {
        let Some(url) = url else {
            return Self::File(Ground::open(dir, cache).await);
        };
        let store = PostgresStore::open(url, postgres::Options::default()).await;
        Self::Database {
            url: url.to_owned(),
            store: store.expect("a database"),
            dir: dir.to_owned(),
            cache: cache.to_owned(),
        }
    }

    fn store(&self) -> &dyn Store {
        match self {
            Self::File(ground) => &*ground.store,
            Self::Database { store, .. } => store,
        }
    }

    /// Starts a node on the current runtime, with its connections if it has some of its own.
    async fn node(&self, settings: Settings) -> (Arc<Node>, Option<Arc<PostgresStore>>) {
        match self {
            Self::File(ground) => (ground.node(settings), None),
            Self::Database {
                url, dir, cache, ..
            } => {
                let (node, store) = node_on(url, settings, dir, cache).await;
                (node, Some(store))
            }
        }
    }

    async fn close(self) {
        match self {
            Self::File(ground) => ground.store.close().await,
            Self::Database { store, .. } => store.close().await,
        }
    }
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime")
}
