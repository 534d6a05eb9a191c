//! Every error as problem+json (RFC 9457): what went wrong for the caller, and what to do. What the
//! database or the runtime said goes to the log and never out.

use axum::Json;
use axum::http::{HeaderValue, Method, StatusCode, Uri, header};
use axum::response::{IntoResponse, Response};
use mainstay_core::commit::Refused;
use mainstay_core::config::Config;
use mainstay_core::nodes::DrainError;
use mainstay_core::port::StoreError;
use mainstay_core::tail::NotRunnable;
use tracing::{error, warn};

use crate::state::{PluginError, RegistryFault};
use crate::wire::{PROBLEM, ProblemBody};

/// Kinds of problem: slug, status and title. Documented in the OpenAPI document.
macro_rules! kinds {
    ($($variant:ident $status:ident $slug:literal $title:literal;)*) => {
        /// What kind of problem it is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Kind { $($variant),* }

        impl Kind {
            /// All of them.
            pub const ALL: &[Kind] = &[$(Kind::$variant),*];

            /// The status that it is answered with.
            #[must_use]
            pub fn status(self) -> StatusCode {
                match self { $(Kind::$variant => StatusCode::$status),* }
            }

            /// The last word of its type.
            #[must_use]
            pub fn slug(self) -> &'static str {
                match self { $(Kind::$variant => $slug),* }
            }

            /// The same for all of its kind.
            #[must_use]
            pub fn title(self) -> &'static str {
                match self { $(Kind::$variant => $title),* }
            }
        }
    };
}

kinds! {
    BadRequest BAD_REQUEST "bad-request" "The request cannot be read";
    BadCursor BAD_REQUEST "bad-cursor" "The cursor is not one of this list";
    Unauthorized UNAUTHORIZED "unauthorized" "A token is needed";
    ForeignHost FORBIDDEN "foreign-host" "This server is not known by that name";
    ForeignOrigin FORBIDDEN "foreign-origin" "Requests from other origins are refused";
    NoRoute NOT_FOUND "no-route" "There is nothing at this path";
    SessionNotFound NOT_FOUND "session-not-found" "There is no such session";
    InputNotFound NOT_FOUND "input-not-found" "There is no such input";
    PluginNotFound NOT_FOUND "plugin-not-found" "There is no such plugin";
    ApprovalNotFound NOT_FOUND "approval-not-found" "Nobody asks for this approval";
    MediaNotFound NOT_FOUND "media-not-found" "There are no such media";
    NodeNotFound NOT_FOUND "node-not-found" "There is no such node";
    NoMethod METHOD_NOT_ALLOWED "method-not-allowed" "The resource has no such method";
    BodyTimeout REQUEST_TIMEOUT "body-timeout" "The body took too long";
    Conflict CONFLICT "conflict" "The id is held by something else";
    Busy CONFLICT "busy" "The session is busy";
    InputSettled CONFLICT "input-settled" "The input can no longer be changed";
    ApprovalAnswered CONFLICT "approval-answered" "The request was answered already";
    NodeOver CONFLICT "node-over" "The node has ended";
    NodeDraining CONFLICT "node-draining" "The node drains already";
    NothingThere CONFLICT "nothing-there" "There is nothing to do it to";
    Imported CONFLICT "session-imported" "The session belongs to another store";
    Held CONFLICT "session-held" "The session is held back";
    Diverged CONFLICT "diverged" "The events do not fit those that are held";
    Cancelled CONFLICT "session-cancelled" "The session was cancelled";
    Quarantined CONFLICT "session-quarantined" "The session is quarantined";
    Foreign CONFLICT "session-foreign" "The session was written by a newer build";
    TooLarge PAYLOAD_TOO_LARGE "body-too-large" "The body is too large";
    MediaType UNSUPPORTED_MEDIA_TYPE "unsupported-media-type" "The body has another media type";
    Invalid UNPROCESSABLE_ENTITY "invalid" "The request asks for what cannot be";
    FileDamaged UNPROCESSABLE_ENTITY "file-damaged" "The file is damaged";
    PluginRefused UNPROCESSABLE_ENTITY "plugin-refused" "The plugin is refused";
    ArtifactNotFound UNPROCESSABLE_ENTITY "artifact-not-found" "The registry has no such artifact";
    ArtifactRefused UNPROCESSABLE_ENTITY "artifact-refused" "The artifact is refused";
    RegistryDenied BAD_GATEWAY "registry-denied" "The registry asks for other credentials";
    RegistryUnreachable BAD_GATEWAY "registry-unreachable" "The registry gives no answer";
    Internal INTERNAL_SERVER_ERROR "internal" "Something is wrong with the host";
    Unavailable SERVICE_UNAVAILABLE "unavailable" "The host cannot answer now";
}

