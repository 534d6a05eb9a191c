//! What does a session take of the memory while it is active? A thousand are in the middle of a model's
//! answer at once, all of one provider: one that answers by itself, so that no guest is alive meanwhile,
//! and one that reads a server's answer, with a guest of its own for each.
//!
//! The server is in this process, and what it takes is counted as the sessions'.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mainstay_bench::report::{Table, resident};
use mainstay_bench::world::{self, Ground};
use mainstay_bench::{guests, turn, work};
use mainstay_core::config::{Agent, Config, Provider, Settings};
use mainstay_core::event::SessionCreated;
use mainstay_core::history::ModelRef;
use mainstay_core::id::SessionId;
use mainstay_core::node::Node;
use mainstay_core::plugin::{Kind, Plugins as _, ResponseHead, Scheme};
use mainstay_core::port::Store as _;
use mainstay_runtime::egress::{GrantRule, Grants};
use mainstay_runtime::{MemorySource, RuntimeConfig};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// Sessions that are active at once.
const MEASURED: usize = 1_000;
const QUICK: usize = 4;

/// Between two words of an answer.
const PAUSE: Duration = Duration::from_secs(5);
/// Words of an answer that is not waited for.
const WORDS: usize = 600;

const MODELS: [&str; 2] = ["local", "server"];

fn main() {
    let sessions = if mainstay_bench::is_measured() {
        MEASURED
    } else {
        QUICK
    };
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let tokio = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    tokio.block_on(async {
        let table = Table::new(&[
            "model",
            "sessions",
            "base MiB",
            "beyond MiB",
            "KiB each",
            "of it a guest's own KiB",
            "KiB without it",
        ]);
        for model in MODELS {
            let dir = tempfile::tempdir_in(tmp).expect("a folder on the disk of the build");
            let (base, active) = active(dir.path(), tmp, model, sessions).await;
            let beyond = active.saturating_sub(base);
            // Behind it, so that memory that was given back makes a guest look smaller, if anything.
            let own = match model {
                "server" => decoders(dir.path(), sessions).await,
                _ => 0,
            };
            let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
            let each = |bytes: u64| bytes as f64 / 1024.0 / sessions as f64;
            table.row(&[
                model.to_owned(),
                sessions.to_string(),
                format!("{:.0}", mib(base)),
                format!("{:.0}", mib(beyond)),
                format!("{:.0}", each(beyond)),
                format!("{:.0}", each(own)),
                format!("{:.0}", each(beyond.saturating_sub(own))),
            ]);
        }
    });
}

/// Memory of a node that has nothing to do, and with all of its sessions active.
async fn active(dir: &Path, tmp: &Path, model: &str, sessions: usize) -> (u64, u64) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("its address");
    let server = tokio::spawn(serve(listener));
    let ground = Ground::open(dir, &tmp.join("compiled")).await;
    let rule = GrantRule {
        scheme: Some(Scheme::Http),
        host: address.ip().to_string(),
        port: Some(address.port()),
        methods: Vec::new(),
        path_prefix: "/".to_owned(),
        private: true,
    };
    let grants = Grants {
        http: vec![rule],
        ..Grants::default()
    };
    let egress = ground.runtime.egress();
    egress.grant(Kind::Provider, "openai-chat", grants.clone());
    egress.grant(Kind::Provider, "server", grants);
    let node = ground.node_of(Settings::default(), config(&format!("http://{address}")));

    // What is made once, as pools and caches are, belongs to a node that has nothing to do.
    for session in begin(&node, &ground, model, (sessions / 20).max(1)).await {
        let ran = node.interrupt(session).await;
        assert!(
            ran.expect("an interrupt"),
            "it is in the middle of its answer"
        );
        node.idle(session).await.expect("its end");
    }
    let before = resident();
    let active = begin(&node, &ground, model, sessions).await;
    let after = resident();
    for session in active {
        let tail = ground.store.tail(session).await.expect("a read");
        let tail = tail.expect("the session");
        assert!(tail.claim.is_some(), "all are active at once");
    }
    node.shutdown().await;
    ground.store.close().await;
    server.abort();
    (before, after)
}

/// Makes so many sessions, and waits until each of them has a piece of its answer.
async fn begin(node: &Node, ground: &Ground, model: &str, sessions: usize) -> Vec<SessionId> {
    let prompt = format!("slow {} {}", PAUSE.as_millis(), "word ".repeat(WORDS));
    let mut begun = Vec::with_capacity(sessions);
    for _ in 0..sessions {
        let session = SessionId::new();
        let created = SessionCreated {
            agent: model.to_owned(),
            ..SessionCreated::default()
        };
        node.create(session, created).await.expect("a session");
        turn::prompt_to(node, session, &prompt).await;
        begun.push(session);
    }
    work::answering(&*ground.store, &begun).await;
    begun
}

fn config(base_url: &str) -> Config {
    let agent = |provider: &str| Agent {
        model: ModelRef {
            provider: provider.to_owned(),
            model: "parrot".to_owned(),
        },
        ..Agent::default()
    };
    let provider = |plugin: &str, base_url: Option<&str>| Provider {
        plugin: plugin.to_owned(),
        base_url: base_url.map(str::to_owned),
        options: None,
        models: Vec::new(),
    };
    Config {
        agents: MODELS
            .into_iter()
            .map(|model| (model.to_owned(), agent(model)))
            .collect(),
        providers: [
            ("local".to_owned(), provider("parrot", None)),
            ("server".to_owned(), provider("openai-chat", Some(base_url))),
        ]
        .into(),
    }
}

/// Answers every request word by word, for as long as anyone listens.
async fn serve(listener: TcpListener) {
    while let Ok((client, _)) = listener.accept().await {
        tokio::spawn(async move {
            // Whoever is gone wants no answer.
            let _ = dribble(client).await;
        });
    }
}

const HEAD: &[u8] =
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n";
const WORD: &[u8] = b"data: {\"id\":\"1\",\"object\":\"chat.completion.chunk\",\"choices\":\
    [{\"index\":0,\"delta\":{\"content\":\"word \"}}]}\n\n";

async fn dribble(mut client: TcpStream) -> std::io::Result<()> {
    // The request is not looked at; its beginning shows that it is there.
    let mut request = [0; 1024];
    if client.read(&mut request).await? == 0 {
        return Ok(());
    }
    client.write_all(HEAD).await?;
    for _ in 0..WORDS {
        client.write_all(WORD).await?;
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

/// Memory of so many decoders alone, each in the middle of an answer.
async fn decoders(dir: &Path, count: usize) -> u64 {
    let config = RuntimeConfig {
        // Some are kept for guests that answer at once.
        instances: u32::try_from(count).expect("not so many") * 2,
        ..RuntimeConfig::new(dir)
    };
    let runtime = world::runtime(config, Arc::new(MemorySource::new()));
    let info = runtime.install(guests::OPENAI_CHAT).await;
    let digest = info.expect("a component").digest.clone();
    let make = async || {
        let head = ResponseHead {
            status: 200,
            headers: vec![("content-type".to_owned(), "text/event-stream".to_owned())],
        };
        let decoder = runtime.decoder(&digest, head, Vec::new()).await;
        let mut decoder = decoder.expect("a decoder");
        let events = decoder.feed(WORD.to_vec()).await;
        assert_eq!(events.expect("events").len(), 1);
        decoder
    };
    let before = resident();
    let mut all = Vec::with_capacity(count);
    for _ in 0..count {
        all.push(make().await);
    }
    let after = resident();
    assert_eq!(all.len(), count, "all are alive");
    after.saturating_sub(before)
}
