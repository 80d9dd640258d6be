//! WebSocket tunnels (RFC 6455) for realtime endpoints: after the handshake, bytes are relayed both ways.
//!
//! Clients ask with `Upgrade` in HTTP/1.1 or extended `CONNECT` in HTTP/2 (RFC 8441); workers are asked with `Upgrade`.
//! `docs/http.md` says when a tunnel ends; Close frames ([`frames`]) are sent at frame boundaries. Client frames with
//! fields that [steer](protocol::steering) an engine end it; to see them, no compressing extension is negotiated.

mod frames;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bytes::Bytes;
use http::header::{CONNECTION, CONTENT_LENGTH, HeaderName, ORIGIN, UPGRADE};
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, Version};
use http_body::Body as _;
use hyper::body::Incoming;
use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tracing::debug;
use xxhash_rust::xxh3::xxh3_128_with_seed;

use self::frames::Frames;
use super::context::RequestContext;
use super::forward::judged::Judged;
use super::forward::{Wanted, mark, note, pass};
use super::retry::{Charged, Failure};
use super::upgrade::{WEBSOCKET, is_extended_connect, names_websocket};
use super::{cors, named};
use crate::Proxy;
use protocol::error::ApiError;
use protocol::headers;
use state::Routing;
use tailroute_http::body::{self, Body};
use telemetry::context::Ids;

const KEY: HeaderName = HeaderName::from_static("sec-websocket-key");
const VERSION: HeaderName = HeaderName::from_static("sec-websocket-version");
const ACCEPT: HeaderName = HeaderName::from_static("sec-websocket-accept");
const EXTENSIONS: HeaderName = HeaderName::from_static("sec-websocket-extensions");

const BUFFER_BYTES: usize = 16 * 1024;
/// Time limit for one side to close after the other.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// Time limit to deliver both Close frames: shorter than the drain's wait for requests that it cut.
const GOODBYE: Duration = Duration::from_millis(700);

/// Opens a tunnel. Fails if no worker is ready or the chosen one does not answer.
pub(super) async fn open(
    context: &RequestContext<'_>,
    mut request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let RequestContext {
        proxy,
        timer,
        deadline,
        ..
    } = *context;
    let state = &proxy.state;
    let is_h2 = is_extended_connect(request.method(), request.extensions());
    // With HTTP/2, the data after the head is the tunnel's, so that a length is not of a body.
    if !request.body().is_end_stream() || (is_h2 && request.headers().contains_key(CONTENT_LENGTH)) {
        return Err(ApiError::UpgradeWithBody);
    }
    let permit = context.permit()?;
    let client = hyper::upgrade::on(&mut request);
    let (head, _) = request.into_parts();
    let origins = &state.config.http.cors_origins;
    if let Some(origin) = head.headers.get(ORIGIN)
        && !cors::is_allowed(origins, origin)
    {
        return Err(ApiError::OriginNotAllowed);
    }
    let model = named::tunnel(&state.routing, head.uri.query())?;
    if let Some(model) = &model {
        super::models::check_again(&state.routing, model).await?;
    }
    let wanted = Wanted {
        model,
        ..Wanted::default()
    };
    let mut in_flight = pass::some_worker(&state.routing, &head.headers, &[], &wanted)
        .ok_or_else(|| state.routing.no_worker_ready())?;
    let worker = Arc::clone(in_flight.worker());
    let asked = ask(proxy, &head, is_h2, &worker)?;
    let limit = state.routing.live().limits.first_byte_timeout;
    let sent = Instant::now();
    let until = sent + limit;
    let own = deadline.head().filter(|own| *own <= until);
    let asking = state
        .transport
        .client
        .upgrade(asked, HeaderValue::from_static(WEBSOCKET));
    let mut response = match timeout_at(own.unwrap_or(until), asking).await {
        Ok(Ok(response)) => response,
        Ok(Err(error)) => {
            let failure = Failure::of(&error);
            note(state, &worker, &error, failure);
            if failure.is_the_workers() {
                state.failed(&mut in_flight, None);
            }
            return Err(ApiError::WorkerFailed);
        }
        Err(_) if own.is_some() => return Err(deadline.exceeded()),
        Err(_) => {
            let error = format_args!("no response within {} s", limit.as_secs_f64());
            state
                .routing
                .log_failure(&worker, &error, "the worker did not answer the upgrade");
            state.failed(&mut in_flight, None);
            return Err(ApiError::WorkerTimeout(limit));
        }
    };
    let is_open = response.status() == StatusCode::SWITCHING_PROTOCOLS;
    // A 2xx answer to extended CONNECT would open the tunnel that the worker has not opened (RFC 8441, section 5).
    let is_unfit = if is_open {
        !names_websocket(response.headers())
    } else {
        is_h2 && response.status().is_success()
    };
    if is_unfit {
        state
            .routing
            .log_failure(&worker, &response.status(), "no WebSocket");
        state.failed(&mut in_flight, None);
        return Err(ApiError::WorkerFailed);
    }
    if !is_open {
        let judged = Judged::of(response).await;
        judged.account(state, &mut in_flight, &Charged::default());
        return Ok(pass::answered(context, judged, in_flight, permit, sent));
    }
    if in_flight.answered(state.routing.clock.now()) {
        state.operations.breaker_closed(&worker);
    }
    let upstream = hyper::upgrade::on(&mut response);
    let opened = opened(&state.routing, response, &worker, is_h2);
    let proxy = Arc::clone(proxy);
    tokio::spawn(async move {
        let ended = join(&proxy, client, upstream).await;
        match &ended {
            Ok(how) => debug!(worker = in_flight.worker().name(), how, "tunnel ended"),
            Err(error) => debug!(worker = in_flight.worker().name(), %error, "tunnel broke"),
        }
        let outcome = if ended.is_ok() { "ok" } else { "broken" };
        timer.record(&proxy.state.routing, outcome);
        drop((in_flight, permit));
    });
    Ok(opened)
}

