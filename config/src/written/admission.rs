//! Admission: `[admission]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Admission: when a request is queued, and when it is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// File with further `[[keys]]`. Read again when it changes. Empty: none.
    pub keys_file: String,
    /// Concurrent requests at the engines, per ready worker; more wait in the router's queue, which is fair between
    /// keys. 0: no limit, and the engines queue all requests.
    #[schemars(range(max = 1_000_000))]
    pub max_concurrent_per_worker: u32,
    /// Predicted wait on the least busy worker, in milliseconds, beyond which turns are queued in the router. 0: no
    /// limit.
    #[schemars(range(min = 0, max = 1e9))]
    pub max_wait_ms: f64,
    /// Largest number of queued requests; further ones are answered 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_queue: u32,
    /// Seconds that a request may be queued; then 503. A client's own shorter timeout applies first.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub queue_timeout_s: f64,
    /// Whether a turn that is predicted to miss its objective on every worker is answered 429 at once, instead of being
    /// served late at the expense of others.
    pub shed: bool,
    /// Whether requests carry a salt of their key's tenant to the engines as `cache_salt`, so that no engine serves one
    /// tenant from another's cache. Disable only for engines that refuse the field.
    pub salt_requests: bool,
    /// File with a secret, one line of at least 32 characters, from which tenants' salts and names are derived. The
    /// same for all replicas. Empty: they are derived from the tenant's keys, so that changing these loses the tenant's
    /// cached prefixes.
    pub salt_secret_file: String,
    /// Whether keys may use `/v1/messages`, for which engines accept no salt: tenants can then detect what others have
    /// sent there.
    pub unsalted_messages: bool,
    /// Whether keys may send forms (audio, images), for which engines accept no salt.
    pub unsalted_forms: bool,
    /// Whether keys may open WebSockets (`/v1/realtime`), for which engines accept no salt.
    pub unsalted_websockets: bool,
    /// Whether keys may use the embedding models of an SGLang that caches inputs, for which it accepts no salt.
    pub unsalted_embeddings: bool,
}

impl Default for Admission {
    fn default() -> Self {
        Self {
            keys_file: String::new(),
            max_concurrent_per_worker: 0,
            max_wait_ms: 0.0,
            max_queue: 1_000,
            queue_timeout_s: 30.0,
            shed: false,
            salt_requests: true,
            salt_secret_file: String::new(),
            unsalted_messages: false,
            unsalted_forms: false,
            unsalted_websockets: false,
            unsalted_embeddings: false,
        }
    }
}
