//! Waits over kills: timers, signals, approvals and children.

use serde_json::{Value, json};

use super::world::{Api, World, of, promoted};
use crate::support::Outside;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_1_a_timer_outlives_a_kill_and_fires_once() {
    let world = World::new();
    let api = world.server().await;
    let long = api.begin("wait 600s").await;
    let parked = api.until(&long, "waiting").await;
    assert_eq!(parked["claim"], Value::Null, "a wait holds no claim");
    assert!(parked["wait"]["wake_at"].is_u64(), "{parked}");
    let short = api.begin("wait 2s\nreport").await;
    let before = api.until_event(&short, "execution.suspended").await;
    api.kill().await;

    let api = world.server().await;
    let events = api.until_event(&short, "turn.ended").await;
    assert_eq!(events[..before.len()], before[..]);
    assert_eq!(promoted(&events, "timer"), 1, "{events:#?}");
    let fired = of(&events, "input.admitted");
    let fired = fired.last().unwrap();
    assert!(fired["at"].as_u64() >= fired["data"]["content"]["at"].as_u64());
    assert_eq!(api.words(&short).await, ["> wait 2s\nreport", "timer"]);
    let still = api.show(&long).await;
    assert_eq!(
        (&still["status"], &still["head"], &still["wait"]),
        (&json!("waiting"), &parked["head"], &parked["wait"]),
        "what waits longer is as it was"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_3_a_signal_before_its_wait_ends_it_at_once_and_counts_once() {
    let world = World::new();
    let api = world.server().await;
    let session = api.session().await;
    let signal = |id: u8| {
        json!({ "id": format!("01890000-0000-7000-8000-0000000000{id:02}"),
            "signal": { "name": "go", "data": { "n": id } } })
    };
    let first = api.act(&session, "inputs", signal(1)).await;
    api.idle(&session).await;
    assert_eq!(api.act(&session, "inputs", signal(1)).await, first);

    let plan = "wait signal go\nsay first\nwait signal go\nreport";
    api.prompt(&session, plan).await;
    let parked = api.until(&session, "waiting").await;
    assert_eq!(parked["wait"]["until"], json!([{ "signal": "go" }]));
    let prompt = format!("> {plan}");
    assert_eq!(api.words(&session).await, [&*prompt, "first"]);
    let suspended = api.events(&session).await;
    let suspended = of(&suspended, "execution.suspended").len();
    assert_eq!(suspended, 1, "the first wait parked nothing");

    api.admit(&session, signal(2)).await;
    api.idle(&session).await;
    let words = api.words(&session).await;
    assert_eq!(words.last().unwrap(), "signal go {\"n\":2}");
    assert_eq!(promoted(&api.events(&session).await, "signal"), 2);
}

/// A model that posts once, and then asks for a second post that a person is to approve.
async fn guarded(outside: &Outside) -> (World, Api, String) {
    let port = outside.port;
    let world = World::with(&format!(
        "[agents.default]\nrunner = \"planner\"\ntoolboxes = [\"web\"]\n\n\
         [toolboxes.web]\nhttp = [{{ url = \"http://127.0.0.1:{port}/\", private = true }}]\n"
    ));
    let api = world.server().await;
    let post =
        |tag: &str| json!({ "url": format!("http://127.0.0.1:{port}/post/{tag}"), "body": "{}" });
    let guarded = json!({ "key": "deploy", "tool": "web_post", "arguments": post("second") });
    let script = format!(
        "call web_post {}\nthen\ncall guarded {guarded}\nthen\nsay so: {{result}}",
        post("first")
    );
    let session = api.begin(&script).await;
    let parked = api.until(&session, "waiting").await;
    assert_eq!(parked["open_approvals"], 1);
    let events = api.events(&session).await;
    api.kill().await;

    let api = world.server().await;
    let still = api.show(&session).await;
    assert_eq!(
        (&still["status"], &still["claim"]),
        (&json!("waiting"), &Value::Null)
    );
    assert_eq!(api.events(&session).await, events);
    let path = format!("/sessions/{session}/approvals");
    let asked = api.expect(200, "GET", &path, None).await["items"][0].clone();
    assert_eq!(
        (&asked["key"], &asked["question"], &asked["approved"]),
        (&json!("deploy"), &json!("Run web_post?"), &Value::Null)
    );
    let details: Value = serde_json::from_str(asked["details"].as_str().unwrap()).unwrap();
    assert_eq!(details, post("second"));
    (world, api, session)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_5_a_call_that_the_policy_asks_about_outlives_kills_and_runs_once() {
    for approved in [true, false] {
        let outside = Outside::start().await;
        let port = outside.port;
        let world = World::with(&format!(
            "[agents.default]\nrunner = \"planner\"\ntoolboxes = [\"web\"]\n\n\
             [[agents.default.tool-rules]]\ntool = \"web_*\"\n\
             arguments = {{ url = \"*/post/first\" }}\nthen = \"allow\"\n\n\
             [[agents.default.tool-rules]]\ntool = \"web_post\"\nthen = \"ask\"\n\n\
             [toolboxes.web]\nhttp = [{{ url = \"http://127.0.0.1:{port}/\", private = true }}]\n"
        ));
        let api = world.server().await;
        let post = |tag: &str| {
            let url = format!("http://127.0.0.1:{port}/post/{tag}");
            json!({ "url": url, "body": "{}" })
        };
        let script = format!(
            "call web_post {}\nthen\ncall web_post {}\nthen\nsay so: {{result}}",
            post("first"),
            post("second")
        );
        let session = api.begin(&script).await;
        let parked = api.until(&session, "waiting").await;
        assert_eq!(parked["open_approvals"], 1);
        assert_eq!(parked["claim"], Value::Null, "it holds no claim");
        api.kill().await;

        // What the command line says of it without a server.
        let (_, listed, _) = world
            .run(&["session", "approvals", &session, "--json"])
            .await;
        let asked: Value = serde_json::from_str(&listed).unwrap();
        assert_eq!(asked["question"], "May the tool web_post run?");
        let details: Value = serde_json::from_str(asked["details"].as_str().unwrap()).unwrap();
        assert_eq!(details, post("second"));
        assert!(asked["call"].is_string(), "{asked}");
        let (_, told, _) = world.run(&["session", "approvals", &session]).await;
        assert!(told.contains("/post/second"), "{told}");
        let (_, shown, _) = world.run(&["session", "show", &session]).await;
        let key = asked["key"].as_str().unwrap();
        assert!(shown.contains(&format!("{key}: May the tool")), "{shown}");

        let api = world.server().await;
        api.until(&session, "waiting").await;
        assert_eq!(
            (posts(&outside, "first"), posts(&outside, "second")),
            (1, 0)
        );
        let verb = if approved { "approve" } else { "deny" };
        let answer = ["session", verb, &session, key, "--reason", "not today"];
        for _ in 0..2 {
            let (code, _, told) = world.run(&answer).await;
            assert_eq!(code, 0, "{told}");
        }
        let done = api.idle(&session).await;
        assert_eq!(done["last_turn"]["outcome"], "done");
        let posted = (posts(&outside, "first"), posts(&outside, "second"));
        assert_eq!(posted, (1, u32::from(approved)));
        let words = api.words(&session).await;
        let last = words.last().unwrap();
        let wanted = if approved {
            "HTTP 200"
        } else {
            "a person denied it: not today"
        };
        assert!(last.contains(wanted), "{words:?}");
        api.kill().await;
    }
}

/// How often each tag was posted to.
fn posts(outside: &Outside, tag: &str) -> u32 {
    let posts = outside.seen.posts.lock().unwrap();
    posts.get(tag).copied().unwrap_or(0)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_5_an_approval_outlives_a_kill_and_lets_its_call_run_once() {
    let outside = Outside::start().await;
    let (_world, api, session) = guarded(&outside).await;
    assert_eq!(
        (posts(&outside, "first"), posts(&outside, "second")),
        (1, 0)
    );
    api.act(&session, "approvals/deploy", json!({ "approved": true }))
        .await;
    api.idle(&session).await;
    assert_eq!(
        (posts(&outside, "first"), posts(&outside, "second")),
        (1, 1)
    );
    let words = api.words(&session).await;
    let last = words.last().unwrap();
    assert!(last.contains("guarded answered: HTTP 200"), "{words:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_5_a_denied_call_gets_one_failed_result_and_the_runner_goes_on() {
    let outside = Outside::start().await;
    let (_world, api, session) = guarded(&outside).await;
    let denied = json!({ "approved": false, "reason": "not today" });
    api.act(&session, "approvals/deploy", denied).await;
    let done = api.idle(&session).await;
    assert_eq!(done["last_turn"]["outcome"], "done");
    assert_eq!(
        (posts(&outside, "first"), posts(&outside, "second")),
        (1, 0)
    );
    let messages = api.messages(&session).await;
    let failed: Vec<&Value> = messages
        .iter()
        .filter(|item| item["body"]["kind"] == "tool_result")
        .map(|item| &item["body"]["data"])
        .filter(|result| result["outcome"] == "failed")
        .collect();
    assert_eq!(failed.len(), 1, "{messages:#?}");
    assert_eq!(
        failed[0]["output"],
        json!([{ "text": "Denied: not today" }])
    );
    let words = api.words(&session).await;
    assert_eq!(words.last().unwrap(), "so: Denied: not today");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_6_the_first_answer_stands() {
    let world = World::new();
    let api = world.server().await;
    let plan = "ask deploy really?\nreport\nwait signal never";
    let (asks, other) = (api.begin(plan).await, api.session().await);
    api.until(&asks, "waiting").await;
    let approval = |session: &str, key: &str| format!("/sessions/{session}/approvals/{key}");
    let (yes, no) = (json!({ "approved": true }), json!({ "approved": false }));
    let answer = |path: String, body: &Value| {
        let (body, api) = (Some(body.clone()), &api);
        async move { api.expect(204, "POST", &path, body).await }
    };
    answer(approval(&asks, "deploy"), &yes).await;
    let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
    while !api.words(&asks).await.contains(&"deploy approved".into()) {
        assert!(tokio::time::Instant::now() < deadline, "it goes on");
    }
    api.until(&asks, "waiting").await;
    let before = api.events(&asks).await;
    answer(approval(&asks, "deploy"), &yes).await;
    for (refusal, path, body) in [
        ((409, "approval-answered"), approval(&asks, "deploy"), &no),
        ((404, "approval-not-found"), approval(&asks, "other"), &yes),
        (
            (404, "approval-not-found"),
            approval(&other, "deploy"),
            &yes,
        ),
    ] {
        api.refused(refusal, "POST", path, Some(body.clone())).await;
    }
    assert_eq!(api.events(&asks).await, before, "nothing ran");

    let cancelled = api.begin("ask deploy really?\nsay deployed").await;
    api.until(&cancelled, "waiting").await;
    api.act(&cancelled, "cancel", Value::Null).await;
    let before = api.events(&cancelled).await;
    let path = approval(&cancelled, "deploy");
    api.refused((409, "session-cancelled"), "POST", path, Some(yes))
        .await;
    assert_eq!(api.events(&cancelled).await, before, "nothing ran");
}

/// The id of a parent's child.
fn child(parent: &Value, key: &str) -> String {
    let children = parent["children"].as_array().unwrap();
    let found = children.iter().find(|child| child["key"] == key);
    found.unwrap()["session"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_7_wait_8_a_parent_gets_each_childs_result_once() {
    let world = World::new();
    let api = world.server().await;
    let parent = api
        .begin("spawn a,b wait signal go; say all of it\nwait children a,b\nreport")
        .await;
    let waits = api.until(&parent, "waiting").await;
    assert_eq!(waits["claim"], Value::Null);
    let (a, b) = (child(&waits, "a"), child(&waits, "b"));
    for (key, id) in [("a", &a), ("b", &b)] {
        let is = &api.until(id, "waiting").await["parent"];
        assert_eq!(
            *is,
            json!({ "session": parent, "key": key, "depth": 1 }),
            "{key}"
        );
    }
    api.act(&b, "cancel", Value::Null).await;
    api.kill().await;

    let api = world.server().await;
    api.admit(&a, json!({ "signal": { "name": "go" } })).await;
    let events = api.until_event(&parent, "turn.ended").await;
    assert_eq!(promoted(&events, "child"), 2);
    let words = api.words(&parent).await;
    let mut results: Vec<&str> = words.last().unwrap().lines().collect();
    results.sort_unstable();
    assert_eq!(results, ["child a done: all of it", "child b cancelled"]);

    let parent = api
        .begin("spawn c fail no luck\nwait children c\nreport")
        .await;
    api.until_event(&parent, "turn.ended").await;
    let words = api.words(&parent).await;
    let result = words.last().unwrap();
    assert!(
        result.starts_with("child c failed: ") && result.ends_with("no luck"),
        "{result}"
    );
}

/// How far the children have got when their parent is cancelled.
#[derive(Clone, Copy, Debug)]
enum Moment {
    Decided,
    FirstIsThere,
    AllRun,
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_9_a_cancelled_tree_never_runs_again() {
    let world = World::new();
    for moment in [Moment::Decided, Moment::FirstIsThere, Moment::AllRun] {
        let api = world.server().await;
        let plan = "spawn a,b,c slow 600000 never said\nwait children a,b,c";
        let parent = api.begin(plan).await;
        let family = match moment {
            Moment::Decided => loop {
                let shown = api.show(&parent).await;
                if shown.get("children").is_some() {
                    break shown;
                }
            },
            _ => api.until(&parent, "waiting").await,
        };
        let children = ["a", "b", "c"].map(|key| child(&family, key));
        let is_there = async |child: &String| {
            let path = format!("/sessions/{child}");
            let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
            while api.ask("GET", &path, None).await.0 == 404 {
                let late = tokio::time::Instant::now() > deadline;
                assert!(!late, "{moment:?}: {child} is never made");
            }
        };
        match moment {
            Moment::Decided => {}
            Moment::FirstIsThere => is_there(&children[0]).await,
            Moment::AllRun => {
                for child in &children {
                    is_there(child).await;
                    api.until(child, "running").await;
                }
            }
        }
        api.act(&parent, "cancel", Value::Null).await;
        api.kill().await;

        let api = world.server().await;
        let all: Vec<&String> = std::iter::once(&parent).chain(&children).collect();
        for session in &all {
            let path = format!("/sessions/{session}");
            let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
            loop {
                let (_, shown) = api.ask("GET", &path, None).await;
                if shown["cancelled"] == true && shown["status"] == "cancelled" {
                    break;
                }
                let late = tokio::time::Instant::now() > deadline;
                assert!(!late, "{moment:?}: the mark is not on {shown}");
            }
        }
        // A timer is due after a look of the loop: it has seen the others too.
        let later = api.begin("wait 500ms").await;
        api.until_event(&later, "turn.ended").await;
        for session in all {
            let before = api.events(session).await;
            let mark = before
                .iter()
                .position(|event| event["type"] == "session.cancelled");
            let after = &before[mark.unwrap()..];
            assert!(
                of(after, "execution.started").is_empty(),
                "{moment:?}: {session} ran again: {after:#?}"
            );
            let inputs = format!("/sessions/{session}/inputs");
            let prompt = Some(json!({ "text": "say hello" }));
            api.refused((409, "session-cancelled"), "POST", inputs, prompt)
                .await;
            for what in ["resume", "run"] {
                let path = format!("/sessions/{session}/{what}");
                api.refused((409, "session-cancelled"), "POST", path, None)
                    .await;
            }
            api.act(session, "cancel", Value::Null).await;
            assert_eq!(api.events(session).await, before, "{moment:?}");
        }
        api.kill().await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wait_12_a_queued_prompt_lets_a_wait_go_on_and_a_steer_ends_it() {
    let world = World::new();
    let api = world.server().await;
    let session = api.begin("wait signal go\nsay woken").await;
    api.until(&session, "waiting").await;
    let before = api.events(&session).await;
    let queued = api.prompt(&session, "say queued").await;
    let shown = api.idle(&session).await;
    assert_eq!(
        (&shown["status"], &shown["pending_inputs"]),
        (&json!("waiting"), &json!(1))
    );

    let steer = json!({ "text": "say steered", "delivery": "steer" });
    let steer = api.admit(&session, steer).await;
    let shown = api.idle(&session).await;
    assert_eq!(shown["status"], "idle");
    let prompts = ["> wait signal go\nsay woken", "> say steered", "steered"];
    let words = api.words(&session).await;
    assert_eq!(words, [&prompts[..], &["> say queued", "queued"]].concat());

    let events = api.events(&session).await;
    let since = &events[before.len()..];
    let at = |kind: &str, input: &str| {
        let found = since
            .iter()
            .position(|event| event["type"] == kind && event["data"]["input"] == input);
        found.unwrap_or_else(|| panic!("no {kind} of {input} in {since:#?}"))
    };
    let started = since
        .iter()
        .position(|event| event["type"] == "execution.started");
    assert!(started > Some(at("input.admitted", &steer)), "{since:#?}");
    let ended = since.iter().position(|event| event["type"] == "turn.ended");
    assert!(Some(at("input.promoted", &steer)) < ended);
    assert!(Some(at("input.promoted", &queued)) > ended);
}