fn opened<B>(
    routing: &Routing,
    response: Response<B>,
    worker: &fleet::Worker,
    is_h2: bool,
) -> Response<Body> {
    let (mut parts, _) = response.into_parts();
    mark(routing, &mut parts.headers, worker, None);
    if is_h2 {
        parts.status = StatusCode::OK;
        parts.headers.remove(ACCEPT);
    } else {
        switched(&mut parts.headers);
    }
    parts.version = Version::HTTP_11;
    Response::from_parts(parts, body::full(Bytes::new()))
}

fn switched(headers: &mut HeaderMap) {
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
}

/// Builds the worker's request, always HTTP/1.1.
fn ask(
    proxy: &Proxy,
    head: &http::request::Parts,
    is_h2: bool,
    worker: &fleet::Worker,
) -> Result<Request<()>, ApiError> {
    let mut headers = headers::addressed(&head.headers, proxy.admission.keys().is_required(), &worker.spec);
    if !proxy.state.config.http.transfer_fields {
        headers.remove(EXTENSIONS);
    }
    if is_h2 {
        // RFC 8441 has no key, but the worker requires one. Its answer to the key is not relayed.
        headers.insert(KEY, key(&proxy.ids));
        headers.entry(VERSION).or_insert(HeaderValue::from_static("13"));
    }
    let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
    let mut request = Request::new(());
    *request.uri_mut() = worker.uri(target).map_err(|_| ApiError::NotFound)?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// Returns sixteen bytes in base64. They need not be secret: the key protects browsers (RFC 6455, section 10.3).
fn key(ids: &Ids) -> HeaderValue {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let bits = xxh3_128_with_seed(ids.next().hex().as_bytes(), 1);
    let mut text: String = (0..22)
        .map(|digit| {
            // 21 digits of six bits and one of two bits.
            let six = if digit < 21 {
                bits >> (122 - 6 * digit)
            } else {
                bits << 4
            };
            char::from(DIGITS[(six & 63) as usize])
        })
        .collect();
    text.push_str("==");
    HeaderValue::try_from(text).unwrap_or(HeaderValue::from_static("dGFpbHJvdXRlLXR1bm5lbA=="))
}

/// Relays bytes both ways until the tunnel ends. Returns the reason.
async fn join(proxy: &Proxy, client: OnUpgrade, worker: OnUpgrade) -> Result<&'static str, io::Error> {
    let both = async { tokio::try_join!(client, worker) };
    let (client, worker) = tokio::time::timeout(LAST_WORDS, both)
        .await
        .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
        .map_err(io::Error::other)?;
    let http = &proxy.state.config.http;
    let client_frames = if http.transfer_fields {
        Frames::default()
    } else {
        Frames::looked_at()
    };
    relay(
        TokioIo::new(client),
        client_frames,
        TokioIo::new(worker),
        http.tunnel_idle_timeout,
        proxy.when_cut_off(),
    )
    .await
}

