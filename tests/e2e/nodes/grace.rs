//! A node that is told to end while a step is in flight, with ten minutes of grace.

use rustix::process::{Pid, Signal, kill_process};

use super::support::{DEADLINE, Server, log};
use super::{SLOW, World, ends, listed, nodes, owners, prompt, seen, session, which};

/// Two nodes with that grace.
async fn two() -> Option<(World, Server, Server)> {
    let world = World::new()?;
    let text = std::fs::read_to_string(&world.config).unwrap();
    // Its last table is the node's.
    std::fs::write(&world.config, text + "shutdown-grace = \"10m\"\n").unwrap();
    let (a, b) = (world.node("a").await, world.node("b").await);
    Some((world, a, b))
}

fn terminate(server: &Server) {
    let pid = Pid::from_raw(server.child.id().unwrap().cast_signed()).unwrap();
    kill_process(pid, Signal::TERM).unwrap();
}

async fn ended(mut server: Server) {
    let ended = tokio::time::timeout(DEADLINE, server.child.wait()).await;
    ended.expect("it ends").unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_3_a_step_that_ends_within_the_grace_is_stored_and_the_other_node_goes_on() {
    let Some((_world, a, b)) = two().await else {
        return;
    };
    let id = session(&a).await;
    // After a call there is another step, which the node that ends does not begin.
    let script = format!("{SLOW}\ncall nothing\nthen\nsay over");
    prompt(&a, &id, &script, "queue").await;
    let begun = seen(&b, &id, |event| event["type"] == "step.output").await;
    let first = owners(&begun).remove(0);
    terminate(&a);
    ended(a).await;
    b.idle(&id).await;
    let events = b.events(&id).await;
    log::check(&events);
    let ran = owners(&events);
    assert_eq!(ran.len(), 2, "{events:#?}");
    assert!(ran[0] == first && ran[1] != first, "{ran:?}");
    let reasons: Vec<_> = ends(&events)
        .iter()
        .map(|end| end["data"]["reason"].as_str())
        .collect();
    assert_eq!(reasons, [Some("shutdown"), None]);

    // One answer each, the first one whole and by the node that was ending.
    let of = |kind: &str| {
        events
            .iter()
            .filter(|e| e["type"] == kind)
            .collect::<Vec<_>>()
    };
    let answers = of("model.ended");
    assert_eq!(
        (of("step.started").len(), answers.len()),
        (2, 2),
        "{events:#?}"
    );
    assert!(
        answers[0]["data"]["ending"]["finished"].is_string(),
        "{answers:#?}"
    );
    let by = |event: &serde_json::Value| event["execution"].clone();
    assert_eq!(by(answers[0]), by(of("step.started")[0]));
    assert_ne!(by(answers[0]), by(answers[1]));
    let (_, shown) = b.get(&format!("/sessions/{id}")).await;
    assert_eq!(shown["attempts"].as_u64().unwrap_or(0), 0, "{shown}");
    b.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_3_a_second_signal_ends_the_grace() {
    let Some((_world, a, b)) = two().await else {
        return;
    };
    let id = session(&a).await;
    // Longer than the test may take.
    let words = "word ".repeat(4000);
    prompt(&a, &id, &format!("slow 100 {words}"), "queue").await;
    seen(&b, &id, |event| event["type"] == "step.output").await;
    let row = which(&nodes(&b).await, &a)["id"].clone();
    terminate(&a);
    // It has heard the first, and lets what runs go on.
    listed(&b, &row, "draining").await;
    let before = b.events(&id).await;
    assert_eq!(ends(&before).len(), 0, "{before:#?}");
    terminate(&a);
    ended(a).await;
    let events = seen(&b, &id, |event| {
        event["type"] == "execution.started" && event["data"]["owner"] != row
    })
    .await;
    let ends = ends(&events);
    assert_eq!(ends.len(), 1, "{ends:?}");
    assert_eq!(ends[0]["data"]["reason"], "shutdown");
    let (_, shown) = b.get(&format!("/sessions/{id}")).await;
    assert_eq!(shown["attempts"].as_u64().unwrap_or(0), 0, "{shown}");
    b.kill().await;
}
