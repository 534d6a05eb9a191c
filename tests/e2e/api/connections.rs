//! Connections of the real binary: who gets one, who keeps it, and who is let go.

use std::path::Path;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::{DEADLINE, Server, mainstay};

struct Place {
    folder: tempfile::TempDir,
    server: Server,
}

impl Place {
    async fn start(config: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let server = serve(folder.path(), config, None).await;
        Self { folder, server }
    }

    fn address(&self) -> &str {
        self.server.address.strip_prefix("http://").unwrap()
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address()).await.unwrap()
    }

    /// Sends text on a connection of its own.
    async fn send(&self, text: &str) -> TcpStream {
        let mut stream = self.connect().await;
        stream.write_all(text.as_bytes()).await.unwrap();
        stream
    }

    /// All that is answered to a request on a connection of its own.
    async fn ask(&self, head: &str, body: &str) -> String {
        let host = self.address();
        let length = body.len();
        let request = format!(
            "{head} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        rest(self.send(&request).await).await
    }

    async fn session(&self) -> String {
        let answer = self.ask("POST /v1/sessions", "{}").await;
        let id = answer.split("\"id\":\"").nth(1).expect(&answer);
        id.split('"').next().unwrap().to_owned()
    }

    /// A stream of a session's events that has begun.
    async fn stream(&self, session: &str) -> TcpStream {
        let host = self.address();
        let request = format!(
            "GET /v1/sessions/{session}/events HTTP/1.1\r\nhost: {host}\r\n\
             accept: text/event-stream\r\n\r\n"
        );
        let begun = async {
            loop {
                let mut stream = self.send(&request).await;
                // An answer before may hold its place for an instant.
                if until(&mut stream, "synced").await {
                    return stream;
                }
            }
        };
        let begun = tokio::time::timeout(DEADLINE, begun).await;
        begun.expect("the stream begins")
    }
}

/// A server in this folder, started under a shell's limits.
async fn serve(folder: &Path, config: &str, limits: Option<&str>) -> Server {
    let file = folder.join("mainstay.toml");
    std::fs::write(&file, config).unwrap();
    let plain = mainstay(&folder.join("store.db"), &file);
    let Some(limits) = limits else {
        return Server::run(plain).await;
    };
    let plain = plain.as_std();
    let mut command = tokio::process::Command::new("sh");
    command
        .arg("-c")
        .arg(format!("{limits} && exec \"$0\" \"$@\""))
        .arg(plain.get_program())
        .args(plain.get_args())
        .kill_on_drop(true);
    for (name, value) in plain.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    Server::run(command).await
}

