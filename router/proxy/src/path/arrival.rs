//! Prepares the heads of requests and responses as a proxy must (`docs/http.md`, section Headers), independent of their
//! content. Runs once, in place, before any other stage.

pub mod forwarded;
mod own_time;

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use http::header::{HOST, HeaderName, VIA};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Request, Response};

pub use self::forwarded::Peer;
use self::own_time::own_time;
use super::{ask, upgrade};
use crate::Proxy;
use protocol::error::ERROR_HEADER;
use protocol::headers;
use tailroute_http::via::Via;
use telemetry::context::{self, TraceId};
use telemetry::logs::request::RequestIdentity;
use telemetry::traces::Trace;

/// Header that identifies the request to the client, in the log and to the worker.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const SERVER_TIMING: HeaderName = HeaderName::from_static("server-timing");

const MAX_REQUEST_ID: usize = 128;

/// State kept from the request head until the response leaves.
#[derive(Debug)]
pub struct Arrival {
    id: HeaderValue,
    at: Instant,
    trace: Trace,
    whose: RequestIdentity,
}

impl Arrival {
    /// Prepares a client's request for forwarding.
    pub fn of<B>(proxy: &Proxy, peer: &Peer, request: &mut Request<B>) -> Self {
        let at = Instant::now();
        note_loop(&proxy.state.transport.via, request);
        let via = proxy.state.transport.via.of_request(request.version());
        let host = request.headers().get(HOST).cloned();
        let host = host.or_else(|| HeaderValue::from_str(request.uri().authority()?.as_str()).ok());
        upgrade::note(request);
        ask::take(request);
        let headers = request.headers_mut();
        headers::strip_for_worker(headers);
        peer.tell(proxy.state.config.http.forwarded, host, headers);
        headers.append(VIA, via);
        Self::named(proxy, request, at)
    }

    /// Prepares a request that a gateway reports and proxies itself. The gateway adds the proxy headers.
    pub fn at_gateway<B>(proxy: &Proxy, request: &mut Request<B>) -> Self {
        note_loop(&proxy.state.transport.via, request);
        upgrade::note(request);
        ask::take(request);
        headers::strip_for_worker(request.headers_mut());
        Self::named(proxy, request, Instant::now())
    }

    fn named<B>(proxy: &Proxy, request: &mut Request<B>, at: Instant) -> Self {
        let headers = request.headers_mut();
        let made = proxy.ids.next();
        let mut context = context::settle(headers, made);
        let id = name(headers, made);
        let mut trace = Trace::default();
        if let Some(traces) = &proxy.traces {
            context.sampled |= context.parent.is_none() && traces.is_drawn(context.trace);
            // A trace that begins here has its `traceparent` already, unless it is sampled.
            if context.parent.is_some() || context.sampled {
                headers.insert(context::PARENT, context.parent_of(context.span));
            }
            trace = traces.begin(context, &id, at);
        }
        let whose = RequestIdentity::new(TraceId::of_number(context.trace), id.clone());
        Self { id, at, trace, whose }
    }

    pub fn id(&self) -> &HeaderValue {
        &self.id
    }

    /// Returns the identity by which logs name the request.
    pub fn whose(&self) -> &RequestIdentity {
        &self.whose
    }

    #[must_use]
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    /// Returns the identity by which logs name the request, and its trace.
    #[must_use]
    pub fn told(self) -> (RequestIdentity, Trace) {
        (self.whose, self.trace)
    }

    /// Runs the future that answers the request, and completes the response head.
    pub async fn answer<B>(self, answering: impl Future<Output = Response<B>>) -> Response<B> {
        let (mut response, own) = own_time(answering).await;
        let error = response.headers().get(ERROR_HEADER);
        self.trace.answered(response.status(), error);
        let (took, headers) = (self.at.elapsed(), response.headers_mut());
        if headers.contains_key(&protocol::headers::WORKER) {
            headers.append(VIA, Via::of_response());
        }
        if !headers.contains_key(&REQUEST_ID) {
            headers.insert(REQUEST_ID, self.id);
        }
        if let Ok(timing) = timing(own, took) {
            headers.append(SERVER_TIMING, timing);
        }
        response
    }
}

/// Returns the client's request id if it is valid; else sets the generated one in the headers and returns it.
fn name(headers: &mut HeaderMap, made: context::NewContext) -> HeaderValue {
    let fit = |name: &&HeaderValue| {
        (1..=MAX_REQUEST_ID).contains(&name.len()) && name.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    if let Some(name) = headers.get(&REQUEST_ID).filter(fit) {
        return name.clone();
    }
    let name = made.hex();
    headers.insert(REQUEST_ID, name.clone());
    name
}

/// Marker of a request that has passed this router before.
#[derive(Clone, Copy, Debug)]
struct Looped;

fn note_loop<B>(via: &Via, request: &mut Request<B>) {
    if via.is_in(request.headers()) {
        request.extensions_mut().insert(Looped);
    }
}

/// Returns whether a request has passed this router before.
pub(super) fn is_looped(head: &Parts) -> bool {
    head.extensions.get::<Looped>().is_some()
}

/// Formats `Server-Timing`: the router's own processing time until the response head, and the total time with all
/// waiting.
fn timing(own: Duration, total: Duration) -> Result<HeaderValue, http::header::InvalidHeaderValue> {
    let mut text = String::with_capacity(48);
    let ms = |duration: Duration| (duration.as_micros() / 1000, duration.as_micros() % 1000);
    let ((own, own_rest), (total, total_rest)) = (ms(own), ms(total));
    // Writing to a string cannot fail.
    let _ = write!(
        text,
        "tailroute;dur={own}.{own_rest:03}, total;dur={total}.{total_rest:03}"
    );
    HeaderValue::try_from(text)
}

/// Creates the peer of a connection, which its requests share.
pub fn peer(http: &config::Http, address: std::net::SocketAddr, is_secure: bool) -> Arc<Peer> {
    Arc::new(Peer::new(http, address.ip(), is_secure))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_name_is_kept_if_it_is_fit_to_be_one() {
        let made = context::Ids::new([1, 2]).next();
        for (given, kept) in [
            ("req-7", true),
            ("", false),
            ("two words", false),
            (&"x".repeat(129), false),
        ] {
            let mut headers = HeaderMap::new();
            headers.insert(REQUEST_ID, HeaderValue::from_str(given).unwrap());
            let name = name(&mut headers, made);
            assert_eq!(name == given, kept, "{given}");
            assert_eq!(headers[REQUEST_ID], name);
        }
    }

    #[test]
    fn times_are_told_in_milliseconds() {
        let timing = timing(Duration::from_micros(21), Duration::from_micros(12_345_006)).unwrap();
        assert_eq!(timing, "tailroute;dur=0.021, total;dur=12345.006");
    }
}
