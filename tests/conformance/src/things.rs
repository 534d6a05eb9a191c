//! The rest of the port: results, lists, scans, deletion, plugins, the clock.

use mainstay_core::claim::Phase;
use mainstay_core::commit::{Refused, TITLE, Write};
use mainstay_core::event::{Delivery, EventBody, SessionCreated};
use mainstay_core::history::Order;
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Range;
use mainstay_core::plugin::{Kind, PluginInfo, Workspace};
use mainstay_core::port::Alias;
use mainstay_test_support::build;

use crate::Harness;

/// One result per call, and none before its call.
pub async fn tool_6(h: Harness) {
    // The id may be anything, one with a zero byte among them.
    let (session, fence, step) = h.step(build::call_tools(&["a", "b\0x", "b\0y"])).await;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "a")],
    ))
    .await;
    let second = h
        .refused(build::append(
            session,
            fence,
            [build::call_settled(step, "a")],
        ))
        .await;
    assert!(matches!(second, Refused::Rule(_)), "{second:?}");
    let early = h
        .refused(build::append(
            session,
            fence,
            [build::call_settled(step, "c")],
        ))
        .await;
    assert!(matches!(early, Refused::Rule(_)), "{early:?}");
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "b\0x")],
    ))
    .await;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "b\0y")],
    ))
    .await;
    let dump = h.dump(session).await;
    assert_eq!(dump.calls.len(), 3);
    assert_eq!(dump.claim.unwrap().phase, Phase::Continue);
}

/// Items of a range, forwards and backwards, and how much they are.
pub async fn items_come_in_both_orders(h: Harness) {
    let (session, fence, _) = h.claimed().await;
    let base = h.store.tail(session).await.unwrap().unwrap().session.head;
    let notes = (0..10).map(|n| EventBody::RunnerNoted {
        parts: build::text(&"x".repeat(n)),
    });
    h.ok(build::append(session, fence, notes)).await;
    let range = Range {
        after: base + 2,
        through: base + 6,
    };
    let seqs = async |order, limit| -> Vec<u64> {
        let items = h.store.items(session, range, order, limit).await.unwrap();
        items.iter().map(|item| item.seq - base).collect()
    };
    assert_eq!(seqs(Order::OldestFirst, 10).await, [3, 4, 5, 6]);
    assert_eq!(seqs(Order::NewestFirst, 10).await, [6, 5, 4, 3]);
    assert_eq!(seqs(Order::NewestFirst, 2).await, [6, 5]);
    assert!(seqs(Order::OldestFirst, 0).await.is_empty());
    let size = h.store.measure(session, range).await.unwrap();
    assert_eq!((size.items, size.bytes), (4, 2 + 3 + 4 + 5));
    assert_eq!(
        h.store
            .measure(SessionId::new(), range)
            .await
            .unwrap()
            .items,
        0
    );
}

/// Sessions come newest first, each on one page.
pub async fn sessions_come_in_pages(h: Harness) {
    let mut made = Vec::new();
    for n in 0..5u64 {
        let session = SessionId::new();
        // Two share their time.
        let at = build::AT + n / 2;
        h.ok(mainstay_core::commit::Commit {
            at,
            ..build::create(session)
        })
        .await;
        made.push((at, session));
    }
    h.prompt(made[0].1, Delivery::Steer).await;
    made.sort();
    made.reverse();
    let (mut before, mut seen) = (None, Vec::new());
    loop {
        let page = h.store.sessions(before, 2).await.unwrap();
        let Some(last) = page.last() else { break };
        before = Some((last.session.created_at, last.session.id));
        seen.extend(page);
    }
    let ids: Vec<_> = seen
        .iter()
        .map(|listed| (listed.session.created_at, listed.session.id))
        .collect();
    assert_eq!(ids, made);
    assert_eq!(
        seen.iter()
            .filter(|listed| listed.runnable && listed.pending_inputs == 1)
            .count(),
        1
    );
}

/// A scan finds what is due and what has expired, and nothing else.
pub async fn a_scan_lists_what_is_due(h: Harness) {
    let idle = h.session().await;
    let due = h.session().await;
    h.prompt(due, Delivery::Queue).await;
    let (running, fence) = h.turn().await;
    let scan = h.store.scan(10).await.unwrap();
    assert_eq!((scan.due, scan.expired), (vec![due], vec![]));
    h.clock.advance(build::LEASE_MS - 1);
    assert!(h.store.scan(10).await.unwrap().expired.is_empty());
    h.clock.advance(1);
    let expired = h.store.scan(10).await.unwrap().expired;
    assert_eq!(expired.len(), 1);
    assert_eq!(
        (expired[0].session, expired[0].execution),
        (running, fence.execution)
    );
    assert_eq!(
        h.store.scan(0).await.unwrap(),
        mainstay_core::port::Scan::default()
    );
    h.dump(idle).await;
}

