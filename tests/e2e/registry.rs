//! A registry of OCI artifacts over real HTTP, which can be told to move tags, to lie about bytes
//! and to ask for credentials. Its refusals repeat the credentials that came, as careless servers
//! do.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Path, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// The layer of a component.
pub(crate) const WASM: &str = "application/wasm";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
/// What the token endpoint gives.
const TOKEN: &str = "short-lived-token";

/// Who may read.
#[derive(Clone, Default)]
pub(crate) enum Door {
    #[default]
    Open,
    /// Those with this user name and password.
    Basic(&'static str, &'static str),
    /// Those with a token, which user name and password buy.
    Exchange(&'static str, &'static str),
    /// Those with this token, which nobody is given.
    Token(&'static str),
    /// Nobody.
    Shut,
}

#[derive(Default)]
struct Kept {
    door: Door,
    host: String,
    tags: HashMap<String, String>,
    manifests: HashMap<String, (&'static str, Bytes)>,
    /// The digest that a manifest is said to have.
    headers: HashMap<String, String>,
    blobs: HashMap<String, Bytes>,
    /// Blobs that never end.
    endless: Vec<String>,
    requests: usize,
}

impl Kept {
    /// Sends clients to the token endpoint.
    fn exchange(&self) -> String {
        format!(
            "Bearer realm=\"http://{}/token\",service=\"here\"",
            self.host
        )
    }
}

type Shared = Arc<Mutex<Kept>>;

pub(crate) struct Registry {
    /// Host and port.
    pub(crate) host: String,
    kept: Shared,
}

/// `sha256:…`
pub(crate) fn sha256(bytes: &[u8]) -> String {
    format!("sha256:{}", mainstay_core::id::digest(bytes))
}

impl Registry {
    pub(crate) async fn start() -> Self {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
            .await
            .unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let kept: Shared = Arc::default();
        kept.lock().unwrap().host = host.clone();
        let app = Router::new()
            .route("/v2/", get(begin))
            .route("/v2/{*rest}", get(read))
            .route("/token", get(token))
            .with_state(Arc::clone(&kept));
        tokio::spawn(async move { axum::serve(listener, app).await.unwrap() });
        Self { host, kept }
    }

    /// A reference to what is in here: `rest` is `repository:tag` or `repository@digest`.
    pub(crate) fn reference(&self, rest: &str) -> String {
        format!("oci://{}/{rest}", self.host)
    }

    pub(crate) fn shut(&self, door: Door) {
        self.kept.lock().unwrap().door = door;
    }

    /// Requests so far.
    pub(crate) fn requests(&self) -> usize {
        self.kept.lock().unwrap().requests
    }

    /// Points `name` (`repository:tag`) at an artifact with these layers. Gives the manifest's
    /// digest.
    pub(crate) fn push(&self, name: &str, layers: &[(&str, &[u8])]) -> String {
        let described: Vec<Value> = layers
            .iter()
            .map(|(kind, bytes)| {
                json!({ "mediaType": kind, "digest": sha256(bytes), "size": bytes.len() })
            })
            .collect();
        let manifest = json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": {
                "mediaType": "application/vnd.wasm.config.v0+json",
                "digest": sha256(b"{}"),
                "size": 2,
            },
            "layers": described,
        });
        let mut kept = self.kept.lock().unwrap();
        for (_, bytes) in layers {
            kept.blobs
                .insert(sha256(bytes), Bytes::copy_from_slice(bytes));
        }
        drop(kept);
        self.push_manifest(name, MANIFEST, &manifest)
    }

    /// Points `name` at an index of manifests: digest, architecture, system.
    pub(crate) fn push_index(&self, name: &str, entries: &[(&str, &str, &str)]) -> String {
        let entries: Vec<Value> = entries
            .iter()
            .map(|(digest, architecture, os)| {
                let platform = json!({ "architecture": architecture, "os": os });
                json!({ "mediaType": MANIFEST, "digest": digest, "size": 1, "platform": platform })
            })
            .collect();
        let index = json!({ "schemaVersion": 2, "mediaType": INDEX, "manifests": entries });
        self.push_manifest(name, INDEX, &index)
    }

    fn push_manifest(&self, name: &str, kind: &'static str, manifest: &Value) -> String {
        let bytes = Bytes::from(manifest.to_string());
        let digest = sha256(&bytes);
        let mut kept = self.kept.lock().unwrap();
        kept.manifests.insert(digest.clone(), (kind, bytes));
        kept.tags.insert(name.to_owned(), digest.clone());
        digest
    }

    /// From now on gives other bytes for a layer.
    pub(crate) fn corrupt_layer(&self, digest: &str, bytes: &[u8]) {
        let bytes = Bytes::copy_from_slice(bytes);
        self.kept
            .lock()
            .unwrap()
            .blobs
            .insert(digest.to_owned(), bytes);
    }

    /// From now on gives one manifest where another is asked for, under a digest of its choice.
    pub(crate) fn corrupt_manifest(&self, digest: &str, other: &str, said: &str) {
        let mut kept = self.kept.lock().unwrap();
        let manifest = kept.manifests[other].clone();
        kept.manifests.insert(digest.to_owned(), manifest);
        kept.headers.insert(digest.to_owned(), said.to_owned());
    }

    /// A layer that never ends, said to be small.
    pub(crate) fn push_endless(&self, name: &str) {
        self.push(name, &[(WASM, b"small")]);
        self.kept.lock().unwrap().endless.push(sha256(b"small"));
    }

    /// A layer that is said to be of `size` bytes.
    pub(crate) fn push_said(&self, name: &str, size: u64) {
        let layer = json!({ "mediaType": WASM, "digest": sha256(b"x"), "size": size });
        let config = json!({ "mediaType": "x", "digest": sha256(b"{}"), "size": 2 });
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": [layer] });
        self.push_manifest(name, MANIFEST, &manifest);
    }
}

