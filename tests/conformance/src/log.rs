use mainstay_core::commit::{Refused, Reply};
use mainstay_core::event::{Delivery, EventBody, EventDraft};
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::model::FinishReason;
use mainstay_test_support::build;

use crate::Harness;

fn note(text: &str) -> EventBody {
    EventBody::RunnerNoted {
        parts: build::text(text),
    }
}

/// Sessions count for themselves, and events carry what they should.
pub async fn log_1(h: Harness) {
    let (a, b) = (h.session().await, h.session().await);
    h.prompt(a, Delivery::Steer).await;
    h.prompt(a, Delivery::Queue).await;
    let seqs = |dump: &mainstay_core::port::Dump| {
        dump.events
            .iter()
            .map(|event| event.seq)
            .collect::<Vec<_>>()
    };
    let dump = h.dump(a).await;
    assert_eq!(seqs(&dump), [1, 2, 3]);
    assert_eq!(seqs(&h.dump(b).await), [1]);
    for event in &dump.events {
        assert_eq!(event.id.0.get_version_num(), 7);
        assert_eq!((event.version, event.at), (1, build::AT));
        assert!(event.data.is_object(), "{event:?}");
    }
    assert_eq!(dump.events[1].kind, "input.admitted");
}

/// One commit, two events: both rows are there with the first seq.
pub async fn log_2(h: Harness) {
    let (session, fence, input) = h.claimed().await;
    let head = h.store.tail(session).await.unwrap().unwrap().session.head;
    let events = [build::turn_started(), EventBody::InputPromoted { input }];
    let done = h.ok(build::append(session, fence, events)).await;
    assert_eq!(
        done.events
            .iter()
            .map(|event| event.seq)
            .collect::<Vec<_>>(),
        [head + 1, head + 2]
    );
    let (events, now_head) = h.store.events(session, head, 10).await.unwrap().unwrap();
    assert_eq!((events.len(), now_head), (2, head + 2));
    let dump = h.dump(session).await;
    assert_eq!(dump.items.len(), 1);
    assert!(dump.session.unwrap().turn.is_some());
    assert_eq!(dump.events.last().unwrap().execution, Some(fence.execution));
}

/// The second event of a commit breaks a rule: nothing of the first remains.
pub async fn log_3(h: Harness) {
    let (session, fence) = h.turn().await;
    let head = h.store.tail(session).await.unwrap().unwrap().session.head;
    let refused = h
        .refused(build::append(
            session,
            fence,
            [note("kept?"), build::turn_started()],
        ))
        .await;
    assert!(matches!(refused, Refused::Rule(_)), "{refused:?}");
    let done = h.ok(build::append(session, fence, [note("next")])).await;
    assert_eq!(done.events[0].seq, head + 1);
    h.dump(session).await;
}

/// An expected head that is not the head is refused with both numbers.
pub async fn log_5(h: Harness) {
    let (session, fence) = h.turn().await;
    let head = h.store.tail(session).await.unwrap().unwrap().session.head;
    let commit = |expected: Seq| {
        build::with(build::append(session, fence, [note("x")]), |append| {
            append.expected_head = Some(expected)
        })
    };
    let refused = h.refused(commit(head - 1)).await;
    assert_eq!(
        refused,
        Refused::HeadMoved {
            expected: head - 1,
            actual: head
        }
    );
    let message = refused.to_string();
    assert!(
        message.contains(&head.to_string()) && message.contains(&(head - 1).to_string()),
        "{message}"
    );
    h.ok(commit(head)).await;
}

