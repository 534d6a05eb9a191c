//! What does it cost that a guest does it? A streamed answer, read by the shipped provider against the
//! same bytes read by the host itself; and computing, by a guest that can be stopped at any time against
//! one that cannot.
//!
//! `-- answer` or `-- epochs` asks one question alone. Both sides of each take turns, so that what else
//! the machine does falls on both.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use mainstay_bench::report::{Table, millis, spread};
use mainstay_bench::{guests, view, world};
use mainstay_core::model::{Message, ModelOptions, Part, ToolChoice, ToolDefinition};
use mainstay_core::plugin::{
    Action, Entry, Exchange, ModelEvent, ModelRequest, Plugins as _, ProviderConfig, ResponseHead,
};
use mainstay_runtime::{MemorySource, Runtime, RuntimeConfig};
use serde_json::{Value, json};

struct Plan {
    rounds: usize,
    /// Bytes of the answer on the wire.
    answer: usize,
}

const MEASURED: Plan = Plan {
    rounds: 200,
    answer: 100_000,
};

const QUICK: Plan = Plan {
    rounds: 2,
    answer: 2_000,
};

fn main() {
    let plan = if mainstay_bench::is_measured() {
        MEASURED
    } else {
        QUICK
    };
    let asked: Vec<String> = std::env::args()
        .skip(1)
        .filter(|name| !name.starts_with('-'))
        .collect();
    let asks = |name: &str| asked.is_empty() || asked.iter().any(|asked| asked == name);
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
    tokio.block_on(async {
        if asks("answer") {
            answer(&plan, dir.path()).await;
        }
        if asks("epochs") {
            epochs(&plan, dir.path()).await;
        }
    });
}

fn runtime(dir: &Path) -> Runtime {
    world::runtime(RuntimeConfig::new(dir), Arc::new(MemorySource::new()))
}

async fn install(runtime: &Runtime, component: &[u8]) -> String {
    let info = runtime.install(component).await;
    info.expect("a component").digest.clone()
}

// A streamed answer.

