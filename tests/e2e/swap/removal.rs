//! Components that are taken away while something still needs them.

use mainstay_test_guests::successor;
use serde_json::{Value, json};

use super::place::{FIRST, Place, decisions, until_decision, until_output};
use crate::world::of;

/// What a collection that retains nothing removes.
async fn gc(place: &Place, keep: &str) -> Vec<String> {
    let gone = place.json(&["gc", "--keep", keep]).await;
    let components = gone["components"].as_array().unwrap().iter();
    components
        .map(|component| component["digest"].as_str().unwrap().to_owned())
        .collect()
}

async fn remove(place: &Place, kind: &str, alias: &str) {
    let gone = place.json(&["plugin", "remove", kind, alias]).await;
    assert_eq!(gone, json!({ "removed": { "kind": kind, "alias": alias } }));
}

async fn holds(place: &Place, digests: &[&str]) -> Vec<bool> {
    let installed = place.installed().await;
    let holds = |digest: &&str| installed.iter().any(|one| one == digest);
    digests.iter().map(holds).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_14_what_a_name_a_step_or_retention_refers_to_stays() {
    let place = Place::new(&successor(FIRST)).await;
    let api = place.world.server().await;
    // Another name leads to it.
    let spare = place
        .install(&successor(r#"{"name":"spare"}"#), "one")
        .await;
    place
        .json(&["plugin", "alias", "runner", "two", &spare])
        .await;
    remove(&place, "runner", "one").await;
    assert_eq!(gc(&place, "0s").await, [""; 0]);
    assert_eq!(holds(&place, &[&spare]).await, [true]);

    // A step is in flight on both.
    let session = api
        .begin("slow 300 this goes on for as long as it takes to look around")
        .await;
    let step = until_decision(&api, &session, 1).await;
    let before = until_output(&api, &session, step.seq).await;
    // The provider's component is also the shipped one, which has a name of its own.
    remove(&place, "runner", "mine").await;
    assert_eq!(gc(&place, "0s").await, [""; 0]);
    let needed = [&*step.runner, &step.provider];
    assert_eq!(holds(&place, &needed).await, [true, true]);
    assert!(of(&before, "model.ended").is_empty(), "it was in flight");
    api.idle(&session).await;
    let events = api.events(&session).await;
    assert_eq!(events[..before.len()], before[..]);
    let ended = of(&events, "model.ended");
    assert_eq!(ended[0]["data"]["ending"], json!({ "finished": "stop" }));
    let end = &of(&events, "turn.ended")[0]["data"]["outcome"];
    assert!(end["error"].as_str().unwrap().contains("\"mine\""), "{end}");

    // It ran lately; then nothing needs it.
    assert_eq!(gc(&place, "1h").await, [""; 0]);
    assert_eq!(holds(&place, &needed).await, [true, true]);
    assert_eq!(gc(&place, "0s").await, [&*step.runner]);
    remove(&place, "runner", "two").await;
    assert_eq!(gc(&place, "0s").await, [&*spare]);
    assert_eq!(holds(&place, &[&step.runner, &spare]).await, [false; 2]);

    // Put back, the session goes on.
    place.install(&successor(FIRST), "mine").await;
    api.prompt(&session, "say hello").await;
    assert_eq!(api.idle(&session).await["status"], "idle");
    let told = api.words(&session).await;
    assert!(
        told.last().unwrap().starts_with("told by first"),
        "{told:?}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_14_what_a_recovery_will_need_stays() {
    let place = Place::new(&successor(FIRST)).await;
    let mut voice = mainstay_test_guests::PARROT.to_vec();
    // A section that nobody reads gives it a digest of its own.
    voice.extend_from_slice(&[0, 6, 4, b'n', b'o', b't', b'e', 1]);
    place.install(&voice, "voice").await;
    let api = place.world.server().await;
    let session = api.begin("slow 5000 late\nthen\nsay never").await;
    let step = until_decision(&api, &session, 1).await;
    api.kill().await;

    // Nobody runs; the record of the claim and its open step are all that refers to them.
    let heir = place
        .install(&successor(r#"{"name":"heir"}"#), "mine")
        .await;
    remove(&place, "provider", "voice").await;
    assert_eq!(gc(&place, "0s").await, [""; 0]);
    let needed = [&*step.runner, &step.provider];
    assert_eq!(holds(&place, &needed).await, [true, true]);

    let api = place.world.server().await;
    api.idle(&session).await;
    let events = api.events(&session).await;
    let recovered: Vec<&Value> = of(&events, "step.recovered");
    assert_eq!(recovered[0]["data"]["ask_again"], true, "{events:#?}");
    let decided = decisions(&events);
    assert_eq!((decided[0].seq, &decided[1].runner), (step.seq, &heir));
    let said = api.words(&session).await;
    assert!(said.iter().any(|words| words == "late"), "{said:?}");
    let mut gone = gc(&place, "0s").await;
    gone.sort();
    let mut needed = needed.map(str::to_owned);
    needed.sort();
    assert_eq!(gone, needed);
}
