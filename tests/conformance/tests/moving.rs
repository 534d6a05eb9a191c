//! Sessions move from a file to a database and back: every row as it was, each session whole or not at
//! all, and what is another in the target is named and left alone.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use mainstay_core::commit::End;
use mainstay_core::event::{Delivery, EventBody};
use mainstay_core::id::{InputId, SessionId, digest};
use mainstay_core::model::Effect;
use mainstay_core::plugin::{Kind, PluginInfo};
use mainstay_core::port::Store;
use mainstay_store::moving::{Movable, MoveError, Moved, move_all};
use mainstay_store::{Options, PostgresStore, Retention, SqliteStore, postgres as pg};
use mainstay_test_conformance::{Harness, store_2};
use mainstay_test_support::{ManualClock, MemoryStore, build, postgres};
use sqlx::{Connection as _, Executor as _, PgConnection, SqliteConnection};

struct Place {
    clock: Arc<ManualClock>,
    dir: tempfile::TempDir,
    url: String,
}

impl Place {
    /// `None` where Postgres is not installed.
    fn new() -> Option<Self> {
        Some(Self {
            clock: Arc::default(),
            dir: tempfile::tempdir().unwrap(),
            url: postgres::server()?.database(),
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    async fn file(&self, name: &str) -> Arc<SqliteStore> {
        let options = Options {
            clock: self.clock.clone(),
            ..Options::default()
        };
        Arc::new(SqliteStore::open(self.path(name), options).await.unwrap())
    }

    async fn database(&self, application: &str) -> Arc<PostgresStore> {
        let options = pg::Options {
            clock: Some(self.clock.clone()),
            notify_every: None,
            application: application.into(),
            ..pg::Options::default()
        };
        Arc::new(PostgresStore::open(&self.url, options).await.unwrap())
    }

    fn harness(&self, store: Arc<dyn Store>) -> Harness {
        Harness {
            store,
            clock: self.clock.clone(),
            keep: Box::new(()),
        }
    }
}

const MOVER: &str = "mainstay move test";

async fn moved(from: &dyn Movable, to: &dyn Movable) -> Moved {
    move_all(from, Some(to), false, |_| {}).await.unwrap()
}

/// What two files hold that only one of them has, when a claim runs out apart.
async fn differences(one: &Path, other: &Path) -> Vec<String> {
    let mut conn = SqliteConnection::connect(&format!("sqlite://{}", one.display()))
        .await
        .unwrap();
    let attach = format!("ATTACH '{}' AS other", other.display());
    conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(attach)))
        .await
        .unwrap();
    let mut found = Vec::new();
    for (table, columns) in [
        ("event", "*"),
        ("session", "*"),
        (
            "claim",
            "session, execution, owner, json_remove(data, '$.expires_at')",
        ),
        ("input", "*"),
        ("item", "*"),
        ("step", "*"),
        ("call", "*"),
        ("execution", "*"),
        ("blob", "*"),
        ("plugin", "*"),
        ("alias", "*"),
        ("meta", "*"),
    ] {
        for (here, there) in [("main", "other"), ("other", "main")] {
            let sql = format!(
                "SELECT count(*) FROM (SELECT {columns} FROM {here}.{table}
                                       EXCEPT SELECT {columns} FROM {there}.{table})"
            );
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(sql))
                .fetch_one(&mut conn)
                .await
                .unwrap();
            if count > 0 {
                found.push(format!("{count} rows of {table} are in {here} alone"));
            }
        }
    }
    conn.close().await.unwrap();
    found
}

#[tokio::test]
async fn store_2_moved_to_postgres_and_back_every_row_is_the_same() {
    let Some(place) = Place::new() else { return };
    let file = place.file("from.db").await;
    let memory = place.harness(Arc::new(MemoryStore::new(place.clock.clone())));
    store_2(&memory, &place.harness(file.clone()), 7, 1_500).await;
    // What Postgres' own JSON does not take, and a session larger than what is written at once.
    let h = place.harness(file.clone());
    let odd = h.session().await;
    for text in ["\0 and \\u0000 and '\"", &"x".repeat(3 << 20)] {
        for _ in 0..2 {
            let input = InputId::new();
            h.ok(build::admit(odd, input, Delivery::Queue, text)).await;
        }
    }
    // A call of every status.
    let (busy, fence, step) = h.step(build::call_model()).await;
    let calls = ["streaming", "ready", "held", "started", "settled"];
    let pieces = calls.into_iter().flat_map(|id| {
        let [begins, arguments, ready] = build::call_pieces(id);
        let ready = Some(ready).filter(|_| id != "streaming");
        [Some(begins), Some(arguments), ready]
    });
    let events = [
        build::output(step, pieces.flatten()),
        build::call_held(step, "held"),
        build::call_started(step, "started", Effect::Once, 1),
        build::call_settled(step, "settled"),
    ];
    h.ok(build::append(busy, fence, events)).await;
    let (told, input, fence) = (h.session().await, InputId::new(), build::fence());
    let long = "a long tale ".repeat(100);
    h.ok(build::admit(told, input, Delivery::Queue, &long))
        .await;
    h.ok(build::claim(told, fence)).await;
    let turn = [
        build::turn_started(),
        EventBody::InputPromoted { input },
        build::turn_ended(),
    ];
    h.ok(build::append(told, fence, turn)).await;
    h.ok(build::end(told, fence, End::Succeeded)).await;
    let compact = Retention {
        sessions_before: None,
        bodies_before: Some(u64::MAX),
    };
    assert!(file.retain(compact, false).await.unwrap().bodies > 0);
    let info: PluginInfo = serde_json::from_value(serde_json::json!({
        "digest": digest(b"code"), "kind": "toolbox", "name": "tool", "version": "1",
        "summary": "", "wit": "0.1.0", "size": 4, "imports": [],
    }))
    .unwrap();
    file.plugin_put(&info, b"code").await.unwrap();
    let at = Some("oci://host/tool:1");
    file.alias_put(Kind::Toolbox, "tool", Some(&info.digest), at)
        .await
        .unwrap();
    file.blob_put(&digest(b"bytes"), b"bytes").await.unwrap();

    let database = place.database(MOVER).await;
    let there = moved(&*file, &*database).await;
    assert!(there.new > 10 && there.conflicts.is_empty(), "{there:?}");
    assert_eq!((there.new, there.held), (there.sessions, 0));
    assert_eq!((there.components, there.aliases, there.blobs), (1, 1, 1));
    for session in file.session_ids().await.unwrap() {
        let (mut here, mut there) = (
            file.dump(session).await.unwrap(),
            database.dump(session).await.unwrap(),
        );
        for dump in [&mut here, &mut there] {
            if let Some(claim) = &mut dump.claim {
                claim.expires_at = 0;
            }
        }
        assert_eq!(there, here);
    }
    let report = database.examine(|_, _| {}).await.unwrap();
    assert!(report.is_healthy(), "{report:#?}");

    let again = moved(&*file, &*database).await;
    assert_eq!((again.held, again.events), (there.sessions, 0), "{again:?}");
    assert_eq!((again.components, again.aliases, again.blobs), (0, 0, 0));

    let back = place.file("back.db").await;
    let returned = moved(&*database, &*back).await;
    assert_eq!(returned.new, there.sessions);
    let report = back.examine(false, |_, _| {}).await.unwrap();
    assert!(report.is_healthy(), "{report:#?}");
    file.close().await;
    back.close().await;
    let differ = differences(&place.path("from.db"), &place.path("back.db")).await;
    assert!(differ.is_empty(), "{differ:#?}");
}

