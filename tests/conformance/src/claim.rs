use futures::future::join_all;
use mainstay_core::claim::{Claim, Phase};
use mainstay_core::commit::{End, Refused, Reply, Write};
use mainstay_core::event::{Delivery, EventBody, InterruptReason};
use mainstay_core::model::{Effect, FinishReason};
use mainstay_core::port::StoreError;
use mainstay_test_support::build;

use crate::Harness;

/// A claim and its start are one commit.
pub async fn claim_1(h: Harness) {
    let session = h.session().await;
    let fence = build::fence();
    assert!(matches!(
        h.refused(build::claim(session, fence)).await,
        Refused::NotRunnable(_)
    ));
    h.prompt(session, Delivery::Steer).await;
    h.clock.advance(5_000);
    let done = h.ok(build::claim(session, fence)).await;
    let now = h.store.now().await.unwrap();
    let expected = Claim {
        session,
        execution: fence.execution,
        owner: fence.owner,
        expires_at: now + build::LEASE_MS,
        phase: Phase::Ready,
        step: None,
        interrupt: false,
        ended: false,
        resumed: false,
        superseded: false,
    };
    assert_eq!(done.reply, Reply::Claimed(expected.clone()));
    assert_eq!(done.events.len(), 1);
    let dump = h.dump(session).await;
    assert_eq!(dump.claim, Some(expected));
    assert_eq!(dump.events.last().unwrap().kind, "execution.started");
    assert_eq!(dump.executions[0].started, dump.events.last().unwrap().seq);
}

/// Of a hundred claimants one wins.
pub async fn claim_2(h: Harness) {
    let session = h.session().await;
    h.prompt(session, Delivery::Steer).await;
    let all =
        join_all((0..100).map(|_| h.store.commit(build::claim(session, build::fence())))).await;
    assert_eq!(all.iter().filter(|one| one.is_ok()).count(), 1);
    for lost in all.iter().filter_map(|one| one.as_ref().err()) {
        assert!(
            matches!(lost, StoreError::Refused(Refused::Claimed(_))),
            "{lost:?}"
        );
    }
    let kinds = h.kinds(session).await;
    assert_eq!(
        kinds
            .iter()
            .filter(|kind| *kind == "execution.started")
            .count(),
        1
    );
}

/// An expired claim is not claimed over.
pub async fn claim_3(h: Harness) {
    let (session, ..) = h.claimed().await;
    h.clock.advance(build::LEASE_MS + 10_000);
    assert_eq!(
        h.refused(build::claim(session, build::fence())).await,
        Refused::Claimed(session)
    );
}

/// An expired claim holds nothing, although nobody has touched it.
pub async fn claim_4(h: Harness) {
    let (session, fence) = h.turn().await;
    h.clock.advance(build::LEASE_MS);
    let before = h.dump(session).await;
    let lost = Refused::Lost {
        session,
        execution: fence.execution,
    };
    assert!(
        h.store
            .renew(fence.owner, &[fence], 30_000)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        h.refused(build::append(
            session,
            fence,
            [build::step_started(build::call_model())]
        ))
        .await,
        lost
    );
    assert_eq!(
        h.refused(build::append(session, fence, [build::turn_ended()]))
            .await,
        lost
    );
    assert_eq!(
        h.refused(build::end(
            session,
            fence,
            End::Failed { error: "x".into() }
        ))
        .await,
        lost
    );
    assert_eq!(before, h.dump(session).await);
}

