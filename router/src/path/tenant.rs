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
use http::{HeaderMap, HeaderName, HeaderValue};

use super::choose::Turn;
use super::headers;
use super::routes::{Endpoint, Route};
use super::{splice, steering};
use crate::admission::tenants::Tenant;
use crate::app::App;
use crate::error::ApiError;

/// Divides engines' caches.
const SALT: &str = "cache_salt";

/// By which tenants could overtake one another in an engine's queue: vLLM's header.
const VLLM_PRIORITY: HeaderName = HeaderName::from_static("x-vllm-priority");

/// A member that a tenant's body may not have: it names what other requests have left in an engine (SGLang's sessions).
/// Where [steering](super::steering) is allowed, its fields are no tenant's either.
const SESSIONS: &str = "session_params";

/// What becomes of a member of a body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// It is this text, whatever it was.
    Set(&'static str, String),
    /// It is taken out.
    Remove(&'static str),
}

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
    /// `priority`: the number by which a request would overtake others in an engine, those of other tenants too.
    pub priority: bool,
    /// `rid`: SGLang's name for a request, which no two may share.
    pub rid: bool,
}

/// The member of that name, if no tenant may have it.
#[must_use]
pub fn foreign(member: &[u8]) -> Option<&'static str> {
    (member == SESSIONS.as_bytes()).then_some(SESSIONS)
}

/// What a tenant's body has to say otherwise.
#[must_use]
pub fn edits(tenant: &Tenant, endpoint: Endpoint, given: &Given<'_>) -> Vec<Edit> {
    let session = |name: &str| tenant.session(name.as_bytes());
    let salted = endpoint.is_cached() || given.salt.is_some();
    let set = |member, text: Option<String>| text.map(|text| Edit::Set(member, text));
    [
        set(SALT, salted.then(|| tenant.salt(given.salt))),
        set("session_id", given.session.map(session)),
        set("prompt_cache_key", given.cache_key.map(session)),
        set(
            "request_id",
            given.request_id.map(|name| tenant.response(name.as_bytes())),
        ),
        given.priority.then_some(Edit::Remove("priority")),
        given.rid.then_some(Edit::Remove("rid")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// The body as engines get it.
#[must_use]
pub fn edited(app: &App, turn: &Turn, mut body: Bytes) -> Bytes {
    let salts = app.admission.settings().salt_requests;
    for edit in &turn.edits {
        let edited = match edit {
            Edit::Set(SALT, _) if !salts => None,
            Edit::Set(member, text) => splice::set(&body, member, &format!("\"{text}\"")),
            Edit::Remove(member) => splice::without(&body, member),
        };
        if let Some(edited) = edited {
            body = edited.into();
        }
    }
    body
}

/// Names the conversation in a request's head as the tenant's own, and takes out what would make an engine prefer the
/// request to others', or take it for another.
pub fn settle(tenant: &Tenant, head: &mut HeaderMap) {
    let own = head.remove(headers::SESSION).filter(|own| !own.is_empty());
    if let Some(own) = own
        && let Ok(name) = HeaderValue::try_from(tenant.session(own.as_bytes()))
    {
        head.insert(headers::SESSION, name);
    }
    head.remove(VLLM_PRIORITY);
    let overriding = head
        .keys()
        .filter(|name| name.as_str().starts_with(steering::OVERRIDE));
    for name in overriding.cloned().collect::<Vec<_>>() {
        head.remove(name);
    }
}

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
