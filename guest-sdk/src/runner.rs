//! Runners: what a session does next.

use std::collections::VecDeque;
use std::marker::PhantomData;
use std::ops::Deref;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

pub use crate::bindings::runner::exports::mainstay::plugin::steps::{
    Action, Agent, Answer, ApprovalRequest, Budget, Child, Compact, Condition, Entry, ModelCall,
    Segment, SpawnRefusal, State, Summary, Tool, ToolSet, Trigger, Wait, WaitEnd,
};
pub use crate::bindings::runner::mainstay::plugin::history::{
    Approval, Assistant, Author, ChildOutcome, ChildResult, Compaction, Ending, Item, ItemBody,
    ModelRef, Order, Other, Page, Recovered, Signal, Size, Verdict,
};
pub use crate::manifest::{RunnerManifest, StateFormat};

use crate::bindings::runner::exports::mainstay::plugin::steps;
use crate::error::Error;
use crate::types::{
    CallId, Content, Message, ModelOptions, Part, Range, Seq, ToolCall, ToolChoice,
};

/// Decides what a session does next. Export it with [`runner!`](crate::runner!).
pub trait Runner {
    /// The agent's options, read from JSON. `()` where there are none.
    type Options: DeserializeOwned + Default;

    /// What is kept from step to step, as JSON. `()` where nothing is.
    type State: Serialize + DeserializeOwned + Default;

    /// What it says of itself. The same at every call.
    fn manifest() -> RunnerManifest;

    /// Decides the next step. The same view must give the same decision.
    ///
    /// What is left in `state` is stored with the decision if it differs from what was stored.
    ///
    /// # Errors
    ///
    /// Fails the turn; the text is for people.
    fn decide(
        view: &View<'_>,
        options: Self::Options,
        state: &mut Self::State,
    ) -> Result<Decision, Error>;

    /// Reads a stored state. Override it to accept what other runners or versions wrote, as listed in
    /// the manifest.
    ///
    /// # Errors
    ///
    /// Fails the turn, and the host says how to take the state away.
    fn read_state(stored: &State) -> Result<Self::State, Error> {
        read_json(&stored.data).map_err(Error::State)
    }
}

/// A session's history as it stood when the runner was asked.
pub trait History {
    /// Items of a range, whole. A page ends after `limit` items (1,000 at most) or past 256 KiB.
    fn read(&self, items: Range, order: Order, limit: u32) -> Page;

    /// How much a range holds, without reading it.
    fn measure(&self, items: Range) -> Size;

    /// Bytes of a media that an item refers to, at most 1 MiB at a time.
    fn read_media(&self, digest: &str, offset: u64, length: u32) -> Option<Vec<u8>>;
}

/// What is known when a decision is due. Small; everything long is behind [`View::history`].
pub struct View<'a> {
    /// UUID of the session.
    pub session: String,
    /// When the newest event was recorded: the runner's only clock.
    pub now_ms: u64,
    /// Why the runner is asked now.
    pub trigger: Trigger,
    /// What entered the history since the last decision.
    pub fresh: Range,
    /// The live context.
    pub context: Range,
    /// Everything, to read on demand.
    pub history: &'a dyn History,
    /// Calls of this runner's own tools that nobody has answered yet.
    pub open_calls: Vec<ToolCall>,
    /// What the operator configured.
    pub agent: Agent,
    /// Tools of the session's toolboxes.
    pub tools: Vec<Tool>,
    /// What is left.
    pub budget: Budget,
    /// What was last stored with a decision, as bytes. [`Runner::decide`] gets it read.
    pub state: Option<State>,
}

impl<'a> View<'a> {
    /// Items of a range, oldest first, read page by page as they are asked for.
    #[must_use]
    pub fn items(&self, range: Range) -> Items<'a> {
        Items::new(self.history, range, Order::OldestFirst)
    }

    /// Items of a range, newest first, read page by page as they are asked for.
    #[must_use]
    pub fn items_newest_first(&self, range: Range) -> Items<'a> {
        Items::new(self.history, range, Order::NewestFirst)
    }

    /// The items of `fresh`, oldest first.
    #[must_use]
    pub fn fresh_items(&self) -> Items<'a> {
        self.items(self.fresh)
    }

    /// Whether a call was made since the last decision, so that its model waits for results.
    #[must_use]
    pub fn fresh_calls(&self) -> bool {
        self.fresh_items().any(|item| match item.body {
            ItemBody::ToolResult(_) => true,
            ItemBody::Assistant(answer) => answer
                .content
                .iter()
                .any(|content| matches!(content, Content::ToolCall(_))),
            _ => false,
        })
    }

    /// Whether this is the last decision of the turn: a model is asked without tools.
    #[must_use]
    pub fn last_step(&self) -> bool {
        self.budget.steps <= 1
    }

    /// Met once this much time has passed, counted from the newest event. Asked again, it counts anew:
    /// a runner that waits a second time for what is left keeps the time in its state.
    #[must_use]
    pub fn after(&self, span: Duration) -> Condition {
        let span = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Condition::Time(self.now_ms.saturating_add(span))
    }
}

