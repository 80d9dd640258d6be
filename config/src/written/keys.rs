//! API keys: `[[keys]]`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// An API key, with its tenant and limits. The file has only its hash; `tailroute key new` makes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "sha256"]))]
pub struct Key {
    /// Name in metrics and logs. Unique.
    pub name: String,
    /// SHA-256 of the key, as 64 hexadecimal digits. Only for keys of 128 random bits or more: a guessable key can be
    /// found from its hash.
    pub sha256: String,
    /// Tenant of the key. Keys of one tenant share cached prefixes and conversations; nothing is shared between
    /// tenants. Default: the key's name, which no other key shares.
    pub tenant: Option<String>,
    /// Weight in the fair queue, relative to other keys of the same priority.
    #[schemars(extend("exclusiveMinimum" = 0), range(max = 1e6))]
    pub weight: f64,
    /// Priority. While requests of a higher priority are queued, those of a lower one are not admitted.
    #[schemars(range(min = -1000, max = 1000))]
    pub priority: i32,
    /// Requests per second. 0: no limit.
    #[schemars(range(min = 0, max = 1e9))]
    pub requests_per_s: f64,
    /// Requests that may come at once after a pause. 0: as many as the limit allows per second, and at least 1.
    #[schemars(range(max = 1_000_000_000))]
    pub requests_burst: u32,
    /// Tokens per minute, of prompts and responses; those of a minute may come at once. 0: no limit.
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub tokens_per_min: u64,
    /// Whether `x-tailroute-explain: 1` adds the terms of the decision to responses.
    pub explain: bool,
}

/// A file of keys, separate from the configuration so that it can be a secret and change by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct KeysFile {
    /// The keys.
    pub keys: Vec<Key>,
}

impl Default for Key {
    fn default() -> Self {
        Self {
            name: String::new(),
            sha256: String::new(),
            tenant: None,
            weight: 1.0,
            priority: 0,
            requests_per_s: 0.0,
            requests_burst: 0,
            tokens_per_min: 0,
            explain: false,
        }
    }
}
