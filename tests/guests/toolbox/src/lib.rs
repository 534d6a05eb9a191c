//! A toolbox that misbehaves, a tool for each way, and some tools that behave, for tests of the rest.
//!
//! | tool | effect | what it does |
//! |---|---|---|
//! | `echo`, `echo_idempotent`, `echo_once` | as named; `echo` is pure | gives its arguments, key and earlier runs as JSON |
//! | `trap`, `panic`, `spin`, `allocate`, `grow`, `recurse` | pure | what they say |
//! | `sleep`, `sleep_once` | idempotent, once | runs until it is told to stop, then says that it was |
//! | `stubborn` | once | asks whether it is to stop and never does |
//! | `huge_output`, `huge_media`, `huge_error` | pure | results past the limits |
//! | `long_output`, `long_error` | pure | results of 100 KB, which are more than a model is shown |
//! | `no_utf8`, `longer_than_memory` | pure | a text that is none |
//! | `leak` | pure | opens the workspace and never closes it |
//! | `fail`, `deny`, `reject` | once | answers with `failed`, `denied`, `invalid-arguments` |
//! | `fetch` | pure | sends `method` to `url` and gives the answer |
//! | `log_flood`, `progress_flood` | pure | writes more than allowed, then succeeds |
//! | `workspace` | pure | lists the workspace, or tries to leave it by `path` |
//!
//! The option `list` makes `list` itself misbehave: `error`, `trap`, `bad-name`, `bad-schema`,
//! `duplicate`, `many`, `spin`, `huge`, `no-utf8`. `describe` misbehaves as the bytes of [`DESCRIBE`]
//! say: `trap`, `spin`, `huge`, `no-utf8`.

use mainstay_guest::http::FetchErrorText;
use mainstay_guest::manifest::{self, Scheme};
use mainstay_guest::toolbox::{
    CallError, CallRequest, Effect, Host, NewMedia, Output, Request, Tool, ToolboxManifest,
    WorkspaceAccess,
};
use mainstay_guest::{Toolbox, log};
use serde::Deserialize;

struct Hostile;

/// What `describe` does: `behave`, or a way to misbehave. Tests patch the component's bytes.
static DESCRIBE: [u8; 24] = *b"describe: behave........";

/// The way, without what fills it up.
fn described() -> &'static str {
    let mode: &'static [u8] = std::hint::black_box(&DESCRIBE);
    let mode = std::str::from_utf8(mode).unwrap_or_default();
    mode.trim_start_matches("describe: ").trim_end_matches('.')
}

/// A text that is none.
fn no_utf8() -> String {
    // SAFETY: it is handed to the host and read by nobody here. The host must refuse it.
    unsafe { String::from_utf8_unchecked(vec![b'a', 0xff, 0xfe]) }
}

/// A text that is said to be longer than the memory.
#[cfg(target_arch = "wasm32")]
fn longer_than_memory() -> String {
    let length = 0x7000_0000;
    // SAFETY: none of it is read here. The host must refuse it before it is given back.
    unsafe { String::from_raw_parts(std::ptr::without_provenance_mut(1024), length, length) }
}

#[cfg(not(target_arch = "wasm32"))]
fn longer_than_memory() -> String {
    std::process::abort()
}

mainstay_guest::toolbox!(Hostile);

#[derive(Default, Deserialize)]
struct Options {
    list: Option<String>,
}

#[derive(Deserialize)]
struct Fetch {
    url: String,
    method: Option<String>,
}

#[derive(Deserialize)]
struct Path {
    path: Option<String>,
}

/// A schema that takes any object.
const ANY: &str = r#"{"type":"object"}"#;

impl Toolbox for Hostile {
    const FILES: bool = true;

