//! Reverts: staged, undone, final, and what is beside them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use mainstay_core::commit::{Refused, Write};
use mainstay_core::event::{Delivery, SessionCreated};
use mainstay_core::history::ItemBody;
use mainstay_core::id::SessionId;
use mainstay_core::model::text_of;
use mainstay_core::tail::{InputStatus, Scope};
use mainstay_test_simulation::decisions::stage::{Stage, a_signal, an_answer, words};
use mainstay_test_simulation::decisions::{Decided, approval, done, signal, wait};
use mainstay_test_simulation::plugins;
use mainstay_test_simulation::world::{World, prompt};
use mainstay_test_support::rebuild;

use super::{chat, counting, echo, last_request, one_call, refused, rows, shown, state, texts};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_1_twenty_creations_at_once_make_one_session() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = SessionId::new();
    let create = || {
        let node = Arc::clone(&process.node);
        async move {
            let created = SessionCreated {
                agent: "default".into(),
                title: Some("the one".into()),
                ..SessionCreated::default()
            };
            let existed = node.create(session, created).await.unwrap();
            (existed, node.tail(session).await.unwrap().session.clone())
        }
    };
    let all = futures::future::join_all((0..20).map(|_| tokio::spawn(create()))).await;
    let all: Vec<_> = all.into_iter().map(|done| done.unwrap()).collect();
    assert_eq!(all.iter().filter(|(existed, _)| !existed).count(), 1);
    assert!(all.iter().all(|(_, session)| *session == all[0].1));
    let again = create().await;
    assert_eq!(again, (true, all[0].1.clone()));
    assert_eq!(world.kinds(session).await, ["session.created"]);
    assert_eq!(world.store.sessions(None, 10).await.unwrap().len(), 1);
}

#[tokio::test]
async fn edit_2_a_revert_hides_and_its_undoing_shows_all_again() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    let before = world.dump(session).await;
    assert_eq!(texts(&before.items).len(), 6);
    let fourth = before.items[3].seq;

    let through = process.node.revert(session, fourth).await.unwrap();
    assert_eq!(through, before.items[2].seq);
    assert_eq!(texts(&shown(&world, session).await), ["a", "to a", "b"]);
    let reverted = world.dump(session).await;
    assert_eq!(reverted.events[..before.events.len()], before.events[..]);
    assert_eq!(reverted.items, before.items, "nothing is gone yet");
    assert_eq!(rebuild(&reverted.events).unwrap(), rows(reverted.clone()));
    // Deeper, and back at once.
    process
        .node
        .revert(session, before.items[1].seq)
        .await
        .unwrap();
    assert_eq!(texts(&shown(&world, session).await), ["a"]);

    process.node.clear_revert(session).await.unwrap();
    assert_eq!(shown(&world, session).await, before.items);
    let refused = refused(process.node.clear_revert(session).await);
    assert!(matches!(refused, Refused::NotReverted(_)), "{refused:?}");
    process.prompt(session, "d").await;
    world.idle(session).await;
    let wanted = ["a", "to a", "b", "to b", "c", "to c", "d"];
    assert_eq!(last_request(&world), wanted);
}

#[tokio::test]
async fn edit_2_what_was_reverted_is_in_no_request_and_stays_in_the_log() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    let before = world.dump(session).await;
    process
        .node
        .revert(session, before.items[3].seq)
        .await
        .unwrap();
    process.prompt(session, "d").await;
    let after = world.idle(session).await;
    assert_eq!(last_request(&world), ["a", "to a", "b", "d"]);
    assert_eq!(texts(&after.items), ["a", "to a", "b", "d", "to d"]);
    assert_eq!(after.events[..before.events.len()], before.events[..]);
    assert!(after.session.unwrap().head > before.session.unwrap().head);
    assert_eq!(rebuild(&after.events).unwrap().items, after.items);
    // It is final.
    let refused = refused(process.node.clear_revert(session).await);
    assert!(matches!(refused, Refused::NotReverted(_)), "{refused:?}");
}

#[tokio::test]
async fn edit_2_a_revert_to_the_beginning_leaves_nothing_and_behind_the_end_is_refused() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a"]).await;
    let before = world.dump(session).await;
    let last = before.items.last().unwrap().seq;
    let refused = refused(process.node.revert(session, last + 1).await);
    assert!(
        matches!(refused, Refused::NothingToRevert(_)),
        "{refused:?}"
    );
    assert_eq!(world.dump(session).await, before);

    assert_eq!(process.node.revert(session, 1).await.unwrap(), 0);
    assert!(shown(&world, session).await.is_empty());
    process.prompt(session, "b").await;
    world.idle(session).await;
    assert_eq!(last_request(&world), ["b"]);
}

