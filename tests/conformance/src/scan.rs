//! What the recovery loop finds beside claims: timers that are due, and notices that are owed.

use mainstay_core::commit::{Append, Commit, End, Write};
use mainstay_core::event::{Delivery, EventBody, EventDraft, SessionCreated};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::outbox::{self, Notice};
use mainstay_core::plugin::{Action, Child, Condition, Wait};
use mainstay_core::port::Scan;
use mainstay_test_support::build;

use crate::Harness;

/// A session whose turn waits.
pub async fn waiting(h: &Harness, until: &[Condition]) -> SessionId {
    let (session, fence) = h.turn().await;
    let until = until.to_vec();
    let wait = build::step_started(Action::Wait(Wait { until }));
    h.ok(build::append(session, fence, [wait])).await;
    h.ok(build::end(session, fence, End::Suspended)).await;
    session
}

/// A session that owes two children their beginning, written at this time.
pub async fn owing(h: &Harness, at: u64) -> SessionId {
    let (session, fence) = h.turn().await;
    let child = |key: &str| Child {
        key: key.into(),
        agent: None,
        prompt: build::text("do"),
    };
    let spawn = Action::Spawn(vec![child("a"), child("b")]);
    let events = [build::step_started(spawn), build::turn_ended()];
    let commit = build::commit(
        session,
        Write::Append(Append {
            fence,
            expected_head: None,
            begins: true,
            events: events.into_iter().map(EventDraft::new).collect(),
            end: Some(End::Succeeded),
        }),
    );
    h.ok(Commit { at, ..commit }).await;
    session
}

async fn timers(h: &Harness, limit: u32) -> Vec<SessionId> {
    h.store.scan(limit).await.unwrap().timers
}

async fn debtors(h: &Harness, limit: u32) -> Vec<SessionId> {
    h.store.scan(limit).await.unwrap().owing
}

async fn outbox(h: &Harness, session: SessionId) -> Vec<Notice> {
    let tail = h.store.tail(session).await.unwrap().unwrap();
    tail.session.outbox.clone()
}

/// Timers are listed from the instant on at which they are due, the longest overdue first, until they
/// have fired or their wait has ended otherwise.
pub async fn a_scan_lists_timers_that_are_due(h: Harness) {
    let now = h.store.now().await.unwrap();
    let at = |ms| Condition::Time(now + ms);
    let third = waiting(&h, &[at(3_000)]).await;
    let second = waiting(&h, &[at(9_000), Condition::Signal("s".into()), at(2_000)]).await;
    let first = waiting(&h, &[at(1_000)]).await;
    let steered = waiting(&h, &[at(1_500)]).await;
    let interrupted = waiting(&h, &[at(1_500)]).await;
    let cancelled = waiting(&h, &[at(1_500)]).await;
    let untimed = waiting(&h, &[Condition::Signal("s".into())]).await;
    h.ok(build::interrupt(interrupted)).await;
    h.ok(build::commit(cancelled, Write::Cancel)).await;
    // A prompt ends the wait, once it is in the history.
    let input = h.prompt(steered, Delivery::Steer).await;
    let fence = build::fence();
    h.ok(build::claim(steered, fence)).await;
    let promoted = EventBody::InputPromoted { input };
    h.ok(build::append(steered, fence, [promoted])).await;

    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
    h.clock.advance(999);
    assert!(timers(&h, 10).await.is_empty());
    // Too early: nothing fires.
    h.ok(build::commit(first, Write::Fire)).await;
    h.clock.advance(1);
    assert_eq!(timers(&h, 10).await, [first]);
    h.clock.advance(2_000);
    assert_eq!(timers(&h, 10).await, [first, second, third]);
    assert_eq!(timers(&h, 2).await, [first, second]);
    assert!(timers(&h, 0).await.is_empty());

    for _ in 0..2 {
        h.ok(build::commit(first, Write::Fire)).await;
        let scan = h.store.scan(10).await.unwrap();
        assert_eq!((scan.timers, scan.due), (vec![second, third], vec![first]));
    }
    assert_eq!(h.dump(first).await.inputs.len(), 2);
    assert!(h.store.delete(second).await.unwrap());
    assert_eq!(timers(&h, 10).await, [third]);
    h.dump(untimed).await;
}

/// A session is listed as long as its outbox is not empty, the longest untouched first.
pub async fn a_scan_lists_what_is_owed(h: Harness) {
    let late = owing(&h, build::AT + 20).await;
    let early = owing(&h, build::AT + 10).await;
    h.session().await;
    assert_eq!(debtors(&h, 10).await, [early, late]);
    assert_eq!(debtors(&h, 1).await, [early]);
    assert!(debtors(&h, 0).await.is_empty());

    let notices = outbox(&h, early).await;
    assert_eq!(notices.len(), 2);
    for (left, notice) in notices.iter().enumerate().rev() {
        assert!(debtors(&h, 10).await.contains(&early));
        for _ in 0..2 {
            let notice = notice.clone();
            h.ok(build::commit(early, Write::Deliver { notice })).await;
        }
        assert_eq!(outbox(&h, early).await.len(), left);
    }
    assert_eq!(debtors(&h, 10).await, [late]);

    // A child owes its parent how it ended.
    let Some(Notice::Spawn { child, parent, .. }) = notices.first() else {
        panic!("{notices:?}")
    };
    assert_eq!(*child, outbox::child_session(early, "a"));
    let created = SessionCreated {
        agent: "test".into(),
        parent: Some(parent.clone()),
        ..SessionCreated::default()
    };
    h.ok(build::commit(*child, Write::Create(created))).await;
    let prompt = build::admit(*child, InputId::new(), Delivery::Queue, "do");
    h.ok(prompt).await;
    assert_eq!(debtors(&h, 10).await, [late]);
    h.ok(build::commit(*child, Write::Cancel)).await;
    assert!(matches!(
        outbox(&h, *child).await[..],
        [Notice::Report { .. }]
    ));
    // It was written at the time of these builders, before the others.
    assert_eq!(debtors(&h, 10).await, [*child, late]);
    assert!(h.store.delete(late).await.unwrap());
    assert_eq!(debtors(&h, 10).await, [*child]);
    h.dump(*child).await;
}
