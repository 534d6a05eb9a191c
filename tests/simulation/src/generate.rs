//! From a seed to a script. Each seed leaves out a good part of what could happen, so that what it has
//! can happen often and together.

use mainstay_core::event::Delivery;
use mainstay_core::model::FailureClass;
use mainstay_core::tail::Scope;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{Rng as _, SeedableRng as _};

use crate::script::{Action, Agent, Answer, Call, Fault, How, Http, Script, Timed, Tool, When};

/// Longer than the lease of a simulated node, in ms.
const PAST_THE_LEASE_MS: u64 = 9_000;

/// The script of a seed.
#[must_use]
pub fn script(seed: u64) -> Script {
    let mut rng = StdRng::seed_from_u64(seed);
    let nodes = *[1, 2, 2, 3].choose(&mut rng).expect("not empty");
    let sessions: Vec<Agent> = (0..rng.random_range(1..=4))
        .map(|_| {
            *[
                Agent::Plain,
                Agent::Plain,
                Agent::Busy,
                Agent::Busy,
                Agent::Few,
                Agent::Curious,
                Agent::Patient,
                Agent::Parent,
                Agent::Asked,
            ]
            .choose(&mut rng)
            .expect("not empty")
        })
        .collect();
    let latency_ms = *[0, 0, 3, 20, 80].choose(&mut rng).expect("not empty");
    let within_ms = rng.random_range(2_000..=20_000);
    let mut made = Maker {
        nodes,
        sessions: sessions.len(),
        inputs: Vec::new(),
        forks: 0,
        signals: SIGNALS,
        rng,
    };
    let mut actions: Vec<Timed> = Vec::new();
    for session in 0..sessions.len() {
        for _ in 0..made.rng.random_range(1..=4) {
            let at_ms = made.rng.random_range(0..within_ms);
            let action = made.prompt(session);
            actions.push(Timed { at_ms, action });
        }
    }
    if made.rng.random_bool(if nodes == 1 { 0.3 } else { 0.1 }) {
        let first_ms = made.rng.random_range(0..within_ms);
        actions.extend(made.deaths(first_ms));
    }
    // Which kinds this seed has, and how often each.
    let weights: Vec<u32> = (0..KINDS)
        .map(|_| {
            *[0, 0, 1, 2, 4]
                .choose(&mut made.rng)
                .expect("five weights stand above")
        })
        .collect();
    let sum: u32 = weights.iter().sum();
    if sum > 0 {
        for _ in 0..made.rng.random_range(2..=24) {
            let at_ms = made.rng.random_range(0..within_ms);
            let mut at = made.rng.random_range(0..sum);
            let kind = weights.iter().position(|weight| {
                let here = at < *weight;
                at = at.saturating_sub(*weight);
                here
            });
            let action = made.action(kind.expect("a place below the sum"));
            actions.push(Timed { at_ms, action });
        }
    }
    actions.sort_by_key(|timed| timed.at_ms);
    Script {
        seed,
        nodes,
        sessions,
        latency_ms,
        actions,
    }
}

/// Signals have numbers behind this one, prompts before it.
const SIGNALS: u32 = 500_000;

/// Kinds of [`Maker::action`].
const KINDS: usize = 22;

struct Maker {
    nodes: usize,
    sessions: usize,
    /// The session of each input.
    inputs: Vec<usize>,
    forks: usize,
    /// The number of the last signal.
    signals: u32,
    rng: StdRng,
}

impl Maker {
    fn node(&mut self) -> usize {
        self.rng.random_range(0..self.nodes)
    }

    fn session(&mut self) -> usize {
        self.rng.random_range(0..self.sessions)
    }

    fn prompt(&mut self, session: usize) -> Action {
        let input = self.inputs.len() as u32;
        self.inputs.push(session);
        let delivery = self.delivery();
        let plan = (0..self.rng.random_range(0..=3))
            .map(|_| self.answer())
            .collect();
        Action::Prompt {
            input,
            session,
            node: self.node(),
            delivery,
            plan,
        }
    }

    fn delivery(&mut self) -> Delivery {
        if self.rng.random_bool(0.4) {
            Delivery::Steer
        } else {
            Delivery::Queue
        }
    }

    /// A number of a prompt and its session.
    fn input(&mut self) -> (u32, usize) {
        let input = self.rng.random_range(0..self.inputs.len());
        (input as u32, self.inputs[input])
    }

