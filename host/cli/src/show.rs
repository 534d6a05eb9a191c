//! Sessions, items and events in words for people.

use mainstay_core::event::{EventBody, InputContent, Piece, Record, TurnOutcome};
use mainstay_core::history::{Ending, Item, ItemBody};
use mainstay_core::model::{Content, Part, ToolOutcome, text_of};
use mainstay_core::outbox::Notice;
use mainstay_core::plugin::{Action, Condition};
use mainstay_core::tail::Status;
use mainstay_server::wire::Session;
use owo_colors::OwoColorize as _;

use crate::printer::{ago, brief, tame};

/// What a session is doing, in its colour.
pub(crate) fn status(status: Status) -> String {
    match status {
        Status::Idle => "idle".dimmed().to_string(),
        Status::Due => "due".cyan().to_string(),
        Status::Running => "running".green().to_string(),
        Status::Recovering => "recovering".yellow().to_string(),
        Status::Waiting => "waiting".blue().to_string(),
        Status::Held => "held".yellow().to_string(),
        Status::Imported => "imported".dimmed().to_string(),
        Status::Quarantined => "quarantined".red().to_string(),
        Status::Cancelled => "cancelled".dimmed().to_string(),
    }
}

fn status_width(status: Status) -> usize {
    match status {
        Status::Idle | Status::Held => 4,
        Status::Due => 3,
        Status::Running | Status::Waiting => 7,
        Status::Imported => 8,
        Status::Recovering => 10,
        Status::Quarantined => 11,
        Status::Cancelled => 9,
    }
}

/// A session as a line of a list.
pub(crate) fn line(session: &Session, now: u64) -> String {
    let pad = " ".repeat(12_usize.saturating_sub(status_width(session.status)));
    let title = session
        .title
        .as_deref()
        .map(|title| brief(title, 60))
        .unwrap_or_default();
    let when = ago(now.saturating_sub(session.updated_at));
    format!(
        "{}  {}{pad}{when:<9} {:<12} {title}",
        session.id,
        status(session.status),
        brief(&session.agent, 12)
    )
}

/// A session with all that matters.
pub(crate) fn session(session: &Session) -> Vec<String> {
    let mut lines = vec![
        format!("session   {}", session.id.bold()),
        format!("status    {}", status(session.status)),
    ];
    if let Some(title) = &session.title {
        lines.push(format!("title     {}", brief(title, 100)));
    }
    lines.push(format!("agent     {}", tame(&session.agent)));
    if let Some(model) = &session.model {
        lines.push(format!(
            "model     {}/{}",
            tame(&model.provider),
            tame(&model.model)
        ));
    }
    lines.push(format!("head      {}", session.head));
    if session.pending_inputs > 0 {
        lines.push(format!("pending   {} inputs", session.pending_inputs));
    }
    if session.usage.input_tokens + session.usage.output_tokens > 0 {
        lines.push(format!(
            "tokens    {} in, {} out",
            session.usage.input_tokens, session.usage.output_tokens
        ));
    }
    if let Some(claim) = &session.claim {
        let step = claim
            .step
            .map(|step| format!(", step {step}"))
            .unwrap_or_default();
        let phase = format!("{:?}", claim.phase).to_lowercase();
        lines.push(format!(
            "claim     execution {} of {}, phase {phase}{step}",
            claim.execution, claim.owner
        ));
    }
    if session.attempts > 0 {
        lines.push(format!("crashes   {} in a row", session.attempts));
    }
    if let Some(held) = &session.held {
        lines.push(format!("held      {}", tame(held).yellow()));
    }
    lines
}

