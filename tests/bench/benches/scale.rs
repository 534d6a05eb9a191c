//! What grows with what a store holds? What a look for orphans takes, by the size of the log; opening and
//! stepping a session, by its length; memory, by sessions that wait; and the log, by its transcript.
//!
//! `-- orphans`, or another of the questions' names, asks that one alone.

use std::path::Path;
use std::time::{Duration, Instant};

use futures::StreamExt as _;
use mainstay_bench::report::{Table, millis, quantile, resident, spread};
use mainstay_bench::turn::{self, Kind};
use mainstay_bench::world::{self, Ground, World};
use mainstay_bench::{view, weight, work};
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, End, Write};
use mainstay_core::config::Settings;
use mainstay_core::event::{
    Basis, EventBody, EventDraft, PluginRef, StepStarted, Timing, TurnOutcome,
};
use mainstay_core::history::Order;
use mainstay_core::id::{ExecutionId, OwnerId, Seq, SessionId};
use mainstay_core::model::{Part, Range, ToolCall, ToolOutcome, ToolResult};
use mainstay_core::plugin::{Action, Budget, Trigger};
use mainstay_core::port::Store;
use mainstay_store::{Options, SqliteStore};
use rusqlite::{Connection, params};

struct Plan {
    orphans: usize,
    /// Times that the log is larger.
    times: u64,
    scans: usize,
    lengths: &'static [u64],
    samples: usize,
    waiting: usize,
    transcript: f64,
}

const MEASURED: Plan = Plan {
    orphans: 10_000,
    times: 100,
    scans: 200,
    lengths: &[100, 10_000, 1_000_000],
    samples: 100,
    waiting: 10_000,
    transcript: 64.0 * 1024.0,
};

const QUICK: Plan = Plan {
    orphans: 20,
    times: 10,
    scans: 2,
    lengths: &[10, 100],
    samples: 2,
    waiting: 20,
    transcript: 1024.0,
};

/// Rows of a look of the recovery loop.
const SCAN: u32 = 1024;
/// Sessions that are made or run at once.
const AT_ONCE: usize = 64;
const DEADLINE: Duration = Duration::from_secs(300);

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
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio.block_on(async {
        // First, while the process is small.
        if asks("waiting") {
            waiting(&plan).await;
        }
        if asks("weight") {
            weigh(&plan).await;
        }
        if asks("length") {
            length(&plan).await;
        }
        if asks("orphans") {
            orphans(&plan).await;
        }
    });
}

fn tmp() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

fn folder() -> tempfile::TempDir {
    tempfile::tempdir_in(tmp()).expect("a folder on the disk of the build")
}

// Memory of sessions that wait.

async fn waiting(plan: &Plan) {
    let dir = folder();
    let world = World::start(dir.path(), &tmp().join("compiled")).await;
    // What is made once, as pools and caches are, belongs to a node that is empty.
    run_to_end(&world, "say Hello.", plan.waiting / 20).await;
    let before = resident();
    run_to_end(&world, "wait signal go", plan.waiting).await;
    let after = resident();
    let store: &dyn Store = &*world.store;
    let claims = store.scan(SCAN).await.expect("a scan").expired.len();
    assert_eq!(claims, 0, "they hold no claims");

    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let table = Table::new(&["waiting sessions", "base MiB", "beyond MiB", "bytes each"]);
    let beyond = after.saturating_sub(before);
    table.row(&[
        plan.waiting.to_string(),
        format!("{:.0}", mib(before)),
        format!("{:.1}", mib(beyond)),
        format!("{}", beyond / plan.waiting as u64),
    ]);
    world.stop().await;
}

/// Prompts new sessions of the agent `planner`, some at a time, and waits until none of them has a claim.
async fn run_to_end(world: &World, prompt: &str, sessions: usize) {
    let one = async |_| {
        let session = world.session_of(world::PLANNER).await;
        turn::prompt(world, session, prompt).await;
        world.node.idle(session).await.expect("its end");
    };
    futures::stream::iter(0..sessions)
        .for_each_concurrent(AT_ONCE, one)
        .await;
}

