//! Problem details (RFC 9457, `application/problem+json`) that name the invalid fields.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use config::Problems;
use schemars::JsonSchema;
use serde::Serialize;

/// The media type of problem details.
pub const PROBLEM_JSON: &str = "application/problem+json";

/// Problem details (RFC 9457).
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub struct Problem {
    /// Kind of the problem, as a URI: `urn:tailroute:problem:` and a code.
    #[serde(rename = "type")]
    kind: String,
    /// Kind of the problem in words, the same for all problems of a kind.
    title: &'static str,
    /// HTTP status of the response.
    status: u16,
    /// Explanation of this problem and of its remedy.
    pub detail: String,
    /// Invalid fields; absent if there are none. Nothing of the request was carried out.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub errors: Vec<FieldError>,
}

/// An invalid field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct FieldError {
    /// Path of the field, such as `settings.weights.locality`; empty for the document as a whole.
    pub field: String,
    /// Explanation of what is wrong with the field.
    pub detail: String,
    /// Likely remedy; absent if none is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl Problem {
    fn new(status: StatusCode, code: &str, title: &'static str, detail: impl Into<String>) -> Self {
        Self {
            kind: format!("urn:tailroute:problem:{code}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            errors: Vec::new(),
        }
    }

    /// 400: the body is not JSON.
    pub fn malformed(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "malformed", "Malformed request", detail)
    }

    /// 400: the query is invalid.
    pub fn query(problems: &Problems) -> Self {
        Self {
            errors: fields(problems),
            ..Self::new(
                StatusCode::BAD_REQUEST,
                "query",
                "Invalid query",
                sentence(problems),
            )
        }
    }

    /// 401: the token is missing or unknown.
    pub fn unauthorized() -> Self {
        Self::new(
            StatusCode::UNAUTHORIZED,
            "unauthorized",
            "Token required",
            "send a token of admin.tokens_file as `Authorization: Bearer TOKEN`",
        )
    }

    /// 403: the caller lacks permission.
    pub fn forbidden(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::FORBIDDEN, "forbidden", "Not allowed", detail)
    }

    /// 404: there is no such object or path.
    pub fn not_found(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::NOT_FOUND, "not-found", "Not found", detail)
    }

    /// 405: the path does not support the method.
    pub fn method_not_allowed(allowed: &str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method-not-allowed",
            "Method not allowed",
            format!("this path takes {allowed} only"),
        )
    }

    /// 408: the body did not arrive in time.
    pub fn timeout(limit: std::time::Duration) -> Self {
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "timeout",
            "Request timeout",
            format!("the body did not arrive within {} s", limit.as_secs()),
        )
    }

    /// 409: the current state does not allow the change.
    pub fn conflict(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "conflict",
            "Conflict with the current state",
            detail,
        )
    }

    /// 409: the change takes the last ready worker out of service, and is not forced.
    pub fn last_worker(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::CONFLICT, "last-worker", "Last ready worker", detail)
    }

    /// 409: the simulation of captured turns is unlike what was measured, and the caller did not ask for it regardless.
    pub fn unlike(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::CONFLICT,
            "unlike",
            "Simulation unlike the measurement",
            detail,
        )
    }

    /// 412: the object has changed since the caller read it.
    pub fn precondition_failed(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::PRECONDITION_FAILED,
            "precondition-failed",
            "Changed in the meantime",
            detail,
        )
    }

    /// 413: the body is too large.
    pub fn too_large(most: usize) -> Self {
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "too-large",
            "The body is too large",
            format!("the body is limited to {most} bytes"),
        )
    }

    /// 415: the body's type is not JSON.
    pub fn no_json() -> Self {
        Self::new(
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "media-type",
            "Unsupported body type",
            "send `Content-Type: application/json`",
        )
    }

    /// 422: fields of the document are invalid.
    pub fn invalid(problems: &Problems) -> Self {
        Self {
            errors: fields(problems),
            ..Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                "Invalid document",
                format!("nothing was changed; {}", sentence(problems)),
            )
        }
    }

    /// 422: a field is invalid in the running router's state.
    pub fn invalid_field(field: &str, detail: impl Into<String>) -> Self {
        let detail = detail.into();
        Self {
            errors: vec![FieldError {
                field: field.to_owned(),
                detail: detail.clone(),
                hint: None,
            }],
            ..Self::new(
                StatusCode::UNPROCESSABLE_ENTITY,
                "invalid",
                "Invalid document",
                format!("nothing was changed; {field}: {detail}"),
            )
        }
    }

    /// 428: If-Match is required.
    pub fn precondition_required() -> Self {
        Self::new(
            StatusCode::PRECONDITION_REQUIRED,
            "precondition-required",
            "If-Match required",
            "send the ETag of the revision to change as If-Match, so that no concurrent change is lost",
        )
    }

    /// 429: too many concurrent calls of this operation.
    pub fn busy(detail: impl Into<String>) -> Self {
        Self::new(StatusCode::TOO_MANY_REQUESTS, "busy", "Busy", detail)
    }

    /// 503: a dependency is unavailable.
    pub fn unavailable(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "unavailable",
            "Unavailable",
            detail,
        )
    }

    /// 500: the response cannot be produced.
    pub fn internal(detail: impl Into<String>) -> Self {
        Self::new(
            StatusCode::INTERNAL_SERVER_ERROR,
            "internal",
            "Internal error",
            detail,
        )
    }

    pub fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

fn fields(problems: &Problems) -> Vec<FieldError> {
    let field = |problem: &config::Problem| FieldError {
        field: problem.path.clone(),
        detail: problem.what.clone(),
        hint: problem.hint.clone(),
    };
    problems.iter().map(field).collect()
}

/// Joins all problems in one sentence, for clients that show only `detail`.
fn sentence(problems: &Problems) -> String {
    let one = |error: FieldError| {
        let hint = error.hint.map_or(String::new(), |hint| format!(" ({hint})"));
        match error.field.as_str() {
            "" => format!("{}{hint}", error.detail),
            field => format!("{field}: {}{hint}", error.detail),
        }
    };
    let all: Vec<_> = fields(problems).into_iter().map(one).collect();
    all.join("; ")
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let mut response = (self.status(), body).into_response();
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(PROBLEM_JSON));
        match self.status() {
            StatusCode::UNAUTHORIZED => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                headers.insert(header::RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        response
    }
}
