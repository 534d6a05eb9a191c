//! Another runner takes over in the middle of a turn, with and without a kill.

use mainstay_test_guests::{HOSTILE_PROVIDER, successor};
use serde_json::{Value, json};

use super::place::{
    Decided, FIRST, Place, decisions, one_result_per_call, until_decision, until_output,
};
use crate::world::{Api, of};

const SECOND: &str = r#"{"name":"second","asks":true}"#;

/// Runner digests in the order of the decisions.
fn runners(decided: &[Decided]) -> Vec<&str> {
    decided.iter().map(|one| one.runner.as_str()).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_15_the_next_decision_is_another_runners_and_nothing_before_it_changes() {
    let place = Place::new(&successor(FIRST)).await;
    let second = place.install(&successor(SECOND), "second").await;
    let api = place.world.server().await;
    let session = api
        .begin(
            "call file_write {\"path\":\"a.txt\",\"content\":\"one\"}\nthen\n\
             slow 500 I will read now what I have written\ncall file_read {\"path\":\"a.txt\"}\n\
             then\nsay bye",
        )
        .await;
    let step = until_decision(&api, &session, 2).await;
    let before = until_output(&api, &session, step.seq).await;
    place.point(&api, &second).await;
    let first = step.runner.clone();
    assert_ne!(first, second);
    assert_eq!(
        decisions(&api.events(&session).await).len(),
        2,
        "it is in flight"
    );
    api.idle(&session).await;

    let events = api.events(&session).await;
    assert_eq!(events[..before.len()], before[..]);
    let decided = decisions(&events);
    assert_eq!(runners(&decided), [&*first, &first, &second, &second]);
    let names: Vec<&str> = decided.iter().map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["first", "first", "second", "second"]);
    one_result_per_call(&events);
    let told = "told by second: user, assistant, tool-result file_write (succeeded), assistant, \
                tool-result file_read (succeeded), assistant; state {\"decided\":1}";
    assert_eq!(api.words(&session).await.last().unwrap(), told);
    // The first one's state was not for the second.
    let handed = |seq: u64| {
        let event = events.iter().find(|event| event["seq"] == seq).unwrap();
        event["data"]["basis"]["state_from"].clone()
    };
    assert_eq!(handed(decided[1].seq), decided[0].seq);
    assert_eq!(handed(decided[2].seq), Value::Null);
}

/// A session whose third answer goes on like this, killed in it once the second runner has asked for
/// it. Gives the log so far.
async fn killed(place: &Place, third: &str, output: bool) -> (String, Vec<Value>, String) {
    let second = place.install(&successor(SECOND), "second").await;
    let api = place.world.server().await;
    let session = api
        .begin(&format!(
            "call file_write {{\"path\":\"a.txt\",\"content\":\"one\"}}\nthen\n\
             slow 500 I will read now what I have written\ncall file_read {{\"path\":\"a.txt\"}}\n\
             then\n{third}\nthen\nsay bye"
        ))
        .await;
    let step = until_decision(&api, &session, 2).await;
    until_output(&api, &session, step.seq).await;
    place.point(&api, &second).await;
    let step = until_decision(&api, &session, 3).await;
    assert_eq!(step.runner, second);
    if output {
        until_output(&api, &session, step.seq).await;
    }
    let before = api.events(&session).await;
    api.kill().await;
    (session, before, second)
}

/// The one recovery of a session.
fn recovery(events: &[Value]) -> Value {
    let recovered = of(events, "step.recovered");
    assert_eq!(recovered.len(), 1, "{events:#?}");
    recovered[0]["data"].clone()
}

async fn ended(api: &Api, session: &str, before: &[Value]) -> Vec<Value> {
    api.idle(session).await;
    let events = api.events(session).await;
    assert_eq!(events[..before.len()], *before);
    let ends = of(&events, "turn.ended");
    assert_eq!(ends.len(), 1, "{events:#?}");
    assert_eq!(ends[0]["data"]["outcome"]["outcome"], "done", "{events:#?}");
    one_result_per_call(&events);
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_16_a_kill_in_the_second_runners_first_step_is_recovered_on_its_digest() {
    // The answer had begun: it is kept, and the second runner goes on.
    let place = Place::new(&successor(FIRST)).await;
    let third = "slow 1000 this is going to take a good while longer than anybody would wait";
    let (session, before, second) = killed(&place, third, true).await;
    let api = place.world.server().await;
    let events = ended(&api, &session, &before).await;
    let step = decisions(&before)[2].seq;
    assert_eq!(recovery(&events)["step"], step);
    assert_eq!(recovery(&events)["interrupted"], true, "{events:#?}");
    for decided in &decisions(&events)[2..] {
        assert_eq!((&*decided.name, &decided.runner), ("second", &second));
    }
    api.kill().await;

    // Nothing had come yet: the same request is sent again, although another runner has the name.
    let place = Place::new(&successor(FIRST)).await;
    let (session, before, second) = killed(&place, "slow 5000 late", false).await;
    let third = place
        .install(&successor(r#"{"name":"third","asks":true}"#), "mine")
        .await;
    let api = place.world.server().await;
    let events = ended(&api, &session, &before).await;
    let decided = decisions(&events);
    assert_eq!(recovery(&events)["step"], decided[2].seq);
    assert_eq!(recovery(&events)["ask_again"], true, "{events:#?}");
    assert_eq!(runners(&decided)[2..], [&*second, &third]);
    let said = api.words(&session).await;
    assert_eq!(
        said.iter().filter(|words| *words == "late").count(),
        1,
        "{said:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrade_3_a_step_cut_short_is_settled_on_its_digests_and_the_next_runs_on_the_new() {
    for begun in [false, true] {
        let place = Place::new(&successor(FIRST)).await;
        let api = place.world.server().await;
        let answer = match begun {
            false => "slow 5000 late\ncall file_write {\"path\":\"a.txt\",\"content\":\"one\"}",
            true => "slow 1000 this is going to take a good while longer than anybody would wait",
        };
        let session = api.begin(&format!("{answer}\nthen\nsay never")).await;
        let step = until_decision(&api, &session, 1).await;
        if begun {
            until_output(&api, &session, step.seq).await;
        }
        let before = api.events(&session).await;
        api.kill().await;
        let heir = place
            .install(&successor(r#"{"name":"heir","asks":true}"#), "mine")
            .await;
        let voice = place.install(HOSTILE_PROVIDER, "voice").await;

        let api = place.world.server().await;
        let events = ended(&api, &session, &before).await;
        let recovery = recovery(&events);
        assert_eq!(
            (&recovery["ask_again"], &recovery["interrupted"]),
            (&json!(!begun), &json!(begun)),
            "{events:#?}"
        );
        let decided = decisions(&events);
        assert_eq!(decided[0], step);
        assert_eq!(runners(&decided), [&*step.runner, &heir, &heir], "{begun}");
        assert_ne!(step.provider, voice);
        assert_eq!(decided[1].provider, voice);
        let said = api.words(&session).await;
        // What the old one had to say, and then what the new one says instead of `never`.
        assert!(!said.iter().any(|words| words == "never"), "{said:?}");
        let told = said.last().unwrap();
        let seen = match begun {
            false => "user, assistant, tool-result file_write (succeeded), assistant",
            true => "user, assistant, recovered, assistant",
        };
        assert_eq!(
            told,
            &format!("told by heir: {seen}; state {{\"decided\":1}}")
        );
        api.kill().await;
    }
}
