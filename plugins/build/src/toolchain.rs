//! What compiles a guest, and how cargo is told to use it.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Error, TARGET, debian};

/// One of the ways to compile for [`TARGET`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Toolchain {
    /// The pinned toolchain, which has the target's standard library.
    Installed {
        /// Its root.
        sysroot: PathBuf,
    },
    /// The pinned toolchain, which has the standard library's source.
    Source {
        /// Its root.
        sysroot: PathBuf,
    },
    /// Debian's compiler and the standard library's source, unpacked into a folder of the workspace.
    Debian {
        /// That folder; it looks like the root of a file system.
        root: PathBuf,
    },
}

impl Toolchain {
    /// The first that this machine has for the package in `at`; sets up the last below `workspace` if it
    /// has none. The caller holds the lock.
    pub(crate) fn find(workspace: &Path, at: &Path) -> Result<Self, Error> {
        let sysroot = sysroot(at)?;
        if has_std(&sysroot) && linker(&sysroot).is_some() {
            return Ok(Self::Installed { sysroot });
        }
        let source = sysroot.join("lib/rustlib/src/rust/library/Cargo.lock");
        if source.is_file() && linker(&sysroot).is_some() {
            return Ok(Self::Source { sysroot });
        }
        match debian::set_up(workspace) {
            Ok(root) => Ok(Self::Debian { root }),
            Err(cause) => Err(Error::NoToolchain {
                cause: Some(Box::new(cause)),
            }),
        }
    }

    /// Makes `cargo build` use this toolchain. Paths of this machine do not enter the component, so
    /// that its digest is the same wherever it is built with the same tools.
    pub(crate) fn apply(&self, cargo: &mut Command, workspace: &Path) {
        let mut flags = Vec::new();
        let mut remap = |from: &Path, to: &str| {
            let mut flag = OsString::from("--remap-path-prefix=");
            flag.push(from);
            flag.push("=");
            flag.push(to);
            flags.push(flag);
        };
        remap(workspace, "/mainstay");
        if let Some(home) = cargo_home() {
            remap(&home, "/cargo");
        }
        let root = match self {
            Self::Installed { sysroot } | Self::Source { sysroot } => sysroot,
            Self::Debian { root } => root,
        };
        remap(root, "/rust");

        match self {
            Self::Installed { sysroot } => set_linker(cargo, linker(sysroot)),
            Self::Source { sysroot } => {
                set_linker(cargo, linker(sysroot));
                build_std(cargo);
            }
            Self::Debian { root } => {
                set_linker(cargo, linker(&root.join("usr")));
                build_std(cargo);
                cargo.env("RUSTC", root.join("usr/bin/rustc"));
                let mut libraries = OsString::new();
                for folder in debian::libraries(root) {
                    libraries.push(folder);
                    libraries.push(":");
                }
                if let Some(outer) = env::var_os("LD_LIBRARY_PATH") {
                    libraries.push(outer);
                }
                cargo.env("LD_LIBRARY_PATH", libraries);
                flags.push("-Zunstable-options".into());
                flags.push("-Clinker-flavor=wasm-lld".into());
                if let Some(lld) = debian::wasm_ld(root) {
                    let mut flag = OsString::from("-Clink-arg=--wasm-ld-path=");
                    flag.push(lld);
                    flags.push(flag);
                }
            }
        }
        cargo.env("CARGO_ENCODED_RUSTFLAGS", flags.join("\x1f".as_ref()));
    }
}

/// Root of the toolchain that cargo would use in a folder.
fn sysroot(folder: &Path) -> Result<PathBuf, Error> {
    let rustc = env::var_os("RUSTC").unwrap_or_else(|| OsString::from("rustc"));
    let mut command = Command::new(rustc);
    command.args(["--print", "sysroot"]).current_dir(folder);
    Ok(PathBuf::from(crate::run(&mut command)?.trim()))
}

/// Whether the target's standard library is there.
fn has_std(sysroot: &Path) -> bool {
    fs::read_dir(sysroot.join("lib/rustlib").join(TARGET).join("lib")).is_ok_and(|files| {
        files
            .flatten()
            .any(|file| file.file_name().to_string_lossy().starts_with("libstd-"))
    })
}

/// The linker that makes components. The platform's folder is the one that has it.
fn linker(sysroot: &Path) -> Option<PathBuf> {
    let name = format!("wasm-component-ld{}", env::consts::EXE_SUFFIX);
    fs::read_dir(sysroot.join("lib/rustlib"))
        .ok()?
        .flatten()
        .map(|folder| folder.path().join("bin").join(&name))
        .find(|file| file.is_file())
}

fn set_linker(cargo: &mut Command, linker: Option<PathBuf>) {
    if let Some(linker) = linker {
        cargo.env("CARGO_TARGET_WASM32_UNKNOWN_UNKNOWN_LINKER", linker);
    }
}

/// Has cargo build the standard library from its source.
fn build_std(cargo: &mut Command) {
    cargo
        .env("RUSTC_BOOTSTRAP", "1")
        .arg("-Zbuild-std=std,panic_abort");
}

/// Where cargo keeps the sources of dependencies.
fn cargo_home() -> Option<PathBuf> {
    env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(env::home_dir()?.join(".cargo")))
}