/// An item of a history.
pub(crate) fn item(item: &Item) -> Vec<String> {
    match &item.body {
        ItemBody::User(parts) => vec![format!(
            "{} {}",
            "›".cyan().bold(),
            tame(&text_of(parts)).bold()
        )],
        ItemBody::Assistant(assistant) => {
            let mut lines: Vec<String> = assistant.content.iter().filter_map(content).collect();
            match &assistant.ending {
                Ending::Finished(_) => {}
                Ending::Failed(failure) => {
                    lines.push(format!("{} {}", "✗".red(), tame(&failure.message)))
                }
                Ending::Interrupted => lines.push("(interrupted)".yellow().to_string()),
            }
            lines
        }
        ItemBody::ToolResult(result) => {
            vec![format!(
                "  {} {}",
                mark(result.outcome),
                brief(&text_of(&result.output), 100).dimmed()
            )]
        }
        ItemBody::Compaction(compaction) => {
            vec![
                format!("(summary) {}", brief(&text_of(&compaction.summary), 200))
                    .dimmed()
                    .to_string(),
            ]
        }
        ItemBody::Recovered(recovered) => {
            let calls = match recovered.settled.len() {
                0 => String::new(),
                settled => format!(", {settled} calls settled"),
            };
            vec![
                format!("(recovered after a crash{calls})")
                    .yellow()
                    .to_string(),
            ]
        }
        ItemBody::Signal(signal) => vec![format!("(signal {})", tame(&signal.name))],
        _ => Vec::new(),
    }
}

fn content(content: &Content) -> Option<String> {
    match content {
        Content::Text(text) => Some(tame(text).into_owned()),
        Content::ToolCall(call) | Content::HostedCall(call) => {
            Some(self::call(&call.tool, &call.arguments))
        }
        Content::Media(media) => Some(format!("[{}]", tame(&media.media_type))),
        _ => None,
    }
}

/// A call on one line.
pub(crate) fn call(tool: &str, arguments: &str) -> String {
    format!(
        "  {} {}",
        "→".blue(),
        format!("{}({})", tame(tool), brief(arguments, 80)).blue()
    )
}

/// The mark of a result.
pub(crate) fn mark(outcome: ToolOutcome) -> String {
    match outcome {
        ToolOutcome::Succeeded => "✓".green().to_string(),
        other => format!("{} {}", "✗".red(), word(&other).red()),
    }
}

/// An enum's name as JSON has it.
fn word(value: &impl serde::Serialize) -> String {
    serde_json::to_value(value)
        .ok()
        .and_then(|value| value.as_str().map(str::to_owned))
        .unwrap_or_default()
}

/// The text of the newest answer, from items that are newest first.
pub(crate) fn answer(newest_first: &[Item]) -> String {
    for item in newest_first {
        match &item.body {
            ItemBody::Assistant(assistant) => {
                let texts = assistant
                    .content
                    .iter()
                    .filter_map(|content| match content {
                        Content::Text(text) => Some(text.as_str()),
                        _ => None,
                    });
                return texts.collect();
            }
            ItemBody::User(_) => break,
            _ => {}
        }
    }
    String::new()
}

/// An event on one line: seq, type and what it says.
pub(crate) fn event(record: &Record) -> String {
    let says = record
        .decode()
        .map(|event| says(&event.body))
        .unwrap_or_else(|error| error.to_string());
    let kind = format!("{:<22}", record.kind);
    let kind = match record.kind.split('.').next().unwrap_or_default() {
        "execution" => kind.magenta().to_string(),
        "step" if record.kind == "step.recovered" => kind.yellow().bold().to_string(),
        "recovery" => kind.yellow().bold().to_string(),
        "step" | "model" | "retry" => kind.cyan().to_string(),
        "call" => kind.blue().to_string(),
        _ => kind,
    };
    format!("{:>4}  {kind} {}", record.seq, brief(&says, 140))
}

