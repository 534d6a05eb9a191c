//! Logs that are replayed and adopted.

use std::sync::Arc;

use mainstay_core::commit::{Refused, Write};
use mainstay_core::event::{Delivery, Record};
use mainstay_core::id::{EventId, InputId};
use mainstay_core::live::Hint;
use mainstay_core::node::Node;
use mainstay_core::port::StoreError;
use mainstay_core::replay::{Replay, ReplayError};
use mainstay_core::tail::{InputStatus, Scope, Status};
use mainstay_test_simulation::world::{World, lines, prompt};

use super::{
    chat, echo, exported, import, last_request, one_call, refused, rows, texts, three_looks,
};

#[tokio::test]
async fn log_13_an_imported_session_does_nothing_by_itself() {
    let source = World::new(one_call("act"));
    let _gate = source.plugins.hold("act");
    let there = source.start(None);
    let session = there.session().await;
    there.prompt(session, "go").await;
    source
        .until(session, "the call", |_| source.plugins.count("act") == 1)
        .await;
    there.prompt(session, "later").await;
    let lines = exported(&source, session).await;
    let wanted = rows(source.dump(session).await);

    let world = World::new(one_call("act"));
    let here = world.start(None);
    let imported = import(&here.node, &lines).await;
    assert_eq!(imported.applied, wanted.events.len() as u64);
    three_looks(&here).await;
    let dump = world.dump(session).await;
    assert_eq!(dump.claim, None);
    assert_eq!(rows(dump), wanted);
    assert_eq!(
        world.plugins.request_count() + world.plugins.calls.lock().unwrap().len(),
        0
    );
    assert_eq!(here.link.commits(), 0, "nobody claims or recovers it");
    assert_eq!(here.node.status(session).await.unwrap(), Status::Imported);
    let scan = world.store.scan(10).await.unwrap();
    assert_eq!(scan, mainstay_core::port::Scan::default());
}

/// The records of a session, and an import of some of them.
async fn replay(
    node: &Node,
    origin: &str,
    strict: bool,
    records: &[Record],
) -> Result<mainstay_core::replay::Replayed, StoreError> {
    let replay = Replay {
        origin: origin.into(),
        strict,
        records: records.to_vec(),
        texts: Arc::default(),
    };
    node.replay(records[0].session, replay).await
}

#[tokio::test]
async fn log_14_15_16_what_does_not_follow_is_refused_and_nobody_is_told() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = chat(&source, &there, &["a", "b"]).await;
    let records = source.dump(session).await.events;

    let world = World::new(echo());
    let here = world.start(None);
    let node = &here.node;
    let done = replay(node, "R1", true, &records[..3]).await.unwrap();
    assert_eq!((done.head, done.applied, done.refused), (3, 3, None));
    let mut hints = node.hints(16);
    assert_eq!(hints.next().await, Hint::Sweep);
    let before = world.dump(session).await;

    let gap = replay(node, "R1", true, &records[4..5]).await.unwrap();
    let expected = ReplayError::Gap {
        expected: 4,
        got: 5,
    };
    assert_eq!(
        (gap.head, gap.applied, gap.refused),
        (3, 0, Some(expected.clone()))
    );
    assert_eq!(expected.to_string(), "expected seq 4, got 5");

    let same = replay(node, "R1", true, &records[1..2]).await.unwrap();
    assert_eq!(
        (same.head, same.applied, same.held, same.refused),
        (3, 0, 1, None)
    );
    type Change = fn(&mut Record);
    let changes: [Change; 4] = [
        |record| record.id = EventId::new(),
        |record| record.kind = "input.cancelled".into(),
        |record| record.at += 1,
        |record| record.data["delivery"] = "steer".into(),
    ];
    for change in changes {
        let mut other = records[1].clone();
        change(&mut other);
        let diverged = replay(node, "R1", true, &[other]).await.unwrap();
        assert_eq!((diverged.head, diverged.applied, diverged.held), (3, 0, 0));
        assert_eq!(diverged.refused, Some(ReplayError::Diverged { seq: 2 }));
    }

    let strict = refused(replay(node, "R2", true, &records[3..4]).await);
    assert!(
        matches!(&strict, Refused::OtherOrigin { held: Some(held), .. } if held == "R1"),
        "{strict:?}"
    );
    let lax = replay(node, "R2", false, &records[3..4]).await.unwrap();
    assert_eq!((lax.head, lax.applied, lax.skipped), (3, 0, 1));
    assert_eq!(world.dump(session).await, before);
    assert_eq!(hints.try_next(), None, "nobody is told");

    // What follows is taken, told, and stops where it is refused.
    let mut rest = records[3..8].to_vec();
    rest[2].kind = "from.the.future".into();
    let part = replay(node, "R1", true, &rest).await.unwrap();
    assert_eq!((part.head, part.applied), (5, 2));
    assert!(matches!(
        part.refused,
        Some(ReplayError::UnknownType { seq: 6, .. })
    ));
    assert_eq!(hints.try_next(), Some(Hint::Changed(session, 5)));
    let whole = replay(node, "R1", true, &records).await.unwrap();
    assert_eq!((whole.held, whole.refused), (5, None));
    assert_eq!(
        rows(world.dump(session).await),
        rows(source.dump(session).await)
    );
}

