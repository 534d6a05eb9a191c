//! The OpenAPI document as a judge: does an answer fit what it says of the route and the status?

use std::sync::LazyLock;

use serde_json::{Value, json};

static DOCUMENT: LazyLock<Value> = LazyLock::new(|| {
    let text = include_str!("../../../host/server/openapi.json");
    serde_json::from_str(text).unwrap()
});

/// Holds an answer against the document.
///
/// # Panics
/// If it does not fit, naming the route and what is wrong.
#[track_caller]
pub(super) fn check(method: &str, path: &str, status: u16, media: &str, body: &Value) {
    let path = path.split('?').next().unwrap();
    let paths = DOCUMENT["paths"].as_object().unwrap();
    let found = paths
        .keys()
        .find(|route| fits(route, &format!("/v1{path}")));
    let route = found.unwrap_or_else(|| panic!("{path} is not in the document"));
    let operation = &paths[route][method.to_lowercase()];
    let answer = &operation["responses"][status.to_string()];
    assert!(
        answer.is_object(),
        "{method} {route}: {status} is not in the document: {body}"
    );
    let Some(contents) = answer["content"].as_object() else {
        assert!(body.is_null(), "{method} {route}: {status} has no body");
        return;
    };
    let content = contents
        .get(media)
        .unwrap_or_else(|| panic!("{method} {route}: {status} as {media:?}: {body}"));
    let mut schema = content["schema"].clone();
    schema["components"] = json!({ "schemas": DOCUMENT["components"]["schemas"] });
    let validator = jsonschema::validator_for(&schema).unwrap();
    let wrong: Vec<String> = validator
        .iter_errors(body)
        .map(|error| format!("{}: {error}", error.instance_path()))
        .collect();
    assert!(wrong.is_empty(), "{method} {route}: {wrong:?} in {body}");
    named(&content["schema"], body, route);
}

/// Whether a path is one of a route.
fn fits(route: &str, path: &str) -> bool {
    let (mut route, mut path) = (route.split('/'), path.split('/'));
    loop {
        match (route.next(), path.next()) {
            (None, None) => return true,
            (Some(part), Some(_)) if part.starts_with('{') => {}
            (Some(part), Some(given)) if part == given => {}
            _ => return false,
        }
    }
}

/// Every member of the answer is in the document, and of each item where it is a page.
#[track_caller]
fn named(schema: &Value, body: &Value, route: &str) {
    let schema = match schema["$ref"].as_str() {
        Some(reference) => DOCUMENT.pointer(reference.trim_start_matches('#')).unwrap(),
        None => schema,
    };
    let (Some(properties), Some(body)) = (schema["properties"].as_object(), body.as_object())
    else {
        return;
    };
    for (name, value) in body {
        let property = properties.get(name);
        let property = property.unwrap_or_else(|| panic!("{route}: `{name}` is undocumented"));
        for item in value.as_array().into_iter().flatten() {
            named(&property["items"], item, route);
        }
    }
}
