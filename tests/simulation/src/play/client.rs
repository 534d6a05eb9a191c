//! What clients do, against whatever node they reach, and what they are told.

use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt as _;
use mainstay_core::commit::Refused;
use mainstay_core::event::{Delivery, InputContent};
use mainstay_core::history::{Approval, Signal};
use mainstay_core::id::SessionId;
use mainstay_core::node::{Followed, Node};
use mainstay_core::port::Store as _;
use mainstay_core::port::StoreError;
use mainstay_core::tail::Scope;

use super::end::open_calls;
use super::{Follower, PATIENCE, Play, broken, fork_id, input_id, session_id};
use crate::guest::{APPROVAL, SIGNAL, prompt};
use crate::invariant::Broken;
use crate::script::Action;

impl Play {
    /// A client's call, which is made until it is answered.
    pub(super) async fn ask<T, F>(
        &self,
        place: usize,
        call: impl Fn(Arc<Node>) -> F,
    ) -> Result<Result<T, Refused>, Broken>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        for attempt in 0.. {
            if let Some(process) = self.process(place + attempt) {
                let answer = tokio::select! {
                    biased;
                    () = process.link.died() => None,
                    answer = tokio::time::timeout(PATIENCE, call(process.node)) => answer.ok(),
                };
                match answer {
                    Some(Ok(answer)) => return Ok(Ok(answer)),
                    Some(Err(StoreError::Refused(refused))) => return Ok(Err(refused)),
                    Some(Err(StoreError::Damaged { cause, .. })) => {
                        return Err(broken("no_session_is_damaged", cause));
                    }
                    Some(Err(StoreError::Unavailable { .. })) | None => {}
                }
            }
            tokio::time::sleep(Duration::from_millis(300)).await;
        }
        unreachable!("a client never gives up")
    }

    pub(super) async fn prompt(
        &self,
        number: u32,
        session: SessionId,
        place: usize,
        delivery: Delivery,
        plan: &[crate::script::Answer],
    ) -> Result<(), Broken> {
        self.admit(number, session, place, delivery, prompt(number, plan))
            .await
    }

    pub(super) async fn admit(
        &self,
        number: u32,
        session: SessionId,
        place: usize,
        delivery: Delivery,
        content: InputContent,
    ) -> Result<(), Broken> {
        let input = input_id(number);
        let admit = |node: Arc<Node>| {
            let content = content.clone();
            async move { node.admit(session, input, delivery, content).await }
        };
        match self.ask(place, admit).await? {
            Ok(admission) => self.judge.told(session, input, admission.seq),
            Err(Refused::Cancelled(_)) if self.is_cancelled(session).await => {}
            Err(refused) => {
                return Err(broken("a_prompt_is_admitted", refused.to_string()));
            }
        }
        Ok(())
    }

    pub(super) async fn client(self: &Arc<Self>, action: Action) -> Result<(), Broken> {
        match action {
            Action::Prompt {
                input,
                session,
                node,
                delivery,
                plan,
            } => {
                self.prompt(input, session_id(session), node, delivery, &plan)
                    .await?;
            }
            Action::Retry {
                input,
                session,
                node,
            } => {
                self.prompt(input, session_id(session), node, Delivery::Queue, &[])
                    .await?;
            }
            Action::CancelInput {
                input,
                session,
                node,
            } => {
                let (session, input) = (session_id(session), input_id(input));
                let cancel =
                    move |node: Arc<Node>| async move { node.cancel_input(session, input).await };
                if self.ask(node, cancel).await?.is_ok() {
                    self.judge.told_cancelled(session, input);
                }
            }
            Action::Redeliver {
                input,
                session,
                node,
                delivery,
            } => {
                let (session, input) = (session_id(session), input_id(input));
                let redeliver = move |node: Arc<Node>| async move {
                    node.redeliver(session, input, delivery).await
                };
                // It may be settled, or not admitted yet.
                let _ = self.ask(node, redeliver).await?;
            }
            Action::Interrupt {
                session,
                node,
                then,
            } => {
                let session = session_id(session);
                let interrupt = move |node: Arc<Node>| async move {
                    if then == Some(Scope::Steers) {
                        node.interrupt_and_continue(session).await
                    } else {
                        node.interrupt(session).await
                    }
                };
                self.ask(node, interrupt)
                    .await?
                    .map_err(|refused| broken("an_interrupt_is_answered", refused.to_string()))?;
                if then == Some(Scope::All) {
                    let wake =
                        move |node: Arc<Node>| async move { node.wake(session, Scope::All).await };
                    let _ = self.ask(node, wake).await?;
                }
            }
            Action::Signal {
                input,
                session,
                node,
            } => {
                let content = InputContent::Signal(Signal {
                    name: SIGNAL.into(),
                    data: "{}".into(),
                });
                self.admit(input, session_id(session), node, Delivery::Steer, content)
                    .await?;
            }
            Action::Approve {
                session,
                node,
                approved,
            } => {
                let session = session_id(session);
                let asked = self.memory.tail(session).await.ok().flatten();
                let mut keys = asked.map_or_else(Vec::new, |tail| open_calls(&tail.session));
                keys.push(APPROVAL.into());
                for key in keys {
                    // Nobody may have asked, or another has answered otherwise.
                    let _ = self.answer(session, node, key, approved).await?;
                }
            }
            Action::Cancel { session, node } => {
                let session = session_id(session);
                let cancel = move |node: Arc<Node>| async move { node.cancel(session).await };
                self.ask(node, cancel)
                    .await?
                    .map_err(|refused| broken("a_cancel_is_answered", refused.to_string()))?;
                if !self.is_cancelled(session).await {
                    return Err(broken("what_was_told_durable_is_there", "a cancel is not"));
                }
            }
            Action::TakeOver { session, node } => {
                let session = session_id(session);
                let take = move |node: Arc<Node>| async move { node.take_over(session).await };
                let _ = self.ask(node, take).await?;
            }
            Action::Fork {
                session,
                node,
                fork,
            } => {
                let (session, fork) = (session_id(session), fork_id(fork));
                let make =
                    move |node: Arc<Node>| async move { node.fork(session, None, fork).await };
                // There may be nothing yet, or it may have been made and have gone on.
                let _ = self.ask(node, make).await?;
            }
            Action::Revert {
                session,
                node,
                events,
            } => {
                let session = session_id(session);
                let revert = move |node: Arc<Node>| async move {
                    let head = node.tail(session).await?.session.head;
                    node.revert(session, head.saturating_sub(events)).await
                };
                let _ = self.ask(node, revert).await?;
            }
            Action::ClearRevert { session, node } => {
                let session = session_id(session);
                let clear = move |node: Arc<Node>| async move { node.clear_revert(session).await };
                let _ = self.ask(node, clear).await?;
            }
            Action::Wake {
                session,
                node,
                scope,
            } => {
                let session = session_id(session);
                let wake = move |node: Arc<Node>| async move { node.wake(session, scope).await };
                let _ = self.ask(node, wake).await?;
            }
            Action::Resume { session, node } => {
                let session = session_id(session);
                let resume = move |node: Arc<Node>| async move { node.resume(session).await };
                let _ = self.ask(node, resume).await?;
            }
            Action::Run {
                session,
                node,
                forced,
                gives_up_ms,
            } => {
                let Some(process) = self.process(node) else {
                    return Ok(());
                };
                let patience = gives_up_ms.unwrap_or(u64::from(u32::MAX));
                let run = process.node.run(session_id(session), forced.then_some(3));
                tokio::select! {
                    biased;
                    () = process.link.died() => {}
                    // Without patience of its own it must be answered before the world settles.
                    _ = tokio::time::timeout(Duration::from_millis(patience), run) => {}
                }
            }
            Action::Follow { session, node } => self.follow(session_id(session), node),
            _ => {}
        }
        Ok(())
    }

    /// Reads a log for as long as its node lives.
    pub(super) fn follow(self: &Arc<Self>, session: SessionId, place: usize) {
        let Some(process) = self.process(place) else {
            return;
        };
        let me = {
            let mut followers = self.followers();
            followers.push(Follower {
                session,
                read: Vec::new(),
                gone: false,
            });
            followers.len() - 1
        };
        let play = Arc::clone(self);
        tokio::spawn(async move {
            let mut log = Box::pin(process.node.log(session, 0, true));
            loop {
                let next = tokio::select! {
                    biased;
                    () = process.link.died() => None,
                    next = log.next() => next,
                };
                let mut followers = play.followers();
                let follower = &mut followers[me];
                match next {
                    Some(Ok(Followed::Event(record))) => {
                        follower.read.push((record.seq, record.id))
                    }
                    Some(Ok(Followed::Synced(_))) => {}
                    Some(Err(_)) | None => {
                        follower.gone = true;
                        return;
                    }
                }
            }
        });
    }

    pub(super) async fn answer(
        &self,
        session: SessionId,
        node: usize,
        key: String,
        approved: bool,
    ) -> Result<Result<(), Refused>, Broken> {
        let answer = move |node: Arc<Node>| {
            let answer = Approval {
                key: key.clone(),
                approved,
                reason: None,
            };
            async move { node.answer(session, answer).await }
        };
        self.ask(node, answer).await
    }
}
