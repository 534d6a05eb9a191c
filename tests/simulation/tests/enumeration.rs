//! Every script of the table, killed before and after each of its commits and each of its effects, and
//! the recovery of each of those kills killed again at each of its own commits.

use std::collections::{BTreeMap, HashMap, HashSet};

use mainstay_core::event::{EventBody, InputContent, TurnOutcome};
use mainstay_core::history::ItemBody;
use mainstay_core::model::ToolOutcome;
use mainstay_core::port::Dump;
use mainstay_core::tail::InputStatus;
use mainstay_test_simulation::decisions::scripts::{Death, Played, SCRIPTS, Same, Script, play};
use mainstay_test_simulation::decisions::stage::words;
use mainstay_test_simulation::plugins::said;
use mainstay_test_simulation::world::lines;

/// What a script comes to, as far as no kill may change it.
#[derive(Debug, PartialEq)]
struct Outcome {
    /// Of the session and of each child: every item, in a word or two.
    histories: Vec<Vec<String>>,
    /// What was promoted, in order.
    inputs: Vec<Vec<String>>,
    turns: Vec<usize>,
    last_turns: Vec<Option<TurnOutcome>>,
    /// By call, its tool and how it ended.
    results: BTreeMap<String, (String, ToolOutcome)>,
}

fn outcome(dumps: &[Dump]) -> Outcome {
    let each = |f: &dyn Fn(&Dump) -> Vec<String>| dumps.iter().map(f).collect::<Vec<_>>();
    let mut results = BTreeMap::new();
    for item in dumps.iter().flat_map(|dump| &dump.items) {
        if let ItemBody::ToolResult(result) = &item.body {
            let before = results.insert(result.call.clone(), (result.tool.clone(), result.outcome));
            assert_eq!(before, None, "{} has two results", result.call);
        }
    }
    Outcome {
        histories: each(&history),
        inputs: each(&promoted),
        turns: dumps
            .iter()
            .map(|dump| {
                dump.events
                    .iter()
                    .filter(|e| e.kind == "turn.ended")
                    .count()
            })
            .collect(),
        last_turns: dumps
            .iter()
            .map(|dump| dump.session.as_ref().and_then(|row| row.last_turn.clone()))
            .collect(),
        results,
    }
}

fn history(dump: &Dump) -> Vec<String> {
    let all = words(&dump.items).into_iter().zip(&dump.items);
    all.map(|(word, item)| match &item.body {
        ItemBody::Assistant(answer) => format!("{:?} {}", answer.ending, said(&answer.content)),
        ItemBody::ToolResult(result) => format!("{word} {:?}", result.outcome),
        ItemBody::Compaction(compaction) => {
            format!(
                "summary {}",
                mainstay_core::model::text_of(&compaction.summary)
            )
        }
        ItemBody::Recovered(_) => "recovered".into(),
        _ => word,
    })
    .collect()
}

/// In the order of their promotion.
fn promoted(dump: &Dump) -> Vec<String> {
    let content: HashMap<_, _> = dump.inputs.iter().map(|i| (i.id, &i.content)).collect();
    let bodies = dump
        .events
        .iter()
        .map(|record| record.decode().unwrap().body);
    bodies
        .filter_map(|body| match body {
            EventBody::InputPromoted { input } => Some(match content[&input] {
                // At another time in every run.
                InputContent::Timer { .. } => "timer".into(),
                // Its key names the step's place in this log.
                InputContent::Approval(answer) if answer.key.starts_with("call/") => {
                    let call = answer.key.rsplit('/').next();
                    format!("approval {call:?} {}", answer.approved)
                }
                content => format!("{content:?}"),
            }),
            _ => None,
        })
        .collect()
}

fn in_any_order(lists: &[Vec<String>]) -> Vec<Vec<String>> {
    let mut lists = lists.to_vec();
    lists.iter_mut().for_each(|list| list.sort());
    lists
}

