//! LIMIT: each limit, passed by a guest that means to.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::{Log, host, host_with, model_request, request, serve, view};
use futures::StreamExt as _;
use futures::stream::FuturesUnordered;
use mainstay_core::plugin::{
    CallError, Exchange, GuestError, Kind, ModelEvent, Plugins, Progress, ProviderConfig,
    ResponseHead,
};
use mainstay_runtime::egress::{EgressLimits, GrantRule, Grants};
use mainstay_runtime::limits::{Limits, Use};
use mainstay_test_guests::{HOSTILE_PROVIDER, HOSTILE_RUNNER, HOSTILE_TOOLBOX, PARROT};
use serde_json::json;

#[track_caller]
fn limit<T: std::fmt::Debug>(result: Result<T, GuestError>, words: &str) {
    match result {
        Err(GuestError::Limit(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("{other:?}"),
    }
}

#[track_caller]
fn crashed<T: std::fmt::Debug>(result: Result<T, CallError>, words: &str) {
    match result {
        Err(CallError::Crashed(text)) => assert!(text.contains(words), "{text}"),
        other => panic!("{other:?}"),
    }
}

fn config() -> ProviderConfig {
    ProviderConfig {
        base_url: Some("http://127.0.0.1:1".to_owned()),
        ..ProviderConfig::default()
    }
}

#[tokio::test]
async fn limit_1_memory_is_limited_for_every_kind() {
    let host = host();
    let runner = host.install(HOSTILE_RUNNER).await;
    let provider = host.install(HOSTILE_PROVIDER).await;
    let toolbox = host.install(HOSTILE_TOOLBOX).await;
    limit(
        host.runtime.decide(&runner.digest, view("allocate")).await,
        "decide went past the memory limit of 64 MiB",
    );
    let request = model_request("encode allocate", config());
    limit(
        host.runtime.encode(&provider.digest, request).await,
        "encode went past the memory limit of 64 MiB",
    );
    crashed(
        host.call(&toolbox.digest, "allocate", json!({})).await,
        "call went past the memory limit of 256 MiB",
    );
}

#[tokio::test]
async fn limit_1_tables_and_instances_are_limited() {
    type Set = fn(&mut Use);
    let cases: [(Set, &str); 4] = [
        (
            |limits| limits.table_elements = 0,
            "table limit of 0 elements",
        ),
        (|limits| limits.tables = 0, "table limit of 0"),
        (|limits| limits.memories = 0, "memory limit of 0 memories"),
        (|limits| limits.instances = 0, "instance limit of 0"),
    ];
    for component in [HOSTILE_RUNNER, HOSTILE_PROVIDER, HOSTILE_TOOLBOX] {
        for (set, words) in cases {
            let mut limits = Limits::default();
            set(&mut limits.runner.decide);
            set(&mut limits.provider.encode);
            set(&mut limits.toolbox.call);
            let host = host_with(limits, EgressLimits::default());
            let refused = host.runtime.install(component).await;
            let error = refused.unwrap_err().to_string();
            assert!(error.contains(words), "{error}");
            assert!(host.source.is_empty());
        }
    }
}

#[tokio::test]
async fn limit_2_a_loop_is_stopped_and_the_thread_is_never_blocked() {
    // One thread for all: what follows can only happen if the loop lets go of it.
    let host = host();
    let info = host.install(HOSTILE_RUNNER).await;
    let (runtime, digest) = (host.runtime.clone(), info.digest.clone());
    let spinning = tokio::spawn(async move { runtime.decide(&digest, view("spin")).await });
    // A task like the loop's own: the future of a test waits for dozens of turns of its tasks.
    let (runtime, digest) = (host.runtime.clone(), info.digest.clone());
    let others = tokio::spawn(async move {
        for _ in 0..5 {
            runtime.decide(&digest, view("hello")).await.unwrap();
        }
        assert!(
            !spinning.is_finished(),
            "the others had to wait for its end"
        );
        limit(
            spinning.await.unwrap(),
            "decide went past the CPU limit of 1 s",
        );
    });
    others.await.unwrap();
}

#[tokio::test]
async fn limit_2_every_kind_is_stopped() {
    let mut limits = Limits::default();
    limits.provider.encode.cpu = Duration::from_millis(100);
    limits.toolbox.call.cpu = Duration::from_millis(100);
    let host = host_with(limits, EgressLimits::default());
    let provider = host.install(HOSTILE_PROVIDER).await;
    let toolbox = host.install(HOSTILE_TOOLBOX).await;
    let request = model_request("encode spin", config());
    limit(
        host.runtime.encode(&provider.digest, request).await,
        "CPU limit of 0.1 s",
    );
    for tool in ["spin", "stubborn"] {
        crashed(
            host.call(&toolbox.digest, tool, json!({})).await,
            "call went past the CPU limit of 0.1 s",
        );
    }
}

#[tokio::test]
async fn limit_3_waiting_is_stopped_by_the_wall_time_limit() {
    let mut limits = Limits::default();
    limits.toolbox.call.wall = Duration::from_millis(300);
    let host = host_with(limits, EgressLimits::default());
    let info = host.install(HOSTILE_TOOLBOX).await;
    let silent = axum::Router::new().fallback(|| async {
        std::future::pending::<()>().await;
    });
    let address = serve(silent).await;
    let grant = GrantRule {
        scheme: Some(mainstay_core::plugin::Scheme::Http),
        host: "127.0.0.1".to_owned(),
        port: Some(address.port()),
        methods: Vec::new(),
        path_prefix: "/".to_owned(),
        private: true,
    };
    host.egress.grant(
        Kind::Toolbox,
        "tools",
        Grants {
            http: vec![grant],
            ..Grants::default()
        },
    );
    let url = format!("http://{address}/");
    crashed(
        host.call(&info.digest, "fetch", json!({ "url": url }))
            .await,
        "call went past the wall-time limit of 0.3 s",
    );
}

#[tokio::test]
async fn limit_4_output_is_limited_for_every_kind() {
    let host = host();
    let runner = host.install(HOSTILE_RUNNER).await;
    let provider = host.install(HOSTILE_PROVIDER).await;
    let toolbox = host.install(HOSTILE_TOOLBOX).await;
    limit(
        host.runtime
            .decide(&runner.digest, view("huge-state"))
            .await,
        "limit of",
    );
    limit(
        host.runtime
            .decide(&runner.digest, view("huge-decision"))
            .await,
        "decide went past the decision limit of 1 MiB",
    );
    let request = model_request("encode huge", config());
    limit(
        host.runtime.encode(&provider.digest, request).await,
        "encode went past the exchange limit of 16 MiB",
    );
    crashed(
        host.call(&toolbox.digest, "huge_output", json!({})).await,
        "call went past the text output limit of 1 MiB",
    );
    crashed(
        host.call(&toolbox.digest, "huge_media", json!({})).await,
        "output limit of",
    );
}

async fn fed(host: &common::Host, behaviour: &str) -> Result<Vec<ModelEvent>, GuestError> {
    let info = host.install(HOSTILE_PROVIDER).await;
    let request = model_request(&format!("http {behaviour}"), config());
    let exchange = host.runtime.encode(&info.digest, request).await?;
    let Exchange::Http { memo, .. } = exchange else {
        panic!("{exchange:?}");
    };
    let head = ResponseHead {
        status: 200,
        headers: Vec::new(),
    };
    let mut decoder = host.runtime.decoder(&info.digest, head, memo).await?;
    let mut events = decoder.feed(b"anything".to_vec()).await?;
    events.extend(decoder.finish().await?);
    Ok(events)
}

#[tokio::test]
async fn limit_5_a_flood_of_events_names_the_rate() {
    limit(fed(&host(), "flood").await, "1000 events per second");
}

#[tokio::test]
async fn limit_5_great_events_are_limited_one_by_one_and_together() {
    let host = host();
    limit(fed(&host, "huge-event").await, "event limit of 1 MiB");
    limit(fed(&host, "huge-answer").await, "answer limit of");
}

#[tokio::test]
async fn limit_5_a_decoder_that_broke_stays_broken() {
    let host = host();
    let info = host.install(HOSTILE_PROVIDER).await;
    let request = model_request("http trap", config());
    let Ok(Exchange::Http { memo, .. }) = host.runtime.encode(&info.digest, request).await else {
        panic!("an exchange over HTTP");
    };
    let head = ResponseHead {
        status: 200,
        headers: Vec::new(),
    };
    let decoder = host.runtime.decoder(&info.digest, head, memo).await;
    let mut decoder = decoder.unwrap();
    let mut errors = Vec::new();
    for _ in 0..3 {
        if let Err(error) = decoder.feed(b"anything".to_vec()).await {
            errors.push(error);
        }
    }
    assert!(errors.len() >= 2, "{errors:?}");
    assert_eq!(errors[0], errors[1]);
}

#[tokio::test]
async fn limit_6_lines_over_the_allowance_are_counted_and_long_ones_cut() {
    let host = host();
    let runner = host.install(HOSTILE_RUNNER).await;
    let toolbox = host.install(HOSTILE_TOOLBOX).await;
    let (log, _guard) = Log::start();
    host.runtime
        .decide(&runner.digest, view("log-flood"))
        .await
        .unwrap();
    let lines = log.guest_lines();
    assert_eq!(lines.len(), 1_001);
    assert!(lines[1_000].contains("more lines were dropped"));
    assert!(lines.iter().all(|line| line.len() < 5_000));
    assert!(lines[0].contains("runner hostile-runner@sha256:"));
    assert!(lines[0].contains("session "));

    host.call(&toolbox.digest, "log_flood", json!({}))
        .await
        .unwrap();
    assert_eq!(log.guest_lines().len(), 2_002);
}

#[tokio::test]
async fn limit_6_progress_is_thinned_and_its_newest_is_shown() {
    let host = host();
    let info = host.install(HOSTILE_TOOLBOX).await;
    let shown = Arc::new(Mutex::new(Vec::new()));
    let sink = shown.clone();
    let mut request = request("progress_flood", json!({}));
    request.progress = Progress(Arc::new(move |message| sink.lock().unwrap().push(message)));
    host.runtime.call(&info.digest, request).await.unwrap();
    let newest_is_shown = async {
        while shown
            .lock()
            .unwrap()
            .last()
            .is_none_or(|last| last != "step 9999")
        {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(30), newest_is_shown)
        .await
        .unwrap();
    assert!(shown.lock().unwrap().len() < 1_000);
}

#[tokio::test]
async fn limit_7_endless_recursion_is_a_trap() {
    let host = host();
    let runner = host.install(HOSTILE_RUNNER).await;
    let toolbox = host.install(HOSTILE_TOOLBOX).await;
    let trapped = host.runtime.decide(&runner.digest, view("recurse")).await;
    assert!(matches!(trapped, Err(GuestError::Trap(_))), "{trapped:?}");
    crashed(
        host.call(&toolbox.digest, "recurse", json!({})).await,
        "trapped",
    );
    crashed(
        host.call(&toolbox.digest, "trap", json!({})).await,
        "trapped",
    );
}

#[tokio::test]
async fn limit_7_reading_history_without_end_is_stopped() {
    let host = host();
    let info = host.install(HOSTILE_RUNNER).await;
    // Cheap pages run into the CPU limit first, dear ones into that of reading.
    let mut view = view("read-flood");
    let long = mainstay_core::history::Item {
        seq: 1,
        at: 0,
        body: mainstay_core::history::ItemBody::Note(vec![mainstay_core::model::Part::Text(
            "x".repeat(4 << 20),
        )]),
    };
    let prompt = mainstay_core::history::Item {
        seq: 2,
        at: 0,
        body: mainstay_core::history::ItemBody::User(vec![mainstay_core::model::Part::Text(
            "read-flood".to_owned(),
        )]),
    };
    view.history = Arc::new(common::History(vec![long, prompt]));
    view.context.through = 2;
    limit(host.runtime.decide(&info.digest, view).await, "limit of");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn int_7_a_guest_that_never_yields_is_gone_when_its_call_is_dropped() {
    let mut limits = Limits::default();
    // No limit ends it.
    limits.toolbox.call.cpu = Duration::from_secs(100_000);
    limits.toolbox.call.wall = Duration::from_secs(100_000);
    let host = host_with(limits, EgressLimits::default());
    let info = host.install(HOSTILE_TOOLBOX).await;
    let looping: Vec<_> = (0..common::INSTANCES)
        .map(|_| {
            let (runtime, digest) = (host.runtime.clone(), info.digest.clone());
            tokio::spawn(async move { runtime.call(&digest, request("spin", json!({}))).await })
        })
        .collect();
    // Until they have all the places there are, another call finds one.
    let full = async {
        loop {
            let another = host.call(&info.digest, "echo", json!({}));
            if tokio::time::timeout(Duration::from_secs(1), another)
                .await
                .is_err()
            {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(120), full)
        .await
        .unwrap();
    for call in &looping {
        call.abort();
    }
    let after = host.call(&info.digest, "echo", json!({}));
    let after = tokio::time::timeout(Duration::from_secs(120), after).await;
    assert!(after.unwrap().is_ok());
}

#[tokio::test]
async fn a_call_that_is_told_to_stop_can_answer() {
    let host = host();
    let info = host.install(HOSTILE_TOOLBOX).await;
    let request = request("sleep", json!({}));
    let cancel = request.cancel.clone();
    let (answer, ()) = tokio::join!(host.runtime.call(&info.digest, request), async {
        tokio::task::yield_now().await;
        cancel.cancel();
    });
    assert!(matches!(answer, Err(CallError::Cancelled(_))), "{answer:?}");
}

#[tokio::test]
async fn a_classify_that_traps_leaves_it_to_the_status() {
    let host = host();
    let info = host.install(HOSTILE_PROVIDER).await;
    let head = ResponseHead {
        status: 429,
        headers: Vec::new(),
    };
    let failure = host
        .runtime
        .classify(&info.digest, head, b"trap".to_vec())
        .await;
    assert_eq!(
        failure.class,
        mainstay_core::model::FailureClass::RateLimited
    );
}

#[tokio::test]
async fn a_local_answer_comes_back_as_events() {
    let host = host();
    let info = host.install(PARROT).await;
    let request = model_request("hello", ProviderConfig::default());
    let exchange = host.runtime.encode(&info.digest, request).await.unwrap();
    assert!(matches!(exchange, Exchange::Local(events) if !events.is_empty()));
}

/// As many answers are read at once as there are places for, and none of them ends.
#[tokio::test]
async fn limit_answers_that_are_read_leave_room_for_decisions() {
    const DEADLINE: Duration = Duration::from_secs(60);
    let host = host();
    let runner = host.install(HOSTILE_RUNNER).await;
    let provider = host.install(HOSTILE_PROVIDER).await;
    let decoder = async || {
        let head = ResponseHead {
            status: 200,
            headers: Vec::new(),
        };
        let decoder = host.runtime.decoder(&provider.digest, head, Vec::new());
        decoder.await.unwrap()
    };
    let mut open = Vec::new();
    let mut more = FuturesUnordered::new();
    for _ in 0..common::INSTANCES {
        more.push(decoder());
    }
    // Those that get no place wait for one.
    let decided = async {
        loop {
            tokio::select! {
                biased;
                Some(decoder) = more.next() => open.push(decoder),
                decision = host.runtime.decide(&runner.digest, view("hello")) => break decision,
            }
        }
    };
    let decided = tokio::time::timeout(DEADLINE, decided).await;
    decided.expect("a place is kept").unwrap();
    let all = common::INSTANCES as usize;
    assert!((all / 2..all).contains(&open.len()), "{}", open.len());
    // They are served once others have ended.
    open.clear();
    let next = tokio::time::timeout(DEADLINE, more.next()).await;
    assert!(next.expect("a place is free").is_some());
}
