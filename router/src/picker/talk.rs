//! One request, as a gateway tells of it: its head, its body, then the head and the body of its answer.
//!
//! How bodies come is the gateway's configuration (`processing_mode`), which its first message tells:
//!
//! | `request_body_mode` | how a worker is named |
//! |---|---|
//! | `FULL_DUPLEX_STREAMED`, or not said | the head is not answered before all of the body is here; then head and body go out together |
//! | `BUFFERED` | the head is answered at once, and the worker is named in the answer to the body |
//! | any other | only for requests without a body, and such as are not looked into |
//!
//! What comes of the answer is looked at and passed on. The gateway ends all of it by closing or resetting its
//! stream, at any moment: this future is dropped then, and what was in flight with it.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use policy::units::Millis;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use tracing::{debug, warn};

use super::inbox::Inbox;
use super::pick::{self, Pick};
use super::served::Served;
use super::wire::{
    BodyMode, HeaderMutation, HttpBody, PartResponse, ProcessingRequest, ProcessingResponse, Said, Told,
    TrailersResponse,
};
use super::{head, told};
use crate::admission::keys::Caller;
use crate::app::App;
use crate::path;
use crate::path::admit::{self, Received};
use crate::path::among::Among;
use crate::path::arrival::Arrival;
use crate::path::context::RequestContext;
use crate::path::forward::Deadline;
use crate::telemetry::{Stage, Trail};
use protocol::error::ApiError;
use protocol::routes::{Family, Route};
use tailroute_http::unread::Unread;

/// A message to a gateway, with the room of what it came from.
pub(super) type Going = (ProcessingResponse, Option<Unread>);
/// Where answers go.
pub(super) type Outgoing = mpsc::Sender<Going>;

/// Why no worker is named.
enum No {
    /// The client is told so.
    Refused(ApiError),
    /// The gateway is not set up for it.
    Protocol(Status),
    /// The gateway has lost interest.
    Gone,
}

impl From<ApiError> for No {
    fn from(error: ApiError) -> Self {
        Self::Refused(error)
    }
}

/// How bodies come.
#[derive(Clone, Copy, Debug)]
struct Modes {
    request: BodyMode,
    response: BodyMode,
}

impl Modes {
    /// As the first message has it; a gateway that does not say is one that was made for endpoint pickers.
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

/// Talks with a gateway about one request.
///
/// # Errors
/// If the gateway does not keep to the protocol, or is not set up for it.
pub(super) async fn talk(app: Arc<App>, mut inbox: Inbox, out: Outgoing) -> Result<(), Status> {
    let limits = app.live().limits.clone();
    let Ok(first) = tokio::time::timeout(limits.header_timeout, inbox.next()).await else {
        app.metrics.picked("protocol");
        return Err(Status::deadline_exceeded(
            "no request headers came in limits.header_timeout_s",
        ));
    };
    let Some(mut first) = first? else {
        return Ok(());
    };
    let head = match first.request.take() {
        Some(Said::RequestHeaders(head)) if !first.observability_mode => head,
        _ => {
            app.metrics.picked("protocol");
            return Err(Status::failed_precondition(
                "expected request headers first, with processing_mode.request_header_mode: SEND and no observability_mode",
            ));
        }
    };
    let talk = Talk {
        app: &app,
        modes: Modes::of(&first),
        out: &out,
    };
    let mut request = match head::request(&head, limits.max_header_bytes.get()) {
        Ok(request) => request,
        Err(error) => return talk.refuse((&error, Family::default(), HeaderMap::new())).await,
    };
    let given = request.headers().clone();
    let (whose, trail) = Arrival::at_gateway(&app, &mut request).told();
    let route = admit::route(&app, &request);
    let asked = Asked {
        caller: app.admission.identify(request.headers()),
        family: Family::of(request.uri().path()),
        endpoint: admit::endpoint(&route),
        started: app.clock.now(),
        among: head::among(&first),
        has_body: !head.end_of_stream,
        given,
        trail,
    };
    // Decoded, they take more than the request that was made of them.
    drop((first, head, inbox.take_room()));
    asked.trail.asked(request.method(), asked.endpoint);
    let talking = async {
        match talk.ask(&mut inbox, (request, route), &asked).await {
            Ok(served) => {
                app.metrics.picked("picked");
                talk.until_it_ends(&mut inbox, served, &asked).await
            }
            Err(no) => talk.no(no, &asked).await,
        }
    };
    whose.within(talking).await
}

/// What is known of a request by its head.
struct Asked {
    caller: Result<Caller, ApiError>,
    family: Family,
    /// The name of its endpoint in metrics.
    endpoint: &'static str,
    started: Millis,
    /// The workers that it may go to.
    among: Among,
    has_body: bool,
    /// Its headers as the gateway has them.
    given: HeaderMap,
    trail: Trail,
}

impl Asked {
    /// What is said to its client of its limits.
    fn limits(&self, app: &App) -> HeaderMap {
        let mut marks = HeaderMap::new();
        if let Ok(caller) = &self.caller {
            caller.mark(&mut marks, app.clock.now());
        }
        marks
    }
}

/// The way to a gateway.
struct Talk<'a> {
    app: &'a Arc<App>,
    modes: Modes,
    out: &'a Outgoing,
}

