//! A context that is compacted: what the model is shown from then on, wherever the boundary is
//! proposed, whenever the process is killed, and what is left when it comes to nothing.

use std::collections::HashSet;

use mainstay_core::commit::{Reply, Write};
use mainstay_core::event::{Delivery, EventBody, InputContent, TurnOutcome};
use mainstay_core::history::{Ending, ItemBody};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::model::{
    Content, Failure, FailureClass, FinishReason, Message, Range, ToolCall, ToolChoice,
    ToolDefinition, text_of,
};
use mainstay_core::plugin::{
    Action, Answer, Compact, Decision, Entry, LocalEvent, ModelCall, ModelEvent, ModelRequest,
    Segment, Summary, ToolSet, Trigger, View,
};
use mainstay_core::port::{Dump, Store as _};
use mainstay_test_simulation::decisions::link::{Fate, Fates};
use mainstay_test_simulation::decisions::stage::{Host, Stage};
use mainstay_test_simulation::decisions::{Decided, Seen, Step, ask, done, fail};
use mainstay_test_simulation::plugins::{call, events, last_text, results, say, sent};
use mainstay_test_simulation::world::{lines, prompt, user_texts};
use mainstay_test_support::rebuild;

/// Who writes the summary.
#[derive(Clone, Copy, Debug, PartialEq)]
enum By {
    Runner,
    Model,
}

const REQUEST: &str = "summarise";
const SUMMARY: &str = "the summary";

fn compact(view: &View, through: Seq, by: By) -> Step {
    let call = ModelCall {
        model: None,
        transcript: vec![
            Segment::Items(Range {
                after: view.context.after,
                through,
            }),
            Segment::Message(Message::User(mainstay_test_simulation::decisions::parts(
                REQUEST,
            ))),
        ],
        tools: ToolSet::Only(Vec::new()),
        own_tools: Vec::new(),
        tool_choice: ToolChoice::None,
        hosted_tools: Vec::new(),
        options: mainstay_core::model::ModelOptions::default(),
    };
    let summary = match by {
        By::Runner => Summary::Text(SUMMARY.into()),
        By::Model => Summary::Model(Box::new(call)),
    };
    Action::Compact(Compact { through, summary }).into()
}

/// Whether a prompt stands behind the last answer.
fn unanswered(seen: &Seen) -> bool {
    let mut messages = seen.items.iter().rev();
    messages
        .find_map(|item| match item.body {
            ItemBody::User(_) => Some(true),
            ItemBody::Assistant(_) => Some(false),
            _ => None,
        })
        .unwrap_or(false)
}

/// A runner that compacts what was before a prompt which asks for it, or all when a client does.
/// What is unanswered is asked in any case.
fn compacts(by: By) -> impl Fn(u32, &Seen) -> Decision + Send + Sync {
    compacts_at(by, |seen| seen.fresh.after)
}

fn compacts_at(
    by: By,
    place: impl Fn(&Seen) -> Seq + Send + Sync,
) -> impl Fn(u32, &Seen) -> Decision + Send + Sync {
    move |_, seen| {
        let told = seen.items.iter().rev().find_map(|item| match &item.body {
            ItemBody::User(parts) => Some(text_of(parts).starts_with("compact")),
            _ => None,
        });
        let step = match &seen.trigger {
            Trigger::TurnStarted if told == Some(true) => compact(seen, place(seen), by),
            Trigger::Other(reason) if reason == "compact" => compact(seen, place(seen), by),
            Trigger::Compacted if !unanswered(seen) => done(),
            Trigger::CompactionFailed(failure) if !unanswered(seen) => fail(&failure.message),
            Trigger::ModelFinished(FinishReason::Stop | FinishReason::Length) => done(),
            Trigger::ModelFailed(failure) => fail(&failure.message),
            _ => ask(seen),
        };
        step.into()
    }
}

/// A model that summarises when it is asked to, with this answer, and else says to what it answers.
fn model(
    summary: impl Fn() -> Vec<LocalEvent> + Send + Sync + 'static,
) -> impl Fn(&ModelRequest, usize) -> Vec<LocalEvent> + Send + Sync {
    move |request, _| match last_text(request).as_str() {
        REQUEST => summary(),
        text => say(&format!("to {text}")),
    }
}

