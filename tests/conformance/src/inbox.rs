use futures::future::join;
use mainstay_core::commit::{Admission, End, Refused, Reply, Write};
use mainstay_core::event::{Delivery, EventBody, InputContent};
use mainstay_core::history::Signal;
use mainstay_core::id::InputId;
use mainstay_core::port::Committed;
use mainstay_core::tail::{InputStatus, Scope};
use mainstay_test_support::build;

use crate::Harness;

fn admission(done: &Committed) -> Admission {
    match &done.reply {
        Reply::Admitted(admission) => admission.clone(),
        other => panic!("not an admission: {other:?}"),
    }
}

fn promote(input: InputId) -> EventBody {
    EventBody::InputPromoted { input }
}

/// An admission that gives older inputs their intent back names its own seq, now and ever after.
pub async fn inbox_2_an_admission_that_wakes_others_names_its_own_seq(h: Harness) {
    let session = h.session().await;
    h.prompt(session, Delivery::Queue).await;
    h.ok(build::interrupt(session)).await;
    let input = InputId::new();
    let admit = || build::admit(session, input, Delivery::Queue, "later");
    let done = h.ok(admit()).await;
    let kinds: Vec<String> = done.events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["input.admitted", "inputs.woken"]);
    let first = admission(&done);
    assert_eq!(first.seq, done.events[0].seq);
    assert_eq!(admission(&h.ok(admit()).await), first);
}

/// A retry of what an interrupt held back is no second admission.
pub async fn inbox_2_a_retry_of_what_an_interrupt_held_back_is_no_second(h: Harness) {
    let (session, _) = h.turn().await;
    let input = InputId::new();
    let admit = || build::admit(session, input, Delivery::Queue, "later");
    let first = admission(&h.ok(admit()).await);
    h.ok(build::interrupt(session)).await;
    assert_eq!(admission(&h.ok(admit()).await), first);
    let dump = h.dump(session).await;
    let admitted = dump
        .events
        .iter()
        .filter(|event| event.kind == "input.admitted" && event.data["input"] == input.to_string());
    assert_eq!(admitted.count(), 1);
    let held: Vec<InputId> = dump.inputs.iter().map(|input| input.id).collect();
    assert_eq!(held.iter().filter(|id| **id == input).count(), 1);
}

/// The first admission answers, before and after promotion.
pub async fn inbox_2(h: Harness) {
    let session = h.session().await;
    let input = InputId::new();
    let first = admission(
        &h.ok(build::admit(session, input, Delivery::Steer, "a"))
            .await,
    );
    let again = admission(
        &h.ok(build::admit(session, input, Delivery::Queue, "b"))
            .await,
    );
    assert_eq!(first, again);
    let fence = build::fence();
    h.ok(build::claim(session, fence)).await;
    h.ok(build::append(
        session,
        fence,
        [build::turn_started(), promote(input)],
    ))
    .await;
    let late = admission(
        &h.ok(build::admit(session, input, Delivery::Queue, "c"))
            .await,
    );
    assert_eq!(
        late,
        Admission {
            status: InputStatus::Promoted,
            ..first
        }
    );
    let dump = h.dump(session).await;
    assert_eq!(dump.inputs.len(), 1);
    assert_eq!(
        dump.inputs[0].content,
        InputContent::Prompt {
            parts: build::text("a")
        }
    );
    assert_eq!(
        dump.events
            .iter()
            .filter(|event| event.kind == "input.admitted")
            .count(),
        1
    );
}

/// An id is one session's and of one kind.
pub async fn inbox_3(h: Harness) {
    let (a, b) = (h.session().await, h.session().await);
    let input = InputId::new();
    h.ok(build::admit(a, input, Delivery::Steer, "x")).await;
    let elsewhere = h
        .refused(build::admit(b, input, Delivery::Steer, "x"))
        .await;
    assert!(matches!(elsewhere, Refused::InputConflict { .. }));
    let content = InputContent::Signal(Signal {
        name: "s".into(),
        data: "{}".into(),
    });
    let signal = Write::Admit {
        input,
        delivery: Delivery::Steer,
        content,
    };
    assert!(matches!(
        h.refused(build::commit(a, signal)).await,
        Refused::InputConflict { .. }
    ));
    let foreign = h
        .refused(build::commit(b, Write::CancelInput { input }))
        .await;
    assert_eq!(foreign, Refused::InputNotFound(input));
    h.dump(a).await;
}