/// What comes until the other side closes.
async fn rest(mut stream: TcpStream) -> String {
    let mut bytes = Vec::new();
    let read = tokio::time::timeout(DEADLINE, stream.read_to_end(&mut bytes)).await;
    // Closed on bytes that it had not read, it resets the connection.
    let _ = read.expect("the connection is closed");
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Reads until this text has come. False where the other side closes before.
async fn until(stream: &mut TcpStream, text: &str) -> bool {
    let mut bytes = Vec::new();
    let read = async {
        while !String::from_utf8_lossy(&bytes).contains(text) {
            if stream.read_buf(&mut bytes).await.unwrap_or(0) == 0 {
                return false;
            }
        }
        true
    };
    let read = tokio::time::timeout(DEADLINE, read).await;
    read.unwrap_or_else(|_| panic!("`{text}` never comes"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_says_too_little_is_let_go_and_a_stream_stays() {
    let place = Place::start("[server]\nread-timeout = \"400ms\"\n").await;
    let session = place.session().await;
    let mut stream = place.stream(&session).await;

    assert_eq!(rest(place.connect().await).await, "", "it said nothing");
    let half = place.send("GET /v1/health HTTP/1.1\r\nhos").await;
    assert_eq!(rest(half).await, "", "it said half a head");
    // A head as slow as can be.
    let mut drip = place.send("GET /v1/health HTTP/1.1\r\n").await;
    let dripped = async {
        while drip.write_all(b"x-a: b\r\n").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let dripped = tokio::time::timeout(DEADLINE, dripped).await;
    dripped.expect("a head that never ends is ended");
    // Nothing more is asked on a connection that is kept open.
    let host = place.address();
    let kept = place
        .send(&format!(
            "GET /v1/sessions HTTP/1.1\r\nhost: {host}\r\n\r\n"
        ))
        .await;
    assert!(rest(kept).await.starts_with("HTTP/1.1 200"));

    let head = format!(
        "POST /v1/sessions HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n\
         content-length: 100000\r\n\r\n"
    );
    let silent = rest(place.send(&head).await).await;
    assert!(silent.starts_with("HTTP/1.1 408"), "{silent}");
    assert!(silent.contains("problem:body-timeout"), "{silent}");
    let mut trickle = place.send(&head).await;
    let (mut reader, mut writer) = trickle.split();
    let mut answer = Vec::new();
    let written = async {
        while writer.write_all(b" ").await.is_ok() {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    let read = async {
        tokio::select! {
            () = written => {}
            _ = reader.read_buf(&mut answer) => {}
        }
    };
    let read = tokio::time::timeout(DEADLINE, read).await;
    read.expect("a body that trickles is ended");
    let answer = String::from_utf8_lossy(&answer);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    let import = head.replace("/v1/sessions", "/v1/imports");
    let import = rest(place.send(&import).await).await;
    assert!(import.starts_with("HTTP/1.1 408"), "{import}");

    let path = format!("POST /v1/sessions/{session}/inputs");
    let admitted = place.ask(&path, r#"{"text":"slow 100 still here"}"#).await;
    assert!(admitted.starts_with("HTTP/1.1 202"), "{admitted}");
    assert!(until(&mut stream, "execution.succeeded").await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn more_clients_than_there_is_room_for_are_told_so() {
    let place = Place::start("[server]\nmax-connections = 2\n").await;
    let session = place.session().await;
    let (first, second) = (place.stream(&session).await, place.stream(&session).await);
    let refused = place.ask("GET /v1/sessions", "").await;
    assert!(refused.starts_with("HTTP/1.1 503"), "{refused}");
    for told in ["problem:unavailable", "max-connections", "retry-after"] {
        assert!(refused.contains(told), "{refused}");
    }
    place.server.says("all connections are taken").await;
    drop(first);
    let answered = async {
        while !place
            .ask("GET /v1/sessions", "")
            .await
            .starts_with("HTTP/1.1 200")
        {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    let answered = tokio::time::timeout(DEADLINE, answered).await;
    answered.expect("there is room again");
    drop(second);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_takes_all_files_that_it_may_have() {
    let folder = tempfile::tempdir().unwrap();
    let server = serve(folder.path(), "", Some("ulimit -S -n 100")).await;
    let place = Place { folder, server };
    let session = place.session().await;
    let mut streams = Vec::new();
    for _ in 0..120 {
        streams.push(place.stream(&session).await);
    }
    assert!(place.folder.path().join("store.db").exists());
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_without_files_says_so_and_goes_on_once_there_are_some() {
    use rustix::process::{Pid, Resource, Rlimit, prlimit};
    let place = Place::start("").await;
    let session = place.session().await;
    let pid = Pid::from_raw(place.server.child.id().unwrap().cast_signed());
    let limit = |current| {
        let none = Rlimit {
            current: Some(current),
            maximum: rustix::process::getrlimit(Resource::Nofile).maximum,
        };
        prlimit(pid, Resource::Nofile, none).unwrap()
    };
    let usual = limit(3).current.unwrap();
    let mut waiting = place.connect().await;
    place.server.says("no connection can be taken").await;
    limit(usual);
    let host = place.address();
    let request =
        format!("GET /v1/sessions/{session} HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
    waiting.write_all(request.as_bytes()).await.unwrap();
    let answer = rest(waiting).await;
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_8_two_hosts_in_one_request_are_refused() {
    let place = Place::start("").await;
    let host = place.address();
    for hosts in [
        format!("host: {host}\r\nhost: evil.example"),
        format!("host: {host}\r\nhost: {host}"),
    ] {
        let request = format!(
            "POST /v1/sessions HTTP/1.1\r\n{hosts}\r\nconnection: close\r\n\
             content-type: application/json\r\ncontent-length: 2\r\n\r\n{{}}"
        );
        let answer = rest(place.send(&request).await).await;
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
        assert!(answer.contains("more than one `host` header"), "{answer}");
    }
    let listed = place.ask("GET /v1/sessions", "").await;
    assert!(listed.contains("\"items\":[]"), "{listed}");
}
