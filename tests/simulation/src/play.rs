//! Plays a script: starts the processes, does what the script says when it says it, then takes all
//! faults away and waits until there is nothing left to do. What must hold is asked after every commit,
//! and once more at the end.

mod client;
mod end;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use mainstay_core::approval::{Policy, Rule, Verdict};
use mainstay_core::config::{
    Agent as AgentConfig, Config, Provider, Settings, SharedConfig, Toolbox,
};
use mainstay_core::event::{Delivery, SessionCreated};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::ExchangeTimeouts;
use mainstay_core::port::Store;
use mainstay_core::tail::Scope;
use mainstay_test_support::MemoryStore;
use mainstay_test_support::delegate::Delegating;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use crate::broken::{BrokenStore, Defect};
use crate::guest::{Guests, Outside};
use crate::invariant::Broken;
use crate::judge::{Judge, Writer};
use crate::link::Link;
use crate::script::{Action, Agent, Script};
use crate::sim::{NodeClock, Sim};

/// In simulated time, what a healed world may take to have nothing left to do, in ms.
const SETTLES_WITHIN_MS: u64 = 600_000;

/// In simulated time, what a follower may be behind in a healed world, in ms.
const FOLLOWS_WITHIN_MS: u64 = 30_000;

/// What a client waits for an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The number of the prompt that each session is sent in the end; those of a script are smaller.
const LAST_PROMPT: u32 = 1_000_000;

/// What became of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Outcome {
    pub failure: Option<Failure>,
    /// Equal for two runs that stored the same events.
    pub digest: u64,
    pub commits: u64,
    /// Events by type.
    pub events: BTreeMap<String, u64>,
    pub simulated_ms: u64,
    /// What happened, a line each.
    pub timeline: Vec<String>,
}

/// What did not hold.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    pub invariant: String,
    pub detail: String,
}

/// Plays a script on the current runtime, whose clock is paused. Takes the process's panic hook.
pub async fn play(script: Script, defect: Option<Defect>) -> Outcome {
    let play = Play::new(script, defect);
    let judge = Arc::clone(&play.judge);
    std::panic::set_hook(Box::new(move |panic| {
        judge.fail(Broken {
            invariant: "nothing_panics",
            detail: panic.to_string(),
        });
    }));
    let ended = tokio::select! {
        biased;
        broken = play.judge.failed() => Err(broken),
        ended = play.run() => ended,
    };
    let _ = std::panic::take_hook();
    play.outcome(ended.err())
}

/// One run under way.
struct Play {
    script: Script,
    sim: Arc<Sim>,
    memory: Arc<MemoryStore>,
    judge: Arc<Judge>,
    outside: Arc<Outside>,
    slots: Mutex<Vec<Slot>>,
    /// Clients that wait for something.
    clients: AtomicUsize,
    followers: Mutex<Vec<Follower>>,
    /// The script is over: what is dead comes back at once.
    healing: watch::Sender<bool>,
}

/// A place for a process.
#[derive(Default)]
struct Slot {
    process: Option<Process>,
    lives: u32,
    back_ms: u64,
}

#[derive(Clone)]
struct Process {
    node: Arc<Node>,
    link: Arc<Link>,
}

/// A client that reads a log.
struct Follower {
    session: SessionId,
    read: Vec<(Seq, mainstay_core::id::EventId)>,
    /// Its node died, or the store failed it.
    gone: bool,
}

fn broken(invariant: &'static str, detail: impl Into<String>) -> Broken {
    Broken {
        invariant,
        detail: detail.into(),
    }
}

/// An id that follows from a name.
fn named(name: &str, n: usize) -> Uuid {
    Uuid::new_v5(&Uuid::NAMESPACE_OID, format!("{name}/{n}").as_bytes())
}

fn session_id(n: usize) -> SessionId {
    SessionId(named("session", n))
}

fn fork_id(n: usize) -> SessionId {
    SessionId(named("fork", n))
}

fn input_id(n: u32) -> InputId {
    InputId(named("input", n as usize))
}

impl Play {
    fn new(script: Script, defect: Option<Defect>) -> Arc<Self> {
        let sim = Sim::new(&script);
        let memory = Arc::new(MemoryStore::new(Arc::clone(&sim) as _));
        let store: Arc<dyn Store> = match defect {
            None => Arc::clone(&memory) as _,
            Some(defect) => Arc::new(Delegating(BrokenStore::new(
                Arc::clone(&memory) as _,
                defect,
            ))),
        };
        let judge = Judge::new(Arc::clone(&sim), store);
        Arc::new(Self {
            outside: Outside::new(Arc::clone(&sim), Arc::clone(&judge)),
            slots: Mutex::new((0..script.nodes).map(|_| Slot::default()).collect()),
            script,
            sim,
            memory,
            judge,
            clients: AtomicUsize::new(0),
            followers: Mutex::default(),
            healing: watch::Sender::new(false),
        })
    }

