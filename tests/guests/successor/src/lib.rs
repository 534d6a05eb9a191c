//! A runner to swap in for another. Its name, the version of its state and what it does stand in a
//! block of text in its component that tests write over, so that one build makes any number of
//! runners (`mainstay_test_guests::successor`).
//!
//! | field | meaning |
//! |---|---|
//! | `name`, `state_version` | who it is |
//! | `accepts` | states of others that it says it reads: `[["planner", 1]]` |
//! | `unreadable` | it cannot read any state that it is given |
//! | `forgets` | it stores no state |
//! | `asks` | it asks the model until that stops, before it is done |
//! | `otherwise` | at the decision of this number since the newest prompt it says so |
//!
//! When it is done it says what it was shown: `told by NAME: user, assistant, tool-result web_get
//! (succeeded); state {…}`. It stores how often it has decided.

use mainstay_guest::runner::{
    Decision, Item, ItemBody, ModelCall, RunnerManifest, StateFormat, Trigger, View,
};
use mainstay_guest::types::FinishReason;
use mainstay_guest::{Error, Runner, manifest};
use serde_json::{Value, json};

struct Successor;

mainstay_guest::runner!(Successor);

/// What marks the block, and its length with the mark.
const MARK: &[u8] = b"@@successor@@";
const BLOCK: usize = 256;

static CONFIG: [u8; BLOCK] = {
    let mut block = [b' '; BLOCK];
    let start = *b"@@successor@@{\"name\":\"successor\"}";
    let mut at = 0;
    while at < start.len() {
        block[at] = start[at];
        at += 1;
    }
    block
};

fn config() -> Value {
    // What stands there is not what the compiler saw.
    let block = std::hint::black_box(&CONFIG);
    let block: Vec<u8> = block
        .iter()
        .map(|byte| std::hint::black_box(*byte))
        .collect();
    serde_json::from_slice(&block[MARK.len()..]).unwrap_or_default()
}

impl Runner for Successor {
    type Options = Option<Value>;
    type State = Value;

    fn manifest() -> RunnerManifest {
        let config = config();
        let mut manifest = manifest::runner(
            config["name"].as_str().unwrap_or("successor"),
            env!("CARGO_PKG_VERSION"),
            "Takes over from another runner",
        );
        if let Some(version) = config["state_version"].as_u64() {
            manifest.state_version = u32::try_from(version).unwrap_or(u32::MAX);
        }
        let accepts = config["accepts"].as_array().into_iter().flatten();
        manifest.accepts = accepts
            .map(|format| StateFormat {
                runner: format[0].as_str().unwrap_or_default().to_owned(),
                state_version: u32::try_from(format[1].as_u64().unwrap_or(0)).unwrap_or(0),
            })
            .collect();
        manifest
    }

    fn decide(view: &View<'_>, _: Self::Options, state: &mut Value) -> Result<Decision, Error> {
        let config = config();
        if config["unreadable"] == true && !state.is_null() {
            return Err(Error::State("these are not its words".to_owned()));
        }
        let given = state.clone();
        if config["forgets"] == true {
            return Ok(next(view, &config, &given));
        }
        *state = json!({ "decided": given["decided"].as_u64().unwrap_or(0) + 1 });
        Ok(next(view, &config, &given))
    }
}

fn next(view: &View<'_>, config: &Value, given: &Value) -> Decision {
    let items: Vec<Item> = view.items(view.context).collect();
    let prompt = items
        .iter()
        .rposition(|item| matches!(item.body, ItemBody::User(_)));
    let answers = items[prompt.unwrap_or(0)..]
        .iter()
        .filter(|item| matches!(item.body, ItemBody::Assistant(_)));
    let number = answers.count() as u64 + 1;
    let decision = match &view.trigger {
        Trigger::ModelFailed(failure) => Decision::fail(&failure.message),
        Trigger::ModelFinished(FinishReason::ToolCalls) => {
            Decision::call_model(ModelCall::of(view))
        }
        Trigger::ModelFinished(_) => done(&items, config, given),
        _ if config["asks"] == true => Decision::call_model(ModelCall::of(view)),
        _ => done(&items, config, given),
    };
    match config["otherwise"].as_u64() {
        Some(at) if at == number => decision.say("otherwise"),
        _ => decision,
    }
}

fn done(items: &[Item], config: &Value, given: &Value) -> Decision {
    let shown: Vec<String> = items.iter().map(kind).collect();
    let name = config["name"].as_str().unwrap_or("successor");
    let shown = shown.join(", ");
    Decision::done().say(format!("told by {name}: {shown}; state {given}"))
}

fn kind(item: &Item) -> String {
    match &item.body {
        ItemBody::User(_) => "user".to_owned(),
        ItemBody::Assistant(_) => "assistant".to_owned(),
        ItemBody::ToolResult(result) => {
            let outcome = format!("{:?}", result.outcome).to_lowercase();
            let outcome = outcome.rsplit("::").next().unwrap_or_default();
            format!("tool-result {} ({outcome})", result.tool)
        }
        ItemBody::Recovered(_) => "recovered".to_owned(),
        ItemBody::Signal(_) => "signal".to_owned(),
        ItemBody::Timer => "timer".to_owned(),
        _ => "other".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use mainstay_guest::testing::{self, MemoryHistory};

    use super::*;

    #[test]
    fn it_says_what_it_is_shown() {
        let mut history = MemoryHistory::new();
        history.user("hello");
        let step = testing::decide::<Successor>(&history.view(Trigger::TurnStarted)).unwrap();
        let told = "told by successor: user; state null";
        assert_eq!(step.decision, Decision::done().say(told));
        let state: Value = serde_json::from_slice(&step.state.unwrap()).unwrap();
        assert_eq!(state, json!({ "decided": 1 }));
    }

    #[test]
    fn the_block_holds_who_it_is() {
        assert_eq!(config(), json!({ "name": "successor" }));
        assert_eq!(Successor::manifest().state_version, 1);
    }
}
