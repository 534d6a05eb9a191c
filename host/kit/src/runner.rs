//! What a runner promises: one decision for one view, whatever was before, and a session that ends the
//! same wherever it is cut.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use mainstay_core::model::{Failure, FailureClass};
use mainstay_core::plugin::{Decision, GuestError, PluginInfo, Plugins as _, View, Workspace};
use mainstay_runtime::limits::Limits;
use mainstay_runtime::{ReusedRunner, Runtime};

use crate::bench::Bench;
use crate::cast::{Cast, Script, Watch, calls};
use crate::input::{self, Bulk};
use crate::report::{Finding, Property, Report};
use crate::stage::{self, Scene};
use crate::{Error, cuts};

pub(crate) async fn check(
    bench: &Bench,
    info: &Arc<PluginInfo>,
    report: &mut Report,
) -> Result<(), Error> {
    let scenes = scenes();
    let mut asked = Asked::new();
    let asks = |properties| bench.options.asks(properties);
    if asks(&[
        Property::NeverTraps,
        Property::DecidesAlike,
        Property::NoMemory,
        Property::ReadsItsState,
    ]) {
        // First what a session meets: a commit is easier to understand than an odd view.
        asked.in_sessions(bench, info, &scenes).await?;
        asked.by_views(bench, info).await;
    }
    report.add(asked.traps);
    report.add(asked.alike);
    report.add(asked.memory);
    report.add(asked.state);
    if asks(&[Property::SurvivesSwaps]) {
        report.add(swapped(bench, info, &scenes[1]).await?);
    }
    if asks(&[Property::WithinLimits]) {
        report.add(limits(bench, info).await?);
    }
    let make = |script: &Script| Cast::new(&bench.runtime, info, script.clone());
    for finding in cuts::check(bench, &scenes, &make).await? {
        report.add(finding);
    }
    Ok(())
}

/// What is found by asking for decisions.
struct Asked {
    traps: Finding,
    alike: Finding,
    memory: Finding,
    state: Finding,
}

impl Asked {
    fn new() -> Self {
        Self {
            traps: Finding::new(Property::NeverTraps),
            alike: Finding::new(Property::DecidesAlike),
            memory: Finding::new(Property::NoMemory),
            state: Finding::new(Property::ReadsItsState),
        }
    }

    /// The decisions of whole sessions.
    async fn in_sessions(
        &mut self,
        bench: &Bench,
        info: &Arc<PluginInfo>,
        scenes: &[Scene],
    ) -> Result<(), Error> {
        for scene in scenes {
            let watch = Arc::new(Watcher::new(bench, info));
            let mut cast = Cast::new(&bench.runtime, info, scene.script.clone());
            cast.watch = Some(Arc::clone(&watch) as _);
            let whole = stage::play(bench, cast, scene, None).await?;
            self.traps.case(scene.name, whole.map(drop));
            let watched = watch.seen();
            let last = watched.len();
            for (n, seen) in watched.into_iter().enumerate() {
                let at = format!(
                    "{}, decision {} of {last}, commit {}",
                    scene.name,
                    n + 1,
                    seen.commit
                );
                self.traps.case(&at, seen.answered);
                self.alike.case(&at, seen.alike);
                self.memory.case(&at, seen.memory);
                if let Some(read) = seen.state {
                    self.state.case(&at, read);
                }
            }
        }
        Ok(())
    }

    /// Views one by one, ordinary and odd.
    async fn by_views(&mut self, bench: &Bench, info: &Arc<PluginInfo>) {
        let views = input::views(info, bench.options.options.as_ref());
        let mut reused: Option<ReusedRunner> = None;
        for (name, bulk, view) in &views {
            let decided = bench.runtime.decide(&info.digest, view.clone()).await;
            self.traps
                .case(name, answered(*bulk, decided.as_ref().err()));
            if decided.is_err() {
                continue;
            }
            let again = bench.other.decide(&info.digest, view.clone()).await;
            self.alike.case(
                name,
                same("asked again, it decides otherwise", &decided, &again),
            );
            // One instance for them all.
            let mut runner = match reused.take() {
                Some(runner) => runner,
                None => match bench.runtime.reused_runner(&info.digest).await {
                    Ok(runner) => runner,
                    Err(_) => continue,
                },
            };
            let stale = runner.decide(view.clone()).await;
            self.memory.case(name, same(HELD, &decided, &stale));
            if stale.is_ok() {
                reused = Some(runner);
            }
        }
    }
}

