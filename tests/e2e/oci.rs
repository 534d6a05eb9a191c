//! Plugins from a registry, through the real binary: beside a server and without one.

mod registry;
mod support;

use std::path::PathBuf;
use std::sync::OnceLock;

use mainstay_test_guests::{LOOP, PARROT};
use registry::{Door, Registry, WASM, sha256};
use serde_json::{Value, json};
use support::{DEADLINE, SECRET, Server, mainstay};

struct Place {
    folder: tempfile::TempDir,
    config: PathBuf,
    store: PathBuf,
}

/// What a command came to: exit code, stdout, stderr.
type Came = (i32, String, String);

impl Place {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let place = Self {
            config: folder.path().join("mainstay.toml"),
            store: folder.path().join("store.db"),
            folder,
        };
        place.configure("");
        place
    }

    fn configure(&self, tables: &str) {
        let text = format!("[agents.default]\ntoolboxes = []\n{tables}");
        std::fs::write(&self.config, text).unwrap();
    }

    async fn run(&self, args: &[&str]) -> Came {
        let output = mainstay(&self.store, &self.config).args(args).output();
        let output = tokio::time::timeout(DEADLINE, output)
            .await
            .expect("the command ends")
            .unwrap();
        (
            output.status.code().unwrap_or(-1),
            String::from_utf8(output.stdout).unwrap(),
            String::from_utf8(output.stderr).unwrap(),
        )
    }

    /// Installs under the name `brief`.
    async fn install(&self, source: &str) -> Came {
        self.run(&["--json", "plugin", "install", source, "--alias", "brief"])
            .await
    }

    #[track_caller]
    fn installed(came: &Came) -> Value {
        let (code, out, err) = came;
        assert_eq!(*code, 0, "{err}");
        serde_json::from_str(out).expect("a plugin")
    }

    /// What the name `brief` leads to.
    async fn brief(&self) -> Option<Value> {
        let (code, out, err) = self.run(&["--json", "plugin", "list"]).await;
        assert_eq!(code, 0, "{err}");
        named(&lines(&out))
    }

    /// How many components are stored.
    async fn stored(&self) -> usize {
        let (code, out, err) = self.run(&["--json", "plugin", "list"]).await;
        assert_eq!(code, 0, "{err}");
        lines(&out).len()
    }
}

fn lines(out: &str) -> Vec<Value> {
    serde_json::Deserializer::from_str(out)
        .into_iter()
        .collect::<Result<_, _>>()
        .unwrap()
}

fn named(plugins: &[Value]) -> Option<Value> {
    let leads = |plugin: &&Value| {
        let aliases = plugin["aliases"].as_array().unwrap();
        aliases.contains(&json!("brief"))
    };
    plugins.iter().find(leads).cloned()
}

/// The runner `loop` with something added that changes nothing but its digest.
fn variant(mark: u8) -> Vec<u8> {
    let mut bytes = LOOP.to_vec();
    // A custom section without content, named by one letter.
    bytes.extend([0, 2, 1, mark]);
    bytes
}

/// Two versions of a plugin.
fn versions() -> &'static (Vec<u8>, Vec<u8>) {
    static VERSIONS: OnceLock<(Vec<u8>, Vec<u8>)> = OnceLock::new();
    VERSIONS.get_or_init(|| (variant(b'a'), variant(b'b')))
}

/// The plugin is these bytes, from this reference.
#[track_caller]
fn check(plugin: &Value, bytes: &[u8], source: &str) {
    assert_eq!(plugin["digest"], mainstay_core::id::digest(bytes));
    assert_eq!(plugin["sources"]["brief"], source);
}

