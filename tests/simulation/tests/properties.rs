//! What holds for any input: how text is cut, how events are grouped into commits, what recovery plans
//! twice, and what clients ask of a session that runs.

use std::time::Duration;

use mainstay_core::claim::{self, Claim, Phase};
use mainstay_core::event::{Event, EventBody, Piece};
use mainstay_core::history::ItemBody;
use mainstay_core::id::{Millis, OwnerId};
use mainstay_core::model::{Content, FinishReason, Part};
use mainstay_core::plugin::ModelEvent;
use mainstay_core::port::Dump;
use mainstay_core::project;
use mainstay_core::rebuild::{Rebuild, Rows};
use mainstay_core::recovery::{Counting, Plan, plan};
use mainstay_core::tail::{Changes, InputStatus, Scope, Tail};
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::scripts::{Death, SCRIPTS, play};
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::plugins::{call, events, last_text, say};
use mainstay_test_simulation::world::{lines, user_texts};
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Asks for a property of so many inputs.
fn check<S: Strategy>(
    cases: u32,
    inputs: &S,
    property: impl Fn(S::Value) -> Result<(), TestCaseError>,
) where
    S::Value: std::fmt::Debug,
{
    let config = Config {
        cases,
        failure_persistence: None,
        ..Config::default()
    };
    if let Err(error) = TestRunner::new(config).run(inputs, property) {
        panic!("{error}");
    }
}

/// Runs in virtual time.
fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .start_paused(true)
        .build()
        .unwrap()
        .block_on(future)
}

/// Text with code points of every length.
const TEXT: &str = "[a\u{e9}\u{20ac}\u{1f99c}\u{0}\n\"]{0,9}";

