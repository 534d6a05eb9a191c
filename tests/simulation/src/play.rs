//! Plays a script: starts the processes, does what the script says when it says it, then takes all
//! faults away and waits until there is nothing left to do. What must hold is asked after every commit,
//! and once more at the end.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::approval::{Policy, Rule, Verdict};
use mainstay_core::commit::Refused;
use mainstay_core::config::{
    Agent as AgentConfig, Config, Provider, Settings, SharedConfig, Toolbox,
};
use mainstay_core::event::{Delivery, Event, InputContent, SessionCreated, TurnOutcome};
use mainstay_core::history::{Approval, Signal};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::node::{Followed, Node, Ports};
use mainstay_core::outbox::Child;
use mainstay_core::plugin::{Condition, ExchangeTimeouts};
use mainstay_core::port::{Store, StoreError};
use mainstay_core::tail::{Scope, Session, Tail};
use mainstay_test_support::MemoryStore;
use mainstay_test_support::delegate::Delegating;
use serde::{Deserialize, Serialize};
use tokio::sync::watch;
use uuid::Uuid;

use crate::broken::{BrokenStore, Defect};
use crate::guest::{APPROVAL, Guests, Outside, SIGNAL, prompt};
use crate::invariant::{self, Broken};
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

    /// A client's call, which is made until it is answered.
    async fn ask<T, F>(
        &self,
        place: usize,
        call: impl Fn(Arc<Node>) -> F,
    ) -> Result<Result<T, Refused>, Broken>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        for attempt in 0.. {
            if let Some(process) = self.process(place + attempt) {
                let answer = tokio::select! {
                    biased;
                    () = process.link.died() => None,
                    answer = tokio::time::timeout(PATIENCE, call(process.node)) => answer.ok(),
                };
                match answer {
                    Some(Ok(answer)) => return Ok(Ok(answer)),
                    Some(Err(StoreError::Refused(refused))) => return Ok(Err(refused)),
                    Some(Err(StoreError::Damaged { cause, .. })) => {
                        return Err(broken("no_session_is_damaged", cause));
                    }
                    Some(Err(StoreError::Unavailable { .. })) | None => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        unreachable!("a client never gives up")
    }

    async fn prompt(
        &self,
        number: u32,
        session: SessionId,
        place: usize,
        delivery: Delivery,
        plan: &[crate::script::Answer],
    ) -> Result<(), Broken> {
        self.admit(number, session, place, delivery, prompt(number, plan))
            .await
    }

    async fn admit(
        &self,
        number: u32,
        session: SessionId,
        place: usize,
        delivery: Delivery,
        content: InputContent,
    ) -> Result<(), Broken> {
        let input = input_id(number);
        let admit = |node: Arc<Node>| {
            let content = content.clone();
            async move { node.admit(session, input, delivery, content).await }
        };
        match self.ask(place, admit).await? {
            Ok(admission) => self.judge.told(session, input, admission.seq),
            Err(Refused::Cancelled(_)) if self.is_cancelled(session).await => {}
            Err(refused) => {
                return Err(broken("a_prompt_is_admitted", refused.to_string()));
            }
        }
        Ok(())
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

    async fn client(self: &Arc<Self>, action: Action) -> Result<(), Broken> {
        match action {
            Action::Prompt {
                input,
                session,
                node,
                delivery,
                plan,
            } => {
                self.prompt(input, session_id(session), node, delivery, &plan)
                    .await?;
            }
            Action::Retry {
                input,
                session,
                node,
            } => {
                self.prompt(input, session_id(session), node, Delivery::Queue, &[])
                    .await?;
            }
            Action::CancelInput {
                input,
                session,
                node,
            } => {
                let (session, input) = (session_id(session), input_id(input));
                let cancel =
                    move |node: Arc<Node>| async move { node.cancel_input(session, input).await };
                if self.ask(node, cancel).await?.is_ok() {
                    self.judge.told_cancelled(session, input);
                }
            }
            Action::Redeliver {
                input,
                session,
                node,
                delivery,
            } => {
                let (session, input) = (session_id(session), input_id(input));
                let redeliver = move |node: Arc<Node>| async move {
                    node.redeliver(session, input, delivery).await
                };
                // It may be settled, or not admitted yet.
                let _ = self.ask(node, redeliver).await?;
            }
            Action::Interrupt {
                session,
                node,
                then,
            } => {
                let session = session_id(session);
                let interrupt = move |node: Arc<Node>| async move {
                    if then == Some(Scope::Steers) {
                        node.interrupt_and_continue(session).await
                    } else {
                        node.interrupt(session).await
                    }
                };
                self.ask(node, interrupt)
                    .await?
                    .map_err(|refused| broken("an_interrupt_is_answered", refused.to_string()))?;
                if then == Some(Scope::All) {
                    let wake =
                        move |node: Arc<Node>| async move { node.wake(session, Scope::All).await };
                    let _ = self.ask(node, wake).await?;
                }
            }
            Action::Signal {
                input,
                session,
                node,
            } => {
                let content = InputContent::Signal(Signal {
                    name: SIGNAL.into(),
                    data: "{}".into(),
                });
                self.admit(input, session_id(session), node, Delivery::Steer, content)
                    .await?;
            }
            Action::Approve {
                session,
                node,
                approved,
            } => {
                let session = session_id(session);
                let asked = self.memory.tail(session).await.ok().flatten();
                let mut keys = asked.map_or_else(Vec::new, |tail| open_calls(&tail.session));
                keys.push(APPROVAL.into());
                for key in keys {
                    // Nobody may have asked, or another has answered otherwise.
                    let _ = self.answer(session, node, key, approved).await?;
                }
            }
            Action::Cancel { session, node } => {
                let session = session_id(session);
                let cancel = move |node: Arc<Node>| async move { node.cancel(session).await };
                self.ask(node, cancel)
                    .await?
                    .map_err(|refused| broken("a_cancel_is_answered", refused.to_string()))?;
                if !self.is_cancelled(session).await {
                    return Err(broken("what_was_told_durable_is_there", "a cancel is not"));
                }
            }
            Action::TakeOver { session, node } => {
                let session = session_id(session);
                let take = move |node: Arc<Node>| async move { node.take_over(session).await };
                let _ = self.ask(node, take).await?;
            }
            Action::Fork {
                session,
                node,
                fork,
            } => {
                let (session, fork) = (session_id(session), fork_id(fork));
                let make =
                    move |node: Arc<Node>| async move { node.fork(session, None, fork).await };
                // There may be nothing yet, or it may have been made and have gone on.
                let _ = self.ask(node, make).await?;
            }
            Action::Revert {
                session,
                node,
                events,
            } => {
                let session = session_id(session);
                let revert = move |node: Arc<Node>| async move {
                    let head = node.tail(session).await?.session.head;
                    node.revert(session, head.saturating_sub(events)).await
                };
                let _ = self.ask(node, revert).await?;
            }
            Action::ClearRevert { session, node } => {
                let session = session_id(session);
                let clear = move |node: Arc<Node>| async move { node.clear_revert(session).await };
                let _ = self.ask(node, clear).await?;
            }
            Action::Wake {
                session,
                node,
                scope,
            } => {
                let session = session_id(session);
                let wake = move |node: Arc<Node>| async move { node.wake(session, scope).await };
                let _ = self.ask(node, wake).await?;
            }
            Action::Resume { session, node } => {
                let session = session_id(session);
                let resume = move |node: Arc<Node>| async move { node.resume(session).await };
                let _ = self.ask(node, resume).await?;
            }
            Action::Run {
                session,
                node,
                forced,
                gives_up_ms,
            } => {
                let Some(process) = self.process(node) else {
                    return Ok(());
                };
                let patience = gives_up_ms.unwrap_or(u64::from(u32::MAX));
                let run = process.node.run(session_id(session), forced.then_some(3));
                tokio::select! {
                    biased;
                    () = process.link.died() => {}
                    // Without patience of its own it must be answered before the world settles.
                    _ = tokio::time::timeout(Duration::from_millis(patience), run) => {}
                }
            }
            Action::Follow { session, node } => self.follow(session_id(session), node),
            _ => {}
        }
        Ok(())
    }

    /// Reads a log for as long as its node lives.
    fn follow(self: &Arc<Self>, session: SessionId, place: usize) {
        let Some(process) = self.process(place) else {
            return;
        };
        let me = {
            let mut followers = self.followers();
            followers.push(Follower {
                session,
                read: Vec::new(),
                gone: false,
            });
            followers.len() - 1
        };
        let play = Arc::clone(self);
        tokio::spawn(async move {
            let mut log = Box::pin(process.node.log(session, 0, true));
            loop {
                let next = tokio::select! {
                    biased;
                    () = process.link.died() => None,
                    next = log.next() => next,
                };
                let mut followers = play.followers();
                let follower = &mut followers[me];
                match next {
                    Some(Ok(Followed::Event(record))) => {
                        follower.read.push((record.seq, record.id))
                    }
                    Some(Ok(Followed::Synced(_))) => {}
                    Some(Err(_)) | None => {
                        follower.gone = true;
                        return;
                    }
                }
            }
        });
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

    async fn answer(
        &self,
        session: SessionId,
        node: usize,
        key: String,
        approved: bool,
    ) -> Result<Result<(), Refused>, Broken> {
        let answer = move |node: Arc<Node>| {
            let answer = Approval {
                key: key.clone(),
                approved,
                reason: None,
            };
            async move { node.answer(session, answer).await }
        };
        self.ask(node, answer).await
    }

    /// Waits until no client waits, nothing runs and nothing is to run. A person answers what is asked
    /// about calls meanwhile.
    async fn settle(&self, after: &str) -> Result<(), Broken> {
        let deadline = self.sim.now_ms() + SETTLES_WITHIN_MS;
        loop {
            let mut waits = Vec::new();
            let clients = self.clients.load(Ordering::SeqCst);
            if clients > 0 {
                waits.push(format!("{clients} clients wait for an answer"));
            }
            let tails = self.tails().await;
            for tail in &tails {
                let session = &tail.session;
                if tail.claim.is_none() && !session.cancelled {
                    for key in open_calls(session) {
                        let approved = session.head % 2 == 0;
                        let _ = self.answer(session.id, 0, key, approved).await?;
                    }
                }
                let waits_here = tail.claim.is_some()
                    || tail.is_runnable()
                    || (session.wait.is_some() && !waits_for_people(session, &tails))
                    || session.is_owing();
                if waits_here {
                    waits.push(format!(
                        "{}: {:?}, turn {:?}, wait {:?}, owes {:?}, {:?}",
                        self.name(session.id),
                        tail.claim,
                        session.turn,
                        session.wait,
                        session.outbox,
                        tail.inputs
                    ));
                }
            }
            if waits.is_empty() {
                return Ok(());
            }
            if self.sim.now_ms() > deadline {
                let detail = format!("after {after}: {}", waits.join("; "));
                return Err(broken("a_healed_world_settles", detail));
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// All sessions of the store.
    async fn tails(&self) -> Vec<Arc<Tail>> {
        let mut tails = Vec::new();
        let listed = self.memory.sessions(None, u32::MAX).await;
        for listed in listed.unwrap_or_default().iter().rev() {
            let tail = self.memory.tail(listed.session.id).await;
            tails.extend(tail.ok().flatten());
        }
        tails
    }

    /// The sessions that can still run.
    async fn usable(&self) -> Vec<SessionId> {
        let tails = self.tails().await;
        let usable = tails.iter().filter(|tail| !tail.session.cancelled);
        usable.map(|tail| tail.session.id).collect()
    }

    async fn is_cancelled(&self, session: SessionId) -> bool {
        let tail = self.memory.tail(session).await;
        tail.ok()
            .flatten()
            .is_some_and(|tail| tail.session.cancelled)
    }

    async fn idle_sessions_have_no_intents(&self) -> Result<(), Broken> {
        for tail in self.tails().await {
            if tail.session.cancelled || tail.session.wait.is_some() {
                continue;
            }
            if let Some(input) = tail.inputs.iter().find(|input| input.intent) {
                let name = self.name(tail.session.id);
                let detail = format!("{name} is idle, and {input:?} is to run");
                return Err(broken("an_idle_session_has_no_intents", detail));
            }
        }
        Ok(())
    }

    async fn nothing_admitted_is_left_behind(&self) -> Result<(), Broken> {
        for tail in self.tails().await {
            if tail.session.cancelled || tail.session.wait.is_some() {
                continue;
            }
            if let Some(input) = tail.inputs.first() {
                let name = self.name(tail.session.id);
                let detail = format!("{name} was woken for all and is idle, with {input:?}");
                return Err(broken("nothing_admitted_is_left_behind", detail));
            }
        }
        Ok(())
    }

    async fn every_session_still_answers(&self) -> Result<(), Broken> {
        for tail in self.tails().await {
            let session = &tail.session;
            if !session.cancelled && session.last_turn != Some(TurnOutcome::Done) {
                let detail = format!(
                    "the last turn of {}, where nothing was wrong: {:?}",
                    self.name(session.id),
                    session.last_turn
                );
                return Err(broken("a_healed_session_answers", detail));
            }
        }
        Ok(())
    }

    async fn every_child_has_reported(&self) -> Result<(), Broken> {
        let tails = self.tails().await;
        for tail in tails.iter().filter(|tail| !tail.session.cancelled) {
            for child in &tail.session.children {
                if !child.ended || !tails.iter().any(|tail| tail.session.id == child.session) {
                    let detail = format!("{}: {child:?}", self.name(tail.session.id));
                    return Err(broken("every_child_reports", detail));
                }
            }
        }
        for tail in tails.iter().filter(|tail| tail.session.cancelled) {
            let alive = tails.iter().find(|child| {
                let parent = child.session.parent.as_ref().map(|parent| parent.session);
                parent == Some(tail.session.id) && !child.session.cancelled
            });
            if let Some(child) = alive {
                let detail = format!(
                    "{} is cancelled, and its child {} is not",
                    self.name(tail.session.id),
                    self.name(child.session.id)
                );
                return Err(broken("a_cancel_reaches_every_child", detail));
            }
        }
        Ok(())
    }

    /// A session's name for people.
    fn name(&self, session: SessionId) -> String {
        if let Some((n, _)) = self.sessions().find(|(_, known)| *known == session) {
            return format!("s{n}");
        }
        let mut text = session.to_string();
        text.truncate(8);
        text
    }

    async fn every_follower_has_met_every_event_once(&self) -> Result<(), Broken> {
        // A read that was slow when the faults ended may still be under way.
        let deadline = self.sim.now_ms() + FOLLOWS_WITHIN_MS;
        while self.followers_meet_every_event_once().is_err() && self.sim.now_ms() < deadline {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        self.followers_meet_every_event_once()
    }

    fn followers_meet_every_event_once(&self) -> Result<(), Broken> {
        for follower in self.followers().iter() {
            let log = self.judge.ids(follower.session);
            let due = if follower.gone {
                follower.read.len()
            } else {
                log.len()
            };
            if log.get(..due) != Some(&follower.read) {
                let detail = format!("{:?} was read, of {log:?}", follower.read);
                return Err(broken("a_follower_meets_every_event_once", detail));
            }
        }
        Ok(())
    }

    async fn every_shutdown_ends(&self) -> Result<(), Broken> {
        let places = self.slots().len();
        for place in 0..places {
            if let Some(process) = self.at(place) {
                tokio::time::timeout(PATIENCE, process.node.shutdown())
                    .await
                    .map_err(|_| broken("a_shutdown_of_an_idle_node_ends", format!("{place}")))?;
            }
        }
        Ok(())
    }

    async fn all_that_is_stored_is_sound(&self) -> Result<(), Broken> {
        let mut logs: HashMap<SessionId, Vec<Event>> = HashMap::new();
        for tail in self.tails().await {
            let session = tail.session.id;
            let dump = self.judge.store().dump(session).await;
            let dump = dump.map_err(|error| broken("the_store_answers", error.to_string()))?;
            invariant::judge(&dump)?;
            let ids: Vec<_> = dump
                .events
                .iter()
                .map(|record| (record.seq, record.id))
                .collect();
            if ids != self.judge.ids(session) {
                return Err(broken(
                    "what_was_committed_is_stored",
                    format!(
                        "the log of {} is another than was committed",
                        self.name(session)
                    ),
                ));
            }
            if let Some(claim) = dump.claim {
                return Err(broken("an_idle_session_has_no_claim", format!("{claim:?}")));
            }
            let events = dump
                .events
                .iter()
                .filter_map(|record| record.decode().ok())
                .collect();
            logs.insert(session, events);
        }
        self.judge.what_was_told_durable_is_there(&logs)
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

/// Keys of what a person is asked about calls.
fn open_calls(session: &Session) -> Vec<String> {
    let asked = session.arrived.approvals.iter();
    let open = asked.filter(|(_, asked)| asked.call.is_some() && asked.answer.is_none());
    open.map(|(key, _)| key.clone()).collect()
}

/// Waits while it is quarantined, or for a child that was interrupted: such go on when somebody releases
/// or speaks to them, as everybody is in the end.
fn waits_for_people(session: &Session, tails: &[Arc<Tail>]) -> bool {
    if session.quarantined.is_some() {
        return true;
    }
    let Some(wait) = session.wait.as_ref().filter(|wait| wait.wake_at.is_none()) else {
        return false;
    };
    let awaited = wait.until.iter().flat_map(|condition| match condition {
        Condition::Children(keys) => &keys[..],
        _ => &[],
    });
    let interrupted = |child: &Child| {
        tails.iter().any(|tail| {
            tail.session.id == child.session
                && tail.session.turn.is_none()
                && tail.session.last_turn == Some(TurnOutcome::Interrupted)
        })
    };
    awaited
        .filter_map(|key| session.child(key))
        .any(|child| !child.ended && interrupted(child))
}

fn agent_name(agent: Agent) -> &'static str {
    match agent {
        Agent::Plain => "plain",
        Agent::Busy => "busy",
        Agent::Few => "few",
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
            ("patient".into(), agent("patient", 20)),
            ("parent".into(), agent("parent", 20)),
            ("asked".into(), asked),
        ]),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    }
}
