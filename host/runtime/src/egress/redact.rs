//! Takes the values of secrets out of text and bytes, whichever way they come by.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, RwLock};

use base64::Engine as _;
use base64::engine::general_purpose::{STANDARD_NO_PAD, URL_SAFE_NO_PAD};

/// What stands where a secret stood.
pub const MASK: &str = "[secret]";

/// Shorter values would mask ordinary words; nobody's key is that short.
const SHORTEST: usize = 4;
/// Derived forms of values shorter than this are too short themselves.
const SHORTEST_DERIVED: usize = 8;

/// Knows every value that was ever put into a request, plain and in the forms in which a server or a
/// log may repeat it: Base64 at any alignment, percent-encoded, inside a JSON string.
#[derive(Clone, Default)]
pub struct Redactor {
    patterns: Arc<RwLock<Arc<Patterns>>>,
}

impl Redactor {
    /// A redactor that knows nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// From now on `value` is taken out. It is never forgotten: a value that was replaced may still
    /// turn up.
    pub fn learn(&self, value: &str) {
        if value.len() < SHORTEST || self.current().words.contains(value.as_bytes()) {
            return;
        }
        let mut patterns = self.patterns.write().expect("no panic under this lock");
        let mut words = patterns.words.clone();
        words.extend(forms(value));
        *patterns = Arc::new(Patterns::new(words));
    }

    /// `text` without secrets.
    #[must_use]
    pub fn redact<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let patterns = self.current();
        if patterns.next(text.as_bytes(), 0).is_none() {
            return Cow::Borrowed(text);
        }
        let mut clean = Vec::with_capacity(text.len());
        patterns.replace(text.as_bytes(), &mut clean);
        Cow::Owned(String::from_utf8_lossy(&clean).into_owned())
    }

    /// `bytes` without secrets.
    #[must_use]
    pub fn redact_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut clean = Vec::with_capacity(bytes.len());
        self.current().replace(bytes, &mut clean);
        clean
    }

    /// For bytes that come in pieces.
    #[must_use]
    pub fn stream(&self) -> Stream {
        Stream {
            redactor: self.clone(),
            held: Vec::new(),
        }
    }

    fn current(&self) -> Arc<Patterns> {
        self.patterns
            .read()
            .expect("no panic under this lock")
            .clone()
    }
}

/// Takes secrets out of a stream, across its cuts. Holds back only what may be the beginning of one.
pub struct Stream {
    redactor: Redactor,
    held: Vec<u8>,
}

impl Stream {
    /// What can be passed on once `bytes` have come.
    #[must_use]
    pub fn push(&mut self, bytes: &[u8]) -> Vec<u8> {
        let patterns = self.redactor.current();
        let mut all = std::mem::take(&mut self.held);
        all.extend_from_slice(bytes);
        let mut clean = Vec::with_capacity(all.len());
        let done = patterns.replace_whole(&all, &mut clean);
        self.held = all.split_off(done);
        clean
    }

    /// What was held back, once no more bytes will come.
    #[must_use]
    pub fn end(&mut self) -> Vec<u8> {
        let held = std::mem::take(&mut self.held);
        self.redactor.redact_bytes(&held)
    }
}

struct Patterns {
    words: BTreeSet<Vec<u8>>,
    /// Longest first, so that a word which begins with another is taken out whole.
    by_first: [Vec<Vec<u8>>; 256],
}

impl Default for Patterns {
    fn default() -> Self {
        Self::new(BTreeSet::new())
    }
}

impl Patterns {
    fn new(words: BTreeSet<Vec<u8>>) -> Self {
        let mut by_first = [const { Vec::new() }; 256];
        for word in &words {
            by_first[usize::from(word[0])].push(word.clone());
        }
        for list in &mut by_first {
            list.sort_by_key(|word| std::cmp::Reverse(word.len()));
        }
        Self { words, by_first }
    }

    /// Where the next word at or after `from` stands, and how long it is.
    fn next(&self, bytes: &[u8], from: usize) -> Option<(usize, usize)> {
        if self.words.is_empty() {
            return None;
        }
        (from..bytes.len()).find_map(|at| Some((at, self.at(&bytes[at..])?)))
    }

