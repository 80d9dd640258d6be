//! Response bodies.

use ::http::{HeaderValue, Response, StatusCode, header};
use bytes::Bytes;
use futures_util::stream::unfold;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Collected, Full, StreamBody};
use hyper::body::Frame;

use crate::fault::Break;

/// A complete or streamed body. An error cuts the connection.
pub(crate) type Body = UnsyncBoxBody<Bytes, CutOff>;

#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("cut off by a fault")]
pub(crate) struct CutOff;

pub(crate) fn full(status: StatusCode, content_type: &'static str, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
    response
}

/// Returns the first half of a response, then breaks it off as `how` says.
pub(crate) async fn half(answer: Response<Body>, how: Break) -> Response<Body> {
    let (head, body) = answer.into_parts();
    let mut first = body.collect().await.map(Collected::to_bytes).unwrap_or_default();
    let length = first.len();
    first.truncate(length / 2);
    let frames = unfold(Some((first, how)), |rest| async move {
        let (half, how) = rest?;
        if !half.is_empty() {
            return Some((Ok(Frame::data(half)), Some((Bytes::new(), how))));
        }
        match how {
            Break::End => return None,
            Break::Stall => std::future::pending::<()>().await,
            // The server flushes earlier data only when the body is pending.
            Break::Reset => tokio::task::yield_now().await,
        }
        Some((Err(CutOff), None))
    });
    let mut answer = Response::from_parts(head, StreamBody::new(frames).boxed_unsync());
    if how != Break::End {
        answer.headers_mut().insert(header::CONTENT_LENGTH, length.into());
    }
    answer
}

pub(crate) fn json_response(status: StatusCode, value: &impl serde::Serialize) -> Response<Body> {
    // Encoding these plain types cannot fail.
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
