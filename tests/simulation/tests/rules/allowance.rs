//! The allowance of steps: what the last step may do, what is beyond it, and what gives it again.

use mainstay_core::event::{EventBody, TurnOutcome};
use mainstay_core::history::ItemBody;
use mainstay_core::port::Dump;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::decisions::{
    Decided, Step, ask, children, signal, spawn, tools, wait,
};
use mainstay_test_simulation::plugins::{call, say};
use mainstay_test_simulation::world::{lines, user_texts};

/// A stage whose agent has five steps a turn.
fn five(plugins: Decided) -> Stage {
    let mut stage = Stage::new(plugins);
    stage.config.agents.get_mut("default").unwrap().steps = 5;
    stage
}

fn results(dump: &Dump) -> usize {
    let results = dump.items.iter();
    results
        .filter(|item| matches!(item.body, ItemBody::ToolResult(_)))
        .count()
}

#[tokio::test(start_paused = true)]
async fn step_7_a_runner_that_decides_beyond_its_allowance_fails_the_turn_by_name() {
    type Beyond = fn() -> Step;
    let beyond: [Beyond; 4] = [
        || tools(&[("more", "look")]),
        || wait([signal("go")]),
        || spawn(&[("c", "child")]),
        || wait([children(&["c"])]),
    ];
    for (case, sixth) in beyond.into_iter().enumerate() {
        let stage = five(
            Decided::new(|_, _| say("over")).agent("default", move |n, seen| {
                match (seen.budget.steps, n) {
                    (0, _) => sixth().into(),
                    (_, n) => tools(&[(&format!("c{n}"), "put")]).into(),
                }
            }),
        );
        let host = stage.start();
        let session = stage.create("default").await;
        // The next prompt has five again, and comes no further.
        for turn in 1..=2 {
            host.prompt(session, "go").await;
            let dump = stage.idle(session).await;
            let row = dump.session.as_ref().unwrap();
            let Some(TurnOutcome::Failed { error }) = &row.last_turn else {
                panic!("{case}: {:?}\n{}", row.last_turn, lines(&dump))
            };
            assert!(error.contains("allowance of steps is used up"), "{error}");
            assert!(error.contains("runner default"), "{error}");
            assert_eq!(stage.count(session, "step.started").await, 5 * turn);
            assert_eq!(stage.count(session, "execution.failed").await, turn);
            assert_eq!(results(&dump), 5 * turn, "what was done is kept");
            assert!(row.children.is_empty() && row.wait.is_none());
        }
        assert_eq!(stage.plugins.scripted.count("put"), 10);
        assert_eq!(stage.plugins.scripted.count("look"), 0);
    }
}

#[tokio::test(start_paused = true)]
async fn step_7_a_runner_that_asks_a_model_beyond_its_allowance_sends_nothing() {
    let stage = five(
        Decided::new(|request, n| match request.tools.is_empty() {
            true => say("no more"),
            false => call(&[(&format!("c{n}"), "look", "{}")]),
        })
        .agent("default", |_, seen| ask(seen).into()),
    );
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    let last = dump.session.as_ref().unwrap().last_turn.clone();
    assert!(
        matches!(&last, Some(TurnOutcome::Failed { error }) if error.contains("allowance of steps")),
        "{last:?}"
    );
    let requests = stage.plugins.scripted.requests.lock().unwrap().clone();
    let offered: Vec<bool> = requests.iter().map(|r| !r.tools.is_empty()).collect();
    assert_eq!(offered, [true, true, true, true, false]);
}

#[tokio::test(start_paused = true)]
async fn step_7_a_steer_within_the_turn_gives_the_allowance_again() {
    // It comes in the step of this number; the last one is among them.
    for at in 1..=5_usize {
        let stage = five(
            Decided::new(|_, _| say("over")).agent("default", |n, seen| match seen.budget.steps {
                0 => mainstay_test_simulation::decisions::done().into(),
                _ => tools(&[(&format!("c{n}"), "put")]).into(),
            }),
        );
        let held = stage.plugins.scripted.hold("put");
        let host = stage.start();
        let session = stage.create("default").await;
        host.prompt(session, "go").await;
        for step in 1..=at {
            stage
                .when("the call", || stage.plugins.scripted.count("put") == step)
                .await;
            if step == at {
                host.steer(session, "and this").await;
            }
            held.notify_one();
        }
        stage.plugins.scripted.let_go("put");
        let dump = stage.idle(session).await;
        assert_eq!(user_texts(&dump), ["go", "and this"]);
        assert_eq!(
            stage.count(session, "step.started").await,
            at + 5,
            "{}",
            lines(&dump)
        );
        assert_eq!(stage.count(session, "turn.started").await, 1, "one turn");
        let bodies = stage.bodies(session).await.into_iter();
        let left: Vec<u32> = bodies
            .filter_map(|body| match body {
                EventBody::StepStarted(step) => Some(step.basis.budget.steps),
                _ => None,
            })
            .collect();
        let before = (0..at as u32).map(|n| 5 - n);
        let wanted: Vec<u32> = before.chain((1..=5).rev()).collect();
        assert_eq!(left, wanted, "steered in step {at}");
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    }
}
