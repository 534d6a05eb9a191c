//! What is admitted, by clients and by other sessions: prompts, signals, answers, notices.

use mainstay_core::commit::Write;
use mainstay_core::event::{Delivery, InputContent, Parent, SessionCreated};
use mainstay_core::history::{Approval, ChildOutcome, ChildResult, Signal};
use mainstay_core::id::{InputId, SessionId};
use mainstay_core::outbox::{self, Ended, Notice};
use mainstay_core::tail::Tail;
use mainstay_test_support::build;

use super::step::model;
use super::{MOST_SESSIONS, Plan};

impl Plan {
    pub(super) fn delivery(&mut self) -> Delivery {
        self.pick(&[Delivery::Steer, Delivery::Queue])
    }

    pub(super) fn input(&mut self) -> InputId {
        if self.one_in(3) {
            let recent = self.inputs.len().saturating_sub(8);
            let n = recent + self.below(self.inputs.len() - recent);
            return self.inputs[n];
        }
        let input = InputId(self.uuid());
        self.inputs.push(input);
        input
    }

    pub(super) fn pending(&mut self, tail: &Tail) -> InputId {
        if tail.inputs.is_empty() || self.one_in(4) {
            return self.input();
        }
        tail.inputs[self.below(tail.inputs.len())].id
    }

    pub(super) fn admit(&mut self) -> Write {
        Write::Admit {
            input: self.input(),
            delivery: self.delivery(),
            content: self.content(),
        }
    }

    pub(super) fn content(&mut self) -> InputContent {
        match self.below(14) {
            0 | 1 => InputContent::Signal(Signal {
                name: self.name(),
                data: "{\"a\":[1,\"\\u0000\"]}".into(),
            }),
            2 => InputContent::Approval(self.approval()),
            3 => InputContent::Timer { at: self.now },
            4 => InputContent::Child(ChildResult {
                key: self.name(),
                outcome: match self.below(4) {
                    0 => ChildOutcome::Done(build::text("found")),
                    1 => ChildOutcome::Failed("e".into()),
                    2 => ChildOutcome::Cancelled,
                    _ => ChildOutcome::Quarantined("r".into()),
                },
            }),
            5 => InputContent::Compact {},
            6 => InputContent::Configure { model: model() },
            _ => InputContent::Prompt {
                parts: build::text(
                    ["", "hello", "a \"b\" \\ \0 ü\u{1f600}", "x'y;--"][self.below(4)],
                ),
            },
        }
    }

    /// One of few names, for signals, approvals and children alike.
    pub(super) fn name(&mut self) -> String {
        self.pick(&["n0", "n\0\"1", "nü"]).into()
    }

    pub(super) fn approval(&mut self) -> Approval {
        Approval {
            key: self.name(),
            approved: self.one_in(2),
            reason: self.one_in(2).then(|| "because".into()),
        }
    }

    pub(super) fn answer(&mut self, tail: &Tail) -> Write {
        let mut approval = self.approval();
        let asked: Vec<String> = tail.session.arrived.approvals.keys().cloned().collect();
        if !asked.is_empty() && !self.one_in(4) {
            approval.key = self.pick(&asked);
        }
        Write::Answer(approval)
    }

    /// A notice that nobody owes.
    pub(super) fn strange_notice(&mut self) -> Notice {
        Notice::Interrupt {
            child: self.session(),
            cause: self.causes[0],
        }
    }

    /// What a courier does with a notice: it brings it, and takes it out of the outbox. Not always.
    pub(super) fn deliver(&mut self, tail: &Tail) -> (SessionId, Write) {
        let from = tail.session.id;
        let notice = if self.one_in(4) {
            self.pick(&tail.session.outbox)
        } else {
            tail.session.outbox[0].clone()
        };
        let mut errands = Vec::new();
        if !self.one_in(4) {
            self.bring(from, &notice, &mut errands);
        }
        errands.push((from, Write::Deliver { notice }));
        let first = errands.remove(0);
        self.errands.extend(errands);
        first
    }

    pub(super) fn bring(
        &mut self,
        from: SessionId,
        notice: &Notice,
        to: &mut Vec<(SessionId, Write)>,
    ) {
        let create = |parent: &Parent, agent: &str| {
            Write::Create(SessionCreated {
                agent: agent.into(),
                parent: Some(parent.clone()),
                ..SessionCreated::default()
            })
        };
        if let Notice::Spawn { child, .. } | Notice::Cancel { child, .. } = notice
            && !self.sessions.contains(child)
        {
            if self.sessions.len() >= MOST_SESSIONS {
                return;
            }
            self.sessions.push(*child);
        }
        match notice {
            Notice::Spawn {
                child,
                agent,
                parent,
                prompt,
            } => {
                let admit = Write::Admit {
                    input: outbox::prompt_input(*child),
                    delivery: Delivery::Queue,
                    content: InputContent::Prompt {
                        parts: prompt.clone(),
                    },
                };
                to.push((*child, create(parent, agent)));
                to.push((*child, admit));
            }
            Notice::Cancel { child, parent } => {
                to.push((*child, create(parent, "")));
                to.push((*child, Write::Cancel));
            }
            Notice::Interrupt { child, cause } => {
                let interrupt = Write::Interrupt {
                    cause: Some(*cause),
                    and_continue: false,
                };
                to.push((*child, interrupt));
            }
            Notice::Report { parent, ended } => {
                let outcome = match ended {
                    Ended::Done(_) => ChildOutcome::Done(build::text("result")),
                    Ended::Failed(error) => ChildOutcome::Failed(error.clone()),
                    Ended::Cancelled => ChildOutcome::Cancelled,
                    Ended::Quarantined(reason) => ChildOutcome::Quarantined(reason.clone()),
                };
                let admit = Write::Admit {
                    input: outbox::result_input(from),
                    delivery: Delivery::Steer,
                    content: InputContent::Child(ChildResult {
                        key: parent.key.clone(),
                        outcome,
                    }),
                };
                to.push((parent.session, admit));
            }
        }
    }
}
