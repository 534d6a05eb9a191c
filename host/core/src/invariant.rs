//! The design's invariants, and a check of one session's events and rows against those that a database
//! can show. The check takes the log event by event, so that it needs the memory of one session's rows
//! and not of its log.

use std::collections::{BTreeMap, HashMap};
use std::fmt::{self, Display};

use serde::{Serialize, Serializer};

use crate::claim::Claim;
use crate::event::{DecodeError, Event, EventBody, Piece, Record};
use crate::id::{ExecutionId, InputId, Seq};
use crate::model::Effect;
use crate::plugin::Action;
use crate::rebuild::{Rebuild, Rows};
use crate::stub;
use crate::tail::{CallStatus, InputStatus, Session};

/// Findings of one invariant in one session that are told; more are counted.
const TOLD: usize = 20;

/// What must hold whatever happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Invariant {
    OneLiveExecution = 1,
    WrittenUnderClaim,
    SeqsWithoutGap,
    OneTerminal,
    OneResult,
    InputsHaveOneFate,
    OnceStartsOnce,
    RowsFollowFromLog,
    ToldIsDurable,
    NoSecrets,
}

impl Invariant {
    pub const ALL: [Self; 10] = [
        Self::OneLiveExecution,
        Self::WrittenUnderClaim,
        Self::SeqsWithoutGap,
        Self::OneTerminal,
        Self::OneResult,
        Self::InputsHaveOneFate,
        Self::OnceStartsOnce,
        Self::RowsFollowFromLog,
        Self::ToldIsDurable,
        Self::NoSecrets,
    ];

    /// Its number in the design.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The design's words for it.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::OneLiveExecution => "at most one live execution per session",
            Self::WrittenUnderClaim => {
                "every event that names an execution was written while that execution's claim held"
            }
            Self::SeqsWithoutGap => "seqs have no gap and no repeat",
            Self::OneTerminal => "exactly one terminal per execution",
            Self::OneResult => "exactly one result per tool call, and none before its call",
            Self::InputsHaveOneFate => {
                "every admitted input is pending, promoted once, or cancelled"
            }
            Self::OnceStartsOnce => "a once effect starts at most once",
            Self::RowsFollowFromLog => {
                "rebuilding all projections from the log gives the same rows"
            }
            Self::ToldIsDurable => "what a client was told is durable is still there after a kill",
            Self::NoSecrets => "no secret is in the log, in a guest's memory or in a log line",
        }
    }

    /// Whether a database by itself can show that it is broken.
    #[must_use]
    pub fn is_shown_by_a_database(self) -> bool {
        !matches!(self, Self::ToldIsDurable | Self::NoSecrets)
    }
}

/// Where it shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// An event.
    Seq(Seq),
    /// A table and the key in it, `input 01890…` for example.
    Row(String),
}

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Seq(seq) => write!(f, "seq {seq}"),
            Self::Row(row) => write!(f, "row {row}"),
        }
    }
}

impl Serialize for Place {
    /// `{"seq": 3}` or `{"row": "input …"}`.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        #[derive(Serialize)]
        #[serde(rename_all = "snake_case")]
        enum Named<'a> {
            Seq(Seq),
            Row(&'a str),
        }
        match self {
            Self::Seq(seq) => Named::Seq(*seq).serialize(serializer),
            Self::Row(row) => Named::Row(row).serialize(serializer),
        }
    }
}

/// One breach of one invariant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Broken {
    pub invariant: Invariant,
    pub place: Place,
    /// In words.
    pub what: String,
}

/// A session's rows as a store holds them.
#[derive(Clone, Debug, Default)]
pub struct Stored {
    pub session: Option<Session>,
    pub claim: Option<Claim>,
    pub rows: Rows,
}

/// What a check has found in one session.
#[derive(Clone, Debug, Default)]
pub struct Findings {
    /// Some of each invariant.
    pub broken: Vec<Broken>,
    /// All of each invariant.
    pub counts: BTreeMap<Invariant, u64>,
    /// Events of types or versions that this build does not know. Rows are not compared then.
    pub unknown: u64,
}

