//! What is wrong with the database, in words for operators, and whether waiting helps.

use std::fmt;
use std::time::{Duration, Instant};

use mainstay_core::BoxError;
use mainstay_core::port::StoreError;
use rand::Rng as _;

/// A failure of the database or of the way to it.
#[derive(Debug)]
pub struct Trouble {
    /// Host, port and database.
    place: String,
    cause: sqlx::Error,
}

/// What a failure is good for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The connection or the server went away; whether a statement took effect is not known.
    Gone,
    /// Rolled back for the sake of another transaction.
    Crossed,
    /// An id or a key is there already.
    Held,
    /// The claim is not held, or has not expired, by the database's clock.
    Fenced,
    /// Repeating it changes nothing.
    Lasting,
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the database {} {}", self.place, state(&self.cause))?;
        match code(&self.cause) {
            Some(code) => write!(f, " (SQLSTATE {code})"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Trouble {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.cause)
    }
}

impl Trouble {
    pub(super) fn new(place: &str, cause: sqlx::Error) -> Self {
        Self {
            place: place.into(),
            cause,
        }
    }

    pub(super) fn kind(&self) -> Kind {
        match &self.cause {
            sqlx::Error::Database(_) => match code(&self.cause).as_deref() {
                Some("40001" | "40P01" | "55P03") => Kind::Crossed,
                Some("23505") => Kind::Held,
                // See `session_commit`.
                Some("MSF01") => Kind::Fenced,
                // Starting up, shutting down, out of connections.
                Some("57P01" | "57P02" | "57P03" | "57P05" | "53300") => Kind::Gone,
                Some(code) if code.starts_with("08") => Kind::Gone,
                _ => Kind::Lasting,
            },
            sqlx::Error::Io(_) | sqlx::Error::Protocol(_) | sqlx::Error::WorkerCrashed => {
                Kind::Gone
            }
            _ => Kind::Lasting,
        }
    }

    /// The database itself answered, and listens for more.
    pub(super) fn is_answer(&self) -> bool {
        matches!(self.cause, sqlx::Error::Database(_)) && self.kind() != Kind::Gone
    }

    pub(super) fn during(self, action: &'static str) -> StoreError {
        StoreError::Unavailable {
            action,
            cause: BoxError::from(self),
        }
    }
}

fn code(error: &sqlx::Error) -> Option<String> {
    Some(error.as_database_error()?.code()?.into_owned())
}

fn state(error: &sqlx::Error) -> &'static str {
    match error {
        sqlx::Error::Io(cause) => match cause.kind() {
            std::io::ErrorKind::ConnectionRefused | std::io::ErrorKind::NotFound => {
                "does not listen: is it running?"
            }
            std::io::ErrorKind::TimedOut => "does not answer",
            _ => "dropped the connection",
        },
        sqlx::Error::Tls(_) => "was not reached over TLS",
        sqlx::Error::Protocol(_) => "was cut off, or does not speak Postgres' protocol",
        sqlx::Error::Database(_) => match code(error).unwrap_or_default().as_str() {
            "57P01" | "57P02" => "is shutting down",
            "57P03" => "is starting up or in recovery",
            "53300" => "has no connection left: raise max_connections or ask for fewer",
            "53100" => "has no disk space left",
            "53200" => "is out of memory",
            "25006" => "is read-only: is this a standby?",
            "28000" | "28P01" => "does not let this user in",
            "3D000" => "does not exist",
            "42501" => "denies a permission",
            "42P01" | "42883" | "42703" => "lacks a part of the schema",
            "58030" | "XX001" | "XX002" => "has a damaged or failing disk",
            "40001" | "40P01" => "is contended",
            _ => "refused a statement",
        },
        _ => "gave an answer that was not understood",
    }
}

/// How long a statement is repeated, and how often.
pub(super) struct Patience {
    until: Instant,
    pause: Duration,
}

const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

impl Patience {
    pub(super) fn new(most: Duration) -> Self {
        Self {
            until: Instant::now() + most,
            pause: FIRST_PAUSE,
        }
    }

    /// Waits a little longer than the last time, by chance shorter than others that wait. False once
    /// there is no patience left.
    pub(super) async fn wait(&mut self) -> bool {
        if Instant::now() >= self.until {
            return false;
        }
        let pause = shortened(self.pause);
        self.pause = (self.pause * 2).min(LONGEST_PAUSE);
        tokio::time::sleep(pause).await;
        true
    }
}

/// By chance, so that many that wait do not go on at once.
pub(super) fn shortened(pause: Duration) -> Duration {
    pause.mul_f64(rand::rng().random_range(0.5..1.0))
}
