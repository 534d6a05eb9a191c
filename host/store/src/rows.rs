//! The rows that a group of commits changes, by table, their columns in the order of both dialects'
//! statements.

use std::collections::{HashMap, HashSet};

use mainstay_core::event::Event;
use mainstay_core::history::Item;
use mainstay_core::id::SessionId;
use mainstay_core::tail::{CallStatus, Changes, InputStatus, Tail};
use serde::Serialize;

pub(crate) type Text = String;

// Columns in the order of the statements.
pub(crate) type EventRow = (
    Text,
    u64,
    Text,
    Text,
    u32,
    u64,
    Option<Text>,
    Option<Text>,
    Text,
    Option<Text>,
);
pub(crate) type ItemRow = (Text, u64, u32, bool, u64, Text);
pub(crate) type StepRow = (
    Text,
    u64,
    u64,
    Option<u64>,
    Text,
    Option<Text>,
    Option<Text>,
);
pub(crate) type ExecutionRow = (Text, Text, Text, u64, Option<u64>, Option<Text>);
pub(crate) type SessionRow = (
    Text,
    u64,
    u64,
    u64,
    Option<u64>,
    bool,
    bool,
    Option<u64>,
    bool,
    Option<u64>,
    Text,
);

/// What one transaction writes.
#[derive(Default)]
pub(crate) struct Rows {
    pub(crate) events: Vec<EventRow>,
    pub(crate) inputs: Vec<(Text, Text, u64, &'static str, bool, Text)>,
    pub(crate) items: Vec<ItemRow>,
    pub(crate) steps: Vec<StepRow>,
    pub(crate) calls: Vec<(Text, u64, Text, &'static str, Text)>,
    pub(crate) executions: Vec<ExecutionRow>,
    /// Sessions with the seq behind which their stored items are gone.
    pub(crate) dropped: HashMap<Text, u64>,
    pub(crate) changed: HashSet<SessionId>,
    /// Sessions whose claim is not as it was.
    pub(crate) claims: HashSet<SessionId>,
}

pub(crate) fn json(value: &impl Serialize) -> Text {
    serde_json::to_string(value).expect("rows serialise")
}

impl Rows {
    pub(crate) fn is_empty(&self) -> bool {
        self.changed.is_empty()
    }

    /// Takes in what one commit changed.
    pub(crate) fn add(&mut self, session: SessionId, events: &[Event], changes: &Changes) {
        self.changed.insert(session);
        let key = session.to_string();
        for event in events {
            let (kind, version, data) = event.body.encode_text();
            self.events.push((
                key.clone(),
                event.seq,
                event.id.to_string(),
                kind,
                version,
                event.at,
                event.execution.map(|id| id.to_string()),
                event.recovery.map(|id| id.to_string()),
                data,
                event.compacted.clone(),
            ));
        }
        for input in &changes.inputs {
            let status = input_word(input.status);
            self.inputs.push((
                input.id.to_string(),
                key.clone(),
                input.seq,
                status,
                input.intent,
                json(input),
            ));
        }
        if let Some(through) = changes.drop_items_after {
            // Those of earlier commits of this group too.
            self.items
                .retain(|(session, seq, ..)| *session != key || *seq <= through);
            let dropped = self.dropped.entry(key.clone()).or_insert(u64::MAX);
            *dropped = through.min(*dropped);
        }
        for (n, item) in numbered(&changes.items) {
            self.items.push((
                key.clone(),
                item.seq,
                n,
                item.is_message(),
                item.text_bytes(),
                json(item),
            ));
        }
        for step in &changes.steps {
            self.steps.push((
                key.clone(),
                step.seq,
                step.started_at,
                step.settled_at,
                json(&step.runner),
                step.provider.clone(),
                step.usage.as_ref().map(json),
            ));
        }
        for call in &changes.calls {
            let status = call_word(call.status);
            self.calls
                .push((key.clone(), call.step, json(&call.id), status, json(call)));
        }
        for execution in &changes.executions {
            self.executions.push((
                key.clone(),
                execution.id.to_string(),
                execution.owner.to_string(),
                execution.started,
                execution.ended,
                execution.terminal.clone(),
            ));
        }
    }
}

/// An input's status as its column has it.
pub(crate) fn input_word(status: InputStatus) -> &'static str {
    match status {
        InputStatus::Pending => "pending",
        InputStatus::Promoted => "promoted",
        InputStatus::Cancelled => "cancelled",
    }
}

/// A call's status as its column has it.
pub(crate) fn call_word(status: CallStatus) -> &'static str {
    match status {
        CallStatus::Streaming => "streaming",
        CallStatus::Ready => "ready",
        CallStatus::Held => "held",
        CallStatus::Started => "started",
        CallStatus::Settled => "settled",
    }
}

/// Items with their position among those that the same event began.
fn numbered(items: &[Item]) -> impl Iterator<Item = (u32, &Item)> {
    let mut last = (0, 0);
    items.iter().map(move |item| {
        last = if last.0 == item.seq {
            (item.seq, last.1 + 1)
        } else {
            (item.seq, 0)
        };
        (last.1, item)
    })
}

/// The row of a session, and whether it is claimed.
pub(crate) fn session_row(tail: &Tail, claimed: bool) -> SessionRow {
    let (session, runnable) = (&tail.session, tail.is_runnable());
    (
        session.id.to_string(),
        session.created_at,
        session.updated_at,
        session.head,
        session.step,
        runnable,
        runnable && !claimed,
        // No clock gets beyond what a column holds.
        session.wake_at().map(|at| at.min(i64::MAX as u64)),
        session.is_owing(),
        session.revert.as_ref().map(|revert| revert.through),
        json(session),
    )
}
