//! Says back the newest prompt, keeps how often it has decided, and reads its history page by page.

wit_bindgen::generate!({ path: "wit/0.1.0", world: "runner" });

use exports::mainstay::plugin::steps::{
    Action, DecideError, Decision, Entry, Guest, RunnerManifest, View,
};
use mainstay::plugin::history::{ItemBody, Order};
use mainstay::plugin::logging::{Level, log};
use mainstay::plugin::manifest::{Plugin, StateFormat};
use mainstay::plugin::types::Part;

struct Golden;

impl Guest for Golden {
    fn describe() -> RunnerManifest {
        RunnerManifest {
            plugin: Plugin {
                name: "golden-runner".to_owned(),
                version: "0.1.0".to_owned(),
                summary: "Built for the first version of the contract".to_owned(),
                options_schema: None,
            },
            state_version: 1,
            accepts: vec![StateFormat {
                runner: "older".to_owned(),
                state_version: 3,
            }],
        }
    }

    fn decide(view: View) -> Result<Decision, DecideError> {
        log(Level::Info, "asked");
        let times = view
            .state
            .as_ref()
            .and_then(|state| state.data.first().copied())
            .unwrap_or(0);
        let mut range = view.context;
        let mut prompt = None;
        while prompt.is_none() {
            let page = view.history.read(range, Order::NewestFirst, 2);
            for item in page.items {
                range.through = item.seq - 1;
                if let (None, ItemBody::User(parts)) = (&prompt, item.body) {
                    prompt = Some(parts);
                }
            }
            if !page.more {
                break;
            }
        }
        let mut said =
            prompt.ok_or_else(|| DecideError::Failed("there is no prompt".to_owned()))?;
        said.push(Part::Text(" said the golden runner".to_owned()));
        Ok(Decision {
            entries: vec![Entry::Say(said)],
            action: Action::Done,
            state: Some(vec![times + 1]),
        })
    }
}

export!(Golden);
