//! What a session is owed by the host: inputs that nothing else may end its wait with, and notices.

use std::time::Duration;

use mainstay_core::commit::{Refused, Write};
use mainstay_core::event::{Delivery, InputContent};
use mainstay_core::history::{ChildOutcome, ChildResult};
use mainstay_core::id::EventId;
use mainstay_core::outbox;
use mainstay_core::plugin::Condition;
use mainstay_core::port::Store as _;
use mainstay_core::tail::Tail;
use mainstay_test_simulation::decisions::stage::{Stage, an_answer, refusal, words};
use mainstay_test_simulation::decisions::{Decided, approval, children, done, signal, spawn, wait};
use mainstay_test_simulation::plugins::say;
use mainstay_test_simulation::world::lines;

#[tokio::test(start_paused = true)]
async fn wait_10_what_ends_a_wait_cannot_be_taken_back_before_it_has() {
    for (kind, status, word) in [
        ("timer", "the time-out of a wait", "timer"),
        ("child", "the result of a child", "child c"),
        ("approval", "the answer to an approval", "approval k"),
    ] {
        let decided = Decided::new(|_, _| say("over"))
            .agent("default", move |n, seen| match (n, kind) {
                (0, "child") => spawn(&[("c", "child")]).into(),
                (1, "child") => wait([children(&["c"])]).into(),
                (0, "approval") => wait([approval("k")]).into(),
                (0, _) => wait([Condition::Time(seen.now + 1000)]).into(),
                _ => done().into(),
            })
            .agent("child", |_, _| wait([signal("never")]).into());
        let stage = Stage::new(decided);
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        stage.waiting(session).await;
        host.kill();

        // It comes, and no node is there to go on.
        tokio::time::sleep(Duration::from_secs(2)).await;
        match kind {
            "child" => {
                let result = ChildResult {
                    key: "c".into(),
                    outcome: ChildOutcome::Cancelled,
                };
                let content = InputContent::Child(result);
                stage.admit(session, Delivery::Steer, content).await;
            }
            "approval" => {
                let answer = Write::Answer(an_answer("k", None));
                stage.write(session, answer).await.unwrap();
            }
            _ => {
                stage.write(session, Write::Fire).await.unwrap();
            }
        }
        let input = stage.tail(session).await.inputs[0].id;
        let taken = stage.write(session, Write::CancelInput { input }).await;
        assert_eq!(refusal(taken), Refused::InputSettled { input, status });
        // Nor can it be put off until the next turn, which may never come.
        let delivery = Delivery::Queue;
        let put_off = stage.write(session, Write::Redeliver { input, delivery });
        let refused = refusal(put_off.await);
        assert_eq!(refused, Refused::InputSettled { input, status });

        let _host = stage.start();
        let dump = stage.idle(session).await;
        let words = words(&dump.items);
        assert!(words.iter().any(|one| one == word), "{}", lines(&dump));
        assert_eq!(dump.session.unwrap().turn, None);
    }
}

#[tokio::test(start_paused = true)]
async fn wait_9_a_cancel_brings_no_deleted_child_back() {
    for (over, deletes) in [(true, false), (true, true), (false, false)] {
        let decided = Decided::new(|_, _| say("over"))
            .agent("default", move |n, _| match (n, over) {
                (0, _) => spawn(&[("c", "child")]).into(),
                (1, true) => wait([children(&["c"])]).into(),
                _ => done().into(),
            })
            .agent("child", move |_, _| match over {
                true => done().say("made").into(),
                false => wait([signal("never")]).into(),
            });
        let stage = Stage::new(decided);
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        let child = outbox::child_session(session, "c");
        stage
            .until(child, "its rest", |tail| {
                tail.claim.is_none() && tail.session.active_at > 0 && !tail.is_runnable()
            })
            .await;
        stage.over(session).await;
        assert!(host.node.delete(child).await.unwrap());
        stage.over(session).await;
        if deletes {
            assert!(host.node.delete(session).await.unwrap());
        } else {
            host.node.cancel(session).await.unwrap();
            let told = |tail: &Tail| tail.session.outbox.is_empty();
            stage.until(session, "that it owes nothing", told).await;
        }
        let tail = stage.memory.tail(child).await.unwrap();
        assert_eq!(tail, None, "{over} {deletes}");
    }
}

/// Two couriers may bring them in any order, and one of them again.
#[tokio::test(start_paused = true)]
async fn wait_9_an_interrupt_of_a_parent_is_followed_once_whatever_came_between() {
    let stage = Stage::new(Decided::new(|_, _| say("over")));
    let session = stage.create("default").await;
    let (first, second) = (EventId::new(), EventId::new());
    for cause in [second, first, second, first] {
        let write = Write::Interrupt {
            cause: Some(cause),
            and_continue: false,
        };
        stage.write(session, write).await.unwrap();
    }
    assert_eq!(stage.count(session, "interrupt.requested").await, 2);
    assert_eq!(stage.tail(session).await.session.followed, [second, first]);
}