// The log against the transcript.

async fn weigh(plan: &Plan) {
    let dir = folder();
    let world = World::start(dir.path(), &tmp().join("compiled")).await;
    let table = Table::new(&[
        "turns",
        "in the session",
        "transcript KiB",
        "event bytes/text byte",
        "event bytes/item byte",
    ]);
    for kind in Kind::ALL {
        let session = world.session(kind).await;
        let mut turns = 0;
        let weight = loop {
            turn::one(&world, kind, session).await;
            turns += 1;
            let weight = weight::of(&*world.store, &[session]).await;
            if weight.text > plan.transcript {
                break weight;
            }
        };
        table.row(&[
            kind.name().to_owned(),
            turns.to_string(),
            format!("{:.0}", weight.text / 1024.0),
            format!("{:.2}", weight.events / weight.text),
            format!("{:.2}", weight.events / weight.items),
        ]);
    }
    world.stop().await;
}

// Opening and stepping a session.

/// Of an event's text: a million of them are to be there in a minute.
const NOTE_BYTES: usize = 60;

/// What is done once with a session of which nothing is in memory.
const STAGES: [&str; 5] = ["tail", "claim", "step", "newest 20 items", "measure"];

async fn length(plan: &Plan) {
    let dir = folder();
    let file = dir.path().join(world::FILE);
    let mut sessions = Vec::new();
    let store = open(&file).await;
    for &events in plan.lengths {
        let session = SessionId::new();
        let (_, fence) = view::fill(&store, session, events, NOTE_BYTES).await;
        append(&store, session, fence, vec![ended()], Some(End::Succeeded)).await;
        sessions.push((events, session));
    }
    store.close().await;

    let mut columns = vec!["events"];
    columns.extend(STAGES);
    columns.extend(["all, µs", "ratio"]);
    let table = Table::new(&columns);
    // Taken in turns, so that what else the machine does falls on all of them.
    let mut took = vec![Vec::new(); sessions.len()];
    for _ in 0..plan.samples {
        for (took, (_, session)) in took.iter_mut().zip(&sessions) {
            let store = open(&file).await;
            // The connections are there; nothing of the session is.
            let nobody = store.tail(SessionId::new()).await;
            assert!(nobody.expect("a read").is_none());
            took.push(step(&store, *session).await);
            store.close().await;
        }
    }
    let median = |took: &[[Duration; 5]], stage: Option<usize>| {
        let of = |sample: &[Duration; 5]| match stage {
            Some(stage) => sample[stage],
            None => sample.iter().sum(),
        };
        let durations: Vec<Duration> = took.iter().map(of).collect();
        quantile(&millis(&durations), 0.5) * 1e3
    };
    let shortest = median(&took[0], None);
    for (took, (events, _)) in took.iter().zip(&sessions) {
        let mut cells = vec![events.to_string()];
        cells.extend((0..STAGES.len()).map(|n| format!("{:.0}", median(took, Some(n)))));
        let all = median(took, None);
        cells.push(format!("{all:.0}"));
        cells.push(format!("{:.2}", all / shortest));
        table.row(&cells);
    }
}

async fn open(file: &Path) -> SqliteStore {
    let store = SqliteStore::open(file, Options::default()).await;
    store.expect("the database")
}

