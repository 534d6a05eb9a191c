//! CAP: what plugins can reach, against servers on this machine.

mod common;

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use axum::extract::State;
use axum::http::{HeaderMap, Method, Uri};
use axum::response::{IntoResponse, Redirect};
use common::{Host, Log, host, model_request, request, serve};
use mainstay_core::plugin::{
    CallError, Chunk, EgressError, Exchange, HeaderValue, HttpAnswer, HttpRequest, Kind, Output,
    Plugins, ProviderConfig, Scheme, Workspace,
};
use mainstay_runtime::egress::{GrantRule, Grants, SecretSource};
use mainstay_test_guests::{FILES, HOSTILE_TOOLBOX, OPENAI_CHAT};
use serde_json::json;

const SECRET: &str = "sk-very-secret-value-0123456789";

type Seen = Arc<Mutex<Vec<(Method, Uri, HeaderMap)>>>;

/// Answers with what it was asked, `authorization` included.
async fn echo_server() -> (SocketAddr, Seen) {
    let seen = Seen::default();
    let router = axum::Router::new()
        .fallback(
            async |State(seen): State<Seen>, method: Method, uri: Uri, headers: HeaderMap| {
                let authorization = headers.get("authorization").cloned();
                seen.lock()
                    .unwrap()
                    .push((method.clone(), uri.clone(), headers));
                let text = authorization
                    .as_ref()
                    .map_or("nothing", |value| value.to_str().unwrap());
                (
                    [("x-echo", text.to_owned())],
                    format!("{method} {uri} with {text}"),
                )
                    .into_response()
            },
        )
        .with_state(seen.clone());
    (serve(router).await, seen)
}

fn rule(host: &str, port: u16) -> GrantRule {
    GrantRule {
        scheme: Some(Scheme::Http),
        host: host.to_owned(),
        port: Some(port),
        methods: Vec::new(),
        path_prefix: "/".to_owned(),
        private: true,
    }
}

fn http(rules: Vec<GrantRule>) -> Grants {
    Grants {
        http: rules,
        ..Grants::default()
    }
}

async fn fetch(host: &Host, method: &str, url: &str) -> Result<String, String> {
    let info = host.install(HOSTILE_TOOLBOX).await;
    let arguments = json!({ "method": method, "url": url });
    match host.call(&info.digest, "fetch", arguments).await {
        Ok(text) => Ok(text),
        Err(CallError::Failed(text)) => Err(text),
        Err(other) => panic!("{other:?}"),
    }
}

#[track_caller]
fn refused(answer: Result<String, String>, words: &str) {
    let error = answer.unwrap_err();
    assert!(error.contains(words), "{error}");
}

#[tokio::test]
async fn cap_1_without_a_grant_nothing_is_looked_up() {
    let host = host();
    let answer = fetch(&host, "GET", "https://api.example.test/v1/x").await;
    refused(answer, "no rule names host `api.example.test`");
    assert_eq!(host.names.lookups(), 0);
}

