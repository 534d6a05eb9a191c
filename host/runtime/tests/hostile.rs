//! Guests that mean harm, all of them in one table: what each does, and the words by which the host
//! names it. They run as sessions of a whole node, beside sessions that mean none and must not notice.

mod common;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::routing::{get, post};
use common::{Host, host_with, patched, serve};
use futures::StreamExt as _;
use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, InputContent, SessionCreated, TurnOutcome};
use mainstay_core::history::{ItemBody, ModelRef};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::{Content, Part, text_of};
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::{Kind, Plugins, Scheme, Workspace};
use mainstay_core::port::{Dump, Store, SystemClock};
use mainstay_runtime::egress::{EgressLimits, GrantRule, Grants};
use mainstay_runtime::limits::Limits;
use mainstay_test_guests::{HOSTILE_PROVIDER, HOSTILE_RUNNER, HOSTILE_TOOLBOX, LOOP, PARROT};
use mainstay_test_support::MemoryStore;

/// What a guest is made to do.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// `describe` of this kind does this when the component is loaded.
    Load(Kind, &'static str),
    /// `list` does this.
    List(&'static str),
    /// A runner does this.
    Decide(&'static str),
    /// A provider does this.
    Ask(&'static str),
    /// A model calls this tool with these arguments; `{silent}` is a server that does not answer.
    Call(&'static str, &'static str),
}

/// What becomes of it.
#[derive(Clone, Copy, Debug)]
enum Ends {
    /// It is refused with these words, and nothing of it is stored.
    Refused(&'static str),
    /// The turn fails with these words.
    Failed(&'static str),
    /// The call's result holds these words, and the turn goes on.
    Told(&'static str),
    /// The host bears it: the turn ends well.
    Borne,
}

use Ends::{Borne, Failed, Refused, Told};
use Way::{Ask, Call, Decide, List, Load};

/// Each way to misbehave that is known, with its named error.
const HOSTILE: &[(Way, Ends)] = &[
    // At load.
    (Load(Kind::Runner, "trap"), Refused("describe trapped")),
    (Load(Kind::Provider, "trap"), Refused("describe trapped")),
    (Load(Kind::Toolbox, "trap"), Refused("describe trapped")),
    (
        Load(Kind::Runner, "spin"),
        Refused("describe went past the"),
    ),
    (
        Load(Kind::Provider, "spin"),
        Refused("describe went past the"),
    ),
    (
        Load(Kind::Toolbox, "spin"),
        Refused("describe went past the"),
    ),
    (
        Load(Kind::Runner, "huge"),
        Refused("describe went past the manifest limit of 1 MiB"),
    ),
    (
        Load(Kind::Provider, "huge"),
        Refused("describe went past the manifest limit of 1 MiB"),
    ),
    (
        Load(Kind::Toolbox, "huge"),
        Refused("describe went past the manifest limit of 1 MiB"),
    ),
    (
        Load(Kind::Runner, "no-utf8"),
        Refused("describe broke the contract"),
    ),
    (
        Load(Kind::Provider, "no-utf8"),
        Refused("describe broke the contract"),
    ),
    (
        Load(Kind::Toolbox, "no-utf8"),
        Refused("describe broke the contract"),
    ),
    (List("trap"), Refused("list trapped")),
    (List("spin"), Refused("list went past the")),
    (
        List("huge"),
        Refused("list went past the tool list limit of 1 MiB"),
    ),
    (List("no-utf8"), Refused("list broke the contract")),
    (List("many"), Refused("the limit is 256")),
    (List("duplicate"), Refused("`name` of its tool `echo`")),
    (
        List("bad-name"),
        Refused("`name` of its tool `not a name!`"),
    ),
    (
        List("bad-schema"),
        Refused("`input-schema` of its tool `bad`"),
    ),
    // Runners.
    (Decide("trap"), Failed("decide trapped")),
    (Decide("panic"), Failed("as the prompt says")),
    (
        Decide("spin"),
        Failed("decide went past the CPU limit of 0.5 s"),
    ),
    (
        Decide("allocate"),
        Failed("decide went past the memory limit of 64 MiB"),
    ),
    (
        Decide("grow"),
        Failed("decide went past the memory limit of 64 MiB"),
    ),
    (Decide("recurse"), Failed("decide trapped")),
    (Decide("error"), Failed("as the prompt says")),
    (
        Decide("state-error"),
        Failed("its state: as the prompt says"),
    ),
    (
        Decide("options-error"),
        Failed("its options: as the prompt says"),
    ),
    (Decide("huge-error"), Failed("decide: eee")),
    (Decide("huge-state"), Failed("limit of")),
    (
        Decide("huge-decision"),
        Failed("decide went past the decision limit of 1 MiB"),
    ),
    (
        Decide("many-entries"),
        Failed("decide went past the decision limit of 1 MiB"),
    ),
    (Decide("no-utf8"), Failed("decide broke the contract")),
    (
        Decide("longer-than-memory"),
        Failed("decide broke the contract"),
    ),
    (Decide("forged-handle"), Failed("decide broke the contract")),
    (Decide("double-drop"), Failed("decide broke the contract")),
    (Decide("log-flood"), Borne),
    (Decide("read-flood"), Failed("limit of")),
    (
        Decide("measure-flood"),
        Failed("decide went past the CPU limit of 0.5 s"),
    ),
    (
        Decide("unknown-tool"),
        Failed("no toolbox of the session has a tool \"no_such_tool\""),
    ),
    (
        Decide("unknown-provider"),
        Failed("provider \"no-such-provider\" is not configured"),
    ),
    (Decide("unknown-own-tool"), Failed("not a name!")),
    (
        Decide("call-unknown-tool"),
        Failed("no toolbox of the session has a tool \"no_such_tool\""),
    ),
    (Decide("unknown-child"), Failed("no-such-child")),
    (Decide("unknown-agent"), Failed("no-such-agent")),
    (Decide("empty-wait"), Failed("wait")),
    (Decide("range-outside"), Failed("outside the history")),
    (
        Decide("answer-nothing"),
        Failed("it answers call \"no-such-call\", which is not open"),
    ),
    (Decide("call-twice"), Failed("stands twice")),
    (Decide("forever"), Failed("allowance of steps")),
    // Providers, asked to encode.
    (Ask("encode trap"), Failed("encode trapped")),
    (Ask("encode panic"), Failed("as the prompt says")),
    (
        Ask("encode spin"),
        Failed("encode went past the CPU limit of 0.5 s"),
    ),
    (
        Ask("encode allocate"),
        Failed("encode went past the memory limit of 64 MiB"),
    ),
    (
        Ask("encode grow"),
        Failed("encode went past the memory limit of 64 MiB"),
    ),
    (Ask("encode recurse"), Failed("encode trapped")),
    (Ask("encode error"), Failed("as the prompt says")),
    (
        Ask("encode config"),
        Failed("its configuration: as the prompt says"),
    ),
    (
        Ask("encode unsupported"),
        Failed("unsupported: as the prompt says"),
    ),
    (
        Ask("encode huge"),
        Failed("encode went past the exchange limit of 16 MiB"),
    ),
    (
        Ask("encode memo"),
        Failed("encode went past the memo limit of 64 KiB"),
    ),
    (Ask("encode host"), Failed("elsewhere.invalid")),
    (Ask("encode no-utf8"), Failed("encode broke the contract")),
    (
        Ask("encode longer-than-memory"),
        Failed("encode broke the contract"),
    ),
    // Decoders.
    (Ask("http new-trap"), Failed("decoder trapped")),
    (
        Ask("http new-spin"),
        Failed("decoder went past the CPU limit of 0.5 s"),
    ),
    (Ask("http trap"), Failed("finish trapped")),
    (Ask("http finish-trap"), Failed("finish trapped")),
    (
        Ask("http spin"),
        Failed("finish went past the CPU limit of 0.5 s"),
    ),
    (
        Ask("http allocate"),
        Failed("finish went past the memory limit of 64 MiB"),
    ),
    (Ask("http endless"), Failed("feed went past the")),
    (Ask("http flood"), Failed("1000 events per second")),
    (
        Ask("http huge-event"),
        Failed("feed went past the event limit of 1 MiB"),
    ),
    (
        Ask("http huge-answer"),
        Failed("feed went past the answer limit of 16 MiB"),
    ),
    (
        Ask("http huge-arguments"),
        Failed("feed went past the answer limit of 16 MiB"),
    ),
    (Ask("http no-utf8"), Failed("feed broke the contract")),
    (
        Ask("http after-finish"),
        Failed("the answer went on after its finish"),
    ),
    (
        Ask("http two-finishes"),
        Failed("the answer finished twice"),
    ),
    (
        Ask("http finish-and-fail"),
        Failed("the answer failed after its finish"),
    ),
    (Ask("http delta-before-start"), Failed("before its start")),
    (Ask("http end-before-start"), Failed("before its start")),
    (Ask("http no-end"), Failed("finished inside call \"1\"")),
    (Ask("http delta-after-end"), Failed("after its end")),
    (Ask("http duplicate-id"), Failed("twice in one step")),
    (Ask("http result-of-nothing"), Failed("never")),
    (Ask("http no-finish"), Failed("ended without a finish")),
    (Ask("http nothing"), Failed("ended without a finish")),
    (Ask("http usage-overflow"), Borne),
    // Answers that nobody sent.
    (
        Ask("local after-finish"),
        Failed("the answer went on after its finish"),
    ),
    (
        Ask("local two-finishes"),
        Failed("the answer finished twice"),
    ),
    (Ask("local duplicate-id"), Failed("twice in one step")),
    (Ask("local no-utf8"), Failed("encode broke the contract")),
    (
        Ask("local huge-event"),
        Failed("encode went past the event limit of 1 MiB"),
    ),
    (Ask("local huge-answer"), Failed("encode went past the")),
    (Ask("local result-of-nothing"), Failed("never")),
    // `classify`, whose faults leave it to the status.
    (
        Ask("refuse trap"),
        Failed("the server answered with status 400"),
    ),
    (
        Ask("refuse spin"),
        Failed("the server answered with status 400"),
    ),
    (
        Ask("refuse huge"),
        Failed("the server answered with status 400"),
    ),
    (
        Ask("refuse no-utf8"),
        Failed("the server answered with status 400"),
    ),
    // Toolboxes.
    (Call("trap", "{}"), Told("call trapped")),
    (Call("panic", "{}"), Told("as the call says")),
    (
        Call("spin", "{}"),
        Told("call went past the CPU limit of 0.5 s"),
    ),
    (
        Call("stubborn", "{}"),
        Told("call went past the CPU limit of 0.5 s"),
    ),
    (
        Call("allocate", "{}"),
        Told("call went past the memory limit of 96 MiB"),
    ),
    (
        Call("grow", "{}"),
        Told("call went past the memory limit of 96 MiB"),
    ),
    (Call("recurse", "{}"), Told("call trapped")),
    (
        Call("huge_output", "{}"),
        Told("call went past the text output limit of 1 MiB"),
    ),
    (
        Call("huge_media", "{}"),
        Told("call went past the media output limit of 32 MiB"),
    ),
    (
        Call("huge_error", "{}"),
        Told("[32768 of 1048576 bytes shown]"),
    ),
    (
        Call("long_error", "{}"),
        Told("[32768 of 100000 bytes shown]"),
    ),
    (
        Call("long_output", "{}"),
        Told("[32768 of 100000 bytes shown]"),
    ),
    (Call("no_utf8", "{}"), Told("call broke the contract")),
    (
        Call("longer_than_memory", "{}"),
        Told("call broke the contract"),
    ),
    (
        Call("leak", "{}"),
        Told("call went past the handle limit of 10000"),
    ),
    (Call("log_flood", "{}"), Told("done")),
    (Call("progress_flood", "{}"), Told("done")),
    (
        Call("fetch", r#"{"url":"http://127.0.0.1:{silent}/silent"}"#),
        Told("call went past the wall-time limit of 3 s"),
    ),
    (
        Call("fetch", r#"{"url":"http://elsewhere.invalid/"}"#),
        Told("elsewhere.invalid"),
    ),
    (Call("workspace", r#"{"path":"../x"}"#), Told("x")),
    (
        Call("no_such_tool", "{}"),
        Told("There is no tool \"no_such_tool\""),
    ),
    (
        Call("fetch", r#"{"url":1}"#),
        Told("The arguments break the tool's schema"),
    ),
];

/// Sessions that misbehave at the same time.
const AT_ONCE: usize = 8;
/// Sessions beside them that do not.
const OTHERS: usize = 10;
/// How long anything may take.
const DEADLINE: Duration = Duration::from_secs(300);

struct World {
    host: Host,
    store: Arc<MemoryStore>,
    node: Arc<Node>,
    /// Of the server that all requests go to.
    port: u16,
}

impl World {
    async fn new() -> Self {
        let mut limits = Limits::default();
        limits.runner.decide.cpu = Duration::from_millis(500);
        limits.provider.encode.cpu = Duration::from_millis(500);
        limits.provider.decode.cpu = Duration::from_millis(500);
        limits.toolbox.call.cpu = Duration::from_millis(500);
        limits.toolbox.call.wall = Duration::from_secs(3);
        limits.toolbox.call.memory_bytes = 96 << 20;
        let host = host_with(limits, EgressLimits::default());
        for (kind, alias, component) in [
            (Kind::Runner, "loop", LOOP),
            (Kind::Runner, "hostile", HOSTILE_RUNNER),
            (Kind::Provider, "parrot", PARROT),
            (Kind::Provider, "hostile", HOSTILE_PROVIDER),
            (Kind::Toolbox, "hostile", HOSTILE_TOOLBOX),
        ] {
            let info = host.install(component).await;
            host.source.point(kind, alias, &info.digest);
        }
        let router = Router::new()
            .route("/answer", post(async || "anything"))
            .route(
                "/refuse",
                post(async |body: String| (StatusCode::BAD_REQUEST, body)),
            )
            .route("/silent", get(std::future::pending::<()>));
        let port = serve(router).await.port();
        let grants = Grants {
            http: vec![GrantRule {
                scheme: Some(Scheme::Http),
                host: "127.0.0.1".to_owned(),
                port: Some(port),
                methods: Vec::new(),
                path_prefix: "/".to_owned(),
                private: true,
            }],
            workspace: Workspace::Read,
            ..Grants::default()
        };
        host.egress.grant(Kind::Provider, "hostile", grants.clone());
        host.egress.grant(Kind::Toolbox, "hostile", grants);
        let store = Arc::new(MemoryStore::new(Arc::new(SystemClock::default())));
        let ports = Ports {
            store: Arc::clone(&store) as _,
            plugins: Arc::clone(&host.runtime) as _,
            clock: Arc::new(SystemClock::default()),
        };
        let settings = Settings {
            max_tries: 2,
            retry_base: Duration::from_millis(10),
            ..Settings::default()
        };
        let node = Node::start(ports, settings, Arc::new(SharedConfig::new(config(port))));
        Self {
            host,
            store,
            node,
            port,
        }
    }

    /// A session of this agent with this prompt.
    async fn start(&self, agent: &str, prompt: &str) -> SessionId {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: agent.to_owned(),
            ..SessionCreated::default()
        };
        self.node.create(session, created).await.unwrap();
        let content = InputContent::Prompt {
            parts: vec![Part::Text(prompt.to_owned())],
        };
        self.node
            .admit(session, InputId::new(), Delivery::Queue, content)
            .await
            .unwrap();
        session
    }

    /// What the session holds once its turn is over.
    async fn over(&self, session: SessionId) -> Dump {
        let ended = async {
            loop {
                let tail = self.store.tail(session).await.unwrap().unwrap();
                if tail.session.last_turn.is_some() && tail.claim.is_none() {
                    return self.store.dump(session).await.unwrap();
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::time::timeout(DEADLINE, ended).await.unwrap()
    }

    /// Runs one row of the table. What is wrong with how it ended, if anything is.
    async fn run(&self, way: Way, ends: Ends) -> Result<(), String> {
        let wanted = |error: String, words: &[&str]| {
            if words.iter().all(|words| error.contains(words)) {
                Ok(())
            } else {
                Err(format!("{way:?} ended with: {error}"))
            }
        };
        match (way, ends) {
            (Load(kind, mode), Refused(words)) => {
                let component = match kind {
                    Kind::Runner => HOSTILE_RUNNER,
                    Kind::Provider => HOSTILE_PROVIDER,
                    Kind::Toolbox => HOSTILE_TOOLBOX,
                };
                let to = format!("describe: {mode:.<14}");
                let component = patched(component, "describe: behave........", &to);
                let error = self.host.runtime.install(&component).await.unwrap_err();
                wanted(mainstay_core::chain(&error), &[words, "sha256:"])
            }
            (List(mode), Refused(words)) => {
                let runtime = &self.host.runtime;
                let info = runtime.resolve(Kind::Toolbox, "hostile").await.unwrap();
                let options = serde_json::json!({ "list": mode }).to_string();
                let listed = runtime.tools(&info.unwrap().digest, Some(options)).await;
                let error = listed.unwrap_err().to_string();
                wanted(error, &[words, "toolbox hostile-toolbox@sha256:"])
            }
            _ => {
                let (agent, prompt) = match way {
                    Decide(prompt) => ("runner", prompt.to_owned()),
                    Ask(prompt) => ("provider", prompt.to_owned()),
                    Call(tool, arguments) => {
                        let arguments = arguments.replace("{silent}", &self.port.to_string());
                        (
                            "toolbox",
                            format!("call {tool} {arguments}\nthen\nsay the end"),
                        )
                    }
                    Load(..) | List(_) => return Err(format!("{way:?} cannot end like that")),
                };
                let session = self.start(agent, &prompt).await;
                let dump = self.over(session).await;
                let tail = self.store.tail(session).await.unwrap().unwrap();
                judge(way, ends, &dump, tail.session.last_turn.as_ref())
                    .map_err(|wrong| format!("{way:?}: {wrong}"))
            }
        }
    }
}

fn config(port: u16) -> Config {
    let agent = |runner: &str, provider: &str, toolbox: bool| Agent {
        runner: runner.to_owned(),
        model: ModelRef {
            provider: provider.to_owned(),
            model: provider.to_owned(),
        },
        toolboxes: toolbox
            .then(|| Toolbox {
                alias: "hostile".to_owned(),
                options: None,
            })
            .into_iter()
            .collect(),
        steps: 8,
        ..Agent::default()
    };
    let provider = |plugin: &str| Provider {
        plugin: plugin.to_owned(),
        base_url: Some(format!("http://127.0.0.1:{port}")),
        options: None,
        models: Vec::new(),
    };
    let named = |name: &str| name.to_owned();
    Config {
        agents: BTreeMap::from([
            (named("runner"), agent("hostile", "parrot", true)),
            (named("provider"), agent("loop", "hostile", false)),
            (named("toolbox"), agent("loop", "parrot", true)),
            (named("plain"), agent("loop", "parrot", false)),
        ]),
        providers: BTreeMap::from([
            (named("parrot"), provider("parrot")),
            (named("hostile"), provider("hostile")),
        ]),
    }
}

/// What is wrong with how a turn ended, if anything is.
fn judge(way: Way, ends: Ends, dump: &Dump, turn: Option<&TurnOutcome>) -> Result<(), String> {
    let results: Vec<String> = dump
        .items
        .iter()
        .filter_map(|item| match &item.body {
            ItemBody::ToolResult(result) => Some(text_of(&result.output)),
            _ => None,
        })
        .collect();
    let told = match (ends, turn) {
        (Failed(words), Some(TurnOutcome::Failed { error })) if error.contains(words) => error,
        (Told(words), Some(TurnOutcome::Done))
            if results.len() == 1
                && results[0].contains(words)
                && said(dump).contains("the end") =>
        {
            &results[0]
        }
        (Borne, Some(TurnOutcome::Done)) => "",
        _ => return Err(format!("it ended with {turn:?} and {results:?}")),
    };
    let clean = |event: &mainstay_core::event::Record| {
        event.kind == "model.ended" && !event.data["ending"]["finished"].is_null()
    };
    if matches!((way, ends), (Ask(_), Failed(_))) && dump.events.iter().any(clean) {
        return Err("a clean end of its answer is stored".to_owned());
    }
    // Whoever is at fault is named.
    let faults = ["trapped", "went past", "broke the contract"];
    if faults.iter().any(|fault| told.contains(fault)) && !told.contains("sha256:") {
        return Err(format!("no digest is named in: {told}"));
    }
    let log: usize = dump
        .events
        .iter()
        .map(|event| event.data.to_string().len())
        .sum();
    // What goes past a limit is not kept.
    let most = if told.contains("went past") { 10 } else { 128 };
    if log > most << 10 {
        return Err(format!("it left {log} bytes in the log"));
    }
    Ok(())
}

/// All that a session's models said.
fn said(dump: &Dump) -> String {
    dump.items
        .iter()
        .filter_map(|item| match &item.body {
            ItemBody::Assistant(answer) => Some(&answer.content),
            _ => None,
        })
        .flatten()
        .filter_map(|content| match content {
            Content::Text(text) => Some(text.as_str()),
            _ => None,
        })
        .collect()
}

/// Bytes of memory that this process has.
#[cfg(target_os = "linux")]
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let kib = line.unwrap().split_whitespace().nth(1).unwrap();
    kib.parse::<u64>().unwrap() * 1024
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_1_2_4_7_every_way_to_misbehave_has_its_name_and_harms_nobody() {
    let world = World::new().await;
    let ordinary = world.start("plain", "say warm").await;
    world.over(ordinary).await;
    #[cfg(target_os = "linux")]
    let before = resident();

    let mut others = Vec::new();
    for _ in 0..OTHERS {
        others.push(
            world
                .start("plain", "slow 100 one two three four five six")
                .await,
        );
    }
    let stored = world.host.source.len();
    let wrong: Vec<String> = futures::stream::iter(HOSTILE)
        .map(|(way, ends)| world.run(*way, *ends))
        .buffer_unordered(AT_ONCE)
        .filter_map(async |ended| ended.err())
        .collect()
        .await;
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert_eq!(
        world.host.source.len(),
        stored,
        "what is refused is not stored"
    );

    for session in others {
        let dump = world.over(session).await;
        assert_eq!(said(&dump), "one two three four five six");
        let started = |kind: &str| dump.events.iter().filter(|e| e.kind == kind).count();
        assert_eq!(started("execution.started"), 1);
        assert_eq!(started("execution.succeeded"), 1);
    }
    // The host is up and has all its places for instances back: it runs as many calls side by side.
    let world = &world;
    let calls = (0..common::INSTANCES).map(|_| async move {
        let session = world.start("toolbox", "call echo {}\nthen\nsay up").await;
        assert!(said(&world.over(session).await).contains("up"));
    });
    tokio::time::timeout(DEADLINE, futures::future::join_all(calls))
        .await
        .unwrap();
    #[cfg(target_os = "linux")]
    {
        let back = async {
            while resident() > before + (100 << 20) {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        tokio::time::timeout(DEADLINE, back).await.unwrap();
    }
}

#[test]
fn the_table_holds_a_way_only_once() {
    let mut ways: Vec<String> = HOSTILE.iter().map(|(way, _)| format!("{way:?}")).collect();
    ways.sort();
    let count = ways.len();
    ways.dedup();
    assert_eq!(ways.len(), count);
    assert!(count >= 25);
}