#[tokio::test]
async fn edit_3_revert_and_admission_take_effect_in_one_commit() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    let other = process.session().await;
    let taken = process.prompt(other, "elsewhere").await;
    world.idle(other).await;
    let items = world.items(session).await;
    process.node.revert(session, items[3].seq).await.unwrap();
    let reverted = world.dump(session).await;

    let conflict = process
        .node
        .admit(session, taken, Delivery::Queue, prompt("x"))
        .await;
    assert!(matches!(refused(conflict), Refused::InputConflict { .. }));
    assert_eq!(world.dump(session).await, reverted);

    world.memory.take_log();
    let input = process.prompt(session, "d").await;
    let log = world.memory.log();
    let admission = &log[0];
    assert!(matches!(admission.commit.write, Write::Admit { .. }));
    let kinds: Vec<String> = admission
        .events
        .iter()
        .map(|event| event.body.kind())
        .collect();
    assert_eq!(kinds, ["revert.committed", "input.admitted"]);
    world.idle(session).await;
    // The first admission answers a retry, and reverts nothing again.
    let again = process
        .node
        .admit(session, input, Delivery::Queue, prompt("d"))
        .await
        .unwrap();
    assert_eq!(again.status, InputStatus::Promoted);
    assert_eq!(world.count(session, "revert.committed").await, 1);
}

#[tokio::test]
async fn edit_2_a_cancelled_session_takes_no_revert_and_can_be_forked() {
    let world = World::new(echo());
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b"]).await;
    let items = world.dump(session).await.items;
    process.node.revert(session, items[2].seq).await.unwrap();
    process.node.cancel(session).await.unwrap();
    let before = world.dump(session).await;
    let cancelled = Refused::Cancelled(session);
    let again = process.node.revert(session, items[1].seq).await;
    assert_eq!(refused(again), cancelled);
    assert_eq!(refused(process.node.clear_revert(session).await), cancelled);
    assert_eq!(world.dump(session).await, before);
    let fork = SessionId::new();
    process.node.fork(session, None, fork).await.unwrap();
    assert_eq!(texts(&shown(&world, fork).await), ["a", "to a"]);
}

#[tokio::test]
async fn edit_3_a_running_session_is_busy() {
    let world = World::new(one_call("act"));
    let gate = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("act") == 1)
        .await;
    let before = world.dump(session).await;
    let busy = refused(process.node.revert(session, before.items[0].seq).await);
    assert!(matches!(busy, Refused::Busy(_)), "{busy:?}");
    assert_eq!(world.dump(session).await, before);
    gate.notify_one();
    world.idle(session).await;
}

#[tokio::test]
async fn edit_3_what_was_pending_before_the_revert_enters_behind_it() {
    let world = World::new(one_call("act"));
    let _gate = world.plugins.hold("act");
    let (process, session) = world.begin("go").await;
    world
        .until(session, "the call", |_| world.plugins.count("act") == 1)
        .await;
    process.prompt(session, "later").await;
    process.node.interrupt(session).await.unwrap();
    world.plugins.let_go("act");
    let stopped = world.idle(session).await;
    // The prompt has lost its intent: it is pending, and nothing runs.
    process
        .node
        .revert(session, stopped.items[1].seq)
        .await
        .unwrap();
    process.node.wake(session, Scope::All).await.unwrap();
    let after = world.idle(session).await;
    assert_eq!(last_request(&world)[..2], ["go", "later"]);
    assert_eq!(texts(&shown(&world, session).await), texts(&after.items));
    assert_eq!(texts(&after.items)[..2], ["go", "later"]);
    assert!(after.session.unwrap().revert.is_none());
}

#[tokio::test]
async fn edit_2_a_runners_state_goes_back_with_the_history() {
    let world = World::new(counting(Arc::default()));
    let process = world.start(None);
    // Two decisions a turn, the second after its last message.
    let session = chat(&world, &process, &["a", "b", "c"]).await;
    assert_eq!(state(&world, session).await, 6);
    let items = world.items(session).await;
    process.node.revert(session, items[4].seq).await.unwrap();
    // A fork of what is shown has what is shown.
    let fork = SessionId::new();
    process.node.fork(session, None, fork).await.unwrap();
    assert_eq!(state(&world, fork).await, 4);
    process.prompt(session, "d").await;
    world.idle(session).await;
    assert_eq!(state(&world, session).await, 4 + 2);

    // To a place behind the revert that became final: the reverted states do not come back.
    let items = world.items(session).await;
    assert_eq!(texts(&items)[4..], ["d", "to d"]);
    process.node.revert(session, items[5].seq).await.unwrap();
    process.prompt(session, "e").await;
    world.idle(session).await;
    assert_eq!(state(&world, session).await, 4 + 2);
    assert_eq!(last_request(&world), ["a", "to a", "b", "to b", "d", "e"]);
}

