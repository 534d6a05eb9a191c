//! What one use of a plugin may reach of the world: what its component asks for, what the operator
//! grants to the name it is used under, and what came of that so far.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::{Digest, Millis};
use crate::plugin::{HttpRule, Kind, SecretRule, Workspace};

/// The report of one use.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Access {
    pub kind: Kind,
    /// What it is granted under: a toolbox's name, or that of a configured provider.
    pub alias: String,
    /// `plugin.name` of the component that runs under it now.
    pub name: String,
    pub digest: Digest,
    pub asked: Asked,
    pub granted: Granted,
    /// Left out where no process runs that could know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub used: Option<Used>,
}

/// What the component's manifest asks for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Asked {
    pub http: Vec<HttpRule>,
    pub secrets: Vec<SecretRule>,
    pub workspace: Workspace,
}

/// What the operator grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Granted {
    /// `GET|HEAD https://*.example.com/docs` for example.
    pub http: Vec<String>,
    /// By the name that the manifest gives it.
    pub secrets: BTreeMap<String, GrantedSecret>,
    pub workspace: Workspace,
}

/// Where a secret comes from. Its value is nowhere in a report.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GrantedSecret {
    /// `environment variable KEY`, `file PATH` or `a value`.
    pub from: String,
    /// It has a value now.
    pub set: bool,
}

/// What a process has seen of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Used {
    /// When the process began to count.
    pub since: Millis,
    /// By method and origin, those that were asked for first before others.
    pub requests: Vec<Requests>,
    /// Requests to further origins, of which there were too many to tell apart.
    pub others: u64,
    /// How often each secret was put into a request.
    pub secrets: BTreeMap<String, u64>,
    /// Calls that were given the workspace.
    pub workspace_calls: u64,
}

/// Requests of one method to one origin.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    pub method: String,
    /// `https://api.example.com` for example.
    pub origin: String,
    /// That left the host.
    pub sent: u64,
    /// That did not.
    pub refused: u64,
    /// Why the last of those did not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<String>,
}
