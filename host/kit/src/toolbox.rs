//! What a toolbox promises: that each tool has the effect that it declares, and that a call ends with a
//! result or a named error whatever it is given and whatever it is denied.

use std::sync::Arc;
use std::time::Duration;

use mainstay_core::id::SessionId;
use mainstay_core::model::{Effect, ToolCall};
use mainstay_core::plugin::{
    CallError, CallRequest, Output, PluginInfo, Plugins as _, Progress, Tool, Workspace,
};
use mainstay_runtime::Runtime;
use mainstay_runtime::limits::Limits;
use tokio_util::sync::CancellationToken;

use crate::bench::{ALIAS, Bench};
use crate::cast::{Cast, Script};
use crate::input::{self, Bulk};
use crate::report::{Finding, Property, Report};
use crate::server::{Manner, Server};
use crate::stage::{self, Scene};
use crate::{Error, cuts};

/// How long a call may take that was told to stop: its second to clean up, and room for a machine that
/// is busy.
const STOPPING: Duration = Duration::from_secs(30);

/// A call that is tried.
#[derive(Clone)]
struct Try {
    tool: Tool,
    arguments: serde_json::Value,
}

impl Try {
    fn name(&self) -> String {
        let cut: String = self.arguments.to_string().chars().take(120).collect();
        format!("{}({cut})", self.tool.definition.name)
    }
}

pub(crate) async fn check(
    bench: &Bench,
    info: &Arc<PluginInfo>,
    report: &mut Report,
) -> Result<(), Error> {
    let mut traps = Finding::new(Property::NeverTraps);
    let mut lists = Finding::new(Property::ListsAlike);
    let mut pure = Finding::new(Property::Pure);
    let mut idempotent = Finding::new(Property::Idempotent);

    let options = &bench.options.options;
    let listed = bench.runtime.tools(&info.digest, options.clone()).await;
    let again = bench.other.tools(&info.digest, options.clone()).await;
    lists.case(
        "list, twice",
        match (&listed, &again) {
            (Ok(first), Ok(second)) if first == second => Ok(()),
            (Ok(_), Ok(_)) => Err("asked again, it has other tools".to_owned()),
            (Err(error), _) | (_, Err(error)) => Err(error.to_string()),
        },
    );
    report.add(lists);
    let tools = listed.unwrap_or_default();
    let tries = tries(bench, &tools, &mut traps);

    // In one workspace, as a session would: each call meets what those before it have left.
    let session = SessionId::new();
    let folder = bench.workspace(session);
    furnish(&folder)?;
    for (n, one) in tries.iter().enumerate() {
        let key = format!("key-{n}");
        let before = stage::files(&folder);
        let first = run(bench, &bench.runtime, info, session, one, &key, 0).await;
        let after = stage::files(&folder);
        traps.case(one.name(), ended(&first, Bulk::Fits));
        match one.tool.effect {
            Effect::Pure => pure.case(
                one.name(),
                unchanged("it has changed the workspace", &before, &after),
            ),
            Effect::Idempotent => {
                let second = run(bench, &bench.other, info, session, one, &key, 1).await;
                let twice = stage::files(&folder);
                let went = unchanged("the second run has changed the workspace", &after, &twice)
                    .and_then(|()| {
                        if first == second {
                            return Ok(());
                        }
                        Err(format!(
                            "the second run answers {second:?} and the first {first:?}"
                        ))
                    });
                idempotent.case(format!("{}, run twice under one key", one.name()), went);
            }
            Effect::Once => {}
        }
    }

    for one in &tries {
        for (what, bulk, arguments) in input::wrong_arguments(&one.arguments) {
            let session = SessionId::new();
            let mut request = request(bench, session, one, "key", 0);
            request.call.arguments = arguments;
            furnish(&bench.workspace(session))?;
            let went = bench.runtime.call(&info.digest, request).await;
            let name = &one.tool.definition.name;
            traps.case(format!("{name} with {what}"), ended(&went, bulk));
        }
    }
    let unheard_of = Try {
        tool: Tool {
            definition: mainstay_core::model::ToolDefinition {
                name: "unheard-of".to_owned(),
                description: String::new(),
                input_schema: "{}".to_owned(),
            },
            effect: Effect::Pure,
        },
        arguments: serde_json::json!({}),
    };
    let went = run(bench, &bench.runtime, info, session, &unheard_of, "key", 0).await;
    traps.case("a tool that it does not have", ended(&went, Bulk::Fits));

    report.add(traps);
    report.add(pure);
    report.add(idempotent);
    if bench.options.asks(&[Property::DeniedIsNamed]) {
        report.add(denied(bench, info, &tries).await?);
    }
    if bench.options.asks(&[Property::TakesAnyAnswer]) {
        report.add(answers(bench, info, &tries).await?);
    }
    if bench.options.asks(&[Property::Stops]) {
        report.add(stops(bench, info, &tries).await?);
    }
    if bench.options.asks(&[Property::WithinLimits]) {
        report.add(limits(bench, info, &tries).await?);
    }
    let calls: Vec<Vec<ToolCall>> = tries
        .iter()
        .filter(|one| one.tool.effect != Effect::Once)
        .enumerate()
        .map(|(n, one)| {
            vec![ToolCall {
                id: format!("call-{n}"),
                tool: one.tool.definition.name.clone(),
                arguments: one.arguments.to_string(),
            }]
        })
        .take(ROUNDS)
        .collect();
    let script = Script {
        rounds: calls,
        fails: None,
    };
    // A call that is settled twice may tell so in other words; what it leaves must be the same.
    let scenes = [Scene {
        acts: true,
        ..Scene::new("calls of its tools", script)
    }];
    let make = |script: &Script| Cast::new(&bench.runtime, info, script.clone());
    for finding in cuts::check(bench, &scenes, &make).await? {
        report.add(finding);
    }
    Ok(())
}

