//! What part of the rate of plain SQLite do commits have that share an fsync? Two loops put as much into a
//! transaction as the store put commits: the raw one the same rows into the same tables, so that what it
//! takes less is what the store adds to SQLite; the bare one a row of as many bytes into a table of its own.

use std::path::Path;
use std::time::{Duration, Instant};

use mainstay_bench::bare::Bare;
use mainstay_bench::raw::Raw;
use mainstay_bench::report::{Table, spread};
use mainstay_bench::work::now;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, Write};
use mainstay_core::event::{EventBody, EventDraft, SessionCreated};
use mainstay_core::id::{ExecutionId, OwnerId, SessionId};
use mainstay_core::model::Part;
use mainstay_core::port::Store;
use mainstay_store::{Options, SqliteStore};
use rusqlite::Connection;

struct Plan {
    rounds: usize,
    lasting: Duration,
    sessions: &'static [usize],
}

const MEASURED: Plan = Plan {
    rounds: 7,
    lasting: Duration::from_secs(1),
    sessions: &[32, 128, 512],
};

const QUICK: Plan = Plan {
    rounds: 1,
    lasting: Duration::from_millis(1),
    sessions: &[4],
};

/// Bytes of an event's text.
const TEXT: usize = 300;

fn main() {
    let plan = if mainstay_bench::is_measured() {
        MEASURED
    } else {
        QUICK
    };
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let table = Table::new(&[
        "sessions",
        "commits/s",
        "commits per fsync",
        "bytes of a commit",
        "raw commits/s",
        "part of raw",
        "bare rows/s",
        "part of bare",
    ]);
    for &sessions in plan.sessions {
        let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
        let file = dir.path().join("store.db");
        let store = tokio.block_on(SqliteStore::open(&file, Options::default()));
        let store = store.expect("a new store");
        let claimed = tokio.block_on(claimed(&store, sessions));
        // One round for its bytes, and to warm up.
        tokio.block_on(round(&store, &claimed, plan.lasting));
        let bytes = bytes_of_a_commit(&file);
        let mut bare = Bare::open(dir.path(), bytes);
        let mut raw = Raw::open(dir.path(), &file, "runner.said");
        let (mut rates, mut groups) = (vec![], vec![]);
        let (mut of_raw, mut of_bare) = (Against::default(), Against::default());
        for _ in 0..plan.rounds {
            let before = store.stats();
            let rate = tokio.block_on(round(&store, &claimed, plan.lasting));
            let after = store.stats();
            let fsyncs = (after.groups - before.groups).max(1);
            let group = (after.commits - before.commits) as f64 / fsyncs as f64;
            let size = (group.round() as usize).max(1);
            of_raw.add(rate, raw.grouped_rate(plan.lasting, size));
            of_bare.add(rate, bare.grouped_rate(plan.lasting, size));
            rates.push(rate);
            groups.push(group);
        }
        table.row(&[
            sessions.to_string(),
            spread(&rates, 0),
            spread(&groups, 1),
            bytes.to_string(),
            spread(&of_raw.rates, 0),
            spread(&of_raw.parts, 2),
            spread(&of_bare.rates, 0),
            spread(&of_bare.parts, 2),
        ]);
        tokio.block_on(store.close());
    }
}

/// Rates of something else, and the store's as parts of them.
#[derive(Default)]
struct Against {
    rates: Vec<f64>,
    parts: Vec<f64>,
}

impl Against {
    fn add(&mut self, store: f64, other: f64) {
        self.rates.push(other);
        self.parts.push(store / other);
    }
}

/// New sessions, each with an open turn and a claim.
async fn claimed(store: &SqliteStore, sessions: usize) -> Vec<(SessionId, Fence)> {
    let one = async |_| {
        let session = SessionId::new();
        let fence = Fence {
            execution: ExecutionId::new(),
            owner: OwnerId::new(),
        };
        let created = SessionCreated {
            agent: "bench".into(),
            ..SessionCreated::default()
        };
        commit(store, session, Write::Create(created)).await;
        let claim = Write::Claim {
            execution: fence.execution,
            owner: fence.owner,
            lease_ms: 3_600_000,
            forced: Some(10),
            resumed: false,
            by_itself: false,
        };
        commit(store, session, claim).await;
        (session, fence)
    };
    futures::future::join_all((0..sessions).map(one)).await
}

/// Each session commits one event after the other. Gives the commits of all in a second.
async fn round(store: &SqliteStore, claimed: &[(SessionId, Fence)], lasting: Duration) -> f64 {
    let began = Instant::now();
    let one = async |(session, fence): &(SessionId, Fence)| {
        let mut commits = 0_u32;
        while commits == 0 || began.elapsed() < lasting {
            let said = EventBody::RunnerSaid {
                runner: "bench".into(),
                parts: vec![Part::Text("x".repeat(TEXT))],
            };
            let append = Append {
                fence: *fence,
                expected_head: None,
                begins: false,
                events: vec![EventDraft::new(said)],
                end: None,
            };
            commit(store, *session, Write::Append(append)).await;
            commits += 1;
        }
        commits
    };
    let commits = futures::future::join_all(claimed.iter().map(one)).await;
    f64::from(commits.iter().sum::<u32>()) / began.elapsed().as_secs_f64()
}

async fn commit(store: &SqliteStore, session: SessionId, write: Write) {
    let at = now();
    let committed = store.commit(Commit { session, at, write }).await;
    committed.expect("a commit");
}

/// Of the JSON of the rows that one commit writes, on average.
fn bytes_of_a_commit(file: &Path) -> usize {
    let conn = Connection::open(file).expect("the store's file");
    let sum = "SELECT CAST((SELECT avg(length(data)) FROM event WHERE type = 'runner.said')
                    + (SELECT avg(length(data)) FROM item)
                    + (SELECT avg(length(data)) FROM session) AS INTEGER)";
    let bytes: i64 = conn.query_row(sum, [], |row| row.get(0)).expect("rows");
    usize::try_from(bytes).expect("a length")
}
