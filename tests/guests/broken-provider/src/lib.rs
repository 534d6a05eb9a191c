//! A provider that breaks one promise, named by its option `breaks`, and is sound without one. For
//! tests of what finds such plugins out. Its protocol: each line of the answer is a piece of text, a
//! blank line is the end.
//!
//! | `breaks` | what it does |
//! |---|---|
//! | `cuts` | takes the end of what it was fed for the end of a line |
//! | `end` | says more after its end |
//! | `text` | panics at bytes that are no UTF-8 |
//! | `encode` | panics at a request without messages |
//!
//! `classify` is not told the options: it panics at an error answer that is no JSON once the bytes of
//! [`CLASSIFY`] say so.

use mainstay_guest::http::{Request, Response};
use mainstay_guest::provider::{
    Decoder, Exchange, HttpExchange, ModelEvent, ModelRequest, ProviderManifest, failure_of_status,
};
use mainstay_guest::types::{Failure, FinishReason};
use mainstay_guest::{Error, Provider, manifest};
use serde::Deserialize;

struct Broken;

mainstay_guest::provider!(Broken);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    breaks: String,
}

/// A test patches the bytes of the component.
static CLASSIFY: [u8; 15] = *b"classify: sound";

impl Provider for Broken {
    type Decoder = Lines;

    fn manifest() -> ProviderManifest {
        let mut manifest = manifest::provider(
            "broken-provider",
            env!("CARGO_PKG_VERSION"),
            "Breaks one promise",
        )
        .options_schema(r#"{"type":"object","properties":{"breaks":{"type":"string"}}}"#);
        manifest.http = vec![manifest::http_base_url()];
        manifest
    }

    fn encode(request: ModelRequest) -> Result<Exchange, Error> {
        let options: Options = request.config.options()?;
        assert!(
            options.breaks != "encode" || !request.messages.is_empty(),
            "there are no messages"
        );
        let base = request.config.base_url.as_deref();
        let url = base.ok_or_else(|| Error::Config("a base URL is needed".to_owned()))?;
        Ok(Exchange::Http(HttpExchange {
            request: Request::post(url).body(format!("{} messages", request.messages.len())),
            memo: options.breaks.into_bytes(),
        }))
    }

    fn classify(answer: Response) -> Failure {
        if std::hint::black_box(&CLASSIFY) == b"classify: panic" {
            let body: Result<serde_json::Value, _> = serde_json::from_slice(&answer.body);
            assert!(body.is_ok(), "the body is no JSON");
        }
        failure_of_status(&answer)
    }
}

/// Reads lines.
struct Lines {
    breaks: String,
    held: Vec<u8>,
    done: bool,
}

impl Lines {
    fn line(&mut self, line: &[u8], events: &mut Vec<ModelEvent>) {
        if self.done {
            return;
        }
        if line.is_empty() {
            self.done = true;
            events.push(ModelEvent::Finished(FinishReason::Stop));
            if self.breaks == "end" {
                events.push(ModelEvent::TextDelta("One more thing.".to_owned()));
            }
            return;
        }
        let text = match self.breaks.as_str() {
            "text" => String::from_utf8(line.to_vec()).expect("the line is text"),
            _ => String::from_utf8_lossy(line).into_owned(),
        };
        events.push(ModelEvent::TextDelta(format!("{text}\n")));
    }
}

impl Decoder for Lines {
    fn new(_: Response, memo: Vec<u8>) -> Self {
        Self {
            breaks: String::from_utf8_lossy(&memo).into_owned(),
            held: Vec::new(),
            done: false,
        }
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<ModelEvent>) {
        self.held.extend_from_slice(bytes);
        while let Some(end) = self.held.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.held.drain(..=end).collect();
            self.line(&line[..end], events);
        }
        if self.breaks == "cuts" && !self.held.is_empty() {
            let line = std::mem::take(&mut self.held);
            self.line(&line, events);
        }
    }

    fn finish(&mut self, events: &mut Vec<ModelEvent>) {
        if !self.held.is_empty() {
            let line = std::mem::take(&mut self.held);
            self.line(&line, events);
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_guest::testing;

    use super::*;

    #[test]
    fn without_an_option_cuts_do_not_matter() {
        let head = Response {
            status: 200,
            headers: Vec::new(),
            body: Vec::new(),
        };
        let events = testing::decode_every_cut::<Lines>(&head, b"", "eins\nzwölf\n\n".as_bytes());
        assert_eq!(events.len(), 2, "{events:?}");
    }
}
