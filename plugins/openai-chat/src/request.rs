//! A model request in the protocol's words.

use std::collections::BTreeMap;

use mainstay_guest::Error;
use mainstay_guest::http::{Chunk, Request};
use mainstay_guest::provider::{Exchange, HttpExchange, ModelRequest};
use mainstay_guest::types::{
    Content, Media, Message, ModelOptions, Part, ReasoningEffort, ToolChoice, ToolDefinition,
    text_of,
};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::{API_KEY, BASE_URL};

/// What an operator has set: see the manifest's schema.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    max_tokens_field: Option<String>,
    system_role: Option<String>,
    stream: Option<bool>,
    include_usage: Option<bool>,
    send_reasoning: Option<String>,
    parallel_tool_calls: Option<bool>,
    headers: BTreeMap<String, String>,
    extra: Map<String, Value>,
}

pub(crate) fn encode(call: &ModelRequest) -> Result<Exchange, Error> {
    let options: Options = call.config.options()?;
    let base_url = call.config.base_url.as_deref().unwrap_or(BASE_URL);
    let mut request = Request::post(format!("{base_url}/chat/completions"))
        .header("content-type", "application/json")
        .header(
            "accept",
            if options.stream.unwrap_or(true) {
                "text/event-stream"
            } else {
                "application/json"
            },
        );
    if call.config.has_secret(API_KEY) {
        request = request.secret("authorization", "Bearer ", API_KEY);
    }
    for (name, value) in &options.headers {
        request = request.header(name, value);
    }
    request.body = body(call, &options)?;
    Ok(Exchange::Http(HttpExchange {
        request,
        memo: Vec::new(),
    }))
}

/// The body, with a reference in the place of each media's bytes.
fn body(call: &ModelRequest, options: &Options) -> Result<Vec<Chunk>, Error> {
    // Bytes of media are put in by the host, so the JSON is written with marks in their places. A
    // mark that a text happens to contain is no mark: then another is taken.
    for attempt in 0_u32.. {
        let mut marks = Marks {
            mark: format!("@media-{attempt}@"),
            digests: Vec::new(),
        };
        let json = serde_json::to_string(&object(call, options, &mut marks)?)?;
        let pieces: Vec<&str> = json.split(&marks.mark).collect();
        if pieces.len() != marks.digests.len() + 1 {
            continue;
        }
        let mut chunks = Vec::new();
        // Fields are sorted by name, and media stand in one of them: the marks are in order.
        let mut digests = marks.digests.into_iter();
        for piece in pieces {
            chunks.push(Chunk::Bytes(piece.as_bytes().to_vec()));
            chunks.extend(digests.next().map(Chunk::MediaBase64));
        }
        return Ok(chunks);
    }
    Err(Error::new("every mark is taken"))
}

/// Media that the body refers to, in order.
struct Marks {
    mark: String,
    digests: Vec<String>,
}

impl Marks {
    /// What stands for the Base64 of a media until the host puts it in.
    fn base64(&mut self, media: &Media) -> String {
        self.digests.push(media.digest.clone());
        self.mark.clone()
    }
}

fn object(call: &ModelRequest, options: &Options, marks: &mut Marks) -> Result<Value, Error> {
    if let Some(tool) = call.hosted_tools.first() {
        return Err(Error::Unsupported(format!(
            "chat completions have no hosted tools, `{tool}` neither"
        )));
    }
    let stream = options.stream.unwrap_or(true);
    let mut body = Map::new();
    body.insert("model".to_owned(), json!(call.model));
    body.insert(
        "messages".to_owned(),
        Value::Array(messages(&call.messages, options, marks)?),
    );
    body.insert("stream".to_owned(), json!(stream));
    if stream && options.include_usage.unwrap_or(true) {
        body.insert("stream_options".to_owned(), json!({"include_usage": true}));
    }
    if !call.tools.is_empty() {
        let tools: Result<Vec<Value>, Error> = call.tools.iter().map(tool).collect();
        body.insert("tools".to_owned(), Value::Array(tools?));
        if let Some(choice) = tool_choice(&call.tool_choice) {
            body.insert("tool_choice".to_owned(), choice);
        }
        if let Some(parallel) = options.parallel_tool_calls {
            body.insert("parallel_tool_calls".to_owned(), json!(parallel));
        }
    }
    model_options(&mut body, call, options)?;
    body.extend(options.extra.clone());
    if let Some(extra) = &call.options.extra {
        match serde_json::from_str(extra)? {
            Value::Object(fields) => body.extend(fields),
            _ => return Err(Error::new("`extra` must be a JSON object")),
        }
    }
    Ok(Value::Object(body))
}

fn model_options(
    body: &mut Map<String, Value>,
    call: &ModelRequest,
    options: &Options,
) -> Result<(), Error> {
    let ModelOptions {
        max_output_tokens,
        temperature,
        reasoning,
        output_schema,
        extra: _,
    } = &call.options;
    if let Some(tokens) = max_output_tokens {
        let field = options.max_tokens_field.clone().unwrap_or_else(|| {
            let own = call.config.base_url.as_deref().unwrap_or(BASE_URL);
            if own.starts_with("https://api.openai.com") {
                "max_completion_tokens".to_owned()
            } else {
                "max_tokens".to_owned()
            }
        });
        body.insert(field, json!(tokens));
    }
    if let Some(temperature) = temperature {
        body.insert("temperature".to_owned(), json!(temperature));
    }
    if let Some(effort) = reasoning {
        let effort = match effort {
            ReasoningEffort::Off => "none",
            ReasoningEffort::Low => "low",
            ReasoningEffort::Medium => "medium",
            ReasoningEffort::High => "high",
        };
        body.insert("reasoning_effort".to_owned(), json!(effort));
    }
    if let Some(schema) = output_schema {
        let schema: Value = serde_json::from_str(schema)?;
        body.insert(
            "response_format".to_owned(),
            json!({
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": schema, "strict": true},
            }),
        );
    }
    Ok(())
}

