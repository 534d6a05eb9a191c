//! Axum's extractors with our errors.

use axum::body::{Bytes, HttpBody as _};
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::request::Parts;
use axum::http::{HeaderMap, header};
use futures::StreamExt as _;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::error::{Kind, Problem};
use crate::pace::Stalled;
use crate::strict;

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

/// Most bytes that a resource takes, as an extension of its requests.
#[derive(Clone, Copy, Debug)]
pub(crate) struct BodyLimit(pub(crate) usize);

/// How much of a body that is too large is read all the same. A connection that is closed on unread
/// bytes may take the answer with it.
const DRAINED: usize = 64 * 1024 * 1024;

impl<S: Send + Sync> FromRequest<S> for Raw {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Self, Problem> {
        let limit = request
            .extensions()
            .get::<BodyLimit>()
            .map_or(0, |limit| limit.0);
        let body = request.into_body();
        let expected = body.size_hint().lower() as usize;
        let mut bytes = Vec::with_capacity(expected.min(limit));
        let mut read = 0_usize;
        let mut body = body.into_data_stream();
        while let Some(chunk) = body.next().await {
            let chunk = chunk.map_err(|error| broke_off(&error, "Send the request again."))?;
            read += chunk.len();
            if read <= limit {
                bytes.extend_from_slice(&chunk);
            } else if read > DRAINED.max(limit) {
                break;
            }
        }
        if read > limit {
            return Err(Problem::new(
                Kind::TooLarge,
                format!(
                    "The body is larger than the {limit} bytes that this resource takes. Send less at once."
                ),
            ));
        }
        Ok(Self(bytes.into()))
    }
}

impl<T: DeserializeOwned + Serialize, S: Send + Sync> FromRequest<S> for Json<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let is_json = is_json(request.headers());
        let Raw(bytes) = Raw::from_request(request, state).await?;
        parse(is_json, &bytes).map(Self)
    }
}

impl<T: DeserializeOwned + Serialize + Default, S: Send + Sync> FromRequest<S> for Optional<T> {
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

/// The body did not come to its end: its client stalled, or went away.
pub(crate) fn broke_off(error: &axum::Error, advice: &str) -> Problem {
    let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = cause {
        if error.is::<Stalled>() {
            let detail = format!("The body came too slowly. {advice}");
            return Problem::new(Kind::BodyTimeout, detail);
        }
        cause = error.source();
    }
    Problem::new(Kind::BadRequest, format!("The body broke off. {advice}"))
}

/// Whether the body is said to be JSON.
pub(crate) fn is_json(headers: &HeaderMap) -> bool {
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

fn parse<T: DeserializeOwned + Serialize>(is_json: bool, bytes: &[u8]) -> Result<T, Problem> {
    if !is_json {
        return Err(Problem::new(
            Kind::MediaType,
            "The body is expected as JSON. Send it with `Content-Type: application/json`.",
        ));
    }
    strict::from_slice(bytes).map_err(|error| {
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
