//! `mainstay gc`: remove what nothing needs any more.

use std::sync::Arc;
use std::time::Duration;

use mainstay_server::Collector as _;
use mainstay_server::wire::{Collect, Collected};

use crate::access::{Context, Way};
use crate::args::Gc;
use crate::backing::Backing;
use crate::collector::Collector;
use crate::error::{Code, Error, Result};
use crate::paths::Paths;
use crate::plugins::Plugins;
use crate::printer::{size, tame};

pub(crate) async fn gc(context: &Context, args: &Gc) -> Result<()> {
    let ask = Collect {
        dry_run: args.dry_run,
        keep_ms: Some(ms(args.keep)),
        sessions_ms: args.sessions.map(ms),
        bodies_ms: args.bodies.map(ms),
    };
    let collected = if let Some(paths) = context.database()? {
        here(context, &paths, ask).await?
    } else {
        match context.way().await? {
            Way::Server(client) => client.collect(&ask).await?,
            Way::File(paths) => here(context, &paths, ask).await?,
        }
    };
    if context.printer.json {
        context.printer.value(&collected)?;
        return Ok(());
    }
    tell(context, &collected)
}

/// On the store itself.
async fn here(context: &Context, paths: &Paths, ask: Collect) -> Result<Collected> {
    let loaded = context.config()?;
    let store = Backing::change(paths).await?;
    let plugins = Plugins::new(paths, &loaded, store.port())?;
    let collector = Collector::new(store.clone(), Arc::new(plugins), loaded.keep);
    let done = collector.collect(ask).await;
    store.close().await;
    done.map_err(|error| {
        Error::new(Code::Unavailable, "it broke off, and a part may be removed")
            .because(&*error)
            .hint("run it again")
    })
}

fn ms(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn tell(context: &Context, collected: &Collected) -> Result<()> {
    let printer = &context.printer;
    for component in &collected.components {
        printer.line(format!(
            "{:<9} {} {}  {}  {}",
            component.kind.to_string(),
            tame(&component.name),
            tame(&component.version),
            &component.digest[..component.digest.len().min(12)],
            size(component.bytes)
        ))?;
    }
    let of_components = collected.components.iter().map(|one| one.bytes).sum();
    for (what, count, bytes) in [
        (
            "components",
            collected.components.len() as u64,
            of_components,
        ),
        (
            "files of compiled code",
            collected.code_files,
            collected.code_bytes,
        ),
        ("blobs", collected.blobs, collected.blob_bytes),
    ] {
        printer.line(format!("{count} {what}, {}", size(bytes)))?;
    }
    if collected.sessions > 0 {
        printer.line(format!(
            "{} sessions past their retention",
            collected.sessions
        ))?;
    }
    if collected.bodies > 0 {
        let bytes = size(collected.body_bytes);
        printer.line(format!(
            "{} bodies of old events, {bytes}",
            collected.bodies
        ))?;
    }
    if collected.nodes > 0 {
        printer.line(format!("{} nodes that ended long ago", collected.nodes))?;
    }
    printer.note(if collected.dry_run {
        format!(
            "nothing was removed; without --dry-run, {} go",
            size(collected.bytes)
        )
    } else {
        format!("removed {}", size(collected.bytes))
    });
    Ok(())
}
