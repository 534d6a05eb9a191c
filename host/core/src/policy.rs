//! What a session may do by itself: whether work that nobody asks for now is started, or held back
//! until a person says so. One question, [`Resume::holds`], asked wherever something would start
//! without a client: by recovery and by the loop's claim.

use serde::{Deserialize, Serialize};

use crate::id::Millis;
use crate::tail::Session;

/// A day without a client or an execution makes `auto` ask.
const MAX_AGE_MS: Millis = 24 * 60 * 60 * 1000;

/// A session's policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct Resume {
    pub mode: ResumeMode,
    /// `auto` becomes `ask` once neither a client nor an execution has written for this long, in
    /// milliseconds. `None` is a day.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_age_ms: Option<Millis>,
}

/// What happens to work that would start by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ResumeMode {
    /// It starts.
    #[default]
    Auto,
    /// It waits for a decision.
    Ask,
    /// It stays stopped, and what is pending loses its intent to run.
    Never,
}

/// Why a session is held back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeldBack {
    Ask,
    Never,
    /// Nobody has written for longer than its maximum age.
    Age,
}

impl std::fmt::Display for HeldBack {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Ask => "its resume policy is `ask`",
            Self::Never => "its resume policy is `never`",
            Self::Age => "it was left alone for longer than its maximum age",
        })
    }
}

impl Resume {
    /// Nothing but the default.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Why the session is not to start by itself at `now` of the store's clock, if it is not.
    ///
    /// A wait that the session asked for may be as long as it likes.
    #[must_use]
    pub fn holds(self, session: &Session, now: Millis) -> Option<HeldBack> {
        match self.mode {
            ResumeMode::Never => Some(HeldBack::Never),
            ResumeMode::Ask => Some(HeldBack::Ask),
            ResumeMode::Auto => {
                let age = now.saturating_sub(session.active_at);
                (session.wait.is_none() && age > self.max_age_ms.unwrap_or(MAX_AGE_MS))
                    .then_some(HeldBack::Age)
            }
        }
    }
}
