//! What do nodes of one Postgres database do, and what do they ask of it? How many standard turns one, two
//! and three of them run in a second, beside what the database can do; what they ask while sessions wait;
//! what it takes to find one that is to be run.
//!
//! What the database can do is asked of `pgbench`: as many clients, each of which writes in one statement of
//! common table expressions what a commit of such a turn writes on average. The nodes are in this process,
//! each with connections, a runtime and tails of its own. With the server beside them, they share the
//! machine's processors with it, and so does `pgbench`.
//!
//! `-- turns`, or another of the questions' names, asks that one alone.

use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use mainstay_bench::report::{Table, millis, quantile, spread};
use mainstay_bench::turn::Kind;
use mainstay_bench::world::{PLANNER, node_on};
use mainstay_core::config::Settings;
use mainstay_core::event::{Delivery, InputContent, SessionCreated, TurnOutcome};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Part;
use mainstay_core::node::Node;
use mainstay_core::port::Store;
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
    /// Sessions that wait.
    waiting: usize,
    /// How long they are left alone before they are watched, and how long they are watched.
    settles: Duration,
    idle: Duration,
    /// Sessions among which some are runnable.
    sessions: usize,
    looks: usize,
}

const MEASURED: Plan = Plan {
    rounds: 5,
    bare: 3,
    nodes: &[1, 2, 3],
    loads: &[(1, 30), (32, 256), (128, 512)],
    waiting: 10_000,
    settles: Duration::from_secs(15),
    idle: Duration::from_secs(60),
    sessions: 100_000,
    looks: 200,
};

const QUICK: Plan = Plan {
    rounds: 1,
    bare: 1,
    nodes: &[1, 2],
    loads: &[(2, 4)],
    waiting: 4,
    settles: Duration::ZERO,
    idle: Duration::from_secs(1),
    sessions: 400,
    looks: 2,
};

fn main() {
    let plan = if mainstay_bench::is_measured() {
        MEASURED
    } else {
        QUICK
    };
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let asks = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let Some(server) = mainstay_test_support::postgres::server() else {
        return;
    };
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio.block_on(async {
        if asks("turns") {
            turns(&plan, server, dir.path()).await;
        }
        if asks("waiting") {
            waiting(&plan, server, dir.path()).await;
        }
        if asks("picking") {
            picking(&plan, server).await;
        }
    });
}

// Turns.

async fn turns(plan: &Plan, server: &'static Server, dir: &Path) {
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
            let fleet = Fleet::start(&url, count, dir).await;
            // What is loaded and cached once is no part of the question.
            fleet.run(count, count).await;
            let (mut rates, mut commits, mut bares) = (Vec::new(), Vec::new(), Vec::new());
            let (mut parts, mut took, mut statements) = (Vec::new(), Vec::new(), Vec::new());
            for _ in 0..plan.rounds {
                let before = fleet.writes();
                let asked = fleet.statements();
                let began = Instant::now();
                took.extend(millis(&fleet.run(sessions, turns).await));
                let elapsed = began.elapsed().as_secs_f64();
                let written = (fleet.writes() - before) as f64 / elapsed;
                let asked = (fleet.statements() - asked) as f64 / turns as f64;
                let size = Size::of(&url, &fleet).await;
                let bare = bare(server, &url, size, sessions, plan.bare).await;
                rates.push(turns as f64 / elapsed);
                statements.push(asked);
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
            fleet.stop().await;
        }
    }
}

// What idle nodes ask.

async fn waiting(plan: &Plan, server: &Server, dir: &Path) {
    let table = Table::new(&[
        "nodes",
        "waiting sessions",
        "statements/s",
        "transactions/s",
        "rows of sessions read/s",
    ]);
    for sessions in [0, plan.waiting] {
        let url = server.database();
        let fleet = Fleet::start(&url, 2, dir).await;
        fleet.wait(sessions).await;
        let mut conn = PgConnection::connect(&url).await.expect("it listens");
        let store: &dyn Store = &*fleet.nodes[0].1;
        let scan = store.scan(1).await.expect("a scan");
        assert!(scan.due.is_empty() && scan.expired.is_empty(), "{scan:?}");

        // Connections tell of what they did a while after they did it.
        tokio::time::sleep(plan.settles).await;
        let (asked, before) = (fleet.statements(), Served::read(&mut conn).await);
        let began = Instant::now();
        tokio::time::sleep(plan.idle).await;
        let elapsed = began.elapsed().as_secs_f64();
        let (now, after) = (fleet.statements(), Served::read(&mut conn).await);
        let rate = |count: u64| format!("{:.1}", count as f64 / elapsed);
        table.row(&[
            fleet.nodes.len().to_string(),
            sessions.to_string(),
            rate(now - asked),
            rate(after.transactions - before.transactions),
            rate(after.rows - before.rows),
        ]);
        conn.close().await.expect("an end");
        fleet.stop().await;
    }
}

