//! What is sent again under an id that is held: the same is answered like the first time, whatever the
//! configuration says by now, and another is a conflict.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use mainstay_core::id::{InputId, SessionId};
use mainstay_server::Options;
use mainstay_test_simulation::decisions::Decided;
use mainstay_test_simulation::decisions::stage::Stage;
use mainstay_test_simulation::plugins::say;
use serde_json::{Value, json};
use tower::ServiceExt as _;

use super::app;

async fn post(app: &axum::Router, path: &str, body: &Value) -> (StatusCode, Value) {
    let request = Request::post(path)
        .header("host", "127.0.0.1")
        .header("content-type", "application/json")
        .body(Body::from(body.to_string()))
        .unwrap();
    let answer = app.clone().oneshot(request).await.unwrap();
    let status = answer.status();
    let body = axum::body::to_bytes(answer.into_body(), 1 << 16).await;
    (status, serde_json::from_slice(&body.unwrap()).unwrap())
}

fn stage() -> Stage {
    Stage::new(Decided::new(|_, _| say("ok")))
}

#[tokio::test(start_paused = true)]
async fn edit_1_a_creation_with_another_model_or_policy_is_a_conflict() {
    let stage = stage();
    let host = stage.start();
    let app = app(host.node.clone(), Options::default());
    let id = SessionId::new();
    let first = json!({ "id": id, "model": "parrot/one", "resume": { "mode": "ask" } });
    let (status, made) = post(&app, "/v1/sessions", &first).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let configure = json!({ "configure": { "model": "parrot/two" } });
    let (status, _) = post(&app, &format!("/v1/sessions/{id}/inputs"), &configure).await;
    assert_eq!(status, StatusCode::ACCEPTED);
    stage.idle(id).await;

    // The model is another by now; the creation is the same. A policy that is not named is none.
    for same in [first.clone(), json!({ "id": id, "model": "parrot/one" })] {
        let (status, again) = post(&app, "/v1/sessions", &same).await;
        assert_eq!(status, StatusCode::OK, "{again}");
    }
    for other in [
        json!({ "id": id, "model": "parrot/two", "resume": { "mode": "ask" } }),
        json!({ "id": id, "resume": { "mode": "ask" } }),
        json!({ "id": id, "model": "parrot/one", "resume": { "mode": "auto" } }),
    ] {
        let (status, problem) = post(&app, "/v1/sessions", &other).await;
        assert_eq!(status, StatusCode::CONFLICT, "{other}: {problem}");
    }
}

#[tokio::test(start_paused = true)]
async fn api_1_an_unknown_provider_is_refused_at_admission_and_a_retry_is_not() {
    let mut stage = stage();
    let host = stage.start();
    let id = stage.create("default").await;
    let path = format!("/v1/sessions/{id}/inputs");
    let here = app(host.node.clone(), Options::default());
    let wrong = json!({ "configure": { "model": "nobody/one" } });
    let (status, problem) = post(&here, &path, &wrong).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{problem}");
    let detail = problem["detail"].as_str().unwrap();
    assert!(
        detail.contains("`nobody`") && detail.contains("parrot"),
        "{detail}"
    );
    assert_eq!(stage.dump(id).await.inputs, []);

    let right = json!({ "id": InputId::new(), "configure": { "model": "parrot/one" } });
    let (status, first) = post(&here, &path, &right).await;
    assert_eq!(status, StatusCode::ACCEPTED, "{first}");
    stage.idle(id).await;
    host.kill();
    stage.config.providers.clear();
    let next = stage.start();
    let there = app(next.node.clone(), Options::default());
    let (status, again) = post(&there, &path, &right).await;
    assert_eq!(
        (status, &again["seq"]),
        (StatusCode::ACCEPTED, &first["seq"])
    );
}
