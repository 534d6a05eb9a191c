//! What nothing needs is removed, and nothing else, whichever node collects.

use std::time::Duration;

use mainstay_core::event::Delivery;
use mainstay_core::id::{InputId, digest};
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::Store;
use mainstay_store::PostgresStore;
use mainstay_store::postgres::Options;
use mainstay_test_support::{build, postgres};

use super::{another, fresh};

const HOUR: Duration = Duration::from_secs(3600);

fn info(name: &str) -> PluginInfo {
    serde_json::from_value(serde_json::json!({
        "digest": digest(name.as_bytes()), "kind": "toolbox", "name": name, "version": "1",
        "summary": "", "wit": "0.1.0", "size": name.len(), "imports": [],
    }))
    .unwrap()
}

/// Until what was just given to somebody was given a while ago.
async fn a_while(store: &PostgresStore) {
    let now = store.now().await.unwrap();
    while store.now().await.unwrap() == now {}
}

#[tokio::test]
async fn ops_4_what_nothing_needs_is_removed() {
    let Some(server) = postgres::server() else {
        return;
    };
    let own = |options: &mut Options| options.clock = None;
    let (h, a, url) = fresh(server, own).await;
    let b = another(&h, &url, own).await;
    for name in ["named", "loose", "moved"] {
        a.plugin_put(&info(name), name.as_bytes()).await.unwrap();
    }
    let at = async |alias: &str, name: Option<&str>| {
        let digest = name.map(|name| digest(name.as_bytes()));
        let put = a.alias_put(Kind::Toolbox, alias, digest.as_deref(), None);
        put.await.unwrap();
    };
    at("one", Some("named")).await;
    at("two", Some("moved")).await;
    let (kept, lost) = (digest(b"kept"), digest(b"lost"));
    for (digest, bytes) in [(&kept, b"kept"), (&lost, b"lost")] {
        a.blob_put(digest, bytes).await.unwrap();
    }
    let session = h.session().await;
    let mention = format!("{{\"digest\":\"{kept}\"}}");
    h.ok(build::admit(
        session,
        InputId::new(),
        Delivery::Steer,
        &mention,
    ))
    .await;
    a_while(&a).await;

    // Just put: another node may be about to refer to it.
    let all = b.collect(HOUR, false).await.unwrap();
    assert!(all.components.is_empty() && all.blobs == 0, "{all:?}");
    assert_eq!(all.kept.len(), 3);

    let dry = b.collect(Duration::ZERO, true).await.unwrap();
    let names: Vec<_> = dry.components.iter().map(|one| one.name.as_str()).collect();
    assert_eq!((names, dry.blobs, dry.blob_bytes), (vec!["loose"], 1, 4));
    assert!(b.plugin(&digest(b"loose")).await.unwrap().is_some());

    let done = b.collect(Duration::ZERO, false).await.unwrap();
    assert_eq!((&done.components, done.blobs), (&dry.components, 1));
    assert!(a.plugin(&digest(b"loose")).await.unwrap().is_none());
    assert!(a.blob(&lost).await.unwrap().is_none());
    assert!(a.blob(&kept).await.unwrap().is_some());

    // Who knew where a name led may still go there.
    at("two", Some("named")).await;
    a_while(&a).await;
    assert!(b.collect(HOUR, false).await.unwrap().components.is_empty());
    let done = b.collect(Duration::ZERO, false).await.unwrap();
    assert_eq!(done.components.len(), 1);
    assert_eq!(done.kept.len(), 1);
    assert!(a.delete(session).await.unwrap());
    assert_eq!(b.collect(Duration::ZERO, false).await.unwrap().blobs, 1);
}