/// Two promoters, one promotion.
pub async fn inbox_9(h: Harness) {
    let (session, fence, input) = h.claimed().await;
    h.ok(build::append(session, fence, [build::turn_started()]))
        .await;
    let commit = || {
        h.store
            .commit(build::append(session, fence, [promote(input)]))
    };
    let (one, two) = join(commit(), commit()).await;
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    assert_eq!(h.dump(session).await.items.len(), 1);
}

/// A cancelled input is never promoted, and of a race one side wins.
pub async fn inbox_11(h: Harness) {
    let (session, fence, input) = h.claimed().await;
    h.ok(build::append(session, fence, [build::turn_started()]))
        .await;
    let cancel = |input| build::commit(session, Write::CancelInput { input });
    h.ok(cancel(input)).await;
    assert!(matches!(
        h.refused(cancel(input)).await,
        Refused::InputSettled {
            status: "cancelled",
            ..
        }
    ));
    assert!(matches!(
        h.refused(build::append(session, fence, [promote(input)]))
            .await,
        Refused::HeadMoved { .. }
    ));
    let unknown = InputId::new();
    assert_eq!(
        h.refused(cancel(unknown)).await,
        Refused::InputNotFound(unknown)
    );

    for n in 0..100 {
        let input = h.prompt(session, Delivery::Steer).await;
        let promotion = h
            .store
            .commit(build::append(session, fence, [promote(input)]));
        let cancellation = h.store.commit(cancel(input));
        let (promoted, cancelled) = if n % 2 == 0 {
            join(promotion, cancellation).await
        } else {
            let (cancelled, promoted) = join(cancellation, promotion).await;
            (promoted, cancelled)
        };
        assert!(promoted.is_ok() != cancelled.is_ok());
        if promoted.is_ok() {
            assert!(matches!(
                h.refused(cancel(input)).await,
                Refused::InputSettled {
                    status: "promoted",
                    ..
                }
            ));
        }
    }
    h.dump(session).await;
}

/// A delivery can be changed while the input is pending.
pub async fn inbox_12(h: Harness) {
    let (session, fence, steer) = h.claimed().await;
    let queued = h.prompt(session, Delivery::Queue).await;
    let redeliver = |input, delivery| build::commit(session, Write::Redeliver { input, delivery });
    let done = h.ok(redeliver(queued, Delivery::Steer)).await;
    assert_eq!(done.tail.due_steers().len(), 2);
    h.ok(redeliver(steer, Delivery::Queue)).await;
    let inputs = h.store.inputs(session, false).await.unwrap();
    let deliveries: Vec<_> = inputs
        .iter()
        .map(|input| (input.id, input.delivery))
        .collect();
    assert_eq!(
        deliveries,
        [(steer, Delivery::Queue), (queued, Delivery::Steer)]
    );
    h.ok(build::append(
        session,
        fence,
        [build::turn_started(), promote(queued)],
    ))
    .await;
    assert!(matches!(
        h.refused(redeliver(queued, Delivery::Queue)).await,
        Refused::InputSettled { .. }
    ));
}

/// The terminal looks into the inbox once more.
pub async fn inbox_13(h: Harness) {
    let (session, fence) = h.turn().await;
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    let input = h.prompt(session, Delivery::Queue).await;
    assert_eq!(
        h.refused(build::end(session, fence, End::Succeeded)).await,
        Refused::NotIdle
    );
    h.ok(build::append(
        session,
        fence,
        [build::turn_started(), promote(input)],
    ))
    .await;
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    h.ok(build::end(session, fence, End::Succeeded)).await;
    assert_eq!(h.dump(session).await.claim, None);
}

