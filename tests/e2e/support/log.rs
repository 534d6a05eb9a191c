//! The invariants that a log shows, asked of what the server says of it.

use std::collections::{HashMap, HashSet};

use serde_json::Value;

/// Asks them of all events of a session, in which nothing is open any more.
///
/// # Panics
/// Naming the first that is broken.
pub(crate) fn check(events: &[Value]) {
    let mut live: Option<String> = None;
    let mut calls: HashMap<(u64, String), u32> = HashMap::new();
    let mut once = HashSet::new();
    let mut promoted = HashSet::new();
    for (n, event) in events.iter().enumerate() {
        assert_eq!(
            event["seq"].as_u64(),
            Some(n as u64 + 1),
            "a gap or a repeat"
        );
        let data = &event["data"];
        let kind = event["type"].as_str().unwrap();
        if let Some(writer) = event["execution"].as_str()
            && kind != "execution.started"
        {
            assert_eq!(
                live.as_deref(),
                Some(writer),
                "seq {} was written without a claim",
                event["seq"]
            );
        }
        match kind {
            "execution.started" => {
                assert!(live.is_none(), "two live executions");
                live = data["execution"].as_str().map(str::to_owned);
            }
            "execution.succeeded"
            | "execution.failed"
            | "execution.interrupted"
            | "execution.suspended" => {
                assert_eq!(
                    live.take().as_deref(),
                    data["execution"].as_str(),
                    "a second terminal"
                );
            }
            "input.promoted" => assert!(promoted.insert(data["input"].clone()), "promoted twice"),
            "step.output" => {
                for piece in data["pieces"].as_array().unwrap() {
                    if let Some(id) = piece["call"]["id"].as_str() {
                        calls.insert((data["step"].as_u64().unwrap(), id.to_owned()), 0);
                    }
                }
            }
            "call.started" if data["effect"] == "once" => {
                assert!(
                    once.insert((data["step"].clone(), data["call"].clone())),
                    "a once call started twice"
                );
            }
            "call.settled" => {
                let key = (
                    data["step"].as_u64().unwrap(),
                    data["result"]["call"].as_str().unwrap().to_owned(),
                );
                let count = calls.get_mut(&key).expect("a result after its call");
                *count += 1;
                assert_eq!(*count, 1, "two results for {key:?}");
            }
            _ => {}
        }
    }
    assert!(live.is_none(), "an execution without a terminal");
    assert!(
        calls.values().all(|count| *count == 1),
        "a call without a result: {calls:?}"
    );
}
