//! Sessions that are to start, at a store which answers badly.

use std::time::Duration;

use mainstay_core::commit::Write;
use mainstay_core::event::EventBody;
use mainstay_core::id::SessionId;
use mainstay_core::port::StoreError;
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::plugins::say;
use mainstay_test_simulation::world::lines;

fn answering() -> Stage {
    let mut stage = Stage::new(Decided::new(|_, _| say("ok")));
    stage.settings.poll_every = Duration::from_millis(100);
    stage
}

#[tokio::test(start_paused = true)]
async fn recov_15_a_claim_whose_answer_was_lost_is_no_crash() {
    let stage = answering();
    let claims = std::sync::atomic::AtomicUsize::new(0);
    let host = stage.start_with(Box::new(move |commit, _| {
        let first = matches!(commit.write, Write::Claim { .. })
            && claims.fetch_add(1, std::sync::atomic::Ordering::SeqCst) == 0;
        if first { Fate::Unheard } else { Fate::Pass }
    }));
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    let bodies = stage.bodies(session).await;
    let attempts = bodies.iter().filter_map(|body| match body {
        EventBody::RecoveryRecorded { attempts, .. } => Some(*attempts),
        _ => None,
    });
    assert_eq!(attempts.collect::<Vec<_>>(), [0], "{}", lines(&dump));
}

#[tokio::test(start_paused = true)]
async fn recov_1_sessions_that_cannot_be_claimed_keep_no_other_from_its_turn() {
    let mut stage = answering();
    stage.settings.capacity = 2;
    let mut sessions = Vec::new();
    for _ in 0..5 {
        let session = stage.create("default").await;
        stage.prompt(session, "go").await;
        sessions.push(session);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let damaged: Vec<SessionId> = sessions[..4].to_vec();
    let bad = damaged.clone();
    let _host = stage.start_with(Box::new(move |commit, _| {
        if bad.contains(&commit.session) {
            return Fate::Fail(StoreError::Damaged {
                session: commit.session,
                cause: "its open step is not in the log".into(),
            });
        }
        Fate::Pass
    }));
    let ran = tokio::time::timeout(Duration::from_secs(60), stage.idle(sessions[4])).await;
    assert!(ran.is_ok(), "those before it are looked at for ever");
    for session in damaged {
        assert_eq!(stage.count(session, "execution.started").await, 0);
    }
}
