use futures::future::join_all;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Append, Commit, End, Write};
use mainstay_core::event::{
    Delivery, EventBody, EventDraft, InputContent, InterruptReason, SessionCreated,
};
use mainstay_core::id::{EventId, ExecutionId, InputId, OwnerId, SessionId};
use mainstay_core::model::{Effect, FinishReason};
use mainstay_core::port::{Committed, Dump, Store, StoreError};
use mainstay_core::tail::{CallStatus, Scope, Tail};
use mainstay_test_support::build;
use uuid::Uuid;

use crate::{Harness, check_invariants};

const SESSIONS: usize = 6;

/// Feeds two stores that go by one clock the same random commits, good and bad, some alone and some
/// many at once, and compares every answer and, at the end, every row. Gives how many were accepted.
pub async fn store_2(a: &Harness, b: &Harness, seed: u64, commits: usize) -> usize {
    assert!(
        std::sync::Arc::ptr_eq(&a.clock, &b.clock),
        "both go by one clock"
    );
    let mut plan = Plan::new(seed);
    let (mut done, mut accepted) = (0, 0);
    while done < commits {
        let count = if plan.one_in(3) {
            1 + plan.below(24)
        } else {
            1
        };
        let mut burst = Vec::with_capacity(count);
        for _ in 0..count {
            burst.push(plan.commit(a.store.as_ref()).await);
        }
        let from_a = join_all(burst.iter().map(|commit| a.store.commit(commit.clone()))).await;
        let from_b = join_all(burst.iter().map(|commit| b.store.commit(commit.clone()))).await;
        for ((commit, a), b) in burst.iter().zip(from_a).zip(from_b) {
            accepted += usize::from(a.is_ok());
            assert_eq!(answer(a), answer(b), "seed {seed}: {commit:#?}");
        }
        done += count;
        if plan.one_in(4) {
            let lease = [1, 5_000, 40_000][plan.below(3)];
            let (ra, rb) = (
                a.store
                    .renew(plan.owner, &plan.fences, lease)
                    .await
                    .unwrap(),
                b.store
                    .renew(plan.owner, &plan.fences, lease)
                    .await
                    .unwrap(),
            );
            assert_eq!(ra, rb, "seed {seed}");
        }
        if plan.one_in(3) {
            a.clock.advance([10, 1_000, 12_000][plan.below(3)]);
        }
        if plan.one_in(50) {
            let session = plan.session();
            assert_eq!(
                a.store.delete(session).await.unwrap(),
                b.store.delete(session).await.unwrap()
            );
        }
        assert_eq!(
            a.store.scan(4).await.unwrap(),
            b.store.scan(4).await.unwrap(),
            "seed {seed}"
        );
    }
    for session in plan.sessions {
        let (left, right) = (
            a.store.dump(session).await.unwrap(),
            b.store.dump(session).await.unwrap(),
        );
        check_invariants(&left);
        let tails = (
            a.store.tail(session).await.unwrap(),
            b.store.tail(session).await.unwrap(),
        );
        assert_eq!(tails.0, tails.1, "seed {seed}");
        assert_eq!(normal(left), normal(right), "seed {seed}");
    }
    let (a, b) = (
        a.store.sessions(None, 100).await.unwrap(),
        b.store.sessions(None, 100).await.unwrap(),
    );
    assert_eq!(a, b, "seed {seed}");
    accepted
}

/// What can be compared of an answer: events that no draft named have ids of their own.
fn answer(answer: Result<Committed, StoreError>) -> Result<(String, Vec<String>, Tail), String> {
    match answer {
        Ok(done) => {
            let events = done
                .events
                .iter()
                .map(|event| format!("{} {:?}", event.seq, event.body))
                .collect();
            Ok((format!("{:?}", done.reply), events, Tail::clone(&done.tail)))
        }
        Err(StoreError::Refused(refused)) => Err(format!("{refused:?}")),
        Err(other) => panic!("a store failed: {other:?}"),
    }
}

fn normal(mut dump: Dump) -> Dump {
    for event in &mut dump.events {
        event.id = EventId(Uuid::nil());
    }
    dump
}

