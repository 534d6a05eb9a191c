//! Exports, and what comes of them when they are taken in again.

use std::sync::Arc;

use futures::TryStreamExt as _;
use mainstay_core::commit::Refused;
use mainstay_core::event::{Delivery, InputContent, Record};
use mainstay_core::export::{ImportError, Imported, export};
use mainstay_core::id::{InputId, SessionId, digest};
use mainstay_core::model::{Media, Part};
use mainstay_core::port::StoreError;
use mainstay_core::replay::ReplayError;
use mainstay_test_simulation::world::{Process, World};

use super::{chat, echo, exported, feed, import, one_call, refused, rows};

/// A session whose events fill more than two pages and refer to bytes in two ways.
async fn with_blobs(world: &World, process: &Process) -> (SessionId, String) {
    let session = process.session().await;
    let bytes = b"an image, or so".to_vec();
    let media = Media {
        digest: digest(&bytes),
        media_type: "image/png".into(),
        size: bytes.len() as u64,
        name: None,
    };
    world.store.blob_put(&media.digest, &bytes).await.unwrap();
    let content = InputContent::Prompt {
        parts: vec![Part::Media(media.clone()), Part::Text("go".into())],
    };
    process
        .node
        .admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
    world.idle(session).await;
    for _ in 0..600 {
        let input = InputId::new();
        let signal = InputContent::Configure {
            model: mainstay_core::history::ModelRef {
                provider: "parrot".into(),
                model: "parrot".into(),
            },
        };
        process
            .node
            .admit(session, input, Delivery::Queue, signal)
            .await
            .unwrap();
        // It is promoted or cancelled: each a commit, each an event.
        let _ = process.node.cancel_input(session, input).await;
    }
    world.idle(session).await;
    (session, media.digest)
}

fn long_outputs() -> World {
    let mut world = World::new(one_call("look"));
    // A result of which only the beginning is shown is kept whole as a blob.
    world.settings.tool_output_shown = 4;
    world
}

#[tokio::test]
async fn edit_6_an_export_holds_all_and_comes_back_equal() {
    let source = long_outputs();
    let there = source.start(None);
    let (session, image) = with_blobs(&source, &there).await;
    let file = exported(&source, session).await;
    let wanted = source.dump(session).await;
    let header: serde_json::Value = serde_json::from_str(&file[0]).unwrap();
    let head = wanted.events.len() as u64;
    assert!(head > 600, "{head}");
    assert_eq!(
        header,
        serde_json::json!({
            "mainstay_export": 1, "session": session, "origin": "here", "head": head, "events": head,
        })
    );
    let end: serde_json::Value = serde_json::from_str(file.last().unwrap()).unwrap();
    assert_eq!(
        end,
        serde_json::json!({ "end": true, "events": head, "blobs": 2 })
    );
    assert!(file.iter().all(|line| !line.contains('\n')));

    let world = World::new(echo());
    let here = world.start(None);
    let imported = import(&here.node, &file).await;
    assert_eq!(
        imported,
        Imported {
            session: Some(session),
            head,
            applied: head,
            blobs: 2,
            ..Imported::default()
        }
    );
    assert_eq!(rows(world.dump(session).await), rows(wanted));
    assert_eq!(
        world.store.blob(&image).await.unwrap().unwrap(),
        b"an image, or so"
    );
    let whole = digest(b"look done");
    assert_eq!(
        world.store.blob(&whole).await.unwrap().unwrap(),
        b"look done"
    );
    // It is still the first store's, and goes on as its copy.
    let again: Vec<String> = export(Arc::clone(&world.store), session, "there")
        .try_collect()
        .await
        .unwrap();
    assert_eq!(again, file);
    let held = import(&here.node, &file).await;
    assert_eq!((held.applied, held.held, held.head), (0, head, head));

    let none = export(Arc::clone(&world.store), SessionId::new(), "here");
    let none: Result<Vec<String>, _> = none.try_collect().await;
    assert!(matches!(refused(none), Refused::NotFound(_)));
}

