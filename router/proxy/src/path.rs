//! The life of a request:
//!
//! | stage | what it does | where |
//! |---|---|---|
//! | arrive | removes hop-by-hop headers, sets the request id, opens the trace | [`arrival`] |
//! | receive | checks the head and the caller, reads the body | [`admit`], [`admission`](crate::admission) |
//! | parse | parses the body and fingerprints its prompt | [`turn::Turn`] |
//! | admit | charges the API key, waits at the admission gate | [`wait`] |
//! | select | chooses a worker with [`policy::route::decide`] | [`select`] |
//! | forward | sends the request, retries or hedges | [`forward`], [`retry`] |
//! | relay | relays the response and observes it | [`tap`], [`observe`] |
//! | finish | settles, learns, counts and records | [`flight`] |
//!
//! Before `forward`, a request waits only for the client's body and for the gate, and one that names an unknown model
//! for the workers' model lists. After it, nothing delays the stream. The endpoint picker (the crate `picker`) runs the
//! same stages for requests that a gateway proxies.

pub mod account;
pub mod admit;
pub mod among;
pub mod arrival;
pub mod ask;

pub mod client_body;
pub mod context;
pub mod cors;
pub mod deadline;
mod evict_first;
pub mod flight;
pub mod forward;
pub mod inspect;
pub mod models;
pub mod named;
pub mod objective;
pub mod observe;
pub mod retry;
pub mod select;
pub mod session;
pub mod stored;
pub mod tap;
pub mod tenant;
mod traced;
pub mod tunnel;
pub mod turn;
mod upgrade;
pub mod wait;
pub mod watchdog;

use std::pin::pin;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_LENGTH, ORIGIN};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode};
use http_body::Body as _;
use hyper::body::Incoming;
use policy::ids::WorkerId;
use protocol::api::{Endpoint, Family};
use protocol::error::ApiError;
use protocol::routes::Route;
use protocol::steering;
use tokio::time::Instant;

use self::admit::Received;
use self::among::Among;
use self::arrival::{Arrival, Peer};
use self::ask::Asked;
use self::client_body::ClientBody;
use self::context::{RequestContext, RequestTimer};
use self::deadline::Deadline;
use self::forward::{TurnRequest, Wanted};
use self::turn::Turn;
use crate::admission::keys::{Caller, KeyFault};
use crate::{Proxy, RequestPermit};
use server::Due;
use state::{Routing, State};
use tailroute_http::body::Body;
use telemetry::traces::{Stage, Trace};

/// Answers one client request.
pub fn handle(
    proxy: Arc<Proxy>,
    peer: &Peer,
    mut request: Request<Incoming>,
) -> impl Future<Output = Response<Body>> + use<> {
    let arrival = Arrival::of(&proxy, peer, &mut request);
    let (head, body) = request.into_parts();
    // Boxed, because every future around it would copy it, and idle connections would reserve its size.
    let responding = Box::pin(respond(proxy, head, body, arrival.trace().clone()));
    let responding = arrival.whose().clone().within(responding);
    arrival.answer(responding)
}

/// Ensures a response: by the deadline, at the drain limit, and for every error, in the API's own format.
async fn respond(proxy: Arc<Proxy>, mut head: Parts, body: Incoming, trace: Trace) -> Response<Body> {
    let started = proxy.state.routing.clock.now();
    let is_head = head.method == Method::HEAD;
    admit::settle_path(&proxy.state.config.http, &mut head);
    let route = admit::route(&proxy, &head);
    let timer = RequestTimer {
        endpoint: admit::endpoint(&route),
        started,
    };
    trace.asked(&head.method, admit::traced_route(&route));
    let caller = admit::caller(&proxy.admission, &route, &head.headers);
    // Answers to preflights are complete.
    let is_complete = matches!(route, Ok(Route::Preflight));
    let origin = head.headers.get(ORIGIN).filter(|_| !is_complete).cloned();
    let family = Family::of(head.uri.path());
    let deadline = Deadline::of(&head.headers, &proxy.state.config.failure, Instant::now());
    // Pinned, because `select!` would move it.
    let answering = pin!(async {
        let context = RequestContext {
            proxy: &proxy,
            caller: caller.as_ref().map_err(|fault| ApiError::from(*fault))?,
            timer,
            deadline,
            trace: &trace,
        };
        answer(&context, &mut head, body, route).await
    });
    let answered = tokio::select! {
        biased;
        answered = answering => answered,
        () = deadline.head_passed() => Err(deadline.exceeded()),
        () = proxy.when_cut_off() => Err(ApiError::Draining),
    };
    let mut response = match answered {
        Ok(mut response) => {
            if let Some(at) = deadline.whole() {
                response.extensions_mut().insert(Due(at));
            }
            response
        }
        Err(error) => {
            refused(&proxy.state.routing, &caller, timer, &error);
            error.response_for(family)
        }
    };
    if let Ok(caller) = &caller {
        caller.mark(response.headers_mut(), proxy.state.routing.clock);
    }
    if let Some(origin) = origin {
        cors::mark(
            &proxy.state.config.http.cors_origins,
            &origin,
            response.headers_mut(),
        );
    }
    if is_head {
        response = bare(response);
    }
    response
}

