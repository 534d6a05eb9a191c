//! The boundary between two steps: what is one commit there, and what is not.

use std::sync::{Arc, OnceLock};

use mainstay_core::commit::Write;
use mainstay_core::event::{EventBody, Piece};
use mainstay_core::plugin::Trigger;
use mainstay_test_simulation::decisions::link::Fate;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::decisions::{Decided, ask, done};
use mainstay_test_simulation::plugins::{call, results, say};
use mainstay_test_simulation::world::lines;
use mainstay_test_support::MemoryStore;

/// A model that calls a tool twice, one after the other, and then stops: three steps.
fn three_steps() -> Decided {
    Decided::new(|request, _| match results(request) {
        n if n < 2 => call(&[(&format!("c{n}"), "put", "{}")]),
        _ => say("over"),
    })
}

/// Whether the event is what a runner decided.
fn decides(body: &EventBody) -> bool {
    matches!(
        body,
        EventBody::StepStarted(_) | EventBody::TurnEnded { .. }
    )
}

/// Bodies of the events of each commit of executions, oldest first.
fn commits(memory: &MemoryStore) -> Vec<Vec<EventBody>> {
    let log = memory.log().into_iter();
    let of_executions = log.filter(|logged| matches!(logged.commit.write, Write::Append(_)));
    of_executions
        .map(|logged| logged.events.into_iter().map(|event| event.body).collect())
        .collect()
}

/// How many steps are settled by these commits, and how many of them have what was decided next in the
/// commit that settled them.
fn settled_and_followed(commits: &[Vec<EventBody>]) -> (usize, usize) {
    let (mut settled, mut followed) = (0, 0);
    let (mut ended, mut calls, mut results) = (false, 0, 0);
    for commit in commits {
        let mut settles = false;
        for body in commit {
            match body {
                EventBody::StepStarted(_) => (ended, calls, results) = (false, 0, 0),
                EventBody::StepOutput { pieces, .. } => {
                    let begun = pieces.iter();
                    calls += begun.filter(|p| matches!(p, Piece::Call { .. })).count();
                }
                EventBody::CallSettled { .. } => results += 1,
                EventBody::ModelEnded { .. } => ended = true,
                _ => continue,
            }
            let last = matches!(
                body,
                EventBody::CallSettled { .. } | EventBody::ModelEnded { .. }
            );
            settles |= last && ended && calls == results;
        }
        settled += usize::from(settles);
        followed += usize::from(settles && commit.iter().any(decides));
    }
    (settled, followed)
}

#[tokio::test(start_paused = true)]
async fn step_9_a_quick_decision_is_in_the_commit_that_settles_the_step_before() {
    let play = async |point: Option<(usize, bool)>| {
        let stage = Stage::new(three_steps());
        let session = stage.create("default").await;
        let mut host = stage.start_with(Box::new(move |_, n| match point {
            Some((at, true)) if at == n => Fate::DieBefore,
            Some((at, false)) if at == n => Fate::DieAfter,
            _ => Fate::Pass,
        }));
        stage.prompt(session, "go").await;
        if point.is_some() {
            host.link.died().await;
            // Neither is there without the other, wherever the process died.
            let (settled, followed) = settled_and_followed(&commits(&stage.memory));
            assert_eq!(settled, followed, "{point:?}");
            host.kill();
            host = stage.start();
        }
        let dump = stage.idle(session).await;
        let steps = stage.count(session, "step.started").await;
        assert_eq!(steps, 3, "{point:?}\n{}", lines(&dump));
        assert_eq!(stage.count(session, "turn.ended").await, 1, "{point:?}");
        (
            host.link.commits(),
            settled_and_followed(&commits(&stage.memory)),
        )
    };
    let (commits, settled) = play(None).await;
    assert_eq!(settled, (3, 3));
    for n in 0..commits {
        play(Some((n, true))).await;
        play(Some((n, false))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn step_9_the_results_are_durable_before_a_slow_runner_has_answered() {
    let store: Arc<OnceLock<Arc<MemoryStore>>> = Arc::default();
    let seen = Arc::clone(&store);
    let runner = three_steps().agent("default", move |_, seen_by_it| {
        let memory: &Arc<MemoryStore> = seen.get().expect("it is set before the turn");
        match &seen_by_it.trigger {
            Trigger::TurnStarted => ask(seen_by_it).into(),
            trigger => {
                // It has taken its time by now.
                let (settled, followed) = settled_and_followed(&commits(memory));
                let asked = memory
                    .log()
                    .iter()
                    .flat_map(|logged| &logged.events)
                    .filter(|event| matches!(event.body, EventBody::StepStarted(_)))
                    .count();
                assert_eq!((settled, followed), (asked, 0), "{trigger:?}");
                match asked {
                    3 => done().into(),
                    _ => ask(seen_by_it).into(),
                }
            }
        }
    });
    let stage = Stage::new(runner);
    assert!(store.set(Arc::clone(&stage.memory)).is_ok());
    stage
        .plugins
        .slow_ms
        .store(50, std::sync::atomic::Ordering::SeqCst);
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    assert_eq!(
        stage.count(session, "execution.succeeded").await,
        1,
        "{}",
        lines(&dump)
    );
    assert_eq!(settled_and_followed(&commits(&stage.memory)), (3, 0));
}
