//! What may run and what must not: interrupts that go on, quarantine, resume policies, take-overs,
//! and the errors of sessions that are busy, cancelled or put aside.

use serde_json::{Value, json};

use super::world::{Api, World, of};

/// A step that nothing ends but an interrupt or a kill.
const ENDLESS: &str = "slow 600000 never said";

/// A step that lasts long enough to be cut off, and ends.
const LITTLE: &str = "slow 800 one two three four five";

const AGENT: &str = "[agents.default]\nrunner = \"planner\"\ntoolboxes = []\n";

/// A session that runs endlessly.
async fn running(api: &Api) -> String {
    let session = api.begin(ENDLESS).await;
    api.until(&session, "running").await;
    api.until_event(&session, "step.started").await;
    session
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn int_5_interrupt_and_continue_takes_steers_and_leaves_the_queue() {
    let world = World::new();
    let api = world.server().await;
    let go_on = json!({ "continue": true });
    let pending = ("pending".to_owned(), false);

    let steered = running(&api).await;
    let queued = api.prompt(&steered, "say queued").await;
    let steer = json!({ "text": "say steered", "delivery": "steer" });
    let steer = api.admit(&steered, steer).await;
    let found = api.act(&steered, "interrupt", go_on.clone()).await;
    assert_eq!(found["was_busy"], true);
    api.until_event(&steered, "runner.said").await;
    api.idle(&steered).await;
    let (promoted, _) = api.input(&steered, &steer).await;
    assert_eq!(promoted, "promoted");
    assert_eq!(api.input(&steered, &queued).await, pending);
    assert_eq!(api.words(&steered).await.last().unwrap(), "steered");

    let controlled = running(&api).await;
    let model = json!({ "configure": { "model": "parrot/other" } });
    let control = api.admit(&controlled, model).await;
    let queued = api.prompt(&controlled, "say queued").await;
    api.act(&controlled, "interrupt", go_on.clone()).await;
    let shown = api.idle(&controlled).await;
    assert_eq!(shown["model"]["model"], "other");
    let (promoted, _) = api.input(&controlled, &control).await;
    assert_eq!(promoted, "promoted");
    assert_eq!(api.input(&controlled, &queued).await, pending);

    let alone = running(&api).await;
    let queued = api.prompt(&alone, "say queued").await;
    api.act(&alone, "interrupt", go_on).await;
    let shown = api.idle(&alone).await;
    assert_eq!(
        (&shown["status"], &shown["pending_inputs"]),
        (&json!("idle"), &json!(1))
    );
    assert_eq!(api.input(&alone, &queued).await, pending);
    let events = api.events(&alone).await;
    assert_eq!(of(&events, "execution.started").len(), 1, "{events:#?}");
    // A wake takes what was left.
    let ran = api.act(&alone, "run", json!({})).await;
    assert_eq!(ran["outcome"]["kind"], "succeeded");
    assert_eq!(api.words(&alone).await.last().unwrap(), "queued");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_6_busy_and_cancelled_sessions_say_what_to_do() {
    let world = World::new();
    let api = world.server().await;
    let session = running(&api).await;
    let before = api.events(&session).await;
    let revert = format!("/sessions/{session}/revert");
    let body = Some(json!({ "before": 2 }));
    api.refused((409, "busy"), "POST", revert.clone(), body.clone())
        .await;
    assert_eq!(api.events(&session).await, before, "nothing changed");

    let cancelled = api.act(&session, "cancel", Value::Null).await;
    assert_eq!(cancelled["was_busy"], true);
    let shown = api.until(&session, "cancelled").await;
    assert_eq!(
        (&shown["cancelled"], &shown["claim"]),
        (&json!(true), &Value::Null)
    );
    let refusal = (409, "session-cancelled");
    let path = |what: &str| format!("/sessions/{session}/{what}");
    let inputs = [
        json!({ "text": "say hello" }),
        json!({ "signal": { "name": "go" } }),
        json!({ "compact": true }),
    ];
    for input in inputs {
        api.refused(refusal, "POST", path("inputs"), Some(input))
            .await;
    }
    for what in ["run", "resume"] {
        api.refused(refusal, "POST", path(what), None).await;
    }
    let again = api.act(&session, "cancel", Value::Null).await;
    assert_eq!(again["was_busy"], false);
    assert_eq!(api.idle(&session).await["status"], "cancelled");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_6_a_quarantined_session_runs_once_it_is_released() {
    let world = World::new();
    world.configure(AGENT, "max-attempts = 0\n");
    let api = world.server().await;
    let session = api.begin(LITTLE).await;
    api.until_event(&session, "step.output").await;
    api.kill().await;

    let api = world.server().await;
    let shown = api.until(&session, "quarantined").await;
    assert!(shown["quarantined"].as_str().unwrap().contains("crashed"));
    let run = format!("/sessions/{session}/run");
    for body in [None, Some(json!({ "force": true }))] {
        api.refused((409, "session-quarantined"), "POST", run.clone(), body)
            .await;
    }
    let prompt = json!({ "text": "say later" });
    let admitted = api.act(&session, "inputs", prompt).await;
    assert!(
        admitted["held"].is_string(),
        "it is kept and says why: {admitted}"
    );
    assert_eq!(api.idle(&session).await["status"], "quarantined");

    api.act(&session, "resume", Value::Null).await;
    let shown = api.idle(&session).await;
    assert_eq!(
        (&shown["status"], &shown["attempts"]),
        (&json!("idle"), &json!(0))
    );
    assert_eq!(api.words(&session).await.last().unwrap(), "later");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_10_what_was_promoted_stays_and_idle_answers_after_the_terminal() {
    let world = World::new();
    let api = world.server().await;
    let session = api.session().await;
    assert_eq!(api.idle(&session).await["head"], 1, "idle: at once");
    let input = api.prompt(&session, LITTLE).await;
    let shown = api.idle(&session).await;
    assert_eq!(
        (&shown["status"], &shown["claim"]),
        (&json!("idle"), &Value::Null)
    );
    let events = api.events(&session).await;
    assert_eq!(events.last().unwrap()["type"], "execution.succeeded");
    assert_eq!(shown["head"], events.last().unwrap()["seq"]);

    let path = format!("/sessions/{session}/inputs/{input}");
    let steer = Some(json!({ "delivery": "steer" }));
    let refusal = (409, "input-settled");
    api.refused(refusal, "PATCH", path.clone(), steer.clone())
        .await;
    api.refused(refusal, "DELETE", path, None).await;
    assert_eq!(api.events(&session).await, events);
    assert_eq!(api.idle(&session).await, shown, "idle: at once");

    // What is pending can be both.
    let session = running(&api).await;
    let input = api.prompt(&session, "say hello").await;
    let path = format!("/sessions/{session}/inputs/{input}");
    let changed = api.expect(200, "PATCH", &path, steer).await;
    assert_eq!(changed["delivery"], "steer");
    api.expect(204, "DELETE", &path, None).await;
    assert_eq!(api.input(&session, &input).await.0, "cancelled");
    api.refused(refusal, "DELETE", path, None).await;
}

/// A session of this policy, killed in the middle of a model call, with a prompt pending; and the next
/// server.
async fn killed(world: &World, mode: &str) -> (Api, String, String) {
    let api = world.server().await;
    let session = api.create(json!({ "resume": { "mode": mode } })).await;
    api.prompt(&session, LITTLE).await;
    api.until_event(&session, "step.output").await;
    let queued = api.prompt(&session, "say queued").await;
    api.kill().await;
    let api = world.server().await;
    let shown = api.until(&session, "held").await;
    assert_eq!(shown["resume"]["mode"], mode);
    assert!(shown["held"].as_str().unwrap().contains(mode), "{shown}");
    assert_eq!(api.idle(&session).await, shown, "idle: at once");
    (api, session, queued)
}

/// It ends the turn that was cut off and takes the prompt behind it.
async fn goes_on(api: &Api, session: &str) {
    api.act(session, "resume", Value::Null).await;
    let shown = api.idle(session).await;
    assert_eq!(
        (&shown["status"], &shown["held"]),
        (&json!("idle"), &Value::Null)
    );
    let words = api.words(session).await;
    assert_eq!(words.last().unwrap(), "queued");
    let said: String = words[1..words.len() - 2].concat();
    for word in ["one", "five"] {
        assert!(said.contains(word), "{words:?}");
    }
    let events = api.events(session).await;
    assert_eq!(of(&events, "session.held").len(), 1);
    assert_eq!(of(&events, "turn.ended").len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recov_19_ask_holds_back_what_a_kill_cut_off_until_it_is_resumed() {
    let world = World::new();
    let (api, session, queued) = killed(&world, "ask").await;
    assert_eq!(api.input(&session, &queued).await, ("pending".into(), true));
    let run = format!("/sessions/{session}/run");
    api.refused((409, "session-held"), "POST", run, None).await;
    goes_on(&api, &session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn recov_19_never_takes_the_intent_and_one_command_gives_it_back() {
    let world = World::new();
    let (api, session, queued) = killed(&world, "never").await;
    assert_eq!(
        api.input(&session, &queued).await,
        ("pending".into(), false)
    );
    goes_on(&api, &session).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_21_a_take_over_supersedes_what_runs_and_counts_no_attempt() {
    let world = World::new();
    let api = world.server().await;
    let session = api.begin(LITTLE).await;
    api.until_event(&session, "step.output").await;
    let taken = api.act(&session, "take-over", Value::Null).await;
    assert_eq!(taken["was_busy"], true);
    let events = api.until_event(&session, "turn.ended").await;
    let ends = of(&events, "execution.interrupted");
    let reasons: Vec<&Value> = ends.iter().map(|end| &end["data"]["reason"]).collect();
    assert_eq!(reasons, ["superseded"]);
    let records = of(&events, "recovery.recorded");
    assert_eq!(records.len(), 1);
    assert_eq!(records[0]["data"]["attempts"], 0);
    let shown = api.idle(&session).await;
    assert_eq!(shown["last_turn"]["outcome"], "done");
    let again = api.act(&session, "take-over", Value::Null).await;
    assert_eq!(again["was_busy"], false);
}
