//! Shows a session at work: the answer as data, what is done for it as notes.

use std::collections::HashMap;
use std::time::Duration;

use mainstay_core::event::{EventBody, Piece, Record, TurnOutcome};
use mainstay_core::history::Ending;
use mainstay_core::id::{Seq, SessionId};
use mainstay_core::model::text_of;
use mainstay_core::port::{Clock as _, SystemClock};
use mainstay_core::tail::Status;
use mainstay_server::wire::Session;
use owo_colors::OwoColorize as _;

use crate::access::Context;
use crate::client::{Client, Follow, Live, Told};
use crate::error::{Code, Error, Result};
use crate::printer::brief;
use crate::show;
use crate::signals::{Asked, Signals};

/// Shows events as they come.
pub(crate) struct Show<'c> {
    context: &'c Context,
    /// Text that was shown live and is not stored yet, by step.
    ahead: HashMap<Seq, String>,
    /// Calls whose arguments are still coming.
    calls: HashMap<String, (String, String)>,
    pub(crate) seen: Seq,
    /// How the last turn ended that was seen to end.
    pub(crate) outcome: Option<TurnOutcome>,
    interrupted: bool,
    /// The model's words are data as they come, and not only the last answer.
    words: bool,
}

impl<'c> Show<'c> {
    pub(crate) fn new(context: &'c Context, after: Seq) -> Self {
        Self {
            context,
            ahead: HashMap::new(),
            calls: HashMap::new(),
            seen: after,
            outcome: None,
            interrupted: false,
            words: context.printer.live,
        }
    }

    /// Shows all that the model says, even where nobody watches it as it comes.
    pub(crate) fn with_words(mut self) -> Self {
        self.words = !self.context.printer.json;
        self
    }

    pub(crate) fn told(&mut self, told: Told) -> Result<()> {
        match told {
            Told::Event(record) => {
                self.seen = record.seq;
                self.record(&record)
            }
            Told::Live(Live::Text { step, text }) if self.context.printer.live => {
                self.ahead.entry(step).or_default().push_str(&text);
                Ok(self.context.printer.text(&text)?)
            }
            Told::Live(Live::Progress { call, message }) => {
                self.context
                    .printer
                    .dim(format!("  … {call}: {}", brief(&message, 100)));
                Ok(())
            }
            Told::Live(_) | Told::Synced => Ok(()),
        }
    }

    fn record(&mut self, record: &Record) -> Result<()> {
        let printer = &self.context.printer;
        if printer.json {
            printer.value(record)?;
        }
        // What this build does not know is not shown.
        let Ok(event) = record.decode() else {
            return Ok(());
        };
        match event.body {
            EventBody::StepOutput { step, pieces } => {
                for piece in pieces {
                    self.piece(step, piece)?;
                }
            }
            EventBody::RunnerSaid { parts, .. } if self.words => {
                printer.text(&text_of(&parts))?;
                printer.end_line()?;
            }
            EventBody::RetryScheduled {
                attempt,
                wait_ms,
                failure,
                ..
            } => {
                printer.dim(format!(
                    "  the model call failed, try {attempt} in {wait_ms} ms: {}",
                    brief(&failure.message, 200)
                ));
            }
            EventBody::ModelEnded { step, ending, .. } => {
                self.ahead.remove(&step);
                if self.words {
                    printer.end_line()?;
                }
                if let Ending::Failed(failure) = ending {
                    printer.note(format!("  {} {}", "✗".red(), brief(&failure.message, 400)));
                }
            }
            EventBody::CallSettled { result, .. } => {
                printer.note(format!(
                    "  {} {}",
                    show::mark(result.outcome),
                    brief(&text_of(&result.output), 100).dimmed()
                ));
            }
            EventBody::StepRecovered(_) => printer.note(show::event(record).yellow()),
            EventBody::RecoveryRecorded { .. } => {
                printer.dim("  recovered: the session goes on from its log")
            }
            EventBody::InterruptRequested { .. } => self.interrupted = true,
            EventBody::TurnEnded { outcome, .. } => self.outcome = Some(outcome),
            _ => {}
        }
        Ok(())
    }

