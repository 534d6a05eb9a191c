use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

use mainstay_core::claim::Fence;
use mainstay_core::commit::{Commit, Refused};
use mainstay_core::event::{Delivery, EventBody};
use mainstay_core::id::{InputId, Seq, SessionId};
use mainstay_core::port::{Committed, Dump, Store, StoreError};
use mainstay_core::tail::{CallStatus, InputStatus};
use mainstay_test_support::{ManualClock, build, rebuild_beside};

/// A fresh store and the clock that it goes by.
pub struct Harness {
    pub store: Arc<dyn Store>,
    pub clock: Arc<ManualClock>,
    /// Dropped with it: a directory for example.
    pub keep: Box<dyn Any + Send + Sync>,
}

impl Harness {
    /// A commit that is accepted.
    #[track_caller]
    pub fn ok(&self, commit: Commit) -> impl Future<Output = Committed> + use<'_> {
        let caller = std::panic::Location::caller();
        async move {
            match self.store.commit(commit).await {
                Ok(done) => done,
                Err(error) => panic!("{caller}: {error:?}"),
            }
        }
    }

    /// A commit that is refused, and leaves no trace.
    #[track_caller]
    pub fn refused(&self, commit: Commit) -> impl Future<Output = Refused> + use<'_> {
        let caller = std::panic::Location::caller();
        async move {
            let session = commit.session;
            let before = self.store.dump(session).await.unwrap();
            let refused = match self.store.commit(commit).await {
                Err(StoreError::Refused(refused)) => refused,
                other => panic!("{caller}: not refused: {other:?}"),
            };
            assert_eq!(
                before,
                self.store.dump(session).await.unwrap(),
                "{caller}: a refused commit left a trace"
            );
            refused
        }
    }

    /// A new session.
    pub async fn session(&self) -> SessionId {
        let session = SessionId::new();
        self.ok(build::create(session)).await;
        session
    }

    /// A prompt for a session.
    pub async fn prompt(&self, session: SessionId, delivery: Delivery) -> InputId {
        let input = InputId::new();
        self.ok(build::admit(session, input, delivery, "hello"))
            .await;
        input
    }

    /// A session with a prompt, claimed.
    pub async fn claimed(&self) -> (SessionId, Fence, InputId) {
        let session = self.session().await;
        let input = self.prompt(session, Delivery::Steer).await;
        let fence = build::fence();
        self.ok(build::claim(session, fence)).await;
        (session, fence, input)
    }

    /// A claimed session whose turn has begun with the prompt.
    pub async fn turn(&self) -> (SessionId, Fence) {
        let (session, fence, input) = self.claimed().await;
        let events = [build::turn_started(), EventBody::InputPromoted { input }];
        self.ok(build::append(session, fence, events)).await;
        (session, fence)
    }

    /// A claimed session with an open step; and the step's seq.
    pub async fn step(&self, action: mainstay_core::plugin::Action) -> (SessionId, Fence, Seq) {
        let (session, fence) = self.turn().await;
        let done = self
            .ok(build::append(session, fence, [build::step_started(action)]))
            .await;
        (session, fence, done.tail.session.head)
    }

    /// Lets the lease run out and settles the claim.
    pub async fn crash(&self, session: SessionId, fence: Fence) -> Committed {
        self.clock.advance(build::LEASE_MS);
        self.ok(build::recover(session, fence)).await
    }

    /// Everything of a session, with the invariants checked and the tail compared to its rows.
    pub async fn dump(&self, session: SessionId) -> Dump {
        let dump = self.store.dump(session).await.unwrap();
        check_invariants(&dump);
        let tail = self
            .store
            .tail(session)
            .await
            .unwrap()
            .expect("the session exists");
        assert_eq!(dump.session.as_ref(), Some(&tail.session));
        assert_eq!(dump.claim, tail.claim);
        let pending: Vec<_> = dump
            .inputs
            .iter()
            .filter(|i| i.status == InputStatus::Pending)
            .cloned()
            .collect();
        assert_eq!(pending, tail.inputs);
        dump
    }

    /// Types of a session's events.
    pub async fn kinds(&self, session: SessionId) -> Vec<String> {
        self.dump(session)
            .await
            .events
            .into_iter()
            .map(|event| event.kind)
            .collect()
    }
}

