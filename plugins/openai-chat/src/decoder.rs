//! Reads answers: a stream of events, or one JSON value where a server does not stream.
//!
//! What is read leniently, because servers differ:
//! - calls whose deltas have no index, no id or only the first time, the same id or name every time,
//!   all of the call at once, or always index 0;
//! - arguments that are an object in the place of its text;
//! - `message` where a delta should be, content as a list of parts;
//! - reasoning as `reasoning_content` or `reasoning`;
//! - `stop` as the reason of an answer that calls tools;
//! - a stream that ends after its finish reason without `[DONE]`.

use mainstay_guest::http::Response;
use mainstay_guest::provider::{self, CallDelta, CallStart, ModelEvent};
use mainstay_guest::types::{Failure, FailureClass, FinishReason, Usage};
use serde_json::Value;

use crate::failure;
use crate::sse::{Event, Parser};

/// Reads one answer.
pub(crate) struct Decoder {
    shape: Shape,
    answer: Answer,
}

/// In what shape the answer comes.
enum Shape {
    /// Not known before its first byte that is no blank.
    Unknown,
    Stream(Parser),
    /// One JSON value, so far.
    Whole(Vec<u8>),
}

impl provider::Decoder for Decoder {
    fn new(_: Response, _: Vec<u8>) -> Self {
        // The header is not to be relied on: some servers call a stream JSON.
        Self {
            shape: Shape::Unknown,
            answer: Answer::default(),
        }
    }

    fn feed(&mut self, bytes: &[u8], events: &mut Vec<ModelEvent>) {
        for &byte in bytes {
            if self.answer.ended {
                return;
            }
            match &mut self.shape {
                Shape::Unknown if byte.is_ascii_whitespace() => {}
                Shape::Unknown if byte == b'{' || byte == b'[' => {
                    self.shape = Shape::Whole(vec![byte]);
                }
                Shape::Unknown => {
                    let mut parser = Parser::default();
                    parser.push(byte);
                    self.shape = Shape::Stream(parser);
                }
                Shape::Whole(value) => value.push(byte),
                Shape::Stream(parser) => {
                    if let Some(event) = parser.push(byte) {
                        self.answer.event(&event, false, events);
                    }
                }
            }
        }
    }

    fn finish(&mut self, events: &mut Vec<ModelEvent>) {
        if self.answer.ended {
            return;
        }
        match &mut self.shape {
            Shape::Unknown => {}
            Shape::Whole(bytes) => match serde_json::from_slice(bytes) {
                Ok(value) => self.answer.value(&value, events),
                // Cut off: the host knows what to do with an answer that has no end.
                Err(error) if error.is_eof() => {}
                Err(error) => self.answer.fail(unreadable(&error), events),
            },
            Shape::Stream(parser) => {
                if let Some(event) = parser.finish() {
                    self.answer.event(&event, true, events);
                }
            }
        }
        if !self.answer.ended && self.answer.reason.is_some() {
            self.answer.end(events);
        }
    }
}

fn unreadable(error: &serde_json::Error) -> Failure {
    Failure::new(
        FailureClass::Protocol,
        format!("the server sent what is no JSON: {error}"),
    )
}

/// What is known of the answer.
#[derive(Default)]
struct Answer {
    calls: Vec<Call>,
    /// Why the model stopped, once the server has said so.
    reason: Option<String>,
    refused: bool,
    /// `finished` or `failed` is out.
    ended: bool,
}

/// One call.
struct Call {
    index: Option<u64>,
    /// As the server gave it; may be that of another call.
    server_id: Option<String>,
    /// As the host knows it.
    id: String,
    /// Empty until the server says it; nothing of the call is told before.
    tool: String,
    arguments: String,
    /// Bytes of `arguments` that the host has.
    told: usize,
    started: bool,
    ended: bool,
}

impl Call {
    /// Whether the arguments are one JSON value.
    fn whole(&self) -> bool {
        serde_json::from_str::<serde::de::IgnoredAny>(&self.arguments).is_ok()
    }
}

impl Answer {
    /// One event of a stream. `last` if the stream broke off in it, perhaps.
    fn event(&mut self, event: &Event, last: bool, events: &mut Vec<ModelEvent>) {
        let data = event.data.join("\n");
        if let Ok(value) = serde_json::from_str(&data) {
            self.value(&value, events);
            return;
        }
        // Not one value: some servers forget the blank line between events.
        for data in &event.data {
            let data = data.trim();
            if self.ended || data.is_empty() {
                continue;
            }
            if data == "[DONE]" {
                if self.reason.is_some() {
                    self.end(events);
                }
                continue;
            }
            match serde_json::from_str(data) {
                Ok(value) => self.value(&value, events),
                Err(_) if event.kind.as_deref() == Some("error") => {
                    self.fail(failure::of_text(data), events);
                }
                Err(error) if last && error.is_eof() => {}
                Err(error) => self.fail(unreadable(&error), events),
            }
        }
    }

