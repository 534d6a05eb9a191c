//! Several nodes at one database: what they tell each other by it, and what it costs.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use mainstay_core::commit::{Commit, Refused, Reply, Write};
use mainstay_core::event::{Delivery, EventBody};
use mainstay_core::history::Order;
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Range;
use mainstay_core::plugin::{Condition, Kind};
use mainstay_core::port::{Scan, Store, StoreError};
use mainstay_store::PostgresStore;
use mainstay_store::postgres::{Hint, Hints, Options};
use mainstay_test_conformance::{owing, waiting};
use mainstay_test_support::{build, postgres};
use sqlx::{Connection, Executor, PgConnection, Row};

use super::wire::Wire;
use super::{another, fresh};

#[tokio::test]
async fn store_8_a_fenced_append_takes_one_round_trip() {
    let Some(server) = postgres::server() else {
        return;
    };
    for prepared in [true, false] {
        let plain = |options: &mut Options| options.prepared = prepared;
        let (h, _, url) = fresh(server, plain).await;
        let wire = Wire::before(server.port(), false).await;
        let near = another(&h, &wire.url(&url), plain).await;
        let (session, fence) = h.turn().await;
        // The first that this node hears of the session. The statements are prepared by then.
        let other = h.turn().await;
        for (session, fence) in [other, (session, fence)] {
            near.commit(build::append(session, fence, [build::turn_ended()]))
                .await
                .unwrap();
            let before = wire.round_trips();
            near.commit(build::append(session, fence, [build::turn_started()]))
                .await
                .unwrap();
            assert_eq!(wire.round_trips() - before, 1, "prepared: {prepared}");
            if (session, fence) == other {
                continue;
            }
            near.renew(fence.owner, &[fence], 30_000).await.unwrap();
            let before = wire.round_trips();
            near.renew(fence.owner, &[fence], 30_000).await.unwrap();
            assert_eq!(wire.round_trips() - before, 1);
        }
        // What another node wrote last, and what this one never saw.
        let (unseen, its) = h.turn().await;
        h.prompt(session, Delivery::Queue).await;
        for (session, fence) in [(unseen, its), (session, fence)] {
            let before = wire.round_trips();
            near.commit(build::append(session, fence, [build::turn_ended()]))
                .await
                .unwrap();
            let took = wire.round_trips() - before;
            assert!(took <= 2, "{took} round trips, prepared: {prepared}");
        }
        // An admission, wherever it comes in.
        let before = wire.round_trips();
        let admit = build::admit(unseen, InputId::new(), Delivery::Steer, "x");
        near.commit(admit).await.unwrap();
        assert_eq!(wire.round_trips() - before, 1);
        h.dump(session).await;
        h.dump(unseen).await;
    }
}

/// Where a name leads is asked once, and again when another node has moved it: the answer to the next
/// commit tells, or to the next renewal or scan.
#[tokio::test]
async fn node_8_a_name_that_another_node_moves_is_seen_behind_the_next_answer() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, there, url) = fresh(server, |_| {}).await;
    let wire = Wire::before(server.port(), false).await;
    let here = another(&h, &wire.url(&url), |_| {}).await;
    let (session, fence) = h.turn().await;
    let leads = async || here.alias(Kind::Runner, "mine").await.unwrap();
    let moved = async |digest: Option<&'static str>| {
        let done = there.alias_put(Kind::Runner, "mine", digest, None);
        done.await.unwrap();
    };
    let commit = async |body: EventBody| {
        let done = here.commit(build::append(session, fence, [body]));
        done.await.unwrap();
    };
    assert_eq!(leads().await, None);
    moved(Some("a")).await;
    commit(build::turn_ended()).await;
    assert_eq!(leads().await.as_deref(), Some("a"));
    let before = wire.round_trips();
    commit(build::turn_started()).await;
    for _ in 0..3 {
        assert_eq!(leads().await.as_deref(), Some("a"));
    }
    assert_eq!(here.alias(Kind::Toolbox, "mine").await.unwrap(), None);
    assert_eq!(wire.round_trips() - before, 1, "nothing but the commit");

    moved(Some("b")).await;
    here.renew(fence.owner, &[fence], 30_000).await.unwrap();
    assert_eq!(leads().await.as_deref(), Some("b"));
    moved(None).await;
    here.scan(1).await.unwrap();
    assert_eq!(leads().await, None);
    // One's own change needs no answer, and a list is always read.
    let own = here.alias_put(Kind::Runner, "mine", Some("c"), None);
    own.await.unwrap();
    assert_eq!(leads().await.as_deref(), Some("c"));
    moved(Some("d")).await;
    assert_eq!(here.aliases().await.unwrap()[0].digest, "d");
    assert_eq!(leads().await.as_deref(), Some("d"));
}

