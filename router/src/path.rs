//! The request's way, top to bottom: admit → parse → fingerprint → choose → forward → tap → learn → hint.
//!
//! Each stage takes the last one's output. Nothing before `forward` waits for anything but the client's own bytes, and
//! nothing after it holds the stream up.

pub mod account;
pub mod admit;
pub mod among;
pub mod arrival;
pub mod ask;
pub mod choose;
pub mod claim;
pub mod client_body;
pub mod fingerprint;
pub mod forward;
pub mod headers;
pub mod inspect;
pub mod json;
pub mod learn;
pub mod mend;
pub mod models;
pub mod multipart;
pub mod objective;
pub mod observe;
pub mod parse;
pub mod reply;
pub mod routes;
pub mod session;
pub mod splice;
pub mod steering;
pub mod stored;
pub mod tap;
pub mod tenant;
mod traced;
pub mod tunnel;
pub mod wait;
pub mod watch;
mod watchdog;

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::ALLOW;
use http::{HeaderValue, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use policy::ids::WorkerId;
use policy::units::Millis;
use tokio::time::Instant;

use self::admit::{Endpoint, Received, Route};
use self::among::Among;
use self::arrival::{Arrival, Peer};
use self::ask::Asked;
use self::choose::Turn;
use self::client_body::ClientBody;
use self::forward::{Deadline, Errand, Wanted};
use self::routes::Family;
use crate::admission::keys::Caller;
use crate::app::{App, Place};
use crate::error::ApiError;
use tailroute_http::body::Body;
use telemetry::traces::{Stage, Trace};

/// On an answer: when all of it has to be there.
#[derive(Clone, Copy, Debug)]
pub struct Due(pub Instant);

/// Answers one request of a client.
pub async fn handle(app: Arc<App>, peer: Arc<Peer>, mut request: Request<Incoming>) -> Response<Body> {
    let arrival = Arrival::of(&app, &peer, &mut request);
    let responding = respond(app, request, arrival.trace().clone());
    let responding = arrival.whose().clone().within(responding);
    // By reference: each async function that it is handed to would hold a copy of it.
    arrival.answer(pin!(responding)).await
}

async fn respond(app: Arc<App>, request: Request<Incoming>, trace: Trace) -> Response<Body> {
    let started = app.clock.now();
    let route = admit::route(&app, &request);
    let endpoint = admit::endpoint(&route);
    trace.asked(request.method(), endpoint);
    let caller = app.admission.identify(request.headers());
    let family = Family::of(request.uri().path());
    let deadline = Deadline::of(request.headers(), &app.config.failure, Instant::now());
    let answered = tokio::select! {
        biased;
        answered = answer(&app, (request, route), &caller, (deadline, &trace)) => answered,
        () = deadline.head_passed() => Err(deadline.exceeded()),
        // Nothing of an answer is there yet, and no time is left to wait for it.
        () = app.when_cut_off() => Err(ApiError::Draining),
    };
    let mut response = match answered {
        Ok(mut response) => {
            if let Some(at) = deadline.whole() {
                response.extensions_mut().insert(Due(at));
            }
            response
        }
        Err(error) => {
            refused(&app, &caller, (endpoint, started), &error);
            error.response_for(family)
        }
    };
    if let Ok(caller) = &caller {
        caller.mark(response.headers_mut(), app.clock.now());
    }
    response
}

/// Counts a request that the router answers itself.
pub(crate) fn refused(
    app: &App,
    caller: &Result<Caller, ApiError>,
    (endpoint, started): (&'static str, Millis),
    error: &ApiError,
) {
    if let Some(outcome) = error.admission() {
        app.metrics
            .admission(caller.as_ref().map_or("", Caller::name), outcome);
    }
    let outcome = if error.status().is_client_error() {
        "client_error"
    } else {
        "router_error"
    };
    app.metrics
        .request(endpoint, outcome, (app.clock.now() - started).0 / 1e3);
}

async fn answer(
    app: &Arc<App>,
    (mut request, route): (Request<Incoming>, Result<Route, ApiError>),
    caller: &Result<Caller, ApiError>,
    (deadline, trace): (Deadline, &Trace),
) -> Result<Response<Body>, ApiError> {
    let (caller, route) = enter(app, (&mut request, route), caller)?;
    match route {
        Route::Models => Ok(models::list(app)),
        Route::Model(name) => models::one(app, &name),
        Route::Server => Ok(server_options()),
        // What most requests are not is boxed, so that they do not carry room for it.
        Route::Tunnel => Box::pin(tunnel::open(app, request, (place(app)?, deadline, trace))).await,
        Route::Turn(endpoint) => {
            let (head, body) = request.into_parts();
            let receiving = trace.begin(Stage::Receive);
            let Received { bytes, room } = admit::read_body(app, &head, body).await?;
            drop(receiving);
            let place = place(app)?;
            let answer = turn(app, endpoint, (&head, bytes), (caller, place), (deadline, trace)).await;
            drop(room);
            answer
        }
        Route::Upload(_) | Route::Kept(_) | Route::Other => {
            Box::pin(relay(app, &route, request, caller, (deadline, trace))).await
        }
    }
}

/// Whether a request may come in, by its head, and what it asks for.
///
/// # Errors
/// If not.
pub(crate) fn enter<'a, B>(
    app: &Arc<App>,
    (request, route): (&mut Request<B>, Result<Route, ApiError>),
    caller: &'a Result<Caller, ApiError>,
) -> Result<(&'a Caller, Route), ApiError> {
    let Ok(caller) = caller else {
        return Err(ApiError::Unauthorized);
    };
    let route = route?;
    steering::permit_head(app, request.headers())?;
    caller.count_request(app.clock.now())?;
    if let Some(tenant) = caller.tenant() {
        tenant::permit(app, &route)?;
        tenant::settle(tenant, request.headers_mut());
    }
    // A place is taken when the body is here: who sends it slowly holds none. Without one, it is not even read.
    if !app.has_place() {
        return Err(ApiError::Overloaded);
    }
    Ok((caller, route))
}

pub(crate) fn place(app: &Arc<App>) -> Result<Place, ApiError> {
    app.place().ok_or(ApiError::Overloaded)
}

/// A request that is passed on as it comes, with what can be known of it without reading it.
async fn relay(
    app: &Arc<App>,
    route: &Route,
    request: Request<Incoming>,
    caller: &Caller,
    (deadline, trace): (Deadline, &Trace),
) -> Result<Response<Body>, ApiError> {
    let max = app.live().limits.max_body_bytes.get();
    let (head, body) = request.into_parts();
    let body = ClientBody::new(app, &head.headers, body);
    let mut request = Request::from_parts(head, body);
    if request.body().size_hint().lower() > max as u64 {
        return Err(ApiError::BodyTooLarge(max));
    }
    let mut wanted = Wanted {
        endpoint: route.endpoint(),
        trace: trace.clone(),
        ..Wanted::default()
    };
    match route {
        Route::Kept(id) => wanted.home = keeper(app, id, caller)?,
        Route::Upload(_) => wanted.model = request.body_mut().model(app).await?,
        _ => {}
    }
    if let Some(model) = &wanted.model {
        models::check(app, model)?;
    }
    forward::pass(app, request, &wanted, deadline).await
}

/// The worker that keeps a response, as far as that is known.
///
/// # Errors
/// 404 if it may be another tenant's.
pub(crate) fn keeper(app: &App, id: &str, caller: &Caller) -> Result<Option<WorkerId>, ApiError> {
    let kept = app.stored.find(caller.seed(), id);
    if kept.is_none() && caller.tenant().is_some() {
        return Err(ApiError::UnknownResponse);
    }
    Ok(kept.map(|kept| kept.worker))
}

/// What the server as a whole can do.
fn server_options() -> Response<Body> {
    let mut response = Response::new(tailroute_http::body::full(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    response.headers_mut().insert(ALLOW, allow);
    response
}

/// A turn of a conversation, read and let in, and its body as engines get it. `among`: the only workers that it may go to.
///
/// # Errors
/// If it cannot be read, or is turned away.
pub(crate) async fn admitted(
    app: &Arc<App>,
    (endpoint, among): (Endpoint, Option<Among>),
    head: &http::request::Parts,
    body: Bytes,
    (caller, place): (&Caller, &mut Place),
    trace: &Trace,
) -> Result<(Turn, Bytes), ApiError> {
    let arrived = app.clock.now();
    let parsing = trace.begin(Stage::Parse);
    let asked = Asked::of(app, &head.extensions)?;
    let mut turn = Turn::read(app, endpoint, caller, &head.headers, &body, arrived)?;
    turn.asked = asked;
    turn.among = among;
    let waiting = parsing.then(Stage::Wait);
    trace.turn(&turn);
    wait::turn(app, &turn, caller, place).await?;
    drop(waiting);
    let body = tenant::edited(app, &turn, body);
    Ok((turn, body))
}

/// A turn of a conversation.
async fn turn(
    app: &Arc<App>,
    endpoint: Endpoint,
    (head, body): (&http::request::Parts, Bytes),
    (caller, mut place): (&Caller, Place),
    (deadline, trace): (Deadline, &Trace),
) -> Result<Response<Body>, ApiError> {
    let (turn, body) = admitted(app, (endpoint, None), head, body, (caller, &mut place), trace).await?;
    let errand = Errand {
        app,
        head,
        body: &body,
        turn: &turn,
        deadline,
        trace,
    };
    let mut place = Some(place);
    let answer = forward::deliver(errand, &mut place).await;
    if let Some(place) = &mut place {
        // Nobody answered, so nothing was used. A client that leaves before, or whose own time is up, does not come by
        // here, and pays.
        place.charge.give_back();
    }
    answer
}
