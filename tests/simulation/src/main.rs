//! Runs the simulation over seeds, or again over one seed or one script; makes a failing script
//! smaller. Progress goes to stderr, what was found to stdout. Ends with 0 if all holds, with 1 if
//! something does not, with 2 if it was called wrongly.

mod entropy;
mod fleet;

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Read as _, Write as _};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use mainstay_test_simulation::broken::Defect;
use mainstay_test_simulation::generate;
use mainstay_test_simulation::play::{self, Failure, Outcome};
use mainstay_test_simulation::script::Script;
use mainstay_test_simulation::shrink::shrink;

/// Simulates many nodes over one store, and judges them after every commit.
#[derive(Parser)]
#[command(name = "mainstay-test-simulation")]
struct Arguments {
    /// Run so many seeds.
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,
    /// Begin with this seed.
    #[arg(long, value_name = "SEED", default_value_t = 1)]
    from: u64,
    /// Run seeds for so many minutes.
    #[arg(long, value_name = "M", conflicts_with = "seeds")]
    minutes: Option<f64>,
    /// Run one seed and print what happened.
    #[arg(long, value_name = "SEED", conflicts_with_all = ["seeds", "minutes", "script"])]
    seed: Option<u64>,
    /// Run one script, as a failure leaves it, and print what happened.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["seeds", "minutes"])]
    script: Option<PathBuf>,
    /// Go on after a failure; in the end tell of each that differs in its invariant.
    #[arg(long)]
    keep_going: bool,
    /// Runs that making a failing script smaller may take.
    #[arg(long, value_name = "N", default_value_t = 400)]
    tries: usize,
    /// Runs side by side; by default as many as there are processors.
    #[arg(long, value_name = "N")]
    jobs: Option<usize>,
    /// With one seed or script: the nodes' own log lines too.
    #[arg(long, short)]
    verbose: bool,
    /// Simulate over a store that breaks its promise, to see it found.
    #[arg(long, value_name = "DEFECT")]
    defect: Option<Defect>,
    /// Plays the script on stdin in this process and prints its outcome.
    #[arg(long, hide = true)]
    play: bool,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if arguments.play {
        return play_here(&arguments);
    }
    if let Some(path) = &arguments.script {
        let script = std::fs::read(path)
            .map_err(|cause| cause.to_string())
            .and_then(|text| serde_json::from_slice(&text).map_err(|cause| cause.to_string()));
        return match script {
            Ok(script) => one(&arguments, &script, true),
            Err(cause) => {
                eprintln!("error: {} is no script: {cause}", path.display());
                ExitCode::from(2)
            }
        };
    }
    if let Some(seed) = arguments.seed {
        return one(&arguments, &generate::script(seed), false);
    }
    if arguments.seeds.is_none() && arguments.minutes.is_none() {
        eprintln!("error: say --seeds N, --minutes M, --seed SEED or --script FILE");
        return ExitCode::from(2);
    }
    many(&arguments)
}

