//! What an execution appends next: the start of a turn, a step that a runner decided, and how an open step goes on.

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, End, Write};
use mainstay_core::event::{EventBody, EventDraft, InterruptReason, Piece, TurnOutcome};
use mainstay_core::history::{Ending, ModelRef};
use mainstay_core::id::EventId;
use mainstay_core::model::{
    Effect, Failure, FailureClass, FinishReason, HostedResult, Media, ProviderState, ToolCall,
    ToolDefinition,
};
use mainstay_core::plugin::{
    Action, Answer, ApprovalRequest, Child, Compact, Condition, SpawnRefusal, Summary, Wait,
};
use mainstay_core::recovery;
use mainstay_core::tail::{CallStatus, Step, Tail};
use mainstay_test_support::build;

use super::{HOUR_MS, Plan};

/// A tool of the runner's own.
const OWN: &str = "own";

impl Plan {
    pub(super) fn append(&mut self, tail: &Tail, holder: Fence) -> Write {
        let interrupted = tail.claim.as_ref().is_some_and(|claim| claim.interrupt);
        let fence = if self.one_in(20) {
            self.fence()
        } else {
            holder
        };
        let expected_head = match self.below(16) {
            0..=3 => Some(tail.session.head),
            4 => Some(tail.session.head.saturating_sub(1)),
            _ => None,
        };
        let (bodies, end) = if interrupted && !self.one_in(6) {
            let reason = InterruptReason::User;
            let bodies = recovery::close_turn(tail, TurnOutcome::Interrupted);
            (bodies, Some(End::Interrupted { reason }))
        } else {
            let bodies = self.bodies(tail);
            (bodies, self.end(tail))
        };
        let mut events: Vec<EventDraft> = Vec::with_capacity(bodies.len());
        for body in bodies {
            events.push(EventDraft {
                id: EventId(self.uuid()),
                body,
            });
        }
        if self.one_in(15) && !self.drafts.is_empty() {
            // An earlier one again, whole or with a change.
            let n = self.below(self.drafts.len());
            events = self.drafts[n].clone();
            if self.one_in(3) {
                events.truncate(1);
            }
            if self.one_in(3)
                && let Some(first) = events.first_mut()
            {
                first.body = EventBody::RunnerNoted {
                    parts: build::text("changed"),
                };
            }
        } else {
            self.drafts.push(events.clone());
        }
        Write::Append(Append {
            fence,
            expected_head,
            begins: self.one_in(3),
            events,
            end,
        })
    }

    pub(super) fn end(&mut self, tail: &Tail) -> Option<End> {
        let idle = tail.session.turn.is_none() && !tail.is_runnable();
        Some(match self.below(24) {
            0 => End::Failed { error: "e".into() },
            1 => End::Interrupted {
                reason: InterruptReason::Shutdown,
            },
            2 => End::Suspended,
            3..=12 if tail.session.wait.is_some() => End::Suspended,
            3..=12 if idle => End::Succeeded,
            3 => End::Succeeded,
            _ => return None,
        })
    }

