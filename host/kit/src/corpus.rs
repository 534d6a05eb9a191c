//! Answers that a provider's decoder is fed: the protocols that are common, and what no server should
//! send. A decoder that knows none of them still has to read them all alike however they are cut.

use mainstay_core::plugin::ResponseHead;

/// One answer of a server.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub(crate) name: String,
    pub(crate) head: ResponseHead,
    pub(crate) body: Vec<u8>,
}

/// Status and headers of an answer that streams.
pub(crate) fn head(status: u16) -> ResponseHead {
    of_type(status, "text/event-stream")
}

fn of_type(status: u16, content_type: &str) -> ResponseHead {
    ResponseHead {
        status,
        headers: vec![("content-type".to_owned(), content_type.to_owned())],
    }
}

/// All answers, those of the author first.
pub(crate) fn answers(own: &[(String, Vec<u8>)]) -> Vec<Answer> {
    let mut all: Vec<Answer> = own
        .iter()
        .map(|(name, body)| Answer {
            name: name.clone(),
            head: match body.first() {
                Some(b'{') => of_type(200, "application/json"),
                _ => head(200),
            },
            body: body.clone(),
        })
        .collect();
    let mut add = |name: &str, content_type: &str, body: &[u8]| {
        all.push(Answer {
            name: name.to_owned(),
            head: of_type(200, content_type),
            body: body.to_vec(),
        });
    };
    let stream = "text/event-stream";
    add("chat stream", stream, CHAT.as_bytes());
    add(
        "chat stream with CRLF",
        stream,
        CHAT.replace('\n', "\r\n").as_bytes(),
    );
    add(
        "chat stream that breaks off",
        stream,
        &CHAT.as_bytes()[..CHAT.len() / 2],
    );
    add("messages stream", stream, MESSAGES.as_bytes());
    add("whole chat answer", "application/json", WHOLE.as_bytes());
    add("JSON lines", "application/x-ndjson", LINES.as_bytes());
    add(
        "lines of text",
        "text/plain",
        "one\ntwo words\n\nthree: zwölf 🦜\n".as_bytes(),
    );
    add("nothing", stream, b"");
    add("blank lines", stream, b"\n\r\n\r\n\n: comment\n\n");
    add(
        "a page of HTML",
        "text/html",
        b"<!doctype html><p>Bad gateway</p>\n",
    );
    add(
        "bytes that are no text",
        stream,
        b"data: \xff\xfe\x00\xc3\n\n\x80\xf0\x9f\n",
    );
    add(
        "malformed JSON",
        stream,
        b"data: {\"choices\":[{\ndata: }\n\ndata: [DONE]\n\n",
    );
    add(
        "JSON of the wrong shape",
        stream,
        b"data: [1,{\"choices\":7}]\n\ndata: null\n\ndata: \"x\"\n\n",
    );
    all
}

/// Answers too long to be cut at every byte.
pub(crate) fn long() -> Vec<Answer> {
    let line = format!(
        "data: {{\"choices\":[{{\"delta\":{{\"content\":\"{}\"}}}}]}}\n\n",
        "x".repeat(200)
    );
    let deep = format!("data: {}{}\n\n", "[".repeat(20_000), "]".repeat(20_000));
    [
        ("512 KiB without an end of line", "x".repeat(512 << 10)),
        ("1,000 chunks", line.repeat(1_000)),
        ("JSON 20,000 deep", deep),
    ]
    .into_iter()
    .map(|(name, body)| Answer {
        name: name.to_owned(),
        head: head(200),
        body: body.into_bytes(),
    })
    .collect()
}

/// Error answers: each a status, and bodies of all kinds.
pub(crate) fn errors() -> Vec<Answer> {
    let statuses = [
        400, 401, 402, 403, 404, 408, 409, 413, 418, 422, 429, 500, 502, 503, 529, 599, 302, 100,
    ];
    let huge = "x".repeat(64 << 10);
    let bodies: [(&str, &[u8]); 8] = [
        ("no body", b""),
        ("an error in JSON", br#"{"error":{"message":"no","type":"invalid_request_error","code":"context_length_exceeded"}}"#),
        ("an error in a text", br#"{"error":"no"}"#),
        ("malformed JSON", b"{\"error\":{"),
        ("JSON of the wrong shape", b"[[],null,7]"),
        ("a page of HTML", b"<!doctype html><p>Bad gateway</p>"),
        ("bytes that are no text", b"\xff\xfe\x00\xc3"),
        ("64 KiB", huge.as_bytes()),
    ];
    let mut all = Vec::new();
    for status in statuses {
        for (name, body) in bodies {
            let mut head = of_type(status, "application/json");
            head.headers
                .push(("retry-after".to_owned(), "not a number".to_owned()));
            all.push(Answer {
                name: format!("status {status} with {name}"),
                head,
                body: body.to_vec(),
            });
        }
    }
    all
}

const CHAT: &str = r#"data: {"id":"1","choices":[{"index":0,"delta":{"role":"assistant","content":"Grüße"}}]}

data: {"choices":[{"index":0,"delta":{"content":" 🦜 \u00fcber"}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"id":"call_1","type":"function","function":{"name":"look","arguments":"{\"path\":"}}]}}]}

data: {"choices":[{"index":0,"delta":{"tool_calls":[{"index":0,"function":{"arguments":"\"ä\"}"}}]}}]}

data: {"choices":[{"index":0,"delta":{},"finish_reason":"tool_calls"}]}

data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12}}

data: [DONE]

"#;

const MESSAGES: &str = r#"event: message_start
data: {"type":"message_start","message":{"id":"m","role":"assistant","content":[],"usage":{"input_tokens":9,"output_tokens":1}}}

event: content_block_start
data: {"type":"content_block_start","index":0,"content_block":{"type":"text","text":""}}

event: content_block_delta
data: {"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"Grüße 🦜"}}

event: content_block_stop
data: {"type":"content_block_stop","index":0}

event: message_delta
data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":5}}

event: message_stop
data: {"type":"message_stop"}

"#;

const WHOLE: &str = r#"{"id":"1","choices":[{"index":0,"message":{"role":"assistant","content":"Grüße 🦜"},"finish_reason":"stop"}],"usage":{"prompt_tokens":9,"completion_tokens":3}}"#;

const LINES: &str = r#"{"message":{"role":"assistant","content":"Grüße"},"done":false}
{"message":{"role":"assistant","content":" 🦜"},"done":true,"done_reason":"stop"}
"#;
