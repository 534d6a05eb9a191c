//! What a replay takes, what it refuses, and what is adopted afterwards.

use mainstay_core::commit::{End, Refused, Reply, Write};
use mainstay_core::event::{Delivery, KINDS, Record};
use mainstay_core::id::{EventId, InputId, Seq};
use mainstay_core::model::Effect;
use mainstay_core::port::Scan;
use mainstay_core::replay::ReplayError;
use mainstay_core::tail::Scope;
use mainstay_test_conformance::Harness;
use mainstay_test_support::{build, rebuild};

use super::eventful::{eventful, kinds, write};
use super::{dump, head, memory, replay, rows, take, take_all};

/// Nothing of a store would be started, settled, fired or delivered, now and much later.
pub(super) async fn nothing_to_do(h: &Harness) {
    for _ in 0..3 {
        assert_eq!(h.store.scan(100).await.unwrap(), Scan::default());
        h.clock.advance(48 * 3_600_000);
    }
}

pub(super) async fn every_type(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let wanted = source.dump(session).await;
    let missing: Vec<_> = KINDS
        .iter()
        .filter(|kind| !kinds(&wanted.events).contains(**kind))
        .collect();
    assert_eq!(missing, [&"session.adopted", &"session.cancelled"]);
    // Intents and hidden items included, the log alone gives the rows.
    assert_eq!(rebuild(&wanted.events).unwrap(), rows(wanted.clone()));

    take_all(&h, "source", &wanted.events, 7).await;
    let imported = dump(&h, session).await;
    assert_eq!(rows(imported.clone()), rows(wanted.clone()));
    assert_eq!(imported.claim, None);
    assert_eq!(imported.session.unwrap().imported(), Some("source"));
    nothing_to_do(&h).await;
    assert_eq!(rows(dump(&h, session).await), rows(wanted));

    // Adopted and cancelled here, it has every type; and a third store is not this one's heir.
    write(&h, session, Write::Adopt).await;
    let mut adopted = h.dump(session).await;
    assert!(adopted.claim.is_none() && adopted.session.as_ref().unwrap().execution.is_none());
    write(&h, session, Write::Cancel).await;
    adopted = h.dump(session).await;
    assert_eq!(kinds(&adopted.events), KINDS.iter().copied().collect());
    for page in [1, 1000] {
        let third = memory();
        take_all(&third, "second", &adopted.events, page).await;
        let copy = dump(&third, session).await;
        assert_eq!(rows(copy.clone()), rows(adopted.clone()));
        assert_eq!(copy.session.unwrap().imported(), Some("second"));
        nothing_to_do(&third).await;
    }
}

pub(super) async fn only_what_follows(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    take_all(&h, "R1", &records[..3], 2).await;
    let before = dump(&h, session).await;
    let refusal = async |records: &[Record]| {
        let replayed = take(&h, "R1", records).await;
        assert_eq!(
            (replayed.head, replayed.applied, replayed.skipped),
            (3, 0, 0)
        );
        assert_eq!(dump(&h, session).await, before);
        (replayed.held, replayed.refused)
    };
    let gap = ReplayError::Gap {
        expected: 4,
        got: 5,
    };
    assert_eq!(refusal(&records[4..5]).await, (0, Some(gap)));
    assert_eq!(refusal(&records[1..2]).await, (1, None));
    assert_eq!(refusal(&records[..3]).await, (3, None));
    type Change = fn(&mut Record);
    let changes: [Change; 8] = [
        |record| record.id = EventId::new(),
        |record| record.kind = "input.admitted".into(),
        |record| record.kind = "from.the.future".into(),
        |record| record.version = 2,
        |record| record.at += 1,
        |record| record.execution = Some(mainstay_core::id::ExecutionId::new()),
        |record| record.data["at"] = 1.into(),
        |record| record.data["more"] = "unheard of".into(),
    ];
    for change in changes {
        let mut other = records[1].clone();
        change(&mut other);
        let diverged = Some(ReplayError::Diverged { seq: 2 });
        assert_eq!(
            refusal(&[other.clone()]).await,
            (0, diverged.clone()),
            "{other:?}"
        );
        let page = [records[0].clone(), other, records[2].clone()];
        assert_eq!(refusal(&page).await, (1, diverged));
    }

    // What it leaves empty, another build may have spelled out.
    let mut wordy = records[0].clone();
    wordy.data["model"] = serde_json::Value::Null;
    assert_eq!(refusal(&[wordy]).await, (1, None));

    // Each again within one page, and only what is new is stored.
    let page = [
        &records[2],
        &records[3],
        &records[3],
        &records[2],
        &records[4],
    ]
    .map(Clone::clone);
    let replayed = take(&h, "R1", &page).await;
    assert_eq!((replayed.head, replayed.applied, replayed.held), (5, 2, 3));
    assert_eq!(replayed.refused, None);
    let mut other = records[5].clone();
    other.at += 1;
    let replayed = take(&h, "R1", &[records[5].clone(), other]).await;
    assert_eq!((replayed.head, replayed.applied), (6, 1));
    assert_eq!(replayed.refused, Some(ReplayError::Diverged { seq: 6 }));
    assert_eq!(dump(&h, session).await.events, records[..6]);
}

