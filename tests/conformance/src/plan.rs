//! Random commits, good and bad, from a seed. They are made up as it goes, by what the sessions hold:
//! mostly what a host might well write next, and sometimes what it never may. Commits that go out
//! together build on each other, as the plan expects them to be taken.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use mainstay_core::claim::Fence;
use mainstay_core::commit::{self, Append, Commit, End, Known, Write};
use mainstay_core::edit::Fork;
use mainstay_core::event::{
    Delivery, EventBody, EventDraft, Forked, InputContent, InterruptReason, Parent, Piece, Record,
    Reverted, SessionCreated, TurnOutcome,
};
use mainstay_core::history::{Approval, ChildOutcome, ChildResult, Ending, ModelRef, Signal};
use mainstay_core::id::{EventId, ExecutionId, InputId, Millis, OwnerId, SessionId};
use mainstay_core::model::{
    Effect, Failure, FailureClass, FinishReason, HostedResult, Media, ProviderState, ToolCall,
    ToolDefinition,
};
use mainstay_core::outbox::{self, Ended, Notice};
use mainstay_core::plugin::{
    Action, Answer, ApprovalRequest, Child, Compact, Condition, SpawnRefusal, Summary, Wait,
};
use mainstay_core::policy::{Resume, ResumeMode};
use mainstay_core::port::{Dump, Store};
use mainstay_core::recovery;
use mainstay_core::replay::Replay;
use mainstay_core::state::States;
use mainstay_core::tail::{CallStatus, Scope, Step, Tail};
use mainstay_test_support::build;
use uuid::Uuid;

const SESSIONS: usize = 6;
/// Children, forks and imports are made until there are so many sessions in all.
const MOST_SESSIONS: usize = 16;
const LEASE_MS: u64 = 20_000;
const HOUR_MS: u64 = 60 * 60 * 1000;
/// A tool of the runner's own.
const OWN: &str = "own";

/// The commits of one seed.
pub(crate) struct Plan {
    state: u64,
    /// The writers' clock, which is not the store's.
    at: Millis,
    pub(crate) owner: OwnerId,
    pub(crate) sessions: Vec<SessionId>,
    pub(crate) fences: Vec<Fence>,
    inputs: Vec<InputId>,
    drafts: Vec<Vec<EventDraft>>,
    causes: Vec<EventId>,
    /// What is imported, from the first event on.
    imports: Vec<(SessionId, Vec<Record>)>,
    /// Where the sessions begin that most commits go to.
    busy: usize,
    /// A session as it stood, to be forked or imported elsewhere.
    source: Option<Dump>,
    /// What a courier does next.
    errands: VecDeque<(SessionId, Write)>,
    /// The sessions as this burst leaves them, if all goes well.
    expected: HashMap<SessionId, Option<Tail>>,
    now: Millis,
}

