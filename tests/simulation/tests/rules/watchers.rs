//! Those who follow a log, and what is stored of streamed text.

use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::claim::Fence;
use mainstay_core::commit::Write;
use mainstay_core::live::{Hint, Live};
use mainstay_core::node::Followed;
use mainstay_core::port::Dump;
use mainstay_test_simulation::plugins::{Scripted, say, slowly};
use mainstay_test_simulation::world::{World, lines};
use mainstay_test_support::build;

#[tokio::test]
async fn log_9_a_follower_that_pauses_meets_every_event_once() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let (process, session) = world.begin("one").await;
    world.idle(session).await;
    let mut log = Box::pin(process.node.log(session, 0, true));
    let mut seqs = Vec::new();
    let mut markers = Vec::new();
    for _ in 0..3 {
        if let Followed::Event(record) = log.next().await.unwrap().unwrap() {
            seqs.push(record.seq);
        }
    }
    process.prompt(session, "two").await;
    world.idle(session).await;
    let head = world.tail(session).await.session.head;
    while seqs.last() != Some(&head) || markers.is_empty() {
        match tokio::time::timeout(Duration::from_secs(20), log.next())
            .await
            .unwrap()
            .unwrap()
            .unwrap()
        {
            Followed::Event(record) => seqs.push(record.seq),
            Followed::Synced(seq) => {
                assert_eq!(seqs.last(), Some(&seq));
                markers.push(seq);
            }
        }
    }
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
    assert_eq!(markers.len(), 1);
}

/// A store that another node, or an operator, has taken a claim away in: its owner is not told.
#[tokio::test]
async fn claim_6_what_streams_under_a_lost_claim_reaches_no_watcher_and_is_not_stored() {
    let world = World::new(Scripted::new(|_, n| match n {
        0 => slowly(5, ["lost "; 10_000]),
        _ => slowly(5, ["kept "; 100]),
    }));
    let process = world.start(None);
    let session = process.session().await;
    let mut live = process.node.watch_live(session);
    process.prompt(session, "go").await;
    let has_output = |dump: &Dump| dump.events.iter().any(|event| event.kind == "step.output");
    let dump = world.until(session, "some output", has_output).await;
    let claim = dump.claim.unwrap();
    let seen = Fence {
        execution: claim.execution,
        owner: claim.owner,
    };
    let taken = build::commit(session, Write::Expire { seen });
    world.store.commit(taken).await.unwrap();

    let mut told = String::new();
    let watched = async {
        while told.matches("kept").count() < 100 {
            if let Live::Text { text, .. } = live.recv().await.unwrap().event {
                told += &text;
            }
        }
    };
    let deadline = Duration::from_secs(20);
    tokio::time::timeout(deadline, watched).await.unwrap();
    let dump = world.idle(session).await;
    let kept = told.find("kept").expect("the second answer is followed");
    assert!(!told[kept..].contains("lost"), "{told}");

    let mut own = dump
        .events
        .iter()
        .filter(|event| event.execution == Some(claim.execution));
    let last = own.next_back().unwrap();
    assert_eq!(last.kind, "step.output", "no terminal of its own");
    let ends = dump
        .events
        .iter()
        .find(|event| event.kind == "execution.interrupted");
    let ends = ends.expect("recovery has written one");
    assert!(
        ends.seq > last.seq && ends.recovery.is_some(),
        "{}",
        lines(&dump)
    );
}

#[tokio::test]
async fn log_11_hints_are_coalesced_and_begin_with_a_sweep() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let process = world.start(None);
    let mut hints = process.node.hints(16);
    assert_eq!(hints.next().await, Hint::Sweep);
    let session = process.session().await;
    process.prompt(session, "go").await;
    world.idle(session).await;
    let head = world.tail(session).await.session.head;
    assert_eq!(hints.next().await, Hint::Changed(session, head));
    assert_eq!(hints.try_next(), None);
    for _ in 0..100 {
        process.session().await;
    }
    assert_eq!(hints.next().await, Hint::Sweep);
    assert_eq!(hints.try_next(), None);
    let last = process.session().await;
    assert_eq!(hints.next().await, Hint::Changed(last, 1));
}

#[tokio::test]
async fn log_17_streamed_text_is_flushed_in_few_chunks_and_not_repeated() {
    let world = World::new(Scripted::new(|_, _| slowly(5, ["0123456789"; 100])));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let first = dump
        .events
        .iter()
        .find(|e| e.kind == "step.started")
        .unwrap()
        .at;
    let last = dump
        .events
        .iter()
        .find(|e| e.kind == "model.ended")
        .unwrap()
        .at;
    let chunks = dump
        .events
        .iter()
        .filter(|e| e.kind == "step.output")
        .count() as u64;
    // One a flush interval of 50 ms, and one more at either end.
    assert!(
        chunks <= (last - first) / 50 + 2,
        "{chunks} in {} ms",
        last - first
    );
    assert_eq!(lines(&dump).matches("0123456789").count(), 100);
}

#[tokio::test]
async fn log_4_a_watcher_that_panics_takes_nobody_with_it() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let process = world.start(None);
    let session = process.session().await;
    let follow = |panics: bool| {
        let mut log = Box::pin(process.node.log(session, 0, true));
        tokio::spawn(async move {
            let mut seen = 0;
            while let Some(followed) = log.next().await {
                if let Followed::Event(record) = followed.unwrap() {
                    assert!(!panics || record.kind != "input.admitted", "told, and gone");
                    seen += 1;
                    if record.kind == "execution.succeeded" {
                        break;
                    }
                }
            }
            seen
        })
    };
    let (broken, a, b) = (follow(true), follow(false), follow(false));
    process.prompt(session, "go").await;
    let dump = world.idle(session).await;
    assert!(broken.await.is_err());
    let wait = |task| tokio::time::timeout(Duration::from_secs(20), task);
    assert_eq!(wait(a).await.unwrap().unwrap(), dump.events.len());
    assert_eq!(wait(b).await.unwrap().unwrap(), dump.events.len());
}

#[tokio::test]
async fn log_7_live_events_are_not_in_the_log_and_leave_no_hole() {
    let world = World::new(Scripted::new(|_, _| slowly(2, ["x"; 20])));
    let process = world.start(None);
    let session = process.session().await;
    let mut live = process.node.watch_live(session);
    process.prompt(session, "go").await;
    let dump = world.idle(session).await;
    let mut told = 0;
    while live.try_recv().is_ok() {
        told += 1;
    }
    assert_eq!(told, 20);
    let seqs: Vec<u64> = dump.events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    assert!(
        dump.events
            .iter()
            .all(|event| mainstay_core::event::KINDS.contains(&event.kind.as_str()))
    );
    assert!(seqs.len() < 20);
}
