//! Recognises requests for a WebSocket.

use http::header::{CONNECTION, HeaderName, UPGRADE};
use http::request::Parts;
use http::{Extensions, HeaderMap, Method, Request, Version};
use hyper::ext::Protocol;

pub(super) const WEBSOCKET: &str = "websocket";

#[derive(Clone, Copy, Debug)]
struct UpgradeRequested;

/// Returns whether a request asks for a WebSocket: it is marked by [`note`], or is an extended `CONNECT`.
pub(super) fn is_asked(head: &Parts) -> bool {
    head.extensions.get::<UpgradeRequested>().is_some() || is_extended_connect(&head.method, &head.extensions)
}

pub(super) fn is_extended_connect(method: &Method, extensions: &Extensions) -> bool {
    let protocol = extensions.get::<Protocol>();
    method == Method::CONNECT && protocol.is_some_and(|protocol| protocol.as_str() == WEBSOCKET)
}

/// Marks a WebSocket request before its upgrade headers are removed.
pub(super) fn note<B>(request: &mut Request<B>) {
    if *request.method() == Method::GET
        && request.version() == Version::HTTP_11
        && names_websocket(request.headers())
        && lists(request.headers(), CONNECTION, "upgrade")
    {
        request.extensions_mut().insert(UpgradeRequested);
    }
}

/// Returns whether `Upgrade` lists the WebSocket protocol.
pub(super) fn names_websocket(headers: &HeaderMap) -> bool {
    lists(headers, UPGRADE, WEBSOCKET)
}

fn lists(headers: &HeaderMap, name: HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name);
    let mut parts = values
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','));
    parts.any(|part| part.trim().eq_ignore_ascii_case(wanted))
}
