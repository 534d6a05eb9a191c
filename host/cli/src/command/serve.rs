//! `mainstay serve`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use crate::access::{self, Context};
use crate::args::Serve;
use crate::error::{Code, Error, Result};
use crate::files;
use crate::host::{Host, Listen};
use crate::signals::Signals;

/// Where it listens unless told otherwise.
const PORT: u16 = 7070;

pub(crate) async fn serve(context: &Context, args: Serve) -> Result<()> {
    if context.global.server.is_some() {
        return Err(Error::new(
            Code::Usage,
            "`serve` is a server; `--server` is for the other commands",
        ));
    }
    files::raise();
    let loaded = context.config()?;
    let paths = context.paths()?;
    // Nodes share a database; a file has one owner. Said before an address is looked for.
    if paths.database.is_none() {
        access::unheld(&paths)?;
    }
    let token = match (&context.global.token, &loaded.server.token) {
        (Some(token), _) => Some(token.clone()),
        (None, Some(secret)) => Some(secret.value().ok_or_else(|| {
            Error::new(
                Code::Config,
                format!("the server's token is configured, but {secret} is not set"),
            )
            .hint("set it, or give one with `--token`")
        })?),
        (None, None) => None,
    };
    let address = args.listen.or(loaded.server.listen);
    let address = address.unwrap_or(SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), PORT));
    let hosts = args
        .hosts
        .into_iter()
        .chain(loaded.server.hosts.clone())
        .collect();
    let mut signals = Signals::listen()?;
    let host = Host::start(
        &context.paths()?,
        loaded,
        Listen {
            address,
            token,
            hosts,
        },
    )
    .await?;
    if context.printer.json {
        context
            .printer
            .value(&serde_json::json!({ "address": host.address }))?;
    } else {
        context
            .printer
            .line(format!("listening on {}", host.address))?;
    }
    signals.next().await;
    context.printer.note("closing; once more to close at once");
    host.shutdown(async move {
        signals.next().await;
    })
    .await;
    Ok(())
}