/// The invariants of the design that rows can show.
pub fn check_invariants(dump: &Dump) {
    let Some(session) = &dump.session else { return };
    invariant_3_seqs_have_no_gap(dump, session.head);
    invariant_4_one_terminal_per_execution(dump);
    invariant_5_one_result_per_call(dump);
    invariant_6_inputs_have_one_fate(dump);
    invariant_8_rows_follow_from_the_log(dump);
}

fn invariant_3_seqs_have_no_gap(dump: &Dump, head: Seq) {
    let seqs: Vec<Seq> = dump.events.iter().map(|event| event.seq).collect();
    assert_eq!(seqs, (1..=head).collect::<Vec<_>>());
}

fn invariant_4_one_terminal_per_execution(dump: &Dump) {
    for execution in &dump.executions {
        let terminals = dump.events.iter().filter(|event| {
            event
                .decode()
                .is_ok_and(|event| event.body.terminal_of() == Some(execution.id))
        });
        let session = dump.session.as_ref().expect("a session has its row");
        let runs = session.execution == Some(execution.id);
        let claim = dump.claim.as_ref();
        let claimed = claim.is_some_and(|claim| claim.execution == execution.id && !claim.ended);
        // What an imported session's origin runs is claimed there.
        assert!(
            claimed == runs || session.imported().is_some() && !claimed,
            "the claim does not fit the log: {claim:?}, {session:#?}, {:#?}",
            dump.events
                .iter()
                .map(|event| format!("{} {} {}", event.seq, event.kind, event.data))
                .collect::<Vec<_>>()
        );
        assert_eq!(
            terminals.count(),
            usize::from(!runs),
            "terminals of {}",
            execution.id
        );
        assert_eq!(execution.ended.is_none(), runs);
    }
}

fn invariant_5_one_result_per_call(dump: &Dump) {
    let mut results: HashMap<(Seq, String), u32> = HashMap::new();
    for event in &dump.events {
        if let Ok(EventBody::CallSettled { step, result, .. }) =
            event.decode().map(|event| event.body)
        {
            *results.entry((step, result.call)).or_default() += 1;
        }
    }
    assert!(results.values().all(|n| *n == 1), "{results:?}");
    for call in dump.calls.iter().filter(|call| !call.own && !call.hosted) {
        let settled = call.status == CallStatus::Settled;
        assert_eq!(
            results.contains_key(&(call.step, call.id.clone())),
            settled,
            "{call:?}"
        );
    }
}

fn invariant_6_inputs_have_one_fate(dump: &Dump) {
    for input in &dump.inputs {
        let count = |wanted: fn(&EventBody) -> Option<InputId>| {
            let bodies = dump.events.iter().filter_map(|event| event.decode().ok());
            bodies
                .filter(|event| wanted(&event.body) == Some(input.id))
                .count()
        };
        let promoted = count(|body| match body {
            EventBody::InputPromoted { input } => Some(*input),
            _ => None,
        });
        let cancelled = count(|body| match body {
            EventBody::InputCancelled { input } => Some(*input),
            _ => None,
        });
        let expected = match input.status {
            InputStatus::Pending => (0, 0),
            InputStatus::Promoted => (1, 0),
            InputStatus::Cancelled => (0, 1),
        };
        assert_eq!((promoted, cancelled), expected, "{input:?}");
    }
}

fn invariant_8_rows_follow_from_the_log(dump: &Dump) {
    let mut rebuilt = rebuild_beside(dump).expect("a stored log can be replayed");
    let mut stored = dump.clone();
    // The two things that are in no event: who has claimed it, and where it was imported from.
    stored.claim = None;
    if let (Some(stored), Some(rebuilt)) = (&stored.session, &mut rebuilt.session) {
        rebuilt.origin.clone_from(&stored.origin);
    }
    assert_eq!(stored, rebuilt);
}
