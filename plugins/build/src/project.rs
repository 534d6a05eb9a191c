//! A plugin in a folder of its own, outside of this workspace: a cargo package with the profile `guest`.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use crate::{Error, TARGET, cargo, run, toolchain};

/// One plugin's package.
#[derive(Clone, Debug)]
pub struct Project {
    /// The folder with its `Cargo.toml`.
    pub folder: PathBuf,
    /// The package's name.
    pub package: String,
    /// Where a toolchain is unpacked, below `target`, if the machine has none that compiles to
    /// WebAssembly: the checkout, or a folder that is kept.
    pub home: PathBuf,
    /// Cargo's output. Packages that share it, share their dependencies too.
    pub target_dir: PathBuf,
}

impl Project {
    /// Builds the package and returns its component, which the next build may replace.
    ///
    /// # Errors
    ///
    /// No toolchain can be found or set up, or cargo fails, in which case its words are in the error.
    pub fn build(&self) -> Result<PathBuf, Error> {
        let folder = fs::canonicalize(&self.folder)
            .map_err(|cause| Error::io("open", &self.folder, cause))?;
        let toolchain = toolchain(&self.home, &folder)?;
        let mut cargo = cargo(&folder);
        cargo
            .args(["rustc", "--lib", "--profile", "guest", "--target", TARGET])
            .args(["-p", &self.package, "--target-dir"])
            .arg(&self.target_dir);
        toolchain.apply(&mut cargo, &self.home);
        // For this package alone: flags for all would have every dependency built anew.
        cargo.arg("--").arg(remap(&folder));
        run(&mut cargo)?;

        let name = format!("{}.wasm", self.package.replace('-', "_"));
        let file = self.target_dir.join(TARGET).join("guest").join(name);
        if file.is_file() {
            return Ok(file);
        }
        Err(Error::NoComponent {
            package: self.package.clone(),
            file,
        })
    }
}

/// The folder's path does not enter the component.
fn remap(folder: &Path) -> OsString {
    let mut flag = OsString::from("--remap-path-prefix=");
    flag.push(folder);
    flag.push("=/plugin");
    flag
}
