//! Sessions in the middle of an answer, and when a node has gone on with them, both told by their logs
//! alone: whoever runs them may be in this process or in another, alive or not.

use std::time::{Duration, Instant};

use mainstay_core::commit::{Commit, Write};
use mainstay_core::event::{Delivery, InputContent, SessionCreated};
use mainstay_core::id::{InputId, Millis, Seq, SessionId};
use mainstay_core::model::Part;
use mainstay_core::port::{Clock as _, Store, SystemClock};

/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(120);
/// How often logs are looked at. What is measured is the time in the log, not that of the look.
const LOOK: Duration = Duration::from_millis(50);
/// Events of a page.
const PAGE: u32 = 1024;

/// Wall time, by which events are stamped.
#[must_use]
pub fn now() -> Millis {
    SystemClock::default().wall()
}

/// What makes the provider `parrot` answer for about so long, a word every 50 ms.
#[must_use]
pub fn answer_for(span: Duration) -> String {
    let words = usize::try_from(span.as_millis() / 50).expect("a short answer");
    format!("slow 50 {}", "word ".repeat(words))
}

/// New sessions of the agent with this prompt, for a node to find.
///
/// # Panics
/// The store refuses.
pub async fn prompted(
    store: &dyn Store,
    agent: &str,
    prompt: &str,
    count: usize,
) -> Vec<SessionId> {
    let one = async |_| {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: agent.to_owned(),
            ..SessionCreated::default()
        };
        let content = InputContent::Prompt {
            parts: vec![Part::Text(prompt.to_owned())],
        };
        let admit = Write::Admit {
            input: InputId::new(),
            delivery: Delivery::Queue,
            content,
        };
        for write in [Write::Create(created), admit] {
            let at = now();
            let committed = store.commit(Commit { session, at, write }).await;
            committed.expect("a commit");
        }
        session
    };
    futures::future::join_all((0..count).map(one)).await
}

/// Waits until a piece of an answer is durable in each session.
///
/// # Panics
/// They are not there in time, or the store refuses.
pub async fn answering(store: &dyn Store, sessions: &[SessionId]) {
    nth(store, sessions, "step.output", 1).await;
}

/// Waits until a second execution has started in each session, and gives when each did.
///
/// # Panics
/// They have not in time, or the store refuses.
pub async fn resumed(store: &dyn Store, sessions: &[SessionId]) -> Vec<Millis> {
    nth(store, sessions, "execution.started", 2).await
}

/// Waits for the nth event of a kind in each session, and gives their times.
async fn nth(store: &dyn Store, sessions: &[SessionId], kind: &str, nth: usize) -> Vec<Millis> {
    let deadline = Instant::now() + DEADLINE;
    let mut times = Vec::with_capacity(sessions.len());
    for session in sessions {
        let (mut cursor, mut seen): (Seq, usize) = (0, 0);
        let at = 'found: loop {
            let page = store.events(*session, cursor, PAGE).await;
            let (records, _) = page.expect("a page").expect("the session");
            for record in &records {
                cursor = record.seq;
                seen += usize::from(record.kind == kind);
                if seen == nth {
                    break 'found record.at;
                }
            }
            assert!(Instant::now() < deadline, "{session} has no {kind} {nth}");
            if records.is_empty() {
                tokio::time::sleep(LOOK).await;
            }
        };
        times.push(at);
    }
    times
}