/// Whatever an execution reads of what it wrote itself is read nowhere.
#[tokio::test]
async fn store_8_an_execution_reads_its_own_items_without_a_round_trip() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, _, url) = fresh(server, |_| {}).await;
    let wire = Wire::before(server.port(), false).await;
    let store = another(&h, &wire.url(&url), |_| {}).await;
    let (session, _, _) = h.claimed().await;
    let read = async |order: Order| {
        let items = store.items_held(session, ALL, order, 100).await.unwrap();
        let size = store.measure_held(session, ALL).await.unwrap();
        assert_eq!(size, store.measure(session, ALL).await.unwrap());
        let stored = store.items(session, ALL, order, 100).await.unwrap();
        assert_eq!(items, stored);
        items.len()
    };
    // It was claimed elsewhere: all is read. The statements are prepared by then.
    let earlier = read(Order::OldestFirst).await;
    read(Order::NewestFirst).await;
    let before = wire.round_trips();
    read(Order::OldestFirst).await;
    assert_eq!(wire.round_trips() - before, 4);

    h.clock.advance(build::LEASE_MS);
    let expired = store.scan(1).await.unwrap().expired.remove(0);
    let seen = mainstay_core::claim::Fence {
        execution: expired.execution,
        owner: expired.owner,
    };
    store.commit(build::recover(session, seen)).await.unwrap();
    let fence = build::fence();
    store.commit(build::claim(session, fence)).await.unwrap();
    let note = |text: &str| EventBody::RunnerNoted {
        parts: build::text(text),
    };
    // What is older is read once.
    for (n, most) in [(1, 4), (2, 2), (3, 2)] {
        let noted = build::append(session, fence, [note("x")]);
        store.commit(noted).await.unwrap();
        let before = wire.round_trips();
        assert_eq!(read(Order::OldestFirst).await, earlier + n);
        assert!(wire.round_trips() - before <= most, "{n}");
        let before = wire.round_trips();
        assert_eq!(read(Order::NewestFirst).await, earlier + n);
        assert_eq!(wire.round_trips() - before, 2, "{n}");
    }
}

const ALL: Range = Range {
    after: 0,
    through: u64::MAX,
};

#[tokio::test]
async fn store_9_each_due_row_is_handled_once() {
    const ROWS: usize = 1_000;
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, first, url) = fresh(server, |options| options.connections = 16).await;
    let mut sessions = Vec::new();
    while sessions.len() < ROWS {
        sessions.extend(join_all((0..100).map(|_| h.claimed())).await);
    }
    h.clock.advance(build::LEASE_MS);
    let mut scanners = vec![first];
    for _ in 0..3 {
        scanners.push(another(&h, &url, |_| {}).await);
    }
    // Each works until it is told of nothing more.
    let handled = join_all(scanners.iter().map(|store| async move {
        let (mut told, mut handled) = (0, Vec::new());
        loop {
            let expired = store.scan(50).await.unwrap().expired;
            if expired.is_empty() {
                return (told, handled);
            }
            for claim in expired {
                told += 1;
                let seen = mainstay_core::claim::Fence {
                    execution: claim.execution,
                    owner: claim.owner,
                };
                let done = store.commit(build::recover(claim.session, seen)).await;
                done.unwrap();
                handled.push(claim.session);
            }
        }
    }))
    .await;
    let told: usize = handled.iter().map(|(told, _)| told).sum();
    let all: Vec<SessionId> = handled
        .into_iter()
        .flat_map(|(_, handled)| handled)
        .collect();
    assert_eq!((told, all.len()), (ROWS, ROWS));
    assert_eq!(all.iter().collect::<HashSet<_>>().len(), ROWS);
    assert_eq!(scanners[0].scan(10).await.unwrap().expired, []);
}