/// A deleted session leaves nothing, and its execution is told.
pub async fn a_session_is_deleted_whole(h: Harness) {
    let (session, fence, input) = h.claimed().await;
    let other = h.session().await;
    assert!(h.store.delete(session).await.unwrap());
    assert!(!h.store.delete(session).await.unwrap());
    assert_eq!(
        h.store.dump(session).await.unwrap(),
        mainstay_core::port::Dump::default()
    );
    assert!(h.store.tail(session).await.unwrap().is_none());
    assert!(h.store.events(session, 0, 10).await.unwrap().is_none());
    let gone = h
        .store
        .commit(build::append(session, fence, [build::turn_started()]))
        .await
        .unwrap_err();
    assert!(matches!(
        gone,
        mainstay_core::port::StoreError::Refused(Refused::NotFound(_))
    ));
    assert!(
        h.store
            .renew(fence.owner, &[fence], 1)
            .await
            .unwrap()
            .is_empty()
    );
    // Its ids are free again.
    h.ok(build::admit(other, input, Delivery::Steer, "x")).await;
    h.ok(build::create(session)).await;
    assert_eq!(h.dump(session).await.events.len(), 1);
    // Who ran the one that is gone does not get at the one that has its id now.
    let late = h.refused(build::append(session, fence, [build::turn_started()]));
    assert!(matches!(late.await, Refused::Lost { .. }));
    let renewed = h.store.renew(fence.owner, &[fence], 1).await.unwrap();
    assert!(renewed.is_empty());
    assert_eq!(h.dump(session).await.events.len(), 1);
}

/// A title that is too long begins no session; a retry of what was begun is answered.
pub async fn a_title_has_a_bound(h: Harness) {
    let session = SessionId::new();
    let titled = |bytes| {
        let created = SessionCreated {
            agent: "test".into(),
            title: Some("x".repeat(bytes)),
            ..SessionCreated::default()
        };
        build::commit(session, Write::Create(created))
    };
    let refused = h.refused(titled(TITLE + 1)).await;
    assert_eq!(refused, Refused::TitleTooLong { bytes: TITLE + 1 });
    assert!(h.store.tail(session).await.unwrap().is_none());
    h.ok(titled(TITLE)).await;
    let again = h.ok(titled(TITLE)).await;
    assert!(again.events.is_empty(), "{again:?}");
}

fn info(digest: &str, kind: Kind) -> PluginInfo {
    PluginInfo {
        digest: digest.into(),
        kind,
        name: "n".into(),
        version: "1".into(),
        summary: String::new(),
        wit: "0.1.0".into(),
        size: 3,
        imports: Vec::new(),
        options_schema: None,
        state_version: 0,
        accepts: Vec::new(),
        http: Vec::new(),
        secrets: Vec::new(),
        workspace: Workspace::None,
        models: Vec::new(),
        hosted_tools: Vec::new(),
        tools: Vec::new(),
    }
}

/// Components, names and blobs.
pub async fn plugins_and_blobs_are_kept(h: Harness) {
    let store = &h.store;
    store.blob_put("d", b"\0bytes").await.unwrap();
    store.blob_put("d", b"\0bytes").await.unwrap();
    assert_eq!(
        store.blob("d").await.unwrap().as_deref(),
        Some(&b"\0bytes"[..])
    );
    assert_eq!(store.blob("e").await.unwrap(), None);

    let (runner, toolbox) = (info("p1", Kind::Runner), info("p2", Kind::Toolbox));
    store.plugin_put(&runner, b"one").await.unwrap();
    store.plugin_put(&toolbox, b"two").await.unwrap();
    assert_eq!(store.plugin("p1").await.unwrap(), Some(runner.clone()));
    assert_eq!(
        store.plugin_bytes("p2").await.unwrap().as_deref(),
        Some(&b"two"[..])
    );
    assert_eq!(store.plugins().await.unwrap(), [runner, toolbox]);
    store
        .alias_put(Kind::Toolbox, "files", Some("p2"), Some("registry"))
        .await
        .unwrap();
    store
        .alias_put(Kind::Runner, "files", Some("p0"), Some("elsewhere"))
        .await
        .unwrap();
    store
        .alias_put(Kind::Runner, "files", Some("p1"), None)
        .await
        .unwrap();
    let name = |kind, digest: &str, source: Option<&str>| Alias {
        kind,
        alias: "files".into(),
        digest: digest.into(),
        source: source.map(str::to_owned),
    };
    let names = [
        name(Kind::Runner, "p1", None),
        name(Kind::Toolbox, "p2", Some("registry")),
    ];
    assert_eq!(store.aliases().await.unwrap(), names);
    store
        .alias_put(Kind::Runner, "files", None, None)
        .await
        .unwrap();
    assert_eq!(store.aliases().await.unwrap().len(), 1);
    assert!(store.plugin_delete("p1").await.unwrap());
    assert!(!store.plugin_delete("p1").await.unwrap());
    assert_eq!(store.plugin_bytes("p1").await.unwrap(), None);

    assert!(store.digests_in_use().await.unwrap().is_empty());
    let (session, fence, _) = h.step(build::call_model()).await;
    let used = store.digests_in_use().await.unwrap();
    assert!(
        used.contains("d-runner") && used.contains("d-provider"),
        "{used:?}"
    );
    h.ok(build::commit(
        session,
        mainstay_core::commit::Write::Interrupt {
            cause: None,
            and_continue: false,
        },
    ))
    .await;
    h.crash(session, fence).await;
    assert!(store.digests_in_use().await.unwrap().is_empty());
    // An input's id that nobody holds.
    let unknown = mainstay_core::commit::Write::CancelInput {
        input: InputId::new(),
    };
    assert!(matches!(
        h.refused(build::commit(session, unknown)).await,
        Refused::InputNotFound(_)
    ));
}

/// Steps of the wall clock do not move the store's.
pub async fn the_clock_never_goes_back(h: Harness) {
    let before = h.store.now().await.unwrap();
    h.clock.step_wall(5);
    assert_eq!(h.store.now().await.unwrap(), before);
    h.clock.advance(7);
    assert_eq!(h.store.now().await.unwrap(), before + 7);
}
