//! What plugins are fed: views, requests and arguments; ordinary, empty, huge and malformed.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use mainstay_core::BoxError;
use mainstay_core::history::{
    Approval, Assistant, Author, ChildOutcome, ChildResult, Compaction, Ending, Item, ItemBody,
    ModelRef, Order, Other, Recovered, Signal, Size,
};
use mainstay_core::model::{
    Content, Effect, Failure, FailureClass, FinishReason, Message, ModelOptions, Part,
    ProviderState, Range, ReasoningEffort, ToolCall, ToolChoice, ToolDefinition, ToolOutcome,
    ToolResult,
};
use mainstay_core::plugin::{
    AgentView, Budget, HistoryReader, ModelRequest, PluginInfo, ProviderConfig, SpawnRefusal,
    State, ToolView, Trigger, View, WaitEnd,
};
use serde_json::{Map, Value, json};

/// Bytes of a huge text.
pub(crate) const HUGE: usize = 1 << 20;

/// How an input may be answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bulk {
    /// Within all limits.
    Fits,
    /// A limit may be named.
    Huge,
}

fn failure(class: FailureClass) -> Failure {
    Failure {
        class,
        message: "the server said no".to_owned(),
        retry_after_ms: None,
    }
}

fn text(text: &str) -> Vec<Part> {
    vec![Part::Text(text.to_owned())]
}

fn kit_model() -> ModelRef {
    ModelRef {
        provider: crate::bench::ALIAS.to_owned(),
        model: "kit".to_owned(),
    }
}

fn call(arguments: &str) -> ToolCall {
    ToolCall {
        id: "call-1".to_owned(),
        tool: "look".to_owned(),
        arguments: arguments.to_owned(),
    }
}

fn result(outcome: ToolOutcome) -> ToolResult {
    ToolResult {
        call: "call-1".to_owned(),
        tool: "look".to_owned(),
        outcome,
        output: text("what was seen"),
        whole: None,
    }
}

fn answer(content: Vec<Content>, ending: Ending) -> ItemBody {
    ItemBody::Assistant(Assistant {
        author: Author::Model(kit_model()),
        content,
        ending,
        usage: None,
    })
}

/// A history in memory.
struct Pages(Vec<Item>);

impl Pages {
    fn of(&self, range: Range) -> impl DoubleEndedIterator<Item = &Item> {
        let inside = move |item: &&Item| item.seq > range.after && item.seq <= range.through;
        self.0.iter().filter(inside)
    }
}

/// Bytes of text of a page.
const PAGE_BYTES: u64 = 256 << 10;

#[async_trait]
impl HistoryReader for Pages {
    async fn read(
        &self,
        range: Range,
        order: Order,
        limit: u32,
    ) -> Result<(Vec<Item>, bool), BoxError> {
        let mut all: Vec<&Item> = self.of(range).collect();
        if order == Order::NewestFirst {
            all.reverse();
        }
        let mut page = Vec::new();
        let mut bytes = 0;
        for item in &all {
            if page.len() >= limit.max(1) as usize || bytes > PAGE_BYTES {
                break;
            }
            bytes += item.text_bytes();
            page.push((*item).clone());
        }
        let more = page.len() < all.len();
        Ok((page, more))
    }

    async fn measure(&self, range: Range) -> Result<Size, BoxError> {
        Ok(Size {
            items: self.of(range).count() as u64,
            bytes: self.of(range).map(Item::text_bytes).sum(),
        })
    }

    async fn read_media(&self, _: &str, _: u64, _: u32) -> Result<Option<Vec<u8>>, BoxError> {
        Ok(None)
    }
}

/// A view of these items, all of them fresh.
fn view(options: Option<&String>, trigger: Trigger, bodies: Vec<ItemBody>) -> View {
    let items: Vec<Item> = (1..)
        .zip(bodies)
        .map(|(seq, body)| Item {
            seq,
            at: 1_700_000_000_000 + seq,
            body,
        })
        .collect();
    let all = Range {
        after: 0,
        through: items.len() as u64,
    };
    View {
        session: crate::stage::session(),
        now: 1_700_000_000_000 + all.through,
        trigger,
        fresh: all,
        context: all,
        history: Arc::new(Pages(items)),
        open_calls: Vec::new(),
        agent: AgentView {
            name: "default".to_owned(),
            system_prompt: Some("Be brief.".to_owned()),
            model: kit_model(),
            model_info: None,
            options: options.cloned(),
        },
        tools: vec![ToolView {
            name: "look".to_owned(),
            toolbox: crate::bench::ALIAS.to_owned(),
            effect: Effect::Pure,
        }],
        budget: Budget {
            steps: 10,
            tokens: None,
            cost: None,
            time_ms: None,
        },
        state: None,
    }
}

