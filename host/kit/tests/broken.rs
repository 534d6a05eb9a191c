//! Plugins that break one promise each: the kit finds that one, says where, and finds nothing else.

use mainstay_kit::{Options, Property, Report, Verdict, check};
use mainstay_test_guests::{BROKEN_PROVIDER, BROKEN_RUNNER, BROKEN_TOOLBOX};

async fn report(component: &[u8], breaks: &str, only: &[Property]) -> Report {
    let options = Options {
        options: Some(serde_json::json!({ "breaks": breaks }).to_string()),
        only: only.to_vec(),
        ..Options::default()
    };
    check(component, &options).await.unwrap()
}

/// Of all that is asked, `component` breaks these properties and no others; of the first, the report
/// names a place like `at`, and `what` happened there.
async fn breaks(
    component: &[u8],
    option: &str,
    only: &[Property],
    properties: &[Property],
    (at, what): (&str, &str),
) -> Report {
    let report = report(component, option, only).await;
    let broken: Vec<Property> = report.broken().collect();
    assert_eq!(broken, properties, "{option}: {report}");
    assert!(!report.conforms);
    let finding = report.finding(properties[0]).unwrap();
    assert!(
        finding
            .failures
            .iter()
            .any(|failure| failure.at.contains(at) && failure.what.contains(what)),
        "{option}: {report}"
    );
    report
}

/// As [`breaks`], with one property asked.
async fn breaks_one(component: &[u8], option: &str, property: Property, at: &str, what: &str) {
    breaks(component, option, &[property], &[property], (at, what)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn they_conform_when_they_break_nothing() {
    for component in [BROKEN_RUNNER, BROKEN_PROVIDER, BROKEN_TOOLBOX] {
        let report = report(component, "nothing", &[]).await;
        assert!(report.conforms, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_12_a_counter_in_memory_is_found_at_its_commit() {
    let told = (
        "two pure calls, decision 2 of 4, commit 3",
        "This is decision 2",
    );
    let broken = [Property::NoMemory];
    breaks(BROKEN_RUNNER, "memory", &[], &broken, told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_12_a_second_append_is_found_at_its_run_and_its_commit() {
    let broken = [
        Property::Idempotent,
        Property::SurvivesCrashes,
        Property::SurvivesStaleClaims,
    ];
    let told = (
        "record({\"line\":\"line\"}), run twice under one key",
        "`records.txt` has changed",
    );
    let report = breaks(BROKEN_TOOLBOX, "idempotent", &[], &broken, told).await;
    let crashes = report.finding(Property::SurvivesCrashes).unwrap();
    let [failure] = crashes.failures.as_slice() else {
        panic!("one commit is the wrong place to be killed at: {report}")
    };
    assert!(
        failure.at.contains("killed before commit 4 of "),
        "{report}"
    );
    assert!(
        failure.what.contains("`records.txt` has changed"),
        "{report}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn plugin_12_a_decoder_that_minds_cuts_is_found_at_its_cut() {
    let broken = [Property::CutsDoNotMatter];
    let told = ("`chat stream` cut at byte 1", "it means");
    breaks(BROKEN_PROVIDER, "cuts", &[], &broken, told).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_broken_runners_are_found() {
    for (option, property, at, what) in [
        (
            "recovered",
            Property::SurvivesCrashes,
            "calls that act, killed",
            "something went wrong",
        ),
        (
            "empty",
            Property::NeverTraps,
            "an empty prompt",
            "the prompt is empty",
        ),
        (
            "interrupted",
            Property::NeverTraps,
            "items of every kind",
            "an answer was interrupted",
        ),
        (
            "state",
            Property::ReadsItsState,
            "a plain answer, decision 2 of 2, commit 3",
            "an `x` in it",
        ),
        (
            "panic",
            Property::NeverTraps,
            "decision 1",
            "as the option says",
        ),
    ] {
        breaks_one(BROKEN_RUNNER, option, property, at, what).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_broken_providers_are_found() {
    for (option, property, at, what) in [
        (
            "end",
            Property::AnswersKeepTheRules,
            "lines of text",
            "after its end",
        ),
        (
            "text",
            Property::NeverTraps,
            "bytes that are no text",
            "the line is text",
        ),
        (
            "encode",
            Property::NeverTraps,
            "encode of no messages",
            "there are no messages",
        ),
    ] {
        breaks_one(BROKEN_PROVIDER, option, property, at, what).await;
    }

    let mut component = BROKEN_PROVIDER.to_vec();
    let (from, to) = (b"classify: sound", b"classify: panic");
    let mut windows = component.windows(from.len());
    let at = windows.position(|bytes| bytes == from);
    let at = at.expect("the mark is in the component");
    component[at..at + to.len()].copy_from_slice(to);
    let property = Property::ClassifiesEverything;
    let (at, what) = ("with no body", "the body is no JSON");
    breaks_one(&component, "nothing", property, at, what).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn other_broken_toolboxes_are_found() {
    for (option, property, at, what) in [
        (
            "answer",
            Property::Idempotent,
            "run twice under one key",
            "the second run answers",
        ),
        (
            "pure",
            Property::Pure,
            "count({})",
            "`counted.txt` is there and was not",
        ),
        (
            "denied",
            Property::DeniedIsNamed,
            "without grants",
            "there is no workspace",
        ),
        (
            "arguments",
            Property::NeverTraps,
            "record with the arguments",
            "the arguments cannot be read",
        ),
        (
            "stops",
            Property::Stops,
            "told to stop before it begins",
            "CPU limit",
        ),
        (
            "waits",
            Property::Stops,
            "look({}), told to stop while it fetches",
            "CPU limit",
        ),
        (
            "status",
            Property::TakesAnyAnswer,
            "look({}), answered with status 500",
            "the page is there",
        ),
        (
            "body",
            Property::TakesAnyAnswer,
            "look({}), answered without end",
            "the page comes whole",
        ),
    ] {
        breaks_one(BROKEN_TOOLBOX, option, property, at, what).await;
    }
}

#[tokio::test]
async fn what_does_not_load_has_a_report() {
    let report = check(b"no component", &Options::default()).await.unwrap();
    assert!(!report.conforms);
    let loads = report.finding(Property::Loads).unwrap();
    assert_eq!(loads.verdict, Verdict::Broken);
    assert!(loads.failures[0].what.contains("a text file"), "{report}");
}
