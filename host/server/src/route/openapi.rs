//! The OpenAPI document.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("../../openapi.json");

pub(crate) async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use crate::error::Kind;

    #[test]
    fn api_9_every_problem_is_in_the_document() {
        let document: Value = serde_json::from_str(super::DOCUMENT).expect("the document is JSON");
        let listed =
            document["components"]["schemas"]["Problem"]["properties"]["type"]["enum"].as_array();
        let listed: Vec<&str> = listed
            .expect("an enum")
            .iter()
            .filter_map(Value::as_str)
            .collect();
        let expected: Vec<String> = Kind::ALL
            .iter()
            .map(|kind| format!("{}{}", crate::wire::PROBLEM, kind.slug()))
            .collect();
        assert_eq!(listed, expected);
    }

    #[test]
    fn api_9_every_reference_leads_somewhere() {
        fn walk(document: &Value, value: &Value) {
            match value {
                Value::Object(object) => {
                    if let Some(Value::String(reference)) = object.get("$ref") {
                        let pointer = reference.trim_start_matches('#');
                        assert!(
                            document.pointer(pointer).is_some(),
                            "{reference} leads nowhere"
                        );
                    }
                    object.values().for_each(|value| walk(document, value));
                }
                Value::Array(values) => values.iter().for_each(|value| walk(document, value)),
                _ => {}
            }
        }
        let document: Value = serde_json::from_str(super::DOCUMENT).expect("the document is JSON");
        walk(&document, &document);
    }
}
