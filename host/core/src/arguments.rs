//! A call's arguments as a value. JSON lets an object name a field twice and leaves open which of them
//! counts: a rule would be held against the one, and the tool would act on the other. So such arguments
//! are refused before anybody judges them.

use std::fmt;

use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

/// What is wrong with arguments, in words for the model that wrote them.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("The arguments are not valid JSON: {0}.")]
    Malformed(String),
    /// A JSON pointer.
    #[error("The arguments are malformed: {0:?} is there more than once. Give each field once.")]
    Repeated(String),
}

/// Reads arguments.
///
/// # Errors
/// They are no JSON, or name a field of some object more than once, however it is written.
pub(crate) fn parse(text: &str) -> Result<Value, Error> {
    let mut repeated = None;
    let one = One {
        above: None,
        repeated: &mut repeated,
    };
    let mut json = serde_json::Deserializer::from_str(text);
    let read = one
        .deserialize(&mut json)
        .and_then(|value| json.end().map(|()| value));
    match (read, repeated) {
        (_, Some(pointer)) => Err(Error::Repeated(pointer)),
        (Err(cause), None) => Err(Error::Malformed(cause.to_string())),
        (Ok(value), None) => Ok(value),
    }
}

/// Where a value stands.
#[derive(Clone, Copy)]
struct Place<'p> {
    above: Option<&'p Place<'p>>,
    key: Key<'p>,
}

#[derive(Clone, Copy)]
enum Key<'p> {
    Field(&'p str),
    Index(usize),
}

impl fmt::Display for Place<'_> {
    /// As a JSON pointer.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(above) = self.above {
            above.fmt(f)?;
        }
        match self.key {
            Key::Field(name) => write!(f, "/{}", name.replace('~', "~0").replace('/', "~1")),
            Key::Index(index) => write!(f, "/{index}"),
        }
    }
}

/// One value, none of whose objects names a field twice.
struct One<'p, 'r> {
    above: Option<&'p Place<'p>>,
    /// Where one does: the parser's own error cannot say.
    repeated: &'r mut Option<String>,
}

impl<'de> DeserializeSeed<'de> for One<'_, '_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for One<'_, '_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }

    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        loop {
            let place = Place {
                above: self.above,
                key: Key::Index(values.len()),
            };
            let one = One {
                above: Some(&place),
                repeated: &mut *self.repeated,
            };
            match seq.next_element_seed(one)? {
                Some(value) => values.push(value),
                None => return Ok(values.into()),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut fields = Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let place = Place {
                above: self.above,
                key: Key::Field(&name),
            };
            if fields.contains_key(&name) {
                *self.repeated = Some(place.to_string());
                return Err(A::Error::custom("a field is there twice"));
            }
            let value = map.next_value_seed(One {
                above: Some(&place),
                repeated: &mut *self.repeated,
            })?;
            fields.insert(name, value);
        }
        Ok(fields.into())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_field_that_is_there_twice_is_named_wherever_it_is() {
        for (text, pointer) in [
            (r#"{"path":"a","path":"b"}"#, "/path"),
            (r#"{"path":"a","p\u0061th":"b"}"#, "/path"),
            (r#"{"path":"a","path":"a"}"#, "/path"),
            (r#"{"a":{"b":[0,{"c/d":1,"c/d":2}]}}"#, "/a/b/1/c~1d"),
            (r#"{"":1,"":2}"#, "/"),
            (r#"{"a":1,"a":"#, "/a"),
        ] {
            assert_eq!(parse(text), Err(Error::Repeated(pointer.into())), "{text}");
        }
        let same_names = r#"{"a":{"a":[{"a":1},{"a":2}]},"b":{"a":3}}"#;
        assert_eq!(
            parse(same_names),
            Ok(json!({"a": {"a": [{"a": 1}, {"a": 2}]}, "b": {"a": 3}}))
        );
    }

    #[test]
    fn what_is_no_json_is_told_as_such() {
        let deep = "[".repeat(1000);
        for text in ["", "{", "{}{}", r#"{"a":}"#, "1e999", deep.as_str()] {
            let read = parse(text);
            assert!(matches!(read, Err(Error::Malformed(_))), "{text}: {read:?}");
        }
    }

    #[test]
    fn whatever_names_each_field_once_is_read_as_it_is() {
        for text in [
            "null",
            " true ",
            "-1",
            "18446744073709551615",
            "1.5e300",
            r#""\ud83e\udd9c é""#,
            r#"[[],{},[null,-0.0,"x"]]"#,
            r#"{"b":{"a":[1,2,{"b":"c"}]},"a":{"b":null}}"#,
        ] {
            let plain: Value = serde_json::from_str(text).unwrap();
            assert_eq!(parse(text), Ok(plain), "{text}");
        }
    }
}
