//! Error responses of the router to its clients.
//!
//! The body has the shape of OpenAI's errors, or of Anthropic's at its endpoints, which their client libraries parse.
//! A message tells the client what to do next and reveals nothing internal: addresses and causes go to the log.

use std::time::Duration;

use bytes::Bytes;
use http::header::{
    ACCEPT_ENCODING, ALLOW, CONNECTION, CONTENT_TYPE, HeaderValue, RETRY_AFTER, WWW_AUTHENTICATE,
};
use http::{Response, StatusCode};

use crate::api::Family;
use crate::names;
use tailroute_http::body::{self, Body};

/// Header that marks a response as the router's own; its value is the error's code.
pub const ERROR_HEADER: &str = "x-tailroute-error";

/// A request that the router answers itself with an error.
#[derive(Debug, thiserror::Error)]
pub enum ApiError {
    /// The body is not JSON.
    #[error("the request body is not valid JSON: {0}")]
    MalformedJson(String),
    /// Different parsers could read the form differently.
    #[error(
        "the form cannot be read: it has no single boundary, a part with a head that is too long, a part with an encoded name, or two parts `model`; name a part once, as in `name=\"model\"`"
    )]
    MalformedForm,
    /// The request could not be understood as HTTP.
    #[error("the request could not be parsed as HTTP")]
    MalformedHttp,
    /// The request to switch protocols announces a body.
    #[error(
        "a request for a WebSocket has no body; send it without `Content-Length` and `Transfer-Encoding`, and the data as messages"
    )]
    UpgradeWithBody,
    /// The request has passed this router before.
    #[error("this request has passed this router before; give the router's workers the addresses of engines")]
    LoopDetected,
    /// The body ended early or could not be read.
    #[error("the request body could not be read to its end")]
    BodyCutShort,
    /// No worker serves this model.
    #[error("the model `{model}` is not served here; served are: {known}")]
    UnknownModel {
        /// Requested model.
        model: String,
        /// Served models.
        known: String,
    },
    /// Workers serve different models, and the router could not read which one the request names.
    #[error(
        "this router serves several models, and could not read which one this request names; send `model` in a JSON object or a form, or add `?model=NAME` to the URL"
    )]
    UnreadModel,
    /// The body has a content coding.
    #[error(
        "the request body is encoded (`Content-Encoding: {0}`), which is not accepted here; send it unencoded"
    )]
    UnsupportedEncoding(String),
    /// A name is too long, or has control characters.
    #[error("the field `{0}` is longer than {max} bytes or has control characters; give a shorter name", max = names::MAX_BYTES)]
    UnfitName(&'static str),
    /// A field or header would control an engine's internals.
    #[error(
        "`{0}` steers an engine from within, which is the router's to do: leave it out, or have `http.transfer_fields` set"
    )]
    Steering(&'static str),
    /// The request asks for a policy that it may not use.
    #[error("the header x-tailroute-policy {0}")]
    UnfitPolicy(String),
    /// No endpoint has this path.
    #[error("there is nothing at this path")]
    NotFound,
    /// No endpoint has this path, but one has a path that ends like it.
    #[error("there is nothing at this path; use {0}")]
    WrongPrefix(String),
    /// The caller has no response with this id.
    #[error("no response of this id is known here; send the whole conversation in `input` instead")]
    UnknownResponse,
    /// The engine's cache of this input cannot be divided between tenants.
    #[error("{what} cannot isolate tenants' caches. {instead}")]
    Unsalted {
        /// Kind of request that is cached.
        what: &'static str,
        /// Instruction what to do instead.
        instead: &'static str,
    },
    /// The field refers to state in an engine that may be another tenant's.
    #[error("`{0}` refers to state that other tenants may use. Leave it out.")]
    ForeignState(&'static str),
    /// The page that opens a WebSocket is not of an allowed origin.
    #[error("pages of this origin may not connect here; ask your operator to add it to http.cors_origins")]
    OriginNotAllowed,
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
    /// The request has no API key.
    #[error("no API key was given; send it as `Authorization: Bearer KEY`")]
    MissingKey,
    /// The request's API key is unknown.
    #[error("this API key is not known here; check it, or ask your operator for another")]
    UnknownKey,
    /// The key's limit is reached.
    #[error("this API key's limit of {what} is reached; try again in {}", seconds(*.after))]
    RateLimited {
        /// Limit that is reached: `requests` or `tokens`.
        what: &'static str,
        /// Time until the request would be admitted.
        after: Duration,
    },
    /// The turn would miss its objective on every worker.
    #[error("the time to first token that this turn is to meet cannot be met now; try again in a moment")]
    ObjectiveOutOfReach,
    /// Too many requests are waiting.
    #[error("too many requests wait here already; try again in a moment")]
    QueueFull,
    /// The request waited too long.
    #[error("no worker had room for this request in time ({})", seconds(*.0))]
    QueueTimeout(Duration),
    /// Too many requests are in flight.
    #[error("the router is at its limit of requests in flight; try again in a moment")]
    Overloaded,
    /// No worker is ready.
    #[error("no worker is ready to take this request; try again in a moment")]
    NoWorkerReady,
    /// Operator overrides keep every worker from taking requests.
    #[error("All workers are currently out of service for maintenance; retry later.")]
    AllWorkersHeld,
    /// The router is draining.
    #[error("this router is shutting down; try again at another replica")]
    Draining,
    /// The worker failed before it responded.
    #[error("the worker failed before it answered")]
    WorkerFailed,
    /// The worker failed while it responded.
    #[error("the worker failed while it answered; the response is incomplete")]
    WorkerBrokeOff,
    /// Every worker that could serve the request declined it.
    #[error("every worker that could take this request is at its limit; try again in a moment")]
    WorkersBusy,
    /// The request's own deadline has passed.
    #[error("the request was not answered before its deadline ({})", seconds(*.0))]
    DeadlineExceeded(Duration),
    /// The worker did not respond in time.
    #[error("the worker did not answer in time ({})", seconds(*.0))]
    WorkerTimeout(Duration),
}

fn seconds(duration: Duration) -> String {
    format!("{} s", duration.as_secs_f64())
}

impl ApiError {
    /// Returns the HTTP status.
    pub fn status(&self) -> StatusCode {
        match self {
            Self::MalformedJson(_)
            | Self::MalformedForm
            | Self::MalformedHttp
            | Self::UpgradeWithBody
            | Self::BodyCutShort
            | Self::UnreadModel
            | Self::UnfitName(_)
            | Self::Steering(_)
            | Self::UnfitPolicy(_) => StatusCode::BAD_REQUEST,
            Self::UnknownModel { .. } | Self::NotFound | Self::WrongPrefix(_) | Self::UnknownResponse => {
                StatusCode::NOT_FOUND
            }
            Self::Unsalted { .. } | Self::ForeignState(_) | Self::OriginNotAllowed => StatusCode::FORBIDDEN,
            Self::UnsupportedEncoding(_) => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::RequestTimeout(_) => StatusCode::REQUEST_TIMEOUT,
            Self::BodyTooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            Self::HeadersTooLarge => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::UriTooLong => StatusCode::URI_TOO_LONG,
            Self::MissingKey | Self::UnknownKey => StatusCode::UNAUTHORIZED,
            Self::RateLimited { .. } | Self::ObjectiveOutOfReach => StatusCode::TOO_MANY_REQUESTS,
            Self::Overloaded
            | Self::QueueFull
            | Self::QueueTimeout(_)
            | Self::NoWorkerReady
            | Self::AllWorkersHeld
            | Self::WorkersBusy
            | Self::Draining => StatusCode::SERVICE_UNAVAILABLE,
            Self::WorkerFailed | Self::WorkerBrokeOff => StatusCode::BAD_GATEWAY,
            Self::LoopDetected => StatusCode::LOOP_DETECTED,
            Self::DeadlineExceeded(_) | Self::WorkerTimeout(_) => StatusCode::GATEWAY_TIMEOUT,
        }
    }

    /// Returns the error's code, which is stable, for programs and metric labels.
    pub fn code(&self) -> &'static str {
        match self {
            Self::MalformedJson(_) => "malformed_json",
            Self::MalformedForm => "malformed_form",
            Self::MalformedHttp => "malformed_http",
            Self::UpgradeWithBody => "upgrade_with_body",
            Self::LoopDetected => "loop_detected",
            Self::BodyCutShort => "body_cut_short",
            Self::UnknownModel { .. } => "model_not_found",
            Self::UnreadModel => "model_not_read",
            Self::UnsupportedEncoding(_) => "unsupported_encoding",
            Self::UnfitName(_) => "invalid_name",
            Self::Steering(_) => "field_not_allowed",
            Self::UnfitPolicy(_) => "invalid_policy_header",
            Self::NotFound | Self::WrongPrefix(_) => "not_found",
            Self::UnknownResponse => "response_not_found",
            Self::Unsalted { .. } | Self::ForeignState(_) => "not_isolated",
            Self::OriginNotAllowed => "origin_not_allowed",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::RequestTimeout(_) => "request_timeout",
            Self::BodyTooLarge(_) => "body_too_large",
            Self::HeadersTooLarge => "headers_too_large",
            Self::UriTooLong => "uri_too_long",
            Self::MissingKey => "missing_api_key",
            Self::UnknownKey => "invalid_api_key",
            Self::RateLimited { .. } => "rate_limit_exceeded",
            Self::ObjectiveOutOfReach => "objective_out_of_reach",
            Self::QueueFull => "queue_full",
            Self::QueueTimeout(_) => "queue_timeout",
            Self::Overloaded => "overloaded",
            Self::NoWorkerReady | Self::AllWorkersHeld => "no_worker_ready",
            Self::Draining => "draining",
            Self::WorkerFailed | Self::WorkerBrokeOff => "worker_failed",
            Self::WorkersBusy => "workers_busy",
            Self::DeadlineExceeded(_) => "deadline_exceeded",
            Self::WorkerTimeout(_) => "worker_timeout",
        }
    }

    /// Returns the outcome of admission, as a metric label, for errors that come from it.
    pub fn admission(&self) -> Option<&'static str> {
        match self {
            Self::MissingKey | Self::UnknownKey => Some("unauthorized"),
            Self::RateLimited { what: "tokens", .. } => Some("tokens_limited"),
            Self::RateLimited { .. } => Some("requests_limited"),
            Self::ObjectiveOutOfReach => Some("shed"),
            Self::QueueFull => Some("queue_full"),
            Self::QueueTimeout(_) => Some("queue_timeout"),
            _ => None,
        }
    }

    /// Returns whether the router refuses the request for lack of room.
    pub fn is_overload(&self) -> bool {
        matches!(
            self,
            Self::Overloaded | Self::QueueFull | Self::QueueTimeout(_) | Self::ObjectiveOutOfReach
        )
    }

    pub(crate) fn field(&self) -> Option<&'static str> {
        match self {
            Self::UnfitName(field) | Self::Steering(field) | Self::ForeignState(field) => Some(field),
            Self::UnknownModel { .. } | Self::UnreadModel => Some("model"),
            _ => None,
        }
    }

    /// Returns the JSON body in OpenAI's format.
    pub fn json(&self) -> Bytes {
        self.json_for(Family::OpenAi)
    }

    /// Returns the JSON body in the format of an API family.
    pub fn json_for(&self, family: Family) -> Bytes {
        Bytes::from(family.error(self).to_string())
    }

    /// Returns the complete response in the format of an API family.
    pub fn response_for(&self, family: Family) -> Response<Body> {
        let mut response = Response::new(body::full(self.json_for(family)));
        *response.status_mut() = self.status();
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(ERROR_HEADER, HeaderValue::from_static(self.code()));
        match self {
            Self::MethodNotAllowed(allow) => {
                headers.insert(ALLOW, HeaderValue::from_static(allow));
            }
            Self::MissingKey => {
                headers.insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            Self::UnknownKey => {
                let challenge = HeaderValue::from_static("Bearer error=\"invalid_token\"");
                headers.insert(WWW_AUTHENTICATE, challenge);
            }
            Self::UnsupportedEncoding(_) => {
                // The codings that a request may have (RFC 9110, section 12.5.3).
                headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("identity"));
            }
            Self::RateLimited { after, .. } => {
                // Rounded up to whole seconds.
                headers.insert(RETRY_AFTER, HeaderValue::from(after.as_secs_f64().ceil() as u64));
            }
            Self::Overloaded
            | Self::QueueFull
            | Self::QueueTimeout(_)
            | Self::ObjectiveOutOfReach
            | Self::NoWorkerReady
            | Self::AllWorkersHeld
            | Self::WorkersBusy
            | Self::Draining => {
                headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
            }
            _ => {}
        }
        if matches!(
            self,
            Self::RequestTimeout(_)
                | Self::DeadlineExceeded(_)
                | Self::BodyTooLarge(_)
                | Self::BodyCutShort
                | Self::UpgradeWithBody
                | Self::Draining
                | Self::MissingKey
                | Self::UnknownKey
        ) {
            // The rest of the request body will not be read.
            headers.insert(CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shed_request_is_told_when_to_come_back() {
        assert_eq!(
            ApiError::NoWorkerReady.response_for(Family::OpenAi).headers()[RETRY_AFTER],
            "1"
        );
        assert!(
            !ApiError::WorkerFailed
                .response_for(Family::OpenAi)
                .headers()
                .contains_key(RETRY_AFTER)
        );
    }

    #[test]
    fn a_wrong_method_is_told_the_right_one() {
        assert_eq!(
            ApiError::MethodNotAllowed("POST")
                .response_for(Family::OpenAi)
                .headers()[ALLOW],
            "POST"
        );
    }
}
