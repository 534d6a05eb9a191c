//! `[[agents.NAME.tool-rules]]` of the configuration: which calls of tools run, wait for a person, or
//! never run.

use std::collections::BTreeMap;

use mainstay_core::approval::{Rule, Verdict};
use mainstay_core::config::{Agent, Config};
use mainstay_core::plugin::{Kind, Plugins};
use serde::Deserialize;

use crate::config::nearest;

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

/// Whether any agent has rules.
pub(crate) fn are_any(config: &Config) -> bool {
    let mut agents = config.agents.values();
    agents.any(|agent| !agent.tool_policy.0.is_empty())
}

/// Rules that are for no tool which a toolbox of their agent has, each told in words: a name that is
/// mistyped lets through what it was to hold back. Nothing is said of an agent whose tools cannot be
/// told now.
pub(crate) async fn idle(config: &Config, plugins: &dyn Plugins) -> Vec<String> {
    let mut found = Vec::new();
    for (name, agent) in &config.agents {
        if agent.tool_policy.0.is_empty() {
            continue;
        }
        let Some(tools) = tools(agent, plugins).await else {
            continue;
        };
        for (n, rule) in (1..).zip(&agent.tool_policy.0) {
            // For all of them, however few they are.
            let for_all = rule.tool.bytes().all(|byte| byte == b'*');
            if for_all || tools.iter().any(|tool| rule.is_for(tool)) {
                continue;
            }
            let then = match rule.then {
                Verdict::Allow => "allow",
                Verdict::Ask => "ask",
                Verdict::Deny => "deny",
            };
            let advice = match nearest(&rule.tool, tools.iter().map(String::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if tools.is_empty() => "it has no tools".to_owned(),
                None => format!("they have {}", tools.join(", ")),
            };
            found.push(format!(
                "rule {n} of the agent `{name}` (`{}`, then {then}) is for no tool that its toolboxes \
                 have; {advice}",
                rule.tool
            ));
        }
    }
    found
}

/// The names of an agent's tools.
async fn tools(agent: &Agent, plugins: &dyn Plugins) -> Option<Vec<String>> {
    let mut names = Vec::new();
    for toolbox in &agent.toolboxes {
        let info = plugins
            .resolve(Kind::Toolbox, &toolbox.alias)
            .await
            .ok()??;
        let tools = match &toolbox.options {
            None => info.tools.clone(),
            options => plugins.tools(&info.digest, options.clone()).await.ok()?,
        };
        names.extend(tools.into_iter().map(|tool| tool.definition.name));
    }
    Some(names)
}