/// The commits of one seed. They are made up as it goes, by what one of the stores holds.
struct Plan {
    state: u64,
    at: u64,
    owner: OwnerId,
    sessions: Vec<SessionId>,
    inputs: Vec<InputId>,
    fences: Vec<Fence>,
    drafts: Vec<Vec<EventDraft>>,
}

impl Plan {
    fn new(seed: u64) -> Self {
        let mut plan = Self {
            state: seed,
            at: build::AT,
            owner: OwnerId(Uuid::nil()),
            sessions: Vec::new(),
            inputs: Vec::new(),
            fences: Vec::new(),
            drafts: Vec::new(),
        };
        plan.owner = OwnerId(plan.uuid());
        plan.sessions = (0..SESSIONS).map(|_| SessionId(plan.uuid())).collect();
        plan.fences = vec![Fence {
            execution: ExecutionId(plan.uuid()),
            owner: plan.owner,
        }];
        plan.inputs = vec![InputId(plan.uuid())];
        plan
    }

    /// SplitMix64.
    fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    fn session(&mut self) -> SessionId {
        let n = self.below(SESSIONS);
        self.sessions[n]
    }

    fn input(&mut self) -> InputId {
        if self.one_in(3) {
            let recent = self.inputs.len().saturating_sub(8);
            let n = recent + self.below(self.inputs.len() - recent);
            return self.inputs[n];
        }
        let input = InputId(self.uuid());
        self.inputs.push(input);
        input
    }

    fn fence(&mut self) -> Fence {
        // The last ones most of all.
        let n = self.below(self.fences.len().min(12));
        self.fences[self.fences.len() - 1 - n]
    }

    fn delivery(&mut self) -> Delivery {
        if self.one_in(2) {
            Delivery::Steer
        } else {
            Delivery::Queue
        }
    }

    async fn commit(&mut self, store: &dyn Store) -> Commit {
        let session = self.session();
        self.at += self.below(3) as u64;
        let tail = store.tail(session).await.unwrap();
        let write = match tail {
            None => self.create(),
            Some(tail) => self.write(&tail),
        };
        Commit {
            session,
            at: self.at,
            write,
        }
    }

    fn create(&mut self) -> Write {
        let title = self.one_in(5).then(|| "another".into());
        Write::Create(SessionCreated {
            agent: "test".into(),
            model: None,
            title,
            ..Default::default()
        })
    }

    fn write(&mut self, tail: &Tail) -> Write {
        let holder = tail.claim.as_ref().map(|claim| Fence {
            execution: claim.execution,
            owner: claim.owner,
        });
        match self.below(24) {
            0 => self.create(),
            1..=3 => self.admit(),
            4 => Write::CancelInput {
                input: self.pending(tail),
            },
            5 => Write::Redeliver {
                input: self.pending(tail),
                delivery: self.delivery(),
            },
            6 => Write::Wake {
                scope: if self.one_in(2) {
                    Scope::All
                } else {
                    Scope::Steers
                },
            },
            7 => Write::Release,
            8 if self.one_in(3) => Write::Interrupt {
                cause: None,
                and_continue: false,
            },
            9 => Write::Expire { seen: self.fence() },
            10 => Write::Recover {
                seen: holder.unwrap_or_else(|| self.fence()),
                max_attempts: 2,
            },
            11 if self.one_in(2) => {
                let fence = holder.unwrap_or_else(|| self.fence());
                Write::Expire { seen: fence }
            }
            _ => match holder {
                Some(holder) => self.append(tail, holder),
                None => self.claim(),
            },
        }
    }

    fn admit(&mut self) -> Write {
        let parts = build::text(["", "hello", "a \"b\" \\ \0 ü\u{1f600}", "x'y;--"][self.below(4)]);
        let content = if self.one_in(8) {
            InputContent::Configure {
                model: mainstay_core::history::ModelRef {
                    provider: "p".into(),
                    model: "m".into(),
                },
            }
        } else {
            InputContent::Prompt { parts }
        };
        Write::Admit {
            input: self.input(),
            delivery: self.delivery(),
            content,
        }
    }

    fn pending(&mut self, tail: &Tail) -> InputId {
        if tail.inputs.is_empty() || self.one_in(4) {
            return self.input();
        }
        tail.inputs[self.below(tail.inputs.len())].id
    }

