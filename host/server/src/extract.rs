//! Axum's extractors with our errors.

use axum::body::Bytes;
use axum::extract::rejection::{BytesRejection, PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode, header};
use serde::de::DeserializeOwned;

use crate::error::{Kind, Problem};

/// A JSON body.
pub(crate) struct Json<T>(pub(crate) T);

/// A JSON body that may be left out.
pub(crate) struct Optional<T>(pub(crate) T);

/// A body of any bytes.
pub(crate) struct Raw(pub(crate) Bytes);

/// Parameters of the path.
pub(crate) struct Path<T>(pub(crate) T);

/// Parameters of the query.
pub(crate) struct Query<T>(pub(crate) T);

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        Bytes::from_request(request, state)
            .await
            .map(Self)
            .map_err(|rejection: BytesRejection| {
                if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE {
                    Problem::new(
                        Kind::TooLarge,
                        "The body is larger than this resource takes. Send less at once.",
                    )
                } else {
                    Problem::new(
                        Kind::BadRequest,
                        "The body broke off. Send the request again.",
                    )
                }
            })
    }
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let Raw(bytes) = Raw::from_request(request, state).await?;
        parse(is_json, &bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Default, S: Send + Sync> FromRequest<S> for Optional<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let Raw(bytes) = Raw::from_request(request, state).await?;
        if bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        parse(is_json, &bytes).map(Self)
    }
}

fn is_json(headers: &HeaderMap) -> bool {
    let value = headers
        .get(header::CONTENT_TYPE)
        .and_then(|value| value.to_str().ok())
        .unwrap_or_default();
    let essence = value
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase();
    essence == "application/json"
        || (essence.starts_with("application/") && essence.ends_with("+json"))
}

fn parse<T: DeserializeOwned>(is_json: bool, bytes: &[u8]) -> Result<T, Problem> {
    if !is_json {
        return Err(Problem::new(
            Kind::MediaType,
            "The body is expected as JSON. Send it with `Content-Type: application/json`.",
        ));
    }
    serde_json::from_slice(bytes).map_err(|error| {
        Problem::new(
            Kind::BadRequest,
            format!("The body does not fit: {error}. See GET /v1/openapi.json for its shape."),
        )
    })
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Path<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        match axum::extract::Path::from_request_parts(parts, state).await {
            Ok(axum::extract::Path(value)) => Ok(Self(value)),
            Err(rejection) => Err(bad_path(&rejection)),
        }
    }
}

fn bad_path(rejection: &PathRejection) -> Problem {
    Problem::new(
        Kind::BadRequest,
        format!(
            "The path does not fit: {}. Ids are UUIDs; kinds are runner, provider and toolbox.",
            rejection.body_text()
        ),
    )
}

impl<T: DeserializeOwned, S: Send + Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        axum::extract::Query::from_request_parts(parts, state)
            .await
            .map(|axum::extract::Query(value)| Self(value))
            .map_err(|rejection: QueryRejection| {
                Problem::new(
                    Kind::BadRequest,
                    format!(
                        "The query does not fit: {}. See GET /v1/openapi.json.",
                        rejection.body_text()
                    ),
                )
            })
    }
}
