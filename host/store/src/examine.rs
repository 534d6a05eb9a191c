//! Compares a session's rows with each other, one by one, so that one that cannot be read hides no other,
//! and the columns that queries select by with the values that they were taken from.

use mainstay_core::claim::Claim;
use mainstay_core::history::Item;
use mainstay_core::id::SessionId;
use mainstay_core::invariant::{Check, Invariant, Place, Stored};
use mainstay_core::tail::{Call, Execution, Input, InputStatus, Session, StepRow, Tail};
use serde::de::DeserializeOwned;

use crate::rows::{call_word, input_word};
use crate::value::{signed, unsigned};

/// Tables that keep bytes under their digests, what a row of each is, and what to do about one that is
/// damaged. The query gives the next row behind a digest.
pub(crate) const KEPT: [(&str, &str, &str); 2] = [
    (
        "SELECT digest, bytes FROM plugin WHERE digest > $1 ORDER BY digest LIMIT 1",
        "component",
        "install it again",
    ),
    (
        "SELECT digest, bytes FROM blob WHERE digest > $1 ORDER BY digest LIMIT 1",
        "blob",
        "what refers to it cannot be read",
    ),
];

/// What is wrong with bytes that are kept under a digest.
pub(crate) fn damage(digest: &str, bytes: &[u8], what: &str, advice: &str) -> Option<String> {
    let found = mainstay_core::id::digest(bytes);
    (found != digest)
        .then(|| format!("{what} {digest} is damaged: its bytes are {found}; {advice}"))
}

/// Execution, owner, expiry and value. An expiry of `None` is not compared.
pub(crate) type ClaimColumns = (String, String, Option<i64>, String);
/// When it was created and updated, head, open step, whether it is runnable, whether it is due, and the
/// value.
pub(crate) type SessionColumns = (i64, i64, i64, Option<i64>, bool, bool, String);
/// Id, seq, status, intent and value.
pub(crate) type InputColumns = (String, i64, String, bool, String);
/// Seq, position, whether it is a message, bytes, items and bytes up to it, and value.
pub(crate) type ItemColumns = (i64, i64, bool, i64, i64, i64, String);
/// Seq, beginning, end, runner, provider and usage.
pub(crate) type StepColumns = (
    i64,
    i64,
    Option<i64>,
    String,
    Option<String>,
    Option<String>,
);
/// Step, id, status and value.
pub(crate) type CallColumns = (i64, String, String, String);
/// Id, owner, beginning, end and terminal.
pub(crate) type ExecutionColumns = (String, String, i64, Option<i64>, Option<String>);

/// Rows that were read so far. Inputs and the claim come before the session.
pub(crate) struct Rows<'c> {
    pub(crate) check: &'c mut Check,
    pub(crate) stored: Stored,
    /// Whether any table has anything of the session.
    pub(crate) any: bool,
    /// Items so far, and their bytes.
    pub(crate) sofar: (i64, i64),
}

