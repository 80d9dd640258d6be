//! Headers that are forwarded, set or removed (RFC 9110, section 7.6.1).

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue, TE, TRAILER,
};

/// Header with the API key of Anthropic's clients.
pub const X_API_KEY: &str = "x-api-key";

/// Name of the conversation, from the client and for the worker.
pub const SESSION: HeaderName = HeaderName::from_static("x-session-id");
/// Number of tokens at the end of the conversation that the worker may evict first after its response.
pub const EVICT_FIRST: HeaderName = HeaderName::from_static("x-tailroute-evict-first-tokens");
/// Name of the worker that answered.
pub const WORKER: HeaderName = HeaderName::from_static("x-tailroute-worker");
/// Number of the routing decision.
pub const DECISION: HeaderName = HeaderName::from_static("x-tailroute-decision");

/// Data-parallel rank of a request, for vLLM.
pub const VLLM_RANK: HeaderName = HeaderName::from_static("x-data-parallel-rank");
/// Data-parallel rank of a request, for SGLang.
pub const SGLANG_RANK: HeaderName = HeaderName::from_static("x-override-routed-dp-rank");
/// Objective for the time to first token, in milliseconds.
pub const SLO_TTFT_MS: HeaderName = HeaderName::from_static("x-slo-ttft-ms");
/// The same objective under llm-d's name.
pub const SLO_TTFT_MS_LLM_D: HeaderName = HeaderName::from_static("x-llm-d-slo-ttft-ms");
/// Objective class of the turn.
pub const SLO_CLASS: HeaderName = HeaderName::from_static("x-slo-class");
/// `1` or `true`: the turn is the last of its conversation.
pub const SESSION_END: HeaderName = HeaderName::from_static("x-session-end");

/// `1` or `true`: the client requests the terms of the decision. On a response: these terms.
pub const EXPLAIN: HeaderName = HeaderName::from_static("x-tailroute-explain");

/// Policy or weights that a client requests. Not forwarded to workers.
pub const POLICY: HeaderName = HeaderName::from_static("x-tailroute-policy");

/// Prefixes of the router's own headers. Such headers are removed from other parties' messages, which could impersonate
/// the router.
const ROUTERS_OWN: [&str; 2] = ["x-tailroute-", "x-ratelimit-"];

/// Fields that `Connection` cannot name as hop-by-hop, so that clients cannot impersonate a proxy or alter the request.
static NEVER_NAMED: [HeaderName; 6] = [
    http::header::CONTENT_LENGTH,
    http::header::CONTENT_TYPE,
    http::header::CONTENT_ENCODING,
    http::header::AUTHORIZATION,
    http::header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
];

/// Returns whether a header of this name is one of the router's own.
pub fn is_routers_own(name: &str) -> bool {
    ROUTERS_OWN.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes the router's own headers from another party's message.
pub fn strip_routers_own(headers: &mut HeaderMap) {
    remove_where(headers, |name| is_routers_own(name.as_str()));
}

/// Removes the fields whose names match. One pass over the few fields costs less than a lookup per name.
pub fn remove_where(headers: &mut HeaderMap, matches: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| matches(name)).cloned() {
        headers.remove(name);
    }
}

/// Removes fields that are not allowed in trailers (RFC 9110, section 6.5.1) or belong to the router.
pub fn strip_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers);
    trailers.remove(CONTENT_LENGTH);
    trailers.remove(TRAILER);
    strip_routers_own(trailers);
}

/// Removes hop-by-hop fields: the fixed list and the names in `Connection`. Trailers are forwarded, so `Trailer` stays.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| !NEVER_NAMED.contains(name))
        .collect();
    remove_where(headers, |name| is_hop_by_hop(name) || named.contains(name));
}

fn is_hop_by_hop(name: &HeaderName) -> bool {
    matches!(
        name.as_str(),
        "connection"
            | "keep-alive"
            | "proxy-authenticate"
            | "proxy-authorization"
            | "proxy-connection"
            | "te"
            | "transfer-encoding"
            | "upgrade"
    )
}

/// Returns the first value of each of these fields, found in one pass over all fields. Cheaper than a lookup of each,
/// because a message has few fields and a lookup hashes the name.
pub fn first_of<'a, const N: usize>(
    headers: &'a HeaderMap,
    names: [&HeaderName; N],
) -> [Option<&'a HeaderValue>; N] {
    let (names, mut found) = (names.map(HeaderName::as_str), [None; N]);
    for (name, value) in headers {
        let name = name.as_str();
        if let Some(at) = names.iter().position(|known| *known == name) {
            found[at].get_or_insert(value);
        }
    }
    found
}

