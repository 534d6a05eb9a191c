//! A folder of plugins that is watched.

use mainstay_test_guests::successor;
use serde_json::Value;

use super::place::{FIRST, decisions};
use crate::world::World;

const SECOND: &str = r#"{"name":"second","asks":true}"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_3_a_watched_folder_loads_what_is_good_and_reports_the_rest_by_name() {
    let world = World::with(
        "[agents.default]\nrunner = \"mine\"\nprovider = \"model\"\nmodel = \"parrot\"\n\
         toolboxes = []\n\n[providers.model]\nplugin = \"voice\"\n",
    );
    let config = std::fs::read_to_string(&world.config).unwrap();
    let config = config.replace("[node]\n", "[node]\nplugin-folder = \"plugins\"\n");
    std::fs::write(&world.config, config).unwrap();
    let folder = world.folder.path().join("plugins");
    std::fs::create_dir(&folder).unwrap();
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    // Two that are good, and beside them what is none.
    write("mine.wasm", &successor(FIRST));
    write("voice.wasm", mainstay_test_guests::PARROT);
    write("text.wasm", b"no component");
    write("half.wasm", &mainstay_test_guests::LOOP[..1000]);
    write("notes.txt", b"no plugin and no matter");

    let api = world.server().await;
    let session = api.begin("hello").await;
    api.idle(&session).await;
    for bad in ["text", "half"] {
        api.0.says(&format!("led before plugin={bad} ")).await;
    }
    let listed = names(&world).await;
    for (name, there) in [
        ("mine", true),
        ("voice", true),
        ("text", false),
        ("half", false),
    ] {
        assert_eq!(
            listed.contains(&name.to_owned()),
            there,
            "{name}: {listed:?}"
        );
    }

    // Another file under the name: the next decision is its.
    write("mine.wasm", &successor(SECOND));
    let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
    loop {
        api.prompt(&session, "hello").await;
        api.idle(&session).await;
        let decided = decisions(&api.events(&session).await);
        if decided.last().unwrap().name == "second" {
            assert_eq!(decided[0].name, "first");
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{decided:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }

    // A file that is no plugin takes nothing away, nor does one that goes.
    write("mine.wasm", b"broken by an editor");
    api.0.says("led before plugin=mine").await;
    std::fs::remove_file(folder.join("voice.wasm")).unwrap();
    // What is new while it runs: once it is loaded, the others have been looked at too.
    write("late.wasm", mainstay_test_guests::LOOP);
    loop {
        let listed = names(&world).await;
        if listed.contains(&"late".to_owned()) {
            break;
        }
        assert!(tokio::time::Instant::now() < deadline, "{listed:?}");
        tokio::time::sleep(std::time::Duration::from_millis(100)).await;
    }
    api.prompt(&session, "hello").await;
    api.idle(&session).await;
    let decided = decisions(&api.events(&session).await);
    assert_eq!(decided.last().unwrap().name, "second", "{decided:?}");
    api.kill().await;
}

/// The names that lead to a plugin.
async fn names(world: &World) -> Vec<String> {
    let (code, out, err) = world.run(&["--json", "plugin", "list"]).await;
    assert_eq!(code, 0, "{err}");
    let all = serde_json::Deserializer::from_str(&out).into_iter::<Value>();
    all.flat_map(|plugin| plugin.unwrap()["aliases"].as_array().unwrap().clone())
        .map(|alias| alias.as_str().unwrap().to_owned())
        .collect()
}
