//! API keys, from the configuration and from a separate file.

use std::fmt;
use std::path::Path;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::checker::Checker;
use super::worker::check_name;

/// An API key, with its tenant and limits. The file has only its hash; `tailroute key new` makes both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
#[schemars(extend("required" = ["name", "sha256"]))]
#[schemars(rename = "Key")]
pub(crate) struct KeySection {
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
    /// Limit on requests per second. 0: no limit.
    #[schemars(range(min = 0, max = 1e9))]
    pub requests_per_s: f64,
    /// Number of requests that may come at once after a pause. 0: as many as the limit allows per second, and at least
    /// 1.
    #[schemars(range(max = 1_000_000_000))]
    pub requests_burst: u32,
    /// Limit on tokens per minute, of prompts and responses; those of a minute may come at once. 0: no limit.
    #[schemars(range(max = 1_000_000_000_000_u64))]
    pub tokens_per_min: u64,
    /// Whether `x-tailroute-explain: 1` adds the terms of the decision to responses.
    pub explain: bool,
}

/// A file of keys, separate from the configuration so that it can be a secret and change by itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct KeysFile {
    /// API keys.
    pub keys: Vec<KeySection>,
}

impl Default for KeySection {
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

/// An API key.
#[derive(Clone, Debug, PartialEq)]
pub struct Key {
    /// Name in metrics and logs: unique, 1 to 64 visible ASCII characters.
    pub name: String,
    /// Digest of the key.
    pub digest: KeyDigest,
    /// Tenant of the key; 1 to 64 visible ASCII characters.
    pub tenant: String,
    /// Weight in the fair queue; positive.
    pub weight: f64,
    /// Priority; requests with the largest are served first.
    pub priority: i32,
    /// Limit on requests, if there is one.
    pub requests: Option<Rate>,
    /// Limit on tokens, if there is one.
    pub tokens: Option<Rate>,
    /// Whether the caller may request the terms of decisions.
    pub explain: bool,
}

/// A rate with a burst.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// Units per second; positive.
    pub per_s: f64,
    /// Number of units that may come at once; at least 1.
    pub burst: f64,
}

/// SHA-256 of a key or token. Its `Debug` output is shortened to keep it out of logs.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyDigest(pub [u8; 32]);

impl KeyDigest {
    /// Parses 64 hexadecimal digits.
    pub(crate) fn read(text: &str) -> Option<Self> {
        let mut digest = [0; 32];
        if text.len() != 64 || !text.is_ascii() {
            return None;
        }
        for (at, byte) in digest.iter_mut().enumerate() {
            *byte = u8::from_str_radix(text.get(2 * at..2 * at + 2)?, 16).ok()?;
        }
        Some(Self(digest))
    }
}

impl fmt::Debug for KeyDigest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "sha256:{:02x}{:02x}…", self.0[0], self.0[1])
    }
}

pub(crate) fn keys(written: Vec<KeySection>, file: Option<&Path>, checker: &mut Checker<'_>) -> Vec<Key> {
    let mut keys = Vec::with_capacity(written.len());
    check_all(written, &mut keys, checker);
    if let Some(file) = file {
        checker.check_file("admission.keys_file", file, |written: KeysFile, checker| {
            check_all(written.keys, &mut keys, checker);
        });
    }
    keys
}

fn check_all(written: Vec<KeySection>, keys: &mut Vec<Key>, checker: &mut Checker<'_>) {
    for (at, key) in written.into_iter().enumerate() {
        let path = |key: &str| format!("keys[{at}].{key}");
        check_name(&key.name, &path("name"), checker);
        if let Some(tenant) = &key.tenant {
            check_name(tenant, &path("tenant"), checker);
        }
        let Some(digest) = KeyDigest::read(&key.sha256) else {
            let what = "expected the 64 hexadecimal digits of a SHA-256".to_owned();
            let hint = "`tailroute key new` makes a key and writes its section".to_owned();
            checker.report(&path("sha256"), what, Some(hint));
            continue;
        };
        if keys.iter().any(|known| known.name == key.name) {
            let what = format!("`{}` is already the name of another key", key.name);
            checker.report(&path("name"), what, None);
        }
        if let Some(known) = keys.iter().find(|known| known.digest == digest) {
            let what = format!("is already the key `{}`", known.name);
            checker.report(&path("sha256"), what, None);
        }
        let burst = if key.requests_burst == 0 {
            key.requests_per_s.max(1.0)
        } else {
            f64::from(key.requests_burst)
        };
        let per_min = key.tokens_per_min as f64;
        keys.push(Key {
            tenant: key.tenant.unwrap_or_else(|| key.name.clone()),
            name: key.name,
            digest,
            weight: key.weight,
            priority: key.priority,
            requests: (key.requests_per_s > 0.0).then_some(Rate {
                per_s: key.requests_per_s,
                burst,
            }),
            tokens: (per_min > 0.0).then_some(Rate {
                per_s: per_min / 60.0,
                burst: per_min,
            }),
            explain: key.explain,
        });
    }
}
