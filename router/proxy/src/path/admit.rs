//! Checks a request's path, method and sizes, then reads its body, bounded in size and time.

use bytes::{Bytes, BytesMut};
use http::header::{CONTENT_ENCODING, CONTENT_LENGTH};
use http::request::Parts;
use http::{HeaderMap, Uri};
use http_body::Body as HttpBody;
use http_body_util::BodyExt;
use tokio::time::timeout_at;

use super::client_body::Pace;
use super::{arrival, cors, upgrade};
use crate::Proxy;
use crate::admission::Admission;
use crate::admission::keys::{Caller, KeyFault};
use protocol::error::ApiError;
use protocol::model::BYTE_ORDER_MARK;
use protocol::routes::{self, Route};
use state::State;
use tailroute_http::byte_reservation::ByteReservation;
use telemetry::traces::TracedRoute;

const MAX_TARGET_BYTES: usize = 8 * 1024;
/// Longest part of a coding's name repeated in an error.
const MAX_SHOWN_CHARS: usize = 32;
/// Most memory reserved up front for a declared content length. A body up to this length is not reallocated as it
/// grows, and untouched pages are not resident.
const RESERVED_BYTES: usize = 2 * 1024 * 1024;

/// Finds the route of a request. Fails if the request is refused by its head alone.
pub fn route(proxy: &Proxy, head: &Parts) -> Result<Route, ApiError> {
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
    if cors::is_preflight(head) {
        return Ok(Route::Preflight);
    }
    let extra = &proxy.state.config.http.extra_paths;
    routes::find(
        &head.method,
        head.uri.path(),
        upgrade::is_asked(head),
        extra,
        proxy.admission.keys().isolates(),
    )
}

/// Removes the trailing slash of a known path. Engines would redirect the client to the path without it.
pub fn settle_path(http: &config::Http, head: &mut Parts) {
    if !head.uri.path().ends_with('/') {
        return;
    }
    let Some(path) = routes::without_slash(head.uri.path(), &http.extra_paths) else {
        return;
    };
    let target = match head.uri.query() {
        Some(query) => format!("{path}?{query}").parse(),
        None => path.parse(),
    };
    let mut parts = std::mem::take(&mut head.uri).into_parts();
    parts.path_and_query = target.ok().or(parts.path_and_query);
    // The parts are those of a valid URI.
    head.uri = Uri::from_parts(parts).unwrap_or_default();
}

/// Identifies the caller of a request on this route. Fails if the route needs a key and the request has no valid one.
pub fn caller(
    admission: &Admission,
    route: &Result<Route, ApiError>,
    headers: &HeaderMap,
) -> Result<Caller, KeyFault> {
    match route {
        Ok(route) if !route.needs_key() => Ok(Caller::anonymous()),
        _ => admission.keys().identify(headers),
    }
}

/// Checks that a body has no content coding, which would hide it from the router. Fails with 415.
pub fn permit_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    let all = headers.get_all(CONTENT_ENCODING).into_iter();
    let codings = all.flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
    let mut codings = codings.map(|coding| String::from_utf8_lossy(coding.trim_ascii()));
    let other = codings.find(|coding| !coding.is_empty() && !coding.eq_ignore_ascii_case("identity"));
    other.map_or(Ok(()), |coding| {
        let shown = coding.chars().take(MAX_SHOWN_CHARS).collect();
        Err(ApiError::UnsupportedEncoding(shown))
    })
}

/// Removes the byte order mark from a body, which engines need not accept (RFC 8259, section 8.1).
pub fn without_mark(headers: &mut HeaderMap, body: Bytes) -> Bytes {
    if !body.starts_with(BYTE_ORDER_MARK) {
        return body;
    }
    // The client's length includes the mark.
    headers.remove(CONTENT_LENGTH);
    body.slice(BYTE_ORDER_MARK.len()..)
}

/// Returns the route's name in metrics.
pub fn endpoint(route: &Result<Route, ApiError>) -> &'static str {
    route.as_ref().map_or(routes::NONE, Route::endpoint)
}

/// Returns the route as traces describe it.
pub fn traced_route(route: &Result<Route, ApiError>) -> TracedRoute {
    route
        .as_ref()
        .map_or(TracedRoute::default(), |route| TracedRoute {
            endpoint: route.endpoint(),
            operation: route.operation(),
            path: route.path(),
        })
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
    pub bytes: Bytes,
    /// Reservation of memory for the bytes, to be held as long as they are.
    pub room: ByteReservation,
}

/// Reads a complete body. Fails with 413 if it is too large, 408 on timeout, 400 if it is cut short, and 503 if the
/// memory for unread bodies is used up.
pub async fn read_body(
    state: &State,
    head: &http::request::Parts,
    mut body: impl HttpBody<Data = Bytes> + Unpin,
) -> Result<Received, ApiError> {
    let (max, patience) = {
        let limits = &state.routing.live().limits;
        (limits.max_body_bytes.get(), limits.body_timeout)
    };
    let declared = head
        .headers
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if declared.is_some_and(|length| length > max as u64) {
        return Err(ApiError::BodyTooLarge(max));
    }
    let mut pace = Pace::new(patience);
    let mut room = state.request_reservation();
    // A body that arrives in one piece, as most do, is not copied.
    let mut first = Bytes::new();
    let mut rest = BytesMut::new();
    loop {
        let frame = match timeout_at(pace.until(), body.frame()).await {
            Err(_) => return Err(ApiError::RequestTimeout(patience)),
            Ok(None) => break,
            Ok(Some(Err(_))) => return Err(ApiError::BodyCutShort),
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        pace.received(data.len());
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
