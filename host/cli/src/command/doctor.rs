//! `mainstay doctor`: examine the store and say whether what must hold does.

use std::collections::BTreeSet;
use std::io::IsTerminal as _;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use mainstay_core::id::SessionId;
use mainstay_core::invariant::{Invariant, Place};
use mainstay_core::port::StoreError;
use mainstay_store::Report;
use owo_colors::OwoColorize as _;
use serde::Serialize;

use crate::access::Context;
use crate::args::Doctor;
use crate::backing::Backing;
use crate::error::{Code, Error, Result};
use crate::paths::Paths;
use crate::printer::{Printer, tame};
use crate::{rules, wiring};

/// How often people hear how far it is.
const PROGRESS: Duration = Duration::from_secs(2);

/// What is printed with `--json`.
#[derive(Serialize)]
struct View<'r> {
    file: &'r std::path::Path,
    healthy: bool,
    schema: i64,
    sessions: u64,
    events: u64,
    /// Sessions whose rows were not compared: a newer build has written to them.
    not_compared: u64,
    /// What the database says of its structure and its settings.
    problems: &'r [String],
    /// Where the schema is not this build's.
    drift: &'r [String],
    invariants: Vec<Line<'r>>,
    /// What is odd about the configuration; the store is healthy all the same.
    warnings: &'r [String],
}

#[derive(Serialize)]
struct Line<'r> {
    number: u8,
    name: &'static str,
    state: State,
    /// Breaches, also those that are not in the list.
    count: u64,
    breaches: Vec<Breach<'r>>,
}

#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum State {
    Kept,
    Broken,
    NotShown,
}

#[derive(Serialize)]
struct Breach<'r> {
    session: String,
    #[serde(flatten)]
    place: &'r Place,
    what: &'r str,
}

pub(crate) async fn doctor(context: &Context, args: &Doctor) -> Result<()> {
    let printer = &context.printer;
    let paths = context.store("doctor")?;
    let mut report = examine(context, &paths, args.quick).await?;
    if args.rebuild && report.counts.contains_key(&Invariant::RowsFollowFromLog) {
        rebuild(context, &paths, &report).await?;
        report = examine(context, &paths, args.quick).await?;
    }
    let warnings = warnings(context, &paths).await;
    let view = view(&report, &warnings);
    if printer.json {
        printer.value(&view)?;
    } else {
        show(printer, &view)?;
    }
    if view.healthy {
        Ok(())
    } else {
        Err(damaged(&report))
    }
}

async fn examine(context: &Context, paths: &Paths, quick: bool) -> Result<Report> {
    let printer = &context.printer;
    let store = Backing::look(paths).await?;
    let told = Mutex::new(Instant::now());
    let watched = std::io::stderr().is_terminal();
    let progress = |done: u64, all: u64| {
        let mut told = told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if watched && told.elapsed() >= PROGRESS {
            *told = Instant::now();
            printer.dim(format!("examined {done} of {all} sessions …"));
        }
    };
    let report = store.examine(quick, progress).await;
    store.close().await;
    Ok(report?)
}

/// Rules of the configuration that are for no tool, as far as that can be told from this store's
/// plugins. A configuration that is wrong is other commands' to tell.
async fn warnings(context: &Context, paths: &Paths) -> Vec<String> {
    let Ok(loaded) = context.config() else {
        return Vec::new();
    };
    if !rules::are_any(&loaded.config) {
        return Vec::new();
    }
    let (Ok(folder), Ok(store)) = (tempfile::tempdir(), Backing::look(paths).await) else {
        return Vec::new();
    };
    let found = match wiring::rehearsing(folder.path(), Some(store.port())) {
        Ok(runtime) => rules::idle(&loaded.config, &*runtime).await,
        Err(_) => Vec::new(),
    };
    store.close().await;
    found
}