/// What somebody else is at is passed over by a scan, and not waited for by what a scan leads to.
#[tokio::test]
async fn store_9_no_scanner_waits_for_a_lock() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, store, url) = fresh(server, |options| options.patience = Duration::ZERO).await;
    let (held, fence, _) = h.claimed().await;
    let (free, ..) = h.claimed().await;
    let (due, idle) = (h.session().await, h.session().await);
    for session in [due, idle] {
        h.prompt(session, Delivery::Steer).await;
    }
    let at = h.store.now().await.unwrap() + 1_000;
    let timer = waiting(&h, &[Condition::Time(at)]).await;
    h.clock.advance(build::LEASE_MS);

    let mut other = PgConnection::connect(&url).await.unwrap();
    let mut tx = other.begin().await.unwrap();
    for session in [held, due, timer] {
        for lock in [
            "SELECT 1 FROM session WHERE id = $1 FOR NO KEY UPDATE",
            "SELECT 1 FROM claim WHERE session = $1 FOR UPDATE",
        ] {
            sqlx::query(lock)
                .bind(session.0)
                .execute(&mut *tx)
                .await
                .unwrap();
        }
    }
    let scan = store.scan(10).await.unwrap();
    let expired: Vec<_> = scan.expired.iter().map(|claim| claim.session).collect();
    assert_eq!(
        (expired, scan.due, scan.timers),
        (vec![free], vec![idle], vec![])
    );
    for commit in [
        build::recover(held, fence),
        build::commit(timer, Write::Fire),
    ] {
        let error = store.commit(commit).await.unwrap_err();
        assert!(matches!(error, StoreError::Unavailable { .. }), "{error:?}");
    }
    tx.rollback().await.unwrap();
    h.ok(build::recover(held, fence)).await;
    h.ok(build::commit(timer, Write::Fire)).await;
    h.dump(held).await;
    h.dump(timer).await;
}

/// What one scanner was told of the others hear of later, should it do nothing about it.
#[tokio::test]
async fn store_9_what_a_scanner_leaves_undone_is_told_to_the_next() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, a, url) = fresh(server, |_| {}).await;
    let hold = Options::default().scan_hold.as_millis() as u64;
    let b = another(&h, &url, |_| {}).await;
    let (session, ..) = h.claimed().await;
    h.clock.advance(build::LEASE_MS);
    let told = async |store: &PostgresStore| {
        let expired = store.scan(10).await.unwrap().expired;
        expired.iter().any(|claim| claim.session == session)
    };
    assert!(told(&a).await && !told(&b).await);
    h.clock.advance(hold - 1);
    // Being told again does not keep it any longer.
    assert!(told(&a).await && !told(&b).await);
    h.clock.advance(1);
    assert!(told(&b).await && !told(&a).await);
}

#[tokio::test]
async fn store_9_scans_read_indexes_alone() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, _, url) = fresh(server, |_| {}).await;
    let (expired, ..) = h.claimed().await;
    let now = h.store.now().await.unwrap();
    let timer = waiting(&h, &[Condition::Time(now + 1)]).await;
    let owes = owing(&h, build::AT).await;
    let due = h.session().await;
    h.prompt(due, Delivery::Steer).await;
    h.clock.advance(build::LEASE_MS);
    let mut conn = PgConnection::connect(&url).await.unwrap();
    // Each with a claim that has not run out and a timer that is not due.
    conn.execute(
        "INSERT INTO session (id, version, created_at, updated_at, head, stepping, runnable, wake_at, data)
         SELECT gen_random_uuid(), 1, n, n, 1, false, false, 1::bigint << 62, '{}'
           FROM generate_series(1, 100000) AS n;
         INSERT INTO claim (session, execution, owner, expires_at, data)
         SELECT id, gen_random_uuid(), gen_random_uuid(), 1::bigint << 62, '{}' FROM session
          WHERE data = '{}';
         ANALYZE",
    )
    .await
    .unwrap();
    // What a connection counted is its own until it is flushed: filling the tables reads them too.
    conn.close().await.unwrap();
    let mut conn = PgConnection::connect(&url).await.unwrap();
    let mut tx = conn.begin().await.unwrap();
    let scan =
        "SELECT o_what, o_session FROM session_scan(gen_random_uuid(), 100, 100, $1, 0, NULL)
                 WHERE o_session IS NOT NULL";
    let now = i64::try_from(h.store.now().await.unwrap()).unwrap();
    let mut found: Vec<(String, uuid::Uuid)> = sqlx::query_as(scan)
        .bind(now)
        .fetch_all(&mut *tx)
        .await
        .unwrap();
    found.sort();
    let expected = [
        ("due", due),
        ("expired", expired),
        ("owing", owes),
        ("timer", timer),
    ];
    assert_eq!(
        found,
        expected.map(|(what, session)| (what.to_owned(), session.0))
    );
    let read = "SELECT relname::text, seq_scan, idx_scan FROM pg_stat_xact_user_tables
                 WHERE relname IN ('session', 'claim', 'event', 'input') AND seq_scan + idx_scan > 0";
    let rows = tx.fetch_all(read).await.unwrap();
    assert!(rows.len() >= 2, "claims and sessions are read");
    for row in rows {
        let (table, whole): (String, i64) = (row.get(0), row.get(1));
        assert_eq!(whole, 0, "{table} is read from end to end");
    }
    // Nor is an index: what is not to be done costs nothing.
    let read = "SELECT coalesce(sum(idx_tup_fetch), 0)::bigint FROM pg_stat_xact_user_tables
                 WHERE relname IN ('session', 'claim')";
    let fetched: i64 = tx.fetch_one(read).await.unwrap().get(0);
    assert!(fetched < 100, "{fetched} rows are looked at for four");
}

