//! The command line of plugin authors: begin, build, check and test a plugin.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use mainstay_core::plugin::Kind;
use mainstay_kit::Property;

use super::kind;

#[derive(Debug, Args)]
#[command(
    after_help = "A plugin in Rust depends on the crate mainstay-guest: the one that --sdk names, else that of the \
                        checkout around this folder or the one that this binary was built from, else the released one."
)]
pub(crate) struct New {
    /// What it is: runner, provider or toolbox
    #[arg(long, value_parser = kind)]
    pub(crate) kind: Kind,
    /// What it is written in
    #[arg(long, value_enum, default_value_t)]
    pub(crate) lang: Lang,
    /// Folder of the crate mainstay-guest
    #[arg(long, value_name = "FOLDER")]
    pub(crate) sdk: Option<PathBuf>,
    /// Its name, a-z, 0-9 and -: also the name of the folder that is made
    pub(crate) name: String,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Lang {
    #[default]
    Rust,
    Js,
    Python,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The component is written beside the source, as NAME.wasm, and its path to stdout.\n\nA plugin in Rust \
                        is built with the first of these that the machine has: the standard library for \
                        wasm32-unknown-unknown, its source (rust-src), or, on Debian, packages that are unpacked into \
                        a folder and not installed."
)]
pub(crate) struct Build {
    /// Folder of the plugin
    #[arg(default_value = ".")]
    pub(crate) folder: PathBuf,
    /// Where the compiler keeps its output [default: target in that folder]. Plugins may share one
    #[arg(long, value_name = "FOLDER", env = "MAINSTAY_TARGET_DIR")]
    pub(crate) target_dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Drives the component through its contract in temporary folders, without a network and without any \
                        store of yours, and reports property by property what holds; takes seconds. Exits with 6 if one \
                        is broken, after a report that names the commit, the cut or the input; --json gives the report \
                        as one value.\n\nWhat the kit cannot guess is read from the folder `check` beside the \
                        component, if it is there: `options.json`, `calls.jsonl` with a call of a tool a line, and \
                        `answers` with answers of a provider's server."
)]
pub(crate) struct Check {
    /// A component, or the folder of a plugin that was built
    #[arg(default_value = ".")]
    pub(crate) plugin: PathBuf,
    /// Options of the plugin, JSON
    #[arg(long, value_name = "JSON")]
    pub(crate) options: Option<String>,
    /// File with calls of a toolbox, a line each: {"tool": …, "arguments": …}
    #[arg(long, value_name = "FILE")]
    pub(crate) calls: Option<PathBuf>,
    /// Folder with answers of a provider's server, a file each
    #[arg(long, value_name = "FOLDER")]
    pub(crate) answers: Option<PathBuf>,
    /// Ask this property alone; may be repeated
    #[arg(long, value_name = "PROPERTY")]
    pub(crate) only: Vec<Property>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Each decision that is recorded is asked for again; nothing is executed. Exits with 9 if one differs. \
                        Without sessions, the files in `check/sessions` beside the component are taken."
)]
pub(crate) struct Test {
    /// A runner's component, or the folder of a plugin that was built
    pub(crate) plugin: PathBuf,
    /// Files that `mainstay session export` wrote
    #[arg(value_name = "FILE")]
    pub(crate) sessions: Vec<PathBuf>,
    /// Ask for what runners of other names have decided, too
    #[arg(long)]
    pub(crate) all: bool,
}
