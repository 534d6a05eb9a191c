//! Plugins in other languages than Rust. Each has a compiler of its own, a package of its language's
//! registry, in the version that the shipped runner of that language pins. It is taken from the plugin's
//! folder if it is there, else installed into the target folder, and never into the system.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, run, say};

/// A language that a plugin may be written in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    /// `plugin.js`, compiled by `componentize-qjs`; needs Node.js.
    JavaScript,
    /// `plugin.py`, compiled by `componentize-py`.
    Python,
}

/// Written last: a folder with it, and with these words in it, is whole.
const STAMP: &str = "complete";

impl Language {
    /// What the machine has to have, in words that say how to get it.
    pub(crate) fn needs(self) -> &'static str {
        match self {
            Self::JavaScript => {
                "install Node.js 18 or newer with npm (on Debian: `apt-get install nodejs npm`)"
            }
            Self::Python => {
                "install Python 3.10 or newer with venv (on Debian: `apt-get install python3-venv`)"
            }
        }
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::JavaScript => "JavaScript",
            Self::Python => "Python",
        }
    }

    /// The compiler of a folder into which it is installed: the plugin's own.
    fn own(self, folder: &Path) -> PathBuf {
        match self {
            Self::JavaScript => folder.join("node_modules/.bin/componentize-qjs"),
            Self::Python => folder.join(".venv/bin/componentize-py"),
        }
    }

    /// Files that pin the compiler and what it consists of, with their hashes.
    fn pins(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::JavaScript => &[
                ("package.json", include_str!("../../loop-js/package.json")),
                (
                    "package-lock.json",
                    include_str!("../../loop-js/package-lock.json"),
                ),
            ],
            Self::Python => &[(
                "requirements.txt",
                include_str!("../../loop-python/requirements.txt"),
            )],
        }
    }

    /// The compiler below `home`, installed there if it is not yet.
    fn set_up(self, home: &Path) -> Result<PathBuf, Error> {
        let target = home.join("target");
        fs::create_dir_all(&target).map_err(|cause| Error::io("create", &target, cause))?;
        let root = target.join(match self {
            Self::JavaScript => "js-tools",
            Self::Python => "python-tools",
        });
        let path = root.with_extension("lock");
        let lock = File::create(&path).map_err(|cause| Error::io("create", &path, cause))?;
        lock.lock()
            .map_err(|cause| Error::io("lock", &path, cause))?;

        let compiler = self.own(&root);
        let stamp = root.join(STAMP);
        let pins: String = self.pins().iter().map(|(_, text)| *text).collect();
        if compiler.is_file() && fs::read_to_string(&stamp).is_ok_and(|found| found == pins) {
            return Ok(compiler);
        }
        say(&format!(
            "installing the compiler of plugins in {} into {}",
            self.name(),
            root.display()
        ));
        // What an earlier attempt left may be half of anything, or another version.
        if root.exists() {
            fs::remove_dir_all(&root).map_err(|cause| Error::io("remove", &root, cause))?;
        }
        fs::create_dir_all(&root).map_err(|cause| Error::io("create", &root, cause))?;
        for (name, text) in self.pins() {
            let path = root.join(name);
            fs::write(&path, text).map_err(|cause| Error::io("write", &path, cause))?;
        }
        for mut command in self.installation(&root) {
            run(command.current_dir(&root)).map_err(|cause| Error::NoCompiler {
                language: self,
                cause: Box::new(cause),
            })?;
        }
        fs::write(&stamp, pins).map_err(|cause| Error::io("write", &stamp, cause))?;
        Ok(compiler)
    }

    /// What is run, in the folder with the pins, to install the compiler there.
    fn installation(self, root: &Path) -> Vec<Command> {
        match self {
            Self::JavaScript => {
                let mut npm = Command::new("npm");
                // The compiler is a native module that needs no script to be run.
                npm.args(["ci", "--ignore-scripts", "--no-audit", "--no-fund"]);
                vec![npm]
            }
            Self::Python => {
                let mut venv = Command::new("python3");
                venv.args(["-m", "venv", ".venv"]);
                let mut pip = Command::new(root.join(".venv/bin/python"));
                pip.args(["-m", "pip", "--disable-pip-version-check", "install"])
                    .args(["--quiet", "--only-binary=:all:", "--require-hashes"])
                    .args(["--requirement", "requirements.txt"]);
                vec![venv, pip]
            }
        }
    }
}

/// A plugin in another language than Rust, in a folder of its own.
#[derive(Clone, Debug)]
pub struct Foreign {
    /// What it is written in.
    pub language: Language,
    /// The folder with its `plugin.js` or `plugin.py`.
    pub folder: PathBuf,
    /// The folder with the contract's WIT files.
    pub wit: PathBuf,
    /// The world of the contract that it is for: `runner`, `provider` or `toolbox`.
    pub world: String,
    /// Where the compiler is installed, below `target`, if the plugin's folder has none: the checkout, or
    /// a folder that is kept.
    pub home: PathBuf,
}

impl Foreign {
    /// Builds the plugin and puts its component into `file`, whole or not at all.
    ///
    /// # Errors
    ///
    /// There is no compiler and none can be installed ([`Error::NoCompiler`] says what that takes), or
    /// it fails, in which case its words are in the error.
    pub fn build(&self, file: &Path) -> Result<(), Error> {
        let absolute =
            |path: &Path| std::path::absolute(path).map_err(|cause| Error::io("find", path, cause));
        let folder = absolute(&self.folder)?;
        let own = self.language.own(&folder);
        let compiler = match own.is_file() {
            true => own,
            false => self.language.set_up(&absolute(&self.home)?)?,
        };
        let file = absolute(file)?;
        let draft = file.with_extension("wasm-draft");
        let wit = absolute(&self.wit)?;
        let mut command = Command::new(compiler);
        command.current_dir(&folder);
        match self.language {
            Language::JavaScript => {
                command.arg("--wit").arg(wit).args(["--world", &self.world]);
                // The contract has no async functions.
                command.args(["--js", "plugin.js", "--sync"]);
            }
            Language::Python => {
                // Python's libraries name all of WASI, sockets among it, which no plugin may import.
                command.arg("--wit-path").arg(wit);
                command.args(["--world", &self.world, "componentize", "plugin"]);
                command.arg("--stub-wasi");
                command.env("PYTHONDONTWRITEBYTECODE", "1");
            }
        }
        run(command.arg("--output").arg(&draft))?;
        fs::rename(&draft, &file).map_err(|cause| Error::io("write", &file, cause))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pins_name_a_version_and_its_hashes() {
        for (language, version, hash) in [
            (
                Language::JavaScript,
                "\"componentize-qjs\": \"0.",
                "\"integrity\": \"sha512-",
            ),
            (Language::Python, "componentize-py==0.", "--hash=sha256:"),
        ] {
            let pins: String = language.pins().iter().map(|(_, text)| *text).collect();
            assert!(pins.contains(version) && pins.contains(hash), "{pins}");
            // Whichever registry the machine is set up for.
            assert!(!pins.contains("://"), "{pins}");
        }
    }

    #[test]
    fn what_is_missing_is_said_with_the_way_to_get_it() {
        for language in [Language::JavaScript, Language::Python] {
            let cause = Error::Start {
                program: "npm".to_owned(),
                cause: std::io::ErrorKind::NotFound.into(),
            };
            let error = Error::NoCompiler {
                language,
                cause: Box::new(cause),
            };
            let text = error.to_string();
            assert!(
                text.contains(language.name()) && text.contains("apt-get install"),
                "{text}"
            );
            assert!(std::error::Error::source(&error).is_some());
        }
    }
}
