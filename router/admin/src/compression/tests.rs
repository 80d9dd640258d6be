use std::io::Read as _;
use std::sync::Arc;
use std::time::Duration;

use axum::http::{HeaderName, Method, Request};
use axum::routing::{get, put};
use bytes::Bytes;
use flate2::read::GzDecoder;
use futures_util::stream;
use http_body_util::BodyExt as _;

use super::*;
use crate::serve::respond;

/// Timeout for a busy machine.
const LONG: Duration = Duration::from_secs(60);
const DOCUMENT: &str = "/admin/v1/openapi.json";

async fn send(router: &Router, method: Method, path: &str, fields: &[(HeaderName, &str)]) -> Response {
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, "localhost");
    for (name, value) in fields {
        request = request.header(name, *value);
    }
    respond(router.clone(), request.body(Body::empty()).unwrap()).await
}

async fn fetch(router: &Router, path: &str, accepted: &str) -> Response {
    send(router, Method::GET, path, &[(header::ACCEPT_ENCODING, accepted)]).await
}

async fn body(response: Response) -> Bytes {
    response.into_body().collect().await.unwrap().to_bytes()
}

fn decoded(bytes: &[u8]) -> Vec<u8> {
    let mut text = Vec::new();
    GzDecoder::new(bytes).read_to_end(&mut text).unwrap();
    text
}

fn field(response: &Response, name: HeaderName) -> Option<&str> {
    response.headers().get(name).map(|value| value.to_str().unwrap())
}

fn admin() -> Arc<crate::Admin> {
    crate::serve::tests::admin_of_one_worker()
}

#[tokio::test]
async fn pages_and_documents_are_the_same_once_decoded() {
    let router = crate::router(&admin());
    for path in ["/console/", "/console/main.js", DOCUMENT] {
        let plain = fetch(&router, path, "identity").await;
        assert_eq!(field(&plain, header::CONTENT_ENCODING), None, "{path}");
        let gzipped = fetch(&router, path, "gzip, deflate, br, zstd").await;
        for response in [&plain, &gzipped] {
            assert_eq!(response.status(), 200, "{path}");
            assert_eq!(field(response, header::VARY), Some("accept-encoding"), "{path}");
        }
        assert_eq!(field(&gzipped, header::CONTENT_ENCODING), Some("gzip"), "{path}");
        for name in [header::CONTENT_TYPE, header::CACHE_CONTROL, header::ETAG] {
            assert_eq!(field(&plain, name.clone()), field(&gzipped, name), "{path}");
        }
        let length: usize = field(&gzipped, header::CONTENT_LENGTH).unwrap().parse().unwrap();
        let (plain, gzipped) = (body(plain).await, body(gzipped).await);
        assert_eq!(gzipped.len(), length, "{path}");
        assert!(length < plain.len(), "{path}");
        assert!(decoded(&gzipped) == plain, "{path}");
    }
}

#[tokio::test]
async fn head_has_the_fields_of_get() {
    let router = crate::router(&admin());
    let accepts = [(header::ACCEPT_ENCODING, "gzip")];
    for path in ["/console/", DOCUMENT] {
        let get = send(&router, Method::GET, path, &accepts).await;
        let head = send(&router, Method::HEAD, path, &accepts).await;
        assert_eq!(head.headers(), get.headers(), "{path}");
        assert!(body(head).await.is_empty(), "{path}");
    }
}

#[tokio::test]
async fn a_page_is_not_sent_again_in_whichever_form_it_is_known() {
    let router = crate::router(&admin());
    let page = fetch(&router, "/console/main.js", "gzip").await;
    let tag = field(&page, header::ETAG).unwrap();
    assert!(tag.starts_with("W/"), "one tag for two forms: {tag}");
    for accepted in ["gzip", "identity"] {
        let fields = [(header::IF_NONE_MATCH, tag), (header::ACCEPT_ENCODING, accepted)];
        let again = send(&router, Method::GET, "/console/main.js", &fields).await;
        assert_eq!(again.status(), 304, "{accepted}");
        assert_eq!(field(&again, header::VARY), Some("accept-encoding"));
        assert_eq!(field(&again, header::CONTENT_ENCODING), None);
        assert!(body(again).await.is_empty());
    }
}

#[tokio::test]
async fn events_are_sent_at_once_and_plain() {
    let router = crate::router(&admin());
    let response = fetch(&router, "/admin/v1/events", "gzip").await;
    assert_eq!(field(&response, header::CONTENT_TYPE), Some("text/event-stream"));
    assert_eq!(field(&response, header::CONTENT_ENCODING), None);
    let mut events = response.into_body();
    let first = tokio::time::timeout(LONG, events.frame()).await.unwrap();
    let first = first.unwrap().unwrap().into_data().unwrap();
    assert_eq!(first, ": listening\n\n", "while the stream goes on");
}

#[tokio::test]
async fn a_stream_of_any_type_is_sent_as_it_comes() {
    let part = || Ok::<_, std::io::Error>(Bytes::from(vec![b'x'; 4096]));
    let stream = move || async move { Body::from_stream(stream::iter([part()])) };
    let router = compressed(Router::new().route("/", get(stream)));
    let response = fetch(&router, "/", "gzip").await;
    assert_eq!(field(&response, header::CONTENT_ENCODING), None);
    assert_eq!(body(response).await, vec![b'x'; 4096]);
}

#[tokio::test]
async fn a_response_with_a_strong_tag_is_plain() {
    for (tag, coding) in [("\"1\"", None), ("W/\"1\"", Some("gzip"))] {
        let tagged = get(move || async move { ([(header::ETAG, tag)], "x".repeat(4096)) });
        let router = compressed(Router::new().route("/", tagged));
        let response = fetch(&router, "/", "gzip").await;
        assert_eq!(field(&response, header::CONTENT_ENCODING), coding, "{tag}");
    }
    let policy = fetch(&crate::router(&admin()), "/admin/v1/policy", "gzip").await;
    assert!(field(&policy, header::ETAG).unwrap().starts_with('"'));
}

#[tokio::test]
async fn a_short_response_is_plain() {
    for (length, coding) in [(MIN_BYTES - 1, None), (MIN_BYTES, Some("gzip"))] {
        let text = get(move || async move { "x".repeat(length as usize) });
        let router = compressed(Router::new().route("/", text));
        let response = fetch(&router, "/", "gzip").await;
        assert_eq!(field(&response, header::CONTENT_ENCODING), coding, "{length}");
    }
}

#[tokio::test]
async fn probes_and_metrics_are_plain() {
    let router = crate::router(&admin());
    for path in ["/livez", "/metrics"] {
        let response = fetch(&router, path, "gzip").await;
        assert_eq!(
            (response.status().as_u16(), field(&response, header::VARY)),
            (200, None)
        );
        assert_eq!(field(&response, header::CONTENT_ENCODING), None, "{path}");
    }
}

#[tokio::test]
async fn a_client_that_accepts_no_form_gets_the_outcome_of_its_operation() {
    let routes = Router::new().route("/", put(|| async { (StatusCode::CREATED, "changed") }));
    let router = compressed(routes);
    for accepted in ["identity;q=0", "*;q=0", "br, identity;q=0"] {
        let fields = [(header::ACCEPT_ENCODING, accepted)];
        let response = send(&router, Method::PUT, "/", &fields).await;
        assert_eq!(response.status(), StatusCode::CREATED, "{accepted}");
        assert_eq!(body(response).await, "changed");
    }
}
