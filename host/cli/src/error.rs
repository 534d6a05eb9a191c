//! What a command can end with, and how it is told: what is wrong, why, and what to do next.

use std::error::Error as StdError;
use std::io;
use std::path::Path;

use mainstay_core::commit::Refused;
use mainstay_core::export::ImportError;
use mainstay_core::port::StoreError;
use mainstay_core::tail::NotRunnable;
use mainstay_server::{PluginError, RegistryFault};
use mainstay_store::{OpenError, is_broken, postgres};

/// Exit codes. The table in [`EXIT_CODES`] documents them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Code {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Conflict = 4,
    Config = 5,
    PluginRefused = 6,
    Unavailable = 7,
    Damaged = 8,
    Different = 9,
    Interrupted = 130,
    Ended = 143,
}

/// Part of `--help`.
pub(crate) const EXIT_CODES: &str = "\
Exit codes:
    0  done
    1  the turn failed, or something unexpected happened
    2  the command line makes no sense
    3  the session, plugin or file was not found
    4  conflict: the store is in use, the session is busy, cancelled or quarantined
    5  the configuration is wrong or incomplete
    6  the plugin is refused, or does not conform
    7  the store, the server or the registry cannot be reached
    8  the store, or a file that is imported, is damaged
    9  `replay` found decisions that differ
  130  interrupted
  143  ended by SIGTERM; what ran goes on at the next start";

/// What to do about a file that is broken.
const DAMAGED: &str = "keep a copy of the file with its `-wal`, and go back to a backup that \
                       `mainstay doctor` finds healthy";

/// The end of a command that did not do what was asked.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) code: Code,
    pub(crate) message: String,
    pub(crate) causes: Vec<String>,
    pub(crate) hint: Option<String>,
    /// The reader of our output has gone, which is no failure.
    pub(crate) broken_pipe: bool,
}

pub(crate) type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
            causes: Vec::new(),
            hint: None,
            broken_pipe: false,
        }
    }

    pub(crate) fn failed(message: impl Into<String>) -> Self {
        Self::new(Code::Failed, message)
    }

    /// Adds a cause in words.
    pub(crate) fn cause(mut self, cause: impl Into<String>) -> Self {
        self.causes.push(cause.into());
        self
    }

    /// Adds an error and its own causes.
    pub(crate) fn because(mut self, error: &dyn StdError) -> Self {
        let mut next = Some(error);
        while let Some(error) = next {
            self.causes.push(error.to_string());
            next = error.source();
        }
        self
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
}

impl From<io::Error> for Error {
    /// For errors of our own output; other files add what was to be done.
    fn from(error: io::Error) -> Self {
        let broken_pipe = error.kind() == io::ErrorKind::BrokenPipe;
        Self {
            broken_pipe,
            ..Self::failed("cannot write the output").because(&error)
        }
    }
}

impl From<StoreError> for Error {
    fn from(error: StoreError) -> Self {
        match &error {
            StoreError::Refused(refused) => Self::from_refused(refused),
            StoreError::Unavailable { .. } if is_broken(&error) => Self {
                causes: causes(&error),
                ..Self::new(Code::Damaged, error.to_string())
            }
            .hint(DAMAGED),
            StoreError::Unavailable { .. } => Self {
                causes: causes(&error),
                ..Self::new(Code::Unavailable, error.to_string())
            }
            .hint("see whether the disk is full or the database away, then try again"),
            StoreError::Damaged { .. } => Self::failed(error.to_string()),
        }
    }
}

impl Error {
    fn from_refused(refused: &Refused) -> Self {
        let text = refused.to_string();
        match refused {
            Refused::NotFound(_) => Self::new(Code::NotFound, text)
                .hint("list the sessions with `mainstay session list`"),
            Refused::InputNotFound(_) => Self::new(Code::NotFound, text)
                .hint("look at the session with `mainstay session show ID`"),
            Refused::ApprovalNotFound { .. } => Self::new(Code::NotFound, text)
                .hint("list what is asked with `mainstay session approvals ID`"),
            Refused::NotRunnable(NotRunnable::Quarantined(_) | NotRunnable::Held(_)) => {
                Self::new(Code::Conflict, text)
                    .hint("let it go on with `mainstay session resume ID`")
            }
            Refused::NotRunnable(NotRunnable::Imported(_)) | Refused::OtherOrigin { .. } => {
                Self::new(Code::Conflict, text)
                    .hint("make it this store's own with `mainstay session adopt ID`")
            }
            Refused::Cancelled(_) | Refused::NotRunnable(NotRunnable::Cancelled) => {
                Self::new(Code::Conflict, text).hint("begin another with `mainstay run \"…\"`")
            }
            Refused::Busy(_) => Self::new(Code::Conflict, text)
                .hint("stop it with `mainstay session interrupt ID`, then try again"),
            Refused::NothingToRevert(_) | Refused::NotReverted(_) | Refused::NothingToFork(_) => {
                Self::new(Code::Conflict, text)
                    .hint("look at its messages with `mainstay session show ID`")
            }
            Refused::Rule(_) => Self::failed(text),
            _ => Self::new(Code::Conflict, text),
        }
    }
}

