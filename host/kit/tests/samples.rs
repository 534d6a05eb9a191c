//! The shipped plugins keep what the kit asks.

use mainstay_kit::{Call, Options, Property, Verdict, check};
use mainstay_test_guests::{FILES, LOOP, OPENAI_CHAT, PARROT, PLANNER, WEB};

async fn conforms(component: &[u8], options: Options, asked: &[Property]) {
    let report = check(component, &options).await.unwrap();
    assert!(report.conforms, "{report}");
    for property in asked {
        let finding = report.finding(*property).unwrap();
        assert_eq!(finding.verdict, Verdict::Holds, "{report}");
        assert!(finding.cases > 0, "{report}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_runners_conform() {
    for runner in [LOOP, PLANNER] {
        let asked = [
            Property::DecidesAlike,
            Property::NoMemory,
            Property::SurvivesSwaps,
            Property::SurvivesCrashes,
            Property::SurvivesStaleClaims,
            Property::SurvivesInterrupts,
        ];
        conforms(runner, Options::default(), &asked).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_providers_conform() {
    for provider in [OPENAI_CHAT, PARROT] {
        let asked = [
            Property::EncodesAlike,
            Property::CutsDoNotMatter,
            Property::ClassifiesEverything,
            Property::SurvivesCrashes,
        ];
        conforms(provider, Options::default(), &asked).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_toolboxes_conform() {
    let call = |tool: &str, arguments| Call {
        tool: tool.to_owned(),
        arguments,
    };
    let options = Options {
        calls: vec![
            call(
                "file_write",
                serde_json::json!({ "path": "n/new.txt", "content": "one\ntwo\n" }),
            ),
            call(
                "file_edit",
                serde_json::json!({ "path": "n/new.txt", "old": "two", "new": "two and more" }),
            ),
            call("file_read", serde_json::json!({ "path": "n/new.txt" })),
        ],
        ..Options::default()
    };
    let asked = [
        Property::Pure,
        Property::Idempotent,
        Property::DeniedIsNamed,
        Property::SurvivesCrashes,
    ];
    conforms(FILES, options, &asked).await;
    let asked = [
        Property::Pure,
        Property::DeniedIsNamed,
        Property::TakesAnyAnswer,
        Property::Stops,
    ];
    conforms(WEB, Options::default(), &asked).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_toolbox_that_fetches_is_answered_in_every_manner() {
    let options = Options {
        only: vec![Property::TakesAnyAnswer],
        ..Options::default()
    };
    let report = check(WEB, &options).await.unwrap();
    let finding = report.finding(Property::TakesAnyAnswer).unwrap();
    assert_eq!(finding.verdict, Verdict::Holds, "{report}");
    // Of both of its tools: at once, slowly, with an error, without end, not at all.
    assert_eq!(finding.cases, 10, "{report}");
    let report = check(FILES, &options).await.unwrap();
    let finding = report.finding(Property::TakesAnyAnswer).unwrap();
    assert_eq!(finding.verdict, Verdict::NotAsked, "{report}");
}
