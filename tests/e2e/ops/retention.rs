//! What time takes away, through the command and through a server that has it configured.

use std::time::Duration;

use serde_json::Value;

use super::{Place, begin, prompt};
use crate::support::{DEADLINE, Server};

/// The bodies of all requests of a session, without what tells it from another.
fn requests(outside: &crate::support::Outside, tag: &str) -> Vec<String> {
    let requests = outside.seen.requests.lock().unwrap();
    let of = requests.get(tag).cloned().unwrap_or_default();
    of.iter().map(|body| body.replace(tag, "TAG")).collect()
}

async fn turn(server: &Server, session: Option<&str>, text: &str) -> String {
    let session = match session {
        None => begin(server, text).await,
        Some(session) => {
            prompt(server, session, text).await;
            session.to_owned()
        }
    };
    server.idle(&session).await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn compact_7_the_next_request_is_the_same_whether_or_not_old_bodies_are_there() {
    let (place, outside) = Place::with_tools().await;
    let server = place.server().await;
    let (whole, bare) = ("tag-whole", "tag-bare");
    let long = "a long tale ".repeat(50);
    let kept = turn(&server, None, &format!("Do it. tag:{whole} {long}")).await;
    let session = turn(&server, None, &format!("Do it. tag:{bare} {long}")).await;
    let before = server.events(&session).await;
    turn(&server, Some(&kept), "And once more.").await;

    let collected = place.json(&["gc", "--bodies", "0s"]).await;
    // Both sessions' prompts; what is short is not worth a stub.
    assert!(collected["bodies"].as_u64().unwrap() >= 2, "{collected}");
    assert!(
        collected["body_bytes"].as_u64().unwrap() > 500,
        "{collected}"
    );
    assert_eq!(collected["sessions"], 0);
    let after = server.events(&session).await;
    assert_eq!(after.len(), before.len());
    let stubs = after.iter().filter(|event| !event["compacted"].is_null());
    assert!(stubs.count() >= 1, "{after:#?}");
    assert!(!Value::from(after).to_string().contains("a long tale"));

    turn(&server, Some(&session), "And once more.").await;
    let (with, without) = (requests(&outside, whole), requests(&outside, bare));
    assert_eq!(with.len(), 3);
    assert_eq!(without, with);
    server.kill().await;
    place.healthy(&place.store).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_5_a_server_applies_the_retention_that_is_configured() {
    let place = Place::new("");
    let server = place.server().await;
    let session = turn(&server, None, "hello").await;
    server.kill().await;
    let kept = place.json(&["gc", "--sessions", "1d"]).await;
    assert_eq!(kept["sessions"], 0);
    let would = place.json(&["gc", "--sessions", "0s", "--dry-run"]).await;
    assert_eq!(would["sessions"], 1);

    std::fs::write(&place.config, "[retention]\nsessions = \"1ms\"\n").unwrap();
    let server = place.server().await;
    let path = format!("/sessions/{session}");
    let gone = async {
        while server.get(&path).await.0 != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone)
        .await
        .expect("the session goes");
    server.kill().await;
}
