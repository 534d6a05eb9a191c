//! What is wrong in a file, told with its line, the cause and the nearest right name.

use std::ops::Range;
use std::path::Path;

use crate::error::{Code, Error};

/// A file that is read.
pub(super) struct Text<'t> {
    pub(super) path: &'t Path,
    pub(super) text: &'t str,
}

impl Text<'_> {
    /// An error at a place of the file, or of the file as a whole.
    pub(super) fn wrong(&self, span: Option<Range<usize>>, cause: impl Into<String>) -> Error {
        let path = self.path.display();
        let place = match span {
            Some(span) => format!("{path}:{}", line_of(self.text, span.start)),
            None => path.to_string(),
        };
        Error::new(Code::Config, format!("the configuration {place} is wrong")).cause(cause.into())
    }

    /// What the parser says.
    pub(super) fn unread(&self, error: &toml::de::Error) -> Error {
        let wrong = self.wrong(error.span(), error.message());
        match nearest_of(error.message()) {
            Some(hint) => wrong.hint(hint),
            None => wrong,
        }
    }
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(at)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

/// The nearest valid name, from the words of a parser that met an unknown one.
fn nearest_of(message: &str) -> Option<String> {
    let mut words = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown ") {
        return None;
    }
    let wrong = words.next()?;
    let known: Vec<&str> = words.collect();
    match nearest(wrong, known.iter().copied()) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None if known.is_empty() => None,
        None => Some(format!("known here: {}", known.join(", "))),
    }
}

/// The name that differs least, if it differs little.
pub(crate) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let length = wrong.chars().count();
    // Two letters that changed places are two edits.
    let most = (length / 3).max(2).min(length.saturating_sub(1));
    names
        .map(|name| (distance(wrong, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// Edits between two words.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}
