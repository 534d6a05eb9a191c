//! Three real nodes on a real Postgres under load from outside, while everything goes wrong: nodes are
//! killed, stopped for longer than a lease, restarted one after the other, cut off from the database in
//! the middle of a commit or for a while, their clocks are set hours off, and the database crashes. At
//! the end a checker outside compares what clients were told, and the counters of the model server and
//! of the server that tools call, with what is in the log.
//!
//! `MAINSTAY_CHAOS_SECONDS` says for how long (60), `MAINSTAY_SEED` which faults (a new seed each run,
//! printed), `MAINSTAY_CHAOS_KEEP` that the nodes' logs are to be kept.

mod support;

#[path = "chaos/fleet.rs"]
mod fleet;
#[path = "chaos/proxy.rs"]
mod proxy;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fleet::{LEASE, Node, Place, addresses};
use mainstay_test_support::postgres;
use proxy::Cut;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{Rng as _, SeedableRng as _};
use rustix::process::Signal;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};
use support::checker::{checked, from_env};
use support::client::{Client, Reader, Told};
use support::{DEADLINE, Outside, log};
use tokio_util::sync::CancellationToken;

const CLIENTS: u64 = 5;
/// How long a node is left alone between two faults, in milliseconds.
const CALM: (u64, u64) = (300, 2500);
/// And the database.
const STEADY: (u64, u64) = (8_000, 16_000);

/// How far from the right time a node's clock may be, in seconds.
const APART: i64 = 12 * 3600;

/// What goes wrong with a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    Killed,
    Stopped,
    Restarted,
    CommitLost,
    AnswerLost,
    CutOff,
    Silent,
    ClockSet,
}

const FAULTS: [Fault; 8] = [
    Fault::Killed,
    Fault::Stopped,
    Fault::Restarted,
    Fault::CommitLost,
    Fault::AnswerLost,
    Fault::CutOff,
    Fault::Silent,
    Fault::ClockSet,
];

type Counts = Arc<Mutex<BTreeMap<Fault, u32>>>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_1_store_10_through_chaos_nothing_that_was_told_is_lost_and_nothing_is_done_twice() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    // A crash of a database loses what its settings allow: these are the defaults.
    let Some(server) = postgres::start(&["synchronous_commit=on"]) else {
        return;
    };
    let server = Arc::new(server);
    let seconds: u64 = from_env("MAINSTAY_CHAOS_SECONDS").unwrap_or(60);
    let seed: u64 = from_env("MAINSTAY_SEED").unwrap_or_else(rand::random);
    eprintln!("MAINSTAY_CHAOS_SECONDS={seconds} MAINSTAY_SEED={seed}");
    let mut folder = tempfile::tempdir().unwrap();
    if std::env::var_os("MAINSTAY_CHAOS_KEEP").is_some() {
        folder.disable_cleanup(true);
        eprintln!("logs are in {}", folder.path().display());
    }
    let outside = Outside::start().await;
    let place = Arc::new(Place::new(folder.path(), server.database(), &outside));
    let mut nodes = Vec::new();
    for name in ["a", "b", "c"] {
        let mut node = Node::new(name, &place, &server).await;
        node.start().await;
        nodes.push(node);
    }
    let everywhere = addresses(&nodes);

    let (calm, stop) = (CancellationToken::new(), CancellationToken::new());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let client = Client::new(everywhere.clone(), outside.port, seed ^ n, stop.clone());
            tokio::spawn(client.run())
        })
        .collect();
    let asked = tokio::spawn(ask(
        Reader::new(everywhere.clone(), reqwest::Client::new()),
        calm.clone(),
    ));
    let counts = Counts::default();
    let troubles: Vec<_> = nodes
        .into_iter()
        .enumerate()
        .map(|(n, node)| {
            let chance = StdRng::seed_from_u64(seed.rotate_left(8 * (n as u32 + 1)));
            tokio::spawn(trouble(node, chance, counts.clone(), calm.clone()))
        })
        .collect();
    let crashes = tokio::spawn(crash(
        server.clone(),
        StdRng::seed_from_u64(!seed),
        calm.clone(),
    ));
    tokio::time::sleep(Duration::from_secs(seconds)).await;
    calm.cancel();
    let mut nodes = Vec::new();
    for trouble in troubles {
        nodes.push(trouble.await.unwrap());
    }
    let crashes = crashes.await.unwrap();
    let tagged = asked.await.unwrap();
    stop.cancel();
    let mut told: Vec<Told> = Vec::new();
    for client in clients {
        told.extend(client.await.unwrap());
    }
    let inputs: usize = told.iter().map(|told| told.inputs.len()).sum();
    let events: usize = told.iter().map(|told| told.events.len()).sum();
    let lost: u64 = nodes.iter().map(|node| node.proxy.cuts()).sum();
    let counts = counts.lock().unwrap().clone();
    eprintln!(
        "{} sessions, {inputs} inputs, {events} events were told; {crashes} crashes of the database, \
         {lost} commits lost, {counts:?}",
        told.len()
    );

    let reader = Reader::new(everywhere, reqwest::Client::new());
    let (mut cut_off, mut owners, mut wrong) = (0, BTreeSet::new(), 0);
    for told in &told {
        reader.idle(&told.session).await;
        let all = reader.events(&told.session, 0).await;
        cut_off += checked(told, &all, &outside);
        wrong += all.iter().filter(|event| hours_off(event)).count();
        owners.extend(owners_of(&all));
    }
    for (session, tag) in &tagged {
        reader.idle(session).await;
        let all = reader.events(session, 0).await;
        asked_as_recorded(&all, tag, &outside);
        owners.extend(owners_of(&all));
    }
    // It was a load, and what went wrong went wrong in the midst of it.
    assert!(inputs as u64 > seconds, "only {inputs} inputs");
    assert!(
        cut_off as u64 > seconds / 10,
        "only {cut_off} executions were cut off"
    );
    assert!(owners.len() > 3, "only {owners:?} ran anything");
    assert!(wrong > 0, "all nodes had the right time");
    assert!(
        crashes > 0 && lost > 0,
        "{crashes} crashes, {lost} commits lost"
    );
    for node in &mut nodes {
        node.kill().await;
    }
    healthy(&place).await;
}

