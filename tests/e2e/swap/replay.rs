//! `mainstay replay`: recorded decisions asked of another runner.

use mainstay_test_guests::{LOOP, PLANNER, successor};
use serde_json::{Value, json};

use super::place::{FIRST, Place, decisions, until_decision, until_output};
use crate::support::{Outside, Server};
use crate::world::{World, of};

/// Decisions differ.
const DIFFERENT: i32 = 9;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_13_the_same_runner_differs_nowhere_and_nothing_is_done() {
    let outside = Outside::start().await;
    let world = World::new();
    outside.config(world.folder.path());
    let mut running = Some(Server::start(&world.store, &world.config).await);
    let server = running.as_ref().unwrap();
    let (_, session) = server.post("/sessions", json!({})).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let inputs = format!("/sessions/{session}/inputs");
    server
        .post(&inputs, json!({ "text": "Do it. tag:replay" }))
        .await;
    server.idle(&session).await;
    let events = server.events(&session).await;
    let decided = decisions(&events);
    assert_eq!(decided.len(), 3);
    let counted = || {
        let seen = &outside.seen;
        let requests = seen.requests.lock().unwrap()["replay"].len();
        let gets = seen.gets.lock().unwrap()["replay"];
        let posts = seen.posts.lock().unwrap()["replay"];
        (requests, gets, posts)
    };
    assert_eq!(counted(), (2, 1, 1));
    let file = |name: &str, component: &[u8]| {
        let path = world.folder.path().join(name);
        std::fs::write(&path, component).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let written = world.folder.path().join("workspaces").join(&session);
    std::fs::remove_file(written.join("out.txt")).unwrap();
    let installed = world.run(&["--json", "plugin", "list"]).await;

    // By name, digest and file; beside the server and without it.
    let same = file("same.wasm", LOOP);
    let other = file("other.wasm", PLANNER);
    let export = world.folder.path().join("session.jsonl");
    let export = export.to_str().unwrap();
    let (code, _, err) = world
        .run(&["session", "export", &session, "--to", export])
        .await;
    assert_eq!(code, 0, "{err}");
    let mut told = Vec::new();
    for beside in [true, false] {
        for (what, runner) in [
            (&*session, "loop"),
            (&session, &decided[0].runner[..12]),
            (&session, &same),
            (export, "loop"),
        ] {
            let (code, out, err) = world.run(&["replay", what, "--runner", runner]).await;
            assert_eq!(code, 0, "{beside} {what} {runner}: {err}");
            let expected = format!(
                "{session}: 0 of 3 decisions differ\n  by loop sha256:{}: 0 of 3\n",
                &decided[0].runner[..12]
            );
            assert_eq!(out, expected);
        }
        let (code, out, err) = world.run(&["replay", &session, "--runner", &other]).await;
        assert_eq!(code, DIFFERENT, "{err}");
        assert!(err.contains("2 of 3 decisions differ"), "{err}");
        for decided in &decided[..2] {
            let seq = format!("\n  seq {}, by loop sha256:", decided.seq);
            assert_eq!(out.matches(&seq).count(), 1, "{out}");
        }
        // The planner offers a tool of its own, and both are done once the model is.
        assert_eq!(out.matches("recorded  call model\n").count(), 2, "{out}");
        assert_eq!(out.matches("new       call model\n").count(), 2, "{out}");
        assert!(out.contains("guarded"), "{out}");
        told.push(out);
        let (code, out, _) = world
            .run(&["--json", "replay", &session, "--runner", &other])
            .await;
        assert_eq!(code, DIFFERENT);
        let report: Value = serde_json::from_str(&out).unwrap();
        let differing = &report["decisions"][0]["difference"];
        let own = &differing["new"]["action"]["call_model"]["own_tools"][0]["name"];
        assert_eq!(own, "guarded", "{report}");
        assert_eq!(report["asked"]["name"], "planner");
        assert_eq!(
            (&report["different"], &report["through"]),
            (&json!(2), &json!(events.len()))
        );
        if let Some(server) = running.take() {
            assert_eq!(server.events(&session).await, events);
            let plugins = world.run(&["--json", "plugin", "list"]).await;
            assert_eq!(plugins, installed, "nothing was installed");
            server.kill().await;
        }
    }
    assert_eq!(told[0], told[1]);
    assert_eq!(counted(), (2, 1, 1), "nothing was sent or called");
    assert!(!written.join("out.txt").exists());
    let (code, out, err) = world.run(&["--json", "session", "log", &session]).await;
    assert_eq!(code, 0, "{err}");
    let after = serde_json::Deserializer::from_str(&out).into_iter::<Value>();
    let after: Vec<Value> = after.collect::<Result<_, _>>().unwrap();
    assert_eq!(after.len(), events.len());

    // What cannot be asked is told.
    let nobody = "01890a5d-ac96-774b-bcce-b302099a8057";
    for (args, wanted, words) in [
        (["replay", nobody, "--runner", "loop"], 3, nobody),
        (["replay", &session, "--runner", "no-such"], 3, "no-such"),
        (
            ["replay", &session, "--runner", "parrot"],
            3,
            "installed runner",
        ),
        (
            ["replay", "no-such", "--runner", "loop"],
            3,
            "session export",
        ),
        (["replay", &other, "--runner", "loop"], 2, "no export"),
    ] {
        let (code, _, err) = world.run(&args).await;
        assert_eq!(code, wanted, "{args:?}: {err}");
        assert!(err.contains(words), "{args:?}: {err}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_17_another_decision_changes_no_question_behind_it() {
    let place = Place::new(&successor(FIRST)).await;
    let api = place.world.server().await;
    let session = api
        .begin(
            "call file_write {\"path\":\"a.txt\",\"content\":\"one\"}\nthen\n\
             call file_read {\"path\":\"a.txt\"}\nthen\nsay bye",
        )
        .await;
    api.idle(&session).await;
    let events = api.events(&session).await;
    let decided = decisions(&events);
    assert_eq!(decided.len(), 4);
    let other = r#"{"name":"first","asks":true,"otherwise":2}"#;
    let other = place.file("other", &successor(other));
    let args = ["replay", &session, "--runner", other.to_str().unwrap()];
    let (code, out, err) = place.world.run(&args).await;
    assert_eq!(code, DIFFERENT, "{err}");
    // A runner that had really said so would have seen other ranges, numbers and items from then on.
    let expected = format!(
        "{session}: 1 of 4 decisions differ\n  seq {}, by first sha256:{digest}\n    \
         recorded  call model\n    new       say, call model\n    \
         entries[0]: nothing → {{\"say\":[{{\"text\":\"otherwise\"}}]}}\n  \
         by first sha256:{digest}: 1 of 4\n",
        decided[1].seq,
        digest = &decided[0].runner[..12],
    );
    assert_eq!(out, expected);
    let again = place.world.run(&args).await;
    assert_eq!(again, (code, out, err));
    // Two sessions are told one after the other.
    let second = api.begin("say hello").await;
    api.idle(&second).await;
    let args = [
        "replay",
        &session,
        &second,
        "--runner",
        other.to_str().unwrap(),
    ];
    let (code, both, err) = place.world.run(&args).await;
    assert_eq!(code, DIFFERENT, "{err}");
    assert!(both.starts_with(&again.1), "{both}");
    assert!(both.contains(&format!("\n{second}: ")), "{both}");
    assert_eq!(api.events(&session).await, events);
}

/// Decisions of a report by the digest of who made them: how many, and how many differ.
async fn report(place: &Place, session: &str, runner: &str) -> Vec<(String, bool)> {
    let args = ["--json", "replay", session, "--runner", runner];
    let (_, out, err) = place.world.run(&args).await;
    let report: Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
    let decisions = report["decisions"].as_array().unwrap().iter();
    decisions
        .map(|decision| {
            let by = decision["runner"]["digest"].as_str().unwrap();
            (by.to_owned(), decision["difference"].is_object())
        })
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_18_what_was_a_runners_own_is_its_own_again() {
    let place = Place::new(PLANNER).await;
    let api = place.world.server().await;
    // A wait of the first runner's.
    let session = api
        .begin("say one\nwait signal go or 600s\nreport\nwait 100ms\nsay two")
        .await;
    api.until(&session, "waiting").await;
    let signal = json!({ "signal": { "name": "go", "data": 1 } });
    api.admit(&session, signal).await;
    // It waits once more in between.
    api.until(&session, "idle").await;
    let planner = decisions(&api.events(&session).await)[0].runner.clone();
    // A failure of its own.
    api.prompt(&session, "say three\ndance").await;
    api.idle(&session).await;

    // A recovery of the second's, with a call that is settled.
    let looping = place.install(LOOP, "mine").await;
    let script = "call file_write {\"path\":\"a.txt\",\"content\":\"one\"}\nthen\n\
                  slow 1000 this goes on for a good while longer than it has to\nthen\nsay over";
    let before = api.events(&session).await;
    api.prompt(&session, script).await;
    let so_far = decisions(&before).len();
    let step = until_decision(&api, &session, so_far + 2).await.seq;
    until_output(&api, &session, step).await;
    api.kill().await;
    let api = place.world.server().await;
    api.idle(&session).await;
    // A compaction.
    api.admit(&session, json!({ "compact": true })).await;
    api.idle(&session).await;
    api.prompt(&session, "say after it").await;
    api.idle(&session).await;
    let events = api.events(&session).await;
    for kind in ["step.recovered", "context.compacted", "execution.suspended"] {
        assert!(!of(&events, kind).is_empty(), "{kind}: {events:#?}");
    }
    let failed = of(&events, "turn.ended");
    let failed = failed
        .iter()
        .filter(|end| end["data"]["outcome"]["outcome"] == "failed");
    assert_eq!(failed.count(), 1);
    // The first one again, behind all that.
    place.install(PLANNER, "mine").await;
    api.prompt(&session, "say back").await;
    api.idle(&session).await;
    let events = api.events(&session).await;
    let decided = decisions(&events);

    for (digest, name) in [(&planner, "planner"), (&looping, "loop")] {
        let report = report(&place, &session, digest).await;
        // One decision came to nothing: it is told with the beginning of the digest.
        assert_eq!(report.len(), decided.len() + 1);
        let own = report.iter().filter(|(by, _)| digest.starts_with(by));
        let (own, differ): (Vec<_>, Vec<_>) = own.partition(|(_, differs)| !differs);
        assert!(differ.is_empty(), "{name}: {report:?}");
        let count = decided.iter().filter(|one| one.runner == *digest).count();
        assert_eq!(own.len(), count + usize::from(name == "planner"));
        assert!(
            report
                .iter()
                .any(|(by, differs)| !digest.starts_with(by) && *differs),
            "{name} would have decided as the other"
        );
        let args = ["replay", &session, "--runner", digest, "--own"];
        let (code, out, err) = place.world.run(&args).await;
        assert_eq!(code, 0, "{out}{err}");
        assert!(
            out.contains(&format!(": 0 of {} decisions differ", own.len())),
            "{out}"
        );
    }

    // Beside an execution that runs, nothing of it is touched.
    let live = api
        .begin("slow 300 a b c d e f g h i j k l m n o p q r s t")
        .await;
    let step = until_decision(&api, &live, 1).await;
    let before = until_output(&api, &live, step.seq).await;
    let claim = api.show(&live).await["claim"]["execution"].clone();
    assert!(claim.is_string());
    let asked = report(&place, &live, &planner).await;
    assert_eq!(asked, [(planner.clone(), false)]);
    let shown = api.show(&live).await;
    assert_eq!(
        (&shown["claim"]["execution"], &shown["status"]),
        (&claim, &json!("running"))
    );
    api.idle(&live).await;
    let after = api.events(&live).await;
    assert_eq!(after[..before.len()], before[..]);
    assert_eq!(of(&after, "execution.started").len(), 1);
    let kinds: Vec<&str> = after[before.len()..]
        .iter()
        .map(|event| event["type"].as_str().unwrap())
        .filter(|kind| *kind != "step.output")
        .collect();
    assert_eq!(kinds, ["model.ended", "turn.ended", "execution.succeeded"]);
}