/// Calls in the session that is cut: each is two commits, and each commit four sessions.
const ROUNDS: usize = 8;

/// The author's calls in their order, and one of each tool that has none.
fn tries(bench: &Bench, tools: &[Tool], traps: &mut Finding) -> Vec<Try> {
    let mut all = Vec::new();
    for call in &bench.options.calls {
        match tools.iter().find(|tool| tool.definition.name == call.tool) {
            Some(tool) => all.push(Try {
                tool: tool.clone(),
                arguments: call.arguments.clone(),
            }),
            None => traps.case(
                format!("the given call of `{}`", call.tool),
                Err("the toolbox has no such tool".to_owned()),
            ),
        }
    }
    for tool in tools {
        if !bench
            .options
            .calls
            .iter()
            .any(|call| call.tool == tool.definition.name)
        {
            all.push(Try {
                tool: tool.clone(),
                arguments: input::arguments(&tool.definition.input_schema),
            });
        }
    }
    all
}

fn furnish(folder: &std::path::Path) -> Result<(), Error> {
    input::furnish(folder).map_err(|error| Error::new("write a workspace's first files", error))
}

fn request(bench: &Bench, session: SessionId, one: &Try, key: &str, earlier: u32) -> CallRequest {
    CallRequest {
        session,
        call: ToolCall {
            id: "call-1".to_owned(),
            tool: one.tool.definition.name.clone(),
            arguments: one.arguments.to_string(),
        },
        effect: one.tool.effect,
        idempotency_key: key.to_owned(),
        earlier_runs: earlier,
        options: bench.options.options.clone(),
        toolbox: ALIAS.to_owned(),
        cancel: CancellationToken::new(),
        progress: Progress(Arc::new(|_| {})),
    }
}

type Called = Result<Vec<Output>, CallError>;