impl Findings {
    /// Adds one.
    pub fn add(&mut self, invariant: Invariant, place: Place, what: impl Into<String>) {
        let count = self.counts.entry(invariant).or_default();
        *count += 1;
        if *count <= TOLD as u64 {
            let what = what.into();
            self.broken.push(Broken {
                invariant,
                place,
                what,
            });
        }
    }
}

/// The check of one session.
pub struct Check {
    findings: Findings,
    last: Option<Seq>,
    /// Executions without a terminal, and the seqs of their starts.
    open: BTreeMap<ExecutionId, Seq>,
    /// Executions with their terminal.
    ended: HashMap<ExecutionId, Seq>,
    calls: BTreeMap<(Seq, String), Made>,
    /// Starts of calls that act once.
    once: HashMap<(Seq, String), Seq>,
    inputs: HashMap<InputId, (InputStatus, Seq)>,
    rebuild: Option<Rebuild>,
    /// The rebuild has met an event that it cannot take.
    stuck: bool,
}

/// A tool call.
#[derive(Clone, Copy, Default)]
struct Made {
    results: u32,
    /// Its turn is over.
    closed: bool,
}

impl Default for Check {
    fn default() -> Self {
        Self::new()
    }
}

impl Check {
    #[must_use]
    pub fn new() -> Self {
        Self {
            findings: Findings::default(),
            last: None,
            open: BTreeMap::new(),
            ended: HashMap::new(),
            calls: BTreeMap::new(),
            once: HashMap::new(),
            inputs: HashMap::new(),
            rebuild: None,
            stuck: false,
        }
    }

    /// Seq of the last event that was taken, 0 before the first.
    #[must_use]
    pub fn last(&self) -> Seq {
        self.last.unwrap_or(0)
    }

    /// Reports what was found besides.
    pub fn broken(&mut self, invariant: Invariant, place: Place, what: impl Into<String>) {
        self.findings.add(invariant, place, what);
    }

    /// Reports an event, or rows, that could not be read at all.
    pub fn unreadable(&mut self, place: Place, cause: &str) {
        self.stuck = true;
        self.broken(
            Invariant::RowsFollowFromLog,
            place,
            format!("cannot be read: {cause}"),
        );
    }

    /// An event that could not be read stands here.
    pub fn skip(&mut self, seq: Seq, cause: &str) {
        self.follow(seq);
        self.unreadable(Place::Seq(seq), cause);
    }

    /// Takes the next event of the log, in the order of seqs.
    pub fn take(&mut self, record: &Record) {
        self.follow(record.seq);
        if let Some(writer) = record.execution {
            let starts = record.kind == "execution.started";
            if !starts && !self.open.contains_key(&writer) {
                let what = match self.ended.get(&writer) {
                    Some(end) => format!(
                        "{} was written by execution {writer}, which had ended at seq {end}",
                        record.kind
                    ),
                    None => format!(
                        "{} was written by execution {writer}, which had not started",
                        record.kind
                    ),
                };
                self.broken(Invariant::WrittenUnderClaim, Place::Seq(record.seq), what);
            }
        }
        match record.decode() {
            Ok(event) => {
                self.event(&event);
                self.project(&event);
            }
            Err(DecodeError::Unknown { .. }) => self.findings.unknown += 1,
            Err(error @ DecodeError::Damaged { .. }) => {
                self.unreadable(Place::Seq(record.seq), &error.to_string());
            }
        }
    }

    /// Ends the check with the session's rows, which must be as of the last event that was taken.
    #[must_use]
    pub fn finish(mut self, stored: &Stored) -> Findings {
        self.compare_head(stored);
        self.compare_executions(stored);
        self.compare_inputs(stored);
        self.compare_results(stored);
        self.compare_rows(stored);
        self.findings
    }

    fn follow(&mut self, seq: Seq) {
        let next = self.last() + 1;
        if seq != next {
            let what = if seq < next {
                format!("stands again where {next} should follow")
            } else {
                format!("follows {}: {next} is missing", next - 1)
            };
            self.broken(Invariant::SeqsWithoutGap, Place::Seq(seq), what);
        }
        self.last = Some(seq);
    }

