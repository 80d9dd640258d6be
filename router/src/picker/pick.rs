//! The worker for a request, by the stages of the request's way: admit, parse, wait, choose.

use std::net::SocketAddr;
use std::sync::Arc;

use bytes::Bytes;
use http::HeaderMap;
use http::request::Parts;
use policy::route::Terms;
use tracing::warn;

use super::served::{Carried, Relayed, Served};
use crate::app::App;
use crate::path::among::Among;
use crate::path::choose::Choice;
use crate::path::context::RequestContext;
use crate::path::flight::{Charged, Flight, Outcome};
use crate::path::forward::{self, Wanted, pass, turn_request};
use crate::path::inspect::Inspector;
use crate::path::{self, models};
use fleet::Worker;
use protocol::error::ApiError;
use protocol::headers;
use protocol::routes::{Endpoint, Route};

/// Where a request goes.
pub(super) struct Pick {
    /// The best endpoint, and those that are as good as it can be had after it.
    pub(super) endpoints: Vec<SocketAddr>,
    /// The request's headers as the worker gets them.
    pub(super) headers: HeaderMap,
    /// Its body as the worker gets it.
    pub(super) body: Bytes,
    /// What is still to come.
    pub(super) served: Served,
}

/// Whether the request's body has to be known before a worker can be picked.
pub(super) fn needs_body(route: &Route) -> bool {
    matches!(route, Route::Turn(_) | Route::Upload(_))
}

/// Picks a worker for a request, of which all is here that [is needed](needs_body).
///
/// # Errors
/// If it is turned away, or there is no worker.
pub(super) async fn pick(
    context: &RequestContext<'_>,
    route: &Route,
    head: &Parts,
    body: Bytes,
    among: Among,
) -> Result<Pick, ApiError> {
    match route {
        Route::Turn(endpoint) => turn(context, *endpoint, head, body, among).await,
        _ => other(context, route, head, body, among),
    }
}

/// A turn of a conversation.
async fn turn(
    context: &RequestContext<'_>,
    endpoint: Endpoint,
    head: &Parts,
    body: Bytes,
    among: Among,
) -> Result<Pick, ApiError> {
    let app = context.app;
    let mut place = context.place()?;
    let (turn, body) = path::admitted(context, (endpoint, Some(among)), head, body, &mut place).await?;
    let (choice, pass) = forward::choose_admitted(app, &turn, &mut Vec::new())?;
    let charged = Charged::default();
    // First: from here on the breaker's pass is held by a guard.
    let mut flight = Flight::start(app, &turn, &choice, pass, Arc::clone(&charged));
    flight.is_out();
    let request = match turn_request(app, head, body, &turn, &choice) {
        Ok(request) => request,
        Err(error) => {
            warn!(worker = choice.worker.name(), %error, "no request could be made for it");
            flight.end(Outcome::NotReached);
            return Err(ApiError::WorkerFailed);
        }
    };
    let (mut parts, body) = request.into_parts();
    let leg = context.trail.attempt(&choice, &mut parts.headers);
    flight.traced(leg.note());
    place.sent();
    let endpoints = endpoints(app, &choice);
    let carried = Carried::new(app, turn, &choice, ((flight, leg), charged), place);
    Ok(Pick {
        endpoints,
        headers: parts.headers,
        body,
        served: Served::Turn(Box::new(carried)),
    })
}

/// The chosen worker's endpoint, and then those of workers that can take the very same request, the least score first.
fn endpoints(app: &App, choice: &Choice) -> Vec<SocketAddr> {
    let most = 1 + app
        .config
        .endpoint_picker
        .as_ref()
        .map_or(0, |picker| picker.fallbacks);
    let mut endpoints: Vec<SocketAddr> = choice.worker.endpoint.into_iter().collect();
    if most <= endpoints.len() {
        return endpoints;
    }
    let workers = app.fleet.workers();
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

/// Whether a request that was made ready for `picked` is one for this worker as well: the gateway sends the same to both.
fn stands_in(worker: &Worker, picked: &Worker) -> bool {
    let (spec, other) = (&worker.spec, &picked.spec);
    spec.rank == other.rank
        && spec.api_key == other.api_key
        && spec.priority == other.priority
        && worker.dialect().name() == picked.dialect().name()
}

/// A request that passes unread.
fn other(
    context: &RequestContext<'_>,
    route: &Route,
    head: &Parts,
    body: Bytes,
    among: Among,
) -> Result<Pick, ApiError> {
    let RequestContext { app, caller, .. } = *context;
    let mut wanted = Wanted {
        among: Some(among),
        ..Wanted::default()
    };
    // What of the body is not here yet is looked at as it passes.
    let mut inspector = Inspector::new(app, &head.headers);
    inspector.push(&body)?;
    match route {
        Route::Kept(id) => wanted.home = path::keeper(app, id, caller)?,
        Route::Model(name) => wanted.model = Some(name.clone()),
        Route::Upload(_) => wanted.model = inspector.model(),
        _ => {}
    }
    if let Some(model) = &wanted.model {
        models::check(app, model)?;
    }
    let place = context.place()?;
    let in_flight = pass::some_worker(app, &head.headers, &[], &wanted).ok_or_else(|| app.nobody_ready())?;
    let worker = in_flight.worker();
    Ok(Pick {
        endpoints: worker.endpoint.into_iter().collect(),
        headers: headers::addressed(&head.headers, app.admission.has_keys(), &worker.spec),
        body,
        served: Served::Other(Box::new(Relayed::new(
            app,
            in_flight,
            place,
            (context.started, context.endpoint),
            inspector,
        ))),
    })
}
