//! `mainstay.toml`: agents, providers, toolboxes, the server and the knobs of the node, over defaults
//! that work without any file. What is wrong in it is told with file, line and the nearest right name.

mod file;
mod grant;
#[cfg(test)]
mod tests;
mod value;
mod wrong;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_core::approval::Policy;
use mainstay_core::config::{Agent, Config, Provider, Settings, Toolbox};
use mainstay_core::history::ModelRef;
use mainstay_core::plugin::{Model, Workspace};
use mainstay_runtime::limits::Limits;
use mainstay_server::Options;

use self::file::{AgentTable, File, ModelTable, ProviderTable, ToolboxEntry, json};
pub(crate) use self::grant::{Access, Rule, Secret, set_base_url};
use self::grant::{HttpTable, rule};
pub(crate) use self::value::span;
use self::wrong::Text;
pub(crate) use self::wrong::nearest;
use crate::collector::Keep;
use crate::error::{Code, Error, Result};
use crate::sources::{Registries, Source};

/// The agent of a session that names none.
pub(crate) const AGENT: &str = "default";
/// The provider that needs neither network nor key.
pub(crate) const PARROT: &str = "parrot";
/// The provider for `--base-url`.
pub(crate) const OPENAI: &str = "openai";

/// Everything that is configured.
#[derive(Clone, Debug)]
pub(crate) struct Loaded {
    pub(crate) config: Config,
    /// The model of a provider where none is named.
    pub(crate) models: BTreeMap<String, String>,
    /// What providers may reach, by their configured name.
    pub(crate) providers: BTreeMap<String, Access>,
    /// What toolboxes may reach, by alias.
    pub(crate) toolboxes: BTreeMap<String, Access>,
    /// What is loaded at start, by alias.
    pub(crate) plugins: BTreeMap<String, Source>,
    /// A folder whose components are loaded when they appear or change.
    pub(crate) plugin_folder: Option<PathBuf>,
    pub(crate) registries: Registries,
    pub(crate) settings: Settings,
    /// What guests may use.
    pub(crate) limits: Limits,
    /// How long sessions and old bodies stay.
    pub(crate) keep: Keep,
    pub(crate) server: Server,
}

/// What `serve` does unless told otherwise.
#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) token: Option<Secret>,
    pub(crate) hosts: Vec<String>,
    /// See [`Options::max_connections`].
    pub(crate) max_connections: usize,
    /// See [`Options::read_patience`].
    pub(crate) read_timeout: Duration,
}

impl Default for Server {
    fn default() -> Self {
        let options = Options::default();
        Self {
            listen: None,
            token: None,
            hosts: Vec::new(),
            max_connections: options.max_connections,
            read_timeout: options.read_patience,
        }
    }
}

/// What works without a file.
pub(crate) fn builtin() -> Loaded {
    let mut config = Config::default();
    let files = Toolbox {
        alias: "files".into(),
        options: None,
    };
    config.agents.insert(
        AGENT.into(),
        Agent {
            toolboxes: vec![files],
            ..Agent::default()
        },
    );
    let parrot = Provider {
        plugin: "parrot".into(),
        base_url: None,
        options: None,
        models: Vec::new(),
    };
    config.providers.insert(PARROT.into(), parrot);
    let openai = Provider {
        plugin: "openai-chat".into(),
        base_url: Some("https://api.openai.com/v1".into()),
        options: None,
        models: Vec::new(),
    };
    config.providers.insert(OPENAI.into(), openai);
    let key = BTreeMap::from([("api-key".into(), Secret::Env("OPENAI_API_KEY".into()))]);
    let openai = Access {
        http: vec![rule("https://api.openai.com/v1").expect("a URL")],
        secrets: key,
        ..Access::default()
    };
    let files = Access {
        workspace: Workspace::ReadWrite,
        ..Access::default()
    };
    Loaded {
        config,
        models: BTreeMap::from([
            (PARROT.into(), "parrot".into()),
            (OPENAI.into(), "gpt-4o-mini".into()),
        ]),
        providers: BTreeMap::from([(PARROT.into(), Access::default()), (OPENAI.into(), openai)]),
        toolboxes: BTreeMap::from([("files".into(), files)]),
        plugins: BTreeMap::new(),
        plugin_folder: None,
        registries: Registries::default(),
        settings: Settings::default(),
        limits: Limits::default(),
        keep: Keep::default(),
        server: Server::default(),
    }
}

