//! What an operator configures, as the core sees it: agents, providers, and the knobs of a node.
//! Where it comes from (a file, flags) is the binary's affair.

use std::collections::BTreeMap;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::history::ModelRef;
use crate::plugin::{ExchangeTimeouts, Model};

/// Agents and providers by name.
#[derive(Clone, Debug, PartialEq, Default)]
pub struct Config {
    pub agents: BTreeMap<String, Agent>,
    pub providers: BTreeMap<String, Provider>,
}

/// What a session runs with.
#[derive(Clone, Debug, PartialEq)]
pub struct Agent {
    /// Alias of a runner.
    pub runner: String,
    pub model: ModelRef,
    pub toolboxes: Vec<Toolbox>,
    pub system_prompt: Option<String>,
    /// Options of the runner, JSON text.
    pub options: Option<String>,
    /// Decisions that a turn may take.
    pub steps: u32,
    /// Tokens for a session, in and out.
    pub tokens: Option<u64>,
    /// Millionths of a US dollar for a session.
    pub cost: Option<u64>,
    /// Milliseconds for a turn, waits included.
    pub time_ms: Option<u64>,
    /// Children that a session may spawn in all.
    pub max_children: u32,
    /// How deep a tree of sessions may grow; the root is at 0.
    pub max_depth: u32,
    /// Which calls of tools may run.
    pub tool_policy: crate::approval::Policy,
    /// What a session may do by itself, unless it was created with a policy of its own.
    pub resume: crate::policy::Resume,
}

/// A toolbox that an agent has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Toolbox {
    /// Alias of a toolbox.
    pub alias: String,
    /// JSON text.
    pub options: Option<String>,
}

/// A configured provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Provider {
    /// Alias of a provider plugin.
    pub plugin: String,
    /// Without a slash at the end.
    pub base_url: Option<String>,
    /// JSON text.
    pub options: Option<String>,
    /// What is known of its models, beside the manifest.
    pub models: Vec<Model>,
}

impl Default for Agent {
    fn default() -> Self {
        Self {
            runner: "loop".into(),
            model: ModelRef {
                provider: "parrot".into(),
                model: "parrot".into(),
            },
            toolboxes: Vec::new(),
            system_prompt: None,
            options: None,
            steps: 64,
            tokens: None,
            cost: None,
            time_ms: None,
            max_children: 64,
            max_depth: 4,
            tool_policy: crate::approval::Policy::default(),
            resume: crate::policy::Resume::default(),
        }
    }
}

/// The configuration of a running node. Replaced as a whole; the next decision sees the new one.
#[derive(Debug, Default)]
pub struct SharedConfig(RwLock<Arc<Config>>);

impl SharedConfig {
    #[must_use]
    pub fn new(config: Config) -> Self {
        Self(RwLock::new(Arc::new(config)))
    }

    /// The configuration now.
    #[must_use]
    pub fn get(&self) -> Arc<Config> {
        Arc::clone(
            &self
                .0
                .read()
                .unwrap_or_else(std::sync::PoisonError::into_inner),
        )
    }

    /// Replaces it.
    pub fn set(&self, config: Config) {
        *self
            .0
            .write()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = Arc::new(config);
    }
}

/// The knobs of a node.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a claim lasts without a renewal.
    pub lease: Duration,
    /// A node drops its guests this long before its lease can have run out.
    pub lease_margin: Duration,
    /// How often claims are renewed.
    pub renew_every: Duration,
    /// How often the recovery loop looks.
    pub poll_every: Duration,
    /// Streamed output becomes durable at least this often.
    pub flush_every: Duration,
    /// Crashes in a row after which a session is quarantined.
    pub max_attempts: u32,
    /// Executions at once; what is beyond it waits, or runs at another node.
    pub capacity: u32,
    /// Executions at once that recovery has started.
    pub resume_concurrency: usize,
    /// Tries of one model call, the first included.
    pub max_tries: u32,
    /// First wait between tries; doubled each time, with jitter.
    pub retry_base: Duration,
    /// Longest wait between tries, unless the server asks for more.
    pub retry_max: Duration,
    /// What a runner may take to be asked, its wait for a thread not counted, before its step's results
    /// are committed.
    pub decide_within: Duration,
    /// How long an interrupted call may clean up.
    pub cancel_grace: Duration,
    /// How long a shutdown waits for steps in flight.
    pub shutdown_grace: Duration,
    /// Bytes of a tool's text that a model sees.
    pub tool_output_shown: usize,
    pub timeouts: ExchangeTimeouts,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(30),
            lease_margin: Duration::from_secs(5),
            renew_every: Duration::from_secs(10),
            poll_every: Duration::from_secs(1),
            flush_every: Duration::from_secs(1),
            max_attempts: 3,
            capacity: 1024,
            resume_concurrency: 64,
            max_tries: 5,
            retry_base: Duration::from_millis(500),
            retry_max: Duration::from_secs(60),
            decide_within: Duration::from_millis(5),
            cancel_grace: Duration::from_secs(1),
            shutdown_grace: Duration::ZERO,
            tool_output_shown: 32 * 1024,
            timeouts: ExchangeTimeouts::default(),
        }
    }
}
