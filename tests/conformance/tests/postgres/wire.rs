//! A stand-in for what lies between a node and its database: it counts round trips, hands each
//! transaction to another connection as a pooler does, and loses connections to order.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

/// When a connection is lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// The database never hears of the statement.
    Before,
    /// The statement is done, and its answer lost.
    After,
    /// The statement is sent, and the way back is gone at once.
    Amid,
    /// The statement is swallowed, and nothing says so.
    Silence,
}

struct State {
    upstream: u16,
    pooled: bool,
    round_trips: AtomicU64,
    /// What the statement to be cut contains, and how.
    cut: Mutex<Option<(&'static str, Cut)>>,
}

pub(crate) struct Wire {
    state: Arc<State>,
    port: u16,
}

impl Wire {
    /// Listens in front of the server on this port of the loopback.
    pub(crate) async fn before(upstream: u16, pooled: bool) -> Self {
        let state = Arc::new(State {
            upstream,
            pooled,
            round_trips: AtomicU64::new(0),
            cut: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let served = state.clone();
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let state = served.clone();
                // It ends with either side.
                tokio::spawn(async move { drop(serve(client, &state).await) });
            }
        });
        Self { state, port }
    }

    /// The URL of a database of the server, by way of here.
    pub(crate) fn url(&self, url: &str) -> String {
        url.replace(
            &format!(":{}/", self.state.upstream),
            &format!(":{}/", self.port),
        )
    }

    /// Round trips of statements so far.
    pub(crate) fn round_trips(&self) -> u64 {
        self.state.round_trips.load(Ordering::SeqCst)
    }

    /// Loses the connection over the next message that contains a text.
    pub(crate) fn cut(&self, text: &'static str, cut: Cut) {
        *self.state.cut.lock().unwrap() = Some((text, cut));
    }

    /// Whether what was to be lost is lost.
    pub(crate) fn is_cut(&self) -> bool {
        self.state.cut.lock().unwrap().is_none()
    }
}

async fn serve(mut client: TcpStream, state: &State) -> io::Result<()> {
    client.set_nodelay(true)?;
    let startup = loop {
        let message = body(&mut client, Vec::new()).await?;
        // Asks for TLS, which is not offered.
        if message[4..8] == 80_877_103_u32.to_be_bytes() {
            client.write_all(b"N").await?;
            continue;
        }
        break message;
    };
    let mut servers = Vec::new();
    for n in 0..if state.pooled { 2 } else { 1 } {
        let mut server = TcpStream::connect(("127.0.0.1", state.upstream)).await?;
        server.set_nodelay(true)?;
        server.write_all(&startup).await?;
        let hello = answer(&mut server).await?;
        if n == 0 {
            client.write_all(&hello).await?;
        }
        servers.push(server);
    }
    let mut current = 0;
    let mut request = Vec::new();
    loop {
        let part = message(&mut client).await?;
        let kind = part[0];
        request.extend(part);
        match kind {
            b'X' => return Ok(()),
            b'Q' | b'S' => {}
            _ => continue,
        }
        let server = &mut servers[current];
        let cut = {
            let mut cut = state.cut.lock().unwrap();
            let hit = cut.filter(|(text, _)| contains(&request, text.as_bytes()));
            if hit.is_some() {
                *cut = None;
            }
            hit.map(|(_, cut)| cut)
        };
        if cut == Some(Cut::Before) {
            return Ok(());
        }
        if cut == Some(Cut::Silence) {
            // Until the other side gives up.
            while message(&mut client).await.is_ok() {}
            return Ok(());
        }
        server.write_all(&std::mem::take(&mut request)).await?;
        if cut == Some(Cut::Amid) {
            return Ok(());
        }
        let answer = answer(server).await?;
        if cut == Some(Cut::After) {
            return Ok(());
        }
        state.round_trips.fetch_add(1, Ordering::SeqCst);
        client.write_all(&answer).await?;
        if state.pooled && answer.last() == Some(&b'I') {
            current = 1 - current;
        }
    }
}

/// Everything up to where the server is ready for more, or has gone.
async fn answer(server: &mut TcpStream) -> io::Result<Vec<u8>> {
    let mut answer = Vec::new();
    loop {
        let message = message(server).await?;
        let ready = message[0] == b'Z';
        answer.extend(message);
        if ready {
            return Ok(answer);
        }
    }
}

async fn message(from: &mut TcpStream) -> io::Result<Vec<u8>> {
    let kind = from.read_u8().await?;
    body(from, vec![kind]).await
}

async fn body(from: &mut TcpStream, mut message: Vec<u8>) -> io::Result<Vec<u8>> {
    let length = from.read_u32().await?;
    message.extend(length.to_be_bytes());
    let start = message.len();
    message.resize(start + length as usize - 4, 0);
    from.read_exact(&mut message[start..]).await?;
    Ok(message)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    text.windows(part.len()).any(|window| window == part)
}
