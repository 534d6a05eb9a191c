//! A provider that misbehaves as the prompt says: the newest user message is `encode`, `local` or
//! `http`, and the name of a behaviour.
//!
//! | prompt | what it does |
//! |---|---|
//! | `encode error`, `encode config`, `encode unsupported` | answers with that error |
//! | `encode trap`, `encode panic`, `encode spin`, `encode recurse` | what they say |
//! | `encode allocate`, `encode grow` | takes memory, bit by bit or at once |
//! | `encode huge`, `encode memo` | a body or a memo past the limit |
//! | `encode no-utf8`, `encode longer-than-memory` | a text that is none |
//! | `encode host` | a request to a host that is in no manifest |
//! | `local …` | a local answer that is wrong as below |
//! | `http …` | a request to the base URL, whose answer is read wrongly as below, whatever it says |
//! | `refuse …` | a request to `/refuse` of the base URL, whose answer is to be an error with that word |
//! | anything else | says it back |
//!
//! | answer | |
//! |---|---|
//! | `trap`, `spin`, `allocate` | text, then that (`http` only) |
//! | `new-trap`, `new-spin` | that when the decoder is made (`http` only) |
//! | `finish-trap` | text, then a trap at the end (`http` only) |
//! | `endless` | never stops giving events (`http` only) |
//! | `nothing` | nothing at all (`http` only) |
//! | `after-finish`, `two-finishes`, `finish-and-fail` | more after the end |
//! | `delta-before-start`, `end-before-start`, `no-end`, `delta-after-end` | a call in the wrong order |
//! | `duplicate-id` | two calls under one id |
//! | `result-of-nothing` | the result of a hosted call that nobody made |
//! | `no-utf8` | a text that is none |
//! | `usage-overflow` | says twice that it cost all that a number can hold |
//! | `huge-arguments` | a call whose arguments are past the limit of an answer |
//! | `bad-arguments` | a call whose arguments are no JSON |
//! | `flood` | 20,000 events at once |
//! | `huge-event`, `huge-answer` | past the limits of size |
//! | `no-finish` | text and no end |
//! | `slow` | text, and an hour later the end (`local` only) |
//!
//! `classify` misbehaves as the body of the error answer says: `trap`, `spin`, `huge`, `no-utf8`.
//! `describe` misbehaves as the bytes of [`DESCRIBE`] say: `trap`, `spin`, `huge`, `no-utf8`.

use mainstay_guest::http::{Request, Response};
use mainstay_guest::provider::{
    CallDelta, CallStart, Decoder, Exchange, HttpExchange, Local, ModelEvent, ModelRequest,
    ProviderManifest, failure_of_status,
};
use mainstay_guest::types::{
    Failure, FailureClass, FinishReason, HostedResult, Message, Usage, text_of,
};
use mainstay_guest::{Error, Provider, manifest};

struct Hostile;

/// What `describe` does: `behave`, or a way to misbehave. Tests patch the component's bytes.
static DESCRIBE: [u8; 24] = *b"describe: behave........";

/// The way, without what fills it up.
fn described() -> &'static str {
    let mode: &'static [u8] = std::hint::black_box(&DESCRIBE);
    let mode = std::str::from_utf8(mode).unwrap_or_default();
    mode.trim_start_matches("describe: ").trim_end_matches('.')
}

/// A text that is none.
fn no_utf8() -> String {
    // SAFETY: it is handed to the host and read by nobody here. The host must refuse it.
    unsafe { String::from_utf8_unchecked(vec![b'a', 0xff, 0xfe]) }
}

/// A text that is said to be longer than the memory.
#[cfg(target_arch = "wasm32")]
fn longer_than_memory() -> String {
    let length = 0x7000_0000;
    // SAFETY: none of it is read here. The host must refuse it before it is given back.
    unsafe { String::from_raw_parts(std::ptr::without_provenance_mut(1024), length, length) }
}

#[cfg(not(target_arch = "wasm32"))]
fn longer_than_memory() -> String {
    std::process::abort()
}

mainstay_guest::provider!(Hostile);

impl Provider for Hostile {
    type Decoder = Reader;