/// The same scene with another runner in its middle.
async fn swapped(bench: &Bench, info: &Arc<PluginInfo>, scene: &Scene) -> Result<Finding, Error> {
    let mut swaps = Finding::new(Property::SurvivesSwaps);
    let mut swap = scene.clone();
    swap.name = "three prompts, the second with another runner";
    swap.prompts = ["first", "second", "third"].map(str::to_owned).to_vec();
    swap.swap = true;
    let kept = Arc::new(Keeper {
        runtime: Arc::clone(&bench.runtime),
        digest: info.digest.clone(),
        kept: tokio::sync::Mutex::default(),
        seen: Mutex::default(),
    });
    let mut cast = Cast::new(&bench.runtime, info, swap.script.clone());
    cast.watch = Some(Arc::clone(&kept) as _);
    let played = stage::play(bench, cast, &swap, None).await?;
    swaps.case(
        swap.name,
        played.and_then(|played| match played.turns.len() {
            3 if played.turns[0] == played.turns[2] => Ok(()),
            _ => Err(format!("its turns ended as {:?}", played.turns)),
        }),
    );
    for (at, went) in kept.seen() {
        swaps.case(at, went);
    }
    Ok(swaps)
}

const HELD: &str = "in an instance that was asked before, it decides otherwise than in a fresh one";

/// In what the host makes of a runner's refusal to read a state.
const ITS_STATE: &str = "decide: its state: ";

fn scenes() -> Vec<Scene> {
    let script = |rounds: &[&[&str]]| Script {
        rounds: rounds.iter().map(|round| calls(round)).collect(),
        fails: None,
    };
    let fails = Script {
        rounds: Vec::new(),
        fails: Some(Failure {
            class: FailureClass::InvalidRequest,
            message: "the server said no".to_owned(),
            retry_after_ms: None,
        }),
    };
    vec![
        Scene::new("a plain answer", script(&[])),
        // One call at a time: those of one round end in any order.
        Scene::new("two pure calls", script(&[&["look"], &["listen"]])),
        Scene {
            acts: true,
            ..Scene::new("calls that act", script(&[&["look", "put"], &["act"]]))
        },
        Scene::new("a model that fails", fails),
    ]
}

/// Whether a guest answered, or failed by a name.
pub(crate) fn answered(bulk: Bulk, error: Option<&GuestError>) -> Result<(), String> {
    match error {
        None | Some(GuestError::Refused(_)) => Ok(()),
        Some(GuestError::Limit(_)) if bulk == Bulk::Huge => Ok(()),
        Some(error) => Err(error.to_string()),
    }
}

fn same(
    words: &str,
    first: &Result<Decision, GuestError>,
    second: &Result<Decision, GuestError>,
) -> Result<(), String> {
    if first == second {
        return Ok(());
    }
    Err(format!(
        "{words}: {} and then {}",
        told(first),
        told(second)
    ))
}

fn told(decided: &Result<Decision, GuestError>) -> String {
    match decided {
        Ok(decision) => {
            let mut text = serde_json::to_string(decision).unwrap_or_default();
            if let Some(state) = &decision.state {
                text.push_str(" with the state ");
                text.push_str(&String::from_utf8_lossy(state));
            }
            text
        }
        Err(error) => error.to_string(),
    }
}

/// What was seen at one decision of a session.
struct Seen {
    commit: usize,
    answered: Result<(), String>,
    /// Whether it could read its own state, if it had one.
    state: Option<Result<(), String>>,
    alike: Result<(), String>,
    memory: Result<(), String>,
}

/// Asks every decision of a session again: in another process, and in one instance that lives as long
/// as the session.
struct Watcher {
    other: Arc<Runtime>,
    runtime: Arc<Runtime>,
    digest: String,
    reused: tokio::sync::Mutex<Option<ReusedRunner>>,
    seen: Mutex<Vec<Seen>>,
    began: AtomicUsize,
}