/// Leases go by the database's clock, whatever the nodes' show.
#[tokio::test]
async fn claim_10_a_node_whose_clock_is_ahead_recovers_nothing_early() {
    const AHEAD: u64 = 5 * 60 * 1000;
    let Some(server) = postgres::server() else {
        return;
    };
    let own = |options: &mut Options| options.clock = None;
    let (h, a, url) = fresh(server, own).await;
    let b = another(&h, &url, own).await;
    let now = a.now().await.unwrap();
    let on = |ahead: u64, commit: Commit| Commit {
        at: now + ahead,
        ..commit
    };
    let (kept, taken) = (SessionId::new(), SessionId::new());
    for session in [kept, taken] {
        a.commit(on(0, build::create(session))).await.unwrap();
        let admit = build::admit(session, InputId::new(), Delivery::Steer, "x");
        a.commit(on(0, admit)).await.unwrap();
    }
    let fence = build::fence();
    a.commit(on(0, build::claim(kept, fence))).await.unwrap();
    let renewed = a
        .renew(fence.owner, &[fence], build::LEASE_MS)
        .await
        .unwrap();
    assert_eq!(renewed.len(), 1);

    assert_eq!(b.scan(10).await.unwrap().expired, []);
    let early = b.commit(on(AHEAD, build::recover(kept, fence))).await;
    let Err(StoreError::Refused(early)) = early else {
        panic!("{early:?}")
    };
    assert_eq!(early, Refused::ClaimChanged(kept));

    let before = a.now().await.unwrap();
    let its = build::fence();
    let done = b.commit(on(AHEAD, build::claim(taken, its))).await.unwrap();
    let after = a.now().await.unwrap();
    let Reply::Claimed(claim) = done.reply else {
        panic!("{done:?}")
    };
    let written = before + build::LEASE_MS..=after + build::LEASE_MS;
    assert!(written.contains(&claim.expires_at), "{claim:?}");
    assert_eq!(done.tail.claim.as_ref(), Some(&claim));
    let before = a.now().await.unwrap();
    b.renew(its.owner, &[its], build::LEASE_MS).await.unwrap();
    let after = a.now().await.unwrap();
    let stored = a.tail(taken).await.unwrap().unwrap();
    let stored = stored.claim.as_ref().unwrap().expires_at;
    let written = before + build::LEASE_MS..=after + build::LEASE_MS;
    assert!(written.contains(&stored));

    // An expired one is lost to the node that held it and found by the other.
    a.renew(fence.owner, &[fence], 0).await.unwrap();
    let late = a
        .commit(on(0, build::append(kept, fence, [build::turn_started()])))
        .await;
    assert!(
        matches!(late, Err(StoreError::Refused(Refused::Lost { .. }))),
        "{late:?}"
    );
    let expired = b.scan(10).await.unwrap().expired;
    assert_eq!(
        expired.iter().map(|one| one.session).collect::<Vec<_>>(),
        [kept]
    );
    b.commit(on(AHEAD, build::recover(kept, fence)))
        .await
        .unwrap();
    h.dump(kept).await;
    h.dump(taken).await;
}

