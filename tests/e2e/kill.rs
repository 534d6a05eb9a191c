//! The real binary, killed with SIGKILL at moments all over a turn, started again, and checked from
//! outside: by its log, by what clients were told, and by the counters of the servers it spoke to.

mod support;

use std::time::Duration;

use serde_json::{Value, json};
use support::{Outside, Server, log};

/// Moments between the admission and well behind the answer's end.
const MOMENTS: u64 = 24;
const STEP: Duration = Duration::from_millis(75);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_13_recov_20_killed_at_any_moment_a_turn_ends_whole() {
    let folder = tempfile::tempdir().unwrap();
    let outside = Outside::start().await;
    let config = outside.config(folder.path());
    // Compiles the plugins once; the others find the code in the cache beside the store.
    Server::start(&folder.path().join("first.db"), &config)
        .await
        .kill()
        .await;

    let mut rounds = tokio::task::JoinSet::new();
    for n in 0..MOMENTS {
        while rounds.len() >= 3 {
            rounds.join_next().await.unwrap().unwrap();
        }
        let (store, config) = (folder.path().join(format!("{n}.db")), config.clone());
        let seen = std::sync::Arc::clone(&outside.seen);
        let workspaces = folder.path().join("workspaces");
        rounds.spawn(async move {
            let tag = format!("kill-{n}");
            let server = Server::start(&store, &config).await;
            let (status, session) = server.post("/sessions", json!({})).await;
            assert!(status < 300, "{session}");
            let session = session["id"].as_str().unwrap().to_owned();
            let inputs = format!("/sessions/{session}/inputs");
            let (status, told) = server
                .post(&inputs, json!({ "text": format!("Do it. tag:{tag}") }))
                .await;
            assert_eq!(status, 202, "{told}");
            tokio::time::sleep(STEP * u32::try_from(n).unwrap()).await;
            let before = server.events(&session).await;
            server.kill().await;

            let server = Server::start(&store, &config).await;
            server.idle(&session).await;
            let events = server.events(&session).await;
            log::check(&events);
            // What was told is still there.
            assert_eq!(events[..before.len()], before[..], "moment {n}");
            assert!(
                events
                    .iter()
                    .any(|event| event["seq"] == told["seq"] && event["type"] == "input.admitted")
            );
            let ended = events
                .iter()
                .filter(|event| event["type"] == "turn.ended")
                .count();
            assert_eq!(ended, 1, "moment {n}");

            let posts = seen.posts.lock().unwrap().get(&tag).copied().unwrap_or(0);
            assert!(posts <= 1, "moment {n}: the once call acted {posts} times");
            let result = result_of(&events, "web_post");
            match result.as_deref() {
                Some("succeeded") => assert_eq!(posts, 1, "moment {n}"),
                // Cut off before its arguments were whole, or with an outcome that nobody knows.
                Some("outcome_unknown" | "not_started") | None => {}
                Some(other) => panic!("moment {n}: web_post ended as {other}"),
            }
            if result_of(&events, "file_write").as_deref() == Some("succeeded") {
                let file = workspaces.join(&session).join("out.txt");
                assert_eq!(
                    std::fs::read_to_string(file).unwrap(),
                    "written once",
                    "moment {n}"
                );
            }
            let text = std::fs::read(&store).unwrap();
            assert!(
                !contains(&text, support::SECRET.as_bytes()),
                "moment {n}: the secret is in the store"
            );
            server.kill().await;
        });
    }
    while let Some(round) = rounds.join_next().await {
        round.unwrap();
    }
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}

/// How the first call of this tool ended.
fn result_of(events: &[Value], tool: &str) -> Option<String> {
    events
        .iter()
        .filter(|event| event["type"] == "call.settled")
        .find(|event| event["data"]["result"]["tool"] == tool)
        .map(|event| {
            event["data"]["result"]["outcome"]
                .as_str()
                .unwrap()
                .to_owned()
        })
}