    fn action(&mut self, kind: usize) -> Action {
        let (node, session) = (self.node(), self.session());
        match kind {
            0 => self.prompt(session),
            1 => {
                let (input, session) = self.input();
                Action::Retry {
                    input,
                    session,
                    node,
                }
            }
            2 => {
                let (input, session) = self.input();
                Action::CancelInput {
                    input,
                    session,
                    node,
                }
            }
            3 => {
                let (input, session) = self.input();
                let delivery = self.delivery();
                Action::Redeliver {
                    input,
                    session,
                    node,
                    delivery,
                }
            }
            4 | 5 => Action::Interrupt {
                session,
                node,
                then: match self.rng.random_range(0..3) {
                    0 => None,
                    1 => Some(Scope::Steers),
                    _ => Some(Scope::All),
                },
            },
            6 => Action::Wake {
                session,
                node,
                scope: if self.rng.random_bool(0.5) {
                    Scope::Steers
                } else {
                    Scope::All
                },
            },
            7 => Action::Run {
                session,
                node,
                forced: self.rng.random_bool(0.3),
                gives_up_ms: self
                    .rng
                    .random_bool(0.3)
                    .then(|| self.rng.random_range(1..2_000)),
            },
            8 => Action::Follow { session, node },
            9 | 10 => {
                let commits = self.rng.random_range(1..=6);
                Action::Kill {
                    node,
                    when: match self.rng.random_range(0..5) {
                        0 => When::Now,
                        1 | 2 => When::Before(commits),
                        _ => When::After(commits),
                    },
                    back_ms: self.rng.random_range(1..4_000),
                }
            }
            11 => Action::Shutdown {
                node,
                back_ms: self.rng.random_range(1..2_000),
            },
            12 => Action::Stop {
                node,
                for_ms: *[50, 1_000, PAST_THE_LEASE_MS, 2 * PAST_THE_LEASE_MS]
                    .choose(&mut self.rng)
                    .expect("not empty"),
            },
            13 | 14 => self.fault(node),
            15 => {
                self.signals += 1;
                Action::Signal {
                    input: self.signals,
                    session,
                    node,
                }
            }
            16 => Action::Approve {
                session,
                node,
                approved: self.rng.random_bool(0.5),
            },
            17 => Action::Cancel { session, node },
            18 => Action::TakeOver { session, node },
            19 => {
                self.forks += 1;
                Action::Fork {
                    session,
                    node,
                    fork: self.forks,
                }
            }
            20 => match self.rng.random_range(0..3) {
                0 => Action::ClearRevert { session, node },
                _ => Action::Revert {
                    session,
                    node,
                    events: self.rng.random_range(1..30),
                },
            },
            _ => {
                if self.rng.random_bool(0.3) {
                    Action::Resume { session, node }
                } else {
                    Action::Clock {
                        node,
                        by_ms: self.rng.random_range(-60_000..60_000),
                    }
                }
            }
        }
    }

    /// One death after the other, in one place.
    fn deaths(&mut self, first_ms: u64) -> Vec<Timed> {
        let node = self.node();
        let every_ms = self.rng.random_range(300..1_000);
        let mut deaths = Vec::new();
        for n in 0..self.rng.random_range(5..=12) {
            let action = Action::Kill {
                node,
                when: When::After(self.rng.random_range(1..=2)),
                back_ms: 20,
            };
            let at_ms = first_ms + n * every_ms;
            deaths.push(Timed { at_ms, action });
        }
        deaths
    }

    fn fault(&mut self, node: usize) -> Action {
        let fault = match self.rng.random_range(0..12) {
            0 => Fault::Down,
            1 => Fault::Slow(*[50, 400, 3_000].choose(&mut self.rng).expect("not empty")),
            2 | 3 => Fault::Fails(self.rng.random_range(10..80)),
            4 | 5 => Fault::Unanswered(self.rng.random_range(10..80)),
            6 => Fault::RenewalsLost,
            7 => Fault::RenewalsUnanswered,
            8 => Fault::RenewalsLate(self.rng.random_range(500..8_000)),
            9 => Fault::RunnerTraps,
            10 => Fault::RunnerSlow(*[20, 300, 4_000].choose(&mut self.rng).expect("not empty")),
            _ => Fault::RunnerLies,
        };
        Action::Fault {
            node: self.rng.random_bool(0.7).then_some(node),
            fault,
            for_ms: self.rng.random_range(100..PAST_THE_LEASE_MS),
        }
    }

    fn answer(&mut self) -> Answer {
        match self.rng.random_range(0..20) {
            0..=2 => Answer::Say {
                pieces: self.rng.random_range(1..=4),
                pause_ms: *[0, 50, 300, 3_000]
                    .choose(&mut self.rng)
                    .expect("not empty"),
            },
            3..=12 => Answer::Call {
                calls: (0..self.rng.random_range(1..=3))
                    .map(|_| self.call())
                    .collect(),
                pause_ms: *[0, 0, 30, 500].choose(&mut self.rng).expect("not empty"),
            },
            13 => Answer::Fail {
                class: *[
                    FailureClass::RateLimited,
                    FailureClass::Overloaded,
                    FailureClass::Transport,
                    FailureClass::Authentication,
                    FailureClass::ContextOverflow,
                ]
                .choose(&mut self.rng)
                .expect("not empty"),
                times: self.rng.random_range(1..=6),
            },
            14 => Answer::Cut,
            15 => Answer::Hosted {
                answered: self.rng.random_bool(0.5),
                pause_ms: self.rng.random_range(0..1_000),
            },
            16 => Answer::Lie,
            _ => Answer::Http(match self.rng.random_range(0..7) {
                0..=2 => Http::Whole,
                3 => Http::Breaks,
                4 => Http::Stalls,
                5 => Http::Status(*[401, 429, 500].choose(&mut self.rng).expect("not empty")),
                _ => Http::Unreachable,
            }),
        }
    }

    fn call(&mut self) -> Call {
        let tool = *[
            Tool::Look,
            Tool::Look,
            Tool::Put,
            Tool::Put,
            Tool::Act,
            Tool::Act,
            Tool::Act,
            Tool::Mine,
            Tool::Nowhere,
        ]
        .choose(&mut self.rng)
        .expect("not empty");
        let how = match self.rng.random_range(0..12) {
            0..=4 => How::Well,
            5..=7 => How::Slow(
                *[10, 200, 2_000, 7_000]
                    .choose(&mut self.rng)
                    .expect("not empty"),
            ),
            8 => How::Traps,
            9 => How::Fails,
            10 => {
                if self.rng.random_bool(0.5) {
                    How::Hangs
                } else {
                    How::Deaf
                }
            }
            _ => How::BadArguments,
        };
        Call { tool, how }
    }
}
