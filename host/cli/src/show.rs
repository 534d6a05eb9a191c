//! Sessions, items and events in words for people.

use mainstay_core::event::{EventBody, InputContent, Piece, Record, TurnOutcome};
use mainstay_core::history::{Approval, ChildOutcome, Ending, Item, ItemBody};
use mainstay_core::id::Millis;
use mainstay_core::model::{Content, Part, ToolOutcome, text_of};
use mainstay_core::outbox::Notice;
use mainstay_core::plugin::{Action, Condition};
use mainstay_core::tail::Status;
use mainstay_server::wire::Session;
use owo_colors::OwoColorize as _;

use crate::printer::{ago, brief, span, tame};

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
pub(crate) fn line(session: &Session, now: Millis) -> String {
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
pub(crate) fn session(session: &Session, now: Millis) -> Vec<String> {
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
    lines.extend(place(session));
    lines.extend(parked(session, now));
    for missing in &session.missing {
        lines.push(format!(
            "missing   {} {} (sha256:{}): install that component, and the session goes on",
            missing.kind,
            tame(&missing.alias),
            tame(&missing.digest).yellow()
        ));
    }
    if let Some(held) = &session.held {
        lines.push(format!("held      {}", tame(held).yellow()));
    }
    lines.push(format!("resume    {}", word(&session.resume.mode)));
    if let Some(age) = session.resume.max_age_ms {
        lines.push(format!(
            "          asks once it is left alone for {}",
            span(age)
        ));
    }
    lines
}

/// Where a session comes from and what hangs below it.
fn place(session: &Session) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(parent) = &session.parent {
        lines.push(format!(
            "parent    {}, as {}",
            parent.session,
            tame(&parent.key)
        ));
    }
    for child in &session.children {
        let state = if child.ended { "ended" } else { "not ended" };
        lines.push(format!(
            "child     {}  {}, {state}",
            child.session,
            tame(&child.key)
        ));
    }
    if let Some(forked) = &session.forked {
        lines.push(format!(
            "forked    from {} through {}",
            forked.session, forked.through
        ));
    }
    if let Some(origin) = &session.imported_from {
        lines.push(format!("imported  from {}", tame(origin)));
    }
    if let Some(through) = session.reverted_to {
        lines.push(format!(
            "reverted  shown through {through}; the next input makes that final"
        ));
    }
    lines
}

/// What a session waits for and asks.
fn parked(session: &Session, now: Millis) -> Vec<String> {
    let mut lines = Vec::new();
    let until = session.wait.as_ref().map(|wait| &wait.until[..]);
    if session.wait.is_some() {
        lines.push(format!("waits     {}", waits_for(session, now)));
    }
    let mut shown = 0;
    for condition in until.unwrap_or_default() {
        if let Condition::Approval(request) = condition {
            shown += 1;
            lines.push(format!(
                "asks      {}: {}",
                tame(&request.key),
                brief(&request.question, 100)
            ));
        }
    }
    if session.open_approvals > shown {
        lines.push(format!(
            "approvals {} open; list them with `mainstay session approvals {}`",
            session.open_approvals, session.id
        ));
    }
    lines
}

/// What the turn is parked for, in a line.
fn waits_for(session: &Session, now: Millis) -> String {
    let until = session.wait.iter().flat_map(|wait| &wait.until);
    let words = until.map(|condition| match condition {
        Condition::Time(at) => match at.saturating_sub(now) {
            0 => "its time, which has come".into(),
            left => format!("its time, in {}", span(left)),
        },
        other => tame(&self::condition(other)).into_owned(),
    });
    words.collect::<Vec<_>>().join(" or ")
}

/// What a session waits for and the commands that end that, for people.
pub(crate) fn waiting(session: &Session, now: Millis) -> Vec<String> {
    let Some(wait) = &session.wait else {
        return Vec::new();
    };
    let id = session.id;
    let mut lines = vec![format!("the session waits for {}", waits_for(session, now))];
    let mut alone = false;
    for condition in &wait.until {
        match condition {
            Condition::Time(_) => alone = true,
            Condition::Signal(name) => lines.push(format!(
                "  send it with `mainstay session signal {id} {}`",
                argument(name)
            )),
            Condition::Approval(request) => {
                let key = argument(&request.key);
                lines.push(format!("  it asks: {}", brief(&request.question, 400)));
                lines.push(format!(
                    "  answer with `mainstay session approve {id} {key}` or `mainstay session deny {id} {key}`"
                ));
            }
            Condition::Children(keys) => {
                alone = true;
                let ids = keys.iter().filter_map(|key| {
                    let child = session.children.iter().find(|child| child.key == *key);
                    child
                        .filter(|child| !child.ended)
                        .map(|child| child.session)
                });
                lines.extend(
                    ids.map(|child| format!("  look at it with `mainstay session show {child}`")),
                );
            }
        }
    }
    if session.pending_inputs > 0 {
        lines.push(format!(
            "  {} pending until then; `mainstay session interrupt {id}` ends the wait",
            match session.pending_inputs {
                1 => "1 input is".into(),
                inputs => format!("{inputs} inputs are"),
            }
        ));
    }
    if alone {
        lines.push("  it goes on by itself while `mainstay serve` runs".into());
    }
    lines
}

