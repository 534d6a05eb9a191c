//! Which calls of tools may run: an agent's policy allows a call, denies it, or has a person asked. A
//! call that a person is asked about is *held*: the request is durable, the step stays open without a
//! claim, and the answer starts the call or refuses it. A policy is the operator's and no part of a
//! decision: a call is judged once, under what is configured when it would start, and what a person
//! was asked stays asked.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;
use wildmatch::WildMatch;

use crate::history::Approval;
use crate::id::Seq;
use crate::model::ToolCall;
use crate::plugin::ApprovalRequest;
use crate::tail::{CallStatus, Step};
use crate::wait::Asked;

/// What runners may not begin the keys of their own requests with.
pub(crate) const PREFIX: &str = "call/";

/// Bytes of a call's arguments that are shown to the person who is asked; all of them are in the log.
const SHOWN: usize = 4096;

/// What becomes of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    /// It runs.
    #[default]
    Allow,
    /// It runs once a person has approved it.
    Ask,
    /// It never runs; the model is told so.
    Deny,
}

/// What becomes of the calls that it fits.
///
/// In a pattern `*` stands for any text, the empty one included, and `?` for one character.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Fits the tool's name.
    pub tool: String,
    /// Patterns for arguments, each by the name of a field or a JSON pointer (`/options/force`). A
    /// string is compared as it is, any other value as compact JSON. An argument that is not there
    /// fits no pattern.
    pub arguments: BTreeMap<String, String>,
    pub then: Verdict,
}

impl Rule {
    /// Whether it could fit a call of this tool, by its name alone.
    #[must_use]
    pub fn is_for(&self, tool: &str) -> bool {
        WildMatch::new(&self.tool).matches(tool)
    }

    fn fits(&self, tool: &str, arguments: &Value) -> bool {
        self.is_for(tool)
            && self.arguments.iter().all(|(name, pattern)| {
                let value = if name.starts_with('/') {
                    arguments.pointer(name)
                } else {
                    arguments.get(name)
                };
                let pattern = WildMatch::new(pattern);
                match value {
                    Some(Value::String(text)) => pattern.matches(text),
                    Some(other) => pattern.matches(&other.to_string()),
                    None => false,
                }
            })
    }
}

/// What an agent's calls are judged by: the first rule that fits a call; without one it is allowed.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Policy(pub Vec<Rule>);

impl Policy {
    /// What becomes of a call with these arguments.
    #[must_use]
    pub fn judge(&self, tool: &str, arguments: &Value) -> Verdict {
        let fits = |rule: &&Rule| rule.fits(tool, arguments);
        self.0.iter().find(fits).map_or(Verdict::Allow, |r| r.then)
    }
}

/// The key of the request that a call is held for.
#[must_use]
pub fn key(step: Seq, call: &str) -> String {
    format!("{PREFIX}{step}/{call}")
}

/// What a person is asked about a call.
#[must_use]
pub fn request(step: Seq, call: &ToolCall) -> ApprovalRequest {
    let cut = call.arguments.floor_char_boundary(SHOWN);
    let details = if cut < call.arguments.len() {
        let whole = call.arguments.len();
        format!("{}\n[{cut} of {whole} bytes shown]", &call.arguments[..cut])
    } else {
        call.arguments.clone()
    };
    ApprovalRequest {
        key: key(step, &call.id),
        question: format!("May the tool {} run?", call.tool),
        details: Some(details),
    }
}

/// The answer to what a call is held for, once somebody gave it. It counts from its admission on.
#[must_use]
pub fn answer<'a>(
    approvals: &'a BTreeMap<String, Asked>,
    step: Seq,
    call: &str,
) -> Option<&'a Approval> {
    approvals.get(&key(step, call))?.answer.as_ref()
}

/// Whether a call may start now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Permission {
    Given,
    /// A person is to be asked first.
    ToAsk,
    /// A person was asked and has not answered.
    Awaited,
    /// In words for a model.
    Refused(String),
}

/// Whether a call whose arguments are whole may start now. `judge` is asked of one that neither started
/// nor was asked about before.
pub(crate) fn permission(
    step: &Step,
    approvals: &BTreeMap<String, Asked>,
    call: &str,
    judge: impl FnOnce() -> Verdict,
) -> Permission {
    match step.call(call).map(|known| known.status) {
        // Judged when it started first: this is a run after a crash.
        Some(CallStatus::Started) => Permission::Given,
        Some(CallStatus::Held) => match answer(approvals, step.seq, call) {
            None => Permission::Awaited,
            Some(answer) if answer.approved => Permission::Given,
            Some(answer) => Permission::Refused(match &answer.reason {
                Some(reason) => format!("Not run: a person denied it: {reason}"),
                None => "Not run: a person denied it.".into(),
            }),
        },
        _ => match judge() {
            Verdict::Allow => Permission::Given,
            Verdict::Ask => Permission::ToAsk,
            Verdict::Deny => {
                Permission::Refused("Not run: this agent's policy denies such calls.".into())
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(tool: &str, arguments: &[(&str, &str)], then: Verdict) -> Rule {
        let owned = |(name, pattern): &(&str, &str)| ((*name).to_owned(), (*pattern).to_owned());
        Rule {
            tool: tool.into(),
            arguments: arguments.iter().map(owned).collect(),
            then,
        }
    }

    #[test]
    fn the_first_rule_that_fits_decides() {
        let policy = Policy(vec![
            rule("write_*", &[("path", "docs/*")], Verdict::Allow),
            rule("write_*", &[("path", "/etc/*")], Verdict::Deny),
            rule("write_?ile", &[], Verdict::Ask),
            rule("run", &[("/options/force", "true")], Verdict::Deny),
            rule("run", &[("/args/0", "rm")], Verdict::Ask),
        ]);
        for (tool, arguments, expected) in [
            ("write_file", json!({"path": "docs/a/b.md"}), Verdict::Allow),
            ("write_file", json!({"path": "/etc/passwd"}), Verdict::Deny),
            ("write_file", json!({"path": "src/lib.rs"}), Verdict::Ask),
            ("write_file", json!({}), Verdict::Ask),
            ("write_file", json!([]), Verdict::Ask),
            (
                "write_a_file",
                json!({"path": "src/lib.rs"}),
                Verdict::Allow,
            ),
            ("read_file", json!({"path": "/etc/passwd"}), Verdict::Allow),
            ("run", json!({"options": {"force": true}}), Verdict::Deny),
            ("run", json!({"options": {"force": "true"}}), Verdict::Deny),
            ("run", json!({"options": {"force": false}}), Verdict::Allow),
            ("run", json!({"args": ["rm", "-r"]}), Verdict::Ask),
            ("run", json!({"args": ["ls"]}), Verdict::Allow),
        ] {
            assert_eq!(
                policy.judge(tool, &arguments),
                expected,
                "{tool} {arguments}"
            );
        }
        assert_eq!(Policy::default().judge("x", &json!({})), Verdict::Allow);
    }

    #[test]
    fn a_person_is_shown_no_more_than_fits_a_screen() {
        let call = |arguments: String| ToolCall {
            id: "c".into(),
            tool: "t".into(),
            arguments,
        };
        let short = request(7, &call("{}".into()));
        assert_eq!(short.key, "call/7/c");
        assert_eq!(short.details.as_deref(), Some("{}"));
        // Two bytes each: the cut falls between characters.
        let long = request(7, &call(format!("\"{}\"", "ä".repeat(SHOWN))));
        let details = long.details.unwrap();
        assert!(details.len() < SHOWN + 100, "{}", details.len());
        assert!(details.ends_with("of 8194 bytes shown]"), "{details}");
    }
}
