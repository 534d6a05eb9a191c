//! `mainstay session …`: each command beside a running server and on the file alone.

use serde_json::{Value, json};

use super::world::{Api, World};

/// Exit codes as documented.
const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;
const CONFLICT: i32 = 4;

const NOBODY: &str = "01890000-0000-7000-8000-00000000ffff";

/// Commands on a store that a server has, or nobody.
struct Shell {
    world: World,
    api: Option<Api>,
}

impl Shell {
    async fn alone() -> Self {
        Self {
            world: World::new(),
            api: None,
        }
    }

    async fn beside_a_server() -> Self {
        let world = World::new();
        let api = Some(world.server().await);
        Self { world, api }
    }

    /// What a command that succeeds gives with `--json`: JSON and nothing else.
    #[track_caller]
    fn json<'a>(&'a self, args: &'a [&'a str]) -> impl Future<Output = Vec<Value>> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let all = [&["--json"], args].concat();
            let (code, out, err) = self.world.run(&all).await;
            assert_eq!(code, 0, "{caller}: {args:?}: {out}\n{err}");
            let parsed = serde_json::Deserializer::from_str(&out).into_iter();
            let parsed: Result<Vec<Value>, _> = parsed.collect();
            parsed.unwrap_or_else(|_| panic!("{caller}: {args:?}: {out}"))
        }
    }

    /// The one value of such a command.
    #[track_caller]
    fn one<'a>(&'a self, args: &'a [&'a str]) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        let values = self.json(args);
        async move {
            let values = values.await;
            assert_eq!(values.len(), 1, "{caller}: {args:?}: {values:?}");
            values.into_iter().next().unwrap()
        }
    }

    /// stdout and stderr of a command that succeeds.
    #[track_caller]
    fn says<'a>(&'a self, args: &'a [&'a str]) -> impl Future<Output = (String, String)> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let (code, out, err) = self.world.run(args).await;
            assert_eq!(code, 0, "{caller}: {args:?}: {out}\n{err}");
            (out, err)
        }
    }

    /// A command that ends with this code, says why and, in a hint, which command is next.
    #[track_caller]
    fn fails<'a>(
        &'a self,
        args: &'a [&'a str],
        code: i32,
        hint: &'a str,
    ) -> impl Future<Output = ()> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            for json in [&[][..], &["--json"]] {
                let (found, out, err) = self.world.run(&[json, args].concat()).await;
                assert_eq!(found, code, "{caller}: {args:?}: {out}\n{err}");
                assert!(out.is_empty(), "{caller}: {args:?}: {out}");
                let told = err.lines().any(|line| line.starts_with("error:"));
                assert!(told, "{caller}: {args:?}: {err}");
                assert!(
                    err.contains(hint),
                    "{caller}: {args:?}: no {hint:?} in {err}"
                );
            }
        }
    }

    /// Runs a prompt in a new session, and gives its id and what was said of the end.
    async fn begin(&self, prompt: &str) -> (String, String) {
        let (_, err) = self.says(&["run", prompt]).await;
        let id = err.lines().find_map(|line| line.strip_prefix("session "));
        (id.unwrap_or_else(|| panic!("{err}")).to_owned(), err)
    }

    /// Lets the session run as far as it can, and gives what it said to the newest prompt.
    async fn finish(&self, session: &str) -> String {
        match &self.api {
            Some(api) => {
                api.idle(session).await;
                api.words(session).await.pop().unwrap()
            }
            None => {
                let (out, _) = self.says(&["run", "--session", session]).await;
                out.trim().to_owned()
            }
        }
    }

    async fn show(&self, session: &str) -> Value {
        let shown = self.one(&["session", "show", session]).await;
        shown["session"].clone()
    }

    async fn messages(&self, session: &str) -> Vec<Value> {
        let shown = self.one(&["session", "show", session]).await;
        shown["messages"].as_array().unwrap().clone()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_3_cli_5_waits_are_answered_from_the_command_line() {
    waits(Shell::alone().await).await;
    waits(Shell::beside_a_server().await).await;
}

async fn waits(shell: Shell) {
    let (asks, told) = shell.begin("ask deploy Ship it?\nreport").await;
    let approve = format!("mainstay session approve {asks} deploy");
    assert!(
        told.contains("Ship it?") && told.contains(&approve),
        "{told}"
    );
    let (shown, _) = shell.says(&["session", "show", &asks]).await;
    for part in ["waiting", "asks      deploy: Ship it?", "resume    auto"] {
        assert!(shown.contains(part), "{shown}");
    }
    let listed = shell.one(&["session", "approvals", &asks]).await;
    assert_eq!(
        (&listed["key"], &listed["question"], &listed["approved"]),
        (&json!("deploy"), &json!("Ship it?"), &Value::Null)
    );
    let (line, _) = shell.says(&["session", "approvals", &asks]).await;
    assert!(line.contains("asks") && line.contains("Ship it?"), "{line}");
    let other = ["session", "approve", &asks, "other"];
    shell.fails(&other, NOT_FOUND, "session approvals").await;
    let approve = ["session", "approve", &asks, "deploy", "--reason", "fine"];
    for _ in 0..2 {
        let said = shell.one(&approve).await;
        assert_eq!(said, json!({ "key": "deploy", "approved": true }));
    }
    let deny = ["session", "deny", &asks, "deploy"];
    shell.fails(&deny, CONFLICT, "answered already").await;
    assert_eq!(shell.finish(&asks).await, "deploy approved: fine");
    let answered = shell.one(&["session", "approvals", &asks]).await;
    assert_eq!(
        (&answered["approved"], &answered["reason"]),
        (&json!(true), &json!("fine"))
    );

    let (asks, _) = shell.begin("ask deploy Ship it?\nreport").await;
    let (_, said) = shell
        .says(&["session", "deny", &asks, "deploy", "--reason", "too late"])
        .await;
    assert!(said.contains("denied"), "{said}");
    assert_eq!(shell.finish(&asks).await, "deploy denied: too late");

    let (waits, told) = shell.begin("wait signal go or 600s\nreport").await;
    let signal = format!("mainstay session signal {waits} go");
    assert!(
        told.contains(&signal) && told.contains("mainstay serve"),
        "{told}"
    );
    let broken = ["session", "signal", &waits, "go", "{no json"];
    let (code, _, err) = shell.world.run(&broken).await;
    assert_eq!(code, USAGE, "{err}");
    let admitted = shell
        .one(&["session", "signal", &waits, "go", "{\"n\": 1}"])
        .await;
    assert_eq!(admitted["session"], *waits);
    assert!(admitted["input"].is_string() && admitted["seq"].is_u64());
    assert_eq!(shell.finish(&waits).await, "signal go {\"n\":1}");
    let admitted = shell.one(&["session", "compact", &waits]).await;
    assert!(admitted["input"].is_string());

    let (waits, _) = shell.begin("wait signal go").await;
    let found = shell
        .one(&["session", "interrupt", &waits, "--continue"])
        .await;
    assert_eq!(found, json!({ "was_busy": true }));
    let (_, said) = shell
        .says(&["session", "interrupt", &waits, "--continue"])
        .await;
    assert!(said.contains("nothing was running"), "{said}");
    assert_eq!(shell.show(&waits).await["status"], "idle");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_3_cli_5_histories_are_edited_from_the_command_line() {
    edits(Shell::alone().await).await;
    edits(Shell::beside_a_server().await).await;
}

async fn edits(shell: Shell) {
    let (session, _) = shell.begin("say one").await;
    shell.says(&["run", "--session", &session, "say two"]).await;
    let four = shell.messages(&session).await;
    assert_eq!(four.len(), 4);
    let third = four[2]["seq"].to_string();

    let (fork, _) = shell.says(&["session", "fork", &session]).await;
    let shown = shell.show(fork.trim()).await;
    assert_eq!(shown["forked"]["session"], *session);
    let (shown, _) = shell.says(&["session", "show", fork.trim()]).await;
    assert!(
        shown.contains(&format!("forked    from {session}")),
        "{shown}"
    );
    let second = four[1]["seq"].to_string();
    let fork = shell
        .one(&["session", "fork", &session, "--through", &second])
        .await;
    let id = fork["id"].as_str().unwrap();
    assert_eq!(shell.messages(id).await.len(), 2);
    let fork = ["session", "fork", &session, "--through", "1"];
    shell.fails(&fork, CONFLICT, "session show").await;

    let reverted = shell
        .one(&["session", "revert", &session, "--before", &third])
        .await;
    assert!(reverted["reverted_to"].is_u64(), "{reverted}");
    assert_eq!(shell.messages(&session).await, four[..2]);
    let (shown, _) = shell.says(&["session", "show", &session]).await;
    assert!(shown.contains("reverted  shown through"), "{shown}");
    let undo = ["session", "revert", &session, "--undo"];
    let cleared = shell.one(&undo).await;
    assert_eq!(cleared.get("reverted_to"), None);
    assert_eq!(shell.messages(&session).await, four);
    shell.fails(&undo, CONFLICT, "session show").await;
    let far = ["session", "revert", &session, "--before", "9999"];
    shell.fails(&far, CONFLICT, "session show").await;
    let (code, _, err) = shell.world.run(&["session", "revert", &session]).await;
    assert_eq!(code, USAGE, "{err}");
    let (_, said) = shell
        .says(&["session", "revert", &session, "--before", &third])
        .await;
    assert!(said.contains("--undo"), "{said}");
    shell
        .says(&["run", "--session", &session, "say three"])
        .await;
    assert_eq!(shell.messages(&session).await.len(), 4);

    let (waits, _) = shell.begin("wait signal go").await;
    let busy = ["session", "revert", &waits, "--before", "2"];
    shell.fails(&busy, CONFLICT, "session interrupt").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_3_cli_5_sessions_are_cancelled_taken_over_and_adopted_from_the_command_line() {
    ends(Shell::alone().await).await;
    ends(Shell::beside_a_server().await).await;
}

async fn ends(shell: Shell) {
    let (waits, _) = shell.begin("wait signal go").await;
    let adopted = shell.one(&["session", "adopt", &waits]).await;
    assert_eq!(
        (&adopted["id"], &adopted["status"]),
        (&json!(waits), &json!("waiting")),
        "its own already"
    );
    let take_over = ["session", "take-over", &waits];
    match &shell.api {
        None => shell.fails(&take_over, CONFLICT, "mainstay serve").await,
        Some(api) => {
            assert_eq!(shell.one(&take_over).await, json!({ "was_busy": false }));
            let runs = api.begin("slow 600000 never said").await;
            api.until(&runs, "running").await;
            let (_, said) = shell.says(&["session", "take-over", &runs]).await;
            assert!(said.contains("taken over"), "{said}");
            api.until_event(&runs, "recovery.recorded").await;
            let busy = ["session", "revert", &runs, "--before", "2"];
            shell.fails(&busy, CONFLICT, "session interrupt").await;
        }
    }

    let cancel = ["session", "cancel", &waits];
    assert_eq!(shell.one(&cancel).await, json!({ "was_busy": true }));
    assert_eq!(shell.one(&cancel).await, json!({ "was_busy": false }));
    assert_eq!(shell.show(&waits).await["status"], "cancelled");
    for refused in [
        &["session", "signal", &waits, "go"][..],
        &["session", "compact", &waits],
        &["run", "--session", &waits, "say hello"],
        &["session", "resume", &waits],
    ] {
        let (code, _, err) = shell.world.run(refused).await;
        assert_eq!(code, CONFLICT, "{refused:?}: {err}");
        assert!(
            err.contains("cancelled") && err.contains("hint:"),
            "{refused:?}: {err}"
        );
    }

    for unknown in [
        &["session", "cancel", NOBODY][..],
        &["session", "signal", NOBODY, "go"],
        &["session", "approvals", NOBODY],
        &["session", "approve", NOBODY, "deploy"],
        &["session", "deny", NOBODY, "deploy"],
        &["session", "compact", NOBODY],
        &["session", "fork", NOBODY],
        &["session", "revert", NOBODY, "--before", "2"],
        &["session", "revert", NOBODY, "--undo"],
        &["session", "interrupt", NOBODY, "--continue"],
        &["session", "adopt", NOBODY],
    ] {
        shell.fails(unknown, NOT_FOUND, "session list").await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_3_cli_5_an_import_goes_on_once_it_is_adopted() {
    imported(Shell::alone().await).await;
    imported(Shell::beside_a_server().await).await;
}

async fn imported(shell: Shell) {
    let origin = Shell::alone().await;
    let (waits, _) = origin.begin("wait signal go\nreport").await;
    let file = origin.world.folder.path().join("session.jsonl");
    let file = file.to_str().unwrap();
    origin
        .says(&["session", "export", &waits, "--to", file])
        .await;
    shell.json(&["session", "import", file]).await;
    assert_eq!(shell.show(&waits).await["status"], "imported");
    let signal = ["session", "signal", &waits, "go"];
    shell.fails(&signal, CONFLICT, "session adopt").await;
    let prompt = ["run", "--session", &waits, "say hello"];
    shell.fails(&prompt, CONFLICT, "session adopt").await;
    let adopted = shell.one(&["session", "adopt", &waits]).await;
    assert_eq!(adopted["status"], "waiting");
    shell.json(&signal).await;
    assert_eq!(shell.finish(&waits).await, "signal go null");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cli_5_a_run_says_why_a_session_does_not_go_on() {
    let world = World::new();
    let agent = "[agents.default]\nrunner = \"planner\"\ntoolboxes = []\nresume = \"ask\"\n";
    world.configure(agent, "");
    let api = world.server().await;
    let session = api.begin("slow 800 one two three four five").await;
    api.until_event(&session, "step.output").await;
    api.kill().await;
    let shell = Shell {
        api: Some(world.server().await),
        world,
    };
    let api = shell.api.as_ref().unwrap();
    api.until(&session, "held").await;
    let run = ["run", "--session", &session];
    let (code, out, err) = shell.world.run(&run).await;
    assert_eq!((code, &*out), (CONFLICT, ""), "{err}");
    let resume = format!("mainstay session resume {session}");
    assert!(
        err.contains("policy is `ask`") && err.contains(&resume),
        "{err}"
    );
    let (shown, _) = shell.says(&["session", "show", &session]).await;
    assert!(shown.contains("resume    ask"), "{shown}");
    shell.says(&["session", "resume", &session]).await;
    let shown = api.idle(&session).await;
    assert_eq!(shown["last_turn"]["outcome"], "done");

    // Children are listed with their parent, and the other way round.
    let (parent, told) = shell.begin("spawn a wait signal go\nwait children a").await;
    let child = shell.show(&parent).await["children"][0]["session"].clone();
    let child = child.as_str().unwrap();
    assert!(
        told.contains(&format!("mainstay session show {child}")),
        "{told}"
    );
    let (shown, _) = shell.says(&["session", "show", &parent]).await;
    assert!(
        shown.contains(&format!("child     {child}  a, not ended")),
        "{shown}"
    );
    let (shown, _) = shell.says(&["session", "show", child]).await;
    assert!(
        shown.contains(&format!("parent    {parent}, as a")),
        "{shown}"
    );
}
