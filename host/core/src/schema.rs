//! JSON Schemas ready to check by. To make one ready takes longer than most calls' checks, and a tool's
//! schema is the same from call to call, so those that were used are kept.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use jsonschema::Validator;

/// Schemas that are kept. Beyond it all are made ready anew.
const KEPT: usize = 1024;

static READY: LazyLock<Mutex<HashMap<String, Arc<Validator>>>> = LazyLock::new(Mutex::default);

/// What checks values against a schema, given as JSON text.
///
/// # Errors
/// Why it is no schema.
pub(crate) fn validator(schema: &str) -> Result<Arc<Validator>, String> {
    let ready = || READY.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(validator) = ready().get(schema) {
        return Ok(Arc::clone(validator));
    }
    let value = serde_json::from_str(schema).map_err(|cause| cause.to_string())?;
    let validator = jsonschema::validator_for(&value).map_err(|cause| cause.to_string())?;
    let validator = Arc::new(validator);
    let mut ready = ready();
    if ready.len() >= KEPT {
        ready.clear();
    }
    ready.insert(schema.to_owned(), Arc::clone(&validator));
    Ok(validator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_schema_is_made_ready_once_and_others_beside_it() {
        let (text, number) = (r#"{"type":"string"}"#, r#"{"type":"number"}"#);
        let first = validator(text).unwrap();
        assert!(Arc::ptr_eq(&first, &validator(text).unwrap()));
        assert!(first.is_valid(&"a".into()) && !first.is_valid(&1.into()));
        assert!(validator(number).unwrap().is_valid(&1.into()));
        assert!(validator("{").is_err());
        assert!(validator(r#"{"type":"nothing"}"#).is_err());
    }
}
