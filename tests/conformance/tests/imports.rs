//! Logs that are taken in from another store, forked, reverted and deleted: the same on every store, and
//! rows for rows what they were where they come from.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use futures::TryStreamExt as _;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{End, Refused, Reply, Write};
use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::edit::Fork;
use mainstay_core::event::{
    Delivery, EventBody, Forked, InputContent, KINDS, Parent, Piece, Record, Reverted,
    SessionCreated, TurnOutcome,
};
use mainstay_core::export::{Imported, Importer, export};
use mainstay_core::history::{
    Approval, Assistant, Author, ChildOutcome, ChildResult, Ending, ItemBody, ModelRef, Order,
    Signal,
};
use mainstay_core::id::{EventId, InputId, Seq, SessionId};
use mainstay_core::model::{
    Content, Effect, Failure, FailureClass, FinishReason, HostedResult, Media, ProviderState,
    Range, ToolCall, ToolDefinition,
};
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::{
    Action, Answer, ApprovalRequest, Child, Compact, Condition, State, Summary, Wait,
};
use mainstay_core::policy::{Resume, ResumeMode};
use mainstay_core::port::{Clock, Dump, Scan, Store, StoreError, SystemClock};
use mainstay_core::replay::{Replay, ReplayError, Replayed};
use mainstay_core::state::States;
use mainstay_core::tail::{InputStatus, Scope};
use mainstay_store::{Options, SqliteStore};
use mainstay_test_conformance::{Harness, check_invariants};
use mainstay_test_simulation::plugins::{Scripted, call, last_text, results, say};
use mainstay_test_support::{ManualClock, MemoryStore, build, rebuild};
use sqlx::{Connection as _, Row as _, SqliteConnection};

fn memory() -> Harness {
    let clock = Arc::new(ManualClock::default());
    Harness {
        store: Arc::new(MemoryStore::new(clock.clone())),
        clock,
        keep: Box::new(()),
    }
}

/// A store in a file, and the file.
async fn file(clock: Arc<dyn Clock>) -> (Arc<SqliteStore>, PathBuf, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.db");
    let options = Options {
        clock,
        ..Options::default()
    };
    let store = SqliteStore::open(&path, options).await.unwrap();
    (Arc::new(store), path, dir)
}

async fn sqlite() -> Harness {
    let clock = Arc::new(ManualClock::default());
    let (store, _, dir) = file(clock.clone()).await;
    Harness {
        store,
        clock,
        keep: Box::new(dir),
    }
}

