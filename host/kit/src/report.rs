//! What a check has found: a finding for each property, and for a broken one the places where it broke.

use std::fmt;
use std::str::FromStr;

use mainstay_core::id::Digest;
use mainstay_core::plugin::{Kind, PluginInfo};
use serde::{Serialize, Serializer};

/// What must hold of a plugin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Property {
    Loads,
    NeverTraps,
    WithinLimits,
    DecidesAlike,
    NoMemory,
    ReadsItsState,
    SurvivesSwaps,
    EncodesAlike,
    CutsDoNotMatter,
    AnswersKeepTheRules,
    ClassifiesEverything,
    ListsAlike,
    Pure,
    Idempotent,
    DeniedIsNamed,
    TakesAnyAnswer,
    Stops,
    SurvivesCrashes,
    SurvivesStaleClaims,
    SurvivesInterrupts,
}

impl Property {
    /// All of them.
    pub const ALL: [Self; 20] = [
        Self::Loads,
        Self::NeverTraps,
        Self::WithinLimits,
        Self::DecidesAlike,
        Self::NoMemory,
        Self::ReadsItsState,
        Self::SurvivesSwaps,
        Self::EncodesAlike,
        Self::CutsDoNotMatter,
        Self::AnswersKeepTheRules,
        Self::ClassifiesEverything,
        Self::ListsAlike,
        Self::Pure,
        Self::Idempotent,
        Self::DeniedIsNamed,
        Self::TakesAnyAnswer,
        Self::Stops,
        Self::SurvivesCrashes,
        Self::SurvivesStaleClaims,
        Self::SurvivesInterrupts,
    ];

    /// Its name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Loads => "loads",
            Self::NeverTraps => "never-traps",
            Self::WithinLimits => "within-limits",
            Self::DecidesAlike => "decides-alike",
            Self::NoMemory => "no-memory",
            Self::ReadsItsState => "reads-its-state",
            Self::SurvivesSwaps => "survives-swaps",
            Self::EncodesAlike => "encodes-alike",
            Self::CutsDoNotMatter => "cuts-do-not-matter",
            Self::AnswersKeepTheRules => "answers-keep-the-rules",
            Self::ClassifiesEverything => "classifies-everything",
            Self::ListsAlike => "lists-alike",
            Self::Pure => "pure",
            Self::Idempotent => "idempotent",
            Self::DeniedIsNamed => "denied-is-named",
            Self::TakesAnyAnswer => "takes-any-answer",
            Self::Stops => "stops",
            Self::SurvivesCrashes => "survives-crashes",
            Self::SurvivesStaleClaims => "survives-stale-claims",
            Self::SurvivesInterrupts => "survives-interrupts",
        }
    }

    /// What it says.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Loads => "it is a component of a known world and its manifest keeps the rules",
            Self::NeverTraps => {
                "ordinary, empty, huge and malformed input gets an answer or a named error"
            }
            Self::WithinLimits => "past a limit it fails by that limit's name",
            Self::DecidesAlike => "the same view gives the same decision, in another process too",
            Self::NoMemory => "decisions depend on the view and not on what memory held before",
            Self::ReadsItsState => "what it stored as its state, it reads again",
            Self::SurvivesSwaps => "it decides the same after another runner had its turn",
            Self::EncodesAlike => "the same request gives the same bytes, in another process too",
            Self::CutsDoNotMatter => "an answer means the same wherever its bytes are cut",
            Self::AnswersKeepTheRules => {
                "its events keep the rules: calls begin, go on and end, and nothing follows the end"
            }
            Self::ClassifiesEverything => "every error answer is given a class",
            Self::ListsAlike => "its list of tools is the same each time",
            Self::Pure => "a pure tool changes nothing",
            Self::Idempotent => "an idempotent tool, run again under its key, changes nothing more",
            Self::DeniedIsNamed => "what it is not granted gives a named error",
            Self::TakesAnyAnswer => {
                "whatever a server answers, a call that fetches ends with a result or a named error"
            }
            Self::Stops => "a call that is told to stop ends",
            Self::SurvivesCrashes => "killed before or after any commit, the session ends the same",
            Self::SurvivesStaleClaims => {
                "taken over by another process at any commit, the session ends the same"
            }
            Self::SurvivesInterrupts => {
                "interrupted at any commit, the session is whole and takes the next prompt"
            }
        }
    }
}

impl FromStr for Property {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let known = Self::ALL.into_iter().find(|known| known.name() == name);
        known.ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("there is no property of this name; there are {names}")
        })
    }
}

impl fmt::Display for Property {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl Serialize for Property {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.name().serialize(serializer)
    }
}

/// Whether a property holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Holds,
    Broken,
    /// There was nothing to ask it of: a toolbox without idempotent tools, say.
    NotAsked,
}

/// One place where a property broke.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The commit, the cut, the input: `before commit 3`, `answer sse cut at byte 17`.
    pub at: String,
    /// What happened there.
    pub what: String,
}

/// What was found about one property.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    pub property: Property,
    pub verdict: Verdict,
    /// How often it was asked.
    pub cases: u64,
    /// The first few places where it broke.
    pub failures: Vec<Failure>,
    /// In how many places it broke.
    pub broken: u64,
}