    fn at(&self, rest: &[u8]) -> Option<usize> {
        self.by_first[usize::from(rest[0])]
            .iter()
            .find(|word| rest.starts_with(word))
            .map(Vec::len)
    }

    fn replace(&self, bytes: &[u8], clean: &mut Vec<u8>) {
        let mut from = 0;
        while let Some((at, length)) = self.next(bytes, from) {
            clean.extend_from_slice(&bytes[from..at]);
            clean.extend_from_slice(MASK.as_bytes());
            from = at + length;
        }
        clean.extend_from_slice(&bytes[from..]);
    }

    /// Like `replace`, but stops where the rest may be the beginning of a word. Returns that place.
    fn replace_whole(&self, bytes: &[u8], clean: &mut Vec<u8>) -> usize {
        let mut at = 0;
        while at < bytes.len() {
            let rest = &bytes[at..];
            let words = &self.by_first[usize::from(rest[0])];
            // A longer word may still be coming, so it comes before a shorter one that is whole.
            if words
                .iter()
                .any(|word| word.len() > rest.len() && word.starts_with(rest))
            {
                break;
            }
            if let Some(length) = self.at(rest) {
                clean.extend_from_slice(MASK.as_bytes());
                at += length;
            } else {
                clean.push(rest[0]);
                at += 1;
            }
        }
        at
    }
}

fn forms(value: &str) -> BTreeSet<Vec<u8>> {
    let mut forms = BTreeSet::from([value.as_bytes().to_vec()]);
    if value.len() < SHORTEST_DERIVED {
        return forms;
    }
    for skip in 0..3 {
        // Behind `skip` unknown bytes, the characters that depend on the value alone.
        let mut bytes = vec![0; skip];
        bytes.extend_from_slice(value.as_bytes());
        let first = (skip * 8).div_ceil(6);
        let last = bytes.len() * 8 / 6;
        for engine in [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD] {
            forms.insert(engine.encode(&bytes).as_bytes()[first..last].to_vec());
        }
    }
    let percent: String = url::form_urlencoded::byte_serialize(value.as_bytes()).collect();
    forms.insert(percent.into_bytes());
    if let Ok(json) = serde_json::to_string(value) {
        forms.insert(json.as_bytes()[1..json.len() - 1].to_vec());
    }
    forms
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cap_4_every_form_is_taken_out() {
        let redactor = Redactor::new();
        let secret = "sk-live/quite+secret\"1";
        redactor.learn(secret);
        for prefix in ["", "a", "ab", "abc"] {
            let encoded = STANDARD_NO_PAD.encode(format!("{prefix}{secret} and more"));
            assert!(redactor.redact(&encoded).contains(MASK), "{encoded}");
        }
        let json = serde_json::to_string(secret).unwrap();
        assert_eq!(redactor.redact(&json), format!("\"{MASK}\""));
        assert_eq!(redactor.redact("nothing here"), "nothing here");
    }

    #[test]
    fn cap_4_a_stream_is_redacted_across_every_cut() {
        let redactor = Redactor::new();
        redactor.learn("hunter2hunter2");
        redactor.learn("hunter2hunter2-long");
        let text = b"hunter hunter2hunter2, hunter2hunter2-long hunter2h";
        let expected = format!("hunter {MASK}, {MASK} hunter2h");
        for cut in 0..text.len() {
            let mut stream = redactor.stream();
            let mut clean = stream.push(&text[..cut]);
            clean.extend(stream.push(&text[cut..]));
            clean.extend(stream.end());
            assert_eq!(String::from_utf8(clean).unwrap(), expected, "cut at {cut}");
        }
        let mut stream = redactor.stream();
        let mut clean = Vec::new();
        for byte in text {
            clean.extend(stream.push(&[*byte]));
        }
        clean.extend(stream.end());
        assert_eq!(String::from_utf8(clean).unwrap(), expected);
    }

    #[test]
    fn text_that_is_no_secret_is_not_held_back() {
        let redactor = Redactor::new();
        redactor.learn("hunter2");
        assert_eq!(redactor.stream().push(b"data: {}\n\n"), b"data: {}\n\n");
    }
}
