//! Scripts and what the parrot makes of them.

use mainstay_guest::provider::{Config, LocalEvent};
use mainstay_guest::testing::tool_call;
use mainstay_guest::types::{ModelOptions, Part, ToolChoice, ToolOutcome, ToolResult};

use super::*;

fn user(text: &str) -> Message {
    Message::User(vec![Part::text(text)])
}

fn said(text: &str) -> Message {
    Message::Assistant(vec![Content::Text(text.to_owned())])
}

fn called(id: &str) -> Message {
    Message::Assistant(vec![Content::ToolCall(tool_call(id, "t", "{}"))])
}

fn result(id: &str, text: &str) -> Message {
    Message::ToolResult(ToolResult {
        call: id.to_owned(),
        tool: "t".to_owned(),
        outcome: ToolOutcome::Succeeded,
        output: vec![Part::text(text)],
        whole: None,
    })
}

fn events(messages: Vec<Message>) -> Vec<LocalEvent> {
    let request = ModelRequest {
        model: "parrot".to_owned(),
        messages,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
        config: Config {
            base_url: None,
            secrets: Vec::new(),
            options: None,
        },
    };
    match Parrot::encode(request).unwrap() {
        Exchange::Local(events) => events,
        Exchange::Http(_) => panic!("the parrot sends nothing"),
    }
}

/// Text, calls and end of an answer, in short.
fn short(messages: Vec<Message>) -> String {
    let mut short = String::new();
    for LocalEvent { event, .. } in events(messages) {
        match event {
            ModelEvent::TextDelta(text) => short.push_str(&text),
            ModelEvent::ReasoningDelta(text) => short.push_str(&format!("({text})")),
            ModelEvent::ToolCallStart(call) => {
                short.push_str(&format!("[{} {}", call.id, call.tool));
            }
            ModelEvent::ToolCallDelta(call) => short.push_str(&format!(" {}", call.arguments)),
            ModelEvent::ToolCallEnd(_) => short.push(']'),
            ModelEvent::HostedCall(call) => short.push_str(&format!("<{}>", call.tool)),
            ModelEvent::HostedResult(result) => short.push_str(&format!("<={}>", result.data)),
            ModelEvent::Finished(reason) => short.push_str(&format!(" {reason:?}")),
            ModelEvent::Failed(failure) => {
                short.push_str(&format!(" {:?}: {}", failure.class, failure.message));
            }
            _ => {}
        }
    }
    short
}

#[test]
fn without_a_script_it_repeats() {
    assert_eq!(
        short(vec![user("call me maybe")]),
        "You said: call me maybe FinishReason::Stop"
    );
}

#[test]
fn a_script_is_answered_block_by_block() {
    let script = user("reason hm\nsay one\ncall t {\"a\": 1}\ncall t\nthen\nsay got {result}");
    let first = vec![script.clone()];
    assert_eq!(
        short(first),
        "(hm)one[call-1-1 t {\"a\": 1}][call-1-2 t {}] FinishReason::ToolCalls"
    );
    let second = vec![script.clone(), called("call-1-1"), result("call-1-1", "42")];
    assert_eq!(short(second.clone()), "got 42 FinishReason::Stop");
    let mut third = second;
    third.extend([said("got 42"), user("thanks")]);
    assert_eq!(short(third), "You said: thanks FinishReason::Stop");
}

#[test]
fn after_the_last_block_it_tells_the_results() {
    assert_eq!(
        short(vec![user("call t"), called("1"), result("1", "42\nmore")]),
        "Done. t answered: 42 FinishReason::Stop"
    );
}

#[test]
fn an_answer_that_was_cut_short_is_taken_up() {
    let script = user("slow 5 one two three\nthen\nsay next");
    let mut messages = vec![script, said("one tw"), user("It was interrupted.")];
    assert_eq!(short(messages.clone()), "o three FinishReason::Stop");
    messages.push(said("o three"));
    assert_eq!(short(messages), "next FinishReason::Stop");
}

#[test]
fn slow_pauses_before_each_word() {
    let pauses: Vec<u32> = events(vec![user("slow 7 a b c")])
        .iter()
        .filter(|event| matches!(event.event, ModelEvent::TextDelta(_)))
        .map(|event| event.after_ms)
        .collect();
    assert_eq!(pauses, [7, 7, 7]);
}

#[test]
fn ends_are_as_scripted() {
    assert_eq!(
        short(vec![user("fail overloaded too busy")]),
        " FailureClass::Overloaded: too busy"
    );
    assert_eq!(
        short(vec![user("say x\nfinish length")]),
        "x FinishReason::Length"
    );
    assert_eq!(short(vec![user("say x\nbreak")]), "x");
    assert_eq!(
        short(vec![user("hosted h {}\nresult [1]\nfinish paused")]),
        "<h><=[1]> FinishReason::Paused"
    );
    assert!(short(vec![user("limit 3\nsay x")]).contains("ContextOverflow"));
}

#[test]
fn a_summary_takes_no_answer() {
    let script = user("say one\nthen\nsay two");
    let asked = vec![script, said("one"), user("Summarise the conversation.")];
    assert!(short(asked).starts_with("Summary of 2 messages."));
}

#[test]
fn a_broken_script_is_an_error() {
    assert_eq!(
        script::parse("say x\nsing y"),
        Err("line 2 of the script: `sing y` is no command".to_owned())
    );
}
