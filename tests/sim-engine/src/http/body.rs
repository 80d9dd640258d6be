//! Response bodies.

use ::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};

/// Whole or streamed; an error cuts the connection.
pub(crate) type Body = UnsyncBoxBody<Bytes, CutOff>;

/// The connection is cut on purpose.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cut off, as a fault asked")]
pub(crate) struct CutOff;

pub(crate) fn full(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

pub(crate) fn json_response(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    // Our own plain types: encoding them cannot fail.
    let body = serde_json::to_vec(value).unwrap_or_default();
    full(status, "application/json", Bytes::from(body))
}

pub(crate) fn text_response(text: String) -> Response<Body> {
    full(
        StatusCode::OK,
        "text/plain; version=0.0.4; charset=utf-8",
        Bytes::from(text),
    )
}
