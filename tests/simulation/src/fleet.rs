//! Runs scripts, each in a process of its own, as many side by side as there are processors.

use std::io::{Read as _, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError, mpsc};
use std::time::{Duration, Instant};

use mainstay_test_simulation::broken::Defect;
use mainstay_test_simulation::play::{Failure, Outcome};
use mainstay_test_simulation::script::Script;

/// What a run may take by the wall clock. One that computes without end is ended long before by its
/// allowance of processor time.
const LONGEST: Duration = Duration::from_secs(300);

/// Plays a script in a process of its own. A run that does not end, or ends without a word, is a
/// failure of the run.
pub(crate) fn play(script: &Script, defect: Option<Defect>, verbose: bool) -> Outcome {
    match attempt(script, defect, verbose) {
        Ok(outcome) => outcome,
        Err(detail) => Outcome {
            failure: Some(Failure {
                invariant: "the_run_ends".into(),
                detail,
            }),
            digest: 0,
            commits: 0,
            events: std::collections::BTreeMap::new(),
            simulated_ms: 0,
            timeline: Vec::new(),
        },
    }
}

fn attempt(script: &Script, defect: Option<Defect>, verbose: bool) -> Result<Outcome, String> {
    let program = std::env::current_exe().map_err(|cause| cause.to_string())?;
    let mut command = Command::new(program);
    command
        .arg("--play")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    if let Some(defect) = defect {
        command.args(["--defect", defect.name()]);
    }
    if verbose {
        command.arg("--verbose");
    } else {
        command.stderr(Stdio::null());
    }
    let mut child = command.spawn().map_err(|cause| cause.to_string())?;
    let text = serde_json::to_vec(script).expect("a script is plain data");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(&text).map_err(|cause| cause.to_string())?;
    drop(stdin);
    let answer = read(&mut child)?;
    serde_json::from_slice(&answer).map_err(|cause| format!("the run gave no outcome: {cause}"))
}

/// All that the child says until it ends.
fn read(child: &mut Child) -> Result<Vec<u8>, String> {
    let mut stdout = child.stdout.take().expect("it is piped");
    let (sender, answer) = mpsc::channel();
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        let read = stdout.read_to_end(&mut bytes);
        // Nobody waits any more for one that was too slow.
        let _ = sender.send(read.map(|_| bytes));
    });
    let answer = answer.recv_timeout(LONGEST);
    if answer.is_err() {
        // It may have ended by itself meanwhile.
        let _ = child.kill();
    }
    let ended = child.wait().map_err(|cause| cause.to_string())?;
    match answer {
        Ok(Ok(bytes)) if ended.success() => Ok(bytes),
        Ok(Ok(_)) => Err(format!("the run ended with {ended}")),
        Ok(Err(cause)) => Err(cause.to_string()),
        Err(_) => Err(format!("the run took more than {} s", LONGEST.as_secs())),
    }
}

/// Which seeds to run, and for how long.
pub(crate) struct Plan {
    pub(crate) from: u64,
    pub(crate) seeds: Option<u64>,
    pub(crate) until: Option<Instant>,
    pub(crate) jobs: usize,
    pub(crate) defect: Option<Defect>,
}

/// Runs seeds in order of their numbers, and gives each outcome to `done` in the order in which they
/// end. Ends early once `done` says false.
pub(crate) fn run(
    plan: &Plan,
    script: impl Fn(u64) -> Script + Sync,
    done: impl FnMut(u64, Outcome) -> bool + Send,
) {
    let next = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let done = Mutex::new(done);
    std::thread::scope(|scope| {
        for _ in 0..plan.jobs {
            scope.spawn(|| {
                while !stop.load(Ordering::SeqCst)
                    && plan.until.is_none_or(|until| Instant::now() < until)
                {
                    let n = next.fetch_add(1, Ordering::SeqCst);
                    if plan.seeds.is_some_and(|seeds| n >= seeds) {
                        return;
                    }
                    let seed = plan.from.wrapping_add(n);
                    let outcome = play(&script(seed), plan.defect, false);
                    let mut done = done.lock().unwrap_or_else(PoisonError::into_inner);
                    if !done(seed, outcome) {
                        stop.store(true, Ordering::SeqCst);
                    }
                }
            });
        }
    });
}
