//! Trees of sessions: what a parent makes, waits for, stops and takes with it.

use mainstay_core::commit::{Commit, Refused, Write};
use mainstay_core::event::{
    Delivery, EventBody, InputContent, InterruptReason, SessionCreated, TurnOutcome,
};
use mainstay_core::history::{ChildOutcome, ChildResult, ItemBody};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::{FailureClass, text_of};
use mainstay_core::outbox::{Notice, child_session};
use mainstay_core::plugin::{Decision, LocalEvent, ModelRequest, SpawnRefusal, Trigger};
use mainstay_core::port::{Dump, Store as _};
use mainstay_core::tail::{NotRunnable, Status, Tail};
use mainstay_test_simulation::decisions::link::{Fate, Fates};
use mainstay_test_simulation::decisions::stage::{Host, Stage, a_signal, refusal, words};
use mainstay_test_simulation::decisions::{
    Decided, Seen, ask, children, done, fail, signal, spawn, wait,
};
use mainstay_test_simulation::plugins::{last_text, say};
use mainstay_test_simulation::world::{lines, prompt, user_texts};

/// Longer than any test waits.
const FOR_EVER_MS: u32 = 1_000_000_000;

/// An answer that begins after a while.
fn later(after_ms: u32, text: &str) -> Vec<LocalEvent> {
    let mut answer = say(text);
    answer[0].after_ms = after_ms;
    answer
}

/// A model that answers the first prompt of a child late, and every other at once.
fn slow_children(after_ms: u32) -> impl Fn(&ModelRequest, usize) -> Vec<LocalEvent> {
    move |request, _| match last_text(request) {
        text if text.starts_with("you are") => later(after_ms, &format!("{text}, done")),
        text => say(&text),
    }
}

/// Spawns `a` and `b`, waits for both, and is done.
fn two_children(n: u32, _: &Seen) -> Decision {
    match n {
        0 => spawn(&[("a", "child"), ("b", "child")]).into(),
        1 => wait([children(&["a", "b"])]).into(),
        _ => done().say("both are back").into(),
    }
}

fn results_of(dump: &Dump) -> Vec<ChildResult> {
    let results = dump.items.iter().filter_map(|item| match &item.body {
        ItemBody::Child(result) => Some(result.clone()),
        _ => None,
    });
    results.collect()
}

async fn exists(stage: &Stage, session: SessionId) -> bool {
    stage.memory.tail(session).await.unwrap().is_some()
}

/// Whether its model call is in flight.
fn in_flight(tail: &Tail) -> bool {
    tail.claim.is_some() && tail.step.is_some()
}

/// A fate for one commit, before or after it.
fn dies_at(point: Option<(usize, bool)>) -> Fates {
    Box::new(move |_, n| match point {
        Some((at, true)) if at == n => Fate::DieBefore,
        Some((at, false)) if at == n => Fate::DieAfter,
        _ => Fate::Pass,
    })
}