/// Views for a runner, each with its name.
pub(crate) fn views(info: &PluginInfo, options: Option<&String>) -> Vec<(String, Bulk, View)> {
    let user = |words: &str| ItemBody::User(text(words));
    let said = answer(
        vec![Content::Text("Hello.".to_owned())],
        Ending::Finished(FinishReason::Stop),
    );
    let called = |arguments: &str, outcome| {
        vec![
            user("Look."),
            answer(
                vec![Content::ToolCall(call(arguments))],
                Ending::Finished(FinishReason::ToolCalls),
            ),
            ItemBody::ToolResult(result(outcome)),
        ]
    };
    let of = |trigger, bodies| view(options, trigger, bodies);
    let mut all: Vec<(String, Bulk, View)> = Vec::new();
    let mut add = |name: &str, view| all.push((name.to_owned(), Bulk::Fits, view));

    add("a prompt", of(Trigger::TurnStarted, vec![user("Hello.")]));
    add(
        "an answer",
        of(
            Trigger::ModelFinished(FinishReason::Stop),
            vec![user("Hello."), said.clone()],
        ),
    );
    add("a call's result", {
        let bodies = called("{}", ToolOutcome::Succeeded);
        of(Trigger::ModelFinished(FinishReason::ToolCalls), bodies)
    });
    for reason in [
        FinishReason::Length,
        FinishReason::ContentFilter,
        FinishReason::Refusal,
        FinishReason::Paused,
        FinishReason::Other("unheard-of".to_owned()),
    ] {
        let bodies = vec![user("Hello."), said.clone()];
        add(
            &format!("an answer that ended with {reason:?}"),
            of(Trigger::ModelFinished(reason), bodies),
        );
    }
    for class in [
        FailureClass::ContextOverflow,
        FailureClass::Authentication,
        FailureClass::Overloaded,
    ] {
        let trigger = Trigger::ModelFailed(failure(class));
        add(
            &format!("a model that failed with {class:?}"),
            of(trigger, vec![user("Hello.")]),
        );
    }
    for trigger in [
        Trigger::ToolsFinished,
        Trigger::Spawned,
        Trigger::SpawnRefused(SpawnRefusal::TooMany),
        Trigger::Compacted,
        Trigger::CompactionFailed(failure(FailureClass::Server)),
        Trigger::WaitEnded(WaitEnd::Met(0)),
        Trigger::WaitEnded(WaitEnd::Met(u32::MAX)),
        Trigger::WaitEnded(WaitEnd::Steered),
        Trigger::Recovered,
        Trigger::Other("compact".to_owned()),
        Trigger::Other("unheard-of".to_owned()),
    ] {
        let name = format!("the trigger {trigger:?}");
        add(&name, of(trigger, vec![user("Hello."), said.clone()]));
    }

    let mut others = vec![
        user("Hello."),
        ItemBody::Note(text("a note")),
        ItemBody::Signal(Signal {
            name: "unheard-of".to_owned(),
            data: "null".to_owned(),
        }),
        ItemBody::Approval(Approval {
            key: "unheard-of".to_owned(),
            approved: false,
            reason: None,
        }),
        ItemBody::Child(ChildResult {
            key: "unheard-of".to_owned(),
            outcome: ChildOutcome::Failed("no".to_owned()),
        }),
        ItemBody::Timer,
        ItemBody::Other(Other {
            kind: "unheard-of".to_owned(),
            data: "[]".to_owned(),
        }),
        ItemBody::Recovered(Recovered {
            interrupted: Some(2),
            settled: vec!["call-1".to_owned()],
        }),
        answer(Vec::new(), Ending::Interrupted),
        answer(Vec::new(), Ending::Failed(failure(FailureClass::Server))),
    ];
    add(
        "items of every kind",
        of(Trigger::Recovered, others.clone()),
    );
    others.insert(
        0,
        ItemBody::Compaction(Compaction {
            through: 0,
            summary: text("so far"),
        }),
    );
    add("a compacted context", of(Trigger::TurnStarted, others));

    add("no items", of(Trigger::TurnStarted, Vec::new()));
    add("an empty prompt", of(Trigger::TurnStarted, vec![user("")]));
    add(
        "a prompt without parts",
        of(Trigger::TurnStarted, vec![ItemBody::User(Vec::new())]),
    );
    let mut bare = of(Trigger::TurnStarted, vec![user("Hello.")]);
    bare.tools.clear();
    bare.agent.system_prompt = None;
    bare.budget.steps = 0;
    add("no tools and no steps left", bare);
    let mut stale = of(Trigger::TurnStarted, vec![user("Hello.")]);
    stale.fresh = Range {
        after: stale.context.through,
        through: stale.context.through,
    };
    add("nothing fresh", stale);

    for arguments in ["", "{", "null", "\u{0}\u{fffd}"] {
        for outcome in [ToolOutcome::InvalidArguments, ToolOutcome::OutcomeUnknown] {
            add(
                &format!("a call with the arguments {arguments:?} that ended as {outcome:?}"),
                of(
                    Trigger::ModelFinished(FinishReason::ToolCalls),
                    called(arguments, outcome),
                ),
            );
        }
    }
    let mut open = of(
        Trigger::ModelFinished(FinishReason::ToolCalls),
        vec![user("Hello.")],
    );
    open.open_calls = vec![call("{")];
    add("an open call of a tool that it does not have", open);
    for (name, data) in [
        ("an empty state", Vec::new()),
        ("a state of garbage", b"\x00\xff{garbage".to_vec()),
        ("a state of the wrong shape", b"[[[[1]]]]".to_vec()),
    ] {
        let mut stated = of(Trigger::TurnStarted, vec![user("Hello.")]);
        stated.state = Some(State {
            runner: info.name.clone(),
            state_version: info.state_version,
            data,
        });
        add(name, stated);
    }
    for (name, options) in [
        ("malformed options", "{"),
        ("options of garbage", "[1,\"\"]"),
    ] {
        let mut set = of(Trigger::TurnStarted, vec![user("Hello.")]);
        set.agent.options = Some(options.to_owned());
        add(name, set);
    }

    let huge = "word ".repeat(HUGE / 5);
    let mut add = |name: &str, view| all.push((name.to_owned(), Bulk::Huge, view));
    add(
        "a prompt of 1 MiB",
        of(Trigger::TurnStarted, vec![user(&huge)]),
    );
    let many = (0..3_000).map(|n| user(&format!("prompt {n}"))).collect();
    add("3,000 items", of(Trigger::TurnStarted, many));
    add("a call with arguments of 1 MiB", {
        let arguments = json!({ "text": huge }).to_string();
        let bodies = called(&arguments, ToolOutcome::Succeeded);
        of(Trigger::ModelFinished(FinishReason::ToolCalls), bodies)
    });
    all
}

