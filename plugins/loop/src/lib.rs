//! The runner `loop`: asks the model, lets its calls run, asks again, and is done when it is.
//!
//! - A turn ends when the model has stopped and nothing has come in that it has not seen.
//! - What is no message — a signal, an answer to an approval, a child's result, what recovery settled
//!   — is told to the model once, in a note.
//! - When the context has grown long, its older part is replaced by a summary that the model writes: early
//!   where the model's limit is known, else when the server refuses the transcript, once per turn.
//!   A client may ask for that too (`other("compact")`); a turn that has no other purpose ends with it.
//! - A failed model call fails the turn in the provider's words.

use mainstay_guest::runner::{
    Decision, Item, ItemBody, ModelCall, RunnerManifest, Segment, Summary, ToolSet, Trigger, View,
};
use mainstay_guest::types::{
    Failure, FailureClass, FinishReason, Message, Part, Range, ReasoningEffort, ToolChoice,
};
use mainstay_guest::{Error, Runner, manifest};
use serde::{Deserialize, Serialize};

mod compaction;
mod words;

struct Loop;

mainstay_guest::runner!(Loop);

/// What an agent may set.
const OPTIONS_SCHEMA: &str = r#"{
  "type": "object",
  "properties": {
    "max_output_tokens": { "type": "integer", "minimum": 1, "maximum": 4294967295 },
    "temperature": { "type": "number", "minimum": 0 },
    "reasoning": { "enum": ["off", "low", "medium", "high"] },
    "hosted_tools": {
      "type": "array",
      "items": { "type": "string" },
      "description": "Tools of the model's server to offer."
    },
    "extra": { "type": "object", "description": "Fields for the provider, in its own words." },
    "compact_at": {
      "type": "number", "exclusiveMinimum": 0, "maximum": 1,
      "description": "Share of the model's context at which the older part is summarised; 0.75 without it."
    }
  },
  "additionalProperties": false
}"#;

/// Share of the context at which it is compacted unless the options say otherwise. The measure is an
/// estimate, and the answer needs room too.
const COMPACT_AT: f64 = 0.75;

/// See the schema.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Options {
    max_output_tokens: Option<u32>,
    temperature: Option<f64>,
    reasoning: Option<Reasoning>,
    hosted_tools: Vec<String>,
    extra: Option<serde_json::Map<String, serde_json::Value>>,
    compact_at: Option<f64>,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Reasoning {
    Off,
    Low,
    Medium,
    High,
}

/// What is kept from step to step.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    /// The server refused the transcript as too long in this turn, and it was compacted.
    overflowed: bool,
    /// Why a compaction is under way.
    compacting: Option<Cause>,
}

/// Why the context is compacted.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Cause {
    /// It has come near the model's limit.
    Early,
    /// The server refused it.
    Overflow,
    /// A client asked for it, where the model had something to answer.
    Asked,
    /// A client asked for it, and nothing else is to be done.
    Alone,
}

impl Runner for Loop {
    type Options = Options;
    type State = State;

    fn manifest() -> RunnerManifest {
        manifest::runner(
            "loop",
            env!("CARGO_PKG_VERSION"),
            "Asks the model and runs its calls until it is done",
        )
        .options_schema(OPTIONS_SCHEMA)
    }

    fn decide(view: &View<'_>, options: Options, state: &mut State) -> Result<Decision, Error> {
        let news = News::of(view);
        let decision = next(view, &options, state, &news);
        if matches!(decision.action, mainstay_guest::runner::Action::Fail(_)) {
            return Ok(decision);
        }
        Ok(with_entries(decision, view, &news))
    }
}

/// What entered the history since the last decision, as far as it decides anything.
struct News {
    /// What the model is told of what is no message.
    note: Option<String>,
    /// Whether there is a message that the model has not answered: a prompt or a result.
    unanswered: bool,
}

impl News {
    fn of(view: &View<'_>) -> Self {
        let items: Vec<Item> = view.fresh_items().collect();
        // What is before an answer was there when the model was asked.
        let answered = items
            .iter()
            .rposition(|item| matches!(item.body, ItemBody::Assistant(_)))
            .map_or(0, |at| at + 1);
        Self {
            note: words::note(&items),
            unanswered: items[answered..]
                .iter()
                .any(|item| matches!(item.body, ItemBody::User(_) | ItemBody::ToolResult(_))),
        }
    }

    /// Whether the model has something to answer.
    fn any(&self) -> bool {
        self.unanswered || self.note.is_some()
    }
}