    fn event(&mut self, event: &Event) {
        let seq = event.seq;
        let here = || Place::Seq(seq);
        match &event.body {
            EventBody::ExecutionStarted { execution, .. } => {
                if let Some((live, since)) = self.open.first_key_value() {
                    let what = format!(
                        "execution {execution} starts while execution {live} lives since seq {since}"
                    );
                    self.broken(Invariant::OneLiveExecution, here(), what);
                }
                self.open.insert(*execution, seq);
            }
            EventBody::InputAdmitted { input, .. } => {
                let before = self.inputs.insert(*input, (InputStatus::Pending, seq));
                if let Some((_, at)) = before {
                    let what = format!("input {input} was admitted already at seq {at}");
                    self.broken(Invariant::InputsHaveOneFate, here(), what);
                }
            }
            EventBody::InputPromoted { input } => self.fate(*input, InputStatus::Promoted, seq),
            EventBody::InputCancelled { input } => self.fate(*input, InputStatus::Cancelled, seq),
            EventBody::StepStarted(started) => {
                if let Action::CallTools(calls) = &started.action {
                    for call in calls {
                        self.calls.entry((seq, call.id.clone())).or_default();
                    }
                }
            }
            EventBody::StepOutput { step, pieces } => {
                for piece in pieces {
                    match piece {
                        Piece::Call { id, .. } => {
                            self.calls.entry((*step, id.clone())).or_default();
                        }
                        Piece::HostedCall(call) => {
                            self.calls.entry((*step, call.id.clone())).or_default();
                        }
                        Piece::HostedResult(result) => self.result(*step, &result.call, seq),
                        _ => {}
                    }
                }
            }
            EventBody::CallStarted {
                step,
                call,
                effect: Effect::Once,
                ..
            } => {
                let key = (*step, call.clone());
                if let Some(first) = self.once.get(&key) {
                    let what = format!(
                        "call {call} of step {step} acts once, and started at seq {first} already"
                    );
                    self.broken(Invariant::OnceStartsOnce, here(), what);
                } else {
                    self.once.insert(key, seq);
                }
            }
            EventBody::CallSettled { step, result, .. } => self.result(*step, &result.call, seq),
            EventBody::RunnerAnswered { step, answer } => self.result(*step, &answer.call, seq),
            EventBody::CallDropped { step, call } => self.result(*step, call, seq),
            EventBody::TurnEnded { .. } => self.close_calls(seq),
            _ => {}
        }
        if let Some(execution) = event.body.terminal_of() {
            if self.open.remove(&execution).is_none() {
                let what = match self.ended.get(&execution) {
                    Some(first) => format!(
                        "{} of execution {execution}, which has its terminal at seq {first}",
                        event.body.kind()
                    ),
                    None => format!(
                        "{} of execution {execution}, which never started",
                        event.body.kind()
                    ),
                };
                self.broken(Invariant::OneTerminal, here(), what);
            }
            self.ended.entry(execution).or_insert(seq);
        }
    }

    fn fate(&mut self, input: InputId, status: InputStatus, seq: Seq) {
        let what = match self.inputs.insert(input, (status, seq)) {
            Some((InputStatus::Pending, _)) => return,
            Some((before, at)) => format!(
                "input {input} is {} after it was {} at seq {at}",
                word(status),
                word(before)
            ),
            None => format!("input {input} is {} and was never admitted", word(status)),
        };
        self.broken(Invariant::InputsHaveOneFate, Place::Seq(seq), what);
    }

    fn result(&mut self, step: Seq, call: &str, seq: Seq) {
        let what = match self.calls.get_mut(&(step, call.to_owned())) {
            None => format!("a result for call {call} of step {step}, which nobody has made"),
            Some(made) => {
                made.results += 1;
                if made.results == 1 {
                    return;
                }
                format!("result {} of call {call} of step {step}", made.results)
            }
        };
        self.broken(Invariant::OneResult, Place::Seq(seq), what);
    }

