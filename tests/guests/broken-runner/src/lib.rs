//! A runner that breaks one promise, named by its option `breaks`, and is sound without one. For tests
//! of what finds such plugins out.
//!
//! | `breaks` | what it does |
//! |---|---|
//! | `memory` | counts its decisions in memory and says the number |
//! | `recovered` | gives up when recovery had to settle something |
//! | `interrupted` | panics at an answer that was interrupted |
//! | `empty` | panics at an empty prompt |
//! | `state` | writes a state that it cannot read again |
//! | `panic` | always panics |

use std::sync::atomic::{AtomicU32, Ordering};

use mainstay_guest::runner::{
    Decision, Ending, ItemBody, ModelCall, RunnerManifest, Trigger, View,
};
use mainstay_guest::types::{FinishReason, text_of};
use mainstay_guest::{Error, Runner, manifest};
use serde::{Deserialize, Serialize};

struct Broken;

mainstay_guest::runner!(Broken);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    breaks: String,
}

/// Steps so far, as text; `x` in it cannot be read again.
#[derive(Debug, Default, Serialize)]
struct Steps(String);

impl<'de> Deserialize<'de> for Steps {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let text = String::deserialize(from)?;
        if text.contains('x') {
            return Err(serde::de::Error::custom("an `x` in it"));
        }
        Ok(Self(text))
    }
}

/// What must not be here: it outlives a call where the instance does.
static DECISIONS: AtomicU32 = AtomicU32::new(0);

impl Runner for Broken {
    type Options = Options;
    type State = Steps;

    fn manifest() -> RunnerManifest {
        manifest::runner(
            "broken-runner",
            env!("CARGO_PKG_VERSION"),
            "Breaks one promise",
        )
        .options_schema(r#"{"type":"object","properties":{"breaks":{"type":"string"}}}"#)
    }

    fn decide(view: &View<'_>, options: Options, state: &mut Steps) -> Result<Decision, Error> {
        let decision = match &view.trigger {
            Trigger::ModelFailed(failure) => Decision::fail(&failure.message),
            Trigger::ModelFinished(reason) if *reason != FinishReason::ToolCalls => {
                Decision::done()
            }
            _ => Decision::call_model(ModelCall::of(view)),
        };
        Ok(match options.breaks.as_str() {
            "memory" => {
                let n = DECISIONS.fetch_add(1, Ordering::Relaxed) + 1;
                decision.say(format!("This is decision {n}."))
            }
            "recovered" if view.trigger == Trigger::Recovered => {
                Decision::fail("something went wrong")
            }
            "interrupted" if any(view, is_interrupted) => panic!("an answer was interrupted"),
            "empty" if any(view, is_empty) => panic!("the prompt is empty"),
            "state" => {
                state.0 = "x".to_owned();
                decision
            }
            "panic" => panic!("as the option says"),
            _ => decision,
        })
    }
}

fn any(view: &View<'_>, of: fn(&ItemBody) -> bool) -> bool {
    view.items(view.context).any(|item| of(&item.body))
}

fn is_interrupted(body: &ItemBody) -> bool {
    matches!(body, ItemBody::Assistant(answer) if answer.ending == Ending::Interrupted)
}

fn is_empty(body: &ItemBody) -> bool {
    matches!(body, ItemBody::User(parts) if text_of(parts).is_empty())
}

#[cfg(test)]
mod tests {
    use mainstay_guest::testing::{self, MemoryHistory};

    use super::*;

    #[test]
    fn without_an_option_it_asks_and_is_done() {
        let mut history = MemoryHistory::new();
        history.user("hello");
        let step = testing::decide::<Broken>(&history.view(Trigger::TurnStarted)).unwrap();
        assert!(step.decision.entries.is_empty());
        let trigger = Trigger::ModelFinished(FinishReason::Stop);
        let step = testing::decide::<Broken>(&history.view(trigger)).unwrap();
        assert_eq!(step.decision, Decision::done());
    }
}
