//! Stores that break their promise, to prove that a run would notice.

use std::collections::HashSet;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use async_trait::async_trait;
use mainstay_core::claim::Fence;
use mainstay_core::commit::{Admission, Commit, Reply, Write};
use mainstay_core::event::{Event, EventBody};
use mainstay_core::id::{EventId, InputId, Seq};
use mainstay_core::port::{Committed, Store, StoreError};
use mainstay_core::tail::InputStatus;
use mainstay_test_support::delegate::Delegate;

/// How a store is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Whoever writes, writes as the holder of the claim.
    IgnoresTheFence,
    /// An interrupt's mark stops nobody.
    IgnoresInterrupts,
    /// Write-aheads are not written.
    LosesWriteAheads,
    /// Seqs leave one out.
    LeavesAGap,
    /// A retry of an admission is another admission.
    AdmitsAgain,
    /// An admission is answered, and not stored.
    ForgetsAdmissions,
    /// A wake changes nothing.
    IgnoresWakes,
    /// Results of calls are not written.
    LosesResults,
    /// A promotion is written twice.
    PromotesTwice,
    /// A session's row counts one crash too many.
    Miscounts,
    /// It panics.
    Panics,
}

impl Defect {
    pub const ALL: [(&str, Self); 11] = [
        ("ignores-the-fence", Self::IgnoresTheFence),
        ("ignores-interrupts", Self::IgnoresInterrupts),
        ("loses-write-aheads", Self::LosesWriteAheads),
        ("leaves-a-gap", Self::LeavesAGap),
        ("admits-again", Self::AdmitsAgain),
        ("forgets-admissions", Self::ForgetsAdmissions),
        ("ignores-wakes", Self::IgnoresWakes),
        ("loses-results", Self::LosesResults),
        ("promotes-twice", Self::PromotesTwice),
        ("miscounts", Self::Miscounts),
        ("panics", Self::Panics),
    ];

    /// Its name on a command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        let mut all = Self::ALL.iter();
        all.find(|(_, defect)| *defect == self)
            .expect("every defect stands in the list")
            .0
    }
}

impl FromStr for Defect {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let found = Self::ALL.iter().find(|(known, _)| *known == name);
        found.map(|(_, defect)| *defect).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|(name, _)| *name).collect();
            format!(
                "there is no defect {name:?}; there are {}",
                names.join(", ")
            )
        })
    }
}

/// A store with a defect.
pub struct BrokenStore {
    inner: Arc<dyn Store>,
    defect: Defect,
    seen: Mutex<HashSet<InputId>>,
}

impl BrokenStore {
    #[must_use]
    pub fn new(inner: Arc<dyn Store>, defect: Defect) -> Self {
        Self {
            inner,
            defect,
            seen: Mutex::default(),
        }
    }

    /// True from the second time on.
    fn again(&self, input: InputId) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        !seen.insert(input)
    }

    /// The answer to a commit that is not stored at all.
    async fn swallow(&self, commit: &Commit) -> Result<Option<Committed>, StoreError> {
        let Some(tail) = self.inner.tail(commit.session).await? else {
            return Ok(None);
        };
        let reply = match (self.defect, &commit.write) {
            (Defect::IgnoresWakes, Write::Wake { .. }) => Reply::Done,
            // While nobody else writes, so that nothing but the client's word is lost.
            (Defect::ForgetsAdmissions, Write::Admit { input, .. })
                if tail.claim.is_none() && !tail.is_runnable() =>
            {
                Reply::Admitted(Admission {
                    input: *input,
                    seq: tail.session.head + 1,
                    status: InputStatus::Pending,
                    held: None,
                })
            }
            _ => return Ok(None),
        };
        Ok(Some(Committed {
            events: Vec::new(),
            tail,
            reply,
        }))
    }

    /// Makes another commit of it.
    async fn distort(&self, commit: &mut Commit) -> Result<(), StoreError> {
        match (self.defect, &mut commit.write) {
            (Defect::IgnoresTheFence, Write::Append(append)) => {
                let tail = self.inner.tail(commit.session).await?;
                if let Some(claim) = tail.as_ref().and_then(|tail| tail.claim.as_ref()) {
                    append.fence = Fence {
                        execution: claim.execution,
                        owner: claim.owner,
                    };
                }
            }
            (Defect::IgnoresInterrupts, Write::Append(append)) => append.begins = false,
            (Defect::LosesWriteAheads, Write::Append(append)) => append
                .events
                .retain(|draft| !matches!(draft.body, EventBody::CallStarted { .. })),
            (Defect::LosesResults, Write::Append(append)) => append
                .events
                .retain(|draft| !matches!(draft.body, EventBody::CallSettled { .. })),
            (Defect::AdmitsAgain, Write::Admit { input, .. }) if self.again(*input) => {
                *input = InputId::derived(input.0, "again");
            }
            (Defect::Panics, Write::Append(_)) => panic!("by its defect"),
            _ => {}
        }
        Ok(())
    }

    /// Tells of a commit what is not so.
    fn misreport(&self, committed: &mut Committed) {
        match self.defect {
            Defect::LeavesAGap => {
                for event in &mut committed.events {
                    event.seq += Seq::from(event.seq >= 9);
                }
            }
            Defect::PromotesTwice => {
                let promotes =
                    |event: &Event| matches!(event.body, EventBody::InputPromoted { .. });
                let Some(at) = committed.events.iter().position(promotes) else {
                    return;
                };
                let mut again = committed.events[at].clone();
                again.id = EventId::derived(again.id.0, "again");
                committed.events.insert(at + 1, again);
                for event in &mut committed.events[at + 1..] {
                    event.seq += 1;
                }
            }
            Defect::Miscounts => Arc::make_mut(&mut committed.tail).session.attempts += 1,
            _ => {}
        }
    }
}

#[async_trait]
impl Delegate for BrokenStore {
    fn inner(&self) -> &dyn Store {
        &*self.inner
    }

    async fn commit(&self, mut commit: Commit) -> Result<Committed, StoreError> {
        if let Some(answer) = self.swallow(&commit).await? {
            return Ok(answer);
        }
        self.distort(&mut commit).await?;
        let mut committed = self.inner.commit(commit).await?;
        self.misreport(&mut committed);
        Ok(committed)
    }
}
