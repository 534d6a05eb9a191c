//! `mainstay.toml`: agents, providers, toolboxes, the server and the knobs of the node, over defaults
//! that work without any file. What is wrong in it is told with file, line and the nearest right name.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::time::Duration;

use mainstay_core::approval::Policy;
use mainstay_core::config::{Agent, Config, Provider, Settings, Toolbox};
use mainstay_core::history::ModelRef;
use mainstay_core::plugin::{Model, Price, Scheme, Workspace};
use mainstay_core::policy::ResumeMode;
use mainstay_runtime::limits::Limits;
use serde::Deserialize;
use serde::de::Error as _;
use toml::Spanned;

use crate::collector::Keep;
use crate::error::{Code, Error, Result};
use crate::limits::LimitsTable;
use crate::rules::RuleTable;
use crate::sources::{Registries, RegistryTable, Source};

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

/// What the operator grants to one use of a plugin.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Access {
    pub(crate) http: Vec<Rule>,
    pub(crate) secrets: BTreeMap<String, Secret>,
    pub(crate) workspace: Workspace,
}

/// Requests that are allowed: those to a host whose path begins with a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Rule {
    pub(crate) scheme: Scheme,
    /// A name; `*.name` for every name below it; `*` for any.
    pub(crate) host: String,
    pub(crate) port: Option<u16>,
    /// In capitals; empty means every method.
    pub(crate) methods: Vec<String>,
    pub(crate) path_prefix: String,
    /// Addresses that are not public are allowed too.
    pub(crate) private: bool,
}

/// Where a secret's value is.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(crate) enum Secret {
    /// In an environment variable.
    Env(String),
    /// In a file, without the line break at its end.
    File(PathBuf),
}

impl Secret {
    /// A path is meant from the configuration's folder.
    fn within(&mut self, folder: &Path) {
        if let Self::File(path) = self {
            *path = folder.join(&path);
        }
    }

    /// The value, if it is set.
    pub(crate) fn value(&self) -> Option<String> {
        let value = match self {
            Self::Env(name) => std::env::var(name).ok()?,
            Self::File(path) => std::fs::read_to_string(path).ok()?,
        };
        let value = value.trim_end_matches(['\r', '\n']);
        (!value.is_empty()).then(|| value.to_owned())
    }
}

