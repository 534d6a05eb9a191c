//! Makes a failing script smaller while it fails in the same way: leaves actions out, in ever smaller
//! pieces, then makes simpler what is left.

use crate::script::{Action, Agent, Answer, How, Script};

/// The smallest script found within `tries` runs. `fails` runs a script and says whether it still
/// fails in the way that is looked for.
pub fn shrink(script: Script, tries: usize, fails: impl FnMut(&Script) -> bool) -> Script {
    let mut search = Search {
        best: script,
        left: tries,
        fails,
    };
    loop {
        let before = search.best.clone();
        search.leave_out();
        search.leave_out_pairs();
        search.simplify();
        if search.best == before || search.left == 0 {
            return search.best;
        }
    }
}

struct Search<F> {
    best: Script,
    left: usize,
    fails: F,
}

impl<F: FnMut(&Script) -> bool> Search<F> {
    /// Takes a candidate if it fails too.
    fn attempt(&mut self, candidate: Script) -> bool {
        if self.left == 0 || candidate == self.best {
            return false;
        }
        self.left -= 1;
        let better = (self.fails)(&candidate);
        if better {
            self.best = candidate;
        }
        better
    }

    /// Delta debugging over the actions.
    fn leave_out(&mut self) {
        let mut size = self.best.actions.len().div_ceil(2);
        while size > 0 {
            let mut at = 0;
            while at < self.best.actions.len() {
                let mut candidate = self.best.clone();
                let end = (at + size).min(candidate.actions.len());
                candidate.actions.drain(at..end);
                if !self.attempt(candidate) {
                    at += size;
                }
            }
            size /= 2;
        }
    }

    /// Of a few actions, two that stand apart may be needed only for each other.
    fn leave_out_pairs(&mut self) {
        const FEW: usize = 12;
        if self.best.actions.len() > FEW {
            return;
        }
        let mut first = 0;
        while first < self.best.actions.len() {
            let mut second = first + 1;
            while second < self.best.actions.len() {
                let mut candidate = self.best.clone();
                candidate.actions.remove(second);
                candidate.actions.remove(first);
                if !self.attempt(candidate) {
                    second += 1;
                }
            }
            first += 1;
        }
    }

    fn simplify(&mut self) {
        self.change(|script| script.latency_ms = 0);
        while self.best.sessions.len() > 1 {
            let last = self.best.sessions.len() - 1;
            if !self.change(|script| {
                script.sessions.pop();
                script
                    .actions
                    .retain(|timed| session(&timed.action) != Some(last));
            }) {
                break;
            }
        }
        while self.best.nodes > 1 {
            let nodes = self.best.nodes - 1;
            if !self.change(|script| {
                script.nodes = nodes;
                for timed in &mut script.actions {
                    if let Some(node) = node(&mut timed.action) {
                        *node %= nodes;
                    }
                }
            }) {
                break;
            }
        }
        for n in 0..self.best.sessions.len() {
            self.change(|script| script.sessions[n] = Agent::Plain);
        }
        for n in 0..self.best.actions.len() {
            self.simplify_action(n);
        }
    }

    fn simplify_action(&mut self, n: usize) {
        self.change(|script| {
            if let Some(node) = node(&mut script.actions[n].action) {
                *node = 0;
            }
        });
        for unit in [1_000, 100] {
            self.change(|script| {
                let at_ms = &mut script.actions[n].at_ms;
                *at_ms -= *at_ms % unit;
            });
        }
        let Action::Prompt { plan, .. } = &self.best.actions[n].action else {
            return;
        };
        for step in (0..plan.len()).rev() {
            self.change(|script| {
                if let Some(plan) = plan_of(script, n) {
                    plan.remove(step);
                }
            });
        }
        let steps = plan_of(&mut self.best.clone(), n).map_or(0, |plan| plan.len());
        for step in 0..steps {
            self.change(|script| {
                if let Some(plan) = plan_of(script, n) {
                    plan[step] = Answer::Say {
                        pieces: 1,
                        pause_ms: 0,
                    };
                }
            });
            let calls = |script: &mut Script| match plan_of(script, n).map(|plan| &plan[step]) {
                Some(Answer::Call { calls, .. }) => calls.len(),
                _ => 0,
            };
            for call in (0..calls(&mut self.best.clone())).rev() {
                self.change(|script| {
                    if let Some([Answer::Call { calls, .. }]) =
                        plan_of(script, n).map(|plan| &mut plan[step..=step])
                    {
                        calls.remove(call);
                    }
                });
            }
            for call in 0..calls(&mut self.best.clone()) {
                self.change(|script| {
                    if let Some([Answer::Call { calls, .. }]) =
                        plan_of(script, n).map(|plan| &mut plan[step..=step])
                    {
                        calls[call].how = How::Well;
                    }
                });
            }
        }
    }

    fn change(&mut self, change: impl FnOnce(&mut Script)) -> bool {
        let mut candidate = self.best.clone();
        change(&mut candidate);
        self.attempt(candidate)
    }
}

fn plan_of(script: &mut Script, n: usize) -> Option<&mut Vec<Answer>> {
    match &mut script.actions.get_mut(n)?.action {
        Action::Prompt { plan, .. } => Some(plan),
        _ => None,
    }
}

fn session(action: &Action) -> Option<usize> {
    match action {
        Action::Prompt { session, .. }
        | Action::Retry { session, .. }
        | Action::CancelInput { session, .. }
        | Action::Redeliver { session, .. }
        | Action::Interrupt { session, .. }
        | Action::Wake { session, .. }
        | Action::Run { session, .. }
        | Action::Resume { session, .. }
        | Action::Follow { session, .. }
        | Action::Signal { session, .. }
        | Action::Approve { session, .. }
        | Action::Cancel { session, .. }
        | Action::TakeOver { session, .. }
        | Action::Fork { session, .. }
        | Action::Revert { session, .. }
        | Action::ClearRevert { session, .. } => Some(*session),
        Action::Kill { .. }
        | Action::Shutdown { .. }
        | Action::Stop { .. }
        | Action::Fault { .. }
        | Action::Clock { .. } => None,
    }
}

fn node(action: &mut Action) -> Option<&mut usize> {
    match action {
        Action::Prompt { node, .. }
        | Action::Retry { node, .. }
        | Action::CancelInput { node, .. }
        | Action::Redeliver { node, .. }
        | Action::Interrupt { node, .. }
        | Action::Wake { node, .. }
        | Action::Run { node, .. }
        | Action::Resume { node, .. }
        | Action::Follow { node, .. }
        | Action::Kill { node, .. }
        | Action::Shutdown { node, .. }
        | Action::Stop { node, .. }
        | Action::Clock { node, .. }
        | Action::Signal { node, .. }
        | Action::Approve { node, .. }
        | Action::Cancel { node, .. }
        | Action::TakeOver { node, .. }
        | Action::Fork { node, .. }
        | Action::Revert { node, .. }
        | Action::ClearRevert { node, .. } => Some(node),
        Action::Fault { node, .. } => node.as_mut(),
    }
}
