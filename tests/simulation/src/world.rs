//! One store, scripted plugins, and processes that come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, EventBody, InputContent, SessionCreated};
use mainstay_core::history::{Item, ItemBody};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::Part;
use mainstay_core::node::{Node, Ports};
use mainstay_core::port::{Dump, Store, SystemClock};
use mainstay_core::tail::Tail;
use mainstay_test_support::MemoryStore;
use mainstay_test_support::delegate::Delegating;

use crate::crash::{Crashing, Point};
use crate::invariant;
use crate::plugins::Scripted;

/// A store and what stands around it.
pub struct World {
    pub store: Arc<dyn Store>,
    /// The same store, for its faults.
    pub memory: Arc<MemoryStore>,
    pub plugins: Arc<Scripted>,
    pub settings: Settings,
}

/// One process: killed when it is dropped.
pub struct Process {
    pub node: Arc<Node>,
    pub link: Arc<Crashing>,
    memory: Arc<MemoryStore>,
}

impl World {
    pub fn new(plugins: Scripted) -> Self {
        let memory = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
        let settings = Settings {
            lease: Duration::from_secs(2),
            lease_margin: Duration::from_millis(500),
            renew_every: Duration::from_millis(200),
            poll_every: Duration::from_millis(20),
            flush_every: Duration::from_millis(50),
            retry_base: Duration::from_millis(10),
            cancel_grace: Duration::from_millis(50),
            decide_within: Duration::from_secs(5),
            ..Settings::default()
        };
        Self {
            store: Arc::clone(&memory) as _,
            memory,
            plugins: Arc::new(plugins),
            settings,
        }
    }

    /// Starts a process that dies at `point`, or never.
    pub fn start(&self, point: Option<Point>) -> Process {
        let link = Crashing::new(Arc::clone(&self.store), point);
        let ports = Ports {
            store: Arc::new(Delegating(Arc::clone(&link))),
            plugins: Arc::clone(&self.plugins) as _,
            clock: Arc::new(SystemClock::default()),
        };
        let node = Node::start(
            ports,
            self.settings.clone(),
            Arc::new(SharedConfig::new(config())),
        );
        Process {
            node,
            link,
            memory: Arc::clone(&self.memory),
        }
    }

    /// Starts a process that lives, and a session with this prompt.
    pub async fn begin(&self, text: &str) -> (Process, SessionId) {
        let process = self.start(None);
        let session = process.session().await;
        process.prompt(session, text).await;
        (process, session)
    }

    pub async fn dump(&self, session: SessionId) -> Dump {
        self.store.dump(session).await.expect("the store answers")
    }

    pub async fn tail(&self, session: SessionId) -> Arc<Tail> {
        self.store
            .tail(session)
            .await
            .expect("the store answers")
            .expect("the session exists")
    }

    /// The session's event types, in order.
    pub async fn kinds(&self, session: SessionId) -> Vec<String> {
        self.dump(session)
            .await
            .events
            .into_iter()
            .map(|record| record.kind)
            .collect()
    }

    pub async fn bodies(&self, session: SessionId) -> Vec<EventBody> {
        let dump = self.dump(session).await;
        dump.events
            .iter()
            .map(|record| record.decode().expect("an event of this build").body)
            .collect()
    }

    pub async fn items(&self, session: SessionId) -> Vec<Item> {
        self.dump(session).await.items
    }

    pub async fn count(&self, session: SessionId, kind: &str) -> usize {
        self.kinds(session)
            .await
            .iter()
            .filter(|known| *known == kind)
            .count()
    }

    /// Waits until the session's rows are as wanted.
    ///
    /// # Panics
    /// With the log, if that does not come to pass within 20 s.
    pub async fn until(
        &self,
        session: SessionId,
        what: &str,
        wanted: impl Fn(&Dump) -> bool + Send,
    ) -> Dump {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let dump = self.dump(session).await;
            if wanted(&dump) {
                return dump;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "waited for {what}; claim {:?}; log:\n{}",
                dump.claim,
                lines(&dump)
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until nothing is left to do, and checks the invariants.
    pub async fn idle(&self, session: SessionId) -> Dump {
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        loop {
            let tail = self.tail(session).await;
            if tail.claim.is_none() && !tail.is_runnable() {
                let dump = self.dump(session).await;
                invariant::check(&dump);
                return dump;
            }
            assert!(
                tokio::time::Instant::now() < deadline,
                "the session never became idle; claim {:?}; log:\n{}",
                tail.claim,
                lines(&self.dump(session).await)
            );
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }
}

impl Process {
    pub async fn session(&self) -> SessionId {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: "default".into(),
            ..SessionCreated::default()
        };
        self.node
            .create(session, created)
            .await
            .expect("a session is created");
        session
    }

    pub async fn prompt(&self, session: SessionId, text: &str) -> InputId {
        self.send(session, Delivery::Queue, text).await
    }

    pub async fn steer(&self, session: SessionId, text: &str) -> InputId {
        self.send(session, Delivery::Steer, text).await
    }

    async fn send(&self, session: SessionId, delivery: Delivery, text: &str) -> InputId {
        let input = InputId::new();
        self.node
            .admit(session, input, delivery, prompt(text))
            .await
            .expect("the input is admitted");
        input
    }

    /// Ends the process as SIGKILL does: nothing more of it reaches the store. Its claims are expired,
    /// as the lock of a file that was one process's proves them to be.
    pub fn kill(self) {
        self.link.die();
        self.memory.restart();
    }
}

/// A prompt's content.
pub fn prompt(text: &str) -> InputContent {
    InputContent::Prompt {
        parts: vec![Part::Text(text.into())],
    }
}

/// The events of a dump, one a line.
pub fn lines(dump: &Dump) -> String {
    dump.events
        .iter()
        .map(|record| format!("{:>3} {} {}\n", record.seq, record.kind, record.data))
        .collect()
}

/// The user messages of a dump.
pub fn user_texts(dump: &Dump) -> Vec<String> {
    let texts = dump.items.iter().filter_map(|item| match &item.body {
        ItemBody::User(parts) => Some(mainstay_core::model::text_of(parts)),
        _ => None,
    });
    texts.collect()
}

/// The agent `default`, and `few` with five steps a turn, over the scripted plugins.
#[must_use]
pub fn config() -> Config {
    let agent = Agent {
        runner: "scripted".into(),
        toolboxes: vec![Toolbox {
            alias: "tools".into(),
            options: None,
        }],
        ..Agent::default()
    };
    let few = Agent {
        steps: 5,
        ..agent.clone()
    };
    let provider = Provider {
        plugin: "scripted".into(),
        base_url: None,
        options: None,
        models: Vec::new(),
    };
    Config {
        agents: BTreeMap::from([("default".into(), agent), ("few".into(), few)]),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    }
}