async fn run(
    bench: &Bench,
    runtime: &Runtime,
    info: &PluginInfo,
    session: SessionId,
    one: &Try,
    key: &str,
    earlier: u32,
) -> Called {
    let request = request(bench, session, one, key, earlier);
    runtime.call(&info.digest, request).await
}

/// Whether a call ended as the contract has it.
fn ended(went: &Called, bulk: Bulk) -> Result<(), String> {
    match went {
        Err(CallError::Crashed(text)) if !(bulk == Bulk::Huge && is_limit(text)) => {
            Err(text.clone())
        }
        _ => Ok(()),
    }
}

/// Whether the host named a limit: a crashed call has no more than words.
fn is_limit(text: &str) -> bool {
    text.contains("went past the")
}

fn unchanged(words: &str, before: &stage::Files, after: &stage::Files) -> Result<(), String> {
    match stage::difference(before, after) {
        Some(difference) => Err(format!("{words}: {difference}")),
        None => Ok(()),
    }
}

/// Without a grant, and with half of one.
async fn denied(bench: &Bench, info: &PluginInfo, tries: &[Try]) -> Result<Finding, Error> {
    let mut finding = Finding::new(Property::DeniedIsNamed);
    for (words, workspace) in [
        ("without grants", Workspace::None),
        ("with a workspace to read alone", Workspace::Read),
    ] {
        let runtime = bench.another(Limits::default(), workspace)?;
        for one in tries {
            let session = SessionId::new();
            let folder = bench.workspace(session);
            furnish(&folder)?;
            let before = stage::files(&folder);
            let went = run(bench, &runtime, info, session, one, "key", 0).await;
            let after = stage::files(&folder);
            let went = ended(&went, Bulk::Fits)
                .and_then(|()| unchanged("it has changed the workspace", &before, &after));
            finding.case(format!("{} {words}", one.name()), went);
        }
    }
    Ok(finding)
}

/// With each kind of answer to what it fetches. A call that asks no server is no case.
async fn answers(bench: &Bench, info: &PluginInfo, tries: &[Try]) -> Result<Finding, Error> {
    let mut finding = Finding::new(Property::TakesAnyAnswer);
    if info.http.is_empty() {
        return Ok(finding);
    }
    let mut at_once = Vec::new();
    for (words, manner, patience) in [
        ("answered at once", Manner::AtOnce, STOPPING),
        ("answered slowly", Manner::Slowly, STOPPING),
        ("answered with status 500", Manner::Fails, STOPPING),
        ("answered without end", Manner::Endlessly, CUT_OFF),
        ("not answered", Manner::Never, CUT_OFF),
    ] {
        let server = Server::start(manner).await?;
        let runtime = bench.reaching(info, server.address, Limits::default(), patience)?;
        for (n, one) in tries.iter().enumerate() {
            let session = SessionId::new();
            furnish(&bench.workspace(session))?;
            let before = server.requests();
            let call = run(bench, &runtime, info, session, one, "key", 0);
            let Ok(called) = tokio::time::timeout(ANSWERED, call).await else {
                let went = Err(format!("it runs on for {} s", ANSWERED.as_secs()));
                finding.case(format!("{}, {words}", one.name()), went);
                continue;
            };
            if server.requests() == before {
                continue;
            }
            let mut went = ended(&called, Bulk::Fits);
            match manner {
                Manner::AtOnce => at_once.push((n, called.is_ok())),
                Manner::Slowly if at_once.contains(&(n, true)) && went.is_ok() => {
                    went = called.map(drop).map_err(|error| {
                        format!(
                            "answered at once it has a result, answered slowly it has none: {error}"
                        )
                    });
                }
                _ => {}
            }
            finding.case(format!("{}, {words}", one.name()), went);
        }
    }
    Ok(finding)
}

/// What a request may take whose answer has no end.
const CUT_OFF: Duration = Duration::from_secs(1);
/// How long a call may take that waits for a server: far more than requests may.
const ANSWERED: Duration = Duration::from_secs(120);

