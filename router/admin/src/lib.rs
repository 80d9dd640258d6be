//! The admin port, separate from the data port: metrics, explanations of routing, and changes at runtime.
//!
//! Every response except metrics and health comes from a table of operations ([`operation::Operation`]): method, path,
//! role, and the schemas of request and response. It drives routes, authorisation, validation, the audit log, metrics
//! and the OpenAPI document. Each resource has a file with its operations and handlers; [`operations`] lists them.

pub mod audit;
pub mod calibration;
pub mod call;
pub mod capture;
mod compression;
pub mod console;
pub mod decisions;
pub mod discovery;
pub mod dispatch;
pub mod events;
pub mod history;
pub mod hits;
pub mod holds;
pub mod index;
pub mod keys;
pub mod log;
pub mod members;
pub mod openapi;
pub mod operation;
pub mod policy;
pub mod preview;
pub mod problem;
pub mod reason;
pub mod serve;
pub mod session;
pub mod slo;
pub mod status;
mod worker_facts;
mod worker_sources;
pub mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, MethodRouter, on};

use self::history::History;
use self::operation::Operation;
use self::problem::Problem;
use metrics::Gauges;
use operator::recent::Recent;
use proxy::Proxy;
use replicas::Bus;
use state::State;

/// The parts that the admin API shows and changes.
#[derive(Debug)]
pub struct Admin {
    /// The state that every part shares.
    pub state: Arc<State>,
    /// The request path.
    pub proxy: Arc<Proxy>,
    /// The exchange with other replicas, if configured.
    pub bus: Option<Arc<Bus>>,
    /// Figures of the last day.
    pub history: History,
}

impl Admin {
    /// Returns whether the router has just started and waits for the state of other replicas.
    pub fn is_joining(&self) -> bool {
        let bus = self.bus.as_ref();
        bus.is_some_and(|bus| bus.is_joining(self.state.routing.clock.now()))
    }

    /// Returns the captures in memory.
    pub(crate) fn captures(&self) -> &Recent {
        &self.state.operations.operator.recent
    }

    /// Returns the gauges of the metrics page.
    pub fn gauges(&self) -> Gauges {
        let bus = self.bus.as_ref().map(|bus| bus.gauges());
        self.state.gauges(self.proxy.admission.gate.counts(), bus)
    }
}

/// Returns every operation of the admin port, in the order of the OpenAPI document.
pub fn operations() -> Vec<Operation> {
    [
        status::operations(),
        history::operations(),
        session::operations(),
        decisions::operations(),
        index::operations(),
        log::operations(),
        policy::operations(),
        preview::operations(),
        capture::operations(),
        workers::operations(),
        holds::operations(),
        calibration::operations(),
        members::operations(),
        keys::operations(),
        discovery::operations(),
        audit::operations(),
        events::operations(),
        openapi::operations(),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Returns the routes of the admin port.
pub fn router(admin: &Arc<Admin>) -> Router {
    let mut paths: BTreeMap<&'static str, Vec<Arc<Operation>>> = BTreeMap::new();
    for operation in operations() {
        paths.entry(operation.path).or_default().push(Arc::new(operation));
    }
    let mut router = console::routes(Router::new());
    for (path, operations) in paths {
        router = router.route(path, methods(admin, &operations));
    }
    let router = compression::compressed(router).merge(status::health(admin));
    router.fallback(|| async { Problem::not_found("there is nothing at this path").into_response() })
}

/// Returns the routes of one path. Other methods get 405 with the allowed ones.
fn methods(admin: &Arc<Admin>, operations: &[Arc<Operation>]) -> MethodRouter {
    let mut methods = MethodRouter::new();
    let mut allowed: Vec<&str> = Vec::new();
    for operation in operations {
        let Ok(filter) = MethodFilter::try_from(operation.method.clone()) else {
            continue;
        };
        allowed.push(operation.method.as_str());
        if operation.method == Method::GET {
            allowed.push("HEAD");
        }
        let (admin, operation) = (Arc::clone(admin), Arc::clone(operation));
        methods = methods.merge(on(filter, move |request: Request| {
            dispatch::answer(Arc::clone(&admin), Arc::clone(&operation), request)
        }));
    }
    let allowed = allowed.join(", ");
    methods.fallback(move || async move { not_allowed(&allowed) })
}

fn not_allowed(allowed: &str) -> Response {
    let mut response = Problem::method_not_allowed(allowed).into_response();
    if let Ok(allowed) = HeaderValue::from_str(allowed) {
        response.headers_mut().insert(header::ALLOW, allowed);
    }
    response
}
