//! The command line.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;
use mainstay_core::id::{OwnerId, Seq, SessionId};
use mainstay_core::plugin::Kind;

use crate::error::EXIT_CODES;

pub(crate) mod author;

/// Runs AI-agent sessions that survive anything.
#[derive(Debug, Parser)]
#[command(name = "mainstay", version, propagate_version = true, after_help = EXIT_CODES, max_term_width = 100)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) global: Global,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// Options of every command.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Global options")]
pub(crate) struct Global {
    /// Database file, or `postgres://…` [default: mainstay/mainstay.db in the user's data folder]
    #[arg(
        long,
        global = true,
        env = "MAINSTAY_STORE",
        value_name = "STORE",
        hide_env_values = true
    )]
    pub(crate) store: Option<PathBuf>,
    /// Configuration file [default: the nearest mainstay.toml upward, else the user's]
    #[arg(long, global = true, env = "MAINSTAY_CONFIG", value_name = "FILE")]
    pub(crate) config: Option<PathBuf>,
    /// Talk to the server at this address instead of opening a store
    #[arg(
        long,
        global = true,
        env = "MAINSTAY_SERVER",
        value_name = "URL",
        conflicts_with = "store"
    )]
    pub(crate) server: Option<String>,
    /// Bearer token: asked of clients by `serve`, sent by the other commands
    #[arg(
        long,
        global = true,
        env = "MAINSTAY_TOKEN",
        value_name = "TOKEN",
        hide_env_values = true
    )]
    pub(crate) token: Option<String>,
    /// Write data as JSON or JSON lines
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Write nothing but data and errors
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
    /// When to use colours
    #[arg(long, global = true, value_enum, default_value_t, value_name = "WHEN")]
    pub(crate) color: Color,
    /// What to log to stderr, for example `info` or `mainstay_core=debug`
    #[arg(long, global = true, env = "MAINSTAY_LOG", value_name = "FILTER")]
    pub(crate) log: Option<String>,
    /// How to write the log
    #[arg(
        long,
        global = true,
        value_enum,
        default_value_t,
        value_name = "FORMAT"
    )]
    pub(crate) log_format: LogFormat,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum LogFormat {
    #[default]
    Text,
    Json,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// See a session survive a kill, offline, in less than a minute
    Demo,
    /// Send a prompt and print the answer
    Run(Run),
    /// Talk with an agent, line by line
    Chat(Chat),
    /// Serve the HTTP API
    Serve(Serve),
    /// Look at sessions and steer them
    #[command(subcommand)]
    Session(Session),
    /// Look at plugins and change them
    #[command(subcommand)]
    Plugin(Plugin),
    /// Look at the nodes of a store, and drain one
    #[command(subcommand)]
    Node(Node),
    /// Ask a runner for what is recorded and say where it would decide otherwise
    Replay(Replay),
    /// Examine the store and say whether what must hold does
    Doctor(Doctor),
    /// Copy the store while it is in use
    Backup(Backup),
    /// Remove plugins, compiled code and bodies that nothing needs
    Gc(Gc),
    /// Move everything of a store to another
    Migrate(Migrate),
    /// Print a completion script
    Completions { shell: Shell },
}

/// Which agent, provider and model a session has.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct Choice {
    /// Agent of a new session [default: default]
    #[arg(long, value_name = "NAME")]
    pub(crate) agent: Option<String>,
    /// Configured provider of a new session
    #[arg(long, value_name = "NAME")]
    pub(crate) provider: Option<String>,
    /// Model of a new session: its name, or `provider/model`
    #[arg(long, value_name = "NAME")]
    pub(crate) model: Option<String>,
    /// Base URL of the provider, for a server that speaks the OpenAI chat protocol for example
    #[arg(long, value_name = "URL")]
    pub(crate) base_url: Option<String>,
    /// Go on with this session
    #[arg(long, value_name = "ID", conflicts_with = "resume")]
    pub(crate) session: Option<SessionId>,
    /// Go on with the most recent session
    #[arg(long = "continue", id = "resume")]
    pub(crate) resume: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "The answer alone goes to stdout; progress goes to stderr. With --json the session's events are \
                        printed as JSON lines.\n\nAfter a kill, `mainstay run --continue` lets the session finish what \
                        it was doing."
)]
pub(crate) struct Run {
    #[command(flatten)]
    pub(crate) choice: Choice,
    /// What to ask; `-` reads it from stdin. May be left out to go on with a session
    #[arg(required_unless_present_any = ["resume", "session"])]
    pub(crate) prompt: Vec<String>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "A line that is typed while the agent works reaches it at its next step. Ctrl-C stops what runs; \
                        Ctrl-D leaves the session as it is."
)]
pub(crate) struct Chat {
    #[command(flatten)]
    pub(crate) choice: Choice,
}