impl Condition {
    /// Met by a signal of this name that no wait has consumed yet, one from before the wait too.
    pub fn signal(name: impl Into<String>) -> Self {
        Self::Signal(name.into())
    }

    /// Met once a person has answered the question, either way: the answer is an
    /// [`ItemBody::Approval`] of this key. For details, build the [`ApprovalRequest`] yourself.
    pub fn approval(key: impl Into<String>, question: impl Into<String>) -> Self {
        Self::Approval(ApprovalRequest {
            key: key.into(),
            question: question.into(),
            details: None,
        })
    }

    /// Met once all children of these keys have ended: each result is an [`ItemBody::Child`].
    pub fn children(keys: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self::Children(keys.into_iter().map(Into::into).collect())
    }
}

impl Child {
    /// A child of the session's own agent.
    pub fn new(key: impl Into<String>, prompt: impl Into<String>) -> Self {
        Self {
            key: key.into(),
            agent: None,
            prompt: vec![Part::text(prompt)],
        }
    }

    /// The same, of another agent.
    #[must_use]
    pub fn of_agent(mut self, name: impl Into<String>) -> Self {
        self.agent = Some(name.into());
        self
    }
}

/// Items of a history. Reads as far as it is asked and no further.
pub struct Items<'a> {
    history: &'a dyn History,
    left: Range,
    order: Order,
    page: VecDeque<Item>,
    more: bool,
}

/// Items per page: a page is cut by its bytes anyway, and most readers look at a few items.
const PAGE: u32 = 64;

impl<'a> Items<'a> {
    fn new(history: &'a dyn History, range: Range, order: Order) -> Self {
        Self {
            history,
            left: range,
            order,
            page: VecDeque::new(),
            more: !range.is_empty(),
        }
    }
}

impl Iterator for Items<'_> {
    type Item = Item;

    fn next(&mut self) -> Option<Item> {
        if self.page.is_empty() && self.more {
            let page = self.history.read(self.left, self.order, PAGE);
            self.more = page.more && !page.items.is_empty();
            if let Some(last) = page.items.last() {
                match self.order {
                    Order::OldestFirst => self.left.after = last.seq,
                    Order::NewestFirst => self.left.through = last.seq.saturating_sub(1),
                }
            }
            self.page = page.items.into();
        }
        self.page.pop_front()
    }
}

/// One decision: items that the runner adds, and what happens next.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Become items of the history before the action begins.
    pub entries: Vec<Entry>,
    /// What to do next.
    pub action: Action,
}

impl Decision {
    /// A decision without entries.
    #[must_use]
    pub fn new(action: Action) -> Self {
        Self {
            entries: Vec::new(),
            action,
        }
    }

    /// Ask a model.
    #[must_use]
    pub fn call_model(call: ModelCall) -> Self {
        Self::new(Action::CallModel(call))
    }

    /// Run tools without a model.
    #[must_use]
    pub fn call_tools(calls: Vec<ToolCall>) -> Self {
        Self::new(Action::CallTools(calls))
    }

    /// Park the session until the first of these is met.
    #[must_use]
    pub fn wait(until: Vec<Condition>) -> Self {
        Self::new(Action::Wait(Wait { until }))
    }

    /// Start child sessions.
    #[must_use]
    pub fn spawn(children: Vec<Child>) -> Self {
        Self::new(Action::Spawn(children))
    }

    /// Replace the beginning of the context, up to `through`, by a summary.
    #[must_use]
    pub fn compact(through: Seq, summary: Summary) -> Self {
        Self::new(Action::Compact(Compact { through, summary }))
    }

    /// End the turn.
    #[must_use]
    pub fn done() -> Self {
        Self::new(Action::Done)
    }

    /// End the turn as failed, with a message for people.
    pub fn fail(message: impl Into<String>) -> Self {
        Self::new(Action::Fail(message.into()))
    }

    /// Adds words to the user, as an assistant message that no model was asked for.
    #[must_use]
    pub fn say(mut self, text: impl Into<String>) -> Self {
        self.entries.push(Entry::Say(vec![Part::text(text)]));
        self
    }