impl std::fmt::Display for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Env(name) => f.write_str(name),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// What `serve` does unless told otherwise.
#[derive(Clone, Debug, Default)]
pub(crate) struct Server {
    pub(crate) listen: Option<SocketAddr>,
    pub(crate) token: Option<Secret>,
    pub(crate) hosts: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct File {
    agents: BTreeMap<String, AgentTable>,
    providers: BTreeMap<String, ProviderTable>,
    toolboxes: BTreeMap<String, AccessTable>,
    plugins: BTreeMap<String, PluginTable>,
    registries: BTreeMap<String, Spanned<RegistryTable>>,
    retention: RetentionTable,
    server: ServerTable,
    node: NodeTable,
    limits: LimitsTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct AgentTable {
    runner: Option<String>,
    provider: Option<Spanned<String>>,
    model: Option<String>,
    toolboxes: Option<Vec<ToolboxEntry>>,
    system_prompt: Option<String>,
    options: Option<toml::Table>,
    steps: Option<u32>,
    tokens: Option<u64>,
    /// US dollars.
    cost: Option<Dollars>,
    time: Option<Span>,
    max_children: Option<u32>,
    max_depth: Option<u32>,
    tool_rules: Option<Vec<Spanned<RuleTable>>>,
    resume: Option<ResumeMode>,
    resume_max_age: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum ToolboxEntry {
    Alias(String),
    Table(ToolboxTable),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ToolboxTable {
    alias: String,
    options: Option<toml::Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct ProviderTable {
    plugin: Option<String>,
    base_url: Option<Spanned<String>>,
    model: Option<String>,
    models: Vec<ModelTable>,
    options: Option<toml::Table>,
    secrets: BTreeMap<String, Secret>,
    /// The base URL leads into a private network.
    private: bool,
    http: Vec<HttpTable>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct ModelTable {
    id: String,
    context_tokens: Option<u32>,
    max_output_tokens: Option<u32>,
    price: Option<PriceTable>,
}

/// US dollars for a million tokens.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PriceTable {
    input: Dollars,
    output: Dollars,
    cache_read: Option<Dollars>,
    cache_write: Option<Dollars>,
}

impl PriceTable {
    /// # Errors
    /// A price that is more than the contract can say.
    fn price(&self) -> Result<Price, String> {
        let of = |dollars: Dollars| {
            u32::try_from(dollars.0)
                .map_err(|_| "a price is at most 4294 US dollars for a million tokens".to_owned())
        };
        Ok(Price {
            input: of(self.input)?,
            output: of(self.output)?,
            cache_read: self.cache_read.map(of).transpose()?,
            cache_write: self.cache_write.map(of).transpose()?,
        })
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct AccessTable {
    http: Vec<HttpTable>,
    secrets: BTreeMap<String, Secret>,
    workspace: WorkspaceWord,
}

/// `[plugins.NAME]`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct PluginTable {
    source: Spanned<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum WorkspaceWord {
    #[default]
    None,
    Read,
    ReadWrite,
}

/// `{ url = "https://*.example.com/v1", methods = ["GET"] }`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct HttpTable {
    url: Spanned<String>,
    #[serde(default)]
    methods: Vec<String>,
    #[serde(default)]
    private: bool,
}

/// `[retention]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct RetentionTable {
    sessions: Option<Span>,
    bodies: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct ServerTable {
    listen: Option<SocketAddr>,
    token: Option<Secret>,
    hosts: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
struct NodeTable {
    plugin_folder: Option<PathBuf>,
    lease: Option<Span>,
    lease_margin: Option<Span>,
    renew_every: Option<Span>,
    poll_every: Option<Span>,
    flush_every: Option<Span>,
    shutdown_grace: Option<Span>,
    cancel_grace: Option<Span>,
    max_attempts: Option<u32>,
    max_tries: Option<u32>,
    capacity: Option<u32>,
    resume_concurrency: Option<usize>,
    model_first_byte: Option<Span>,
    model_idle: Option<Span>,
    model_total: Option<Span>,
}

/// An amount such as `2` or `0.15` US dollars, in millionths of one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Dollars(u64);

impl<'de> Deserialize<'de> for Dollars {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let amount = f64::deserialize(deserializer)?;
        let millionths = (amount * 1e6).round();
        // A store's numbers are of 63 bits.
        if !(0.0..9e18).contains(&millionths) {
            return Err(D::Error::custom(format!(
                "`{amount}` is no amount of US dollars: write `2` or `0.15`"
            )));
        }
        Ok(Self(millionths as u64))
    }
}

/// A time such as `500ms`, `30s` or `5m`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span(Duration);

impl<'de> Deserialize<'de> for Span {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        span(&text).map(Self).ok_or_else(|| {
            D::Error::custom(format!("`{text}` is no time: write `500ms`, `30s` or `5m`"))
        })
    }
}

pub(crate) fn span(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..unit].parse().ok()?;
    let ms = match &text[unit..] {
        "ms" => 1,
        "s" => 1000,
        "m" => 60_000,
        "h" => 3_600_000,
        "d" => 86_400_000,
        _ => return None,
    };
    number.checked_mul(ms).map(Duration::from_millis)
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
    let wrong = |span: Option<Range<usize>>, cause: String, hint: Option<String>| {
        let place = match span {
            Some(span) => format!("{}:{}", path.display(), line_of(text, span.start)),
            None => path.display().to_string(),
        };
        let error =
            Error::new(Code::Config, format!("the configuration {place} is wrong")).cause(cause);
        match hint {
            Some(hint) => error.hint(hint),
            None => error,
        }
    };
    let mut file: File = toml::from_str(text).map_err(|error| {
        let hint = nearest_of(error.message());
        wrong(error.span(), error.message().to_owned(), hint)
    })?;
    let folder = path.parent().unwrap_or(Path::new(""));
    file.secrets().for_each(|secret| secret.within(folder));
    let mut loaded = builtin();

    for (name, table) in file.providers {
        let old = loaded.config.providers.get(&name).cloned();
        let plugin = table
            .plugin
            .or_else(|| old.as_ref().map(|old| old.plugin.clone()));
        let plugin = plugin.ok_or_else(|| {
            let hint = "name one: `plugin = \"openai-chat\"`";
            wrong(
                None,
                format!("the provider `{name}` names no plugin"),
                Some(hint.into()),
            )
        })?;
        let mut access = loaded.providers.remove(&name).unwrap_or_default();
        let mut provider = old.unwrap_or(Provider {
            plugin: String::new(),
            base_url: None,
            options: None,
            models: Vec::new(),
        });
        provider.plugin = plugin;
        if let Some(url) = table.base_url {
            let span = url.span();
            set_base_url(&mut provider, &mut access, url.get_ref())
                .map_err(|cause| wrong(Some(span), cause, None))?;
        }
        for rule in &mut access.http {
            rule.private |= table.private;
        }
        if let Some(options) = table.options {
            provider.options = Some(json(&options));
        }
        for model in table.models {
            let price = model.price.as_ref().map(PriceTable::price).transpose();
            provider.models.push(Model {
                price: price.map_err(|cause| {
                    let cause = format!("the price of the model `{}`: {cause}", model.id);
                    wrong(None, cause, None)
                })?,
                id: model.id,
                context_tokens: model.context_tokens,
                max_output_tokens: model.max_output_tokens,
                capabilities: Vec::new(),
            });
        }
        access.secrets.extend(table.secrets);
        for http in table.http {
            access.http.push(
                http.into_rule()
                    .map_err(|(span, cause)| wrong(Some(span), cause, None))?,
            );
        }
        if let Some(model) = table
            .model
            .or_else(|| provider.models.first().map(|model| model.id.clone()))
        {
            loaded.models.insert(name.clone(), model);
        }
        loaded.config.providers.insert(name.clone(), provider);
        loaded.providers.insert(name, access);
    }

    for (alias, table) in file.toolboxes {
        let mut access = Access {
            secrets: table.secrets,
            workspace: match table.workspace {
                WorkspaceWord::None => Workspace::None,
                WorkspaceWord::Read => Workspace::Read,
                WorkspaceWord::ReadWrite => Workspace::ReadWrite,
            },
            ..Access::default()
        };
        for http in table.http {
            access.http.push(
                http.into_rule()
                    .map_err(|(span, cause)| wrong(Some(span), cause, None))?,
            );
        }
        loaded.toolboxes.insert(alias, access);
    }

    for (name, table) in file.agents {
        let mut agent = loaded.config.agents.remove(&name).unwrap_or_default();
        if let Some(provider) = table.provider {
            if !loaded.config.providers.contains_key(provider.get_ref()) {
                let names = loaded.config.providers.keys().map(String::as_str);
                let hint = nearest(provider.get_ref(), names)
                    .map(|near| format!("did you mean `{near}`?"));
                let hint = hint
                    .or_else(|| Some(format!("add a table `[providers.{}]`", provider.get_ref())));
                let cause = format!(
                    "the agent `{name}` asks the provider `{}`, which is not configured",
                    provider.get_ref()
                );
                return Err(wrong(Some(provider.span()), cause, hint));
            }
            let span = provider.span();
            let provider = provider.into_inner();
            let model = table.model.or_else(|| loaded.models.get(&provider).cloned()).ok_or_else(|| {
                let cause = format!("the agent `{name}` names no model, and the provider `{provider}` has none of its own");
                wrong(Some(span), cause, Some("add `model = \"…\"` to the agent".into()))
            })?;
            agent.model = ModelRef { provider, model };
        } else if let Some(model) = table.model {
            agent.model.model = model;
        }
        agent.runner = table.runner.unwrap_or(agent.runner);
        if let Some(toolboxes) = table.toolboxes {
            agent.toolboxes = toolboxes
                .into_iter()
                .map(ToolboxEntry::into_toolbox)
                .collect();
        }
        agent.system_prompt = table.system_prompt.or(agent.system_prompt);
        agent.options = table.options.as_ref().map(json).or(agent.options);
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
                rule.map_err(|cause| wrong(Some(span), cause, None))
            });
            agent.tool_policy = Policy(rules.collect::<Result<_>>()?);
        }
        agent.resume.mode = table.resume.unwrap_or(agent.resume.mode);
        if let Some(age) = table.resume_max_age {
            agent.resume.max_age_ms = Some(age.0.as_millis() as u64);
        }
        loaded.config.agents.insert(name, agent);
    }

    for (alias, table) in file.plugins {
        let source = Source::parse(table.source.get_ref(), folder)
            .map_err(|error| wrong(Some(table.source.span()), error.to_string(), None))?;
        loaded.plugins.insert(alias, source);
    }
    for (host, table) in file.registries {
        let span = table.span();
        loaded
            .registries
            .add(&host, table.into_inner())
            .map_err(|cause| wrong(Some(span), cause, None))?;
    }

    loaded.keep = Keep {
        sessions: file.retention.sessions.map(|span| span.0),
        bodies: file.retention.bodies.map(|span| span.0),
    };
    loaded.server = Server {
        listen: file.server.listen,
        token: file.server.token,
        hosts: file.server.hosts,
    };
    loaded.limits = file
        .limits
        .limits()
        .map_err(|cause| wrong(None, cause, None))?;
    loaded.plugin_folder = file
        .node
        .plugin_folder
        .as_ref()
        .map(|path| folder.join(path));
    file.node
        .apply(&mut loaded.settings)
        .map_err(|cause| wrong(None, cause, None))?;
    Ok(loaded)
}

impl File {
    fn secrets(&mut self) -> impl Iterator<Item = &mut Secret> {
        let providers = self.providers.values_mut();
        let toolboxes = self.toolboxes.values_mut();
        let registries = self.registries.values_mut();
        providers
            .flat_map(|table| table.secrets.values_mut())
            .chain(toolboxes.flat_map(|table| table.secrets.values_mut()))
            .chain(registries.flat_map(|table| table.get_mut().secrets()))
            .chain(&mut self.server.token)
    }
}

impl HttpTable {
    fn into_rule(self) -> Result<Rule, (Range<usize>, String)> {
        let span = self.url.span();
        let mut rule = rule(self.url.get_ref()).map_err(|cause| (span, cause))?;
        rule.methods = self
            .methods
            .iter()
            .map(|method| method.to_ascii_uppercase())
            .collect();
        rule.private |= self.private;
        Ok(rule)
    }
}

impl ToolboxEntry {
    fn into_toolbox(self) -> Toolbox {
        match self {
            Self::Alias(alias) => Toolbox {
                alias,
                options: None,
            },
            Self::Table(table) => Toolbox {
                alias: table.alias,
                options: table.options.as_ref().map(json),
            },
        }
    }
}

impl NodeTable {
    fn apply(self, settings: &mut Settings) -> Result<(), String> {
        let set =
            |value: &mut Duration, to: Option<Span>| *value = to.map_or(*value, |span| span.0);
        let lease_is_set = self.lease.is_some();
        set(&mut settings.lease, self.lease);
        if lease_is_set {
            settings.renew_every = settings.lease / 3;
            settings.lease_margin = settings.lease / 6;
        }
        set(&mut settings.lease_margin, self.lease_margin);
        set(&mut settings.renew_every, self.renew_every);
        set(&mut settings.poll_every, self.poll_every);
        set(&mut settings.flush_every, self.flush_every);
        set(&mut settings.shutdown_grace, self.shutdown_grace);
        set(&mut settings.cancel_grace, self.cancel_grace);
        set(&mut settings.timeouts.first_byte, self.model_first_byte);
        set(&mut settings.timeouts.idle, self.model_idle);
        set(&mut settings.timeouts.total, self.model_total);
        settings.max_attempts = self.max_attempts.unwrap_or(settings.max_attempts);
        settings.max_tries = self.max_tries.unwrap_or(settings.max_tries).max(1);
        settings.capacity = self.capacity.unwrap_or(settings.capacity).max(1);
        settings.resume_concurrency = self
            .resume_concurrency
            .unwrap_or(settings.resume_concurrency)
            .max(1);
        if settings.poll_every.is_zero() || settings.renew_every.is_zero() {
            return Err("`poll-every` and `renew-every` must not be zero".into());
        }
        if settings.renew_every + settings.lease_margin >= settings.lease {
            return Err(
                "`renew-every` and `lease-margin` together must be shorter than `lease`".into(),
            );
        }
        Ok(())
    }
}

/// Points a provider at another server, which is the grant to reach it.
pub(crate) fn set_base_url(
    provider: &mut Provider,
    access: &mut Access,
    url: &str,
) -> Result<(), String> {
    access.http = vec![rule(url)?];
    provider.base_url = Some(url.trim_end_matches('/').to_owned());
    Ok(())
}

/// The requests that a URL stands for: those to its host whose path begins with its path.
fn rule(url: &str) -> Result<Rule, String> {
    let wrong = || format!("`{url}` is no URL of a server: write `https://host/path`");
    let (scheme, rest) = url.split_once("://").ok_or_else(wrong)?;
    let scheme = match scheme {
        "https" => Scheme::Https,
        "http" => Scheme::Http,
        _ => return Err(wrong()),
    };
    let (authority, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    if authority.contains('@') || rest.contains(['?', '#', ' ']) {
        return Err(wrong());
    }
    let (host, port) = match authority.rsplit_once(':') {
        Some((host, port)) if !port.contains(']') => {
            (host, Some(port.parse().map_err(|_| wrong())?))
        }
        _ => (authority, None),
    };
    let host = host.to_ascii_lowercase();
    if host.is_empty() || host == "*." {
        return Err(wrong());
    }
    // An operator who writes a private address down means it. A name may lead anywhere.
    let private = host == "localhost" || host.trim_matches(['[', ']']).parse::<IpAddr>().is_ok();
    let path = path.trim_end_matches('/');
    let path_prefix = if path.is_empty() {
        "/".into()
    } else {
        path.into()
    };
    Ok(Rule {
        scheme,
        host,
        port,
        methods: Vec::new(),
        path_prefix,
        private,
    })
}

fn json(table: &toml::Table) -> String {
    serde_json::to_string(table).expect("TOML without dates is JSON")
}

fn line_of(text: &str, at: usize) -> usize {
    text.as_bytes()
        .iter()
        .take(at)
        .filter(|byte| **byte == b'\n')
        .count()
        + 1
}

/// The nearest valid name, from the words of a parser that met an unknown one.
fn nearest_of(message: &str) -> Option<String> {
    let mut words = message.split('`').skip(1).step_by(2);
    if !message.starts_with("unknown ") {
        return None;
    }
    let wrong = words.next()?;
    let known: Vec<&str> = words.collect();
    match nearest(wrong, known.iter().copied()) {
        Some(near) => Some(format!("did you mean `{near}`?")),
        None if known.is_empty() => None,
        None => Some(format!("known here: {}", known.join(", "))),
    }
}

/// The name that differs least, if it differs little.
pub(crate) fn nearest<'n>(wrong: &str, names: impl Iterator<Item = &'n str>) -> Option<&'n str> {
    let length = wrong.chars().count();
    // Two letters that changed places are two edits.
    let most = (length / 3).max(2).min(length.saturating_sub(1));
    names
        .map(|name| (distance(wrong, name), name))
        .filter(|(distance, _)| *distance <= most)
        .min()
        .map(|(_, name)| name)
}

