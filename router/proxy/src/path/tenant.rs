//! Restricts tenants' requests. Every identifier of a prompt or conversation is [scoped](protocol::tenant) to its
//! tenant. Requests that cannot carry a cache salt are refused, unless configured otherwise (`docs/admission.md`).

use protocol::error::ApiError;
use protocol::routes::Route;

use crate::Proxy;
use crate::admission::Admission;
use state::Routing;

/// Checks a tenant's body. Fails with 403 if it names an object in an engine that may be another tenant's.
pub fn permit_body(admission: &Admission, foreign: Option<&'static str>) -> Result<(), ApiError> {
    match foreign {
        Some(what) if is_isolating(admission) => Err(ApiError::ForeignState(what)),
        _ => Ok(()),
    }
}

/// Checks a tenant's route. Fails with 403 if other tenants could detect its entries in an engine's cache.
pub fn permit(proxy: &Proxy, route: &Route) -> Result<(), ApiError> {
    let settings = proxy.admission.settings();
    let (allowed, what, instead) = match route {
        Route::Turn(endpoint) if !endpoint.facts().takes_salt => (
            settings.unsalted_messages,
            "This endpoint",
            "Use /v1/chat/completions, or ask your operator to set admission.unsalted_messages.",
        ),
        Route::Upload(_) => (
            settings.unsalted_forms,
            "Forms",
            "Ask your operator to set admission.unsalted_forms.",
        ),
        Route::Tunnel => (
            settings.unsalted_websockets,
            "WebSockets",
            "Ask your operator to set admission.unsalted_websockets.",
        ),
        Route::Turn(endpoint)
            if endpoint.is_cached() && !endpoint.generates() && shares_inputs(&proxy.state.routing) =>
        {
            (
                settings.unsalted_embeddings,
                "SGLang's embedding models",
                "Ask your operator to serve them with --disable-radix-cache, or to set admission.unsalted_embeddings.",
            )
        }
        _ => return Ok(()),
    };
    if allowed || !is_isolating(&proxy.admission) {
        return Ok(());
    }
    Err(ApiError::Unsalted { what, instead })
}

/// Returns whether there are tenants to isolate. Without salts, engines isolate nothing.
fn is_isolating(admission: &Admission) -> bool {
    admission.keys().isolates() && admission.settings().salt_requests
}

/// Returns whether a healthy worker caches inputs without a salt, or may do so.
fn shares_inputs(routing: &Routing) -> bool {
    routing
        .fleet
        .workers()
        .iter()
        .any(|worker| worker.is_well() && worker.shares_inputs())
}
