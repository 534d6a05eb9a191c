//! What an open step is bound to. A step that was decided goes on with the components that it was
//! decided under, on whatever node, and with no others: where one of them is nowhere to be had, the
//! session is not claimed. Nothing is written and nothing counted, so it goes on by itself once the
//! component is there again.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use tracing::debug;

use crate::id::Digest;
use crate::plugin::{Kind, Plugins};
use crate::tail::Tail;

/// A component that an open step needs and that is not there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Missing {
    pub digest: Digest,
    pub kind: Kind,
    /// The name that led to it when the step was decided.
    pub alias: String,
}

/// What the session's open step needs, wherever that may be. Empty where no step is open.
#[must_use]
pub fn needs(tail: &Tail) -> Vec<Missing> {
    let Some(step) = &tail.step else {
        return Vec::new();
    };
    let awaits = step.ending.is_none();
    let provider = step.started.provider.iter().filter(|_| awaits);
    let provider = provider.map(|it| (Kind::Provider, &it.digest, &it.alias));
    let toolboxes = step.started.toolboxes.iter();
    let toolboxes = toolboxes.map(|it| (Kind::Toolbox, &it.digest, &it.alias));
    let component = |(kind, digest, alias): (Kind, &Digest, &String)| Missing {
        digest: digest.clone(),
        kind,
        alias: alias.clone(),
    };
    provider.chain(toolboxes).map(component).collect()
}

/// What of it this node cannot get.
pub(crate) async fn missing(plugins: &Arc<dyn Plugins>, tail: &Tail) -> Vec<Missing> {
    let mut missing = Vec::new();
    for need in needs(tail) {
        match plugins.info(&need.digest).await {
            Ok(Some(_)) => {}
            Ok(None) => missing.push(need),
            // Whoever runs the step finds out, and is told why.
            Err(error) => debug!(?need, %error, "a component could not be looked for"),
        }
    }
    missing
}
