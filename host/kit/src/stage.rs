//! A session on a store of its own, played from a prompt to its end, once whole and then again with
//! each commit as the place where the process is killed, taken over or interrupted.
//!
//! Session, input and clock are the same in every play, so that a plugin sees the same each time and
//! what differs in the end is the cut's doing.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use mainstay_core::config::{Agent, Config, Provider, Settings, SharedConfig, Toolbox};
use mainstay_core::event::{Delivery, EventBody, InputContent, SessionCreated, TurnOutcome};
use mainstay_core::history::{Approval, Ending, Item, ItemBody, ModelRef, Signal};
use mainstay_core::id::{InputId, Millis, Seq, SessionId};
use mainstay_core::invariant::{Check, Stored};
use mainstay_core::model::Part;
use mainstay_core::node::{Node, Ports};
use mainstay_core::plugin::{Condition, Kind};
use mainstay_core::port::{Clock, Dump, Store, SystemClock};
use mainstay_core::rebuild::Rows;
use mainstay_store::SqliteStore;
use uuid::Uuid;

use crate::Error;
use crate::bench::{ALIAS, Bench};
use crate::cast::{Cast, Script};
use crate::link::{Cut, Link};

/// How long a session may take to come to rest. Generous: past it the plugin is told to hang.
const PATIENCE: Duration = Duration::from_secs(60);
/// Waits of a session that are answered before it counts as one that never ends.
const WAITS: usize = 16;
/// Decisions that a turn may take.
const STEPS: u32 = 12;
/// Bytes of a file that are compared.
const FILE_BYTES: u64 = 16 << 20;

/// What is played.
#[derive(Clone)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    pub(crate) prompts: Vec<String>,
    pub(crate) script: Script,
    /// Between the first prompt and the last, the kit's own runner has the session.
    pub(crate) swap: bool,
    /// It has calls that act once, which a cut may leave with a verdict.
    pub(crate) acts: bool,
}

impl Scene {
    pub(crate) fn new(name: &'static str, script: Script) -> Self {
        Self {
            name,
            prompts: vec!["Do what is to be done.".to_owned()],
            script,
            swap: false,
            acts: false,
        }
    }
}

/// How one play ended.
#[derive(Clone, Debug, Default)]
pub(crate) struct Played {
    /// Commits of executions, for an uncut play.
    pub(crate) commits: usize,
    /// False where the play had ended before the place of the cut.
    pub(crate) reached: bool,
    pub(crate) items: Vec<Item>,
    /// How each turn ended.
    pub(crate) turns: Vec<TurnOutcome>,
    /// Files of the workspace.
    pub(crate) files: Files,
}

/// Files by path, with their bytes.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// What is done to a process at a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blow {
    KillBefore,
    KillAfter,
    TakeOver,
    Interrupt,
}

/// A blow and its commit, as the report names it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct At(pub(crate) Blow, pub(crate) usize);

impl fmt::Display for At {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let words = match self.0 {
            Blow::KillBefore => "killed before",
            Blow::KillAfter => "killed after",
            Blow::TakeOver => "taken over before",
            Blow::Interrupt => "interrupted before",
        };
        write!(f, "{words} commit {}", self.1)
    }
}

/// A wall clock that stands still beside a monotonic one that does not.
struct Still(SystemClock);

/// Its time.
const NOON: Millis = 1_700_000_000_000;

impl Clock for Still {
    fn wall(&self) -> Millis {
        NOON
    }

    fn monotonic(&self) -> Millis {
        self.0.monotonic()
    }
}

/// The session of every play.
pub(crate) fn session() -> SessionId {
    SessionId::derived(Uuid::nil(), "session")
}

struct Stage<'a> {
    bench: &'a Bench,
    cast: Arc<Cast>,
    scene: &'a Scene,
    file: std::path::PathBuf,
    /// What it is about, for whoever loses patience, and where that can be seen.
    doing: Mutex<(&'static str, Option<Arc<SqliteStore>>)>,
}

/// Why a play came to nothing: in words, for the report.
type Trouble = String;

/// Plays a scene. `Err` is the kit's own trouble, `Ok(Err)` the plugin's.
pub(crate) async fn play(
    bench: &Bench,
    cast: Cast,
    scene: &Scene,
    at: Option<At>,
) -> Result<Result<Played, Trouble>, Error> {
    let folder =
        tempfile::tempdir().map_err(|error| Error::new("make a temporary folder", error))?;
    let workspace = bench.workspace(session());
    let _ = std::fs::remove_dir_all(&workspace);
    crate::input::furnish(&workspace)
        .map_err(|error| Error::new("write a workspace's first files", error))?;
    let stage = Stage {
        bench,
        cast: Arc::new(cast),
        scene,
        file: folder.path().join("kit.db"),
        doing: Mutex::new(("begin", None)),
    };
    match tokio::time::timeout(PATIENCE, stage.play(at)).await {
        Ok(played) => played,
        Err(_) => {
            let (what, store) = stage.doing().clone();
            let stands = match store {
                Some(store) => stands(&store).await,
                None => "it has no log yet".to_owned(),
            };
            Ok(Err(format!(
                "the session did not come to rest within {} s; it was to {what}; {stands}",
                PATIENCE.as_secs(),
            )))
        }
    }
}

