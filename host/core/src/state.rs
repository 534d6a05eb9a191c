//! What runners keep from step to step, each under its own name, so that one which is swapped in and out
//! again finds what it left. A runner is handed its own, in a format that it reads; having none, the
//! newest of another's that it says it accepts.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::id::Seq;
use crate::plugin::{PluginInfo, State};

/// What is kept, and with which step, by the name of who wrote it.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct States(BTreeMap<String, (Seq, State)>);

impl States {
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Seq of the step that stored last.
    #[must_use]
    pub fn newest(&self) -> Option<Seq> {
        self.0.values().map(|(seq, _)| *seq).max()
    }

    /// All of them, by name.
    pub fn iter(&self) -> impl Iterator<Item = &(Seq, State)> {
        self.0.values()
    }

    /// What the runner of this name keeps.
    #[must_use]
    pub fn of(&self, name: &str) -> Option<&(Seq, State)> {
        self.0.get(name)
    }

    /// What this runner is handed.
    #[must_use]
    pub fn handed_to(&self, runner: &PluginInfo) -> Option<&(Seq, State)> {
        let reads = |state: &State| {
            (state.runner == runner.name && state.state_version == runner.state_version)
                || runner.accepts.iter().any(|format| {
                    format.runner == state.runner && format.state_version == state.state_version
                })
        };
        let own = self.of(&runner.name).filter(|(_, state)| reads(state));
        own.or_else(|| {
            let others = self.0.values().filter(|(_, state)| reads(state));
            others.max_by_key(|(seq, _)| *seq)
        })
    }

    /// A step stores this.
    pub fn keep(&mut self, seq: Seq, state: State) {
        self.0.insert(state.runner.clone(), (seq, state));
    }

    /// The same, as if one step had stored them all.
    #[must_use]
    pub(crate) fn at(&self, seq: Seq) -> Self {
        let mut moved = self.clone();
        moved.0.values_mut().for_each(|(of, _)| *of = seq);
        moved
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::plugin::{Kind, StateFormat, Workspace};

    fn runner(name: &str, state_version: u32, accepts: &[(&str, u32)]) -> PluginInfo {
        let format = |(runner, state_version): &(&str, u32)| StateFormat {
            runner: (*runner).into(),
            state_version: *state_version,
        };
        PluginInfo {
            digest: "d".into(),
            kind: Kind::Runner,
            name: name.into(),
            version: "1.0.0".into(),
            summary: String::new(),
            wit: "0.1.0".into(),
            size: 0,
            imports: Vec::new(),
            options_schema: None,
            state_version,
            accepts: accepts.iter().map(format).collect(),
            http: Vec::new(),
            secrets: Vec::new(),
            workspace: Workspace::None,
            models: Vec::new(),
            hosted_tools: Vec::new(),
            tools: Vec::new(),
        }
    }

    #[test]
    fn a_runner_gets_its_own_and_else_the_newest_that_it_accepts() {
        let mut states = States::default();
        for (seq, name, state_version) in [(3, "a", 1), (5, "b", 1), (9, "c", 2), (7, "d", 1)] {
            let state = State {
                runner: name.into(),
                state_version,
                data: Vec::new(),
            };
            states.keep(seq, state);
        }
        for (runner, from) in [
            (runner("a", 1, &[("c", 2)]), Some(3)),
            (runner("a", 2, &[]), None),
            (runner("a", 2, &[("a", 1), ("c", 2)]), Some(3)),
            (runner("a", 2, &[("b", 1), ("d", 1)]), Some(7)),
            (runner("e", 1, &[("b", 1), ("c", 1)]), Some(5)),
            (runner("e", 1, &[]), None),
        ] {
            let handed = states.handed_to(&runner).map(|(seq, _)| *seq);
            assert_eq!(handed, from, "{} {:?}", runner.name, runner.accepts);
        }
        assert_eq!(states.newest(), Some(9));
        assert_eq!(states.at(4).newest(), Some(4));
    }
}