    fn claim(&mut self) -> Write {
        let mut fence = Fence {
            execution: ExecutionId(self.uuid()),
            owner: self.owner,
        };
        if self.one_in(6) {
            fence.owner = OwnerId(self.uuid());
        }
        self.fences.push(fence);
        let forced = self.one_in(5).then_some(3);
        Write::Claim {
            execution: fence.execution,
            owner: fence.owner,
            lease_ms: 20_000,
            forced,
            resumed: self.one_in(2),
            by_itself: self.one_in(3),
        }
    }

    fn append(&mut self, tail: &Tail, holder: Fence) -> Write {
        let fence = if self.one_in(12) {
            self.fence()
        } else {
            holder
        };
        let expected_head = match self.below(8) {
            0 => Some(tail.session.head),
            1 => Some(tail.session.head.saturating_sub(1)),
            _ => None,
        };
        let mut events: Vec<EventDraft> = Vec::new();
        for body in self.bodies(tail) {
            events.push(EventDraft {
                id: EventId(self.uuid()),
                body,
            });
        }
        if self.one_in(10) && !self.drafts.is_empty() {
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
        let end = match self.below(14) {
            0 => Some(End::Succeeded),
            1 => Some(End::Failed { error: "e".into() }),
            2 => Some(End::Interrupted {
                reason: InterruptReason::Shutdown,
            }),
            3 if tail.claim.as_ref().is_some_and(|claim| claim.interrupt) => {
                Some(End::Interrupted {
                    reason: InterruptReason::User,
                })
            }
            _ => None,
        };
        Write::Append(Append {
            fence,
            expected_head,
            begins: self.one_in(3),
            events,
            end,
        })
    }

    /// What an execution might well do next, and sometimes what it never may.
    fn bodies(&mut self, tail: &Tail) -> Vec<EventBody> {
        let mut bodies = Vec::new();
        if self.one_in(15) {
            bodies.push(EventBody::RunnerSaid {
                runner: "r".into(),
                parts: build::text("said"),
            });
        }
        if tail.session.turn.is_none() && !self.one_in(12) {
            bodies.push(EventBody::TurnStarted {
                steps: 1 + self.below(6) as u32,
            });
            bodies.extend(
                tail.due_next()
                    .iter()
                    .map(|input| EventBody::InputPromoted { input: input.id }),
            );
            return bodies;
        }
        if let (true, Some(input)) = (self.one_in(12), self.inputs.last()) {
            bodies.push(EventBody::InputPromoted { input: *input });
        }
        match &tail.step {
            None if self.one_in(3) => bodies.push(build::turn_ended()),
            None if self.one_in(2) => bodies.push(build::step_started(build::call_model())),
            None => bodies.push(build::step_started(build::call_tools(
                &["a", "b\0\"", "ü"][..1 + self.below(3)],
            ))),
            Some(step) => {
                let call = (!step.calls.is_empty())
                    .then(|| step.calls[self.below(step.calls.len())].clone());
                match call {
                    _ if step.asks_model() && step.ending.is_none() => match self.below(4) {
                        0 => bodies.push(build::output(
                            step.seq,
                            [mainstay_core::event::Piece::Text("t".into())],
                        )),
                        1 => {
                            let id = format!("c{}", self.below(3));
                            bodies.push(build::output(step.seq, build::call_pieces(&id)));
                        }
                        2 => bodies.push(build::output(
                            step.seq,
                            [mainstay_core::event::Piece::Call {
                                id: "open".into(),
                                tool: "tool".into(),
                            }],
                        )),
                        _ => bodies.push(build::model_ended(step.seq, FinishReason::Stop)),
                    },
                    Some(call) if call.status != CallStatus::Settled || self.one_in(4) => {
                        if self.one_in(2) {
                            let effect =
                                [Effect::Pure, Effect::Idempotent, Effect::Once][self.below(3)];
                            bodies.push(build::call_started(
                                step.seq,
                                &call.id,
                                effect,
                                call.runs + 1,
                            ));
                        } else {
                            bodies.push(build::call_settled(step.seq, &call.id));
                        }
                    }
                    _ => bodies.push(build::call_settled(step.seq, "nobody")),
                }
            }
        }
        bodies
    }
}
