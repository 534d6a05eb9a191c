//! Rules of the claim, the coordinator and the boundary, under faults.

mod allowance;
mod attempts;
mod boundary;
mod calls;
mod claims;
mod coordinator;
mod endings;
mod handover;
mod joins;
mod models;
mod owed;
mod starts;
mod steps;
mod watchers;

use mainstay_core::commit::{Append, Write};
use mainstay_core::plugin::LocalEvent;
use mainstay_test_simulation::plugins::{Scripted, call, results, say};

fn one_call(tool: &'static str) -> Scripted {
    Scripted::new(move |request, _| {
        if results(request) == 0 {
            call(&[("c", tool, "{}")])
        } else {
            say("done")
        }
    })
}

fn later(after_ms: u32, mut answer: Vec<LocalEvent>) -> Vec<LocalEvent> {
    answer[0].after_ms = after_ms;
    answer
}

fn ends(commit: &mainstay_core::commit::Commit) -> bool {
    matches!(&commit.write, Write::Append(Append { end: Some(_), .. }))
}