impl Talk<'_> {
    async fn send(&self, told: ProcessingResponse) -> Result<(), No> {
        self.out.send((told, None)).await.map_err(|_| No::Gone)
    }

    /// No worker is named.
    async fn no(&self, no: No, asked: &Asked) -> Result<(), Status> {
        match no {
            No::Gone => {
                self.app.metrics.picked("gone");
                Ok(())
            }
            No::Protocol(status) => {
                self.app.metrics.picked("protocol");
                warn!(status = status.message(), "the gateway is not set up for it");
                Err(status)
            }
            No::Refused(error) => {
                let counted = (asked.endpoint, asked.started);
                path::refused(self.app, &asked.caller, counted, &error);
                let code = HeaderValue::from_static(error.code());
                asked.trail.answered(error.status(), Some(&code));
                debug!(%error, "refused");
                self.refuse((&error, asked.family, asked.limits(self.app))).await
            }
        }
    }

    /// The client is told what is wrong, by the gateway; that ends it.
    async fn refuse(&self, (error, family, marks): (&ApiError, Family, HeaderMap)) -> Result<(), Status> {
        self.app.metrics.picked(match error.status().as_u16() {
            429 => "shed",
            500.. => "unavailable",
            _ => "refused",
        });
        // Who does not listen any more need not hear it.
        let _ = self.out.send((told::refused(error, family, &marks), None)).await;
        Ok(())
    }

    /// Picks a worker, and names it.
    async fn ask(
        &self,
        inbox: &mut Inbox,
        (mut request, route): (Request<()>, Result<Route, ApiError>),
        asked: &Asked,
    ) -> Result<Served, No> {
        let app = self.app;
        let deadline = Deadline::of(request.headers(), &app.config.failure, Instant::now());
        let context = RequestContext {
            app,
            caller: asked.caller.as_ref().map_err(|_| ApiError::Unauthorized)?,
            endpoint: asked.endpoint,
            started: asked.started,
            deadline,
            trail: &asked.trail,
        };
        let route = path::enter(&context, request.headers_mut(), route)?;
        let (parts, ()) = request.into_parts();
        let is_read = asked.has_body && pick::needs_body(&route);
        let picking = async {
            let (body, room, by_trailers) = if is_read {
                let (Received { bytes, room }, by_trailers) = self.read(inbox, &parts, &asked.trail).await?;
                (bytes, Some(room), by_trailers)
            } else {
                (Bytes::new(), None, false)
            };
            let picked = tokio::select! {
                biased;
                picked = pick::pick(&context, &route, &parts, body.clone(), asked.among.clone()) => picked?,
                () = inbox.hung_up() => return Err(No::Gone),
            };
            Ok((picked, body, room, by_trailers))
        };
        let (picked, body, room, by_trailers) = tokio::select! {
            biased;
            picked = picking => picked?,
            () = deadline.head_passed() => return Err(deadline.exceeded().into()),
            () = app.when_cut_off() => return Err(ApiError::Draining.into()),
        };
        let changes = told::changes(&asked.given, &picked.headers);
        if is_read {
            self.name(picked, changes, (&body, room), by_trailers).await
        } else {
            let told = told::picked(Told::RequestHeaders, &picked.endpoints, changes, None);
            self.send(told).await?;
            Ok(picked.served)
        }
    }

    /// All of the body, and whether trailers ended it.
    async fn read(
        &self,
        inbox: &mut Inbox,
        parts: &http::request::Parts,
        trail: &Trail,
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
            self.send(told::go_on(Told::RequestHeaders)).await?;
        }
        let _receiving = trail.begin(Stage::Receive);
        let mut body = inbox.body(is_buffered);
        let read = admit::read_body(self.app, parts, &mut body).await?;
        Ok((read, body.ended_by_trailers))
    }

    /// Names the worker in the answer to the body, and lets the body go on.
    async fn name(
        &self,
        pick: Pick,
        changes: HeaderMutation,
        (given, room): (&Bytes, Option<Unread>),
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
            let picked = told::picked(Told::RequestBody, &endpoints, changes, other);
            self.out.send((picked, room)).await.map_err(|_| No::Gone)?;
            return Ok(served);
        }
        let picked = told::picked(Told::RequestHeaders, &endpoints, changes, None);
        self.send(picked).await?;
        for piece in told::pieces(body, !by_trailers) {
            self.send(piece).await?;
        }
        if by_trailers {
            self.send(trailers(Told::RequestTrailers)).await?;
        }
        Ok(served)
    }

    /// Lets everything go on, and looks at it.
    async fn until_it_ends(
        &self,
        inbox: &mut Inbox,
        mut served: Served,
        asked: &Asked,
    ) -> Result<(), Status> {
        let mut has_head = false;
        while let Some(message) = inbox.next().await? {
            has_head |= matches!(message.request, Some(Said::ResponseHeaders(_)));
            if let Some(Said::RequestBody(piece)) = &message.request
                && let Err(error) = served.asks(&piece.body)
            {
                return self.no(error.into(), asked).await;
            }
            if let Some(told) = self.passes(message, &mut served, asked)?
                && self.out.send((told, inbox.take_room())).await.is_err()
            {
                return Ok(());
            }
        }
        if has_head && self.modes.response == BodyMode::None {
            // As far as can be known: the gateway closes its stream in the same way when its client has left.
            served.ended(true);
        }
        Ok(())
    }

    /// A part of the request or its answer passes. Returns what is said of it.
    fn passes(
        &self,
        message: ProcessingRequest,
        served: &mut Served,
        asked: &Asked,
    ) -> Result<Option<ProcessingResponse>, Status> {
        let by = head::served(&message);
        let told = match message.request {
            None => return Ok(None),
            Some(Said::RequestHeaders(_)) => {
                return Err(Status::invalid_argument("a second head of the request came"));
            }
            Some(Said::RequestBody(piece)) => goes_on(Told::RequestBody, self.modes.request, piece),
            Some(Said::RequestTrailers(_)) => trailers(Told::RequestTrailers),
            Some(Said::ResponseHeaders(head)) => {
                let (status, kinds) = head::response(&head);
                let mut marks = asked.limits(self.app);
                let comes_whole = matches!(
                    self.modes.response,
                    BodyMode::Buffered | BodyMode::BufferedPartial
                );
                marks.extend(served.head((status, &kinds), by, comes_whole));
                asked.trail.answered(status, None);
                if head.end_of_stream {
                    served.ended(false);
                }
                told::answered(&head::routers_own(&head), &marks)
            }
            Some(Said::ResponseBody(piece)) => {
                served.body(&piece.body);
                if piece.end_of_stream {
                    served.ended(false);
                }
                goes_on(Told::ResponseBody, self.modes.response, piece)
            }
            Some(Said::ResponseTrailers(_)) => {
                served.ended(false);
                trailers(Told::ResponseTrailers)
            }
        };
        Ok(Some(told))
    }
}

fn goes_on(of: impl FnOnce(PartResponse) -> Told, mode: BodyMode, piece: HttpBody) -> ProcessingResponse {
    if mode == BodyMode::FullDuplexStreamed {
        told::piece(of, piece.body, piece.end_of_stream)
    } else {
        told::go_on(of)
    }
}

fn trailers(of: impl FnOnce(TrailersResponse) -> Told) -> ProcessingResponse {
    ProcessingResponse {
        response: Some(of(TrailersResponse {})),
        dynamic_metadata: None,
    }
}