#[derive(Debug, Args)]
pub(crate) struct Serve {
    /// Address to listen on. Anything but loopback needs a token
    #[arg(long, value_name = "ADDRESS")]
    pub(crate) listen: Option<SocketAddr>,
    /// A further name under which clients may ask for this server; may be repeated
    #[arg(long = "host", value_name = "NAME")]
    pub(crate) hosts: Vec<String>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Session {
    /// List sessions, newest first
    List {
        /// Sessions at most
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=500))]
        limit: u32,
    },
    /// Show a session and its history
    Show { id: SessionId },
    /// Print a session's events
    Log {
        id: SessionId,
        /// Go on with what comes
        #[arg(long, short)]
        follow: bool,
        /// Only events behind this seq
        #[arg(long, default_value_t = 0, value_name = "SEQ")]
        after: Seq,
    },
    /// Stop what a session does
    Interrupt {
        id: SessionId,
        /// Let pending steers run afterwards
        #[arg(long = "continue")]
        and_continue: bool,
    },
    /// Let a quarantined or held back session go on
    Resume { id: SessionId },
    /// Stop a session and all below it, for good
    Cancel { id: SessionId },
    /// Send a session something under a name, for a runner that waits for it
    Signal {
        id: SessionId,
        name: String,
        /// JSON
        #[arg(default_value = "null", value_parser = json)]
        data: serde_json::Value,
    },
    /// List what a session asks of people
    Approvals { id: SessionId },
    /// Approve what a session asks
    Approve {
        id: SessionId,
        key: String,
        #[arg(long)]
        reason: Option<String>,
    },
    /// Deny what a session asks
    Deny {
        id: SessionId,
        key: String,
        #[arg(long)]
        reason: Option<String>,
    },
    /// Have a session's older history summarised at its next step
    Compact { id: SessionId },
    /// Begin a session with a copy of another's history
    Fork {
        id: SessionId,
        /// The last seq to copy; all that is settled if left out
        #[arg(long, value_name = "SEQ")]
        through: Option<Seq>,
    },
    /// Hide the end of a history, until the next prompt makes that final
    Revert {
        id: SessionId,
        /// The first seq that is to go
        #[arg(long, value_name = "SEQ", required_unless_present = "undo")]
        before: Option<Seq>,
        /// Show again what a revert hides
        #[arg(long, conflicts_with = "before")]
        undo: bool,
    },
    /// Write a session to a file of JSON lines
    Export {
        id: SessionId,
        /// Standard output if left out
        #[arg(long, value_name = "FILE")]
        to: Option<PathBuf>,
    },
    /// Take an exported session in
    Import {
        file: PathBuf,
        /// Skip a session of another origin instead of refusing it
        #[arg(long)]
        lenient: bool,
    },
    /// Make an imported session this store's own
    Adopt { id: SessionId },
    /// Take a session from the process that runs it
    TakeOver { id: SessionId },
    /// Remove a session with its history
    Delete { id: SessionId },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Node {
    /// List nodes: those that live, and those that ended lately
    List,
    /// Ask a node to take no more, hand over what it has, and end
    #[command(
        after_help = "The node reads it with its next renewal, within two thirds of a lease at most. Its sessions go on at \
                            the other nodes. Any node can be asked through any other."
    )]
    Drain { id: OwnerId },
}

