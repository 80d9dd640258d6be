//! Restricts tenants' requests. Every identifier of a prompt or conversation is [scoped](protocol::tenant) to its
//! tenant. Requests that cannot carry a cache salt are refused, unless configured otherwise (`docs/admission.md`).

use protocol::error::ApiError;
use protocol::routes::{Endpoint, Route};

use crate::Proxy;

/// Checks a tenant's body. Fails with 403 if it names an object in an engine that may be another tenant's.
pub fn permit_body(proxy: &Proxy, foreign: Option<&'static str>) -> Result<(), ApiError> {
    match foreign {
        Some(what) if proxy.admission.settings().salt_requests => Err(ApiError::Unsalted {
            what,
            instead: "leave it out",
        }),
        _ => Ok(()),
    }
}

/// Checks a tenant's route. Fails with 403 if other tenants could detect its entries in an engine's cache.
pub fn permit(proxy: &Proxy, route: &Route) -> Result<(), ApiError> {
    let settings = proxy.admission.settings();
    let (allowed, what, instead) = match route {
        Route::Turn(Endpoint::Messages) => (
            settings.unsalted_messages,
            "this endpoint's prompts",
            "use /v1/chat/completions, or have `admission.unsalted_messages` set",
        ),
        Route::Upload(_) => (
            settings.unsalted_forms,
            "forms",
            "it takes `admission.unsalted_forms` to allow them",
        ),
        Route::Tunnel => (
            settings.unsalted_websockets,
            "WebSockets",
            "it takes `admission.unsalted_websockets` to allow them",
        ),
        Route::Turn(endpoint) if endpoint.is_cached() && !endpoint.generates() && shares_inputs(proxy) => (
            settings.unsalted_embeddings,
            "inputs of SGLang's embedding models",
            "serve them with --disable-radix-cache, or have `admission.unsalted_embeddings` set",
        ),
        _ => return Ok(()),
    };
    // Without salts, engines isolate nothing.
    if allowed || !settings.salt_requests {
        return Ok(());
    }
    Err(ApiError::Unsalted { what, instead })
}

/// Whether a healthy worker caches inputs without a salt, or may do so.
fn shares_inputs(proxy: &Proxy) -> bool {
    proxy
        .state
        .fleet
        .workers()
        .iter()
        .any(|worker| worker.is_well() && worker.shares_inputs())
}