/// Checks what a script came to against what it comes to when nobody dies.
#[track_caller]
fn judge(script: &Script, played: &Played, dumps: &[Dump], wanted: &Outcome, deaths: &[Death]) {
    let found = outcome(dumps);
    let told = || {
        let logs: Vec<String> = dumps.iter().map(lines).collect();
        format!("{}, {deaths:?}:\n{}", script.name, logs.join("\n"))
    };
    // Inputs: the same, each once, none left.
    let left = dumps
        .iter()
        .flat_map(|dump| &dump.inputs)
        .filter(|input| input.status != InputStatus::Promoted);
    assert_eq!(left.count(), 0, "{}", told());
    assert_eq!(
        in_any_order(&found.inputs),
        in_any_order(&wanted.inputs),
        "{}",
        told()
    );
    assert_eq!(found.turns, wanted.turns, "{}", told());
    assert_eq!(found.last_turns, wanted.last_turns, "{}", told());

    // Calls: the same, each with one result; another than without a kill only where its class allows it.
    assert!(found.results.keys().eq(wanted.results.keys()), "{}", told());
    for (call, (tool, outcome)) in &found.results {
        let allowed = match (outcome, tool.as_str()) {
            (ToolOutcome::OutcomeUnknown, tool) => tool == "act",
            (ToolOutcome::NotStarted, _) => true,
            (outcome, _) => {
                *outcome == wanted.results[call].1
                    || script.same == Same::Outcome && *outcome == ToolOutcome::Succeeded
            }
        };
        assert!(allowed, "call {call} of {tool}: {outcome:?}; {}", told());
    }
    // The world: what acts once was asked for once, what is repeated bears its first key. Only a `pure`
    // call of a step that runs ahead may have been begun for a decision that no log tells of.
    let ahead = script.name == "steps ahead of their commit";
    let mut keys: HashMap<String, HashSet<String>> = HashMap::new();
    let mut acted = HashSet::new();
    for called in played.stage.plugins.scripted.calls.lock().unwrap().iter() {
        if !(ahead && called.tool == "look") {
            let keys = keys.entry(called.id.clone()).or_default();
            keys.insert(called.key.clone());
        }
        if called.tool == "act" {
            assert!(
                acted.insert(called.key.clone()),
                "{} acted twice; {}",
                called.id,
                told()
            );
        }
    }
    assert!(
        keys.values().all(|keys| keys.len() == 1),
        "{keys:?}; {}",
        told()
    );

    let verdicts = found
        .histories
        .iter()
        .flatten()
        .any(|item| item == "recovered");
    match script.same {
        Same::History if !verdicts => {
            assert_eq!(found.histories, wanted.histories, "{}", told());
            assert_eq!(found.inputs, wanted.inputs, "{}", told());
        }
        Same::Items if !verdicts => {
            let (found, wanted) = (&found.histories, &wanted.histories);
            assert_eq!(in_any_order(found), in_any_order(wanted), "{}", told());
        }
        _ => {}
    }
    if !verdicts && script.same != Same::Outcome {
        assert_eq!(found.results, wanted.results, "{}", told());
    }
}

/// A script's undisturbed run.
async fn undisturbed(script: &Script) -> (Played, Outcome) {
    let played = play(script, &[]).await;
    let outcome = outcome(&played.dumps().await);
    assert_eq!(played.lives.len(), 1);
    (played, outcome)
}

/// Plays a script with these deaths and judges it.
async fn killed(script: &Script, wanted: &Outcome, deaths: &[Death]) -> Played {
    let played = play(script, deaths).await;
    let dumps = played.dumps().await;
    judge(script, &played, &dumps, wanted, deaths);
    played
}

fn commits(n: usize) -> impl Iterator<Item = Death> {
    (0..n).flat_map(|n| [Death::BeforeCommit(n), Death::AfterCommit(n)])
}

/// Before each effect, and after each that is not cut off.
fn deaths_at(effects: &[bool]) -> impl Iterator<Item = Death> {
    let all = effects.iter().enumerate();
    all.flat_map(|(n, ends)| {
        let after = ends.then_some(Death::AfterEffect(n));
        std::iter::once(Death::BeforeEffect(n)).chain(after)
    })
}

#[tokio::test(start_paused = true)]
async fn recov_20_killed_before_and_after_every_commit() {
    for script in &SCRIPTS {
        let (played, wanted) = undisturbed(script).await;
        let n = played.lives[0].commits.len();
        let mut died = 0;
        for death in commits(n) {
            let played = killed(script, &wanted, &[death]).await;
            died += usize::from(played.lives[0].died);
        }
        assert_eq!(died, 2 * n, "{}", script.name);
    }
}

#[tokio::test(start_paused = true)]
async fn recov_20_killed_before_and_after_every_outside_effect() {
    for script in &SCRIPTS {
        let (played, wanted) = undisturbed(script).await;
        let effects = played.lives[0].effects.clone();
        let mut died = 0;
        for death in deaths_at(&effects) {
            let played = killed(script, &wanted, &[death]).await;
            died += usize::from(played.lives[0].died);
        }
        assert_eq!(died, deaths_at(&effects).count(), "{}", script.name);
    }
}

#[tokio::test(start_paused = true)]
async fn recov_11_recovery_itself_killed_at_each_of_its_commits() {
    for script in &SCRIPTS {
        let (played, wanted) = undisturbed(script).await;
        let first = &played.lives[0];
        let mut again = 0;
        for death in commits(first.commits.len()).chain(deaths_at(&first.effects)) {
            let once = killed(script, &wanted, &[death]).await;
            let Some(second) = once.lives.get(1) else {
                continue;
            };
            let of_recovery = (0..second.commits.len()).filter(|n| second.commits[*n]);
            for n in of_recovery {
                for second in [Death::BeforeCommit(n), Death::AfterCommit(n)] {
                    let twice = killed(script, &wanted, &[death, second]).await;
                    again += usize::from(twice.lives[1].died);
                }
            }
        }
        assert!(again > 0, "{}", script.name);
    }
}
