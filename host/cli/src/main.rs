//! The binary `mainstay`: wires core, store, runtime and server, and talks to people.
//!
//! [`args`] is the command line, `command` has one file per command. Commands that run sessions start
//! a [`host`] and are its client; the others go through the server that owns the store, or read the
//! file ([`access`]). [`printer`] writes every byte.

mod access;
mod args;
mod backing;
mod choice;
mod client;
mod collector;
mod command;
mod config;
mod error;
mod files;
mod follow;
mod host;
mod limits;
mod logs;
mod paths;
mod plugins;
mod printer;
mod relay;
mod rules;
mod show;
mod signals;
mod sources;
mod watch;
mod wiring;

use std::process::ExitCode;
use std::sync::Arc;

use clap::Parser as _;

use access::Context;
use args::{Cli, Command};
use error::{Code, Error};
use printer::Printer;

/// A step allocates some hundred times, often for another thread to free.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let usage = error.use_stderr();
            // A broken pipe is success here too.
            let _ = error.print();
            return if usage {
                ExitCode::from(Code::Usage as u8)
            } else {
                ExitCode::SUCCESS
            };
        }
    };
    let printer = Arc::new(Printer::new(
        cli.global.json,
        cli.global.quiet,
        cli.global.color,
    ));
    match run(cli, &printer) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.broken_pipe => ExitCode::SUCCESS,
        Err(error) => {
            printer.error(&error);
            ExitCode::from(error.code as u8)
        }
    }
}

fn run(cli: Cli, printer: &Arc<Printer>) -> error::Result<()> {
    let usual = if matches!(cli.command, Command::Serve(_)) {
        "info"
    } else {
        "error"
    };
    logs::begin(&cli.global, usual)?;
    // HTTP clients of this process share one implementation of TLS.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Error::failed("cannot start the runtime").because(&error))?;
    let context = Context {
        global: cli.global,
        printer: Arc::clone(printer),
    };
    let done = runtime.block_on(command::dispatch(&context, cli.command));
    // A read of stdin that nobody waits for any more must not hold the process.
    runtime.shutdown_background();
    done
}