/// The time of the last activity, in milliseconds since the tunnel began, and the end signal.
struct Activity {
    began: Instant,
    last_ms: AtomicU64,
    ending: watch::Sender<bool>,
}

impl Activity {
    fn now(&self) {
        self.last_ms
            .store(self.began.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    async fn idle(&self, limit: Duration) {
        loop {
            let quiet = self.began + Duration::from_millis(self.last_ms.load(Ordering::Relaxed)) + limit;
            if quiet <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(quiet).await;
        }
    }
}

async fn relay(
    client: impl AsyncRead + AsyncWrite,
    client_frames: Frames,
    worker: impl AsyncRead + AsyncWrite,
    limit: Duration,
    cut: impl Future<Output = ()>,
) -> Result<&'static str, io::Error> {
    let activity = Activity {
        began: Instant::now(),
        last_ms: AtomicU64::new(0),
        ending: watch::Sender::new(false),
    };
    let (from_client, to_client) = tokio::io::split(client);
    let (from_worker, to_worker) = tokio::io::split(worker);
    let up = pump(
        from_client,
        to_worker,
        &activity,
        client_frames,
        &frames::GOODBYE_TO_WORKER,
    );
    let down = pump(
        from_worker,
        to_client,
        &activity,
        Frames::default(),
        &frames::GOODBYE_TO_CLIENT,
    );
    tokio::pin!(up, down, cut);
    let why = tokio::select! {
        ended = &mut up => {
            ended?;
            let _ = tokio::time::timeout(LAST_WORDS, down).await;
            return Ok("by the client");
        }
        ended = &mut down => {
            ended?;
            let _ = tokio::time::timeout(LAST_WORDS, up).await;
            return Ok("by the worker");
        }
        () = activity.idle(limit) => "silent for too long",
        () = &mut cut => "cut",
    };
    activity.ending.send_replace(true);
    // A side that does not read, or does not finish its frame, is not waited for.
    let _ = tokio::time::timeout(GOODBYE, async { tokio::join!(up, down) }).await;
    Ok(why)
}

/// Relays bytes and their end one way. When the tunnel is to end, stops at a frame boundary and sends the Close frame.
async fn pump(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    activity: &Activity,
    mut frames: Frames,
    goodbye: &[u8],
) -> io::Result<()> {
    let mut ending = activity.ending.subscribe();
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let is_ending = *ending.borrow_and_update();
        if is_ending && frames.at_end() {
            return part(from, to, goodbye, frames.closed(), &mut buffer).await;
        }
        let read = tokio::select! {
            read = from.read(&mut buffer) => read?,
            // The sender outlives this task.
            _ = ending.changed(), if !is_ending => continue,
        };
        if read == 0 {
            return to.shutdown().await;
        }
        activity.now();
        let passed = if is_ending {
            frames.rest_of_one(&buffer[..read])
        } else {
            frames.pass(&buffer[..read]);
            read
        };
        if let Some(field) = frames.steering() {
            let what = format!("a message has `{field}`, which steers an engine");
            return Err(io::Error::new(io::ErrorKind::InvalidData, what));
        }
        to.write_all(&buffer[..passed]).await?;
        to.flush().await?;
    }
}

/// Sends the Close frame, unless one was sent, then drains the input, so that no reset overtakes the Close frame.
async fn part(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    goodbye: &[u8],
    is_said: bool,
    buffer: &mut [u8],
) -> io::Result<()> {
    if !is_said {
        to.write_all(goodbye).await?;
    }
    to.shutdown().await?;
    while from.read(buffer).await? > 0 {}
    Ok(())
}
