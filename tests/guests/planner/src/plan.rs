//! The words of a plan.

/// One line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Line {
    Say(String),
    Report,
    Wait(Vec<Until>),
    Spawn(Vec<String>, String),
    Fail(String),
}

/// What a wait may end with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Until {
    /// In milliseconds.
    Span(u64),
    Signal(String),
    /// Key and question.
    Answer(String, String),
    Children(Vec<String>),
}

const WORDS: [&str; 6] = ["say", "report", "wait", "ask", "spawn", "fail"];

/// Reads a plan; `None` for a prompt that is none.
///
/// # Errors
/// The line that makes no sense, in words.
pub(crate) fn parse(prompt: &str) -> Result<Option<Vec<Line>>, String> {
    let lines = prompt
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty());
    let mut lines = lines.peekable();
    let first = lines.peek().map(|line| word(line).0);
    if !first.is_some_and(|first| WORDS.contains(&first)) {
        return Ok(None);
    }
    lines.map(line).collect::<Result<_, _>>().map(Some)
}

/// The first word and the rest.
fn word(text: &str) -> (&str, &str) {
    let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
    (word, rest.trim())
}

fn line(text: &str) -> Result<Line, String> {
    let (first, rest) = word(text);
    Ok(match first {
        "say" => Line::Say(rest.to_owned()),
        "report" => Line::Report,
        "fail" => Line::Fail(rest.to_owned()),
        "wait" => Line::Wait(rest.split(" or ").map(until).collect::<Result<_, _>>()?),
        "ask" => {
            let (key, question) = word(rest);
            Line::Wait(vec![Until::Answer(key.to_owned(), question.to_owned())])
        }
        "spawn" => {
            let (keys, prompt) = word(rest);
            Line::Spawn(names(keys), prompt.replace("; ", "\n"))
        }
        _ => return Err(format!("`{text}` is no line of a plan")),
    })
}

fn until(text: &str) -> Result<Until, String> {
    match word(text.trim()) {
        ("signal", name) => Ok(Until::Signal(name.to_owned())),
        ("children", keys) => Ok(Until::Children(names(keys))),
        (span, "") => span_ms(span)
            .map(Until::Span)
            .ok_or_else(|| format!("`{span}` is no span: write `500ms` or `10s`")),
        _ => Err(format!("`{text}` is nothing to wait for")),
    }
}

fn names(keys: &str) -> Vec<String> {
    keys.split(',').map(str::to_owned).collect()
}

fn span_ms(text: &str) -> Option<u64> {
    match text.strip_suffix("ms") {
        Some(number) => number.parse().ok(),
        None => Some(text.strip_suffix('s')?.parse::<u64>().ok()? * 1000),
    }
}
