//! What a session is in the target, beside what it is in the source.

use serde_json::Value;

use mainstay_core::stub;

use super::Parcel;
use crate::rows::EventRow;

/// What is in the target.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Held {
    Nothing,
    /// All of it.
    Same,
    /// What it was when it was moved before.
    Beginning,
    /// What it has become there since.
    Ahead,
    /// Something else, and where.
    Other(String),
}

pub(super) fn compare(here: &Parcel, there: &Parcel) -> Held {
    let (mine, its) = (&here.rows.events, &there.rows.events);
    let mut both = mine.iter().zip(its);
    if let Some((event, _)) = both.find(|(mine, its)| !same_event(mine, its)) {
        return Held::Other(format!("its event {} is another there", event.1));
    }
    if mine.len() > its.len() {
        return Held::Beginning;
    }
    if mine.len() < its.len() {
        return Held::Ahead;
    }
    match other_row(here, there) {
        Some(table) => Held::Other(format!(
            "its log is the same, and its rows of {table} are not"
        )),
        None => Held::Same,
    }
}

/// Equal, or one is what a compaction has made of the other.
fn same_event(one: &EventRow, other: &EventRow) -> bool {
    let frame = |row: &EventRow| {
        let row = row.clone();
        (row.0, row.1, row.2, row.3, row.4, row.5, row.6, row.7)
    };
    if one == other {
        return true;
    }
    let digest = |row: &EventRow| {
        let written = || {
            serde_json::from_str(&row.8)
                .ok()
                .map(|data| stub::digest(&data))
        };
        row.9.clone().or_else(written)
    };
    (one.9.is_some() || other.9.is_some())
        && frame(one) == frame(other)
        && digest(one) == digest(other)
}

/// The first table whose rows differ. When a claim runs out is each store's own.
fn other_row(here: &Parcel, there: &Parcel) -> Option<&'static str> {
    let (mine, its) = (&here.rows, &there.rows);
    let claim = |parcel: &Parcel| {
        let claim = parcel.claim.as_ref();
        claim.map(|(execution, owner, _)| (execution.clone(), owner.clone()))
    };
    let tables = [
        ("session", session(here) == session(there)),
        ("claim", claim(here) == claim(there)),
        ("input", mine.inputs == its.inputs),
        ("item", mine.items == its.items),
        ("step", mine.steps == its.steps),
        ("call", mine.calls == its.calls),
        ("execution", mine.executions == its.executions),
    ];
    tables
        .into_iter()
        .find(|(_, same)| !same)
        .map(|(table, _)| table)
}

/// A session's value, without how far it is compacted.
fn session(parcel: &Parcel) -> Option<Value> {
    let mut value: Value = serde_json::from_str(&parcel.row.10).ok()?;
    value.as_object_mut()?.remove("compacted_through");
    Some(value)
}
