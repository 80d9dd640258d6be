//! Whether a worker may have begun on a request that it did not answer: then it must not be sent again.
//!
//! A generation that is tried twice is work done twice, and tool calls and stored responses made twice. RFC 9110, section
//! 9.2.2, forbids a proxy to repeat a request that is not idempotent, unless it knows that the first was not applied.
//! This is what is known, exactly:
//!
//! | what happened | may have begun | tried elsewhere |
//! |---|---|---|
//! | no connection: refused, unreachable, no answer to it in time | no | yes |
//! | the connection that was to be used again had been closed, and not a byte of the request was written | no | on another connection to the same worker, by the HTTP client; then yes |
//! | the worker answers 503 or 429: its queue is full, it loads, or it goes down | no | yes |
//! | the connection is lost after the first byte of the request was written | yes | only if idempotent |
//! | no answer in time | yes | no: it may still be at it |
//! | any other answer, 5xx too | yes | no: the answer is passed on |
//! | anything after the first byte of an answer was passed on | yes | no |
//!
//! A connection that is used again may be closed by the worker in the very moment when the request is written. That
//! cannot be told from a worker that died over it, so it counts as begun. To make it rare, idle connections are given up
//! before engines do so (uvicorn, which serves vLLM and SGLang, closes them after five seconds).
//!
//! Idempotent are the methods that HTTP says are, what computes something of its input and keeps nothing ([`COMPUTES`]),
//! and whatever its client says is (`Idempotency-Key`).

use std::error::Error;

use http::{HeaderMap, HeaderName, Method, StatusCode};
use hyper_util::client::legacy;

use tailroute_http::upstream;

/// Endpoints that answer the same to the same, and change nothing.
pub const COMPUTES: [&str; 16] = [
    "/classify",
    "/detokenize",
    "/encode",
    "/pooling",
    "/rerank",
    "/score",
    "/tokenize",
    "/v1/classify",
    "/v1/detokenize",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/v1/moderations",
    "/v1/rerank",
    "/v1/score",
    "/v1/tokenize",
    "/v2/rerank",
];

/// The client says that it may be done twice.
pub const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");

/// What became of a request that brought no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lost {
    /// There was no connection to send it on.
    NoConnection,
    /// It was given back unwritten.
    Unsent,
    /// At least its first byte was written.
    MayHaveBegun,
}

impl Lost {
    /// What an error of the HTTP client says.
    #[must_use]
    pub fn of(error: &upstream::Error) -> Self {
        match error {
            upstream::Error::Connect(_) => Self::NoConnection,
            upstream::Error::Unsent(_) => Self::Unsent,
            upstream::Error::Lost(_) => Self::MayHaveBegun,
            upstream::Error::Hyper(error) => Self::of_hyper(error),
        }
    }

    fn of_hyper(error: &legacy::Error) -> Self {
        // hyper says "canceled" of a request that it gives back, and of no other.
        let unsent = |error: &(dyn Error + 'static)| {
            error
                .downcast_ref::<hyper::Error>()
                .is_some_and(hyper::Error::is_canceled)
        };
        if error.is_connect() {
            Self::NoConnection
        } else if sources(error).any(unsent) {
            Self::Unsent
        } else {
            Self::MayHaveBegun
        }
    }
}

/// Whether there was no connection because nobody answered in time: a worker that is merely busy may be like that.
#[must_use]
pub fn is_slow_to_connect(error: &upstream::Error) -> bool {
    error.is_connect()
        && sources(error).any(|error| {
            error
                .downcast_ref::<std::io::Error>()
                .is_some_and(|error| error.kind() == std::io::ErrorKind::TimedOut)
        })
}

fn sources<'a>(error: &'a (dyn Error + 'static)) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(error.source(), |error: &&(dyn Error + 'static)| (*error).source())
}

/// Whether an answer says that the worker did not take the request.
#[must_use]
pub fn declines(status: StatusCode) -> bool {
    matches!(
        status,
        StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
    )
}

/// Whether an answer is held against the worker. 501 is not: it was asked for what it does not do.
#[must_use]
pub fn is_failure(status: StatusCode) -> bool {
    status.is_server_error() && status != StatusCode::NOT_IMPLEMENTED
}

/// Whether a request may be done twice.
#[must_use]
pub fn is_idempotent(method: &Method, path: &str, headers: &HeaderMap) -> bool {
    method.is_idempotent() || COMPUTES.binary_search(&path).is_ok() || headers.contains_key(&IDEMPOTENCY_KEY)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn the_endpoints_are_in_order_so_that_they_are_found() {
        assert!(COMPUTES.is_sorted());
        for path in COMPUTES {
            assert!(is_idempotent(&Method::POST, path, &HeaderMap::new()));
        }
    }

    #[test]
    fn a_generation_is_not_idempotent_unless_its_client_says_so() {
        let mut headers = HeaderMap::new();
        for path in [
            "/v1/chat/completions",
            "/v1/completions",
            "/v1/responses",
            "/generate",
        ] {
            assert!(!is_idempotent(&Method::POST, path, &headers));
        }
        assert!(is_idempotent(&Method::GET, "/v1/responses/r", &headers));
        headers.insert(IDEMPOTENCY_KEY, HeaderValue::from_static("7"));
        assert!(is_idempotent(&Method::POST, "/v1/chat/completions", &headers));
    }

    #[test]
    fn a_worker_is_not_blamed_for_what_clients_do() {
        for status in [400, 401, 404, 413, 422, 429, 499, 501] {
            assert!(!is_failure(StatusCode::from_u16(status).unwrap()), "{status}");
        }
        for status in [500, 502, 503, 504] {
            assert!(is_failure(StatusCode::from_u16(status).unwrap()), "{status}");
        }
    }
}