fn stage(by: By, summary: impl Fn() -> Vec<LocalEvent> + Send + Sync + 'static) -> Stage {
    Stage::new(Decided::new(model(summary)).agent("default", compacts(by)))
}

/// A summary that takes long enough for its parts to become durable one by one.
fn slow_summary() -> Vec<LocalEvent> {
    let mut answer = events(["the ", "summ", "ary"].map(|text| ModelEvent::TextDelta(text.into())));
    answer.extend(events([ModelEvent::Finished(FinishReason::Stop)]));
    for event in &mut answer {
        event.after_ms = 2000;
    }
    answer
}

async fn say_to(stage: &Stage, host: &Host, session: SessionId, text: &str) -> Dump {
    host.prompt(session, text).await;
    stage.idle(session).await
}

/// A session with two turns, `a` and `b`.
async fn two_turns(stage: &Stage, host: &Host) -> (SessionId, Dump) {
    let session = stage.create("default").await;
    say_to(stage, host, session, "a").await;
    let dump = say_to(stage, host, session, "b").await;
    (session, dump)
}

/// What the model was sent, summaries aside.
fn questions(stage: &Stage) -> Vec<Vec<String>> {
    let requests = stage.plugins.scripted.requests.lock().unwrap();
    let all = requests.iter().map(sent);
    all.filter(|sent| sent.last().is_none_or(|last| last != REQUEST))
        .collect()
}

fn last_question(stage: &Stage) -> Vec<String> {
    questions(stage).pop().expect("a model was asked")
}

/// The context's base after each event.
fn bases(dump: &Dump) -> Vec<Seq> {
    (1..=dump.events.len())
        .map(|n| {
            let rows = rebuild(&dump.events[..n]).expect("a log can be replayed");
            rows.session.expect("its row").context_after
        })
        .collect()
}

/// All that stood there before still does, in the log and among the items.
#[track_caller]
fn is_kept(before: &Dump, after: &Dump) {
    assert_eq!(after.events[..before.events.len()], before.events[..]);
    assert_eq!(after.items[..before.items.len()], before.items[..]);
}

#[tokio::test(start_paused = true)]
async fn compact_1_one_event_moves_the_base_and_one_summary_stands_before_what_follows() {
    for by in [By::Runner, By::Model] {
        let stage = stage(by, || say(SUMMARY));
        let host = stage.start();
        let (session, before) = two_turns(&stage, &host).await;
        let dump = say_to(&stage, &host, session, "compact c").await;
        assert_eq!(last_question(&stage), [SUMMARY, "compact c"], "{by:?}");
        is_kept(&before, &dump);

        let bases = bases(&dump);
        let base = before.items.last().unwrap().seq;
        let moves = (1..bases.len()).filter(|n| bases[*n] != bases[n - 1]);
        let moves: Vec<usize> = moves.collect();
        assert_eq!(moves.len(), 1, "{by:?}: {bases:?}");
        assert_eq!(dump.events[moves[0]].kind, "context.compacted");
        assert_eq!(bases[moves[0]], base, "{by:?}");

        say_to(&stage, &host, session, "d").await;
        let wanted = [SUMMARY, "compact c", "to compact c", "d"];
        assert_eq!(last_question(&stage), wanted, "{by:?}");

        // A later one stands for the first as well.
        let again = say_to(&stage, &host, session, "compact e").await;
        assert_eq!(last_question(&stage), [SUMMARY, "compact e"], "{by:?}");
        is_kept(&dump, &again);
        if by == By::Model {
            let requests = stage.plugins.scripted.requests.lock().unwrap();
            let mut asked = requests.iter().map(sent);
            let asked = asked.rfind(|sent| sent.last().unwrap() == REQUEST);
            let wanted = [SUMMARY, "compact c", "to compact c", "d", "to d", REQUEST];
            assert_eq!(asked.unwrap(), wanted);
        }
        assert_eq!(
            user_texts(&again),
            ["a", "b", "compact c", "d", "compact e"]
        );
        // A reader from the beginning meets every event.
        let all = stage
            .memory
            .events(session, 0, 1000)
            .await
            .unwrap()
            .unwrap();
        assert_eq!(all, (again.events.clone(), again.events.len() as Seq));
    }
}

