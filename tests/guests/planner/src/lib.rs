//! A runner that follows the plan in the newest prompt, line by line. A prompt that begins with none
//! of these words is the model's, which is asked until it stops.
//!
//! | line | what it does |
//! |---|---|
//! | `say TEXT` | says it |
//! | `report` | says what has entered the history since the prompt and is no message, a line each |
//! | `wait A or B …` | waits for the first of: a span (`500ms`, `10s`), `signal NAME`, `children a,b` |
//! | `ask KEY QUESTION` | asks a person and waits for the answer |
//! | `spawn a,b PROMPT` | starts a child under each key; `; ` in the prompt ends a line of it |
//! | `fail TEXT` | fails the turn |
//!
//! The plan is done with its last line. A newer prompt takes the place of the plan that it meets.
//!
//! The model has every tool of the agent, and one more, `guarded`: it names a key, a tool and the
//! tool's arguments, and the tool is run once a person has approved it under that key.

use mainstay_guest::runner::{
    Approval, Child, ChildOutcome, Condition, Decision, Item, ItemBody, RunnerManifest,
    SpawnRefusal, Trigger, Verdict, View,
};
use mainstay_guest::types::text_of;
use mainstay_guest::{Error, Runner, manifest};
use serde::{Deserialize, Serialize};

mod model;
mod plan;

use plan::{Line, Until};

struct Planner;

mainstay_guest::runner!(Planner);

/// How far the plan has got.
#[derive(Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
struct State {
    /// Seq of the prompt that is followed.
    prompt: u64,
    /// Lines of it that are done.
    done: usize,
    /// Where the next line is a wait that has begun: when its span is over.
    waiting: Option<u64>,
}

impl Runner for Planner {
    type Options = ();
    type State = State;

    fn manifest() -> RunnerManifest {
        manifest::runner(
            "planner",
            env!("CARGO_PKG_VERSION"),
            "Follows the plan in the newest prompt",
        )
    }

    fn decide(view: &View<'_>, (): (), state: &mut State) -> Result<Decision, Error> {
        let newest = view
            .items_newest_first(view.context)
            .find_map(|item| match item.body {
                ItemBody::User(parts) => Some((item.seq, text_of(&parts))),
                _ => None,
            });
        let Some((prompt, text)) = newest else {
            // Something else came in, and nobody said what to do with it.
            return Ok(Decision::done());
        };
        let Some(lines) = plan::parse(&text).map_err(Error::new)? else {
            return model::next(view);
        };
        if state.prompt != prompt {
            *state = State {
                prompt,
                ..State::default()
            };
        }
        Ok(follow(view, &lines, state))
    }
}

/// Goes on behind the lines that are done.
fn follow(view: &View<'_>, lines: &[Line], state: &mut State) -> Decision {
    if let Trigger::SpawnRefused(refusal) = &view.trigger {
        return Decision::fail(match refusal {
            SpawnRefusal::TooDeep => "the tree is too deep",
            SpawnRefusal::TooMany => "there are too many children",
        });
    }
    // Another trigger interrupts a wait that is not over: it is begun again.
    if state.waiting.is_some() && matches!(view.trigger, Trigger::WaitEnded(_)) {
        state.waiting = None;
        state.done += 1;
    }
    let mut said = Vec::new();
    let decision = loop {
        let Some(line) = lines.get(state.done) else {
            break Decision::done();
        };
        match line {
            Line::Say(text) => said.push(text.clone()),
            Line::Report => said.push(report(view, state.prompt)),
            Line::Fail(text) => break Decision::fail(text),
            Line::Spawn(keys, prompt) => {
                state.done += 1;
                let children = keys.iter().map(|key| Child::new(key, prompt));
                break Decision::spawn(children.collect());
            }
            Line::Wait(until) => {
                let begun = state.waiting.unwrap_or(view.now_ms);
                state.waiting = Some(begun);
                break Decision::wait(until.iter().map(|until| until.condition(begun)).collect());
            }
        }
        state.done += 1;
    };
    said.into_iter().fold(decision, Decision::say)
}

impl Until {
    fn condition(&self, begun: u64) -> Condition {
        match self {
            Self::Span(ms) => Condition::Time(begun + ms),
            Self::Signal(name) => Condition::signal(name),
            Self::Answer(key, question) => Condition::approval(key, question),
            Self::Children(keys) => Condition::children(keys),
        }
    }
}

/// What has come since the prompt, a line each.
fn report(view: &View<'_>, prompt: u64) -> String {
    let lines = view
        .items(view.context)
        .filter(|item| item.seq > prompt)
        .filter_map(|item| line(&item));
    lines.collect::<Vec<_>>().join("\n")
}

fn line(item: &Item) -> Option<String> {
    Some(match &item.body {
        ItemBody::Signal(signal) => format!("signal {} {}", signal.name, signal.data),
        ItemBody::Timer => "timer".to_owned(),
        ItemBody::Approval(answer) => words(answer),
        ItemBody::Child(child) => {
            let key = &child.key;
            match &child.outcome {
                ChildOutcome::Done(parts) => format!("child {key} done: {}", text_of(parts)),
                ChildOutcome::Failed(error) => format!("child {key} failed: {error}"),
                ChildOutcome::Cancelled => format!("child {key} cancelled"),
                ChildOutcome::Quarantined(reason) => format!("child {key} quarantined: {reason}"),
            }
        }
        _ => return None,
    })
}

/// An answer of a person in words.
fn words(answer: &Approval) -> String {
    let verdict = match answer.verdict {
        Verdict::Approved => "approved",
        Verdict::Denied => "denied",
    };
    match &answer.reason {
        Some(reason) => format!("{} {verdict}: {reason}", answer.key),
        None => format!("{} {verdict}", answer.key),
    }
}

#[cfg(test)]
mod tests;