    fn piece(&mut self, step: Seq, piece: Piece) -> Result<()> {
        let printer = &self.context.printer;
        match piece {
            Piece::Text(text) if self.words => {
                let ahead = self.ahead.entry(step).or_default();
                if let Some(rest) = ahead.strip_prefix(&text) {
                    *ahead = rest.to_owned();
                } else if let Some(rest) = text.strip_prefix(ahead.as_str()) {
                    printer.text(rest)?;
                    ahead.clear();
                } else {
                    // Some of it was missed live: what is stored counts.
                    printer.end_line()?;
                    printer.text(&text)?;
                    ahead.clear();
                }
            }
            Piece::Call { id, tool } => {
                self.calls.insert(id, (tool, String::new()));
            }
            Piece::Arguments { id, text } => {
                if let Some((_, arguments)) = self.calls.get_mut(&id) {
                    arguments.push_str(&text);
                }
            }
            Piece::CallReady { id } => {
                if let Some((tool, arguments)) = self.calls.remove(&id) {
                    printer.note(show::call(&tool, &arguments));
                }
            }
            Piece::HostedCall(call) => printer.note(show::call(&call.tool, &call.arguments)),
            _ => {}
        }
        Ok(())
    }

    /// What the session waits for, if it does, and what ends that.
    pub(crate) fn waits(&self, session: &Session) {
        for line in show::waiting(session, SystemClock::default().wall()) {
            self.context.printer.note(line);
        }
    }

    /// What the session came to.
    pub(crate) fn end(&self, session: &Session) -> Result<()> {
        if let (Status::Quarantined, Some(reason)) = (session.status, &session.quarantined) {
            return Err(
                Error::failed(format!("session {} is quarantined", session.id))
                    .cause(reason.clone())
                    .hint(format!(
                        "let it go on with `mainstay session resume {}`",
                        session.id
                    )),
            );
        }
        if session.cancelled {
            let message = format!("session {} was cancelled", session.id);
            return Err(
                Error::new(Code::Conflict, message).hint("begin another with `mainstay run \"…\"`")
            );
        }
        if let (Status::Held, Some(held)) = (session.status, &session.held) {
            let message = format!("session {} does not go on by itself", session.id);
            return Err(Error::new(Code::Conflict, message)
                .cause(held.clone())
                .hint(format!(
                    "let it go on with `mainstay session resume {}`",
                    session.id
                )));
        }
        self.waits(session);
        match &self.outcome {
            Some(TurnOutcome::Failed { error }) => Err(Error::failed("the turn failed")
                .cause(error.clone())
                .hint(format!(
                    "see what happened with `mainstay session log {}`",
                    session.id
                ))),
            Some(TurnOutcome::Interrupted) => Err(interrupted(session.id)),
            None if self.interrupted => Err(interrupted(session.id)),
            _ => Ok(()),
        }
    }
}

/// The error that says that a run was stopped.
pub(crate) fn interrupted(session: SessionId) -> Error {
    Error::new(Code::Interrupted, "the turn was stopped").hint(format!(
        "go on with `mainstay run --session {session} \"…\"`"
    ))
}

/// The error that says that this process was told to end.
pub(crate) fn ended(session: SessionId) -> Error {
    Error::new(
        Code::Ended,
        "asked to end; the session is kept and goes on where it stood",
    )
    .hint(format!("go on with `mainstay run --session {session}`"))
}

/// The server went away, and the session did not.
fn went_away(error: Error, session: SessionId) -> Error {
    if error.code != Code::Unavailable {
        return error;
    }
    error.hint(format!(
        "the session is kept; go on with `mainstay run --session {session}`"
    ))
}

/// Shows a session until it has nothing to do. Ctrl-C stops the session, a second one this process;
/// SIGTERM ends this process alone.
pub(crate) async fn to_the_end(
    client: &Client,
    follow: &mut Follow,
    show: &mut Show<'_>,
    id: SessionId,
) -> Result<Session> {
    let mut signals = Signals::listen()?;
    let mut idle = std::pin::pin!(client.idle(id));
    let mut stops = 0;
    let session = loop {
        tokio::select! {
            biased;
            told = follow.next() => match told.map_err(|error| went_away(error, id))? {
                Some(told) => show.told(told)?,
                None => return Err(crate::access::unknown(id)),
            },
            session = &mut idle => break session.map_err(|error| went_away(error, id))?,
            asked = signals.next() => {
                if asked == Asked::End {
                    return Err(ended(id));
                }
                stops += 1;
                if stops > 1 {
                    std::process::exit(Code::Interrupted as i32);
                }
                show.context.printer.note("stopping; press Ctrl-C again to leave at once".yellow());
                client.interrupt(id, false).await?;
            }
        }
    };
    // The answer may have overtaken the last events.
    while show.seen < session.head {
        match tokio::time::timeout(Duration::from_secs(10), follow.next()).await {
            Ok(told) => match told? {
                Some(told) => show.told(told)?,
                None => break,
            },
            // An event of a type that this build does not know is the last one.
            Err(_) => break,
        }
    }
    Ok(session)
}
