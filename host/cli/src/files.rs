//! How many files this process may have open: each client's connection is one, and so is each answer of
//! a model that streams in. What shells give by default is too little for a node.

use tracing::debug;

/// Raises the limit as far as the system lets this process.
#[cfg(unix)]
pub(crate) fn raise() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum {
        return;
    }
    let raised = Rlimit {
        current: maximum,
        maximum,
    };
    let words = |limit: Option<u64>| limit.map_or("any number".into(), |limit| limit.to_string());
    let (from, to) = (words(current), words(maximum));
    match setrlimit(Resource::Nofile, raised) {
        Ok(()) => debug!(from, to, "the limit of open files is raised"),
        Err(error) => debug!(from, to, %error, "the limit of open files cannot be raised"),
    }
}

#[cfg(not(unix))]
pub(crate) fn raise() {}

/// As many of these connections as leave half of the files to everything else.
#[cfg(unix)]
pub(crate) fn share(connections: usize) -> usize {
    use rustix::process::{Resource, getrlimit};
    let limit = getrlimit(Resource::Nofile).current;
    let limit = limit.and_then(|limit| usize::try_from(limit).ok());
    let share = limit.map_or(connections, |limit| connections.min(limit / 2).max(1));
    if share < connections {
        debug!(
            connections,
            share, "the limit of open files allows fewer connections than are configured"
        );
    }
    share
}

#[cfg(not(unix))]
pub(crate) fn share(connections: usize) -> usize {
    connections
}
