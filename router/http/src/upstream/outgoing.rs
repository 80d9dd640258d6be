//! The fields of a request's head that describe its body and its connection.
//!
//! A worker finds the next request on a connection by what the last one announced, so an announced body that is not
//! sent would swallow the next request. These fields are therefore never copied from a client: both HTTP clients drop
//! them from the head that they are given, and this module writes them according to the body that is sent.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HOST, TE, TRANSFER_ENCODING, UPGRADE};
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use http_body::{Body as HttpBody, SizeHint};

use crate::body::{Body, BodyError, PolledFrame};

/// Fields that describe a connection, or the body that is sent on it.
const WRITTEN_HERE: [&str; 7] = [
    "connection",
    "content-length",
    "expect",
    "host",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

/// Extension of a request after which its connection is closed.
#[derive(Clone, Copy, Debug)]
pub struct LastOnConnection;

/// Returns the head of `request` to `host`, with the length of its body.
pub(super) fn write(request: &Request<Bytes>, host: &HeaderValue) -> Vec<u8> {
    let target = request.uri().path_and_query();
    let target = target.map_or("/", |target| target.as_str());
    let mut head = Vec::with_capacity(1024);
    for part in [request.method().as_str(), " ", target, " HTTP/1.1\r\n"] {
        head.extend_from_slice(part.as_bytes());
    }
    field(&mut head, &HOST, host);
    for (name, value) in request.headers() {
        if !WRITTEN_HERE.contains(&name.as_str()) {
            field(&mut head, name, value);
        }
    }
    field(
        &mut head,
        &CONTENT_LENGTH,
        &HeaderValue::from(request.body().len()),
    );
    head.extend_from_slice(b"\r\n");
    head
}

fn field(head: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for part in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        head.extend_from_slice(part);
    }
}

/// Returns the request as hyper's client sends it, with a head that announces exactly its body, and a flag that is set
/// once all of the body has been handed over.
pub(super) fn announced(request: Request<Body>) -> (Request<Handed>, Arc<AtomicBool>) {
    let (mut head, body) = request.into_parts();
    strip(&mut head.headers);
    if head.extensions.get::<LastOnConnection>().is_some() {
        head.headers.insert(CONNECTION, HeaderValue::from_static("close"));
    } else if head.headers.contains_key(TE) {
        // `TE` applies to one connection (RFC 9110, section 10.1.4).
        head.headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    if body.is_end_stream() {
        // Where a body has no meaning, none is announced (RFC 9110, section 8.6).
        if matches!(head.method, Method::POST | Method::PUT | Method::PATCH) {
            head.headers.insert(CONTENT_LENGTH, 0.into());
        }
    } else if let Some(length) = body.size_hint().exact() {
        head.headers.insert(CONTENT_LENGTH, length.into());
    } else {
        // For some methods, hyper would leave the body out.
        head.headers
            .insert(TRANSFER_ENCODING, HeaderValue::from_static("chunked"));
    }
    let is_whole = Arc::new(AtomicBool::new(body.is_end_stream()));
    let body = Handed {
        body,
        is_whole: Arc::clone(&is_whole),
    };
    (Request::from_parts(head, body), is_whole)
}

/// Turns a head into an HTTP/1.1 request for an upgrade to `protocol`, which has no body.
pub(super) fn upgrading(head: &mut Request<()>, protocol: HeaderValue) {
    let host = host(head.uri());
    let target = head.uri().path_and_query().cloned();
    *head.uri_mut() = target.map_or_else(Uri::default, Uri::from);
    let headers = head.headers_mut();
    strip(headers);
    headers.remove(TE);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, protocol);
    headers.extend(host.map(|host| (HOST, host)));
}

fn strip(headers: &mut HeaderMap) {
    for name in WRITTEN_HERE {
        headers.remove(name);
    }
}