/// How far a session is that does not come to rest.
async fn stands(store: &SqliteStore) -> String {
    /// Nobody waits for a store that hangs itself.
    const WITHIN: Duration = Duration::from_secs(5);
    let dump = match tokio::time::timeout(WITHIN, store.dump(session())).await {
        Ok(Ok(dump)) => dump,
        Ok(Err(error)) => {
            return format!("its log cannot be read: {}", mainstay_core::chain(&error));
        }
        Err(_) => return "its log cannot be read: the store does not answer".to_owned(),
    };
    let last = match dump.events.last() {
        Some(event) => format!("its log ends with {} at seq {}", event.kind, event.seq),
        None => "its log is empty".to_owned(),
    };
    match &dump.claim {
        Some(claim) => format!("{last}, and execution {} has its claim", claim.execution),
        None => format!("{last}, and it has no claim"),
    }
}

fn trouble(error: impl Into<mainstay_core::BoxError>) -> Error {
    Error::new("play a session", error)
}

impl Stage<'_> {
    fn doing(&self) -> MutexGuard<'_, (&'static str, Option<Arc<SqliteStore>>)> {
        self.doing.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn now(&self, what: &'static str) {
        self.doing().0 = what;
    }

    async fn close(&self, store: &SqliteStore) {
        self.now("close the database");
        store.close().await;
    }

    async fn open(&self) -> Result<Arc<SqliteStore>, Error> {
        self.now("open the database");
        let options = mainstay_store::Options {
            clock: Arc::new(Still(SystemClock::default())),
            readers: 2,
            ..mainstay_store::Options::default()
        };
        let store = SqliteStore::open(&self.file, options).await;
        let store = Arc::new(store.map_err(trouble)?);
        self.doing().1 = Some(Arc::clone(&store));
        Ok(store)
    }

    /// A process over this store, which becomes the one whose commits the cast counts.
    fn start(&self, store: &Arc<SqliteStore>, cut: Option<Cut>) -> (Arc<Node>, Arc<Link>) {
        let link = Link::new(Arc::clone(store) as Arc<dyn Store>, cut);
        let ports = Ports {
            store: Arc::clone(&link) as _,
            plugins: Arc::clone(&self.cast) as _,
            clock: Arc::new(Still(SystemClock::default())),
        };
        let settings = Settings {
            poll_every: Duration::from_millis(10),
            retry_base: Duration::from_millis(1),
            retry_max: Duration::from_millis(5),
            cancel_grace: Duration::from_millis(200),
            // Far more than it takes: the number of commits must not depend on the machine.
            decide_within: Duration::from_secs(30),
            flush_every: Duration::from_secs(30),
            ..Settings::default()
        };
        let config = Arc::new(SharedConfig::new(self.config()));
        self.cast.count(&link);
        (Node::start(ports, settings, config), link)
    }

    fn config(&self) -> Config {
        let options = |kind| match kind == self.cast.info.kind {
            true => self.bench.options.options.clone(),
            false => None,
        };
        let agent = Agent {
            runner: ALIAS.to_owned(),
            model: ModelRef {
                provider: ALIAS.to_owned(),
                model: "kit".to_owned(),
            },
            toolboxes: vec![Toolbox {
                alias: ALIAS.to_owned(),
                options: options(Kind::Toolbox),
            }],
            options: options(Kind::Runner),
            steps: STEPS,
            ..Agent::default()
        };
        let provider = Provider {
            plugin: ALIAS.to_owned(),
            base_url: Some("http://kit.invalid/v1".to_owned()),
            options: options(Kind::Provider),
            models: Vec::new(),
        };
        Config {
            agents: BTreeMap::from([("default".to_owned(), agent)]),
            providers: BTreeMap::from([(ALIAS.to_owned(), provider)]),
        }
    }

    async fn play(&self, at: Option<At>) -> Result<Result<Played, Trouble>, Error> {
        let store = self.open().await?;
        let cut = at.map(|At(blow, n)| match blow {
            Blow::KillBefore => Cut::Before(n),
            Blow::KillAfter => Cut::After(n),
            Blow::TakeOver | Blow::Interrupt => Cut::Hold(n),
        });
        let (node, link) = self.start(&store, cut);
        let created = SessionCreated {
            agent: "default".to_owned(),
            ..SessionCreated::default()
        };
        node.create(session(), created).await.map_err(trouble)?;

        let Some(At(blow, _)) = at else {
            let came = self.perform(&node, 0).await?;
            let commits = link.commits();
            let played = self.dump(&node, came).await?;
            drop(node);
            self.close(&store).await;
            return Ok(played.map(|played| Played {
                commits,
                reached: true,
                ..played
            }));
        };

        self.now("play until the cut");
        let performing = self.perform(&node, 0);
        let (reached, came) = tokio::select! {
            biased;
            () = link.reached() => (true, None),
            came = performing => (link.has_reached().await, Some(came?)),
        };
        if let Some(came) = came
            && !reached
        {
            let played = self.dump(&node, came).await?;
            drop(node);
            self.close(&store).await;
            return Ok(played.map(|played| Played { reached, ..played }));
        }
        let (came, store, node) = match blow {
            Blow::KillBefore | Blow::KillAfter => {
                link.die();
                drop(node);
                self.close(&store).await;
                // Who takes the file's lock knows that its owner is gone.
                let store = self.open().await?;
                let (node, _) = self.start(&store, None);
                self.now("play on after a kill");
                (self.perform(&node, 0).await?, store, node)
            }
            Blow::TakeOver => {
                let (next, _) = self.start(&store, None);
                self.now("take the session over");
                next.take_over(session()).await.map_err(trouble)?;
                self.now("play on in another process");
                let came = self.perform(&next, 0).await?;
                // The first process awakes and must find that it is not its session any more.
                link.go_on();
                self.now("let the first process go on");
                link.passed().await;
                node.idle(session()).await.map_err(trouble)?;
                drop(node);
                (came, store, next)
            }
            Blow::Interrupt => {
                self.now("interrupt the session");
                node.interrupt(session()).await.map_err(trouble)?;
                link.go_on();
                node.idle(session()).await.map_err(trouble)?;
                self.now("play on after an interrupt");
                (self.perform(&node, 1).await?, store, node)
            }
        };
        let played = self.dump(&node, came).await?;
        drop(node);
        self.close(&store).await;
        Ok(played.map(|played| Played { reached, ..played }))
    }

    /// Sends the prompts, one when the one before is done with, and gives what the session needs. Sends
    /// each twice: a client that heard no answer does so. Picks up wherever an earlier process
    /// was; `round` tells prompts that are meant to be others.
    async fn perform(&self, node: &Arc<Node>, round: usize) -> Result<Result<(), Trouble>, Error> {
        for (n, prompt) in self.scene.prompts.iter().enumerate() {
            let last = n + 1 == self.scene.prompts.len();
            let swap = self.scene.swap && n > 0 && !last;
            self.cast.swapped.store(swap, Ordering::SeqCst);
            for _ in 0..2 {
                let input = InputId::derived(Uuid::nil(), &format!("prompt {round} {n}"));
                let parts = vec![Part::Text(prompt.clone())];
                let content = InputContent::Prompt { parts };
                node.admit(session(), input, Delivery::Queue, content)
                    .await
                    .map_err(trouble)?;
            }
            if let Err(trouble) = self.settle(node).await? {
                return Ok(Err(trouble));
            }
        }
        Ok(Ok(()))
    }

    /// Brings the session to rest, and ends its waits.
    async fn settle(&self, node: &Arc<Node>) -> Result<Result<(), Trouble>, Error> {
        for _ in 0..=WAITS {
            let tail = node.idle(session()).await.map_err(trouble)?;
            let Some(wait) = tail.session.wait.clone() else {
                return Ok(Ok(()));
            };
            self.end_wait(node, wait.step, &wait.until).await?;
        }
        Ok(Err(format!("after {WAITS} waits the turn waits again")))
    }

    async fn end_wait(
        &self,
        node: &Arc<Node>,
        step: Seq,
        until: &[Condition],
    ) -> Result<(), Error> {
        for condition in until {
            match condition {
                Condition::Approval(request) => {
                    let answer = Approval {
                        key: request.key.clone(),
                        approved: true,
                        reason: None,
                    };
                    return node.answer(session(), answer).await.map_err(trouble);
                }
                Condition::Signal(name) => {
                    let content = InputContent::Signal(Signal {
                        name: name.clone(),
                        data: "{}".to_owned(),
                    });
                    return self.steer(node, step, content).await;
                }
                Condition::Children(_) => {
                    // They run by themselves, here too.
                    while node
                        .tail(session())
                        .await
                        .map_err(trouble)?
                        .session
                        .wait
                        .as_ref()
                        .is_some_and(|wait| wait.until == until)
                    {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                    return Ok(());
                }
                Condition::Time(_) => {}
            }
        }
        // Time stands still here; a steer ends every wait.
        let parts = vec![Part::Text("Go on.".to_owned())];
        self.steer(node, step, InputContent::Prompt { parts }).await
    }

    async fn steer(&self, node: &Arc<Node>, step: Seq, content: InputContent) -> Result<(), Error> {
        let input = InputId::derived(Uuid::nil(), &format!("steer {step}"));
        let sent = node.admit(session(), input, Delivery::Steer, content).await;
        sent.map(drop).map_err(trouble)
    }

    /// What is in the store in the end, its invariants checked.
    async fn dump(
        &self,
        node: &Arc<Node>,
        came: Result<(), Trouble>,
    ) -> Result<Result<Played, Trouble>, Error> {
        if let Err(trouble) = came {
            return Ok(Err(trouble));
        }
        let dump = node.store().dump(session()).await.map_err(trouble)?;
        let mut turns = Vec::new();
        for record in &dump.events {
            let event = record.decode().map_err(trouble)?;
            if let EventBody::TurnEnded { outcome, .. } = event.body {
                turns.push(outcome);
            }
        }
        if let Some(broken) = broken_invariant(&dump) {
            return Ok(Err(broken));
        }
        Ok(Ok(Played {
            turns,
            files: files(&self.bench.workspace(session())),
            items: dump.items,
            ..Played::default()
        }))
    }
}

/// The first of the design's invariants that the session breaks.
fn broken_invariant(dump: &Dump) -> Option<String> {
    let mut check = Check::new();
    let mut rows = Rows::default();
    for record in &dump.events {
        check.take(record);
    }
    for item in &dump.items {
        let beside = rows
            .items
            .range((item.seq, 0)..=(item.seq, u32::MAX))
            .count();
        let place = u32::try_from(beside).unwrap_or(u32::MAX);
        rows.items.insert((item.seq, place), item.clone());
    }
    let inputs = dump.inputs.iter();
    rows.inputs = inputs.map(|input| (input.seq, input.clone())).collect();
    let steps = dump.steps.iter();
    rows.steps = steps.map(|step| (step.seq, step.clone())).collect();
    let calls = dump.calls.iter();
    rows.calls = calls
        .map(|call| ((call.step, call.id.clone()), call.clone()))
        .collect();
    let executions = dump.executions.iter();
    rows.executions = executions.map(|one| (one.id, one.clone())).collect();
    let findings = check.finish(&Stored {
        session: dump.session.clone(),
        claim: dump.claim.clone(),
        rows,
    });
    let broken = findings.broken.first()?;
    Some(format!(
        "the session breaks an invariant, {}: at {}: {}",
        broken.invariant.words(),
        broken.place,
        broken.what
    ))
}

/// All files below a folder.
pub(crate) fn files(folder: &Path) -> Files {
    let mut files = Files::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        let Ok(entries) = std::fs::read_dir(&next) else {
            continue;
        };
        for entry in entries.flatten() {
            let path = entry.path();
            let Ok(kind) = entry.file_type() else {
                continue;
            };
            if kind.is_dir() {
                folders.push(path);
                continue;
            }
            let name = path.strip_prefix(folder).unwrap_or(&path);
            let small = entry.metadata().is_ok_and(|meta| meta.len() <= FILE_BYTES);
            let bytes = match small {
                true => std::fs::read(&path).unwrap_or_default(),
                false => b"larger than is compared".to_vec(),
            };
            files.insert(name.to_string_lossy().into_owned(), bytes);
        }
    }
    files
}