/// Requests for a provider, each with its name.
pub(crate) fn requests(
    info: &PluginInfo,
    options: Option<&String>,
) -> Vec<(String, Bulk, ModelRequest)> {
    let config = ProviderConfig {
        base_url: Some("http://kit.invalid/v1".to_owned()),
        secrets: info.secrets.iter().map(|rule| rule.name.clone()).collect(),
        options: options.cloned(),
    };
    let of = |messages: Vec<Message>| ModelRequest {
        model: "kit".to_owned(),
        messages,
        tools: Vec::new(),
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
        config: config.clone(),
    };
    let user = |words: &str| Message::User(text(words));
    let tool = ToolDefinition {
        name: "look".to_owned(),
        description: "Looks.".to_owned(),
        input_schema: r#"{"type":"object"}"#.to_owned(),
    };
    let calling = |arguments: &str| {
        let mut request = of(vec![
            Message::System(text("Be brief.")),
            user("Look."),
            Message::Assistant(vec![
                Content::Reasoning("Hm.".to_owned()),
                Content::Text("I look.".to_owned()),
                Content::ToolCall(call(arguments)),
            ]),
            Message::ToolResult(result(ToolOutcome::Succeeded)),
        ]);
        request.tools = vec![tool.clone()];
        request
    };
    let mut all = vec![
        ("a prompt".to_owned(), Bulk::Fits, of(vec![user("Hello.")])),
        (
            "a call and its result".to_owned(),
            Bulk::Fits,
            calling("{}"),
        ),
    ];
    let mut add = |name: &str, request| all.push((name.to_owned(), Bulk::Fits, request));
    let mut every = calling("{}");
    every.options = ModelOptions {
        max_output_tokens: Some(100),
        temperature: Some(0.5),
        reasoning: Some(ReasoningEffort::Low),
        output_schema: Some(r#"{"type":"object"}"#.to_owned()),
        extra: Some(r#"{"seed":1}"#.to_owned()),
    };
    for choice in [
        ToolChoice::Required,
        ToolChoice::None,
        ToolChoice::Tool("look".to_owned()),
        ToolChoice::Tool("unheard-of".to_owned()),
    ] {
        every.tool_choice = choice.clone();
        add(&format!("every option and {choice:?}"), every.clone());
    }
    let mut without = of(vec![user("Hello.")]);
    without.config.base_url = None;
    without.config.secrets.clear();
    add("no base URL and no secrets", without);

    add("no messages", of(Vec::new()));
    add("an empty prompt", of(vec![user("")]));
    add(
        "a message without parts",
        of(vec![Message::User(Vec::new())]),
    );
    add(
        "an answer without content",
        of(vec![
            user("Hello."),
            Message::Assistant(Vec::new()),
            user(""),
        ]),
    );
    let mut nameless = of(vec![user("Hello.")]);
    nameless.model.clear();
    add("a model without a name", nameless);

    for arguments in ["", "{", "\u{0}"] {
        add(
            &format!("a call with the arguments {arguments:?}"),
            calling(arguments),
        );
    }
    let mut odd = calling("{}");
    odd.options.extra = Some("{".to_owned());
    odd.options.output_schema = Some("no schema".to_owned());
    odd.options.temperature = Some(f64::NAN);
    add("malformed options of the model", odd);
    let mut odd = of(vec![user("Hello.")]);
    odd.config.options = Some("{".to_owned());
    add("malformed options", odd);
    let mut odd = of(vec![user("Hello.")]);
    odd.config.base_url = Some("no url".to_owned());
    add("a base URL that is none", odd);
    let mut odd = of(vec![user("Hello.")]);
    odd.tools = vec![ToolDefinition {
        input_schema: "no schema".to_owned(),
        ..tool.clone()
    }];
    odd.hosted_tools = vec!["unheard-of".to_owned()];
    add("a tool without a schema", odd);
    add(
        "a state of garbage",
        of(vec![
            user("Hello."),
            Message::Assistant(vec![Content::ProviderState(ProviderState {
                provider: info.name.clone(),
                data: b"\x00\xff{garbage".to_vec(),
            })]),
            user("Go on."),
        ]),
    );

    let huge = "word ".repeat(HUGE / 5);
    let mut add = |name: &str, request| all.push((name.to_owned(), Bulk::Huge, request));
    add("a prompt of 1 MiB", of(vec![user(&huge)]));
    add(
        "3,000 messages",
        of((0..3_000).map(|n| user(&format!("prompt {n}"))).collect()),
    );
    all
}

/// Puts the files into a workspace that calls made from schemas speak of.
pub(crate) fn furnish(workspace: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(workspace.join("folder"))?;
    std::fs::write(
        workspace.join(FILE),
        "the old words, one text\nand a name\n",
    )?;
    std::fs::write(workspace.join("folder/b.md"), "# text\n")
}

/// A file that every workspace has.
const FILE: &str = "a.txt";

/// Arguments that keep to a schema, as well as it can be told from it: its first example, if it has
/// one, else what its properties ask for. Texts are named after their property, so that a path leads
/// somewhere.
pub(crate) fn arguments(schema: &str) -> Value {
    let schema: Value = serde_json::from_str(schema).unwrap_or(Value::Null);
    value_of(&schema, &schema, "", 0)
}

/// Depth at which a schema counts as one that refers to itself.
const DEPTH: usize = 8;

fn value_of(root: &Value, schema: &Value, name: &str, depth: usize) -> Value {
    let first = |key: &str| schema.get(key)?.as_array()?.first().cloned();
    if let Some(given) = schema.get("const").cloned() {
        return given;
    }
    if let Some(given) = first("examples")
        .or_else(|| schema.get("default").cloned())
        .or_else(|| first("enum"))
    {
        return given;
    }
    if depth > DEPTH {
        return Value::Null;
    }
    if let Some(target) = schema
        .get("$ref")
        .and_then(Value::as_str)
        .and_then(|reference| root.pointer(reference.strip_prefix('#')?))
    {
        return value_of(root, target, name, depth + 1);
    }
    for key in ["oneOf", "anyOf", "allOf"] {
        if let Some(option) = first(key) {
            return value_of(root, &option, name, depth + 1);
        }
    }
    let kind = match schema.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(Value::Array(kinds)) => kinds.first().and_then(Value::as_str).unwrap_or(""),
        _ if schema.get("properties").is_some() => "object",
        _ => "",
    };
    let least = schema.get("minimum").and_then(Value::as_i64);
    match kind {
        "object" => {
            let mut object = Map::new();
            let required = schema.get("required").and_then(Value::as_array);
            for key in required.into_iter().flatten().filter_map(Value::as_str) {
                let of = schema.pointer(&format!("/properties/{key}"));
                let value = value_of(root, of.unwrap_or(&Value::Null), key, depth + 1);
                object.insert(key.to_owned(), value);
            }
            Value::Object(object)
        }
        "array" => {
            let least = schema.get("minItems").and_then(Value::as_u64).unwrap_or(0);
            let item = schema.get("items").unwrap_or(&Value::Null);
            (0..least.min(16))
                .map(|_| value_of(root, item, name, depth + 1))
                .collect()
        }
        "integer" => json!(least.unwrap_or(1)),
        "number" => schema.get("minimum").cloned().unwrap_or(json!(1)),
        "boolean" => json!(false),
        "null" => Value::Null,
        _ => {
            let lower = name.to_ascii_lowercase();
            let text = if lower.contains("url") || lower.contains("uri") {
                "http://kit.invalid/"
            } else if lower.contains("path") || lower.contains("file") {
                FILE
            } else if name.is_empty() {
                "text"
            } else {
                name
            };
            json!(text)
        }
    }
}

/// Arguments that no tool should trip over, whatever its schema says: the host refuses most of them
/// before a tool sees them, and another host may not.
pub(crate) fn wrong_arguments(right: &Value) -> Vec<(String, Bulk, String)> {
    let mut all: Vec<(String, Bulk, String)> = [
        "",
        "{",
        "null",
        "[]",
        "\"\"",
        "0",
        "{}",
        "{\"unheard-of\":null}",
        "\u{0}",
    ]
    .iter()
    .map(|text| {
        (
            format!("the arguments {text:?}"),
            Bulk::Fits,
            (*text).to_owned(),
        )
    })
    .collect();
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    all.push(("arguments 10,000 deep".to_owned(), Bulk::Fits, deep));
    let Some(object) = right.as_object() else {
        return all;
    };
    for key in object.keys() {
        for (what, size, value) in [
            ("null", Bulk::Fits, Value::Null),
            ("an empty text", Bulk::Fits, json!("")),
            ("a list", Bulk::Fits, json!([])),
            ("a negative number", Bulk::Fits, json!(-1)),
            (
                "a path that leads out",
                Bulk::Fits,
                json!("../../etc/passwd"),
            ),
            ("a text of 1 MiB", Bulk::Huge, json!("x".repeat(HUGE))),
        ] {
            let mut changed = object.clone();
            changed.insert(key.clone(), value);
            let changed = Value::Object(changed).to_string();
            all.push((format!("`{key}` as {what}"), size, changed));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_keep_to_their_schema() {
        for (schema, expected) in [
            (r#"{"type":"object"}"#, json!({})),
            (
                r#"{"type":"object","examples":[{"n":7}],"required":["n"]}"#,
                json!({"n": 7}),
            ),
            (
                r#"{"type":"object","properties":{"path":{"type":"string"},"n":{"type":"integer","minimum":3},
                "how":{"enum":["a","b"]},"other":{"type":"string"}},"required":["path","n","how"]}"#,
                json!({"path": "a.txt", "n": 3, "how": "a"}),
            ),
            (
                r##"{"type":"object","$defs":{"T":{"type":"array","items":{"type":"boolean"},"minItems":2}},
                "properties":{"t":{"$ref":"#/$defs/T"}},"required":["t"]}"##,
                json!({"t": [false, false]}),
            ),
            ("no schema", json!("text")),
        ] {
            assert_eq!(arguments(schema), expected, "{schema}");
        }
    }
}
