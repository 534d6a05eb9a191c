//! What does a decision cost, does it grow with the history, and how much of it is the fresh instance?
//!
//! `instance` makes an instance that is asked nothing, and `instance_dropped` gives it back too.
//! `fresh_instance` asks a runner that reads nothing, `shipped_loop` the shipped one, which reads what
//! is new from the store, and `shipped_loop_measuring` the same where the model's limit is known, so
//! that it also asks how large the context is. `live_instance` is a call of an instance that is there
//! already: a decoder is fed one piece of an answer.

use std::sync::{Arc, LazyLock};

use divan::{Bencher, black_box};
use mainstay_bench::{guests, view, world};
use mainstay_core::plugin::{Plugins, ResponseHead, View};
use mainstay_core::port::Store;
use mainstay_runtime::{MemorySource, ReusedRunner, Runtime, RuntimeConfig};
use tempfile::TempDir;

/// Items before the decision.
const HISTORIES: [u64; 3] = [10, 1_000, 100_000];
const SAMPLES: u32 = 3_000;

fn main() {
    divan::main();
}

struct Host {
    tokio: tokio::runtime::Runtime,
    runtime: Runtime,
    store: Arc<dyn Store>,
    _dir: TempDir,
}

static HOST: LazyLock<Host> = LazyLock::new(|| {
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("a folder");
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let store = tokio.block_on(view::store(dir.path()));
    let config = RuntimeConfig::new(dir.path());
    Host {
        runtime: world::runtime(config, Arc::new(MemorySource::new())),
        tokio,
        store,
        _dir: dir,
    }
});

static RUNNER: LazyLock<String> = LazyLock::new(|| HOST.install(guests::BENCH_RUNNER));

impl Host {
    fn install(&self, bytes: &[u8]) -> String {
        let info = self.tokio.block_on(self.runtime.install(bytes));
        info.expect("a component").digest.clone()
    }

    fn view(&self, items: u64) -> View {
        let items = if mainstay_bench::is_measured() {
            items
        } else {
            items.min(100)
        };
        self.tokio.block_on(view::view(&self.store, items))
    }

    /// An instance of a runner that is asked nothing.
    fn instance(&self) -> ReusedRunner {
        let digest = RUNNER.as_str();
        let instance = self.tokio.block_on(self.runtime.reused_runner(digest));
        black_box(instance.expect("an instance"))
    }

    fn decide(&self, bencher: Bencher<'_, '_>, component: &[u8], view: &View) {
        let digest = self.install(component);
        bencher.with_inputs(|| view.clone()).bench_values(|view| {
            let decision = self.tokio.block_on(self.runtime.decide(&digest, view));
            black_box(decision.expect("a decision"))
        });
    }
}

#[divan::bench(sample_count = SAMPLES, sample_size = 1)]
fn instance(bencher: Bencher<'_, '_>) {
    // What a bench gives is dropped when its time is taken.
    bencher.bench_local(|| HOST.instance());
}

#[divan::bench(sample_count = SAMPLES, sample_size = 1)]
fn instance_dropped(bencher: Bencher<'_, '_>) {
    bencher.bench_local(|| drop(HOST.instance()));
}

#[divan::bench(args = HISTORIES, sample_count = SAMPLES, sample_size = 1)]
fn fresh_instance(bencher: Bencher<'_, '_>, items: u64) {
    HOST.decide(bencher, guests::BENCH_RUNNER, &HOST.view(items));
}

#[divan::bench(args = HISTORIES, sample_count = SAMPLES, sample_size = 1)]
fn shipped_loop(bencher: Bencher<'_, '_>, items: u64) {
    HOST.decide(bencher, guests::LOOP, &HOST.view(items));
}

#[divan::bench(args = HISTORIES, sample_count = 300, sample_size = 1)]
fn shipped_loop_measuring(bencher: Bencher<'_, '_>, items: u64) {
    let view = view::with_context_limit(HOST.view(items), u32::MAX);
    HOST.decide(bencher, guests::LOOP, &view);
}

#[divan::bench(sample_count = SAMPLES, sample_size = 1)]
fn live_instance(bencher: Bencher<'_, '_>) {
    const PIECE: &[u8] = b"data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"choices\":\
        [{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n";
    let host = &*HOST;
    let digest = host.install(guests::OPENAI_CHAT);
    let head = ResponseHead {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
    };
    let decoder = host.runtime.decoder(&digest, head, Vec::new());
    let mut decoder = host.tokio.block_on(decoder).expect("a decoder");
    bencher
        .with_inputs(|| PIECE.to_vec())
        .bench_local_values(|piece| {
            let events = host.tokio.block_on(decoder.feed(piece));
            black_box(events.expect("events"))
        });
}