/// Opens the session and begins a step, as [`STAGES`] says, and puts an end to it, which is not counted.
async fn step(store: &SqliteStore, session: SessionId) -> [Duration; 5] {
    let mut took = [Duration::ZERO; 5];
    let mut began = Instant::now();
    let mut stage = 0;
    let mut lap = || {
        took[stage] = began.elapsed();
        stage += 1;
        began = Instant::now();
    };
    let tail = store.tail(session).await;
    let head = tail.expect("a read").expect("the session").session.head;
    lap();
    let fence = claim(store, session, Some(10)).await;
    lap();
    let head = append(store, session, fence, vec![begun(head)], None).await;
    lap();
    let all = Range {
        after: 0,
        through: head,
    };
    let items = store.items(session, all, Order::NewestFirst, 20).await;
    assert!(!items.expect("items").is_empty());
    lap();
    let size = store.measure(session, all).await;
    assert!(size.expect("a size").items > 0);
    lap();

    let settled = EventBody::CallSettled {
        step: head,
        result: ToolResult {
            call: CALL.to_owned(),
            tool: "thing".to_owned(),
            outcome: ToolOutcome::Succeeded,
            output: vec![Part::Text("x".repeat(300))],
            whole: None,
        },
        timing: Timing::default(),
    };
    let events = vec![settled, ended()];
    append(store, session, fence, events, Some(End::Succeeded)).await;
    took
}

const CALL: &str = "1";

/// A step that calls a tool.
fn begun(head: Seq) -> EventBody {
    EventBody::StepStarted(Box::new(StepStarted {
        basis: Basis {
            now: work::now(),
            trigger: Trigger::TurnStarted,
            fresh: Range::default(),
            context: Range {
                after: 0,
                through: head,
            },
            budget: Budget {
                steps: 10,
                tokens: None,
                cost: None,
                time_ms: None,
            },
            state_from: None,
        },
        runner: PluginRef {
            alias: "bench".to_owned(),
            name: "bench-runner".to_owned(),
            digest: "0".repeat(64),
        },
        provider: None,
        toolboxes: Vec::new(),
        action: Action::CallTools(vec![ToolCall {
            id: CALL.to_owned(),
            tool: "thing".to_owned(),
            arguments: "{}".to_owned(),
        }]),
        state: None,
        hosted_once: false,
        spawn_refused: None,
        decide_us: 0,
    }))
}

fn ended() -> EventBody {
    EventBody::TurnEnded {
        outcome: TurnOutcome::Done,
        decided: None,
    }
}

async fn commit(store: &dyn Store, session: SessionId, write: Write) -> Seq {
    let commit = Commit {
        session,
        at: work::now(),
        write,
    };
    let committed = store.commit(commit).await;
    committed.expect("a commit").tail.session.head
}

/// Forced, it begins a turn of so many steps.
async fn claim(store: &dyn Store, session: SessionId, forced: Option<u32>) -> Fence {
    let fence = Fence {
        execution: ExecutionId::new(),
        owner: OwnerId::new(),
    };
    let write = Write::Claim {
        execution: fence.execution,
        owner: fence.owner,
        lease_ms: 3_600_000,
        forced,
        resumed: false,
        by_itself: false,
    };
    commit(store, session, write).await;
    fence
}

async fn append(
    store: &dyn Store,
    session: SessionId,
    fence: Fence,
    events: Vec<EventBody>,
    end: Option<End>,
) -> Seq {
    let append = Append {
        fence,
        expected_head: None,
        begins: false,
        events: events.into_iter().map(EventDraft::new).collect(),
        end,
    };
    commit(store, session, Write::Append(append)).await
}

// Orphans.