#[tokio::test]
async fn cap_1_a_grant_for_what_was_not_asked_for_gives_nothing() {
    let host = host();
    let (address, seen) = echo_server().await;
    let mut info = host.runtime.inspect(HOSTILE_TOOLBOX).await.unwrap();
    info.http.retain(|rule| rule.scheme == Scheme::Https);
    mainstay_runtime::ComponentSource::put(&*host.source, &info, HOSTILE_TOOLBOX)
        .await
        .unwrap();
    host.names.set("api.example.test", "127.0.0.1");
    host.egress.grant(
        Kind::Toolbox,
        "tools",
        http(vec![rule("api.example.test", address.port())]),
    );
    let url = format!("http://api.example.test:{}/", address.port());
    refused(fetch(&host, "GET", &url).await, "asks for in its manifest");
    assert_eq!(host.names.lookups(), 0);
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn cap_2_method_path_and_host_are_those_of_the_grant() {
    let host = host();
    let (address, seen) = echo_server().await;
    host.names.set("api.example.test", "127.0.0.1");
    host.names.set("other.example.test", "127.0.0.1");
    let grant = GrantRule {
        methods: vec!["GET".to_owned()],
        path_prefix: "/v1/".to_owned(),
        ..rule("api.example.test", address.port())
    };
    host.egress
        .grant(Kind::Toolbox, "tools", http(vec![grant.clone()]));
    let at = |name: &str, path: &str| format!("http://{name}:{}{path}", address.port());

    for (method, url) in [
        ("POST", at("api.example.test", "/v1/x")),
        ("GET", at("api.example.test", "/v2/")),
        ("GET", at("api.example.test", "/v1/../v2/")),
        ("GET", at("api.example.test", "/v10")),
    ] {
        refused(fetch(&host, method, &url).await, &grant.to_string());
    }
    let other = at("other.example.test", "/v1/x");
    refused(
        fetch(&host, "GET", &other).await,
        "no rule names host `other.example.test`",
    );
    assert!(seen.lock().unwrap().is_empty());

    let answer = fetch(&host, "GET", &at("api.example.test", "/v1/x")).await;
    assert!(answer.unwrap().contains("GET /v1/x with nothing"));
}

#[tokio::test]
async fn cap_3_a_private_address_needs_a_grant_of_its_own() {
    let host = host();
    let (address, _) = echo_server().await;
    let public = GrantRule {
        private: false,
        ..rule("*", address.port())
    };
    host.egress
        .grant(Kind::Toolbox, "tools", http(vec![public]));
    for private in [
        "127.0.0.1",
        "10.0.0.5",
        "169.254.169.254",
        "::1",
        "::ffff:127.0.0.1",
    ] {
        host.names.set("api.example.test", private);
        let url = format!("http://api.example.test:{}/", address.port());
        refused(fetch(&host, "GET", &url).await, "no public address");
    }
    for literal in ["127.0.0.1", "2130706433", "0x7f.1", "[::1]"] {
        let url = format!("http://{literal}:{}/", address.port());
        refused(fetch(&host, "GET", &url).await, "no public address");
    }

    let private = rule("api.example.test", address.port());
    host.egress
        .grant(Kind::Toolbox, "tools", http(vec![private]));
    host.names.set("api.example.test", "127.0.0.1");
    let url = format!("http://api.example.test:{}/", address.port());
    assert!(fetch(&host, "GET", &url).await.is_ok());
}

fn secrets(name: &str, value: SecretSource) -> Grants {
    Grants {
        secrets: HashMap::from([(name.to_owned(), value)]),
        ..Grants::default()
    }
}

fn config(address: SocketAddr, secrets: &[String]) -> ProviderConfig {
    ProviderConfig {
        base_url: Some(format!("http://{address}/v1")),
        secrets: secrets.to_vec(),
        options: None,
    }
}

async fn body(mut answer: HttpAnswer) -> String {
    let mut body = Vec::new();
    while let Some(bytes) = answer.body.next().await.unwrap() {
        body.extend(bytes);
    }
    String::from_utf8(body).unwrap()
}

/// Encodes a request with `openai-chat` and sends it under the alias `model`.
async fn ask(host: &Host, config: &ProviderConfig) -> Result<HttpAnswer, EgressError> {
    let info = host.install(OPENAI_CHAT).await;
    let request = model_request("hello", config.clone());
    let exchange = host.runtime.encode(&info.digest, request).await.unwrap();
    assert!(!format!("{exchange:?}").contains(SECRET));
    let Exchange::Http { request, .. } = exchange else {
        panic!("{exchange:?}");
    };
    host.runtime
        .send(&info.digest, "model", config, request)
        .await
}

#[tokio::test]
async fn cap_4_the_server_gets_the_secret_and_nobody_else() {
    let host = host();
    let (log, _guard) = Log::start();
    let (address, seen) = echo_server().await;
    let info = host.install(OPENAI_CHAT).await;
    assert!(host.runtime.secrets(&info.digest, "model").await.is_empty());
    host.egress.grant(
        Kind::Provider,
        "model",
        secrets("api-key", SecretSource::Value(SECRET.to_owned())),
    );
    let names = host.runtime.secrets(&info.digest, "model").await;
    assert_eq!(names, ["api-key"]);

    let answer = ask(&host, &config(address, &names)).await.unwrap();
    let echoed = &answer.head.headers;
    assert!(echoed.contains(&("x-echo".to_owned(), "Bearer [secret]".to_owned())));
    assert!(body(answer).await.ends_with("with Bearer [secret]"));
    let sent = seen.lock().unwrap()[0].2["authorization"].clone();
    assert_eq!(sent.to_str().unwrap(), format!("Bearer {SECRET}"));
    assert!(!log.text().contains(SECRET));
    assert_eq!(host.egress.redactor().redact(SECRET), "[secret]");
}

/// A server that keeps the bytes of one request.
async fn raw_server() -> (SocketAddr, tokio::task::JoinHandle<String>) {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let seen = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut bytes = Vec::new();
        while !bytes.ends_with(b"the end") {
            assert!(stream.read_buf(&mut bytes).await.unwrap() > 0);
        }
        let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
        stream.write_all(answer).await.unwrap();
        String::from_utf8(bytes).unwrap()
    });
    (address, seen)
}

