//! How many standard turns do one, two and three nodes of one Postgres database run in a second, and how
//! much of what the database can do is that? What it can do is asked of `pgbench`: as many clients, each
//! of which writes in one statement of common table expressions what a commit of such a turn writes on
//! average.
//!
//! The nodes are in this process, each with connections, a runtime and tails of its own. With the server
//! beside them, they share the machine's processors with it, and so does `pgbench`.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstay_bench::report::{Table, millis, quantile, spread};
use mainstay_bench::turn::Kind;
use mainstay_bench::world::{config, equip};
use mainstay_core::config::{Settings, SharedConfig};
use mainstay_core::event::{Delivery, InputContent, SessionCreated, TurnOutcome};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Part;
use mainstay_core::node::{Node, Ports};
use mainstay_core::port::SystemClock;
use mainstay_store::{PostgresStore, postgres};
use mainstay_test_support::postgres::Server;
use sqlx::{Connection as _, Executor as _, PgConnection, Row as _};

struct Plan {
    rounds: usize,
    /// Of `pgbench`, in seconds.
    bare: u32,
    nodes: &'static [usize],
    /// Sessions at once, and turns a round.
    loads: &'static [(usize, usize)],
}

const MEASURED: Plan = Plan {
    rounds: 5,
    bare: 3,
    nodes: &[1, 2, 3],
    loads: &[(1, 30), (32, 256), (128, 512)],
};

const QUICK: Plan = Plan {
    rounds: 1,
    bare: 1,
    nodes: &[1, 2],
    loads: &[(2, 4)],
};

fn main() {
    let plan = if mainstay_bench::is_measured() {
        MEASURED
    } else {
        QUICK
    };
    let Some(server) = mainstay_test_support::postgres::server() else {
        return;
    };
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let table = Table::new(&[
        "nodes",
        "sessions",
        "turns/s",
        "commits/s",
        "pgbench commits/s",
        "part of pgbench",
        "statements per turn",
        "turn p50 ms",
        "turn p99 ms",
    ]);
    for &count in plan.nodes {
        for &(sessions, turns) in plan.loads {
            let url = server.database();
            let fleet =
                tokio.block_on(Fleet::start(&url, count, dir.path(), &tmp.join("compiled")));
            // What is loaded and cached once is no part of the question.
            tokio.block_on(fleet.run(count, count));
            let (mut rates, mut commits, mut bares) = (Vec::new(), Vec::new(), Vec::new());
            let (mut parts, mut took, mut statements) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..plan.rounds {
                let before = fleet.writes();
                let asked = fleet.statements();
                let began = Instant::now();
                took.extend(millis(&tokio.block_on(fleet.run(sessions, turns))));
                let elapsed = began.elapsed().as_secs_f64();
                let written = (fleet.writes() - before) as f64 / elapsed;
                let size = tokio.block_on(Size::of(&url, &fleet));
                let bare = tokio.block_on(bare(server, &url, size, sessions, plan.bare));
                rates.push(turns as f64 / elapsed);
                statements.push((fleet.statements() - asked) as f64 / turns as f64);
                commits.push(written);
                bares.push(bare);
                parts.push(written / bare);
            }
            table.row(&[
                count.to_string(),
                sessions.to_string(),
                spread(&rates, 1),
                spread(&commits, 0),
                spread(&bares, 0),
                spread(&parts, 2),
                spread(&statements, 0),
                format!("{:.1}", quantile(&took, 0.5)),
                format!("{:.1}", quantile(&took, 0.99)),
            ]);
            tokio.block_on(fleet.stop());
        }
    }
}

/// Nodes on one database.
struct Fleet {
    nodes: Vec<(Arc<Node>, Arc<PostgresStore>)>,
}

impl Fleet {
    async fn start(url: &str, count: usize, dir: &Path, cache: &Path) -> Self {
        let mut nodes = Vec::new();
        for _ in 0..count {
            let store = PostgresStore::open(url, postgres::Options::default()).await;
            let store = Arc::new(store.expect("a database"));
            let plugins = equip(Arc::clone(&store) as _, dir, cache).await;
            let ports = Ports {
                store: Arc::clone(&store) as _,
                plugins,
                clock: Arc::new(SystemClock::default()),
            };
            let config = Arc::new(SharedConfig::new(config()));
            nodes.push((Node::start(ports, Settings::default(), config), store));
        }
        Self { nodes }
    }

    /// Commits that were stored so far.
    fn writes(&self) -> u64 {
        let stats = self.nodes.iter().map(|(_, store)| store.stats());
        stats.map(|stats| stats.writes).sum()
    }

    /// All round trips so far.
    fn statements(&self) -> u64 {
        let stats = self.nodes.iter().map(|(_, store)| store.stats());
        stats.map(|stats| stats.statements).sum()
    }

