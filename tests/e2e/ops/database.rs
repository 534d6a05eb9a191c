//! The same of a Postgres database, beside the nodes that work on it.

use std::time::Duration;

use mainstay_test_support::postgres;
use serde_json::Value;
use sqlx::{Connection as _, Executor as _, PgConnection};

use super::{DAMAGED, begin};
use crate::support::{DEADLINE, Server, mainstay};

const USAGE: i32 = 2;
const NOT_FOUND: i32 = 3;

struct Database {
    folder: tempfile::TempDir,
    url: String,
}

impl Database {
    /// `None` where Postgres is not installed.
    fn new(config: &str) -> Option<Self> {
        let database = Self {
            url: postgres::server()?.database(),
            folder: tempfile::tempdir().unwrap(),
        };
        database.configure(config);
        Some(database)
    }

    fn configure(&self, text: &str) {
        std::fs::write(self.folder.path().join("mainstay.toml"), text).unwrap();
    }

    fn command(&self) -> tokio::process::Command {
        let config = self.folder.path().join("mainstay.toml");
        let mut command = mainstay(std::path::Path::new(&self.url), &config);
        command
            .env("HOME", self.folder.path())
            .env_remove("XDG_DATA_HOME");
        command
    }

    async fn run(&self, args: &[&str]) -> (i32, String, String) {
        let output = self.command().args(args).output();
        let output = tokio::time::timeout(DEADLINE, output).await;
        let output = output.expect("the command ends").unwrap();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        let code = output.status.code().unwrap_or(-1);
        (code, text(output.stdout), text(output.stderr))
    }

    async fn json(&self, expected: i32, args: &[&str]) -> Value {
        let mut all = vec!["--json"];
        all.extend(args);
        let (code, out, err) = self.run(&all).await;
        assert_eq!(code, expected, "{args:?}: {out}\n{err}");
        serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}\n{err}"))
    }

    async fn sql(&self, text: &'static str) -> u64 {
        let mut conn = PgConnection::connect(&self.url).await.unwrap();
        conn.execute(text).await.unwrap().rows_affected()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_2_doctor_and_gc_work_on_a_database_beside_its_nodes() {
    let Some(database) = Database::new("") else {
        return;
    };
    let (code, _, err) = database.run(&["doctor"]).await;
    assert_eq!(code, NOT_FOUND, "{err}");
    assert!(err.contains("is empty"), "{err}");
    let made = database
        .sql("SELECT 1 FROM pg_class WHERE relnamespace = 'public'::regnamespace")
        .await;
    assert_eq!(made, 0, "doctor writes nothing");

    let server = Server::run(database.command()).await;
    let session = begin(&server, &format!("say {}", "a long tale ".repeat(50))).await;
    server.idle(&session).await;
    let report = database.json(0, &["doctor"]).await;
    assert_eq!(report["healthy"], true, "{report:#}");
    assert_eq!(report["sessions"], 1);
    assert_eq!(report["invariants"].as_array().unwrap().len(), 10);

    let (code, _, err) = database.run(&["backup", "copy.db"]).await;
    assert_eq!(code, USAGE, "{err}");
    assert!(err.contains("pg_dump"), "{err}");

    let would = database
        .json(0, &["gc", "--sessions", "0s", "--dry-run"])
        .await;
    assert_eq!(would["sessions"], 1);
    let done = database.json(0, &["gc", "--bodies", "0s"]).await;
    assert!(done["bodies"].as_u64().unwrap() >= 1, "{done}");
    let events = server.events(&session).await;
    assert!(events.iter().any(|event| !event["compacted"].is_null()));
    // The node that kept its tail goes on from what is there now.
    super::prompt(&server, &session, "say on").await;
    server.idle(&session).await;
    database.json(0, &["doctor"]).await;

    let changed = database
        .sql("UPDATE item SET data = replace(data, 'long', 'short')")
        .await;
    assert!(changed > 0);
    let report = database.json(DAMAGED, &["doctor"]).await;
    let broken: Vec<_> = report["invariants"]
        .as_array()
        .unwrap()
        .iter()
        .filter(|line| line["state"] == "broken")
        .collect();
    assert_eq!(broken.len(), 1, "{report:#}");
    assert_eq!(broken[0]["number"], 8);
    assert_eq!(broken[0]["breaches"][0]["session"], session.as_str());
    server.kill().await;

    let gone = database.json(0, &["gc", "--sessions", "0s"]).await;
    assert_eq!(gone["sessions"], 1);
    let report = database.json(0, &["doctor"]).await;
    assert_eq!(report["sessions"], 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_3_rows_of_a_database_are_written_anew_from_their_log() {
    let Some(database) = Database::new("") else {
        return;
    };
    let server = Server::run(database.command()).await;
    let session = begin(&server, "say hello").await;
    server.idle(&session).await;
    let (_, before) = server.get(&format!("/sessions/{session}/messages")).await;
    assert!(database.sql("DELETE FROM item").await > 0);
    database.json(DAMAGED, &["doctor"]).await;
    let (code, _, err) = database.run(&["doctor", "--rebuild"]).await;
    assert_eq!(code, 0, "{err}");
    assert!(err.contains(&session), "{err}");
    let (_, after) = server.get(&format!("/sessions/{session}/messages")).await;
    assert_eq!(after, before);
    server.kill().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ops_5_a_node_applies_the_retention_that_is_configured() {
    let Some(database) = Database::new("[retention]\nsessions = \"1d\"\n") else {
        return;
    };
    let server = Server::run(database.command()).await;
    let session = begin(&server, "say hello").await;
    server.idle(&session).await;
    server.kill().await;
    database.configure("[retention]\nsessions = \"1ms\"\n");
    let server = Server::run(database.command()).await;
    let path = format!("/sessions/{session}");
    let gone = async {
        while server.get(&path).await.0 != 404 {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let gone = tokio::time::timeout(DEADLINE, gone).await;
    gone.expect("the session goes");
    server.kill().await;
}