#[tokio::test]
async fn model_1_the_server_gets_what_the_exchange_says_and_nothing_else() {
    let host = host();
    let (address, seen) = raw_server().await;
    let info = host.install(OPENAI_CHAT).await;
    host.egress.grant(
        Kind::Provider,
        "model",
        secrets("api-key", SecretSource::Value(SECRET.to_owned())),
    );
    let text = |text: &str| HeaderValue::Text(text.to_owned());
    let request = HttpRequest {
        method: "PUT".to_owned(),
        url: format!("http://{address}/v1/a%20b?c=d&e"),
        headers: vec![
            ("x-first".to_owned(), text("1")),
            (
                "authorization".to_owned(),
                HeaderValue::Secret {
                    name: "api-key".to_owned(),
                    prefix: "Bearer ".to_owned(),
                },
            ),
            ("x-twice".to_owned(), text("a")),
            ("x-twice".to_owned(), text("b")),
        ],
        body: vec![
            Chunk::Bytes(b"{\"a\": 1} ".to_vec()),
            Chunk::Bytes(b"the end".to_vec()),
        ],
    };
    let config = config(address, &["api-key".to_owned()]);
    let sent = host.runtime.send(&info.digest, "model", &config, request);
    assert_eq!(sent.await.unwrap().head.status, 200);
    let seen = seen.await.unwrap();
    let (head, body) = seen.split_once("\r\n\r\n").unwrap();
    let mut lines: Vec<&str> = head.split("\r\n").collect();
    assert_eq!(lines.remove(0), "PUT /v1/a%20b?c=d&e HTTP/1.1");
    assert_eq!(body, "{\"a\": 1} the end");
    lines.sort_unstable();
    let secret = format!("authorization: Bearer {SECRET}");
    let named = format!("host: {address}");
    let mut wanted = [
        // The client's own, where the exchange has none; it means the same as none.
        "accept: */*",
        secret.as_str(),
        "content-length: 16",
        named.as_str(),
        "x-first: 1",
        "x-twice: a",
        "x-twice: b",
    ];
    wanted.sort_unstable();
    assert_eq!(lines, wanted);
}

#[tokio::test]
async fn cap_5_a_secret_goes_nowhere_but_where_it_may() {
    let host = host();
    let (address, seen) = echo_server().await;
    let info = host.install(OPENAI_CHAT).await;
    let send = async |config: ProviderConfig, url: String, secret: &str| {
        let request = HttpRequest {
            method: "POST".to_owned(),
            url,
            headers: vec![(
                "authorization".to_owned(),
                HeaderValue::Secret {
                    name: secret.to_owned(),
                    prefix: "Bearer ".to_owned(),
                },
            )],
            body: vec![Chunk::Bytes(b"{}".to_vec())],
        };
        let sent = host
            .runtime
            .send(&info.digest, "model", &config, request)
            .await;
        match sent {
            Err(EgressError::Denied(text)) => {
                assert!(!text.contains(SECRET), "{text}");
                text
            }
            Err(other) => panic!("{other:?}"),
            Ok(_) => panic!("it was sent"),
        }
    };
    let base = config(address, &[]);
    let url = format!("http://{address}/v1/chat/completions");

    let text = send(base.clone(), url.clone(), "api-key").await;
    assert!(text.contains("secret `api-key` is not granted"), "{text}");

    let unset = SecretSource::Env("MAINSTAY_TEST_NO_SUCH_VARIABLE".to_owned());
    host.egress
        .grant(Kind::Provider, "model", secrets("api-key", unset));
    let text = send(base.clone(), url.clone(), "api-key").await;
    assert!(text.contains("MAINSTAY_TEST_NO_SUCH_VARIABLE"), "{text}");

    let value = SecretSource::Value(SECRET.to_owned());
    host.egress
        .grant(Kind::Provider, "model", secrets("other-key", value.clone()));
    let text = send(base.clone(), url.clone(), "other-key").await;
    assert!(
        text.contains("does not ask for secret `other-key`"),
        "{text}"
    );

    // Granted as a request, but no host for the secret.
    let mut grants = secrets("api-key", value);
    grants.http = vec![rule("other.example.test", address.port())];
    host.egress.grant(Kind::Provider, "model", grants);
    host.names.set("other.example.test", "127.0.0.1");
    let elsewhere = format!("http://other.example.test:{}/v1", address.port());
    let text = send(base, elsewhere, "api-key").await;
    assert!(text.contains("other.example.test"), "{text}");
    assert!(seen.lock().unwrap().is_empty());
}