#[tokio::test(start_paused = true)]
async fn wait_7_a_parent_holds_no_claim_and_gets_each_result_once() {
    let stage = Stage::new(Decided::new(slow_children(60_000)).agent("default", two_children));
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    let (a, b) = (child_session(parent, "a"), child_session(parent, "b"));
    for child in [a, b] {
        let tail = stage.until(child, "the child to run", in_flight).await;
        assert_eq!(tail.session.depth(), 1);
        assert_eq!(tail.session.parent.as_ref().unwrap().session, parent);
    }
    let waiting = stage.waiting(parent).await;
    assert_eq!(waiting.status(stage.now()), Status::Waiting);
    assert_eq!(waiting.session.outbox, []);
    let dump = stage.idle(parent).await;
    let results = results_of(&dump);
    let mut keys: Vec<&str> = results.iter().map(|result| result.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"]);
    for result in &results {
        let ChildOutcome::Done(parts) = &result.outcome else {
            panic!("{result:?}")
        };
        assert_eq!(text_of(parts), format!("you are {}, done", result.key));
    }
    // It was claimed to begin and to go on, not in between.
    let suspended = stage.count(parent, "execution.suspended").await;
    assert!((1..=2).contains(&suspended), "{}", lines(&dump));
    assert_eq!(stage.count(parent, "step.started").await, 2);
    let triggers: Vec<Trigger> = {
        let views = stage.plugins.views.lock().unwrap();
        let own = views.iter().filter(|view| view.session == parent);
        own.map(|view| view.trigger.clone()).collect()
    };
    // What the courier writes down may come between a question and its answer; then it is asked again.
    assert_eq!(triggers[1], Trigger::Spawned);
    assert!(matches!(triggers.last(), Some(Trigger::WaitEnded(_))));
    for child in [a, b] {
        let dump = stage.idle(child).await;
        assert_eq!(dump.session.as_ref().unwrap().outbox, []);
        assert_eq!(user_texts(&dump).len(), 1);
    }
    stage.check_family(parent).await;
}

#[tokio::test(start_paused = true)]
async fn wait_7_a_later_turn_of_a_child_is_no_second_result() {
    let stage = Stage::new(Decided::new(slow_children(0)).agent("default", two_children));
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    stage.idle(parent).await;
    let a = child_session(parent, "a");
    host.prompt(a, "once more").await;
    stage.idle(a).await;
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    let dump = stage.idle(parent).await;
    assert_eq!(results_of(&dump).len(), 2, "{}", lines(&dump));
    assert_eq!(user_texts(&stage.dump(a).await), ["you are a", "once more"]);
    assert_eq!(
        stage.count(a, "notice.delivered").await,
        1,
        "it reported again"
    );
}

#[tokio::test(start_paused = true)]
async fn wait_7_two_nodes_that_bring_the_same_notices_bring_each_once() {
    let stage = Stage::new(
        Decided::new(slow_children(500))
            .agent("default", |n, _| match n {
                0 => spawn(&[("a", "other"), ("b", "other"), ("c", "child")]).into(),
                1 => wait([children(&["a", "b", "c"])]).into(),
                _ => done().into(),
            })
            .agent("other", two_children),
    );
    // Each node comes to every outbox before the other has emptied it.
    let gate = stage
        .memory
        .gate(|commit| matches!(commit.write, Write::Deliver { .. }));
    let (first, second) = (stage.start(), stage.start());
    let parent = stage.create("default").await;
    first.prompt(parent, "go").await;
    gate.reached(2).await;
    gate.open();
    let dump = stage.idle(parent).await;
    assert_eq!(results_of(&dump).len(), 3, "{}", lines(&dump));
    for key in ["a", "b"] {
        let child = child_session(parent, key);
        let dump = stage.idle(child).await;
        assert_eq!(results_of(&dump).len(), 2, "{}", lines(&dump));
        assert_eq!(user_texts(&dump), [format!("you are {key}")]);
        assert_eq!(stage.count(child, "turn.ended").await, 1);
    }
    stage.check_family(parent).await;
    assert!(!first.link.is_dead() && !second.link.is_dead());
}

#[tokio::test(start_paused = true)]
async fn wait_7_the_same_key_never_makes_two_children() {
    let stage = Stage::new(
        Decided::new(slow_children(0)).agent("default", |n, _| match n {
            0 | 1 => spawn(&[("a", "child")]).into(),
            2 => wait([children(&["a"])]).into(),
            _ => done().into(),
        }),
    );
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    let dump = stage.idle(parent).await;
    let row = dump.session.as_ref().unwrap();
    assert_eq!(row.last_turn, Some(TurnOutcome::Done));
    assert_eq!(row.children.len(), 1);
    assert_eq!(
        user_texts(&stage.idle(row.children[0].session).await),
        ["you are a"]
    );
    stage.check_family(parent).await;
}

#[tokio::test(start_paused = true)]
async fn wait_8_the_parent_of_a_child_that_is_deleted_hears_that_it_was_cancelled() {
    // While it runs, and before the parent waits for it.
    for waits in [true, false] {
        let stage = Stage::new(Decided::new(slow_children(FOR_EVER_MS)).agent(
            "default",
            move |n, _| match n {
                0 => spawn(&[("a", "child")]).into(),
                1 if !waits => wait([signal("go on")]).into(),
                1 | 2 if n == 1 + u32::from(!waits) => wait([children(&["a"])]).into(),
                _ => done().into(),
            },
        ));
        let host = stage.start();
        let parent = stage.create("default").await;
        host.prompt(parent, "go").await;
        let a = child_session(parent, "a");
        stage.until(a, "the child to run", in_flight).await;
        stage.waiting(parent).await;
        assert!(host.node.delete(a).await.unwrap());
        assert!(!exists(&stage, a).await);
        if !waits {
            host.send(parent, Delivery::Steer, a_signal("go on")).await;
        }
        let dump = stage.idle(parent).await;
        let results = results_of(&dump);
        assert_eq!(results.len(), 1, "{}", lines(&dump));
        assert_eq!(results[0].outcome, ChildOutcome::Cancelled);
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    }
}

#[tokio::test(start_paused = true)]
async fn wait_9_what_stands_below_a_deleted_session_is_cancelled_and_bars_no_other() {
    let stage = Stage::new(
        Decided::new(slow_children(FOR_EVER_MS))
            .agent("default", |n, _| match n {
                0 => spawn(&[("a", "other"), ("b", "child")]).into(),
                1 => wait([children(&["a", "b"])]).into(),
                _ => done().into(),
            })
            .agent("other", |n, _| match n {
                0 => spawn(&[("g", "child")]).into(),
                1 => wait([children(&["g"])]).into(),
                _ => done().into(),
            }),
    );
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    let (a, b) = (child_session(parent, "a"), child_session(parent, "b"));
    let g = child_session(a, "g");
    for running in [b, g] {
        stage.until(running, "it to run", in_flight).await;
    }
    stage.waiting(parent).await;
    assert!(host.node.delete(parent).await.unwrap());
    for below in [a, b, g] {
        let dump = stage.idle(below).await;
        assert!(dump.session.unwrap().cancelled);
    }

    // Another session under that id, whose children would have the same ids.
    let again = Write::Create(SessionCreated {
        agent: "default".into(),
        ..SessionCreated::default()
    });
    stage.write(parent, again).await.unwrap();
    host.prompt(parent, "go").await;
    let dump = stage.idle(parent).await;
    let results = results_of(&dump);
    assert_eq!(results.len(), 2, "{}", lines(&dump));
    for result in &results {
        assert!(
            matches!(&result.outcome, ChildOutcome::Failed(error) if error.contains("another key")),
            "{result:?}"
        );
    }
    let row = dump.session.as_ref().unwrap();
    assert_eq!(row.last_turn, Some(TurnOutcome::Done));
    assert_eq!(row.outbox, []);
}

#[tokio::test(start_paused = true)]
async fn wait_8_a_parent_learns_how_each_child_ended() {
    enum End {
        Fails,
        IsCancelled,
        IsQuarantined,
        ModelFails,
    }
    for (end, word) in [
        (End::Fails, "I give up"),
        (End::ModelFails, "no such model"),
        (End::IsCancelled, "cancelled"),
        (End::IsQuarantined, "crashed"),
    ] {
        let answer = |request: &ModelRequest, _: usize| match last_text(request).as_str() {
            "you are broken" => vec![LocalEvent {
                after_ms: 0,
                event: mainstay_core::plugin::ModelEvent::Failed(mainstay_core::model::Failure {
                    class: FailureClass::InvalidRequest,
                    message: "no such model".into(),
                    retry_after_ms: None,
                }),
            }],
            _ => later(FOR_EVER_MS, "never"),
        };
        let agent = match end {
            End::Fails => "other",
            _ => "child",
        };
        let key = match end {
            End::ModelFails => "broken",
            _ => "c",
        };
        let mut stage = Stage::new(
            Decided::new(answer)
                .agent("default", move |n, _| match n {
                    0 => spawn(&[(key, agent)]).into(),
                    1 => wait([children(&[key])]).into(),
                    _ => done().into(),
                })
                .agent("other", |_, _| fail("I give up").into()),
        );
        stage.settings.max_attempts = 0;
        let mut host = stage.start();
        let parent = stage.create("default").await;
        host.prompt(parent, "go").await;
        let child = child_session(parent, key);
        match end {
            End::Fails | End::ModelFails => {}
            End::IsCancelled => {
                stage.until(child, "the child to run", in_flight).await;
                host.node.cancel(child).await.unwrap();
            }
            End::IsQuarantined => {
                stage.until(child, "the child to run", in_flight).await;
                stage.waiting(parent).await;
                host.kill();
                host = stage.start();
            }
        }
        let dump = stage.idle(parent).await;
        let results = results_of(&dump);
        assert_eq!(results.len(), 1, "{}", lines(&dump));
        assert_eq!(results[0].key, key);
        let told = match (&end, &results[0].outcome) {
            (End::Fails | End::ModelFails, ChildOutcome::Failed(error)) => error.clone(),
            (End::IsCancelled, ChildOutcome::Cancelled) => "cancelled".into(),
            (End::IsQuarantined, ChildOutcome::Quarantined(reason)) => reason.clone(),
            (_, other) => panic!("{other:?}"),
        };
        assert!(told.contains(word), "{told}");
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
        if matches!(end, End::IsQuarantined) {
            // Released, it goes on; its parent has its result already.
            host.node.resume(child).await.unwrap();
            stage.until(child, "the child to run", in_flight).await;
            host.node.cancel(child).await.unwrap();
            stage.idle(child).await;
            assert_eq!(results_of(&stage.idle(parent).await).len(), 1);
        }
        stage.check_family(parent).await;
    }
}

#[tokio::test(start_paused = true)]
async fn wait_9_cancelling_a_parent_takes_its_whole_subtree_with_it() {
    // `a` has a child of its own; `c` is just being made when the cancel comes.
    let stage = Stage::new(
        Decided::new(slow_children(FOR_EVER_MS))
            .agent("default", |n, _| match n {
                0 => spawn(&[("a", "other"), ("b", "child")]).into(),
                1 => wait([children(&["a", "b"])]).into(),
                2 => spawn(&[("c", "child")]).into(),
                _ => wait([children(&["a", "b", "c"])]).into(),
            })
            .agent("other", |n, _| match n {
                0 => spawn(&[("g", "child")]).into(),
                _ => wait([children(&["g"])]).into(),
            }),
    );
    let parent = stage.create("default").await;
    let a = child_session(parent, "a");
    let (b, c, g) = (
        child_session(parent, "b"),
        child_session(parent, "c"),
        child_session(a, "g"),
    );
    let making = stage
        .memory
        .gate(move |commit| commit.session == c && matches!(commit.write, Write::Create(_)));
    let host = stage.start();
    host.prompt(parent, "go").await;
    for running in [b, g] {
        stage.until(running, "a child to run", in_flight).await;
    }
    host.steer(parent, "one more").await;
    making.reached(1).await;
    assert!(!exists(&stage, c).await);
    host.node.cancel(parent).await.unwrap();
    host.kill();
    making.open();
    let host = stage.start();
    let family = [parent, a, b, c, g];
    for session in family {
        let cancelled = |tail: &Tail| {
            tail.session.cancelled && tail.claim.is_none() && !tail.session.is_owing()
        };
        stage.until(session, "the mark", cancelled).await;
    }
    let asked = stage.plugins.asked();
    let requests = stage.plugins.scripted.request_count();
    tokio::time::sleep(std::time::Duration::from_secs(300)).await;
    assert_eq!(stage.plugins.asked(), asked);
    assert_eq!(stage.plugins.scripted.request_count(), requests);
    let started = stage.count(c, "execution.started").await;
    assert_eq!(started, 0, "what was being made has run");
    assert_eq!(
        stage.dump(c).await.inputs,
        [],
        "it was made to be cancelled"
    );
    for session in family {
        let row = stage.tail(session).await;
        assert!(row.session.turn.is_none());
        assert_eq!(row.status(stage.now()), Status::Cancelled);
        let child = InputContent::Child(ChildResult {
            key: "x".into(),
            outcome: ChildOutcome::Cancelled,
        });
        for content in [prompt("more"), child, a_signal("go")] {
            let admitted = host
                .node
                .admit(session, InputId::new(), Delivery::Steer, content)
                .await;
            assert_eq!(refusal(admitted), Refused::Cancelled(session));
        }
        let forced = refusal(host.node.run(session, Some(4)).await);
        assert_eq!(forced, Refused::NotRunnable(NotRunnable::Cancelled));
    }
    stage.check_family(parent).await;
}

#[tokio::test(start_paused = true)]
async fn wait_14_a_spawn_past_a_limit_names_it_and_makes_nobody() {
    let mut stage = Stage::new(
        Decided::new(slow_children(60_000))
            .agent("default", |n, seen| match (n, &seen.trigger) {
                (0, _) => spawn(&[("a", "child"), ("b", "other")]).into(),
                (1, _) => spawn(&[("c", "child")]).into(),
                (2, Trigger::SpawnRefused(SpawnRefusal::TooMany)) => {
                    wait([children(&["a", "b"])]).into()
                }
                (2, other) => fail(&format!("asked for {other:?}")).into(),
                _ => done().into(),
            })
            .agent("other", |n, seen| match (n, &seen.trigger) {
                (0, _) => spawn(&[("deep", "child")]).into(),
                (1, Trigger::SpawnRefused(SpawnRefusal::TooDeep)) => ask(seen).into(),
                (1, other) => fail(&format!("asked for {other:?}")).into(),
                _ => done().into(),
            }),
    );
    for agent in stage.config.agents.values_mut() {
        agent.max_children = 2;
        agent.max_depth = 1;
    }
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    let dump = stage.idle(parent).await;
    let row = dump.session.as_ref().unwrap();
    assert_eq!(row.last_turn, Some(TurnOutcome::Done), "{}", lines(&dump));
    assert_eq!(row.children.len(), 2);
    assert!(!exists(&stage, child_session(parent, "c")).await);
    let b = child_session(parent, "b");
    assert!(!exists(&stage, child_session(b, "deep")).await);
    let refused: Vec<SpawnRefusal> = [stage.bodies(parent).await, stage.bodies(b).await]
        .concat()
        .iter()
        .filter_map(|body| match body {
            EventBody::StepStarted(step) => step.spawn_refused,
            _ => None,
        })
        .collect();
    assert_eq!(refused, [SpawnRefusal::TooMany, SpawnRefusal::TooDeep]);
    for result in results_of(&dump) {
        assert!(
            matches!(result.outcome, ChildOutcome::Done(_)),
            "{result:?}"
        );
    }
    stage.check_family(parent).await;
}

#[tokio::test(start_paused = true)]
async fn wait_14_a_spawn_of_three_with_room_for_two_makes_none_of_them() {
    let mut stage = Stage::new(
        Decided::new(slow_children(0)).agent("default", |n, _| match n {
            0 => spawn(&[("a", "child"), ("b", "child"), ("c", "child")]).into(),
            _ => done().into(),
        }),
    );
    for agent in stage.config.agents.values_mut() {
        agent.max_children = 2;
    }
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    let dump = stage.idle(parent).await;
    assert!(dump.session.as_ref().unwrap().children.is_empty());
    for key in ["a", "b", "c"] {
        assert!(!exists(&stage, child_session(parent, key)).await);
    }
}

/// A tree in which the parent waits for `a` and `b` and not for `free`, and `a` waits for `g`.
fn cascade() -> Decided {
    Decided::new(slow_children(FOR_EVER_MS))
        .agent("default", |n, _| match n {
            0 => spawn(&[("a", "other"), ("b", "child"), ("free", "child")]).into(),
            1 => wait([children(&["a", "b"])]).into(),
            _ => done().into(),
        })
        .agent("other", |n, _| match n {
            0 => spawn(&[("g", "child")]).into(),
            1 => wait([children(&["g"])]).into(),
            _ => done().into(),
        })
}

#[tokio::test(start_paused = true)]
async fn int_9_an_interrupt_stops_what_is_waited_for_and_nothing_else() {
    let stage = Stage::new(cascade());
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    let a = child_session(parent, "a");
    let (b, free, g) = (
        child_session(parent, "b"),
        child_session(parent, "free"),
        child_session(a, "g"),
    );
    for running in [b, free, g] {
        stage.until(running, "a child to run", in_flight).await;
    }
    for waiting in [parent, a] {
        stage.waiting(waiting).await;
    }
    assert!(host.node.interrupt(parent).await.unwrap());
    for stopped in [parent, a, b, g] {
        let dump = stage.idle(stopped).await;
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.last_turn, Some(TurnOutcome::Interrupted));
        assert!(!row.cancelled);
        assert_eq!(stage.count(stopped, "session.cancelled").await, 0);
        // One terminal each is among what `idle` has checked.
    }
    for stopped in [b, g] {
        let bodies = stage.bodies(stopped).await;
        let by_user = |body: &EventBody| {
            matches!(
                body,
                EventBody::ExecutionInterrupted {
                    reason: InterruptReason::User,
                    ..
                }
            )
        };
        assert_eq!(bodies.iter().filter(|body| by_user(body)).count(), 1);
    }
    tokio::time::sleep(std::time::Duration::from_secs(60)).await;
    assert!(in_flight(&*stage.tail(free).await));
    assert_eq!(stage.count(free, "interrupt.requested").await, 0);
    // Nothing was cancelled: a later prompt runs, and is the child's one result.
    for (child, word) in [(b, "again"), (g, "again"), (parent, "on")] {
        host.prompt(child, word).await;
        let dump = stage.idle(child).await;
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    }
    stage.check_family(parent).await;
}