/// An error on its way to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    pub kind: Kind,
    /// What happened and what to do.
    pub detail: String,
}

/// What a handler gives.
pub(crate) type Result<T, E = Problem> = std::result::Result<T, E>;

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Self {
        Self {
            kind,
            detail: detail.into(),
        }
    }
}

impl Problem {
    pub(crate) fn no_provider(provider: &str, config: &Config) -> Self {
        let known: Vec<&str> = config.providers.keys().map(String::as_str).collect();
        let detail = format!(
            "There is no provider `{provider}`. Configured are: {}.",
            known.join(", ")
        );
        Self::new(Kind::Invalid, detail)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = ProblemBody {
            kind: format!("{PROBLEM}{}", self.kind.slug()),
            title: self.kind.title().into(),
            status: self.kind.status().as_u16(),
            detail: self.detail,
        };
        let mut response = (self.kind.status(), Json(body)).into_response();
        let headers = response.headers_mut();
        headers.insert(
            header::CONTENT_TYPE,
            HeaderValue::from_static("application/problem+json"),
        );
        match self.kind {
            Kind::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            // What was not read of the body can't be told from the next request.
            Kind::TooLarge | Kind::BodyTimeout => {
                headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
            }
            Kind::Unavailable => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}

impl From<StoreError> for Problem {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(refused) => refused.into(),
            StoreError::Unavailable { action, cause } => {
                warn!(
                    action,
                    error = mainstay_core::chain(&*cause),
                    "the store gave no answer"
                );
                Self::new(
                    Kind::Unavailable,
                    "The store gave no answer, so it is not known whether the change was made. Send the same request \
                     again, with the same id where it has one.",
                )
            }
            StoreError::Damaged { session, cause } => {
                error!(%session, cause, "the session is damaged");
                let detail = format!(
                    "The rows of session {session} do not fit each other. See the host's log."
                );
                Self::new(Kind::Internal, detail)
            }
        }
    }
}

impl From<DrainError> for Problem {
    fn from(error: DrainError) -> Self {
        let (kind, hint) = match &error {
            DrainError::Unknown(_) => (Kind::NodeNotFound, "List the nodes with GET /v1/nodes."),
            DrainError::Gone(_) => (
                Kind::NodeOver,
                "Its sessions go on at the others by themselves.",
            ),
            DrainError::Stopped(_) => (Kind::NodeOver, "There is nothing left to do."),
            DrainError::Draining(_) => (
                Kind::NodeDraining,
                "It ends once what it runs is settled; see GET /v1/nodes.",
            ),
            DrainError::Store(_) => (Kind::Unavailable, ""),
        };
        if let DrainError::Store(error) = error {
            return error.into();
        }
        Self::new(kind, format!("{} {hint}", sentence(&error.to_string())))
    }
}

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Self {
        let text = sentence(&refused.to_string());
        let (kind, hint) = match &refused {
            Refused::NotFound(_) => (
                Kind::SessionNotFound,
                "List the sessions with GET /v1/sessions.",
            ),
            Refused::InputNotFound(_) => (Kind::InputNotFound, "List the inputs of the session."),
            Refused::SessionConflict(_)
            | Refused::InputConflict { .. }
            | Refused::EventConflict { .. } => (
                Kind::Conflict,
                "Choose a fresh id, or send what was first sent under this one.",
            ),
            Refused::TitleTooLong { .. } => (Kind::Invalid, "Send a shorter one."),
            Refused::InputSettled { .. } => (Kind::InputSettled, "Send another input instead."),
            Refused::Cancelled(_) | Refused::NotRunnable(NotRunnable::Cancelled) => {
                (Kind::Cancelled, "Create another session.")
            }
            Refused::NotRunnable(NotRunnable::Quarantined(_)) => {
                (Kind::Quarantined, "POST to its `resume` to let it go on.")
            }
            Refused::NotRunnable(NotRunnable::Foreign(_)) => {
                (Kind::Foreign, "It can be read here.")
            }
            Refused::NotRunnable(NotRunnable::Held(_)) => {
                (Kind::Held, "POST to its `resume` to let it go on.")
            }
            Refused::NotRunnable(NotRunnable::Imported(_)) | Refused::OtherOrigin { .. } => (
                Kind::Imported,
                "POST to its `adopt` to make it this store's own, or choose another session.",
            ),
            Refused::Replay(_) => (
                Kind::Diverged,
                "Import a log that begins where this one ends.",
            ),
            Refused::ApprovalNotFound { .. } => (
                Kind::ApprovalNotFound,
                "List what is asked with GET `approvals` of the session.",
            ),
            Refused::ApprovalAnswered { .. } => {
                (Kind::ApprovalAnswered, "The first answer stands.")
            }
            Refused::Owing(_) => (
                Kind::Busy,
                "It is cancelled. Adopt its parent or child, or run a build that knows all of it, and try again.",
            ),
            Refused::Busy(_) => (Kind::Busy, "POST to its `interrupt` and try again."),
            Refused::NothingToRevert(_) | Refused::NotReverted(_) | Refused::NothingToFork(_) => (
                Kind::NothingThere,
                "Look at its messages with GET `messages`.",
            ),
            Refused::NotRunnable(NotRunnable::NothingToDo) => {
                (Kind::Busy, "Send it a prompt first.")
            }
            Refused::Lost { .. }
            | Refused::Interrupted { .. }
            | Refused::HeadMoved { .. }
            | Refused::NotIdle
            | Refused::Claimed(_)
            | Refused::ClaimChanged(_) => (Kind::Busy, "Wait for GET `idle` and try again."),
            Refused::Rule(rule) => {
                error!(error = %rule, "a commit broke a rule of the log");
                return Self::new(
                    Kind::Internal,
                    "The change would break a rule of the log. See the host's log.",
                );
            }
        };
        Self::new(kind, format!("{text} {hint}"))
    }
}

