//! What can go wrong, by what has to be done about it.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use crate::Language;

/// Why there is no component.
#[derive(Debug)]
pub enum Error {
    /// Nothing on this machine compiles to WebAssembly. The message says what to type.
    NoToolchain {
        /// Why the last way failed, where it was tried.
        cause: Option<Box<Error>>,
    },
    /// The compiler of another language is not there and could not be installed. The message says what
    /// that takes.
    NoCompiler {
        /// The language.
        language: Language,
        /// Why it could not be installed.
        cause: Box<Error>,
    },
    /// A program is not there or does not start.
    Start {
        /// The program.
        program: String,
        /// Why it does not start.
        cause: std::io::Error,
    },
    /// A program failed.
    Command {
        /// Its command line.
        line: String,
        /// How it ended.
        status: ExitStatus,
        /// What it said on stderr.
        output: String,
    },
    /// Cargo was content, but the package has no `cdylib`.
    NoComponent {
        /// The package.
        package: String,
        /// Where its component was expected.
        file: PathBuf,
    },
    /// A file could not be used.
    Io {
        /// What was to be done.
        action: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why it failed.
        cause: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, cause: std::io::Error) -> Self {
        Self::Io {
            action,
            path: path.to_owned(),
            cause,
        }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoToolchain { .. } => write!(
                f,
                "no Rust here compiles to {target}\n\nhint: type `rustup target add {target} \
                 --toolchain {TOOLCHAIN}` and build again",
                target = crate::TARGET,
            ),
            Self::NoCompiler { language, .. } => write!(
                f,
                "the compiler of plugins in {} could not be installed\n\nhint: {}, and build again with \
                 a way to its package registry",
                language.name(),
                language.needs(),
            ),
            Self::Start { program, .. } => write!(f, "could not start {program}"),
            Self::Command {
                line,
                status,
                output,
            } => write!(f, "{line}: {status}\n{output}"),
            Self::NoComponent { package, file } => write!(
                f,
                "package {package} made no {}: its crate-type lacks `cdylib`",
                file.display()
            ),
            Self::Io { action, path, .. } => write!(f, "could not {action} {}", path.display()),
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::NoToolchain { cause: Some(cause) } | Self::NoCompiler { cause, .. } => {
                Some(cause)
            }
            Self::Start { cause, .. } | Self::Io { cause, .. } => Some(cause),
            Self::NoToolchain { cause: None } | Self::Command { .. } | Self::NoComponent { .. } => {
                None
            }
        }
    }
}

/// The toolchain that `rust-toolchain.toml` pins.
const TOOLCHAIN: &str = "1.95.0";

/// An error and its causes, each on a line.
pub(crate) fn chain(error: &Error) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        text.push_str("\n  cause: ");
        text.push_str(&cause.to_string());
        next = cause.source();
    }
    text
}
