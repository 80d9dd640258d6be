//! What a client is told when its request is not answered by a worker.
//!
//! The body has the shape of OpenAI's errors, because that is what its client libraries parse. It says what to do
//! next and nothing about the inside: addresses and causes go to the log.

use std::time::Duration;

use bytes::Bytes;
use http::header::{ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Response, StatusCode};
use serde_json::json;

use crate::body::{self, Body};

/// Marks an answer as the router's own, with the error's code; see also `serve::answer`.
pub const ERROR_HEADER: &str = "x-tailroute-error";

/// A request that the router answers itself.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    MalformedJson(String),
    /// The request could not be understood as HTTP.
    #[error("the request could not be parsed as HTTP")]
    MalformedHttp,
    /// The body ended early or could not be read.
    #[error("the request body could not be read to its end")]
    BodyCutShort,
    /// No worker serves this model.
    #[error("the model `{0}` is not served here; GET /v1/models lists the models that are")]
    UnknownModel(String),
    /// Nothing lives at this path.
    #[error("there is nothing at this path")]
    NotFound,
    /// The path takes other methods.
    #[error("this path takes {0} only")]
    MethodNotAllowed(&'static str),
    /// Headers or body did not arrive in time.
    #[error("the request did not arrive in time ({})", seconds(*.0))]
    RequestTimeout(Duration),
    /// The body is larger than the limit.
    #[error("the request body is larger than {0} bytes, the limit of this router")]
    BodyTooLarge(usize),
    /// The headers are larger than the limit.
    #[error("the request headers are larger than this router takes")]
    HeadersTooLarge,
    /// The URI is longer than the limit.
    #[error("the request target is longer than this router takes")]
    UriTooLong,
    /// Too much is in flight.
    #[error("the router is at its limit of requests in flight; try again in a moment")]
    Overloaded,
    /// No worker may be given work.
    #[error("no worker is ready to take this request; try again in a moment")]
    NoWorkerReady,
    /// The router is draining.
    #[error("this router is shutting down; try again at another replica")]
    Draining,
    /// The worker failed before it answered.
    #[error("the worker failed before it answered")]
    WorkerFailed,
    /// The worker did not answer in time.
    #[error("the worker did not answer in time ({})", seconds(*.0))]
    WorkerTimeout(Duration),
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

impl ApiError {
    /// The HTTP status.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            Self::MalformedJson(_) | Self::MalformedHttp | Self::BodyCutShort => StatusCode::BAD_REQUEST,
            Self::UnknownModel(_) | Self::NotFound => StatusCode::NOT_FOUND,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::Overloaded | Self::NoWorkerReady | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Self::WorkerFailed => StatusCode::BAD_GATEWAY,
            Self::WorkerTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// The error's code: stable, for programs and metric labels.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Self::MalformedJson(_) => "malformed_json",
            Self::MalformedHttp => "malformed_http",
            Self::BodyCutShort => "body_cut_short",
            Self::UnknownModel(_) => "model_not_found",
            Self::NotFound => "not_found",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::RequestTimeout(_) => "request_timeout",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::HeadersTooLarge => "headers_too_large",
            Self::UriTooLong => "uri_too_long",
            Self::Overloaded => "overloaded",
            Self::NoWorkerReady => "no_worker_ready",
            Self::Draining => "draining",
            Self::WorkerFailed => "worker_failed",
            Self::WorkerTimeout(_) => "worker_timeout",
        }
    }

    fn kind(&self) -> &'static str {
        match self.status().as_u16() {
            404 => "not_found_error",
            503 => "overloaded_error",
            500.. => "server_error",
            _ => "invalid_request_error",
        }
    }

    /// The JSON body.
    #[must_use]
    pub fn json(&self) -> Bytes {
        let value = json!({
            "error": { "message": self.to_string(), "type": self.kind(), "param": null, "code": self.code() }
        });
        Bytes::from(value.to_string())
    }

    /// The whole answer.
    #[must_use]
    pub fn response(&self) -> Response<Body> {
        let mut response = Response::new(body::full(self.json()));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR_HEADER, HeaderValue::from_static(self.code()));
        match self {
            Self::MethodNotAllowed(allow) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            Self::Overloaded | Self::NoWorkerReady | Self::Draining => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        if matches!(
            self,
            Self::RequestTimeout(_) | Self::BodyTooLarge(_) | Self::BodyCutShort | Self::Draining
        ) {
            // What is left of the request body will not be read.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_body_has_the_shape_that_openai_clients_parse() {
        let error: serde_json::Value =
            serde_json::from_slice(&ApiError::UnknownModel("gpt \"x\"".into()).json()).unwrap();
        assert_eq!(error["error"]["code"], "model_not_found");
        assert_eq!(error["error"]["type"], "not_found_error");
        assert!(error["error"]["message"].as_str().unwrap().contains("gpt \"x\""));
        assert!(error["error"]["param"].is_null());
    }

    #[test]
    fn a_shed_request_is_told_when_to_come_back() {
        assert_eq!(ApiError::NoWorkerReady.response().headers()[RETRY_AFTER], "1");
        assert!(
            !ApiError::WorkerFailed
                .response()
                .headers()
                .contains_key(RETRY_AFTER)
        );
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one() {
        assert_eq!(
            ApiError::MethodNotAllowed("POST").response().headers()[ALLOW],
            "POST"
        );
    }
}