impl From<OpenError> for Error {
    fn from(error: OpenError) -> Self {
        let (code, hint) = match &error {
            OpenError::Owned {
                holder: Some(holder),
                ..
            } if holder.address.is_some() => (
                Code::Conflict,
                Some(
                    "use its server (`mainstay session list` finds it), stop that process, or name another \
                     file with `--store`",
                ),
            ),
            OpenError::Owned { .. } => (
                Code::Conflict,
                Some("stop that process or wait for it, or name another file with `--store`"),
            ),
            OpenError::Missing { .. } => (
                Code::NotFound,
                Some("begin a session with `mainstay run`, or name the file with `--store`"),
            ),
            OpenError::Foreign { .. } => (Code::Config, Some("name another file with `--store`")),
            OpenError::NewerSchema { .. }
            | OpenError::OlderSchema { .. }
            | OpenError::Network { .. } => (Code::Config, None),
            _ if is_broken(&error) => (Code::Damaged, Some(DAMAGED)),
            _ => (Code::Unavailable, None),
        };
        let causes = causes(&error);
        let hint = hint.map(Into::into);
        Self {
            causes,
            hint,
            ..Self::new(code, format!("cannot open the store: {error}"))
        }
    }
}

impl From<postgres::OpenError> for Error {
    fn from(error: postgres::OpenError) -> Self {
        let (code, hint) = match &error {
            postgres::OpenError::Url(_) => (Code::Usage, None),
            postgres::OpenError::Unavailable { .. } => (
                Code::Unavailable,
                Some("see that the server runs and that the URL's user may connect"),
            ),
            postgres::OpenError::Missing { .. } => (Code::NotFound, None),
            _ => (Code::Config, None),
        };
        let causes = causes(&error);
        let hint = hint.map(Into::into);
        Self {
            causes,
            hint,
            ..Self::new(code, format!("cannot open the store: {error}"))
        }
    }
}

impl Error {
    /// An export that could not be taken in, by what is wrong with it.
    pub(crate) fn from_import(file: &Path, error: ImportError) -> Self {
        let code = match error {
            ImportError::Store { cause, .. } => return cause.into(),
            _ if error.is_damage() => Code::Damaged,
            _ => Code::Usage,
        };
        let message = format!("{} cannot be imported", file.display());
        Self::new(code, message).because(&error)
    }

    /// An export that could not be read.
    pub(crate) fn unreadable(file: &Path, error: &io::Error) -> Self {
        let code = match error.kind() {
            io::ErrorKind::NotFound => Code::NotFound,
            // No text.
            io::ErrorKind::InvalidData => Code::Damaged,
            _ => Code::Failed,
        };
        Self::new(code, format!("cannot read {}", file.display())).because(error)
    }
}

impl From<PluginError> for Error {
    fn from(error: PluginError) -> Self {
        match &error {
            PluginError::Refused(text) => Self::new(Code::PluginRefused, "the plugin is refused")
                .cause(text.clone())
                .hint("see what it asks for with `mainstay plugin inspect FILE`"),
            PluginError::NotFound(text) => Self::new(Code::NotFound, text.clone())
                .hint("list the plugins with `mainstay plugin list`"),
            PluginError::Invalid(text) => Self::new(Code::Usage, text.clone()),
            PluginError::Registry {
                fault,
                text,
                advice,
            } => {
                let code = match fault {
                    RegistryFault::Unreachable => Code::Unavailable,
                    RegistryFault::Denied => Code::Config,
                    RegistryFault::NotFound => Code::NotFound,
                    RegistryFault::Refused => Code::PluginRefused,
                };
                Self::new(code, "the plugin is not loaded")
                    .cause(text.clone())
                    .hint(advice.clone())
            }
            PluginError::Unavailable(_) => Self {
                causes: causes(&error),
                ..Self::new(Code::Unavailable, error.to_string())
            },
        }
    }
}

fn causes(error: &dyn StdError) -> Vec<String> {
    let mut causes = Vec::new();
    let mut next = error.source();
    while let Some(error) = next {
        causes.push(error.to_string());
        next = error.source();
    }
    causes
}