    /// Adds words to the model, kept at this place for every later request.
    #[must_use]
    pub fn note(mut self, text: impl Into<String>) -> Self {
        self.entries.push(Entry::Note(vec![Part::text(text)]));
        self
    }

    /// Adds the result of a call of the runner's own tools.
    #[must_use]
    pub fn answer(mut self, call: impl Into<CallId>, output: impl Into<String>) -> Self {
        self.entries.push(Entry::Answer(Answer {
            call: call.into(),
            is_error: false,
            output: vec![Part::text(output)],
        }));
        self
    }

    /// As [`Decision::answer`], for a call that failed.
    #[must_use]
    pub fn answer_error(mut self, call: impl Into<CallId>, output: impl Into<String>) -> Self {
        self.entries.push(Entry::Answer(Answer {
            call: call.into(),
            is_error: true,
            output: vec![Part::text(output)],
        }));
        self
    }
}

impl ModelCall {
    /// The ordinary request: the agent's model, its system prompt, the live context, all tools; on
    /// the last step, none may be called.
    #[must_use]
    pub fn of(view: &View<'_>) -> Self {
        let mut transcript = Vec::with_capacity(2);
        if let Some(prompt) = &view.agent.system_prompt {
            transcript.push(Segment::Message(Message::System(vec![Part::text(prompt)])));
        }
        transcript.push(Segment::Items(view.context));
        Self {
            model: None,
            transcript,
            tools: ToolSet::All,
            own_tools: Vec::new(),
            tool_choice: if view.last_step() {
                ToolChoice::None
            } else {
                ToolChoice::Auto
            },
            hosted_tools: Vec::new(),
            options: ModelOptions::default(),
        }
    }
}

/// Reads JSON; nothing at all counts as `null`, so that `()` and `Option` can be read from it.
fn read_json<T: DeserializeOwned>(data: &[u8]) -> Result<T, String> {
    let data: &[u8] = if data.is_empty() { b"null" } else { data };
    serde_json::from_slice(data).map_err(|error| error.to_string())
}

/// A decision and the bytes to store with it, as the contract has them.
#[derive(Clone, Debug, PartialEq)]
pub struct Step {
    /// The decision.
    pub decision: Decision,
    /// The state to store, if it is another than before.
    pub state: Option<Vec<u8>>,
}

/// Asks a runner as the host does, with options and state in their stored form.
///
/// # Errors
///
/// The options or the state cannot be read, or the runner fails.
pub fn decide<R: Runner>(view: &View<'_>) -> Result<Step, Error> {
    let options = match &view.agent.options {
        Some(options) => read_json(options.as_bytes()).map_err(Error::Config)?,
        None => R::Options::default(),
    };
    let (mut state, stored) = match &view.state {
        Some(stored) => {
            let own = stored.runner == R::manifest().plugin.name;
            (R::read_state(stored)?, own.then_some(&stored.data))
        }
        None => (R::State::default(), None),
    };
    let before = match stored {
        Some(stored) => stored.clone(),
        None => serde_json::to_vec(&R::State::default())?,
    };
    let decision = R::decide(view, options, &mut state)?;
    let after = serde_json::to_vec(&state)?;
    Ok(Step {
        decision,
        state: (after != before).then_some(after),
    })
}

/// A history that the host holds.
struct Imported(crate::bindings::runner::mainstay::plugin::history::History);

impl History for Imported {
    fn read(&self, items: Range, order: Order, limit: u32) -> Page {
        self.0.read(items, order, limit)
    }

    fn measure(&self, items: Range) -> Size {
        self.0.measure(items)
    }

    fn read_media(&self, digest: &str, offset: u64, length: u32) -> Option<Vec<u8>> {
        self.0.read_media(digest, offset, length)
    }
}

/// The export of a runner. Made by [`runner!`](crate::runner!).
#[doc(hidden)]
pub struct Export<R>(PhantomData<R>);

impl<R: Runner> steps::Guest for Export<R> {
    fn describe() -> RunnerManifest {
        crate::log::install_panic_hook();
        R::manifest()
    }

    fn decide(view: steps::View) -> Result<steps::Decision, steps::DecideError> {
        crate::log::install_panic_hook();
        let history = Imported(view.history);
        let view = View {
            session: view.session,
            now_ms: view.now_ms,
            trigger: view.trigger,
            fresh: view.fresh,
            context: view.context,
            history: &history,
            open_calls: view.open_calls,
            agent: view.agent,
            tools: view.tools,
            budget: view.budget,
            state: view.state,
        };
        let step = decide::<R>(&view)?;
        Ok(steps::Decision {
            entries: step.decision.entries,
            action: step.decision.action,
            state: step.state,
        })
    }
}