/// Plays the script on stdin.
fn play_here(arguments: &Arguments) -> ExitCode {
    let mut text = Vec::new();
    let script: Script = match std::io::stdin()
        .read_to_end(&mut text)
        .map_err(|cause| cause.to_string())
        .and_then(|_| serde_json::from_slice(&text).map_err(|cause| cause.to_string()))
    {
        Ok(script) => script,
        Err(cause) => {
            eprintln!("error: no script on stdin: {cause}");
            return ExitCode::from(2);
        }
    };
    if arguments.verbose {
        tracing_subscriber::fmt()
            .with_writer(std::io::stderr)
            .with_max_level(tracing_subscriber::filter::LevelFilter::DEBUG)
            .without_time()
            .init();
    }
    let defect = arguments.defect;
    entropy::seize(script.seed);
    // A thread of its own: what a thread draws once for all its hash maps is drawn from the seed.
    let run = std::thread::Builder::new()
        .stack_size(16 << 20)
        .spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .start_paused(true)
                .build()
                .expect("a runtime without I/O needs nothing of the system");
            runtime.block_on(play::play(script, defect))
        });
    let outcome = match run.map(std::thread::JoinHandle::join) {
        Ok(Ok(outcome)) => outcome,
        Ok(Err(_)) => {
            eprintln!("error: the run panicked");
            return ExitCode::FAILURE;
        }
        Err(cause) => {
            eprintln!("error: no thread for the run: {cause}");
            return ExitCode::FAILURE;
        }
    };
    let text = serde_json::to_vec(&outcome).expect("an outcome is plain data");
    if std::io::stdout().write_all(&text).is_err() {
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

/// Runs one script and prints all that happened.
fn one(arguments: &Arguments, script: &Script, from_file: bool) -> ExitCode {
    let outcome = fleet::play(script, arguments.defect, arguments.verbose);
    for line in &outcome.timeline {
        println!("{line}");
    }
    println!(
        "{} commits, {} events, {:.1} s of simulated time, digest {:016x}",
        outcome.commits,
        outcome.events.values().sum::<u64>(),
        Duration::from_millis(outcome.simulated_ms).as_secs_f64(),
        outcome.digest
    );
    match &outcome.failure {
        None => ExitCode::SUCCESS,
        Some(failure) => {
            println!("{}: {}", failure.invariant, failure.detail);
            if !from_file {
                tell(arguments, script, failure);
            }
            ExitCode::FAILURE
        }
    }
}

/// Runs seeds.
fn many(arguments: &Arguments) -> ExitCode {
    let began = Instant::now();
    let plan = fleet::Plan {
        from: arguments.from,
        seeds: arguments.seeds,
        until: arguments
            .minutes
            .map(|minutes| began + Duration::from_secs_f64(minutes.max(0.0) * 60.0)),
        jobs: arguments.jobs.unwrap_or_else(|| {
            std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
        }),
        defect: arguments.defect,
    };
    let mut sums = Sums::default();
    let mut failures: BTreeMap<String, (u64, u64, Failure)> = BTreeMap::new();
    let mut told = began;
    let every = if std::io::stderr().is_terminal() {
        Duration::from_millis(500)
    } else {
        Duration::from_secs(10)
    };
    fleet::run(&plan, generate::script, |seed, outcome| {
        sums.add(&outcome);
        let found = outcome.failure.is_some();
        if let Some(failure) = outcome.failure {
            eprintln!("seed {seed}: {}", failure.invariant);
            let known = failures
                .entry(failure.invariant.clone())
                .or_insert((0, seed, failure));
            known.0 += 1;
        }
        if told.elapsed() >= every {
            told = Instant::now();
            eprintln!("{}", sums.progress(began.elapsed(), arguments.seeds));
        }
        arguments.keep_going || !found
    });
    eprintln!("{}", sums.progress(began.elapsed(), arguments.seeds));
    for (kind, count) in &sums.events {
        println!("{count:>9} {kind}");
    }
    for (count, seed, failure) in failures.values() {
        println!("\n{count} × {}: {}", failure.invariant, failure.detail);
        tell(arguments, &generate::script(*seed), failure);
    }
    if failures.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

#[derive(Default)]
struct Sums {
    runs: u64,
    failed: u64,
    commits: u64,
    events: BTreeMap<String, u64>,
    simulated: Duration,
}

impl Sums {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.failed += u64::from(outcome.failure.is_some());
        self.commits += outcome.commits;
        self.simulated += Duration::from_millis(outcome.simulated_ms);
        for (kind, count) in &outcome.events {
            *self.events.entry(kind.clone()).or_default() += count;
        }
    }

    fn progress(&self, since: Duration, of: Option<u64>) -> String {
        let of = of.map_or_else(String::new, |of| format!(" of {of}"));
        let rate = self.runs as f64 / since.as_secs_f64().max(0.001);
        format!(
            "{}{of} seeds, {} failed, {rate:.1} seeds/s, {} commits, {:.1} h simulated in {:.0} s",
            self.runs,
            self.failed,
            self.commits,
            self.simulated.as_secs_f64() / 3_600.0,
            since.as_secs_f64()
        )
    }
}

/// Makes a failing script smaller, keeps it in a file and says how to play it again.
fn tell(arguments: &Arguments, script: &Script, failure: &Failure) {
    let began = Instant::now();
    let mut told = began;
    let mut runs = 0;
    let whole = script.actions.len();
    let small = shrink(script.clone(), arguments.tries, |candidate| {
        runs += 1;
        if told.elapsed() >= Duration::from_secs(5) {
            told = Instant::now();
            let rate = f64::from(runs) / began.elapsed().as_secs_f64();
            eprintln!("made smaller: {runs} runs, {rate:.1} a second");
        }
        let outcome = fleet::play(candidate, arguments.defect, false);
        outcome
            .failure
            .is_some_and(|found| found.invariant == failure.invariant)
    });
    let text = serde_json::to_string_pretty(&small).expect("a script is plain data");
    let name = format!(
        "mainstay-simulation-{}-{}.json",
        failure.invariant, script.seed
    );
    let path = std::env::temp_dir().join(name);
    let defect = arguments
        .defect
        .map_or_else(String::new, |defect| format!(" --defect {}", defect.name()));
    let again = "cargo run -p mainstay-test-simulation --";
    println!(
        "seed {}: {} of {whole} actions are left\n{text}",
        script.seed,
        small.actions.len()
    );
    let last = fleet::play(&small, arguments.defect, false);
    for line in &last.timeline {
        println!("{line}");
    }
    if let Some(failure) = &last.failure {
        println!("{}: {}", failure.invariant, failure.detail);
    }
    println!(
        "to play the seed again:   {again} --seed {}{defect}",
        script.seed
    );
    match std::fs::write(&path, text) {
        Ok(()) => println!(
            "to play what is left of it: {again} --script {}{defect}",
            path.display()
        ),
        Err(cause) => eprintln!("error: could not write {}: {cause}", path.display()),
    }
}
