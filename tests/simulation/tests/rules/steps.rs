//! Decisions: what is recorded of one, what an invalid one or a trap leaves behind.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use mainstay_core::event::EventBody;
use mainstay_core::history::ItemBody;
use mainstay_core::model::{Part, ToolCall};
use mainstay_core::plugin::{Action, Condition, Decision, Entry, GuestError, Trigger, Wait};
use mainstay_test_simulation::crash::Point;
use mainstay_test_simulation::plugins::{Scripted, ask, call, plain_loop, results, say};
use mainstay_test_simulation::world::{World, lines};

use super::{later, one_call};

type Decide = dyn Fn(&mainstay_core::plugin::View) -> Action + Send + Sync;

#[tokio::test]
async fn step_2_state_comes_back_byte_for_byte_in_another_process() {
    let bytes = vec![0, 255, 7, 128];
    let kept = bytes.clone();
    let world = World::new(Scripted::with_runner(
        move |view| {
            if view.trigger == Trigger::TurnStarted {
                return Ok(Decision {
                    entries: Vec::new(),
                    action: ask(view),
                    state: Some(kept.clone()),
                });
            }
            let state = view
                .state
                .as_ref()
                .ok_or_else(|| GuestError::Refused("no state".into()))?;
            if state.data != kept || state.runner != "scripted-runner" {
                return Err(GuestError::Refused("another state".into()));
            }
            plain_loop(view)
        },
        |request, _| {
            if results(request) == 0 {
                call(&[("c", "put", "{}")])
            } else {
                say("done")
            }
        },
    ));
    let _gate = world.plugins.hold("put");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("put") == 1)
        .await;
    process.kill();
    world.plugins.let_go("put");
    let _next = world.start(None);
    world.idle(session).await;
    assert_eq!(world.count(session, "execution.succeeded").await, 1);
}

#[tokio::test]
async fn step_5_what_a_runner_says_is_a_message_once() {
    let world = World::new(Scripted::with_runner(
        |_| {
            Ok(Decision {
                entries: vec![Entry::Say(vec![Part::Text("done without a model".into())])],
                action: Action::Done,
                state: None,
            })
        },
        |_, _| say("never"),
    ));
    let process = world.start(Some(Point::After(1)));
    let session = process.session().await;
    process.prompt(session, "go").await;
    tokio::time::timeout(Duration::from_secs(20), process.link.died())
        .await
        .unwrap();
    process.kill();
    let _next = world.start(None);
    let dump = world.idle(session).await;
    assert_eq!(lines(&dump).matches("done without a model").count(), 1);
    assert_eq!(world.plugins.request_count(), 0);
}

#[tokio::test]
async fn step_6_a_decision_that_names_what_does_not_exist_fails_by_its_name() {
    let cases: Vec<(Box<Decide>, &str)> = vec![
        (
            Box::new(|_| {
                Action::CallTools(vec![ToolCall {
                    id: "x".into(),
                    tool: "nowhere".into(),
                    arguments: "{}".into(),
                }])
            }),
            "\"nowhere\"",
        ),
        (
            Box::new(|view| {
                let Action::CallModel(mut call) = ask(view) else {
                    unreachable!()
                };
                call.model = Some(mainstay_core::history::ModelRef {
                    provider: "nobody".into(),
                    model: "m".into(),
                });
                Action::CallModel(call)
            }),
            "\"nobody\"",
        ),
        (
            Box::new(|view| {
                let Action::CallModel(mut call) = ask(view) else {
                    unreachable!()
                };
                call.hosted_tools = vec!["hosted-x".into()];
                Action::CallModel(call)
            }),
            "\"hosted-x\"",
        ),
        (
            Box::new(|view| {
                let Action::CallModel(mut call) = ask(view) else {
                    unreachable!()
                };
                call.transcript = vec![mainstay_core::plugin::Segment::Items(
                    mainstay_core::model::Range {
                        after: 0,
                        through: view.context.through + 100,
                    },
                )];
                Action::CallModel(call)
            }),
            "outside the history",
        ),
        (
            Box::new(|_| {
                Action::Wait(Wait {
                    until: vec![Condition::Children(vec!["never-had".into()])],
                })
            }),
            "\"never-had\"",
        ),
    ];
    for (decide, name) in cases {
        let turns = AtomicUsize::new(0);
        let world = World::new(Scripted::with_runner(
            move |view| {
                let begins = view.trigger == Trigger::TurnStarted;
                if turns.fetch_add(usize::from(begins), Ordering::SeqCst) > 0 {
                    return plain_loop(view);
                }
                Ok(Decision {
                    entries: Vec::new(),
                    action: decide(view),
                    state: None,
                })
            },
            |_, _| say("fine"),
        ));
        let (process, session) = world.begin("go").await;
        let dump = world.idle(session).await;
        let failed = dump
            .events
            .iter()
            .find(|e| e.kind == "execution.failed")
            .unwrap();
        assert!(
            failed.data["error"].as_str().unwrap().contains(name),
            "{failed:?}"
        );
        assert_eq!(world.plugins.request_count(), 0);
        assert!(world.plugins.calls.lock().unwrap().is_empty());
        assert_eq!(world.count(session, "step.started").await, 0);
        assert!(dump.session.unwrap().wait.is_none());
        process.prompt(session, "again").await;
        world.idle(session).await;
        assert_eq!(
            world.count(session, "execution.succeeded").await,
            1,
            "{name}"
        );
        assert_eq!(world.plugins.request_count(), 1);
    }
}