fn says(body: &EventBody) -> String {
    let text = |parts: &[Part]| text_of(parts).replace('\n', " ");
    match body {
        EventBody::SessionCreated(created) => format!("agent {}", created.agent),
        EventBody::SessionQuarantined { reason } => reason.clone(),
        EventBody::InputAdmitted {
            content, delivery, ..
        } => match content {
            InputContent::Prompt { parts } => format!("{}: {}", word(delivery), text(parts)),
            other => format!("{}: {}", word(delivery), other.kind()),
        },
        EventBody::ExecutionStarted { execution, owner } => format!("{execution} of {owner}"),
        EventBody::ExecutionFailed { error, .. } => error.clone(),
        EventBody::ExecutionInterrupted { reason, .. } => word(reason),
        EventBody::TurnEnded { outcome, .. } => match outcome {
            TurnOutcome::Done => "done".into(),
            TurnOutcome::Failed { error } => format!("failed: {error}"),
            TurnOutcome::Interrupted => "interrupted".into(),
        },
        EventBody::RunnerSaid { parts, .. } | EventBody::RunnerNoted { parts } => text(parts),
        EventBody::StepStarted(started) => match (&started.action, &started.provider) {
            (Action::Wait(wait), _) => {
                let until: Vec<String> = wait.until.iter().map(condition).collect();
                format!("waits for {}", until.join(" or "))
            }
            (Action::Spawn(children), _) => {
                let keys: Vec<&str> = children.iter().map(|child| child.key.as_str()).collect();
                format!("spawns {}", keys.join(", "))
            }
            (_, Some(provider)) => format!("asks {}/{}", provider.alias, provider.model),
            (_, None) => format!("by {}", started.runner.name),
        },
        EventBody::SessionHeld { reason } => reason.to_string(),
        EventBody::InputsWoken { scope } => word(scope),
        EventBody::NoticeDelivered { notice } => match notice {
            Notice::Spawn { child, .. } => format!("child {child} is made"),
            Notice::Cancel { child, .. } => format!("child {child} is cancelled"),
            Notice::Interrupt { child, .. } => format!("child {child} is interrupted"),
            Notice::Report { parent, .. } => format!("parent {} knows", parent.session),
        },
        EventBody::HistoryReverted(revert) => format!("through {}", revert.through),
        EventBody::StepOutput { pieces, .. } => {
            pieces.iter().map(piece).collect::<Vec<_>>().join(" ")
        }
        EventBody::RetryScheduled {
            attempt,
            wait_ms,
            failure,
            ..
        } => {
            format!("try {attempt} in {wait_ms} ms: {}", failure.message)
        }
        EventBody::ModelEnded { ending, usage, .. } => {
            let tokens = usage
                .and_then(|usage| usage.output_tokens)
                .map(|tokens| format!(", {tokens} tokens"));
            let ending = match ending {
                Ending::Finished(reason) => word(reason),
                Ending::Failed(failure) => format!("failed: {}", failure.message),
                Ending::Interrupted => "interrupted".into(),
            };
            format!("{ending}{}", tokens.unwrap_or_default())
        }
        EventBody::CallStarted {
            call, effect, run, ..
        } => format!("{call}, {}, run {run}", word(effect)),
        EventBody::CallSettled { result, .. } => {
            format!(
                "{} {}: {}",
                result.call,
                word(&result.outcome),
                text(&result.output)
            )
        }
        EventBody::ContextCompacted { through, .. } => format!("through {through}"),
        EventBody::StepRecovered(recovered) => {
            let mut verdicts = vec![format!("step {}", recovered.step)];
            if recovered.ask_again {
                verdicts.push("the model is asked again, byte for byte".into());
            }
            if recovered.interrupted {
                verdicts.push("the partial answer is kept as interrupted".into());
            }
            if !recovered.settled.is_empty() {
                verdicts.push(format!(
                    "settled without a run: {}",
                    recovered.settled.join(", ")
                ));
            }
            if !recovered.run.is_empty() {
                verdicts.push(format!("run again: {}", recovered.run.join(", ")));
            }
            verdicts.join("; ")
        }
        EventBody::RecoveryRecorded {
            execution,
            phase,
            attempts,
            ..
        } => {
            format!(
                "settled {execution}, phase {}, crashes {attempts}",
                word(phase)
            )
        }
        _ => String::new(),
    }
}

fn condition(condition: &Condition) -> String {
    match condition {
        Condition::Time(at) => format!("time {at}"),
        Condition::Signal(name) => format!("signal {name}"),
        Condition::Approval(request) => format!("approval {}", request.key),
        Condition::Children(keys) => format!("children {}", keys.join(", ")),
    }
}

fn piece(piece: &Piece) -> String {
    match piece {
        Piece::Text(text) => format!("{text:?}"),
        Piece::Reasoning(text) => format!("(thinks) {text:?}"),
        Piece::Call { id, tool } => format!("call {id} {tool}"),
        Piece::Arguments { text, .. } => text.clone(),
        Piece::CallReady { id } => format!("ready {id}"),
        Piece::HostedCall(call) => format!("hosted {} {}", call.id, call.tool),
        Piece::HostedResult(result) => format!("hosted result {}", result.call),
        Piece::ProviderState(_) => "(provider state)".into(),
        Piece::Media(media) => format!("[{}]", media.media_type),
    }
}
