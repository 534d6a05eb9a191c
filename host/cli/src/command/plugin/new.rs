//! `mainstay plugin new`: a plugin that builds, conforms and does a little, to be changed.

use std::fs;
use std::path::{Path, PathBuf};

use mainstay_core::plugin::Kind;

use super::author::{check_name, checkout, is_checkout, word};
use crate::access::Context;
use crate::args::author::{Lang, New};
use crate::error::{Code, Error, Result};

macro_rules! template {
    ($path:literal) => {
        include_str!(concat!("../../../templates/", $path))
    };
}
pub(super) use template;

/// Files of every plugin in Rust: where they go, and what they hold.
const RUST: &[(&str, &str)] = &[
    ("Cargo.toml", template!("rust/Cargo.toml.txt")),
    (
        "rust-toolchain.toml",
        template!("rust/rust-toolchain.toml.txt"),
    ),
    (".gitignore", template!("rust/gitignore.txt")),
    ("README.md", template!("rust/README.md.txt")),
];

/// Files of one kind in Rust.
fn rust(kind: Kind) -> &'static [(&'static str, &'static str)] {
    match kind {
        Kind::Runner => &[
            ("src/lib.rs", template!("rust/runner/lib.rs.txt")),
            ("src/tests.rs", template!("rust/runner/tests.rs.txt")),
        ],
        Kind::Provider => &[
            ("src/lib.rs", template!("rust/provider/lib.rs.txt")),
            ("src/tests.rs", template!("rust/provider/tests.rs.txt")),
            (
                "check/answers/stream.jsonl",
                template!("rust/provider/check/answers/stream.jsonl"),
            ),
        ],
        Kind::Toolbox => &[
            ("src/lib.rs", template!("rust/toolbox/lib.rs.txt")),
            ("src/tests.rs", template!("rust/toolbox/tests.rs.txt")),
            (
                "check/calls.jsonl",
                template!("rust/toolbox/check/calls.jsonl"),
            ),
        ],
    }
}

/// What `README.md` says of a kind besides.
fn more(kind: Kind) -> &'static str {
    match kind {
        Kind::Runner => {
            "An agent uses it once `mainstay.toml` names it as its `runner`. What it needs from step to step is its\n\
             `State`: nothing that it holds in memory outlives a decision."
        }
        Kind::Provider => {
            "`check/answers` holds answers of the server, as it sends them. `mainstay plugin check` cuts each at every\n\
             byte; add some that yours has sent."
        }
        Kind::Toolbox => {
            "`check/calls.jsonl` holds calls that `mainstay plugin check` makes, in their order, in one workspace. A tool\n\
             without a call there is called with arguments made from its schema."
        }
    }
}

pub(super) fn new(context: &Context, args: &New) -> Result<()> {
    check_name(&args.name)?;
    let folder = PathBuf::from(&args.name);
    if folder.exists() {
        return Err(Error::new(
            Code::Conflict,
            format!("{} is there already", folder.display()),
        )
        .hint("give the plugin another name, or remove that folder"));
    }
    let files = match args.lang {
        Lang::Rust => rust_files(args)?,
        Lang::Js | Lang::Python => super::foreign::files(args)?,
    };
    for (path, text) in &files {
        write(&folder.join(path), text)?;
    }
    let printer = &context.printer;
    if printer.json {
        let paths: Vec<String> = files.iter().map(|(path, _)| path.clone()).collect();
        printer.value(&serde_json::json!({ "folder": folder, "files": paths }))?;
    } else {
        printer.line(folder.display())?;
        printer.note(format!(
            "a {} in {}: go on with `cd {}`, `mainstay plugin build` and `mainstay plugin check`",
            args.kind,
            folder.display(),
            folder.display()
        ));
    }
    Ok(())
}

fn write(path: &Path, text: &str) -> Result<()> {
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(path, text));
    written
        .map_err(|error| Error::failed(format!("cannot write {}", path.display())).because(&error))
}

fn rust_files(args: &New) -> Result<Vec<(String, String)>> {
    let sdk = sdk(args.sdk.as_deref())?;
    let dependency = match &sdk {
        Some(folder) => {
            let path = serde_json::Value::String(folder.to_string_lossy().into_owned());
            format!("{{ path = {path} }}")
        }
        None => format!("{:?}", env!("CARGO_PKG_VERSION")),
    };
    let mut files: Vec<(String, String)> = RUST
        .iter()
        .chain(rust(args.kind))
        .map(|(path, text)| {
            let text = text
                .replace("{{more}}", more(args.kind))
                .replace("{{sdk}}", &dependency);
            ((*path).to_owned(), fill(&text, args))
        })
        .collect();
    // The versions that the SDK is tested with, and no look-up for others.
    let lock = sdk.and_then(|sdk| fs::read_to_string(sdk.parent()?.join("Cargo.lock")).ok());
    if let Some(lock) = lock {
        files.push(("Cargo.lock".to_owned(), lock));
    }
    Ok(files)
}

/// A template with the plugin's own words.
pub(super) fn fill(text: &str, args: &New) -> String {
    text.replace("{{name}}", &args.name)
        .replace("{{kind}}", word(args.kind))
}

/// The folder of the SDK; `None` for the released one.
fn sdk(named: Option<&Path>) -> Result<Option<PathBuf>> {
    let found = match named {
        Some(named) => {
            if !named.join("Cargo.toml").is_file() {
                return Err(Error::new(
                    Code::NotFound,
                    format!("{} is not the crate mainstay-guest", named.display()),
                )
                .hint("name the folder `guest-sdk` of a checkout"));
            }
            Some(named.to_owned())
        }
        None => std::env::current_dir()
            .ok()
            .and_then(|here| {
                here.ancestors()
                    .find(|up| is_checkout(up))
                    .map(Path::to_owned)
            })
            .or_else(checkout)
            .map(|checkout| checkout.join("guest-sdk")),
    };
    found
        .map(|folder| {
            fs::canonicalize(&folder).map_err(|error| {
                Error::failed(format!("cannot open {}", folder.display())).because(&error)
            })
        })
        .transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_leave_nothing_to_fill_in() {
        for kind in [Kind::Runner, Kind::Provider, Kind::Toolbox] {
            let args = New {
                kind,
                lang: Lang::Rust,
                sdk: None,
                name: "my-own-2".to_owned(),
            };
            for (path, text) in rust_files(&args).unwrap() {
                assert!(!text.contains("{{"), "{path}: {text}");
            }
            assert_eq!(
                fill("{{name}} {{kind}}", &args),
                format!("my-own-2 {}", word(kind))
            );
        }
    }
}