#[derive(Debug, Subcommand)]
pub(crate) enum Plugin {
    /// Begin a plugin: a folder that builds and conforms, to be changed
    New(author::New),
    /// Build the plugin in a folder
    Build(author::Build),
    /// Ask a component whether it keeps its contract
    Check(author::Check),
    /// Ask a runner again for what recorded sessions decided
    Test(author::Test),
    /// List plugins and the names that lead to them
    List,
    /// Check a component and keep it
    Install {
        /// A file, or an artifact in a registry: `oci://HOST/REPOSITORY:TAG` or `…@sha256:DIGEST`
        source: String,
        /// Name to install it under [default: the plugin's own]
        #[arg(long, value_name = "NAME")]
        alias: Option<String>,
    },
    /// Show what a component is and what it asks for
    Inspect {
        /// A file, an artifact (`oci://…`), or the name or digest of an installed plugin
        plugin: String,
    },
    /// Show what providers and toolboxes ask for, are granted, and have used
    Access {
        /// One of them, by the name that it is granted under
        name: Option<String>,
    },
    /// Take a plugin's name away
    Remove {
        #[arg(value_parser = kind)]
        kind: Kind,
        alias: String,
    },
    /// Point a name at an installed component
    Alias {
        #[arg(value_parser = kind)]
        kind: Kind,
        alias: String,
        digest: String,
    },
}

#[derive(Debug, Args)]
#[command(
    after_help = "Every recorded decision is asked for with the recorded history; no request is sent, no tool is \
                        called and nothing is written, beside a running server too. Exits with 9 if a decision \
                        differs; --json tells each difference in full.\n\nWhat no event records is taken as it is \
                        configured now: an agent's options, its system prompt and what is known of its model."
)]
pub(crate) struct Replay {
    /// Sessions by their ids, or files that `session export` wrote
    #[arg(required = true, value_name = "SESSION")]
    pub(crate) sessions: Vec<String>,
    /// Who is asked: a file, or the name or digest of an installed runner
    #[arg(long, value_name = "RUNNER")]
    pub(crate) runner: String,
    /// Leave out what a runner of another name has decided
    #[arg(long)]
    pub(crate) own: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Reads the store, a file or a Postgres database, and writes nothing (but for --rebuild), beside \
                        running servers too. Exits with 8 if something is wrong; --json tells where, breach by breach."
)]
pub(crate) struct Doctor {
    /// Leave out whether indexes agree with their tables
    #[arg(long)]
    pub(crate) quick: bool,
    /// Write rows that do not follow from their log anew. A file it needs to itself
    #[arg(long)]
    pub(crate) rebuild: bool,
}

#[derive(Debug, Args)]
#[command(
    after_help = "For files; a Postgres database is copied with pg_dump. The copy holds everything that was \
                        acknowledged before it began. Workspaces are not in it. Never run \
                        the copy while the original runs: both would go on with the same sessions."
)]
pub(crate) struct Backup {
    /// File to write
    pub(crate) to: PathBuf,
    /// Replace that file if it exists
    #[arg(long)]
    pub(crate) force: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Gc {
    /// Tell what would go, and remove nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
    /// What was in use within this time stays, `30d` for example
    #[arg(long, value_name = "TIME", default_value = "1h", value_parser = time)]
    pub(crate) keep: Duration,
    /// Delete sessions that nobody has used for so long, as `retention.sessions` does
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) sessions: Option<Duration>,
    /// Compact the bodies of events that are older than this, as `retention.bodies` does
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub(crate) bodies: Option<Duration>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Moves sessions with their logs, inboxes, waits and claims that have run out, plugins with their \
                        names, and media. Nothing may run on either store meanwhile. Each session arrives whole or not \
                        at all; cut off, the same command goes on where it stopped. Afterwards both stores are examined \
                        as by `doctor`.\n\nThe source keeps everything: let nothing run on it any more. Exits with 4 if \
                        a store is in use, or something in the target is another than in the source, and with 8 if \
                        either is damaged."
)]
pub(crate) struct Migrate {
    /// Store to move from: `sqlite:FILE` or `postgres://…`
    #[arg(long, value_name = "STORE")]
    pub(crate) from: String,
    /// Store to move to, made where it is missing: `sqlite:FILE` or `postgres://…`
    #[arg(long, value_name = "STORE")]
    pub(crate) to: String,
    /// Tell what would be moved, and move nothing
    #[arg(long)]
    pub(crate) dry_run: bool,
}