    fn slots(&self) -> MutexGuard<'_, Vec<Slot>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn followers(&self) -> MutexGuard<'_, Vec<Follower>> {
        self.followers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    fn sessions(&self) -> impl Iterator<Item = (usize, SessionId)> {
        (0..self.script.sessions.len()).map(|n| (n, session_id(n)))
    }

    async fn run(self: &Arc<Self>) -> Result<(), Broken> {
        for node in 0..self.script.nodes {
            self.start(node);
        }
        for (n, session) in self.sessions() {
            let created = SessionCreated {
                agent: agent_name(self.script.sessions[n]).into(),
                ..SessionCreated::default()
            };
            let create = move |node: Arc<Node>| {
                let created = created.clone();
                async move { node.create(session, created).await }
            };
            let _ = self.ask(0, create).await?;
        }
        for timed in self.script.actions.clone() {
            self.sim.until(timed.at_ms).await;
            self.act(timed.action);
        }
        self.sim.until(self.script.ends_ms()).await;
        self.heal();
        self.settle("the script").await?;
        self.idle_sessions_have_no_intents().await?;

        for session in self.usable().await {
            let wake = move |node: Arc<Node>| async move {
                if node.tail(session).await?.session.quarantined.is_some() {
                    node.resume(session).await
                } else {
                    node.wake(session, Scope::All).await
                }
            };
            self.ask(0, wake)
                .await?
                .map_err(|refused| broken("a_wake_is_answered", refused.to_string()))?;
        }
        self.settle("the wake of all that was left").await?;
        self.nothing_admitted_is_left_behind().await?;

        for (n, session) in self.usable().await.into_iter().enumerate() {
            let (number, place) = (LAST_PROMPT + n as u32, n);
            self.prompt(number, session, place, Delivery::Queue, &[])
                .await?;
        }
        self.settle("the last prompt").await?;
        self.every_follower_has_met_every_event_once().await?;
        self.all_that_is_stored_is_sound().await?;
        self.every_session_still_answers().await?;
        self.every_child_has_reported().await?;
        self.every_shutdown_ends().await
    }

    /// Starts a process in a place, and another whenever it dies.
    fn start(self: &Arc<Self>, place: usize) {
        let life = {
            let mut slots = self.slots();
            slots[place].lives += 1;
            slots[place].lives
        };
        if self.script.nodes == 1 {
            // A store of one process: taking it proves its claims dead.
            self.memory.restart();
        }
        let writer = Writer {
            node: place,
            life,
            owner: OnceLock::new(),
        };
        let link = Link::new(writer, Arc::clone(&self.sim), Arc::clone(&self.judge));
        let ports = Ports {
            store: Arc::new(Delegating(Arc::clone(&link))),
            plugins: Arc::new(Guests {
                outside: Arc::clone(&self.outside),
                link: Arc::clone(&link),
            }),
            clock: Arc::new(NodeClock {
                sim: Arc::clone(&self.sim),
                node: place,
            }),
        };
        let node = Node::start(ports, settings(), Arc::new(SharedConfig::new(config())));
        // Nothing has run yet: the tasks of the node begin at the next wait.
        let _ = link.writer.owner.set(node.owner());
        self.judge
            .note(format!("{} starts as {}", link.writer, node.owner()));
        self.slots()[place].process = Some(Process {
            node,
            link: Arc::clone(&link),
        });
        let play = Arc::clone(self);
        tokio::spawn(async move {
            link.died().await;
            let (_dead, back_ms) = {
                let mut slots = play.slots();
                (slots[place].process.take(), slots[place].back_ms)
            };
            let mut healing = play.healing.subscribe();
            tokio::select! {
                biased;
                _ = healing.wait_for(|healing| *healing) => {}
                () = tokio::time::sleep(Duration::from_millis(back_ms)) => {}
            }
            // A machine that stood still is not the one that starts anew.
            play.sim.stop(place, false);
            play.start(place);
        });
    }

    /// A process that lives, from this place on.
    fn process(&self, place: usize) -> Option<Process> {
        let slots = self.slots();
        let places = slots.len();
        (0..places).find_map(|n| slots[(place + n) % places].process.clone())
    }

    /// Does one thing, without waiting for what comes of it.
    fn act(self: &Arc<Self>, action: Action) {
        if !matches!(action, Action::Prompt { .. }) {
            self.judge.note(format!("{action:?}"));
        }
        match action {
            Action::Kill {
                node,
                when,
                back_ms,
            } => {
                self.slots()[node].back_ms = back_ms;
                if let Some(process) = self.at(node) {
                    process.link.doom(when);
                }
            }
            Action::Stop { node, for_ms } => {
                self.sim.stop(node, true);
                let (sim, life) = (Arc::clone(&self.sim), self.slots()[node].lives);
                let play = Arc::clone(self);
                tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(for_ms)).await;
                    if play.slots()[node].lives == life {
                        sim.stop(node, false);
                    }
                });
            }
            Action::Fault {
                node,
                fault,
                for_ms,
            } => self.sim.begin(node, fault, for_ms),
            Action::Clock { node, by_ms } => self.sim.step_clock(node, by_ms),
            Action::Shutdown { node, back_ms } => {
                self.slots()[node].back_ms = back_ms;
                if let Some(process) = self.at(node) {
                    tokio::spawn(async move {
                        tokio::select! {
                            biased;
                            () = process.link.died() => {}
                            // Whoever asked for it has no more patience than a client.
                            _ = tokio::time::timeout(PATIENCE, process.node.shutdown()) => {}
                        }
                        process.link.die();
                    });
                }
            }
            client => {
                let play = Arc::clone(self);
                self.clients.fetch_add(1, Ordering::SeqCst);
                tokio::spawn(async move {
                    if let Err(broken) = play.client(client).await {
                        play.judge.fail(broken);
                    }
                    play.clients.fetch_sub(1, Ordering::SeqCst);
                });
            }
        }
    }

    fn at(&self, place: usize) -> Option<Process> {
        self.slots()[place].process.clone()
    }

    /// Takes all faults away, for good.
    fn heal(&self) {
        self.judge.note("all faults end");
        self.sim.heal();
        for slot in self.slots().iter() {
            if let Some(process) = &slot.process {
                process.link.spare();
            }
        }
        self.healing.send_replace(true);
    }

    fn outcome(&self, failure: Option<Broken>) -> Outcome {
        let (commits, digest) = self.judge.digest();
        Outcome {
            failure: failure.map(|broken| Failure {
                invariant: broken.invariant.into(),
                detail: broken.detail,
            }),
            digest,
            commits,
            events: self.judge.kinds(),
            simulated_ms: self.sim.now_ms(),
            timeline: self.judge.timeline(|session| self.name(session)),
        }
    }
}

