//! Requests as a server would get them.

use mainstay_guest::http::HeaderValue;
use mainstay_guest::provider::Config;
use mainstay_guest::testing::tool_call;
use mainstay_guest::types::{ToolOutcome, ToolResult};

use super::*;

fn request(messages: Vec<Message>) -> ModelRequest {
    ModelRequest {
        model: "m".to_owned(),
        messages,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
        config: Config {
            base_url: Some("http://localhost:8080/v1".to_owned()),
            secrets: Vec::new(),
            options: None,
        },
    }
}

fn sent(call: &ModelRequest) -> Request {
    match encode(call).unwrap() {
        Exchange::Http(exchange) => exchange.request,
        Exchange::Local(_) => panic!("this provider sends requests"),
    }
}

/// The body as JSON, with `<digest>` for media.
fn body_of(call: &ModelRequest) -> Value {
    let mut text = String::new();
    for chunk in sent(call).body {
        match chunk {
            Chunk::Bytes(bytes) => text.push_str(std::str::from_utf8(&bytes).unwrap()),
            Chunk::MediaBase64(digest) => text.push_str(&format!("<{digest}>")),
            Chunk::Media(_) => panic!("a JSON body has no raw bytes"),
        }
    }
    serde_json::from_str(&text).unwrap()
}

fn user(text: &str) -> Message {
    Message::User(vec![Part::text(text)])
}

#[test]
fn a_plain_request() {
    let mut call = request(vec![
        Message::System(vec![Part::text("be brief")]),
        user("hi"),
    ]);
    call.options.max_output_tokens = Some(10);
    call.options.temperature = Some(0.5);
    let request = sent(&call);
    assert_eq!(request.url, "http://localhost:8080/v1/chat/completions");
    assert!(
        request
            .headers
            .iter()
            .all(|header| header.name != "authorization")
    );
    assert_eq!(
        body_of(&call),
        json!({
            "model": "m",
            "messages": [
                {"role": "system", "content": "be brief"},
                {"role": "user", "content": "hi"},
            ],
            "stream": true,
            "stream_options": {"include_usage": true},
            "max_tokens": 10,
            "temperature": 0.5,
        })
    );
}

#[test]
fn the_key_is_named_and_never_held() {
    let mut call = request(vec![user("hi")]);
    call.config.base_url = None;
    call.config.secrets = vec![API_KEY.to_owned()];
    call.options.max_output_tokens = Some(10);
    let request = sent(&call);
    assert_eq!(request.url, "https://api.openai.com/v1/chat/completions");
    let header = request
        .headers
        .iter()
        .find(|header| header.name == "authorization")
        .unwrap();
    match &header.value {
        HeaderValue::Secret(secret) => {
            assert_eq!(
                (secret.name.as_str(), secret.prefix.as_str()),
                (API_KEY, "Bearer ")
            );
        }
        HeaderValue::Text(_) => panic!("the key must be a reference"),
    }
    assert_eq!(body_of(&call)["max_completion_tokens"], 10);
}

#[test]
fn calls_and_results() {
    let call = request(vec![
        user("hi"),
        Message::Assistant(vec![
            Content::Reasoning("hm".to_owned()),
            Content::ToolCall(tool_call("1", "t", r#"{"a":1}"#)),
            Content::ToolCall(tool_call("2", "t", r#"{"a":"#)),
        ]),
        Message::ToolResult(ToolResult {
            call: "1".to_owned(),
            tool: "t".to_owned(),
            outcome: ToolOutcome::Succeeded,
            output: vec![Part::text("one")],
            whole: None,
        }),
    ]);
    assert_eq!(
        body_of(&call)["messages"],
        json!([
            {"role": "user", "content": "hi"},
            {"role": "assistant", "content": null, "tool_calls": [
                {"id": "1", "type": "function", "function": {"name": "t", "arguments": "{\"a\":1}"}},
                {"id": "2", "type": "function", "function": {"name": "t", "arguments": "{}"}},
            ]},
            {"role": "tool", "tool_call_id": "1", "content": "one"},
        ])
    );
}

#[test]
fn tools_and_choice() {
    let mut call = request(vec![user("hi")]);
    call.tool_choice = ToolChoice::Tool("t".to_owned());
    assert_eq!(body_of(&call).get("tool_choice"), None);
    call.tools = vec![ToolDefinition {
        name: "t".to_owned(),
        description: "does".to_owned(),
        input_schema: r#"{"type":"object"}"#.to_owned(),
    }];
    let body = body_of(&call);
    assert_eq!(
        body["tools"][0]["function"]["parameters"],
        json!({"type": "object"})
    );
    assert_eq!(body["tool_choice"]["function"]["name"], "t");
}

#[test]
fn media_are_references() {
    let media = Media {
        digest: "abc".to_owned(),
        media_type: "image/png".to_owned(),
        size: 3,
        name: None,
    };
    // The text contains the first mark that would be tried.
    let call = request(vec![Message::User(vec![
        Part::text("what is @media-0@?"),
        Part::Media(media),
    ])]);
    assert_eq!(
        body_of(&call)["messages"][0]["content"],
        json!([
            {"type": "text", "text": "what is @media-0@?"},
            {"type": "image_url", "image_url": {"url": "data:image/png;base64,<abc>"}},
        ])
    );
}

#[test]
fn options_reach_the_body() {
    let mut call = request(vec![user("hi")]);
    call.config.options =
        Some(r#"{"stream":false,"extra":{"top_k":4},"headers":{"x-a":"b"}}"#.to_owned());
    call.options.extra = Some(r#"{"top_k":5}"#.to_owned());
    call.options.output_schema = Some(r#"{"type":"object"}"#.to_owned());
    let body = body_of(&call);
    assert_eq!(body["top_k"], 5);
    assert_eq!(body["stream"], false);
    assert_eq!(
        body["response_format"]["json_schema"]["schema"]["type"],
        "object"
    );
    assert!(
        sent(&call)
            .headers
            .iter()
            .any(|header| header.name == "x-a")
    );
    call.config.options = Some(r#"{"no_such":1}"#.to_owned());
    assert!(matches!(encode(&call), Err(Error::Config(_))));
}