/// An id comes again: with the same content it is answered, with other content refused.
pub async fn log_6(h: Harness) {
    let (session, fence) = h.turn().await;
    let draft = |text: &str, id| EventDraft {
        id,
        body: note(text),
    };
    let commit = |drafts: Vec<EventDraft>| {
        build::with(build::append(session, fence, []), |append| {
            append.events = drafts
        })
    };
    let (x, y) = (
        mainstay_core::id::EventId::new(),
        mainstay_core::id::EventId::new(),
    );
    let first = h.ok(commit(vec![draft("a", x), draft("b", y)])).await;
    let seq = first.events[0].seq;
    let before = h.dump(session).await;

    let again = h.ok(commit(vec![draft("a", x), draft("b", y)])).await;
    assert_eq!(again.reply, Reply::Duplicate { first: seq });
    assert!(again.events.is_empty());
    let refused = h.refused(commit(vec![draft("c", x), draft("b", y)])).await;
    assert_eq!(refused, Refused::EventConflict { id: x, seq });
    // Held in part, and twice in one commit.
    let refused = h
        .refused(commit(vec![
            draft("a", x),
            draft("z", mainstay_core::id::EventId::new()),
        ]))
        .await;
    assert_eq!(refused, Refused::EventConflict { id: x, seq });
    let z = mainstay_core::id::EventId::new();
    let refused = h.refused(commit(vec![draft("z", z), draft("z", z)])).await;
    assert!(
        matches!(refused, Refused::EventConflict { id, .. } if id == z),
        "{refused:?}"
    );
    assert_eq!(before, h.dump(session).await);

    // A retry is answered even after its claim is gone.
    h.crash(session, fence).await;
    let late = h.ok(commit(vec![draft("a", x), draft("b", y)])).await;
    assert_eq!(late.reply, Reply::Duplicate { first: seq });
}

/// Pages: each event once, in order, with the head at the time of reading.
pub async fn log_8(h: Harness) {
    let (session, fence, _) = h.claimed().await;
    let first = h.store.tail(session).await.unwrap().unwrap().session.head;
    let notes = (first..250).map(|n| note(&n.to_string()));
    h.ok(build::append(session, fence, notes)).await;

    let (mut after, mut seqs) = (0, Vec::new());
    loop {
        let (page, head) = h.store.events(session, after, 100).await.unwrap().unwrap();
        assert_eq!(head, 250);
        assert!(page.len() <= 100);
        let Some(last) = page.last() else { break };
        after = last.seq;
        seqs.extend(page.iter().map(|event| event.seq));
    }
    assert_eq!(seqs, (1..=250).collect::<Vec<Seq>>());
    assert!(
        h.store
            .events(SessionId::new(), 0, 100)
            .await
            .unwrap()
            .is_none()
    );
}

/// A session with most types of events: rows follow from the log (checked by every dump).
pub async fn log_13(h: Harness) {
    let (session, fence, step) = h.step(build::call_model()).await;
    let [a, b, c] = build::call_pieces("c1");
    h.ok(build::append(
        session,
        fence,
        [build::output(step, [a, b, c])],
    ))
    .await;
    h.ok(build::append(
        session,
        fence,
        [
            build::model_ended(step, FinishReason::ToolCalls),
            build::call_started(step, "c1", mainstay_core::model::Effect::Once, 1),
        ],
    ))
    .await;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "c1")],
    ))
    .await;
    let next = h
        .ok(build::append(
            session,
            fence,
            [
                note("hm"),
                build::step_started(build::call_tools(&["t1", "t2"])),
            ],
        ))
        .await;
    let step = next.tail.session.head;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "t1")],
    ))
    .await;
    let done = h.crash(session, fence).await;
    assert!(done.tail.step.is_some());
    let second = build::fence();
    h.ok(build::claim(session, second)).await;
    h.ok(build::append(
        session,
        second,
        [build::call_settled(step, "t2")],
    ))
    .await;
    h.ok(build::append(session, second, [build::turn_ended()]))
        .await;
    h.ok(build::end(
        session,
        second,
        mainstay_core::commit::End::Succeeded,
    ))
    .await;
    let dump = h.dump(session).await;
    assert_eq!(dump.steps.len(), 2);
    assert_eq!(
        dump.steps[0].usage.and_then(|usage| usage.output_tokens),
        Some(5)
    );
    assert!(dump.steps.iter().all(|step| step.settled_at.is_some()));
    assert_eq!(dump.executions.len(), 2);
    assert_eq!(
        dump.executions[1].terminal.as_deref(),
        Some("execution.succeeded")
    );
    assert_eq!(dump.executions[1].owner, second.owner);
}
