//! How long is a session without its host when the binary is killed and started again on the same file?
//! And when it is told to stop first?
//!
//! `recovery` asks the same of two nodes that share a store.

// The library of the benchmarks holds the plugins that they measure; the binary brings its own.
#[path = "../src/report.rs"]
#[allow(dead_code, unreachable_pub, reason = "a module of the library")]
mod report;
#[path = "../src/work.rs"]
#[allow(unreachable_pub, reason = "a module of the library")]
mod work;

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use mainstay_core::id::Millis;
use mainstay_store::{Options, SqliteStore};
use report::{Table, quantile};
use rustix::process::{Pid, Signal, kill_process};

/// Of an answer: longer than until all have begun.
const ANSWER: Duration = Duration::from_secs(8);

struct Row {
    how: Signal,
    sessions: usize,
    /// Executions at once that recovery starts.
    at_once: usize,
    rounds: usize,
}

fn row(how: Signal, sessions: usize, at_once: usize, rounds: usize) -> Row {
    Row {
        how,
        sessions,
        at_once,
        rounds,
    }
}

/// Milliseconds.
#[derive(Default)]
struct Gaps {
    /// From the new start until the binary answers.
    ready: Vec<f64>,
    /// From the new start until each session runs.
    of_start: Vec<f64>,
    /// From the signal until each session runs.
    of_signal: Vec<f64>,
}

fn main() {
    let is_measured = std::env::args().any(|argument| argument == "--bench");
    let rows = if is_measured {
        vec![
            row(Signal::KILL, 8, 8, 5),
            row(Signal::KILL, 50, 64, 3),
            row(Signal::KILL, 50, 8, 1),
            row(Signal::TERM, 50, 64, 3),
        ]
    } else {
        vec![row(Signal::KILL, 2, 8, 1), row(Signal::TERM, 2, 8, 1)]
    };
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    // Compiles the plugins; every other start finds the code beside its file.
    let first = Host::start(&dir.path().join("first.db"), 8);
    first.end(Signal::TERM);

    let table = Table::new(&[
        "signal",
        "sessions",
        "resumed at once",
        "ready ms",
        "of the start p50 ms",
        "p99 ms",
        "of the signal p50 ms",
        "p99 ms",
    ]);
    for (n, row) in rows.iter().enumerate() {
        let mut gaps = Gaps::default();
        for round in 0..row.rounds {
            let file = dir.path().join(format!("{n}-{round}.db"));
            tokio.block_on(restart(row, &file, &mut gaps));
        }
        let figure = |values: &[f64], share| format!("{:.0}", quantile(values, share));
        table.row(&[
            match row.how {
                Signal::KILL => "SIGKILL".to_owned(),
                _ => "SIGTERM".to_owned(),
            },
            row.sessions.to_string(),
            row.at_once.to_string(),
            figure(&gaps.ready, 0.5),
            figure(&gaps.of_start, 0.5),
            figure(&gaps.of_start, 0.99),
            figure(&gaps.of_signal, 0.5),
            figure(&gaps.of_signal, 0.99),
        ]);
    }
}

/// Ends the binary in the middle of its answers and starts it again.
async fn restart(row: &Row, file: &Path, gaps: &mut Gaps) {
    let store = SqliteStore::open(file, Options::default()).await;
    let store = store.expect("a new database");
    let sessions = work::prompted(&store, "default", &work::answer_for(ANSWER), row.sessions).await;
    store.close().await;

    let host = Host::start(file, row.at_once);
    let store = SqliteStore::open_read_only(file).await;
    let store = store.expect("the host's database");
    work::answering(&store, &sessions).await;
    let signalled = work::now();
    host.end(row.how);
    let started = work::now();
    let host = Host::start(file, row.at_once);
    gaps.ready.push(millis(started, work::now()));
    for at in work::resumed(&store, &sessions).await {
        gaps.of_start.push(millis(started, at));
        gaps.of_signal.push(millis(signalled, at));
    }
    store.close().await;
    host.end(Signal::KILL);
}

fn millis(from: Millis, to: Millis) -> f64 {
    to.saturating_sub(from) as f64
}

/// The binary, serving a file.
struct Host(Child);

impl Host {
    /// Returns once it answers.
    fn start(file: &Path, at_once: usize) -> Self {
        let folder = file.parent().expect("a folder");
        let config = folder.join(format!("{at_once}.toml"));
        std::fs::write(
            &config,
            format!(
                "[agents.default]\nprovider = \"parrot\"\nmodel = \"parrot\"\n\
                 [providers.parrot]\nplugin = \"parrot\"\n\
                 [node]\nresume-concurrency = {at_once}\n"
            ),
        )
        .expect("a configuration");
        let mut child = Command::new(env!("CARGO_BIN_EXE_mainstay"))
            .args(["--json", "serve", "--listen", "127.0.0.1:0"])
            .arg("--store")
            .arg(file)
            .arg("--config")
            .arg(&config)
            .env_remove("MAINSTAY_SERVER")
            .env_remove("MAINSTAY_TOKEN")
            .env("HOME", folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("the binary");
        let mut line = String::new();
        let stdout = child.stdout.as_mut().expect("a pipe");
        let read = BufReader::new(stdout).read_line(&mut line);
        read.expect("the binary's first line");
        assert!(line.contains("address"), "it does not serve: {line:?}");
        Self(child)
    }

    /// Returns once it is gone.
    fn end(mut self, how: Signal) {
        kill_process(Pid::from_child(&self.0), how).expect("it runs");
        self.0.wait().expect("its end");
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // It may be gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
