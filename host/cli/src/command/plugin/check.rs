//! `mainstay plugin check`: the conformance kit, asked of one component.

use std::fs;
use std::path::Path;

use mainstay_kit::{Call, Options};
use mainstay_server::strict;

use super::author::{beside, component};
use crate::access::Context;
use crate::args::author::Check;
use crate::error::{Code, Error, Result};
use crate::plugins;

pub(super) async fn check(context: &Context, args: Check) -> Result<()> {
    let file = component(&args.plugin)?;
    let bytes = plugins::read(&file).map_err(|error| unreadable(&file, &error))?;
    let options = options(&file, args)?;
    let printer = &context.printer;
    printer.dim(format!("checking {} …", file.display()));
    let report = mainstay_kit::check(&bytes, &options).await;
    let report =
        report.map_err(|error| Error::failed("the check has broken off").because(&error))?;
    if printer.json {
        printer.value(&report)?;
    } else {
        printer.line(crate::printer::tame(&report.to_string()))?;
    }
    if report.conforms {
        return Ok(());
    }
    let broken: Vec<&str> = report.broken().map(mainstay_kit::Property::name).collect();
    let one = broken[0];
    Err(Error::new(
        Code::PluginRefused,
        format!("the plugin does not conform: {}", broken.join(", ")),
    )
    .hint(format!("ask one property again with `--only {one}`")))
}

/// What the command line says, and what the folder `check` says where that says nothing.
fn options(component: &Path, args: Check) -> Result<Options> {
    let beside = beside(component);
    let or_beside = |named: Option<std::path::PathBuf>, name: &str| {
        named.or_else(|| Some(beside.join(name)).filter(|path| path.exists()))
    };
    let options = match args.options {
        Some(options) => Some(options),
        None => or_beside(None, "options.json")
            .map(|file| fs::read_to_string(&file).map_err(|error| unreadable(&file, &error)))
            .transpose()?,
    };
    if let Some(options) = &options
        && let Err(error) = serde_json::from_str::<serde_json::Value>(options)
    {
        return Err(Error::new(Code::Usage, "the plugin's options are no JSON").because(&error));
    }
    let calls = match or_beside(args.calls, "calls.jsonl") {
        Some(file) => calls(&file)?,
        None => Vec::new(),
    };
    let answers = match or_beside(args.answers, "answers") {
        Some(folder) => answers(&folder)?,
        None => Vec::new(),
    };
    Ok(Options {
        options,
        calls,
        answers,
        only: args.only,
    })
}

fn calls(file: &Path) -> Result<Vec<Call>> {
    let text = fs::read_to_string(file).map_err(|error| unreadable(file, &error))?;
    let lines = (1..).zip(text.lines());
    lines
        .filter(|(_, line)| !line.trim().is_empty())
        .map(|(n, line)| {
            strict::from_slice(line.as_bytes()).map_err(|error| {
                let place = format!("line {n} of {} is no call", file.display());
                Error::new(Code::Usage, place)
                    .cause(error)
                    .hint(r#"write {"tool": "NAME", "arguments": {…}}"#)
            })
        })
        .collect()
}

fn answers(folder: &Path) -> Result<Vec<(String, Vec<u8>)>> {
    let entries = fs::read_dir(folder).map_err(|error| unreadable(folder, &error))?;
    let mut files: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    files
        .into_iter()
        .filter(|file| file.is_file())
        .map(|file| {
            let bytes = fs::read(&file).map_err(|error| unreadable(&file, &error))?;
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            Ok((name.into_owned(), bytes))
        })
        .collect()
}

fn unreadable(path: &Path, error: &std::io::Error) -> Error {
    let code = match error.kind() {
        std::io::ErrorKind::NotFound => Code::NotFound,
        _ => Code::Failed,
    };
    Error::new(code, format!("cannot read {}", path.display())).because(error)
}