/// Runs a case on both stores.
macro_rules! on_both {
    ($($name:ident: $case:path;)*) => {
        mod on_memory {
            $(#[tokio::test] async fn $name() { $case(super::memory()).await; })*
        }
        mod on_sqlite {
            $(#[tokio::test] async fn $name() { $case(super::sqlite().await).await; })*
        }
    };
}

on_both! {
    log_13_every_type_of_event_gives_the_rows_of_its_source: super::every_type;
    log_14_only_what_follows_is_taken: super::only_what_follows;
    log_15_each_fault_has_an_error_of_its_own: super::log_15_each_fault;
    log_16_another_origin_is_refused_or_skipped: super::log_16_another_origin;
    log_21_every_prefix_of_a_log_can_be_adopted: super::every_prefix;
    log_21_what_was_stopped_between_steps_stays_stopped: super::stopped_between_steps;
    edit_3_an_admission_makes_a_revert_final: super::a_final_revert;
    edit_4_a_fork_is_one_commit: super::a_fork;
    a_time_that_never_comes_is_waited_for: super::a_time_that_never_comes;
}

/// The rows of a session, without what says where it lives.
fn rows(mut dump: Dump) -> Dump {
    dump.claim = None;
    if let Some(session) = &mut dump.session {
        session.origin = None;
    }
    dump
}

async fn dump(h: &Harness, session: SessionId) -> Dump {
    h.store.dump(session).await.unwrap()
}

async fn head(h: &Harness, session: SessionId) -> Seq {
    h.store.tail(session).await.unwrap().unwrap().session.head
}

fn replay(origin: &str, strict: bool, records: &[Record]) -> Write {
    Write::Replay(Replay {
        origin: origin.into(),
        strict,
        records: records.to_vec(),
        texts: Arc::default(),
    })
}

/// An import that is not refused as a whole.
async fn take(h: &Harness, origin: &str, records: &[Record]) -> Replayed {
    let session = records[0].session;
    let write = replay(origin, true, records);
    match h.ok(build::commit(session, write)).await.reply {
        Reply::Replayed(replayed) => replayed,
        other => panic!("{other:?}"),
    }
}

/// Takes a whole log in, page by page.
async fn take_all(h: &Harness, origin: &str, records: &[Record], page: usize) {
    for records in records.chunks(page) {
        let replayed = take(h, origin, records).await;
        assert_eq!(replayed.refused, None);
        assert_eq!(replayed.applied, records.len() as u64);
    }
}

/// What one execution does, under its fence.
struct Run<'h> {
    h: &'h Harness,
    session: SessionId,
    fence: Fence,
}

impl<'h> Run<'h> {
    async fn begin(h: &'h Harness, session: SessionId) -> Self {
        let fence = build::fence();
        h.ok(build::claim(session, fence)).await;
        Self { h, session, fence }
    }

    /// Writes events and gives the seq of the last.
    async fn write(&self, events: impl IntoIterator<Item = EventBody>) -> Seq {
        let done = self
            .h
            .ok(build::append(self.session, self.fence, events))
            .await;
        done.tail.session.head
    }

    async fn step(&self, action: Action) -> Seq {
        self.write([build::step_started(action)]).await
    }

    async fn end(self, end: End) {
        self.h.ok(build::end(self.session, self.fence, end)).await;
    }
}

async fn admit(
    h: &Harness,
    session: SessionId,
    delivery: Delivery,
    content: InputContent,
) -> InputId {
    let input = InputId::new();
    let write = Write::Admit {
        input,
        delivery,
        content,
    };
    h.ok(build::commit(session, write)).await;
    input
}

/// What a runner keeps.
fn kept() -> States {
    let mut states = States::default();
    let state = State {
        runner: "test".into(),
        state_version: 1,
        data: vec![0, 255],
    };
    states.keep(1, state);
    states
}

async fn write(h: &Harness, session: SessionId, write: Write) {
    h.ok(build::commit(session, write)).await;
}

fn prompt(text: &str) -> InputContent {
    InputContent::Prompt {
        parts: build::text(text),
    }
}

fn failure() -> Failure {
    Failure {
        class: FailureClass::Overloaded,
        message: "busy".into(),
        retry_after_ms: Some(3),
    }
}

fn model() -> ModelRef {
    ModelRef {
        provider: "p".into(),
        model: "m".into(),
    }
}

fn media() -> Media {
    Media {
        digest: "d".into(),
        media_type: "image/png".into(),
        size: 1,
        name: None,
    }
}

/// A model call with a tool of the runner's own.
fn ask_with_own_tool() -> Action {
    let Action::CallModel(mut asked) = build::call_model() else {
        unreachable!("it calls a model")
    };
    asked.own_tools.push(ToolDefinition {
        name: "own".into(),
        description: "own".into(),
        input_schema: "{}".into(),
    });
    asked.options.temperature = Some(0.1 + 0.2);
    Action::CallModel(asked)
}

fn own_call(id: &str) -> Vec<Piece> {
    vec![
        Piece::Call {
            id: id.into(),
            tool: "own".into(),
        },
        Piece::CallReady { id: id.into() },
    ]
}

/// A session whose log holds every type of event but an adoption and a cancellation, and which ends in
/// the middle of a call, with inputs pending and a notice owed.
async fn eventful(h: &Harness) -> SessionId {
    let session = SessionId::new();
    let said = |text: &str| {
        ItemBody::Assistant(Assistant {
            author: Author::Model(model()),
            content: vec![Content::Text(text.into())],
            ending: Ending::Finished(FinishReason::Stop),
            usage: None,
        })
    };
    let fork = Fork {
        created: SessionCreated {
            agent: "test".into(),
            resume: Resume {
                mode: ResumeMode::Ask,
                max_age_ms: None,
            },
            parent: Some(Parent {
                session: SessionId::new(),
                key: "kid".into(),
                depth: 1,
            }),
            forked: Some(Forked {
                session: SessionId::new(),
                through: 9,
            }),
            ..SessionCreated::default()
        },
        items: vec![
            (build::AT - 2, ItemBody::User(build::text("old"))),
            (build::AT - 1, said("older")),
        ],
        before_context: 1,
        states: kept(),
    };
    write(h, session, Write::Fork(fork)).await;

    // Inputs, and a policy that holds back.
    let go = admit(h, session, Delivery::Queue, prompt("go")).await;
    let input = admit(h, session, Delivery::Queue, prompt("never")).await;
    write(h, session, Write::CancelInput { input }).await;
    let input = admit(h, session, Delivery::Queue, prompt("sooner")).await;
    let delivery = Delivery::Steer;
    write(h, session, Write::Redeliver { input, delivery }).await;
    h.ok(build::interrupt(session)).await;
    write(h, session, Write::Wake { scope: Scope::All }).await;
    h.clock.advance(2 * build::LEASE_MS);
    let fence = build::fence();
    let by_itself = Write::Claim {
        execution: fence.execution,
        owner: fence.owner,
        lease_ms: build::LEASE_MS,
        forced: None,
        resumed: false,
        by_itself: true,
    };
    write(h, session, by_itself).await;
    write(h, session, Write::Release).await;

    // A turn with everything that a step may do.
    let run = Run::begin(h, session).await;
    let promoted = [go, input].map(|input| EventBody::InputPromoted { input });
    run.write([build::turn_started()].into_iter().chain(promoted))
        .await;
    run.write([EventBody::SessionConfigured { model: model() }])
        .await;
    let step = run.step(ask_with_own_tool()).await;
    run.write([EventBody::RetryScheduled {
        step,
        attempt: 1,
        wait_ms: 5,
        failure: failure(),
    }])
    .await;
    let hosted = ToolCall {
        id: "h".into(),
        tool: "search".into(),
        arguments: "{}".into(),
    };
    let pieces = [
        Piece::Reasoning("hm".into()),
        Piece::Text("so".into()),
        Piece::HostedCall(hosted),
        Piece::HostedResult(HostedResult {
            call: "h".into(),
            is_error: false,
            data: "{}".into(),
        }),
        Piece::ProviderState(ProviderState {
            provider: "provider".into(),
            data: vec![1, 2],
        }),
        Piece::Media(media()),
    ];
    run.write([build::output(step, pieces)]).await;
    let calls = build::call_pieces("c").into_iter();
    let calls = calls.chain(own_call("o1")).chain(own_call("o2"));
    run.write([build::output(step, calls)]).await;
    run.write([
        build::call_held(step, "c"),
        build::model_ended(step, FinishReason::ToolCalls),
    ])
    .await;
    let yes = Approval {
        key: mainstay_core::approval::key(step, "c"),
        approved: true,
        reason: None,
    };
    let answered = mainstay_core::wait::approval_input(session, &yes.key);
    write(h, session, Write::Answer(yes)).await;
    run.write([build::call_started(step, "c", Effect::Idempotent, 1)])
        .await;
    run.write([build::call_settled(step, "c")]).await;
    let answer = Answer {
        call: "o1".into(),
        is_error: true,
        output: build::text("no"),
    };
    run.write([
        EventBody::InputPromoted { input: answered },
        EventBody::RunnerAnswered { step, answer },
        EventBody::RunnerSaid {
            runner: "test".into(),
            parts: build::text("said"),
        },
        EventBody::RunnerNoted {
            parts: build::text("noted"),
        },
        EventBody::CallDropped {
            step,
            call: "o2".into(),
        },
    ])
    .await;
    let summary = || Summary::Text("before".into());
    let through = step - 1;
    let compact = Action::Compact(Compact {
        through,
        summary: summary(),
    });
    let step = run.step(compact.clone()).await;
    run.write([EventBody::ContextCompacted {
        step,
        through,
        summary: build::text("before"),
    }])
    .await;
    let step = run.step(compact).await;
    run.write([EventBody::ContextKept {
        step,
        failure: failure(),
    }])
    .await;

    // A child, and a wait that its timer ends.
    let children = ["a", "b"].map(|key| Child {
        key: key.into(),
        agent: None,
        prompt: build::text("work"),
    });
    run.step(Action::Spawn(children.into())).await;
    let notice = h.store.tail(session).await.unwrap().unwrap().session.outbox[0].clone();
    write(h, session, Write::Deliver { notice }).await;
    let until = vec![
        Condition::Signal("never".into()),
        Condition::Time(build::AT + 3_600_000),
        Condition::Children(vec!["a".into()]),
    ];
    run.step(Action::Wait(Wait { until })).await;
    run.end(End::Suspended).await;
    let signal = InputContent::Signal(Signal {
        name: "other".into(),
        data: "{}".into(),
    });
    let signal = admit(h, session, Delivery::Steer, signal).await;
    let run = Run::begin(h, session).await;
    run.write([EventBody::InputPromoted { input: signal }])
        .await;
    run.end(End::Suspended).await;
    h.clock.advance(3_600_000);
    write(h, session, Write::Fire).await;
    let timer = h.store.inputs(session, false).await.unwrap()[0].id;

    // A crash in the middle of calls.
    let run = Run::begin(h, session).await;
    run.write([EventBody::InputPromoted { input: timer }]).await;
    let step = run.step(build::call_tools(&["t1", "t2"])).await;
    run.write([build::call_started(step, "t1", Effect::Once, 1)])
        .await;
    h.crash(session, run.fence).await;
    write(h, session, Write::Release).await;
    let run = Run::begin(h, session).await;
    run.write([build::call_settled(step, "t2"), build::turn_ended()])
        .await;
    run.end(End::Succeeded).await;

    // A turn that fails, one that asks a person, and a claim that nobody can settle.
    let input = admit(h, session, Delivery::Queue, prompt("fail")).await;
    let run = Run::begin(h, session).await;
    let outcome = TurnOutcome::Failed {
        error: "it failed".into(),
    };
    run.write([
        build::turn_started(),
        EventBody::InputPromoted { input },
        EventBody::TurnEnded {
            outcome,
            decided: None,
        },
    ])
    .await;
    let error = "it failed".into();
    run.end(End::Failed { error }).await;
    let input = admit(h, session, Delivery::Queue, prompt("ask")).await;
    let run = Run::begin(h, session).await;
    run.write([build::turn_started(), EventBody::InputPromoted { input }])
        .await;
    let request = ApprovalRequest {
        key: "may I".into(),
        question: "May I?".into(),
        details: None,
    };
    let until = vec![Condition::Approval(request)];
    run.step(Action::Wait(Wait { until })).await;
    run.end(End::Suspended).await;
    let answer = Approval {
        key: "may I".into(),
        approved: true,
        reason: None,
    };
    write(h, session, Write::Answer(answer)).await;
    let input = h.store.inputs(session, false).await.unwrap()[0].id;
    let run = Run::begin(h, session).await;
    run.write([EventBody::InputPromoted { input }, build::turn_ended()])
        .await;
    run.end(End::Succeeded).await;
    let result = InputContent::Child(ChildResult {
        key: "a".into(),
        outcome: ChildOutcome::Done(build::text("worked")),
    });
    let input = admit(h, session, Delivery::Steer, result).await;
    let run = Run::begin(h, session).await;
    run.write([build::turn_started(), EventBody::InputPromoted { input }])
        .await;
    h.clock.advance(build::LEASE_MS);
    let put_aside = Write::Quarantine {
        seen: run.fence,
        reason: "damaged".into(),
    };
    write(h, session, put_aside).await;
    write(h, session, Write::Release).await;
    let run = Run::begin(h, session).await;
    run.write([build::turn_ended()]).await;
    run.end(End::Succeeded).await;

    // A revert that is taken back, and one that is not.
    let revert = |through| {
        Write::Revert(Reverted {
            through,
            context_after: 0,
            states: States::default(),
        })
    };
    write(h, session, revert(2)).await;
    write(h, session, Write::ClearRevert).await;
    write(h, session, revert(3)).await;
    let input = admit(h, session, Delivery::Queue, prompt("anew")).await;

    // It ends in the middle.
    let run = Run::begin(h, session).await;
    run.write([build::turn_started(), EventBody::InputPromoted { input }])
        .await;
    let step = run.step(build::call_model()).await;
    run.write([build::output(step, build::call_pieces("last"))])
        .await;
    run.write([build::call_started(step, "last", Effect::Once, 1)])
        .await;
    admit(h, session, Delivery::Queue, prompt("later")).await;
    admit(h, session, Delivery::Steer, InputContent::Compact {}).await;
    session
}

fn kinds(records: &[Record]) -> BTreeSet<&str> {
    records.iter().map(|record| record.kind.as_str()).collect()
}

/// Nothing of a store would be started, settled, fired or delivered, now and much later.
async fn nothing_to_do(h: &Harness) {
    for _ in 0..3 {
        assert_eq!(h.store.scan(100).await.unwrap(), Scan::default());
        h.clock.advance(48 * 3_600_000);
    }
}

async fn every_type(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let wanted = source.dump(session).await;
    let missing: Vec<_> = KINDS
        .iter()
        .filter(|kind| !kinds(&wanted.events).contains(**kind))
        .collect();
    assert_eq!(missing, [&"session.adopted", &"session.cancelled"]);
    // Intents and hidden items included, the log alone gives the rows.
    assert_eq!(rebuild(&wanted.events).unwrap(), rows(wanted.clone()));

    take_all(&h, "source", &wanted.events, 7).await;
    let imported = dump(&h, session).await;
    assert_eq!(rows(imported.clone()), rows(wanted.clone()));
    assert_eq!(imported.claim, None);
    assert_eq!(imported.session.unwrap().imported(), Some("source"));
    nothing_to_do(&h).await;
    assert_eq!(rows(dump(&h, session).await), rows(wanted));

    // Adopted and cancelled here, it has every type; and a third store is not this one's heir.
    write(&h, session, Write::Adopt).await;
    let mut adopted = h.dump(session).await;
    assert!(adopted.claim.is_none() && adopted.session.as_ref().unwrap().execution.is_none());
    write(&h, session, Write::Cancel).await;
    adopted = h.dump(session).await;
    assert_eq!(kinds(&adopted.events), KINDS.iter().copied().collect());
    for page in [1, 1000] {
        let third = memory();
        take_all(&third, "second", &adopted.events, page).await;
        let copy = dump(&third, session).await;
        assert_eq!(rows(copy.clone()), rows(adopted.clone()));
        assert_eq!(copy.session.unwrap().imported(), Some("second"));
        nothing_to_do(&third).await;
    }
}

async fn only_what_follows(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    take_all(&h, "R1", &records[..3], 2).await;
    let before = dump(&h, session).await;
    let refusal = async |records: &[Record]| {
        let replayed = take(&h, "R1", records).await;
        assert_eq!(
            (replayed.head, replayed.applied, replayed.skipped),
            (3, 0, 0)
        );
        assert_eq!(dump(&h, session).await, before);
        (replayed.held, replayed.refused)
    };
    let gap = ReplayError::Gap {
        expected: 4,
        got: 5,
    };
    assert_eq!(refusal(&records[4..5]).await, (0, Some(gap)));
    assert_eq!(refusal(&records[1..2]).await, (1, None));
    assert_eq!(refusal(&records[..3]).await, (3, None));
    type Change = fn(&mut Record);
    let changes: [Change; 8] = [
        |record| record.id = EventId::new(),
        |record| record.kind = "input.admitted".into(),
        |record| record.kind = "from.the.future".into(),
        |record| record.version = 2,
        |record| record.at += 1,
        |record| record.execution = Some(mainstay_core::id::ExecutionId::new()),
        |record| record.data["at"] = 1.into(),
        |record| record.data["more"] = "unheard of".into(),
    ];
    for change in changes {
        let mut other = records[1].clone();
        change(&mut other);
        let diverged = Some(ReplayError::Diverged { seq: 2 });
        assert_eq!(
            refusal(&[other.clone()]).await,
            (0, diverged.clone()),
            "{other:?}"
        );
        let page = [records[0].clone(), other, records[2].clone()];
        assert_eq!(refusal(&page).await, (1, diverged));
    }

    // What it leaves empty, another build may have spelled out.
    let mut wordy = records[0].clone();
    wordy.data["model"] = serde_json::Value::Null;
    assert_eq!(refusal(&[wordy]).await, (1, None));

    // Each again within one page, and only what is new is stored.
    let page = [
        &records[2],
        &records[3],
        &records[3],
        &records[2],
        &records[4],
    ]
    .map(Clone::clone);
    let replayed = take(&h, "R1", &page).await;
    assert_eq!((replayed.head, replayed.applied, replayed.held), (5, 2, 3));
    assert_eq!(replayed.refused, None);
    let mut other = records[5].clone();
    other.at += 1;
    let replayed = take(&h, "R1", &[records[5].clone(), other]).await;
    assert_eq!((replayed.head, replayed.applied), (6, 1));
    assert_eq!(replayed.refused, Some(ReplayError::Diverged { seq: 6 }));
    assert_eq!(dump(&h, session).await.events, records[..6]);
}

async fn log_15_each_fault(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    let taken = h.session().await;
    let elsewhere = h.prompt(taken, Delivery::Queue).await;
    let held_elsewhere = dump(&h, taken).await.events[1].id;
    let admission = records
        .iter()
        .position(|record| record.kind == "input.admitted")
        .unwrap();
    let first_input: InputId = records[admission].data["input"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap();

    // What is done to the third of five events, and the error.
    type Fault = Box<dyn Fn(&mut Record)>;
    type IsIt = fn(&ReplayError) -> bool;
    let at = |seq: usize| records[seq - 1].clone();
    let id = at(1).id;
    let faults: Vec<(Fault, IsIt, &str)> = vec![
        (
            Box::new(|record| record.kind = "from.the.future".into()),
            |error| matches!(error, ReplayError::UnknownType { .. }),
            "type \"from.the.future\" version 1, which this build does not know",
        ),
        (
            Box::new(|record| record.version = 7),
            |error| matches!(error, ReplayError::UnknownType { .. }),
            "version 7, which this build does not know",
        ),
        (
            Box::new(move |record| record.session = taken),
            |error| matches!(error, ReplayError::OtherSession { .. }),
            "belongs to session",
        ),
        (
            Box::new(move |record| record.id = id),
            |error| matches!(error, ReplayError::IdReused { held: 1, .. }),
            "which is held by seq 1",
        ),
        (
            Box::new(move |record| record.id = held_elsewhere),
            |error| matches!(error, ReplayError::IdReused { held: 2, .. }),
            "which is held by seq 2",
        ),
        (
            Box::new(|record| record.data = serde_json::json!({})),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "cannot stand there",
        ),
        (
            Box::new(|record| record.data["more"] = "unheard of".into()),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "a field that its type does not have",
        ),
        (
            Box::new(|record| {
                record.execution = Some(mainstay_core::id::ExecutionId::new());
                record.recovery = Some(mainstay_core::id::RecoveryId::new());
            }),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "an execution and a recovery wrote it",
        ),
        (
            Box::new(|record| record.at = u64::MAX),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "its time is out of range",
        ),
        (
            Box::new(|record| {
                record.kind = "turn.ended".into();
                record.data = serde_json::json!({ "outcome": { "outcome": "done" } });
            }),
            |error| matches!(error, ReplayError::Invalid { .. }),
            "no turn is open",
        ),
    ];
    for (fault, is_it, words) in faults {
        let mut five: Vec<Record> = (1..=5).map(at).collect();
        fault(&mut five[2]);
        let replayed = take(&h, "R1", &five).await;
        assert_eq!((replayed.head, replayed.applied), (2, 2), "{words}");
        let error = replayed.refused.expect(words);
        assert!(
            is_it(&error) && error.to_string().contains(words),
            "{error:?}: {error}"
        );
        assert_eq!(dump(&h, session).await.events, records[..2]);
        assert!(h.store.delete(session).await.unwrap());
    }

    // An input that is held by another session, by this one, and twice in one page.
    for (input, holder) in [(elsewhere, taken), (first_input, session)] {
        take_all(&h, "R1", &records[..=admission], 100).await;
        let mut next = records[admission].clone();
        next.seq += 1;
        next.id = EventId::new();
        next.data["input"] = input.to_string().into();
        let error = take(&h, "R1", &[next]).await.refused;
        assert!(
            matches!(error, Some(ReplayError::InputReused { session, .. }) if session == holder),
            "{error:?}"
        );
        assert_eq!(head(&h, session).await, admission as Seq + 1);
        h.store.delete(session).await.unwrap();
    }
    let mut twice = records[..=admission].to_vec();
    let mut next = twice.last().unwrap().clone();
    next.seq += 1;
    next.id = EventId::new();
    twice.push(next);
    let replayed = take(&h, "R1", &twice).await;
    assert!(
        matches!(replayed.refused, Some(ReplayError::InputReused { .. })),
        "{replayed:?}"
    );
    assert_eq!(replayed.applied, admission as u64 + 1);
    h.store.delete(session).await.unwrap();

    // Nothing to begin with.
    let refused = h
        .refused(build::commit(session, replay("R1", true, &[at(2)])))
        .await;
    let gap = ReplayError::Gap {
        expected: 1,
        got: 2,
    };
    assert_eq!(refused, Refused::Replay(gap));
    let mut other = at(2);
    other.seq = 1;
    let refused = h
        .refused(build::commit(session, replay("R1", true, &[other])))
        .await;
    assert!(
        refused
            .to_string()
            .contains("begins with the session's creation"),
        "{refused}"
    );
    assert!(h.store.tail(session).await.unwrap().is_none());
}

async fn log_16_another_origin(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    take_all(&h, "R1", &records[..3], 100).await;
    let own = h.session().await;
    let mut to_own = records[3].clone();
    to_own.session = own;
    to_own.seq = 2;
    for (session, record, words) in [
        (session, records[3].clone(), "it comes from \"R1\""),
        (own, to_own, "it is this store's own"),
    ] {
        let before = dump(&h, session).await;
        let page = [record.clone()];
        let strict = h
            .refused(build::commit(session, replay("R2", true, &page)))
            .await;
        assert!(matches!(strict, Refused::OtherOrigin { .. }), "{strict:?}");
        assert!(strict.to_string().contains(words), "{strict}");
        let lax = h
            .ok(build::commit(session, replay("R2", false, &page)))
            .await;
        assert!(lax.events.is_empty(), "a watcher would be told");
        let Reply::Replayed(replayed) = lax.reply else {
            panic!("{:?}", lax.reply)
        };
        assert_eq!((replayed.applied, replayed.skipped), (0, 1));
        assert_eq!(dump(&h, session).await, before);
    }
    assert_eq!(take(&h, "R1", &records[3..4]).await.head, 4);
    // Nothing else writes to it.
    let before = dump(&h, session).await;
    for write in [
        Write::Wake { scope: Scope::All },
        Write::Release,
        Write::Cancel,
        Write::Fire,
        Write::ClearRevert,
        Write::Interrupt {
            cause: None,
            and_continue: true,
        },
    ] {
        let refused = h.refused(build::commit(session, write)).await;
        assert!(matches!(refused, Refused::NotRunnable(_)), "{refused:?}");
    }
    let refused = h.refused(build::claim(session, build::fence())).await;
    assert!(matches!(refused, Refused::NotRunnable(_)), "{refused:?}");
    assert_eq!(dump(&h, session).await, before);
}

async fn every_prefix(h: Harness) {
    let source = memory();
    let session = eventful(&source).await;
    let records = source.dump(session).await.events;
    for n in 1..=records.len() {
        take_all(&h, "source", &records[..n], 1000).await;
        write(&h, session, Write::Adopt).await;
        let adopted = h.dump(session).await;
        let row = adopted.session.as_ref().unwrap();
        assert_eq!(row.execution, None, "after seq {n}");
        assert_eq!(adopted.events[n].kind, "session.adopted");
        // What acted once is not started again, and nothing of it is left in flight.
        let started = adopted.calls.iter().find(|call| {
            call.effect == Some(Effect::Once)
                && call.status == mainstay_core::tail::CallStatus::Started
        });
        assert_eq!(started, None, "after seq {n}");

        // It goes on here: a claim, and after its death a recovery that closes the turn.
        let tail = h.store.tail(session).await.unwrap().unwrap();
        if tail.is_runnable() {
            let fence = build::fence();
            h.ok(build::claim(session, fence)).await;
            h.ok(build::interrupt(session)).await;
            h.crash(session, fence).await;
            let after = h.dump(session).await;
            assert!(after.session.unwrap().turn.is_none(), "after seq {n}");
        }
        assert!(h.store.delete(session).await.unwrap());
    }
}

/// A shutdown's execution has ended and its claim waits for recovery, when a client interrupts or cancels
/// the turn that is open without a step.
async fn stopped_between_steps(h: Harness) {
    let cancel = || Write::Cancel;
    let interrupt = || Write::Interrupt {
        cause: None,
        and_continue: false,
    };
    for stop in [interrupt as fn() -> Write, cancel] {
        let source = memory();
        let (session, fence, step) = source.step(build::call_tools(&["a"])).await;
        let settled = build::call_settled(step, "a");
        source.ok(build::append(session, fence, [settled])).await;
        let reason = mainstay_core::event::InterruptReason::Shutdown;
        let shutdown = build::end(session, fence, End::Interrupted { reason });
        assert!(source.ok(shutdown).await.tail.claim.is_some());
        write(&source, session, stop()).await;
        let records = source.dump(session).await.events;

        take_all(&h, "source", &records, 100).await;
        write(&h, session, Write::Adopt).await;
        let adopted = h.dump(session).await;
        assert_eq!(adopted.session.as_ref().unwrap().turn, None);
        let tail = h.store.tail(session).await.unwrap().unwrap();
        assert!(!tail.is_runnable(), "it was stopped");
        // As its origin's recovery does.
        let recovered = source.ok(build::recover(session, fence)).await;
        assert_eq!(recovered.tail.session.last_turn, tail.session.last_turn);
        assert!(!recovered.tail.session.interrupting && !tail.session.interrupting);
    }
}

async fn a_final_revert(h: Harness) {
    let (session, fence) = h.turn().await;
    let notes = ["a", "b", "c"].map(|text| EventBody::RunnerNoted {
        parts: build::text(text),
    });
    h.ok(build::append(session, fence, notes)).await;
    let revert = |through| {
        Write::Revert(Reverted {
            through,
            context_after: 0,
            states: States::default(),
        })
    };
    let items = dump(&h, session).await.items;
    let through = items[1].seq;
    let busy = h.refused(build::commit(session, revert(through))).await;
    assert!(matches!(busy, Refused::Busy(_)), "{busy:?}");
    h.ok(build::append(session, fence, [build::turn_ended()]))
        .await;
    let busy = h.refused(build::commit(session, revert(through))).await;
    assert!(matches!(busy, Refused::Busy(_)), "{busy:?}");
    h.ok(build::end(session, fence, End::Succeeded)).await;
    let none = h.refused(build::commit(session, Write::ClearRevert)).await;
    assert!(matches!(none, Refused::NotReverted(_)), "{none:?}");
    let nothing = h.refused(build::commit(session, revert(1000))).await;
    assert!(
        matches!(nothing, Refused::NothingToRevert(_)),
        "{nothing:?}"
    );

    let all = Range {
        after: 0,
        through: Seq::MAX,
    };
    let shown = async || -> Vec<Seq> {
        let mut seqs = Vec::new();
        for order in [Order::OldestFirst, Order::NewestFirst] {
            let items = h.store.items(session, all, order, 100).await.unwrap();
            seqs = items.iter().map(|item| item.seq).collect();
        }
        let size = h.store.measure(session, all).await.unwrap();
        assert_eq!(size.items, seqs.len() as u64);
        seqs.reverse();
        seqs
    };
    let seqs: Vec<Seq> = items.iter().map(|item| item.seq).collect();
    write(&h, session, revert(through)).await;
    assert_eq!(shown().await, seqs[..2]);
    let reverted = h.dump(session).await;
    assert_eq!(reverted.items, items);

    // Refused, and answered as before: the revert stands.
    let other = h.session().await;
    let held = h.prompt(other, Delivery::Queue).await;
    let conflict = h
        .refused(build::admit(session, held, Delivery::Queue, "x"))
        .await;
    assert!(matches!(conflict, Refused::InputConflict { .. }));
    let first = dump(&h, session).await.inputs[0].id;
    h.ok(build::admit(session, first, Delivery::Steer, "again"))
        .await;
    assert_eq!(h.dump(session).await, reverted);

    write(&h, session, Write::ClearRevert).await;
    assert_eq!(shown().await, seqs);
    write(&h, session, revert(through)).await;
    let input = InputId::new();
    let done = h
        .ok(build::admit(session, input, Delivery::Queue, "new"))
        .await;
    let kinds: Vec<String> = done.events.iter().map(|event| event.body.kind()).collect();
    assert_eq!(kinds, ["revert.committed", "input.admitted"]);
    assert_eq!(shown().await, seqs[..2]);
    let done = h.dump(session).await;
    assert_eq!(done.items, items[..2]);
    assert_eq!(done.events[..reverted.events.len()], reverted.events[..]);
    assert_eq!(rebuild(&done.events).unwrap(), rows(done));

    // One that was pending makes it final when it is taken up, in the claim's commit.
    h.ok(build::interrupt(session)).await;
    write(&h, session, revert(seqs[0])).await;
    write(&h, session, Write::Wake { scope: Scope::All }).await;
    let fence = build::fence();
    let claimed = h.ok(build::claim(session, fence)).await;
    let kinds: Vec<String> = claimed
        .events
        .iter()
        .map(|event| event.body.kind())
        .collect();
    assert_eq!(kinds, ["revert.committed", "execution.started"]);
    let events = [build::turn_started(), EventBody::InputPromoted { input }];
    let promoted = h.ok(build::append(session, fence, events)).await;
    assert_eq!(shown().await, [seqs[0], promoted.tail.session.head]);
    h.dump(session).await;
}

async fn a_fork(h: Harness) {
    let session = SessionId::new();
    let source = SessionId::new();
    let fork = |through| Fork {
        created: SessionCreated {
            agent: "test".into(),
            forked: Some(Forked {
                session: source,
                through,
            }),
            ..SessionCreated::default()
        },
        items: (0..300)
            .map(|n| (build::AT, ItemBody::User(build::text(&n.to_string()))))
            .collect(),
        before_context: 100,
        states: States::default(),
    };
    let done = h.ok(build::commit(session, Write::Fork(fork(7)))).await;
    assert_eq!((done.reply, done.events.len()), (Reply::Done, 302));
    let made = h.dump(session).await;
    assert_eq!(made.items.len(), 300);
    let row = made.session.as_ref().unwrap();
    assert_eq!((row.context_after, row.head), (101, 302));
    assert_eq!(made.items[100].seq, 102, "the first of the live context");
    assert!(made.inputs.is_empty() && made.claim.is_none());
    assert_eq!(rebuild(&made.events).unwrap(), made);
    let again = h.ok(build::commit(session, Write::Fork(fork(7)))).await;
    assert_eq!((again.reply, again.events.len()), (Reply::Existed, 0));
    let other = h
        .refused(build::commit(session, Write::Fork(fork(8))))
        .await;
    assert!(matches!(other, Refused::SessionConflict(_)), "{other:?}");
    let own = h.session().await;
    let other = h.refused(build::commit(own, Write::Fork(fork(7)))).await;
    assert!(matches!(other, Refused::SessionConflict(_)), "{other:?}");
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
}

/// A node on a store, with scripted plugins.
fn node(store: Arc<dyn Store>, plugins: Arc<Scripted>) -> Arc<Node> {
    let agent = Agent {
        runner: "scripted".into(),
        toolboxes: vec![Toolbox {
            alias: "tools".into(),
            options: None,
        }],
        ..Agent::default()
    };
    let provider = Provider {
        plugin: "scripted".into(),
        base_url: None,
        options: None,
        models: Vec::new(),
    };
    let config = Config {
        agents: BTreeMap::from([("default".into(), agent)]),
        providers: BTreeMap::from([("parrot".into(), provider)]),
    };
    let settings = Settings {
        poll_every: Duration::from_millis(20),
        // Of a result only the beginning is shown; the whole is a blob.
        tool_output_shown: 4,
        ..Settings::default()
    };
    let ports = Ports {
        store,
        plugins,
        clock: Arc::new(SystemClock::default()),
    };
    Node::start(ports, settings, Arc::new(SharedConfig::new(config)))
}

fn calls_then_echoes() -> Arc<Scripted> {
    Arc::new(Scripted::new(|request, n| match (n, results(request)) {
        (0, 0) => call(&[("c", "look", "{}"), ("d", "act", "{}")]),
        _ => say(&format!("to {}", last_text(request))),
    }))
}

async fn idle(node: &Node, session: SessionId) {
    let idle = tokio::time::timeout(Duration::from_secs(20), node.idle(session));
    idle.await.expect("it becomes idle").unwrap();
}

async fn say_to(node: &Node, session: SessionId, text: &str) {
    let admitted = node
        .admit(session, InputId::new(), Delivery::Queue, prompt(text))
        .await;
    admitted.unwrap();
    idle(node, session).await;
}

async fn begin(node: &Node) -> SessionId {
    let session = SessionId::new();
    let created = SessionCreated {
        agent: "default".into(),
        ..SessionCreated::default()
    };
    node.create(session, created).await.unwrap();
    session
}

async fn lines(store: Arc<dyn Store>, session: SessionId, origin: &str) -> Vec<String> {
    export(store, session, origin).try_collect().await.unwrap()
}

async fn import(node: &Arc<Node>, lines: &[String]) -> Imported {
    let mut importer = Importer::new(Arc::clone(node), true);
    for line in lines {
        importer.line(line).await.unwrap();
    }
    let imported = importer.finish().await.unwrap();
    assert_eq!(imported.refused, None);
    imported
}

#[tokio::test]
async fn edit_6_a_session_goes_from_file_to_memory_to_file() {
    let clock = || Arc::new(SystemClock::default());
    let (first, _, _dir) = file(clock()).await;
    let there = node(first.clone(), calls_then_echoes());
    let session = begin(&there).await;
    for text in ["a", "b", "c"] {
        say_to(&there, session, text).await;
    }
    let fourth = first.dump(session).await.unwrap().items.last().unwrap().seq;
    there.revert(session, fourth).await.unwrap();
    say_to(&there, session, "d").await;
    // One that was given up, one that is pending.
    let pending = InputId::new();
    there
        .admit(session, pending, Delivery::Queue, prompt("e"))
        .await
        .unwrap();
    let _ = there.cancel_input(session, pending).await;
    idle(&there, session).await;
    there.revert(session, fourth).await.unwrap();
    let wanted = first.dump(session).await.unwrap();
    let file_1 = lines(first.clone(), session, "first").await;

    let second: Arc<dyn Store> = Arc::new(MemoryStore::new(clock()));
    let middle = node(second.clone(), calls_then_echoes());
    import(&middle, &file_1).await;
    let file_2 = lines(second.clone(), session, "second").await;
    let (third, _, _dir_3) = file(clock()).await;
    let here = node(third.clone(), calls_then_echoes());
    let imported = import(&here, &file_2).await;
    assert_eq!(imported.blobs, 2);

    assert_eq!(
        file_1, file_2,
        "the copy in between is the first store's still"
    );
    assert_eq!(lines(third.clone(), session, "third").await, file_1);
    for store in [&second, &(third.clone() as Arc<dyn Store>)] {
        let dump = store.dump(session).await.unwrap();
        assert_eq!(rows(dump.clone()), rows(wanted.clone()));
        assert_eq!(rebuild(&dump.events).unwrap(), rows(dump));
        let all = Range {
            after: 0,
            through: Seq::MAX,
        };
        let shown = |store: Arc<dyn Store>| async move {
            store
                .items(session, all, Order::OldestFirst, 1000)
                .await
                .unwrap()
        };
        assert_eq!(shown(store.clone()).await, shown(first.clone()).await);
    }
    // Adopted, the copy goes on, and the revert that it brought becomes final.
    here.adopt(session).await.unwrap();
    say_to(&here, session, "f").await;
    let dump = third.dump(session).await.unwrap();
    check_invariants(&dump);
    assert_eq!(dump.inputs.last().unwrap().status, InputStatus::Promoted);
    assert_eq!(dump.session.unwrap().revert, None);
    assert_eq!(rows(first.dump(session).await.unwrap()), rows(wanted));
}

#[tokio::test]
async fn edit_2_4_forks_and_reverts_are_the_same_in_a_file_and_in_memory() {
    let clock = || Arc::new(SystemClock::default());
    let (in_file, _, _dir) = file(clock()).await;
    let in_memory: Arc<dyn Store> = Arc::new(MemoryStore::new(clock()));
    let mut histories = Vec::new();
    for store in [in_file as Arc<dyn Store>, in_memory] {
        let plugins = calls_then_echoes();
        let node = node(store.clone(), plugins.clone());
        let session = begin(&node).await;
        for text in ["a", "b", "c"] {
            say_to(&node, session, text).await;
        }
        let source = store.dump(session).await.unwrap();
        let fork = SessionId::new();
        let through = source.items[source.items.len() - 3].seq;
        node.fork(session, Some(through), fork).await.unwrap();
        assert_eq!(store.dump(session).await.unwrap(), source);
        node.revert(fork, 5).await.unwrap();
        node.clear_revert(fork).await.unwrap();
        say_to(&node, fork, "d").await;
        node.revert(session, through).await.unwrap();
        say_to(&node, session, "e").await;
        let mut history = Vec::new();
        for session in [session, fork] {
            let dump = store.dump(session).await.unwrap();
            check_invariants(&dump);
            assert_eq!(rebuild(&dump.events).unwrap(), dump);
            history.push(
                dump.items
                    .into_iter()
                    .map(|item| (item.seq, item.body))
                    .collect::<Vec<_>>(),
            );
        }
        let requests = plugins.requests.lock().unwrap().clone();
        let messages: Vec<_> = requests
            .into_iter()
            .map(|request| request.messages)
            .collect();
        histories.push((history, messages));
    }
    assert_eq!(histories[0], histories[1]);
}

#[tokio::test]
async fn edit_7_no_row_of_a_deleted_session_remains_in_any_table() {
    let clock = Arc::new(ManualClock::default());
    let (store, path, dir) = file(clock.clone()).await;
    let h = Harness {
        store,
        clock,
        keep: Box::new(dir),
    };
    // Running, with inputs pending and recovery records; and running beside its wait's timer.
    let busy = eventful(&h).await;
    let (waits, fence) = h.turn().await;
    let until = vec![Condition::Time(build::AT * 2)];
    let wait = build::step_started(Action::Wait(Wait { until }));
    h.ok(build::append(waits, fence, [wait])).await;
    h.ok(build::end(waits, fence, End::Suspended)).await;
    h.prompt(waits, Delivery::Queue).await;
    let signal = InputContent::Signal(Signal {
        name: "x".into(),
        data: "{}".into(),
    });
    admit(&h, waits, Delivery::Steer, signal).await;
    let waiting = Run::begin(&h, waits).await;
    assert!(
        h.store
            .tail(waits)
            .await
            .unwrap()
            .unwrap()
            .session
            .wake_at()
            .is_some()
    );
    let running = h
        .store
        .tail(busy)
        .await
        .unwrap()
        .unwrap()
        .claim
        .clone()
        .unwrap();
    let running = Fence {
        execution: running.execution,
        owner: running.owner,
    };
    let kept = h.session().await;

    let found = async |session: SessionId| -> BTreeMap<String, usize> {
        let mut conn = SqliteConnection::connect(&format!("sqlite://{}", path.display()))
            .await
            .unwrap();
        let tables: Vec<String> =
            sqlx::query_scalar("SELECT name FROM sqlite_master WHERE type = 'table'")
                .fetch_all(&mut conn)
                .await
                .unwrap();
        let mut found = BTreeMap::new();
        for table in tables {
            let columns = sqlx::query(sqlx::AssertSqlSafe(format!("PRAGMA table_info({table})")))
                .fetch_all(&mut conn)
                .await
                .unwrap();
            let names: Vec<String> = columns.iter().map(|row| row.get("name")).collect();
            let any = names
                .iter()
                .map(|name| format!("instr(\"{name}\", ?1) > 0"));
            let any = any.collect::<Vec<_>>().join(" OR ");
            let count: i64 = sqlx::query_scalar(sqlx::AssertSqlSafe(format!(
                "SELECT count(*) FROM {table} WHERE {any}"
            )))
            .bind(session.to_string())
            .fetch_one(&mut conn)
            .await
            .unwrap();
            if count > 0 {
                found.insert(table, count as usize);
            }
        }
        found
    };
    let tables = [
        "call",
        "claim",
        "event",
        "execution",
        "input",
        "item",
        "session",
        "step",
    ];
    assert!(
        found(busy).await.keys().eq(tables),
        "{:?}",
        found(busy).await
    );
    for (session, fence) in [(busy, running), (waits, waiting.fence)] {
        assert!(h.store.delete(session).await.unwrap());
        assert_eq!(found(session).await, BTreeMap::new());
        let lost = h.store.commit(build::append(session, fence, [])).await;
        assert!(
            matches!(lost, Err(StoreError::Refused(Refused::NotFound(_)))),
            "{lost:?}"
        );
        let renewed = h.store.renew(fence.owner, &[fence], 1000).await.unwrap();
        assert!(renewed.is_empty());
        assert!(h.store.tail(session).await.unwrap().is_none());
        assert!(h.store.events(session, 0, 1).await.unwrap().is_none());
        assert!(h.store.inputs(session, true).await.unwrap().is_empty());
        assert_eq!(dump(&h, session).await, Dump::default());
    }
    nothing_to_do(&h).await;
    assert_eq!(found(kept).await.len(), 2);
}

/// A runner may wait until a time that no clock reaches; the session stays whole.
async fn a_time_that_never_comes(h: Harness) {
    let (session, fence) = h.turn().await;
    let until = vec![Condition::Time(u64::MAX)];
    let wait = build::step_started(Action::Wait(Wait { until }));
    h.ok(build::append(session, fence, [wait])).await;
    h.ok(build::end(session, fence, End::Suspended)).await;
    h.clock.advance(48 * 3_600_000);
    assert_eq!(h.store.scan(10).await.unwrap(), Scan::default());
    h.dump(session).await;
}
