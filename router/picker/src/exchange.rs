//! The exchange with a gateway about one request: its head and body, then the response's head and body.
//!
//! The gateway's configuration (`processing_mode`), sent in its first message, determines how bodies come. With
//! `FULL_DUPLEX_STREAMED` the head is answered after the body, and both are sent together; with `BUFFERED` it is
//! answered at once, and the answer to the body names the worker. The gateway may close or reset its stream at any
//! time: this drops the future, which ends the request's accounting. After the pick, the response has the limits of the
//! data port ([`Watchdog`]); when one passes, the gateway gets an immediate response.

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use bytes::Bytes;
use http::request::Parts;
use http::{HeaderMap, HeaderValue};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, warn};

use super::inbox::Inbox;
use super::pick::{self, Pick};
use super::served::Served;
use super::wire::{
    AnswerPart, BodyMode, HeaderMutation, HttpBody, PartResponse, ProcessingRequest, ProcessingResponse,
    RequestPart, TrailersResponse,
};
use super::{answers, head};
use protocol::api::Family;
use protocol::error::ApiError;
use protocol::references;
use protocol::routes::Route;
use proxy::Proxy;
use proxy::admission::keys::{Caller, KeyFault};
use proxy::path;
use proxy::path::admit::{self, Received};
use proxy::path::among::Among;
use proxy::path::arrival::Arrival;
use proxy::path::context::{RequestContext, RequestTimer};
use proxy::path::deadline::Deadline;
use proxy::path::watchdog::{Overrun, Watchdog};
use state::Routing;
use tailroute_http::byte_reservation::ByteReservation;
use telemetry::traces::{Stage, Trace};

/// A message to a gateway, with the memory reservation of the message that it came from.
pub(super) type Going = (ProcessingResponse, Option<ByteReservation>);
pub(super) type ExchangeSender = mpsc::Sender<Going>;

/// The reason why no worker is named.
enum No {
    /// The client gets an error.
    Refused(ApiError),
    /// The gateway's configuration does not support the request.
    Protocol(Status),
    /// The gateway closed the stream.
    Gone,
}

impl From<ApiError> for No {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

#[derive(Clone, Copy, Debug)]
struct Modes {
    request: BodyMode,
    response: BodyMode,
}

impl Modes {
    /// Returns the modes of the first message. A gateway that sends none uses full duplex, as one built for endpoint
    /// pickers.
    fn of(first: &ProcessingRequest) -> Self {
        let duplex = BodyMode::FullDuplexStreamed;
        first.protocol_config.map_or(
            Self {
                request: duplex,
                response: duplex,
            },
            |config| Self {
                request: config.request_body_mode(),
                response: config.response_body_mode(),
            },
        )
    }
}

/// Runs the exchange about one request. Fails if the gateway violates the protocol, or its configuration does not
/// support the request.
pub(super) async fn talk(proxy: Arc<Proxy>, mut inbox: Inbox, out: ExchangeSender) -> Result<(), Status> {
    let limits = proxy.state.routing.live().limits.clone();
    let Ok(first) = tokio::time::timeout(limits.header_timeout, inbox.next()).await else {
        proxy.state.routing.metrics.picked("protocol");
        return Err(Status::deadline_exceeded(
            "no request headers came in limits.header_timeout_s",
        ));
    };
    let Some(mut first) = first? else {
        return Ok(());
    };
    let head = match first.request.take() {
        Some(RequestPart::RequestHeaders(head)) if !first.observability_mode => head,
        _ => {
            proxy.state.routing.metrics.picked("protocol");
            return Err(Status::failed_precondition(
                "expected request headers first, with processing_mode.request_header_mode: SEND and no observability_mode",
            ));
        }
    };
    let talk = PickerExchange {
        proxy: &proxy,
        modes: Modes::of(&first),
        out: &out,
    };
    let mut request = match head::request(&head, limits.max_header_bytes.get()) {
        Ok(request) => request,
        Err(error) => return talk.refuse(&error, Family::default(), HeaderMap::new()).await,
    };
    let given = request.headers().clone();
    let (whose, trace) = Arrival::at_gateway(&proxy, &mut request).told();
    let (parts, ()) = request.into_parts();
    let route = admit::route(&proxy, &parts);
    let asked = PickRequest {
        caller: admit::caller(&proxy.admission, &route, &parts.headers),
        family: Family::of(parts.uri.path()),
        timer: RequestTimer {
            endpoint: admit::endpoint(&route),
            started: proxy.state.routing.clock.now(),
        },
        deadline: Deadline::of(&parts.headers, &proxy.state.config.failure, Instant::now()),
        among: head::among(&first),
        has_body: !head.end_of_stream,
        given,
        trace,
    };
    // Decoded messages take more memory than the request made from them.
    drop((first, head, inbox.take_room()));
    asked.trace.asked(&parts.method, admit::traced_route(&route));
    let talking = async {
        match talk.ask(&mut inbox, parts, route, &asked).await {
            Ok((served, watchdog)) => {
                proxy.state.routing.metrics.picked("picked");
                talk.until_it_ends(&mut inbox, served, watchdog, &asked).await
            }
            Err(no) => talk.no(no, &asked).await,
        }
    };
    whose.within(talking).await
}

struct PickRequest {
    caller: Result<Caller, KeyFault>,
    family: Family,
    timer: RequestTimer,
    deadline: Deadline,
    among: Among,
    has_body: bool,
    /// Headers as the gateway sent them.
    given: HeaderMap,
    trace: Trace,
}

impl PickRequest {
    /// Returns the rate limit headers for the client.
    fn limits(&self, routing: &Routing) -> HeaderMap {
        let mut marks = HeaderMap::new();
        if let Ok(caller) = &self.caller {
            caller.mark(&mut marks, routing.clock);
        }
        marks
    }
}

struct PickerExchange<'a> {
    proxy: &'a Arc<Proxy>,
    modes: Modes,
    out: &'a ExchangeSender,
}