/// The places at which no call is parted from its result, by a look at the items alone.
fn settled_places(dump: &Dump) -> Vec<Seq> {
    let mut open = HashSet::new();
    let mut places = Vec::new();
    for item in &dump.items {
        match &item.body {
            ItemBody::Assistant(answer) => {
                open.extend(answer.content.iter().filter_map(|content| match content {
                    Content::ToolCall(call) => Some(call.id.clone()),
                    _ => None,
                }));
            }
            ItemBody::ToolResult(result) => {
                open.remove(&result.call);
            }
            _ => {}
        }
        if open.is_empty() {
            places.push(item.seq);
        }
    }
    places
}

/// Calls without a result before the next answer, and results without a call.
fn unpaired(request: &ModelRequest) -> Vec<String> {
    let mut open: Vec<String> = Vec::new();
    let mut lone = Vec::new();
    for message in &request.messages {
        match message {
            Message::Assistant(content) => {
                lone.append(&mut open);
                open.extend(content.iter().filter_map(|content| match content {
                    Content::ToolCall(call) => Some(call.id.clone()),
                    _ => None,
                }));
            }
            Message::ToolResult(result) => match open.iter().position(|id| *id == result.call) {
                Some(at) => drop(open.remove(at)),
                None => lone.push(result.call.clone()),
            },
            _ => {}
        }
    }
    lone.extend(open);
    lone
}

/// A turn with two calls side by side, then one that bears an id which was used before, then a prompt
/// whose turn compacts through `through`.
async fn boundary(through: Seq) -> Seq {
    let answer = |request: &ModelRequest, _| match (last_text(request).as_str(), results(request)) {
        ("compact", _) => say("over"),
        (_, 0) => call(&[("c", "look", "{}"), ("d", "put", "{}")]),
        (_, 2) => call(&[("c", "act", "{}")]),
        _ => say("over"),
    };
    let runner = compacts_at(By::Runner, move |_| through);
    let stage = Stage::new(Decided::new(answer).agent("default", runner));
    let host = stage.start();
    let session = stage.create("default").await;
    let before = say_to(&stage, &host, session, "work").await;
    let end = before.events.len() as Seq;
    let dump = say_to(&stage, &host, session, "compact").await;

    let row = dump.session.as_ref().unwrap();
    let places = settled_places(&before);
    let wanted = places.iter().rev().find(|place| **place <= through);
    assert_eq!(row.context_after, wanted.copied().unwrap_or(0), "{through}");
    is_kept(&before, &dump);
    if wanted.is_none() {
        assert!(
            matches!(&row.last_turn, Some(TurnOutcome::Failed { error }) if error.contains("nothing to compact")),
            "{through}: {:?}",
            row.last_turn
        );
        return end;
    }
    assert_eq!(row.last_turn, Some(TurnOutcome::Done), "{through}");
    let requests = stage.plugins.scripted.requests.lock().unwrap().clone();
    let request = requests.last().unwrap();
    assert_eq!(unpaired(request), Vec::<String>::new(), "{through}");
    let sent = sent(request);
    assert_eq!(sent[0], SUMMARY);
    // What follows the base is all there.
    let after = before
        .items
        .iter()
        .filter(|item| item.seq > row.context_after);
    assert_eq!(sent.len(), 1 + after.count() + 1, "{through}: {sent:?}");
    end
}

#[tokio::test(start_paused = true)]
async fn compact_2_the_base_lies_at_a_settled_step_wherever_it_is_proposed() {
    let end = boundary(1).await;
    assert!(end > 15, "{end}");
    for through in 2..=end {
        boundary(through).await;
    }
}

