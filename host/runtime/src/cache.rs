//! Compiled code on disk. A file is named by the engine that made it and the component's digest, and
//! begins with the hash of what follows: whatever is not as this host wrote it is compiled afresh and
//! never run.

use std::hash::{Hash, Hasher};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest as _, Sha256};
use wasmtime::Engine;
use wasmtime::component::Component;

const HASH_BYTES: usize = 32;

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
