//! `mainstay migrate`: move everything of a store to another, a file or a Postgres database, and have
//! both examined.

use std::io::IsTerminal as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use mainstay_core::id::EventId;
use mainstay_store::moving::{MoveError, Moved, move_all};
use serde::Serialize;

use crate::access::Context;
use crate::args::Migrate;
use crate::backing::Backing;
use crate::error::{Code, Error, Result};
use crate::paths::{Named, Paths};
use crate::printer::{Printer, tame};

/// How often people hear how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// What is printed with `--json`.
#[derive(Serialize)]
struct View<'v> {
    from: String,
    to: String,
    dry_run: bool,
    #[serde(flatten)]
    moved: &'v Moved,
    /// What `doctor` says of both afterwards. `None` in a dry run.
    from_healthy: Option<bool>,
    to_healthy: Option<bool>,
}

impl Named {
    fn is(&self, other: &Self) -> bool {
        let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
        match (self, other) {
            (Self::File(one), Self::File(other)) => real(one) == real(other),
            (one, other) => one == other,
        }
    }

    async fn source(&self, name: &str) -> Result<Backing> {
        match self {
            Self::File(path) => Backing::change(&Paths::new(Some(path))?).await,
            Self::Database(url) => Backing::tool(url, name, false).await,
        }
    }

    /// `None` where nothing is there and nothing is to be made.
    async fn target(&self, name: &str, dry_run: bool) -> Result<Option<Backing>> {
        match self {
            Self::File(path) if dry_run && !path.exists() => Ok(None),
            Self::File(path) => {
                let paths = Paths::new(Some(path))?;
                paths.create()?;
                Backing::make(&paths).await.map(Some)
            }
            Self::Database(url) if dry_run => match Backing::tool(url, name, false).await {
                Err(error) if error.code == Code::NotFound => Ok(None),
                opened => opened.map(Some),
            },
            Self::Database(url) => Backing::tool(url, name, true).await.map(Some),
        }
    }
}

pub(crate) async fn migrate(context: &Context, args: &Migrate) -> Result<()> {
    let named = |name: &String| Named::new(Path::new(name));
    let (from, to) = (named(&args.from)?, named(&args.to)?);
    let same = || {
        Error::new(Code::Usage, "`--from` and `--to` name the same store")
            .hint("name another place to move to")
    };
    if from.is(&to) {
        return Err(same());
    }
    // By which both are told from others at the databases.
    let name = format!("mainstay move {}", EventId::new());
    let source = from.source(&name).await?;
    let target = match to.target(&name, args.dry_run).await {
        Ok(target) => target,
        Err(error) => {
            source.close().await;
            return Err(error);
        }
    };
    let done = if target
        .as_ref()
        .is_some_and(|target| target.movable().place() == source.movable().place())
    {
        Err(same())
    } else {
        between(context, args, &source, target.as_ref()).await
    };
    source.close().await;
    if let Some(target) = target {
        target.close().await;
    }
    done
}

async fn between(
    context: &Context,
    args: &Migrate,
    from: &Backing,
    to: Option<&Backing>,
) -> Result<()> {
    let printer = &context.printer;
    let told = Mutex::new(Instant::now());
    let progress = |moved: &Moved| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if told.elapsed() >= PROGRESS {
            *told = Instant::now();
            let (done, all) = (moved.done(), moved.sessions);
            printer.dim(format!("{done} of {all} sessions …"));
        }
    };
    let target = to.map(Backing::movable);
    let moved = move_all(from.movable(), target, args.dry_run, progress).await;
    let moved = moved.map_err(stopped)?;
    let (mut from_healthy, mut to_healthy) = (None, None);
    if let Some(to) = to.filter(|_| !args.dry_run) {
        printer.dim("examining both …");
        from_healthy = Some(healthy(printer, from).await?);
        to_healthy = Some(healthy(printer, to).await?);
    }
    let view = View {
        from: from.movable().place(),
        to: to.map_or_else(|| args.to.clone(), |to| to.movable().place()),
        dry_run: args.dry_run,
        moved: &moved,
        from_healthy,
        to_healthy,
    };
    if printer.json {
        printer.value(&view)?;
    } else {
        show(printer, &view)?;
    }
    if from_healthy == Some(false) || to_healthy == Some(false) {
        let which = if to_healthy == Some(false) {
            &view.to
        } else {
            &view.from
        };
        return Err(Error::new(Code::Damaged, format!("{which} is damaged"))
            .hint("look where with `mainstay doctor`, before anything runs on the target"));
    }
    if !moved.conflicts.is_empty() {
        let what = format!("{} things are others in the target", moved.conflicts.len());
        return Err(Error::new(Code::Conflict, what)
            .hint("everything else is moved; delete what is wrong there, and run this again"));
    }
    Ok(())
}

async fn healthy(printer: &Printer, store: &Backing) -> Result<bool> {
    let watched = std::io::stderr().is_terminal();
    let told = Mutex::new(Instant::now());
    let progress = |done: u64, all: u64| {
        let mut told = told.lock().unwrap_or_else(PoisonError::into_inner);
        if watched && told.elapsed() >= PROGRESS {
            *told = Instant::now();
            printer.dim(format!("examined {done} of {all} sessions …"));
        }
    };
    Ok(store.examine(false, progress).await?.is_healthy())
}

fn show(printer: &Printer, view: &View<'_>) -> Result<()> {
    let moved = view.moved;
    for one in &moved.conflicts {
        let what = tame(&one.what);
        printer.line(match one.session {
            Some(session) => format!("session {session}: {what}"),
            None => what.into_owned(),
        })?;
    }
    printer.line(format!(
        "{} sessions: {} new with {} events, {} grown, {} held already, {} ahead in the target",
        moved.sessions, moved.new, moved.events, moved.grown, moved.held, moved.ahead
    ))?;
    printer.line(format!(
        "{} components, {} names, {} blobs",
        moved.components, moved.aliases, moved.blobs
    ))?;
    printer.note(if view.dry_run {
        "nothing was moved".to_owned()
    } else {
        format!(
            "{} still has all of it: let nothing run there any more",
            view.from
        )
    });
    Ok(())
}

fn stopped(error: MoveError) -> Error {
    let again = "what was moved stays; run the same command again to go on";
    match error {
        MoveError::Store(cause) => {
            let told = Error::from(cause);
            Error {
                hint: Some(again.into()),
                ..told
            }
        }
        MoveError::InUse { .. } => Error::new(Code::Conflict, error.to_string())
            .hint("stop its servers, then run this again"),
        MoveError::Claimed(_) => Error::new(Code::Conflict, error.to_string())
            .hint("stop the node that runs it, or wait until the claim has run out"),
        MoveError::Foreign { .. } => Error::new(Code::Config, error.to_string()).hint(again),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_itself_however_it_is_written() {
        let named = |name: &str| Named::new(Path::new(name)).unwrap();
        assert!(named("./a.db").is(&named("sqlite:./a.db")));
        assert!(!named("a.db").is(&named("postgres://u@h/a.db")));
    }
}