    fn manifest() -> ToolboxManifest {
        let mut manifest = manifest::toolbox(
            "hostile-toolbox",
            env!("CARGO_PKG_VERSION"),
            "Misbehaves, a tool for each way",
        )
        .options_schema(r#"{"type":"object","properties":{"list":{"type":"string"}}}"#);
        manifest.http = vec![
            manifest::http_any(Scheme::Https, &[]),
            manifest::http_any(Scheme::Http, &[]),
        ];
        manifest.workspace = WorkspaceAccess::Read;
        match described() {
            "trap" => trap(),
            "spin" => spin(),
            "huge" => manifest.plugin.summary = "x".repeat(8 * 1024 * 1024),
            "no-utf8" => manifest.plugin.summary = no_utf8(),
            _ => {}
        }
        manifest
    }

    fn tools(options: Option<&str>) -> Result<Vec<Tool>, String> {
        let options: Options = match options {
            Some(options) => serde_json::from_str(options).map_err(|error| error.to_string())?,
            None => Options::default(),
        };
        let tool = |name: &str, effect| Tool::new(name, effect, format!("Test tool `{name}`"), ANY);
        let mut tools = vec![
            tool("echo", Effect::Pure),
            tool("echo_idempotent", Effect::Idempotent),
            tool("echo_once", Effect::Once),
            tool("sleep", Effect::Idempotent),
            tool("sleep_once", Effect::Once),
            tool("stubborn", Effect::Once),
            tool("fail", Effect::Once),
            tool("deny", Effect::Once),
            tool("reject", Effect::Once),
            Tool::new(
                "fetch",
                Effect::Pure,
                "Sends a request",
                r#"{"type":"object","properties":{"url":{"type":"string"},"method":{"type":"string"}},"required":["url"]}"#,
            ),
            Tool::new(
                "workspace",
                Effect::Pure,
                "Lists the workspace, or reads a file by its path as it is",
                r#"{"type":"object","properties":{"path":{"type":"string"}}}"#,
            ),
        ];
        for name in [
            "trap",
            "panic",
            "spin",
            "allocate",
            "grow",
            "recurse",
            "huge_output",
            "huge_media",
            "huge_error",
            "long_output",
            "long_error",
            "no_utf8",
            "longer_than_memory",
            "leak",
            "log_flood",
            "progress_flood",
        ] {
            tools.push(tool(name, Effect::Pure));
        }
        match options.list.as_deref() {
            Some("error") => return Err("as the options say".to_owned()),
            Some("trap") => trap(),
            Some("spin") => spin(),
            Some("huge") => tools.push(Tool::new(
                "huge",
                Effect::Pure,
                "x".repeat(8 * 1024 * 1024),
                ANY,
            )),
            Some("no-utf8") => tools.push(Tool::new("none", Effect::Pure, no_utf8(), ANY)),
            Some("bad-name") => tools.push(tool("not a name!", Effect::Pure)),
            Some("bad-schema") => {
                tools.push(Tool::new("bad", Effect::Pure, "Has no schema", "no schema"));
            }
            Some("duplicate") => tools.push(tool("echo", Effect::Pure)),
            Some("many") => {
                tools.extend((0..300).map(|number| tool(&format!("t{number}"), Effect::Pure)));
            }
            _ => {}
        }
        Ok(tools)
    }

    fn call(call: &CallRequest, host: &dyn Host) -> Result<Vec<Output>, CallError> {
        match call.tool.as_str() {
            "echo" | "echo_idempotent" | "echo_once" => Ok(echo(call)),
            "trap" => trap(),
            "panic" => panic!("as the call says"),
            "spin" => spin(),
            "allocate" => allocate(),
            "grow" => grow(),
            "recurse" => Ok(Output::text(recurse(0).to_string())),
            "sleep" | "sleep_once" => {
                while !host.cancelled() {
                    std::hint::spin_loop();
                }
                Err(CallError::Cancelled("stopped when told to".to_owned()))
            }
            "stubborn" => loop {
                let _ = host.cancelled();
            },
            "fail" => Err(CallError::Failed("as the call says".to_owned())),
            "deny" => Err(CallError::Denied("as the call says".to_owned())),
            "reject" => Err(CallError::InvalidArguments("as the call says".to_owned())),
            "huge_output" => Ok(Output::text("x".repeat(2 * 1024 * 1024))),
            "huge_media" => Ok(vec![Output::Media(NewMedia {
                media_type: "application/octet-stream".to_owned(),
                name: None,
                data: vec![0; 40 * 1024 * 1024],
            })]),
            "huge_error" => Err(CallError::Failed("e".repeat(8 * 1024 * 1024))),
            "long_output" => Ok(Output::text("o".repeat(100_000))),
            "long_error" => Err(CallError::Failed("e".repeat(100_000))),
            "no_utf8" => Ok(Output::text(no_utf8())),
            "longer_than_memory" => Ok(Output::text(longer_than_memory())),
            "leak" => loop {
                match host.workspace() {
                    Some(opened) => std::mem::forget(opened),
                    None => return Err(CallError::Denied("no workspace".to_owned())),
                }
            },
            "fetch" => fetch(call.arguments()?, host),
            "log_flood" => {
                for line in 0..10_000 {
                    log::info(format!("{line} {}", "x".repeat(10_000)));
                }
                Ok(Output::text("done"))
            }
            "progress_flood" => {
                for step in 0..10_000 {
                    host.progress(&format!("step {step}"));
                }
                Ok(Output::text("done"))
            }
            "workspace" => workspace(call.arguments()?, host),
            _ => Err(call.unknown_tool()),
        }
    }
}

fn echo(call: &CallRequest) -> Vec<Output> {
    let arguments: serde_json::Value = serde_json::from_str(&call.arguments).unwrap_or_default();
    Output::text(
        serde_json::json!({
            "arguments": arguments,
            "key": call.idempotency_key,
            "earlier_runs": call.earlier_runs,
        })
        .to_string(),
    )
}

fn fetch(arguments: Fetch, host: &dyn Host) -> Result<Vec<Output>, CallError> {
    let method = arguments.method.unwrap_or_else(|| "GET".to_owned());
    match host.fetch(&Request::new(method, arguments.url)) {
        Ok(response) => Ok(Output::text(format!(
            "HTTP {}\n{}",
            response.status,
            String::from_utf8_lossy(&response.body)
        ))),
        Err(error) => Err(CallError::Failed(FetchErrorText(&error).to_string())),
    }
}

fn workspace(arguments: Path, host: &dyn Host) -> Result<Vec<Output>, CallError> {
    let Some(workspace) = host.workspace() else {
        return Err(CallError::Denied("no workspace".to_owned()));
    };
    let failed = |error: mainstay_guest::workspace::Error| CallError::Failed(error.to_string());
    match arguments.path {
        // Not normalised: what keeps the guest inside is the host.
        Some(path) => {
            let data = workspace.read(&path, 1024 * 1024).map_err(failed)?;
            Ok(Output::text(String::from_utf8_lossy(&data)))
        }
        None => {
            let entries = workspace.list("").map_err(failed)?;
            let names: Vec<String> = entries.into_iter().map(|entry| entry.name).collect();
            Ok(Output::text(names.join("\n")))
        }
    }
}

fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort()
}

fn grow() -> ! {
    // More than any limit, at once.
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::memory_grow::<0>(60_000);
    std::process::abort()
}

fn spin() -> ! {
    loop {
        std::hint::black_box(());
    }
}

fn allocate() -> ! {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(std::hint::black_box(vec![1; 1024 * 1024]));
    }
}

#[expect(
    unconditional_recursion,
    reason = "the stack's limit is what is tested"
)]
fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    recurse(depth + 1) + frame[0]
}