    /// What an execution might well do next, and sometimes what it never may.
    pub(super) fn bodies(&mut self, tail: &Tail) -> Vec<EventBody> {
        let mut bodies = Vec::new();
        match self.below(20) {
            0 => bodies.push(EventBody::RunnerSaid {
                runner: "r".into(),
                parts: build::text("said"),
            }),
            1 => bodies.push(EventBody::RunnerNoted {
                parts: build::text("noted"),
            }),
            2 if self.one_in(3) => bodies.push(EventBody::SessionConfigured { model: model() }),
            _ => {}
        }
        let promote =
            |input: &mainstay_core::tail::Input| EventBody::InputPromoted { input: input.id };
        let Some(turn) = &tail.session.turn else {
            if !self.one_in(15) {
                bodies.push(EventBody::TurnStarted {
                    steps: 2 + self.below(6) as u32,
                });
                bodies.extend(tail.due_next().into_iter().map(promote));
            }
            return bodies;
        };
        if self.one_in(25)
            && let Some(input) = self.inputs.last()
        {
            bodies.push(EventBody::InputPromoted { input: *input });
        }
        if let Some(step) = &tail.step {
            bodies.extend(self.effect(tail, step));
            return bodies;
        }
        if !self.one_in(3) {
            bodies.extend(tail.due_steers().into_iter().map(promote));
        }
        if tail.session.wait.is_some() && !self.one_in(12) {
            return bodies;
        }
        if turn.steps_left == 0 || self.one_in(5) {
            // Its own calls are answered first. Not always.
            if !self.one_in(6) {
                bodies.extend(recovery::dropped(tail));
            }
            let outcome = match self.below(3) {
                0 => TurnOutcome::Failed { error: "e".into() },
                _ => TurnOutcome::Done,
            };
            bodies.push(EventBody::TurnEnded {
                outcome,
                decided: None,
            });
            return bodies;
        }
        if let Some((step, call)) = tail.session.open_calls.first()
            && !self.one_in(3)
        {
            bodies.push(EventBody::RunnerAnswered {
                step: *step,
                answer: Answer {
                    call: call.id.clone(),
                    is_error: self.one_in(2),
                    output: build::text("answered"),
                },
            });
        }
        let action = self.action(tail);
        let mut started = build::step_started(action);
        if let EventBody::StepStarted(started) = &mut started {
            started.hosted_once = self.one_in(6);
            if self.one_in(4) {
                started.spawn_refused = Some(SpawnRefusal::TooMany);
            }
        }
        bodies.push(started);
        bodies
    }

    pub(super) fn action(&mut self, tail: &Tail) -> Action {
        match self.below(10) {
            0..=3 => self.call_model(),
            4 | 5 => {
                let count = 1 + self.below(3);
                build::call_tools(&["a", "b\0\"", "ü"][..count])
            }
            6 | 7 => {
                let count = 1 + self.below(2);
                let until = (0..count).map(|_| self.condition(tail)).collect();
                Action::Wait(Wait { until })
            }
            8 => {
                let count = 1 + self.below(2);
                let child = |plan: &mut Self| Child {
                    key: plan.name(),
                    agent: plan.one_in(2).then(|| "other".into()),
                    prompt: build::text("do"),
                };
                Action::Spawn((0..count).map(|_| child(self)).collect())
            }
            _ => {
                let summary = if self.one_in(2) {
                    Summary::Text("short".into())
                } else {
                    let Action::CallModel(call) = self.call_model() else {
                        unreachable!("it asks a model")
                    };
                    Summary::Model(Box::new(call))
                };
                let through = tail.session.head;
                Action::Compact(Compact { through, summary })
            }
        }
    }

    pub(super) fn call_model(&mut self) -> Action {
        let Action::CallModel(mut call) = build::call_model() else {
            unreachable!("it asks a model")
        };
        if !self.one_in(8) {
            call.own_tools.push(ToolDefinition {
                name: OWN.into(),
                description: String::new(),
                input_schema: "{\"type\":\"object\"}".into(),
            });
        }
        Action::CallModel(call)
    }

    pub(super) fn condition(&mut self, tail: &Tail) -> Condition {
        match self.below(4) {
            0 => {
                let after = self.pick(&[0, 5_000, HOUR_MS, 30 * HOUR_MS]);
                Condition::Time(self.now + after)
            }
            1 => Condition::Signal(self.name()),
            2 => Condition::Approval(ApprovalRequest {
                key: self.name(),
                question: "may I?".into(),
                details: self.one_in(2).then(|| "{}".into()),
            }),
            _ => {
                let mut keys: Vec<String> = (tail.session.children.iter())
                    .map(|child| child.key.clone())
                    .collect();
                if keys.is_empty() {
                    return Condition::Signal(self.name());
                }
                keys.truncate(2);
                Condition::Children(keys)
            }
        }
    }