fn tool(tool: &ToolDefinition) -> Result<Value, Error> {
    let parameters: Value = serde_json::from_str(&tool.input_schema)?;
    Ok(json!({
        "type": "function",
        "function": {
            "name": tool.name,
            "description": tool.description,
            "parameters": parameters,
        },
    }))
}

/// `auto` is what servers do by themselves, and some refuse the word.
fn tool_choice(choice: &ToolChoice) -> Option<Value> {
    match choice {
        ToolChoice::Auto => None,
        ToolChoice::None => Some(json!("none")),
        ToolChoice::Required => Some(json!("required")),
        ToolChoice::Tool(name) => Some(json!({"type": "function", "function": {"name": name}})),
    }
}

fn messages(
    messages: &[Message],
    options: &Options,
    marks: &mut Marks,
) -> Result<Vec<Value>, Error> {
    let mut all = Vec::new();
    // Results are text in this protocol; their media follow the last of them as a user message.
    let mut media: Vec<&Media> = Vec::new();
    for message in messages {
        if !matches!(message, Message::ToolResult(_)) {
            flush(&mut all, &mut media, marks)?;
        }
        match message {
            Message::System(parts) => {
                let role = options.system_role.as_deref().unwrap_or("system");
                all.push(json!({"role": role, "content": text_of(parts)}));
            }
            Message::User(parts) => {
                all.push(json!({"role": "user", "content": user_content(parts, marks)?}));
            }
            Message::Assistant(content) => all.push(assistant(content, options)),
            Message::ToolResult(result) => {
                all.push(json!({
                    "role": "tool",
                    "tool_call_id": result.call,
                    "content": text_of(&result.output),
                }));
                media.extend(result.output.iter().filter_map(|part| match part {
                    Part::Media(media) => Some(media),
                    Part::Text(_) => None,
                }));
            }
        }
    }
    flush(&mut all, &mut media, marks)?;
    Ok(all)
}

fn flush(all: &mut Vec<Value>, media: &mut Vec<&Media>, marks: &mut Marks) -> Result<(), Error> {
    if media.is_empty() {
        return Ok(());
    }
    let mut content = vec![json!({"type": "text", "text": "Media of the tool results above:"})];
    for media in media.drain(..) {
        content.push(media_part(media, marks)?);
    }
    all.push(json!({"role": "user", "content": content}));
    Ok(())
}

/// Plain text stays a string: the oldest servers know nothing else.
fn user_content(parts: &[Part], marks: &mut Marks) -> Result<Value, Error> {
    if parts.iter().all(|part| matches!(part, Part::Text(_))) {
        return Ok(json!(text_of(parts)));
    }
    parts
        .iter()
        .map(|part| match part {
            Part::Text(text) => Ok(json!({"type": "text", "text": text})),
            Part::Media(media) => media_part(media, marks),
        })
        .collect::<Result<Vec<Value>, Error>>()
        .map(Value::Array)
}

fn media_part(media: &Media, marks: &mut Marks) -> Result<Value, Error> {
    let kind = media.media_type.as_str();
    if kind.starts_with("image/") {
        let url = format!("data:{kind};base64,{}", marks.base64(media));
        return Ok(json!({"type": "image_url", "image_url": {"url": url}}));
    }
    let audio = match kind {
        "audio/wav" | "audio/x-wav" | "audio/wave" => Some("wav"),
        "audio/mpeg" | "audio/mp3" => Some("mp3"),
        _ => None,
    };
    if let Some(format) = audio {
        let data = marks.base64(media);
        return Ok(json!({"type": "input_audio", "input_audio": {"data": data, "format": format}}));
    }
    if kind == "application/pdf" || kind.starts_with("text/") {
        let data = format!("data:{kind};base64,{}", marks.base64(media));
        let name = media.name.as_deref().unwrap_or("document");
        return Ok(json!({"type": "file", "file": {"filename": name, "file_data": data}}));
    }
    Err(Error::Unsupported(format!(
        "chat completions take no media of type {kind}"
    )))
}

fn assistant(content: &[Content], options: &Options) -> Value {
    let mut text = String::new();
    let mut reasoning = String::new();
    let mut calls = Vec::new();
    for content in content {
        match content {
            Content::Text(more) => text.push_str(more),
            Content::Reasoning(more) => reasoning.push_str(more),
            Content::ToolCall(call) => {
                let valid = serde_json::from_str::<serde::de::IgnoredAny>(&call.arguments).is_ok();
                calls.push(json!({
                    "id": call.id,
                    "type": "function",
                    "function": {
                        "name": call.tool,
                        "arguments": if valid { call.arguments.as_str() } else { "{}" },
                    },
                }));
            }
            // What this protocol has no place for in an answer of the past.
            Content::HostedCall(_)
            | Content::HostedResult(_)
            | Content::ProviderState(_)
            | Content::Media(_) => {}
        }
    }
    let mut message = Map::new();
    message.insert("role".to_owned(), json!("assistant"));
    message.insert(
        "content".to_owned(),
        if text.is_empty() && !calls.is_empty() {
            Value::Null
        } else {
            json!(text)
        },
    );
    if let Some(field) = &options.send_reasoning
        && !reasoning.is_empty()
    {
        message.insert(field.clone(), json!(reasoning));
    }
    if !calls.is_empty() {
        message.insert("tool_calls".to_owned(), Value::Array(calls));
    }
    Value::Object(message)
}

#[cfg(test)]
mod tests;
