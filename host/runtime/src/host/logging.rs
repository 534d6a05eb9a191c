//! `mainstay:plugin/logging`: lines for the operator, under the target `guest`.

use std::sync::Arc;

use tracing::Level;

use super::Guest;
use crate::bindings::v0_1_0::logging;
use crate::egress::Redactor;
use crate::instance::Label;
use crate::limits::LogLimits;

/// The lines of one instance.
pub(crate) struct Lines {
    label: Arc<Label>,
    limits: LogLimits,
    redactor: Redactor,
    /// What the lines are marked with besides the plugin: session and call.
    context: String,
    written: u32,
    dropped: u64,
    /// The newest line of level `error`: often what a panic says of itself.
    last_words: Option<String>,
}

impl Lines {
    pub(crate) fn new(label: Arc<Label>, limits: LogLimits, redactor: Redactor) -> Self {
        Self {
            label,
            limits,
            redactor,
            context: String::new(),
            written: 0,
            dropped: 0,
            last_words: None,
        }
    }

    /// A new call begins: it has an allowance of its own.
    pub(crate) fn restart(&mut self, context: String) {
        self.report_dropped();
        self.context = context;
        self.written = 0;
        self.last_words = None;
    }

    pub(crate) fn take_last_words(&mut self) -> Option<String> {
        self.last_words.take()
    }

    fn write(&mut self, level: Level, message: &str) {
        if self.written >= self.limits.lines {
            self.dropped += 1;
            return;
        }
        self.written += 1;
        // Secrets first: a cut through one would hide it.
        let message = self.redactor.redact(message);
        let message = cut(&message, self.limits.line_bytes);
        if level == Level::ERROR {
            self.last_words = Some(message.to_owned());
        }
        emit(level, &self.label, &self.context, message);
    }

    fn report_dropped(&mut self) {
        if self.dropped > 0 {
            let text = format!(
                "{} more lines were dropped: a call may write {}",
                self.dropped, self.limits.lines
            );
            emit(Level::WARN, &self.label, &self.context, &text);
            self.dropped = 0;
        }
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        self.report_dropped();
    }
}

fn emit(level: Level, label: &Label, context: &str, message: &str) {
    macro_rules! line {
        ($level:ident) => {
            tracing::event!(target: "guest", Level::$level, plugin = %label, context, "{message}")
        };
    }
    match level {
        Level::TRACE => line!(TRACE),
        Level::DEBUG => line!(DEBUG),
        Level::INFO => line!(INFO),
        Level::WARN => line!(WARN),
        Level::ERROR => line!(ERROR),
    }
}

/// The beginning of a text, without a torn character.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

impl logging::Host for Guest {
    fn log(&mut self, level: logging::Level, message: String) -> wasmtime::Result<()> {
        self.lines.write(level.into(), &message);
        Ok(())
    }
}