#[tokio::test(start_paused = true)]
async fn compact_2_a_call_that_its_runner_has_not_answered_stays_with_its_answer() {
    let own = || ToolDefinition {
        name: "mine".into(),
        description: "the runner's own".into(),
        input_schema: r#"{"type":"object"}"#.into(),
    };
    let runner = move |_, seen: &Seen| -> Decision {
        let mut ask = mainstay_test_simulation::plugins::ask(seen);
        if let Action::CallModel(call) = &mut ask {
            call.own_tools.push(own());
        }
        match &seen.trigger {
            Trigger::ModelFinished(FinishReason::ToolCalls) => {
                assert_eq!(seen.open_calls.len(), 1);
                compact(seen, seen.context.through, By::Runner).into()
            }
            Trigger::ModelFinished(_) => done().into(),
            _ => {
                let answers = seen.open_calls.iter().map(|call| {
                    Entry::Answer(Answer {
                        call: call.id.clone(),
                        is_error: false,
                        output: mainstay_test_simulation::decisions::parts("answered"),
                    })
                });
                let step = answers.fold(Step::from(ask), Step::entry);
                step.into()
            }
        }
    };
    let answer = |request: &ModelRequest, _| match results(request) {
        0 => call(&[("m", "mine", "{}")]),
        _ => say("over"),
    };
    let stage = Stage::new(Decided::new(answer).agent("default", runner));
    let host = stage.start();
    let session = stage.create("default").await;
    let dump = say_to(&stage, &host, session, "work").await;
    assert_eq!(last_question(&stage), [SUMMARY, "call m", "result m"]);
    let row = dump.session.unwrap();
    assert_eq!(row.context_after, dump.items[0].seq, "the prompt alone");
    assert_eq!(row.last_turn, Some(TurnOutcome::Done));
}

/// Where a process dies: its `n`-th commit, and whether before it.
type Point = Option<(usize, bool)>;

fn dies(point: Point) -> Fates {
    Box::new(move |_, n| match point {
        Some((at, true)) if at == n => Fate::DieBefore,
        Some((at, false)) if at == n => Fate::DieAfter,
        _ => Fate::Pass,
    })
}

/// Lets a host go on until the session is idle; one that dies is followed by another.
async fn goes_on(stage: &Stage, mut host: Host, session: SessionId) -> (Host, usize) {
    let commits = loop {
        tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        if host.link.is_dead() {
            host.kill();
            host = stage.start();
        }
        let tail = stage.tail(session).await;
        if tail.inputs.is_empty() && tail.claim.is_none() && tail.session.turn.is_none() {
            break host.link.commits();
        }
    };
    (host, commits)
}

/// After each commit of a session, its context is whole: the base has moved and its summary stands, or
/// neither.
async fn is_whole_after_each_commit(stage: &Stage, session: SessionId, point: Point) {
    let dump = stage.dump(session).await;
    let mut taken = 0;
    for logged in stage.memory.log() {
        if logged.commit.session != session {
            continue;
        }
        taken += logged.events.len();
        let rows = rebuild(&dump.events[..taken]).expect("a log can be replayed");
        let summaries: Vec<Seq> = rows
            .items
            .iter()
            .filter_map(|item| match &item.body {
                ItemBody::Compaction(compaction) => Some(compaction.through),
                _ => None,
            })
            .collect();
        let base = rows.session.expect("its row").context_after;
        assert_eq!(
            summaries.last().copied().unwrap_or(0),
            base,
            "{point:?}, after {taken} events"
        );
    }
    assert_eq!(taken, dump.events.len());
}

