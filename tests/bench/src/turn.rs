//! The unit of work: one turn of a new session, from a prompt's admission until the session is idle.
//! Some sessions run at a time, each turn beginning where another ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use mainstay_core::event::{Delivery, InputContent, TurnOutcome};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Part;
use mainstay_core::node::Node;

use crate::report::processor_time;
use crate::world::World;

/// Steps that call a tool, in either kind of turn.
pub const CALLS: u32 = 10;

/// Of a talkative model.
const ANSWER_BYTES: usize = 8 * 1024;

/// What a turn is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The standard turn: ten steps, each a decision and a `pure` call that gives 300 bytes.
    Standard,
    /// Ten steps, each a decision, a model call that a provider answers by itself and a call like the
    /// above; and an eleventh with the model's last words.
    Model,
    /// As [`Kind::Model`], of a model that says 8 KiB word by word in each of the ten steps.
    Talkative,
}

impl Kind {
    pub const ALL: [Self; 3] = [Self::Standard, Self::Model, Self::Talkative];

    /// In tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Model => "with a model",
            Self::Talkative => "with a talkative model",
        }
    }

    /// Steps of a turn.
    #[must_use]
    pub fn steps(self) -> u32 {
        match self {
            Self::Standard => CALLS,
            Self::Model | Self::Talkative => CALLS + 1,
        }
    }

    /// The agent whose turns these are.
    #[must_use]
    pub fn agent(self) -> &'static str {
        match self {
            Self::Standard => "standard",
            Self::Model => "model",
            Self::Talkative => "talkative",
        }
    }

    pub(crate) fn runner(self) -> &'static str {
        match self {
            Self::Standard => "bench",
            Self::Model | Self::Talkative => "loop",
        }
    }

    /// The runner `bench` is done when one decision is left.
    pub(crate) fn allowance(self) -> u32 {
        match self {
            Self::Standard => CALLS + 1,
            Self::Model | Self::Talkative => CALLS + 2,
        }
    }

    fn prompt(self) -> String {
        let says = match self {
            Self::Standard => return "Go on.".to_owned(),
            Self::Model => "say One moment.".to_owned(),
            Self::Talkative => format!("slow 0 {}", "word ".repeat(ANSWER_BYTES / 5)),
        };
        format!("{says}\ncall thing\nthen\n").repeat(CALLS as usize) + "say Done."
    }
}

/// What some turns took.
pub struct Run {
    /// Of all together.
    pub elapsed: Duration,
    /// Of each.
    pub turns: Vec<Duration>,
    /// Of the processor, for all together.
    pub worked: Duration,
    pub sessions: Vec<SessionId>,
}

/// Runs `turns` turns, `at_once` at a time.
///
/// # Panics
/// A turn does not end as done.
pub async fn run(world: &Arc<World>, kind: Kind, at_once: usize, turns: usize) -> Run {
    let mut sessions = Vec::with_capacity(turns);
    for _ in 0..turns {
        sessions.push(world.session(kind).await);
    }
    let sessions = Arc::new(sessions);
    let next = Arc::new(AtomicUsize::new(0));
    let idle = processor_time();
    let began = Instant::now();
    let workers: Vec<_> = (0..at_once)
        .map(|_| {
            let (world, sessions) = (Arc::clone(world), Arc::clone(&sessions));
            let next = Arc::clone(&next);
            tokio::spawn(async move {
                let mut took = Vec::new();
                while let Some(session) = sessions.get(next.fetch_add(1, Ordering::Relaxed)) {
                    took.push(one(&world, kind, *session).await);
                }
                took
            })
        })
        .collect();
    let mut took = Vec::with_capacity(turns);
    for worker in workers {
        took.extend(worker.await.expect("the turns of a worker"));
    }
    Run {
        elapsed: began.elapsed(),
        turns: took,
        worked: processor_time() - idle,
        sessions: Arc::unwrap_or_clone(sessions),
    }
}

/// Runs one turn in a session that is idle and gives how long it took.
///
/// # Panics
/// It does not end as done.
pub async fn one(world: &World, kind: Kind, session: SessionId) -> Duration {
    let began = Instant::now();
    prompt(world, session, &kind.prompt()).await;
    let tail = world.node.idle(session).await.expect("an end");
    let took = began.elapsed();
    assert_eq!(tail.session.last_turn, Some(TurnOutcome::Done));
    took
}

/// Admits a prompt, which wakes the session.
///
/// # Panics
/// The node refuses.
pub async fn prompt(world: &World, session: SessionId, text: &str) {
    prompt_to(&world.node, session, text).await;
}

/// The same, by a node.
///
/// # Panics
/// The node refuses.
pub async fn prompt_to(node: &Node, session: SessionId, text: &str) {
    let content = InputContent::Prompt {
        parts: vec![Part::Text(text.to_owned())],
    };
    let admitted = node
        .admit(session, InputId::new(), Delivery::Queue, content)
        .await;
    admitted.expect("an admission");
}