fn refuse(status: StatusCode, code: &str, headers: &HeaderMap) -> Response {
    let said = headers.get(header::AUTHORIZATION);
    let said = said.map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned());
    let message = format!("you came with {said:?}");
    let body = json!({ "errors": [{ "code": code, "message": message, "detail": message }] });
    (status, body.to_string()).into_response()
}

fn basic(username: &str, password: &str) -> String {
    format!(
        "Basic {}",
        STANDARD.encode(format!("{username}:{password}"))
    )
}

/// Lets a request in, or refuses it.
fn enter(kept: &mut Kept, headers: &HeaderMap) -> Result<(), Response> {
    kept.requests += 1;
    let given = headers
        .get(header::AUTHORIZATION)
        .map(|value| value.to_str().unwrap().to_owned());
    let (wanted, challenge) = match &kept.door {
        Door::Open => return Ok(()),
        Door::Shut => return Err(refuse(StatusCode::FORBIDDEN, "DENIED", headers)),
        Door::Basic(username, password) => {
            (basic(username, password), "Basic realm=\"here\"".to_owned())
        }
        Door::Exchange(..) => (format!("Bearer {TOKEN}"), kept.exchange()),
        Door::Token(token) => (format!("Bearer {token}"), kept.exchange()),
    };
    if given.as_ref() == Some(&wanted) {
        return Ok(());
    }
    let mut refused = refuse(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", headers);
    let challenge = HeaderValue::from_str(&challenge).unwrap();
    refused
        .headers_mut()
        .insert(header::WWW_AUTHENTICATE, challenge);
    Err(refused)
}

async fn begin(State(kept): State<Shared>, headers: HeaderMap) -> Response {
    match enter(&mut kept.lock().unwrap(), &headers) {
        Ok(()) => "{}".into_response(),
        Err(refused) => refused,
    }
}

async fn token(State(kept): State<Shared>, headers: HeaderMap) -> Response {
    let Door::Exchange(username, password) = kept.lock().unwrap().door else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let given = headers.get(header::AUTHORIZATION);
    if given.is_some_and(|given| given.as_bytes() == basic(username, password).as_bytes()) {
        return json!({ "token": TOKEN }).to_string().into_response();
    }
    refuse(StatusCode::UNAUTHORIZED, "UNAUTHORIZED", &headers)
}

async fn read(
    State(kept): State<Shared>,
    Path(rest): Path<String>,
    headers: HeaderMap,
) -> Response {
    let mut kept = kept.lock().unwrap();
    if let Err(refused) = enter(&mut kept, &headers) {
        return refused;
    }
    if let Some((_, digest)) = rest.split_once("/blobs/") {
        if kept.endless.iter().any(|endless| endless == digest) {
            let zeros = Bytes::from(vec![0; 1 << 20]);
            let zeros = futures::stream::repeat_with(move || Ok::<_, Infallible>(zeros.clone()));
            return Body::from_stream(zeros).into_response();
        }
        return match kept.blobs.get(digest) {
            Some(bytes) => bytes.clone().into_response(),
            None => refuse(StatusCode::NOT_FOUND, "BLOB_UNKNOWN", &headers),
        };
    }
    let Some((repository, name)) = rest.split_once("/manifests/") else {
        return StatusCode::NOT_FOUND.into_response();
    };
    let digest = if name.starts_with("sha256:") {
        Some(name.to_owned())
    } else {
        kept.tags.get(&format!("{repository}:{name}")).cloned()
    };
    let found = digest.and_then(|digest| {
        let (kind, bytes) = kept.manifests.get(&digest)?;
        let said = kept.headers.get(&digest).unwrap_or(&digest);
        let headers = [
            ("content-type", (*kind).to_owned()),
            ("docker-content-digest", said.clone()),
        ];
        Some((headers, bytes.clone()).into_response())
    });
    found.unwrap_or_else(|| refuse(StatusCode::NOT_FOUND, "MANIFEST_UNKNOWN", &headers))
}