    fn close_calls(&mut self, seq: Seq) {
        let mut missing = Vec::new();
        for ((step, call), made) in &mut self.calls {
            if !made.closed && made.results == 0 {
                missing.push(format!(
                    "the turn ends, and call {call} of step {step} has no result"
                ));
            }
            made.closed = true;
        }
        for what in missing {
            self.broken(Invariant::OneResult, Place::Seq(seq), what);
        }
    }

    fn project(&mut self, event: &Event) {
        if self.stuck || self.findings.unknown > 0 {
            return;
        }
        let done = match &mut self.rebuild {
            Some(rebuild) => rebuild.take(event).map_err(|broken| broken.to_string()),
            None => {
                self.rebuild = Rebuild::begin(event);
                match self.rebuild {
                    Some(_) => Ok(()),
                    None => Err("the log does not begin with the session's creation".into()),
                }
            }
        };
        if let Err(what) = done {
            self.stuck = true;
            self.broken(Invariant::RowsFollowFromLog, Place::Seq(event.seq), what);
        }
    }

    fn compare_head(&mut self, stored: &Stored) {
        let Some(session) = &stored.session else {
            return;
        };
        let (head, last) = (session.head, self.last());
        if head != last {
            let what = format!("the head is {head}, and the log ends with seq {last}");
            self.broken(Invariant::SeqsWithoutGap, row("session", session.id), what);
        }
    }

    fn compare_executions(&mut self, stored: &Stored) {
        let claim = stored.claim.as_ref();
        // The claim of a session that is another store's is held there.
        let session = stored.session.as_ref();
        if session.is_some_and(|session| session.imported().is_some()) {
            return;
        }
        let held = claim
            .filter(|claim| !claim.ended)
            .map(|claim| claim.execution);
        let orphans: Vec<_> = self
            .open
            .iter()
            .filter(|(execution, _)| Some(**execution) != held)
            .map(|(execution, seq)| (*execution, *seq))
            .collect();
        for (execution, seq) in orphans {
            let what = format!("execution {execution} has no terminal, and no claim either");
            self.broken(Invariant::OneTerminal, Place::Seq(seq), what);
        }
        let Some(claim) = claim else { return };
        let execution = claim.execution;
        let place = row("claim", claim.session);
        let what = match (
            claim.ended,
            self.open.contains_key(&execution),
            self.ended.get(&execution),
        ) {
            (false, true, _) | (true, _, Some(_)) => return,
            (false, false, Some(end)) => {
                format!("it is of execution {execution}, which has ended at seq {end}")
            }
            (false, false, None) => {
                format!("it is of execution {execution}, which the log does not know")
            }
            (true, _, None) => {
                format!("it says that execution {execution} has ended, and the log does not")
            }
        };
        self.broken(Invariant::OneLiveExecution, place, what);
    }

    fn compare_inputs(&mut self, stored: &Stored) {
        let mut rows: HashMap<InputId, InputStatus> = HashMap::new();
        for input in stored.rows.inputs.values() {
            rows.insert(input.id, input.status);
        }
        let mut found = Vec::new();
        for (input, (status, seq)) in &self.inputs {
            let what = match rows.remove(input) {
                Some(known) if known == *status => continue,
                Some(known) => format!(
                    "it is {} in its row and {} in the log at seq {seq}",
                    word(known),
                    word(*status)
                ),
                None => format!(
                    "it is {} in the log at seq {seq} and has no row",
                    word(*status)
                ),
            };
            found.push((*input, what));
        }
        found.extend(
            rows.into_keys()
                .map(|input| (input, "nothing admitted it".into())),
        );
        found.sort();
        for (input, what) in found {
            self.broken(Invariant::InputsHaveOneFate, row("input", input), what);
        }
    }

    fn compare_results(&mut self, stored: &Stored) {
        if self.findings.unknown > 0 {
            return;
        }
        let mut found = Vec::new();
        for ((step, id), call) in &stored.rows.calls {
            let made = self.calls.get(&(*step, id.clone()));
            let results = made.map_or(0, |made| made.results);
            let what = match (call.status == CallStatus::Settled, results) {
                (true, 0) => "it is settled, and the log holds no result of it",
                (false, 1..) => "the log holds its result, and it is not settled",
                _ => continue,
            };
            found.push((row("call", format!("{step}/{id}")), what));
        }
        for (place, what) in found {
            self.broken(Invariant::OneResult, place, what);
        }
    }

