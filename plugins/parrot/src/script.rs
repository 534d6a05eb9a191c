//! The language of scripts: lines to commands.

use mainstay_guest::types::{FailureClass, FinishReason};

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Command {
    Say(String),
    /// Pause before each word, in milliseconds.
    Slow(u32, String),
    Reason(String),
    Call(String, String),
    Hosted(String, String),
    Result(String),
    Usage(u32, u32),
    Limit(usize),
    Fail(FailureClass, String),
    Finish(FinishReason),
    Break,
}

impl Command {
    /// Pause before each piece, and the pieces, of a command that says something.
    pub(crate) fn pieces(&self, result: &str) -> (u32, Vec<String>) {
        match self {
            Self::Say(text) => (0, vec![fill(text, result)]),
            Self::Slow(pause, text) => (
                *pause,
                fill(text, result)
                    .split_inclusive(' ')
                    .map(str::to_owned)
                    .collect(),
            ),
            _ => (0, Vec::new()),
        }
    }
}

fn fill(text: &str, result: &str) -> String {
    text.replace("{result}", result)
}

/// One answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Block {
    pub(crate) commands: Vec<Command>,
}

impl Block {
    /// All that it says.
    pub(crate) fn text(&self, result: &str) -> String {
        let lines: Vec<String> = self
            .commands
            .iter()
            .filter(|command| matches!(command, Command::Say(_) | Command::Slow(..)))
            .map(|command| command.pieces(result).1.concat())
            .collect();
        lines.join("\n")
    }
}

/// Whether a text is a script: its first line that is not blank is a command.
pub(crate) fn is_script(text: &str) -> bool {
    text.lines()
        .find(|line| !is_blank(line))
        .is_some_and(|line| matches!(command(line.trim()), Ok(Some(_))))
}

/// Reads a script.
///
/// # Errors
///
/// A line is no command; the message names it.
pub(crate) fn parse(text: &str) -> Result<Vec<Block>, String> {
    let mut blocks = vec![Block::default()];
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if is_blank(line) {
            continue;
        }
        match command(line) {
            Ok(Some(command)) => blocks
                .last_mut()
                .expect("there is a block from the beginning")
                .commands
                .push(command),
            Ok(None) => blocks.push(Block::default()),
            Err(reason) => return Err(format!("line {} of the script: {reason}", number + 1)),
        }
    }
    Ok(blocks)
}

fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

/// Reads one line; `None` is `then`.
fn command(line: &str) -> Result<Option<Command>, String> {
    let (word, rest) = split(line);
    Ok(Some(match word {
        "say" => Command::Say(rest.to_owned()),
        "slow" => {
            let (pause, text) = split(rest);
            Command::Slow(number(pause)?, text.to_owned())
        }
        "reason" => Command::Reason(rest.to_owned()),
        "call" => {
            let (tool, arguments) = tool(rest)?;
            Command::Call(tool, arguments)
        }
        "hosted" => {
            let (tool, arguments) = tool(rest)?;
            Command::Hosted(tool, arguments)
        }
        "result" => Command::Result(json(rest)?),
        "usage" => {
            let (input, output) = split(rest);
            Command::Usage(number(input)?, number(output)?)
        }
        "limit" => Command::Limit(number(rest)?),
        "fail" => {
            let (class, message) = split(rest);
            Command::Fail(failure_class(class)?, message.to_owned())
        }
        "finish" if !rest.is_empty() && !rest.contains(' ') => Command::Finish(finish_reason(rest)),
        "break" if rest.is_empty() => Command::Break,
        "then" if rest.is_empty() => return Ok(None),
        _ => return Err(format!("`{line}` is no command")),
    }))
}

fn split(text: &str) -> (&str, &str) {
    match text.split_once(char::is_whitespace) {
        Some((word, rest)) => (word, rest.trim_start()),
        None => (text, ""),
    }
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("`{text}` is no number"))
}

fn json(text: &str) -> Result<String, String> {
    match serde_json::from_str::<serde::de::IgnoredAny>(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(format!("`{text}` is no JSON: {error}")),
    }
}

/// A tool and its arguments. The name is not checked, so that a model can be seen calling one that
/// does not exist.
fn tool(text: &str) -> Result<(String, String), String> {
    let (tool, arguments) = split(text);
    if tool.is_empty() {
        return Err("a tool is missing".to_owned());
    }
    let arguments = if arguments.is_empty() {
        "{}".to_owned()
    } else {
        json(arguments)?
    };
    Ok((tool.to_owned(), arguments))
}

fn finish_reason(word: &str) -> FinishReason {
    match word {
        "stop" => FinishReason::Stop,
        "tool-calls" => FinishReason::ToolCalls,
        "length" => FinishReason::Length,
        "content-filter" => FinishReason::ContentFilter,
        "refusal" => FinishReason::Refusal,
        "paused" => FinishReason::Paused,
        other => FinishReason::Other(other.to_owned()),
    }
}

fn failure_class(word: &str) -> Result<FailureClass, String> {
    Ok(match word {
        "rate-limited" => FailureClass::RateLimited,
        "overloaded" => FailureClass::Overloaded,
        "server" => FailureClass::Server,
        "transport" => FailureClass::Transport,
        "incomplete" => FailureClass::Incomplete,
        "protocol" => FailureClass::Protocol,
        "context-overflow" => FailureClass::ContextOverflow,
        "content-filter" => FailureClass::ContentFilter,
        "authentication" => FailureClass::Authentication,
        "quota" => FailureClass::Quota,
        "invalid-request" => FailureClass::InvalidRequest,
        _ => return Err(format!("`{word}` is no class of failure")),
    })
}