/// What the server did in a database.
struct Served {
    transactions: u64,
    /// Of sessions, that were read by whole tables or by an index.
    rows: u64,
}

impl Served {
    async fn read(conn: &mut PgConnection) -> Self {
        let sql = "SELECT xact_commit + xact_rollback,
                          (SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)::bigint
                             FROM pg_stat_user_tables
                            WHERE relname IN ('session', 'claim', 'input', 'event'))
                     FROM pg_stat_database WHERE datname = current_database()";
        let row = conn.fetch_one(sql).await.expect("a row");
        let number = |column: usize| u64::try_from(row.get::<i64, _>(column)).unwrap_or(0);
        Self {
            transactions: number(0),
            rows: number(1),
        }
    }
}

// Finding what is to be run.

async fn picking(plan: &Plan, server: &Server) {
    /// Places of a node that has nothing to do.
    const PLACES: u32 = 1024;
    let table = Table::new(&[
        "sessions",
        "claimed",
        "runnable",
        "look p50 ms",
        "look p99 ms",
    ]);
    for sessions in [plan.sessions / 100, plan.sessions] {
        for runnable in [0, sessions / 2] {
            let url = server.database();
            let store = PostgresStore::open(&url, postgres::Options::default()).await;
            let store = store.expect("a database");
            let mut conn = PgConnection::connect(&url).await.expect("it listens");
            // Of the others each has a claim that has not run out, and a timer that is not due.
            let made = format!(
                "INSERT INTO session (id, version, created_at, updated_at, head, stepping, runnable,
                                      due, wake_at, data)
                 SELECT gen_random_uuid(), 1, n, n, 1, false, n <= {runnable},
                        CASE WHEN n <= {runnable} THEN n END,
                        CASE WHEN n > {runnable} THEN 1::bigint << 62 END, '{{}}'
                   FROM generate_series(1, {sessions}) AS n;
                 INSERT INTO claim (session, execution, owner, expires_at, data)
                 SELECT id, gen_random_uuid(), gen_random_uuid(), 1::bigint << 62, '{{}}'
                   FROM session WHERE due IS NULL;
                 ANALYZE"
            );
            let made = sqlx::raw_sql(sqlx::AssertSqlSafe(made));
            conn.execute(made).await.expect("rows");
            let mut took = Vec::new();
            for _ in 0..plan.looks {
                let began = Instant::now();
                let scan = store.scan_within(1024, PLACES).await.expect("a look");
                took.push(began.elapsed());
                assert_eq!(scan.due.len(), runnable.min(1024));
            }
            let took = millis(&took);
            table.row(&[
                sessions.to_string(),
                (sessions - runnable).to_string(),
                runnable.to_string(),
                format!("{:.2}", quantile(&took, 0.5)),
                format!("{:.2}", quantile(&took, 0.99)),
            ]);
            conn.close().await.expect("an end");
            store.close().await;
        }
    }
}

/// Nodes on one database.
struct Fleet {
    nodes: Vec<(Arc<Node>, Arc<PostgresStore>)>,
}

impl Fleet {
    async fn start(url: &str, count: usize, dir: &Path) -> Self {
        let cache = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled");
        let mut nodes = Vec::new();
        for _ in 0..count {
            nodes.push(node_on(url, Settings::default(), dir, &cache).await);
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

    /// Makes so many sessions that wait for what never comes.
    async fn wait(&self, sessions: usize) {
        const AT_ONCE: usize = 64;
        futures::stream::iter(0..sessions)
            .for_each_concurrent(AT_ONCE, async |n| {
                let (node, _) = &self.nodes[n % self.nodes.len()];
                let session = create(node, PLANNER).await;
                prompt(node, session, "wait signal go").await;
                let tail = node.idle(session).await.expect("an end");
                assert!(tail.session.wait.is_some(), "it waits");
            })
            .await;
    }

    async fn stop(self) {
        for (node, store) in self.nodes {
            node.shutdown().await;
            store.close().await;
        }
    }
}

async fn turn(node: &Node) -> Duration {
    let session = create(node, Kind::Standard.agent()).await;
    let began = Instant::now();
    prompt(node, session, "Go on.").await;
    let tail = node.idle(session).await.expect("an end");
    assert_eq!(tail.session.last_turn, Some(TurnOutcome::Done));
    began.elapsed()
}

async fn create(node: &Node, agent: &str) -> SessionId {
    let session = SessionId::new();
    let created = SessionCreated {
        agent: agent.to_owned(),
        ..SessionCreated::default()
    };
    node.create(session, created).await.expect("a session");
    session
}

async fn prompt(node: &Node, session: SessionId, text: &str) {
    let content = InputContent::Prompt {
        parts: vec![Part::Text(text.to_owned())],
    };
    let admitted = node.admit(session, InputId::new(), Delivery::Queue, content);
    admitted.await.expect("an admission");
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