fn time(text: &str) -> Result<Duration, String> {
    crate::config::span(text).ok_or_else(|| "expected a number and ms, s, m, h or d".into())
}

// A JSON value can be made of any text, as a string: that is not what is meant here.
fn json(text: &str) -> Result<serde_json::Value, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("no JSON: {error}; quote a string twice, '\"…\"'"))
}

fn kind(text: &str) -> Result<Kind, String> {
    match text {
        "runner" => Ok(Kind::Runner),
        "provider" => Ok(Kind::Provider),
        "toolbox" => Ok(Kind::Toolbox),
        _ => Err("expected runner, provider or toolbox".into()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[track_caller]
    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split(' '))
    }

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }

    #[test]
    fn a_prompt_may_be_left_out_only_to_go_on() {
        assert!(parse("mainstay run").is_err());
        assert!(parse("mainstay run --continue").is_ok());
        assert!(parse("mainstay run --session 01890a5d-ac96-774b-bcce-b302099a8057").is_ok());
        assert!(
            parse("mainstay run --continue --session 01890a5d-ac96-774b-bcce-b302099a8057")
                .is_err()
        );
        let Ok(Cli {
            command: Command::Run(run),
            ..
        }) = parse("mainstay run two words")
        else {
            panic!("a run")
        };
        assert_eq!(run.prompt, ["two", "words"]);
    }

    #[test]
    fn global_options_stand_anywhere() {
        for line in [
            "mainstay --json session list",
            "mainstay session list --json",
        ] {
            assert!(parse(line).expect("a command").global.json);
        }
        assert!(parse("mainstay --store a --server b session list").is_err());
    }

    #[test]
    fn kinds_are_checked() {
        assert!(parse("mainstay plugin remove runner loop").is_ok());
        let error = parse("mainstay plugin remove robot loop").expect_err("no such kind");
        assert!(
            error
                .to_string()
                .contains("expected runner, provider or toolbox")
        );
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn a_node_is_drained_by_its_id() {
        assert!(parse("mainstay node drain 01890a5d-ac96-774b-bcce-b302099a8057").is_ok());
        assert_eq!(
            parse("mainstay node drain a")
                .expect_err("no id")
                .exit_code(),
            2
        );
    }

    #[test]
    fn a_signal_carries_json() {
        let id = "01890a5d-ac96-774b-bcce-b302099a8057";
        let data = |args: &[&str]| {
            let line = ["mainstay", "session", "signal", id, "go"];
            match Cli::try_parse_from(line.iter().chain(args))?.command {
                Command::Session(Session::Signal { data, .. }) => Ok(data),
                other => panic!("{other:?}"),
            }
        };
        let given = |args: &[&str]| data(args).expect("JSON");
        assert_eq!(given(&[]), serde_json::Value::Null);
        assert_eq!(given(&[r#"{"n":1}"#]), serde_json::json!({ "n": 1 }));
        assert_eq!(given(&["\"text\""]), "text");
        let error: clap::Error = data(&["text"]).expect_err("no JSON");
        assert_eq!(error.exit_code(), 2);
    }

    #[test]
    fn cli_5_exit_codes_are_in_the_help() {
        let help = Cli::command().render_help().to_string();
        for code in [
            "  0  ", "  1  ", "  2  ", "  3  ", "  4  ", "  5  ", "  6  ", "  7  ", "  8  ",
            "  9  ", "130  ",
        ] {
            assert!(help.contains(code), "{code} is missing");
        }
    }
}
