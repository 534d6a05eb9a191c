//! The OpenAPI document.

use axum::http::header;
use axum::response::IntoResponse;

const DOCUMENT: &str = include_str!("../../openapi.json");

pub(crate) async fn show() -> impl IntoResponse {
    ([(header::CONTENT_TYPE, "application/json")], DOCUMENT)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

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

    /// Paths and methods, as the router's source has them.
    fn routes() -> BTreeSet<String> {
        let source = include_str!("mod.rs");
        let router = source.split("Router::new()").nth(1).expect("a router");
        let mut routes = BTreeSet::new();
        for route in router.split(".route(").skip(1) {
            let (path, handlers) = route
                .split_once('"')
                .and_then(|(_, rest)| rest.split_once('"'))
                .expect("a path");
            let words = handlers.split('(').filter_map(|before| {
                before
                    .rsplit(|c: char| !c.is_alphanumeric() && c != '_')
                    .next()
            });
            for method in words.filter(|word| METHODS.contains(word)) {
                routes.insert(format!("{method} /v1{path}"));
            }
        }
        routes
    }

    const METHODS: [&str; 5] = ["get", "post", "put", "patch", "delete"];

    #[test]
    fn api_9_routes_and_document_name_the_same() {
        let document: Value = serde_json::from_str(super::DOCUMENT).expect("the document is JSON");
        let mut documented = BTreeSet::new();
        for (path, item) in document["paths"].as_object().expect("paths") {
            let methods = item.as_object().expect("a path item").keys();
            for method in methods.filter(|method| METHODS.contains(&&***method)) {
                documented.insert(format!("{method} {path}"));
            }
        }
        assert_eq!(routes(), documented);
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