#[test]
fn streamed_text_is_stored_to_the_byte_however_it_comes() {
    // Each piece with the pause before it: some share a flush and some are a commit of their own.
    let pieces = prop::collection::vec((TEXT, 0u32..1500), 1..12);
    check(64, &pieces, |pieces| {
        let wanted: String = pieces.iter().map(|(text, _)| text.as_str()).collect();
        let answer = {
            let deltas = pieces
                .iter()
                .map(|(text, _)| ModelEvent::TextDelta(text.clone()));
            let end = ModelEvent::Finished(FinishReason::Stop);
            let mut answer = events(deltas.chain([end]));
            for (event, (_, pause)) in answer.iter_mut().zip(&pieces) {
                event.after_ms = *pause;
            }
            answer
        };
        let dump = in_time(async move {
            let stage = Stage::new(Decided::new(move |_, _| answer.clone()));
            let host = stage.start();
            let session = stage.create("default").await;
            host.prompt(session, "go").await;
            stage.idle(session).await
        });
        let stored: String = bodies(&dump)
            .into_iter()
            .filter_map(|body| match body {
                EventBody::StepOutput { pieces, .. } => Some(pieces),
                _ => None,
            })
            .flatten()
            .map(|piece| match piece {
                Piece::Text(text) => text,
                other => panic!("{other:?}"),
            })
            .collect();
        prop_assert_eq!(&stored, &wanted);
        let shown = dump.items.iter().find_map(|item| match &item.body {
            ItemBody::Assistant(answer) => Some(&answer.content),
            _ => None,
        });
        let shown: String = shown
            .into_iter()
            .flatten()
            .map(|content| match content {
                Content::Text(text) => text.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        prop_assert_eq!(&shown, &wanted);
        Ok(())
    });
}

#[test]
fn what_is_shown_of_a_long_output_is_cut_between_code_points() {
    let inputs = ("[a\u{e9}\u{20ac}\u{1f99c}]{0,12}", 0usize..40);
    check(64, &inputs, |(text, shown)| {
        let output = text.clone();
        let (dump, whole) = in_time(async move {
            let plugins = Decided::new(move |request, _| match last_text(request).as_str() {
                "go" => call(&[("c", "look", "{}")]),
                _ => say("done"),
            });
            *plugins.scripted.output.lock().unwrap() = Some(output);
            let mut stage = Stage::new(plugins);
            stage.settings.tool_output_shown = shown;
            let host = stage.start();
            let session = stage.create("default").await;
            host.prompt(session, "go").await;
            let dump = stage.idle(session).await;
            let result = result_of(&dump);
            let whole = match &result.whole {
                Some(media) => host.node.store().blob(&media.digest).await.unwrap(),
                None => None,
            };
            (dump, whole)
        });
        let result = result_of(&dump);
        let [Part::Text(said)] = &result.output[..] else {
            panic!("{:?}", result.output);
        };
        if text.len() <= shown {
            prop_assert_eq!(said, &text);
            prop_assert_eq!(whole, None);
            return Ok(());
        }
        prop_assert_eq!(whole, Some(text.clone().into_bytes()));
        let (head, note) = said.rsplit_once("\n[").expect("a note");
        prop_assert!(text.starts_with(head) && head.len() <= shown, "{said:?}");
        // As much as fits: the next code point does not.
        let next = text[head.len()..].chars().next().map_or(0, char::len_utf8);
        prop_assert!(head.len() + next > shown, "{said:?}");
        prop_assert_eq!(
            note,
            format!("{} of {} bytes shown]", head.len(), text.len())
        );
        Ok(())
    });
}

fn result_of(dump: &Dump) -> mainstay_core::model::ToolResult {
    let result = dump.items.iter().find_map(|item| match &item.body {
        ItemBody::ToolResult(result) => Some(result.clone()),
        _ => None,
    });
    result.expect("a result")
}

fn bodies(dump: &Dump) -> Vec<EventBody> {
    let all = dump.events.iter().map(|record| record.decode());
    all.map(|event| event.expect("known").body).collect()
}

/// The logs of all scripts, as they are when nobody dies and when someone does at this commit.
fn logs(at: usize) -> Vec<Vec<Event>> {
    in_time(async move {
        let mut logs = Vec::new();
        for script in &SCRIPTS {
            for deaths in [&[][..], &[Death::AfterCommit(at)]] {
                for dump in play(script, deaths).await.dumps().await {
                    let events = dump.events.iter().map(|record| record.decode().unwrap());
                    logs.push(events.collect());
                }
            }
        }
        logs
    })
}

/// The rows that a log gives, with as many events in each commit as these sizes say, again and again.
fn grouped(log: &[Event], sizes: &[usize]) -> (Tail, Rows) {
    let mut tail = project::begin(&log[0]).expect("a session's creation");
    let mut rows = Rows::default();
    let mut rest = &log[1..];
    for size in sizes.iter().cycle() {
        let (now, later) = rest.split_at((*size).min(rest.len()));
        let mut changes = Changes::default();
        for event in now {
            project::project(&mut tail, event, &mut changes).expect("it stood there");
        }
        rows.take(changes);
        rest = later;
        if rest.is_empty() {
            return (tail, rows);
        }
    }
    unreachable!("sizes without end")
}

#[test]
fn events_give_the_same_rows_in_one_commit_or_in_many() {
    let logs = logs(5);
    let single: Vec<(Tail, Rows)> = logs.iter().map(|log| grouped(log, &[1])).collect();
    for (log, single) in logs.iter().zip(&single) {
        assert_eq!(grouped(log, &[usize::MAX]), *single);
    }
    let inputs = (0..logs.len(), prop::collection::vec(1usize..9, 1..9));
    check(512, &inputs, |(n, sizes)| {
        prop_assert_eq!(&grouped(&logs[n], &sizes), &single[n]);
        Ok(())
    });
}

/// A claim as it would stand on this tail.
fn claim_on(tail: &Tail) -> Option<Claim> {
    Some(Claim {
        session: tail.session.id,
        execution: tail.session.execution?,
        owner: OwnerId(tail.session.id.0),
        expires_at: 0,
        phase: claim::phase(tail, Phase::Ready),
        step: tail.session.step,
        interrupt: tail.session.interrupting,
        ended: false,
        resumed: false,
        superseded: false,
    })
}

/// The tail after a plan was written.
fn written(tail: &Tail, plan: &Plan, at: Millis) -> Result<Tail, TestCaseError> {
    let mut tail = tail.clone();
    for body in &plan.events {
        let event = Event {
            session: tail.session.id,
            seq: tail.session.head + 1,
            id: mainstay_core::id::EventId::new(),
            at,
            execution: None,
            recovery: None,
            compacted: None,
            body: body.clone(),
        };
        let mut changes = Changes::default();
        project::project(&mut tail, &event, &mut changes)
            .map_err(|broken| TestCaseError::fail(format!("{broken}: {plan:#?}")))?;
    }
    Ok(tail)
}

/// What a plan settles, over and above the end of its execution.
fn settles(plan: &Plan) -> Vec<&EventBody> {
    let settles = |body: &&EventBody| {
        matches!(
            body,
            EventBody::CallSettled { .. }
                | EventBody::CallDropped { .. }
                | EventBody::ModelEnded { .. }
                | EventBody::ContextKept { .. }
                | EventBody::TurnEnded { .. }
        ) || matches!(body, EventBody::StepRecovered(step) if step.interrupted || !step.settled.is_empty())
    };
    plan.events.iter().filter(settles).collect()
}

#[test]
fn what_recovery_has_settled_it_settles_once_wherever_the_log_breaks_off() {
    let logs: Vec<Vec<Event>> = (0..12).step_by(3).flat_map(logs).collect();
    let inputs = (0..logs.len(), any::<prop::sample::Index>(), any::<bool>());
    check(2048, &inputs, |(log, end, interrupt)| {
        let log = &logs[log];
        let end = end.index(log.len());
        let mut rebuilt = Rebuild::begin(&log[0]).expect("a session's creation");
        for event in &log[1..=end] {
            rebuilt.take(event).expect("it stood there");
        }
        let tail = rebuilt.tail;
        let Some(mut claim) = claim_on(&tail) else {
            return Ok(());
        };
        claim.interrupt |= interrupt;
        let now = log[end].at;
        let first = plan(&tail, &claim, &Counting::to(3), now);
        prop_assert_eq!(
            &first,
            &plan(&tail, &claim, &Counting::to(3), now),
            "a plan follows from what it is shown"
        );
        let terminals = first.events.iter().filter_map(EventBody::terminal_of);
        prop_assert_eq!(terminals.collect::<Vec<_>>(), [claim.execution]);

        let after = written(&tail, &first, now)?;
        prop_assert_eq!(after.session.execution, None);
        if claim.interrupt {
            prop_assert!(after.session.turn.is_none() && after.step.is_none());
        }
        // A successor that dies before it has done anything: nothing is left to be settled.
        let successor = Claim {
            execution: mainstay_core::id::ExecutionId::new(),
            phase: claim::phase(&after, Phase::Ready),
            step: after.session.step,
            interrupt: false,
            ..claim
        };
        let started = EventBody::ExecutionStarted {
            execution: successor.execution,
            owner: successor.owner,
        };
        let start = Plan {
            events: vec![started],
            outcome: first.outcome.clone(),
        };
        let running = written(&after, &start, now)?;
        let second = plan(&running, &successor, &Counting::to(u32::MAX), now);
        prop_assert_eq!(settles(&second), Vec::<&EventBody>::new());
        // And what may be run is the same.
        let run = |plan: &Plan| {
            plan.events.iter().find_map(|body| match body {
                EventBody::StepRecovered(step) => Some((step.ask_again, step.run.clone())),
                _ => None,
            })
        };
        if let Some(again) = run(&second) {
            prop_assert_eq!(Some(again), run(&first));
        }
        Ok(())
    });
}

/// What a client may ask of a session.
#[derive(Clone, Debug)]
enum Ask {
    Prompt,
    Steer,
    WakeAll,
    WakeSteers,
    Interrupt,
    Run,
}

/// What is pending, as the design says: the word of each input, whether it is a steer, and its intent.
#[derive(Default)]
struct Pending(Vec<(String, bool, bool)>);

impl Pending {
    fn wake(&mut self, steers_only: bool) {
        for (_, steer, intent) in &mut self.0 {
            *intent |= *steer || !steers_only;
        }
    }
}

#[test]
fn coord_2_3_whatever_is_asked_while_a_session_runs_gives_one_follow_up() {
    let ask = prop_oneof![
        Just(Ask::Prompt),
        Just(Ask::Steer),
        Just(Ask::WakeAll),
        Just(Ask::WakeSteers),
        Just(Ask::Interrupt),
        Just(Ask::Run),
    ];
    check(256, &prop::collection::vec(ask, 0..12), |asked| {
        in_time(follow_up(asked))
    });
}

async fn follow_up(asked: Vec<Ask>) -> Result<(), TestCaseError> {
    let stage = Stage::new(Decided::new(|request, _| {
        match last_text(request).as_str() {
            "begin" => call(&[("c", "look", "{}")]),
            _ => say("over"),
        }
    }));
    let _held = stage.plugins.scripted.hold("look");
    let host = stage.start();
    let session = stage.create("default").await;
    host.prompt(session, "begin").await;
    stage
        .when("the call", || stage.plugins.scripted.count("look") == 1)
        .await;
    let mut pending = Pending::default();
    let mut runs = Vec::new();
    let mut interrupted = false;
    for (n, ask) in asked.iter().enumerate() {
        let word = n.to_string();
        match ask {
            Ask::Prompt => {
                host.prompt(session, &word).await;
                pending.0.push((word, false, true));
                pending.wake(false);
            }
            Ask::Steer => {
                host.steer(session, &word).await;
                pending.0.push((word, true, true));
                pending.wake(true);
            }
            Ask::WakeAll => {
                host.node.wake(session, Scope::All).await.unwrap();
                pending.wake(false);
            }
            Ask::WakeSteers => {
                host.node.wake(session, Scope::Steers).await.unwrap();
                pending.wake(true);
            }
            Ask::Interrupt => {
                host.node.interrupt(session).await.unwrap();
                interrupted = true;
                for (_, _, intent) in &mut pending.0 {
                    *intent = false;
                }
            }
            Ask::Run => {
                let node = std::sync::Arc::clone(&host.node);
                let mut run = Box::pin(async move { node.run(session, None).await });
                // Its wake is durable once it waits.
                prop_assert!(futures::poll!(&mut run).is_pending());
                runs.push(run);
                pending.wake(false);
            }
        }
    }
    stage.plugins.scripted.let_go("look");
    for run in runs {
        // Everyone who joined hears of an end.
        let outcome = tokio::time::timeout(Duration::from_secs(600), run).await;
        prop_assert!(outcome.is_ok(), "{asked:?}: a run without an answer");
        outcome.unwrap().unwrap();
    }
    // Checks that one lives at a time, and that each has one start and one terminal.
    let dump = stage.idle(session).await;
    tokio::time::sleep(Duration::from_secs(60)).await;
    prop_assert_eq!(
        &stage.idle(session).await,
        &dump,
        "nothing goes on by itself"
    );
    let told = || format!("{asked:?}\n{}", lines(&dump));

    let wanted = |intent: bool| {
        let those = pending.0.iter().filter(move |input| input.2 == intent);
        let mut words: Vec<String> = those.map(|input| input.0.clone()).collect();
        words.sort();
        words
    };
    let mut promoted = user_texts(&dump)[1..].to_vec();
    promoted.sort();
    prop_assert_eq!(promoted, wanted(true), "{}", told());
    let left = dump
        .inputs
        .iter()
        .filter(|input| input.status == InputStatus::Pending);
    prop_assert_eq!(left.count(), wanted(false).len(), "{}", told());

    let started = dump
        .events
        .iter()
        .filter(|e| e.kind == "execution.started")
        .count();
    let most = match (interrupted, wanted(true).is_empty()) {
        // The cleanup's end, and nothing to go on with.
        (true, true) => 1,
        _ => 2,
    };
    prop_assert!(started <= most, "{started} executions; {}", told());
    Ok(())
}
