use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::secret::{Secret, secret};

/// Admission: when a request is queued, and when it is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Admission")]
pub(crate) struct AdmissionSection {
    /// File with further `[[keys]]`. Read again when it changes. Empty: none.
    pub keys_file: String,
    /// Largest number of concurrent requests at the engines, per ready worker; more wait in the router's queue, which
    /// is fair between keys. 0: no limit, and the engines queue all requests.
    #[schemars(range(max = 1_000_000))]
    pub max_concurrent_per_worker: u32,
    /// Predicted wait on the least busy worker, in milliseconds, beyond which turns are queued in the router. 0: no
    /// limit.
    #[schemars(range(min = 0, max = 1e9))]
    pub max_wait_ms: f64,
    /// Largest number of queued requests; further ones are answered 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_queue: u32,
    /// Longest time in the queue in seconds; then 503. A client's own shorter timeout applies first.
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

impl Default for AdmissionSection {
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

/// Settings of admission.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// Path of the file of keys, if there is one.
    pub keys_file: Option<PathBuf>,
    /// Largest number of concurrent requests at the engines, per ready worker, if limited.
    pub max_concurrent_per_worker: Option<NonZeroU32>,
    /// Predicted wait on the least busy worker beyond which turns are queued, if limited; positive.
    pub max_wait: Option<Millis>,
    /// Largest number of queued requests.
    pub max_queue: NonZeroUsize,
    /// Longest time in the queue; positive.
    pub queue_timeout: Duration,
    /// Whether turns that are predicted to miss their objective on every worker are refused.
    pub shed: bool,
    /// Whether requests carry their tenant's salt.
    pub salt_requests: bool,
    /// Path of the file with the secret, if there is one.
    pub salt_secret_file: Option<PathBuf>,
    /// Secret from which tenants' salts and names are derived, if configured: at least 32 visible ASCII characters.
    pub salt_secret: Option<Secret>,
    /// Whether keys may use Anthropic's messages, which carry no salt.
    pub unsalted_messages: bool,
    /// Whether keys may send forms, which carry no salt.
    pub unsalted_forms: bool,
    /// Whether keys may open WebSockets, which carry no salt.
    pub unsalted_websockets: bool,
    /// Whether keys may use embedding models on an SGLang that caches their inputs without a salt.
    pub unsalted_embeddings: bool,
}

/// Length of the shortest secret; a shorter one can be guessed.
const SHORTEST_SECRET: usize = 32;

fn salt_secret(file: &str, checker: &mut Checker<'_>) -> Option<Secret> {
    let found = secret(file, "admission.salt_secret_file", checker)?;
    if found.expose().len() < SHORTEST_SECRET {
        let what = format!("{file} holds less than {SHORTEST_SECRET} characters");
        let hint = Some("`openssl rand -hex 32` makes one".to_owned());
        checker.report("admission.salt_secret_file", what, hint);
        return None;
    }
    Some(found)
}

pub(super) fn admission(written: AdmissionSection, checker: &mut Checker<'_>) -> Admission {
    Admission {
        keys_file: (!written.keys_file.is_empty()).then(|| written.keys_file.into()),
        max_concurrent_per_worker: NonZeroU32::new(written.max_concurrent_per_worker),
        max_wait: (written.max_wait_ms > 0.0).then_some(Millis(written.max_wait_ms)),
        max_queue: checker.bytes("admission.max_queue", written.max_queue.into()),
        queue_timeout: checker.seconds("admission.queue_timeout_s", written.queue_timeout_s),
        shed: written.shed,
        salt_requests: written.salt_requests,
        salt_secret: salt_secret(&written.salt_secret_file, checker),
        salt_secret_file: (!written.salt_secret_file.is_empty()).then(|| written.salt_secret_file.into()),
        unsalted_messages: written.unsalted_messages,
        unsalted_forms: written.unsalted_forms,
        unsalted_websockets: written.unsalted_websockets,
        unsalted_embeddings: written.unsalted_embeddings,
    }
}
