use mainstay_core::commit::{Refused, Reply, Write};
use mainstay_core::event::{Delivery, Event, EventBody, Piece, StepRecovered};
use mainstay_core::history::{Ending, ItemBody};
use mainstay_core::id::{EventId, RecoveryId};
use mainstay_core::model::{Effect, FinishReason, HostedResult, ToolCall, ToolOutcome};
use mainstay_core::port::Committed;
use mainstay_core::recovery::Outcome;
use mainstay_core::tail::{CallStatus, Status};
use mainstay_test_support::build;

use crate::Harness;

fn verdict(done: &Committed) -> &StepRecovered {
    let found = done.events.iter().find_map(|event| match &event.body {
        EventBody::StepRecovered(verdict) => Some(verdict),
        _ => None,
    });
    found.expect("a verdict was given")
}

fn results(events: &[Event]) -> Vec<(String, ToolOutcome)> {
    let result = |event: &Event| match &event.body {
        EventBody::CallSettled { result, .. } => Some((result.call.clone(), result.outcome)),
        _ => None,
    };
    events.iter().filter_map(result).collect()
}

/// After a promotion alone: as if nothing had happened.
pub async fn recov_1(h: Harness) {
    let (session, fence) = h.turn().await;
    let done = h.crash(session, fence).await;
    assert_eq!(
        done.reply,
        Reply::Recovered(Outcome::Resume {
            attempts: 1,
            suspect: false
        })
    );
    let dump = h.dump(session).await;
    assert_eq!(dump.items.len(), 1);
    assert!(matches!(dump.items[0].body, ItemBody::User(_)));
    assert_eq!(h.store.scan(10).await.unwrap().due, [session]);
}

/// A model call with nothing durable of it is asked again.
pub async fn recov_2(h: Harness) {
    let (session, fence, step) = h.step(build::call_model()).await;
    let done = h.crash(session, fence).await;
    assert!(verdict(&done).ask_again && !verdict(&done).interrupted);
    assert_eq!(done.tail.session.step, Some(step));
    assert!(done.tail.step.as_ref().unwrap().ending.is_none());
    assert_eq!(h.dump(session).await.items.len(), 1);
}

/// Arguments that were still streaming: not started.
pub async fn recov_4(h: Harness) {
    let (session, fence, step) = h.step(build::call_model()).await;
    let piece = Piece::Call {
        id: "c".into(),
        tool: "tool".into(),
    };
    h.ok(build::append(
        session,
        fence,
        [build::output(step, [piece])],
    ))
    .await;
    let done = h.crash(session, fence).await;
    assert_eq!(
        results(&done.events),
        [("c".into(), ToolOutcome::NotStarted)]
    );
    assert!(verdict(&done).interrupted);
    let dump = h.dump(session).await;
    assert_eq!(dump.calls[0].runs, 0);
    let kept = dump.items.iter().find_map(|item| match &item.body {
        ItemBody::Assistant(assistant) => Some(assistant.ending.clone()),
        _ => None,
    });
    assert_eq!(kept, Some(Ending::Interrupted));
}

async fn started(h: &Harness, effect: Effect) -> Committed {
    let (session, fence, step) = h.step(build::call_tools(&["c"])).await;
    h.ok(build::append(
        session,
        fence,
        [build::call_started(step, "c", effect, 1)],
    ))
    .await;
    let done = h.crash(session, fence).await;
    h.dump(session).await;
    done
}

/// A started `pure` call is run again.
pub async fn recov_5(h: Harness) {
    let done = started(&h, Effect::Pure).await;
    assert_eq!(verdict(&done).run, ["c"]);
    assert!(results(&done.events).is_empty());
}

/// A started `idempotent` call is run again under the same key.
pub async fn recov_6(h: Harness) {
    let done = started(&h, Effect::Idempotent).await;
    assert_eq!(verdict(&done).run, ["c"]);
    let session = done.tail.session.id;
    let before = h.dump(session).await.calls[0].clone();
    assert_eq!((before.status, before.runs), (CallStatus::Started, 1));
    let fence = build::fence();
    h.ok(build::claim(session, fence)).await;
    let step = done.tail.session.step.unwrap();
    h.ok(build::append(
        session,
        fence,
        [build::call_started(step, "c", Effect::Idempotent, 2)],
    ))
    .await;
    h.ok(build::append(
        session,
        fence,
        [build::call_settled(step, "c")],
    ))
    .await;
    let call = &h.dump(session).await.calls[0];
    assert_eq!(
        (&call.key, call.runs, call.status),
        (&before.key, 2, CallStatus::Settled)
    );
}

