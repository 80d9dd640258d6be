//! One tenant's prefixes never speed up, or reveal, another's.
//!
//! Where callers are told apart, everything that a prompt or a conversation could be recognised by is [the tenant's
//! own](crate::admission::tenants): the fingerprint that the router chooses by, the names of conversations, in the head and in
//! the body, and the engine's own cache, which vLLM and SGLang divide by the body's `cache_salt`. What a client gives for
//! these goes into the tenant's, so that it can still divide what is its own.
//!
//! What has no place for a salt is refused, unless the configuration allows it: engines know no salt for Anthropic's
//! messages, for forms and for WebSockets.

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};

use super::choose::Turn;
use super::headers;
use super::routes::{Endpoint, Route};
use super::splice;
use crate::admission::tenants::Tenant;
use crate::app::App;
use crate::error::ApiError;

/// Divides engines' caches.
const SALT: &str = "cache_salt";

/// A member of a body, and the text that it is to be.
pub type Edit = (&'static str, String);

/// What a body gives that names something, as text.
#[derive(Debug, Default)]
pub struct Given<'a> {
    /// `cache_salt`
    pub salt: Option<&'a str>,
    /// `session_id`
    pub session: Option<&'a str>,
    /// `prompt_cache_key`
    pub cache_key: Option<&'a str>,
    /// `request_id`, where the answer is kept by it.
    pub request_id: Option<&'a str>,
}

/// What a tenant's body has to say otherwise.
#[must_use]
pub fn edits(tenant: &Tenant, endpoint: Endpoint, given: &Given<'_>) -> Vec<Edit> {
    let session = |name: &str| tenant.session(name.as_bytes());
    let salted = endpoint.is_cached() || given.salt.is_some();
    [
        salted.then(|| (SALT, tenant.salt(given.salt))),
        given.session.map(|name| ("session_id", session(name))),
        given.cache_key.map(|name| ("prompt_cache_key", session(name))),
        given
            .request_id
            .map(|name| ("request_id", tenant.response(name.as_bytes()))),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The body as engines get it.
#[must_use]
pub fn edited(app: &App, turn: &Turn, mut body: Bytes) -> Bytes {
    let salts = app.admission.settings().salt_requests;
    for (member, value) in turn.edits.iter().filter(|(member, _)| salts || *member != SALT) {
        if let Some(edited) = splice::set(&body, member, &format!("\"{value}\"")) {
            body = edited.into();
        }
    }
    body
}

/// Names the conversation in a request's head as the tenant's own.
pub fn settle(tenant: &Tenant, head: &mut HeaderMap) {
    let own = head.remove(headers::SESSION).filter(|own| !own.is_empty());
    if let Some(own) = own
        && let Ok(name) = HeaderValue::try_from(tenant.session(own.as_bytes()))
    {
        head.insert(headers::SESSION, name);
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
        _ => return Ok(()),
    };
    // Without salts nothing is kept apart in engines anyway.
    if allowed || !settings.salt_requests {
        return Ok(());
    }
    Err(ApiError::Unsalted { what, instead })
}
