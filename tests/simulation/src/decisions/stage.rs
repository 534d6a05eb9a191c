//! One store in memory, nodes that come and go over it, and virtual time: with the runtime's clock
//! paused, an hour passes as soon as everyone waits for it, and the same script meets the same order
//! of commits. Clients write to the store themselves, as through another node, unless a test asks a
//! node.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::approval::{Policy, Rule, Verdict};
use mainstay_core::commit::{Commit, Refused, Write};
use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, EventBody, InputContent, SessionCreated};
use mainstay_core::history::{Approval, Item, ItemBody, Signal};
use mainstay_core::id::{InputId, Millis, SessionId};
use mainstay_core::node::{Node, Ports};
use mainstay_core::outbox;
use mainstay_core::policy::Resume;
use mainstay_core::port::{Clock, Committed, Dump, Store as _, StoreError};
use mainstay_core::tail::{InputStatus, Tail};
use mainstay_test_support::MemoryStore;
use mainstay_test_support::delegate::Delegating;

use super::Decided;
use super::link::{Fate, Fates, Link};
use crate::invariant;
use crate::world::{lines, prompt};

/// Virtual time since the beginning of the test.
#[derive(Debug)]
struct VirtualClock(tokio::time::Instant);

const BEGAN: Millis = 1_700_000_000_000;

impl Clock for VirtualClock {
    fn wall(&self) -> Millis {
        BEGAN + self.monotonic()
    }

    fn monotonic(&self) -> Millis {
        self.0.elapsed().as_millis() as Millis
    }
}

/// The store and what stands around it.
pub struct Stage {
    pub memory: Arc<MemoryStore>,
    pub plugins: Arc<Decided>,
    pub settings: Settings,
    pub config: Config,
    /// How far the wall clocks of the processes are ahead of the store's clock.
    pub ahead_ms: i64,
    clock: Arc<VirtualClock>,
}

/// One process.
pub struct Host {
    pub node: Arc<Node>,
    pub link: Arc<Link>,
    memory: Arc<MemoryStore>,
}

/// The clocks of a process whose wall clock is wrong.
struct Ahead {
    real: Arc<VirtualClock>,
    ms: i64,
}

impl Clock for Ahead {
    fn wall(&self) -> Millis {
        self.real.wall().saturating_add_signed(self.ms)
    }

    fn monotonic(&self) -> Millis {
        self.real.monotonic()
    }
}

/// How long a state is waited for, in virtual time.
const PATIENCE: Duration = Duration::from_secs(3600);

impl Stage {
    /// To be made in a runtime whose clock is paused.
    pub fn new(plugins: Decided) -> Self {
        let clock = Arc::new(VirtualClock(tokio::time::Instant::now()));
        Self {
            memory: Arc::new(MemoryStore::new(Arc::clone(&clock) as _)),
            plugins: Arc::new(plugins),
            settings: Settings::default(),
            ahead_ms: 0,
            config: config(&["default", "child", "other"]),
            clock,
        }
    }

    /// Virtual wall time.
    pub fn now(&self) -> Millis {
        self.clock.wall()
    }

    /// Starts a process that lives until it is killed.
    pub fn start(&self) -> Host {
        self.start_with(Box::new(|_, _| Fate::Pass))
    }

    /// Starts a process whose commits meet these fates.
    pub fn start_with(&self, fates: Fates) -> Host {
        let link = Link::new(Arc::clone(&self.memory), fates);
        let ports = Ports {
            store: Arc::new(Delegating(Arc::clone(&link))),
            plugins: Arc::clone(&self.plugins) as _,
            clock: Arc::new(Ahead {
                real: Arc::clone(&self.clock),
                ms: self.ahead_ms,
            }),
        };
        let config = Arc::new(SharedConfig::new(self.config.clone()));
        Host {
            node: Node::start(ports, self.settings.clone(), config),
            link,
            memory: Arc::clone(&self.memory),
        }
    }

    /// Writes as a client of another node: durable, and nobody here is woken by it.
    pub async fn write(&self, session: SessionId, write: Write) -> Result<Committed, StoreError> {
        let at = self.now();
        let commit = Commit { session, at, write };
        self.memory.commit(commit).await
    }

    /// A fresh session of this agent.
    pub async fn create(&self, agent: &str) -> SessionId {
        self.create_with(agent, Resume::default()).await
    }