    /// One chunk of a stream, or the whole answer.
    fn value(&mut self, value: &Value, events: &mut Vec<ModelEvent>) {
        if let Some(failure) = failure::in_stream(value) {
            self.fail(failure, events);
            return;
        }
        let choice = value
            .get("choices")
            .and_then(Value::as_array)
            .and_then(|choices| {
                choices
                    .iter()
                    .find(|choice| choice.get("index").and_then(Value::as_u64).unwrap_or(0) == 0)
            });
        if let Some(choice) = choice {
            self.choice(choice, events);
        }
        if self.ended {
            return;
        }
        let usage = value
            .get("usage")
            .or_else(|| value.get("x_groq")?.get("usage"))
            .filter(|usage| usage.is_object());
        if let Some(counts) = usage {
            events.push(ModelEvent::Usage(usage_of(counts)));
            if self.reason.is_some() {
                self.end(events);
            }
        }
    }

    fn choice(&mut self, choice: &Value, events: &mut Vec<ModelEvent>) {
        let delta = choice
            .get("delta")
            .filter(|delta| delta.is_object())
            .or_else(|| choice.get("message"));
        if let Some(delta) = delta {
            self.delta(delta, events);
        }
        match choice.get("finish_reason").and_then(Value::as_str) {
            Some("error") => {
                let failure = choice
                    .get("error")
                    .and_then(|_| failure::in_stream(choice))
                    .unwrap_or_else(|| {
                        Failure::new(FailureClass::Server, "the server broke its answer off")
                    });
                self.fail(failure, events);
            }
            Some(reason) if !reason.is_empty() => {
                self.end_calls(true, events);
                self.reason = Some(reason.to_owned());
            }
            _ => {}
        }
    }

    fn delta(&mut self, delta: &Value, events: &mut Vec<ModelEvent>) {
        let reasoning = ["reasoning_content", "reasoning"]
            .iter()
            .find_map(|field| text(delta.get(*field)?));
        if let Some(text) = reasoning {
            events.push(ModelEvent::ReasoningDelta(text));
        }
        if let Some(text) = delta.get("content").and_then(text) {
            events.push(ModelEvent::TextDelta(text));
        }
        if let Some(text) = delta.get("refusal").and_then(text) {
            self.refused = true;
            events.push(ModelEvent::TextDelta(text));
        }
        if let Some(calls) = delta.get("tool_calls").and_then(Value::as_array) {
            for call in calls {
                self.call(call, events);
            }
        }
    }

    /// One piece of a call.
    fn call(&mut self, delta: &Value, events: &mut Vec<ModelEvent>) {
        let function = delta.get("function").unwrap_or(delta);
        let index = delta.get("index").and_then(Value::as_u64);
        let id = delta.get("id").and_then(text);
        let tool = function.get("name").and_then(text);
        let arguments = match function.get("arguments") {
            None | Some(Value::Null) => String::new(),
            Some(Value::String(text)) => text.clone(),
            // Meant as the value itself.
            Some(value) => value.to_string(),
        };
        let at = match self.find(index, id.as_deref(), tool.as_deref(), &arguments) {
            Some(at) => at,
            None => {
                // Servers tell one call after the other, so what is whole now stays so.
                self.end_calls(false, events);
                self.begin(index, id)
            }
        };
        let call = &mut self.calls[at];
        if call.tool.is_empty()
            && let Some(tool) = tool
        {
            call.tool = tool;
        }
        if call.ended {
            if !arguments.is_empty() {
                self.fail(
                    Failure::new(
                        FailureClass::Protocol,
                        "the server went on with a call that was whole",
                    ),
                    events,
                );
            }
            return;
        }
        call.arguments.push_str(&arguments);
        tell(call, events);
    }

    /// The call that a piece belongs to; `None` if it begins one.
    fn find(
        &self,
        index: Option<u64>,
        id: Option<&str>,
        tool: Option<&str>,
        arguments: &str,
    ) -> Option<usize> {
        let newest = |matches: &dyn Fn(&Call) -> bool| self.calls.iter().rposition(matches);
        let at = match (index, id) {
            (Some(index), _) => newest(&|call| call.index == Some(index)),
            (None, Some(id)) => newest(&|call| call.server_id.as_deref() == Some(id)),
            (None, None) => self.calls.len().checked_sub(1),
        }?;
        let call = &self.calls[at];
        // Another id under the same index is another call.
        let other_id =
            matches!((id, &call.server_id), (Some(id), Some(known)) if id != known.as_str());
        // So is a name with arguments where the arguments so far are whole.
        let again = tool.is_some()
            && !arguments.is_empty()
            && (id.is_none() || index.is_none())
            && call.whole();
        (!other_id && !again).then_some(at)
    }