async fn answer(plan: &Plan, dir: &Path) {
    let runtime = runtime(dir);
    let provider = install(&runtime, guests::OPENAI_CHAT).await;
    let stream = Stream::of(plan.answer);
    let table = Table::new(&["pieces", "answer KB", "guest ms", "host itself ms", "ratio"]);
    let whole: usize = stream.events.iter().map(Vec::len).sum();
    for (name, pieces) in [
        ("an event each", stream.events.clone()),
        ("of 1448 bytes", stream.cut(1448)),
        ("of 16 KiB", stream.cut(16 << 10)),
    ] {
        let (mut guest, mut host, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..plan.rounds {
            let began = Instant::now();
            let text = by_guest(&runtime, &provider, &pieces).await;
            let by_guest = began.elapsed();
            assert_eq!(text, stream.text, "the guest reads all of it");
            let began = Instant::now();
            let text = by_host(&pieces);
            let by_host = began.elapsed();
            assert_eq!(text, stream.text, "the host reads all of it");
            guest.push(by_guest);
            host.push(by_host);
            ratios.push(by_guest.as_secs_f64() / by_host.as_secs_f64());
        }
        table.row(&[
            name.to_owned(),
            format!("{:.0}", whole as f64 / 1e3),
            spread(&millis(&guest), 2),
            spread(&millis(&host), 2),
            spread(&ratios, 1),
        ]);
    }
}

/// An answer as a server streams it: an event for some words each.
struct Stream {
    events: Vec<Vec<u8>>,
    text: String,
}

impl Stream {
    fn of(bytes: usize) -> Self {
        let event = |delta: Value, reason: Value| {
            let chunk = json!({
                "id": "chatcmpl-0123456789abcdef0123456789abcdef",
                "object": "chat.completion.chunk",
                "created": 1_750_000_000,
                "model": "some-model-of-some-size",
                "system_fingerprint": "fp_0123456789",
                "choices": [{ "index": 0, "delta": delta, "logprobs": null, "finish_reason": reason }],
            });
            format!("data: {chunk}\n\n").into_bytes()
        };
        let (mut events, mut text, mut length) = (Vec::new(), String::new(), 0);
        while length < bytes {
            let words = format!("word {} of \"many\"\n", events.len());
            events.push(event(json!({ "content": words }), Value::Null));
            text.push_str(&words);
            length += events.last().map_or(0, Vec::len);
        }
        events.push(event(json!({}), "stop".into()));
        events.push(b"data: [DONE]\n\n".to_vec());
        Self { events, text }
    }

    fn cut(&self, bytes: usize) -> Vec<Vec<u8>> {
        let whole = self.events.concat();
        whole.chunks(bytes).map(<[u8]>::to_vec).collect()
    }
}

const PROMPT: &str = "Say many words.";

async fn by_guest(runtime: &Runtime, provider: &str, pieces: &[Vec<u8>]) -> String {
    let request = ModelRequest {
        model: "some-model-of-some-size".to_owned(),
        messages: vec![Message::User(vec![Part::Text(PROMPT.to_owned())])],
        tools: vec![ToolDefinition {
            name: "look".to_owned(),
            description: "Looks.".to_owned(),
            input_schema: r#"{"type":"object"}"#.to_owned(),
        }],
        tool_choice: ToolChoice::Auto,
        hosted_tools: Vec::new(),
        options: ModelOptions::default(),
        config: ProviderConfig::default(),
    };
    let exchange = runtime.encode(provider, request).await;
    let Ok(Exchange::Http { memo, .. }) = exchange else {
        panic!("a request is expected: {exchange:?}");
    };
    let head = ResponseHead {
        status: 200,
        headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
    };
    let decoder = runtime.decoder(provider, head, memo).await;
    let mut decoder = decoder.expect("a decoder");
    let (mut text, mut finished) = (String::new(), false);
    for piece in pieces {
        let events = decoder.feed(piece.clone()).await;
        for event in events.expect("events") {
            match event {
                ModelEvent::TextDelta(words) => text.push_str(&words),
                ModelEvent::Finished(_) => finished = true,
                other => panic!("text is expected: {other:?}"),
            }
        }
    }
    assert!(finished, "the answer has an end");
    text
}

/// The same without a guest: the request's JSON, then each event's.
fn by_host(pieces: &[Vec<u8>]) -> String {
    let request = json!({
        "model": "some-model-of-some-size",
        "messages": [{ "role": "user", "content": PROMPT }],
        "tools": [{ "type": "function", "function": {
            "name": "look", "description": "Looks.", "parameters": { "type": "object" } } }],
        "stream": true,
    });
    std::hint::black_box(request.to_string());
    let (mut text, mut line, mut finished) = (String::new(), Vec::new(), false);
    for piece in pieces {
        for &byte in piece {
            if byte != b'\n' {
                line.push(byte);
                continue;
            }
            let data = line
                .strip_prefix(b"data: ")
                .filter(|data| *data != b"[DONE]");
            if let Some(data) = data {
                let chunk: Value = serde_json::from_slice(data).expect("JSON");
                let choice = &chunk["choices"][0];
                text.push_str(choice["delta"]["content"].as_str().unwrap_or_default());
                finished |= choice["finish_reason"] == "stop";
            }
            line.clear();
        }
    }
    assert!(finished, "the answer has an end");
    text
}

// Guests that can be stopped.

async fn epochs(plan: &Plan, dir: &Path) {
    let can = runtime(dir);
    let cannot = Runtime::uninterruptible(
        RuntimeConfig::new(dir),
        Arc::new(MemorySource::new()),
        Arc::clone(can.egress()),
    );
    let cannot = cannot.expect("an engine");
    let store = view::store(dir).await;
    let runner = [
        install(&can, guests::HOSTILE_RUNNER).await,
        install(&cannot, guests::HOSTILE_RUNNER).await,
    ];
    let provider = [
        install(&can, guests::OPENAI_CHAT).await,
        install(&cannot, guests::OPENAI_CHAT).await,
    ];
    let stream = Stream::of(plan.answer);
    let pieces = stream.cut(16 << 10);

    let table = Table::new(&["guest", "can be stopped ms", "cannot ms", "ratio"]);
    let mut took: [[Vec<Duration>; 2]; 2] = Default::default();
    for round in 0..plan.rounds {
        let mut both = [(0, &can), (1, &cannot)];
        // Neither is always the first.
        both.rotate_left(round % 2);
        for (at, runtime) in both {
            let view = view::prompted(&store, "compute").await;
            let began = Instant::now();
            let decision = runtime.decide(&runner[at], view).await;
            took[0][at].push(began.elapsed());
            let decision = decision.expect("a decision");
            assert_eq!(decision.action, Action::Done);
            assert!(matches!(&decision.entries[..], [Entry::Say(_)]), "a number");
            let began = Instant::now();
            let text = by_guest(runtime, &provider[at], &pieces).await;
            took[1][at].push(began.elapsed());
            assert_eq!(text, stream.text, "it reads all of it");
        }
    }
    for (name, [can, cannot]) in ["a sieve", "an answer as above"].into_iter().zip(took) {
        let ratio =
            |(can, cannot): (&Duration, &Duration)| can.as_secs_f64() / cannot.as_secs_f64();
        let ratios: Vec<f64> = can.iter().zip(&cannot).map(ratio).collect();
        table.row(&[
            name.to_owned(),
            spread(&millis(&can), 2),
            spread(&millis(&cannot), 2),
            spread(&ratios, 2),
        ]);
    }
}
