//! JSON in which an object is an object. Serde reads a list where a structure is meant, field by field
//! in their order, which no document of ours promises and a newer field would change silently.

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a value.
///
/// # Errors
/// Why it does not fit, as a clause.
pub fn from_slice<T: DeserializeOwned + Serialize>(bytes: &[u8]) -> Result<T, String> {
    let value: T = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    // A list stands nowhere in it.
    if !bytes.contains(&b'[') {
        return Ok(value);
    }
    let given = serde_json::from_slice(bytes);
    if let (Ok(given), Ok(meant)) = (given, serde_json::to_value(&value))
        && let Some(place) = misplaced(&given, &meant)
    {
        return Err(match place.as_str() {
            "" => "a list stands where an object is meant".into(),
            place => format!("a list stands where an object is meant, at `{place}`"),
        });
    }
    Ok(value)
}

/// Where the first list stands in place of an object, as a JSON pointer.
fn misplaced(given: &Value, meant: &Value) -> Option<String> {
    match (given, meant) {
        (Value::Array(_), Value::Object(_)) => Some(String::new()),
        (Value::Array(given), Value::Array(meant)) => {
            let mut pairs = given.iter().zip(meant).enumerate();
            pairs.find_map(|(n, (given, meant))| Some(format!("/{n}{}", misplaced(given, meant)?)))
        }
        (Value::Object(given), Value::Object(meant)) => given.iter().find_map(|(name, given)| {
            let place = misplaced(given, meant.get(name)?)?;
            Some(format!("/{name}{place}"))
        }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{Collect, NewFork, NewInput, NewInterrupt, NewSession};

    #[track_caller]
    fn refused<T: DeserializeOwned + Serialize + std::fmt::Debug>(text: &str, place: &str) {
        let error = from_slice::<T>(text.as_bytes()).expect_err(text);
        assert!(error.contains("where an object is meant"), "{error}");
        assert!(
            place.is_empty() || error.contains(&format!("at `{place}`")),
            "{error}"
        );
    }

    #[test]
    fn api_6_a_list_is_no_object_wherever_it_stands() {
        refused::<NewSession>(r#"[null,"default",null,"a title",null]"#, "");
        refused::<NewInterrupt>("[true]", "");
        refused::<NewFork>("[]", "");
        refused::<Collect>("[true]", "");
        refused::<NewInput>(r#"{"signal":["name",7]}"#, "/signal");
        refused::<NewInput>(r#"{"configure":[["parrot","x"]]}"#, "/configure");
        refused::<NewInput>(
            r#"{"configure":{"model":["parrot","x"]}}"#,
            "/configure/model",
        );
        refused::<NewSession>(r#"{"model":["parrot","x"]}"#, "/model");
        refused::<NewInput>(
            r#"{"parts":[{"text":"x"},{"media":["aa","image/png",7,null]}]}"#,
            "/parts/1/media",
        );
    }

    #[test]
    fn lists_that_are_meant_are_taken() {
        let input = r#"{"signal":{"name":"n","data":[{"a":[1]},[]]}}"#;
        let signal = from_slice::<NewInput>(input.as_bytes()).unwrap().signal;
        assert_eq!(signal.unwrap().data, serde_json::json!([{ "a": [1] }, []]));
        let input = r#"{"parts":[{"text":"[x]"}]}"#;
        let parts = from_slice::<NewInput>(input.as_bytes()).unwrap().parts;
        assert_eq!(parts.unwrap().len(), 1);
    }
}
