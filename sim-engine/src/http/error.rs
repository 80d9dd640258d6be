//! Errors in the shape of OpenAI's or Anthropic's API, with vLLM's names and messages.

use ::http::{Method, Response, StatusCode};
use serde_json::json;

use super::api::Family;
use super::body::{Body, json_response};

#[derive(Clone, Debug)]
pub(crate) struct ApiError {
    status: StatusCode,
    kind: &'static str,
    message: String,
    param: Option<&'static str>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            param: None,
        }
    }

    pub(crate) fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "BadRequestError", message)
    }

    pub(crate) fn unknown_model(model: &str) -> Self {
        let message = format!("The model `{model}` does not exist.");
        Self::new(StatusCode::NOT_FOUND, "NotFoundError", message)
    }

    pub(crate) fn no_such_response(id: &str) -> Self {
        let message = format!("Response with id '{id}' not found.");
        Self {
            param: Some("response_id"),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    pub(crate) fn not_cancellable() -> Self {
        let message = "Cannot cancel a synchronous response.";
        Self {
            param: Some("response_id"),
            ..Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
        }
    }

    pub(crate) fn no_such_path(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "NotFoundError",
            format!("There is nothing at {path}."),
        )
    }

    pub(crate) fn method_not_allowed(method: &Method, path: &str) -> Self {
        let message = format!("{path} does not take {method}.");
        Self::new(StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowedError", message)
    }

    pub(crate) fn too_large(limit: usize) -> Self {
        let message = format!("The body is larger than {limit} bytes.");
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "RequestTooLargeError", message)
    }

    pub(crate) fn too_long(limit: u64, prompt: u64, output: u32) -> Self {
        let message = format!(
            "This model's maximum context length is {limit} tokens. However, you requested {} tokens ({prompt} in the \
             messages, {output} in the completion). Please reduce the length of the messages or completion.",
            prompt.saturating_add(u64::from(output))
        );
        Self::new(StatusCode::PAYLOAD_TOO_LARGE, "BadRequestError", message)
    }

    pub(crate) fn overloaded() -> Self {
        Self::unavailable("The server's prefill token backlog limit is reached. Please retry later.")
    }

    pub(crate) fn unavailable(message: &str) -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "ServiceUnavailableError",
            message,
        )
    }

    pub(crate) fn injected(status: u16) -> Self {
        let status = StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        Self::new(status, "InternalServerError", "This failure was requested.")
    }

    /// Returns the response in the shape of a family. The types are vLLM's in both.
    pub(super) fn response(&self, family: Family) -> Response<Body> {
        let Self { kind, message, .. } = self;
        let code = self.status.as_u16();
        let error = match family {
            Family::OpenAi => json!({
                "error": { "message": message, "type": kind, "param": self.param, "code": code }
            }),
            Family::Anthropic => json!({ "type": "error", "error": { "type": kind, "message": message } }),
        };
        json_response(self.status, &error)
    }
}
