//! Reverts and forks of what was taken in.

use mainstay_core::commit::{End, Refused, Reply, Write};
use mainstay_core::edit::Fork;
use mainstay_core::event::{Delivery, EventBody, Forked, Reverted, SessionCreated};
use mainstay_core::history::{ItemBody, Order};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::model::Range;
use mainstay_core::plugin::{Action, Condition, Wait};
use mainstay_core::port::Scan;
use mainstay_core::state::States;
use mainstay_core::tail::Scope;
use mainstay_test_conformance::Harness;
use mainstay_test_support::{build, rebuild};

use super::eventful::write;
use super::{dump, rows};

pub(super) async fn a_final_revert(h: Harness) {
    let (session, fence) = h.turn().await;
    let notes = ["a", "b", "c"].map(|text| EventBody::RunnerNoted {
        parts: build::text(text),
    });
    h.ok(build::append(session, fence, notes)).await;
    let to = |through, head| Write::Revert {
        revert: Reverted {
            through,
            context_after: 0,
            states: States::default(),
            signals: None,
        },
        head,
    };
    let revert = async |through| to(through, h.dump(session).await.session.unwrap().head);
    let items = dump(&h, session).await.items;
    let through = items[1].seq;
    let busy = h
        .refused(build::commit(session, revert(through).await))
        .await;
    assert!(matches!(busy, Refused::Busy(_)), "{busy:?}");
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    let busy = h
        .refused(build::commit(session, revert(through).await))
        .await;
    assert!(matches!(busy, Refused::Busy(_)), "{busy:?}");
    h.ok(build::end(session, fence, End::Succeeded)).await;
    let none = h.refused(build::commit(session, Write::ClearRevert)).await;
    assert!(matches!(none, Refused::NotReverted(_)), "{none:?}");
    let nothing = h.refused(build::commit(session, revert(1000).await)).await;
    assert!(
        matches!(nothing, Refused::NothingToRevert(_)),
        "{nothing:?}"
    );
    // What it was made of may be gone.
    let head = h.dump(session).await.session.unwrap().head;
    let moved = h
        .refused(build::commit(session, to(through, head - 1)))
        .await;
    let (expected, actual) = (head - 1, head);
    assert_eq!(moved, Refused::HeadMoved { expected, actual });

    let all = Range {
        after: 0,
        through: Seq::MAX,
    };
    let shown = async || -> Vec<Seq> {
        let mut seqs = Vec::new();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let items = h.store.items(session, all, order, 100).await.unwrap();
            seqs = items.iter().map(|item| item.seq).collect();
        }
        let size = h.store.measure(session, all).await.unwrap();
        assert_eq!(size.items, seqs.len() as u64);
        seqs.reverse();
        seqs
    };
    let seqs: Vec<Seq> = items.iter().map(|item| item.seq).collect();
    write(&h, session, revert(through).await).await;
    assert_eq!(shown().await, seqs[..2]);
    let reverted = h.dump(session).await;
    assert_eq!(reverted.items, items);

    // Refused, and answered as before: the revert stands.
    let other = h.session().await;
    let held = h.prompt(other, Delivery::Queue).await;
    let conflict = h
        .refused(build::admit(session, held, Delivery::Queue, "x"))
        .await;
    assert!(matches!(conflict, Refused::InputConflict { .. }));
    let first = dump(&h, session).await.inputs[0].id;
    h.ok(build::admit(session, first, Delivery::Steer, "again"))
        .await;
    assert_eq!(h.dump(session).await, reverted);

    write(&h, session, Write::ClearRevert).await;
    assert_eq!(shown().await, seqs);
    write(&h, session, revert(through).await).await;
    let input = InputId::new();
    let done = h
        .ok(build::admit(session, input, Delivery::Queue, "new"))
        .await;
    let kinds: Vec<String> = done.events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["revert.committed", "input.admitted"]);
    assert_eq!(shown().await, seqs[..2]);
    let done = h.dump(session).await;
    assert_eq!(done.items, items[..2]);
    assert_eq!(done.events[..reverted.events.len()], reverted.events[..]);
    assert_eq!(rebuild(&done.events).unwrap(), rows(done));

    // One that was pending makes it final when it is taken up, in the claim's commit.
    h.ok(build::interrupt(session)).await;
    write(&h, session, revert(seqs[0]).await).await;
    write(&h, session, Write::Wake { scope: Scope::All }).await;
    let fence = build::fence();
    let claimed = h.ok(build::claim(session, fence)).await;
    let kinds: Vec<String> = claimed
        .events
        .iter()
        .map(|event| event.body.kind())
        .collect();
    assert_eq!(kinds, ["revert.committed", "execution.started"]);
    let events = [build::turn_started(), EventBody::InputPromoted { input }];
    let promoted = h.ok(build::append(session, fence, events)).await;
    assert_eq!(shown().await, [seqs[0], promoted.tail.session.head]);
    h.dump(session).await;
}

pub(super) async fn a_fork(h: Harness) {
    let session = SessionId::new();
    let source = SessionId::new();
    let fork = |through| Fork {
        created: SessionCreated {
            agent: "test".into(),
            forked: Some(Forked {
                session: source,
                through,
            }),
            ..SessionCreated::default()
        },
        items: (0..300)
            .map(|n| (build::AT, ItemBody::User(build::text(&n.to_string()))))
            .collect(),
        before_context: 100,
        states: States::default(),
    };
    let done = h.ok(build::commit(session, Write::Fork(fork(7)))).await;
    assert_eq!((done.reply, done.events.len()), (Reply::Done, 302));
    let made = h.dump(session).await;
    assert_eq!(made.items.len(), 300);
    let row = made.session.as_ref().unwrap();
    assert_eq!((row.context_after, row.head), (101, 302));
    assert_eq!(made.items[100].seq, 102, "the first of the live context");
    assert!(made.inputs.is_empty() && made.claim.is_none());
    assert_eq!(rebuild(&made.events).unwrap(), made);
    let again = h.ok(build::commit(session, Write::Fork(fork(7)))).await;
    assert_eq!((again.reply, again.events.len()), (Reply::Existed, 0));
    let other = h
        .refused(build::commit(session, Write::Fork(fork(8))))
        .await;
    assert!(matches!(other, Refused::SessionConflict(_)), "{other:?}");
    let own = h.session().await;
    let other = h.refused(build::commit(own, Write::Fork(fork(7)))).await;
    assert!(matches!(other, Refused::SessionConflict(_)), "{other:?}");
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
}

/// A runner may wait until a time that no clock reaches; the session stays whole.
pub(super) async fn a_time_that_never_comes(h: Harness) {
    let (session, fence) = h.turn().await;
    let until = vec![Condition::Time(u64::MAX)];
    let wait = build::step_started(Action::Wait(Wait { until }));
    h.ok(build::append(session, fence, [wait])).await;
    h.ok(build::end(session, fence, End::Suspended)).await;
    h.clock.advance(48 * 3_600_000);
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
    h.dump(session).await;
}