/// In words how two workspaces differ; `None` where they do not.
pub(crate) fn difference(before: &Files, after: &Files) -> Option<String> {
    for (path, bytes) in after {
        match before.get(path) {
            None => return Some(format!("`{path}` is there and was not")),
            Some(old) if old != bytes => {
                return Some(format!(
                    "`{path}` has changed: it held {} and holds {}",
                    shown(old),
                    shown(bytes)
                ));
            }
            Some(_) => {}
        }
    }
    let gone = before.keys().find(|path| !after.contains_key(*path))?;
    Some(format!("`{gone}` is gone"))
}

fn shown(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let cut: String = text.chars().take(80).collect();
    format!("{cut:?}")
}

/// An item as plays are compared: without when and where in the log it was written.
pub(crate) fn line(item: &Item) -> String {
    let text = serde_json::to_string(&item.body);
    text.unwrap_or_else(|error| error.to_string())
}

/// The history as a cut must leave it: what recovery or an interrupt adds is left out.
pub(crate) fn lines(items: &[Item]) -> Vec<String> {
    items
        .iter()
        .filter(|item| match &item.body {
            ItemBody::Recovered(_) => false,
            ItemBody::Assistant(answer) => answer.ending != Ending::Interrupted,
            _ => true,
        })
        .map(line)
        .collect()
}