/// A started `once` call is not: its outcome is unknown.
pub async fn recov_7(h: Harness) {
    let done = started(&h, Effect::Once).await;
    assert_eq!(
        results(&done.events),
        [("c".into(), ToolOutcome::OutcomeUnknown)]
    );
    assert_eq!(verdict(&done).settled, ["c"]);
    let session = done.tail.session.id;
    let dump = h.dump(session).await;
    assert!(
        dump.items
            .iter()
            .any(|item| matches!(item.body, ItemBody::Recovered(_)))
    );
    assert_eq!(dump.session.unwrap().step, None);
}

/// A hosted call without a result: missing.
pub async fn recov_8(h: Harness) {
    let (session, fence, step) = h.step(build::call_model()).await;
    let call = |id: &str| ToolCall {
        id: id.into(),
        tool: "search".into(),
        arguments: "{}".into(),
    };
    let pieces = [
        Piece::HostedCall(call("h1")),
        Piece::HostedResult(HostedResult {
            call: "h1".into(),
            is_error: false,
            data: "1".into(),
        }),
        Piece::HostedCall(call("h2")),
    ];
    h.ok(build::append(session, fence, [build::output(step, pieces)]))
        .await;
    let done = h.crash(session, fence).await;
    assert_eq!(
        results(&done.events),
        [("h2".into(), ToolOutcome::ResultMissing)]
    );
    h.dump(session).await;
}

/// A claim in `safe` gets the terminal that was owed.
pub async fn recov_10(h: Harness) {
    let (session, fence) = h.turn().await;
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    let done = h.crash(session, fence).await;
    assert_eq!(done.reply, Reply::Recovered(Outcome::Released));
    let dump = h.dump(session).await;
    assert_eq!(
        dump.executions[0].terminal.as_deref(),
        Some("execution.succeeded")
    );
    assert_eq!(done.tail.status(h.store.now().await.unwrap()), Status::Idle);
}

/// Recovering twice is recovering once, and its ids follow from the execution.
pub async fn recov_11(h: Harness) {
    let (session, fence, _) = h.step(build::call_model()).await;
    h.clock.advance(build::LEASE_MS);
    let all =
        futures::future::join_all((0..8).map(|_| h.store.commit(build::recover(session, fence))))
            .await;
    let (won, lost): (Vec<_>, Vec<_>) = all.into_iter().partition(Result::is_ok);
    assert_eq!((won.len(), lost.len()), (1, 7));
    assert_eq!(
        h.refused(build::recover(session, fence)).await,
        Refused::ClaimChanged(session)
    );
    for (n, event) in won[0].as_ref().unwrap().events.iter().enumerate() {
        assert_eq!(
            event.id,
            EventId::derived(fence.execution.0, &format!("recovery/{n}"))
        );
    }
    let kinds = h.kinds(session).await;
    for kind in [
        "step.recovered",
        "recovery.recorded",
        "execution.interrupted",
    ] {
        assert_eq!(
            kinds.iter().filter(|found| *found == kind).count(),
            1,
            "{kind}"
        );
    }
}

/// Crash upon crash: attempts are counted with each, and past the maximum nothing runs any more.
pub async fn recov_13(h: Harness) {
    let (session, fence) = h.turn().await;
    let mut last = h.crash(session, fence).await;
    for attempts in 2..=4 {
        let fence = build::fence();
        h.ok(build::claim(session, fence)).await;
        last = h.crash(session, fence).await;
        assert_eq!(last.tail.session.attempts, attempts);
    }
    assert!(
        matches!(last.reply, Reply::Recovered(Outcome::Quarantined { .. })),
        "{:?}",
        last.reply
    );
    assert!(matches!(
        h.refused(build::claim(session, build::fence())).await,
        Refused::NotRunnable(_)
    ));
    assert!(h.store.scan(10).await.unwrap().due.is_empty());
    let held = h
        .ok(build::admit(
            session,
            mainstay_core::id::InputId::new(),
            Delivery::Steer,
            "x",
        ))
        .await;
    assert!(matches!(&held.reply, Reply::Admitted(admission) if admission.held.is_some()));
    assert!(h.store.scan(10).await.unwrap().due.is_empty());
    h.ok(build::commit(session, Write::Release)).await;
    assert_eq!(h.store.scan(10).await.unwrap().due, [session]);
    assert_eq!(h.dump(session).await.session.unwrap().attempts, 0);
}

