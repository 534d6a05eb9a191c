//! What a plugin asked for, was granted and has used, as an operator sees it.

use serde_json::{Value, json};

use super::world::World;
use crate::support::Outside;

const SECRET: &str = "hunter2-of-the-e2e";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_what_a_plugin_asks_for_is_granted_and_has_used_is_told() {
    let outside = Outside::start().await;
    let port = outside.port;
    let world = World::with(&format!(
        "[agents.default]\nrunner = \"planner\"\ntoolboxes = [\"web\", \"files\"]\n\n\
         [toolboxes.web]\nhttp = [{{ url = \"http://127.0.0.1:{port}/\", private = true }}]\n\n\
         [toolboxes.files]\nworkspace = \"read\"\n\n\
         [providers.mine]\nplugin = \"openai-chat\"\nbase-url = \"http://127.0.0.1:{port}/v1\"\n\
         model = \"m\"\nsecrets = {{ api-key = {{ file = \"key\" }} }}\n"
    ));
    std::fs::write(world.folder.path().join("key"), SECRET).unwrap();
    let api = world.server().await;
    let post = |port: u16| {
        let url = format!("http://127.0.0.1:{port}/post/a");
        json!({ "url": url, "body": "{}" })
    };
    let script = format!(
        "call web_post {}\nthen\ncall web_post {}\nthen\ncall file_list {{}}",
        post(port),
        post(1)
    );
    let session = api.begin(&script).await;
    api.idle(&session).await;

    let page = api.expect(200, "GET", "/plugins/access", None).await;
    let all = page["items"].as_array().unwrap();
    let of = |alias: &str| {
        let found = all.iter().find(|report| report["alias"] == alias);
        found.unwrap_or_else(|| panic!("no {alias} in {page:#}"))
    };
    let web = of("web");
    assert_eq!(web["kind"], "toolbox");
    assert_eq!(
        web["granted"]["http"],
        json!([format!("any method http://127.0.0.1:{port}/")])
    );
    let requests = web["used"]["requests"].as_array().unwrap();
    let to = |port: u16| {
        let origin = format!("http://127.0.0.1:{port}");
        let found = requests.iter().find(|of| of["origin"] == *origin);
        found.unwrap_or_else(|| panic!("nothing to {origin} in {web:#}"))
    };
    let (sent, refused) = (to(port), to(1));
    assert_eq!((&sent["sent"], &sent["refused"]), (&json!(1), &json!(0)));
    assert_eq!(
        (&refused["sent"], &refused["refused"]),
        (&json!(0), &json!(1))
    );
    assert!(
        refused["refusal"].as_str().unwrap().contains("127.0.0.1"),
        "{refused}"
    );
    let files = of("files");
    assert_eq!(files["asked"]["workspace"], "read_write");
    assert_eq!(files["granted"]["workspace"], "read");
    assert_eq!(files["used"]["workspace_calls"], 1);
    let mine = of("mine");
    assert_eq!(mine["kind"], "provider");
    assert_eq!(mine["used"]["requests"], json!([]));
    let key = &mine["granted"]["secrets"]["api-key"];
    assert_eq!(key["set"], json!(true), "{mine:#}");
    assert!(!page.to_string().contains(SECRET), "{page:#}");

    // The same from the command line, beside the server and without one.
    let (code, told, _) = world.run(&["plugin", "access", "web"]).await;
    assert_eq!(code, 0);
    let wanted = format!("POST http://127.0.0.1:{port}: 1 sent");
    assert!(
        told.contains(&wanted) && told.contains("1 refused"),
        "{told}"
    );
    let (code, _, told) = world.run(&["plugin", "access", "nobody"]).await;
    assert_eq!(code, 3, "{told}");
    assert!(told.contains("neither a provider nor a toolbox"), "{told}");
    api.kill().await;
    let (_, told, _) = world.run(&["plugin", "access", "mine", "--json"]).await;
    let report: Value = serde_json::from_str(&told).unwrap();
    assert_eq!(report["granted"], mine["granted"]);
    assert_eq!(report.get("used"), None);
    let (_, told, _) = world.run(&["plugin", "access", "mine"]).await;
    assert!(
        told.contains("no server runs") && !told.contains(SECRET),
        "{told}"
    );
}
