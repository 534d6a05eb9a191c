//! The HTTP surface of the real binary, with the provider that needs no network.

mod support;

#[path = "api/connections.rs"]
mod connections;

use std::path::PathBuf;
use std::time::Duration;

use serde_json::{Value, json};
use support::{DEADLINE, Server, mainstay};

struct Host {
    folder: tempfile::TempDir,
    config: PathBuf,
    server: Server,
}

impl Host {
    async fn start() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let config = folder.path().join("mainstay.toml");
        std::fs::write(&config, "[agents.default]\ntoolboxes = [\"files\"]\n[toolboxes.files]\nworkspace = \"read-write\"\n").unwrap();
        let server = Server::start(&folder.path().join("store.db"), &config).await;
        Self {
            folder,
            config,
            server,
        }
    }

    async fn session(&self) -> String {
        let (status, body) = self.server.post("/sessions", json!({})).await;
        assert!(status < 300, "{body}");
        body["id"].as_str().unwrap().to_owned()
    }

    async fn prompt(&self, session: &str, text: &str) -> Value {
        let (status, body) = self
            .server
            .post(
                &format!("/sessions/{session}/inputs"),
                json!({ "text": text }),
            )
            .await;
        assert_eq!(status, 202, "{body}");
        body
    }

    /// Events of a stream until one is wanted no more: id, name, data.
    async fn stream(
        &self,
        session: &str,
        last: Option<u64>,
        mut more: impl FnMut(&(Option<u64>, String, Value)) -> bool,
    ) -> Vec<(Option<u64>, String, Value)> {
        let mut request = self
            .server
            .http
            .get(format!(
                "{}/v1/sessions/{session}/events",
                self.server.address
            ))
            .header("accept", "text/event-stream");
        if let Some(last) = last {
            request = request.header("last-event-id", last.to_string());
        }
        let mut answer = request.send().await.unwrap();
        assert_eq!(answer.status(), 200);
        let (mut buffer, mut events) = (String::new(), Vec::new());
        loop {
            let chunk = tokio::time::timeout(DEADLINE, answer.chunk())
                .await
                .expect("the stream goes on")
                .unwrap();
            let Some(chunk) = chunk else { return events };
            buffer.push_str(std::str::from_utf8(&chunk).unwrap());
            while let Some(end) = buffer.find("\n\n") {
                let block: String = buffer.drain(..end + 2).collect();
                let field = |name: &str| {
                    block
                        .lines()
                        .find_map(|line| line.strip_prefix(name))
                        .map(|text| text.trim().to_owned())
                };
                let Some(data) = field("data:") else { continue };
                let event = (
                    field("id:").map(|id| id.parse().unwrap()),
                    field("event:").unwrap_or_default(),
                    serde_json::from_str(&data).unwrap(),
                );
                let go_on = more(&event);
                events.push(event);
                if !go_on {
                    return events;
                }
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_2_a_client_that_is_ahead_of_the_log_is_told_so() {
    let host = Host::start().await;
    let session = host.session().await;
    let url = format!("{}/v1/sessions/{session}/events", host.server.address);
    let head = host.server.events(&session).await.len() as u64;
    for (last, expected) in [(head, 200), (head + 1, 409), (u64::MAX, 409)] {
        let request = host.server.http.get(&url);
        let request = request
            .header("accept", "text/event-stream")
            .header("last-event-id", last.to_string());
        let answer = request.send().await.unwrap();
        assert_eq!(answer.status(), expected, "{last}");
        if expected == 409 {
            let problem: Value = answer.json().await.unwrap();
            assert_eq!(problem["type"], "urn:mainstay:problem:diverged");
            let detail = problem["detail"].as_str().unwrap();
            assert!(detail.contains(&format!("ends at {head}")), "{detail}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_1_a_prompt_posted_twice_is_answered_alike() {
    let host = Host::start().await;
    let (a, b) = (host.session().await, host.session().await);
    let id = "01890000-0000-7000-8000-000000000001";
    let body = json!({ "id": id, "text": "say hello" });
    let first = host
        .server
        .post(&format!("/sessions/{a}/inputs"), body.clone())
        .await;
    host.server.idle(&a).await;
    let second = host
        .server
        .post(&format!("/sessions/{a}/inputs"), body.clone())
        .await;
    assert_eq!(first, second);
    assert_eq!(first.0, 202);
    assert_eq!(first.1["input"], id);
    assert!(first.1["seq"].is_u64());
    let (status, problem) = host
        .server
        .post(&format!("/sessions/{b}/inputs"), body)
        .await;
    assert_eq!(status, 409);
    assert!(
        problem["type"].is_string() && problem["detail"].as_str().unwrap().contains(id),
        "{problem}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_2_ids_of_a_stream_are_seqs_and_it_resumes_behind_one() {
    let host = Host::start().await;
    let session = host.session().await;
    host.prompt(&session, "slow 60 one two three four").await;
    let all = host
        .stream(&session, None, |event| event.1 != "execution.succeeded")
        .await;
    let stored: Vec<u64> = all.iter().filter_map(|event| event.0).collect();
    assert_eq!(stored, (1..=stored.len() as u64).collect::<Vec<_>>());
    assert!(
        all.iter()
            .any(|event| event.1 == "live" && event.0.is_none())
    );
    for event in &all {
        assert_eq!(
            event.0.is_some(),
            event.2["seq"].is_u64() && event.1 != "synced",
            "{event:?}"
        );
    }
    let rest = host
        .stream(&session, Some(7), |event| event.1 != "synced")
        .await;
    assert_eq!(rest[0].0, Some(8));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_3_twenty_reconnections_lose_and_repeat_nothing() {
    let host = Host::start().await;
    let session = host.session().await;
    for n in 0..20 {
        host.prompt(&session, &format!("say answer {n}")).await;
    }
    let mut seqs: Vec<u64> = Vec::new();
    for n in 1..=20 {
        let (mut left, last) = (3 * n, seqs.last().copied());
        let part = host
            .stream(&session, last, |event| {
                left -= i32::from(event.0.is_some());
                left > 0
            })
            .await;
        seqs.extend(part.iter().filter_map(|event| event.0));
        if seqs.len() > 80 {
            break;
        }
    }
    host.server.idle(&session).await;
    let rest = host
        .stream(&session, seqs.last().copied(), |event| event.1 != "synced")
        .await;
    seqs.extend(rest.iter().filter_map(|event| event.0));
    let head = host.server.events(&session).await.len() as u64;
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
}

/// The ids in what came of a stream.
fn ids(raw: &[u8]) -> Vec<u64> {
    String::from_utf8_lossy(raw)
        .lines()
        .filter_map(|line| line.strip_prefix("id:"))
        .filter_map(|id| id.trim().parse().ok())
        .collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_4_a_client_that_stops_reading_is_ended_alone() {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let host = Host::start().await;
    let session = host.session().await;
    // What is admitted stays pending behind a step that lasts.
    host.prompt(&session, "slow 600000 never said").await;
    let address = host.server.address.strip_prefix("http://").unwrap();
    let mut stalled = tokio::net::TcpStream::connect(address).await.unwrap();
    let request = format!(
        "GET /v1/sessions/{session}/events HTTP/1.1\r\nhost: {address}\r\naccept: text/event-stream\r\n\r\n"
    );
    stalled.write_all(request.as_bytes()).await.unwrap();

    // More than the sockets and the buffer hold: 24 MB.
    const PROMPTS: usize = 400;
    let admit = async {
        let text = "x".repeat(60_000);
        let mut admitted = Vec::new();
        for _ in 0..PROMPTS {
            let (status, body) = host
                .server
                .post(
                    &format!("/sessions/{session}/inputs"),
                    json!({ "text": text, "delivery": "queue" }),
                )
                .await;
            assert_eq!(status, 202, "{body}");
            admitted.push(body["seq"].as_u64().unwrap());
        }
        admitted
    };
    let mut seen = 0;
    let follow = host.stream(&session, None, |event| {
        seen += usize::from(event.1 == "input.admitted");
        seen <= PROMPTS
    });
    let (admitted, followed) =
        tokio::time::timeout(DEADLINE * 2, async { tokio::join!(admit, follow) })
            .await
            .expect("admissions and the other stream go on");
    let followed: Vec<u64> = followed.iter().filter_map(|event| event.0).collect();
    assert_eq!(
        followed,
        (1..=*admitted.last().unwrap()).collect::<Vec<_>>()
    );

    host.server.says("its client is too slow").await;
    // The rest of the answer is what the sockets held, and its end.
    let mut raw = Vec::new();
    while !raw.ends_with(b"\r\n0\r\n\r\n") {
        let read = tokio::time::timeout(DEADLINE, stalled.read_buf(&mut raw)).await;
        if read.expect("the answer ends").unwrap_or(0) == 0 {
            break;
        }
    }
    let last = *ids(&raw).last().unwrap();
    assert!(last < *admitted.last().unwrap(), "it was given everything");
    let rest = host
        .stream(&session, Some(last), |event| {
            event.0 != admitted.last().copied()
        })
        .await;
    let rest: Vec<u64> = rest.iter().filter_map(|event| event.0).collect();
    assert_eq!(
        rest,
        (last + 1..=*admitted.last().unwrap()).collect::<Vec<_>>()
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_5_messages_are_paged_both_ways_without_hole_or_repeat() {
    let host = Host::start().await;
    let session = host.session().await;
    for n in 0..12 {
        host.prompt(&session, &format!("say answer {n}")).await;
    }
    host.server.idle(&session).await;
    let mut seqs = Vec::new();
    let mut path = format!("/sessions/{session}/messages?limit=5");
    let mut back = None;
    loop {
        let (status, page) = host.server.get(&path).await;
        assert_eq!(status, 200, "{page}");
        seqs.extend(
            page["items"]
                .as_array()
                .unwrap()
                .iter()
                .map(|item| item["seq"].as_u64().unwrap()),
        );
        let Some(next) = page["next"].as_str() else {
            back = page["previous"].as_str().map(str::to_owned).or(back);
            break;
        };
        path = format!("/sessions/{session}/messages?limit=5&cursor={next}");
    }
    assert_eq!(seqs.len(), 24);
    assert!(seqs.windows(2).all(|pair| pair[0] < pair[1]));
    let back = back.expect("a cursor back");
    let (_, page) = host
        .server
        .get(&format!(
            "/sessions/{session}/messages?limit=5&cursor={back}"
        ))
        .await;
    assert_eq!(page["items"].as_array().unwrap().len(), 5);
    for bad in ["x".to_owned(), format!("{back}x")] {
        let (status, problem) = host
            .server
            .get(&format!("/sessions/{session}/messages?cursor={bad}"))
            .await;
        assert_eq!(status, 400, "{problem}");
    }
    let (status, _) = host.server.get(&format!("/sessions?cursor={back}")).await;
    assert_eq!(status, 400, "a cursor of another resource");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_6_every_error_is_a_problem_that_says_what_to_do() {
    let host = Host::start().await;
    let session = host.session().await;
    let unknown = "01890000-0000-7000-8000-00000000ffff";
    let inputs = format!("/sessions/{session}/inputs");
    let cases = [
        (host.server.get(&format!("/sessions/{unknown}")).await, 404),
        (
            host.server
                .post(
                    &format!("/sessions/{unknown}/inputs"),
                    json!({ "text": "x" }),
                )
                .await,
            404,
        ),
        (
            host.server.post(&inputs, json!({ "nonsense": 1 })).await,
            422,
        ),
        (
            host.server.post(&inputs, json!({ "text": "  " })).await,
            422,
        ),
        (host.server.post(&inputs, json!([null, "x"])).await, 400),
        (
            host.server
                .post(&inputs, json!({ "signal": ["name", 1] }))
                .await,
            400,
        ),
        (host.server.post("/sessions", json!([])).await, 400),
        (
            host.server
                .post("/sessions", json!({ "title": "x".repeat(1001) }))
                .await,
            422,
        ),
        (
            host.server
                .post(&inputs, json!({ "text": "x".repeat(3 << 20) }))
                .await,
            413,
        ),
        (host.server.get("/sessions/no-uuid").await, 400),
        (host.server.get("/nowhere").await, 404),
    ];
    for ((status, problem), wanted) in cases {
        assert!(
            status == wanted || (wanted == 422 && status == 400),
            "{status} instead of {wanted}: {problem}"
        );
        assert_eq!(problem["status"], status, "{problem}");
        for field in ["type", "title", "detail"] {
            assert!(
                problem[field].as_str().is_some_and(|text| !text.is_empty()),
                "{field}: {problem}"
            );
        }
    }
    assert_eq!(
        host.server.events(&session).await.len(),
        1,
        "nothing of them is stored"
    );
    let (_, listed) = host.server.get("/sessions").await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let most = json!({ "title": "x".repeat(1000) });
    let (status, created) = host.server.post("/sessions", most).await;
    assert_eq!(status, 201, "{created}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_7_loopback_only_unless_there_is_a_token() {
    let host = Host::start().await;
    assert!(host.server.address.contains("127.0.0.1"));
    let store = host.folder.path().join("other.db");
    let refused = mainstay(&store, &host.config)
        .args(["serve", "--listen", "0.0.0.0:0"])
        .output()
        .await
        .unwrap();
    assert!(!refused.status.success());
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("token"),
        "{refused:?}"
    );
    drop(host.server);

    let mut child = mainstay(&store, &host.config)
        .args([
            "--json",
            "--token",
            "right",
            "serve",
            "--listen",
            "127.0.0.1:0",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    use tokio::io::AsyncBufReadExt as _;
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap()).lines();
    let line = tokio::time::timeout(DEADLINE, lines.next_line())
        .await
        .unwrap()
        .unwrap()
        .unwrap();
    let said: Value = serde_json::from_str(&line).unwrap();
    let address = said["address"]
        .as_str()
        .unwrap()
        .trim_end_matches('/')
        .to_owned();
    let http = reqwest::Client::new();
    for (token, wanted) in [(None, 401), (Some("wrong"), 401), (Some("right"), 200)] {
        let mut request = http.get(format!("{address}/v1/sessions"));
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        assert_eq!(request.send().await.unwrap().status().as_u16(), wanted);
    }
    child.kill().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn api_8_foreign_hosts_and_origins_are_refused() {
    let host = Host::start().await;
    let url = format!("{}/v1/sessions", host.server.address);
    let foreign = host
        .server
        .http
        .get(&url)
        .header("host", "evil.example")
        .send()
        .await
        .unwrap();
    assert!(foreign.status().is_client_error());
    let foreign = host
        .server
        .http
        .post(&url)
        .header("origin", "http://evil.example")
        .header("content-type", "application/json")
        .body("{}")
        .send()
        .await
        .unwrap();
    assert_eq!(foreign.status().as_u16(), 403);
    let (_, page) = host.server.get("/sessions").await;
    assert_eq!(page["items"].as_array().unwrap().len(), 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_15_a_stop_hands_over_at_once_to_another_owner() {
    handed_over("-TERM", "shutdown").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn claim_17_claim_19_a_killed_process_is_another_owner_and_its_claims_expire_with_the_lock() {
    handed_over("-KILL", "crash").await;
}

/// Ends a server in the middle of a step and sees the next one finish, long before the lease is over.
async fn handed_over(signal: &str, reason: &str) {
    let folder = tempfile::tempdir().unwrap();
    let config = folder.path().join("mainstay.toml");
    // Far longer than the test: only the hand-over and the file's lock bring the session back.
    std::fs::write(&config, "[node]\nlease = \"1h\"\nrenew-every = \"10m\"\n").unwrap();
    let store = folder.path().join("store.db");
    let mut server = Server::start(&store, &config).await;
    let (_, session) = server.post("/sessions", json!({})).await;
    let session = session["id"].as_str().unwrap().to_owned();
    let prompt = json!({ "text": "slow 200 one two three four five six seven eight" });
    server
        .post(&format!("/sessions/{session}/inputs"), prompt)
        .await;
    let deadline = tokio::time::Instant::now() + DEADLINE;
    while !server
        .events(&session)
        .await
        .iter()
        .any(|event| event["type"] == "step.output")
    {
        assert!(tokio::time::Instant::now() < deadline, "a chunk is durable");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let pid = server.child.id().unwrap().to_string();
    assert!(
        tokio::process::Command::new("kill")
            .args([signal, &pid])
            .status()
            .await
            .unwrap()
            .success()
    );
    tokio::time::timeout(DEADLINE, server.child.wait())
        .await
        .unwrap()
        .unwrap();

    let next = Server::start(&store, &config).await;
    next.idle(&session).await;
    let events = next.events(&session).await;
    let owners: std::collections::HashSet<String> = events
        .iter()
        .filter(|event| event["type"] == "execution.started")
        .map(|event| event["data"]["owner"].to_string())
        .collect();
    assert_eq!(owners.len(), 2);
    let reasons: Vec<&Value> = events
        .iter()
        .filter(|event| event["type"] == "execution.interrupted")
        .map(|event| &event["data"]["reason"])
        .collect();
    assert_eq!(reasons, [reason]);
    next.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_under_the_id_of_a_deleted_one_has_nothing_of_it() {
    let host = Host::start().await;
    let id = host.session().await;
    host.prompt(&id, "slow 200 old words that are never said to the end")
        .await;
    let output = host.stream(&id, None, |event| event.1 != "step.output");
    let old = output.await;
    let started = old.iter().find(|event| event.1 == "execution.started");
    let execution = started.expect("it runs").2["execution"].clone();
    let url = format!("{}/v1/sessions/{id}", host.server.address);
    let deleted = host.server.http.delete(&url).send().await.unwrap();
    assert_eq!(deleted.status(), 204);
    let (status, _) = host.server.post("/sessions", json!({ "id": id })).await;
    assert_eq!(status, 201);
    host.prompt(&id, "say new").await;
    host.server.idle(&id).await;
    let events = host.server.events(&id).await;
    let seqs: Vec<u64> = events
        .iter()
        .map(|event| event["seq"].as_u64().unwrap())
        .collect();
    assert_eq!(seqs, (1..=seqs.len() as u64).collect::<Vec<_>>());
    assert!(
        events.iter().all(|event| event["execution"] != execution),
        "{events:?}"
    );
    let succeeded = events
        .iter()
        .filter(|event| event["type"] == "execution.succeeded");
    assert_eq!(succeeded.count(), 1, "{events:?}");
}
