//! The conformance kit: drives one component through its contract and reports what does not hold.
//!
//! A plugin is right if it keeps a handful of named properties ([`Property`]), and each of them can be
//! asked of any component without knowing what it is for: the same view gives the same decision, a
//! decoder does not mind where bytes are cut, an idempotent tool changes nothing the second time, and a
//! session that is killed at any commit ends as if it had not been. [`check`] asks them all.
//!
//! Read [`report`] for what comes out, [`stage`](mod@stage) for how a session is played and cut short
//! at a commit, and then one file per kind: `runner`, `provider`, `toolbox`.

mod bench;
mod cast;
mod corpus;
mod cuts;
mod input;
mod link;
mod provider;
pub mod report;
mod runner;
mod server;
mod stage;
mod toolbox;

pub use report::{Failure, Finding, Property, Report, Verdict};

use mainstay_core::BoxError;
use mainstay_core::plugin::Kind;

use bench::Bench;

/// What the author knows of a plugin and the kit cannot guess.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Options of the plugin, as an operator would set them: JSON text that keeps to its schema.
    pub options: Option<String>,
    /// Calls of a toolbox, made in this order in one workspace. Tools that are not called here are
    /// called with arguments made from their schema.
    pub calls: Vec<Call>,
    /// Answers of a provider's server with status 200, besides those that the kit has: the name that
    /// the report uses, and the body.
    pub answers: Vec<(String, Vec<u8>)>,
    /// Only these properties, and what it takes to load; all if there are none.
    pub only: Vec<Property>,
}

impl Options {
    /// Whether one of these is asked.
    fn asks(&self, properties: &[Property]) -> bool {
        self.only.is_empty() || properties.iter().any(|one| self.only.contains(one))
    }
}

/// One call of a tool.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Call {
    pub tool: String,
    #[serde(default = "no_arguments")]
    pub arguments: serde_json::Value,
}

fn no_arguments() -> serde_json::Value {
    serde_json::Value::Object(serde_json::Map::new())
}

/// Why nothing could be checked: the trouble is the machine's and not the plugin's.
#[derive(Debug, thiserror::Error)]
#[error("the kit could not {action}")]
pub struct Error {
    action: &'static str,
    #[source]
    cause: BoxError,
}

impl Error {
    fn new(action: &'static str, cause: impl Into<BoxError>) -> Self {
        Self {
            action,
            cause: cause.into(),
        }
    }
}

/// Asks every property of a component that there is for its kind. Takes seconds. Everything that the
/// plugin writes goes into temporary folders, and it reaches no network: what a toolbox fetches is
/// answered by a server of the kit on this machine, whatever address it asks for.
///
/// A component that does not load has a report too: [`Property::Loads`] is broken in it.
///
/// # Errors
/// The kit itself failed: no temporary folder, no engine.
///
/// # Cancel safety
/// Dropped midway, nothing stays behind.
pub async fn check(component: &[u8], options: &Options) -> Result<Report, Error> {
    let bench = Bench::new(options.clone())?;
    let info = match bench.load(component).await {
        Ok(info) => info,
        Err(why) => return Ok(Report::not_loaded(&why)),
    };
    let mut report = Report::of(&info);
    match info.kind {
        Kind::Runner => runner::check(&bench, &info, &mut report).await?,
        Kind::Provider => provider::check(&bench, &info, &mut report).await?,
        Kind::Toolbox => toolbox::check(&bench, &info, &mut report).await?,
    }
    report.keep(|property| property == Property::Loads || bench.options.asks(&[property]));
    Ok(report)
}
