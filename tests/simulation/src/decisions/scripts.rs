//! Sessions as a table: for each a name, its guests, and a client that goes on until all that it asked
//! for is durable, whatever becomes of the process that it speaks to. [`play`] runs one against processes
//! that die where a test says.

use std::convert::Infallible;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::FutureExt as _;
use futures::future::LocalBoxFuture;
use mainstay_core::commit::{Refused, Write};
use mainstay_core::event::{Delivery, InputContent};
use mainstay_core::history::{Approval, ItemBody};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::model::{
    Content, FinishReason, HostedResult, Message, ModelOptions, Range, ToolCall, ToolChoice,
};
use mainstay_core::node::Node;
use mainstay_core::plugin::{
    Action, Compact, Condition, Decision, LocalEvent, ModelCall, ModelEvent, ModelRequest, Segment,
    Summary, ToolSet, Trigger,
};
use mainstay_core::port::{Dump, StoreError};
use mainstay_core::tail::Tail;
use tokio::sync::watch;

use super::link::{Fate, Fates};
use super::stage::{Stage, a_signal, an_answer};
use super::{
    Decided, Seen, Step, Watch, approval, ask, children, done, fail, parts, signal, spawn, wait,
};
use crate::plugins::{call, events, last_text, results, say};
use crate::world::prompt;

/// One session.
pub struct Script {
    pub name: &'static str,
    plugins: fn() -> Decided,
    client: for<'a> fn(&'a Client<'a>) -> LocalBoxFuture<'a, ()>,
    pub same: Same,
}

/// What of its history a run that was killed has in common with one that was not, where recovery gave no
/// verdict on an answer or a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Same {
    /// All of it.
    History,
    /// Every item; what is done side by side ends in any order.
    Items,
    /// Only inputs, turns and calls: what the client or the runner does depends on when it comes to it.
    Outcome,
}

