//! The suite on Postgres, and what only a database that several nodes share can show.

#[path = "postgres/doctor.rs"]
mod doctor;
#[path = "postgres/foreign.rs"]
mod foreign;
#[path = "postgres/gc.rs"]
mod gc;
#[path = "postgres/lost.rs"]
mod lost;
#[path = "postgres/nodes.rs"]
mod nodes;
#[path = "postgres/ordered.rs"]
mod ordered;
#[path = "postgres/results.rs"]
mod results;
#[path = "postgres/schema.rs"]
mod schema;
#[path = "postgres/wire.rs"]
mod wire;

use std::sync::Arc;
use std::time::Duration;

use mainstay_store::PostgresStore;
use mainstay_store::postgres::Options;
use mainstay_test_conformance::{Harness, Tally, conformance, store_2};
use mainstay_test_support::delegate::Delegating;
use mainstay_test_support::postgres::{self, Server};
use mainstay_test_support::{ManualClock, MemoryStore};
use ordered::Ordered;

/// A store in a fresh database, by a clock that is moved by hand.
async fn fresh(
    server: &Server,
    change: impl FnOnce(&mut Options),
) -> (Harness, Arc<PostgresStore>, String) {
    let url = server.database();
    let clock = Arc::new(ManualClock::default());
    let mut options = options(&clock);
    change(&mut options);
    let store = Arc::new(PostgresStore::open(&url, options).await.unwrap());
    let h = Harness {
        store: store.clone(),
        clock,
        keep: Box::new(()),
    };
    (h, store, url)
}

fn options(clock: &Arc<ManualClock>) -> Options {
    Options {
        clock: Some(clock.clone()),
        connections: 4,
        notify_every: None,
        ..Options::default()
    }
}

async fn open() -> Option<Harness> {
    Some(fresh(postgres::server()?, |_| {}).await.0)
}

conformance!(open, if found);

/// Without prepared statements, as behind a pooler.
mod plain {
    use super::*;

    async fn open() -> Option<Harness> {
        let plain = |options: &mut Options| options.prepared = false;
        Some(fresh(postgres::server()?, plain).await.0)
    }

    conformance!(open, if found);
}

/// Behind a pooler that hands each transaction to another connection.
mod pooled {
    use super::*;

    async fn open() -> Option<Harness> {
        let server = postgres::server()?;
        let wire = wire::Wire::before(server.port(), true).await;
        let clock = Arc::new(ManualClock::default());
        let mut options = options(&clock);
        options.prepared = false;
        let url = wire.url(&server.database());
        let store = PostgresStore::open(&url, options).await.unwrap();
        Some(Harness {
            store: Arc::new(store),
            clock,
            keep: Box::new(()),
        })
    }

    conformance!(open, if found);
}

/// The same random commits, good and bad, to the store in memory and to some nodes' in one database.
async fn differential(
    seeds: std::ops::Range<u64>,
    (nodes, bound): (usize, bool),
    change: impl Fn(&mut Options) + Copy,
) {
    let Some(server) = postgres::server() else {
        return;
    };
    let mut tally = Tally::default();
    for seed in seeds {
        let (mut h, store, url) = fresh(server, change).await;
        let mut stores = vec![store];
        for _ in 1..nodes {
            stores.push(another(&h, &url, change).await);
        }
        h.store = Arc::new(Delegating(Ordered::new(stores.clone(), bound)));
        let memory = MemoryStore::new(h.clock.clone());
        let memory = Harness {
            store: Arc::new(memory),
            clock: h.clock.clone(),
            keep: Box::new(()),
        };
        let one = store_2(&memory, &h, seed, 1_000).await;
        let (accepted, commits) = (one.accepted, one.commits);
        assert!(
            accepted * 5 > commits * 2,
            "seed {seed}: only {accepted} of {commits} were accepted"
        );
        tally.add(one);
        for store in stores {
            store.close().await;
        }
    }
    tally.check();
}

/// Another node's store in a database.
async fn another(h: &Harness, url: &str, change: impl FnOnce(&mut Options)) -> Arc<PostgresStore> {
    let mut options = options(&h.clock);
    change(&mut options);
    Arc::new(PostgresStore::open(url, options).await.unwrap())
}

#[tokio::test]
async fn store_2_with_warm_tails() {
    differential(1..6, (1, true), |_| {}).await;
}

#[tokio::test]
async fn store_2_with_tails_read_anew() {
    differential(6..11, (1, true), |options| options.cached_tails = 1).await;
}

#[tokio::test]
async fn store_2_without_prepared_statements() {
    differential(11..16, (1, true), |options| options.prepared = false).await;
}

/// Each is out of date whenever another has written.
#[tokio::test]
async fn store_2_with_three_nodes() {
    differential(1..6, (3, false), |options| {
        options.scan_hold = Duration::ZERO
    })
    .await;
}

/// Each writes by itself for the executions that it runs, and others to their sessions meanwhile.
#[tokio::test]
async fn store_2_with_executions_that_keep_to_their_nodes() {
    differential(6..11, (3, true), |options| {
        options.scan_hold = Duration::ZERO
    })
    .await;
}