async fn orphans(plan: &Plan) {
    let (small, large) = (folder(), folder());
    let file = small.path().join(world::FILE);
    let store = open(&file).await;
    let mut left = plan.orphans;
    while left > 0 {
        let batch = left.min(512);
        let sessions = work::prompted(&store, world::BRIEF, "Go on.", batch).await;
        let claims = sessions.iter().map(|session| claim(&store, *session, None));
        futures::future::join_all(claims).await;
        left -= batch;
    }
    store.close().await;
    let copy = large.path().join(world::FILE);
    std::fs::copy(&file, &copy).expect("a copy");
    lengthen(&copy, plan.times);

    // Taken in turns, so that what else the machine does falls on both.
    let files = [&file, &copy];
    let stores = [open(&file).await, open(&copy).await];
    let mut scans = [const { Vec::new() }; 2];
    for _ in 0..plan.scans {
        for (scans, store) in scans.iter_mut().zip(&stores) {
            let began = Instant::now();
            let scan = store.scan(SCAN).await.expect("a scan");
            scans.push(began.elapsed());
            assert_eq!(scan.expired.len(), plan.orphans.min(SCAN as usize));
        }
    }
    for store in stores {
        store.close().await;
    }

    let table = Table::new(&[
        "orphans",
        "events in the log",
        "MiB",
        "scan ms",
        "ratio",
        "all settled s",
    ]);
    let scans = scans.map(|scans| millis(&scans));
    for (file, of_file) in files.into_iter().zip(&scans) {
        let events = count(file, "SELECT max(rowid) FROM event");
        let size = std::fs::metadata(file).expect("the file").len();
        table.row(&[
            plan.orphans.to_string(),
            events.to_string(),
            (size >> 20).to_string(),
            spread(of_file, 2),
            format!("{:.2}", quantile(of_file, 0.5) / quantile(&scans[0], 0.5)),
            format!("{:.1}", settle(file).await.as_secs_f64()),
        ]);
    }
}

/// Starts a node and waits until the orphans are settled.
async fn settle(file: &Path) -> Duration {
    // Each is its session's third event; no later execution is.
    const LEFT: &str = "SELECT count(*) FROM execution WHERE ended IS NULL AND started = 3";
    let dir = file.parent().expect("a folder");
    let ground = Ground::open(dir, &tmp().join("compiled")).await;
    let began = Instant::now();
    let node = ground.node(Settings::default());
    while count(file, LEFT) > 0 {
        assert!(began.elapsed() < DEADLINE, "orphans are left");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    let settled = began.elapsed();
    node.shutdown().await;
    ground.store.close().await;
    settled
}

fn count(file: &Path, query: &str) -> i64 {
    let conn = Connection::open(file).expect("the database");
    conn.query_row(query, [], |row| row.get(0))
        .expect("a count")
}

/// Puts notes behind every session's events, straight into the file, until the log is so many times as
/// long.
fn lengthen(file: &Path, times: u64) {
    let conn = Connection::open(file).expect("the database");
    let last: i64 = conn
        .query_row("SELECT min(head) FROM session", [], |row| row.get(0))
        .expect("a head");
    let head = last * i64::try_from(times).expect("few");
    // In the order of every index, so that each is only appended to.
    conn.execute_batch("PRAGMA synchronous = OFF; BEGIN; DROP TRIGGER event_kind;")
        .expect("a transaction");
    conn.execute(
        "WITH RECURSIVE more(seq) AS (SELECT ?1 + 1 UNION ALL SELECT seq + 1 FROM more WHERE seq < ?2)
         INSERT INTO event (session, seq, id, type, version, at, data)
         SELECT session.id, more.seq,
                printf('ffffffff-%04x-7%03x-8000-%012x', session.rowid >> 12, session.rowid & 4095, more.seq),
                'runner.noted', 1, session.updated_at, '{\"parts\":[{\"text\":\"And so it went on.\"}]}'
           FROM (SELECT rowid, id, updated_at FROM session ORDER BY id) AS session, more",
        params![last, head],
    )
    .expect("notes");
    conn.execute("UPDATE session SET head = ?", params![head])
        .expect("heads");
    conn.execute("INSERT OR IGNORE INTO kind VALUES ('runner.noted', 1)", [])
        .expect("a kind");
    conn.execute_batch(
        "CREATE TRIGGER event_kind AFTER INSERT ON event
         WHEN NOT EXISTS (SELECT 1 FROM kind WHERE type = NEW.type AND version = NEW.version)
         BEGIN INSERT INTO kind (type, version) VALUES (NEW.type, NEW.version); END;
         COMMIT; PRAGMA wal_checkpoint(TRUNCATE);",
    )
    .expect("a commit");
}
