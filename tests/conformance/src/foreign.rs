//! Events of a newer build: what holds in every store that has one.

use mainstay_core::commit::{Append, Commit, End, Refused, Reply, Write};
use mainstay_core::event::{Delivery, InputContent};
use mainstay_core::history::{Approval, Signal};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::port::Scan;
use mainstay_core::tail::{NotRunnable, Scope};
use mainstay_test_support::build;

use crate::Harness;

/// A session that holds one event of type `later.kind`, version 7, is read and takes inputs; nothing
/// else is written to it, and every answer names the type.
pub async fn log_20(h: &Harness, session: SessionId) {
    let named = |text: &str| text.contains("\"later.kind\" version 7");
    let (events, head) = h.store.events(session, 0, 1000).await.unwrap().unwrap();
    assert_eq!(events.len() as u64, head);
    let foreign = events.iter().find(|event| event.version == 7).unwrap();
    assert_eq!(foreign.kind, "later.kind");

    let state = async || {
        let listed = h.store.sessions(None, 10).await.unwrap();
        let listed = listed.into_iter().find(|one| one.session.id == session);
        let tail = h.store.tail(session).await.unwrap().unwrap();
        let dump = h.store.dump(session).await.unwrap();
        let listed = listed.unwrap();
        assert!(!listed.runnable && !tail.is_runnable());
        assert_eq!(listed.session, tail.session);
        assert_eq!(dump.session.as_ref(), Some(&tail.session));
        assert_eq!((&listed.claim, &dump.claim), (&tail.claim, &tail.claim));
        assert!(named(tail.session.foreign.as_deref().unwrap()));
        assert!(matches!(tail.may_run(), Err(NotRunnable::Foreign(_))));
        tail
    };
    let before = state().await;

    let input = InputId::new();
    let prompt = || build::admit(session, input, Delivery::Queue, "while away");
    for _ in 0..2 {
        let Reply::Admitted(admission) = h.ok(prompt()).await.reply else {
            panic!("an admission is answered by one")
        };
        assert!(named(&admission.held.unwrap()));
    }
    let wake = build::commit(session, Write::Wake { scope: Scope::All });
    h.ok(wake).await;
    let taken = InputId::new();
    let signal = InputContent::Signal(Signal {
        name: "s".into(),
        data: "1".into(),
    });
    h.ok(build::commit(
        session,
        Write::Admit {
            input: taken,
            delivery: Delivery::Steer,
            content: signal,
        },
    ))
    .await;
    let cancel = Write::CancelInput { input: taken };
    h.ok(build::commit(session, cancel)).await;

    let fence =
        before
            .claim
            .as_ref()
            .map_or_else(build::fence, |claim| mainstay_core::claim::Fence {
                execution: claim.execution,
                owner: claim.owner,
            });
    let forced = |forced| Write::Claim {
        execution: build::fence().execution,
        owner: fence.owner,
        lease_ms: build::LEASE_MS,
        forced,
        resumed: false,
        by_itself: false,
    };
    let append = Write::Append(Append {
        fence,
        expected_head: None,
        begins: false,
        events: Vec::new(),
        end: Some(End::Succeeded),
    });
    let approval = Approval {
        key: "k".into(),
        approved: true,
        reason: None,
    };
    let refused = [
        forced(None),
        forced(Some(3)),
        append,
        Write::Recover {
            seen: fence,
            counting: mainstay_core::recovery::Counting::to(3),
        },
        Write::Quarantine {
            seen: fence,
            reason: "r".into(),
        },
        Write::Interrupt {
            cause: None,
            and_continue: true,
        },
        Write::Release,
        Write::Cancel,
        Write::Fire,
        Write::Answer(approval),
    ];
    h.clock.advance(build::LEASE_MS);
    for write in refused {
        let commit: Commit = build::commit(session, write);
        let text = format!("{commit:?}");
        let refused = h.refused(commit).await;
        assert!(
            matches!(&refused, Refused::NotRunnable(NotRunnable::Foreign(kind)) if named(kind)),
            "{text}: {refused:?}"
        );
        assert!(named(&refused.to_string()));
    }
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
    let after = state().await;
    assert_eq!(after.claim, before.claim);
    let pending: Vec<_> = after.inputs.iter().map(|input| input.id).collect();
    assert!(pending.contains(&input) && !pending.contains(&taken));
}
