//! Random commits, good and bad, from a seed. They are made up as it goes, by what the sessions hold:
//! mostly what a host might well write next, and sometimes what it never may. Commits that go out
//! together build on each other, as the plan expects them to be taken.

mod copy;
mod inbox;
mod step;

use std::collections::{HashMap, VecDeque};

use mainstay_core::claim::Fence;
use mainstay_core::commit::{self, Append, Commit, End, Known, Write};
use mainstay_core::event::{EventDraft, Parent, Record, Reverted, SessionCreated};
use mainstay_core::id::{EventId, ExecutionId, InputId, Millis, OwnerId, SessionId};
use mainstay_core::policy::{Resume, ResumeMode};
use mainstay_core::port::{Dump, Store};
use mainstay_core::state::States;
use mainstay_core::tail::{Scope, Tail};
use mainstay_test_support::build;
use uuid::Uuid;

const SESSIONS: usize = 6;
/// Children, forks and imports are made until there are so many sessions in all.
const MOST_SESSIONS: usize = 16;
const LEASE_MS: u64 = 20_000;
const HOUR_MS: u64 = 60 * 60 * 1000;

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

    fn revert(&mut self, head: u64) -> Write {
        let through = self.below(usize::try_from(head).unwrap() + 2) as u64;
        Write::Revert {
            revert: Reverted {
                through,
                context_after: through / 2,
                states: States::default(),
                signals: None,
            },
            head: head - u64::from(self.one_in(8)),
        }
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
}
