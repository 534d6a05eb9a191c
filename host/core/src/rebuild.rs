//! The rows that follow from a log alone: what any store must hold after these events. Claims are told by
//! no event and are not among them.

use std::collections::BTreeMap;

use crate::event::{Event, Record};
use crate::history::Item;
use crate::id::{ExecutionId, Seq};
use crate::port::Dump;
use crate::project::{self, RuleBroken};
use crate::tail::{Call, Changes, Execution, Input, StepRow, Tail};

/// The rows of one session beside the session's own, by their keys.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Rows {
    /// By seq and the position among the items of one event.
    pub items: BTreeMap<(Seq, u32), Item>,
    /// By the seq of their admission.
    pub inputs: BTreeMap<Seq, Input>,
    pub steps: BTreeMap<Seq, StepRow>,
    /// By step and call id.
    pub calls: BTreeMap<(Seq, String), Call>,
    pub executions: BTreeMap<ExecutionId, Execution>,
}

impl From<Dump> for Rows {
    fn from(dump: Dump) -> Self {
        let mut rows = Self::default();
        rows.take(Changes {
            items: dump.items,
            inputs: dump.inputs,
            steps: dump.steps,
            calls: dump.calls,
            executions: dump.executions,
            drop_items_after: None,
        });
        rows
    }
}

impl Rows {
    /// Merges what one commit, or one event, changed.
    pub fn take(&mut self, changes: Changes) {
        if let Some(through) = changes.drop_items_after {
            self.items.retain(|(seq, _), _| *seq <= through);
        }
        let mut last = (0, 0);
        for item in changes.items {
            last = if last.0 == item.seq {
                (item.seq, last.1 + 1)
            } else {
                (item.seq, 0)
            };
            self.items.insert(last, item);
        }
        for input in changes.inputs {
            self.inputs.insert(input.seq, input);
        }
        for mut step in changes.steps {
            if let Some(before) = self.steps.get(&step.seq) {
                step.usage = step.usage.or(before.usage);
                step.settled_at = step.settled_at.or(before.settled_at);
            }
            self.steps.insert(step.seq, step);
        }
        for call in changes.calls {
            self.calls.insert((call.step, call.id.clone()), call);
        }
        for execution in changes.executions {
            match self.executions.get_mut(&execution.id) {
                Some(known) if execution.started == 0 => {
                    known.ended = execution.ended;
                    known.terminal = execution.terminal;
                }
                _ => drop(self.executions.insert(execution.id, execution)),
            }
        }
    }
}

/// A session's rows in the making, event by event.
#[derive(Clone, Debug)]
pub struct Rebuild {
    /// Without a claim.
    pub tail: Tail,
    pub rows: Rows,
}

impl Rebuild {
    /// Begins with a session's first event. `None` if that is not its creation.
    #[must_use]
    pub fn begin(event: &Event) -> Option<Self> {
        let tail = project::begin(event)?;
        Some(Self {
            tail,
            rows: Rows::default(),
        })
    }

    /// Takes the next event in.
    ///
    /// # Errors
    /// [`RuleBroken`] for an event that cannot stand here; the rows are then not to be used any more.
    pub fn take(&mut self, event: &Event) -> Result<(), RuleBroken> {
        let mut changes = Changes::default();
        project::project(&mut self.tail, event, &mut changes)?;
        self.rows.take(changes);
        Ok(())
    }

    /// The rows as a store would give them, without the events.
    #[must_use]
    pub fn into_dump(self) -> Dump {
        let mut executions: Vec<Execution> = self.rows.executions.into_values().collect();
        executions.sort_by_key(|execution| (execution.started, execution.id));
        Dump {
            events: Vec::new(),
            session: Some(self.tail.session),
            claim: None,
            items: self.rows.items.into_values().collect(),
            inputs: self.rows.inputs.into_values().collect(),
            steps: self.rows.steps.into_values().collect(),
            calls: self.rows.calls.into_values().collect(),
            executions,
        }
    }
}

/// Everything of a session, from its log and, where that has stubs, the rows that have their text.
///
/// # Errors
/// The first event that cannot be read or cannot stand where it does.
pub fn rebuild_beside(held: &Dump) -> Result<Dump, String> {
    let mut made = replay(&held.events)?;
    let session = held.session.as_ref();
    let through = session.map_or(0, |session| session.compacted_through);
    if let Some(made) = &mut made {
        if through > 0 {
            crate::stub::fill(&mut made.rows, &held.clone().into());
        }
        made.tail.session.compacted_through = through;
    }
    Ok(dump(made, &held.events))
}

/// Everything of a session, from its log.
///
/// # Errors
/// The first event that cannot be read or cannot stand where it does.
pub fn rebuild(records: &[Record]) -> Result<Dump, String> {
    Ok(dump(replay(records)?, records))
}

fn dump(made: Option<Rebuild>, records: &[Record]) -> Dump {
    let mut dump = made.map(Rebuild::into_dump).unwrap_or_default();
    dump.events = records.to_vec();
    dump
}

fn replay(records: &[Record]) -> Result<Option<Rebuild>, String> {
    let mut made: Option<Rebuild> = None;
    for record in records {
        let event = record.decode().map_err(|error| error.to_string())?;
        match &mut made {
            None => {
                let begun = Rebuild::begin(&event);
                made = Some(begun.ok_or("the log does not begin with the session's creation")?);
            }
            Some(made) => made.take(&event).map_err(|error| error.to_string())?,
        }
    }
    Ok(made)
}