/// The named file, or the one that applies here, over the defaults.
pub(crate) fn load(named: Option<&Path>) -> Result<Loaded> {
    let Some(path) = named.map(Path::to_owned).or_else(crate::paths::config) else {
        return Ok(builtin());
    };
    let text = std::fs::read_to_string(&path).map_err(|error| {
        Error::new(
            Code::Config,
            format!("cannot read the configuration {}", path.display()),
        )
        .because(&error)
    })?;
    parse(&path, &text)
}

fn parse(path: &Path, text: &str) -> Result<Loaded> {
    let text = Text { path, text };
    let mut file: File = toml::from_str(text.text).map_err(|error| text.unread(&error))?;
    let folder = path.parent().unwrap_or(Path::new(""));
    file.secrets().for_each(|secret| secret.within(folder));
    let mut loaded = builtin();
    for (name, table) in file.providers {
        loaded.lay_provider(&text, name, table)?;
    }
    for (alias, table) in file.toolboxes {
        let access = Access {
            secrets: table.secrets,
            workspace: table.workspace.into(),
            http: rules(&text, table.http)?,
        };
        loaded.toolboxes.insert(alias, access);
    }
    for (name, table) in file.agents {
        loaded.lay_agent(&text, name, table)?;
    }
    for (alias, table) in file.plugins {
        let source = Source::parse(table.source.get_ref(), folder)
            .map_err(|error| text.wrong(Some(table.source.span()), error.to_string()))?;
        loaded.plugins.insert(alias, source);
    }
    for (host, table) in file.registries {
        let span = table.span();
        let added = loaded.registries.add(&host, table.into_inner());
        added.map_err(|cause| text.wrong(Some(span), cause))?;
    }
    loaded.keep = Keep {
        sessions: file.retention.sessions.map(|span| span.0),
        bodies: file.retention.bodies.map(|span| span.0),
    };
    let whole = |cause| text.wrong(None, cause);
    loaded.server = file.server.server().map_err(whole)?;
    loaded.limits = file.limits.limits().map_err(whole)?;
    let plugins = file.node.plugin_folder.as_ref();
    loaded.plugin_folder = plugins.map(|path| folder.join(path));
    file.node.apply(&mut loaded.settings).map_err(whole)?;
    Ok(loaded)
}

impl Loaded {
    /// Lays a `[providers.NAME]` over the provider of that name, or adds one.
    fn lay_provider(&mut self, text: &Text<'_>, name: String, table: ProviderTable) -> Result<()> {
        let old = self.config.providers.get(&name).cloned();
        let plugin = table.plugin;
        let plugin = plugin.or_else(|| old.as_ref().map(|old| old.plugin.clone()));
        let plugin = plugin.ok_or_else(|| {
            text.wrong(None, format!("the provider `{name}` names no plugin"))
                .hint("name one: `plugin = \"openai-chat\"`")
        })?;
        let mut access = self.providers.remove(&name).unwrap_or_default();
        let mut provider = old.unwrap_or(Provider {
            plugin: String::new(),
            base_url: None,
            options: None,
            models: Vec::new(),
        });
        provider.plugin = plugin;
        if let Some(url) = table.base_url {
            set_base_url(&mut provider, &mut access, url.get_ref())
                .map_err(|cause| text.wrong(Some(url.span()), cause))?;
        }
        for rule in &mut access.http {
            rule.private |= table.private;
        }
        if let Some(options) = table.options {
            provider.options = Some(json(&options));
        }
        for table in table.models {
            provider.models.push(model(text, table)?);
        }
        access.secrets.extend(table.secrets);
        access.http.extend(rules(text, table.http)?);
        let first = || provider.models.first().map(|model| model.id.clone());
        if let Some(model) = table.model.or_else(first) {
            self.models.insert(name.clone(), model);
        }
        self.config.providers.insert(name.clone(), provider);
        self.providers.insert(name, access);
        Ok(())
    }

