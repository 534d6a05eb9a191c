//! A toolbox that breaks one promise, named by its option `breaks`, and is sound without one. For tests
//! of what finds such plugins out. It has three tools: `record` appends a line to a file once per key,
//! `count` counts the file's lines, and `look` says with which status a server answers.
//!
//! | `breaks` | what it does |
//! |---|---|
//! | `idempotent` | `record` appends again for the same key |
//! | `answer` | `record` answers otherwise when it runs again |
//! | `pure` | `count` notes in a file that it counted |
//! | `denied` | panics where there is no workspace |
//! | `arguments` | panics at arguments that it cannot read |
//! | `stops` | runs on when it is told to stop |
//! | `status` | `look` panics at a status that is none of success |
//! | `body` | `look` panics where the body does not come whole |
//! | `waits` | `look` asks again and again until it is answered |

use mainstay_guest::http::FetchErrorText;
use mainstay_guest::toolbox::{
    CallError, CallRequest, Effect, FetchError, Host, Output, Request, Tool, ToolboxManifest,
    WorkspaceAccess,
};
use mainstay_guest::{Toolbox, manifest};
use serde::Deserialize;

struct Broken;

mainstay_guest::toolbox!(Broken);

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Options {
    breaks: String,
}

#[derive(Deserialize)]
struct Record {
    line: String,
}

/// The file.
const FILE: &str = "records.txt";
/// Bytes of it that are read.
const LIMIT: u64 = 64 << 20;

impl Toolbox for Broken {
    const FILES: bool = true;

    fn manifest() -> ToolboxManifest {
        let mut manifest = manifest::toolbox(
            "broken-toolbox",
            env!("CARGO_PKG_VERSION"),
            "Breaks one promise",
        )
        .options_schema(r#"{"type":"object","properties":{"breaks":{"type":"string"}}}"#);
        manifest.workspace = WorkspaceAccess::ReadWrite;
        manifest.http = vec![manifest::http_any(manifest::Scheme::Https, &["GET"])];
        manifest
    }

    fn tools(_: Option<&str>) -> Result<Vec<Tool>, String> {
        Ok(vec![
            Tool::new(
                "record",
                Effect::Idempotent,
                "Appends a line, once",
                r#"{"type":"object","properties":{"line":{"type":"string"}},"required":["line"]}"#,
            ),
            Tool::new(
                "count",
                Effect::Pure,
                "Counts the lines",
                r#"{"type":"object"}"#,
            ),
            Tool::new(
                "look",
                Effect::Pure,
                "Asks a server",
                r#"{"type":"object"}"#,
            ),
        ])
    }

    fn call(call: &CallRequest, host: &dyn Host) -> Result<Vec<Output>, CallError> {
        let Options { breaks } = call.options()?;
        while breaks == "stops" && host.cancelled() {
            std::hint::black_box(());
        }
        if call.tool == "look" {
            return look(&breaks, host);
        }
        let Some(workspace) = host.workspace() else {
            assert_ne!(breaks, "denied", "there is no workspace");
            return Err(CallError::Denied("there is no workspace".to_owned()));
        };
        let failed = |error: mainstay_guest::workspace::Error| CallError::Failed(error.to_string());
        let held = match workspace.stat(FILE).map_err(failed)? {
            Some(_) => workspace.read(FILE, LIMIT).map_err(failed)?,
            None => Vec::new(),
        };
        let held = String::from_utf8_lossy(&held).into_owned();
        match call.tool.as_str() {
            "record" => {
                let read: Result<Record, CallError> = call.arguments();
                if breaks == "arguments" {
                    assert!(read.is_ok(), "the arguments cannot be read");
                }
                let mark = format!("{}: ", call.idempotency_key);
                let known = held.lines().any(|line| line.starts_with(&mark));
                let line = read?.line.replace('\n', " ");
                if !known || breaks == "idempotent" {
                    let all = format!("{held}{mark}{line}\n");
                    workspace.write(FILE, all.as_bytes()).map_err(failed)?;
                }
                Ok(Output::text(match known && breaks == "answer" {
                    true => "It was there.",
                    false => "It is there.",
                }))
            }
            "count" => {
                if breaks == "pure" {
                    let note = workspace.write("counted.txt", call.id.as_bytes());
                    note.map_err(failed)?;
                }
                Ok(Output::text(held.lines().count().to_string()))
            }
            _ => Err(call.unknown_tool()),
        }
    }
}

fn look(breaks: &str, host: &dyn Host) -> Result<Vec<Output>, CallError> {
    let request = Request::get("https://broken.invalid/page".to_owned());
    let mut answer = host.fetch(&request);
    while breaks == "waits" && matches!(answer, Err(FetchError::Stopped(_))) {
        answer = host.fetch(&request);
    }
    match answer {
        Ok(answer) => {
            let success = (200..300).contains(&answer.status);
            assert!(success || breaks != "status", "the page is there");
            Ok(Output::text(answer.status.to_string()))
        }
        Err(error) => {
            let cut = matches!(error, FetchError::Stopped(_));
            assert!(!cut || breaks != "body", "the page comes whole");
            Err(CallError::Failed(FetchErrorText(&error).to_string()))
        }
    }
}

#[cfg(test)]
mod tests {
    use mainstay_guest::testing::{self, Files, Host};

    use super::*;

    #[test]
    fn without_an_option_it_records_once() {
        let host = Host::new().with_files(Files::new(&[]));
        let call = testing::call("record", Effect::Idempotent, r#"{"line":"a"}"#);
        let first = Broken::call(&call, &host).unwrap();
        assert_eq!(Broken::call(&call, &host).unwrap(), first);
        assert_eq!(host.files().unwrap().text(FILE).unwrap(), "key-1: a\n");
    }
}