impl From<PluginError> for Problem {
    fn from(error: PluginError) -> Self {
        match error {
            PluginError::Refused(text) => Self::new(
                Kind::PluginRefused,
                format!(
                    "{} Nothing was stored; build it anew and install it again.",
                    sentence(&text)
                ),
            ),
            PluginError::NotFound(text) => Self::new(
                Kind::PluginNotFound,
                format!("{} List the plugins with GET /v1/plugins.", sentence(&text)),
            ),
            PluginError::Invalid(text) => Self::new(Kind::Invalid, sentence(&text)),
            PluginError::Registry {
                fault,
                text,
                advice,
            } => {
                let kind = match fault {
                    RegistryFault::Unreachable => Kind::RegistryUnreachable,
                    RegistryFault::Denied => Kind::RegistryDenied,
                    RegistryFault::NotFound => Kind::ArtifactNotFound,
                    RegistryFault::Refused => Kind::ArtifactRefused,
                };
                Self::new(
                    kind,
                    format!(
                        "{} Nothing was stored. {}",
                        sentence(&text),
                        sentence(&advice)
                    ),
                )
            }
            PluginError::Unavailable(cause) => {
                warn!(
                    error = mainstay_core::chain(&*cause),
                    "the plugins could not be read or written"
                );
                Self::new(
                    Kind::Unavailable,
                    "The plugins could not be read or written. Send the request again.",
                )
            }
        }
    }
}

/// The fallback for unknown paths.
pub(crate) async fn no_route(uri: Uri) -> Problem {
    Problem::new(
        Kind::NoRoute,
        format!(
            "`{}` is no path of this API. See GET /v1/openapi.json.",
            uri.path()
        ),
    )
}

/// The fallback for methods that a path does not have.
pub(crate) async fn no_method(method: Method, uri: Uri) -> Problem {
    let detail = format!(
        "`{}` does not take {method}. See GET /v1/openapi.json for what it takes.",
        uri.path()
    );
    Problem::new(Kind::NoMethod, detail)
}

/// An error's message as a sentence.
fn sentence(text: &str) -> String {
    let mut chars = text.trim_end_matches('.').chars();
    let first = chars
        .next()
        .map(|first| first.to_uppercase().to_string())
        .unwrap_or_default();
    format!("{first}{}.", chars.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use mainstay_core::id::SessionId;

    #[test]
    fn api_6_database_text_never_leaks() {
        let cause = "SQLITE_IOERR on table secret_table".into();
        let problem = Problem::from(StoreError::Unavailable {
            action: "commit",
            cause,
        });
        assert_eq!(problem.kind, Kind::Unavailable);
        assert!(!problem.detail.contains("SQLITE"), "{}", problem.detail);
    }

    #[test]
    fn api_6_every_refusal_says_what_to_do() {
        let session = SessionId::new();
        let quarantined = NotRunnable::Quarantined("it crashed".into());
        for (refused, kind) in [
            (Refused::NotFound(session), Kind::SessionNotFound),
            (Refused::SessionConflict(session), Kind::Conflict),
            (Refused::Cancelled(session), Kind::Cancelled),
            (Refused::Claimed(session), Kind::Busy),
            (Refused::NotRunnable(quarantined), Kind::Quarantined),
        ] {
            let problem = Problem::from(refused);
            assert_eq!(problem.kind, kind);
            assert!(
                problem.detail.matches(". ").count() >= 1,
                "no advice in {:?}",
                problem.detail
            );
        }
    }

    #[test]
    fn slugs_are_unique() {
        let mut slugs: Vec<_> = Kind::ALL.iter().map(|kind| kind.slug()).collect();
        slugs.sort_unstable();
        slugs.dedup();
        assert_eq!(slugs.len(), Kind::ALL.len());
    }
}
