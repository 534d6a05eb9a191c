//! `mainstay node`: look at the nodes of a store, and ask one to drain.

use mainstay_core::id::{Millis, OwnerId};
use mainstay_core::nodes::NodeState;
use mainstay_core::port::{Clock as _, Store as _, SystemClock};
use mainstay_server::wire;
use owo_colors::OwoColorize as _;

use crate::access::{self, Context, Way};
use crate::args::Node;
use crate::error::{Code, Error, Result};
use crate::printer::{ago, tame};

pub(crate) async fn node(context: &Context, args: Node) -> Result<()> {
    match args {
        Node::List => list(context).await,
        Node::Drain { id } => drain(context, id).await,
    }
}

async fn list(context: &Context) -> Result<()> {
    let nodes = match context.way().await? {
        Way::Server(client) => client.nodes().await?,
        // Nothing has been kept yet.
        Way::File(paths) if !paths.store.exists() => Vec::new(),
        Way::File(paths) => {
            let (rows, _) = access::read(&paths).await?.nodes().await?;
            // Nobody owns the file: whoever has not said that it stopped is gone.
            let view = |row| wire::Node::new(row, Millis::MAX);
            rows.iter().map(view).collect()
        }
    };
    let now = SystemClock::default().wall();
    for node in &nodes {
        if context.printer.json {
            context.printer.value(node)?;
        } else {
            context.printer.line(line(node, now))?;
        }
    }
    if nodes.is_empty() {
        context
            .printer
            .note("there was no node yet; start one with `mainstay serve`");
    }
    Ok(())
}

async fn drain(context: &Context, id: OwnerId) -> Result<()> {
    let Way::Server(client) = context.way().await? else {
        return Err(Error::new(Code::NotFound, "no node runs on this store")
            .hint("see which have run with `mainstay node list`"));
    };
    client.drain(id).await?;
    context.printer.note(format!(
        "node {id} drains; it ends once what it runs is settled or handed over"
    ));
    Ok(())
}

fn line(node: &wire::Node, now: Millis) -> String {
    let (state, width) = match node.state {
        NodeState::Live => ("live".green().to_string(), 4),
        NodeState::Draining => ("draining".yellow().to_string(), 8),
        NodeState::Stopped => ("stopped".dimmed().to_string(), 7),
        NodeState::Gone => ("gone".red().to_string(), 4),
    };
    let pad = " ".repeat(10_usize.saturating_sub(width));
    let place = match (&node.host, node.pid) {
        (Some(host), Some(pid)) => format!("{}:{pid}", tame(host)),
        (None, Some(pid)) => format!("process {pid}"),
        (host, None) => tame(host.as_deref().unwrap_or_default()).into_owned(),
    };
    let claims = match node.claims {
        1 => "1 claim".into(),
        claims => format!("{claims} claims"),
    };
    format!(
        "{}  {state}{pad}{}/{} running, {claims}  started {}, seen {}  {}  {place}  v{}",
        node.id,
        node.load,
        node.capacity,
        ago(now.saturating_sub(node.started_at)),
        ago(now.saturating_sub(node.seen_at)),
        tame(node.address.as_deref().unwrap_or("no address")),
        tame(&node.version),
    )
}