#[tokio::test]
async fn cap_6_a_redirect_is_followed_as_far_as_the_grants_go() {
    let host = host();
    let (target, seen) = echo_server().await;
    let to = |name: &str| format!("http://{name}:{}/landed", target.port());
    let router = axum::Router::new()
        .route("/out", {
            let url = to("evil.example.test");
            axum::routing::any(async move || Redirect::temporary(&url))
        })
        .route("/in", {
            let url = to("good.example.test");
            axum::routing::any(async move || Redirect::temporary(&url))
        })
        .route(
            "/round",
            axum::routing::any(async || Redirect::temporary("/round")),
        );
    let first = serve(router).await;
    host.names.set("good.example.test", "127.0.0.1");
    host.names.set("evil.example.test", "127.0.0.1");
    host.egress.grant(
        Kind::Toolbox,
        "tools",
        http(vec![
            rule("127.0.0.1", first.port()),
            rule("good.example.test", target.port()),
        ]),
    );
    let answer = fetch(&host, "GET", &format!("http://{first}/out")).await;
    assert!(answer.unwrap().contains("307"));
    assert!(seen.lock().unwrap().is_empty());
    let answer = fetch(&host, "GET", &format!("http://{first}/in")).await;
    assert!(answer.unwrap().contains("GET /landed"));
    let answer = fetch(&host, "GET", &format!("http://{first}/round")).await;
    refused(answer, "more than 10 redirects");

    // A provider follows none.
    let config = ProviderConfig {
        base_url: Some(format!("http://{first}")),
        ..ProviderConfig::default()
    };
    let info = host.install(OPENAI_CHAT).await;
    let request = HttpRequest {
        method: "POST".to_owned(),
        url: format!("http://{first}/in"),
        headers: Vec::new(),
        body: Vec::new(),
    };
    let before = seen.lock().unwrap().len();
    let answer = host
        .runtime
        .send(&info.digest, "model", &config, request)
        .await;
    assert_eq!(answer.unwrap().head.status, 307);
    assert_eq!(seen.lock().unwrap().len(), before);
}

#[tokio::test]
async fn cap_7_a_workspace_cannot_be_left() {
    let host = host();
    let info = host.install(HOSTILE_TOOLBOX).await;
    let call = request("workspace", json!({}));
    let folder = host
        .dir
        .path()
        .join("workspaces")
        .join(call.session.to_string());
    let without = host.runtime.call(&info.digest, call.clone()).await;
    assert!(matches!(without, Err(CallError::Denied(_))), "{without:?}");
    assert!(!folder.exists());

    host.egress.grant(
        Kind::Toolbox,
        "tools",
        Grants {
            workspace: Workspace::ReadWrite,
            ..Grants::default()
        },
    );
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("inside.txt"), "inside").unwrap();
    std::fs::write(host.dir.path().join("workspaces/outside.txt"), "outside").unwrap();
    #[cfg(unix)]
    std::os::unix::fs::symlink("../outside.txt", folder.join("link")).unwrap();

    let read = async |path: &str| {
        let mut call = call.clone();
        call.call.arguments = json!({ "path": path }).to_string();
        host.runtime.call(&info.digest, call).await
    };
    assert_eq!(
        read("inside.txt").await.unwrap(),
        [Output::Text("inside".to_owned())]
    );
    for path in [
        "../outside.txt",
        "/etc/passwd",
        "link",
        "x/../../outside.txt",
    ] {
        let answer = read(path).await;
        assert!(
            matches!(answer, Err(CallError::Failed(_))),
            "{path}: {answer:?}"
        );
    }
    // Another session sees nothing of it.
    let other = host.call(&info.digest, "workspace", json!({})).await;
    assert_eq!(other.unwrap(), "");
}

