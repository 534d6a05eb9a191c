//! Where two JSON values differ: each place once, by its path.

use serde::Serialize;
use serde_json::{Map, Value};

/// One place at which two values differ.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Part {
    /// `action.wait.until[0]` for example; empty for the whole.
    pub path: String,
    /// `None` where there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub recorded: Option<Value>,
    /// `None` where there is nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub new: Option<Value>,
}

/// The places at which these differ, in the order of their keys. What has nothing in common is one
/// place.
#[must_use]
pub fn differences(recorded: &Value, new: &Value) -> Vec<Part> {
    let mut parts = Vec::new();
    collect("", Some(recorded), Some(new), &mut parts);
    parts
}

fn collect(path: &str, recorded: Option<&Value>, new: Option<&Value>, parts: &mut Vec<Part>) {
    if recorded == new {
        return;
    }
    match (recorded, new) {
        (Some(Value::Object(a)), Some(Value::Object(b)))
            if a.keys().any(|key| b.contains_key(key)) =>
        {
            for key in keys(a, b) {
                let path = match path {
                    "" => key.clone(),
                    path => format!("{path}.{key}"),
                };
                collect(&path, a.get(key), b.get(key), parts);
            }
        }
        (Some(Value::Array(a)), Some(Value::Array(b))) => {
            for at in 0..a.len().max(b.len()) {
                collect(&format!("{path}[{at}]"), a.get(at), b.get(at), parts);
            }
        }
        _ => parts.push(Part {
            path: path.to_owned(),
            recorded: recorded.cloned(),
            new: new.cloned(),
        }),
    }
}

/// The keys of both, those of the first first.
fn keys<'v>(
    a: &'v Map<String, Value>,
    b: &'v Map<String, Value>,
) -> impl Iterator<Item = &'v String> {
    a.keys().chain(b.keys().filter(|key| !a.contains_key(*key)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(recorded: Value, new: Value, expected: &[&str]) {
        let found = differences(&recorded, &new);
        let found: Vec<String> = found
            .into_iter()
            .map(|part| {
                let show =
                    |value: Option<Value>| value.map_or("-".into(), |value| value.to_string());
                format!("{}: {} {}", part.path, show(part.recorded), show(part.new))
            })
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn plugin_17_each_place_is_named_once() {
        check(
            json!({ "a": [1, { "b": 2 }] }),
            json!({ "a": [1, { "b": 2 }] }),
            &[],
        );
        check(
            json!({ "a": [1, { "b": 2 }], "c": null }),
            json!({ "a": [3, { "b": 4 }, 5], "d": 6 }),
            &[
                "a[0]: 1 3",
                "a[1].b: 2 4",
                "a[2]: - 5",
                "c: null -",
                "d: - 6",
            ],
        );
        // Variants with nothing in common are two decisions, and not one without fields of the other.
        check(
            json!({ "action": { "wait": { "until": [] } } }),
            json!({ "action": "done" }),
            &[r#"action: {"wait":{"until":[]}} "done""#],
        );
        check(
            json!({ "action": { "wait": 1 } }),
            json!({ "action": { "fail": 2 } }),
            &[r#"action: {"wait":1} {"fail":2}"#],
        );
    }
}