/// Of many claimants on several nodes one wins, and what one writes the others find.
#[tokio::test]
async fn claim_2_on_several_nodes() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, a, url) = fresh(server, |_| {}).await;
    let mut nodes = vec![a];
    for _ in 0..3 {
        nodes.push(another(&h, &url, |_| {}).await);
    }
    for _ in 0..10 {
        let session = h.session().await;
        let prompts = nodes
            .iter()
            .map(|node| node.commit(build::admit(session, InputId::new(), Delivery::Steer, "x")));
        for admitted in join_all(prompts).await {
            admitted.unwrap();
        }
        let claims = nodes.iter().cycle().take(16);
        let all = join_all(claims.map(|node| node.commit(build::claim(session, build::fence()))));
        let all = all.await;
        assert_eq!(all.iter().filter(|one| one.is_ok()).count(), 1);
        for lost in all.iter().filter_map(|one| one.as_ref().err()) {
            assert!(
                matches!(lost, StoreError::Refused(Refused::Claimed(_))),
                "{lost:?}"
            );
        }
        let dump = h.dump(session).await;
        assert_eq!(dump.events.len(), 6);
    }
}

/// One input id, admitted to two sessions at once by two nodes, is one session's.
#[tokio::test]
async fn inbox_2_on_several_nodes() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, a, url) = fresh(server, |_| {}).await;
    let b = another(&h, &url, |_| {}).await;
    for _ in 0..20 {
        let input = InputId::new();
        let (one, two) = (h.session().await, h.session().await);
        let admit = |session| build::admit(session, input, Delivery::Steer, "x");
        let (left, right) = tokio::join!(a.commit(admit(one)), b.commit(admit(two)));
        let (won, lost) = if left.is_ok() {
            (left, right)
        } else {
            (right, left)
        };
        let holder = won.unwrap().tail.session.id;
        assert!(
            matches!(&lost, Err(StoreError::Refused(Refused::InputConflict { holder: held, .. }))
                if held.contains(&holder.to_string())),
            "{lost:?}"
        );
        // The first admission answers, from whichever node, promoted or not.
        let fence = build::fence();
        b.commit(build::claim(holder, fence)).await.unwrap();
        let promote = [build::turn_started(), EventBody::InputPromoted { input }];
        b.commit(build::append(holder, fence, promote))
            .await
            .unwrap();
        for node in [&a, &b] {
            let again = node.commit(admit(holder)).await.unwrap();
            assert!(again.events.is_empty(), "{again:?}");
        }
        h.dump(one).await;
        h.dump(two).await;
    }
}

/// A deleted session is gone for every node, whatever it remembers.
#[tokio::test]
async fn a_session_that_another_node_deleted_is_gone() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, _, url) = fresh(server, |_| {}).await;
    let b = another(&h, &url, |_| {}).await;
    let (session, fence) = h.turn().await;
    assert!(b.delete(session).await.unwrap());
    assert!(!b.delete(session).await.unwrap());
    let gone = h
        .refused(build::append(session, fence, [build::turn_ended()]))
        .await;
    assert_eq!(gone, Refused::NotFound(session));
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
    b.commit(build::create(session)).await.unwrap();
    h.prompt(session, Delivery::Steer).await;
    h.dump(session).await;
}

