//! A provider that misbehaves as the prompt says: the newest user message is `encode`, `local` or
//! `http`, and the name of a behaviour.
//!
//! | prompt | what it does |
//! |---|---|
//! | `encode error`, `encode config`, `encode unsupported` | answers with that error |
//! | `encode trap`, `encode panic`, `encode spin`, `encode allocate` | what they say |
//! | `encode huge` | a body past the limit |
//! | `encode host` | a request to a host that is in no manifest |
//! | `local …` | a local answer that is wrong as below |
//! | `http …` | a request to the base URL, whose answer is read wrongly as below, whatever it says |
//! | anything else | says it back |
//!
//! | answer | |
//! |---|---|
//! | `trap`, `spin` | text, then that (`http` only) |
//! | `after-finish`, `two-finishes`, `finish-and-fail` | more after the end |
//! | `delta-before-start`, `end-before-start`, `no-end`, `delta-after-end` | a call in the wrong order |
//! | `duplicate-id` | two calls under one id |
//! | `bad-arguments` | a call whose arguments are no JSON |
//! | `flood` | 20,000 events at once |
//! | `huge-event`, `huge-answer` | past the limits of size |
//! | `no-finish` | text and no end |
//! | `slow` | text, and an hour later the end (`local` only) |
//!
//! An error answer whose body contains `trap` makes `classify` trap.

use mainstay_guest::http::{Request, Response};
use mainstay_guest::provider::{
    CallDelta, CallStart, Decoder, Exchange, HttpExchange, Local, ModelEvent, ModelRequest,
    ProviderManifest, failure_of_status,
};
use mainstay_guest::types::{Failure, FailureClass, FinishReason, Message, text_of};
use mainstay_guest::{Error, Provider, manifest};

struct Hostile;

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
        if String::from_utf8_lossy(&answer.body).contains("trap") {
            trap();
        }
        failure_of_status(&answer)
    }
}

/// Reads an answer wrongly: at its first bytes, all that the behaviour has.
struct Reader {
    behaviour: String,
    done: bool,
}

impl Decoder for Reader {
    fn new(_: Response, memo: Vec<u8>) -> Self {
        Self {
            behaviour: String::from_utf8_lossy(&memo).into_owned(),
            done: false,
        }
    }

    fn feed(&mut self, _: &[u8], events: &mut Vec<ModelEvent>) {
        if std::mem::replace(&mut self.done, true) {
            match self.behaviour.as_str() {
                "trap" => trap(),
                "spin" => spin(),
                _ => return,
            }
        }
        events.extend(wrong(&self.behaviour));
    }

    fn finish(&mut self, _: &mut Vec<ModelEvent>) {
        match self.behaviour.as_str() {
            "trap" => trap(),
            "spin" => spin(),
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