/// Every kind of thing that a session does.
pub const SCRIPTS: [Script; 14] = [
    Script {
        name: "plain",
        plugins: || Decided::new(|_, _| slowly(&["one ", "two ", "three"])),
        client: |client| async { client.prompt("a").await }.boxed_local(),
        same: Same::History,
    },
    Script {
        name: "a call of each class",
        plugins: || Decided::new(|request, _| makes(request, &[LOOK, PUT, ACT])),
        client: |client| async { client.prompt("a").await }.boxed_local(),
        same: Same::History,
    },
    Script {
        name: "calls side by side",
        plugins: || {
            Decided::new(|request, _| {
                let all = [&[("a", "act"), ("b", "look"), ("c", "put"), ("d", "act")][..]];
                makes(request, &all)
            })
        },
        client: |client| async { client.prompt("a").await }.boxed_local(),
        same: Same::Items,
    },
    Script {
        name: "steps ahead of their commit",
        plugins: || Decided::new(|_, _| say("over")).agent("default", looks),
        client: |client| async { client.prompt("a").await }.boxed_local(),
        same: Same::History,
    },
    Script {
        name: "a hosted tool",
        plugins: || Decided::new(hosted).agent("default", offers_search),
        client: |client| async { client.prompt("a").await }.boxed_local(),
        same: Same::History,
    },
    Script {
        name: "a steer",
        plugins: || Decided::new(|request, _| makes(request, &[PUT])),
        client: |client| steered(client).boxed_local(),
        same: Same::History,
    },
    Script {
        name: "a queue",
        plugins: || Decided::new(|request, _| makes(request, &[LOOK])),
        client: |client| queued(client).boxed_local(),
        same: Same::History,
    },
    Script {
        name: "an interrupt",
        plugins: || Decided::new(|request, _| makes(request, &[&[("a", "act"), ("p", "put")]])),
        client: |client| interrupted(client).boxed_local(),
        // What runs when the interrupt comes depends on when it can be asked for.
        same: Same::Outcome,
    },
    Script {
        name: "waits",
        plugins: || Decided::new(|_, _| say("over")).agent("default", waits),
        client: |client| answered(client).boxed_local(),
        same: Same::History,
    },
    Script {
        name: "a call that is asked about",
        plugins: || {
            Decided::new(|request, _| match results(request) {
                0 => call(&[("p", "put", r#"{"ask":"x"}"#), ("a", "act", "{}")]),
                _ => slowly(&["all is ", "done"]),
            })
        },
        client: |client| approved(client).boxed_local(),
        same: Same::Items,
    },
    Script {
        name: "children",
        plugins: || {
            Decided::new(|request, _| match last_text(request).as_str() {
                "you are y" => makes(request, &[ACT]),
                _ => makes(request, &[]),
            })
            .agent("default", parent)
        },
        client: |client| async { client.prompt("a").await }.boxed_local(),
        same: Same::Items,
    },
    Script {
        name: "a compaction",
        plugins: || {
            Decided::new(|request, _| match last_text(request).as_str() {
                SUMMARISE => slowly(&["a ", "summary"]),
                text => say(&format!("to {text}")),
            })
            .agent("default", compacts)
        },
        client: |client| compacted(client).boxed_local(),
        // A summary that breaks off is given up without a verdict on any call.
        same: Same::Outcome,
    },
    Script {
        name: "a revert",
        plugins: || Decided::new(|request, _| say(&format!("to {}", last_text(request)))),
        client: |client| reverted(client).boxed_local(),
        same: Same::History,
    },
    Script {
        name: "a change of the model",
        plugins: || Decided::new(|request, _| say(&format!("{} speaks", request.model))),
        client: |client| configured(client).boxed_local(),
        same: Same::History,
    },
];

const LOOK: &[(&str, &str)] = &[("l", "look")];
const PUT: &[(&str, &str)] = &[("p", "put")];
const ACT: &[(&str, &str)] = &[("a", "act")];
const SUMMARISE: &str = "summarise";

/// An answer whose parts come far enough apart to become durable one by one.
fn slowly(texts: &[&str]) -> Vec<LocalEvent> {
    let mut all: Vec<ModelEvent> = Vec::new();
    all.extend(
        texts
            .iter()
            .map(|text| ModelEvent::TextDelta((*text).into())),
    );
    all.push(ModelEvent::Finished(FinishReason::Stop));
    let mut all = events(all);
    for event in &mut all {
        event.after_ms = 1500;
    }
    all
}

/// Makes the calls of the first group of which one is not made yet, then says so.
fn makes(request: &ModelRequest, groups: &[&[(&str, &str)]]) -> Vec<LocalEvent> {
    let made = |id: &str| {
        request.messages.iter().any(|message| match message {
            Message::Assistant(content) => content
                .iter()
                .any(|content| matches!(content, Content::ToolCall(call) if call.id == id)),
            _ => false,
        })
    };
    for group in groups {
        let missing = group.iter().filter(|(id, _)| !made(id));
        let missing: Vec<_> = missing.map(|(id, tool)| (*id, *tool, "{}")).collect();
        if !missing.is_empty() {
            return call(&missing);
        }
    }
    slowly(&["all is ", "done"])
}

fn hosted(_: &ModelRequest, _: usize) -> Vec<LocalEvent> {
    let call = ToolCall {
        id: "h".into(),
        tool: "search".into(),
        arguments: "{}".into(),
    };
    let result = HostedResult {
        call: "h".into(),
        is_error: false,
        data: "{}".into(),
    };
    let mut all = events([
        ModelEvent::HostedCall(call),
        ModelEvent::HostedResult(result),
        ModelEvent::TextDelta("found".into()),
        ModelEvent::Finished(FinishReason::Stop),
    ]);
    for event in &mut all {
        event.after_ms = 1500;
    }
    all
}

fn offers_search(_: u32, seen: &Seen) -> Decision {
    match &seen.trigger {
        Trigger::ModelFinished(FinishReason::Stop) => done().into(),
        _ => {
            let mut action = crate::plugins::ask(seen);
            if let Action::CallModel(call) = &mut action {
                call.hosted_tools.push("search".into());
            }
            Step::from(action).into()
        }
    }
}

/// Whether an item of this kind stands in the history.
fn has(seen: &Seen, wanted: impl Fn(&ItemBody) -> bool) -> bool {
    seen.items.iter().any(|item| wanted(&item.body))
}

/// Waits for a signal, then for an approval, then for a time; then asks.
fn waits(_: u32, seen: &Seen) -> Decision {
    let step = if !has(seen, |body| matches!(body, ItemBody::Signal(_))) {
        wait([signal("s")])
    } else if !has(seen, |body| matches!(body, ItemBody::Approval(_))) {
        wait([approval("a")])
    } else if !has(seen, |body| matches!(body, ItemBody::Timer)) {
        wait([Condition::Time(seen.now + 5000)])
    } else if matches!(seen.trigger, Trigger::ModelFinished(_)) {
        done()
    } else {
        ask(seen)
    };
    step.into()
}

/// Looks again and again, which takes no time but once, and puts in between.
fn looks(n: u32, _: &Seen) -> Decision {
    let (tool, arguments) = match n {
        3 => ("put", "{}"),
        6 => ("look", "{}"),
        0..9 => ("look", r#"{"how":"at once"}"#),
        _ => return done().into(),
    };
    let call = ToolCall {
        id: format!("c{n}"),
        tool: tool.into(),
        arguments: arguments.into(),
    };
    Step::from(Action::CallTools(vec![call])).into()
}

/// Makes two children, waits for both, asks.
fn parent(_: u32, seen: &Seen) -> Decision {
    let results = seen.items.iter();
    let results = results.filter(|item| matches!(item.body, ItemBody::Child(_)));
    let step = match (&seen.trigger, results.count()) {
        (Trigger::TurnStarted, _) => spawn(&[("x", "child"), ("y", "child")]),
        (Trigger::Spawned, _) => wait([children(&["x", "y"])]),
        (Trigger::ModelFinished(_), _) => done(),
        (Trigger::WaitEnded(_), 0 | 1) => wait([children(&["x", "y"])]),
        _ => ask(seen),
    };
    step.into()
}

/// Compacts what was before a second turn.
fn compacts(_: u32, seen: &Seen) -> Decision {
    let before = seen.fresh.after;
    let step = match &seen.trigger {
        Trigger::TurnStarted if has(seen, |body| matches!(body, ItemBody::Assistant(_))) => {
            let call = ModelCall {
                model: None,
                transcript: vec![
                    Segment::Items(Range {
                        after: seen.context.after,
                        through: before,
                    }),
                    Segment::Message(Message::User(parts(SUMMARISE))),
                ],
                tools: ToolSet::Only(Vec::new()),
                own_tools: Vec::new(),
                tool_choice: ToolChoice::None,
                hosted_tools: Vec::new(),
                options: ModelOptions::default(),
            };
            let compact = Compact {
                through: before,
                summary: Summary::Model(Box::new(call)),
            };
            Action::Compact(compact).into()
        }
        Trigger::ModelFinished(FinishReason::Stop) => done(),
        Trigger::ModelFailed(failure) => fail(&failure.message),
        _ => ask(seen),
    };
    step.into()
}

async fn steered(client: &Client<'_>) {
    client.prompt("a").await;
    client.seen("call.started", 1).await;
    client.steer("and this").await;
}

async fn queued(client: &Client<'_>) {
    client.prompt("a").await;
    client.prompt("b").await;
    client.prompt("c").await;
}

async fn interrupted(client: &Client<'_>) {
    client.prompt("a").await;
    client.seen("call.started", 1).await;
    client.prompt("b").await;
    client
        .ask(async |node| node.interrupt(client.session).await)
        .await
        .expect("it is stopped");
    client
        .until("the end of the cleanup", |tail| tail.claim.is_none())
        .await;
    client.prompt("c").await;
}

async fn answered(client: &Client<'_>) {
    client.prompt("a").await;
    client.seen("execution.suspended", 1).await;
    client.admit(Delivery::Steer, a_signal("s")).await;
    let asks = |tail: &Tail| {
        let until = tail.session.wait.iter().flat_map(|wait| &wait.until);
        let mut asked = until.filter(|until| matches!(until, Condition::Approval(_)));
        asked.next().is_some()
    };
    client.until("the question", asks).await;
    client.answer(an_answer("a", None)).await;
}

async fn approved(client: &Client<'_>) {
    client.prompt("a").await;
    client.seen("call.held", 1).await;
    let asked = client.stage.tail(client.session).await;
    let key = asked.session.arrived.approvals.keys().next().cloned();
    client
        .answer(an_answer(&key.expect("a request"), None))
        .await;
}

async fn compacted(client: &Client<'_>) {
    client.prompt("a").await;
    client.idle().await;
    client.prompt("b").await;
}

async fn reverted(client: &Client<'_>) {
    client.prompt("a").await;
    client.idle().await;
    client.prompt("b").await;
    client.idle().await;
    client.revert_last_prompt().await;
    client.prompt("c").await;
}

async fn configured(client: &Client<'_>) {
    let model = mainstay_core::history::ModelRef {
        provider: "parrot".into(),
        model: "second".into(),
    };
    client.prompt("a").await;
    client
        .admit(Delivery::Queue, InputContent::Configure { model })
        .await;
    client.prompt("b").await;
}

/// A process as a client knows it.
type Address = Option<Arc<Node>>;

/// Speaks to whatever process there is, and asks again where one died before it answered.
pub struct Client<'a> {
    stage: &'a Stage,
    session: SessionId,
    address: watch::Receiver<Address>,
}

impl Client<'_> {
    async fn ask<T>(
        &self,
        question: impl AsyncFn(Arc<Node>) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut address = self.address.clone();
        loop {
            let node = address.wait_for(Option::is_some).await;
            let node = node
                .expect("processes come and go")
                .clone()
                .expect("one is there");
            tokio::select! {
                biased;
                answer = question(node) => return answer,
                _ = address.changed() => {}
            }
        }
    }

    async fn admit(&self, delivery: Delivery, content: InputContent) {
        let input = InputId::new();
        self.ask(async |node| {
            node.admit(self.session, input, delivery, content.clone())
                .await
        })
        .await
        .expect("the input is admitted");
    }

    async fn prompt(&self, text: &str) {
        self.admit(Delivery::Queue, prompt(text)).await;
    }

    async fn steer(&self, text: &str) {
        self.admit(Delivery::Steer, prompt(text)).await;
    }

    async fn answer(&self, answer: Approval) {
        let told = self
            .ask(async |node| node.answer(self.session, answer.clone()).await)
            .await;
        // The first try may have been stored, and even acted upon.
        let stored = matches!(
            told,
            Ok(())
                | Err(StoreError::Refused(
                    Refused::ApprovalNotFound { .. } | Refused::ApprovalAnswered { .. }
                ))
        );
        assert!(stored, "{told:?}");
    }

    async fn revert_last_prompt(&self) {
        let items = self.stage.items(self.session).await;
        let last = items
            .iter()
            .rfind(|item| matches!(item.body, ItemBody::User(_)));
        let before = last.expect("there was a prompt").seq;
        let told = self
            .ask(async |node| node.revert(self.session, before).await)
            .await;
        let stored = self.stage.tail(self.session).await.session.revert.is_some();
        assert!(stored, "{told:?}");
    }

    async fn until(&self, what: &str, wanted: impl Fn(&Tail) -> bool) {
        self.stage.until(self.session, what, wanted).await;
    }

    async fn idle(&self) {
        self.stage.over(self.session).await;
    }

    /// Waits until the log holds so many events of a type.
    async fn seen(&self, kind: &str, times: usize) {
        while self.stage.count(self.session, kind).await < times {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// Where a process dies: its `n`-th commit or outside effect, counting from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Death {
    BeforeCommit(usize),
    AfterCommit(usize),
    BeforeEffect(usize),
    AfterEffect(usize),
}

/// What a process did until its end.
#[derive(Clone, Debug, Default)]
pub struct Life {
    /// Of each of its commits, whether it was recovery's: it settled a claim, or took the one after it.
    pub commits: Vec<bool>,
    /// Of each request to a model and each call of a tool, whether it was heard to its end.
    pub effects: Vec<bool>,
    pub died: bool,
}

/// A script that was played to its end.
pub struct Played {
    pub stage: Stage,
    pub session: SessionId,
    /// Every process, in order.
    pub lives: Vec<Life>,
}

impl Played {
    /// The rows of the session, then those of its children.
    pub async fn dumps(&self) -> Vec<Dump> {
        let mut dumps = vec![self.stage.dump(self.session).await];
        let row = dumps[0].session.clone().expect("the session's row");
        for child in row.children {
            dumps.push(self.stage.dump(child.session).await);
        }
        dumps
    }
}

/// Plays a script. The first process dies as the first of `deaths` says, the next as the second; later
/// ones live. Ends when all is idle, with every invariant checked.
///
/// To be called in a runtime whose clock is paused.
///
/// # Panics
/// With the broken invariant's words, or with the log if the session does not come to its end.
pub async fn play(script: &Script, deaths: &[Death]) -> Played {
    let stage = Stage::new((script.plugins)());
    let call_ms = &stage.plugins.scripted.call_ms;
    call_ms.store(1200, std::sync::atomic::Ordering::SeqCst);
    let session = stage.create("default").await;
    let (tell, address) = watch::channel(None);
    let client = Client {
        stage: &stage,
        session,
        address,
    };
    let scene = async {
        (script.client)(&client).await;
        stage.idle(session).await;
        for child in &stage.tail(session).await.session.children {
            stage.idle(child.session).await;
        }
    };
    let mut lives = Vec::new();
    tokio::select! {
        biased;
        () = scene => {},
        never = processes(&stage, deaths, &tell, &mut lives) => match never {},
    }
    stage.check_family(session).await;
    drop(client);
    let lives = lives.iter().map(|(commits, watch)| Life {
        commits: lock(commits).clone(),
        effects: lock(&watch.effects).clone(),
        died: watch.link.is_dead(),
    });
    let lives = lives.collect();
    Played {
        stage,
        session,
        lives,
    }
}

/// Of each commit of a process, whether it was recovery's: it settled a claim, or took the one after it.
type Commits = Arc<Mutex<Vec<bool>>>;

fn lock<T>(shared: &Mutex<T>) -> MutexGuard<'_, T> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One process after the other, each for as long as it lives.
async fn processes(
    stage: &Stage,
    deaths: &[Death],
    tell: &watch::Sender<Address>,
    lives: &mut Vec<(Commits, Arc<Watch>)>,
) -> Infallible {
    loop {
        let death = deaths.get(lives.len()).copied();
        let commits = Commits::default();
        let host = stage.start_with(fates(death, Arc::clone(&commits)));
        let watch = Arc::new(Watch {
            link: Arc::clone(&host.link),
            dies: match death {
                Some(Death::BeforeEffect(n)) => Some((n, true)),
                Some(Death::AfterEffect(n)) => Some((n, false)),
                _ => None,
            },
            effects: Mutex::default(),
        });
        stage.plugins.watch(Arc::clone(&watch));
        lives.push((commits, watch));
        tell.send_replace(Some(Arc::clone(&host.node)));
        host.link.died().await;
        tell.send_replace(None);
        host.kill();
    }
}

fn fates(death: Option<Death>, commits: Commits) -> Fates {
    Box::new(move |commit, n| {
        let recovers = matches!(
            commit.write,
            Write::Recover { .. } | Write::Claim { resumed: true, .. }
        );
        lock(&commits).push(recovers);
        match death {
            Some(Death::BeforeCommit(at)) if at == n => Fate::DieBefore,
            Some(Death::AfterCommit(at)) if at == n => Fate::DieAfter,
            _ => Fate::Pass,
        }
    })
}
