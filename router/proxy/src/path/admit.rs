//! Checks a request's path, method and sizes, then reads its body, bounded in size and time.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as HttpBody;
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout_at};

use super::{arrival, upgrade};
use crate::Proxy;
use protocol::error::ApiError;
use protocol::routes;
use protocol::routes::Route;
use tailroute_http::unread::Unread;

const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Most memory reserved up front for a declared content length. A body up to this length is not reallocated as it
/// grows, and untouched pages are not resident.
const RESERVED_BYTES: usize = 2 * 1024 * 1024;

/// Finds the route of a request. Fails if the request is refused by its head alone.
pub fn route(proxy: &Arc<Proxy>, head: &Parts) -> Result<Route, ApiError> {
    if arrival::is_looped(head) {
        return Err(ApiError::LoopDetected);
    }
    let target = head
        .uri
        .path_and_query()
        .map_or(0, |target| target.as_str().len());
    if target > MAX_TARGET_BYTES {
        return Err(ApiError::UriTooLong);
    }
    if header_bytes(&head.headers) > proxy.state.config.limits.max_header_bytes.get() {
        return Err(ApiError::HeadersTooLarge);
    }
    let extra = &proxy.state.config.http.extra_paths;
    routes::find(
        &head.method,
        head.uri.path(),
        upgrade::is_asked(head),
        extra,
        proxy.admission.keys().is_required(),
    )
}

/// The route's name in metrics.
pub fn endpoint(route: &Result<Route, ApiError>) -> &'static str {
    route.as_ref().map_or("none", Route::endpoint)
}

fn header_bytes(headers: &HeaderMap) -> usize {
    headers
        .iter()
        .map(|(name, value)| name.as_str().len() + value.len() + 4)
        .sum()
}

/// A complete request body.
#[derive(Debug)]
pub struct Received {
    /// The body.
    pub bytes: Bytes,
    /// The memory reservation for the bytes, held as long as they are.
    pub room: Unread,
}

/// Reads a complete body. Fails with 413 if it is too large, 408 on timeout, 400 if it is cut short, and 503 if the
/// memory for unread bodies is used up.
pub async fn read_body(
    proxy: &Proxy,
    head: &http::request::Parts,
    mut body: impl HttpBody<Data = Bytes> + Unpin,
) -> Result<Received, ApiError> {
    let live = proxy.state.live();
    let limits = &live.limits;
    let max = limits.max_body_bytes.get();
    let declared = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > max as u64) {
        return Err(ApiError::BodyTooLarge(max));
    }
    let deadline = Instant::now() + limits.body_timeout;
    let mut room = proxy.state.unread();
    // A body that arrives in one piece, as most do, is not copied.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let frame = match timeout_at(deadline, body.frame()).await {
            Err(_) => return Err(ApiError::RequestTimeout(limits.body_timeout)),
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(ApiError::BodyCutShort),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        if first.len() + rest.len() + data.len() > max {
            return Err(ApiError::BodyTooLarge(max));
        }
        if !room.grow(data.len()) {
            return Err(ApiError::Overloaded);
        }
        if first.is_empty() && rest.is_empty() {
            first = data;
            continue;
        }
        if rest.is_empty() {
            rest.reserve(declared.unwrap_or(0).min(max.min(RESERVED_BYTES) as u64) as usize);
            rest.extend_from_slice(&std::mem::take(&mut first));
        }
        rest.extend_from_slice(&data);
    }
    let bytes = if rest.is_empty() { first } else { rest.freeze() };
    Ok(Received { bytes, room })
}
