//! Answers of several servers, cut everywhere.

use mainstay_guest::testing::decode_every_cut;

use super::*;

/// What an answer says, in short, however its bytes are cut.
fn check(answer: &str, expected: &str) {
    let events = decode_every_cut::<Decoder>(&Response::new(200), &[], answer.as_bytes());
    let short: Vec<String> = events.iter().map(short).collect();
    assert_eq!(short.join(" "), expected);
}

fn short(event: &ModelEvent) -> String {
    match event {
        ModelEvent::TextDelta(text) => format!("{text:?}"),
        ModelEvent::ReasoningDelta(text) => format!("({text})"),
        ModelEvent::ToolCallStart(call) => format!("[{} {}", call.id, call.tool),
        ModelEvent::ToolCallDelta(call) => format!("{}:{}", call.id, call.arguments),
        ModelEvent::ToolCallEnd(id) => format!("{id}]"),
        ModelEvent::Usage(usage) => format!(
            "{}+{}",
            usage.input_tokens.unwrap_or_default(),
            usage.output_tokens.unwrap_or_default()
        ),
        ModelEvent::Finished(reason) => format!("{reason:?}"),
        ModelEvent::Failed(failure) => format!("{:?}: {}", failure.class, failure.message),
        other => format!("{other:?}"),
    }
}

/// A stream of chunks with one choice each, and its end.
fn stream(choices: &[&str]) -> String {
    let mut text = String::new();
    for choice in choices {
        text.push_str(&format!("data: {{\"choices\":[{choice}]}}\n\n"));
    }
    text.push_str("data: [DONE]\n\n");
    text
}

/// A stream of call deltas that ends with `tool_calls`.
fn calls(deltas: &[&str]) -> String {
    let mut choices: Vec<String> = deltas
        .iter()
        .map(|delta| format!(r#"{{"delta":{{"tool_calls":[{delta}]}}}}"#))
        .collect();
    choices.push(r#"{"delta":{},"finish_reason":"tool_calls"}"#.to_owned());
    stream(&choices.iter().map(String::as_str).collect::<Vec<_>>())
}

#[test]
fn model_2_text_and_usage_are_the_same_however_they_are_cut() {
    check(
        concat!(
            ": hello\r\n\r\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}],\"usage\":null}\r\n\r\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"reasoning_content\":\"hm\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{\"content\":\"Grüße 🦜\"}}]}\r\n\r\n",
            "data: {\"choices\":[{\"index\":0,\"delta\":{},\"finish_reason\":\"stop\"}]}\r\n\r\n",
            "data: {\"choices\":[],\"usage\":{\"prompt_tokens\":3,\"completion_tokens\":4}}\r\n\r\n",
            "data: [DONE]\r\n\r\n"
        ),
        "(hm) \"Grüße 🦜\" 3+4 FinishReason::Stop",
    );
}

#[test]
fn usage_in_full() {
    let counts = serde_json::json!({
        "prompt_tokens": 10, "completion_tokens": 5, "cost": 0.00012,
        "prompt_tokens_details": {"cached_tokens": 7},
        "completion_tokens_details": {"reasoning_tokens": 2},
    });
    let usage = usage_of(&counts);
    assert_eq!(usage.cache_read_tokens, Some(7));
    assert_eq!(usage.reasoning_tokens, Some(2));
    assert_eq!(usage.cost, Some(120));
}

#[test]
fn model_2_calls_are_the_same_however_they_are_cut() {
    check(
        &calls(&[
            r#"{"index":0,"id":"a","type":"function","function":{"name":"t","arguments":""}}"#,
            r#"{"index":0,"function":{"arguments":"{\"x\":"}}"#,
            r#"{"index":0,"function":{"arguments":"1}"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"u","arguments":""}}"#,
            r#"{"index":1,"function":{"arguments":"{}"}}"#,
        ]),
        "[a t a:{\"x\":1} a] [b u b:{} b] FinishReason::ToolCalls",
    );
}

#[test]
fn interleaved_calls() {
    check(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"t","arguments":"{"}}"#,
            r#"{"index":1,"id":"b","function":{"name":"u","arguments":"{"}}"#,
            r#"{"index":0,"function":{"arguments":"}"}}"#,
            r#"{"index":1,"function":{"arguments":"}"}}"#,
        ]),
        "[a t a:{ [b u b:{ a:} b:} a] b] FinishReason::ToolCalls",
    );
}

