//! Plugins in other languages than Rust: what a new one holds, and how it becomes a component. A new
//! one is the shipped runner of its language under another name.

use std::path::{Path, PathBuf};

use mainstay_core::plugin::Kind;
use mainstay_guest_build::{Foreign, Language};

use super::author::{Folder, Source, checkout};
use super::build::told;
use super::new::{fill, template};
use crate::args::author::{Lang, New};
use crate::error::{Code, Error, Result};

macro_rules! wit {
    ($file:literal) => {
        include_str!(concat!("../../../../../wit/0.1.0/", $file))
    };
}

/// The contract, for compilers that read it.
const WIT: &[(&str, &str)] = &[
    ("wit/history.wit", wit!("history.wit")),
    ("wit/http.wit", wit!("http.wit")),
    ("wit/manifest.wit", wit!("manifest.wit")),
    ("wit/provider.wit", wit!("provider.wit")),
    ("wit/runner.wit", wit!("runner.wit")),
    ("wit/toolbox.wit", wit!("toolbox.wit")),
    ("wit/types.wit", wit!("types.wit")),
    ("wit/worlds.wit", wit!("worlds.wit")),
];

macro_rules! shipped {
    ($file:literal) => {
        include_str!(concat!("../../../../../plugins/", $file))
    };
}

/// Files of a runner in JavaScript.
const JS: &[(&str, &str)] = &[
    ("package.json", shipped!("loop-js/package.json")),
    ("package-lock.json", shipped!("loop-js/package-lock.json")),
    (".gitignore", shipped!("loop-js/.gitignore")),
    ("README.md", template!("js/README.md.txt")),
    ("plugin.js", shipped!("loop-js/plugin.js")),
];

/// Files of a runner in Python.
const PYTHON: &[(&str, &str)] = &[
    ("pyproject.toml", shipped!("loop-python/pyproject.toml")),
    ("requirements.txt", shipped!("loop-python/requirements.txt")),
    (".gitignore", shipped!("loop-python/.gitignore")),
    ("README.md", template!("python/README.md.txt")),
    ("plugin.py", shipped!("loop-python/plugin.py")),
];

/// The files of a new plugin.
pub(super) fn files(args: &New) -> Result<Vec<(String, String)>> {
    let (files, language, shipped) = match args.lang {
        Lang::Js => (JS, "JavaScript", "loop-js"),
        Lang::Python | Lang::Rust => (PYTHON, "Python", "loop-python"),
    };
    if args.kind != Kind::Runner {
        return Err(Error::new(
            Code::Usage,
            format!("there is no {} in {language} to begin with, only a runner", args.kind),
        )
        .hint(
            "begin it with `--lang rust`; or begin a runner in this language, and change its world, \
             in the file that names it, and its exports",
        ));
    }
    Ok(files
        .iter()
        .map(|(path, text)| {
            let text = text.replace(shipped, &args.name);
            ((*path).to_owned(), fill(&text, args))
        })
        .chain(
            WIT.iter()
                .map(|(path, text)| ((*path).to_owned(), (*text).to_owned())),
        )
        .collect())
}

/// Builds a plugin into `file`. Where its folder has no compiler, one is installed below `home`.
pub(super) fn build(folder: &Folder, home: PathBuf, file: &Path) -> Result<()> {
    let own = folder.path.join("wit");
    let wit = match checkout() {
        Some(checkout) if !own.is_dir() => checkout.join("wit/0.1.0"),
        _ => own,
    };
    let plugin = Foreign {
        language: match folder.source {
            Source::Js => Language::JavaScript,
            Source::Python | Source::Rust => Language::Python,
        },
        folder: folder.path.clone(),
        wit,
        world: world(folder)?,
        home,
    };
    plugin.build(file).map_err(told)
}

/// The world that the plugin is for.
fn world(folder: &Folder) -> Result<String> {
    let (file, place) = match folder.source {
        Source::Js => ("package.json", "`mainstay.world`"),
        Source::Python | Source::Rust => ("pyproject.toml", "`world` in `[tool.mainstay]`"),
    };
    let text = std::fs::read_to_string(folder.path.join(file)).unwrap_or_default();
    let found = match folder.source {
        Source::Js => serde_json::from_str::<serde_json::Value>(&text)
            .ok()
            .and_then(|value| Some(value.pointer("/mainstay/world")?.as_str()?.to_owned())),
        Source::Python | Source::Rust => text.parse::<toml::Table>().ok().and_then(|manifest| {
            let tool = manifest.get("tool")?.get("mainstay")?;
            Some(tool.get("world")?.as_str()?.to_owned())
        }),
    };
    found.ok_or_else(|| {
        Error::new(
            Code::Config,
            format!(
                "{file} of {} does not say which world it is for",
                folder.name
            ),
        )
        .hint(format!("set {place} to runner, provider or toolbox"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_new_plugin_has_its_own_name_and_says_its_world() {
        let folder = tempfile::tempdir().unwrap();
        for (lang, source) in [(Lang::Js, Source::Js), (Lang::Python, Source::Python)] {
            let args = New {
                kind: Kind::Runner,
                lang,
                sdk: None,
                name: "first".to_owned(),
            };
            for (path, text) in files(&args).unwrap() {
                assert!(
                    !text.contains("{{") && !text.contains("loop-"),
                    "{path}: {text}"
                );
                let path = folder.path().join(path);
                std::fs::create_dir_all(path.parent().unwrap()).unwrap();
                std::fs::write(path, text).unwrap();
            }
            let opened = Folder {
                path: folder.path().to_owned(),
                source,
                name: "first".to_owned(),
            };
            assert_eq!(world(&opened).unwrap(), "runner");
        }
        let args = New {
            kind: Kind::Toolbox,
            lang: Lang::Python,
            sdk: None,
            name: "first".to_owned(),
        };
        let error = files(&args).unwrap_err();
        assert!(error.message.contains("only a runner"), "{}", error.message);
    }
}
