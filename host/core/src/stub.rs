//! Old bodies, once they are past their retention. An event becomes a stub: all of it but its text,
//! under the digest of what it was. The text stays once, in the rows that the event projected to, so
//! that reads, requests and retries are as before; a rebuild takes it from there, and checks that
//! everything else in those rows still follows from the log.

use serde_json::Value;

use crate::event::{EventBody, InputContent, Piece, Record};
use crate::history::{Assistant, Item, ItemBody};
use crate::id::{self, Digest, Seq};
use crate::model::{Content, HostedResult, Message, Part, ToolCall, ToolResult};
use crate::plugin::{Action, Compact, ModelCall, Segment, Summary};
use crate::rebuild::Rows;
use crate::tail::{Changes, Input, Tail};

/// The last seq whose body may go: what is open or pending is still read from its events.
#[must_use]
pub fn through(tail: &Tail) -> Seq {
    let session = &tail.session;
    let input = tail.inputs.first().map_or(Seq::MAX, |input| input.seq);
    let step = session.step.unwrap_or(Seq::MAX);
    let call = session.open_calls.first().map_or(Seq::MAX, |(seq, _)| *seq);
    let turn = session.turn.as_ref().map_or(Seq::MAX, |turn| turn.began);
    let open = input.min(step).min(call).min(turn);
    session.head.min(open.saturating_sub(1))
}

/// The stub of an event. `None` where its body stays: it is a stub already, of a type that this build
/// does not know, or would lose less than `worth` bytes.
#[must_use]
pub fn stub(record: &Record, worth: u64) -> Option<Record> {
    if record.compacted.is_some() {
        return None;
    }
    let (_, _, data) = strip(record.decode().ok()?.body)?.encode();
    let saved = length(&record.data).checked_sub(length(&data))?;
    (saved >= worth.max(1)).then(|| Record {
        compacted: Some(digest(&record.data)),
        data,
        ..record.clone()
    })
}

/// Bytes of an event's data as they are stored.
#[must_use]
pub fn length(data: &Value) -> u64 {
    data.to_string().len() as u64
}

/// SHA-256 of data, whatever the order of their fields.
#[must_use]
pub fn digest(data: &Value) -> Digest {
    fn sorted(value: &Value, text: &mut String) {
        match value {
            Value::Object(fields) => {
                let mut fields: Vec<_> = fields.iter().collect();
                fields.sort_unstable_by_key(|(name, _)| *name);
                text.push('{');
                for (name, value) in fields {
                    text.push_str(&Value::from(name.as_str()).to_string());
                    text.push(':');
                    sorted(value, text);
                    text.push(',');
                }
                text.push('}');
            }
            Value::Array(values) => {
                text.push('[');
                for value in values {
                    sorted(value, text);
                    text.push(',');
                }
                text.push(']');
            }
            plain => text.push_str(&plain.to_string()),
        }
    }
    let mut text = String::new();
    sorted(data, &mut text);
    id::digest(text.as_bytes())
}

/// Whether these are the data of a record, or were before it became a stub.
#[must_use]
pub fn is_of(record: &Record, data: &Value) -> bool {
    match &record.compacted {
        Some(compacted) => record.data == *data || *compacted == digest(data),
        None => record.data == *data,
    }
}

/// Puts the text that stubs have lost back into the rows that were made of them, some of which younger
/// events began: a prompt is promoted later than it is admitted.
pub fn fill(made: &mut Rows, held: &Rows) {
    for (key, item) in &mut made.items {
        if let Some(held) = held.items.get(key) {
            refill(item, held);
        }
    }
    for (seq, input) in &mut made.inputs {
        if let Some(held) = held.inputs.get(seq) {
            refill_input(input, held);
        }
    }
}

/// The same for what one event of an import changes.
pub(crate) fn fill_changes(changes: &mut Changes, texts: &Rows) {
    let mut last = (0, 0);
    for item in &mut changes.items {
        last = if last.0 == item.seq {
            (item.seq, last.1 + 1)
        } else {
            (item.seq, 0)
        };
        if let Some(held) = texts.items.get(&last) {
            refill(item, held);
        }
    }
    for input in &mut changes.inputs {
        if let Some(held) = texts.inputs.get(&input.seq) {
            refill_input(input, held);
        }
    }
}

fn refill(made: &mut Item, held: &Item) {
    let bare = shape(held);
    // The answer to a hosted call that the host settled is made of its result's text.
    let wrapped = matches!(&made.body, ItemBody::Assistant(answer)
        if answer.content.iter().any(|content| matches!(content, Content::HostedResult(_))));
    if *made == bare || (shape(made) == bare && (wrapped || is_part_of(made, held))) {
        *made = held.clone();
    }
}

/// Whether an answer says what the other says, with pieces left out: it came in several events, of which
/// some are stubs and some are not, be it for their age, their size, or since they came from elsewhere.
fn is_part_of(made: &Item, held: &Item) -> bool {
    let (ItemBody::Assistant(made), ItemBody::Assistant(held)) = (&made.body, &held.body) else {
        return false;
    };
    let mut both = made.content.iter().zip(&held.content);
    both.all(|(made, held)| runs_through(bytes(made), bytes(held)))
}