    /// Lays an `[agents.NAME]` over the agent of that name, or adds one.
    fn lay_agent(&mut self, text: &Text<'_>, name: String, table: AgentTable) -> Result<()> {
        let mut agent = self.config.agents.remove(&name).unwrap_or_default();
        if let Some(provider) = table.provider {
            let (span, provider) = (provider.span(), provider.into_inner());
            if !self.config.providers.contains_key(&provider) {
                let cause = format!(
                    "the agent `{name}` asks the provider `{provider}`, which is not configured"
                );
                let names = self.config.providers.keys().map(String::as_str);
                let hint = match nearest(&provider, names) {
                    Some(near) => format!("did you mean `{near}`?"),
                    None => format!("add a table `[providers.{provider}]`"),
                };
                return Err(text.wrong(Some(span), cause).hint(hint));
            }
            let model = table.model;
            let model = model.or_else(|| self.models.get(&provider).cloned());
            let model = model.ok_or_else(|| {
                let cause = format!(
                    "the agent `{name}` names no model, and the provider `{provider}` has none of \
                     its own"
                );
                text.wrong(Some(span), cause)
                    .hint("add `model = \"…\"` to the agent")
            })?;
            agent.model = ModelRef { provider, model };
        } else if let Some(model) = table.model {
            agent.model.model = model;
        }
        agent.runner = table.runner.unwrap_or(agent.runner);
        if let Some(toolboxes) = table.toolboxes {
            let toolboxes = toolboxes.into_iter().map(ToolboxEntry::into_toolbox);
            agent.toolboxes = toolboxes.collect();
        }
        agent.system_prompt = table.system_prompt.or(agent.system_prompt);
        agent.options = table.options.as_ref().map(json).or(agent.options);
        if table.steps == Some(0) {
            let cause = format!("the agent `{name}` may take no step: `steps` is at least 1");
            return Err(text.wrong(None, cause));
        }
        agent.steps = table.steps.unwrap_or(agent.steps);
        agent.tokens = table.tokens.or(agent.tokens);
        agent.cost = table.cost.map(|cost| cost.0).or(agent.cost);
        if let Some(time) = table.time {
            agent.time_ms = Some(time.0.as_millis() as u64);
        }
        agent.max_children = table.max_children.unwrap_or(agent.max_children);
        agent.max_depth = table.max_depth.unwrap_or(agent.max_depth);
        if let Some(rules) = table.tool_rules {
            let rules = rules.into_iter().map(|rule| {
                let span = rule.span();
                let rule = rule.into_inner().into_rule();
                rule.map_err(|cause| text.wrong(Some(span), cause))
            });
            agent.tool_policy = Policy(rules.collect::<Result<_>>()?);
        }
        agent.resume.mode = table.resume.unwrap_or(agent.resume.mode);
        if let Some(age) = table.resume_max_age {
            agent.resume.max_age_ms = Some(age.0.as_millis() as u64);
        }
        self.config.agents.insert(name, agent);
        Ok(())
    }
}

fn rules(text: &Text<'_>, tables: Vec<HttpTable>) -> Result<Vec<Rule>> {
    let rules = tables.into_iter().map(HttpTable::into_rule);
    rules
        .map(|rule| rule.map_err(|(span, cause)| text.wrong(Some(span), cause)))
        .collect()
}

fn model(text: &Text<'_>, table: ModelTable) -> Result<Model> {
    let price = table.price.as_ref().map(|price| price.price()).transpose();
    Ok(Model {
        price: price.map_err(|cause| {
            let cause = format!("the price of the model `{}`: {cause}", table.id);
            text.wrong(None, cause)
        })?,
        id: table.id,
        context_tokens: table.context_tokens,
        max_output_tokens: table.max_output_tokens,
        capabilities: Vec::new(),
    })
}
