//! Steps of one `pure` call run ahead of their commit: what they cost, and that nobody can tell by the
//! log that they did.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use futures::FutureExt as _;
use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::{Delivery, EventBody, InterruptReason};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::port::{Dump, Store as _};
use mainstay_test_simulation::decisions::link::{Fate, Fates};
use mainstay_test_simulation::decisions::stage::{Stage, words};
use mainstay_test_simulation::decisions::{Decided, Step, done, tools};
use mainstay_test_simulation::plugins::say;
use mainstay_test_simulation::world::{prompt, user_texts};
use mainstay_test_support::MemoryStore;

/// The runner's `n`-th decision: so many looks, then it is done.
fn look(n: u32, looks: u32) -> Step {
    match n {
        n if n < looks => tools(&[(&format!("c{n}"), "look")]),
        _ => done(),
    }
}

fn looking(looks: u32) -> Stage {
    Stage::new(Decided::new(|_, _| say("over")).agent("default", move |n, _| look(n, looks).into()))
}

/// Something that another node does to the session while this one decides.
type Meanwhile = Arc<OnceLock<(Arc<MemoryStore>, SessionId, Write)>>;

/// A stage whose runner, at its third decision, is overtaken by a write of another node.
fn overtaken(looks: u32) -> (Stage, Meanwhile) {
    let meanwhile = Meanwhile::default();
    let (written, comes) = (AtomicBool::new(false), Arc::clone(&meanwhile));
    let decided = Decided::new(|_, _| say("over")).agent("default", move |n, seen| {
        if n == 2 && !written.swap(true, Ordering::SeqCst) {
            let (memory, session, write) = comes.get().expect("it is set before the turn");
            let (session, at, write) = (*session, seen.now, write.clone());
            let commit = memory.commit(Commit { session, at, write });
            let commit = commit.now_or_never().expect("memory answers at once");
            commit.expect("it is admitted");
        }
        look(n, looks).into()
    });
    (Stage::new(decided), meanwhile)
}

fn calls(dump: &Dump) -> Vec<String> {
    let all = words(&dump.items);
    all.into_iter()
        .filter(|word| word.starts_with("result "))
        .collect()
}

fn results(n: u32) -> Vec<String> {
    (0..n).map(|n| format!("result c{n}")).collect()
}

#[tokio::test(start_paused = true)]
async fn step_9_pure_steps_that_are_finished_at_once_share_a_commit() {
    // Admission, claim, and a commit for each 16 steps, the last with the end.
    for (looks, commits) in [(1, 3), (10, 3), (16, 3), (17, 4), (40, 5)] {
        let stage = looking(looks);
        let session = stage.create("default").await;
        let host = stage.start();
        host.prompt(session, "go").await;
        let dump = stage.idle(session).await;
        assert_eq!(host.link.commits(), commits, "{looks} looks");
        assert_eq!(calls(&dump), results(looks));
        assert_eq!(stage.plugins.scripted.count("look"), looks as usize);
        assert_eq!(stage.count(session, "step.started").await, looks as usize);
    }
}

#[tokio::test(start_paused = true)]
async fn step_9_a_call_that_takes_longer_is_durable_before_it_is_waited_for() {
    let stage = looking(3);
    let session = stage.create("default").await;
    let gate = stage.plugins.scripted.hold("look");
    let host = stage.start();
    host.prompt(session, "go").await;
    for n in 0..3 {
        let begun = |tail: &mainstay_core::tail::Tail| tail.step.is_some();
        stage.until(session, "an open step", begun).await;
        let dump = stage.dump(session).await;
        assert_eq!(stage.count(session, "step.started").await, n + 1);
        assert_eq!(calls(&dump), results(n as u32));
        gate.notify_one();
        let settled = move |tail: &mainstay_core::tail::Tail| {
            tail.session.turn.is_none() || tail.session.head > dump.events.len() as u64
        };
        stage.until(session, "its result", settled).await;
    }
    let dump = stage.idle(session).await;
    assert_eq!(calls(&dump), results(3));
    assert_eq!(stage.plugins.scripted.count("look"), 3);
}

