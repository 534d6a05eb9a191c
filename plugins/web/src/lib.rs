//! The toolbox `web`: requests over HTTP to the hosts that the operator granted.
//!
//! Both tools give the status line, the headers that say what the body is, and the body. An answer
//! outside 200 to 299 is a result like any other: what it means is for the model to judge.

use std::collections::BTreeMap;

use mainstay_guest::Toolbox;
use mainstay_guest::http::FetchErrorText;
use mainstay_guest::manifest::{self, Scheme};
use mainstay_guest::toolbox::{
    CallError, CallRequest, Effect, FetchError, Host, NewMedia, Output, Request, Response, Tool,
    ToolboxManifest,
};
use serde::Deserialize;

/// Bytes of a text body that go into the result.
const TEXT_LIMIT: usize = 512 * 1024;

/// Headers worth a line of the result.
const SHOWN_HEADERS: [&str; 5] = [
    "content-type",
    "location",
    "etag",
    "last-modified",
    "retry-after",
];

struct Web;

mainstay_guest::toolbox!(Web);

#[derive(Deserialize)]
struct Get {
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
}

#[derive(Deserialize)]
struct Post {
    url: String,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    #[serde(default)]
    body: String,
    content_type: Option<String>,
}

impl Toolbox for Web {
    fn manifest() -> ToolboxManifest {
        let mut manifest = manifest::toolbox(
            "web",
            env!("CARGO_PKG_VERSION"),
            "HTTP requests to granted hosts",
        );
        manifest.http = vec![
            manifest::http_any(Scheme::Https, &["GET", "POST"]),
            manifest::http_any(Scheme::Http, &["GET", "POST"]),
        ];
        manifest
    }

    fn tools(_: Option<&str>) -> Result<Vec<Tool>, String> {
        Ok(vec![
            Tool::new(
                "web_get",
                Effect::Pure,
                "Fetches a URL with GET and returns status, content type and body.",
                r#"{"type":"object","properties":{"url":{"type":"string","description":"Absolute http or https URL."},"headers":{"type":"object","additionalProperties":{"type":"string"},"description":"Extra request headers."}},"required":["url"],"additionalProperties":false}"#,
            ),
            Tool::new(
                "web_post",
                Effect::Once,
                "Sends a body to a URL with POST and returns status, content type and body of the answer. May change things on the server, and is never repeated by itself.",
                r#"{"type":"object","properties":{"url":{"type":"string","description":"Absolute http or https URL."},"body":{"type":"string","description":"The request body."},"content_type":{"type":"string","description":"Of the body. Without it, application/json if the body is JSON, else text/plain."},"headers":{"type":"object","additionalProperties":{"type":"string"},"description":"Extra request headers."}},"required":["url","body"],"additionalProperties":false}"#,
            ),
        ])
    }

    fn call(call: &CallRequest, host: &dyn Host) -> Result<Vec<Output>, CallError> {
        let request = match call.tool.as_str() {
            "web_get" => {
                let arguments: Get = call.arguments()?;
                with_headers(Request::get(checked(arguments.url)?), arguments.headers)?
            }
            "web_post" => {
                let arguments: Post = call.arguments()?;
                let content_type = arguments.content_type.unwrap_or_else(|| {
                    let json = serde_json::from_str::<serde::de::IgnoredAny>(&arguments.body);
                    match json {
                        Ok(_) => "application/json".to_owned(),
                        Err(_) => "text/plain; charset=utf-8".to_owned(),
                    }
                });
                let request = Request::post(checked(arguments.url)?)
                    .header("content-type", content_type)
                    .body(arguments.body);
                with_headers(request, arguments.headers)?
            }
            _ => return Err(call.unknown_tool()),
        };
        host.progress(&format!("{} {}", request.method, request.url));
        match host.fetch(&request) {
            Ok(response) => Ok(result(response)),
            Err(error) => Err(call_error(&error, host.cancelled())),
        }
    }
}

/// A URL of a scheme that there is a rule for.
fn checked(url: String) -> Result<String, CallError> {
    let lower = url.to_ascii_lowercase();
    if lower.starts_with("https://") || lower.starts_with("http://") {
        Ok(url)
    } else {
        Err(CallError::InvalidArguments(format!(
            "`{url}` is no absolute http or https URL"
        )))
    }
}

fn with_headers(
    mut request: Request,
    headers: BTreeMap<String, String>,
) -> Result<Request, CallError> {
    for (name, value) in headers {
        if name.is_empty() || value.contains(['\r', '\n', '\0']) {
            return Err(CallError::InvalidArguments(format!(
                "`{name}` is no header that can be sent"
            )));
        }
        request = request.header(name, value);
    }
    Ok(request)
}