/// Has one fault after the other befall a node, each kind before any comes again, and leaves it at work.
async fn trouble(
    mut node: Node,
    mut chance: StdRng,
    counts: Counts,
    calm: CancellationToken,
) -> Node {
    loop {
        let mut faults = FAULTS;
        faults.shuffle(&mut chance);
        for fault in faults {
            let pause = Duration::from_millis(chance.random_range(CALM.0..CALM.1));
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = calm.cancelled() => return node,
            }
            *counts.lock().unwrap().entry(fault).or_default() += 1;
            // Longer than a lease, or just shorter.
            let away = LEASE.mul_f64(chance.random_range(0.8..2.0));
            match fault {
                Fault::Killed => {
                    node.kill().await;
                    tokio::time::sleep(away.mul_f64(chance.random_range(0.0..1.0))).await;
                    node.start().await;
                }
                Fault::Stopped => {
                    node.send(Signal::STOP);
                    tokio::time::sleep(away).await;
                    node.send(Signal::CONT);
                }
                Fault::Restarted => {
                    node.stop().await;
                    node.start().await;
                }
                Fault::CommitLost | Fault::AnswerLost => {
                    node.proxy.arm(match fault {
                        Fault::CommitLost => Cut::Before,
                        _ => Cut::After,
                    });
                    let before = node.proxy.cuts();
                    let until = Instant::now() + LEASE;
                    while node.proxy.cuts() == before && Instant::now() < until {
                        tokio::time::sleep(Duration::from_millis(20)).await;
                    }
                    node.proxy.disarm();
                }
                Fault::CutOff => node.proxy.cut_all(),
                Fault::Silent => {
                    node.proxy.silence(true);
                    tokio::time::sleep(away).await;
                    node.proxy.cut_all();
                    node.proxy.silence(false);
                }
                Fault::ClockSet => node.set_clock(chance.random_range(-APART..APART)),
            }
        }
    }
}

