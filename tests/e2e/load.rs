//! The real binary under load, killed at random moments some hundreds of times. Clients in another
//! process create, prompt, steer, interrupt, cancel and read, and write down what they were told; at the
//! end a checker compares that, and the counters of the server that tools call, with what is there.
//!
//! `MAINSTAY_KILLS` says how often (200), `MAINSTAY_SEED` which moments (a new seed each run, printed).

mod support;

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use support::checker::{checked, from_env};
use support::client::{Addresses, Client, Reader, Told};
use support::{DEADLINE, Outside, mainstay};
use tokio::process::Child;
use tokio_util::sync::CancellationToken;

/// Clients at work side by side.
const CLIENTS: u64 = 6;
/// How long a server lives, at least and at most.
const LIFE: (u64, u64) = (20, 700);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_13_killed_hundreds_of_times_under_load_it_keeps_what_clients_were_told() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let folder = tempfile::tempdir().unwrap();
    let outside = Outside::start().await;
    let world = World::new(folder.path(), &outside);
    let kills: u32 = from_env("MAINSTAY_KILLS").unwrap_or(200);
    let seed: u64 = from_env("MAINSTAY_SEED").unwrap_or_else(rand::random);
    eprintln!("{kills} kills, MAINSTAY_SEED={seed}");
    let mut chance = StdRng::seed_from_u64(seed);

    let mut server = world.start().await;
    let stop = CancellationToken::new();
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let client = Client::new(world.addresses(), outside.port, seed ^ n, stop.clone());
            tokio::spawn(client.run())
        })
        .collect();
    let began = Instant::now();
    for n in 0..kills {
        tokio::time::sleep(Duration::from_millis(chance.random_range(LIFE.0..LIFE.1))).await;
        server.kill().await.unwrap();
        server = world.start().await;
        if n % 50 == 49 {
            eprintln!("{} kills in {:?}", n + 1, began.elapsed());
        }
    }
    stop.cancel();
    let mut told: Vec<Told> = Vec::new();
    for client in clients {
        told.extend(client.await.unwrap());
    }
    let (inputs, events) = told.iter().fold((0, 0), |(inputs, events), told| {
        (inputs + told.inputs.len(), events + told.events.len())
    });
    eprintln!(
        "{} sessions, {inputs} inputs, {events} events were told",
        told.len()
    );
    // The load was one: each life admitted something, and the kills met sessions at work.
    assert!(
        inputs as u32 >= kills,
        "only {inputs} inputs in {kills} lives"
    );

    let http = reqwest::Client::new();
    let reader = Reader::new(world.addresses(), http);
    let mut crashes = 0;
    for told in &told {
        reader.idle(&told.session).await;
        let all = reader.events(&told.session, 0).await;
        crashes += checked(told, &all, &outside);
    }
    assert!(
        crashes as u32 > kills / 4,
        "only {crashes} executions were cut off"
    );
    server.kill().await.unwrap();

    let report = mainstay(&world.store, &world.config)
        .args(["--json", "doctor"])
        .output()
        .await
        .unwrap();
    let said = String::from_utf8_lossy(&report.stdout);
    assert!(report.status.success(), "{said}");
    let bytes = std::fs::read(&world.store).unwrap();
    let secret = support::SECRET.as_bytes();
    assert!(!bytes.windows(secret.len()).any(|part| part == secret));
}

/// One store, and where its servers listen one after the other.
struct World {
    store: PathBuf,
    config: PathBuf,
    port: u16,
}

impl World {
    fn new(folder: &Path, outside: &Outside) -> Self {
        let config = outside.config(folder);
        let text = std::fs::read_to_string(&config).unwrap();
        let text = text.replace(
            "provider = \"local\"\nmodel = \"test\"",
            "provider = \"parrot\"\nmodel = \"parrot\"",
        );
        // Kills come faster than a session settles anything.
        let text = format!("{text}\n[node]\nmax-attempts = 100000\npoll-every = \"100ms\"\n");
        std::fs::write(&config, text).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        Self {
            store: folder.join("load.db"),
            config,
            port: port.local_addr().unwrap().port(),
        }
    }

    fn address(&self) -> String {
        format!("http://127.0.0.1:{}/v1", self.port)
    }

    fn addresses(&self) -> Addresses {
        Arc::from([self.address()])
    }

    /// Starts the next server and waits until it answers.
    async fn start(&self) -> Child {
        let errors = std::fs::File::create(self.store.with_extension("log")).unwrap();
        let mut child = mainstay(&self.store, &self.config)
            .args(["serve", "--listen", &format!("127.0.0.1:{}", self.port)])
            .stdout(Stdio::null())
            .stderr(errors)
            .spawn()
            .unwrap();
        let health = format!("{}/health", self.address());
        let deadline = Instant::now() + DEADLINE;
        while reqwest::get(&health).await.is_err() {
            if let Some(status) = child.try_wait().unwrap() {
                let log = std::fs::read_to_string(self.store.with_extension("log"));
                panic!(
                    "the server ended with {status}: {}",
                    log.unwrap_or_default()
                );
            }
            assert!(Instant::now() < deadline, "the server does not start");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        child
    }
}