    /// How an open step goes on.
    pub(super) fn effect(&mut self, tail: &Tail, step: &Step) -> Vec<EventBody> {
        let compacts = matches!(step.started.action, Action::Compact(_));
        if step.asks_model() && step.ending.is_none() {
            return match self.below(12) {
                0 => vec![EventBody::RetryScheduled {
                    step: step.seq,
                    attempt: step.retries + 1,
                    wait_ms: 10,
                    failure: failure(FailureClass::Overloaded),
                    usage: None,
                }],
                1..=6 => {
                    let pieces = self.pieces(step);
                    vec![build::output(step.seq, pieces)]
                }
                _ => self.model_ends(step),
            };
        }
        if compacts {
            return vec![if self.one_in(3) {
                EventBody::ContextKept {
                    step: step.seq,
                    failure: failure(FailureClass::ContextOverflow),
                }
            } else {
                EventBody::ContextCompacted {
                    step: step.seq,
                    through: tail.session.head,
                    summary: build::text("in short"),
                }
            }];
        }
        let open: Vec<_> = (step.calls.iter())
            .filter(|call| call.status != CallStatus::Settled && !call.own)
            .collect();
        let any = &step.calls;
        let call = if !open.is_empty() && !self.one_in(6) {
            open[self.below(open.len())]
        } else if !any.is_empty() {
            &any[self.below(any.len())]
        } else {
            return vec![build::call_settled(step.seq, "nobody")];
        };
        if (call.status == CallStatus::Ready && self.one_in(10)) || self.one_in(60) {
            vec![build::call_held(step.seq, &call.id)]
        } else if self.one_in(2) && call.effect != Some(Effect::Once) {
            let effect = self.pick(&[Effect::Pure, Effect::Idempotent, Effect::Once]);
            vec![build::call_started(
                step.seq,
                &call.id,
                effect,
                call.runs + 1,
            )]
        } else {
            vec![build::call_settled(step.seq, &call.id)]
        }
    }

    /// The end of an answer, once what it left open is closed. Not always.
    pub(super) fn model_ends(&mut self, step: &Step) -> Vec<EventBody> {
        let mut bodies = Vec::new();
        if !self.one_in(6) {
            let open = step.calls.iter();
            let pieces: Vec<Piece> = open
                .filter_map(|call| match call.status {
                    CallStatus::Streaming => Some(Piece::CallReady {
                        id: call.id.clone(),
                    }),
                    CallStatus::Started if call.hosted => Some(hosted_result(&call.id)),
                    _ => None,
                })
                .collect();
            if !pieces.is_empty() {
                bodies.push(build::output(step.seq, pieces));
            }
        }
        let mut ended = build::model_ended(step.seq, FinishReason::Stop);
        if let EventBody::ModelEnded { ending, .. } = &mut ended {
            match self.below(6) {
                0 => *ending = Ending::Failed(failure(FailureClass::Server)),
                1 => *ending = Ending::Interrupted,
                2 => *ending = Ending::Finished(FinishReason::ToolCalls),
                _ => {}
            }
        }
        bodies.push(ended);
        bodies
    }

    pub(super) fn pieces(&mut self, step: &Step) -> Vec<Piece> {
        let n = step.calls.len() + self.below(2);
        let id = format!("c{n}");
        match self.below(11) {
            0 => vec![Piece::Text("t".into())],
            1 => vec![Piece::Reasoning("why \0".into())],
            2 => build::call_pieces(&id).into(),
            3 | 8..=10 => {
                let mut pieces = build::call_pieces(&id);
                if let Piece::Call { tool, .. } = &mut pieces[0] {
                    *tool = OWN.into();
                }
                pieces.into()
            }
            // Left open.
            4 => build::call_pieces(&id).into_iter().take(2).collect(),
            5 => vec![Piece::HostedCall(ToolCall {
                id,
                tool: "search".into(),
                arguments: "{}".into(),
            })],
            6 => {
                let hosted = step.calls.iter().find(|call| call.hosted);
                vec![hosted_result(hosted.map_or("nobody", |call| &call.id))]
            }
            _ => vec![
                Piece::ProviderState(ProviderState {
                    provider: "p".into(),
                    data: vec![0, 255],
                }),
                Piece::Media(Media {
                    digest: "d-media".into(),
                    media_type: "image/png".into(),
                    size: 3,
                    name: None,
                }),
            ],
        }
    }
}

pub(super) fn model() -> ModelRef {
    ModelRef {
        provider: "p".into(),
        model: "m".into(),
    }
}

fn failure(class: FailureClass) -> Failure {
    Failure {
        class,
        message: "no".into(),
        retry_after_ms: None,
    }
}

fn hosted_result(call: &str) -> Piece {
    Piece::HostedResult(HostedResult {
        call: call.into(),
        is_error: false,
        data: "[]".into(),
    })
}
