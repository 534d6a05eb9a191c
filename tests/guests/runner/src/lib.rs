//! A runner that misbehaves as the prompt says: its newest user message is the name of a behaviour.
//!
//! | prompt | what it does when asked |
//! |---|---|
//! | `trap`, `panic`, `spin`, `allocate`, `grow`, `recurse` | what they say |
//! | `error`, `state-error`, `options-error`, `huge-error` | answers with that error |
//! | `huge-state`, `huge-decision`, `many-entries` | goes past the limit of size |
//! | `no-utf8`, `longer-than-memory` | hands over a text that is none |
//! | `forged-handle`, `double-drop` | uses a handle that it was not given, or has given back |
//! | `unknown-tool`, `unknown-provider`, `unknown-own-tool` | names what does not exist, in a model call |
//! | `call-unknown-tool` | the same, in calls of its own |
//! | `unknown-child`, `unknown-agent`, `empty-wait` | waits or spawns what cannot be |
//! | `range-outside`, `range-split` | names a range outside the history; one without a call's result |
//! | `answer-nothing` | answers a call that nobody made |
//! | `call-twice` | calls a tool twice under one id |
//! | `log-flood`, `read-flood`, `measure-flood` | writes or reads more than allowed, then is done |
//! | `forever` | asks the model again, whatever it says |
//! | `ask` | asks the model once, with a tool of its own, `decide`, and answers its calls |
//! | `compute` | computes for some milliseconds, then says what came out |
//! | anything else | says it back and is done |
//!
//! `describe` misbehaves as the bytes of [`DESCRIBE`] say: `trap`, `spin`, `huge`, `no-utf8`.

use mainstay_guest::bindings::runner::mainstay::plugin::history::History as Handle;
use mainstay_guest::runner::{
    Child, Condition, Decision, ItemBody, ModelCall, ModelRef, RunnerManifest, Segment, ToolSet,
    Trigger, View,
};
use mainstay_guest::types::{Content, Range, ToolCall, ToolDefinition, text_of};
use mainstay_guest::{Error, Runner, log, manifest};

struct Hostile;

/// What `describe` does: `behave`, or a way to misbehave. Tests patch the component's bytes.
static DESCRIBE: [u8; 24] = *b"describe: behave........";

/// The way, without what fills it up.
fn described() -> &'static str {
    let mode: &'static [u8] = std::hint::black_box(&DESCRIBE);
    let mode = std::str::from_utf8(mode).unwrap_or_default();
    mode.trim_start_matches("describe: ").trim_end_matches('.')
}

/// A text that is none.
fn no_utf8() -> String {
    // SAFETY: it is handed to the host and read by nobody here. The host must refuse it.
    unsafe { String::from_utf8_unchecked(vec![b'a', 0xff, 0xfe]) }
}

/// A text that is said to be longer than the memory.
#[cfg(target_arch = "wasm32")]
fn longer_than_memory() -> String {
    let length = 0x7000_0000;
    // SAFETY: none of it is read here. The host must refuse it before it is given back.
    unsafe { String::from_raw_parts(std::ptr::without_provenance_mut(1024), length, length) }
}

#[cfg(not(target_arch = "wasm32"))]
fn longer_than_memory() -> String {
    std::process::abort()
}

mainstay_guest::runner!(Hostile);

impl Runner for Hostile {
    type Options = Option<serde_json::Value>;
    type State = String;

    fn manifest() -> RunnerManifest {
        let mut manifest = manifest::runner(
            "hostile-runner",
            env!("CARGO_PKG_VERSION"),
            "Misbehaves as the prompt says",
        );
        match described() {
            "trap" => trap(),
            "spin" => spin(),
            "huge" => manifest.plugin.summary = "x".repeat(8 * 1024 * 1024),
            "no-utf8" => manifest.plugin.summary = no_utf8(),
            _ => {}
        }
        manifest
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
            "grow" => grow(),
            "recurse" => Decision::fail(recurse(0).to_string()),
            "error" => return Err(Error::new("as the prompt says")),
            "huge-error" => return Err(Error::new("e".repeat(1024 * 1024))),
            "state-error" => return Err(Error::State("as the prompt says".to_owned())),
            "options-error" => return Err(Error::Config("as the prompt says".to_owned())),
            "huge-state" => {
                *state = "s".repeat(2 * 1024 * 1024);
                Decision::done()
            }
            "huge-decision" => Decision::done().say("d".repeat(8 * 1024 * 1024)),
            "many-entries" => (0..100_000).fold(Decision::done(), |decision, _| decision.say("")),
            "no-utf8" => Decision::done().say(no_utf8()),
            "longer-than-memory" => Decision::done().say(longer_than_memory()),
            "forged-handle" => {
                // SAFETY: the host must refuse it.
                let forged = unsafe { Handle::from_handle(4711) };
                forged.measure(view.context);
                Decision::done()
            }
            "double-drop" => {
                // The view's own, which is dropped again behind this function.
                // SAFETY: the host must refuse the second time.
                drop(unsafe { Handle::from_handle(1) });
                Decision::done()
            }
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
            "measure-flood" => loop {
                view.history.measure(view.context);
            },
            "forever" => Decision::call_model(call()),
            "ask" => ask(view),
            "compute" => Decision::done().say(compute().to_string()),
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

/// Primes below two million, by a sieve: short loops over memory, the worst there is for whoever is
/// looked after at each turn of a loop.
fn compute() -> usize {
    const BELOW: usize = 2_000_000;
    let mut composite = vec![false; BELOW];
    let mut primes = 0;
    for n in 2..BELOW {
        if !composite[n] {
            primes += 1;
            let from = n.checked_mul(n).unwrap_or(BELOW);
            (from..BELOW)
                .step_by(n)
                .for_each(|multiple| composite[multiple] = true);
        }
    }
    std::hint::black_box(primes)
}

fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort()
}

fn grow() -> ! {
    // More than any limit, at once.
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::memory_grow::<0>(60_000);
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
    fn what_it_computes_is_right() {
        assert_eq!(compute(), 148_933);
    }

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
