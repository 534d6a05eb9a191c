//! `mainstay plugin build`: from a plugin's folder to its component.

use std::path::{Path, PathBuf};

use mainstay_guest_build::{Error as BuildError, Project};

use super::author::{Folder, Source, checkout};
use crate::access::Context;
use crate::args::author::Build;
use crate::error::{Error, Result};

pub(super) async fn build(context: &Context, args: Build) -> Result<()> {
    let folder = Folder::open(&args.folder)?;
    let file = folder.component();
    context.printer.dim(format!("building {} …", folder.name));
    let name = folder.name.clone();
    let home = match checkout() {
        Some(checkout) => checkout,
        None => context.paths()?.cache,
    };
    let made = file.clone();
    let built = tokio::task::spawn_blocking(move || match folder.source {
        Source::Rust => rust(&folder, &args, home, &made),
        Source::Js | Source::Python => super::foreign::build(&folder, home, &made),
    });
    built
        .await
        .map_err(|error| Error::failed("the build has broken off").because(&error))??;
    if context.printer.json {
        let size = std::fs::metadata(&file).map_or(0, |meta| meta.len());
        let built = serde_json::json!({ "name": name, "component": file, "bytes": size });
        context.printer.value(&built)?;
    } else {
        context.printer.line(file.display())?;
    }
    Ok(())
}

fn rust(folder: &Folder, args: &Build, home: PathBuf, file: &Path) -> Result<()> {
    let target_dir = match &args.target_dir {
        Some(folder) => std::path::absolute(folder),
        None => std::path::absolute(folder.path.join("target")),
    };
    let target_dir = target_dir
        .map_err(|error| Error::failed("cannot tell the folder of the output").because(&error))?;
    let project = Project {
        folder: folder.path.clone(),
        package: folder.name.clone(),
        home,
        target_dir,
    };
    let built = project.build().map_err(told)?;
    // In place whole or not at all: somebody may be loading it.
    let draft = file.with_extension("wasm-draft");
    std::fs::copy(&built, &draft)
        .and_then(|_| std::fs::rename(&draft, file))
        .map_err(|error| Error::failed(format!("cannot write {}", file.display())).because(&error))
}

pub(super) fn told(error: BuildError) -> Error {
    match error {
        BuildError::Command { output, line, .. } => Error::failed("the plugin does not compile")
            .cause(output)
            .hint(format!("this was run: {line}")),
        error => Error::failed("the plugin could not be built").because(&error),
    }
}
