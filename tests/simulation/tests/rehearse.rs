//! Another runner is asked for recorded decisions. What it would do and the host would not is held
//! against it; what nobody can tell here, because this host lacks what the session had, is not.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use mainstay_core::config::Config;
use mainstay_core::history::ModelRef;
use mainstay_core::plugin::{Action, Decision, GuestError, Plugins as _, ToolSet, View};
use mainstay_core::rehearse::{Rehearsal, Report};
use mainstay_test_simulation::plugins::{Scripted, plain_loop, say};
use mainstay_test_simulation::world::{World, config};

/// What the runner does that is asked now.
const SAME: u32 = 0;
const WITHOUT_TOOLS: u32 = 1;
const ANOTHER_MODEL: u32 = 2;
const TRAP: u32 = 3;

fn decide(way: u32, view: &View) -> Result<Decision, GuestError> {
    if way == TRAP {
        return Err(GuestError::Trap(
            "runner new@sha256:0123456789ab: decide trapped".into(),
        ));
    }
    let mut decision = plain_loop(view)?;
    if let Action::CallModel(call) = &mut decision.action {
        match way {
            WITHOUT_TOOLS => call.tools = ToolSet::Only(Vec::new()),
            ANOTHER_MODEL => {
                call.model = Some(ModelRef {
                    provider: "nowhere".into(),
                    model: "m".into(),
                });
            }
            _ => {}
        }
    }
    Ok(decision)
}

async fn rehearse(way: u32, config: Config) -> Report {
    let now = Arc::new(AtomicU32::new(SAME));
    let world = World::new(Scripted::with_runner(
        {
            let now = Arc::clone(&now);
            move |view| decide(now.load(Ordering::SeqCst), view)
        },
        |_, _| say("done"),
    ));
    let (_process, session) = world.begin("go").await;
    world.idle(session).await;
    now.store(way, Ordering::SeqCst);
    let runner = world.plugins.info("runner-digest").await.unwrap();
    let rehearsal = Rehearsal {
        plugins: Arc::clone(&world.plugins) as _,
        config: Arc::new(config),
        store: Arc::clone(&world.store),
        runner: runner.unwrap(),
        own: false,
    };
    rehearsal.session(session).await.unwrap()
}

/// Without any provider.
fn bare() -> Config {
    Config {
        providers: BTreeMap::new(),
        ..config()
    }
}

#[tokio::test]
async fn what_the_host_would_refuse_is_the_runners_fault_by_its_decision_alone() {
    for (way, config, refused) in [
        (WITHOUT_TOOLS, config(), None),
        (
            ANOTHER_MODEL,
            config(),
            Some("\"nowhere\" is not configured"),
        ),
        (ANOTHER_MODEL, bare(), Some("\"nowhere\" is not configured")),
        // The agent's own model: any runner's request would meet the same.
        (WITHOUT_TOOLS, bare(), None),
    ] {
        let lacking = config.providers.is_empty() && way == WITHOUT_TOOLS;
        let report = rehearse(way, config).await;
        assert_eq!(report.different().count(), 1, "{report:?}");
        let difference = report.decisions[0].difference.as_ref().unwrap();
        match (&difference.refused, refused) {
            (Some(told), Some(words)) => assert!(told.contains(words), "{told}"),
            (told, words) => assert_eq!((told.as_deref(), words), (None, None), "way {way}"),
        }
        let told = |note: &String| note.contains("\"parrot\" is not configured");
        assert_eq!(report.notes.iter().any(told), lacking, "{:?}", report.notes);
    }
}

#[tokio::test]
async fn a_runner_that_fails_now_is_told_by_its_failure() {
    let report = rehearse(TRAP, bare()).await;
    let difference = report.decisions[0].difference.as_ref().unwrap();
    assert_eq!(difference.new["failed"], "decide trapped");
    assert_eq!(difference.refused, None);
}

#[tokio::test]
async fn the_same_decisions_need_no_judge() {
    let report = rehearse(SAME, bare()).await;
    assert_eq!(report.different().count(), 0, "{report:?}");
    assert!(report.notes.is_empty(), "{:?}", report.notes);
}