impl Watcher {
    fn new(bench: &Bench, info: &PluginInfo) -> Self {
        Self {
            other: Arc::clone(&bench.other),
            runtime: Arc::clone(&bench.runtime),
            digest: info.digest.clone(),
            reused: tokio::sync::Mutex::new(None),
            seen: Mutex::default(),
            began: AtomicUsize::new(0),
        }
    }

    fn seen(&self) -> Vec<Seen> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Watch for Watcher {
    async fn decided(&self, view: View, decision: &Result<Decision, GuestError>, commit: usize) {
        let again = self.other.decide(&self.digest, view.clone()).await;
        let state = view.state.as_ref().map(|_| match decision {
            Err(GuestError::Refused(text)) if text.contains(ITS_STATE) => Err(text.clone()),
            _ => Ok(()),
        });
        let mut reused = self.reused.lock().await;
        if reused.is_none() && self.began.fetch_add(1, Ordering::SeqCst) == 0 {
            *reused = self.runtime.reused_runner(&self.digest).await.ok();
        }
        let memory = match reused.as_mut() {
            Some(runner) => {
                let stale = runner.decide(view).await;
                if stale.is_err() {
                    // What trapped cannot be asked again.
                    *reused = None;
                }
                same(HELD, decision, &stale)
            }
            None => Ok(()),
        };
        drop(reused);
        self.seen
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push(Seen {
                commit,
                answered: answered(Bulk::Fits, decision.as_ref().err()),
                state,
                alike: same("asked again, it decides otherwise", decision, &again),
                memory,
            });
    }
}

type Kept = (View, Result<Decision, GuestError>);

/// At each decision of a session asks every earlier one again.
struct Keeper {
    runtime: Arc<Runtime>,
    digest: String,
    kept: tokio::sync::Mutex<Vec<Kept>>,
    seen: Mutex<Vec<(String, Result<(), String>)>>,
}

impl Keeper {
    fn seen(&self) -> Vec<(String, Result<(), String>)> {
        std::mem::take(&mut *self.seen.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

#[async_trait]
impl Watch for Keeper {
    async fn decided(&self, view: View, decision: &Result<Decision, GuestError>, commit: usize) {
        let mut kept = self.kept.lock().await;
        for (n, (view, decided)) in kept.iter().enumerate() {
            let again = self.runtime.decide(&self.digest, view.clone()).await;
            let at = format!("decision {}, asked again at commit {commit}", n + 1);
            let went = same("it decides otherwise", decided, &again);
            let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
            seen.push((at, went));
        }
        kept.push((view, decision.clone()));
    }
}

/// Under limits that leave it nothing, it must fail by their names.
async fn limits(bench: &Bench, info: &PluginInfo) -> Result<Finding, Error> {
    let mut finding = Finding::new(Property::WithinLimits);
    let mut memory = Limits::default();
    memory.runner.decide.memory_bytes = 64 << 10;
    let mut output = Limits::default();
    output.runner.decision_bytes = 1;
    let mut cpu = Limits::default();
    cpu.runner.decide.cpu = std::time::Duration::ZERO;
    let mut reading = Limits::default();
    reading.runner.history_bytes = 1;
    for (name, limits, must) in [
        ("64 KiB of memory", memory, false),
        ("a decision of 1 byte", output, true),
        ("no CPU time", cpu, false),
        ("1 byte of history", reading, false),
    ] {
        let runtime = bench.another(limits, Workspace::None)?;
        let views = input::views(info, bench.options.options.as_ref());
        let (_, _, view) = &views[0];
        let went = match runtime.decide(&info.digest, view.clone()).await {
            Err(GuestError::Limit(_) | GuestError::Refused(_)) => Ok(()),
            Ok(_) if !must => Ok(()),
            Ok(_) => Err("it decides all the same".to_owned()),
            Err(error) => Err(format!("it fails otherwise: {error}")),
        };
        finding.case(name, went);
    }
    Ok(finding)
}
