//! `mainstay gc`: remove what nothing needs any more.

use std::sync::Arc;

use mainstay_core::port::Store;
use mainstay_server::Collector as _;
use mainstay_server::wire::{Collect, Collected};

use crate::access::{self, Context, Way};
use crate::args::Gc;
use crate::collector::Collector;
use crate::error::{Code, Error, Result};
use crate::plugins::Plugins;
use crate::printer::{size, tame};

pub(crate) async fn gc(context: &Context, args: &Gc) -> Result<()> {
    let ask = Collect {
        dry_run: args.dry_run,
        keep_ms: Some(u64::try_from(args.keep.as_millis()).unwrap_or(u64::MAX)),
    };
    let collected = match context.way().await? {
        Way::Server(client) => client.collect(&ask).await?,
        Way::File(paths) => {
            let loaded = context.config()?;
            let store = Arc::new(access::write(&paths).await?);
            let plugins = Plugins::new(&paths, &loaded, Arc::clone(&store) as Arc<dyn Store>)?;
            let collector = Collector::new(Arc::clone(&store), Arc::new(plugins));
            let done = collector.collect(ask).await;
            store.close().await;
            done.map_err(|error| {
                Error::new(Code::Unavailable, "it broke off, and a part may be removed")
                    .because(&*error)
                    .hint("run it again")
            })?
        }
    };
    if context.printer.json {
        context.printer.value(&collected)?;
        return Ok(());
    }
    tell(context, &collected)
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