#[tokio::test]
async fn edit_6_a_blob_that_is_gone_is_said_to_be_gone() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = there.session().await;
    let part = Part::Media(Media {
        digest: digest(b"never kept"),
        media_type: "image/png".into(),
        size: 10,
        name: None,
    });
    let content = InputContent::Prompt { parts: vec![part] };
    there
        .node
        .admit(session, InputId::new(), Delivery::Queue, content)
        .await
        .unwrap();
    source.idle(session).await;
    let file = exported(&source, session).await;
    let gone = format!(r#"{{"blob":"{}","base64":null}}"#, digest(b"never kept"));
    assert_eq!(file[file.len() - 2], gone);
    let world = World::new(echo());
    let here = world.start(None);
    let imported = import(&here.node, &file).await;
    assert_eq!((imported.blobs, imported.missing_blobs), (0, 1));
}

#[tokio::test]
async fn edit_6_a_strict_import_over_another_origins_session_changes_nothing() {
    let source = World::new(echo());
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    let file = exported(&source, session).await;
    // The same log under another name, and this store's own.
    let world = World::new(echo());
    let here = world.start(None);
    import(&here.node, &file).await;
    let before = world.dump(session).await;
    let mut renamed = file.clone();
    renamed[0] = renamed[0].replace("\"here\"", "\"elsewhere\"");
    for (process, world) in [(&here, &world), (&there, &source)] {
        let before_there = world.dump(session).await;
        let (done, so_far) = feed(&process.node, true, &renamed).await;
        assert!(
            matches!(
                &done,
                Err(ImportError::Store {
                    line: 2,
                    cause: StoreError::Refused(Refused::OtherOrigin { .. })
                })
            ),
            "{done:?}"
        );
        assert_eq!(so_far.applied + so_far.skipped, 0);
        let (done, _) = feed(&process.node, false, &renamed).await;
        let events = before.events.len() as u64;
        assert_eq!(
            (done.as_ref().unwrap().skipped, done.unwrap().applied),
            (events, 0)
        );
        assert_eq!(world.dump(session).await, before_there);
    }
}

#[tokio::test]
async fn edit_6_a_file_that_is_cut_off_is_known_and_goes_on_where_it_stopped() {
    let source = long_outputs();
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    let file = exported(&source, session).await;
    let events = file.len() as u64 - 3;
    let wanted = rows(source.dump(session).await);
    for kept in 0..file.len() {
        let world = World::new(echo());
        let here = world.start(None);
        let (done, so_far) = feed(&here.node, true, &file[..kept]).await;
        let line = kept as u64;
        assert!(
            matches!(&done, Err(ImportError::Truncated { line: at }) if *at == line),
            "{kept}: {done:?}"
        );
        let prefix = line.saturating_sub(1).min(events);
        assert_eq!((so_far.head, so_far.applied), (prefix, prefix));
        let whole = import(&here.node, &file).await;
        assert_eq!((whole.held, whole.applied), (prefix, events - prefix));
        assert_eq!(rows(world.dump(session).await), wanted);
        // In the middle of a line.
        let world = World::new(echo());
        let here = world.start(None);
        let mut cut = file[..=kept].to_vec();
        let half = cut[kept].len() / 2;
        cut[kept].truncate(half);
        let (done, so_far) = feed(&here.node, true, &cut).await;
        assert!(
            matches!(&done, Err(ImportError::NotJson { line, .. }) if *line == kept as u64 + 1),
            "{kept}: {done:?}"
        );
        assert_eq!(so_far.applied, prefix);
    }
}