#[tokio::test]
async fn log_21_an_import_runs_once_it_is_adopted_and_not_before() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    // Pending with its intent to run.
    source
        .memory
        .fail_when(|commit| matches!(commit.write, Write::Claim { .. }));
    let pending = there.prompt(session, "b").await;
    let records = source.dump(session).await.events;
    let file = exported(&source, session).await;

    let world = World::new(echo());
    let here = world.start(None);
    import(&here.node, &file).await;
    let before = world.dump(session).await;
    let own = "imported from \"here\"";
    let woken = refused(here.node.wake(session, Scope::All).await);
    assert!(woken.to_string().contains(own), "{woken}");
    let prompted = here
        .node
        .admit(session, InputId::new(), Delivery::Queue, prompt("c"))
        .await;
    assert!(refused(prompted).to_string().contains(own));
    let forced = here.node.run(session, Some(5)).await;
    assert!(
        !forced.is_ok_and(|outcome| outcome.ran),
        "a forced run is none either"
    );
    here.kill();
    let here = world.start(None);
    three_looks(&here).await;
    assert_eq!(world.dump(session).await, before);
    assert_eq!(world.plugins.request_count(), 0);

    here.node.adopt(session).await.unwrap();
    let after = world.idle(session).await;
    assert_eq!(texts(&after.items), ["a", "to a", "b", "to b"]);
    assert_eq!(last_request(&world), ["a", "to a", "b"]);
    let promoted = after
        .events
        .iter()
        .filter(|event| event.kind == "input.promoted");
    assert_eq!(promoted.count(), 2);
    assert_eq!(
        after
            .inputs
            .iter()
            .find(|input| input.id == pending)
            .unwrap()
            .status,
        InputStatus::Promoted
    );
    // Once adopted, adopting it does nothing.
    here.node.adopt(session).await.unwrap();
    assert_eq!(world.dump(session).await, after);

    let mut next = records.last().unwrap().clone();
    next.seq += 1;
    next.id = EventId::new();
    let strict = refused(replay(&here.node, "here", true, &[next.clone()]).await);
    assert!(
        matches!(strict, Refused::OtherOrigin { held: None, .. }),
        "{strict:?}"
    );
    let lax = replay(&here.node, "here", false, &[next]).await.unwrap();
    assert_eq!((lax.applied, lax.skipped), (0, 1));
    assert_eq!(world.dump(session).await, after);
}

#[tokio::test]
async fn log_21_what_a_client_stopped_after_a_shutdown_stays_stopped() {
    let source = World::new(one_call("act"));
    let gate = source.plugins.hold("act");
    let there = source.start(None);
    let session = there.session().await;
    there.prompt(session, "go").await;
    source
        .until(session, "the call", |_| source.plugins.count("act") == 1)
        .await;
    there.node.shutdown().await;
    gate.notify_one();
    // Nobody recovers it before the interrupt and the export.
    let write = Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    let commit = mainstay_core::commit::Commit {
        session,
        at: 0,
        write,
    };
    source.store.commit(commit).await.unwrap();
    let file = exported(&source, session).await;

    let world = World::new(one_call("act"));
    let here = world.start(None);
    import(&here.node, &file).await;
    here.node.adopt(session).await.unwrap();
    let dump = world.idle(session).await;
    assert_eq!(world.plugins.request_count(), 0, "{}", lines(&dump));
    assert_eq!(
        dump.events.last().unwrap().kind,
        "recovery.recorded",
        "{}",
        lines(&dump)
    );
    assert!(dump.session.unwrap().turn.is_none());
}