/// Removes the body from a response of the router to `HEAD`, which HTTP/2 would otherwise carry.
fn bare(mut response: Response<Body>) -> Response<Body> {
    if response.body().is_end_stream() {
        return response;
    }
    if let Some(length) = response.body().size_hint().exact() {
        response.headers_mut().insert(CONTENT_LENGTH, length.into());
    }
    response.map(|_| tailroute_http::body::full(Bytes::new()))
}

/// Counts a request that is answered with an error of the router.
pub fn refused(routing: &Routing, caller: &Result<Caller, KeyFault>, timer: RequestTimer, error: &ApiError) {
    if error.is_overload() {
        routing.metrics.refused(error.code());
    }
    if let Some(outcome) = error.admission() {
        routing
            .metrics
            .admission(caller.as_ref().map_or("", Caller::name), outcome);
    }
    let outcome = if error.status().is_client_error() {
        "client_error"
    } else {
        "router_error"
    };
    timer.record(routing, outcome);
}

async fn answer(
    context: &RequestContext<'_>,
    head: &mut Parts,
    body: Incoming,
    route: Result<Route, ApiError>,
) -> Result<Response<Body>, ApiError> {
    let proxy = context.proxy;
    match enter(context, &mut head.headers, route)? {
        Route::Models => Ok(models::list(&proxy.state.routing, context.timer)),
        Route::Model(name) => Box::pin(models::one(&proxy.state.routing, context.timer, &name)).await,
        Route::Server => Ok(server_options()),
        Route::Preflight => Ok(cors::preflight(
            &proxy.state.config.http.cors_origins,
            &head.headers,
        )),
        Route::Health => Ok(health(&proxy.state)),
        Route::Turn(endpoint) => turn(context, endpoint, head, body).await,
        // Rare variants are boxed to keep the common future small.
        Route::Tunnel => Box::pin(tunnel::open(context, whole(head, body))).await,
        route @ (Route::Upload(_) | Route::Kept(_) | Route::Other) => {
            Box::pin(relay(context, &route, whole(head, body))).await
        }
    }
}

/// Takes the head of a request that is relayed unchanged.
fn whole(head: &mut Parts, body: Incoming) -> Request<Incoming> {
    let (empty, ()) = Request::new(()).into_parts();
    Request::from_parts(std::mem::replace(head, empty), body)
}

/// Runs the checks that need only the request head. Returns the route.
pub fn enter(
    context: &RequestContext<'_>,
    head: &mut HeaderMap,
    route: Result<Route, ApiError>,
) -> Result<Route, ApiError> {
    let RequestContext { proxy, caller, .. } = *context;
    let route = route?;
    steering::permit_head(proxy.state.config.http.transfer_fields, head)?;
    caller.count_request(context.timer.started)?;
    if let Some(tenant) = caller.tenant() {
        tenant::permit(proxy, &route)?;
        protocol::tenant::settle(tenant, head);
    }
    // Permits are taken after the body is read, so slow senders hold none. If none is free, the body is not read.
    // Preflights and health checks take none.
    if route.needs_key() && !proxy.has_capacity() {
        return Err(ApiError::Overloaded);
    }
    Ok(route)
}

/// Runs the stages of one turn. The response body does the relaying and finishing.
async fn turn(
    context: &RequestContext<'_>,
    endpoint: Endpoint,
    head: &mut Parts,
    body: Incoming,
) -> Result<Response<Body>, ApiError> {
    admit::permit_encoding(&head.headers)?;
    let receiving = context.trace.begin(Stage::Receive);
    // The body's memory stays reserved until the response begins.
    let Received { bytes, room: _room } = admit::read_body(&context.proxy.state, head, body).await?;
    let bytes = admit::without_mark(&mut head.headers, bytes);
    drop(receiving);
    let mut permit = context.permit()?;
    let (turn, body) = admitted(context, endpoint, None, head, bytes, &mut permit).await?;
    let request = TurnRequest {
        context,
        head,
        body: &body,
        turn: &turn,
    };
    let mut permit = Some(permit);
    let answer = forward::deliver(request, &mut permit).await;
    if let Some(permit) = &mut permit {
        // No worker answered, so the key is not charged. A client that disconnects or misses its deadline is charged:
        // its future is dropped before this line, or `deliver` has dropped the permit.
        permit.charge.give_back();
    }
    answer
}

