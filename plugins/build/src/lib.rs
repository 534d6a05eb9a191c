//! Builds guest packages of this workspace to WebAssembly components, from build scripts.
//!
//! A component comes straight out of cargo: both the pinned toolchain and the fallback ship
//! `wasm-component-ld`. What a machine may lack is a standard library for `wasm32-unknown-unknown`,
//! so a [`Toolchain`] is the first of these that there is:
//!
//! 1. the target's standard library in the pinned toolchain (rustup puts it there by itself, because
//!    `rust-toolchain.toml` names the target);
//! 2. `rust-src` in the pinned toolchain, from which cargo builds the standard library;
//! 3. on Debian, the packages of a Rust that has both, unpacked into `target/wasm-toolchain` and used
//!    from there. Nothing is installed.
//!
//! A plugin in a folder of its own is a [`Project`] and is built the same way; one in another language
//! is [`Foreign`] and is built by a compiler of its own.
//!
//! Build scripts that run at the same time are safe: the set-up holds a file lock, and cargo locks
//! its target directory.

use std::env;
use std::ffi::OsString;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

mod debian;
mod error;
mod foreign;
mod project;
mod toolchain;

pub use error::Error;
pub use foreign::{Foreign, Language};
pub use project::Project;
pub use toolchain::Toolchain;

/// The target of every guest: a component for it imports nothing but what its code names.
pub const TARGET: &str = "wasm32-unknown-unknown";

/// Builds packages of this workspace and returns their components, in the order of `packages`.
///
/// The files belong to cargo and may be replaced by the next build; copy what has to stay.
///
/// # Errors
///
/// No toolchain can be found or set up ([`Error::NoToolchain`] says what to type), or cargo fails, in
/// which case its words are in the error.
pub fn build(packages: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let workspace = workspace();
    let toolchain = toolchain(&workspace, &workspace)?;
    let guests = workspace.join("target/guests");
    let mut cargo = cargo(&workspace);
    cargo
        .args(["build", "--lib", "--locked", "--profile", "guest", "-j2"])
        .args(["--target", TARGET])
        .arg("--target-dir")
        .arg(&guests);
    for package in packages {
        cargo.args(["-p", package]);
    }
    toolchain.apply(&mut cargo, &workspace);
    run(&mut cargo)?;

    let folder = guests.join(TARGET).join("guest");
    packages
        .iter()
        .map(|package| {
            let file = folder.join(format!("{}.wasm", package.replace('-', "_")));
            if file.is_file() {
                Ok(file)
            } else {
                Err(Error::NoComponent {
                    package: (*package).to_owned(),
                    file,
                })
            }
        })
        .collect()
}

/// What compiles the package in `at`, set up below `home` where the machine has nothing.
fn toolchain(home: &Path, at: &Path) -> Result<Toolchain, Error> {
    let target = home.join("target");
    fs::create_dir_all(&target).map_err(|cause| Error::io("create", &target, cause))?;
    let path = target.join("wasm-toolchain.lock");
    let lock = File::create(&path).map_err(|cause| Error::io("create", &path, cause))?;
    lock.lock()
        .map_err(|cause| Error::io("lock", &path, cause))?;
    Toolchain::find(home, at)
}

/// For build scripts: builds packages and tells cargo where they are and when to build them again.
///
/// For each package the variable [`variable`] names becomes the path of a component inside `OUT_DIR`,
/// so that the crate can say `include_bytes!(env!("MAINSTAY_GUEST_LOOP"))`.
///
/// # Panics
///
/// If the guests cannot be built, with the reason: that is how a build script fails.
pub fn embed(packages: &[&str]) {
    let workspace = workspace();
    for path in ["Cargo.lock", "guest-sdk", "wit", "plugins/build/src"] {
        println!("cargo::rerun-if-changed={}", workspace.join(path).display());
    }
    for package in packages {
        if let Some(folder) = source(&workspace, package) {
            println!("cargo::rerun-if-changed={}", folder.display());
        }
    }
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("`embed` is called from a build script"));
    let files = build(packages).unwrap_or_else(|error| panic!("{}", error::chain(&error)));
    for (package, file) in packages.iter().zip(files) {
        let copy = out.join(format!("{package}.wasm"));
        fs::copy(&file, &copy)
            .unwrap_or_else(|cause| panic!("cannot copy {} to OUT_DIR: {cause}", file.display()));
        println!("cargo::rustc-env={}={}", variable(package), copy.display());
    }
}

