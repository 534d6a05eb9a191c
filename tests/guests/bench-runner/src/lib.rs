//! The runner of the standard turn: calls the tool `thing` in every step and, when one decision is
//! left of the turn's allowance, is done. It asks no model and keeps no state, so that an agent of
//! eleven steps runs ten calls and what is measured is the host.

use mainstay_guest::runner::{Decision, RunnerManifest, View};
use mainstay_guest::types::ToolCall;
use mainstay_guest::{Error, Runner, manifest};

struct Bench;

mainstay_guest::runner!(Bench);

impl Runner for Bench {
    type Options = ();
    type State = ();

    fn manifest() -> RunnerManifest {
        manifest::runner(
            "bench-runner",
            env!("CARGO_PKG_VERSION"),
            "Calls a tool in every step but the last",
        )
    }

    fn decide(view: &View<'_>, (): (), (): &mut ()) -> Result<Decision, Error> {
        if view.last_step() {
            return Ok(Decision::done());
        }
        Ok(Decision::call_tools(vec![ToolCall {
            id: "1".to_owned(),
            tool: "thing".to_owned(),
            arguments: "{}".to_owned(),
        }]))
    }
}

#[cfg(test)]
mod tests {
    use mainstay_guest::runner::{Action, Trigger};
    use mainstay_guest::testing::{self, MemoryHistory};

    use super::*;

    #[test]
    fn it_calls_until_one_decision_is_left() {
        let history = MemoryHistory::new();
        let mut view = history.view(Trigger::TurnStarted);
        view.budget.steps = 2;
        let step = testing::decide::<Bench>(&view).unwrap();
        assert!(matches!(&step.decision.action, Action::CallTools(calls) if calls.len() == 1));
        view.budget.steps = 1;
        let step = testing::decide::<Bench>(&view).unwrap();
        assert_eq!(step.decision, Decision::done());
        assert_eq!(step.state, None);
    }
}
