//! A server on this machine that answers whatever a toolbox under test asks for: at once, with an error,
//! slowly, without end, or not at all. It speaks as much HTTP as that takes.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::Error;

/// How it answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Manner {
    /// With a body, at once.
    AtOnce,
    /// With the same, a piece at a time.
    Slowly,
    /// With status 500 and a body in words.
    Fails,
    /// With a body that goes on for ever.
    Endlessly,
    /// Takes the request and never answers.
    Never,
}

/// A server that lives until it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    requests: Arc<AtomicU64>,
    task: JoinHandle<()>,
}

const BODY: &[u8] = br#"{"title":"A page","items":[1,2,3]}"#;
/// Between two pieces of a slow answer.
const PAUSE: Duration = Duration::from_millis(20);
/// Bytes of a request's head.
const HEAD_BYTES: usize = 64 << 10;

impl Server {
    pub(crate) async fn start(manner: Manner) -> Result<Self, Error> {
        let failed = |error| Error::new("start a server on this machine", error);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let requests = Arc::new(AtomicU64::new(0));
        let count = Arc::clone(&requests);
        let task = tokio::spawn(async move {
            let mut clients = tokio::task::JoinSet::new();
            while let Ok((client, _)) = listener.accept().await {
                let count = Arc::clone(&count);
                clients.spawn(async move {
                    // A client that is gone wants no answer.
                    let _ = answer(client, manner, &count).await;
                });
            }
        });
        Ok(Self {
            address,
            requests,
            task,
        })
    }

    /// Requests that have come in.
    pub(crate) fn requests(&self) -> u64 {
        self.requests.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

async fn answer(mut client: TcpStream, manner: Manner, count: &AtomicU64) -> std::io::Result<()> {
    let Some(asks_for_head) = request(&mut client).await? else {
        return Ok(());
    };
    count.fetch_add(1, Ordering::SeqCst);
    let status = match manner {
        Manner::Fails => "500 Internal Server Error",
        _ => "200 OK",
    };
    let length = match manner {
        Manner::Endlessly => String::new(),
        _ => format!("content-length: {}\r\n", BODY.len()),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\ncontent-type: application/json\r\n{length}connection: close\r\n\r\n"
    );
    let body = if asks_for_head { &[] } else { BODY };
    match manner {
        Manner::Never => std::future::pending().await,
        Manner::AtOnce | Manner::Fails => {
            client.write_all(head.as_bytes()).await?;
            client.write_all(body).await?;
        }
        Manner::Slowly => {
            client.write_all(head.as_bytes()).await?;
            for piece in body.chunks(8) {
                tokio::time::sleep(PAUSE).await;
                client.write_all(piece).await?;
            }
        }
        Manner::Endlessly => {
            client.write_all(head.as_bytes()).await?;
            let piece = [b' '; 16 << 10];
            if !asks_for_head {
                loop {
                    client.write_all(&piece).await?;
                }
            }
        }
    }
    client.shutdown().await
}

/// Reads a request to its end. Gives whether it asks for an answer without a body; `None` for what is no
/// request.
async fn request(client: &mut TcpStream) -> std::io::Result<Option<bool>> {
    let mut read = Vec::new();
    let end = loop {
        if let Some(end) = read.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            break end + 4;
        }
        if read.len() > HEAD_BYTES || client.read_buf(&mut read).await? == 0 {
            return Ok(None);
        }
    };
    let head = String::from_utf8_lossy(&read[..end]).to_ascii_lowercase();
    let field = |name: &str| {
        let line = head.lines().find_map(|line| line.strip_prefix(name));
        line.map(str::trim)
    };
    let length = field("content-length:").and_then(|length| length.parse::<u64>().ok());
    // What has come of the body already; a client may wait until all of it is taken.
    let mut left = length
        .unwrap_or(0)
        .saturating_sub((read.len() - end) as u64);
    let mut rest = [0; 8 << 10];
    while left > 0 {
        let some = client.read(&mut rest).await?;
        if some == 0 {
            return Ok(None);
        }
        left = left.saturating_sub(some as u64);
    }
    Ok(Some(head.starts_with("head ")))
}
