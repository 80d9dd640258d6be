//! What a tenant may ask for. Where callers are told apart, everything that a prompt or a conversation could be recognised
//! by is [the tenant's own](protocol::tenant).
//!
//! What has no place for a salt is refused, unless the configuration allows it: engines know no salt for Anthropic's
//! messages, for forms and for WebSockets.

use protocol::error::ApiError;
use protocol::routes::{Endpoint, Route};

use crate::app::App;

/// Whether a tenant's body may be passed on.
///
/// # Errors
/// 403 if it names what others may have left in an engine.
pub fn permit_body(app: &App, foreign: Option<&'static str>) -> Result<(), ApiError> {
    match foreign {
        Some(what) if app.admission.settings().salt_requests => Err(ApiError::Unsalted {
            what,
            instead: "leave it out",
        }),
        _ => Ok(()),
    }
}

/// Whether a tenant may ask for this.
///
/// # Errors
/// 403 if what it leaves in an engine's cache could be found by other tenants.
pub fn permit(app: &App, route: &Route) -> Result<(), ApiError> {
    let settings = app.admission.settings();
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
        Route::Turn(endpoint) if endpoint.is_cached() && !endpoint.generates() && shares_inputs(app) => (
            settings.unsalted_embeddings,
            "inputs of SGLang's embedding models",
            "serve them with --disable-radix-cache, or have `admission.unsalted_embeddings` set",
        ),
        _ => return Ok(()),
    };
    // Without salts nothing is kept apart in engines anyway.
    if allowed || !settings.salt_requests {
        return Ok(());
    }
    Err(ApiError::Unsalted { what, instead })
}

/// Whether some worker that may be given work caches inputs without a salt, or has not said that it does not.
fn shares_inputs(app: &App) -> bool {
    app.fleet
        .workers()
        .iter()
        .any(|worker| worker.is_well() && worker.shares_inputs())
}