/// The variable in which [`embed`] leaves a package's path: `MAINSTAY_GUEST_` and the package's name
/// without `mainstay-` and its kind, in capitals. That of `mainstay-provider-openai-chat` is
/// `MAINSTAY_GUEST_OPENAI_CHAT`.
#[must_use]
pub fn variable(package: &str) -> String {
    let name = package.strip_prefix("mainstay-").unwrap_or(package);
    let name = ["runner-", "provider-", "toolbox-", "test-"]
        .iter()
        .find_map(|kind| name.strip_prefix(kind))
        .unwrap_or(name);
    format!("MAINSTAY_GUEST_{}", name.replace('-', "_").to_uppercase())
}

/// Root of the workspace that this crate is in.
#[must_use]
pub fn workspace() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.ancestors()
        .nth(2)
        .expect("this crate is in plugins/build")
        .to_owned()
}

/// Folder of a guest package: found by the name in its manifest.
fn source(workspace: &Path, package: &str) -> Option<PathBuf> {
    let line = format!("name = \"{package}\"");
    ["plugins", "tests/guests"]
        .iter()
        .filter_map(|folder| fs::read_dir(workspace.join(folder)).ok())
        .flatten()
        .filter_map(|entry| Some(entry.ok()?.path()))
        .find(|folder| {
            fs::read_to_string(folder.join("Cargo.toml"))
                .is_ok_and(|manifest| manifest.lines().any(|found| found.trim() == line))
        })
}

/// Cargo without what an outer cargo, clippy or rustdoc left in the environment for its own children.
fn cargo(workspace: &Path) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(workspace);
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(belongs_to_outer_build) {
            command.env_remove(&name);
        }
    }
    command
}

/// Whether a variable speaks of the outer build and not of the machine or the user.
fn belongs_to_outer_build(name: &str) -> bool {
    const KEPT: [&str; 6] = [
        "CARGO_HOME",
        "CARGO_HTTP_",
        "CARGO_NET_",
        "CARGO_REGISTR",
        "CARGO_SOURCE_",
        "CARGO_TERM_",
    ];
    const PREFIXES: [&str; 6] = [
        "CARGO",
        "RUSTC",
        "RUSTDOC",
        "CLIPPY",
        "DEP_",
        "LLVM_PROFILE",
    ];
    const NAMES: [&str; 11] = [
        "RUSTFLAGS",
        "TARGET",
        "HOST",
        "OPT_LEVEL",
        "PROFILE",
        "DEBUG",
        "NUM_JOBS",
        "OUT_DIR",
        "MAKEFLAGS",
        "MFLAGS",
        "SYSROOT",
    ];
    if KEPT.iter().any(|kept| name.starts_with(kept)) {
        return false;
    }
    NAMES.contains(&name) || PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// Runs a command to its end; its output goes into the error if it fails.
fn run(command: &mut Command) -> Result<String, Error> {
    let line = format!("{command:?}");
    let output = command.output().map_err(|cause| Error::Start {
        program: command.get_program().to_string_lossy().into_owned(),
        cause,
    })?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    Err(Error::Command {
        line,
        status: output.status,
        output: String::from_utf8_lossy(&output.stderr).trim().to_owned(),
    })
}

/// Tells whoever watches the build that something takes long.
fn say(message: &str) {
    eprintln!("{message}");
    // Only in a build script has stdout a meaning for cargo.
    if env::var_os("OUT_DIR").is_some() {
        println!("cargo::warning={message}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_named_after_the_plugin() {
        assert_eq!(variable("mainstay-runner-loop"), "MAINSTAY_GUEST_LOOP");
        assert_eq!(
            variable("mainstay-provider-openai-chat"),
            "MAINSTAY_GUEST_OPENAI_CHAT"
        );
        assert_eq!(
            variable("mainstay-test-hostile-runner"),
            "MAINSTAY_GUEST_HOSTILE_RUNNER"
        );
    }

    #[test]
    fn the_outer_build_leaves_nothing_behind() {
        for name in [
            "CARGO_ENCODED_RUSTFLAGS",
            "RUSTFLAGS",
            "RUSTC",
            "RUSTC_WORKSPACE_WRAPPER",
            "CARGO_TARGET_DIR",
            "CARGO_MAKEFLAGS",
            "CLIPPY_ARGS",
            "TARGET",
            "CARGO_CFG_TARGET_OS",
        ] {
            assert!(belongs_to_outer_build(name), "{name}");
        }
        for name in [
            "PATH",
            "HOME",
            "CARGO_HOME",
            "RUSTUP_TOOLCHAIN",
            "CARGO_HTTP_PROXY",
        ] {
            assert!(!belongs_to_outer_build(name), "{name}");
        }
    }

    #[test]
    fn every_shipped_plugin_has_a_folder() {
        for package in ["mainstay-runner-loop", "mainstay-toolbox-files"] {
            assert!(source(&workspace(), package).is_some(), "{package}");
        }
    }
}