#[test]
fn calls_of_servers_with_ways_of_their_own() {
    // Id and name every time.
    check(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"t","arguments":"{"}}"#,
            r#"{"index":0,"id":"a","function":{"name":"t","arguments":"}"}}"#,
        ]),
        "[a t a:{} a] FinishReason::ToolCalls",
    );
    // Whole calls, always index 0, without ids.
    check(
        &calls(&[
            r#"{"index":0,"function":{"name":"t","arguments":"{}"}}"#,
            r#"{"index":0,"function":{"name":"t","arguments":"{\"x\":1}"}}"#,
        ]),
        "[call-1 t call-1:{} call-1] [call-2 t call-2:{\"x\":1} call-2] FinishReason::ToolCalls",
    );
    // Whole calls, always index 0, other ids; arguments as an object.
    check(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"t","arguments":{"x":1}}}"#,
            r#"{"index":0,"id":"b","function":{"name":"t","arguments":{}}}"#,
        ]),
        "[a t a:{\"x\":1} a] [b t b:{} b] FinishReason::ToolCalls",
    );
    // No index, no id.
    check(
        &calls(&[
            r#"{"function":{"name":"t","arguments":"{"}}"#,
            r#"{"function":{"arguments":"}"}}"#,
            r#"{"function":{"name":"u"}}"#,
        ])
        .replace(r#"{"name":"u"}"#, r#"{"name":"u","arguments":"{}"}"#),
        "[call-1 t call-1:{} call-1] [call-2 u call-2:{} call-2] FinishReason::ToolCalls",
    );
    // The same id under two indices; the second without arguments.
    check(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"name":"t","arguments":"{}"}}"#,
            r#"{"index":1,"id":"a","function":{"name":"u","arguments":""}}"#,
        ]),
        "[a t a:{} a] [a-2 u a-2:{} a-2] FinishReason::ToolCalls",
    );
}