pub(super) async fn log_15_each_fault(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    let taken = h.session().await;
    let elsewhere = h.prompt(taken, Delivery::Queue).await;
    let held_elsewhere = dump(&h, taken).await.events[1].id;
    let admission = records
        .iter()
        .position(|record| record.kind == "input.admitted")
        .unwrap();
    let first_input: InputId = records[admission].data["input"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();

    // What is done to the third of five events, and the error.
    type Fault = Box<dyn Fn(&mut Record)>;
    type IsIt = fn(&ReplayError) -> bool;
    let at = |seq: usize| records[seq - 1].clone();
    let id = at(1).id;
    let faults: Vec<(Fault, IsIt, &str)> = vec![
        (
            Box::new(|record| record.kind = "from.the.future".into()),
            |error| matches!(error, ReplayError::UnknownType { .. }),
            "type \"from.the.future\" version 1, which this build does not know",
        ),
        (
            Box::new(|record| record.version = 7),
            |error| matches!(error, ReplayError::UnknownType { .. }),
            "version 7, which this build does not know",
        ),
        (
            Box::new(move |record| record.session = taken),
            |error| matches!(error, ReplayError::OtherSession { .. }),
            "belongs to session",
        ),
        (
            Box::new(move |record| record.id = id),
            |error| matches!(error, ReplayError::IdReused { held: 1, .. }),
            "which is held by seq 1",
        ),
        (
            Box::new(move |record| record.id = held_elsewhere),
            |error| matches!(error, ReplayError::IdReused { held: 2, .. }),
            "which is held by seq 2",
        ),
        (
            Box::new(|record| record.data = serde_json::json!({})),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "cannot stand there",
        ),
        (
            Box::new(|record| record.data["more"] = "unheard of".into()),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "a field that its type does not have",
        ),
        (
            Box::new(|record| {
                record.execution = Some(mainstay_core::id::ExecutionId::new());
                record.recovery = Some(mainstay_core::id::RecoveryId::new());
            }),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "an execution and a recovery wrote it",
        ),
        (
            Box::new(|record| record.execution = Some(mainstay_core::id::ExecutionId::new())),
            |error| matches!(error, ReplayError::OtherExecution { seq: 3, .. }),
            "which is not the open one",
        ),
        (
            Box::new(|record| record.at = u64::MAX),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "its time is out of range",
        ),
        (
            Box::new(|record| {
                record.kind = "turn.ended".into();
                record.data = serde_json::json!({ "outcome": { "outcome": "done" } });
            }),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "no turn is open",
        ),
    ];
    for (fault, is_it, words) in faults {
        let mut five: Vec<Record> = (1..=5).map(at).collect();
        fault(&mut five[2]);
        let replayed = take(&h, "R1", &five).await;
        assert_eq!((replayed.head, replayed.applied), (2, 2), "{words}");
        let error = replayed.refused.expect(words);
        assert!(
            is_it(&error) && error.to_string().contains(words),
            "{error:?}: {error}"
        );
        assert_eq!(dump(&h, session).await.events, records[..2]);
        assert!(h.store.delete(session).await.unwrap());
    }

    // An input that is held by another session, by this one, and twice in one page.
    for (input, holder) in [(elsewhere, taken), (first_input, session)] {
        take_all(&h, "R1", &records[..=admission], 100).await;
        let mut next = records[admission].clone();
        next.seq += 1;
        next.id = EventId::new();
        next.data["input"] = input.to_string().into();
        let error = take(&h, "R1", &[next]).await.refused;
        assert!(
            matches!(error, Some(ReplayError::InputReused { session, .. }) if session == holder),
            "{error:?}"
        );
        assert_eq!(head(&h, session).await, admission as Seq + 1);
        h.store.delete(session).await.unwrap();
    }
    let mut twice = records[..=admission].to_vec();
    let mut next = twice.last().unwrap().clone();
    next.seq += 1;
    next.id = EventId::new();
    twice.push(next);
    let replayed = take(&h, "R1", &twice).await;
    assert!(
        matches!(replayed.refused, Some(ReplayError::InputReused { .. })),
        "{replayed:?}"
    );
    assert_eq!(replayed.applied, admission as u64 + 1);
    h.store.delete(session).await.unwrap();

    // Nothing to begin with.
    let refused = h
        .refused(build::commit(session, replay("R1", true, &[at(2)])))
        .await;
    let gap = ReplayError::Gap {
        expected: 1,
        got: 2,
    };
    assert_eq!(refused, Refused::Replay(gap));
    let mut other = at(2);
    other.seq = 1;
    let refused = h
        .refused(build::commit(session, replay("R1", true, &[other])))
        .await;
    assert!(
        refused
            .to_string()
            .contains("begins with the session's creation"),
        "{refused}"
    );
    assert!(h.store.tail(session).await.unwrap().is_none());
}

pub(super) async fn log_16_another_origin(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    take_all(&h, "R1", &records[..3], 100).await;
    let own = h.session().await;
    let mut to_own = records[3].clone();
    to_own.session = own;
    to_own.seq = 2;
    for (session, record, words) in [
        (session, records[3].clone(), "it comes from \"R1\""),
        (own, to_own, "it is this store's own"),
    ] {
        let before = dump(&h, session).await;
        let page = [record.clone()];
        let strict = h
            .refused(build::commit(session, replay("R2", true, &page)))
            .await;
        assert!(matches!(strict, Refused::OtherOrigin { .. }), "{strict:?}");
        assert!(strict.to_string().contains(words), "{strict}");
        let lax = h
            .ok(build::commit(session, replay("R2", false, &page)))
            .await;
        assert!(lax.events.is_empty(), "a watcher would be told");
        let Reply::Replayed(replayed) = lax.reply else {
            panic!("{:?}", lax.reply)
        };
        assert_eq!((replayed.applied, replayed.skipped), (0, 1));
        assert_eq!(dump(&h, session).await, before);
    }
    assert_eq!(take(&h, "R1", &records[3..4]).await.head, 4);
    // Nothing else writes to it.
    let before = dump(&h, session).await;
    for write in [
        Write::Wake { scope: Scope::All },
        Write::Release,
        Write::Cancel,
        Write::Fire,
        Write::ClearRevert,
        Write::Interrupt {
            cause: None,
            and_continue: true,
        },
    ] {
        let refused = h.refused(build::commit(session, write)).await;
        assert!(matches!(refused, Refused::NotRunnable(_)), "{refused:?}");
    }
    let refused = h.refused(build::claim(session, build::fence())).await;
    assert!(matches!(refused, Refused::NotRunnable(_)), "{refused:?}");
    assert_eq!(dump(&h, session).await, before);
}

pub(super) async fn every_prefix(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    for n in 1..=records.len() {
        take_all(&h, "source", &records[..n], 1000).await;
        write(&h, session, Write::Adopt).await;
        let adopted = h.dump(session).await;
        let row = adopted.session.as_ref().unwrap();
        assert_eq!(row.execution, None, "after seq {n}");
        assert_eq!(adopted.events[n].kind, "session.adopted");
        // What acted once is not started again, and nothing of it is left in flight.
        let started = adopted.calls.iter().find(|call| {
            call.effect == Some(Effect::Once)
                && call.status == mainstay_core::tail::CallStatus::Started
        });
        assert_eq!(started, None, "after seq {n}");

        // It goes on here: a claim, and after its death a recovery that closes the turn.
        let tail = h.store.tail(session).await.unwrap().unwrap();
        if tail.is_runnable() {
            let fence = build::fence();
            h.ok(build::claim(session, fence)).await;
            h.ok(build::interrupt(session)).await;
            h.crash(session, fence).await;
            let after = h.dump(session).await;
            assert!(after.session.unwrap().turn.is_none(), "after seq {n}");
        }
        assert!(h.store.delete(session).await.unwrap());
    }
}

/// A shutdown's execution has ended and its claim waits for recovery, when a client interrupts or cancels
/// the turn that is open without a step.
pub(super) async fn stopped_between_steps(h: Harness) {
    let cancel = || Write::Cancel;
    let interrupt = || Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    for stop in [interrupt as fn() -> Write, cancel] {
        let source = memory();
        let (session, fence, step) = source.step(build::call_tools(&["a"])).await;
        let settled = build::call_settled(step, "a");
        source.ok(build::append(session, fence, [settled])).await;
        let reason = mainstay_core::event::InterruptReason::Shutdown;
        let shutdown = build::end(session, fence, End::Interrupted { reason });
        assert!(source.ok(shutdown).await.tail.claim.is_some());
        write(&source, session, stop()).await;
        let records = source.dump(session).await.events;

        take_all(&h, "source", &records, 100).await;
        write(&h, session, Write::Adopt).await;
        let adopted = h.dump(session).await;
        assert_eq!(adopted.session.as_ref().unwrap().turn, None);
        let tail = h.store.tail(session).await.unwrap().unwrap();
        assert!(!tail.is_runnable(), "it was stopped");
        // As its origin's recovery does.
        let recovered = source.ok(build::recover(session, fence)).await;
        assert_eq!(recovered.tail.session.last_turn, tail.session.last_turn);
        assert!(!recovered.tail.session.interrupting && !tail.session.interrupting);
    }
}
