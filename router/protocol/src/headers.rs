//! Which headers travel, and which end here (RFC 9110, section 7.6.1).

use http::header::{
    AUTHORIZATION, CONNECTION, CONTENT_LENGTH, EXPECT, HOST, HeaderMap, HeaderName, HeaderValue,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};

/// Where Anthropic's clients put their key.
pub const X_API_KEY: &str = "x-api-key";

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

/// `1` or `true`: the client asks for the terms of the choice. On an answer: these terms.
pub const EXPLAIN: HeaderName = HeaderName::from_static("x-tailroute-explain");

/// The policy or the weights that a client asks for. Ends at the router.
pub const POLICY: HeaderName = HeaderName::from_static("x-tailroute-policy");

/// What the names of the router's own headers begin with: which worker answered and why, and what a key may still use.
/// On a worker's answer they would speak for the router, and on a client's request they would speak for it to a worker.
const ROUTERS_OWN: [&str; 2] = ["x-tailroute-", "x-ratelimit-"];

static HOP_BY_HOP: [HeaderName; 8] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];

/// Fields that no `Connection` field may name away: how the rest is read hangs on them, and who asks, and for what.
/// A client that could remove them would speak for a proxy before this router, or change what the worker is asked.
static NEVER_NAMED: [HeaderName; 6] = [
    http::header::CONTENT_LENGTH,
    http::header::CONTENT_TYPE,
    http::header::CONTENT_ENCODING,
    http::header::AUTHORIZATION,
    http::header::FORWARDED,
    HeaderName::from_static("x-forwarded-for"),
];

/// Whether only the router says this to clients and workers.
#[must_use]
pub fn is_routers_own(name: &str) -> bool {
    ROUTERS_OWN.iter().any(|prefix| name.starts_with(prefix))
}

/// Removes the router's own headers from a message of somebody else.
pub fn strip_routers_own(headers: &mut HeaderMap) {
    remove_where(headers, |name| is_routers_own(name.as_str()));
}

/// Removes the fields whose names match. One pass over the few fields of a message costs less than a lookup of each name.
pub fn remove_where(headers: &mut HeaderMap, matches: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| matches(name)).cloned() {
        headers.remove(name);
    }
}

/// Removes from a worker's trailers what a head must not say there (RFC 9110, section 6.5.1), or only the router says.
pub fn strip_trailers(trailers: &mut HeaderMap) {
    strip_hop_by_hop(trailers);
    trailers.remove(CONTENT_LENGTH);
    trailers.remove(TRAILER);
    strip_routers_own(trailers);
}

/// Removes what concerns one connection only: the fixed list and what `Connection` names. `Trailer` is not of it: it
/// announces what comes after the body, and travels with it.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    let named: Vec<HeaderName> = headers
        .get_all(CONNECTION)
        .iter()
        .filter_map(|value| value.to_str().ok())
        .flat_map(|value| value.split(','))
        .filter_map(|name| name.trim().parse().ok())
        .filter(|name| !NEVER_NAMED.contains(name))
        .collect();
    remove_where(headers, |name| HOP_BY_HOP.contains(name) || named.contains(name));
}

/// Removes what the router has already dealt with, or must not take from a client.
pub fn strip_for_worker(headers: &mut HeaderMap) {
    let takes_trailers = headers.get_all(TE).iter().any(names_trailers);
    strip_hop_by_hop(headers);
    if takes_trailers {
        // Said anew: it holds for one connection (RFC 9110, section 10.1.4).
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    // The body is already here, without its trailers, and the host is the worker's.
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

/// A key that the router has checked ends here: what opens the router is nobody else's to see. Where the router has no
/// keys, the client's are for the worker.
fn credentials(headers: &mut HeaderMap, are_ours: bool) {
    if are_ours {
        headers.remove(AUTHORIZATION);
        headers.remove(X_API_KEY);
    }
}

/// A request's headers as this worker gets them.
#[must_use]
pub fn addressed(headers: &HeaderMap, keys_are_ours: bool, worker: &config::Worker) -> HeaderMap {
    let mut headers = headers.clone();
    credentials(&mut headers, keys_are_ours);
    strip_routers_own(&mut headers);
    present(&mut headers, worker);
    pin(&mut headers, worker.rank);
    headers
}

/// Shows a worker the key that it asks for, in place of any other.
pub fn present(headers: &mut HeaderMap, worker: &config::Worker) {
    let Some(key) = &worker.api_key else { return };
    if let Ok(mut value) = HeaderValue::from_str(&format!("Bearer {}", key.expose())) {
        value.set_sensitive(true);
        headers.insert(AUTHORIZATION, value);
        headers.remove(X_API_KEY);
    }
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
