//! A deploy: a newer build widens the schema and writes what this one does not know, while nodes of this
//! build are at work. What the newer build does to the database is done here in SQL; once its migration
//! is no longer told of, this build takes its place on the wider schema.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection};

use super::support::{DEADLINE, Server, log, mainstay};
use super::{SLOW, World, ends, node_command, owners, prompt, seen, session};

/// A migration as the rules for them allow it: it adds, and what it adds may be left out.
const WIDEN: &str = "
    BEGIN;
    SET LOCAL lock_timeout = '200ms';
    ALTER TABLE event ADD COLUMN later text;
    ALTER TABLE item ADD COLUMN later bigint NOT NULL DEFAULT 0;
    ALTER TABLE input ADD COLUMN later text;
    ALTER TABLE session ADD COLUMN later boolean NOT NULL DEFAULT false;
    ALTER TABLE claim ADD COLUMN later text;
    CREATE TABLE later (session uuid PRIMARY KEY, data text NOT NULL);
    CREATE INDEX session_later ON session (id) WHERE later;
    INSERT INTO _sqlx_migrations (version, description, success, checksum, execution_time)
    VALUES (9998, 'later', true, '\\x00', 0);
    COMMIT";

/// Has the newer build migrate: it comes again while tables are in use.
async fn widen(database: &mut PgConnection) {
    let deadline = Instant::now() + DEADLINE;
    while let Err(error) = sqlx::raw_sql(WIDEN).execute(&mut *database).await {
        let code = error.as_database_error().and_then(|error| error.code());
        let is_in_use = matches!(code.as_deref(), Some("55P03" | "40P01"));
        assert!(is_in_use && Instant::now() < deadline, "{error}");
        sqlx::raw_sql("ROLLBACK")
            .execute(&mut *database)
            .await
            .unwrap();
    }
}

/// Has the newer build write an event of a type of its own.
async fn write_later(database: &mut PgConnection, session: &str) {
    let id = uuid::Uuid::parse_str(session).unwrap();
    let mut commit = database.begin().await.unwrap();
    let head: i64 = sqlx::query_scalar(
        "UPDATE session SET head = head + 1, version = version + 1, later = true WHERE id = $1
         RETURNING head",
    )
    .bind(id)
    .fetch_one(&mut *commit)
    .await
    .unwrap();
    sqlx::query("INSERT INTO kind VALUES ('session.later', 1) ON CONFLICT DO NOTHING")
        .execute(&mut *commit)
        .await
        .unwrap();
    sqlx::query(
        "INSERT INTO event (session, seq, id, type, version, at, data)
         VALUES ($1, $2, $3, 'session.later', 1, store_now(NULL), '{}')",
    )
    .bind(id)
    .bind(head)
    .bind(uuid::Uuid::now_v7())
    .execute(&mut *commit)
    .await
    .unwrap();
    commit.commit().await.unwrap();
}

/// Begins short sessions at a node, one after the other, until told to stop. Gives them.
async fn busy(node: Arc<Server>, stop: Arc<AtomicBool>) -> Vec<String> {
    let mut begun = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let id = session(&node).await;
        prompt(&node, &id, "say hello\nthen\nsay again", "queue").await;
        node.idle(&id).await;
        begun.push(id);
    }
    begun
}

