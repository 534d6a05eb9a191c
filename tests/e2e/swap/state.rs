//! What a new runner makes of the state that another has stored.

use mainstay_test_guests::{PLANNER, successor};
use serde_json::Value;

use super::place::{Place, decisions, until_output};
use crate::world::{Api, of};

/// With which step each decision's state was stored, where it was handed one.
fn handed(events: &[Value]) -> Vec<Value> {
    let seqs = decisions(events).into_iter().map(|decided| decided.seq);
    seqs.map(|seq| {
        let event = events.iter().find(|event| event["seq"] == seq).unwrap();
        let data = &event["data"];
        let data = if data["decided"].is_object() {
            &data["decided"]
        } else {
            data
        };
        data["basis"]["state_from"].clone()
    })
    .collect()
}

async fn signal(api: &Api, session: &str, name: &str) {
    let input = serde_json::json!({ "signal": { "name": name } });
    api.admit(session, input).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_4_a_state_that_cannot_be_read_fails_by_name_and_going_back_goes_on() {
    let place = Place::new(PLANNER).await;
    let api = place.world.server().await;
    let session = api.begin("say one\nwait signal go\nsay two").await;
    api.until(&session, "waiting").await;
    let before = api.events(&session).await;
    let stored = decisions(&before)[0].seq;
    let heir = r#"{"name":"heir","accepts":[["planner",1]],"unreadable":true}"#;
    let digest = place.install(&successor(heir), "mine").await;
    signal(&api, &session, "go").await;
    api.idle(&session).await;

    let events = api.events(&session).await;
    assert_eq!(events[..before.len()], before[..]);
    let ends = of(&events, "turn.ended");
    let error = ends[0]["data"]["outcome"]["error"].as_str().unwrap();
    for words in [
        "runner heir@sha256:",
        &digest[..12],
        "its state",
        "these are not its words",
    ] {
        assert!(error.contains(words), "{error}");
    }
    assert_eq!(decisions(&events).len(), 1, "it decided nothing");

    place.install(PLANNER, "mine").await;
    api.prompt(&session, "say three\nreport").await;
    api.idle(&session).await;
    let events = api.events(&session).await;
    let decided = decisions(&events);
    assert_eq!(decided.last().unwrap().name, "planner");
    assert_eq!(
        *handed(&events).last().unwrap(),
        stored,
        "the state is as it was"
    );
    let said = api.words(&session).await;
    assert!(said.iter().any(|words| words == "three"), "{said:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_6_a_runner_that_accepts_no_state_goes_on_from_the_history() {
    for heir in [
        r#"{"name":"heir","forgets":true}"#,
        r#"{"name":"planner","state_version":2,"forgets":true}"#,
    ] {
        let place = Place::new(PLANNER).await;
        let digest = place.install(&successor(heir), "heir").await;
        let api = place.world.server().await;
        let waits = api.begin("say one\nwait signal go\nsay two").await;
        api.until(&waits, "waiting").await;
        // Its own state is stored before it runs.
        let runs = api.begin("say first").await;
        api.idle(&runs).await;
        api.prompt(&runs, "slow 500 this goes on and on and on")
            .await;
        let events = api.until_event(&runs, "step.output").await;
        let step = decisions(&events).last().unwrap().seq;
        until_output(&api, &runs, step).await;
        place.point(&api, &digest).await;
        api.idle(&runs).await;
        signal(&api, &waits, "go").await;
        api.idle(&waits).await;

        let name = serde_json::from_str::<Value>(heir).unwrap()["name"].clone();
        let name = name.as_str().unwrap();
        for (session, seen) in [
            (&waits, "user, assistant, signal"),
            (&runs, "user, assistant, user, assistant"),
        ] {
            let events = api.events(session).await;
            let last = decisions(&events).pop().unwrap();
            assert_eq!(last.runner, digest);
            assert_eq!(*handed(&events).last().unwrap(), Value::Null, "{name}");
            let said = api.words(session).await;
            let told = format!("told by {name}: {seen}; state null");
            assert_eq!(*said.last().unwrap(), told);
        }

        // What was stored is still there for whom it is.
        place.install(PLANNER, "mine").await;
        for session in [&waits, &runs] {
            let stored = decisions(&api.events(session).await)[0].seq;
            api.prompt(session, "say back").await;
            api.idle(session).await;
            let events = api.events(session).await;
            assert_eq!(*handed(&events).last().unwrap(), stored, "{name}");
            assert_eq!(*api.words(session).await.last().unwrap(), "back");
        }
        api.kill().await;
    }
}
