//! The simulation over a fixed number of seeds, and the proof that it would notice: runs over stores
//! that break their promise.

use std::path::PathBuf;
use std::process::{Command, Output};

use mainstay_test_simulation::broken::Defect;

/// Takes about a minute on two processors.
const SEEDS: u32 = 600;

/// What the seeds must lead to at least once, or they no longer show what they are there for.
const REACHED: [&str; 23] = [
    "call.held",
    "call.settled",
    "call.started",
    "context.compacted",
    "execution.failed",
    "execution.interrupted",
    "execution.suspended",
    "history.forked",
    "history.reverted",
    "input.cancelled",
    "input.redelivered",
    "inputs.woken",
    "interrupt.requested",
    "notice.delivered",
    "recovery.recorded",
    "retry.scheduled",
    "revert.committed",
    "runner.answered",
    "session.cancelled",
    "session.quarantined",
    "session.released",
    "step.output",
    "step.recovered",
];

struct Simulation {
    files: tempfile::TempDir,
}

impl Simulation {
    fn new() -> Self {
        Self {
            files: tempfile::tempdir().expect("a folder for scripts"),
        }
    }

    fn run(&self, arguments: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_mainstay-test-simulation"))
            .args(arguments)
            .env("TMPDIR", self.files.path())
            .output()
            .expect("the simulation starts")
    }

    /// The script that a failing run has left.
    fn script(&self) -> Option<PathBuf> {
        let mut files = std::fs::read_dir(self.files.path()).expect("the folder is there");
        files.next().map(|file| file.expect("a file").path())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn simulation_seeds() {
    let seeds = SEEDS.to_string();
    let output = Simulation::new().run(&["--seeds", &seeds]);
    let (found, progress) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{found}\n{progress}");
    for kind in REACHED {
        assert!(
            found.lines().any(|line| line.trim().ends_with(kind)),
            "no {kind} in {SEEDS} seeds:\n{found}"
        );
    }
}

#[test]
fn a_seed_gives_the_same_run_to_the_byte() {
    let simulation = Simulation::new();
    for seed in 1..=12 {
        let seed = seed.to_string();
        let run = || simulation.run(&["--seed", &seed, "--tries", "0"]);
        let first = run();
        assert!(!first.stdout.is_empty());
        assert_eq!(text(&first.stdout), text(&run().stdout), "seed {seed}");
    }
}

#[test]
fn every_defect_is_named_and_its_script_made_small() {
    let cases: [(Defect, &[&str]); 11] = [
        (
            Defect::IgnoresTheFence,
            &["every_event_is_written_by_right"],
        ),
        (
            Defect::IgnoresInterrupts,
            &["nothing_begins_after_an_interrupt_or_cancel"],
        ),
        (
            Defect::LosesWriteAheads,
            &["a_call_that_acts_is_written_ahead"],
        ),
        (Defect::LeavesAGap, &["seqs_have_no_gap_and_no_repeat"]),
        (
            Defect::AdmitsAgain,
            &["a_retry_is_answered_as_the_first_was"],
        ),
        (
            Defect::ForgetsAdmissions,
            &["what_was_told_durable_is_there"],
        ),
        (Defect::IgnoresWakes, &["nothing_admitted_is_left_behind"]),
        (
            Defect::LosesResults,
            &[
                "a_call_has_one_result_and_none_before_it",
                "a_once_effect_happens_once",
                // What cannot be settled is put aside, whatever is pending there.
                "nothing_admitted_is_left_behind",
            ],
        ),
        (
            Defect::PromotesTwice,
            &["an_input_is_pending_or_promoted_once_or_cancelled"],
        ),
        (Defect::Miscounts, &["rows_follow_from_the_log"]),
        (Defect::Panics, &["nothing_panics"]),
    ];
    assert_eq!(cases.len(), Defect::ALL.len());
    for (defect, names) in cases {
        let simulation = Simulation::new();
        let with = ["--defect", defect.name()];
        let output = simulation.run(&[&["--seeds", "400", "--tries", "150"], &with[..]].concat());
        let found = text(&output.stdout);
        assert_eq!(output.status.code(), Some(1), "{defect:?}: {found}");
        let file = simulation.script().expect("a failure leaves its script");
        let name = names.iter().find(|name| found.contains(*name));
        let name = name.unwrap_or_else(|| panic!("{defect:?}: {found}"));

        let script = std::fs::read(&file).expect("it can be read");
        let script: serde_json::Value = serde_json::from_slice(&script).expect("it is JSON");
        let actions = script["actions"].as_array().expect("a list").len();
        assert!(actions <= 6, "{defect:?} takes {actions} actions: {script}");

        // The script fails by itself, for the same reason, and because of the defect.
        let file = file.to_str().expect("a name in UTF-8");
        let again = simulation.run(&[&["--script", file], &with[..]].concat());
        assert_eq!(again.status.code(), Some(1), "{defect:?}");
        assert!(text(&again.stdout).contains(name), "{defect:?}");
        let without = simulation.run(&["--script", file]);
        assert_eq!(
            without.status.code(),
            Some(0),
            "{defect:?}: {}",
            text(&without.stdout)
        );
    }
}