/// Edits between two words.
fn distance(from: &str, to: &str) -> usize {
    let to: Vec<char> = to.chars().collect();
    let mut row: Vec<usize> = (0..=to.len()).collect();
    for (at, a) in from.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], at + 1);
        for (column, b) in to.iter().enumerate() {
            let replaced = diagonal + usize::from(a != *b);
            diagonal = row[column + 1];
            row[column + 1] = replaced.min(diagonal + 1).min(row[column] + 1);
        }
    }
    row[to.len()]
}

#[cfg(test)]
mod tests {
    use mainstay_core::approval::Verdict;

    use super::*;

    fn read(text: &str) -> Result<Loaded> {
        parse(Path::new("mainstay.toml"), text)
    }

    #[track_caller]
    fn check(text: &str, place: &str, cause: &str, hint: Option<&str>) {
        let error = read(text).expect_err("wrong");
        assert_eq!(error.code, Code::Config);
        assert!(error.message.contains(place), "{}", error.message);
        assert!(error.causes[0].contains(cause), "{:?}", error.causes);
        assert_eq!(error.hint.as_deref(), hint);
    }

    #[test]
    fn unknown_keys_are_told_with_line_and_nearest_name() {
        let text = "[agents.a]\nrunner = \"loop\"\nsytem-prompt = \"x\"\n";
        check(
            text,
            "mainstay.toml:3",
            "sytem-prompt",
            Some("did you mean `system-prompt`?"),
        );
        check(
            "\n[provider.x]\n",
            "mainstay.toml:2",
            "provider",
            Some("did you mean `providers`?"),
        );
        check(
            "[node]\nlease = \"soon\"\n",
            "mainstay.toml:2",
            "`soon` is no time",
            None,
        );
    }

