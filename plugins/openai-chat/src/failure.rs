//! What an error means, in the shapes that servers give it.
//!
//! | who | shape |
//! |---|---|
//! | OpenAI, llama.cpp, LiteLLM, vLLM of late | `{"error": {"message", "type", "code"}}` |
//! | Ollama | `{"error": "…"}` |
//! | vLLM of old | `{"object": "error", "message", "type", "code"}` |
//! | FastAPI, which many servers are built on | `{"detail": "…"}` or `{"detail": [{"msg"}]}` |
//! | Google's compatible endpoint | `[{"error": {…}}]` |

use mainstay_guest::http::Response;
use mainstay_guest::provider::failure_of_status;
use mainstay_guest::types::{Failure, FailureClass};
use serde_json::Value;

/// Words for "too long" that servers have been seen to use, in small letters.
const OVERFLOW: [&str; 12] = [
    "context_length_exceeded",
    "contextwindowexceeded",
    "exceed_context_size",
    "maximum context length",
    "context window",
    "context length",
    "context size",
    "prompt is too long",
    "prompt too long",
    "input is too long",
    "input length",
    "reduce the length of the messages",
];

/// Words for "no money left".
const QUOTA: [&str; 5] = [
    "insufficient_quota",
    "billing_hard_limit",
    "exceeded your current quota",
    "insufficient balance",
    "insufficient credits",
];

/// Words for "the filter said no".
const FILTER: [&str; 4] = [
    "content_filter",
    "content_policy_violation",
    "responsibleaipolicyviolation",
    "content management policy",
];

/// What a server said about what went wrong.
#[derive(Debug, Default, PartialEq, Eq)]
struct Said {
    message: String,
    /// `type` and `code`, in small letters.
    words: String,
    /// A code that is an HTTP status.
    status: Option<u16>,
}

/// An answer outside 200 to 299.
pub(crate) fn of_answer(answer: &Response) -> Failure {
    let said = serde_json::from_slice::<Value>(&answer.body)
        .ok()
        .and_then(|body| said(&body));
    let Some(said) = said else {
        let mut failure = failure_of_status(answer);
        if let Some(class) = class_of_words(&failure.message.to_lowercase()) {
            failure.class = class;
        }
        return failure;
    };
    Failure {
        class: class(&said, Some(answer.status)),
        message: said.message,
        retry_after_ms: answer.retry_after_ms(),
    }
}

/// An error in the middle of an answer that began well, if this is one.
pub(crate) fn in_stream(value: &Value) -> Option<Failure> {
    let marked = value.get("error").is_some_and(|error| !error.is_null())
        || value.get("object").and_then(Value::as_str) == Some("error")
        || value.get("detail").is_some() && value.get("choices").is_none();
    if !marked {
        return None;
    }
    let said = said(value)?;
    Some(Failure::new(class(&said, None), said.message))
}

/// An error that is no JSON.
pub(crate) fn of_text(text: &str) -> Failure {
    let class = class_of_words(&text.to_lowercase()).unwrap_or(FailureClass::Server);
    Failure::new(class, text)
}

fn said(value: &Value) -> Option<Said> {
    if let Value::Array(list) = value {
        return said(list.first()?);
    }
    let error = match value.get("error") {
        Some(Value::String(message)) => {
            return Some(Said {
                message: message.clone(),
                ..words(value)
            });
        }
        Some(error @ Value::Object(_)) => error,
        _ => value,
    };
    let message = ["message", "detail", "msg", "error"]
        .iter()
        .find_map(|field| text(error.get(*field)?))?;
    // A proxy may hold the words of the server behind it.
    let behind = error
        .get("metadata")
        .and_then(|metadata| metadata.get("raw"))
        .and_then(Value::as_str);
    Some(Said {
        message: match behind {
            Some(behind) => format!("{message}: {behind}"),
            None => message,
        },
        ..words(error)
    })
}

/// The text of a message, which may be a list of complaints.
fn text(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Array(list) => {
            let texts: Vec<String> = list
                .iter()
                .filter_map(|entry| text(entry.get("msg").unwrap_or(entry)))
                .collect();
            (!texts.is_empty()).then(|| texts.join("; "))
        }
        Value::Object(_) => text(value.get("message")?),
        _ => None,
    }
}

fn words(error: &Value) -> Said {
    let mut said = Said::default();
    for field in ["type", "code", "status"] {
        match error.get(field) {
            Some(Value::String(word)) => {
                said.words.push_str(&word.to_lowercase());
                said.words.push(' ');
                said.status = said.status.or(word.parse().ok());
            }
            Some(Value::Number(number)) => {
                let number = number.as_u64().and_then(|code| u16::try_from(code).ok());
                said.status = said.status.or(number);
            }
            _ => {}
        }
    }
    said.status = said.status.filter(|status| (400..600).contains(status));
    said
}