/// Writes the rows of the sessions that need it anew. One whose log is broken stays as it is.
async fn rebuild(context: &Context, paths: &Paths, report: &Report) -> Result<()> {
    let sessions: BTreeSet<SessionId> = report
        .broken
        .iter()
        .filter(|(_, broken)| broken.invariant == Invariant::RowsFollowFromLog)
        .map(|(session, _)| *session)
        .collect();
    let store = Backing::change(paths).await?;
    let mut done = Ok(());
    for session in sessions {
        match store.rebuild(session).await {
            Ok(()) => context
                .printer
                .note(format!("wrote the rows of session {session} anew")),
            Err(StoreError::Damaged { cause, .. }) => context.printer.note(format!(
                "the rows of session {session} stay as they are, for its log is broken: {}",
                tame(&cause)
            )),
            Err(error) => {
                done = Err(error.into());
                break;
            }
        }
    }
    store.close().await;
    done
}

fn damaged(report: &Report) -> Error {
    let broken = report.counts.len();
    let mut error = Error::new(
        Code::Damaged,
        format!("{} is damaged", report.file.display()),
    );
    if broken > 0 {
        let words = if broken == 1 {
            "invariant is"
        } else {
            "invariants are"
        };
        error = error.cause(format!("{broken} {words} broken"));
    }
    if !report.problems.is_empty() {
        error = error.cause("the store's structure is damaged");
    }
    if !report.drift.is_empty() {
        error = error.cause("the schema is not what the migrations make");
    }
    let rows_alone = broken == 1
        && report.counts.contains_key(&Invariant::RowsFollowFromLog)
        && report.problems.is_empty()
        && report.drift.is_empty();
    error.hint(if rows_alone {
        "stop what uses the store, keep a copy of it, and let `mainstay doctor --rebuild` write the rows anew"
    } else {
        "stop what uses the store, keep a copy of it, and go back to a backup that `mainstay doctor` finds healthy"
    })
}

fn view<'r>(report: &'r Report, warnings: &'r [String]) -> View<'r> {
    let line = |invariant: Invariant| {
        let count = report.counts.get(&invariant).copied().unwrap_or(0);
        let breaches = report
            .broken
            .iter()
            .filter(|(_, broken)| broken.invariant == invariant);
        Line {
            number: invariant.number(),
            name: invariant.words(),
            state: match count {
                0 if !invariant.is_shown_by_a_database() => State::NotShown,
                0 => State::Kept,
                _ => State::Broken,
            },
            count,
            breaches: breaches
                .map(|(session, broken)| Breach {
                    session: session.to_string(),
                    place: &broken.place,
                    what: &broken.what,
                })
                .collect(),
        }
    };
    View {
        file: &report.file,
        healthy: report.is_healthy(),
        schema: report.schema,
        sessions: report.sessions,
        events: report.events,
        not_compared: report.not_compared,
        problems: &report.problems,
        drift: &report.drift,
        invariants: Invariant::ALL.into_iter().map(line).collect(),
        warnings,
    }
}

fn show(printer: &Printer, view: &View<'_>) -> Result<()> {
    let state = |broken: bool| {
        if broken {
            "broken".red().to_string()
        } else {
            "kept".to_owned()
        }
    };
    printer.line(format!(
        "{}: schema {}, {} sessions, {} events",
        view.file.display(),
        view.schema,
        view.sessions,
        view.events
    ))?;
    printer.line(format!(
        "    the store's structure: {}",
        state(!view.problems.is_empty())
    ))?;
    for problem in view.problems {
        printer.line(format!("      {}", tame(problem)))?;
    }
    printer.line(format!("    the schema: {}", state(!view.drift.is_empty())))?;
    for drift in view.drift {
        printer.line(format!("      {}", tame(drift)))?;
    }
    for line in &view.invariants {
        let state = match line.state {
            State::NotShown => "cannot be shown by a database".dimmed().to_string(),
            known => state(known == State::Broken),
        };
        printer.line(format!("{:>2}  {}: {state}", line.number, line.name))?;
        for breach in &line.breaches {
            printer.line(format!(
                "      session {}, {}: {}",
                breach.session,
                tame(&breach.place.to_string()),
                tame(breach.what)
            ))?;
        }
        let more = line.count - line.breaches.len() as u64;
        if more > 0 {
            printer.line(format!("      and {more} more"))?;
        }
    }
    for warning in view.warnings {
        printer.note(format!("{} {}", "warning:".yellow(), tame(warning)));
    }
    if view.not_compared > 0 {
        printer.note(format!(
            "the rows of {} sessions were not compared: a newer build has written to them",
            view.not_compared
        ));
    }
    Ok(())
}