/// The whole log of a session whose every execution ended well or was handed over.
async fn well(node: &Server, session: &str) -> Vec<Value> {
    node.idle(session).await;
    let events = node.events(session).await;
    log::check(&events);
    let turns = events.iter().filter(|e| e["type"] == "turn.ended").count();
    assert_eq!(turns, 1, "{events:#?}");
    for end in ends(&events) {
        let is_well = end["type"] == "execution.succeeded" || end["data"]["reason"] == "shutdown";
        assert!(is_well, "{end}");
    }
    events
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn node_3_upgrade_2_nodes_at_work_go_on_while_a_newer_build_moves_in() {
    let Some(world) = World::new() else { return };
    let (a, b) = (
        Arc::new(world.node("a").await),
        Arc::new(world.node("b").await),
    );
    let mut database = PgConnection::connect(&world.url).await.unwrap();
    let mut long = Vec::new();
    for node in [&a, &b, &a, &b] {
        let id = session(node).await;
        prompt(node, &id, &format!("{SLOW}\nthen\nsay over"), "queue").await;
        seen(node, &id, |event| event["type"] == "step.started").await;
        long.push(id);
    }
    let stop = Arc::new(AtomicBool::new(false));
    let work = [&a, &b].map(|node| tokio::spawn(busy(Arc::clone(node), Arc::clone(&stop))));

    // The schema widens under them. What they prepared of statements still fits.
    widen(&mut database).await;
    let theirs = session(&a).await;
    write_later(&mut database, &theirs).await;
    prompt(&a, &theirs, "say mine", "queue").await;
    let another = session(&b).await;
    prompt(&b, &another, "say hello", "queue").await;
    well(&a, &another).await;
    stop.store(true, Ordering::SeqCst);
    for work in work {
        let begun = work.await.unwrap();
        assert!(begun.len() > 1, "{begun:?}");
        for id in begun {
            well(&b, &id).await;
        }
    }
    // What the newer build wrote, it runs.
    let (_, shown) = b.get(&format!("/sessions/{theirs}")).await;
    let held = shown["held"].as_str().unwrap_or_default();
    assert!(held.contains("session.later"), "{shown}");
    assert_eq!(shown["pending_inputs"], 1, "{shown}");
    assert_eq!(owners(&a.events(&theirs).await), [""; 0]);

    // A node of the older build that is started now says why it cannot.
    let mut late = mainstay(Path::new(&world.url), &world.config);
    late.env("HOME", world.folder.path())
        .args(["serve", "--listen", "127.0.0.1:0"])
        .stdout(std::process::Stdio::null());
    let refused = tokio::time::timeout(DEADLINE, late.output()).await;
    let refused = refused.expect("it ends").unwrap();
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && said.contains("9998") && said.contains("newer build"),
        "{}: {said}",
        refused.status
    );

    // From here on this build is the newer one: it knows the migration, and the type of event.
    sqlx::raw_sql(
        "DELETE FROM _sqlx_migrations WHERE version = 9998;
         DELETE FROM kind WHERE type = 'session.later';
         UPDATE event SET type = 'session.released' WHERE type = 'session.later'",
    )
    .execute(&mut database)
    .await
    .unwrap();
    let c = world.node("c").await;
    let mut moved = Vec::new();
    for node in [&a, &b] {
        let id = session(node).await;
        prompt(node, &id, &format!("{SLOW}\nthen\nsay over"), "queue").await;
        let begun = seen(node, &id, |event| event["type"] == "step.output").await;
        moved.push((id, owners(&begun).remove(0)));
    }
    let mut old = Vec::new();
    for node in [a, b] {
        let node = Arc::into_inner(node).expect("nobody else has it");
        let (_, health) = node.get("/health").await;
        old.push((node, health["owner"].as_str().unwrap().to_owned()));
    }
    for (mut node, owner) in old {
        let (drains, _, said) = node_command(&world, &c, &["drain", &owner]).await;
        assert!(drains, "{said}");
        let ended = tokio::time::timeout(DEADLINE, node.child.wait()).await;
        assert!(ended.expect("it ends").unwrap().success());
    }
    for (id, first) in moved {
        let events = well(&c, &id).await;
        let ran = owners(&events);
        assert_eq!(ran[0], first);
        let (_, shown) = c.get(&format!("/sessions/{id}")).await;
        assert_eq!(shown["attempts"], json!(0), "{shown}");
    }
    for id in long {
        well(&c, &id).await;
    }
    let events = well(&c, &theirs).await;
    assert_eq!(owners(&events).len(), 1, "{events:#?}");
    c.kill().await;
}