#[tokio::test]
async fn step_10_a_trap_keeps_the_results_before_it() {
    let world = World::new(Scripted::with_runner(
        |view| match &view.trigger {
            Trigger::ModelFinished(_) => Err(GuestError::Trap(
                "runner scripted (sha256:0123): trapped in decide".into(),
            )),
            _ => plain_loop(view),
        },
        |_, _| call(&[("c", "look", "{}")]),
    ));
    let (_process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    assert!(
        dump.items
            .iter()
            .any(|item| matches!(item.body, ItemBody::ToolResult(_)))
    );
    let failed = dump
        .events
        .iter()
        .find(|e| e.kind == "execution.failed")
        .unwrap();
    assert!(
        failed.data["error"]
            .as_str()
            .unwrap()
            .contains("sha256:0123")
    );
    assert_eq!(world.plugins.request_count(), 1, "no effect begins");
    assert_eq!(world.count(session, "step.started").await, 1);
}

#[tokio::test]
async fn step_1_decision_and_digests_are_in_the_log_before_the_effect() {
    let world = World::new(Scripted::new(|_, _| later(60_000, say("never"))));
    let (_process, session) = world.begin("go").await;
    world
        .until(session, "the request", |_| {
            world.plugins.request_count() == 1
        })
        .await;
    let dump = world.dump(session).await;
    let started = dump
        .events
        .iter()
        .find(|event| event.kind == "step.started")
        .unwrap();
    assert_eq!(started.data["runner"]["digest"], "runner-digest");
    assert_eq!(started.data["provider"]["digest"], "provider-digest");
    assert_eq!(started.data["toolboxes"][0]["digest"], "toolbox-digest");
    assert!(started.data["action"]["call_model"].is_object());
}

#[tokio::test]
async fn step_3_a_decision_that_was_not_committed_leaves_nothing() {
    let world = World::new(one_call("act"));
    // The claim is the first commit, the decision the second.
    let process = world.start(Some(Point::Before(1)));
    let session = process.session().await;
    process.prompt(session, "go").await;
    tokio::time::timeout(Duration::from_secs(20), process.link.died())
        .await
        .unwrap();
    assert_eq!(world.plugins.decisions.lock().unwrap().len(), 1);
    assert_eq!(world.plugins.request_count(), 0);
    process.kill();
    let _next = world.start(None);
    let dump = world.idle(session).await;
    let first = dump
        .events
        .iter()
        .filter(|event| event.kind == "step.started")
        .count();
    assert_eq!(first, 2, "one step with the call, one with the answer");
    assert_eq!(world.plugins.count("act"), 1);
}

#[tokio::test]
async fn step_4_the_last_items_of_a_long_history_are_read_alone() {
    use mainstay_core::history::Order;
    use mainstay_core::plugin::HistoryReader as _;
    use mainstay_test_support::build;
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let session = mainstay_core::id::SessionId::new();
    let fence = build::fence();
    world.store.commit(build::create(session)).await.unwrap();
    let input = mainstay_core::id::InputId::new();
    world
        .store
        .commit(build::admit(
            session,
            input,
            mainstay_core::event::Delivery::Queue,
            "go",
        ))
        .await
        .unwrap();
    world
        .store
        .commit(build::claim(session, fence))
        .await
        .unwrap();
    world
        .store
        .commit(build::append(session, fence, [build::turn_started()]))
        .await
        .unwrap();
    let note = EventBody::RunnerNoted {
        parts: vec![Part::Text("x".repeat(100))],
    };
    for _ in 0..10 {
        let notes = std::iter::repeat_n(note.clone(), 10_000);
        world
            .store
            .commit(build::append(session, fence, notes))
            .await
            .unwrap();
    }
    let head = world.tail(session).await.session.head;
    let history =
        mainstay_core::overlay::Overlay::new(Arc::clone(&world.store), session, head, Vec::new());
    let range = mainstay_core::model::Range {
        after: 0,
        through: head,
    };
    let (items, more) = history.read(range, Order::NewestFirst, 10).await.unwrap();
    assert!(more);
    assert_eq!(
        items.iter().map(|item| item.seq).collect::<Vec<_>>(),
        (head - 9..=head).rev().collect::<Vec<_>>()
    );
    assert!(
        items
            .iter()
            .map(mainstay_core::history::Item::text_bytes)
            .sum::<u64>()
            < 1_000_000
    );
}