/// Two turns, then one that compacts and is killed at a point. The process's commits if it was not,
/// and whether the context was compacted in the end.
async fn killed(by: By, point: Point) -> (usize, bool) {
    let stage = stage(by, slow_summary);
    let first = stage.start();
    let (session, before) = two_turns(&stage, &first).await;
    first.kill();

    let host = stage.start_with(dies(point));
    stage.prompt(session, "compact c").await;
    let (host, commits) = goes_on(&stage, host, session).await;
    let dump = stage.idle(session).await;
    is_kept(&before, &dump);
    is_whole_after_each_commit(&stage, session, point).await;

    let old = ["a", "to a", "b", "to b", "compact c"].map(String::from);
    let new = [SUMMARY, "compact c"].map(String::from);
    let asked = &questions(&stage)[2..];
    assert!(!asked.is_empty(), "{point:?}");
    for question in asked {
        assert!(
            *question == old || *question == new,
            "{point:?}: {question:?}"
        );
    }
    let moved = dump.session.as_ref().unwrap().context_after > 0;
    assert_eq!(*asked.last().unwrap() == new, moved, "{point:?}");
    assert_eq!(
        stage.count(session, "context.compacted").await,
        usize::from(moved)
    );

    // And so it is for the turn after it.
    let answer = "to compact c".to_owned();
    let mut wanted = if moved { new.to_vec() } else { old.to_vec() };
    wanted.extend([answer, "d".to_owned()]);
    say_to(&stage, &host, session, "d").await;
    assert_eq!(last_question(&stage), wanted, "{point:?}");
    (commits, moved)
}

#[tokio::test(start_paused = true)]
async fn compact_3_killed_at_any_commit_the_context_is_the_old_or_the_new_one() {
    for by in [By::Runner, By::Model] {
        let (commits, moved) = killed(by, None).await;
        assert!(moved);
        assert!(commits >= if by == By::Model { 7 } else { 4 }, "{commits}");
        let mut outcomes = HashSet::new();
        for n in 0..commits {
            for before in [true, false] {
                outcomes.insert(killed(by, Some((n, before))).await.1);
            }
        }
        // A summary of which a part was durable is given up; all else is made again.
        let wanted = match by {
            By::Runner => vec![true],
            By::Model => vec![false, true],
        };
        let mut outcomes: Vec<bool> = outcomes.into_iter().collect();
        outcomes.sort_unstable();
        assert_eq!(outcomes, wanted, "{by:?}");
    }
}

fn failed(class: FailureClass) -> ModelEvent {
    ModelEvent::Failed(Failure {
        class,
        message: format!("no summary: {class:?}"),
        retry_after_ms: None,
    })
}

