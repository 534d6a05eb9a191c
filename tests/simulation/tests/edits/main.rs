//! Histories that are forked, reverted, deleted, exported and taken in again, through whole nodes.

mod files;
mod forks;
mod kills;
mod replays;
mod reverts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures::TryStreamExt as _;
use mainstay_core::commit::Refused;
use mainstay_core::export::{ImportError, Imported, Importer, export};
use mainstay_core::history::{Item, ItemBody};
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::model::text_of;
use mainstay_core::node::Node;
use mainstay_core::plugin::{Action, Compact, Decision, Summary, Trigger};
use mainstay_core::port::{Dump, StoreError};
use mainstay_test_simulation::plugins::{
    Scripted, call, last_text, plain_loop, results, said, say, sent,
};
use mainstay_test_simulation::world::{Process, World};

/// A model that says to what it answers.
fn echo() -> Scripted {
    Scripted::new(|request, _| say(&format!("to {}", last_text(request))))
}

/// A model that calls `tool` once and then is done.
fn one_call(tool: &'static str) -> Scripted {
    Scripted::new(move |request, _| {
        if results(request) == 0 {
            call(&[("c", tool, "{}")])
        } else {
            say("done")
        }
    })
}

/// A session that was prompted with each of these, and is idle.
async fn chat(world: &World, process: &Process, prompts: &[&str]) -> SessionId {
    let session = process.session().await;
    for text in prompts {
        process.prompt(session, text).await;
        world.idle(session).await;
    }
    session
}

/// The messages of a history, in a word each.
fn texts(items: &[Item]) -> Vec<String> {
    let text = |item: &Item| match &item.body {
        ItemBody::User(parts) => Some(text_of(parts)),
        ItemBody::Assistant(answer) => Some(said(&answer.content)),
        ItemBody::ToolResult(result) => Some(format!("result {}", result.call)),
        ItemBody::Compaction(compaction) => Some(text_of(&compaction.summary)),
        _ => None,
    };
    items.iter().filter_map(text).collect()
}

/// What readers see of a history.
async fn shown(world: &World, session: SessionId) -> Vec<Item> {
    let all = mainstay_core::model::Range {
        after: 0,
        through: Seq::MAX,
    };
    let order = mainstay_core::history::Order::OldestFirst;
    world.store.items(session, all, order, 1000).await.unwrap()
}

fn last_request(world: &World) -> Vec<String> {
    sent(world.plugins.requests.lock().unwrap().last().unwrap())
}

#[track_caller]
fn refused<T: std::fmt::Debug>(answer: Result<T, StoreError>) -> Refused {
    match answer {
        Err(StoreError::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

async fn exported(world: &World, session: SessionId) -> Vec<String> {
    let lines = export(Arc::clone(&world.store), session, "here");
    lines.try_collect().await.expect("the session is exported")
}

async fn feed(
    node: &Arc<Node>,
    strict: bool,
    lines: &[String],
) -> (Result<Imported, ImportError>, Imported) {
    let mut importer = Importer::new(Arc::clone(node), strict);
    for line in lines {
        if let Err(error) = importer.line(line).await {
            return (Err(error), importer.so_far().clone());
        }
    }
    let done = importer.finish().await;
    (done, importer.so_far().clone())
}

/// Takes an export in, whole.
async fn import(node: &Arc<Node>, lines: &[String]) -> Imported {
    let imported = feed(node, true, lines).await.0.expect("it is an export");
    assert_eq!(imported.refused, None);
    imported
}

/// The rows of a session, without what says where it lives.
fn rows(mut dump: Dump) -> Dump {
    if let Some(session) = &mut dump.session {
        session.origin = None;
    }
    dump.claim = None;
    dump
}

/// Waits for three whole looks of the recovery loop.
async fn three_looks(process: &Process) {
    let seen = process.link.scans();
    let looks = async {
        // The first may be one that had begun.
        while process.link.scans() < seen + 4 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), looks)
        .await
        .expect("the recovery loop looks");
}

/// A runner that counts its decisions in its state, and compacts once it is told to.
fn counting(compact: Arc<AtomicBool>) -> Scripted {
    Scripted::with_runner(
        move |view| {
            let before = view.state.as_ref().map_or(0, |state| state.data[0]);
            let decision = plain_loop(view)?;
            let compacts = view.trigger == Trigger::TurnStarted;
            let action = if compacts && compact.swap(false, Ordering::SeqCst) {
                Action::Compact(Compact {
                    through: view.fresh.after,
                    summary: Summary::Text("summary".into()),
                })
            } else {
                decision.action
            };
            Ok(Decision {
                entries: Vec::new(),
                action,
                state: Some(vec![before + 1]),
            })
        },
        |request, _| say(&format!("to {}", last_text(request))),
    )
}

async fn state(world: &World, session: SessionId) -> u8 {
    let tail = world.tail(session).await;
    let mut kept = tail.session.states.iter();
    kept.next().map_or(0, |(_, state)| state.data[0])
}
