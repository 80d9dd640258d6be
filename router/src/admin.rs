//! The admin port: metrics, why the router does what it does, and how it is changed while it serves. Never on the data port.
//!
//! Every answer but metrics and health comes from a table of operations ([`operation::Operation`]): method, path, the role
//! that it takes, the schema of what it takes and answers. One table drives the routes, the check of who may, the check of
//! bodies and queries, the audit log, the metrics and the OpenAPI document, so that they cannot disagree. A resource is a
//! file with its operations and the functions that answer them; to add one, add it to [`operations`].
//!
//! | file | what it answers |
//! |---|---|
//! | [`status`] | metrics, health, `slo`, `config` |
//! | [`decisions`] | why turns went where they went, and why they were late |
//! | [`index`] | which prefixes live where |
//! | [`session`] | who asks |
//! | [`policy`] | the policy in force, its history, changes, rollback |
//! | [`preview`] | another policy on captured turns, or beside the live ones |
//! | [`capture`] | the newest turns |
//! | [`workers`] | each worker, taken out and back, its α |
//! | [`keys`] | what each API key may still use, and one that is given it back |
//! | [`members`] | workers that join and leave |
//! | [`discovery`] | what finds workers |
//! | [`audit`] | who changed what |
//! | [`events`] | what changes, as it happens |
//! | [`openapi`] | the document of all this |
//! | [`console`] | pages for people |
//! | [`operation`], [`call`], [`problem`], [`reason`], [`serve`] | what all of them share |

pub mod audit;
pub mod calibration;
pub mod call;
pub mod capture;
pub mod console;
pub mod decisions;
pub mod discovery;
pub mod events;
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
pub mod workers;

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::Router;
use axum::extract::Request;
use axum::http::{HeaderValue, Method, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{MethodFilter, MethodRouter, on};

use self::operation::Operation;
use self::problem::Problem;
use crate::app::App;

/// Every operation of the admin port, in the order of its document.
#[must_use]
pub fn operations() -> Vec<Operation> {
    [
        status::operations(),
        session::operations(),
        decisions::operations(),
        index::operations(),
        log::operations(),
        policy::operations(),
        preview::operations(),
        capture::operations(),
        workers::operations(),
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

/// The routes of the admin port.
pub fn router(app: &Arc<App>) -> Router {
    let mut paths: BTreeMap<&'static str, Vec<Arc<Operation>>> = BTreeMap::new();
    for operation in operations() {
        paths.entry(operation.path).or_default().push(Arc::new(operation));
    }
    let mut router = console::routes(status::health(Router::new(), app));
    for (path, operations) in paths {
        router = router.route(path, methods(app, &operations));
    }
    router.fallback(|| async { Problem::not_found("there is nothing at this path").into_response() })
}

/// The operations of one path; other methods are told which there are.
fn methods(app: &Arc<App>, operations: &[Arc<Operation>]) -> MethodRouter {
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
        let (app, operation) = (Arc::clone(app), Arc::clone(operation));
        methods = methods.merge(on(filter, move |request: Request| {
            call::answer(Arc::clone(&app), Arc::clone(&operation), request)
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
