//! Forks and reverts, and what a model is asked afterwards.

use serde_json::{Value, json};

use super::world::{Api, Model, World, of};

/// A session with three prompts and three answers.
async fn six_messages(api: &Api) -> (String, Vec<Value>) {
    let session = api.session().await;
    for prompt in ["one", "two", "three"] {
        api.prompt(&session, prompt).await;
        api.idle(&session).await;
    }
    let messages = api.messages(&session).await;
    assert_eq!(messages.len(), 6, "{messages:#?}");
    (session, messages)
}

fn seq(item: &Value) -> u64 {
    item["seq"].as_u64().unwrap()
}

/// Roles of a request's messages and what each holds.
fn holds(request: &[(String, Value)], expected: &[(&str, &str)]) {
    assert_eq!(request.len(), expected.len(), "{request:?}");
    for ((role, content), (expected_role, text)) in request.iter().zip(expected) {
        assert_eq!(role, expected_role, "{request:?}");
        assert!(content.to_string().contains(text), "{request:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_2_a_revert_hides_the_end_and_is_undone_until_something_comes_in() {
    let model = Model::start().await;
    let world = model.world();
    let api = world.server().await;
    let (session, six) = six_messages(&api).await;
    let before = api.events(&session).await;
    let revert = format!("/sessions/{session}/revert");
    let body = Some(json!({ "before": seq(&six[3]) }));

    let reverted = api.expect(200, "POST", &revert, body.clone()).await;
    let shown = reverted["reverted_to"].as_u64().unwrap();
    assert!((seq(&six[2])..seq(&six[3])).contains(&shown), "{reverted}");
    assert_eq!(api.messages(&session).await, six[..3]);
    let cleared = api.expect(200, "DELETE", &revert, None).await;
    assert_eq!(cleared.get("reverted_to"), None);
    assert_eq!(api.messages(&session).await, six);

    api.expect(200, "POST", &revert, body).await;
    api.prompt(&session, "four").await;
    let after = api.idle(&session).await;
    assert_eq!(after.get("reverted_to"), None);
    let request = [
        ("user", "one"),
        ("assistant", "answer 1"),
        ("user", "two"),
        ("user", "four"),
    ];
    holds(&model.newest(), &request);
    let messages = api.messages(&session).await;
    assert_eq!((messages.len(), &messages[..3]), (5, &six[..3]));

    let events = api.events(&session).await;
    assert_eq!(events[..before.len()], before[..], "the log keeps all");
    let seqs: Vec<u64> = events.iter().map(seq).collect();
    assert_eq!(seqs, (1..=events.len() as u64).collect::<Vec<_>>());
    api.refused((409, "nothing-there"), "DELETE", revert, None)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_3_a_revert_becomes_final_with_the_prompt_or_stands_as_before() {
    let model = Model::start().await;
    let world = model.world();
    let api = world.server().await;
    let (session, six) = six_messages(&api).await;
    let revert = format!("/sessions/{session}/revert");
    let body = Some(json!({ "before": seq(&six[3]) }));
    let reverted = api.expect(200, "POST", &revert, body.clone()).await;

    let inputs = format!("/sessions/{session}/inputs");
    let missing = json!({ "parts": [{ "media": {
        "digest": "0".repeat(64), "media_type": "image/png", "size": 1 } }] });
    for wrong in [
        json!({ "text": "  " }),
        missing,
        json!({ "signal": { "name": "" } }),
    ] {
        let path = inputs.clone();
        api.refused((422, "invalid"), "POST", path, Some(wrong))
            .await;
    }
    assert_eq!(api.show(&session).await, reverted, "it stands as before");

    // The next prompt parks the session, which makes it busy.
    api.prompt(&session, "wait signal go").await;
    let events = api.until_event(&session, "execution.suspended").await;
    let made = events
        .iter()
        .position(|event| event["type"] == "revert.committed");
    let made = made.unwrap();
    assert_eq!(events[made + 1]["type"], "input.admitted");
    assert_eq!(events[made]["at"], events[made + 1]["at"], "one commit");

    for prompt in [None, Some("hold")] {
        if let Some(prompt) = prompt {
            let steer = json!({ "text": prompt, "delivery": "steer" });
            api.admit(&session, steer).await;
            api.until(&session, "running").await;
        }
        let before = api.messages(&session).await;
        let path = revert.clone();
        api.refused((409, "busy"), "POST", path, body.clone()).await;
        assert_eq!(api.messages(&session).await[..before.len()], before[..]);
        let events = api.events(&session).await;
        assert_eq!(of(&events, "history.reverted").len(), 1);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_4_a_fork_has_the_history_and_nothing_else() {
    let model = Model::start().await;
    let world = model.world();
    let api = world.server().await;
    let (source, six) = six_messages(&api).await;
    // A timer, and an input that waits for it.
    api.prompt(&source, "wait 600s").await;
    api.until(&source, "waiting").await;
    api.prompt(&source, "later").await;
    let (before, log) = (api.show(&source).await, api.events(&source).await);
    assert!(before["usage"]["input_tokens"].as_u64() > Some(0));

    let fork = format!("/sessions/{source}/fork");
    let id = "01890000-0000-7000-8000-000000000f0f";
    let body = Some(json!({ "id": id, "through": seq(&six[3]) }));
    let forked = api.expect(201, "POST", &fork, body.clone()).await;
    assert_eq!(
        api.expect(201, "POST", &fork, body).await,
        forked,
        "a retry"
    );
    assert_eq!(forked["id"], id);
    assert_eq!(forked["forked"]["session"], *source);
    let through = forked["forked"]["through"].as_u64().unwrap();
    assert!((seq(&six[3])..seq(&six[4])).contains(&through), "{forked}");
    assert_eq!(
        (
            &forked["status"],
            &forked["claim"],
            &forked["pending_inputs"]
        ),
        (&json!("idle"), &Value::Null, &json!(0))
    );
    assert_eq!(
        (forked.get("wait"), &forked["turn_open"]),
        (None, &json!(false))
    );
    let spent = forked["usage"].as_object().unwrap();
    assert!(spent.values().all(|spent| *spent == 0), "{forked}");
    assert!(api.inputs(id).await.is_empty());

    let copied = api.messages(id).await;
    let bodies = |items: &[Value]| {
        items
            .iter()
            .map(|item| item["body"].clone())
            .collect::<Vec<_>>()
    };
    assert_eq!(bodies(&copied), bodies(&six[..4]));
    let seqs: Vec<u64> = api.events(id).await.iter().map(seq).collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());

    api.prompt(id, "on").await;
    api.idle(id).await;
    let request = [
        ("user", "one"),
        ("assistant", "answer 1"),
        ("user", "two"),
        ("assistant", "answer 2"),
        ("user", "on"),
    ];
    holds(&model.newest(), &request);
    assert_eq!(api.show(&source).await, before, "the source is unchanged");
    assert_eq!(api.events(&source).await, log);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn edit_5_what_has_no_message_cannot_be_forked() {
    let world = World::new();
    let api = world.server().await;
    let empty = api.session().await;
    let path = format!("/sessions/{empty}/fork");
    api.refused((409, "nothing-there"), "POST", path, None)
        .await;
}
