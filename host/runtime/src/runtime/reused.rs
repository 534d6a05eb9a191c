//! A runner in an instance that outlives its calls. No session has one: it is there to compare with,
//! so that a runner that keeps something in memory between two decisions is found out.

use std::sync::Arc;

use mainstay_core::plugin::{Decision, GuestError, Kind, View};

use super::{Runtime, decision};
use crate::bindings::convert;
use crate::bindings::v0_1_0::runner::Runner;
use crate::host::history::{Allowance, History};
use crate::host::wasi;
use crate::instance::{Function, Instance, Linked};
use crate::limits::RunnerLimits;

/// One instance that is asked again and again.
pub struct ReusedRunner {
    instance: Instance,
    guest: Runner,
    limits: RunnerLimits,
}

impl Runtime {
    /// Makes an instance of a runner that can be asked for more than one decision.
    ///
    /// # Errors
    /// There is no runner of this digest, or it has no instance within its limits.
    pub async fn reused_runner(&self, digest: &str) -> Result<ReusedRunner, GuestError> {
        let loaded = self.component(digest, Kind::Runner).await?;
        let Linked::Runner(pre) = &loaded.linked else {
            unreachable!("its kind was compared");
        };
        let limits = self.config.limits.runner;
        let mut instance = self.pure(&loaded, limits.decide).await;
        let function = function(&limits);
        let guest = instance
            .run(function, String::new(), async |store| {
                pre.instantiate_async(store).await
            })
            .await?;
        Ok(ReusedRunner {
            instance,
            guest,
            limits,
        })
    }
}

impl ReusedRunner {
    /// Asks for a decision, with the limits, the clock and the random numbers that a fresh instance
    /// would have. Of no use any more once it trapped.
    ///
    /// # Errors
    /// As [`mainstay_core::plugin::Plugins::decide`].
    pub async fn decide(&mut self, view: View) -> Result<Decision, GuestError> {
        let context = format!("session {} step at {}", view.session, view.now);
        let guest = self.instance.store.data_mut();
        guest.wasi = wasi::inert(&view.session.to_string(), view.now);
        guest.history = Allowance::new(self.limits.history_bytes);
        let history = self.instance.lend(History(Arc::clone(&view.history)))?;
        let view = convert::view(view, history);
        let steps = self.guest.mainstay_plugin_steps();
        let answer = self
            .instance
            .run(function(&self.limits), context, async |store| {
                steps.call_decide(store, &view).await
            })
            .await?;
        decision(&self.limits, &self.instance, answer)
    }
}

fn function(limits: &RunnerLimits) -> Function {
    Function {
        name: "decide",
        output: "decision",
        output_bytes: limits.decision_bytes,
    }
}
