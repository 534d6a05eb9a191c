//! A runner that misbehaves as the prompt says: its newest user message is the name of a behaviour.
//!
//! | prompt | what it does when asked |
//! |---|---|
//! | `trap`, `panic`, `spin`, `allocate`, `recurse` | what they say |
//! | `error`, `state-error`, `options-error` | answers with that error |
//! | `huge-state`, `huge-decision` | goes past the limit of size |
//! | `unknown-tool`, `unknown-provider`, `unknown-own-tool` | names what does not exist, in a model call |
//! | `call-unknown-tool` | the same, in calls of its own |
//! | `unknown-child`, `unknown-agent`, `empty-wait` | waits or spawns what cannot be |
//! | `range-outside`, `range-split` | names a range outside the history; one without a call's result |
//! | `answer-nothing` | answers a call that nobody made |
//! | `call-twice` | calls a tool twice under one id |
//! | `log-flood`, `read-flood` | writes or reads more than allowed, then is done |
//! | `forever` | asks the model again, whatever it says |
//! | `ask` | asks the model once, with a tool of its own, `decide`, and answers its calls |
//! | anything else | says it back and is done |

use mainstay_guest::runner::{
    Child, Condition, Decision, ItemBody, ModelCall, ModelRef, RunnerManifest, Segment, ToolSet,
    Trigger, View,
};
use mainstay_guest::types::{Content, Range, ToolCall, ToolDefinition, text_of};
use mainstay_guest::{Error, Runner, log, manifest};

struct Hostile;

mainstay_guest::runner!(Hostile);

impl Runner for Hostile {
    type Options = Option<serde_json::Value>;
    type State = String;

    fn manifest() -> RunnerManifest {
        manifest::runner(
            "hostile-runner",
            env!("CARGO_PKG_VERSION"),
            "Misbehaves as the prompt says",
        )
    }

    fn decide(view: &View<'_>, _: Self::Options, state: &mut String) -> Result<Decision, Error> {
        let behaviour = view
            .items_newest_first(view.context)
            .find_map(|item| match item.body {
                ItemBody::User(parts) => Some(text_of(&parts)),
                _ => None,
            })
            .unwrap_or_default();
        let call = || ModelCall::of(view);
        Ok(match behaviour.trim() {
            "trap" => trap(),
            "panic" => panic!("as the prompt says"),
            "spin" => spin(),
            "allocate" => allocate(),
            "recurse" => Decision::fail(recurse(0).to_string()),
            "error" => return Err(Error::new("as the prompt says")),
            "state-error" => return Err(Error::State("as the prompt says".to_owned())),
            "options-error" => return Err(Error::Config("as the prompt says".to_owned())),
            "huge-state" => {
                *state = "s".repeat(2 * 1024 * 1024);
                Decision::done()
            }
            "huge-decision" => Decision::done().say("d".repeat(8 * 1024 * 1024)),
            "unknown-tool" => Decision::call_model(ModelCall {
                tools: ToolSet::Only(vec!["no_such_tool".to_owned()]),
                ..call()
            }),
            "unknown-provider" => Decision::call_model(ModelCall {
                model: Some(ModelRef {
                    provider: "no-such-provider".to_owned(),
                    model: "none".to_owned(),
                }),
                ..call()
            }),
            "unknown-own-tool" => Decision::call_model(ModelCall {
                own_tools: vec![ToolDefinition {
                    name: "not a name!".to_owned(),
                    description: String::new(),
                    input_schema: "no schema".to_owned(),
                }],
                ..call()
            }),
            "call-unknown-tool" => Decision::call_tools(vec![tool_call("1", "no_such_tool")]),
            "unknown-child" => {
                Decision::wait(vec![Condition::Children(vec!["no-such-child".to_owned()])])
            }
            "unknown-agent" => Decision::spawn(vec![Child {
                key: "child".to_owned(),
                agent: Some("no-such-agent".to_owned()),
                prompt: vec!["hello".into()],
            }]),
            "empty-wait" => Decision::wait(Vec::new()),
            "range-outside" => Decision::call_model(ModelCall {
                transcript: vec![Segment::Items(Range {
                    after: view.context.through + 1000,
                    through: view.context.through + 2000,
                })],
                ..call()
            }),
            "range-split" => range_split(view),
            "answer-nothing" => Decision::done().answer("no-such-call", "an answer"),
            "call-twice" => {
                let tool = view.tools.first().map_or("echo", |tool| &tool.name);
                Decision::call_tools(vec![tool_call("1", tool), tool_call("1", tool)])
            }
            "log-flood" => {
                for line in 0..10_000 {
                    log::info(format!("{line} {}", "x".repeat(10_000)));
                }
                Decision::done()
            }
            "read-flood" => loop {
                // Traps at the limit.
                let _ = view.items(view.context).count();
            },
            "forever" => Decision::call_model(call()),
            "ask" => ask(view),
            other => Decision::done().say(other),
        })
    }
}

fn tool_call(id: &str, tool: &str) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        tool: tool.to_owned(),
        arguments: "{}".to_owned(),
    }
}

/// Asks until a call has been made, then names a range that ends before the call's result.
fn range_split(view: &View<'_>) -> Decision {
    let call = view.items(view.context).find(|item| match &item.body {
        ItemBody::Assistant(answer) => answer
            .content
            .iter()
            .any(|content| matches!(content, Content::ToolCall(_))),
        _ => false,
    });
    match call {
        Some(item) => Decision::call_model(ModelCall {
            transcript: vec![Segment::Items(Range {
                after: view.context.after,
                through: item.seq,
            })],
            ..ModelCall::of(view)
        }),
        None => Decision::call_model(ModelCall::of(view)),
    }
}

/// A well-behaved use of tools of its own, which the shipped runner has none of.
fn ask(view: &View<'_>) -> Decision {
    let call = ModelCall {
        own_tools: vec![ToolDefinition {
            name: "decide".to_owned(),
            description: "Settled by the runner".to_owned(),
            input_schema: r#"{"type":"object"}"#.to_owned(),
        }],
        ..ModelCall::of(view)
    };
    match &view.trigger {
        Trigger::ModelFinished(_) if view.open_calls.is_empty() => Decision::done(),
        Trigger::ModelFailed(failure) => Decision::fail(&failure.message),
        _ => view
            .open_calls
            .iter()
            .fold(Decision::call_model(call), |decision, call| {
                decision.answer(&call.id, "decided")
            }),
    }
}

fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort()
}

fn spin() -> ! {
    loop {
        std::hint::black_box(());
    }
}

fn allocate() -> ! {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(std::hint::black_box(vec![1; 1024 * 1024]));
    }
}

#[expect(
    unconditional_recursion,
    reason = "the stack's limit is what is tested"
)]
fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    recurse(depth + 1) + frame[0]
}

#[cfg(test)]
mod tests {
    use mainstay_guest::runner::Action;
    use mainstay_guest::testing::{self, MemoryHistory};

    use super::*;

    #[test]
    fn what_it_does_not_know_it_says_back() {
        let mut history = MemoryHistory::new();
        history.user("hello");
        let step = testing::decide::<Hostile>(&history.view(Trigger::TurnStarted)).unwrap();
        assert_eq!(step.decision, Decision::done().say("hello"));
        history.user("empty-wait");
        let step = testing::decide::<Hostile>(&history.view(Trigger::TurnStarted)).unwrap();
        assert!(matches!(&step.action, Action::Wait(wait) if wait.until.is_empty()));
    }
}
