//! Admission: `[admission]`.

use std::num::{NonZeroU32, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::time::Duration;

use policy::units::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::as_written::{AsCountOrNever, AsPath, AsPolicyMillisOrNever, AsSeconds, at_least_one};
use super::checker::Checker;
use super::secret::{Secret, secret};

/// Admission: when a request is queued, and when it is refused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Admission {
    /// File with further `[[keys]]`. Read again when it changes. Empty: none.
    #[serde(with = "AsPath")]
    pub keys_file: Option<PathBuf>,
    /// Largest number of concurrent requests at the engines, per ready worker; more wait in the router's queue, which
    /// is fair between keys. 0: no limit, and the engines queue all requests.
    #[serde(with = "AsCountOrNever")]
    #[schemars(range(max = 1_000_000))]
    pub max_concurrent_per_worker: Option<NonZeroU32>,
    /// Predicted wait on the least busy worker, in milliseconds, beyond which turns are queued in the router. 0: no
    /// limit.
    #[serde(rename = "max_wait_ms", with = "AsPolicyMillisOrNever")]
    #[schemars(range(min = 0, max = 1e9))]
    pub max_wait: Option<Millis>,
    /// Largest number of queued requests; further ones are answered 503.
    #[schemars(with = "u32", range(min = 1, max = 1_000_000))]
    pub max_queue: NonZeroUsize,
    /// Longest time in the queue in seconds; then 503. A client's own shorter timeout applies first.
    #[serde(rename = "queue_timeout_s", with = "AsSeconds")]
    #[schemars(range(min = 0.01, max = 86_400))]
    pub queue_timeout: Duration,
    /// Whether a turn that is predicted to miss its objective on every worker is answered 429 at once, instead of being
    /// served late at the expense of others.
    pub shed: bool,
    /// Whether requests carry a salt of their key's tenant to the engines as `cache_salt`, so that no engine serves one
    /// tenant from another's cache. Disable only for engines that refuse the field.
    pub salt_requests: bool,
    /// File with a secret, one line of at least 32 characters, from which tenants' salts and names are derived. The
    /// same for all replicas. Empty: they are derived from the tenant's keys, so that changing these loses the tenant's
    /// cached prefixes.
    #[serde(with = "AsPath")]
    pub salt_secret_file: Option<PathBuf>,
    /// Secret in that file: at least 32 visible ASCII characters.
    #[serde(skip)]
    pub salt_secret: Option<Secret>,
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
            keys_file: None,
            max_concurrent_per_worker: None,
            max_wait: None,
            max_queue: at_least_one(1_000),
            queue_timeout: Duration::from_secs(30),
            shed: false,
            salt_requests: true,
            salt_secret_file: None,
            salt_secret: None,
            unsalted_messages: false,
            unsalted_forms: false,
            unsalted_websockets: false,
            unsalted_embeddings: false,
        }
    }
}

/// Length of the shortest secret; a shorter one can be guessed.
const SHORTEST_SECRET: usize = 32;

impl Admission {
    pub(crate) fn checked(mut self, checker: &mut Checker<'_>) -> Self {
        self.salt_secret = self
            .salt_secret_file
            .as_deref()
            .and_then(|file| salt_secret(file, checker));
        self
    }
}

fn salt_secret(file: &Path, checker: &mut Checker<'_>) -> Option<Secret> {
    let found = secret(file, "admission.salt_secret_file", checker)?;
    if found.expose().len() < SHORTEST_SECRET {
        let what = format!("{} holds less than {SHORTEST_SECRET} characters", file.display());
        let hint = Some("`openssl rand -hex 32` makes one".to_owned());
        checker.report("admission.salt_secret_file", what, hint);
        return None;
    }
    Some(found)
}
