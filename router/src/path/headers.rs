//! Which headers travel, and which end here (RFC 9110, section 7.6.1).

use http::header::{
    CONNECTION, EXPECT, HOST, HeaderMap, HeaderName, PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE,
};

/// Names the conversation to the worker.
pub const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// Tokens at the end of the conversation that the worker may drop first once it has answered.
pub const EVICT_FIRST: HeaderName = HeaderName::from_static("x-tailroute-evict-first-tokens");
/// The worker that answered.
pub const WORKER: HeaderName = HeaderName::from_static("x-tailroute-worker");
/// The decision's number.
pub const DECISION: HeaderName = HeaderName::from_static("x-tailroute-decision");

/// The data-parallel rank that a request is for, as vLLM reads it.
pub const VLLM_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// The same, as SGLang reads it.
pub const SGLANG_RANK: HeaderName = HeaderName::from_static("x-override-routed-dp-rank");
/// Time to first token that a turn is to meet, in milliseconds.
pub const SLO_TTFT_MS: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
/// The same, as llm-d calls it.
pub const SLO_TTFT_MS_LLM_D: HeaderName = HeaderName::from_static("x-llm-d-slo-ttft-ms");
/// Names the turn's class of objective.
pub const SLO_CLASS: HeaderName = HeaderName::from_static("x-slo-class");
/// `1` or `true`: the client says that this turn is its conversation's last.
pub const SESSION_END: HeaderName = HeaderName::from_static("x-session-end");

const HOP_BY_HOP: [HeaderName; 7] = [
    CONNECTION,
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Removes what concerns one connection only: the fixed list, `Keep-Alive`, and what `Connection` names.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .collect();
    for name in named.iter().chain(&HOP_BY_HOP) {
        headers.remove(name);
    }
    headers.remove("keep-alive");
    headers.remove("proxy-connection");
}

/// Removes what the router has already dealt with, or must not take from a client.
pub fn strip_for_worker(headers: &mut HeaderMap) {
    strip_hop_by_hop(headers);
    // The body is already here, and the host is the worker's.
    headers.remove(EXPECT);
    headers.remove(HOST);
    // Only the router says what may be evicted.
    headers.remove(EVICT_FIRST);
}

/// Pins a request to the rank that was chosen; a client's own choice gives way. Where an engine has no ranks of its own,
/// what the client says stays.
pub fn pin(headers: &mut HeaderMap, rank: Option<u32>) {
    if let Some(rank) = rank {
        headers.insert(VLLM_RANK, rank.into());
        headers.insert(SGLANG_RANK, rank.into());
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn what_concerns_one_connection_ends_here() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private , keep-alive"),
            ("keep-alive", "timeout=5"),
            ("x-private", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("authorization", "Bearer k"),
            ("x-request-id", "7"),
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        strip_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(left, ["authorization", "x-request-id"]);
    }

    #[test]
    fn a_client_cannot_say_what_is_evicted() {
        let mut headers = HeaderMap::new();
        headers.insert(EVICT_FIRST, HeaderValue::from_static("1000000"));
        strip_for_worker(&mut headers);
        assert!(headers.is_empty());
    }
}