/// What the log says of a compaction that came to nothing.
async fn kept(stage: &Stage, session: SessionId) -> Vec<Failure> {
    let bodies = stage.bodies(session).await.into_iter();
    bodies
        .filter_map(|body| match body {
            EventBody::ContextKept { failure, .. } => Some(failure),
            _ => None,
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn compact_4_a_failed_summary_leaves_the_context_and_keeps_the_kind_of_error() {
    use FailureClass::*;
    let classes = [
        RateLimited,
        Overloaded,
        Server,
        Transport,
        Incomplete,
        Protocol,
        ContextOverflow,
        ContentFilter,
        Authentication,
        Quota,
        InvalidRequest,
    ];
    let mut cases: Vec<(FailureClass, Vec<LocalEvent>)> = Vec::new();
    for class in classes {
        cases.push((class, events([failed(class)])));
        let part = ModelEvent::TextDelta("the su".into());
        cases.push((class, events([part, failed(class)])));
    }
    // A stream that breaks off, and an answer without a word.
    cases.push((Incomplete, events([ModelEvent::TextDelta("the su".into())])));
    let nothing = ModelEvent::Finished(FinishReason::Stop);
    cases.push((Incomplete, events([nothing])));

    for (class, answer) in cases {
        let stage = stage(By::Model, move || answer.clone());
        let host = stage.start();
        let (session, before) = two_turns(&stage, &host).await;
        let dump = say_to(&stage, &host, session, "compact c").await;
        is_kept(&before, &dump);
        let kept: Vec<_> = kept(&stage, session)
            .await
            .iter()
            .map(|f| f.class)
            .collect();
        assert_eq!(kept, [class]);
        let told = stage.plugins.views.lock().unwrap().iter().any(
            |view| matches!(&view.trigger, Trigger::CompactionFailed(failure) if failure.class == class),
        );
        assert!(told, "{class:?}: the runner hears of it");
        assert_eq!(dump.session.unwrap().context_after, 0, "{class:?}");
        let wanted = ["a", "to a", "b", "to b", "compact c"];
        assert_eq!(last_question(&stage), wanted, "{class:?}");
        let dump = say_to(&stage, &host, session, "d").await;
        assert_eq!(last_question(&stage)[..5], wanted, "{class:?}");
        assert_eq!(
            last_question(&stage)[5..],
            ["to compact c", "d"],
            "{class:?}"
        );
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    }
}

/// Calls of tools that are pure, that act once, that a person is asked about and that are cut off, and
/// one at the model's server.
fn calls_amid(text: &str, ending: ModelEvent) -> Vec<LocalEvent> {
    let mut answer = events([ModelEvent::TextDelta(text.into())]);
    let calls = call(&[
        ("l", "look", "{}"),
        ("a", "act", "{}"),
        ("h", "act", r#"{"ask":1}"#),
    ]);
    answer.extend(
        calls
            .into_iter()
            .filter(|e| !matches!(e.event, ModelEvent::Finished(_))),
    );
    answer.extend(events([
        ModelEvent::HostedCall(ToolCall {
            id: "s".into(),
            tool: "search".into(),
            arguments: "{}".into(),
        }),
        ModelEvent::ToolCallStart {
            id: "cut".into(),
            tool: "look".into(),
        },
        ending,
    ]));
    answer
}

#[tokio::test(start_paused = true)]
async fn compact_4_a_call_in_the_answer_to_a_summary_request_is_none() {
    let cases = [
        (SUMMARY, FinishReason::Stop, true),
        (SUMMARY, FinishReason::ToolCalls, true),
        ("", FinishReason::ToolCalls, false),
    ];
    for (text, reason, compacts) in cases {
        let ending = ModelEvent::Finished(reason.clone());
        let stage = stage(By::Model, move || calls_amid(text, ending.clone()));
        let host = stage.start();
        let (session, before) = two_turns(&stage, &host).await;
        let dump = say_to(&stage, &host, session, "compact c").await;
        is_kept(&before, &dump);
        assert_eq!(dump.calls, [], "{text:?} {reason:?}");
        let moved = usize::from(compacts);
        assert_eq!(stage.count(session, "context.compacted").await, moved);
        assert_eq!(kept(&stage, session).await.len(), 1 - moved);
        assert_eq!(stage.plugins.scripted.count("look"), 0);
        assert_eq!(stage.plugins.scripted.count("act"), 0);
        let wanted: &[&str] = match compacts {
            true => &[SUMMARY, "compact c"],
            false => &["a", "to a", "b", "to b", "compact c"],
        };
        assert_eq!(last_question(&stage), wanted, "{text:?} {reason:?}");
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    }
}

#[tokio::test(start_paused = true)]
async fn compact_4_an_interrupted_summary_leaves_the_context() {
    // Before its first words, and with some of them durable.
    for chunks in [0, 1] {
        let stage = stage(By::Model, slow_summary);
        let host = stage.start();
        let (session, before) = two_turns(&stage, &host).await;
        host.prompt(session, "compact c").await;
        let streaming = |tail: &mainstay_core::tail::Tail| {
            let step = tail.step.as_ref();
            step.is_some_and(|step| step.asks_model() && step.content.len() == chunks)
        };
        stage.until(session, "the summary", streaming).await;
        assert!(host.node.interrupt(session).await.unwrap());
        let dump = stage.idle(session).await;
        is_kept(&before, &dump);
        let row = dump.session.as_ref().unwrap();
        assert_eq!(row.context_after, 0);
        assert_eq!(row.last_turn, Some(TurnOutcome::Interrupted));
        let kept = kept(&stage, session).await;
        assert_eq!(kept.len(), 1, "{}", lines(&dump));
        assert!(kept[0].message.contains("interrupted"), "{kept:?}");
        let ended = stage.bodies(session).await.into_iter().any(|body| {
            matches!(
                body,
                EventBody::ModelEnded {
                    ending: Ending::Interrupted,
                    ..
                }
            )
        });
        assert!(ended, "{}", lines(&dump));

        let dump = say_to(&stage, &host, session, "d").await;
        let wanted = ["a", "to a", "b", "to b", "compact c", "d"];
        assert_eq!(last_question(&stage), wanted);
        assert_eq!(dump.session.unwrap().last_turn, Some(TurnOutcome::Done));
    }
}

/// A compaction that a client asks for between two prompts, twice; the process is killed at a point.
async fn asked_for(works: bool, point: Point) -> usize {
    let stage = stage(By::Model, move || match works {
        true => say(SUMMARY),
        false => events([failed(FailureClass::InvalidRequest)]),
    });
    let session = stage.create("default").await;
    stage.prompt(session, "a").await;
    let compact = InputContent::Compact {};
    let first = stage.admit(session, Delivery::Queue, compact.clone()).await;
    stage.prompt(session, "b").await;
    let second = Write::Admit {
        input: InputId::new(),
        delivery: Delivery::Queue,
        content: compact,
    };
    match stage.write(session, second).await.unwrap().reply {
        Reply::Admitted(admission) => assert_eq!(admission.input, first),
        other => panic!("{other:?}"),
    }

    let host = stage.start_with(dies(point));
    let (_host, commits) = goes_on(&stage, host, session).await;
    let dump = stage.idle(session).await;
    assert_eq!(user_texts(&dump), ["a", "b"], "{point:?}");
    assert_eq!(dump.inputs.len(), 4, "{point:?}");
    let outcomes: Vec<TurnOutcome> = stage
        .bodies(session)
        .await
        .into_iter()
        .filter_map(|body| match body {
            EventBody::TurnEnded { outcome, .. } => Some(outcome),
            _ => None,
        })
        .collect();
    assert_eq!(outcomes.len(), 3, "{point:?}\n{}", lines(&dump));
    assert_eq!(outcomes[0], TurnOutcome::Done, "{point:?}");
    assert_eq!(
        matches!(&outcomes[1], TurnOutcome::Failed { error } if error.contains("no summary")),
        !works,
        "{point:?}: {outcomes:?}"
    );
    assert_eq!(outcomes[2], TurnOutcome::Done, "{point:?}");
    let wanted = match works {
        true => vec![SUMMARY, "b"],
        false => vec!["a", "to a", "b"],
    };
    assert_eq!(last_question(&stage), wanted, "{point:?}");
    assert_eq!(
        stage.count(session, "context.compacted").await,
        usize::from(works),
        "{point:?}"
    );
    is_whole_after_each_commit(&stage, session, point).await;
    commits
}

#[tokio::test(start_paused = true)]
async fn compact_5_the_first_of_two_requests_answers_and_the_prompt_behind_it_runs() {
    for works in [true, false] {
        let commits = asked_for(works, None).await;
        assert!(commits >= 6, "{commits}");
        for n in 0..commits {
            for before in [true, false] {
                asked_for(works, Some((n, before))).await;
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn compact_5_a_request_while_one_is_pending_is_answered_by_it_on_every_node() {
    let stage = stage(By::Model, slow_summary);
    let (here, there) = (stage.start(), stage.start());
    let session = stage.create("default").await;
    let ask = |host: &Host| {
        let node = std::sync::Arc::clone(&host.node);
        let compact = InputContent::Compact {};
        async move {
            node.admit(session, InputId::new(), Delivery::Queue, compact)
                .await
                .unwrap()
        }
    };
    say_to(&stage, &here, session, "a").await;
    let first = ask(&here).await;
    let streaming = |tail: &mainstay_core::tail::Tail| tail.step.is_some();
    stage.until(session, "the summary", streaming).await;
    // The first is under way and not pending any more: this one is another.
    let second = ask(&there).await;
    assert_ne!(second.input, first.input);
    let third = ask(&here).await;
    assert_eq!((third.input, third.seq), (second.input, second.seq));
    here.send(session, Delivery::Queue, prompt("b")).await;
    let dump = stage.idle(session).await;
    assert_eq!(user_texts(&dump), ["a", "b"]);
    assert_eq!(last_question(&stage), [SUMMARY, "b"]);
}