    /// Runs turns of new sessions, some at a time, at one node after the other. Gives what each took.
    async fn run(&self, at_once: usize, turns: usize) -> Vec<Duration> {
        let next = Arc::new(AtomicUsize::new(0));
        let workers: Vec<_> = (0..at_once)
            .map(|_| {
                let next = Arc::clone(&next);
                let nodes: Vec<_> = self.nodes.iter().map(|(node, _)| node.clone()).collect();
                tokio::spawn(async move {
                    let mut took = Vec::new();
                    loop {
                        let n = next.fetch_add(1, Ordering::Relaxed);
                        if n >= turns {
                            return took;
                        }
                        took.push(turn(&nodes[n % nodes.len()]).await);
                    }
                })
            })
            .collect();
        let mut took = Vec::with_capacity(turns);
        for worker in workers {
            took.extend(worker.await.expect("the turns of a worker"));
        }
        took
    }

    async fn stop(self) {
        for (node, store) in self.nodes {
            node.shutdown().await;
            store.close().await;
        }
    }
}

async fn turn(node: &Node) -> Duration {
    let session = SessionId::new();
    let created = SessionCreated {
        agent: Kind::Standard.agent().to_owned(),
        ..SessionCreated::default()
    };
    node.create(session, created).await.expect("a session");
    let began = Instant::now();
    let content = InputContent::Prompt {
        parts: vec![Part::Text("Go on.".to_owned())],
    };
    let admitted = node.admit(session, InputId::new(), Delivery::Queue, content);
    admitted.await.expect("an admission");
    let tail = node.idle(session).await.expect("an end");
    assert_eq!(tail.session.last_turn, Some(TurnOutcome::Done));
    began.elapsed()
}

/// What a commit writes on average.
#[derive(Clone, Copy)]
struct Size {
    events: u64,
    event_bytes: u64,
    session_bytes: u64,
}

impl Size {
    async fn of(url: &str, fleet: &Fleet) -> Self {
        let mut conn = PgConnection::connect(url).await.expect("it listens");
        let sql = "SELECT count(*), coalesce(avg(length(data)), 0)::bigint,
                          (SELECT coalesce(avg(length(data)), 0)::bigint FROM session)
                     FROM event";
        let row = conn.fetch_one(sql).await.expect("a row");
        let number = |column: usize| u64::try_from(row.get::<i64, _>(column)).unwrap_or(0);
        Self {
            events: number(0).div_ceil(fleet.writes().max(1)),
            event_bytes: number(1),
            session_bytes: number(2),
        }
    }
}

/// Commits a second of clients that do nothing else.
async fn bare(server: &Server, url: &str, size: Size, clients: usize, seconds: u32) -> f64 {
    let mut conn = PgConnection::connect(url).await.expect("it listens");
    let made = "
        DROP TABLE IF EXISTS bare_event, bare_session, bare_claim;
        CREATE TABLE bare_session (LIKE session INCLUDING ALL);
        CREATE TABLE bare_claim (LIKE claim INCLUDING ALL);
        CREATE TABLE bare_event (LIKE event INCLUDING ALL);
        INSERT INTO bare_session (id, version, created_at, updated_at, head, stepping, runnable, data)
        SELECT lpad(to_hex(n), 32, '0')::uuid, 1, 1, 1, 0, true, true, '' FROM generate_series(0, 255) n;
        INSERT INTO bare_claim (session, execution, owner, expires_at, data)
        SELECT id, id, id, 1::bigint << 62, '' FROM bare_session";
    conn.execute(made).await.expect("tables");
    let script = tempfile::NamedTempFile::new().expect("a file");
    let statement = format!(
        "WITH held AS (
            SELECT 1 FROM bare_claim WHERE session = lpad(to_hex(:client_id::int), 32, '0')::uuid
               AND expires_at > 1
         ), written AS (
            UPDATE bare_session SET version = version + 1, head = head + {0}, data = repeat('s', {2})
             WHERE id = lpad(to_hex(:client_id::int), 32, '0')::uuid AND EXISTS (SELECT 1 FROM held)
            RETURNING id, head
         )
         INSERT INTO bare_event (session, seq, id, type, version, at, data)
         SELECT written.id, written.head - n, gen_random_uuid(), 'step.started', 1, 1, repeat('e', {1})
           FROM written, generate_series(0, {0} - 1) AS n;\n",
        size.events, size.event_bytes, size.session_bytes
    )
    .replace('\n', " ");
    std::fs::write(script.path(), statement + "\n").expect("a script");
    let mut pgbench = Command::new(server.program("pgbench"));
    pgbench
        .args(["--no-vacuum", "--protocol=prepared", "--jobs=2"])
        .arg(format!("--client={clients}"))
        .arg(format!("--time={seconds}"))
        .arg("--file")
        .arg(script.path())
        .arg(url);
    let done = tokio::task::spawn_blocking(move || pgbench.output()).await;
    let done = done.expect("a thread").expect("pgbench");
    let said = String::from_utf8_lossy(&done.stdout);
    let rate = said.lines().find_map(|line| line.strip_prefix("tps = "));
    let rate = rate.and_then(|rest| rest.split(' ').next()?.parse().ok());
    rate.unwrap_or_else(|| panic!("{said}\n{}", String::from_utf8_lossy(&done.stderr)))
}