    fn begin(&mut self, index: Option<u64>, server_id: Option<String>) -> usize {
        let number = self.calls.len() + 1;
        let wanted = server_id
            .clone()
            .unwrap_or_else(|| format!("call-{number}"));
        let mut id = wanted.clone();
        let mut copy = number;
        while self.calls.iter().any(|call| call.id == id) {
            id = format!("{wanted}-{copy}");
            copy += 1;
        }
        self.calls.push(Call {
            index,
            server_id,
            id,
            tool: String::new(),
            arguments: String::new(),
            told: 0,
            started: false,
            ended: false,
        });
        number - 1
    }

    /// Ends the calls that are whole; with `all`, the others too: the host finds them cut.
    fn end_calls(&mut self, all: bool, events: &mut Vec<ModelEvent>) {
        for call in &mut self.calls {
            if call.ended || !(all || call.whole()) || call.tool.is_empty() {
                continue;
            }
            if call.arguments.trim().is_empty() {
                "{}".clone_into(&mut call.arguments);
                call.told = 0;
            }
            tell(call, events);
            call.ended = true;
            events.push(ModelEvent::ToolCallEnd(call.id.clone()));
        }
    }

    /// A clean end.
    fn end(&mut self, events: &mut Vec<ModelEvent>) {
        self.end_calls(true, events);
        if self.calls.iter().any(|call| call.tool.is_empty()) {
            let failure = Failure::new(FailureClass::Protocol, "the server named no tool to call");
            self.fail(failure, events);
            return;
        }
        let calls = !self.calls.is_empty();
        let reason = match self.reason.as_deref().unwrap_or_default() {
            _ if self.refused => FinishReason::Refusal,
            "stop" | "eos" | "end_turn" | "tool_calls" | "function_call" if calls => {
                FinishReason::ToolCalls
            }
            // Some say `tool_calls` because tools were offered.
            "stop" | "eos" | "end_turn" | "tool_calls" | "function_call" => FinishReason::Stop,
            "length" | "max_tokens" => FinishReason::Length,
            "content_filter" => FinishReason::ContentFilter,
            "refusal" => FinishReason::Refusal,
            other => FinishReason::Other(other.to_owned()),
        };
        self.ended = true;
        events.push(ModelEvent::Finished(reason));
    }

    fn fail(&mut self, failure: Failure, events: &mut Vec<ModelEvent>) {
        self.ended = true;
        events.push(ModelEvent::Failed(failure));
    }
}

/// Tells the host what it does not know of a call.
fn tell(call: &mut Call, events: &mut Vec<ModelEvent>) {
    if call.tool.is_empty() {
        return;
    }
    if !call.started {
        call.started = true;
        events.push(ModelEvent::ToolCallStart(CallStart {
            id: call.id.clone(),
            tool: call.tool.clone(),
        }));
    }
    if call.told < call.arguments.len() {
        events.push(ModelEvent::ToolCallDelta(CallDelta {
            id: call.id.clone(),
            arguments: call.arguments[call.told..].to_owned(),
        }));
        call.told = call.arguments.len();
    }
}

/// A text, or the texts of a list of parts; `None` if there is nothing in it.
fn text(value: &Value) -> Option<String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts
            .iter()
            .filter_map(|part| part.get("text")?.as_str())
            .collect(),
        _ => return None,
    };
    (!text.is_empty()).then_some(text)
}

fn usage_of(counts: &Value) -> Usage {
    let count = |value: Option<&Value>| -> Option<u32> {
        value?.as_u64().and_then(|count| u32::try_from(count).ok())
    };
    let prompt = counts.get("prompt_tokens_details");
    let completion = counts.get("completion_tokens_details");
    let details = |object: Option<&Value>, field: &str| count(object.and_then(|o| o.get(field)));
    Usage {
        input_tokens: count(counts.get("prompt_tokens")),
        cache_read_tokens: details(prompt, "cached_tokens")
            .or_else(|| count(counts.get("prompt_cache_hit_tokens"))),
        cache_write_tokens: details(prompt, "cache_write_tokens")
            .or_else(|| count(counts.get("cache_creation_input_tokens"))),
        output_tokens: count(counts.get("completion_tokens")),
        reasoning_tokens: details(completion, "reasoning_tokens"),
        // A price in dollars; the cast saturates.
        cost: counts
            .get("cost")
            .and_then(Value::as_f64)
            .map(|dollars| (dollars * 1e6).round() as u64),
    }
}

#[cfg(test)]
mod tests;
