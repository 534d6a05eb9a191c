//! What is said of a commit, and what is there by then.

use futures::future::join_all;
use mainstay_core::commit::{End, Reply, Write};
use mainstay_core::event::{Delivery, EventBody};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::live::Hub;
use mainstay_core::model::FinishReason;
use mainstay_test_support::build;

use crate::Harness;

/// Watchers are told once a store has answered. What they are told of can be read by then: the events,
/// the rows that follow from them, and the claim.
pub async fn store_1_watchers_are_told_after_the_commit(h: Harness) {
    let hub = Hub::default();
    let session = SessionId::new();
    let mut told = hub.watch_head(session);
    let (input, fence) = (InputId::new(), build::fence());
    let begins = [
        build::turn_started(),
        EventBody::InputPromoted { input },
        build::step_started(build::call_model()),
    ];
    let step = 6;
    let commits = [
        (build::create(session), 1),
        (build::admit(session, input, Delivery::Steer, "x"), 2),
        (build::claim(session, fence), 3),
        (build::append(session, fence, begins), step),
        (
            build::append(
                session,
                fence,
                [build::output(step, build::call_pieces("c"))],
            ),
            7,
        ),
        (
            build::append(
                session,
                fence,
                [
                    build::call_settled(step, "c"),
                    build::model_ended(step, FinishReason::ToolCalls),
                    build::turn_ended(),
                ],
            ),
            10,
        ),
        (build::end(session, fence, End::Succeeded), 11),
        (build::commit(session, Write::Cancel), 12),
    ];
    for (commit, head) in commits {
        let done = h.ok(commit).await;
        hub.wrote(&done.tail);
        told.changed().await.unwrap();
        assert_eq!(*told.borrow_and_update(), head);
        let (events, now) = h.store.events(session, 0, 100).await.unwrap().unwrap();
        assert_eq!((events.len() as Seq, now), (head, head));
        let own = &events[events.len() - done.events.len()..];
        assert!(
            own.iter()
                .map(|e| e.id)
                .eq(done.events.iter().map(|e| e.id))
        );
        let dump = h.dump(session).await;
        assert_eq!(dump.session.as_ref(), Some(&done.tail.session));
        assert_eq!(dump.claim, done.tail.claim);
    }
}

/// One id, twenty clients at once: one session, and all are told of the same.
pub async fn edit_1_twenty_creations_at_once_make_one_session(h: Harness) {
    let session = SessionId::new();
    let all = join_all((0..20).map(|_| h.store.commit(build::create(session)))).await;
    let all: Vec<_> = all.into_iter().map(Result::unwrap).collect();
    let first = all.iter().filter(|done| done.reply == Reply::Done).count();
    let existed = all.iter().filter(|done| done.reply == Reply::Existed);
    assert_eq!((first, existed.count()), (1, 19));
    assert!(all.iter().all(|done| done.tail == all[0].tail));
    assert_eq!(h.kinds(session).await, ["session.created"]);
    assert_eq!(h.store.sessions(None, 10).await.unwrap().len(), 1);
}