#[tokio::test(start_paused = true)]
async fn int_9_an_interrupt_that_is_brought_twice_stops_once() {
    // `running`: whether the child has something to stop when the interrupt comes first.
    for running in [true, false] {
        let stage = Stage::new(Decided::new(slow_children(FOR_EVER_MS)).agent(
            "default",
            |n, _| match n {
                0 => spawn(&[("a", "child")]).into(),
                _ => wait([children(&["a"])]).into(),
            },
        ));
        let parent = stage.create("default").await;
        let a = child_session(parent, "a");
        // The child has the interrupt; its parent does not know that it was brought.
        let host = stage.start_with(Box::new(move |commit, _| match &commit.write {
            Write::Deliver {
                notice: Notice::Interrupt { .. },
            } => Fate::DieBefore,
            _ => Fate::Pass,
        }));
        host.prompt(parent, "go").await;
        stage.until(a, "the child to run", in_flight).await;
        stage.waiting(parent).await;
        if !running {
            host.node.interrupt(a).await.unwrap();
            stage.idle(a).await;
        }
        host.node.interrupt(parent).await.unwrap();
        host.link.died().await;
        host.kill();
        assert_eq!(stage.tail(parent).await.session.outbox.len(), 1);
        // What is asked of the child from now on is not what the parent's interrupt meant.
        stage.prompt(a, "you are needed").await;
        let _next = stage.start();
        let paid = |tail: &Tail| tail.session.outbox.is_empty();
        stage
            .until(parent, "the notice to be brought again", paid)
            .await;
        stage.until(a, "the child to run again", in_flight).await;
        tokio::time::sleep(std::time::Duration::from_secs(30)).await;
        let tail = stage.tail(a).await;
        assert!(
            in_flight(&tail) && !tail.claim.as_ref().unwrap().interrupt,
            "running {running}: {}",
            lines(&stage.dump(a).await)
        );
        stage.check_family(parent).await;
    }
}