/// Returns the authority of a URL without user name and password.
pub(super) fn host(url: &Uri) -> Option<HeaderValue> {
    let authority = url.authority()?.as_str();
    let (_, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    HeaderValue::from_str(host).ok()
}

/// Body of a request, which records when all of it has been handed over.
pub(super) struct Handed {
    body: Body,
    is_whole: Arc<AtomicBool>,
}

impl HttpBody for Handed {
    type Data = Bytes;
    type Error = BodyError;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<PolledFrame> {
        let handed = self.get_mut();
        let polled = Pin::new(&mut handed.body).poll_frame(cx);
        let is_last = match &polled {
            Poll::Ready(None) => true,
            Poll::Ready(Some(Ok(_))) => handed.body.is_end_stream(),
            Poll::Ready(Some(Err(_))) | Poll::Pending => false,
        };
        if is_last {
            handed.is_whole.store(true, Ordering::Release);
        }
        polled
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::Empty;

    use super::*;
    use crate::body::{full, streaming};

    /// Fields of a client's request that contradict every body below.
    fn contradicting() -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("content-length", "99"),
            ("content-length", "7"),
            ("transfer-encoding", "gzip, chunked"),
            ("trailer", "x-t"),
            ("expect", "100-continue"),
            ("upgrade", "h2c"),
            ("connection", "upgrade, close"),
            ("host", "elsewhere"),
            ("x-a", "1"),
        ] {
            headers.append(name, HeaderValue::from_static(value));
        }
        headers
    }

    fn fields(headers: &HeaderMap) -> Vec<(String, String)> {
        let mut fields: Vec<_> = headers
            .iter()
            .map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()))
            .collect();
        fields.sort();
        fields
    }

    #[test]
    fn a_request_in_memory_announces_its_own_length() {
        let mut request = Request::post("http://w:1/v1/chat/completions?x=1")
            .body(Bytes::from_static(b"{}"))
            .unwrap();
        *request.headers_mut() = contradicting();
        request.headers_mut().append("x-a", HeaderValue::from_static("2"));
        let head = String::from_utf8(write(&request, &HeaderValue::from_static("w:1"))).unwrap();
        assert_eq!(
            head,
            "POST /v1/chat/completions?x=1 HTTP/1.1\r\nhost: w:1\r\nx-a: 1\r\nx-a: 2\r\ncontent-length: 2\r\n\r\n"
        );
    }

    #[test]
    fn every_method_announces_the_body_that_it_sends_and_no_other() {
        let endless = || streaming(Endless);
        let sized = || full(Bytes::from_static(b"abc"));
        let none: [fn() -> Body; 2] = [|| full(Bytes::new()), || streaming(Empty::new())];
        for method in [
            "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "QUERY",
        ] {
            let of = |body: Body| {
                let mut request = Request::builder().method(method).uri("/").body(body).unwrap();
                *request.headers_mut() = contradicting();
                fields(announced(request).0.headers())
            };
            let with = |field: Option<(&str, &str)>| {
                let own = field.map(|(name, value)| (name.to_owned(), value.to_owned()));
                let mut all: Vec<_> = own.into_iter().collect();
                all.push(("x-a".to_owned(), "1".to_owned()));
                all
            };
            let has_meaning = ["POST", "PUT", "PATCH"].contains(&method);
            for none in none {
                let length = has_meaning.then_some(("content-length", "0"));
                assert_eq!(of(none()), with(length), "{method}");
            }
            assert_eq!(of(sized()), with(Some(("content-length", "3"))), "{method}");
            assert_eq!(
                of(endless()),
                with(Some(("transfer-encoding", "chunked"))),
                "{method}"
            );
        }
    }

    /// Returns a body without a known length.
    struct Endless;

    impl HttpBody for Endless {
        type Data = Bytes;
        type Error = BodyError;

        fn poll_frame(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<PolledFrame> {
            Poll::Pending
        }
    }

    #[test]
    fn an_upgrade_announces_no_body() {
        let mut head = Request::get("http://u:p@w:1/v1/realtime?model=m")
            .body(())
            .unwrap();
        *head.headers_mut() = contradicting();
        head.headers_mut()
            .insert(TE, HeaderValue::from_static("trailers"));
        upgrading(&mut head, HeaderValue::from_static("websocket"));
        assert_eq!(head.uri(), "/v1/realtime?model=m");
        let expected = [
            ("connection", "upgrade"),
            ("host", "w:1"),
            ("upgrade", "websocket"),
            ("x-a", "1"),
        ];
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(fields(head.headers()), expected);
    }

    #[tokio::test]
    async fn a_body_is_whole_once_its_last_frame_was_handed_over() {
        use http_body_util::BodyExt as _;
        let (request, is_whole) = announced(Request::new(full(Bytes::from_static(b"abc"))));
        assert!(!is_whole.load(Ordering::Acquire));
        let mut body = request.into_body();
        assert!(body.frame().await.unwrap().is_ok());
        assert!(is_whole.load(Ordering::Acquire));
        let (_, is_whole) = announced(Request::new(full(Bytes::new())));
        assert!(is_whole.load(Ordering::Acquire));
    }
}
