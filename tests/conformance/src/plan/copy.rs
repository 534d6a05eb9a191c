//! Copies of sessions: forks, and imports of a log, whole, again, or damaged.

use std::sync::Arc;

use mainstay_core::commit::Write;
use mainstay_core::edit::Fork;
use mainstay_core::event::{Forked, Record, SessionCreated};
use mainstay_core::id::{EventId, InputId, SessionId};
use mainstay_core::port::Dump;
use mainstay_core::replay::Replay;

use super::{MOST_SESSIONS, Plan};

impl Plan {
    pub(super) fn is_import(&self, session: SessionId) -> bool {
        self.imports.iter().any(|(known, _)| *known == session)
    }

    /// The source's history elsewhere: as a fork, or as an import that begins.
    pub(super) fn copy(&mut self) -> (SessionId, Write) {
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

    pub(super) fn fork(&mut self, source: &Dump) -> Write {
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
    pub(super) fn replay(&mut self, session: SessionId, head: u64) -> Write {
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

    pub(super) fn damage(&mut self, records: &mut Vec<Record>, n: usize) {
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