/// Shutdowns are not counted.
pub async fn recov_15(h: Harness) {
    let (session, mut fence, _) = h.step(build::call_model()).await;
    for _ in 0..10 {
        let reason = mainstay_core::event::InterruptReason::Shutdown;
        h.ok(build::end(
            session,
            fence,
            mainstay_core::commit::End::Interrupted { reason },
        ))
        .await;
        let done = h.ok(build::recover(session, fence)).await;
        assert_eq!(done.tail.session.attempts, 0);
        fence = build::fence();
        h.ok(build::claim(session, fence)).await;
    }
    h.dump(session).await;
}

/// A session's state is that of its claim.
pub async fn recov_21(h: Harness) {
    let (session, ..) = h.step(build::call_model()).await;
    let status = async || {
        let listed = h.store.sessions(None, 10).await.unwrap();
        assert_eq!(listed[0].session.id, session);
        let now = h.store.now().await.unwrap();
        mainstay_core::tail::status(
            &listed[0].session,
            listed[0].claim.as_ref(),
            listed[0].runnable,
            now,
        )
    };
    assert_eq!(status().await, Status::Running);
    h.clock.advance(build::LEASE_MS);
    assert_eq!(status().await, Status::Recovering);
}

/// One transaction, written by the recovery and by no execution.
pub async fn recov_22(h: Harness) {
    let (session, fence, _) = h.step(build::call_model()).await;
    let pieces = build::call_pieces("c");
    let step = h
        .store
        .tail(session)
        .await
        .unwrap()
        .unwrap()
        .session
        .step
        .unwrap();
    h.ok(build::append(
        session,
        fence,
        [
            build::output(step, pieces),
            build::model_ended(step, FinishReason::ToolCalls),
            build::call_started(step, "c", Effect::Once, 1),
        ],
    ))
    .await;
    let done = h.crash(session, fence).await;
    let kinds: Vec<String> = done.events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(
        kinds,
        [
            "step.recovered",
            "call.settled",
            "execution.interrupted",
            "recovery.recorded"
        ]
    );
    assert_eq!(done.tail.claim, None);
    let recovery = RecoveryId::derived(fence.execution.0, "recovery");
    let dump = h.dump(session).await;
    for event in &dump.events[dump.events.len() - 4..] {
        assert_eq!((event.recovery, event.execution), (Some(recovery), None));
    }
}

/// A call that was whole and not started is run.
pub async fn recov_23(h: Harness) {
    let (session, fence, _) = h.step(build::call_tools(&["a", "b"])).await;
    let done = h.crash(session, fence).await;
    assert!(results(&done.events).is_empty());
    let open = h.store.tail(session).await.unwrap().unwrap();
    assert!(
        open.step
            .as_ref()
            .unwrap()
            .calls
            .iter()
            .all(|call| call.status == CallStatus::Ready)
    );
}

/// A request that offers a hosted tool which acts once is not sent again.
pub async fn recov_24(h: Harness) {
    let (session, fence) = h.turn().await;
    let EventBody::StepStarted(mut started) = build::step_started(build::call_model()) else {
        unreachable!()
    };
    started.hosted_once = true;
    h.ok(build::append(
        session,
        fence,
        [EventBody::StepStarted(started)],
    ))
    .await;
    let done = h.crash(session, fence).await;
    assert!(!verdict(&done).ask_again && verdict(&done).interrupted);
    assert!(
        h.dump(session)
            .await
            .items
            .iter()
            .any(|item| matches!(item.body, ItemBody::Recovered(_)))
    );
}
