//! When a request waits, and when it is turned away.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::PathBuf;
use std::time::Duration;

use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::secret::{Secret, secret};

/// When a request waits here, and when it is turned away.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(rename = "Admission")]
pub(crate) struct AdmissionSection {
    /// File with `[[keys]]`, beside those of this file. Read again when it changes. Empty: none.
    pub keys_file: String,
    /// Requests that are at the engines at once, per worker that is ready; more wait here, in an order that is fair
    /// between keys. 0: no bound, the engines' own queues take all.
    #[schemars(range(max = 1_000_000))]
    pub max_concurrent_per_worker: u32,
    /// Milliseconds of predicted wait on the least busy worker beyond which turns wait here. 0: no bound.
    #[schemars(range(min = 0, max = 1e9))]
    pub max_wait_ms: f64,
    /// Requests that wait here; beyond it new ones are answered 503.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub max_queue: u32,
    /// Seconds that a request may wait here; then 503. A client's own timeout, where it says one, comes before.
    #[schemars(range(min = 0.01, max = 86_400))]
    pub queue_timeout_s: f64,
    /// Whether a turn that is predicted to miss its objective on every worker is answered 429 at once, instead of being
    /// served late at the expense of others.
    pub shed: bool,
    /// Whether requests carry their key's tenant to the engines as `cache_salt`, so that no engine serves one tenant from
    /// another's cache. Off only for engines that refuse the field.
    pub salt_requests: bool,
    /// File with a secret, one line of at least 32 characters, that tenants' salts and names are made from. The same for all
    /// replicas. Empty: the digests of a tenant's own keys, so that it loses what is cached for it whenever they change.
    pub salt_secret_file: String,
    /// Whether keys may use `/v1/messages`, for which engines take no salt: tenants then notice what others have asked there.
    pub unsalted_messages: bool,
    /// Whether keys may send forms (audio, images), for which engines take no salt.
    pub unsalted_forms: bool,
    /// Whether keys may open WebSockets (`/v1/realtime`), for which engines take no salt.
    pub unsalted_websockets: bool,
    /// Whether keys may use the embedding models of an SGLang that caches inputs, for which it takes no salt.
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

/// When a request waits, and when it is turned away.
#[derive(Clone, Debug, PartialEq)]
pub struct Admission {
    /// The file of keys, if there is one.
    pub keys_file: Option<PathBuf>,
    /// Requests at the engines at once, per ready worker.
    pub max_concurrent_per_worker: Option<NonZeroU32>,
    /// Predicted wait on the least busy worker beyond which turns wait here; positive.
    pub max_wait: Option<Millis>,
    /// Requests that wait.
    pub max_queue: NonZeroUsize,
    /// For a request to wait; positive.
    pub queue_timeout: Duration,
    /// Whether turns that cannot meet their objective are turned away.
    pub shed: bool,
    /// Whether requests carry their tenant.
    pub salt_requests: bool,
    /// The file of the secret, if there is one.
    pub salt_secret_file: Option<PathBuf>,
    /// What it holds: at least 32 visible ASCII characters.
    pub salt_secret: Option<Secret>,
    /// Whether keys may use Anthropic's messages, unsalted.
    pub unsalted_messages: bool,
    /// Whether keys may send forms, unsalted.
    pub unsalted_forms: bool,
    /// Whether keys may open WebSockets, unsalted.
    pub unsalted_websockets: bool,
    /// Whether keys may use embedding models of an SGLang that caches their inputs, unsalted.
    pub unsalted_embeddings: bool,
}

/// Shorter secrets can be guessed.
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