impl Rows<'_> {
    pub(crate) fn claim(&mut self, key: &str, row: ClaimColumns) {
        let (execution, owner, expires_at, data) = row;
        let name = format!("claim {key}");
        if let Some(claim) = self.parse::<Claim>(&name, &data) {
            let expiry = expires_at.is_none_or(|at| at == signed(claim.expires_at));
            let columns = [
                ("execution", execution == claim.execution.to_string()),
                ("owner", owner == claim.owner.to_string()),
                ("expires_at", expiry),
            ];
            self.columns(&name, columns);
            self.stored.claim = Some(claim);
        }
    }

    pub(crate) fn session(&mut self, key: &str, row: SessionColumns) {
        let (created_at, updated_at, head, step, runnable, due, data) = row;
        let name = format!("session {key}");
        let Some(session) = self.parse::<Session>(&name, &data) else {
            return;
        };
        let inputs = self.stored.rows.inputs.values();
        let tail = Tail {
            session,
            claim: self.stored.claim.clone(),
            step: None,
            inputs: inputs
                .filter(|input| input.status == InputStatus::Pending)
                .cloned()
                .collect(),
        };
        let session = &tail.session;
        let may = tail.is_runnable();
        let columns = [
            ("created_at", created_at == signed(session.created_at)),
            ("updated_at", updated_at == signed(session.updated_at)),
            ("head", head == signed(session.head)),
            ("step", step == session.step.map(signed)),
            ("runnable", runnable == may),
            ("due", due == (may && tail.claim.is_none())),
        ];
        self.columns(&name, columns);
        self.stored.session = Some(tail.session);
    }

    pub(crate) fn input(&mut self, row: InputColumns) {
        let (id, seq, status, intent, data) = row;
        let name = format!("input {id}");
        let Some(input) = self.parse::<Input>(&name, &data) else {
            return;
        };
        let word = input_word(input.status);
        let columns = [
            ("id", id == input.id.to_string()),
            ("seq", seq == signed(input.seq)),
            ("status", status == word),
            ("intent", intent == input.intent),
        ];
        self.columns(&name, columns);
        self.stored.rows.inputs.insert(input.seq, input);
    }

    pub(crate) fn item(&mut self, row: ItemColumns) {
        let (seq, n, is_message, bytes, items_to, bytes_to, data) = row;
        self.sofar = (self.sofar.0 + 1, self.sofar.1 + bytes);
        let sofar = self.sofar;
        let name = format!("item {seq}/{n}");
        let Some(item) = self.parse::<Item>(&name, &data) else {
            return;
        };
        let columns = [
            ("seq", seq == signed(item.seq)),
            ("is_message", is_message == item.is_message()),
            ("bytes", bytes == signed(item.text_bytes())),
            ("items_to", items_to == sofar.0),
            ("bytes_to", bytes_to == sofar.1),
        ];
        self.columns(&name, columns);
        let n = u32::try_from(n).unwrap_or(u32::MAX);
        self.stored.rows.items.insert((unsigned(seq), n), item);
    }

    pub(crate) fn step(&mut self, session: SessionId, row: StepColumns) {
        let (seq, started_at, settled_at, runner, provider, usage) = row;
        let name = format!("step {seq}");
        let Some(runner) = self.parse(&name, &runner) else {
            return;
        };
        let usage = match usage {
            None => None,
            Some(usage) => match self.parse(&name, &usage) {
                Some(usage) => Some(usage),
                None => return,
            },
        };
        let step = StepRow {
            session,
            seq: unsigned(seq),
            started_at: unsigned(started_at),
            settled_at: settled_at.map(unsigned),
            runner,
            provider,
            usage,
        };
        self.stored.rows.steps.insert(step.seq, step);
    }

    pub(crate) fn call(&mut self, row: CallColumns) {
        let (step, id, status, data) = row;
        let name = format!("call {step}/{id}");
        let Some(call) = self.parse::<Call>(&name, &data) else {
            return;
        };
        let word = call_word(call.status);
        let columns = [
            ("step", step == signed(call.step)),
            (
                "id",
                serde_json::from_str(&id).is_ok_and(|id: String| id == call.id),
            ),
            ("status", status == word),
        ];
        self.columns(&name, columns);
        self.stored
            .rows
            .calls
            .insert((call.step, call.id.clone()), call);
    }

    pub(crate) fn execution(&mut self, session: SessionId, row: ExecutionColumns) {
        let (id, owner, started, ended, terminal) = row;
        self.any = true;
        let (Ok(id), Ok(owner)) = (id.parse(), owner.parse()) else {
            let place = Place::Row(format!("execution {id}"));
            self.check.unreadable(place, "its ids are none");
            return;
        };
        let execution = Execution {
            id,
            session,
            owner,
            started: unsigned(started),
            ended: ended.map(unsigned),
            terminal,
        };
        self.stored.rows.executions.insert(id, execution);
    }

    fn parse<T: DeserializeOwned>(&mut self, row: &str, data: &str) -> Option<T> {
        self.any = true;
        serde_json::from_str(data)
            .map_err(|error| {
                self.check
                    .unreadable(Place::Row(row.into()), &error.to_string());
            })
            .ok()
    }

    /// Reports the columns that are not right.
    fn columns<const N: usize>(&mut self, row: &str, columns: [(&str, bool); N]) {
        let wrong: Vec<&str> = columns
            .into_iter()
            .filter(|(_, right)| !right)
            .map(|(name, _)| name)
            .collect();
        if !wrong.is_empty() {
            let what = format!(
                "its columns {} are not what its value says",
                wrong.join(", ")
            );
            self.check
                .broken(Invariant::RowsFollowFromLog, Place::Row(row.into()), what);
        }
    }
}
