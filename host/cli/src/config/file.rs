//! The tables of `mainstay.toml` as they are written, and what each stands for by itself. An unknown key
//! is an error.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use mainstay_core::config::{Settings, Toolbox};
use mainstay_core::plugin::{Price, Workspace};
use mainstay_core::policy::ResumeMode;
use serde::Deserialize;
use toml::Spanned;

use super::Server;
use super::grant::{HttpTable, Secret};
use super::value::{Dollars, Span};
use crate::limits::LimitsTable;
use crate::rules::RuleTable;
use crate::sources::RegistryTable;

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct File {
    pub(super) agents: BTreeMap<String, AgentTable>,
    pub(super) providers: BTreeMap<String, ProviderTable>,
    pub(super) toolboxes: BTreeMap<String, AccessTable>,
    pub(super) plugins: BTreeMap<String, PluginTable>,
    pub(super) registries: BTreeMap<String, Spanned<RegistryTable>>,
    pub(super) retention: RetentionTable,
    pub(super) server: ServerTable,
    pub(super) node: NodeTable,
    pub(super) limits: LimitsTable,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct AgentTable {
    pub(super) runner: Option<String>,
    pub(super) provider: Option<Spanned<String>>,
    pub(super) model: Option<String>,
    pub(super) toolboxes: Option<Vec<ToolboxEntry>>,
    pub(super) system_prompt: Option<String>,
    pub(super) options: Option<toml::Table>,
    pub(super) steps: Option<u32>,
    pub(super) tokens: Option<u64>,
    /// US dollars.
    pub(super) cost: Option<Dollars>,
    pub(super) time: Option<Span>,
    pub(super) max_children: Option<u32>,
    pub(super) max_depth: Option<u32>,
    pub(super) tool_rules: Option<Vec<Spanned<RuleTable>>>,
    pub(super) resume: Option<ResumeMode>,
    pub(super) resume_max_age: Option<Span>,
}

#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub(super) enum ToolboxEntry {
    Alias(String),
    Table(ToolboxTable),
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ToolboxTable {
    pub(super) alias: String,
    pub(super) options: Option<toml::Table>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ProviderTable {
    pub(super) plugin: Option<String>,
    pub(super) base_url: Option<Spanned<String>>,
    pub(super) model: Option<String>,
    pub(super) models: Vec<ModelTable>,
    pub(super) options: Option<toml::Table>,
    pub(super) secrets: BTreeMap<String, Secret>,
    /// The base URL leads into a private network.
    pub(super) private: bool,
    pub(super) http: Vec<HttpTable>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ModelTable {
    pub(super) id: String,
    pub(super) context_tokens: Option<u32>,
    pub(super) max_output_tokens: Option<u32>,
    pub(super) price: Option<PriceTable>,
}

/// US dollars for a million tokens.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct PriceTable {
    pub(super) input: Dollars,
    pub(super) output: Dollars,
    pub(super) cache_read: Option<Dollars>,
    pub(super) cache_write: Option<Dollars>,
}

impl PriceTable {
    /// # Errors
    /// A price that is more than the contract can say.
    pub(super) fn price(&self) -> Result<Price, String> {
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
pub(super) struct AccessTable {
    pub(super) http: Vec<HttpTable>,
    pub(super) secrets: BTreeMap<String, Secret>,
    pub(super) workspace: WorkspaceWord,
}

/// `[plugins.NAME]`
#[derive(Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct PluginTable {
    pub(super) source: Spanned<String>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum WorkspaceWord {
    #[default]
    None,
    Read,
    ReadWrite,
}

/// `[retention]`
#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct RetentionTable {
    pub(super) sessions: Option<Span>,
    pub(super) bodies: Option<Span>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct ServerTable {
    pub(super) listen: Option<SocketAddr>,
    pub(super) token: Option<Secret>,
    pub(super) hosts: Vec<String>,
    pub(super) max_connections: Option<usize>,
    pub(super) read_timeout: Option<Span>,
}

impl ServerTable {
    /// # Errors
    /// Numbers that would let nobody in.
    pub(super) fn server(self) -> Result<Server, String> {
        let usual = Server::default();
        let server = Server {
            listen: self.listen,
            token: self.token,
            hosts: self.hosts,
            max_connections: self.max_connections.unwrap_or(usual.max_connections),
            read_timeout: self.read_timeout.map_or(usual.read_timeout, |span| span.0),
        };
        if server.max_connections == 0 {
            return Err("`max-connections` must be at least 1".into());
        }
        if server.read_timeout.is_zero() {
            return Err("`read-timeout` must not be zero".into());
        }
        Ok(server)
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub(super) struct NodeTable {
    pub(super) plugin_folder: Option<PathBuf>,
    pub(super) lease: Option<Span>,
    pub(super) lease_margin: Option<Span>,
    pub(super) renew_every: Option<Span>,
    pub(super) poll_every: Option<Span>,
    pub(super) flush_every: Option<Span>,
    pub(super) shutdown_grace: Option<Span>,
    pub(super) cancel_grace: Option<Span>,
    pub(super) max_attempts: Option<u32>,
    pub(super) max_tries: Option<u32>,
    pub(super) capacity: Option<u32>,
    pub(super) resume_concurrency: Option<usize>,
    pub(super) model_first_byte: Option<Span>,
    pub(super) model_idle: Option<Span>,
    pub(super) model_total: Option<Span>,
}

impl From<WorkspaceWord> for Workspace {
    fn from(word: WorkspaceWord) -> Self {
        match word {
            WorkspaceWord::None => Self::None,
            WorkspaceWord::Read => Self::Read,
            WorkspaceWord::ReadWrite => Self::ReadWrite,
        }
    }
}

impl File {
    /// Wherever one may be named.
    pub(super) fn secrets(&mut self) -> impl Iterator<Item = &mut Secret> {
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

impl ToolboxEntry {
    pub(super) fn into_toolbox(self) -> Toolbox {
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

/// A renewal has to come through in a part of it, whatever else the machine does.
const SHORTEST_LEASE: Duration = Duration::from_millis(500);

impl NodeTable {
    /// # Errors
    /// Times that contradict each other.
    pub(super) fn apply(self, settings: &mut Settings) -> Result<(), String> {
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
        settings.max_tries = self.max_tries.unwrap_or(settings.max_tries);
        settings.capacity = self.capacity.unwrap_or(settings.capacity);
        settings.resume_concurrency = self
            .resume_concurrency
            .unwrap_or(settings.resume_concurrency);
        for (name, is_zero) in [
            ("max-tries", settings.max_tries == 0),
            ("capacity", settings.capacity == 0),
            ("resume-concurrency", settings.resume_concurrency == 0),
        ] {
            if is_zero {
                return Err(format!("`{name}` must be at least 1"));
            }
        }
        if settings.lease < SHORTEST_LEASE {
            return Err("`lease` must be at least 500ms: a shorter one runs out by itself".into());
        }
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

/// As plugins are given it.
pub(super) fn json(table: &toml::Table) -> String {
    serde_json::to_string(table).expect("TOML without dates is JSON")
}
