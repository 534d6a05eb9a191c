//! The design's invariants as functions of a session's rows, each named for what it says.

use std::collections::{HashMap, HashSet};

use mainstay_core::event::{Event, EventBody, Piece};
use mainstay_core::id::ExecutionId;
use mainstay_core::port::Dump;
use mainstay_core::project;
use mainstay_core::tail::Changes;

/// Checks all that one session's rows can show.
///
/// # Panics
/// With the broken invariant's words.
#[track_caller]
pub fn check(dump: &Dump) {
    let events: Vec<Event> = dump
        .events
        .iter()
        .map(|record| record.decode().expect("an event of this build"))
        .collect();
    seqs_have_no_gap(&events);
    executions_do_not_overlap(&events);
    one_terminal_per_execution(dump, &events);
    one_result_per_call_and_none_before_it(&events);
    inputs_are_pending_or_promoted_once_or_cancelled(&events);
    once_effects_start_once(&events);
    rebuilding_gives_the_same_rows(dump, &events);
}

#[track_caller]
fn seqs_have_no_gap(events: &[Event]) {
    for (n, event) in events.iter().enumerate() {
        assert_eq!(event.seq, n as u64 + 1, "seqs have a gap or a repeat");
    }
    let ids: HashSet<_> = events.iter().map(|event| event.id).collect();
    assert_eq!(ids.len(), events.len(), "an event id stands twice");
}

#[track_caller]
fn executions_do_not_overlap(events: &[Event]) {
    let mut live: Option<ExecutionId> = None;
    let mut ended = HashSet::new();
    for event in events {
        if let EventBody::ExecutionStarted { execution, .. } = &event.body {
            assert!(live.is_none(), "two live executions at seq {}", event.seq);
            live = Some(*execution);
        }
        if let Some(writer) = event.execution {
            assert!(
                !ended.contains(&writer),
                "seq {} was written by an execution that had ended",
                event.seq
            );
            assert_eq!(
                live,
                Some(writer),
                "seq {} was written without a claim",
                event.seq
            );
        }
        if let Some(execution) = event.body.terminal_of() {
            assert!(
                ended.insert(execution),
                "execution {execution} has two terminals"
            );
            assert_eq!(
                live.take(),
                Some(execution),
                "a terminal of an execution that does not run"
            );
        }
    }
}

#[track_caller]
fn one_terminal_per_execution(dump: &Dump, events: &[Event]) {
    let started = events
        .iter()
        .filter(|event| matches!(event.body, EventBody::ExecutionStarted { .. }))
        .count();
    let ended = events
        .iter()
        .filter(|event| event.body.terminal_of().is_some())
        .count();
    let open = usize::from(dump.claim.as_ref().is_some_and(|claim| !claim.ended));
    assert_eq!(
        started,
        ended + open,
        "executions without a terminal and without a claim"
    );
}

#[track_caller]
fn one_result_per_call_and_none_before_it(events: &[Event]) {
    let mut results: HashMap<(u64, String), u32> = HashMap::new();
    let mut closed_steps = HashSet::new();
    for event in events {
        match &event.body {
            EventBody::StepStarted(started) => {
                if let mainstay_core::plugin::Action::CallTools(calls) = &started.action {
                    results.extend(calls.iter().map(|call| ((event.seq, call.id.clone()), 0)));
                }
            }
            EventBody::StepOutput { step, pieces } => {
                for piece in pieces {
                    if let Piece::Call { id, .. } = piece {
                        results.insert((*step, id.clone()), 0);
                    }
                }
            }
            EventBody::CallSettled { step, result, .. } => {
                if let Some(count) = results.get_mut(&(*step, result.call.clone())) {
                    *count += 1;
                    assert_eq!(
                        *count, 1,
                        "call {} of step {step} has two results",
                        result.call
                    );
                }
                closed_steps.insert(*step);
            }
            EventBody::TurnEnded { .. } => {
                for ((step, call), count) in &results {
                    assert_eq!(
                        *count, 1,
                        "call {call} of step {step} has no result at its turn's end"
                    );
                }
            }
            _ => {}
        }
    }
}

#[track_caller]
fn inputs_are_pending_or_promoted_once_or_cancelled(events: &[Event]) {
    let mut state = HashMap::new();
    for event in events {
        match &event.body {
            EventBody::InputAdmitted { input, .. } => {
                assert!(
                    state.insert(*input, "pending").is_none(),
                    "input {input} was admitted twice"
                );
            }
            EventBody::InputPromoted { input } => {
                assert_eq!(
                    state.insert(*input, "promoted"),
                    Some("pending"),
                    "input {input} was promoted"
                );
            }
            EventBody::InputCancelled { input } => {
                assert_eq!(
                    state.insert(*input, "cancelled"),
                    Some("pending"),
                    "input {input} was cancelled"
                );
            }
            _ => {}
        }
    }
}

#[track_caller]
fn once_effects_start_once(events: &[Event]) {
    let mut started = HashSet::new();
    for event in events {
        if let EventBody::CallStarted {
            step,
            call,
            effect: mainstay_core::model::Effect::Once,
            ..
        } = &event.body
        {
            assert!(
                started.insert((*step, call.clone())),
                "once call {call} of step {step} started twice"
            );
        }
    }
}

#[track_caller]
fn rebuilding_gives_the_same_rows(dump: &Dump, events: &[Event]) {
    let Some(first) = events.first() else { return };
    let mut tail = project::begin(first).expect("a log begins with its session's creation");
    let mut changes = Changes::default();
    for event in &events[1..] {
        project::project(&mut tail, event, &mut changes)
            .expect("a stored log is one that projects");
    }
    let mut items = std::collections::BTreeMap::new();
    for item in changes.items {
        items.insert(item.seq, item);
    }
    let rebuilt: Vec<_> = items.into_values().collect();
    assert_eq!(rebuilt, dump.items, "items rebuilt from the log differ");
    let session = dump.session.as_ref().expect("a session's row");
    // Where it was imported from is in no event.
    tail.session.origin.clone_from(&session.origin);
    assert_eq!(
        &tail.session, session,
        "the session's row rebuilt from the log differs"
    );
}
