//! A world whose agent has the runner under the name `mine`, which is pointed here and there.

use std::path::PathBuf;

use serde_json::{Value, json};

use crate::world::{Api, World};

/// A runner that asks the model until it stops, and says what it was shown.
pub(super) const FIRST: &str = r#"{"name":"first","asks":true}"#;

pub(super) struct Place {
    pub(super) world: World,
}

impl Place {
    /// The runner `mine` is the component `mine`.
    pub(super) async fn new(mine: &[u8]) -> Self {
        let place = Self {
            world: World::with(
                "[agents.default]\nrunner = \"mine\"\nprovider = \"model\"\nmodel = \"parrot\"\n\
                 toolboxes = [\"files\"]\n\n\
                 [providers.model]\nplugin = \"voice\"\n\n\
                 [toolboxes.files]\nworkspace = \"read-write\"\n",
            ),
        };
        place.install(mine, "mine").await;
        place.install(mainstay_test_guests::PARROT, "voice").await;
        place
    }

    /// Keeps a component in a file.
    pub(super) fn file(&self, name: &str, component: &[u8]) -> PathBuf {
        let path = self.world.folder.path().join(format!("{name}.wasm"));
        std::fs::write(&path, component).unwrap();
        path
    }

    /// Points a name at a component, by way of the server if there is one. Gives its digest.
    pub(super) async fn install(&self, component: &[u8], alias: &str) -> String {
        let file = self.file(alias, component);
        let installed = self
            .json(&[
                "plugin",
                "install",
                file.to_str().unwrap(),
                "--alias",
                alias,
            ])
            .await;
        installed["digest"].as_str().unwrap().to_owned()
    }

    /// Points the name `mine` at what is installed: nothing has to be compiled, so a step that is in
    /// flight still is.
    pub(super) async fn point(&self, api: &Api, digest: &str) {
        let url = format!("{}/v1/plugins/runner/mine", api.0.address);
        let put = api.0.http.put(url);
        let put = put.header("content-type", "application/json");
        let body = json!({ "digest": digest }).to_string();
        let answer = put.body(body).send().await.unwrap();
        assert_eq!(answer.status(), 200);
    }

    /// What a command that succeeds prints.
    #[track_caller]
    pub(super) fn json<'a>(&'a self, args: &'a [&'a str]) -> impl Future<Output = Value> + 'a {
        let caller = std::panic::Location::caller();
        async move {
            let (code, out, err) = self.world.run(&[&["--json"], args].concat()).await;
            assert_eq!(code, 0, "{caller}: {args:?}: {err}");
            serde_json::from_str(&out).unwrap_or_else(|_| panic!("{caller}: {out}"))
        }
    }

    /// Digests of what is installed.
    pub(super) async fn installed(&self) -> Vec<String> {
        let (code, out, err) = self.world.run(&["--json", "plugin", "list"]).await;
        assert_eq!(code, 0, "{err}");
        let all = serde_json::Deserializer::from_str(&out).into_iter::<Value>();
        all.map(|plugin| plugin.unwrap()["digest"].as_str().unwrap().to_owned())
            .collect()
    }
}

/// Seq, runner and provider of each decision that is recorded.
pub(super) fn decisions(events: &[Value]) -> Vec<Decided> {
    let decided = events.iter().filter_map(|event| {
        let data = match event["type"].as_str()? {
            "step.started" => &event["data"],
            "turn.ended" => Some(&event["data"]["decided"]).filter(|data| data.is_object())?,
            _ => return None,
        };
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        Some(Decided {
            seq: event["seq"].as_u64().unwrap(),
            name: text(&data["runner"]["name"]),
            runner: text(&data["runner"]["digest"]),
            provider: text(&data["provider"]["digest"]),
        })
    });
    decided.collect()
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Decided {
    pub(super) seq: u64,
    pub(super) name: String,
    pub(super) runner: String,
    pub(super) provider: String,
}

/// A result for each call, and no second one.
pub(super) fn one_result_per_call(events: &[Value]) {
    let mut made: Vec<(u64, String)> = Vec::new();
    let mut settled: Vec<(u64, String)> = Vec::new();
    for event in events {
        let data = &event["data"];
        match event["type"].as_str().unwrap() {
            "step.output" => {
                let pieces = data["pieces"].as_array().unwrap().iter();
                made.extend(pieces.filter_map(|piece| {
                    let id = piece["call"]["id"].as_str()?;
                    Some((data["step"].as_u64().unwrap(), id.to_owned()))
                }));
            }
            "call.settled" => settled.push((
                data["step"].as_u64().unwrap(),
                data["result"]["call"].as_str().unwrap().to_owned(),
            )),
            _ => {}
        }
    }
    made.sort();
    settled.sort();
    assert_eq!(made, settled, "{events:#?}");
}

/// Waits until the model has said something in this step's answer, and gives the log.
pub(super) async fn until_output(api: &Api, session: &str, step: u64) -> Vec<Value> {
    let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
    loop {
        let events = api.events(session).await;
        let said = events
            .iter()
            .any(|event| event["type"] == "step.output" && event["data"]["step"] == json!(step));
        if said {
            return events;
        }
        let late = tokio::time::Instant::now() > deadline;
        assert!(!late, "step {step} says nothing: {events:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

/// Waits until so many decisions are recorded, and gives the last of them.
pub(super) async fn until_decision(api: &Api, session: &str, number: usize) -> Decided {
    let deadline = tokio::time::Instant::now() + crate::support::DEADLINE;
    loop {
        let events = api.events(session).await;
        if let Some(decided) = decisions(&events).get(number - 1) {
            return decided.clone();
        }
        let late = tokio::time::Instant::now() > deadline;
        assert!(!late, "no decision {number} in {events:#?}");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}
