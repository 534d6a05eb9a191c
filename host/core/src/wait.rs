//! Waits: what ends one, decided from rows alone. A waiting session is a row with [`Waiting`] in it;
//! it holds no claim. Everything that can end a wait is an input, so what arrives before the wait is
//! kept, and what ends it is a promotion.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::approval;
use crate::event::InputContent;
use crate::history::Approval;
use crate::id::{InputId, Millis, Seq, SessionId};
use crate::plugin::{ApprovalRequest, Condition, WaitEnd};
use crate::tail::Session;

/// The open wait of a turn.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Seq of the step that decided it, or that is open with calls that are held.
    pub step: Seq,
    pub until: Vec<Condition>,
    /// When its timer is due; `None` without one, and once it has fired.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wake_at: Option<Millis>,
}

/// Seqs of signals, by their name.
pub type Signals = BTreeMap<String, Vec<Seq>>;

/// What has arrived in a session that a wait, now or later, can end with.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Arrived {
    /// Those in the history that no wait has consumed.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub signals: Signals,
    /// Seq at which a wait last ended with a signal, or a later one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub taken: Option<Seq>,
    /// Requests for approval by key, the answered ones included.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub approvals: BTreeMap<String, Asked>,
}

impl Arrived {
    pub(crate) fn is_empty(&self) -> bool {
        self.signals.is_empty() && self.taken.is_none() && self.approvals.is_empty()
    }

    /// Forgets what came behind a place of the history: what is asked for anew is answered anew, and
    /// `given` are the signals there that only a wait behind it had consumed.
    pub(crate) fn cut(&mut self, through: Seq, given: Option<Signals>) {
        self.taken = self.taken.map(|taken| taken.min(through));
        if let Some(given) = given {
            self.signals = given;
        }
        self.signals.retain(|_, seqs| {
            seqs.retain(|seq| *seq <= through);
            !seqs.is_empty()
        });
        self.approvals.retain(|_, asked| {
            asked.step <= through && asked.answered.is_none_or(|answered| answered <= through)
        });
    }
}

/// A request for approval.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Asked {
    /// Seq of the step that asked.
    pub step: Seq,
    /// The call that it is about, where the agent's policy asks and not the runner.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub call: Option<String>,
    pub at: Millis,
    /// Left out once it is answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<ApprovalRequest>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Approval>,
    /// Seq of the answer's admission.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answered: Option<Seq>,
    /// The answer is in the history.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub seen: bool,
}

/// The id of the input that a wait's timer becomes: the same however often it fires.
#[must_use]
pub fn timer_input(session: SessionId, step: Seq) -> InputId {
    InputId::derived(session.0, &format!("timer/{step}"))
}

/// The id of the input that the answer to the request of a step becomes, so that the first one stands.
#[must_use]
pub fn approval_input(session: SessionId, step: Seq, key: &str) -> InputId {
    InputId::derived(session.0, &format!("approval/{step}/{key}"))
}

/// Whether each condition could ever be met.
///
/// # Errors
/// The one that could not, in words for the runner's author.
pub fn check(session: &Session, until: &[Condition]) -> Result<(), String> {
    if until.is_empty() {
        return Err("it waits for nothing, which could never end".into());
    }
    for condition in until {
        match condition {
            Condition::Time(_) => {}
            Condition::Signal(name) if name.is_empty() => {
                return Err("it waits for a signal without a name".into());
            }
            Condition::Signal(_) => {}
            Condition::Approval(request) if request.key.is_empty() => {
                return Err("it asks for an approval without a key".into());
            }
            Condition::Approval(request) if request.key.starts_with(approval::PREFIX) => {
                return Err(format!(
                    "it asks for an approval under {:?}: such keys are kept for calls of tools",
                    request.key
                ));
            }
            Condition::Approval(_) => {}
            Condition::Children(keys) if keys.is_empty() => {
                return Err("it waits for no child".into());
            }
            Condition::Children(keys) => {
                let unknown = keys.iter().find(|key| session.child(key).is_none());
                if let Some(key) = unknown {
                    return Err(format!("it waits for child {key:?}, which it never had"));
                }
            }
        }
    }
    Ok(())
}

/// Index of the first condition that is met by what has arrived, `now` being an event's time.
#[must_use]
pub fn met(session: &Session, until: &[Condition], now: Millis) -> Option<u32> {
    let met = |condition: &Condition| match condition {
        Condition::Time(at) => *at <= now,
        Condition::Signal(name) => session.arrived.signals.contains_key(name),
        Condition::Approval(request) => session
            .arrived
            .approvals
            .get(&request.key)
            .is_some_and(|asked| asked.seen),
        Condition::Children(keys) => keys
            .iter()
            .all(|key| session.child(key).is_some_and(|child| child.ended)),
    };
    until.iter().position(met).map(|index| index as u32)
}

