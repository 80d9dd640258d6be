//! Metrics, health, objectives and configuration.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use config::Role;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply, local_only};
use super::operation::Operation;
use super::problem::Problem;
use crate::admin::slo::explain;
use crate::app::App;
use crate::bus::BusState;
use crate::reload;
use fleet::hold::Hold;
use metrics::Format;

/// Adds the routes of probes and scrapers, which have no token or one for metrics only.
pub(super) fn health(router: Router, app: &Arc<App>) -> Router {
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(app));
    router.merge(metrics).merge(probes(app))
}

/// Returns the routes of probes.
pub(super) fn probes(app: &Arc<App>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .with_state(Arc::clone(app))
}

/// Other replicas.
#[derive(Debug, Serialize, JsonSchema)]
struct Replicas {
    /// Whether `[fleet]` names a NATS server. Without one this router knows of no other.
    configured: bool,
    #[serde(flatten)]
    bus: Option<BusState>,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::new::<serde_json::Map<String, serde_json::Value>, _, _>(
            "slo.get",
            (Method::GET, "/admin/v1/slo"),
            Role::Read,
            "The latency objectives, how they are met, and how much of the free tail is used for them",
            |call: Call| async move { Reply::json(&explain(&call.app)) },
        ),
        Operation::new::<reload::State, _, _>(
            "config.get",
            (Method::GET, "/admin/v1/config"),
            Role::Read,
            "The configuration in force, and the errors of the last one that was read",
            |call: Call| async move { Reply::json(&*call.app.reloads.lock()) },
        ),
        Operation::new::<Replicas, _, _>(
            "replicas.get",
            (Method::GET, "/admin/v1/replicas"),
            Role::Read,
            "The other replicas of this router, and the state of the NATS connection",
            |call: Call| async move {
                let (bus, now) = (&call.app.bus, call.app.clock.now());
                Reply::json(&Replicas {
                    configured: bus.is_some(),
                    bus: bus.as_ref().map(|bus| bus.state(now)),
                })
            },
        ),
    ]
}

async fn metrics(State(app): State<Arc<App>>, headers: HeaderMap) -> Response {
    if let Err(problem) = may_scrape(&app, &headers) {
        app.metrics.admin_request("metrics", problem.status().as_u16());
        return problem.into_response();
    }
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    match app.metrics.render(&app.gauges(), format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn may_scrape(app: &App, headers: &HeaderMap) -> Result<(), Problem> {
    let tokens = app.operator.tokens.load();
    if !tokens.is_required() {
        return local_only(headers);
    }
    if !tokens.opens_metrics() && tokens.identify(headers).is_none() {
        return Err(Problem::unauthorized());
    }
    Ok(())
}

/// Ready when a worker is ready, the state of other replicas is loaded, and the router is not draining.
async fn readyz(State(app): State<Arc<App>>) -> (StatusCode, String) {
    if app.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned())
    } else if app.is_joining() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "joining: loading the index of another replica\n".to_owned(),
        )
    } else if app.fleet.any_ready() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", why_none(&app)))
    }
}

/// Explains why no worker can get work, for example because all of them are cordoned or draining.
fn why_none(app: &App) -> String {
    if app.config.discovery.is_on() && app.fleet.present().is_empty() {
        return "no worker has been found (GET /admin/v1/discovery says why)".to_owned();
    }
    let holds: Vec<Hold> = app.fleet.workers().iter().map(|worker| worker.hold()).collect();
    let count = |hold| holds.iter().filter(|held| **held == hold).count();
    let (cordoned, draining) = (count(Hold::Cordoned), count(Hold::Draining));
    match cordoned + draining {
        0 => "no worker is ready".to_owned(),
        held if held == holds.len() => {
            format!("all workers are held ({cordoned} cordoned, {draining} draining)")
        }
        _ => format!("no worker is ready ({cordoned} cordoned, {draining} draining)"),
    }
}