fn agent_name(agent: Agent) -> &'static str {
    match agent {
        Agent::Plain => "plain",
        Agent::Busy => "busy",
        Agent::Few => "few",
        Agent::Curious => "curious",
        Agent::Patient => "patient",
        Agent::Parent => "parent",
        Agent::Asked => "asked",
    }
}

/// Everything a few times shorter than by default, in the same proportions.
fn settings() -> Settings {
    Settings {
        lease: Duration::from_secs(6),
        lease_margin: Duration::from_secs(1),
        renew_every: Duration::from_secs(2),
        poll_every: Duration::from_millis(400),
        flush_every: Duration::from_millis(200),
        retry_base: Duration::from_millis(100),
        retry_max: Duration::from_secs(5),
        cancel_grace: Duration::from_millis(200),
        shutdown_grace: Duration::from_millis(500),
        timeouts: ExchangeTimeouts {
            connect: Duration::from_secs(2),
            first_byte: Duration::from_secs(10),
            idle: Duration::from_secs(5),
            total: Duration::from_secs(60),
        },
        ..Settings::default()
    }
}

fn config() -> Config {
    let agent = |runner: &str, steps| AgentConfig {
        runner: runner.into(),
        toolboxes: vec![Toolbox {
            alias: "tools".into(),
            options: None,
        }],
        steps,
        ..AgentConfig::default()
    };
    let asked = AgentConfig {
        tool_policy: Policy(vec![Rule {
            tool: "*".into(),
            arguments: BTreeMap::new(),
            then: Verdict::Ask,
        }]),
        ..agent("plain", 20)
    };
    let provider = Provider {
        plugin: "simulated".into(),
        base_url: None,
        options: None,
        models: Vec::new(),
    };
    Config {
        agents: BTreeMap::from([
            ("plain".into(), agent("plain", 20)),
            ("busy".into(), agent("busy", 20)),
            ("few".into(), agent("plain", 3)),
            ("curious".into(), agent("curious", 30)),
            ("patient".into(), agent("patient", 20)),
            ("parent".into(), agent("parent", 20)),
            ("asked".into(), asked),
        ]),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    }
}
