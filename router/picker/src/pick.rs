//! Picks the worker for a request with the stages of the data path.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use policy::route::Terms;

use super::served::{CarriedTurn, Relayed, Served};
use fleet::Worker;
use protocol::api::Endpoint;
use protocol::error::ApiError;
use protocol::headers;
use protocol::routes::Route;
use proxy::path::among::Among;
use proxy::path::context::RequestContext;
use proxy::path::flight::Flight;
use proxy::path::forward::{self, Wanted, pass};
use proxy::path::inspect::{Inspector, Search};
use proxy::path::retry::Charged;
use proxy::path::select::Choice;
use proxy::path::{self, models, named};
use state::Routing;

pub(super) struct Pick {
    /// Best endpoint, followed by fallbacks in order.
    pub(super) endpoints: Vec<SocketAddr>,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
    pub(super) served: Served,
}

pub(super) fn needs_body(routing: &Routing, route: &Route) -> bool {
    matches!(route, Route::Turn(_)) || named::search(routing, route) != Search::Nothing
}

/// Picks a worker for a request. The body must be complete if it [is needed](needs_body). Fails if the request is
/// rejected or no worker is available.
pub(super) async fn pick(
    context: &RequestContext<'_>,
    route: &Route,
    head: &Parts,
    body: Bytes,
    among: Among,
) -> Result<Pick, ApiError> {
    match route {
        Route::Turn(endpoint) => turn(context, *endpoint, head, body, among).await,
        _ => other(context, route, head, body, among).await,
    }
}

async fn turn(
    context: &RequestContext<'_>,
    endpoint: Endpoint,
    head: &Parts,
    body: Bytes,
    among: Among,
) -> Result<Pick, ApiError> {
    let proxy = context.proxy;
    let mut permit = context.permit()?;
    let (turn, body) = path::admitted(context, endpoint, Some(among), head, body, &mut permit).await?;
    let (choice, pass) = forward::select_admitted(&proxy.state.routing, &turn, &mut Vec::new())?;
    let charged = Charged::default();
    let flight = Flight::start(proxy, context.trace, &turn, &choice, pass, Arc::clone(&charged));
    let (mut flight, request) = flight.request(head, body, &choice)?;
    flight.mark_sent();
    let (parts, body) = request.into_parts();
    permit.sent();
    let endpoints = endpoints(&proxy.state.routing, &choice);
    let carried = CarriedTurn::new(proxy, turn, &choice, flight, charged, permit);
    Ok(Pick {
        endpoints,
        headers: parts.headers,
        body,
        served: Served::Turn(Box::new(carried)),
    })
}

/// Returns the chosen worker's endpoint, then those of workers that can take the identical request, by score.
fn endpoints(routing: &Routing, choice: &Choice) -> Vec<SocketAddr> {
    let most = 1 + routing
        .config
        .endpoint_picker
        .as_ref()
        .map_or(0, |picker| picker.fallbacks);
    let mut endpoints: Vec<SocketAddr> = choice.worker.endpoint.into_iter().collect();
    if most <= endpoints.len() {
        return endpoints;
    }
    let workers = routing.fleet.workers();
    let mut others: Vec<&Terms> = choice.decision.terms.iter().collect();
    others.retain(|terms| terms.ready && terms.worker != choice.worker.id);
    others.sort_by(|a, b| {
        let by_time = || a.predicted_ttft().0.total_cmp(&b.predicted_ttft().0);
        a.score.total_cmp(&b.score).then_with(by_time)
    });
    for terms in others {
        let Some(worker) = workers.get(terms.worker.index()) else {
            continue;
        };
        let Some(endpoint) = worker.endpoint.filter(|_| stands_in(worker, &choice.worker)) else {
            continue;
        };
        if endpoints.len() < most && !endpoints.contains(&endpoint) {
            endpoints.push(endpoint);
        }
    }
    endpoints
}

/// Returns whether a request prepared for `picked` is valid on this worker too. The gateway sends the same request to
/// both.
fn stands_in(worker: &Worker, picked: &Worker) -> bool {
    let (spec, other) = (&worker.spec, &picked.spec);
    spec.rank == other.rank
        && spec.api_key == other.api_key
        && spec.priority == other.priority
        && worker.dialect().name() == picked.dialect().name()
}

async fn other(
    context: &RequestContext<'_>,
    route: &Route,
    head: &Parts,
    body: Bytes,
    among: Among,
) -> Result<Pick, ApiError> {
    let RequestContext { proxy, caller, .. } = *context;
    let mut wanted = Wanted {
        among: Some(among),
        ..Wanted::default()
    };
    // The remaining body is inspected as it passes.
    let mut inspector = Inspector::new(&proxy.state.routing, &head.headers);
    inspector.push(&body)?;
    match route {
        Route::Kept(id) => wanted.pinned_to = path::keeper(proxy, id, caller)?,
        Route::Model(name) => wanted.model = Some(name.clone()),
        Route::Tunnel => wanted.model = named::tunnel(&proxy.state.routing, head.uri.query())?,
        _ => {}
    }
    if wanted.pinned_to.is_none() && wanted.model.is_none() {
        let search = named::search(&proxy.state.routing, route);
        wanted.model = named::model(inspector.model(&body), head.uri.query(), search)?;
    }
    if let Some(model) = &wanted.model {
        models::check_again(&proxy.state.routing, model).await?;
    }
    let permit = context.permit()?;
    let in_flight = pass::some_worker(&proxy.state.routing, &head.headers, &[], &wanted)
        .ok_or_else(|| proxy.state.routing.no_worker_ready())?;
    let worker = in_flight.worker();
    Ok(Pick {
        endpoints: worker.endpoint.into_iter().collect(),
        headers: headers::addressed(&head.headers, proxy.admission.keys().is_required(), &worker.spec),
        body,
        served: Served::Other(Box::new(Relayed::new(
            &proxy.state,
            in_flight,
            permit,
            context.timer,
            inspector,
        ))),
    })
}
