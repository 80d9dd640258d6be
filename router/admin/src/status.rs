//! Metrics, health, objectives and configuration.

use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use schemars::JsonSchema;
use serde::Serialize;

use super::call::{Call, Reply};
use super::dispatch::local_only;
use super::operation::Operation;
use super::problem::Problem;
use crate::Admin;
use crate::slo::explain;
use fleet::overrides::AdminState;
use metrics::Format;
use operator::reloads::ReloadState;
use policy::units::Millis;
use replicas::BusState;

/// Returns the routes of probes, which need no token, and of metrics, which need one unless `admin.open_metrics` is set.
pub(super) fn health(admin: &Arc<Admin>) -> Router {
    let metrics = Router::new()
        .route("/metrics", get(metrics))
        .with_state(Arc::clone(admin));
    metrics.merge(probes(admin))
}

pub(super) fn probes(admin: &Arc<Admin>) -> Router {
    Router::new()
        .route("/livez", get(|| async { "alive\n" }))
        .route("/readyz", get(readyz))
        .with_state(Arc::clone(admin))
}

/// State of the exchange with other replicas.
#[derive(Debug, Serialize, JsonSchema)]
struct ReplicasStatus {
    /// Whether `[fleet]` names a NATS server. Without one, this router knows of no other replica.
    configured: bool,
    #[serde(flatten)]
    bus: Option<BusState>,
}

/// The configuration in force.
#[derive(Debug, Serialize, JsonSchema)]
struct Configuration {
    #[serde(flatten)]
    reloads: ReloadState,
    /// Time at which the router started, in milliseconds since 1970.
    started_unix_ms: f64,
    /// Address of the data port.
    listen: String,
    /// Whether clients need an API key.
    keys_required: bool,
}

pub(super) fn operations() -> Vec<Operation> {
    vec![
        Operation::get::<serde_json::Map<String, serde_json::Value>, _, _>(
            "slo.get",
            "/admin/v1/slo",
            "The latency objectives, how they are met, how much of the free tail is used for them, and what costs cache hits",
            |call: Call| async move { Reply::json(&explain(&call.admin)) },
        ),
        Operation::get::<Configuration, _, _>(
            "config.get",
            "/admin/v1/config",
            "The configuration in force, and the errors of the last one that was read",
            |call: Call| async move {
                Reply::json(&Configuration {
                    reloads: call.admin.state.operations.operator.reloads.lock().clone(),
                    started_unix_ms: call.admin.state.routing.clock.unix_ms(Millis::ZERO).round(),
                    listen: call.admin.state.config.server.listen.to_string(),
                    keys_required: call.admin.proxy.admission.keys().is_required(),
                })
            },
        ),
        Operation::get::<ReplicasStatus, _, _>(
            "replicas.get",
            "/admin/v1/replicas",
            "The other replicas of this router, and the state of the NATS connection",
            |call: Call| async move {
                let (bus, now) = (&call.admin.bus, call.admin.state.routing.clock.now());
                Reply::json(&ReplicasStatus {
                    configured: bus.is_some(),
                    bus: bus.as_ref().map(|bus| bus.state(now)),
                })
            },
        ),
    ]
}

async fn metrics(State(admin): State<Arc<Admin>>, headers: HeaderMap) -> Response {
    if let Err(problem) = may_scrape(&admin, &headers) {
        admin
            .state
            .routing
            .metrics
            .admin_request("metrics", problem.status().as_u16());
        return problem.into_response();
    }
    let accept = headers
        .get(header::ACCEPT)
        .and_then(|accept| accept.to_str().ok());
    let format = Format::accepted(accept.unwrap_or_default());
    match admin.state.routing.metrics.render(&admin.gauges(), format) {
        Ok(text) => ([(header::CONTENT_TYPE, format.content_type())], text).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

fn may_scrape(admin: &Admin, headers: &HeaderMap) -> Result<(), Problem> {
    let tokens = admin.state.operations.operator.tokens.load();
    if !tokens.is_required() {
        return local_only(headers);
    }
    if !tokens.opens_metrics() && tokens.identify(headers).is_none() {
        return Err(Problem::unauthorized());
    }
    Ok(())
}

/// Responds with 200 if a worker is ready, the state of other replicas is loaded, and the router is not draining.
async fn readyz(State(admin): State<Arc<Admin>>) -> (StatusCode, String) {
    if admin.state.operations.is_draining() {
        (StatusCode::SERVICE_UNAVAILABLE, "draining\n".to_owned())
    } else if admin.is_joining() {
        (
            StatusCode::SERVICE_UNAVAILABLE,
            "joining: loading the index of another replica\n".to_owned(),
        )
    } else if admin.state.routing.fleet.any_ready() {
        (StatusCode::OK, "ready\n".to_owned())
    } else {
        (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", why_none(&admin)))
    }
}

/// Explains why no worker is ready, for example because all of them are cordoned or draining.
fn why_none(admin: &Admin) -> String {
    if admin.state.config.discovery.is_on() && admin.state.routing.fleet.present().is_empty() {
        return "no worker has been found (GET /admin/v1/discovery says why)".to_owned();
    }
    let holds: Vec<AdminState> = admin
        .state
        .routing
        .fleet
        .workers()
        .iter()
        .map(|worker| worker.admin_state())
        .collect();
    let count = |hold| holds.iter().filter(|held| **held == hold).count();
    let (cordoned, draining) = (count(AdminState::Cordoned), count(AdminState::Draining));
    match cordoned + draining {
        0 => "no worker is ready".to_owned(),
        held if held == holds.len() => {
            format!("all workers are held ({cordoned} cordoned, {draining} draining)")
        }
        _ => format!("no worker is ready ({cordoned} cordoned, {draining} draining)"),
    }
}
