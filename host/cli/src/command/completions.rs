//! `mainstay completions`.

use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::access::Context;
use crate::args::Cli;
use crate::error::Result;

pub(crate) fn completions(context: &Context, shell: Shell) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mainstay", &mut script);
    let script = String::from_utf8_lossy(&script);
    if context.printer.json {
        context
            .printer
            .value(&serde_json::json!({ "shell": shell.to_string(), "script": script }))?;
    } else {
        context.printer.line(script.trim_end())?;
    }
    Ok(())
}
