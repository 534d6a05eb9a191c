//! Names of things: sessions, executions, owners, events, inputs, and a session's seqs.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

macro_rules! uuid_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub Uuid);

        impl $name {
            /// A fresh id (UUIDv7), ordered by the time at which it was made.
            #[allow(clippy::new_without_default, reason = "a default would hide that every call differs")]
            #[must_use]
            pub fn new() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id that always follows from `parent` and `role`, so that doing something twice
            /// names it once.
            #[must_use]
            pub fn derived(parent: Uuid, role: &str) -> Self {
                Self(Uuid::new_v5(&parent, role.as_bytes()))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({})", stringify!($name), self.0)
            }
        }

        impl FromStr for $name {
            type Err = uuid::Error;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                text.parse().map(Self)
            }
        }
    };
}

uuid_id! {
    /// Names a session.
    SessionId
}
uuid_id! {
    /// Names one busy period of one session.
    ExecutionId
}
uuid_id! {
    /// Names one start of one process. Never derived from a host's name, so that a process started
    /// again is another owner.
    OwnerId
}
uuid_id! {
    /// Names an event. Writing the same id twice with the same content stores it once.
    EventId
}
uuid_id! {
    /// Names an input, across all sessions. A caller may choose it to make an admission idempotent.
    InputId
}
uuid_id! {
    /// Names one run of the recovery transaction for one claim.
    RecoveryId
}

/// Number of an event within its session. The first is 1; 0 stands before all of them.
pub type Seq = u64;

/// Milliseconds since 1970-01-01T00:00Z.
pub type Millis = u64;

/// SHA-256 in lower-case hexadecimal.
pub type Digest = String;

/// The digest of some bytes.
#[must_use]
pub fn digest(bytes: &[u8]) -> Digest {
    use sha2::Digest as _;
    use std::fmt::Write as _;
    sha2::Sha256::digest(bytes)
        .iter()
        .fold(String::with_capacity(64), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
