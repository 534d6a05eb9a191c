//! What a log costs and whom it reaches: its size beside the transcript, the rows of a long one that are
//! read, and followers who are told nothing.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::commit::{Commit, End, Write};
use mainstay_core::event::{Delivery, EventBody, SessionCreated};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::live::Hub;
use mainstay_core::model::{FinishReason, Message};
use mainstay_core::node::{self, Followed};
use mainstay_core::plugin::{Action, Compact, LocalEvent, ModelEvent, Summary};
use mainstay_test_simulation::plugins::{Scripted, results, say};
use mainstay_test_simulation::world::{World, prompt, user_texts};
use mainstay_test_support::build;

const DEADLINE: Duration = Duration::from_secs(60);

fn created() -> SessionCreated {
    SessionCreated {
        agent: "default".into(),
        ..SessionCreated::default()
    }
}

/// The prompts are put into the store behind the node's back, and what followers could hear from is
/// another's than the one that runs the sessions.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_12_twenty_turns_finish_and_all_is_followed_without_a_hint() {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let sessions: Vec<SessionId> = (0..20).map(|_| SessionId::new()).collect();
    // Not long ago, or their policy would hold them back.
    let at = world.store.now().await.unwrap();
    for session in &sessions {
        let session = *session;
        let write = Write::Create(created());
        world
            .store
            .commit(Commit { session, at, write })
            .await
            .unwrap();
    }
    let process = world.start(None);
    let followers = sessions.iter().map(|session| {
        let (store, hub) = (Arc::clone(&world.store), Hub::default());
        let poll_every = world.settings.poll_every;
        let mut log = Box::pin(node::log(store, hub, *session, 0, true, poll_every));
        tokio::spawn(async move {
            let mut seqs: Vec<Seq> = Vec::new();
            loop {
                match log.next().await.expect("it goes on").unwrap() {
                    Followed::Synced(_) => {}
                    Followed::Event(record) => {
                        seqs.push(record.seq);
                        if record.kind == "execution.succeeded" {
                            return seqs;
                        }
                    }
                }
            }
        })
    });
    let followers: Vec<_> = followers.collect();
    for session in &sessions {
        let write = Write::Admit {
            input: InputId::new(),
            delivery: Delivery::Queue,
            content: prompt("go"),
        };
        let commit = Commit {
            session: *session,
            at,
            write,
        };
        world.store.commit(commit).await.unwrap();
    }
    for (session, follower) in sessions.iter().zip(followers) {
        let seqs = tokio::time::timeout(DEADLINE, follower).await;
        let seqs = seqs.expect("the turn ends and is followed").unwrap();
        let dump = world.idle(*session).await;
        assert_eq!(user_texts(&dump), ["go"]);
        assert_eq!(seqs, (1..=dump.events.len() as Seq).collect::<Vec<_>>());
    }
    assert_eq!(world.plugins.request_count(), 20);
    drop(process);
}