    #[test]
    fn rules_for_tools_are_read_in_their_order() {
        let text = r#"
            [[agents.a.tool-rules]]
            tool = "write_*"
            arguments = { path = "docs/*" }
            then = "allow"
            [[agents.a.tool-rules]]
            tool = "*"
            then = "ask"
        "#;
        let policy = &read(text).unwrap().config.agents["a"].tool_policy;
        let verdicts: Vec<Verdict> = policy.0.iter().map(|rule| rule.then).collect();
        assert_eq!(verdicts, [Verdict::Allow, Verdict::Ask]);
        assert_eq!(policy.0[0].arguments["path"], "docs/*");
        let wrong = |rule: &str| format!("[agents.a]\ntool-rules = [{rule}]\n");
        check(
            &wrong(r#"{ tool = "", then = "deny" }"#),
            "mainstay.toml:2",
            "names no tool",
            None,
        );
        check(
            &wrong(r#"{ tool = "x", arguments = { "" = "y" }, then = "deny" }"#),
            "mainstay.toml:2",
            "without a name",
            None,
        );
        check(
            &wrong(r#"{ tool = "x", then = "aks" }"#),
            "mainstay.toml:2",
            "aks",
            Some("did you mean `ask`?"),
        );
        check(
            &wrong(r#"{ tool = "x" }"#),
            "mainstay.toml:2",
            "missing field `then`",
            None,
        );
    }

    #[test]
    fn an_unknown_provider_is_told_with_line_and_nearest_name() {
        let text = "[agents.a]\nprovider = \"opnai\"\n";
        check(
            text,
            "mainstay.toml:2",
            "`opnai`, which is not configured",
            Some("did you mean `openai`?"),
        );
        let text = "[agents.a]\nprovider = \"elsewhere\"\n";
        check(
            text,
            "mainstay.toml:2",
            "elsewhere",
            Some("add a table `[providers.elsewhere]`"),
        );
    }

    #[test]
    fn times_that_contradict_each_other_are_refused() {
        check(
            "[node]\nrenew-every = \"29s\"\n",
            "mainstay.toml",
            "shorter than `lease`",
            None,
        );
        let loaded = read("[node]\nlease = \"6s\"\nmax-attempts = 5\n").expect("right");
        assert_eq!(loaded.settings.renew_every, Duration::from_secs(2));
        assert_eq!(loaded.settings.max_attempts, 5);
    }

    #[test]
    fn a_file_lays_over_the_defaults() {
        let loaded = read(
            "[agents.coder]\nprovider = \"local\"\ntoolboxes = [\"files\", { alias = \"web\", options = { a = 1 } }]\n\
             [providers.local]\nplugin = \"openai-chat\"\nbase-url = \"http://127.0.0.1:8000/v1/\"\nmodel = \"m\"\n\
             secrets = { api-key = { file = \"/run/key\" } }\n\
             [toolboxes.web]\nhttp = [{ url = \"https://*.example.com/docs\", methods = [\"get\"] }]\n",
        )
        .expect("right");
        let agent = &loaded.config.agents["coder"];
        assert_eq!(
            agent.model,
            ModelRef {
                provider: "local".into(),
                model: "m".into()
            }
        );
        assert_eq!(agent.toolboxes[1].options.as_deref(), Some("{\"a\":1}"));
        assert!(loaded.config.agents.contains_key(AGENT));
        assert_eq!(
            loaded.config.providers["local"].base_url.as_deref(),
            Some("http://127.0.0.1:8000/v1")
        );
        let access = &loaded.providers["local"];
        assert!(access.http[0].private);
        assert_eq!(access.secrets["api-key"], Secret::File("/run/key".into()));
        // From the folder of the configuration, wherever the process was started.
        let text = "[toolboxes.web]\nsecrets = { token = { file = \"here\" } }\n";
        let elsewhere = parse(Path::new("/etc/mainstay/mainstay.toml"), text).expect("right");
        let token = &elsewhere.toolboxes["web"].secrets["token"];
        assert_eq!(*token, Secret::File("/etc/mainstay/here".into()));
        let rule = &loaded.toolboxes["web"].http[0];
        assert_eq!((rule.host.as_str(), rule.private), ("*.example.com", false));
        assert_eq!(
            (rule.path_prefix.as_str(), rule.methods.as_slice()),
            ("/docs", ["GET".to_owned()].as_slice())
        );
    }

    #[test]
    fn plugin_2_plugins_come_from_files_beside_the_file_and_from_registries() {
        let text =
            "[plugins.near]\nsource = \"near.wasm\"\n[plugins.far]\nsource = \"oci://h/far:1\"\n";
        let loaded = parse(Path::new("/etc/mainstay.toml"), text).expect("right");
        let near = Source::File("/etc/near.wasm".into());
        assert_eq!(loaded.plugins["near"], near);
        let far = Source::Registry("oci://h/far:1".parse().expect("a reference"));
        assert_eq!(loaded.plugins["far"], far);
        check(
            "[plugins.far]\nsource = \"oci://h/far\"\n",
            "mainstay.toml:2",
            "needs a tag",
            None,
        );
        check(
            "\n[registries.\"h:80\"]\nusername = \"u\"\n",
            "mainstay.toml:2",
            "`username` and `password`",
            None,
        );
    }

    #[test]
    fn budgets_and_prices_are_in_dollars_and_times() {
        let loaded = read(
            "[agents.a]\ntokens = 1000\ncost = 2.5\ntime = \"10m\"\n\
             [providers.parrot]\n\
             models = [{ id = \"m\", price = { input = 3, output = 15, cache-read = 0.3 } }]\n\
             [node]\nmodel-idle = \"5s\"\n",
        )
        .expect("right");
        let agent = &loaded.config.agents["a"];
        assert_eq!(
            (agent.tokens, agent.cost, agent.time_ms),
            (Some(1000), Some(2_500_000), Some(600_000))
        );
        let price = loaded.config.providers["parrot"].models[0].price;
        let wanted = Price {
            input: 3_000_000,
            output: 15_000_000,
            cache_read: Some(300_000),
            cache_write: None,
        };
        assert_eq!(price, Some(wanted));
        assert_eq!(loaded.settings.timeouts.idle, Duration::from_secs(5));
        check(
            "[agents.a]\ncost = -1\n",
            "mainstay.toml:2",
            "`-1` is no amount",
            None,
        );
        let dear =
            "[providers.parrot]\nmodels = [{ id = \"m\", price = { input = 5000, output = 1 } }]\n";
        check(dear, "mainstay.toml", "the price of the model `m`", None);
    }

    #[test]
    fn urls_of_grants_are_checked() {
        for wrong in [
            "api.test",
            "ftp://a",
            "https://",
            "https://u@a/",
            "https://a:x/",
            "https://a/?b",
        ] {
            assert!(rule(wrong).is_err(), "{wrong}");
        }
        let rule = rule("http://[::1]:80").expect("a URL");
        assert_eq!(
            (rule.host.as_str(), rule.port, rule.private),
            ("[::1]", Some(80), true)
        );
    }

    #[test]
    fn the_nearest_name_is_near() {
        assert_eq!(
            nearest("modle", ["model", "models"].into_iter()),
            Some("model")
        );
        assert_eq!(nearest("xyz", ["model"].into_iter()), None);
    }
}