/// Has the database crash now and then. Gives how often.
async fn crash(server: Arc<postgres::Server>, mut chance: StdRng, calm: CancellationToken) -> u32 {
    let mut crashes = 0;
    loop {
        let pause = Duration::from_millis(chance.random_range(STEADY.0..STEADY.1));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = calm.cancelled() => return crashes,
        }
        let server = Arc::clone(&server);
        tokio::task::spawn_blocking(move || server.crash())
            .await
            .unwrap();
        crashes += 1;
    }
}

/// Begins sessions that ask the model server, one after the other. Gives each with its tag.
async fn ask(reader: Reader, calm: CancellationToken) -> Vec<(String, String)> {
    let mut tagged = Vec::new();
    while !calm.is_cancelled() {
        let session = uuid::Uuid::now_v7().to_string();
        let tag = format!("chaos-{}", tagged.len());
        let new = json!({ "id": session, "agent": "asking" });
        let (status, told) = reader
            .send("POST".parse().unwrap(), "/sessions", Some(&new))
            .await;
        assert!(status < 300, "{told}");
        let input = json!({ "id": uuid::Uuid::now_v7(), "text": format!("Do it. tag:{tag}") });
        let path = format!("/sessions/{session}/inputs");
        let (status, told) = reader
            .send("POST".parse().unwrap(), &path, Some(&input))
            .await;
        assert_eq!(status, 202, "{told}");
        tagged.push((session, tag));
        tokio::time::sleep(Duration::from_millis(700)).await;
    }
    tagged
}

/// Each request that the model server got is one that a step had recorded, and what acts once acted once
/// at most.
fn asked_as_recorded(all: &[Value], tag: &str, outside: &Outside) {
    log::check(all);
    let of = |kind: &'static str| all.iter().filter(move |event| event["type"] == kind);
    assert_eq!(of("turn.ended").count(), 1, "{tag}");
    let steps = of("step.started").count();
    let requests = outside.seen.requests.lock().unwrap();
    let requests = requests.get(tag).map(Vec::as_slice).unwrap_or_default();
    let different: BTreeSet<&String> = requests.iter().collect();
    assert!(
        !different.is_empty() && different.len() <= steps,
        "{tag}: {} different requests of {steps} steps",
        different.len()
    );
    let acted = outside.seen.posts.lock().unwrap();
    let acted = acted.get(tag).copied().unwrap_or(0);
    let started = of("call.started").filter(|event| event["data"]["effect"] == "once");
    assert!(acted as usize <= started.count(), "{tag}: {acted} posts");
}

/// Who ran a session.
fn owners_of(all: &[Value]) -> impl Iterator<Item = String> {
    let started = all
        .iter()
        .filter(|event| event["type"] == "execution.started");
    started.map(|event| event["data"]["owner"].as_str().unwrap().to_owned())
}

/// Whether an event was made where the clock was hours from the database's: its id tells of the one, its
/// time of the other.
fn hours_off(event: &Value) -> bool {
    let id: uuid::Uuid = event["id"].as_str().unwrap().parse().unwrap();
    let (seconds, _) = id.get_timestamp().map_or((0, 0), |made| made.to_unix());
    let time = event["at"].as_u64().expect("milliseconds") / 1000;
    id.get_version_num() == 7 && seconds.abs_diff(time) > 3600
}

/// The database itself says so, and no secret is in it.
async fn healthy(place: &Place) {
    let report = place
        .command(&place.url)
        .args(["--json", "doctor"])
        .output();
    let report = tokio::time::timeout(DEADLINE, report).await;
    let report = report.expect("doctor ends").unwrap();
    let said = String::from_utf8_lossy(&report.stdout);
    let errors = String::from_utf8_lossy(&report.stderr);
    assert!(report.status.success(), "{said}\n{errors}");
    let mut conn = PgConnection::connect(&place.url).await.unwrap();
    for table in ["event", "item", "input", "session"] {
        let sql = format!("SELECT count(*) FROM {table} WHERE position($1 IN data) > 0");
        let found: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
            .bind(support::SECRET)
            .fetch_one(&mut conn)
            .await
            .unwrap();
        assert_eq!(found, 0, "the secret is in {table}");
    }
}
