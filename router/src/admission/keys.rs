//! API keys: found by their hash, compared in constant time.
//!
//! Only SHA-256 digests are in memory and on disk. A plain hash is enough because keys are 256 random bits: there is
//! nothing to guess, so nothing that salt or a slow hash would protect. The map is keyed by the process's own random
//! seed, and the comparison after it takes the same time whatever differs, so that time tells a caller nothing of a key.

use std::collections::HashMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use aws_lc_rs::{constant_time, digest, rand};
use config::KeyDigest;
use http::HeaderMap;
use http::header::AUTHORIZATION;
use parking_lot::Mutex;
use policy::admission::Flow;
use policy::units::Millis;

use super::limits::{Left, Used};
use protocol::headers::X_API_KEY;
use protocol::tenant::{Tenant, hex};

use super::tenants;
use crate::operator::tokens::Named;
use protocol::error::ApiError;

/// What a key that the router made begins with: secret scanners look for such.
const PREFIX: &str = "tr-";
/// Random bytes of a key.
const KEY_BYTES: usize = 32;
/// Name of callers where there are no keys.
const ANONYMOUS: &str = "anonymous";

/// The keys in force.
#[derive(Debug, Default)]
pub struct Keyring {
    required: bool,
    keys: HashMap<Sealed, Arc<Key>>,
}

/// A key, and what has been used of it.
#[derive(Debug)]
pub struct Key {
    /// What was configured.
    pub spec: config::Key,
    tenant: Arc<Tenant>,
    /// Shared with the key of the same name in the configurations before and after, so that what is under way when one is
    /// read again is settled with the one in force.
    pub(super) used: Arc<Mutex<Used>>,
}

/// Whose a request is.
#[derive(Clone, Debug)]
pub struct Caller(pub(super) Option<Arc<Key>>);

/// A digest that is compared in constant time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sealed(pub(crate) KeyDigest);

impl Hash for Sealed {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.0.hash(state);
    }
}

impl PartialEq for Sealed {
    fn eq(&self, other: &Self) -> bool {
        constant_time::verify_slices_are_equal(&self.0.0, &other.0.0).is_ok()
    }
}

impl Eq for Sealed {}

impl Keyring {
    /// The keys of a configuration; those of the same name take over what was used in `old`.
    #[must_use]
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
            keys: config.keys.iter().filter_map(key).collect(),
        }
    }

    /// Charges that are not settled yet.
    pub(super) fn unsettled(&self) -> usize {
        self.keys.values().map(|key| key.used.lock().unsettled()).sum()
    }

    /// Tokens that the key of this name has left.
    pub(super) fn left(&self, name: &str, now: Millis) -> Option<f64> {
        let key = self.keys.values().find(|key| key.spec.name == name)?;
        key.used.lock().tokens_left(now)
    }

    /// What each key has left, by name.
    pub(super) fn left_of_all(&self, now: Millis) -> Vec<(String, [Option<Left>; 2])> {
        let left = |key: &Arc<Key>| (key.spec.name.clone(), key.used.lock().left(now));
        let mut all: Vec<_> = self.keys.values().map(left).collect();
        all.sort_by(|(one, _), (other, _)| one.cmp(other));
        all
    }

    /// Gives the key of this name all back that it has used. What it had left before and has now; `None` if there is none.
    pub(super) fn reset(&self, name: &str, now: Millis) -> Option<[[Option<Left>; 2]; 2]> {
        let key = self.keys.values().find(|key| key.spec.name == name)?;
        let mut used = key.used.lock();
        let before = used.left(now);
        used.reset(now);
        Some([before, used.left(now)])
    }

    /// Their names, each with what tells it from another of that name.
    #[must_use]
    pub fn named(&self) -> Named {
        let named = |key: &Arc<Key>| (key.spec.name.clone(), (key.spec.digest.0, None));
        self.keys.values().map(named).collect()
    }

    /// Whether a key has to be shown.
    #[must_use]
    pub fn is_required(&self) -> bool {
        self.required
    }

    /// Whose a request with these headers is.
    ///
    /// # Errors
    /// [`ApiError::Unauthorized`] if a key has to be shown and none that is known was.
    pub fn identify(&self, headers: &HeaderMap) -> Result<Caller, ApiError> {
        if !self.required {
            return Ok(Caller(None));
        }
        let shown = shown(headers).ok_or(ApiError::Unauthorized)?;
        let found = self.keys.get(&Sealed(hash(shown)));
        let key = found.ok_or(ApiError::Unauthorized)?;
        Ok(Caller(Some(Arc::clone(key))))
    }
}

impl Caller {
    /// The caller where there are no keys.
    #[must_use]
    pub fn anonymous() -> Self {
        Self(None)
    }

    /// Its name, in metrics and logs.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.as_ref().map_or(ANONYMOUS, |key| &key.spec.name)
    }

    /// Whose cached prefixes and conversations it shares; `None` if there are no tenants.
    #[must_use]
    pub fn tenant(&self) -> Option<&Tenant> {
        self.0.as_ref().map(|key| &*key.tenant)
    }

    /// Seeds hashes of what it names; 0 if there are no tenants.
    #[must_use]
    pub fn seed(&self) -> u64 {
        self.tenant().map_or(0, Tenant::seed)
    }

    /// Whether it may be told why its turns go where they go.
    #[must_use]
    pub fn may_ask_why(&self) -> bool {
        self.0.as_ref().is_some_and(|key| key.spec.explain)
    }

    /// With whom it shares its place in the queue.
    #[must_use]
    pub fn flow(&self) -> Flow {
        // The name and not the address, so that a reload does not give a key a second place.
        Flow(xxhash_rust::xxh3::xxh3_64(self.name().as_bytes()))
    }

    /// Its share of places, and its priority.
    #[must_use]
    pub fn standing(&self) -> (f64, i32) {
        self.0
            .as_ref()
            .map_or((1.0, 0), |key| (key.spec.weight, key.spec.priority))
    }
}

/// The key that a request shows.
fn shown(headers: &HeaderMap) -> Option<&[u8]> {
    bearer(headers).or_else(|| headers.get(X_API_KEY).map(|value| value.as_bytes()))
}

/// The bearer token that a request shows.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| key.trim_ascii())
}

/// SHA-256 of a key.
#[must_use]
pub fn hash(key: &[u8]) -> KeyDigest {
    let mut bytes = [0; 32];
    bytes.copy_from_slice(digest::digest(&digest::SHA256, key).as_ref());
    KeyDigest(bytes)
}

/// A new key.
///
/// # Errors
/// If the system has no randomness.
pub fn make() -> Result<String, aws_lc_rs::error::Unspecified> {
    let mut bytes = [0; KEY_BYTES];
    rand::fill(&mut bytes)?;
    Ok(format!("{PREFIX}{}", hex(&bytes)))
}
