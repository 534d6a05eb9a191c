//! What the commands of plugin authors share: where a plugin's folder is, and what is in it.

use std::path::{Path, PathBuf};

use mainstay_core::plugin::Kind;

use crate::error::{Code, Error, Result};

/// What a plugin's folder says it is written in, by the file that makes it so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    Rust,
    Js,
    Python,
}

/// A plugin's folder.
#[derive(Debug)]
pub(super) struct Folder {
    pub(super) path: PathBuf,
    pub(super) source: Source,
    pub(super) name: String,
}

impl Folder {
    /// Looks at a folder.
    pub(super) fn open(path: &Path) -> Result<Self> {
        let files = [
            ("Cargo.toml", Source::Rust),
            ("package.json", Source::Js),
            ("pyproject.toml", Source::Python),
        ];
        let found = files.iter().find(|(file, _)| path.join(file).is_file());
        let Some((file, source)) = found else {
            return Err(Error::new(
                Code::NotFound,
                format!(
                    "{} is no plugin's folder: it has none of Cargo.toml, package.json and pyproject.toml",
                    path.display()
                ),
            )
            .hint("begin one with `mainstay plugin new --kind runner NAME`"));
        };
        let manifest = path.join(file);
        let text = std::fs::read_to_string(&manifest).map_err(|error| {
            Error::failed(format!("cannot read {}", manifest.display())).because(&error)
        })?;
        let name = match source {
            Source::Rust => toml_name(&text, "package"),
            Source::Python => toml_name(&text, "project"),
            Source::Js => serde_json::from_str::<serde_json::Value>(&text)
                .ok()
                .and_then(|value| Some(value.get("name")?.as_str()?.to_owned())),
        };
        let name = name.ok_or_else(|| {
            Error::new(
                Code::Config,
                format!("{} gives the plugin no name", manifest.display()),
            )
        })?;
        Ok(Self {
            path: path.to_owned(),
            source: *source,
            name,
        })
    }

    /// Where its component is once it is built.
    pub(super) fn component(&self) -> PathBuf {
        self.path.join(format!("{}.wasm", self.name))
    }
}

fn toml_name(text: &str, table: &str) -> Option<String> {
    let manifest: toml::Table = text.parse().ok()?;
    Some(manifest.get(table)?.get("name")?.as_str()?.to_owned())
}

/// The component that a path leads to: the file itself, or that of a plugin's folder.
pub(super) fn component(path: &Path) -> Result<PathBuf> {
    if !path.is_dir() {
        return Ok(path.to_owned());
    }
    let folder = Folder::open(path)?;
    let file = folder.component();
    if !file.is_file() {
        return Err(Error::new(
            Code::NotFound,
            format!(
                "{} is not built: there is no {}",
                folder.name,
                file.display()
            ),
        )
        .hint("build it with `mainstay plugin build`"));
    }
    Ok(file)
}

/// The folder `check` beside a component.
pub(super) fn beside(component: &Path) -> PathBuf {
    component.with_file_name("check")
}

/// The checkout that this binary was built from, if it is still there.
pub(super) fn checkout() -> Option<PathBuf> {
    let checkout = mainstay_guest_build::workspace();
    is_checkout(&checkout).then_some(checkout)
}

/// Whether this is the root of a checkout.
pub(super) fn is_checkout(folder: &Path) -> bool {
    folder.join("guest-sdk/Cargo.toml").is_file() && folder.join("wit").is_dir()
}

/// Whether a name is one that a manifest may have.
pub(super) fn check_name(name: &str) -> Result<()> {
    let allowed = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let first = name
        .bytes()
        .next()
        .is_some_and(|byte| byte.is_ascii_lowercase());
    if first && name.len() <= 64 && name.bytes().all(allowed) && !name.ends_with('-') {
        return Ok(());
    }
    Err(
        Error::new(Code::Usage, format!("`{name}` is no name for a plugin"))
            .hint("begin with a letter, then up to 63 of a-z, 0-9 and -"),
    )
}

/// The word of a kind in paths of templates.
pub(super) fn word(kind: Kind) -> &'static str {
    match kind {
        Kind::Runner => "runner",
        Kind::Provider => "provider",
        Kind::Toolbox => "toolbox",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_checked() {
        for right in ["brief", "a", "my-runner-2"] {
            assert!(check_name(right).is_ok(), "{right}");
        }
        for wrong in ["", "Brief", "2nd", "a_b", "a-", "../a", &"x".repeat(65)] {
            assert_eq!(check_name(wrong).unwrap_err().code, Code::Usage, "{wrong}");
        }
    }

    #[test]
    fn a_folder_is_told_by_its_manifest() {
        let folder = tempfile::tempdir().unwrap();
        let error = Folder::open(folder.path()).unwrap_err();
        assert_eq!(error.code, Code::NotFound);
        let manifest = folder.path().join("pyproject.toml");
        std::fs::write(&manifest, "[project]\nname = \"snake\"\n").unwrap();
        let opened = Folder::open(folder.path()).unwrap();
        assert_eq!(
            (opened.source, opened.name.as_str()),
            (Source::Python, "snake")
        );
        let error = component(folder.path()).unwrap_err();
        assert!(error.hint.unwrap().contains("plugin build"));
    }
}