/// Removes fields that the router has handled or must not accept from a client.
pub fn strip_for_worker(headers: &mut HeaderMap) {
    let takes_trailers = headers.get_all(TE).iter().any(names_trailers);
    strip_hop_by_hop(headers);
    if takes_trailers {
        // Set again, because `TE` applies to one connection (RFC 9110, section 10.1.4).
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    // The body has been read without trailers, and the host is the worker's.
    headers.remove(EXPECT);
    headers.remove(TRAILER);
    headers.remove(HOST);
}

fn names_trailers(value: &HeaderValue) -> bool {
    let parts = value.to_str().unwrap_or_default().split(',');
    parts
        .map(str::trim)
        .any(|part| part.eq_ignore_ascii_case("trailers"))
}

/// Removes API keys that the router has checked. If the router has no keys, those of clients are for the worker and
/// stay.
fn credentials(headers: &mut HeaderMap, are_ours: bool) {
    if are_ours {
        headers.remove(AUTHORIZATION);
        headers.remove(X_API_KEY);
    }
}

/// Returns a request's headers as this worker receives them.
pub fn addressed(headers: &HeaderMap, keys_are_ours: bool, worker: &config::Worker) -> HeaderMap {
    let mut headers = headers.clone();
    credentials(&mut headers, keys_are_ours);
    strip_routers_own(&mut headers);
    present(&mut headers, worker);
    pin(&mut headers, worker.rank);
    headers
}

/// Sets the worker's own API key in place of any other.
pub fn present(headers: &mut HeaderMap, worker: &config::Worker) {
    let Some(key) = &worker.api_key else { return };
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", key.expose())) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        headers.remove(X_API_KEY);
    }
}

/// Pins a request to the selected rank, overriding the client's choice. Without a rank, the client's headers stay.
pub fn pin(headers: &mut HeaderMap, rank: Option<u32>) {
    if let Some(rank) = rank {
        headers.insert(VLLM_RANK, rank.into());
        headers.insert(SGLANG_RANK, rank.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_value_of_each_field_is_found() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("host", "h"),
            ("x-slo-class", "a"),
            ("x-slo-class", "b"),
            ("te", "t"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        let found = first_of(&headers, [&TE, &SESSION, &SLO_CLASS]).map(|value| value?.to_str().ok());
        assert_eq!(found, [Some("t"), None, Some("a")]);
    }

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
    fn what_connection_names_goes_but_not_what_others_rely_on() {
        let mut headers = HeaderMap::new();
        headers.append(
            CONNECTION,
            HeaderValue::from_static("X-A, content-length, authorization"),
        );
        headers.append(
            CONNECTION,
            HeaderValue::from_static("x-b,,bad name, x-forwarded-for"),
        );
        for name in [
            "x-a",
            "x-b",
            "content-length",
            "authorization",
            "x-forwarded-for",
            "trailer",
        ] {
            headers.append(HeaderName::from_static(name), HeaderValue::from_static("1"));
        }
        strip_hop_by_hop(&mut headers);
        let mut left: Vec<_> = headers.keys().map(HeaderName::as_str).collect();
        left.sort_unstable();
        assert_eq!(
            left,
            ["authorization", "content-length", "trailer", "x-forwarded-for"]
        );
    }

    #[test]
    fn that_trailers_are_taken_is_said_anew() {
        for (te, said) in [
            ("trailers", true),
            ("gzip;q=0.5, Trailers", true),
            ("gzip", false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(TE, HeaderValue::from_static(te));
            strip_for_worker(&mut headers);
            assert_eq!(headers.get(TE).is_some_and(|te| te == "trailers"), said, "{te}");
            assert_eq!(
                headers.get(CONNECTION).is_some_and(|named| named == "te"),
                said,
                "{te}"
            );
        }
    }

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter();
        pairs
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect()
    }

    #[test]
    fn the_routers_own_headers_are_nobody_elses() {
        let mut headers = map(&[
            ("x-tailroute-error", "a"),
            ("x-tailroute-anything", "b"),
            ("x-ratelimit-reset-tokens", "c"),
            ("x-request-id", "kept"),
        ]);
        strip_routers_own(&mut headers);
        assert_eq!(headers, map(&[("x-request-id", "kept")]));
    }

    #[test]
    fn trailers_frame_nothing_and_do_not_speak_for_the_router() {
        let mut trailers = map(&[
            ("content-length", "5"),
            ("transfer-encoding", "chunked"),
            ("connection", "x-a"),
            ("x-a", "1"),
            ("trailer", "x-b"),
            ("x-tailroute-worker", "w"),
            ("x-checksum", "kept"),
        ]);
        strip_trailers(&mut trailers);
        assert_eq!(trailers, map(&[("x-checksum", "kept")]));
    }
}