    fn compare_rows(&mut self, stored: &Stored) {
        if self.stuck || self.findings.unknown > 0 {
            return;
        }
        let Some(session) = &stored.session else {
            // Rows of nobody: the session was deleted, and something of it was left.
            let place = Place::Row("session".into());
            let what = "it has no row here, and rows in other tables";
            return self.broken(Invariant::RowsFollowFromLog, place, what);
        };
        let Some(mut rebuilt) = self.rebuild.take() else {
            let what = "the session has a row and no log";
            return self.broken(
                Invariant::RowsFollowFromLog,
                row("session", session.id),
                what,
            );
        };
        if session.compacted_through > 0 {
            stub::fill(&mut rebuilt.rows, &stored.rows);
        }
        let found = &mut self.findings;
        // Where it was imported from, and what this build cannot read of it, is in no event.
        let rebuilt_session = Session {
            origin: session.origin.clone(),
            foreign: session.foreign.clone(),
            compacted_through: session.compacted_through,
            ..rebuilt.tail.session.clone()
        };
        compare(
            found,
            "session",
            &BTreeMap::from([(session.id, rebuilt_session)]),
            &BTreeMap::from([(session.id, session.clone())]),
            ToString::to_string,
        );
        compare(
            found,
            "item",
            &rebuilt.rows.items,
            &stored.rows.items,
            |(seq, n)| format!("{seq}/{n}"),
        );
        compare(
            found,
            "input",
            &rebuilt.rows.inputs,
            &stored.rows.inputs,
            |seq| format!("of seq {seq}"),
        );
        compare(
            found,
            "step",
            &rebuilt.rows.steps,
            &stored.rows.steps,
            ToString::to_string,
        );
        compare(
            found,
            "call",
            &rebuilt.rows.calls,
            &stored.rows.calls,
            |(step, id)| format!("{step}/{id}"),
        );
        compare(
            found,
            "execution",
            &rebuilt.rows.executions,
            &stored.rows.executions,
            ToString::to_string,
        );
    }
}

fn row(table: &str, key: impl Display) -> Place {
    Place::Row(format!("{table} {key}"))
}

fn word(status: InputStatus) -> &'static str {
    match status {
        InputStatus::Pending => "pending",
        InputStatus::Promoted => "promoted",
        InputStatus::Cancelled => "cancelled",
    }
}

fn compare<K: Ord, V: Serialize + PartialEq>(
    found: &mut Findings,
    table: &str,
    rebuilt: &BTreeMap<K, V>,
    stored: &BTreeMap<K, V>,
    name: impl Fn(&K) -> String,
) {
    let mut add = |key: &K, what: String| {
        found.add(Invariant::RowsFollowFromLog, row(table, name(key)), what);
    };
    for (key, expected) in rebuilt {
        match stored.get(key) {
            None => add(key, "it is missing".into()),
            Some(held) if held == expected => {}
            Some(held) => add(
                key,
                format!("it differs from the log in {}", fields(expected, held)),
            ),
        }
    }
    for key in stored.keys().filter(|key| !rebuilt.contains_key(key)) {
        add(key, "the log does not give it".into());
    }
}

/// Names of the fields in which two rows differ.
fn fields<V: Serialize>(a: &V, b: &V) -> String {
    let json = |value: &V| serde_json::to_value(value).unwrap_or_default();
    let (a, b) = (json(a), json(b));
    let (Some(a), Some(b)) = (a.as_object(), b.as_object()) else {
        return "its value".into();
    };
    let names: std::collections::BTreeSet<&String> = a.keys().chain(b.keys()).collect();
    let names: Vec<&str> = names
        .into_iter()
        .filter(|name| a.get(*name) != b.get(*name))
        .map(String::as_str)
        .collect();
    names.join(", ")
}