    fn manifest() -> ProviderManifest {
        let mut manifest = manifest::provider(
            "hostile-provider",
            env!("CARGO_PKG_VERSION"),
            "Misbehaves as the prompt says",
        );
        manifest.http = vec![manifest::http_base_url()];
        match described() {
            "trap" => trap(),
            "spin" => spin(),
            "huge" => manifest.plugin.summary = "x".repeat(8 * 1024 * 1024),
            "no-utf8" => manifest.plugin.summary = no_utf8(),
            _ => {}
        }
        manifest
    }

    fn encode(request: ModelRequest) -> Result<Exchange, Error> {
        let prompt = request
            .messages
            .iter()
            .rev()
            .find_map(|message| match message {
                Message::User(parts) => Some(text_of(parts)),
                _ => None,
            })
            .unwrap_or_default();
        let base_url = request
            .config
            .base_url
            .unwrap_or_else(|| "http://localhost".to_owned());
        let post = |url: String, memo: &str, body: Vec<u8>| {
            Exchange::Http(HttpExchange {
                request: Request::post(url).body(body),
                memo: memo.as_bytes().to_vec(),
            })
        };
        Ok(match prompt.trim().split_once(' ') {
            Some(("encode", "error")) => return Err(Error::new("as the prompt says")),
            Some(("encode", "config")) => {
                return Err(Error::Config("as the prompt says".to_owned()));
            }
            Some(("encode", "unsupported")) => {
                return Err(Error::Unsupported("as the prompt says".to_owned()));
            }
            Some(("encode", "trap")) => trap(),
            Some(("encode", "panic")) => panic!("as the prompt says"),
            Some(("encode", "spin")) => spin(),
            Some(("encode", "allocate")) => allocate(),
            Some(("encode", "grow")) => grow(),
            Some(("encode", "recurse")) => post(recurse(0).to_string(), "", Vec::new()),
            Some(("encode", "memo")) => post(base_url, &"m".repeat(1024 * 1024), Vec::new()),
            Some(("encode", "no-utf8")) => post(no_utf8(), "", Vec::new()),
            Some(("encode", "longer-than-memory")) => post(longer_than_memory(), "", Vec::new()),
            Some(("refuse", way)) => post(format!("{base_url}/refuse"), "", way.into()),
            Some(("encode", "huge")) => post(base_url, "", vec![b'x'; 17 * 1024 * 1024]),
            Some(("encode", "host")) => {
                post("http://elsewhere.invalid/".to_owned(), "", Vec::new())
            }
            Some(("local", "slow")) => {
                let mut local = Local::new();
                local.push(text("begun"));
                local.push_after(3_600_000, text("ended"));
                local.finish(FinishReason::Stop)
            }
            Some(("local", behaviour)) => {
                let mut local = Local::new();
                for event in wrong(behaviour) {
                    local.push(event);
                }
                local.exchange()
            }
            Some(("http", behaviour)) => post(format!("{base_url}/answer"), behaviour, Vec::new()),
            _ => {
                let mut local = Local::new();
                local.push(text(&prompt));
                local.finish(FinishReason::Stop)
            }
        })
    }

    fn classify(answer: Response) -> Failure {
        let body = String::from_utf8_lossy(&answer.body).into_owned();
        let says = |way: &str| body.contains(way);
        if says("trap") {
            trap();
        }
        if says("spin") {
            spin();
        }
        let mut failure = failure_of_status(&answer);
        if says("huge") {
            failure.message = "f".repeat(8 * 1024 * 1024);
        }
        if says("no-utf8") {
            failure.message = no_utf8();
        }
        failure
    }
}

/// Reads an answer wrongly: at its first bytes, all that the behaviour has.
struct Reader {
    behaviour: String,
    done: bool,
}

impl Decoder for Reader {
    fn new(_: Response, memo: Vec<u8>) -> Self {
        let behaviour = String::from_utf8_lossy(&memo).into_owned();
        match behaviour.as_str() {
            "new-trap" => trap(),
            "new-spin" => spin(),
            _ => {}
        }
        Self {
            behaviour,
            done: false,
        }
    }

    fn feed(&mut self, _: &[u8], events: &mut Vec<ModelEvent>) {
        if std::mem::replace(&mut self.done, true) {
            match self.behaviour.as_str() {
                "trap" => trap(),
                "spin" => spin(),
                "allocate" => allocate(),
                _ => return,
            }
        }
        if self.behaviour == "endless" {
            loop {
                events.push(text("more"));
            }
        }
        events.extend(wrong(&self.behaviour));
    }