#[tokio::test(start_paused = true)]
async fn int_9_an_interrupt_that_is_brought_again_beside_a_run_leaves_it_alone() {
    let stage = Stage::new(Decided::new(slow_children(FOR_EVER_MS)).agent(
        "default",
        |n, _| match n {
            0 => spawn(&[("a", "child")]).into(),
            _ => wait([children(&["a"])]).into(),
        },
    ));
    let parent = stage.create("default").await;
    let a = child_session(parent, "a");
    let host = stage.start();
    host.prompt(parent, "go").await;
    stage.until(a, "the child to run", in_flight).await;
    stage.waiting(parent).await;
    // Another node brings it at the same time, and is the one that marks it brought.
    let gate = stage.memory.gate(|commit| {
        matches!(
            &commit.write,
            Write::Deliver {
                notice: Notice::Interrupt { .. }
            }
        )
    });
    host.node.interrupt(parent).await.unwrap();
    gate.reached(1).await;
    stage.idle(a).await;
    host.prompt(a, "you are needed").await;
    stage.until(a, "the child to run again", in_flight).await;
    let second = stage.start();
    gate.reached(2).await;
    gate.open();
    let paid = |tail: &Tail| tail.session.outbox.is_empty();
    stage.until(parent, "the notice to be gone", paid).await;
    host.node
        .wake(parent, mainstay_core::tail::Scope::All)
        .await
        .unwrap();
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    let tail = stage.tail(a).await;
    assert!(in_flight(&tail), "{}", lines(&stage.dump(a).await));
    assert_eq!(stage.count(a, "interrupt.requested").await, 1);
    second.vanish();
}