#[test]
fn a_name_that_comes_late_or_never() {
    check(
        &calls(&[
            r#"{"index":0,"id":"a","function":{"arguments":"{"}}"#,
            r#"{"index":0,"function":{"name":"t","arguments":"}"}}"#,
        ]),
        "[a t a:{} a] FinishReason::ToolCalls",
    );
    check(
        &calls(&[r#"{"index":0,"id":"a","function":{"arguments":"{}"}}"#]),
        "FailureClass::Protocol: the server named no tool to call",
    );
}

#[test]
fn ends() {
    for (reason, expected) in [
        ("stop", "FinishReason::Stop"),
        ("tool_calls", "FinishReason::Stop"),
        ("length", "FinishReason::Length"),
        ("content_filter", "FinishReason::ContentFilter"),
        ("odd", "FinishReason::Other(\"odd\")"),
    ] {
        check(
            &stream(&[&format!(
                r#"{{"delta":{{"content":"x"}},"finish_reason":"{reason}"}}"#
            )]),
            &format!("\"x\" {expected}"),
        );
    }
    // A call under `stop`; a refusal.
    check(
        &stream(&[
            r#"{"delta":{"tool_calls":[{"index":0,"id":"a","function":{"name":"t","arguments":"{}"}}]}}"#,
            r#"{"delta":{},"finish_reason":"stop"}"#,
        ]),
        "[a t a:{} a] FinishReason::ToolCalls",
    );
    check(
        &stream(&[
            r#"{"delta":{"refusal":"no"}}"#,
            r#"{"delta":{},"finish_reason":"stop"}"#,
        ]),
        "\"no\" FinishReason::Refusal",
    );
}

#[test]
fn a_stream_without_its_last_line() {
    check(
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"},\"finish_reason\":\"stop\"}]}",
        "\"x\" FinishReason::Stop",
    );
    // Broken off before the reason, and within a chunk: no end at all.
    check(
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: [DONE]\n\n",
        "\"x\"",
    );
    check(
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"choi",
        "\"x\"",
    );
}

#[test]
fn errors_in_the_middle() {
    check(
        "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\ndata: {\"error\":{\"message\":\"gone\",\"code\":503}}\n\ndata: [DONE]\n\n",
        "\"x\" FailureClass::Overloaded: gone",
    );
    check(
        "event: error\ndata: out of memory\n\n",
        "FailureClass::Server: out of memory",
    );
    check(
        "{\"error\":\"model is loading\"}",
        "FailureClass::Server: model is loading",
    );
    check(
        "data: nonsense\n\n",
        "FailureClass::Protocol: the server sent what is no JSON: expected ident at line 1 column 2",
    );
}

#[test]
fn data_in_several_lines_and_events_without_a_blank_line() {
    check(
        "data: {\"choices\":[{\"delta\":\ndata: {\"content\":\"x\"}}]}\n\ndata: {\"choices\":[{\"delta\":{},\"finish_reason\":\"stop\"}]}\ndata: [DONE]\n\n",
        "\"x\" FinishReason::Stop",
    );
}

#[test]
fn an_answer_that_is_no_stream() {
    check(
        r#" {"choices":[{"index":0,"message":{"role":"assistant","content":[{"type":"text","text":"x"}],"tool_calls":[{"id":"a","type":"function","function":{"name":"t","arguments":"{}"}}]},"finish_reason":"tool_calls"}],"usage":{"prompt_tokens":1,"completion_tokens":2}}"#,
        "\"x\" [a t a:{} a] 1+2 FinishReason::ToolCalls",
    );
    check(r#"{"choices":[{"mess"#, "");
}

proptest::proptest! {
    #![proptest_config(proptest::test_runner::Config { failure_persistence: None, ..Default::default() })]

    /// A cut inside a code point neither loses nor doubles a byte, escaped or not.
    #[test]
    fn model_2_any_text_is_put_together_again_from_any_pieces(
        texts in proptest::collection::vec("\\PC{0,12}|[\\x00-\\x1f\"\\\\é🦜]{0,6}", 0..6),
        escaped in proptest::bool::ANY,
    ) {
        let mut choices = Vec::new();
        for text in &texts {
            let content = serde_json::to_string(text).unwrap();
            let content = match escaped {
                true => escape(&content),
                false => content,
            };
            choices.push(format!(r#"{{"delta":{{"content":{content}}}}}"#));
        }
        choices.push(r#"{"delta":{},"finish_reason":"stop"}"#.to_owned());
        let answer = stream(&choices.iter().map(String::as_str).collect::<Vec<_>>());
        let events = decode_every_cut::<Decoder>(&Response::new(200), &[], answer.as_bytes());
        let said: String = events
            .iter()
            .filter_map(|event| match event {
                ModelEvent::TextDelta(text) => Some(text.as_str()),
                _ => None,
            })
            .collect();
        proptest::prop_assert_eq!(said, texts.concat());
    }
}

/// Every character beyond ASCII as JSON writes it in ASCII: a surrogate pair where it takes one.
fn escape(json: &str) -> String {
    json.chars()
        .map(|c| match c.is_ascii() {
            true => c.to_string(),
            false => {
                let mut units = [0; 2];
                let units = c.encode_utf16(&mut units).iter();
                units.map(|unit| format!("\\u{unit:04x}")).collect()
            }
        })
        .collect()
}