#[tokio::test]
async fn store_2_a_move_that_is_done_again_goes_on_and_names_what_is_another() {
    let Some(place) = Place::new() else { return };
    let file = place.file("from.db").await;
    let here = place.harness(file.clone());
    let database = place.database(MOVER).await;
    let there = place.harness(database.clone());
    let mut all: Vec<SessionId> = Vec::new();
    for _ in 0..5 {
        let session = here.session().await;
        here.prompt(session, Delivery::Queue).await;
        all.push(session);
    }
    let [same, grown, ahead, other, rows] = all[..] else {
        unreachable!("five were made")
    };

    let would = move_all(&*file, Some(&*database), true, |_| {})
        .await
        .unwrap();
    assert_eq!(would.new, 5);
    assert!(database.session_ids().await.unwrap().is_empty());
    let none = move_all(&*file, None, true, |_| {}).await.unwrap();
    assert_eq!(none, would);
    assert_eq!(moved(&*file, &*database).await, would);

    here.prompt(grown, Delivery::Queue).await;
    there.prompt(ahead, Delivery::Queue).await;
    there.prompt(other, Delivery::Queue).await;
    here.prompt(other, Delivery::Queue).await;
    let mut conn = PgConnection::connect(&place.url).await.unwrap();
    let spoil = format!("UPDATE item SET data = '{{}}' WHERE session = '{rows}'");
    let spoil = format!("{spoil}; UPDATE input SET intent = NOT intent WHERE session = '{rows}'");
    conn.execute(sqlx::raw_sql(sqlx::AssertSqlSafe(spoil)))
        .await
        .unwrap();
    let before = database.dump(other).await.unwrap();
    let again = moved(&*file, &*database).await;
    assert_eq!(
        (again.new, again.grown, again.ahead, again.held),
        (0, 1, 1, 1),
        "{again:?}"
    );
    let named: Vec<_> = again.conflicts.iter().map(|one| one.session).collect();
    let mut expected = vec![Some(other), Some(rows)];
    expected.sort();
    assert_eq!(named, expected, "{:?}", again.conflicts);
    assert_eq!(database.dump(other).await.unwrap(), before);
    for session in [same, grown] {
        assert_eq!(
            database.dump(session).await.unwrap(),
            file.dump(session).await.unwrap()
        );
    }
    // What went on there can come back.
    let back = moved(&*database, &*file).await;
    assert_eq!((back.grown, back.held), (1, 2), "{back:?}");
    file.close().await;
}

#[tokio::test]
async fn store_2_nothing_is_moved_from_under_somebody_at_work() {
    let Some(place) = Place::new() else { return };
    let file = place.file("to.db").await;
    let node = place.database("mainstay").await;
    let h = place.harness(node.clone());
    let (session, fence, _) = h.claimed().await;
    let mover = place.database(MOVER).await;
    match move_all(&*mover, Some(&*file), false, |_| {}).await {
        Err(MoveError::InUse { count: 1, place }) => assert_eq!(place, mover.place()),
        other => panic!("{other:?}"),
    }
    node.close().await;
    match move_all(&*mover, Some(&*file), false, |_| {}).await {
        Err(MoveError::Claimed(living)) => {
            assert_eq!((living.session, living.owner), (session, fence.owner));
            assert_eq!(living.left_ms, build::LEASE_MS);
        }
        other => panic!("{other:?}"),
    }
    // Once it has run out it moves, and is settled by whoever goes on.
    place.clock.advance(build::LEASE_MS);
    assert_eq!(moved(&*mover, &*file).await.new, 1);
    let expired = file.scan(10).await.unwrap().expired;
    assert_eq!(expired.len(), 1);
    let h = place.harness(file.clone());
    h.ok(build::recover(session, fence)).await;
    h.ok(build::claim(session, build::fence())).await;
    file.close().await;
}