/// Kills and continues once, if the process has died; gives the process that lives.
fn continued(stage: &Stage, host: Host) -> Host {
    if !host.link.is_dead() {
        return host;
    }
    host.kill();
    stage.start()
}

async fn spawn_with(point: Option<(usize, bool)>) -> usize {
    let stage = Stage::new(Decided::new(slow_children(500)).agent("default", two_children));
    let mut host = stage.start_with(dies_at(point));
    let parent = stage.create("default").await;
    stage.prompt(parent, "go").await;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        host = continued(&stage, host);
        let tail = stage.tail(parent).await;
        if tail.session.last_turn.is_some() && tail.claim.is_none() {
            break;
        }
    }
    let commits = host.link.commits();
    let dump = stage.idle(parent).await;
    let mut keys: Vec<String> = results_of(&dump).into_iter().map(|r| r.key).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["a", "b"], "{point:?}\n{}", lines(&dump));
    assert_eq!(stage.count(parent, "step.started").await, 2, "{point:?}");
    let row = dump.session.as_ref().unwrap();
    assert_eq!(row.last_turn, Some(TurnOutcome::Done));
    assert_eq!(row.children.len(), 2);
    for child in &row.children {
        let settled = |tail: &Tail| !tail.session.is_owing();
        stage
            .until(child.session, "the report to be brought", settled)
            .await;
        let dump = stage.idle(child.session).await;
        assert_eq!(user_texts(&dump), [format!("you are {}", child.key)]);
        assert_eq!(stage.count(child.session, "turn.ended").await, 1);
    }
    stage.check_family(parent).await;
    commits
}

