//! Nodes as real processes on one database, each behind a proxy of its own and each with its own address
//! that it keeps over restarts, and a wall clock of its own. They share a home, and so compiled code and
//! workspaces.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_test_support::postgres;
use rustix::process::{Pid, Signal, kill_process};
use tokio::process::{Child, Command};

use super::proxy::Proxy;
use crate::support::client::Addresses;
use crate::support::{DEADLINE, Outside, mainstay};

/// Short, so that many run out.
pub(crate) const LEASE: Duration = Duration::from_secs(2);

/// Where all nodes are.
pub(crate) struct Place {
    pub(crate) url: String,
    config: PathBuf,
    folder: PathBuf,
}

impl Place {
    pub(crate) fn new(folder: &Path, url: String, outside: &Outside) -> Self {
        let config = outside.config(folder);
        let text = std::fs::read_to_string(&config).unwrap();
        // What asks the model server is told from what asks the parrot by its agent.
        let text = text.replace("[agents.default]", "[agents.asking]");
        let text = format!(
            "{text}\n[agents.default]\nprovider = \"parrot\"\nmodel = \"parrot\"\n\
             toolboxes = [\"files\", \"web\"]\n\n\
             [node]\nlease = \"{}s\"\npoll-every = \"200ms\"\nmax-attempts = 100000\n",
            LEASE.as_secs()
        );
        std::fs::write(&config, text).unwrap();
        Self {
            url,
            config,
            folder: folder.to_owned(),
        }
    }

    /// The binary on this database, in the home that all share.
    pub(crate) fn command(&self, url: &str) -> Command {
        let mut command = mainstay(Path::new(url), &self.config);
        command
            .env("HOME", &self.folder)
            .env_remove("XDG_DATA_HOME");
        command
    }
}

pub(crate) struct Node {
    name: String,
    place: Arc<Place>,
    pub(crate) proxy: Proxy,
    port: u16,
    clock: WrongClock,
    child: Option<Child>,
}

impl Node {
    /// A node that is to be started.
    pub(crate) async fn new(name: &str, place: &Arc<Place>, server: &postgres::Server) -> Self {
        let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            name: name.into(),
            place: Arc::clone(place),
            proxy: Proxy::before(server.port()).await,
            port: free.local_addr().unwrap().port(),
            clock: WrongClock::of(&place.folder, name),
            child: None,
        }
    }

    pub(crate) fn address(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    fn log(&self) -> PathBuf {
        self.place.folder.join(format!("{}.log", self.name))
    }

    /// Starts the process and waits until it answers. One that finds no database is started again.
    pub(crate) async fn start(&mut self) {
        let deadline = Instant::now() + DEADLINE;
        let health = format!("{}/health", self.address());
        let http = reqwest::Client::builder()
            .timeout(Duration::from_secs(1))
            .build()
            .unwrap();
        loop {
            let mut child = self.spawn();
            let ended = loop {
                if http.get(&health).send().await.is_ok() {
                    self.child = Some(child);
                    return;
                }
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(Instant::now() < deadline, "{} does not start", self.name);
                tokio::time::sleep(Duration::from_millis(20)).await;
            };
            let log = std::fs::read_to_string(self.log()).unwrap_or_default();
            let last: Vec<_> = log.lines().rev().take(8).collect();
            assert!(
                Instant::now() < deadline && ended.code() == Some(7),
                "{} ended with {ended}: {last:#?}",
                self.name
            );
        }
    }

    fn spawn(&self) -> Child {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(self.log())
            .unwrap();
        let mut command = self.place.command(&self.proxy.url(&self.place.url));
        self.clock.worn_by(&mut command);
        command
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.port)])
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .unwrap()
    }

    /// Sets the node's wall clock, in seconds from the right time.
    pub(crate) fn set_clock(&self, seconds: i64) {
        self.clock.set(seconds);
    }

    pub(crate) fn send(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        let pid = child.id().expect("it was not waited for").cast_signed();
        let pid = Pid::from_raw(pid).expect("a process");
        kill_process(pid, signal).unwrap();
    }

    /// SIGKILL.
    pub(crate) async fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            child.kill().await.unwrap();
        }
    }

    /// SIGTERM, and waits for its end.
    pub(crate) async fn stop(&mut self) {
        self.send(Signal::TERM);
        let mut child = self.child.take().expect("it runs");
        let ended = tokio::time::timeout(DEADLINE, child.wait()).await;
        ended.expect("it ends by itself").unwrap();
    }
}

/// A wall clock that a process takes for the machine's.
struct WrongClock {
    file: PathBuf,
}

impl WrongClock {
    fn of(folder: &Path, name: &str) -> Self {
        let clock = Self {
            file: folder.join(format!("{name}.clock")),
        };
        clock.set(0);
        clock
    }

    /// In place: a running process has the file mapped.
    fn set(&self, seconds: i64) {
        let mut options = std::fs::File::options();
        let file = options
            .create(true)
            .truncate(false)
            .write(true)
            .open(&self.file);
        let written = file.unwrap().write_all(&seconds.to_ne_bytes());
        written.unwrap();
    }

    fn worn_by(&self, command: &mut Command) {
        let test = std::env::current_exe().unwrap();
        let library = test.with_file_name("libmainstay_test_preload.so");
        assert!(library.exists(), "{} is not built", library.display());
        command
            .env("LD_PRELOAD", library)
            .env("MAINSTAY_TEST_CLOCK", &self.file);
    }
}

pub(crate) fn addresses(nodes: &[Node]) -> Addresses {
    nodes.iter().map(Node::address).collect()
}
