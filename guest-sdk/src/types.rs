//! What every kind of plugin speaks of: message parts, calls and results, usage, failures.

pub use crate::bindings::runner::mainstay::plugin::types::*;

impl Part {
    /// A part of text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }
}

impl From<&str> for Part {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

impl From<String> for Part {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

/// The text among parts, in order; parts that are no text are left out.
#[must_use]
pub fn text_of(parts: &[Part]) -> String {
    let texts: Vec<&str> = parts
        .iter()
        .filter_map(|part| match part {
            Part::Text(text) => Some(text.as_str()),
            Part::Media(_) => None,
        })
        .collect();
    texts.join("\n")
}

impl Range {
    /// Whether it holds no seq at all.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.after >= self.through
    }

    /// Whether a seq lies in it.
    #[must_use]
    pub fn contains(&self, seq: Seq) -> bool {
        self.after < seq && seq <= self.through
    }
}

impl Default for ModelOptions {
    /// The model's own defaults.
    fn default() -> Self {
        Self {
            max_output_tokens: None,
            temperature: None,
            reasoning: None,
            output_schema: None,
            extra: None,
        }
    }
}

impl Default for Usage {
    /// Nothing said.
    fn default() -> Self {
        Self {
            input_tokens: None,
            cache_read_tokens: None,
            cache_write_tokens: None,
            output_tokens: None,
            reasoning_tokens: None,
            cost: None,
        }
    }
}

impl Failure {
    /// A failure of a class, in words for people.
    pub fn new(class: FailureClass, message: impl Into<String>) -> Self {
        Self {
            class,
            message: message.into(),
            retry_after_ms: None,
        }
    }
}
