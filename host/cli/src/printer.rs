//! Every byte that a command writes. Data goes to stdout, everything else to stderr; colours and
//! other control codes only reach a terminal.

use std::fmt::Display;
use std::io::{self, IsTerminal as _, Write as _};
use std::sync::{Mutex, PoisonError};

use anstream::{AutoStream, ColorChoice};
use owo_colors::OwoColorize as _;
use serde::Serialize;

use crate::args::Color;
use crate::error::{Code, Error};

/// Where output goes and how much of it.
pub(crate) struct Printer {
    out: Mutex<AutoStream<io::Stdout>>,
    err: Mutex<AutoStream<io::Stderr>>,
    /// Data is JSON.
    pub(crate) json: bool,
    quiet: bool,
    /// Somebody watches the data as it comes.
    pub(crate) live: bool,
    /// The last byte of data ended no line.
    open_line: Mutex<bool>,
}

impl Printer {
    pub(crate) fn new(json: bool, quiet: bool, color: Color) -> Self {
        let choice = match color {
            Color::Auto => ColorChoice::Auto,
            Color::Always => ColorChoice::Always,
            Color::Never => ColorChoice::Never,
        };
        Self {
            out: Mutex::new(AutoStream::new(io::stdout(), choice)),
            err: Mutex::new(AutoStream::new(io::stderr(), choice)),
            json,
            quiet,
            live: !json && io::stdout().is_terminal(),
            open_line: Mutex::new(false),
        }
    }

    /// A line of data.
    pub(crate) fn line(&self, line: impl Display) -> io::Result<()> {
        self.end_line()?;
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        writeln!(out, "{line}")?;
        out.flush()
    }

    /// A value as one line of JSON.
    pub(crate) fn value(&self, value: &impl Serialize) -> io::Result<()> {
        self.line(serde_json::to_string(value)?)
    }

    /// Words of a model or a plugin, shown as data, without a line's end.
    pub(crate) fn text(&self, text: &str) -> io::Result<()> {
        if text.is_empty() {
            return Ok(());
        }
        let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(tame(text).as_bytes())?;
        out.flush()?;
        *self
            .open_line
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = !text.ends_with('\n');
        Ok(())
    }

    /// Ends the line of data that [`Printer::text`] left open.
    pub(crate) fn end_line(&self) -> io::Result<()> {
        if std::mem::take(
            &mut *self
                .open_line
                .lock()
                .unwrap_or_else(PoisonError::into_inner),
        ) {
            let mut out = self.out.lock().unwrap_or_else(PoisonError::into_inner);
            out.write_all(b"\n")?;
            out.flush()?;
        }
        Ok(())
    }

    /// What a command is doing, for people; not with `--quiet`.
    pub(crate) fn note(&self, note: impl Display) {
        if self.quiet {
            return;
        }
        if self.live {
            let _ = self.end_line();
        }
        // Nobody can be told that stderr is gone.
        let mut err = self.err.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = writeln!(err, "{note}");
    }

    /// As [`Printer::note`], dimmed.
    pub(crate) fn dim(&self, note: impl Display) {
        self.note(note.to_string().dimmed());
    }

    /// The end of a command that failed.
    pub(crate) fn error(&self, error: &Error) {
        let _ = self.end_line();
        let mut err = self.err.lock().unwrap_or_else(PoisonError::into_inner);
        let word = if matches!(error.code, Code::Interrupted | Code::Ended) {
            "interrupted".yellow().to_string()
        } else {
            "error".red().bold().to_string()
        };
        let _ = writeln!(err, "{word}: {}", tame(&error.message));
        for cause in &error.causes {
            let _ = writeln!(
                err,
                "  {} {}",
                "cause:".dimmed(),
                tame(cause).replace('\n', "\n    ")
            );
        }
        if let Some(hint) = &error.hint {
            let _ = writeln!(err, "\n{} {}", "hint:".cyan(), tame(hint));
        }
    }
}

/// Foreign text without what could move a terminal's cursor or worse.
pub(crate) fn tame(text: &str) -> std::borrow::Cow<'_, str> {
    let wild = |c: char| c.is_control() && c != '\n' && c != '\t';
    if text.contains(wild) {
        text.chars()
            .filter(|c| !wild(*c))
            .collect::<String>()
            .into()
    } else {
        text.into()
    }
}

/// The first line of a text, cut to `most` characters.
pub(crate) fn brief(text: &str, most: usize) -> String {
    let text = tame(text);
    let line = text.trim().lines().next().unwrap_or_default();
    let cut: String = line.chars().take(most).collect();
    if cut.len() < text.trim().len() {
        format!("{cut}…")
    } else {
        cut
    }
}

/// Bytes, roughly.
pub(crate) fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{} KiB", bytes / 1024),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}

/// How long ago, roughly.
pub(crate) fn ago(ms: u64) -> String {
    format!("{} ago", span(ms))
}

/// A time's length, roughly.
pub(crate) fn span(ms: u64) -> String {
    let seconds = ms / 1000;
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86400),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cli_8_foreign_text_carries_no_control_codes() {
        assert_eq!(tame("a\x1b[31mb\r\x07c\n\td"), "a[31mbc\n\td");
        assert!(matches!(tame("plain ä\n"), std::borrow::Cow::Borrowed(_)));
    }

    #[test]
    fn brief_is_one_line() {
        assert_eq!(brief("  one\ntwo", 10), "one…");
        assert_eq!(brief("abcdef", 3), "abc…");
        assert_eq!(brief("äöü", 3), "äöü");
    }

    #[test]
    fn size_names_the_largest_unit() {
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(2048), "2 KiB");
        assert_eq!(size(1_572_864), "1.5 MiB");
    }

    #[test]
    fn ago_names_the_largest_unit() {
        assert_eq!(ago(59_999), "59s ago");
        assert_eq!(ago(3_600_000), "1h ago");
        assert_eq!(ago(200_000_000), "2d ago");
    }
}