impl Plan {
    pub(crate) fn new(seed: u64) -> Self {
        let mut plan = Self {
            state: seed,
            at: build::AT,
            owner: OwnerId(Uuid::nil()),
            sessions: Vec::new(),
            fences: Vec::new(),
            inputs: Vec::new(),
            drafts: Vec::new(),
            causes: Vec::new(),
            imports: Vec::new(),
            busy: 0,
            source: None,
            errands: VecDeque::new(),
            expected: HashMap::new(),
            now: build::AT,
        };
        plan.owner = OwnerId(plan.uuid());
        plan.sessions = (0..SESSIONS).map(|_| SessionId(plan.uuid())).collect();
        plan.fences = vec![plan.any_fence()];
        plan.inputs = vec![InputId(plan.uuid())];
        plan.causes = (0..3).map(|_| EventId(plan.uuid())).collect();
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

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    fn pick<T: Clone>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())].clone()
    }

    fn uuid(&mut self) -> Uuid {
        Uuid::from_u64_pair(self.next(), self.next())
    }

    pub(crate) fn session(&mut self) -> SessionId {
        let n = self.below(self.sessions.len());
        self.sessions[n]
    }

    /// Mostly one of three, so that something comes of them before their leases run out.
    fn busy_session(&mut self) -> SessionId {
        if self.one_in(80) {
            self.busy = self.below(self.sessions.len());
        }
        if self.one_in(4) {
            return self.session();
        }
        let n = self.busy + self.below(3);
        self.sessions[n % self.sessions.len()]
    }

    /// How long nothing happens now, in milliseconds.
    pub(crate) fn pause(&mut self) -> Option<u64> {
        if self.one_in(40) {
            return Some(self.pick(&[HOUR_MS, 5 * HOUR_MS, 25 * HOUR_MS, 72 * HOUR_MS]));
        }
        self.one_in(3).then(|| self.pick(&[10, 1_000, 7_000]))
    }

    /// The commits that go out next, some alone and some many at once.
    pub(crate) async fn burst(&mut self, store: &dyn Store) -> Vec<Commit> {
        let count = if self.one_in(3) {
            1 + self.below(24)
        } else {
            1
        };
        self.expected.clear();
        self.now = store.now().await.unwrap();
        if self.one_in(4) {
            let dump = store.dump(self.session()).await.unwrap();
            self.source = (!dump.events.is_empty()).then_some(dump);
        }
        let mut burst = Vec::with_capacity(count);
        for _ in 0..count {
            burst.push(self.commit(store).await);
        }
        burst
    }

    async fn commit(&mut self, store: &dyn Store) -> Commit {
        // A clock of its own, that now and then goes back.
        self.at = self.at.max(self.now).saturating_sub(self.below(3) as u64);
        let errand = (!self.one_in(4))
            .then(|| self.errands.pop_front())
            .flatten();
        let (session, write) = match errand {
            Some(errand) => errand,
            // A session that nobody made.
            None if self.one_in(25) => {
                let nobody = SessionId(self.uuid());
                (nobody, self.any_write())
            }
            None if self.source.is_some() && self.one_in(self.sessions.len() * 4) => self.copy(),
            None => {
                let session = self.busy_session();
                let tail = self.tail(store, session).await;
                match tail {
                    None if self.one_in(4) => (session, self.any_write()),
                    None if !self.one_in(4) && self.is_import(session) => {
                        (session, self.replay(session, 0))
                    }
                    None => (session, self.create(None)),
                    Some(tail) if !tail.session.outbox.is_empty() && self.one_in(3) => {
                        self.deliver(&tail)
                    }
                    Some(tail) => (session, self.write(&tail)),
                }
            }
        };
        let commit = Commit {
            session,
            at: self.at,
            write,
        };
        let tail = self.tail(store, session).await;
        let known = Known::default();
        if let Ok(applied) = commit::apply(tail.as_ref(), &commit, &known, self.now) {
            self.expected.insert(session, Some(applied.tail));
        }
        commit
    }

    async fn tail(&mut self, store: &dyn Store, session: SessionId) -> Option<Tail> {
        if let Some(tail) = self.expected.get(&session) {
            return tail.clone();
        }
        let tail = store.tail(session).await.unwrap();
        let tail = tail.map(|tail| Tail::clone(&tail));
        self.expected.insert(session, tail.clone());
        tail
    }

    /// A write that looks at nothing.
    fn any_write(&mut self) -> Write {
        match self.below(18) {
            0 => self.admit(),
            1 => Write::CancelInput {
                input: self.input(),
            },
            2 => Write::Redeliver {
                input: self.input(),
                delivery: self.delivery(),
            },
            3 => self.wake(),
            4 => Write::Release,
            5 => Write::Answer(self.approval()),
            6 => Write::Fire,
            7 => Write::Cancel,
            8 => Write::Deliver {
                notice: self.strange_notice(),
            },
            9 => self.claim(),
            10 => Write::Append(Append {
                fence: self.fence(),
                expected_head: None,
                begins: false,
                events: Vec::new(),
                end: Some(End::Succeeded),
            }),
            11 => self.interrupt(),
            12 => Write::Recover {
                seen: self.fence(),
                counting: mainstay_core::recovery::Counting::to(2),
            },
            13 => Write::Quarantine {
                seen: self.fence(),
                reason: "r".into(),
            },
            14 => Write::Adopt,
            15 => self.revert(9),
            16 => Write::ClearRevert,
            _ => Write::Expire { seen: self.fence() },
        }
    }

    fn write(&mut self, tail: &Tail) -> Write {
        let claim = tail.claim.as_ref();
        let holder = claim.map(|claim| Fence {
            execution: claim.execution,
            owner: claim.owner,
        });
        if let (Some(seen), true) = (
            holder,
            claim.is_some_and(|claim| claim.expires_at <= self.now),
        ) && !self.one_in(3)
        {
            return if self.one_in(8) {
                Write::Quarantine {
                    seen,
                    reason: "its recovery does not fit".into(),
                }
            } else {
                Write::Recover {
                    seen,
                    counting: mainstay_core::recovery::Counting::to(2),
                }
            };
        }
        if tail.session.imported().is_some() && !self.one_in(4) {
            return if self.one_in(6) {
                Write::Adopt
            } else {
                self.replay(tail.session.id, tail.session.head)
            };
        }
        if tail.session.revert.is_some() && self.one_in(4) {
            return Write::ClearRevert;
        }
        if tail.inputs.iter().any(|input| !input.intent) && tail.may_run().is_ok() && self.one_in(3)
        {
            return self.wake();
        }
        let idle = claim.is_none() && tail.session.turn.is_none();
        if idle && self.one_in(20) {
            return self.revert(tail.session.head);
        }
        let stuck = tail.session.quarantined.is_some() || tail.session.held.is_some();
        if stuck && self.one_in(3) {
            return Write::Release;
        }
        let due = tail.session.wake_at().is_some_and(|at| at <= self.now);
        if due && !self.one_in(3) {
            return Write::Fire;
        }
        match self.below(36) {
            0 => self.create(Some(tail)),
            1..=4 => self.admit(),
            5 => Write::CancelInput {
                input: self.pending(tail),
            },
            6 => Write::Redeliver {
                input: self.pending(tail),
                delivery: self.delivery(),
            },
            7 => self.wake(),
            8 if self.one_in(2) => Write::Release,
            9 if self.one_in(2) => self.interrupt(),
            10 if self.one_in(2) => Write::Expire { seen: self.fence() },
            10 => Write::Expire {
                seen: holder.unwrap_or_else(|| self.fence()),
            },
            11 if self.one_in(2) => Write::Recover {
                seen: holder.unwrap_or_else(|| self.fence()),
                counting: mainstay_core::recovery::Counting::to(2),
            },
            11 => Write::Quarantine {
                seen: holder.unwrap_or_else(|| self.fence()),
                reason: "q".into(),
            },
            12 if self.one_in(2) => Write::Fire,
            13 => self.answer(tail),
            // It ends a session for good.
            14 if self.one_in(6) => Write::Cancel,
            15 if self.one_in(2) => Write::Deliver {
                notice: self.strange_notice(),
            },
            16 if self.one_in(4) => self.revert(tail.session.head),
            17 if self.one_in(4) => Write::Adopt,
            17 if self.is_import(tail.session.id) => {
                self.replay(tail.session.id, tail.session.head)
            }
            _ => match holder {
                Some(holder) => self.append(tail, holder),
                None if tail.is_runnable() || self.one_in(3) => self.claim(),
                None if tail.session.arrived.approvals.is_empty() => self.admit(),
                None => self.answer(tail),
            },
        }
    }

    fn create(&mut self, tail: Option<&Tail>) -> Write {
        let mut created = SessionCreated {
            agent: "test".into(),
            ..SessionCreated::default()
        };
        if let Some(tail) = tail {
            created.title = tail.session.title.clone();
            created.parent = tail.session.parent.clone();
        } else {
            created.resume = self.resume();
            created.parent = self.one_in(3).then(|| Parent {
                session: self.session(),
                key: "k".into(),
                depth: 1,
            });
        }
        if self.one_in(5) {
            created.title = Some("another".into());
        }
        Write::Create(created)
    }

    fn is_import(&self, session: SessionId) -> bool {
        self.imports.iter().any(|(known, _)| *known == session)
    }

    /// The source's history elsewhere: as a fork, or as an import that begins.
    fn copy(&mut self) -> (SessionId, Write) {
        let to = if self.sessions.len() < MOST_SESSIONS && !self.one_in(3) {
            let session = SessionId(self.uuid());
            self.sessions.push(session);
            session
        } else {
            self.session()
        };
        let source = self.source.clone().expect("there is a source");
        if self.one_in(2) {
            return (to, self.fork(&source));
        }
        self.imports.retain(|(session, _)| *session != to);
        self.imports.push((to, exported(&source, to)));
        (to, self.replay(to, 0))
    }

    fn fork(&mut self, source: &Dump) -> Write {
        let session = source.session.as_ref().expect("a session has its row");
        let cut = self.below(source.items.len() + 1);
        let items: Vec<_> = (source.items[..cut].iter())
            .map(|item| (item.at, item.body.clone()))
            .collect();
        Write::Fork(Fork {
            created: SessionCreated {
                agent: session.agent.clone(),
                forked: Some(Forked {
                    session: session.id,
                    through: session.head,
                }),
                ..SessionCreated::default()
            },
            before_context: self.below(items.len() + 1),
            items,
            states: session.states.clone(),
        })
    }

    /// Some of what is imported into a session at this head, mostly what comes next there.
    fn replay(&mut self, session: SessionId, head: u64) -> Write {
        let log = self.imports.iter().find(|(known, _)| *known == session);
        let log = log.map(|(_, log)| log.clone()).unwrap_or_default();
        let next = usize::try_from(head).unwrap().min(log.len());
        let from = match self.below(10) {
            0 => self.below(next + 1),
            1 => (next + 1).min(log.len()),
            _ => next,
        };
        let count = 1 + self.below(12);
        let mut records: Vec<Record> = log.into_iter().skip(from).take(count).collect();
        if self.one_in(5)
            && let Some(n) = records.len().checked_sub(1)
        {
            let n = self.below(n + 1);
            self.damage(&mut records, n);
        }
        Write::Replay(Replay {
            origin: if self.one_in(12) { "o2" } else { "o1" }.into(),
            strict: self.one_in(2),
            records,
            texts: Arc::default(),
        })
    }

    fn damage(&mut self, records: &mut Vec<Record>, n: usize) {
        let earlier = records[self.below(n + 1)].clone();
        let record = &mut records[n];
        match self.below(8) {
            0 => record.kind = "later.kind".into(),
            1 => record.version = 2,
            2 => record.session = self.sessions[0],
            3 => record.id = earlier.id,
            4 => record.data = serde_json::json!({ "nothing": "fits" }),
            5 => record.at += 1,
            // The same event again, under another id. That an execution's id is new, its session's
            // live end cannot tell.
            6 if earlier.kind != "execution.started" => {
                record.kind = earlier.kind;
                record.data = earlier.data;
            }
            6 => {}
            _ => drop(records.remove(n)),
        }
    }

    fn revert(&mut self, head: u64) -> Write {
        let through = self.below(usize::try_from(head).unwrap() + 2) as u64;
        Write::Revert(Reverted {
            through,
            context_after: through / 2,
            states: States::default(),
        })
    }

    fn resume(&mut self) -> Resume {
        Resume {
            mode: self.pick(&[
                ResumeMode::Auto,
                ResumeMode::Auto,
                ResumeMode::Auto,
                ResumeMode::Ask,
                ResumeMode::Never,
            ]),
            max_age_ms: self.one_in(3).then_some(HOUR_MS / 2),
        }
    }

    fn wake(&mut self) -> Write {
        Write::Wake {
            scope: self.pick(&[Scope::All, Scope::Steers]),
        }
    }

    fn interrupt(&mut self) -> Write {
        let causes = self.causes.clone();
        Write::Interrupt {
            cause: self.one_in(2).then(|| self.pick(&causes)),
            and_continue: self.one_in(2),
        }
    }

    fn delivery(&mut self) -> Delivery {
        self.pick(&[Delivery::Steer, Delivery::Queue])
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

    fn pending(&mut self, tail: &Tail) -> InputId {
        if tail.inputs.is_empty() || self.one_in(4) {
            return self.input();
        }
        tail.inputs[self.below(tail.inputs.len())].id
    }

    fn admit(&mut self) -> Write {
        Write::Admit {
            input: self.input(),
            delivery: self.delivery(),
            content: self.content(),
        }
    }

    fn content(&mut self) -> InputContent {
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
    fn name(&mut self) -> String {
        self.pick(&["n0", "n\0\"1", "nü"]).into()
    }

    fn approval(&mut self) -> Approval {
        Approval {
            key: self.name(),
            approved: self.one_in(2),
            reason: self.one_in(2).then(|| "because".into()),
        }
    }

    fn answer(&mut self, tail: &Tail) -> Write {
        let mut approval = self.approval();
        let asked: Vec<String> = tail.session.arrived.approvals.keys().cloned().collect();
        if !asked.is_empty() && !self.one_in(4) {
            approval.key = self.pick(&asked);
        }
        Write::Answer(approval)
    }

    /// A notice that nobody owes.
    fn strange_notice(&mut self) -> Notice {
        Notice::Interrupt {
            child: self.session(),
            cause: self.causes[0],
        }
    }

    /// What a courier does with a notice: it brings it, and takes it out of the outbox. Not always.
    fn deliver(&mut self, tail: &Tail) -> (SessionId, Write) {
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

    fn bring(&mut self, from: SessionId, notice: &Notice, to: &mut Vec<(SessionId, Write)>) {
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

    fn any_fence(&mut self) -> Fence {
        Fence {
            execution: ExecutionId(self.uuid()),
            owner: self.owner,
        }
    }

    fn fence(&mut self) -> Fence {
        // The last ones most of all.
        let n = self.below(self.fences.len().min(12));
        self.fences[self.fences.len() - 1 - n]
    }

    fn claim(&mut self) -> Write {
        let mut fence = self.any_fence();
        if self.one_in(6) {
            fence.owner = OwnerId(self.uuid());
        }
        self.fences.push(fence);
        Write::Claim {
            execution: fence.execution,
            owner: fence.owner,
            lease_ms: LEASE_MS,
            forced: self.one_in(5).then_some(3),
            resumed: self.one_in(2),
            by_itself: self.one_in(3),
        }
    }

    fn append(&mut self, tail: &Tail, holder: Fence) -> Write {
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

    fn end(&mut self, tail: &Tail) -> Option<End> {
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
    fn bodies(&mut self, tail: &Tail) -> Vec<EventBody> {
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

    fn action(&mut self, tail: &Tail) -> Action {
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

    fn call_model(&mut self) -> Action {
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

    fn condition(&mut self, tail: &Tail) -> Condition {
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
    fn effect(&mut self, tail: &Tail, step: &Step) -> Vec<EventBody> {
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
    fn model_ends(&mut self, step: &Step) -> Vec<EventBody> {
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

    fn pieces(&mut self, step: &Step) -> Vec<Piece> {
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

/// A log as another store would hold it: of another session, under other ids.
fn exported(source: &Dump, session: SessionId) -> Vec<Record> {
    let from = source.session.as_ref().expect("a session has its row").id;
    let mut text = serde_json::to_string(&source.events).expect("records serialise");
    text = text.replace(&from.to_string(), &session.to_string());
    for input in &source.inputs {
        let other = InputId::derived(input.id.0, &session.to_string());
        text = text.replace(&input.id.to_string(), &other.to_string());
    }
    let mut records: Vec<Record> = serde_json::from_str(&text).expect("records parse");
    for record in &mut records {
        record.id = EventId::derived(record.id.0, &session.to_string());
    }
    records
}

fn model() -> ModelRef {
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
