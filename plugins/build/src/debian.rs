//! Debian's Rust for WebAssembly, unpacked and never installed: its packages would replace rustup.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, run, say};

/// Written last: a folder with it is whole.
const STAMP: &str = "complete";

/// What is unpacked, besides the versioned packages that these depend on.
const PACKAGES: [&str; 4] = [
    "rustc-web",
    "rust-web-src",
    "libstd-rust-web-dev",
    "rust-web-llvm",
];

/// Beginnings of the names of those packages.
const VERSIONED: [&str; 2] = ["libstd-rust-web-", "libllvm"];

/// Unpacks the toolchain into the workspace's target folder if it is not there, and returns where it
/// is. The caller holds the lock.
pub(crate) fn set_up(workspace: &Path) -> Result<PathBuf, Error> {
    let root = workspace.join("target/wasm-toolchain");
    if root.join(STAMP).is_file() {
        return Ok(root);
    }
    say(
        "no WebAssembly target in this Rust toolchain: unpacking Debian's packages into \
         target/wasm-toolchain (about 500 MB, a minute; `rustup target add \
         wasm32-unknown-unknown` avoids this)",
    );
    // What an earlier attempt left may be half of anything.
    if root.exists() {
        fs::remove_dir_all(&root).map_err(|cause| Error::io("remove", &root, cause))?;
    }
    let downloads = root.join("downloads");
    fs::create_dir_all(&downloads).map_err(|cause| Error::io("create", &downloads, cause))?;

    let packages = match packages() {
        Ok(packages) => packages,
        Err(_) => {
            // The lists may be absent or old. Without the right to renew them, what is there has to do.
            let _ = run(Command::new("apt-get").args(["-q", "update"]));
            packages()?
        }
    };
    let mut download = Command::new("apt-get");
    download
        .args(["-q", "download"])
        .args(&packages)
        .current_dir(&downloads);
    if run(&mut download).is_err() {
        let _ = run(Command::new("apt-get").args(["-q", "update"]));
        run(&mut download)?;
    }
    for file in entries(&downloads)? {
        run(Command::new("dpkg").arg("-x").arg(&file).arg(&root))?;
    }
    fs::remove_dir_all(&downloads).map_err(|cause| Error::io("remove", &downloads, cause))?;

    // The compiler's own source is most of the size and none of the use.
    for source in entries(&root.join("usr/src"))? {
        for part in ["src", "compiler", "debian"] {
            let part = source.join(part);
            if part.is_dir() {
                fs::remove_dir_all(&part).map_err(|cause| Error::io("remove", &part, cause))?;
            }
        }
    }
    let stamp = root.join(STAMP);
    fs::write(&stamp, packages.join("\n")).map_err(|cause| Error::io("write", &stamp, cause))?;
    Ok(root)
}

/// Folders with the shared libraries of compiler and linker.
pub(crate) fn libraries(root: &Path) -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> = entries(&root.join("usr/lib"))
        .unwrap_or_default()
        .into_iter()
        .filter(|path| {
            path.file_name()
                .is_some_and(|name| name.to_string_lossy().contains("-linux-gnu"))
        })
        .collect();
    folders.sort();
    folders
}

/// The linker of core modules.
pub(crate) fn wasm_ld(root: &Path) -> Option<PathBuf> {
    entries(&root.join("usr/lib"))
        .ok()?
        .into_iter()
        .map(|folder| folder.join("bin/wasm-ld"))
        .find(|file| file.is_file())
}

/// Names of all packages that are needed, those with a version in their name read from what the
/// others depend on.
fn packages() -> Result<Vec<String>, Error> {
    let mut all: BTreeSet<String> = PACKAGES.iter().map(|name| (*name).to_owned()).collect();
    let mut new: Vec<String> = all.iter().cloned().collect();
    while !new.is_empty() {
        let lines = run(Command::new("apt-cache").arg("depends").args(&new))?;
        new = dependencies(&lines)
            .filter(|name| VERSIONED.iter().any(|start| name.starts_with(start)))
            .filter(|name| !all.contains(*name))
            .map(str::to_owned)
            .collect();
        new.sort();
        new.dedup();
        all.extend(new.iter().cloned());
    }
    // Nothing depends on the linker; it has the version of the library that the compiler uses.
    let linkers: Vec<String> = all
        .iter()
        .filter_map(|name| name.strip_prefix("libllvm"))
        .map(|version| format!("lld-{version}"))
        .collect();
    all.extend(linkers);
    Ok(all.into_iter().collect())
}

/// What `apt-cache depends` says is needed.
fn dependencies(lines: &str) -> impl Iterator<Item = &str> {
    lines
        .lines()
        .filter_map(|line| {
            line.trim()
                .trim_start_matches('|')
                .strip_prefix("Depends: ")
        })
        .filter(|name| !name.starts_with('<'))
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let read = fs::read_dir(folder).map_err(|cause| Error::io("read", folder, cause))?;
    Ok(read.flatten().map(|entry| entry.path()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dependencies_are_read_from_apt() {
        let lines = "lld-22\n  Depends: libc6\n |Depends: libllvm22\n  Conflicts: <rustup>\n  Depends: <libc-dev>\n";
        let names: Vec<&str> = dependencies(lines).collect();
        assert_eq!(names, ["libc6", "libllvm22"]);
    }
}
