//! What model calls used is counted towards a session's budget, however they end: what the server told,
//! and where an answer was cut off before it told anything, an estimate that says that it is one.

use mainstay_core::event::EventBody;
use mainstay_core::history::ItemBody;
use mainstay_core::model::{Failure, FailureClass, FinishReason, Usage};
use mainstay_core::plugin::{LocalEvent, ModelEvent};
use mainstay_core::port::Dump;
use mainstay_test_simulation::plugins::{Scripted, events, say};
use mainstay_test_simulation::world::{World, lines};

const TOLD: Usage = Usage {
    input_tokens: Some(100),
    cache_read_tokens: None,
    cache_write_tokens: None,
    output_tokens: Some(20),
    reasoning_tokens: None,
    cost: Some(7),
    estimated: false,
};

/// Bytes of an answer's text, and what they are taken for.
const SAID: usize = 400;
const SAID_TOKENS: u32 = 100;

/// An answer that has begun, after what its server tells, if it does.
fn begun(told: Option<Usage>) -> Vec<LocalEvent> {
    let told = told.map(ModelEvent::Usage);
    events(
        told.into_iter()
            .chain([ModelEvent::TextDelta("x".repeat(SAID))]),
    )
}

/// The same, which goes on for longer than anybody waits.
fn endless(told: Option<Usage>) -> Vec<LocalEvent> {
    let mut answer = begun(told);
    answer.push(LocalEvent {
        after_ms: 600_000,
        event: ModelEvent::Finished(FinishReason::Stop),
    });
    answer
}

/// What is recorded with the end of each answer.
fn recorded(dump: &Dump) -> Vec<Option<Usage>> {
    let bodies = dump
        .events
        .iter()
        .map(|record| record.decode().unwrap().body);
    let ends = bodies.filter_map(|body| match body {
        EventBody::ModelEnded { usage, .. } => Some(usage),
        _ => None,
    });
    ends.collect()
}

/// What runners see with each answer.
fn shown(dump: &Dump) -> Vec<Option<Usage>> {
    let answers = dump.items.iter().filter_map(|item| match &item.body {
        ItemBody::Assistant(answer) => Some(answer.usage),
        _ => None,
    });
    answers.collect()
}

/// Tokens in and out, and cost.
fn counted(dump: &Dump) -> (u64, u64, u64) {
    let totals = dump.session.as_ref().unwrap().usage;
    (totals.input_tokens, totals.output_tokens, totals.cost)
}

/// Runs until the answer has begun, and interrupts it.
async fn interrupted(told: Option<Usage>) -> Dump {
    let world = World::new(Scripted::new(move |_, _| endless(told)));
    let (process, session) = world.begin("go").await;
    let begun = |dump: &Dump| dump.events.iter().any(|event| event.kind == "step.output");
    world.until(session, "the answer to begin", begun).await;
    assert!(process.node.interrupt(session).await.unwrap());
    world.idle(session).await
}

/// Runs an answer that breaks off.
async fn broken(told: Option<Usage>) -> Dump {
    let world = World::new(Scripted::new(move |_, _| begun(told)));
    let (_process, session) = world.begin("go").await;
    world.idle(session).await
}

#[tokio::test]
async fn what_was_told_of_an_answer_that_was_cut_off_counts() {
    for dump in [broken(Some(TOLD)).await, interrupted(Some(TOLD)).await] {
        assert_eq!(recorded(&dump), [Some(TOLD)], "{}", lines(&dump));
        assert_eq!(shown(&dump), [Some(TOLD)]);
        assert_eq!(counted(&dump), (100, 20, 7));
    }
}

#[tokio::test]
async fn where_nothing_was_told_an_estimate_counts_and_says_so() {
    for dump in [broken(None).await, interrupted(None).await] {
        let [Some(usage)] = recorded(&dump)[..] else {
            panic!("{}", lines(&dump));
        };
        assert!(usage.estimated);
        assert_eq!(usage.output_tokens, Some(SAID_TOKENS));
        // The prompt, and the tools that the model was offered.
        let input = usage.input_tokens.unwrap();
        assert!((50..500).contains(&input), "{input}");
        assert_eq!(
            counted(&dump),
            (u64::from(input), u64::from(SAID_TOKENS), 0)
        );
        // Runners take what they see for exact.
        assert_eq!(shown(&dump), [None]);
    }
    let half = Usage {
        output_tokens: None,
        ..TOLD
    };
    let dump = interrupted(Some(half)).await;
    let whole = Usage {
        output_tokens: Some(SAID_TOKENS),
        estimated: true,
        ..TOLD
    };
    assert_eq!(recorded(&dump), [Some(whole)]);
}

#[tokio::test]
async fn after_a_crash_what_came_counts() {
    let world = World::new(Scripted::new(|_, n| match n {
        0 => endless(Some(TOLD)),
        _ => say("done"),
    }));
    let (process, session) = world.begin("go").await;
    let begun = |dump: &Dump| dump.events.iter().any(|event| event.kind == "step.output");
    world.until(session, "the answer to begin", begun).await;
    process.kill();
    let _next = world.start(None);
    let dump = world.idle(session).await;
    let estimate = Usage {
        output_tokens: Some(SAID_TOKENS),
        estimated: true,
        ..Usage::default()
    };
    assert_eq!(recorded(&dump)[0], Some(estimate), "{}", lines(&dump));
    assert_eq!(counted(&dump).1, u64::from(SAID_TOKENS));
}

#[tokio::test]
async fn a_try_that_failed_counts_beside_the_one_that_did_not() {
    let again = Usage {
        input_tokens: Some(110),
        output_tokens: Some(5),
        cost: Some(1),
        ..Usage::default()
    };
    let world = World::new(Scripted::new(move |_, n| match n {
        // An encoded request is sent as often as it takes; each try gets all of the answer.
        0 => events([
            ModelEvent::Usage(TOLD),
            ModelEvent::Failed(Failure {
                class: FailureClass::Overloaded,
                message: "busy".into(),
                retry_after_ms: None,
            }),
        ]),
        _ => {
            let mut answer = say("done");
            answer.insert(0, events([ModelEvent::Usage(again)]).remove(0));
            answer
        }
    }));
    let (process, session) = world.begin("go").await;
    let dump = world.idle(session).await;
    let tries = u64::from(world.settings.max_tries);
    assert_eq!(counted(&dump), (100 * tries, 20 * tries, 7 * tries));
    process.prompt(session, "again").await;
    let dump = world.idle(session).await;
    assert_eq!(recorded(&dump), [Some(TOLD), Some(again)]);
    // The tries before are not the answer's, by which a runner knows how large its context is.
    assert_eq!(shown(&dump), [Some(again)]);
}

#[tokio::test]
async fn an_answer_that_had_not_begun_counts_nothing() {
    let world = World::new(Scripted::new(|_, _| {
        let mut answer = say("never");
        answer[0].after_ms = 600_000;
        answer
    }));
    let (process, session) = world.begin("go").await;
    let asked = |dump: &Dump| dump.events.iter().any(|event| event.kind == "step.started");
    world.until(session, "the step", asked).await;
    process.node.interrupt(session).await.unwrap();
    let dump = world.idle(session).await;
    assert_eq!(recorded(&dump), [None], "{}", lines(&dump));
    assert_eq!(counted(&dump), (0, 0, 0));
}