/// Who asks for a compaction while one is pending is answered by that one, then and ever after.
pub async fn compact_5_the_first_answers_for_the_second_for_ever(h: Harness) {
    let (session, fence) = h.turn().await;
    let (first, second) = (InputId::new(), InputId::new());
    let ask = |input, delivery| {
        let write = Write::Admit {
            input,
            delivery,
            content: InputContent::Compact {},
        };
        build::commit(session, write)
    };
    let told = admission(&h.ok(ask(first, Delivery::Queue)).await);
    let joined = admission(&h.ok(ask(second, Delivery::Steer)).await);
    assert_eq!(joined, told);
    assert_eq!(told.input, first);
    assert_eq!(admission(&h.ok(ask(second, Delivery::Queue)).await), told);
    let before = h.dump(session).await;
    let due: Vec<InputId> = before.inputs.iter().map(|input| input.id).collect();
    assert_eq!(due[due.len() - 2..], [first, second]);
    h.ok(build::append(
        session,
        fence,
        [promote(first), promote(second)],
    ))
    .await;
    let done = Admission {
        status: InputStatus::Promoted,
        ..told
    };
    for input in [second, first, second] {
        assert_eq!(admission(&h.ok(ask(input, Delivery::Queue)).await), done);
    }
    // That one is under way: who asks now gets another.
    let third = InputId::new();
    assert_eq!(
        admission(&h.ok(ask(third, Delivery::Queue)).await).input,
        third
    );
}

/// What answers for another takes it along when it is cancelled.
pub async fn compact_5_a_cancelled_one_takes_along_whom_it_answers_for(h: Harness) {
    let session = h.session().await;
    let (first, second) = (InputId::new(), InputId::new());
    let ask = |input| {
        let write = Write::Admit {
            input,
            delivery: Delivery::Queue,
            content: InputContent::Compact {},
        };
        build::commit(session, write)
    };
    let told = admission(&h.ok(ask(first)).await);
    assert_eq!(admission(&h.ok(ask(second)).await), told);
    h.ok(build::commit(session, Write::CancelInput { input: first }))
        .await;
    let cancelled = Admission {
        status: InputStatus::Cancelled,
        ..told
    };
    for input in [first, second] {
        assert_eq!(admission(&h.ok(ask(input)).await), cancelled);
    }
    assert!(h.store.inputs(session, false).await.unwrap().is_empty());
    // An interrupt held this one back, and the next is to run: it does not wait for it.
    let held = InputId::new();
    h.ok(ask(held)).await;
    h.ok(build::interrupt(session)).await;
    let runs = InputId::new();
    assert_eq!(admission(&h.ok(ask(runs)).await).input, runs);
}

/// A cancelled input stays so when it is sent again.
pub async fn inbox_16(h: Harness) {
    let session = h.session().await;
    let input = h.prompt(session, Delivery::Steer).await;
    h.ok(build::commit(session, Write::CancelInput { input }))
        .await;
    let before = h.dump(session).await;
    let again = admission(
        &h.ok(build::admit(session, input, Delivery::Steer, "other"))
            .await,
    );
    assert_eq!((again.status, again.seq), (InputStatus::Cancelled, 2));
    assert_eq!(before, h.dump(session).await);
    assert!(h.store.scan(10).await.unwrap().due.is_empty());
    assert!(h.store.inputs(session, false).await.unwrap().is_empty());
    assert_eq!(h.store.inputs(session, true).await.unwrap().len(), 1);
}

/// An interrupt clears the intent of what is pending then; a wake sets it again.
pub async fn interrupt_clears_what_is_pending_then(h: Harness) {
    let (session, fence) = h.turn().await;
    let before = h.prompt(session, Delivery::Queue).await;
    let done = h.ok(build::interrupt(session)).await;
    assert_eq!(done.reply, Reply::Interrupted { was_busy: true });
    let steer = h.prompt(session, Delivery::Steer).await;
    let intents = async || -> Vec<(InputId, bool)> {
        let inputs = h.store.inputs(session, false).await.unwrap();
        inputs
            .iter()
            .map(|input| (input.id, input.intent))
            .collect()
    };
    assert_eq!(intents().await, [(before, false), (steer, true)]);
    let begins = build::with(build::append(session, fence, [promote(steer)]), |append| {
        append.begins = true
    });
    assert_eq!(
        h.refused(begins).await,
        Refused::Interrupted {
            execution: fence.execution
        }
    );
    h.ok(build::commit(session, Write::Wake { scope: Scope::All }))
        .await;
    assert_eq!(intents().await, [(before, true), (steer, true)]);
    h.dump(session).await;
}