#[tokio::test(start_paused = true)]
async fn wait_7_a_kill_at_every_commit_leaves_one_child_per_key_and_one_result_each() {
    let commits = spawn_with(None).await;
    // Those of three sessions, and of the courier between them.
    assert!(commits >= 16, "{commits}");
    for n in 0..commits {
        spawn_with(Some((n, true))).await;
        spawn_with(Some((n, false))).await;
    }
}

async fn cancel_with(point: Option<(usize, bool)>) -> usize {
    let stage = Stage::new(Decided::new(slow_children(FOR_EVER_MS)).agent("default", two_children));
    let mut host = stage.start_with(dies_at(point));
    let parent = stage.create("default").await;
    stage.prompt(parent, "go").await;
    // As soon as the children are owed, before the courier can have made them all.
    let owed = |commit: &Commit| {
        matches!(&commit.write, Write::Append(append) if append.events.iter().any(|draft| {
            matches!(&draft.body, EventBody::StepStarted(step)
                if matches!(step.action, mainstay_core::plugin::Action::Spawn(_)))
        }))
    };
    loop {
        let logged = stage.memory.log();
        if logged.iter().any(|logged| owed(&logged.commit)) {
            break;
        }
        tokio::time::sleep(std::time::Duration::from_millis(1)).await;
        host = continued(&stage, host);
    }
    stage.write(parent, Write::Cancel).await.unwrap();
    let (a, b) = (child_session(parent, "a"), child_session(parent, "b"));
    for session in [parent, a, b] {
        loop {
            host = continued(&stage, host);
            let tail = stage.memory.tail(session).await.unwrap();
            if tail.is_some_and(|tail| {
                tail.session.cancelled && tail.claim.is_none() && !tail.session.is_owing()
            }) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    // The last deliveries: nothing of them may bring anybody back.
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    host = continued(&stage, host);
    let commits = host.link.commits();
    let asked = stage.plugins.asked();
    tokio::time::sleep(std::time::Duration::from_secs(30)).await;
    assert_eq!(stage.plugins.asked(), asked, "{point:?}");
    for session in [parent, a, b] {
        let dump = stage.idle(session).await;
        let row = dump.session.as_ref().unwrap();
        assert!(
            row.cancelled && row.outbox.is_empty(),
            "{point:?}\n{}",
            lines(&dump)
        );
        assert_eq!(stage.count(session, "session.cancelled").await, 1);
    }
    assert_eq!(results_of(&stage.dump(parent).await), []);
    stage.check_family(parent).await;
    commits
}

#[tokio::test(start_paused = true)]
async fn wait_9_a_kill_at_every_commit_of_a_cancel_while_spawning_leaves_the_mark_on_all() {
    let commits = cancel_with(None).await;
    assert!(commits >= 8, "{commits}");
    for n in 0..commits {
        cancel_with(Some((n, true))).await;
        cancel_with(Some((n, false))).await;
    }
}

/// A state of a session that is waited for.
type Wanted = fn(&Tail) -> bool;

async fn interrupt_with(point: Option<(usize, bool)>) -> usize {
    let stage = Stage::new(cascade());
    let mut host = stage.start_with(dies_at(point));
    let parent = stage.create("default").await;
    stage.prompt(parent, "go").await;
    let a = child_session(parent, "a");
    let (b, free, g) = (
        child_session(parent, "b"),
        child_session(parent, "free"),
        child_session(a, "g"),
    );
    let parked = |tail: &Tail| tail.session.wait.is_some() && tail.claim.is_none();
    let ready: [(SessionId, Wanted); 5] = [
        (parent, parked),
        (a, parked),
        (b, in_flight),
        (free, in_flight),
        (g, in_flight),
    ];
    for (session, wanted) in ready {
        loop {
            host = continued(&stage, host);
            let tail = stage.memory.tail(session).await.unwrap();
            if tail.is_some_and(|tail| wanted(&tail)) {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    let write = Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    stage.write(parent, write).await.unwrap();
    for session in [parent, a, b, g] {
        loop {
            host = continued(&stage, host);
            let tail = stage.tail(session).await;
            if tail.session.turn.is_none() && tail.claim.is_none() && !tail.session.is_owing() {
                break;
            }
            tokio::time::sleep(std::time::Duration::from_millis(100)).await;
        }
    }
    tokio::time::sleep(std::time::Duration::from_secs(5)).await;
    host = continued(&stage, host);
    let commits = host.link.commits();
    stage
        .until(free, "the free child to run on", in_flight)
        .await;
    for session in [parent, a, b, g] {
        let dump = stage.idle(session).await;
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.last_turn, Some(TurnOutcome::Interrupted), "{point:?}");
        assert!(!row.cancelled && !row.reported);
        let asked = stage.count(session, "interrupt.requested").await;
        assert_eq!(asked, 1, "{point:?}\n{}", lines(&dump));
    }
    // Nothing was cancelled, so what is asked next runs.
    stage.prompt(b, "again").await;
    let again = |tail: &Tail| tail.session.last_turn == Some(TurnOutcome::Done);
    stage.until(b, "the next turn", again).await;
    assert_eq!(
        words(&stage.idle(b).await.items).last().unwrap(),
        "assistant"
    );
    stage.check_family(parent).await;
    commits
}

#[tokio::test(start_paused = true)]
async fn int_9_a_kill_at_every_commit_of_an_interrupt_stops_each_once() {
    let commits = interrupt_with(None).await;
    assert!(commits >= 20, "{commits}");
    for n in 0..commits {
        interrupt_with(Some((n, true))).await;
        interrupt_with(Some((n, false))).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_steer_ends_a_wait_for_children_and_their_results_still_come() {
    let stage = Stage::new(
        Decided::new(slow_children(60_000)).agent("default", |n, seen| match (n, &seen.trigger) {
            (0, _) => spawn(&[("a", "child")]).into(),
            (1, _) => wait([children(&["a"]), signal("stop")]).into(),
            (2, _) => wait([children(&["a"])]).into(),
            _ => done().into(),
        }),
    );
    let host = stage.start();
    let parent = stage.create("default").await;
    host.prompt(parent, "go").await;
    stage
        .until(child_session(parent, "a"), "the child", in_flight)
        .await;
    stage.waiting(parent).await;
    host.steer(parent, "how is it?").await;
    let dump = stage.idle(parent).await;
    assert_eq!(
        words(&dump.items),
        ["user go", "user how is it?", "child a"]
    );
    assert_eq!(stage.count(parent, "interrupt.requested").await, 0);
    stage.check_family(parent).await;
}
