//! Compiled code on disk. A file is named by the engine that made it and the component's digest, and
//! begins with the hash of what follows: whatever is not as this host wrote it is compiled afresh and
//! never run.

use std::collections::HashSet;
use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

const HASH_BYTES: usize = 32;

/// A file that is being written is complete long before.
const UNFINISHED: Duration = Duration::from_secs(3600);

/// Compiled code that was removed from disk, or would be.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    pub files: u64,
    pub bytes: u64,
}

/// Compiles, and remembers across processes.
pub(crate) struct Cache {
    engine: Engine,
    /// Of this engine's files alone.
    folder: PathBuf,
    compilations: Arc<AtomicU64>,
}

impl Cache {
    pub(crate) fn new(engine: Engine, dir: &Path) -> Self {
        let mut hasher = std::hash::DefaultHasher::new();
        engine.precompile_compatibility_hash().hash(&mut hasher);
        let folder = dir.join(format!("{:016x}", hasher.finish()));
        Self {
            engine,
            folder,
            compilations: Arc::default(),
        }
    }

    /// How often this process has compiled a component.
    pub(crate) fn compilations(&self) -> u64 {
        self.compilations.load(Ordering::Relaxed)
    }

    /// Compiles and leaves nothing on disk.
    pub(crate) async fn compile(&self, bytes: Vec<u8>) -> wasmtime::Result<Component> {
        self.compilations.fetch_add(1, Ordering::Relaxed);
        let engine = self.engine.clone();
        blocking(move || Component::new(&engine, &bytes)).await
    }

    /// The compiled component of this digest, if it is there and whole.
    pub(crate) async fn load(&self, digest: &str) -> Option<Component> {
        let path = self.path(digest);
        let engine = self.engine.clone();
        blocking(move || {
            let Ok(file) = std::fs::read(&path) else {
                return Ok(None);
            };
            let loaded = open(&engine, &file);
            if loaded.is_none() {
                tracing::warn!(
                    file = %path.display(),
                    "compiled code is damaged or foreign; it is compiled afresh"
                );
            }
            Ok(loaded)
        })
        .await
        .unwrap_or(None)
    }

    /// Keeps a compiled component for the next process. A failure costs a compilation and no more.
    pub(crate) async fn keep(&self, digest: &str, component: &Component) {
        let path = self.path(digest);
        let component = component.clone();
        let kept = blocking(move || {
            let code = component.serialize()?;
            write(&path, &code)?;
            Ok(())
        })
        .await;
        if let Err(error) = kept {
            tracing::warn!(%digest, "compiled code could not be kept: {error:#}");
        }
    }

    /// Removes compiled code of components that are not to be kept and of other engines, or only
    /// counts it.
    pub(crate) async fn sweep(
        &self,
        keep: HashSet<String>,
        dry_run: bool,
    ) -> wasmtime::Result<Swept> {
        let own = self.folder.clone();
        blocking(move || Ok(sweep(&own, &keep, dry_run)?)).await
    }

    fn path(&self, digest: &str) -> PathBuf {
        self.folder.join(format!("{digest}.cwasm"))
    }
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> wasmtime::Result<T> + Send + 'static,
) -> wasmtime::Result<T> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => done,
        Err(error) => Err(wasmtime::Error::msg(format!(
            "a compilation broke off: {error}"
        ))),
    }
}

fn open(engine: &Engine, file: &[u8]) -> Option<Component> {
    let (hash, code) = file.split_at_checked(HASH_BYTES)?;
    if &Sha256::digest(code)[..] != hash {
        return None;
    }
    // SAFETY: the hash says that these are the bytes that `write` was given, which came from
    // `Component::serialize` of an engine of this folder's kind; wasmtime compares that kind again.
    unsafe { Component::deserialize(engine, code) }.ok()
}

/// Looks at nothing but what a host has put there: folders of engines, and code in them.
fn sweep(own: &Path, keep: &HashSet<String>, dry_run: bool) -> io::Result<Swept> {
    let mut swept = Swept::default();
    let all = own.parent().expect("a folder in the cache's folder");
    let engines = match std::fs::read_dir(all) {
        Ok(engines) => engines,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(swept),
        Err(error) => return Err(error),
    };
    for engine in engines {
        let engine = engine?;
        let name = engine.file_name();
        let is_hash = |name: &str| name.len() == 16 && name.bytes().all(|c| c.is_ascii_hexdigit());
        if !engine.file_type()?.is_dir() || !name.to_str().is_some_and(is_hash) {
            continue;
        }
        let folder = engine.path();
        let is_own = folder == own;
        for file in std::fs::read_dir(&folder)? {
            let (file, path) = file.map(|file| (file.metadata(), file.path()))?;
            // It may be gone by now.
            let Ok(file) = file else { continue };
            let stem = path.file_stem().and_then(|stem| stem.to_str());
            let goes = match path.extension().and_then(|end| end.to_str()) {
                Some("cwasm") => !is_own || stem.is_none_or(|digest| !keep.contains(digest)),
                Some("part") => file
                    .modified()
                    .is_ok_and(|at| at.elapsed().is_ok_and(|age| age > UNFINISHED)),
                _ => false,
            };
            if !goes || !file.is_file() {
                continue;
            }
            if !dry_run {
                match std::fs::remove_file(&path) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    done => done?,
                }
            }
            swept.files += 1;
            swept.bytes += file.len();
        }
        if !is_own && !dry_run {
            // It stays if there is something else in it.
            let _ = std::fs::remove_dir(&folder);
        }
    }
    Ok(swept)
}

fn write(path: &Path, code: &[u8]) -> io::Result<()> {
    let folder = path.parent().expect("a file in the cache's folder");
    std::fs::create_dir_all(folder)?;
    // Of a name of its own, and moved into place whole: a reader sees all of it or nothing.
    static NAMES: AtomicU64 = AtomicU64::new(0);
    let part = path.with_extension(format!(
        "{}-{}.part",
        std::process::id(),
        NAMES.fetch_add(1, Ordering::Relaxed)
    ));
    let mut file = Sha256::digest(code).to_vec();
    file.extend_from_slice(code);
    std::fs::write(&part, &file)
        .and_then(|()| std::fs::rename(&part, path))
        .inspect_err(|_| {
            let _ = std::fs::remove_file(&part);
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ops_4_compiled_code_of_others_goes_and_foreign_files_stay() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, "code").unwrap();
        };
        let own = "00000000000000aa";
        for file in [
            "00000000000000aa/kept.cwasm",
            "00000000000000aa/gone.cwasm",
            "00000000000000aa/new.1-2.part",
            "00000000000000bb/kept.cwasm",
            "00000000000000cc/note.txt",
            "notes/kept.cwasm",
            "kept.cwasm",
        ] {
            put(file);
        }
        let keep = HashSet::from(["kept".to_owned()]);
        let expected = Swept { files: 2, bytes: 8 };
        let sweep = |dry_run| sweep(&dir.path().join(own), &keep, dry_run).unwrap();
        assert_eq!(sweep(true), expected);
        assert_eq!(sweep(true), expected, "a dry run removes nothing");
        assert_eq!(sweep(false), expected);
        assert_eq!(sweep(false), Swept::default());
        for there in [
            "00000000000000aa/kept.cwasm",
            "00000000000000aa/new.1-2.part",
            "00000000000000cc/note.txt",
            "notes/kept.cwasm",
            "kept.cwasm",
        ] {
            assert!(dir.path().join(there).is_file(), "{there}");
        }
        assert!(!dir.path().join("00000000000000bb").exists());
    }
}