/// A node hears of what another writes, and of nothing that it wrote itself.
#[tokio::test]
async fn a_node_hears_of_what_another_writes() {
    let Some(server) = postgres::start(&[]) else {
        return;
    };
    let server = Arc::new(server);
    let often = |options: &mut Options| options.notify_every = Some(Duration::from_millis(1));
    let (h, a, url) = fresh(&server, often).await;
    let b = another(&h, &url, often).await;
    let mut hints = b.hints();
    assert_eq!(hints.next().await, Some(Hint::Sweep));
    let heard = async |hints: &mut Hints, session, at_least| {
        let wait = async {
            loop {
                match hints.next().await.expect("it is open") {
                    Hint::Changed { session: one, seq } if one == session => {
                        if seq >= at_least {
                            return;
                        }
                    }
                    Hint::Changed { session: other, .. } => panic!("{other} is its own"),
                    // It has begun to listen; what was written before is in the database.
                    Hint::Sweep => {
                        let tail = b.tail(session).await.unwrap();
                        if tail.is_some_and(|tail| tail.session.head >= at_least) {
                            return;
                        }
                    }
                }
            }
        };
        let limit = tokio::time::timeout(Duration::from_secs(60), wait);
        limit.await.expect("a hint comes");
    };
    for _ in 0..3 {
        let session = SessionId::new();
        b.commit(build::create(SessionId::new())).await.unwrap();
        a.commit(build::create(session)).await.unwrap();
        heard(&mut hints, session, 1).await;
        a.commit(build::admit(session, InputId::new(), Delivery::Steer, "x"))
            .await
            .unwrap();
        heard(&mut hints, session, 2).await;
    }
    // A listener that was cut off sweeps.
    let mut hints = b.hints();
    assert_eq!(hints.next().await, Some(Hint::Sweep));
    let crashed = server.clone();
    tokio::task::spawn_blocking(move || crashed.crash())
        .await
        .unwrap();
    let swept = tokio::time::timeout(Duration::from_secs(60), hints.next());
    assert_eq!(swept.await.expect("it listens again"), Some(Hint::Sweep));
    b.close().await;
    assert_eq!(hints.next().await, None);
    a.close().await;
}

/// What a node remembers of a session that was deleted is not taken for one made again under its id.
#[tokio::test]
async fn a_session_that_is_made_again_is_another() {
    let Some(server) = postgres::server() else {
        return;
    };
    let (h, a, url) = fresh(server, |_| {}).await;
    let b = another(&h, &url, |_| {}).await;
    let session = h.session().await;
    h.prompt(session, Delivery::Steer).await;
    assert!(b.delete(session).await.unwrap());
    b.commit(build::create(session)).await.unwrap();
    b.commit(build::commit(session, Write::Cancel))
        .await
        .unwrap();
    // As many commits as before, and another history.
    let refused = h.refused(build::claim(session, build::fence())).await;
    assert!(matches!(refused, Refused::NotRunnable(_)), "{refused:?}");
    assert_eq!(a.stats().stale, 1);
    h.dump(session).await;
}

/// A claim that runs out while its write waits is lost: the fence is inside the write itself.
#[tokio::test]
async fn claim_4_a_claim_that_expires_on_the_way_is_lost() {
    let Some(server) = postgres::server() else {
        return;
    };
    let own = |options: &mut Options| options.clock = None;
    let (h, store, url) = fresh(server, own).await;
    let (session, fence) = h.turn().await;
    let long = 3_600_000;
    let renewed = store.renew(fence.owner, &[fence], long).await.unwrap();
    assert_eq!(renewed.len(), 1);
    let mut other = PgConnection::connect(&url).await.unwrap();
    let mut tx = other.begin().await.unwrap();
    sqlx::query("SELECT 1 FROM session WHERE id = $1 FOR UPDATE")
        .bind(session.0)
        .execute(&mut *tx)
        .await
        .unwrap();
    let writer = tokio::spawn({
        let store = store.clone();
        async move {
            store
                .commit(build::append(session, fence, [build::turn_ended()]))
                .await
        }
    });
    let mut observer = PgConnection::connect(&url).await.unwrap();
    let waiting = "SELECT count(*) FROM pg_stat_activity
                    WHERE datname = current_database() AND wait_event_type = 'Lock'";
    loop {
        let waiting: i64 = sqlx::query_scalar(waiting)
            .fetch_one(&mut observer)
            .await
            .unwrap();
        if waiting > 0 {
            break;
        }
        assert!(!writer.is_finished(), "it waits for the lock");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    // As if that long had gone by.
    observer
        .execute("UPDATE claim SET expires_at = store_now(NULL)")
        .await
        .unwrap();
    assert_eq!(store.stats().stale, 0, "judged while it was held");
    tx.rollback().await.unwrap();
    let lost = writer.await.unwrap().unwrap_err();
    assert!(
        matches!(lost, StoreError::Refused(Refused::Lost { .. })),
        "{lost:?}"
    );
    assert_eq!(store.stats().stale, 1);
    h.dump(session).await;
}