impl PickerExchange<'_> {
    async fn send(&self, told: ProcessingResponse) -> Result<(), No> {
        self.out.send((told, None)).await.map_err(|_| No::Gone)
    }

    /// Answers a request for which no worker is named.
    async fn no(&self, no: No, asked: &PickRequest) -> Result<(), Status> {
        match no {
            No::Gone => {
                self.proxy.state.routing.metrics.picked("gone");
                Ok(())
            }
            No::Protocol(status) => {
                self.proxy.state.routing.metrics.picked("protocol");
                warn!(
                    status = status.message(),
                    "the gateway's configuration is unsupported"
                );
                Err(status)
            }
            No::Refused(error) => {
                path::refused(&self.proxy.state.routing, &asked.caller, asked.timer, &error);
                let code = HeaderValue::from_static(error.code());
                asked.trace.answered(error.status(), Some(&code));
                debug!(%error, "refused");
                self.refuse(&error, asked.family, asked.limits(&self.proxy.state.routing))
                    .await
            }
        }
    }

    /// Lets the gateway send an error to the client, which ends the exchange.
    async fn refuse(&self, error: &ApiError, family: Family, marks: HeaderMap) -> Result<(), Status> {
        self.proxy
            .state
            .routing
            .metrics
            .picked(match error.status().as_u16() {
                429 => "shed",
                500.. => "unavailable",
                _ => "refused",
            });
        // The gateway may have closed the stream.
        let _ = self
            .out
            .send((answers::refused(error, family, &marks), None))
            .await;
        Ok(())
    }

    /// Picks a worker, and names it to the gateway.
    async fn ask(
        &self,
        inbox: &mut Inbox,
        mut parts: Parts,
        route: Result<Route, ApiError>,
        asked: &PickRequest,
    ) -> Result<(Served, Watchdog), No> {
        let (proxy, deadline) = (self.proxy, asked.deadline);
        let context = RequestContext {
            proxy,
            caller: asked.caller.as_ref().map_err(|fault| ApiError::from(*fault))?,
            timer: asked.timer,
            deadline,
            trace: &asked.trace,
        };
        let route = path::enter(&context, &mut parts.headers, route)?;
        if asked.has_body {
            admit::permit_encoding(&parts.headers)?;
        }
        let is_read = asked.has_body && pick::needs_body(&proxy.state.routing, &route);
        let picking = async {
            let (body, room, by_trailers) = if is_read {
                let (Received { bytes, room }, by_trailers) = self.read(inbox, &parts, &asked.trace).await?;
                (bytes, Some(room), by_trailers)
            } else {
                (Bytes::new(), None, false)
            };
            let mut read = body.clone();
            if matches!(route, Route::Turn(_)) {
                read = admit::without_mark(&mut parts.headers, read);
            }
            let picked = tokio::select! {
                biased;
                picked = pick::pick(&context, &route, &parts, read, asked.among.clone()) => picked?,
                () = inbox.hung_up() => return Err(No::Gone),
            };
            Ok((picked, body, room, by_trailers))
        };
        let (picked, body, room, by_trailers) = tokio::select! {
            biased;
            picked = picking => picked?,
            () = deadline.head_passed() => return Err(deadline.exceeded().into()),
            () = proxy.when_cut_off() => return Err(ApiError::Draining.into()),
        };
        let mut watchdog = Watchdog::new(proxy, deadline, Instant::now());
        let changes = answers::changes(&asked.given, &picked.headers);
        let naming = async {
            if is_read {
                return self.name(picked, changes, &body, room, by_trailers).await;
            }
            let told = answers::picked(AnswerPart::RequestHeaders, &picked.endpoints, changes, None);
            self.send(told).await?;
            Ok(picked.served)
        };
        match within(&mut watchdog, naming).await {
            Ok(served) => Ok((served?, watchdog)),
            // The gateway does not read what it is sent.
            Err(_) => Err(No::Gone),
        }
    }

    /// Reads the whole body. Returns it, and whether trailers ended it.
    async fn read(
        &self,
        inbox: &mut Inbox,
        parts: &http::request::Parts,
        trace: &Trace,
    ) -> Result<(Received, bool), No> {
        let is_buffered = match self.modes.request {
            BodyMode::FullDuplexStreamed => false,
            BodyMode::Buffered => true,
            other => {
                let what = format!(
                    "processing_mode.request_body_mode is {other:?}; expected FULL_DUPLEX_STREAMED or BUFFERED"
                );
                return Err(No::Protocol(Status::failed_precondition(what)));
            }
        };
        if is_buffered {
            self.send(answers::go_on(AnswerPart::RequestHeaders)).await?;
        }
        let _receiving = trace.begin(Stage::Receive);
        let mut body = inbox.body(is_buffered);
        let read = admit::read_body(&self.proxy.state, parts, &mut body).await?;
        Ok((read, body.ended_by_trailers))
    }

    /// Names the worker in the answer to the head or the body, and relays the body.
    async fn name(
        &self,
        pick: Pick,
        changes: HeaderMutation,
        given: &Bytes,
        room: Option<ByteReservation>,
        by_trailers: bool,
    ) -> Result<Served, No> {
        let Pick {
            endpoints,
            body,
            served,
            ..
        } = pick;
        if self.modes.request == BodyMode::Buffered {
            let other = (body != *given).then_some(body);
            let picked = answers::picked(AnswerPart::RequestBody, &endpoints, changes, other);
            self.out.send((picked, room)).await.map_err(|_| No::Gone)?;
            return Ok(served);
        }
        let picked = answers::picked(AnswerPart::RequestHeaders, &endpoints, changes, None);
        self.send(picked).await?;
        for piece in answers::pieces(body, !by_trailers) {
            self.send(piece).await?;
        }
        if by_trailers {
            self.send(trailers(AnswerPart::RequestTrailers)).await?;
        }
        Ok(served)
    }

    async fn until_it_ends(
        &self,
        inbox: &mut Inbox,
        mut served: Served,
        mut watchdog: Watchdog,
        asked: &PickRequest,
    ) -> Result<(), Status> {
        loop {
            let next = if served.is_watched() {
                within(&mut watchdog, inbox.next()).await
            } else {
                Ok(inbox.next().await)
            };
            let message = match next {
                Ok(message) => message?,
                Err(overrun) => {
                    self.overran(overrun, &watchdog, served, asked);
                    return Ok(());
                }
            };
            let Some(message) = message else {
                return Ok(());
            };
            if let Some(RequestPart::RequestBody(piece)) = &message.request
                && let Err(error) = served.asks(&piece.body)
            {
                return self.no(error.into(), asked).await;
            }
            let Some(told) = self.passes(message, &mut served, &mut watchdog, asked)? else {
                continue;
            };
            match within(&mut watchdog, self.out.send((told, inbox.take_room()))).await {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Ok(()),
                Err(overrun) => {
                    self.overran(overrun, &watchdog, served, asked);
                    return Ok(());
                }
            }
        }
    }

    /// Ends a request whose limit has passed. The gateway answers its client with the error, or cuts the response.
    fn overran(&self, overrun: Overrun, watchdog: &Watchdog, mut served: Served, asked: &PickRequest) {
        let error = watchdog.told(overrun);
        if !served.has_head() {
            asked
                .trace
                .answered(error.status(), Some(&HeaderValue::from_static(error.code())));
        }
        served.overran(overrun);
        let refused = answers::refused(&error, asked.family, &asked.limits(&self.proxy.state.routing));
        // A gateway that does not read is not waited for.
        if self.out.try_send((refused, None)).is_err() {
            debug!(%error, "the gateway does not read its messages");
        }
    }

    /// Observes a part of the request or its response. Returns the answer to the part.
    fn passes(
        &self,
        message: ProcessingRequest,
        served: &mut Served,
        watchdog: &mut Watchdog,
        asked: &PickRequest,
    ) -> Result<Option<ProcessingResponse>, Status> {
        let by = head::served(&message);
        let told = match message.request {
            None => return Ok(None),
            Some(RequestPart::RequestHeaders(_)) => {
                return Err(Status::invalid_argument("a second head of the request came"));
            }
            Some(RequestPart::RequestBody(piece)) => {
                goes_on(AnswerPart::RequestBody, self.modes.request, piece)
            }
            Some(RequestPart::RequestTrailers(_)) => trailers(AnswerPart::RequestTrailers),
            Some(RequestPart::ResponseHeaders(head)) => {
                let (status, kinds) = head::response(&head);
                let mut marks = asked.limits(&self.proxy.state.routing);
                let comes_whole = matches!(
                    self.modes.response,
                    BodyMode::Buffered | BodyMode::BufferedPartial
                );
                marks.extend(served.head(status, &kinds, by, comes_whole));
                asked.trace.answered(status, None);
                if head.end_of_stream {
                    served.ended(false);
                } else if self.modes.response == BodyMode::None {
                    // Assumed complete: the gateway shows no more of it.
                    served.ended(true);
                }
                let mut given = head::routers_own(&head);
                let mut referring = head::references(&head);
                given.extend(referring.clone());
                // Workers that a gateway addresses have no base path.
                references::conceal(&mut referring, "", &self.proxy.state.routing.fleet);
                marks.extend(referring);
                answers::answered(&given, &marks)
            }
            Some(RequestPart::ResponseBody(piece)) => {
                watchdog.saw(served.body(&piece.body));
                if piece.end_of_stream {
                    served.ended(false);
                }
                goes_on(AnswerPart::ResponseBody, self.modes.response, piece)
            }
            Some(RequestPart::ResponseTrailers(_)) => {
                served.ended(false);
                trailers(AnswerPart::ResponseTrailers)
            }
        };
        Ok(Some(told))
    }
}

/// Returns the result of the work, or the limit that passes first.
async fn within<T>(watchdog: &mut Watchdog, work: impl Future<Output = T>) -> Result<T, Overrun> {
    let mut work = pin!(work);
    poll_fn(|cx| match work.as_mut().poll(cx) {
        Poll::Ready(done) => Poll::Ready(Ok(done)),
        Poll::Pending => watchdog.poll(cx).map(Err),
    })
    .await
}

fn goes_on(
    of: impl FnOnce(PartResponse) -> AnswerPart,
    mode: BodyMode,
    piece: HttpBody,
) -> ProcessingResponse {
    if mode == BodyMode::FullDuplexStreamed {
        answers::piece(of, piece.body, piece.end_of_stream)
    } else {
        answers::go_on(of)
    }
}

fn trailers(of: impl FnOnce(TrailersResponse) -> AnswerPart) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(of(TrailersResponse {})),
        dynamic_metadata: None,
    }
}