    pub async fn create_with(&self, agent: &str, resume: Resume) -> SessionId {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: agent.into(),
            resume,
            ..SessionCreated::default()
        };
        let created = self.write(session, Write::Create(created)).await;
        created.expect("a session is created");
        session
    }

    /// Admits an input for a session without waking anybody.
    pub async fn admit(
        &self,
        session: SessionId,
        delivery: Delivery,
        content: InputContent,
    ) -> InputId {
        let input = InputId::new();
        let write = Write::Admit {
            input,
            delivery,
            content,
        };
        let admitted = self.write(session, write).await;
        admitted.expect("the input is admitted");
        input
    }

    pub async fn prompt(&self, session: SessionId, text: &str) -> InputId {
        self.admit(session, Delivery::Queue, prompt(text)).await
    }

    pub async fn tail(&self, session: SessionId) -> Arc<Tail> {
        let tail = self.memory.tail(session).await;
        tail.expect("the store answers")
            .expect("the session exists")
    }

    pub async fn dump(&self, session: SessionId) -> Dump {
        let dump = self.memory.dump(session).await;
        dump.expect("the store answers")
    }

    pub async fn bodies(&self, session: SessionId) -> Vec<EventBody> {
        let dump = self.dump(session).await;
        let bodies = dump.events.iter().map(|record| record.decode());
        bodies.map(|event| event.expect("known").body).collect()
    }

    pub async fn count(&self, session: SessionId, kind: &str) -> usize {
        let dump = self.dump(session).await;
        dump.events.iter().filter(|e| e.kind == kind).count()
    }

    pub async fn items(&self, session: SessionId) -> Vec<Item> {
        self.dump(session).await.items
    }

    /// Waits until the session's live end is as wanted.
    ///
    /// # Panics
    /// With the log, if that does not come to pass.
    pub async fn until(
        &self,
        session: SessionId,
        what: &str,
        wanted: impl Fn(&Tail) -> bool,
    ) -> Arc<Tail> {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let tail = self.memory.tail(session).await.expect("the store answers");
            match tail {
                Some(tail) if wanted(&tail) => return tail,
                tail => {
                    let claim = tail.and_then(|tail| tail.claim.clone());
                    assert!(
                        tokio::time::Instant::now() < deadline,
                        "waited for {what}; claim {claim:?}; log:\n{}",
                        lines(&self.dump(session).await)
                    );
                }
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until something that is no row is as wanted.
    ///
    /// # Panics
    /// If that does not come to pass.
    pub async fn when(&self, what: &str, wanted: impl Fn() -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !wanted() {
            let now = tokio::time::Instant::now();
            assert!(now < deadline, "waited for {what}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    /// Waits until the session waits without a claim.
    pub async fn waiting(&self, session: SessionId) -> Arc<Tail> {
        let parked = |tail: &Tail| {
            tail.claim.is_none() && tail.session.wait.is_some() && !tail.is_runnable()
        };
        self.until(session, "a wait", parked).await
    }

    /// Waits until the session has neither turn, work nor claim, and checks its rows.
    pub async fn idle(&self, session: SessionId) -> Dump {
        let dump = self.over(session).await;
        invariant::check(&dump);
        dump
    }

    /// Waits until the session has neither turn, work nor claim.
    pub async fn over(&self, session: SessionId) -> Dump {
        let over = |tail: &Tail| {
            tail.claim.is_none() && tail.session.turn.is_none() && !tail.is_runnable()
        };
        self.until(session, "the session to be idle", over).await;
        self.dump(session).await
    }

    /// Checks the rows of a session and of all below it, and what holds between them.
    ///
    /// # Panics
    /// With the broken invariant's words.
    pub async fn check_family(&self, root: SessionId) {
        let mut open = vec![root];
        while let Some(session) = open.pop() {
            let dump = self.dump(session).await;
            invariant::check(&dump);
            inputs_of_the_host_come_once(&dump);
            let row = dump.session.as_ref().expect("a row");
            let keys: HashSet<&String> = row.children.iter().map(|child| &child.key).collect();
            assert_eq!(keys.len(), row.children.len(), "two children of one key");
            for child in &row.children {
                let named = outbox::child_session(session, &child.key);
                assert_eq!(child.session, named, "a child under another id");
                if self.memory.tail(child.session).await.unwrap().is_some() {
                    open.push(child.session);
                }
            }
        }
    }
}

/// One result per child, one firing per timer, one answer per approval, each promoted once at most.
#[track_caller]
fn inputs_of_the_host_come_once(dump: &Dump) {
    let mut seen = HashSet::new();
    for input in &dump.inputs {
        let subject = match &input.content {
            InputContent::Child(result) => format!("child {}", result.key),
            InputContent::Timer { at } => format!("timer {at}"),
            InputContent::Approval(approval) => format!("approval {}", approval.key),
            _ => continue,
        };
        assert!(
            seen.insert(subject.clone()),
            "{subject} came twice:\n{}",
            lines(dump)
        );
    }
    let promoted = |input: &&mainstay_core::tail::Input| input.status == InputStatus::Promoted;
    let promoted = dump.inputs.iter().filter(promoted).count();
    let events = dump.events.iter().filter(|e| e.kind == "input.promoted");
    assert_eq!(promoted, events.count(), "a promotion without its input");
}

impl Host {
    /// Ends the process as SIGKILL does: nothing more of it reaches the store. Its claims are expired,
    /// as the lock of a file that was one process's proves them to be.
    pub fn kill(self) {
        self.link.die();
        self.memory.restart();
    }

    /// Ends the process as SIGKILL does, beside others whose claims stand: its own run out by time.
    pub fn vanish(self) {
        self.link.die();
    }

    pub async fn prompt(&self, session: SessionId, text: &str) -> InputId {
        self.send(session, Delivery::Queue, prompt(text)).await
    }

    pub async fn steer(&self, session: SessionId, text: &str) -> InputId {
        self.send(session, Delivery::Steer, prompt(text)).await
    }

    /// Admits an input through this node, which wakes the session.
    pub async fn send(
        &self,
        session: SessionId,
        delivery: Delivery,
        content: InputContent,
    ) -> InputId {
        let input = InputId::new();
        let admitted = self.node.admit(session, input, delivery, content).await;
        admitted.expect("the input is admitted");
        input
    }
}

/// A signal of this name.
pub fn a_signal(name: &str) -> InputContent {
    InputContent::Signal(Signal {
        name: name.into(),
        data: "{}".into(),
    })
}

/// A yes, or a no with its reason.
pub fn an_answer(key: &str, denied: Option<&str>) -> Approval {
    Approval {
        key: key.into(),
        approved: denied.is_none(),
        reason: denied.map(Into::into),
    }
}

/// The refusal that a write met.
///
/// # Panics
/// If it met none.
#[track_caller]
pub fn refusal<T: std::fmt::Debug>(done: Result<T, StoreError>) -> Refused {
    match done {
        Err(StoreError::Refused(refused)) => refused,
        other => panic!("not refused: {other:?}"),
    }
}

/// What the items are, in a word or two each.
pub fn words(items: &[Item]) -> Vec<String> {
    let words = items.iter().map(|item| match &item.body {
        ItemBody::User(parts) => format!("user {}", mainstay_core::model::text_of(parts)),
        ItemBody::Signal(signal) => format!("signal {}", signal.name),
        ItemBody::Approval(approval) => format!("approval {}", approval.key),
        ItemBody::Child(child) => format!("child {}", child.key),
        ItemBody::Timer => "timer".into(),
        ItemBody::ToolResult(result) => format!("result {}", result.call),
        ItemBody::Assistant(_) => "assistant".into(),
        other => format!("{other:?}"),
    });
    words.collect()
}

/// Agents of these names, each with the runner of its own name and all tools. A person is asked about a
/// call with an argument `ask`, and one with an argument `deny` never runs.
pub fn config(names: &[&str]) -> Config {
    let rule = |argument: &str, then| Rule {
        tool: "*".into(),
        arguments: BTreeMap::from([(argument.into(), "*".into())]),
        then,
    };
    let agent = |name: &&str| {
        let agent = Agent {
            runner: (*name).into(),
            toolboxes: vec![Toolbox {
                alias: "tools".into(),
                options: None,
            }],
            tool_policy: Policy(vec![rule("ask", Verdict::Ask), rule("deny", Verdict::Deny)]),
            ..Agent::default()
        };
        ((*name).into(), agent)
    };
    let provider = Provider {
        plugin: "scripted".into(),
        base_url: None,
        options: None,
        models: Vec::new(),
    };
    Config {
        agents: names.iter().map(agent).collect(),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    }
}