/// What happens next, without entries.
fn next(view: &View<'_>, options: &Options, state: &mut State, news: &News) -> Decision {
    match &view.trigger {
        Trigger::TurnStarted => {
            *state = State::default();
            ask(view, options, state)
        }
        Trigger::ModelFinished(reason) => match reason {
            FinishReason::ToolCalls | FinishReason::Paused => ask(view, options, state),
            _ if news.any() => ask(view, options, state),
            FinishReason::ContentFilter => {
                Decision::fail("the model server's filter withheld the answer")
            }
            FinishReason::Stop
            | FinishReason::Length
            | FinishReason::Refusal
            | FinishReason::Other(_) => Decision::done(),
        },
        Trigger::ModelFailed(failure) => model_failed(view, options, state, failure),
        Trigger::Compacted => match state.compacting.take() {
            Some(Cause::Alone) if !news.any() => Decision::done(),
            _ => call(view, options),
        },
        Trigger::CompactionFailed(failure) => match state.compacting.take() {
            // It would have been better and was not needed.
            Some(Cause::Early | Cause::Asked) => call(view, options),
            Some(Cause::Alone) => Decision::fail(format!(
                "the conversation could not be summarised and is as it was: {}",
                failure.message
            )),
            Some(Cause::Overflow) | None => Decision::fail(format!(
                "the conversation is too long for the model and could not be summarised: {}",
                failure.message
            )),
        },
        Trigger::Other(reason) if reason == "compact" => match compact(view, options) {
            Some(decision) => {
                state.compacting = Some(match news.any() {
                    true => Cause::Asked,
                    false => Cause::Alone,
                });
                decision
            }
            None if news.any() => call(view, options),
            None => Decision::done(),
        },
        // This runner asks for none of these; another one may have, before it was exchanged.
        Trigger::Recovered
        | Trigger::ToolsFinished
        | Trigger::Spawned
        | Trigger::SpawnRefused(_)
        | Trigger::WaitEnded(_)
        | Trigger::Other(_) => ask(view, options, state),
    }
}

fn model_failed(
    view: &View<'_>,
    options: &Options,
    state: &mut State,
    failure: &Failure,
) -> Decision {
    if failure.class != FailureClass::ContextOverflow {
        return Decision::fail(&failure.message);
    }
    if state.overflowed {
        return Decision::fail(format!(
            "the conversation is too long for the model, even with a summary: {}",
            failure.message
        ));
    }
    state.overflowed = true;
    state.compacting = Some(Cause::Overflow);
    compact(view, options).unwrap_or_else(|| Decision::fail(&failure.message))
}

/// Asks the model, with a shorter context if this one has come near its limit.
fn ask(view: &View<'_>, options: &Options, state: &mut State) -> Decision {
    // A compaction and the question after it take two of what is left.
    if view.budget.steps > 2
        && near_limit(view, options)
        && let Some(decision) = compact(view, options)
    {
        state.compacting = Some(Cause::Early);
        return decision;
    }
    call(view, options)
}

fn near_limit(view: &View<'_>, options: &Options) -> bool {
    let Some(limit) = view
        .agent
        .model_info
        .as_ref()
        .and_then(|info| info.context_tokens)
    else {
        return false;
    };
    let share = options.compact_at.unwrap_or(COMPACT_AT);
    view.history.measure(view.context).tokens as f64 > f64::from(limit) * share
}

fn call(view: &View<'_>, options: &Options) -> Decision {
    if view.budget.steps == 0 {
        return Decision::fail("the turn's allowance of steps is used up");
    }
    let mut call = ModelCall::of(view);
    if !view.last_step() {
        call.hosted_tools = options.hosted_tools.clone();
    }
    call.options.max_output_tokens = options.max_output_tokens;
    call.options.temperature = options.temperature;
    call.options.reasoning = options.reasoning.map(|effort| match effort {
        Reasoning::Off => ReasoningEffort::Off,
        Reasoning::Low => ReasoningEffort::Low,
        Reasoning::Medium => ReasoningEffort::Medium,
        Reasoning::High => ReasoningEffort::High,
    });
    call.options.extra = extra(options);
    Decision::call_model(call)
}

fn extra(options: &Options) -> Option<String> {
    let fields = options.extra.clone()?;
    Some(serde_json::Value::Object(fields).to_string())
}

/// Replaces the older part of the context by a summary; `None` where there is nothing to replace.
fn compact(view: &View<'_>, options: &Options) -> Option<Decision> {
    if view.budget.steps == 0 {
        return None;
    }
    match compaction::plan(view)? {
        compaction::Plan::Summarise { through } => {
            let mut call = ModelCall::of(view);
            call.transcript.pop();
            call.transcript.push(Segment::Items(Range {
                after: view.context.after,
                through,
            }));
            call.transcript
                .push(Segment::Message(Message::User(vec![Part::text(
                    compaction::REQUEST,
                )])));
            call.tools = ToolSet::Only(Vec::new());
            call.tool_choice = ToolChoice::None;
            call.options.extra = extra(options);
            Some(Decision::compact(through, Summary::Model(call)))
        }
        compaction::Plan::Drop { through } => Some(Decision::compact(
            through,
            Summary::Text(compaction::DROPPED.to_owned()),
        )),
    }
}

/// Adds what the model has to be told, and an answer to each call that waits for a runner.
fn with_entries(mut decision: Decision, view: &View<'_>, news: &News) -> Decision {
    for call in &view.open_calls {
        decision = decision.answer_error(
            &call.id,
            format!("`{}` is not offered any more.", call.tool),
        );
    }
    match &news.note {
        Some(note) => decision.note(note),
        None => decision,
    }
}

#[cfg(test)]
mod tests;
