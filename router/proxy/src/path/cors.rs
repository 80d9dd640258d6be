//! Requests of web pages of other origins (the Fetch standard, "CORS protocol").
//!
//! `http.cors_origins` decides for every response, relayed or not: workers' own CORS headers are replaced, since a
//! worker does not see which pages the router serves. A preflight is answered here, without a key, because browsers
//! send none with it. Requests without `Origin` are not changed.

use config::ANY_ORIGIN;
use http::header::{
    ACCESS_CONTROL_ALLOW_CREDENTIALS, ACCESS_CONTROL_ALLOW_HEADERS, ACCESS_CONTROL_ALLOW_METHODS,
    ACCESS_CONTROL_ALLOW_ORIGIN, ACCESS_CONTROL_EXPOSE_HEADERS, ACCESS_CONTROL_MAX_AGE,
    ACCESS_CONTROL_REQUEST_HEADERS, ACCESS_CONTROL_REQUEST_METHOD, ORIGIN, VARY,
};
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode};

use tailroute_http::body::{self, Body};

const METHODS: &str = "GET, HEAD, POST, PUT, PATCH, DELETE";
/// Seconds for which browsers remember the answer to a preflight.
const MAX_AGE: &str = "600";
/// Response headers that pages may read, where a wildcard does not cover them.
const EXPOSED: &str = "retry-after, server-timing, x-request-id, x-ratelimit-limit-requests, x-ratelimit-limit-tokens, \
     x-ratelimit-remaining-requests, x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, \
     x-ratelimit-reset-tokens, x-tailroute-decision, x-tailroute-error, x-tailroute-explain, x-tailroute-worker";
const PREFIX: &str = "access-control-";

/// Returns whether a browser asks whether a page may send a request.
pub fn is_preflight(head: &Parts) -> bool {
    head.method == Method::OPTIONS
        && head.headers.contains_key(ORIGIN)
        && head.headers.contains_key(ACCESS_CONTROL_REQUEST_METHOD)
}

/// Returns whether pages of this origin may use the API.
pub fn is_allowed(origins: &[String], origin: &HeaderValue) -> bool {
    origins
        .iter()
        .any(|allowed| allowed == ANY_ORIGIN || origin == allowed.as_str())
}

/// Answers a preflight.
pub fn preflight(origins: &[String], asked: &HeaderMap) -> Response<Body> {
    let mut response = Response::new(body::full(bytes::Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let headers = response.headers_mut();
    if let Some(origin) = asked.get(ORIGIN) {
        mark(origins, origin, headers);
    }
    if headers.contains_key(ACCESS_CONTROL_ALLOW_ORIGIN) {
        headers.insert(ACCESS_CONTROL_ALLOW_METHODS, HeaderValue::from_static(METHODS));
        headers.insert(ACCESS_CONTROL_MAX_AGE, HeaderValue::from_static(MAX_AGE));
        // Repeated, because a wildcard does not cover `Authorization`.
        for names in asked.get_all(ACCESS_CONTROL_REQUEST_HEADERS) {
            headers.append(ACCESS_CONTROL_ALLOW_HEADERS, names.clone());
        }
    }
    response
}

/// Sets the headers by which a browser decides whether a page of this origin may read the response.
pub fn mark(origins: &[String], origin: &HeaderValue, response: &mut HeaderMap) {
    let exposed = response.remove(ACCESS_CONTROL_EXPOSE_HEADERS);
    let foreign = response.keys().filter(|name| name.as_str().starts_with(PREFIX));
    for name in foreign.cloned().collect::<Vec<HeaderName>>() {
        response.remove(name);
    }
    if origins.iter().any(|allowed| allowed == ANY_ORIGIN) {
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, HeaderValue::from_static(ANY_ORIGIN));
        response.insert(
            ACCESS_CONTROL_EXPOSE_HEADERS,
            HeaderValue::from_static(ANY_ORIGIN),
        );
        return;
    }
    response.append(VARY, HeaderValue::from_static("origin"));
    if is_allowed(origins, origin) {
        response.insert(ACCESS_CONTROL_ALLOW_ORIGIN, origin.clone());
        response.insert(ACCESS_CONTROL_ALLOW_CREDENTIALS, HeaderValue::from_static("true"));
        response.insert(ACCESS_CONTROL_EXPOSE_HEADERS, HeaderValue::from_static(EXPOSED));
        if let Some(exposed) = exposed {
            response.append(ACCESS_CONTROL_EXPOSE_HEADERS, exposed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origins(list: &[&str]) -> Vec<String> {
        list.iter().map(|origin| (*origin).to_owned()).collect()
    }

    fn get<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Vec<&'a str> {
        headers
            .get_all(name)
            .iter()
            .map(|value| value.to_str().unwrap())
            .collect()
    }

    /// Headers of a worker that allows another page.
    fn workers() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("access-control-allow-origin", "https://engine.example"),
            ("access-control-allow-credentials", "true"),
            ("access-control-expose-headers", "x-engine"),
            ("access-control-max-age", "5"),
            ("content-type", "text/plain"),
        ] {
            headers.insert(name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn the_setting_decides_for_every_response() {
        let page = HeaderValue::from_static("https://page.example");
        for (list, origin, credentials, exposed) in [
            (&["*"][..], &["*"][..], &[][..], 1),
            (&["https://page.example"], &["https://page.example"], &["true"], 2),
            (&["https://page.example:444"], &[], &[], 0),
            (&[], &[], &[], 0),
        ] {
            let mut headers = workers();
            mark(&origins(list), &page, &mut headers);
            assert_eq!(get(&headers, &ACCESS_CONTROL_ALLOW_ORIGIN), origin, "{list:?}");
            assert_eq!(
                get(&headers, &ACCESS_CONTROL_ALLOW_CREDENTIALS),
                credentials,
                "{list:?}"
            );
            assert_eq!(
                get(&headers, &ACCESS_CONTROL_EXPOSE_HEADERS).len(),
                exposed,
                "{list:?}"
            );
            assert_eq!(get(&headers, &VARY).is_empty(), list == ["*"], "{list:?}");
            assert!(!headers.contains_key(ACCESS_CONTROL_MAX_AGE) && headers.contains_key("content-type"));
        }
    }

    #[test]
    fn a_preflight_of_an_allowed_page_repeats_the_requested_headers() {
        let mut asked = HeaderMap::new();
        asked.insert(ORIGIN, HeaderValue::from_static("https://page.example"));
        let names = HeaderValue::from_static("authorization, x-a");
        asked.insert(ACCESS_CONTROL_REQUEST_HEADERS, names);
        for (list, allowed) in [
            (&["*"][..], &["authorization, x-a"][..]),
            (&["https://page.example"], &["authorization, x-a"]),
            (&["https://other.example"], &[]),
            (&[], &[]),
        ] {
            let response = preflight(&origins(list), &asked);
            assert_eq!(response.status(), StatusCode::NO_CONTENT);
            let headers = response.headers();
            assert_eq!(get(headers, &ACCESS_CONTROL_ALLOW_HEADERS), allowed, "{list:?}");
            assert_eq!(
                headers.contains_key(ACCESS_CONTROL_ALLOW_METHODS),
                !allowed.is_empty()
            );
        }
    }
}