#[tokio::test(start_paused = true)]
async fn step_9_the_result_of_a_call_that_acts_waits_for_no_step_ahead() {
    let decided = Decided::new(|_, _| say("over")).agent("default", |n, _| {
        let step = match n {
            0 => tools(&[("c0", "put")]),
            _ => look(n, 4),
        };
        step.into()
    });
    let stage = Stage::new(decided);
    let session = stage.create("default").await;
    let host = stage.start();
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    assert_eq!(calls(&dump), results(4));
    // Admission, claim; the put's decision and its start; its result with the first look's decision; the
    // rest.
    assert_eq!(host.link.commits(), 6);
}

#[tokio::test(start_paused = true)]
async fn step_3_what_ran_ahead_of_a_commit_that_never_came_leaves_no_trace() {
    for after in [false, true] {
        let stage = looking(5);
        let session = stage.create("default").await;
        let fates: Fates = Box::new(move |commit, _| match &commit.write {
            Write::Append(_) if after => Fate::DieAfter,
            Write::Append(_) => Fate::DieBefore,
            _ => Fate::Pass,
        });
        let host = stage.start_with(fates);
        host.prompt(session, "go").await;
        host.link.died().await;
        assert_eq!(stage.plugins.scripted.count("look"), 5, "all ran ahead");
        let stored = stage.count(session, "step.started").await;
        assert_eq!(stored, if after { 5 } else { 0 });
        host.kill();
        let _next = stage.start();
        let dump = stage.idle(session).await;
        assert_eq!(calls(&dump), results(5));
        assert_eq!(stage.count(session, "step.started").await, 5);
        assert_eq!(stage.count(session, "input.promoted").await, 1);
        let again = if after { 5 } else { 10 };
        assert_eq!(stage.plugins.scripted.count("look"), again);
    }
}

#[tokio::test(start_paused = true)]
async fn inbox_5_a_steer_that_overtakes_steps_ahead_is_in_the_next_view() {
    let (stage, meanwhile) = overtaken(5);
    let session = stage.create("default").await;
    let steer = Write::Admit {
        input: InputId::new(),
        delivery: Delivery::Steer,
        content: prompt("and this"),
    };
    let set = meanwhile.set((Arc::clone(&stage.memory), session, steer));
    assert!(set.is_ok());
    let host = stage.start();
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    // Steers first: the prompt's own promotion was ahead, too.
    assert_eq!(user_texts(&dump), ["and this", "go"]);
    let bodies = stage.bodies(session).await;
    let at = |wanted: &dyn Fn(&EventBody) -> bool| bodies.iter().position(wanted).unwrap();
    let promoted = at(&|body| matches!(body, EventBody::InputPromoted { .. }));
    let first = at(&|body| matches!(body, EventBody::StepStarted(_)));
    assert!(promoted < first, "{bodies:?}");
    assert_eq!(stage.count(session, "execution.started").await, 1);
    assert_eq!(stage.count(session, "execution.succeeded").await, 1);
    assert_eq!(calls(&dump), results(5));
    // All five had run ahead, and are run again: they are pure.
    assert_eq!(stage.plugins.scripted.count("look"), 10);
}

#[tokio::test(start_paused = true)]
async fn int_2_an_interrupt_that_overtakes_steps_ahead_ends_the_turn_without_them() {
    let (stage, meanwhile) = overtaken(5);
    let session = stage.create("default").await;
    let interrupt = Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    let set = meanwhile.set((Arc::clone(&stage.memory), session, interrupt));
    assert!(set.is_ok());
    let host = stage.start();
    host.prompt(session, "go").await;
    let dump = stage.idle(session).await;
    assert_eq!(calls(&dump), results(0));
    let bodies = stage.bodies(session).await;
    assert!(
        matches!(
            bodies.last(),
            Some(EventBody::ExecutionInterrupted {
                reason: InterruptReason::User,
                ..
            })
        ),
        "{bodies:?}"
    );
}