#[tokio::test]
async fn edit_6_bad_lines_are_named_and_the_valid_prefix_stays() {
    let source = long_outputs();
    let there = source.start(None);
    let session = chat(&source, &there, &["a"]).await;
    let file = exported(&source, session).await;
    let events = file.len() - 3;
    // What is done to the file, the error's words, and the events that stay.
    type Damage = Box<dyn Fn(&mut Vec<String>)>;
    let cases: Vec<(Damage, &str, usize)> = vec![
        (
            Box::new(|file| file[4] = "not JSON".into()),
            "line 5 is not JSON",
            3,
        ),
        (
            Box::new(|file| file[4] = "[1]".into()),
            "line 5 is neither",
            3,
        ),
        (
            // An event, but for the names of its fields.
            Box::new(|file| {
                let of: serde_json::Value = serde_json::from_str(&file[4]).unwrap();
                let fields = ["session", "seq", "id", "type", "version", "at", "execution"];
                let fields = fields.iter().chain(&["recovery", "data"]);
                let list: Vec<_> = fields.map(|name| of[*name].clone()).collect();
                file[4] = serde_json::to_string(&list).unwrap();
            }),
            "line 5 is neither",
            3,
        ),
        (
            Box::new(|file| drop(file.remove(0))),
            "line 1 is not the header",
            0,
        ),
        (
            Box::new(|file| file[0] = file[0].replace("export\":1", "export\":2")),
            "line 1: the export has format 2, and this build reads format 1",
            0,
        ),
        (
            Box::new(|file| {
                let blob = file.len() - 2;
                file[blob] = file[blob].replace("base64\":\"", "base64\":\"AAAA");
            }),
            "have digest",
            events,
        ),
        (
            Box::new(|file| {
                let blob = file.len() - 2;
                file[blob] = file[blob].replace("base64\":\"", "base64\":\"?");
            }),
            "are not base64",
            events,
        ),
        (
            Box::new(|file| file.push(file[1].clone())),
            "stands behind the end",
            events,
        ),
        (
            Box::new(|file| {
                let blob = file.len() - 2;
                file.remove(blob);
            }),
            "and it holds",
            events,
        ),
    ];
    for (damage, words, stay) in cases {
        let mut damaged = file.clone();
        damage(&mut damaged);
        let world = World::new(echo());
        let here = world.start(None);
        let (done, so_far) = feed(&here.node, true, &damaged).await;
        let error = done.expect_err(words);
        assert!(error.to_string().contains(words), "{error}");
        assert_eq!(
            (so_far.head, so_far.applied),
            (stay as u64, stay as u64),
            "{words}"
        );
        assert_eq!(world.dump(session).await.events.len(), stay, "{words}");
        let blobs = world.store.blob(&digest(b"look done")).await.unwrap();
        assert_eq!(blobs.is_some(), words.contains("behind the end"), "{words}");
    }
}

#[tokio::test]
async fn edit_6_an_event_that_is_refused_is_named_by_its_line() {
    let source = long_outputs();
    let there = source.start(None);
    let (session, _) = with_blobs(&source, &there).await;
    let file = exported(&source, session).await;
    for (seq, head) in [(1, 0), (2, 1), (300, 299), (512, 511), (513, 512)] {
        let mut damaged = file.clone();
        let mut record: Record = serde_json::from_str(&damaged[seq]).unwrap();
        record.kind = "from.the.future".into();
        damaged[seq] = serde_json::to_string(&record).unwrap();
        let world = World::new(echo());
        let here = world.start(None);
        let (done, _) = feed(&here.node, true, &damaged).await;
        let done = done.unwrap();
        assert_eq!((done.head, done.applied, done.blobs), (head, head, 2));
        let refusal = done.refused.unwrap();
        assert_eq!(refusal.line, seq as u64 + 1);
        assert!(
            matches!(refusal.cause, ReplayError::UnknownType { .. }),
            "{refusal:?}"
        );
        assert!(
            refusal
                .to_string()
                .starts_with(&format!("line {}: event {seq}", seq + 1))
        );
    }
}