/// Text as one argument of a shell's command.
fn argument(text: &str) -> String {
    let plain = |c: char| c.is_alphanumeric() || "-_.,:/@%+=".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into()
    } else {
        format!("'{}'", tame(text).replace('\'', r"'\''"))
    }
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
        ItemBody::Approval(answer) => vec![format!("({})", answered(answer))],
        ItemBody::Timer => vec!["(the time has come)".into()],
        ItemBody::Child(child) => {
            let came = match &child.outcome {
                ChildOutcome::Done(parts) => format!("is done: {}", brief(&text_of(parts), 100)),
                ChildOutcome::Failed(error) => format!("failed: {}", brief(error, 100)),
                ChildOutcome::Cancelled => "was cancelled".into(),
                ChildOutcome::Quarantined(reason) => {
                    format!("is quarantined: {}", brief(reason, 100))
                }
            };
            vec![format!("(child {} {came})", tame(&child.key))]
        }
        ItemBody::Note(_) | ItemBody::Other(_) => Vec::new(),
    }
}

fn answered(answer: &Approval) -> String {
    let verdict = match answer.approved {
        true => "approved",
        false => "denied",
    };
    match &answer.reason {
        Some(reason) => format!("{} {verdict}: {}", tame(&answer.key), brief(reason, 100)),
        None => format!("{} {verdict}", tame(&answer.key)),
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
            InputContent::Signal(signal) => format!("{}: signal {}", word(delivery), signal.name),
            InputContent::Approval(answer) => format!("{}: {}", word(delivery), answered(answer)),
            InputContent::Child(child) => format!("{}: child {}", word(delivery), child.key),
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

#[cfg(test)]
mod tests {
    use mainstay_core::event::SessionCreated;
    use mainstay_core::id::SessionId;
    use mainstay_core::plugin::ApprovalRequest;
    use mainstay_core::wait::Waiting;

    use super::*;

    fn parked_for(until: Vec<Condition>) -> Session {
        let json = serde_json::json!({
            "id": SessionId::new(), "agent": SessionCreated::default().agent, "status": "waiting",
            "head": 1, "created_at": 0, "updated_at": 0, "turn_open": true, "pending_inputs": 0,
            "attempts": 0, "cancelled": false,
            "usage": mainstay_core::tail::Totals::default(),
        });
        let mut session: Session = serde_json::from_value(json).expect("a session");
        session.wait = Some(Waiting {
            step: 1,
            until,
            wake_at: None,
        });
        session
    }

    #[test]
    fn each_wait_names_the_command_that_ends_it() {
        let request = ApprovalRequest {
            key: "it's so".into(),
            question: "Really?".into(),
            details: None,
        };
        let session = parked_for(vec![
            Condition::Signal("go".into()),
            Condition::Approval(request),
            Condition::Time(60_000),
        ]);
        let id = session.id;
        let lines = waiting(&session, 0);
        let key = r"'it'\''s so'";
        assert_eq!(
            lines,
            [
                "the session waits for signal go or approval it's so or its time, in 1m".to_owned(),
                format!("  send it with `mainstay session signal {id} go`"),
                "  it asks: Really?".to_owned(),
                format!(
                    "  answer with `mainstay session approve {id} {key}` or `mainstay session deny {id} {key}`"
                ),
                "  it goes on by itself while `mainstay serve` runs".to_owned(),
            ]
        );
        assert!(
            waiting(
                &Session {
                    wait: None,
                    ..session
                },
                0
            )
            .is_empty()
        );
    }

    #[test]
    fn a_parked_session_shows_what_it_asks() {
        let mut session = parked_for(vec![Condition::Signal("go".into())]);
        session.open_approvals = 1;
        let lines = super::session(&session, 0).join("\n");
        assert!(lines.contains("waits     signal go"), "{lines}");
        assert!(lines.contains("approvals 1 open"), "{lines}");
        assert!(lines.contains("resume    auto"), "{lines}");
    }
}
