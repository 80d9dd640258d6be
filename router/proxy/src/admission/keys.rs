//! API keys, found by their hash and compared in constant time.
//!
//! Only digests are kept. A plain SHA-256 suffices because keys are 256 random bits. The map is keyed by the process's
//! own random seed and the comparison after it takes constant time, so that timing reveals nothing about a key.

use std::collections::HashMap;
use std::sync::Arc;

use aws_lc_rs::rand;
use http::HeaderMap;
use parking_lot::Mutex;
use policy::admission::Flow;
use policy::units::{Millis, Tokens};

use super::limits::{Charge, Left, Used};
use super::tenants;
use fleet::clock::Clock;
use operator::secret::{Sealed, bearer, hash};
use operator::tokens::NamedDigests;
use protocol::error::ApiError;
use protocol::headers::X_API_KEY;
use protocol::tenant::{Tenant, hex};

/// Prefix of keys made by the router, which secret scanners recognise.
const PREFIX: &str = "tr-";
const KEY_BYTES: usize = 32;
const ANONYMOUS: &str = "anonymous";

/// Keys in force.
#[derive(Debug, Default)]
pub struct Keyring {
    required: bool,
    tenants: usize,
    keys: HashMap<Sealed, Arc<Key>>,
}

/// A key and its usage.
#[derive(Debug)]
pub struct Key {
    pub spec: config::Key,
    tenant: Arc<Tenant>,
    /// Shared across reloads by the keys of one name, so that charges in progress are settled with the key in force.
    used: Arc<Mutex<Used>>,
}

/// The reason why a caller is not identified.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyFault {
    /// The request has no key.
    Missing,
    /// The request's key is not configured.
    Unknown,
}

impl From<KeyFault> for ApiError {
    fn from(fault: KeyFault) -> Self {
        match fault {
            KeyFault::Missing => Self::MissingKey,
            KeyFault::Unknown => Self::UnknownKey,
        }
    }
}

/// Caller of a request.
#[derive(Clone, Debug)]
pub struct Caller(Option<Arc<Key>>);

impl Keyring {
    /// Reads the keys of a configuration; those of the same name keep their usage in `old`.
    pub fn new(config: &config::Config, old: &Self, now: Millis) -> Self {
        let tenants = tenants::all(config);
        let key = |spec: &config::Key| {
            let before = old.keys.values().find(|key| key.spec.name == spec.name);
            let used = match before {
                Some(key) => Arc::clone(&key.used),
                None => Arc::default(),
            };
            used.lock().reshape(spec, now);
            let (spec, tenant) = (spec.clone(), Arc::clone(tenants.get(&*spec.tenant)?));
            Some((Sealed(spec.digest), Arc::new(Key { spec, tenant, used })))
        };
        Self {
            required: config.requires_keys(),
            tenants: tenants.len(),
            keys: config.keys.iter().filter_map(key).collect(),
        }
    }

    /// Returns the number of charges to keys that are not settled yet.
    pub fn unsettled(&self) -> usize {
        self.keys.values().map(|key| key.used.lock().unsettled()).sum()
    }

    /// Returns the remaining tokens of this key; `None` if it is unknown or unlimited.
    pub fn left(&self, name: &str, now: Millis) -> Option<f64> {
        let key = self.keys.values().find(|key| key.spec.name == name)?;
        key.used.lock().tokens_left(now)
    }

    /// Returns the remaining requests and tokens of each key, by name.
    pub fn left_of_all(&self, now: Millis) -> Vec<(String, [Option<Left>; 2])> {
        let left = |key: &Arc<Key>| (key.spec.name.clone(), key.used.lock().left(now));
        let mut all: Vec<_> = self.keys.values().map(left).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    /// Resets the usage of a key. Returns its allowance before and after the reset, or `None` for an unknown key.
    pub fn reset(&self, name: &str, now: Millis) -> Option<[[Option<Left>; 2]; 2]> {
        let key = self.keys.values().find(|key| key.spec.name == name)?;
        let mut used = key.used.lock();
        let before = used.left(now);
        used.reset(now);
        Some([before, used.left(now)])
    }

    /// Returns the digests of the keys by the keys' names, to detect changes.
    pub fn named(&self) -> NamedDigests {
        let named = |key: &Arc<Key>| (key.spec.name.clone(), (key.spec.digest.0, None));
        self.keys.values().map(named).collect()
    }

    /// Returns whether requests need a key. If so, keys are not forwarded to workers.
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Returns whether there are several tenants, which must not detect each other's requests.
    pub fn isolates(&self) -> bool {
        self.tenants > 1
    }

    /// Identifies the caller. Fails if keys are required and no valid one is given.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, KeyFault> {
        if !self.required {
            return Ok(Caller(None));
        }
        let shown = shown(headers).ok_or(KeyFault::Missing)?;
        let found = self.keys.get(&Sealed(hash(shown)));
        let key = found.ok_or(KeyFault::Unknown)?;
        Ok(Caller(Some(Arc::clone(key))))
    }
}

impl Caller {
    pub fn anonymous() -> Self {
        Self(None)
    }

    /// Returns the key's name, for metrics and logs.
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or(ANONYMOUS, |key| &key.spec.name)
    }

    /// Returns the tenant, whose keys share cached prefixes and conversations; `None` for an anonymous caller.
    pub fn tenant(&self) -> Option<&Tenant> {
        self.0.as_ref().map(|key| &*key.tenant)
    }

    /// Returns the seed for hashes of names that the tenant uses; 0 for an anonymous caller.
    pub fn seed(&self) -> u64 {
        self.tenant().map_or(0, Tenant::seed)
    }

    /// Returns whether the caller may request explanations of routing decisions.
    pub fn may_ask_why(&self) -> bool {
        self.0.as_ref().is_some_and(|key| key.spec.explain)
    }

    /// Returns the caller's flow in the fair queue.
    pub fn flow(&self) -> Flow {
        // By name and not by address, so that a reload does not give a key a second flow.
        Flow(xxhash_rust::xxh3::xxh3_64(self.name().as_bytes()))
    }

    /// Returns the weight and priority of the key.
    pub fn standing(&self) -> (f64, i32) {
        self.0
            .as_ref()
            .map_or((1.0, 0), |key| (key.spec.weight, key.spec.priority))
    }

    /// Charges a request. Fails with [`ApiError::RateLimited`] if the key's requests are used up.
    pub fn count_request(&self, now: Millis) -> Result<(), ApiError> {
        match &self.0 {
            Some(key) => key.used.lock().count_request(now),
            None => Ok(()),
        }
    }

    /// Charges an estimate of tokens. Fails with [`ApiError::RateLimited`] if the key's tokens are used up.
    pub fn charge(&self, clock: Clock, estimated: Tokens) -> Result<Charge, ApiError> {
        match &self.0 {
            Some(key) => Charge::new(&key.used, clock, estimated),
            None => Ok(Charge::default()),
        }
    }

    /// Adds the key's remaining limits to a response.
    pub fn mark(&self, headers: &mut HeaderMap, clock: Clock) {
        if let Some(key) = &self.0 {
            let used = *key.used.lock();
            used.mark(headers, clock.now());
        }
    }
}

fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    bearer(headers).or_else(|| headers.get(X_API_KEY).map(|value| value.as_bytes()))
}

/// Generates a new key. Fails if the system has no randomness.
pub fn make() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0; KEY_BYTES];
    rand::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", hex(&bytes)))
}
