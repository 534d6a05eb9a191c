//! `mainstay chat`: a session, line by line.

use std::io::IsTerminal as _;

use mainstay_core::event::{Delivery, TurnOutcome};
use mainstay_core::id::SessionId;
use mainstay_core::tail::Status;
use owo_colors::OwoColorize as _;
use tokio::sync::mpsc;

use crate::access::{self, Context};
use crate::args::Chat;
use crate::choice::{self, Opened};
use crate::client::{Client, Told};
use crate::error::{Error, Result};
use crate::follow::{self, Show, to_the_end};
use crate::printer::brief;
use crate::show;
use crate::signals::{self, Asked, Signals};

/// Items of the history that are shown at the start.
const HISTORY: u32 = 50;

pub(crate) async fn chat(context: &Context, args: Chat) -> Result<()> {
    let mut opened = choice::open(context, &args.choice, None).await?;
    let host = opened.host.take();
    let done = talk(context, &opened).await;
    if let Some(host) = host {
        // What still runs goes on at the next start.
        host.shutdown(signals::hurry()).await;
    }
    done
}

async fn talk(context: &Context, opened: &Opened) -> Result<()> {
    let Opened {
        client,
        session,
        after,
        existed,
        ..
    } = opened;
    let id = session.id;
    let printer = &context.printer;
    printer.dim(format!(
        "session {id}; Ctrl-C stops what runs, Ctrl-D leaves"
    ));
    if *existed && !printer.json {
        let mut items = client.newest(id, HISTORY).await?;
        items.reverse();
        for item in items.iter().filter(|item| item.seq <= *after) {
            for line in show::item(item) {
                printer.line(line)?;
            }
        }
    }
    let mut follow = client.follow(id, *after).await?;
    let mut show = Show::new(context, *after).with_words();
    let mut lines = lines();
    let mut signals = Signals::listen()?;
    let terminal = std::io::stdin().is_terminal();
    loop {
        tokio::select! {
            told = follow.next() => match told? {
                Some(told) => {
                    let kind = match &told {
                        Told::Event(record) => record.kind.clone(),
                        _ => String::new(),
                    };
                    let is_end = kind == "turn.ended";
                    show.told(told)?;
                    if kind == "execution.suspended" {
                        show.waits(&client.session(id).await?);
                    }
                    if is_end {
                        ended(context, &mut show);
                    }
                }
                None => return Err(access::unknown(id)),
            },
            line = lines.recv() => match line.transpose()?.as_deref().map(str::trim) {
                Some("") => {}
                Some("/quit" | "/exit") => break,
                Some("/stop") => {
                    client.interrupt(id, false).await?;
                }
                Some(line) => send(context, client, id, line).await?,
                None if terminal => break,
                // The lines came from a file: their answers are still wanted.
                None => {
                    let session = to_the_end(client, &mut follow, &mut show, id).await?;
                    printer.end_line()?;
                    return show.end(&session);
                }
            },
            asked = signals.next() => {
                if asked == Asked::End {
                    return Err(follow::ended(id));
                }
                if !client.interrupt(id, false).await?.was_busy {
                    break;
                }
                printer.note("stopping".yellow());
            }
        }
    }
    printer.end_line()?;
    printer.dim(format!(
        "the session stays as it is; go on with `mainstay chat --session {id}`"
    ));
    Ok(())
}

async fn send(context: &Context, client: &Client, id: SessionId, line: &str) -> Result<()> {
    // A line that is typed while the agent works or waits is for what it works on.
    let status = client.session(id).await?.status;
    let running = matches!(status, Status::Running | Status::Recovering);
    let delivery = if running || status == Status::Waiting {
        Delivery::Steer
    } else {
        Delivery::Queue
    };
    let admitted = client.prompt(id, line, delivery).await?;
    if let Some(held) = admitted.held {
        context
            .printer
            .note(format!("kept, but not run: {held}").yellow());
    } else if running {
        context.printer.dim("  (enters at the next step)");
    }
    Ok(())
}

/// A turn is over: why it failed, if it did.
fn ended(context: &Context, show: &mut Show<'_>) {
    if let Some(TurnOutcome::Failed { error }) = show.outcome.take() {
        let why = brief(&error, 400);
        context
            .printer
            .note(format!("{} {why}", "the turn failed:".red()));
    }
}

/// Lines of stdin, read on a thread of its own: a read cannot be cut short. One that cannot be read is
/// the last.
fn lines() -> mpsc::Receiver<Result<String>> {
    let (sender, receiver) = mpsc::channel(1);
    std::thread::spawn(move || {
        for line in std::io::stdin().lines() {
            let line = line.map_err(|error| {
                Error::failed("cannot read the next line of stdin").because(&error)
            });
            let is_last = line.is_err();
            if sender.blocking_send(line).is_err() || is_last {
                return;
            }
        }
    });
    receiver
}