/// Why there is no answer, by what the model has to know: whether anything may have been done.
fn call_error(error: &FetchError, cancelled: bool) -> CallError {
    let text = FetchErrorText(error).to_string();
    match error {
        FetchError::Denied(_) => CallError::Denied(text),
        FetchError::Invalid(_) => CallError::InvalidArguments(text),
        FetchError::Stopped(_) if cancelled => CallError::Cancelled(text),
        FetchError::Unreachable(_) | FetchError::Broken(_) | FetchError::Stopped(_) => {
            CallError::Failed(text)
        }
    }
}

/// An answer as a model reads it. What is no text goes beside it as media.
fn result(response: Response) -> Vec<Output> {
    let mut text = format!("HTTP {}\n", response.status);
    for name in SHOWN_HEADERS {
        if let Some(value) = response.header(name) {
            text.push_str(&format!("{name}: {value}\n"));
        }
    }
    text.push('\n');
    let content_type = response
        .header("content-type")
        .and_then(|value| value.split(';').next())
        .map(|value| value.trim().to_ascii_lowercase());
    match String::from_utf8(response.body) {
        Ok(body) => {
            let end = body.floor_char_boundary(TEXT_LIMIT);
            text.push_str(&body[..end]);
            if end < body.len() {
                text.push_str(&format!("\n[cut: {} bytes in all]", body.len()));
            }
            vec![Output::Text(text)]
        }
        Err(error) => {
            let data = error.into_bytes();
            text.push_str(&format!("[{} bytes that are no text]", data.len()));
            vec![
                Output::Text(text),
                Output::Media(NewMedia {
                    media_type: content_type
                        .unwrap_or_else(|| "application/octet-stream".to_owned()),
                    name: None,
                    data,
                }),
            ]
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_guest::http::{Chunk, HeaderValue};
    use mainstay_guest::testing::{self, Host};

    use super::*;

    fn answer(status: u16, content_type: &str, body: &[u8]) -> Response {
        Response {
            status,
            headers: vec![("content-type".to_owned(), content_type.to_owned())],
            body: body.to_vec(),
        }
    }

    fn text(outputs: &[Output]) -> &str {
        match &outputs[0] {
            Output::Text(text) => text,
            Output::Media(_) => panic!("text comes first"),
        }
    }

    #[test]
    fn get_gives_status_and_body_whatever_the_status() {
        let host = Host::new().with_fetch(|request| {
            assert_eq!(request.method, "GET");
            Ok(answer(404, "text/plain", b"no such page"))
        });
        let call = testing::call("web_get", Effect::Pure, r#"{"url":"https://a.test/x"}"#);
        let outputs = Web::call(&call, &host).unwrap();
        assert_eq!(
            text(&outputs),
            "HTTP 404\ncontent-type: text/plain\n\nno such page"
        );
        assert_eq!(host.progress_seen(), ["GET https://a.test/x"]);
    }

    #[test]
    fn post_sends_the_body_and_guesses_its_type() {
        let host = Host::new().with_fetch(|request| {
            assert_eq!(request.body, [Chunk::Bytes(br#"{"a":1}"#.to_vec())]);
            assert_eq!(
                request.headers[0].value,
                HeaderValue::Text("application/json".to_owned())
            );
            Ok(answer(201, "text/plain", b""))
        });
        let call = testing::call(
            "web_post",
            Effect::Once,
            r#"{"url":"https://a.test","body":"{\"a\":1}"}"#,
        );
        assert!(text(&Web::call(&call, &host).unwrap()).starts_with("HTTP 201\n"));
    }

    #[test]
    fn what_is_no_text_becomes_media() {
        let host =
            Host::new().with_fetch(|_| Ok(answer(200, "image/png; q=1", &[0x89, b'P', 0xff])));
        let call = testing::call("web_get", Effect::Pure, r#"{"url":"https://a.test"}"#);
        match &Web::call(&call, &host).unwrap()[1] {
            Output::Media(media) => assert_eq!(media.media_type, "image/png"),
            Output::Text(_) => panic!("media expected"),
        }
    }

    #[test]
    fn errors_say_whether_anything_was_sent() {
        let call = testing::call("web_get", Effect::Pure, r#"{"url":"https://a.test"}"#);
        assert!(matches!(
            Web::call(&call, &Host::new()),
            Err(CallError::Denied(_))
        ));
        let host = Host::new().with_fetch(|_| Err(FetchError::Broken("reset".to_owned())));
        match Web::call(&call, &host) {
            Err(CallError::Failed(text)) => assert!(text.contains("may have acted"), "{text}"),
            other => panic!("{other:?}"),
        }
        let call = testing::call("web_get", Effect::Pure, r#"{"url":"file:///etc/passwd"}"#);
        assert!(matches!(
            Web::call(&call, &host),
            Err(CallError::InvalidArguments(_))
        ));
    }
}