/// Parses and admits a turn. Returns it with the body to send to engines. `among` restricts the eligible workers.
pub async fn admitted(
    context: &RequestContext<'_>,
    endpoint: Endpoint,
    among: Option<Among>,
    head: &Parts,
    body: Bytes,
    permit: &mut RequestPermit,
) -> Result<(Arc<Turn>, Bytes), ApiError> {
    let RequestContext { proxy, trace, .. } = *context;
    let parsing = trace.begin(Stage::Parse);
    let turn = match parse(context, endpoint, among.clone(), head, &body) {
        Err(ApiError::UnknownModel { .. }) if Box::pin(models::refreshed(&proxy.state.routing)).await => {
            parse(context, endpoint, among, head, &body)?
        }
        parsed => parsed?,
    };
    let waiting = parsing.then(Stage::Wait);
    trace.turn(&*turn);
    wait::turn(context, &turn, permit).await?;
    drop(waiting);
    let salts = proxy.admission.settings().salt_requests;
    let body = protocol::tenant::edited(&turn.edits, salts, body);
    Ok((turn, body))
}

fn parse(
    context: &RequestContext<'_>,
    endpoint: Endpoint,
    among: Option<Among>,
    head: &Parts,
    body: &[u8],
) -> Result<Arc<Turn>, ApiError> {
    let RequestContext { proxy, caller, .. } = *context;
    let arrived = proxy.state.routing.clock.now();
    let asked = Asked::of(&proxy.state.routing, &head.extensions)?;
    let turn = Turn::read(proxy, endpoint, caller, head, body, arrived)?;
    Ok(Arc::new(Turn { asked, among, ..turn }))
}

/// Relays a request without parsing it as a turn.
async fn relay(
    context: &RequestContext<'_>,
    route: &Route,
    request: Request<Incoming>,
) -> Result<Response<Body>, ApiError> {
    let RequestContext { proxy, caller, .. } = *context;
    let max = proxy.state.routing.live().limits.max_body_bytes.get();
    let (head, body) = request.into_parts();
    let mut body = ClientBody::new(&proxy.state.routing, &head.headers, body);
    if body.size_hint().lower() > max as u64 {
        return Err(ApiError::BodyTooLarge(max));
    }
    if !body.is_end_stream() {
        admit::permit_encoding(&head.headers)?;
    }
    let mut wanted = Wanted::default();
    if let Route::Kept(id) = route {
        wanted.pinned_to = keeper(proxy, id, caller)?;
    }
    if wanted.pinned_to.is_none() {
        let search = named::search(&proxy.state.routing, route);
        let named = body.model(&proxy.state, search).await?;
        wanted.model = named::model(named, head.uri.query(), search)?;
    }
    if let Some(model) = &wanted.model {
        models::check_again(&proxy.state.routing, model).await?;
    }
    forward::pass(context, Request::from_parts(head, body), &wanted).await
}

/// Returns the worker that stores a response, if known. Fails with 404 if the response may belong to another tenant.
pub fn keeper(proxy: &Proxy, id: &str, caller: &Caller) -> Result<Option<WorkerId>, ApiError> {
    let kept = proxy.stored.find(caller.seed(), id);
    if kept.is_none() && proxy.admission.keys().isolates() {
        return Err(ApiError::UnknownResponse);
    }
    Ok(kept.map(|kept| kept.worker))
}

/// Answers a health check: whether the router has a worker to send requests to. The check is not counted as a request,
/// because load balancers send it all the time.
fn health(state: &State) -> Response<Body> {
    let error = if state.operations.is_draining() {
        ApiError::Draining
    } else if state.routing.fleet.any_ready() {
        return Response::new(tailroute_http::body::full(Bytes::new()));
    } else {
        state.routing.no_worker_ready()
    };
    error.response_for(Family::OpenAi)
}

fn server_options() -> Response<Body> {
    let mut response = Response::new(tailroute_http::body::full(Bytes::new()));
    *response.status_mut() = StatusCode::NO_CONTENT;
    let allow = HeaderValue::from_static("GET, HEAD, POST, PUT, PATCH, DELETE, OPTIONS");
    response.headers_mut().insert(ALLOW, allow);
    response
}

#[cfg(test)]
mod tests;
