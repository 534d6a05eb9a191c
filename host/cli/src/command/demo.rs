//! `mainstay demo`: a session survives a kill, offline.
//!
//! The command starts itself twice. The first process works on a session and is killed in the middle
//! of a model's answer; the second one finds the session in the file, settles what the kill left open
//! and finishes it. Everything that is shown is read from the file.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use mainstay_core::event::{EventBody, Piece, Record};
use mainstay_core::id::SessionId;
use mainstay_core::port::Store as _;
use mainstay_core::tail::Tail;
use mainstay_store::SqliteStore;
use owo_colors::OwoColorize as _;
use tokio::process::{Child, Command};

use crate::access::Context;
use crate::error::{Error, Result};
use crate::show;

/// What the model is to do. It needs no network: the provider `parrot` plays what its prompt says.
const SCRIPT: &str = "\
say I will write the ship's log first.
call file_write {\"path\":\"log.txt\",\"content\":\"Day 1: set sail.\\n\"}
then
slow 150 Day one is written down. The wind is fair and the crew sings of home, \
the anchor is stowed and the sails are full. We hold our course through the night, \
and whatever the sea may bring, the log will tell us where we were.
call file_read {\"path\":\"log.txt\"}
then
say The log says: {result}";

/// How long any part may take.
const PATIENCE: Duration = Duration::from_secs(25);
/// Stored pieces of the slow answer after which the process is killed.
const PIECES: usize = 2;

pub(crate) async fn demo(context: &Context) -> Result<()> {
    let folder = tempfile::tempdir()
        .map_err(|error| Error::failed("cannot make a folder").because(&error))?;
    let store = folder.path().join("demo.db");
    // Keeps the user's own configuration out.
    let config = folder.path().join("mainstay.toml");
    std::fs::write(&config, "")
        .map_err(|error| Error::failed("cannot write a file").because(&error))?;
    let begun = Instant::now();

    context.step(
        1,
        "A process works on a session: its model calls a tool, then begins a slow answer.",
    );
    let mut child = start(folder.path(), &["run", "--provider", "parrot", SCRIPT])?;
    let worked = watch(context, &store, &mut child).await;
    let (id, before) = match worked {
        Ok(worked) => worked,
        Err(error) => {
            let _ = child.kill().await;
            return Err(error);
        }
    };

    context.step(
        2,
        "In the middle of the answer the process is killed. It can clean up nothing.",
    );
    let pid = child.id();
    child
        .kill()
        .await
        .map_err(|error| Error::failed("cannot kill the process").because(&error))?;
    context.say(format!(
        "    SIGKILL for process {}",
        pid.map(|pid| pid.to_string()).unwrap_or_default()
    ));

    context.step(3, "What is left in the file:");
    let reader = SqliteStore::open_read_only(&store).await?;
    let tail = tail(&reader, id).await?;
    let head = tail.session.head;
    for line in left(&tail) {
        context.say(format!("    {line}"));
    }
    reader.close().await;

    context.step(
        4,
        "A second process starts on the same file. It settles the claim and goes on.",
    );
    let mut child = start(folder.path(), &["run", "--continue"])?;
    let ended = tokio::time::timeout(PATIENCE, child.wait()).await;
    let Ok(ended) = ended else {
        let _ = child.kill().await;
        return Err(Error::failed("the second process did not finish in time"));
    };
    let ended = ended
        .map_err(|error| Error::failed("cannot wait for the second process").because(&error))?;
    if !ended.success() {
        return Err(Error::failed(format!(
            "the second process ended with {ended}"
        )));
    }
    let reader = SqliteStore::open_read_only(&store).await?;
    let records = events(&reader, id).await?;
    let items = items(&reader, id).await?;
    reader.close().await;
    for record in &records {
        if context.printer.json {
            context.printer.value(record)?;
        } else if record.seq > before {
            let mark = if record.seq == head + 1 {
                "  ── killed here, recovered from here ──"
            } else {
                ""
            };
            if !mark.is_empty() {
                context.printer.line(mark.yellow())?;
            }
            context.printer.line(show::event(record))?;
        }
    }

    context.step(5, "What the session says, kill and all:");
    for line in items {
        context.say(format!("    {line}"));
    }

    let calls = check(&records)?;
    let seconds = begun.elapsed().as_secs_f32();
    context.say("");
    context.say(
        format!("One log, two processes, {calls} calls with one result each, {seconds:.0} s. Nothing was lost and nothing was done twice.")
            .green()
            .bold(),
    );
    context
        .printer
        .dim("Your turn: `mainstay run \"…\"`, `mainstay chat`, `mainstay serve`.");
    Ok(())
}

impl Context {
    /// What comes next, for people.
    fn step(&self, number: u32, text: &str) {
        self.printer.note(format!(
            "\n{} {}",
            format!("{number}.").cyan().bold(),
            text.bold()
        ));
    }

    /// What there is to see. Data is JSON with `--json`, and this is for people.
    fn say(&self, text: impl std::fmt::Display) {
        if self.printer.json {
            self.printer.note(text);
        } else {
            let _ = self.printer.line(text);
        }
    }
}

/// Starts this program in a process of its own, with a store, a configuration and a log of its own.
fn start(folder: &Path, args: &[&str]) -> Result<Child> {
    let failed =
        |error: std::io::Error| Error::failed("cannot start a second process").because(&error);
    let program = std::env::current_exe().map_err(failed)?;
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("stderr"))
        .map_err(failed)?;
    Command::new(program)
        .args(args)
        .arg("--store")
        .arg(folder.join("demo.db"))
        .arg("--config")
        .arg(folder.join("mainstay.toml"))
        .current_dir(folder)
        .env_remove("MAINSTAY_SERVER")
        .env_remove("MAINSTAY_TOKEN")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .map_err(failed)
}

/// Shows the session's events until its model is in the middle of the slow answer.
async fn watch(context: &Context, store: &Path, child: &mut Child) -> Result<(SessionId, u64)> {
    let begun = Instant::now();
    let mut reader = None;
    let (mut session, mut after, mut pieces) = (None, 0, 0);
    loop {
        if begun.elapsed() > PATIENCE {
            return Err(Error::failed(
                "the first process did not get to the answer in time",
            ));
        }
        if let Ok(Some(ended)) = child.try_wait() {
            let folder = store.parent().unwrap_or(store);
            let said = std::fs::read_to_string(folder.join("stderr")).unwrap_or_default();
            return Err(
                Error::failed(format!("the first process ended early, with {ended}")).cause(said),
            );
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
        if reader.is_none() {
            reader = SqliteStore::open_read_only(store).await.ok();
        }
        let Some(reader) = &reader else { continue };
        if session.is_none() {
            session = reader
                .sessions(None, 1)
                .await?
                .first()
                .map(|listed| listed.session.id);
        }
        let Some(id) = session else { continue };
        for record in reader
            .events(id, after, 100)
            .await?
            .map(|(records, _)| records)
            .unwrap_or_default()
        {
            after = record.seq;
            context.say(show::event(&record));
            if let Ok(event) = record.decode()
                && let EventBody::StepOutput { pieces: stored, .. } = event.body
            {
                let slow = stored
                    .iter()
                    .all(|piece| matches!(piece, Piece::Text(text) if !text.starts_with("I will")));
                pieces += usize::from(slow);
            }
        }
        if pieces >= PIECES {
            reader.close().await;
            return Ok((id, after));
        }
    }
}

async fn tail(reader: &SqliteStore, id: SessionId) -> Result<std::sync::Arc<Tail>> {
    reader
        .tail(id)
        .await?
        .ok_or_else(|| crate::access::unknown(id))
}

/// The claim and the open step, in words.
fn left(tail: &Tail) -> Vec<String> {
    let mut lines = vec![format!(
        "head      {} events, all durable",
        tail.session.head
    )];
    if let Some(claim) = &tail.claim {
        let phase = format!("{:?}", claim.phase).to_lowercase();
        lines.push(format!(
            "claim     still held by execution {}, whose process is gone",
            claim.execution
        ));
        lines.push(format!(
            "phase     {} (an effect was in flight: its outcome is not in the log)",
            phase.yellow()
        ));
    }
    if let Some(step) = &tail.step {
        lines.push(format!(
            "step      {}, with this much of the answer: {:?}",
            step.seq,
            step.text()
        ));
    }
    lines
}

async fn events(reader: &SqliteStore, id: SessionId) -> Result<Vec<Record>> {
    let mut records: Vec<Record> = Vec::new();
    loop {
        let after = records.last().map_or(0, |record| record.seq);
        let (page, _) = reader
            .events(id, after, 500)
            .await?
            .ok_or_else(|| crate::access::unknown(id))?;
        if page.is_empty() {
            return Ok(records);
        }
        records.extend(page);
    }
}

async fn items(reader: &SqliteStore, id: SessionId) -> Result<Vec<String>> {
    let range = mainstay_core::model::Range {
        after: 0,
        through: i64::MAX as u64,
    };
    let items = reader
        .items(id, range, mainstay_core::history::Order::OldestFirst, 500)
        .await?;
    // The prompt is the script, which everybody has seen by now.
    let items = items
        .iter()
        .filter(|item| !matches!(item.body, mainstay_core::history::ItemBody::User(_)));
    Ok(items.flat_map(show::item).collect())
}

/// Counts results by call. One each, or the demo has failed.
fn check(records: &[Record]) -> Result<usize> {
    let mut results: BTreeMap<(u64, String), u32> = BTreeMap::new();
    let mut done = false;
    for event in records.iter().filter_map(|record| record.decode().ok()) {
        match event.body {
            EventBody::StepOutput { step, pieces } => {
                for piece in pieces {
                    if let Piece::Call { id, .. } = piece {
                        results.entry((step, id)).or_default();
                    }
                }
            }
            EventBody::CallSettled { step, result, .. } => {
                *results.entry((step, result.call)).or_default() += 1
            }
            EventBody::TurnEnded { outcome, .. } => {
                done = outcome == mainstay_core::event::TurnOutcome::Done
            }
            _ => {}
        }
    }
    if !done {
        return Err(Error::failed("the turn did not finish"));
    }
    match results.iter().find(|(_, count)| **count != 1) {
        Some(((_, call), count)) => Err(Error::failed(format!(
            "the call {call} has {count} results"
        ))),
        None if results.is_empty() => Err(Error::failed("no tool was called")),
        None => Ok(results.len()),
    }
}
