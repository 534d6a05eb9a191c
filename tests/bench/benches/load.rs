//! How long until a component answers: one that this machine has never seen (`compiled`), one that an
//! earlier process has compiled (`cached`), and one that is loaded (`loaded`)? The last is part of the
//! other two; what is left of them is the load.

use std::path::PathBuf;
use std::sync::{Arc, LazyLock};

use divan::{Bencher, black_box};
use mainstay_bench::{guests, view, world};
use mainstay_core::plugin::{Plugins, View};
use mainstay_runtime::{MemorySource, Runtime, RuntimeConfig};
use tempfile::TempDir;

/// A runner, and the toolbox that imports WASI.
const COMPONENTS: [&str; 2] = ["loop", "files"];

fn main() {
    divan::main();
}

struct Host {
    tokio: tokio::runtime::Runtime,
    runtime: Runtime,
    cache: PathBuf,
    view: View,
    _dir: TempDir,
}

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let view = tokio.block_on(async {
        let store = view::store(dir.path()).await;
        view::view(&store, 1).await
    });
    let config = RuntimeConfig::new(dir.path());
    Host {
        cache: config.cache_dir.clone(),
        runtime: world::runtime(config, Arc::new(MemorySource::new())),
        tokio,
        view,
        _dir: dir,
    }
});

impl Host {
    fn install(&self, component: &str) -> String {
        let bytes = match component {
            "loop" => guests::LOOP,
            _ => guests::FILES,
        };
        let info = self.tokio.block_on(self.runtime.install(bytes));
        info.expect("a component").digest.clone()
    }

    /// The shortest question that a component of its kind answers.
    fn ask(&self, component: &str, digest: &str) {
        self.tokio.block_on(async {
            match component {
                "loop" => {
                    let decision = self.runtime.decide(digest, self.view.clone()).await;
                    drop(black_box(decision.expect("a decision")));
                }
                _ => {
                    let tools = self.runtime.tools(digest, None).await;
                    drop(black_box(tools.expect("tools")));
                }
            }
        });
    }
}

#[divan::bench(args = COMPONENTS, sample_count = 10, sample_size = 1)]
fn compiled(bencher: Bencher<'_, '_>, component: &str) {
    let digest = HOST.install(component);
    bencher
        .with_inputs(|| {
            HOST.runtime.forget(&digest);
            // It may be gone already.
            let _ = std::fs::remove_dir_all(&HOST.cache);
        })
        .bench_values(|()| HOST.ask(component, &digest));
}

#[divan::bench(args = COMPONENTS, sample_count = 200, sample_size = 1)]
fn cached(bencher: Bencher<'_, '_>, component: &str) {
    let digest = HOST.install(component);
    // Leaves its compiled code behind, whatever was removed before.
    HOST.runtime.forget(&digest);
    HOST.ask(component, &digest);
    let before = HOST.runtime.compilations();
    bencher
        .with_inputs(|| HOST.runtime.forget(&digest))
        .bench_values(|()| HOST.ask(component, &digest));
    assert_eq!(before, HOST.runtime.compilations(), "nothing is compiled");
}

#[divan::bench(args = COMPONENTS, sample_count = 1000, sample_size = 1)]
fn loaded(bencher: Bencher<'_, '_>, component: &str) {
    let digest = HOST.install(component);
    bencher.bench(|| HOST.ask(component, &digest));
}