/// Waits for what its last message names.
fn asks_first() -> Decided {
    Decided::new(|_, _| plugins::say("never asked")).agent("default", |_, seen| {
        let last = seen.items.last().map(|item| &item.body);
        let asked = match last {
            Some(ItemBody::User(parts)) => text_of(parts),
            _ => String::new(),
        };
        match asked.as_str() {
            "pay" => wait([approval("pay")]).into(),
            "build" => wait([signal("built")]).into(),
            _ => done().into(),
        }
    })
}

/// What a revert hides is no answer to what is asked anew, and no signal for a later wait.
#[tokio::test(start_paused = true)]
async fn edit_2_what_is_hidden_for_good_ends_no_later_wait() {
    let stage = Stage::new(asks_first());
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "hello").await;
    stage.idle(session).await;
    host.prompt(session, "pay").await;
    stage.waiting(session).await;
    let yes = || an_answer("pay", None);
    host.node.answer(session, yes()).await.unwrap();
    stage.idle(session).await;
    host.send(session, Delivery::Steer, a_signal("built")).await;
    let dump = stage.idle(session).await;
    host.node.revert(session, dump.items[1].seq).await.unwrap();

    host.prompt(session, "pay").await;
    let tail = stage.waiting(session).await;
    assert!(tail.session.arrived.approvals["pay"].answer.is_none());
    host.node.answer(session, yes()).await.unwrap();
    stage.idle(session).await;
    host.prompt(session, "build").await;
    stage.waiting(session).await;
    host.send(session, Delivery::Steer, a_signal("built")).await;
    let dump = stage.idle(session).await;
    let told = words(&dump.items);
    assert_eq!(told.len(), 5, "{told:?}");
}

#[tokio::test]
async fn edit_2_a_revert_beside_one_that_became_final_hides_what_is_there_by_then() {
    let compact = Arc::new(AtomicBool::new(false));
    let world = World::new(counting(Arc::clone(&compact)));
    let process = world.start(None);
    let session = chat(&world, &process, &["a", "b"]).await;
    let old = world.dump(session).await.items;
    compact.store(true, Ordering::SeqCst);
    for text in ["c", "d"] {
        process.prompt(session, text).await;
        world.idle(session).await;
    }
    let last = world.dump(session).await.items;
    let last = last.iter().rev().nth(1).unwrap().seq;

    // One has read the history, and the other changes it.
    let newest = old.last().unwrap().seq;
    let gate = world.memory.gate(move |commit| {
        matches!(&commit.write, Write::Revert { revert, .. } if revert.through > newest)
    });
    let node = Arc::clone(&process.node);
    let slow = tokio::spawn(async move { node.revert(session, last).await });
    gate.reached(1).await;
    process.node.revert(session, old[2].seq).await.unwrap();
    process.prompt(session, "n").await;
    world.idle(session).await;
    gate.open();
    assert_eq!(slow.await.unwrap().unwrap(), old[1].seq);

    assert_eq!(texts(&shown(&world, session).await), ["a", "to a"]);
    process.prompt(session, "e").await;
    let dump = world.idle(session).await;
    assert_eq!(last_request(&world), ["a", "to a", "e"]);
    assert_eq!(rebuild(&dump.events).unwrap(), rows(dump.clone()));
}

/// A signal that came before the place is there for the next wait, as it was for the hidden one.
#[tokio::test(start_paused = true)]
async fn edit_2_a_revert_gives_back_the_signal_that_a_hidden_wait_took() {
    let waits = |n| matches!(n, 2 | 4);
    let stage = Stage::new(Decided::new(|_, _| plugins::say("over")).agent(
        "default",
        move |n, _| match waits(n) {
            true => wait([signal("s")]).into(),
            false => done().into(),
        },
    ));
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "a").await;
    stage.idle(session).await;
    host.send(session, Delivery::Queue, a_signal("s")).await;
    let before = stage.idle(session).await;
    let left = before.session.unwrap().arrived.signals;
    assert_eq!(left.len(), 1);

    host.prompt(session, "b").await;
    let dump = stage.idle(session).await;
    assert!(dump.session.unwrap().arrived.signals.is_empty());
    let hidden = dump.items.iter().rev().find(|item| item.is_message());
    host.node
        .revert(session, hidden.unwrap().seq)
        .await
        .unwrap();
    // It is kept while the revert is undone and made again.
    host.node.clear_revert(session).await.unwrap();
    let tail = stage.tail(session).await;
    assert!(tail.session.arrived.signals.is_empty());
    host.node
        .revert(session, hidden.unwrap().seq)
        .await
        .unwrap();
    host.prompt(session, "c").await;
    let dump = stage.idle(session).await;
    assert_eq!(words(&dump.items).last().unwrap(), "user c");
    let now = dump.session.as_ref().unwrap();
    assert!(now.turn.is_none() && now.arrived.signals.is_empty());
    assert_eq!(stage.count(session, "turn.ended").await, 4);
    assert_eq!(rebuild(&dump.events).unwrap(), rows(dump.clone()));
}
