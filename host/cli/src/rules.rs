//! `[[agents.NAME.tool-rules]]` of the configuration: which calls of tools run, wait for a person, or
//! never run.

use std::collections::BTreeMap;

use mainstay_core::approval::{Rule, Verdict};
use serde::Deserialize;

/// `{ tool = "write_*", arguments = { path = "docs/*" }, then = "ask" }`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) struct RuleTable {
    tool: String,
    #[serde(default)]
    arguments: BTreeMap<String, String>,
    then: Verdict,
}

impl RuleTable {
    /// # Errors
    /// A rule that could fit nothing, in words for the operator.
    pub(crate) fn into_rule(self) -> Result<Rule, String> {
        if self.tool.is_empty() {
            return Err("a rule names no tool: write `tool = \"*\"` for all of them".into());
        }
        if let Some(name) = self.arguments.keys().find(|name| name.is_empty()) {
            return Err(format!(
                "a rule for `{}` has an argument without a name (`{name}`): write a field's name, or \
                 a JSON pointer such as `/options/force`",
                self.tool
            ));
        }
        Ok(Rule {
            tool: self.tool,
            arguments: self.arguments,
            then: self.then,
        })
    }
}