/// Failures of one property that are told; more are counted.
const TOLD: usize = 5;
/// Bytes of what happened at one place.
const WORDS: usize = 600;

impl Finding {
    pub(crate) fn new(property: Property) -> Self {
        Self {
            property,
            verdict: Verdict::NotAsked,
            cases: 0,
            failures: Vec::new(),
            broken: 0,
        }
    }

    /// One more case, and how it went.
    pub(crate) fn case(&mut self, at: impl fmt::Display, went: Result<(), String>) {
        self.cases += 1;
        match went {
            Ok(()) if self.verdict == Verdict::NotAsked => self.verdict = Verdict::Holds,
            Ok(()) => {}
            Err(what) => {
                self.verdict = Verdict::Broken;
                self.broken += 1;
                if self.failures.len() < TOLD {
                    let cut = what.floor_char_boundary(WORDS);
                    let more = if cut < what.len() { " …" } else { "" };
                    self.failures.push(Failure {
                        at: at.to_string(),
                        what: format!("{}{more}", &what[..cut]),
                    });
                }
            }
        }
    }
}

/// Who was checked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Checked {
    pub kind: Kind,
    pub name: String,
    pub version: String,
    pub digest: Digest,
}

/// All findings about one component.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// No property that was asked is broken.
    pub conforms: bool,
    /// `None` for what did not load.
    pub plugin: Option<Checked>,
    pub findings: Vec<Finding>,
}

impl Report {
    pub(crate) fn not_loaded(why: &str) -> Self {
        let mut loads = Finding::new(Property::Loads);
        loads.case("load", Err(why.to_owned()));
        Self {
            conforms: false,
            plugin: None,
            findings: vec![loads],
        }
    }

    pub(crate) fn of(info: &PluginInfo) -> Self {
        let mut loads = Finding::new(Property::Loads);
        loads.case("load", Ok(()));
        Self {
            conforms: true,
            plugin: Some(Checked {
                kind: info.kind,
                name: info.name.clone(),
                version: info.version.clone(),
                digest: info.digest.clone(),
            }),
            findings: vec![loads],
        }
    }

    pub(crate) fn add(&mut self, finding: Finding) {
        self.conforms &= finding.verdict != Verdict::Broken;
        self.findings.push(finding);
    }

    /// Leaves out what was not asked.
    pub(crate) fn keep(&mut self, asked: impl Fn(Property) -> bool) {
        self.findings.retain(|finding| asked(finding.property));
        let broken = self.broken().next();
        self.conforms = broken.is_none();
    }

    /// The finding about a property; `None` where there is none for this kind.
    #[must_use]
    pub fn finding(&self, property: Property) -> Option<&Finding> {
        self.findings
            .iter()
            .find(|finding| finding.property == property)
    }

    /// The properties that do not hold.
    pub fn broken(&self) -> impl Iterator<Item = Property> {
        self.findings
            .iter()
            .filter(|finding| finding.verdict == Verdict::Broken)
            .map(|finding| finding.property)
    }
}

/// A line for each property, and below a broken one the places where it broke.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(plugin) = &self.plugin {
            writeln!(
                f,
                "{} {} {} (sha256:{})",
                plugin.kind,
                plugin.name,
                plugin.version,
                &plugin.digest[..12]
            )?;
        }
        for finding in &self.findings {
            let (word, cases) = match finding.verdict {
                Verdict::Holds => ("ok  ", format!("{} cases", finding.cases)),
                Verdict::Broken => (
                    "FAIL",
                    format!("{} of {} cases", finding.broken, finding.cases),
                ),
                Verdict::NotAsked => ("-   ", "nothing to ask it of".to_owned()),
            };
            writeln!(
                f,
                "{word}  {:<22}  {} ({cases})",
                finding.property.name(),
                finding.property.words()
            )?;
            for failure in &finding.failures {
                writeln!(
                    f,
                    "      {}: {}",
                    failure.at,
                    failure.what.replace('\n', "\n        ")
                )?;
            }
            let more = finding.broken - finding.failures.len() as u64;
            if more > 0 {
                writeln!(f, "      and {more} more")?;
            }
        }
        let words = if self.conforms {
            "it conforms"
        } else {
            "it does not conform"
        };
        write!(f, "{words}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_broken_property_stays_broken_and_tells_where() {
        let mut finding = Finding::new(Property::Pure);
        assert_eq!(finding.verdict, Verdict::NotAsked);
        finding.case("a", Ok(()));
        for n in 0..7 {
            finding.case(format!("call {n}"), Err("changed".to_owned()));
        }
        finding.case("z", Ok(()));
        assert_eq!((finding.verdict, finding.cases), (Verdict::Broken, 9));
        assert_eq!((finding.broken, finding.failures.len()), (7, TOLD));
        let mut report = Report::not_loaded("no component");
        report.add(finding);
        let text = report.to_string();
        assert!(
            text.contains("call 0: changed") && text.contains("and 2 more"),
            "{text}"
        );
        assert!(text.ends_with("it does not conform"), "{text}");
    }
}