/// A call is to wait for a person.
///
/// # Errors
/// The broken rule, where one was asked about it before.
pub(crate) fn ask(
    session: &mut Session,
    step: Seq,
    at: Millis,
    call: &str,
    request: &ApprovalRequest,
) -> Result<(), String> {
    if request.key != approval::key(step, call) {
        return Err(format!(
            "the request's key {:?} names another call",
            request.key
        ));
    }
    let asked = Asked {
        step,
        call: Some(call.into()),
        at,
        request: Some(request.clone()),
        answer: None,
        answered: None,
        seen: false,
    };
    match session.arrived.approvals.insert(request.key.clone(), asked) {
        None => Ok(()),
        Some(_) => Err(format!("{:?} is asked for already", request.key)),
    }
}

/// Begins the wait of a step that nothing is left of but held calls: any answer ends it.
pub(crate) fn hold(session: &mut Session, step: Seq) {
    let asked = session.arrived.approvals.values();
    let open = asked.filter(|asked| asked.step == step && asked.call.is_some());
    let until = open
        .filter_map(|asked| asked.request.clone())
        .map(Condition::Approval)
        .collect();
    session.wait = Some(Waiting {
        step,
        until,
        wake_at: None,
    });
}

/// Takes the answer to a request in, as it is admitted. What a held call waits for counts at once:
/// its step is open, and no input enters the history before that is settled.
///
/// # Errors
/// The broken rule, where nobody asked or somebody has answered.
pub(crate) fn answered(session: &mut Session, seq: Seq, answer: &Approval) -> Result<(), String> {
    let asked = session.arrived.approvals.get_mut(&answer.key);
    let asked = asked.ok_or("nobody asked for this approval")?;
    if asked.answer.is_some() {
        return Err("it is answered already".into());
    }
    asked.request = None;
    asked.answer = Some(answer.clone());
    asked.answered = Some(seq);
    if asked.call.is_some() && session.step == Some(asked.step) {
        session.wait = None;
    }
    Ok(())
}

/// Whether an answer is for a held call, and so for the host alone.
pub(crate) fn is_for_a_call(session: &Session, answer: &Approval) -> bool {
    let asked = session.arrived.approvals.get(&answer.key);
    asked.is_some_and(|asked| asked.call.is_some())
}

/// Takes what a wait ended with: a signal counts for one wait.
pub(crate) fn consume(session: &mut Session, seq: Seq, condition: &Condition) {
    let Condition::Signal(name) = condition else {
        return;
    };
    session.arrived.taken = Some(seq);
    if let Some(left) = session.arrived.signals.get_mut(name) {
        left.remove(0);
        if left.is_empty() {
            session.arrived.signals.remove(name);
        }
    }
}

/// Begins a wait, or ends it at once where a condition is met already. Gives the end in that case.
pub(crate) fn begin(
    session: &mut Session,
    step: Seq,
    at: Millis,
    until: &[Condition],
) -> Option<WaitEnd> {
    for condition in until {
        if let Condition::Approval(request) = condition {
            let approvals = &mut session.arrived.approvals;
            approvals
                .entry(request.key.clone())
                .or_insert_with(|| Asked {
                    step,
                    call: None,
                    at,
                    request: Some(request.clone()),
                    answer: None,
                    answered: None,
                    seen: false,
                });
        }
    }
    if let Some(index) = met(session, until, at) {
        consume(session, step, &until[index as usize]);
        return Some(WaitEnd::Met(index));
    }
    let times = until.iter().filter_map(|condition| match condition {
        Condition::Time(at) => Some(*at),
        _ => None,
    });
    session.wait = Some(Waiting {
        step,
        until: until.to_vec(),
        wake_at: times.min(),
    });
    None
}

/// Takes an input in that has entered the history, and ends the open wait where it does. Gives how.
///
/// A prompt ends any wait; everything else ends one that waits for it, and else only becomes history.
pub(crate) fn arrive(session: &mut Session, seq: Seq, content: &InputContent) -> Option<WaitEnd> {
    let mut now = 0;
    match content {
        InputContent::Signal(signal) => {
            let signals = &mut session.arrived.signals;
            signals.entry(signal.name.clone()).or_default().push(seq);
        }
        InputContent::Approval(approval) => {
            if let Some(asked) = session.arrived.approvals.get_mut(&approval.key) {
                asked.seen = true;
            }
        }
        InputContent::Child(result) => {
            if let Some(child) = session.children.iter_mut().find(|c| c.key == result.key) {
                child.ended = true;
            }
        }
        InputContent::Timer { at } => now = *at,
        InputContent::Prompt { .. } => {
            return session.wait.take().map(|_| WaitEnd::Steered);
        }
        InputContent::Configure { .. } => return None,
        InputContent::Compact {} => {
            // The runner is asked for it, and waits again afterwards.
            session.wait = None;
            return None;
        }
    }
    let until = session.wait.as_ref()?.until.clone();
    let index = met(session, &until, now)?;
    consume(session, seq, &until[index as usize]);
    session.wait = None;
    Some(WaitEnd::Met(index))
}
