//! Sessions in which a newer build has left an event of a type that this one does not know.

use futures::StreamExt as _;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, End, Refused, Write};
use mainstay_core::event::{Delivery, EventBody, EventDraft, InputContent, SessionCreated};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::node::Followed;
use mainstay_core::outbox::{self, Notice};
use mainstay_core::plugin::{Action, Child};
use mainstay_core::port::StoreError;
use mainstay_core::tail::{NotRunnable, Scope};
use mainstay_test_simulation::plugins::{Scripted, say};
use mainstay_test_simulation::world::{Process, World, prompt};
use mainstay_test_support::build;

fn named(text: &str) -> bool {
    text.contains("\"later.kind\" version 7")
}

fn decisions(world: &World) -> usize {
    world.plugins.decisions.lock().unwrap().len()
}

/// A session that is found by the loop and runs: the loop has looked at all the others by then.
async fn another_is_found(world: &World, process: &Process) {
    let other = process.session().await;
    let admit = Write::Admit {
        input: InputId::new(),
        delivery: Delivery::Queue,
        content: prompt("go"),
    };
    world
        .store
        .commit(build::commit(other, admit))
        .await
        .unwrap();
    let ran = |dump: &mainstay_core::port::Dump| {
        let done = dump.events.iter().any(|e| e.kind == "execution.succeeded");
        done && dump.claim.is_none()
    };
    world.until(other, "the loop to find it", ran).await;
}

#[tokio::test]
async fn log_20_a_session_with_an_unknown_event_is_read_and_not_run() {
    let world = World::new(Scripted::new(|_, _| say("hi")));
    let (process, session) = world.begin("go").await;
    world.idle(session).await;
    world.memory.plant(session, "later.kind", 7);
    // Of a type that is known, in a version that is not.
    world.memory.plant(session, "turn.started", 2);
    let foreign = world.tail(session).await.session.head - 1;
    let asked = decisions(&world);

    let input = InputId::new();
    let content = InputContent::Prompt {
        parts: build::text("more"),
    };
    let node = &process.node;
    let admitted = node
        .admit(session, input, Delivery::Queue, content)
        .await
        .unwrap();
    assert!(named(&admitted.held.unwrap()));
    node.wake(session, Scope::All).await.unwrap();
    for forced in [None, Some(5)] {
        let answer = tokio::time::timeout(
            std::time::Duration::from_secs(20),
            node.run(session, forced),
        );
        let refused = answer.await.unwrap().unwrap_err();
        assert!(named(&refused.to_string()), "{refused}");
        assert!(matches!(
            refused,
            StoreError::Refused(Refused::NotRunnable(NotRunnable::Foreign(_)))
        ));
    }

    // Read from the start, and from the event itself.
    let head = world.tail(session).await.session.head;
    for after in [0, foreign] {
        let read: Vec<_> = node.log(session, after, false).collect().await;
        let mut seqs = Vec::new();
        let mut synced = None;
        for one in read {
            match one.unwrap() {
                Followed::Event(record) => seqs.push(record.seq),
                Followed::Synced(seq) => synced = Some(seq),
            }
        }
        let known = (after + 1..=head).filter(|seq| *seq != foreign && *seq != foreign + 1);
        assert_eq!(seqs, known.collect::<Vec<_>>());
        assert_eq!(synced, Some(head));
    }

    another_is_found(&world, &process).await;
    let next = world.start(None);
    process.kill();
    another_is_found(&world, &next).await;
    let dump = world.dump(session).await;
    assert!(dump.claim.is_none());
    let started = dump.events.iter().filter(|e| e.kind == "execution.started");
    assert_eq!(started.count(), 1);
    assert!(named(dump.session.unwrap().foreign.as_deref().unwrap()));
    let pending = world.store.inputs(session, false).await.unwrap();
    assert_eq!(
        pending.iter().map(|input| input.id).collect::<Vec<_>>(),
        [input]
    );
    // Each of the two others asked its runner twice, as this one did before.
    assert_eq!(decisions(&world), asked * 3);
}

#[tokio::test]
async fn log_20_a_claim_on_it_is_left_to_the_newer_build() {
    let world = World::new(Scripted::new(|_, _| say("hi")));
    let session = SessionId::new();
    let store = &world.store;
    let input = InputId::new();
    store.commit(build::create(session)).await.unwrap();
    let admit = build::admit(session, input, Delivery::Queue, "go");
    store.commit(admit).await.unwrap();
    let claim = build::claim(session, build::fence());
    store.commit(claim).await.unwrap();
    world.memory.plant(session, "later.kind", 7);
    world.memory.restart();
    let before = world.dump(session).await;
    let process = world.start(None);
    another_is_found(&world, &process).await;
    assert_eq!(before, world.dump(session).await);
}

/// What such a session is to learn stays owed.
#[tokio::test]
async fn log_20_a_notice_for_it_waits() {
    let world = World::new(Scripted::new(|_, _| say("hi")));
    let (parent, store) = (SessionId::new(), &world.store);
    let commit = async |commit: Commit| store.commit(commit).await.unwrap();
    commit(build::create(parent)).await;
    let input = InputId::new();
    commit(build::admit(parent, input, Delivery::Queue, "go")).await;
    let fence: Fence = build::fence();
    commit(build::claim(parent, fence)).await;
    let spawn = Action::Spawn(vec![Child {
        key: "k".into(),
        agent: None,
        prompt: build::text("do"),
    }]);
    let events = [
        build::turn_started(),
        EventBody::InputPromoted { input },
        build::step_started(spawn),
        build::turn_ended(),
    ];
    commit(build::commit(
        parent,
        Write::Append(Append {
            fence,
            expected_head: None,
            begins: true,
            events: events.into_iter().map(EventDraft::new).collect(),
            end: Some(End::Succeeded),
        }),
    ))
    .await;
    let child = outbox::child_session(parent, "k");
    let owed = world.tail(parent).await.session.outbox.clone();
    let [Notice::Spawn { parent: hung, .. }] = &owed[..] else {
        panic!("{owed:?}")
    };
    let created = SessionCreated {
        agent: "default".into(),
        parent: Some(hung.clone()),
        ..SessionCreated::default()
    };
    commit(build::commit(child, Write::Create(created))).await;
    world.memory.plant(child, "later.kind", 7);
    commit(build::commit(parent, Write::Cancel)).await;

    let process = world.start(None);
    another_is_found(&world, &process).await;
    another_is_found(&world, &process).await;
    let owed = world.tail(parent).await.session.outbox.clone();
    assert!(matches!(&owed[..], [Notice::Cancel { .. }]), "{owed:?}");
    assert!(!world.tail(child).await.session.cancelled);
}