/// What a stub loses of it.
fn bytes(content: &Content) -> &[u8] {
    match content {
        Content::Text(text) | Content::Reasoning(text) => text.as_bytes(),
        Content::ToolCall(call) | Content::HostedCall(call) => call.arguments.as_bytes(),
        Content::HostedResult(result) => result.data.as_bytes(),
        Content::ProviderState(state) => &state.data,
        Content::Media(_) => &[],
    }
}

/// Whether all of `part` stands in `whole`, in its order.
fn runs_through(part: &[u8], whole: &[u8]) -> bool {
    let mut whole = whole.iter();
    part.iter().all(|byte| whole.any(|other| other == byte))
}

fn refill_input(made: &mut Input, held: &Input) {
    let mut bare = held.content.clone();
    strip_input(&mut bare);
    if made.content == bare {
        made.content = held.content.clone();
    }
}

/// An item as it is made of stubs.
#[must_use]
pub fn shape(item: &Item) -> Item {
    let mut bare = item.clone();
    strip_item(&mut bare.body);
    bare
}

/// A body without its text. `None` for types that have none to speak of, or whose text the session's
/// own row may still hold.
fn strip(mut body: EventBody) -> Option<EventBody> {
    match &mut body {
        EventBody::InputAdmitted { content, .. } => strip_input(content),
        EventBody::RunnerSaid { parts, .. } | EventBody::RunnerNoted { parts } => {
            strip_parts(parts);
        }
        EventBody::RunnerAnswered { answer, .. } => strip_parts(&mut answer.output),
        EventBody::StepStarted(started) => strip_action(&mut started.action),
        EventBody::StepOutput { pieces, .. } => pieces.iter_mut().for_each(strip_piece),
        EventBody::CallSettled { result, .. } => strip_result(result),
        // The arguments stand in the call.
        EventBody::CallHeld { request, .. } => request.details = None,
        EventBody::ContextCompacted { summary, .. } => strip_parts(summary),
        EventBody::ItemCopied { body, .. } => strip_item(body),
        _ => return None,
    }
    Some(body)
}

fn strip_action(action: &mut Action) {
    match action {
        Action::CallModel(call) => strip_model_call(call),
        Action::CallTools(calls) => calls.iter_mut().for_each(strip_call),
        Action::Compact(Compact { summary, .. }) => match summary {
            Summary::Model(call) => strip_model_call(call),
            Summary::Text(text) => text.clear(),
        },
        // What a wait or a child was asked for stands in the session's row.
        Action::Wait(_) | Action::Spawn(_) | Action::Done | Action::Fail(_) => {}
    }
}

fn strip_model_call(call: &mut ModelCall) {
    for segment in &mut call.transcript {
        match segment {
            Segment::Message(Message::System(parts) | Message::User(parts)) => strip_parts(parts),
            Segment::Message(Message::Assistant(content)) => {
                content.iter_mut().for_each(strip_content);
            }
            Segment::Message(Message::ToolResult(result)) => strip_result(result),
            Segment::Items(_) => {}
        }
    }
    for tool in &mut call.own_tools {
        tool.description.clear();
        tool.input_schema.clear();
    }
}

fn strip_piece(piece: &mut Piece) {
    match piece {
        Piece::Text(text) | Piece::Reasoning(text) | Piece::Arguments { text, .. } => text.clear(),
        Piece::HostedCall(call) => strip_call(call),
        Piece::HostedResult(result) => strip_hosted(result),
        Piece::ProviderState(state) => state.data.clear(),
        Piece::Call { .. } | Piece::CallReady { .. } | Piece::Media(_) => {}
    }
}

fn strip_input(content: &mut InputContent) {
    // The others' content may wait in the session's row for a wait of its own.
    if let InputContent::Prompt { parts } = content {
        strip_parts(parts);
    }
}

fn strip_item(body: &mut ItemBody) {
    match body {
        ItemBody::User(parts) | ItemBody::Note(parts) => strip_parts(parts),
        ItemBody::Assistant(Assistant { content, .. }) => {
            content.iter_mut().for_each(strip_content);
        }
        ItemBody::ToolResult(result) => strip_result(result),
        ItemBody::Compaction(compaction) => strip_parts(&mut compaction.summary),
        _ => {}
    }
}

fn strip_parts(parts: &mut [Part]) {
    for part in parts {
        if let Part::Text(text) = part {
            text.clear();
        }
    }
}

fn strip_content(content: &mut Content) {
    match content {
        Content::Text(text) | Content::Reasoning(text) => text.clear(),
        Content::ToolCall(call) | Content::HostedCall(call) => strip_call(call),
        Content::HostedResult(result) => strip_hosted(result),
        Content::ProviderState(state) => state.data.clear(),
        Content::Media(_) => {}
    }
}

fn strip_call(call: &mut ToolCall) {
    call.arguments.clear();
}

fn strip_result(result: &mut ToolResult) {
    strip_parts(&mut result.output);
}

fn strip_hosted(result: &mut HostedResult) {
    result.data.clear();
}