#[tokio::test]
async fn cap_7_writing_needs_both_sides() {
    let host = host();
    let info = host.install(FILES).await;
    let mut call = request("file_write", json!({ "path": "a.txt", "content": "a" }));
    for (granted, written) in [(Workspace::Read, false), (Workspace::ReadWrite, true)] {
        host.egress.grant(
            Kind::Toolbox,
            "tools",
            Grants {
                workspace: granted,
                ..Grants::default()
            },
        );
        call.idempotency_key = format!("{granted:?}");
        let answer = host.runtime.call(&info.digest, call.clone()).await;
        assert_eq!(answer.is_ok(), written, "{answer:?}");
        let file = host
            .dir
            .path()
            .join("workspaces")
            .join(call.session.to_string())
            .join("a.txt");
        assert_eq!(file.exists(), written);
    }
}

#[tokio::test]
async fn cap_8_a_grant_that_is_taken_back_is_gone_at_the_next_call() {
    let host = host();
    let (address, _) = echo_server().await;
    let url = format!("http://{address}/");
    host.egress.grant(
        Kind::Toolbox,
        "tools",
        http(vec![rule("127.0.0.1", address.port())]),
    );
    assert!(fetch(&host, "GET", &url).await.is_ok());
    host.egress.revoke(Kind::Toolbox, "tools");
    refused(fetch(&host, "GET", &url).await, "is not granted");
}

#[tokio::test]
async fn failures_are_sorted_by_what_may_have_happened() {
    let host = host();
    let info = host.install(OPENAI_CHAT).await;
    let send = async |base: &str, request: HttpRequest| {
        let config = ProviderConfig {
            base_url: Some(base.to_owned()),
            ..ProviderConfig::default()
        };
        host.runtime
            .send(&info.digest, "model", &config, request)
            .await
            .map(|_| ())
    };
    let post = |url: &str| HttpRequest {
        method: "POST".to_owned(),
        url: url.to_owned(),
        headers: Vec::new(),
        body: Vec::new(),
    };
    // A port on which nobody listens: taken and given back.
    let free = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let base = format!("http://{free}");
    let error = send(&base, post(&base)).await.unwrap_err();
    assert!(matches!(error, EgressError::Unreachable(_)), "{error:?}");

    // One that hangs up.
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut bytes = [0; 1024];
            let _ = tokio::io::AsyncReadExt::read(&mut stream, &mut bytes).await;
        }
    });
    let error = send(&base, post(&base)).await.unwrap_err();
    assert!(matches!(error, EgressError::Broken(_)), "{error:?}");

    for (url, header) in [
        ("no address", None),
        ("ftp://example.test/", None),
        ("https://user:pass@example.test/", None),
        (base.as_str(), Some("host")),
        (base.as_str(), Some("content-length")),
        (base.as_str(), Some("no name")),
    ] {
        let mut request = post(url);
        if let Some(name) = header {
            let value = HeaderValue::Text("1".to_owned());
            request.headers.push((name.to_owned(), value));
        }
        let error = send(&base, request).await.unwrap_err();
        assert!(matches!(error, EgressError::Invalid(_)), "{error:?}");
    }
    let mut request = post(&base);
    request.body.push(Chunk::Media("0".repeat(64)));
    let error = send(&base, request).await.unwrap_err();
    assert!(matches!(error, EgressError::Invalid(_)), "{error:?}");
}

#[tokio::test]
async fn media_are_put_in_as_the_request_leaves() {
    let host = host();
    let info = host.install(OPENAI_CHAT).await;
    let router = axum::Router::new().fallback(async |body: String| body);
    let address = serve(router).await;
    host.media
        .0
        .lock()
        .unwrap()
        .insert("d1".to_owned(), b"picture".to_vec());
    let request = HttpRequest {
        method: "POST".to_owned(),
        url: format!("http://{address}/v1"),
        headers: Vec::new(),
        body: vec![
            Chunk::Bytes(b"<".to_vec()),
            Chunk::MediaBase64("d1".to_owned()),
            Chunk::Bytes(b"|".to_vec()),
            Chunk::Media("d1".to_owned()),
            Chunk::Bytes(b">".to_vec()),
        ],
    };
    let answer = host
        .runtime
        .send(&info.digest, "model", &config(address, &[]), request)
        .await
        .unwrap();
    assert_eq!(body(answer).await, "<cGljdHVyZQ==|picture>");
}