    fn finish(&mut self, _: &mut Vec<ModelEvent>) {
        match self.behaviour.as_str() {
            "trap" | "finish-trap" => trap(),
            "spin" => spin(),
            "allocate" => allocate(),
            _ => {}
        }
    }
}

fn text(text: &str) -> ModelEvent {
    ModelEvent::TextDelta(text.to_owned())
}

fn start(id: &str) -> ModelEvent {
    ModelEvent::ToolCallStart(CallStart {
        id: id.to_owned(),
        tool: "echo".to_owned(),
    })
}

fn delta(id: &str, arguments: &str) -> ModelEvent {
    ModelEvent::ToolCallDelta(CallDelta {
        id: id.to_owned(),
        arguments: arguments.to_owned(),
    })
}

fn end(id: &str) -> ModelEvent {
    ModelEvent::ToolCallEnd(id.to_owned())
}

/// The events of a behaviour.
fn wrong(behaviour: &str) -> Vec<ModelEvent> {
    let stop = ModelEvent::Finished(FinishReason::Stop);
    let calls = ModelEvent::Finished(FinishReason::ToolCalls);
    let failed = ModelEvent::Failed(Failure::new(FailureClass::InvalidRequest, "no"));
    match behaviour {
        "after-finish" => vec![text("a"), stop, text("b")],
        "two-finishes" => vec![text("a"), stop.clone(), stop],
        "finish-and-fail" => vec![text("a"), stop, failed],
        "delta-before-start" => vec![text("a"), delta("1", "{}"), start("1"), end("1"), calls],
        "end-before-start" => vec![text("a"), end("1"), calls],
        "no-end" => vec![text("a"), start("1"), delta("1", "{}"), calls],
        "delta-after-end" => vec![
            start("1"),
            delta("1", "{}"),
            end("1"),
            delta("1", "{}"),
            calls,
        ],
        "duplicate-id" => vec![
            start("1"),
            delta("1", "{}"),
            end("1"),
            start("1"),
            delta("1", "{}"),
            end("1"),
            calls,
        ],
        "result-of-nothing" => vec![
            ModelEvent::HostedResult(HostedResult {
                call: "never".to_owned(),
                is_error: false,
                data: "{}".to_owned(),
            }),
            stop,
        ],
        "no-utf8" => vec![ModelEvent::TextDelta(no_utf8()), stop],
        "usage-overflow" => {
            let usage = Usage {
                input_tokens: Some(u32::MAX),
                cache_read_tokens: Some(u32::MAX),
                cache_write_tokens: Some(u32::MAX),
                output_tokens: Some(u32::MAX),
                reasoning_tokens: Some(u32::MAX),
                cost: Some(u64::MAX),
            };
            vec![
                ModelEvent::Usage(usage),
                ModelEvent::Usage(usage),
                text("a"),
                stop,
            ]
        }
        "huge-arguments" => {
            let mut events = vec![start("1")];
            events.extend(vec![delta("1", &"x".repeat(1000 * 1000)); 20]);
            events.extend([end("1"), calls]);
            events
        }
        "nothing" => Vec::new(),
        "bad-arguments" => vec![start("1"), delta("1", "{\"a\":"), end("1"), calls],
        "flood" => {
            let mut events = vec![text("x"); 20_000];
            events.push(stop);
            events
        }
        "huge-event" => vec![text(&"x".repeat(2 * 1024 * 1024)), stop],
        "huge-answer" => {
            let mut events = vec![text(&"x".repeat(1000 * 1000)); 20];
            events.push(stop);
            events
        }
        _ => vec![text("a")],
    }
}

fn trap() -> ! {
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::unreachable();
    #[cfg(not(target_arch = "wasm32"))]
    std::process::abort()
}

fn grow() -> ! {
    // More than any limit, at once.
    #[cfg(target_arch = "wasm32")]
    core::arch::wasm32::memory_grow::<0>(60_000);
    std::process::abort()
}

#[expect(
    unconditional_recursion,
    reason = "the stack's limit is what is tested"
)]
fn recurse(depth: u64) -> u64 {
    let frame = std::hint::black_box([depth; 64]);
    recurse(depth + 1) + frame[0]
}

fn spin() -> ! {
    loop {
        std::hint::black_box(());
    }
}

fn allocate() -> ! {
    let mut all: Vec<Vec<u8>> = Vec::new();
    loop {
        all.push(std::hint::black_box(vec![1; 1024 * 1024]));
    }
}
