//! One file per command.

mod backup;
mod chat;
mod completions;
mod demo;
mod doctor;
mod gc;
mod migrate;
mod node;
mod plugin;
pub(crate) mod replay;
mod run;
mod serve;
mod session;
mod steer;
mod transfer;

use crate::access::Context;
use crate::args::Command;
use crate::error::Result;

/// Does what the command line asks for.
pub(crate) async fn dispatch(context: &Context, command: Command) -> Result<()> {
    match command {
        Command::Demo => demo::demo(context).await,
        Command::Run(args) => run::run(context, args).await,
        Command::Chat(args) => chat::chat(context, args).await,
        Command::Serve(args) => serve::serve(context, args).await,
        Command::Session(args) => session::session(context, args).await,
        Command::Node(args) => node::node(context, args).await,
        Command::Plugin(args) => plugin::plugin(context, args).await,
        Command::Replay(args) => replay::replay(context, args).await,
        Command::Doctor(args) => doctor::doctor(context, &args).await,
        Command::Backup(args) => backup::backup(context, &args).await,
        Command::Gc(args) => gc::gc(context, &args).await,
        Command::Migrate(args) => migrate::migrate(context, &args).await,
        Command::Completions { shell } => completions::completions(context, shell),
    }
}
