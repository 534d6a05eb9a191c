//! What lies between a node and its database: it loses connections in the middle of a commit, all at
//! once, or falls silent.

use std::io;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// How the next commit is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The database never hears of it.
    Before,
    /// It is done, and its answer lost.
    After,
}

/// What the message of a commit holds and that of no other statement: a session's value, inside a row.
const COMMIT: &[u8] = br#"created_at\""#;

pub(crate) struct Proxy {
    port: u16,
    state: Arc<State>,
}

struct State {
    upstream: u16,
    armed: Mutex<Option<Cut>>,
    /// Commits that were lost.
    cuts: AtomicU64,
    /// Every connection of an earlier one is lost.
    generation: watch::Sender<u64>,
    silent: watch::Sender<bool>,
}

impl Proxy {
    /// Listens in front of the server on this port of the loopback.
    pub(crate) async fn before(upstream: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let state = Arc::new(State {
            upstream,
            armed: Mutex::default(),
            cuts: AtomicU64::new(0),
            generation: watch::Sender::new(0),
            silent: watch::Sender::new(false),
        });
        let port = listener.local_addr().unwrap().port();
        let served = Arc::clone(&state);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = Arc::clone(&served);
                let mut generation = state.generation.subscribe();
                tokio::spawn(async move {
                    tokio::select! {
                        done = serve(client, &state) => drop(done),
                        _ = generation.changed() => {}
                    }
                });
            }
        });
        Self { port, state }
    }

    /// The URL of a database of the server, by way of here.
    pub(crate) fn url(&self, url: &str) -> String {
        let (direct, here) = (self.state.upstream, self.port);
        url.replace(&format!(":{direct}/"), &format!(":{here}/"))
    }

    /// Loses the next commit.
    pub(crate) fn arm(&self, cut: Cut) {
        *self.state.armed.lock().unwrap() = Some(cut);
    }

    pub(crate) fn disarm(&self) {
        *self.state.armed.lock().unwrap() = None;
    }

    /// Loses all connections at once.
    pub(crate) fn cut_all(&self) {
        self.state.generation.send_modify(|number| *number += 1);
    }

    /// Passes nothing on any more, and says so to nobody; or goes on.
    pub(crate) fn silence(&self, silent: bool) {
        self.state.silent.send_replace(silent);
    }

    /// Commits that were lost so far.
    pub(crate) fn cuts(&self) -> u64 {
        self.state.cuts.load(Ordering::Relaxed)
    }
}

async fn serve(mut client: TcpStream, state: &State) -> io::Result<()> {
    let mut server = TcpStream::connect(("127.0.0.1", state.upstream)).await?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut silent = state.silent.subscribe();
    let (mut asked, mut answered) = (vec![0; 64 << 10], vec![0; 64 << 10]);
    // Once its answer comes, a commit's connection is lost.
    let mut doomed = false;
    loop {
        if silent.wait_for(|silent| !silent).await.is_err() {
            return Ok(());
        }
        tokio::select! {
            read = client.read(&mut asked) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                let asked = &asked[..read];
                if asked.windows(COMMIT.len()).any(|part| part == COMMIT) {
                    match state.armed.lock().unwrap().take() {
                        Some(Cut::Before) => {
                            state.cuts.fetch_add(1, Ordering::Relaxed);
                            return Ok(());
                        }
                        Some(Cut::After) => doomed = true,
                        None => {}
                    }
                }
                server.write_all(asked).await?;
            }
            read = server.read(&mut answered) => {
                let read = read?;
                if read == 0 {
                    return Ok(());
                }
                if doomed {
                    state.cuts.fetch_add(1, Ordering::Relaxed);
                    return Ok(());
                }
                client.write_all(&answered[..read]).await?;
            }
            _ = silent.changed() => {}
        }
    }
}