impl Deref for Step {
    type Target = Decision;

    fn deref(&self) -> &Decision {
        &self.decision
    }
}

/// Exports a [`Runner`] from the crate. Outside WebAssembly it only checks that it is one.
#[macro_export]
macro_rules! runner {
    ($runner:ty) => {
        const _: () = {
            type MainstayExport = $crate::private::RunnerExport<$runner>;
            #[cfg(target_arch = "wasm32")]
            $crate::bindings::runner::export_runner!(
                MainstayExport with_types_in $crate::bindings::runner
            );
            #[cfg(not(target_arch = "wasm32"))]
            const _: fn() = || {
                fn is_runner<R: $crate::Runner>() {}
                is_runner::<$runner>();
                let _: ::core::option::Option<MainstayExport> = ::core::option::Option::None;
            };
        };
    };
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;

    use super::*;
    use crate::testing::{self, MemoryHistory};

    struct Counter;

    #[derive(Default, Serialize, Deserialize)]
    struct Count {
        asked: u32,
    }

    impl Runner for Counter {
        type Options = Option<u32>;
        type State = Count;

        fn manifest() -> RunnerManifest {
            crate::manifest::runner("counter", "0.1.0", "Counts how often it was asked")
        }

        fn decide(_: &View<'_>, most: Option<u32>, state: &mut Count) -> Result<Decision, Error> {
            state.asked = (state.asked + 1).min(most.unwrap_or(u32::MAX));
            Ok(Decision::done())
        }
    }

    crate::runner!(Counter);

    #[test]
    fn state_is_stored_if_it_changes() {
        let history = MemoryHistory::new();
        let mut view = history.view(Trigger::TurnStarted);
        view.agent.options = Some("2".to_owned());
        for expected in [Some("{\"asked\":1}"), Some("{\"asked\":2}"), None] {
            let step = testing::decide::<Counter>(&view).unwrap();
            assert_eq!(
                step.state.as_deref(),
                expected.map(str::as_bytes),
                "after {:?}",
                view.state
            );
            view.state = testing::stored::<Counter>(&step).or(view.state);
        }
    }

    #[test]
    fn conditions_and_children_are_named_in_a_line() {
        let mut history = MemoryHistory::new();
        history.user("wait");
        let view = history.view(Trigger::TurnStarted);
        assert_eq!(
            view.after(Duration::from_secs(5)),
            Condition::Time(view.now_ms + 5000)
        );
        assert_eq!(view.after(Duration::MAX), Condition::Time(u64::MAX));
        assert_eq!(Condition::signal("go"), Condition::Signal("go".to_owned()));
        assert_eq!(
            Condition::children(["a", "b"]),
            Condition::Children(vec!["a".to_owned(), "b".to_owned()])
        );
        let Condition::Approval(request) = Condition::approval("deploy", "Deploy it?") else {
            panic!("an approval")
        };
        assert_eq!(
            (&*request.key, &*request.question, request.details),
            ("deploy", "Deploy it?", None)
        );
        let child = Child::new("a", "hello").of_agent("helper");
        assert_eq!(
            (&*child.key, child.agent.as_deref(), &child.prompt),
            ("a", Some("helper"), &vec![Part::text("hello")])
        );
    }

    #[test]
    fn what_cannot_be_read_says_what_it_is() {
        let history = MemoryHistory::new();
        let mut view = history.view(Trigger::TurnStarted);
        view.agent.options = Some("\"two\"".to_owned());
        assert!(matches!(decide::<Counter>(&view), Err(Error::Config(_))));
        view.agent.options = None;
        view.state = Some(State {
            runner: "counter".to_owned(),
            state_version: 1,
            data: b"{".to_vec(),
        });
        assert!(matches!(decide::<Counter>(&view), Err(Error::State(_))));
    }

    #[test]
    fn items_are_read_page_by_page() {
        let mut history = MemoryHistory::new();
        for number in 0..5 {
            history.user(&number.to_string());
        }
        history.limit_pages(2);
        let view = history.view(Trigger::TurnStarted);
        let seqs = |items: Items<'_>| items.map(|item| item.seq).collect::<Vec<_>>();
        assert_eq!(seqs(view.fresh_items()), [10, 20, 30, 40, 50]);
        assert_eq!(
            seqs(view.items_newest_first(Range {
                after: 10,
                through: 40
            })),
            [40, 30, 20]
        );
    }
}
