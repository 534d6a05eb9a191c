//! `mainstay run`: a prompt, and the answer.

use std::io::Read as _;

use mainstay_core::event::Delivery;
use mainstay_core::tail::Status;

use crate::access::Context;
use crate::args::Run;
use crate::choice::{self, Opened};
use crate::client::check_prompt;
use crate::error::{Code, Error, Result};
use crate::follow::{Show, to_the_end};
use crate::printer::brief;
use crate::show;
use crate::signals;

/// Items among which the answer is looked for.
const NEWEST: u32 = 20;

pub(crate) async fn run(context: &Context, args: Run) -> Result<()> {
    let prompt = prompt(&args.prompt)?;
    // Before a session is begun that would stay empty.
    prompt.as_deref().map_or(Ok(()), check_prompt)?;
    let title = prompt.as_deref().map(|prompt| brief(prompt, 80));
    let mut opened = choice::open(context, &args.choice, title).await?;
    let host = opened.host.take();
    let done = follow(context, &opened, prompt.as_deref()).await;
    if let Some(host) = host {
        host.shutdown(signals::hurry()).await;
    }
    done
}

fn prompt(words: &[String]) -> Result<Option<String>> {
    let text = match words {
        [] => return Ok(None),
        [dash] if dash == "-" => {
            let mut text = String::new();
            std::io::stdin()
                .read_to_string(&mut text)
                .map_err(|error| {
                    Error::failed("cannot read the prompt from stdin").because(&error)
                })?;
            text
        }
        words => words.join(" "),
    };
    if text.trim().is_empty() {
        return Err(Error::new(Code::Usage, "the prompt is empty")
            .hint("say what to do: `mainstay run \"…\"`"));
    }
    Ok(Some(text))
}

async fn follow(context: &Context, opened: &Opened, prompt: Option<&str>) -> Result<()> {
    let Opened {
        client,
        session,
        after,
        ..
    } = opened;
    let printer = &context.printer;
    printer.dim(format!("session {}", session.id));
    let mut follow = client.follow(session.id, *after).await?;
    let mut show = Show::new(context, *after);
    match prompt {
        Some(prompt) => {
            let admitted = client.prompt(session.id, prompt, Delivery::Queue).await?;
            if let Some(held) = admitted.held {
                return Err(Error::new(
                    Code::Conflict,
                    "the prompt is kept, but the session does not run",
                )
                .cause(held)
                .hint(format!(
                    "let it go on with `mainstay session resume {}`",
                    session.id
                )));
            }
        }
        None if session.status == Status::Idle && session.pending_inputs > 0 => {
            // What an interrupt left pending goes with a wake.
            client.resume(session.id).await?;
        }
        None => {}
    }
    let session = to_the_end(client, &mut follow, &mut show, session.id).await?;
    drop(follow);
    printer.end_line()?;
    show.end(&session)?;
    if prompt.is_none() && show.outcome.is_none() && session.wait.is_none() {
        printer.note("the session has nothing left to do");
    } else if !printer.json && !printer.live {
        let mut items = client.newest(session.id, NEWEST).await?;
        if prompt.is_some() {
            // What was said before is no answer to what was asked now.
            items.retain(|item| item.seq > *after);
        }
        let answer = show::answer(&items);
        if !answer.is_empty() {
            printer.text(&answer)?;
            printer.end_line()?;
        }
    }
    Ok(())
}
