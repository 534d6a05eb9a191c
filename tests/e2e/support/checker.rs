//! What clients were told and what the outside has counted, beside what the log says in the end.

use serde_json::Value;

use super::client::Told;
use super::{Outside, log};

/// Compares what was told of a session with all of its log. Gives the executions that a crash ended.
pub(crate) fn checked(told: &Told, all: &[Value], outside: &Outside) -> usize {
    let session = &told.session;
    log::check(all);
    for event in &told.events {
        let seq = event["seq"].as_u64().unwrap() as usize;
        assert_eq!(
            all.get(seq - 1),
            Some(event),
            "{session}: an event that was told"
        );
    }
    for (input, seq) in &told.inputs {
        let admitted = &all[*seq as usize - 1];
        assert_eq!(admitted["type"], "input.admitted", "{session}: {input}");
        assert_eq!(admitted["data"]["input"], input.as_str(), "{session}");
        let fates = all.iter().filter(|event| {
            let kind = event["type"].as_str().unwrap();
            matches!(kind, "input.promoted" | "input.cancelled")
                && event["data"]["input"] == input.as_str()
        });
        assert!(fates.count() <= 1, "{session}: {input} has two fates");
    }
    let of = |kind: &'static str| all.iter().filter(move |event| event["type"] == kind);
    let started = of("call.started")
        .filter(|event| event["data"]["effect"] == "once")
        .count();
    let succeeded = of("call.settled")
        .filter(|event| {
            let result = &event["data"]["result"];
            result["tool"] == "web_post" && result["outcome"] == "succeeded"
        })
        .count();
    let acted = outside.seen.posts.lock().unwrap();
    let acted = acted.get(session).copied().unwrap_or(0) as usize;
    assert!(
        succeeded <= acted && acted <= started,
        "{session}: {started} once calls started, {acted} acted, {succeeded} succeeded"
    );
    of("execution.interrupted")
        .filter(|event| event["data"]["reason"] == "crash")
        .count()
}

/// What an environment variable says, if it is set and makes sense.
pub(crate) fn from_env<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}