/// An answer of `bytes` in small pieces, a pause now and then so that they are flushed in parts.
fn long(bytes: usize, call: Option<&str>) -> Vec<LocalEvent> {
    const PIECE: &str = "sixty-four bytes of \"text\", with what JSON has to escape, and so\n";
    let mut answer: Vec<LocalEvent> = (0..bytes / PIECE.len())
        .map(|n| LocalEvent {
            after_ms: u32::from(n % 200 == 199) * 30,
            event: ModelEvent::TextDelta(PIECE.into()),
        })
        .collect();
    let last = match call {
        Some(id) => {
            let id: String = id.into();
            let start = ModelEvent::ToolCallStart {
                id: id.clone(),
                tool: "look".into(),
            };
            let arguments = ModelEvent::ToolCallDelta {
                id: id.clone(),
                arguments: "{}".into(),
            };
            vec![
                start,
                arguments,
                ModelEvent::ToolCallEnd { id },
                ModelEvent::Finished(FinishReason::ToolCalls),
            ]
        }
        None => vec![ModelEvent::Finished(FinishReason::Stop)],
    };
    answer.extend(
        last.into_iter()
            .map(|event| LocalEvent { after_ms: 0, event }),
    );
    answer
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn log_18_the_log_is_hardly_more_than_the_transcripts() {
    const SESSIONS: usize = 40;
    const BYTES: usize = 5 * 1024 * 1024 / SESSIONS;
    let world = World::new(Scripted::new(|request, _| match results(request) {
        n @ 0..3 => long(BYTES / 4, Some(["a", "b", "c"][n])),
        _ => long(BYTES / 4, None),
    }));
    let process = world.start(None);
    let mut sessions = Vec::new();
    for _ in 0..SESSIONS {
        let session = process.session().await;
        process.prompt(session, "go").await;
        sessions.push(session);
    }
    let (mut logged, mut said) = (0, 0);
    for session in sessions {
        let dump = world.until(session, "its idleness", |dump| {
            let session = dump.session.as_ref().unwrap();
            dump.claim.is_none() && session.turn.is_none() && session.last_turn.is_some()
        });
        let dump = dump.await;
        let transcript: u64 = dump.items.iter().map(|item| item.text_bytes()).sum();
        assert!(transcript > 64 * 1024, "{transcript}");
        said += transcript as usize;
        let data = dump
            .events
            .iter()
            .map(|record| record.data.to_string().len());
        logged += data.sum::<usize>();
    }
    assert!(said > 5_000_000, "{said}");
    assert!(
        logged * 2 <= said * 3,
        "{logged} bytes of events for {said} bytes of transcripts"
    );
}

/// Rows that are read until the next request of a session of so many events goes out, the context
/// beginning 50 events before its end.
async fn rows_read(events: Seq) -> (usize, Vec<Message>) {
    let world = World::new(Scripted::new(|_, _| say("ok")));
    let session = SessionId::new();
    let store = &world.store;
    let write = Write::Create(created());
    store.commit(build::commit(session, write)).await.unwrap();
    let input = InputId::new();
    let fence = build::fence();
    store
        .commit(build::admit(session, input, Delivery::Queue, "begin"))
        .await
        .unwrap();
    store.commit(build::claim(session, fence)).await.unwrap();
    let write = async |events: Vec<EventBody>| {
        let done = store
            .commit(build::append(session, fence, events))
            .await
            .unwrap();
        done.tail.session.head
    };
    let note = || EventBody::RunnerNoted {
        parts: build::text("x"),
    };
    let mut head = write(vec![
        build::turn_started(),
        EventBody::InputPromoted { input },
    ])
    .await;
    let through = loop {
        let left = events - 50 - head;
        if left == 0 {
            break head;
        }
        head = write((0..left.min(1000)).map(|_| note()).collect()).await;
    };
    let compact = Action::Compact(Compact {
        through,
        summary: Summary::Text("before".into()),
    });
    let step = write(vec![build::step_started(compact)]).await;
    let compacted = EventBody::ContextCompacted {
        step,
        through,
        summary: build::text("before"),
    };
    head = write(vec![compacted]).await;
    head = write((0..events - 2 - head).map(|_| note()).collect()).await;
    assert_eq!(write(vec![build::turn_ended()]).await, head + 1);
    let ended = store
        .commit(build::end(session, fence, End::Succeeded))
        .await
        .unwrap();
    assert_eq!(ended.tail.session.head, events);

    let process = world.start(None);
    process.prompt(session, "go").await;
    let asked = async {
        while world.plugins.request_count() == 0 {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    tokio::time::timeout(DEADLINE, asked)
        .await
        .expect("the model is asked");
    let rows = process.link.rows();
    let messages = world.plugins.requests.lock().unwrap()[0].messages.clone();
    (rows, messages)
}

#[tokio::test]
async fn log_19_a_step_of_a_long_session_reads_no_more_than_one_of_a_short_one() {
    let (short, wanted) = rows_read(60).await;
    let (long, messages) = rows_read(100_000).await;
    // The summary, what was noted since, and the prompt.
    assert_eq!(wanted.len(), 1 + 46 + 1);
    assert_eq!(messages, wanted);
    assert!(short >= 46, "{short}: what the request holds was read");
    assert!(
        long <= 2 * short,
        "{long} rows, and {short} of a short session"
    );
}