/// A replaced claim is lost at once, whatever was left of its time.
pub async fn claim_5(h: Harness) {
    let (session, old) = h.turn().await;
    h.ok(build::commit(session, Write::Expire { seen: old }))
        .await;
    h.ok(build::recover(session, old)).await;
    let new = build::fence();
    let claimed = h.ok(build::claim(session, new)).await;
    let lost = h
        .refused(build::append(session, old, [build::turn_ended()]))
        .await;
    assert_eq!(
        lost,
        Refused::Lost {
            session,
            execution: old.execution
        }
    );
    assert!(
        h.store
            .renew(old.owner, &[old], 30_000)
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(h.dump(session).await.claim, claimed.tail.claim);
}

/// One call renews 499 of 500, and tells which one is lost.
pub async fn claim_9(h: Harness) {
    let owner = mainstay_core::id::OwnerId::new();
    let mut fences = Vec::new();
    let mut sessions = Vec::new();
    for _ in 0..501 {
        let session = h.session().await;
        h.prompt(session, Delivery::Steer).await;
        let fence = mainstay_core::claim::Fence {
            owner,
            ..build::fence()
        };
        h.ok(build::claim(session, fence)).await;
        fences.push(fence);
        sessions.push(session);
    }
    h.ok(build::commit(
        sessions[7],
        Write::Expire { seen: fences[7] },
    ))
    .await;
    h.clock.advance(10_000);
    let renewed = h
        .store
        .renew(owner, &fences[..500], build::LEASE_MS)
        .await
        .unwrap();
    assert_eq!(renewed.len(), 499);
    assert!(!renewed.contains(&fences[7].execution));
    let now = h.store.now().await.unwrap();
    let expiry = |dump: &mainstay_core::port::Dump| dump.claim.as_ref().unwrap().expires_at;
    assert_eq!(expiry(&h.dump(sessions[0]).await), now + build::LEASE_MS);
    // Not named, not renewed.
    assert_eq!(
        expiry(&h.dump(sessions[500]).await),
        now + build::LEASE_MS - 10_000
    );
    // What was renewed is what is judged by.
    h.clock.advance(build::LEASE_MS - 1);
    h.ok(build::append(
        sessions[0],
        fences[0],
        [build::turn_started()],
    ))
    .await;
    let stranger = build::fence();
    assert!(
        h.store
            .renew(stranger.owner, &fences, 1)
            .await
            .unwrap()
            .is_empty()
    );
}

/// The phase follows the events.
pub async fn claim_13(h: Harness) {
    let (session, fence) = h.turn().await;
    let phase = async |events: Vec<EventBody>| {
        let done = h.ok(build::append(session, fence, events)).await;
        let stored = h.dump(session).await.claim;
        assert_eq!(stored, done.tail.claim);
        (stored.unwrap().phase, done.tail.session.head)
    };
    let (now, step) = phase(vec![build::step_started(build::call_model())]).await;
    assert_eq!(now, Phase::Unknown);
    let pieces = build::call_pieces("pure")
        .into_iter()
        .chain(build::call_pieces("once"));
    assert_eq!(
        phase(vec![build::output(step, pieces)]).await.0,
        Phase::Unknown
    );
    assert_eq!(
        phase(vec![build::model_ended(step, FinishReason::ToolCalls)])
            .await
            .0,
        Phase::Ready
    );
    assert_eq!(
        phase(vec![build::call_started(step, "once", Effect::Once, 1)])
            .await
            .0,
        Phase::Unknown
    );
    assert_eq!(
        phase(vec![build::call_settled(step, "pure")]).await.0,
        Phase::Unknown
    );
    assert_eq!(
        phase(vec![build::call_settled(step, "once")]).await.0,
        Phase::Continue
    );
    let (now, step) = phase(vec![build::step_started(build::call_model())]).await;
    assert_eq!(now, Phase::Unknown);
    assert_eq!(
        phase(vec![build::model_ended(step, FinishReason::Stop)])
            .await
            .0,
        Phase::Continue
    );
    assert_eq!(phase(vec![build::turn_ended()]).await.0, Phase::Safe);
}

/// A failure's terminal and the end of its claim are one commit. Brought again it is found, and another
/// is none.
pub async fn claim_14(h: Harness) {
    let (session, fence) = h.turn().await;
    let failed = || {
        let error = "broken".into();
        build::end(session, fence, End::Failed { error })
    };
    let done = h.ok(failed()).await;
    assert_eq!(done.events.len(), 1);
    let first = done.events[0].seq;
    let again = h.ok(failed()).await;
    assert_eq!(again.events, []);
    assert_eq!(again.reply, Reply::Duplicate { first });
    let dump = h.dump(session).await;
    assert_eq!(dump.claim, None);
    assert_eq!(
        dump.executions[0].terminal.as_deref(),
        Some("execution.failed")
    );
    let lost = h.refused(build::end(session, fence, End::Succeeded)).await;
    assert!(matches!(lost, Refused::Lost { .. }));
    for phase in [Phase::Ready, Phase::Unknown, Phase::Continue, Phase::Safe] {
        fails_in(&h, phase).await;
    }
}

/// An execution in this phase fails, or dies with its terminal: there is one terminal and no claim.
async fn fails_in(h: &Harness, phase: Phase) {
    for stored in [true, false] {
        let (session, fence) = match phase {
            Phase::Ready | Phase::Safe => h.turn().await,
            Phase::Unknown | Phase::Continue => {
                let (session, fence, _) = h.step(build::call_model()).await;
                (session, fence)
            }
        };
        let step = h.store.tail(session).await.unwrap().unwrap().session.step;
        let settles = match (phase, step) {
            (Phase::Continue, Some(step)) => Some(build::model_ended(step, FinishReason::Stop)),
            (Phase::Safe, _) => Some(build::turn_ended()),
            _ => None,
        };
        h.ok(build::append(session, fence, settles)).await;
        assert_eq!(h.dump(session).await.claim.unwrap().phase, phase);
        let owed = if stored {
            let error = "broken".into();
            let done = h
                .ok(build::end(session, fence, End::Failed { error }))
                .await;
            assert_eq!(done.events.len(), 1, "{phase:?}");
            "execution.failed"
        } else {
            h.crash(session, fence).await;
            // What is settled and may stop gets the terminal that was owed.
            match phase {
                Phase::Safe => "execution.succeeded",
                _ => "execution.interrupted",
            }
        };
        let dump = h.dump(session).await;
        assert_eq!(dump.claim, None, "{phase:?}");
        let terminals: Vec<_> = dump.executions.iter().map(|one| &one.terminal).collect();
        assert_eq!(terminals, [&Some(owed.to_owned())], "{phase:?}");
        let told = |kind: &str| kind == "execution.failed" || kind == "execution.interrupted";
        let told = dump.events.iter().filter(|event| told(&event.kind)).count();
        assert_eq!(
            told,
            usize::from(owed != "execution.succeeded"),
            "{phase:?}"
        );
    }
}

/// A shutdown amid a step leaves its row, expired; recovery gives no second terminal.
pub async fn claim_15(h: Harness) {
    let (session, fence, _) = h.step(build::call_model()).await;
    h.ok(build::end(
        session,
        fence,
        End::Interrupted {
            reason: InterruptReason::Shutdown,
        },
    ))
    .await;
    let claim = h.dump(session).await.claim.unwrap();
    assert!(claim.ended && claim.expires_at <= h.store.now().await.unwrap());
    assert_eq!(h.store.scan(10).await.unwrap().expired, [claim]);
    let done = h.ok(build::recover(session, fence)).await;
    assert_eq!(done.tail.claim, None);
    assert_eq!(done.tail.session.attempts, 0);
    h.dump(session).await;
}

/// A shutdown in `safe` ends its claim in the commit that has its terminal.
pub async fn claim_20(h: Harness) {
    let (session, fence) = h.turn().await;
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    let reason = InterruptReason::Shutdown;
    let done = h
        .ok(build::end(session, fence, End::Interrupted { reason }))
        .await;
    assert_eq!(done.events.len(), 1);
    assert_eq!(done.tail.claim, None);
    let dump = h.dump(session).await;
    assert_eq!(dump.claim, None);
    let terminal = dump.events.last().unwrap();
    assert_eq!(terminal.id, done.events[0].id);
    assert_eq!(terminal.kind, "execution.interrupted");
    assert_eq!(terminal.data["reason"], "shutdown");
    assert_eq!(terminal.execution, Some(fence.execution));
    assert_eq!(
        h.store.scan(10).await.unwrap(),
        mainstay_core::port::Scan::default()
    );
}

/// A live claim is taken away: expired now, and lost to its owner.
pub async fn claim_21(h: Harness) {
    let (session, fence, _) = h.step(build::call_model()).await;
    let stranger = build::fence();
    let changed = h
        .refused(build::commit(session, Write::Expire { seen: stranger }))
        .await;
    assert_eq!(changed, Refused::ClaimChanged(session));
    assert_eq!(
        h.refused(build::recover(session, fence)).await,
        Refused::ClaimChanged(session)
    );
    h.ok(build::commit(session, Write::Expire { seen: fence }))
        .await;
    assert!(matches!(
        h.refused(build::append(session, fence, [build::turn_ended()]))
            .await,
        Refused::Lost { .. }
    ));
    let done = h.ok(build::recover(session, fence)).await;
    assert_eq!(done.tail.session.attempts, 0);
    let dump = h.dump(session).await;
    let is_terminal = |event: &&mainstay_core::event::Record| event.kind == "execution.interrupted";
    let terminals: Vec<_> = dump.events.iter().filter(is_terminal).collect();
    assert_eq!(terminals.len(), 1);
    assert_eq!(terminals[0].data["reason"], "superseded");
}