fn class(said: &Said, status: Option<u16>) -> FailureClass {
    let all = format!("{}{}", said.words, said.message.to_lowercase());
    if let Some(class) = class_of_words(&all) {
        return class;
    }
    match status.or(said.status) {
        Some(status) => failure_of_status(&Response::new(status)).class,
        None if said.words.contains("rate_limit") => FailureClass::RateLimited,
        None if said.words.contains("overloaded") => FailureClass::Overloaded,
        None if said.words.contains("authentication") => FailureClass::Authentication,
        None if said.words.contains("invalid_request") => FailureClass::InvalidRequest,
        // What breaks in the middle had been accepted before.
        None => FailureClass::Server,
    }
}

/// Classes that words tell better than a status.
fn class_of_words(text: &str) -> Option<FailureClass> {
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    if has(&QUOTA) {
        Some(FailureClass::Quota)
    } else if has(&OVERFLOW) {
        Some(FailureClass::ContextOverflow)
    } else if has(&FILTER) {
        Some(FailureClass::ContentFilter)
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: u16, body: &str, class: FailureClass, message: &str) {
        let mut answer = Response::new(status);
        answer.body = body.as_bytes().to_vec();
        let failure = of_answer(&answer);
        assert_eq!((failure.class, failure.message.as_str()), (class, message));
    }

    #[test]
    fn shapes_and_classes() {
        check(
            401,
            r#"{"error":{"message":"Incorrect API key","type":"invalid_request_error","code":"invalid_api_key"}}"#,
            FailureClass::Authentication,
            "Incorrect API key",
        );
        check(
            400,
            r#"{"error":{"message":"too long","type":"invalid_request_error","code":"context_length_exceeded"}}"#,
            FailureClass::ContextOverflow,
            "too long",
        );
        check(
            400,
            r#"{"error":{"code":400,"message":"the request exceeds the available context size","type":"exceed_context_size_error","n_ctx":4096}}"#,
            FailureClass::ContextOverflow,
            "the request exceeds the available context size",
        );
        check(
            400,
            r#"{"object":"error","message":"This model's maximum context length is 4096 tokens.","type":"BadRequestError","code":400}"#,
            FailureClass::ContextOverflow,
            "This model's maximum context length is 4096 tokens.",
        );
        check(
            404,
            r#"{"error":"model 'x' not found"}"#,
            FailureClass::InvalidRequest,
            "model 'x' not found",
        );
        check(
            400,
            r#"{"error":{"message":"litellm.ContextWindowExceededError: …","type":null,"code":"400"}}"#,
            FailureClass::ContextOverflow,
            "litellm.ContextWindowExceededError: …",
        );
        check(
            422,
            r#"{"detail":[{"loc":["body"],"msg":"field required"}]}"#,
            FailureClass::InvalidRequest,
            "field required",
        );
        check(
            400,
            r#"[{"error":{"code":400,"message":"bad","status":"INVALID_ARGUMENT"}}]"#,
            FailureClass::InvalidRequest,
            "bad",
        );
        check(
            429,
            r#"{"error":{"message":"You exceeded your current quota","code":"insufficient_quota"}}"#,
            FailureClass::Quota,
            "You exceeded your current quota",
        );
        check(
            503,
            r#"{"error":{"message":"Loading model","type":"unavailable_error","code":503}}"#,
            FailureClass::Overloaded,
            "Loading model",
        );
        check(502, "<html>", FailureClass::Server, "status 502: <html>");
        check(
            429,
            "",
            FailureClass::RateLimited,
            "the server answered with status 429",
        );
        for status in [408, 409, 425, 500] {
            check(status, r#"{"error":"x"}"#, FailureClass::Server, "x");
        }
    }

    #[test]
    fn the_wait_that_a_server_asks_for() {
        for (headers, expected) in [
            (vec![("retry-after", "2")], Some(2000)),
            (
                vec![("retry-after", "20"), ("retry-after-ms", "150")],
                Some(150),
            ),
            (vec![("Retry-After", "0.5")], Some(500)),
            (vec![("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT")], None),
            (vec![("retry-after", "-1")], None),
            (vec![("retry-after", "1e99")], Some(u32::MAX)),
            (vec![], None),
        ] {
            let mut answer = Response::new(429);
            answer.headers = headers
                .iter()
                .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
                .collect();
            assert_eq!(of_answer(&answer).retry_after_ms, expected, "{headers:?}");
        }
    }
}