/// An address where nobody answers.
async fn nobody() -> String {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0))
        .await
        .unwrap();
    listener.local_addr().unwrap().to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_a_tag_that_moves_changes_nothing_until_it_is_loaded_again() {
    let (registry, place) = (Registry::start().await, Place::new());
    let (one, two) = versions();
    let tag = registry.reference("team/brief:1.0");
    let first = registry.push("team/brief:1.0", &[(WASM, one)]);
    let plugin = Place::installed(&place.install(&tag).await);
    check(&plugin, one, &format!("{tag}@{first}"));

    let second = registry.push("team/brief:1.0", &[(WASM, two)]);
    assert_ne!(first, second);
    let before = registry.requests();
    let plugin = place.brief().await.expect("it is installed");
    check(&plugin, one, &format!("{tag}@{first}"));
    let (code, out, err) = place.run(&["plugin", "inspect", "brief"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(out.contains(&format!("brief from {tag}@{first}")), "{out}");
    let (_, out, _) = place.run(&["plugin", "list"]).await;
    assert!(out.contains(&format!("from {tag}@{first}")), "{out}");
    assert_eq!(registry.requests(), before, "nobody asked for the tag");

    let plugin = Place::installed(&place.install(&tag).await);
    check(&plugin, two, &format!("{tag}@{second}"));
    // What was recorded leads back to the same bytes, wherever the tag points.
    let pinned = format!("{tag}@{first}");
    let plugin = Place::installed(&place.install(&pinned).await);
    check(&plugin, one, &pinned);
    let plugin = Place::installed(
        &place
            .install(&registry.reference(&format!("team/brief@{second}")))
            .await,
    );
    check(
        &plugin,
        two,
        &registry.reference(&format!("team/brief@{second}")),
    );

    // The same bytes out of a file have no source.
    let file = place.folder.path().join("brief.wasm");
    std::fs::write(&file, two).unwrap();
    let plugin = Place::installed(&place.install(file.to_str().unwrap()).await);
    assert_eq!(plugin["sources"], json!({}));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_a_server_loads_by_reference() {
    let (registry, place) = (Registry::start().await, Place::new());
    let (one, two) = versions();
    let tag = registry.reference("brief:1.0");
    let first = registry.push("brief:1.0", &[(WASM, one)]);
    let server = Server::start(&place.store, &place.config).await;
    let new = json!({ "reference": tag, "alias": "brief" });
    let (status, plugin) = server.post("/plugins", new.clone()).await;
    assert_eq!(status, 201, "{plugin}");
    check(&plugin, one, &format!("{tag}@{first}"));

    let second = registry.push("brief:1.0", &[(WASM, two)]);
    let listed = async |server: &Server| {
        let (_, page) = server.get("/plugins").await;
        named(page["items"].as_array().unwrap()).expect("it is installed")
    };
    check(&listed(&server).await, one, &format!("{tag}@{first}"));
    server.kill().await;
    let server = Server::start(&place.store, &place.config).await;
    check(&listed(&server).await, one, &format!("{tag}@{first}"));

    let (status, plugin) = server.post("/plugins", new).await;
    assert_eq!(status, 201, "{plugin}");
    check(&plugin, two, &format!("{tag}@{second}"));

    // A command goes through the server.
    registry.push("brief:2.0", &[(WASM, one)]);
    let plugin = Place::installed(&place.install(&registry.reference("brief:2.0")).await);
    check(
        &plugin,
        one,
        &registry.reference(&format!("brief:2.0@{first}")),
    );

    let refused = async |reference: String| {
        let new = json!({ "reference": reference, "alias": "other" });
        let (status, problem) = server.post("/plugins", new).await;
        let kind = problem["type"].as_str().unwrap_or_default();
        (status, kind.rsplit(':').next().unwrap().to_owned(), problem)
    };
    // A server reads no files of its own for a client.
    let (status, kind, _) = refused(place.config.display().to_string()).await;
    assert_eq!((status, kind.as_str()), (422, "invalid"));
    let (status, kind, _) = refused(registry.reference("brief:3.0")).await;
    assert_eq!((status, kind.as_str()), (422, "artifact-not-found"));
    let (status, kind, _) = refused(format!("oci://{}/brief:1.0", nobody().await)).await;
    assert_eq!((status, kind.as_str()), (502, "registry-unreachable"));
    registry.corrupt_layer(&sha256(one), two);
    let (status, kind, problem) = refused(registry.reference("brief:2.0")).await;
    assert_eq!((status, kind.as_str()), (422, "artifact-refused"));
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains(&sha256(one)) && detail.contains(&sha256(two)),
        "{detail}"
    );
    registry.shut(Door::Shut);
    let (status, kind, problem) = refused(registry.reference("brief:1.0")).await;
    assert_eq!((status, kind.as_str()), (502, "registry-denied"));
    let table = format!("[registries.\"{}\"]", registry.host);
    assert!(
        problem["detail"].as_str().unwrap().contains(&table),
        "{problem}"
    );
    // The codes of commands are the same as without a server.
    let (code, _, err) = place.install(&registry.reference("brief:1.0")).await;
    assert!(code == 5 && err.contains(&table), "{code} {err}");
    let (_, page) = server.get("/plugins").await;
    assert!(!page.to_string().contains("\"other\""), "{page}");
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_bytes_that_do_not_match_their_digest_are_refused() {
    let (registry, place) = (Registry::start().await, Place::new());
    let (one, two) = versions();
    let stored = place.stored().await;
    #[track_caller]
    fn refused(came: &Came, what: &str, digests: [&str; 2]) {
        let (code, _, err) = came;
        assert_eq!(*code, 6, "{err}");
        for word in [what, digests[0], digests[1]] {
            assert!(err.contains(word), "no {word} in {err}");
        }
    }

    // The layer: others, and a part of the right ones.
    let tag = registry.reference("brief:1.0");
    let first = registry.push("brief:1.0", &[(WASM, one)]);
    let (right, wrong) = (sha256(one), sha256(two));
    registry.corrupt_layer(&right, two);
    refused(&place.install(&tag).await, "layer", [&right, &wrong]);
    let part = &one[..one.len() / 2];
    registry.corrupt_layer(&right, part);
    refused(&place.install(&tag).await, "layer", [&right, &sha256(part)]);
    registry.corrupt_layer(&right, one);

    // The manifest: by digest, and by a tag whose digest the registry names.
    let second = registry.push("brief:2.0", &[(WASM, two)]);
    registry.corrupt_manifest(&first, &second, &second);
    let pinned = registry.reference(&format!("brief@{first}"));
    refused(&place.install(&pinned).await, "manifest", [&first, &second]);
    registry.corrupt_manifest(&first, &second, &first);
    refused(&place.install(&pinned).await, "manifest", [&first, &second]);
    refused(&place.install(&tag).await, "manifest", [&first, &second]);

    assert_eq!(place.brief().await, None);
    assert_eq!(place.stored().await, stored, "nothing was stored");
}

/// Everything that handles a request of a registry says all that it can.
const LOG: &str = "off,mainstay=trace,mainstay_registry=trace,oci_client=trace,reqwest=trace,\
                   hyper=trace,hyper_util=trace";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_credentials_are_asked_for_and_told_to_nobody() {
    let (registry, place) = (Registry::start().await, Place::new());
    let (one, _) = versions();
    let manifest = registry.push("brief:1.0", &[(WASM, one)]);
    let tag = registry.reference("brief:1.0");
    let table = format!("[registries.\"{}\"]", registry.host);
    let basic = "username = \"robot\"\npassword = { env = \"MAINSTAY_TEST_KEY\" }";
    let token = "token = { env = \"MAINSTAY_TEST_KEY\" }";
    let wrong = "username = \"robot\"\npassword = { env = \"HOME\" }";
    let unset = "token = { env = \"MAINSTAY_TEST_KEY_THAT_IS_NOT_SET\" }";
    let install = ["--log", LOG, "plugin", "install", &tag, "--alias", "brief"];
    let mut told = String::new();
    let doors = [
        (Door::Basic("robot", SECRET), basic),
        (Door::Exchange("robot", SECRET), basic),
        (Door::Token(SECRET), token),
    ];
    for (door, right) in doors {
        registry.shut(door);
        // Without credentials, with wrong ones, with ones that are not there.
        for (credentials, advice) in [
            ("", "username"),
            (wrong, "are right"),
            (unset, "MAINSTAY_TEST_KEY_THAT_IS_NOT_SET"),
        ] {
            let tables = match credentials {
                "" => String::new(),
                given => format!("{table}\n{given}\n"),
            };
            place.configure(&tables);
            let (code, out, err) = place.run(&install).await;
            assert_eq!(code, 5, "{err}");
            assert!(err.contains(&table) && err.contains(advice), "{err}");
            told.extend([out, err]);
        }
        place.configure(&format!("{table}\n{right}\n"));
        let (code, out, err) = place.run(&install).await;
        assert_eq!(code, 0, "{err}");
        told.extend([out, err]);
        let plugin = place.brief().await.expect("it is installed");
        check(&plugin, one, &format!("{tag}@{manifest}"));
        let (code, _, err) = place.run(&["plugin", "remove", "runner", "brief"]).await;
        assert_eq!(code, 0, "{err}");
    }
    // Right credentials for somebody who may not read it.
    registry.shut(Door::Shut);
    let (code, out, err) = place.run(&install).await;
    assert!(code == 5 && err.contains("are right"), "{err}");
    told.extend([out, err]);
    for target in ["oci_client", "hyper_util"] {
        assert!(told.contains(target), "no log of {target}");
    }
    assert!(!told.contains(SECRET), "a secret was told");
    let store = std::fs::read(&place.store).unwrap();
    let secret = SECRET.as_bytes();
    assert!(!store.windows(secret.len()).any(|bytes| bytes == secret));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_only_one_component_of_a_fair_size_is_a_plugin() {
    let (registry, place) = (Registry::start().await, Place::new());
    let (one, two) = versions();
    let stored = place.stored().await;
    let refused = async |name: &str, cause: &str| {
        let (code, _, err) = place.install(&registry.reference(name)).await;
        assert_eq!(code, 6, "{err}");
        assert!(err.contains(cause), "no {cause} in {err}");
    };
    let tar = "application/vnd.oci.image.layer.v1.tar+gzip";
    let linux = registry.push("image:1", &[(tar, one)]);
    refused("image:1", tar).await;
    registry.push("several:1", &[(WASM, one), (WASM, two)]);
    refused("several:1", "several layers").await;
    registry.push("text:1", &[(WASM, b"this is no component")]);
    refused("text:1", "the plugin is refused").await;
    registry.push_index("index:1", &[(&linux, "amd64", "linux")]);
    refused("index:1", "linux/amd64").await;
    registry.push_said("said:1", 1 << 40);
    refused("said:1", "larger than the 67108864 bytes").await;
    registry.push_endless("endless:1");
    refused("endless:1", "larger than the 67108864 bytes").await;
    assert_eq!(place.stored().await, stored, "nothing was stored");

    // The older type of layer, beside another; and an index that has one for WebAssembly.
    let older = "application/vnd.wasm.content.layer.v1+wasm";
    let manifest = registry.push("older:1", &[("text/plain", b"read me"), (older, one)]);
    let plugin = Place::installed(&place.install(&registry.reference("older:1")).await);
    check(
        &plugin,
        one,
        &registry.reference(&format!("older:1@{manifest}")),
    );
    let index = registry.push_index(
        "index:2",
        &[(&linux, "amd64", "linux"), (&manifest, "wasm", "wasip2")],
    );
    let plugin = Place::installed(&place.install(&registry.reference("index:2")).await);
    check(
        &plugin,
        one,
        &registry.reference(&format!("index:2@{index}")),
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_what_leads_nowhere_is_told_with_what_to_do() {
    let (registry, place) = (Registry::start().await, Place::new());
    registry.push("brief:1.0", &[(WASM, PARROT)]);
    let told = async |source: &str, code: i32, words: &[&str]| {
        let (came, _, err) = place.install(source).await;
        assert_eq!(came, code, "{err}");
        for word in words {
            assert!(err.contains(word), "no {word} in {err}");
        }
    };
    let bare = format!("{}/brief:1.0", registry.host);
    told(&bare, 3, &[&format!("write `oci://{bare}`")]).await;
    told("./nowhere.wasm", 3, &["cannot read ./nowhere.wasm"]).await;
    told(&registry.reference("brief"), 2, &["needs a tag"]).await;
    told(
        &registry.reference("brief:2.0"),
        3,
        &["brief:2.0", "was pushed"],
    )
    .await;
    let unknown = format!("brief@{}", sha256(b"something else"));
    told(&registry.reference(&unknown), 3, &[&unknown]).await;
    let nobody = nobody().await;
    told(
        &format!("oci://{nobody}/brief:1.0"),
        7,
        &[&nobody, "cannot be reached"],
    )
    .await;
    // TLS, where the registry speaks none.
    place.configure(&format!(
        "[registries.\"{}\"]\ninsecure = false\n",
        registry.host
    ));
    told(&registry.reference("brief:1.0"), 7, &["insecure = true"]).await;
    place.configure("");
    assert_eq!(place.brief().await, None);

    // A look at what would be installed.
    let (code, out, err) = place
        .run(&[
            "--json",
            "plugin",
            "inspect",
            &registry.reference("brief:1.0"),
        ])
        .await;
    assert_eq!(code, 0, "{err}");
    assert_eq!(lines(&out)[0]["name"], "parrot");
    assert_eq!(place.brief().await, None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_2_configured_plugins_are_loaded_at_start() {
    let (registry, place) = (Registry::start().await, Place::new());
    let (one, two) = versions();
    let first = registry.push("brief:1.0", &[(WASM, one)]);
    let tag = registry.reference("brief:1.0");
    std::fs::write(place.folder.path().join("near.wasm"), PARROT).unwrap();
    let nobody = nobody().await;
    place.configure(&format!(
        "[plugins.brief]\nsource = \"{tag}\"\n\
         [plugins.near]\nsource = \"near.wasm\"\n\
         [plugins.gone]\nsource = \"gone.wasm\"\n\
         [plugins.nobody]\nsource = \"oci://{nobody}/brief:1.0\"\n"
    ));
    // Any command that runs sessions starts a host; the rest is loaded and the run succeeds.
    let (code, out, err) = place.run(&["run", "say hello"]).await;
    assert_eq!((code, out.trim()), (0, "hello"), "{err}");
    let reported: Vec<&str> = err
        .lines()
        .filter(|line| line.contains("a configured plugin is not loaded"))
        .collect();
    assert_eq!(reported.len(), 2, "{err}");
    assert!(err.contains("gone.wasm") && err.contains(&nobody), "{err}");
    check(
        &place.brief().await.unwrap(),
        one,
        &format!("{tag}@{first}"),
    );
    let (_, out, _) = place.run(&["--json", "plugin", "inspect", "near"]).await;
    assert_eq!(lines(&out)[0]["digest"], mainstay_core::id::digest(PARROT));

    // Another start asks for no tag that was loaded, so it works without the registry.
    registry.push("brief:1.0", &[(WASM, two)]);
    let second = registry.push("brief:2.0", &[(WASM, two)]);
    let before = registry.requests();
    let server = Server::start(&place.store, &place.config).await;
    assert_eq!(registry.requests(), before);
    server.kill().await;
    check(
        &place.brief().await.unwrap(),
        one,
        &format!("{tag}@{first}"),
    );
    let tag = registry.reference("brief:2.0");
    place.configure(&format!("[plugins.brief]\nsource = \"{tag}\"\n"));
    Server::start(&place.store, &place.config)
        .await
        .kill()
        .await;
    check(
        &place.brief().await.unwrap(),
        two,
        &format!("{tag}@{second}"),
    );
}
