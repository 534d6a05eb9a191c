//! A script: who does what when, and which guests and faults there are. It is all that a run depends
//! on, so that a failing one can be kept in a file, made smaller and played again.

use mainstay_core::event::Delivery;
use mainstay_core::model::FailureClass;
use mainstay_core::tail::Scope;
use serde::{Deserialize, Serialize};

/// A run, before it is run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Script {
    /// Of everything that the actions leave open: ids, jitter, latencies, orders of equals.
    pub seed: u64,
    /// Processes at once.
    pub nodes: usize,
    /// The agent of each session.
    pub sessions: Vec<Agent>,
    /// Most that a call of the store takes each way, in ms.
    pub latency_ms: u64,
    pub actions: Vec<Timed>,
}

/// Which runner a session has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Agent {
    /// Asks the model until it stops.
    Plain,
    /// Calls tools of its own accord, has tools of its own, keeps a state, compacts.
    Busy,
    /// As `Plain`, with an allowance of three steps.
    Few,
    /// Looks at one thing after the other of its own accord, then asks the model.
    Curious,
    /// Waits for a while, a signal or an approval before it is done.
    Patient,
    /// Spawns children and waits for them.
    Parent,
    /// As `Plain`; a person is asked about every call.
    Asked,
}

/// An action and its time since the beginning, in ms.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Timed {
    pub at_ms: u64,
    #[serde(flatten)]
    pub action: Action,
}

/// What a client, an operator or fate does. Clients try again, elsewhere, what was not answered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Action {
    /// Sends a prompt whose model will act by the plan.
    Prompt {
        input: u32,
        session: usize,
        node: usize,
        delivery: Delivery,
        plan: Vec<Answer>,
    },
    /// Sends the prompt of this number again, with other words.
    Retry {
        input: u32,
        session: usize,
        node: usize,
    },
    CancelInput {
        input: u32,
        session: usize,
        node: usize,
    },
    Redeliver {
        input: u32,
        session: usize,
        node: usize,
        delivery: Delivery,
    },
    Interrupt {
        session: usize,
        node: usize,
        /// Goes on with what is pending: with steers in the same request, with all by a wake after it.
        then: Option<Scope>,
    },
    /// Sends what the patient wait for.
    Signal {
        input: u32,
        session: usize,
        node: usize,
    },
    /// Answers what the patient ask.
    Approve {
        session: usize,
        node: usize,
        approved: bool,
    },
    Cancel {
        session: usize,
        node: usize,
    },
    TakeOver {
        session: usize,
        node: usize,
    },
    Fork {
        session: usize,
        node: usize,
        fork: usize,
    },
    /// Hides the last so many events.
    Revert {
        session: usize,
        node: usize,
        events: u64,
    },
    ClearRevert {
        session: usize,
        node: usize,
    },
    Wake {
        session: usize,
        node: usize,
        scope: Scope,
    },
    Run {
        session: usize,
        node: usize,
        forced: bool,
        gives_up_ms: Option<u64>,
    },
    Resume {
        session: usize,
        node: usize,
    },
    /// Follows the log from its beginning for as long as the node lives.
    Follow {
        session: usize,
        node: usize,
    },
    /// SIGKILL, and another process after a while.
    Kill {
        node: usize,
        when: When,
        back_ms: u64,
    },
    /// SIGTERM, and another process after a while.
    Shutdown {
        node: usize,
        back_ms: u64,
    },
    /// SIGSTOP and SIGCONT.
    Stop {
        node: usize,
        for_ms: u64,
    },
    Fault {
        /// Which node meets it; all without one.
        node: Option<usize>,
        fault: Fault,
        for_ms: u64,
    },
    /// Steps a node's wall clock to so many ms beside the store's.
    Clock {
        node: usize,
        by_ms: i64,
    },
}

/// At which moment a process dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum When {
    Now,
    /// Before its n-th commit from now is applied, counted from 1.
    Before(u32),
    /// After it is applied, before it is answered.
    After(u32),
}

/// What is wrong for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// Every call of the store fails.
    Down,
    /// Calls of the store take up to so many ms more, each way.
    Slow(u64),
    /// So many calls in a hundred fail, and nothing is done.
    Fails(u32),
    /// So many commits in a hundred are applied, and their writers told that they failed.
    Unanswered(u32),
    /// Renewals fail, and nothing is renewed.
    RenewalsLost,
    /// Renewals are done, and their askers told that they failed.
    RenewalsUnanswered,
    /// Renewals reach the store so many ms late.
    RenewalsLate(u64),
    /// The runner traps.
    RunnerTraps,
    /// The runner takes so many ms.
    RunnerSlow(u64),
    /// The runner decides what cannot be done.
    RunnerLies,
}

/// What the model does when it is asked once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// Says so many pieces with pauses, and stops.
    Say { pieces: u32, pause_ms: u32 },
    /// Makes calls, with a pause inside each.
    Call { calls: Vec<Call>, pause_ms: u32 },
    /// Fails so many times before it produces anything, then says something.
    Fail { class: FailureClass, times: u32 },
    /// Says something and breaks off.
    Cut,
    /// Calls a tool of its server, with or without a result.
    Hosted { answered: bool, pause_ms: u32 },
    /// Breaks the rules of model events.
    Lie,
    /// Answers over HTTP.
    Http(Http),
}

/// How an HTTP exchange goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Http {
    Whole,
    /// Breaks off after some of it.
    Breaks,
    /// Stops sending and stays open.
    Stalls,
    Status(u16),
    Unreachable,
}

/// One tool call and what its tool does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Call {
    pub tool: Tool,
    pub how: How,
}

/// Which tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tool {
    /// Pure.
    Look,
    /// Idempotent.
    Put,
    /// Once.
    Act,
    /// The runner's own, where it has one.
    Mine,
    /// There is none of this name.
    Nowhere,
}

/// What a tool does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    Well,
    /// Takes so many ms.
    Slow(u32),
    Traps,
    Fails,
    /// Runs into its limit of time, unless it is cancelled before.
    Hangs,
    /// As `Hangs`, and does not hear that it is cancelled.
    Deaf,
    /// Its arguments break its schema.
    BadArguments,
}

impl Tool {
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Look => "look",
            Self::Put => "put",
            Self::Act => "act",
            Self::Mine => "mine",
            Self::Nowhere => "nowhere",
        }
    }
}

impl Action {
    /// How long it goes on by itself, in ms.
    #[must_use]
    pub fn lasts_ms(&self) -> u64 {
        match self {
            Self::Stop { for_ms, .. } | Self::Fault { for_ms, .. } => *for_ms,
            Self::Kill { back_ms, .. } | Self::Shutdown { back_ms, .. } => *back_ms,
            _ => 0,
        }
    }
}

impl Script {
    /// When the last action is over, in ms.
    #[must_use]
    pub fn ends_ms(&self) -> u64 {
        self.actions
            .iter()
            .map(|timed| timed.at_ms + timed.action.lasts_ms())
            .max()
            .unwrap_or(0)
    }
}