/// Told to stop before it begins, while it runs, and while it waits for a server.
async fn stops(bench: &Bench, info: &PluginInfo, tries: &[Try]) -> Result<Finding, Error> {
    let mut finding = Finding::new(Property::Stops);
    let runtime = bench.another(stopping(), Workspace::ReadWrite)?;
    for one in tries {
        for (words, after) in [
            ("told to stop before it begins", None),
            ("told to stop after 5 ms", Some(Duration::from_millis(5))),
        ] {
            let session = SessionId::new();
            furnish(&bench.workspace(session))?;
            let request = request(bench, session, one, "key", 0);
            let cancel = request.cancel.clone();
            let telling = tokio::spawn(async move {
                if let Some(after) = after {
                    tokio::time::sleep(after).await;
                }
                cancel.cancel();
            });
            if after.is_none() {
                let _ = telling.await;
            }
            let call = runtime.call(&info.digest, request);
            let went = match tokio::time::timeout(STOPPING, call).await {
                Ok(went) => ended(&went, Bulk::Fits),
                Err(_) => Err(format!("it runs on for {} s", STOPPING.as_secs())),
            };
            finding.case(format!("{}, {words}", one.name()), went);
        }
    }
    if !info.http.is_empty() {
        stops_waiting(bench, info, tries, &mut finding).await?;
    }
    Ok(finding)
}

/// Told to stop once a server has its request, which is never answered.
async fn stops_waiting(
    bench: &Bench,
    info: &PluginInfo,
    tries: &[Try],
    finding: &mut Finding,
) -> Result<(), Error> {
    let server = Server::start(Manner::Never).await?;
    let runtime = bench.reaching(info, server.address, stopping(), ANSWERED)?;
    for one in tries {
        let session = SessionId::new();
        furnish(&bench.workspace(session))?;
        let request = request(bench, session, one, "key", 0);
        let cancel = request.cancel.clone();
        let before = server.requests();
        let call = runtime.call(&info.digest, request);
        tokio::pin!(call);
        let asked = async {
            while server.requests() == before {
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
        };
        tokio::select! {
            // It fetches nothing.
            _ = &mut call => continue,
            () = asked => cancel.cancel(),
        }
        let went = match tokio::time::timeout(STOPPING, call).await {
            Ok(went) => ended(&went, Bulk::Fits),
            Err(_) => Err(format!("it runs on for {} s", STOPPING.as_secs())),
        };
        finding.case(
            format!("{}, told to stop while it fetches", one.name()),
            went,
        );
    }
    Ok(())
}

/// A second of CPU is what it has to clean up.
fn stopping() -> Limits {
    let mut limits = Limits::default();
    limits.toolbox.call.cpu = Duration::from_secs(1);
    limits
}

/// Under limits that leave it nothing, it must fail by their names.
async fn limits(bench: &Bench, info: &PluginInfo, tries: &[Try]) -> Result<Finding, Error> {
    let mut finding = Finding::new(Property::WithinLimits);
    let mut memory = Limits::default();
    memory.toolbox.call.memory_bytes = 64 << 10;
    let mut output = Limits::default();
    output.toolbox.text_bytes = 0;
    output.toolbox.media_bytes = 0;
    let mut cpu = Limits::default();
    cpu.toolbox.call.cpu = Duration::ZERO;
    for (name, limits) in [
        ("64 KiB of memory", memory),
        ("no output", output),
        ("no CPU time", cpu),
    ] {
        let runtime = bench.another(limits, Workspace::ReadWrite)?;
        for one in tries {
            let session = SessionId::new();
            furnish(&bench.workspace(session))?;
            let went = run(bench, &runtime, info, session, one, "key", 0).await;
            finding.case(
                format!("{} with {name}", one.name()),
                ended(&went, Bulk::Huge),
            );
        }
    }
    Ok(finding)
}
